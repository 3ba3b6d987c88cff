"""`session.inspect()` and `session.force_release()`: what others hold, and what is none of ours."""

from __future__ import annotations

import asyncio
import dataclasses
import glob
import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis.asyncio import Redis, RedisCluster

from aiolocks import (
    BackendError,
    FairLock,
    FencedRegister,
    HolderInfo,
    Lease,
    LeaseState,
    Limits,
    Lock,
    LockEvent,
    LockInfo,
    LockLostError,
    LockNotOwnedError,
    MultiLock,
    RangeLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
    SessionClosedError,
    SingleFlight,
    Turnstile,
    UniqueJob,
)
from aiolocks.testing import EmbeddedServer
from tests.adversity.tools import with_own_connections
from tests.conftest import Connect, OwnServer, blocking
from tests.support import foreign
from tests.support.clusters import CLUSTER, node_port
from tests.support.processes import Workers, tell
from tests.support.servers import Server
from tests.support.waiting import eventually

PATIENCE = 20
"""Seconds that another process may take on a busy machine."""
NAMES = ["plain", "user:{42}:cart", "50%{42}", "{}", "{a", "100%", "a\n\0é", "*?[x]", "💥 \x1b[31m"]


def by_name(infos: list[LockInfo]) -> dict[tuple[str, str], LockInfo]:
    found = {(info.kind, info.name): info for info in infos}
    assert len(found) == len(infos)
    return found


def holder(infos: list[LockInfo]) -> HolderInfo:
    """The only one."""
    ((info,),) = (info.holders for info in infos)
    return info


def remade(info: LockInfo) -> str:
    return f"{info.kind} {info.name}"


# -- processes


async def hold_everything(url: str) -> None:
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(Redis.from_url(url))
        session = await stack.enter_async_context(Session(redis, metadata={"service": "worker"}))
        enter = stack.enter_async_context
        tokens: dict[str, int] = {}
        tokens["lock"] = (await enter(Lock(session, "lock", metadata={"order": 17}))).fencing_token
        nesting = ReentrantLock(session, "reentrant", owner="me")
        await enter(nesting)
        tokens["reentrant"] = (await enter(nesting)).fencing_token
        tokens["multi.a"] = tokens["multi.b"] = (
            await enter(MultiLock(session, ["multi.a", "multi.b"]))
        ).fencing_token
        tokens["fair"] = (await enter(FairLock(session, "fair"))).fencing_token
        semaphore = Semaphore(session, "semaphore", 3)
        tokens["semaphore"] = (await enter(semaphore.acquire(2))).fencing_token
        tokens["rw"] = (await enter(RWLock(session, "rw").writer)).fencing_token
        tokens["range"] = (await enter(RangeLock(session, "range").reader(0, 10))).fencing_token
        tokens["job"] = (await enter(UniqueJob(session, "job").run(waiting=1))).fencing_token
        await FencedRegister(session, "register").write("value", tokens["lock"])
        await Turnstile(session, "turnstile", window=60).enter()
        await UniqueJob(session, "enqueued").enqueue("until_executed", ttl=60, metadata={"order": 17})
        await enter(SingleFlight(session).turn("turn"))
        freed_at_once = UniqueJob(session, "begun")
        ticket = await freed_at_once.enqueue("until_executing", ttl=60)
        assert ticket is not None
        tokens["begun"] = (await enter(freed_at_once.perform(ticket))).fencing_token
        running = asyncio.create_task(SingleFlight(session).do("flight", forever))
        tell("holding", tokens=tokens)
        await running


async def forever() -> None:
    await asyncio.Event().wait()


async def wait_for_everything(url: str) -> None:
    async with Redis.from_url(url) as redis, Session(redis) as session, asyncio.TaskGroup() as tasks:
        for one in (
            Lock(session, "lock"),
            Lock(session, "lock"),
            ReentrantLock(session, "reentrant", owner="you"),
            MultiLock(session, ["multi.a", "multi.b"]),
            FairLock(session, "fair"),
            FairLock(session, "fair"),
            RWLock(session, "rw").reader,
            RangeLock(session, "range").writer(5, 15),
        ):
            tasks.create_task(one.acquire())
        tasks.create_task(Semaphore(session, "semaphore", 3).acquire(2))
        tasks.create_task(SingleFlight(session).do("flight", forever))
        tell("waiting")


