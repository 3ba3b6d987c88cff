"""The faults of holders: blocked, stopped, killed, forked, out of touch.

T-H-1 to T-H-8 of `tests/FAULTS.md`.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Lease, LeaseState, Lock, LockError, LockLostError, LockNotOwnedError, Session
from tests.adversity.tools import (
    RELEASE,
    RENEW,
    SLACK,
    Formed,
    Keys,
    Lag,
    Witness,
    deafen,
    elapsed,
    locks_in,
    look_at,
    renewed,
    warm,
)
from tests.conftest import Connect, OwnServer
from tests.support.processes import Workers, tell
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.waiting import eventually

# Where the transport makes no difference.
MULTIPLEXED = pytest.mark.parametrize("form", ["url"], ids=["multiplexed"])
POLL = 0.064
"""Seconds that a waiter sleeps at the most."""

FENCED_WRITE = """
local seen = tonumber(redis.call('HGET', KEYS[1], 'fence') or 0)
if tonumber(ARGV[1]) < seen then return 0 end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
return 1
"""
"""A store that refuses a late holder."""


# -- the event loop is blocked -------------------------------------------------------------------------------


async def test_t_h_1_loop_blocked_for_longer_than_the_ttl(client: Redis, redis: Redis) -> None:
    """The first thing that the holder is told afterwards, before any I/O, is that it holds no more."""
    witness = Witness()
    told_after = math.inf
    async with Session(client, listeners=[witness]) as session:
        lease = await Lock(session, "a", ttl=0.3).acquire()
        with pytest.raises(LockLostError, match="event loop did not run for"):
            async with lease:
                time.sleep(0.4)  # noqa: ASYNC251 - that is the fault
                assert lease.remaining() == 0
                assert lease.state is LeaseState.LOST
                with pytest.raises(LockLostError):
                    lease.ensure_held()
                woken = time.monotonic()
                try:
                    await asyncio.sleep(5)
                finally:
                    told_after = time.monotonic() - woken
        assert told_after < 0.05
        ((_, reason),) = witness.lost
        assert re.fullmatch(r"the event loop did not run for 0\.\d s or more", reason)
    async with Lock(redis, "a").acquire(blocking_timeout=1) as other:
        assert other.fencing_token > lease.fencing_token


async def test_t_h_1_loop_blocked_while_the_answer_to_a_renewal_was_waiting(
    client: Redis, through: Proxy
) -> None:
    """An answer that is read too late prolongs nothing that is over."""
    async with Session(client) as session:
        lease = await Lock(session, "a", ttl=0.3).acquire()
        sent = through.count(RENEW)
        through.delay_replies = 0.05
        await through.saw(RENEW, count=sent + 1)
        time.sleep(0.5)  # noqa: ASYNC251 - that is the fault
        through.delay_replies = 0.0
        assert lease.state is LeaseState.LOST
        for _ in range(50):
            await asyncio.sleep(0)
            assert lease.remaining() == 0
        await asyncio.wait_for(lease.wait_lost(), 0.1)
        assert session.statistics().losses == 1


@MULTIPLEXED
async def test_t_h_1_loop_blocked_for_less_than_the_ttl(client: Redis) -> None:
    async with Lock(client, "a", ttl=2.4) as lease:
        for _ in range(2):
            time.sleep(0.9)  # noqa: ASYNC251 - that is the fault
            lease.ensure_held()
            await renewed(lease)
            assert lease.remaining() > 0.3
            assert await lease.owned()


# -- the process is stopped or killed ------------------------------------------------------------------------


async def write_late(url: str, name: str, ttl: float) -> None:
    """Hold, be stopped, write afterwards as if nothing had been."""
    async with Redis.from_url(url) as redis:
        lease = await Lock(redis, name, ttl=ttl).acquire()
        fencing_token = lease.fencing_token
        assert await redis.eval(FENCED_WRITE, 1, "store", fencing_token, "early")
        before = time.monotonic()
        tell("inside", fencing_token=fencing_token)
        while time.monotonic() - before < 2 * ttl:
            before = time.monotonic()
            await asyncio.sleep(0.001)
        still_held = lease.remaining() > 0
        accepted = await redis.eval(FENCED_WRITE, 1, "store", fencing_token, "late")
        try:
            lease.ensure_held()
        except LockLostError:
            still_held = still_held or False
        tell("wrote", accepted=accepted, still_held=still_held, state=lease.state.name)
        try:
            await lease.release()
        except LockNotOwnedError:
            tell("not owned")
        await Session.of(redis).aclose()


@pytest.mark.leaves_keys("store")
async def test_t_h_2_stopped_for_longer_than_the_ttl_and_its_late_write(
    redis: Redis, server: Server, workers: Workers
) -> None:
    ttl = 0.5
    worker = await workers.start(write_late, url=server.url, name="a", ttl=ttl)
    first = (await worker.told("inside"))["fencing_token"]
    worker.stop()
    with elapsed() as took:
        lease = await Lock(redis, "a", ttl=5).acquire()
    assert took.seconds < ttl + POLL + SLACK
    assert lease.fencing_token > first
    assert await redis.eval(FENCED_WRITE, 1, "store", lease.fencing_token, "mine")
    await asyncio.sleep(max(0.0, 2.2 * ttl - took.seconds))
    worker.cont()
    report = await worker.told("wrote")
    assert report["still_held"] is False
    assert report["accepted"] == 0
    assert report["state"] == "LOST"
    await worker.told("not owned")
    await worker.finish()
    assert await redis.hget("store", "value") == b"mine"
    assert await lease.owned()
    await lease.release()
    await redis.delete("store")


async def hold(url: str, name: str, ttl: float) -> None:
    async with Redis.from_url(url) as redis, Lock(redis, name, ttl=ttl):
        tell("inside")
        await asyncio.sleep(60)


async def test_t_h_3_killed(redis: Redis, server: Server, workers: Workers) -> None:
    for waiting_before in (True, False):
        worker = await workers.start(hold, url=server.url, name="a", ttl=1)
        await worker.told("inside")
        acquiring = asyncio.create_task(Lock(redis, "a", ttl=5).acquire()) if waiting_before else None
        await asyncio.sleep(0.3)
        worker.kill()
        left = await redis.pttl("aiolocks:lock:{a}") / 1000
        assert left > 0
        with elapsed() as took:
            lease = await (acquiring or Lock(redis, "a", ttl=5).acquire())
        assert left - 0.02 < took.seconds < left + POLL + SLACK
        await lease.release()


# -- fork ----------------------------------------------------------------------------------------------------


def _in_child(examine: Callable[[], list[str]]) -> list[str]:
    """Fork, examine there, and return what it found."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = examine()
        except BaseException as error:
            found = [repr(error)]
        os.write(writing, "\n".join(found).encode() or b"-")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return [] if found == "-" else found.splitlines()


