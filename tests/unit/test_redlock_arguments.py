"""The arguments of a Redlock: looked at before any I/O."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.sentinel import Sentinel

from aiolocks import Redlock, Session


def clients(number: int = 3) -> list[Redis]:
    return [Redis(host=f"{letter}.example", password="sentinel-password") for letter in "abcdefghi"[:number]]


@pytest.mark.parametrize("number", [3, 5, 7])
async def test_an_odd_number_of_clients_or_sessions(number) -> None:
    given = clients(number)
    Redlock(given, "name")
    Redlock(tuple(map(Session, given)), "name")
    Redlock([Session(given[0]), *given[1:]], "name")


@pytest.mark.parametrize("number", [0, 1, 2, 4, 6])
def test_any_other_number_is_refused(number) -> None:
    with pytest.raises(ValueError, match=rf"odd number of masters, at least 3, not {number}"):
        Redlock(clients(number), "name")


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (Redis(), "must be several clients"),
        (None, "must be a sequence of clients, not NoneType"),
        ("abc", "must be a sequence of clients, not str"),
        ({1, 2, 3}, "must be a sequence of clients, not set"),
        ([Redis(), Redis(), "c"], "not a str"),
        ([BlockingRedis(host=host) for host in "abc"], "a synchronous client"),
        ([Redis(host="a"), Redis(host="b"), RedisCluster(host="c")], "a RedisCluster leads to many"),
    ],
)
def test_what_are_no_clients_of_masters_is_refused(given: Any, what) -> None:
    with pytest.raises(TypeError, match=what):
        Redlock(given, "name")


async def test_a_session_alone_is_refused() -> None:
    with pytest.raises(TypeError, match="for one, use Lock"):
        Redlock(Session(Redis()), "name")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "twice",
    [
        [Redis(host="a"), Redis(host="b"), Redis(host="a", db=1)],
        [Redis(unix_socket_path="/a"), Redis(host="b"), Redis(unix_socket_path="/a")],
        [*clients(2), clients(1)[0]],
    ],
)
def test_the_same_address_twice_is_refused(twice) -> None:
    with pytest.raises(ValueError, match="is there twice") as caught:
        Redlock(twice, "name")
    assert "password" not in str(caught.value)


def test_masters_behind_sentinels_have_no_address_yet() -> None:
    sentinel = Sentinel([("a.example", 26379)])
    Redlock([sentinel.master_for(name) for name in ("one", "two", "three")], "name")


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, 1.5),
        ({"ttl": 5}, 0.25),
        ({"ttl": 0.5}, 0.05),
        ({"ttl": 0.05}, 0.05),
        ({"max_hold": 10}, 0.5),
        ({"node_timeout": 0.01}, 0.01),
        ({"node_timeout": timedelta(seconds=2)}, 2.0),
    ],
)
def test_a_master_has_a_twentieth_of_the_ttl_and_at_least_50_ms(how, expected) -> None:
    assert Redlock(clients(), "name", **how)._node_timeout == expected


@pytest.mark.parametrize(
    ("how", "error", "what"),
    [
        ({"node_timeout": 30}, ValueError, "less than the ttl, 30 s"),
        ({"node_timeout": 0.2, "ttl": 0.2}, ValueError, "less than the ttl"),
        ({"node_timeout": 2, "max_hold": 1}, ValueError, "less than the ttl"),
        ({"node_timeout": 0}, ValueError, "node_timeout must be"),
        ({"node_timeout": float("nan")}, ValueError, "node_timeout must be"),
        ({"node_timeout": "1"}, TypeError, "node_timeout must be"),
        ({"node_timeout": True}, TypeError, "node_timeout must be"),
        ({"ttl": 0.01}, ValueError, "ttl must be"),
        ({"timeout": 3}, TypeError, "did you mean ttl="),
    ],
)
def test_other_times_are_refused(how, error, what) -> None:
    with pytest.raises(error, match=what):
        Redlock(clients(), "name", **how)


def test_says_what_it_is() -> None:
    assert repr(Redlock(clients(), "name", ttl=5)) == "<Redlock 'name' ttl=5>"
