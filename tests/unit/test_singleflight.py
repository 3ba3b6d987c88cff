"""The arguments of the single flight, before any request; how values and errors travel."""

from __future__ import annotations

import asyncio
import json
import math
import pickle
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from aiolocks import JSON, RemoteCallError, ResultNotKeptError, Session, SingleFlight
from aiolocks.errors import LockError
from aiolocks.kinds.flights import RunEnded
from aiolocks.kinds.outcome import Outcome
from aiolocks.kinds.singleflight import digest_of

REDIS = Redis()


async def one() -> int:
    return 1


# -- arguments -----------------------------------------------------------------------------------------------


def test_it_tells_its_times() -> None:
    assert repr(SingleFlight(REDIS)) == "<SingleFlight ttl=30 keep=0>"
    assert repr(SingleFlight(REDIS, ttl=timedelta(seconds=5), keep=0.5)) == "<SingleFlight ttl=5 keep=0.5>"
    flight = SingleFlight(REDIS, keep=60, stale=timedelta(minutes=1), early=1, jitter=0.25)
    assert repr(flight) == "<SingleFlight ttl=30 keep=60 stale=60 early=1 jitter=0.25>"
    assert repr(JSON) == "aiolocks.JSON"


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"ttl": 0.01}, ValueError, "ttl must be"),
        ({"ttl": True}, TypeError, "ttl must be"),
        ({"ttl": None}, TypeError, "ttl must be"),
        ({"keep": -1}, ValueError, "keep must be"),
        ({"keep": math.nan}, ValueError, "keep must be"),
        ({"keep": math.inf}, ValueError, "keep must be"),
        ({"keep": None}, TypeError, "keep must be"),
        ({"keep": 1, "stale": -1}, ValueError, "stale must be"),
        ({"keep": 1, "stale": "1"}, TypeError, "stale must be"),
        ({"keep": 1, "early": -0.1}, ValueError, "early must be a number from 0 to 1000, not -0.1"),
        ({"keep": 1, "early": math.nan}, ValueError, "early must be"),
        ({"keep": 1, "early": True}, TypeError, "early must be"),
        ({"keep": 1, "jitter": 1.1}, ValueError, "jitter must be a number from 0 to 1, not 1.1"),
        ({"keep": 1, "jitter": None}, TypeError, "jitter must be"),
        ({"stale": 30}, ValueError, "stale=30 is of no use without keep="),
        ({"early": 1}, ValueError, "early=1 is of no use without keep="),
        ({"jitter": 0.1}, ValueError, "jitter=0.1 is of no use without keep="),
        ({"stale_while_revalidate": 30}, TypeError, "did you mean stale="),
        ({"beta": 1}, TypeError, "did you mean early="),
        ({"serializer": json}, None, ""),
        ({"serializer": None}, TypeError, "must have dumps and loads, as aiolocks.JSON"),
        ({"serializer": "json"}, TypeError, "must have dumps and loads"),
        ({"timeout": 3}, TypeError, r"did you mean ttl= .* or asyncio.timeout\(\) around do"),
        ({"expire": 3}, TypeError, "did you mean keep="),
        ({"blocking_timeout": 3}, TypeError, r"did you mean do\(key, fn, blocking_timeout="),
        ({"key": "k"}, TypeError, "one SingleFlight serves any number of keys"),
        ({"sleep": 3}, TypeError, r"did you mean Session\("),
        ({"nonsense": 3}, TypeError, "has no argument 'nonsense'$"),
    ],
)
def test_what_it_takes(options: dict[str, Any], error: type[Exception] | None, says: str) -> None:
    if error is None:
        SingleFlight(REDIS, **options)
        return
    with pytest.raises(error, match=says):
        SingleFlight(REDIS, **options)


def test_it_takes_a_client_or_a_session() -> None:
    SingleFlight(Session(REDIS))
    with pytest.raises(TypeError, match="the client comes first"):
        SingleFlight("key")


@pytest.mark.parametrize("key", ["", None, 3, "x" * 1025, "\ud800"])
async def test_what_a_key_is(key: Any) -> None:
    flight = SingleFlight(REDIS)
    with pytest.raises((TypeError, ValueError), match="key"):
        await flight.do(key, one)
    with pytest.raises((TypeError, ValueError), match="key"):
        flight.turn(key)


async def test_what_a_function_is() -> None:
    flight = SingleFlight(REDIS)
    with pytest.raises(TypeError, match=r"fn must be a coroutine function, not int$"):
        await flight.do("k", 3)  # type: ignore[arg-type]
    called = one()
    with pytest.raises(TypeError, match=r"not coroutine: give fn itself, .* lambda: fn\(…\) for arguments"):
        await flight.do("k", called)  # type: ignore[arg-type]
    called.close()
    assert Session.of(REDIS)._engine is None


@pytest.mark.parametrize("fingerprint", [3, ["a"], object()])
async def test_what_a_fingerprint_is(fingerprint: Any) -> None:
    with pytest.raises(TypeError, match="fingerprint must be str, bytes or None"):
        await SingleFlight(REDIS).do("k", one, fingerprint=fingerprint)


def test_of_a_fingerprint_a_hash_is_kept() -> None:
    digests = [digest_of(said) for said in (None, "", "a", "b", "a" * 10**6, "\ud800")]
    assert digests[0] == ""
    assert len(set(digests)) == 6
    assert {len(digest) for digest in digests[1:]} == {32}
    assert digest_of("é") == digest_of("é".encode())


