"""Keys that are typed while a screen is shown."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def pressed(key: str, then: Callable[[], object]) -> Generator[None, None, None]:
    """While entered, calls `then` when that key is typed, without Return; nothing typed is shown.

    Afterwards the terminal is as it was. Where stdin is no terminal, nothing is done.
    """
    stdin: TextIO | None = sys.stdin
    if sys.platform == "win32" or stdin is None or not stdin.isatty():
        yield
        return
    import termios  # noqa: PLC0415 - not on Windows
    import tty  # noqa: PLC0415 - as above

    loop, file = asyncio.get_running_loop(), stdin.fileno()

    def typed() -> None:
        read = os.read(file, 1024)
        if not read:  # the terminal is gone
            loop.remove_reader(file)
        if key.encode() in read.lower():
            then()

    before = termios.tcgetattr(file)
    tty.setcbreak(file, termios.TCSANOW)
    loop.add_reader(file, typed)
    try:
        yield
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)
