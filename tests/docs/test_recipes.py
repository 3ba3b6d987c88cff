"""Each recipe of the docs under faults, in several processes: after each fault the work goes on by itself.

The faults are the same for all recipes, which run at the same time: the server is away for 3 s, which is
longer than the ttl; the work of the user raises; the server is frozen; the process is killed. No error is
silent, and an error of the library names what was asked for. `recipes` runs the blocks of the pages.

Each Python block of a page is run: what makes an application as one of `SERVICES`, what is a program of its
own as one of `PROGRAMS` or `ONCE`, and all others in the order of their page, again and again. The reasons
for those that are not run stand in `LEFT_OUT`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import OwnServer
from tests.docs import recipes
from tests.docs.markdown import Block, read
from tests.docs.programs import programs
from tests.docs.recipes import TTL, shorter
from tests.docs.test_docs import ROOT, URL
from tests.support.processes import Workers
from tests.support.waiting import eventually

PAGES = {
    path.stem: read(path)
    for path in (
        *sorted((ROOT / "docs" / "how-to").glob("*.md")),
        ROOT / "docs" / "tutorial" / "first-lock.md",
        ROOT / "README.md",
    )
}
TO_COPY = "the reader copies it into a test of pytest, which is run with the other pages"
ITS_OWN = "its server is its own, and ends with it"
LEFT_OUT = {
    "choose-a-topology/RedisCluster": "needs a cluster: tests/adversity has its faults",
    "choose-a-topology/EmbeddedServer": "its servers are its own, and it kills them itself",
    "first-lock": ITS_OWN,
    "workers": "for threads: tests/sync has its faults; arq and taskiq are `PROGRAMS`",
    "ratelimit/customers.py": "it refuses what is asked so often: tests/contrib/test_rate_limited.py runs it",
    "README/first.py": ITS_OWN,
    "README/test_orders.py": TO_COPY,
    "test-your-application": "its blocks are for tests, which are run with the other pages",
}
"""Of a page, or of a block of it (its title, or a text in it), why it does not run here."""


class Service:
    """An application, or functions of a service, with what is asked of it; it runs in two processes.

    Args:
        page: Of which the blocks are.
        *blocks: Their titles; of one without, a text that stands in no other block of the page.
        lock: Of work beside the requests, what the log calls it where it has failed.
        **run: Arguments of `recipes.Recipe`.
    """

    def __init__(self, page: str, *blocks: str, lock: str = "", **run: Any) -> None:
        self.page = page
        self.lock = lock
        self.blocks = [block_of(page, block) for block in blocks]
        self.run = run
        self.name = f"{page}-{blocks[0]}".replace(" ", "-")


def python(page: str) -> list[Block]:
    return [block for block in PAGES[page].blocks if block.language == "python"]


def block_of(page: str, which: str) -> Block:
    blocks = python(page)
    found = [block for block in blocks if block.title == which] or [
        block for block in blocks if which in block.text
    ]
    assert len(found) == 1, f"{page}: {len(found)} blocks have {which!r}"
    return found[0]


SERVICES = [
    Service("fastapi", "sweeper.py", lock="task sweep", app="app"),
    Service("aiohttp", "sweeper.py", lock="task sweep", app="app"),
    Service("leadership", "fastapi_app.py", lock="'fastapi-scheduler'", app="app"),
    Service(
        "schedule", "nightly = Schedule",
        lock="'nightly'",
        app="app",
        begin="""
from fastapi import FastAPI
from aiolocks.contrib.fastapi import session_lifespan
app = FastAPI(lifespan=session_lifespan(session, background=[nightly.run]))
""",
    ),
    Service(
        "fastapi", "shop.py", "of_the_account", "three at a time", "of_the_tenant", "install_error_handlers",
        app="app",
        handlers=["pack", "label", "pay", "report", "build", "refund"],
        calls=[
            "POST /orders/7/parcels", "POST /orders/7/label", "POST /payments", "GET /reports",
            "POST /datasets", "POST /orders/7/refund",
        ],
    ),
    Service(
        "aiohttp", "shop.py", "of_the_customer",
        app="app",
        begin="""
