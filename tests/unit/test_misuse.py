"""Things that are asynchronous and of one process, used as if they were not."""

from __future__ import annotations

import contextlib
import copy
import inspect
import pickle
import pydoc
import re
from typing import Any

import pytest
from redis.asyncio import Redis

import aiolocks
from aiolocks import (
    Combiner,
    FairLock,
    FencedRegister,
    Limits,
    Lock,
    MultiLock,
    RangeLock,
    RateLimit,
    RWLock,
    Semaphore,
    Session,
    SingleFlight,
    Turnstile,
    UniqueJob,
    sync,
)
from tests.unit.fakes import hold

LOCKS = {
    "Lock": Lock(Redis(), "name"),
    "FairLock": FairLock(Redis(), "name"),
    "Limits": Limits(Redis(), "name", {"all": 1}),
    "MultiLock": MultiLock(Redis(), ["a", "b"]),
    "Semaphore": Semaphore(Redis(), "name", 3),
    "Turnstile": Turnstile(Redis(), "name"),
    "RWLock.writer": RWLock(Redis(), "name").writer,
}
EACH: dict[str, Any] = {**LOCKS, "Session": Session(Redis()), "acquisition": Lock(Redis(), "name").acquire()}


def with_(thing: Any) -> None:
    with thing:
        raise AssertionError("entered")


@pytest.mark.parametrize("what", EACH)
def test_with_is_told_to_be_async_with(what) -> None:
    with pytest.raises(TypeError, match=rf"^write `async with` instead of `with`: <{what} "):
        with_(EACH[what])


NOT_ENTERED: dict[str, tuple[Any, Any, str]] = {
    "RWLock": (RWLock, "rwlock", "what is acquired is its .reader, .upgradable or .writer"),
    "RangeLock": (RangeLock, "rangelock", "what is acquired is its .reader(lo, hi), .upgradable(lo, hi)"),
    "UniqueJob": (UniqueJob, "uniquejob", "enter its run() or its perform(ticket)"),
    "FencedRegister": (
        FencedRegister,
        "fencedregister",
        "call its write(value, fencing_token) or its read()",
    ),
    "Combiner": (Combiner, "combiner", "decorate the function that runs a batch with it"),
    "SingleFlight": (
        lambda client, _: SingleFlight(client),
        "singleflight",
        "call its do(key, fn), or enter",
    ),
}


@pytest.mark.parametrize("what", NOT_ENTERED)
async def test_what_is_not_entered_itself_says_what_is(what) -> None:
    make, _, instead = NOT_ENTERED[what]
    thing = make(Redis(), "name")

    with pytest.raises(TypeError, match=rf"^<{what} .*> is not entered itself: {re.escape(instead)}"):
        async with thing:
            raise AssertionError("entered")
    with pytest.raises(TypeError, match="is not entered itself"):
        with_(thing)
    with pytest.raises(AttributeError, match=rf"'{what}' object has no attribute 'acquire': {instead[:4]}"):
        thing.acquire()


@pytest.mark.parametrize("what", NOT_ENTERED)
def test_for_threads_too(what) -> None:
    _, method, instead = NOT_ENTERED[what]
    thing = getattr(sync.Session("redis://localhost"), method)(*[] if method == "singleflight" else ["name"])

    with pytest.raises(TypeError, match=rf"^<{what} .*> is not entered itself: {re.escape(instead)}"):
        with_(thing)
    with pytest.raises(AttributeError, match=rf"'{what}' object has no attribute 'acquire': {instead[:4]}"):
        thing.acquire()


@pytest.mark.parametrize("what", EACH)
@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_thing_of_this_process_is_not_sent_to_another(what, way) -> None:
    with pytest.raises(TypeError, match=rf"^<{what} .*> cannot be pickled or copied: \w"):
        way(EACH[what])


