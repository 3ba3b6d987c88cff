"""A test that runs in the simulated world fails as it would elsewhere."""

from __future__ import annotations

import asyncio
import logging

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, LockTimeoutError, Session
from tests.simulation import place


async def takes_minutes(session: Session) -> None:
    async with Lock(session, "a"):
        with pytest.raises(LockTimeoutError):
            await Lock(session, "a").acquire(blocking_timeout=200)


async def fails(session: Session) -> None:
    async with Lock(session, "a") as lease:
        assert lease.name == "b"


async def never_ends(session: Session) -> None:
    await asyncio.Event().wait()


async def leaves_a_key(redis: Redis) -> None:
    await redis.set("a", 1, px=60_000)


@pytest.mark.leaves_keys("a")
async def may_leave_a_key(redis: Redis) -> None:
    await redis.set("a", 1)


async def leaves_a_task(redis: Redis) -> None:
    asyncio.get_running_loop().left = asyncio.create_task(asyncio.sleep(60), name="left")  # type: ignore[attr-defined]


async def logs_a_token(redis: Redis) -> None:
    logging.getLogger("aiolocks").warning("0123456789abcdef0123456789abcdef")


async def wants_what_is_not_there(proxy: object) -> None:
    pass


@pytest.mark.parametrize("test", [takes_minutes, may_leave_a_key])
def test_it_passes(test) -> None:
    place.run(test)


@pytest.mark.parametrize(
    ("test", "why"),
    [
        (fails, "'a' == 'b'"),
        (never_ends, "nothing more happens"),
        (leaves_a_key, "a for 59"),
        (leaves_a_task, "left"),
        (logs_a_token, "a token in the log"),
        (wants_what_is_not_there, "no fixture 'proxy'"),
    ],
)
def test_it_fails(test, why: str) -> None:
    with pytest.raises(Exception, match=why):
        place.run(test)
