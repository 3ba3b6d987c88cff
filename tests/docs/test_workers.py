"""The pages on queues, against the workers that their readers start: processes, several of them.

The programs that the pages show in one piece are run with the other pages.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import UniqueJob
from aiolocks.testing import EmbeddedServer
from tests.docs.markdown import read
from tests.docs.test_docs import ROOT, URL
from tests.support.waiting import eventually

SOON = 30.0
"""Seconds within which a worker has started, and has done what is in its queue."""


@pytest.fixture
def running() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def module(running: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Writes the file that a page shows, as its reader would, and imports it."""

    def module(page: str, file: str) -> Any:
        blocks = read(ROOT / "docs" / "how-to" / f"{page}.md").blocks
        (text,) = [block.text for block in blocks if block.title == file]
        (tmp_path / file).write_text(text.replace(URL, running.url))
        name = file.removesuffix(".py")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
        imported = importlib.import_module(name)
        monkeypatch.setitem(sys.modules, name, imported)
        return imported

    return module


@contextmanager
def workers(directory: Path, number: int, *command: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """That number of processes of a command of Python; they end with the block, as a deployment ends them."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(directory), str(ROOT)))}
    log = directory / "workers.log"
    with log.open("wb") as output:
        crew = [
            subprocess.Popen(
                [sys.executable, "-m", *command], cwd=directory, env=environment, stdout=output, stderr=output
            )
            for _ in range(number)
        ]
        try:
            yield crew
        except BaseException as error:
            error.add_note(log.read_text())
            raise
        finally:
            for worker in crew:
                stop(worker)


def stop(worker: subprocess.Popen[bytes]) -> None:
    """As a supervisor does. A worker may swallow the signal: that is not for this test to find."""
    for end in (worker.terminate, worker.terminate, worker.kill):
        end()
        with suppress(subprocess.TimeoutExpired):
            worker.wait(1)
            return
    worker.wait()


async def result(job: Any) -> Any:
    """Of a job of arq, which does not find it if it ends right between its two questions."""
    from arq.jobs import ResultNotFound

    with suppress(ResultNotFound):
        return await job.result(timeout=SOON, poll_delay=0.05)
    return (await job.result_info()).result


@pytest.mark.long
async def test_arq(module: Callable[..., Any], tmp_path: Path) -> None:
    from arq import create_pool

    jobs = module("workers", "arq_jobs.py")
    pool = await create_pool(jobs.settings)
    try:
        with workers(tmp_path, 3, "arq", "arq_jobs.WorkerSettings") as crew:
            refreshes = [await pool.enqueue_job("refresh", "sales") for _ in range(20)]
            shipped = await asyncio.gather(*(jobs.order_shipped(pool, 17) for _ in range(10)))
            (invoice,) = [job for job in shipped if job is not None]
            outcomes = [await result(job) for job in refreshes]
            assert 2 <= outcomes.count("refreshed") < 10
            assert await result(invoice) == "sent"

            info = await invoice.info()
            again = await pool.enqueue_job("invoice", *info.args)  # the queue delivers it again
            assert await result(again) == "done before"
            more = await jobs.order_shipped(pool, 17)
            assert more is not None  # the key is free
            await result(more)  # a worker of arq that is stopped while one job ends lets go of no other

            # A worker that is stopped in the midst of a job leaves it to the others.
            last = await pool.enqueue_job("refresh", "stock")
            await eventually(lambda: is_running(pool, "refresh:stock"), within=SOON)
            for worker in crew[1:]:
                worker.send_signal(signal.SIGTERM)
            assert await result(last) == "refreshed"
    finally:
        await jobs.locks.aclose()
        await pool.aclose(close_connection_pool=True)


async def is_running(redis: Redis, key: str) -> bool:
    return bool(await redis.exists(f"shop:uniquejob:{{{key}}}"))


@pytest.mark.long
async def test_taskiq(module: Callable[..., Any], tmp_path: Path) -> None:
    tasks = module("workers", "taskiq_tasks.py")
    await tasks.broker.startup()
    try:
        with workers(tmp_path, 1, "taskiq", "worker", "taskiq_tasks:broker", "--workers", "2"):
            refreshes = [await tasks.refresh.kiq("sales") for _ in range(20)]
            shipped = await asyncio.gather(*(tasks.order_shipped(17) for _ in range(10)))
            (sent,) = [task for task in shipped if task is not None]
            outcomes = [(await task.wait_result(timeout=SOON)).return_value for task in refreshes]
            assert 2 <= outcomes.count("refreshed") < 10
            assert (await sent.wait_result(timeout=SOON)).return_value == "sent"

            job = UniqueJob(tasks.locks, "invoice:18")
            ticket = await job.enqueue("until_executed")
            twice = [await tasks.invoice.kiq(18, ticket) for _ in range(2)]
            outcomes = [(await task.wait_result(timeout=SOON)).return_value for task in twice]
            assert sorted(outcomes) == ["done before", "sent"]
    finally:
        await tasks.broker.shutdown()
