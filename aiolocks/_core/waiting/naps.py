"""How long a waiter that was refused sleeps before it asks again: arithmetic, and nothing else."""

from __future__ import annotations

from typing import Final, final

from ..backoff import Backoff

LAST_TRY: Final = 0.005
"""Seconds before the deadline at which a sleeper tries once more, at the latest."""
BEYOND: Final = 0.001
"""Seconds that a sleeper waits past the end of the holder's lease: the server counts whole milliseconds."""


@final
class Naps:
    """The sleeps of one wait; times are of the loop's clock.

    Invariant: none lasts past the end of the lease that was in the way, as the server told it, nor so long
    that there is no time for a last try.

    Attributes:
        taken: How many there were.
        refused_until: When the lease ends that was in the way last; None when it has no end, or when it was
            others who go first.
        round_trip: Seconds that the last answer took.
    """

    __slots__ = ("_poll_at", "refused_until", "round_trip", "taken")

    def __init__(self) -> None:
        self.taken = 0
        self._poll_at = 0.0
        self.refused_until: float | None = None
        self.round_trip = 0.0

    def begin(self, now: float, backoff: Backoff, silence: float | None) -> None:
        """The next one: of `silence` for a sleeper that is told when it may be free; else None: it polls."""
        self._poll_at = now + (backoff.delay(self.taken) if silence is None else silence)
        self.taken += 1

    def unheard(self, now: float, backoff: Backoff) -> None:
        """Nobody will tell the sleeper any more: this nap ends as if it polled.

        It ends no later than it would have: a nap that began again each time this is said would have no end.
        """
        self._poll_at = min(self._poll_at, now + backoff.delay(self.taken))

    def wake_at(self, now: float, *, yielding_until: float, end: float | None) -> float | None:
        """When to wake up from this nap, by what is known now; None: there is only the end to wait for.

        Until `yielding_until`, others go first, who may not be able to use it (0: nobody does); `end` is that
        of the wait, if it has one.
        """
        wake = self._poll_at
        if self.refused_until is None:
            if yielding_until:  # nobody tells us if they cannot use it; it may be over before we were told
                wake = min(wake, max(now, yielding_until) + BEYOND)
        elif self.refused_until + BEYOND > now:
            wake = min(wake, self.refused_until + BEYOND)
        if end is not None and wake >= end:
            # Before giving up, once more, if there is time for an answer.
            wake = end - max(2 * self.round_trip, LAST_TRY)
            if wake <= now:
                return None
        return wake
