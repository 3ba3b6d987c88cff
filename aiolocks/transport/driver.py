"""The parts of redis-py's private side that the multiplexed connection needs, in one place.

redis-py opens the connection with the class and the arguments of the client's own pool, so that
credentials, TLS, Sentinel and the database are what the user set. Then its stream is taken over. These parts
are private: `_reader` and `_writer` of a connection, the stream's `_buffer`, and (in `replies`) the table of
error classes behind `BaseParser.parse_error`. `drivable` looks at the class beforehand, `RawConnection.open`
at the object; where either is not as expected, the client makes each request (`serial`).

redis-py 5.0.1 and later, and valkey-py: this module holds the differences between versions, and `libraries`
holds the names in which the two libraries differ.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import cache
from typing import Any, Final, Self, cast, final

import hiredis
import redis.exceptions as driver
from redis.asyncio.client import Redis

from . import faults
from .closed_loops import finalized
from .libraries import REDIS, Library, library_of
from .replies import PushNotification, Replies
from .request import Script, Words
from .tls import Connecting, connected

# -- The errors of redis-py that connections meet, by what they mean.

AnsweredError = driver.ResponseError
"""The server answered with an error."""
UnknownScriptError = driver.NoScriptError
"""The server does not know a script by its digest."""
UnreadableReplyError = driver.InvalidResponse
"""The bytes that came are no reply."""
BrokenError = driver.ConnectionError
"""There is no connection, or it has ended."""
UNANSWERED: Final = (driver.ConnectionError, driver.TimeoutError, OSError)
"""The errors after which it is not known whether the server has executed a request."""


def closed(why: str) -> Exception:
    """The end of a connection."""
    return driver.ConnectionError(why)


def silent(seconds: float) -> Exception:
    """The silence of a server, which may have lasted longer when a caller is told of it."""
    return driver.TimeoutError(f"no reply for {seconds:g} s or more")


CONNECT_TIMEOUT: Final = 5.0
"""Seconds for one attempt to connect; attempts go on for as long as a connection is needed."""
HELLO_TIMEOUT: Final = 1.0
"""Seconds for the answer to `HELLO 3`."""

# Maintenance pushes and caches are for the pool's connections, and none is of use to a lock.
_POOL_MATTERS: Final = (
    "cache_enabled",
    "client_cache",
    "maint_notifications_config",
    "maint_notifications_pool_handler",
)
# Its stub knows only tuples of one word.
pack: Final = cast("Callable[[Any], bytes]", hiredis.pack_command)
"""Makes the bytes of a request."""
FEW: Final = 10
"""Words from which on their number has two digits."""


def head_of(script: Script, keys: tuple[bytes, ...], args: Words) -> bytes:
    """The bytes of a request with so many arguments, fewer than `FEW`, up to the first of them."""
    whole = pack(("EVALSHA", script.sha, len(keys), *keys, *args))
    return whole[: len(whole) - len(pack(args)) + len(b"*n\r\n")]


_PIECE: Final = 65_536

Address = tuple[str, int]
Server = tuple[object, ...]
MakeWords = Callable[[], Words]
"""Makes the words of a request as late as possible: when there is a connection to write them to, but in a
cluster before the library connects to the node. Raises if the request must not be sent any more."""


class NotDrivableError(Exception):
    """The connection is not made of asyncio streams that can be taken over."""


class NoResp3Error(Exception):
    """The server has not agreed to RESP3. The text says how.

    Attributes:
        said: It said so in words. A connection that was closed, or silence, may have another cause.
        server: As `RawConnection.server`.
    """

    def __init__(self, how: str, *, said: bool, server: Server) -> None:
        super().__init__(how)
        self.said = said
        self.server = server


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
    """An authenticated stream to the server, taken out of redis-py's hands.

    Attributes:
        server: Where it leads. Behind Sentinel the next connection may lead to another server.
    """

    __slots__ = (
        "_beneath",
        "_reader",
        "_writer",
        "database",
        "leftover",
        "protocol",
        "replies",
        "server",
        "transport",
    )

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        transport: asyncio.Transport,
        replies: Replies,
        leftover: bytes,
        *,
        protocol: int,
        database: int,
        server: Server,
    ) -> None:
        # The writer is kept for as long as the transport: a collected writer closes it.
        self._reader = reader
        self._writer = writer
        finalized(asyncio.get_running_loop(), transport, _silenced(transport))
        self._beneath: Any = transport.get_protocol()
        self.transport = transport
        self.replies = replies
        self.leftover = leftover
        self.protocol = protocol
        self.database = database
        self.server = server

    @classmethod
    async def open(
        cls,
        pool: Connecting,
        *,
        protocol: int,
        patience: float = HELLO_TIMEOUT,
        named: bool = True,
        check_slots: Callable[[Any], object] | None = None,
    ) -> RawConnection:
        """Connects as the pool would, but not out of the pool: none of its places is taken.

        A connection with RESP2 is asked for a sign of life: the library may have asked nothing at all.

        Args:
            pool: Has the class of the connections, and their arguments.
            protocol: 2 or 3, whatever the client speaks.
            patience: Seconds for the answer to `HELLO 3`.
            named: Whether the library says by `CLIENT` what it is, and how the user calls the client.
            check_slots: Is given the table of slots that this node has, and raises if the node must not be
                used.

        Raises:
            NotDrivableError: The stream is not one of asyncio's.
            NoResp3Error: The server has not agreed to RESP3.
            ClosedBehindError: The connection has ended when the library had said by `CLIENT` what it is.
            redis.exceptions.RedisError, OSError, TimeoutError: As from redis-py; nothing is left open.
        """
        arguments = arguments_of(pool)
        library = library_behind(pool)
        arguments.update(protocol=protocol, decode_responses=False)
        if not named:
            arguments.update(library.nameless)
        connection: Any = pool.connection_class(**arguments)
        try:
            with _Handshake(connection, library, patience) as handshake, library.errors():
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    await connected(pool, handshake.done())
                    if check_slots is not None:
                        check_slots(await cluster_slots(connection))
            return cls._take_over(connection, handshake, int(arguments.get("db") or 0))
        finally:
            close_now(connection)  # does nothing once the stream was taken over

    @classmethod
    def _take_over(cls, connection: Any, handshake: _Handshake, database: int) -> RawConnection:
        reader, writer = connection._reader, connection._writer
        transport: Any = writer.transport
        if not hasattr(transport, "set_protocol"):
            raise NotDrivableError(f"{type(transport).__name__} cannot change its protocol")
        leftover = bytes(reader._buffer)  # pushes that came early
        connection._reader = connection._writer = None
        return cls(
            reader,
            writer,
            transport,
            handshake.replies,
            leftover,
            protocol=handshake.protocol,
            database=database,
            server=_server_of(connection),
        )

    async def answers(self, patience: float) -> bool:
        """Whether the server still answers in so many seconds; asked before it is driven, with RESP2."""
        try:
            async with asyncio.timeout(patience):
                self._writer.write(b"*1\r\n$4\r\nPING\r\n")
                return bool(await self._reader.readline())
        except (OSError, TimeoutError, ValueError):
            return False

    async def takes(self, words: Words, patience: float) -> bool:
        """Whether the server answers this, and not with an error; asked before it is driven."""
        try:
            async with asyncio.timeout(patience):
                self._writer.write(pack(words))
                return (await self._reader.readline())[:1] not in (b"", b"-")
        except (OSError, TimeoutError, ValueError):
            return False

    async def closes_on(self, words: Words, patience: float) -> bool:
        """Whether the server closes the connection right behind this; asked before it is driven."""
        try:
            async with asyncio.timeout(patience):
                self._writer.write(pack(words))
                return not await self._reader.read(1)
        except TimeoutError:
            return False
        except OSError:
            return True

    def lost(self, error: Exception | None) -> None:
        """Tells the protocol that stood there before, which is what `wait_closed` waits for."""
        self._beneath.connection_lost(error)

    def abort(self) -> None:
        """Closes it at once, also where the loop is closed; what was not sent is lost."""
        with suppress(RuntimeError):
            self.transport.abort()

    async def wait_closed(self) -> None:
        """Waits until the transport has closed."""
        await self._writer.wait_closed()


@final
class _Handshake:
    """What the library says on a new connection, and hears.

    This object reads the replies. The library's parsers do not know all that a server may send, and do not
    tell whether the answer to `HELLO 3` was a yes.

    Attributes:
        protocol: The version of RESP that the server speaks on it: 3 once it has agreed.
        replies: The reader of the connection, which it keeps.
    """

    def __init__(self, connection: Any, library: Library, patience: float) -> None:
        self.protocol = 2
        self._connection = connection
        self._send = connection.send_command
        self._library = library
        self._patience = patience
        self._stream: object = None
        self._heard: deque[Any] = deque()
        self._hello: tuple[Any, ...] = ()  # asked, and not answered yet
        self._naming = ""  # what was last asked by CLIENT, until the answer
        self.replies = Replies(library)

    def __enter__(self) -> Self:
        self._connection.send_command, self._connection.read_response = self._say, self._hear
        return self

    def __exit__(self, *_: object) -> None:
        # The connection and this object would keep each other alive.
        del self._connection.send_command, self._connection.read_response

    async def done(self) -> None:
        """Connects, and asks what the library asks.

        Raises:
            NoResp3Error: As `RawConnection.open`.
        """
        try:
            await self._connection.connect()
        except driver.ConnectionError as error:  # in which some ways of connecting wrap all that is raised
            own = (NoResp3Error, NotDrivableError, faults.ClosedBehindError)
            ours = next((link for link in faults.chain(error) if isinstance(link, own)), None)
            if ours is None:
                raise
            raise ours from None
        if self.protocol < 3:  # also where a `redis_connect_func` of the user's asks nothing
            await self._say("PING")
            try:
                await self._hear()
            except driver.ResponseError as error:
                if faults.refused(error).transient:
                    raise
        if self._heard:
            raise driver.InvalidResponse("a reply to nothing that was asked")

    async def _say(self, *words: Any, **options: Any) -> None:
        if words[0] == "HELLO":
            self._hello = words
        elif words[0] == "CLIENT":
            self._naming = f"CLIENT {words[1]}"
        try:
            await self._send(*words, **options)
        except (driver.ConnectionError, OSError) as error:
            if not self._naming:
                raise
            raise faults.ClosedBehindError(self._naming) from error

    async def _hear(self, *_: object, **__: object) -> Any:
        hello, self._hello = self._hello, ()
        try:
            reply = await (self._answer_to(hello) if hello else self._reply())
        except driver.ConnectionError as error:
            if not self._naming:
                raise
            raise faults.ClosedBehindError(self._naming) from error
        self._naming = ""
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def _answer_to(self, hello: tuple[Any, ...]) -> Any:
        try:
            async with asyncio.timeout(self._patience):
                reply = await self._reply()
        except TimeoutError:
            how = f"the server does not answer HELLO 3 within {self._patience:.2g} s"
        except driver.InvalidResponse:
            how = "the server answers HELLO 3 with what cannot be read"
        except driver.ConnectionError:
            how = "the server closes the connection on which HELLO 3 comes"
        else:
            if isinstance(reply, Exception):
                if not faults.refuses_hello(reply, with_credentials="AUTH" in hello):
                    return reply
                how = f"the server refuses HELLO 3: {faults.words_of(reply)}"
            elif not isinstance(reply, dict) or reply.get(b"proto", 3) != 3:
                how = "the server answers HELLO 3 without RESP3"
            else:
                self.protocol = 3
                return reply
            raise NoResp3Error(how, said=True, server=_server_of(self._connection))
        raise NoResp3Error(how, said=False, server=_server_of(self._connection))

    async def _reply(self) -> Any:
        reader = self._connection._reader
        if not isinstance(reader, asyncio.StreamReader) or not isinstance(
            self._connection._writer, asyncio.StreamWriter
        ):
            raise NotDrivableError(f"{type(self._connection).__name__} does not use asyncio's streams")
        if self._stream is not reader:  # of another server, behind Sentinel
            self._stream, self.replies, self.protocol = reader, Replies(self._library), 2
            self._heard.clear()
        while not self._heard:
            try:
                data = await reader.read(_PIECE)
            except OSError as error:
                raise driver.ConnectionError(f"Error while reading: {error}") from None
            if not data:
                raise driver.ConnectionError("Connection closed by server.")
            self._heard.extend(
                reply for reply in self.replies.read(data) if type(reply) is not PushNotification
            )
        return self._heard.popleft()


def arguments_of(pool: Connecting) -> dict[str, Any]:
    """The arguments of the pool's connections, changed so that none sends or connects again by itself."""
    kept = {name: value for name, value in pool.connection_kwargs.items() if name not in _POOL_MATTERS}
    once = library_behind(pool).single_try()
    retry = {"retry": once, "retry_on_error": [], "retry_on_timeout": False}
    return {**kept, **retry, "health_check_interval": 0}


