"""The parts of redis-py's private side that the multiplexed connection needs, in one place.

redis-py opens the connection with the class and the arguments of the client's own pool, so that
credentials, TLS, Sentinel and the database are what the user set. Then its stream is taken over. These parts
are private: `_reader`, `_writer` and `_parser` of a connection, the stream's `_buffer`, and the table of
error classes behind `BaseParser.parse_error`. `drivable` looks at the class beforehand, `RawConnection.open`
at the object; where either is not as expected, the pooled transport serves.

redis-py 5.0.1 and later, and valkey-py: where versions differ, the difference stands here; the names in which
the two libraries differ stand in `libraries`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast, final

import hiredis
import redis.exceptions as driver
from redis._parsers.base import BaseParser
from redis.asyncio.client import Redis
from redis.asyncio.connection import ConnectionPool

from ..requests.calls import Words
from .libraries import REDIS, Library, library_of
from .tls import Connecting, connected

CONNECT_TIMEOUT: Final = 5.0
"""Seconds for one attempt to connect; attempts go on for as long as somebody waits."""

# Maintenance pushes and caches are for the pool's connections, and none is of use to a lock.
_POOL_MATTERS: Final = (
    "cache_enabled",
    "client_cache",
    "maint_notifications_config",
    "maint_notifications_pool_handler",
)
# Before redis-py 6, only the parser of a cluster's client knew them.
_CLUSTER_ANSWERS: Final[dict[str, type[driver.ResponseError]]] = {
    "ASK": driver.AskError,
    "CLUSTERDOWN": driver.ClusterDownError,
    "CROSSSLOT": driver.ClusterCrossSlotError,
    "MASTERDOWN": driver.MasterDownError,
    "MOVED": driver.MovedError,
    "TRYAGAIN": driver.TryAgainError,
}

# Its stub knows only tuples of one word.
pack: Final = cast("Callable[[Any], bytes]", hiredis.pack_command)
"""Makes the bytes of a request."""
PushNotification: Final = hiredis.PushNotification

Address = tuple[str, int]
MakeWords = Callable[[], Words]
"""Makes the words of a request as late as possible: when there is a connection to write them to, but in a
cluster before the library connects to the node. Raises if the request must not be sent any more."""


class UnreadableRedirectError(driver.ResponseError):
    """A node named no slot, host and port of the node that it redirects to."""


class NotDrivableError(Exception):
    """The connection is not made of asyncio streams that can be taken over."""


class NotConnectedError(Exception):
    """No connection could be made, so that nothing was sent.

    Attributes:
        error: The driver's.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def drivable(client: Redis) -> bool:
    """Whether connections of this client's pool can be expected to carry the multiplexed protocol."""
    return drivable_class(getattr(client.connection_pool, "connection_class", None))


def drivable_class(cls: Any) -> bool:
    library = library_of(cls) if isinstance(cls, type) else None
    return (
        library is not None
        and issubclass(cls, library.connection)
        and getattr(cls, "_connect", None) in library.own_connect
        and cls.send_packed_command is library.connection.send_packed_command
        and cls.pack_command is library.connection.pack_command
        and hasattr(hiredis, "pack_command")
    )


def library_behind(connector: Connecting) -> Library:
    """The library whose connections these are; redis-py where nothing tells."""
    cls = connector.connection_class
    return (library_of(cls) if isinstance(cls, type) else None) or REDIS


