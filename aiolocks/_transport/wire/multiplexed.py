"""One connection for a whole session.

Calls of one turn of the loop leave in one write; replies are handed out, in order, inside
`data_received`: no reader task, no connection a waiter, no task switch but the caller's own.

Invariants:
- `_inflight` holds the written calls in the order of their requests, so that the head's is the next reply.
- Nobody but this object ends the connection: a caller that leaves abandons its reply.
- After a broken connection, nothing is sent again before the server has been told to drop the old
  connection, whose bytes may still be on their way: a request of a dead connection that is executed
  after its retry was granted and released would leave a lock that nobody holds.
- While the server may still execute a request of a dead connection (`Residue`), a new connection is tried
  for, whether a caller waits or not, and the undo of that request is kept.
- A request is refused on account of connections that were closed only where it was on its way alone (`Bulk`),
  so that it is known for which request they were closed. There go long requests, and those that were on two
  connections in a row that were closed before any request was answered.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, final

import hiredis
import redis.exceptions as driver

from .. import clocks, faults
from ..client.driver import Link, NotDrivableError, reply_reader
from ..client.libraries import REDIS, Library
from ..requests.calls import FREED, LONG, NOT_HELD, Call, Command, ignore
from ..requests.transport import Transport
from .blame import MOST_CLOSED, Blame
from .connecting import Connector
from .deadlines import Deadlines
from .ears import CACHING, Words
from .identity import Identity, IdentityProbe
from .outages import Outage
from .residue import Residue
from .wakeups import Wakeups

if TYPE_CHECKING:
    from ..requests.transport import Proof
    from .bulk import Outflow
    from .spares import Spares

log = logging.getLogger("aiolocks.transport")

_NOT_ENOUGH: Final = object()
_REPLIES_AS_PUSHES: Final = (b"subscribe", b"unsubscribe")
# Its stub knows only tuples of one word.
_pack: Final = cast("Callable[[Any], bytes]", hiredis.pack_command)
_CACHING: Final = _pack(CACHING)
_STALL: Final = 2.0
"""Seconds without any reply to a written request after which the connection counts as dead."""
_STALL_MAXIMUM: Final = 30.0
_IDLE: Final = 10.0
"""Seconds without a request after which a connection is closed that only some requests take."""


class Detours(Protocol):
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
class Multiplexed(asyncio.Protocol):
    """The transport over one redis-py connection, driven directly.

    Args:
        open_link: Connects with the given protocol version (3, or 2 where the server knows no other).
        wakeups: How bells are heard.
        fallback: Makes the transport that serves when the connection cannot be driven.
        label: How people call the server.
        detours: Told of what other connections may serve; None where there are no others.
        alone: At most one request is under way.
        spare: A connection that has nothing to do is closed.
        fence: Gives the key that is written when replicas are counted, of a key of what was granted.
        library: That of the client, whose errors this raises.

    Attributes:
        outage: The log of the times when the server is away.
    """

    by_slot = False

    def __init__(
        self,
        open_link: Callable[[int], Awaitable[Link]],
        wakeups: Wakeups,
        fallback: Callable[[], Transport],
        loop: asyncio.AbstractEventLoop,
        *,
        label: str,
        detours: Detours | None = None,
        alone: bool = False,
        spare: bool = False,
        fence: Callable[[bytes], bytes] = bytes,
        library: Library = REDIS,
    ) -> None:
        self._library = library
        self._detours = detours
        self._alone = alone
        self._spare = spare
        self._fence = fence
        self._label = label
        self._open_link = open_link
        self._wakeups = wakeups
        self._make_fallback = fallback
        self._fallback: Transport | None = None
        self._loop = loop
        self._queue: deque[Call[Any]] = deque()  # not written yet
        self._inflight: deque[Call[Any]] = deque()  # written, reply to come
        # Stands for each request whose reply says nothing; its time is that of the last one.
        self._unheeded: Call[Any] = Call(_bare(()), ignore, ignore, until=math.inf)
        self._unheeded.done = True
        self._link: Link | None = None
        self._reader: Any = None
        self._ready = False  # the queue may be written
        self._useful = False  # a caller's request was answered on the present connection
        self._flush_due = False
        self._closed = False
        self.outage = Outage(label, loop.time)
        self._connector = Connector(
            loop,
            self._establish,
            self._needs_connection,
            self._unconnectable,
            failed=self._away,
            outage=self.outage,
        )
        self._identity: Identity | None = None  # of the last connection that carried requests
        self._residue = Residue()
        self._stall = _STALL
        self._deadlines = Deadlines(loop, self._unanswered, lambda: self._connector.trouble)
        self._stall_timer: asyncio.TimerHandle | None = None
        self._heard = 0.0  # loop time at which the server last sent a reply, or a part of one
        self._hung_up = False  # the present connection was ended by this side
        self._spares: Spares | None = None
        self._outflow: Outflow | None = None  # the last long request on the present connection
        self._blame = Blame()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._commands = 0
        self.connections = 0

    @property
    def ordered(self) -> bool:
        return self._fallback is None

    @property
    def hears(self) -> bool:
        """Whether bells are heard now."""
        return self._wakeups.hears

    @property
    def commands_sent(self) -> int:
        """Requests written so far, without those of the handshake."""
        others = (self._fallback, self._spares)
        return self._commands + sum(other.commands_sent for other in others if other is not None)

    # -- sending

    def send(self, call: Call[Any], *, at_once: bool = False, more: bool = False) -> None:
        if self._fallback is not None:
            self._fallback.send(call, at_once=at_once)
            return
        if self._closed:
            call.fault(faults.session_closed())
            return
        if not call.patient and self._detours is None and self._refuses(call):
            return
        if call.undoes and self._residue.concerns(call):
            call.until = math.inf
        if call.until < self._deadlines.at:
            self._deadlines.note(call.until)
        if self._alone:
            self._queue.append(call)
            self._flush()
            return
        if self._ready and not self._queue and not more and (at_once or not self._inflight):
            # An idle connection: no turn of the loop for the sake of a batch of one.
            self._write((call,))
            return
        self._queue.append(call)
        if at_once or (self._ready and not self._inflight and not more):
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def forget(self, call: Call[Any]) -> bool:
        if self._fallback is not None:
            return self._fallback.forget(call)
        call.done = True
        return call.written or call.unconfirmed

    def ignore_bell(self, bell: bytes) -> None:
        for words in self._wakeups.after(bell):
            self.send(Call(_bare(words), ignore, ignore, until=self._loop.time() + _STALL))

    def _flush(self) -> None:
        self._flush_due = False
        if not self._ready:
            self._connector.start()
        elif self._alone:
            if not self._inflight and self._wanted():
                self._write((self._queue.popleft(),))
        elif self._queue:
            batch = tuple(self._queue)
            self._queue.clear()
            self._write(batch)

    def _write(self, batch: tuple[Call[Any], ...]) -> None:
        assert self._link is not None
        steady, now = clocks.steady(), self._loop.time()
        parts: list[bytes] = []
        last: Call[Any] | None = None
        for call in batch:
            if call.done:
                continue
            if self._spares is not None and self._spares.concerns(call):
                self._spares.send(call)
                continue
            if last is not None and (both := self._with_rider(last, call)) is not None:
                parts[-1] = both
                self._put(call, now, steady)
                last.rider, last = call, None
                continue
            request = _pack(call.words())
            if len(request) > LONG and self._take_aside(call):
                continue
            # A request that is asked elsewhere for once comes right after its ASKING.
            if heard := call.command.bells or (() if call.elsewhere else call.command.watched):
                for words in self._wakeups.before_arming(heard):
                    self._unheeded.sent = now
                    self._inflight.append(self._unheeded)
                    parts.append(_CACHING if words is CACHING else _pack(words))
            self._put(call, now, steady)
            parts.append(request)
            last = call
        if parts:
            self._commands += len(parts)
            self._write_out(parts[0] if len(parts) == 1 else b"".join(parts))
            if self._stall_timer is None:
                self._watch_stall(now)

    def _with_rider(self, call: Call[Any], rider: Call[Any]) -> bytes | None:
        """One request for both, where there is one and it is not long."""
        words = call.with_rider(rider)
        request = None if words is None else _pack(words)
        return None if request is None or len(request) > LONG else request

    def _put(self, call: Call[Any], now: float, steady: float) -> None:
        call.sent, call.sent_steady = now, steady
        call.written = True
        call.rider = None
        if call.undoes:
            call.until = math.inf
        self._inflight.append(call)

    def _write_out(self, data: bytes) -> None:
        assert self._link is not None
        if not self._alone or len(data) <= LONG:
            self._link.transport.write(data)
            return
        from .bulk import Outflow  # noqa: PLC0415 - few sessions send anything long

        self._outflow = Outflow(self._link.transport, data, self._loop.time)
        self._outflow.go_on()

    def pause_writing(self) -> None:
        if self._outflow is not None:
            self._outflow.hold()

    def resume_writing(self) -> None:
        if self._outflow is not None:
            self._outflow.go_on()

    # -- further connections

    def _take_aside(self, call: Call[Any]) -> bool:
        """Whether a request goes over the connection of those that are on their way alone."""
        # A bell is heard on this connection, and a node that must be asked once is asked on this one.
        if self._alone or call.command.script is None or call.command.bells or call.elsewhere:
            return False
        self._further().send(call)
        return True

    def prove(self, proof: Proof) -> None:
        """Finds out whether replicas have what was granted here."""
        if self._fallback is not None:
            self._fallback.prove(proof)
        elif self._closed:
            proof.fault(faults.session_closed())
        else:
            self._further().prove(proof)

    def _further(self) -> Spares:
        if self._spares is None:
            from .spares import Spares  # noqa: PLC0415 - few sessions need more than one connection

            self._spares = Spares(
                self, self._open_spare, self._loop, detours=self._detours, fence=self._fence
            )
        return self._spares

    def _open_spare(self, what: str, *, alone: bool, detours: Detours | None = None) -> Multiplexed:
        """One more connection to the same server, on which no bells are heard."""
        return Multiplexed(
            self._open_link,
            Wakeups("poll", trial=lambda: _bare(()), on_rung=lambda _, __: None),
            self._make_fallback,
            self._loop,
            label=f"{self._label} ({what})",
            detours=detours,
            alone=alone,
            spare=True,
            library=self._library,
        )

    def may_execute(self, undo: Call[Any]) -> bool:
        """Whether the server may still execute what it undoes, from a connection that has ended."""
        return self._residue.concerns(undo)

    def _hung_up_on(self, unanswered: list[Call[Any]], error: Exception | None) -> None:
        """The server has closed the connection: one of these requests may be why."""
        for call in self._blame.closed([call for call in unanswered if self._may_be_blamed(call)]):
            if self._alone:
                call.fault(faults.hung_up(len(_pack(call.words())), MOST_CLOSED, error))
            elif self._take_aside(call):
                unanswered.remove(call)

    def _may_be_blamed(self, call: Call[Any]) -> bool:
        if call.undoes:  # one that is short is not given up: it is the last word
            return self._alone and len(_pack(call.words())) > LONG
        return self._alone or not self._useful

    def _hang_up_if_idle(self) -> None:
        if self._link is None:
            return
        if self.busy or self._heard + _IDLE > self._loop.time():
            self._idle_timer = self._loop.call_later(_IDLE, self._hang_up_if_idle)
        else:
            self._hung_up = True
            self._link.transport.close()

    # -- receiving

    def data_received(self, data: bytes) -> None:
        reader, answered = self._reader, False
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _NOT_ENOUGH:
                if type(reply) is hiredis.PushNotification and reply[0] not in _REPLIES_AS_PUSHES:
                    self._wakeups.pushed(reply)
                    continue
                answered = True
                if not self._inflight:
                    raise driver.InvalidResponse("a reply to nothing that was asked")
                call = self._inflight.popleft()
                if call.rider is not None:
                    self._handed_over(call, self._inflight.popleft(), reply)
                elif isinstance(reply, Exception):
                    self._refused(call, reply)
                else:
                    if not self._useful and call.command.script is not None:
                        self._prove_useful()
                    call.reply(reply)
        except driver.InvalidResponse as error:
            log.warning("the server's reply cannot be read (%r): connecting again", error)
            self._abort()
        # Pushes do not show that the server hears this side: a connection may be open in one direction only.
        if answered or reader.has_data():
            self._heard = self._loop.time()
        if self._alone and self._ready and not self._inflight:
            self._outflow = None
            self._flush()

    def _handed_over(self, release: Call[Any], acquire: Call[Any], reply: Any) -> None:
        """The reply to a release and an acquire that went in one request.

        Where it has not done both, they are sent again: each alone, so that each is told what concerns it.
        """
        error = reply if isinstance(reply, Exception) else None
        if error is None and reply != NOT_HELD:
            if not self._useful:
                self._prove_useful()
            release.reply(FREED)
            acquire.reply(reply)
            return
        unknown = isinstance(error, driver.NoScriptError) and not release.in_full
        detour = None if error is None else faults.detour(error)
        for call in (release, acquire):
            call.rider, call.written = None, False
            if call.done:
                continue
            if unknown:
                call.in_full = True
            else:
                call.alone = True
                # The script may have been stopped after its first write.
                call.unconfirmed |= error is not None and (detour is None or detour.begun)
            self.send(call, more=call is release)

    def _refused(self, call: Call[Any], error: Exception) -> None:
        if call.done:
            return
        if isinstance(error, driver.NoScriptError) and not call.in_full:
            call.in_full = True
            call.written = False
            self.send(call)
            return
        if (
            self._detours is not None
            and call.command.script is not None
            and self._detours.redirected(self, call, error)
        ):
            return
        fault = faults.refused(error, call.command.keys)
        if fault.demoted:
            self._abort()
        elif call.command.script is not None:
            self._prove_useful()
        call.fault(fault)

    def _prove_useful(self) -> None:
        """The server answers what callers ask on this connection, not only what a new connection asks."""
        self._useful = True
        self._blame.clear()
        self._stall = _STALL
        self._connector.useful()

    # -- liveness

    def _unanswered(self) -> tuple[Call[Any], ...]:
        aside = () if self._spares is None else self._spares.waiting
        return (*self._inflight, *self._queue, *aside)

    def _watch_stall(self, since: float) -> None:
        self._stall_timer = self._loop.call_at(since + self._stall, self._check_stall)

    def _check_stall(self) -> None:
        self._stall_timer = None
        if not self._inflight:
            return
        oldest = next((call for call in self._inflight if call is not self._unheeded), self._unheeded)
        since = max(oldest.sent, self._heard)
        if self._outflow is not None:
            since = max(since, self._outflow.silent_since)  # no reply before all is sent
        if since + self._stall > self._loop.time():
            self._watch_stall(since)
            return
        self._connector.trouble = silence = self._library.own(
            driver.TimeoutError(f"no reply for {self._stall:g} s")
        )
        self.outage.begun(silence, since=since)
        # A server that is only slow must not be asked again and again.
        self._stall = min(self._stall * 2, _STALL_MAXIMUM)
        self._abort()
        if self._spares is not None:
            self._spares.distrust()

    def distrust(self) -> None:
        """The server was silent on another connection: this one is made again, if it has nothing to do now.

        If it is broken, that would be found only when a request on it stays without an answer.
        """
        if self._ready and not self.busy:
            self._abort()

    def _abort(self) -> None:
        if self._link is not None:
            self._hung_up = True
            self._link.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        link, self._link = self._link, None
        if self._ready and self._identity is not None:  # before, a connection carries no requests
            self._residue.add(self._identity, self._inflight)
        self._ready = False
        self._wakeups.end()
        if link is not None:
            link.lost(exc)
        if exc is not None:
            self._connector.trouble = exc
        self._cancel_timers()
        self._outflow = None
        unanswered = [call for call in self._inflight if not call.done]
        self._inflight.clear()
        for call in unanswered:
            call.unconfirmed = True
            if call.command.script is None:  # belonged to this connection alone
                call.fault(faults.unreachable(exc or self._broken("connection closed")))
        if not self._hung_up:
            self._hung_up_on(unanswered, exc)
        self._queue.extendleft(call for call in reversed(unanswered) if not call.done)
        if self._needs_connection():
            self._connector.start()
        if self._detours is not None:
            self._detours.broken(self)

    def _broken(self, why: str) -> Exception:
        return self._library.own(driver.ConnectionError(why))

    def _cancel_timers(self) -> None:
        for timer in (self._stall_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._stall_timer = self._idle_timer = None

    # -- one of several

    @property
    def way(self) -> str:
        """How bells are heard here; empty while that is not known."""
        return self._wakeups.name

    @property
    def busy(self) -> bool:
        """Whether a request waits for its reply, or to be sent."""
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
        waiting = [call for call in self._queue if not call.done and call.command.script is not None]
        taken = [call for call in waiting if elsewhere(call)]
        gone = set(taken)
        self._queue = deque(call for call in self._queue if call not in gone)
        return taken if self._spares is None else [*taken, *self._spares.take_back(elsewhere)]

    # -- connecting

    def _needs_connection(self) -> bool:
        return (
            self._link is None
            and self._fallback is None
            and not self._closed
            and (self._wanted() or bool(self._residue))
        )

    def _wanted(self) -> bool:
        """Drops the calls that have ended; whether any is left to be written."""
        self._queue = deque(call for call in self._queue if not call.done)
        return bool(self._queue)

    def _refuses(self, call: Call[Any]) -> bool:
        """Ends a call at once while the last attempt to connect, which has failed, is a moment ago."""
        refusal = self._connector.refusal
        if self.ready or refusal is None or not self._connector.resting:
            return False
        call.fault(faults.of_driver(refusal, call.command.keys))
        return True

    def _away(self, _: BaseException) -> None:
        if self._detours is not None:
            self._detours.away(self)
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

    def _unconnectable(self, error: BaseException) -> None:
        queue = tuple(self._queue)
        self._queue.clear()
        for call in queue:
            call.fault(faults.of_driver(error, call.command.keys))

    async def _establish(self, protocol: int) -> None:
        try:
            link = await self._open_link(protocol)
        except NotDrivableError as reason:
            self._wakeups.require_none(str(reason))
            log.warning("%s: the plain transport serves this session", reason)
            self._give_way()
            return
        self._link = link
        self._hung_up = self._useful = False
        try:
            await self._introduce(link)
        except BaseException:
            if not self._ready:
                link.transport.abort()
            raise

    async def _introduce(self, link: Link) -> None:
        self._reader = reply_reader(_NOT_ENOUGH, self._library)
        link.transport.set_protocol(self)
        if link.leftover:
            self.data_received(link.leftover)
        if link.transport.is_closing():
            self._link = None  # its end may have been told to the protocol before
            raise self._broken("closed by the server while connecting")
        probe = IdentityProbe(self._ask)
        identity, before = await probe.identity(), self._identity
        await self._residue.drop(probe, identity)
        await self._wakeups.begin(self._ask, protocol=link.protocol, database=link.database)
        if self._link is not link:  # it broke right after its last answer
            raise self._connector.trouble or self._broken("closed by the server while connecting")
        # Not before: until here it has carried nothing, and the former ones may still have to be dropped.
        self._residue.settled(identity)
        self._identity = identity
        self.connections += 1
        self._ready = True
        self._flush()
        if self._spare:
            self._idle_timer = self._loop.call_later(_IDLE, self._hang_up_if_idle)
        elif before is None:
            await probe.warn_of_eviction()

    def _ask(self, *words: bytes | str | int) -> asyncio.Future[Any]:
        """A bare command on this very connection, ahead of the queue."""
        answer: asyncio.Future[Any] = self._loop.create_future()

        def failed(fault: faults.Fault) -> None:
            if not answer.done():
                answer.set_exception(fault.error.__cause__ or fault.error)
                answer.exception()  # the caller that asked may have been cancelled

        def replied(reply: Any) -> None:
            if not answer.done():
                answer.set_result(reply)

        if self._link is None:
            failed(faults.unreachable(self._connector.trouble or self._broken("connection closed")))
        else:
            self._write((Call(_bare(words), replied, failed, until=math.inf),))
            self._commands -= 1
        return answer

    def _give_way(self) -> None:
        self._fallback = self._make_fallback()
        self._ready = False
        queue = tuple(self._queue)
        self._queue.clear()
        for call in queue:
            if not call.done:
                self._fallback.send(call)

    # -- closing

    async def aclose(self, grace: float) -> None:
        """Sends what still waits for at most `grace` seconds, then closes. Idempotent."""
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
            self.close()
        if (link := self._link) is not None:
            try:
                async with asyncio.timeout(1.0):
                    await link.wait_closed()
            except (OSError, TimeoutError):
                link.transport.abort()

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
        if self._link is not None:
            self._link.transport.close()
        for call in (*self._inflight, *self._queue):
            call.fault(faults.session_closed())
        self._queue.clear()


def _bare(words: Words) -> Command[Any]:
    """A command of this connection alone: not sent again on the next one."""
    return Command(None, (), words, lambda reply: reply)
