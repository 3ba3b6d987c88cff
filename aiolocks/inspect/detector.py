"""The search of one session for deadlocks that its tasks are part of.

While tasks of it wait and hold something, the session publishes that, and reads what all sessions have
published, in one request each `EVERY` seconds.

Of a deadlock, each session tells of its own waiters. With `on_deadlock="raise"` the youngest of the waiters
that may be told gets the error: all sessions know the same one, for it is the record that says how old it is.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from typing import Final, final

from .._infos import KindAndName
from .._tasks import empty_context
from ..errors import DeadlockError
from ..lock.engine import Engine
from ..lock.waiter import Waiter
from ..transport import Fault, Request
from ..transport.steps.snapshots import Snapshot
from ..transport.steps.waits import publish
from .deadlocks import EVERY, PATIENCE, Beats, Look, looks_at, occupants_in, suspects_in
from .knots import Occupants
from .waits import Wait, record_of, wait_of, waits_in

_READ_A_SECOND: Final = 200
"""Waits that a session reads: where there are more, it asks less often."""
_APART: Final = 0.1
"""Seconds that two requests are apart at least, for waits that begin one after the other."""
_ASK_TIMEOUT: Final = 0.5
"""Seconds after which a request of the search has no answer."""
_REFUSED: Final = 5.0
"""Seconds for which a session does not ask again that the server has refused, as it does out of memory."""


_ALWAYS_TOLD: Final = ("singleflight",)
"""A call that waits for itself in one session gets an error, whatever the session has chosen: so does one
that waits for itself by way of another session."""


@final
class Detector:
    """The search of one session, for as long as tasks of it wait and hold something.

    Invariants:
    - its published record is taken back in the step in which the last of these waits ends, and is written
      again where other waits remain: each request replaces the record of the last one that was sent, for what
      was forgotten before it was sent has replaced nothing;
    - one request of it is under way at most, but for the one that takes back.
    """

    __slots__ = (
        "_beat",
        "_before",
        "_call",
        "_calls",
        "_engine",
        "_occupants",
        "_published",
        "_record",
        "_replaced",
        "_rests_until",
        "_timer",
        "_timer_at",
        "_told",
        "_waits",
        "_warned",
    )

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waits: dict[Waiter, str] = {}  # with the id of the wait, once it was published
        self._published: dict[str, Waiter] = {}  # by the id of the wait
        self._record = ""  # the last
        self._replaced = ""  # the one before it
        self._beat = 0
        self._before: Beats = {}  # of what was found last
        self._told: set[str] = set()  # waits of this session of which was told
        self._call: Request[Sequence[bytes]] | None = None  # the last that publishes
        self._calls: list[Request[list[Snapshot]]] = []
        self._occupants: dict[KindAndName, Occupants] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._warned = False
        self._rests_until = 0.0

    def add(self, acquisition: Waiter) -> None:
        """A task waits that has entered something."""
        if acquisition.lease.wanted() is None:
            return
        self._waits.setdefault(acquisition, "")
        self._wake_by(max(acquisition.started + PATIENCE, self._engine.now() + _APART))

    def discard(self, acquisition: Waiter) -> None:
        """Its wait is over, in whichever way."""
        # By the id that was published: a waiter that has what its session keeps has another token now.
        wait = self._waits.pop(acquisition, None)
        if wait is None:
            return
        if self._published.pop(wait, None) is not None:
            self._told.discard(wait)
            self._publish()
        if not self._waits:
            self._forget_looks()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _wake_by(self, when: float) -> None:
        when = max(when, self._rests_until)
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._engine.loop.call_at(when, self._run, context=empty_context())

    def _run(self) -> None:
        self._timer = None
        if not self._waits:
            return
        now = self._engine.now()
        young = [due for one in self._waits if (due := one.started + PATIENCE) > now]
        if len(young) == len(self._waits):
            self._wake_by(min(young))
            return
        self._wake_by(min(now + EVERY, max(now + _APART, min(young, default=now + EVERY))))
        self._publish(read=True)

    def _publish(self, *, read: bool = False) -> None:
        engine, patient = self._engine, self._engine.now() - PATIENCE
        told = engine.settings.on_deadlock == "raise"
        waits: dict[str, Wait] = {}
        self._published = {}
        for acquisition in self._waits:
            if acquisition.started <= patient:
                always = acquisition.target.kind in _ALWAYS_TOLD
                wait = wait_of(engine, acquisition, told=told or always)
                if wait is not None:
                    waits[wait.id] = wait
                    self._published[wait.id] = acquisition
                    self._waits[acquisition] = wait.id
        self._beat += 1
        self._forget_last()
        record, replaces = record_of(waits.values(), self._beat) if waits else "", self._record
        if not record and not replaces:
            return
        self._record, self._replaced = record, replaces
        command = publish(engine.settings.prefix, record, replaces=replaces)
        on_told = self._read if read and record else _nothing
        self._call = command.again().ask(on_told, self._failed, until=engine.now() + _ASK_TIMEOUT)
        engine.send(self._call)

    def _forget_last(self) -> None:
        """Forgets the last request: to a server that does not know its script, it would be sent again."""
        if self._call is not None and not self._engine.forget(self._call):
            self._record = self._replaced  # the server still has that one
        self._call = None

    def _failed(self, fault: Fault) -> None:
        if fault.passing or self._engine.closing:
            return
        if not fault.transient and not self._warned:
            self._warned = True
            self._engine.events.no_deadlocks(str(fault.error))
        self._rest(_REFUSED)

    # -- a look

    def _read(self, records: Sequence[bytes]) -> None:
        waits = waits_in(records)
        self._wake_by_number(len(waits))
        suspects = suspects_in(waits, self._published)
        self._forget_looks()
        if not suspects:
            self._before = {}
            return
        self._occupants = {}
        until = self._engine.now() + _ASK_TIMEOUT
        for kind, names, command in looks_at(self._engine, suspects):
            told = functools.partial(self._looked, suspects, kind, names)
            self._calls.append(command.again().ask(told, self._failed, until=until))
        for call in tuple(self._calls):
            self._engine.send(call)

    def _wake_by_number(self, number: int) -> None:
        if number > EVERY * _READ_A_SECOND:
            self._rest(number / _READ_A_SECOND)

    def _rest(self, seconds: float) -> None:
        """The next request comes after that time, at the earliest."""
        self._rests_until = self._engine.now() + seconds
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._wake_by(self._rests_until)

    def _forget_looks(self) -> None:
        for call in self._calls:
            self._engine.forget(call)
        self._calls.clear()

    def _looked(
        self, suspects: Mapping[str, Wait], kind: str, names: Sequence[str], snapshots: list[Snapshot]
    ) -> None:
        self._occupants |= occupants_in(kind, names, snapshots)
        self._calls = [call for call in self._calls if not call.done]
        if self._calls:
            return
        found = Look(suspects, self._occupants)
        confirmed = found.confirmed(self._before)
        self._before = found.since(self._before)
        for knot in confirmed.knots:
            self._tell(confirmed, knot)

    def _tell(self, found: Look, knot: frozenset[str]) -> None:
        """All waiters of this session that are part of it; one of them gets an error, if it is to."""
        deadlock = found.described(knot)
        own = [one for one in found.in_order(knot) if one in self._published]
        new = [one for one in own if one not in self._told]
        self._told.update(new)
        for number, one in enumerate(new):
            waiter = self._published[one]
            waited = self._engine.now() - waiter.started
            self._engine.events.deadlocked(
                waiter.target.kind,
                waiter.target.name,
                waited,
                str(deadlock),
                log_it=not number,
                context=waiter.context,
            )
        may_be_told = [one for one in knot if found.waits[one].told]
        if may_be_told and (victim := found.youngest(may_be_told)) in own:
            acquisition = self._published[victim]
            error = DeadlockError(acquisition.target.label, acquisition.target.name, deadlock=deadlock)
            acquisition.end_with(error)


def _nothing(_: object) -> None:
    """The reply of a request whose answer is of no use."""
