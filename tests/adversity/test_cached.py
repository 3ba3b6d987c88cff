"""Leases that stay with their session between uses, on real servers: losses, recalls, deaths, and the end."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

import pytest
from redis.asyncio import Redis, RedisCluster

from aiolocks import (
    KeyspaceWakeup,
    Lease,
    LeaseState,
    Lock,
    LockEvent,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    MultiLock,
    ReentrantLock,
    Session,
    SessionClosedError,
)
from aiolocks.lock import tenure
from aiolocks.transport import clocks
from tests.conftest import Connect, OwnServer, Surroundings, blocking, clustered
from tests.support.clusters import Cluster
from tests.support.processes import Workers
from tests.support.waiting import eventually

KEY = "aiolocks:lock:{a}"
FENCE = "aiolocks:lock.fence:{a}"
SOON = 2.0
"""Seconds that a loaded machine may take."""


async def kept(lock: Lock, times: int = 3) -> list[int]:
    """Uses the lock so often that its session keeps it; the fencing tokens."""
    tokens = []
    for _ in range(times):
        async with lock as lease:
            tokens.append(lease.fencing_token)
    return tokens


def idle(session: Session) -> bool:
    return session.statistics().cached == 1


def watches(session: Session) -> int:
    """How many the watchdog has, also for what no task uses."""
    assert session._engine is not None
    return len(session._engine.watchdog.watches)


# -- hits


async def test_a_hit_sends_nothing_and_has_a_token_of_its_own(redis: Redis, connect: Connect) -> None:
    async with Session(connect()) as session:
        lock = Lock(session, "a", cache=5)
        tokens = await kept(lock, 2)
        sent = session.statistics().commands_sent

        tokens += await kept(lock, 20)

        assert session.statistics().commands_sent == sent
        assert tokens == sorted(set(tokens))
        counts = session.statistics()
        assert (counts.cached, counts.cache_hits, counts.leases_held, counts.acquisitions) == (1, 20, 0, 22)
        assert await redis.exists(KEY)
        assert int(await redis.get(FENCE) or 0) >= tokens[-1]
    assert not await redis.exists(KEY)
    assert int(await redis.get(FENCE) or 0) == tokens[-1]


async def test_what_was_idle_when_its_renewal_was_due_is_renewed_for_its_next_holder(
    connect: Connect,
) -> None:
    async with Session(connect()) as session:
        lock = Lock(session, "a", ttl=3, cache=1)
        await kept(lock)
        await asyncio.sleep(0.5)
        await kept(lock, 1)
        assert session._engine is not None
        moments = session._engine.watchdog._moments  # type: ignore[attr-defined]
        await eventually(lambda: not moments)

        async with lock as lease:
            left = lease.remaining()
            await eventually(lambda: lease.remaining() > left)


async def test_a_suspension_while_it_is_idle_counts_for_its_next_holder(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady, suspended = clocks.steady, 0.0
    monkeypatch.setattr(clocks, "steady", lambda: steady() + suspended)
    async with Session(connect()) as session:
        lock = Lock(session, "a", ttl=12, cache=1, grace=5)
        await kept(lock)
        suspended = 4.5
        assert session._engine is not None
        session._engine.watchdog.look_at_clocks()
        async with lock as lease:
            assert session.statistics().cache_hits == 2
            left = lease.remaining()
            assert left < 8
            await eventually(lambda: lease.remaining() > left)


async def test_single_tries_are_served_by_what_is_kept(connect: Connect) -> None:
    async with Session(connect()) as session:
        lock = Lock(session, "a", cache=5)
        for _ in range(5):
            lease = await lock.try_acquire()
            assert lease is not None
            await lease.release()

        assert idle(session)
        assert session.statistics().cache_hits == 3


@pytest.mark.parametrize("other_way", [False, True])
async def test_what_asks_beside_a_single_try_ends_the_caching(connect: Connect, *, other_way: bool) -> None:
    async with Session(connect()) as other:  # the server knows the script: else the acquire overtakes the try
        await kept(Lock(other, "b", cache=5))
    async with Session(connect()) as session:
        lock = Lock(session, "a", cache=5)
        await kept(lock, 1)
        tried = asyncio.create_task(lock.try_acquire())
        await asyncio.sleep(0)
        beside = asyncio.create_task((Lock(session, "a") if other_way else lock).acquire())
        await asyncio.sleep(0)
        beside.cancel()  # the server has refused it, and told nobody of that
        lease = await tried
        assert lease is not None
        await lease.release()
        assert not idle(session)


class Begun:
    """Work that has had its first step, as in a task that begins eagerly (Python 3.12)."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work.__await__()
        self._first = next(self._work, None)

    def __await__(self) -> Generator[Any, Any, Any]:
        yield self._first
        return (yield from self._work)


