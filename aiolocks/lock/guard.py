"""A thread that notices that an event loop stands still, before the leases of the loop's tasks are over.

A body that does not let the loop run keeps its own renewals from being sent, and cannot be cancelled either.
So this is found out from outside of the loop: there is one thread for the whole process, which starts when
the first guarded lease is entered.

Some time before a lease ends (`margin`), the loop must have run a probe that was given to it one more margin
earlier. If it has not, its thread's stack is logged; with `guard="exit"` the process then ends.

Entering a lease costs one comparison. The thread looks at all leases when the first of them may need it, and
after half of the shortest ttl at the latest. So a new lease needs the thread to look sooner only if its ttl
is shorter than the ttls that the thread knows: then the thread is woken. Renewals move ends to later times
only; after `extend`, which may not, the lease is announced again.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from contextvars import Context
from types import FrameType
from typing import TYPE_CHECKING, Final, final

from .._logs import get_logger
from .._tasks import empty_context
from .events import within

if TYPE_CHECKING:
    from .engine import GuardMode
    from .renewal import Watch

GUARD_MODES: Final = ("log", "exit", None)

EXIT_STATUS: Final = 70
"""EX_SOFTWARE of sysexits.h."""

_FOREIGN_CLOCK: Final = 60.0
"""Seconds by which the clock of a loop may differ from `time.monotonic`: uvloop's stands still within a turn.
Where it differs by more, the loop lives by a clock of its own, which no thread can follow."""
_EARLY: Final = 0.001
"""Seconds by which a look may come before its time: no thread is woken to the microsecond."""
_SOON: Final = 0.005
_SWITCH: Final = 0.0002
"""Seconds for which a thread keeps the interpreter while the log is written."""
_NAMED: Final = 5
"""Leases that a message names."""
_NEVER: Final = float("inf")

log = get_logger("aiolocks.guard")


@final
class Ward:
    """The leases of one session, as the thread sees them.

    Invariants:
    - a probe is under way at most once; while it is, the loop has not run since `asked_at`;
    - a stall is told of once: the next time only after the loop has run again.

    Args:
        watches: Of all leases that are held or kept; only watches that are `guarded` count.
        exits: Whether the process is to end when the loop stands still.
    """

    __slots__ = ("__weakref__", "_asked_at", "_exits", "_loop", "_probing", "_thread", "_told", "_watches")

    def __init__(self, loop: asyncio.AbstractEventLoop, watches: set[Watch], *, exits: bool) -> None:
        self._loop = loop
        self._watches = watches
        self._exits = exits
        self._thread = threading.get_ident()
        self._asked_at = -_NEVER
        self._probing = False
        self._told = False

    def enter(self, watch: Watch) -> None:
        """A task has entered that lease, and relies on being cancelled when it is lost."""
        watch.guarded = True
        # Twice the margin is half of the span at most, which is known sooner.
        if (
            watch.deadline - the_thread.looks_at < watch.span / 2
            and watch.deadline - 2 * watch.margin < the_thread.looks_at
        ):
            the_thread.look_now()

    def again(self, watch: Watch) -> None:
        """The end of that lease may be earlier than it was."""
        if watch.guarded:
            self.enter(watch)

    # -- in the thread

    def look(self, now: float) -> float:
        """Does what is due, and says when to look again."""
        if self._loop.is_closed():
            return _NEVER
        again = _NEVER
        blocked: list[tuple[Watch, float]] = []
        for watch in self._watches.copy():  # one step of the interpreter: no other thread comes between
            if not watch.guarded:
                continue
            left, needed = watch.deadline - now, watch.margin
            if left > 2 * needed + _EARLY:
                again = min(again, now + left - 2 * needed, now + watch.span / 2)
            elif left > needed + _EARLY:
                self._probe(watch.deadline - 2 * needed, now)
                again = min(again, now + left - needed)
            elif not self._ran_since(watch.deadline - 2 * needed, now):
                if now - self._asked_at < needed / 2:  # this thread has come late
                    again = min(again, self._asked_at + needed / 2)
                else:
                    if (possession := watch()) is not None and possession.cancellable:
                        blocked.append((watch, left))
                    again = min(again, now + watch.span / 2)
            else:
                again = min(again, now + watch.span / 2)
        if blocked:
            self._tell(blocked, now)
        return again

    def _probe(self, since: float, now: float) -> None:
        """The loop is asked to run something, unless that was done since then."""
        if self._probing or self._asked_at >= since:
            return
        try:
            self._probing = True
            self._loop.call_soon_threadsafe(self._ran, context=empty_context())
            self._asked_at = now
        except RuntimeError:  # it was closed a moment ago
            self._probing = False

    def _ran(self) -> None:
        """The loop: it runs."""
        self._probing = self._told = False

    def _ran_since(self, since: float, now: float) -> bool:
        self._probe(since, now)
        # A loop that was stopped runs no body either.
        return not self._probing or not self._loop.is_running()

    def _tell(self, blocked: list[tuple[Watch, float]], now: float) -> None:
        if self._told:
            return
        self._told = True
        blocked.sort(key=lambda one: one[1])
        watch, left = blocked[0]
        possessions = [possession for one, _ in blocked[:_NAMED] if (possession := one()) is not None]
        context = possessions[0].context if possessions else None
        # There is no other way to the stack of another thread.
        frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        leases = ", ".join(f"{one.label} {one.name!r}" for one in possessions)
        more = f" and {len(blocked) - _NAMED} more" if len(blocked) > _NAMED else ""
        ends = f"ends in {left:.3f} s" if left > 0 else f"ended {-left:.3f} s ago"
        _write_within(
            watch.margin / 2,
            _report,
            context,
            f"the event loop has not run for {now - self._asked_at:.3f} s or more, "
            f"and the lease of {leases}{more} {ends}",
            frames.get(self._thread),
            self._task(),
            exits=self._exits,
        )
        if self._exits:
            os._exit(EXIT_STATUS)

    def _task(self) -> str:
        try:
            task = asyncio.current_task(self._loop)
        except RuntimeError:
            return ""
        return "" if task is None else f" in task {task.get_name()!r}"


def ward(loop: asyncio.AbstractEventLoop, watches: set[Watch], mode: GuardMode) -> Ward | None:
    """The ward of a new session of the loop that runs; None if nothing must or can be guarded."""
    if mode is None or abs(time.monotonic() - loop.time()) > _FOREIGN_CLOCK:
        return None
    made = Ward(loop, watches, exits=mode == "exit")
    the_thread.wards.add(made)
    return made


def _report(context: Context | None, what: str, frame: FrameType | None, task: str, *, exits: bool) -> None:
    stack = "" if frame is None else "".join(traceback.format_stack(frame)).rstrip()
    ending = f"; the process ends now, with status {EXIT_STATUS}" if exits else ""
    inside = within(context)
    inside(log.error, "%s%s. This blocks it%s (most recent call last):\n%s", what, ending, task, stack)


def _write_within(seconds: float, write: Callable[..., None], *what: object, exits: bool) -> None:
    """In a thread of its own: the task that blocks the loop may hold the lock of a log handler.

    Code in Python may block the loop, and gives the interpreter away each 5 ms only, while reading the lines
    of a stack asks for it a dozen times. So it is to give it away more often for as long as this takes.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH)
    try:
        writing = threading.Thread(
            target=write, args=what, kwargs={"exits": exits}, name="aiolocks-guard-log", daemon=True
        )
        writing.start()
        writing.join(seconds)
    except RuntimeError:  # no thread can be started any more
        write(*what, exits=exits)
    finally:
        sys.setswitchinterval(interval)


