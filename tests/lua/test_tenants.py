"""Several tenants on one server: what the minimal ACL lets one do to another, and an ACL that does not."""

from __future__ import annotations

import asyncio
import contextlib
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

LIMITS = ROOT / "docs" / "explanation" / "known-limits.md"
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
async def minimal(server: EmbeddedServer, connect: Any, acl: Any) -> None:
    """A user with the minimal ACL."""
    (line,) = lines_of(PRODUCTION, "Minimal ACL")
    await connect(server).execute_command(*line.replace("shop", "tenant").replace("locks", "tenant").split())


@pytest.fixture
async def apart(server: EmbeddedServer, connect: Any, acl: Any) -> None:
    """Two users, each with the ACL for a tenant."""
    admin = connect(server)
    for tenant in ("tenant", "other"):
        for line in lines_of(LIMITS, "ACL for each tenant"):
            await admin.execute_command(*line.replace("tenant", tenant).split())


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


@pytest.mark.usefixtures("minimal")
@pytest.mark.leaves_keys("other:*")
async def test_with_the_minimal_acl_a_tenant_sees_the_keys_of_others(
    server: EmbeddedServer, connect: Any
) -> None:
    async with by_hand(server) as say:
        assert await say("CLIENT", "TRACKING", "ON", "BCAST") == b"+OK\r\n"
        await connect(server).set(KEY, "value", px=10_000)
        assert KEY.encode() in await say()
        assert b"NOPERM" in await say("GET", KEY)


@pytest.mark.usefixtures("minimal")
async def test_with_the_minimal_acl_a_tenant_closes_the_connections_of_others(
    server: EmbeddedServer, connect: Any
) -> None:
    admin: Redis = connect(server)
    before = await admin.client_id()
    async with by_hand(server) as say:
        assert await say("CLIENT", "KILL", "ID", str(before)) == b":1\r\n"
    assert await admin.client_id() != before


@pytest.mark.usefixtures("apart")
async def test_with_an_acl_for_each_tenant_locks_work_and_waiters_are_woken(
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
async def test_with_an_acl_for_each_tenant_nothing_of_others_is_to_be_seen(
    server: EmbeddedServer, words: tuple[str, ...]
) -> None:
    async with by_hand(server) as say:
        answer = (await say(*words)).lower()
        assert any(
            said in answer for said in (b"noperm", b"acl failure", b"can't access at least one of the")
        )


@pytest.mark.usefixtures("apart")
async def test_with_an_acl_for_each_tenant_no_lock_of_others_can_be_had(
    server: EmbeddedServer, connect: Any
) -> None:
    tenant = connect(server, username="tenant", password="secret")
    with pytest.raises(NoPermissionError):
        await tenant.set(KEY, "value")
