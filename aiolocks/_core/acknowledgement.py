"""Whether replicas have a grant: the master is asked until enough of them do, or there is no time left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from .._transport import Call, Fault

if TYPE_CHECKING:
    from .claim import Claim
    from .engine import Engine

_PAUSE: Final = 0.002
"""Seconds between two questions: each of them keeps the session's connection waiting for a millisecond."""


@final
class Acknowledgement:
    """Asks, on the connection that carried the grant, how many replicas have got as far.

    Invariant: `WAIT` speaks of what its own connection has written, and on another one it would count
    replicas that know of nothing. So an answer counts only if no other connection was made since the grant.

    Args:
        replicas: How many must have it.
        until: Loop time after which it is too late.
        on_end: Told how many have it; None when the connection is another one, or there is none.
    """

    __slots__ = (
        "_call",
        "_claim",
        "_connection",
        "_engine",
        "_on_end",
        "_replicas",
        "_seen",
        "_timer",
        "_until",
    )

    def __init__(
        self,
        engine: Engine,
        claim: Claim,
        replicas: int,
        *,
        until: float,
        on_end: Callable[[int | None, Fault | None], None],
    ) -> None:
        self._engine = engine
        self._claim = claim
        self._replicas = replicas
        self._until = until
        self._on_end = on_end
        self._connection = engine.connections
        self._call: Call[int] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._seen = 0
        self._ask()

    def _ask(self) -> None:
        self._timer = None
        command = self._claim.acknowledged(self._replicas)
        self._call = Call(command, self._answered, self._failed, until=self._until)
        self._engine.send(self._call)

    def _answered(self, number: int) -> None:
        self._call = None
        if self._engine.connections != self._connection:
            self._on_end(None, None)
            return
        self._seen = number
        if number >= self._replicas or self._engine.now() + _PAUSE >= self._until:
            self._on_end(number, None)
        else:
            self._timer = self._engine.loop.call_later(_PAUSE, self._ask)

    def _failed(self, fault: Fault) -> None:
        self._call = None
        late = self._engine.now() >= self._until
        self._on_end(self._seen if late or not fault.transient else None, fault)

    def cancel(self) -> None:
        """Nobody wants to know any more."""
        if self._call is not None:
            self._engine.forget(self._call)
        if self._timer is not None:
            self._timer.cancel()
