"""Nothing stays behind a request that ends at any moment."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import BackendError, Lease, Lock, LockError, LockLostError, Session
from aiolocks.contrib._holding import Gone, Recipe, holding
from aiolocks.contrib._holds import holds_of
from aiolocks.contrib._refusing import Conflicting, Refusal
from tests.support.waiting import eventually


def make(of: type[Recipe] = Recipe, **options: Any) -> Recipe:
    return of("Locked", name="it", kind=Lock, blocking_timeout=5, conflict=Conflicting(), options=options)


RECIPE = make(ttl=20)

STEPS = 40
"""Of the event loop: more than an acquisition and a release take while the server answers at once."""


async def steps(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0.0005)


async def serve(session: Session, gone: Gone | None, recipe: Recipe = RECIPE) -> str:
    try:
        async with holding(session, "it", recipe, gone, route="GET /it") as held:
            await asyncio.sleep(0.002)
            held.lease.ensure_held()
            return "served"
    except Refusal as refusal:
        return str(refusal.status)


async def test_a_client_may_hang_up_at_any_moment(session: Session, keys: Callable[[], list[str]]) -> None:
    ends: list[str] = []
    for number in range(STEPS):
        async with Lock(session, "it") if number % 2 else asyncio.timeout(None):
            waiting = asyncio.create_task(serve(session, lambda number=number: steps(number)))
            if number % 2:
                await steps(number // 2)
        ends.append(await waiting)
        assert session.statistics().leases_held == 0
        assert session.statistics().waiters == 0
        await eventually(lambda: keys() == [])
    assert {*ends} == {"served", "499"}


async def test_a_client_that_hangs_up_in_the_moment_of_the_grant_is_not_served(
    session: Session, keys: Callable[[], list[str]]
) -> None:
    granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    hung_up = asyncio.Event()

    def both() -> None:
        hung_up.set()
        granted.set_result(None)

    class GrantedThen(Recipe):
        def lock(self, session: Session, name: str) -> Any:
            return self

        async def acquire(self, *, blocking_timeout: object) -> Lease:
            lease = await Lock(session, "it", ttl=20).acquire()
            asyncio.get_running_loop().call_soon(both)
            await granted  # too late for a cancellation: who waits for this goes on with the lease
            return lease

    assert await serve(session, hung_up.wait, make(GrantedThen)) == "499"
    assert session.statistics().acquisitions == 1
    assert session.statistics().leases_held == 0
    assert keys() == []


async def test_a_request_may_be_cancelled_at_any_moment(
    session: Session, keys: Callable[[], list[str]]
) -> None:
    ended: list[object] = []
    for number in range(STEPS):
        request = asyncio.create_task(serve(session, lambda: steps(100_000)))
        for _ in range(number):
            await asyncio.sleep(0)
        request.cancel()
        ended += await asyncio.gather(request, return_exceptions=True)
        assert session.statistics().waiters == 0
        await eventually(lambda: session.statistics().leases_held == 0 and keys() == [])
    assert any(isinstance(end, asyncio.CancelledError) for end in ended)


async def test_who_looks_has_ended_when_the_handler_begins(session: Session) -> None:
    looking: list[str] = []

    async def gone() -> None:
        looking.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            looking.append("ended")

    async with holding(session, "it", RECIPE, gone, route="GET /it"):
        assert looking == ["begun", "ended"]


async def test_not_to_see_whether_the_client_is_there_is_no_reason_not_to_serve(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "aiolocks.requests")

    async def gone() -> None:
        raise RuntimeError("what a framework may do")

    assert await serve(session, gone) == "served"
    assert "whether the client is still there cannot be seen" in caplog.text


@pytest.mark.parametrize(
    "error", [LockLostError("Lock", "another", "of its own"), BackendError("another server")]
)
async def test_what_the_body_raises_is_its_own(session: Session, error: LockError) -> None:
    with pytest.raises(type(error)) as raised:
        async with holding(session, "it", RECIPE, None, route="GET /it"):
            raise error
    assert raised.value is error


async def test_a_lease_that_is_lost_before_the_handler_begins_is_a_reason_to_try_again(
    session: Session,
) -> None:
    stopped = asyncio.Event()

    async def does_not_stop() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.5)
            stopped.set()

    assert await serve(session, does_not_stop, make(ttl=0.1, auto_renew=False)) == "503"
    await stopped.wait()
    assert holds_of(session).median("it") is None  # no handler has held it


async def test_what_a_handler_has_held_is_measured(session: Session) -> None:
    started = time.monotonic()
    async with holding(session, "it", RECIPE, None, route="GET /it"):
        await asyncio.sleep(0.05)
    lasted = time.monotonic() - started
    with pytest.raises(KeyError):
        async with holding(session, "that", make(), None, route="GET /it"):
            raise KeyError("it raises")

    held = holds_of(session).median("it")
    assert held is not None
    assert 0.05 <= held <= lasted
    assert holds_of(session).median("that") is not None
    async with Session(Redis()) as another:
        assert holds_of(another).median("it") is None


@pytest.mark.leaves_keys
async def test_a_kind_with_at_least_refuses_what_comes_before_that_time(session: Session) -> None:
    kind = functools.partial(Lock, at_least=20)
    recipe = Recipe("Locked", name="it", kind=kind, blocking_timeout=0, conflict=Conflicting(), options={})
    assert [await serve(session, None, recipe) for _ in range(2)] == ["served", "423"]