async def test_a_listener_that_is_told_of_its_release_may_ask_at_once(connect: Connect) -> None:
    begun: list[Begun] = []

    async def ask() -> int:
        async with lock as lease:
            await asyncio.sleep(0)
            return lease.fencing_token

    class Listener:
        def on_released(self, event: LockEvent) -> None:
            if not begun and session.statistics().cache_hits:
                begun.append(Begun(ask()))

    async with Session(connect(), listeners=[Listener()]) as session:
        lock = Lock(session, "a", cache=5)
        tokens = await kept(lock)
        async with asyncio.timeout(SOON):
            tokens += [await begun[0], *await kept(lock)]
        assert tokens == sorted(set(tokens))


async def test_a_listener_that_is_told_of_its_recall_has_no_hit(connect: Connect) -> None:
    begun: list[Begun] = []

    async def ask() -> None:
        async with lock:
            await asyncio.sleep(0)

    class Listener:
        def on_recalled(self, event: LockEvent) -> None:
            begun.append(Begun(ask()))

    async with Session(connect(), listeners=[Listener()]) as session, Session(connect()) as other:
        lock = Lock(session, "a", cache=5)
        await kept(lock)
        hits = session.statistics().cache_hits
        async with Lock(other, "a", blocking_timeout=SOON):
            pass
        await begun[0]
        assert session.statistics().cache_hits == hits


async def test_a_name_that_is_used_once_is_not_kept(redis: Redis, connect: Connect) -> None:
    async with Session(connect()) as session:
        await kept(Lock(session, "a", cache=5), 1)

        assert not await redis.exists(KEY)
        assert session.statistics().cached == 0


async def test_an_end_after_its_time(redis: Redis, connect: Connect) -> None:
    async with Session(connect()) as session:
        await kept(Lock(session, "a", cache=0.2))
        assert idle(session)
        assert watches(session) == 1

        await eventually(lambda: not idle(session))
        assert watches(session) == 0
        await eventually(lambda: _gone(redis))


async def _gone(redis: Redis) -> bool:
    return not await redis.exists(KEY)


async def test_tasks_of_one_session_hand_it_on_without_a_request(connect: Connect) -> None:
    async with Session(connect()) as session:
        lock, inside = Lock(session, "a", cache=5), 0
        await kept(lock)
        sent = session.statistics().commands_sent

        async def use() -> None:
            nonlocal inside
            for _ in range(5):
                async with lock:
                    inside += 1
                    assert inside == 1
                    await asyncio.sleep(0)
                    inside -= 1

        await asyncio.gather(*(use() for _ in range(5)))

        assert session.statistics().commands_sent == sent


async def test_tasks_that_always_wait_for_each_other_begin_to_keep_it(redis: Redis, connect: Connect) -> None:
    """The first task holds it until the others wait, so that nobody ever finds it free."""
    async with Session(connect()) as session:
        lock, tokens = Lock(session, "a", cache=5), []

        async def use() -> None:
            for _ in range(10):
                async with lock as lease:
                    tokens.append(lease.fencing_token)
                    await asyncio.sleep(0.001)

        await asyncio.gather(*(use() for _ in range(5)))

        counts = session.statistics()
        assert counts.commands_sent < 15
        assert counts.cache_hits > 40
        assert tokens == sorted(set(tokens))
        assert int(await redis.get(FENCE) or 0) >= tokens[-1]


