"""The turns of processes that want the same thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

_RUN: Final = 16
"""Hand-overs from task to task within a process, after which another process that waits has its turn."""
_RUN_SECONDS: Final = 0.05
"""The same in time, for those who hold for longer."""
_YIELDING: Final = 0.005
"""Seconds for which a session that has woken another process lets it go first: as long as a wakeup may take.
Without this pause the releasing session would win every race: it can retry at once, while the woken process
still has to wake up."""
_DEAF_RUN: Final = 4
"""Without pushes a woken process notices only at its next poll, and until then the lock is idle. So a run is
longer there: this many times the longest sleep."""


@final
class Turns:
    """Counts the hand-overs in a row within this process, and remembers whom it owes a turn.

    Invariant: while another process is known to wait, at most `_RUN` hand-overs, and none that begins later
    than `_RUN_SECONDS` after the first grant, follow each other here (or, where nobody hears, none that
    begins later than `_DEAF_RUN` times the longest sleep).

    `longest_sleep` is that of a waiter that does not hear; None where bells are heard.
    """

    __slots__ = ("_giving", "_others", "_run", "_since", "owed", "yielding_until")

    def __init__(self) -> None:
        self._giving = False  # the release under way gives another process its turn
        self._others = 0  # in the queue when it was last granted here
        self._run = 0
        self._since = 0.0
        self.yielding_until = 0.0  # when others who were woken have had their chance; 0: nobody was
        self.owed = False  # it was let go of here without waking anybody elsewhere: that is still to be done

    def granted(self, others: int, now: float) -> None:
        if self.owed:
            self._run += 1
        else:
            self._run = 0
            self._since = now
        self.owed = self._giving = False
        self.yielding_until = 0.0  # the waiter that was woken has had its chance
        self._others = others

    def over(self, now: float, longest_sleep: float | None) -> bool:
        """Whether it is another process's turn, although somebody waits here."""
        if longest_sleep is not None:
            over = now - self._since >= _DEAF_RUN * longest_sleep
        else:
            over = self._run >= _RUN or now - self._since >= _RUN_SECONDS
        self._giving = over and self._others > 0
        return self._giving

    def rang(self, now: float, longest_sleep: float | None) -> float:
        """Another process was woken: for how many seconds it goes first."""
        giving, self._giving = self._giving, False
        seconds = _YIELDING
        if longest_sleep is not None:
            seconds = longest_sleep if giving else 0.0  # too long to lie idle for each single hand-over
        self.yielding_until = now + seconds
        return seconds

    def yielding(self, clock: Callable[[], float]) -> bool:
        """Whether others go first."""
        if self.yielding_until and clock() >= self.yielding_until:
            self.yielding_until = 0.0
        return self.yielding_until > 0.0
