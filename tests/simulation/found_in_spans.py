"""Schedules that found a defect in the locks for readers and writers, and for ranges."""

from __future__ import annotations

from tests.simulation.small import READER, UPGRADABLE, crew, one, schedule
from tests.simulation.world.kinds import Want
from tests.simulation.world.network import FAR, NEAR, SPIKY, STEADY_FAR
from tests.simulation.world.schedule import Fault, Schedule

IN_SPANS: dict[str, Schedule] = {
    "an undo that waits for a connection takes along the place of a reader that came meanwhile": schedule(
        "sentinel-rwlock",
        110001009,
        1.0,
        crew(
            "plain",
            NEAR,
            one("p0.w0.r0", 0.1916829, 0.6327477, want=READER, cancel=0.0148514),
            one("p0.w0.r1", 0.0, 0.0788127, want=READER),
            one("p0.w1.r0", 0.0, 0.1206231, want=READER),
            poll=0.5,
            busy=0.01,
        ),
        crew(
            "plain",
            NEAR,
            one("p1.w0.r1", 0.0099978, 0.0007105),
            one("p1.w0.r2", 0.0, 0.0),
            one("p1.w1.r1", 0.056091, 0.0018102, want=UPGRADABLE, cancel=0.0163297),
            one("p1.w1.r2", 0.0, 0.003658, want=READER, cancel=0.0146216),
            one("p1.w1.r3", 0.0, 0.4407799, want=READER, cancel=0.0125037),
            poll=0.5,
            busy=0.01,
        ),
        jitter=0.1,
    ),
    "a writer that waits after one that gives up has no reservation, and a reader passes it": schedule(
        "rwlock",
        3000136,
        1.0,
        crew("plain", STEADY_FAR, one("p0.w0.r0", 0.01922, 0.69803), poll=0.064),
        crew(
            "plain",
            STEADY_FAR,
            one("p2.w0.r0", 0.0, 1.24072, want=UPGRADABLE, timeout=0.06781),
            one("p2.w1.r0", 0.02099, 0.0, want=READER, timeout=0.0),
            one("p2.w2.r0", 0.06419, 0.00656, want=UPGRADABLE),
            poll=0.064,
        ),
        crew("plain", STEADY_FAR, one("p3.w0.r0", 0.215, 0.05517, want=READER), poll=0.064),
        crew(
            "plain",
            STEADY_FAR,
            one("p4.w0.r0", 0.02736, 0.70107, want=READER),
            one("p4.w1.r0", 0.0, 0.1568, want=READER, cancel=0.0034),
            one("p4.w1.r1", 0.20396, 0.16621, want=UPGRADABLE, timeout=0.06532),
            one("p4.w2.r0", 0.0075, 0.00985, cancel=0.5981),
            poll=0.064,
        ),
        jitter=0.1,
    ),
    "a reader that was refused has no turn until its bell is armed": schedule(
        "rwlock",
        3000131,
        1.0,
        crew(
            "poll",
            SPIKY,
            one("p0.w0.r0", 0.09442, 0.0, cancel=0.0263),
            one("p0.w1.r0", 0.18614, 0.0, want=READER, cancel=0.0031),
            one("p0.w1.r1", 0.0, 0.00767, want=READER, cancel=0.53387),
            poll=0.064,
        ),
        crew(
            "poll",
            SPIKY,
            one("p2.w0.r0", 0.01381, 0.0, doing="extend"),
            one("p2.w1.r0", 0.0, 0.52749, want=READER, cancel=0.21161),
            one("p2.w3.r1", 0.0, 0.07777, want=READER, cancel=0.24579),
            one("p2.w3.r2", 0.00155, 0.08028, cancel=0.29605),
            poll=0.5,
        ),
        jitter=0.1,
    ),
    "readers of one process that come one after the other keep a turn, and no writer enters": schedule(
        "rwlock",
        1,
        1.0,
        crew(
            "tracking",
            STEADY_FAR,
            one("p0.w0.r0", 0.35, 0.02, want=READER),
            *(one(f"p0.w{n}.r0", 0.6 + n * 0.007, 0.01, want=READER) for n in range(1, 60)),
        ),
        crew("tracking", STEADY_FAR, one("p1.w0.r0", 0.0, 0.5)),
        crew("tracking", STEADY_FAR, one("p2.w0.r0", 0.3, 0.02)),
    ),
    "a reader that is refused beside another one at the end of its time waits on": schedule(
        "rwlock",
        4000061,
        2.0,
        crew(
            "tracking",
            NEAR,
            one("p0.w0.r0", 0.00856, 0.00133, want=READER),
            one("p0.w1.r0", 0.01097, 0.19982, cancel=0.10342),
            one("p0.w2.r0", 0.0, 0.162, want=READER),
            one("p0.w3.r0", 0.00868, 0.10797, want=READER, timeout=0.03173),
            busy=0.01,
        ),
    ),
    "writers that have reserved wait for each other, behind a reader that came later": schedule(
        "rangelock",
        4000341,
        5.0,
        crew(
            "tracking",
            NEAR,
            one("p0.w2.r0", 0.07844, 0.01954, want=Want(low=0, high=4)),
            one("p0.w3.r0", 0.0, 0.15222, want=Want(mode="upgradable", low=1, high=5)),
        ),
        crew(
            "keyspace",
            FAR,
            one("p2.w0.r0", 0.0188, 4.12292, want=Want(mode="reader", low=0, high=4)),
            one("p2.w0.r1", 0.0, 0.01524, want=Want(mode="reader", low=0, high=2)),
            one("p2.w1.r0", 0.00385, 0.0, want=Want(low=0, high=4)),
            one("p2.w2.r0", 0.19941, 0.02023, want=Want(low=2, high=3), doing="downgrade"),
        ),
        faults=tuple(
            Fault(part=f"f{number}", at=at, lasts=0.0, what="clock back", target="redis", amount=5.0)
            for number, at in enumerate((0.12755, 0.6749))
        ),
    ),
    "a reader that gives up while the server refuses writes keeps others out after that": schedule(
        "rwlock",
        1,
        1.0,
        crew("tracking", NEAR, one("p0.w0.r0", 0.0, 0.3), one("p0.w0.r1", 3.0, 0.0)),
        crew("tracking", NEAR, one("p1.w0.r0", 0.1, 0.0, want=READER, cancel=0.3)),
        faults=(Fault(part="f0", at=0.2, lasts=2.0, what="read only", target="redis"),),
    ),
}
