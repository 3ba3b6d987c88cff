"""The servers that the doctor looks at: one, the nodes of a cluster, or the servers that Sentinel knows."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Mapping
from contextlib import aclosing, suppress
from typing import Any, Final

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from ...transport.keys import key
from ...transport.targets import Address, Kind, Target
from ..exits import CommandError
from ..server import Server
from . import access, settings, trial
from .facts import Facts, ask, learn, text
from .findings import Finding, Level, any_error
from .refusals import mend, trouble_of

_ENOUGH: Final = 3
"""Sentinels that outlive the loss of one of them."""
_OF_ONE: Final = ("role", "replicas")
"""Checks of a lone server, which say nothing of a node or of a replica."""


async def examined(server: Server, *, prefix: str, wakeup: str) -> AsyncGenerator[Finding, None]:
    """All findings, in the order in which they are listed; see `command.examine`."""
    of_kind = {Kind.SERVER: _one, Kind.CLUSTER: _cluster, Kind.SENTINEL: _sentinel}[server.target.kind]
    async for finding in of_kind(server, prefix, wakeup):
        yield finding


def _client(target: Target, address: Address | None = None, **more: Any) -> Redis:
    """A client of one server, which tries everything once."""
    once = {"retry": Retry(NoBackoff(), 0), **more}
    if address is not None:
        return target.node(address, **once)
    client, _ = target.open(**once)
    assert isinstance(client, Redis)
    return client


async def _one(server: Server, prefix: str, wakeup: str) -> AsyncGenerator[Finding, None]:
    other = _client(server.target, protocol=3, single_connection_client=True)
    async for finding in _whole(server.only, other, server.target, prefix, wakeup):
        yield finding


async def _whole(
    client: Redis, other: Redis, target: Target, prefix: str, wakeup: str
) -> AsyncGenerator[Finding, None]:
    """All checks of a server that is alone. `other` is a client for the check of pushes, which is closed."""
    name = _name()
    async with aclosing(other):
        facts = await learn(client)
        findings = list(settings.about(facts))
        if not facts.number("loading"):  # or else it refuses all the rest
            of_user = _of_user(
                client, other, facts, user=target.user, prefix=prefix, name=name, wakeup=wakeup
            )
            findings += [found async for found in of_user]
            if wakeup == "keyspace":
                findings.append(trial.keyspace(facts))
            findings.append(await _trial(client, findings, prefix, name, wakeup))
            findings += await _names(client, prefix)
    for finding in findings:
        yield finding


async def _of_user(
    client: Redis, other: Redis, facts: Facts, *, user: str, prefix: str, name: str, wakeup: str
) -> AsyncGenerator[Finding, None]:
    """The rights of this user. No program uses the name, and its keys are on this server."""
    async for finding in access.allowed(client, prefix=prefix, name=name, user=user):
        yield finding
    if wakeup in ("auto", "tracking"):
        async for finding in trial.pushes(other, facts, user=user):
            yield finding


async def _trial(
    client: Redis | RedisCluster, before: list[Finding], prefix: str, name: str, wakeup: str
) -> Finding:
    if any_error(finding for finding in before if finding.check in access.CHECKS):
        return trial.NOT_MADE
    explained = any_error(before)
    return await trial.tried(client, prefix=prefix, name=name, wakeup=wakeup, explained=explained)


async def _names(client: Redis | RedisCluster, prefix: str) -> list[Finding]:
    finding = await trial.twin_names(client, prefix)
    return [] if finding is None else [finding]


def _name() -> str:
    """A name that no program uses."""
    return f"doctor.{secrets.token_hex(8)}"


async def _of_node(address: Address, findings: AsyncIterable[Finding]) -> AsyncGenerator[Finding, None]:
    """The findings, with the address; one more if the server is gone."""
    node = f"{address[0]}:{address[1]}"
    try:
        async for finding in findings:
            yield dataclasses.replace(finding, node=node)
    except CommandError as error:
        yield Finding(Level.ERROR, "reached", str(error), "start it, or let this machine reach it", node)
    except ResponseError as error:
        said = f"the server refuses to be examined: {error}"
        yield Finding(Level.ERROR, "reached", said, "fix what the server says there", node)


# -- a cluster


async def _cluster(server: Server, prefix: str, wakeup: str) -> AsyncGenerator[Finding, None]:
    client = server.client
    assert isinstance(client, RedisCluster)
    findings = [found async for found in _whole_cluster(client)]
    for node in sorted(client.get_nodes(), key=lambda node: node.name):
        address = (str(node.host), int(node.port))
        looked = _master(server.target, client, node, prefix, wakeup)
        if node.server_type == "replica":
            looked = _replica(server.target, address)
        findings += [found async for found in _of_node(address, looked)]
    findings.append(await _trial(client, findings, prefix, _name(), wakeup))
    findings += await _names(client, prefix)
    for finding in findings:
        yield finding


async def _whole_cluster(client: RedisCluster) -> AsyncGenerator[Finding, None]:
    """The state of the cluster, as its nodes know it."""
    try:
        info: Mapping[str, Any] = await ask(client, "CLUSTER INFO")
    except ResponseError as error:
        why = trouble_of(error)
        said = f"the state of the cluster is not known: CLUSTER INFO is {why or f'refused ({error})'}"
        yield Finding(Level.NOTE, "cluster", said, mend({"cluster|info": why}, "ACL SETUSER <user>"))
    else:
        yield _state(info)
    masters, replicas = len(client.get_primaries()), len(client.get_replicas())
    cached: Any = client.nodes_manager.slots_cache  # by slot, the nodes that have it; the master comes first
    alone = {nodes[0].name for nodes in cached.values() if len(nodes) < 2}
    if alone:
        yield Finding(
            Level.NOTE,
            "replicas",
            f"{', '.join(sorted(alone))}: no replica, so locks of its slots cannot be had while it is down",
            "start a server, and on it: CLUSTER MEET <host> <port>, CLUSTER REPLICATE <id of the master>",
        )
    else:
        yield Finding(Level.OK, "replicas", f"{masters} masters have {replicas} replicas")


def _state(info: Mapping[str, Any]) -> Finding:
    state, served = info.get("cluster_state"), int(info.get("cluster_slots_ok", 0))
    failing = int(info.get("cluster_slots_pfail", 0)) + int(info.get("cluster_slots_fail", 0))
    if state == "ok" and not failing:
        return Finding(Level.OK, "cluster", f"all nodes are there, and {served} slots are served")
    fix = "start the nodes that CLUSTER NODES calls fail, or: redis-cli --cluster fix <host>:<port>"
    if state == "ok":
        return Finding(Level.WARNING, "cluster", f"{failing} slots are on nodes that do not answer", fix)
    said = f"the cluster is down (cluster_state:{state}): {served} of 16384 slots are served"
    return Finding(Level.ERROR, "cluster", said, fix)


async def _master(
    target: Target, cluster: RedisCluster, node: ClusterNode, prefix: str, wakeup: str
) -> AsyncGenerator[Finding, None]:
    address = (str(node.host), int(node.port))
    async with (
        aclosing(_client(target, address, protocol=3, single_connection_client=True)) as other,
        aclosing(_client(target, address)) as client,
    ):
        facts = await learn(client)
        for finding in _of_several(facts):
            yield finding
        name = _name_on(cluster, node, prefix)
        if not facts.number("loading") and name is not None:
            async for finding in _of_user(
                client, other, facts, user=target.user, prefix=prefix, name=name, wakeup=wakeup
            ):
                yield finding


def _name_on(cluster: RedisCluster, node: ClusterNode, prefix: str) -> str | None:
    """A name that no program uses, and whose keys this node has; None where it has no slots."""
    cached: Any = cluster.nodes_manager.slots_cache
    if not any(nodes[0].name == node.name for nodes in cached.values()):
        return None
    while True:
        name = _name()
        if cached[cluster.keyslot(key(prefix, "lock", name))][0].name == node.name:
            return name


# -- replicas and Sentinels


def _of_several(facts: Facts) -> Iterator[Finding]:
    return (finding for finding in settings.about(facts) if finding.check not in _OF_ONE)


async def _replica(target: Target, address: Address) -> AsyncGenerator[Finding, None]:
    async with aclosing(_client(target, address)) as client:
        facts = await learn(client)
    for finding in _of_several(facts):
        yield finding
    if facts.info.get("master_link_status", "up") == "up":
        yield Finding(Level.OK, "link", "the replica follows its master")
    else:
        said = "the replica has no connection to its master: it would take over with locks of long ago"
        yield Finding(Level.WARNING, "link", said, "read its log; see INFO replication on both")


async def _sentinel(server: Server, prefix: str, wakeup: str) -> AsyncGenerator[Finding, None]:
    target = server.target
    told: dict[Address, Address] = {}  # of each Sentinel that answers, where it says that the master is
    replicas: list[Address] = []
    for address in target.addresses:
        async with aclosing(target.sentinel(address)) as sentinel:
            async for finding in _of_node(address, _asked(sentinel, target.service, address, told, replicas)):
                yield finding
    if len(set(told.values())) > 1:
        where = "; ".join(f"{one[0]}:{one[1]} says {at[0]}:{at[1]}" for one, at in told.items())
        said = f"Sentinels name several masters: {where}"
        yield Finding(Level.ERROR, "sentinels", said, "wait until they agree, or look at their networks")
    if told:
        master = next(iter(told.values()))
        other = _client(target, master, protocol=3, single_connection_client=True)
        async with aclosing(_client(target, master)) as client:
            async for finding in _of_node(master, _whole(client, other, target, prefix, wakeup)):
                yield finding
    for replica in dict.fromkeys(replicas):
        async for finding in _of_node(replica, _replica(target, replica)):
            yield finding


async def _asked(
    sentinel: Redis, service: str, address: Address, told: dict[Address, Address], replicas: list[Address]
) -> AsyncGenerator[Finding, None]:
    """The findings about one Sentinel."""
    found: Any = await ask(sentinel, "SENTINEL GET-MASTER-ADDR-BY-NAME", service)
    if not found:
        said = f"this Sentinel knows no master {service!r}"
        yield Finding(Level.ERROR, "sentinel", said, f"SENTINEL MONITOR {service} <host> <port> <quorum>")
        return
    told[address] = text(found[0]), int(found[1])
    others = len(await ask(sentinel, "SENTINEL SENTINELS", service))
    for one in await ask(sentinel, "SENTINEL REPLICAS", service):
        fields = _fields(one)
        replicas.append((fields["ip"], int(fields["port"])))
    said = f"{others + 1} Sentinel{'s watch' if others else ' watches'} {service!r}"
    if others + 1 < _ENOUGH:
        said = f"{said}: when one is lost, no replica takes over"
        yield Finding(Level.WARNING, "sentinel", said, f"run {_ENOUGH}, each on a machine of its own")
        return
    with suppress(ResponseError):
        await ask(sentinel, "SENTINEL CKQUORUM", service)
        yield Finding(Level.OK, "sentinel", f"{said}, and enough of them agree for a failover")
        return
    said = f"{said}, and too few of them are reached for a failover"
    yield Finding(Level.WARNING, "sentinel", said, "start them, or fix the network between them")


def _fields(one: Any) -> dict[str, str]:
    """The fields that redis-py gives as a dict or, before version 6, as a list."""
    flat: list[Any] = one if not hasattr(one, "items") else [word for pair in one.items() for word in pair]
    return {text(name): text(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}
