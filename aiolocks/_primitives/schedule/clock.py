"""The server's time, as a process knows it without asking each time."""

from __future__ import annotations

from collections.abc import Generator, Hashable
from contextlib import contextmanager
from typing import Final, final

from ..._core.engine import Engine
from ..._transport import clocks

_FRESH: Final = 600.0
"""Seconds for which one reading will do: a good clock is wrong by 30 ms after that."""


@final
class ServerClock:
    """Counts on from the server's time in its last answers, by the clock that suspensions do not stop.

    No clock of a process tells the time of day here, so none that is wrong does harm.

    Invariant: right after an answer it is not ahead of the server. When the answer came, the server's clock
    stood between what the answer says and that plus the round trip. A reading inside these bounds is kept;
    otherwise the lower one counts: one that asks a little late is not told to come again.
    """

    __slots__ = ("_ahead", "_heard_at", "users")

    def __init__(self) -> None:
        self._ahead = 0.0  # of `steady`, milliseconds
        self._heard_at: float | None = None
        self.users = 0

    @property
    def fresh(self) -> bool:
        """Whether it can be relied on without asking."""
        return self._heard_at is not None and clocks.steady() - self._heard_at < _FRESH

    def now(self) -> int:
        """Milliseconds since 1970."""
        return int(clocks.steady() * 1000 + self._ahead)

    def heard(self, now_us: int, round_trip: float) -> None:
        """An answer has come that says so, so many seconds after it was asked for."""
        steady = clocks.steady()
        told = now_us / 1000 - steady * 1000
        if self._heard_at is None or not told <= self._ahead <= told + round_trip * 1000:
            self._ahead = told
        self._heard_at = steady


@contextmanager
def server_clock(engine: Engine, name: str) -> Generator[ServerClock]:
    """The clock that the schedules of a session share; in a cluster, each name has that of its own node."""
    key: Hashable = ("server clock", name if engine.by_slot else "")
    clock: ServerClock = engine.shared.setdefault(key, ServerClock())
    clock.users += 1
    try:
        yield clock
    finally:
        clock.users -= 1
        if not clock.users and engine.shared.get(key) is clock:
            del engine.shared[key]
