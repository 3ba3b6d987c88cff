"""Exceptions that come into a thread while it waits, works, or is between two steps, leave nothing held."""

from __future__ import annotations

import ctypes
import dis
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from redis import Redis

import aiolocks.sync
from aiolocks import LeaseState, LockTimeoutError
from aiolocks.sync import Lease, Lock, Session
from aiolocks.sync.loopthread import LoopThread
from tests.sync.conftest import held, wait_until
from tests.sync.programs import run, start

PACKAGE = str(Path(aiolocks.sync.__file__).parent)


class SoftTimeLimit(BaseException):
    """As a worker of Celery or RQ raises it."""


@contextmanager
def raising(after: float, error: type[BaseException] = SoftTimeLimit) -> Iterator[None]:
    """A signal raises it in this thread after some seconds."""

    def handler(*_: object) -> None:
        raise error

    before = signal.signal(signal.SIGUSR1, handler)
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        yield
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


ONE: dict[str, Callable[[Session], Lock[Lease]]] = {
    "lock": lambda locks: locks.lock("it"),
    "fairlock": lambda locks: locks.fairlock("it"),
    "semaphore": lambda locks: locks.semaphore("it", 1, fair=True),
}


@pytest.mark.thin
@pytest.mark.parametrize("kind", ["lock", "fairlock", "semaphore"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SoftTimeLimit, ValueError])
@pytest.mark.parametrize("enters", [False, True])
def test_while_it_waits(
    locks: Session, url: str, redis: Redis, kind: str, error: type[BaseException], enters: bool
) -> None:
    lock = ONE[kind](locks)
    with Session.from_url(url, prefix="shop") as other, ONE[kind](other):
        before = held(redis)
        with raising(0.15, error), pytest.raises(error):
            if enters:
                lock.__enter__()
            else:
                lock.acquire()
        assert locks.statistics().waiters == 0  # at once
        wait_until(lambda: held(redis) == before)  # nor does its place in the queue stay
    with ONE[kind](locks).acquire(blocking_timeout=1):
        pass


def test_while_the_server_is_silent(locks: Session, url: str, redis: Redis) -> None:
    lock = locks.lock("it")
    with lock:
        pass
    redis.client_pause(3000)
    began = time.monotonic()
    with raising(0.1), pytest.raises(SoftTimeLimit):
        lock.acquire()
    assert time.monotonic() - began < 2.8
    wait_until(lambda: not held(redis))


def test_while_the_body_works(locks: Session, redis: Redis) -> None:
    with raising(0.1), pytest.raises(SoftTimeLimit), locks.lock("it") as lease:
        time.sleep(5)
    assert not held(redis)
    assert lease.remaining() == 0


def test_while_the_release_waits(locks: Session, redis: Redis) -> None:
    with raising(0.1), pytest.raises(SoftTimeLimit):
        with locks.lock("it"):
            redis.client_pause(300)
    wait_until(lambda: not held(redis))


def test_a_thread_that_is_not_the_main_one(locks: Session, redis: Redis) -> None:
    """As RQ's time limit does it where there are no signals."""
    ended: list[BaseException] = []

    def waits() -> None:
        try:
            locks.lock("it").acquire()
        except SoftTimeLimit as error:
            ended.append(error)

    with locks.lock("it"):
        thread = threading.Thread(target=waits)
        thread.start()
        wait_until(lambda: locks.statistics().waiters == 1)
        ident = ctypes.c_ulong(thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SoftTimeLimit))
        thread.join(3)
        assert ended
    assert not held(redis)


def test_the_handler_of_a_signal_may_use_locks(locks: Session) -> None:
    """While the very thread waits: it would wait for itself."""
    seen: list[object] = []

    def handler(*_: object) -> None:
        began = time.monotonic()
        with locks.lock("other") as lease:
            seen.append(lease.owned())
        seen.append(time.monotonic() - began < 5)

    before = signal.signal(signal.SIGUSR1, handler)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        with locks.lock("it"):
            timer.start()
            with pytest.raises(LockTimeoutError):
                locks.lock("it").acquire(blocking_timeout=1)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert seen == [True, True]


