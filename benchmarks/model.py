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
    quartiles: tuple[float, float]

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Sums the values up."""
        low, _, high = (
            statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
        )
        return cls(list(values), statistics.median(values), min(values), max(values), (low, high))


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
class Verdict:
    """One target, and what became of it.

    Attributes:
        measured: The figure that is compared with the target; None if there is nothing to compare.
    """

    contender: str
    figure: str
    target: str
    measured: float | None
    met: bool | None


@dataclass(frozen=True, slots=True)
class Result:
    """All that is known of one workload after its rounds.

    Attributes:
        seconds: The time that all of it took.
        date: The day on which it was measured.
    """

    name: str
    case: str
    work: str
    floor: str
    figures: list[Figure]
    standings: list[Standing]
    verdicts: list[Verdict]
    seconds: float
    date: str

    @property
    def title(self) -> str:
        """Its name, with the case where there are several."""
        return f"{self.name}, {self.case}" if self.case else self.name

    def median(self, contender: str, figure: str) -> float | None:
        """A contender's median of a figure, if it has one."""
        for standing in self.standings:
            if standing.contender == contender and figure in standing.figures:
                return standing.figures[figure].median
        return None


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run: where it took place, and what came out."""

    machine: dict[str, str]
    command: str
    quick: bool
    rounds: int
    results: list[Result]

    def save(self, path: Path) -> None:
        """Writes it as JSON with a line for each workload: a diff shows those that were measured again."""
        report = asdict(self)
        results = ",\n".join(map(json.dumps, report.pop("results")))
        head = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in report.items())
        path.write_text(f'{{\n{head}"results": [\n{results}\n]}}\n')

    def updated(self, anew: Report) -> Report:
        """With the workloads that were measured again, whole, in their places; new ones at the end."""
        results = {(result.name, result.case): result for result in (*self.results, *anew.results)}
        return replace(self, command=f"{self.command}\n{anew.command}", results=list(results.values()))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads what `save` wrote."""
        raw = json.loads(path.read_text())
        raw["results"] = [_result(result) for result in raw["results"]]
        return cls(**raw)


def _result(raw: dict[str, Any]) -> Result:
    figures = [Figure(**figure) for figure in raw.pop("figures")]
    verdicts = [Verdict(**verdict) for verdict in raw.pop("verdicts")]
    standings = [_standing(standing) for standing in raw.pop("standings")]
    return Result(figures=figures, standings=standings, verdicts=verdicts, **raw)


def _standing(raw: dict[str, Any]) -> Standing:
    figures = {key: Spread(**spread) for key, spread in raw.pop("figures").items()}
    return Standing(figures=figures, **raw)
