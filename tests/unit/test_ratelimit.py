"""A rate limit without a server: arguments, texts, figures."""

from __future__ import annotations

import pickle
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from aiolocks import RateDecision, RateLimit
from aiolocks.kinds.ratelimit import Bucket


@pytest.mark.parametrize(
    ("kwargs", "error", "said"),
    [
        ({"limit": 0}, ValueError, "limit must be from 1"),
        ({"limit": 1.5}, TypeError, "limit must be an int"),
        ({"limit": True}, TypeError, "limit must be an int"),
        ({"per": 0}, ValueError, "per must be"),
        ({"per": None}, TypeError, "per must be"),
        ({"per": float("nan")}, ValueError, "per must be"),
        ({"burst": 0}, ValueError, "burst must be from 1"),
        ({"burst": 2.0}, TypeError, "burst must be an int"),
        ({"limit": 2_000_000, "per": 1}, ValueError, "at most a million a second.*larger units"),
        ({"limit": 1, "per": timedelta(days=365), "burst": 11}, ValueError, "burst must be.*ten years"),
        ({"name": ""}, ValueError, "name must not be empty"),
        ({"name": b"a"}, TypeError, "name must be a str"),
        ({"rate": 3}, TypeError, "RateLimit has no argument 'rate'; did you mean limit="),
        ({"period": 3}, TypeError, "RateLimit has no argument 'period'; did you mean per="),
        ({"blocking_timeout": 3}, TypeError, r"did you mean acquire\(blocking_timeout"),
    ],
)
def test_arguments_are_checked(kwargs: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        RateLimit(Redis(port=1), **{"name": "a", "limit": 3, "per": 60, **kwargs})


async def test_arguments_of_calls_are_checked_before_any_request() -> None:
    limit = RateLimit(Redis(port=1), "a", 3, per=60)
    with pytest.raises(ValueError, match="n must be at most burst, for 'a' 3, not 4"):
        await limit.acquire(4)
    with pytest.raises(ValueError, match="n must be at most burst"):
        await limit.try_acquire(4)
    with pytest.raises(TypeError, match="n must be an int"):
        await limit.acquire(1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="blocking_timeout must be"):
        await limit.acquire(blocking_timeout=-1)
    with pytest.raises(TypeError, match=r"acquire\(\) has no argument 'wait'"):
        await limit.acquire(wait=1)  # type: ignore[arg-type]


def test_all_of_is_checked() -> None:
    redis = Redis(port=1)
    limit, other = RateLimit(redis, "a", 3, per=60), RateLimit(redis, "b", 3, per=60)
    both = RateLimit.all_of(limit, other)
    assert both.name == "a, b"
    assert repr(both) == "<RateLimit.all_of 'a' 3 in 60 s, burst 3; 'b' 3 in 60 s, burst 3>"
    with pytest.raises(ValueError, match="1 to 16 limits, not 0"):
        RateLimit.all_of()
    with pytest.raises(ValueError, match="different names"):
        RateLimit.all_of(limit, limit)
    with pytest.raises(TypeError, match="one client"):
        RateLimit.all_of(limit, RateLimit(Redis(port=1), "b", 3, per=60))
    with pytest.raises(TypeError, match="takes rate limits, not str"):
        RateLimit.all_of("a")  # type: ignore[arg-type]


def test_texts_and_figures() -> None:
    with pytest.raises(TypeError, match="synchronous client"):
        RateLimit(BlockingRedis(), "a", 3, per=60)
    limit = RateLimit(Redis(port=1), "a", 3, per=timedelta(minutes=1))
    assert repr(limit) == "<RateLimit 'a' 3 in 60 s, burst 3>"
    assert (limit.name, limit.limit, limit.per, limit.burst) == ("a", 3, 60.0, 3)
    assert RateDecision(allowed=True, remaining=2, retry_after=0.0, reset_after=1.0)
    assert not RateDecision(allowed=False, remaining=0, retry_after=1.0, reset_after=1.0)


def test_misuse_is_told() -> None:
    limit = RateLimit(Redis(port=1), "a", 3, per=60)
    with pytest.raises(TypeError, match="write `async with`"), limit:  # type: ignore[attr-defined]
        pass
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(limit)
    with pytest.raises(TypeError, match="decorates a coroutine function"):
        limit(len)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no such parameter"):

        @RateLimit(Redis(port=1), "a:{who}", 3, per=60)
        async def send(text: str) -> None: ...


@pytest.mark.parametrize(
    ("limit", "per", "burst"),
    [
        *((3, 60.0, 3), (7, 60.0, 7), (1_000_000, 1.0, 5), (9, 7.0, 9), (700_000, 1.0, 1_000_000)),
        *((10**9, 1e6, 10**9), (1, 315_360_000.0, 1), (3, 0.1, 1), (90_000, 60.0, 90_000)),
    ],
)
def test_sums_of_intervals_are_exact_and_never_too_short(limit: int, per: float, burst: int) -> None:
    """The backlogs are doubles, in Lua as here."""
    exact = Fraction(repr(per)) * 1_000_000 / limit
    interval = Fraction(Bucket("a", limit, per, burst).interval_us)
    assert exact <= interval <= exact * (1 + Fraction(1, 1_000_000))
    for n in (1, 2, 3, burst - 1, burst, 2 * burst):
        assert Fraction(n * float(interval)) == n * interval
        assert Fraction(burst * float(interval) - n * float(interval)) == (burst - n) * interval


def test_a_number_of_each_limit_is_checked() -> None:
    redis = Redis(port=1)
    requests, tokens = RateLimit(redis, "r", 60, per=60), RateLimit(redis, "t", 90_000, per=60)
    both = RateLimit.all_of(requests, tokens)
    assert both._amounts(2) == (2, 2)
    assert both._amounts({tokens: 1500, "r": 0}) == (0, 1500)
    assert both._amounts({tokens: 100_000, requests: 1}, what="actual") == (1, 100_000)
    assert tokens._amounts({"t": 3}) == (3,)
    with pytest.raises(TypeError, match="n has no number for 't': each limit has one"):
        both._amounts({requests: 1})
    with pytest.raises(TypeError, match="n has a number for 'x', which is none of the limits 'r, t'"):
        both._amounts({requests: 1, tokens: 1, "x": 1})
    with pytest.raises(TypeError, match="n has two numbers for 'r'"):
        both._amounts({requests: 1, "r": 1, tokens: 1})
    with pytest.raises(TypeError, match=r"n\['t'\] must be an int"):
        both._amounts({requests: 1, tokens: 1.5})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"n\['t'\] must be from 0"):
        both._amounts({requests: 1, tokens: -1})
    with pytest.raises(ValueError, match="n must be at most burst, for 't' 90000, not 100000"):
        both._amounts({requests: 1, tokens: 100_000})
    with pytest.raises(ValueError, match="n must be from 1"):
        both._amounts(0)


async def test_a_decision_of_no_session_cannot_be_settled() -> None:
    decision = RateDecision(allowed=True, remaining=2, retry_after=0.0, reset_after=1.0)
    with pytest.raises(RuntimeError, match="this decision cannot be settled"):
        await decision.settle(1)
    assert pickle.loads(pickle.dumps(decision)) == decision
    assert repr(decision) == "RateDecision(allowed=True, remaining=2, retry_after=0.0, reset_after=1.0)"


async def test_a_weight_is_checked_and_shown() -> None:
    limit = RateLimit(Redis(port=1), "a", 10, per=60)
    assert repr(limit.weighing(3)) == "<RateLimit 'a' 10 in 60 s, burst 10 weighing 3>"
    with pytest.raises(ValueError, match="n must be at most burst"):
        limit.weighing(11)
    with pytest.raises(TypeError, match="a function of the arguments of a call"):
        async with limit.weighing(len):
            pass
    with pytest.raises(TypeError, match="decorates a coroutine function"):
        limit.weighing(3)(len)  # type: ignore[arg-type]
