"""A place in the queue on the server, by which other processes know that somebody waits here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, final

from .._transport import BELL_TTL, Call, Fault, ignore

if TYPE_CHECKING:
    from .claim import Resource
    from .engine import Engine

_RENEWED_EVERY: Final = BELL_TTL * 0.3
"""Seconds: a bell outlives three renewals that come late or get lost."""


@final
class Place:
    """What one gate has in the queue: an entry, and a bell that is rung when it is its turn.

    Invariants:
    - `armed` is True only while, for all that is known here, the bell hangs and is heard: it is cleared
      in the step that learns otherwise, and then the next try that is refused arms anew;
    - whoever is told of its end through `rung` tries before it sleeps again.

    Args:
        on_rung: Told by which way; somebody here is to try.
    """

    __slots__ = ("_engine", "_on_rung", "_resource", "armed", "bell", "taken")

    def __init__(self, engine: Engine, resource: Resource, on_rung: Callable[[str], None]) -> None:
        self._engine = engine
        self._resource = resource
        self._on_rung = on_rung
        self.bell = resource.bell
        self.taken = False  # the entry may stand in the queue
        self.armed = False

    def arm(self, *, lane: str, until: float) -> None:
        """Stands in the queue, at its end unless it does already. The try that is to follow goes with it."""
        self.taken = self.armed = True
        self._engine.bells.add(self)
        self._send(lane, until, ignore, more=True)

    def renew(self, until: float) -> None:
        """Shows that somebody is still here."""
        if self.armed:
            self._send("", until, self._renewed, more=False)

    @property
    def heard(self) -> bool:
        """Whether we are told when it is our turn."""
        return self.armed and self._engine.hears

    def left(self) -> None:
        """The entry and the bell were taken away, or are about to be."""
        self.taken = self.armed = False
        self._engine.bells.discard(self)

    def rung(self, way: str) -> None:
        if self.taken:
            self.armed = False
            self._on_rung(way)

    def _send(self, lane: str, until: float, replied: Callable[[bool], None], *, more: bool) -> None:
        call = Call(self._resource.arm(lane), replied, self._failed, until=until)
        self._engine.send(call, more=more)

    def _renewed(self, stood: bool) -> None:  # noqa: FBT001 - a callback
        if self.armed and not stood:
            self.rung("poll")  # and the news of it was lost

    def _failed(self, _: Fault) -> None:
        self.armed = False


@final
class Bells:
    """The bells of a session, and the one timer that hangs them up anew.

    Invariant: it knows exactly the places that may stand in the queue.
    """

    __slots__ = ("_loop", "_places", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._places: dict[bytes, Place] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, place: Place) -> None:
        self._places[place.bell] = place
        if self._timer is None:
            self._timer = self._loop.call_later(_RENEWED_EVERY, self._renew)

    def discard(self, place: Place) -> None:
        self._places.pop(place.bell, None)

    def rung(self, way: str, bells: Iterable[bytes] | None) -> None:
        """These were rung, or, where nobody can know, possibly any."""
        for bell in tuple(self._places) if bells is None else bells:
            if (place := self._places.get(bell)) is not None:
                place.rung(way)

    def _renew(self) -> None:
        """All of them in one write."""
        self._timer = None
        if not self._places:
            return
        self._timer = self._loop.call_later(_RENEWED_EVERY, self._renew)
        until = self._loop.time() + _RENEWED_EVERY
        for place in tuple(self._places.values()):
            place.renew(until)
