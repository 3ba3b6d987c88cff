"""`name_of`, `lock.of`: the name that a decorator makes, for code that is not decorated."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

import aiolocks.sync
from aiolocks import (
    Combiner,
    FairLock,
    Leadership,
    Limits,
    Lock,
    LockEvent,
    MultiLock,
    RangeLock,
    RateLimit,
    Redlock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
    name_of,
)
from aiolocks.lock import naming
from tests.unit.fakes import generous

MASTERS = [Redis(port=port) for port in (1, 2, 3)]


class Names(list[str]):
    """Of what was acquired."""

    def on_acquired(self, event: LockEvent) -> None:
        self.append(event.name)


@pytest.fixture
def acquired(monkeypatch: pytest.MonkeyPatch) -> Names:
    monkeypatch.setattr(naming, "_of_all_sessions", {})
    return Names()


@pytest.fixture
def session(make_session: Callable[..., Session], transport: Any, acquired: Names) -> Session:
    """A session whose server grants everything."""
    transport.answer = generous
    return make_session(listeners=[acquired])


@pytest.mark.parametrize(
    "value",
    [
        "ann@shop.example",
        "a b",
        "Zoë",
        "4/7",
        "{x}",
        "%40",
        7,
        1.0,
        None,
        dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    ],
)
async def test_all_ways_make_one_name(session: Session, acquired: Names, value: object) -> None:
    lock = Lock(session, "{{shop}}/user:{email}")

    @lock
    async def decorated(email: object) -> None: ...

    await decorated(value)
    async with lock.of(email=value):
        pass
    async with Lock(session, name_of("{{shop}}/user:{email}", email=value)):
        pass
    assert len(set(acquired)) == 1, acquired
    assert acquired[0].startswith("{shop}/user:")


KINDS: dict[str, Callable[[Any], Any]] = {
    "Lock": lambda client: Lock(client, "a:{b}", ttl=7),
    "FairLock": lambda client: FairLock(client, "a:{b}", ttl=7),
    "ReentrantLock": lambda client: ReentrantLock(client, "a:{b}", owner="me", ttl=7),
    "Semaphore": lambda client: Semaphore(client, "a:{b}", 3, ttl=7),
    "MultiLock": lambda client: MultiLock(client, ["a:{b}"], ttl=7),
    "RWLock": lambda client: RWLock(client, "a:{b}", ttl=7),
    "RWLock.reader": lambda client: RWLock(client, "a:{b}", ttl=7).reader,
    "RangeLock": lambda client: RangeLock(client, "a:{b}", bounds="[]", ttl=7),
    "RangeLock.writer": lambda client: RangeLock(client, "a:{b}", ttl=7).writer(1, 2),
    "Limits": lambda client: Limits(client, "a:{b}", {"all": 2}, ttl=7),
    "Leadership": lambda client: Leadership(client, "a:{b}", ttl=7),
    "Redlock": lambda _: Redlock(MASTERS, "a:{b}", ttl=7),
    "RateLimit": lambda client: RateLimit(client, "a:{b}", 2, 7),
    "RateLimit.all_of": lambda client: RateLimit.all_of(RateLimit(client, "a:{b}", 2, 7)),
    "Combiner": lambda client: Combiner(client, "a:{b}", ttl=7),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_the_same_under_that_name(kind: str) -> None:
    made = KINDS[kind](Redis())
    of = made.of(b="x/y")
    assert of.name == name_of("a:{b}", b="x/y") == "a:x%2Fy"
    assert repr(of) == repr(made).replace("a:{b}", "a:x%2Fy")
    assert type(of) is type(made)
    assert repr(of.of()) == repr(of)
    for wrong, said in (({}, "has a field 'b'"), ({"b": 1, "c": 2}, "has no field 'c'")):
        with pytest.raises(TypeError, match=said):
            made.of(**wrong)
    with pytest.raises(TypeError, match="has no field 'b'"):
        of.of(b=1)
    with pytest.raises(TypeError, match="the same in every process"):
        made.of(b=object())
    with pytest.raises(ValueError, match="equals nothing"):
        made.of(b=float("nan"))


def test_parts_that_are_taken_of_such_a_lock_have_its_name() -> None:
    rw, ranges = RWLock(Redis(), "a:{b}").of(b="/"), RangeLock(Redis(), "a:{b}").of(b="/")
    assert {rw.reader.name, rw.upgradable.name, rw.writer.name, ranges.writer(1, 2).name} == {"a:%2F"}
    several = MultiLock(Redis(), ["from:{a}", "to:{b}", "all"]).of(a=1, b="x y")
    assert several.names == ("all", "from:1", "to:x%20y")
    limits = Limits(Redis(), "exports", {"all": 20, "tenant:{tenant}": 1}).of(tenant="a/b")
    assert limits.keys == {"all": 20, "tenant:a%2Fb": 1}


def test_any_identifier_is_a_field() -> None:
    assert name_of("{self}:{template}:{args}", self=1, template=2, args=3) == "1:2:3"
    assert Lock(Redis(), "{self}:{name}").of(self=1, name=2).name == "1:2"


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({}, TypeError, "has a field 'b'"),
        ({"b": 1, "c": 2}, TypeError, "has no field 'c'"),
        ({"b": b"x"}, TypeError, "the same in every process"),
        ({"b": "x" * 2000}, ValueError, "1024 bytes"),
    ],
)
def test_what_makes_no_name(fields: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        name_of("a:{b}", **fields)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{a}{b}", "between two fields"),
        ("{}", "must be the name of a parameter"),
        ("{a.b}", "must be the name of a parameter"),
        ("{a", "not a template"),
        ("", "empty"),
    ],
)
def test_what_is_no_template(template: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        name_of(template, a=1, b=2)


async def test_a_lock_of_such_a_name_decorates_with_that_name(session: Session, acquired: Names) -> None:
    @Lock(session, "{{tag}}:{a}").of(a=7)
    async def function(tag: int) -> None: ...

    await function(1)
    assert acquired == ["{tag}:7"]


# -- one text as a template, and as a name


async def plain(session: Session, name: str = "user:{email}") -> None:
    async with Lock(session, name):
        pass


async def by_decorator(session: Session) -> None:
    @Lock(session, "user:{email}")
    async def function(email: str) -> None: ...

    await function("x")


async def by_of(session: Session) -> None:
    async with Lock(session, "user:{email}").of(email="x"):
        pass


async def by_name_of(session: Session) -> None:
    name_of("user:{email}", email="x")


@pytest.mark.parametrize("as_template", [by_decorator, by_of, by_name_of])
@pytest.mark.parametrize("first", [True, False])
async def test_a_template_that_is_acquired_as_it_stands_is_told_once(
    session: Session, acquired: Names, caplog: pytest.LogCaptureFixture, as_template: Any, first: bool
) -> None:
    caplog.set_level(logging.WARNING, "aiolocks")
    if not first:
        await plain(session)
    await as_template(session)
    await plain(session)
    await plain(session)
    await as_template(session)
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("'user:{email}' is acquired as it stands, and is a template")


async def test_keys_of_limits_are_templates_too(
    session: Session, acquired: Names, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "aiolocks")
    limits = Limits(session, "exports", {"all": 20, "tenant:{tenant}": 1})
    limits.of(tenant=7)._bind()
    limits._bind()
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("'tenant:{tenant}' is acquired as it stands")


async def test_a_hash_tag_is_not_told(
    session: Session, acquired: Names, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "aiolocks")
    await by_decorator(session)
    for name in ("{user}:cart", "{email}", "user:{}", "user:{a b}"):
        await plain(session, name)
    async with Lock(session, "{{user}}:{a}").of(a=1), Lock(session, "{user}:1x"):
        pass
    assert not caplog.records


async def test_what_is_remembered_of_names_is_bounded(session: Session, acquired: Names) -> None:
    for number in range(1000):
        await plain(session, f"{{tag{number}}}:x")
        name_of(f"{{a}}:{number}", a=1)
    engine = session._usable_engine()
    assert len(engine.names._plain) <= 256
    assert len(naming._of_all_sessions) <= 256


def test_the_locks_of_threads_can_use_it() -> None:
    """The names of `aiolocks.sync` are made by the same function."""
    locks = aiolocks.sync.Session.from_url("redis://localhost:1")
    assert locks.lock(name_of("a:{b}", b="/")).name == "a:%2F"
