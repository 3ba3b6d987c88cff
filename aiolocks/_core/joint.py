"""Engines that serve several sessions together: those of a `Redlock`."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from .engine import Engine


@final
class JointEngines:
    """The engines that serve one session together with other sessions.

    Attributes:
        all: The first of the sessions keeps such an engine, and so do its users.
    """

    __slots__ = ("_led", "all")

    def __init__(self) -> None:
        self.all: weakref.WeakSet[Engine] = weakref.WeakSet()
        # Those that this session leads, which have its settings, and for which sessions.
        self._led: list[tuple[tuple[weakref.ref[object], ...], Engine]] = []

    @property
    def led(self) -> list[Engine]:
        """Those that this session leads."""
        return [engine for _, engine in self._led]

    def led_for(self, sessions: tuple[object, ...]) -> Engine | None:
        """The one that this session leads for exactly these, if it can be used here and now."""
        members = tuple(map(weakref.ref, sessions))
        for those, engine in self._led:
            if those == members and engine.serves:
                return engine
        return None

    def lead(self, sessions: tuple[object, ...], engine: Engine) -> None:
        """This session is the first of these; a session that has gone will not come again."""
        self._led = [
            (those, other)
            for those, other in self._led
            if other.usable and all(session() is not None for session in those)
        ]
        self._led.append((tuple(map(weakref.ref, sessions)), engine))
