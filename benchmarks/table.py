"""The table on the terminal: drawn where rich is installed, plain lines elsewhere and in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .model import Report, Result
from .rows import HEADINGS, Row, judgement, rows


def show(report: Report) -> None:
    """Prints all that came out."""
    for name, value in report.machine.items():
        print(f"{name}: {value}")
    print(f"{report.command}\n")
    lines = [(result, list(rows(result))) for result in report.results]
    if not (sys.stdout.isatty() and _show_drawn(lines)):
        _show_plain(lines)
    for line in judgement(report):
        print(line)


def _show_plain(lines: Sequence[tuple[Result, Sequence[Row]]]) -> None:
    everything = [HEADINGS, *(row.all_cells for _, found in lines for row in found)]
    widths = [max(map(len, column)) for column in zip(*everything, strict=True)]
    for cells in everything:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


def _show_drawn(lines: Sequence[tuple[Result, Sequence[Row]]]) -> bool:
    try:
        from rich.console import Console  # noqa: PLC0415 - it may not be installed
        from rich.table import Table  # noqa: PLC0415 - as above
        from rich.text import Text  # noqa: PLC0415 - as above
    except ImportError:
        return False
    console = Console()
    for result, found in lines:
        caption = f"floor: {result.floor}"
        table = Table(
            title=f"{result.title}: {result.work}",
            caption=caption,
            title_justify="left",
            caption_justify="left",
        )
        for heading in HEADINGS[1:]:
            table.add_column(heading, justify="right" if heading in HEADINGS[3:7] else "left")
        for row in found:
            style = {True: "green", False: "bold red", None: ""}[row.met]
            table.add_row(*row.cells[1:], Text(row.all_cells[-1], style=style))
        console.print(table)
    return True
