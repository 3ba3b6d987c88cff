"""Jobs that run once: no update is lost, no ticket runs beside itself, and the dead hold up nobody.

T-P-11 of `tests/FAULTS.md`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    BackendError,
    DuplicateJobError,
    LockLostError,
    LockTimeoutError,
    Session,
    SessionClosedError,
    UniqueJob,
)
from aiolocks.kinds import uniquejob as steps
from aiolocks.kinds.uniquejob import MODES, Mode
from aiolocks.transport.request import Script
from tests.adversity.tools import SLACK, ByHand, Keys, begin, waiter, with_own_connections
from tests.conftest import Connect
from tests.support.cancel import sweep
from tests.support.processes import Worker, Workers, tell
from tests.support.proxy import Proxy, Request
from tests.support.servers import Server
from tests.support.thinning import only
from tests.support.waiting import eventually

log = logging.getLogger(__name__)
KEPT = [f"aiolocks:uniquejob.{role}:*" for role in ("about", "before", "over", "owner")]
pytestmark = pytest.mark.leaves_keys(*KEPT)
MOMENTS: tuple[Any, ...] = ("early", "late")
each_mode = pytest.mark.parametrize("mode", MODES)

KEY = "a"
SOON = 10.0
"""Seconds that what happens at once may take on a machine that is busy with other things."""


def is_step(script: Script) -> Any:
    """Matches the requests for that script."""

    def match(request: Request) -> bool:
        return len(request) > 1 and request[1] in (script.sha, script.text)

    return match


def place(role: str, key: str = KEY) -> str:
    return f"aiolocks:uniquejob{role}:{{{key}}}"


async def connected(job: UniqueJob) -> None:
    async with job.try_run(waiting=0):
        pass


# -- one runs, one waits -------------------------------------------------------------------------------------


async def three(make_client: Callable[[], Redis], by_hand: ByHand) -> tuple[list[str], list[str]]:
    """One runs when the second comes, and the second waits when the third comes."""
    printed: list[str] = []
    turned_away: list[str] = []
    runs, over = asyncio.Event(), asyncio.Event()

    async def work(name: str) -> None:
        try:
            async with UniqueJob(make_client(), "same").run(waiting=1):
                runs.set()
                await over.wait()
                printed.append(name)
        except DuplicateJobError:
            turned_away.append(name)

    working = [begin(work("fuga"))]
    await asyncio.wait_for(runs.wait(), SOON)
    working.append(begin(work("piyo")))
    await eventually(lambda: by_hand.redis.zcard(place(".queue", "same")) == 1, within=SOON)
    await asyncio.wait_for(work("hoge"), SOON)
    over.set()
    await asyncio.wait_for(asyncio.gather(*working), SOON)
    return printed, turned_away


async def test_the_published_three(connect: Connect, by_hand: ByHand) -> None:
    assert await three(connect, by_hand) == (["fuga", "piyo"], ["hoge"])


async def test_the_published_three_with_connections_of_their_own(connect: Connect, by_hand: ByHand) -> None:
    ended = await three(lambda: with_own_connections(connect()), by_hand)
    assert ended == (["fuga", "piyo"], ["hoge"])


async def update(redis: Redis, job: UniqueJob, seconds: float) -> None:
    """One more value, and a run that brings what is processed up to it; or somebody else's run."""
    await redis.incr("bulk:value")
    with suppress(DuplicateJobError):
        async with job.run(waiting=1):
            value = int(await redis.get("bulk:value"))
            await asyncio.sleep(seconds)
            await redis.set("bulk:processed", value)
            await redis.rpush("bulk:runs", value)


async def update_in_bulk(url: str, updates: int, spread: float, seconds: float) -> None:
    """In a process of its own: `updates` updates, half of them at once, the others spread over some
    seconds."""
    chance = random.Random()
    async with Redis.from_url(url, max_connections=updates) as redis, Session(redis) as session:
        job = UniqueJob(session, "bulk")
        await redis.ping()
        tell("ready")
        await redis.blpop("bulk:start")

        async def one(delay: float) -> None:
            await asyncio.sleep(delay)
            await update(redis, job, seconds)

        await asyncio.gather(*(one(chance.random() * spread * (number % 2)) for number in range(updates)))
    tell("done")


