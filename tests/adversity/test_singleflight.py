"""The single flight: however many want it, one makes it, and whoever goes away or dies spoils it for nobody.

T-P-10 of `tests/FAULTS.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis as redis_py
from redis.asyncio import Redis

from aiolocks import (
    BackendError,
    Backoff,
    FingerprintError,
    LockEvent,
    LockLostError,
    RemoteCallError,
    Session,
    SessionClosedError,
    SingleFlight,
)
from aiolocks.kinds import flights as commands
from tests.adversity.flights import TRACKING, Work, any_asleep, joined, running, turned, turned_first, within
from tests.adversity.test_teardown import run as run_script
from tests.adversity.tools import AT_ONCE, Formed, Keys, Start, asleep, begin, wakeup
from tests.conftest import Connect
from tests.support.cancel import Shot, sweep, sweep_scopes
from tests.support.processes import Workers, tell
from tests.support.proxy import Match, Proxy, Request
from tests.support.servers import Server
from tests.support.spoiling import spoil
from tests.support.waiting import eventually

log = logging.getLogger(__name__)
RUN = "aiolocks:singleflight:{%s}"
LINK = 0.01


def sent(script: Any) -> Match:
    def match(request: Request) -> bool:
        return len(request) > 1 and request[1] in (script.sha, script.text)

    return match


ACQUIRE, PUBLISH = sent(commands._ACQUIRE), sent(commands._PUBLISH)


# -- one run -------------------------------------------------------------------------------------------------


async def call_many(url: str, way: str, number: int, callers: int) -> None:
    """In a process of its own: `callers` callers; the work ends when the test says so."""
    async with Redis.from_url(url) as redis, Session(redis, wakeup=wakeup(way)) as session:
        flight = SingleFlight(session, ttl=10)

        async def fn() -> str:
            await redis.incr("calls")
            while not await redis.get("end"):
                await asyncio.sleep(0.005)
            return f"made by {number}"

        calls = [begin(flight.do("k", fn)) for _ in range(callers)]
        await eventually(lambda: session.statistics().leases_held == 1 or asleep(session), within=20)
        tell("there")
        values = await asyncio.gather(*calls)
        tell("had", values=sorted(set(values)), number=len(values))


@pytest.mark.leaves_keys("calls", "end")
async def test_t_p_10_200_callers_in_4_processes_are_one_run(
    server: Server, redis: Redis, workers: Workers, way: str
) -> None:
    crew = [
        await workers.start(call_many, url=server.url, way=way, number=number, callers=50)
        for number in range(4)
    ]
    for worker in crew:
        await worker.told("there")
    await redis.set("end", 1)
    told = [await worker.told("had") for worker in crew]
    assert await redis.get("calls") == b"1"
    assert sum(report["number"] for report in told) == 200
    assert len({value for report in told for value in report["values"]}) == 1


async def test_callers_of_one_session_join_without_a_request(session: Session) -> None:
    """Whichever object they use; and all have the very value."""
    known = Work()  # its scripts, by the server
    known.end.set()
    await SingleFlight(session).do("known", known)
    work = Work({"a": 1})
    first = begin(SingleFlight(session).do("k", work))
    await running(work, session)
    before = session.statistics().commands_sent
    others = [begin(SingleFlight(session, ttl=5, keep=5).do("k", work)) for _ in range(100)]
    await asyncio.sleep(0.02)
    assert session._engine is not None
    assert repr(session._engine.in_progress["singleflight", "k"]) == "<Flight 'k' waiters=101>"
    work.end.set()
    value = await first
    assert [await other for other in others] == [{"a": 1}] * 100
    assert all(other.result() is value for other in others)
    # The end of the run; and its first renewal, with CLIENT CACHING, where all this took 50 ms.
    assert session.statistics().commands_sent - before in {1, 3}
    assert work.begun == 1


async def test_all_who_wait_in_however_many_processes_are_told_at_once(start: Start) -> None:
    """More than a step on the server wakes. A waiter that is not told sleeps for seconds."""
    runner, *others = (start() for _ in range(21))
    work = Work()
    first = begin(SingleFlight(runner).do("k", work))
    await running(work, runner)
    waiting = [await joined(other, SingleFlight(other), "k", work) for other in others]
    work.end.set()
    assert await within(2 * AT_ONCE, first, *waiting) == ["made"] * 21
    assert work.begun == 1


async def test_listeners_hear_of_the_run_and_of_those_who_need_not_run(
    redis: Redis, session: Session
) -> None:
    told = []

    class Listener:
        def on_waited(self, event: LockEvent) -> None:
            told.append((event.kind, event.name, event.reason))

        def on_acquired(self, event: LockEvent) -> None:
            told.append((event.kind, event.name, "acquired"))

    work = Work()
    async with Session(redis, listeners=[Listener()]) as other:
        call = begin(SingleFlight(session).do("k", work))
        await running(work, session)
        waiting = await joined(other, SingleFlight(other), "k", work)
        work.end.set()
        await within(AT_ONCE, call, waiting)
        await SingleFlight(other).do("k", work)
        async with SingleFlight(other).turn("t"):
            pass
    assert told == [
        ("singleflight", "k", "needless"),
        ("singleflight", "k", "acquired"),
        ("turn", "t", "acquired"),
    ]


async def test_who_comes_later_runs_it_anew(session: Session, keys: Keys) -> None:
    calls = 0

    async def fn() -> int:
        nonlocal calls
        calls += 1
        return calls

    flight = SingleFlight(session)
    assert [await flight.do("k", fn) for _ in range(3)] == [1, 2, 3]
    assert await flight.do("another", fn) == 4
    assert keys() == []


@pytest.mark.more  # as who comes later
async def test_who_comes_when_it_has_ended_elsewhere_gets_nothing_old(
    redis: Redis, session: Session, connect: Connect
) -> None:
    """Although the waiters that it finds in its session have not heard of the end yet, and get that."""
    async with Session(connect(), wakeup="poll", backoff=Backoff(initial=1, maximum=1, jitter=0)) as slow:
        for ways in (made, turned_first):
            work, mine = Work("old"), Work("new")
            call = begin(ways(session, work))
            await running(work, session)
            in_time = begin(ways(slow, mine))
            await eventually(lambda: slow.statistics().waiters == 1 and any_asleep(slow), within=5)
            joining = begin(ways(slow, mine))
            await asyncio.sleep(0.05)
            work.end.set()
            await call
            await asyncio.sleep(0.05)
            late, later = begin(ways(slow, mine)), begin(ways(slow, mine))
            assert await within(5, in_time, joining) == ["old", "old"]
            await running(mine, slow)
            mine.end.set()
            assert await within(5, late, later) == ["new", "new" if ways is made else "old"]
            assert (work.begun, mine.begun) == (1, 1)


async def made(session: Session, work: Work) -> Any:
    return await SingleFlight(session).do("k", work)


async def test_it_runs_in_a_task_of_the_session_in_the_context_of_its_first_caller(session: Session) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("the caller's")

    async def fn() -> list[Any]:
        task = asyncio.current_task()
        assert task is not None
        return [task.get_name(), variable.get()]

    assert await SingleFlight(session).do("k", fn) == ["aiolocks-singleflight-'k'", "the caller's"]


async def test_a_call_that_waits_for_itself_is_told(session: Session) -> None:
    flight = SingleFlight(session)

    async def fn() -> Any:
        return await flight.do("k", fn)

    with pytest.raises(RuntimeError, match="waits for itself"):
        await flight.do("k", fn)


@pytest.mark.parametrize("by", ["a child", "another call", "another call that came first"])
async def test_a_call_that_waits_for_itself_by_way_of_others_is_told(session: Session, by: str) -> None:
    """It would hang for ever, and all who ask for that key after it: who waits is never nobody."""
    flight, first, second = SingleFlight(session), asyncio.Event(), asyncio.Event()

    async def one() -> Any:
        if by == "a child":
            return await asyncio.create_task(flight.do("one", one))
        first.set()
        if by == "another call that came first":
            await second.wait()
        return await flight.do("two", two)

    async def two() -> Any:
        second.set()
        await first.wait()
        return await flight.do("one", one)

    asking = [begin(flight.do("one", one))]
    if by == "another call that came first":
        asking.append(begin(flight.do("two", two)))
    for end in await within(5, *asking):
        assert isinstance(end, RuntimeError)
        assert str(end).endswith("waits for itself: ask for another key")
    assert session._engine.in_progress == {}


async def test_what_a_call_leaves_behind_may_ask_for_it_later(session: Session) -> None:
    flight, over = SingleFlight(session), asyncio.Event()
    left: list[asyncio.Task[Any]] = []

    async def again() -> Any:
        await over.wait()
        return await flight.do("k", made)

    async def made() -> str:
        left.append(begin(again()))
        return "made"

    assert await flight.do("k", made) == "made"
    over.set()
    assert await within(5, left[0]) == ["made"]
    await within(5, *left[1:])


async def test_a_group_that_fails_is_an_error_and_no_cancellation(session: Session, connect: Connect) -> None:
    """Up to Python 3.12 a TaskGroup that failed leaves its task with a count of one cancellation."""
    error = ValueError("no")
    begun = 0

    async def fail() -> None:
        await asyncio.sleep(0.05)
        raise error

    async def fn() -> None:
        nonlocal begun
        begun += 1
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    here = begin(SingleFlight(session).do("k", fn))
    await eventually(lambda: begun == 1, within=5)
    there = begin(SingleFlight(connect()).do("k", fn))
    ended = await within(5, here, there)
    assert isinstance(ended[0], ExceptionGroup)
    assert ended[0].exceptions == (error,)
    if begun == 1:  # a busy machine may have asked for it when it was over
        assert isinstance(ended[1], RemoteCallError)


async def test_an_error_that_is_its_own_cause_stops_nothing(session: Session) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def fn() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
        except ExceptionGroup as group_error:
            error = group_error.exceptions[0]
        raise error from error

    with pytest.raises(ValueError, match="no"):
        await SingleFlight(session).do("k", fn)


# -- what is kept --------------------------------------------------------------------------------------------


async def ask(url: str, key: str) -> None:
    """In a process of its own: ask for what is there."""

    async def fn() -> str:
        return "made anew"

    async with Redis.from_url(url) as redis, Session(redis) as session:
        tell("had", value=await SingleFlight(session).do(key, fn))


async def test_what_is_kept_is_had_by_another_process_without_a_run(
    server: Server, session: Session, redis: Redis, workers: Workers
) -> None:
    work = Work({"charged": 17})
    work.end.set()
    await SingleFlight(session, keep=60).do("k", work)
    worker = await workers.start(ask, url=server.url, key="k")
    assert (await worker.told("had"))["value"] == {"charged": 17}
    assert 55_000 < await redis.pttl("aiolocks:singleflight.value:{k}") <= 60_000
    assert await SingleFlight(session).do("k", work) == {"charged": 17}
    assert work.begun == 1


async def test_it_is_kept_for_so_long(session: Session) -> None:
    work = Work()
    work.end.set()
    flight = SingleFlight(session, keep=0.3)
    await flight.do("k", work)
    await flight.do("k", work)
    assert work.begun == 1
    await asyncio.sleep(0.4)
    await flight.do("k", work)
    assert work.begun == 2


# -- errors --------------------------------------------------------------------------------------------------


@TRACKING
async def test_an_error_is_for_all_who_wait_and_is_not_kept(start: Start, keys: Keys) -> None:
    here, there = start(), start()
    error = ValueError("no such city: 'Ŧ'")
    work = Work(error)
    flight = SingleFlight(here, keep=60)
    calls = [begin(flight.do("k", work)) for _ in range(3)]
    await running(work, here)
    waiting = await joined(there, SingleFlight(there), "k", work)
    joining = begin(SingleFlight(there).do("k", work))
    # The error is as old as the question for it took to come: what joins that short before may ask anew.
    await asyncio.sleep(0.5)
    work.end.set()
    assert await within(AT_ONCE, *calls) == [error] * 3
    assert all(call.exception() is error for call in calls)
    for call in (waiting, joining):
        with pytest.raises(RemoteCallError) as caught:
            await asyncio.wait_for(call, AT_ONCE)
        assert (caught.value.type_name, caught.value.message) == ("builtins.ValueError", str(error))
    assert work.begun == 1
    assert keys() == []
    again = Work()
    again.end.set()
    assert await SingleFlight(there).do("k", again) == "made"


async def test_an_error_shared_by_many_has_the_traceback_of_its_run_only(session: Session) -> None:
    error = ValueError("no")
    work = Work(error)
    work.end.set()
    flight = SingleFlight(session)
    await within(AT_ONCE, *(flight.do("k", work) for _ in range(50)))
    depth, link = 0, error.__traceback__
    while link is not None:
        depth, link = depth + 1, link.tb_next
    assert depth < 10


@TRACKING
@pytest.mark.parametrize("kind", ["cancelled", "not async"])
async def test_what_can_be_no_value_is_an_error_for_all(start: Start, kind: str) -> None:
    here, there = start(), start()
    inside = asyncio.Event()

    async def fn() -> Any:
        await inside.wait()
        raise asyncio.CancelledError

    def plain() -> int:
        return 1

    flight = SingleFlight(here)
    if kind == "not async":
        with pytest.raises(TypeError, match=r"fn must be a coroutine function .*; wrap a plain function"):
            await flight.do("k", plain)  # type: ignore[arg-type]
        return
    call = begin(flight.do("k", fn))
    await eventually(lambda: here.statistics().leases_held == 1)
    waiting = await joined(there, SingleFlight(there), "k", fn)
    inside.set()
    with pytest.raises(RuntimeError) as caught:
        await asyncio.wait_for(call, AT_ONCE)
    with pytest.raises(RemoteCallError) as remote:
        await asyncio.wait_for(waiting, AT_ONCE)
    assert remote.value.type_name == "builtins.RuntimeError"
    assert remote.value.message == str(caught.value)


class AbortedError(BaseException):
    """No `Exception`, as what test frameworks end a test with."""


@TRACKING
async def test_an_error_that_is_no_exception_ends_the_run_as_each_other_does(start: Start) -> None:
    """It left the run without a result: each waiting session called its function in turn."""
    here, there = start(), start()
    work = Work(AbortedError("over"))
    call = begin(SingleFlight(here).do("k", work))
    await running(work, here)
    waiting = await joined(there, SingleFlight(there), "k", work)
    work.end.set()
    with pytest.raises(AbortedError):
        await asyncio.wait_for(call, AT_ONCE)
    with pytest.raises(RemoteCallError, match="AbortedError: over"):
        await asyncio.wait_for(waiting, AT_ONCE)
    assert work.begun == 1


# -- who goes away -------------------------------------------------------------------------------------------


async def test_a_cancelled_caller_ends_only_his_own_wait(start: Start) -> None:
    """The one whose function runs, one that has joined it, and one elsewhere."""
    here, there = start(), start()
    work = Work()
    leader, follower, staying = (begin(SingleFlight(here).do("k", work)) for _ in range(3))
    await running(work, here)
    waiting = await joined(there, SingleFlight(there), "k", work)
    leaving = begin(SingleFlight(there).do("k", work))
    await asyncio.sleep(0)
    for call in (leader, follower, leaving):
        call.cancel()
    await asyncio.wait([leader, follower, leaving], timeout=AT_ONCE)
    assert leader.cancelled()
    assert follower.cancelled()
    assert leaving.cancelled()
    work.end.set()
    assert await within(AT_ONCE, staying, waiting) == ["made", "made"]
    assert (work.begun, work.cancelled) == (1, 0)


async def test_a_deadline_ends_only_its_own_wait(session: Session) -> None:
    work = Work()
    staying = begin(SingleFlight(session).do("k", work))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await SingleFlight(session).do("k", work)
    work.end.set()
    assert await staying == "made"


async def test_when_nobody_here_waits_the_work_is_cancelled_and_somebody_elsewhere_does_it(
    start: Start, keys: Keys
) -> None:
    here, there = start(), start()
    work, theirs = Work(), Work("theirs")
    theirs.end.set()
    calls = [begin(SingleFlight(here).do("k", work)) for _ in range(3)]
    await running(work, here)
    waiting = await joined(there, SingleFlight(there), "k", theirs)
    for call in calls:
        call.cancel()
    assert await within(AT_ONCE, waiting) == ["theirs"]
    assert (work.begun, work.cancelled, theirs.begun) == (1, 1, 1)
    await eventually(lambda: keys() == [])


@TRACKING
async def test_all_gone_nothing_is_left(start: Start, keys: Keys) -> None:
    here, there = start(), start()
    work = Work()
    call = begin(SingleFlight(here).do("k", work))
    await running(work, here)
    waiting = await joined(there, SingleFlight(there), "k", work)
    waiting.cancel()
    call.cancel()
    await eventually(lambda: keys() == [])
    assert work.cancelled == 1
    assert here._engine.in_progress == there._engine.in_progress == {}


@TRACKING
async def test_what_an_abandoned_call_says_of_its_end_is_told_to_nobody(start: Start) -> None:
    here, there = start(), start()
    begun = asyncio.Event()

    async def fn() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError("interrupted")

    call = begin(SingleFlight(here).do("k", fn))
    await begun.wait()
    theirs = Work("theirs")
    theirs.end.set()
    waiting = await joined(there, SingleFlight(there), "k", theirs)
    call.cancel()
    assert await within(AT_ONCE, waiting) == ["theirs"]


@TRACKING
async def test_an_error_of_an_abandoned_call_that_hides_its_cancellation_is_told_to_nobody(
    start: Start,
) -> None:
    here, there = start(), start()
    work, theirs = Work(), Work("theirs")
    theirs.end.set()

    async def fn() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await work()
        raise ValueError("not finished")

    call = begin(SingleFlight(here).do("k", fn))
    await running(work, here)
    waiting = await joined(there, SingleFlight(there), "k", theirs)
    call.cancel()
    assert await within(AT_ONCE, waiting) == ["theirs"]


@TRACKING
async def test_what_an_abandoned_call_gives_nevertheless_is_what_it_gives(start: Start) -> None:
    here, there = start(), start()
    begun = asyncio.Event()

    async def fn() -> str:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
        return "nevertheless"

    call = begin(SingleFlight(here).do("k", fn))
    await begun.wait()
    waiting = await joined(there, SingleFlight(there), "k", Work())
    call.cancel()
    assert await within(AT_ONCE, waiting) == ["nevertheless"]


async def test_who_comes_while_an_abandoned_call_unwinds_runs_it_behind_that(session: Session) -> None:
    flight, order = SingleFlight(session), []
    begun = asyncio.Event()

    async def fn() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            order.append("unwound")

    async def again() -> str:
        order.append("again")
        return "again"

    call = begin(flight.do("k", fn))
    await begun.wait()
    call.cancel()
    await asyncio.sleep(0)
    assert await flight.do("k", again) == "again"
    assert order == ["unwound", "again"]


async def run_for_ever(url: str, ttl: float) -> None:
    """In a process of its own: begin, and never end."""

    async def fn() -> None:
        tell("running")
        await asyncio.sleep(60)

    async with Redis.from_url(url) as redis, Session(redis) as session:
        await SingleFlight(session, ttl=ttl).do("k", fn)


@TRACKING
async def test_t_p_10_a_killed_runner_is_replaced_when_its_lease_ends(
    server: Server, workers: Workers, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    ttl = 1.0
    session = start()
    began = 0.0

    async def fn() -> str:
        nonlocal began
        began = time.monotonic()
        return "replaced"

    worker = await workers.start(run_for_ever, url=server.url, ttl=ttl)
    await worker.told("running")
    waiting = await joined(session, SingleFlight(session, ttl=ttl), "k", fn)
    worker.kill()
    killed = time.monotonic()
    assert await asyncio.wait_for(waiting, 10) == "replaced"
    log.info("replaced %.3f s after the kill, ttl %.1f s", began - killed, ttl)
    assert began - killed < ttl + 0.5  # on a quiet machine, less than 0.1 s more than the ttl


# -- loss ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["DEL", "FLUSHALL"])
async def test_a_call_that_loses_its_lease_is_cancelled_and_tried_again(
    session: Session, redis: Redis, by: str
) -> None:
    work = Work()
    call = begin(SingleFlight(session, ttl=0.6).do("k", work))
    await running(work, session)
    await (redis.flushall() if by == "FLUSHALL" else redis.delete(RUN % "k"))
    await eventually(lambda: work.begun == 2, within=5)
    assert work.cancelled == 1
    work.end.set()
    assert await asyncio.wait_for(call, 5) == "made"
    assert session.statistics().losses == 1


@TRACKING
async def test_who_has_lost_it_gets_what_another_has_made_meanwhile(start: Start, redis: Redis) -> None:
    here, there, made = start(), start(), asyncio.Event()
    mine, theirs = Work("mine", outlived_by=made), Work("theirs")
    theirs.end.set()
    call = begin(SingleFlight(here, ttl=3).do("k", mine))
    await running(mine, here)
    await redis.delete(RUN % "k")
    assert await SingleFlight(there).do("k", theirs) == "theirs"
    await eventually(lambda: mine.cancelled)
    made.set()
    assert await asyncio.wait_for(call, 10) == "theirs"
    assert (mine.begun, mine.cancelled) == (1, 1)


@TRACKING
async def test_a_loss_behind_a_task_group_that_has_failed_begins_another_run(
    start: Start, redis: Redis
) -> None:
    session, runs = start(), 0

    async def work() -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            await spoil()
            await redis.delete(RUN % "k")
            await asyncio.sleep(5)
        if runs == 2:  # it is cancelled by nobody, whatever the first has left behind
            raise asyncio.CancelledError
        return "made"

    with pytest.raises(RuntimeError, match="was cancelled from within"):
        await asyncio.wait_for(SingleFlight(session, ttl=3).do("k", work), 10)
    assert runs == 2


@TRACKING
@pytest.mark.parametrize("another", [False, True])
async def test_what_was_made_is_not_made_again(start: Start, redis: Redis, another: bool) -> None:
    """The loss shows only when it is published: of two, the value is the one that was there first."""
    there = start()
    mine, theirs = Work("mine"), Work("theirs")
    theirs.end.set()
    async with Session(redis, wakeup="poll") as here:  # it is not told that its key is gone
        call = begin(SingleFlight(here, keep=60).do("k", mine))
        await running(mine, here)
        await redis.delete(RUN % "k")
        if another:
            await SingleFlight(there, keep=60).do("k", theirs)
        mine.end.set()
        assert await asyncio.wait_for(call, 5) == ("theirs" if another else "mine")
    assert await SingleFlight(there).do("k", theirs) == ("theirs" if another else "mine")
    assert mine.begun == 1


async def test_what_a_late_runner_has_published_nevertheless_is_the_very_value(session: Session) -> None:
    """By our clock the lease had ended, and by the server's it had not: it took what was given back."""
    value, begun = {"a": 1}, asyncio.Event()

    async def fn() -> Any:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return value

    call = begin(SingleFlight(session).do("k", fn))
    await begun.wait()
    assert session._engine is not None
    (possession,) = session._engine.watchdog.possessions()
    possession.lose("its time was over")
    assert await asyncio.wait_for(call, AT_ONCE) is value


