"""The programs by which three-phase locks and mutual exclusion are explained, with the locks of aiolocks.

Each tells what it does as a list of lines, and the test says which order they must have.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, RWLock, Session
from tests.adversity.tools import begin
from tests.conftest import Connect

STEP = 0.05
"""Seconds between what must have happened, and what must happen next."""


@pytest.fixture
async def sessions(connect: Connect) -> AsyncIterator[list[Session]]:
    """Three, as if of three processes."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Session(connect())) for _ in range(3)]


class Program:
    """Lines that are printed, and tasks that hold until they are told to go on."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._events: dict[str, asyncio.Event] = {}

    def may_leave(self, who: str) -> None:
        self._event(who).set()

    def _event(self, who: str) -> asyncio.Event:
        return self._events.setdefault(who, asyncio.Event())

    async def enters(self, who: str, lock: Any) -> None:
        async with lock:
            await self.is_inside(who)

    async def is_inside(self, who: str) -> None:
        self.lines.append(f"{who} in")
        await self._event(who).wait()
        self.lines.append(f"{who} out")

    @asynccontextmanager
    async def run(self, **tasks: Any) -> AsyncIterator[None]:
        """The tasks begin one after the other."""
        running = []
        for who, lock in tasks.items():
            running.append(begin(self.enters(who, lock)))
            await asyncio.sleep(STEP)
        yield
        for who in tasks:
            self.may_leave(who)
        await asyncio.wait_for(asyncio.gather(*running), 5)


async def test_program_1_readers_share_and_a_writer_is_alone(sessions: list[Session]) -> None:
    a, b, c = (RWLock(session, "phases") for session in sessions)
    program = Program()
    async with program.run(reader1=a.reader, reader2=b.reader, writer=c.writer, reader3=a.reader):
        assert program.lines == ["reader1 in", "reader2 in"]
        program.may_leave("reader1")
        program.may_leave("reader2")
        await asyncio.sleep(STEP)
        assert program.lines[2:] == ["reader1 out", "reader2 out", "writer in"]
    assert program.lines[5:] == ["writer out", "reader3 in", "reader3 out"]


async def test_program_2_a_planner_reads_beside_readers_and_writes_alone(sessions: list[Session]) -> None:
    a, b, c = (RWLock(session, "phases") for session in sessions)
    program = Program()

    async def plan() -> None:
        async with b.upgradable as lease:
            await program.is_inside("plan")
            async with lease.upgrade():
                await program.is_inside("write")
            program.lines.append("written")

    planner = begin(plan())
    await asyncio.sleep(STEP)
    async with program.run(reader1=a.reader, planner2=c.upgradable):
        assert program.lines == ["plan in", "reader1 in"]
        program.may_leave("plan")
        await asyncio.sleep(STEP)
        async with program.run(reader2=c.reader):
            assert program.lines[2:] == ["plan out"], "the upgrade waits, and a new reader for it"
            program.may_leave("reader1")
            await asyncio.sleep(STEP)
            assert program.lines[3:] == ["reader1 out", "write in"]
            program.may_leave("write")
            await asyncio.wait_for(planner, 5)
    rest = program.lines[5:]
    assert rest[:2] == ["write out", "written"]
    assert sorted(rest[2:]) == ["planner2 in", "planner2 out", "reader2 in", "reader2 out"]


async def test_program_3_a_plain_writer_hinders_no_reader_while_others_plan(sessions: list[Session]) -> None:
    """Its turn comes surely: a planner that asks after it waits for it."""
    a, b, c = (RWLock(session, "phases") for session in sessions)
    program = Program()
    tasks = {
        "planner1": b.upgradable,
        "writer": c.writer,
        "planner2": a.upgradable,
        "reader1": a.reader,
        "reader2": b.reader,
    }
    async with program.run(**tasks):
        assert program.lines == ["planner1 in", "reader1 in", "reader2 in"]
        for who in ("reader1", "reader2"):
            program.may_leave(who)
        await asyncio.sleep(STEP)
        program.may_leave("planner1")
        await asyncio.sleep(STEP)
        assert program.lines[-2:] == ["planner1 out", "writer in"]
    assert program.lines[-3:] == ["writer out", "planner2 in", "planner2 out"]


@pytest.mark.parametrize("exclusive", [True, False])
async def test_a_counter_with_a_hundred_workers(redis: Redis, exclusive: bool) -> None:
    """Each reads it, thinks, and writes one more. Without the lock, nearly all changes are lost."""
    await redis.set("counter", 0, px=60_000)
    async with Session(redis) as session:
        lock = Lock(session, "counter") if exclusive else nullcontext()

        async def work() -> None:
            async with lock:
                seen = int(await redis.get("counter") or 0)
                await asyncio.sleep(0.001)
                await redis.set("counter", seen + 1, px=60_000)

        await asyncio.gather(*(work() for _ in range(100)))
    counted = int(await redis.getdel("counter") or 0)
    assert (counted == 100) is exclusive


@pytest.mark.parametrize("exclusive", [True, False])
async def test_five_callers_of_a_slow_interface(redis: Redis, exclusive: bool) -> None:
    """One call at a time, in the order in which the tasks asked; without the lock, all at once."""
    inside = most = 0
    called: list[int] = []

    async def call(number: int) -> None:
        nonlocal inside, most
        inside, most = inside + 1, max(most, inside + 1)
        called.append(number)
        await asyncio.sleep(0.02)
        inside -= 1

    async with Session(redis) as session:
        lock = Lock(session, "interface") if exclusive else nullcontext()

        async def caller(number: int) -> None:
            async with lock:
                await call(number)

        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(caller(number) for number in range(5)))
        lasted = asyncio.get_running_loop().time() - began
    assert called == [0, 1, 2, 3, 4]
    assert most == (1 if exclusive else 5)
    assert not exclusive or lasted >= 5 * 0.02
