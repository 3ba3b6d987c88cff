"""States in which a server refuses what it is asked, each produced for real."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from aiolocks.testing import EmbeddedServer
from tests.adversity.tools import strangers
from tests.support.waiting import eventually


@dataclass(frozen=True)
class Trouble:
    """A state in which a server refuses.

    Attributes:
        lasting: Enter it, be in it, leave it.
        said: The text of the error about it.
        transient: Whether one who waits is expected to wait for its end.
        heals: Whether it may pass by itself all the same.
        hurts_holders: Whether renewals and releases are refused too.
        arguments: The options of the server.
    """

    name: str
    lasting: Callable[[Redis, EmbeddedServer], AbstractAsyncContextManager[None]]
    said: str
    transient: bool = True
    heals: bool = False
    hurts_holders: bool = True
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def configured(**settings: tuple[str, str]) -> Callable[..., AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lasting(admin: Redis, _: EmbeddedServer) -> AsyncIterator[None]:
        for name, (within, _behind) in settings.items():
            await admin.config_set(name.replace("_", "-"), within)
        try:
            yield
        finally:
            for name, (_within, behind) in settings.items():
                await admin.config_set(name.replace("_", "-"), behind)

    return lasting


@asynccontextmanager
async def unable_to_save(admin: Redis, server: EmbeddedServer) -> AsyncIterator[None]:
    directory = Path((await admin.config_get("dir"))["dir"])
    await admin.config_set("stop-writes-on-bgsave-error", "yes")
    shutil.rmtree(directory)
    with suppress(ResponseError):
        await admin.bgsave()
    await eventually(lambda: _last_save_failed(admin))
    try:
        yield
    finally:
        await admin.config_set("stop-writes-on-bgsave-error", "no")


async def _last_save_failed(admin: Redis) -> bool:
    return (await admin.info("persistence"))["rdb_last_bgsave_status"] == "err"


def replica(*, serving: bool) -> Callable[..., AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lasting(admin: Redis, _: EmbeddedServer) -> AsyncIterator[None]:
        await admin.config_set("replica-serve-stale-data", "yes" if serving else "no")
        await admin.execute_command("REPLICAOF", "127.0.0.1", "1")  # nobody is there
        try:
            yield
        finally:
            await admin.execute_command("REPLICAOF", "NO", "ONE")

    return lasting


@asynccontextmanager
async def busy(admin: Redis, server: EmbeddedServer) -> AsyncIterator[None]:
    async with server.client(socket_timeout=30) as client:
        looping = asyncio.create_task(client.eval("while true do end", 0))
        await eventually(lambda: _is_busy(admin))
        try:
            yield
        finally:
            await admin.script_kill()
            with suppress(RedisError):
                await looping


async def _is_busy(admin: Redis) -> bool:
    try:
        await admin.get("x")
    except ResponseError:
        return True
    return False


@asynccontextmanager
async def without_permission(admin: Redis, _: EmbeddedServer) -> AsyncIterator[None]:
    await admin.execute_command("ACL", "SETUSER", "default", "-@scripting")
    try:
        yield
    finally:
        await admin.execute_command("ACL", "SETUSER", "default", "+@all")


@asynccontextmanager
async def without_inner_permission(admin: Redis, _: EmbeddedServer) -> AsyncIterator[None]:
    await admin.execute_command("ACL", "SETUSER", "default", "-get")
    try:
        yield
    finally:
        await admin.execute_command("ACL", "SETUSER", "default", "+@all")


@asynccontextmanager
async def without_key_permission(admin: Redis, _: EmbeddedServer) -> AsyncIterator[None]:
    await admin.execute_command("ACL", "SETUSER", "default", "resetkeys", "~other:*")
    try:
        yield
    finally:
        await admin.execute_command("ACL", "SETUSER", "default", "allkeys")


async def is_loading(server: EmbeddedServer) -> bool:
    try:
        async with strangers(server, 1) as (stranger,):
            return b"LOADING" in await stranger.ask("PING")
    except OSError:  # it is not there yet
        return False


TROUBLES = [
    Trouble("MISCONF", unable_to_save, "cannot persist its data", arguments=("--save", "3600 1000000")),
    Trouble("NOREPLICAS", configured(min_replicas_to_write=("1", "0")), "fewer replicas"),
    Trouble("READONLY", replica(serving=True), "it is a replica"),
    Trouble("MASTERDOWN", replica(serving=False), "it is a replica"),
    Trouble("BUSY", busy, "a script has been running", arguments=("--lua-time-limit", "20")),
    Trouble(
        "OOM",
        configured(maxmemory=("1", "0")),
        "out of memory",
        transient=False,
        heals=True,
        hurts_holders=False,
    ),
    Trouble("NOPERM", without_permission, "this user may not", transient=False),
    Trouble("NOPERM inside", without_inner_permission, "this user may not", transient=False),
    Trouble("NOPERM for the key", without_key_permission, "this user may not", transient=False),
]
TRANSIENT = [trouble for trouble in TROUBLES if trouble.transient]
HEALING = [trouble for trouble in TROUBLES if trouble.transient or trouble.heals]

Setting = tuple[EmbeddedServer, Redis, Callable[[], AbstractAsyncContextManager[None]]]
"""A server, a client of it with its session connected, and the way into the trouble."""
