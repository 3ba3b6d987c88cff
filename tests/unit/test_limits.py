"""Limits: what may be given, and how it is called."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Limits


def limits(keys: Any, **options: Any) -> Limits:
    return Limits(Redis(), "exports", keys, **options)


@pytest.mark.parametrize(
    ("keys", "error", "said"),
    [
        (["all"], TypeError, "keys must be a dict of caps, as in {'all': 20, 'tenant:7': 1}, not list"),
        ({}, ValueError, "keys must be 1 to 8 keys, not 0"),
        (dict.fromkeys("abcdefghi", 1), ValueError, "keys must be 1 to 8 keys, not 9"),
        ({"": 1}, ValueError, "each of the keys must not be empty"),
        ({7: 1}, TypeError, "each of the keys must be a str, not int"),
        ({"a": 0}, ValueError, "the cap of 'a' must be from 1 to 2147483648, not 0"),
        ({"a": True}, TypeError, "the cap of 'a' must be an int"),
        ({"a" * 257: 1}, ValueError, "a key must have at most 256 bytes in UTF-8, not 257"),
    ],
)
def test_keys_that_are_not_as_they_should_be(keys, error, said) -> None:
    with pytest.raises(error) as caught:
        limits(keys)
    assert said in str(caught.value)


def test_it_says_what_it_is() -> None:
    made = limits({"all": 20, "tenant:7": 1}, ttl=5)

    assert repr(made) == "<Limits 'exports' {'all': 20, 'tenant:7': 1} ttl=5>"
    assert made.keys == {"all": 20, "tenant:7": 1}
    made.keys.clear()
    assert made.keys


def test_name_and_keys_are_filled_in_and_of_two_that_become_the_same_the_smaller_cap_counts() -> None:
    made = limits({"all": 20, "user:{a}": 3, "user:{b}": 2})

    assert made._all_names() == ("exports", "all", "user:{a}", "user:{b}")
    assert made._renamed(("exports", "all", "user:1", "user:2")).keys == {"all": 20, "user:1": 3, "user:2": 2}
    assert made._renamed(("exports", "all", "user:1", "user:1")).keys == {"all": 20, "user:1": 2}
