"""Keys that are typed while a screen is shown."""

from __future__ import annotations

import asyncio
import codecs
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def keys(typed: Callable[[str], object]) -> Generator[None, None, None]:
    """While entered, calls `typed` with each key, without Return; nothing typed is shown.

    Afterwards the terminal is as it was. Where stdin is no terminal, nothing is done.
    """
    stdin: TextIO | None = sys.stdin
    if sys.platform == "win32" or stdin is None or not stdin.isatty():
        yield
        return
    import termios  # noqa: PLC0415 - not on Windows
    import tty  # noqa: PLC0415 - as above

    loop, file = asyncio.get_running_loop(), stdin.fileno()

    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def readable() -> None:
        read = os.read(file, 1024)
        if not read:  # the terminal is gone
            loop.remove_reader(file)
        if text := decoder.decode(read):
            typed(text)

    before = termios.tcgetattr(file)
    tty.setcbreak(file, termios.TCSANOW)
    loop.add_reader(file, readable)
    try:
        yield
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)
