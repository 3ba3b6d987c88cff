"""The combiner: each item is run, in order, by one at a time, whoever is killed, late or not heard."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import logging
import os
import signal
import sqlite3
import sys
import time
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from aiolocks import (
    JSON,
    BackendError,
    Batch,
    Combiner,
    CombinerFullError,
    Left,
    LockLostError,
    RemoteCallError,
    ResultNotKeptError,
    Session,
    SessionClosedError,
)
from aiolocks.contrib.prometheus import PrometheusListener
from aiolocks.kinds.combiner import _within
from tests.adversity.tools import (
    AT_ONCE,
    SLACK,
    UNTOLD,
    begin,
    elapsed,
    rejected,
    step,
)
from tests.conftest import Connect, OwnServer
from tests.support.cancel import Shot, cancel_twice, sweep, sweep_scopes
from tests.support.processes import Workers, tell
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.thinning import only
from tests.support.waiting import eventually

SHARED = ("forms", "bells", "fence", "locks", "combiners")
PUT = step("combiner_put", *SHARED, "combiner_puts")
ACQUIRE = step("combiner_acquire", *SHARED, "combiner_puts", "combiner_hand_out", "seats")
ACK = step("combiner_ack", *SHARED)

pytestmark = pytest.mark.leaves_keys("aiolocks:combiner*", "shop:combiner*")


async def left(redis: Redis, items: int) -> None:
    """Waits until the server has so many items that wait, or are being run."""

    async def all_there() -> bool:
        return await redis.zcard("aiolocks:combiner.items:{a}") >= items

    await eventually(all_there)


class Unusual(BaseException):
    """As test frameworks raise it."""


class Runs:
    """What was run."""

    def __init__(self, *, lasts: float = 0.0) -> None:
        self.batches: list[list[Any]] = []
        self.attempts: list[int] = []
        self.tokens: list[int] = []
        self.lasts = lasts
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def each(self, batch: Batch) -> None:
        self.note(batch)
        await asyncio.sleep(self.lasts)
        await self.may_end.wait()
        batch.results = [f"{item}!" for item in batch.items]

    async def together(self, batch: Batch) -> list[Any]:
        self.note(batch)
        await asyncio.sleep(self.lasts)
        await self.may_end.wait()
        return batch.items

    def note(self, batch: Batch) -> None:
        self.batches.append(list(batch.items))
        self.attempts.append(batch.attempt)
        self.tokens.append(batch.fencing_token)

    @property
    def items(self) -> list[Any]:
        return [item for batch in self.batches for item in batch]


async def runs(runs: Runs, number: int = 1) -> None:
    """Returns once so many batches have begun."""
    await eventually(lambda: len(runs.batches) >= number, within=5)


# -- batches -------------------------------------------------------------------------------------------------


async def test_what_comes_while_a_batch_runs_is_the_next_batch(session: Session, connect: Connect) -> None:
    async with Session(connect()) as other:
        done = Runs()
        done.may_end.clear()
        here, there = Combiner(session, "a"), Combiner(other, "a")
        first = begin(here.submit(1, done.each))
        await runs(done)
        rest = [begin((here if n % 2 else there).submit(n, done.each)) for n in range(2, 8)]
        await asyncio.sleep(0.1)
        assert done.batches == [[1]]
        done.may_end.set()
        assert await first == "1!"
        assert await asyncio.gather(*rest) == [f"{n}!" for n in range(2, 8)]
        assert len(done.batches) == 2
        assert sorted(done.batches[1]) == [2, 3, 4, 5, 6, 7]
        assert done.tokens == sorted(set(done.tokens))


async def test_a_result_for_all_is_the_very_object_here_and_a_copy_elsewhere(
    session: Session, connect: Connect
) -> None:
    async with Session(connect()) as other:
        result = ["the", "result"]

        async def run(batch: Batch) -> list[str]:
            await asyncio.sleep(0.1)
            return result

        here = [begin(Combiner(session, "a").submit(n, run)) for n in range(2)]
        await asyncio.sleep(0.05)
        there = begin(Combiner(other, "a").submit(2, run))
        assert all([await task is result for task in here])
        assert await there == result


async def test_a_thousand_items_cost_few_requests_and_run_in_order(connect: Connect) -> None:
    async with Session(connect()) as one, Session(connect()) as two:
        done = Runs(lasts=0.02)
        tasks = [
            begin(Combiner(session, "a").submit([name, n], done.each))
            for n in range(250)
            for name, session in (("one", one), ("two", two))
        ]
        answers = await asyncio.gather(*tasks)
        assert answers == [f"[{name!r}, {n}]!" for n in range(250) for name in ("one", "two")]
        for name in ("one", "two"):
            assert [n for who, n in done.items if who == name] == list(range(250))
        assert one.statistics().commands_sent + two.statistics().commands_sent < 100


async def test_a_batch_has_so_many_items(session: Session) -> None:
    done = Runs()
    combiner = Combiner(session, "a", most=3)
    assert await asyncio.gather(*(combiner.submit(n, done.each) for n in range(7))) == [
        f"{n}!" for n in range(7)
    ]
    assert done.batches == [[0, 1, 2], [3, 4, 5], [6]]


async def test_a_window_collects_and_within_begins_it_anew(session: Session) -> None:
    done = Runs()
    combiner = Combiner(session, "a", window=0.2)
    began = time.monotonic()
    first = begin(combiner.submit(1, done.each))
    await asyncio.sleep(0.12)
    second = begin(combiner.submit(2, done.each))
    await asyncio.gather(first, second)
    assert 0.19 <= time.monotonic() - began < 0.2 + SLACK
    assert done.batches == [[1, 2]]
    anew = Combiner(session, "b", window=0.2, within=0.4)
    began = time.monotonic()
    tasks, ended = [], []
    for n in range(6):
        tasks.append(begin(anew.submit(n, done.each)))
        tasks[-1].add_done_callback(lambda _: ended.append(time.monotonic()))
        await asyncio.sleep(0.1)
    await asyncio.gather(*tasks)
    first = done.batches[1]
    # Each begins the window anew, until 0.4 s have passed: on a machine that is idle, five of them.
    assert first == list(range(len(first)))
    assert 0.39 <= ended[0] - began < 0.4 + SLACK


async def test_names_have_fields(session: Session) -> None:
    done = Runs(lasts=0.05)
    combiner = Combiner(session, "sync:{account}")

    @combiner
    async def sync(batch: Batch) -> int:
        done.note(batch)
        await asyncio.sleep(0.05)
        assert batch.name == "sync:17" if 1 in batch.items else "sync:a%2Fb"
        return len(batch)

    assert await asyncio.gather(sync(1, account=17), sync(2, account="a/b")) == [1, 1]
    assert sync.__name__ == "sync"
    with pytest.raises(TypeError, match="has a field 'account': give account="):
        await sync(1)
    with pytest.raises(TypeError, match="has no field 'order'"):
        await sync(1, account=1, order=2)


async def test_it_runs_in_the_context_of_its_caller_and_in_a_task_of_the_session(session: Session) -> None:
    variable = contextvars.ContextVar("variable", default="")
    seen: list[Any] = []

    async def run(batch: Batch) -> None:
        seen.append((variable.get(), asyncio.current_task()))

    async def caller() -> None:
        variable.set("the caller's")
        await Combiner(session, "a").submit(1, run)

    task = begin(caller())
    await task
    assert seen[0][0] == "the caller's"
    assert seen[0][1] is not task


async def test_an_item_of_a_run_to_its_own_name_is_refused_and_may_be_left(session: Session) -> None:
    combiner = Combiner(session, "a")
    seen: list[Any] = []

    async def run(batch: Batch) -> str:
        seen.append(batch.items)
        if batch.items == ["outer"]:
            with pytest.raises(RuntimeError, match="waits for itself: leave"):
                await combiner.submit("inner", run)
            with pytest.raises(RuntimeError, match="waits for itself"):
                await asyncio.create_task(combiner.submit("inner", run))
            await combiner.leave("inner")
            assert await Combiner(session, "b").submit("other", run) == "done"
        return "done"

    assert await combiner.submit("outer", run) == "done"
    assert await combiner.submit("after", run) == "done"
    assert seen == [["outer"], ["other"], ["inner", "after"]]


async def test_runs_that_lead_to_runs_leave_nothing_in_their_contexts(session: Session) -> None:
    combiner, over, sizes = Combiner(session, "a"), asyncio.Event(), list[int]()
    tasks: list[asyncio.Task[None]] = []

    async def next_one(number: int) -> None:
        await asyncio.sleep(0.01)  # the run that has begun it is over
        await combiner.submit(number, run)

    async def run(batch: Batch) -> None:
        sizes.append(len(_within.get()))
        if len(sizes) == 10:
            over.set()
        else:
            tasks.append(begin(next_one(len(sizes))))

    await combiner.submit(0, run)
    await asyncio.wait_for(over.wait(), 5)
    await asyncio.gather(*tasks)
    assert sizes == [1] * 10


# -- errors --------------------------------------------------------------------------------------------------


async def test_an_error_drops_the_batch_and_goes_to_its_callers(session: Session, connect: Connect) -> None:
    async with Session(connect()) as other:
        calls: list[list[int]] = []

        async def run(batch: Batch) -> None:
            calls.append(batch.items)
            await asyncio.sleep(0.1)
            if batch.number == 1:
                raise ValueError("no")

        here = begin(Combiner(session, "a").submit(0, run))
        await eventually(lambda: bool(calls))
        rest = [begin(Combiner(one, "a").submit(n, run)) for n, one in ((1, session), (2, other))]
        with pytest.raises(ValueError, match="no"):
            await here
        assert await asyncio.gather(*rest) == [None, None]
        assert calls[0] == [0]
        assert await Combiner(other, "b").leave(7) == Left(pytest.approx(time.time() * 1e6, rel=1e-3), 1)  # type: ignore[arg-type]


@pytest.mark.more  # as an error of a run here
async def test_a_caller_elsewhere_gets_the_error_by_name(session: Session, connect: Connect) -> None:
    async with Session(connect()) as other:
        await Combiner(session, "a").leave("first")
        sent = session.statistics().commands_sent

        async def run(batch: Batch) -> None:
            await asyncio.sleep(0.15)
            raise ValueError("no")

        here = begin(Combiner(session, "a", window=1).submit(1, run))
        await eventually(lambda: session.statistics().commands_sent > sent)
        there = begin(Combiner(other, "a", window=1).submit(2, run))
        outcomes = await asyncio.gather(here, there, return_exceptions=True)
        assert {type(one) for one in outcomes} == {ValueError, RemoteCallError}


async def test_a_batch_is_tried_again_with_the_same_items(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    done = Runs()
    combiner = Combiner(session, "a", retry=2)
    extra: list[asyncio.Task[Any]] = []

    async def run(batch: Batch) -> int:
        done.note(batch)
        if batch.items == [1] and batch.attempt < 3:
            await asyncio.sleep(0.1)
            raise ValueError("not yet")
        return batch.attempt

    first = begin(combiner.submit(1, run))
    for attempt in (1, 2):
        await runs(done, attempt)
        extra.append(begin(combiner.submit(10 + attempt, run)))
    assert await first == 3
    assert await asyncio.gather(*extra) == [1, 1]
    assert done.batches == [[1], [1], [1], [11, 12]]
    assert done.attempts == [1, 2, 3, 1]
    failing = Combiner(session, "b", retry=1)
    caplog.clear()

    async def fails(batch: Batch) -> None:
        done.note(batch)
        raise ValueError(f"attempt {batch.attempt}")

    await failing.leave(0)
    with pytest.raises(ValueError, match="attempt 2"):
        await failing.submit(1, fails)
    again, lost = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "attempt 1 of batch 1 has failed, and its 2 items stay for another: attempt 1" in again.message
    assert lost.levelno == logging.ERROR
    assert "batch 1 has failed for good at attempt 2, and its 2 items are lost: attempt 2" in lost.message
    assert lost.exc_info is not None


async def test_results_may_be_errors_and_must_be_one_for_each(session: Session) -> None:
    combiner = Combiner(session, "a")

    async def mixed(batch: Batch) -> None:
        batch.results = [ValueError("odd") if item % 2 else item for item in batch.items]

    outcomes = await asyncio.gather(*(combiner.submit(n, mixed) for n in range(3)), return_exceptions=True)
    assert outcomes[::2] == [0, 2]
    assert isinstance(outcomes[1], ValueError)
    with pytest.raises(ValueError, match="odd"):
        await Combiner(session, "b", retry=3).submit(1, mixed)  # the run has not raised

    async def too_few(batch: Batch) -> None:
        batch.results = []

    with pytest.raises(ValueError, match="has 0 results for 1 items"):
        await combiner.submit(1, too_few)

    async def none(batch: Batch) -> None:
        batch.results = "ab"

    with pytest.raises(TypeError, match="must be a list"):
        await combiner.submit(1, none)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(2), KeyboardInterrupt(), Unusual()])
async def test_no_error_among_the_results_is_a_result(
    session: Session, connect: Connect, error: BaseException
) -> None:
    """As `asyncio.gather(…, return_exceptions=True)` gives them. None of them ends the task of a caller."""

    async def run(batch: Batch) -> None:
        batch.results = [error for _ in batch.items]

    async with Session(connect()) as other:
        callers = [Combiner(one, "a", window=0.1).submit(1, run) for one in (session, other)]
        raised = await asyncio.gather(*callers, return_exceptions=True)
    here, there = sorted(raised, key=lambda one: isinstance(one, RemoteCallError))
    assert isinstance(there, RemoteCallError)
    if isinstance(error, Unusual):
        assert here is error
    else:
        assert type(here) is RuntimeError
        assert here.__cause__ is error
        assert type(error).__name__ in str(here)


async def test_what_raises_from_within_a_run(session: Session) -> None:
    combiner = Combiner(session, "a")

    async def cancelled(batch: Batch) -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="was cancelled from within"):
        await combiner.submit(1, cancelled)

    def no_coroutine(batch: Batch) -> int:
        return 1

    with pytest.raises(TypeError, match="must be a coroutine function"):
        await combiner.submit(1, no_coroutine)  # type: ignore[arg-type,type-var]
    with pytest.raises(TypeError, match="gave int"):
        await combiner.submit(1, functools.partial(no_coroutine))  # type: ignore[arg-type]


async def test_whatever_a_run_raises_goes_to_its_callers(session: Session, connect: Connect) -> None:
    async with Session(connect()) as other:
        attempts: list[int] = []

        async def run(batch: Batch) -> None:
            attempts.append(batch.attempt)
            await asyncio.sleep(0.05)
            raise Unusual("no")

        here = begin(Combiner(session, "a", window=0.1, retry=1).submit(1, run))
        await asyncio.sleep(0.02)
        there = begin(Combiner(other, "a", window=0.1, retry=1).submit(2, run))
        outcomes = await asyncio.gather(here, there, return_exceptions=True)
        assert {type(one) for one in outcomes} == {Unusual, RemoteCallError}
        assert attempts == [1, 2]
        assert await Combiner(session, "a").submit(3, Runs().each) == "3!"


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
def test_a_run_that_ends_the_program_leaves_its_batch_to_others(
    server: Server, ending: type[BaseException]
) -> None:
    ended: list[Any] = []

    async def ends(batch: Batch) -> None:
        raise ending("the program ends")

    with asyncio.Runner() as runner:
        session = Session.from_url(server.url)
        other = Session.from_url(server.url)

        async def submit() -> None:
            waiting = [begin(Combiner(session, "a").submit(n, ends)) for n in range(2)]
            working = begin(Combiner(session, "a").drain(ends))
            ended.append(asyncio.gather(*waiting, working, return_exceptions=True))
            await ended[0]

        async def follow() -> list[Any]:
            for error in await asyncio.wait_for(
                ended[0], 5
            ):  # once it was raised by the loop, it is not again
                assert isinstance(error, RuntimeError)
                assert f"was ended by {ending.__name__}: its items stay on the server" in str(error)
            done = Runs()
            began = time.monotonic()
            await Combiner(other, "a").submit(2, done.each)
            assert time.monotonic() - began < AT_ONCE  # the run was released
            await session.aclose()
            await other.aclose()
            return done.batches

        with pytest.raises(ending):
            runner.run(submit())
        assert runner.run(follow()) == [[0, 1], [2]]


async def test_a_result_that_cannot_travel_is_an_error_elsewhere(session: Session, connect: Connect) -> None:
    async with Session(connect()) as other:

        async def run(batch: Batch) -> object:
            await asyncio.sleep(0.1)
            return run

        here = begin(Combiner(session, "a", window=0.1).submit(1, run))
        await asyncio.sleep(0.02)
        there = begin(Combiner(other, "a", window=0.1).submit(2, run))
        outcomes = await asyncio.gather(here, there, return_exceptions=True)
        assert sum(one is run for one in outcomes) == 1
        (error,) = (one for one in outcomes if one is not run)
        assert isinstance(error, ResultNotKeptError)
        assert "Combiner 'a' was done" in str(error)
    with pytest.raises(TypeError):
        await Combiner(session, "a").submit(run, run)  # an item that cannot travel, before any I/O


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"window": -1}, ValueError),
        ({"window": 2, "within": 1}, ValueError),
        ({"most": 0}, ValueError),
        ({"most_waiting": "many"}, TypeError),
        ({"retry": -1}, ValueError),
        ({"keep": 0.1}, ValueError),
        ({"serializer": object()}, TypeError),
        ({"batch_size": 3}, TypeError),
        ({"blocking_timeout": 3}, TypeError),
    ],
)
async def test_arguments_are_checked(redis: Redis, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Combiner(redis, "a", **options)


# -- bounds --------------------------------------------------------------------------------------------------


async def test_it_is_full(session: Session) -> None:
    done = Runs()
    combiner = Combiner(session, "a", most_waiting=3)
    left = await asyncio.gather(*(combiner.leave(n) for n in range(5)), return_exceptions=True)
    assert [one.pressure for one in left[:3] if isinstance(one, Left)] == [1, 2, 3]
    for error in left[3:]:
        assert isinstance(error, CombinerFullError)
        assert (error.name, error.pressure, error.most_waiting) == ("a", 3, 3)
    with pytest.raises(CombinerFullError, match="3 items wait, and at most 3 may"):
        await combiner.submit(7, done.each)
    worker = begin(combiner.drain(done.each))
    await runs(done)
    await eventually(lambda: done.items == [0, 1, 2])

    async def left_again() -> Left | None:  # once the run is acknowledged
        with suppress(CombinerFullError):
            return await combiner.leave(8)
        return None

    again = await eventually(left_again)
    assert again is not None
    assert again.pressure == 1
    worker.cancel()
    await asyncio.wait({worker})


async def test_an_item_that_nobody_has_run_is_dropped_logged_and_counted(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    dropped: list[int] = []

    class Listener:
        def on_dropped(self, event: Any) -> None:
            dropped.append(event.items)

    async with Session(redis, listeners=[Listener()]) as session:
        done = Runs()
        await Combiner(session, "a", keep=1).leave("old")
        await asyncio.sleep(1.1)
        await Combiner(session, "a", keep=1).submit("new", done.each)
        assert done.batches == [["new"]]
        assert dropped == [1]
        assert "1 items were dropped" in caplog.text


# -- workers -------------------------------------------------------------------------------------------------


async def test_a_worker_is_woken_and_does_not_poll(session: Session, connect: Connect) -> None:
    async with Session(connect()) as other:
        done = Runs()
        worker = begin(Combiner(session, "a").drain(done.each))
        await eventually(lambda: session.statistics().waiters == 1)
        await asyncio.sleep(0.1)
        sent = session.statistics().commands_sent
        asked = time.monotonic()
        await asyncio.sleep(1)
        began = time.monotonic()
        # It shows that it lives, each 0.6 s; the first time, the server may not know the script of that.
        assert session.statistics().commands_sent <= sent + 4 + (began - asked - 1) / UNTOLD
        await Combiner(other, "a").leave(1)
        await runs(done)
        assert time.monotonic() - began < AT_ONCE
        await eventually(lambda: session.statistics().waiters == 1)  # the first batch is acknowledged
        own = await Combiner(session, "a").leave(2)
        await runs(done, 2)
        assert own.pressure == 1
        worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker
        await eventually(lambda: session.statistics().waiters == 0)
        assert session._engine is not None
        await eventually(lambda: not session._engine.in_progress)  # type: ignore[union-attr]
        await Combiner(other, "a").leave(3)
        await asyncio.sleep(0.1)
        assert done.batches == [[1], [2]]


async def test_a_worker_takes_the_function_that_is_decorated_and_goes_on_after_errors(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[list[Any]] = []
    combiner = Combiner(session, "a")

    @combiner
    async def work(batch: Batch) -> int:
        seen.append(batch.items)
        if batch.items == ["bad"]:
            raise ValueError("bad")
        return 1

    worker = begin(combiner.drain(work))
    await combiner.leave("bad")
    await eventually(lambda: len(seen) == 1)
    await combiner.leave("good")
    await eventually(lambda: len(seen) == 2)
    assert seen == [["bad"], ["good"]]
    assert (
        "combiner 'a': batch 1 has failed for good at attempt 1, and its 1 items are lost: bad" in caplog.text
    )
    worker.cancel()
    await asyncio.wait({worker})


# -- cancelled -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shoot", [sweep, cancel_twice, sweep_scopes])
async def test_a_cancelled_caller_leaves_its_item(client: Redis, shoot: Any) -> None:
    async with Session(client) as session:
        combiner, done, items = Combiner(session, "a"), Runs(lasts=0.002), list[int]()
        await combiner.leave("connected")

        async def submit() -> None:
            items.append(len(items))
            await combiner.submit(items[-1], done.each)

        async def done_all_the_same(_: Shot) -> None:
            await eventually(lambda: items[-1] in done.items, within=5)

        assert await shoot(submit, after=done_all_the_same)
        await eventually(lambda: not session._engine.in_progress)  # type: ignore[union-attr]
        assert [item for item in done.items if item != "connected"] == items
        assert session.statistics().waiters == 0


@pytest.mark.parametrize("shoot", [sweep, cancel_twice])
async def test_a_cancelled_leave_leaves_once(client: Redis, shoot: Any) -> None:
    async with Session(client) as session:
        combiner, done, items = Combiner(session, "a"), Runs(), list[int]()
        await combiner.leave("connected")

        async def leave() -> None:
            items.append(len(items))
            await combiner.leave(items[-1])

        assert await shoot(leave)
        await combiner.submit("last", done.each)
        assert done.items == ["connected", *items, "last"]


@pytest.mark.parametrize("shoot", [sweep, cancel_twice])
async def test_a_cancelled_worker_leaves_nothing_behind(client: Redis, shoot: Any) -> None:
    async with Session(client) as session:
        combiner, done = Combiner(session, "a"), Runs()
        left = await combiner.leave("first")
        assert left.pressure == 1

        async def drain() -> None:
            async with asyncio.timeout(0.05):
                await combiner.drain(done.each)

        async def nobody_waits(_: Shot) -> None:
            await eventually(lambda: not session._engine.in_progress)  # type: ignore[union-attr]
            assert session.statistics().waiters == 0

        async def limited() -> None:
            try:
                await drain()
            except TimeoutError:
                await asyncio.sleep(0)

        assert await shoot(limited, after=nobody_waits)
        await eventually(lambda: "first" in done.items or session.statistics().waiters == 0)
        await combiner.submit("last", done.each)
        assert done.items[-1] == "last"


async def test_a_session_that_closes_leaves_its_items_to_others(redis: Redis, connect: Connect) -> None:
    done = Runs()
    done.may_end.clear()
    session = Session(redis)
    waiting = [begin(Combiner(session, "a").submit(n, done.each)) for n in range(2)]
    await runs(done)
    later = begin(Combiner(session, "a").submit(2, done.each))
    await asyncio.sleep(0.05)
    await session.aclose()
    for task in (*waiting, later):
        with pytest.raises(SessionClosedError):
            await task
    with pytest.raises(SessionClosedError):
        await Combiner(session, "a").leave(1)
    done.may_end.set()
    async with Session(connect()) as other:
        began = time.monotonic()
        await Combiner(other, "a").submit(3, done.each)
        assert time.monotonic() - began < SLACK
    assert done.batches[1:] == [[0, 1], [2, 3]]
    gc.collect()


@pytest.mark.parametrize(
    "how", only(["at its end", "within its second", "while it answers"], "while it answers")
)
async def test_a_run_that_ended_well_is_acknowledged_though_its_session_closes(
    redis: Redis, connect: Connect, through: Proxy, how: str
) -> None:
    """Also for callers elsewhere; and no other run has its batch."""
    done, ended = Runs(), asyncio.Event()
    begun = asyncio.Event()

    async def work(batch: Batch) -> None:
        done.note(batch)
        begun.set()
        if how == "within its second":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0.1)
        else:
            await asyncio.sleep(0.1)
        batch.results = [f"{item}!" for item in batch.items]
        ended.set()

    closing_one, other = Session(connect(through)), Session(connect())
    async with other:
        here = begin(Combiner(closing_one, "a", window=0.3).submit("here", work))
        worker = begin(Combiner(closing_one, "a", window=0.3).drain(work))
        await asyncio.sleep(0.1)
        there = begin(Combiner(other, "a", window=0.3).submit("there", done.each))
        await asyncio.wait_for(begun.wait(), 5)
        if how != "within its second":
            if how == "while it answers":
                through.delay = 0.05
            await ended.wait()
        await closing_one.aclose()
        assert await asyncio.wait_for(here, 2) == "here!"
        assert await asyncio.wait_for(there, 2) == "there!"
        with pytest.raises(SessionClosedError):
            await worker
        await Combiner(other, "a").submit("last", done.each)
    assert done.batches == [["here", "there"], ["last"]]


# -- runs that keep the event loop for longer than their lease lasts ----------------------------------------


def blocking_for(seconds: float, done: Runs, *, then: float = 0.0) -> Any:
    async def work(batch: Batch) -> None:
        done.note(batch)
        time.sleep(seconds)  # noqa: ASYNC251 - that is what it tests
        await asyncio.sleep(then)
        batch.results = [f"{item}!" for item in batch.items]

    return work


@pytest.mark.parametrize("elsewhere", only([False, True], True))
async def test_a_run_that_blocks_and_ends_well_is_acknowledged_if_no_other_has_begun(
    session: Session, connect: Connect, caplog: pytest.LogCaptureFixture, elsewhere: bool
) -> None:
    done = Runs()
    async with Session(connect()) as other:
        combiner = Combiner(session, "a", ttl=0.6)
        if elsewhere:
            await Combiner(other, "a", ttl=0.6).leave("left")
        assert await combiner.submit("item", blocking_for(1, done)) == "item!"
        assert await combiner.submit("next", done.each) == "next!"
    assert done.items.count("item") == 1
    assert done.attempts == [1, 1]
    (told,) = [one for one in caplog.messages if "outlasted its lease" in one]
    assert "the event loop did not run for" in told


@pytest.mark.more  # as a run that blocks and ends well
@pytest.mark.parametrize("retry", only([0, 2], 2))
async def test_a_run_that_is_cut_off_since_it_blocks_is_an_attempt_and_fails(
    session: Session, caplog: pytest.LogCaptureFixture, retry: int
) -> None:
    """It was repeated for ever, as the first attempt."""
    done = Runs()
    combiner = Combiner(session, "a", ttl=0.2, retry=retry)
    async with asyncio.timeout(10):
        with pytest.raises(RuntimeError, match=r"kept the event loop for .*to_thread"):
            await combiner.submit("item", blocking_for(0.5, done, then=1))
    assert done.attempts == [*range(1, max(1, retry) + 2)]
    assert await combiner.submit("next", done.each) == "next!"


@pytest.mark.parametrize("retry", only([0, 1], 0))
async def test_a_run_that_turns_its_cancellation_into_an_error_is_an_attempt_too(
    session: Session, retry: int
) -> None:
    """It was repeated for ever, as the first attempt."""
    done = Runs()
    block = blocking_for(0.5, done, then=1)

    async def work(batch: Batch) -> None:
        try:
            await block(batch)
        except asyncio.CancelledError as error:
            raise OSError("interrupted") from error

    combiner = Combiner(session, "a", ttl=0.2, retry=retry)
    async with asyncio.timeout(10):
        with pytest.raises(RuntimeError, match=r"kept the event loop for .*to_thread"):
            await combiner.submit("item", work)
    assert done.attempts == [1, 2]


@pytest.mark.more  # as a run that is cut off
async def test_a_run_that_blocks_while_another_begins_is_an_attempt_too(
    workers: Workers, server: Server
) -> None:
    """Two processes that take each other's lease: the batch is given up after its attempts."""
    pair = await workers.start_many(2, block_and_submit, url=server.url)
    for worker in pair:
        told = await worker.told("ended", within=20)
        assert told["error"] in ("RunTooSlowError", "RuntimeError", "RemoteCallError"), told
        assert told["runs"] <= 4


