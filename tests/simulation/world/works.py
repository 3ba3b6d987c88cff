"""The tools that are built with the locks: calls whose result is shared, unique jobs, numbered crowds, fenced
values.

Each is a task's round as a user would write it, and a ledger of what all processes have done, which says what
must not have been.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from math import inf
from typing import Any

from aiolocks import (
    DuplicateJobError,
    FencedRegister,
    Latch,
    Leadership,
    Lock,
    Session,
    SingleFlight,
    Term,
    Turnstile,
    UniqueJob,
)
from aiolocks.errors import StaleFenceError
from aiolocks.kinds.uniquejob import Ticket

from .checkers import Referee
from .combined import Combined
from .counted import STEPS, Counts
from .ends import Ends
from .excuses import Excused
from .graces import Graces
from .rings import Rings
from .schedule import Round
from .ticks import Ticks

KEEP = 0.4
"""Seconds for which some results are kept."""
FORGETS = 0.2
"""The share of calls that forget their key first."""
WINDOW = 0.5
GRACE = 0.4
"""Seconds before the end of a leader's lease at which it is told to stop; less with a short ttl."""


@dataclass(eq=False)
class Execution:
    """One run of the work; times of the world.

    Attributes:
        ended: When it ended well.
        over: When it ended in any way.
    """

    who: str
    number: int
    key: str
    began: float
    ended: float = inf
    over: float = inf


@dataclass(eq=False)
class Forget:
    """A key is forgotten; times of the world.

    Attributes:
        sent: When that was asked for.
        done: When it was confirmed.
    """

    key: str
    sent: float
    done: float = inf


@dataclass
class Ledger:
    """The acts of all processes of a schedule.

    Attributes:
        dead: Processes that were killed.
        unsure: Rounds that were cancelled or failed: what they asked for may have been done or not.
    """

    referee: Referee
    random: random.Random
    drawing: random.Random
    kinds: random.Random
    runs: list[Execution] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)
    unsure: int = 0
    version: int = 0
    processed: int = 0
    places: list[tuple[int, float, str]] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    newest: int = 0
    forgets: list[Forget] = field(default_factory=list)
    travel: float = 0.0  # of the slowest process: seconds in which a request of it was executed
    trip: float = 0.0  # seconds in which one that is connected knows the answer to a request, too
    serial: frozenset[str] = frozenset()  # processes whose client makes each request
    ticks: Ticks = field(init=False)
    rings: Rings = field(init=False)
    graces: Graces = field(init=False)
    counts: Counts = field(init=False)
    combined: Combined = field(init=False)
    ends: Ends = field(init=False)
    own: dict[str, Any] = field(default_factory=dict)  # of a kind that stands in `tests/kinds`: as it likes

    def __post_init__(self) -> None:
        self.ticks = Ticks(self.referee, self.random, travel=self.travel)
        self.rings = Rings(self.referee, self.drawing, travel=self.travel)
        self.graces = Graces(self.referee, self.kinds, serial=self.serial)
        self.counts = Counts(self.referee, travel=self.travel, trip=self.trip)
        self.combined = Combined(self.referee, self.kinds, travel=self.travel)
        self.ends = Ends(self.referee, self.kinds)

    def died(self, process: str) -> None:
        self.dead.add(process)
        self.ticks.died(process)
        self.rings.died(process)
        self.graces.died(process)
        self.combined.died(process)
        self.ends.died(process)

    def explained(self, sort: Excused, since: float, *who: str) -> bool:
        """Whether a fault since then explains that, in the process of one of these."""
        referee = self.referee
        return any(referee.excuses.explain(sort, one, since, referee.now) for one in who)

    def begin(self, who: str, key: str, *, kept: float = 0.0) -> Execution:
        """The work begins: no other is under way, and none was done that is still kept."""
        now = self.referee.now
        for run in self.runs:
            if run.key != key or run.who.partition(".")[0] in self.dead:
                continue
            if run.over == inf:
                sort, what = Excused.LEASE, f"two runs at once: of {run.who} and {who}"
            elif now < run.ended + kept and run.ended < inf and not self.forgotten(key, run.began):
                sort, what = Excused.RESULT, f"{who} does it again, {now - run.ended:.3f} s after {run.who}"
            else:
                continue
            if not self.explained(sort, run.began, run.who, who):
                self.referee.wrong(what)
        run = Execution(who, len(self.runs), key, now)
        self.runs.append(run)
        self.referee.tell(who, f"run {run.number} begins")
        return run

    def forgotten(self, key: str, since: float) -> bool:
        """Whether what was begun then may have been forgotten."""
        return any(one.key == key and one.sent >= since - self.travel for one in self.forgets)

    async def execute(self, who: str, seconds: float, *, key: str = "x", kept: float = 0.0) -> int:
        """The work itself."""
        run = self.begin(who, key, kept=kept)
        try:
            await asyncio.sleep(seconds)
            run.ended = self.referee.now
        finally:
            run.over = self.referee.now
            self.referee.tell(who, f"run {run.number} ends" + ("" if run.ended < inf else ", cut off"))
        return run.number

    def judge(self) -> None:
        """Rules that only the whole shows."""
        self.ticks.judge()
        self.combined.judge()
        if self.unsure or self.dead or self.referee.excuses.begun(Excused.RESULT):
            return
        if self.processed != self.version:
            self.referee.wrong(f"update {self.version} was lost: {self.processed} was the last")
        numbers = [number for number, _, _ in self.places]
        for number in set(numbers) - {1}:
            if numbers.count(number) > numbers.count(number - 1):
                self.referee.wrong(f"more of a crowd have number {number} than {number - 1}")