@pytest.mark.parametrize("options", [{"keep": -1}, {"stale": 1}, {"keep": 1, "early": "1"}])
async def test_the_times_of_a_call_are_checked_before_anything_is_sent(options: dict[str, Any]) -> None:
    flight = SingleFlight(REDIS)
    with pytest.raises((TypeError, ValueError), match=r"keep|stale|early"):
        await flight.do("k", one, **options)
    with pytest.raises((TypeError, ValueError), match=r"keep|stale|early"):
        flight("k", **options)
    assert Session.of(REDIS)._engine is None


# -- as a decorator ------------------------------------------------------------------------------------------


async def of_user(user: int) -> int:
    return user


def test_what_it_decorates() -> None:
    flight = SingleFlight(REDIS)
    with pytest.raises(TypeError, match=r'needs a key to decorate a function: @flight\("report:{user_id}"\)'):
        flight(of_user)  # type: ignore[call-overload, arg-type]
    with pytest.raises(TypeError, match="decorates a coroutine function"):
        flight("k")(len)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="key"):
        flight("")
    with pytest.raises(ValueError, match="blocking_timeout must be"):
        flight("k", blocking_timeout=-1)


@pytest.mark.parametrize("key", ["of:{users}", "of:{user}:{day}", "of:{anything}"])
def test_each_field_of_a_key_is_a_parameter(key: str) -> None:
    """Else all calls would share what one of them has made."""
    with pytest.raises(TypeError, match=r"has no such parameter: .*double the braces"):
        SingleFlight(REDIS)(key)(of_user)
    SingleFlight(REDIS)(key.replace("{", "{{").replace("}", "}}"))(of_user)


async def test_a_value_without_a_text_of_its_own_makes_no_key() -> None:
    with pytest.raises(TypeError, match="'user' in its name, and a object has no text"):
        await SingleFlight(REDIS)("of:{user}")(of_user)(object())  # type: ignore[arg-type]


# -- turns ---------------------------------------------------------------------------------------------------


async def test_a_turn_tells_nothing_before_it_was_entered() -> None:
    turn = SingleFlight(REDIS).turn("k")
    assert repr(turn) == "<Turn not entered>"
    for name in ("first", "fencing_token"):
        with pytest.raises(RuntimeError, match="enter a turn first"):
            getattr(turn, name)


# -- serializers ---------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(VALUES)
def test_json_gives_back_what_json_knows(value: Any) -> None:
    data = JSON.dumps(value)
    assert type(data) is bytes
    assert JSON.loads(data) == value


@pytest.mark.parametrize("value", [object(), {1}, b"bytes", 1j])
def test_json_refuses_what_it_does_not_know(value: Any) -> None:
    with pytest.raises(TypeError):
        JSON.dumps(value)


# -- outcomes ------------------------------------------------------------------------------------------------


def left(outcome: Outcome) -> RunEnded:
    return RunEnded(1, None, 0.0, outcome.tag, outcome.payload)


def test_a_value_is_the_very_value_here_and_its_copy_elsewhere() -> None:
    value = ([1], 2)
    outcome = Outcome.of_value(value, JSON)
    assert outcome.get() is value
    assert outcome.done
    assert Outcome.of_another("k", left(outcome), JSON).get() == [[1], 2]
    assert Outcome.of_another("k", left(Outcome.of_value(value, pickle)), pickle).get() == value  # type: ignore[arg-type]


def test_what_is_dumped_is_bytes() -> None:
    with pytest.raises(TypeError, match="dumps of the serializer must give bytes, not str"):
        Outcome.of_value(1, json)  # type: ignore[arg-type]


@pytest.mark.parametrize("raises", [False, True])
def test_a_value_that_cannot_be_kept_is_the_very_value_here_and_an_error_elsewhere(raises: bool) -> None:
    value, because = {1}, TypeError("not JSON serializable")
    outcome = Outcome.not_kept("k", value, because, raises=raises)
    assert outcome.done
    if raises:
        with pytest.raises(ResultNotKeptError) as caught:
            outcome.get()
        assert caught.value.value is value
        assert caught.value.__cause__ is because
    else:
        assert outcome.get() is value
    with pytest.raises(ResultNotKeptError) as remote:
        Outcome.of_another("k", left(outcome), JSON).get()
    assert remote.value.reason == "builtins.TypeError: not JSON serializable"
    assert (remote.value.key, remote.value.here, remote.value.value) == ("k", False, None)


def test_a_value_that_was_kept_after_all_is_no_error() -> None:
    kept = Outcome.of_value([1], JSON)
    doubted = Outcome.not_kept("k", [1], TimeoutError(), raises=True)
    assert doubted.confirmed(left(doubted)) is doubted
    assert kept.confirmed(left(kept)) is kept
    assert doubted.confirmed(left(kept)).get() == [1]


class OddError(Exception):
    def __str__(self) -> str:
        raise ValueError("it cannot be said")


@pytest.mark.parametrize(
    ("error", "type_name", "message"),
    [
        (ValueError("é\ud800"), "builtins.ValueError", "é\ud800"),
        (asyncio.QueueEmpty(), "asyncio.queues.QueueEmpty", ""),
        (OddError(), "tests.unit.test_singleflight.OddError", "its message could not be had"),
        (LockError("x" * 9000), "aiolocks.errors.LockError", "x" * 8192 + "…"),
    ],
)
def test_an_error_is_the_very_error_here_and_what_it_says_elsewhere(
    error: Exception, type_name: str, message: str
) -> None:
    outcome = Outcome.of_error(error)
    assert not outcome.done
    with pytest.raises(type(error)) as caught:
        outcome.get()
    assert caught.value is error
    with pytest.raises(RemoteCallError) as remote:
        Outcome.of_another("k", left(outcome), JSON).get()
    assert (remote.value.type_name, remote.value.message) == (type_name, message)
    assert remote.value.__cause__ is None
