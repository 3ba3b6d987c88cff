"""A server that is the test itself, and a clock that moves only when there is nothing else to do."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, ReadOnlyError

from aiolocks import Lease, LeaseState, Lock, Session
from aiolocks.lock.lease import Possession
from aiolocks.transport import Proof, Request, clocks, faults
from aiolocks.transport.driver import Address

NO_WAKEUPS = {"local": 0, "tracking": 0, "keyspace": 0, "poll": 0}


class VirtualClock:
    """The time of an event loop that never waits: where it would sleep, its clock is set on instead."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Any = loop
        self._now = float(math.ceil(loop.time()))

    @contextmanager
    def installed(self) -> Iterator[None]:
        self._poll = self._loop._selector.select
        with (
            patch.object(self._loop, "time", self.now),
            patch.object(clocks, "steady", self.now),
            patch.object(self._loop._selector, "select", self._select),
        ):
            yield

    def now(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        """Time passes in which the loop does nothing, as if it were blocked."""
        self._now += seconds

    def _select(self, timeout: float | None) -> Any:
        ready = self._poll(0)
        if ready or timeout == 0:
            return ready
        if timeout is not None:
            self._now += timeout
            return ready
        if ready := self._poll(5):  # another thread may have something to say
            return ready
        raise RuntimeError("everything waits, and no timer is set")


class FakeTable:
    """The table of slots that each node of a cluster tells: the first and the last slot, and their node."""

    seeds = (("seed", 0),)

    def __init__(self, *rows: tuple[int, int, Address]) -> None:
        self.asked = 0
        self._rows = rows

    def connector(self, _: Address) -> FakeTable:
        return self

    async def cluster_table(self) -> Any:
        self.asked += 1
        return [[first, last, [host.encode(), port]] for first, last, (host, port) in self._rows], None

    def address(self, host: str, port: int) -> Address:
        return host, port


class FakeTransport:
    """Implements `Transport`: keeps what was sent, for the test to answer.

    Like the real ones it ends a call whose time has passed, and writes nothing while there is no connection.

    A refusal is followed by a request to listen. Unless `listening` is set, the test sees none of these, and
    nobody answers them; and a seat that is taken is had at once.
    """

    by_slot = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.connected = True
        self.hears = False
        self.way = "keyspace"
        self.outage_told = False
        self.on_rung: Callable[[str, Iterable[bytes] | None], None] = lambda way, bells: None
        self.listening = False  # the test answers those, and requests for a seat, itself
        self.ignored_bells: list[bytes] = []
        self.bell = b""  # the last that was listened for
        self._timers: list[asyncio.TimerHandle] = []  # that end calls
        self.answer: Callable[[str], Any] | None = None  # answers by itself, a turn of the loop later
        self.sent: list[Request[Any]] = []
        self.at_once: list[Request[Any]] = []
        self.closed = False
        self.lateness = 0.0  # with which it ends a call whose time has passed
        self.kept: set[Possession] = set()  # so that none is collected unreleased when its test ends
        self._loop = loop
        self._untaken: asyncio.Queue[Request[Any]] = asyncio.Queue()

    # -- what the core sees

    @property
    def commands_sent(self) -> int:
        return len(self.sent)

    def send(self, call: Request[Any], *, at_once: bool = False, corked: bool = False) -> None:
        if not self.listening and self._answered_by_itself(call):
            return
        self.sent.append(call)
        if at_once:
            self.at_once.append(call)
        if self.connected:
            self.write(call)
        self._timers.append(self._loop.call_at(call.until + self.lateness, self._expire, call))
        if self.answer is not None:
            self._loop.call_soon(call.reply, self.answer(verb(call)))
        else:
            self._untaken.put_nowait(call)

    def _answered_by_itself(self, call: Request[Any]) -> bool:
        self.bell = next(iter(call.bells), self.bell)
        if verb(call) == "sit":
            self._loop.call_soon(call.reply, [0, 20_000])
        if verb(call) == "waits_publish":
            self._loop.call_soon(call.reply, [])
        return verb(call) in ("listen", "sit", "waits_publish")

    def prove(self, proof: Proof) -> None:
        raise NotImplementedError

    def arm(self, bell: bytes) -> None:
        pass

    def ignore_bell(self, bell: bytes) -> None:
        self.ignored_bells.append(bell)

    def forget(self, call: Request[Any]) -> bool:
        call.done = True
        return call.written or call.unconfirmed

    def rest(self) -> bool:
        return True

    async def aclose(self, grace: float) -> None:
        self.closed = True

    def _expire(self, call: Request[Any]) -> None:
        call.fault(faults.unanswered(None))

    # -- what the test does

    def write(self, call: Request[Any]) -> None:
        """Writes it now, as a connection that has just come about does with what waited for it."""
        call.words()  # made again, where it depends on when
        call.written = True
        call.sent = self._loop.time()

    def remember_nothing(self) -> None:
        """Keeps nothing of what was sent, and of what came of it."""
        self.sent.clear()
        self.at_once.clear()
        self.kept.clear()
        while not self._untaken.empty():
            self._untaken.get_nowait()
        for timer in self._timers:
            timer.cancel()
        self._loop._scheduled = [timer for timer in self._loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        heapq.heapify(self._loop._scheduled)  # type: ignore[attr-defined]

    async def asked(self, expected: str) -> Request[Any]:
        """The next request, which must be this one; waits for it."""
        call = await self._untaken.get()
        assert verb(call) == expected, f"asked to {verb(call)}, not to {expected}"
        return call

    @property
    def unasked(self) -> list[str]:
        """The requests beyond those that the test has taken."""
        return [verb(call) for call in list(self._untaken._queue)]  # type: ignore[attr-defined]

    @property
    def verbs(self) -> list[str]:
        return [verb(call) for call in self.sent]


def verb(call: Request[Any]) -> str:
    """Its script, in short; "sit" for an acquire that is to take a seat only."""
    if call.alone:
        return "sit"
    if call.script is None:
        return str(call.words()[0])
    return call.script.name.removeprefix("lock_").removeprefix("queue_").removeprefix("waiters_")


def grant(call: Request[Any], fencing_token: int = 17, *, others: int = 0) -> None:
    call.reply([1, str(fencing_token).encode(), others])


def let_go(call: Request[Any], *, freed: bool = True, rung: bytes | None = None) -> None:
    call.reply([int(freed), *([] if rung is None else [rung])])


def refuse(call: Request[Any], remaining_ms: int = 20_000) -> None:
    call.reply([0, remaining_ms])


def cut(call: Request[Any]) -> None:
    """The connection broke: whether the request was executed, nobody knows."""
    call.fault(faults.unreachable(RedisConnectionError("cut")))


def demoted(call: Request[Any]) -> None:
    """Refused, but perhaps not a moment later."""
    call.fault(faults.refused(ReadOnlyError("You can't write against a read only replica.")))


def deny(call: Request[Any]) -> None:
    """Refused for good."""
    call.fault(faults.refused(NoPermissionError("this user has no permissions")))


def generous(asked: str) -> Any:
    """Answers as a server on which nothing is ever held by others."""
    return {"acquire": [1, b"17", 0], "release": [1], "adopt": b"17"}.get(asked, 1)


async def hold(session: Session, transport: FakeTransport, name: str = "name", **options: Any) -> Lease:
    """A lease, granted at once."""
    acquiring = asyncio.create_task(Lock(session, name, **options).acquire())
    grant(await transport.asked("acquire"))
    return await acquiring


async def lose(lease: Lease, transport: FakeTransport) -> None:
    """By the server's word, at the next renewal."""
    (await transport.asked("renew")).reply(0)
    assert lease.state is LeaseState.LOST


def releasing(lease: Lease) -> asyncio.Task[None]:
    return asyncio.create_task(lease.release())


def dependable(ttl: float) -> Any:
    """The part of a ttl on which a holder may rely, by the contract: less 1 % and 2 ms."""
    return pytest.approx(ttl * 0.99 - 0.002)


async def turns(count: int = 5) -> None:
    """Lets everything run that is ready, and what that makes ready; no time passes."""
    for _ in range(count):
        await asyncio.sleep(0)
