"""The time of the world, and what is to happen in it."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any


class Clockwork:
    """The events in the world outside of its processes, in the order of their time; in seconds.

    Attributes:
        now: The time of the world, which no process sees: each has a clock of its own.
        random: For all that belongs to no part in particular.
    """

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self.now = 0.0
        self.random = random.Random(f"{seed}")
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0
        self._at_rest = False

    def part(self, name: str) -> random.Random:
        """Randomness of a part of its own: to leave another part out does not change it."""
        return random.Random(f"{self.seed}/{name}")

    def at(self, when: float, what: Callable[..., object], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now), self._count, what, arguments))

    def after(self, delay: float, what: Callable[..., object], *arguments: Any) -> None:
        self.at(self.now + delay, what, *arguments)

    def every(self, seconds: float, what: Callable[[], object], *, first: float | None = None) -> None:
        """Lets it happen again and again, as long as anybody is there to see it."""

        def again() -> None:
            what()
            if not self._at_rest:
                self.after(seconds, again)

        self.after(seconds if first is None else first, again)

    def rest(self) -> None:
        """Nobody is there any more: regular events end."""
        self._at_rest = True

    @property
    def next_at(self) -> float:
        """When something happens next; infinity if nothing does."""
        return self._events[0][0] if self._events else float("inf")

    def happen(self) -> None:
        """Lets the next thing happen."""
        self.now, _, what, arguments = heapq.heappop(self._events)
        what(*arguments)

    def clear(self) -> None:
        self._events.clear()
