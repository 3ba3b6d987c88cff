"""For which request a server has closed its connections."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, final

from ..requests.calls import Call

MOST_CLOSED: Final = 2
"""The most connections that may be closed for one request."""


@final
class Blame:
    """Counts the connections in a row that were closed while a request was on its way.

    Invariant: between the connections that are counted for a request, no request was answered.
    """

    __slots__ = ("_closed",)

    def __init__(self) -> None:
        self._closed: dict[Call[Any], int] = {}

    def closed(self, unanswered: Iterable[Call[Any]]) -> list[Call[Any]]:
        """A connection was closed that owed replies to these: those for which that was once too often."""
        self._closed = {call: self._closed.get(call, 0) + 1 for call in unanswered if not call.done}
        return [call for call, times in self._closed.items() if times >= MOST_CLOSED]

    def clear(self) -> None:
        """A request was answered."""
        self._closed.clear()
