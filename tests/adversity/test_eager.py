"""`asyncio.eager_task_factory`: a task of the user begins where it is made, and none of the library does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from fastapi import FastAPI
from redis.asyncio import Redis

from aiolocks import BackendError, Lock, Session, SingleFlight
from aiolocks.contrib.fastapi import session_lifespan
from aiolocks.testing import EmbeddedServer
from tests.conftest import OwnServer
from tests.support.waiting import eventually

FACTORY: Any = getattr(asyncio, "eager_task_factory", None)

pytestmark = pytest.mark.skipif(FACTORY is None, reason="tasks begin eagerly from Python 3.12 on")


@pytest.fixture
async def eager() -> Any:
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(FACTORY)
    yield
    loop.set_task_factory(before)


@pytest.mark.usefixtures("eager")
async def test_what_runs_beside_an_application_begins(redis: Redis) -> None:
    calls: list[str] = []

    async def sweep(session: Session) -> None:
        task = asyncio.current_task()
        calls.append("" if task is None else task.get_name())
        await asyncio.sleep(60)

    def at_once(session: Session) -> Any:
        return sweep_once()

    async def sweep_once() -> None:
        calls.append("once")

    app = FastAPI(lifespan=session_lifespan(redis, background=[sweep, at_once]))
    async with app.router.lifespan_context(app):
        await eventually(lambda: len(calls) == 2)
    assert "once" in calls
    assert any("sweep" in name for name in calls)


@pytest.mark.usefixtures("eager")
async def test_a_session_on_a_unix_socket_comes_back_after_an_outage(own_server: OwnServer) -> None:
    server: EmbeddedServer = await own_server()
    client = Redis(unix_socket_path=str(server.path))
    async with client, Session(client, command_timeout=5) as session:
        async with Lock(session, "a"):
            pass
        server.kill()
        for _ in range(5):
            with pytest.raises(BackendError):
                await Lock(session, "a").try_acquire()
            await asyncio.sleep(0.02)
        connecting = [task for task in asyncio.all_tasks() if task.get_name() == "aiolocks-connect"]
        assert len(connecting) <= 1
        await server.restart()
        async with Lock(session, "a", blocking_timeout=5):
            pass


@pytest.mark.usefixtures("eager")
async def test_the_tasks_of_the_library_have_their_names_from_the_first_step_on(redis: Redis) -> None:
    async def name() -> str:
        task = asyncio.current_task()
        assert task is not None
        return task.get_name()

    async with Session(redis) as session:
        assert await SingleFlight(session).do("a", name) == "aiolocks-singleflight-'a'"


@pytest.fixture
def program(tmp_path: Any) -> Any:
    def run(body: str) -> subprocess.CompletedProcess[bytes]:
        path = tmp_path / "program.py"
        path.write_text(body)
        return subprocess.run([sys.executable, str(path)], check=False, capture_output=True, timeout=30)

    return run


def test_what_ends_a_program_in_a_run_of_a_combiner_ends_it(program: Any) -> None:
    done = program(
        """
import asyncio, sys
from aiolocks import Combiner
from aiolocks.testing import EmbeddedServer

async def main():
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    with EmbeddedServer() as server:
        client = server.client()
        async def run(batch):
            sys.exit(3)
        await Combiner(client, "a").submit(1, run)

asyncio.run(main())
"""
    )
    assert done.returncode == 3, done.stderr.decode()