async def block_and_submit(url: str) -> None:
    runs = 0

    async def work(batch: Batch) -> None:
        nonlocal runs
        runs += 1
        time.sleep(0.7)  # noqa: ASYNC251 - that is what it tests
        await asyncio.sleep(0.05)

    async with Redis.from_url(url) as redis, Session(redis) as session:
        try:
            await Combiner(session, "a", ttl=0.2, retry=1).submit("item", work)
        except Exception as error:
            tell("ended", error=type(error).__name__, runs=runs)
        else:
            tell("ended", error="none", runs=runs)


# -- what is dropped, lost, or cannot be read ----------------------------------------------------------------


@pytest.mark.more  # as an item that is dropped
async def test_a_caller_of_an_item_that_was_dropped_is_told_so(redis: Redis, connect: Connect) -> None:
    dropped: list[tuple[int, str]] = []

    class Listener:
        def on_dropped(self, event: Any) -> None:
            dropped.append((event.items, event.reason))

    listeners = [Listener()]
    async with (
        Session(redis, listeners=listeners) as session,
        Session(connect(), listeners=listeners) as other,
    ):
        done = Runs(lasts=1.2)
        first = begin(Combiner(session, "a", keep=1).submit("first", done.each))
        await runs(done)
        here = begin(Combiner(session, "a", keep=1).submit("here", done.each))
        there = begin(Combiner(other, "a", keep=1).submit("there", done.each))
        await eventually(lambda: other.statistics().waiters == 1)
        await asyncio.sleep(0.9)
        fresh = begin(Combiner(session, "a", keep=60).submit("fresh", done.each))
        assert await first == "first!"
        for task in (here, there):
            with pytest.raises(
                LockLostError, match="was dropped: nobody has run it for as long as it is kept"
            ):
                await asyncio.wait_for(task, 5)
        assert await fresh == "fresh!"
        assert done.batches == [["first"], ["fresh"]]
        assert sum(items for items, _ in dropped) == 2
        assert {reason for _, reason in dropped} == {"kept no longer"}


