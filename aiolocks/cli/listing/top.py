"""`aiolocks top`: the table, kept up to date until somebody leaves."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ... import BackendError, LockInfo, Session
from ..exits import of_signal
from .asking import asking, reason
from .shown import visible
from .table import lines, open_console, print_table, table

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AROUND: Final = 4
"""Lines of the screen that are not locks."""


def watch(url: str, prefix: str, pattern: str, interval: float) -> int:
    """Shows it until a signal comes; the exit status."""
    return asyncio.run(_watch(url, prefix, pattern, interval))


async def _watch(url: str, prefix: str, pattern: str, interval: float) -> int:
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    _on_signals(ended)
    watching = asyncio.create_task(_show(open_console(), url, prefix, pattern, interval))
    either: list[asyncio.Future[Any]] = [ended, watching]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        await watching  # with its error
        return 0
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    return 0 if ended.result() == signal.SIGINT else of_signal(ended.result())


def _on_signals(ended: asyncio.Future[int]) -> None:
    """The first of these ends it, with the terminal as it was."""

    def arrived(number: int) -> None:
        if not ended.done():
            ended.set_result(number)

    for number in _ENDING:
        with suppress(NotImplementedError):  # where there are no such signals, KeyboardInterrupt serves
            asyncio.get_running_loop().add_signal_handler(number, arrived, number)


async def _show(console: Console, url: str, prefix: str, pattern: str, interval: float) -> None:
    async with asking(url, prefix) as session:
        infos = await session.inspect(pattern)
        if not _is_live(console):
            print_table(_first_things_first(infos))
            return
        view = _View(console, f"{visible(prefix)}:{visible(pattern)}, every {interval:g} s")
        view.found(infos)
        with Live(get_renderable=view.picture, console=console, auto_refresh=False, screen=True) as live:
            await _go_on(session, pattern, interval, view, live)


async def _go_on(session: Session, pattern: str, interval: float, view: _View, live: Live) -> None:
    while True:
        live.refresh()
        await asyncio.sleep(interval)
        try:
            view.found(await session.inspect(pattern))
        except BackendError as error:
            view.trouble = reason(error)


class _View:
    """What is on the screen."""

    def __init__(self, console: Console, what: str) -> None:
        self._console = console
        self._what = what
        self._infos: Sequence[LockInfo] = ()
        self.trouble = ""

    def found(self, infos: Sequence[LockInfo]) -> None:
        self._infos = _first_things_first(infos)
        self.trouble = ""

    def picture(self) -> Group:
        room = max(1, self._console.height - _AROUND)
        holders = sum(len(info.holders) for info in self._infos)
        waiters = sum(info.waiters for info in self._infos)
        more = lines(self._infos) - room
        head = f"aiolocks {self._what}: {len(self._infos)} locks, {holders} holders, {waiters} waiting"
        return Group(
            Text(head, style="bold", overflow="ellipsis", no_wrap=True),
            Text(self.trouble, style="red", overflow="ellipsis", no_wrap=True),
            table(self._infos, self._console.encoding, most=room),
            Text(f"… and {more} more lines" if more > 0 else ""),
        )


def _first_things_first(infos: Sequence[LockInfo]) -> Sequence[LockInfo]:
    """What most wait for, then what has been held for longest."""

    def rank(info: LockInfo) -> tuple[int, float, str]:
        # Since when, not for how long: names are not all looked at in the same moment.
        since = min((holder.held_since or math.inf for holder in info.holders), default=math.inf)
        return -info.waiters, since, info.name

    return sorted(infos, key=rank)


def _is_live(console: Console) -> bool:
    return console.is_terminal and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "")
