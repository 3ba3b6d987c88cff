"""Whether replicas have a grant: the master is asked until enough of them do, or there is no time left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, final

from .._transport import Call, Fault
from ..errors import BackendError, ConfigurationError, LockError

if TYPE_CHECKING:
    from .claim import Claim
    from .engine import Engine

Outcome = Literal[True] | LockError | None
"""True: enough have it. None: it cannot be said over the present connection. Or what went wrong."""

_PAUSE: Final = 0.002
"""Seconds between two questions: each of them keeps the session's connection waiting for a millisecond."""
_MOVING: Final = 0.01
"""Seconds after which a grant is asked for anew that was given by a node to which its slot is being moved."""
_POOLED: Final = (
    "replicas= needs a connection that this session does not have: WAIT speaks of what its own connection "
    "has written, and this client takes one out of its pool for each request"
)


@final
class Acknowledgement:
    """Asks, on the connection that carried the grant, how many replicas have got as far.

    Invariant: `WAIT` speaks of what its own connection has written, and on another one it would count
    replicas that know of nothing. So an answer counts only if no other connection was made since the grant.

    Args:
        replicas: How many must have it.
        what: What was granted.
        sent: Loop time at which the request for it was sent.
        elsewhere: It was executed by another node than the one that can be asked.
        until: Loop time after which it is too late.
        on_end: Told how it ended, in a later step of the loop.
    """

    __slots__ = (
        "_call",
        "_claim",
        "_connection",
        "_engine",
        "_on_end",
        "_replicas",
        "_seen",
        "_sent",
        "_timer",
        "_until",
        "_what",
    )

    def __init__(
        self,
        engine: Engine,
        claim: Claim,
        replicas: int,
        *,
        what: str,
        sent: float,
        elsewhere: bool,
        until: float,
        on_end: Callable[[Outcome], None],
    ) -> None:
        self._engine = engine
        self._claim = claim
        self._replicas = replicas
        self._what = what
        self._sent = sent
        self._until = until
        self._on_end = on_end
        self._connection = engine.connections
        self._seen = 0
        self._call: Call[int] | None = None
        self._timer: asyncio.TimerHandle | None = None
        if not engine.ordered:
            self._timer = engine.loop.call_later(0, on_end, ConfigurationError(_POOLED))
        elif elsewhere:
            self._timer = engine.loop.call_later(_MOVING, self._cannot_say)
        else:
            self._ask()

    def _ask(self) -> None:
        self._timer = None
        command = self._claim.acknowledged(self._replicas)
        self._call = Call(command, self._answered, self._failed, until=self._until)
        self._engine.send(self._call)

    def _answered(self, number: int) -> None:
        self._call = None
        if self._engine.connections != self._connection:
            self._on_end(None)
            return
        self._seen = number
        if number >= self._replicas:
            self._on_end(True)  # noqa: FBT003 - an outcome, not a switch
        elif self._engine.now() + _PAUSE >= self._until:
            self._on_end(self._too_few())
        else:
            self._timer = self._engine.loop.call_later(_PAUSE, self._ask)

    def _failed(self, fault: Fault) -> None:
        self._call = None
        if not fault.transient:
            self._on_end(fault.error)
        else:
            self._cannot_say()

    def _cannot_say(self) -> None:
        self._on_end(self._too_few() if self._engine.now() >= self._until else None)

    def _too_few(self) -> BackendError:
        return BackendError(
            f"{self._what} was acquired, but {self._seen} of {self._replicas} replicas had it within "
            f"{self._engine.now() - self._sent:.3g} s: it was given back"
        )

    def cancel(self) -> None:
        """Nobody wants to know any more."""
        if self._call is not None:
            self._engine.forget(self._call)
        if self._timer is not None:
            self._timer.cancel()
