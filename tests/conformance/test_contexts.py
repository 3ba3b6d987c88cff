"""What is told of a lease is told in the context of its acquire, and nothing keeps that context longer."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import LockEvent, LockLostError, LockTimeoutError, Session
from tests.conformance.conftest import SHORT, Kind, nothing_left, stall
from tests.support.waiting import eventually

Keys = Callable[..., list[str]]


class Request:
    """What a framework knows of a request, in a variable of its context."""


_request: ContextVar[Request | None] = ContextVar("request", default=None)
_id: ContextVar[str] = ContextVar("id", default="none")


class Told:
    """A listener: which request each event was told in."""

    def __init__(self) -> None:
        self.of: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)

        def hook(event: LockEvent) -> None:
            self.of.append((name, _id.get()))

        return hook


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def session(client: Redis, told: Told) -> AsyncIterator[Session]:
    async with Session(client, listeners=[told]) as session:
        yield session


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return lines_of(caplog)


def lines_of(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """The lines of sessions, each with the request in whose context it was written."""
    lines: list[tuple[str, str]] = []

    def note(record: logging.LogRecord) -> bool:
        lines.append((record.getMessage(), _id.get()))
        return True

    caplog.handler.addFilter(note)
    caplog.set_level(logging.DEBUG, "aiolocks.session")
    return lines


async def within(number: str, work: Callable[[], Awaitable[Any]]) -> Any:
    """Does it as a request of its own, with a context of its own."""

    async def request() -> Any:
        _id.set(number)
        return await work()

    return await asyncio.create_task(request())


@pytest.mark.timed
async def test_events_and_lines_of_a_lease_have_the_request_of_its_acquire(
    kind: Kind, client: Redis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    logged = lines_of(caplog)
    async with Session(client, listeners=[told := Told()]) as session:
        await _are_told(kind, client, session, keys, told, logged)


async def _are_told(
    kind: Kind, client: Redis, session: Session, keys: Keys, told: Told, logged: list[tuple[str, str]]
) -> None:
    async def used() -> None:
        async with kind.make(session, "b"):
            pass

    await within("first", used)  # connects, and sets all timers of the session
    told.of.clear()
    logged.clear()

    lease = await within("second", kind.make(session, "a", ttl=SHORT).acquire)
    await eventually(lambda: any(name == "on_renewed" for name, _ in told.of))
    await client.delete(*keys())
    await within("third", lease.wait_lost)
    of_lease = {name for name, _ in told.of}
    assert of_lease == {"on_acquired", "on_renewed", "on_lost"}
    assert {one for _, one in told.of} == {"second"}
    assert [one for line, one in logged if "was lost after" in line] == ["second"]
    assert {one for line, one in logged if ": renewed" in line or ": acquired" in line} == {"second"}
    told.of.clear()

    lease = await within("fourth", kind.make(session, "c").acquire)
    await within("fifth", lease.release)
    assert told.of == [("on_acquired", "fourth"), ("on_released", "fourth")]


async def test_a_wait_is_told_of_in_the_context_of_who_waits(
    kind: Kind, session: Session, told: Told, logged: list[tuple[str, str]]
) -> None:
    lease = await within("holder", kind.make(session, "a").acquire)
    told.of.clear()

    async def gives_up() -> None:
        with pytest.raises(LockTimeoutError):
            await kind.make(session, "a", blocking_timeout=0.1).acquire()

    first = asyncio.create_task(within("first", kind.make(session, "a").acquire))
    await eventually(lambda: ("on_waiting", "first") in told.of)
    await within("second", gives_up)
    await within("third", lease.release)
    await (await first).release()
    assert {one for one in told.of if one[0] != "on_renewed"} == {
        ("on_waiting", "first"),
        ("on_waiting", "second"),
        ("on_timeout", "second"),
        ("on_not_acquired", "second"),
        ("on_waited", "second"),
        ("on_released", "holder"),
        ("on_waited", "first"),
        ("on_acquired", "first"),
        ("on_released", "first"),
    }
    assert {one for line, one in logged if ": waiting" in line} == {"first", "second"}


@pytest.mark.timed
@pytest.mark.usefixtures("quick_collections")
async def test_a_session_keeps_nothing_of_a_request_that_has_ended(
    kind: Kind, client: Redis, keys: Keys
) -> None:
    refused: list[str] = []

    async def delete() -> None:
        await client.delete(*keys())

    async def apart(work: Coroutine[Any, Any, None]) -> None:
        await asyncio.create_task(work, context=Context())

    async def request(session: Session) -> weakref.ref[Request]:
        _request.set(found := Request())
        lease = await kind.make(session, "a", ttl=SHORT).acquire()  # connects: it is the first
        waiting = asyncio.create_task(kind.make(session, "a", blocking_timeout=3600).acquire())
        try:
            await kind.make(session, "a", blocking_timeout=0.05).acquire()
        except LockTimeoutError:
            refused.append("timeout")
        await lease.release()
        await (await waiting).release()
        lost = await kind.make(session, "a", ttl=SHORT).acquire()
        await apart(delete())  # the timers of the client are its own
        await lost.wait_lost()
        async with kind.make(session, "a"):
            pass
        return weakref.ref(found)

    async with Session(client) as session:
        gone = await asyncio.create_task(request(session))
        assert refused == ["timeout"]
        other = await kind.make(session, "d", ttl=SHORT).acquire()  # its timers go on
        # A moment for a timer that is under way; those that last must keep nothing.
        await eventually(lambda: (gc.collect(), gone() is None)[1], within=3 + stall())
        await asyncio.sleep(SHORT)
        other.ensure_held()
        assert session.statistics().leases_held == 1
        await other.release()


@pytest.mark.timed
async def test_a_listener_may_end_the_lease_that_it_is_told_of(kind: Kind, client: Redis) -> None:
    told: list[str] = []

    class Ends:
        def on_renewed(self, event: LockEvent) -> None:
            told.append("renewed")
            if not given:
                given.append(lease.detach())  # tells of this lease, while it is told of

        def on_detached(self, event: LockEvent) -> None:
            told.append(_id.get())

    given: list[str] = []
    async with Session(client, listeners=[Ends()]) as session:
        lock = kind.make(session, "a", ttl=SHORT)
        lease = await within("acquires", lock.acquire)
        await eventually(lambda: bool(given))
        assert told == ["renewed", "acquires"]
        await (await lock.adopt(given[0])).release()


async def test_a_listener_that_ends_the_program_leaves_nothing_held(
    kind: Kind, client: Redis, keys: Keys
) -> None:
    class Ends:
        def on_acquired(self, _: LockEvent) -> None:
            raise SystemExit(3)

    async with Session(client) as other, Session(client, listeners=[Ends()]) as session:
        with pytest.raises(SystemExit):
            await kind.make(session, "a").acquire()
        async with kind.make(other, "a", blocking_timeout=5):
            assert session.statistics().leases_held == 0
    await nothing_left(kind, keys)


class Panic(BaseException):
    """As an extension in Rust raises where it panics."""


@pytest.mark.timed
async def test_a_panic_of_a_listener_is_logged_and_harms_nothing(
    kind: Kind, client: Redis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    class Panics:
        def __getattr__(self, name: str) -> Any:
            if not name.startswith("on_"):
                raise AttributeError(name)

            def panic(_: LockEvent) -> None:
                seen.append(name)
                raise Panic(name)

            return panic

    async with Session(client, listeners=[Panics()]) as session:
        with pytest.raises(LockLostError):
            async with kind.make(session, "a", ttl=SHORT) as lease:
                await eventually(lambda: "on_renewed" in seen)
                lease.ensure_held()
                await client.delete(*keys())
                await asyncio.sleep(10)
        async with kind.make(session, "a"):
            waiting = asyncio.create_task(kind.make(session, "a").acquire())
            await eventually(lambda: "on_waiting" in seen)
        await (await waiting).release()
    assert {"on_acquired", "on_renewed", "on_lost", "on_waiting", "on_waited", "on_released"} == set(seen)
    told = [record for record in caplog.records if "a listener failed" in record.message]
    assert told
    assert all(record.exc_info and record.exc_info[0] is Panic for record in told)
    await nothing_left(kind, keys)
