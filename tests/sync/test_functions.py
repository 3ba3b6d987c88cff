"""Kinds that call functions of the user: in which thread, what an interruption does, what else goes on."""

from __future__ import annotations

import contextvars
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis

import aiolocks
from aiolocks import (
    DuplicateJobError,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    RemoteCallError,
    SessionClosedError,
    StaleFenceError,
)
from aiolocks.sync import Lock, Session, Term, Tick, current_lease, ensure_held
from aiolocks.testing import held
from tests.sync.conftest import wait_until

LONG = 10.0
"""Seconds in which everything is done that a test waits for."""


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


class InterruptedHereError(Exception):
    """As the time limit of a worker."""


@contextmanager
def interrupted(when: Callable[[], object]) -> Iterator[None]:
    """An exception comes into the main thread as soon as that is true; no `Exception`, as Ctrl-C."""

    def interrupt() -> None:
        wait_until(when, LONG)
        time.sleep(0.02)  # it waits, or is in the function
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def raise_it(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, raise_it)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


# -- Unique jobs.


def test_a_job_runs_once_at_a_time_and_keeps_no_other_lock_waiting(locks: Session) -> None:
    """The body of a job blocks its own thread, and not the loop that renews the leases of all."""
    lost: list[object] = []
    with locks.lock("other", ttl=1.5, on_lost=lost.append) as other:
        job = locks.uniquejob("report")
        with job.run(waiting=0) as lease:
            assert lease.kind == "uniquejob"
            with pytest.raises(DuplicateJobError):
                job.run(waiting=0)
            assert job.try_run(waiting=0) is None
            time.sleep(2)
            other.ensure_held()
        with job.run(waiting=1):
            pass
    assert not lost


def test_an_update_that_comes_during_a_run_has_a_run_of_its_own(
    locks: Session, pool: ThreadPoolExecutor
) -> None:
    job, order = locks.uniquejob("report"), []

    def update(number: int) -> None:
        with job.run(waiting=1):
            order.append(number)

    with job.run(waiting=1):
        waiting = pool.submit(update, 1)
        info = locks.inspect("report")
        wait_until(lambda: any(it.waiting for it in locks.inspect("report")), LONG)
        assert info[0].kind == "uniquejob"
        with pytest.raises(DuplicateJobError):
            job.run(waiting=1, blocking_timeout=1)
        order.append(0)
    waiting.result(LONG)
    assert order == [0, 1]


@pytest.mark.parametrize("mode", ["until_executing", "until_executed", "until_and_while_executing"])
def test_a_ticket_is_done_if_its_body_has_not_raised(locks: Session, mode: Any) -> None:
    job = locks.uniquejob("mail:17", ttl=10)
    ticket = job.enqueue(mode)
    assert ticket is not None
    assert job.enqueue(mode, on_conflict="skip") is None
    with pytest.raises(DuplicateJobError):
        job.enqueue(mode)
    with pytest.raises(ValueError, match="no"), job.perform(ticket):
        raise ValueError("no")
    with job.perform(ticket) as lease:
        assert lease.kind == "uniquejob"
    with pytest.raises(DuplicateJobError, match="done"):
        job.perform(ticket)
    assert job.try_perform(ticket) is None


def test_a_ticket_whose_thread_was_interrupted_is_not_done(locks: Session) -> None:
    job = locks.uniquejob("mail:17")
    ticket = job.enqueue("until_executed", ttl=60)
    assert ticket is not None
    inside = threading.Event()
    with pytest.raises(KeyboardInterrupt), interrupted(inside.is_set), job.perform(ticket):
        inside.set()
        time.sleep(LONG)
    lease = job.perform(ticket)
    lease.release(done=False)
    with job.perform(ticket):
        pass


# -- Single flights.