async def test_a_waiter_that_would_begin_to_keep_it_may_leave(redis: Redis, connect: Connect) -> None:
    async with Session(connect()) as session:
        lock = Lock(session, "a", cache=5)
        await kept(lock, 1)
        async with Lock(session, "a"):
            leaving = asyncio.create_task(lock.acquire())
            await asyncio.sleep(0.01)
            staying = asyncio.create_task(kept(lock, 3))
            await asyncio.sleep(0.01)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            with pytest.raises(LockTimeoutError):
                await lock.acquire(blocking_timeout=0.02)
        await asyncio.wait_for(staying, SOON)
        await kept(lock)
        assert idle(session)
    assert not await redis.exists(KEY)


async def test_a_waiter_that_is_cancelled_as_it_has_it_leaves_nothing(redis: Redis, connect: Connect) -> None:
    async with Session(connect()) as session:
        lock = Lock(session, "a", cache=5)
        await kept(lock)
        holder = await lock.acquire()
        waiter = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0.01)

        release = asyncio.create_task(holder.release())
        await asyncio.sleep(0)  # the lease is handed on, and the waiter has not run yet
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert watches(session) == 0
        await release

        async with lock.acquire(blocking_timeout=SOON):
            pass
    assert not await redis.exists(KEY)


async def test_a_loop_of_short_bodies_gives_others_a_turn(connect: Connect) -> None:
    async with Session(connect()) as session, Session(connect()) as other:
        lock = Lock(session, "a", ttl=300, cache=60)
        await kept(lock)
        waiter = asyncio.create_task(kept(Lock(other, "a", blocking_timeout=10), 1))
        while not waiter.done():
            async with lock:
                time.sleep(0.001)  # noqa: ASYNC251 - a body that blocks its loop
        await waiter


# -- recalls


async def test_a_session_that_closes_in_that_turn_asks_for_nothing(connect: Connect) -> None:
    async with Session(connect()) as session:
        lock = Lock(session, "a", cache=5)
        await kept(lock)
        assert session._engine is not None
        session._engine.kept.turn_at = 0
        closing = asyncio.create_task(session.aclose())
        acquiring = asyncio.create_task(lock.acquire())
        with pytest.raises(SessionClosedError, match="the session is closed"):
            await acquiring
        await closing


async def test_another_session_that_asks_has_it_soon(connect: Connect) -> None:
    async with Session(connect()) as session, Session(connect()) as other:
        tokens = await kept(Lock(session, "a", cache=5))

        async with Lock(other, "a", blocking_timeout=SOON) as lease:
            assert lease.fencing_token > tokens[-1]
        assert (session.statistics().cached, session.statistics().recalls) == (0, 1)


@pytest.mark.parametrize(
    "kind",
    [ReentrantLock, lambda session, name: MultiLock(session, [name, "b"])],
    ids=["reentrant", "several"],
)
async def test_every_kind_that_it_excludes_recalls_it(connect: Connect, kind: Callable[..., Any]) -> None:
    async with Session(connect()) as session, Session(connect()) as other:
        await kept(Lock(session, "a", cache=5))
        async with kind(other, "a").acquire(blocking_timeout=SOON):
            pass
        await asyncio.sleep(0.6)  # after a recall, it is not kept for a while
        await kept(Lock(session, "a", cache=5))
        assert idle(session)
        lease = await kind(other, "a").try_acquire()
        assert lease is not None
        await lease.release()


async def test_a_single_try_is_refused_only_if_somebody_is_inside(connect: Connect) -> None:
    async with Session(connect()) as session, Session(connect()) as other:
        lock = Lock(session, "a", cache=5)
        await kept(lock)
        async with lock:
            began = time.monotonic()
            assert await Lock(other, "a").try_acquire() is None
            with pytest.raises(LockTimeoutError):
                await Lock(other, "a").acquire(blocking_timeout=0)
            assert time.monotonic() - began < SOON
        async with Lock(other, "a").acquire(blocking_timeout=SOON):
            pass


