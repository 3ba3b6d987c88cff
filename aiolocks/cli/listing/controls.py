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
from ...inspect.census import rank

Rank = Callable[[LockInfo], Any]

_ENTER: Final = "\r\n"
_ESCAPE: Final = "\x1b"
_ERASE: Final = "\x7f\b"
_KEY: Final = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
"""An arrow, or another key with a sequence of its own; or a letter."""
_LINES: Final = {"A": -1, "B": 1, "k": -1, "j": 1}
_PAGES: Final = {"5~": -1, "6~": 1}
_TO_THE_START: Final = ("H", "1~", "7~")
_TO_THE_END: Final = ("F", "4~", "8~")


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
        above: Lines that are not shown, because the user has scrolled beyond them.
        lines: How many there are, shown or not.
        order: One of `ORDERS`.
        page: Lines of a page.
        part: The part of a name that is looked for; empty for all names.
        typing: That part is being typed.
        waits: Waiters are shown, with the holders for which they wait.
    """

    __slots__ = ("_changed", "_quit", "above", "lines", "order", "page", "part", "typing", "waits")

    def __init__(self, quit_typed: Callable[[], object], changed: Callable[[], object]) -> None:
        self._quit = quit_typed
        self._changed = changed
        self.order = "waiters"
        self.part = ""
        self.typing = False
        self.waits = False
        self.above = 0
        self.lines = 0
        self.page = 1

    @property
    def rank(self) -> Rank:
        """The order of the lines."""
        return ORDERS[self.order]

    def accepts(self, info: LockInfo) -> bool:
        """Whether the name has the part that is looked for."""
        return self.part in info.name

    def typed(self, text: str) -> None:
        """Some keys; keys that mean nothing are passed over."""
        for key in _KEY.findall(text):
            if len(key) > 1:
                self._scroll(key[2:])
            elif self.typing:
                self._into_part(key)
            else:
                self._command(key)
        self._changed()

    def fit(self, lines: int, page: int) -> None:
        """Takes the number of lines, and the number that has room on the screen."""
        self.lines, self.page = lines, page
        self._scroll_to(self.above)

    def _scroll_to(self, line: int) -> None:
        self.above = max(0, min(line, self.lines - self.page))

    def _scroll(self, key: str) -> None:
        if key in _TO_THE_START:
            self._scroll_to(0)
        elif key in _TO_THE_END:
            self._scroll_to(self.lines)
        else:
            self._scroll_to(self.above + _LINES.get(key, 0) + self.page * _PAGES.get(key, 0))

    def _into_part(self, letter: str) -> None:
        self.above = 0
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
                self.above = 0
            case "w":
                self.waits = not self.waits
                self.above = 0
            case "j" | "k" as key:
                self._scroll(key)
            case "/":
                self.typing = True
            case "\x1b":
                self.part = ""
                self.above = 0
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