# -- between any two steps


LOOKS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "BEFORE_WITH"}


class Interrupted(BaseException):
    pass


@contextmanager
def interrupted_at(step: int) -> Iterator[list[int]]:
    """Raises at the step of the code of aiolocks.sync that has this number, in this thread alone.

    A step is where Python looks for signals: a function begins, a call has returned, a loop goes round.
    """
    taken, called = [0], {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        # What is raised in a `__del__` is not for the thread; the ttl frees such a lease.
        if not frame.f_code.co_filename.startswith(PACKAGE) or frame.f_code.co_name == "__del__":
            return None
        frame.f_trace_opcodes = True
        if event == "call" or (event == "opcode" and called.get(frame)):
            taken[0] += 1
            if taken[0] == step:
                raise Interrupted
        if event == "opcode":
            called[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]] in LOOKS
        else:  # a call that has raised looks for none
            called.pop(frame, None)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield taken
    finally:
        sys.settrace(before)


def acquires_and_releases(locks: Session) -> None:
    locks.lock("it").acquire().release()


def enters(locks: Session) -> None:
    with locks.lock("it"):
        pass


def enters_the_lease(locks: Session) -> None:
    with locks.lock("it").acquire():
        pass


def tries(locks: Session) -> None:
    lease = locks.lock("it").try_acquire()
    assert lease is not None
    lease.release()


def is_decorated(locks: Session) -> None:
    locks.lock("it")(lambda: None)()


def upgrades(locks: Session) -> None:
    with locks.rwlock("it").upgradable as lease, lease.upgrade():
        pass


USES = [acquires_and_releases, enters, enters_the_lease, tries, is_decorated, upgrades]
SHARES = 3


@pytest.mark.filterwarnings("ignore:.* was never released:ResourceWarning")
@pytest.mark.parametrize(
    "share", [0, *(pytest.param(number, marks=pytest.mark.more) for number in range(1, SHARES))]
)
@pytest.mark.parametrize("use", USES)
def test_at_each_step(locks: Session, redis: Redis, use: Callable[[Session], None], share: int) -> None:
    """Any signal comes at one of them. Every step of the code in this thread, one after the other.

    One share takes each third step. Most of the code is that of several uses, each of which begins with
    another step, so that a single share stops nearly everywhere.
    """
    use(locks)
    with interrupted_at(0) as taken:
        use(locks)
    steps = taken[0]
    assert steps > 30
    survived = 0
    tried = range(1 + (share + USES.index(use)) % SHARES, steps + 1, SHARES)
    for step in tried:
        try:
            with interrupted_at(step):
                use(locks)
            survived += 1
        except Interrupted:
            pass
        if held(redis):
            gc.collect(1)  # the young ones, of this step; all of them take longer than the step
            if held(redis):
                gc.collect()
            wait_until(lambda: not held(redis), within=2)
    assert survived < len(tried) / 10
    use(locks)  # and it is as good as new


# -- ends of programs


def test_ctrl_c_in_a_script(url: str, redis: Redis) -> None:
    with Session.from_url(url, prefix="shop") as other, other.lock("it"):
        process = start(
            """
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
            say("ready")
            with locks.lock("mine"):
                locks.lock("it").acquire()
            """,
            url,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        wait_until(lambda: any("bell" in key for key in held(redis)))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=40)
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert "mine" not in " ".join(held(redis))
        assert not any("bell" in key for key in held(redis))


def test_what_is_held_at_the_end_of_a_program_is_released(url: str, redis: Redis) -> None:
    run(
        """
        lease = locks.lock("it").acquire()
        upgradable = locks.rwlock("it").upgradable.acquire()
        writer = upgradable.upgrade()
        kept = []
        threading.Thread(target=lambda: kept.append(locks.lock("of-a-thread").acquire())).start()
        time.sleep(0.2)
        """,
        url,
    )
    assert not held(redis)


