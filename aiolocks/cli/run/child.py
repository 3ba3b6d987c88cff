"""The command as a child process: found, started, signalled and ended."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ..exits import NOT_EXECUTABLE, NOT_FOUND, CommandError

_VARIABLE: Final = "AIOLOCKS_FENCING_TOKEN"
_NO_MORE: Final[Mapping[str, str]] = {}
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


def ensure_program(program: str) -> None:
    """A program that cannot be run takes no lock, which would then be kept from machines that have it."""
    if shutil.which(program) is None:
        if os.sep in program and Path(program).exists():
            raise CommandError(f"{program}: {os.strerror(errno.EACCES)}", NOT_EXECUTABLE)
        raise CommandError(f"{program}: command not found", NOT_FOUND)


def started(
    command: Sequence[str], fencing_token: int, mask: frozenset[int], more: Mapping[str, str] = _NO_MORE
) -> Child:
    """The command, running, with the fencing token and more variables in its environment."""
    try:
        return Child(command, os.environ | {_VARIABLE: str(fencing_token), **more}, mask)
    except (FileNotFoundError, ValueError):  # the latter if it is empty
        raise CommandError(f"{command[0]}: command not found", NOT_FOUND) from None
    except OSError as error:
        raise CommandError(f"{command[0]}: {error.strerror}", NOT_EXECUTABLE) from None
