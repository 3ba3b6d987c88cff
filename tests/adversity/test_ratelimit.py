"""The rate limit: no window has too many, whoever is killed, cancelled, late or not heard."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import BackendError, LockTimeoutError, RateLimit, Session, SessionClosedError
from tests.adversity.tools import SLACK, Formed, Keys, begin, elapsed, rejected, step
from tests.conftest import Connect, OwnServer
from tests.support.cancel import Shot, cancel_twice, sweep
from tests.support.processes import Workers, tell
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.thinning import only
from tests.support.waiting import eventually

ACQUIRE = step("ratelimit_acquire", "rate_log", "ratelimit_straight", "forms", "bells", "rates")
SETTLE = step("ratelimit_settle", "rate_log", "forms", "bells", "rates")
KEY, LOG = "aiolocks:ratelimit.bucket:{a}", "aiolocks:ratelimit.log:{a}"

pytestmark = pytest.mark.leaves_keys("aiolocks:ratelimit.*")


def most_in_a_window(moments: list[float], seconds: float) -> int:
    """By brute force."""
    return max(sum(first <= one <= first + seconds for one in moments) for first in moments)


# -- windows -------------------------------------------------------------------------------------------------


LIMIT, PER, BURST = 20, 0.5, 5


async def ask_for(url: str, seconds: float, killed: bool) -> None:
    moments: list[float] = []
    async with Redis.from_url(url) as redis, Session(redis) as session:
        limit = RateLimit(session, "a", LIMIT, per=PER, burst=BURST)
        until = time.monotonic() + seconds

        async def work(number: int) -> None:
            while time.monotonic() < until:
                if number % 3 == 0:
                    if not await limit.try_acquire():
                        await asyncio.sleep(0.01)
                        continue
                elif number % 3 == 1:
                    async with limit:
                        pass
                else:
                    try:
                        await asyncio.wait_for(limit.acquire(), 0.05)
                    except TimeoutError:
                        continue
                moments.append(time.monotonic())  # of this machine: all processes have the same

        tell("ready")
        tasks = [asyncio.create_task(work(number)) for number in range(6)]
        if killed:
            await asyncio.Event().wait()
        await asyncio.gather(*tasks)
        tell("moments", moments=moments)


async def test_no_window_has_too_many_of_all_processes(server: Server, workers: Workers) -> None:
    seconds = 2.5
    doomed = await workers.start(ask_for, url=server.url, seconds=seconds, killed=True)
    running = await workers.start_many(3, ask_for, url=server.url, seconds=seconds, killed=False)
    await doomed.told("ready")
    await asyncio.sleep(seconds / 2)
    doomed.kill()
    moments = [moment for worker in running for moment in (await worker.told("moments"))["moments"]]
    # A task that the machine resumes late comes into a later window: its share is left out at the edge.
    assert most_in_a_window(moments, PER - 0.1) <= BURST + LIMIT
    assert len(moments) <= BURST + LIMIT * (seconds + SLACK) / PER + 18


async def test_each_is_admitted_in_the_order_of_asking_at_its_moment(redis: Redis) -> None:
    limit = RateLimit(redis, "a", 20, per=1, burst=1)
    order: list[int] = []
    began = time.monotonic()

    async def work(number: int) -> None:
        await limit.acquire()
        assert time.monotonic() - began >= number * 0.05
        order.append(number)

    await asyncio.gather(*(work(number) for number in range(10)))
    assert order == list(range(10))
    assert time.monotonic() - began < 0.45 + SLACK


async def test_one_request_where_nobody_is_before_and_three_for_a_waiter_at_most(session: Session) -> None:
    limit = RateLimit(session, "a", 20, per=1, burst=30)
    await limit.peek()
    sent = session.statistics().commands_sent
    assert await asyncio.gather(*(limit.acquire() for _ in range(30)))
    assert session.statistics().commands_sent == sent + 30
    waiters = 10
    sent = session.statistics().commands_sent
    assert await asyncio.gather(*(limit.acquire() for _ in range(waiters)))
    assert session.statistics().commands_sent - sent <= 3 * waiters
    assert session.statistics().waiters == 0


async def test_a_turn_that_is_too_late_is_an_error_at_once_and_takes_nothing(redis: Redis) -> None:
    limit = RateLimit(redis, "a", 1, per=60)
    assert await limit.try_acquire()
    for timeout in (0, 30):
        with elapsed() as took, pytest.raises(LockTimeoutError, match="its turn comes in") as caught:
            await limit.acquire(blocking_timeout=timeout)
        assert took.seconds < SLACK
        assert caught.value.remaining is not None
        assert 50 < caught.value.remaining <= 60
    decision = await limit.try_acquire()
    assert not decision
    assert 50 < decision.retry_after <= 60
    assert 50 < decision.reset_after <= 60


async def test_the_way_of_the_answer_counts(connect: Connect, through: Proxy) -> None:
    async with Session(connect(through)) as session:
        limit = RateLimit(session, "a", 5, per=1, burst=1)
        assert await limit.try_acquire()
        through.delay = 0.15
        with pytest.raises(LockTimeoutError):
            await limit.acquire(blocking_timeout=0.21)
        through.delay = 0
        await through.saw(SETTLE)
        assert (await limit.peek()).retry_after <= 0.2


async def test_peek_takes_nothing_and_figures_are_whole(redis: Redis) -> None:
    limit = RateLimit(redis, "a", 7, per=60)
    for left in range(7, 0, -1):
        assert (await limit.peek()).remaining == left
        decision = await limit.try_acquire()
        assert decision.allowed
        assert decision.remaining == left - 1
    assert not await limit.peek()


async def test_several_at_once(redis: Redis) -> None:
    limit = RateLimit(redis, "a", 10, per=60)
    assert (await limit.acquire(4)).remaining == 6
    assert not await limit.try_acquire(7)
    assert (await limit.try_acquire(6)).remaining == 0


async def test_a_place_that_comes_back_is_given_up(session: Session, redis: Redis) -> None:
    """A failover loses that a waiter was admitted: the new master has it in the queue again."""
    limit = RateLimit(session, "a", 1, per=3600, burst=1)
    queue = "aiolocks:ratelimit.queue:{a}"
    before = [queue, "aiolocks:ratelimit.waits:{a}", KEY]

    async def queued(number: int) -> bool:
        return await redis.zcard(queue) == number

    async def waiting(number: int) -> asyncio.Task[object]:
        task = asyncio.create_task(limit.acquire())
        await eventually(lambda: queued(number))
        return task

    assert await limit.acquire()
    admitted = await waiting(1)
    values = [await redis.dump(key) for key in before]
    await session.force_release("a", kind="ratelimit")
    assert await admitted
    for key, value in zip(before, values, strict=True):
        await redis.restore(key, 10_000, value, replace=True)
    behind = await waiting(2)
    await session.force_release("a", kind="ratelimit")
    assert await asyncio.wait_for(behind, 10)
    assert await redis.exists(queue) == 0


async def test_a_function_waits_for_the_turn_of_its_arguments(redis: Redis) -> None:
    @RateLimit(redis, "a:{who}", 10, per=3, burst=1)
    async def send(who: str) -> float:
        return time.monotonic()

    ada, again, bob = await asyncio.gather(send("ada"), send("ada"), send("bob"))
    assert again - ada >= 0.29
    assert bob < again  # it has a turn of its own


async def test_two_sets_of_figures_both_hold_and_one_that_is_not_used_any_more_is_dropped(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiolocks.ratelimit")
    async with Session(redis) as session:
        second, day = RateLimit(session, "a", 100, per=1), RateLimit(session, "a", 4, per=86_400)
        answers = [bool(await one.try_acquire()) for _ in range(4) for one in (second, day)]
        assert answers == [True] * 5 + [False] * 3  # the first one came before there was a limit of a day
        (warning,) = {record.getMessage() for record in caplog.records if "'a' 100 in 1 s" in record.message}
        assert "one in 21600 s, burst 4. Both hold" in warning
        async with Session(redis) as other:
            short = RateLimit(other, "b", 1, per=0.2)
            assert await short.try_acquire()
            await RateLimit(session, "b", 1, per=0.001).acquire()  # behind the other one
            await asyncio.sleep(0.5)
            assert await RateLimit(session, "b", 1, per=0.001).acquire()
    dropped = {record.levelname for record in caplog.records if "do not hold any more" in record.message}
    assert dropped == {"INFO"}  # those of 'a' too, where the machine stood still


# -- all of several ------------------------------------------------------------------------------------------


async def test_all_or_none(redis: Redis) -> None:
    second, day = RateLimit(redis, "{a}s", 2, per=1), RateLimit(redis, "{a}d", 3, per=3600)
    both = RateLimit.all_of(second, day)
    assert [bool(await both.try_acquire()) for _ in range(3)] == [True, True, False]
    assert (await day.peek()).remaining == 1
    decision = await both.acquire(blocking_timeout=2)
    assert decision.allowed
    assert decision.remaining == 0
    with elapsed() as took, pytest.raises(LockTimeoutError):
        await both.acquire(blocking_timeout=2)
    assert took.seconds < SLACK
    assert (await second.peek()).remaining >= 0


async def test_all_of_waits_for_its_turn(session: Session) -> None:
    both = RateLimit.all_of(RateLimit(session, "a", 10, per=1, burst=1), RateLimit(session, "b", 5, per=60))
    assert await both.try_acquire()
    sent = session.statistics().commands_sent
    with elapsed() as took:
        async with both as decision:
            assert decision
    assert took.seconds > 0.09
    assert session.statistics().commands_sent <= sent + 4


# -- cancelled -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shoot", [sweep, cancel_twice])
@pytest.mark.parametrize("how", ["acquire", "waits", "try_acquire", "all_of"])
async def test_what_a_cancelled_task_has_taken_is_given_back(
    client: Redis, redis: Redis, shoot: Any, how: str
) -> None:
    names: list[str] = []

    async def prepare() -> None:
        if how == "waits":
            await redis.set(bucket_of(f"a{len(names)}"), await taken(redis), px=60_000)

    async def ask() -> None:
        names.append(f"a{len(names)}")
        limit = RateLimit(client, names[-1], 10, per=1, burst=1)
        if how == "all_of":
            await RateLimit.all_of(limit, RateLimit(client, f"b{len(names)}", 9, per=1)).acquire()
        elif how == "try_acquire":
            await limit.try_acquire()
        else:
            await limit.acquire()

    async def given_back(_: Shot) -> None:
        async def nothing_is_taken() -> bool:
            entries = await redis.lrange(bucket_of(names[-1]).replace("bucket", "log"), 0, -1)
            waits = await redis.zcard(bucket_of(names[-1]).replace("bucket", "queue"))
            return not waits and all(entry.split()[1] == b"0" for entry in entries)

        await eventually(nothing_is_taken, within=5)
        await prepare()

    await prepare()
    assert await shoot(ask, after=given_back)


def bucket_of(name: str) -> str:
    return f"aiolocks:ratelimit.bucket:{{{name}}}"


async def taken(redis: Redis) -> str:
    """A bucket of one, at ten a second, that another has just taken."""
    seconds, micros = await redis.time()
    now = int(seconds) * 10**6 + int(micros)
    return f"{now} 0 0 100000.0 1 100000 100000"


LEAVERS = 300


async def waiting_in(limit: RateLimit, session: Session, number: int) -> list[asyncio.Task[Any]]:
    tasks = [begin(limit.acquire()) for _ in range(number)]
    await eventually(lambda: session.statistics().waiters >= number - 2, within=10)
    return tasks


@pytest.mark.parametrize("how", only(["in order", "in reverse", "timeout", "close"], "in reverse"))
async def test_those_who_leave_leave_nothing(client: Redis, redis: Redis, how: str) -> None:
    session = Session(client)
    limit = RateLimit(session, "a", 10, per=1, burst=1)
    if how == "timeout":

        async def impatient() -> None:
            async with asyncio.timeout(0.5):
                await limit.acquire()

        tasks = [begin(impatient()) for _ in range(LEAVERS)]
        await asyncio.wait(tasks)
    else:
        tasks = await waiting_in(limit, session, LEAVERS)
        for task in reversed(tasks) if how == "in reverse" else tasks:
            if how != "close":
                task.cancel()
    if how == "close":
        await session.aclose()
    await asyncio.gather(*tasks, return_exceptions=True)
    with elapsed() as took:
        await RateLimit(redis, "a", 10, per=1, burst=1).acquire()
    assert took.seconds < 5 + SLACK  # and not 30 s
    assert (await redis.zcard(bucket_of("a").replace("bucket", "queue"))) == 0
    await session.aclose()


@pytest.mark.more  # as in the simulated world
async def test_a_crowd_that_gives_up_leaves_the_limit_to_those_behind(session: Session) -> None:
    """As `tests/simulation/test_collapse.py`, which counts exactly."""
    limit = RateLimit(session, "a", 50, per=1, burst=1)
    admitted: list[float] = []
    began = time.monotonic()

    async def call() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.4):
                await limit.acquire()
            admitted.append(time.monotonic() - began)

    tasks: list[asyncio.Task[None]] = []
    while (now := time.monotonic() - began) < 3:
        tasks.append(asyncio.create_task(call()))
        await asyncio.sleep(1 / (90 if now < 1 else 40))
    await asyncio.gather(*tasks)
    assert sum(2 <= moment < 3 for moment in admitted) >= 25  # of 40


async def test_those_behind_a_waiter_that_leaves_move_up_also_in_another_session(
    redis: Redis, connect: Connect, server: Server
) -> None:
    async with Session(connect(server)) as theirs, Session(redis) as ours:
        first = RateLimit(theirs, "a", 10, per=10, burst=1)
        assert await first.try_acquire()
        tasks = await waiting_in(first, theirs, 20)
        (mine,) = await waiting_in(RateLimit(ours, "a", 10, per=10, burst=1), ours, 1)
        await asyncio.sleep(0.1)
        with elapsed() as took:
            for task in tasks:
                task.cancel()
            assert await mine
        assert took.seconds < 1.7 + SLACK  # and not 20 s


@pytest.mark.long
async def test_a_waiter_that_lives_keeps_its_place_for_long(
    redis: Redis, connect: Connect, server: Server
) -> None:
    async with Session(connect(server)) as theirs, Session(redis) as ours:
        limit = RateLimit(theirs, "a", 10, per=24, burst=1)
        assert await limit.try_acquire()
        order: list[int] = []

        async def work(session: Session, number: int) -> None:
            await RateLimit(session, "a", 10, per=24, burst=1).acquire()
            order.append(number)

        first = begin(work(theirs, 1))
        await eventually(lambda: theirs.statistics().waiters == 1, within=5)
        second = begin(work(ours, 2))
        await first
        assert order == [1]
        second.cancel()
        await asyncio.wait({second})


async def wait_for_ever(url: str, number: int) -> None:
    async with Redis.from_url(url) as redis, Session(redis) as session:
        limit = RateLimit(session, "a", 10, per=1, burst=1)
        tasks = [asyncio.create_task(limit.acquire()) for _ in range(number)]
        while session.statistics().waiters < number - 2:
            await asyncio.sleep(0.01)
        tell("ready")
        await asyncio.gather(*tasks)


@pytest.mark.more  # as the processes that die in the simulated world
async def test_a_killed_process_holds_the_others_up_for_no_longer_than_its_silence_takes(
    server: Server, session: Session, workers: Workers
) -> None:
    doomed = await workers.start(wait_for_ever, url=server.url, number=100)
    await doomed.told("ready")
    mine = begin(RateLimit(session, "a", 10, per=1, burst=1).acquire())
    await eventually(lambda: session.statistics().waiters == 1, within=5)
    with elapsed() as took:
        doomed.kill()
        assert await mine
    assert took.seconds < 2.8 + SLACK  # and not 10 s


@pytest.mark.more  # the simulated world has several limits too
async def test_all_of_several_gets_in_beside_waiters_of_one_of_them(session: Session) -> None:
    fast, slow = RateLimit(session, "{a}f", 50, per=1, burst=5), RateLimit(session, "{a}s", 5, per=1, burst=1)
    both, stop = RateLimit.all_of(fast, slow), asyncio.Event()
    counted = [0]

    async def work() -> None:
        while not stop.is_set():
            await fast.acquire()
            counted[0] += 1

    tasks = [begin(work()) for _ in range(20)]
    await eventually(lambda: session.statistics().waiters >= 15, within=5)
    assert await slow.try_acquire()
    with elapsed() as took:
        for _ in range(3):
            assert await both.acquire(blocking_timeout=5)
        assert await fast.acquire(5)
    stop.set()
    await asyncio.gather(*tasks)
    assert took.seconds < 1.4 + SLACK
    assert counted[0] > 20  # and the others were not held up


async def test_a_session_that_closes_ends_the_waits_and_gives_back(redis: Redis) -> None:
    session = Session(redis)
    limit = RateLimit(session, "a", 1, per=3600)
    assert await limit.try_acquire()
    waiting = begin(limit.acquire())
    await eventually(lambda: session.statistics().waiters == 1, within=5)
    await session.aclose()
    with pytest.raises(SessionClosedError):
        await waiting
    assert (await RateLimit(redis, "a", 1, per=3600).peek()).retry_after <= 3600
    with pytest.raises(SessionClosedError):
        await limit.try_acquire()


# -- the network ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3])
async def test_a_lost_reply_takes_one(client: Redis, through: Proxy, times: int) -> None:
    limit = RateLimit(client, "a", 10, per=3600)
    for left in range(9, 6, -1):
        lost = [through.reset_after(ACQUIRE, nth=nth + 1) for nth in range(times)]
        assert (await limit.acquire()).remaining == left
        assert all(event.is_set() for event in lost)


async def test_a_lost_reply_to_a_waiter_is_the_same_moment(client: Redis, through: Proxy) -> None:
    limit = RateLimit(client, "a", 10, per=1, burst=1)
    assert await limit.try_acquire()
    lost = through.reset_after(ACQUIRE)
    with elapsed() as took:
        await limit.acquire()
    assert lost.is_set()
    assert took.seconds < 0.1 + SLACK
    assert (await limit.peek()).retry_after <= 0.1


async def test_a_server_that_does_not_answer_is_an_error_in_time(
    connect: Connect, through: Proxy, form: str
) -> None:
    async with Session(connect(Formed(through, form)), command_timeout=0.3) as session:
        limit = RateLimit(session, "a", 1, per=60)
        assert await limit.try_acquire()
        through.hold_requests = True
        for ask, most in ((limit.try_acquire, 0.3), (limit.acquire, 0.3)):
            with elapsed() as took:
                await rejected(ask())
            assert most - 0.05 < took.seconds < 3
        with elapsed() as took:
            await rejected(limit.acquire(blocking_timeout=0.1))
        assert took.seconds < 0.1 + SLACK
        through.hold_requests = False


@pytest.mark.more  # as the waiters of all kinds
async def test_a_waiter_outlasts_a_server_that_is_away_for_a_moment(
    own_server: OwnServer, connect: Connect
) -> None:
    server = await own_server()
    async with Session(connect(server), command_timeout=2) as session:
        limit = RateLimit(session, "a", 2, per=1, burst=1)
        assert await limit.try_acquire()
        waiting = begin(limit.acquire())
        await eventually(lambda: session.statistics().waiters == 1, within=5)
        server.kill()
        await server.restart()
        assert await waiting
        late = begin(limit.acquire())
        await eventually(lambda: session.statistics().waiters == 1, within=5)
        server.kill()
        with elapsed() as took, pytest.raises(BackendError):
            await late
        assert took.seconds < 2.5 + SLACK


async def test_a_key_of_somebody_else_is_named(redis: Redis) -> None:
    await redis.set(KEY, "mine", px=60_000)
    error = await rejected(RateLimit(redis, "a", 1, per=1).try_acquire())
    assert KEY in str(error)


async def test_keys_go_by_themselves(redis: Redis, keys: Keys) -> None:
    limit = RateLimit(redis, "a", 100, per=1)
    await limit.acquire()
    assert sorted(keys()) == [KEY, LOG]
    assert 0 < await redis.pttl(KEY) <= 11_000
    assert 0 < await redis.pttl(LOG) <= 11_000
    await redis.persist(KEY)
    assert (await Session.of(redis).inspect("a"))[0].problem.startswith("it has lost its ttl")
    await limit.acquire()
    assert await redis.pttl(KEY) > 0


# -- what is told --------------------------------------------------------------------------------------------


async def test_listeners_and_operators_see_it(redis: Redis) -> None:
    told: list[tuple[str, str, float]] = []

    class Listener:
        def __getattr__(self, name: str) -> Any:
            if not name.startswith("on_"):
                raise AttributeError(name)
            return lambda event: told.append((name, event.reason, event.seconds))

    async with Session(redis, listeners=[Listener()]) as session:
        limit = RateLimit(session, "a", 10, per=10, burst=1)
        await limit.acquire()
        waiting = begin(limit.acquire())
        await eventually(lambda: session.statistics().waiters == 1, within=5)
        (info,) = await session.inspect("a")
        assert (info.kind, info.value, info.waiters, info.problem) == ("ratelimit", 0, 1, "")
        await waiting
        await limit.try_acquire()
        with pytest.raises(LockTimeoutError):
            await limit.acquire(blocking_timeout=0.01)
        late = begin(limit.acquire())
        await eventually(lambda: session.statistics().waiters == 1, within=5)
        late.cancel()
        await asyncio.wait({late})
        assert session.statistics().timeouts == 1
    assert [name if not reason else f"{name} {reason}" for name, reason, _ in told] == [
        "on_admitted", "on_waiting", "on_waited granted", "on_admitted",
        "on_refused", "on_timeout", "on_not_acquired timeout", "on_waiting", "on_waited cancelled",
        "on_not_acquired cancelled",
    ]  # fmt: skip
    seconds = {name: seconds for name, _, seconds in told[2:5]}
    assert seconds["on_admitted"] > 0.5
    assert 0 < seconds["on_refused"] <= 1