async def test_a_call_that_always_loses_its_lease_ends(session: Session, redis: Redis) -> None:
    begun = 0

    async def fn() -> None:
        nonlocal begun
        begun += 1
        await redis.delete(RUN % "k")
        await asyncio.sleep(60)

    with pytest.raises(LockLostError):
        await asyncio.wait_for(SingleFlight(session, ttl=0.3).do("k", fn), 10)
    assert begun == 3


# -- fingerprints --------------------------------------------------------------------------------------------


@TRACKING
async def test_a_key_is_for_one_request(start: Start, redis: Redis) -> None:
    here, there = start(), start()
    work = Work()
    flight = SingleFlight(here, keep=60)
    call = begin(flight.do("k", work, fingerprint=b'{"amount":1}'))
    await running(work, here)
    for session in (here, there):
        for fingerprint in ('{"amount":2}', b"", None):
            with pytest.raises(FingerprintError, match="in use for another request"):
                await asyncio.wait_for(SingleFlight(session).do("k", work, fingerprint=fingerprint), AT_ONCE)
    same = await joined(there, SingleFlight(there), "k", work, fingerprint='{"amount":1}')
    assert b"amount" not in await redis.get(RUN % "k")
    work.end.set()
    assert await within(AT_ONCE, call, same) == ["made", "made"]
    assert not any(b"amount" in value for value in await redis.hvals("aiolocks:singleflight.value:{k}"))
    for session in (here, there):
        assert await SingleFlight(session).do("k", work, fingerprint='{"amount":1}') == "made"
        with pytest.raises(FingerprintError):
            await SingleFlight(session).do("k", work, fingerprint='{"amount":2}')
    assert work.begun == 1