@pytest.mark.more  # as T-P-11, with deaths
@pytest.mark.leaves_keys("aiolocks:uniquejob.over:*", "bulk:*")
async def test_of_a_thousand_updates_the_last_is_processed_in_less_than_half_as_many_runs(
    server: Server, workers: Workers, redis: Redis
) -> None:
    processes, updates = 4, 250
    crew = await workers.start_many(
        processes, update_in_bulk, url=server.url, updates=updates, spread=0.5, seconds=0.02
    )
    for worker in crew:
        await worker.told("ready")
    await redis.rpush("bulk:start", *range(processes))
    for worker in crew:
        await worker.told("done")

    runs = [int(value) for value in await redis.lrange("bulk:runs", 0, -1)]
    log.info("%d runs for %d updates", len(runs), processes * updates)
    assert int(await redis.get("bulk:processed")) == processes * updates
    assert runs == sorted(runs)
    assert 2 <= len(runs) < processes * updates / 2


# -- the same, with workers that are killed, and a queue that redelivers -------------------------------------


TTL = 0.5
ACKNOWLEDGE = """
redis.call('LREM', KEYS[1], 1, ARGV[1])
return redis.call('INCR', KEYS[2])
"""
"""A job that was delivered is taken from the list of its worker, and counted."""


async def consume(url: str, name: str) -> None:
    """In a process of its own: a worker of a queue that delivers again what was not acknowledged."""
    async with Redis.from_url(url, max_connections=50) as redis, Session(redis) as session:
        job = UniqueJob(session, "bulk", ttl=TTL)
        mine = f"bulk:of:{name}"
        await connected(job)
        tell("ready", session=session._engine.session_id)

        async def one() -> None:
            while message := await redis.blmove("bulk:jobs", mine, 0, "RIGHT", "LEFT"):
                with suppress(DuplicateJobError):
                    async with job.run(waiting=1):
                        value = int(await redis.get("bulk:value"))
                        await asyncio.sleep(0.005)
                        await redis.set("bulk:processed", value)
                        await redis.rpush("bulk:runs", value)
                await redis.eval(ACKNOWLEDGE, 2, mine, "bulk:acknowledged", message)

        await asyncio.gather(*(one() for _ in range(8)))


class Crew:
    """Workers of the queue, of whom the dead are replaced, and their jobs delivered again."""

    def __init__(self, workers: Workers, server: Server, redis: Redis) -> None:
        self._workers = workers
        self._server = server
        self._redis = redis
        self._names = iter(range(1000))
        self.by_session: dict[str, tuple[str, Worker]] = {}

    async def hire(self, number: int) -> None:
        hired = []
        for _ in range(number):
            name = str(next(self._names))
            hired.append((name, await self._workers.start(consume, url=self._server.url, name=name)))
        for name, worker in hired:
            self.by_session[(await worker.told("ready"))["session"]] = (name, worker)

    async def runner(self) -> str | None:
        """The session of who runs."""
        for lease in (await self._redis.hgetall(place(".leases", "bulk"))).values():
            if b'"pid":' in lease:
                pid = json.loads(lease.split(b":", 2)[2])["pid"]
                return next((one for one, (_, worker) in self.by_session.items() if worker.pid == pid), None)
        return None

    async def waiter(self) -> str | None:
        """The session of who waits."""
        for entry in await self._redis.zrange(place(".queue", "bulk"), 0, -1):
            session = entry.decode().partition(".bell.")[2].partition(".")[0]
            if session in self.by_session:
                return session
        return None

    async def kill(self, session: str) -> None:
        """That one, in whatever it does. A job that it had not acknowledged is delivered again."""
        name, worker = self.by_session.pop(session)
        worker.kill()
        await worker.finish(status=-9)
        while await self._redis.lmove(f"bulk:of:{name}", "bulk:jobs", "RIGHT", "LEFT"):
            pass


