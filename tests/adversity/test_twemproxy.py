"""Twemproxy, which closes each connection on which a command comes that it does not know."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis.asyncio import Redis
from valkey.asyncio import Valkey

from aiolocks import (
    Backoff,
    Batch,
    Combiner,
    ConfigurationError,
    FencedRegister,
    Latch,
    Leadership,
    Lock,
    RateLimit,
    Schedule,
    Session,
    SingleFlight,
    Term,
    Tick,
    Turnstile,
    UniqueJob,
)
from aiolocks.cli.doctor.command import examine
from aiolocks.cli.server import connected
from aiolocks.transport import Dialect
from aiolocks.transport.driver import RawConnection
from tests.adversity.behind_proxies import MUTUAL, hand_over
from tests.adversity.tools import in_within
from tests.conftest import OwnServer
from tests.support.cancel import sweep
from tests.support.nutcracker import running_nutcracker
from tests.support.proxy import Proxy

QUICK = Backoff(initial=0.02, maximum=0.05)
Open = Callable[..., Session]


@pytest.fixture(params=[1, 2])
async def nutcracker(request: pytest.FixtureRequest, own_server: OwnServer) -> AsyncIterator[int]:
    """The port of a proxy in front of so many servers."""
    servers = [await own_server(port=0) for _ in range(request.param)]
    async with running_nutcracker(servers) as port:
        yield port


@pytest.fixture
async def open_session(nutcracker: int) -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        def open_session(client: Any = None, **options: Any) -> Session:
            client = client or Redis(port=nutcracker)
            stack.push_async_callback(client.aclose)
            session = Session(client, **{"backoff": QUICK, **options})
            stack.push_async_callback(session.aclose)
            return session

        yield open_session


@pytest.mark.parametrize("kind", MUTUAL)
async def test_a_lock_is_held_waited_for_renewed_and_handed_over(open_session: Open, kind: str) -> None:
    one, other = open_session(), open_session()
    await hand_over(one, other, kind)
    assert set(other.statistics().wakeups) >= {"poll"}


@pytest.mark.leaves_keys(
    "*fencedregister*", "*:schedule*", "*singleflight*", "*turnstile*", "*ratelimit*", "*combiner*", "*latch*"
)
async def test_all_other_kinds(open_session: Open) -> None:
    one, other = open_session(), open_session()

    async def value() -> str:
        return "made"

    async def run(batch: Batch) -> int:
        return len(batch.items)

    flights = [SingleFlight(session, keep=5).do("v", value) for session in (one, other)]
    assert await asyncio.gather(*flights) == ["made", "made"]
    assert [await Turnstile(session, "t", window=60).enter() for session in (one, other)] == [1, 2]
    async with UniqueJob(one, "j").run() as job:
        assert job.remaining() > 0
    await FencedRegister(one, "b").write({"a": 1}, 7)
    assert await FencedRegister(other, "b").read() == {"a": 1}
    assert (await RateLimit(one, "p", 5, per=1).try_acquire()).allowed
    assert await Combiner(one, "c").submit(1, run) == 1
    latch, waiting = Latch(one, "h", 2), asyncio.create_task(Latch(other, "h", 2).wait())
    await latch.count_down(2)
    await in_within(4, waiting)

    happened = asyncio.Queue[str]()
    schedule = Schedule(one, "every", every=0.2)

    @schedule
    async def tick(_: Tick) -> None:
        happened.put_nowait("tick")

    async def main(_: Term) -> None:
        happened.put_nowait("leads")
        await asyncio.sleep(60)

    running = [
        asyncio.create_task(schedule.run()),
        asyncio.create_task(Leadership(other, "leader").run(main)),
    ]
    seen = set[str]()
    async with asyncio.timeout(5):
        while seen != {"tick", "leads"}:
            seen.add(await happened.get())
    for task in running:
        task.cancel()
    await asyncio.wait(running)


async def test_what_is_asked_for_by_name_is_refused(
    open_session: Open, nutcracker: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiolocks.transport")
    async with Lock(open_session(client=Valkey(port=nutcracker)), "l"):
        pass
    left_out = "closes connections on CLIENT SETINFO: this session does without"
    assert any(left_out in record.getMessage() for record in caplog.records)
    assert not any("is away" in record.getMessage() for record in caplog.records)
    for options in ({"wakeup": "keyspace"}, {"protocol": 3}):
        with pytest.raises(ConfigurationError, match=r"is not available: .*(closes the connection|RESP3)"):
            await Lock(open_session(**options), "l").acquire()


@pytest.mark.more  # as a search that ends
async def test_a_cancelled_search_leaves_no_connection_open(nutcracker: int) -> None:
    redis = Redis(port=nutcracker, socket_timeout=None)  # up to Python 3.11, its own swallows a cancellation
    pool = redis.connection_pool

    async def search() -> None:
        dialect = Dialect()
        raw = await dialect.open_anew(
            lambda protocol, patience, named: RawConnection.open(
                pool, protocol=protocol, patience=patience, named=named
            ),
            label="the server",
        )
        raw.abort()
        assert len(dialect.unasked) == 9

    shots = await sweep(search)
    assert len(shots) > 20
    await redis.aclose()


async def test_an_outage_while_connecting_is_no_answer(
    own_server: OwnServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aiolocks.transport")
    async with Proxy((await own_server()).url) as proxy, proxy.client() as client:
        lost = [
            proxy.reset_after(lambda request: request[:2] == [b"CLIENT", b"SETINFO"]),
            proxy.reset_after(lambda request: request[:2] == [b"CLIENT", b"INFO"], nth=1),
            proxy.reset_after(lambda request: request[:2] == [b"CLIENT", b"INFO"], nth=2),
        ]
        async with Session(client) as session, Lock(session, "l", blocking_timeout=5):
            assert all(event.is_set() for event in lost)
            assert proxy.count(b"OPTIN") == 1
    assert not [record for record in caplog.records if "does without" in record.getMessage()]


async def test_the_doctor_names_the_questions(nutcracker: int) -> None:
    async with connected(f"redis://127.0.0.1:{nutcracker}", ailing=True) as server:
        findings = {finding.check: finding for finding in await examine(server, prefix="aiolocks")}
    assert findings["questions"].says.startswith(
        "the server, or a proxy before it, closes the connection on CLIENT SETINFO, CLIENT INFO, INFO, "
    )
    assert "HELLO 3" in findings["resp3"].says
    assert "CLIENT KILL" in findings["reconnecting"].fix
    assert findings["trial"].says.startswith("a lock was acquired, renewed, handed over")
    assert {finding.level for finding in findings.values()} == {"ok", "note", "warning"}
