"""One event loop in a thread of its own, and the threads that have it do their errands.

Each thread that asks has a *deputy*: a task of the loop that does the errands of that thread, one after the
other. So what is said of tasks holds for threads: a `ReentrantLock` belongs to the thread, and a thread that
waits for what it holds is told so.

A signal may raise an exception in the main thread between any two steps, also in this module. So what decides
who has to let go of a lease is done in the loop, and an errand is known to whoever gives it up before it is
sent.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import functools
import importlib
import inspect
import os
import sys
import threading
import time
import types
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar, final

import anyio
from anyio.from_thread import BlockingPortal

from .._logs import get_logger
from .._tasks import empty_context, spawn
from ..errors import DeadlockError, LockTimeoutError, SessionClosedError
from ..lock.again import TakeOverError
from ..lock.events import HOOKS

if TYPE_CHECKING:
    from .leases import BaseLease

# Else the loop imports it when it begins: a process that is forked meanwhile would wait for that for ever.
importlib.import_module("anyio._backends._asyncio")

log: Final = get_logger("aiolocks.sync")

R = TypeVar("R")
T = TypeVar("T")
_ToCall: TypeAlias = "tuple[Callable[[], Any], asyncio.Future[Any]]"


def in_words_of_threads(error: BaseException) -> BaseException:
    """An error of the loop, whose text calls things as the thread knows them."""
    if isinstance(error, (DeadlockError, LockTimeoutError)):
        text = str(error).replace("this task itself", "this thread itself")
        error.args = (text.replace("use a ReentrantLock", "use a `reentrantlock`"),)
    return error


LOOK_EVERY: Final = 0.2
"""Seconds after which a thread that waits looks for exceptions: only signals wake it."""

UNWINDS: Final = 1.0
"""Seconds for which a thread waits until nothing is left of an errand that it gives up."""

_ENDS: Final = 2.0
"""Seconds that the loop has to end its errands, and its thread to end."""

_BEGINS: Final = 0.001
"""Seconds between two looks at whether the loop has begun, once in its life."""

_THREAD: Final = "aiolocks-sync"


async def _awaited(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


@types.coroutine
def _within(context: contextvars.Context, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Runs a coroutine in another context than that of its task: each step of it, and nothing between."""
    try:
        waits_for = context.run(work.send, None)
        while True:
            try:
                answer = yield waits_for
            except BaseException as error:  # noqa: BLE001 - the coroutine decides
                waits_for = context.run(work.throw, error)
            else:
                waits_for = context.run(work.send, answer)
    except StopIteration as end:
        value: T = end.value
        return value


_BLOCKS: Final = 0.05
"""Seconds for which code of the user may keep the loop, without a warning."""


def _tell_blocked(what: str, began: float) -> None:
    if (seconds := time.perf_counter() - began) >= _BLOCKS:
        log.warning(
            "%s has kept the event loop of aiolocks.sync for %.0f ms: meanwhile no lease of this process is "
            "renewed; call what blocks in your own thread",
            what,
            seconds * 1000,
        )


class WatchedListener:
    """A listener of the user, whose methods the loop calls: a warning says so where one of them blocks."""

    def __init__(self, listener: object) -> None:
        self.wants_holders = getattr(listener, "wants_holders", False)
        for name in HOOKS:
            hook = getattr(listener, name, None)
            if hook is not None:
                plain = callable(hook) and not inspect.iscoroutinefunction(hook)
                setattr(self, name, functools.partial(_watched, hook) if plain else hook)


def _watched(hook: Callable[[object], object], event: object) -> object:
    began = time.perf_counter()
    try:
        return hook(event)
    finally:
        _tell_blocked(f"the listener {hook!r}", began)


@types.coroutine
def watched(work: Coroutine[Any, Any, T], what: str) -> Generator[Any, Any, T]:
    """Runs a coroutine, and warns where one of its steps keeps the loop: no lease is renewed meanwhile."""
    value: Any = None
    raised: BaseException | None = None
    while True:
        began = time.perf_counter()
        try:
            waits_for = work.send(value) if raised is None else work.throw(raised)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            _tell_blocked(what, began)
        value = raised = None
        try:
            value = yield waits_for
        except BaseException as error:  # noqa: BLE001 - the coroutine decides
            raised = error


