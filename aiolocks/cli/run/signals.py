"""The signals that reach this process.

They are blocked, and a thread waits for them. So SIGTTOU does not stop this process when it hands the
terminal over, or writes to it from the background.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from ..._tasks import empty_context

ENDING: Final = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGALRM,
    }
)
"""End a process that does nothing about them."""
STOPPING: Final = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
"""Stop such a process: Ctrl-Z, and the use of the terminal from the background."""
_OTHERS: Final = frozenset({signal.SIGWINCH, signal.SIGCONT})


class Signals:
    """While entered, gives each signal that can be passed on, and SIGCHLD, to one function in the event loop.

    Must be entered before the process has a second thread: each inherits what is blocked from its maker.

    Args:
        arrived: Is called with each.

    Attributes:
        mask: The signals that were blocked before: a child must start with them.
    """

    def __init__(self, arrived: Callable[[int], None]) -> None:
        self._arrived = arrived
        # One that is ignored stays so, for the child too: that is how `nohup` works.
        self._watched = frozenset(
            number for number in ENDING | STOPPING | _OTHERS if signal.getsignal(number) is not signal.SIG_IGN
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
            number = signal.sigwait(self._watched)
            if self._over:
                return
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._arrived, number, context=empty_context())


def stop_self(number: int) -> None:
    """Stops this process as SIGTSTP, SIGTTIN or SIGTTOU does one that does not block it, until SIGCONT.

    Not by SIGSTOP: that would stop it also where no shell is there to continue it.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    signal.raise_signal(number)  # for this thread: the one that waits does not get it
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
