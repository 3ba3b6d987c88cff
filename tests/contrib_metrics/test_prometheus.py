"""The metrics that Prometheus scrapes: a real endpoint, a real server, several kinds of locks."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest, start_http_server
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from aiolocks import FairLock, Lock, LockEvent, LockTimeoutError, RateLimit, RWLock, Schedule, Semaphore, Tick
from aiolocks.contrib.prometheus import PrometheusListener
from aiolocks.lock.statistics import BOUNDS
from tests.contrib_metrics.conftest import OpenSession
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
LONG = 10.0

Values = dict[tuple[str, ...], float]
Scrape = Callable[..., Awaitable[Values]]


def values_of(text: str, *, openmetrics: bool = False) -> Values:
    """By name, kind, name of the lock and what else there is: `("aiolocks_held", "lock", "order")`."""
    families = parse_openmetrics(text) if openmetrics else parse(text)
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels) if label != "le"))
        + ((sample.labels["le"],) if "le" in sample.labels else ()): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.fixture
def endpoint(registry: CollectorRegistry) -> Iterator[str]:
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def scrape(endpoint: str) -> Scrape:
    """The metrics of an endpoint now, in the one format or the other."""

    def get(*, openmetrics: bool) -> str:
        accept = "application/openmetrics-text; version=1.0.0" if openmetrics else "text/plain"
        with urlopen(Request(endpoint, headers={"Accept": accept}), timeout=LONG) as response:
            return response.read().decode()

    async def scrape(*, openmetrics: bool = False) -> Values:
        return values_of(await asyncio.to_thread(get, openmetrics=openmetrics), openmetrics=openmetrics)

    return scrape


@pytest.mark.parametrize("openmetrics", [False, True])
async def test_what_locks_do_is_scraped(
    registry, scrape: Scrape, open_session: OpenSession, redis, keys, openmetrics
) -> None:
    listener = PrometheusListener(
        names={"order:*": "order", "seats": "seats"}, registry=registry, hold_buckets=[0.001, 60]
    )
    session, there = open_session(listener), open_session()

    async with Lock(there, "order:1"):
        waiting = asyncio.create_task(Lock(session, "order:1").acquire())
        with pytest.raises(LockTimeoutError):
            await Lock(session, "order:1").acquire(blocking_timeout=0.2)
        with pytest.raises(LockTimeoutError):
            await Lock(session, "order:1").acquire(blocking_timeout=0)
        await eventually(lambda: session.statistics().waiters == 1, within=LONG)
        async with (
            Semaphore(session, "seats", 3),
            Semaphore(session, "seats", 3),
            RWLock(session, "x").reader,
        ):
            during = await scrape(openmetrics=openmetrics)
            await asyncio.sleep(0.005)  # longer than the first bucket
    await (await waiting).release()
    lost = await FairLock(session, "order:3", ttl=1).acquire()
    renewals = ("aiolocks_renewals_total", {"kind": "fairlock", "name": "order"})
    await eventually(lambda: registry.get_sample_value(*renewals), within=LONG)
    await redis.delete(*keys())
    await asyncio.wait_for(lost.wait_lost(), LONG)

    assert during["aiolocks_waiters", "lock", "order"] == 1
    assert during["aiolocks_held", "semaphore", "seats"] == 2
    assert during["aiolocks_held", "rwlock.reader", "other"] == 1
    assert during["aiolocks_held", "lock", "order"] == 0, "somebody else has it"

    for kind in ("ratelimit", "combiner", "singleflight"):  # which have metrics of their own
        listener.on_timeout(LockEvent(kind=kind, name="another"))
    after = await scrape(openmetrics=openmetrics)
    assert {after[key] for key in after if key[0] == "aiolocks_waiters"} == {0}
    assert after["aiolocks_timeouts_total", "lock", "order"] == 2
    assert after["aiolocks_acquisitions_total", "lock", "order"] == 1
    assert after["aiolocks_wait_seconds_count", "lock", "order"] == 1
    assert after["aiolocks_wait_seconds_sum", "lock", "order"] > 0.2
    assert after["aiolocks_wait_seconds_bucket", "lock", "order", "300.0"] == 1
    assert after["aiolocks_hold_seconds_bucket", "semaphore", "seats", "0.001"] == 0
    assert after["aiolocks_hold_seconds_bucket", "semaphore", "seats", "60.0"] == 2
    assert after["aiolocks_losses_total", "fairlock", "order"] == 1
    assert after["aiolocks_renewals_total", "fairlock", "order"] >= 1
    assert after["aiolocks_hold_seconds_sum", "fairlock", "order"] > 0.05
    assert after["aiolocks_losses_total", "lock", "order"] == 0, "there before the first"
    assert not any("schedule" in part for key in after for part in key), (
        "those of a schedule, if there is one"
    )
    assert after["aiolocks_deadlocks_total", "lock", "order"] == 0
    assert not any("order:" in part for key in after for part in key)
    assert {key[0] for key in after if not key[0].endswith("_created")} == {
        "aiolocks_wait_seconds_bucket",
        "aiolocks_wait_seconds_count",
        "aiolocks_wait_seconds_sum",
        "aiolocks_hold_seconds_bucket",
        "aiolocks_hold_seconds_count",
        "aiolocks_hold_seconds_sum",
        "aiolocks_held",
        "aiolocks_waiters",
        "aiolocks_acquisitions_total",
        "aiolocks_cache_hits_total",
        "aiolocks_recalls_total",
        "aiolocks_timeouts_total",
        "aiolocks_deadlocks_total",
        "aiolocks_losses_total",
        "aiolocks_releases_unconfirmed_total",
        "aiolocks_renewals_total",
        "aiolocks_abandoned_total",
        "aiolocks_stolen_total",
        "aiolocks_admissions_total",
        "aiolocks_refusals_total",
        "aiolocks_hits_total",
        "aiolocks_left_items_total",
        "aiolocks_batches_total",
        "aiolocks_batch_items_total",
        "aiolocks_failed_items_total",
        "aiolocks_dropped_items_total",
    }


async def test_names_are_not_told_unless_asked_for(registry, scrape: Scrape, open_session) -> None:
    secret = 'user:ada@example.org "\\\n}'
    session = open_session(PrometheusListener(registry=registry))
    async with Lock(session, secret):
        pass
    assert {key[2] for key in await scrape()} == {"other"}

    session = open_session(PrometheusListener(registry=registry, raw_names=True))
    async with Lock(session, secret):
        pass
    assert {key[2] for key in await scrape()} == {"other", secret}


async def test_listeners_on_one_registry_share_what_they_count(registry, open_session) -> None:
    listeners = [PrometheusListener(names=[name], registry=registry) for name in ("a", "b")]
    sessions = [open_session(listeners[0]), open_session(listeners[0]), open_session(listeners[1])]
    for session in sessions:
        async with Lock(session, "a"), Lock(session, "b"):
            assert registry.get_sample_value("aiolocks_held", {"kind": "lock", "name": "other"}) == 1

    def counted(name: str) -> float | None:
        return registry.get_sample_value("aiolocks_acquisitions_total", {"kind": "lock", "name": name})

    assert [counted(name) for name in ("a", "b", "other")] == [2, 1, 3]


def test_other_buckets_on_one_registry_are_told_of(registry) -> None:
    PrometheusListener(registry=registry)
    with pytest.raises(ValueError, match="with other buckets"):
        PrometheusListener(registry=registry, wait_buckets=[1])
    PrometheusListener(registry=registry, wait_buckets=BOUNDS)


async def test_a_registry_that_was_cleared_gets_new_ones(registry, open_session) -> None:
    PrometheusListener(registry=registry)
    for collector in {*registry._collector_to_names}:  # as test suites do
        registry.unregister(collector)
    assert not [*registry.collect()]
    async with Lock(open_session(PrometheusListener(registry=registry, wait_buckets=[1])), "a"):
        assert registry.get_sample_value("aiolocks_held", {"kind": "lock", "name": "other"}) == 1


def test_names_that_are_taken_are_told_of_and_nothing_is_left_behind(registry) -> None:
    foreign = Counter("aiolocks_losses", "Of somebody else.", registry=registry)
    with pytest.raises(ValueError, match=r"not those of a PrometheusListener: give another registry"):
        PrometheusListener(registry=registry)
    assert [family.name for family in registry.collect()] == ["aiolocks_losses"]

    registry.unregister(foreign)
    PrometheusListener(registry=registry)


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="registry must be a CollectorRegistry, not str"):
        PrometheusListener(registry="default")
    with pytest.raises(ValueError, match="hold_buckets must be finite"):
        PrometheusListener(registry=CollectorRegistry(), hold_buckets=[])
    with pytest.raises(TypeError, match="names must be patterns"):
        PrometheusListener(registry=CollectorRegistry(), names="order:*")


def test_without_the_package_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "aiolocks.contrib.prometheus")
    with pytest.raises(ImportError, match=r"pip install '\.\[prometheus\]'"):
        import aiolocks.contrib.prometheus  # noqa: F401


WORKER = """
import os
from aiolocks import LockEvent
from aiolocks.contrib.prometheus import PrometheusListener