@pytest.mark.leaves_keys("aiolocks:*")  # they are killed
async def test_every_kind_in_other_processes(workers: Workers, server: Server, session: Session) -> None:
    worker = await workers.start(hold_everything, url=server.url)
    tokens = (await worker.told("holding"))["tokens"]
    waiting = await workers.start_many(2, wait_for_everything, url=server.url)
    expected = {
        ("lock", "lock"): 2,
        ("lock", "reentrant"): 2,
        ("lock", "multi.a"): 2,
        ("lock", "multi.b"): 2,
        ("fairlock", "fair"): 4,  # each task has a place of its own
        ("semaphore", "semaphore"): 2,
        ("rwlock", "rw"): 2,
        ("rangelock", "range"): 2,
        ("singleflight", "flight"): 2,
        ("turn", "turn"): 0,
        ("uniquejob", "job"): 0,
        ("uniquejob", "enqueued"): 0,
        ("uniquejob", "begun"): 0,
        ("turnstile", "turnstile"): 0,
        ("fencedregister", "register"): 0,
    }

    async def all_there() -> bool:
        infos = await session.inspect()
        told = all(waiter.pid for info in infos for waiter in info.waiting)  # by who has waited for a while
        return told and {where: info.waiters for where, info in by_name(infos).items()} == expected

    await eventually(all_there, within=PATIENCE)
    found = by_name(await session.inspect())

    assert [info.problem for info in found.values()] == [""] * len(found)
    for (kind, name), info in found.items():
        if kind in ("turnstile", "fencedregister") or name == "enqueued":
            continue
        (one,) = info.holders
        assert (one.host, one.pid) == (socket.gethostname(), worker.pid)
        assert one.task
        assert one.fencing_token == tokens.get(name, one.fencing_token)
        assert one.remaining is not None
        assert one.held_for is not None
        assert one.held_since is not None
        assert 0 < one.remaining <= 60
        assert 0 < one.held_for < 2 * PATIENCE
        assert one.held_since == one.fencing_token / 1e6
        assert len(one.lease_id) == 12
        assert one.metadata["service"] == "worker"
    assert found["lock", "lock"].holders[0].metadata == {"service": "worker", "order": 17}
    assert found["lock", "lock"].holders[0].depth is None
    assert found["lock", "reentrant"].holders[0].depth == 2
    assert found["lock", "multi.a"].holders[0].lease_id == found["lock", "multi.b"].holders[0].lease_id
    assert (found["semaphore", "semaphore"].value, holder([found["semaphore", "semaphore"]]).permits) == (
        3,
        2,
    )
    assert holder([found["rwlock", "rw"]]).mode == "writer"
    assert holder([found["rwlock", "rw"]]).span is None
    low, high = holder([found["rangelock", "range"]]).span or (None, 0)
    assert (low, holder([found["rangelock", "range"]]).mode) == (0, "reader")
    assert 9.999 < high < 10
    enqueued = holder([found["uniquejob", "enqueued"]])
    assert (enqueued.mode, enqueued.pid, enqueued.metadata) == (
        "ticket",
        worker.pid,
        {"service": "worker", "order": 17},
    )
    assert found["turnstile", "turnstile"].value == 1
    assert found["fencedregister", "register"].holders == ()

    pids = {one.pid for one in waiting}
    for info in found.values():
        assert len(info.waiting) == info.waiters
        assert {(one.host, one.pid) for one in info.waiting} == {
            (socket.gethostname(), pid) for pid in pids if info.waiters
        }
        times = [one.waited_for or 0 for one in info.waiting]
        assert times == sorted(times, reverse=True)
        assert all(0 < one < 2 * PATIENCE for one in times)

    for one in waiting:
        one.kill()
    await eventually(lambda: nobody_waits(session), within=PATIENCE)  # their bells end


