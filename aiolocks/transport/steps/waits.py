"""Long waits, published for a search for deadlocks: what waiters want, and how sessions tell of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, final

from ..keys import key
from ..request import Request, Script

_PUBLISH: Final = Script("waits_publish")

KIND: Final = "waits"
"""The name space of the one key of a prefix: none of locks."""
TTL_MS: Final = 2000
"""A record that is not written again by then was that of a session that has died."""
MOST: Final = 1000
"""Sessions whose records are read: the server does nothing else meanwhile."""


@final
class Wanted(NamedTuple):
    """The locks that exclude a waiter, as the holders of a name show it.

    Attributes:
        keys: A holder of a lock under one of them may be in the way.
        permits: How many must be free; 0 where any holder is in the way.
        of: How many permits there are, where the server does not say.
        span: Mode and ends of a span; holders of spans that it does not exclude are not in the way.
        caps: Keys, of each of which that many may be held at a time; empty where there are none.
        under: The token of the upgradable that will be upgraded, which is not in the way; or empty.
    """

    keys: tuple[bytes, ...]
    permits: int = 0
    of: int | None = None
    span: tuple[str, str, str] | None = None
    caps: tuple[tuple[str, int], ...] = ()
    under: str = ""


def publish(prefix: str, record: str, *, replaces: str = "") -> Request[Sequence[bytes]]:
    """Publishes that record, or takes back the last one if it is empty; the records of all sessions."""
    args = (record, replaces, TTL_MS, MOST)
    return Request(_PUBLISH, (key(prefix, KIND, "all"),), args, lambda raw: raw, lane=KIND)
