"""The page on workers, against what its readers start: those of four queues, and a server of Django."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from redis import Redis

from aiolocks.kinds.uniquejob import Mode
from aiolocks.sync import Session
from aiolocks.testing import EmbeddedServer
from tests.docs.markdown import read
from tests.docs.test_docs import ROOT, URL
from tests.docs.test_workers import SOON, stop
from tests.sync.conftest import held, wait_until

PAGE = read(ROOT / "docs/how-to/workers.md")


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


MORE = {
    "actors.py": """

@dramatiq.actor(time_limit=60_000)
def refresh(report: str) -> None:
    job = locks.uniquejob(name_of("refresh:{report}", report=report))
    with suppress(DuplicateJobError), job.run(waiting=1):
        stock.incr(f"refreshed:{report}")
""",
    "jobs.py": """
import time


@locks.lock("item:{item}", ttl=10, blocking_timeout=30)
def put(item: str) -> int:
    pieces = int(stock.get(f"pieces:{item}") or 0)
    time.sleep(0.01)  # two at a time would count one piece
    stock.set(f"pieces:{item}", pieces + 1)
    return pieces + 1


def refresh(report: str) -> str:
    try:
        with locks.uniquejob(name_of("refresh:{report}", report=report)).run(waiting=1):
            time.sleep(0.5)
            return "refreshed"
    except DuplicateJobError:
        return "another job will"
""",
    "shop_tasks.py": """
import time


@huey.task(timeout=60)
def refresh(report: str) -> str:
    try:
        with locks.uniquejob(name_of("refresh:{report}", report=report)).run(waiting=1):
            time.sleep(0.5)
            return "refreshed"
    except DuplicateJobError:
        return "another task will"
""",
}
"""What the page shows for Celery alone, and says of each queue."""


def write(directory: Path, name: str, url: str) -> None:
    """The file of the page, as its reader would, with more of the same kind."""
    (text,) = [block.text for block in PAGE.blocks if block.title == name]
    (directory / name).write_text(text.replace(URL, url) + MORE.get(name, ""))


@pytest.fixture
def module(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports a file of the page, as a producer does."""
    imported = []

    def module(name: str) -> Any:
        write(tmp_path, f"{name}.py", url)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
        imported.append(importlib.import_module(name))
        monkeypatch.setitem(sys.modules, name, imported[-1])
        return imported[-1]

    yield module
    for one in imported:
        one.locks.close()
        one.stock.close()


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
@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.more)])
def test_celery(url: str, tmp_path: Path, pool: str) -> None:
    with celery(tmp_path, url, pool) as app:
        put = [app.send_task("tasks.put", ["screw"]) for _ in range(20)]
        assert sorted(one.get(timeout=SOON) for one in put) == list(range(1, 21))
        assert app.send_task("tasks.ship", [17]).get(timeout=SOON) == "shipped"


@of_celery
def test_the_forms_of_a_unique_job_in_celery(
    url: str, locks: Session, module: Callable[[str], Any], tmp_path: Path
) -> None:
    tasks = module("tasks")
    with closing(tasks.app):
        shipped = [sent for sent in (tasks.order_shipped(17) for _ in range(3)) if sent is not None]
        replaced = locks.uniquejob("index:nail").enqueue("until_executing")
        newer = locks.uniquejob("index:nail").enqueue("until_executing", on_conflict="replace")
        indexed = [
            tasks.index.delay("nail", replaced),
            tasks.index.delay("nail", newer),
            tasks.changed("screw"),
        ]
        refreshes = [tasks.refresh.delay("sales") for _ in range(9)]
        tickets: dict[Mode, list[Any]] = {}
        for number, mode in enumerate(get_args(Mode)):
            ticket = locks.uniquejob(f"invoice:{number}").enqueue(mode)
            assert locks.uniquejob(f"invoice:{number}").enqueue(mode, on_conflict="skip") is None
            tickets[mode] = [tasks.invoice.delay(number, ticket) for _ in range(2)]  # delivered twice
        with celery(tmp_path, url, "prefork"):
            assert [sent.get(timeout=SOON) for sent in shipped] == ["sent"]  # by a retry with the same ticket
            assert [one.get(timeout=SOON) for one in indexed] == ["a later change will", "indexed", "indexed"]
            for number, (mode, sent) in enumerate(tickets.items()):
                assert sorted(one.get(timeout=SOON) for one in sent) == ["a duplicate", "sent"], mode
                more = locks.uniquejob(f"invoice:{number}").enqueue(mode, on_conflict="skip")
                assert (more is None) == (mode == "until_expired")
            assert 2 <= [one.get(timeout=SOON) for one in refreshes].count("refreshed") < 9


