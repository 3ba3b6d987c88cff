"""A turnstile without a server: arguments and texts."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from aiolocks import Turnstile


@pytest.mark.parametrize(
    ("kwargs", "error", "said"),
    [
        ({"window": 0}, ValueError, "window must be"),
        ({"window": 0.04}, ValueError, "from 0.05"),
        ({"window": True}, TypeError, "window must be"),
        ({"window": None}, TypeError, "window must be"),
        ({"window": float("nan")}, ValueError, "window must be"),
        ({"name": ""}, ValueError, "name must not be empty"),
        ({"name": b"a"}, TypeError, "name must be a str"),
        ({"ttl": 3}, TypeError, "Turnstile has no argument 'ttl'; did you mean window="),
    ],
)
def test_arguments_are_checked(kwargs: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Turnstile(Redis(port=1), **{"name": "a", **kwargs})


def test_the_client_is_checked() -> None:
    with pytest.raises(TypeError, match="synchronous client"):
        Turnstile(BlockingRedis(), "a")
    assert repr(Turnstile(Redis(port=1), "a", window=3)) == "<Turnstile 'a' window=3>"