async def test_a_caller_is_not_told_that_a_lost_item_was_done(redis: Redis, connect: Connect) -> None:
    """A later item is done, and has a larger number than one that a failover has lost."""
    async with Session(redis) as session, Session(connect()) as other:
        done = Runs()
        here, there = Combiner(session, "a", window=0.3), Combiner(other, "a", window=0.3)
        first = begin(here.submit(1, done.each))
        while not await redis.exists("aiolocks:combiner:{a}"):
            await asyncio.sleep(0.001)
        lost = begin(there.submit(2, done.each))
        await left(redis, 2)
        await redis.zremrangebyrank("aiolocks:combiner.items:{a}", 1, 1)
        later = begin(here.submit(3, done.each))
        assert await asyncio.gather(first, later) == ["1!", "3!"]
        assert done.batches == [[1, 3]]
        with pytest.raises(LockLostError, match="not known whether the item was done"):
            await asyncio.wait_for(lost, 5)


class Garbling:
    """Items of which nobody can read the odd ones, as those of a newer program, or a damaged one."""

    def dumps(self, value: Any) -> bytes:
        return JSON.dumps(value) if value != "odd" else b"\xff"

    def loads(self, payload: bytes) -> Any:
        return JSON.loads(payload)


async def test_an_item_that_cannot_be_read_is_an_error_of_its_caller_alone(
    session: Session, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    async with Session(connect()) as other:
        done = Runs()
        done.may_end.clear()
        here = Combiner(session, "a", retry=2)
        first = begin(here.submit("first", done.each))
        await runs(done)
        odd = begin(Combiner(other, "a", serializer=Garbling()).submit("odd", done.each))
        await eventually(lambda: other.statistics().waiters == 1)
        await Combiner(other, "a", serializer=Garbling()).leave("odd")
        rest = [begin(here.submit(n, done.each)) for n in range(3)]
        await asyncio.sleep(0.05)
        done.may_end.set()
        assert await asyncio.gather(first, *rest) == ["first!", "0!", "1!", "2!"]
        # Its own session may run the batch.
        with pytest.raises((RemoteCallError, UnicodeDecodeError), match="can't decode byte"):
            await asyncio.wait_for(odd, 5)
        assert done.items == ["first", 0, 1, 2]
        assert done.attempts == [1, 1]
        assert "2 items of batch 2 cannot be read, and are dropped" in caplog.text


async def test_a_batch_of_which_nothing_can_be_read_is_done(session: Session, redis: Redis) -> None:
    done, dropped = Runs(), list[tuple[int, str]]()

    class Listener:
        def on_dropped(self, event: Any) -> None:
            dropped.append((event.items, event.reason))

    await Combiner(redis, "a", serializer=Garbling()).leave("odd")
    async with Session(redis, listeners=[Listener()]) as telling:
        worker = begin(Combiner(telling, "a").drain(done.each))
        await eventually(lambda: dropped == [(1, "unreadable")])
        assert await Combiner(session, "a").submit("next", done.each) == "next!"
        worker.cancel()
        await asyncio.wait({worker})
    assert done.batches == [["next"]]


async def test_nothing_stays_of_items_that_are_done(session: Session, redis: Redis) -> None:
    done = Runs()
    combiner = Combiner(session, "a")
    await asyncio.gather(*(combiner.submit("x" * 1000, done.each) for _ in range(300)))
    await eventually(lambda: not session._engine.in_progress)  # type: ignore[union-attr]
    assert not await redis.exists("aiolocks:combiner.items:{a}")
    assert await combiner.submit("next", done.each) == "next!"


# -- many sessions -------------------------------------------------------------------------------------------


async def test_each_of_many_sessions_is_woken_for_its_answer(redis: Redis, connect: Connect) -> None:
    """Each run waits for the answer of the caller before it: no answer waits for the end of a later run."""
    many = 40
    answered = [asyncio.Event() for _ in range(many)]
    begun, everybody = asyncio.Event(), asyncio.Event()
    late: list[int] = []

    async def run(batch: Batch) -> int:
        (number,) = batch.items
        begun.set()
        await everybody.wait()
        if number:
            try:
                await asyncio.wait_for(answered[number - 1].wait(), 0.4)
            except TimeoutError:
                late.append(number - 1)
        return int(number)

    async def submit(session: Session, number: int) -> None:
        assert await Combiner(session, "a", most=1).submit(number, run) == number
        answered[number].set()

    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(Session(connect())) for _ in range(many)]
        worker = begin(Combiner(sessions[0], "a", most=1).drain(run))
        await Combiner(sessions[0], "a", most=1).leave(0)
        answered[0].set()
        await begun.wait()
        tasks: list[asyncio.Task[None]] = []
        for number, session in enumerate(sessions[1:], start=1):
            tasks.append(begin(submit(session, number)))
            await left(redis, number + 1)
        everybody.set()
        await asyncio.gather(*tasks)
        worker.cancel()
        await asyncio.wait({worker})
    assert late == []


