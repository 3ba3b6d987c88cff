"""The server behind `aiolocks ui`: uvicorn, for the length of the command."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import click
import uvicorn

from ..._tasks import spawn
from ...contrib.dashboard import ReleaseRequest, app
from ..exits import NO_SERVER, CommandError, ended_by_signal, of_signal, say
from ..listing.asking import asking

_UNWINDING: Final = 1
"""Seconds that a shutdown waits for answers that are under way."""


async def serve(url: str, prefix: str, host: str, port: int, *, allow_release: bool) -> int:
    """Serves until a signal comes; the exit status."""
    ended = ended_by_signal()
    async with asking(url, prefix) as session:
        await session.inspect("-")  # says at once what the user may not do
        with _listening(host, port) as listening:
            names = {host, "localhost", socket.gethostname()}
            dashboard = app(session, _allowed if allow_release else None, hosts=names)
            server = _Server(
                uvicorn.Config(
                    dashboard,
                    access_log=False,
                    lifespan="off",
                    log_config=None,
                    log_level="critical",
                    server_header=False,
                    timeout_graceful_shutdown=_UNWINDING,
                    ws="none",
                )
            )
            serving = spawn(
                asyncio.get_running_loop(),
                server.serve(sockets=[listening]),
                name="aiolocks-ui",
                context=None,
            )
            click.echo(f"{_url(listening)} shows the locks of the prefix {prefix}; Ctrl-C ends it")
            either: list[asyncio.Future[Any]] = [ended, serving]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            await dashboard.aclose()
            server.should_exit = True
            await serving
    return 0 if not ended.done() or ended.result() == signal.SIGINT else of_signal(ended.result())


def _allowed(request: ReleaseRequest) -> bool:
    """Each user of this machine that can open the page may."""
    say(f"{request.kind} {request.name!r} is released by force")
    return True


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """They are the command's."""
        yield


@contextmanager
def _listening(host: str, port: int) -> Generator[socket.socket]:
    """The socket that is served.

    Raises:
        CommandError: It cannot listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
        except OSError as error:
            reason = error.strerror or error
            raise CommandError(f"cannot listen on {host} port {port}: {reason}", NO_SERVER) from None
        listening.listen(128)
        listening.settimeout(0)  # as a loop wants it
        yield listening


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
