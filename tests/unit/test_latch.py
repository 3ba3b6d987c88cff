"""A latch without a server: arguments and texts."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from aiolocks import Latch


@pytest.mark.parametrize(
    ("kwargs", "error", "said"),
    [
        ({"count": 0}, ValueError, "count must be from 1"),
        ({"count": 2.0}, TypeError, "count must be an int"),
        ({"count": True}, TypeError, "count must be an int"),
        ({"ttl": 0.5}, ValueError, "ttl must be.*from 1"),
        ({"ttl": None}, TypeError, "ttl must be"),
        ({"name": ""}, ValueError, "name must not be empty"),
        ({"name": b"a"}, TypeError, "name must be a str"),
        ({"parties": 3}, TypeError, "Latch has no argument 'parties'; did you mean count="),
        ({"expire": 3}, TypeError, "Latch has no argument 'expire'; did you mean ttl="),
    ],
)
def test_arguments_are_checked(kwargs: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Latch(Redis(port=1), **{"name": "a", "count": 3, **kwargs})


async def test_arguments_of_calls_are_checked_before_any_request() -> None:
    latch = Latch(Redis(port=1), "a", 3)
    with pytest.raises(ValueError, match="n must be from 1"):
        await latch.count_down(0)
    with pytest.raises(TypeError, match="count must be an int"):
        await latch.reset(1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="blocking_timeout must be"):
        await latch.wait(blocking_timeout=-1)
    with pytest.raises(TypeError, match=r"wait\(\) has no argument 'timeout'"):
        await latch.wait(timeout=1)  # type: ignore[arg-type]


def test_texts() -> None:
    with pytest.raises(TypeError, match="synchronous client"):
        Latch(BlockingRedis(), "a", 3)
    latch = Latch(Redis(port=1), "a", 3, ttl=timedelta(minutes=1))
    assert repr(latch) == "<Latch 'a' count=3 ttl=60>"
    assert (latch.name, latch.count, latch.ttl) == ("a", 3, 60.0)
    with pytest.raises(TypeError, match="write `async with`"), latch:  # type: ignore[attr-defined]
        pass
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(latch)