# -- the network ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_of", [PUT, ACQUIRE, ACK], ids=["put", "acquire", "ack"])
@pytest.mark.parametrize("times", [1, 2])
async def test_a_lost_reply_changes_nothing(
    client: Redis, through: Proxy, request_of: Any, times: int
) -> None:
    done, combiner = Runs(), Combiner(client, "a")
    assert await combiner.submit(0, done.each) == "0!"
    lost = [through.reset_after(request_of, nth=nth + 1) for nth in range(times)]
    if request_of is PUT:
        await combiner.leave(1)
    else:
        assert await combiner.submit(1, done.each) == "1!"
    assert all(event.is_set() for event in lost)
    assert await combiner.submit(2, done.each) == "2!"
    assert done.batches == ([[0], [1, 2]] if request_of is PUT else [[0], [1], [2]])


async def test_an_outage_of_the_server_loses_nothing(own_server: OwnServer, connect: Connect) -> None:
    server = await own_server()
    async with Session(connect(server), command_timeout=5) as session:
        done = Runs(lasts=0.05)
        combiner = Combiner(session, "a", ttl=10)
        first = begin(combiner.submit(1, done.each))
        await runs(done)
        server.pause()
        second = begin(combiner.submit(2, done.each))
        await asyncio.sleep(0.7)
        assert not second.done()
        server.resume()
        assert await asyncio.wait_for(asyncio.gather(first, second), 8) == ["1!", "2!"]
        assert done.batches == [[1], [2]]


