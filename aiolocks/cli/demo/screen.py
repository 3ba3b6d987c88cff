"""Where the demo shows itself: live on a terminal, as plain lines in a pipe, or not at all."""

from __future__ import annotations

import asyncio
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from .scene import Scene
from .timeline import ASCII, UNICODE, Glyphs

_WIDEST: Final = 100
_PIPE_WIDTH: Final = 80
_FRAME: Final = 1 / 15
"""Seconds between two pictures."""


class Screen(ABC):
    """A screen on which acts are shown."""

    @abstractmethod
    def say(self, text: str, style: str = "") -> None:
        """One line."""

    @abstractmethod
    def showing(self, scene: Scene) -> AbstractAsyncContextManager[None]:
        """While entered, the act goes on; after it, it stands there for good."""


class NoScreen(Screen):
    """Shows nothing."""

    def say(self, text: str, style: str = "") -> None:
        """Nothing."""

    @asynccontextmanager
    async def showing(self, scene: Scene) -> AsyncGenerator[None, None]:
        """Nothing."""
        yield


class PlainScreen(Screen):
    """Lines of text, without any control codes: the heading when an act begins, the rest when it is over."""

    def __init__(self) -> None:
        self._glyphs = _writable_glyphs()

    def say(self, text: str, style: str = "") -> None:
        """One line."""
        print(text, flush=True)

    @asynccontextmanager
    async def showing(self, scene: Scene) -> AsyncGenerator[None, None]:
        """While entered, the act goes on; after it, it stands there for good."""
        self.say(scene.heading().plain)
        yield
        for line in scene.body(width=_PIPE_WIDTH, glyphs=self._glyphs):
            self.say(line.plain)
        self.say("")


class LiveScreen(Screen):
    """A terminal, on which the act that goes on moves."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._glyphs = _writable_glyphs()

    def say(self, text: str, style: str = "") -> None:
        """One line."""
        self._console.print(Text(text, style=style))

    @asynccontextmanager
    async def showing(self, scene: Scene) -> AsyncGenerator[None, None]:
        """While entered, the act goes on; after it, it stands there for good."""

        def picture() -> Group:
            width = min(self._console.width, _WIDEST)
            return Group(scene.heading(), *scene.body(width=width, glyphs=self._glyphs), Text())

        async def move() -> None:
            while True:
                await asyncio.sleep(_FRAME)
                live.refresh()

        # Refreshed from here and not by rich's thread, which would read what is being written.
        with Live(get_renderable=picture, console=self._console, auto_refresh=False) as live:
            moving = asyncio.create_task(move())
            try:
                yield
            finally:
                moving.cancel()
                live.refresh()


def choose_screen(*, json: bool) -> Screen:
    """Live only for somebody who looks: on a terminal that can do it and with NO_COLOR not set."""
    if json:
        return NoScreen()
    able = os.environ.get("TERM", "dumb") not in ("dumb", "")
    return LiveScreen() if able and sys.stdout.isatty() and not os.environ.get("NO_COLOR") else PlainScreen()


def _writable_glyphs() -> Glyphs:
    """The glyphs that can be written there."""
    try:
        UNICODE.all().encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE
