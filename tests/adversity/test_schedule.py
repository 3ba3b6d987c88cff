"""Schedules under faults: no tick twice, and none left out that a living process could have run."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Schedule, Session, Tick, TickRecord
from aiolocks.kinds.schedule.run import Claims, server_clock
from aiolocks.transport import clocks
from tests.adversity.tools import Formed, Keys, begin, step
from tests.adversity.troubles import TROUBLES, Setting, Trouble
from tests.conftest import Connect
from tests.support.cancel import Shot, cancel_twice, sweep
from tests.support.processes import Worker, Workers, tell
from tests.support.proxy import Proxy
from tests.support.sentinels import Watched
from tests.support.servers import Server
from tests.support.skew import SkewedServer
from tests.support.thinning import only
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves_keys("*:schedule.register:*", "*:schedule.history:*")

_STEPS = ("forms", "bells", "fence", "queue", "permits", "ticks")
CLAIM = step("schedule_claim", *_STEPS, "claims")
TRIGGER = step("schedule_trigger", *_STEPS, "claims")
END = step("schedule_release", *_STEPS)
AT_ONCE = 10.0
"""Seconds that a busy machine may take for what happens at once."""
MANY = 60
"""Schedules, far more than the lines that an outage may have."""
YEAR = 365 * 24 * 3600
killed = pytest.mark.leaves_keys("*:schedule*")
"""Processes that are killed leave the leases of their runs, which end by themselves."""


class Crew:
    """The runs of one schedule in several sessions of this process."""

    def __init__(self, seconds: float = 0.0, **arguments: Any) -> None:
        self.seconds = seconds
        self.arguments = {"every": 0.2, **arguments}
        self.ticks: list[Tick] = []
        self.ended: list[Tick] = []

    def of(self, client: Any) -> Schedule:
        schedule = Schedule(client, "a", **self.arguments)

        @schedule
        async def job(tick: Tick) -> None:
            self.ticks.append(tick)
            await asyncio.sleep(self.seconds)
            self.ended.append(tick)

        return schedule

    @property
    def dues(self) -> list[float]:
        return [round(tick.due.timestamp(), 3) for tick in self.ticks]

    async def begun(self, number: int) -> None:
        await eventually(lambda: len(self.ticks) >= number, within=AT_ONCE)

    def ran_once(self) -> bool:
        return len(set(self.dues)) == len(self.dues) > 0


# -- processes that die, freeze and have other clocks --------------------------------------------------------


async def keep(
    url: str, every: float, seconds: float, ahead: float = 0.0, rate: float = 1.0, **arguments: Any
) -> None:
    """Keeps the schedule in a process whose clocks are ahead, and go at another rate."""
    began = time.monotonic()

    def crooked(clock: Callable[[], float]) -> Callable[[], float]:
        return lambda: clock() + ahead + (time.monotonic() - began) * (rate - 1)

    loop: Any = asyncio.get_running_loop()
    loop.time, clocks.steady, time.time = map(crooked, (loop.time, clocks.steady, time.time))
    async with Redis.from_url(url) as redis:
        schedule = Schedule(redis, "a", every=every, **arguments)

        @schedule
        async def job(tick: Tick) -> None:
            due = round(tick.due.timestamp(), 3)
            tell("began", due=due, attempt=tick.attempt, missed=tick.missed, token=tick.fencing_token)
            await asyncio.sleep(seconds)
            tell("ended", due=due)

        tell("ready")
        await schedule.run()


async def reports_of(workers: list[Worker], event: str) -> list[dict[str, Any]]:
    """All that they have told of it, once they have ended."""
    for worker in workers:
        worker.kill()
        await worker.finish(status=-9)
    return [report for worker in workers for report in worker.told_so_far if report["event"] == event]


@pytest.mark.more  # the simulated world has clocks that are ahead, and its ledger of ticks
@pytest.mark.long
@killed
async def test_whatever_the_clocks_say_each_tick_is_run_once(server: Server, workers: Workers) -> None:
    """One is a year ahead, one a year behind, one goes faster and one slower."""
    crooked = [(YEAR, 1.0), (-YEAR, 1.0), (0.4, 1.2), (-0.4, 0.9)]
    running = [
        await workers.start(keep, url=server.url, every=0.25, seconds=0, ahead=ahead, rate=rate)
        for ahead, rate in crooked
    ]
    for worker in running:
        await worker.told("ready")
    began = time.time()
    await asyncio.sleep(1.5)
    ended = time.time()
    reports = await reports_of(running, "began")

    runs = Counter(report["due"] for report in reports)
    assert set(runs.values()) == {1}
    due = [number / 4 for number in range(int(began * 4) + 3, int(ended * 4))]
    assert {
        report["due"] + 0.25 * missed for report in reports for missed in range(-report["missed"], 1)
    } >= set(due)
    for report in reports:
        assert report["token"] / 1e6 >= report["due"]  # never before it is due
    tokens = [report["token"] for report in sorted(reports, key=lambda report: report["due"])]
    assert tokens == sorted(tokens)


@pytest.mark.long
@killed
@pytest.mark.parametrize("redo", only([0, 1], 1))
async def test_a_process_that_is_killed_is_replaced(server: Server, workers: Workers, redo: int) -> None:
    """At the next tick; with `redo`, its tick is run again when its lease has ended."""
    arguments = {"url": server.url, "every": 1, "seconds": 0.6, "ttl": 0.3, "redo": redo}
    one, two = await workers.start_many(2, keep, **arguments)
    for worker in (one, two):
        await worker.told("ready")
    first, second = (begin(worker.told("began")) for worker in (one, two))
    await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
    dead, alive, waiting = (one, two, second) if first.done() else (two, one, first)
    report = (first if first.done() else second).result()
    dead.kill()

    after = await waiting
    assert after["token"] > report["token"]
    if redo:
        assert (after["due"], after["attempt"]) == (report["due"], 2)
    else:
        assert (after["due"], after["attempt"]) == (report["due"] + 1, 1)
    await alive.told("ended")
    async with Redis.from_url(server.url) as redis:
        outcomes = [record.outcome for record in await Schedule(redis, "a", every=1).history()]
    assert outcomes.count("lost") == 1


@pytest.mark.long
@killed
async def test_a_process_that_is_frozen_in_its_run_ends_it_when_it_goes_on(
    server: Server, workers: Workers
) -> None:
    arguments = {"url": server.url, "every": 0.5, "ttl": 0.3}
    frozen = await workers.start(keep, **arguments, seconds=2)
    report = await frozen.told("began")
    frozen.stop()
    other = await workers.start(keep, **arguments, seconds=0.2)
    after = await other.told("began")
    assert after["due"] > report["due"]
    frozen.cont()
    await asyncio.sleep(0.5)
    runs = await reports_of([frozen, other], "began")
    assert max(Counter(run["due"] for run in runs).values()) == 1
    ended = {run["due"] for run in frozen.told_so_far if run["event"] == "ended"}
    assert report["due"] not in ended


@pytest.mark.more  # as one that is frozen in its run
@pytest.mark.long
@killed
async def test_a_process_that_was_frozen_before_its_claim_takes_nothing_twice(
    server: Server, workers: Workers
) -> None:
    arguments = {"url": server.url, "every": 0.25, "seconds": 0}
    crew = await workers.start_many(3, keep, **arguments)
    for worker in crew:
        await worker.told("ready")
    for _ in range(3):
        for worker in crew:
            worker.stop()
            await asyncio.sleep(0.13)
            worker.cont()
    runs = await reports_of(crew, "began")
    assert max(Counter(run["due"] for run in runs).values()) == 1
    assert len(runs) >= 3


# -- the server ----------------------------------------------------------------------------------------------


@pytest.mark.more  # as a flush in the midst of a run
async def test_a_register_that_is_flushed_loses_no_tick_and_runs_none_twice(
    own_server, connect: Connect
) -> None:
    server = await own_server()
    crew, sessions = Crew(), [Session(connect(server)) for _ in range(3)]
    keeping = [begin(crew.of(session).run()) for session in sessions]
    await crew.begun(2)
    for _ in range(4):
        before = crew.dues[-1]
        # In the midst between two ticks: one in the second after a tick may see it run by two processes.
        await asyncio.sleep(max(0.0, before + 0.1 - time.time()))
        await connect(server).flushall()
        await crew.begun(len(crew.ticks) + 1)
    await end(keeping, sessions)
    assert crew.ran_once()
    late = [later - earlier for earlier, later in itertools.pairwise(crew.dues)]
    assert max(late) < 2


async def end(keeping: list[asyncio.Task[Any]], sessions: list[Session]) -> None:
    for task in keeping:
        task.cancel()
    await asyncio.gather(*keeping, return_exceptions=True)
    for session in sessions:
        await session.aclose()


async def test_a_flush_in_the_midst_of_a_run_ends_it_and_it_is_not_run_again(
    own_server, connect: Connect
) -> None:
    server = await own_server()
    crew = Crew(seconds=0.3, every=1, ttl=0.3, redo=1)
    sessions = [Session(connect(server)) for _ in range(2)]
    keeping = [begin(crew.of(session).run()) for session in sessions]
    await crew.begun(1)
    await connect(server).flushall()
    await crew.begun(2)
    await end(keeping, sessions)
    assert crew.ran_once()
    assert crew.ticks[0] not in crew.ended


async def test_a_run_that_ended_while_the_server_lost_its_data_was_not_cancelled(
    own_server, connect: Connect, caplog
) -> None:
    server = await own_server()
    async with Session(connect(server)) as session:
        schedule, begun, killed = Schedule(session, "a", every=1), asyncio.Event(), asyncio.Event()

        @schedule
        async def job(tick: Tick) -> None:
            begun.set()
            await killed.wait()

        async with schedule:
            await begun.wait()
            server.kill()
            await eventually(lambda: "is away since" in caplog.text)
            killed.set()
            await asyncio.sleep(0.1)  # the job ends, and its release finds no server
            await server.start()
            await eventually(lambda: "has ended, but its lease was lost" in caplog.text)
    assert "was cancelled" not in caplog.text


async def test_a_server_that_is_away_is_waited_for(own_server, connect: Connect, caplog) -> None:
    server = await own_server()
    crew, session = Crew(misfire="all"), Session(connect(server), command_timeout=0.3)
    keeping = begin(crew.of(session).run())
    await crew.begun(2)
    server.pause()
    await asyncio.sleep(0.8)
    assert not keeping.done()
    server.resume()
    await crew.begun(len(crew.ticks) + 4)
    await end([keeping], [session])
    assert crew.ran_once()
    gaps = {round(later - earlier, 3) for earlier, later in itertools.pairwise(crew.dues)}
    assert gaps == {0.2}
    assert told(caplog, logging.WARNING) == 0


def told(caplog: pytest.LogCaptureFixture, level: int) -> int:
    """How many lines of that level say that a schedule cannot ask, or can again."""
    records = [one for one in caplog.records if one.name == "aiolocks.schedule" and one.levelno == level]
    return sum("cannot ask" in one.message or "answers again" in one.message for one in records)


@pytest.mark.leaves_keys
@pytest.mark.parametrize(
    "trouble",
    only(TROUBLES, *(one for one in TROUBLES if one.name in ("READONLY", "OOM", "NOPERM"))),
    ids=str,
)
@pytest.mark.parametrize("misfire", only(["all", "latest"], "all"))
async def test_t_p_16_a_schedule_outlives_whatever_the_server_refuses(
    trouble: Trouble, setting: Setting, caplog, misfire: str
) -> None:
    """It goes on by itself, and leaves nothing out in silence. It warns only of what is no outage."""
    _, client, lasting = setting
    caplog.set_level(logging.DEBUG, "aiolocks.schedule")
    crew = Crew(every=0.3, ttl=0.5, misfire=misfire)
    async with Session(client, command_timeout=1) as session:
        keeping = begin(crew.of(session).run())
        await crew.begun(2)
        async with lasting():
            levels = (logging.DEBUG, logging.WARNING)
            await eventually(lambda: trouble.name == "OOM" or any(told(caplog, level) for level in levels))
            await asyncio.sleep(0.7)
            assert not keeping.done()
        await crew.begun(len(crew.ticks) + 3)
        await end([keeping], [])
        history = await crew.of(session).history(100)
    assert crew.ran_once()
    assert untold(crew, history, 0.3) == []
    if trouble.transient:
        assert told(caplog, logging.WARNING) == 0
        assert told(caplog, logging.DEBUG) >= 2
    elif trouble.name != "OOM":
        assert (told(caplog, logging.WARNING), told(caplog, logging.INFO)) == (1, 1)


async def test_an_outage_of_many_schedules_is_told_once(own_server, connect: Connect, caplog) -> None:
    """By their session; each of them tells at `DEBUG`."""
    server = await own_server()
    caplog.set_level(logging.DEBUG, "aiolocks")
    async with Session(connect(server)) as session:
        schedules = [Schedule(session, str(number), every=1) for number in range(MANY)]
        ran: set[str] = set()

        async def job(tick: Tick) -> None:
            ran.add(tick.name)

        async with AsyncExitStack() as kept:
            for schedule in schedules:
                schedule(job)
                await kept.enter_async_context(schedule)
            await eventually(lambda: len(ran) == MANY, within=AT_ONCE)
            server.kill()
            await eventually(lambda: told(caplog, logging.DEBUG) >= MANY, within=AT_ONCE)
            await server.start()
            ran.clear()
            await eventually(lambda: len(ran) == MANY, within=AT_ONCE)
    warnings = [one.message for one in caplog.records if one.levelno >= logging.INFO]
    assert [
        line for line in warnings if "chedule" in line and "confirm" not in line and "lost" not in line
    ] == []
    assert 0 < len([line for line in warnings if " is away" in line]) <= 2


@pytest.mark.more  # as one that is set back a little
async def test_a_clock_of_the_server_that_steps_stops_nothing_for_long(
    skewed_server: SkewedServer, connect: Connect
) -> None:
    """A year ahead, and back again: what was claimed in that year counts for nothing after it."""
    crew, session = Crew(), Session(connect(skewed_server.server))
    keeping = begin(crew.of(session).run())
    await crew.begun(2)
    await skewed_server.advance(YEAR)
    await eventually(lambda: crew.dues[-1] > time.time() + YEAR / 2, within=AT_ONCE)
    await skewed_server.set_offset(0)
    known = len(crew.ticks)
    await eventually(lambda: any(due < time.time() + 60 for due in crew.dues[known:]), within=AT_ONCE)
    await end([keeping], [session])
    tokens = [tick.fencing_token for tick in crew.ticks]
    assert tokens == sorted(set(tokens))
    assert crew.ran_once()


@pytest.mark.more  # the simulated world sets clocks back too
async def test_a_clock_of_the_server_that_is_set_back_a_little_runs_nothing_twice(
    skewed_server: SkewedServer, connect: Connect
) -> None:
    crew, session = Crew(), Session(connect(skewed_server.server))
    keeping = begin(crew.of(session).run())
    await crew.begun(3)
    await skewed_server.advance(-0.7)
    await crew.begun(6)
    await end([keeping], [session])
    assert crew.ran_once()
    assert crew.dues == sorted(crew.dues)


@pytest.mark.parametrize(
    ("first", "again"),
    [
        pytest.param("2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z", id="begins", marks=pytest.mark.more),
        pytest.param("2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", id="ends"),
    ],
)
async def test_when_summer_time_begins_and_ends_a_local_time_is_run_once(
    skewed_server: SkewedServer, connect: Connect, first: str, again: str
) -> None:
    """02:30 is skipped, and due at the end of the gap; or it comes twice, and is due the first time."""
    due, later = (datetime.fromisoformat(text).timestamp() for text in (first, again))
    await skewed_server.set_offset(due - 0.7 - time.time())
    crew = Crew(cron="30 2 * * *", tz="Europe/Berlin", every=None)
    sessions = [Session(connect(skewed_server.server)) for _ in range(2)]
    keeping = [begin(crew.of(session).run()) for session in sessions]
    await crew.begun(1)
    await end(keeping, sessions)
    assert crew.dues == [due]

    await skewed_server.set_offset(later - 0.3 - time.time())
    sessions = [Session(connect(skewed_server.server)) for _ in range(2)]
    keeping = [begin(crew.of(session).run()) for session in sessions]
    await asyncio.sleep(0.8)
    await end(keeping, sessions)
    assert crew.dues == [due]


async def test_a_guard_runs_each_local_time_once_whatever_its_scheduler_makes_of_summer_time(
    skewed_server: SkewedServer, connect: Connect
) -> None:
    """Others begin 02:30 at 03:00 or at 03:30 where it is skipped, and once or twice where it comes twice."""
    session = Session(connect(skewed_server.server))

    @Schedule(session, "a", cron="30 2 * * *", tz="Europe/Berlin").guard
    async def nightly() -> str:
        return "ran"

    results: dict[str, str | None] = {}
    for call in (
        "2026-03-28T01:30:00Z",
        "2026-03-29T01:00:00Z",  # 03:00, as croniter and cronsim
        "2026-03-29T01:30:00Z",  # 03:30, as APScheduler, arq and Celery
        "2026-10-25T00:30:00Z",
        "2026-10-25T01:30:00Z",  # 02:30 again, as APScheduler, croniter and pycron
        "2027-03-27T01:30:00Z",
        "2027-03-28T01:30:00Z",  # 03:30 alone
    ):
        await skewed_server.set_offset(datetime.fromisoformat(call).timestamp() + 1 - time.time())
        results[call] = await nightly()
    await session.aclose()
    assert list(results.values()) == ["ran", "ran", None, "ran", None, "ran", "ran"], results


# -- the network ---------------------------------------------------------------------------------------------


@pytest.mark.more  # as T-P-15
async def test_lost_replies_run_nothing_twice_and_lose_no_tick(client: Redis, through: Proxy) -> None:
    crew, keeping = Crew(misfire="all"), []
    keeping.append(begin(crew.of(client).run()))
    await crew.begun(1)
    for number in range(3):
        lost = through.reset_after(END if number == 1 else CLAIM)
        await eventually(lost.is_set, within=AT_ONCE)
        await crew.begun(len(crew.ticks) + 1)
    await end(keeping, [])
    assert crew.ran_once()
    gaps = {round(later - earlier, 3) for earlier, later in itertools.pairwise(crew.dues)}
    assert gaps == {0.2}


async def test_a_run_that_is_cut_off_is_cancelled_and_another_process_goes_on(
    connect: Connect, through: Proxy, form: str
) -> None:
    cut, crew = Crew(seconds=60, ttl=0.3, every=0.5), Crew(every=0.5)
    async with Session(connect(Formed(through, form)), command_timeout=0.3) as one:
        keeping = begin(cut.of(one).run())
        await cut.begun(1)
        through.hold_requests = True
        async with Session(connect()) as two:
            other = begin(crew.of(two).run())
            await crew.begun(2)
            await end([other], [])
        assert crew.dues[0] > cut.dues[0]
        assert cut.ended == []
        through.hold_requests = False
        await end([keeping], [])
    assert len(set(cut.dues + crew.dues)) == len(cut.dues + crew.dues)


def untold(crew: Crew, history: list[TickRecord], every: float) -> list[float]:
    """The ticks between the first and the last run that nobody ran, and of which nothing tells."""
    told = set(crew.dues)
    for tick in crew.ticks:
        told |= _before(tick.due, tick.missed, every)
    for record in history:
        assert record.due is not None
        told |= _before(record.due, record.missed, every) | {round(record.due.timestamp(), 3)}
    first, last = min(crew.dues), max(crew.dues)
    return sorted(
        {round(first + number * every, 3) for number in range(round((last - first) / every))} - told
    )


def _before(due: datetime, number: int, every: float) -> set[float]:
    return {round(due.timestamp() - apart * every, 3) for apart in range(1, number + 1)}


async def between_ticks(crew: Crew) -> None:
    """All that was missed is made up for, and the last tick is settled: the next request is a claim."""
    await eventually(
        lambda: len(crew.ended) == len(crew.ticks) and time.time() < crew.dues[-1] + 0.1, within=AT_ONCE
    )
    await asyncio.sleep(max(0.0, crew.dues[-1] + 0.15 - time.time()))


@pytest.mark.more  # the next test, and the simulated world
@pytest.mark.parametrize("overlap", only(["skip", "queue", "allow"], "allow"))
@pytest.mark.parametrize("misfire", only(["all", "latest", "skip"], "all"))
async def test_t_p_15_a_claim_without_an_answer_for_longer_than_its_ttl_loses_no_tick(
    connect: Connect, through: Proxy, form: str, caplog, misfire: str, overlap: str
) -> None:
    """The server has granted it: it is given back, and run, unless it is too late by then (`skip`)."""
    # A ttl for which no busy machine stands still: a run that is lost would be none that had no answer.
    crew = Crew(every=0.3, ttl=1, misfire=misfire, overlap=overlap)
    async with Session(connect(Formed(through, form)), command_timeout=1.2) as session:
        keeping = begin(crew.of(session).run())
        await crew.begun(2)
        for seconds in (1.1, 1.8):
            await between_ticks(crew)
            through.drop_replies = True
            await asyncio.sleep(seconds)
            through.cut()
            through.drop_replies = False
            await crew.begun(len(crew.ticks) + 2)
        await end([keeping], [])
        history = await crew.of(session).history(100)
    assert crew.ran_once()
    assert untold(crew, history, 0.3) == []
    # `all` misses none; of the others, the row tells of ticks that passed while no answer came.
    late = set() if misfire == "all" else {"missed"}
    assert {record.outcome for record in history} - late <= {"done", "stopped", "running", "skipped"}
    if misfire == "all" and overlap != "skip":
        assert {round(one - other, 3) for other, one in itertools.pairwise(crew.dues)} == {0.3}
    assert "was lost: its process" not in caplog.text


@pytest.mark.parametrize("overlap", only(["skip", "allow"], "skip"))
@pytest.mark.parametrize("misfire", only(["all", "latest", "skip"], "latest"))
@pytest.mark.parametrize("redo", only([0, 1], 0))
async def test_t_p_15_a_claim_without_an_answer_is_never_lost_in_silence(
    connect: Connect, proxy, server: Server, through: Proxy, caplog, misfire: str, overlap: str, redo: int
) -> None:
    """Another process claims the ticks after it meanwhile, or finds it lost when its lease has ended."""
    arguments = {"every": 0.3, "misfire": misfire, "overlap": overlap, "redo": redo}
    crew, slow = Crew(**arguments, ttl=0.4), await proxy(server)
    slow.delay = 0.05  # the other process is the first to ask
    async with Session(connect(slow)) as other, Session(connect(through), command_timeout=2) as session:
        keeping = [begin(crew.of(one).run()) for one in (session, other)]
        await crew.begun(3)
        # Which of the two claims a tick is chance: again until it was the one that is cut off.
        for seconds in (0.2, 0.5, *6 * (1.0,)):
            await asyncio.sleep(max(0.0, crew.dues[-1] + 0.15 - time.time()))
            through.drop_replies = True
            await asyncio.sleep(seconds)
            through.cut()
            through.drop_replies = False
            await crew.begun(len(crew.ticks) + 2)
            if seconds > 0.5 and "was lost: its process" in caplog.text:
                break
        await end(keeping, [])
        history = await crew.of(other).history(100)
    assert crew.ran_once() or redo
    assert untold(crew, history, 0.3) == []
    lost = [record for record in history if record.outcome == "lost"]
    assert lost
    assert len(lost) == caplog.text.count("was lost: its process")


@pytest.mark.more  # as T-P-15
async def test_a_request_that_is_sent_again_after_its_lease_has_ended_runs_its_tick(
    connect: Connect, through: Proxy, caplog
) -> None:
    """Within `command_timeout`: the server knows the token, and the process knows that it has run nothing."""
    crew = Crew(every=1, ttl=0.3)
    async with Session(connect(through), command_timeout=5) as session:
        keeping = begin(crew.of(session).run())
        await crew.begun(1)
        through.drop_replies = True
        await through.saw(CLAIM, count=through.count(CLAIM) + 1)
        await asyncio.sleep(0.5)
        through.cut()
        through.drop_replies = False
        await crew.begun(3)
        await end([keeping], [])
        assert {record.outcome for record in await crew.of(session).history()} <= {"done", "stopped"}
    assert crew.ran_once()
    assert {round(one - other, 3) for other, one in itertools.pairwise(crew.dues)} == {1.0}


@pytest.mark.more  # as T-P-15
@killed
async def test_who_finds_a_run_lost_says_so(
    server: Server, workers: Workers, connect: Connect, caplog
) -> None:
    dead = await workers.start(keep, url=server.url, every=0.5, seconds=60, ttl=0.3)
    report = await dead.told("began")
    dead.kill()
    await dead.finish(status=-9)
    crew = Crew(every=0.5, ttl=0.3)
    async with Session(connect()) as session:
        keeping = begin(crew.of(session).run())
        await eventually(lambda: "was lost" in caplog.text, within=AT_ONCE)
        await end([keeping], [])
        (record,) = [one for one in await crew.of(session).history() if one.outcome == "lost"]
    assert record.due is not None
    assert record.due.timestamp() == report["due"]
    assert (
        caplog.text.count(f"the run of {record.due} was lost: its process ({record.pid} on {record.host})")
        == 1
    )


# -- a changed schedule --------------------------------------------------------------------------------------


@pytest.mark.parametrize("misfire", only(["latest", "skip", "all"], "all"))
async def test_t_p_14_a_changed_schedule_runs_no_tick_from_before_the_change(
    client: Redis, caplog, misfire: str
) -> None:
    """It begins as a new one does; so does the former one, should it come back."""
    for arguments in ({"every": 0.3}, {"every": 0.1}, {"every": 0.3}, {"cron": "* * * * * *", "every": None}):
        crew = Crew(misfire=misfire, **arguments)
        await asyncio.sleep(0.7)
        began = time.time()
        keeping = begin(crew.of(client).run())
        await crew.begun(2)
        await end([keeping], [])
        assert crew.dues == sorted(set(crew.dues))
        assert min(crew.dues) > began - 0.05
        assert crew.ticks[0].missed == 0
    assert {record.missed for record in await crew.of(client).history(100)} <= {0, 1}


@pytest.mark.more  # as a changed schedule, with another clock
async def test_another_hour_or_time_zone_takes_effect_from_the_change_on(
    skewed_server: SkewedServer, connect: Connect
) -> None:
    """A deployment at ten moves it from three to five o'clock, and at eleven to another zone."""
    three = datetime.fromisoformat("2026-03-10T03:00:00Z").timestamp()
    runs: list[float] = []
    for cron, tz, hour, wanted in (
        ("0 3 * * *", "UTC", 3, 0.0),
        ("0 5 * * *", "UTC", 10, 26.0),
        ("0 5 * * *", "Asia/Kathmandu", 35, 44.25),
    ):
        await skewed_server.set_offset(three + (hour - 3) * 3600 - 0.5 - time.time())
        crew = Crew(cron=cron, tz=tz, every=None, misfire="all")
        async with Session(connect(skewed_server.server)) as session:
            keeping = begin(crew.of(session).run())
            await asyncio.sleep(1.2)
            assert len(crew.ticks) == (0 if wanted else 1)
            await end([keeping], [])
        if wanted:
            await skewed_server.set_offset(three + wanted * 3600 - 0.5 - time.time())
            async with Session(connect(skewed_server.server)) as session:
                keeping = begin(crew.of(session).run())
                await crew.begun(1)
                await end([keeping], [])
        assert [tick.missed for tick in crew.ticks] == [0]
        runs += crew.dues
    assert runs == [three, three + 26 * 3600, three + 44.25 * 3600]