async def test_a_batch_is_run_once_on_a_server_that_is_out_of_memory(
    own_server: OwnServer, connect: Connect
) -> None:
    server = await own_server(arguments=("--maxmemory-policy", "noeviction"))
    admin = connect(server)
    async with Session(connect(server)) as session, Session(connect(server)) as other:
        done = Runs()
        done.may_end.clear()
        first = begin(Combiner(session, "a").submit("first", done.each))
        await runs(done)
        many = [begin(Combiner(other, "a").submit(n, done.each)) for n in range(120)]
        await left(admin, 121)
        worker = begin(Combiner(session, "a").drain(done.each))
        done.may_end.set()
        assert await first == "first!"
        done.may_end.clear()
        await runs(done, 2)
        await admin.config_set("maxmemory", 1)
        done.may_end.set()
        assert await asyncio.wait_for(asyncio.gather(*many), 10) == [f"{n}!" for n in range(120)]
        await rejected(Combiner(other, "a").leave("later"))
        await admin.config_set("maxmemory", 0)
        worker.cancel()
        await asyncio.wait({worker})
    assert done.batches == [["first"], [*range(120)]]


@pytest.mark.more  # as an outage
async def test_a_server_that_is_gone_is_an_error_in_time(own_server: OwnServer, connect: Connect) -> None:
    server = await own_server()
    async with Session(connect(server), command_timeout=0.3) as session:
        combiner, done = Combiner(session, "a", ttl=1), Runs()
        assert await combiner.submit(1, done.each) == "1!"
        done.may_end.clear()
        running = begin(combiner.submit(2, done.each))
        await runs(done, 2)
        server.kill()
        await rejected(combiner.leave(3))
        await rejected(combiner.submit(4, done.each))
        began = time.monotonic()
        with pytest.raises(BackendError):
            await asyncio.wait_for(running, 10)
        assert time.monotonic() - began < 6
        assert not session._engine.in_progress  # type: ignore[union-attr]