@final
class RawConnection:
    """An authenticated stream to the server, taken out of redis-py's hands."""

    __slots__ = ("_beneath", "_writer", "database", "leftover", "protocol", "transport")

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        transport: asyncio.Transport,
        leftover: bytes,
        *,
        protocol: int,
        database: int,
    ) -> None:
        # The writer is kept for as long as the transport: a collected writer closes it.
        self._writer = writer
        self._beneath: Any = transport.get_protocol()
        self.transport = transport
        self.leftover = leftover
        self.protocol = protocol
        self.database = database

    @classmethod
    async def open(
        cls, pool: Connecting, *, protocol: int, check_slots: Callable[[Any], object] | None = None
    ) -> RawConnection:
        """Connects as the pool would, but not out of the pool: none of its places is taken.

        `check_slots` is given the table of slots that this node has, and raises if the node must not be used.

        Raises:
            NotDrivableError: The stream is not one of asyncio's.
            redis.exceptions.RedisError, OSError, TimeoutError: As from redis-py; nothing is left open.
        """
        arguments = arguments_of(pool)
        arguments.update(protocol=protocol, decode_responses=False)
        connection: Any = pool.connection_class(**arguments)
        try:
            with library_behind(pool).errors():
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await connected(pool, connection.connect())
                    if check_slots is not None:
                        check_slots(await cluster_slots(connection))
            return cls._take_over(connection, protocol, int(arguments.get("db") or 0))
        finally:
            close_now(connection)  # does nothing once the stream was taken over

    @classmethod
    def _take_over(cls, connection: Any, protocol: int, database: int) -> RawConnection:
        reader, writer = connection._reader, connection._writer
        if not isinstance(writer, asyncio.StreamWriter) or not isinstance(reader, asyncio.StreamReader):
            raise NotDrivableError(f"{type(connection).__name__} does not use asyncio's streams")
        transport: Any = writer.transport
        if not hasattr(transport, "set_protocol"):
            raise NotDrivableError(f"{type(transport).__name__} cannot change its protocol")
        parser_reader = getattr(connection._parser, "_reader", None)
        if parser_reader is not None and parser_reader.has_data():
            raise driver.ConnectionError("a reply was cut in two while connecting")
        leftover = bytes(reader._buffer)  # type: ignore[attr-defined]  # pushes that came early
        connection._reader = connection._writer = None
        return cls(writer, transport, leftover, protocol=protocol, database=database)

    def lost(self, error: Exception | None) -> None:
        """Tells the protocol that stood there before, which is what `wait_closed` waits for."""
        self._beneath.connection_lost(error)

    async def wait_closed(self) -> None:
        """Waits until the transport has closed."""
        await self._writer.wait_closed()


def arguments_of(pool: Connecting) -> dict[str, Any]:
    """The arguments of the pool's connections, but for those that send or connect again by themselves."""
    kept = {name: value for name, value in pool.connection_kwargs.items() if name not in _POOL_MATTERS}
    once = library_behind(pool).single_try()
    retry = {"retry": once, "retry_on_error": [], "retry_on_timeout": False}
    return {**kept, **retry, "health_check_interval": 0}


def close_now(connection: Any) -> None:
    """Closes a connection of redis-py without waiting; some versions have no method for it."""
    writer, connection._writer, connection._reader = connection._writer, None, None
    if writer is not None:
        writer.close()


async def cluster_slots(connection: Any) -> Any:
    await connection.send_command("CLUSTER", "SLOTS")
    return await connection.read_response(disable_decoding=True)


@final
class Executor:
    """Executes single requests, each once, over a few connections like those of a pool, beside it."""

    __slots__ = ("_library", "_pool")

    def __init__(self, pool: ConnectionPool) -> None:
        self._library = library_behind(pool)
        self._pool: Any = self._library.pool(connection_class=pool.connection_class, **arguments_of(pool))

    async def __call__(self, make: MakeWords) -> Any:
        try:
            opening = self._pool.get_connection(*self._library.for_command)
            connection = await connected(self._pool, opening)
        except (driver.RedisError, OSError, TimeoutError) as error:
            raise NotConnectedError(error) from error
        try:
            words = make()
            with self._library.errors():
                await connection.send_command(*words)
                return await connection.read_response(disable_decoding=True)
        finally:
            await self._pool.release(connection)

    async def aclose(self) -> None:
        await self._pool.aclose()


def error_of(text: str) -> Exception:
    """The exception for an error reply, of the same class whatever the version of redis-py."""
    code, _, rest = text.partition(" ")
    if code in _CLUSTER_ANSWERS:
        try:
            return _CLUSTER_ANSWERS[code](rest)
        except ValueError:  # as redis-py takes a redirect apart
            return UnreadableRedirectError(f"a redirect that cannot be read: {rest!r}")
    parse: Any = BaseParser.parse_error
    error: Exception = parse(text)
    return error


def reply_reader(not_enough: object, library: Library = REDIS) -> hiredis.Reader:
    """A parser of replies that gives bytes, and errors as exceptions of redis-py and of the library."""
    return hiredis.Reader(
        protocolError=driver.InvalidResponse,
        replyError=error_of if library is REDIS else lambda text: library.own(error_of(text)),
        notEnoughData=not_enough,
    )
