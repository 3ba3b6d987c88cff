"""`@Lock(client, "order:{order_id}")`: the name of the lock in the arguments of a call."""

from __future__ import annotations

import datetime as dt
import enum
import functools
import uuid
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any
from unittest.mock import AsyncMock

import pytest
from redis.asyncio import Redis

from aiolocks import (
    FairLock,
    Lock,
    LockEvent,
    MultiLock,
    RangeLock,
    Redlock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
    SingleFlight,
)
from tests.unit.fakes import generous


class Names(list[str]):
    """Of what was acquired."""

    def on_acquired(self, event: LockEvent) -> None:
        self.append(event.name)


@pytest.fixture
def acquired() -> Names:
    return Names()


@pytest.fixture
def session(make_session: Callable[..., Session], transport: Any, acquired: Names) -> Session:
    """A session whose server grants everything."""
    transport.answer = generous
    return make_session(listeners=[acquired])


def lock(name: str = "order:{order_id}") -> Lock:
    return Lock(Redis(), name)


class Color(enum.Enum):
    RED = "red"


class Price(enum.Enum):
    LOW = Decimal("1.5")


class Sku:
    def __str__(self) -> str:
        return "sku 9"


# -- which name


async def test_a_field_is_the_argument_of_the_call(session, acquired) -> None:
    @Lock(session, "order:{order_id}")
    async def ship(order_id: int, *, express: bool = False) -> tuple[int, bool]:
        """Ships it."""
        return order_id, express

    assert await ship(7) == (7, False)
    assert await ship(order_id=8, express=True) == (8, True)
    assert acquired == ["order:7", "order:8"]
    assert (ship.__name__, ship.__doc__) == ("ship", "Ships it.")


async def test_every_sort_of_parameter_can_be_a_field(session, acquired) -> None:
    @Lock(session, "{a}:{b}:{c}:{d}")
    async def function(a: int, /, b: str = "two", *more: int, c: int, d: str | None = None) -> None: ...

    await function(1, c=3)
    await function(1, "x", 5, 6, c=3, d="y")
    assert acquired == ["1:two:3:", "1:x:3:y"]


async def test_self_is_a_parameter(session, acquired) -> None:
    @dataclass
    class Account:
        number: int

        def __str__(self) -> str:
            return f"account-{self.number}"

        @Lock(session, "{self}:{what}")
        async def read(self, what: str) -> int:
            return self.number

    assert await Account(5).read("balance") == 5
    assert acquired == ["account-5:balance"]


async def test_a_field_may_stand_in_a_hash_tag(session, acquired) -> None:
    @Lock(session, "{{{user}}}:cart")
    async def function(user: str) -> None: ...

    await function("ann")
    assert acquired == ["{ann}:cart"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a b/ü", "a%20b%2F%C3%BC"),
        (7, "7"),
        (2.5, "2.5"),
        (True, "True"),
        (None, ""),
        (Color.RED, "red"),
        (Decimal("1.50"), "1.5"),
        (Fraction(1, 4), "0.25"),
        (dt.timedelta(days=1), "1%20day%2C%200%3A00%3A00"),
        (dt.date(2024, 2, 29), "2024-02-29"),
        (dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC), "2024-02-29T12%3A00%3A00%2B00%3A00"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Sku(), "sku%209"),
    ],
    ids=lambda value: str(value)[:12],
)
async def test_the_text_of_a_value(session, acquired, value, text) -> None:
    @Lock(session, "it:{it}")
    async def function(it: object) -> None: ...

    await function(value)
    assert acquired == [f"it:{text}"]


SPELLINGS = {
    "aware datetimes": [
        dt.datetime(2024, 2, 29, 10, tzinfo=dt.UTC),
        dt.datetime(2024, 2, 29, 11, tzinfo=dt.timezone(dt.timedelta(hours=1))),
        dt.datetime(2024, 2, 29, 5, tzinfo=zoneinfo.ZoneInfo("America/New_York")),
    ],
    "aware times": [
        dt.time(10, 30, tzinfo=dt.UTC),
        dt.time(11, 30, tzinfo=dt.timezone(dt.timedelta(hours=1))),
    ],
    "one": [1, 1.0, Decimal(1), Decimal("1.00"), Decimal("10E-1"), Fraction(2, 2)],
    "zero": [0, 0.0, -0.0, Decimal("-0.00"), Decimal("0E+5"), Fraction(0)],
    "a half": [0.5, Decimal("0.50"), Decimal("5E-1"), Fraction(1, 2)],
    "a tenth": [0.1, Decimal("0.1"), Decimal("0.100")],
    "small": [1e-7, Decimal("1E-7"), Decimal("0.0000001")],
    "large": [10**22, 1e22, Decimal("1E+22")],
    "infinite": [float("inf"), Decimal("Infinity")],
    "less than everything": [float("-inf"), Decimal("-Infinity")],
    "enums by their values": [Price.LOW, 1.5, Decimal("1.50")],
    "a str and a subclass of it": ["a", type("Loud", (str,), {"__str__": lambda _: "A!"})("a")],
}


