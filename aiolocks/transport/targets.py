"""The servers that a URL names: one, a cluster, or the master that Sentinel knows. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.sentinel import Sentinel

Address = tuple[str, int]

FORMS: Final = (
    "redis://[user:password@]host[:port][/db], rediss://… for TLS, unix://path, "
    "redis+cluster://host[:port][,host[:port]…], redis+sentinel://host[:port][,host[:port]…]/service[/db]"
)
_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_SECURE: Final = {"redis": False, "rediss": True, "valkey": False, "valkeys": True}
_OF_SENTINEL: Final = "sentinel_"
"""Parameters that begin so are for the connections to Sentinel itself."""


class Kind(Enum):
    """The sorts of target."""

    SERVER = "the server"
    CLUSTER = "the cluster"
    SENTINEL = "Sentinel"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server, or several, as a URL names them.

    Attributes:
        kind: Of which sort it is.
        addresses: Of the server, of some nodes of the cluster, or of Sentinels; none for a unix socket.
        path: Of the unix socket.
        service: The name by which Sentinel knows the master.
        options: The arguments of connections, without the address; they may hold a password.
        sentinel_options: The same for the connections to Sentinel.
    """

    kind: Kind
    addresses: Sequence[Address] = ()
    path: str = ""
    service: str = ""
    options: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    sentinel_options: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)

    def __str__(self) -> str:
        """The name that people give it, without any credentials."""
        where = self.path or ", ".join(f"{host}:{port}" for host, port in self.addresses)
        of_service = f"the master {self.service!r} of " if self.service else ""
        return f"{of_service}{self.kind.value} at {where}"

    @property
    def user(self) -> str:
        """The name by which the server knows the user."""
        return str(self.options.get("username") or "default")

    def open(self, **more: Any) -> tuple[Redis | RedisCluster, list[Redis]]:
        """A client, and the clients of Sentinels that it uses: the caller closes all of them.

        It has no `socket_timeout`, unless the URL gives one: before Python 3.12, redis-py's way of bounding a
        write (`asyncio.wait_for`) may swallow a cancellation, and with it Ctrl-C.
        """
        options = _bounded_by_us(self.options, more)
        if self.kind is Kind.CLUSTER:
            nodes = [ClusterNode(host, port) for host, port in self.addresses]
            return RedisCluster(startup_nodes=nodes, **options), []
        if self.kind is Kind.SENTINEL:
            known = _bounded_by_us(self.sentinel_options)
            make: Any = Sentinel  # which is not typed
            sentinel = make(list(self.addresses), sentinel_kwargs=known)
            asked: list[Redis] = list(sentinel.sentinels)
            return sentinel.master_for(self.service, **options), asked
        if self.path:
            return Redis(unix_socket_path=self.path, **options), []
        return self.node(self.addresses[0], **more), []

    def node(self, address: Address, **more: Any) -> Redis:
        """A client of one of the servers."""
        host, port = address
        return Redis(host=host, port=port, **_bounded_by_us(self.options, more))

    def sentinel(self, address: Address) -> Redis:
        """A client of one Sentinel."""
        host, port = address
        return Redis(host=host, port=port, **_bounded_by_us(self.sentinel_options))


def _bounded_by_us(*options: Mapping[str, Any]) -> dict[str, Any]:
    """These arguments, of which later ones count; without a time-out of the driver unless one is among them.

    The client speaks RESP2, which every server and proxy has. Sessions ask for RESP3 by themselves.
    """
    bounded: dict[str, Any] = {"socket_timeout": None, "protocol": 2}
    for some in options:
        bounded |= some
    return bounded


def target_of(url: str) -> Target:
    """Takes a URL apart.

    Raises:
        ValueError: It is no URL of a server. The text may quote a part of a password.
    """
    parts = urlsplit(url)
    scheme, _, form = parts.scheme.partition("+")
    if scheme == "unix" and not form:
        options = dict(parse_url(url))
        return Target(kind=Kind.SERVER, path=str(options.pop("path")), options=_without_class(options))
    if scheme not in _SECURE or form not in ("", "cluster", "sentinel"):
        raise ValueError("unknown scheme")
    credentials, at, hosts = parts.netloc.rpartition("@")
    addresses = [_address(host, _SENTINEL_PORT if form == "sentinel" else _PORT) for host in hosts.split(",")]
    if not form and len(addresses) > 1:
        raise ValueError("several addresses")
    kind = Kind(f"the {form}") if form == "cluster" else Kind.SENTINEL if form else Kind.SERVER
    query = parse_qsl(parts.query, keep_blank_values=True)
    service, path = "", parts.path
    if kind is Kind.SENTINEL:
        service, _, database = path.lstrip("/").partition("/")
        if not service:
            raise ValueError("no service")
        path = f"/{database}"
    base = "rediss" if _SECURE[scheme] else "redis"
    own = [pair for pair in query if kind is not Kind.SENTINEL or not pair[0].startswith(_OF_SENTINEL)]
    options = _options(base, f"{credentials}{at}", path, own)
    if kind is Kind.CLUSTER and options.pop("db", 0):
        raise ValueError("a cluster has no databases")
    of_sentinel = [
        (name.removeprefix(_OF_SENTINEL), value) for name, value in query if (name, value) not in own
    ]
    tls = [pair for pair in own if pair[0].startswith("ssl_")]
    return Target(
        kind=kind,
        addresses=tuple(addresses),
        service=service,
        options=options,
        sentinel_options=_options(base, "", "", [*tls, *of_sentinel]) if kind is Kind.SENTINEL else {},
    )


def _options(base: str, credentials: str, path: str, query: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The arguments of a connection, read as redis-py reads a URL."""
    read = dict(parse_url(urlunsplit((base, f"{credentials}host", path, urlencode(query), ""))))
    del read["host"]
    return _without_class(read)


def _without_class(options: dict[str, Any]) -> dict[str, Any]:
    if options.pop("connection_class", None) is SSLConnection:
        options["ssl"] = True
    return options


def _address(text: str, default: int) -> Address:
    parts = urlsplit(f"//{text}")
    if not parts.hostname and (text or default == _SENTINEL_PORT):
        raise ValueError("no host")
    return parts.hostname or "localhost", parts.port or default
