"""A thread learns that its lease was lost: when it asks, by a call, and at the end of its block."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from redis import Redis

import aiolocks
from aiolocks import LockLostError, LockNotOwnedError
from aiolocks.sync import Session, loopthread
from tests.sync.conftest import wait_until


def lose(locks: Session) -> None:
    locks.call(lambda session: session.force_release("it", by="an operator"))


@pytest.mark.parametrize("by_its_lease", [False, True])
def test_the_block_goes_on_to_its_end_and_raises_there(locks: Session, by_its_lease: bool) -> None:
    ended = []
    lock = locks.lock("it")
    with pytest.raises(LockLostError, match="released by force, by an operator"):
        with lock.acquire() if by_its_lease else lock as lease:
            lose(locks)
            assert lease.remaining() == 0
            with pytest.raises(LockLostError):
                lease.ensure_held()
            assert not lease.owned()
            ended.append(True)
    assert ended


def test_the_exception_of_the_body_wins(locks: Session) -> None:
    with pytest.raises(KeyError) as caught, locks.lock("it"):
        lose(locks)
        raise KeyError
    (note,) = caught.value.__notes__
    assert note.startswith("aiolocks: Lock 'it' was lost: it was released by force")


def test_on_lost_is_called_with_the_error_in_a_thread_of_its_own(locks: Session) -> None:
    told: list[tuple[LockLostError, threading.Thread]] = []
    begun = threading.Event()

    def on_lost(error: LockLostError) -> None:
        told.append((error, threading.current_thread()))
        begun.set()
        time.sleep(1.7)  # it may block: the loop renews other leases meanwhile

    with locks.lock("other", ttl=1.5) as other, pytest.raises(LockLostError):
        with locks.rwlock("it", on_lost=on_lost).writer:
            lose(locks)
            assert begun.wait(5)
            time.sleep(1.7)
            other.ensure_held()
    ((error, thread),) = told
    assert (error.name, thread.daemon) == ("it", True)
    assert thread not in (threading.main_thread(), threading.current_thread())


def test_on_lost_is_not_called_for_what_was_released(locks: Session) -> None:
    told: list[LockLostError] = []
    lock = locks.lock("it", on_lost=told.append, ttl=1.5)
    with lock:
        pass
    lock.acquire().release()
    time.sleep(1.6)
    assert not told


@pytest.mark.parametrize("by", ["release", "exit", "lock"])
def test_nothing_watches_a_lease_that_was_let_go_of(locks: Session, by: str) -> None:
    lock = locks.lock("it", on_lost=print)
    for _ in range(10):
        if by == "release":
            lock.acquire().release()
        else:
            with lock if by == "lock" else lock.acquire():
                pass
    thread = loopthread._current
    assert thread is not None
    wait_until(lambda: len(thread.tasks) <= 2)


def test_on_lost_that_fails_is_logged(locks: Session, caplog: pytest.LogCaptureFixture) -> None:
    def on_lost(error: LockLostError) -> None:
        raise ValueError("of the user")

    lease = locks.lock("it", on_lost=on_lost).acquire()
    lose(locks)
    wait_until(lambda: [one for one in caplog.records if one.name == "aiolocks.sync"])
    (record,) = [one for one in caplog.records if one.name == "aiolocks.sync"]
    assert (record.levelno, record.exc_info is not None) == (logging.ERROR, True)
    with pytest.raises(LockNotOwnedError):
        lease.release()


def test_a_lease_is_renewed_while_the_thread_works(locks: Session) -> None:
    with locks.lock("it", ttl=1.5) as lease:
        end = time.monotonic() + 1.7
        while time.monotonic() < end:  # without ever giving way
            pass
        lease.ensure_held()


def test_a_lease_that_is_not_renewed_ends(locks: Session) -> None:
    told = threading.Event()
    with pytest.raises(LockLostError, match=r"not renewed|auto_renew"):
        with locks.lock("it", ttl=0.8, auto_renew=False, on_lost=lambda error: told.set()):
            assert told.wait(10)


def test_a_block_that_was_released_inside(locks: Session, redis: Redis) -> None:
    with locks.lock("it") as lease:
        lease.release()
        with pytest.raises(LockLostError, match="is not held"):
            lease.ensure_held()
    with pytest.raises(LockLostError, match="is not held"):
        lease.__enter__()
    with locks.lock("it").acquire() as lease, pytest.raises(RuntimeError, match="was entered before"):
        lease.__enter__()
    assert aiolocks.LeaseState.RELEASED is lease.state
