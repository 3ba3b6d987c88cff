"""The base of all workloads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import ClassVar

from ..contenders.ours import BY_WAKEUP
from ..model import Figure, Sample, title
from ..settings import ROUNDS, Address, Settings
from ..targets import Target

Measure = Callable[[str], Awaitable[Sample]]
"""Has one contender do the work once."""


class Workload(ABC):
    """Some work, who does it, and what is aimed at.

    Attributes:
        name: The name of it on the command line.
        case: Which of several of this name.
        work: The work of one round.
        floor: The work of the floor instead.
        figures: The measures; the first is the one that is drawn.
        targets: The targets.
        patience: Seconds after which a contender is given up.
        limit: Seconds after which the workload is given up, on a server.
        core_apart: Whether the server has a core of its own: for what is made of single round trips.
        once: Whether there is one round, and none before it that is thrown away.
        usual_rounds: How often a contender is measured where nothing else was asked for.
        few: The contenders that are slow, or far from all others: these have two rounds.
        one_server: Why one server is enough, where it is; then the last of those that were asked for.
    """

    name: ClassVar[str]
    case: str = ""
    work: str
    floor: str = "none"
    figures: Sequence[Figure]
    targets: Sequence[Target]
    patience: ClassVar[float] = 60.0
    limit: ClassVar[float] = 300.0
    core_apart: ClassVar[bool] = False
    once: ClassVar[bool] = False
    usual_rounds: ClassVar[int] = ROUNDS
    few: ClassVar[Sequence[str]] = ()
    one_server: str = ""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @property
    def title(self) -> str:
        """What readers call it."""
        return title(self.name, self.case)

    @property
    def rounds(self) -> int:
        """How often a contender is measured."""
        if self.once or self.settings.quick:
            return 1
        return self.settings.rounds or self.usual_rounds

    def rounds_of(self, contender: str) -> int:
        """How often this contender is measured."""
        return min(self.rounds, 2) if contender in self.few else self.rounds

    @property
    def warm_up(self) -> bool:
        """Whether a first round is thrown away; where not, the workload itself sees to warm contenders."""
        return not self.once

    @property
    @abstractmethod
    def contenders(self) -> Sequence[str]:
        """The contenders, in the order of the rounds."""

    @abstractmethod
    def stage(self, address: Address) -> AbstractAsyncContextManager[Measure]:
        """The connections and processes that are there for all rounds."""

    def by_wakeup(self) -> list[str]:
        """Our rows, one for each way of waking up that was asked for."""
        return [BY_WAKEUP[wakeup].name for wakeup in self.settings.wakeups]


NOTIFIED = ("aiolocks tracking", "aiolocks keyspace")
POLLED = ("aiolocks poll",)
