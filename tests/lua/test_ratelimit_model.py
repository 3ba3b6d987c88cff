"""The scripts of a rate limit against a brute force, by a clock that the test moves.

The model knows no bucket. It has the list of all moments that were given, and gives the earliest one after
which no two moments of the list have more between them than the limit allows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from tests.lua.scripts import shipped
from tests.lua.test_ratelimit_scripts import FOREVER_US, KEPT, SECOND, RateLimitScripts

pytestmark = pytest.mark.leaves_keys("aiolocks*:ratelimit:*")

CLOCK = b"local TIME = redis.call('TIME')\nlocal MICROSECONDS = TIME[1] * 1000000 + TIME[2]"
MOVED = b"local MICROSECONDS = tonumber(ARGV[#ARGV])"


class Clocked(RateLimitScripts):
    """The same steps by a clock that is an argument."""

    now = 1_700_000_000_000_000

    def __init__(self, redis: Any, prefix: str, mutant: dict[str, bytes] | None = None) -> None:
        text = shipped("shared/fence")
        assert text.count(CLOCK) == 1
        super().__init__(redis, prefix, {"shared/fence": text.replace(CLOCK, MOVED), **(mutant or {})})

    def words(self, step: str, keys: Any, *arguments: Any) -> tuple[Any, ...]:
        return super().words(step, keys, *arguments, self.now)


@dataclass
class Moment:
    """A request that has a moment, microseconds."""

    token: str
    n: int
    at: int
    given_back: bool = False


@dataclass
class Model:
    """All moments, in the order of asking."""

    interval: int
    burst: int
    moments: list[Moment] = field(default_factory=list)

    MOST: ClassVar[int] = 400

    def earliest(self, now: int, n: int) -> int:
        at, total = now, n
        for one in reversed(self.moments):
            total += one.n
            at = max(at, one.at + (total - self.burst) * self.interval)
        return at

    def give_back(self, token: str) -> None:
        for one in self.moments:
            one.given_back |= one.token == token
        while self.moments and self.moments[-1].given_back:  # nobody stands behind it
            self.moments.pop()

    def most_in_a_window(self, per: int) -> int:
        taken = [one for one in self.moments if not one.given_back]
        return max(
            (sum(one.n for one in taken if first.at <= one.at <= first.at + per) for first in taken),
            default=0,
        )


@pytest.mark.parametrize("seed", range(24))
async def test_each_moment_is_the_earliest_that_the_limit_allows(redis, prefix, seed: int) -> None:
    rng = random.Random(seed)
    limit = rng.choice((1, 2, 3, 5, 10))
    interval = rng.choice((1, 1000, SECOND))
    burst = rng.choice((1, 2, limit, 2 * limit))
    per = limit * interval
    scripts, model = Clocked(redis, prefix), Model(interval, burst)
    waiting: list[Moment] = []
    for number in range(150):
        scripts.now += rng.choice((0, 0, 1, interval // 3, interval, per, rng.randrange(3 * per)))
        waiting = [one for one in waiting if one.at > scripts.now]
        if waiting and rng.random() < 0.25:
            gone = rng.choice(waiting[-KEPT:])
            waiting.remove(gone)
            assert await scripts.give_back(gone.token) == 1
            model.give_back(gone.token)
            continue
        token, n = f"{number:032x}", rng.randint(1, burst)
        longest = rng.choice((0, FOREVER_US, rng.randrange(2 * per)))
        at = model.earliest(scripts.now, n)
        how = {"longest": longest, "interval": interval, "burst": burst, "per": per}
        granted, wait, full = await scripts.acquire(token, n, **how)
        assert (granted, wait) == (at - scripts.now <= longest, at - scripts.now)
        if granted:
            model.moments.append(Moment(token, n, at))
            if wait:
                waiting.append(model.moments[-1])
            if rng.random() < 0.2:  # said again, later
                scripts.now += rng.choice((0, wait // 2))
                assert await scripts.acquire(token, n, **how) == [
                    1, max(0, at - scripts.now), max(0, full - (scripts.now - (at - wait)))
                ]  # fmt: skip
    assert model.most_in_a_window(per) <= burst + limit
    await scripts.clear()


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_the_clock_does_nobody_waits_for_longer_than_one_period(
    redis, prefix, seed: int
) -> None:
    """Of those who reserve nothing. And between two jumps, the limit holds."""
    rng = random.Random(seed)
    limit, interval = rng.choice((1, 3, 10)), SECOND
    burst, per = rng.choice((1, limit)), limit * interval
    scripts = Clocked(redis, prefix)
    taken: list[Moment] = []
    for number in range(200):
        if rng.random() < 0.1:
            assert Model(interval, burst, taken).most_in_a_window(per) <= burst + limit
            taken = []
            scripts.now += rng.choice((-1, 1)) * rng.choice((interval, per, 3600 * SECOND))
        scripts.now += rng.choice((0, interval // 2, interval, per))
        n = rng.randint(1, burst)
        token = f"{number:032x}"
        granted, wait, _ = await scripts.acquire(token, n, longest=0, interval=interval, burst=burst, per=per)
        assert wait <= per
        if granted:
            taken.append(Moment(token, n, scripts.now))
    await scripts.clear()


async def test_a_clock_that_stays_back_stops_nobody(redis, prefix) -> None:
    scripts = Clocked(redis, prefix)
    how = {"longest": 0, "interval": SECOND, "burst": 10, "per": 10 * SECOND}
    assert (await scripts.acquire("a" * 32, 10, **how))[0] == 1
    scripts.now -= 3600 * SECOND
    assert (await scripts.acquire("b" * 32, 1, **how))[:2] == [0, SECOND]  # which asked and took nothing
    scripts.now += SECOND
    assert (await scripts.acquire("b" * 32, 1, **how))[:2] == [1, 0]
    await scripts.clear()