def _run_by_hand(coroutine: Any) -> str:
    """Run a coroutine that is expected to end without waiting; what it ended with."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return f"returned {stop.value!r}"
    except BaseException as error:
        return type(error).__name__
    coroutine.close()
    return "waits"


async def test_t_h_4_forked_while_held(client: Redis, through: Proxy) -> None:
    """The child holds nothing, and neither renews nor releases."""
    lease = await Lock(client, "a", ttl=2.1).acquire()
    loop: Any = asyncio.get_running_loop()
    before = len(through.requests)

    def examine() -> list[str]:
        time.sleep(0.8)  # a renewal is due
        for timer in list(loop._scheduled):
            if timer.when() <= loop.time() and not timer.cancelled():
                timer._run()
        found = [f"remaining {lease.remaining()}", lease.state.name]
        try:
            lease.ensure_held()
        except LockLostError as error:
            found.append(str(error))
        found += [_run_by_hand(lease.release()), _run_by_hand(lease.owned()), _run_by_hand(lease.extend())]
        return found

    found = _in_child(examine)
    assert found[0] == "remaining 0.0"
    assert "forked" in found[2]
    assert found[3:] == ["LockNotOwnedError"] * 3
    assert len(through.requests) == before
    assert await lease.owned()
    await renewed(lease)
    assert lease.state is LeaseState.HELD  # the parent goes on
    await lease.release()


async def test_t_h_4_forked_inside_an_async_with(client: Redis, through: Proxy) -> None:
    async with Lock(client, "a", ttl=5) as lease:
        before = through.count(RELEASE)
        found = _in_child(lambda: [_run_by_hand(lease.__aexit__(None, None, None))])
        assert found == ["LockNotOwnedError"]
        assert through.count(RELEASE) == before
        assert await lease.owned()


async def test_t_h_4_fork_ends_in_an_orderly_way(client: Redis, through: Proxy) -> None:
    """A child that collects its garbage and its client takes nothing away from its parent."""
    async with Lock(client, "a", ttl=5) as lease:
        requests = len(through.requests)

        def examine() -> list[str]:
            import gc
            import warnings

            warnings.simplefilter("ignore")
            gc.collect()
            return []

        assert _in_child(examine) == []
        assert len(through.requests) == requests
        assert await lease.owned()


async def in_a_child(url: str) -> None:
    """A pre-forking server: made before the fork, used behind it, in a loop of its own."""
    import multiprocessing

    async with Redis.from_url(url) as redis:
        lock = Lock(redis, "shared", ttl=5)
        async with lock as lease:
            child = multiprocessing.get_context("fork").Process(target=_use, args=(lock,))
            child.start()
            await asyncio.to_thread(child.join)
            tell("child", status=child.exitcode, owned=await lease.owned())
        await Session.of(redis).aclose()


def _use(lock: Lock) -> None:
    async def use() -> None:
        assert await lock.try_acquire() is None
        async with Lock(lock._source, "other", ttl=5) as lease:
            assert await lease.owned()

    asyncio.run(use())


async def test_t_h_4_client_that_was_made_before_the_fork(server: Server, workers: Workers) -> None:
    worker = await workers.start(in_a_child, url=server.url)
    report = await worker.told("child")
    assert (report["status"], report["owned"]) == (0, True)
    await worker.finish()


# -- renewals that fail --------------------------------------------------------------------------------------


async def test_t_h_5_every_single_renewal_fails_once(connect: Connect, through: Proxy, form: str) -> None:
    client = connect(Formed(through, form))
    await warm(client)
    witness = Witness()
    async with (
        Session(client, listeners=[witness]) as session,
        Lock(session, "a", ttl=1.5) as lease,
    ):
        failed = [through.reset_after(RENEW, nth=nth) for nth in range(1, 40, 2)]
        while len(witness.renewed) < 3:
            lease.ensure_held()
            await asyncio.sleep(0.005)
    through._traps.clear()
    assert sum(event.is_set() for event in failed) >= 3
    assert witness.lost == []


async def test_t_h_5_server_away_for_less_than_the_ttl(own_server: OwnServer, connect: Connect) -> None:
    """Killed and started again with its data: UNKNOWN meanwhile, and then held as before."""
    server = await own_server(arguments=("--appendonly", "yes", "--appendfsync", "always"))
    witness = Witness()
    async with Session(connect(server), listeners=[witness]) as session:
        async with Lock(session, "a", ttl=3) as lease:
            server.kill()
            await eventually(lambda: lease.state is LeaseState.UNKNOWN)
            assert lease.remaining() > 0
            await server.restart()
            await eventually(lambda: lease.state is LeaseState.HELD)
            assert lease.remaining() > 1
        assert witness.lost == []


async def test_t_h_5_server_that_came_back_without_its_data(own_server: OwnServer, connect: Connect) -> None:
    server = await own_server()
    client = connect(server)
    lease = await Lock(client, "a", ttl=1.5).acquire()
    await server.restart()
    with elapsed() as took, pytest.raises(LockLostError, match="no longer has it"):
        await _until_lost(lease)
    assert took.seconds < 0.5 + SLACK
    assert not await Lock(client, "a").locked()  # nothing was made again


async def _until_lost(lease: Lease) -> None:
    async with lease:
        await asyncio.sleep(10)


@MULTIPLEXED
async def test_t_h_5b_deleted_key_is_not_brought_back_by_a_renewal(
    client: Redis, redis: Redis, keys: Keys
) -> None:
    lease = await Lock(client, "a", ttl=1).acquire()
    await redis.delete(*keys())
    sampled = []
    until = asyncio.get_running_loop().time() + 1.1
    while asyncio.get_running_loop().time() < until:
        sampled += keys()
        await asyncio.sleep(0.005)
    assert sampled == []
    assert lease.state is LeaseState.LOST
    with pytest.raises(LockLostError):
        await lease.extend()
    with pytest.raises(LockNotOwnedError):
        await lease.release()
    assert keys() == []


@MULTIPLEXED
@pytest.mark.parametrize("leases", [50, pytest.param(400, marks=pytest.mark.soak)])
async def test_t_h_6_loss_is_told_in_time_without_any_contact(
    client: Redis, through: Proxy, leases: int
) -> None:
    """Once, never after the deadline by more than a scheduling delay, whatever phase a renewal is in."""
    loop = asyncio.get_running_loop()
    lost: dict[str, list[float]] = {}
    confirmed: dict[str, int] = {}

    class Listener:
        def on_acquired(self, event: Any) -> None:
            confirmed[event.name] = 1

        def on_renewed(self, event: Any) -> None:
            confirmed[event.name] += 1

        def on_lost(self, event: Any) -> None:
            lost.setdefault(event.name, []).append(loop.time())

    ttl = 0.6
    sent: dict[str, list[float]] = {}

    def note(request: list[bytes]) -> None:
        for key in locks_in(request):
            times = sent.setdefault(key.decode().partition("{")[2][:-1], [])
            if request[0] == b"EVAL":
                times.pop()  # in full, as the server did not know the script: it is one request
            times.append(loop.time())

    look_at(through, note)
    async with Lag() as lag, Session(client, listeners=[Listener()]) as session:
        held = []
        for number in range(leases):
            held.append(await Lock(session, f"n{number}", ttl=ttl).acquire())
            await asyncio.sleep(ttl / leases)
        await asyncio.sleep(ttl / 2)
        through.blackhole = True
        await asyncio.gather(*(asyncio.wait_for(lease.wait_lost(), 2 * ttl) for lease in held))
        assert all(len(times) == 1 for times in lost.values())
        late = [times[0] - sent[name][confirmed[name] - 1] - ttl for name, times in lost.items()]
        assert len(late) == leases
        assert max(late) < 0.03 + lag.longest
        through.blackhole = False
        through.cut()
        assert session.statistics().losses == leases


async def test_t_h_7_release_behind_a_renewal_that_is_under_way(
    connect: Connect, through: Proxy, redis: Redis, keys: Keys
) -> None:
    client = connect(through)
    await warm(client)
    for replies_take in (0.0, 0.05):
        for _ in range(3):
            lease = await Lock(client, "a", ttl=0.6).acquire()
            sent = through.count(RENEW)
            await through.saw(RENEW, count=sent + 1)
            through.delay_replies = replies_take
            await lease.release()
            through.delay_replies = 0.0
            async with Lock(redis, "a", ttl=5, auto_renew=False):
                (key,) = keys()
                left = [await redis.pttl(key)]
                for _ in range(10):
                    await asyncio.sleep(0.004)
                    left.append(await redis.pttl(key))
                assert left == sorted(left, reverse=True)


@MULTIPLEXED
async def test_t_h_7_nothing_is_renewed_behind_a_release(client: Redis, through: Proxy) -> None:
    released = 0
    for number in range(60):
        with suppress(LockError):  # this machine was busy for longer than the ttl
            lease = await Lock(client, "a", ttl=0.05).acquire()
            await asyncio.sleep(number % 20 / 1000)
            await lease.release()
            released += 1
    assert released > 10
    renewals = through.count(RENEW)
    await asyncio.sleep(0.1)
    assert through.count(RENEW) == renewals


def test_t_h_8_ttl_too_short_to_be_kept() -> None:
    client = Redis()
    for ttl in (0.049, 0.001, 1e-9):
        with pytest.raises(ValueError, match=r"ttl must be .* from 0\.05 "):
            Lock(client, "a", ttl=ttl)


@MULTIPLEXED
async def test_t_h_8_ttl_of_a_few_round_trips_is_kept(client: Redis, through: Proxy) -> None:
    through.delay = 0.12
    async with Lock(client, "a", ttl=0.8) as lease:
        until = asyncio.get_running_loop().time() + 1.2
        while asyncio.get_running_loop().time() < until:
            lease.ensure_held()
            await asyncio.sleep(0.01)
    through.delay = 0.0


@pytest.mark.soak
async def test_t_h_5_lease_outlives_a_half_open_connection(connect: Connect, through: Proxy) -> None:
    """A new connection is made while there is time left."""
    client = connect(through)
    await warm(client)
    async with Lock(client, "a", ttl=8) as lease:
        await lease.extend()
        deafen(through)
        await eventually(lambda: lease.state is LeaseState.UNKNOWN, within=5)
        await eventually(lambda: lease.state is LeaseState.HELD, within=5)
        assert lease.remaining() > 4
