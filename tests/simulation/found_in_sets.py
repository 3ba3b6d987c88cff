"""Schedules that found a defect of locks of several names, or of tasks with several locks; see `found.py`."""

from __future__ import annotations

from tests.simulation.small import crew, fault, one, schedule
from tests.simulation.world.kinds import Want
from tests.simulation.world.network import NEAR
from tests.simulation.world.schedule import Schedule

X_Y, X_Z, Y_Z, ALL = (Want(names=tuple(names)) for names in ("xy", "xz", "yz", "xyz"))

IN_SETS: dict[str, Schedule] = {
    "waiters that lack the same name wake each other round the queue for as long as it is held": schedule(
        "multilock",
        94000164,
        5.0,
        crew(
            "poll",
            NEAR,
            one("p0.w0.r0", 0.0, 0.0, want=X_Y),
            one("p0.w1.r1", 0.0061, 0.0, want=Want(names=("y",))),
            one("p0.w2.r0", 0.00352, 0.00318, want=ALL),
            one("p0.w3.r0", 0.0, 0.05433, want=ALL, doing="extend"),
            poll=0.5,
            rate=1.00264,
            busy=0.0005,
        ),
        crew(
            "keyspace",
            NEAR,
            one("p1.w0.r0", 0.00933, 0.0, want=X_Z),
            one("p1.w0.r2", 0.00014, 0.00089, want=ALL),
            one("p1.w1.r0", 0.0, 0.0, want=X_Y, doing="adopt"),
            one("p1.w2.r0", 0.00413, 3.66566, want=Y_Z),
            one("p1.w3.r0", 0.0, 7.379, want=Want(names=("y",))),
            rate=1.00177,
            busy=0.0005,
        ),
        crew(
            "keyspace",
            NEAR,
            one("p2.w0.r0", 0.0, 0.03072, want=Y_Z),
            one("p2.w1.r0", 0.0, 0.0, want=ALL),
            one("p2.w2.r1", 0.19383, 1.66873, want=X_Z),
            one("p2.w2.r2", 0.00879, 1.54845, want=Y_Z),
            one("p2.w3.r0", 0.0, 0.1415, want=Y_Z),
            rate=1.00127,
            busy=0.0005,
        ),
        crew(
            "keyspace",
            NEAR,
            one("p3.w0.r0", 0.00811, 0.00325, want=Want(names=("y",))),
            one("p3.w1.r0", 0.00126, 0.00046, want=X_Y),
            one("p3.w1.r1", 0.21995, 0.0, want=ALL),
            rate=1.00050,
            busy=0.0005,
        ),
        crew(
            "keyspace",
            NEAR,
            one("p4.w0.r0", 0.00816, 0.00282, want=X_Y, doing="adopt"),
            one("p4.w1.r0", 0.0, 0.0, want=ALL),
            one("p4.w1.r1", 0.0, 0.08029, want=ALL),
            rate=0.99635,
            busy=0.0005,
        ),
        jitter=0.1,
    ),
    # The wait of p3.w1.r0 ends in the turn in which its session writes its record again.
    "a record of a long wait that was never sent counts as the one that the server has": schedule(
        "rings",
        97001956,
        5.0,
        crew(
            "tracking",
            NEAR,
            one("p0.w1.r0", 0.0087, 0.0014394373154131763),
            one("p0.w1.r1", 0.1625, 0.00193249544984271),
            one("p0.w2.r0", 0.005, 0.0),
            busy=0.01,
        ),
        crew(
            "tracking",
            NEAR,
            one("p1.w0.r0", 0.0, 0.0013953356449293724),
            one("p1.w0.r1", 0.2146, 5.151191983970213),
            one("p1.w1.r0", 0.0046, 0.0027557230341175),
            one("p1.w1.r1", 0.0, 0.09577470474639026),
            busy=0.01,
        ),
        crew(
            "tracking",
            NEAR,
            one("p2.w0.r0", 0.2909, 0.0),
            one("p2.w1.r0", 0.0, 0.004090502595262711),
            busy=0.01,
        ),
        crew(
            "plain",
            NEAR,
            one("p3.w0.r0", 0.0019, 0.030598822262281434),
            one("p3.w0.r1", 0.0009, 0.0),
            one("p3.w1.r0", 0.0333, 0.0),
            one("p3.w2.r0", 0.0011, 0.0),
            poll=0.064,
            busy=0.01,
        ),
        jitter=0.1,
    ),
    # The writer of p0 stands between two readers of p1, and its process is killed: its place lasts 2 s more.
    "a writer whose process was killed counts as a part of a deadlock": schedule(
        "rings",
        99000366,
        1.0,
        crew("keyspace", NEAR, one("p0.w1.r0", 0.00477, 0.0), busy=0.0005),
        crew(
            "keyspace",
            NEAR,
            one("p1.w2.r0", 0.0, 0.055126),
            one("p1.w3.r0", 0.0, 0.0),
            busy=0.0005,
        ),
        jitter=0.1,
        faults=(fault("kill", "p0", 0.032241),),
    ),
}
