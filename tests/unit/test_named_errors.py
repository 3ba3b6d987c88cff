"""An error of the server says in its traceback, and so in the log, what was asked for."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiolocks import (
    BackendError,
    FencedRegister,
    Latch,
    Limits,
    Lock,
    RateLimit,
    RWLock,
    Semaphore,
    Session,
    SingleFlight,
    Turnstile,
    UniqueJob,
)
from tests.conftest import Connect, OwnServer
from tests.kinds import declared

ASKED: dict[str, Callable[[Session], Awaitable[Any]]] = {
    "a wait": lambda session: Lock(session, "order:17", ttl=0.3).acquire(),
    "a wait with an end": lambda session: Lock(session, "order:17").acquire(blocking_timeout=0.2),
    "a try": lambda session: Lock(session, "order:17").try_acquire(),
    "a part": lambda session: RWLock(session, "order:17").writer.acquire(blocking_timeout=0.2),
    "permits": lambda session: Semaphore(session, "order:17", 3).available(),
    "limits": lambda session: Limits(session, "order:17", {"all": 1}).in_use(),
    "a question": lambda session: Lock(session, "order:17").locked(),
    "a ticket": lambda session: UniqueJob(session, "order:17").enqueue("until_executed"),
    "a flight": lambda session: SingleFlight(session, ttl=0.3).do("order:17", _never),
    "a turnstile": lambda session: Turnstile(session, "order:17", window=1).enter(),
    "a latch": lambda session: Latch(session, "order:17", 2).count_down(),
    "a limit": lambda session: RateLimit(session, "order:17", 1, per=1).acquire(),
    "a register": lambda session: FencedRegister(session, "order:17").read(),
    "operators": lambda session: session.force_release("order:17"),
}
ASKED |= {str(number): ask for number, ask in enumerate(declared("ASKED"))}


async def _never() -> None:
    raise AssertionError("nobody has the lock")


async def test_the_traceback_names_it(own_server: OwnServer, connect: Connect) -> None:
    """Each of them, asked for at once."""
    server = await own_server()
    async with Session(connect(server)) as session:
        assert await session.healthy()
        server.kill()
        asked = [work(session) for work in ASKED.values()]
        raised = dict(zip(ASKED, await asyncio.gather(*asked, return_exceptions=True), strict=True))
    assert {what for what, error in raised.items() if not isinstance(error, BackendError)} == set()
    told = {what: "".join(traceback.format_exception(error)) for what, error in raised.items()}
    assert {
        what for what, text in told.items() if "order:17" not in text.rpartition("BackendError")[2]
    } == set()


async def test_a_release_that_fails_names_it(own_server: OwnServer, connect: Connect) -> None:
    server = await own_server()
    async with Session(connect(server)) as session:
        lease = await Lock(session, "order:17", ttl=0.4).acquire()
        server.kill()
        with pytest.raises(BackendError) as caught:
            await lease.release()
    (note,) = caught.value.__notes__
    assert note == "aiolocks: Lock 'order:17' was not released; its ttl frees it"


async def test_a_window_that_is_not_ended_is_named(own_server: OwnServer, connect: Connect) -> None:
    server = await own_server()
    async with Session(connect(server), command_timeout=0.3) as session:
        with pytest.raises(BackendError) as caught:
            async with Turnstile(session, "order:17", window=20) as place:
                assert place == 1
                server.kill()
    (note,) = caught.value.__notes__
    assert "order:17" in note
