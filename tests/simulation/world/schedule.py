"""A schedule: what processes and tasks want and do, and what befalls them, drawn from a seed.

It is plain data, every part of which has a name, as `p1.w0.r2` for the third round of the first worker of
the second
process: so that a failing one can be made smaller, and run again without the parts that do not matter.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from . import network
from .kinds import KINDS, MASTERS, Kind, Want
from .network import Delays
from .node import ServerClock


@dataclass(frozen=True, kw_only=True)
class Round:
    """One task that wants the lock once; times in seconds.

    Attributes:
        after: How long its worker does something else before.
        timeout: How long it waits; None: for ever; 0: it asks once.
        cancel: When it is cancelled, counted from when it asks; None: never.
        hold: How long it holds it.
        doing: The act beside holding; of a job: `perform`, a delivery of a ticket and no update; of a rate
            limit: `settle`, nothing was used after all.
    """

    part: str
    after: float
    want: Want
    timeout: float | None
    cancel: float | None
    hold: float
    doing: str = ""
    steal: bool = False


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One round after the other."""

    part: str
    rounds: tuple[Round, ...]


@dataclass(frozen=True, kw_only=True)
class Crew:
    """The workers of one process.

    Attributes:
        wakeup: How its session learns that a lock is free; `plain` for the transport without order, `resp2`
            for a client and a session of the older protocol.
        poll: The longest time between two polls of a waiter.
        first_poll: The time to its first poll, at most.
        rate: How much faster its clock runs than the world's.
        busy: How long a turn of its loop takes at most.
    """

    part: str
    delays: Delays
    wakeup: str
    poll: float
    rate: float
    workers: tuple[Worker, ...]
    busy: float = 0.0
    first_poll: float = 0.004

    @property
    def hears(self) -> bool:
        """Whether it is told when a lock is free."""
        return self.wakeup in ("tracking", "keyspace")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that befalls a server or a process.

    Attributes:
        at: When it begins.
        lasts: For how long.
        what: Its name, as in `faults`.
        target: Which process or server.
        amount: The meaning depends on the fault.
        servers: Those that a process is cut off from; empty: all.
    """

    part: str
    at: float
    lasts: float
    what: str
    target: str
    amount: float = 0.0
    servers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Everything that one seed says.

    Attributes:
        jitter: How much of the time between two polls is random.
        clocks: Of the servers, in the order of the kind's `hosts`; empty: each stands somewhere.
        sorts: Of faults, the only ones that may be in it; empty: all.
        hasty: Whether a master of several has less time to answer than messages may take: votes come late.
        without: The parts that were left out.
    """

    kind: Kind
    seed: int
    ttl: float
    jitter: float
    crews: tuple[Crew, ...]
    faults: tuple[Fault, ...] = ()
    style: str = "mixed"
    faulty: bool = False
    sorts: tuple[str, ...] = ()
    clocks: tuple[ServerClock, ...] = ()
    hasty: bool = False
    without: tuple[str, ...] = ()

    def parts(self) -> Iterator[str]:
        """The names of its parts, the larger ones first."""
        yield from (crew.part for crew in self.crews)
        yield from (fault.part for fault in self.faults)
        yield from (worker.part for crew in self.crews for worker in crew.workers)
        yield from (one.part for crew in self.crews for worker in crew.workers for one in worker.rounds)

    def leaving_out(self, parts: Collection[str]) -> Schedule:
        """The same without these parts."""

        def rounds(worker: Worker) -> Worker:
            return replace(worker, rounds=tuple(one for one in worker.rounds if one.part not in parts))

        def crew(crew: Crew) -> Crew:
            left = [rounds(worker) for worker in crew.workers if worker.part not in parts]
            return replace(crew, workers=tuple(worker for worker in left if worker.rounds))

        crews = [crew(one) for one in self.crews if one.part not in parts]
        return replace(
            self,
            crews=tuple(one for one in crews if one.workers),
            faults=tuple(fault for fault in self.faults if fault.part not in parts),
            without=tuple(dict.fromkeys((*self.without, *parts))),
        )

    def __str__(self) -> str:
        style = f"{self.style}{', hasty' if self.hasty else ''}"
        out = [f"{self.kind}, seed {self.seed}: ttl {self.ttl:g} s, jitter {self.jitter:g}, {style}"]
        out += [
            f"  {host}: clock at {clock.rate:g}, {clock.ahead:.3f} s ahead"
            for host, clock in zip(self.kind.hosts, self.clocks, strict=False)
        ]
        for crew in self.crews:
            least, most = crew.delays.least * 1000, crew.delays.most * 1000
            out.append(
                f"  {crew.part}: {crew.wakeup}, polls each {crew.poll:g} s{_first(crew)}, "
                f"{least:g}-{most:g} ms one way"
                f"{', spikes' if crew.delays.spikes else ''}, clock at {crew.rate:g}"
                f"{f', turns of {crew.busy * 1000:g} ms' if crew.busy else ''}"
            )
            for worker in crew.workers:
                out += [f"    {_described(one)}" for one in worker.rounds]
        out += [f"  {fault.part}: {_of_fault(fault)}" for fault in self.faults]
        return "\n".join(out)