def _server_of(connection: Any) -> Server:
    """What the library connects to: a name and a port, or the path of a socket."""
    return tuple(getattr(connection, name, None) for name in ("host", "port", "path"))


def close_now(connection: Any) -> None:
    """Closes a connection of redis-py without waiting; some versions have no method for it."""
    writer, connection._writer, connection._reader = connection._writer, None, None
    if writer is None:
        return
    try:
        writer.close()
    except RuntimeError:  # the loop is closed
        _silenced(writer.transport)()


def _silenced(transport: Any) -> Callable[[], object]:
    """Has a transport say nothing when it is collected, as the user has not opened it and cannot close it.

    Returns:
        Closes its socket, where the loop is closed: asyncio closes a transport by a call of its loop. It does
        not keep the transport.
    """
    beneath = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None) or transport
    if not type(beneath).__module__.startswith("asyncio."):  # uvloop closes what is open together with itself
        return bool
    for one in (transport, beneath):
        one.__class__ = _silent(cast("Hashable", type(one)))
    close: Callable[[], object] = beneath._sock.close
    return close


@cache
def _silent(of: Any) -> type:
    """The class of transports like these that say nothing."""

    def is_closing(transport: Any) -> bool:  # a writer warns otherwise
        loop = transport._loop
        return loop is None or loop.is_closed() or of.is_closing(transport)

    def say_nothing(_: object) -> None:
        pass

    members = {"__module__": of.__module__, "__del__": say_nothing, "is_closing": is_closing}
    return type(of.__name__, (of,), {"__slots__": (), **members})


