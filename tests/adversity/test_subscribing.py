"""A server that refuses to subscribe while it is out of memory, as Redis 8.10 does: a proxy refuses so.

A session that must connect again then polls, renews and releases, and subscribes when the server takes that.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Backoff, Lock, Session
from aiolocks.transport import connection
from tests.adversity.tools import PATIENT
from tests.conftest import Connect, OwnServer
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.thinning import only
from tests.support.waiting import eventually, sleeps

_SUBSCRIBE = re.compile(rb"\*2\r\n\$\d+\r\n[SP]?SUBSCRIBE\r\n\$\d+\r\n[^\r]*\r\n", re.IGNORECASE)
_ASKED = b"*2\r\n$4\r\nPING\r\n$7\r\nREFUSED\r\n"
_ANSWERED = re.compile(rb"(\*2\r\n\$4\r\npong\r\n)?\$7\r\nREFUSED\r\n")
_OOM = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
SAID = "wakeup: "


def refuse(through: Proxy, answer: bytes = _OOM) -> None:
    """From now on, the server refuses each subscription."""
    through.request = lambda data: _SUBSCRIBE.sub(_ASKED, data)
    through.reply = lambda data: _ANSWERED.sub(answer, data)


def accept(through: Proxy) -> None:
    """From now on, it takes them."""
    through.request = None


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEARING_AGAIN", 0.2)


@pytest.fixture
async def through(own_server: OwnServer, proxy: Callable[[Server], Any]) -> Proxy:
    through: Proxy = await proxy(await own_server(arguments=("--notify-keyspace-events", "Kgx")))
    return through


@pytest.fixture
async def holder(connect: Connect, through: Proxy) -> Redis:
    """A client that has nothing to do with the session's connections."""
    return connect(through)


async def hands_over(session: Session, holder: Redis) -> None:
    """A waiter of the session gets what another session releases, however it learns of that."""
    async with Session(holder, wakeup="poll") as other:
        lease = await Lock(other, "passed on").acquire()
        waiting = asyncio.create_task(Lock(session, "passed on").acquire())
        await eventually(lambda: sleeps(session), within=10)
        await lease.release()
        await (await asyncio.wait_for(waiting, 10)).release()


async def hears(session: Session, holder: Redis) -> bool:
    before = session.statistics().wakeups["keyspace"]
    await hands_over(session, holder)
    return session.statistics().wakeups["keyspace"] > before


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (record.levelname, record.getMessage().partition(" (")[0])
        for record in caplog.records
        if record.getMessage().startswith(SAID)
    ]


FOR_NOW = ("WARNING", "wakeup: poll serves this session for now")
AGAIN = ("INFO", "wakeup: keyspace serves this session again")


@pytest.mark.parametrize("protocol", [2, 3])
async def test_connected_again_without_memory_it_polls_and_keeps_its_leases(
    connect: Connect, through: Proxy, holder: Redis, caplog: pytest.LogCaptureFixture, protocol: Any
) -> None:
    caplog.set_level(logging.INFO, "aiolocks.transport")
    async with Session(connect(through), wakeup="keyspace", protocol=protocol) as session:
        await eventually(lambda: hears(session, holder), within=10)
        async with Lock(session, "kept", ttl=5) as lease:
            refuse(through)
            for _ in range(2):  # again, and nothing more is said
                through.cut()
                await lease.extend()
                await hands_over(session, holder)
            assert not await hears(session, holder)
            lease.ensure_held()
        assert not await Lock(session, "kept").locked()
        assert said(caplog) == [FOR_NOW]

        accept(through)
        await eventually(lambda: said(caplog) == [FOR_NOW, AGAIN], within=10)
        await eventually(lambda: hears(session, holder), within=10)
        tasks = {task.get_name() for task in asyncio.all_tasks()}
        assert "aiolocks-subscribe" not in tasks


@pytest.mark.parametrize("wakeup", ["keyspace", "auto"])
async def test_connected_for_the_first_time_without_memory(
    connect: Connect, through: Proxy, holder: Redis, caplog: pytest.LogCaptureFixture, wakeup: str
) -> None:
    """As a user of the minimal ACL, who has no tracking."""
    caplog.set_level(logging.INFO, "aiolocks.transport")
    await holder.acl_setuser(
        "locks",
        enabled=True,
        passwords=["+secret"],
        keys=["*"],
        channels=["*"],
        categories=["+@all"],
        commands=["-client|tracking", "-client|caching"],
    )
    refuse(through)
    client = connect(through, username="locks", password="secret")
    async with Session(client, wakeup=wakeup, backoff=Backoff()) as session:
        async with Lock(session, "a"):
            pass
        assert not await hears(session, holder)
        assert said(caplog) == [FOR_NOW]
        accept(through)
        await eventually(lambda: said(caplog)[1:] == [AGAIN], within=10)
        await eventually(lambda: hears(session, holder), within=10)


async def test_behind_a_refused_trial_the_connection_is_a_fresh_one() -> None:
    """fakeredis takes SUBSCRIBE with RESP3, and then no other request on that connection."""
    from fakeredis import TcpFakeServer

    server = TcpFakeServer(("127.0.0.1", 0), server_type="redis")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        async with Redis(port=server.server_address[1]) as client, Session(client) as session:
            async with Lock(session, "a") as lease:
                await lease.extend()
            assert not await Lock(session, "a").locked()
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_bell_that_was_refused_is_subscribed_to_at_the_next_sign_of_life(
    connect: Connect, through: Proxy, holder: Redis, protocol: Any
) -> None:
    """The connection stays, and the server has memory again while the waiter sleeps."""
    client = connect(through)
    async with (
        Session(holder, wakeup="poll") as other,
        Session(client, wakeup="keyspace", protocol=protocol, backoff=PATIENT) as session,
    ):
        await hears(session, holder)
        lease = await Lock(other, "a").acquire()
        refuse(through)
        before = through.count(b"SUBSCRIBE")
        waiting = asyncio.create_task(Lock(session, "a").acquire())
        await eventually(lambda: through.count(b"SUBSCRIBE") > before, within=10)
        accept(through)
        before = through.count(b"SUBSCRIBE")
        await eventually(lambda: through.count(b"SUBSCRIBE") > before, within=10)
        await eventually(lambda: sleeps(session), within=10)
        woken = session.statistics().wakeups["keyspace"]
        await lease.release()
        await (await asyncio.wait_for(waiting, 10)).release()
        assert session.statistics().wakeups["keyspace"] > woken


@pytest.mark.more  # as other ends of a session
@pytest.mark.parametrize("end", only(["closed", "cancelled", "lost"], "lost"))
async def test_however_it_ends_while_it_asks_again(connect: Connect, through: Proxy, end: str) -> None:
    refuse(through)
    session = Session(connect(through), wakeup="keyspace")
    async with Lock(session, "a"):
        pass
    asked = through.count(b"SUBSCRIBE")
    await eventually(lambda: through.count(b"SUBSCRIBE") > asked + 1, within=10)
    if end == "lost":
        through.hold_requests = True
        await asyncio.sleep(0.3)  # it has begun to ask
        through.cut()
        through.hold_requests = False
    elif end == "cancelled":
        through.hold_requests = True
        await asyncio.sleep(0.3)
    await session.aclose()
    await eventually(
        lambda: all(task.get_name() != "aiolocks-subscribe" for task in asyncio.all_tasks()), within=10
    )
