"""A value that is too large is refused before anything is sent."""

from __future__ import annotations

from functools import partial

import pytest
from redis.asyncio import Redis

from aiolocks import ConfigurationError, FencedRegister, Lock, Semaphore, Session, UniqueJob
from tests.unit.fakes import hold


@pytest.mark.parametrize("kind", [Lock, Semaphore, UniqueJob])
async def test_metadata_that_are_too_large_are_refused_before_anything_is_sent(
    make_session, transport, kind
) -> None:
    session = make_session(metadata={"app": "shop"}, largest_metadata=60)
    make = partial(kind, session, "name", **({"value": 1} if kind is Semaphore else {}))
    small, large = {"a": "x" * 30}, {"a": "x" * 60}

    for metadata in (large, {"b": "x" * 42}):  # alone, and with those of the session
        lock = make(metadata=metadata)
        with pytest.raises(ConfigurationError, match=r"bytes as JSON.*at most 60.*largest_metadata"):
            await (lock.run() if isinstance(lock, UniqueJob) else lock.acquire())
    if kind is UniqueJob:
        with pytest.raises(ConfigurationError, match="largest_metadata"):
            await make().enqueue("until_executed", metadata=large)
    assert transport.sent == []
    if kind is Lock:
        lease = await hold(session, transport, metadata=small)
        with pytest.raises(ConfigurationError, match="largest_metadata"):
            await lease.annotate(large)
        assert lease.metadata == {"app": "shop", **small}


def test_metadata_of_a_session_and_sizes_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="largest_metadata"):
        Session(Redis(), metadata={"a": "x" * 70_000})
    for size in ({"largest_metadata": 0}, {"largest_value": 2**30}):
        with pytest.raises(ValueError, match=rf"{next(iter(size))} must be from 1 to 536870912"):
            Session(Redis(), **size)


async def test_a_value_that_is_too_large_for_a_register_is_refused_before_anything_is_sent(
    make_session, transport
) -> None:
    register = FencedRegister(make_session(largest_value=10), "name")

    for value in (b"x" * 11, "x" * 9):  # which has two quotes as JSON
        with pytest.raises(ConfigurationError, match=r"has 11 bytes.*at most 10.*largest_value"):
            await register.write(value, 1)
    assert transport.sent == []
