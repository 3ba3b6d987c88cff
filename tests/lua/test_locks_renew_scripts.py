"""Several renewals in one request: each does what it does alone, whatever stands beside it."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ResponseError

from tests.lua import test_lock_scripts as alone
from tests.lua.mutants import checks, compiled, lines_left_out, unnoticed
from tests.lua.scripts import HOUR, MINUTE, LockScripts, about

pytestmark = pytest.mark.leaves_keys("aiolocks*:lock*")  # without a ttl, where a test has put them there

ME, OTHER = alone.ME, alone.OTHER
FILE = "locks_renew"


class Among(LockScripts):
    """A lock that is renewed between one that another token holds, and one that cannot be read."""

    async def renew(self, token: str, *, ttl: int = MINUTE, retention: int = HOUR) -> Any:
        free, wrong = self.another(), self.another()
        await self.redis.rpush(wrong.lock, "")
        keys = [key for one in (free, self, wrong, self) for key in (one.lock, one.fence)]
        first, second, third, last = await self.run(
            self.words(
                FILE, keys, *(OTHER, 1, 1), *(token, ttl, retention), *(OTHER, 1, 1), *(token, ttl, retention)
            )
        )
        await self.redis.delete(wrong.lock)
        assert first == 0
        assert isinstance(third, ResponseError)
        assert "WRONGTYPE" in str(third)
        assert second == last
        return second


@pytest.fixture
def lock(redis, prefix) -> Among:
    return Among(redis, prefix)


RENEWALS = {name: test for name, test in vars(alone).items() if name.startswith("test_renew_")}


@pytest.mark.parametrize("name", RENEWALS)
async def test_among_others_it_does_what_it_does_alone(lock, name) -> None:
    await RENEWALS[name](lock)


async def test_each_has_its_own_ttl_and_retention(lock) -> None:
    other = lock.another()
    await lock.acquire(ME)
    await other.acquire(OTHER)

    keys = [lock.lock, lock.fence, other.lock, other.fence]
    words = lock.words(FILE, keys, ME, 2 * MINUTE, 2 * HOUR, OTHER, 3 * MINUTE, 3 * HOUR)
    assert await lock.run(words) == [1, 1]

    assert await lock.expires_in(lock=2 * MINUTE, fence=2 * HOUR)
    assert await other.expires_in(lock=3 * MINUTE, fence=3 * HOUR)


async def test_each_is_told_of_the_thief_of_its_own_lock(lock) -> None:
    other = lock.another()
    for one in (lock, other):
        await one.acquire(ME)
    await other.steal(OTHER)

    words = lock.words(FILE, [lock.lock, lock.fence, other.lock, other.fence], *(ME, MINUTE, HOUR) * 2)
    held, thief = await lock.run(words)

    assert held == 1
    assert thief == await other.value()


async def test_a_hundred_are_done_in_one_request(redis, prefix) -> None:
    locks = [LockScripts(redis, prefix) for _ in range(100)]
    for lock in locks[::2]:
        await lock.acquire(ME, ttl=1_000)

    keys = [key for lock in locks for key in (lock.lock, lock.fence)]
    replies = await locks[0].run(locks[0].words(FILE, keys, *(ME, MINUTE, HOUR) * 100))

    assert replies == [1, 0] * 50
    assert all([about(await redis.pttl(lock.lock), MINUTE) for lock in locks[::2]])


async def test_without_a_line_somebody_notices(redis, prefix) -> None:
    found = [(name, FILE, text) for name, text in lines_left_out(FILE)]
    living = await compiled(Among, redis, prefix, FILE, found)

    assert len(living) > 5
    among = {**RENEWALS, **checks(globals(), "lock")}
    assert await unnoticed(Among, redis, prefix, living, among=among) == []
