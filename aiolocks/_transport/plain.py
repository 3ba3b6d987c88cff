"""The transport for clients whose connections cannot be driven: it calls the client itself.

Serves `RedisCluster`, fakeredis and connection classes of the user's own. A few worker tasks, which live
while there is something to do, make the calls: no cancellation of a caller ever reaches the driver.

What it cannot give is one ordered connection. A request whose connection broke may still arrive after its
undo; what it then takes is free again after one ttl.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, final

import redis.exceptions as driver

from . import faults
from .calls import Call

_WIDTH: Final = 16
"""Requests under way at once: each takes a connection of the user's pool, most of which are the user's."""
_RETRY_FIRST: Final = 0.01
_RETRY_MAXIMUM: Final = 0.5
_ABANDONED: Final = 1.0
"""Seconds that an undo waits for the request that it undoes, before it is sent regardless."""


@final
class Plain:
    """The transport over `client.execute_command`.

    Invariants:
    - of each lane (one possession) at most one request is under way; the others wait in their order, so that
      an undo follows what it undoes;
    - a lane with calls is either in `_ready` or with a worker; while `_ready` holds any, a worker is alive.
    """

    def __init__(self, client: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop
        self._lanes: dict[str, _Lane] = {}
        self._ready: deque[_Lane] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._closed = False
        self.commands_sent = 0

    def send(self, call: Call[Any], *, at_once: bool = False) -> None:
        if self._closed:
            call.fault(faults.unreachable(driver.ConnectionError("the session was closed")))
            return
        # What belongs to no possession has no order to keep.
        name = call.command.lane or f"#{id(call)}"
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(name)
            self._ready.append(lane)
        lane.append(call, self._loop.call_at(call.until, _expire, call))
        if lane.worker is not None and lane.calls[0].done and lane.hurry is None:
            # The request under way was abandoned: it has a bounded time to end.
            lane.hurry = self._loop.call_later(_ABANDONED, lane.worker.cancel)
        self._hire()

    def forget(self, call: Call[Any]) -> bool:
        call.done = True
        return call.written or call.unconfirmed

    def _hire(self) -> None:
        if self._ready and len(self._workers) < _WIDTH and not self._closed:
            worker = self._loop.create_task(self._work(), name="aiolocks-plain")
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
                    await self._execute(call)
            except asyncio.CancelledError:
                call.unconfirmed = call.written
                raise
            finally:
                lane.worker = None
                if call.done:
                    lane.pop()
                if lane.calls:
                    self._ready.append(lane)
                else:
                    self._lanes.pop(lane.name, None)

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
        try:
            return await self._send(call, in_full=call.in_full)
        except driver.NoScriptError:
            return None if call.done else await self._send(call, in_full=True)

    async def _send(self, call: Call[Any], *, in_full: bool) -> Any:
        call.sent = self._loop.time()
        call.written = True
        self.commands_sent += 1
        return _as_bytes(await self._client.execute_command(*call.command.words(in_full=in_full)))

    async def aclose(self, grace: float) -> None:
        deadline = self._loop.time() + grace
        while self._workers and (left := deadline - self._loop.time()) > 0:
            await asyncio.wait(tuple(self._workers), timeout=left)
        self._closed = True
        for lane in self._lanes.values():
            lane.fault(faults.unreachable(driver.ConnectionError("the session was closed")))
        workers = tuple(self._workers)
        for worker in workers:
            worker.cancel()
        if workers:
            await asyncio.wait(workers, timeout=1.0)


@final
class _Lane:
    """The calls of one possession."""

    __slots__ = ("calls", "hurry", "name", "timers", "worker")

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: deque[Call[Any]] = deque()  # the head is under way while there is a worker
        self.timers: deque[asyncio.TimerHandle] = deque()  # beside `calls`: when each has taken too long
        self.worker: asyncio.Task[Any] | None = None
        self.hurry: asyncio.TimerHandle | None = None

    def append(self, call: Call[Any], timer: asyncio.TimerHandle) -> None:
        self.calls.append(call)
        self.timers.append(timer)

    def pop(self) -> None:
        self.calls.popleft()
        self.timers.popleft().cancel()
        if self.hurry is not None:
            self.hurry.cancel()
            self.hurry = None

    def fault(self, fault: faults.Fault) -> None:
        """Ends everything that is left."""
        for call in self.calls:
            call.fault(fault)
        for timer in self.timers:
            timer.cancel()


def _expire(call: Call[Any]) -> None:
    call.fault(faults.unanswered(None))


def _as_bytes(reply: Any) -> Any:
    """Undoes `decode_responses`, so that replies read alike whatever the client was set to."""
    if isinstance(reply, str):
        return reply.encode()
    if isinstance(reply, list):
        return [_as_bytes(item) for item in reply]
    return reply