RETIRING = """
from celery import Celery
from aiolocks.sync import Session

app = Celery("tasks", broker="{url}/1", backend="{url}/1")
app.conf.worker_max_tasks_per_child = 1
locks = Session.from_url("{url}", prefix="shop")


@app.task
def keeps() -> None:
    for _ in range(3):  # the first use of a session is not kept
        with locks.lock("it", ttl=60, cache=20):
            pass
"""


@of_celery
def test_a_worker_of_celery_that_retires_releases_what_it_has_kept(
    url: str, redis: Redis, tmp_path: Path
) -> None:
    with celery(tmp_path, url, "prefork") as app:
        (tmp_path / "retiring.py").write_text(RETIRING.format(url=url))
        quick = ("--without-gossip", "--without-mingle", "--without-heartbeat")
        command = (
            "celery",
            "-A",
            "retiring",
            "worker",
            "--pool=prefork",
            "--concurrency=1",
            "-Q",
            "retiring",
        )
        with process(tmp_path, *command, *quick):
            app.send_task("retiring.keeps", queue="retiring").get(timeout=SOON)
            wait_until(lambda: not held(redis), within=5)


KILLED = """
import os, signal

from celery import Celery
from redis import Redis

from aiolocks.sync import Session

app = Celery("killed", broker="{url}/1", backend="{url}/1")
app.conf.task_acks_late = app.conf.task_reject_on_worker_lost = True
locks = Session.from_url("{url}", prefix="shop")


@app.task
def invoice(ticket: str) -> str:
    with locks.uniquejob("invoice:17", ttl=5).perform(ticket):
        if Redis.from_url("{url}").incr("begun") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return "sent"
"""


@of_celery
@pytest.mark.more
def test_a_task_of_celery_whose_process_is_killed_runs_again_with_its_ticket(
    url: str, redis: Redis, locks: Session, tmp_path: Path
) -> None:
    from celery import Celery

    (tmp_path / "killed.py").write_text(KILLED.format(url=url))
    quick = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    command = ("celery", "-A", "killed", "worker", "--pool=prefork", "--concurrency=2")
    app = Celery("killed", broker=f"{url}/1", backend=f"{url}/1")
    with closing(app), process(tmp_path, *command, *quick):
        ticket = locks.uniquejob("invoice:17").enqueue("until_executed")
        sent = app.send_task("killed.invoice", [ticket])
        wait_until(lambda: redis.get("begun") == b"2", within=SOON)
        assert sent.get(timeout=SOON) == "sent"


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


def test_unique_jobs_of_rq(url: str, redis: Redis, module: Callable[[str], Any], tmp_path: Path) -> None:
    from rq import Queue
    from rq.job import JobStatus

    jobs = module("jobs")
    queue = Queue(connection=redis)
    ended = (JobStatus.FINISHED, JobStatus.FAILED)
    shipped = [sent for sent in (jobs.order_shipped(queue, 17) for _ in range(3)) if sent is not None]
    with process(tmp_path, "rq.cli", "worker", "--url", url):
        wait_until(lambda: shipped[0].get_status(refresh=True) in ended, within=SOON)
        again = queue.enqueue("jobs.invoice", *shipped[0].args)
        refreshed = queue.enqueue("jobs.refresh", "sales")
        wait_until(lambda: refreshed.get_status(refresh=True) in ended, within=SOON)
    returned = [job.return_value(refresh=True) for job in (*shipped, again, refreshed)]
    assert returned == ["sent", "a duplicate", "refreshed"]


