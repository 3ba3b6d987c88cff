"""Requests of ended connections that their server may still execute."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final, final

from .hearing import Ask
from .identity import Identity, kill
from .request import Request

_MOST: Final = 8
"""Former connections that are remembered, where a new connection leads to another server each time."""


@final
class Residue:
    """The requests that one server may still execute although their connection has ended.

    A server that hangs reads its sockets when it goes on: then it executes each request that was written,
    however long ago this side closed the connection. A key that such a request makes has its whole ttl before
    it. So no clock of this process can say when an undo is not needed any more; only a new connection can, on
    which the server was told to drop the former ones.

    Invariants:
    - a lane is in `_lanes` from the end of a connection that owed a reply to it until `settled`;
    - its size is bounded by what was written: while there is no connection, nothing is added.
    """

    __slots__ = ("_former", "_lanes")

    def __init__(self) -> None:
        self._former: deque[Identity] = deque(maxlen=_MOST)
        self._lanes: set[str] = set()

    def __bool__(self) -> bool:
        """Whether there is anything that may still be executed."""
        return bool(self._lanes)

    def add(self, former: Identity, owed: Iterable[Request[Any]]) -> None:
        """A connection has ended that owed replies to these calls."""
        self._former.append(former)
        # A request without a lane takes nothing that another one would have to give back.
        self._lanes.update(call.lane for call in owed if call.lane)

    def concerns(self, call: Request[Any]) -> bool:
        """Whether an earlier request of the call's lane may still be executed."""
        return call.lane in self._lanes

    async def drop(self, ask: Ask, present: Identity) -> None:
        """Makes the server of the present connection drop the former ones."""
        for former in tuple(self._former):
            if present.same_server(former):
                await kill(ask, former)

    def settled(self, present: Identity) -> None:
        """The server of the present connection was told to drop the former ones. No other can be told."""
        others = [former for former in self._former if not present.same_server(former)]
        self._former = deque(others, maxlen=_MOST)
        self._lanes.clear()
