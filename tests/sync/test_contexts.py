"""What is told of a lease of a thread has the context of its acquire, and nothing keeps that longer."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, copy_context
from typing import Any

import pytest
from redis import Redis

from aiolocks import LockEvent, LockLostError, LockNotOwnedError
from aiolocks.sync import Session
from tests.sync.conftest import wait_until

_request: ContextVar[Any] = ContextVar("request", default=None)
_id: ContextVar[str] = ContextVar("id", default="none")


class Request:
    """What a framework knows of a request, in a variable of its thread's context."""


class Told:
    def __init__(self) -> None:
        self.of: list[tuple[str, str]] = []

    def on_acquired(self, event: LockEvent) -> None:
        self.of.append((f"acquired {event.name}", _id.get()))

    def on_renewed(self, event: LockEvent) -> None:
        self.of.append((f"renewed {event.name}", _id.get()))

    def on_released(self, event: LockEvent) -> None:
        self.of.append((f"released {event.name}", _id.get()))

    def on_lost(self, event: LockEvent) -> None:
        self.of.append((f"lost {event.name}", _id.get()))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def locks(url: str, told: Told) -> Any:
    with Session.from_url(url, prefix="shop", listeners=[told]) as session:
        yield session


def within(number: str, work: Callable[[], Any]) -> Any:
    """Does it as one request of several that this thread serves."""

    def request() -> Any:
        _id.set(number)
        return work()

    return copy_context().run(request)


def test_each_request_of_a_thread_has_its_own(locks: Session, redis: Redis, told: Told) -> None:
    lost: list[tuple[str, str]] = []

    def on_lost(error: LockLostError) -> None:
        lost.append((error.name, _id.get()))

    def uses() -> None:
        with locks.lock("a"):
            pass

    within("first", uses)  # begins the loop, connects, and sets all timers
    within("second", uses)
    lease = within("third", locks.lock("b", ttl=2, on_lost=on_lost).acquire)
    wait_until(lambda: ("renewed b", "third") in told.of)
    assert within("fourth", lambda: locks.call(_seen)) == "fourth"
    redis.delete("shop:lock:{b}")
    wait_until(lambda: lost)
    assert lost == [("b", "third")]
    assert {one for one in told.of if one[0] != "renewed b"} == {
        ("acquired a", "first"),
        ("released a", "first"),
        ("acquired a", "second"),
        ("released a", "second"),
        ("acquired b", "third"),
        ("lost b", "third"),
    }
    assert {number for what, number in told.of if what == "renewed b"} == {"third"}
    with pytest.raises(LockLostError):
        lease.ensure_held()
    with suppress(LockNotOwnedError):
        lease.release()


async def _seen(_: Any) -> str:
    return _id.get()


@pytest.mark.usefixtures("quick_collections")
def test_nothing_is_kept_of_a_request_that_has_ended(locks: Session) -> None:
    gone: list[weakref.ref[Request]] = []

    def request() -> None:
        _request.set(found := Request())
        gone.append(weakref.ref(found))
        with locks.lock("a", ttl=2):
            assert locks.lock("a").try_acquire() is None
        with locks.lock("b", cache=5), locks.lock("c", blocking_timeout=3600):
            pass
        with locks.lock("b", cache=5):
            pass

    copy_context().run(request)  # in a thread that goes on
    other = threading.Thread(target=lambda: copy_context().run(request))
    other.start()
    other.join()
    held = locks.lock("d", ttl=2).acquire()
    wait_until(lambda: (gc.collect(), all(one() is None for one in gone))[1])
    assert len(gone) == 2
    held.ensure_held()
    held.release()