async def nobody_waits(session: Session) -> bool:
    return not any(info.waiters for info in await session.inspect())


# -- forms of clients, names and patterns


@pytest.mark.parametrize("decode_responses", [False, True])
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("own_connections", [False, True], ids=["multiplexed", "plain"])
async def test_every_form_of_client(
    connect: Connect, decode_responses: bool, protocol: int, own_connections: bool
) -> None:
    client = connect(decode_responses=decode_responses, protocol=protocol)
    if own_connections:
        with_own_connections(client)
    async with Session(client) as session, AsyncExitStack() as stack:
        for name in NAMES:
            await stack.enter_async_context(Lock(session, name, metadata={"ü": [1, None]}))
        await stack.enter_async_context(RWLock(session, NAMES[-1]).reader)
        found = by_name(await session.inspect())

        assert set(found) == {*(("lock", name) for name in NAMES), ("rwlock", NAMES[-1])}
        assert {info.problem for info in found.values()} == {""}
        assert found["lock", NAMES[0]].holders[0].metadata == {"ü": [1, None]}
        for name in NAMES:
            one = by_name(await session.inspect(glob.escape(name)))
            assert one["lock", name].holders[0].lease_id == found["lock", name].holders[0].lease_id
        lease = await Lock(session, "another").acquire()
        (freed,) = await session.force_release("another")
        assert (freed.name, lease.state) == ("another", LeaseState.LOST)
        assert await session.inspect("another") == []


async def test_patterns_are_of_names(session: Session) -> None:
    names = ["order:1", "order:2", "order:{3}", "border:1", "[o]", "o"]
    async with AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(Lock(session, name))
        for pattern, expected in (
            ("*", names),
            ("order:*", names[:3]),
            ("order:?", names[:2]),
            ("*order:[12]", ["order:1", "order:2", "border:1"]),
            ("order:[!1]", ["order:2"]),
            ("order:{3}", ["order:{3}"]),
            ("[[]o]", ["[o]"]),
            ("[o]", ["o"]),
            ("ORDER:*", []),
            ("aiolocks*", []),
            ("", []),
        ):
            assert [info.name for info in await session.inspect(pattern)] == sorted(expected), pattern


async def test_a_prefix_is_no_pattern(redis: Redis) -> None:
    async with Session(redis, prefix="a*[b]?\\") as one, Session(redis, prefix="axxb?\\") as other:
        async with Lock(one, "mine"), Lock(other, "yours"):
            assert [info.name for info in await one.inspect()] == ["mine"]
            assert [info.name for info in await other.inspect()] == ["yours"]


async def test_nothing_is_held(session: Session) -> None:
    async with (
        Lock(session, "was held"),
        Semaphore(session, "was full", 2),
        RWLock(session, "was read").reader,
    ):
        pass

    assert await session.inspect() == []  # though fences are kept


async def test_what_is_found_can_be_taken_apart_and_tells_no_secret(session: Session) -> None:
    async with Lock(session, "name", metadata={"a": {"b": 1}}) as lease:
        (info,) = await session.inspect()
    fields = dataclasses.asdict(info)

    assert fields["holders"][0]["metadata"] == {"a": {"b": 1}}
    assert lease.token not in repr(info)
    assert lease.token[:8] not in repr(info)
    assert info.holders[0].pid == os.getpid()


# -- what others have put there