@pytest.mark.timeout(90)
@pytest.mark.leaves_keys
@pytest.mark.parametrize(("seed", "number"), [(1, 150), pytest.param(1, 400, marks=pytest.mark.more)])
async def test_t_p_11_with_runners_and_waiters_killed_the_last_update_is_processed(
    server: Server, workers: Workers, redis: Redis, seed: int, number: int
) -> None:
    chance, crew = random.Random(seed), Crew(workers, server, redis)
    await crew.hire(5)
    updates, killed = 0, {"runner": 0, "waiter": 0}

    async def produce() -> None:
        nonlocal updates
        while updates < number or sum(killed.values()) < 3:
            updates = await redis.incr("bulk:value")
            await redis.lpush("bulk:jobs", updates)
            await asyncio.sleep(0.002)

    async def kill_one(role: str) -> None:
        await asyncio.sleep(chance.random() * 0.1)
        session = await eventually(crew.runner if role == "runner" else crew.waiter, within=SOON)
        await crew.kill(session)
        killed[role] += 1

    producing = begin(produce())
    for role in ("waiter", "runner", "waiter"):
        await kill_one(role)
    await crew.hire(1)
    await producing

    async def settled() -> bool:
        return int(await redis.get("bulk:acknowledged") or 0) >= updates

    await eventually(settled, within=30)
    runs = [int(value) for value in await redis.lrange("bulk:runs", 0, -1)]
    log.info("%d runs for %d updates, killed: %s", len(runs), updates, killed)
    assert int(await redis.get("bulk:processed")) == updates
    assert len(runs) < updates / 2
    for _, worker in crew.by_session.values():
        worker.kill()
        await worker.finish(status=-9)
    await redis.delete(*await redis.keys("bulk:*"))


# -- those who wait ------------------------------------------------------------------------------------------


async def wait_to_run(url: str) -> None:
    """In a process of its own: wait until it is its turn, which it never is."""
    async with Redis.from_url(url) as redis, Session(redis) as session:
        tell("waits")
        async with UniqueJob(session, KEY).run(waiting=1):
            tell("runs")
            await asyncio.sleep(60)


@pytest.mark.more  # as T-P-11 with runners and waiters killed
@pytest.mark.leaves_keys
async def test_t_p_11_the_place_of_a_waiter_that_was_killed_is_free_after_two_seconds(
    server: Server, workers: Workers, session: Session, by_hand: ByHand
) -> None:
    """Its job is not lost, however soon it is delivered again: nobody believes that the worker lives."""
    job = UniqueJob(session, KEY)
    async with job.run(waiting=1):
        process = await workers.start(wait_to_run, url=server.url)
        await eventually(lambda: by_hand.redis.zcard(place(".queue")) == 1, within=SOON)
        await asyncio.sleep(2.2)  # as long as it lives, it keeps it
        assert await asyncio.wait_for(begin(job.try_run(waiting=1)), SOON) is None
        process.kill()
        began = time.monotonic()
        redelivered = begin(job.try_run(waiting=1))
        await eventually(lambda: unsure(by_hand), within=SOON)
        await eventually(lambda: not unsure(by_hand), within=2 + SOON)
        assert time.monotonic() - began > 1  # nobody could know
        assert not redelivered.done()
    await (await asyncio.wait_for(redelivered, SOON)).release()


def unsure(by_hand: ByHand) -> bool:
    """Whether somebody has to make sure that those who wait live."""
    return any(int(number) < 0 for number in by_hand.redis.hvals(place(".seen")))


async def test_a_waiter_that_is_stopped_for_a_moment_is_waited_for(
    server: Server, workers: Workers, session: Session, by_hand: ByHand
) -> None:
    """It is not known to live, nor to be dead: as soon as it goes on, the other one is a duplicate."""
    job = UniqueJob(session, KEY)
    async with job.run(waiting=1):
        process = await workers.start(wait_to_run, url=server.url)
        await eventually(lambda: by_hand.redis.zcard(place(".queue")) == 1, within=SOON)
        process.stop()
        trying = begin(job.try_run(waiting=1))
        await asyncio.sleep(0.3)
        assert not trying.done()
        process.cont()
        assert await asyncio.wait_for(trying, SOON) is None
        process.kill()
        await process.finish(status=-9)
    by_hand.redis.delete(*by_hand.redis.keys(place("*")))