@pytest.mark.parametrize("values", SPELLINGS.values(), ids=SPELLINGS)
async def test_equal_values_are_one_lock_however_they_are_written(session, acquired, values) -> None:
    @Lock(session, "it:{it}")
    async def function(it: object) -> None: ...

    for value in values:
        await function(value)
    assert len(set(acquired)) == 1, acquired


async def test_what_other_decorators_add_need_not_be_there(session, acquired) -> None:
    def with_database(function: Any) -> Any:
        @functools.wraps(function)
        async def adds(*args: Any, **kwargs: Any) -> Any:
            return await function("database", *args, **kwargs)

        return adds

    @Lock(session, "order:{order_id}")
    @with_database
    async def function(database: str, order_id: int) -> tuple[str, int]:
        return database, order_id

    assert await function(order_id=7) == ("database", 7)
    assert acquired == ["order:7"]


async def test_the_lock_that_decorates_is_a_plain_name_everywhere_else(session, acquired) -> None:
    shared = Lock(session, "order:{order_id}")

    @shared
    async def function(order_id: int) -> None: ...

    await function(1)
    async with shared:
        pass
    assert acquired == ["order:1", "order:{order_id}"]


KINDS: dict[str, Callable[[Any], Any]] = {
    "Lock": lambda client: Lock(client, "{a}:{b}", ttl=7),
    "FairLock": lambda client: FairLock(client, "{a}:{b}", ttl=7),
    "ReentrantLock": lambda client: ReentrantLock(client, "{a}:{b}", owner="me", ttl=7),
    "Semaphore": lambda client: Semaphore(client, "{a}:{b}", 3, fair=True, ttl=7),
    "MultiLock": lambda client: MultiLock(client, ["{b}:x", "plain", "{a}"], ttl=7),
    "RWLock.reader": lambda client: RWLock(client, "{a}:{b}", ttl=7).reader,
    "RWLock.writer": lambda client: RWLock(client, "{a}:{b}", ttl=7).writer,
    "RangeLock": lambda client: RangeLock(client, "{a}:{b}", bounds="[]", ttl=7).writer(1, 2),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_lock_of_a_call_is_what_the_one_that_decorates_is(offline, kind) -> None:
    made = KINDS[kind](offline)
    names = made._all_names()
    filled = tuple(name.format(a="1", b="2") for name in names)
    expected = repr(made).replace(", ".join(names), ", ".join(sorted(filled)))

    assert repr(made._renamed(filled)) == expected
    assert "{" not in expected


def test_two_names_of_a_multilock_that_become_the_same_are_one() -> None:
    made = MultiLock(Redis(), ["account:{source}", "account:{target}"])

    assert made._renamed(("account:2", "account:1")).names == ("account:1", "account:2")
    assert made._renamed(("account:3", "account:3")).names == ("account:3",)


def test_redlock_keeps_its_masters() -> None:
    made = Redlock([Redis(port=port) for port in (1, 2, 3)], "{a}", node_timeout=0.2)
    renamed = made._renamed(("x",))

    assert (renamed.name, renamed._sources, renamed._node_timeout) == ("x", made._sources, 0.2)


# -- names without fields


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("nightly", "nightly"),
        ("{{user}}:cart", "{user}:cart"),
        ("{{number}}", "{number}"),
        ("{{}}", "{}"),
        ("a}}b{{c", "a}b{c"),
        ("{{{{x}}}}", "{{x}}"),
    ],
)
async def test_doubled_braces_belong_to_the_name(session, acquired, name, held) -> None:
    @Lock(session, name)
    async def function(number: int, **more: int) -> int:
        return number

    assert await function(3) == 3
    assert acquired == [held]


async def test_a_function_whose_signature_is_hidden_can_hold_a_name_without_fields(session, acquired) -> None:
    for name in ("nightly", "{{tag}}:nightly"):
        assert await Lock(session, name)(AsyncMock(return_value=7))(1, two=2) == 7
    assert acquired == ["nightly", "{tag}:nightly"]


# -- mistakes, when decorating


async def with_parameters(order_id: int, user: str = "", *args: int, **kwargs: int) -> None: ...


def counted(function: Any) -> Any:
    """A decorator that forgets `functools.wraps`."""

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    "hidden",
    [counted(with_parameters), AsyncMock(), functools.partial(counted(with_parameters), 1)],
    ids=["without wraps", "AsyncMock", "partial"],
)
def test_a_hidden_signature_is_refused_when_decorating(hidden: Any) -> None:
    with pytest.raises(TypeError, match=r"no such parameter: \*args, \*\*kwargs hide .* functools\.wraps"):
        lock()(hidden)
    with pytest.raises(TypeError, match=r"functools\.wraps"):
        SingleFlight(Redis())("order:{order_id}")(hidden)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_refuses_a_field_that_is_no_parameter(offline, kind) -> None:
    async def function(a: int) -> None: ...

    with pytest.raises(TypeError, match=r"a field 'b', but .*function\(\) has no such parameter"):
        KINDS[kind](offline)(function)
    with pytest.raises(TypeError, match=r"functools\.wraps"):
        KINDS[kind](offline)(counted(function))


