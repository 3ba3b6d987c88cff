"""A machine that is suspended: its monotonic clock stands still, the one that counts suspension does not.

Real processes, whose CLOCK_BOOTTIME is moved as a suspension would move it.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, LockLostError
from aiolocks.lock import resumption
from tests.adversity.tools import ACQUIRE
from tests.support.processes import Workers, tell
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.skew import Clock
from tests.support.waiting import eventually

TTL = 30.0
"""Seconds: the loop's own timers look at a lease after 10 s, and no test waits for that."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="moves CLOCK_BOOTTIME, which is Linux's")


class Machine:
    """The machine on which the workers believe to run."""

    def __init__(self, clock: Clock, fifo: Path) -> None:
        self._clock = clock
        self._fifo = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)

    def suspend(self, seconds: float) -> None:
        """So much time passes that no loop's clock counts. Nobody is told."""
        self._clock.offset += seconds

    def resume(self) -> None:
        """The kernel says that the machine goes on."""
        os.write(self._fifo, bytes(8))

    def close(self) -> None:
        os.close(self._fifo)


@pytest.fixture
def machine(workers: Workers, shim: Path, tmp_path: Path) -> Iterator[Machine]:
    fifo = tmp_path / "resumed"
    os.mkfifo(fifo)
    with Clock(tmp_path / "suspended") as clock:
        preload = {"LD_PRELOAD": str(shim), "SKEW_FILE": str(clock.file), "RESUMED_FIFO": str(fifo)}
        workers.environment.update(preload)
        machine = Machine(clock, fifo)
        yield machine
        machine.close()


def suspended_for() -> float:
    """In a worker: seconds that its loop's clock has not counted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


async def until_suspended(seconds: float) -> None:
    before = suspended_for()
    tell("inside")
    while suspended_for() < before + seconds / 2:
        await asyncio.sleep(0.001)


async def ask_afterwards(url: str) -> None:
    """Hold, and ask the lease first thing after the suspension, before the loop gets any chance."""
    async with Redis.from_url(url) as redis:
        lease = await Lock(redis, "a", ttl=TTL, on_lost="ignore").acquire()
        await until_suspended(2 * TTL)
        try:
            lease.ensure_held()
            reason = ""
        except LockLostError as error:
            reason = str(error)
        tell("asked", reason=reason, remaining=lease.remaining(), state=lease.state.name)


@pytest.mark.more  # as a body after one
@pytest.mark.leaves_keys
async def test_a_lease_says_no_first_thing_after_a_suspension_past_its_deadline(
    server: Server, workers: Workers, machine: Machine
) -> None:
    worker = await workers.start(ask_afterwards, url=server.url)
    await worker.told("inside")
    machine.suspend(2 * TTL)
    asked = await worker.told("asked")
    assert asked["state"] == "LOST"
    assert asked["remaining"] == 0
    assert "the machine was suspended for 60." in asked["reason"]


async def read_on(url: str, pipe: str) -> None:
    """Hold, and wait for something from elsewhere."""
    with open(pipe, "r+b", buffering=0) as file:  # noqa: ASYNC230, PTH123 - does not wait
        loop = asyncio.get_running_loop()
        something = loop.create_future()
        loop.add_reader(file, lambda: something.done() or something.set_result(file.read(1)))
        async with Redis.from_url(url) as redis:
            try:
                async with Lock(redis, "a", ttl=TTL):
                    await asyncio.sleep(0.05)  # the listener is set up
                    tell("inside")
                    await something
                    tell("next line")
            except LockLostError as error:
                tell("lost", reason=str(error), came=something.done())
            finally:
                loop.remove_reader(file)


async def test_a_body_is_cancelled_before_its_next_line(
    server: Server, workers: Workers, machine: Machine, tmp_path: Path
) -> None:
    """Also where that line has waited for something which came during the suspension."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    worker = await workers.start(read_on, url=server.url, pipe=str(pipe))
    await worker.told("inside")
    worker.stop()
    machine.suspend(2 * TTL)
    with open(pipe, "r+b", buffering=0) as file:  # noqa: ASYNC230, PTH123 - does not wait
        file.write(b".")
        machine.resume()
        worker.cont()
        lost = await worker.told("lost", within=5)
    assert [report["event"] for report in worker.told_so_far] == ["inside", "lost"]
    # Where a timer of the loop was due as well, that may look first.
    assert re.search(r"was suspended for 60\.|loop did not run for [56]\d\.", lost["reason"])
    assert lost["came"]
    await worker.finish()


async def stay_inside(url: str) -> None:
    async with Redis.from_url(url) as redis, Lock(redis, "a", ttl=TTL) as lease:
        await asyncio.sleep(0.05)  # the listener is set up
        await until_suspended(TTL / 2)
        tell("resumed", remaining=lease.remaining(), state=lease.state.name)
        await eventually(lambda: lease.remaining() > TTL * 0.9)
        tell("renewed")


@pytest.mark.more  # as a body after a suspension
async def test_a_lease_that_has_time_left_is_renewed_at_once(
    server: Server, workers: Workers, machine: Machine
) -> None:
    worker = await workers.start(stay_inside, url=server.url)
    await worker.told("inside")
    machine.suspend(TTL / 2)
    resumed = await worker.told("resumed")
    assert resumed["state"] == "HELD"
    assert resumed["remaining"] < TTL / 2
    machine.resume()
    await worker.told("renewed", within=5)
    await worker.finish()


async def enter(url: str) -> None:
    async with Redis.from_url(url) as redis, Lock(redis, "a", ttl=TTL) as lease:
        tell("inside", remaining=lease.remaining())


async def test_a_grant_from_before_the_suspension_is_given_back(
    redis: Redis, through: Proxy, workers: Workers, machine: Machine
) -> None:
    """Its ttl may have passed on the server while the machine slept: the lock is acquired again."""
    async with Lock(redis, "a"):
        pass  # the server knows the scripts
    through.delay_replies = 0.25
    worker = await workers.start(enter, url=through.url)
    await through.saw(ACQUIRE)
    machine.suspend(2 * TTL)
    through.delay_replies = 0.0
    inside = await worker.told("inside")
    assert inside["remaining"] > TTL / 2
    await worker.finish()
    assert through.count(ACQUIRE) == 2


async def test_the_kernel_takes_the_timer() -> None:
    """And does not end it at once."""
    timer = resumption._open()
    assert timer is not None
    try:
        with pytest.raises(BlockingIOError):
            os.read(timer, 8)
    finally:
        os.close(timer)