async def test_who_comes_during_a_run_waits_for_his_own(session: Session, connect: Connect) -> None:
    """The place to wait is free from the moment on in which its owner begins."""
    here, there = UniqueJob(session, KEY), UniqueJob(connect(), KEY)
    first = await here.run()
    for _ in range(20):
        waiting = await waiter(session, here.run())
        with pytest.raises(DuplicateJobError, match="all waiting places are taken"):
            await asyncio.wait_for(there.run(), SOON)
        await first.release()
        first = await asyncio.wait_for(waiting, SOON)
        for job in (here, there):
            other = await waiter(Session.of(there._source) if job is there else session, job.run())
            other.cancel()
            await asyncio.wait({other})
    await first.release()


@pytest.mark.parametrize("waiting", [1, None])
async def test_a_run_is_waited_for_no_longer_than_asked_for(
    session: Session, connect: Connect, by_hand: ByHand, waiting: int | None
) -> None:
    """And gives its waiting place back; one whose turn comes in time runs."""
    here, there = UniqueJob(session, KEY), UniqueJob(connect(), KEY)
    first = await here.run()
    with pytest.raises(DuplicateJobError):
        await asyncio.wait_for(there.run(waiting=waiting, blocking_timeout=0), SOON)
    assert not by_hand.redis.exists(place(".queue"))
    with pytest.raises(LockTimeoutError, match=f"UniqueJob '{KEY}' was not acquired within 0.3 s"):
        await asyncio.wait_for(there.run(waiting=waiting, blocking_timeout=0.3), SOON)
    await eventually(lambda: not by_hand.redis.exists(place(".queue")), within=SOON)
    last = await waiter(session, here.run(waiting=1, blocking_timeout=SOON))
    await first.release()
    await (await asyncio.wait_for(last, SOON)).release()
    with pytest.raises(ValueError, match="blocking_timeout"):
        here.run(blocking_timeout=-1)


async def test_a_newcomer_never_passes_who_waits(session: Session, connect: Connect) -> None:
    """It is free, and the waiter has not heard of it yet."""
    here, there = UniqueJob(session, KEY), UniqueJob(connect(), KEY)
    for room in (0, 1):
        lease = await here.run()
        waiting = await waiter(session, here.run())
        releasing = begin(lease.release())
        assert await there.try_run(waiting=room) is None or waiting.done()
        await releasing
        await (await asyncio.wait_for(waiting, SOON)).release()


async def test_an_update_is_not_lost_beside_a_delivery_that_finds_its_ticket_done(
    session: Session, connect: Connect
) -> None:
    """The delivery waits, and runs nothing; the update came after the run of its ticket had begun."""
    here, there = UniqueJob(session, KEY), UniqueJob(connect(), KEY)
    ticket = await here.enqueue("until_executed")
    async with here.perform(ticket):
        again = await waiter(Session.of(there._source), there.try_perform(ticket))
        update = await waiter(session, here.run(waiting=1))
        assert await asyncio.wait_for(here.try_run(waiting=1), SOON) is None  # of that update
    assert await asyncio.wait_for(again, SOON) is None
    async with await asyncio.wait_for(update, SOON):
        assert await there.try_run(waiting=0) is None


async def test_while_executing_all_run_one_by_one_in_their_order(
    session: Session, connect: Connect, by_hand: ByHand
) -> None:
    here, there = UniqueJob(session, KEY), UniqueJob(connect(), KEY)
    inside, order = 0, []

    async def one(number: int) -> None:
        nonlocal inside
        async with (here if number % 2 else there).run(waiting=None):
            inside += 1
            assert inside == 1
            order.append(number)
            await asyncio.sleep(0.002)
            inside -= 1

    async with here.run(waiting=None):
        running = []
        for number in range(10):
            running.append(begin(one(number)))
            await eventually(lambda: by_hand.redis.zcard(place(".queue")) == len(running), within=SOON)
    await asyncio.wait_for(asyncio.gather(*running), SOON)
    assert order == list(range(10))


