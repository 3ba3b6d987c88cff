"""A server that refuses for a while, and locks of all kinds: calls end in time and leave nothing behind.

`test_refusals.py` says the same of `Lock` at length. Here it is one table: the states of `troubles.py`, and
those in which a server does not answer, admits no connection, cuts off a long reply or loads its data.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    BackendError,
    FairLock,
    Lease,
    LeaseState,
    Lock,
    LockTimeoutError,
    MultiLock,
    RangeLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
)
from aiolocks.testing import EmbeddedServer
from tests.adversity.tools import SLACK, Keys, elapsed
from tests.adversity.troubles import TROUBLES, Setting, Trouble, is_loading
from tests.conftest import Connect, OwnServer
from tests.support.waiting import eventually

KINDS: dict[str, Callable[..., Any]] = {
    "Lock": Lock,
    "FairLock": FairLock,
    "ReentrantLock": ReentrantLock,
    "MultiLock": lambda session, name, **options: MultiLock(session, [name, f"{name}'"], **options),
    "Semaphore": lambda session, name, **options: Semaphore(session, name, 1, **options),
    "fair Semaphore": lambda session, name, **options: Semaphore(session, name, 1, fair=True, **options),
    "RWLock.reader": lambda session, name, **options: RWLock(session, name, **options).reader,
    "RWLock.upgradable": lambda session, name, **options: RWLock(session, name, **options).upgradable,
    "RWLock.writer": lambda session, name, **options: RWLock(session, name, **options).writer,
    "RangeLock": lambda session, name, **options: RangeLock(session, name, **options).writer(0, 10),
}
PATIENCE = 0.4
"""Seconds that a single request may take."""
BLOCKING = 0.3
HELD_FOR = 6.0
"""Seconds: longer than a trouble lasts, however busy the machine is."""


@asynccontextmanager
async def paused(admin: Redis, _: EmbeddedServer) -> AsyncIterator[None]:
    """By CLIENT PAUSE: nothing is answered, and all of it is executed afterwards."""
    await admin.execute_command("CLIENT", "PAUSE", "1200", "ALL")
    yield
    await admin.ping()


@asynccontextmanager
async def without_connections(admin: Redis, _: EmbeddedServer) -> AsyncIterator[None]:
    """The session has lost its connection, and the server admits no other one."""
    await admin.config_set("maxclients", 1)
    await admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    try:
        yield
    finally:
        await admin.config_set("maxclients", 1000)


MORE_TROUBLES = [
    Trouble("CLIENT PAUSE", paused, "did not answer"),
    Trouble("maxclients", without_connections, "max number of clients"),
]


async def ends_in_time(lock: Any, *, tries_answered: bool = False) -> None:
    """A try, a wait with an end and a wait that is cancelled, at once; none of them gets the lock.

    With `tries_answered`, the try may be told that it is held.
    """

    async def tried() -> None:
        with elapsed() as took:
            try:
                assert await lock.try_acquire() is None
                assert tries_answered
            except BackendError:
                pass
        assert took.seconds < PATIENCE + SLACK

    async def within(seconds: float, acquiring: Any) -> None:
        with elapsed() as took, pytest.raises((BackendError, LockTimeoutError)):
            await acquiring
        assert took.seconds < seconds + SLACK

    async def cancelled_after(seconds: float) -> None:
        acquiring = asyncio.create_task(lock.acquire())
        await asyncio.wait({acquiring}, timeout=seconds)
        acquiring.cancel()
        with elapsed() as took, pytest.raises((BackendError, asyncio.CancelledError)):
            await acquiring
        assert took.seconds < SLACK

    await asyncio.gather(
        tried(),
        within(BLOCKING, lock.acquire(blocking_timeout=BLOCKING)),
        cancelled_after(0.1),
    )


async def all_end_in_time(session: Session) -> None:
    await asyncio.gather(*(ends_in_time(make(session, f"wanted {kind}")) for kind, make in KINDS.items()))


async def take_each(session: Session, name: str, **options: Any) -> list[Lease]:
    return await asyncio.gather(
        *(make(session, f"{name} {kind}", **options).acquire() for kind, make in KINDS.items())
    )


async def let_go(leases: list[Lease]) -> None:
    await asyncio.gather(*(lease.release() for lease in leases))


@pytest.mark.thin
@pytest.mark.parametrize("trouble", [*TROUBLES, *MORE_TROUBLES], ids=str)
@pytest.mark.parametrize("dress", ["multiplexed"], indirect=True)
async def test_t_n_11_calls_of_all_kinds_end_in_time_and_leave_nothing(
    trouble: Trouble, setting: Setting, keys: Keys
) -> None:
    server, client, lasting = setting
    async with Session(client, command_timeout=PATIENCE) as session:
        held = await take_each(session, "held", ttl=HELD_FOR)
        later = await take_each(session, "later", ttl=HELD_FOR)
        async with lasting():
            releasing = asyncio.create_task(let_go(later)) if trouble.transient else None
            await all_end_in_time(session)
        await (releasing or asyncio.create_task(let_go(later)))
        # The first renewal, soon after the grant, may have been refused.
        await eventually(lambda: all(lease.state is LeaseState.HELD for lease in held))
        # None of them is held up by what was wanted before, which has a ttl of 30 s.
        await let_go(await asyncio.wait_for(take_each(session, "wanted"), 5))
        await let_go(held)
        await eventually(lambda: keys(server) == [], within=3)


async def test_t_n_11_replies_that_are_cut_off_end_no_wait_late_and_leave_nothing(
    own_server: OwnServer, connect: Connect, keys: Keys
) -> None:
    """A refusal tells who holds it, with metadata that are longer than the output buffer may become."""
    server = await own_server()
    admin = connect(server)
    async with (
        Session(connect(server), largest_metadata=1_000_000) as holder,
        Session(connect(server)) as session,
    ):
        leases = await take_each(holder, "wanted", metadata={"long": "x" * 200_000})
        await admin.config_set("client-output-buffer-limit", "normal 100kb 0 0")
        # A reader would get in beside the other one.
        excluded = [kind for kind in KINDS if kind != "RWLock.reader"]
        # The refusal of a try names no holder, so it is short.
        await asyncio.gather(
            *(ends_in_time(KINDS[kind](session, f"wanted {kind}"), tries_answered=True) for kind in excluded)
        )
        await admin.config_set("client-output-buffer-limit", "normal 0 0 0")
        await let_go(leases)
        await let_go(await asyncio.wait_for(take_each(session, "wanted"), 5))
        await eventually(lambda: keys(server) == [], within=3)


@pytest.mark.leaves_keys("junk:*")
async def test_t_n_11_while_a_server_loads_its_data_all_kinds_end_in_time_and_go_on_after_it(
    own_server: OwnServer, connect: Connect, keys: Keys
) -> None:
    """A lease that the data hold is held throughout."""
    server = await own_server(
        arguments=("--key-load-delay", "3000", "--loading-process-events-interval-bytes", "1024")
    )
    client = connect(server)
    async with Session(client, command_timeout=PATIENCE) as session:
        held = await take_each(session, "held", ttl=HELD_FOR)
        await client.mset({f"junk:{number}": "x" * 100 for number in range(400)})
        await client.save()
        server.kill()
        restarting = asyncio.create_task(server.restart())
        await eventually(lambda: is_loading(server), within=5)
        await all_end_in_time(session)
        assert not restarting.done()
        await restarting
        await let_go(await asyncio.wait_for(take_each(session, "wanted"), 5))
        await eventually(lambda: all(lease.state is LeaseState.HELD for lease in held))
        await let_go(held)
        await eventually(lambda: [key for key in keys(server) if "junk" not in key] == [], within=3)
