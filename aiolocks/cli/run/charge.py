"""A process in charge of a child: its signals, and the status with which it ends."""

from __future__ import annotations

import asyncio
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable

from ..exits import of_signal
from .child import Child
from .signals import ENDING, Arrival, Signals, stop_self


class InCharge(ABC):
    """One command that waits for its turn, and then looks after a child.

    A signal that arrives while there is no child ends the waiting; one that arrives later is the child's
    affair. There is no await between the two, so none falls between.
    """

    def __init__(self) -> None:
        self._mask: frozenset[int] = frozenset()
        self._task = asyncio.current_task()
        self._child: Child | None = None
        self._ended_by: int | None = None

    async def carry_out(self) -> int:
        """Does it all, and returns the exit status.

        Raises:
            CommandError: The child was not run to its end as was asked for.
        """
        with Signals(self.signalled) as signals:
            self._mask = signals.mask
            try:
                return await self._wait_and_run()
            except asyncio.CancelledError:
                if self._ended_by is None:
                    raise
                return of_signal(self._ended_by)

    @abstractmethod
    async def _wait_and_run(self) -> int:
        """Waits, runs the child, and returns the exit status."""

    def signalled(self, arrival: Arrival) -> None:
        """A signal has come in."""
        if arrival.number == signal.SIGCHLD:
            if self._child is not None:
                self._child.reap()
        elif self._child is not None:
            if not arrival.to_group:
                self._child.signal(arrival.number)
        elif arrival.number in ENDING and self._task is not None:
            self._ended_by = arrival.number
            self._task.cancel()
        if arrival.number == signal.SIGTSTP:
            stop_self()


def run_and_exit(make: Callable[[], InCharge]) -> None:
    """Ends the process with the status that comes of the command, which is made in the event loop."""

    async def carry_out() -> int:
        return await make().carry_out()

    try:
        status = asyncio.run(carry_out())
    except KeyboardInterrupt:  # before the signals are in our hands
        status = 130
    sys.exit(status)
