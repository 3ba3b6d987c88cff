"""The steps of several simple locks at once that lie in several slots of a cluster.

No script reaches more than one slot. So the slots are taken one after the other, in the order of their
numbers, which is the same for all who want several: they cannot wait for each other in a ring. If one
refuses, what was taken is given back at once, and nothing is held while it waits. This is not one atomic
step: for the time of a try, others may find taken what is then given back.

The fencing token. Each slot mints one, larger than every earlier one of its own names. The largest of them is
written to all names (`multi_seal`), in each slot only where all the locks still carry the token, and the
lease is given only when every slot has confirmed that. So it is larger than every earlier one of each name;
and a later holder of one of the names finds it behind that name's fence, and mints a larger one. If a slot
has lost it meanwhile, nothing is given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, final

from ..transport.answers import (
    ASK,
    BELL_RUNG,
    GONE,
    NO_END,
    NOT_OURS,
    Answer,
    Granted,
    Kept,
    Refused,
    Released,
    Stolen,
    released,
)
from ..transport.commands.base import NameSteps
from ..transport.commands.listening import listening
from ..transport.commands.lock import told_lock
from ..transport.commands.snapshots import Holder
from ..transport.commands.standing import BEHIND, PASSING, SEATED, STAYING, WAITING
from ..transport.commands.waits import Wanted
from ..transport.keys import key, slot_of
from ..transport.request import Command, Script
from ..transport.sagas import Compensate, FaultError, SagaCommand, SagaSteps
from .multilock import SeveralSteps, endless_of_several

_RETURN: Final = Script("multi_return", "forms", "bells", "locks")
_SEAL: Final = Script("multi_seal", "forms", "bells", "locks")


def steps_of(
    prefix: str, names: Sequence[str], *, retention_ms: int, session: str
) -> SeveralSteps | MultiSlotSteps:
    """The steps of these names in a cluster: in one script, where they share a slot."""
    slots: dict[int, list[str]] = {}
    for name in names:
        slots.setdefault(slot_of(key(prefix, "lock", name)), []).append(name)
    if len(slots) == 1:
        return SeveralSteps(prefix, names, retention_ms=retention_ms, session=session)
    # In each slot a bell of its own, which those of other sets of names are not to be taken for.
    everything = hashlib.sha1("\0".join(names).encode(), usedforsecurity=False).hexdigest()
    parts = [
        SeveralSteps(
            prefix, slots[slot], retention_ms=retention_ms, session=session, part_of=f"of-{everything}"
        )
        for slot in sorted(slots)
    ]
    return MultiSlotSteps(parts, retention_ms=retention_ms)


@final
class MultiSlotSteps(NameSteps):
    """The steps by which all locks of these slots are acquired, or none."""

    __slots__ = ("_parts", "bell")

    def __init__(self, parts: Sequence[SeveralSteps], *, retention_ms: int) -> None:
        super().__init__(retention_ms)
        self._parts = parts
        self.bell = parts[0].bell

    @property
    def all_bells(self) -> tuple[bytes, ...]:
        return tuple(part.bell for part in self._parts)

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int = 0) -> Command[Answer]:
        return self._saga(lambda: self._acquiring(token, ttl_ms, metadata, standing), lane=token)

    def _acquiring(self, token: str, ttl_ms: int, metadata: str, standing: int) -> SagaSteps[Answer]:
        # The queues are left when all is had. The slot that refuses seats the waiter in the same step, the
        # others after that.
        asking = standing & ~(SEATED | STAYING | PASSING)
        minted = 0
        reached = 0
        try:
            for part in self._parts:
                reached += 1
                (answer,) = yield (part.acquire(token, ttl_ms, metadata, asking),)
                if isinstance(answer, Refused):
                    # Others may have been refused what was taken for a moment. Of the permits that are free
                    # in the slot that refused, a waiter that was woken tells those after it.
                    slots = reached if standing & PASSING else reached - 1
                    yield self._give_back(token, ttl_ms, slots)
                    if standing & WAITING:
                        yield [
                            other.acquire(token, ttl_ms, metadata, WAITING | BEHIND)
                            for other in self._parts
                            if other is not part
                        ]
                    return answer
                minted = max(minted, answer.fencing_token)
            others = yield [self._seal(part, token, minted, ttl_ms, standing) for part in self._parts]
            if min(others) < 0:
                yield self._give_back(token, ttl_ms, reached)
                return Refused(0, seated=False)
        except FaultError as error:
            yield self._give_back(token, ttl_ms, reached)
            raise FaultError(replace(error.fault, unknown=True)) from error
        return Granted(minted, max(others))

    def _seal(self, part: SeveralSteps, token: str, minted: int, ttl_ms: int, standing: int) -> Command[int]:
        leaving = standing & (SEATED | STAYING) == SEATED
        args = (part.number, token, str(minted), self._retention(ttl_ms))
        return Command(_SEAL, part.keys(with_bell=leaving), args, int, lane=token)

    def _give_back(self, token: str, ttl_ms: int, slots: int) -> Compensate:
        commands = [
            Command(
                _RETURN,
                part.keys(with_bell=True),
                (part.number, token, self._retention(ttl_ms)),
                released,
                lane=token,
            )
            for part in self._parts[:slots]
        ]
        return Compensate(commands, ttl_ms / 1000)

    def wanted(self) -> Wanted:
        return Wanted(tuple(lock for part in self._parts for lock in part.wanted().keys))

    def endless(self, refused: Refused) -> str:
        return endless_of_several(refused)

    def _holder(self, token: bytes, left_ms: int, lease: bytes) -> Holder | None:
        return told_lock(left_ms, lease)

    def listener(self, token: str) -> Command[int]:
        commands = [listening([part.listener(token)]) for part in self._parts]
        return self._together(commands, _told_by_all, lane=token)

    def watch(self, command: Command[Any]) -> None:
        """Each of the nodes would have to be asked for all: it is renewed as if nothing was heard."""

    def renew(self, token: str, ttl_ms: int) -> Command[Kept]:
        return self._together([part.renew(token, ttl_ms) for part in self._parts], _kept_by_all, lane=token)

    def release(
        self, token: str, ttl_ms: int, *, ring: bool = True, leave: bool = False
    ) -> Command[Released]:
        def ended(answers: list[Released]) -> Released:
            freed = all(answer.freed for answer in answers)
            thief = next((answer.thief for answer in answers if answer.thief), b"")
            rung = [bell for answer in answers for bell in answer.rung]
            return Released(freed=freed, rung=rung, thief=thief)

        commands = [part.release(token, ttl_ms, ring=ring, leave=leave) for part in self._parts]
        return self._together(commands, ended, lane=token)

    def adopt(self, old: str, new: str, ttl_ms: int, metadata: str) -> Command[int | None]:
        def adopting() -> SagaSteps[int | None]:
            minted: list[int] = []
            for part in self._parts:
                (answer,) = yield (part.adopt(old, new, ttl_ms, metadata),)
                if answer is None:
                    # The process that was first in the first slot has all of them; a name that is gone in one
                    # slot is had by nobody.
                    back = [done.adopt(new, old, ttl_ms, metadata) for done in self._parts[: len(minted)]]
                    if back:
                        yield back
                    return None
                minted.append(answer)
            return max(minted)

        return self._saga(adopting, lane=min(old, new))

    def annotate(self, token: str, metadata: str) -> Command[bool]:
        return self._together([part.annotate(token, metadata) for part in self._parts], all, lane=token)

    def owned(self, token: str) -> Command[bool]:
        return self._together([part.owned(token) for part in self._parts], all, lane=token)

    def locked(self) -> Command[bool]:
        return self._together([part.locked() for part in self._parts], any, lane="")

    def _together(
        self, commands: Sequence[Command[Any]], told: Callable[[list[Any]], Any], *, lane: str
    ) -> Command[Any]:
        def saga() -> SagaSteps[Any]:
            return told((yield commands))

        return self._saga(saga, lane=lane)

    def _saga(self, saga: Callable[[], SagaSteps[Any]], *, lane: str) -> Command[Any]:
        keys = tuple(key for part in self._parts for key in part.keys(with_bell=False))
        return SagaCommand(saga, keys, lane=lane)


def _kept_by_all(answers: Sequence[Kept]) -> Kept:
    stolen = (answer for answer in answers if isinstance(answer, Stolen))
    return next(stolen, all(answers))


def _told_by_all(answers: Sequence[Sequence[int]]) -> int:
    """The answer to a waiter that wants names in all these slots: it has to wait for each of them."""
    told = [one for (one,) in answers]
    for worst in (NOT_OURS, GONE, BELL_RUNG, NO_END):
        if worst in told:
            return worst
    longest = max(told)
    return max(ASK, longest)