@pytest.mark.leaves_keys("aiolocks*")
async def test_what_is_not_ours_is_shown_as_such(session: Session, redis: Redis) -> None:
    await redis.set("aiolocks:text", "x")
    await redis.rpush("aiolocks:lock:{list}", "x")
    await redis.set("aiolocks:lock:{text}", "x", px=60_000)
    await redis.hset("aiolocks:semaphore:{hash}", "a", "b")
    await redis.hset("aiolocks:semaphore.leases:{half}", mapping={"a1" * 16: "1:5:{}", "held": "1"})
    await redis.pexpire("aiolocks:semaphore.leases:{half}", 60_000)
    await redis.zadd("aiolocks:fairlock:{rubbish}", {b"\xff\xfe": 1e15})
    await redis.hset("aiolocks:rwlock:{rubbish}", "a", "b")
    await redis.set("aiolocks:lock.queue:{queue}", "x")
    await redis.set("aiolocks:future:{name}", "x")
    await redis.set("aiolocks:lock.future:{name}", "x")
    await redis.set(b"aiolocks:lock:{\xff}", "x")
    await redis.set("aiolocks:lock:{metadata}", f"{'a1' * 16}:5:[1", px=60_000)
    await redis.set("aiolocks:lock:{host}", f'{"a1" * 16}:5:{{"host":1,"pid":"x","user":3}}', px=60_000)
    await redis.set("aiolocksandmore:lock:{other}", "x")

    found = {remade(info): info.problem for info in await session.inspect()}

    assert found.pop("lock host") == ""
    assert found.pop("lock list") == "it is a list, not a string"
    assert found.pop("lock metadata") == "its metadata cannot be read"
    assert found.pop("lock queue") == "its queue is something else"
    assert found.pop("lock text") == "what stands there was not written by aiolocks"
    assert found.pop("semaphore hash") == "it is a hash, not a zset"
    assert found.pop("semaphore half") == "half of a lease is missing"
    assert found.pop("future name") == "this version of aiolocks knows no such kind"
    for rubbish in ("fairlock rubbish", "rwlock rubbish"):
        assert found.pop(rubbish) == (
            "what stands there was not written by aiolocks; it has no ttl: nothing frees it"
        )
    foreign = ["? lock.future:{name}", "? lock:{\\xff}", "? text"]
    assert found == dict.fromkeys(foreign, "this key was not written by aiolocks")
    assert [info.name for info in await session.inspect("te*")] == ["text", "text"]


@pytest.mark.leaves_keys("aiolocks:*")
async def test_what_somebody_has_put_in_the_way_is_freed(session: Session, redis: Redis) -> None:
    await redis.rpush("aiolocks:lock:{a}", "x")
    await redis.set("aiolocks:rwlock.ends:{a}", "x")
    with pytest.raises(BackendError):
        await Lock(session, "a").try_acquire()

    freed = await session.force_release("a")

    assert [remade(info) for info in freed] == ["lock a", "rwlock a"]
    async with (
        Lock(session, "a", blocking_timeout=0),
        RWLock(session, "a").writer.acquire(blocking_timeout=0),
    ):
        pass


@pytest.mark.more  # as few keys
@pytest.mark.leaves_keys("aiolocks:*")
async def test_ten_thousand_keys_without_keys(session: Session, redis: Redis) -> None:
    async with redis.pipeline(transaction=False) as pipeline:
        for number in range(4_000):
            value = f'{number:032x}:{1_000 + number}:{{"host":"h","pid":{number}}}'
            pipeline.set(f"aiolocks:lock:{{name:{number}}}", value, px=60_000)
            pipeline.set(f"aiolocks:lock.fence:{{name:{number}}}", "5", px=60_000)
            pipeline.set(f"aiolocks:lock.fence:{{old:{number}}}", "5", px=60_000)
        await pipeline.execute()
    before = await calls(redis)
    began = time.monotonic()

    found = await session.inspect()

    took = time.monotonic() - began
    after = await calls(redis)
    assert len(found) == 4_000
    assert {info.holders[0].pid for info in found} == set(range(4_000))
    assert after.get("keys", 0) == before.get("keys", 0)
    assert after["scan"] - before.get("scan", 0) >= 12
    assert took < 10
    assert [info.name for info in await session.inspect("name:399[89]")] == ["name:3998", "name:3999"]


