"""Renewals that are due at the same time, in one request."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, final

from .._transport import Call, Command, Fault, Kept, clocks, several

if TYPE_CHECKING:
    from .._transport import Script
    from .engine import Engine
    from .possession import Possession
    from .renewal import Renewal
    from .watch import Watch

_MOST: Final = 10
"""Leases in one request. Up to Redis 7.0, a server that tracks a script remembers all its keys at each read
in it: with ten leases, a renewal takes as long there as in a request of its own, and with two hundred ten
times as long. With the longest names it is still no long request, which would go on another connection."""


@final
class Company(list["Watch"]):
    """Leases that one request has renewed: it does so again when they are due, if they are still the same.

    Attributes:
        renewal: That request.
        hears: Whether the server told of changes when the request was made.
    """

    __slots__ = ("hears", "renewal")

    renewal: Command[list[Any]]
    hears: bool


@final
class Convoys:
    """Gathers the renewals of one turn of the watchdog, and sends those of one ttl together.

    Only where one request may be for several names, and all requests arrive in the order of their sending.

    The timer of the watchdog keeps this object, and must not keep a session that nobody uses any more.

    Attributes:
        companies: Those that are due in this turn, by their first member.
        hears: Whether the server tells of changes: as of `begin`, for it is asked for each renewal.
    """

    __slots__ = ("_engine", "_gathered", "_possible", "companies", "hears")

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)
        self._gathered: dict[tuple[Script, float], list[Possession]] = {}
        self._possible = False
        self.companies: dict[Watch, Company] = {}
        self.hears = False

    def begin(self) -> None:
        """A turn of the watchdog begins."""
        engine = self._engine()
        self._possible = engine is not None and engine.ordered and not engine.by_slot
        self.hears = engine is not None and engine.hears

    def take(self, possession: Possession) -> bool:
        """Whether the lease is renewed with others, when `send` is called."""
        script = possession.claim.commands.renewed_by
        if script is None or not self._possible:
            return False
        alike = (script, possession.term.ttl)
        gathered = self._gathered.get(alike)
        if gathered is None:
            self._gathered[alike] = [possession]
        else:
            gathered.append(possession)
        return True

    def send(self) -> list[Convoy | Renewal]:
        """Sends all of them, also one that has no company."""
        engine = self._engine()
        convoys: list[Convoy | Renewal] = []
        if engine is not None:
            for gathered in self._gathered.values():
                convoys += self._send(engine, gathered)
        self._gathered.clear()
        self.companies.clear()
        return convoys

    def _send(self, engine: Engine, gathered: list[Possession]) -> list[Convoy | Renewal]:
        watches = [possession.watch for possession in gathered]
        convoys: list[Convoy | Renewal] = []
        still: list[Watch] = []
        members: list[Possession] = []
        renewals: list[Command[Kept]] = []
        at = 0
        while at < len(watches):
            if (company := self._again(watches, at)) is not None:
                together = gathered[at : at + len(company)]
                convoys.append(Convoy(engine, company, together, [], hears=self.hears, again=company.renewal))
                at += len(company)
                continue
            watch, possession = watches[at], gathered[at]
            at += 1
            if watch is None:
                continue  # a hook has let go of it in this turn
            renewal = watch.renewal_now(possession, hears=self.hears)
            still.append(watch)
            members.append(possession)
            renewals.append(renewal)
            if len(members) == _MOST:
                convoys.append(self._together(engine, still, members, renewals))
                still, members, renewals = [], [], []
        if members:
            convoys.append(self._together(engine, still, members, renewals))
        return convoys

    def _again(self, watches: list[Watch | None], at: int) -> Company | None:
        """The company of the watch there, if its request can be sent again, and has no room for others."""
        watch = watches[at]
        company = None if watch is None else self.companies.get(watch)
        if company is None or company.hears is not self.hears:
            return None
        full = len(company) in (_MOST, len(watches))
        return company if full and company == watches[at : at + len(company)] else None

    def _together(
        self, engine: Engine, watches: list[Watch], members: list[Possession], renewals: list[Command[Kept]]
    ) -> Convoy | Renewal:
        if len(watches) == 1:
            return watches[0].renew_alone(members[0], renewals[0])
        return Convoy(engine, watches, members, renewals, hears=self.hears)


@final
class Convoy:
    """Leases that are renewed by one request.

    Invariants:
    - each is renewed, kept or lost as if its renewal had been sent alone: what the server refuses for one of
      them is no answer to the others, and what it refuses for all is asked again for each alone;
    - a lease that has left, as it was let go, is not told of the answer, nor renewed if the request is
      written again.

    Args:
        watches: Of each.
        renewals: The renewal of each; none with `again`.
        hears: Whether the server tells of changes.
        again: The request that has renewed just these leases before.
    """

    __slots__ = ("_call", "_engine", "_hears", "_members", "_number", "_renewals", "_together", "_watches")

    def __init__(
        self,
        engine: Engine,
        watches: list[Watch],
        members: list[Possession],
        renewals: list[Command[Kept]],
        *,
        hears: bool,
        again: Command[list[Any]] | None = None,
    ) -> None:
        self._engine = engine
        self._watches = watches
        self._members = members
        self._number = len(members)  # that have not left
        self._renewals = renewals
        self._hears = hears
        for watch in watches:
            watch.renewal = self
        self._together: Command[list[Any]] = several(renewals) if again is None else again
        until = max([possession.term.deadline for possession in members])
        self._call: Call[Any] = Call(
            self._together, self._answered, self._failed, until=until, make=self._as_of_now
        )
        engine.send(self._call)

    def left(self) -> None:
        """One of them does not wait for the answer any more."""
        self._number -= 1
        if not self._number:
            self._engine.forget(self._call)

    def unanswered(self) -> list[Possession]:
        """The leases that still wait for the answer."""
        return [] if self._call.done else [possession for _, possession in self._waiting()]

    def _waiting(self) -> Iterator[tuple[Watch, Possession]]:
        for watch, possession in zip(self._watches, self._members, strict=True):
            if watch.renewal is self:
                yield watch, possession

    def _as_of_now(self) -> Command[list[Any]]:
        if self._number != len(self._members):
            left: list[tuple[Watch, Possession]] = list(self._waiting())
            self._watches = [watch for watch, _ in left]
            self._members = [possession for _, possession in left]
            self._renewals = [watch.renewal_now(possession, hears=self._hears) for watch, possession in left]
            self._together = several(self._renewals)
        return self._together

    def _answered(self, replies: list[Any]) -> None:
        engine, call = self._engine, self._call
        sent = engine.moment(call.sent, call.sent_steady)
        ahead = clocks.steady() - engine.now()
        hears = engine.hears
        renewed: list[Possession] = []
        for number, (watch, possession) in enumerate(zip(self._watches, self._members, strict=True)):
            if watch.renewal is not self:
                continue
            reply = replies[number]
            if isinstance(reply, Exception):
                watch.ask(possession, changed=True)
                continue
            watch.renewal = None
            if not reply:
                possession.taken_away(reply)
                continue
            if renewed:
                possession.term.confirmed_with(renewed[0].term)
            else:
                possession.term.confirmed(sent, ahead=ahead)
            watched = self._renewals[number].watched if self._renewals else watch.watched
            watch.arm(engine, watched if hears else ())
            renewed.append(possession)
        again = 1 < len(renewed) == len(self._members) and hears is self._hears
        engine.watchdog.watch_all(renewed, again=self._together if again else None, hears=hears)
        engine.events.renewed(renewed)

    def _failed(self, fault: Fault) -> None:
        for watch, possession in self._waiting():
            if fault.transient:
                watch.not_renewed(possession, fault)
            else:
                watch.ask(possession, changed=True)
