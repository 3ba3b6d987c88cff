"""The grants of each kind of lock, in plain Python without I/O: the contract as a program.

A model knows who holds what until when, by the server's clock, and who waits. It answers what the server must
answer: whether an acquire made now is granted, whether a lease is still held, who has to get in next. A test
drives a lock and its model side by side, and any difference is an error in one of them.

Leases are numbers of the test's choosing. Time stands still until `advance`.

Where the contract leaves open what is granted, a model answers None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tests.support.history import Mode


@dataclass(frozen=True, kw_only=True, slots=True)
class Want:
    """The request of one acquire. An option that a kind does not know stays as it is.

    Attributes:
        names: The names that a `MultiLock` takes at once; of one plain lock, its only name.
        owner: The owner that may hold it several times; None for a lock that is not reentrant.
        permits: How many of a semaphore.
        mode: A lock without modes is a writer.
        low: Left end of the interval, included.
        high: Right end of the interval; whether it is included depends on the lock's bounds.
        within: The lease that this one is an upgrade of.
    """

    names: frozenset[str] = frozenset({""})
    owner: str | None = None
    permits: int = 1
    mode: Mode = "writer"
    low: float = -math.inf
    high: float = math.inf
    within: int | None = None


@dataclass(slots=True)
class Held:
    """The hold of one lease, and until when."""

    want: Want
    until: float


class Model:
    """The holders and the waiters of each name.

    Attributes:
        now: The server's clock.
        held: By lease; what has expired is gone.
        waiting: By waiter, in the order in which they came.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.held: dict[int, Held] = {}
        self.waiting: dict[int, Want] = {}

    # -- what a kind decides

    def fits(self, want: Want) -> bool:
        """Whether those who hold leave room for it."""
        raise NotImplementedError

    def admits(self, want: Want) -> bool | None:
        """Whether a try now, by somebody who does not wait, is granted."""
        return self.fits(want)

    def due(self) -> set[int]:
        """Those who wait and have a right to get in now: as long as there are any, somebody must."""
        return {waiter for waiter, want in self.waiting.items() if self.fits(want)}

    def allowed(self) -> set[int]:
        """Those who wait and may get in now: those who are due, and whom the contract does not keep out."""
        return self.due()

    # -- holding

    def grant(self, lease: int, want: Want, ttl: float) -> None:
        self.held[lease] = Held(want, self.now + ttl)

    def holds(self, lease: int) -> bool:
        return lease in self.held

    def extend(self, lease: int, ttl: float) -> bool:
        """Whether it was there to be extended."""
        if lease not in self.held:
            return False
        self.held[lease].until = self.now + ttl
        return True

    def release(self, lease: int) -> bool:
        """Whether it was there to be released."""
        return self.held.pop(lease, None) is not None

    def adopt(self, lease: int, by: int, ttl: float) -> bool:
        """Whether it was there to be taken up, as lease `by`, for `ttl` from now on."""
        if lease not in self.held:
            return False
        want = self.held.pop(lease).want
        self.held[by] = Held(want, self.now + ttl)
        return True

    def advance(self, seconds: float) -> None:
        """The server's clock moves on, and what has expired is no more."""
        self.now += seconds
        for lease in [lease for lease, held in self.held.items() if held.until <= self.now]:
            self.expire(lease)

    def expire(self, lease: int) -> None:
        """Its holder has died, and its time is over."""
        self.release(lease)

    # -- waiting

    def wait(self, waiter: int, want: Want, session: int | None = None) -> None:
        """Stands at the end of the queue; with others that want the same in its session, if that is told."""
        self.waiting[waiter] = want

    def leave(self, waiter: int) -> None:
        """Has timed out, was cancelled, or has died."""
        self.waiting.pop(waiter, None)

    def enter(self, waiter: int, ttl: float) -> None:
        """Gets in, with its number for a lease."""
        self.grant(waiter, self.waiting.pop(waiter), ttl)