async def test_one_that_was_asked_for_inside_is_released_as_ever(redis: Redis, connect: Connect) -> None:
    async with Session(connect()) as session, Session(connect()) as other:
        lock = Lock(session, "a", cache=5)
        await kept(lock)
        async with lock:
            waiter = asyncio.create_task(Lock(other, "a").acquire())
            await eventually(lambda: session.statistics().recalls == 1)
            await asyncio.sleep(0.05)
            assert not waiter.done()
            assert b'"cache":3' in (await redis.get(KEY) or b"")
        lease = await asyncio.wait_for(waiter, SOON)
        await lease.release()


async def test_a_recall_before_its_task_has_the_grant_counts(redis: Redis, connect: Connect) -> None:
    async with Session(connect()) as session:
        lock = Lock(session, "a", cache=5)
        await kept(lock, 1)
        asking = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0)
        assert session._engine is not None
        session._engine.watchdog.tracked.rung("tracking", [KEY.encode()])  # type: ignore[attr-defined]

        async with await asking:
            await eventually(lambda: _has(redis, b'"cache":3'))
        assert not idle(session)


async def _has(redis: Redis, text: bytes) -> bool:
    return text in (await redis.get(KEY) or b"")


async def test_recalls_that_come_too_soon_end_the_caching_for_a_while(connect: Connect) -> None:
    async with Session(connect()) as session, Session(connect()) as other:
        lock = Lock(session, "a", cache=5)
        for strikes in range(3):
            await kept(lock)
            if not idle(session):
                break
            async with Lock(other, "a"):
                pass
            assert session.statistics().recalls == strikes + 1
            if strikes:
                break
        await kept(lock)
        assert not idle(session)


@pytest.mark.parametrize(
    "own",
    [
        lambda session: Lock(session, "a"),
        lambda session: Lock(session, "a", cache=1, ttl=20),
        lambda session: ReentrantLock(session, "a"),
        lambda session: ReentrantLock(session, "a", owner="x"),
        lambda session: MultiLock(session, ["a", "b"]),
    ],
    ids=["plain", "other options", "reentrant", "reentrant of an owner", "several"],
)
@pytest.mark.parametrize("once", [True, False])
async def test_its_own_session_asks_in_another_way(
    connect: Connect, own: Callable[[Session], Any], *, once: bool
) -> None:
    async with Session(connect()) as session:
        await kept(Lock(session, "a", cache=5))
        lease = await asyncio.wait_for(own(session).try_acquire() if once else own(session).acquire(), SOON)
        assert lease is not None
        await lease.release()


@pytest.mark.leaves_keys("aiolocks:lock.stolen:*")
@pytest.mark.parametrize(
    "by",
    [
        lambda session: Lock(session, "a"),
        lambda session: ReentrantLock(session, "a"),
        lambda session: ReentrantLock(session, "a", owner="x"),
    ],
    ids=["plain", "reentrant", "reentrant of an owner"],
)
async def test_its_own_session_takes_it_by_force(connect: Connect, by: Callable[[Session], Any]) -> None:
    async with Session(connect()) as session:
        lock = Lock(session, "a", cache=5)
        await kept(lock)
        async with by(session).acquire(steal=True):
            assert await lock.try_acquire() is None


class Heard:
    """A listener."""

    def __init__(self) -> None:
        self.of: list[str] = []

    def on_waiting(self, _: object) -> None:
        self.of.append("waiting")

    def on_waited(self, event: Any) -> None:
        self.of.append(event.reason)


async def test_a_single_try_is_no_wait(redis: Redis, connect: Connect) -> None:
    heard = Heard()
    async with Session(connect(), listeners=[heard]) as other:
        async with Session(connect()) as session:
            await kept(Lock(session, "a", cache=5))
            value = await redis.get(KEY) or b""
        await redis.set(KEY, value, px=5000)  # of a session that does not answer
        began = time.monotonic()
        assert await Lock(other, "a").try_acquire() is None
        assert time.monotonic() - began > 0.09
        assert heard.of == []
        await redis.delete(KEY)


