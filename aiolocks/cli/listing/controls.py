"""The keys that change what `aiolocks top` shows, from the terminal to what they do."""

from __future__ import annotations

import asyncio
import codecs
import math
import os
import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, TextIO, final

from ... import LockInfo
from ..._inspection.census import rank

Rank = Callable[[LockInfo], Any]

_ENTER: Final = "\r\n"
_ESCAPE: Final = "\x1b"
_ERASE: Final = "\x7f\b"
_SEQUENCE: Final = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]")
"""An arrow, or another key with a sequence of its own."""


def _by_name(info: LockInfo) -> Any:
    return info.name, info.kind


def _by_age(info: LockInfo) -> Any:
    since = min((holder.held_since or math.inf for holder in info.holders), default=math.inf)
    return since, info.name, info.kind


def _by_end(info: LockInfo) -> Any:
    left = min((holder.remaining or 0.0 for holder in info.holders), default=math.inf)
    return left, info.name, info.kind


ORDERS: Final[dict[str, Rank]] = {"waiters": rank, "held": _by_age, "left": _by_end, "name": _by_name}
"""The orders of the lines, by the name of their column."""


@final
class Controls:
    """The state of the screen that keys change.

    Args:
        quit_typed: Called when `q` is typed.
        changed: Called when the screen shows something else from now on.

    Attributes:
        order: One of `ORDERS`.
        part: The part of a name that is looked for; empty for all names.
        typing: That part is being typed.
        waits: Waiters are shown, with the holders for which they wait.
    """

    __slots__ = ("_changed", "_quit", "order", "part", "typing", "waits")

    def __init__(self, quit_typed: Callable[[], object], changed: Callable[[], object]) -> None:
        self._quit = quit_typed
        self._changed = changed
        self.order = "waiters"
        self.part = ""
        self.typing = False
        self.waits = False

    @property
    def rank(self) -> Rank:
        """The order of the lines."""
        return ORDERS[self.order]

    def accepts(self, info: LockInfo) -> bool:
        """Whether the name has the part that is looked for."""
        return self.part in info.name

    def typed(self, text: str) -> None:
        """Some keys; those that mean nothing are passed over."""
        for letter in _SEQUENCE.sub("", text):
            if self.typing:
                self._into_part(letter)
            else:
                self._command(letter)
        self._changed()

    def _into_part(self, letter: str) -> None:
        if letter in _ENTER:
            self.typing = False
        elif letter == _ESCAPE:
            self.typing, self.part = False, ""
        elif letter in _ERASE:
            self.part = self.part[:-1]
        elif letter.isprintable():
            self.part += letter

    def _command(self, letter: str) -> None:
        match letter.lower():
            case "q":
                self._quit()
            case "s":
                names = list(ORDERS)
                self.order = names[(names.index(self.order) + 1) % len(names)]
            case "w":
                self.waits = not self.waits
            case "/":
                self.typing = True
            case "\x1b":
                self.part = ""
            case _:
                pass

    def help(self) -> str:
        """The keys, and what they have done."""
        if self.typing:
            return f"part of a name: {self.part}_   Return shows them, Esc shows all"
        part = f"/ names with {self.part!r}, Esc all" if self.part else "/ filter"
        return f"q quit   s by {self.order}   w {'locks' if self.waits else 'waits'}   {part}"


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