async def test_the_session_ends_who_waits(redis: Redis, connect: Connect) -> None:
    async with Session(redis) as session:
        lease = await UniqueJob(connect(), KEY).run()
        waiting = await waiter(session, UniqueJob(session, KEY).run())
    with pytest.raises(SessionClosedError):
        await waiting
    await lease.release()


# -- tickets -------------------------------------------------------------------------------------------------


async def perform_for_ever(url: str, ttl: float) -> None:
    """In a process of its own: begin whatever comes, and never come to an end."""
    async with Redis.from_url(url) as redis, Session(redis) as session:

        async def one() -> None:
            _, message = await redis.blpop("tickets")
            mode, ticket = message.decode().split()
            async with UniqueJob(session, mode, ttl=ttl).perform(ticket):
                tell("began", mode=mode)
                await asyncio.sleep(60)

        await asyncio.gather(*(one() for _ in MODES))


@pytest.mark.leaves_keys
async def test_t_p_11_a_worker_killed_in_the_midst_of_it_and_the_ticket_runs_again(
    server: Server, workers: Workers, session: Session
) -> None:
    """At least once: the queue delivers it again, and it waits for the lease of the dead, no longer."""
    process = await workers.start(perform_for_ever, url=server.url, ttl=TTL)
    await asyncio.gather(*(outlive(process, session, mode) for mode in MODES), end(process))


async def end(process: Worker) -> None:
    for _ in MODES:
        await process.told("began")
    await asyncio.sleep(2 * TTL)
    process.kill()


async def outlive(process: Worker, session: Session, mode: Mode) -> None:
    job = UniqueJob(session, mode, ttl=TTL)
    ticket = await job.enqueue(mode)
    await session._client.rpush("tickets", f"{mode} {ticket}")
    await eventually(lambda: any(one.get("mode") == mode for one in process.told_so_far), within=SOON)
    keeps = mode in ("until_executed", "until_expired")
    newer = await job.enqueue(mode, on_conflict="skip")
    assert (newer is None) is keeps
    async with await asyncio.wait_for(job.perform(ticket), 3 * TTL + SOON):
        assert process.returncode == -9  # as long as it lives, it never runs beside itself
        assert await job.enqueue(mode, on_conflict="skip") is None
    with pytest.raises(DuplicateJobError):
        await job.perform(ticket)


@each_mode
async def test_two_workers_with_one_ticket_run_it_once(
    session: Session, connect: Connect, mode: Mode
) -> None:
    here, there = UniqueJob(session, KEY), UniqueJob(connect(), KEY)
    ticket = await here.enqueue(mode)
    inside = ran = 0

    async def work(job: UniqueJob) -> bool:
        nonlocal inside, ran
        async with job.try_perform(ticket) as lease:
            if lease is None:
                return False
            inside += 1
            assert inside == 1
            await asyncio.sleep(0.05)
            inside, ran = inside - 1, ran + 1
        return True

    outcomes = await asyncio.gather(*(work(job) for job in (here, there, here, there)))
    assert (ran, sorted(outcomes)) == (1, [False, False, False, True])


@each_mode
async def test_whoever_waits_for_a_run_that_raises_runs_it(
    session: Session, connect: Connect, mode: Mode
) -> None:
    here, there = UniqueJob(session, KEY), UniqueJob(connect(), KEY)
    ticket = await here.enqueue(mode)
    with pytest.raises(ZeroDivisionError):
        async with here.perform(ticket):
            waiting = await waiter(session, UniqueJob(session, KEY).perform(ticket))
            raise ZeroDivisionError
    async with await asyncio.wait_for(waiting, SOON):
        pass
    assert await there.try_perform(ticket) is None


@pytest.mark.more  # as T-P-11
async def test_what_keeps_its_key_keeps_it_for_as_long_as_it_runs(session: Session) -> None:
    """Pitfall 51: neither the lease of the run nor the ticket's ttl has to be as long as the job."""

    async def work(mode: Mode) -> None:
        job = UniqueJob(session, mode, ttl=TTL)
        ticket = await job.enqueue(mode, ttl=TTL)
        until = time.monotonic() + 3 * TTL
        async with job.perform(ticket) as lease:
            while time.monotonic() < until:
                assert await job.enqueue(mode, on_conflict="skip") is None
                await asyncio.sleep(0.02)
            lease.ensure_held()

    await asyncio.gather(work("until_executed"), work("until_expired"))


