"""Things that are asynchronous and of one process, used as if they were not."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import FairLock, Limits, Lock, MultiLock, RWLock, Semaphore, Session
from tests.unit.fakes import hold

LOCKS = {
    "Lock": Lock(Redis(), "name"),
    "FairLock": FairLock(Redis(), "name"),
    "Limits": Limits(Redis(), "name", {"all": 1}),
    "MultiLock": MultiLock(Redis(), ["a", "b"]),
    "Semaphore": Semaphore(Redis(), "name", 3),
    "RWLock.writer": RWLock(Redis(), "name").writer,
}
EACH: dict[str, Any] = {**LOCKS, "Session": Session(Redis()), "acquisition": Lock(Redis(), "name").acquire()}


def with_(thing: Any) -> None:
    with thing:
        raise AssertionError("entered")


@pytest.mark.parametrize("what", EACH)
def test_with_is_told_to_be_async_with(what) -> None:
    with pytest.raises(TypeError, match=rf"^write `async with` instead of `with`: <{what} "):
        with_(EACH[what])


@pytest.mark.parametrize("what", EACH)
@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_thing_of_this_process_is_not_sent_to_another(what, way) -> None:
    with pytest.raises(TypeError, match=rf"^<{what} .*> cannot be pickled or copied: \w"):
        way(EACH[what])


async def test_a_lease_says_how_it_is_handed_over(offline, transport) -> None:
    lease = await hold(offline, transport)

    with pytest.raises(TypeError, match=r"^write `async with` instead of `with`: <Lease lock 'name' HELD"):
        with_(lease)
    with pytest.raises(TypeError, match="cannot be pickled or copied: hand it over by `handle =") as said:
        pickle.dumps(lease)
    assert lease.token not in str(said.value)
