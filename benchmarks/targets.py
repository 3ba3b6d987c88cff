"""The targets, and whether they were reached: always by the medians of one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from .model import Standing, Verdict


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on a figure, or on its relation to that of somebody else.

    Attributes:
        text: As readers see it.
        figure: The figure's key.
        passes: Judges what was measured.
        relate: Makes of our figure and the reference's what is judged.
        reference: The contender to whose figure it is related; None for none.
        contenders: The contender whose target it is.
    """

    text: str
    figure: str
    passes: Callable[[float], bool]
    relate: Callable[[float, float], float]
    reference: str | None
    contenders: tuple[str, ...]

    def judge(self, standings: Iterable[Standing]) -> list[Verdict]:
        """One verdict for each whose target it is and who took part."""
        medians = {
            standing.contender: standing.figures[self.figure].median
            for standing in standings
            if self.figure in standing.figures
        }
        took_part = {standing.contender for standing in standings}
        return [self._judge(name, medians) for name in self.contenders if name in took_part]

    def _judge(self, contender: str, medians: Mapping[str, float]) -> Verdict:
        ours = medians.get(contender)
        other = 1.0 if self.reference is None else medians.get(self.reference)
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
