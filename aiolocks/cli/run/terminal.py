"""The terminal of this process, and the process group in its foreground.

The command is a process group of its own, so the signals of keys such as Ctrl-C reach either the command or
the group of this process, never both. If stdin is the terminal, the command is put in the foreground right
after its start; otherwise, or where the command is quicker than that, when it asks for it. A process
of the group of this one may ask for the terminal back: the reader of a pipe, such as `less`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from types import TracebackType
from typing import Self, final

_NOBODY = -1


@final
class Terminal:
    """The controlling terminal while entered; without one, nothing is in its foreground.

    SIGTTOU must be blocked: it stops a background process that changes the foreground.
    """

    __slots__ = ("_file",)

    def __enter__(self) -> Self:
        self._file = _NOBODY
        with suppress(OSError):
            self._file = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file != _NOBODY:
            os.close(self._file)

    @property
    def foreground(self) -> int:
        """The group in the foreground; -1 if there is no terminal, or it was hung up."""
        try:
            return os.tcgetpgrp(self._file)
        except OSError:
            return _NOBODY

    @property
    def is_ours(self) -> bool:
        """Whether this process has it alone, as its session's first process: no shell controls its jobs."""
        return self.foreground != _NOBODY and os.getsid(0) == os.getpid()

    @property
    def is_stdin(self) -> bool:
        """Whether it is the stdin of this process."""
        try:
            return os.tcgetpgrp(0) == self.foreground
        except OSError:
            return False

    def hand(self, group: int, to: int) -> bool:
        """Puts another group in the foreground, in place of `group`; False if that is not there."""
        if self.foreground != group:
            return False
        with suppress(OSError):  # the other one has ended, or the terminal has
            os.tcsetpgrp(self._file, to)
        return True