async def test_a_try_of_its_own_session_beside_a_holder(connect: Connect) -> None:
    async with Session(connect()) as session:
        lock = Lock(session, "a", cache=5)
        await kept(lock)
        async with lock:
            took = []
            for _ in range(5):
                began = time.monotonic()
                assert await lock.try_acquire() is None
                took.append(time.monotonic() - began)
            assert min(took) < 0.09  # a machine may stand still, but not each time


# -- losses


async def deleted(redis: Redis) -> None:
    await redis.delete(KEY)


async def flushed(redis: Redis) -> None:
    await redis.flushall()


async def cut(redis: Redis) -> None:
    own = await redis.client_id()
    for client in await redis.client_list():
        if int(client["id"]) != own:
            await redis.client_kill_filter(_id=client["id"])


async def forced(redis: Redis) -> None:
    async with Session(redis) as operator:
        assert await operator.force_release("a")


async def stolen(redis: Redis) -> None:
    async with Session(redis) as thief:
        await (await Lock(thief, "a").acquire(steal=True)).release()


@pytest.mark.leaves_keys("aiolocks:lock.stolen:*")
@pytest.mark.parametrize("lose", [deleted, flushed, cut, forced, stolen])
async def test_nobody_gets_in_by_what_is_lost(
    connect: Connect, lose: Callable[[Redis], Awaitable[None]]
) -> None:
    redis = connect()
    async with Session(connect()) as session:
        lock = Lock(session, "a", cache=5)
        tokens = await kept(lock)

        await lose(redis)
        await eventually(lambda: not idle(session))
        async with lock as lease:
            assert lease.fencing_token > tokens[-1] or lose is flushed
            assert await lease.owned()


@pytest.mark.leaves_keys("aiolocks:lock.stolen:*")
@pytest.mark.parametrize("lose", [deleted, flushed, forced, stolen])
async def test_a_loss_inside_is_known_at_once(
    connect: Connect, lose: Callable[[Redis], Awaitable[None]]
) -> None:
    redis = connect()
    async with Session(connect()) as session:
        lock = Lock(session, "a", cache=5)
        await kept(lock)
        with pytest.raises(LockLostError):
            async with lock:
                await lose(redis)
                await asyncio.sleep(SOON)


@pytest.mark.parametrize("cache", [0, 5])
async def test_a_loss_after_an_annotation_is_known_at_once(
    redis: Redis, connect: Connect, cache: float
) -> None:
    async with Session(connect()) as session:
        lock = Lock(session, "a", cache=cache)
        await kept(lock)
        with pytest.raises(LockLostError):
            async with lock as lease:
                await asyncio.sleep(0.1)  # a plain one listens by now
                await lease.annotate({"order": 17})
                await asyncio.sleep(0.1)
                await deleted(redis)
                await asyncio.sleep(SOON)
                pytest.fail("it was not told")


async def test_who_has_freed_it_by_force_is_told(connect: Connect) -> None:
    async with Session(connect()) as session, Session(connect()) as operator:
        lock = Lock(session, "a", cache=5)
        await kept(lock)
        with pytest.raises(LockLostError, match="released by force, by the operator"):
            async with lock:
                await operator.force_release("a", by="the operator")
                await asyncio.sleep(SOON)


async def test_a_loop_that_stood_still_for_its_ttl_has_no_hit(connect: Connect) -> None:
    async with Session(connect()) as session, Session(connect()) as other:
        lock = Lock(session, "a", ttl=0.3, cache=0.1)
        tokens = await kept(lock)
        assert idle(session)

        time.sleep(0.4)  # noqa: ASYNC251 - as above
        async with lock as lease:
            assert lease.fencing_token > tokens[-1] + 100_000
        async with Lock(other, "a").acquire(blocking_timeout=SOON):
            pass