class NamesModel(Model):
    """`Lock`, `ReentrantLock` and `MultiLock`: they exclude each other in one space of names.

    A lease with an owner lets the same owner in again. Each of them lasts for itself: one that ends shortens
    none of the others.
    """

    def fits(self, want: Want) -> bool:
        return all(
            want.names.isdisjoint(held.want.names) or self._is_entered_again(held.want, want)
            for held in self.held.values()
        )

    def depth(self, owner: str, names: frozenset[str]) -> int:
        """How many leases the owner has."""
        wants = [held.want for held in self.held.values()]
        return sum(want.owner == owner and want.names == names for want in wants)

    @staticmethod
    def _is_entered_again(held: Want, want: Want) -> bool:
        return want.owner is not None and held.owner == want.owner


class SemaphoreModel(Model):
    """`Semaphore`: permits, by lease; the value it was first made with, and the one that counts now."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self.first = value
        self.value = value

    @property
    def out(self) -> int:
        return sum(held.want.permits for held in self.held.values())

    @property
    def available(self) -> int:
        return max(0, self.value - self.out)  # more may be out than a smaller value allows

    def fits(self, want: Want) -> bool:
        return self.out + want.permits <= self.value

    def resize(self, value: int) -> None:
        """Nobody is put out; it lasts until enough have gone."""
        self.value = value

    def remake(self, value: int) -> None:
        """Where nobody holds or waits: with another first value; one that was resized stays so."""
        if self.value == self.first:
            self.value = value
        self.first = value


class FairModel(SemaphoreModel):
    """`FairLock` and fair `Semaphore`: first come, first served, also where a later one would fit."""

    def __init__(self, value: int = 1) -> None:
        super().__init__(value)

    def admits(self, want: Want) -> bool:
        return not self.waiting and self.fits(want)

    def due(self) -> set[int]:
        first = next(iter(self.waiting), None)
        return {first} if first is not None and self.fits(self.waiting[first]) else set()


class RangesModel(Model):
    """`RangeLock`; and `RWLock`, whose intervals are all the whole line.

    Writers and upgradables enter in the order of asking, where their intervals overlap. A writer that waits
    keeps new readers out while nothing but readers is in its way. A reader that has waited while a writer was
    inside passes writers that wait, and no plain writer enters before it.

    Of the waiters of one session that want the same, the first has asked; when it gets in, the next one asks.

    Args:
        closed: Whether the right ends belong to the intervals, as with bounds `"[]"`.
    """

    def __init__(self, *, closed: bool = False) -> None:
        super().__init__()
        self.closed = closed
        self.passing: set[int] = set()  # readers that have waited for a writer inside
        self.asked: list[int] = []  # waiters, in the order of asking
        self.sessions: dict[int, int | None] = {}

    # -- rules

    def overlap(self, one: Want, other: Want) -> bool:
        if self.closed:
            return one.low <= other.high and other.low <= one.high
        return one.low < other.high and other.low < one.high

    def share(self, one: Mode, other: Mode) -> bool:
        """Readers share, and one upgradable lives beside them."""
        return "writer" not in {one, other} and "reader" in {one, other}

    def fits(self, want: Want) -> bool:
        return not any(self._conflict(want, lease, held.want) for lease, held in self.held.items())

    def _conflict(self, want: Want, lease: int, held: Want) -> bool:
        return want.within != lease and self.overlap(want, held) and not self.share(want.mode, held.mode)

    def admits(self, want: Want) -> bool | None:
        if not self.fits(want):
            return False
        if want.mode == "reader":
            return not self.reserved(want)
        if want.within is not None:
            return not self._kept_by_turn(want) or None  # of these, those alone that were called
        return not self.behind(want) and not (want.mode == "writer" and self._kept_by_turn(want))

    def due(self) -> set[int]:
        return {waiter for waiter in super().due() if self._has_its_turn(waiter, self.waiting[waiter])}

    def allowed(self) -> set[int]:
        return self.due() | {
            waiter for waiter in super().due() if self._may_pass(waiter, self.waiting[waiter])
        }

    def _has_its_turn(self, waiter: int, want: Want) -> bool:
        if waiter not in self.asked:
            return False
        if want.mode == "reader":
            return waiter in self.passing or not self.reserved(want)
        if want.mode == "writer" and self._kept_by_turn(want):
            return False
        return want.within is not None or not self.behind(want, waiter)

    def _may_pass(self, waiter: int, want: Want) -> bool:
        """Readers of one session come along, and what is reserved behind a reader need not keep it out."""
        if want.mode == "reader":
            return waiter not in self.asked or not self.reserved(want, waiter)
        return waiter in self.asked and (want.within is not None or not self.behind(want, waiter))

    def behind(self, want: Want, waiter: int | None = None) -> bool:
        """Whether a writer or an upgradable waits for a part of it that has asked before this waiter."""
        return any(self._is_in_order(self.waiting[other], want) for other in self._before(waiter))

    def _is_in_order(self, other: Want, want: Want) -> bool:
        return other.mode != "reader" and other.within is None and self.overlap(want, other)

    def _before(self, waiter: int | None) -> list[int]:
        return self.asked if waiter not in self.asked else self.asked[: self.asked.index(waiter)]

    def reserved(self, want: Want, waiter: int | None = None) -> bool:
        """Whether a writer keeps new readers out of it, or one that has asked before this waiter."""
        return any(
            self.overlap(want, self.waiting[other]) and self.keeps_readers_out(other)
            for other in self._before(waiter)
            if self.waiting[other].mode == "writer"
        )

    def keeps_readers_out(self, writer: int) -> bool:
        """Whether nothing but readers is in the way of this writer that waits."""
        want = self.waiting[writer]
        if want.within is not None:
            return True
        inside = (held.want for held in self.held.values() if held.want.mode != "reader")
        return not self.behind(want, writer) and not any(self.overlap(want, held) for held in inside)

    def _kept_by_turn(self, want: Want) -> bool:
        return any(self.overlap(want, self.waiting[reader]) for reader in self.passing)

    # -- steps

    def grant(self, lease: int, want: Want, ttl: float) -> None:
        super().grant(lease, want, ttl)
        if want.mode == "writer":
            self.passing |= self._readers_behind(want)

    def wait(self, waiter: int, want: Want, session: int | None = None) -> None:
        super().wait(waiter, want)
        self.sessions[waiter] = session
        if self._first_of_its_session(waiter):
            self.asked.append(waiter)
        if want.mode == "reader" and any(
            held.want.mode == "writer" and self.overlap(want, held.want) for held in self.held.values()
        ):
            self.passing.add(waiter)

    def _first_of_its_session(self, waiter: int) -> bool:
        return self.sessions[waiter] is None or not any(
            self.sessions[other] == self.sessions[waiter] and self.waiting[other] == self.waiting[waiter]
            for other in self.asked
        )

    def enter(self, waiter: int, ttl: float) -> None:
        self._forget(waiter)
        super().enter(waiter, ttl)
        self._next_asks(len(self.asked))

    def leave(self, waiter: int) -> None:
        """The next one of its session has its place."""
        place = self.asked.index(waiter) if waiter in self.asked else len(self.asked)
        self._forget(waiter)
        super().leave(waiter)
        self._next_asks(place)

    def _next_asks(self, place: int) -> None:
        for waiter in self.waiting:
            if waiter not in self.asked and self._first_of_its_session(waiter):
                self.asked.insert(place, waiter)

    def downgrade(self, lease: int) -> bool:
        """A writer becomes a reader, without a gap."""
        held = self.held.get(lease)
        if held is None:
            return False
        held.want = replace(held.want, mode="reader")
        return True

    def shrink(self, lease: int, low: float, high: float) -> bool:
        """Gives back all but a part."""
        held = self.held.get(lease)
        if held is None:
            return False
        held.want = replace(held.want, low=low, high=high)
        return True

    def _readers_behind(self, writer: Want) -> set[int]:
        return {
            waiter
            for waiter, want in self.waiting.items()
            if want.mode == "reader" and self.overlap(want, writer)
        }

    def _forget(self, waiter: int) -> None:
        self.passing.discard(waiter)
        if waiter in self.asked:
            self.asked.remove(waiter)


def broken(model: type[Model], **rules: Any) -> Any:
    """The model with some of its rules replaced: for showing that a test would notice."""
    return type(f"Broken{model.__name__}", (model,), rules)


def grants(model: Model, wants: Iterable[Want], *, ttl: float = 60.0) -> list[bool]:
    """Try one after the other, and say which were granted."""
    answers = []
    for lease, want in enumerate(wants, start=len(model.held) + 1):
        granted = bool(model.admits(want))
        if granted:
            model.grant(lease, want, ttl)
        answers.append(granted)
    return answers
