"""The simulated server as a program: on real sockets, by the real clock, for tests that expect a server.

It takes the arguments of a `redis-server` that say where it listens and how it is set, and leaves the
others alone.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from tests.simulation.world.server.server import Server

VERSION = "7.2"
_SWEEP = 0.1


class _Socket(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        number = getattr(transport.get_extra_info("socket"), "fileno", int)()
        address = transport.get_extra_info("peername") or "unix:0"
        shown = (
            f"{address[0]}:{address[1]}"
            if isinstance(address, tuple)
            else f"{self._server.settings['path']}:{number}"
        )
        self._client = self._server.connect(transport.write, transport.close, shown)

    def data_received(self, data: bytes) -> None:
        self._server.feed(self._client, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.disconnected(self._client)


async def serve(arguments: list[str]) -> None:
    """Until it is killed."""
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    server = Server(lambda: time.time_ns() // 1000, run_id=os.urandom(20).hex(), version=f"{VERSION}.0")
    for name, value in given.items():
        if name.removeprefix("--") in server.settings:
            server.configure(name.removeprefix("--"), value)
    server.settings["path"] = path = given["--unixsocket"]
    loop = asyncio.get_running_loop()
    await loop.create_unix_server(lambda: _Socket(server), path)
    if (port := int(given.get("--port", "0"))) != 0:
        await loop.create_server(lambda: _Socket(server), given.get("--bind", "127.0.0.1"), port)
    while True:
        await asyncio.sleep(_SWEEP)
        server.sweep()


def program(path: Path) -> Path:
    """Writes a program that is this server; its process id stays."""
    root = Path(__file__).parents[3]
    path.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {sys.executable} -m {__name__} "$@"\n')
    path.chmod(0o755)
    return path


if __name__ == "__main__":
    if "--version" in sys.argv:
        print(f"Simulated server v={VERSION}.0")  # noqa: T201 - as the others answer
    else:
        asyncio.run(serve(sys.argv[1:]))
