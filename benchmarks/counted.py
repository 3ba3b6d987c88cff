"""Counts what a stretch of a program runs of aiolocks: figures that no noise moves."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from enum import Enum
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, final

import aiolocks

_PACKAGE = f"{Path(aiolocks.__file__).parent}/"


@final
class Count:
    """What ran.

    Attributes:
        bytecodes: The instructions of our functions.
        frames: The calls of our functions, and each time one of our coroutines went on.
        files: Of ours, the files that these are in.
    """

    __slots__ = ("bytecodes", "files", "frames")

    def __init__(self) -> None:
        self.bytecodes = 0
        self.frames = 0
        self.files: set[str] = set()


@contextmanager
def counting_code() -> Generator[Count]:
    """Counts until its end, in this thread; a debugger or a coverage that is there sees nothing meanwhile.

    The first use in a process may count no bytecodes, on Python 3.12 and later: throw one away.
    """
    count = Count()

    def within(_: FrameType, event: str, __: Any) -> Any:
        if event == "opcode":
            count.bytecodes += 1
        return within

    def entered(frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(_PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count.frames += 1
        count.files.add(file[len(_PACKAGE) :])
        return within

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        yield count
    finally:
        sys.settrace(before)


@contextmanager
def counting_objects() -> Generator[Counter[str]]:
    """Counts the objects of our classes that are made until its end, by class.

    The classes stay changed: what comes after is slower.
    """
    _changed()
    _made.append(made := Counter[str]())
    try:
        yield made
    finally:
        _made.remove(made)


_made: list[Counter[str]] = []


@cache
def _changed() -> None:
    changed: set[type] = set()
    for cls in _own_classes(object):
        if "__new__" in vars(cls) or changed.isdisjoint(cls.__mro__):
            cls.__new__ = _telling(cls.__new__)  # type: ignore[method-assign]
            changed.add(cls)


def _telling(new: Any) -> Any:
    def make(cls: Any, *arguments: Any, **named: Any) -> Any:
        for made in _made:
            made[cls.__qualname__] += 1
        return new(cls) if new is object.__new__ else new(cls, *arguments, **named)

    return make


def _own_classes(of: type) -> Generator[type]:
    """A class comes before those that inherit from it."""
    seen: set[type] = set()
    waiting: list[Any] = [of]
    while waiting:
        for cls in type.__subclasses__(waiting.pop(0)):
            if cls in seen:
                continue
            seen.add(cls)
            waiting.append(cls)
            own = cls.__module__.partition(".")[0] == aiolocks.__name__
            if own and not issubclass(cls, Enum) and getattr(cls, "_is_protocol", False) is False:
                yield cls
