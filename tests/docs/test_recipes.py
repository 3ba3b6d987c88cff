"""The recipes for tasks beside the requests, in several processes: the work goes on after each fault.

The blocks of the pages are what runs; only their times are shorter, and their work is a file that it writes.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from aiolocks.testing import EmbeddedServer
from tests.conftest import OwnServer
from tests.docs.markdown import read
from tests.docs.test_docs import ROOT, URL
from tests.support.processes import Workers
from tests.support.waiting import eventually

TTL = 2.0
WORK = """
import os, pathlib

HERE = pathlib.Path(__file__).parent

def work():
    try:
        (HERE / f"break-{os.getpid()}").unlink()
    except FileNotFoundError:
        (HERE / f"done-{os.getpid()}").touch()
    else:
        raise ZeroDivisionError("in the work of the user")
"""


async def serve(directory: str, module: str, name: str) -> None:
    """In a process of its own: the application, and its log in a file."""
    import importlib
    import logging
    import os
    import sys

    from aiohttp import web

    logging.basicConfig(filename=f"{directory}/log-{os.getpid()}", level=logging.INFO)
    sys.path.insert(0, directory)
    app = getattr(importlib.import_module(module), name)
    if isinstance(app, web.Application):
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        await asyncio.sleep(600)
    else:
        import uvicorn

        await uvicorn.Server(uvicorn.Config(app, port=0, log_config=None)).serve()


RECIPES = [
    ("fastapi", "sweeper.py", "app"),
    ("aiohttp", "sweeper.py", "app"),
    ("leadership", "fastapi_app.py", "app"),
    ("leadership", "aiohttp_app.py", "application"),
]
SHORTER = {
    "...  # remove old carts": '__import__("work").work()',
    "await asyncio.sleep(60)": "await asyncio.sleep(0.05)",
    "await asyncio.sleep(1)  # the work": '__import__("work").work(); await asyncio.sleep(0.05)',
    'Lock(session, "sweep")': f'Lock(session, "sweep", ttl={TTL})',
    '-scheduler")': f'-scheduler", ttl={TTL})',
}


def written(page: str, file: str, directory: Path, url: str) -> str:
    """The block of the page as a module; its name."""
    blocks = read(ROOT / "docs" / "how-to" / f"{page}.md").blocks
    (text,) = [block.text for block in blocks if block.title == file]
    changed = text.replace(URL, url)
    for shown, shorter in SHORTER.items():
        changed = changed.replace(shown, shorter)
    assert changed.count("work()") == 1
    assert f"ttl={TTL}" in changed
    (directory / file).write_text(changed)
    (directory / "work.py").write_text(WORK)
    return file.removesuffix(".py")


class Crew:
    """The processes, seen by what they write."""

    def __init__(self, directory: Path, pids: list[int]) -> None:
        self.directory = directory
        self.pids = pids

    def at_work(self, since: float) -> int | None:
        """The process that has worked since then."""
        for pid in self.pids:
            done = self.directory / f"done-{pid}"
            if done.exists() and done.stat().st_mtime > since:
                return pid
        return None

    async def works(self, within: float) -> int:
        """Somebody works from now on."""
        since = time.time()
        return await eventually(lambda: self.at_work(since), within=within) or 0

    def log(self, pid: int) -> str:
        return (self.directory / f"log-{pid}").read_text()


@pytest.mark.leaves_keys  # of processes that are killed
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("page", "file", "name"), RECIPES, ids=lambda it: it.removesuffix(".py"))
async def test_the_work_goes_on(
    page: str, file: str, name: str, own_server: OwnServer, workers: Workers, tmp_path: Path
) -> None:
    server: EmbeddedServer = await own_server()
    module = written(page, file, tmp_path, server.url)
    processes = await workers.start_many(2, serve, directory=str(tmp_path), module=module, name=name)
    crew = Crew(tmp_path, [process.pid for process in processes])
    await crew.works(within=30)

    # The server is away for 3 s, which is longer than the ttl.
    server.kill()
    await asyncio.sleep(3)
    await server.start()
    await crew.works(within=10)

    # The work raises.
    holder = await crew.works(within=5)
    (tmp_path / f"break-{holder}").touch()
    await eventually(lambda: "in the work of the user" in crew.log(holder), within=5)
    assert "ERROR" in crew.log(holder)
    assert ("sweep" if "sweeper" in file else "-scheduler'") in crew.log(holder)
    await crew.works(within=10)

    # The server is frozen for 3 s.
    server.pause()
    await asyncio.sleep(3)
    server.resume()
    await crew.works(within=10)

    # The process is killed that works.
    holder = await crew.works(within=5)
    killed: Any = processes[crew.pids.index(holder)]
    killed.kill()
    crew.pids.remove(holder)
    await asyncio.sleep(0.1)
    await crew.works(within=TTL + 10)