async def test_a_server_that_refuses_connections_is_an_error_at_once(
    own_server: OwnServer, connect: Connect
) -> None:
    server, done = await own_server(), Runs()
    async with Session(connect(server)) as session:
        combiner = Combiner(session, "a")
        await combiner.submit(0, done.each)
        server.kill()
        for ask in (lambda: combiner.submit(1, done.each), lambda: combiner.leave(1)):
            with elapsed() as took:
                error = await rejected(ask())
            assert took.seconds < AT_ONCE
            assert error.transient


async def test_a_silent_server_ends_a_submit_after_the_time_of_a_command_and_not_after_the_ttl(
    own_server: OwnServer, connect: Connect
) -> None:
    server, done = await own_server(), Runs()
    async with Session(connect(server), command_timeout=0.4) as session:
        combiner = Combiner(session, "a", ttl=60)
        await combiner.submit(0, done.each)
        server.pause()
        with elapsed() as took:
            await rejected(combiner.submit(1, done.each))
        assert 0.3 < took.seconds < 20
        server.resume()
        assert await asyncio.wait_for(combiner.submit(2, done.each), 20) == "2!"


async def test_what_comes_behind_a_question_that_fails_is_put_where_a_worker_goes_on(
    own_server: OwnServer, connect: Connect
) -> None:
    server, done = await own_server(), Runs()
    async with Session(connect(server), command_timeout=0.4) as session:
        combiner = Combiner(session, "a", ttl=1)
        await combiner.submit(0, done.each)
        server.pause()
        brought = begin(combiner.submit(1, done.each))
        await asyncio.sleep(0.01)
        worker, behind = begin(combiner.drain(done.each)), begin(combiner.submit(2, done.each))
        assert (await rejected(brought)).transient
        server.resume()
        # Where the machine stands still, its put fails, too. But it is never left aside.
        await asyncio.wait({behind}, timeout=20)
        assert behind.done()
        worker.cancel()
        await asyncio.wait({worker, behind})


@pytest.mark.more  # as an outage that loses nothing
async def test_a_worker_outlasts_an_outage(own_server: OwnServer, connect: Connect) -> None:
    server = await own_server()
    async with Session(connect(server), command_timeout=0.3) as session:
        done, combiner = Runs(), Combiner(session, "a", ttl=1)
        worker = begin(combiner.drain(done.each))
        await combiner.leave(1)
        await runs(done)
        server.pause()
        await asyncio.sleep(2.5)
        server.resume()
        await eventually(session.healthy, within=5)
        await combiner.leave(2)
        # The end of the first batch may not have reached the server: then it is run again.
        await eventually(lambda: done.items in ([1, 2], [1, 1, 2], [1, 1, 1, 2]), within=5)
        worker.cancel()
        await asyncio.wait({worker})


@pytest.mark.more  # as an item that is dropped
async def test_what_a_server_has_lost_is_told(redis: Redis, connect: Connect) -> None:
    async with Session(redis) as session, Session(connect()) as other:
        done = Runs()
        done.may_end.clear()
        running = begin(Combiner(session, "a").submit(1, done.each))
        await runs(done)
        waiting = begin(Combiner(other, "a").submit(2, done.each))
        await eventually(lambda: other.statistics().waiters == 1)
        await redis.delete("aiolocks:combiner.items:{a}", "aiolocks:combiner:{a}")
        with pytest.raises(LockLostError, match="does not know the item any more"):
            await asyncio.wait_for(waiting, 5)
        done.may_end.set()
        with pytest.raises(LockLostError, match="does not know the item any more"):
            await asyncio.wait_for(running, 5)


async def test_a_forced_release_hands_the_batch_to_another(session: Session, connect: Connect) -> None:
    async with Session(connect()) as other:
        done, stuck = Runs(), Runs()
        stuck.may_end.clear()
        first = begin(Combiner(session, "a", ttl=2).submit(1, stuck.each))
        await runs(stuck)
        second = begin(Combiner(other, "a", ttl=2).submit(2, done.each))
        await eventually(lambda: other.statistics().waiters == 1)
        (info,) = await other.inspect("a")
        assert (info.kind, info.value, info.waiters, len(info.holders)) == ("combiner", 2, 1, 1)
        assert await other.force_release("a", kind="combiner")
        assert await asyncio.wait_for(second, 5) == "2!"
        assert await asyncio.wait_for(first, 5) == "1!"
        assert done.batches == [[1], [2]]