def test_the_thread_that_asks_first_calls_its_function_and_all_get_its_result(
    locks: Session, url: str, pool: ThreadPoolExecutor
) -> None:
    called: list[threading.Thread] = []
    begun, over = threading.Event(), threading.Event()
    context: contextvars.ContextVar[str] = contextvars.ContextVar("context", default="none")

    def compute() -> dict[str, str]:
        called.append(threading.current_thread())
        begun.set()
        over.wait(LONG)
        return {"of": context.get()}

    def ask() -> tuple[object, threading.Thread]:
        context.set("mine")
        return flight.do("price", compute), threading.current_thread()

    flight = locks.singleflight()
    with Session.from_url(url, prefix="shop") as elsewhere:
        first = pool.submit(ask)
        assert begun.wait(LONG)
        others = [pool.submit(ask) for _ in range(3)]
        far = [pool.submit(elsewhere.singleflight().do, "price", compute) for _ in range(2)]
        time.sleep(0.1)
        over.set()
        result, thread = first.result(LONG)
        assert [it.result(LONG)[0] for it in others] == [result] * 3 == [{"of": "mine"}] * 3
        assert [it.result(LONG) for it in far] == [{"of": "mine"}] * 2
    assert called == [thread]


def test_a_function_that_blocks_costs_no_lease(locks: Session) -> None:
    with locks.lock("other", ttl=1.5) as other:
        assert locks.singleflight(ttl=1.5).do("a", lambda: time.sleep(2) or 7) == 7
        other.ensure_held()


@pytest.mark.parametrize("raised", [ValueError("no"), StopIteration("no")])
def test_its_error_is_that_of_all(locks: Session, url: str, raised: Exception) -> None:
    begun, over = threading.Event(), threading.Event()

    def compute() -> None:
        begun.set()
        over.wait(LONG)
        raise raised

    flight = locks.singleflight()
    with Session.from_url(url, prefix="shop") as elsewhere, ThreadPoolExecutor(2) as pool:
        first = pool.submit(flight.do, "a", compute)
        assert begun.wait(LONG)
        far = pool.submit(elsewhere.singleflight().do, "a", compute)
        time.sleep(0.1)
        over.set()
        with pytest.raises((ValueError, RuntimeError), match=r"no|StopIteration"):
            first.result(LONG)
        with pytest.raises(RemoteCallError):
            far.result(LONG)
    assert flight.do("a", lambda: 1) == 1


@pytest.mark.parametrize("where", ["this session", "another session"])
def test_an_interrupted_caller_ends_its_run_and_another_one_takes_over(
    locks: Session, url: str, pool: ThreadPoolExecutor, where: str
) -> None:
    inside = threading.Event()
    asked: list[Future[str]] = []
    here = where == "this session"
    others = locks if here else Session.from_url(url, prefix="shop")

    def compute() -> str:
        if threading.current_thread() is threading.main_thread():
            asked.append(pool.submit(others.singleflight().do, "a", compute))
            wait_until(lambda: here or locks.inspect("a")[0].waiting, LONG)
            time.sleep(0.1)  # in this session it joins without a request
            inside.set()
            time.sleep(LONG)
            return "interrupted"
        return "took over"

    with pytest.raises(KeyboardInterrupt), interrupted(inside.is_set):
        locks.singleflight().do("a", compute)
    assert asked[0].result(LONG) == "took over"
    assert locks.singleflight().do("a", lambda: "anew") == "anew"
    if others is not locks:
        others.close()


def test_an_interrupted_caller_that_only_waits_ends_nothing(locks: Session, pool: ThreadPoolExecutor) -> None:
    flight, begun, over = locks.singleflight(), threading.Event(), threading.Event()

    def compute() -> int:
        begun.set()
        over.wait(LONG)
        return 7

    first = pool.submit(flight.do, "a", compute)
    assert begun.wait(LONG)
    with pytest.raises(KeyboardInterrupt), interrupted(lambda: True):
        flight.do("a", compute)
    over.set()
    assert first.result(LONG) == 7