async def calls(redis: Redis) -> dict[str, int]:
    """How often each command was called on that server."""
    stats: dict[str, Any] = await redis.info("commandstats")
    return {name.removeprefix("cmdstat_"): one["calls"] for name, one in stats.items()}


async def test_one_name_needs_no_scan(session: Session, redis: Redis) -> None:
    async with Lock(session, "name"):
        before = await calls(redis)
        assert len(await session.inspect("name")) == 1
        assert (await calls(redis)).get("scan", 0) == before.get("scan", 0)


async def test_while_everything_changes(redis: Redis, connect: Connect) -> None:
    async with Session(redis) as session, Session(connect()) as other:
        stop = asyncio.Event()

        async def churn(make: Callable[[str], Any]) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                async with make(f"name {number % 7}"):
                    await asyncio.sleep(0)

        churning = [
            asyncio.create_task(churn(make))
            for make in (
                lambda name: Lock(session, name),
                lambda name: Lock(other, name),
                lambda name: FairLock(session, name),
                lambda name: Semaphore(other, name, 2),
                lambda name: RWLock(session, name).writer,
                lambda name: RangeLock(other, name).reader(0, 1),
                lambda name: MultiLock(session, [name, "name 8"]),
            )
        ]
        try:
            for _ in range(30):
                assert {info.problem for info in await session.inspect()} <= {""}
        finally:
            stop.set()
            await asyncio.gather(*churning)
        assert await session.inspect() == []


# -- freeing


async def test_a_holder_of_this_session_learns_of_it_at_once(session: Session) -> None:
    async def free(lease: Lease) -> int | None:
        """In a task of its own: the body may be cancelled before the answer is read."""
        (freed,) = await session.force_release("name")
        assert lease.state is LeaseState.LOST
        return freed.holders[0].fencing_token

    with pytest.raises(LockLostError, match="it was released by force"):
        async with Lock(session, "name") as lease:
            freeing = asyncio.create_task(free(lease))
            await asyncio.sleep(10)
    assert await freeing == lease.fencing_token
    assert session.statistics().losses == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda session: Lock(session, "name", ttl=1),
        lambda session: ReentrantLock(session, "name", owner=f"{id(session)}", ttl=1),
        lambda session: FairLock(session, "name", ttl=1),
        lambda session: Semaphore(session, "name", 1, ttl=1),
        lambda session: RWLock(session, "name", ttl=1).writer,
        lambda session: RWLock(session, "name", ttl=1).upgradable,
        lambda session: RangeLock(session, "name", ttl=1).writer(0, 1),
    ],
    ids=["lock", "reentrant", "fair", "semaphore", "writer", "upgradable", "range"],
)
async def test_who_waits_gets_in_and_who_held_it_learns_of_it(
    session: Session, connect: Connect, make: Callable[[Session], Any]
) -> None:
    async with Session(connect()) as holding, Session(connect()) as waiting:
        lease: Lease = await make(holding).acquire()
        waiter = asyncio.create_task(make(waiting).acquire())
        await eventually(lambda: waits(session), within=PATIENCE)

        (freed,) = await session.force_release("name")

        assert freed.waiters == 1
        assert freed.holders[0].fencing_token == lease.fencing_token
        async with asyncio.timeout(PATIENCE):
            next_one = await waiter
            assert next_one.fencing_token > lease.fencing_token
            await lease.wait_lost()  # at its next renewal
        assert await next_one.owned()
        await next_one.release()
    assert await session.inspect() == []


TELLING: dict[str, Callable[[Session], Any]] = {
    "lock": lambda session: Lock(session, "name", ttl=1),
    "reentrant": lambda session: ReentrantLock(session, "name", ttl=1),
    "multi": lambda session: MultiLock(session, ["name", "other"], ttl=1),
    "fair": lambda session: FairLock(session, "name", ttl=1),
    "semaphore": lambda session: Semaphore(session, "name", 2, ttl=1),
    "limits": lambda session: Limits(session, "name", {"all": 2}, ttl=1),
    "reader": lambda session: RWLock(session, "name", ttl=1).reader,
    "upgradable": lambda session: RWLock(session, "name", ttl=1).upgradable,
    "range": lambda session: RangeLock(session, "name", ttl=1).writer(0, 1),
}
"""The kinds whose holders are told by whom they were released."""


