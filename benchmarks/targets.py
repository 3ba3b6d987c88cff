"""The targets, whether they were reached, and why not: always by the medians of one run on one server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .model import Result


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target, and what became of it on one server.

    Attributes:
        measured: The figure that is compared with the target; None if there is nothing to compare.
    """

    contender: str
    figure: str
    target: str
    measured: float | None
    met: bool | None


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on a figure, or on its relation to that of somebody else.

    Attributes:
        text: As readers see it.
        figure: The figure's key.
        passes: Judges what was measured.
        relate: Makes of our figure and the reference's what is judged.
        reference: The contender to whose figure it is related; None for none.
        contenders: Those whose target it is; none for all who took part.
    """

    text: str
    figure: str
    passes: Callable[[float], bool]
    relate: Callable[[float, float], float]
    reference: str | None
    contenders: tuple[str, ...]

    def judge(self, result: Result) -> list[Verdict]:
        """One verdict for each whose target it is and who took part."""
        took_part = [standing.contender for standing in result.standings]
        return [self._judge(name, result) for name in self.contenders or took_part if name in took_part]

    def _judge(self, contender: str, result: Result) -> Verdict:
        ours = result.median(contender, self.figure)
        other = 1.0 if self.reference is None else result.median(self.reference, self.figure)
        measured = None if ours is None or other is None else self.relate(ours, other)
        met = None if measured is None else self.passes(measured)
        return Verdict(contender, self.figure, self.text, measured, met)


OURS = ("aiolocks",)


def at_most(
    bound: float, figure: str, text: str, *, of: str | None = None, contenders: tuple[str, ...] = OURS
) -> Target:
    """The figure, divided by the reference's, is at most this."""
    return Target(text, figure, lambda measured: measured <= bound, _quotient, of, contenders)


def at_least(
    bound: float, figure: str, text: str, *, of: str | None = None, contenders: tuple[str, ...] = OURS
) -> Target:
    """The figure, divided by the reference's, is at least this."""
    return Target(text, figure, lambda measured: measured >= bound, _quotient, of, contenders)


def faster(bound: float, figure: str, text: str, *, than: str, contenders: tuple[str, ...] = OURS) -> Target:
    """The reference takes at least `times` times as long."""
    return Target(text, figure, lambda measured: measured >= bound, _speedup, than, contenders)


def above(bound: float, figure: str, text: str, *, of: str, contenders: tuple[str, ...] = OURS) -> Target:
    """The figure is more than the reference's by at most this."""
    return Target(text, figure, lambda measured: measured <= bound, _difference, of, contenders)


def _quotient(ours: float, other: float) -> float:
    return ours / other


def _speedup(ours: float, other: float) -> float:
    return other / ours


def _difference(ours: float, other: float) -> float:
    return ours - other


REASONS: Mapping[tuple[str, str], str] = {}
"""Why a target is missed, by the workload and the text of the target: a sentence for the page."""
