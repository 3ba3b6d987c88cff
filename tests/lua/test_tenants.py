"""Several tenants on one server: what the minimal ACL lets one do to another, and an ACL that does not."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from aiolocks import Lock, Session
from aiolocks.testing import EmbeddedServer
from tests.docs.markdown import read
from tests.docs.test_docs import ROOT
from tests.support.waiting import eventually

PRODUCTION = ROOT / "docs" / "how-to" / "use-in-production.md"
KEY = "other:lock:{secret name}"


def lines_of(page: Any, title: str) -> list[str]:
    (block,) = [block for block in read(page).blocks if block.title == title]
    return block.text.strip().splitlines()


@pytest.fixture
async def server(own_server: Any) -> EmbeddedServer:
    server: EmbeddedServer = await own_server()
    return server


@pytest.fixture
async def apart(server: EmbeddedServer, connect: Any, acl: Any) -> Redis:
    """Two users, each with the minimal ACL; gives the administrator."""
    admin: Redis = connect(server)
    for tenant in ("tenant", "other"):
        for line in lines_of(PRODUCTION, "Minimal ACL"):
            await admin.execute_command(*line.replace("shop", tenant).replace("locks", tenant).split())
    return admin


async def given(admin: Redis, word: str) -> None:
    """The tenant gets what the row of the page with that word appends."""
    rows = re.findall(r"^- `(\+[^`]+)`: ", PRODUCTION.read_text(), re.MULTILINE)
    (words,) = [row for row in rows if word in row.split()]
    await admin.execute_command("ACL", "SETUSER", "tenant", *words.split())


@asynccontextmanager
async def by_hand(server: EmbeddedServer) -> AsyncIterator[Any]:
    """A connection of the tenant by which it says what it likes; gives a function that returns the answer."""
    reader, writer = await asyncio.open_unix_connection(str(server.path))

    async def say(*words: str, within: float = 5.0) -> bytes:
        if words:
            writer.write(
                b"".join([b"*%d\r\n" % len(words)] + [b"$%d\r\n%s\r\n" % (len(w), w.encode()) for w in words])
            )
        return await asyncio.wait_for(reader.read(1 << 16), within)

    try:
        assert b"server" in await say("HELLO", "3", "AUTH", "tenant", "secret")
        yield say
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.leaves_keys("other:*")
async def test_with_client_tracking_a_tenant_sees_the_keys_of_others(
    server: EmbeddedServer, connect: Any, apart: Redis
) -> None:
    await given(apart, "+client|tracking")
    async with by_hand(server) as say:
        assert await say("CLIENT", "TRACKING", "ON", "BCAST") == b"+OK\r\n"
        await connect(server).set(KEY, "value", px=10_000)
        assert KEY.encode() in await say()
        assert b"NOPERM" in await say("GET", KEY)


async def test_with_client_kill_a_tenant_closes_the_connections_of_others(
    server: EmbeddedServer, apart: Redis
) -> None:
    await given(apart, "+client|kill")
    admin = apart
    before = await admin.client_id()
    async with by_hand(server) as say:
        assert await say("CLIENT", "KILL", "ID", str(before)) == b":1\r\n"
    assert await admin.client_id() != before


@pytest.mark.leaves_keys("other:*")
async def test_with_scan_a_tenant_sees_the_names_of_all_keys(server: EmbeddedServer, apart: Redis) -> None:
    await given(apart, "+scan")
    await apart.set(KEY, "value", px=10_000)
    async with by_hand(server) as say:
        assert KEY.encode() in await say("SCAN", "0", "COUNT", "1000")


@pytest.mark.leaves_keys("tenant:*")
async def test_with_select_a_tenant_uses_its_prefix_in_another_database(
    server: EmbeddedServer, connect: Any, apart: Redis
) -> None:
    await given(apart, "+select")
    key = KEY.replace("other", "tenant")
    await connect(server, db=1).set(key, "value", px=10_000)
    async with by_hand(server) as say:
        assert await say("SELECT", "1") == b"+OK\r\n"
        assert await say("GET", key) == b"$5\r\nvalue\r\n"


@pytest.mark.leaves_keys("tenant:eu*")
async def test_a_tenant_uses_a_prefix_that_begins_with_its_own(
    server: EmbeddedServer, connect: Any, apart: Redis
) -> None:
    tenant = connect(server, username="tenant", password="secret")
    async with (
        Session(apart, prefix="tenant:eu") as session,
        Lock(session, "name", on_lost="ignore") as lease,
    ):
        assert await tenant.delete("tenant:eu:lock:{name}") == 1
        assert not await lease.owned()


@pytest.mark.usefixtures("apart")
async def test_with_the_minimal_acl_locks_work_and_waiters_are_woken(
    server: EmbeddedServer, connect: Any
) -> None:
    clients = [connect(server, username="tenant", password="secret") for _ in range(2)]
    async with (
        Session(clients[0], prefix="tenant", wakeup="keyspace") as first,
        Session(clients[1], prefix="tenant", wakeup="keyspace") as second,
    ):
        for _ in range(3):
            lease = await Lock(first, "name").acquire()
            waiting = asyncio.create_task(Lock(second, "name").acquire(blocking_timeout=10))
            await eventually(lambda: second.statistics().waiters == 1)
            await asyncio.sleep(0.05)
            await lease.release()
            await (await waiting).release()
        assert second.statistics().wakeups["keyspace"] > 0


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize(
    "words",
    [
        ("CLIENT", "TRACKING", "ON", "BCAST"),
        ("CLIENT", "KILL", "ID", "1"),
        ("CLIENT", "LIST"),
        ("SUBSCRIBE", "__keyspace@0__:other:lock.bell.x"),
        ("PSUBSCRIBE", "__keyspace@0__:other:*"),
        ("GET", KEY),
        ("EVAL", f"return redis.call('GET', '{KEY}')", "0"),
        ("SCAN", "0"),
        ("MONITOR",),
        ("INFO",),
        ("CONFIG", "GET", "*"),
    ],
    ids=" ".join,
)
async def test_with_the_minimal_acl_nothing_of_others_is_to_be_seen(
    server: EmbeddedServer, words: tuple[str, ...]
) -> None:
    async with by_hand(server) as say:
        answer = (await say(*words)).lower()
        assert any(
            said in answer for said in (b"noperm", b"acl failure", b"can't access at least one of the")
        )


@pytest.mark.usefixtures("apart")
async def test_with_the_minimal_acl_no_lock_of_others_can_be_had(
    server: EmbeddedServer, connect: Any
) -> None:
    tenant = connect(server, username="tenant", password="secret")
    with pytest.raises(NoPermissionError):
        await tenant.set(KEY, "value")
