"""Slots that leave a node, whose events tell nothing of it, and those who listen there by such events.

T-F-7 of `tests/FAULTS.md`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal

import pytest
from redis.exceptions import ResponseError

from aiolocks import Lease, Lock, Session
from aiolocks.lock import wakeups
from aiolocks.transport.keys import key
from tests.adversity.tools import PATIENT
from tests.conftest import PREFIX, Surroundings, clustered
from tests.lua.test_acl import CHANNELS, COMMANDS, KEYS, KEYSPACE, SHARDED
from tests.support.clusters import Cluster, Node
from tests.support.waiting import eventually, sleeps

NAME = "leaving"
KEY = key(PREFIX, "lock", NAME)
NEVER = 60.0
"""Seconds between two requests that listen: no test waits for the second one."""
BEFORE_SAFETY = 5.0
"""Seconds: a waiter asks after 10, whatever it hears."""

Move = Callable[[Cluster, Node, Node], None]


def at_once(cluster: Cluster, source: Node, to: Node) -> None:
    cluster.move_at_once([cluster.slot(KEY)], source, to)


def key_by_key(cluster: Cluster, source: Node, to: Node) -> None:
    cluster.move(cluster.slot(KEY), to)


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    """One whose nodes tell of deletions. They do not tell of what expires: a bell that ends rings nothing."""
    for node in cluster.masters:
        node.do("CONFIG", "SET", "notify-keyspace-events", "Kg")
    return cluster


@pytest.fixture
def moves_at_once(cluster: Cluster) -> None:
    if not cluster.can_move_at_once():
        pytest.skip("not with this server: it moves slots key by key")


@pytest.fixture(params=[at_once, key_by_key])
def move(request: pytest.FixtureRequest) -> Move:
    """One way in which a slot goes to another node."""
    if request.param is at_once:
        request.getfixturevalue("moves_at_once")
    way: Move = request.param
    return way


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters hear their bells, and nothing else: the request that listens is sent once."""
    monkeypatch.setattr(wakeups, "_LISTENS_EVERY", NEVER)


def open_session(
    surroundings: Surroundings, cluster: Cluster, protocol: Literal[2, 3] = 3, **user: Any
) -> Session:
    client = clustered(surroundings, cluster, protocol=protocol, **user)
    return Session(
        client, wakeup="keyspace", backoff=PATIENT, protocol=2 if protocol == 2 else None, prefix=PREFIX
    )


@asynccontextmanager
async def two(
    surroundings: Surroundings, cluster: Cluster, **how: Any
) -> AsyncIterator[tuple[Session, Session]]:
    async with (
        open_session(surroundings, cluster, **how) as one,
        open_session(surroundings, cluster, **how) as other,
    ):
        yield one, other


def texts(reply: Sequence[bytes]) -> list[str]:
    return [channel.decode() for channel in reply]


def bells(node: Node) -> list[str]:
    """The channels of bells of the name to which sessions listen on this node."""
    channels = texts(node.do("PUBSUB", "CHANNELS", f"__keyspace@0__:{PREFIX}:lock.bell.*:{{{NAME}}}"))
    return [channel for channel in channels if "bell.probe." not in channel]


def watched(cluster: Cluster) -> list[str]:
    """The channels by which sessions watch the slot of the name, on any node."""
    tag = f"{{{NAME}}}"
    return [one for node in cluster.masters for one in shards(node) if one.endswith(tag)]


def shards(node: Node) -> list[str]:
    return texts(node.do("PUBSUB", "SHARDCHANNELS"))


def beside(cluster: Cluster) -> str:
    """Another name that the same node has."""
    owner = cluster.owner_of(KEY)
    names = (f"beside {number}" for number in range(1000))
    return next(name for name in names if cluster.owner_of(key(PREFIX, "lock", name)) is owner)


async def waiting(session: Session) -> asyncio.Task[Lease]:
    task = asyncio.create_task(Lock(session, NAME, ttl=30).acquire())
    await eventually(lambda: sleeps(session), within=10)
    return task


@pytest.mark.parametrize("protocol", [3, 2])
async def test_waiters_listen_on_the_new_node(
    cluster: Cluster, surroundings: Surroundings, silent: None, move: Move, protocol: Literal[2, 3]
) -> None:
    async with two(surroundings, cluster, protocol=protocol) as (one, other):
        for _ in range(2):  # it comes back to a node on which a bell of before may still be heard
            lease = await Lock(one, NAME, ttl=30).acquire()
            waiter = await waiting(other)
            source = cluster.settle(cluster.slot(KEY))
            to = cluster.another(source)
            await eventually(lambda source=source: bells(source), within=10)  # type: ignore[misc]
            await asyncio.to_thread(move, cluster, source, to)
            await eventually(lambda to=to: bells(to), within=BEFORE_SAFETY)  # type: ignore[misc]
            await lease.release()
            await (await asyncio.wait_for(waiter, 20)).release()


