"""How a command ends that cannot do what it was asked: one line on stderr, and a status that says why.

The numbers are as in sysexits.h and in the shells. A wrong command line ends with 2, as with most tools.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from typing import Final, TextIO

from .._visible import in_line

NOT_HELD: Final = 1
"""Of commands that look for a holder: there is none."""
DEADLOCKED: Final = 1
"""Of the one that looks for deadlocks: there is one."""
AMISS: Final = 1
"""Of the one that checks a server: something is wrong with it."""
NO_SERVER: Final = 69
"""EX_UNAVAILABLE: the URL is none, the server is not there, does not answer, or refuses us."""
NOT_ACQUIRED: Final = 75
"""EX_TEMPFAIL: the lock is held elsewhere; try again later."""
LOST: Final = 76
"""EX_PROTOCOL: the lock was lost while the command ran, so it may not have been alone."""
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
NOBODY_READS: Final = 141
"""128 + SIGPIPE: the reader of the output has left, as `head` does."""


def of_signal(number: int) -> int:
    """The exit status that a shell gives to a process that died of a signal."""
    return 128 + number


def ended_by_signal() -> asyncio.Future[int]:
    """The number of the first SIGINT, SIGTERM or SIGHUP, once it comes. They end nothing else from now on."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def arrived(number: int) -> None:
        if not ended.done():
            ended.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with suppress(NotImplementedError):  # where there are no such signals, KeyboardInterrupt serves
            loop.add_signal_handler(number, arrived, number)
    return ended


class CommandError(Exception):
    """Raised to end the command.

    Args:
        message: One line, without the name of the program.
        status: The exit status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(in_line(" ".join(message.split())))
        self.status = status


def say(message: object) -> None:
    """One line on stderr, marked as ours: the command that `run` runs writes there too.

    What other programs have written in it is escaped. If no program reads that, nothing else must go wrong.
    """
    stderr: TextIO | None = sys.stderr
    if stderr is None:  # it was closed before we came
        return
    try:
        print(f"aiolocks: {in_line(message)}", file=stderr, flush=True)
    except OSError:
        send_nowhere(stderr)


def send_nowhere(stream: TextIO) -> None:
    """The content of its buffer too, which the end of the process flushes."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