@pytest.mark.parametrize("overlap", only(["skip", "allow"], "skip"))
@pytest.mark.parametrize("misfire", only(["latest", "all"], "all"))
async def test_t_p_14_two_definitions_side_by_side_run_each_tick_of_theirs_once(
    connect: Connect, misfire: str, overlap: str
) -> None:
    """As in a rolling update, in which the processes of both are replaced one by one."""
    crews = [Crew(every=every, misfire=misfire, overlap=overlap) for every in (0.3, 0.4)]
    sessions = [Session(connect()) for _ in range(4)]
    keeping = [begin(crews[number % 2].of(session).run()) for number, session in enumerate(sessions)]
    for crew in crews:
        await crew.begun(5)
    await end(keeping, sessions)
    for crew, every in zip(crews, (0.3, 0.4), strict=True):
        assert crew.ran_once()
        assert {round(one - other, 3) for other, one in itertools.pairwise(crew.dues)} == {every}
        assert {tick.missed for tick in crew.ticks} == {0}


@pytest.mark.parametrize(
    "changed",
    only([{"jitter": 0.01}, {"ttl": 5}, {"overlap": "queue"}, {"redo": 1}, {"tz": "Asia/Tokyo"}], {"ttl": 5}),
)
async def test_a_schedule_with_the_same_times_goes_on(client: Redis, changed: dict[str, Any]) -> None:
    """Missed ticks are made up for, as `misfire` says."""
    first, then = Crew(every=0.3, misfire="all"), Crew(**{"every": 0.3, "misfire": "all", **changed})
    keeping = begin(first.of(client).run())
    await first.begun(2)
    await between_ticks(first)  # not in the midst of what a tick begins with
    await end([keeping], [])
    await asyncio.sleep(0.7)
    keeping = begin(then.of(client).run())
    await then.begun(3)
    await end([keeping], [])
    dues = first.dues + then.dues
    assert {round(one - other, 3) for other, one in itertools.pairwise(dues)} == {0.3}