# -- how values travel ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [(2, False), (2, True), (3, False), (3, True)])
@pytest.mark.parametrize("form", ["url", "own connections"])
@pytest.mark.parametrize("serializer", [None, pickle], ids=["json", "pickle"])
async def test_values_come_as_the_serializer_makes_them(
    connect: Connect, through: Proxy, session: Session, form: str, settings: tuple[int, bool], serializer: Any
) -> None:
    if form == "own connections" and settings[1] and int(redis_py.__version__.split(".")[0]) < 6:
        pytest.skip("before version 6, redis-py decodes each reply of connections that it drives itself")
    client = connect(Formed(through, form), protocol=settings[0], decode_responses=settings[1])
    value = ("é\0\ud800", 1.5, None) if serializer is None else {(1, b"\xff\0"): {2.5}}
    options = {} if serializer is None else {"serializer": serializer}
    work = Work(value)
    work.end.set()

    assert await SingleFlight(session, keep=60, **options).do("k", work) is value
    had = await SingleFlight(client, **options).do("k", work)

    assert had == (list(value) if serializer is None else value)
    assert await SingleFlight(client, keep=60, **options).do("l", work) is value
    assert await SingleFlight(session, **options).do("l", work) == had
    assert work.begun == 2


async def test_what_cannot_be_read_is_an_error_of_who_reads_an_idempotency_key(session: Session) -> None:
    work = Work({1, 2})
    work.end.set()
    await SingleFlight(session, keep=60, serializer=pickle).do("k", work, fingerprint="a")
    for _ in range(2):
        with pytest.raises(ValueError, match="decode"):
            await SingleFlight(session).do("k", work, fingerprint="a")