@pytest.mark.parametrize("wakeup", ["auto", "poll"])
@pytest.mark.parametrize("make", TELLING.values(), ids=TELLING)
async def test_who_held_it_elsewhere_is_told_by_whom_it_was_released(
    session: Session,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[Session], Any],
    wakeup: Any,
) -> None:
    class Seen:
        def on_lost(self, event: LockEvent) -> None:
            reasons.append(event.reason)

    reasons: list[str | None] = []
    async with Session(connect(), wakeup=wakeup, listeners=[Seen()]) as holding:
        with pytest.raises(LockLostError) as caught:
            async with make(holding):
                await session.force_release("name", by=f"Grace {foreign.EVIL}")
                await asyncio.sleep(PATIENCE)
    said = f"it was released by force, by Grace {foreign.SHOWN}"
    assert (caught.value.reason, reasons) == (said, [said])
    assert said in str(caught.value)
    assert said in caplog.text


@pytest.mark.parametrize("make", TELLING.values(), ids=TELLING)
async def test_who_lets_go_of_it_is_told_too(
    session: Session, connect: Connect, make: Callable[[Session], Any]
) -> None:
    async with Session(connect(), wakeup="poll") as holding:
        lease = await make(holding).acquire()
        await session.force_release("name")
        with pytest.raises(LockNotOwnedError, match=rf"by force, by .* pid {os.getpid()} task"):
            await lease.release()


async def test_a_later_lease_of_the_same_owner_is_not_told_of_the_former(
    session: Session, connect: Connect
) -> None:
    async with Session(connect(), wakeup="poll") as holding:
        lock = ReentrantLock(holding, "name", owner="me", ttl=1)
        former = await lock.acquire()
        await session.force_release("name", by="Grace")
        later = await lock.acquire()
        assert later.fencing_token > former.fencing_token
        await connect().delete("aiolocks:lock:{name}", "aiolocks:lock.nest:{name}")
        with pytest.raises(LockNotOwnedError, match="no longer had it as the holder"):
            await later.release()
        with pytest.raises(LockNotOwnedError, match="by force, by Grace"):
            await former.release()


async def test_the_mark_goes_when_the_lease_would_have_ended(session: Session, connect: Connect) -> None:
    redis = connect()
    lease = await Lock(session, "name", ttl=1).acquire()
    await session.force_release("name", by="Grace")
    assert lease.state is LeaseState.LOST
    assert 0 < await redis.pttl("aiolocks:lock.stolen:{name}") <= 1000
    assert await session.inspect() == []


@pytest.mark.parametrize(("by", "error"), [("", ValueError), (17, TypeError)])
async def test_an_operator_has_a_name_or_none(session: Session, by: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="by must"):
        await session.force_release("name", by=by)


async def waits(session: Session) -> bool:
    return any(info.waiters for info in await session.inspect())


async def test_readers_and_permits_are_freed_all_together(session: Session) -> None:
    async def hold(one: Any) -> None:
        with pytest.raises(LockLostError):
            async with one:
                entered.release()
                await asyncio.sleep(60)

    entered = asyncio.Semaphore(0)
    semaphore, readers = Semaphore(session, "name", 3), RWLock(session, "name").reader
    holding = [asyncio.create_task(hold(one)) for one in (semaphore, semaphore, semaphore, readers, readers)]
    for _ in holding:
        await entered.acquire()

    freed = await session.force_release("name")

    assert {info.kind: len(info.holders) for info in freed} == {"semaphore": 3, "rwlock": 2}
    await asyncio.wait_for(asyncio.gather(*holding), PATIENCE)
    assert await semaphore.available() == 3


