"""The holds of a name that have ended while a viewer looked."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple, final

from ..._holders import HolderInfo
from ..._infos import KindAndName

_MOST: Final = 2_000
"""Names whose history is remembered."""
_EACH: Final = 50
"""Holds of one name that are remembered."""


@final
class Held(NamedTuple):
    """One hold that has ended.

    Attributes:
        holder: As it was read last.
        until: The server's time when it was found to have ended.
        seen: The server's time when it was seen last.
        charged: Seconds that waiters have waited for it.
    """

    holder: HolderInfo
    until: float
    seen: float
    charged: float


@final
class Histories:
    """The last holds of the names on which something has changed; the names that changed last are kept."""

    def __init__(self) -> None:
        self._held: OrderedDict[KindAndName, deque[Held]] = OrderedDict()

    def add(self, place: KindAndName, holder: HolderInfo, now: float, charged: float) -> None:
        """A hold has ended."""
        seen = now if holder.held_since is None else holder.held_since + (holder.held_for or 0.0)
        held = self._held.setdefault(place, deque(maxlen=_EACH))
        held.appendleft(Held(holder, now, min(seen, now), charged))
        self._held.move_to_end(place)
        if len(self._held) > _MOST:
            self._held.popitem(last=False)

    def of(self, place: KindAndName) -> tuple[Held, ...]:
        """The last holds of a name, the latest first."""
        return tuple(self._held.get(place, ()))
