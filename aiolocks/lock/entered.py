"""Which leases a task is inside of: what it may wait for in vain, because it holds what is in the way."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, final

TURNS_TO_CLOSE: Final = 8
"""Turns of the event loop after which generators that a task has left, also within each other, are closed: in
tasks of their own. Until then the task seems to be inside."""


class _Lease(Protocol):
    @property
    def holds(self) -> bool: ...

    @property
    def lasting(self) -> bool: ...


PossessionT = TypeVar("PossessionT", bound=_Lease)
T = TypeVar("T")
Inside: TypeAlias = "Sequence[weakref.ref[T]]"


@final
class Entered(Generic[PossessionT]):
    """The leases of one session that tasks have entered and not left, by task.

    Invariants:
    - nothing here keeps a task or a lease alive: an object that nobody else refers to must be collected, and
      then its renewal ends;
    - while a task waits, what is told of it does not change but by leases that end.
    """

    __slots__ = ("_of",)

    def __init__(self) -> None:
        # By id: a task that was collected inside leaves an entry behind, which says nothing of a later task
        # of the same id. For a lease that is still there keeps the task that has entered it.
        self._of: dict[int, list[weakref.ref[PossessionT]]] = {}

    def add(self, task: asyncio.Task[Any], watch: weakref.ref[PossessionT]) -> None:
        inside = self._of.get(id(task))
        if inside is None:
            self._of[id(task)] = [watch]
        else:
            inside.append(watch)

    def remove(self, task: asyncio.Task[Any], possession: PossessionT) -> None:
        inside = self._of.get(id(task))
        if inside is None:
            return
        if len(inside) > 1 or inside[0]() is not possession:
            inside[:] = [watch for watch in inside if watch() not in (possession, None)]
            if inside:
                return
        else:
            inside.clear()  # a wait of that task may look at it
        del self._of[id(task)]

    def by(self, task: asyncio.Task[Any] | None) -> Inside[PossessionT]:
        """The leases that this task has entered, to be read by `held` while the task waits."""
        return self._of.get(id(task), ())


def held(inside: Inside[PossessionT], *, lasting: bool = False) -> list[PossessionT]:
    """The possessions of it that are held; with `lasting`, only those that do not end by themselves."""
    found = [possession for watch in inside if (possession := watch()) is not None]
    return [possession for possession in found if possession.holds and (possession.lasting or not lasting)]
