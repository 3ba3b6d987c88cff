"""The metrics that OpenTelemetry's SDK collects: a real server, several kinds of locks."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

from aiolocks import Lock, LockEvent, LockTimeoutError, RangeLock, Semaphore, __version__
from aiolocks.contrib.opentelemetry import OpenTelemetryListener
from aiolocks.lock.statistics import BOUNDS
from tests.contrib_metrics.conftest import OpenSession
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
LONG = 10.0


class Collected:
    """The metrics that a reader has been given."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        data = reader.get_metrics_data()
        assert data is not None
        (resource,) = data.resource_metrics
        (scope,) = resource.scope_metrics
        self.scope = scope.scope
        self.metrics = {metric.name: metric for metric in scope.metrics}
        assert len(self.metrics) == len(scope.metrics)

    def point(self, name: str, kind: str, label: str) -> Any:
        attributes = {"aiolocks.kind": kind, "aiolocks.name": label}
        (point,) = [point for point in self.metrics[name].data.data_points if point.attributes == attributes]
        return point

    def value(self, name: str, kind: str, label: str) -> float:
        return self.point(name, kind, label).value

    @property
    def labels(self) -> set[str]:
        return {
            point.attributes["aiolocks.name"]
            for metric in self.metrics.values()
            for point in metric.data.data_points
        }


async def test_what_locks_do_is_collected(provider, reader, open_session: OpenSession, redis, keys) -> None:
    listener = OpenTelemetryListener(
        names={"order:{id}": "order", "seats": "seats"}, meter_provider=provider, hold_buckets=[0.001, 60]
    )
    session, there = open_session(listener), open_session()

    async with Lock(there, "order:1"):
        waiting = asyncio.create_task(Lock(session, "order:1").acquire())
        with pytest.raises(LockTimeoutError):
            await Lock(session, "order:1").acquire(blocking_timeout=0.6)
        with pytest.raises(LockTimeoutError):
            await Lock(session, "order:1").acquire(blocking_timeout=0)
        ranges = RangeLock(session, "x")
        async with Semaphore(session, "seats", 3), Semaphore(session, "seats", 3), ranges.writer(1, 2):
            during = Collected(reader)
            await asyncio.sleep(0.005)  # longer than the first bucket
    await (await waiting).release()
    lost = await Lock(session, "order:3", ttl=1).acquire()
    await eventually(lambda: Collected(reader).value("aiolocks.renewals", "lock", "order"), within=LONG)
    await redis.delete(*keys())
    await asyncio.wait_for(lost.wait_lost(), LONG)

    assert during.value("aiolocks.waiters", "lock", "order") == 1
    assert during.value("aiolocks.held", "semaphore", "seats") == 2
    assert during.value("aiolocks.held", "rangelock.writer", "other") == 1

    for kind in ("ratelimit", "combiner", "singleflight"):  # which have metrics of their own
        listener.on_timeout(LockEvent(kind=kind, name="another"))

    after = Collected(reader)
    assert (after.scope.name, after.scope.version) == ("aiolocks", __version__)
    for gauge in ("aiolocks.waiters", "aiolocks.held"):
        assert {point.value for point in after.metrics[gauge].data.data_points} == {0}
        assert not after.metrics[gauge].data.is_monotonic
    assert after.value("aiolocks.timeouts", "lock", "order") == 2
    assert after.value("aiolocks.acquisitions", "lock", "order") == 2
    assert after.value("aiolocks.losses", "lock", "order") == 1
    assert after.value("aiolocks.renewals", "lock", "order") >= 1
    assert after.value("aiolocks.losses", "semaphore", "seats") == 0, "there before the first"
    assert after.value("aiolocks.abandoned", "lock", "order") == 0
    assert after.metrics["aiolocks.losses"].data.is_monotonic

    wait = after.point("aiolocks.wait.duration", "lock", "order")
    assert (wait.count, wait.explicit_bounds) == (2, BOUNDS)
    assert wait.sum > 0.2
    hold = after.point("aiolocks.hold.duration", "semaphore", "seats")
    assert (hold.count, hold.explicit_bounds, hold.bucket_counts[0], hold.bucket_counts[2]) == (
        2,
        (0.001, 60),
        0,
        0,
    )
    assert after.point("aiolocks.hold.duration", "lock", "order").sum > 0.05
    assert {name: metric.unit for name, metric in after.metrics.items()} == {
        "aiolocks.wait.duration": "s",
        "aiolocks.hold.duration": "s",
        "aiolocks.held": "{lease}",
        "aiolocks.waiters": "{waiter}",
        "aiolocks.acquisitions": "{lease}",
        "aiolocks.cache_hits": "{lease}",
        "aiolocks.recalls": "{lease}",
        "aiolocks.timeouts": "{timeout}",
        "aiolocks.deadlocks": "{wait}",
        "aiolocks.losses": "{lease}",
        "aiolocks.releases_unconfirmed": "{release}",
        "aiolocks.renewals": "{renewal}",
        "aiolocks.abandoned": "{lease}",
        "aiolocks.stolen": "{lease}",
        "aiolocks.admissions": "{request}",
        "aiolocks.refusals": "{request}",
        "aiolocks.hits": "{call}",
        "aiolocks.left_items": "{item}",
        "aiolocks.batches": "{batch}",
        "aiolocks.batch_items": "{item}",
        "aiolocks.failed_items": "{item}",
        "aiolocks.dropped_items": "{item}",
    }
    assert after.labels == {"order", "seats", "other"}
    listener.on_tick(LockEvent(kind="schedule", name="nightly", seconds=0.5, items=2))
    for outcome in ("done", "failed", "failed"):
        listener.on_ran(LockEvent(kind="schedule", name="nightly", reason=outcome))
    after = Collected(reader)
    assert after.value("aiolocks.schedule.missed_ticks", "schedule", "other") == 2
    assert after.point("aiolocks.schedule.lateness", "schedule", "other").sum == 0.5
    assert abs(after.value("aiolocks.schedule.last_success", "schedule", "other") - time.time()) < 60
    counted = {
        point.attributes["aiolocks.outcome"]: point.value
        for point in after.metrics["aiolocks.schedule.runs"].data.data_points
    }
    assert counted == {"done": 1, "failed": 2, "timeout": 0, "stopped": 0, "lost": 0, "skipped": 0}
    page = (ROOT / "docs" / "reference" / "contrib-operation.md").read_text()
    named = dict(re.findall(r"^\| `\w+` \| `(aiolocks\.[\w.]+)` \| \w+ \| `(.+?)` \|", page, re.MULTILINE))
    assert named == {name: metric.unit for name, metric in after.metrics.items()}