async def _dies_idle(url: str) -> None:
    client = Redis.from_url(url)
    await kept(Lock(client, "a", ttl=1.5, cache=0.5))
    os._exit(0)


@pytest.mark.more  # as a lease that expires
async def test_a_process_that_dies_blocks_the_name_for_the_ttl(
    connect: Connect, server: Any, workers: Workers
) -> None:
    redis = connect()
    await workers.start(_dies_idle, url=server.url)
    await eventually(lambda: _exists(redis), within=20)
    began = time.monotonic()
    async with Session(connect()) as session:
        async with Lock(session, "a").acquire(blocking_timeout=5):
            assert 0.5 < time.monotonic() - began < 3


async def _exists(redis: Redis) -> bool:
    value = await redis.get(KEY)
    return value is not None and b'"cache"' in value


async def test_out_of_memory_a_recall_and_a_release_work(own_server: OwnServer, connect: Connect) -> None:
    server = await own_server()
    redis = connect(server)
    async with Session(connect(server)) as session, Session(connect(server)) as other:
        lock = Lock(session, "a", cache=5)
        await kept(lock)
        async with Lock(other, "b"):
            pass
        await redis.config_set("maxmemory", 1)
        waiter = asyncio.create_task(Lock(other, "a").acquire(blocking_timeout=SOON))
        await eventually(lambda: not idle(session))
        await eventually(lambda: _gone(redis))
        await redis.config_set("maxmemory", 0)
        [had] = await asyncio.gather(waiter, return_exceptions=True)
        if isinstance(had, Lease):  # or it was refused, as any acquire is then
            await had.release()
        await redis.flushall()


@pytest.mark.leaves_keys
async def test_who_takes_it_after_swapdb_tells_the_session_that_kept_it(
    own_server: OwnServer, connect: Connect
) -> None:
    """No push tells of SWAPDB. But a tracked key is one of any database, and the next holder writes it."""
    server = await own_server()
    async with Session(connect(server)) as here, Session(connect(server)) as elsewhere:
        lock = Lock(here, "a", ttl=300, cache=100)
        await kept(lock)
        held = await Lock(here, "b", ttl=300).acquire()
        await eventually(lambda: tracks(here, b"aiolocks:lock:{b}"), within=10)
        await connect(server).swapdb(0, 1)
        others = [await Lock(elsewhere, name, ttl=300).acquire(blocking_timeout=5) for name in ("a", "b")]
        await eventually(lambda: not idle(here), within=10)
        assert await lock.try_acquire() is None
        await asyncio.wait_for(held.wait_lost(), 10)
        for lease in others:
            await lease.release()


def tracks(session: Session, key: bytes) -> bool:
    """Whether the server was asked to tell of changes of that key."""
    assert session._engine is not None
    return key in session._engine.watchdog.tracked._armed


# -- where nothing is heard


