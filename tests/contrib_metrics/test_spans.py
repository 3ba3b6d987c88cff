"""The spans that OpenTelemetry's SDK is given: a real server, several kinds of locks, each way to end."""

from __future__ import annotations

import asyncio
import functools
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.propagate import inject
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer
from redis.asyncio import Redis
from redis.exceptions import LockError as RedisLockError

from aiolocks import (
    BackendError,
    DeadlockError,
    Latch,
    Lock,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    RateLimit,
    RWLock,
    Semaphore,
    SessionClosedError,
    SingleFlight,
)
from aiolocks.contrib.opentelemetry import SpanListener
from aiolocks.contrib.redis_py import Lock as RedisPyLock
from tests.contrib_metrics.conftest import OpenSession
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
LONG = 10.0


class Traced:
    """A listener, and the spans that it has ended."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self.exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer: Tracer = self.provider.get_tracer("program")
        self.listener = SpanListener(raw_names=True, tracer_provider=self.provider)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span

    def outcomes(self, name: str) -> list[tuple[Any, str]]:
        """With the status, in the order in which they ended."""
        return [
            ((span.attributes or {})["aiolocks.outcome"], span.status.status_code.name)
            for span in self.spans(name)
        ]

    @property
    def acquires(self) -> list[tuple[Any, str]]:
        return self.outcomes("aiolocks.acquire")

    @property
    def holds(self) -> list[tuple[Any, str]]:
        return self.outcomes("aiolocks.hold")


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    yield traced
    assert not traced.listener._holds, "a span that nobody ends"
    traced.provider.shutdown()


async def test_an_acquire_and_a_hold_are_children_of_the_span_of_the_caller(
    traced: Traced, open_session: OpenSession
) -> None:
    session = open_session(traced.listener)
    with traced.tracer.start_as_current_span("request") as request:
        async with Lock(session, "order:1"):
            with traced.tracer.start_as_current_span("body"):
                await asyncio.sleep(0.01)

    acquire, hold, body = traced.one("aiolocks.acquire"), traced.one("aiolocks.hold"), traced.one("body")
    parents = {span.parent and span.parent.span_id for span in (acquire, hold, body)}
    assert parents == {request.get_span_context().span_id}
    assert acquire.attributes == {
        "aiolocks.kind": "lock",
        "aiolocks.name": "order:1",
        "aiolocks.waited": pytest.approx(0, abs=LONG),
        "aiolocks.outcome": "granted",
    }
    assert hold.attributes == {
        "aiolocks.kind": "lock",
        "aiolocks.name": "order:1",
        "aiolocks.outcome": "released",
    }
    assert acquire.end_time is not None
    assert acquire.end_time <= hold.start_time <= body.start_time
    assert hold.end_time - hold.start_time >= 10_000_000
    assert (traced.acquires, traced.holds) == ([("granted", "UNSET")], [("released", "UNSET")])


async def test_spans_of_tasks_that_wait_have_the_parents_of_their_own_tasks(
    traced: Traced, open_session: OpenSession
) -> None:
    """Each wait ends in the release of another task: of this session, and of another one."""
    sessions = [open_session(traced.listener), open_session(traced.listener)]

    async def use(number: int) -> None:
        with traced.tracer.start_as_current_span(f"request {number}"):
            async with Lock(sessions[number % 2], "a"):
                await asyncio.sleep(0.002)

    await asyncio.gather(*map(use, range(6)))

    requests = {span.context.span_id: span for span in traced.exporter.get_finished_spans()}
    for name in ("aiolocks.acquire", "aiolocks.hold"):
        parents = [requests[span.parent.span_id].name for span in traced.spans(name)]
        assert sorted(parents) == [f"request {number}" for number in range(6)]
    for span in traced.spans("aiolocks.acquire"):
        request = requests[span.parent.span_id]
        assert request.start_time - 2_000_000 <= span.start_time, "the wait begins with the call"
        waited = (span.attributes or {})["aiolocks.waited"]
        assert span.end_time - span.start_time == pytest.approx(waited * 1e9, abs=1000)


@pytest.mark.parametrize("where", ["this session", "another session"])
async def test_an_acquire_that_waits_is_linked_to_the_trace_of_the_holder(
    traced: Traced, open_session: OpenSession, where: str
) -> None:
    session = open_session(traced.listener)
    there = session if where == "this session" else open_session()
    with traced.tracer.start_as_current_span("holder") as holder:
        carrier: dict[str, str] = {}
        inject(carrier)
    lease = await Lock(there, "a", metadata=carrier).acquire()
    waiting = asyncio.create_task(Lock(session, "a").acquire())
    await eventually(lambda: session.statistics().waiters == 1, within=LONG)
    with pytest.raises(LockTimeoutError):
        await Lock(session, "a").acquire(blocking_timeout=0.5)  # in which a busy machine answers, too
    await lease.release()
    await (await waiting).release()
    async with Lock(session, "b"), Lock(there, "without", metadata={"traceparent": "no such thing"}):
        with pytest.raises(LockTimeoutError):
            await Lock(session, "without").acquire(blocking_timeout=0.5)

    acquires = [span for span in traced.spans("aiolocks.acquire") if span.links]
    assert [(span.attributes or {})["aiolocks.outcome"] for span in acquires] == ["timeout", "granted"]
    for span in acquires:
        (link,) = span.links
        assert link.context.trace_id == holder.get_span_context().trace_id
        assert link.context.span_id == holder.get_span_context().span_id


async def test_each_way_in_which_an_acquire_ends_without_a_lease(
    traced: Traced, open_session: OpenSession, redis, keys
) -> None:
    session, there = open_session(traced.listener), open_session()

    async def ends(acquire: Any, error: type[BaseException] | None = None) -> tuple[Any, str]:
        before = len(traced.acquires)
        with traced.tracer.start_as_current_span("caller") as caller:
            task = asyncio.ensure_future(acquire)
        if error is asyncio.CancelledError:
            await asyncio.sleep(0.05)
            task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        assert result is None if error is None else isinstance(result, error)
        (span,) = traced.spans("aiolocks.acquire")[before:]
        assert span.parent.span_id == caller.get_span_context().span_id
        return traced.acquires[-1]

    async with Lock(there, "a"):
        assert await ends(Lock(session, "a").try_acquire()) == ("refused", "UNSET")
        timeout = Lock(session, "a").acquire(blocking_timeout=0)
        assert await ends(timeout, LockTimeoutError) == ("timeout", "ERROR")
        timeout = Lock(session, "a").acquire(blocking_timeout=0.5)
        assert await ends(timeout, LockTimeoutError) == ("timeout", "ERROR")
        assert await ends(Lock(session, "a").acquire(), asyncio.CancelledError) == ("cancelled", "UNSET")
        waiting = asyncio.ensure_future(ends(Lock(session, "a").acquire(), SessionClosedError))
        await eventually(lambda: session.statistics().waiters == 1, within=LONG)
        await session.aclose()
        assert await waiting == ("closed", "ERROR")

    session = open_session(traced.listener)
    async with Lock(session, "a"):
        with pytest.raises(DeadlockError):
            await Lock(session, "a").acquire()
    assert traced.acquires[-1] == ("failed", "ERROR")

    other = await Lock(there, "b").acquire()
    for key in keys():
        await redis.set(key, "of another program", keepttl=True)
    assert await ends(Lock(session, "b").acquire(), BackendError) == ("failed", "ERROR")
    await redis.delete(*keys())
    with pytest.raises(LockNotOwnedError):
        await other.release()

    finish = asyncio.Event()

    async def run() -> str:
        await finish.wait()
        return "value"

    running = asyncio.create_task(SingleFlight(there).do("a", run))
    await eventually(lambda: there.statistics().leases_held == 1, within=LONG)
    waiting = asyncio.ensure_future(SingleFlight(session).do("a", run))
    await eventually(lambda: session.statistics().waiters == 1, within=LONG)
    finish.set()
    assert await asyncio.gather(running, waiting) == ["value", "value"]
    assert traced.acquires[-1] == ("needless", "UNSET")


@pytest.mark.leaves_keys("*:{forgotten}", "*:{closed}")
async def test_each_way_in_which_a_lease_ends(
    traced: Traced, open_session: OpenSession, redis, keys, caplog
) -> None:
    session = open_session(traced.listener)

    detached = await Lock(session, "detached").acquire()
    handle = detached.detach()
    assert traced.holds[-1] == ("detached", "UNSET")
    await (await Lock(session, "detached").adopt(handle)).release()
    assert traced.holds[-1] == ("released", "UNSET")

    lost = await Lock(session, "lost", ttl=0.5).acquire()
    await redis.delete(*keys())
    await asyncio.wait_for(lost.wait_lost(), LONG)
    assert traced.holds[-1] == ("lost", "ERROR")

    with pytest.raises(LockLostError):
        async with Lock(session, "stolen"):
            thief = await Lock(open_session(traced.listener), "stolen").acquire(steal=True)
            await asyncio.sleep(LONG)
    assert traced.holds[-1] == ("lost", "ERROR")
    await thief.release()
    assert [event.name for event in traced.spans("aiolocks.hold")[-1].events] == ["aiolocks.stolen"]

    entered = Lock(session, "elsewhere").acquire()
    await entered.__aenter__()
    await asyncio.create_task(entered.__aexit__(None, None, None))
    assert traced.holds[-1] == ("released", "UNSET")

    writer = await RWLock(session, "rw").writer.acquire()
    await writer.downgrade()
    await writer.release()
    downgraded = traced.spans("aiolocks.hold")[-1]
    assert (downgraded.attributes or {})["aiolocks.kind"] == "rwlock.reader"
    assert [event.name for event in downgraded.events] == ["aiolocks.downgraded"]

    with pytest.warns(ResourceWarning, match="never released"):
        forgotten = await Lock(session, "forgotten").acquire()
        del forgotten
        gc.collect()
        await eventually(lambda: traced.holds[-1] == ("abandoned", "ERROR"), within=LONG)

    held = await Semaphore(session, "closed", 2).acquire()
    await session.aclose()
    assert traced.holds[-1] in (("lost", "ERROR"), ("released", "UNSET"))
    assert held.remaining() == 0
    assert "a listener failed" not in caplog.text


async def test_each_use_of_a_lease_that_is_kept_is_a_hold(traced: Traced, open_session: OpenSession) -> None:
    session, uses = open_session(traced.listener), 5
    lock = Lock(session, "a", cache=5)
    for number in range(uses):
        with traced.tracer.start_as_current_span(f"request {number}"):
            async with lock:
                pass
    assert session.statistics().cache_hits
    assert not traced.listener._holds, "between uses there is none"

    names = {span.context.span_id: span.name for span in traced.exporter.get_finished_spans()}
    holds = traced.spans("aiolocks.hold")
    assert [names[span.parent.span_id] for span in holds] == [f"request {number}" for number in range(uses)]
    cached = [bool((span.attributes or {}).get("aiolocks.cached")) for span in holds]
    assert cached == sorted(cached)
    assert any(cached)
    assert traced.holds == [("released", "UNSET")] * uses


@pytest.mark.leaves_keys("*:{api}", "*:{ready}", "*:{never}")
async def test_limits_and_latches_are_waited_for_without_a_hold(
    traced: Traced, open_session: OpenSession
) -> None:
    session = open_session(traced.listener)
    limit = RateLimit(session, "api", 1, per=60)
    assert await limit.try_acquire()
    assert not await limit.try_acquire()
    with pytest.raises(LockTimeoutError):
        await limit.acquire(blocking_timeout=0.5)
    latch = Latch(session, "ready", 1)
    waiting = asyncio.create_task(latch.wait())
    await eventually(lambda: session.statistics().waiters or True, within=LONG)
    await asyncio.sleep(0.1)
    await latch.count_down()
    await waiting
    with pytest.raises(LockTimeoutError):
        await Latch(session, "never", 1).wait(blocking_timeout=0.5)

    assert traced.acquires == [
        ("granted", "UNSET"),
        ("refused", "UNSET"),
        ("timeout", "ERROR"),
        ("granted", "UNSET"),
        ("timeout", "ERROR"),
    ]
    assert traced.holds == []


async def test_the_lock_of_redis_py_is_no_hole(traced: Traced, redis: Redis) -> None:
    lock_class = functools.partial(RedisPyLock, listeners=[traced.listener])

    def lock(**options: Any) -> RedisPyLock:
        return redis.lock("orders:17", timeout=LONG, sleep=0.01, lock_class=lock_class, **options)

    with traced.tracer.start_as_current_span("request") as request:
        async with lock():
            assert not await lock(blocking=False).acquire()
            assert not await lock(blocking_timeout=0.05).acquire()
            cancelled = asyncio.create_task(lock().acquire())
            await asyncio.sleep(0.05)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            waiting = asyncio.create_task(lock().acquire())
            await asyncio.sleep(0.05)
        assert await waiting
        del waiting  # with its lock, which was never released
        gc.collect()
        await redis.delete("orders:17")
        gone = lock()
        async with gone:
            await redis.delete("orders:17")
            with pytest.raises(RedisLockError):
                await gone.release()
            await gone.acquire()
    renewed = RedisPyLock(redis, "orders:18", 0.1, auto_renew=True, listeners=[traced.listener])
    await renewed.acquire()
    await redis.delete("orders:18")
    await eventually(lambda: len(traced.spans("aiolocks.hold")) == 5, within=LONG)

    assert traced.acquires == [
        ("granted", "UNSET"),
        ("refused", "UNSET"),
        ("timeout", "ERROR"),
        ("cancelled", "UNSET"),
        ("granted", "UNSET"),
        ("granted", "UNSET"),
        ("granted", "UNSET"),
        ("granted", "UNSET"),
    ]
    assert traced.holds == [
        ("released", "UNSET"),
        ("abandoned", "ERROR"),
        ("lost", "ERROR"),
        ("released", "UNSET"),
        ("lost", "ERROR"),
    ]
    acquires = traced.spans("aiolocks.acquire")
    assert {span.parent.span_id for span in acquires[:-1]} == {request.get_span_context().span_id}
    assert acquires[0].attributes == {
        "aiolocks.kind": "redispylock",
        "aiolocks.name": "orders:17",
        "aiolocks.waited": pytest.approx(0, abs=LONG),
        "aiolocks.outcome": "granted",
    }
    waits = [span.end_time - span.start_time > 40_000_000 for span in acquires[2:5]]
    assert all(waits)


async def test_names_are_told_as_the_metrics_tell_them(open_session: OpenSession) -> None:
    traced = Traced()
    listener = SpanListener(names={"order:*": "order"}, tracer_provider=traced.provider)
    session = open_session(listener)
    async with Lock(session, "order:1"), Lock(session, "user:1"):
        pass
    assert [(span.attributes or {})["aiolocks.name"] for span in traced.spans("aiolocks.acquire")] == [
        "order",
        "other",
    ]
    with pytest.raises(TypeError, match="tracer_provider must be a TracerProvider, not Tracer"):
        SpanListener(tracer_provider=traced.tracer)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="either names or raw_names"):
        SpanListener(names=["a"], raw_names=True)


LOOPS = """
import asyncio, sys, warnings
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import set_tracer_provider
from redis.asyncio import Redis
from aiolocks import Lock, Session
from aiolocks.contrib.opentelemetry import SpanListener

warnings.simplefilter("ignore")
listener, exporter, provider = SpanListener(raw_names=True), InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
set_tracer_provider(provider)  # later than the listener

async def cut_short(name):
    redis = Redis.from_url(sys.argv[1])
    lease = await Lock(Session(redis, prefix=sys.argv[2], listeners=[listener]), name, ttl=60).acquire()
    await redis.aclose()
    return lease

for name in "abc":
    loop = asyncio.new_event_loop()
    lease = loop.run_until_complete(cut_short(name))
    loop.close()  # without the shutdown that releases
    del lease
spans = [span.attributes["aiolocks.outcome"] for span in exporter.get_finished_spans()]
print(spans, len(listener._holds))
"""


@pytest.mark.leaves_keys("*:{[abc]}")
async def test_what_a_loop_leaves_behind_does_not_stay(server, prefix: str) -> None:
    """Its session was not closed: no method is called, and the spans end with the next session's."""
    result = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", LOOPS, server.url, prefix],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG * 3,
    )
    assert result.stderr == ""
    ended = ["granted", "abandoned", "granted", "abandoned", "granted"]
    assert result.stdout == f"{ended} 0\n"
