"""The rows of the tables: the same on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from .model import FLOOR, Figure, Report, Result, Standing, Verdict

NONE = "–"
PEER: Final = "redis-py"

HEADINGS = (
    "workload",
    "contender",
    "figure",
    "median",
    "min – max",
    "÷ floor",
    f"÷ {PEER}",
    "target",
    "met",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line.

    Attributes:
        cells: In the order of the headings, but for the last; what does not apply is empty or a dash.
        met: Whether the target was met; None where there is none, or nothing to judge.
    """

    cells: Sequence[str]
    met: bool | None = None

    @property
    def all_cells(self) -> tuple[str, ...]:
        """With the last: the judgement in a word."""
        return (*self.cells, {True: "yes", False: "NO", None: ""}[self.met])


def rows(result: Result) -> Iterator[Row]:
    """One for each contender and figure, and one more for each further target of it."""
    for standing in result.standings:
        if standing.trouble:
            yield Row((result.title, standing.contender, *[NONE] * 5, standing.trouble))
            continue
        for figure in result.figures:
            if figure.key in standing.figures:
                yield from _rows(result, standing, figure)


def _rows(result: Result, standing: Standing, figure: Figure) -> Iterator[Row]:
    spread = standing.figures[figure.key]
    number = f"{{:.{figure.digits}f}}".format
    described = (
        result.title,
        standing.contender,
        figure.label,
        number(spread.median),
        f"{number(spread.minimum)} – {number(spread.maximum)}" if len(spread.values) > 1 else NONE,
        _ratio(result, standing, figure, FLOOR),
        _ratio(result, standing, figure, PEER),
    )
    judged = [
        (_target(verdict), verdict.met)
        for verdict in result.verdicts
        if verdict.contender == standing.contender and verdict.figure == figure.key
    ]
    for place, (target, met) in enumerate(judged or [("", None)]):
        yield Row((*(described if place == 0 else [""] * len(described)), target), met)


def _target(verdict: Verdict) -> str:
    measured = "nothing to compare" if verdict.measured is None else f"{verdict.measured:.3g}"
    return f"{verdict.target}: {measured}"


def _ratio(result: Result, standing: Standing, figure: Figure, reference: str) -> str:
    other = result.median(reference, figure.key)
    if not other:
        return NONE
    return f"{standing.figures[figure.key].median / other:.3g}"


def judgement(report: Report) -> Iterator[str]:
    """How many targets were met; then a line for each that was missed."""
    verdicts = [(result, verdict) for result in report.results for verdict in result.verdicts]
    met = sum(verdict.met is True for _, verdict in verdicts)
    unknown = sum(verdict.met is None for _, verdict in verdicts)
    if report.quick:
        yield "Sizes were tiny (--quick): the figures mean nothing."
    missed = len(verdicts) - met - unknown
    yield f"{met} of {len(verdicts)} targets met, {missed} missed, {unknown} not to be judged."
    for result, verdict in verdicts:
        if verdict.met is False:
            yield f"- {result.title}, {verdict.contender}, {_target(verdict)}"
