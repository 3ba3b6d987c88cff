"""How long a value says it is kept, keys that are forgotten, values that cannot be read, and hits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from aiolocks import DeadlockError, Session, SingleFlight
from aiolocks.contrib.prometheus import PrometheusListener
from aiolocks.lock import together
from tests.adversity.flights import Work, joined, running, within
from tests.adversity.tools import begin
from tests.conftest import Connect
from tests.support.cancel import Shot, cancel_twice, sweep
from tests.support.thinning import only
from tests.support.waiting import eventually

KEY = "aiolocks:singleflight.value:{k}"

pytestmark = pytest.mark.leaves_keys("aiolocks:singleflight.value:*", "aiolocks:singleflight.fence:*")


class Calls:
    """A function that gives one value after the other."""

    def __init__(self, *values: Any) -> None:
        self.values = list(values)
        self.calls = 0

    async def __call__(self) -> Any:
        self.calls += 1
        return self.values[self.calls - 1]


def said(caplog: pytest.LogCaptureFixture, text: str) -> list[logging.LogRecord]:
    together.flush()
    return [one for one in caplog.records if text in one.getMessage() and one.levelno > logging.DEBUG]


# -- keep as a function


async def test_a_value_says_how_long_it_is_kept(session: Session, redis: Redis) -> None:
    asked: list[Any] = []

    def keep(value: dict[str, float]) -> float:
        asked.append(value)
        return value["for"]

    flight = SingleFlight(session, keep=keep, stale=30)
    work = Calls({"for": 60}, {"for": 0}, {"for": 1}, {"for": 2})
    assert [await flight.do("k", work) for _ in range(3)] == [{"for": 60}] * 3
    assert 88_000 < await redis.pttl(KEY) <= 90_000
    assert asked == [{"for": 60}]
    assert await flight.forget("k")
    assert [await flight.do("k", work) for _ in range(2)] == [{"for": 0}, {"for": 1}], "0: it is not kept"
    assert work.calls == 3


async def test_each_call_may_have_a_function_and_the_runner_s_counts(
    session: Session, connect: Connect, redis: Redis
) -> None:
    async with Session(connect()) as other:
        work, there = Work(), Work()
        first = begin(SingleFlight(session).do("k", work, keep=lambda value: timedelta(minutes=len(value))))
        await running(work, session)
        second = await joined(other, SingleFlight(other), "k", there, keep=lambda _: 1 / 0)
        work.end.set()
        assert await within(10, first, second) == ["made", "made"]
        assert 239_000 < await redis.pttl(KEY) <= 240_000
        assert there.begun == 0

    @SingleFlight(session)("d", keep=lambda value: value)
    async def decorated() -> float:
        return 3

    await decorated()
    assert 2_000 < await redis.pttl("aiolocks:singleflight.value:{d}") <= 5_000


async def raises(_: Any) -> float:
    return 1.0


@pytest.mark.parametrize(
    "keep",
    [lambda _: -1, lambda _: "60", lambda _: None, lambda _: True, lambda _: 1 / 0, raises],
    ids=["negative", "text", "None", "bool", "error", "async"],
)
async def test_without_seconds_the_value_is_not_kept_and_the_log_names_the_key(
    session: Session, keep: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    work = Calls("a", "b")
    assert await SingleFlight(session, keep=keep, stale=5).do("k", work) == "a"
    (record,) = said(caplog, "keep= gives no seconds")
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.getMessage().startswith(
        "singleflight 'k': keep= gives no seconds for its value, which is not kept"
    )
    assert await SingleFlight(session).do("k", work) == "b"


# -- forget


async def test_what_is_kept_is_dropped_for_all_sessions(session: Session, connect: Connect) -> None:
    async with Session(connect()) as other:
        work = Calls("a", "b")
        here, there = SingleFlight(session, keep=60), SingleFlight(other, keep=60)
        assert [await here.do("k", work), await there.do("k", work)] == ["a", "a"]
        assert await there.forget("k") is True
        assert await there.forget("k") is False
        assert [await here.do("k", work), await there.do("k", work)] == ["b", "b"]
        assert await there.forget("never used") is False


async def test_a_run_under_way_goes_on_for_its_callers_and_keeps_nothing(
    session: Session, connect: Connect
) -> None:
    async with Session(connect()) as other, Session(connect()) as third:
        old, new = Work("old"), Work("new")
        runner = begin(SingleFlight(session, keep=60).do("k", old))
        await running(old, session)
        waits = await joined(other, SingleFlight(other), "k", old)
        assert await SingleFlight(session).forget("k") is False
        # In the session that forgot, and in another one: both want a newer run.
        later = begin(SingleFlight(session, keep=60).do("k", new))
        elsewhere = begin(SingleFlight(third, keep=60).do("k", new))
        await eventually(lambda: third.statistics().waiters == 1)
        await asyncio.sleep(0.1)
        assert new.begun == 0
        old.end.set()
        assert await within(10, runner, waits) == ["old", "old"]
        await eventually(lambda: new.begun == 1)
        new.end.set()
        assert await within(10, later, elsewhere) == ["new", "new"]
        assert (old.begun, new.begun) == (1, 1)
        assert await SingleFlight(other).do("k", Work()) == "new", "what was begun later is kept"


async def test_a_run_that_has_lost_its_lease_keeps_nothing_either(session: Session, redis: Redis) -> None:
    """Its value is published by the next run of its session."""
    started, end = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        started.set()
        with contextlib.suppress(asyncio.CancelledError):  # it ends with its value although its lease is lost
            await end.wait()
        return "old"

    runner = begin(SingleFlight(session, keep=60, ttl=1).do("k", work))
    await started.wait()
    await redis.delete("aiolocks:singleflight:{k}")
    await SingleFlight(session).forget("k")
    end.set()
    assert await within(10, runner) == ["old"]
    assert await SingleFlight(session).do("k", Calls("new")) == "new"


async def test_a_refresh_under_way_is_dropped_too(session: Session) -> None:
    flight = SingleFlight(session, keep=0.05, stale=60)
    await flight.do("k", Calls("old"))
    await asyncio.sleep(0.1)
    refresh = Work("refreshed")
    assert await flight.do("k", refresh) == "old"
    await running(refresh, session)
    assert await flight.forget("k") is True
    later = begin(flight.do("k", Calls("new")))
    await asyncio.sleep(0.05)
    refresh.end.set()
    assert await within(10, later) == ["new"]


async def test_forgetting_is_not_joined_by_a_call_that_waits_for_itself(session: Session) -> None:
    flight = SingleFlight(session, keep=60)

    async def work() -> str:
        await flight.forget("k")
        return await flight.do("k", Calls("inner"))

    with pytest.raises(RuntimeError, match="waits for itself"):
        await asyncio.wait_for(flight.do("k", work), 10)


async def test_arguments_of_forget(session: Session) -> None:
    with pytest.raises(ValueError, match="key must not be empty"):
        await SingleFlight(session).forget("")
    with pytest.raises(TypeError, match="key must be a str"):
        await SingleFlight(session).forget(b"k")  # type: ignore[arg-type]


@pytest.mark.parametrize("shoot", [sweep, cancel_twice])
async def test_a_cancelled_forget_leaves_nothing_behind(client: Redis, shoot: Any) -> None:
    async with Session(client) as session:
        flight = SingleFlight(session, keep=60)
        values = iter(range(1000))

        async def make() -> int:
            return next(values)

        async def forget() -> None:
            await flight.forget("k")

        async def goes_on(_: Shot) -> None:
            assert session.statistics().leases_held == session.statistics().waiters == 0
            await flight.forget("k")
            before = await flight.do("k", make)
            assert await flight.do("k", make) == before

        await flight.do("k", make)
        assert await shoot(forget, after=goes_on)


# -- values that cannot be read


class Renamed:
    """A serializer of an earlier version of a program: what it wrote is Greek to the present one."""

    @staticmethod
    def dumps(value: Any) -> bytes:
        return b"\x80" + pickle.dumps(value)

    @staticmethod
    def loads(data: bytes) -> Any:
        if data[:1] != b"\x80":
            raise AttributeError("Can't get attribute 'Price' on <module 'shop.prices'>")
        return pickle.loads(data[1:])


async def test_a_value_that_cannot_be_read_is_made_anew(
    session: Session, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="aiolocks")
    earlier = SingleFlight(session, keep=60, serializer=Renamed())
    keys = ["a", "b", "c"]
    for key in keys:
        await earlier.do(key, Calls("old"))
    async with Session(connect()) as other:
        flight = SingleFlight(other, keep=60)
        work = Calls("new-a", "new-b", "new-c")
        assert [await flight.do(key, work) for key in keys] == ["new-a", "new-b", "new-c"]
        assert [await flight.do(key, work) for key in keys] == ["new-a", "new-b", "new-c"], "they replace"
        (record,) = said(caplog, "cannot be read by")
        assert record.levelno == logging.WARNING
        assert "singleflight 'a'" in record.getMessage()
        assert "JSON" in record.getMessage()
        assert sum("cannot be read by" in one.getMessage() for one in caplog.records) == 3
    # Two versions side by side overwrite each other's values.
    assert await earlier.do("a", Calls("old again")) == "old again"
    async with Session(connect()) as other:
        assert await SingleFlight(other, keep=60).do("a", Calls("new again")) == "new again"


async def test_a_waiter_makes_a_value_that_it_cannot_read(session: Session, connect: Connect) -> None:
    async with Session(connect()) as other:
        old, new = Work("old"), Calls("new")
        runner = begin(SingleFlight(session, keep=60, serializer=Renamed()).do("k", old))
        await running(old, session)
        waits = await joined(other, SingleFlight(other, keep=60), "k", new)
        old.end.set()
        assert await within(10, runner, waits) == ["old", "new"]


async def test_one_of_many_makes_it_anew(session: Session, connect: Connect) -> None:
    await SingleFlight(session, keep=60, serializer=Renamed()).do("k", Calls("old"))
    async with Session(connect()) as one, Session(connect()) as another:
        work = Work("new")
        calls = [begin(SingleFlight(each, keep=60).do("k", work)) for each in (one, one, another)]
        await eventually(lambda: work.begun == 1)
        await asyncio.sleep(0.1)
        work.end.set()
        assert await within(10, *calls) == ["new"] * 3
        assert work.begun == 1


async def test_the_work_of_an_idempotency_key_is_not_done_again(session: Session) -> None:
    """A call with a fingerprint: its caller has to know."""
    await SingleFlight(session, keep=60, serializer=Renamed()).do("k", Calls("paid"), fingerprint="order")
    again = Calls("paid twice")
    with pytest.raises(ValueError, match="decode"):
        await SingleFlight(session, keep=60).do("k", again, fingerprint="order")
    assert again.calls == 0


async def test_versions_that_cannot_read_each_other_end_with_the_error(
    session: Session, redis: Redis
) -> None:
    """A serializer that reads nothing, not even what it has written, is no reason to run for ever."""

    class Broken:
        dumps = staticmethod(lambda value: json.dumps(value).encode())

        @staticmethod
        def loads(data: bytes) -> Any:
            raise KeyError("version")

    await SingleFlight(session, keep=60).do("k", Calls("old"))
    assert await SingleFlight(session, keep=60, serializer=Broken()).do("k", Calls("new")) == "new"


# -- hits


async def test_hits_are_counted(redis: Redis, connect: Connect) -> None:
    registry = CollectorRegistry()
    told: list[tuple[str, str]] = []

    class Listener:
        def on_hit(self, event: Any) -> None:
            told.append((event.name, event.reason))

    listeners = [Listener(), PrometheusListener(registry=registry)]
    async with Session(redis, listeners=listeners) as session, Session(connect()) as other:
        flight = SingleFlight(session, keep=0.3, stale=60)
        work = Calls("a", "b", "c")
        await flight.do("k", work)
        assert told == []
        await asyncio.gather(*(flight.do("k", work) for _ in range(3)))
        await SingleFlight(other).do("k", work)
        assert told == [("k", "fresh")] * 3
        await asyncio.sleep(0.4)
        await flight.do("k", work)
        assert told[3:] == [("k", "due")]
        await eventually(lambda: work.calls == 2)
    labels = {"kind": "singleflight", "name": "other"}
    assert registry.get_sample_value("aiolocks_hits_total", labels) == 4


# -- keys that wait for each other


@pytest.mark.parametrize("late", only([False, True], True), ids=["begun by it", "joined by it"])
async def test_two_keys_that_wait_for_each_other_in_two_sessions_are_told(
    session: Session, connect: Connect, caplog: pytest.LogCaptureFixture, late: bool
) -> None:
    """As in one session, one of the calls gets an error, and the other one its value."""
    async with Session(connect()) as other:
        both = asyncio.Barrier(2)
        bystanders: list[asyncio.Task[Any]] = []

        async def asks(own: Session, for_key: str) -> str:
            await both.wait()
            flight = SingleFlight(own)
            if late:  # another caller waits for that run already
                bystanders.append(begin(flight.do(for_key, Calls("unused"))))
                await asyncio.sleep(0.7)
            return f"with {await flight.do(for_key, Calls(for_key))}"

        calls = [
            begin(SingleFlight(session).do("a", lambda: asks(session, "b"))),
            begin(SingleFlight(other).do("b", lambda: asks(other, "a"))),
        ]
        done, _ = await asyncio.wait(calls, timeout=10)
        assert len(done) == 2
        outcomes = [call.exception() or call.result() for call in calls]
        errors = [one for one in outcomes if isinstance(one, BaseException)]
        assert any(isinstance(one, DeadlockError) for one in errors), outcomes
        assert said(caplog, "deadlock of 2: ")
        await asyncio.gather(*bystanders, return_exceptions=True)
        assert await SingleFlight(session).do("a", Calls("free")) == "free"


@pytest.mark.more  # as keys in two orders
async def test_keys_that_are_asked_for_in_one_order_wait_long_and_get_their_values(
    session: Session, connect: Connect
) -> None:
    async with Session(connect()) as other:
        inner = Work("inner")
        begun = begin(SingleFlight(other).do("b", inner))
        await running(inner, other)

        async def outer() -> str:
            return f"with {await SingleFlight(session).do('b', Calls('mine'))}"

        call = begin(SingleFlight(session).do("a", outer))
        await asyncio.sleep(2)
        inner.end.set()
        assert await within(10, call, begun) == ["with inner", "inner"]
