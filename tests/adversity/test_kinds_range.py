"""The range lock: what overlaps excludes, to the last bit of a double, and nothing else knows of it.

T-P-9 of `tests/FAULTS.md`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import LeaseState, LockEvent, LockTimeoutError, RangeLock, RWLock, Session
from aiolocks.kinds.spans import Span, SpanSteps
from aiolocks.transport import TOLD, WAITING
from tests.adversity.tools import AT_ONCE, Start, begin, in_within, waiter
from tests.conftest import OwnServer, blocking
from tests.support.waiting import eventually

log = logging.getLogger(__name__)
INF = math.inf
MODES = ("reader", "upgradable", "writer")

BIG = 2**53
POINTS = sorted(
    {
        -INF, -1.7976931348623157e308, -1e22,
        -BIG, -BIG + 1, -1.5, -1.0, math.nextafter(-1.0, 0), -5e-324, 0.0,
        5e-324, 2.2250738585072014e-308, 0.1, 0.1 + 0.2, 0.3, 1 - 2**-53, 1.0, math.nextafter(1.0, 2),
        3.0, 1e15 + 0.3, BIG - 1, BIG, BIG + 2, 1e22, 1.7976931348623157e308, INF,
    }
)  # fmt: skip
"""Ends of all sizes, many of them next to each other."""


def excludes(one: str, other: str) -> bool:
    return "writer" in (one, other) or one == other == "upgradable"


def overlaps(one: tuple[float, float], other: tuple[float, float], bounds: str) -> bool:
    if bounds == "[]":
        return one[0] <= other[1] and other[0] <= one[1]
    return one[0] < other[1] and other[0] < one[1]


@pytest.mark.parametrize("bounds", ["[)", "[]"])
@pytest.mark.parametrize("way", ["tracking"])
async def test_t_p_9_against_brute_force(start: Start, bounds: Any) -> None:
    """Tries of any two of these ends, in any mode: had if and only if nothing that is held says no."""
    chance = random.Random(bounds)
    lock = RangeLock(start(), "a", bounds=bounds)
    held: list[tuple[str, tuple[float, float], Any]] = []
    had = refused = 0
    for _ in range(600):
        if held and chance.random() < 0.3:
            await held.pop(chance.randrange(len(held)))[2].release()
        lo, hi = (
            sorted(chance.sample(POINTS, 2))
            if chance.random() < 0.9 or bounds == "[)"
            else [chance.choice(POINTS)] * 2
        )
        mode = chance.choice(MODES)
        part = getattr(lock, mode)(lo, hi)
        may = not any(excludes(mode, other) and overlaps((lo, hi), span, bounds) for other, span, _ in held)
        assert await part.locked() is not may
        lease = await part.try_acquire()
        assert (lease is not None) is may, (mode, lo, hi, held)
        if lease is not None:
            held.append((mode, (lo, hi), lease))
            had += 1
        else:
            refused += 1
    for _, _, lease in held:
        await lease.release()
    assert had > 80
    assert refused > 80


async def test_t_p_9_neighbours_do_not_know_of_each_other(start: Start) -> None:
    lock = RangeLock(start(), "a")
    ends = [
        -INF,
        -BIG,
        -1,
        0,
        math.nextafter(0, 1),
        1,
        math.nextafter(1, 2),
        BIG - 1,
        BIG,
        BIG + 2,
        1e300,
        INF,
    ]
    leases = [await lock.writer(lo, hi).acquire(blocking_timeout=0) for lo, hi in pairwise(ends)]
    for lo, hi in pairwise(ends):
        assert await lock.reader(lo, hi).try_acquire() is None
    for lease in leases:
        await lease.release()
    closed = RangeLock(start(), "b", bounds="[]")
    async with (
        closed.writer(2, 2),
        closed.writer(math.nextafter(2, 3), 3),
        closed.writer(1, math.nextafter(2, 1)),
    ):
        assert await closed.reader(2, math.nextafter(2, 3)).try_acquire() is None
    zone = datetime(2026, 3, 29, tzinfo=UTC)
    step = timedelta(microseconds=1)
    async with lock.writer(zone, zone + step), lock.writer(zone + step, zone + 2 * step):
        assert await lock.reader(zone, zone + step).try_acquire() is None
        async with lock.reader(zone + 2 * step, INF), lock.reader(-INF, zone):
            pass


@pytest.mark.parametrize(
    ("lo", "hi"),
    [
        *[(1, 1), (2, 1), (0.0, -0.0), (INF, INF), (-INF, -INF), (INF, -INF), (math.nan, 1), (1, math.nan)],
        *[(BIG + 1, BIG + 4), (0, BIG + 1), (0, 2**2000), (-(10**400), 0), (True, 2), ("1", "2"), (None, 1)],
        (datetime(2026, 1, 1), datetime(2026, 1, 2)),  # noqa: DTZ001 - that is the point
    ],
)
async def test_t_p_9_what_is_no_interval_is_refused_before_any_io(
    start: Start, keys: Callable[..., list[str]], lo: Any, hi: Any
) -> None:
    session = start()
    for mode in MODES:
        with pytest.raises((ValueError, TypeError)):
            getattr(RangeLock(session, "a"), mode)(lo, hi)
    lease = await RangeLock(session, "a").upgradable(-INF, INF).acquire()
    for call in (lease.shrink, lease.upgrade):
        if lo is not None or call == lease.shrink:
            with pytest.raises((ValueError, TypeError)):
                await call(lo, hi)
    await lease.release()
    assert keys() == []


async def test_shrink_wakes_who_waits_for_the_rest(start: Start) -> None:
    """And nobody who waits for what is kept; at either end, in every mode; it never grows."""
    here, elsewhere = start(), start()
    lock = RangeLock(here, "a")
    for mode, session in product(MODES, (here, elsewhere)):
        other = RangeLock(session, "a")
        lease = await getattr(lock, mode)(0, 10).acquire()
        waiting = [await waiter(session, other.writer(lo, lo + 1).acquire()) for lo in (0, 4, 9)]
        await lease.shrink(4, 6)
        for task in waiting[0], waiting[2]:
            await (await in_within(AT_ONCE, task)).release()
        await asyncio.sleep(0.01)
        assert not waiting[1].done()
        for lo, hi in ((3, 6), (4, 7), (math.nextafter(4, 3), 6), (4, math.nextafter(6, 7))):
            with pytest.raises(ValueError, match="no part"):
                await lease.shrink(lo, hi)
        await lease.shrink(4, 6)  # again
        await lease.shrink(4, math.nextafter(4, 5))
        assert await other.writer(math.nextafter(4, 5), 6).locked() is False or not waiting[1].done()
        await lease.release()
        await (await in_within(AT_ONCE, waiting[1])).release()


async def test_shrink_of_a_reader_lets_a_writer_in_beside_other_readers(start: Start) -> None:
    here, elsewhere = start(), start()
    lock, other = RangeLock(here, "a"), RangeLock(elsewhere, "a")
    async with lock.reader(0, 5) as lease, lock.reader(8, 20):
        writer = await waiter(elsewhere, other.writer(3, 8).acquire())
        assert await other.reader(4, 5).try_acquire() is None  # it has reserved
        await lease.shrink(0, 3)
        await (await in_within(AT_ONCE, writer)).release()


async def test_upgrade_of_a_part_leaves_readers_of_the_rest_alone(start: Start) -> None:
    here, elsewhere = start(), start()
    lock, other = RangeLock(here, "a"), RangeLock(elsewhere, "a")
    async with lock.upgradable(-10, 10) as lease, other.reader(0, 10), other.reader(-10, -5):
        async with lease.upgrade(-5, 0, blocking_timeout=AT_ONCE):
            async with other.reader(0, 5), other.reader(-6, -5):
                assert await other.reader(-6, -4).try_acquire() is None
            waiting = await waiter(elsewhere, other.reader(-1, 1).acquire())
        await (await in_within(AT_ONCE, waiting)).release()
        upgrading = await waiter(here, lease.upgrade(-1, 1))
        assert await other.reader(0.5, 0.7).try_acquire() is None
        async with other.reader(1, 2), other.reader(-2, -1):
            pass
        upgrading.cancel()
        await asyncio.wait({upgrading})
        async with other.reader(0.5, 0.7).acquire(blocking_timeout=AT_ONCE):
            pass
        for part in ({"hi": -4, "lo": -5}, {"lo": -5, "hi": 0}):
            async with lease.upgrade(**part, blocking_timeout=AT_ONCE):
                pass
        with pytest.raises(ValueError, match="no part"):
            lease.upgrade(-11, 0)
    async with lock.upgradable(-10, 10) as lease:
        for part in ({"hi": -3}, {"hi": 0}, {"lo": -3}, {"lo": 3}, {}):
            async with lease.upgrade(**part, blocking_timeout=AT_ONCE) as upgraded:
                upgraded.ensure_held()


async def test_i4_whoever_can_have_it_does_not_wait(start: Start) -> None:
    """Any spans and modes over several sessions of patient waiters, with every change there is, at random."""
    chance = random.Random()
    locks = [RangeLock(start(), "a") for _ in range(4)]
    held: dict[Any, tuple[str, tuple[float, float]]] = {}
    waiting: dict[asyncio.Task[Any], tuple[str, tuple[float, float]]] = {}
    under: dict[Any, Any] = {}  # upgrades, and the tasks that wait for them, to the upgradable leases

    def unjustified() -> list[Any]:
        """Waiters that wait though nobody stands in their way, inside, or before them and waiting with
        reason."""
        blocking: dict[Any, tuple[str, tuple[float, float]]] = dict(held)
        rest = dict(waiting)
        while True:
            kept = [
                task
                for task, (mode, span) in rest.items()
                if any(
                    excludes(mode, other) and overlaps(span, taken, "[)") and who is not under.get(task)
                    for who, (other, taken) in (
                        held if task in under else blocking
                    ).items()  # it passes who waits
                )
            ]
            if not kept:
                return list(rest.values())
            for task in kept:
                blocking[task] = rest.pop(task)

    async def settle() -> None:
        def rest() -> bool:
            for task in [task for task in waiting if task.done()]:
                held[task.result()] = waiting.pop(task)
                if task in under:
                    under[task.result()] = under.pop(task)
            return not unjustified()

        await asyncio.sleep(0)
        try:
            await eventually(rest, within=AT_ONCE)
        except AssertionError:
            raise AssertionError(f"{unjustified()} of {list(waiting.values())} beside {held}") from None
        inside = list(held.items())
        for place, (lease, (mode, span)) in enumerate(inside):
            assert not any(
                excludes(mode, mode2) and overlaps(span, taken, "[)") and under.get(lease) is not other
                for other, (mode2, taken) in inside[:place]
            )

    def free_of_upgrades() -> list[Any]:
        """Leases that may be let go of, shrunk or upgraded."""
        return [lease for lease in held if not any(lease is upgraded for upgraded in under.values())]

    async def step() -> None:
        match chance.randrange(7):
            case 0 | 1 if len(waiting) < 14:
                lo, hi = sorted(chance.sample(range(8), 2))
                mode = chance.choice(MODES)
                waiting[begin(getattr(chance.choice(locks), mode)(lo, hi).acquire())] = mode, (lo, hi)
            case 2 if held:
                lease = chance.choice(free_of_upgrades() or [None])
                if lease is not None:
                    del held[lease]
                    under.pop(lease, None)
                    await lease.release()
            case 3 if waiting and chance.random() < 0.5:
                task = chance.choice(list(waiting))
                if task.cancel():
                    await asyncio.wait({task})
                    if task.cancelled():
                        del waiting[task]
                        under.pop(task, None)
            case 4 if free_of_upgrades():
                lease = chance.choice(free_of_upgrades())
                mode, (lo, hi) = held[lease]
                lo, hi = sorted((chance.uniform(lo, hi), chance.uniform(lo, hi)))
                if lo < hi:
                    held[lease] = mode, (lo, hi)
                    await lease.shrink(lo, hi)
            case 5 if held:
                lease = chance.choice(list(held))
                mode, span = held[lease]
                if mode == "writer" and lease not in under:
                    held[lease] = "reader", span
                    await lease.downgrade()
            case 6:
                for lease in free_of_upgrades():
                    mode, (lo, hi) = held[lease]
                    if mode == "upgradable":
                        lo, hi = chance.choice(
                            [(lo, hi), sorted((chance.uniform(lo, hi), chance.uniform(lo, hi)))]
                        )
                        task = begin(lease.upgrade(lo, hi))
                        under[task] = lease
                        waiting[task] = "writer", (lo, hi)
                        break

    end = time.monotonic() + 0.5
    settled = 0
    while time.monotonic() < end or settled <= 30:
        for _ in range(chance.randrange(1, 6)):
            await step()
            if chance.random() < 0.2:
                await asyncio.sleep(chance.choice([0, 0.002]))
        await settle()
        settled += 1
    while held or waiting:
        for lease in free_of_upgrades():
            del held[lease]
            under.pop(lease, None)
            await lease.release()
        await settle()


async def test_behaves_as_a_reader_writer_lock_on_everything(start: Start) -> None:
    here, elsewhere = start(), start()
    lock, other = RangeLock(here, "a"), RangeLock(elsewhere, "a")
    async with lock.reader(-INF, INF), lock.upgradable(-INF, INF) as lease, other.reader(-INF, INF):
        assert await other.upgradable(0, 1).try_acquire() is None
        assert await other.writer(0, 1).try_acquire() is None
        with pytest.raises(LockTimeoutError):
            await lease.upgrade(blocking_timeout=0.05)
        assert lease.state is LeaseState.HELD


# -- what a check costs --------------------------------------------------------------------------------------


def calls_of_checks(own: Any, held: int) -> dict[str, int]:
    """Which commands the scripts call, and how often, for some checks beside so many that are held."""
    redis = blocking(f"unix://{own.path}")
    redis.flushall()

    def commands(mode: str, lo: float, hi: float) -> SpanSteps:
        return SpanSteps(
            "aiolocks", "rangelock", "a", Span(mode, repr(lo), repr(hi)), label="",
            retention_ms=600_000, longest_sleep_ms=64, session="0",
        )  # fmt: skip

    def run(batch: list[Any], *, as_eval: bool = False) -> list[Any]:
        with redis.pipeline(transaction=False) as pipe:
            for command in batch:
                pipe.execute_command(*command.words(as_eval=as_eval))
            return [command.parse(raw) for command, raw in zip(batch, pipe.execute(), strict=True)]

    def check(place: float) -> list[Any]:
        """One that is refused, one that is granted, and that undone."""
        token = f"{held:032x}"
        refused, granted = (commands("w", place + off, place + off + 0.1) for off in (0.2, 0.7))
        return [
            refused.acquire(token, 3_600_000, "{}", TOLD | WAITING),
            granted.acquire(token, 3_600_000, "{}"),
            granted.release(token, 3_600_000),
        ]

    try:
        run(check(0), as_eval=True)
        for begin_at in range(0, held, 5000):
            spans = [(float(n), n + 0.5) for n in range(begin_at, min(held, begin_at + 5000))]
            run(
                [
                    commands("w" if lo % 2 else "r", lo, hi).acquire(f"{int(lo):032x}", 3_600_000, "{}")
                    for lo, hi in spans
                ]
            )
        # Writers and readers by turns: to find out that a writer is in the way takes fewer calls.
        places = random.Random(1).sample(range(0, held, 2), 50)
        tries = [command for turn, place in enumerate(places) for command in check(float(place + turn % 2))]
        redis.config_resetstat()
        answers = run(tries)
        assert [type(answer).__name__ for answer in answers] == ["Refused", "Granted", "Released"] * 50
        stats: dict[str, Any] = redis.info("commandstats")
        return {name.removeprefix("cmdstat_"): one["calls"] for name, one in stats.items()}
    finally:
        redis.flushall()
        redis.close()


async def test_t_p_9_a_check_makes_the_same_calls_beside_many(own_server: OwnServer) -> None:
    """How long they take is measured by `python -m benchmarks range`."""
    own = await own_server()
    few = calls_of_checks(own, 100)
    assert few["evalsha"] == 150
    assert few["zcount"] > 0
    assert calls_of_checks(own, 10_000) == few
    # None that takes longer the more there is, whatever it is asked for.
    assert few.keys().isdisjoint({"hgetall", "hkeys", "hscan", "hvals", "keys", "scan", "zscan"})


# -- what is told --------------------------------------------------------------------------------------------


class Told:
    """A listener of everything that is told of leases."""

    def __init__(self) -> None:
        self.events: list[tuple[str, LockEvent]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda event: self.events.append((name, event))


@pytest.mark.parametrize("bounds", ["[)", "[]"])
async def test_listeners_and_the_log_are_told_of_upgrades_and_shrinks_with_the_interval(
    redis: Redis, caplog: pytest.LogCaptureFixture, bounds: Any
) -> None:
    caplog.set_level(logging.DEBUG, "aiolocks.session")
    told = Told()
    async with Session(redis, listeners=[told]) as session:
        async with RangeLock(session, "a", bounds=bounds).upgradable(0, 10) as lease:
            async with lease.upgrade(2, 4):
                pass
            await lease.shrink(1, 5)
        async with RWLock(session, "b").upgradable as lease, lease.upgrade():
            pass

    events = [(name, event) for name, event in told.events if name != "on_renewed"]  # a machine stood still
    seen = [(name, event.kind, event.interval, event.was) for name, event in events]
    ranges = [
        ("on_acquired", "rangelock.upgradable", (0, 10), ""),
        ("on_acquired", "rangelock.writer", (2, 4), ""),
        ("on_upgraded", "rangelock.writer", (2, 4), "rangelock.upgradable"),
        ("on_released", "rangelock.writer", (2, 4), ""),
        ("on_shrunk", "rangelock.upgradable", (1, 5), ""),
        ("on_released", "rangelock.upgradable", (1, 5), ""),
    ]
    assert seen[: len(ranges)] == ranges
    assert [(name, kind, was) for name, kind, _, was in seen[len(ranges) :]] == [
        ("on_acquired", "rwlock.upgradable", ""),
        ("on_acquired", "rwlock.writer", ""),
        ("on_upgraded", "rwlock.writer", "rwlock.upgradable"),
        ("on_released", "rwlock.writer", ""),
        ("on_released", "rwlock.upgradable", ""),
    ]
    assert all(event.interval is None for _, event in events[len(ranges) :])
    lines = [record.getMessage().partition(" after")[0] for record in caplog.records]
    lines = [
        line
        for line in lines
        if line.startswith(("rangelock.", "rwlock.")) and ": renewed" not in line  # a machine stood still
    ]
    assert lines[: len(ranges)] == [
        "rangelock.upgradable 'a' from 0.0 to 10.0: acquired",
        "rangelock.writer 'a' from 2.0 to 4.0: acquired",
        "rangelock.writer 'a' from 2.0 to 4.0: upgraded",
        "rangelock.writer 'a' from 2.0 to 4.0: released",
        "rangelock.upgradable 'a' from 1.0 to 5.0: shrunk",
        "rangelock.upgradable 'a' from 1.0 to 5.0: released",
    ]
    assert lines[len(ranges)] == "rwlock.upgradable 'b': acquired"
