"""One event loop in a thread of its own, and the threads that have it do their errands.

Each thread that asks has a *deputy*: a task of the loop that does the errands of that thread, one after the
other. So what is said of tasks holds for threads: a `ReentrantLock` belongs to the thread, and a thread that
waits for what it holds is told so.

A signal may raise an exception in the main thread between any two steps, also in here. So what decides who
has to let go of a lease is done in the loop, and an errand is known to whoever gives it up before it is sent.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, Protocol, Self, TypeVar, final

import anyio
from anyio.from_thread import BlockingPortal

from ..errors import SessionClosedError

# Else the loop imports it when it begins: a process that is forked meanwhile would wait for that for ever.
importlib.import_module("anyio._backends._asyncio")

log: Final = logging.getLogger("aiolocks.sync")

T = TypeVar("T")

LOOK_EVERY: Final = 0.2
"""Seconds after which a thread that waits looks for exceptions: only those of signals wake it."""

UNWINDS: Final = 1.0
"""Seconds for which a thread waits until nothing is left of an errand that it gives up."""

_ENDS: Final = 2.0
"""Seconds that the loop has to end its errands, and its thread to end."""

_BEGINS: Final = 0.001
"""Seconds between two looks at whether the loop has begun, once in its life."""

_THREAD: Final = "aiolocks-sync"


@final
class Errand(Generic[T]):
    """One piece of work that a thread has the loop do.

    Invariants:
    - it ends once, in the loop, and then its thread is woken;
    - what an errand that was given up has brought is undone, once.

    Args:
        work: A coroutine function.
        undo: Undoes what the work has given, where nobody takes it. None: there is nothing to undo, and an
            errand that is given up goes on to its end.
    """

    __slots__ = (
        "_error",
        "_given_up",
        "_over",
        "_result",
        "_taken",
        "_task",
        "_undo",
        "_undone",
        "_woken",
        "_work",
        "ended",
    )

    def __init__(
        self, work: Callable[[], Awaitable[T]], *, undo: Callable[[T], Awaitable[object]] | None = None
    ) -> None:
        self._work = work
        self._undo = undo
        self._task: asyncio.Task[Any] | None = None  # that does it, while it does
        self._result: T | None = None
        self._error: BaseException | None = None
        self._taken = False  # by the loop, which will do it
        self._given_up = False
        self._undone = False
        self.ended = False
        # Bare locks: a signal between the steps of a `Condition` can leave it in no order.
        self._woken, self._over = threading.Lock(), threading.Lock()
        self._woken.acquire()
        self._over.acquire()

    # -- in the loop

    def taken(self) -> Self:
        """It will be done."""
        self._taken = True
        return self

    async def done(self) -> None:
        """Does it. Never raises but where the loop ends."""
        task = self._task = asyncio.current_task()
        assert task is not None
        ending: asyncio.CancelledError | None = None
        if not self._given_up or self._undo is None:
            try:
                self._result = await self._work()
            except asyncio.CancelledError as error:
                self._error = error
                if not self._given_up:
                    ending = error
                    self._error = SessionClosedError("the event loop of aiolocks.sync has ended")
            except BaseException as error:  # noqa: BLE001 - of the thread that waits
                self._error = error
        self._task = None
        self.ended = True
        while self._given_up and task.cancelling():
            task.uncancel()
        self._woken.release()
        if self._given_up:
            await self._undo_it()
        if ending is not None:
            raise ending

    def refuse(self) -> None:
        """The loop has ended, and does it no more."""
        if not self.ended:
            self._error = SessionClosedError("the event loop of aiolocks.sync has ended")
            self.ended = True
            self._woken.release()

    def _left(self, thread: LoopThread) -> None:
        """Its thread has given it up."""
        if self.ended:
            thread.begin(self._undo_it())
        elif not self._taken:  # nor will it be: the thread was interrupted before that
            thread.begin(self.done())
        elif self._task is not None and self._undo is not None:
            self._task.cancel()

    async def _undo_it(self) -> None:
        if self._undone:
            return
        self._undone = True
        result, self._result = self._result, None
        try:
            if result is not None and self._undo is not None:
                await self._undo(result)
        except Exception as error:  # noqa: BLE001 - nobody waits for it any more
            log.warning("what a thread has given up could not be released; its ttl frees it: %s", error)
        finally:
            self._over.release()

    # -- in the thread

    def wait(self, thread: LoopThread) -> None:
        """Waits for its end."""
        while not self._woken.acquire(timeout=LOOK_EVERY):
            if thread.ended:
                self.refuse()

    def outcome(self) -> T:
        """What the work has given.

        Raises:
            BaseException: What the work has raised.
        """
        error, self._error = self._error, None
        if error is not None:
            try:
                self._undone = True  # there is nothing to undo
                raise error
            finally:
                del error
        return self._result  # type: ignore[return-value]  # pyright: ignore[reportReturnType] - it has ended well

    def give_up(self, thread: LoopThread) -> None:
        """Nobody takes what it brings: it is cancelled, or undone. Waits for that, but not for long.

        Does nothing for an errand that has raised an error.
        """
        if self._undone:
            return
        self._given_up = True
        if thread.tell(lambda: self._left(thread)):
            self._over.acquire(timeout=UNWINDS)


@final
class Deputy:
    """The task of the loop that does the errands of one thread.

    Attributes:
        errand: The one for whose end the thread waits.
    """

    __slots__ = ("__weakref__", "_ahead", "_called", "_name", "_task", "errand", "thread")

    def __init__(self, thread: LoopThread) -> None:
        self.thread = thread
        self.errand: Errand[Any] | None = None
        self._name = threading.current_thread().name
        self._ahead: list[Errand[Any]] = []
        self._called: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None

    # -- in the loop

    def take(self, errand: Errand[Any]) -> None:
        if self.thread.stopping:
            errand.refuse()
            return
        self._ahead.append(errand.taken())
        if self._task is None:
            self._called = asyncio.Event()
            # The name of the thread, which is what others see of a holder.
            self._task = self.thread.begin(self._work(self._called), name=self._name)
        assert self._called is not None
        self._called.set()

    def dismiss(self) -> None:
        """Its thread has ended."""
        if self._task is not None:
            self._task.cancel()

    async def _work(self, called: asyncio.Event) -> None:
        try:
            while True:
                await called.wait()
                called.clear()
                while self._ahead:
                    await self._ahead.pop(0).done()
        finally:
            for errand in self._ahead:
                errand.refuse()


@final
class LoopThread:
    """The event loop of a process, in its thread; `current()` gives it.

    Invariants:
    - it serves the sessions that have joined it, and ends with the last of them;
    - whoever waits for an errand is woken, at the latest when it ends.

    Attributes:
        ended: No errand is done any more.
        stopping: No errand is taken any more.
        tasks: The tasks that work here.
    """

    def __init__(self) -> None:
        self.ended = False
        self.stopping = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self.sessions: set[Closing] = set()
        self.leases: weakref.WeakSet[Held] = weakref.WeakSet()  # only in the loop
        self._deputies = threading.local()
        self._pid = os.getpid()
        self._stop: asyncio.Task[None] | None = None
        self._portal: BlockingPortal | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)

    @property
    def of_parent(self) -> bool:
        """Whether it belongs to the process that forked this one."""
        return os.getpid() != self._pid

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "it has begun"
        return self._loop

    # -- in its own thread

    def _run(self) -> None:
        try:
            anyio.run(self._serve, backend="asyncio")
        finally:
            self.stopping = self.ended = True

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with BlockingPortal() as portal:
            self._portal = portal
            if not self.stopping:
                await portal.sleep_until_stopped()
            self.stopping = True
            working = {task for task in self.tasks if task is not asyncio.current_task()}
            for task in working:
                task.cancel()
            if working:
                await asyncio.wait(working, timeout=_ENDS)

    def begin(self, work: Coroutine[Any, Any, None], name: str = _THREAD) -> asyncio.Task[None]:
        """Begins it as a task, which is kept until it has ended."""
        task = self.loop.create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _end(self) -> None:
        assert self._portal is not None, "it is ready"
        self._stop = self.loop.create_task(self._portal.stop())

    # -- in the threads that use it

    def start(self) -> None:
        try:
            self._thread.start()
        except BaseException:
            self.stop()
            raise

    def tell(self, function: Callable[[], object]) -> bool:
        """Has the loop call it soon; False where there is no loop any more."""
        loop = self._loop
        # Asked of the system: of threads that are not there after a fork, the end is told before all else.
        if loop is None or self.ended or self.of_parent:
            return False
        try:
            loop.call_soon_threadsafe(function)
        except RuntimeError:  # it is closed
            return False
        return True

    def do(self, errand: Errand[T]) -> T:
        """Has the loop do it, and waits for it; no event loop runs in this thread, for it would stand still.

        Raises:
            BaseException: What the work has raised, or what was raised in this thread: then the caller gives
                up the errand.
        """
        while self._portal is None and not self.ended:
            time.sleep(_BEGINS)
        deputy = self._deputy()
        apart = deputy.errand is not None
        try:
            if apart:
                # The handler of a signal, while this very thread waits for its deputy.
                sent = self.tell(lambda: self.begin(errand.taken().done()))
            else:
                deputy.errand = errand
                sent = self.tell(lambda: deputy.take(errand))
            if not sent:
                errand.refuse()
            errand.wait(self)
        finally:
            if not apart:
                deputy.errand = None  # which keeps what it has brought
        return errand.outcome()

    def _deputy(self) -> Deputy:
        found: _DeputyOfThread | None = getattr(self._deputies, "mine", None)
        if found is None:
            found = self._deputies.mine = _DeputyOfThread(Deputy(self))
        return found.deputy

    def stop(self) -> None:
        """Ends the loop and its thread; waits for that, but not for long."""
        self.stopping = True
        if self._portal is not None:
            self.tell(self._end)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_ENDS + UNWINDS)


@final
class _DeputyOfThread:
    """Ends the deputy of a thread with that thread."""

    __slots__ = ("deputy",)

    def __init__(self, deputy: Deputy) -> None:
        self.deputy = deputy

    def __del__(self) -> None:
        self.deputy.thread.tell(self.deputy.dismiss)


class Closing(Protocol):
    """A session that a loop serves."""

    def close(self) -> None: ...


class Held(Protocol):
    """A lease that was not let go of yet."""

    @property
    def holder(self) -> threading.Thread: ...

    async def let_go(self) -> None: ...


# -- The one of this process.

_current: LoopThread | None = None
_changing = threading.RLock()  # in C: a signal comes before it or after it
_left_behind: list[object] = []
"""What a parent had. Nothing of it is collected: it would take the parent's connections from its selector."""