@final
class _Guard:
    """The thread of this process, which starts with the first guarded lease.

    Invariant: a lease that needs a look before `looks_at` has rung the bell, and so the thread looks at once.
    """

    __slots__ = ("_bell", "_to_start", "looks_at", "wards")

    def __init__(self) -> None:
        self.wards: weakref.WeakSet[Ward] = weakref.WeakSet()
        self.looks_at = _NEVER  # when the thread looks next; infinity also while it looks
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._to_start = threading.Lock()  # taken by the thread that starts ours, and never given back

    def look_now(self) -> None:
        """Called in any thread."""
        self.looks_at = -_NEVER  # other threads need not ring as well
        self._bell.put(None)
        if self._to_start.acquire(blocking=False):
            thread = threading.Thread(target=self._run, name="aiolocks-guard", daemon=True)
            try:
                empty_context().run(thread.start)  # where threads have the context of who starts them
            except RuntimeError as error:
                log.warning("the guard is off, because it cannot start its thread: %s", error)

    def _run(self) -> None:
        while True:
            # In this order: a lease that is entered during the look rings.
            self.looks_at = _NEVER
            looks_at = self._look()
            self.looks_at = looks_at
            try:
                self._bell.get(timeout=self._seconds_until(looks_at))
                while True:
                    self._bell.get_nowait()
            except queue.Empty:
                pass

    @staticmethod
    def _seconds_until(moment: float) -> float | None:
        if moment == _NEVER:
            return None
        return min(max(0.0, moment - time.monotonic()), threading.TIMEOUT_MAX)

    def _look(self) -> float:
        try:
            return min((one.look(time.monotonic()) for one in tuple(self.wards)), default=_NEVER)
        except RuntimeError:  # a session was made in this very moment, by another thread
            return time.monotonic() + _SOON
        except Exception:
            log.exception("the guard has failed, and goes on")
            return time.monotonic() + 1.0


the_thread = _Guard()


def _forked() -> None:
    """The child has none of the threads, and needs new sessions."""
    global the_thread  # noqa: PLW0603 - the one of this process
    the_thread = _Guard()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
