"""The means by which nothing outlives this process: a private directory and a watcher.

The watcher is a few lines of shell that wait at the reading end of a pipe, the lifeline, whose writing end
this process alone keeps open; its forks close theirs. However this process ends, SIGKILL included, the kernel
closes the lifeline; then the watcher kills whoever is registered and removes the directory. An orderly end
takes the same way, so the one for a crash is walked every time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SUN_PATH_MAX = 103
"""Bytes that the path of a unix socket may have everywhere: macOS has room for 104 with the closing NUL."""

SOCKET_NAME = "server.sock"

# Each line names the process group to kill from now on, an empty one none. The second try is for a server
# that, killed a moment ago, was still creating a file while its directory was being removed.
WATCH = """
pid=
while read -r line; do pid=$line; done
[ -z "$pid" ] || kill -9 "-$pid"
rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }
"""

# The process registers itself, and only then becomes the command: at no moment does it run unknown. It is the
# leader of a group, to which a server belongs that the command starts, if that is a script.
REGISTER = 'echo $$ >&0; exec "$@" </dev/null'


class Lifeline:
    """A directory with mode 0700, and the promise that it and the child process end with this process.

    Forks of this process let go of it: the workers of a pool outlive a parent that is killed.
    """

    __slots__ = ("__weakref__", "_pipe", "_watcher", "directory")

    def __init__(self) -> None:
        self.directory = private_directory()
        # Neither end is inheritable: no other child of this process keeps the lifeline open by accident.
        reading, writing = os.pipe()
        # As a file object it is closed when it is forgotten and collected, with a ResourceWarning as any
        # file.
        self._pipe = os.fdopen(writing, "wb", buffering=0)
        try:
            self._watcher = subprocess.Popen(
                ["/bin/sh", "-c", WATCH, "aiolocks-watcher", str(self.directory)],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            self._pipe.close()
            self.directory.rmdir()
            raise
        finally:
            os.close(reading)
        _LIFELINES.add(self)

    @property
    def socket(self) -> Path:
        """The path of a unix socket in the directory: the one path that is sure not to be too long."""
        return self.directory / SOCKET_NAME

    def spawn(self, command: Sequence[str], *, log: Path) -> subprocess.Popen[bytes]:
        """Starts the one registered process, in a session of its own: Ctrl-C reaches its users, not it.

        Args:
            command: Path of a program, and its arguments.
            log: File that what it prints is appended to.
        """
        with log.open("ab") as output:
            return subprocess.Popen(
                ["/bin/sh", "-c", REGISTER, "aiolocks-server", *command],
                stdin=self._pipe,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                start_new_session=True,
            )

    def forget(self) -> None:
        """Takes the process off the register: once it has been reaped, its pid may be somebody else's."""
        with contextlib.suppress(BrokenPipeError):  # somebody killed the watcher
            self._pipe.write(b"\n")

    def let_go(self) -> None:
        """In a fork of the process that made it: closes the copy of the writing end."""
        self._pipe.close()

    def cut(self) -> None:
        """Has the watcher do its work, and waits for it: a few milliseconds."""
        _LIFELINES.discard(self)
        self._pipe.close()
        self._watcher.wait()
        shutil.rmtree(self.directory, ignore_errors=True)  # it is gone, unless somebody killed the watcher


_LIFELINES: Final[weakref.WeakSet[Lifeline]] = weakref.WeakSet()


def _let_go() -> None:
    for lifeline in tuple(_LIFELINES):
        lifeline.let_go()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_let_go)


def private_directory() -> Path:
    """Makes a directory for this user alone, its path short enough for a unix socket inside."""
    directory = Path(tempfile.mkdtemp(prefix="aiolocks-"))
    if len(os.fsencode(directory / SOCKET_NAME)) > SUN_PATH_MAX:
        directory.rmdir()
        directory = Path(tempfile.mkdtemp(prefix="aiolocks-", dir="/tmp"))
    return directory