async def test_a_key_that_holds_something_else_is_named(session: Session, redis: Redis) -> None:
    await redis.set("aiolocks:singleflight.value:{k}", "x", px=60_000)
    with pytest.raises(BackendError, match="singleflight"):
        await SingleFlight(session).do("k", Work())


# -- the network, and the server -----------------------------------------------------------------------------


async def test_the_reply_to_publish_is_lost(client: Redis, through: Proxy, session: Session) -> None:
    work = Work()
    call = begin(SingleFlight(client, keep=60).do("k", work))
    await running(work, Session.of(client))
    waiting = begin(SingleFlight(session).do("k", work))
    await eventually(lambda: session.statistics().waiters == 1)
    lost = through.reset_after(PUBLISH)
    work.end.set()
    assert await within(10, call, waiting) == ["made", "made"]
    assert lost.is_set()
    assert await SingleFlight(session).do("k", work) == "made"
    assert work.begun == 1


async def test_the_reply_to_acquire_is_lost(client: Redis, through: Proxy) -> None:
    work = Work()
    work.end.set()
    lost = through.reset_after(ACQUIRE)
    assert await asyncio.wait_for(SingleFlight(client, ttl=5).do("k", work), 10) == "made"
    assert lost.is_set()
    assert work.begun == 1


@pytest.mark.more  # as from a cache
async def test_what_was_made_is_had_here_even_if_the_server_is_gone(
    connect: Connect, through: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    client, work = connect(through), Work()
    call = begin(SingleFlight(client, ttl=1).do("k", work))
    await running(work, Session.of(client))
    through.blackhole = True
    work.end.set()
    assert await asyncio.wait_for(call, 10) == "made"
    assert "what the call gave could not be published" in caplog.text
    through.blackhole = False


async def test_a_server_that_stays_away_is_an_error(connect: Connect, through: Proxy) -> None:
    through.blackhole = True
    with pytest.raises(BackendError):
        await asyncio.wait_for(SingleFlight(connect(through), ttl=0.3).do("k", Work()), 10)
    through.blackhole = False


# -- cancelled anywhere --------------------------------------------------------------------------------------


@pytest.fixture
async def far(connect: Connect, through: Proxy) -> Session:
    """The session of a client at the other end of a slow link."""
    client = connect(through)
    await client.ping()
    session = Session.of(client)
    through.delay = LINK
    return session


def nothing_left(keys: Keys, session: Session) -> Callable[[Shot], Any]:
    async def check(_: Shot) -> None:
        await eventually(lambda: keys() == [], within=2)
        assert session._engine is None or session._engine.in_progress == {}

    return check


async def make(session: Session) -> None:
    async def fn() -> int:
        await asyncio.sleep(0.002)
        return 1

    assert await SingleFlight(session).do("k", fn) == 1


async def take_turn(session: Session) -> None:
    async with SingleFlight(session).turn("k") as turn:
        await asyncio.sleep(0.002)
        assert turn.first


@pytest.mark.parametrize("use", [make, take_turn])
async def test_cancelled_at_every_await(far: Session, keys: Keys, use: Callable[[Session], Any]) -> None:
    shots = await sweep(lambda: use(far), after=nothing_left(keys, far))
    assert {shot.mode for shot in shots} == {"early", "late"}
    await use(far)


@pytest.mark.parametrize("by", ["scope", "sibling"])
@pytest.mark.parametrize("use", [make, take_turn])
async def test_cancelled_at_every_await_by_anyio(
    far: Session, keys: Keys, use: Callable[[Session], Any], by: Any
) -> None:
    await sweep_scopes(lambda: use(far), by=by, after=nothing_left(keys, far))
    await use(far)


async def test_cancelled_at_any_time(far: Session, keys: Keys) -> None:
    """The call goes on in a task of its own: cancelled wherever that stands."""

    async def leave_after(work: Work, key: str, seconds: float) -> None:
        work.end.set()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await SingleFlight(far).do(key, work)
                await asyncio.sleep(60)

    await make(far)
    longest = 2 * LINK
    begun = 0
    while begun < 20:  # of a busy machine, no more is known than that it takes longer
        works = [Work() for _ in range(80)]
        shares = [(work, f"k{number}", longest * number / 80) for number, work in enumerate(works)]
        await asyncio.gather(*(leave_after(*share) for share in shares))
        await eventually(lambda: keys() == [], within=2)
        assert far._engine.in_progress == {}
        begun = sum(work.begun for work in works)
        longest *= 2
    assert begun < 80


# -- the end -------------------------------------------------------------------------------------------------


async def test_the_end_of_the_session_is_the_end_of_the_call(
    redis: Redis, session: Session, keys: Keys
) -> None:
    async with Session(redis) as ending:
        running_work, waiting_work = Work(), Work()
        calls = [begin(SingleFlight(ending).do("k", running_work)) for _ in range(2)]
        await running(running_work, ending)
        held = begin(SingleFlight(session).do("held", waiting_work))
        await running(waiting_work, session)
        calls.append(begin(SingleFlight(ending).do("held", waiting_work)))
        first = begin(turned(SingleFlight(ending), asyncio.Event()))
        await eventually(lambda: ending.statistics().leases_held == 2)
        calls += [begin(turned(SingleFlight(ending), asyncio.Event())) for _ in range(2)]
        await eventually(lambda: ending.statistics().waiters == 1)
    ended = await within(AT_ONCE, *calls)
    assert [type(end) for end in ended] == [SessionClosedError] * 5
    assert [type(end) for end in await within(AT_ONCE, first)] == [LockLostError]
    assert running_work.cancelled == 1
    assert ending._engine.in_progress == {}
    with pytest.raises(SessionClosedError):
        await SingleFlight(ending).do("k", running_work)
    waiting_work.end.set()
    assert await held == "made"
    await eventually(lambda: keys() == [])


@pytest.mark.parametrize("plain", [False, True], ids=["multiplexed", "plain"])
async def test_the_end_of_the_loop_leaves_nothing_and_prints_nothing(
    through: Proxy, keys: Keys, plain: bool
) -> None:
    status, out, err = await run_script(
        f"PLAIN = {plain}"
        """
from aiolocks import SingleFlight

async def fn():
    try:
        await asyncio.sleep(60)
    finally:
        print("cancelled")

async def turn(flight):
    async with flight.turn("t"):
        await asyncio.sleep(60)

async def main():
    redis = client(plain=PLAIN)
    flight = SingleFlight(redis)
    other = SingleFlight(Session(redis))
    calls = [asyncio.create_task(flight.do("k", fn)) for _ in range(3)]
    while Session.of(redis).statistics().leases_held < 1:
        await asyncio.sleep(0.001)
    calls += [asyncio.create_task(other.do("k", fn)) for _ in range(3)]
    calls += [asyncio.create_task(turn(one)) for one in (flight, flight, other, other)]
    await asyncio.sleep(0.1)

asyncio.run(main())
""",
        through.url,
        "-X",
        "dev",
    )
    assert (status, out, err) == (0, "cancelled\n", "")
    await eventually(lambda: keys() == [])
