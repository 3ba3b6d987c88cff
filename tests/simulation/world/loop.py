"""An event loop whose time, sockets and thread belong to the world."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

_BaseEventLoop: Any = asyncio.BaseEventLoop


class Readable(Protocol):
    """A socket, as a selector sees it."""

    def read_ready(self) -> None: ...


class Connect(Protocol):
    """How a loop gets at a server: the socket's transport, once the connection is there."""

    def __call__(
        self, loop: SimulatedLoop, protocol: asyncio.Protocol, address: tuple[str, int]
    ) -> Awaitable[Any]: ...


class _Selector:
    """Hands out what has become readable, as a selector does: each socket once, behind what is ready already.

    Args:
        told: Called when there is something to hand out.
    """

    def __init__(self, told: Callable[[], object]) -> None:
        self._told = told
        self._readable: dict[Readable, None] = {}

    def __bool__(self) -> bool:
        return bool(self._readable)

    def add(self, socket: Readable) -> None:
        self._readable[socket] = None
        self._told()

    def discard(self, socket: Readable) -> None:
        self._readable.pop(socket, None)

    def select(self, timeout: float | None = None) -> list[Readable]:
        found = list(self._readable)
        self._readable.clear()
        return found

    def close(self) -> None:
        self._readable.clear()


class _Task(asyncio.Task[Any]):
    """A task whose hash is its number: an `asyncio.TaskGroup` cancels its tasks in the order of a set."""

    def __init__(self, number: int, coroutine: Any, **how: Any) -> None:
        self._number = number  # first, for the new task is put into a set
        super().__init__(coroutine, **how)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(_BaseEventLoop):  # type: ignore[misc]
    """The real `asyncio` loop over simulated time and sockets. It runs only when the world steps it.

    Args:
        clock: Its time, in seconds.
        connect: Opens a connection to an address.
        told: Called when it has work that it did not have after its last turn.
    """

    def __init__(self, clock: Callable[[], float], connect: Connect, told: Callable[[], object]) -> None:
        super().__init__()
        self.time = clock
        self._connect = connect
        self._clock_resolution = 1e-9
        self._selector = self.sockets = _Selector(told)
        self._tasks = 0

    # -- what the world sees

    @property
    def has_work(self) -> bool:
        """Whether it would do anything now."""
        return bool(self._ready or self.sockets)

    @property
    def next_timer(self) -> float:
        """When it wants to go on by itself, by its own clock; infinity if never."""
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            asyncio.base_events.heapq.heappop(scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        return scheduled[0]._when if scheduled else float("inf")

    def turn(self) -> None:
        """One turn of the loop, as `run_forever` makes them."""
        # They stay, for the next turn of any loop sets them again; `World.dispose` takes them away.
        sys.set_asyncgen_hooks(
            firstiter=self._asyncgen_firstiter_hook, finalizer=self._asyncgen_finalizer_hook
        )
        self._thread_id = threading.get_ident()
        asyncio._set_running_loop(self)
        try:
            self._run_once()
        finally:
            self._thread_id = None
            asyncio._set_running_loop(None)

    # -- what a loop of the platform would add

    def create_task(self, coroutine: Any, *, name: str | None = None, **how: Any) -> asyncio.Task[Any]:
        """Named by numbers of this loop: those of asyncio count on from one world to the next."""
        self._tasks += 1
        name = name or f"task{self._tasks}"
        return _Task(self._tasks, coroutine, loop=self, name=name, **how)

    def _process_events(self, events: list[Readable]) -> None:
        for socket in events:
            self._ready.append(asyncio.Handle(socket.read_ready, (), self))

    def _write_to_self(self) -> None:
        """There is no other thread that it would have to be woken from."""

    async def create_connection(
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        ssl: Any = None,
        **_: Any,
    ) -> tuple[Any, asyncio.Protocol]:
        """No server here speaks TLS: to a handshake it says nothing, for the line has no end."""
        protocol = protocol_factory() if ssl is None else asyncio.Protocol()
        transport = await self._connect(self, protocol, (host, port))
        if ssl is not None:
            try:
                await self.create_future()
            finally:
                transport.abort()
        return transport, protocol