app = make_app()
app.router.add_post("/invoice", invoice)
""",
        handlers=["pack", "post", "invoice"],
        calls=["POST /orders/7/parcels", "POST /orders/7/label", "POST /invoice"],
    ),
    Service("aiohttp", "refunds.py", app="app", handlers=["refund"], calls=["POST /orders/7/refund"]),
    Service("accept-a-payment-once", "payments.py", app="app", handlers=["pay"], calls=["POST /payments"]),
    Service(
        "accept-a-payment-once", "who_asks",
        app="authenticated",
        begin="""
import types
def authenticated(scope, receive, send):
    return protected(scope | {"user": types.SimpleNamespace(name="ann")}, receive, send)
""",
        handlers=["bank"],
        calls=["POST /"],
    ),
    Service(
        "accept-a-payment-once", "async def user_of",
        app="shop",
        begin="""
async def pay(request):
    await _later()
    return web.Response(text="paid")
shop.router.add_post("/payments", pay)
""",
        calls=["POST /payments"],
    ),
    Service(
        "fastapi", "warehouse.py",
        app="app",
        handlers=["put_one"],
        calls=["POST /items/pear", "POST /items/pear/first"],
    ),
    Service("use-in-production", "service.py", app="app", calls=["GET /alive", "GET /ready"]),
    Service(
        "inspect", "shop.py",
        app="app",
        begin='operator_of = lambda headers: "ann"',
        calls=["GET /locks/"],
    ),
    Service("README", "async def label", app="app", handlers=["label"], calls=["POST /orders/7/label"]),
    Service("use-in-production", "app.py", handlers=["ship"], calls=["await ship(17)"]),
    Service("schedule", "nightly = Schedule", "def replica() ->"),
    Service(
        "workers", "arq_jobs.py",
        begin="from arq import create_pool\npool = await create_pool(settings)",
        calls=["assert await (await pool.enqueue_job('refresh', 'sales')).result(timeout=15)"],
    ),
    Service(
        "workers", "taskiq_tasks.py",
        module="taskiq_tasks",
        begin="await broker.startup()",
        calls=["assert (await (await refresh.kiq('sales')).wait_result(timeout=15)).return_value"],
    ),
]  # fmt: skip
SHORTER = {
    "...  # remove old carts": "await _later()",
    "await asyncio.sleep(60)": "await asyncio.sleep(0.05)",
    "await asyncio.sleep(1)  # the work": "await _later(); await asyncio.sleep(0.05)",
    'cron="0 3 * * *", tz="Europe/Berlin"': "every=0.5",
    'runs.append("ran")': "await _later()",
    'guard="exit"': 'guard="log"',  # the process has other recipes too
    "?db=0": "",
    # arq misses a worker that was killed 10 s after the `job_timeout`.
    "    poll_delay = 0.05": "    poll_delay = 0.05\n    job_timeout = 4",
    'consumer_id="0"': 'consumer_id="0", idle_timeout=3000',
    "        asyncio.get_running_loop().call_later(0.05, worker.cancel)": "        ",
    # As the page says of a service that starts.
    "running = most = 0": "running = most = 0\nawait calls.resize(4)",
    # Its queue dies with the process, and so its tickets are redelivered by nobody.
    'job.enqueue("until_executed"': f'job.enqueue("until_executed", ttl={TTL}',
    "await queue.get()": "await asyncio.wait_for(queue.get(), 3)",
    "report=report))": f"report=report), ttl={TTL})",
    "every=3600).guard": "every=1).guard",
    '-scheduler")': f'-scheduler", ttl={TTL})',
    "timeout=30, lock_class": f"timeout={TTL}, lock_class",
    "timeout=30, blocking": f"timeout={TTL}, blocking",
    "timeout=10": f"timeout={TTL}",
    "await asyncio.sleep(0.2)  # rebuild it": "await _later()",
    # Its rounds follow each other, and would wait for the limit of a minute.
    '"{model}:requests", 60, per=60': '"{model}:requests", 60, per=1',
    '"{model}:tokens", 6000, per=60': '"{model}:tokens", 6000, per=1',
}


def described(
    number: int, name: str, page: str, blocks: Sequence[Block], url: str, run: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of a `recipes.Recipe`, whose database is its own."""
    texts = [(block.line, shorter(block.text, {URL: database(url, number)} | SHORTER)) for block in blocks]
    return {"name": name, "page": page, "blocks": texts, **run}


def database(url: str, number: int) -> str:
    return url.removesuffix("0") + str(number)


