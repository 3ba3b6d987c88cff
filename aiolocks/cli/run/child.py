"""The command as a child process: found, started, signalled and ended."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..exits import NOT_EXECUTABLE, NOT_FOUND, CommandError, say

_VARIABLE: Final = "AIOLOCKS_FENCING_TOKEN"
_NO_MORE: Final[Mapping[str, str]] = {}
_PYTHONS_OWN: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these, and a child would inherit that."""
_FOR_ALL: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
"""End the whole command; a terminal, too, sends the first three to all processes of a group."""
_FOR_THE_LEADER: Final = frozenset({signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM})
"""Mean what the program says: its children may know nothing of them, and would end."""
_TYPED: Final = _FOR_ALL - {signal.SIGTERM}
PART_OF_GRACE: Final = 0.9
"""The part of its grace after which the command gets KILL."""
_SHELL: Final = 128
"""A shell whose command was ended by signal n ends with this + n."""
_KILLED: Final = 0.5
"""Seconds for which a group that got KILL may still be seen: until its processes are reaped."""
_PR_SET_CHILD_SUBREAPER: Final = 36
_LOOKS: Final = (0.005, 0.1)
"""Seconds between two looks whether a group has ended: at first, and at the most."""


class Child:
    """A program, running: the leader of a process group of its own, with the files of this process.

    All that it starts belongs to its group, unless it moves itself to another one (`setsid`, a daemon, the
    jobs of an interactive shell).

    Invariants:
    - while `ended` is not done, the leader was not reaped, and so its pid means it and no other process;
    - a signal is sent to the group only while the leader is not reaped, or processes of the group were seen a
      moment ago, and so the group's number means it and no other group.

    Args:
        command: Program, looked up on PATH, and arguments.
        environment: Of the child.
        mask: The signals that it starts with blocked.

    Attributes:
        ended: The exit status of the leader; one of a signal is negative.
        group: The number of the group, which is the pid of its leader.

    Raises:
        OSError: It could not be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], mask: frozenset[int]) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: Final[asyncio.Future[int]] = self._loop.create_future()
        self._told_by: int | None = None  # the last signal to all of it that was to end it
        self._over = False  # nothing is sent any more
        # Not the subprocess module: it closes the files that a shell has opened for the command (`3<file`),
        # and has no way to set the mask but to run Python between fork and exec, beside a thread.
        self.group: Final = os.posix_spawnp(
            command[0], list(command), environment, setpgroup=0, setsigmask=mask, setsigdef=_PYTHONS_OWN
        )

    def reap(self) -> int | None:
        """On SIGCHLD: takes the exit status of the leader, or returns the signal that has stopped it."""
        stopped_by = None
        if not self.ended.done():
            pid, status = os.waitpid(self.group, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                stopped_by = os.WSTOPSIG(status)
            elif pid:
                self.ended.set_result(os.waitstatus_to_exitcode(status))
        if self.ended.done() and not self._over:
            # Its orphans have become children of this process.
            with suppress(ChildProcessError):
                while os.waitpid(-self.group, os.WNOHANG)[0]:
                    pass
        return stopped_by

    def signal(self, number: int) -> None:
        """Passes a signal on, unless the command has ended."""
        if number in _FOR_THE_LEADER:
            if not self.ended.done():
                _send(os.kill, self.group, number)
        elif not self._over:
            if number in _FOR_ALL:
                self._told_by = number
            _send(os.killpg, self.group, number)

    @property
    def typed(self) -> int | None:
        """The signal that has ended the leader, if it may have been typed: it was not passed on."""
        number = self._ended_by
        return number if number in (signal.SIGINT, signal.SIGQUIT) and self._told_by is None else None

    @property
    def _ended_by(self) -> int | None:
        """The signal that has ended the leader, or what it ran as a shell."""
        status = self.ended.result()
        if status < 0:
            return -status
        return status - _SHELL if status - _SHELL in _FOR_ALL else None

    async def finished(self, patience: float) -> int:
        """Returns the exit status of the leader, when it has ended.

        A leader that ends by itself leaves behind what it has started in the background. If a signal has
        ended it, or was to end it, all of its group has ended: what is left gets SIGKILL after `patience`
        seconds.
        """
        await asyncio.wait({self.ended})
        ended_by = self._ended_by
        if ended_by is not None or self._told_by is not None:
            # A signal that was typed, or passed on, has reached all. A second one would cut clean-up short.
            if self._told_by is None and ended_by not in _TYPED:
                self.signal(signal.SIGTERM)
                self.signal(signal.SIGCONT)
            await self._emptied(patience)
            self.kill()
            await self._emptied(_KILLED)
        self._over = True
        return self.ended.result()

    async def end(self, patience: float) -> None:
        """Ends all of it with SIGTERM, after `patience` seconds with SIGKILL, and waits for its end."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # one that is stopped would never see it
        await self._emptied(patience)
        self.kill()
        await asyncio.wait({self.ended})
        await self._emptied(_KILLED)
        self._over = True

    def kill(self) -> None:
        """Ends all of it at once, unless it has ended. Synchronous: for errors, which leave no time."""
        self.signal(signal.SIGKILL)
        if not self.ended.done():  # it may have moved itself to another group
            _send(os.kill, self.group, signal.SIGKILL)

    async def _emptied(self, patience: float) -> None:
        """Returns when no process of the group is left, or after `patience` seconds."""
        deadline = self._loop.time() + patience
        pause, longest = _LOOKS
        while self._stands() and (left := deadline - self._loop.time()) > 0:
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, longest)

    def _stands(self) -> bool:
        if not self.ended.done():
            return True
        try:
            os.killpg(self.group, 0)
        except ProcessLookupError:
            self._over = True
        except PermissionError:
            pass
        return not self._over


def adopt_orphans() -> None:
    """Makes orphans of the command children of this process, where the system can.

    The first process of a container, whose children they would be, often reaps none: they would never end.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _send(to: Callable[[int, int], None], target: int, number: int) -> None:
    try:
        to(target, number)
    except ProcessLookupError:
        pass  # it has ended just now
    except PermissionError:
        name = signal.Signals(number).name
        say(f"the command runs as another user, and cannot be sent {name}: send it as that user or as root")


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
