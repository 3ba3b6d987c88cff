"""Sessions with a client of their own, which are made at import and used on one loop after the other."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    Leadership,
    Lock,
    Redlock,
    Session,
    SessionClosedError,
    SingleFlight,
    Term,
    UniqueJob,
)
from tests.conftest import OwnServer, blocking
from tests.support.clusters import Cluster
from tests.support.sentinels import SERVICE, Watched
from tests.support.servers import Server
from tests.support.waiting import eventually


def clients_of(server: Server) -> int:
    """The connections to the server, but for the one that asks."""
    with blocking(server.url) as admin:
        return len(admin.client_list()) - 1


async def use(session: Session) -> None:
    async with Lock(session, "a"):
        pass


# -- one loop after the other; these tests are not async, for they make their loops themselves ---------------


@pytest.fixture
def shared(_shared_server: Any) -> Server:
    """Without what the suite does on the loop of a test."""
    server: Server = _shared_server[0]
    return server


@pytest.fixture
def locks(shared: Server) -> Session:
    """Made where no loop runs."""
    return Session.from_url(shared.url, prefix="shop")


def test_it_does_nothing_before_it_is_used(shared: Server) -> None:
    before = clients_of(shared)
    session = Session.from_url(shared.url)
    Lock(session, "a")
    assert clients_of(shared) == before
    assert "not used yet" in repr(session)


@pytest.mark.parametrize("closes", [True, False])
def test_objects_of_a_module_are_used_on_one_loop_after_the_other(locks: Session, *, closes: bool) -> None:
    called: list[str] = []

    @Lock(locks, "decorated")
    async def decorated() -> None:
        called.append("lock")

    @SingleFlight(locks)("value")
    async def value() -> str:
        called.append("flight")
        return "value"

    leadership, job, lock = Leadership(locks, "leads"), UniqueJob(locks, "job"), Lock(locks, "a")

    async def main(term: Term) -> None:
        called.append("leader")

    async def everything() -> None:
        await decorated()
        assert await value() == "value"
        await leadership.run(main)
        async with job.run():
            called.append("job")
        async with lock, Lock(locks, "a" * 10):
            called.append("held")

    async def program() -> None:
        if closes:
            async with locks:
                await everything()
        else:
            await everything()

    for _ in range(3):
        called.clear()
        asyncio.run(program())
        assert called == ["lock", "flight", "leader", "job", "held"]
    asyncio.run(locks.aclose())


async def test_a_redlock_of_such_sessions(own_server: OwnServer) -> None:
    servers = [await own_server() for _ in range(3)]

    def program() -> None:
        sessions = [Session.from_url(server.url) for server in servers]
        lock = Redlock(sessions, "a", ttl=5)

        async def hold() -> None:
            async with lock:
                pass

        for _ in range(2):
            asyncio.run(hold())

    await asyncio.to_thread(program)


# -- its end -------------------------------------------------------------------------------------------------


async def test_its_end_closes_its_client(server: Server) -> None:
    before = clients_of(server)
    session = Session.from_url(server.url)
    async with session:
        await use(session)
        client = session._client
        await client.ping()
        assert clients_of(server) >= before + 2  # the session's connection, and one of the client's
    await eventually(lambda: clients_of(server) == before)
    with pytest.raises(SessionClosedError):
        await use(session)
    assert "closed" in repr(session)
    async with session:  # again
        await use(session)
        assert session._client is not client
    await eventually(lambda: clients_of(server) == before)
    await session.aclose()


async def test_an_end_before_its_use(server: Server) -> None:
    session = Session.from_url(server.url)
    await session.aclose()
    with pytest.raises(SessionClosedError):
        await use(session)


async def test_the_end_of_another_client_is_that_clients(server: Server, redis: Redis) -> None:
    async with Session(redis) as session:
        await use(session)
    assert await redis.ping()
    with pytest.raises(SessionClosedError):  # only a session that makes its client opens again
        async with session:
            pass


async def test_a_function_makes_the_client(server: Server) -> None:
    made: list[Redis] = []

    def make() -> Redis:
        made.append(Redis.from_url(server.url))
        return made[-1]

    session = Session.from_url(make, prefix="shop")
    assert made == []
    for number in (1, 2):
        async with session:
            await use(session)
        assert len(made) == number
    with pytest.raises(TypeError, match="a URL: make a client of it"):
        await use(Session.from_url(lambda: "redis://localhost"))


# -- what it leads to ----------------------------------------------------------------------------------------


async def test_a_cluster(shared_cluster: Cluster) -> None:
    nodes = ",".join(f"127.0.0.1:{node.port}" for node in shared_cluster.masters)
    async with Session.from_url(f"redis+cluster://{nodes}") as session:
        for number in range(10):
            async with Lock(session, f"a{number}"):
                pass


async def test_the_master_that_sentinel_knows(tmp_path: Path) -> None:
    async with Watched(tmp_path) as watched:
        url = f"redis+sentinel://127.0.0.1:{watched.sentinel.port}/{SERVICE}"
        async with Session.from_url(url) as session:
            await use(session)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost",
        "localhost:6379",
        "redis://user:se:cret@host:port",
        "redis://host/0?nonsense=1",
        "redis+sentinel://host",
        "redis+cluster://host/3",
        "",
    ],
)
async def test_what_is_no_url_is_told_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="this is not a URL of a Redis server: redis://") as wrong:
        Session.from_url(url)
    assert "cret" not in str(wrong.value)
    assert wrong.value.__cause__ is None


async def test_arguments_are_checked() -> None:
    with pytest.raises(TypeError, match="give a URL, or a function that makes a client, not Redis"):
        Session.from_url(Redis())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="prefixx"):
        Session.from_url("redis://localhost", prefixx="a")  # type: ignore[call-arg]
    assert "cret" not in repr(Session.from_url("redis://user:secret@localhost", prefix="a"))
    with pytest.raises(TypeError, match=r"or a session with Session.from_url\(\)"):
        Lock("redis://localhost", "a")


# -- processes -----------------------------------------------------------------------------------------------


def run(program: str, url: str) -> subprocess.CompletedProcess[str]:
    """With all warnings, but those of asyncio of a callback that took long."""
    environment = os.environ | {"URL": url}
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(program)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    lines = ended.stderr.splitlines(keepends=True)
    ended.stderr = "".join(
        line for line in lines if not re.match(r"Executing <.* took \d+\.\d+ seconds$", line)
    )
    return ended


def test_one_that_nobody_closes_ends_in_silence(shared: Server) -> None:
    result = run(
        """
        import asyncio, os
        from aiolocks import Lock, Session
        locks = Session.from_url(os.environ["URL"])

        async def main():
            async with Lock(locks, "a"):
                print("held")

        asyncio.run(main())
        asyncio.run(main())
        """,
        shared.url,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "held\nheld\n", "")


def test_a_child_begins_anew(shared: Server) -> None:
    """As workers do that are forked after the application was loaded, and used."""
    result = run(
        """
        import asyncio, os, sys
        from aiolocks import Lock, Session
        locks = Session.from_url(os.environ["URL"])
        lock = Lock(locks, "a")

        async def main(who):
            async with lock:
                print(who, flush=True)

        async def parent():
            await main("parent")
            child = os.fork()
            if not child:
                return True
            await asyncio.to_thread(os.waitpid, child, 0)
            await main("parent again")
            return False

        loop = asyncio.new_event_loop()
        if loop.run_until_complete(parent()):
            asyncio.run(main("child"))
            os._exit(0)
        loop.run_until_complete(locks.aclose())
        loop.close()
        """,
        shared.url,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "parent\nchild\nparent again\n"