async def test_names_are_not_told_unless_asked_for(provider, reader, open_session) -> None:
    async with Lock(open_session(OpenTelemetryListener(meter_provider=provider)), "user:ada"):
        pass
    assert Collected(reader).labels == {"other"}
    listener = OpenTelemetryListener(meter_provider=provider, raw_names=True)
    async with Lock(open_session(listener), "user:ada"):
        pass
    assert Collected(reader).labels == {"other", "user:ada"}


async def test_listeners_with_one_provider_share_what_they_count(
    provider, reader, open_session, caplog
) -> None:
    caplog.set_level(logging.WARNING)
    listeners = [OpenTelemetryListener(names=[name], meter_provider=provider) for name in ("a", "b")]
    sessions = [open_session(listeners[0]), open_session(listeners[0]), open_session(listeners[1])]
    for session in sessions:
        async with Lock(session, "a"), Lock(session, "b"):
            assert Collected(reader).value("aiolocks.held", "lock", "other") == 1

    after = Collected(reader)
    assert [after.value("aiolocks.acquisitions", "lock", name) for name in ("a", "b", "other")] == [2, 1, 3]
    assert caplog.text == ""


async def test_a_view_of_the_user_takes_precedence(open_session) -> None:
    reader = InMemoryMetricReader()
    view = View(
        instrument_name="aiolocks.wait.duration", aggregation=ExplicitBucketHistogramAggregation([1, 2])
    )
    provider = MeterProvider([reader], views=[view])
    async with Lock(open_session(OpenTelemetryListener(meter_provider=provider)), "a"):
        pass
    assert Collected(reader).point("aiolocks.wait.duration", "lock", "other").explicit_bounds == (1, 2)
    provider.shutdown()


GLOBAL = """
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from aiolocks import LockEvent
from aiolocks.contrib.opentelemetry import OpenTelemetryListener

listener = OpenTelemetryListener(hold_buckets=[1, 2])
listener.on_acquired(LockEvent(kind="lock", name="before"))
reader = InMemoryMetricReader()
set_meter_provider(MeterProvider([reader]))
listener.on_released(LockEvent(kind="lock", name="a", seconds=1.5))
(scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
(hold,) = [metric for metric in scope.metrics if metric.name == "aiolocks.hold.duration"]
(point,) = hold.data.data_points
print(point.explicit_bounds, point.bucket_counts)
"""


def test_the_global_provider_may_come_later() -> None:
    result = subprocess.run(
        [sys.executable, "-c", GLOBAL],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG * 3,
    )
    assert result.stderr == ""
    assert result.stdout.replace("(0, 1, 0)", "[0, 1, 0]") == "(1.0, 2.0) [0, 1, 0]\n"


def test_bad_arguments(provider) -> None:
    with pytest.raises(TypeError, match="meter_provider must be a MeterProvider, not str"):
        OpenTelemetryListener(meter_provider="global")
    with pytest.raises(ValueError, match="wait_buckets must be finite"):
        OpenTelemetryListener(meter_provider=provider, wait_buckets=[2, 1])
    with pytest.raises(ValueError, match="for braces; not"):
        OpenTelemetryListener(meter_provider=provider, names=["order:{"])


def test_without_the_package_it_says_what_to_install(monkeypatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "opentelemetry"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "aiolocks.contrib.opentelemetry")
    with pytest.raises(ImportError, match=r"pip install '\.\[opentelemetry\]'"):
        import aiolocks.contrib.opentelemetry  # noqa: F401
