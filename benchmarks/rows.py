"""The rows of the tables: the same on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from .model import FLOOR, Figure, Report, Result, Standing
from .targets import REASONS, Verdict
from .workloads import targets

NONE = "–"
PEER: Final = "redis-py"
_COMPARED: Final = (FLOOR, PEER)
_WORDS: Final = {True: "yes", False: "**NO**", None: "not to be judged"}


@dataclass(frozen=True, slots=True)
class Sheet:
    """The table of one workload: a line for each contender and figure, some columns for each server."""

    headings: Sequence[str]
    lines: Sequence[Sequence[str]]


def sheet(results: Sequence[Result]) -> Sheet:
    """Of the results of one workload, one for each server."""
    compared = [other for other in _COMPARED if any(result.has(other) for result in results)]
    verdicts = [_verdicts(result) for result in results]
    headings = ["contender", "figure"]
    for result in results:
        headings += [result.server, *(f"÷ {other}" for other in compared)]
    judged = any(verdicts)
    if judged:
        headings += ["target", "reached"]
    lines: list[Sequence[str]] = []
    for contender in dict.fromkeys(one.contender for result in results for one in result.standings):
        for figure in results[0].figures:
            cells: list[str] = []
            for result in results:
                cells += _cells(result, contender, figure, compared)
            if set(cells) == {NONE}:
                continue
            if not judged:
                lines.append((contender, figure.label, *cells))
                continue
            found = list(_reached(verdicts, contender, figure.key)) or [("", "")]
            lines.append((contender, figure.label, *cells, *found[0]))
            lines += [("", "", *[""] * len(cells), *more) for more in found[1:]]
    return Sheet(headings, lines)


def _cells(result: Result, contender: str, figure: Figure, compared: Sequence[str]) -> Iterator[str]:
    standing = next((one for one in result.standings if one.contender == contender), Standing(contender))
    spread = standing.figures.get(figure.key)
    if spread is None:
        yield standing.trouble if figure is result.figures[0] and standing.trouble else NONE
        yield from [NONE] * len(compared)
        return
    number = f"{{:.{figure.digits}f}}".format
    least, most = number(spread.minimum), number(spread.maximum)
    yield number(spread.median) + (f" ({least} – {most})" if least != most else "")
    for reference in compared:
        other = result.median(reference, figure.key)
        yield f"{spread.median / other:.3g}" if other else NONE


def _verdicts(result: Result) -> list[Verdict]:
    return [verdict for target in targets().get(result.title, ()) for verdict in target.judge(result)]


def _reached(verdicts: Sequence[Sequence[Verdict]], contender: str, figure: str) -> Iterator[tuple[str, str]]:
    """Each target of this figure, and what was reached on each server."""
    found: dict[str, list[str]] = {}
    for on_one_server in verdicts:
        for verdict in on_one_server:
            if (verdict.contender, verdict.figure) == (contender, figure):
                found.setdefault(verdict.target, []).append(f"{_shown(verdict)} {_WORDS[verdict.met]}")
    for target, reached in found.items():
        yield target, ", ".join(reached)


def _shown(verdict: Verdict) -> str:
    return NONE if verdict.measured is None else f"{verdict.measured:.3g}"


@dataclass(frozen=True, slots=True)
class Missed:
    """A target that was missed.

    Attributes:
        reached: What was measured on each server where it was missed, as "0.5 on Redis 7.0".
        reason: Why; empty if the list of reasons has none.
    """

    title: str
    contender: str
    target: str
    reached: Sequence[str]
    reason: str


def missed(report: Report) -> list[Missed]:
    """All targets that were missed on any server, by workload."""
    found: list[Missed] = []
    for title, results in report.by_title.items():
        reached: dict[tuple[str, str], list[str]] = {}
        for result in results:
            for verdict in _verdicts(result):
                if verdict.met is False:
                    key = verdict.contender, verdict.target
                    reached.setdefault(key, []).append(f"{_shown(verdict)} on {result.server}")
        for (contender, target), each in reached.items():
            reason = REASONS.get((title, target), "")
            found.append(Missed(title, contender, target, each, reason))
    return found


def judgement(report: Report) -> Iterator[str]:
    """How many targets were met; then a line for each that was missed."""
    verdicts = [verdict for result in report.results for verdict in _verdicts(result)]
    met = sum(verdict.met is True for verdict in verdicts)
    unknown = sum(verdict.met is None for verdict in verdicts)
    if report.quick:
        yield "Sizes were tiny (--quick): the figures mean nothing."
    number = len(verdicts) - met - unknown
    yield (
        f"{met} of {len(verdicts)} targets met, where each counts once a server; {number} missed, {unknown} "
        "not to be judged."
    )
    for one in missed(report):
        line = f"- {one.title}, {one.contender}, {one.target}: {', '.join(one.reached)}."
        yield f"{line} {one.reason}".rstrip()
