"""Renewals that are due at the same time, in one request."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final, final

from .._transport import Call, Command, Fault, Kept, clocks, several

if TYPE_CHECKING:
    from .._transport import Script
    from .engine import Engine
    from .possession import Possession

_LONGEST: Final = 32_768
"""Bytes of keys in one request, about: it must not become a long one, which goes on another connection."""


@final
class Convoys:
    """Gathers the renewals of one turn of the watchdog, and sends those of one ttl together.

    Only where one request may be for several names, and all requests arrive in the order of their sending.

    The timer of the watchdog keeps this object, and must not keep a session that nobody uses any more.

    Attributes:
        hears: Whether the server tells of changes: as of `begin`, for it is asked for each renewal.
    """

    __slots__ = ("_engine", "_gathered", "_open", "_possible", "hears")

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)
        self._gathered: list[Convoy] = []
        self._open: dict[tuple[Script, float], Convoy] = {}
        self._possible = False
        self.hears = False

    def begin(self) -> None:
        """A turn of the watchdog begins."""
        engine = self._engine()
        self._possible = engine is not None and engine.ordered and not engine.by_slot
        self.hears = engine is not None and engine.hears

    def take(self, possession: Possession, renewal: Command[Kept]) -> bool:
        """Whether the lease is renewed with others, when `send` is called."""
        script, engine = renewal.script, self._engine()
        if not self._possible or engine is None or script is None or script.several is None:
            return False
        alike = (script, possession.term.ttl)
        convoy = self._open.get(alike)
        if convoy is None or convoy.size >= _LONGEST:
            convoy = self._open[alike] = Convoy(engine)
            self._gathered.append(convoy)
        convoy.add(possession, renewal)
        return True

    def send(self) -> list[Convoy]:
        """Sends all of them, also one that has no company."""
        gathered, self._gathered = self._gathered, []
        self._open.clear()
        for convoy in gathered:
            convoy.send()
        return gathered


@final
class Convoy:
    """Leases that are renewed by one request.

    Invariants:
    - each is renewed, kept or lost as if its renewal had been sent alone: what the server refuses for one of
      them is no answer to the others, and what it refuses for all is asked again for each alone;
    - a lease that has left, as it was let go, is not told of the answer, nor renewed if the request is
      written again.

    Attributes:
        size: Bytes of its keys, about.
    """

    __slots__ = ("_call", "_engine", "_members", "_number", "size")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._members: list[tuple[Possession, Command[Kept]]] = []
        self._number = 0  # of members that have not left
        self.size = 0
        self._call: Call[Any] | None = None

    def add(self, possession: Possession, renewal: Command[Kept]) -> None:
        possession.renewal = self
        self._members.append((possession, renewal))
        self._number += 1
        self.size += len(renewal.keys) * len(renewal.keys[0])

    def left(self) -> None:
        """One of them does not wait for the answer any more."""
        self._number -= 1
        if not self._number and self._call is not None:
            self._engine.forget(self._call)

    def send(self) -> None:
        if self._number > 1:
            until = max(possession.term.deadline for possession, _ in self._members)
            make = self._as_of_now
            self._call = Call(make(), self._answered, self._failed, until=until, make=make)
            self._engine.send(self._call)
            return
        for possession, renewal in self._staying():  # there is no other
            self._call = possession.renew_alone(renewal)

    def unanswered(self) -> list[Possession]:
        """The leases that still wait for the answer."""
        if self._call is None or self._call.done:
            return []
        return [possession for possession, _ in self._members if possession.renewal in (self, self._call)]

    def _staying(self) -> list[tuple[Possession, Command[Kept]]]:
        return [member for member in self._members if member[0].renewal is self]

    def _as_of_now(self) -> Command[list[Any]]:
        if self._call is not None and self._number == len(self._members):
            return self._call.command
        self._members = self._staying()
        return several([renewal for _, renewal in self._members])

    def _answered(self, replies: list[Any]) -> None:
        engine, call = self._engine, self._call
        assert call is not None
        sent = engine.moment(call.sent, call.sent_steady)
        ahead = clocks.steady() - engine.now()
        hears = engine.hears
        renewed: list[Possession] = []
        for (possession, renewal), reply in zip(self._members, replies, strict=True):
            if possession.renewal is not self:
                continue
            if isinstance(reply, Exception):
                possession.ask(changed=True)
                continue
            possession.renewal = None
            if held := renewal.parse(reply):
                possession.confirmed(sent, ahead, renewal.watched if hears else ())
                renewed.append(possession)
            else:
                possession.taken_away(held)
        engine.watchdog.watch_all(renewed)
        engine.events.renewed(renewed)

    def _failed(self, fault: Fault) -> None:
        for possession, _ in self._staying():
            if fault.transient:
                possession.not_renewed(fault)
            else:
                possession.ask(changed=True)
