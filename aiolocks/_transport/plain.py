"""The transport for clients whose connections cannot be driven: it calls the client itself.

Serves `RedisCluster`, fakeredis and connection classes of the user's own. Each lane (one possession) has a
worker task while it has something to do, so that an undo follows what it undoes and no cancellation of
a caller ever reaches the driver.

What it cannot give: one ordered connection. A request whose connection broke may still arrive after its
undo; what it then takes is free again after one ttl.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, final

import redis.exceptions as driver

from . import faults
from .calls import Call

_RETRY_FIRST: Final = 0.01
_RETRY_MAXIMUM: Final = 0.5
_ABANDONED: Final = 1.0
"""Seconds that an undo waits for the request that it undoes, before it is sent regardless."""


@final
class Plain:
    """The transport over `client.execute_command`.

    Invariant: of each lane at most one request is under way; the others wait in the order in which they came.
    """

    def __init__(self, client: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop
        self._lanes: dict[str, _Lane] = {}
        self._closed = False
        self.commands_sent = 0

    def send(self, call: Call[Any], *, at_once: bool = False) -> None:
        # What belongs to no possession has no order to keep.
        name = call.command.lane or f"#{id(call)}"
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane()
        lane.append(call, self._loop.call_at(call.until, _expire, call, self._loop))
        if lane.busy and lane.calls[0].done:
            self._hurry(lane)
        self._work(name, lane)

    def forget(self, call: Call[Any]) -> bool:
        call.done = True
        return call.written or call.unconfirmed

    def _hurry(self, lane: _Lane) -> None:
        """Gives the abandoned request under way a bounded time to end before the next one is sent."""
        worker = lane.worker
        if worker is not None and lane.hurry is None:
            lane.hurry = self._loop.call_later(_ABANDONED, worker.cancel)

    def _work(self, name: str, lane: _Lane) -> None:
        if lane.worker is None and not self._closed:
            lane.worker = self._loop.create_task(self._serve(lane), name="aiolocks-plain")
            lane.worker.add_done_callback(lambda worker: self._served(name, lane, worker))

    def _served(self, name: str, lane: _Lane, worker: asyncio.Task[None]) -> None:
        lane.worker = None
        if not worker.cancelled() and (error := worker.exception()) is not None:
            lane.fault(faults.of_driver(error, ()))
        if lane.calls:
            self._work(name, lane)  # killed from outside, or to pass over an abandoned request
        else:
            self._lanes.pop(name, None)

    async def _serve(self, lane: _Lane) -> None:
        while lane.calls:
            call = lane.calls[0]
            lane.busy = True
            try:
                if not call.done:
                    await self._execute(call)
            except asyncio.CancelledError:
                call.unconfirmed = call.written
                raise
            finally:
                lane.busy = False
                if call.done:
                    lane.pop()

    async def _execute(self, call: Call[Any]) -> None:
        delay = _RETRY_FIRST
        while not call.done:
            try:
                call.reply(await self._request(call))
            except (driver.ConnectionError, driver.TimeoutError, OSError) as error:
                fault = faults.of_driver(error, call.command.keys)
                call.unconfirmed = True
                if not fault.transient or self._loop.time() + delay >= call.until:
                    call.fault(fault)
                    return
                await asyncio.sleep(delay)
                delay = min(delay * 2, _RETRY_MAXIMUM)
            except Exception as error:  # noqa: BLE001 - whatever a client raises belongs to whoever asked
                call.fault(faults.of_driver(error, call.command.keys))

    async def _request(self, call: Call[Any]) -> Any:
        call.sent = self._loop.time()
        call.written = True
        self.commands_sent += 1
        try:
            return _as_bytes(await self._client.execute_command(*call.command.words(in_full=call.in_full)))
        except driver.NoScriptError:
            if call.done:
                return None
            self.commands_sent += 1
            call.sent = self._loop.time()
            return _as_bytes(await self._client.execute_command(*call.command.words(in_full=True)))

    async def aclose(self, grace: float) -> None:
        deadline = self._loop.time() + grace
        while self._lanes and (left := deadline - self._loop.time()) > 0:
            workers = [lane.worker for lane in self._lanes.values() if lane.worker is not None]
            if not workers:
                break
            await asyncio.wait(workers, timeout=left)
        self._closed = True
        lanes = tuple(self._lanes.values())
        for lane in lanes:
            lane.fault(faults.unreachable(driver.ConnectionError("the session was closed")))
        workers = [lane.worker for lane in lanes if lane.worker is not None]
        for worker in workers:
            worker.cancel()
        if workers:
            await asyncio.wait(workers, timeout=1.0)


@final
class _Lane:
    """The calls of one possession."""

    __slots__ = ("busy", "calls", "hurry", "timers", "worker")

    def __init__(self) -> None:
        self.calls: deque[Call[Any]] = deque()  # the head is under way while `busy`
        self.timers: deque[asyncio.TimerHandle] = deque()  # beside `calls`: when each has taken too long
        self.busy = False
        self.worker: asyncio.Task[None] | None = None
        self.hurry: asyncio.TimerHandle | None = None

    def append(self, call: Call[Any], timer: asyncio.TimerHandle) -> None:
        self.calls.append(call)
        self.timers.append(timer)

    def pop(self) -> Call[Any]:
        self.timers.popleft().cancel()
        if self.hurry is not None:
            self.hurry.cancel()
            self.hurry = None
        return self.calls.popleft()

    def fault(self, fault: faults.Fault) -> None:
        """Ends everything that is left."""
        while self.calls:
            self.pop().fault(fault)


def _expire(call: Call[Any], loop: asyncio.AbstractEventLoop) -> None:
    call.fault(faults.unanswered(loop.time() - call.sent if call.written else 0.0, None))


def _as_bytes(reply: Any) -> Any:
    """Undoes `decode_responses`, so that replies read alike whatever the client was set to."""
    if isinstance(reply, str):
        return reply.encode()
    if isinstance(reply, list):
        return [_as_bytes(item) for item in reply]
    return reply
