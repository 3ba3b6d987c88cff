"""One of the demo's worker processes: `python -m aiolocks.cli.demo.worker`.

It takes commands from stdin, one JSON object a line, and tells on stdout what happens, in the same form.
Times are those of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import resources
from time import monotonic
from typing import Any, Final, cast

from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from ... import Lease, Lock, LockLostError, Session
from .. import demo
from ..server import open_client

KEEP: Final = 60
"""Seconds after which the demo's keys are gone, should it not come to remove them."""
_PATIENCE: Final = 20.0
_REPORT_EVERY: Final = 10


def tell(event: str, **details: object) -> None:
    """Tells the demo that something has happened."""
    print(json.dumps({"event": event, "at": monotonic(), **details}), flush=True)


# -- the acts, as the workers play them; `prefix` is what all keys begin with


async def count(*, url: str, prefix: str, key: str, rounds: int, lock: bool) -> None:
    """Adds 1 to a counter, many times, with a lock or without."""
    async with _session(url, prefix) as (redis, session):
        one = Lock(session, "counter", ttl=5)
        holds: list[tuple[float, float]] = []
        for done in range(1, rounds + 1):
            if lock:
                async with one as lease:
                    entered = monotonic()
                    await _note_entry(redis, f"{prefix}:entries", lease)
                    await _add_one(redis, key)
                    holds.append((entered, monotonic()))
            else:
                await _add_one(redis, key)
            if done % _REPORT_EVERY == 0 or done == rounds:
                tell("progress", done=done, holds=holds)
                holds = []


async def _add_one(redis: Redis, key: str) -> None:
    value = int(cast("bytes", await redis.get(key)))
    await asyncio.sleep(0.0005)  # the work of a program between reading and writing
    await redis.set(key, value + 1, keepttl=True)


async def _note_entry(redis: Redis, key: str, lease: Lease) -> None:
    async with redis.pipeline() as pipeline:
        pipeline.rpush(key, lease.fencing_token)
        pipeline.expire(key, KEEP)
        await pipeline.execute()


async def hold(*, url: str, prefix: str, name: str, ttl: float) -> None:
    """Holds a lock, until it is killed."""
    async with _session(url, prefix) as (_, session):
        asked = monotonic()
        async with Lock(session, name, ttl=ttl) as lease:
            tell("holds", asked=asked, fencing_token=lease.fencing_token)
            await asyncio.sleep(_PATIENCE)


async def take(*, url: str, prefix: str, name: str, seconds: float) -> None:
    """Waits for a lock, writes, and leaves again."""
    async with _session(url, prefix) as (_, session):
        tell("waits")
        async with Lock(session, name, blocking_timeout=_PATIENCE) as lease:
            tell("holds", fencing_token=lease.fencing_token)
            tell("wrote", accepted=_write(url, f"{prefix}:store", "successor", lease))
            await asyncio.sleep(seconds)
            tell("leaves")


async def write_late(*, url: str, prefix: str, name: str, ttl: float) -> None:
    """Holds a lock, writes, and writes again when its time has passed without its knowing."""
    try:
        async with _session(url, prefix) as (_, session):
            asked = monotonic()
            async with Lock(session, name, ttl=ttl) as lease:
                tell("holds", asked=asked, fencing_token=lease.fencing_token)
                tell("wrote", accepted=_write(url, f"{prefix}:store", "first", lease))
                # A long computation, say: nothing else of this event loop runs before the write that follows,
                # and so nothing here can know that the time has passed. In here the process is stopped.
                _wait_for_word()
                tell("wrote late", accepted=_write(url, f"{prefix}:store", "late", lease))
                try:
                    await asyncio.sleep(_PATIENCE)
                except asyncio.CancelledError:
                    tell("cancelled")
                    raise
    except LockLostError as error:
        tell("lost", error=type(error).__name__, message=str(error))


def _write(url: str, key: str, value: str, lease: Lease) -> bool:
    """Blocks, so that what comes before and after it in the program does so in time."""
    script = resources.files(demo).joinpath("fenced_write.lua").read_text()
    with BlockingRedis.from_url(url) as store:  # pyright: ignore[reportUnknownMemberType]
        return bool(store.eval(script, 1, key, value, str(lease.fencing_token), str(KEEP * 1000)))


@asynccontextmanager
async def _session(url: str, prefix: str) -> AsyncGenerator[tuple[Redis, Session], None]:
    async with open_client(url) as redis, Session(redis, prefix=prefix) as session:
        yield redis, session


# -- the process


def _wait_for_word() -> str:
    return sys.stdin.readline()


def _end_with_parent() -> None:
    """Its end is the end of our input; inside an act and while stopped, only the kernel can see to it."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


_ACTS: Final[dict[str, Callable[..., Awaitable[None]]]] = {
    "count": count,
    "hold": hold,
    "take": take,
    "write_late": write_late,
}


def main() -> None:
    """Plays whatever act it is told to, until its input ends."""
    logging.getLogger("aiolocks").addHandler(logging.NullHandler())  # a loss is part of the play
    _end_with_parent()
    tell("ready")
    while line := _wait_for_word():
        command: dict[str, Any] = json.loads(line)
        act = _ACTS[command.pop("act")]
        try:
            asyncio.run(_play(act, command))
        except Exception as error:  # noqa: BLE001 - whatever it is, the demo says it
            tell("failed", error=f"{type(error).__name__}: {error}")
        else:
            tell("done")


async def _play(act: Callable[..., Awaitable[None]], arguments: dict[str, Any]) -> None:
    await act(**arguments)


if __name__ == "__main__":
    main()
