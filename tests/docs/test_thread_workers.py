"""The page on threads, against what its readers start: workers of Celery and RQ, a server of Django."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from aiolocks.sync import Session
from aiolocks.testing import EmbeddedServer
from tests.docs.markdown import read
from tests.docs.test_docs import ROOT, URL
from tests.docs.test_workers import SOON, stop
from tests.sync.conftest import held, wait_until

PAGE = read(ROOT / "docs/how-to/threads.md")


@pytest.fixture(scope="module")
def running() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(port=0) as server:  # Celery and RQ know no path of a socket
        yield server


@pytest.fixture
def url(running: EmbeddedServer) -> str:
    """Without the number of a database, which the page adds."""
    url = running.url.removesuffix("/0")
    with Redis.from_url(url) as client:
        client.flushall()
    return url


@pytest.fixture
def redis(url: str) -> Iterator[Redis]:
    with Redis.from_url(url) as client:
        yield client


@pytest.fixture
def locks(url: str) -> Iterator[Session]:
    with Session.from_url(url, prefix="shop") as session:
        yield session


def write(directory: Path, name: str, url: str) -> None:
    """The file of the page, as its reader would."""
    (text,) = [block.text for block in PAGE.blocks if block.title == name]
    (directory / name).write_text(text.replace(URL, url))


@contextmanager
def process(directory: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A module of Python, run as a command."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(directory), str(ROOT)))}
    log = directory / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", *command],
            cwd=directory,
            env=environment,
            stdout=output,
            stderr=output,
        )
        try:
            yield worker
        except BaseException as error:
            error.add_note(log.read_text())
            raise
        finally:
            stop(worker)


@contextmanager
def celery(directory: Path, url: str, pool: str) -> Iterator[Any]:
    """A worker of Celery, and the application that sends it tasks."""
    from celery import Celery

    write(directory, "tasks.py", url)
    app = Celery("tasks", broker=f"{url}/1", backend=f"{url}/1")
    try:
        quick = ("--without-gossip", "--without-mingle", "--without-heartbeat")  # it waits for other workers
        command = ("celery", "-A", "tasks", "worker", f"--pool={pool}", "--concurrency=3")
        with process(directory, *command, *quick):
            yield app
    finally:
        app.close()


# What celery itself does while it is used in this process, and not in a worker.
of_celery = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@of_celery
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_celery(url: str, tmp_path: Path, pool: str) -> None:
    with celery(tmp_path, url, pool) as app:
        put = [app.send_task("tasks.put", ["screw"]) for _ in range(20)]
        assert sorted(one.get(timeout=SOON) for one in put) == list(range(1, 21))
        assert app.send_task("tasks.ship", [17]).get(timeout=SOON) == "shipped"


@of_celery
def test_a_soft_time_limit_of_celery(url: str, redis: Redis, locks: Session, tmp_path: Path) -> None:
    from celery.exceptions import SoftTimeLimitExceeded

    with celery(tmp_path, url, "prefork") as app:
        with locks.lock("order:18"):
            ended = app.send_task("tasks.ship", [18], soft_time_limit=1)
            wait_until(lambda: any("bell" in key for key in held(redis)), within=SOON)
            with pytest.raises(SoftTimeLimitExceeded):
                ended.get(timeout=SOON)
            wait_until(lambda: held(redis) == ["shop:lock:{order:18}"])
        assert app.send_task("tasks.ship", [18]).get(timeout=SOON) == "shipped"


def test_rq(url: str, redis: Redis, locks: Session, tmp_path: Path) -> None:
    from rq import Queue
    from rq.job import JobStatus

    write(tmp_path, "jobs.py", url)
    queue = Queue(connection=redis)

    def result(job: Any) -> Any:
        wait_until(
            lambda: job.get_status(refresh=True) in (JobStatus.FINISHED, JobStatus.FAILED), within=SOON
        )
        return job.return_value(refresh=True)

    with (
        process(tmp_path, "rq.cli", "worker", "--url", url),
        process(tmp_path, "rq.cli", "worker", "--url", url),
    ):
        put = [queue.enqueue("jobs.put", "screw") for _ in range(6)]
        assert sorted(result(one) for one in put) == list(range(1, 7))
        with locks.lock("item:screw"):
            ended = queue.enqueue("jobs.put", "screw", job_timeout=1)
            assert result(ended) is None
            assert "JobTimeoutException" in str(ended.latest_result().exc_string)
            wait_until(
                lambda: [key for key in held(redis) if key.startswith("shop:")] == ["shop:lock:{item:screw}"]
            )
        assert result(queue.enqueue("jobs.put", "screw")) == 7


SETTINGS = """
from django.urls import path

DEBUG = True
SECRET_KEY = "-"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "urls"
"""
URLS = """
from django.urls import path

import views

urlpatterns = [path("labels/<int:order_id>", views.label)]
"""


def test_django(url: str, locks: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "views.py", url)
    (tmp_path / "settings.py").write_text(SETTINGS)
    (tmp_path / "urls.py").write_text(URLS)
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "settings")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def status() -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/labels/17", timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    with process(tmp_path, "django", "runserver", str(port), "--noreload"):
        wait_until(lambda: status() == 200, within=SOON)
        with locks.lock("order:17"):
            began = time.monotonic()
            assert status() == 423
            assert 1.5 < time.monotonic() - began < 5
        assert status() == 200