async def _share(ledger: Ledger, session: Session, one: Round, ttl: float, patience: float) -> None:
    """A call whose result all have who ask for it meanwhile, or later, while it is made again."""
    keep = KEEP if one.want.permits > 1 else 0.0
    stale = KEEP if one.want.permits > 2 else 0.0
    patience = ledger.travel
    key, kept = f"k{keep:g}+{stale:g}", max(0.0, keep - patience)
    rng = random.Random(f"{one.part} {one.hold}")
    of_value = keep > 0 and rng.random() < 0.5
    flight = SingleFlight(session, ttl=ttl, keep=(lambda _: keep) if of_value else keep, stale=stale)
    if rng.random() < FORGETS:
        forget = Forget(key, ledger.referee.now)
        ledger.forgets.append(forget)
        ledger.referee.tell(one.part, f"forgets {key}")
        async with asyncio.timeout(one.timeout or None):
            await flight.forget(key)
        forget.done = ledger.referee.now
    asked = ledger.referee.now
    # Of a session that waits, later callers join those that wait, unless it has forgotten the key itself.
    joins = ("singleflight", key) in session._usable_engine().in_progress
    call = flight.do(key, lambda: ledger.execute(one.part, one.hold, key=key, kept=kept))
    async with asyncio.timeout(one.timeout or None):
        number = await call
    run = ledger.runs[number]
    older = not joins and any(
        before.key == key and before.done <= asked and run.began < before.sent - patience
        for before in ledger.forgets
    )
    if older and not ledger.explained(Excused.RESULT, run.began, run.who, one.part):
        ledger.referee.wrong(f"{one.part} has the result of a run of before its key was forgotten")
    there = [
        earlier
        for earlier in ledger.runs
        if earlier.key == key
        and not ledger.forgotten(key, earlier.began)
        and asked - keep - stale + patience < earlier.ended < asked - patience
    ]
    if run.ended == inf:
        ledger.referee.wrong(f"{one.part} has the result of a run that has not ended")
    elif run.ended < asked - keep - stale - patience and not ledger.explained(
        Excused.RESULT, run.began, run.who, one.part
    ):
        ledger.referee.wrong(f"{one.part} has a result that was {asked - run.ended:.3f} s old")
    elif run.ended > asked + patience and any(
        not ledger.explained(Excused.RESULT, earlier.began, earlier.who, one.part) for earlier in there
    ):
        ledger.referee.wrong(f"{one.part} has waited for a run although there was a result")


async def _update(ledger: Ledger, session: Session, one: Round, ttl: float, patience: float) -> None:
    """An update: one run that begins after it sees it. Or a delivery of the ticket, which is none."""
    job, performs = UniqueJob(session, "x", ttl=ttl), one.doing == "perform"
    ticket = Ticket("x", "until_executed", 60_000, one.part[-1] * 22).encode()  # of several deliveries
    ledger.version += not performs
    async with asyncio.timeout(one.timeout or None):
        try:
            async with job.perform(ticket) if performs else job.run(waiting=1):
                seen = ledger.version
                await ledger.execute(one.part, one.hold)
                ledger.processed = max(ledger.processed, seen)
        except DuplicateJobError:
            ledger.referee.tell(one.part, "is a duplicate")


