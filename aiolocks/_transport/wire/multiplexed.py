"""The transport over connections that are driven directly: one for a session, and others where needed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, final

from .. import faults
from ..requests.calls import Call, ignore
from .notifiers import ASKING
from .pipeline import STALL, bare
from .reconnecting import Reconnecting
from .wakeups import Wakeups

if TYPE_CHECKING:
    from ..requests.transport import Proof
    from .spares import Spares


class Router(Protocol):
    """Where several connections serve one session: the object that knows of the others."""

    def redirected(self, node: Multiplexed, call: Call[Any], error: Exception) -> bool:
        """That was refused here. Whether it goes on elsewhere, or later."""
        ...

    def broken(self, node: Multiplexed) -> None:
        """It has no connection any more."""
        ...

    def away(self, node: Multiplexed) -> None:
        """It cannot be reached: what is not patient waits for word from here."""
        ...


@final
class Multiplexed(Reconnecting):
    """The transport over one redis-py connection, driven directly."""

    by_slot = False

    @property
    def ordered(self) -> bool:
        return self._fallback is None

    @property
    def hears(self) -> bool:
        return self._wakeups.hears

    @property
    def outage_told(self) -> bool:
        return self.outage.told

    @property
    def commands_sent(self) -> int:
        """Number of requests written so far, without those of the handshake."""
        others = (self._fallback, self._spares)
        return self._commands + sum(other.commands_sent for other in others if other is not None)

    def ignore_bell(self, bell: bytes) -> None:
        for words in self._wakeups.after(bell):
            self.send(Call(bare(words), ignore, ignore, until=self._loop.time() + STALL))

    # -- further connections

    def _take_aside(self, call: Call[Any]) -> bool:
        # A bell is heard on this connection, and a node that must be asked once is asked on this one.
        if self._alone or call.command.script is None or call.command.bells or call.elsewhere:
            return False
        self._further().send(call)
        return True

    def prove(self, proof: Proof) -> None:
        if self._fallback is not None:
            self._fallback.prove(proof)
        elif self._closed:
            proof.fault(faults.session_closed())
        else:
            self._further().prove(proof)

    def _further(self) -> Spares:
        if self._spares is None:
            from .spares import Spares  # noqa: PLC0415 - few sessions need more than one connection

            self._spares = Spares(self, self._loop, router=self._router, fence=self._fence)
        return self._spares

    def open_spare(self, *, alone: bool, router: Router | None = None) -> Multiplexed:
        """One more connection to the same server, on which no bells are heard."""
        return Multiplexed(
            self._open_raw,
            self._dialect,
            Wakeups("poll", trial=lambda _: bare(()), on_rung=lambda _, __: None),
            self._make_fallback,
            self._loop,
            outage=self.outage,
            router=router,
            alone=alone,
            spare=True,
            library=self._library,
        )

    def distrust(self) -> None:
        """The server was silent on another connection: this one is made again, if it has nothing to do now.

        If it is broken, that would be found only when a request on it stays without an answer.
        """
        if self._ready and not self.busy:
            self._abort()

    def check(self) -> None:
        """If it has nothing to do now, finds out whether it is broken before somebody needs it."""
        if self._ready and not self.busy:
            self.send(Call(bare(("PING",)), ignore, ignore, until=self._loop.time() + STALL))

    def pause_writing(self) -> None:
        if self._outflow is not None:
            self._outflow.hold()

    def resume_writing(self) -> None:
        if self._outflow is not None:
            self._outflow.go_on()

    def authenticate(self, words: tuple[str, ...]) -> None:
        super().authenticate(words)
        if self._spares is not None:
            self._spares.authenticate(words)

    # -- one of several

    def _redirected(self, call: Call[Any], error: Exception) -> bool:
        return self._router is not None and self._router.redirected(self, call, error)

    def _has_broken(self) -> None:
        if self._router is not None:
            self._router.broken(self)

    def _refuses(self, call: Call[Any]) -> bool:
        """Ends a call at once while the last attempt to connect, which has failed, is a moment ago."""
        refusal = self._connector.refusal
        if self._router is not None or self.ready or refusal is None or not self._connector.resting:
            return False
        call.fault(faults.of_driver(refusal, call.command.keys))
        return True

    def _away(self, error: BaseException) -> None:
        if self._router is not None:
            self._router.away(self)
        else:
            self.tell_impatient()

    def tell_impatient(self) -> None:
        """Ends the calls that are not patient and wait for a connection that could not be made just now."""
        if (refusal := self._connector.refusal) is not None:
            for call in tuple(self._queue):
                if not call.patient:
                    call.fault(faults.of_driver(refusal, call.command.keys))
        if self._spares is not None:
            self._spares.tell_impatient()

    @property
    def way(self) -> str:
        """How bells are heard here; empty while that is not known."""
        return self._wakeups.name

    @property
    def busy(self) -> bool:
        return bool(self._inflight) or self._wanted() or (self._spares is not None and self._spares.busy)

    @property
    def ready(self) -> bool:
        """Whether requests need not wait for a connection."""
        return self._ready or self._fallback is not None

    @property
    def stuck(self) -> bool:
        """Whether requests wait for a connection, or may still be executed after the end of theirs."""
        if not self.ready and (self._wanted() or bool(self._residue)):
            return True
        return self._spares is not None and self._spares.stuck

    def waiting(self) -> tuple[Call[Any], ...]:
        """The calls that were not written yet."""
        return tuple(self._queue)

    def awaited(self, *, further: bool = True) -> list[Call[Any]]:
        """The calls that are not answered yet, sent or not; also those for which nobody waits."""
        calls = [call for call in (*self._inflight, *self._queue) if call.command.script is not None]
        return calls if self._spares is None or not further else [*calls, *self._spares.awaited()]

    def take_back(self, elsewhere: Callable[[Call[Any]], bool]) -> list[Call[Any]]:
        """The calls that wait here for a connection and must be sent elsewhere: they do not wait any more."""
        taken: list[Call[Any]] = []
        kept: deque[Call[Any]] = deque()
        for call in self._queue:
            if call.done or call.command.script is None or not elsewhere(call):
                kept.append(call)
                continue
            if call.elsewhere and kept and kept[-1].command.args == ASKING:
                kept.pop()  # it would be for the next call here
            call.elsewhere = call.mid_move = False
            taken.append(call)
        self._queue = kept
        return taken if self._spares is None else [*taken, *self._spares.take_back(elsewhere)]

    # -- closing

    def rest(self) -> bool:
        if self._fallback is not None:
            return self._fallback.rest()
        if self.busy or self.stuck or self._connector.at_work:
            return False
        if self._spares is not None:
            self._spares.rest()
        self._hang_up()
        return True

    async def aclose(self, grace: float) -> None:
        if self._fallback is not None:
            await self._fallback.aclose(grace)
        deadline = self._loop.time() + grace
        try:
            if self._spares is not None:
                await self._spares.drain(deadline)
            await self._drain(deadline)
            self._closed = True
            await self._connector.aclose()
        finally:
            ear = self._ear
            self.close()
        for raw in [raw for raw in (self._raw, ear) if raw is not None]:
            try:
                async with asyncio.timeout(1.0):
                    await raw.wait_closed()
            except (OSError, TimeoutError):
                raw.abort()

    async def _drain(self, deadline: float) -> None:
        # Also for the replies that nobody waits for: a socket closed over unread bytes resets the connection.
        while self._loop.time() < deadline and (self._wanted() or self._inflight):
            if not self._ready:
                self._connector.start()
            await asyncio.sleep(0.001)

    def close(self) -> None:
        """Closes without waiting; what was written is still sent. Idempotent."""
        self._closed = self._hung_up = True
        if self._spares is not None:
            self._spares.close()
        self._deadlines.cancel()
        self._cancel_timers()
        if self._raw is not None:
            self._raw.transport.close()
        if self._ear is not None:
            self._ear.close()
        for call in (*self._inflight, *self._queue):
            call.fault(faults.session_closed())
        self._queue.clear()
