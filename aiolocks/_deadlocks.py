"""Deadlocks over several processes, as operators, listeners and errors are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from ._visible import visible


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlockedTask:
    """One task of a deadlock. An unknown field is None.

    Attributes:
        host: Name of its machine.
        pid: Its process id on that machine.
        task: Name of the task.
        kind: Kind of the lock that it waits for, such as `"lock"` or `"rwlock.writer"`.
        name: Name of that lock; of a `MultiLock`, all of its names, separated by commas.
        waited_for: Seconds for which it has waited.
        holds: Kind and name of each lock that it holds.
    """

    host: str | None
    pid: int | None
    task: str | None
    kind: str
    name: str
    waited_for: float
    holds: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        where = f"{visible(self.host or 'an unknown host')} pid {self.pid} task {self.task!r}"
        held = ", ".join(f"{visible(kind)} {name!r}" for kind, name in self.holds)
        return f"{where} holds {held} and waits for {visible(self.kind)} {self.name!r}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlock:
    """Tasks that wait for each other: each task waits for what another one holds.

    Attributes:
        tasks: The tasks, in a circle: each waits for a lock that the next one holds, and the last one for a
            lock that the first one holds. More tasks may follow the circle, such as the other holders of the
            permits of a `Semaphore`.
    """

    tasks: tuple[DeadlockedTask, ...]

    def __str__(self) -> str:
        return f"deadlock of {len(self.tasks)}: {in_words(self.tasks)}"


def in_words(tasks: Sequence[DeadlockedTask]) -> str:
    """All of them, one after the other."""
    return "; ".join(map(str, tasks))
