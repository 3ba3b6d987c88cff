"""Twemproxy, where it is installed (its program is `nutcracker`), in front of one server or several."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.support.servers import Server


@contextlib.asynccontextmanager
async def running_nutcracker(servers: Sequence[Server]) -> AsyncIterator[int]:
    """A proxy that distributes keys by their hash tags; gives its port. Skips where it is not installed."""
    program = shutil.which("nutcracker", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("nutcracker is not installed (apt-get install nutcracker)")
    with tempfile.TemporaryDirectory(prefix="aiolocks-nutcracker-") as directory:
        port, statistics = free_ports()
        settings = Path(directory) / "nutcracker.yml"
        members = "".join(f"\n   - 127.0.0.1:{server.port}:1" for server in servers)
        settings.write_text(f"""
pool:
  listen: 127.0.0.1:{port}
  hash: fnv1a_64
  hash_tag: "{{}}"
  distribution: ketama
  auto_eject_hosts: false
  redis: true
  servers:{members}
""")
        log, pid = Path(directory) / "log", Path(directory) / "pid"
        arguments = ("-c", settings, "-o", log, "-p", pid, "-a", "127.0.0.1", "-s", str(statistics))
        async with running(program, *arguments, port=port):
            yield port


@contextlib.asynccontextmanager
async def running(program: str, *arguments: str | Path, port: int) -> AsyncIterator[None]:
    """The process of a proxy, from when it accepts connections; killed at the end."""
    process = await asyncio.create_subprocess_exec(
        program, *arguments, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await _listens(port, process)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def free_ports() -> tuple[int, int]:
    """Two ports that are free now."""
    with socket.socket() as one, socket.socket() as other:
        for free in (one, other):
            free.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


async def _listens(port: int, process: asyncio.subprocess.Process) -> None:
    """Returns when the program accepts connections."""
    async with asyncio.timeout(10):
        while process.returncode is None:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.01)
    raise AssertionError(f"the proxy has ended with {process.returncode}")
