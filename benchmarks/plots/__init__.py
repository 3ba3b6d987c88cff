"""Pictures of a report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..model import Report, Result
from .bars import bars
from .curve import curve
from .strip import strip
from .svg import Drawing

_KINDS: dict[str, Callable[[Sequence[Result]], Drawing | None]] = {
    "bars": bars,
    "curve": lambda results: curve(results[0]),
    "strip": lambda results: strip(results[0]),
}
"""Where lines of both servers would hide each other, a picture has the first one."""


def draw(report: Report, directory: Path) -> None:
    """Writes all pictures of all workloads, and removes those of workloads that are gone."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn = {name: drawing for results in report.by_title.values() for name, drawing in pictures(results)}
    for path in directory.glob("*.svg"):
        if path.name not in drawn:
            path.unlink()
    for name, drawing in drawn.items():
        (directory / name).write_text(str(drawing))


def pictures(results: Sequence[Result]) -> Iterator[tuple[str, Drawing]]:
    """The pictures of one workload, with the names of their files."""
    for kind, make in _KINDS.items():
        drawing = make(results)
        if drawing is not None:
            place = re.sub(r"\W+", "-", results[0].title.replace("×", "x"))
            yield f"{place}-{kind}.svg", drawing
