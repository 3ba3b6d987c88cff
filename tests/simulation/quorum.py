"""Redlock's protocol without servers, sockets or time: the real ballots, masters of a few lines, and a seed.

A *schedule* is one run: a few clients that want the same name, some masters, and messages that take their
time, overtake each other or get lost. Everything that happens is drawn from one random generator, so that a
seed says it all. Times are milliseconds of the world; every clock runs a little faster or slower than that,
and the masters' stand wherever they stand.

What is simulated is what lies outside the protocol: the network, the masters' memory (the scripts of
`aiolocks/lua` in Python), the clocks. What is decided is decided by `aiolocks._transport.elections`.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiolocks._transport.commands.redlock import RedlockCommands
from tests.simulation.clients import DRIFT, NODE_TIMEOUT, TTL, Client
from tests.simulation.histories import Holding
from tests.simulation.masters import Master, Rules

RETENTION = 10 * TTL


@dataclass
class World:
    """One schedule."""

    seed: int
    rules: Rules
    holdings: list[Holding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = rng = random.Random(self.seed)
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        hasty = self.rules.hasty
        number = 3 if hasty or rng.random() < 0.7 else 5
        self.labels = tuple(map(str, range(number)))
        skew = self.rules.skew
        self.masters = [
            Master(1 + rng.uniform(-DRIFT, DRIFT), 1e6 + rng.uniform(-skew, skew), self.rules)
            for _ in range(number)
        ]
        self.loss = 0.1 if hasty else rng.choice((0.0, 0.02, 0.1))
        self.slow = 0.35 if hasty else rng.choice((0.02, 0.1, 0.3))  # the part of messages that take long
        self.ordered = not hasty and rng.random() < 0.6
        self.commands = RedlockCommands("p", "n", retention_ms=int(RETENTION), session="s", node_timeout=1.0)
        for client in range(3 if hasty else rng.choice((2, 3))):
            self.after(rng.uniform(0, 10), Client(self, client).begin)
        self._misfortunes()

    def _misfortunes(self) -> None:
        rng, rules = self.random, self.rules
        if rules.jumps:
            for master in rng.sample(self.masters, rng.randint(1, len(self.masters) // 2 + 1)):
                self.after(
                    rng.uniform(0, 2 * TTL), self._jump, master, rng.uniform(-rules.jumps, rules.jumps)
                )
        if rules.restarts is not None:
            for master in rng.sample(self.masters, rng.randint(1, len(self.masters) // 2 + 1)):
                self.after(rng.uniform(0, 3 * TTL), self._die, master)

    def _jump(self, master: Master, by: float) -> None:
        master.offset += by

    def _die(self, master: Master) -> None:
        master.up = False
        if self.rules.restarts != "kept":
            master.forget_everything()
        away = self.random.uniform(1, 20)
        if self.rules.restarts == "late":
            away += TTL * (1 + 2 * DRIFT)
        self.after(away, self._come_back, master)

    def _come_back(self, master: Master) -> None:
        master.up = True

    # -- time and messages

    def after(self, delay: float, what: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, what, args))

    def run(self) -> list[Holding]:
        events = self._events
        while events:
            self.now, _, what, args = heapq.heappop(events)
            what(*args)
        return self.holdings

    def delay(self) -> float:
        """Of one message, one way."""
        rng = self.random
        return (
            rng.uniform(NODE_TIMEOUT / 4, NODE_TIMEOUT * 1.5)
            if rng.random() < self.slow
            else rng.uniform(0.2, 1.5)
        )

    def lost(self) -> bool:
        return self.loss > 0 and self.random.random() < self.loss