def _first(crew: Crew) -> str:
    return " from the beginning" if crew.first_poll >= crew.poll else ""


def _described(one: Round) -> str:
    text = f"{one.part}: after {one.after:.3f} s wants {one.want}{' by force' if one.steal else ''}"
    text += "" if one.timeout is None else f", for {one.timeout:.3f} s" if one.timeout else ", once"
    text += "" if one.cancel is None else f", cancelled after {one.cancel:.3f} s"
    return f"{text}; holds for {one.hold:.3f} s" + (f", {one.doing}" if one.doing else "")


def _of_fault(fault: Fault) -> str:
    text = f"{fault.at:.3f} s: {fault.what} of {fault.target} for {fault.lasts:.3f} s"
    text += f" ({fault.amount:.3f})" if fault.amount else ""
    return f"{text} from {', '.join(fault.servers)}" if fault.servers else text


# -- drawing one

LONGEST_POLL = 5.0
"""Seconds: so long that a wakeup that was lost shows."""
SLOW = 0.25
"""The part of all schedules in which who hears its bell polls after that time at first."""
DRIFT = 0.004
"""How much faster or slower than the world's a clock runs, at most: two differ by less than 1 %."""
APART = 1000.0
"""Seconds by which the clocks of two servers differ, at most."""
NEARLY_ALIKE = 0.02
"""Seconds by which they differ where they are kept in step."""
_DELAYS = (network.NEAR, network.NEAR, network.FAR, network.STEADY_FAR, network.SPIKY)
_WAKEUPS = ("tracking", "tracking", "tracking", "keyspace", "keyspace", "poll", "plain", "resp2")
_PROCESSES, _FEWER_PROCESSES = (1, 2, 2, 2, 3, 3, 4, 6), (1, 2, 2, 2, 3, 3, 3, 4)
_WORKERS, _FEWER_WORKERS = (1, 2, 2, 3, 4), (1, 1, 2, 2, 3)
"""How many there are, with how often. With several servers, and with phases, each round takes more requests:
fewer tasks collide there as often, and more schedules fit into the same time."""
STYLES = ("mixed", "mixed", "impatient", "restless", "single", "steady")
"""How the tasks of a schedule are: `impatient` waiters have short time-outs, `restless` ones are
cancelled, `single` tries
mix with waiters without a time-out, `steady` ones do neither."""


def drawn(kind: str, seed: int, *, faulty: bool = False, sorts: Collection[str] = ()) -> Schedule:
    """The schedule of this seed, with faults of these sorts, or of any."""
    rng = random.Random(f"{kind}/{seed}/{faulty}")
    delays = rng.choice(_DELAYS)
    style = rng.choice(STYLES)
    wakeup = rng.choice(_WAKEUPS)
    ttl = rng.choice((1.0, 1.0, 2.0, 5.0))
    skewed = rng.random() < 0.3
    busy = rng.choice((0.0, 0.0005, 0.01))
    # A poll of several masters is a question to each of them, and to undo the votes as many again.
    costly = KINDS[kind].phased or KINDS[kind].topology != "one"
    polls = (0.064, 0.064, 0.5) if KINDS[kind].topology != "masters" else (0.25, 0.25, 0.5)
    crews = []
    for number in range(rng.choice(_PROCESSES if KINDS[kind].topology == "one" else _FEWER_PROCESSES)):
        part = f"p{number}"
        alike = rng.random() < 0.8
        way = wakeup if alike else rng.choice(_WAKEUPS)
        if KINDS[kind].replicas and way == "plain":
            way = "poll"  # to ask replicas takes a connection of one's own
        crews.append(
            Crew(
                part=part,
                delays=delays if alike else rng.choice(_DELAYS),
                wakeup=way,
                poll=LONGEST_POLL if way in ("tracking", "keyspace") else rng.choice(polls),
                busy=busy,
                rate=1.0 + rng.uniform(-DRIFT, DRIFT) if skewed else 1.0,
                workers=tuple(
                    _worker(rng, KINDS[kind], f"{part}.w{worker}", style, delays, ttl)
                    for worker in range(rng.choice(_FEWER_WORKERS if costly else _WORKERS))
                ),
            )
        )
    schedule = Schedule(
        kind=KINDS[kind],
        seed=seed,
        ttl=ttl,
        jitter=rng.choice((0.0, 0.1)),
        crews=tuple(crews),
        style=style,
        faulty=faulty,
        sorts=tuple(sorts),
    )
    if schedule.kind.steals:
        from .thefts import with_thefts

        schedule = with_thefts(schedule)
    if schedule.kind.cached:
        from .caches import with_uses

        schedule = with_uses(random.Random(f"{kind}/{seed}/{faulty}/uses"), schedule)
    if schedule.kind.unconfirmed:
        from .unconfirmed import with_uses

        schedule = with_uses(random.Random(f"{kind}/{seed}/{faulty}/uses"), schedule)
    schedule = _with_slow_polls(random.Random(f"{kind}/{seed}/{faulty}/polls"), schedule)
    schedule = _with_servers(random.Random(f"{kind}/{seed}/{faulty}/servers"), schedule, skewed=skewed)
    if faulty:
        from . import failures, faults

        grouped = schedule.kind.topology in ("cluster", "sentinel")
        schedule = (failures if grouped else faults).strike(rng, schedule)
        if schedule.kind.unconfirmed and not (sorts or grouped) and seed % 4 == 0:
            schedule = replace(faults.strike(rng, replace(schedule, sorts=("kill behind",))), sorts=())
    return schedule