async def test_only_the_kind_that_is_meant(session: Session) -> None:
    lock, fair = await Lock(session, "name").acquire(), await FairLock(session, "name").acquire()
    assert await session.force_release("name", kind="semaphore") == []
    assert [info.kind for info in await session.force_release("name", kind="fairlock")] == ["fairlock"]
    assert (lock.state, fair.state) == (LeaseState.HELD, LeaseState.LOST)
    assert [info.kind for info in await session.force_release("name", kind="multilock")] == ["lock"]
    assert lock.state is LeaseState.LOST
    assert await session.force_release("name") == []


async def test_of_several_names_one_is_freed_then_the_others(session: Session, connect: Connect) -> None:
    async with Session(connect()) as holding:
        with pytest.raises(LockLostError):
            async with MultiLock(holding, ["a", "b"], ttl=1):
                assert [info.name for info in await session.force_release("a")] == ["a"]
                assert [info.name for info in await session.inspect()] == ["b"]
                await asyncio.sleep(60)
        assert await session.inspect() == []


@pytest.mark.leaves_keys("aiolocks:uniquejob.over:*")
async def test_a_job_and_its_ticket_and_a_run(session: Session) -> None:
    job = UniqueJob(session, "name")
    await job.enqueue("until_executed", ttl=60)
    assert await job.enqueue("until_executed", on_conflict="skip") is None
    (freed,) = await session.force_release("name")
    assert (freed.kind, freed.holders[0].mode) == ("uniquejob", "ticket")
    assert await job.enqueue("until_executed", on_conflict="skip") is not None
    await session.force_release("name")
    ticket = await job.enqueue("until_expired", ttl=60)
    with pytest.raises(LockLostError):
        async with job.perform(ticket) as lease:  # which may run beside others
            (freed,) = await session.force_release("name")
            assert [one.mode for one in freed.holders] == ["ticket", None]
            assert not await lease.owned()
            await asyncio.sleep(60)
    assert await session.inspect("name") == []

    running = asyncio.create_task(SingleFlight(session).do("name", forever))
    await eventually(lambda: held(session), within=PATIENCE)
    (freed,) = await session.force_release("name")
    assert freed.kind == "singleflight"
    running.cancel()
    await asyncio.wait([running])


async def held(session: Session) -> bool:
    return any(info.holders for info in await session.inspect())


