"""The table that `ls` prints and `top` keeps up to date."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ... import HolderInfo, LockInfo
from .shown import details, duration, visible

_LEFT: Final = ("name", "kind", "holder", "host")
_RIGHT: Final = ("pid", "held", "left", "waiters")
_BETWEEN: Final = "  "
_NARROWEST: Final = 8
_LESS: Final = ((72, ("holder", "host")), (56, ("pid", "held")), (40, ("kind", "left")))
"""What a screen of fewer columns goes without: the name would be squeezed out by what cannot be broken."""
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
        sys.stdout.writelines(_aligned(infos, console.encoding))
        sys.stdout.flush()  # here, where it is still to be heard that nobody reads it


def _aligned(infos: Sequence[LockInfo], encoding: str) -> Iterator[str]:
    head = (*(column.upper() for column in (*_LEFT, *_RIGHT)), "")
    rows = [head, *(tuple(_cells(info, holder, encoding)) for info, holder in _lines(infos))]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = [
            (" " * (width - cell_len(cell)) + cell)
            if len(_LEFT) <= at < len(_LEFT) + len(_RIGHT)
            else cell + " " * (width - cell_len(cell))
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield _BETWEEN.join(padded).rstrip() + "\n"


def table(infos: Sequence[LockInfo], encoding: str, *, width: int, most: int | None = None) -> Table:
    """A line for each who holds something, and for what nobody holds; on a narrow screen, without the rest.

    With `most`, there are no more than so many, and none is broken.
    """
    without = {column for below, columns in _LESS if width < below for column in columns}
    shows = [*(column not in without for column in (*_LEFT, *_RIGHT)), True]
    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in filter(lambda column: column not in without, _LEFT):
        fits = column in ("kind", "holder")
        shown.add_column(
            column.upper(), overflow="fold", no_wrap=fits, min_width=_NARROWEST if column == "name" else None
        )
    for column in filter(lambda column: column not in without, _RIGHT):
        shown.add_column(column.upper(), justify="right", no_wrap=True)
    shown.add_column("", overflow="fold")
    for number, (info, holder) in enumerate(_lines(infos)):
        if most is not None and number >= most:
            break
        cells = (
            Text(cell) if most is None else Text(cell, no_wrap=True, overflow="ellipsis")
            for cell in itertools.compress(_cells(info, holder, encoding), shows)
        )
        shown.add_row(*cells, style="red" if info.problem else "")
    return shown


def lines(infos: Sequence[LockInfo]) -> int:
    """How many there are."""
    return sum(1 for _ in _lines(infos))


def _lines(infos: Sequence[LockInfo]) -> Iterator[tuple[LockInfo, HolderInfo | None]]:
    for info in infos:
        for holder in info.holders or (None,):
            yield info, holder


def _cells(info: LockInfo, holder: HolderInfo | None, encoding: str) -> Iterator[str]:
    yield visible(info.name, encoding)
    yield visible(info.kind, encoding)
    yield "-" if holder is None else holder.lease_id
    yield "-" if holder is None else visible(holder.host or "-", encoding)
    yield "-" if holder is None or holder.pid is None else str(holder.pid)
    yield duration(None if holder is None else holder.held_for)
    yield duration(None if holder is None else holder.remaining)
    yield str(info.waiters)
    yield details(info, holder)
