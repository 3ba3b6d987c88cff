"""A process: an event loop with a clock and randomness of its own, that can be frozen and killed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from .clockwork import Clockwork
from .loop import SimulatedLoop
from .network import Address, Network
from .transport import SocketTransport


class Process:
    """One process.

    Args:
        rate: How much faster its clock runs than the world's.
        busy: Seconds that a turn of its loop takes at most; what comes meanwhile comes together.
        touched: Called when the time at which it goes on may have changed.

    Attributes:
        problems: The errors that were reported to its loop's exception handler.
        frozen: Whether it is stopped, as by SIGSTOP: its clock goes on, and what it receives piles up.
        dead: Whether it was killed: it is never stepped again.
    """

    def __init__(
        self,
        name: str,
        clockwork: Clockwork,
        network: Network,
        *,
        touched: Callable[[], object],
        rate: float = 1.0,
        busy: float = 0.0,
    ) -> None:
        self.name = name
        self.random: random.Random = clockwork.part(name)
        self.frozen = self.dead = False
        self.problems: list[str] = []
        self._transports: list[SocketTransport] = []
        self._clockwork = clockwork
        self._network = network
        self._rate = rate
        self._busy = busy
        self._free_at = 0.0  # its computation is done then
        self._then = (clockwork.now, 1000.0 + self.random.random())  # a time of the world, and its own
        self._next_at: float | None = None  # not known
        self._told = touched
        self.loop = SimulatedLoop(self.clock, self._connect, self._touched)
        self.loop.set_exception_handler(self._reported)

    def clock(self) -> float:
        """Its time now."""
        world, own = self._then
        return own + (self._clockwork.now - world) * self._rate

    @property
    def next_at(self) -> float:
        """The world's time at which it goes on by itself; infinity if never."""
        if self._next_at is None:
            self._next_at = self._find_next()
        return self._next_at

    def _find_next(self) -> float:
        if self.frozen or self.dead:
            return float("inf")
        if self.loop.has_work:
            return max(self._clockwork.now, self._free_at)
        world, own = self._then
        return max(self._clockwork.now, self._free_at, world + (self.loop.next_timer - own) / self._rate)

    def _touched(self) -> None:
        """When it goes on may have changed."""
        self._next_at = None
        self._told()

    def start(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        self._touched()
        return self.loop.create_task(coroutine, name=name)

    def step(self) -> None:
        self.loop.turn()
        self._touched()
        if self._busy:
            self._free_at = self._clockwork.now + self._busy * self.random.random() ** 4

    async def _connect(
        self, loop: SimulatedLoop, protocol: asyncio.Protocol, address: Address
    ) -> SocketTransport:
        transport = await self._network.connect(self.name, loop, protocol, address)
        self._transports.append(transport)
        return transport

    def _reported(self, loop: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.problems.append(f"{context['message']}: {error!r}" if error is not None else context["message"])

    # -- what befalls it

    def freeze(self) -> None:
        self.frozen = True
        self._touched()

    def thaw(self) -> None:
        self.frozen = False
        self._touched()

    def kill(self, *, silently: bool = False) -> None:
        """Ends it between two steps; `silently`, as with its machine: the servers are not told."""
        self.dead = True
        self._touched()
        for wire in [wire for wire in self._network.wires if wire.process == self.name]:
            if silently:
                wire.deaf = True
            else:
                wire.finish()

    def tasks(self) -> list[asyncio.Task[Any]]:
        return sorted(asyncio.all_tasks(self.loop), key=lambda task: task.get_name())

    def dispose(self) -> None:
        """Ends whatever it still does, with nobody looking: for when its world has ended."""
        self.frozen = False
        for transport in self._transports:
            transport.abort()
        for _ in range(20):  # some that are ended begin again
            tasks = self.tasks()
            if not tasks and not self.loop.has_work:
                break
            for task in tasks:
                task.cancel()
            self.loop.turn()
        for task in self.tasks():
            with suppress(RuntimeError):  # of what it does at its end, with no loop that runs
                task.get_coro().close()  # type: ignore[union-attr]
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        for transport in self._transports:
            transport.abort()
        self.loop.close()