# -- what cannot be done


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda session: session.inspect(17), TypeError, "pattern must be a str"),
        (lambda session: session.force_release(""), ValueError, "name must not be empty"),
        (lambda session: session.force_release(17), TypeError, "name must be a str"),
        (lambda session: session.force_release("a", kind=3), TypeError, "kind must be None or a str"),
        (
            lambda session: session.force_release("a", kind="turnstile"),
            ValueError,
            "kind must be one of lock,",
        ),
    ],
)
async def test_arguments(
    session: Session, call: Callable[[Session], Awaitable[Any]], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        await call(session)


async def test_a_closed_session_looks_at_nothing(redis: Redis) -> None:
    async with Session(redis) as session:
        assert await session.inspect() == []
    with pytest.raises(SessionClosedError):
        await session.inspect()
    with pytest.raises(SessionClosedError):
        await session.force_release("name")


async def test_a_server_that_is_silent(own_server: OwnServer, connect: Connect) -> None:
    server = await own_server()
    async with Session(connect(server), command_timeout=0.2) as session, Lock(session, "name"):
        assert len(await session.inspect()) == 1
        server.pause()
        for call in (session.inspect(), session.inspect("name"), session.force_release("name")):
            with pytest.raises(BackendError, match="did not answer in time"):
                await call
        server.resume()
        assert len(await session.inspect()) == 1


async def test_a_server_that_is_out_of_memory(own_server: OwnServer, connect: Connect) -> None:
    server = await own_server()
    admin = connect(server)
    async with Session(connect(server)) as holding, Session(connect(server)) as session:
        leases = [
            await make(holding, "name").acquire()
            for make in (Lock, FairLock, lambda *of: Semaphore(*of, 2), lambda *of: RWLock(*of).writer)
        ]
        waiting = asyncio.create_task(RWLock(session, "name").reader.acquire())
        await eventually(lambda: waits(session), within=PATIENCE)
        await admin.config_set("maxmemory", 1)
        with pytest.raises(BackendError, match="out of memory"):
            await Lock(session, "other").try_acquire()

        assert len(await session.inspect()) == 4
        assert len(await session.force_release("name")) == 4

        assert not any([await lease.owned() for lease in leases])
        await admin.config_set("maxmemory", 0)
        waiting.cancel()
        await asyncio.wait([waiting])


MINIMAL = [
    "eval",
    "evalsha",
    "get",
    "set",
    "del",
    "exists",
    "pexpire",
    "pttl",
    "time",
    "zadd",
    "zcard",
    "zrange",
    "zrem",
]
PERMITS = ["hdel", "hexists", "hget", "hincrby", "hkeys", "hlen", "hset", "zrangebyscore", "zrank", "zscore"]
LOOKING = ["scan", "type", "hgetall"]
"""As in the how-to: of a Lock, of a Semaphore besides, and of who looks."""


async def test_the_permissions_that_the_documentation_tells(own_server: OwnServer, connect: Connect) -> None:
    server = await own_server()
    admin = connect(server)
    async with Session(admin) as holding:
        leases = [await Lock(holding, "name").acquire(), await Semaphore(holding, "name", 1).acquire()]
        for missing in (*LOOKING, None):
            words = [f"+{word}" for word in (*MINIMAL, *PERMITS, *LOOKING) if word != missing]
            await admin.execute_command(
                "ACL", "SETUSER", "looks", "reset", "on", ">secret", "~aiolocks:*", "-@all", *words
            )
            async with Session(
                connect(server, username="looks", password="secret"), wakeup="poll"
            ) as session:
                if missing is not None:
                    with pytest.raises(BackendError, match="this user may not do it"):
                        await session.inspect()
                    continue
                assert len(await session.inspect()) == 2
                assert len(await session.inspect("name")) == 2
                assert len(await session.force_release("name")) == 2
                assert await session.inspect() == []
        assert not any([await lease.owned() for lease in leases])


# -- clusters


@pytest.mark.more  # as one server
async def test_all_nodes_of_a_cluster(own_server: OwnServer) -> None:
    nodes = [await own_server(port=node_port(), arguments=CLUSTER) for _ in range(2)]
    join(nodes)
    for decode_responses in (False, True):
        client = RedisCluster(host="127.0.0.1", port=nodes[0].port, decode_responses=decode_responses)
        try:
            async with Session(client) as session, AsyncExitStack() as stack:
                names = [f"name {number}" for number in range(20)]
                for name in names:
                    await stack.enter_async_context(Lock(session, name))
                assert [info.name for info in await session.inspect()] == sorted(names)
                assert [len(await session.inspect(name)) for name in names] == [1] * len(names)
        finally:
            await client.aclose()
    with blocking(f"unix://{nodes[1].path}") as second:
        assert second.dbsize() > 0  # both of them had some


def join(nodes: list[EmbeddedServer]) -> None:
    """Make a cluster of two, and wait until both believe it."""
    half = 8192
    with blocking(f"unix://{nodes[0].path}") as first, blocking(f"unix://{nodes[1].path}") as second:
        first.execute_command("CLUSTER", "ADDSLOTS", *range(half))
        second.execute_command("CLUSTER", "ADDSLOTS", *range(half, 2 * half))
        first.execute_command("CLUSTER", "SET-CONFIG-EPOCH", 1)
        second.execute_command("CLUSTER", "SET-CONFIG-EPOCH", 2)
        first.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port)
        deadline = time.monotonic() + PATIENCE
        for node in (first, second):
            while True:
                known = node.execute_command("CLUSTER INFO")
                if known["cluster_state"] == "ok" and known["cluster_slots_ok"] == "16384":
                    break
                if time.monotonic() > deadline:
                    raise TimeoutError("the cluster does not become ready")
                time.sleep(0.05)
