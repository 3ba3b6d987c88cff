"""`aiolocks top`: the table, kept up to date until somebody leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ... import BackendError, LockInfo
from ..._core.sources import engine_of
from ..._inspection.census import Census, rank
from ..._visible import visible
from ..exits import ended_by_signal, of_signal
from .asking import asking, other_prefixes, reason
from .controls import Controls, keys
from .shown import duration, elsewhere
from .table import cut_table, more, open_console, print_table, wait_lines

_BY_KEY: Final = 0
_DESCRIBED: Final = 20
"""Waiters of a name that are shown."""
_AROUND: Final = 4
"""Lines of the screen that are not locks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The arguments of the command; with `others`, names under other prefixes are mentioned."""

    url: str = field(repr=False)
    prefix: str
    pattern: str
    interval: float
    others: bool


async def watch(order: Order) -> int:
    """Shows it until somebody types q, or a signal comes; the exit status."""
    ended = ended_by_signal()

    def typed() -> None:
        if not ended.done():
            ended.set_result(_BY_KEY)

    watching = asyncio.create_task(_show(order, typed))
    either: list[asyncio.Future[Any]] = [ended, watching]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        await watching  # with its error
        return 0
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    return 0 if ended.result() in (_BY_KEY, signal.SIGINT) else of_signal(ended.result())


async def _show(order: Order, quit_typed: Callable[[], object]) -> None:
    console = open_console()
    async with asking(order.url, order.prefix) as session:
        if not _is_live(console):
            infos = await session.inspect(order.pattern)
            print_table(sorted(infos, key=rank))
            return
        census = Census(engine_of(session), order.pattern, waiters=_DESCRIBED)
        what = f"{visible(order.prefix)}:{visible(order.pattern)}, every {order.interval:g} s"
        changed = asyncio.Event()
        controls = Controls(quit_typed, changed.set)
        view = _View(console, census, what, controls)
        await view.look(0)  # little, for something to be seen at once
        with (
            Live(get_renderable=view.picture, console=console, auto_refresh=False, screen=True) as live,
            keys(controls.typed),
        ):
            live.refresh()
            if order.others:
                view.others = await other_prefixes(session, order.prefix)
            due = 0.0
            while True:
                live.refresh()
                while await _before(due, changed):  # a key: the same locks are shown in another way
                    view.choose()
                    live.refresh()
                due = asyncio.get_running_loop().time() + order.interval
                try:
                    await view.look(order.interval)
                except BackendError as error:
                    view.trouble = reason(error)


async def _before(due: float, changed: asyncio.Event) -> bool:
    """Whether a key was typed before this loop time, for which it waits otherwise."""
    try:
        async with asyncio.timeout_at(due):
            await changed.wait()
    except TimeoutError:
        return False
    changed.clear()
    return True


class _View:
    """The content of the screen."""

    def __init__(self, console: Console, census: Census, what: str, controls: Controls) -> None:
        self._controls = controls
        self._console = console
        self._census = census
        self._what = what
        self._shown: list[LockInfo] = []
        self.trouble = ""
        self.others: dict[str, int] = {}

    async def look(self, interval: float) -> None:
        await self._census.look(interval, self._shown)
        self.choose()
        self.trouble = ""

    def choose(self) -> None:
        """The locks for the screen, of those that have been read."""
        controls = self._controls
        self._census.rank_by(rank if controls.waits else controls.rank)
        self._shown = (
            self._census.first(self._room, controls.accepts)
            if controls.part
            else self._census.first(self._room)
        )

    @property
    def _room(self) -> int:
        return max(1, self._console.height - _AROUND)

    def picture(self) -> Group:
        census, encoding = self._census, self._console.encoding
        if census.complete:
            count = f"{census.names} locks, {census.holders} holders"
            note = elsewhere(self.others) if self.others else ""
        else:
            count, around = f"{census.names} names", duration(census.around)
            read = f"{census.read} read, {census.holders} holders"
            note = f"sampled: {read}; each again in {around}, these at each look"
        head = f"aiolocks {self._what}: {count}, {census.waiters} waiting"
        hidden = 0 if self._controls.part or self._controls.waits else census.lines - self._room
        rest = f"{more(encoding)} and {hidden} more lines   " if hidden > 0 else ""
        width = self._console.width
        return Group(
            Text(head, style="bold", overflow="crop", no_wrap=True),
            Text(self.trouble or note, style="red" if self.trouble else "dim", overflow="crop", no_wrap=True),
            wait_lines(self._shown, encoding, width=width, most=self._room)
            if self._controls.waits
            else cut_table(self._shown, encoding, width=width, most=self._room),
            Text(
                f"{rest}{visible(self._controls.help(), encoding)}",
                overflow="crop",
                no_wrap=True,
                style="dim",
            ),
        )


def _is_live(console: Console) -> bool:
    return console.is_terminal and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "")
