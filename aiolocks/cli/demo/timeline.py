"""The holders over time, as a row of characters for each worker."""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """The characters for drawing.

    Attributes:
        holds: From little of a column's time to all of it.
    """

    holds: str
    frozen: str
    waits: str
    event: str
    passed: str
    failed: str

    def all(self) -> str:
        """All of them."""
        return self.holds + self.frozen + self.waits + self.event + self.passed + self.failed


UNICODE: Final = Glyphs(holds="▁▂▃▄▅▆▇█", frozen="░", waits="·", event="✗", passed="✓", failed="✗")
ASCII: Final = Glyphs(holds="-=#", frozen="z", waits=".", event="X", passed="ok", failed="NO")


class Activity(enum.Enum):
    """The activity of a worker about the lock."""

    WAITS = "waits"
    HOLDS = "holds"
    FROZEN = "frozen"
    """It is dead or stopped, and its lease runs on."""


@dataclass(slots=True)
class Span:
    """One activity of a worker from its begin to its end; `end` is None while it goes on."""

    activity: Activity
    start: float
    end: float | None = None

    def within(self, start: float, end: float) -> float:
        """Seconds of it that fall between."""
        return max(0.0, min(end, math.inf if self.end is None else self.end) - max(start, self.start))


class Timeline:
    """The activities of the workers, by a clock that they share.

    Args:
        start: Where it begins.
        length: Seconds that it is drawn to hold from the start, lest it shrinks while it grows.
    """

    def __init__(self, start: float, *, length: float) -> None:
        self._start = start
        self._length = length
        self._end: float | None = None
        self._spans: dict[int, list[Span]] = defaultdict(list)
        self._events: dict[int, list[float]] = defaultdict(list)

    def begin(self, worker: int, activity: Activity, at: float) -> None:
        """It does this from now on, and no longer what it did before."""
        self.end(worker, at)
        self._spans[worker].append(Span(activity, at))

    def end(self, worker: int, at: float) -> None:
        """It does nothing any more."""
        if (spans := self._spans[worker]) and spans[-1].end is None:
            spans[-1].end = at

    def held(self, worker: int, holds: Iterable[tuple[float, float]]) -> None:
        """It held then, and then, and then."""
        self._spans[worker] += [Span(Activity.HOLDS, start, end) for start, end in holds]

    def happened(self, worker: int, at: float) -> None:
        """Something happened to it in a moment."""
        self._events[worker].append(at)

    def close(self, at: float) -> None:
        """Nothing follows: from now on it is drawn to its end."""
        self._end = at

    def seconds(self, now: float) -> float:
        """From one side of a row to the other."""
        end = max(self._start + self._length, now) if self._end is None else self._end
        return max(end - self._start, 1e-9)

    def row(self, worker: int, *, width: int, now: float, glyphs: Glyphs) -> str:
        """Draws what one worker did, up to now."""
        step = self.seconds(now) / width
        columns = [(self._start + at * step, self._start + (at + 1) * step) for at in range(width)]
        return "".join(self._column(worker, start, min(stop, now), glyphs) for start, stop in columns)

    def _column(self, worker: int, start: float, end: float, glyphs: Glyphs) -> str:
        if end <= start:
            return " "  # still to come
        if any(start < at <= end for at in self._events[worker]):
            return glyphs.event
        seconds: dict[Activity, float] = dict.fromkeys(Activity, 0.0)
        for span in self._spans[worker]:
            seconds[span.activity] += span.within(start, end)
        activity = max(Activity, key=seconds.__getitem__)
        share = seconds[activity] / (end - start)
        if share <= 0:
            return " "
        match activity:
            case Activity.HOLDS:
                return glyphs.holds[min(math.ceil(share * len(glyphs.holds)), len(glyphs.holds)) - 1]
            case Activity.WAITS:
                return glyphs.waits
            case Activity.FROZEN:
                return glyphs.frozen
