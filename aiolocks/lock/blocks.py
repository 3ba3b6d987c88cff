"""The entries that `async with` has made on one shared object, so that each exit finds its own.

A block is known by its frame: that of a coroutine or generator stays the same, whichever task runs it. An
async generator that its consumer leaves, for one, is closed by the event loop in a task of its own; and a
fixture may be set up and torn down in two tasks. Where the frame of the exit has entered nothing (that of an
`AsyncExitStack`, or a call of `__aexit__` by hand), the task decides, and then what else is clear.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import weakref
from asyncio import current_task
from collections.abc import Callable, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar, final

from .notes import note

if TYPE_CHECKING:
    from .lease import Possession


T = TypeVar("T")

_Entry: TypeAlias = "tuple[int, CodeType, int, T, _Entry[T] | None]"
"""What a block has entered: the id of its frame, which does not keep the frame alive; the code of the frame,
for one that has ended, as that of a stack, may have left its id to another one; the number of the entry; the
object; and the entry of its task before it."""


_numbers: Final = itertools.count()


def _anything(_: object) -> bool:
    return True


@final
class OpenBlocks(Generic[T]):
    """Any number of tasks enter the object, each any number of times.

    Invariant: each block that is open has one entry, or its task is remembered as one whose entry was taken.
    """

    __slots__ = ("_last_of", "_taken")

    def __init__(self) -> None:
        self._last_of: dict[asyncio.Task[Any], _Entry[T]] = {}
        # By task: frame and code of its block whose entry another exit has taken. Made when it is needed.
        self._taken: weakref.WeakKeyDictionary[asyncio.Task[Any], tuple[int, CodeType]] | None = None

    def __len__(self) -> int:
        """How many tasks are inside."""
        return len(self._last_of)

    def add(self, task: asyncio.Task[Any], entered: T) -> None:
        """The block of the caller's caller has entered: to be called by `__aenter__` itself."""
        frame = sys._getframe(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - there is no other way
        self._last_of[task] = id(frame), frame.f_code, next(_numbers), entered, self._last_of.get(task)

    def take(
        self,
        loop: asyncio.AbstractEventLoop | None,
        *,
        holds: Callable[[T], bool] = _anything,
        alike: Callable[[T], bool] = _anything,
    ) -> T | None:
        """The entry of the block that the caller's caller leaves: to be called by `__aexit__` itself.

        None: the block is open no more, for an exit in another task has taken its entry.

        Args:
            loop: Where it was used last, if anywhere: to find out which one runs, Python asks the kernel.
            holds: Whether there is something to give back. Where the exit belongs to no block and no task, it
                takes what is held.
            alike: Whether it may be given back in place of any other one that is.

        Raises:
            LookupError: It is not clear which entry is meant. Entries of tasks that have ended are then kept
                no more.
        """
        frame = sys._getframe(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as `add`
        task: Any = current_task(loop)  # None stands for no task
        last = self._last_of.get(task)
        if last is not None and last[1] is frame.f_code and last[0] == id(frame):
            if last[4] is None:
                del self._last_of[task]
            else:
                self._last_of[task] = last[4]
            return last[3]
        return self._take_other(task, (id(frame), frame.f_code), holds, alike)

    def _take_other(
        self,
        task: asyncio.Task[Any] | None,
        block: tuple[int, CodeType],
        holds: Callable[[T], bool],
        alike: Callable[[T], bool],
    ) -> T | None:
        """As `take`, where the last entry of the task is not that of the block."""
        if task not in self._last_of:
            task = asyncio.current_task()
        if task is None:
            return self._clear_one(holds, alike)
        for entry in self._entries_of(task):
            if entry[:2] == block:
                return self._remove(task, entry)
        if self._forget_taken(task, block):
            return None
        every = [(other, entry) for other in self._last_of for entry in self._entries_of(other)]
        if same := [one for one in every if one[1][:2] == block]:
            return self._remove(*max(same, key=lambda one: one[1][2]))
        if task in self._last_of:
            return self._remove(task, self._last_of[task])
        if not self._last_of and self._forget_taken(task):
            return None
        return self._clear_one(holds, alike)

    def _clear_one(self, holds: Callable[[T], bool], alike: Callable[[T], bool]) -> T:
        """The entry that must be meant, or any of several that are alike: first one whose task has ended."""
        here = asyncio.get_running_loop()  # a thread with another loop may have entered it as well
        mine = [task for task in self._last_of.copy() if task.get_loop() is here]
        every = [(task, entry) for task in mine for entry in self._entries_of(task)]
        found = [one for one in every if holds(one[1][3])] or every
        if not found or (len(found) > 1 and not all(alike(entry[3]) for _, entry in found)):
            for task, entry in every:
                if task.done():
                    self._remove(task, entry)
            raise LookupError
        task, entry = max(found, key=lambda one: (one[0].done(), one[1][2]))
        if len(found) == 1 and not task.done():
            # The task may be inside. Where other entries are like this one, its exit takes one of these.
            if self._taken is None:
                self._taken = weakref.WeakKeyDictionary()
            self._taken[task] = entry[:2]
        return self._remove(task, entry)

    def _entries_of(self, task: asyncio.Task[Any]) -> list[_Entry[T]]:
        """The last one first."""
        found: list[_Entry[T]] = []
        entry = self._last_of.get(task)
        while entry is not None:
            found.append(entry)
            entry = entry[4]
        return found

    def _remove(self, task: asyncio.Task[Any], gone: _Entry[T]) -> T:
        left: _Entry[T] | None = None
        for entry in reversed(self._entries_of(task)):
            if entry[2] != gone[2]:
                left = (*entry[:4], left)
        if left is None:
            del self._last_of[task]
        else:
            self._last_of[task] = left
        return gone[3]

    def _forget_taken(self, task: asyncio.Task[Any], block: tuple[int, CodeType] | None = None) -> bool:
        """Whether its entry was taken: that of this block, or of any."""
        taken = None if self._taken is None else self._taken.get(task)
        if self._taken is None or taken is None or block not in (taken, None):
            return False
        del self._taken[task]
        return True


async def told_at_exit(error: Exception, body_raised: BaseException | None) -> None:
    """Raises the error, or notes it on the exception of the body, which wins: above all a cancellation."""
    if body_raised is None or isinstance(body_raised, GeneratorExit):  # Python shows that one to no code
        raise error
    note(body_raised, f"aiolocks: {error}")


# -- Which leases a task is inside of: what it may wait for in vain, because it holds what is in the way.


TURNS_TO_CLOSE: Final = 8
"""Turns of the event loop after which generators that a task has left, also within each other, are closed: in
tasks of their own. Until then the task seems to be inside."""


PossessionT = TypeVar("PossessionT", bound="Possession")
Inside: TypeAlias = "Sequence[weakref.ref[T]]"


@final
class Entered(Generic[PossessionT]):
    """The leases of one session that tasks have entered and not left, by task.

    Invariants:
    - this object keeps no task and no lease alive: a lease that no other code refers to must be collected,
      and then its renewal ends;
    - while a task waits, what is told of it does not change but by leases that end.
    """

    __slots__ = ("_of",)

    def __init__(self) -> None:
        # By id: a task that was collected inside leaves an entry behind, which says nothing of a later task
        # of the same id. For a lease that is still there keeps the task that has entered it.
        self._of: dict[int, list[weakref.ref[PossessionT]]] = {}

    def add(self, task: asyncio.Task[Any], watch: weakref.ref[PossessionT]) -> None:
        self._of.setdefault(id(task), []).append(watch)

    def remove(self, task: asyncio.Task[Any], possession: PossessionT) -> None:
        inside = self._of.pop(id(task), None)
        if inside is None:
            return
        if len(inside) == 1:  # it is that one
            inside.clear()  # a wait of that task may look at it
            return
        inside[:] = [watch for watch in inside if watch() not in (possession, None)]
        if inside:
            self._of[id(task)] = inside

    def shared(self, task: asyncio.Task[Any]) -> list[weakref.ref[PossessionT]]:
        """The leases that this task has entered, to which other code may add until `forget`.

        A lease of a task that waits for this one stands there as well: both let go of it only after that.
        """
        return self._of.setdefault(id(task), [])

    def forget(self, task: asyncio.Task[Any]) -> None:
        """The task has ended."""
        self._of.pop(id(task), None)

    def by(self, task: int) -> Inside[PossessionT]:
        """The leases that the task of this id has entered, to be read by `held` while the task waits."""
        return self._of.get(task, ())


def held(inside: Inside[PossessionT], *, lasting: bool = False) -> list[PossessionT]:
    """The possessions of it that are held; with `lasting`, only the lasting ones."""
    found = [possession for watch in inside if (possession := watch()) is not None]
    return [possession for possession in found if possession.holds and (possession.lasting or not lasting)]
