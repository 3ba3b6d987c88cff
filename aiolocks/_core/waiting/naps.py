"""How long a waiter that was refused sleeps before it asks again: arithmetic, and nothing else."""

from __future__ import annotations

from typing import Final, final

from ..backoff import SILENT, Backoff

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

    def next(
        self,
        now: float,
        backoff: Backoff,
        *,
        heard: bool,
        yielding_until: float,
        end: float | None,
        silence: float = SILENT,
    ) -> float | None:
        """When to wake up, or None when there is nothing left to do but to wait for the end.

        `heard` says that the sleeper is told when it may be free, and so asks after `silence` only; until
        `yielding_until`, others go first, who may not be able to use it (0: nobody does); `end` is that of
        the wait, if it has one.
        """
        self._poll_at = now + (silence if heard else backoff.delay(self.taken))
        self.taken += 1
        return self.again(now, yielding_until=yielding_until, end=end)

    def unheard(
        self, now: float, backoff: Backoff, *, yielding_until: float, end: float | None
    ) -> float | None:
        """The same for the nap that goes on, in which nobody will tell the sleeper when it may be free.

        It ends no later than it would have: a nap that began again each time this is said would have no end.
        """
        self._poll_at = min(self._poll_at, now + backoff.delay(self.taken))
        return self.again(now, yielding_until=yielding_until, end=end)

    def again(self, now: float, *, yielding_until: float, end: float | None) -> float | None:
        """The same for the nap that goes on, of which more is known by now."""
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
