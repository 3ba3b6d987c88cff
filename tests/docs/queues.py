"""What queues' own locks do when a worker is killed: `python -m tests.docs.queues` writes the table again.

It needs the group `queues`, and no test calls it: what the queues do is theirs. Each row comes from a run
with a worker in processes of its own, on a server of its own. The first job is killed, with all processes of
its worker, while it runs; another worker starts, and each second another job of the same key is sent.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from redis import Redis

from aiolocks.testing import EmbeddedServer

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/workers.md"
BEGIN, END = "<!-- kills -->\n", "<!-- /kills -->"
WATCHED = 150
"""Seconds after the kill."""

_COMMON = """
import os, time
from redis import Redis
from aiolocks import DuplicateJobError
from aiolocks.sync import Session

url = os.environ["URL"]
log = Redis.from_url(f"{url}/2")
locks = Session.from_url(f"{url}/3")


def work(number):
    log.rpush("begun", number)
    if number == 1 and log.incr("first") == 1:
        time.sleep(600)
"""
_CELERY = f"""{_COMMON}
from celery import Celery
from celery_once import QueueOnce
from celery_singleton import Singleton

app = Celery("module", broker=f"{{url}}/0", backend=f"{{url}}/0")
app.conf.ONCE = {{"backend": "celery_once.backends.Redis", "settings": {{"url": f"{{url}}/0"}}}}
app.conf.broker_transport_options = {{"visibility_timeout": 10}}
app.conf.task_acks_late = bool(os.environ.get("LATE"))
"""
_DRAMATIQ = f"""{_COMMON}
import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.rate_limits import ConcurrentRateLimiter
from dramatiq.rate_limits.backends import RedisBackend

dramatiq.set_broker(RedisBroker(url=f"{{url}}/0", heartbeat_timeout=10_000, maintenance_chance=1_000_000))
"""
_HUEY = f"""{_COMMON}
from huey import RedisHuey

huey = RedisHuey("module", url=f"{{url}}/0")
"""
_RQ = f"""{_COMMON}
from rq import Queue, Retry

queue = Queue(connection=Redis.from_url(f"{{url}}/0"))
"""

_WORKERS = {
    "celery": ("celery", "-A", "module", "worker", "--concurrency=2", "-l", "critical"),
    "dramatiq": ("dramatiq", "module", "--processes=1", "--threads=2"),
    "huey": ("huey.bin.huey_consumer", "module.huey", "-w", "2", "-k", "process"),
    "rq": (
        "rq.cli",
        "worker",
        "-q",
        "--maintenance-interval=5",
        "--job-monitoring-interval=5",
        "--worker-ttl=30",
    ),
}


class Row(NamedTuple):
    """One way to have one job of a key.

    Attributes:
        packages: The queue, and what is beside it.
        own: What the row says of the way.
        program: The module of the worker and of the producer, whose `send` sends a job of a number.
        keys: A pattern of the key that keeps others out, on the first database; "" for ours.
        late: Whether Celery acknowledges late.
    """

    packages: tuple[str, ...]
    own: str
    program: str
    keys: str = ""
    late: bool = False


_SINGLE = f"""{_CELERY}
@app.task(base=Singleton, unique_on=["key"])
def job(number, key):
    work(number)

def send(number):
    job.delay(number, "key")
"""
_ONCE = f"""{_CELERY}
@app.task(base=QueueOnce, once={{"keys": ["key"]}})
def job(number, key):
    work(number)

def send(number):
    job.delay(number, "key")
"""
_TICKETS = f"""{_CELERY}
@app.task(max_retries=3)
def job(number, ticket):
    try:
        with locks.uniquejob("key", ttl=5).perform(ticket):
            work(number)
    except DuplicateJobError:
        pass

def send(number):
    job.delay(number, locks.uniquejob("key", ttl=5).enqueue("until_executed"))
"""
_RUN = """
    try:
        with locks.uniquejob("key", ttl=5).run(waiting=1):
            work(number)
    except DuplicateJobError:
        pass
"""

ROWS = (
    Row(("celery", "celery-singleton"), "`base=Singleton`", _SINGLE, "SINGLETONLOCK_*"),
    Row(("celery", "celery-singleton"), "the same, `acks_late`", _SINGLE, "SINGLETONLOCK_*", late=True),
    Row(("celery", "celery-once"), "`base=QueueOnce`", _ONCE, "qo_*"),
    Row(("celery", "celery-once"), "the same, `acks_late`", _ONCE, "qo_*", late=True),
    Row(("celery", "aiolocks"), '`enqueue("until_executed")`, `acks_late`', _TICKETS, late=True),
    Row(
        ("celery", "aiolocks"),
        "`run(waiting=1)`",
        f"{_CELERY}\n@app.task\ndef job(number):{_RUN}\n\ndef send(number):\n    job.delay(number)\n",
    ),
    Row(
        ("dramatiq",),
        "`ConcurrentRateLimiter(limit=1)`",
        f"""{_DRAMATIQ}
mutex = ConcurrentRateLimiter(RedisBackend(url=f"{{url}}/0"), "mutex", limit=1)

