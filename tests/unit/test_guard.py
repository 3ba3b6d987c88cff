"""The guard's thread, look by look: a loop of the test, and times of the test."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from types import SimpleNamespace
from typing import Any

import pytest

from aiolocks import Lock, Session
from aiolocks.lock import guard, renewal
from aiolocks.lock.guard import Ward
from aiolocks.lock.options import Options
from tests.unit.fakes import generous


class Loop:
    """Runs what it was given when the test lets it."""

    def __init__(self) -> None:
        self.given: list[Callable[[], object]] = []
        self.running = True
        self.closed = False

    def call_soon_threadsafe(self, callback: Callable[[], object], *, context: Context) -> None:
        self.given.append(callback)

    def run(self) -> None:
        for callback in self.given:
            callback()
        self.given.clear()

    def is_running(self) -> bool:
        return self.running

    def is_closed(self) -> bool:
        return self.closed


def Watch(name: str, ttl: float, max_hold: float | None = None) -> Any:  # noqa: N802 - as the class
    """Of a lease that was granted at 0."""
    watch: Any = renewal.Watch(Options.checked(ttl=ttl, max_hold=max_hold), 0.0, 0.0)
    possession = SimpleNamespace(label="Lock", name=name, context=copy_context(), cancellable=True)
    watch.holder = lambda: possession
    return watch


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def enter(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(guard, "the_thread", guard._Guard())
    guard.the_thread.looks_at = float("-inf")  # nothing is early enough to start the thread

    def enter(*watches: Any) -> Ward:
        ward: Any = Ward(loop, set(watches), exits=False)
        for watch in watches:
            ward.enter(watch)
        return ward

    return enter


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread waits until a stall is written, however busy the machine is."""
    write_within = guard._write_within

    def write(seconds: float, *what: Any, exits: bool) -> None:
        write_within(30.0, *what, exits=exits)

    monkeypatch.setattr(guard, "_write_within", write)


def walk(ward: Ward, until: float) -> list[float]:
    """Its looks, each when the last one said, and the first at 0."""
    looks, now = [0.0], ward.look(0.0)
    while now < until:
        looks.append(now)
        now = ward.look(now)
    return looks


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize(("ttl", "margin"), [(0.1, 0.025), (0.4, 0.05), (2.0, 0.1), (30.0, 1.5)])
def test_a_loop_that_stands_still_is_told_of_a_margin_before_the_lease_ends(
    enter, loop: Loop, caplog, ttl: float, margin: float
) -> None:
    ward = enter(watch := Watch("orders", ttl))
    deadline = watch.deadline
    now = told_at = 0.0
    while not caplog.records:
        now, told_at = ward.look(now), now

    assert told_at == pytest.approx(deadline - margin, abs=0.001)
    assert f"the lease of Lock 'orders' ends in {margin:.3f} s" in caplog.text
    assert f"the event loop has not run for {margin:.3f} s or more" in caplog.text
    assert "test_a_loop_that_stands_still" in caplog.text  # the stack of its thread, which is this one
    assert len(caplog.records) == 1


@pytest.mark.usefixtures("written")
def test_of_a_lease_that_is_kept_nothing_is_told_while_no_body_relies_on_it(
    enter, loop: Loop, caplog
) -> None:
    """Its watch is guarded from the first body on; then no possession has it, or one without a body."""
    watch = Watch("orders", 10.0)
    ward, body = enter(watch), watch.holder
    margin, deadline = watch.margin, watch.deadline
    for holder in (None, lambda: SimpleNamespace(cancellable=False)):
        watch.holder = holder
        assert ward.look(deadline - 1.5 * margin) == pytest.approx(deadline - margin)  # asked in time
        ward.look(deadline - margin)
        assert not caplog.records

    watch.holder = body
    ward.look(deadline - margin / 2)

    assert "the lease of Lock 'orders' ends in" in caplog.text


def test_a_loop_that_runs_is_asked_once_for_each_end_and_nothing_is_told(enter, loop: Loop, caplog) -> None:
    ward = enter(watch := Watch("a", 10.0))
    asked = 0
    now = 0.0
    while now < watch.deadline + 100:
        now = max(now + 0.01, ward.look(now))
        asked += len(loop.given)
        loop.run()
    assert asked == 1
    assert not caplog.records


def test_renewed_leases_are_looked_at_twice_a_ttl_and_never_asked_for(enter, loop: Loop) -> None:
    watches = [Watch(f"{number}", 30.0) for number in range(100)]
    ward = enter(*watches)
    looks, now, renewed_at = 0, 0.0, 0.0
    while now < 300:
        looks += 1
        now = ward.look(now)
        while renewed_at + 10 < now:
            renewed_at += 10
            for watch in watches:
                watch.holds_from(renewed_at, 0.0)
    assert looks <= 21
    assert not loop.given


