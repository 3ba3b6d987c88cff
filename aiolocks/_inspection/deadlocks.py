"""Finding deadlocks over several processes.

A task that waits is of no interest for as long as its wait is short, or as it holds nothing. Only after
`_PATIENCE` its session publishes what it wants and holds, and reads what all sessions have published, in one
request each `_EVERY` seconds. If these waits could make a ring, it looks at the locks of that ring on the
server, as `Session.inspect` does.

The records that it reads are not of one moment. So a deadlock counts when it was found twice with the same
waits, each of which its session has confirmed in between (`beat`): a task that waits does not enter anything,
so that what was there both times was there all the time, and at one moment everything of it was.

Of a deadlock, each session tells of its own waiters. With `on_deadlock="raise"` the youngest waiter of those
that may be told gets the error: all sessions know the same one, for it is the record that says how old it is.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, final

from .._core.holders import lease_id
from .._deadlocks import Deadlock, DeadlockedTask
from .._transport import Call, Command, Fault
from .._transport.commands.families.found import Finding
from .._transport.commands.waits import publish
from ..errors import DeadlockError
from .knots import Edges, Standing, in_order, knots, may_wait_for, stuck
from .looking import pages
from .waits import Place, Wait, record_of, wait_of, waits_in

if TYPE_CHECKING:
    from .._core.engine import Engine
    from .._core.waiting.waiter import Waiter

_PATIENCE: Final = 0.4
"""Seconds after which a wait is published."""
_EVERY: Final = 0.6
"""Seconds between two requests of a session; records last three times as long."""
_READ_A_SECOND: Final = 200
"""Waits that a session reads: where there are more, it asks less often."""
_APART: Final = 0.1
"""Seconds that two requests are apart at least, for waits that begin one after the other."""
_ANSWERED_WITHIN: Final = 0.5
_REFUSED: Final = 5.0
"""Seconds for which a session does not ask again that the server has refused, as it does out of memory."""

Beats = Mapping[str, int]


@final
class Found:
    """The result of one look: the deadlocks as things stood then."""

    __slots__ = ("_edges", "_knots", "waits")

    def __init__(self, waits: Mapping[str, Wait], edges: Edges) -> None:
        self.waits = waits
        self._edges = edges
        self._knots = knots(edges)

    def beats(self) -> dict[str, int]:
        """The heartbeats of the waits that are part of one, by id."""
        return {one: self.waits[one].beat for knot in self._knots for one in knot}

    def confirmed(self, before: Beats) -> list[frozenset[str]]:
        """The deadlocks that were found before, and whose waits all go on since then."""
        return [
            knot
            for knot in self._knots
            if all(self.waits[one].beat > before.get(one, _NEVER) for one in knot)
        ]

    def in_order(self, knot: frozenset[str]) -> list[str]:
        """Each waits for the next one; the youngest waiter comes first."""
        return in_order(knot, self._edges, self.youngest(knot))

    def described(self, knot: frozenset[str]) -> Deadlock:
        """The deadlock as users see it."""
        return Deadlock(tasks=tuple(_task(self.waits[one]) for one in self.in_order(knot)))

    def youngest(self, knot: Iterable[str]) -> str:
        """The one that began to wait last."""
        return max(knot, key=lambda one: (self.waits[one].since_us, one))


_NEVER: Final = 1 << 60


def _task(wait: Wait) -> DeadlockedTask:
    return DeadlockedTask(
        host=wait.host,
        pid=wait.pid,
        task=wait.task,
        kind=wait.kind,
        name=wait.name,
        waited_for=wait.waited,
        holds=tuple(dict.fromkeys((lease.kind, lease.name) for lease in wait.holds)),
    )


def _suspects(waits: Mapping[str, Wait], own: Iterable[str] | None = None) -> dict[str, Wait]:
    """The waits that could be part of a deadlock, by their own records; with `own`, only these."""
    mine = None if own is None else frozenset(own)
    rings = (knot for knot in knots(may_wait_for(waits)) if mine is None or knot & mine)
    return {one: waits[one] for knot in rings for one in sorted(knot)}


def _looks(engine: Engine, waits: Mapping[str, Wait]) -> list[tuple[str, list[str], Command[list[Finding]]]]:
    """The requests that read what these wait for."""
    places = dict.fromkeys(place for wait in waits.values() for place in wait.want.places)
    return pages(engine, places, waiters=0)


def _standings(kind: str, names: Sequence[str], findings: Sequence[Finding]) -> dict[Place, Standing]:
    return {(kind, name): Standing.of(finding) for name, finding in zip(names, findings, strict=True)}


async def deadlocks(engine: Engine) -> list[Deadlock]:
    """See `Session.deadlocks`."""
    before = (await _look(engine)).beats()
    confirmed: dict[frozenset[str], Deadlock] = {}
    until = engine.now() + 2 * _EVERY + _PATIENCE
    while before and engine.now() < until:
        await asyncio.sleep(_EVERY / 2)
        found = await _look(engine)
        confirmed |= {knot: found.described(knot) for knot in found.confirmed(before)}
        left = found.beats().keys() - {one for knot in confirmed for one in knot}
        before = {one: beat for one, beat in before.items() if one in left}
    return list(confirmed.values())


async def _look(engine: Engine) -> Found:
    records = await engine.ask(publish(engine.settings.prefix, ""))
    suspects = _suspects(waits_in(records))
    standings: dict[Place, Standing] = {}
    for kind, names, command in _looks(engine, suspects):
        findings = await engine.ask(command)
        standings |= _standings(kind, names, findings)
    return Found(suspects, stuck(suspects, standings))


@final
class Detector:
    """The search of one session, for as long as tasks of it wait and hold something.

    Invariants:
    - its published record is taken back in the step in which the last of these waits ends, and is written
      again where others remain;
    - one request of it is under way at most, but for the one that takes back.
    """

    __slots__ = (
        "_beat",
        "_before",
        "_call",
        "_calls",
        "_engine",
        "_published",
        "_record",
        "_rests_until",
        "_standings",
        "_timer",
        "_timer_at",
        "_told",
        "_waits",
        "_warned",
    )

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waits: dict[Waiter, None] = {}
        self._published: dict[str, Waiter] = {}  # by the id of the wait
        self._record = ""  # the last
        self._beat = 0
        self._before: Beats = {}  # of what was found last
        self._told: set[str] = set()  # waits of this session of which was told
        self._call: Call[Sequence[bytes]] | None = None  # the last that publishes
        self._calls: list[Call[list[Finding]]] = []
        self._standings: dict[Place, Standing] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._warned = False
        self._rests_until = 0.0

    def add(self, acquisition: Waiter) -> None:
        """A task waits that has entered something."""
        if acquisition.claim.wanted() is None:
            return
        self._waits[acquisition] = None
        self._wake_by(max(acquisition.started + _PATIENCE, self._engine.now() + _APART))

    def discard(self, acquisition: Waiter) -> None:
        """Its wait is over, in whichever way."""
        if acquisition not in self._waits:
            return
        del self._waits[acquisition]
        wait = lease_id(acquisition.claim.token) if self._published else ""
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
        self._timer = self._engine.loop.call_at(when, self._run)

    def _run(self) -> None:
        self._timer = None
        if not self._waits:
            return
        now = self._engine.now()
        young = [due for one in self._waits if (due := one.started + _PATIENCE) > now]
        if len(young) == len(self._waits):
            self._wake_by(min(young))
            return
        self._wake_by(min(now + _EVERY, max(now + _APART, min(young, default=now + _EVERY))))
        self._publish(read=True)

    def _publish(self, *, read: bool = False) -> None:
        engine, patient = self._engine, self._engine.now() - _PATIENCE
        told = engine.settings.on_deadlock == "raise"
        waits: dict[str, Wait] = {}
        self._published = {}
        for acquisition in self._waits:
            if acquisition.started <= patient:
                wait = wait_of(engine, acquisition, told=told)
                if wait is not None:
                    waits[wait.id] = wait
                    self._published[wait.id] = acquisition
        self._beat += 1
        record, replaces = record_of(waits.values(), self._beat) if waits else "", self._record
        if not record and not replaces:
            return
        self._record = record
        command = publish(engine.settings.prefix, record, replaces=replaces)
        on_told = self._read if read and record else _nothing
        if self._call is not None:
            engine.forget(self._call)  # to a server that does not know its script, it would be sent again
        self._call = Call(command, on_told, self._failed, until=engine.now() + _ANSWERED_WITHIN)
        engine.send(self._call)

    def _failed(self, fault: Fault) -> None:
        if fault.transient:
            return
        if not self._warned:
            self._warned = True
            self._engine.events.no_deadlocks(str(fault.error))
        self._rest(_REFUSED)

    # -- a look

    def _read(self, records: Sequence[bytes]) -> None:
        waits = waits_in(records)
        self._wake_by_number(len(waits))
        suspects = _suspects(waits, self._published)
        self._forget_looks()
        if not suspects:
            self._before = {}
            return
        self._standings = {}
        until = self._engine.now() + _ANSWERED_WITHIN
        for kind, names, command in _looks(self._engine, suspects):
            told = functools.partial(self._looked, suspects, kind, names)
            self._calls.append(Call(command, told, self._failed, until=until))
        for call in tuple(self._calls):
            self._engine.send(call)

    def _wake_by_number(self, number: int) -> None:
        if number > _EVERY * _READ_A_SECOND:
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
        self, suspects: Mapping[str, Wait], kind: str, names: Sequence[str], findings: list[Finding]
    ) -> None:
        self._standings |= _standings(kind, names, findings)
        self._calls = [call for call in self._calls if not call.done]
        if self._calls:
            return
        found = Found(suspects, stuck(suspects, self._standings))
        before, self._before = self._before, found.beats()
        for one, beat in before.items():
            if one in self._before:
                self._before[one] = min(beat, self._before[one])
        for knot in found.confirmed(before):
            self._tell(found, knot)

    def _tell(self, found: Found, knot: frozenset[str]) -> None:
        """All waiters of this session that are part of it; one of them gets an error, if it is to."""
        deadlock = found.described(knot)
        own = [one for one in found.in_order(knot) if one in self._published]
        new = [one for one in own if one not in self._told]
        self._told.update(new)
        for number, one in enumerate(new):
            waiter = self._published[one]
            waited = self._engine.now() - waiter.started
            self._engine.events.deadlocked(waiter.kind, waiter.name, waited, deadlock, log_it=not number)
        may_be_told = [one for one in knot if found.waits[one].told]
        if may_be_told and (victim := found.youngest(may_be_told)) in own:
            acquisition = self._published[victim]
            error = DeadlockError(acquisition.label, acquisition.name, deadlock=deadlock)
            acquisition.end_with(error)


def _nothing(_: object) -> None:
    """The reply of a request whose answer is of no use."""
