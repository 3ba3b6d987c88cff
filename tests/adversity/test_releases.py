"""T-F-10: a release that a master has confirmed, and the replica that takes its place never got."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

import pytest

from aiolocks import Lease, Lock, Session
from aiolocks.transport.answers import released
from aiolocks.transport.keys import key
from aiolocks.transport.releases import Releases
from aiolocks.transport.request import Request, ignore
from aiolocks.transport.steps.family import families
from tests.adversity.tools import Witness
from tests.conformance.conftest import KINDS
from tests.conftest import PREFIX
from tests.support.clusters import Cluster, Node
from tests.support.servers import ServerKind
from tests.support.waiting import eventually

pytestmark = [pytest.mark.leaves_keys]
TTL = 60.0
"""Seconds: who gets in before these are over was let in by the release."""
SOON = 10.0
"""Seconds, on a busy machine; far less on an idle one."""
SINGLE = [kind for kind in KINDS if kind.masters == 1]


def test_each_release_is_known_as_one() -> None:
    """Else it is not sent again."""
    held = [family for family in families().values() if family.can_be_held and family.release.words]
    assert len(held) > 5
    assert [family.release.script for family in held if not family.release.script.frees] == []


@pytest.mark.more  # as releases that come again
async def test_as_many_are_remembered_as_memory_allows() -> None:
    loop = asyncio.get_running_loop()
    sent: list[Request[Any]] = []
    master = "one"
    masters = {"one", "two"}
    releases = Releases(
        loop, lambda call, **_: sent.append(call), lambda _: master, lambda: masters, lambda _: None
    )

    def release(number: int, size: int = 1) -> None:
        script = next(iter(families().values())).release.script
        command = Request(script, (b"lock:%d" % number,), ("x" * size,), released, lane=str(number))
        call = command.again().ask(ignore, ignore, until=loop.time() + 1)
        releases.follow(call)
        call.reply([1])

    release(-1, size=100_000)
    for number in range(5000):
        release(number)
    master = "two"
    releases.look()
    assert sent == []  # the slot has moved, with its keys: its former master serves others
    master, masters = "another", {"one", "another"}
    releases.look()
    assert 0 < len(sent) < 100  # what the session asks meanwhile goes between
    assert await eventually(lambda: len(sent) == 4096)
    assert [call.lane for call in sent] == [str(number) for number in range(4999, 4999 - 4096, -1)]
    assert all(call.undoes for call in sent)
    releases.look()
    await asyncio.sleep(0.05)
    assert len(sent) == 4096


# -- a cluster


@pytest.fixture
def replicated(server_kind: ServerKind) -> Iterator[Cluster]:
    if server_kind.executable is None:
        pytest.skip(f"not with {server_kind}: it stops its servers")
    with Cluster(server_kind.executable, replicas=3) as cluster:
        yield cluster


@pytest.fixture
async def sessions(replicated: Cluster) -> AsyncIterator[list[Session]]:
    async with AsyncExitStack() as stack:
        clients = [replicated.client() for _ in range(2)]
        for client in clients:
            stack.push_async_callback(client.aclose)
        yield [await stack.enter_async_context(Session(client)) for client in clients]


class Shard:
    """A master of a cluster and its replica, which takes its place without what came last."""

    def __init__(self, cluster: Cluster) -> None:
        self.master, self.replica = cluster.masters[0], cluster.replicas[0]
        names = (f"name {number}" for number in count())
        self.names = (name for name in names if cluster.owner_of(key(PREFIX, "lock", name)) is self.master)

    def has_all(self) -> None:
        """The replica has all that there is, and gets nothing more."""
        assert self.master.do("WAIT", 1, 5000) == 1
        self.replica.server.pause()
        self.master.do("CLIENT", "KILL", "TYPE", "replica")

    async def take_over(self) -> None:
        """It is told so before it goes on: then it does not copy what the master has."""
        told = asyncio.to_thread(self.replica.do, "CLUSTER", "FAILOVER", "TAKEOVER")
        taking = asyncio.create_task(told)
        await asyncio.sleep(0.1)
        self.replica.server.resume()
        await taking
        await eventually(lambda: _serves_nothing(self.master), within=SOON)


def _serves_nothing(node: Node) -> bool:
    return b"slave" in node.do("ROLE")[0]


async def test_it_is_free_once_the_new_master_is_known(replicated: Cluster, sessions: list[Session]) -> None:
    """Of each kind."""
    here, elsewhere = sessions
    shard = Shard(replicated)
    names = [(kind, next(shard.names)) for kind in SINGLE]
    leases: list[Lease] = [await kind.make(here, name, ttl=TTL).acquire() for kind, name in names]
    other: Any = await Lock(here, next(shard.names), ttl=TTL).acquire()
    shard.has_all()
    for lease in leases:
        await lease.release()
    await shard.take_over()
    assert await other.owned()  # by which it knows the new master

    for kind, name in names:
        async with kind.make(elsewhere, name, ttl=TTL, blocking_timeout=SOON):
            pass
    assert await other.owned()
    await other.release()


@pytest.mark.more  # as a release that comes again behind Sentinel
async def test_who_holds_it_by_then_keeps_it(replicated: Cluster, sessions: list[Session]) -> None:
    """The release comes again, and is told to nobody: neither to the next holder nor to the former one."""
    elsewhere, _ = sessions
    shard = Shard(replicated)
    witness = Witness()
    client = replicated.client()
    async with Session(client, listeners=[witness]) as third:
        name, known = next(shard.names), next(shard.names)
        lease = await Lock(third, name, ttl=TTL).acquire()
        await lease.release()
        await (await Lock(third, known, ttl=TTL).acquire()).release()
        held = await Lock(elsewhere, name, ttl=TTL).acquire()
        shard.has_all()
        await shard.take_over()
        before = third.statistics().commands_sent
        assert not await Lock(third, known).locked()
        # Two releases and the question, which the old master has turned away.
        await eventually(lambda: third.statistics().commands_sent >= before + 4, within=SOON)
        assert await held.owned()
        assert witness.lost == []
        assert len(witness.released) == 2
        await held.release()
    await client.aclose()