@dramatiq.actor(max_backoff=1000)
def job(number):
    with mutex.acquire():
        work(number)

def send(number):
    job.send(number)
""",
        "mutex",
    ),
    Row(
        ("dramatiq", "aiolocks"),
        "`run(waiting=1)`",
        f"{_DRAMATIQ}\n@dramatiq.actor\ndef job(number):{_RUN}\n\ndef send(number):\n    job.send(number)\n",
    ),
    Row(
        ("rq",),
        "`unique=True`, `Retry(max=1)`",
        f"""{_RQ}
def send(number):
    queue.enqueue("module.work", number, job_id="key", unique=True, retry=Retry(max=1))
""",
        "rq:job:key",
    ),
    Row(
        ("rq", "aiolocks"),
        "`run(waiting=1)`, `Retry(max=1)`",
        f"""{_RQ}
def job(number):{_RUN}

def send(number):
    queue.enqueue("module.job", number, retry=Retry(max=1))
""",
    ),
    *(
        Row(
            ("huey",),
            f"`lock_task({named})`",
            f"""{_HUEY}
@huey.task(retries=1000, retry_delay=1)
@huey.lock_task({named})
def job(number):
    work(number)

def send(number):
    job(number)
""",
            "huey.results.module",
        )
        for named in ('"key"', '"key", ttl=60')
    ),
    Row(
        ("huey", "aiolocks"),
        "`run(waiting=1)`",
        f"{_HUEY}\n@huey.task()\ndef job(number):{_RUN}\n\ndef send(number):\n    job(number)\n",
    ),
)


def row(it: Row) -> list[str]:
    """The cells of a row, from a run."""
    with EmbeddedServer(port=0) as server, tempfile.TemporaryDirectory() as directory:
        url = server.url.removesuffix("/0")
        os.environ |= {"URL": url, "LATE": "1" if it.late else ""}
        (Path(directory) / "module.py").write_text(it.program)
        sys.path.insert(0, directory)
        sys.modules.pop("module", None)
        importlib.invalidate_caches()
        module = importlib.import_module("module")
        try:
            return [
                _named(it.packages),
                it.own,
                *_seen(it, module, Redis.from_url(f"{url}/0"), directory, url),
            ]
        finally:
            module.locks.close()
            sys.path.remove(directory)


def _named(packages: tuple[str, ...]) -> str:
    return " and ".join(
        name if name == "aiolocks" else f"{name} {importlib.metadata.version(name)}" for name in packages
    )


def _seen(it: Row, module: Any, redis: Redis, directory: str, url: str) -> tuple[str, str]:
    def worker() -> subprocess.Popen[bytes]:
        command = _WORKERS[it.packages[0]]
        more = ("--url", f"{url}/0") if it.packages[0] == "rq" else ()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join((directory, str(ROOT)))}
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", *command, *more],
            cwd=directory,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def begun() -> list[int]:
        return [int(number) for number in module.log.lrange("begun", 0, -1)]

    running = worker()
    try:
        module.send(1)
        _until(lambda: begun() == [1], 30)
        _kill_all(running)
        killed = time.monotonic()
        running = worker()
        again = another = refusal = ""
        number = 1
        while (passed := time.monotonic() - killed) < WATCHED and not (again and another):
            number += 1
            try:
                module.send(number)
            except Exception as error:  # what is refused, and how, is the cell
                refusal = f" (`{type(error).__name__}`)"
            time.sleep(1)
            now = begun()
            again = again or (f"after {passed:.0f} s" if now.count(1) > 1 else "")
            another = another or (f"after {passed:.0f} s" if max(now) > 1 else "")
        left = [redis.pttl(key) for key in redis.scan_iter(it.keys)] if it.keys else []
    finally:
        _kill_all(running)
    if not another:
        end = "; its key has no ttl" if left and left[0] < 0 else ""
        end = end or (f"; then its key lasts {_span(left[0])} more" if left else "")
        another = f"not within {WATCHED} s{refusal}{end}"
    return again or f"not within {WATCHED} s", another


def _kill_all(worker: subprocess.Popen[bytes]) -> None:
    """With its children: the process that RQ forks for a job leaves the group of its worker."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
    parents = {int(pid): int(parent) for pid, parent in map(str.split, listed.stdout.splitlines())}
    tree = [worker.pid]
    for pid in tree:
        tree += [child for child, parent in parents.items() if parent == pid]
    for pid in tree:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    worker.wait()


def _span(ms: float) -> str:
    seconds, day = round(ms / 1000), 86400
    if seconds > 2 * day:
        return f"{round(seconds / day)} days"
    return f"{seconds} s" if seconds < 120 else f"{round(seconds / 60)} min"


def _until(true: Callable[[], object], within: float) -> None:
    end = time.monotonic() + within
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"not true within {within} s")
        time.sleep(0.05)


def table(rows: list[list[str]]) -> str:
    """The rows as a table of the page."""
    head = ["queue", "way", "the killed job runs again", "another job of the key runs"]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *rows))


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(4, mp_context=spawn, max_tasks_per_child=1) as pool:
        rows = list(pool.map(row, ROWS))
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{table(rows)}{END}{rest.partition(END)[2]}", "utf-8")