# -- processes -----------------------------------------------------------------------------------------------


async def write(path: str, batch: Batch) -> None:
    """Writes a batch into a store, in one transaction that refuses a late run and one that was done."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as store:
        store.execute("BEGIN IMMEDIATE")
        (seen,) = store.execute("SELECT token FROM fence").fetchone()
        if batch.fencing_token > seen:
            store.execute("UPDATE fence SET token = ?", (batch.fencing_token,))
            store.executemany("INSERT OR IGNORE INTO done VALUES (?)", [(str(item),) for item in batch.items])
        store.execute("COMMIT")


async def push(url: str, path: str, name: str, items: int, dies: str = "", ttl: float = 1.0) -> None:
    """A process that submits items; it may end after its work was done, or freeze in it."""
    async with Redis.from_url(url) as redis, Session(redis) as session:
        combiner = Combiner(session, "a", ttl=ttl)

        async def run(batch: Batch) -> int:
            tell("runs", items=batch.items, token=batch.fencing_token)
            await asyncio.sleep(0.05)
            if dies == "before":
                await asyncio.Event().wait()
            if dies == "exits":
                sys.exit(3)
            if dies == "frozen":
                tell("frozen")
                time.sleep(0.5)  # noqa: ASYNC251 - it is stopped from outside meanwhile
            await write(path, batch)
            if dies == "after":
                tell("written")
                await asyncio.Event().wait()
            return len(batch)

        answers = await asyncio.gather(*(combiner.submit(f"{name}{n}", run) for n in range(items)))
        tell("answered", answers=answers)


def store(tmp_path: Path) -> str:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as made:
        made.execute("CREATE TABLE fence (token INTEGER)")
        made.execute("INSERT INTO fence VALUES (0)")
        made.execute("CREATE TABLE done (item TEXT PRIMARY KEY)")
    return str(path)


def done_in(path: str) -> set[str]:
    with closing(sqlite3.connect(path, isolation_level=None)) as made:
        return {item for (item,) in made.execute("SELECT item FROM done")}


@pytest.mark.parametrize("dies", only(["before", "after"], "after"))
async def test_a_runner_that_is_killed_is_followed_by_one_that_waits(
    redis: Redis, server: Server, workers: Workers, tmp_path: Path, dies: str
) -> None:
    path = store(tmp_path)
    doomed = await workers.start(push, url=server.url, path=path, name="d", items=3, dies=dies)
    await doomed.told("runs" if dies == "before" else "written")
    other = await workers.start(push, url=server.url, path=path, name="o", items=3)
    while not await redis.zcard("aiolocks:combiner.queue:{a}"):
        await asyncio.sleep(0.01)
    doomed.kill()
    began = time.monotonic()
    report = await other.told("answered")
    assert time.monotonic() - began < 3
    assert report["answers"] == [3, 3, 3]
    await other.finish()
    assert done_in(path) == {f"{name}{n}" for name in "do" for n in range(3)}


async def test_a_runner_whose_program_ends_is_followed_at_once(
    server: Server, workers: Workers, tmp_path: Path
) -> None:
    path = store(tmp_path)
    ending = await workers.start(push, url=server.url, path=path, name="e", items=3, dies="exits", ttl=20)
    await ending.finish(status=3)
    other = await workers.start(push, url=server.url, path=path, name="o", items=1, ttl=20)
    assert (await other.told("answered", within=10))["answers"] == [1]
    await other.finish()
    assert done_in(path) == {"e0", "e1", "e2", "o0"}


async def poisoned(url: str, path: str) -> None:
    """A worker whose function kills its process, and gives a batch up as docs/how-to/combiner.md does."""
    async with Redis.from_url(url) as redis, Session(redis) as session:
        combiner = Combiner(session, "a", ttl=0.3)
        with closing(sqlite3.connect(path, isolation_level=None)) as store:

            async def careful(batch: Batch) -> str:
                (tries,) = store.execute(
                    "INSERT INTO tries VALUES (?, 1) ON CONFLICT DO UPDATE SET number = number + 1 "
                    "RETURNING number",
                    (batch.number,),
                ).fetchone()
                if tries > 3:
                    store.executemany("INSERT INTO done VALUES (?)", [(item,) for item in batch.items])
                    return "set aside"
                if "poison" in batch.items:
                    os.kill(os.getpid(), signal.SIGKILL)
                return "done"

            tell("answered", answer=await combiner.submit(f"item of {os.getpid()}", careful))


@pytest.mark.more  # as a runner that is killed
async def test_a_batch_that_kills_its_process_can_be_given_up(
    redis: Redis, server: Server, workers: Workers, tmp_path: Path
) -> None:
    path = store(tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as made:
        made.execute("CREATE TABLE tries (batch INTEGER PRIMARY KEY, number INTEGER)")
    await Combiner(redis, "a").leave("poison")
    four = await workers.start_many(4, poisoned, url=server.url, path=path)
    ended = await asyncio.gather(*(worker.told("answered") for worker in four), return_exceptions=True)
    assert [type(end) for end in ended].count(dict) == 1  # the others were killed
    assert "poison" in done_in(path)


async def test_a_runner_that_is_frozen_writes_nothing_late(
    server: Server, workers: Workers, tmp_path: Path
) -> None:
    path = store(tmp_path)
    frozen = await workers.start(push, url=server.url, path=path, name="f", items=3, dies="frozen")
    await frozen.told("frozen")
    frozen.stop()
    other = await workers.start(push, url=server.url, path=path, name="o", items=3)
    await other.told("answered")
    await other.finish()
    assert done_in(path) == {f"{name}{n}" for name in "fo" for n in range(3)}
    with closing(sqlite3.connect(path, isolation_level=None)) as made:
        (token,) = made.execute("SELECT token FROM fence").fetchone()
        made.execute("DELETE FROM done")
    frozen.cont()  # it goes on, with the old fencing token
    report = await frozen.told("answered", within=10)
    assert len(report["answers"]) == 3
    await frozen.finish()
    assert done_in(path) == set()  # its write was refused
    with closing(sqlite3.connect(path, isolation_level=None)) as made:
        assert made.execute("SELECT token FROM fence").fetchone() == (token,)


@pytest.mark.more  # as an outage that loses nothing
async def test_left_items_outlast_all_processes_and_the_next_to_come_runs_them(
    redis: Redis, server: Server, workers: Workers, tmp_path: Path
) -> None:
    path = store(tmp_path)
    doomed = await workers.start(push, url=server.url, path=path, name="d", items=3, dies="before")
    await doomed.told("runs")
    doomed.kill()
    later = await workers.start(push, url=server.url, path=path, name="l", items=1)
    await later.told("answered")
    await later.finish()
    assert done_in(path) == {"d0", "d1", "d2", "l0"}


# -- what is told --------------------------------------------------------------------------------------------


async def test_listeners_hear_of_items_and_batches(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[str, int, int, str]] = []

    class Listener:
        def on_left(self, event: Any) -> None:
            told.append(("left", event.items, event.pressure, event.name))

        def on_combined(self, event: Any) -> None:
            told.append(("combined", event.items, event.fencing_token > 0, event.reason))

    async with Session(redis, listeners=[Listener()]) as session:
        done, combiner = Runs(), Combiner(session, "a")
        await combiner.leave(0)
        await asyncio.gather(combiner.submit(1, done.each), combiner.submit(2, done.each))

        async def fails(batch: Batch) -> None:
            raise ValueError

        with pytest.raises(ValueError):  # noqa: PT011 - it has no text
            await combiner.submit(3, fails)
    assert told == [
        ("left", 1, 1, "a"),
        ("left", 2, 3, "a"),
        ("combined", 3, True, ""),
        ("left", 1, 1, "a"),
        ("combined", 1, True, "failed"),
    ]


async def test_metrics_count_the_items_of_a_batch_once(redis: Redis) -> None:
    registry = CollectorRegistry()
    async with Session(redis, listeners=[PrometheusListener(names={"a": "a"}, registry=registry)]) as session:
        combiner = Combiner(session, "a", retry=2)

        async def run(batch: Batch) -> None:
            if batch.attempt < 3 or batch.items == [3, 4]:
                raise ValueError("not yet")

        await combiner.submit(1, run)
        await combiner.submit(2, run)
        await combiner.leave(3)
        with pytest.raises(ValueError, match="not yet"):
            await combiner.submit(4, run)

    def counted(name: str) -> float | None:
        return registry.get_sample_value(f"aiolocks_{name}_total", {"kind": "combiner", "name": "a"})

    names = ("left_items", "batches", "batch_items", "failed_items", "dropped_items")
    assert [counted(name) for name in names] == [4, 3, 4, 2, 0]


async def test_it_says_what_it_is(session: Session) -> None:
    combiner = Combiner(session, "sync:{account}", ttl=7)
    assert repr(combiner) == "<Combiner 'sync:{account}' ttl=7>"
    assert (combiner.name, combiner.ttl) == ("sync:{account}", 7)

    async def run(batch: Batch) -> str:
        assert len(batch) == 1
        assert session._engine is not None
        (combining,) = session._engine.in_progress.values()
        assert repr(combining) == "<Combining 'sync:1' waiting=1 workers=0>"
        return repr(batch)

    expected = "<Batch 'sync:1' number=1 attempt=1 items=1>"
    assert await combiner.submit("a", run, account=1) == expected


async def test_items_that_a_caller_leaves_in_turn_cost_two_requests_each(session: Session) -> None:
    """The next one comes in the step in which the last one is answered, and is brought as the first was."""
    combiner, done = Combiner(session, "a"), Runs()
    await combiner.submit(0, done.each)
    sent = session.statistics().commands_sent
    for number in range(1, 11):
        assert await combiner.submit(number, done.each) == f"{number}!"
    assert session.statistics().commands_sent - sent <= 20 + 1  # a renewal


async def test_another_ttl_counts_from_the_next_time_on_that_there_is_work(session: Session) -> None:
    ttls: list[float] = []

    async def outer(batch: Batch) -> None:
        ttls.append(batch.lease.ttl)
        await Combiner(session, "a", ttl=7).leave(1)  # while there is work: the ttl stays

    async def inner(batch: Batch) -> None:
        ttls.append(batch.lease.ttl)

    await Combiner(session, "a", ttl=9).submit(0, outer)
    same = Combiner(session, "a", ttl=7)
    for number in range(2):
        await same.submit(number, inner)
    assert ttls == [9, 7, 7]


async def test_an_item_that_cannot_be_read_takes_no_answer_from_those_beside_it(
    session: Session, connect: Connect, redis: Redis
) -> None:
    """One answer is left for items in a row that have the same: it must not be for those between them."""

    class Picky:
        dumps = staticmethod(JSON.dumps)

        @staticmethod
        def loads(payload: bytes) -> Any:
            if payload == b'"bad"':
                raise ValueError("bad")
            return JSON.loads(payload)

    async def all_left() -> bool:
        return await redis.zcard("aiolocks:combiner.items:{a}") == 1 + len(callers)

    done, callers = Runs(), list[asyncio.Task[Any]]()
    worker = begin(Combiner(session, "a", window=0.5, serializer=Picky()).drain(done.together))
    await eventually(lambda: session.statistics().waiters == 1)
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(Session(connect())) for _ in range(3)]
        there = [Combiner(one, "a", window=0.5) for one in sessions]
        await there[0].leave("first")
        await eventually(lambda: session.statistics().leases_held == 1)
        for combiner, item in zip(there, ("one", "bad", "two"), strict=True):
            callers.append(begin(combiner.submit(item, done.each)))
            await eventually(all_left, within=SLACK)
        assert await callers[0] == await callers[2] == ["first", "one", "two"]
        with pytest.raises(RemoteCallError, match="bad"):
            await callers[1]
    worker.cancel()


async def test_what_a_run_does_to_its_items_changes_no_answer(session: Session) -> None:
    async def takes_them(batch: Batch) -> None:
        results = [f"{item}!" for item in batch.items]
        del batch.items[1:]
        batch.results = results

    combiner = Combiner(session, "a", window=0.1)
    answers = await asyncio.gather(*(combiner.submit(number, takes_them) for number in range(3)))
    assert answers == ["0!", "1!", "2!"]

    async def has_too_few(batch: Batch) -> None:
        del batch.items[1:]
        batch.results = [batch.items[0]]

    asked = (combiner.submit(number, has_too_few) for number in range(3))
    assert {str(end) for end in await asyncio.gather(*asked, return_exceptions=True)} == {
        "batch.results has 1 results for 3 items"
    }

    async def pops_all(batch: Batch) -> None:
        batch.items.clear()
        batch.results = []

    with pytest.raises(ValueError, match="0 results for 1 items"):
        await combiner.submit(1, pops_all)


async def test_nobody_is_answered_by_a_run_that_has_released_its_lease(session: Session) -> None:
    done = Runs()

    async def releases(batch: Batch) -> str:
        done.note(batch)
        if len(done.batches) == 1:
            await batch.lease.release()
        return f"run {len(done.batches)}"

    assert await Combiner(session, "a", ttl=0.3).submit(1, releases) == "run 2"
    assert done.batches == [[1], [1]]


async def test_callers_hear_of_a_put_that_failed_in_an_unforeseen_way(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise ZeroDivisionError

    combiner = Combiner(session, "a")
    await combiner.submit(1, Runs().each)
    monkeypatch.setattr("aiolocks.kinds.combiner.Combining._put", fails)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(combiner.leave(2), 5)
    monkeypatch.setattr("aiolocks.kinds.combiner.Brought", lambda *_: 1 / 0)  # as the first question is made
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(combiner.submit(3, Runs().each), 5)


async def test_an_item_that_was_not_sent_yet_is_left_also_if_a_run_fails_in_an_unforeseen_way(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    combiner, left = Combiner(session, "a"), list[asyncio.Task[Left]]()

    async def fails(_: object, lease: Any) -> None:
        await lease.release()
        left.append(begin(combiner.leave(2)))
        await asyncio.sleep(0)
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr("aiolocks.kinds.combiner.Combining._run_once", fails)
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(combiner.submit(1, Runs().each), 5)
    assert (await left[0]).pressure == 2
    done = Runs()
    assert await combiner.submit(3, done.each) == "3!"
    assert done.batches == [[1], [2, 3]]  # the first was begun


@pytest.mark.parametrize(
    "times",
    [
        {"within": 2},
        {"window": 3, "within": 2},
        {"window": 10, "keep": 1},
        {"window": 1, "within": 5, "keep": 5},
    ],
)
def test_times_that_would_drop_items_are_refused(session: Session, times: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Combiner(session, "a", **times)  # type: ignore[arg-type]
