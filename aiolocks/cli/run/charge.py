"""A process in charge of a child: its signals, the terminal, and the status with which it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager

from ..exits import of_signal
from .child import Child, adopt_orphans
from .signals import ENDING, STOPPING, Signals, stop_self
from .terminal import Terminal
from .waiting import named

_READS = (signal.SIGTTIN, signal.SIGTTOU)


class InCharge(ABC):
    """One command that waits for its turn, and then looks after a child.

    A signal that arrives while there is no child ends the waiting; one that arrives later is the child's
    affair. There is no await between the two, so none falls between.

    Attributes:
        typed: The signal that was typed on the terminal, if one has ended the child.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._mask: frozenset[int] = frozenset()
        self._task = asyncio.current_task()
        self._child: Child | None = None
        self._ended_by: int | None = None
        self._terminal = Terminal()
        self.typed: int | None = None

    async def carry_out(self) -> int:
        """Does it all, and returns the exit status.

        Raises:
            CommandError: The child was not run to its end as was asked for.
        """
        adopt_orphans()
        with self._terminal:
            if self._terminal.is_ours:
                # No shell could continue what Ctrl-Z stops. The command inherits this.
                signal.signal(signal.SIGTSTP, signal.SIG_IGN)
            with Signals(self.signalled) as signals:
                self._mask = signals.mask
                try:
                    with named(self._name):
                        return await self._wait_and_run()
                except asyncio.CancelledError:
                    if self._ended_by is None:
                        raise
                    return of_signal(self._ended_by)

    @abstractmethod
    async def _wait_and_run(self) -> int:
        """Waits, runs the child, and returns the exit status."""

    @contextmanager
    def _in_charge_of(self, child: Child) -> Generator[None]:
        """The child has the terminal, gets the signals, and does not outlive this scope, whatever happens."""
        self._child = child
        self._lend_terminal(child)
        try:
            yield
        finally:
            child.kill()
            if self._terminal.hand(child.group, os.getpgrp()) and child.ended.done():
                self.typed = child.typed

    def signalled(self, number: int) -> None:
        """A signal has come in."""
        child = self._child
        if child is None:
            if number in ENDING and self._task is not None:
                self._ended_by = number
                self._task.cancel()
            elif number in STOPPING:
                stop_self(number)
        elif number == signal.SIGCHLD:
            if (stopped_by := child.reap()) is not None:
                self._child_stopped(child, stopped_by)
        elif number == signal.SIGCONT:
            self._continue(child)
        elif number in STOPPING:
            if number in _READS and self._terminal.hand(child.group, os.getpgrp()):
                os.kill(0, signal.SIGCONT)  # for a process beside this one: the reader of a pipe
            else:
                child.signal(number)
                stop_self(number)
                if number == signal.SIGTSTP:
                    self._continue(child)  # no SIGCONT comes where there is no shell, and nothing has stopped
        else:
            child.signal(number)

    def _continue(self, child: Child) -> None:
        self._lend_terminal(child)
        child.signal(signal.SIGCONT)

    def _child_stopped(self, child: Child, number: int) -> None:
        """Stops the job of the shell too, unless the command can have the terminal that it wants.

        A command that another process has stopped, and that does not have the terminal, stays as it is.
        """
        foreground = self._terminal.foreground
        if number in _READS and self._terminal.hand(os.getpgrp(), child.group):
            child.signal(signal.SIGCONT)
        elif foreground == child.group or (foreground > 0 and number in _READS):
            os.kill(0, number if number in STOPPING else signal.SIGTSTP)

    def _lend_terminal(self, child: Child) -> None:
        if self._terminal.is_stdin:
            self._terminal.hand(os.getpgrp(), child.group)


def run_and_exit(make: Callable[[], InCharge]) -> None:
    """Ends the process with the status that comes of the command, which is made in the event loop."""
    typed: int | None = None

    async def carry_out() -> int:
        nonlocal typed
        command = make()
        try:
            return await command.carry_out()
        finally:
            typed = command.typed

    try:
        status = asyncio.run(carry_out())
    except KeyboardInterrupt:  # before the signals are in our hands
        status = 130
    if typed is not None:
        # All processes of the foreground would have got it, such as the script that waits for this one.
        signal.signal(typed, signal.SIG_IGN)
        os.kill(0, typed)
    sys.exit(status)