def services(url: str) -> list[dict[str, Any]]:
    return [
        described(number, one.name, one.page, one.blocks, url, one.run) for number, one in enumerate(SERVICES)
    ]


def is_among(those: Iterable[str], page: str, block: Block) -> bool:
    """Whether the page is among those, or the block by its title or a text in it."""
    parts = [part for name, _, part in (one.partition("/") for one in those) if name == page]
    return any(not part or part == block.title or part in block.text for part in parts)


def in_order(url: str) -> list[dict[str, Any]]:
    """Each page, with all its blocks that run in it."""
    return [
        described(number, name, name, blocks, url, {})
        for number, name in enumerate(PAGES, len(SERVICES))
        if (blocks := [block for block in python(name) if not is_among(ELSEWHERE, name, block)])
    ]


@dataclass(frozen=True)
class Program:
    """A program of its own, of which a supervisor starts two, again whenever one ends.

    Attributes:
        page: Of which the block is.
        block: Its title; or the command, of which the part behind the dashes is the work.
        command: Of the interpreter.
        work: The text in the place of which the work is.
    """

    page: str
    block: str
    command: str
    work: str = ""

    @property
    def name(self) -> str:
        return f"program-{self.page}-{self.block}".replace(" ", "-")

    def written(self, directory: Path, url: str) -> list[str]:
        """Puts its files into the directory; the command that runs it."""
        directory.mkdir()
        (directory / "work.py").write_text(WORK.format(state=str(directory.parent), name=self.name))
        if not self.work:
            (line,) = [block.text for block in PAGES[self.page].blocks if self.block in block.text]
            (directory / "forever.py").write_text(FOREVER)
            options = line.partition(" -- ")[0].removeprefix("aiolocks ").replace("--ttl 30", f"--ttl {TTL}")
            return ["-m", "aiolocks", *options.split(), "--redis", url, "--", sys.executable, "forever.py"]
        text = shorter(block_of(self.page, self.block).text, {URL: url} | SHORTER)
        assert text.count(self.work) == 1
        work = '__import__("work").work(); await asyncio.sleep(0.05)'
        (directory / self.block).write_text(text.replace(self.work, work))
        return self.command.split()


PROGRAMS = [
    Program("use-in-production", "worker.py", "worker.py", "await asyncio.sleep(0.01)"),
    Program("workers", "arq_jobs.py", "-m arq arq_jobs.WorkerSettings", "await asyncio.sleep(0.5)"),
    Program(
        "workers",
        "taskiq_tasks.py",
        "-m taskiq worker taskiq_tasks:broker --workers 1",
        "await asyncio.sleep(0.5)",
    ),
    Program("schedule", "aiolocks run celery-beat", ""),
]
WORK = """
import os, pathlib
STATE = pathlib.Path({state!r})
def work():
    try:
        (STATE / "break-{name}").unlink()
    except FileNotFoundError:
        (STATE / f"work-{name}-{{os.getpid()}}").touch()
    else:
        raise ZeroDivisionError("in the work of the user")
"""
FOREVER = "import time, work\nwhile True:\n    work.work()\n    time.sleep(0.05)\n"
ONCE = [
    ("fence-sql", ""),
    ("once-per-cluster", "crontab"),
    ("once-per-cluster", "crontab, by its tick"),
]
"""Pages with a program that runs once: its title, or all blocks."""
ELSEWHERE = LEFT_OUT.keys() | {
    "use-in-production/worker.py",
    "fence-sql/models.py",
    "fence-sql/fences.py",
    "fence-sql/from django.db import transaction",
}