# -- cancelled -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shoot", [sweep, cancel_twice])
async def test_cancelled_anywhere_a_trigger_leaves_no_run(client: Redis, keys: Keys, shoot: Any) -> None:
    schedule = Schedule(client, "a", every=3600)

    @schedule
    async def job(_: Tick) -> None:
        await asyncio.sleep(0)

    async def gone(_: Shot) -> None:
        await eventually(lambda: "aiolocks:schedule:{a}" not in keys(), within=5)

    assert await shoot(schedule.trigger, after=gone)
    outcomes = Counter(record.outcome for record in await schedule.history(100))
    assert set(outcomes) <= {"done", "stopped"}


async def test_cancelled_anywhere_the_keeper_leaves_no_run_and_loses_no_tick(
    client: Redis, redis: Redis, keys: Keys
) -> None:
    """Its claim is taken back if nothing was run: then another process runs the tick."""
    ran: list[float] = []

    def make() -> Coroutine[Any, Any, None]:
        schedule = Schedule(client, "a", every=0.05, misfire="all")

        @schedule
        async def job(tick: Tick) -> None:
            ran.append(round(tick.due.timestamp(), 3))
            await asyncio.sleep(0)

        async def keep() -> None:
            # The coroutine of the keeper, for a number of ticks: the sweep wants one that ends.
            before = len(ran)
            keeper = schedule._keeper()
            with server_clock(keeper._engine, "a") as clock:
                claims = Claims(keeper._engine, "a", keeper._settings.options, clock)
                try:
                    while len(ran) < before + 2:
                        await keeper._step(clock, claims)
                    while keeper._runs:
                        await asyncio.wait(keeper._runs)
                except BaseException:
                    await keeper._unwind()
                    raise

        return keep()

    async def gone(_: Shot) -> None:
        await eventually(lambda: "aiolocks:schedule:{a}" not in keys(), within=5)

    assert len(await sweep(make, after=gone)) > 10
    assert len(set(ran)) == len(ran)
    # `all` leaves out none: from the first to the last, each tick was run, or stopped in the midst of it.
    records = [record for record in await Schedule(redis, "a", every=0.05).history(100) if record.due]
    dues = sorted({round(record.due.timestamp(), 3) for record in records if record.due})
    assert {round(later - earlier, 3) for earlier, later in itertools.pairwise(dues)} == {0.05}


