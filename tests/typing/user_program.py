"""The types that a type checker sees of a user's program. It is checked by mypy and pyright, and never run.

`assert_type` fails where a type has become less exact; an ignored error, where it is an error no longer.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, assert_type

from aiohttp import web
from fastapi import Depends, FastAPI
from redis.asyncio import Redis, RedisCluster

from aiolocks import (
    Batch,
    Combiner,
    FairLock,
    HolderInfo,
    JobLease,
    Latch,
    LeaderInfo,
    Leadership,
    Lease,
    Limits,
    Lock,
    LockEvent,
    LockInfo,
    MultiLock,
    RangeLease,
    RangeLock,
    RangeUpgradableLease,
    RangeWriterLease,
    RateDecision,
    RateLimit,
    Redlock,
    ReentrantLease,
    ReentrantLock,
    RWLock,
    Schedule,
    Semaphore,
    Session,
    SingleFlight,
    SpanLease,
    Term,
    Tick,
    TickRecord,
    Turnstile,
    UniqueJob,
    UpgradableLease,
    WaiterInfo,
    WriterLease,
    sync,
)
from aiolocks.contrib.aiohttp import LEASE, SESSION, error_middleware, locked
from aiolocks.contrib.fastapi import (
    Limited,
    Locked,
    current_session,
    install_error_handlers,
    session_lifespan,
    session_of,
)
from aiolocks.contrib.redis_py import Lock as RedisPyLock


async def ways_to_acquire(redis: Redis) -> None:
    lock = Lock(redis, "name", ttl=5, grace=timedelta(seconds=1))
    async with lock as lease:
        assert_type(lease, Lease)
    async with lock.acquire(blocking_timeout=2) as lease:
        assert_type(lease, Lease)
    async with lock.try_acquire() as maybe:
        assert_type(maybe, Lease | None)
    assert_type(await lock.acquire(), Lease)
    assert_type(await lock.try_acquire(), Lease | None)
    assert_type(await lock.adopt("handle"), Lease)
    assert_type(await lock.locked(), bool)
    assert_type(await asyncio.wait_for(lock.acquire(), 1), Lease)
    assert_type(await asyncio.gather(lock.acquire(), lock.try_acquire()), tuple[Lease, Lease | None])
    async with asyncio.TaskGroup() as group:
        task = group.create_task(lock.try_acquire())
    assert_type(task.result(), Lease | None)


async def decorated(redis: Redis) -> None:
    @Lock(redis, "name")
    async def function(number: int, *, text: str = "") -> float:
        return number + len(text)

    class Account:
        @RWLock(redis, "name").reader
        async def read(self, number: int) -> str:
            return str(number)

    limits = Limits(redis, "exports", {"all": 20, "tenant:1": 1}, ttl=5)
    async with limits as limited, limits.acquire(blocking_timeout=1):
        assert_type(limited, Lease)
    assert_type(await limits.in_use(), dict[str, int])
    assert_type(await limits.try_acquire(), Lease | None)

    @MultiLock(redis, ["account:{source}", "account:{target}"])
    async def transfer(source: int, target: int, *, amount: int = 1) -> list[int]:
        return [source, target, amount]

    assert_type(await function(1, text="a"), float)
    assert_type(await Account().read(1), str)
    assert_type(await transfer(1, target=2, amount=3), list[int])
    await function("1")  # type: ignore[arg-type]
    await Account().read()  # type: ignore[call-arg]
    await transfer(1, 2, 3)  # type: ignore[call-arg]


async def kinds(redis: Redis, cluster: RedisCluster, session: Session) -> None:
    for lock in (Lock(redis, "a", at_least=5), FairLock(cluster, "a"), MultiLock(session, ["a", "b"])):
        assert_type(await lock.acquire(), Lease)
    assert_type(await Redlock([redis, session, redis], "a").acquire(), Lease)
    async with ReentrantLock(redis, "a", owner="me") as reentrant:
        assert_type(reentrant, ReentrantLease)
    semaphore = Semaphore(redis, "a", 3, fair=True)
    assert_type(await semaphore.acquire(2), Lease)
    assert_type(await semaphore.try_acquire(2), Lease | None)
    assert_type(await semaphore.available(), int)
    FairLock(redis, "a", ttl=60, at_least=timedelta(minutes=1))
    Semaphore(redis, "a", 3, at_least=5)  # type: ignore[arg-type]


async def schedules(redis: Redis, session: Session) -> None:
    nightly = Schedule(session, "nightly", cron="0 3 * * *", tz="Europe/Berlin", overlap="queue", redo=1)
    often = Schedule(redis, "often", every=timedelta(minutes=1), misfire="all", at_most=30, jitter=5)

    @nightly
    async def job(tick: Tick) -> int:
        assert_type(tick.due, datetime)
        assert_type(tick.lease, Lease)
        return tick.missed

    @often
    async def without(tick: Tick) -> None: ...

    @often  # type: ignore[type-var]
    async def too_few() -> None: ...

    async with nightly as kept:
        assert_type(kept, Schedule)
        assert_type(await nightly.trigger(), bool)
    records = await nightly.history(limit=5)
    assert_type(records, list[TickRecord])
    assert_type(records[0].duration, float | None)
    assert_type(await job(Tick.__new__(Tick)), int)
    Schedule(redis, "a", every=60, overlap="wait")  # type: ignore[arg-type]
    await often.run()


async def modes(redis: Redis) -> None:
    rw = RWLock(redis, "a")
    async with rw.reader as reader, rw.upgradable as upgradable, rw.writer as writer:
        assert_type(reader, SpanLease)
        assert_type(upgradable, UpgradableLease)
        assert_type(writer, WriterLease)
        async with upgradable.upgrade(blocking_timeout=1) as upgraded:
            assert_type(upgraded, WriterLease)
        assert_type(await rw.writer.try_acquire(), WriterLease | None)
        reader.upgrade()  # type: ignore[attr-defined]
    ranges = RangeLock(redis, "a", bounds="[]")
    async with (
        ranges.reader(0, 1) as part,
        ranges.upgradable(0, 1) as planned,
        ranges.writer(0, 1) as changed,
    ):
        assert_type(part, RangeLease)
        assert_type(planned, RangeUpgradableLease)
        assert_type(changed, RangeWriterLease)
        assert_type(await planned.upgrade(0, 0.5), RangeWriterLease)


async def what_is_built_with_them(redis: Redis) -> None:
    async def make() -> dict[str, int]:
        return {}

    flight = SingleFlight(redis, keep=60)
    assert_type(await flight.do("key", make), dict[str, int])
    assert_type(await flight.do("key", lambda: make(), fingerprint=b"request"), dict[str, int])  # noqa: PLW0108
    assert_type(await flight.do("key", make, keep=60, stale=30, early=1.0, jitter=0.1), dict[str, int])

    @flight("report:{user_id}", keep=60, stale=timedelta(minutes=1))
    async def report(user_id: int, *, page: int = 1) -> list[str]:
        return [str(user_id + page)]

    assert_type(await report(7, page=2), list[str])
    async with flight.turn("key") as turn:
        assert_type(turn.first, bool)
    job = UniqueJob(redis, "key")
    assert_type(await job.enqueue("until_executed"), str)
    assert_type(await job.enqueue("until_executed", on_conflict="replace"), str)
    assert_type(await job.enqueue("until_executed", on_conflict="skip", metadata={"order": 17}), str | None)
    async with job.run() as run, job.try_run() as maybe, job.perform("ticket") as performed:
        assert_type(run, Lease)
        assert_type(maybe, Lease | None)
        assert_type(performed, JobLease)
    async with job.try_perform("ticket") as maybe_performed:
        assert_type(maybe_performed, JobLease | None)
    async with Turnstile(redis, "name", window=2) as number:
        assert_type(number, int)

    async def combined(batch: Batch) -> int:
        batch.results = None
        return batch.number + batch.attempt + batch.lease.fencing_token + len(batch.items)

    combiner = Combiner(redis, "name:{part}", ttl=timedelta(seconds=9), window=0.1, within=1, retry=1)
    assert_type(await combiner.submit({"a": 1}, combined, part=1), int)
    assert_type((await combiner.leave([1], part=1)).pressure, int)
    assert_type(await combiner.drain(combined, part=1), None)
    assert_type(await combiner(combined)("item", part=1), int)
    latch = Latch(redis, "name", 3, ttl=timedelta(hours=2))
    assert_type(await latch.count_down(2), int)
    assert_type(await latch.wait(blocking_timeout=2), None)
    assert_type(await latch.reset(), int)
    async with latch as opened:
        assert_type(opened, None)
    limit = RateLimit(redis, "name", 60, per=timedelta(minutes=1), burst=10)
    assert_type(await limit.acquire(blocking_timeout=2), RateDecision)
    assert_type(await limit.try_acquire({limit: 2}), RateDecision)
    assert_type(await limit.peek(3), RateDecision)
    both = RateLimit.all_of(limit, RateLimit(redis, "other", 1000, per=86400))
    async with both as decision:
        assert_type(decision, RateDecision)
        assert_type(await decision.settle({"name": 1, "other": 900}), RateDecision)
    async with both.weighing({limit: 1, "other": 900}) as decision:
        assert_type(decision, RateDecision)

    @limit.weighing(len)
    async def weigh(text: str) -> int:
        return len(text)

    assert_type(await weigh("text"), int)

    @limit
    async def send(text: str) -> int:
        return len(text)

    assert_type(await send("text"), int)


async def leading(redis: Redis) -> None:
    leadership = Leadership(redis, "scheduler", ttl=10, grace=timedelta(seconds=2), value={"url": "here"})

    async def main(term: Term) -> int:
        await term.proclaim(["any", "JSON"])
        await term.step_down(cool_down=30)
        return term.fencing_token

    assert_type(await leadership.run(main), int)
    async with leadership as term:
        assert_type(term, Term)
    async with leadership.try_acquire() as maybe:
        assert_type(maybe, Term | None)
    assert_type(leadership.is_leader, bool)
    assert_type(await leadership.leader(), LeaderInfo | None)
    assert_type(await leadership.candidates(), tuple[WaiterInfo, ...])
    async for leader in leadership.observe():
        assert_type(leader, LeaderInfo | None)


class Losses:
    def on_lost(self, event: LockEvent) -> None:
        assert_type(event.reason, str)


async def sessions(redis: Redis) -> None:
    async with Session(redis, listeners=[Losses()], metadata={"service": ["a", None]}) as session:
        for info in await session.inspect():
            assert_type(info, LockInfo)
            assert_type(info.kept_until, float | None)
            assert_type(info.holders, tuple[HolderInfo, ...])
            assert_type(info.waiting, tuple[WaiterInfo, ...])
        assert_type(await session.force_release("a", kind="lock"), list[LockInfo])


async def slips(redis: Redis) -> None:
    lock = Lock(redis, "name")
    Lock(redis, "name", timeout=5)  # type: ignore[arg-type]
    Lock("name", redis)  # type: ignore[arg-type]
    lock.acquire(blocking=False)  # type: ignore[arg-type]
    lock.acquire(5)  # type: ignore[arg-type]
    Semaphore(redis, "name", 3).acquire(1, 5)  # type: ignore[arg-type]
    lock.release()  # type: ignore[attr-defined]
    lock.acquire().fencing_token  # type: ignore[attr-defined] # noqa: B018
    RWLock(redis, "name").acquire()  # type: ignore[attr-defined]
    with lock:  # type: ignore[attr-defined]
        pass
    async with RWLock(redis, "name"):  # type: ignore[attr-defined]
        pass


# -- elsewhere

nightly = Schedule(Session.from_url("redis://localhost"), "nightly", every=60)
leadership = Leadership(Session.from_url("redis://localhost"), "leads")


async def sweep(session: Session) -> None: ...


async def lead(term: Term) -> int:
    return 1


app = FastAPI(
    lifespan=session_lifespan(
        "redis://localhost",
        prefix="shop",
        background=[sweep, nightly.run, partial(leadership.run, lead, on_error="again")],
    )
)
session_lifespan("redis://localhost", background=[leadership.run])  # type: ignore[list-item]
assert_type(session_of(app), Session)


@app.post(
    "/orders/{order}",
    dependencies=[
        Locked("seats", kind=FairLock, ttl=5, status=429, retry_after=lambda error: error.remaining),
        Locked("report", kind=lambda session, name: Semaphore(session, name, 3)),
        Locked("prices", kind=lambda session, name: RWLock(session, name).reader),
    ],
)
async def pack(
    order: int,
    lease: Annotated[Lease, Locked("order:{order}")],
    session: Annotated[Session, Depends(current_session)],
) -> str:
    return f"{order} {lease} {session}"


@locked(
    "order:{order}", kind=lambda session, name: Semaphore(session, name, 3), retry_after=5, detail="Wait."
)
async def handle(request: web.Request) -> web.Response:
    assert_type(request[LEASE], Lease)
    assert_type(request.config_dict[SESSION], Session)
    return web.Response()


@Locked("order:{order}")  # type: ignore[arg-type]
async def slipped(order: int) -> None: ...


def application() -> web.Application:
    application = web.Application()
    application.router.add_get("/orders/{order}", handle)
    assert_type(application[SESSION], Session)
    return application


async def alike(redis: Redis) -> None:
    lock: Any = redis.lock("name", timeout=5, lock_class=RedisPyLock)
    async with lock, RedisPyLock(redis, "name", timeout=5, auto_renew=True) as held:
        assert_type(held, RedisPyLock)
        assert_type(await held.acquire(blocking=False), bool)


def of_threads(url: str) -> None:
    locks = sync.Session.from_url(url, prefix="shop")
    with locks.lock("a", ttl=10, blocking_timeout=2, on_lost=print) as lease:
        assert_type(lease, sync.Lease)
        assert_type(lease.owned(), bool)
    assert_type(locks.fairlock("a").try_acquire(), sync.Lease | None)
    assert_type(locks.multilock(["a", "b"]).acquire(), sync.Lease)
    assert_type(locks.semaphore("a", 3).acquire(2), sync.Lease)
    assert_type(locks.limits("a", {"all": 1}).in_use(), dict[str, int])
    with locks.reentrantlock("a") as nested:
        assert_type(nested.depth, int)
    with locks.rwlock("a").upgradable as upgradable, upgradable.upgrade(blocking_timeout=1) as writer:
        assert_type(writer, sync.WriterLease)
    with locks.rangelock("a").upgradable(0, 9) as range_, range_.upgrade(1, 2) as range_writer:
        assert_type(range_writer, sync.RangeWriterLease)
    assert_type(locks.redlock([locks, locks], "a"), sync.Lock[sync.Lease])

    @locks.lock("order:{order}")
    def ship(order: int, *, express: bool = False) -> str:
        return f"{order} {express}"

    assert_type(ship(7, express=True), str)
    assert_type(locks.call(lambda session: session.inspect("a")), list[LockInfo])
    locks.lock("a", on_lost="cancel")  # type: ignore[arg-type]
    locks.lock("a", timeout=3)  # type: ignore[arg-type]
    locks.fairlock("a", fair=True)  # type: ignore[arg-type]
    ship("x")  # type: ignore[arg-type]


def handled(app: FastAPI) -> web.Application:
    install_error_handlers(app, status=409)
    Limited(
        "exports", lambda: {"all": 1}, status=429, retry_after=lambda error: 2.0, detail="Later.", grace=2
    )
    Locked("it", grace=2)
    web.Application(middlewares=[error_middleware(status=409)])
    return web.Application(middlewares=[error_middleware])