async def test_until_expired_is_for_its_own_time_however_long_a_run_may_last(session: Session) -> None:
    job = UniqueJob(session, KEY, ttl=60)
    ticket = await job.enqueue("until_expired", ttl=8)
    with suppress(ZeroDivisionError):
        async with job.perform(ticket):
            raise ZeroDivisionError
    async with job.perform(ticket):
        pass
    with pytest.raises(DuplicateJobError, match=r"for [0-7]\.\d+ s more"):
        await job.enqueue("until_expired")


async def test_replaced_while_it_waits_for_another_run_it_is_a_duplicate(session: Session) -> None:
    job = UniqueJob(session, KEY)
    mode: Mode = "until_and_while_executing"
    async with job.perform(await job.enqueue(mode)):
        older = await job.enqueue(mode)
        waiting = await waiter(session, job.perform(older))
        newer = await job.enqueue(mode, on_conflict="replace")
        with pytest.raises(DuplicateJobError, match="has taken the place"):
            await asyncio.wait_for(waiting, 1.0 + SLACK)  # it asks each second
    async with job.perform(newer):
        pass


@pytest.mark.leaves_keys
async def test_a_run_that_was_lost_is_cancelled_and_not_done(session: Session, redis: Redis) -> None:
    job = UniqueJob(session, KEY, ttl=0.3)
    ticket = await job.enqueue("until_executed")
    with pytest.raises(LockLostError):
        async with job.perform(ticket):
            await redis.delete(place(""))
            await asyncio.sleep(SOON)
    async with job.perform(ticket):
        pass


@pytest.mark.leaves_keys
async def test_a_body_that_hides_that_it_was_lost_has_not_done_it(session: Session, redis: Redis) -> None:
    job = UniqueJob(session, KEY, ttl=0.3)
    ticket = await job.enqueue("until_executed")
    with pytest.raises(LockLostError):
        async with job.perform(ticket):
            await redis.delete(place(""))
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(SOON)
    async with job.perform(ticket):
        pass


# -- what goes wrong on the way ------------------------------------------------------------------------------


async def test_a_lost_reply_to_enqueue_leaves_one_ticket(through: Proxy, connect: Connect) -> None:
    job = UniqueJob(connect(through), KEY)
    await connected(job)
    for mode in MODES:
        lost = through.reset_after(is_step(steps._ENQUEUE))
        ticket = await job.enqueue(mode, ttl=30, on_conflict="replace")
        assert lost.is_set()
        assert await job.enqueue(mode, on_conflict="skip") is None
        async with job.perform(ticket):
            pass


async def test_a_lost_reply_to_an_enqueue_that_was_replaced_since_leaves_the_newer_one(
    through: Proxy, connect: Connect
) -> None:
    """Sent again, it must not take its place: both would be duplicates, and nobody's job run."""
    here, there = UniqueJob(connect(through), KEY), UniqueJob(connect(), KEY)
    await connected(here)
    await connected(there)
    through.drop_replies = True
    enqueueing = begin(here.enqueue("until_executed", on_conflict="replace"))

    async def taken() -> bool:
        return await there.enqueue("until_executed", ttl=0.05, on_conflict="skip") is None

    await eventually(taken, within=SOON)
    newer = await there.enqueue("until_executed", on_conflict="replace")
    through.drop_replies = False
    through.cut()
    older = await asyncio.wait_for(enqueueing, SOON)
    assert await there.try_perform(older) is None
    async with there.perform(newer):
        pass


async def test_a_lost_reply_to_the_beginning_is_no_duplicate(through: Proxy, connect: Connect) -> None:
    """It has given up its key by then, and somebody else may have it already."""
    job, producer = UniqueJob(connect(through), KEY), UniqueJob(connect(), KEY)
    for mode in MODES:
        ticket = await job.enqueue(mode, on_conflict="replace")
        lost = through.reset_after(is_step(steps._ACQUIRE))
        performing = begin(job.perform(ticket))
        await asyncio.wait_for(lost.wait(), SOON)
        await producer.enqueue(mode, on_conflict="skip")
        async with await asyncio.wait_for(performing, SOON):
            pass


