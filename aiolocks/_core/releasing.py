"""A release on its way: goes on by itself, also if nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

from .._transport import Call, Command, Fault, Released

if TYPE_CHECKING:
    from .engine import Engine


@final
class Releasing:
    """Sends a release until the server confirms it or its time has passed.

    A release that is repeated because its first reply was lost, and is then told "not the holder", was
    executed the first time: that is a success, unless the server knows the one that has taken its place.

    Args:
        until: Loop time at which the lease ends anyway.
        on_end: Called once, when it has ended.
        corked: Something follows that is to leave in the same write.
    """

    __slots__ = (
        "_call",
        "_command",
        "_engine",
        "_followed",
        "_on_end",
        "_repeated",
        "_until",
        "_waiters",
        "fault",
        "freed",
        "overtaken",
        "rung",
        "thief",
    )

    def __init__(
        self,
        engine: Engine,
        command: Command[Released],
        *,
        until: float,
        on_end: Callable[[Releasing], None] | None = None,
        corked: bool = False,
    ) -> None:
        self._engine = engine
        self._command = command
        self._until = until
        self._on_end = on_end
        self._repeated = False
        self._followed = corked
        self._call: Call[Released] | None = None
        self._waiters: list[asyncio.Future[None]] | None = []
        self.freed = False
        self.thief = b""  # the lease that has taken its place by force
        self.rung: Sequence[bytes] = ()  # the bells of the waiters that were woken
        self.overtaken = False  # the next request came before: the server did not know the script
        self.fault: Fault | None = None
        self._send(corked=corked)

    def ended(self) -> asyncio.Future[None]:
        """A future of its own for each who waits for the end."""
        waiter: asyncio.Future[None] = self._engine.loop.create_future()
        if self._waiters is None:
            waiter.set_result(None)
        else:
            self._waiters.append(waiter)
        return waiter

    def _send(self, *, corked: bool = False) -> None:
        wake_own = self._engine.wake_own
        self._call = Call(self._command, self._replied, self._failed, until=self._until, on_late=wake_own)
        self._engine.send(self._call, corked=corked)

    def _replied(self, released: Released) -> None:
        call, self._call = self._call, None
        assert call is not None
        self.freed = released.freed or self._repeated or call.unconfirmed
        self.rung = released.rung
        self.thief = released.thief
        self.overtaken = self._followed and call.as_eval
        self._finish()
        self._engine.wake_own(released)

    def _failed(self, fault: Fault) -> None:
        call, self._call = self._call, None
        assert call is not None
        self._repeated = self._repeated or call.unconfirmed
        pause = self._engine.settings.backoff.maximum
        in_time = self._engine.now() + pause < self._until
        if in_time and fault.transient and not self._engine.closed:
            self._engine.loop.call_later(pause, self._send)
        else:
            self.fault = fault
            self._finish()

    def _finish(self) -> None:
        # Nothing may refer back to this object: leases must be freed without the garbage collector.
        waiters, self._waiters = self._waiters, None
        on_end, self._on_end = self._on_end, None
        try:
            if on_end is not None:
                on_end(self)
        finally:
            for waiter in waiters or ():
                if not waiter.done():
                    waiter.set_result(None)
