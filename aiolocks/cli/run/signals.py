"""The signals that reach this process, and whether they reached its child by themselves.

Child and parent share a process group, so that the child may read the terminal and a shell's job control
holds for both. A signal from the terminal, Ctrl-C say, then reaches both at once, and must not be passed on;
a signal that another process sends to this one must be. Only the kernel can tell them apart, and it tells
those who wait for a signal (`sigwaitinfo`), not those who handle it. So the signals are blocked, and a thread
waits.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

_TYPED: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT})
ENDING: Final = _TYPED | {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}
"""End a process that does nothing about them."""
_OTHERS: Final = frozenset({signal.SIGTSTP, signal.SIGWINCH, signal.SIGCONT})


@dataclass(frozen=True, slots=True)
class Arrival:
    """One signal.

    Attributes:
        number: Which.
        to_group: The terminal made it, for all of the foreground's processes.
    """

    number: int
    to_group: bool


class Signals:
    """While entered, gives each signal that can be passed on, and SIGCHLD, to one function in the event loop.

    To be entered before the process has a second thread: each inherits what is blocked from its maker.

    Args:
        arrived: Is called with each.

    Attributes:
        mask: The signals that were blocked before: a child must start with them.
    """

    def __init__(self, arrived: Callable[[Arrival], None]) -> None:
        self._arrived = arrived
        # One that is ignored stays so, for the child too: that is how `nohup` works.
        self._watched = frozenset(
            number for number in ENDING | _OTHERS if signal.getsignal(number) is not signal.SIG_IGN
        ) | {signal.SIGCHLD}
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._watch, name="aiolocks-signals", daemon=True)
        self._over = False
        self.mask: frozenset[int] = frozenset()

    def __enter__(self) -> Self:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, no child leaves its status
        self.mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, self._watched))
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over = True
        assert self._thread.ident is not None
        signal.pthread_kill(self._thread.ident, signal.SIGCHLD)
        self._thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def _watch(self) -> None:
        while True:
            arrival = _next(self._watched)
            if self._over:
                return
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._arrived, arrival)


def stop_self() -> None:
    """Stops this process as SIGTSTP does those who do not block it, until SIGCONT.

    Not by SIGSTOP: that would stop it also where no shell is there to continue it.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    signal.raise_signal(signal.SIGTSTP)  # for this thread: the one that waits does not get it
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})


def _next(watched: frozenset[int]) -> Arrival:
    if sys.platform == "darwin":
        # There the kernel does not tell: what can be typed was typed, if it could be.
        number = signal.sigwait(watched)
        return Arrival(number, to_group=number in _TYPED | _OTHERS and _in_foreground())
    info = signal.sigwaitinfo(watched)
    return Arrival(info.si_signo, to_group=info.si_code > 0)  # 0 and less: sent by a process


def _in_foreground() -> bool:
    try:
        with open("/dev/tty", "rb") as terminal:  # noqa: PTH123 - nothing of a path is needed
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
