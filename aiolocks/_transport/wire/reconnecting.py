"""The connection of a session, made again whenever it breaks.

Invariants:
- Nobody but this object ends the connection: a caller that leaves abandons its reply.
- After a broken connection, nothing is sent again before the server has been told to drop the old
  connection, whose bytes may still be on their way: a request of a dead connection that is executed
  after its retry was granted and released would leave a lock that nobody holds.
- While the server may still execute a request of a dead connection (`Residue`), a new connection is tried
  for, whether a caller waits or not, and the undo of that request is kept.
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from .. import faults
from ..client.driver import HELLO_TIMEOUT, NotDrivableError, RawConnection, pack
from ..client.errors import closed, silent
from ..client.libraries import REDIS, Library
from ..requests.calls import LONG, Call, ignore
from ..requests.transport import Transport
from .blame import MOST_CLOSED, Blame
from .connecting import Connector
from .deadlines import Deadlines
from .dialect import Dialect, OpenRaw
from .ear import Ear
from .identity import Identity, identify, warn_of_eviction
from .notifiers import Ask
from .outages import Outage
from .pipeline import STALL, Pipeline, bare
from .wakeups import Wakeups

if TYPE_CHECKING:
    from .multiplexed import Router

log = logging.getLogger("aiolocks.transport")

_STALL_MAXIMUM: Final = 30.0
_IDLE: Final = 10.0
"""Seconds without a request after which a connection is closed that only some requests take."""


class Reconnecting(Pipeline):
    """A pipeline whose connection is made when a request needs it, and again when it has broken.

    Args:
        open_raw: Connects with the given version of the protocol.
        dialect: Which version that is.
        fallback: Makes the transport that serves when the connection cannot be driven.
        outage: The log of the times when the server is away.
        router: Told of what other connections may serve; None where there are no others.
        spare: A connection that has nothing to do is closed.
        fence: Gives the key that is written when replicas are counted, of a key of what was granted.
        library: That of the client, whose errors this raises.
    """

    def __init__(
        self,
        open_raw: OpenRaw,
        dialect: Dialect,
        wakeups: Wakeups,
        fallback: Callable[[], Transport],
        loop: asyncio.AbstractEventLoop,
        *,
        outage: Outage,
        router: Router | None = None,
        alone: bool = False,
        spare: bool = False,
        fence: Callable[[bytes], bytes] = bytes,
        library: Library = REDIS,
    ) -> None:
        super().__init__(loop, wakeups, alone=alone)
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
        self._identity: Identity | None = None  # of the last connection that carried requests
        self._stall = STALL
        self._deadlines = Deadlines(loop, self._unanswered, lambda: self._connector.trouble)
        self._hung_up = False  # the present connection was ended by this side
        self._blame = Blame()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._auth: Call[Any] | None = None  # the last one on the present connection
        self._renewed: tuple[str, ...] | None = None  # credentials to be told as soon as it is ready
        self.connections = 0

    # -- making it

    def _needs_connection(self) -> bool:
        return (
            self._raw is None
            and self._fallback is None
            and not self._closed
            and (self._wanted() or bool(self._residue))
        )

    def _unconnectable(self, error: BaseException) -> None:
        if before := self._identity is not None:
            self.outage.begun(error, since=self._loop.time(), waits=False)
        queue = tuple(self._queue)
        self._queue.clear()
        for call in queue:
            fault = faults.of_driver(error, call.command.keys)
            call.fault(faults.withdrawn(fault) if before else fault)

    async def _establish(self) -> None:
        self._renewed = None
        try:
            raw = await self._dialect.open(self._open_raw, label=self.outage.label)
        except NotDrivableError as reason:
            self._wakeups.require_none(str(reason))
            self._dialect.require_any(str(reason))
            log.warning("%s: the pooled transport serves this session", reason)
            self._give_way()
            return
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
        why = self._dialect.why or "by the client's own way of connecting"
        await self._wakeups.begin(
            self._ask, protocol=raw.protocol, database=raw.database, why=why, ear=self._open_ear
        )
        if self._ear is not None and not self._wakeups.hears:
            self._ear.close()
            self._ear = None
        if self._raw is not raw:  # it broke right after its last answer
            raise self._connector.trouble or self._broken("closed by the server while connecting")
        # Not before: until here it has carried nothing, and the former ones may still have to be dropped.
        self._residue.settled(identity)
        self._identity = identity
        self.connections += 1
        self._ready = True
        if self._renewed is not None:
            self.authenticate(self._renewed)
        self._flush()
        if self._spare:
            self._idle_timer = self._loop.call_later(_IDLE, self._hang_up_if_idle)
        elif before is None:
            await warn_of_eviction(self._ask)

    async def _open_ear(self) -> Ask:
        if self._ear is not None:
            self._ear.close()
        raw = await self._open_raw(2, HELLO_TIMEOUT)
        self._ear = Ear(
            raw, self._loop, silence=STALL, pushed=self._wakeups.pushed, ended=self._hears_no_more
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
        else:
            self._write((Call(bare(words), replied, failed, until=math.inf),))
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

    # -- while it serves

    def may_execute(self, undo: Call[Any]) -> bool:
        """Whether the server may still execute what it undoes, from a connection that has ended."""
        return self._residue.concerns(undo)

    def _prove_useful(self) -> None:
        self._useful = True
        self._blame.clear()
        self._stall = STALL
        self._connector.useful()

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
        self._connector.trouble = silence = self._library.own(silent(self._stall))
        self.outage.begun(silence, since=since)
        # A server that is only slow must not be asked again and again.
        self._stall = min(self._stall * 2, _STALL_MAXIMUM)
        self._abort()
        if self._spares is not None:
            self._spares.distrust()

    def _hang_up_if_idle(self) -> None:
        if self._raw is None:
            return
        if self.busy or self._heard + _IDLE > self._loop.time():
            self._idle_timer = self._loop.call_later(_IDLE, self._hang_up_if_idle)
        else:
            self._hang_up()

    def authenticate(self, words: tuple[str, ...]) -> None:
        """The credentials of the client are renewed: the server is told so on the present connection.

        It stands in line with the other requests. Refused, the connection goes on with the former ones until
        the server ends it, and the next one asks for the credentials. One that is being made may have asked
        already: it tells them when it is ready. The connection of the notifications, which RESP2 keeps from
        anything else, is made again when the server closes it.
        """
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
        self._auth = Call(bare(("AUTH", *words)), ignore, refused, until=math.inf)
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
        self._authenticate_no_more()
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
            call.unconfirmed = True
            if call.command.script is None:  # belonged to this connection alone
                call.fault(faults.unreachable(exc or self._broken("connection closed")))
        if not self._hung_up:
            self._hung_up_on(unanswered, exc)
        self._queue.extendleft(call for call in reversed(unanswered) if not call.done)
        if self._needs_connection():
            self._connector.start()
        self._has_broken()

    def _hung_up_on(self, unanswered: list[Call[Any]], error: Exception | None) -> None:
        """The server has closed the connection: one of these requests may be why."""
        for call in self._blame.closed([call for call in unanswered if self._may_be_blamed(call)]):
            if self._alone:
                size = len(pack(call.words()))
                call.fault(faults.hung_up(size, MOST_CLOSED, error, long=size > LONG))
            elif self._take_aside(call):
                unanswered.remove(call)

    def _may_be_blamed(self, call: Call[Any]) -> bool:
        if call.undoes:  # one that is short is not given up: it is the last word
            return self._alone and len(pack(call.words())) > LONG
        return self._alone or not self._useful

    def _broken(self, why: str) -> Exception:
        return self._library.own(closed(why))

    def _cancel_timers(self) -> None:
        for timer in (self._stall_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._stall_timer = self._idle_timer = None

    # -- for the subclass

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether a request waits for its reply, or to be sent."""

    @abstractmethod
    def _away(self, error: BaseException) -> None:
        """An attempt to connect has failed."""

    @abstractmethod
    def _has_broken(self) -> None:
        """The connection has ended, and its calls wait for the next one."""
