"""A wait or a lease may end in any way: each gauge comes down again, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from aiolocks import (
    BackendError,
    FairLock,
    Lock,
    LockEvent,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    MultiLock,
    RangeLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
    SessionClosedError,
)
from aiolocks.contrib.opentelemetry import OpenTelemetryListener
from aiolocks.contrib.prometheus import PrometheusListener
from aiolocks.lock import events
from tests.conftest import Connect
from tests.contrib_metrics.conftest import OpenSession
from tests.support.cancel import Shot, sweep, sweep_scopes
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.waiting import eventually

LONG = 10.0
"""Seconds that something may take on a machine that is busy."""

Levels = dict[str, float]


class Watched:
    """The holds and waits, as both listeners have them; and each hook, as it was told."""

    def __init__(self, registry: CollectorRegistry, reader: InMemoryMetricReader, provider: Any) -> None:
        self._registry = registry
        self._reader = reader
        self.told: list[str] = []
        self.listeners = (
            PrometheusListener(raw_names=True, registry=registry),
            OpenTelemetryListener(raw_names=True, meter_provider=provider),
            self,
        )

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)

        def note(event: LockEvent) -> None:
            self.told.append(f"{name.removeprefix('on_')} {event.reason}".strip())

        return note

    def took(self) -> list[str]:
        """The calls since the last question."""
        told, self.told = self.told, []
        return told

    @property
    def held(self) -> Levels:
        return self._level("held")

    @property
    def waiters(self) -> Levels:
        return self._level("waiters")

    @property
    def idle(self) -> bool:
        return not self.held and not self.waiters

    def count(self, what: str) -> Levels:
        """So often it has happened."""
        return self._level(what, "_total")

    def _level(self, what: str, counter: str = "") -> Levels:
        """By kind, without those at zero; both listeners must say the same."""
        here = summed(
            (sample.labels["kind"], sample.value)
            for family in self._registry.collect()
            for sample in family.samples
            if sample.name == f"aiolocks_{what}{counter}"
        )
        data = self._reader.get_metrics_data()
        there = summed(
            (point.attributes["aiolocks.kind"], point.value)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == f"aiolocks.{what}"
            for point in metric.data.data_points
        )
        assert here == there
        return here


def summed(points: Iterable[tuple[str, float]]) -> Levels:
    levels: Levels = {}
    for kind, value in points:
        assert value >= 0
        levels[kind] = levels.get(kind, 0) + value
    return {kind: value for kind, value in levels.items() if value}


@pytest.fixture
def watched(registry: CollectorRegistry, reader: InMemoryMetricReader, provider: MeterProvider) -> Watched:
    return Watched(registry, reader, provider)


@pytest.fixture
def session(open_session: OpenSession, watched: Watched) -> Session:
    return open_session(*watched.listeners)


@pytest.fixture
def other(open_session: OpenSession) -> Session:
    """Of somebody else, whom nobody watches."""
    return open_session()


@pytest.mark.parametrize("listener", [PrometheusListener, OpenTelemetryListener])
def test_they_hear_of_everything(listener) -> None:
    assert {name for name in dir(listener) if name.startswith("on_")} == {*events.HOOKS}


# -- leases


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (Lock, "lock"),
        (FairLock, "fairlock"),
        (ReentrantLock, "reentrantlock"),
        (lambda session, name: MultiLock(session, [name, "another"]), "multilock"),
        (lambda session, name: Semaphore(session, name, 2), "semaphore"),
        (lambda session, name: RWLock(session, name).reader, "rwlock.reader"),
        (lambda session, name: RWLock(session, name).upgradable, "rwlock.upgradable"),
        (lambda session, name: RangeLock(session, name).writer(1, 2), "rangelock.writer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_each_kind_is_held_until_it_is_released(session, watched, make, kind) -> None:
    async with make(session, "a"):
        assert watched.held == {kind: 1}
    assert watched.idle
    async with make(session, "a").try_acquire() as lease:
        assert lease is not None
        assert watched.held == {kind: 1}
    assert watched.idle
    assert watched.took() == ["acquired", "released"] * 2


async def test_kept_between_uses_and_asked_for_elsewhere(session, watched, other) -> None:
    """Nobody holds what its session only keeps."""
    lock = Lock(session, "a", cache=5)
    for _ in range(4):
        async with lock:
            assert watched.held == {"lock": 1}
        assert watched.idle
    async with Lock(other, "a"):
        pass
    assert watched.took() == ["acquired", "released"] * 4 + ["recalled"]
    assert (watched.count("acquisitions"), watched.count("cache_hits")) == ({"lock": 4}, {"lock": 2})
    assert watched.count("recalls") == {"lock": 1}


@pytest.mark.leaves_keys
async def test_a_writer_inside_an_upgradable_and_a_reader_that_was_a_writer(session, watched) -> None:
    lock = RWLock(session, "a")
    async with lock.upgradable as upgradable:
        async with upgradable.upgrade():
            assert watched.held == {"rwlock.upgradable": 1, "rwlock.writer": 1}
        assert watched.held == {"rwlock.upgradable": 1}
    async with lock.writer as writer:
        await writer.downgrade()
        assert watched.held == {"rwlock.reader": 1}
    assert watched.idle

    assert watched.took().count("downgraded") == 1

    part = await RangeLock(session, "a").writer(1, 5).acquire()
    await part.shrink(2, 3)
    assert watched.took() == ["acquired", "shrunk"]
    await part.downgrade()
    assert watched.took() == ["downgraded"]
    assert watched.held == {"rangelock.reader": 1}
    with pytest.warns(ResourceWarning, match="never released"):
        del part
        await eventually(lambda: gc.collect() >= 0 and watched.idle, within=LONG)


async def test_what_one_owner_holds_twice(session, watched) -> None:
    lock = ReentrantLock(session, "a")
    async with lock:
        async with lock:
            assert watched.held == {"reentrantlock": 2}
        assert watched.held == {"reentrantlock": 1}
    assert watched.idle


async def test_lost(session, watched, redis, keys) -> None:
    # The server's word at a renewal, at the release, at an extension; and the clock's.
    renewed, extended, released, timed = [
        await Lock(session, name, ttl=1 if name in "rt" else 30, auto_renew=name != "t").acquire()
        for name in "rext"
    ]
    assert watched.held == {"lock": 4}
    await redis.delete(*keys())
    with pytest.raises(LockLostError):
        await extended.extend()
    with pytest.raises(LockNotOwnedError):
        await released.release()
    await asyncio.wait_for(asyncio.gather(renewed.wait_lost(), timed.wait_lost()), LONG)

    assert watched.idle
    for lease in (renewed, extended, released, timed):
        with pytest.raises(LockNotOwnedError):
            await lease.release()
    told = sorted(told.split()[0] for told in watched.took())
    assert [one for one in told if one != "renewed"] == ["acquired"] * 4 + ["lost"] * 4
    assert watched.idle


async def test_detached_and_adopted_by_whoever(session, watched, other, open_session) -> None:
    handle = (await Lock(session, "a").acquire()).detach()
    assert watched.idle
    lease = await Lock(session, "a").adopt(handle)
    assert watched.held == {"lock": 1}
    handle = lease.detach()
    assert watched.idle
    await (await Lock(other, "a").adopt(handle)).release()
    assert watched.took() == ["acquired", "detached"] * 2


@pytest.mark.leaves_keys
async def test_collected(session, watched) -> None:
    lease = await Lock(session, "a", ttl=1).acquire()
    assert watched.held == {"lock": 1}
    with pytest.warns(ResourceWarning, match="never released"):
        del lease
        gc.collect()
    await eventually(lambda: watched.idle, within=LONG)
    assert watched.took() == ["acquired", "abandoned"]


# -- the end of a session


@pytest.mark.leaves_keys
async def test_closed(session, watched) -> None:
    by_hand = await Lock(session, "a").acquire()
    entered = asyncio.Event()

    async def body(lock: Any) -> None:
        async with lock:
            entered.set()
            await asyncio.sleep(LONG)

    tasks = [asyncio.create_task(body(lock)) for lock in (Semaphore(session, "b", 1), Lock(session, "a"))]
    await entered.wait()
    await eventually(lambda: watched.waiters == {"lock": 1}, within=LONG)
    assert watched.held == {"lock": 1, "semaphore": 1}
    await session.aclose()
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(result) for result in results] == [LockLostError, SessionClosedError]
    assert watched.idle
    assert sorted(watched.took()) == [
        "acquired",
        "acquired",
        "lost the session was closed",
        "not_acquired closed",
        "released",
        "waited closed",
        "waiting",
    ]
    assert by_hand.remaining() == 0


async def test_closed_while_releasing(session, watched) -> None:
    leases = [await Lock(session, f"a{number}").acquire() for number in range(5)]
    releases = [asyncio.create_task(lease.release()) for lease in leases]
    await asyncio.sleep(0)
    await session.aclose()
    await asyncio.gather(*releases, return_exceptions=True)

    assert watched.idle
    assert len([event for event in watched.took() if not event.startswith("renewed")]) == 10


# -- waits


async def waits(session: Session, watched: Watched, **options: Any) -> asyncio.Task[Any]:
    """Somebody who waits for "a"."""
    task = asyncio.create_task(Lock(session, "a", **options).acquire())
    before = sum(watched.waiters.values())
    await eventually(lambda: sum(watched.waiters.values()) == before + 1, within=LONG)
    return task


async def test_refused_at_once(session, watched, other) -> None:
    async with Lock(other, "a"):
        assert await Lock(session, "a").try_acquire() is None
        assert watched.took() == ["not_acquired refused"]
        with pytest.raises(LockTimeoutError):
            await Lock(session, "a").acquire(blocking_timeout=0)
        assert watched.took() == ["timeout", "not_acquired timeout"]
    assert watched.idle


async def test_waits_that_are_granted_time_out_and_are_cancelled(session, watched, other) -> None:
    holder = await Lock(other, "a").acquire()
    granted = await waits(session, watched)
    behind = await waits(session, watched)
    cancelled = await waits(session, watched)
    impatient = await waits(session, watched, blocking_timeout=0.5)
    with pytest.raises(LockTimeoutError):
        await impatient
    assert watched.waiters == {"lock": 3}
    cancelled.cancel()
    await asyncio.wait({cancelled})
    assert watched.waiters == {"lock": 2}
    await holder.release()
    lease = await granted
    assert (watched.held, watched.waiters) == ({"lock": 1}, {"lock": 1})
    await lease.release()
    await (await behind).release()

    assert watched.idle
    ends = ["waited timeout", "waited cancelled", "waited granted", "waited granted"]
    assert [told for told in watched.took() if told.startswith("waited ")] == ends


@pytest.mark.leaves_keys
async def test_a_server_that_goes_away(
    open_session, watched, other, proxy: Callable[[Server], Awaitable[Proxy]], server, connect: Connect
) -> None:
    link = await proxy(server)
    session = open_session(*watched.listeners, to=connect(link))
    async with Lock(other, "a"):
        waiting = await waits(session, watched, ttl=0.3)
        link.blackhole = True
        with pytest.raises(BackendError):
            await asyncio.wait_for(waiting, LONG)
    assert watched.idle
    assert watched.took() == ["waiting", "waited failed", "not_acquired failed"]
    link.blackhole = False


# -- cancelled at each await


async def test_cancelled_anywhere(
    open_session, watched, other, proxy: Callable[[Server], Awaitable[Proxy]], server, connect: Connect
) -> None:
    link = await proxy(server)
    link.delay = 0.002
    session = open_session(*watched.listeners, to=connect(link))
    lock = RWLock(session, "a").writer

    async def hold() -> None:
        async with lock as lease:
            await lease.extend(20)
            await lease.downgrade()

    async def one() -> None:
        async with Lock(session, "c"):
            await asyncio.sleep(0)

    async def behind() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(one())

    async def idle(shot: Shot) -> None:
        await eventually(lambda: watched.idle, within=LONG)

    def ended(told: list[str]) -> bool:
        starts, ends = ("acquired", "waiting"), ("released", "lost", "waited", "detached", "abandoned")
        words = [entry.split()[0] for entry in told]
        return sum(map(words.count, starts)) == sum(map(words.count, ends))

    for shoot, use in [(sweep, hold), (sweep_scopes, hold), (sweep, behind)]:
        await shoot(use, after=idle)
        told = watched.took()
        assert ended(told)
        assert ("waiting" in told) is (use is behind)
    async with Lock(other, "b"):

        async def impatient() -> None:
            with pytest.raises((LockTimeoutError, BackendError)):  # no answer in so short a time
                await Lock(session, "b").acquire(blocking_timeout=0.1)

        await sweep(impatient, after=idle)
        for milliseconds in range(20):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(impatient(), milliseconds / 1000)
            await eventually(lambda: watched.idle, within=LONG)
        told = watched.took()
        assert ended(told)
        assert {"waited cancelled", "waited timeout"} <= {*told}


async def test_storm(session, open_session, watched) -> None:
    """Many at once, in two sessions with the same listeners, ended at random moments."""
    there = open_session(*watched.listeners)

    async def use(number: int) -> None:
        lock = Lock(
            (session, there)[number % 2], f"a{number % 5}", blocking_timeout=0.02 * (number % 7) or None
        )
        async with asyncio.timeout(0.003 * (number % 31) or None):
            async with lock:
                await asyncio.sleep(0.001 * (number % 3))

    results = await asyncio.gather(*(use(number) for number in range(400)), return_exceptions=True)
    assert {type(result) for result in results} <= {
        type(None),
        TimeoutError,
        LockTimeoutError,
        BackendError,  # no answer in so short a time
    }
    await eventually(lambda: watched.idle, within=LONG)
    statistics = [each.statistics() for each in (session, there)]
    told = [entry.split()[0] for entry in watched.took()]
    assert told.count("acquired") == sum(each.acquisitions for each in statistics) > 0
    assert told.count("timeout") == sum(each.timeouts for each in statistics)
    assert told.count("waiting") == told.count("waited") > 0
    assert told.count("released") == told.count("acquired")
