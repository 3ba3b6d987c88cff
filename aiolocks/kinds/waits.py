"""A wait outside of any queue: how long it may take, and what listeners are told of it."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Final, Self, final

from ..errors import BackendError, LockTimeoutError
from ..lock.engine import Engine
from ..lock.events import how_it_ended
from ..transport import too_soon

_NOTHING: Final = 1e-6


@final
class Wait:
    """One call that may wait; entered for as long as it goes on.

    Invariant: each `waiting` that listeners are told is followed by one `waited`, however it ends.

    Args:
        engine: Of the session.
        label: The kind, as messages call it.
        name: Of what is waited for.
        timeout: Seconds that it may take; None for ever.
    """

    __slots__ = ("_began", "_label", "_name", "_told", "engine", "timeout")

    def __init__(self, engine: Engine, label: str, name: str, timeout: float | None) -> None:
        self.engine = engine
        self._label = label
        self._name = name
        self.timeout = timeout
        self._began = engine.now()
        self._told = False

    @property
    def waited(self) -> float:
        """Seconds so far."""
        return self.engine.now() - self._began

    def left(self) -> float:
        """Seconds that it may take yet."""
        if self.timeout is None:
            return math.inf
        left = self.timeout - self.waited
        return left if left > _NOTHING else 0.0  # what no timer can wait for is nothing

    def patience(self) -> float:
        """Loop time until which a request of it may take. The one of a single try has no other end."""
        left = self.left() if self.timeout else math.inf
        return self.engine.now() + min(self.engine.settings.command_timeout, left)

    def begins(self) -> None:
        """From now on it waits."""
        if not self._told:
            self._told = True
            self.engine.events.waiting(self._label.lower(), self._name)

    def timed_out(
        self, reason: str, *, remaining: float | None = None, was_not: str = "acquired"
    ) -> LockTimeoutError:
        """The error of a wait that has taken too long, or would."""
        return LockTimeoutError(
            self._label,
            self._name,
            blocking_timeout=self.timeout or 0.0,
            remaining=remaining,
            reason=reason,
            was_not=was_not,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        events, kind = self.engine.events, self._label.lower()
        unanswered: BackendError | None = None
        if self.timeout and isinstance(exc, BackendError) and too_soon(exc, self.timeout):
            unanswered, exc = exc, self.timed_out("Redis has not answered yet")
        if self._told:
            events.tell("on_waited", kind, self._name, seconds=self.waited, reason=how_it_ended(exc))
        if isinstance(exc, LockTimeoutError):
            events.timed_out(kind, self._name, self.waited)
        if exc is not None:
            how = how_it_ended(exc)
            events.tell("on_not_acquired", kind, self._name, seconds=self.waited, reason=how)
            if unanswered is not None:
                raise exc from unanswered