def _with_slow_polls(rng: random.Random, schedule: Schedule) -> Schedule:
    """In one of four, a waiter that hears its bell polls after 5 s at first, not 4 ms: a lost wakeup shows.

    Half of these have two processes: the second one takes the lock and lets go of it in a loop, so that a
    release often comes between a refusal and the request that listens.
    """
    if rng.random() >= SLOW:
        return schedule
    crews = schedule.crews
    if not schedule.kind.work and rng.random() < 0.5:
        crews = (crews[0], _quick(rng, schedule.kind, "p1"))
    crews = tuple(replace(crew, first_poll=crew.poll) if crew.hears else crew for crew in crews)
    return replace(schedule, crews=crews, jitter=0.0)


def _quick(rng: random.Random, kind: Kind, part: str) -> Crew:
    pause, hold = rng.choice((0.0, rng.uniform(0.004, 0.012))), rng.uniform(0.0, 0.015)
    rounds = tuple(
        Round(
            part=f"{part}.w0.r{number}",
            after=rng.uniform(0, 2) * pause,
            want=kind.wanted(rng),
            timeout=None,
            cancel=None,
            hold=rng.uniform(0.5, 1.5) * hold,
        )
        for number in range(rng.randint(3, 20))
    )
    worker = Worker(part=f"{part}.w0", rounds=rounds)
    return Crew(
        part=part, delays=network.NEAR, wakeup="tracking", poll=LONGEST_POLL, rate=1.0, workers=(worker,)
    )


def _with_servers(rng: random.Random, schedule: Schedule, *, skewed: bool) -> Schedule:
    """Which servers there are, with what clocks, and how much time masters have to answer."""
    kind, hasty, apart = schedule.kind, False, APART
    if kind.topology == "masters":
        apart = rng.choice((APART, NEARLY_ALIKE))
        kind = replace(kind, hosts=rng.choice((kind.hosts, kind.hosts, kind.hosts, MASTERS)))
        hasty = rng.random() < 0.2
    clocks = tuple(
        ServerClock(ahead=rng.uniform(0.0, apart), rate=1.0 + (rng.uniform(-DRIFT, DRIFT) if skewed else 0.0))
        for _ in kind.hosts
    )
    return replace(schedule, kind=kind, hasty=hasty, clocks=clocks)


def _worker(rng: random.Random, kind: Kind, part: str, style: str, delays: Delays, ttl: float) -> Worker:
    # Round trips are what waiting is measured in: what happens within a few of them is where the races are.
    trip = max(0.005, 2 * delays.most)
    rounds = []
    for number in range(rng.choice((1, 1, 2, 3, 4))):
        timeout: float | None = None
        cancel: float | None = None
        how = rng.random()
        if style == "impatient" or (style == "mixed" and how < 0.25):
            timeout = rng.choice((rng.uniform(0.5, 4) * trip, rng.uniform(0.05, 0.6)))
        elif (style == "single" and how < 0.5) or (style == "mixed" and how < 0.35):
            timeout = 0.0
        if (style == "restless" and how < 0.6) or rng.random() < (0.0 if style == "steady" else 0.25):
            cancel = rng.choice((rng.uniform(0, 4) * trip, rng.uniform(0, 0.6)))
        rounds.append(
            Round(
                part=f"{part}.r{number}",
                after=rng.choice((0.0, rng.uniform(0, 2) * trip, rng.uniform(0, 0.3))),
                want=kind.wanted(rng),
                timeout=timeout,
                cancel=cancel,
                hold=rng.choice(
                    (0.0, rng.uniform(0, 1) * trip, rng.uniform(0, 0.2), rng.uniform(0, 1.5) * ttl)
                ),
                doing=rng.choice(kind.doings) if kind.doings and rng.random() < 0.15 else "",
            )
        )
    return Worker(part=part, rounds=tuple(rounds))
