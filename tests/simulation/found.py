"""Schedules that found a defect, as small as they could be made: each must go well from then on."""

from __future__ import annotations

from itertools import groupby

from tests.simulation.world.kinds import KINDS, Want
from tests.simulation.world.network import FAR, NEAR, SPIKY, STEADY_FAR, Delays
from tests.simulation.world.schedule import Crew, Fault, Round, Schedule, Worker

_ONE = Want()
_READER, _UPGRADABLE = Want(mode="reader"), Want(mode="upgradable")


def _round(
    part: str,
    after: float,
    hold: float,
    *,
    want: Want = _ONE,
    timeout: float | None = None,
    cancel: float | None = None,
    doing: str = "",
) -> Round:
    return Round(part=part, after=after, want=want, timeout=timeout, cancel=cancel, hold=hold, doing=doing)


def _crew(
    wakeup: str, delays: Delays, *rounds: Round, poll: float = 5.0, rate: float = 1.0, busy: float = 0.0
) -> Crew:
    workers = tuple(
        Worker(part=part, rounds=tuple(own))
        for part, own in groupby(rounds, lambda one: one.part.rpartition(".")[0])
    )
    part = rounds[0].part.partition(".")[0]
    return Crew(part=part, delays=delays, wakeup=wakeup, poll=poll, rate=rate, workers=workers, busy=busy)


def _schedule(
    kind: str, seed: int, ttl: float, *crews: Crew, jitter: float = 0.0, faults: tuple[Fault, ...] = ()
) -> Schedule:
    return Schedule(kind=KINDS[kind], seed=seed, ttl=ttl, jitter=jitter, crews=crews, faults=faults)


