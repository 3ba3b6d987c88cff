"""What many have for the same reason is one line of the log, with their number and ten of their names."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from aiolocks import BackendError, Leadership, LeaseState, Lock, Schedule, Session, Term, Tick
from aiolocks.contrib.prometheus import PrometheusListener
from tests.conftest import Connect, OwnServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves_keys()


def said(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= level and record.name.startswith("aiolocks")
    ]


async def test_a_flushed_server_is_one_line_for_500_leases(
    redis: Redis, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="aiolocks")
    leases = await asyncio.gather(*(Lock(session, f"n{number}").acquire() for number in range(500)))
    await asyncio.sleep(0.2)  # soon after the grant the server is asked to tell of a loss
    await redis.flushdb()
    await eventually(lambda: all(lease.state is LeaseState.LOST for lease in leases), within=12)
    await eventually(lambda: said(caplog))
    (line,) = said(caplog)
    assert re.fullmatch(r"500 leases were lost: the server no longer has it .*", line)
    assert line.count("lock 'n") == 10
    assert line.endswith(" and 490 more")
    told = [text for text in said(caplog, logging.DEBUG) if re.match(r"lock 'n\d+' was lost after ", text)]
    assert len(set(told)) == 500


async def test_long_waits_are_one_line(
    session: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("aiolocks.lock.waiter._LONG", 0.2)
    caplog.set_level(logging.INFO, logger="aiolocks")

    async def enter(name: str) -> None:
        async with Lock(session, name):
            pass

    async with Lock(session, "a"), Lock(session, "b"):
        waiters = [asyncio.create_task(enter(name)) for name in ("a", "b")]
        await eventually(lambda: said(caplog, logging.INFO))
    await asyncio.gather(*waiters)
    (line,) = said(caplog, logging.INFO)
    assert line.startswith("2 tasks are waiting for 0.2 s or more: lock 'a'")
    assert "'b'" in line


@pytest.mark.more  # as an outage of many schedules
async def test_an_outage_is_few_lines_for_60_schedules_and_10_candidates(
    own_server: OwnServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """At any level above DEBUG: the runs that go on, those that have just ended, leaders and candidates."""
    server = await own_server()
    caplog.set_level(logging.INFO, logger="aiolocks")

    async def job(tick: Tick) -> None:
        await asyncio.sleep(0.1 if int(tick.name) % 2 else 60)

    async def lead(term: Term) -> None:
        await asyncio.sleep(60)

    async with Session(connect(server)) as session, asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []
        for number in range(60):
            schedule = Schedule(session, str(number), every=0.5, ttl=1)
            schedule(job)
            tasks.append(group.create_task(schedule.run()))
        leaderships = [Leadership(session, str(number // 2), ttl=1) for number in range(10)]
        tasks += [group.create_task(leadership.run(lead)) for leadership in leaderships]
        await eventually(lambda: sum(one.is_leader for one in leaderships) == 5)
        await asyncio.sleep(0.7)
        caplog.clear()
        server.pause()
        await asyncio.sleep(3)
        server.resume()
        await eventually(lambda: " is back after " in caplog.text, within=5)
        await eventually(lambda: sum(one.is_leader for one in leaderships) == 5, within=5)
        await asyncio.sleep(0.6)
        lines = said(caplog, logging.INFO)
        assert len(lines) <= 25, lines
        assert sum(" is away since " in line for line in lines) == 1
        assert any(re.match(r"\d+ leases were lost: its ttl passed without", line) for line in lines), lines
        for task in tasks:
            task.cancel()


async def test_a_release_that_is_not_confirmed_in_time_is_no_loss(
    own_server: OwnServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """The work has ended in time; its counter and its reason are no cause for an alert."""
    server = await own_server()
    registry = CollectorRegistry()
    told: list[tuple[str, str]] = []

    class Listener:
        def on_released(self, event: object) -> None:
            told.append(("released", event.reason))  # type: ignore[attr-defined]

        def on_lost(self, event: object) -> None:
            told.append(("lost", event.reason))  # type: ignore[attr-defined]

    listeners = [Listener(), PrometheusListener(registry=registry)]
    async with Session(connect(server), listeners=listeners) as session:
        with pytest.raises(BackendError):
            async with Lock(session, "a", ttl=0.5):
                server.pause()
        server.resume()
        counted = session.statistics()
        await Lock(session, "b").locked()
    assert (counted.losses, counted.releases_unconfirmed, counted.leases_held) == (0, 1, 0)
    assert counted.hold_seconds.count == 1
    assert told == [("released", "unconfirmed")]
    labels = {"kind": "lock", "name": "other"}
    assert registry.get_sample_value("aiolocks_losses_total", labels) == 0
    assert registry.get_sample_value("aiolocks_releases_unconfirmed_total", labels) == 1
    assert registry.get_sample_value("aiolocks_held", labels) == 0
    (line,) = said(caplog)
    assert line.startswith("lock 'a' was released after 0.")