def test_what_a_daemon_thread_holds_at_the_end_of_a_program_is_left_to_the_ttl(
    url: str, redis: Redis
) -> None:
    run(
        """
        def works():
            with locks.lock("it", ttl=5):
                say("works")
                time.sleep(60)
        threading.Thread(target=works, daemon=True).start()
        while not locks.statistics().leases_held:
            time.sleep(0.01)
        """,
        url,
    )
    assert held(redis) == ["shop:lock:{it}"]
    wait_until(lambda: not held(redis), within=15)


BODY = "with locks.lock('body', ttl=4): time.sleep(60)"


@pytest.mark.parametrize("inside", ["time.sleep(60)", "locks.lock('taken').acquire()", BODY])
@pytest.mark.parametrize("close", ["locks.close()", "pass"])
def test_a_handler_of_sigterm_may_close_the_session_or_only_end_the_program(
    locks: Session, url: str, redis: Redis, inside: str, close: str
) -> None:
    """Whatever the main thread does at that moment; a session that is closed gives back no lock of a body."""
    with locks.lock("taken", ttl=30):
        process = start(
            f"""
            def stop(*_):
                {close}
                say("ends")
                sys.exit(0)
            signal.signal(signal.SIGTERM, stop)
            for _ in range(3):
                with locks.lock("kept", ttl=30, cache=8):
                    pass
            say("ready")
            {inside}
            """,
            url,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if "locks" in inside:  # it holds, or waits
            wait_until(lambda: any("body" in key or "bell" in key for key in held(redis)), within=10)
        else:
            time.sleep(0.1)
        process.terminate()
        printed, _ = process.communicate(timeout=40)
        assert printed == "ends\n"
        stays = {"shop:lock:{body}"} if (inside, close) == (BODY, "locks.close()") else set()
        assert set(held(redis)) == {"shop:lock:{taken}", *stays}
        wait_until(lambda: held(redis) == ["shop:lock:{taken}"], within=15)


def test_an_exit_without_clean_up_is_left_to_the_ttl(url: str, redis: Redis) -> None:
    run('lease = locks.lock("it", ttl=0.5).acquire(); os._exit(3)', url, code=3)
    wait_until(lambda: not held(redis), within=2)


@pytest.mark.parametrize("faster", ["the thread", "the loop"])
def test_a_lease_that_nobody_refers_to_is_released_with_a_warning(
    locks: Session, redis: Redis, monkeypatch: pytest.MonkeyPatch, faster: str
) -> None:
    lease: Any = locks.lock("it").acquire()
    if faster == "the loop":
        inner, tell = lease._lease, LoopThread.tell

        def told(thread: LoopThread, step: Any) -> bool:
            is_told = tell(thread, step)
            wait_until(lambda: inner.state is LeaseState.RELEASED)
            return is_told

        monkeypatch.setattr(LoopThread, "tell", told)
    with pytest.warns(ResourceWarning, match=r"<sync Lease lock 'it' HELD .*> was never released"):
        del lease
    wait_until(lambda: not held(redis))


def test_a_release_that_is_interrupted_before_it_is_sent_is_sent(locks: Session, redis: Redis) -> None:
    lease = locks.lock("it").acquire()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is LoopThread.do.__code__:
            raise Interrupted

    before = sys.gettrace()
    sys.settrace(trace)
    with pytest.raises(Interrupted):
        lease.release()
    sys.settrace(before)
    assert not held(redis)
    assert lease.remaining() == 0


@pytest.mark.filterwarnings("ignore:.* was never released:ResourceWarning")
def test_an_exception_at_the_first_step_of_the_end(locks: Session, redis: Redis) -> None:
    """Nothing in Python comes before that step. What the block holds goes with the lock object."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is Lock.__exit__.__code__:
            raise Interrupted

    lock: Any = locks.lock("it")
    before = sys.gettrace()
    with pytest.raises(Interrupted):
        with lock:
            sys.settrace(trace)
    sys.settrace(before)
    assert held(redis)
    del lock
    gc.collect()
    wait_until(lambda: not held(redis))
