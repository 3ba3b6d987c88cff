"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """Its lines, and an empty one."""
    yield _line(headings)
    yield _line(["---"] * len(headings))
    yield from map(_line, lines)
    yield ""


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
