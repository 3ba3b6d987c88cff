"""One line of the log for what many have for the same reason at about the same time.

A flushed server takes 500 leases, and an overloaded service refuses 1 000 requests a second: as many lines
say no more than one that has their number and ten of their names.

A leaf, without a session: all that runs on one event loop shares its lines.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import re
import weakref
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage] - as `get_running_loop`, without an error
from collections.abc import Hashable
from typing import Any, Final, NamedTuple, final

from .._tasks import empty_context
from ..transport import closed_loops

_NAMES: Final = 10
"""How many names a line has."""
_QUIET: Final = 0.05
"""Seconds without another thing after which the things that came together are told."""
_LONGEST: Final = 0.5
"""Seconds after the first thing at which they are told at the latest."""
_REST: Final = 1.0
"""Seconds after a line in which things with the same reason are gathered for the next line. Doubled as long
as there are any, so that a state that lasts has few lines."""
_LONGEST_REST: Final = 10.0
_DURATION: Final = re.compile(r"\b\d+\.\d+ s\b")


def tell(
    log: logging.Logger,
    level: int,
    one: str,
    *args: object,
    name: str,
    many: str,
    why: str = "",
    key: Hashable = None,
    more: bool = True,
    error: BaseException | None = None,
) -> None:
    """Logs this, in one line with all that have the same reason at about the same time.

    If more may follow, the line comes 0.05 to 0.5 s later, and further lines with this reason 1 s, 2 s, 4 s
    and then 10 s after the one before. Meanwhile each thing is logged at `DEBUG`, at once and as `one`. The
    line of a single thing is `one`, and is logged in its own context.

    Args:
        log: The logger.
        level: The level of the line.
        one: The line of one thing.
        *args: Its arguments.
        name: What it is about: the line of several has the first ten names.
        many: The line of several, with three places: for their number, for `why`, and for their names.
        why: The reason that they have in common. Durations in it may differ: the line shows the first's.
        key: What they have in common, where that is not `why`.
        more: Things with the same reason may follow. False: it is told at once, unless such things wait to be
            told.
        error: Its traceback follows the line.
    """
    if not log.isEnabledFor(level):
        return
    loop = _get_running_loop()
    if loop is None or level <= logging.DEBUG:
        log.log(level, one, *args, exc_info=error)
        return
    lines = _lines_of(loop)
    reason = log.name, level, many, _DURATION.sub("", why) if key is None else key
    told = lines.open.get(reason)
    if told is None:
        if not more:
            log.log(level, one, *args, exc_info=error)
            return
        told = lines.open[reason] = _Told(log, level, many)
        lines.arm(loop, reason, _QUIET)
    log.debug(one, *args, exc_info=error)
    told.add(name, _One(one, args, why, error, contextvars.copy_context()), loop.time())


def flush() -> None:
    """Logs what waits to be told on this event loop: a session is closed, and the loop may be next."""
    loop = _get_running_loop()
    if loop is not None and (lines := _by_loop.get(loop)) is not None:
        _flush(lines.open)


class _One(NamedTuple):
    """The first of several; its line is told if it stays alone."""

    line: str
    args: tuple[object, ...]
    why: str
    error: BaseException | None
    context: contextvars.Context


@final
class _Told:
    """The things with one reason that are not told yet.

    Attributes:
        rest: Seconds until the next line; 0.0 before the first one.
    """

    __slots__ = ("_count", "_first", "_last_at", "_level", "_log", "_many", "_names", "_since", "rest")

    def __init__(self, log: logging.Logger, level: int, many: str) -> None:
        self._log = log
        self._level = level
        self._many = many
        self.rest = 0.0
        self._clear()

    def _clear(self) -> None:
        self._count = 0
        self._first: _One | None = None
        self._names: dict[str, int] = {}
        self._since = self._last_at = 0.0

    def add(self, name: str, thing: _One, now: float) -> None:
        if self._first is None:
            self._first, self._since = thing, now
        self._count += 1
        self._last_at = now
        if name in self._names or len(self._names) < _NAMES:
            self._names[name] = self._names.get(name, 0) + 1

    def due_in(self, now: float) -> float:
        """Seconds until they are told, if none follows; 0.0 or less: now."""
        if self.rest or self._first is None:
            return 0.0
        return min(self._last_at + _QUIET, self._since + _LONGEST) - now

    def tell(self) -> bool:
        """Logs them; whether there were any."""
        if self._first is None:
            return False
        first, count = self._first, self._count
        names, left = ", ".join(self._names), self._count - sum(self._names.values())
        self._clear()
        if count == 1:
            first.context.run(self._log.log, self._level, first.line, *first.args, exc_info=first.error)
        else:
            if left:
                names += f" and {left} more"
            self._log.log(self._level, self._many, count, first.why, names, exc_info=first.error)
        return True


@final
class _Lines:
    """The lines of one event loop.

    Invariant: each entry of `open` has a timer, or its loop is closed, and `closed_loops` tells what is left.
    """

    __slots__ = ("__weakref__", "_end", "open")

    def __init__(self) -> None:
        self.open: dict[Hashable, _Told] = {}
        self._end: weakref.finalize[..., Any] | None = None

    def arm(self, loop: asyncio.AbstractEventLoop, reason: Hashable, seconds: float) -> None:
        if self._end is None:
            self._end = closed_loops.finalized(loop, self, _flush, self.open)
        loop.call_later(seconds, self._look, loop, reason, context=empty_context())

    def _look(self, loop: asyncio.AbstractEventLoop, reason: Hashable) -> None:
        told = self.open[reason]
        left = told.due_in(loop.time())
        if left > 0.0:
            self.arm(loop, reason, left)
        elif told.tell():
            told.rest = min(2 * told.rest, _LONGEST_REST) or _REST
            self.arm(loop, reason, told.rest)
        else:
            del self.open[reason]
            if not self.open and self._end is not None:
                self._end.detach()
                self._end = None


def _flush(waiting: dict[Hashable, _Told]) -> None:
    for told in tuple(waiting.values()):
        told.tell()


_by_loop: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Lines]] = weakref.WeakKeyDictionary()


def _lines_of(loop: asyncio.AbstractEventLoop) -> _Lines:
    found = _by_loop.get(loop)
    if found is None:
        found = _by_loop[loop] = _Lines()
    return found
