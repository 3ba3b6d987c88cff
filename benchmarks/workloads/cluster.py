"""The work of other workloads over a cluster of three nodes, beside the same on one server."""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from ..contenders.ours import BY_WAKEUP
from ..model import FLOOR, Sample
from ..servers import executables
from ..settings import Address, Settings
from ..targets import Target, at_least, at_most
from .base import Measure, Workload
from .drain import Drain
from .handover import Handover
from .many import Many


class InCluster(Workload):
    """The same work for the same library: only the servers are others.

    Both are reached over TCP, as the nodes of a cluster must be.

    Args:
        same: The workload.
        wakeup: The way in which waiters hear.
    """

    name = "cluster"
    usual_rounds = 3  # few: it is the same as with one server, or very far from it
    floor = "the same on one server"
    one_server = "a cluster is compared with one of its own kind"
    targets: Sequence[Target]

    def __init__(self, settings: Settings, same: type[Many | Drain | Handover]) -> None:
        super().__init__(settings)
        self._same = same(settings)
        self._ours = BY_WAKEUP["tracking" if same is Handover else "auto"].name
        self.case = same.name
        self.work = f"{self._same.work.partition(' (')[0]}; over a cluster of three nodes"
        self.figures = self._same.figures
        first = self.figures[0].key
        if first == "throughput":
            self.targets = (at_least(1 / 1.15, first, "≥ one server / 1.15", of=FLOOR),)
        else:
            self.targets = (at_most(1.15, first, "≤ 1.15 × one server", of=FLOOR),)

    @property
    def warm_up(self) -> bool:
        """As with one server."""
        return self._same.warm_up

    @property
    def contenders(self) -> Sequence[str]:
        """Ours alone: there and here."""
        return (FLOOR, "aiolocks")

    @asynccontextmanager
    async def stage(self, address: Address) -> AsyncGenerator[Measure]:
        """Both at the same time; the one that is not measured has nothing to do."""
        # Not an import statement: what the tests are made of has types of its own.
        clusters = importlib.import_module("tests.support.clusters")
        nodes = clusters.Cluster(executables()[self.settings.server])
        async with self.settings.embedded(port=0) as server:
            with nodes:
                there = Address(str(nodes.masters[0].server.path), nodes.masters[0].port, cluster=True)
                async with self._same.stage(Address.of(server)) as one, self._same.stage(there) as several:

                    async def measure(contender: str) -> Sample:
                        return await (one if contender == FLOOR else several)(self._ours)

                    yield measure
