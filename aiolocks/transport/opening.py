"""From a client to the way to its server, or servers."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.asyncio.cluster import RedisCluster

from .connection import Fallback, Multiplexed
from .dialect import Dialect, OpenRaw
from .driver import Address, Executor, MakeWords, RawConnection, drivable, library_behind
from .hearing import OnRung, Wakeup, Wakeups
from .keys import key, parse
from .libraries import REDIS, library_of
from .outages import Outage, Outages
from .request import Request, Transport, lua_sections
from .steps.listening import trial
from .tls import Connecting
from .tokens import follow

if TYPE_CHECKING:
    from .cluster.clustered import Clustered
    from .cluster.sagas import Sagas


def open_clients(url: str) -> tuple[Any, Sequence[Any]]:
    """A client of what a URL names, and the clients of its Sentinels; the caller closes them. No I/O.

    Raises:
        ValueError: It is no such URL.
    """
    from .targets import FORMS, target_of  # noqa: PLC0415 - few need it, and it imports much of the driver

    try:
        return target_of(url).open()
    except (ValueError, TypeError):
        # Not its text: of a URL that was taken apart wrongly, that may quote the password.
        raise ValueError(f"this is not a URL of a Redis server: {FORMS}") from None


def check_client(client: object, *, or_session: bool = False) -> None:
    """Says what is wrong with a client that is not one.

    Args:
        client: The argument that was given.
        or_session: A session would have been as good; it is for the text only.

    Raises:
        TypeError: It is not a client for asyncio of redis-py or valkey-py.
    """
    library = library_of(type(client)) or REDIS
    if library.is_client(client):
        return
    one, cluster = library.client.__name__, library.cluster.__name__
    asyncio_one = f"{library.client.__module__.partition('.')[0]}.asyncio.{one}"
    if isinstance(client, library.blocking):
        what = f"a synchronous client: make it with {asyncio_one} instead"
    elif isinstance(client, library.partial):
        what = f"a {type(client).__name__}: give the client that it came from"
    elif isinstance(client, str):
        what = (
            f"a URL: make a client of it with {asyncio_one}.from_url(), or a session with Session.from_url()"
            if "://" in client
            else "a str: the client comes first, then the name"
        )
    elif isinstance(client, type):
        what = f"the class {client.__name__}: make a client of it"
    else:
        what = type(client).__name__
    allowed = f"{cluster} or an aiolocks.Session" if or_session else f"or {cluster}"
    raise TypeError(f"client must be a {asyncio_one}{',' if or_session else ''} {allowed}, not {what}")


def check_master(client: object) -> None:
    """Says what is wrong with a client that does not lead to one master.

    Raises:
        TypeError: It is not a `redis.asyncio.Redis` or `valkey.asyncio.Valkey`.
    """
    check_client(client)
    if is_cluster(client):
        raise TypeError(
            f"clients must lead to one master each, and a {type(client).__name__} leads to many, which share "
            "the slots: give a redis.asyncio.Redis for each of several independent servers"
        )


def is_cluster(client: object) -> bool:
    """Whether it is the client of a cluster."""
    library = library_of(type(client))
    return library is not None and isinstance(client, library.cluster)


def master_label(client: Any) -> str:
    """The name of a client's server in messages; never with credentials."""
    return _address(client.connection_pool) or (
        f"{type(client.connection_pool).__name__} at {id(client):#x}"  # as of Sentinel, which names it later
    )


def place(client: Any) -> Hashable:
    """Where a client has its keys: the same for clients of one database of one server.

    Of a cluster, and of what Sentinel names, the same for the same client only.
    """
    if is_cluster(client):
        return id(client)
    pool = client.connection_pool
    address = _address(pool).replace("localhost:", "127.0.0.1:")
    return (address, pool.connection_kwargs.get("db") or 0) if address else id(pool)


