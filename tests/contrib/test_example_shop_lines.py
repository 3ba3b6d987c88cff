"""Each line of `examples/shop` that keeps a promise is needed: without it, the counts do not add up."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from tests.conftest import OwnServer
from tests.support.postgres import postgres_url, running_postgres

ROOT = Path(__file__).parents[2]
COUNTS = ROOT / "tests/support/shop_counts.py"
UNIQUE = '__import__("secrets").token_hex(8)'
"""A name that no other caller has: the lock excludes nobody."""

FENCE = "        await fence(transaction, lease)"
PLAIN = """async def plain():
    async with sessions() as session, session.begin():
        yield session


"""
SLOWLY = {"without = select": "await asyncio.sleep(0.05)\n            without = select"}
LINES: dict[str, tuple[str, dict[str, str], str]] = {
    "order": (
        "service",
        {
            'Annotated[Lease, Locked("order:{order_id}", ttl=TTL, blocking_timeout=2 * TTL)]': "None = None",
            f"{FENCE}  # first: it takes the place of `BEGIN`": "",
        },
        "an update of an order is lost",
    ),
    "payment": (
        "service",
        {
            "route_class=idempotent_route(scope=customer, required=True, store=store, ttl=TTL, wait=1.0)": "",
            "class Cents(BaseModel):": f"{PLAIN}class Cents(BaseModel):",
            "Depends(store.session)": "Depends(plain)",
        },
        "a payment was taken twice",
    ),
    "account": ("service", {'f"account:{payer}"': UNIQUE}, "the sum of an account is wrong"),
    "range": (
        "service",
        {".writer(wish.begin, wish.end)": ".writer(30 * wish.begin, 30 * wish.begin + 1)"},
        "bookings: ",
    ),
    "reader": ("service", {"async with settings.reader:": "if True:"}, "a quote of two configurations"),
    "writer": (
        "service",
        {"settings.writer as": f"Lock(locks, {UNIQUE}, ttl=TTL) as"},
        "a quote of two configurations",
    ),
    "limits": (
        "service",
        {'f"tenant:{tenant}": 1': 'f"tenant:{tenant}": 4'},
        "a tenant had several exports at a time",
    ),
    "cache": (
        "service",
        {'return await flight.do("prices", read)': "return await read()"},
        "prices were read",
    ),
    "rate": (
        "service",
        {', dependencies=[RateLimited("prices:{client}", 100, per=1)]': ""},
        "too many requests",
    ),
    "schedule": ("worker", {'"stock-take", every': f"{UNIQUE}, every"}, "runs of one"),
    "leader": (
        "worker",
        {'"invoices", ttl': f"{UNIQUE}, ttl", **SLOWLY},
        "an invoice number is there twice",
    ),
    "fence of an order": (
        "service",
        {f"{FENCE}  # first: it takes the place of `BEGIN`": ""},
        "order: a late",
    ),
    "fence of an account": (
        "service",
        {f"{FENCE}\n        account =": "        account ="},
        "account: a late",
    ),
    "fence of the settings": (
        "service",
        {f"{FENCE}\n        for name": "        for name"},
        "settings: a late",
    ),
    "fence of a tick": ("worker", {"await fence(transaction, tick.lease)": "pass"}, "tick: a late"),
    "fence of a term": ("worker", {"await fence(transaction, term)": "pass"}, "term: a late"),
}
"""By what it is for: the module, the line and what stands in its place, and what does not add up then."""


@pytest.mark.leaves_keys("shop:*")
@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_without_each_line_the_counts_do_not_add_up(own_server: OwnServer, tmp_path: Path) -> None:
    server = await own_server(port=0)
    two_at_a_time = asyncio.Semaphore(2)
    with running_postgres() as directory:
        engine = create_async_engine(postgres_url(directory, "asyncpg"), isolation_level="AUTOCOMMIT")

        async def wrong(number: int, module: str, changes: dict[str, str]) -> str:
            """What does not add up in a shop with these changes."""
            here = tmp_path / f"{number}"
            shutil.copytree(ROOT / "examples/shop", here / "shop")
            path = here / "shop" / f"{module}.py"
            text = path.read_text("utf-8")
            for line, instead in changes.items():
                assert text.count(line) == 1, line
                text = text.replace(line, instead)
            path.write_text(text, "utf-8")
            async with engine.connect() as connection:
                await connection.execute(sa.text(f"CREATE DATABASE shop{number}"))
            environment = {
                "SHOP_REDIS": f"{server.url}/{number % 16}",
                "SHOP_DATABASE": postgres_url(directory, "asyncpg").replace("/postgres?", f"/shop{number}?"),
                "SHOP_TTL": "10",
                "SHOP_TICK": "0.2",
                "PYTHONPATH": f"{here}{os.pathsep}{ROOT}",
            }
            async with two_at_a_time:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, str(COUNTS)),
                    env=os.environ | environment,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                )
                out, log = await process.communicate()
            return out.decode() if process.returncode == 0 else f"it failed: {log.decode()[-2000:]}"

        shops = [("service", {}, ""), ("worker", SLOWLY, ""), *LINES.values()]
        found = await asyncio.gather(*(wrong(number, *shop[:2]) for number, shop in enumerate(shops)))
        await engine.dispose()
    assert found[:2] == ["", ""]
    survived = {
        name: got for (name, line), got in zip(LINES.items(), found[2:], strict=True) if line[2] not in got
    }
    assert survived == {}, "\n".join(f"{k}: {v[-600:]}" for k, v in survived.items())
