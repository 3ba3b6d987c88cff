"""Tells when only one of client and server speaks TLS; connecting would just fail, or hang.

A server without TLS waits for the end of a line when it is sent a TLS handshake; a server with TLS closes a
connection that does not begin with one. Neither says why. So this module asks the address in the other way,
over a connection of its own, once an attempt has failed in such a manner or has been silent for a while.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

import redis.exceptions as driver

from .._tasks import empty_context
from .closed_loops import background
from .faults import ClosedBehindError, TlsMismatchError, chain
from .libraries import REDIS, library_of

T = TypeVar("T")

_SUSPICIOUS: Final = 0.5
"""Seconds without an answer after which a TLS handshake is looked into. The attempt goes on meanwhile."""
_PATIENCE: Final = 1.0
"""Seconds for the question in the other way."""
_answered: Final[WeakSet[Any]] = WeakSet()
"""The pools, and the clusters, of which a server has answered without TLS."""


class Connecting(Protocol):
    """A maker of connections: a pool, or the door to a node."""

    connection_class: Any
    connection_kwargs: Any


async def connected(door: Connecting, attempt: Coroutine[Any, Any, T]) -> T:
    """The result of an attempt to connect.

    Raises:
        TlsMismatchError: It fails, or would never end, because only one side speaks TLS.
        redis.exceptions.RedisError, OSError, TimeoutError: As the attempt does.
    """
    library = library_of(door.connection_class) or REDIS
    attempt = library.attempt(attempt)
    address = door.connection_kwargs.get("host"), door.connection_kwargs.get("port", 6379)
    if not address[0]:  # a unix socket, which has no TLS; or only Sentinel knows where
        return await attempt
    if issubclass(door.connection_class, library.ssl_connection):
        return await _encrypted(*address, attempt)
    alike = getattr(door, "cluster", door)  # of the nodes of a cluster, all speak TLS, or none does
    try:
        result = await attempt
    except ClosedBehindError:
        raise  # tried again without that question, and looked into then
    except (driver.ConnectionError, driver.InvalidResponse) as error:
        # A plain server answers no TLS handshake, so that the question takes its full time. Where it has
        # answered before, the next attempt must not wait for that: leases would end meanwhile.
        if alike in _answered or not _is_broken(error) or not await _speaks_tls(*address):
            raise
        raise TlsMismatchError(
            f"{address[0]}:{address[1]} speaks TLS, and this client does not: use rediss:// or ssl=True"
        ) from error
    _answered.add(alike)
    return result


async def _encrypted(host: str, port: int, attempt: Coroutine[Any, Any, T]) -> T:
    trying = background(asyncio.get_running_loop(), attempt, name="aiolocks-tls")
    trying.add_done_callback(hear_out, context=empty_context())
    try:
        await asyncio.wait((trying,), timeout=_SUSPICIOUS)
        suspicious = not trying.done() or (trying.exception() is not None and _is_broken(trying.exception()))
        if suspicious and await _speaks_plain_text(host, port):
            raise TlsMismatchError(
                f"{host}:{port} does not speak TLS, and this client does: use redis:// or leave out ssl=True"
            )
        return await trying
    finally:
        if not trying.done() and not trying.get_loop().is_closed():
            trying.cancel()
            await asyncio.wait((trying,))


def hear_out(trying: asyncio.Future[Any]) -> None:
    """For an attempt whose caller may have left: asyncio is not to say that its error was not looked at."""
    if not trying.cancelled():
        trying.exception()


async def mismatch(host: str, port: int, error: BaseException, *, encrypted: bool) -> TlsMismatchError | None:
    """Why an attempt to connect has failed so, if only one side speaks TLS.

    Args:
        host: Of the server.
        port: Of the server.
        error: Of the attempt; a `TimeoutError` if no answer came.
        encrypted: Whether the client speaks TLS.
    """
    if not isinstance(error, TimeoutError) and not _is_broken(error):
        return None
    if encrypted and await _speaks_plain_text(host, port):
        return TlsMismatchError(f"{host}:{port} does not speak TLS, and this client does")
    if not encrypted and await _speaks_tls(host, port):
        return TlsMismatchError(f"{host}:{port} speaks TLS, and this client does not")
    return None


def _is_broken(error: BaseException | None) -> bool:
    """Whether a connection was made, and then broke or carried something that cannot be read."""
    if isinstance(error, (driver.AuthenticationError, driver.BusyLoadingError)):
        return False  # an answer
    for link in chain(error):
        if isinstance(link, ssl.SSLCertVerificationError):
            return False
        if isinstance(link, (ConnectionResetError, BrokenPipeError, ssl.SSLError, driver.InvalidResponse)):
            return True
        if isinstance(link, driver.ConnectionError) and "closed by server" in str(link):
            return True
    return False


async def _speaks_plain_text(host: str, port: int) -> bool:
    """Whether a server there answers without TLS, be it with an error."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"PING\r\n")
                return await reader.read(1) in (b"+", b"-")
            finally:
                writer.close()
    return False


async def _speaks_tls(host: str, port: int) -> bool:
    """Whether a server there answers a TLS handshake, be it with an alert."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is told to it
    try:
        async with asyncio.timeout(_PATIENCE):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True
