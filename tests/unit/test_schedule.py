"""`Schedule`: its arguments, and what it does with a server."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import pickle
import re
import time
import zoneinfo
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from aiolocks import (
    ConfigurationError,
    LeaseState,
    Lock,
    LockEvent,
    Schedule,
    Session,
    SessionClosedError,
    Tick,
)
from aiolocks.kinds.schedule.plan import delay
from aiolocks.kinds.schedule.run import Run, claim_nearest
from aiolocks.lock import together
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves_keys("*:schedule.register:*", "*:schedule.history:*")
timed = pytest.mark.more
"""By default, these run in the simulated world: see `test_in_the_world`."""

AT_ONCE = 10.0
"""Seconds that a busy machine may take for what happens at once."""
HOUR = 3600


class Runs:
    """The runs of a job, and how each is to go."""

    def __init__(self, body: Callable[[Tick], Awaitable[None]] | None = None) -> None:
        self.ticks: list[Tick] = []
        self.ended: list[Tick] = []
        self.body = body

    async def __call__(self, tick: Tick) -> None:
        self.ticks.append(tick)
        if self.body is not None:
            await self.body(tick)
        self.ended.append(tick)

    def of(self, schedule: Schedule) -> Runs:
        @schedule
        async def job(tick: Tick) -> None:
            await self(tick)

        return self

    @property
    def dues(self) -> list[float]:
        return [tick.due.timestamp() for tick in self.ticks]

    async def begun(self, number: int) -> None:
        await eventually(lambda: len(self.ticks) >= number, within=AT_ONCE)


async def slow(_: Tick) -> None:
    await asyncio.sleep(60)


def pair(session: Session, **kwargs: Any) -> tuple[Schedule, Runs]:
    schedule = Schedule(session, kwargs.pop("name", "a"), **kwargs)
    return schedule, Runs().of(schedule)


async def outcomes(schedule: Schedule) -> list[str]:
    return [record.outcome for record in await schedule.history()]


# -- arguments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({}, TypeError, "takes either cron= or every="),
        ({"every": 1, "cron": "* * * * *"}, TypeError, "takes either cron= or every="),
        ({"every": 1, "overlap": "wait"}, ValueError, "overlap must be one of 'skip', 'queue', 'allow', not"),
        ({"every": 1, "misfire": "none"}, ValueError, "misfire must be one of 'latest', 'skip', 'all', not"),
        ({"every": 1, "redo": -1}, ValueError, "redo must be from 0 to 1000"),
        ({"every": 1, "redo": True}, TypeError, "redo must be an int"),
        ({"every": 1, "at_most": 0}, ValueError, "at_most must be a number of seconds"),
        ({"every": 1, "jitter": -1}, ValueError, "jitter must be a number of seconds"),
        ({"every": 1, "ttl": 0.01}, ValueError, "ttl must be a number of seconds"),
        ({"every": 1, "ttl": None}, TypeError, "ttl must be"),
        ({"every": 1, "tz": "Mars/Olympus"}, ValueError, "'Mars/Olympus' is not a known time zone"),
        ({"every": 1, "metadata": 1}, TypeError, "metadata must be a mapping"),
        ({"interval": 60}, TypeError, r"did you mean every= \(seconds between two ticks\)"),
        ({"crontab": "* * * * *"}, TypeError, "did you mean cron="),
        ({"every": 1, "timezone": "UTC"}, TypeError, "did you mean tz="),
        ({"every": 1, "timeout": 5}, TypeError, r"did you mean at_most= \(how long a run may take\)"),
        ({"every": 1, "coalesce": True}, TypeError, "did you mean misfire="),
        ({"every": 1, "max_instances": 1}, TypeError, "did you mean overlap="),
    ],
)
def test_wrong_arguments_are_refused_before_any_io(arguments, error, match) -> None:
    from redis.asyncio import Redis

    with pytest.raises(error, match=match):
        Schedule(Redis(), "a", **arguments)


def test_a_name_and_a_client_are_needed(redis) -> None:
    with pytest.raises(TypeError, match="the client comes first"):
        Schedule("a", redis, every=1)
    with pytest.raises(ValueError, match="name must not be empty"):
        Schedule(redis, "", every=1)


def test_durations_have_one_meaning_each() -> None:
    """In other libraries, nobody could explain what "at least" and "at most" do to a lock."""
    from redis.asyncio import Redis

    for slip in ("at_least", "lock_at_least_for"):
        with pytest.raises(TypeError, match="a tick that was claimed is never run again"):
            Schedule(Redis(), "a", every=60, **{slip: 30})
    with pytest.raises(TypeError, match="did you mean at_most="):
        Schedule(Redis(), "a", every=60, lock_at_most_for=30)


async def test_what_is_no_job_is_refused(session) -> None:
    schedule = Schedule(session, "a", every=HOUR)
    with pytest.raises(TypeError, match="a schedule decorates a coroutine function"):
        schedule(lambda tick: None)
    with pytest.raises(TypeError, match="takes the tick as its only argument"):

        @schedule
        async def too_few() -> None: ...

    with pytest.raises(TypeError, match="takes the tick as its only argument"):

        @schedule
        async def too_many(tick: Tick, other: object) -> None: ...

    for use in (schedule.run, schedule.__aenter__, schedule.trigger):
        with pytest.raises(RuntimeError, match="has no job: decorate a coroutine function"):
            await use()

    @schedule
    async def job(tick: Tick, retries: int = 3) -> int:
        return retries

    assert await job(None, 5) == 5  # it stays what it was
    with pytest.raises(RuntimeError, match="has a job already"):
        schedule(job)


async def test_misuse_is_told(session) -> None:
    schedule, _ = pair(session, every=HOUR)
    with pytest.raises(TypeError, match="write `async with` instead of `with`"), schedule:
        pass
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(schedule)
    with pytest.raises(RuntimeError, match="was not entered"):
        await schedule.__aexit__(None, None, None)
    async with schedule:
        with pytest.raises(RuntimeError, match="is kept already"):
            await schedule.__aenter__()
    for limit in (0, 101):
        with pytest.raises(ValueError, match="limit must be from 1 to 100"):
            await schedule.history(limit)


def test_it_shows_what_it_is(redis) -> None:
    assert repr(Schedule(redis, "a", every=60)) == "<Schedule 'a' every=60 overlap='skip'>"
    shown = repr(Schedule(redis, "a", cron="0 3 * * *", tz="Europe/Berlin", overlap="queue"))
    assert shown == "<Schedule 'a' cron='0 3 * * *' tz='Europe/Berlin' overlap='queue'>"
    assert Schedule(redis, "a", every=60).name == "a"


# -- ticks ---------------------------------------------------------------------------------------------------


async def test_a_tick_says_what_it_is(session) -> None:
    schedule, runs = pair(session, every=0.2, metadata={"team": "blue"})
    began = time.time()
    async with schedule:
        await runs.begun(3)
    for tick in runs.ticks:
        assert (tick.name, tick.attempt, tick.due.tzinfo) == ("a", 1, dt.UTC)
        assert tick.due.timestamp() > began - 0.2
        assert tick.due.timestamp() * 1000 % 200 == pytest.approx(0, abs=1e-3)
        assert tick.fencing_token == tick.lease.fencing_token >= tick.due.timestamp() * 1e6
        assert tick.lease.metadata == {"team": "blue"}
    assert sorted(set(runs.dues)) == runs.dues
    tokens = [tick.fencing_token for tick in runs.ticks]
    assert sorted(set(tokens)) == tokens
    record = (await schedule.history(1))[0]
    assert (record.outcome, record.due, record.attempt) == ("done", runs.ticks[-1].due, 1)
    assert (record.fencing_token, record.metadata) == (runs.ticks[-1].fencing_token, {"team": "blue"})
    assert record.duration is not None
    assert record.ended is not None
    assert record.duration == pytest.approx((record.ended - record.began).total_seconds())
    assert record.began >= record.due


async def test_a_new_schedule_runs_nothing_before_its_next_tick(session) -> None:
    for name, misfire in (("a", "latest"), ("b", "all"), ("c", "skip")):
        schedule, runs = pair(session, name=name, every=HOUR, misfire=misfire)
        async with schedule:
            await eventually(lambda name=name: session._usable_engine().ask is not None, within=AT_ONCE)
            await asyncio.sleep(0.05)
        assert runs.ticks == []


async def test_ticks_are_told_in_the_time_zone_of_the_schedule(session) -> None:
    schedule, runs = pair(session, cron="* * * * * *", tz="Asia/Kathmandu")
    async with schedule:
        await runs.begun(1)
    assert runs.ticks[0].due.tzinfo == zoneinfo.ZoneInfo("Asia/Kathmandu")
    assert runs.ticks[0].due.microsecond == 0


@timed
async def test_one_loop_for_each_worker_is_one_run_for_each_tick(server, connect, prefix) -> None:
    """Twelve thousand double rows in a day came from such loops."""
    rows: list[dt.datetime] = []
    sessions = [Session(connect(server), prefix=prefix) for _ in range(4)]
    workers = []
    for session in sessions:
        schedule = Schedule(session, "a", every=0.1)

        @schedule
        async def job(tick: Tick) -> None:
            rows.append(tick.due)

        workers.append(asyncio.create_task(schedule.run()))
    await eventually(lambda: len(rows) >= 8, within=AT_ONCE)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    assert len(set(rows)) == len(rows)
    for session in sessions:
        await session.aclose()


@timed
async def test_jitter_is_the_same_everywhere_and_starts_nothing_early(session) -> None:
    schedule, runs = pair(session, every=0.4, jitter=0.2)
    async with schedule:
        await runs.begun(3)
    for tick in runs.ticks:
        due = round(tick.due.timestamp() * 1000)
        put_off = delay("a", due, 400, 200)
        assert tick.fencing_token / 1000 >= due + put_off


@timed
async def test_those_that_nobody_ran_are_counted_or_run(session) -> None:
    missed: dict[str, list[int]] = {}
    for misfire in ("latest", "all", "skip"):
        schedule, runs = pair(session, name=misfire, every=0.06, misfire=misfire)
        async with schedule:
            await runs.begun(1)
        await asyncio.sleep(0.3)
        before = len(runs.ticks)
        async with schedule:
            await runs.begun(before + 6)
        missed[misfire] = [tick.missed for tick in runs.ticks[1:]]
        assert sorted(set(runs.dues)) == runs.dues
    assert max(missed["latest"]) >= 3
    assert set(missed["all"]) == {0}
    assert max(missed["skip"]) >= 3


# -- overlap -------------------------------------------------------------------------------------------------


@timed
async def test_skipped_while_a_run_goes_on(session) -> None:
    schedule, runs = pair(session, every=0.1, overlap="skip")
    runs.body = lambda tick: asyncio.sleep(0.35 if len(runs.ticks) == 1 else 0)
    async with schedule:
        await runs.begun(2)
    first, second = runs.dues[:2]
    assert second - first > 0.25
    assert runs.ended[0] is runs.ticks[0]
    assert "skipped" in await outcomes(schedule)
    record = next(record for record in await schedule.history() if record.outcome == "skipped")
    assert (record.duration, record.ended is None, record.host, record.fencing_token) == (
        None,
        False,
        None,
        0,
    )


@timed
async def test_a_tick_that_is_skipped_is_logged_once_for_each_run_in_its_way(session, caplog) -> None:
    caplog.set_level("DEBUG", "aiolocks.schedule")
    schedule, runs = pair(session, every=0.1, overlap="skip")
    runs.body = lambda tick: asyncio.sleep(0.35)
    async with schedule:
        await runs.begun(3)
    together.flush()
    told = [one for one in caplog.records if " skipped: " in one.message]
    warnings = [one.message for one in told if one.levelname == "WARNING"]
    due = runs.ticks[0].due + dt.timedelta(seconds=0.1)
    assert warnings[0] == f"schedule 'a': the tick of {due} is skipped: another run goes on"
    # Those that come soon after it have one line.
    assert len(warnings) == 2
    assert re.match(r"(2 ticks of schedules are|schedule 'a': the tick of .* is) skipped: ", warnings[1])
    assert len(told) > 5  # each is at DEBUG, also those in the way of one run


@timed
async def test_a_guarded_tick_that_is_skipped_is_logged(session, caplog) -> None:
    schedule, runs = pair(session, every=0.3)
    runs.body = slow

    @schedule.guard
    async def guarded() -> None: ...

    await guarded()
    running = asyncio.create_task(schedule.trigger())
    await runs.begun(1)
    await asyncio.sleep(0.7)
    await guarded()
    running.cancel()
    await asyncio.wait([running])
    together.flush()
    assert [record.levelname for record in caplog.records if "is skipped" in record.message] == ["WARNING"]


@timed
async def test_queued_while_a_run_goes_on(server, connect, prefix) -> None:
    """The next one begins when it has ended, in whichever process."""
    async with Session(connect(server), prefix=prefix) as one, Session(connect(server), prefix=prefix) as two:
        first, runs = pair(one, every=0.2, overlap="queue")
        other = Runs().of(second := Schedule(two, "a", every=0.2, overlap="queue"))
        done = asyncio.Event()
        runs.body = other.body = lambda tick: done.wait()
        async with first, second:
            await eventually(lambda: runs.ticks or other.ticks, within=AT_ONCE)
            await asyncio.sleep(0.5)
            assert len(runs.ticks + other.ticks) == 1
            done.set()
            await eventually(lambda: len(runs.ticks + other.ticks) >= 2, within=AT_ONCE)
    ticks = sorted(runs.ticks + other.ticks, key=lambda tick: tick.fencing_token)
    assert ticks[1].missed >= 1
    assert "skipped" not in await outcomes_of(server, connect, prefix)


async def outcomes_of(server: Any, connect: Any, prefix: str) -> list[str]:
    async with Session(connect(server), prefix=prefix) as session:
        return await outcomes(Schedule(session, "a", every=0.2))


@timed
async def test_allowed_beside_another(session) -> None:
    schedule, runs = pair(session, every=0.1, overlap="allow")
    runs.body = slow
    async with schedule:
        await runs.begun(3)
        assert (await outcomes(schedule))[:3] == ["running"] * 3
    assert (await outcomes(schedule))[:3] == ["stopped"] * 3


# -- how a run ends ------------------------------------------------------------------------------------------


@timed
async def test_a_missed_tick_leaves_a_line_and_a_row(session, caplog) -> None:
    caplog.set_level(logging.INFO, "aiolocks.schedule")
    schedule, runs = pair(session, every=0.2)
    async with schedule:
        await runs.begun(1)
    claimed = runs.ticks[-1].due
    await asyncio.sleep(0.9)
    number = len(runs.ticks)
    async with schedule:
        await runs.begun(number + 1)
    after = runs.ticks[number]
    together.flush()
    told = [one.getMessage() for one in caplog.records if "missed" in one.getMessage()]
    (missed,) = [one for one in await schedule.history() if one.outcome == "missed"]
    gap = dt.timedelta(seconds=0.2)
    assert after.missed == (after.due - claimed) / gap - 1 >= 3
    (line,) = told
    assert line.startswith(f"schedule 'a': {after.missed} ticks before that of {after.due} were missed: ")
    assert (missed.due, missed.missed) == (after.due - gap, after.missed - 1)
    assert (missed.ended, missed.duration, missed.fencing_token, missed.host) == (None, None, 0, None)
    outcomes = [one.outcome for one in await schedule.history()]
    assert outcomes.index("missed") < len(outcomes) - 1, "in the order of their times"


async def test_a_job_that_raises_is_logged_and_the_next_tick_runs(session, caplog) -> None:
    schedule, runs = pair(session, every=0.1, redo=3)

    async def fail(tick: Tick) -> None:
        raise LookupError("no such table")

    runs.body = fail
    with caplog.at_level(logging.ERROR, "aiolocks.schedule"):
        async with schedule:
            await runs.begun(2)
    assert {tick.attempt for tick in runs.ticks} == {1}
    assert "schedule 'a': the run of " in caplog.text
    assert "LookupError: no such table" in caplog.text
    failed = [record for record in await schedule.history() if record.outcome == "failed"]
    assert len(failed) >= 2
    assert failed[0].error == "LookupError: no such table"


async def test_a_job_that_raises_no_exception_is_logged_too(session, caplog) -> None:
    class Panic(BaseException):
        """As an extension in Rust raises it."""

    schedule, runs = pair(session, every=0.1)

    async def fail(tick: Tick) -> None:
        raise Panic("index out of bounds")

    runs.body = fail
    with caplog.at_level(logging.ERROR, "aiolocks.schedule"):
        async with schedule:
            await runs.begun(2)
    assert "Panic: index out of bounds" in caplog.text
    failed = [record for record in await schedule.history() if record.outcome == "failed"]
    assert failed[0].error == "Panic: index out of bounds"


async def test_a_job_that_cancels_itself_has_failed(session) -> None:
    schedule, runs = pair(session, every=0.1)

    async def cancel(tick: Tick) -> None:
        raise asyncio.CancelledError("by itself")

    runs.body = cancel
    async with schedule:
        await runs.begun(2)
    failed = [record for record in await schedule.history() if record.outcome == "failed"]
    assert failed[-1].error == "CancelledError: by itself"


async def test_a_long_error_is_cut(session) -> None:
    schedule, runs = pair(session, every=HOUR)

    async def fail(tick: Tick) -> None:
        raise ValueError("x" * 5000)

    runs.body = fail
    with pytest.raises(ValueError, match="xxx"):
        await schedule.trigger()
    assert len((await schedule.history())[0].error) == 200


@timed
async def test_at_most_ends_a_run(session, caplog) -> None:
    schedule, runs = pair(session, every=0.1, at_most=0.15)
    runs.body = slow
    with caplog.at_level(logging.WARNING, "aiolocks.schedule"):
        async with schedule:
            await runs.begun(2)
    assert "was cancelled after at_most=0.15 s" in caplog.text
    ended = next(record for record in await schedule.history() if record.outcome == "timeout")
    assert ended.duration == pytest.approx(0.15, abs=0.15)


@timed
async def test_at_most_is_no_lease_and_no_pause(session) -> None:
    """A short run makes room at once, however large `at_most` is: no tick waits for a duration."""
    schedule, runs = pair(session, every=0.1, at_most=HOUR, ttl=HOUR)
    async with schedule:
        await runs.begun(4)
    assert max(later - earlier for earlier, later in zip(runs.dues, runs.dues[1:], strict=False)) < 2


@timed
async def test_what_a_run_that_is_lost_did_is_not_done(session, caplog) -> None:
    schedule, runs = pair(session, every=0.2, ttl=0.3)
    runs.body = slow
    async with schedule:
        await runs.begun(1)
        await session.force_release("a", kind="schedule")
        await runs.begun(2)
    assert "was cancelled: " in caplog.text
    assert runs.ended == []
    assert "lost" in await outcomes(schedule)


async def test_leaving_stops_the_run_and_lets_go_of_it(session) -> None:
    """A deploy stalled a scheduler for ten minutes, for nothing was released at shutdown."""
    schedule, runs = pair(session, every=0.1, ttl=HOUR)
    runs.body = slow
    async with schedule:
        await runs.begun(1)
    assert await session.inspect("a") == []
    assert (await outcomes(schedule))[0] == "stopped"
    other, others = pair(session, every=0.1, ttl=HOUR)
    async with other:
        await others.begun(1)


@timed
@pytest.mark.parametrize("redo", [0, 1])
async def test_a_run_that_was_stopped_is_run_again_only_if_that_was_asked_for(
    server, connect, prefix, redo: int
) -> None:
    async with Session(connect(server), prefix=prefix) as one, Session(connect(server), prefix=prefix) as two:
        first, runs = pair(one, every=0.6, redo=redo, ttl=HOUR)
        second, others = pair(two, every=0.6, redo=redo, ttl=HOUR)
        runs.body = slow
        async with first:
            await runs.begun(1)
            (tick,) = runs.ticks
            async with second:
                await eventually(lambda: two.statistics().commands_sent >= 2, within=AT_ONCE)
                await first.__aexit__(None, None, None)
                await others.begun(1)
            await first.__aenter__()  # for the exit
    again = others.ticks[0]
    assert (again.due == tick.due, again.attempt) == ((True, 2) if redo else (False, 1))


async def test_closing_the_session_ends_all(session, caplog) -> None:
    schedule, runs = pair(session, every=0.1, redo=1)
    runs.body = slow
    keeping = asyncio.create_task(schedule.run())
    await runs.begun(1)
    await session.aclose()
    with pytest.raises(SessionClosedError):
        await asyncio.wait_for(keeping, AT_ONCE)
    assert runs.ended == []


async def test_a_job_that_closes_the_session_ends_all(session) -> None:
    schedule, runs = pair(session, every=0.1)
    runs.body = lambda tick: session.aclose()
    with pytest.raises(SessionClosedError):
        await asyncio.wait_for(schedule.run(), AT_ONCE)
    assert len(runs.ticks) == 1
    with pytest.raises(SessionClosedError):
        await schedule.run()
    with pytest.raises(SessionClosedError):
        await schedule.__aenter__()


@pytest.mark.parametrize("every", [0.1, HOUR])
async def test_left_after_its_session_was_closed_it_says_so(session, every: float) -> None:
    schedule, _ = pair(session, every=every)
    with pytest.raises(SessionClosedError):
        async with schedule:
            await eventually(lambda: session.statistics().commands_sent >= 2, within=AT_ONCE)
            await session.aclose()
    with pytest.raises(LookupError):  # the error of the body
        async with Session(session._client) as other, pair(other, every=every)[0]:
            await other.aclose()
            raise LookupError


async def test_left_in_the_turn_in_which_its_session_was_closed_it_says_so(session) -> None:
    """Its task is cancelled before it can notice."""
    schedule, _ = pair(session, every=HOUR)
    with pytest.raises(SessionClosedError):
        async with schedule:
            await eventually(lambda: session.statistics().commands_sent >= 2, within=AT_ONCE)
            closing = asyncio.create_task(session.aclose())
            await asyncio.sleep(0)
    await closing


@timed
async def test_left_while_a_job_does_not_heed_that_the_session_was_closed_it_says_so(session) -> None:
    schedule, runs = pair(session, every=0.1)

    async def stubborn(_: Tick) -> None:
        for _ in range(2):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    runs.body = stubborn
    with pytest.raises(SessionClosedError):
        async with schedule:
            await runs.begun(1)
            closing = asyncio.create_task(session.aclose())
            await asyncio.sleep(0.1)
    await closing


async def test_an_end_that_nobody_waits_for_is_logged_and_raised_at_the_exit(session, caplog) -> None:
    schedule, _ = pair(session, every=0.1)
    with pytest.raises(SessionClosedError):
        async with schedule:
            await session.aclose()
            await eventually(lambda: "schedule 'a' is not kept any more" in caplog.text, within=AT_ONCE)
    async with Session(session._client, largest_metadata=100) as small:
        large, _ = pair(small, every=0.1, metadata={"a": "x" * 200})
        with pytest.raises(ConfigurationError, match="largest_metadata"):
            await large.run()


@timed
async def test_the_history_counts_no_missed_ticks_of_other_times(session) -> None:
    """A run of before the change stands there as it was; how many were missed before it, nobody can tell."""
    schedule, runs = pair(session, every=0.3)
    for number in (1, 2):
        async with schedule:
            await runs.begun(number)
        await asyncio.sleep(0.7)
    changed, _ = pair(session, every=0.05)
    assert max(record.missed for record in await schedule.history()) >= 1
    assert {record.missed for record in await changed.history()} == {0}
    assert [record.due for record in await changed.history()] == [
        record.due for record in await schedule.history() if record.outcome != "missed"
    ]


# -- out of turn ---------------------------------------------------------------------------------------------


async def test_triggered_it_runs_here_and_now(session) -> None:
    schedule, runs = pair(session, every=HOUR)
    assert await schedule.trigger() is True
    (tick,) = runs.ended
    assert (tick.attempt, tick.missed) == (0, 0)
    assert abs(tick.due.timestamp() - time.time()) < AT_ONCE
    (record,) = await schedule.history()
    assert (record.outcome, record.due, record.attempt, record.missed) == ("done", None, 0, 0)


async def test_triggered_it_raises_what_the_job_raises(session) -> None:
    schedule, runs = pair(session, every=HOUR, at_most=0.05)
    runs.body = slow
    with pytest.raises(TimeoutError):
        await schedule.trigger()
    assert await outcomes(schedule) == ["timeout"]


@pytest.mark.parametrize("overlap", ["skip", "queue", "allow"])
async def test_triggered_while_another_run_goes_on(session, overlap) -> None:
    schedule, runs = pair(session, every=HOUR, overlap=overlap)
    done = asyncio.Event()
    runs.body = lambda tick: done.wait()
    first = asyncio.create_task(schedule.trigger())
    await runs.begun(1)
    assert await outcomes(schedule) == ["running"]
    second = asyncio.create_task(schedule.trigger())
    if overlap == "skip":
        assert await second is False
    elif overlap == "allow":
        await runs.begun(2)
    else:
        await asyncio.sleep(0.05)
        assert len(runs.ticks) == 1
    done.set()
    assert await first is True
    assert await second is (overlap != "skip")
    assert len(runs.ended) == (1 if overlap == "skip" else 2)


# -- guarding what another scheduler calls ------------------------------------------------------------------


@timed
async def test_of_all_calls_for_a_tick_one_runs(server, connect, prefix) -> None:
    ran: list[int] = []
    sessions = [Session(connect(server), prefix=prefix) for _ in range(4)]

    def guarded(number: int) -> Any:
        @Schedule(sessions[number], "a", every=10).guard
        async def nightly(what: str, *, times: int = 1) -> str:
            ran.append(number)
            return what * times

        return nightly

    calls = [guarded(number) for number in range(4)]
    assert calls[0].__name__ == "nightly"
    results = await asyncio.gather(*(call("x", times=3) for call in calls))
    later = await calls[0]("x")
    # Unless a tick came in between.
    assert sorted(map(str, [*results, later])).count("None") >= 3
    assert "xxx" in results
    for session in sessions:
        await session.aclose()


async def test_a_guarded_call_raises_what_the_function_raises(session) -> None:
    schedule = Schedule(session, "a", every=1)

    @schedule.guard
    async def fail() -> None:
        raise LookupError("no such table")

    with pytest.raises(LookupError):
        await fail()
    assert await outcomes(schedule) == ["failed"]
    with pytest.raises(TypeError, match="guard decorates a coroutine function"):
        schedule.guard(lambda: None)


@timed
@pytest.mark.parametrize("overlap", ["skip", "queue", "allow"])
async def test_a_guarded_call_heeds_the_overlap(session, overlap) -> None:
    schedule, runs = pair(session, every=0.4, overlap=overlap)
    done = asyncio.Event()
    runs.body = lambda tick: done.wait()
    running = asyncio.create_task(schedule.trigger())
    await runs.begun(1)
    await asyncio.sleep(0.5)

    @schedule.guard
    async def call() -> str:
        return "ran"

    calling = asyncio.create_task(call())
    if overlap == "queue":
        await asyncio.sleep(0.3)
        assert not calling.done()
        done.set()
    assert await calling == (None if overlap == "skip" else "ran")
    done.set()
    await running


@timed
async def test_a_run_that_never_began_is_taken_back_and_run_by_another(session) -> None:
    """Its task was cancelled before its first step."""
    schedule = Schedule(session, "a", every=10, ttl=HOUR)
    told, engine = schedule._settings, session._usable_engine()
    arguments = (engine, told.name, told.dues, told.options, told.policy)
    run = await claim_nearest(*arguments)
    assert isinstance(run, Run)
    run.take_back()
    assert run.lease.state is LeaseState.LOST

    found: list[Any] = []

    async def again() -> bool:
        found.append(await claim_nearest(*arguments))
        return isinstance(found[-1], Run)

    await eventually(again, within=AT_ONCE)
    assert await outcomes(schedule) == ["running"]
    found[-1].ended("done")
    await found[-1].lease.release()
    assert await outcomes(schedule) == ["done"]


# -- what others see -----------------------------------------------------------------------------------------


async def test_a_run_is_shown_and_freed_like_a_lock(session) -> None:
    schedule, runs = pair(session, every=HOUR, metadata={"team": "blue"})
    runs.body = slow
    running = asyncio.create_task(schedule.trigger())
    await runs.begun(1)
    (info,) = await session.inspect("a")
    (holder,) = info.holders
    assert (info.kind, info.name, info.problem, info.value) == ("schedule", "a", "", None)
    assert holder.fencing_token == runs.ticks[0].fencing_token
    assert holder.metadata == {"team": "blue"}
    (freed,) = await session.force_release("a")
    assert freed.kind == "schedule"
    with pytest.raises(Exception, match="released by force"):
        await running
    assert await session.inspect("a") == []
    assert await session.inspect() == []


async def test_it_has_a_name_space_of_its_own(session) -> None:
    schedule, runs = pair(session, every=HOUR)
    async with Lock(session, "a"):
        assert await schedule.trigger()
    assert len(runs.ended) == 1


async def test_listeners_are_told_of_runs(redis, prefix) -> None:
    told: list[tuple[str, LockEvent]] = []

    class Listener:
        def on_acquired(self, event: LockEvent) -> None:
            told.append(("acquired", event))

        def on_released(self, event: LockEvent) -> None:
            told.append(("released", event))

    async with Session(redis, prefix=prefix, listeners=[Listener()]) as session:
        schedule, _ = pair(session, every=HOUR)
        await schedule.trigger()
        assert session.statistics().acquisitions == 1
    assert [(what, event.kind, event.name) for what, event in told] == [
        ("acquired", "schedule", "a"),
        ("released", "schedule", "a"),
    ]


@timed
async def test_idle_it_sends_nothing(session) -> None:
    schedules = [pair(session, name=str(number), every=HOUR)[0] for number in range(20)]
    for schedule in schedules:
        await schedule.__aenter__()
    await eventually(lambda: session.statistics().commands_sent >= 20, within=AT_ONCE)
    await asyncio.sleep(0.1)
    sent = session.statistics().commands_sent
    await asyncio.sleep(0.3)
    assert session.statistics().commands_sent == sent
    for schedule in schedules:
        await schedule.__aexit__(None, None, None)
    assert session._usable_engine().in_progress == {}