def test_a_function_without_a_signature_is_refused_when_decorating() -> None:
    async def function(order_id: int) -> None: ...

    function.__signature__ = "unknown"  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"has fields, but the parameters of .*function\(\) cannot be seen"):
        lock()(function)


async def test_a_signature_that_is_told_is_seen(session, acquired) -> None:
    @Lock(session, "order:{order_id}")
    @functools.wraps(with_parameters)
    async def wrapper(*args: Any, **kwargs: Any) -> None: ...

    await wrapper(7)
    assert acquired == ["order:7"]


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        (
            "{tenant}:{order_id}",
            TypeError,
            r"has a field 'tenant', but with_parameters\(\) has no such parameter: .* as in \{\{tenant\}\}",
        ),
        ("{tenant}:cart", TypeError, r"has a field 'tenant'"),
        ("{oder_id}", TypeError, r"a field 'oder_id', but .* no such parameter: did you mean \{order_id\}\?"),
        ("{order_ids}", TypeError, r"did you mean \{order_id\}\?"),
        ("{user:42}:cart", ValueError, r"a parameter in braces, not \{user:42\}: .* double the braces"),
        ("{}", ValueError, r"a parameter in braces, not \{\}"),
        ("a}b{c", ValueError, "is not a template: .* double the braces"),
        ("{args}", TypeError, "a field 'args', but that is several values"),
        ("{kwargs}", TypeError, "a field 'kwargs', but that is several values"),
        (
            "{user.name}",
            ValueError,
            r"a parameter in braces, not \{user.name\}: make the name in the function",
        ),
        ("{order_id:04d}", ValueError, r"a parameter in braces, not \{order_id:04d\}"),
        ("{order_id!r}", ValueError, r"a parameter in braces, not \{order_id!r\}"),
        ("{ order_id }", ValueError, r"a parameter in braces, not \{ order_id \}"),
        ("{0}:{order_id}", ValueError, r"a parameter in braces, not \{0\}"),
        ("{user}{order_id}", ValueError, "between two fields"),
        ("order:{order_id", ValueError, "is not a template"),
    ],
)
def test_what_cannot_be_filled_in_is_refused_when_decorating(name, error, said) -> None:
    with pytest.raises(error, match=said):
        lock(name)(with_parameters)


def test_the_names_of_a_multilock_are_looked_at_together() -> None:
    with pytest.raises(TypeError, match=r"the name 'user:\{usr\}' has a field 'usr'"):
        MultiLock(Redis(), ["order:{order_id}", "user:{usr}"])(with_parameters)


# -- mistakes, when calling


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "nan equals nothing, not even itself"),
        (Decimal("sNaN"), "equals nothing"),
        (Decimal("1E+9999999"), "more digits than a name may have"),
        (Decimal("1E-9999999"), "more digits than a name may have"),
        (dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=1))), "cannot be told in UTC"),
    ],
    ids=["nan", "sNaN", "long", "fine", "before all time"],
)
async def test_a_value_without_one_text_is_refused(session, acquired, value, said) -> None:
    @Lock(session, "order:{order_id}")
    async def function(order_id: object) -> None:
        raise AssertionError("it ran")

    with pytest.raises(ValueError, match=rf"'order_id' in its name, and .*{said}"):
        await function(value)
    assert acquired == []


@pytest.mark.parametrize(
    "value",
    [object(), b"7", bytearray(b"7"), [7], {"a": 7}, (7,), print, 1j, {7}],
    ids=lambda value: type(value).__name__,
)
async def test_a_value_without_a_text_of_its_own_is_refused(session, acquired, value) -> None:
    @Lock(session, "order:{order_id}")
    async def function(order_id: object) -> None:
        raise AssertionError("it ran")

    with pytest.raises(TypeError, match=rf"'order_id' in its name, and a {type(value).__name__} has no text"):
        await function(value)
    assert acquired == []


async def test_a_call_that_does_not_fit_is_refused_before_it_waits(session, acquired) -> None:
    @Lock(session, "order:{order_id}")
    async def function(order_id: int) -> None:
        raise AssertionError("it ran")

    with pytest.raises(TypeError, match=r"function\(\) missing a required argument: 'order_id'"):
        await function()
    with pytest.raises(TypeError, match="too many positional arguments"):
        await function(1, 2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        await function(order_id=1, other=2)
    assert acquired == []


@pytest.mark.parametrize(("value", "said"), [("", "must not be empty"), ("x" * 1025, "1024 bytes")])
async def test_the_name_of_each_call_is_checked(session, acquired, value, said) -> None:
    @Lock(session, "{it}")
    async def function(it: str) -> None:
        raise AssertionError("it ran")

    with pytest.raises(ValueError, match=said):
        await function(value)
    assert acquired == []
