"""A place in the queue on the server, by which other processes know that somebody waits here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, final

from .._transport import BELL_TTL, Call, Fault, ignore

if TYPE_CHECKING:
    from .claim import Claim, Commands
    from .engine import Engine
    from .gate import Gate

log = logging.getLogger("aiolocks.session")

_RENEWED_EVERY: Final = BELL_TTL * 0.3
"""Seconds: a bell outlives two renewals that come late or get lost."""


@final
class Place:
    """What one gate has in the queue: an entry, and a bell that is rung when it is its turn.

    Invariants:
    - `armed` is True only while, for all that is known here, the bell hangs: it is cleared in the step that
      learns otherwise, and then the next try that is refused arms anew;
    - `noted` is True from the first sign that the server has this place until it is given up: a request that
      was never written leaves it False.
    """

    __slots__ = ("_commands", "_engine", "_renewal", "armed", "armings", "noted", "taken", "taken_late")

    def __init__(self, engine: Engine, commands: Commands) -> None:
        self._commands = commands
        self._engine = engine
        self.taken = False  # the entry may stand in the queue
        self.armed = False
        self.noted = False  # the server has answered a waiter of here, or may have executed its request
        self.armings = 0  # so often was it taken
        self.taken_late = False  # one that has left may have taken it, after those that wait on had it
        self._renewal: Call[int] | None = None  # the last one

    @property
    def bells(self) -> tuple[bytes, ...]:
        return self._commands.all_bells

    @property
    def heard(self) -> bool:
        """Whether we are told when it is our turn."""
        return self.armed and self._engine.hears

    def given_up_within(self, seconds: float) -> float:
        """For how long the request that gives it up is of use, if without it that is so many seconds."""
        return max(seconds, self._commands.lingers) if self.noted else seconds

    def arm(self, claim: Claim, told: Callable[[int], None], *, until: float) -> Call[int]:
        """Takes it, at the end of the queue, or hangs up its bell anew; goes with what is sent next."""
        self.taken = self.armed = True
        self.armings += 1
        call = Call(claim.arm(), told, self._failed, until=until)
        self._engine.send(call, more=True)
        return call

    def renew(self, claim: Claim, told: Callable[[int], None], *, until: float) -> None:
        """Hangs up the bell anew; tells what it was."""
        self.armed = True
        self._renewal = Call(claim.arm(), told, self._failed, until=until)
        self._engine.send(self._renewal)

    @property
    def renewal_pends(self) -> bool:
        """Whether a renewal of the bell has had no answer yet: it may come after what was sent later."""
        return self._renewal is not None and not self._renewal.done

    def given_up(self) -> None:
        """It is taken away. A renewal of which the server did not know the script is not sent again."""
        self.taken = self.armed = False
        if self._renewal is not None:
            self._engine.forget(self._renewal)
            self._renewal = None

    def _failed(self, fault: Fault) -> None:
        self.armed = False
        self._engine.bells.refused(fault)


class _Ringing(Protocol):
    """What a step answers that may have woken somebody."""

    @property
    def rung(self) -> Sequence[bytes]: ...


@final
class Bells:
    """The bells of a session, and the one timer that hangs them up anew.

    Invariant: it knows exactly the gates whose place may stand in the queue.

    Attributes:
        silence: Called with each bell that nobody wants to hear any more, a while after that is so.
    """

    __slots__ = ("_due", "_ears", "_gates", "_left", "_loop", "_timer", "_warned", "silence")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.silence: Callable[[bytes], object] = ignore
        self._gates: dict[bytes, Gate] = {}
        self._ears: dict[bytes, list[Callable[[], object]]] = {}  # of keys that stand in no queue
        self._left: dict[bytes, None] = {}  # in the order in which they were left
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._warned = False

    def add(self, gate: Gate) -> None:
        for bell in gate.place.bells:
            self._gates[bell] = gate
            self._left.pop(bell, None)
        if self._timer is None:
            self._wind_up()

    def discard(self, gate: Gate) -> None:
        for bell in gate.place.bells:
            del self._gates[bell]
            self._left[bell] = None

    def listen(self, key: bytes, told: Callable[[], object]) -> None:
        """Tells of each change of a key that a command has named as its bell, until `unlisten`."""
        self._ears.setdefault(key, []).append(told)

    def unlisten(self, key: bytes, told: Callable[[], object]) -> None:
        ears = self._ears[key]
        ears.remove(told)
        if not ears:
            del self._ears[key]
            self.silence(key)

    def rung(self, way: str, bells: Iterable[bytes] | None) -> None:
        """These were rung, or, where nobody can know, possibly any."""
        if bells is None:
            self._reseat()
        for bell in tuple(self._gates) if bells is None else bells:
            if (gate := self._gates.get(bell)) is not None:
                gate.rung(way)
        if self._ears:
            for key in tuple(self._ears) if bells is None else bells:
                for told in tuple(self._ears.get(key, ())):
                    told()

    def wake_own(self, answer: _Ringing) -> None:
        """A step has woken waiters, perhaps of this very session, to which the server does not tell it."""
        if answer.rung:
            self.rung("local", answer.rung)

    def refused(self, fault: Fault) -> None:
        """A bell could not be hung up: whoever waits has only the poll. Said once."""
        if not fault.transient and not self._warned:
            self._warned = True
            log.warning("waiters cannot stand in the queue, and poll: %s", fault.error)

    def _wind_up(self) -> None:
        self._due = self._loop.time() + _RENEWED_EVERY
        self._timer = self._loop.call_at(self._due, self._renew)

    def _reseat(self) -> None:
        for gate in self._each():
            gate.reseat()

    def _renew(self) -> None:
        """All of them in one write."""
        for bell in self._left:
            self.silence(bell)
        self._left.clear()
        self._timer = None
        if self._loop.time() > self._due + BELL_TTL - 2 * _RENEWED_EVERY:
            self._reseat()  # the loop was held up for so long that bells may have come to their end
        if self._gates:
            self._wind_up()
            until = self._loop.time() + _RENEWED_EVERY
            for gate in self._each():
                gate.renew_place(until)

    def _each(self) -> tuple[Gate, ...]:
        return tuple(dict.fromkeys(self._gates.values()))
