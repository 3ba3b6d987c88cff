"""The world: processes, servers and the network between them, stepped in the order of its time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import inf
from typing import Any

from .clockwork import Clockwork
from .network import Delays, Network
from .node import Node
from .process import Process
from .randomness import Source
from .trace import Trace


class StuckError(Exception):
    """Raised when a world does not come to its end."""


class World:
    """One run of everything.

    Args:
        seed: The seed of all randomness.
        source: Where the code of the process that runs now draws from.
    """

    def __init__(self, seed: int | str, source: Source) -> None:
        self.clockwork = Clockwork(seed)
        self.trace = Trace(self.clockwork)
        self.network = Network(self.clockwork, self.trace.happened)
        self.processes: list[Process] = []
        self.nodes: list[Node] = []
        self._source = source
        self._turns = 0
        self._soonest: float | None = None  # when the first of the processes goes on; not known

    @property
    def now(self) -> float:
        return self.clockwork.now

    @property
    def steps(self) -> int:
        """Turns of loops, and requests that servers have answered."""
        return self._turns + self.trace.requests

    def process(self, name: str, *, delays: Delays, rate: float = 1.0, busy: float = 0.0) -> Process:
        process = Process(name, self.clockwork, self.network, rate=rate, busy=busy, touched=self._touched)
        self.network.delays[name] = delays
        self.processes.append(process)
        return process

    def node(self, name: str, **how: Any) -> Node:
        node = Node(name, self.clockwork, self.network, self.trace, **how)
        self.nodes.append(node)
        return node

    def run(self, until: Callable[[], bool], *, limit: float, steps: int = 200_000) -> None:
        """Steps until that is so.

        Raises:
            StuckError: It is not so at the world's time `limit`, or after `steps` steps.
        """
        clockwork = self.clockwork
        for _ in range(steps):
            if until():
                return
            at = clockwork.next_at
            if self._soonest is None:
                self._soonest = min([process.next_at for process in self.processes], default=inf)
            soonest = self._soonest
            if min(at, soonest) > limit:
                raise StuckError(f"nothing more happens before {limit:g} s")
            if at <= soonest:
                clockwork.happen()
            else:
                clockwork.now = soonest
                self.step(self._first(at))
        raise StuckError(f"{steps} steps, and no end at {self.now:.3f} s")

    def pass_until(self, when: float) -> None:
        """Steps until that time."""
        self.clockwork.at(when, lambda: None)
        self.run(lambda: self.now >= when, limit=when)

    def _first(self, before: float) -> Process:
        """The process that goes on first, before that time; one of them if there are several."""
        at, first, tie = before, None, self.clockwork.random
        for process in self.processes:
            next_at = process.next_at
            if next_at < at or (next_at == at and first is not None and tie.random() < 0.5):
                at, first = next_at, process
        assert first is not None
        return first

    def _touched(self) -> None:
        self._soonest = None

    def step(self, process: Process) -> None:
        self._turns += 1
        self._source.now = process.random
        process.step()

    def dispose(self) -> None:
        """Lets go of everything."""
        self.clockwork.clear()
        for node in self.nodes:
            node.dispose()
        for process in self.processes:
            self._source.now = process.random
            process.dispose()
        sys.set_asyncgen_hooks(None, None)