def current(session: Closing) -> LoopThread:
    """The loop of this process, begun if there is none, which that session joins."""
    global _current  # noqa: PLW0603 - there is one for each process
    with _changing:
        thread = _current
        if thread is None or thread.stopping or thread.of_parent:
            thread = _current = LoopThread()
            thread.sessions.add(session)
            thread.start()
        thread.sessions.add(session)
        return thread


def leave(thread: LoopThread, session: Closing) -> None:
    """That session needs the loop no more, which ends with the last one."""
    global _current  # noqa: PLW0603 - as above
    with _changing:
        thread.sessions.discard(session)
        if thread.sessions:
            return
        thread.stopping = True
        if _current is thread:
            _current = None
    thread.stop()


def keep(parents: object) -> None:
    """Keeps what the parent process had."""
    _left_behind.append(parents)


def _forked() -> None:
    global _current, _changing
    if _current is not None:
        keep(_current)
    _current, _changing = None, threading.RLock()


def _at_exit() -> None:
    """Lets go of what threads that have ended still hold, and closes the sessions.

    A daemon thread may still run: what it holds is left to the ttl.
    """
    thread = _current
    if thread is None or thread.stopping:
        return

    async def let_go() -> None:
        left = [lease for lease in thread.leases if not (lease.holder.is_alive() and lease.holder.daemon)]
        if left:
            await asyncio.wait([asyncio.ensure_future(lease.let_go()) for lease in left], timeout=UNWINDS)

    with contextlib.suppress(Exception):
        thread.do(Errand(let_go))
    for session in list(thread.sessions):
        with contextlib.suppress(Exception):
            session.close()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
