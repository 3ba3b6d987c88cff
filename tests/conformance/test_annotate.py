"""Annotating a lease: what stands beside it changes, and nothing else does."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import BackendError, Lease, LeaseState, LockLostError, RangeLock, RWLock, Session
from tests.conformance.conftest import Kind, nothing_left, server_remaining, stall
from tests.support.masters import MASTERS
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.waiting import eventually

Keys = Callable[..., list[str]]
TTL = 1.5


async def beside(kind: Kind, client: Any) -> list[dict[str, Any]]:
    """The metadata beside the leases of `a`, as JSON; of several masters, once for each."""
    if kind.masters == 1:
        (info,) = await Session.of(client).inspect("a")
        assert info.problem == ""
        found = []
        for holder in info.holders:
            assert holder.pid == os.getpid()
            found.append({"task": holder.task, "user": holder.metadata})
        return found
    values = [await client.get(f"aiolocks:redlock:{{a}}#{number}") for number in range(MASTERS)]
    described = [json.loads(value.split(b":", 2)[2]) for value in values]
    return [{"task": one["task"], "user": one["user"]} for one in described]


async def shown(kind: Kind, client: Any, user: dict[str, Any]) -> None:
    """The other masters, if there are several, have it as soon as they answer."""

    async def is_shown() -> bool:
        return all(one["user"] == user for one in await beside(kind, client))

    await eventually(is_shown, within=(2 if kind.masters > 1 else 0.5) + stall())


async def test_annotate_changes_what_stands_beside_it(kind: Kind, client: Redis, keys: Keys) -> None:
    async with kind.make(client, "a", ttl=20, metadata={"step": 1, "job": "x"}) as lease:
        await lease.extend(10)
        (task,) = {one["task"] for one in await beside(kind, client)}
        there, fencing_token = sorted(keys()), lease.fencing_token
        await asyncio.sleep(0.02)
        left = await server_remaining(kind, client)

        await asyncio.create_task(lease.annotate({"step": 2, "by": "Ä:{}"}), name="another")

        assert lease.metadata == {"step": 2, "by": "Ä:{}"}
        await shown(kind, client, {"step": 2, "by": "Ä:{}"})
        assert {one["task"] for one in await beside(kind, client)} == {task}
        assert sorted(keys()) == there
        assert (lease.fencing_token, lease.state, lease.ttl) == (fencing_token, LeaseState.HELD, 10)
        assert await server_remaining(kind, client) <= left
        assert await lease.owned()
        await lease.annotate({"step": 2, "by": "Ä:{}"})  # said twice
        await lease.annotate({})
        await shown(kind, client, {})
        assert lease.metadata == {}
    await nothing_left(kind, keys)


@pytest.mark.timed
async def test_an_annotation_outlives_renewals(kind: Kind, client: Redis) -> None:
    async with kind.make(client, "a", ttl=TTL) as lease:
        await lease.annotate({"step": 2})
        await asyncio.sleep(2 * TTL)
        await lease.extend(TTL)
        await shown(kind, client, {"step": 2})


async def test_the_sessions_metadata_stays(kind: Kind, client: Redis) -> None:
    if kind.masters > 1:
        pytest.skip("the masters that are one server have no session of their own")
    async with (
        Session(client, metadata={"service": "shipping", "step": 0}) as session,
        kind.make(session, "a", metadata={"job": "x"}) as lease,
    ):
        await lease.annotate({"step": 2})
        assert lease.metadata == {"service": "shipping", "step": 2}
        await shown(kind, client, {"service": "shipping", "step": 2})


async def test_who_adopts_describes_the_lease_himself(kind: Kind, client: Redis) -> None:
    lease = await kind.make(client, "a").acquire()
    await lease.annotate({"step": 2})
    adopted = await kind.make(client, "a", metadata={"step": 3}).adopt(lease.detach())
    assert adopted.metadata == {"step": 3}
    if kind.name != "reentrant":  # there it is the outermost lease's, whoever has it by now
        await shown(kind, client, {"step": 3})
    await adopted.annotate({"step": 4})
    await shown(kind, client, {"step": 4})
    with pytest.raises(LockLostError):
        await lease.annotate({"step": 5})
    await shown(kind, client, {"step": 4})
    await adopted.release()


async def test_annotate_of_what_is_not_ours(kind: Kind, client: Redis, keys: Keys) -> None:
    lease = await kind.make(client, "a").acquire()
    await client.delete(*keys())
    with pytest.raises(LockLostError, match="the server no longer has it"):
        await lease.annotate({"step": 2})
    assert (lease.state, lease.metadata) == (LeaseState.LOST, {})
    assert keys() == []  # nothing is created
    with pytest.raises(LockLostError):
        await lease.annotate({"step": 3})

    async with kind.make(client, "a") as released:
        pass
    with pytest.raises(LockLostError, match="released"):
        await released.annotate({"step": 2})
    await nothing_left(kind, keys)


@pytest.mark.timed
async def test_annotate_leaves_alone_what_somebody_else_holds_by_now(
    kind: Kind, client: Redis, keys: Keys
) -> None:
    lease = await kind.make(client, "a", ttl=1.5).acquire()  # its loss shows at its renewal
    await client.delete(*keys())
    async with kind.make(client, "a", metadata={"step": 7}):
        with pytest.raises(LockLostError):
            await lease.annotate({"step": 2})
        await shown(kind, client, {"step": 7})


@pytest.mark.thin
@pytest.mark.parametrize("wrong", ["step", 7, {1: 2}, {"at": object()}, {"at": float("nan")}])
async def test_bad_metadata_is_refused_before_anything_is_sent(kind: Kind, client: Redis, wrong: Any) -> None:
    async with kind.make(client, "a", metadata={"step": 1}) as lease:
        sent = Session.of(client).statistics().commands_sent
        with pytest.raises(TypeError, match="metadata must"):
            await lease.annotate(wrong)
        assert Session.of(client).statistics().commands_sent == sent
        assert lease.metadata == {"step": 1}


async def test_annotations_at_once_count_in_their_order(kind: Kind, client: Redis) -> None:
    async with kind.make(client, "a") as lease:
        await asyncio.gather(*(lease.annotate({"step": step}) for step in range(20)))
        assert lease.metadata == {"step": 19}
        await shown(kind, client, {"step": 19})


async def test_an_annotation_without_an_answer_is_given_up_in_time(
    kind: Kind, join: Callable[..., Any], proxy: Callable[[Any], Awaitable[Proxy]], server: Server, way: str
) -> None:
    if way.startswith("cluster"):
        pytest.skip("one server")
    link = await proxy(server)
    async with Session(join(to=link), command_timeout=0.3) as session:
        lease = await kind.make(session, "a", ttl=20).acquire()
        link.hold_requests = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(BackendError):
            await lease.annotate({"step": 2})
        assert loop.time() - began < 0.3 + 0.5 + stall()
        assert lease.state in (LeaseState.HELD, LeaseState.UNKNOWN)
        assert lease.metadata == {}
        link.hold_requests = False
        await lease.annotate({"step": 3})
        await lease.release()


# -- where several hold, or one is two -----------------------------------------------------------------------


SEVERAL = {
    "rwlock": lambda client, mode: getattr(RWLock(client, "a"), mode),
    "rangelock": lambda client, mode: getattr(RangeLock(client, "a"), mode)(0, 10),
}
several = pytest.mark.parametrize("make", SEVERAL.values(), ids=SEVERAL)


async def metadata_of(client: Any) -> dict[str, Any]:
    """By mode, of what is held in that mode, in the order in which it was granted."""
    (info,) = await Session.of(client).inspect("a")
    found: dict[str, Any] = {}
    for holder in info.holders:
        found.setdefault(str(holder.mode), []).append(holder.metadata)
    return found


@several
async def test_each_of_several_holders_annotates_its_own(
    redis: Redis, make: Callable[[Any, str], Any]
) -> None:
    first, second = await make(redis, "reader").acquire(), await make(redis, "reader").acquire()
    beside: Lease = await make(redis, "upgradable").acquire()
    await second.annotate({"number": 2})
    await beside.annotate({"number": 3})
    assert await metadata_of(redis) == {"reader": [{}, {"number": 2}], "upgradable": [{"number": 3}]}
    for lease in (first, second, beside):
        await lease.release()
    assert await Session.of(redis).inspect("a") == []


@several
async def test_an_upgraded_lease_and_its_upgrade_each_have_their_own(
    redis: Redis, make: Callable[[Any, str], Any]
) -> None:
    async with make(redis, "upgradable") as lease:
        await lease.annotate({"step": 1})
        async with lease.upgrade() as writer:
            assert await metadata_of(redis) == {"upgradable": [{"step": 1}], "writer": [{}]}
            await lease.annotate({"step": 2})
            await writer.annotate({"step": 3})
            assert await metadata_of(redis) == {"upgradable": [{"step": 2}], "writer": [{"step": 3}]}
            assert await writer.owned()
        assert await metadata_of(redis) == {"upgradable": [{"step": 2}]}
        assert lease.metadata == {"step": 2}
    async with make(redis, "writer") as writer:
        await writer.annotate({"step": 4})
        await writer.downgrade()
        assert await metadata_of(redis) == {"reader": [{"step": 4}]}
        await writer.annotate({"step": 5})
        assert await metadata_of(redis) == {"reader": [{"step": 5}]}