class Supervised:
    """One process of a program, and those that come after it."""

    def __init__(self, program: Program, number: int, command: list[str], directory: Path) -> None:
        self.log = directory.parent / f"log-{program.name}-{number}"
        self.ends: list[int] = []
        self._command = command
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        with self.log.open("wb") as log:
            while True:
                self._process = await started(self._command, self._directory, log)
                try:
                    self.ends.append(await self._process.wait())
                finally:
                    self.kill()
                await asyncio.sleep(0.2)

    def kill(self) -> None:
        """It, and what it has started: a machine that loses its power."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


async def started(command: Sequence[str], directory: Path, output: Any) -> asyncio.subprocess.Process:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(directory), str(ROOT)))}
    return await asyncio.create_subprocess_exec(
        sys.executable, *command,
        cwd=directory, env=environment, start_new_session=True,
        stdout=output, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip


async def run_once(page: str, which: str, directory: Path, url: str) -> None:
    """A program that meets the outage ends well, or with an error that has the name."""
    if which.startswith("crontab"):
        (block,) = [block for block in PAGES[page].blocks if block.title == which]
        backup = directory / "backup.sh"
        backup.write_text("#!/bin/sh\n")
        backup.chmod(0o755)
        variable, line = block.text.replace(URL, url).splitlines()
        line = line.split(maxsplit=5)[5].replace("aiolocks run", f'"{sys.executable}" -m aiolocks run')
        code = f"import subprocess; exit(subprocess.call([{'sh'!r}, '-c', {f'{variable} {line}'!r}]))"
        command = ["-c", code]
    else:
        *_, (_, whole) = programs(PAGES[page])
        text = block_of(page, which).text if which else whole
        (directory / f"once-{page}.py").write_text(shorter(text, {URL: url}))
        command = [f"once-{page}.py"]
    process = await started(command, directory, asyncio.subprocess.PIPE)
    said = (await asyncio.wait_for(process.communicate(), 30))[0].decode()
    last = said.rpartition("Error:")[2]
    assert process.returncode == 0 or re.search(r"aiolocks: .*'\S+'|Lock '", last), said


class Crew:
    """All recipes, seen by what their processes leave in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.all: dict[str, list[str]] = {}

    def add(self, name: str, *, calls: Sequence[str] = (), app: str = "", **_: Any) -> None:
        """A recipe, with the traces that it leaves when all of it has worked."""
        traces = [f"done{number}-{name}" for number in range(len(calls))]
        self.all[name] = traces or [f"work-{name}" if app else f"done-{name}"]

    async def works(self, what: str, *, within: float = 60) -> None:
        """All recipes have worked from now on, in some process."""
        since = time.time()
        missing: list[str] = []

        def none_is_missing() -> bool:
            newest: dict[str, float] = {}
            for file in self.directory.glob("*-*"):
                trace, _, pid = file.name.rpartition("-")
                if pid.isdigit():
                    newest[trace] = max(newest.get(trace, 0.0), file.stat().st_mtime)
            wanted = [trace for traces in self.all.values() for trace in traces]
            missing[:] = [trace for trace in wanted if newest.get(trace, 0.0) <= since]
            return not missing

        try:
            await eventually(none_is_missing, within=within)
        except AssertionError:
            problems = "\n".join(self.problems())
            raise AssertionError(f"after {what}, these do not go on: {missing}\n{problems}") from None

    def logs(self) -> Iterator[tuple[str, str]]:
        for log in sorted(self.directory.glob("log-*")):
            yield log.name.removeprefix("log-"), log.read_text()

    async def says(self, name: str, pattern: str) -> None:
        """The log of one recipe, in some process, has such a text by now or soon."""

        def said() -> str:
            return "".join(text for log, text in self.logs() if log.startswith(name))

        try:
            await eventually(lambda: re.search(pattern, said()) is not None, within=30)
        except AssertionError:
            raise AssertionError(f"{name} never says {pattern!r}:\n{said()}") from None

    def problems(self) -> Iterator[str]:
        for name, text in self.logs():
            for line in text.splitlines():
                if re.search(" FAILED (?!.*HTTP 4)| HANGS", line):
                    yield f"{name}: {line}"

    def told(self) -> list[str]:
        """What is wrong with the logs.

        No recipe may hang. Each error of the library has the name of what was asked for. The log of a service
        that answers 503 says why. The error of the work is there wherever it was raised.
        """
        wrong = [line for line in self.problems() if " HANGS" in line]
        for name, text in self.logs():
            for line in text.splitlines():
                _, _, error = line.partition(" FAILED ")
                if error.startswith("aiolocks.errors.") and not re.search(r"(?<!\()'[^']+'", error):
                    wrong.append(f"{name}: no name in {line}")
                if re.match(r"builtins\.(Attribute|Name|UnboundLocal|Key|Index)Error", error):
                    wrong.append(f"{name}: {line}")
                if "HTTP 503" in error and " WARNING aiolocks." not in text:  # of each request at DEBUG
                    wrong.append(f"{name}: the log says nothing of {line}")
            raised = self.directory / f"raised-{name}"
            wrong += [
                f"{name}: its work has raised ({number}), and the log does not say so"
                for number in range(1, 1 + (int(raised.read_text()) if raised.exists() else 0))
                if f"in the work of the user: {number}\n" not in text
            ]
        return wrong


