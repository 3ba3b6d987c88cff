"""The transport for clients whose connections cannot be driven: each request takes a connection by itself.

Serves fakeredis and connection classes of the user's own. A few worker tasks, which live
while there is something to do, make the calls: no cancellation of a caller ever reaches the driver.

It cannot give one ordered connection. A request whose connection broke may still arrive after its
undo; what it then takes is free again after one ttl. An undo is kept until it was answered, as long as a
request before it may still be executed; where there are very many, the oldest times count again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, final

from . import clocks, faults
from .closed_loops import background
from .connection import MOST_CLOSED
from .driver import UNANSWERED, BrokenError, MakeWords, NotConnectedError, UnknownScriptError
from .faults import Fault
from .lanes import RETRY_FIRST, Lane
from .outages import Outage
from .replication import pooled
from .request import LONG, Call, Proof, Words
from .sagas import SagaCommand, Sagas

_WIDTH: Final = 16
"""Requests under way at once: each takes a connection."""
_RETRY_MAXIMUM: Final = 0.5
_ABANDONED: Final = 1.0
"""Seconds that an undo waits for the request that it undoes, before it is sent regardless."""
_UNDOING: Final = 5.0
"""Seconds for one attempt of an undo, which may have no end of its own."""
_MOST_KEPT: Final = 1000
"""Lanes up to which undos are kept for longer than their time."""


@final
class Pooled:
    """The transport over what executes one request.

    Args:
        execute: Is given what makes the words of a request, for when it has a connection for them. It must
            not send them again by itself: what became of a first send that was not answered has to be known
            here.
        close: Closes the connections that it used.
        outage: The log of the times when the server is away.
        sagas: Makes what runs calls that take several commands, where this leads to a cluster: it is given
            what sends each of them.

    Invariants:
    - of each lane (one possession) at most one request is under way; the others wait in their order, so that
      an undo follows what it undoes;
    - a lane with calls is in `_ready`, with a worker, or pauses after an attempt that failed; while `_ready`
      holds any, a worker is alive;
    - a call whose request ended without a reply, or whose script a node stopped half-way, is `unconfirmed`:
      what it changed stays, and a later "not the holder" may be its own doing.
    """

    hears = False
    ordered = False

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
        self._lanes: dict[str, Lane] = {}
        self._ready: deque[Lane] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._closed = False
        self._served = False  # a request was answered
        self.commands_sent = 0

    @property
    def by_slot(self) -> bool:
        return self._sagas is not None

    @property
    def outage_told(self) -> bool:
        return self._outage.told

    def send(self, call: Call[Any], *, at_once: bool = False, corked: bool = False) -> None:
        if self._closed:
            call.fault(faults.session_closed())
            return
        if isinstance(call.command, SagaCommand):
            assert self._sagas is not None
            self._sagas.begin(call, at_once=at_once)
            return
        name = Lane.name_of(call)
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(name)
            self._ready.append(lane)
        lane.append(call, self._loop.call_at(call.until, self._expire, lane, call))
        self._hire()

    def forget(self, call: Call[Any]) -> bool:
        if self._sagas is not None:
            self._sagas.forget(call)
        call.done = True
        lane = self._lanes.get(Lane.name_of(call))
        if lane is not None:
            self._hurry(lane)
        return call.written or call.unconfirmed

    def prove(self, proof: Proof) -> None:
        pooled(proof)

    def ignore_bell(self, bell: bytes) -> None:
        """No bell is heard over this transport: the poll serves."""

    def _expire(self, lane: Lane, call: Call[Any]) -> None:
        if call.undoes and lane.in_doubt(call) and len(self._lanes) <= _MOST_KEPT:
            return
        call.fault(faults.unanswered(None))
        self._hurry(lane)

    def _hurry(self, lane: Lane) -> None:
        """A request under way that was abandoned has a bounded time to end: others wait for its worker."""
        if lane.worker is not None and lane.calls[0].done and lane.hurry is None:
            lane.hurry = self._loop.call_later(_ABANDONED, lane.worker.cancel)

    def _hire(self) -> None:
        if self._ready and len(self._workers) < _WIDTH and not self._closed:
            worker = background(self._loop, self._work(), name="aiolocks-pooled")
            self._workers.add(worker)
            worker.add_done_callback(self._retire)

    def _retire(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        if not self._loop.is_closed():
            self._hire()  # killed from outside, or for the sake of an undo, while others still wait

    async def _work(self) -> None:
        while self._ready:
            lane = self._ready.popleft()
            call = lane.calls[0]
            lane.worker = asyncio.current_task()
            try:
                if not call.done:
                    await self._attempt(lane, call)
            except asyncio.CancelledError:
                call.unconfirmed = call.written
                raise
            finally:
                lane.worker = None
                if not call.done:
                    self._pause(lane)
                elif lane.pop():
                    self._ready.append(lane)
                else:
                    self._lanes.pop(lane.name, None)

    def _pause(self, lane: Lane) -> None:
        """Before the next attempt of its head. The worker serves other lanes meanwhile."""
        if not self._loop.is_closed():
            self._loop.call_later(lane.delay, self._go_on, lane)
            lane.delay = min(lane.delay * 2, _RETRY_MAXIMUM)

    def _go_on(self, lane: Lane) -> None:
        self._ready.append(lane)
        self._hire()

    async def _attempt(self, lane: Lane, call: Call[Any]) -> None:
        """One attempt; a call that is not done after it is tried again."""
        began = self._loop.time()
        try:
            call.reply(await self._request(call))
            self._served = True
            self._outage.over()
            if call.command.script is not None:
                self._outage.served(call.command.script)
        except _NotNeededError:
            if self._sagas is None:  # to a cluster, no connection may have been made yet
                self._outage.over()
        except NotConnectedError as failure:
            self._not_connected(lane, call, failure.error, since=began)
        except UNANSWERED as error:
            call.unconfirmed |= call.written
            self._try_again(lane, call, self._unanswered(lane, call, error))
        except Exception as error:  # noqa: BLE001 - whatever a client raises belongs to the caller
            self._outage.over()
            redirect = faults.redirect(error)
            call.unconfirmed |= redirect is not None and redirect.begun
            fault = faults.of_driver(error, call.command.keys)
            if fault.state and call.command.script is not None:
                self._outage.refused(call.command.script, fault.error, waits=fault.passing)
            call.fault(fault)

    def _not_connected(self, lane: Lane, call: Call[Any], error: BaseException, *, since: float) -> None:
        fault = faults.of_driver(error, call.command.keys)
        if self._served:
            fault = faults.withdrawn(fault)
        if fault.transient:
            self._outage.begun(error, since=since, waits=fault.passing)
        if call.patient or faults.is_silence(error):
            self._try_again(lane, call, fault)
        else:
            call.fault(fault)

    def _unanswered(self, lane: Lane, call: Call[Any], error: BaseException) -> Fault:
        """Why its connection ended: it may be too long a request."""
        may_be_blamed = call.written and not call.undoes and isinstance(error, BrokenError)
        if may_be_blamed and (size := _size(call)) > LONG:
            lane.closed += 1
            if lane.closed >= MOST_CLOSED:
                return faults.hung_up(size, lane.closed, error, long=True)
        return faults.of_driver(error, call.command.keys)

    def _try_again(self, lane: Lane, call: Call[Any], fault: Fault) -> None:
        in_time = self._loop.time() + lane.delay < call.until or (call.undoes and lane.in_doubt(call))
        if not fault.passing or not in_time:
            call.fault(fault)

    async def _request(self, call: Call[Any]) -> Any:
        try:
            return await self._send(call)
        except UnknownScriptError:
            call.as_eval = True
            call.written = call.unconfirmed  # this one was not executed
            return await self._send(call)

    async def _send(self, call: Call[Any]) -> Any:
        def words() -> Words:
            if call.done:
                raise _NotNeededError
            call.sent_steady, call.sent = clocks.steady(), self._loop.time()
            made = call.words()
            call.written = True
            self.commands_sent += 1
            return made

        async with asyncio.timeout(_UNDOING if call.undoes else None):
            return _as_bytes(await self._executor(words))

    def rest(self) -> bool:
        if self._lanes or self._workers:
            return False
        closing = background(self._loop, self._close_connections(), name="aiolocks-rest")
        self._workers.add(closing)  # the loop alone would not keep it
        closing.add_done_callback(self._retire)
        return True

    async def aclose(self, grace: float) -> None:
        deadline = self._loop.time() + grace
        try:
            while self._lanes and (left := deadline - self._loop.time()) > 0:
                if self._workers:
                    await asyncio.wait(tuple(self._workers), timeout=left)
                else:
                    await asyncio.sleep(min(left, RETRY_FIRST))
        finally:
            self._closed = True
            for lane in self._lanes.values():
                lane.end()
            for worker in self._workers:
                worker.cancel()
        if self._workers:
            await asyncio.wait(tuple(self._workers), timeout=1.0)
        await self._close_connections()


class _NotNeededError(Exception):
    """Nobody wanted the answer any more when there was a connection."""


def _size(call: Call[Any]) -> int:
    """Bytes of its request, as it was sent last."""
    words = call.command.words(as_eval=call.as_eval)
    return sum(len(word) for word in words if not isinstance(word, int))


def _as_bytes(reply: Any) -> Any:
    """Undoes `decode_responses`, so that replies read alike whatever the client was set to."""
    if isinstance(reply, str):
        return reply.encode()
    if isinstance(reply, list):
        return [_as_bytes(item) for item in reply]
    return reply