FOUND: dict[str, Schedule] = {
    "an arming for a waiter that was granted meanwhile takes the bell of another one away": _schedule(
        "fairlock",
        214,
        1.0,
        _crew(
            "keyspace",
            STEADY_FAR,
            _round("p0.w1.r0", 0.18084, 1.18175, timeout=0.0),
            _round("p0.w1.r3", 0.00835, 1.1152, timeout=0.34349),
        ),
        _crew(
            "keyspace",
            STEADY_FAR,
            _round("p1.w0.r0", 0.16529, 0.0135),
            _round("p1.w1.r0", 0.0, 0.16363, timeout=0.0),
        ),
        _crew(
            "keyspace",
            STEADY_FAR,
            _round("p2.w0.r1", 0.0, 0.05387),
            _round("p2.w1.r1", 0.12201, 0.07476),
            _round("p2.w3.r0", 0.0, 0.03017),
        ),
        jitter=0.1,
    ),
    "a single try that is cancelled leaves the clock of silence running": _schedule(
        "fairlock",
        464,
        2.0,
        _crew(
            "tracking",
            FAR,
            _round("p0.w0.r0", 0.2211, 0.001),
            _round("p0.w1.r0", 0.0, 0.03475, cancel=0.52994),
            _round("p0.w1.r1", 0.27382, 0.01821, timeout=0.0, cancel=0.00145, doing="detach"),
        ),
        _crew(
            "tracking",
            FAR,
            _round("p1.w1.r0", 0.0, 2.49505),
        ),
    ),
    "the last waiter leaves its bell behind where the server did not know the scripts": _schedule(
        "fairlock",
        170,
        2.0,
        _crew(
            "tracking",
            FAR,
            _round("p2.w1.r0", 0.02403, 0.16002, cancel=0.12841),
            _round("p2.w2.r0", 0.0, 0.0),
        ),
    ),
    "a waiter that gives up while its arming is under way stops the heartbeat of the others": _schedule(
        "fairlock",
        595,
        5.0,
        _crew(
            "tracking",
            SPIKY,
            _round("p0.w0.r1", 0.0, 6.79468, cancel=0.03351),
            _round("p0.w0.r2", 0.0, 0.01597),
            _round("p0.w1.r0", 0.17436, 0.0, cancel=0.00086),
        ),
        _crew(
            "tracking",
            SPIKY,
            _round("p3.w0.r1", 0.01184, 6.65417),
            _round("p3.w2.r1", 0.08019, 7.40985),
        ),
    ),
    "without order, a waiter that gives up takes the bell of the others away": _schedule(
        "fairlock",
        8,
        1.0,
        _crew(
            "tracking",
            SPIKY,
            _round("p0.w2.r1", 0.28928, 0.0, doing="adopt"),
        ),
        _crew(
            "plain",
            FAR,
            _round("p1.w0.r0", 0.0, 0.15557, timeout=0.31715),
            _round("p1.w1.r0", 0.0, 0.00137, doing="detach"),
            _round("p1.w3.r1", 0.00019, 0.15919, timeout=0.0),
            poll=0.5,
        ),
        jitter=0.1,
    ),
    "a writer that waits after one that gives up has no reservation, and a reader passes it": _schedule(
        "rwlock",
        3000136,
        1.0,
        _crew("plain", STEADY_FAR, _round("p0.w0.r0", 0.01922, 0.69803), poll=0.064),
        _crew(
            "plain",
            STEADY_FAR,
            _round("p2.w0.r0", 0.0, 1.24072, want=_UPGRADABLE, timeout=0.06781),
            _round("p2.w1.r0", 0.02099, 0.0, want=_READER, timeout=0.0),
            _round("p2.w2.r0", 0.06419, 0.00656, want=_UPGRADABLE),
            poll=0.064,
        ),
        _crew("plain", STEADY_FAR, _round("p3.w0.r0", 0.215, 0.05517, want=_READER), poll=0.064),
        _crew(
            "plain",
            STEADY_FAR,
            _round("p4.w0.r0", 0.02736, 0.70107, want=_READER),
            _round("p4.w1.r0", 0.0, 0.1568, want=_READER, cancel=0.0034),
            _round("p4.w1.r1", 0.20396, 0.16621, want=_UPGRADABLE, timeout=0.06532),
            _round("p4.w2.r0", 0.0075, 0.00985, cancel=0.5981),
            poll=0.064,
        ),
        jitter=0.1,
    ),
    "a reader that was refused has no turn until its bell is armed": _schedule(
        "rwlock",
        3000131,
        1.0,
        _crew(
            "poll",
            SPIKY,
            _round("p0.w0.r0", 0.09442, 0.0, cancel=0.0263),
            _round("p0.w1.r0", 0.18614, 0.0, want=_READER, cancel=0.0031),
            _round("p0.w1.r1", 0.0, 0.00767, want=_READER, cancel=0.53387),
            poll=0.064,
        ),
        _crew(
            "poll",
            SPIKY,
            _round("p2.w0.r0", 0.01381, 0.0, doing="extend"),
            _round("p2.w1.r0", 0.0, 0.52749, want=_READER, cancel=0.21161),
            _round("p2.w3.r1", 0.0, 0.07777, want=_READER, cancel=0.24579),
            _round("p2.w3.r2", 0.00155, 0.08028, cancel=0.29605),
            poll=0.5,
        ),
        jitter=0.1,
    ),
    "readers of one process that come one after the other keep a turn, and no writer enters": _schedule(
        "rwlock",
        1,
        1.0,
        _crew(
            "tracking",
            STEADY_FAR,
            _round("p0.w0.r0", 0.35, 0.02, want=_READER),
            *(_round(f"p0.w{n}.r0", 0.6 + n * 0.007, 0.01, want=_READER) for n in range(1, 60)),
        ),
        _crew("tracking", STEADY_FAR, _round("p1.w0.r0", 0.0, 0.5)),
        _crew("tracking", STEADY_FAR, _round("p2.w0.r0", 0.3, 0.02)),
    ),
    "a job's waiter that was turned away has its seat put back, and its queue is not forgotten": _schedule(
        "uniquejob",
        3000398,
        1.0,
        _crew(
            "tracking",
            SPIKY,
            _round("p0.w0.r0", 0.0, 1.48793, timeout=0.0),
            _round("p0.w1.r0", 0.0, 0.00782, timeout=0.0),
            rate=0.9979715569703373,
            busy=0.0005,
        ),
        _crew(
            "tracking",
            SPIKY,
            _round("p1.w2.r0", 0.0, 0.15693),
            rate=1.0039526929243663,
            busy=0.0005,
        ),
    ),
    "a waiter that gets in leaves its place on the master that refused it": _schedule(
        "redlock",
        3000014,
        1.0,
        _crew("tracking", STEADY_FAR, _round("p0.w0.r0", 0.01321687, 0.02760496)),
        _crew("resp2", SPIKY, _round("p1.w0.r0", 0.06210255, 0.15760967), poll=0.064),
        _crew("tracking", STEADY_FAR, _round("p2.w0.r0", 0.0, 0.26718467)),
    ),
    "a waiter that gives up while its slot moves leaves its reservation behind": _schedule(
        "cluster-rwlock",
        1,
        2.0,
        _crew("tracking", NEAR, _round("p0.w0.r0", 0.0, 0.5)),
        _crew("tracking", NEAR, _round("p1.w0.r0", 0.1, 0.0, want=Want(mode="reader"), timeout=0.35)),
        _crew("tracking", NEAR, _round("p2.w0.r0", 0.2, 0.0)),
        faults=(Fault(part="f0", at=0.4, lasts=0.3, what="move", target="c0"),),
    ),
    "a waiter that gets in takes along the bell of one that has sat down since": _schedule(
        "fairlock",
        3000383,
        5.0,
        _crew(
            "plain",
            SPIKY,
            _round("p0.w0.r0", 0.06326, 1.41308, cancel=0.20514),
            poll=0.5,
            rate=0.9989164205837046,
            busy=0.0005,
        ),
        _crew(
            "plain",
            SPIKY,
            _round("p1.w0.r0", 0.0, 0.0, cancel=0.03026, doing="adopt"),
            _round("p1.w0.r1", 0.0, 1.46837, cancel=0.32715),
            _round("p1.w1.r0", 0.01397, 0.0),
            poll=0.5,
            rate=1.0016106304978398,
            busy=0.0005,
        ),
        _crew(
            "poll",
            NEAR,
            _round("p2.w1.r0", 0.01585, 0.00557, cancel=0.02471),
            poll=0.5,
            rate=1.0036500941811828,
            busy=0.0005,
        ),
        jitter=0.1,
    ),
    "a waiter gets in before others, on the seat of one of its process that has left": _schedule(
        "fair-semaphore",
        4000512,
        1.0,
        _crew(
            "plain",
            SPIKY,
            _round("p0.w1.r0", 0.0, 0.0, want=Want(permits=2), doing="adopt"),
            poll=0.064,
            busy=0.0005,
        ),
        _crew(
            "plain",
            SPIKY,
            _round("p3.w0.r2", 0.27731, 0.11635, cancel=0.33687),
            _round("p3.w1.r0", 0.0, 0.05124, cancel=0.02377),
            _round("p3.w1.r1", 0.01122, 0.0, want=Want(permits=2)),
            _round("p3.w2.r0", 0.00396, 0.00269, want=Want(permits=2), cancel=0.02094),
            _round("p3.w2.r1", 0.01336, 0.09181, want=Want(permits=3)),
            _round("p3.w3.r0", 0.0321, 1.34609, cancel=0.10137),
            poll=0.064,
            busy=0.0005,
        ),
    ),
    "a reader that is refused beside another one at the end of its time waits on": _schedule(
        "rwlock",
        4000061,
        2.0,
        _crew(
            "tracking",
            NEAR,
            _round("p0.w0.r0", 0.00856, 0.00133, want=_READER),
            _round("p0.w1.r0", 0.01097, 0.19982, cancel=0.10342),
            _round("p0.w2.r0", 0.0, 0.162, want=_READER),
            _round("p0.w3.r0", 0.00868, 0.10797, want=_READER, timeout=0.03173),
            busy=0.01,
        ),
    ),
    "a release of which all masters lost the first answer is told that the lease was lost": _schedule(
        "redlock",
        4000050,
        1.0,
        _crew("tracking", NEAR, _round("p0.w1.r0", 0.0, 0.07382, timeout=0.55857)),
        faults=(Fault(part="f1", at=0.05, lasts=0.1, what="lost answer", target="p0"),),
    ),
    "writers that have reserved wait for each other, behind a reader that came later": _schedule(
        "rangelock",
        4000341,
        5.0,
        _crew(
            "tracking",
            NEAR,
            _round("p0.w2.r0", 0.07844, 0.01954, want=Want(low=0, high=4)),
            _round("p0.w3.r0", 0.0, 0.15222, want=Want(mode="upgradable", low=1, high=5)),
        ),
        _crew(
            "keyspace",
            FAR,
            _round("p2.w0.r0", 0.0188, 4.12292, want=Want(mode="reader", low=0, high=4)),
            _round("p2.w0.r1", 0.0, 0.01524, want=Want(mode="reader", low=0, high=2)),
            _round("p2.w1.r0", 0.00385, 0.0, want=Want(low=0, high=4)),
            _round("p2.w2.r0", 0.19941, 0.02023, want=Want(low=2, high=3), doing="downgrade"),
        ),
        faults=tuple(
            Fault(part=f"f{number}", at=at, lasts=0.0, what="clock back", target="redis", amount=5.0)
            for number, at in enumerate((0.12755, 0.6749))
        ),
    ),
    "a reader that gives up while the server refuses writes keeps others out after that": _schedule(
        "rwlock",
        1,
        1.0,
        _crew("tracking", NEAR, _round("p0.w0.r0", 0.0, 0.3), _round("p0.w0.r1", 3.0, 0.0)),
        _crew("tracking", NEAR, _round("p1.w0.r0", 0.1, 0.0, want=_READER, cancel=0.3)),
        faults=(Fault(part="f0", at=0.2, lasts=2.0, what="read only", target="redis"),),
    ),
    "a cancelled task that leaves two locks is held up for a second at each": _schedule(
        "reentrant",
        1,
        5.0,
        _crew("tracking", NEAR, _round("p0.w0.r0", 0.0, 0.3, cancel=0.15, doing="nest")),
        faults=(Fault(part="f0", at=0.14, lasts=3.0, what="freeze of the server", target="redis"),),
    ),
}