async def _number(ledger: Ledger, session: Session, one: Round, ttl: float, patience: float) -> None:
    """One of a crowd."""
    came = ledger.referee.now
    place = await Turnstile(session, "x", window=WINDOW).enter()
    now = ledger.referee.now
    ledger.referee.tell(one.part, f"has number {place}")
    before = [(at, who) for number, at, who in ledger.places if number == 1]
    if place == 1 and before and now < before[-1][0] + WINDOW:
        at, who = before[-1]
        if not ledger.explained(Excused.RESULT, at, who, one.part):
            ledger.referee.wrong(f"two are first, {now - at:.3f} s after each other")
    ledger.places.append((place, came, one.part))


async def _write(ledger: Ledger, session: Session, one: Round, ttl: float, patience: float) -> None:
    """A value that is read, changed and written under a lock."""
    register = FencedRegister(session, "x")
    async with Lock(session, "x", ttl=ttl).acquire(blocking_timeout=one.timeout) as lease:
        began = ledger.referee.now
        before: list[Any] = await register.read() or []
        # A task that reads under a later lock sees every write under an earlier one.
        newest, ledger.newest = ledger.newest, max(ledger.newest, before[-1] if before else 0)
        if before and before[-1] < newest and not ledger.explained(Excused.LEASE, began, one.part):
            ledger.referee.wrong(f"{one.part} reads {before[-1]} after {newest} was read")
        await asyncio.sleep(one.hold)
        try:
            await register.write([*before, lease.fencing_token], lease.fencing_token)
        except StaleFenceError:
            if not ledger.explained(Excused.LEASE, began, one.part):
                ledger.referee.wrong(f"{one.part}: stale, though it held the lock")
            return
        if sorted(before) != before and not ledger.explained(Excused.LEASE, began, one.part):
            ledger.referee.wrong(f"{one.part}: {before} was written out of order")


async def _lead(ledger: Ledger, session: Session, one: Round, ttl: float, patience: float) -> None:
    """A leader whose body needs up to its whole grace to unwind, and never runs beside another one."""
    referee, grace = ledger.referee, min(GRACE, ttl / 5)
    process = one.part.partition(".")[0]
    rng = random.Random(f"{one.part} {one.hold}")
    unwinds = grace * min(0.9, rng.random() * 1.5)
    leads = one.hold + rng.choice((0.0, rng.uniform(0, 3) * ttl))  # some outlast an outage

    async def main(term: Term) -> None:
        run = ledger.begin(one.part, "x")
        try:
            await asyncio.sleep(leads)
            run.ended = referee.now
        finally:
            referee.excuses.give(Excused.LATE, process, referee.now, referee.now + unwinds)
            try:
                await asyncio.sleep(unwinds)
            finally:
                run.over = referee.now
                referee.tell(one.part, f"term {term.fencing_token} ends")

    leadership = Leadership(session, "x", ttl=ttl, grace=grace, value=one.part)
    async with asyncio.timeout(one.timeout or None):
        await leadership.run(main)


async def _keep(ledger: Ledger, session: Session, one: Round, ttl: float, patience: float) -> None:
    """A schedule that is kept for a while."""
    await ledger.ticks.keep(session, one, ttl)


async def _entangle(ledger: Ledger, session: Session, one: Round, ttl: float, patience: float) -> None:
    """Several locks, each taken while those before are held."""
    await ledger.rings.entangle(session, one, ttl)


async def _unwind(ledger: Ledger, session: Session, one: Round, ttl: float, patience: float) -> None:
    """A lock with a grace."""
    await ledger.graces.hold(session, one, ttl, patience)


async def _admit(ledger: Ledger, session: Session, one: Round, ttl: float, patience: float) -> None:
    """So many in so many seconds, of all processes together."""
    await ledger.counts.admit(session, one)


async def _meet(ledger: Ledger, session: Session, one: Round, ttl: float, patience: float) -> None:
    """Tasks that wait until others have done their steps."""
    name = f"x{one.part.rpartition('.r')[2]}"
    await ledger.counts.meet(Latch(session, name, STEPS, ttl=5), one, session)


async def _combine(ledger: Ledger, session: Session, one: Round, ttl: float, patience: float) -> None:
    """A task that leaves an item with a combiner, or runs what is left."""
    await ledger.combined.combine(session, one, ttl)


async def _end(ledger: Ledger, session: Session, one: Round, ttl: float, patience: float) -> None:
    """A session that is closed while a lease of it is held without a body."""
    await ledger.ends.end(session, one, ttl, patience)


WORKS = {
    "share": _share,
    "update": _update,
    "number": _number,
    "write": _write,
    "keep": _keep,
    "lead": _lead,
    "entangle": _entangle,
    "unwind": _unwind,
    "admit": _admit,
    "meet": _meet,
    "combine": _combine,
    "end": _end,
}
"""By the name that a kind gives."""