async def cluster_slots(connection: Any) -> Any:
    await connection.send_command("CLUSTER", "SLOTS")
    # Its caller closes it, also where no loop runs any more.
    return await connection.read_response(disable_decoding=True, disconnect_on_error=False)


@final
class Executor:
    """Executes single requests, each once, over a few connections of its own, made like a pool's.

    They speak what the client's own connections speak, unless a protocol is given. If the pool has a method
    `fits`, only connections that it accepts are used.
    """

    __slots__ = ("__weakref__", "_fits", "_library", "_pool")

    def __init__(
        self, pool: Connecting, loop: asyncio.AbstractEventLoop, *, protocol: int | None = None
    ) -> None:
        self._library = library_behind(pool)
        arguments = arguments_of(pool)
        if protocol is not None:
            arguments["protocol"] = protocol
        self._pool: Any = self._library.pool(connection_class=pool.connection_class, **arguments)
        self._fits: Callable[[Any], bool] = getattr(pool, "fits", lambda _: True)
        finalized(loop, self, _close_pool, self._pool, loop)

    async def __call__(self, make: MakeWords) -> Any:
        try:
            while True:
                opening = self._pool.get_connection(*self._library.for_command)
                connection = await connected(self._pool, opening)
                if self._fits(connection):
                    break
                await connection.disconnect()
                await self._pool.release(connection)
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


def _close_pool(pool: Any, loop: asyncio.AbstractEventLoop) -> None:
    """Closes its connections if the loop is closed; else they are closed in order, by the loop."""
    if not loop.is_closed():
        return
    for connection in (*pool._available_connections, *pool._in_use_connections):
        close_now(connection)
