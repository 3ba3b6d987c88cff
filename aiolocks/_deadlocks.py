"""Deadlocks over several processes, as operators, listeners and errors are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from ._visible import visible


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlockedTask:
    """One task of a deadlock. A field that is not known is None.

    Attributes:
        host: Name of its machine.
        pid: Its process id there.
        task: Name of the task.
        kind: Kind of the lock that it waits for, as `"lock"` or `"rwlock.writer"`.
        name: Name of that lock; of a `MultiLock`, all of them, separated by commas.
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
    """Tasks that wait for each other: each of them for what the others hold.

    Attributes:
        tasks: The tasks. Each waits for a lock that the next one holds, and the last one for one that the
            first one holds. If more tasks are part of it, as where several have the permits of a `Semaphore`,
            they follow these.
    """

    tasks: tuple[DeadlockedTask, ...]

    def __str__(self) -> str:
        return f"deadlock of {len(self.tasks)}: {in_words(self.tasks)}"


def in_words(tasks: Sequence[DeadlockedTask]) -> str:
    """All of them, one after the other."""
    return "; ".join(map(str, tasks))
