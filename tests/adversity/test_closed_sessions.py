"""A session that is closed is no outage: whatever goes on by itself ends at once, and says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Never

import pytest

from aiolocks import (
    FairLock,
    Leadership,
    Limits,
    Lock,
    LockLostError,
    Schedule,
    Session,
    SessionClosedError,
    SingleFlight,
    Term,
    Tick,
    UniqueJob,
)
from aiolocks.testing import EmbeddedServer
from tests.adversity.tools import begin, elapsed
from tests.conftest import Connect, OwnServer

pytestmark = pytest.mark.leaves_keys

DAY = 24 * 3600.0
AT_ONCE = 5.0
"""Seconds: closing waits for a second for a server that is silent, and a busy machine may stand still."""


async def never(*_: object) -> Never:
    await asyncio.sleep(DAY)
    raise AssertionError


def kept(session: Session, **arguments: Any) -> Schedule:
    schedule = Schedule(session, "kept", **arguments)

    @schedule
    async def job(_: Tick) -> None:
        await asyncio.sleep(0)

    return schedule


async def triggered(session: Session) -> None:
    """A second run waits for the first one."""
    schedule = Schedule(session, "queued", every=DAY, overlap="queue")

    @schedule
    async def job(_: Tick) -> None:
        await never()

    running = begin(schedule.trigger())
    await asyncio.sleep(0.1)
    await schedule.trigger()
    await running


def guarded(session: Session) -> Awaitable[object]:
    """The tick is due in 20 s."""
    return Schedule(session, "guarded", every=(time.time() + 20) / 10).guard(never)()


async def rests(session: Session) -> None:
    async def main(term: Term) -> None:
        await term.step_down(cool_down=DAY)

    await Leadership(session, "rests").run(main)


async def observes(session: Session) -> None:
    async for _ in Leadership(session, "held").observe():
        pass


async def works(session: Session) -> None:
    async with UniqueJob(session, "job").run():
        await never()


def flies(session: Session) -> Awaitable[object]:
    return SingleFlight(session).do("flight", never)


WAYS: dict[str, Callable[[Session], Awaitable[object]]] = {
    "Schedule.run": lambda session: kept(session, every=0.1).run(),
    "Schedule.run, far from its tick": lambda session: kept(session, every=DAY).run(),
    "Schedule.trigger": triggered,
    "Schedule.guard": guarded,
    "Leadership.run, waiting": lambda session: Leadership(session, "held").run(never),
    "Leadership.run, leading": lambda session: Leadership(session, "free").run(never),
    "Leadership.run, resting": rests,
    "Leadership.observe": observes,
    "SingleFlight.do": flies,
    "Limits": lambda session: Limits(session, "limits", {"a": 1}).acquire(),
    "FairLock": lambda session: FairLock(session, "fair").acquire(),
    "UniqueJob.run": works,
}


@asynccontextmanager
async def held_elsewhere(client: Any) -> AsyncIterator[None]:
    async with (
        Session(client) as session,
        Leadership(session, "held", ttl=60),
        Limits(session, "limits", {"a": 1}, ttl=60),
        FairLock(session, "fair", ttl=60),
    ):
        yield


@pytest.mark.parametrize("wakeup", ["auto", "poll"])
async def test_t_c_15_whatever_goes_on_by_itself_ends_with_its_session(
    own_server: OwnServer, connect: Connect, caplog: pytest.LogCaptureFixture, wakeup: Any
) -> None:
    server = await own_server()
    async with held_elsewhere(connect(server)):
        await _end(server, lambda: Session(connect(server), wakeup=wakeup))
    assert "cannot" not in caplog.text


async def test_t_c_15_it_ends_with_its_session_also_while_the_server_is_silent(
    own_server: OwnServer, connect: Connect
) -> None:
    server = await own_server()
    async with held_elsewhere(connect(server)):
        await _end(server, lambda: Session(connect(server), command_timeout=1), silent=True)


async def _end(server: EmbeddedServer, open_session: Callable[[], Session], *, silent: bool = False) -> None:
    """All ways at once, each in a session of its own."""
    goes_on: list[str] = []

    async def run(session: Session, way: Callable[[Session], Awaitable[object]]) -> None:
        await way(session)

    async def close(session: Session, running: asyncio.Task[None], name: str) -> None:
        await session.aclose()
        await asyncio.wait({running}, timeout=AT_ONCE)
        if not running.done():
            goes_on.append(name)

    sessions = {name: open_session() for name in WAYS}
    tasks = {name: begin(run(sessions[name], way)) for name, way in WAYS.items()}
    await asyncio.sleep(0.4)
    assert [name for name, running in tasks.items() if running.done()] == []
    if silent:
        server.pause()
        await asyncio.sleep(0.3)
    try:
        with elapsed() as took:
            await asyncio.gather(*(close(sessions[name], tasks[name], name) for name in WAYS))
    finally:
        if silent:
            server.resume()
    for running in tasks.values():
        running.cancel()
    await asyncio.wait(tasks.values())
    assert goes_on == []
    assert took.seconds < AT_ONCE
    for running in tasks.values():
        with pytest.raises((SessionClosedError, LockLostError)):
            await running


async def test_a_question_to_a_closed_session_says_so(connect: Connect) -> None:
    """Also one that passes no check before it is sent: nobody takes it for an outage."""
    session = Session(connect())
    lock = Lock(session, "a")
    await (await lock.acquire()).release()
    binding = lock._binding
    assert binding is not None
    await session.aclose()
    for ask in (binding.try_acquire, lambda: binding.acquire(None)):
        with pytest.raises(SessionClosedError, match="the session is closed"):
            await ask()