listener = PrometheusListener(names={"order:*": "order"})
event = LockEvent(kind="lock", name="order:17", seconds=0.5)
listener.on_acquired(event)
listener.on_acquired(event)
listener.on_released(event)
print(os.getpid())
"""
COLLECTOR = """
import json, sys
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

def sample(name):
    return registry.get_sample_value(name, {"kind": "lock", "name": "order"})

registry = CollectorRegistry()
MultiProcessCollector(registry)
found = [sample("aiolocks_held"), sample("aiolocks_acquisitions_total"), sample("aiolocks_hold_seconds_sum")]
mark_process_dead(int(sys.argv[1]))
print(json.dumps([*found, sample("aiolocks_held"), sample("aiolocks_acquisitions_total")]))
"""


def test_several_processes_behind_one_endpoint(tmp_path) -> None:
    def run(script: str, *arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", script, *arguments],
            cwd=ROOT,
            env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=LONG * 3,
        ).stdout.strip()

    first, _ = run(WORKER), run(WORKER)
    assert json.loads(run(COLLECTOR, first)) == [2, 4, 1, 1, 4]


HOLDER = """
import os, sys
from aiolocks import LockEvent
from aiolocks.contrib.prometheus import PrometheusListener

listener = PrometheusListener(names={"order:*": "order"})
event = LockEvent(kind="lock", name="order:17", seconds=0.5)
listener.on_acquired(event)
print("holds", flush=True)
sys.stdin.read()
"""
SURVIVOR = """
import json, time
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.multiprocess import MultiProcessCollector
from aiolocks import LockEvent
from aiolocks.contrib import prometheus
from aiolocks.contrib.prometheus import PrometheusListener