@pytest.mark.usefixtures("moves_at_once")
@pytest.mark.parametrize("protocol", [3, 2])
async def test_holders_ask_once_whether_they_still_hold_it(
    cluster: Cluster, surroundings: Surroundings, protocol: Literal[2, 3]
) -> None:
    """From then on they are told of a loss on the new node as soon as they have renewed it there."""
    async with open_session(surroundings, cluster, protocol) as session:
        source = cluster.settle(cluster.slot(KEY))
        async with Lock(session, NAME, ttl=300):  # it is renewed after 100 s
            channel = f"__keyspace@0__:{KEY.decode()}"
            await eventually(lambda: source.do("PUBSUB", "CHANNELS", channel), within=10)
            before = scripts(cluster)
            await asyncio.to_thread(at_once, cluster, source, cluster.another(source))
            await eventually(lambda: scripts(cluster) > before, within=10)


def scripts(cluster: Cluster) -> int:
    """The number of scripts that its nodes were asked for."""
    stats = [node.admin.info("commandstats") for node in cluster.masters]
    return sum(
        one.get(f"cmdstat_{word}", {}).get("calls", 0) for one in stats for word in ("eval", "evalsha")
    )


@contextmanager
def user(cluster: Cluster, commands: Sequence[str]) -> Iterator[dict[str, str]]:
    """The arguments of a client whose user may do this on all nodes."""
    rules = ["reset", "on", ">secret", "resetchannels", "-@all", *(f"~{pattern}" for pattern in KEYS)]
    rules += [*(f"&{pattern}" for pattern in CHANNELS), *(f"+{command}" for command in commands)]
    try:
        for node in cluster.masters:
            node.do("ACL", "SETUSER", "listener", *rules)
        yield {"username": "listener", "password": "secret"}
    finally:
        for node in cluster.masters:
            node.do("ACL", "DELUSER", "listener")


IN_A_CLUSTER = [*COMMANDS, *KEYSPACE, "cluster|slots", "asking"]


@pytest.mark.parametrize("protocol", [3, 2])
@pytest.mark.parametrize("denied", ["", *SHARDED])
async def test_the_words_that_it_needs(
    cluster: Cluster,
    surroundings: Surroundings,
    caplog: pytest.LogCaptureFixture,
    protocol: Literal[2, 3],
    denied: str,
) -> None:
    """Without them, waiters are woken as before; a slot that leaves is noticed when the session listens."""
    try:
        watched(cluster)
    except ResponseError:
        pytest.skip("not with this server: it has no channels of slots")
    words = [word for word in SHARDED if word != denied]
    with user(cluster, IN_A_CLUSTER + words) as login:
        async with two(surroundings, cluster, protocol=protocol, **login) as (one, other):
            # A node is tried out, and watched, in the slot of what it is first asked for.
            for session in (one, other):
                async with Lock(session, beside(cluster)):
                    pass
            lease = await Lock(one, NAME, ttl=30).acquire()
            waiter = await waiting(other)
            await eventually(lambda: any(map(bells, cluster.masters)), within=10)
            assert bool(watched(cluster)) is (denied != "ssubscribe")
            await lease.release()
            await (await asyncio.wait_for(waiter, 10)).release()
            await eventually(lambda: not any(map(bells, cluster.masters)), within=10)
            if denied != "sunsubscribe":
                await eventually(lambda: not watched(cluster), within=10)
            else:
                assert watched(cluster)
    assert not caplog.messages


@pytest.mark.usefixtures("moves_at_once")
@pytest.mark.parametrize("protocol", [3, 2])
async def test_where_it_is_denied_a_slot_that_leaves_is_noticed_a_moment_later(
    cluster: Cluster, surroundings: Surroundings, protocol: Literal[2, 3]
) -> None:
    with user(cluster, IN_A_CLUSTER) as login:
        async with two(surroundings, cluster, protocol=protocol, **login) as (one, other):
            lease = await Lock(one, NAME, ttl=30).acquire()
            waiter = await waiting(other)
            source = cluster.settle(cluster.slot(KEY))
            await asyncio.to_thread(at_once, cluster, source, cluster.another(source))
            await eventually(lambda: bells(cluster.another(source)), within=10)
            await lease.release()
            await (await asyncio.wait_for(waiter, 20)).release()