def test_what_is_kept_and_for_how_long_the_thread_says(locks: Session) -> None:
    threads: list[object] = []

    def seconds(value: int) -> float:
        threads.append(threading.current_thread())
        return 60.0 if value == 1 else 0.0

    flight = locks.singleflight(keep=seconds)
    assert flight.do("a", lambda: 1) == 1
    assert flight.do("a", lambda: 2) == 1
    assert flight.forget("a")
    assert flight.do("a", lambda: 3, keep=60) == 3
    assert flight.do("a", lambda: 4) == 3
    assert flight.do("b", lambda: 5, keep=seconds) == 5
    assert flight.do("b", lambda: 6) == 6
    assert set(threads) == {threading.current_thread()}

    @flight("sum:{a}:{b}", keep=60)
    def add(a: int, b: int) -> int:
        called.append((a, b))
        return a + b

    called: list[tuple[int, int]] = []
    assert [add(1, 2), add(1, b=2), add(2, 2)] == [3, 3, 4]
    assert called == [(1, 2), (2, 2)]

    with pytest.raises(TypeError, match="plain function"):
        flight.do("a", coroutine)


async def coroutine(*_: object) -> None: ...


def test_an_old_value_is_given_at_once_and_replaced_in_a_thread(locks: Session) -> None:
    flight, made = locks.singleflight(keep=0.05, stale=60), []

    def make() -> int:
        made.append(threading.current_thread().name)
        return len(made)

    assert flight.do("a", make) == 1
    time.sleep(0.1)
    assert flight.do("a", make) == 1
    wait_until(lambda: flight.do("a", make) >= 2, LONG)
    assert made[0] == "MainThread"
    assert made[1] == "aiolocks-singleflight-a"


def test_turns(locks: Session, pool: ThreadPoolExecutor) -> None:
    flight, done = locks.singleflight(), []

    def warm(seconds: float) -> bool:
        with flight.turn("warm") as turn:
            if turn.first:
                done.append(turn.fencing_token)
                time.sleep(seconds)
            return turn.first

    first = pool.submit(warm, 0.5)
    wait_until(lambda: done, LONG)
    others = [pool.submit(warm, 0) for _ in range(3)]
    assert [first.result(LONG), *(it.result(LONG) for it in others)] == [True, False, False, False]
    assert len(done) == 1
    with pytest.raises(ValueError, match="no"), flight.turn("warm") as turn:
        assert turn.first
        raise ValueError("no")
    with pytest.raises(RuntimeError, match="entered once"):
        turn.__enter__()
    with pytest.raises(RuntimeError, match="enter a turn first"):
        _ = flight.turn("warm").first


# -- Schedules.


def test_a_schedule_runs_its_job_in_a_thread_of_its_own(locks: Session) -> None:
    ticks: list[tuple[Tick[Any], str]] = []
    schedule = locks.schedule("beat", every=0.2)

    @schedule
    def job(tick: Tick[Any]) -> None:
        tick.lease.ensure_held()
        assert current_lease() is tick.lease
        ticks.append((tick, threading.current_thread().name))

    with schedule:
        wait_until(lambda: len(ticks) >= 2, LONG)
    tick, thread = ticks[0]
    assert (tick.name, thread) == ("beat", "aiolocks-schedule-beat")
    assert ticks[1][0].fencing_token > tick.fencing_token
    assert schedule.trigger()
    assert {it.outcome for it in schedule.history(5)} == {"done"}
    with pytest.raises(RuntimeError, match="has a job already"):
        schedule(job)
    with pytest.raises(RuntimeError, match="was not entered"):
        schedule.__exit__(None, None, None)


def test_a_schedule_that_is_run_ends_with_an_interruption_when_its_job_has_ended(locks: Session) -> None:
    inside, ended = threading.Event(), threading.Event()
    schedule = locks.schedule("beat", every=0.1)

    @schedule
    def job(tick: Tick[Any]) -> None:
        inside.set()
        time.sleep(0.3)
        ended.set()

    with pytest.raises(KeyboardInterrupt), interrupted(inside.is_set):
        schedule.run()
    assert ended.wait(LONG)
    wait_until(lambda: schedule.history(1)[0].ended is not None, LONG)