@final
class Errand(Generic[T]):
    """One piece of work that a thread has the loop do.

    Invariants:
    - it ends once, in the loop, and then its thread is woken;
    - what an errand that was given up has brought is undone, once;
    - a function of the user is called in the thread, which waits for nothing else then; if the errand is
      given up, who waits for the function in the loop is told to have it done elsewhere;
    - its work, and what undoes that, run in a copy of the context of the thread that asks.

    Args:
        work: A coroutine function.
        undo: Undoes what the work has given, where no thread takes it. None: there is nothing to undo, and an
            errand that is given up goes on to its end.
    """

    __slots__ = (
        "_context",
        "_error",
        "_given_up",
        "_over",
        "_result",
        "_rung",
        "_taken",
        "_task",
        "_to_call",
        "_undo",
        "_undone",
        "_woken",
        "_work",
        "apart",
        "ended",
    )

    def __init__(
        self, work: Callable[[], Awaitable[T]], *, undo: Callable[[T], Awaitable[object]] | None = None
    ) -> None:
        self._work: Callable[[], Awaitable[T]] | None = work  # None from its end on: it may refer to this
        self._undo = undo
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[Any] | None = None  # that does it, while it does
        self._result: T | None = None
        self._error: BaseException | None = None
        self._taken = False  # by the loop, which will do it
        self._given_up = False
        self._undone = False
        self._to_call: list[_ToCall] = []
        self._rung = False
        self.apart = False
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
        work = self._work
        assert work is not None, "it is done once"
        ending: asyncio.CancelledError | None = None
        if not self._given_up or self._undo is None:
            try:
                self._result = await _within(self._context, _awaited(work))
            except asyncio.CancelledError as error:
                self._error = error
                if not self._given_up:
                    ending = error
                    self._error = SessionClosedError("the event loop of aiolocks.sync has ended")
            except BaseException as error:  # noqa: BLE001 - of the thread that waits
                self._error = error
        self._task = self._work = None
        self.ended = True
        while self._given_up and task.cancelling():
            task.uncancel()
        self._ring()
        if self._given_up:
            await self._undo_it()
        if ending is not None:
            raise ending

    async def calls(self, function: Callable[[], R]) -> R:
        """What a function of the user gives, which the thread calls that waits for this errand.

        Raises:
            TakeOverError: The thread has given up the errand, or does not wait for it any more.
            Exception: What the function raises.
        """
        if self._given_up or self.ended:
            raise TakeOverError
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._to_call.append((function, answer))
        self._ring()
        result: R = await answer
        return result

    def _ring(self) -> None:
        """Wakes the thread, once for all that it has not seen yet."""
        if not self._rung:
            self._rung = True
            self._woken.release()

    def refuse(self) -> None:
        """The loop has ended, and does it no more."""
        if not self.ended:
            self._error = SessionClosedError("the event loop of aiolocks.sync has ended")
            self.ended = True
            self._ring()

    def _left(self, thread: LoopThread) -> None:
        """Its thread has given it up."""
        for _, answer in self._to_call:
            if not answer.done():
                answer.set_exception(TakeOverError())
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
                await _within(self._context, _awaited(functools.partial(self._undo, result)))
        except Exception as error:  # noqa: BLE001 - no thread waits for it any more
            log.warning("what a thread has given up could not be released; its ttl frees it: %s", error)
        finally:
            self._over.release()

    # -- in the thread

    def wait(self, thread: LoopThread) -> None:
        """Waits for its end, and calls what the loop has it call meanwhile.

        Raises:
            BaseException: What was raised in this thread, also by a function that it called, if that is no
                `Exception`.
        """
        called = 0
        while True:
            while not self._woken.acquire(timeout=LOOK_EVERY):
                if thread.ended:
                    self.refuse()
            self._rung = False  # before the look: what comes after that rings again
            while called < len(self._to_call):
                function, answer = self._to_call[called]
                called += 1
                if not answer.done():  # the run that wanted it was cancelled, or has lost its lease
                    self._call(thread, function, answer)
            if self.ended:
                return

    def _call(self, thread: LoopThread, function: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
        try:
            result = function()
        except StopIteration as error:  # as a coroutine does, for no future takes one
            failed: Exception = RuntimeError("the function raised StopIteration")
            failed.__cause__ = error
            thread.tell(functools.partial(_fail, answer, failed))
        except Exception as error:  # noqa: BLE001 - of who waits in the loop
            thread.tell(functools.partial(_fail, answer, error))
        else:
            thread.tell(lambda: None if answer.done() else answer.set_result(result))

    def outcome(self) -> T:
        """What the work has given.

        Raises:
            BaseException: What the work has raised.
        """
        error, self._error = self._error, None
        if error is not None:
            try:
                self._undone = True  # there is nothing to undo
                raise in_words_of_threads(error)
            finally:
                del error
        return self._result  # type: ignore[return-value]  # pyright: ignore[reportReturnType] - it has ended well

    def give_up(self, thread: LoopThread) -> None:
        """No thread takes what it brings: it is cancelled, or undone. Waits for that, but not for long.

        Does nothing for an errand that has raised an error.
        """
        if self._undone:
            return
        self._given_up = True
        if thread.tell(lambda: self._left(thread)):
            self._over.acquire(timeout=UNWINDS)


async def nothing(result: object) -> None:
    """There is nothing to undo: what asks only is cancelled."""


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


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
            # The name of the thread, which is what other processes see of a holder.
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
        tasks: The tasks that work in this loop.
    """

    def __init__(self) -> None:
        self.ended = False
        self.stopping = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self.sessions: set[Closing] = set()
        self.leases: weakref.WeakSet[BaseLease] = weakref.WeakSet()  # only in the loop
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
        """Begins it as a task, which is kept until it has ended.

        In a copy of the running context: of an errand its own, and else an empty one (`tell`).
        """
        task = spawn(self.loop, work, name=name, context=None)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard, context=empty_context())
        return task

    def _end(self) -> None:
        assert self._portal is not None, "it is ready"
        self._stop = spawn(self.loop, self._portal.stop(), name=_THREAD, context=empty_context())

    # -- in the threads that use it

    def start(self) -> None:
        try:
            empty_context().run(self._thread.start)  # where threads have the context of who starts them
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
            loop.call_soon_threadsafe(function, context=empty_context())
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
                errand.apart = True
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

    def have_done(self, errand: Errand[T]) -> T:
        """As `do`, for what gives nothing that must be undone: an exception in this thread gives it up."""
        try:
            return self.do(errand)
        except BaseException:
            errand.give_up(self)
            raise

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
            _see_the_end_of_a_child()
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


def abandon(thread: LoopThread, session: Closing, close: Callable[[], Awaitable[None]]) -> None:
    """That session was collected, in whichever thread: it is closed in the loop. Waits for nothing."""

    async def closed() -> None:
        with contextlib.suppress(Exception):
            await close()
        leave(thread, session)

    thread.tell(lambda: thread.begin(closed()))


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
            tasks = [spawn(thread.loop, lease.let_go(), name=_THREAD, context=None) for lease in left]
            await asyncio.wait(tasks, timeout=UNWINDS)

    with contextlib.suppress(Exception):
        thread.do(Errand(let_go))
    for session in list(thread.sessions):
        with contextlib.suppress(Exception):
            session.close()


def _see_the_end_of_a_child() -> None:
    """Lets go also at the end of a process for which `atexit` does not run.

    A child of `multiprocessing`, and of billiard, which has the same finalizers, runs its finalizers instead.
    A worker of Celery that retires runs no finalizer either, but sends a signal. Each is loaded where there
    is such a process.
    """
    global _seen_for  # noqa: PLW0603 - there is one for each process
    if _seen_for == os.getpid():
        return
    _seen_for = os.getpid()
    if (util := sys.modules.get("multiprocessing.util")) is not None:
        util.Finalize(None, _at_exit, exitpriority=100)
    if (signals := sys.modules.get("celery.signals")) is not None:
        signals.worker_process_shutdown.connect(_retires, weak=False, dispatch_uid=__name__)


def _retires(**_: object) -> None:
    _at_exit()


_seen_for = 0

atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