def _address(pool: Any) -> str:
    """Where a pool's connections lead; empty where the pool itself does not know that beforehand."""
    arguments: dict[str, Any] = pool.connection_kwargs
    if path := arguments.get("path"):
        return str(path)
    if host := arguments.get("host"):
        return f"{host}:{arguments.get('port', 6379)}"
    return ""


def _label(pool: Any) -> str:
    """How the log calls the server of a pool; never with credentials."""
    if service := getattr(pool, "service_name", ""):
        return f"Sentinel's master {service!r}"
    return f"Redis at {_address(pool) or type(pool).__name__}"


def open_transport(
    client: Any,
    loop: asyncio.AbstractEventLoop,
    *,
    prefix: str,
    session: str,
    wakeup: Wakeup,
    dialect: Dialect,
    on_rung: OnRung,
) -> Transport:
    """The best way to this client's server; connects when first needed.

    `on_rung` is told of bells that were rung; `prefix` and `session` make the key with which the wakeup is
    tried out.

    Raises:
        ConfigurationError: A wakeup was asked for by name that this client cannot have, or RESP3. Or the
            scripts are missing.
    """
    lua_sections()  # first: a request that cannot be written would be taken for an outage
    if is_cluster(client):
        return _clustered(
            client, loop, prefix=prefix, session=session, wakeup=wakeup, dialect=dialect, on_rung=on_rung
        )
    pool = client.connection_pool
    connect = partial(
        _to_one,
        client,
        loop,
        probe=key(prefix, "lock", session, "bell.probe"),
        fence=_fence(prefix, session),
        wakeup=wakeup,
        dialect=dialect,
        on_rung=on_rung,
    )
    if named_by_sentinel(pool):
        from .sentinel import NamedMaster  # noqa: PLC0415 - few need it, and an import takes a millisecond

        return NamedMaster(pool, loop, connect, on_rung)
    return connect(
        pool,
        lambda protocol, patience, named: RawConnection.open(
            pool, protocol=protocol, patience=patience, named=named
        ),
    )


def named_by_sentinel(pool: Any) -> bool:
    """Whether connections of this pool lead to the master that Sentinel names."""
    return bool(getattr(pool, "is_master", False)) and hasattr(pool, "sentinel_manager")


def _to_one(
    client: Any,
    loop: asyncio.AbstractEventLoop,
    door: Any,
    open_raw: OpenRaw,
    *,
    probe: bytes,
    fence: Callable[[bytes], bytes],
    wakeup: Wakeup,
    dialect: Dialect,
    on_rung: OnRung,
) -> Fallback:
    """The way to one server, over connections as the door makes them."""
    outage = Outage(_label(client.connection_pool), Outages(loop))
    wakeups = Wakeups(wakeup, trial=lambda _: trial(probe), on_rung=on_rung)
    if drivable(client):
        # The pool, not the client: an open connection is known to the loop, and must not keep alive who would
        # close it.
        pool = client.connection_pool
        transport = Multiplexed(
            open_raw,
            dialect,
            wakeups,
            lambda: _over_pool(door, loop, dialect, outage),
            loop,
            outage=outage,
            fence=fence,
            library=library_behind(pool),
        )
        follow(pool, loop, transport.authenticate)
        return transport
    wakeups.require_none(_not_driven(client))
    dialect.require_any(_not_driven(client))
    return _over_pool(door, loop, dialect, outage)


def open_quorum(
    clients: Sequence[tuple[Any, Dialect]],
    loop: asyncio.AbstractEventLoop,
    *,
    prefix: str,
    session: str,
    wakeup: Wakeup,
    on_rung: OnRung,
) -> Transport:
    """The way to several independent masters, each as by `open_transport`, with the dialect of each."""
    from .quorum.quorum import Quorum  # noqa: PLC0415 - few need it

    return Quorum(
        [
            (
                master_label(client),
                open_transport(
                    client,
                    loop,
                    prefix=prefix,
                    session=session,
                    wakeup=wakeup,
                    dialect=dialect,
                    on_rung=on_rung,
                ),
            )
            for client, dialect in clients
        ],
        loop,
    )


