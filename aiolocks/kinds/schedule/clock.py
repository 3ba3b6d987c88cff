"""The server's time, as a process knows it without asking each time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from typing import Final, final

from ...lock.context import Context
from ...transport import clocks
from .steps import reading

_FRESH: Final = 600.0
"""Seconds for which one reading will do: a good clock is wrong by 30 ms after that."""


@final
class ServerClock:
    """Counts on from the server's time in its last answers.

    It does so by the loop's clock and by the one that goes on while the machine is suspended, whichever has
    gone further. It does not read the time of day from a clock of the process, so a wrong clock does no harm.

    Invariant: right after an answer it is not ahead of the server. When the answer came, the server's clock
    stood between what the answer says and that plus the round trip. A reading inside these bounds is kept;
    otherwise the lower one counts: one that asks a little late is not told to come again.
    """

    __slots__ = ("_heard_at", "_loop_time", "_steady_at", "_told", "users")

    def __init__(self, loop_time: Callable[[], float]) -> None:
        self._loop_time = loop_time
        self._told = 0.0  # milliseconds since 1970, at `_heard_at` of the loop and `_steady_at` of the other
        self._heard_at: float | None = None
        self._steady_at = 0.0
        self.users = 0

    @property
    def fresh(self) -> bool:
        """Whether it can be relied on without asking."""
        return self._heard_at is not None and self._since() < _FRESH

    def _since(self) -> float:
        """Seconds since it was heard."""
        assert self._heard_at is not None
        return max(self._loop_time() - self._heard_at, clocks.steady() - self._steady_at)

    def now(self) -> int:
        """Milliseconds since 1970; 0 before anything was heard."""
        return 0 if self._heard_at is None else int(self._told + self._since() * 1000)

    def heard(self, now_us: int, round_trip: float) -> None:
        """An answer has come with the server's time, `round_trip` seconds after the question."""
        told = now_us / 1000
        counted = told if self._heard_at is None else self._told + self._since() * 1000
        self._told = counted if told <= counted <= told + round_trip * 1000 else told
        self._heard_at, self._steady_at = self._loop_time(), clocks.steady()


@contextmanager
def server_clock(engine: Context, name: str) -> Generator[ServerClock]:
    """The clock that the schedules of a session share; in a cluster, each name has that of its own node."""
    key: Hashable = ("server clock", name if engine.by_slot else "")
    clock: ServerClock = engine.in_progress.setdefault(key, ServerClock(engine.now))
    clock.users += 1
    try:
        yield clock
    finally:
        clock.users -= 1
        if not clock.users and engine.in_progress.get(key) is clock:
            del engine.in_progress[key]


async def ask_time(engine: Context, name: str, clock: ServerClock) -> None:
    """Asks the server: in a cluster, the node of that name. Raises what `engine.ask` does."""
    asked_at = engine.now()
    read = await engine.ask(reading(engine.settings.prefix, name, records=0))
    clock.heard(read.now_us, engine.now() - asked_at)