async def test_a_lost_reply_to_the_end_is_the_end(through: Proxy, connect: Connect) -> None:
    job = UniqueJob(connect(through), KEY)
    ticket = await job.enqueue("until_executed")
    lost = through.reset_after(is_step(steps._RELEASE))
    async with job.perform(ticket):
        pass
    assert lost.is_set()
    assert await job.try_perform(ticket) is None
    await job.enqueue("until_executed", ttl=1)


async def test_a_lost_reply_to_who_waits_is_one_place(through: Proxy, connect: Connect) -> None:
    here, there = UniqueJob(connect(through), KEY), UniqueJob(connect(), KEY)
    lease = await there.run()
    await here.try_run(waiting=0)  # connected
    lost = through.reset_after(is_step(steps._ACQUIRE))
    waiting = begin(here.run())
    await asyncio.wait_for(lost.wait(), SOON)
    await asyncio.sleep(0.1)
    assert not waiting.done()
    assert await there.try_run() is None
    await lease.release()
    await (await asyncio.wait_for(waiting, SOON)).release()


@pytest.mark.parametrize("on_conflict", ["raise", "replace"])
async def test_an_enqueue_without_an_answer_leaves_the_key_as_it_was(
    through: Proxy, connect: Connect, on_conflict: Any
) -> None:
    """Its ticket is known to nobody: it must not keep others away for an hour."""
    producer = UniqueJob(connect(), KEY)
    older = await producer.enqueue("until_executed") if on_conflict == "replace" else None
    async with Session(connect(through), command_timeout=0.2) as session:
        job = UniqueJob(session, KEY)
        await connected(job)
        through.drop_replies = True
        with pytest.raises(BackendError):
            await job.enqueue("until_executed", on_conflict=on_conflict)
        through.drop_replies = False
        through.cut()

        async def as_before() -> bool:
            ticket = await producer.enqueue("until_executed", ttl=30, on_conflict="skip")
            return (ticket is None) is (older is not None)

        await eventually(as_before, within=SOON)
    if older is not None:
        async with producer.perform(older):
            pass


@pytest.mark.parametrize(("many", "ttl"), only([(1, 0.05), (30, 0.05), (30, 3600.0)], (30, 0.05)))
async def test_however_many_enqueues_come_to_nothing_the_ticket_before_them_has_the_key(
    through: Proxy, connect: Connect, redis: Redis, many: int, ttl: float
) -> None:
    """Also where the time of each with the key was over before it was taken back."""
    producer = UniqueJob(connect(), KEY)
    older = await producer.enqueue("until_executed")
    owner = await redis.get(place(".owner"))
    async with Session(connect(through), command_timeout=0.5) as session:
        job = UniqueJob(session, KEY)
        await connected(job)
        through.drop_replies = True
        replacing = [job.enqueue("until_executed", ttl=ttl, on_conflict="replace") for _ in range(many)]
        answers = await asyncio.gather(*replacing, return_exceptions=True)
        assert all(isinstance(answer, BackendError) for answer in answers), answers
        through.drop_replies = False
        through.cut()

        async def as_before() -> bool:
            return await redis.get(place(".owner")) == owner

        await eventually(as_before, within=SOON)
    async with producer.perform(older):
        pass


async def test_an_enqueue_that_came_to_nothing_leaves_the_key_to_one_that_was_done_and_has_not_expired(
    through: Proxy, connect: Connect, redis: Redis
) -> None:
    producer = UniqueJob(connect(), KEY)
    async with producer.perform(await producer.enqueue("until_expired")):
        pass
    async with Session(connect(through), command_timeout=0.2) as session:
        job = UniqueJob(session, KEY)
        await connected(job)
        through.drop_replies = True
        with pytest.raises(BackendError):
            await job.enqueue("until_expired", on_conflict="replace")
        through.drop_replies = False
        through.cut()

        async def taken_back() -> bool:
            return not await redis.exists(place(".before"))

        await eventually(taken_back, within=SOON)
    assert await producer.enqueue("until_expired", on_conflict="skip") is None


