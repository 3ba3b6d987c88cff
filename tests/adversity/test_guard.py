"""Bodies that block the event loop, in real processes: what the guard says and does, and when."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Self

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, LockLostError, Session
from tests.support.processes import Workers, tell
from tests.support.servers import Server

TTL = 2.0

pytestmark = pytest.mark.leaves_keys


def chew() -> None:
    """The work of a body that does not let the loop run."""
    time.sleep(5)


def chew_a_little() -> None:
    time.sleep(2)


async def block(url: str, log: str, guard: str, ttl: float = TTL, *, spin: bool = False) -> None:
    logging.basicConfig(filename=log)
    async with Redis.from_url(url) as redis, Session(redis, guard=guard) as session:  # type: ignore[arg-type]
        try:
            async with Lock(session, "n", ttl=ttl) as lease:
                tell("inside", token=lease.fencing_token)
                if spin:
                    until = time.monotonic() + 5
                    while time.monotonic() < until:
                        pass
                (chew if ttl == TTL else chew_a_little)()
        except LockLostError:
            tell("lost")


@pytest.mark.more  # as the end of the process in time
@pytest.mark.parametrize(
    ("ttl", "blocks"),
    [
        (0.5, "chew_a_little\n    time.sleep(2)"),
        pytest.param(TTL, "chew\n    time.sleep(5)", marks=pytest.mark.soak),
    ],
)
async def test_the_stack_is_in_the_log_before_another_process_enters(
    server: Server, workers: Workers, tmp_path: Path, *, ttl: float, blocks: str
) -> None:
    log = tmp_path / "log"
    worker = await workers.start(block, url=server.url, log=str(log), guard="log", ttl=ttl)
    await worker.told("inside")
    async with Redis.from_url(server.url) as redis, Lock(redis, "n", blocking_timeout=10):
        text = read(log)
    assert "ERROR:aiolocks.guard:the event loop has not run for " in text
    assert "the lease of Lock 'n' ends in 0." in text
    assert f"in {blocks}" in text
    assert "in task 'Task-1'" in text
    await worker.told("lost")


def read(log: Path) -> str:
    return log.read_text()


class Canary:
    """A process's worth of waiting for a core: how late a thread is that sleeps for 5 ms at a time."""

    def __init__(self) -> None:
        self.latest = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        before = time.monotonic()
        while not self._over.wait(0.005):
            now = time.monotonic()
            self.latest = max(self.latest, now - before - 0.005)
            before = now

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


async def ends_in_time(server: Server, workers: Workers, log: Path, *, spin: bool) -> tuple[float, str]:
    """For how long the server has kept the lock after the process had ended, in seconds; and its log."""
    async with Redis.from_url(server.url) as redis:
        await redis.ping()
        worker = await workers.start(block, url=server.url, log=str(log), guard="exit", spin=spin)
        await worker.told("inside")
        await worker.finish(status=70)
        left = await redis.pttl("aiolocks:lock:{n}") / 1000
        await redis.delete("aiolocks:lock:{n}")
    return left, read(log)


async def test_a_process_ends_before_the_server_lets_another_one_in(
    server: Server, workers: Workers, tmp_path: Path
) -> None:
    for tries in range(5):  # a host without a free core may be late
        with Canary() as canary:
            left, text = await ends_in_time(server, workers, tmp_path / f"{tries}", spin=False)
        if left > 0:
            break
    assert left > 0 or canary.latest > 0.03
    assert "the process ends now, with status 70. This blocks it in task" in text


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_a_process_ends_in_time_each_time(server: Server, workers: Workers, tmp_path: Path) -> None:
    """Fifty times on a host that has a core to give: tries in which it had none are counted apart."""
    left: list[float] = []
    starved: list[float] = []
    while len(left) < 50 and len(starved) < 200:
        tries = len(left) + len(starved)
        with Canary() as canary:
            log = tmp_path / f"{tries}"
            seconds, text = await ends_in_time(server, workers, log, spin=tries % 2 == 1)
        if canary.latest > 0.03:
            starved.append(seconds)
        else:
            left.append(seconds)
            assert "This blocks it in task" in text
    print(  # noqa: T201
        f"ended {min(left):.3f} to {max(left):.3f} s before the server's ttl, {len(left)} times; "
        f"{len(starved)} times on a host without a free core, of these {sum(one < 0 for one in starved)} late"
    )
    assert len(left) == 50
    assert min(left) > 0


async def fork_and_block(url: str, log: str) -> None:
    """The parent has a guard, and its child needs one of its own."""
    async with Redis.from_url(url) as redis, Lock(redis, "parent", ttl=0.5):
        assert "aiolocks-guard" in {thread.name for thread in threading.enumerate()}
        pid = os.fork()
        if pid == 0:
            asyncio.set_event_loop(None)
            asyncio.events._set_running_loop(None)
            asyncio.run(block(url, log, "exit", 0.5))
            os._exit(0)
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        tell("ended", status=os.waitstatus_to_exitcode(status))


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
async def test_a_child_has_a_guard_of_its_own(server: Server, workers: Workers, tmp_path: Path) -> None:
    worker = await workers.start(fork_and_block, url=server.url, log=str(tmp_path / "log"))
    ended = await worker.told("ended")
    assert ended["status"] == 70


async def test_a_healthy_session_says_so_and_one_without_a_server_does_not(
    server: Server, client: Redis
) -> None:
    session = Session(client)
    assert await session.healthy()
    server.pause()
    before = time.monotonic()
    assert not await session.healthy(within=0.1)
    assert time.monotonic() - before < 1
    server.resume()
    assert await session.healthy()
    with pytest.raises(ValueError, match="within must be a number of seconds"):
        await session.healthy(within=0)
    await session.aclose()
    assert not await session.healthy()
