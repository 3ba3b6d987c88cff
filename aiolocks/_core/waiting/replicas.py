"""Whether replicas have a grant: it is waited for until enough of them do, or there is no time left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, final

from ..._transport import Fault, Proof
from ...errors import BackendError, LockError

if TYPE_CHECKING:
    from ..claim import Claim
    from ..engine import Engine

Outcome = Literal[True] | LockError | None
"""True: enough have it. None: it cannot be said over the present connections. Or what went wrong."""

_PAUSE: Final = 0.01
"""Seconds after which a grant is asked for again of which it could not be said."""


@final
class Acknowledgement:
    """Waits for the proof that enough replicas have a grant.

    Args:
        replicas: How many must have it.
        what: The grant for which replicas are asked.
        sent: Loop time at which the request for it was sent.
        elsewhere: It was executed by another node than the one that can be asked.
        until: Loop time after which it is too late.
        on_end: Told how it ended, in a later step of the loop.
    """

    __slots__ = ("_engine", "_on_end", "_proof", "_replicas", "_sent", "_timer", "_until", "_what")

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
        self._replicas = replicas
        self._what = what
        self._sent = sent
        self._until = until
        self._on_end = on_end
        self._proof = Proof(claim.owned(), replicas, self._proved, self._failed)
        self._timer: asyncio.TimerHandle = engine.loop.call_at(until, self._too_late)
        if elsewhere:
            self._cannot_say()
        else:
            engine.prove(self._proof)

    def _proved(self, has: bool) -> None:  # noqa: FBT001 - a reply
        if has:
            self._end(True)  # noqa: FBT003 - an outcome, not a switch
        else:  # another master has taken over, and does not know of it
            self._cannot_say()

    def _failed(self, fault: Fault) -> None:
        if fault.passing:
            self._cannot_say()
        else:
            self._timer.cancel()
            self._timer = self._engine.loop.call_later(0, self._end, fault.error)

    def _cannot_say(self) -> None:
        """It is acquired again: from another server, if that is the master now."""
        pause = self._engine.now() + _PAUSE
        if pause < self._until:
            self._timer.cancel()
            self._timer = self._engine.loop.call_at(pause, self._end, None)

    def _too_late(self) -> None:
        self._proof.done = True
        self._end(
            BackendError(
                f"{self._what} was acquired, but {self._proof.seen} of {self._replicas} replicas had it "
                f"within {self._engine.now() - self._sent:.3g} s: it was given back"
            )
        )

    def _end(self, outcome: Outcome) -> None:
        self._timer.cancel()
        self._on_end(outcome)

    def cancel(self) -> None:
        """Nobody wants to know any more."""
        self._proof.done = True
        self._timer.cancel()
