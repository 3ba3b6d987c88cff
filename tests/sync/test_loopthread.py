"""Errands of threads: each ends, is done once, and is undone where nobody takes what it brings."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref

import pytest

from aiolocks import SessionClosedError
from aiolocks.sync import Session, loopthread
from aiolocks.sync.loopthread import Deputy, Errand, LoopThread
from tests.sync.conftest import wait_until
from tests.sync.test_forks import forked
from tests.sync.test_interruptions import SoftTimeLimit, raising


@pytest.fixture
def thread(locks: Session) -> LoopThread:
    """That of the process."""
    with locks.lock("it"):
        found = loopthread._current
    assert found is not None
    return found


class Work:
    """A coroutine function that brings a number, and what becomes of it."""

    def __init__(self, lasts: float = 0.0) -> None:
        self.done = 0
        self.undone: list[int] = []
        self._lasts = lasts

    async def __call__(self) -> int:
        await asyncio.sleep(self._lasts)
        self.done += 1
        return self.done

    async def undo(self, number: int) -> None:
        self.undone.append(number)


def test_an_errand_is_done_once(thread: LoopThread) -> None:
    work = Work()
    assert thread.do(Errand(work, undo=work.undo)) == 1
    assert (work.done, work.undone) == (1, [])


@pytest.mark.parametrize("sent", [False, True])
def test_what_nobody_takes_is_undone_once(thread: LoopThread, sent: bool) -> None:
    work = Work()
    errand = Errand(work, undo=work.undo)
    if sent:
        thread.do(errand)
    for _ in range(2):
        errand.give_up(thread)
    assert (work.done, work.undone) == ((1, [1]) if sent else (0, []))


@pytest.mark.parametrize("sent", [False, True])
def test_what_cannot_be_undone_is_done_to_its_end(thread: LoopThread, sent: bool) -> None:
    """As a release is: also where the thread was interrupted before it was sent."""
    work = Work(0.1)
    errand = Errand(work)
    if sent:
        with raising(0.05), pytest.raises(SoftTimeLimit):
            thread.do(errand)
    errand.give_up(thread)
    assert work.done == 1


def test_an_errand_that_is_given_up_while_it_is_done_is_cancelled(thread: LoopThread) -> None:
    work = Work(20)
    errand = Errand(work, undo=work.undo)
    with raising(0.05), pytest.raises(SoftTimeLimit):
        thread.do(errand)
    errand.give_up(thread)
    assert (work.done, work.undone) == (0, [])
    # Nothing of that is left to the next errand of this thread.
    assert [task.cancelling() for task in thread.tasks if task.get_name() == "MainThread"] == [0]
    assert thread.do(Errand(Work())) == 1


def test_an_errand_ahead_of_which_another_is_done_may_be_given_up(thread: LoopThread) -> None:
    first, second = Work(0.2), Work()
    deputy = thread._deputy()
    errand = Errand(second, undo=second.undo)
    thread.tell(lambda: deputy.take(Errand(first)))
    thread.tell(lambda: deputy.take(errand))
    errand.give_up(thread)
    assert (first.done, second.done, second.undone) == (1, 0, [])


def test_an_errand_of_a_loop_that_has_ended(url: str) -> None:
    thread = LoopThread()
    thread.start()
    errand = Errand(Work())
    assert thread.do(errand) == 1
    thread.stop()
    for use in (
        lambda: thread.do(Errand(Work())),
        lambda: waited(thread, Errand(Work())),
        lambda: taken(thread),
    ):
        with pytest.raises(SessionClosedError, match=r"the event loop of aiolocks\.sync has ended"):
            use()


def waited(thread: LoopThread, errand: Errand[int]) -> int:
    """Of an errand that was sent at the last moment."""
    errand.wait(thread)
    return errand.outcome()


def taken(thread: LoopThread) -> int:
    errand = Errand(Work())
    Deputy(thread).take(errand)
    assert errand.ended
    return errand.outcome()


def test_an_errand_in_the_midst_of_which_the_loop_ends(url: str) -> None:
    thread, ended = LoopThread(), list[BaseException]()
    thread.start()

    def asks() -> None:
        try:
            thread.do(Errand(Work(20)))
        except SessionClosedError as error:
            ended.append(error)

    asking = threading.Thread(target=asks)
    asking.start()
    wait_until(lambda: thread.tasks)
    time.sleep(0.05)
    thread.stop()
    asking.join(2)
    assert len(ended) == 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_nothing_of_the_parent_is_collected_or_used(locks: Session, thread: LoopThread) -> None:
    """It would take the parent's connections from the selector that both have."""
    session = weakref.ref(locks._link.session())
    kept = [session, weakref.ref(thread.loop), weakref.ref(thread)]
    lock, decorated = locks.lock("other"), locks.lock("decorated")(lambda: None)
    with lock:
        decorated()
    engine = locks._link.session()._engine

    def work() -> None:
        del parents[:]
        with lock:
            decorated()
        gc.collect()
        assert all(one() is not None for one in kept)
        of_parent = session()
        assert of_parent is not None
        assert of_parent._engine is engine  # nor used

    parents = [thread]
    del thread
    forked(work)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_while_a_thread_makes_or_ends_the_loop(locks: Session) -> None:
    holds, may_end = threading.Event(), threading.Event()

    def makes() -> None:
        with loopthread._changing:
            holds.set()
            may_end.wait(20)

    making = threading.Thread(target=makes)
    making.start()
    holds.wait(5)

    def work() -> None:
        with locks.lock("of-the-child"):
            pass

    try:
        forked(work)
    finally:
        may_end.set()
        making.join()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_does_not_wake_the_loop_of_its_parent(thread: LoopThread) -> None:
    def work() -> None:
        assert thread.of_parent
        assert not thread.tell(lambda: None)

    forked(work)
    assert not thread.of_parent
