"""The table that `ls` prints and `top` keeps up to date."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ... import HolderInfo, LockInfo
from ..._visible import visible
from .shown import details, duration, held_by, kind_of, whereabouts

_LEFT: Final = ("name", "kind", "holder", "host")
_RIGHT: Final = ("pid", "held", "left", "waiters")
_BETWEEN: Final = "  "
_NARROWEST: Final = 8
_CUT: Final = ("name", "host")
_WIDEST: Final = 40
"""Columns to which names are aligned in a pipe: a longer one moves the rest of its own line."""
_LESS: Final = ((80, ("holder", "host")), (56, ("pid", "held")), (40, ("kind", "left")))
"""The columns that a narrower screen leaves out, as text that cannot be broken would squeeze out the name."""
_MOST_DRAWN: Final = 500
"""Lines up to which a table is fitted to the screen: that takes a millisecond for each."""


def open_console() -> Console:
    """Of stdout."""
    return Console(highlight=False)


def print_table(infos: Sequence[LockInfo]) -> None:
    """Once, on stdout. In a pipe no line is cut or broken: somebody may look for a name there."""
    console = open_console()
    if sys.stdout.isatty() and lines(infos) <= _MOST_DRAWN:
        console.print(table(infos, console.encoding, width=console.width))
    else:
        shows = _shown_on(None)
        rows = [tuple(_cells(info, holder, console.encoding, shows)) for info, holder in _lines(infos)]
        sys.stdout.writelines(f"{line}\n" for line in _aligned([_header(shows), *rows], shows))
        sys.stdout.flush()  # now, while an error still tells that no program reads it


def table(infos: Sequence[LockInfo], encoding: str, *, width: int) -> Table:
    """A line for each holder, and for each lock without one; a narrow screen shows fewer columns."""
    shows = _shown_on(width)
    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in filter(shows.__contains__, _LEFT):
        fits = column in ("kind", "holder")
        shown.add_column(
            column.upper(), overflow="fold", no_wrap=fits, min_width=_NARROWEST if column == "name" else None
        )
    for column in filter(shows.__contains__, _RIGHT):
        shown.add_column(column.upper(), justify="right", no_wrap=True)
    shown.add_column("", overflow="fold")
    for info, holder in _lines(infos):
        shown.add_row(*map(Text, _cells(info, holder, encoding, shows)), style="red" if info.problem else "")
    return shown


def cut_table(infos: Sequence[LockInfo], encoding: str, *, width: int, most: int, above: int = 0) -> Text:
    """The same in at most `most` lines, none of which is broken: a name that is too long loses its end.

    The first lines, as many as are `above`, are left out.

    It costs a thirtieth of `table`, for a screen that is drawn again and again.
    """
    shows = _shown_on(width)
    first = list(itertools.islice(_lines(infos), above, above + most))
    styles = ["bold", *("red" if info.problem else "" for info, _ in first)]
    rows = [_header(shows), *(tuple(_cells(info, holder, encoding, shows)) for info, holder in first)]
    cut = _aligned(rows, shows, width, more(encoding))
    return Text("\n").join(
        Text(set_cell_size(line, min(width, cell_len(line))), style=style)
        for line, style in zip(cut, styles, strict=True)
    )


def wait_lines(infos: Sequence[LockInfo], encoding: str, *, width: int, most: int, above: int = 0) -> Text:
    """The waiters of these locks, the longest waits first, and the holders for which they wait."""
    waits = sorted(
        (
            (-(waiter.waited_for or 0.0), whereabouts(waiter), info)
            for info in infos
            for waiter in info.waiting
        ),
        key=itemgetter(0, 1),
    )
    rows = [("WAITED", "WAITER", "FOR", "")]
    for waited, where, info in waits[above : above + most]:
        of = held_by(info, encoding) if info.holders else "held by nobody"
        rows.append((duration(-waited), visible(where, encoding), visible(info.name, encoding), of))
    cut = _aligned(rows, ("held", "host", "name"), width, more(encoding))
    return Text("\n").join(Text(set_cell_size(line, min(width, cell_len(line)))) for line in cut)


def more(encoding: str) -> str:
    """One character that says that there is more, and that can be written."""
    return "…" if "utf" in encoding.lower() else "~"


def lines(infos: Sequence[LockInfo]) -> int:
    """How many there are."""
    return sum(1 for _ in _lines(infos))


def _lines(infos: Sequence[LockInfo]) -> Iterator[tuple[LockInfo, HolderInfo | None]]:
    for info in infos:
        for holder in info.holders or (None,):
            yield info, holder


def _shown_on(width: int | None) -> tuple[str, ...]:
    """The columns that have room there."""
    narrow = [columns for below, columns in _LESS if width is not None and width < below]
    return tuple(column for column in (*_LEFT, *_RIGHT) if not any(column in columns for columns in narrow))


def _header(shows: Sequence[str]) -> tuple[str, ...]:
    return (*(column.upper() for column in shows), "")


def _aligned(
    rows: Sequence[tuple[str, ...]], shows: Sequence[str], width: int | None = None, cut: str = ""
) -> Iterator[str]:
    """The rows as lines; within a width if there is one, at the cost of names, then of hosts; else uncut."""
    columns = (*shows, "")
    widths = dict(zip(columns, (max(map(cell_len, cells)) for cells in zip(*rows, strict=True)), strict=True))
    for column in filter(widths.__contains__, _CUT):
        if width is not None:
            too_much = sum(widths.values()) + len(_BETWEEN) * (len(widths) - 1) - width
            widths[column] -= min(max(0, too_much), max(0, widths[column] - _NARROWEST))
        else:
            widths[column] = min(widths[column], _WIDEST)
    for row in rows:
        cells: list[str] = []
        for column, cell in zip(columns, row, strict=True):
            room = widths[column]
            fits = cell if width is None or cell_len(cell) <= room else set_cell_size(cell, room - 1) + cut
            space = " " * (room - cell_len(fits))
            cells.append(space + fits if column in _RIGHT else fits + space)
        yield _BETWEEN.join(cells).rstrip()


def _cells(info: LockInfo, holder: HolderInfo | None, encoding: str, shows: Sequence[str]) -> Iterator[str]:
    cells = {
        "name": visible(info.name, encoding),
        "kind": visible(kind_of(info, holder), encoding),
        "holder": "-" if holder is None else holder.lease_id,
        "host": "-" if holder is None else visible(holder.host or "-", encoding),
        "pid": "-" if holder is None or holder.pid is None else str(holder.pid),
        "held": duration(None if holder is None else holder.held_for),
        "left": duration(info.kept_for if holder is None else holder.remaining),
        "waiters": str(info.waiters),
    }
    yield from (cells[column] for column in shows)
    yield details(info, holder, encoding)