@pytest.mark.more  # as a keeper that is cancelled anywhere
async def test_a_claim_under_way_is_taken_back_when_its_caller_is_cancelled(
    client: Redis, redis: Redis, through: Proxy
) -> None:
    crew = Crew(every=1)
    keeping = begin(crew.of(client).run())
    register = "aiolocks:schedule.register:{a}"

    async def begun() -> bool:
        return bool(await redis.hexists(register, "claimed"))

    await eventually(begun, within=AT_ONCE)
    through.delay = 0.8  # in each direction
    before = await redis.hget(register, "claimed")

    async def granted() -> bool:
        return await redis.hget(register, "claimed") != before

    await eventually(granted, within=AT_ONCE)  # and the answer is on its way
    keeping.cancel()
    await asyncio.wait({keeping})
    through.delay = 0
    await through.saw(END)
    assert crew.ticks == []

    async def taken_back() -> bool:
        return await redis.hget(register, "claimed") == before

    await eventually(taken_back, within=AT_ONCE)


# -- topologies ----------------------------------------------------------------------------------------------


async def test_in_a_cluster(sessions: list[Session]) -> None:
    crew = Crew()
    keeping = [begin(crew.of(session).run()) for session in sessions]
    await crew.begun(3)
    schedule = crew.of(sessions[0])
    assert await schedule.trigger()
    assert {record.outcome for record in await schedule.history()} <= {"done", "running", "skipped"}
    await end(keeping, [])
    assert crew.ran_once()


@pytest.mark.soak  # a failover takes some seconds
async def test_behind_sentinel_a_failover_runs_nothing_twice(tmp_path: Path) -> None:
    """The replica had the claims: what the processes know of the others, they put back."""
    async with Watched(tmp_path) as watched:
        crew, sessions = Crew(every=0.5), [Session(watched.client(), command_timeout=1) for _ in range(2)]
        keeping = [begin(crew.of(session).run()) for session in sessions]
        await crew.begun(3)
        watched.master.kill()
        await eventually(watched.failed_over, within=20)
        await eventually(lambda: len(crew.ticks) >= 6, within=20)
        await end(keeping, sessions)
        assert crew.ran_once()
        tokens = [tick.fencing_token for tick in crew.ticks]
        assert tokens == sorted(set(tokens))
