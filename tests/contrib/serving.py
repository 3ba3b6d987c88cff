"""Web servers, in this process and in others, and what real clients do to them."""

from __future__ import annotations

import asyncio
import importlib
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self

import uvicorn
from aiohttp import web

from tests.docs.markdown import read
from tests.docs.test_docs import ROOT, URL
from tests.support.processes import tell
from tests.support.waiting import eventually


def example(page: str, name: str, url: str, directory: Path) -> None:
    """Write a file of a how-to, as its reader would, for the server at `url`."""
    (block,) = [block for block in read(ROOT / "docs/how-to" / page).blocks if block.title == name]
    (directory / name).write_text(block.text.replace(URL, url), encoding="utf-8")


def python_of(page: str, first: str, url: str) -> str:
    """The Python of a how-to from the block of this title on, for the server at `url`."""
    blocks = read(ROOT / "docs/how-to" / page).blocks
    blocks = blocks[[block.title for block in blocks].index(first) :]
    return "\n".join(block.text for block in blocks if block.language == "python").replace(URL, url)


# -- FastAPI


class _Uvicorn(uvicorn.Server):
    stopping: asyncio.Event

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they are the tests'

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.stopping.wait()  # uvicorn's own looks ten times a second


@asynccontextmanager
async def uvicorn_serves(app: Any) -> AsyncIterator[str]:
    """uvicorn, on a free port; its URL."""
    listening = _listening()
    config = uvicorn.Config(
        app, log_config=None, log_level="critical", lifespan="on", timeout_graceful_shutdown=5
    )
    server = _Uvicorn(config)
    server.stopping = asyncio.Event()
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await eventually(lambda: server.started or serving.done(), within=10)
        assert server.started, "it did not start"
        yield _url(listening)
    finally:
        server.stopping.set()
        await serving
        listening.close()


async def uvicorn_worker(directory: str) -> None:
    """In a process of its own: the example."""
    sys.path.insert(0, directory)
    async with uvicorn_serves(importlib.import_module("shop").app) as url:
        tell("serves", url=url)
        await asyncio.Event().wait()


# -- aiohttp


@asynccontextmanager
async def aiohttp_serves(app: web.Application, **options: Any) -> AsyncIterator[str]:
    """aiohttp's own server, on a free port; its URL."""
    listening = _listening()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=5, **options)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        yield _url(listening)
    finally:
        await runner.cleanup()


async def aiohttp_worker(directory: str) -> None:
    """In a process of its own: the example."""
    sys.path.insert(0, directory)
    async with aiohttp_serves(importlib.import_module("shop").make_app()) as url:
        tell("serves", url=url)
        await asyncio.Event().wait()


def _listening() -> socket.socket:
    # Said to be TCP: asyncio sends small writes without delay only if the socket knows that it is.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)
    listening.setblocking(False)
    return listening


def _url(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


# -- clients


class HalfClient:
    """A client that sends a request and does not wait for the answer.

    Args:
        url: Of the server.
        request: The first line that it sends, as `"POST /orders/7"`.
        body: The length that the request announces.
        sent: How much of that it sends.
    """

    def __init__(self, url: str, request: str, *, body: bytes | None = None, sent: int | None = None) -> None:
        self._host, _, self._port = url.removeprefix("http://").partition(":")
        lines = [f"{request} HTTP/1.1", "Host: test", "Content-Type: application/json"]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        self._sends = ("\r\n".join([*lines, "", ""])).encode() + (body or b"")[:sent]

    async def __aenter__(self) -> Self:
        self.reader, self._writer = await asyncio.open_connection(self._host, int(self._port))
        self.send(self._sends)
        return self

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def hang_up(self) -> None:
        self._writer.transport.abort()

    async def status(self) -> int:
        """That of the answer, if it waits for it after all."""
        return int((await self.reader.readline()).split()[1])

    async def __aexit__(self, *_: object) -> None:
        self.hang_up()
