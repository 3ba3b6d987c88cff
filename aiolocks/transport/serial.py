"""The transport for clients whose connections cannot be driven: one request at a time, in order.

Serves connection classes of the user's own. A worker task, which lives while there is something to do, makes
the calls: no cancellation of a caller ever reaches the driver.

A request that was not answered holds up the requests behind it for as long as a connection may be silent
(2 s; where the server answers nothing, twice as long each time, and 30 s at most). Then its connection is
closed, and it goes behind all other requests, with the requests of its lane behind it. Such a request may
still arrive, also after its undo, for this session cannot end a connection at the server: what the request
then takes is free again after one ttl. An undo is kept until it was answered, as long as a request before it
may still be executed. If very many lanes have such a request, the undo of a further lane ends at its time.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, final

from .._tasks import empty_context
from . import clocks, faults
from .closed_loops import background
from .cluster.sagas import SagaCommand, Sagas
from .connection import MOST_CLOSED, STALL, STALL_MAXIMUM, Deadlines
from .driver import UNANSWERED, BrokenError, MakeWords, NotConnectedError, UnknownScriptError
from .faults import Fault
from .outages import Outage
from .replication import not_driven
from .request import LONG, Proof, Request, Words

_RETRY_FIRST: Final = 0.01
_RETRY_MAXIMUM: Final = 0.5
"""Seconds after which an attempt that has failed is followed by the next one."""
_MOST_KEPT: Final = 1000
"""Lanes of which it is known that a request of them may still be executed."""


@final
class Serial:
    """The transport over a function that executes one request.

    Args:
        execute: Is given what makes the words of a request, for when it has a connection for them. It must
            not send them again by itself: this transport has to know what became of a first send that was not
            answered.
        close: Closes the connections that it used.
        outage: The log of the times when the server is away.
        sagas: Makes the `Sagas` for calls that take several commands, where this leads to a cluster: it is
            given the function that sends each command.

    Invariants:
    - at most one request is under way; the rest is in `_queue`, and while it holds any, a worker is alive;
    - calls of one lane (one possession) are sent in their order, so that an undo follows what it undoes;
    - a call whose request ended without a reply, or whose script a node stopped half-way, is `unconfirmed`:
      what it changed stays, and a later "not the holder" may be its own doing;
    - an undo has no end but an answer while a request of its lane may still be executed (`_doubtful`).
    """

    hears = False
    way = "poll"

    def __init__(
        self,
        execute: Callable[[MakeWords], Awaitable[Any]],
        close: Callable[[], Coroutine[Any, Any, None]],
        loop: asyncio.AbstractEventLoop,
        *,
        outage: Outage,
        sagas: Callable[[Callable[..., None]], Sagas] | None = None,
    ) -> None:
        self._outage = outage
        self._sagas = None if sagas is None else sagas(self.send)
        self._executor = execute
        self._close_connections = close
        self._loop = loop
        self._queue: deque[Request[Any]] = deque()
        self._under_way: Request[Any] | None = None
        self._deadlines = Deadlines(loop, self._unanswered, lambda: None)
        self._doubtful: dict[str, None] = {}  # lanes with a request that was sent, and ended without a reply
        self._closed_on: dict[Request[Any], int] = {}  # as `Multiplexed` has it, of the last request
        self._delay = _RETRY_FIRST
        self._stall = STALL
        self._worker: asyncio.Task[None] | None = None
        self._resting: asyncio.Task[None] | None = None
        self._closed = False
        self._served = False  # a request was answered
        self.commands_sent = 0

    @property
    def by_slot(self) -> bool:
        return self._sagas is not None

    @property
    def outage_told(self) -> bool:
        return self._outage.told

    def send(self, call: Request[Any], *, at_once: bool = False, corked: bool = False) -> None:
        if self._closed:
            call.fault(faults.session_closed())
            return
        if isinstance(call, SagaCommand):
            assert self._sagas is not None
            self._sagas.begin(call, at_once=at_once)
            return
        call.guarded = self._sagas is not None
        before = self._under_way
        owed = before is not None and before.written and before.lane == call.lane
        if call.undoes and call.lane and (owed or call.lane in self._doubtful):
            call.until = math.inf
        self._queue.append(call)
        if call.until < self._deadlines.at:
            self._deadlines.note(call.until)
        self._hire()

    def forget(self, call: Request[Any]) -> bool:
        if self._sagas is not None:
            self._sagas.forget(call)
        call.done = True
        return call.written or call.unconfirmed

    def prove(self, proof: Proof) -> None:
        not_driven(proof)

    def arm(self, bell: bytes) -> None:
        """There is no second connection."""

    def ignore_bell(self, bell: bytes) -> None:
        """No bell is heard over this transport: the poll serves."""

    def _unanswered(self) -> tuple[Request[Any], ...]:
        under_way = () if self._under_way is None else (self._under_way,)
        return (*under_way, *self._queue)

    def _hire(self) -> None:
        if self._worker is None and self._queue and not self._closed and not self._loop.is_closed():
            self._worker = background(self._loop, self._work(), name="aiolocks-serial")
            self._worker.add_done_callback(self._retire, context=empty_context())

    def _retire(self, worker: asyncio.Task[None]) -> None:
        self._worker = None
        self._hire()  # it was killed from outside while requests still wait

    async def _work(self) -> None:
        while self._queue:
            call = self._queue.popleft()
            if call.done:
                continue
            self._under_way = call
            connected = False
            try:
                connected = await self._attempt(call)
            except asyncio.CancelledError:
                self._not_answered(call)
                raise
            finally:
                self._under_way = None
                if not call.done:
                    self._put_back(call, behind=connected)
            if not call.done:
                await asyncio.sleep(self._delay)
                self._delay = min(self._delay * 2, _RETRY_MAXIMUM)

    def _put_back(self, call: Request[Any], *, behind: bool) -> None:
        """It is sent again: behind all other calls if it may hold them up, with its lane behind it."""
        self._queue.appendleft(call)
        if not behind:
            return
        lane = call.lane
        stay: deque[Request[Any]] = deque()
        move: deque[Request[Any]] = deque()
        for other in self._queue:
            of_lane = other is call or (lane and other.lane == lane)
            (move if of_lane else stay).append(other)
        self._queue = stay + move

    def _not_answered(self, call: Request[Any]) -> None:
        """Its connection has ended: what was sent may still be executed, at any time."""
        if not call.written:
            return
        call.unconfirmed = True
        lane = call.lane
        if lane and not call.undoes and len(self._doubtful) < _MOST_KEPT:
            self._doubtful[lane] = None
            for other in self._queue:
                if other.undoes and other.lane == lane:
                    other.until = math.inf

    async def _attempt(self, call: Request[Any]) -> bool:
        """One attempt; a call that is not done after it is tried again. Whether there was a connection."""
        began = self._loop.time()
        try:
            call.reply(await self._request(call))
            self._answered(call)
        except _NotNeededError:
            if self._sagas is None:  # to a cluster, no connection may have been made yet
                self._outage.over()
        except NotConnectedError as failure:
            self._not_connected(call, failure.error, since=began)
            return False
        except UNANSWERED as error:
            self._not_answered(call)
            self._try_again(call, self._why_unanswered(call, error))
        except Exception as error:  # noqa: BLE001 - whatever a client raises belongs to the caller
            self._outage.over()
            redirect = faults.redirect(error)
            call.unconfirmed |= redirect is not None and redirect.begun
            fault = faults.of_driver(error, call.keys)
            if fault.state and call.script is not None:
                self._outage.refused(call.script, fault.error, waits=fault.passing)
            call.fault(fault)
        return True

    def _answered(self, call: Request[Any]) -> None:
        self._served = True
        self._delay, self._stall = _RETRY_FIRST, STALL
        self._closed_on.clear()
        lane = call.lane
        if lane in self._doubtful and not any(other.lane == lane for other in self._queue):
            del self._doubtful[lane]
        self._outage.over()
        if call.script is not None:
            self._outage.served(call.script)

    def _not_connected(self, call: Request[Any], error: BaseException, *, since: float) -> None:
        """The server cannot be asked now: calls that do not wait for it end."""
        fault = faults.of_driver(error, call.keys)
        if self._served:
            fault = faults.withdrawn(fault)
        if fault.transient:
            self._outage.begun(error, since=since, waits=fault.passing)
        for other in (call, *self._queue):
            if other.patient or faults.is_silence(error):
                self._try_again(other, fault)
            elif not other.done:
                other.fault(fault)

    def _why_unanswered(self, call: Request[Any], error: BaseException) -> Fault:
        """Why its connection ended: it may be too long a request."""
        may_be_blamed = call.written and not call.undoes and isinstance(error, BrokenError)
        if may_be_blamed and (size := _size(call)) > LONG:
            times = self._closed_on.get(call, 0) + 1
            self._closed_on = {call: times}
            if times >= MOST_CLOSED:
                return faults.hung_up(size, MOST_CLOSED, error, long=True)
        return faults.of_driver(error, call.keys)

    def _try_again(self, call: Request[Any], fault: Fault) -> None:
        if not call.done and (not fault.passing or self._loop.time() + self._delay >= call.until):
            call.fault(fault)

    async def _request(self, call: Request[Any]) -> Any:
        try:
            return await self._send(call)
        except UnknownScriptError:
            call.spell_out()
            call.written = call.unconfirmed  # this one was not executed
            return await self._send(call)

    async def _send(self, call: Request[Any]) -> Any:
        def words() -> Words:
            if call.done:
                raise _NotNeededError
            call.sent_steady, call.sent = clocks.steady(), self._loop.time()
            made = call.words()
            call.written = True
            self.commands_sent += 1
            limit.reschedule(call.sent + self._stall)  # it may have taken longer to connect
            return made

        async with asyncio.timeout(None) as limit:
            try:
                return _as_bytes(await self._executor(words))
            except asyncio.CancelledError:
                if limit.expired():
                    # A server that is only slow must not be asked again and again.
                    self._stall = min(self._stall * 2, STALL_MAXIMUM)
                raise

    def rest(self) -> bool:
        if self._queue or self._worker is not None or self._resting is not None:
            return False
        self.leave()
        return True

    def leave(self) -> None:
        """Closes its connections; the next ones may lead to another server."""
        if self._resting is None:
            self._resting = background(self._loop, self._close_connections(), name="aiolocks-rest")
            # The loop alone would not keep it.
            self._resting.add_done_callback(self._rested, context=empty_context())

    def _rested(self, _: asyncio.Task[None]) -> None:
        self._resting = None

    async def aclose(self, grace: float) -> None:
        deadline = self._loop.time() + grace
        try:
            while (worker := self._worker) is not None and (left := deadline - self._loop.time()) > 0:
                await asyncio.wait((worker,), timeout=left)
        finally:
            self._closed = True
            self._deadlines.cancel()
            for call in self._unanswered():
                call.fault(faults.session_closed())
            self._queue.clear()
            busy = [task for task in (self._worker, self._resting) if task is not None]
            for task in busy:
                task.cancel()
        if busy:
            await asyncio.wait(busy, timeout=1.0)
        await self._close_connections()


class _NotNeededError(Exception):
    """The call had ended when there was a connection."""


def _size(call: Request[Any]) -> int:
    """Bytes of its request, as it was sent last."""
    words = call.words()
    return sum(len(word) for word in words if not isinstance(word, int))


def _as_bytes(reply: Any) -> Any:
    """Undoes `decode_responses`, so that replies read alike whatever the client was set to."""
    if isinstance(reply, str):
        return reply.encode()
    if isinstance(reply, list):
        return [_as_bytes(item) for item in reply]
    return reply
