"""Requests and replies on one connection: in one order, and in one write for those of one moment.

Calls of one turn of the loop leave in one write; replies are handed out, in order, inside
`data_received`: no reader task, no connection a waiter, no task switch but the caller's own.

Invariants:
- `_inflight` holds the written calls in the order of their requests, so that the head's is the next reply.
- A request is refused on account of connections that were closed only where it was on its way alone (`Bulk`),
  so that it is known for which request they were closed. There go long requests, and those that were on two
  connections in a row that were closed before any request was answered.
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from .. import clocks, faults
from ..client.driver import pack
from ..client.errors import UnknownScriptError, UnreadableReplyError
from ..client.replies import PushNotification, Replies
from ..requests.calls import FREED, LONG, NOT_HELD, Call, Command, Words, ignore
from .notifiers import CACHING
from .residue import Residue
from .wakeups import Wakeups

if TYPE_CHECKING:
    from ..client.driver import RawConnection
    from ..faults import Fault
    from ..requests.scripts import Script
    from ..requests.transport import Transport
    from .bulk import Outflow
    from .connecting import Connector
    from .deadlines import Deadlines
    from .outages import Outage
    from .spares import Spares

log = logging.getLogger("aiolocks.transport")

_SUBSCRIPTIONS: Final = {b"subscribe": "SUBSCRIBE", b"unsubscribe": "UNSUBSCRIBE"}
"""The pushes that are replies, and to what."""
_CACHING: Final = pack(CACHING)
STALL: Final = 2.0
"""Seconds without any reply to a written request after which the connection counts as dead."""


class Pipeline(asyncio.Protocol, ABC):
    """Writes calls to the present connection, and ends them with their replies.

    Args:
        wakeups: How bells are heard.
        alone: At most one request is under way.
    """

    # One object with its subclasses, and no object of its own: each request passes here.

    _connector: Connector
    _deadlines: Deadlines
    outage: Outage

    def __init__(self, loop: asyncio.AbstractEventLoop, wakeups: Wakeups, *, alone: bool) -> None:
        self._loop = loop
        self._wakeups = wakeups
        self._alone = alone
        self._fallback: Transport | None = None
        self._queue: deque[Call[Any]] = deque()  # not written yet
        self._inflight: deque[Call[Any]] = deque()  # written, reply to come
        # Stands for each CACHING, whose reply says nothing; its time is that of the last one.
        self._unheeded: Call[Any] = Call(bare(()), ignore, ignore, until=math.inf)
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
        self._spares: Spares | None = None
        self._outflow: Outflow | None = None  # the last long request on the present connection
        self._commands = 0

    # -- sending

    def send(self, call: Call[Any], *, at_once: bool = False, corked: bool = False) -> None:
        if self._fallback is not None:
            self._fallback.send(call, at_once=at_once)
            return
        if self._closed:
            call.fault(faults.session_closed())
            return
        if not call.patient and self._refuses(call):
            return
        if call.undoes and self._residue.concerns(call):
            call.until = math.inf
        if call.until < self._deadlines.at:
            self._deadlines.note(call.until)
        if self._alone:
            self._queue.append(call)
            self._flush()
            return
        if self._ready and not self._queue and not corked and (at_once or not self._inflight):
            # An idle connection: no turn of the loop for the sake of a batch of one.
            self._write((call,))
            return
        self._queue.append(call)
        if at_once or (self._ready and not self._inflight and not corked):
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def forget(self, call: Call[Any]) -> bool:
        if self._fallback is not None:
            return self._fallback.forget(call)
        call.done = True
        return call.written or call.unconfirmed

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
        assert self._raw is not None
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
            request = pack(call.words())
            if len(request) > LONG and self._take_aside(call):
                continue
            # A request that is asked elsewhere for once comes right after its ASKING.
            if heard := call.command.bells or (() if call.elsewhere else call.command.watched):
                arming = self._wakeups.before_arming(heard)
                parts.extend(self._put_before(words, now, steady) for words in arming)
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
        request = None if words is None else pack(words)
        return None if request is None or len(request) > LONG else request

    def _put(self, call: Call[Any], now: float, steady: float) -> None:
        call.sent, call.sent_steady = now, steady
        call.written = True
        call.rider = None
        if call.undoes:
            call.until = math.inf
        self._inflight.append(call)

    def _put_before(self, words: Words, now: float, steady: float) -> bytes:
        """What makes the server tell of bells is on its way; its bytes."""
        if words is CACHING:
            self._unheeded.sent = now
            self._inflight.append(self._unheeded)
            return _CACHING
        subscription: Call[Any] = Call(bare(words), ignore, ignore, until=math.inf)
        subscription.done = True
        self._put(subscription, now, steady)
        return pack(words)

    def _write_out(self, data: bytes) -> None:
        assert self._raw is not None
        if not self._alone or len(data) <= LONG:
            self._raw.transport.write(data)
            return
        from .bulk import Outflow  # noqa: PLC0415 - few sessions send anything long

        self._outflow = Outflow(self._raw.transport, data, self._loop.time)
        self._outflow.go_on()

    def _wanted(self) -> bool:
        """Drops the calls that have ended; whether any is left to be written."""
        self._queue = deque(call for call in self._queue if not call.done)
        return bool(self._queue)

    # -- receiving

    def data_received(self, data: bytes) -> None:
        replies, answered = self._replies, False
        try:
            for reply in replies.read(data):
                if type(reply) is PushNotification and not self._confirms(reply):
                    self._wakeups.pushed(reply)
                    continue
                answered = True
                if not self._inflight:
                    raise UnreadableReplyError("a reply to nothing that was asked")
                call = self._inflight.popleft()
                if call.rider is not None:
                    self._handed_over(call, self._inflight.popleft(), reply)
                elif isinstance(reply, Exception):
                    self._refused(call, reply)
                else:
                    if self._unproven and call.command.script is not None:
                        self._served(call.command.script)
                    call.reply(reply)
        except UnreadableReplyError as error:
            log.warning("the server's reply cannot be read (%r): connecting again", error)
            self._abort()
        # Pushes do not show that the server hears this side: a connection may be open in one direction only.
        if answered or replies.partial:
            self._heard = self._loop.time()
        if self._alone and self._ready and not self._inflight:
            self._outflow = None
            self._flush()

    def _confirms(self, push: list[Any]) -> bool:
        """Whether a push is the reply that is due next: with RESP3, subscriptions have no other one."""
        word = _SUBSCRIPTIONS.get(push[0]) if push and isinstance(push[0], bytes) else None
        if word is None or not self._inflight:
            return False
        command = self._inflight[0].command
        return command.script is None and command.args[:1] == (word,)

    def _handed_over(self, release: Call[Any], acquire: Call[Any], reply: Any) -> None:
        """The reply to a release and an acquire that went in one request.

        Where it has not done both, they are sent again: each alone, so that each is told what concerns it.
        """
        error = reply if isinstance(reply, Exception) else None
        if error is None and reply != NOT_HELD:
            if self._unproven and acquire.command.script is not None:
                self._served(acquire.command.script)
            release.reply(FREED)
            acquire.reply(reply)
            return
        unknown = isinstance(error, UnknownScriptError) and not release.as_eval
        redirect = None if error is None else faults.redirect(error)
        for call in (release, acquire):
            call.rider, call.written = None, False
            if call.done:
                continue
            if unknown:
                call.as_eval = True
            else:
                call.alone = True
                # The script may have been stopped after its first write.
                call.unconfirmed |= error is not None and (redirect is None or redirect.begun)
            self.send(call, corked=call is release)

    def _refused(self, call: Call[Any], error: Exception) -> None:
        if call.done:
            return
        if isinstance(error, UnknownScriptError) and not call.as_eval:
            call.as_eval = True
            call.written = False
            self.send(call)
            return
        if call.command.script is not None and self._redirected(call, error):
            return
        fault = faults.refused(error, call.command.keys)
        if fault.demoted:
            self._abort()
        elif call.command.script is not None:
            self._prove_useful()
        self.tell_state(call, fault)
        call.fault(fault)

    def _served(self, script: Script) -> None:
        """The server has executed it."""
        if not self._useful:
            self._prove_useful()
        self.outage.served(script)
        self._unproven = self.outage.refuses

    def tell_state(self, call: Call[Any], fault: Fault) -> None:
        """The server has refused that; the log says so where it refuses more than that."""
        if fault.state and call.command.script is not None:
            self.outage.refused(call.command.script, fault.error, waits=fault.passing)
            self._unproven = True

    # -- of the connection, which the subclasses make and end

    @abstractmethod
    def _refuses(self, call: Call[Any]) -> bool:
        """Ends a call at once that does not wait for a server which is known to be away."""

    @abstractmethod
    def _redirected(self, call: Call[Any], error: Exception) -> bool:
        """Whether it goes on elsewhere, or later."""

    @abstractmethod
    def _take_aside(self, call: Call[Any]) -> bool:
        """Whether a request goes over the connection of those that are on their way alone."""

    @abstractmethod
    def _abort(self) -> None:
        """Ends the present connection."""

    @abstractmethod
    def _prove_useful(self) -> None:
        """The server answers what callers ask on this connection, not only what a new connection asks."""

    @abstractmethod
    def _watch_stall(self, since: float) -> None:
        """Looks later whether the server has replied."""


def bare(words: Words) -> Command[Any]:
    """A command of this connection alone: not sent again on the next one."""
    return Command(None, (), words, lambda reply: reply)
