"""Contexts and the ends of programs, of what is no kind of lock by itself."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
import weakref
from contextvars import ContextVar
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, LockEvent, LockTimeoutError, Schedule, Session, SingleFlight, Tick
from aiolocks.contrib.redis_py import Lock as DropIn
from tests.support.servers import Server
from tests.support.waiting import eventually, sleeps

_request: ContextVar[Any] = ContextVar("request", default=None)
_id: ContextVar[str] = ContextVar("id", default="none")


class Request:
    """What a framework knows of a request."""


async def within(number: str, work: Any) -> Any:
    async def request() -> Any:
        _id.set(number)
        return await work()

    return await asyncio.create_task(request())


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []

    def note(record: logging.LogRecord) -> bool:
        lines.append((record.getMessage(), _id.get()))
        return True

    caplog.handler.addFilter(note)
    return lines


async def test_a_kept_lease_keeps_no_context_between_its_uses(redis: Redis) -> None:
    told: list[tuple[str, str]] = []

    class Told:
        def on_acquired(self, event: LockEvent) -> None:
            told.append(("cached" if event.cached else "asked", _id.get()))

        def on_released(self, event: LockEvent) -> None:
            told.append(("released", _id.get()))

    async def uses(session: Session, times: int) -> weakref.ref[Request]:
        _request.set(found := Request())
        for _ in range(times):
            async with Lock(session, "a", cache=5):
                pass
        return weakref.ref(found)

    async with Session(redis, listeners=[Told()]) as session:
        gone = [await within(f"{number}", lambda: uses(session, 2)) for number in range(3)]
        await eventually(lambda: (gc.collect(), all(one() is None for one in gone))[1])
        assert session.statistics().cached == 1
        assert told[-4:] == [("cached", "2"), ("released", "2")] * 2

        # Handed from task to task, each with its own.
        async with Lock(session, "a", cache=5):
            waiting = [
                asyncio.create_task(within(f"w{number}", lambda: uses(session, 1))) for number in range(2)
            ]
            await eventually(lambda: session.statistics().waiters == 2)
            told.clear()
        gone = await asyncio.gather(*waiting)
        assert [one for one in told if one[1] != "none"] == [
            ("cached", "w0"),
            ("released", "w0"),
            ("cached", "w1"),
            ("released", "w1"),
        ]
        del waiting
        await eventually(lambda: (gc.collect(), all(one() is None for one in gone))[1])
        assert session.statistics().cached == 1


async def test_the_guard_writes_in_the_context_of_the_lease(
    redis: Redis, logged: list[tuple[str, str]]
) -> None:
    async def blocks() -> None:
        async with Lock(redis, "a", ttl=0.4):
            time.sleep(0.5)  # noqa: ASYNC251 - that is what it finds

    with pytest.raises(Exception, match="was lost"):
        await within("blocks", blocks)
    assert [number for line, number in logged if line.startswith("the event loop has not run")] == ["blocks"]


async def test_a_lease_that_is_dropped_is_told_of_in_the_context_of_its_acquire(redis: Redis) -> None:
    told: list[str] = []

    class Told:
        def on_abandoned(self, event: LockEvent) -> None:
            told.append(_id.get())

    async with Session(redis, listeners=[Told()]) as session:
        lease = await within("drops", Lock(session, "a", ttl=0.3).acquire)
        await asyncio.sleep(0.01)  # its task lets go of it
        with pytest.warns(ResourceWarning, match="was never released"):
            del lease
            gc.collect()
        await eventually(lambda: bool(told))
    assert told == ["drops"]
    await asyncio.sleep(0.3)


async def test_the_lock_of_redis_pys_users_says_its_loss_in_the_context_of_its_acquire(
    redis: Redis, logged: list[tuple[str, str]]
) -> None:
    async def uses() -> None:
        lock = DropIn(redis, "b", timeout=0.3, auto_renew=True)
        assert await lock.acquire()
        await lock.release()

    await within("first", uses)
    lock = DropIn(redis, "a", timeout=0.3, auto_renew=True)
    await within("second", lock.acquire)
    await redis.delete("a")
    await eventually(lambda: any("was lost while" in line for line, _ in logged))
    assert [number for line, number in logged if "was lost while" in line] == ["second"]


@pytest.mark.leaves_keys("*:schedule.register:*", "*:schedule.history:*")
async def test_functions_run_in_a_copy_of_the_context_of_the_call_that_caused_them(redis: Redis) -> None:
    seen: list[tuple[str, str]] = []

    async def value() -> str:
        seen.append(("flight", _id.get()))
        _id.set("changed")
        return "value"

    async with Session(redis) as session:
        flight = SingleFlight(session)

        async def asks() -> str:
            await flight.do("a", value)
            return _id.get()

        await within("first", asks)
        assert await within("second", asks) == "second"

        schedule = Schedule(session, "s", every=0.1)

        @schedule
        async def job(tick: Tick) -> None:
            seen.append(("job", _id.get()))
            _id.set("changed")

        running = asyncio.create_task(within("runs", schedule.run))
        await eventually(lambda: sum(what == "job" for what, _ in seen) >= 2)
        running.cancel()
        await asyncio.wait([running])
    assert set(seen) == {("flight", "first"), ("flight", "second"), ("job", "runs")}


async def test_who_cannot_begin_to_wait_leaves_nothing(redis: Redis) -> None:
    class Ends:
        def on_waiting(self, event: LockEvent) -> None:
            raise SystemExit(3)

    async with Session(redis, listeners=[Ends()]) as session:
        async with Lock(session, "a"):
            with pytest.raises(SystemExit):
                await Lock(session, "a").acquire()
            assert session.statistics().waiters == 0
        async with Lock(session, "a", blocking_timeout=1):
            with pytest.raises(LockTimeoutError):
                await Lock(redis, "a", blocking_timeout=0).acquire()


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
def test_who_ends_the_program_in_an_answer_takes_no_answer_from_others(
    server: Server, ending: type[BaseException]
) -> None:
    """The loop goes on until its tasks have ended: no request gets the reply to another one."""

    class Ends:
        def on_released(self, event: LockEvent) -> None:
            if event.name == "first":
                raise ending("the program ends")

    with asyncio.Runner() as runner:
        other = Session.from_url(server.url)
        session = Session.from_url(server.url, listeners=[Ends()])
        held, waiting = Lock(other, "a").acquire(), list[asyncio.Task[Any]]()

        async def end() -> None:
            async with Lock(other, "a") as lease:  # from now on the server knows the scripts
                await lease.owned()
            await held.__aenter__()
            lease = await Lock(session, "first").acquire()
            # The first one leaves alone, and the other two in one write: so are their replies.
            waiting.append(asyncio.create_task(lease.owned()))
            waiting.append(asyncio.create_task(lease.release()))
            waiting.append(asyncio.create_task(Lock(session, "a").acquire()))
            await asyncio.wait(waiting)

        async def go_on() -> None:
            async with Lock(session, "another"):
                pass
            assert not waiting[2].done(), "it is refused, and not granted as the last one was"
            await eventually(lambda: sleeps(session))
            await held.__aexit__(None, None, None)
            await (await waiting[2]).release()
            await asyncio.wait(waiting)
            await session.aclose()
            await other.aclose()

        with pytest.raises(ending):
            runner.run(end())
        runner.run(go_on())


def test_who_ends_the_program_as_a_lease_is_handed_over_does_not_keep_it_from_the_next(
    server: Server,
) -> None:
    """A release and the acquire behind it have one reply."""

    class Ends:
        def on_released(self, event: LockEvent) -> None:
            if not ended:
                ended.append(event)
                raise SystemExit(3)

    ended: list[LockEvent] = []
    with asyncio.Runner() as runner:
        session = Session.from_url(server.url, listeners=[Ends()])
        tasks: list[asyncio.Task[Any]] = []

        async def end() -> None:
            lease = await Lock(session, "a").acquire()
            tasks.append(asyncio.create_task(Lock(session, "a").acquire()))
            await asyncio.sleep(0)
            tasks.append(asyncio.create_task(lease.release()))
            await asyncio.wait(tasks)

        async def go_on() -> None:
            async with asyncio.timeout(5):
                following = await tasks[0]
            await following.release()
            await tasks[1]
            await session.aclose()

        with pytest.raises(SystemExit):
            runner.run(end())
        runner.run(go_on())
