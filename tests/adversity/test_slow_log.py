"""No request stops a server for longer than 1 ms, as the slow log of each supported server has it.

Up to Redis 7.0, a server that tracks what a script reads remembers all keys of the script at each read in it:
a request for two hundred leases, or for a hundred waiters, took 20 ms to 50 ms there, and the suite, which
runs on the newest server, did not see it. So each test here runs on each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    Batch,
    Combiner,
    FairLock,
    Leadership,
    Limits,
    Lock,
    MultiLock,
    RangeLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
)
from tests.conftest import Surroundings, open_server
from tests.support.servers import found

pytestmark = [
    pytest.mark.whole,  # beside six others, each request takes twice as long
    pytest.mark.timeout(120),
]

LONGEST = 1000
"""Microseconds that a request may take."""
RUNS = 150
"""The server's process may be stopped at any time, on a machine that does something else as well: of so many
runs, for each sort of request the one counts in which the longest of the sort was the shortest. One is enough
on an idle machine, and on a busy one no sort is held up in each of them: so many outlast a spell of work."""
NAMES = 50
"""In one `MultiLock`: each takes 3 to 6 µs in a request."""


@dataclass(frozen=True)
class Measured:
    """A server, and its administrator, who asks how long requests took."""

    url: str
    admin: Redis

    async def longest(self, act: Callable[[], Awaitable[object]]) -> int:
        """Microseconds of the longest request while `act` goes on, each sort of request in its best run.

        A sort that one run alone had is not judged: a script goes in full, and is compiled, once, and
        what the machine did meanwhile is not known.
        """
        least: dict[bytes, int] = {}
        again: set[bytes] = set()
        for _ in range(RUNS):
            await self.admin.slowlog_reset()
            await act()
            longest: dict[bytes, int] = {}
            for entry in await self.admin.slowlog_get(100_000):
                if not entry["command"].startswith((b"SLOWLOG", b"CONFIG", b"SCRIPT")):
                    sort = sort_of(entry["command"])
                    longest[sort] = max(longest.get(sort, 0), entry["duration"])
            again |= longest.keys() & least.keys()
            least |= {sort: min(took, least.get(sort, took)) for sort, took in longest.items()}
            if again and max(least[sort] for sort in again) <= LONGEST:
                break
        assert any(sort.startswith(b"EVAL") for sort in again)  # something was asked
        return max(least[sort] for sort in again)


def sort_of(command: bytes) -> bytes:
    """The command, the script and the number of its keys: requests that are alike take equally long."""
    words = command.split(b" ")
    return b" ".join(words[: 3 if words[0] == b"EVALSHA" else 2]) if words[0] != b"EVAL" else command[:100]


@pytest.fixture(params=["redis-6.2", "redis-7.0", "valkey-9"])
async def measured(request: pytest.FixtureRequest, surroundings: Surroundings) -> AsyncIterator[Measured]:
    """One server of each kind, whichever the suite runs on."""
    kind = next((kind for kind in found() if kind.name.startswith(request.param)), None)
    if kind is None:
        pytest.skip(f"there is no {request.param} here")
    assert kind.executable is not None
    server = await open_server(surroundings, kind.executable)
    async with server.client() as admin:
        await admin.config_set("slowlog-log-slower-than", 0)  # each, to know of all sorts
        await admin.config_set("slowlog-max-len", 100_000)
        yield Measured(server.url, admin)


@asynccontextmanager
async def a_session(measured: Measured) -> AsyncIterator[Session]:
    async with (
        Redis.from_url(measured.url, protocol=3) as client,
        Session(client, wakeup="tracking") as session,
    ):
        yield session


async def hold(stack: AsyncExitStack, locks: Sequence[Any]) -> None:
    for lock in locks:
        await stack.enter_async_context(lock)


def of_each_kind(source: Session, name: str, **options: Any) -> list[Any]:
    """One lock of each kind that can be waited for."""
    return [
        Lock(source, name, **options),
        ReentrantLock(source, f"{name}.r", **options),
        FairLock(source, name, **options),
        Semaphore(source, name, 1, **options),
        Limits(source, name, {"all": 1, "tenant": 1}, **options),
        RWLock(source, name, **options).writer,
        RangeLock(source, name, **options).writer(0, 10),
        Leadership(source, name, **options),
        MultiLock(source, [f"{name}.{number}" for number in range(5)], **options),
    ]


async def test_renewals_of_many_leases(measured) -> None:
    async with a_session(measured) as session, AsyncExitStack() as stack:
        await hold(stack, [Lock(session, f"{number}", ttl=1.5) for number in range(300)])
        before = session.statistics().commands_sent

        assert await measured.longest(lambda: asyncio.sleep(0.6)) <= LONGEST

        assert session.statistics().commands_sent - before >= 2 * 30  # with CACHING YES


async def test_renewals_of_leases_of_each_kind(measured) -> None:
    async with a_session(measured) as session, AsyncExitStack() as stack:
        for number in range(10):
            await hold(stack, of_each_kind(session, f"{number}", ttl=1.5))

        assert await measured.longest(lambda: asyncio.sleep(0.6)) <= LONGEST


async def test_renewals_of_a_multilock_of_many_names(measured) -> None:
    async with a_session(measured) as session:
        async with MultiLock(session, [f"{number}" for number in range(NAMES)], ttl=1.5):
            assert await measured.longest(lambda: asyncio.sleep(0.6)) <= LONGEST


async def test_listening_for_waiters_of_each_kind(measured) -> None:
    await longest_while_waiting(measured, of_each_kind, names=8)


async def test_listening_for_many_readers(measured) -> None:
    def reader(source: Session, name: str, **options: Any) -> list[Any]:
        lock = RWLock(source, name, **options)
        return [lock.writer if options else lock.reader]

    await longest_while_waiting(measured, reader, names=40)


async def longest_while_waiting(measured: Measured, kinds: Callable[..., list[Any]], *, names: int) -> None:
    async def wait(lock: Any) -> None:
        async with lock:
            pytest.fail("somebody else holds it")

    async with a_session(measured) as holder, a_session(measured) as session, AsyncExitStack() as stack:
        for number in range(names):
            await hold(stack, kinds(holder, f"{number}", ttl=60))
        locks = [lock for number in range(names) for lock in kinds(session, f"{number}")]
        waiting = [asyncio.create_task(wait(lock)) for lock in locks]
        await asyncio.sleep(1.4)  # each has listened once by itself, and all of them together
        assert session.statistics().waiters == len(waiting)

        assert await measured.longest(lambda: asyncio.sleep(0.7)) <= LONGEST

        for task in waiting:
            task.cancel()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended)


async def test_an_operator_who_looks_at_all_names(measured) -> None:
    async with a_session(measured) as session, AsyncExitStack() as stack:
        for number in range(5):
            await hold(stack, of_each_kind(session, f"{number}", ttl=60))
        await hold(stack, [RWLock(session, f"document:{number}", ttl=60).reader for number in range(40)])
        await session.inspect("*")  # the scripts are known from now on

        async def look() -> None:
            assert len(await session.inspect("*")) >= 40 + 5 * 9
            assert await session.deadlocks() == []

        assert await measured.longest(look) <= LONGEST


@pytest.mark.leaves_keys("aiolocks:combiner*")
@pytest.mark.parametrize("size", [10, 1000])
async def test_a_combiner_with_a_thousand_items_that_wait(measured, size) -> None:
    numbers: list[int] = []

    async def run(batch: Batch) -> None:
        numbers.append(len(batch))
        batch.results = [item["number"] for item in batch.items]

    async with a_session(measured) as here, a_session(measured) as there:

        async def combine() -> None:
            numbers.clear()
            items = [{"number": number, "text": "x" * size} for number in range(1000)]
            combiners = [Combiner(session, "a", most=400, window=0.2) for session in (here, there)]
            left = [combiners[0].leave(item) for item in items]
            waiting = [combiners[item["number"] % 2].submit(item, run) for item in items[:200]]
            answers = await asyncio.gather(*left, *waiting)
            assert answers[1000:] == [*range(200)]

        await combine()  # the scripts are known from now on
        assert await measured.longest(combine) <= LONGEST
        assert sum(numbers) == 1200
        assert len(numbers) >= 3


async def test_a_request_that_takes_longer_is_told_whatever_else_is_asked(measured) -> None:
    """Each time it is asked, as those that the tests above are about."""
    script = "local sum = 0 for number = 1, tonumber(ARGV[1]) do sum = sum + number end return sum"

    async def ask() -> None:
        for rounds in (1, 1_000_000, 1):
            await measured.admin.eval(script, 0, rounds)

    assert await measured.longest(ask) > LONGEST
