"""Which node of a cluster serves which slot, as far as this session knows."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterator
from itertools import count, groupby
from typing import Any, Final, TypeAlias, final

from ..._logs import get_logger
from ..._tasks import empty_context
from .. import faults
from ..closed_loops import background
from ..cluster_client import NodeConnectors
from ..driver import Address
from ..keys import SLOTS, slot_of
from ..request import UNREADABLE
from ..tls import hear_out
from .members import Members, unreadable_table

log = get_logger("aiolocks.transport")

_Table: TypeAlias = tuple[list[Address | None], frozenset[bytes], int | None, faults.NamelessError | None]
"""The node that serves each slot, the ids of the nodes, the epoch, and why a node of a slot is missing."""
_STAGGER: Final = 0.2
"""Seconds after which the next node is asked too: a node that hangs is not to hold up the other answers."""


@final
class Slots:
    """The table of a cluster's slots.

    The table may be out of date; a node that is asked in vain then answers `MOVED`, or not at all.

    Attributes:
        known: Whether it has been learned.
        gap: Why no node is known to serve some of the slots, where the nodes say why.
        members: The cluster whose table it is.
    """

    __slots__ = ("_connectors", "_owners", "_seeds", "gap", "known", "members")

    def __init__(self, connectors: NodeConnectors) -> None:
        self._connectors = connectors
        self._seeds = connectors.seeds
        self._owners: list[Address | None] = [None] * SLOTS
        self.known = False
        self.gap: faults.NamelessError | None = None
        self.members = Members()

    def owner(self, slot: int) -> Address | None:
        """The node that serves it; None: no node is known to."""
        return self._owners[slot]

    def owners(self) -> tuple[Address, ...]:
        """All nodes that serve any, each once."""
        # Slots that stand side by side mostly have one owner, and there are 16 384 of them.
        return tuple(dict.fromkeys(owner for owner, _ in groupby(self._owners) if owner is not None))

    def move(self, slot: int, to: Address) -> bool:
        """A node said `MOVED`. Whether that is news."""
        if self._owners[slot] == to:
            return False
        self._owners[slot] = to
        return True

    def tag(self, address: Address, *, beside: Collection[int]) -> bytes | None:
        """The hash tag of a slot that this node serves, and not in `beside`; None if there is none."""
        own = {slot for slot in range(SLOTS) if self._owners[slot] == address}.difference(beside)
        if not own:
            return None
        return next(tag for number in count() if slot_of(tag := b"{%d}" % number) in own)

    async def learn(self) -> set[int]:
        """Asks the nodes, and believes the first that knows.

        Returns:
            The slots that another node serves than was known.

        Raises:
            redis.exceptions.RedisError, OSError, TimeoutError: No node could say.
        """
        try:
            fresh, ids, epoch, gap = await self._ask_around()
        except faults.NamelessError as error:
            self._note(error)
            raise
        self._note(gap)
        self.members.believe(ids, epoch)
        changed: set[int] = set()
        if self.known and fresh != self._owners:
            changed = {slot for slot in range(SLOTS) if fresh[slot] != self._owners[slot]}
        self._owners = fresh
        self.known = True
        self._seeds = tuple(dict.fromkeys([*self.owners(), *self._seeds]))
        return changed

    def _note(self, gap: faults.NamelessError | None) -> None:
        if gap is not None and self.gap is None:
            log.warning("some slots have no node that can be reached: %s", gap)
        self.gap = gap

    async def _ask_around(self) -> _Table:
        # Nodes that served any slot by the last table come first: many other nodes may have gone for good.
        owners = self.owners()
        left = sorted(random.sample(self._seeds, len(self._seeds)), key=owners.__contains__)
        asked: list[asyncio.Task[_Table]] = []
        trouble: BaseException | None = None
        loop = asyncio.get_running_loop()
        try:
            while left or asked:
                if left:
                    question = background(loop, self._ask(left.pop()), name="aiolocks-slots")
                    question.add_done_callback(hear_out, context=empty_context())
                    asked.append(question)
                await asyncio.wait(
                    asked, timeout=_STAGGER if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in [task for task in asked if task.done()]:
                    asked.remove(task)
                    if (error := task.exception()) is None:
                        return task.result()
                    if not isinstance(error, faults.CONNECTING):
                        raise error
                    if trouble is None or not faults.is_final(trouble):
                        trouble = error
            assert trouble is not None
            raise trouble
        finally:
            if asked and not loop.is_closed():
                for task in asked:
                    task.cancel()
                await asyncio.wait(asked)

    async def _ask(self, address: Address) -> _Table:
        rows, epoch = await self._connectors.connector(address).cluster_table()
        ids = self.members.check(rows, address, epoch)
        owners: list[Address | None] = [None] * SLOTS
        gap: faults.NamelessError | None = None
        for first, last, owner in self._read(rows, address):
            owners[first : last + 1] = [owner] * (last + 1 - first)
            if owner is None:
                gap = gap or faults.NamelessError()
        if not any(owners):
            raise gap or faults.NoSlotsError("no node serves any slot")
        return owners, ids, epoch, gap

    def _read(self, rows: Any, asked: Address) -> Iterator[tuple[int, int, Address | None]]:
        """The first and the last slot of each range, and their node; None for one without a name."""
        try:
            for first, last, master, *_ in rows:
                host, port = (master[0] or b"").decode(), int(master[1])
                owner = None if host == faults.NAMELESS else self.address(host, port, asked)
                yield int(first), int(last), owner
        except UNREADABLE as error:
            raise unreadable_table(asked) from error

    def address(self, host: str, port: int, said_by: Address) -> Address:
        """Where a node is found that another one speaks of; without a host, at the same one."""
        return self._connectors.address(host or said_by[0], port)
