"""An error that concerns a client of valkey-py is one of both libraries."""

from __future__ import annotations

import pytest
import redis.asyncio
import redis.exceptions
import valkey.asyncio
import valkey.exceptions

from aiolocks.transport.libraries import REDIS, library_of
from aiolocks.transport.replies import error_of


class Own(valkey.asyncio.Valkey):
    """As users extend it."""


VALKEY = library_of(Own)


def test_the_library_is_found_from_a_class() -> None:
    assert VALKEY is not None
    assert (REDIS.name, VALKEY.name) == ("redis-py", "valkey-py")
    assert library_of(redis.asyncio.Redis) is REDIS
    assert library_of(valkey.asyncio.ValkeyCluster) is VALKEY
    assert library_of(str) is None


@pytest.mark.parametrize(
    ("error", "of_redis"),
    [
        (valkey.exceptions.ValkeyError("x"), redis.exceptions.RedisError),
        (valkey.exceptions.ConnectionError("x"), redis.exceptions.ConnectionError),
        (valkey.exceptions.TimeoutError("x"), redis.exceptions.TimeoutError),
        (valkey.exceptions.MovedError("3 host:7"), redis.exceptions.MovedError),
        (valkey.exceptions.MovedError("3 host:7"), redis.exceptions.AskError),
        (valkey.exceptions.SlotNotCoveredError("x"), redis.exceptions.RedisClusterException),
        (valkey.exceptions.MaxConnectionsError("x"), redis.exceptions.ConnectionError),
        (type("OwnError", (valkey.exceptions.NoScriptError,), {})("x"), redis.exceptions.NoScriptError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
def test_what_valkey_py_raises_is_known_to_the_transport(error, of_redis) -> None:
    own = VALKEY.own(error)
    assert isinstance(own, of_redis)
    assert isinstance(own, type(error))
    assert (type(own).__name__, str(own), repr(own)) == (type(error).__name__, str(error), repr(error))
    assert VALKEY.own(own) is own
    assert REDIS.own(error) is error


@pytest.mark.parametrize(
    ("text", "of_valkey"),
    [
        ("MOVED 3 host:7", valkey.exceptions.MovedError),
        ("NOSCRIPT No matching script", valkey.exceptions.NoScriptError),
        ("WRONGPASS no", valkey.exceptions.AuthenticationError),
        ("CROSSSLOT no", valkey.exceptions.ClusterCrossSlotError),
        ("ERR no", valkey.exceptions.ResponseError),
    ],
)
def test_what_a_server_answers_is_an_error_of_valkey_py(text, of_valkey) -> None:
    answer = error_of(text)
    own = VALKEY.own(answer)
    assert isinstance(own, of_valkey)
    assert isinstance(own, type(answer))
    assert str(own) == str(answer)
    assert vars(own) == vars(answer)


@pytest.mark.parametrize("error", [OSError("x"), TimeoutError("x"), ValueError("x")], ids=repr)
def test_other_errors_stay_as_they_are(error) -> None:
    assert VALKEY.own(error) is error


async def test_the_cause_of_an_error_stays() -> None:
    async def fail() -> None:
        raise valkey.exceptions.ConnectionError("x") from OSError("why")

    with pytest.raises(redis.exceptions.ConnectionError) as caught:
        await VALKEY.attempt(fail())
    assert isinstance(caught.value.__cause__, OSError)