def _clustered(
    client: RedisCluster,
    loop: asyncio.AbstractEventLoop,
    *,
    prefix: str,
    session: str,
    wakeup: Wakeup,
    dialect: Dialect,
    on_rung: OnRung,
) -> Transport:
    from .cluster.clustered import Clustered  # noqa: PLC0415 - few need it, and an import takes a millisecond
    from .cluster.sagas import Sagas  # noqa: PLC0415
    from .cluster.slots import Slots  # noqa: PLC0415
    from .cluster_client import NodeConnectors, over_nodes  # noqa: PLC0415

    outages = Outages(loop)
    outage = Outage("the cluster", outages)
    connectors = NodeConnectors(client)
    slots = Slots(connectors)
    here = weakref.ref(client)
    probe = f"{prefix}:lock.bell.probe.{session}:".encode()

    def serial() -> Fallback:
        # The cluster's own connections: it alone knows which node has the slot.
        client = here()
        if client is None:
            raise ReferenceError("the client is gone")
        return _serial(
            over_nodes(client),
            _nothing_to_close,
            loop,
            outage=outage,
            sagas=lambda send: Sagas(send, partial(on_rung, "local"), loop),
        )

    def open_node(address: Address, cluster: Clustered) -> Multiplexed:
        connector = connectors.connector(address)
        node: Multiplexed = Multiplexed(
            lambda protocol, patience, named: RawConnection.open(
                connector,
                protocol=protocol,
                patience=patience,
                named=named,
                check_slots=lambda rows: slots.members.check(rows, address),
            ),
            dialect,
            Wakeups(
                wakeup,
                trial=lambda turned_away: _trial(cluster.probes.key(node, probe, turned_away)),
                turned_away=lambda bell, redirect: cluster.trial_redirected(node, bell, redirect),
                on_rung=on_rung,
            ),
            serial,
            loop,
            outage=Outage(f"Redis at {address[0]}:{address[1]}", outages),
            router=cluster,
            fence=_fence(prefix, session),
            library=library_behind(connector),
        )
        return node

    if not connectors.drivable:
        Wakeups(wakeup, trial=lambda _: trial(probe), on_rung=on_rung).require_none(_not_driven(client))
        dialect.require_any(_not_driven(client))
        return serial()
    return Clustered(slots, open_node, on_rung, loop, outage=outage)


def _trial(probe: bytes | None) -> Request[int] | None:
    return None if probe is None else trial(probe)


def _fence(prefix: str, session: str) -> Callable[[bytes], bytes]:
    """Gives a key in the slot of a grant's key, among the bells of its kind, which a session may write."""

    def fence(of: bytes) -> bytes:
        place = parse(prefix, of)
        assert place is not None
        return key(prefix, place.kind, place.name, f"bell.replicas.{session}")

    return fence


def _not_driven(client: object) -> str:
    return f"connections of this {type(client).__name__} cannot be driven directly"


def _over_pool(
    door: Connecting, loop: asyncio.AbstractEventLoop, dialect: Dialect, outage: Outage
) -> Fallback:
    executor = Executor(door, loop, protocol=dialect.wanted)
    return _serial(executor, executor.aclose, loop, outage=outage)


def _serial(
    execute: Callable[[MakeWords], Awaitable[Any]],
    close: Callable[[], Coroutine[Any, Any, None]],
    loop: asyncio.AbstractEventLoop,
    *,
    outage: Outage,
    sagas: Callable[[Callable[..., None]], Sagas] | None = None,
) -> Fallback:
    from .serial import Serial  # noqa: PLC0415 - few need it, and an import takes a millisecond

    return Serial(execute, close, loop, outage=outage, sagas=sagas)


async def _nothing_to_close() -> None:
    pass
