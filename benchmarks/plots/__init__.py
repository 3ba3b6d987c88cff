"""Pictures of a report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from ..model import Report, Result
from .bars import bars
from .curve import curve
from .strip import strip
from .svg import Drawing

_KINDS: dict[str, Callable[[Result], Drawing | None]] = {"bars": bars, "curve": curve, "strip": strip}


def draw(report: Report, directory: Path) -> None:
    """Writes all pictures of all workloads."""
    directory.mkdir(parents=True, exist_ok=True)
    for result in report.results:
        for name, drawing in pictures(result):
            (directory / name).write_text(str(drawing))


def pictures(result: Result) -> Iterator[tuple[str, Drawing]]:
    """The pictures of one workload, with the names of their files."""
    for kind, make in _KINDS.items():
        drawing = make(result)
        if drawing is not None:
            place = re.sub(r"\W+", "-", result.title.replace("×", "x"))
            yield f"{place}-{kind}.svg", drawing