@pytest.mark.usefixtures("written")
def test_a_stall_is_told_of_once_and_the_next_one_again(enter, loop: Loop, caplog) -> None:
    watches = Watch("a", 2.0), Watch("b", 3.0)
    ward = enter(*watches)
    walk(ward, 10)
    assert len(caplog.records) == 1
    loop.run()
    for watch in watches:
        watch.change(20.0, 2.0)
        watch.holds_from(20.0, 0.0)
    now = 20.0
    while now < 25:
        now = ward.look(now)
    assert len(caplog.records) == 2
    assert "Lock 'a', Lock 'b' ends" in caplog.text or "Lock 'b', Lock 'a' ends" in caplog.text


@pytest.mark.usefixtures("written")
def test_many_leases_are_counted_and_not_listed(enter, caplog) -> None:
    walk(enter(*(Watch(f"{number}", 2.0) for number in range(50))), 2)
    assert "and 45 more ends in" in caplog.text


def test_a_thread_that_comes_late_gives_the_loop_half_a_margin(enter, loop: Loop, caplog) -> None:
    ward = enter(Watch("a", 2.0))
    again = ward.look(60.0)  # as after SIGSTOP
    assert again == pytest.approx(60.05)
    loop.run()
    ward.look(again)
    assert not caplog.records
    assert enter(Watch("a", 2.0)).look(60.0) == pytest.approx(60.05)


@pytest.mark.parametrize("state", ["stopped", "closed"])
def test_a_loop_that_cannot_run_a_body_is_left_alone(enter, loop: Loop, caplog, state: str) -> None:
    ward = enter(Watch("a", 2.0))
    loop.running, loop.closed = False, state == "closed"
    walk(ward, 10)
    assert not caplog.records


@pytest.mark.usefixtures("written")
def test_what_max_hold_ends_is_looked_at_in_time(enter, caplog) -> None:
    walk(enter(Watch("a", 30.0, max_hold=1.0)), 1.0)
    assert "ends in 0.050 s" in caplog.text


def test_a_handler_that_blocks_holds_up_the_thread_for_half_a_margin(enter, caplog) -> None:
    blocked = threading.Event()

    class Blocking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            blocked.wait(5)

    handler = Blocking()
    guard.log.addHandler(handler)
    try:
        before = threading.active_count()
        walk(enter(Watch("a", 0.4)), 0.4)
        assert threading.active_count() == before + 1, "it has gone on, and the writing has not"
    finally:
        blocked.set()
        guard.log.removeHandler(handler)


async def test_short_holds_do_not_wake_the_thread(offline, transport, clock, monkeypatch) -> None:
    monkeypatch.setattr(guard, "the_thread", one := guard._Guard())
    rung: list[float] = []
    monkeypatch.setattr(guard._Guard, "look_now", lambda self: rung.append(clock.now()))
    transport.answer = generous
    session = offline

    async def hold(times: int, ttl: float) -> None:
        for _ in range(times):
            async with Lock(session, "a", ttl=ttl):
                one.looks_at = min(one.looks_at, clock.now() + 15)  # the result of a look at a lease of 30 s

    await hold(100, 30)
    assert len(rung) == 1
    await hold(1, 5)
    assert len(rung) == 2, "a shorter ttl needs an earlier look"
    async with Lock(session, "a", ttl=30) as lease:
        one.looks_at = clock.now() + 15
        await lease.extend(60)
        assert len(rung) == 2
        await lease.extend(3)
        assert len(rung) == 3, "and so does a lease whose end comes nearer"


@pytest.mark.parametrize(("mode", "on_lost"), [(None, "cancel"), ("log", "ignore")])
async def test_only_what_relies_on_being_cancelled_is_guarded(
    transport, make_session, monkeypatch, mode, on_lost
) -> None:
    monkeypatch.setattr(guard._Guard, "look_now", lambda self: pytest.fail("guarded"))
    transport.answer = generous
    async with Lock(make_session(guard=mode), "a", on_lost=on_lost):
        pass
    await (await Lock(make_session(guard="log"), "a").acquire()).release()  # nor what is not entered


@pytest.mark.parametrize("mode", ["no", True, 1, "LOG"])
def test_the_argument_is_checked(mode: Any) -> None:
    from redis.asyncio import Redis

    with pytest.raises(ValueError, match="guard must be 'log', 'exit' or None"):
        Session(Redis(), guard=mode)
