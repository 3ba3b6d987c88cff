"""A master with replicas, and the Sentinel that watches them: one server may replace another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any, Self, final

from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel
from redis.exceptions import ResponseError

from aiolocks.testing import EmbeddedServer, ServerState
from aiolocks.testing.process import ServerProcess

SERVICE = "locks"
_DOWN_AFTER_MS = 300
_INFO_PERIOD_MS = 200
"""How often Sentinel asks servers for their replicas; 10 s would be its own."""
# A node that becomes the master sends its data to others at once.
_AT_ONCE = (
    *("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"),
    *(
        "--repl-diskless-load",
        "swapdb",
    ),  # Valkey 9 looks once a second whether what it loads to disk is there
)


@final
class SentinelServer(ServerProcess):
    """Sentinel; its configuration is a file, which it rewrites."""

    __slots__ = ("_configuration",)

    def __init__(self, configuration: Path) -> None:
        super().__init__(executable=None, port=0, password=False, arguments=(), startup_timeout=10.0)
        self._configuration = configuration

    def _command(self) -> list[str]:
        address = ("--port", str(self._port), "--bind", "127.0.0.1", "--unixsocket", str(self.path))
        return [str(self.executable), str(self._configuration), "--sentinel", *address]

    async def __aenter__(self) -> Self:
        with closing(self._launch()) as steps:
            for delay in steps:
                await asyncio.sleep(delay)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Replicated:
    """A master and its replicas, which have all that it has when this is entered.

    Args:
        executable: Of the servers; None for the one that comes with the library.
    """

    def __init__(self, *, replicas: int = 1, executable: Path | None = None) -> None:
        self._stack = AsyncExitStack()
        self.master, *self.replicas = [
            EmbeddedServer(executable=executable, port=0, password=False, arguments=_AT_ONCE)
            for _ in range(replicas + 1)
        ]

    @property
    def replica(self) -> EmbeddedServer:
        return self.replicas[0]

    def client(self, **kwargs: Any) -> Redis:
        """A client of the master."""
        return self.master.client(**kwargs)

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        await self._stack.enter_async_context(self.master)
        for server in self.replicas:
            replica = (await self._stack.enter_async_context(server)).client()
            await replica.execute_command("REPLICAOF", "127.0.0.1", self.master.port)
        for server in self.replicas:
            await until(_follows, server.client())
        # One that loads without a disk, as of `_AT_ONCE`, acknowledges nothing in the first second.
        master = self.master.client()
        await master.set("aiolocks.replicated", "", px=1000)
        await master.delete("aiolocks.replicated")
        await until(self._acknowledged, master)

    async def _acknowledged(self, master: Redis) -> bool:
        return bool(await master.execute_command("WAIT", len(self.replicas), 100) == len(self.replicas))

    async def cut_off_replica(self) -> None:
        """The replica will not learn of any change of the master from now on."""
        self.replica.pause()
        # Else it would read from its socket what was sent before the master died.
        await self.master.client().execute_command("CLIENT", "KILL", "TYPE", "replica")


@final
class Watched(Replicated):
    """They, and a Sentinel: a failover takes about half a second from when the master is gone.

    Args:
        directory: Where Sentinel keeps its configuration.
        failover_timeout: Seconds; a failover begins twice as long after the last one, at the earliest.
    """

    def __init__(self, directory: Path, *, replicas: int = 1, failover_timeout: float = 5.0) -> None:
        super().__init__(replicas=replicas)
        self._failover_timeout_ms = int(failover_timeout * 1000)
        self._configuration = directory / "sentinel.conf"
        self.sentinel = SentinelServer(self._configuration)

    def client(self, **kwargs: Any) -> Redis:
        """A client of whoever is the master."""
        sentinel = Sentinel([("127.0.0.1", self.sentinel.port)])
        for asked in sentinel.sentinels:
            self._stack.push_async_callback(asked.aclose)
        client: Redis = sentinel.master_for(SERVICE, **kwargs)
        self._stack.push_async_callback(client.aclose)
        return client

    async def failed_over(self) -> bool:
        """Whether Sentinel names another master, which is one."""
        port = await self._ask("get-master-addr-by-name", SERVICE)
        role = (await self.replica.client().info("replication"))["role"]
        return int(port[1]) == self.replica.port and role == "master"

    async def begin_again(self) -> None:
        """The old master comes back as the replica of the new one, with nothing but what that has."""
        self.master, self.replicas[0] = self.replica, self.master
        if self.replica.state is not ServerState.RUNNING:
            await self.replica.start()
        await self.replica.client().execute_command("REPLICAOF", "127.0.0.1", self.master.port)
        await until(_follows, self.replica.client())
        await self._ask("debug", "info-period", str(_INFO_PERIOD_MS))
        await until(self._knows_the_replicas, within=60)

    async def promote(self) -> None:
        """Has Sentinel replace the master, which lives on."""
        await self._ask("failover", SERVICE)
        await until(self.failed_over)

    async def try_promote(self) -> bool:
        """The same without waiting for its end; False where Sentinel is not ready for it."""
        try:
            await self._ask("failover", SERVICE)
        except ResponseError:
            return False
        return True

    async def _start(self) -> None:
        await super()._start()
        self._configuration.write_text(
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.master.port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} {_DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {SERVICE} {self._failover_timeout_ms}\n"
        )
        await self._stack.enter_async_context(self.sentinel)
        await until(self._knows_the_replicas)

    async def _knows_the_replicas(self) -> bool:
        """Whether Sentinel has found them, and found them well."""
        found = await self._ask("replicas", SERVICE)
        links = [_fields(replica)[b"master-link-status"] for replica in found]
        return links.count(b"ok") == len(self.replicas)

    async def _ask(self, *words: str) -> Any:
        async with Redis(port=self.sentinel.port or 0) as redis:
            return await redis.execute_command("SENTINEL", *words)


async def _follows(replica: Redis) -> bool:
    return bool((await replica.info("replication")).get("master_link_status") == "up")


def _fields(reply: Any) -> dict[bytes, Any]:
    """The fields that redis-py gives as a dict or, before version 6, as the server sent them."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


async def until(condition: Callable[..., Awaitable[bool]], *args: Any, within: float = 20.0) -> None:
    deadline = time.monotonic() + within
    while not await condition(*args):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited for {within} s: {condition.__name__}")
        await asyncio.sleep(0.02)
