"""The error of a task that waits in vain: it tells the holder, and that the task waits for itself."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import DeadlockError, HolderInfo, LockTimeoutError, Session
from tests.conformance.conftest import Kind, nothing_left, stall
from tests.support.waiting import eventually

Keys = Callable[..., list[str]]
METADATA = {"order": 17}


async def refused(lock: Any, blocking_timeout: float) -> LockTimeoutError:
    """The error of a wait for that many seconds."""
    with pytest.raises(LockTimeoutError) as caught:
        async with lock.acquire(blocking_timeout=blocking_timeout):
            pytest.fail("entered")
    return caught.value


async def dead(lock: Any) -> DeadlockError:
    """The error of a wait without end."""
    with pytest.raises(DeadlockError) as caught:
        async with asyncio.timeout(5 + stall()):
            async with lock:
                pytest.fail("entered")
    return caught.value


def is_ours(holder: HolderInfo, lease: Any, task: str) -> None:
    assert (holder.host, holder.pid, holder.task) == (socket.gethostname(), os.getpid(), task)
    assert holder.metadata == METADATA
    assert holder.fencing_token == lease.fencing_token
    assert holder.remaining == pytest.approx(20, abs=2 + stall())
    assert holder.held_for is not None
    assert -0.1 < holder.held_for < 5 + stall()


# -- the holder


@pytest.mark.timed
@pytest.mark.thin
@pytest.mark.parametrize("blocking_timeout", [0, 0.5])
async def test_a_time_out_names_the_holder_elsewhere(
    kind: Kind, client: Redis, join: Callable[..., Redis], blocking_timeout: float
) -> None:
    elsewhere = join()
    async with kind.make(client, "a", ttl=20, metadata=METADATA) as lease:
        error = await refused(kind.make(elsewhere, "a"), blocking_timeout)
        (holder,) = error.holders
        is_ours(holder, lease, asyncio.current_task().get_name())  # type: ignore[union-attr]
        assert lease.token[:8] not in str(error)
        said = rf"held for \d+\.\d s by \S+ pid {os.getpid()} task '.*' {{'order': 17}}; the lease has "
        assert re.search(said + r"[12]\d\.", str(error))


@pytest.mark.timed
async def test_a_time_out_names_the_holder_here(kind: Kind, client: Redis) -> None:
    async def waits(seconds: float) -> LockTimeoutError:
        return await refused(kind.make(client, "a"), seconds)

    async with kind.make(client, "a", ttl=20, metadata=METADATA) as lease:
        for error in await asyncio.gather(waits(0.1), waits(0.12), waits(0.14)):
            (holder,) = error.holders
            is_ours(holder, lease, asyncio.current_task().get_name())  # type: ignore[union-attr]


@pytest.mark.timed
async def test_those_who_wait_behind_another_name_the_holder_as_well(
    kind: Kind, client: Redis, join: Callable[..., Redis]
) -> None:
    elsewhere = join()
    async with kind.make(client, "a", ttl=20, metadata=METADATA) as lease:
        waits = [refused(kind.make(elsewhere, "a"), 0.6 + 0.02 * number) for number in range(3)]
        for error in await asyncio.gather(*waits):
            (holder,) = error.holders
            is_ours(holder, lease, asyncio.current_task().get_name())  # type: ignore[union-attr]


@pytest.mark.timed
async def test_nothing_is_asked_for_the_sake_of_the_error(
    kind: Kind, client: Redis, join: Callable[..., Redis]
) -> None:
    elsewhere = join()
    lock = kind.make(elsewhere, "a")
    async with kind.make(client, "a"):
        await lock.try_acquire()
        sent = Session.of(elsewhere).statistics().commands_sent
        await refused(lock, 0)
        by_error = Session.of(elsewhere).statistics().commands_sent - sent
        assert by_error < 2 * kind.masters + stall()  # of several, the last to answer may be told to undo it


# -- the task itself


async def test_a_task_that_takes_it_again_is_told_at_once(kind: Kind, client: Redis, keys: Keys) -> None:
    async with kind.make(client, "a") as lease:
        error = await dead(kind.make(client, "a"))
        assert error.name == "a"
        assert "this task itself holds" in str(error)
        assert await lease.owned()
        assert Session.of(client).statistics().waiters == 0
    async with kind.make(client, "a"):
        pass
    await nothing_left(kind, keys)


@pytest.mark.thin
@pytest.mark.parametrize("blocking_timeout", [0, 0.1])
async def test_a_task_that_takes_it_again_is_told_by_the_time_out(
    kind: Kind, client: Redis, blocking_timeout: float
) -> None:
    async with kind.make(client, "a"):
        error = await refused(kind.make(client, "a"), blocking_timeout)
        assert "held by this task itself" in str(error)
        assert len(error.holders) == 1


async def test_whoever_waits_behind_another_task_is_told_as_well(kind: Kind, client: Redis) -> None:
    waiter = None
    async with kind.make(client, "a"):
        waiter = asyncio.create_task(hold(kind.make(client, "a")))
        await eventually(lambda: Session.of(client).statistics().waiters == 1)
        await dead(kind.make(client, "a"))
        assert not waiter.done()
    await asyncio.wait_for(waiter, 5)


async def hold(lock: Any) -> None:
    async with lock:
        pass


@pytest.mark.timed
@pytest.mark.thin
@pytest.mark.parametrize("why", ["max_hold", "auto_renew", "not entered", "another task", "released"])
async def test_what_may_end_by_itself_is_waited_for(kind: Kind, client: Redis, why: str) -> None:
    options = {"max_hold": {"max_hold": 10}, "auto_renew": {"auto_renew": False}}.get(why, {})
    lock = kind.make(client, "a", **options)
    if why in ("not entered", "another task"):
        lease = await lock.acquire()
        if why == "not entered":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await lock.acquire()
        else:
            async with lease:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await asyncio.create_task(lock.acquire())
        await lease.release()
        return
    async with lock as lease:
        if why == "released":
            await lease.release()
            await hold(lock)
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await lock.acquire()


# -- long waits


@pytest.mark.timed
@pytest.mark.thin
@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_long_wait_is_logged_once_with_its_holder(
    kind: Kind,
    client: Redis,
    join: Callable[..., Redis],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    monkeypatch.setattr("aiolocks.lock.waiter._LONG", 0.2)
    caplog.set_level(logging.INFO, "aiolocks.session")

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "waiting for" in record.getMessage()]

    async with kind.make(client, "a"):
        lock = kind.make(client if where == "here" else join(), "a")
        waiter = asyncio.create_task(hold(lock))
        await eventually(told)
        await asyncio.sleep(0.3)
        assert len(told()) == 1
        assert re.search(r"'a': waiting for \d+\.\d", told()[0])
        assert f"by {socket.gethostname()} pid {os.getpid()} task" in told()[0]
    await asyncio.wait_for(waiter, 5)