async def test_where_keys_are_not_tracked_it_is_released_and_the_log_says_so_once(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    redis = connect()
    for wakeup in ("poll", KeyspaceWakeup(configure=True)):
        caplog.clear()
        async with Session(connect(), wakeup=wakeup) as session:
            await kept(Lock(session, "a", cache=5), 5)
            assert session.statistics().cache_hits == 0
            assert not await redis.exists(KEY)
        said = [one for one in caplog.records if "cache=" in one.getMessage()]
        assert [one.levelno for one in said] == [logging.WARNING]


async def test_without_it_an_acquire_and_a_release_cost_what_they_did(redis: Redis, connect: Connect) -> None:
    """Two requests, and no key beside the lock and its fence."""

    async def cost(session: Session, lock: Lock) -> tuple[int, int, int]:
        """Requests, bytes and commands of twenty uses."""
        await kept(lock)
        await asyncio.sleep(0.1)  # nothing more comes of these
        before, sent = await redis.info("stats"), session.statistics().commands_sent
        await kept(lock, 20)
        requests, after = session.statistics().commands_sent - sent, await redis.info("stats")
        async with lock:
            assert {*await redis.keys("*")} == {KEY.encode(), FENCE.encode()}
        assert await redis.keys("*") == [FENCE.encode()]
        counts = ("total_net_input_bytes", "total_commands_processed")
        return requests, *(after[count] - before[count] for count in counts)  # type: ignore[return-value]

    async with Session(connect()) as session:
        plain = await cost(session, Lock(session, "a"))
        assert await cost(session, Lock(session, "a", cache=0)) == plain
    assert plain[0] == 40


# -- the lease


async def test_a_lease_that_was_released_touches_no_later_one(connect: Connect) -> None:
    async with Session(connect()) as session:
        lock = Lock(session, "a", cache=5)
        await kept(lock)
        old = await lock.acquire()
        await old.release()
        new = await lock.acquire()

        await old.release()
        assert not await old.owned()
        assert old.state is LeaseState.RELEASED
        with pytest.raises(LockLostError):
            await old.extend()
        with pytest.raises(LockLostError):
            old.ensure_held()
        with pytest.raises(LockLostError):
            old.detach()
        assert await new.owned()
        await new.release()


async def test_detached_after_hits_it_is_adopted_with_its_own_number(redis: Redis, connect: Connect) -> None:
    async with Session(connect()) as session, Session(connect()) as other:
        lock = Lock(session, "a", cache=5)
        await kept(lock)
        lease = await lock.acquire()
        handle = lease.detach()
        assert session.statistics().cached == 0

        adopted = await Lock(other, "a").adopt(handle)
        assert adopted.fencing_token == lease.fencing_token
        assert b'"cache"' not in (await redis.get(KEY) or b"")
        await adopted.release()
        assert int(await redis.get(FENCE) or 0) == lease.fencing_token
        with pytest.raises(LockNotOwnedError):
            await Lock(session, "a").adopt(handle)


async def test_extended_or_annotated_it_is_a_lease_like_any_other(redis: Redis, connect: Connect) -> None:
    async with Session(connect()) as session, Session(connect()) as other:
        lock = Lock(session, "a", cache=5)

        async def change(do: Callable[[Lease], Awaitable[None]]) -> None:
            await kept(lock)
            async with lock as lease:
                await do(lease)
                assert await Lock(other, "a").try_acquire() is None
            assert not await redis.exists(KEY)

        await change(lambda lease: lease.extend(20))
        await asyncio.sleep(0.6)
        await change(lambda lease: lease.annotate({"order": 17}))


async def test_an_extension_tells_that_it_was_asked_for_when_it_is_idle(connect: Connect) -> None:
    async with Session(connect()) as session, Session(connect()) as other:
        lock = Lock(session, "a", cache=5)
        await kept(lock)
        assert session._engine is not None
        lease = await lock.acquire()
        tenure = lease._possession.tenure  # type: ignore[attr-defined]
        session._engine.kept.tracked.disarm(tenure, tenure.keys)  # the push is lost
        assert await Lock(other, "a").try_acquire() is None
        extending = asyncio.create_task(lease.extend())
        await asyncio.sleep(0)
        await lease.release()
        assert idle(session)
        with pytest.raises(LockLostError):
            await extending
        assert not idle(session)
        async with lock as lease:
            assert not lease._possession.cached


async def test_it_is_shown_as_kept(connect: Connect) -> None:
    async with Session(connect()) as session, Session(connect()) as other:
        lock = Lock(session, "a", cache=5, metadata={"order": 17})
        await kept(lock)
        [info] = await other.inspect("a")
        [holder] = info.holders
        assert (holder.cached, holder.task, holder.metadata) == (True, None, {"order": 17})
        assert await Lock(other, "a").locked()
        sent = session.statistics().commands_sent
        for own in (lock, Lock(session, "a"), ReentrantLock(session, "a")):
            assert not await own.locked()
        assert session.statistics().commands_sent == sent
        async with lock:
            for own in (lock, Lock(session, "a"), ReentrantLock(session, "a", owner="x")):
                assert await own.locked()


async def test_a_question_after_its_time_asks_the_server(redis: Redis, connect: Connect, server: Any) -> None:
    async with Session(connect()) as session:
        lock = Lock(session, "a", ttl=0.3, cache=0.1)
        await kept(lock)
        time.sleep(0.4)  # noqa: ASYNC251 - its loop stands still, and it has not ended
        with blocking(server.url) as by_hand:
            by_hand.set(KEY, "f" * 32 + ":1:{}", px=5000)  # another one has it
        assert await lock.locked()
        await redis.delete(KEY)


async def test_its_own_session_frees_it_by_force(connect: Connect) -> None:
    async with Session(connect()) as session, Session(connect()) as other:
        lock = Lock(session, "a", cache=5)
        await kept(lock)
        await session.force_release("a")
        async with Lock(other, "a").acquire(blocking_timeout=0):
            assert await lock.try_acquire() is None


# -- many, and the end


@pytest.mark.more  # as one name that ends
async def test_many_names_end_together(
    redis: Redis, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenure, "_MOST_IDLE", 100)
    async with Session(connect()) as session:
        locks = [Lock(session, f"a{number}", cache=1) for number in range(150)]
        for lock in locks:
            await kept(lock)
        assert session.statistics().cached <= 100
        sent = session.statistics().commands_sent
        await eventually(lambda: session.statistics().cached == 0)
        assert session.statistics().commands_sent - sent <= 16
        await eventually(lambda: _none(redis))


async def _none(redis: Redis) -> bool:
    return not await redis.keys("aiolocks:lock:*")


def test_a_loop_that_ends_without_a_close_leaves_nothing(server: Any) -> None:
    async def main() -> None:
        client = Redis.from_url(server.url)
        session = Session(client)
        await kept(Lock(session, "a", cache=5))
        assert idle(session)

    asyncio.run(main())

    async def look() -> bool:
        async with Redis.from_url(server.url) as redis:
            return bool(await redis.exists(KEY))

    assert not asyncio.run(look())
    gc.collect()


async def test_a_fork_has_nothing_of_it(connect: Connect, redis: Redis) -> None:
    async with Session(connect()) as session:
        lock = Lock(session, "a", cache=5)
        await kept(lock)
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            found: list[Any] = []
            try:
                try:
                    lock._bind()
                except RuntimeError as error:
                    found.append(str(error))
                session._engine.kept.end_all()  # type: ignore[union-attr]
            finally:
                os.write(write, json.dumps(found).encode())
                os._exit(0)
        os.waitpid(pid, 0)  # noqa: ASYNC222 - it ends at once
        [told] = json.loads(os.read(read, 4096))
        os.close(read), os.close(write)
        assert "event loop" in told
        assert await redis.exists(KEY)
        assert (await kept(lock))[0]


@pytest.mark.more  # as in `test_cached_servers.py`, where its slot moves
async def test_in_a_cluster(surroundings: Surroundings, shared_cluster: Cluster) -> None:
    clients: list[RedisCluster] = [clustered(surroundings, shared_cluster) for _ in range(2)]
    async with Session(clients[0]) as session, Session(clients[1]) as other:
        locks = [Lock(session, name, cache=5) for name in "abcde"]
        for lock in locks:
            await kept(lock)
        assert session.statistics().cached == 5
        async with Lock(other, "a", blocking_timeout=SOON):
            pass
        lease = await Lock(other, "b").try_acquire()
        assert lease is not None
        await lease.release()
    async with Session(clients[1]) as other:
        for name in "abcde":
            async with Lock(other, name, blocking_timeout=0):
                pass


async def test_a_timeout_is_told_as_it_was_given(connect: Connect) -> None:
    """The time that is left after a look at what the session keeps is a little less."""
    async with Session(connect()) as session, Lock(session, "a", cache=5):
        with pytest.raises(LockTimeoutError, match=r"within 0\.3 s") as caught:
            await Lock(session, "a", cache=5).acquire(blocking_timeout=0.3)
    assert caught.value.blocking_timeout == 0.3
