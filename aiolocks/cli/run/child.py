"""The command as a child process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Final

_PYTHONS_OWN: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these, and a child would inherit that."""


class Child:
    """A program, running: in this process's group, at its terminal, with its files.

    Invariant: while `ended` is not done, nobody has reaped it, and so its pid means it and nobody else.

    Args:
        command: Program, looked up on PATH, and arguments.
        environment: Of the child.
        mask: The signals that it starts with blocked.

    Raises:
        OSError: It could not be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], mask: frozenset[int]) -> None:
        self.ended: Final[asyncio.Future[int]] = asyncio.get_running_loop().create_future()
        # Not the subprocess module: it closes the files that a shell has opened for the command (`3<file`),
        # and has no way to set the mask but to run Python between fork and exec, beside a thread.
        self._pid = os.posix_spawnp(
            command[0], list(command), environment, setsigmask=mask, setsigdef=_PYTHONS_OWN
        )

    def reap(self) -> None:
        """On SIGCHLD: takes its exit status, if it is this child that ended. One of a signal is negative."""
        if not self.ended.done():
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self.ended.set_result(os.waitstatus_to_exitcode(status))

    def signal(self, number: int) -> None:
        """Sends it a signal, unless it has ended."""
        if not self.ended.done():
            os.kill(self._pid, number)

    async def end(self, patience: float) -> None:
        """Ends it with SIGTERM, and after `patience` seconds with SIGKILL. Returns when it has ended."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # one that is stopped would never see it
        await asyncio.wait({self.ended}, timeout=patience)
        self.signal(signal.SIGKILL)
        await asyncio.wait({self.ended})
