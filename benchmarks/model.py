"""The measures of a workload, and the figures that are kept."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

FLOOR = "floor"
"""The contender that does the same work with nothing but the driver or the timer."""
BARE = "floor, bare protocol"
"""Where the floor is the driver's: the same without the driver, for comparison."""

Hold = tuple[int, float, float]
"""Which process held the lock, from when to when; seconds since the start."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that is measured.

    Attributes:
        key: Its name in samples and in JSON.
        label: Its name for readers, with the unit.
        digits: How many decimal places mean anything.
    """

    key: str
    label: str
    digits: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """The result of one contender in one round.

    Attributes:
        figures: By figure.
        latencies: Single latencies in seconds, for the curve.
        holds: The holders over time, for the strip.
    """

    figures: Mapping[str, float]
    latencies: Sequence[float] = ()
    holds: Sequence[Hold] = ()


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over all rounds."""

    values: list[float]
    median: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Sums the values up."""
        return cls(list(values), statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Standing:
    """One contender in one workload.

    Attributes:
        trouble: Why there are no figures; empty when there are.
        latencies: Of all rounds.
        holds: Of the last round.
    """

    contender: str
    figures: dict[str, Spread] = field(default_factory=dict)
    trouble: str = ""
    latencies: list[float] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)

    @classmethod
    def of(cls, contender: str, samples: Sequence[Sample]) -> Self:
        """Sums its rounds up."""
        keys = samples[0].figures
        return cls(
            contender,
            {key: Spread.of([sample.figures[key] for sample in samples]) for key in keys},
            latencies=[latency for sample in samples for latency in sample.latencies],
            holds=list(samples[-1].holds),
        )


@dataclass(frozen=True, slots=True)
class Result:
    """All that is known of one workload on one server after its rounds.

    Attributes:
        server: The server, as readers call it.
        one_server: Why the workload was measured on one server alone; empty where it was on each.
        seconds: The time that all of it took.
        date: The day on which it was measured.
    """

    name: str
    case: str
    work: str
    floor: str
    server: str
    one_server: str
    figures: list[Figure]
    standings: list[Standing]
    seconds: float
    date: str

    @property
    def title(self) -> str:
        """The name of the workload, with the case where there are several."""
        return title(self.name, self.case)

    def median(self, contender: str, figure: str) -> float | None:
        """A contender's median of a figure, if it has one."""
        for standing in self.standings:
            if standing.contender == contender and figure in standing.figures:
                return standing.figures[figure].median
        return None

    def has(self, contender: str) -> bool:
        """Whether this contender has figures."""
        return any(standing.contender == contender and standing.figures for standing in self.standings)


def title(name: str, case: str) -> str:
    """What readers call a workload."""
    return f"{name}, {case}" if case else name


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run: where it took place, and what came out."""

    machine: dict[str, str]
    command: str
    quick: bool
    results: list[Result]

    def save(self, path: Path) -> None:
        """Writes it as JSON with a line for each workload: a diff shows those that were measured again."""
        report = _rounded(asdict(self))
        results = ",\n".join(map(json.dumps, report.pop("results")))
        head = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in report.items())
        path.write_text(f'{{\n{head}"results": [\n{results}\n]}}\n')

    def updated(self, anew: Report) -> Report:
        """With the workloads that were measured again, whole, in their places; new ones at the end."""
        results = {(result.title, result.server): result for result in (*self.results, *anew.results)}
        return replace(self, command=f"{self.command}\n{anew.command}", results=list(results.values()))

    @property
    def by_title(self) -> dict[str, list[Result]]:
        """The results of each workload, one for each server."""
        found: dict[str, list[Result]] = {result.title: [] for result in self.results}
        for result in sorted(self.results, key=lambda result: result.server):
            found[result.title].append(result)
        return found

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads what `save` wrote."""
        raw = json.loads(path.read_text())
        raw["results"] = [_result(result) for result in raw["results"]]
        return cls(**raw)


def _rounded(value: Any) -> Any:
    """With six digits of each figure: the others are noise."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value


def _result(raw: dict[str, Any]) -> Result:
    figures = [Figure(**figure) for figure in raw.pop("figures")]
    standings = [_standing(standing) for standing in raw.pop("standings")]
    return Result(figures=figures, standings=standings, **raw)


def _standing(raw: dict[str, Any]) -> Standing:
    figures = {key: Spread(**spread) for key, spread in raw.pop("figures").items()}
    return Standing(figures=figures, **raw)