def test_an_error_of_a_job_is_in_the_history(locks: Session, caplog: pytest.LogCaptureFixture) -> None:
    schedule = locks.schedule("beat", every=3600)

    @schedule
    def job(tick: Tick[Any]) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        schedule.trigger()
    assert schedule.history(1)[0].error.startswith("ValueError")
    with pytest.raises(TypeError, match="plain function"):
        locks.schedule("other", every=1)(coroutine)


def test_a_guard_calls_in_the_thread_that_calls(locks: Session) -> None:
    schedule = locks.schedule("beat", every=2)

    @schedule.guard
    def beat(number: int) -> tuple[int, threading.Thread]:
        return number, threading.current_thread()

    assert beat(7) == (7, threading.current_thread())
    assert beat(8) is None


# -- Leaderships.


def test_a_leader_runs_main_in_a_thread_of_its_own(locks: Session, url: str) -> None:
    leadership = locks.leadership("main", ttl=5, value="here")

    def main(term: Term) -> str:
        term.ensure_held()
        assert current_lease(leadership) is term
        assert (leadership.is_leader, term.value, term.ending) == (True, "here", False)
        term.proclaim("there")
        with Session.from_url(url, prefix="shop") as elsewhere:
            assert elsewhere.leadership("main").try_acquire() is None
            info = elsewhere.leadership("main").leader()
            assert info is not None
            assert info.value == "there"
        return threading.current_thread().name

    assert leadership.run(main) == "aiolocks-leadership-main"
    assert not leadership.is_leader
    assert leadership.leader() is None
    assert leadership.candidates() == ()


def test_a_main_that_raises_is_called_again_as_a_function_says(locks: Session) -> None:
    told: list[str] = []

    def main(term: Term) -> int:
        if len(told) < 1:
            raise ValueError("no")
        return 7

    def again(error: Exception) -> bool:
        told.append(f"{error} in {threading.current_thread().name}")
        return True

    leadership = locks.leadership("main", ttl=5)
    assert leadership.run(main, on_error=again) == 7
    assert told == ["no in aiolocks-leadership-main"]
    told.clear()
    with pytest.raises(ValueError, match="no"):
        leadership.run(main)


def test_a_main_that_has_lost_its_term_ends_before_the_next_one_begins(locks: Session) -> None:
    leadership, terms, together = locks.leadership("main", ttl=5), [], 0

    def main(term: Term) -> str:
        nonlocal together
        together += 1
        terms.append(term.fencing_token)
        assert together == 1
        if len(terms) == 1:
            locks.force_release("main", kind="leadership")
            wait_until(lambda: term.state is aiolocks.LeaseState.LOST, LONG)
            time.sleep(0.3)  # it cannot be cancelled
        together -= 1
        return "done"

    assert leadership.run(main) == "done"
    assert len(terms) == 2
    assert terms == sorted(terms)


def test_a_leader_steps_down(locks: Session) -> None:
    leadership, began = locks.leadership("main", ttl=5), []

    def main(term: Term) -> str:
        began.append(term.fencing_token)
        if len(began) == 1:
            term.step_down()
            assert term.ending
            return "its term was to end"
        return "done"

    assert leadership.run(main) == "done"
    assert len(began) == 2
    with leadership as term:
        term.step_down(cool_down=60)
    assert leadership.try_acquire() is None


def test_a_body_that_loses_its_term_ends_no_deputy(locks: Session) -> None:
    with pytest.raises(LockLostError), locks.leadership("main", ttl=5) as term:
        locks.force_release("main", kind="leadership")
        wait_until(lambda: term.state is aiolocks.LeaseState.LOST, LONG)
    with locks.lock("next"):
        pass


def test_observers(locks: Session) -> None:
    leadership = locks.leadership("main", value=1)
    changes = leadership.observe()
    assert next(changes) is None
    with leadership as term:
        info = next(changes)
        assert info is not None
        assert info.fencing_token == term.fencing_token
        term.step_down()
    assert next(changes) is None
    changes.close()


