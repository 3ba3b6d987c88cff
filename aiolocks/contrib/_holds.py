"""How long handlers hold their locks, for the answer to a client that could not have one."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, final

from .. import Session

_LATEST: Final = 15
"""How many holds of a key count: enough for a median, and few enough to follow when the work changes."""

_KEYS: Final = 1000
"""How many keys are remembered: some 500 KiB a session at most."""


@final
class Holds:
    """The latest holds of handlers, by key: the name of a lock, or the template of many names.

    Invariant: it remembers at most `_KEYS` keys, which have the latest holds, and `_LATEST` holds of each.
    """

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: OrderedDict[Hashable, tuple[float, ...]] = OrderedDict()

    def add(self, seconds: float, *keys: Hashable) -> None:
        """A hold has ended, which counts for each of these."""
        for key in keys:
            self._of[key] = (*self._of.pop(key, ()), seconds)[-_LATEST:]
        while len(self._of) > _KEYS:
            self._of.popitem(last=False)

    def median(self, *keys: Hashable) -> float | None:
        """Seconds, of the first of these that was held before; None if none was."""
        for key in keys:
            if latest := self._of.get(key):
                return sorted(latest)[len(latest) // 2]
        return None


_of_sessions: Final[weakref.WeakKeyDictionary[Session, Holds]] = weakref.WeakKeyDictionary()


def holds_of(session: Session) -> Holds:
    """The holds of the handlers that use this session."""
    return _of_sessions.get(session) or _of_sessions.setdefault(session, Holds())
