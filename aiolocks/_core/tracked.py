"""The leases of a session of whose loss the server tells, and what is done when it tells of a change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, final

from .._transport import GONE_SILENT, OnRung, ignore

if TYPE_CHECKING:
    from .watch import Watch

_APART: Final = 0.1
"""Seconds between two questions for one key that several holders share."""


@final
class Tracked:
    """Changes that the server tells of: the session asks, for a change is no loss yet.

    A lease is armed by its own renewal, and a change of its key disarms it. The question is a renewal that
    does not arm it again; the next one that is due does. So there is at most one question for each of these,
    however often the key changes, and however few keys the server remembers.

    Args:
        rung: Told of all that is not of a lease here, too: a bell, say.
        forget: Nobody wants to hear of that key any more.

    Invariant: a lease that is armed was confirmed by a command whose last read was tracked, and nothing was
    heard of it since.
    """

    __slots__ = ("_armed", "_loop", "_rested", "_rung", "forget")

    def __init__(self, loop: asyncio.AbstractEventLoop, rung: OnRung) -> None:
        self._loop = loop
        self._rung = rung
        self._armed: dict[bytes, Watch | dict[Watch, None]] = {}
        # Keys that were asked for a moment ago, and whether they have changed since.
        self._rested: dict[bytes, bool] = {}
        self.forget: Callable[[bytes], None] = ignore  # until there is a connection

    def __len__(self) -> int:
        return len(self._armed)

    def arm(self, watch: Watch, keys: Iterable[bytes]) -> None:
        """The server tells of each change of these from now on."""
        for key in keys:
            known = self._armed.get(key)
            if known is watch:
                continue
            if known is None:
                self._armed[key] = watch
            elif isinstance(known, dict):
                known[watch] = None
            else:
                self._armed[key] = {known: None, watch: None}

    def disarm(self, watch: Watch, keys: Iterable[bytes]) -> None:
        """Ends the tracking: nobody relies on the lease any more."""
        for key in keys:
            known = self._armed.get(key)
            if isinstance(known, dict):
                known.pop(watch, None)
                if known:
                    continue
            elif known is not None and known is not watch:
                continue
            self._armed.pop(key, None)
            self.forget(key)

    def rung(self, way: str, keys: Iterable[bytes] | None) -> None:
        """These have changed; None: possibly all of them, or nothing more is heard."""
        if way != GONE_SILENT:
            self._rung(way, keys)
        if not self._armed:
            return
        if keys is None:
            self._all(changed=way != GONE_SILENT)
            return
        for key in keys:
            self._changed(key)

    def _all(self, *, changed: bool) -> None:
        armed, self._armed = self._armed, {}
        for known in armed.values():
            for watch in known if isinstance(known, dict) else (known,):
                _ask(watch, changed=changed)

    def _changed(self, key: bytes) -> None:
        if key in self._rested:
            self._rested[key] = True
            return
        known = self._armed.pop(key, None)
        if known is None:
            return
        if not isinstance(known, dict):
            _ask(known, changed=True)
            return
        self._rested[key] = False
        self._loop.call_later(_APART, self._has_rested, key)
        for watch in known:
            _ask(watch, changed=True)

    def _has_rested(self, key: bytes) -> None:
        if self._rested.pop(key):
            self._changed(key)


def _ask(watch: Watch, *, changed: bool) -> None:
    possession = watch()
    if possession is not None:
        watch.ask(possession, changed=changed)