# -- cancelled anywhere --------------------------------------------------------------------------------------


async def test_each_waiter_has_a_bell_of_its_own_also_after_calls_that_never_waited(
    session: Session, redis: Redis, connect: Connect
) -> None:
    """A call is the last caller again, and not where that one holds, asks or has waited."""

    async def both_wait() -> bool:
        return await redis.zcard(place(".queue")) == 2

    job, seen = UniqueJob(session, KEY), set[bytes]()
    async with Session(connect()) as other:
        for holder in (job, UniqueJob(other, KEY)):
            running = await holder.run(waiting=2)
            waiting = [begin(job.run(waiting=2)) for _ in range(2)]
            await eventually(both_wait, within=SOON)
            assert not running._possession.target.gate.awaited
            bells = {entry[:-16] for entry in await redis.zrange(place(".queue"), 0, -1)}
            assert len(bells) == 2
            assert not bells & seen
            seen |= bells
            await running.release()
            for lease in asyncio.as_completed(waiting):
                await (await lease).release()


async def test_run_cancelled_anywhere_leaves_nothing(session: Session, connect: Connect, keys: Keys) -> None:
    job, other = UniqueJob(session, KEY), UniqueJob(connect(), KEY)

    async def use() -> None:
        async with job.run(waiting=1):
            await asyncio.sleep(0)

    async def free(_: Any) -> None:
        async with asyncio.timeout(SOON):
            async with other.run(waiting=1):
                pass
        await eventually(lambda: keys() == [], within=SOON)

    await sweep(use, after=free)


async def test_waiting_cancelled_anywhere_frees_the_place(session: Session, connect: Connect) -> None:
    job, other = UniqueJob(session, KEY), UniqueJob(connect(), KEY)

    async def wait() -> None:
        async with asyncio.timeout(0.02), job.run(waiting=1):
            pass

    async def use() -> None:
        with suppress(TimeoutError):
            await wait()

    async def free(_: Any) -> None:
        waiting = await waiter(Session.of(other._source), other.run(waiting=1))
        waiting.cancel()
        await asyncio.wait({waiting})

    async with job.run():
        await sweep(use, after=free)


@each_mode
async def test_perform_cancelled_anywhere_can_be_performed(
    session: Session, connect: Connect, mode: Mode
) -> None:
    job, other = UniqueJob(session, KEY), UniqueJob(connect(), KEY)
    tickets = [await other.enqueue(mode)]
    done: list[str] = []

    async def use() -> None:
        async with job.perform(tickets[-1]):
            await asyncio.sleep(0)
            done.append(tickets[-1])

    async def can_be_performed(_: Any) -> None:
        async with asyncio.timeout(SOON), other.try_perform(tickets[-1]) as lease:
            assert lease is not None or tickets[-1] in done
        tickets.append(await other.enqueue(mode, on_conflict="replace"))

    for when in MOMENTS:
        await sweep(use, modes=[when], after=can_be_performed)
        await can_be_performed(None)
    assert done


@pytest.mark.parametrize("before", [False, True], ids=["free", "taken"])
async def test_enqueue_cancelled_anywhere_leaves_the_key_as_it_was(
    session: Session, connect: Connect, redis: Redis, before: bool
) -> None:
    job, other = UniqueJob(session, KEY), UniqueJob(connect(), KEY)
    older = await other.enqueue("until_executed") if before else None
    owner = await redis.get(place(".owner"))

    async def enqueue() -> None:
        await job.enqueue("until_executed", on_conflict="replace" if before else "raise")

    async def as_before(_: Any) -> None:
        async def same_owner() -> bool:
            return await redis.get(place(".owner")) == owner

        await eventually(same_owner, within=SOON)
        if older is not None:
            async with other.perform(older) as lease:
                await lease.release(done=False)

    await sweep(enqueue, modes=["early"], after=as_before)
    if before:  # at the end nobody has cancelled it
        assert await other.try_perform(str(older)) is None
    else:
        await redis.delete(place(".owner"))
        await sweep(enqueue, modes=["late"], after=as_before)
