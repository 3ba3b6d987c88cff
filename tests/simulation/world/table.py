"""A table that a command makes, in a page of the documentation: between two marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

TRUST = Path(__file__).parents[3] / "docs" / "explanation" / "trust.md"


def put(name: str, lines: Sequence[str], page: Path = TRUST) -> None:
    """Puts these lines between the marks of this name, in place of the former ones."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, _, rest = page.read_text().partition(begin)
    assert end in rest, f"{page.name} has no mark {end}"
    page.write_text("\n".join([before + begin, "", *lines, "", end + rest.partition(end)[2]]))


def lines(name: str, page: Path = TRUST) -> list[str]:
    """The lines between the marks of this name, without blank lines."""
    rest = page.read_text().partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0]
    return [line for line in rest.splitlines() if line]


def number(value: int) -> str:
    """With its thousands apart."""
    return f"{value:,}".replace(",", " ")