@pytest.mark.leaves_keys("*")  # of processes that are killed, of queues, of the user
@pytest.mark.whole
@pytest.mark.timeout(480)
async def test_each_recipe_goes_on(own_server: OwnServer, workers: Workers, tmp_path: Path) -> None:
    server = await own_server(port=0, arguments=("--databases", "200"))
    alike, alone = services(server.url), in_order(server.url)
    for_one = {"directory": str(tmp_path), "recipes": json.dumps(alike + alone)}
    for_other = {"directory": str(tmp_path), "recipes": json.dumps(alike)}
    crew = Crew(tmp_path)
    for recipe in alike + alone:
        crew.add(**recipe)
    supervised: list[Supervised] = []
    names = [one.name for one in SERVICES]
    for number, program in enumerate(PROGRAMS, 150):
        like = f"{program.page}-{program.block}"  # the service that gives it its work
        url = database(server.url, names.index(like) if like in names else number)
        command = program.written(tmp_path / program.name, url)
        supervised += [Supervised(program, copy, command, tmp_path / program.name) for copy in range(2)]
        crew.add(program.name, app="its own")
    hold = tmp_path / "hold"

    async with AsyncExitStack() as stack:
        for process in supervised:
            stack.push_async_callback(ended, asyncio.create_task(process.run()))
        first = await workers.start(recipes.run, **for_one)
        second = await workers.start(recipes.run, **for_other)
        await crew.works("the start", within=60)

        # The server is away for 3 s, which is longer than the ttl.
        hold.touch()
        await asyncio.sleep(0.7)
        server.kill()
        once = asyncio.gather(*(run_once(*one, tmp_path, database(server.url, 199)) for one in ONCE))
        await asyncio.sleep(3)
        await server.start()
        hold.unlink()
        await crew.works("an outage")
        await once

        # The work raises.
        broken = [f"break-{process.pid}" for process in (first, second)]
        broken += [f"break-{program.name}" for program in PROGRAMS]
        for told in broken:
            (tmp_path / told).touch()
        await crew.works("an error of the work")
        # A round that went on meanwhile may have ended well, and the one behind it is the one that fails.
        for program in PROGRAMS:
            await crew.says(program.name, "in the work of the user")
        for one in SERVICES:
            if one.lock:
                failed = rf"ERROR aiolocks\.\w+: .*{one.lock}.* failed.*[\s\S]*in the work of the user"
                await crew.says(one.name, failed)

        # The server is frozen for 3 s.
        hold.touch()
        await asyncio.sleep(0.7)
        server.pause()
        await asyncio.sleep(3)
        server.resume()
        hold.unlink()
        await crew.works("a freeze")

        # The processes are killed in the midst of their work, one after the other.
        for number, victim in enumerate((first, second)):
            hold.touch()
            await asyncio.sleep(0.7)
            victim.kill()
            for process in supervised[number::2]:
                process.kill()
            hold.unlink()
            if victim is first:
                await workers.start(recipes.run, **for_one)
            await crew.works("a kill", within=60)

    wrong = crew.told()
    assert not wrong, "\n".join(wrong)
    for process in supervised:
        said = process.log.read_text()
        assert 0 not in process.ends, f"{process.log.name} has ended as if all were well:\n{said}"


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


# -- the tables


def test_no_application_is_left_out() -> None:
    """What a page makes to serve requests has its line in `SERVICES`; other blocks run by themselves."""
    served = {id(block) for one in SERVICES for block in one.blocks}
    makes = re.compile(r"= FastAPI\(|= web\.Application\(|^@app\.|^@locked\(|Middleware\(", re.MULTILINE)
    for page in PAGES:
        for block in python(page):
            if not is_among(LEFT_OUT, page, block) and makes.search(block.text):
                assert id(block) in served, f"{block}: tests/docs/test_recipes.py does not ask it anything"


def test_what_is_left_out_is_there() -> None:
    for one in ELSEWHERE:
        page = one.partition("/")[0]
        assert any(is_among([one], page, block) for block in python(page)), one


def test_what_is_changed_is_there() -> None:
    texts = "".join(block.text for page in PAGES for block in python(page))
    assert not [shown for shown in SHORTER if shown not in texts]