# -- What is held by nobody.


def test_a_turnstile(locks: Session, pool: ThreadPoolExecutor) -> None:
    turnstile = locks.turnstile("crowd", window=30)
    with turnstile as first:
        with turnstile as second:
            assert (first, second) == (1, 2)
        assert pool.submit(turnstile.enter).result(LONG) == 3
    assert turnstile.enter() == 1
    assert (turnstile.name, turnstile.window) == ("crowd", 30)
    with pytest.raises(RuntimeError, match="was not entered"):
        turnstile.__exit__(None, None, None)


def test_a_register_that_is_fenced(locks: Session, redis: Redis) -> None:
    register = locks.fencedregister("stock")
    with locks.lock("stock") as lease:
        register.write({"screws": 7}, lease.fencing_token)
    assert register.read() == {"screws": 7}
    with pytest.raises(StaleFenceError):
        register.write(b"late", lease.fencing_token - 1)
    redis.delete("shop:fencedregister:{stock}")


def test_limits_at_once_and_weights_that_are_settled(locks: Session) -> None:
    requests, tokens = locks.ratelimit("requests", 10, per=60), locks.ratelimit("tokens", 1000, per=60)
    both = locks.ratelimit("requests", 10, per=60).all_of(requests, tokens)
    decision = both.acquire({requests: 1, tokens: 900})
    assert not both.try_acquire({"requests": 1, tokens: 200})
    assert decision.settle({requests: 1, tokens: 100})
    assert both.peek({requests: 1, tokens: 800})
    with tokens.weighing(50) as weighed:
        assert weighed.allowed

    @tokens.weighing(len)
    def ask(prompt: str) -> str:
        return prompt.upper()

    assert ask("hello") == "HELLO"
    assert 840 <= tokens.peek().remaining <= 860
    refused = both.try_acquire({requests: 1, tokens: 1000})
    with pytest.raises(RuntimeError, match="cannot be settled"):
        refused.settle(1)
    with pytest.raises(TypeError, match="function of the arguments"):
        tokens.weighing(len).__enter__()
    assert locks.ratelimit("mail:{who}", 1, per=60).of(who="a b").name == "mail:a%20b"


# -- Names, looks, what stands outside.


def test_of_names_a_lock_as_its_decorator_does(locks: Session) -> None:
    lock = locks.lock("user:{email}")
    with lock.of(email="ann@shop.example") as lease:
        assert lease.name == "user:ann%40shop.example"

        @lock
        def update(email: str) -> None: ...

        with pytest.raises(LockTimeoutError):
            ThreadPoolExecutor(1).submit(
                lambda: locks.lock("user:{email}", blocking_timeout=0).of(email="ann@shop.example").acquire()
            ).result(LONG)
    assert locks.rwlock("book:{n}").of(n=1).reader.name == "book:1"
    assert locks.multilock(["a:{n}", "b:{n}"]).of(n=1).names == ("a:1", "b:1")


def test_what_operators_ask(locks: Session) -> None:
    assert locks.healthy()
    assert locks.deadlocks() == []
    with locks.lock("a", metadata={"who": "ann"}) as lease:
        (info,) = locks.inspect("a")
        assert info.holders[0].metadata["who"] == "ann"
        lease.annotate({"who": "ben"})
        assert locks.inspect("a")[0].holders[0].metadata["who"] == "ben"
    assert locks.inspect("a") == []
    lease = locks.lock("a").acquire()
    assert [info.name for info in locks.force_release("a", by="ann")] == ["a"]
    wait_until(lambda: lease.state is aiolocks.LeaseState.LOST, LONG)
    with pytest.raises(LockNotOwnedError):
        lease.release()


def test_a_lease_is_handed_over(locks: Session, url: str) -> None:
    lock = locks.lock("a")
    with lock as lease:
        token, handle = lease.fencing_token, lease.detach()
    with Session.from_url(url, prefix="shop") as elsewhere, elsewhere.lock("a").adopt(handle) as adopted:
        assert adopted.fencing_token == token
        assert lock.try_acquire() is None
    with lock:
        pass