# What dramatiq's broker leaves open in this process, which is no worker.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_unique_jobs_of_dramatiq(
    url: str, redis: Redis, locks: Session, module: Callable[[str], Any], tmp_path: Path
) -> None:
    actors = module("actors")
    for _ in range(3):
        actors.order_shipped(17)
    with (
        process(tmp_path, "dramatiq", "actors", "--processes", "2", "--threads", "2"),
        Redis.from_url(f"{url}/1") as queue,
    ):
        with locks.uniquejob("refresh:sales").run():
            for _ in range(6):
                actors.refresh.send("sales")
            # One waits, and is not acknowledged; the others were duplicates.
            wait_until(lambda: not queue.llen("dramatiq:default") and in_work(queue) == 1, within=SOON)
            assert waiting_for(locks, "refresh:sales") == 1
        wait_until(lambda: redis.get("refreshed:sales") == b"1", within=SOON)

        with locks.uniquejob("refresh:stock").run():
            actors.refresh.send_with_options(args=("stock",), time_limit=1000, max_retries=0)
            wait_until(lambda: queue.zcard("dramatiq:default.XQ") == 1, within=SOON)  # it has failed
            wait_until(lambda: waiting_for(locks, "refresh:stock") == 0)
        assert redis.get("refreshed:stock") is None

        wait_until(lambda: redis.get("invoices:17") == b"1", within=SOON)
        assert redis.get("tries:17") == b"2"
        ticket = locks.uniquejob("invoice:18").enqueue("until_executed")
        actors.invoice.send(18, ticket)
        wait_until(lambda: redis.get("invoices:18") == b"1", within=SOON)
        actors.invoice.send(18, ticket)  # delivered again
        wait_until(lambda: not queue.llen("dramatiq:default") and not in_work(queue), within=SOON)
    assert redis.get("invoices:17") == redis.get("invoices:18") == b"1"
    assert redis.get("tries:18") == b"2"


def in_work(queue: Redis) -> int:
    """Messages that workers of dramatiq have fetched and not acknowledged, delayed ones included."""
    return sum(queue.scard(key) for key in queue.scan_iter("dramatiq:__acks__.*"))


def waiting_for(locks: Session, job: str) -> int:
    return sum(lock.waiters for lock in locks.inspect(job))


def test_unique_jobs_of_huey(
    url: str, redis: Redis, locks: Session, module: Callable[[str], Any], tmp_path: Path
) -> None:
    from huey.exceptions import TaskException

    tasks = module("shop_tasks")
    shipped = [sent for sent in (tasks.order_shipped(17) for _ in range(3)) if sent is not None]
    consumer = ("huey.bin.huey_consumer", "shop_tasks.huey", "-w", "3", "-k", "process", "-m", "0.1")
    with process(tmp_path, *consumer):
        refreshes = [tasks.refresh("sales") for _ in range(6)]
        outcomes = [one.get(blocking=True, timeout=SOON) for one in refreshes]
        assert 2 <= outcomes.count("refreshed") < 6
        wait_until(lambda: redis.get("tries:17") == b"2", within=SOON)  # its first try has a result too
        (sent,) = shipped
        again = tasks.invoice(17, sent.task.args[1])
        assert again.get(blocking=True, timeout=SOON) == "a duplicate"

        with locks.uniquejob("refresh:stock").run():
            ended = tasks.huey.enqueue(tasks.refresh.s("stock", timeout=1))
            with pytest.raises(TaskException, match="TaskTimeout"):
                ended.get(blocking=True, timeout=SOON)
            wait_until(lambda: waiting_for(locks, "refresh:stock") == 0)
        assert tasks.refresh("stock").get(blocking=True, timeout=SOON) == "refreshed"


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
            assert 1.5 < time.monotonic() - began < 20
        assert status() == 200


ASYNC_VIEWS = """
import asyncio, sys, threading

from django.conf import settings

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], DEBUG_PROPAGATE_EXCEPTIONS=True, SECRET_KEY="")

from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.test import RequestFactory
from django.urls import path

from aiolocks import Lock, Session

locks = Session.from_url(sys.argv[1])
inside, both = threading.Event(), threading.Barrier(2)


async def view(request, name):
    async with Lock(locks, name):
        inside.set()
        await asyncio.to_thread(both.wait)
        return HttpResponse("done")


urlpatterns = [path("<name>", view)]
application = get_wsgi_application()


def call(name):
    try:
        application(RequestFactory().get(f"/{name}").environ, lambda status, headers: None)
    except RuntimeError as error:
        print(error)
        both.wait()


threads = [threading.Thread(target=call, args=(name,)) for name in "ab"]
threads[0].start()
inside.wait()
threads[1].start()
for thread in threads:
    thread.join()
"""


def test_async_views_of_django_under_wsgi_are_told_what_to_do(url: str) -> None:
    program = [sys.executable, "-W", "ignore", "-c", ASYNC_VIEWS, url]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=30)
    assert "belongs to another event loop" in done.stdout, done.stderr
    assert "Django" in done.stdout
    assert "aiolocks.sync" in done.stdout