async def test_a_lease_says_how_it_is_handed_over(offline, transport) -> None:
    lease = await hold(offline, transport)

    with pytest.raises(TypeError, match=r"^write `async with` instead of `with`: <Lease lock 'name' HELD"):
        with_(lease)
    with pytest.raises(TypeError, match="cannot be pickled or copied: hand it over by `handle =") as said:
        pickle.dumps(lease)
    assert lease.token not in str(said.value)


async def test_what_other_libraries_call_a_method_is_told(offline, transport) -> None:
    lease = await hold(offline, transport)
    lock, session, blocking = Lock(offline, "name"), offline, sync.Session("redis://localhost")
    said = {
        (
            lock,
            "refresh",
        ): "'Lock' object has no attribute 'refresh': a lease is renewed by itself, and lease.extend",
        (lease, "renew"): "'Lease' object has no attribute 'renew': a lease is renewed by itself",
        (lock, "release"): "'Lock' object has no attribute 'release': the lease that acquire() gives has it",
        (lock, "is_locked"): "'Lock' object has no attribute 'is_locked': use locked() of a lock",
        (lease, "unlock"): "'Lease' object has no attribute 'unlock': use `async with`, or release()",
        (lease, "is_held"): "'Lease' object has no attribute 'is_held': use lease.ensure_held()",
        (
            session,
            "lock",
        ): "'Session' object has no attribute 'lock': write Lock(session, …), or make an aiolocks.sync",
        (session, "rwlock"): "'Session' object has no attribute 'rwlock': write RWLock(session, …)",
        (session, "close"): "'Session' object has no attribute 'close': use aclose()",
        (RateLimit(session, "a", 1, 1), "close"): "'RateLimit' object has no attribute 'close'",
        (SingleFlight(session), "unlock"): "'SingleFlight' object has no attribute 'unlock'",
        (
            blocking.lock("name"),
            "refresh",
        ): "'Lock' object has no attribute 'refresh': a lease is renewed by itself",
    }
    for (thing, attribute), text in said.items():
        with pytest.raises(AttributeError) as caught:
            getattr(thing, attribute)
        assert str(caught.value).startswith(text)
        assert (caught.value.name, caught.value.obj) == (attribute, thing)
    assert str(caught.value).count(":") == 1


def test_every_kind_that_threads_make_from_a_session_is_told() -> None:
    made = {
        name for name, member in vars(sync.Session).items() if not name.startswith("_") and callable(member)
    }
    kinds = {name.lower() for name in aiolocks.__all__ if hasattr(getattr(aiolocks, name), "name")}
    for name in (made & kinds) | {"combiner", "fencedregister", "schedule", "singleflight", "uniquejob"}:
        with pytest.raises(AttributeError, match=r"write \w+\(") as caught:
            getattr(Session(Redis()), name)
        assert f"write {next(one for one in aiolocks.__all__ if one.lower() == name)}(" in str(caught.value)


def shown() -> list[Any]:
    """The public classes and functions, and their public methods."""
    found: list[Any] = []
    for package in (aiolocks, sync):
        for one in (getattr(package, name) for name in package.__all__):
            if inspect.isroutine(one) or inspect.isclass(one):
                found.append(one)
            if inspect.isclass(one):
                members = {**dict(inspect.getmembers(one)), "__call__": vars(one).get("__call__")}
                found += [each for name, each in members.items() if name == "__call__" or name[0] != "_"]
    return [one for one in found if inspect.isroutine(one) or inspect.isclass(one)]


def test_help_shows_no_parameter_that_is_there_for_an_error_alone() -> None:
    signatures = {}
    for one in shown():
        with contextlib.suppress(ValueError, TypeError):  # of what is written in C
            name = f"{getattr(one, '__module__', '')}.{one.__qualname__}"
            signatures[name] = str(inspect.signature(one))
    assert len(signatures) > 150
    assert (
        "blocking_timeout: 'Seconds | None' = <that of the lock>"
        in signatures["aiolocks.lock.acquirable.Acquirable.acquire"]
    )
    wrong = {name: said for name, said in signatures.items() if "unknown" in said or "object object" in said}
    assert wrong == {}
    assert "**unknown" not in pydoc.render_doc(Lock)