def held():
    return registry.get_sample_value("aiolocks_held", {"kind": "lock", "name": "order"})

registry = CollectorRegistry()
MultiProcessCollector(registry)
prometheus._LOOK_EVERY = 0.1
Counter("requests", "Of the application.")  # so that this process has a file
listener = PrometheusListener(names={"order:*": "order"})
print(json.dumps([held()]), flush=True)
input()
time.sleep(0.2)
listener.on_acquired(LockEvent(kind="lock", name="order:18"))
print(json.dumps([held()]), flush=True)
"""


def test_gauges_of_a_process_that_was_killed_go_by_themselves(tmp_path) -> None:
    """Of one that was killed before this began, and of one that is killed later; those of the others stay."""

    def run(script: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    first, second, third = holders = [run(HOLDER) for _ in range(3)]
    for holder in holders:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holds\n"
    first.kill()
    first.communicate()
    with run(SURVIVOR) as survivor:
        assert survivor.stdout is not None
        assert survivor.stdin is not None
        assert json.loads(survivor.stdout.readline()) == [2]
        second.kill()
        second.communicate()
        print(file=survivor.stdin, flush=True)
        assert json.loads(survivor.stdout.readline()) == [2]  # its own, and that of the third
    third.communicate(timeout=LONG)


@pytest.mark.parametrize("page", ["how-to/monitor.md", "reference/contrib-operation.md"])
def test_the_pages_name_metrics_that_there_are(registry, page) -> None:
    PrometheusListener(registry=registry).on_acquired(LockEvent(kind="lock", name="a"))
    names = {family.name + "_total" * (family.type == "counter") for family in registry.collect()}
    samples = {sample.name for family in registry.collect() for sample in family.samples}
    named = {*re.findall(r"\baiolocks_\w+", (ROOT / "docs" / page).read_text())}

    assert named <= names | samples
    assert page.startswith("how-to") or named == names


@pytest.mark.leaves_keys("*:schedule.register:*", "*:schedule.history:*")
async def test_schedules(registry, open_session) -> None:
    """One whose job fails each time looks like that."""
    listener = PrometheusListener(registry=registry, names={"nightly": "nightly"})
    failing = True

    async with open_session(listener) as session:
        nightly = Schedule(session, "nightly", every=0.1, at_most=5)

        @nightly
        async def job(tick: Tick) -> None:
            if failing:
                raise ConnectionError("no route to host")

        def value(name: str, **labels: str) -> float | None:
            labels = {"kind": "schedule", "name": "nightly", **labels}
            return registry.get_sample_value(f"aiolocks_schedule_{name}", labels)

        def runs(outcome: str) -> float | None:
            return value("runs_total", outcome=outcome)

        async with nightly:
            await eventually(lambda: (runs("failed") or 0) >= 2, within=LONG)
            assert [runs(one) for one in ("done", "timeout", "stopped", "lost")] == [0] * 4
            assert value("last_success_timestamp_seconds") is None
            failing = False
            await eventually(lambda: runs("done"), within=LONG)
        last = value("last_success_timestamp_seconds")
        assert last is not None
        assert abs(time.time() - last) < 60
        begun = value("lateness_seconds_count") or 0
        assert begun >= (runs("done") or 0) + (runs("failed") or 0) >= 3
        assert 0 <= (value("lateness_seconds_sum") or 0) / begun < 10
        missed = value("missed_ticks_total")
        await asyncio.sleep(0.5)
        async with nightly:
            await eventually(lambda: (value("missed_ticks_total") or 0) >= (missed or 0) + 3, within=LONG)


@pytest.mark.leaves_keys("*:{api}")
async def test_a_kind_has_only_the_metrics_that_it_can_have(open_session: OpenSession) -> None:
    registry = CollectorRegistry()
    session = open_session(PrometheusListener(raw_names=True, registry=registry))
    async with Lock(session, "order:1"), Semaphore(session, "seats", 2), RWLock(session, "rw").reader:
        await RateLimit(session, "api", 5, per=0.1).acquire()
    lines = generate_latest(registry).decode()

    def counters(kind: str) -> set[str]:
        return {*re.findall(rf'^aiolocks_(\w+)_total\{{kind="{kind}"', lines, re.MULTILINE)}

    of_leases = {
        "acquisitions",
        "timeouts",
        "deadlocks",
        "losses",
        "releases_unconfirmed",
        "renewals",
        "abandoned",
    }
    assert counters("semaphore") == counters("rwlock.reader") == of_leases
    assert counters("lock") == of_leases | {"cache_hits", "recalls", "stolen"}
    assert counters("ratelimit") == {"timeouts", "admissions", "refusals"}
    assert 'aiolocks_hold_seconds_count{kind="ratelimit"' not in lines
    assert 'aiolocks_wait_seconds_count{kind="ratelimit",name="api"} 1.0' in lines
    ratelimit = PrometheusListener(raw_names=True, registry=registry)
    ratelimit.on_stolen(LockEvent(kind="semaphore", name="seats"))
    assert 'aiolocks_stolen_total{kind="semaphore",name="seats"} 1.0' in generate_latest(registry).decode()
