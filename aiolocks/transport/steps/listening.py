"""Listening: a session says that its waiters live, and is told for how long they need not ask."""

from __future__ import annotations

import functools
import json
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, final

from ..answers import BELL_RUNG, BELL_TTL_MS, FAR_BELL_TTL_MS, GONE, NO_END, QUEUE_TTL_MS
from ..keys import slot_of
from ..request import Argument, Request, Script

_TRY: Final = Script("bell_try", moves=True)
_TRY_TTL_MS: Final = 1000
_LISTEN: Final = Script("waiters_listen", "forms", "bells", "fence", "listening", moves=True)

_MOST_KEYS: Final = 48
"""Keys of the waiters in one request, unless it is for one waiter: at most 0.5 ms of the server's time, in
which it answers no other client. Up to Redis 7.0, a server remembers all bells of the request at each read in
it: with a hundred bells it took 3 ms for a `Lock`, and 33 ms for an `RWLock`."""

NEAR: Final = 32
"""Waiters at the front of a queue that show at short intervals that they live: with tracking, so many send
107 commands a second, and a thousand would send 3 300."""


@functools.cache
def whereabouts(pid: int) -> str:
    """The host and that process of it: the first fields of the JSON that stands beside leases and bells."""
    return f'"host":{json.dumps(socket.gethostname())},"pid":{pid}'


@final
class Listener(NamedTuple):
    """One waiter, or several that share a bell without seats of their own.

    Attributes:
        bell: The key that is deleted to wake it.
        queues: Where it stands.
        seat: The part after the bell in the entry of a queue; empty in the queues of simple locks.
        owner: The owner whose locks are not in its way; empty: there is none.
        locks: Keys of which one at least excludes it.
        deadlines: Sorted sets, by deadline, of holders and waiters that may exclude it.
        marks: Its other keys on the server; first a sorted set of bells by deadline.
        beside: Keys that last as long as its queues, and are there while it waits.
        marks_ms: How long the marks last.
    """

    bell: bytes
    queues: tuple[bytes, ...]
    seat: str = ""
    owner: str = ""
    locks: tuple[bytes, ...] = ()
    deadlines: tuple[bytes, ...] = ()
    marks: tuple[bytes, ...] = ()
    beside: tuple[bytes, ...] = ()
    marks_ms: int = 0

    @property
    def _others(self) -> tuple[tuple[bytes, ...], ...]:
        return (self.queues, self.locks, self.deadlines, self.marks, self.beside)

    @property
    def keys(self) -> int:
        """How many keys are its part of the request."""
        return 1 + sum(map(len, self._others))

    def words(self) -> tuple[Argument, ...]:
        """Its part of the request."""
        keys = self._others
        return (
            self.seat,
            self.owner,
            *map(len, keys),
            self.marks_ms,
            *(key for each in keys for key in each),
        )


def listening(
    listeners: Sequence[Listener], *, first: bool = False, near: int | None = None
) -> Request[Sequence[int]]:
    """One request for all of them, which are in one slot; the answers in the same order.

    `first` right after the refusal: no card is left beside the bell, for a short wait is to cost none. Of how
    many waiters at the front of each queue the bell lasts for `BELL_TTL` only: `near`; None: of all. Behind
    the answers come the numbers of the listeners that stand further back, from 1 on.
    """
    card = "" if first else f"{{{whereabouts(os.getpid())}}}"
    bells = tuple(listener.bell for listener in listeners)
    front = "" if near is None else near
    args: tuple[Argument, ...] = (BELL_TTL_MS, QUEUE_TTL_MS, card, front, FAR_BELL_TTL_MS)
    for listener in listeners:
        args += listener.words()
    return Request(_LISTEN, bells, args, _numbers, bells=bells)


def hanging(bell: bytes, lane: str = "") -> Request[int]:
    """Whether the bell hangs (`NO_END`), was rung, or is gone; the server tells of its next change."""
    return Request(None, (bell,), ("GET", bell), _state, lane=lane, bells=(bell,))


def one_request_each(listeners: Sequence[Listener], *, by_slot: bool) -> Iterator[Sequence[Listener]]:
    """The listeners by request, of one slot where that counts.

    A request has at most `_MOST_KEYS` keys, unless it is for one waiter: requests behind it wait for it.
    """
    slots: dict[int, list[Listener]] = {}
    for listener in listeners:
        slots.setdefault(slot_of(listener.bell) if by_slot else 0, []).append(listener)
    for of_slot in slots.values():
        together: list[Listener] = []
        keys = 0
        for listener in of_slot:
            keys += listener.keys
            if together and keys > _MOST_KEYS:
                yield together
                together, keys = [], listener.keys
            together.append(listener)
        yield together


def trial(bell: bytes) -> Request[int]:
    """Rings that bell, which no waiter has, to see if the server tells; also where it is out of memory."""
    return Request(_TRY, (bell,), (_TRY_TTL_MS,), int)


def _state(raw: Any) -> int:
    if raw == b"":
        return NO_END
    return GONE if raw is None else BELL_RUNG


def _numbers(raw: Any) -> Sequence[int]:
    numbers: Sequence[int] = [int(number) for number in raw]
    return numbers
