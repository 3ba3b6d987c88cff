"""`aiolocks.testing.held`: code that must be called under a lock, without a server."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from aiolocks import (
    LeaseState,
    Lock,
    LockLostError,
    LockNotOwnedError,
    MultiLock,
    RWLock,
    current_lease,
    ensure_held,
)
from aiolocks.testing import HeldLease, held


def ship(number: int) -> int:
    return ensure_held(f"order:{number}").fencing_token


def test_a_function_that_must_be_called_under_a_lock() -> None:
    with pytest.raises(LockNotOwnedError):
        ship(17)
    with held("order:17", fencing_token=7) as lease:
        assert ship(17) == 7
        assert current_lease() is current_lease(Lock(Redis(), "order:{number}")) is lease
        with pytest.raises(LockNotOwnedError):
            ship(18)
        with held("order:18"):
            assert ship(18) == 1
        assert current_lease() is lease
        assert (lease.name, lease.kind, lease.state) == ("order:17", "lock", LeaseState.HELD)
        assert repr(lease) == "<HeldLease lock 'order:17' HELD fencing_token=7>"
    assert lease.state is LeaseState.RELEASED
    with pytest.raises(LookupError):
        current_lease()


def test_a_lease_that_is_lost() -> None:
    with held("order:17") as lease:
        lease.lose()
        with pytest.raises(LockLostError, match="lock 'order:17' was lost"):
            ship(17)
        assert lease.remaining() == 0.0
    assert lease.state is LeaseState.LOST


@pytest.mark.parametrize("mode", ["reader", "upgradable", "writer"])
def test_modes(mode: str) -> None:
    with held("a", "rwlock", mode=mode) as lease:  # type: ignore[arg-type]
        assert current_lease(RWLock(Redis(), "a")) is ensure_held("a", kind="rwlock") is lease
        assert ensure_held("a", mode="reader") is lease
        if mode != "writer":
            with pytest.raises(LockNotOwnedError):
                ensure_held("a", mode="writer")


async def test_what_the_code_does_with_it() -> None:
    with held("a", kind="multilock") as lease:
        assert current_lease(MultiLock(Redis(), ["a"])) is lease
        assert await asyncio.to_thread(ensure_held, "a") is lease
        assert await asyncio.create_task(_seen()) is lease
        assert (lease.ttl, lease.metadata, await lease.owned()) == (30.0, {}, True)
        await lease.extend(5)
        await lease.annotate({"a": 1})
        waiting = asyncio.create_task(lease.wait_lost())
        await asyncio.sleep(0)
        lease.lose()
        await waiting
        assert not await lease.owned()
        with pytest.raises(LockNotOwnedError):
            await lease.release()
    for end in (HeldLease.release, HeldLease.detach):
        with held("a") as lease:
            ended = end(lease)
            if asyncio.iscoroutine(ended):
                await ended
            with pytest.raises(LockNotOwnedError):
                ensure_held("a")
            with pytest.raises(LockLostError, match="is not held"):
                lease.ensure_held()
    with held("a") as lease:
        with pytest.raises(RuntimeError, match="that of held"):
            async with lease:
                pass


async def _seen() -> object:
    return current_lease()


def test_wrong_arguments() -> None:
    for kind, mode in (("rwlock", None), ("lock", "writer")):
        with pytest.raises(ValueError, match="mode="), held("a", kind, mode=mode):  # type: ignore[arg-type]
            pass
    with pytest.raises(ValueError, match="empty"), held(""):
        pass
