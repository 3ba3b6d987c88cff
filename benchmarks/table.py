"""The tables on the terminal: drawn where rich is installed, plain lines elsewhere and in a pipe."""

from __future__ import annotations

import sys

from .model import Report, Result
from .rows import Sheet, judgement, sheet


def show(report: Report) -> None:
    """Prints all that came out."""
    for name, value in report.machine.items():
        print(f"{name}: {value}")
    print(f"{report.command}\n")
    for results in report.by_title.values():
        found = sheet(results)
        if not (sys.stdout.isatty() and _show_drawn(results[0], found)):
            _show_plain(results[0], found)
    for line in judgement(report):
        print(line)


def _show_plain(result: Result, found: Sheet) -> None:
    everything = [found.headings, *found.lines]
    widths = [max(map(len, column)) for column in zip(*everything, strict=True)]
    print(result.title)
    for cells in everything:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    print()


def _show_drawn(result: Result, found: Sheet) -> bool:
    try:
        from rich.console import Console  # noqa: PLC0415 - it may not be installed
        from rich.table import Table  # noqa: PLC0415 - as above
    except ImportError:
        return False
    table = Table(
        title=f"{result.title}: {result.work}",
        caption=f"floor: {result.floor}",
        title_justify="left",
        caption_justify="left",
    )
    for heading in found.headings:
        table.add_column(heading, justify="right" if heading[0] == "÷" else "left")
    for cells in found.lines:
        table.add_row(*cells, style="bold red" if "NO" in cells[-1] else "")
    Console().print(table)
    return True