def test_a_close_that_releases_nothing(url: str, redis: Redis) -> None:
    session = Session.from_url(url, prefix="shop")
    lease = session.lock("a", ttl=1).acquire()
    session.close(release="none")
    assert redis.exists("shop:lock:{a}")
    with pytest.raises(SessionClosedError):
        lease.release()


def test_the_lease_that_the_code_is_inside_of(locks: Session, pool: ThreadPoolExecutor) -> None:
    with pytest.raises(LookupError):
        current_lease()
    one, two = locks.lock("one"), locks.rwlock("two")
    with one as first, two.reader as second:
        assert current_lease() is second
        assert current_lease(one) is first
        assert current_lease(two) is second
        assert ensure_held("one") is first
        assert ensure_held("two", mode="reader", session=locks) is second
        with pytest.raises(LockNotOwnedError):
            ensure_held("two", mode="writer")
        with pytest.raises(LookupError):
            pool.submit(current_lease).result(LONG)
        copied = contextvars.copy_context()
        assert pool.submit(copied.run, current_lease).result(LONG) is second
        with pytest.raises(TypeError, match=r"takes one of its locks"):
            current_lease("one")  # type: ignore[call-overload]
    with pytest.raises(LookupError):
        current_lease(one)

    @locks.lock("item:{n}")
    def work(n: int) -> str:
        return current_lease().name

    assert work(7) == "item:7"
    acquired = one.acquire()
    with pytest.raises(LookupError):
        current_lease(one)
    with pytest.raises(LockLostError), acquired:
        assert current_lease(one) is acquired
        locks.force_release("one")
        wait_until(lambda: acquired.state is aiolocks.LeaseState.LOST, LONG)
        assert current_lease(one) is acquired
        with pytest.raises(LockLostError):
            ensure_held("one")


def test_a_function_that_needs_a_lock_is_tested_without_a_server() -> None:
    with pytest.raises(LockNotOwnedError):
        ensure_held("account:ann")
    with held("account:ann", fencing_token=7) as lease:
        assert ensure_held("account:ann").fencing_token == 7
        assert current_lease().name == "account:ann"
        lease.lose()
        with pytest.raises(LockLostError):
            ensure_held("account:ann")


# -- What must not block the loop.


def test_who_blocks_the_loop_is_named(url: str, caplog: pytest.LogCaptureFixture) -> None:
    class Slow:
        def on_acquired(self, event: object) -> None:
            time.sleep(0.06)

    async def blocks(session: aiolocks.Session) -> int:
        time.sleep(0.06)  # noqa: ASYNC251 - that is what it is about
        return 7

    async def waits(session: aiolocks.Session) -> int:
        await session.healthy()
        return 8

    caplog.set_level(logging.WARNING, "aiolocks.sync")
    with Session.from_url(url, prefix="shop", listeners=[Slow()]) as session:
        assert session.call(blocks) == 7
        assert session.call(waits) == 8
        with session.lock("a"):
            pass
    told = [it.getMessage() for it in caplog.records if it.name == "aiolocks.sync"]
    assert [it for it in told if "blocks" in it]
    assert [it for it in told if "on_acquired" in it]
    assert not [it for it in told if "waits" in it]
    with pytest.raises(TypeError, match="must be a plain method"):
        Session.from_url(url, listeners=[Listener()])


class Listener:
    async def on_acquired(self, event: object) -> None: ...


def typed(locks: Session) -> None:
    """What type checkers see."""
    lock: Lock[aiolocks.sync.Lease] = locks.lock("a")
    result: int = locks.singleflight().do("a", lambda: 1)
    ticket: str | None = locks.uniquejob("a").enqueue("until_executed")
    with lock as lease, locks.leadership("a") as term:
        token: int = lease.fencing_token + result
        value: object = (term.value, token, ticket)
        del value
