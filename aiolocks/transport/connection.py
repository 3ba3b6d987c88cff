"""One connection to a server, driven directly: its requests, its end, and the next one.

Calls of one turn of the loop leave in one write; replies are handed out, in order, inside
`data_received`: no reader task, no connection a waiter, no task switch but the caller's own.

Invariants:
- `_inflight` holds the written calls in the order of their requests, so that the head's is the next reply.
- A request is refused on account of connections that were closed only where it was on its way alone (`Long`),
  so that it is known for which request they were closed. Long requests go alone. So does a request that was
  on two connections in a row that were closed before any request was answered.
- On this side, only this object ends the connection: a caller that leaves abandons its reply.
- After a broken connection, nothing is sent again before the server has been told to drop the old
  connection, whose bytes may still be on their way: a request of a dead connection that is executed
  after its retry was granted and released would leave a lock without a holder.
- While the server may still execute a request of a dead connection (`Residue`), a new connection is tried
  for, whether a caller waits or not, and the undo of that request is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from .._logs import get_logger
from .._tasks import empty_context
from .._visible import in_line
from . import clocks, faults
from .closed_loops import background
from .connecting import Connector
from .dialect import Dialect, OpenRaw
from .driver import (
    FEW,
    HELLO_TIMEOUT,
    NoResp3Error,
    NotDrivableError,
    RawConnection,
    UnknownScriptError,
    UnreadableReplyError,
    closed,
    head_of,
    pack,
    silent,
)
from .hearing import ASKING, CACHING, Ask, Ear, SpoiledError, UnavailableError, Wakeups, confirms
from .identity import Identity, identify, warn_of_eviction
from .libraries import REDIS, Library
from .long import Long, Outflow
from .outages import Outage
from .replication import Proofs
from .replies import PushNotification, Replies
from .request import FREED, LONG, NOT_HELD, JoinableRelease, Request, Transport, Words, ignore
from .residue import Residue

if TYPE_CHECKING:
    from .cluster.clustered import Clustered
    from .faults import Fault
    from .request import Proof, Script

MOST_CLOSED: Final = 2
"""The most connections that may be closed for one request."""


# -- When the calls of a connection end without an answer.


@final
class Deadlines:
    """Ends the calls whose time has passed, with one timer for all of them.

    Invariant: it looks no later than at the earliest `until` of a call that was noted and has not ended.

    Args:
        calls: Gives the calls that may not have ended.
        trouble: Gives what is known of why there is no answer.

    Attributes:
        at: Loop time at which it looks next.
    """

    __slots__ = ("_calls", "_loop", "_timer", "_trouble", "at")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        calls: Callable[[], Iterable[Request[Any]]],
        trouble: Callable[[], BaseException | None],
    ) -> None:
        self._loop = loop
        self._calls = calls
        self._trouble = trouble
        self._timer: asyncio.TimerHandle | None = None
        self.at = math.inf

    def note(self, when: float) -> None:
        """A call ends at that loop time, which is earlier than `at`."""
        self.cancel()
        self.at = when
        self._timer = self._loop.call_at(when, self._look, context=empty_context())

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        self.at = math.inf
        now = self._loop.time()
        earliest = math.inf
        for call in tuple(self._calls()):
            if call.done:
                continue
            if call.until > now:
                earliest = min(earliest, call.until)
                continue
            trouble = self._trouble()
            sent = call.written or call.unconfirmed
            if sent or trouble is None or faults.is_silence(trouble):
                call.fault(faults.unanswered(trouble))
            else:
                call.fault(faults.unreachable(trouble))
        if earliest < self.at:
            self.note(earliest)


log = get_logger("aiolocks.transport")

_CACHING: Final = pack(CACHING)
STALL: Final = 2.0
"""Seconds without any reply to a written request after which the connection counts as dead."""
STALL_MAXIMUM: Final = 30.0
HEARING_AGAIN: Final = 2.0
"""Seconds after which a server is asked again whether it takes a subscription."""
_IDLE: Final = 10.0
"""Seconds without a request after which a connection is closed that only some requests take."""


class Fallback(Transport, Protocol):
    """A transport to one server, whose place another server may take."""

    def leave(self) -> None:
        """Closes its connections at once: the next ones may lead to another server. Requests go on there."""
        ...


@final
class Multiplexed(asyncio.Protocol):
    """The transport over one connection, which is made when a request needs it, and again when it breaks.

    Args:
        open_raw: Connects with the given version of the protocol.
        dialect: Which version that is.
        wakeups: How bells are heard.
        fallback: Makes the transport that serves when the connection cannot be driven.
        outage: The log of the times when the server is away.
        router: Told of what other connections may serve; None where there are no other connections.
        spare: A connection that has nothing to do is closed.
        second_of: It is the second connection of another one, which this object stands between: at most one
            request is under way.
        fence: Gives the key that is written when replicas are counted, of a key of what was granted.
        library: That of the client, whose errors this raises.
    """

    by_slot = False

    def __init__(
        self,
        open_raw: OpenRaw,
        dialect: Dialect,
        wakeups: Wakeups,
        fallback: Callable[[], Fallback],
        loop: asyncio.AbstractEventLoop,
        *,
        outage: Outage,
        router: Clustered | None = None,
        spare: bool = False,
        second_of: Long | None = None,
        fence: Callable[[bytes], bytes] = bytes,
        library: Library = REDIS,
    ) -> None:
        self._loop = loop
        self._wakeups = wakeups
        self._second_of = second_of
        self._direct = second_of is None  # a request is written here, and not at once where one is under way
        self._fallback: Fallback | None = None
        self._queue: deque[Request[Any]] = deque()  # not written yet
        self._inflight: deque[Request[Any]] = deque()  # written, reply to come
        # Stands for each CACHING, whose reply says nothing; its time is that of the last one.
        self._unheeded = _Unheeded(None, (), (), ignore).ask(ignore, ignore, until=math.inf)
        self._unheeded.done = True
        self._raw: RawConnection | None = None
        self._replies = Replies()
        self._ready = False  # the queue may be written
        self._useful = False  # a caller's request was answered on the present connection
        self._unproven = True  # that is not so, or the server has refused what it was asked
        self._flush_due = False
        self._closed = False
        self._residue = Residue()
        self._stall_timer: asyncio.TimerHandle | None = None
        self._heard = 0.0  # loop time at which the server last sent a reply, or a part of one
        self._long: Long | None = None  # the further connections are made when they are first needed
        self._proofs: dict[int, Proofs] = {}  # by number of replicas
        self._outflow: Outflow | None = None  # the last long request on the present connection
        self._commands = 0
        self._library = library
        self._spare = spare
        self._router = router
        self._fence = fence
        self._open_raw = open_raw
        self._dialect = dialect
        self._make_fallback = fallback
        self.outage = outage
        self._connector = Connector(
            loop,
            self._establish,
            self._needs_connection,
            self._unconnectable,
            failed=self._away,
            outage=outage,
        )
        self._ear: Ear | None = None
        self._hearing_again: asyncio.Task[None] | None = None
        self._identity: Identity | None = None  # of the last connection that carried requests
        self._stall = STALL
        self._deadlines = Deadlines(loop, self._unanswered, lambda: self.trouble)
        self._hung_up = False  # the present connection was ended by this side
        # Connections in a row that were closed while a request was on its way, and before any was answered.
        self._closed_on: dict[Request[Any], int] = {}
        self._told_of: set[Script | None] = set()  # scripts whose text was sent on the present connection
        self._idle_timer: asyncio.TimerHandle | None = None
        self._auth: Request[Any] | None = None  # the last one on the present connection
        self._renewed: tuple[str, ...] | None = None  # credentials to be told as soon as it is ready
        self.connections = 0

    @property
    def driven(self) -> bool:
        """Whether requests go over a connection of its own; else the client makes them."""
        return self._fallback is None

    @property
    def hears(self) -> bool:
        return self._wakeups.hears

    @property
    def outage_told(self) -> bool:
        return self.outage.told

    @property
    def commands_sent(self) -> int:
        """Number of requests written so far, without the requests of the handshake."""
        sent = self._commands + sum(spare.commands_sent for spare in self._spares())
        return sent if self._fallback is None else sent + self._fallback.commands_sent

    # -- sending

    def send(self, call: Request[Any], *, at_once: bool = False, corked: bool = False) -> None:
        if (call.rare or not self._direct) and self._sent_otherwise(call, at_once=at_once):
            return
        if call.until < self._deadlines.at:
            self._deadlines.note(call.until)
        if at_once or (self._ready and not self._inflight and not corked):
            if self._ready and not self._queue:
                # An idle connection: no turn of the loop for the sake of a batch of one.
                self._write((call,))
            else:
                self._queue.append(call)
                self._flush()
            return
        self._queue.append(call)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush, context=empty_context())

    def _sent_otherwise(self, call: Request[Any], *, at_once: bool) -> bool:
        """Whether it was sent, or has ended; else it may be sent on this very connection, as it is now."""
        if self._fallback is not None:
            self._fallback.send(call, at_once=at_once)
            return True
        if self._closed:
            call.fault(faults.session_closed())
            return True
        if (
            not call.patient
            and self._connector.refusal is not None
            and self._router is None
            and not self.ready
        ):
            self._connector.hurry()  # what was true a moment ago is no answer
        if call.undoes and self._residue.concerns(call):
            call.until = math.inf
        if self._second_of is not None:
            if call.until < self._deadlines.at:
                self._deadlines.note(call.until)
            self._queue.append(call)
            self.go_on()
            return True
        if call.final and not (self._ready and call.script in self._told_of):
            # The process may end before the server could say that it does not know the script.
            call.spell_out()
            if self._ready:
                self._told_of.add(call.script)
        return False

    def forget(self, call: Request[Any]) -> bool:
        if self._fallback is not None:
            return self._fallback.forget(call)
        call.done = True
        return call.written or call.unconfirmed

    def _flush(self) -> None:
        self._flush_due = False
        if self._second_of is not None:
            self.go_on()
        elif not self._ready:
            self._connector.start()
        elif self._queue:
            batch, self._queue = self._queue, deque()
            self._write(batch)

    def _write(self, batch: Sequence[Request[Any]]) -> None:  # noqa: C901, PLR0912 - a call more for each request would show
        raw, inflight = self._raw, self._inflight
        assert raw is not None
        steady, now = clocks.steady(), self._loop.time()
        parts: list[bytes] = []
        release: Any = None  # the request before, if another one may go in it
        for call in batch:
            if call.done:
                continue
            # A long request of this very batch may have made it: what comes after that one goes behind it.
            if self._long is not None and self._long.concerns(call):
                self._long.send(call)
                continue
            # 1. An acquire that goes in one request with the release before it.
            if release is not None and (both := self._with_rider(release, call)) is not None:
                parts[-1] = both
                self._put(call, now, steady)
                release.rider, release = call, None
                continue
            # 2. Most are plain: as `Request.words` says it, for a call more would show.
            head = call.head
            if head is not None and call.plain:
                request = head + pack(call.args)[4:]  # without the number of the words
            elif call.plain and (script := call.script) is not None:
                request = call.packed or pack(("EVALSHA", script.sha, len(call.keys), *call.keys, *call.args))
            else:
                request = pack(call.words())
            if len(request) > LONG and self._take_aside(call):
                continue
            # 3. A call with `elsewhere` comes right after its ASKING: nothing goes between.
            if (call.watched and not call.elsewhere) or call.bells:
                for words in self._wakeups.before_arming(call.bells or call.watched):
                    if words is CACHING:
                        self._unheeded.sent = now
                        inflight.append(self._unheeded)
                        parts.append(_CACHING)
                    else:
                        parts.append(self._put_before(words, now, steady))
            # As `_put`.
            call.sent = now
            call.sent_steady = steady
            call.written = True
            if call.rare and call.undoes:
                call.until = math.inf
            inflight.append(call)
            parts.append(request)
            release = call if call.joins else None
        if parts:
            self._commands += len(parts)
            self._write_out(raw, parts[0] if len(parts) == 1 else b"".join(parts))
            if self._stall_timer is None:
                self._watch_stall(now)

    def _write_out(self, raw: RawConnection, data: bytes) -> None:
        if self._second_of is None or len(data) <= LONG:
            raw.transport.write(data)
        else:
            self._outflow = Outflow(raw.transport, data, self._loop.time)
            self._outflow.go_on()  # not before `pause_writing` can tell it to stop

    def _with_rider(self, release: JoinableRelease, rider: Request[Any]) -> bytes | None:
        """One request for both, where there is one and it is not long."""
        keys, heads = rider.keys, release.heads
        if not (release.plain and rider.plain and rider.script is release.acquire):
            heads = None  # else it is as `with_rider` says, and its bytes are remembered for the name
        head = None if heads is None or release.alone or rider.alone else heads.get(keys)
        if head is not None:
            request = head + pack((*rider.args, release.token))[4:]
        elif (words := release.with_rider(rider)) is None:
            return None
        else:
            request = pack(words)
            args = words[3 + len(keys) :]
            if heads is not None and len(args) < FEW:
                heads[keys] = head_of(release.both, keys, args)
        return None if len(request) > LONG else request

    def _put(self, call: Request[Any], now: float, steady: float) -> None:
        call.sent, call.sent_steady = now, steady
        call.written = True
        if call.rare and call.undoes:
            call.until = math.inf
        self._inflight.append(call)

    def _put_before(self, words: Words, now: float, steady: float) -> bytes:
        """What makes the server tell of bells is on its way; its bytes."""

        def refused(fault: Fault) -> None:
            if isinstance(said := fault.error.__cause__, Exception):
                self._wakeups.refused(words, said)

        self._put(bare(words).ask(ignore, refused, until=math.inf), now, steady)
        return pack(words)

    def go_on(self) -> None:
        """Writes the next call of the second connection, where none is under way; it may have to wait."""
        assert self._second_of is not None
        if self._inflight or not self._wanted():
            return
        if self._second_of.waits(self._queue[0]):
            self._second_of.clear()
        elif self._ready:
            self._write((self._queue.popleft(),))
        else:
            self._connector.start()

    def _due(self) -> bool:
        """Whether a call is to be written as soon as there is a connection."""
        if self._second_of is None:
            return self._wanted()
        return self._wanted() and not self._second_of.waits(self._queue[0])

    def _wanted(self) -> bool:
        """Drops the calls that have ended; whether any is left to be written."""
        self._queue = deque(call for call in self._queue if not call.done)
        return bool(self._queue)

    # -- receiving

    def data_received(self, data: bytes) -> None:  # noqa: C901 - a call more for each reply would show
        replies, inflight, answered = self._replies, self._inflight, False
        try:
            for reply in replies.read(data):
                if type(reply) is PushNotification and not self._confirms(reply):
                    self._wakeups.pushed(reply)
                    continue
                answered = True
                if not inflight:
                    raise UnreadableReplyError("a reply to nothing that was asked")
                call = inflight.popleft()
                if call.rider is not None:
                    self._handed_over(call, inflight.popleft(), reply)
                elif isinstance(reply, Exception):
                    self._refused(call, reply)
                else:
                    if self._unproven and call.script is not None:
                        self._served(call.script)
                    call.reply(reply)
        except UnreadableReplyError as error:
            log.warning("the server's reply cannot be read (%r): connecting again", error)
            self._abort()
        except BaseException:  # the program ends, and its tasks go on until they have ended
            self._abort()  # replies that were read and not given are gone: the next one would be another's
            raise
        # Pushes do not show that the server hears this side: a connection may be open in one direction only.
        if answered or replies.partial:
            self._heard = self._loop.time()
        if self._second_of is not None and self._ready and not self._inflight:
            self._outflow = None
            self.go_on()

    def _confirms(self, push: list[Any]) -> bool:
        """Whether a push is the reply that is due next."""
        if not self._inflight:
            return False
        call = self._inflight[0]
        return call.script is None and confirms(push, call.args)

    def _handed_over(self, release: Request[Any], acquire: Request[Any], reply: Any) -> None:
        """The reply to a release and an acquire that went in one request.

        Where it has not done both, they are sent again: each alone, so that each is told what concerns it.
        """
        error = reply if isinstance(reply, Exception) else None
        if error is None and reply != NOT_HELD:
            if self._unproven and acquire.script is not None:
                self._served(acquire.script)
            try:
                release.reply(FREED)
            finally:  # also where the program ends, as in `data_received`
                acquire.reply(reply)
            return
        unknown = isinstance(error, UnknownScriptError) and not release.as_eval
        redirect = None if error is None else faults.redirect(error)
        for call in (release, acquire):
            call.rider, call.written = None, False
            if call.done:
                continue
            if unknown:
                call.spell_out()
            else:
                call.alone = True
                # The script may have been stopped after its first write.
                call.unconfirmed |= error is not None and (redirect is None or redirect.begun)
            self.send(call, corked=call is release)

    def _refused(self, call: Request[Any], error: Exception) -> None:
        if call.done:
            return
        if isinstance(error, UnknownScriptError) and not call.as_eval:
            call.spell_out()
            call.written = False
            self._told_of.discard(call.script)
            self.send(call)
            return
        if call.script is not None and self._redirected(call, error):
            self._told_of.discard(call.script)
            return
        fault = faults.refused(error, call.keys)
        if fault.demoted:
            self._abort()
        elif call.script is not None:
            self._prove_useful()
        self.tell_state(call, fault)
        call.fault(fault)

    def _served(self, script: Script) -> None:
        """The server has executed it."""
        if not self._useful:
            self._prove_useful()
        self.outage.served(script)
        self._unproven = self.outage.refuses

    def tell_state(self, call: Request[Any], fault: Fault) -> None:
        """The server has refused that; the log says so where it refuses more than that."""
        if fault.state and call.script is not None:
            self.outage.refused(call.script, fault.error, waits=fault.passing)
            self._unproven = True

    # -- making it

    def _needs_connection(self) -> bool:
        return (
            self._raw is None
            and self._fallback is None
            and not self._closed
            and (self._due() or bool(self._residue))
        )

    def _unconnectable(self, error: BaseException) -> None:
        if before := self._identity is not None:
            self.outage.begun(error, since=self._loop.time(), waits=False)
        queue = tuple(self._queue)
        self._queue.clear()
        for call in queue:
            fault = faults.of_driver(error, call.keys)
            call.fault(faults.withdrawn(fault) if before else fault)

    async def _establish(self) -> None:
        self._renewed = None
        try:
            # Closed right behind a question for the second time: perhaps by a proxy that does not know it.
            # To find out which one takes a while, in which no lease is renewed.
            for connect in (self._dialect.open, self._dialect.open, self._dialect.open_anew):
                raw = await connect(self._open_raw, label=self.outage.label)
                try:
                    try:
                        return await self._begin(raw)
                    except SpoiledError:
                        self._abort()
                        raw = await self._instead_of(raw)
                        return await self._begin(raw)
                except faults.CONNECTING:
                    closed_by_server = self._raw is None and not self._hung_up
                    if not closed_by_server or not self._dialect.asks or connect == self._dialect.open_anew:
                        raise
        except NotDrivableError as reason:
            self._wakeups.require_none(str(reason))
            self._dialect.require_any(str(reason))
            log.warning("%s: one request at a time serves this session", reason)
            self._give_way()

    async def _instead_of(self, spoiled: RawConnection) -> RawConnection:
        """Another connection; the end of the former one was told before."""
        with contextlib.suppress(OSError):
            await spoiled.wait_closed()
        return await self._dialect.open(self._open_raw, label=self.outage.label)

    async def _begin(self, raw: RawConnection) -> None:
        self._raw = raw
        self._hung_up = self._useful = False
        self._unproven = True
        try:
            await self._introduce(raw)
        except BaseException:
            if not self._ready:
                raw.abort()
            raise

    async def _introduce(self, raw: RawConnection) -> None:
        self._replies = raw.replies
        raw.transport.set_protocol(self)
        if raw.leftover:
            self.data_received(raw.leftover)
        if raw.transport.is_closing():
            self._raw = None  # its end may have been told to the protocol before
            raise self._broken("closed by the server while connecting")
        identity, before = await identify(self._ask), self._identity
        await self._residue.drop(self._ask, identity)
        await self._hear(raw)
        if self._raw is not raw:  # it broke right after its last answer
            raise self._connector.trouble or self._broken("closed by the server while connecting")
        # Not before: it has carried nothing so far, and the former connections may still have to be dropped.
        self._residue.settled(identity)
        self._identity = identity
        self.connections += 1
        self._ready = True
        self._dialect.served()
        if self._renewed is not None:
            self.authenticate(self._renewed)
        self._flush()
        if self._spare:
            self._idle_timer = self._loop.call_later(_IDLE, self._hang_up_if_idle, context=empty_context())
        elif before is None:
            await warn_of_eviction(self._ask)

    async def _hear(self, raw: RawConnection) -> None:
        why = self._dialect.why or "by the client's own way of connecting"
        await self._wakeups.begin(
            self._ask, protocol=raw.protocol, database=raw.database, why=why, ear=self._open_ear
        )
        if self._ear is not None and not self._wakeups.hears:
            self._ear.close()
            self._ear = None
        if self._wakeups.postponed is not None and self._hearing_again is None and self._raw is raw:
            self._hearing_again = background(self._loop, self._hear_again(raw), name="aiolocks-subscribe")

    async def _hear_again(self, raw: RawConnection) -> None:
        """Subscribes as soon as the server takes that; while it does not, this connection serves.

        Other connections find it out: a connection that has asked in vain is not to carry requests.
        """
        # A probe that is being connected may take the cancellation for its own: each turn looks for the end.
        while self._raw is raw and (words := self._wakeups.postponed) is not None:
            await asyncio.sleep(HEARING_AGAIN)
            try:
                probe = await self._dialect.connect(
                    self._open_raw, raw.protocol, HELLO_TIMEOUT, label=self.outage.label
                )
                try:
                    taken = await probe.takes(words, HELLO_TIMEOUT)
                finally:
                    probe.abort()
            except (NoResp3Error, *faults.CONNECTING) as error:
                log.debug("subscribing: %s", in_line(error))
                continue
            if not taken or self._raw is not raw:
                continue
            try:
                await self._hear(raw)
            except faults.CONNECTING as error:  # the server took it a moment ago
                log.debug("subscribing: %s", in_line(error))
                if self._raw is raw:
                    self._abort()
        if self._raw is raw:
            self._hearing_again = None

    async def _open_ear(self) -> Ask:
        if self._ear is not None:
            self._ear.close()
        if (refusal := self._dialect.refusal(("SUBSCRIBE",))) is not None:
            raise UnavailableError(str(refusal))
        raw = await self._dialect.connect(self._open_raw, 2, HELLO_TIMEOUT, label=self.outage.label)
        self._ear = Ear(
            raw,
            self._loop,
            silence=STALL,
            pushed=self._wakeups.pushed,
            refused=self._wakeups.refused,
            ended=self._hears_no_more,
        )
        if self._raw is None or self._closed:
            self._ear.close()
        return self._ear.ask

    def _hears_no_more(self) -> None:
        """The second connection has ended: both are made again, so that waiters know what they hear."""
        if self._ready:
            self._abort()

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

        if self._raw is None:
            failed(faults.unreachable(self._connector.trouble or self._broken("connection closed")))
        elif (refusal := self._dialect.refusal(words)) is not None:
            answer.set_exception(refusal)
            answer.exception()
        else:
            self._write((bare(words).ask(replied, failed, until=math.inf),))
            self._commands -= 1
        return answer

    def _give_way(self) -> None:
        self._fallback = self._make_fallback()
        self._direct = self._ready = False
        queue = tuple(self._queue)
        self._queue.clear()
        for call in queue:
            if not call.done:
                self._fallback.send(call)

    # -- while it serves

    def may_execute(self, undo: Request[Any]) -> bool:
        """Whether the server may still execute what it undoes, from a connection that has ended."""
        return self._residue.concerns(undo)

    def _prove_useful(self) -> None:
        self._useful = True
        self._closed_on.clear()
        self._connector.useful()
        if self._stall == STALL:
            return
        self._stall = STALL
        if self._stall_timer is not None:  # set by a request of the handshake, for a server that may be slow
            self._stall_timer.cancel()
            self._watch_stall(self._loop.time())

    def _unanswered(self) -> tuple[Request[Any], ...]:
        return (*self._inflight, *self._queue)

    def _watch_stall(self, since: float) -> None:
        self._stall_timer = self._loop.call_at(
            since + self._stall, self._check_stall, context=empty_context()
        )

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
        self._connector.trouble = silence = self._library.own(silent(self._stall))
        self.outage.begun(silence, since=since)
        # A server that is only slow must not be asked again and again.
        self._stall = min(self._stall * 2, STALL_MAXIMUM)
        self._abort()
        for spare in self._spares():
            spare.distrust()

    def _hang_up_if_idle(self) -> None:
        if self._raw is None:
            return
        if self.busy or self._heard + _IDLE > self._loop.time():
            self._idle_timer = self._loop.call_later(_IDLE, self._hang_up_if_idle, context=empty_context())
        else:
            self._hang_up()

    def authenticate(self, words: tuple[str, ...]) -> None:
        """The credentials of the client are renewed: the server is told so on the present connection.

        `AUTH` stands in line with the other requests. If it is refused, the connection goes on with the
        former credentials until the server ends it, and the next connection asks for the credentials. A
        connection that is being made may have asked already: it tells the renewed ones when it is ready. The
        connection of the notifications, which RESP2 keeps from anything else, is made again when the server
        closes it.
        """
        for spare in self._spares():
            spare.authenticate(words)
        if self._closed:
            return
        if not self._ready:
            self._renewed = words
            return
        raw = self._raw

        def refused(fault: faults.Fault) -> None:
            if raw is self._raw:
                log.warning(
                    "%s refuses renewed credentials (%s): this connection goes on with the former ones",
                    self.outage.label,
                    fault.error,
                )

        self._authenticate_no_more()
        self._auth = bare(("AUTH", *words)).ask(ignore, refused, until=math.inf)
        self.send(self._auth)

    def _authenticate_no_more(self) -> None:
        if self._auth is not None:
            self._auth.done = True
            self._auth = None

    # -- its end

    def _hang_up(self) -> None:
        if self._raw is not None:
            self._hung_up = True
            self._raw.transport.close()

    def _abort(self) -> None:
        if self._raw is not None:
            self._hung_up = True
            self._raw.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        raw, self._raw = self._raw, None
        if self._ready and self._identity is not None:  # before, a connection carries no requests
            self._residue.add(self._identity, self._inflight)
        self._ready = False
        self._told_of.clear()
        self._authenticate_no_more()
        if self._hearing_again is not None:
            self._hearing_again.cancel()
            self._hearing_again = None
        self._wakeups.end()
        if self._ear is not None:
            self._ear.close()
            self._ear = None
        if raw is not None:
            raw.lost(exc)
        if exc is not None:
            self._connector.trouble = exc
        self._cancel_timers()
        self._outflow = None
        unanswered = [call for call in self._inflight if not call.done]
        self._inflight.clear()
        for call in unanswered:
            call.unconfirmed, call.rider = True, None
            if call.script is None:  # belonged to this connection alone
                call.fault(faults.unreachable(exc or self._broken("connection closed")))
        if not self._hung_up:
            self._hung_up_on(unanswered, exc)
        self._queue.extendleft(call for call in reversed(unanswered) if not call.done)
        if self._needs_connection():
            self._connector.start()
        self._has_broken()

    def _hung_up_on(self, unanswered: list[Request[Any]], error: Exception | None) -> None:
        """The server has closed the connection: one of these requests may be why."""
        second = self._second_of is not None
        before, self._closed_on = self._closed_on, {}
        if self._useful and not second:
            return
        for call in tuple(unanswered):
            size = len(pack(call.words())) if second and not call.done else 0
            # An undo that is short is not given up: it is the last word.
            if call.done or (call.undoes and size <= LONG):
                continue
            times = self._closed_on[call] = before.get(call, 0) + 1
            if times < MOST_CLOSED:
                continue
            if second:
                call.fault(faults.hung_up(size, MOST_CLOSED, error, long=size > LONG))
            elif self._take_aside(call):
                unanswered.remove(call)

    def _broken(self, why: str) -> Exception:
        return self._library.own(closed(why))

    def _cancel_timers(self) -> None:
        for timer in (self._stall_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._stall_timer = self._idle_timer = None

    # -- bells

    def arm(self, bell: bytes) -> asyncio.Future[Any] | None:
        return self._wakeups.arm(bell) if self._ready else None

    def ignore_bell(self, bell: bytes) -> None:
        for words in self._wakeups.after(bell):
            self.send(bare(words).ask(ignore, ignore, until=self._loop.time() + STALL))

    # -- further connections

    def _take_aside(self, call: Request[Any]) -> bool:
        """Whether a request goes over the connection for requests that are on their way alone."""
        # A bell is heard on this connection, and a node that must be asked once is asked on this one.
        if self._second_of is not None or call.script is None or call.bells or call.elsewhere:
            return False
        if self._long is None:
            self._long = Long(self, lambda long: self._open_spare(second_of=long), self._loop)
        self._long.send(call)
        return True

    def prove(self, proof: Proof) -> None:
        if self._fallback is not None:
            self._fallback.prove(proof)
        elif self._closed:
            proof.fault(faults.session_closed())
        else:
            if proof.replicas not in self._proofs:
                self._proofs[proof.replicas] = Proofs(self._open_spare(), self._fence, self._loop)
            self._proofs[proof.replicas].add(proof)

    def _spares(self) -> Iterator[Multiplexed]:
        """The further connections that were made so far."""
        if self._long is not None:
            yield self._long.connection
        for proofs in self._proofs.values():
            yield proofs.connection

    def _open_spare(self, *, second_of: Long | None = None) -> Multiplexed:
        """One more connection to the same server, on which no bells are heard."""
        return Multiplexed(
            self._open_raw,
            self._dialect,
            Wakeups("poll", trial=lambda _: bare(()), on_rung=lambda _, __: None),
            self._make_fallback,
            self._loop,
            outage=self.outage,
            # What replicas have is asked of this very server.
            router=None if second_of is None else self._router,
            spare=True,
            second_of=second_of,
            library=self._library,
        )

    def distrust(self) -> None:
        """The server was silent on another connection: this one is made again, if it has nothing to do now.

        If it is broken, that would be found only when a request on it stays without an answer.
        """
        if self._ready and not self.busy:
            self._abort()

    def leave(self) -> None:
        """Another server has taken the place of the one that it is connected to."""
        if self._fallback is not None:
            self._fallback.leave()
            return
        for spare in self._spares():
            spare.leave()
        self._abort()

    def check(self) -> None:
        """If it has nothing to do now, finds out whether it is broken before a request needs it."""
        if self._ready and not self.busy:
            self.send(bare(("PING",)).ask(ignore, ignore, until=self._loop.time() + STALL))

    def pause_writing(self) -> None:
        if self._outflow is not None:
            self._outflow.held = True

    def resume_writing(self) -> None:
        if self._outflow is not None:
            self._outflow.go_on()

    # -- one of several

    def _redirected(self, call: Request[Any], error: Exception) -> bool:
        """Whether the call goes on at another node, or later."""
        return self._router is not None and self._router.redirected(self._node, call, error)

    def _has_broken(self) -> None:
        """The connection has ended, and its calls wait for the next one."""
        if self._router is not None and (self._second_of is None or self.stuck):
            self._router.broken(self._node)

    @property
    def _node(self) -> Multiplexed:
        """The connection that the router knows."""
        return self if self._second_of is None else self._second_of.main

    def _away(self, error: BaseException) -> None:
        """An attempt to connect has failed."""
        if self._router is not None:
            self._router.away(self._node)
        else:
            self.tell_impatient()

    def tell_impatient(self) -> None:
        """Ends the calls that are not patient and wait for a connection that could not be made just now."""
        if (refusal := self._connector.refusal) is not None:
            for call in tuple(self._queue):
                if not call.patient:
                    call.fault(faults.of_driver(refusal, call.keys))
        if self._long is not None:
            self._long.connection.tell_impatient()

    @property
    def way(self) -> str:
        """How this connection hears bells; empty while that is not known."""
        return self._wakeups.name if self._fallback is None else self._fallback.way

    @property
    def busy(self) -> bool:
        """Whether a request waits for its reply, or to be sent."""
        return (
            bool(self._inflight) or self._wanted() or (self._long is not None and self._long.connection.busy)
        )

    @property
    def ready(self) -> bool:
        """Whether requests need not wait for a connection."""
        return self._ready or self._fallback is not None

    @property
    def stuck(self) -> bool:
        """Whether requests wait for a connection, or may still be executed after the end of theirs."""
        if not self.ready and (self._due() or bool(self._residue)):
            return True
        return self._long is not None and self._long.connection.stuck

    @property
    def trouble(self) -> BaseException | None:
        """Why there is no connection, or no answer; of the second one, also why the main one has none."""
        trouble = self._connector.trouble
        return trouble if trouble is not None or self._second_of is None else self._second_of.main.trouble

    def waiting(self) -> tuple[Request[Any], ...]:
        """The calls that were not written yet."""
        return tuple(self._queue)

    def owed(self) -> list[Request[Any]]:
        """The calls of this very connection that are not answered, sent or not; also of callers that left."""
        return [call for call in (*self._inflight, *self._queue) if call.script is not None]

    def awaited(self) -> list[Request[Any]]:
        """As `owed`, with the calls of its second connection."""
        return self.owed() if self._long is None else [*self.owed(), *self._long.connection.owed()]

    def take_back(self, elsewhere: Callable[[Request[Any]], bool]) -> list[Request[Any]]:
        """Takes out of the queue, and returns, the calls that must be sent to another node."""
        taken: list[Request[Any]] = []
        kept: deque[Request[Any]] = deque()
        for call in self._queue:
            if call.done or call.script is None or not elsewhere(call):
                kept.append(call)
                continue
            if call.elsewhere and kept and kept[-1].args == ASKING:
                kept.pop()  # it would be for the next call of this queue
            call.elsewhere = call.mid_move = False
            taken.append(call)
        self._queue = kept
        return taken if self._long is None else [*taken, *self._long.connection.take_back(elsewhere)]

    # -- closing

    def rest(self) -> bool:
        if self._fallback is not None:
            return self._fallback.rest()
        if self.busy or self.stuck or self._connector.at_work:
            return False
        for spare in self._spares():
            spare.rest()
        self._hang_up()
        return True

    async def aclose(self, grace: float) -> None:
        if self._fallback is not None:
            await self._fallback.aclose(grace)
        deadline = self._loop.time() + grace
        try:
            # The second one first, as what waits in it waits for the main one.
            for spare in tuple(self._spares()):
                second = self._long is not None and spare is self._long.connection
                await spare.aclose(max(0.05, deadline - self._loop.time()) if second else 0.0)
            await self._drain(deadline)
            self._closed, self._direct = True, False
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
        # Also for replies whose callers have left: a socket closed over unread bytes resets the connection.
        while self._loop.time() < deadline and (self._wanted() or self._inflight):
            if not self._ready:
                self._connector.start()
            await asyncio.sleep(0.001)

    def close(self) -> None:
        """Closes without waiting; what was written is still sent. Idempotent."""
        self._closed = self._hung_up = True
        self._direct = False
        for spare in self._spares():
            spare.close()
        self._deadlines.cancel()
        self._cancel_timers()
        if self._raw is not None:
            self._raw.transport.close()
        if self._ear is not None:
            self._ear.close()
        for call in (*self._inflight, *self._queue):
            call.fault(faults.session_closed())
        self._queue.clear()


@final
class _Unheeded(Request[None]):
    """A request whose reply says nothing."""

    def reply(self, raw: Any) -> None:
        pass


def bare(words: Words) -> Request[Any]:
    """A command of this connection alone: not sent again on the next one."""
    return Request(None, (), words, lambda reply: reply)
