"""The transport for clients whose connections cannot be driven: each request takes a connection by itself.

Serves fakeredis and connection classes of the user's own. A few worker tasks, which live
while there is something to do, make the calls: no cancellation of a caller ever reaches the driver.

What it cannot give is one ordered connection. A request whose connection broke may still arrive after its
undo; what it then takes is free again after one ttl.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, final

import redis.exceptions as driver

from . import faults
from .calls import Call

_WIDTH: Final = 16
"""Requests under way at once: each takes a connection."""
_RETRY_FIRST: Final = 0.01
_RETRY_MAXIMUM: Final = 0.5
_ABANDONED: Final = 1.0
"""Seconds that an undo waits for the request that it undoes, before it is sent regardless."""


@final
class Plain:
    """The transport over what executes one command.

    Args:
        execute_command: Takes its words. It must not send them again by itself: what became of a first send
            that was not answered has to be known here.
        close: Closes the connections that it used.

    Invariants:
    - of each lane (one possession) at most one request is under way; the others wait in their order, so that
      an undo follows what it undoes;
    - a lane with calls is either in `_ready` or with a worker; while `_ready` holds any, a worker is alive.
    """

    hears = False
    ordered = False
    connections = 0
    by_slot = False

    def __init__(
        self,
        execute_command: Callable[..., Awaitable[Any]],
        close: Callable[[], Awaitable[None]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._execute_command = execute_command
        self._close_connections = close
        self._loop = loop
        self._lanes: dict[str, _Lane] = {}
        self._ready: deque[_Lane] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._closed = False
        self.commands_sent = 0

    def send(self, call: Call[Any], *, at_once: bool = False, more: bool = False) -> None:
        if self._closed:
            call.fault(faults.unreachable(driver.ConnectionError("the session was closed")))
            return
        name = _lane_of(call)
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(name)
            self._ready.append(lane)
        lane.append(call, self._loop.call_at(call.until, self._expire, lane, call))
        self._hire()

    def forget(self, call: Call[Any]) -> bool:
        call.done = True
        lane = self._lanes.get(_lane_of(call))
        if lane is not None:
            self._hurry(lane)
        return call.written or call.unconfirmed

    def ignore_bell(self, bell: bytes) -> None:
        """No bell is heard over this transport: the poll serves."""

    def _expire(self, lane: _Lane, call: Call[Any]) -> None:
        call.fault(faults.unanswered(None))
        self._hurry(lane)

    def _hurry(self, lane: _Lane) -> None:
        """A request under way that was abandoned has a bounded time to end: others wait for its worker."""
        if lane.worker is not None and lane.calls[0].done and lane.hurry is None:
            lane.hurry = self._loop.call_later(_ABANDONED, lane.worker.cancel)

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
            return await self._send(call)
        except driver.NoScriptError:
            call.in_full = True
            return None if call.done else await self._send(call)

    async def _send(self, call: Call[Any]) -> Any:
        call.sent = self._loop.time()
        call.written = True
        self.commands_sent += 1
        return _as_bytes(await self._execute_command(*call.words()))

    async def aclose(self, grace: float) -> None:
        deadline = self._loop.time() + grace
        try:
            while self._workers and (left := deadline - self._loop.time()) > 0:
                await asyncio.wait(tuple(self._workers), timeout=left)
        finally:
            self._closed = True
            for lane in self._lanes.values():
                lane.end()
            for worker in self._workers:
                worker.cancel()
        if self._workers:
            await asyncio.wait(tuple(self._workers), timeout=1.0)
        await self._close_connections()


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

    def end(self) -> None:
        """Ends everything that is left."""
        for call in self.calls:
            call.fault(faults.unreachable(driver.ConnectionError("the session was closed")))
        for timer in self.timers:
            timer.cancel()


def _lane_of(call: Call[Any]) -> str:
    # What belongs to no possession has no order to keep.
    return call.command.lane or f"#{id(call)}"


def _as_bytes(reply: Any) -> Any:
    """Undoes `decode_responses`, so that replies read alike whatever the client was set to."""
    if isinstance(reply, str):
        return reply.encode()
    if isinstance(reply, list):
        return [_as_bytes(item) for item in reply]
    return reply
