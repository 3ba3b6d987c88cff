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
from ..._tasks import spawn
from ..._visible import visible
from ...inspect.census import Census, rank
from ...lock.sources import engine_of
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

    watching = spawn(asyncio.get_running_loop(), _show(order, typed), name="aiolocks-top", context=None)
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
        self._above = 0  # lines of the shown locks that are above the screen
        self.trouble = ""
        self.others: dict[str, int] = {}

    async def look(self, interval: float) -> None:
        await self._census.look(interval, self._shown)
        self.choose()
        self.trouble = ""

    def choose(self) -> None:
        """The locks for the screen, of the locks that have been read."""
        controls, census = self._controls, self._census
        census.rank_by(rank if controls.waits else controls.rank)
        controls.fit(census.lines_of(controls.accepts, waits=controls.waits), self._room)
        shown = census.first(controls.above + self._room, controls.accepts)
        self._above = controls.above
        if not controls.waits:
            # Each look reads the locks on the screen, and not the locks above it.
            passed = 0
            while shown and (holders := len(shown[passed].holders) or 1) <= self._above:
                self._above -= holders
                passed += 1
            shown = shown[passed:]
        self._shown = shown

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
        controls = self._controls
        lines = controls.lines if controls.part or controls.waits else census.lines
        hidden = lines - controls.above - self._room
        rest = f"from line {controls.above + 1} on   " if controls.above else ""
        rest += f"{more(encoding)} and {hidden} more lines: arrows, PgDn   " if hidden > 0 else ""
        width = self._console.width
        return Group(
            Text(head, style="bold", overflow="crop", no_wrap=True),
            Text(self.trouble or note, style="red" if self.trouble else "dim", overflow="crop", no_wrap=True),
            (wait_lines if controls.waits else cut_table)(
                self._shown, encoding, width=width, most=self._room, above=self._above
            ),
            Text(
                f"{rest}{visible(controls.help(), encoding)}",
                overflow="crop",
                no_wrap=True,
                style="dim",
            ),
        )


def _is_live(console: Console) -> bool:
    return console.is_terminal and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "")
