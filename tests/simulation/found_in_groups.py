"""Schedules that found a defect where several servers belong together."""

from __future__ import annotations

from tests.simulation.small import READER, UPGRADABLE, crew, fault, one, schedule
from tests.simulation.world.kinds import Want
from tests.simulation.world.network import NEAR, SPIKY, STEADY_FAR
from tests.simulation.world.schedule import Fault, Schedule

THREE_QUICK = Want(names=("quick",), permits=3)

IN_GROUPS: dict[str, Schedule] = {
    "a waiter that gets in leaves its place on the master that refused it": schedule(
        "redlock",
        3000014,
        1.0,
        crew("tracking", STEADY_FAR, one("p0.w0.r0", 0.01321687, 0.02760496)),
        crew("resp2", SPIKY, one("p1.w0.r0", 0.06210255, 0.15760967), poll=0.064),
        crew("tracking", STEADY_FAR, one("p2.w0.r0", 0.0, 0.26718467)),
    ),
    # The release stops half-way, at the bell of the waiter; asked again, the server no longer has the lease.
    "without order, a release that stopped half-way while its slot moved is taken for a loss": schedule(
        "cluster-limits",
        93001393,
        5.0,
        crew(
            "plain",
            NEAR,
            one("p0.w0.r0", 0.0, 0.18, want=Want(keys=("all", "b"))),
            one("p0.w1.r0", 0.01, 0.0, want=Want(keys=("all", "b"))),
            poll=0.5,
        ),
        faults=(Fault(part="f0", at=0.1, lasts=1.0, what="move", target="c0"),),
    ),
    # While a waiter stands there, all keys of the name are on the node that the slot leaves.
    "a release of a reentrant lock while its slot moves stops between its token and its lock": schedule(
        "cluster-reentrant",
        1,
        5.0,
        crew("tracking", NEAR, one("p0.w0.r0", 0.02, 0.15)),
        crew("tracking", NEAR, one("p1.w0.r0", 0.0, 0.1)),
        faults=(Fault(part="f0", at=0.08, lasts=0.4, what="move", target="c0"),),
    ),
    "a waiter that gives up while its slot moves leaves its reservation behind": schedule(
        "cluster-rwlock",
        1,
        2.0,
        crew("tracking", NEAR, one("p0.w0.r0", 0.0, 0.5)),
        crew("tracking", NEAR, one("p1.w0.r0", 0.1, 0.0, want=Want(mode="reader"), timeout=0.35)),
        crew("tracking", NEAR, one("p2.w0.r0", 0.2, 0.0)),
        faults=(Fault(part="f0", at=0.4, lasts=0.3, what="move", target="c0"),),
    ),
    # A new connection tries its hearing out with a key, of which the slot is that of what waits for it. While
    # the slot was being moved, the node refused that key, and no connection came about.
    "with keyspace notifications, nobody can connect again while the slot moves": schedule(
        "cluster-lock",
        1,
        1.0,
        crew("keyspace", NEAR, one("p0.w0.r0", 0.02, 4.0)),
        faults=(fault("move", "c0", 0.3, lasts=3.0), fault("cut", "p0", 0.5)),
    ),
    # Each move comes while p0 is connecting to the node that serves the slot no more.
    "what waits for a node that has just lost the slot waits until the table is learned again": schedule(
        "cluster-lock",
        1,
        1.0,
        crew("keyspace", STEADY_FAR, one("p0.w0.r0", 0.02, 3.0)),
        faults=tuple(fault("move at once", "c0", at) for at in (0.59, 0.98, 1.19)),
    ),
    # p0.w0.r1 waits, and is admitted; a1 takes the place of a0, and has only heard that it waits. As p0
    # lives, p0.w0.r2 stood behind it for ever.
    "a waiter that was admitted before a failover stays first in the queue of a rate limit": schedule(
        "cluster-ratelimit",
        8,
        2.0,
        crew(
            "tracking",
            NEAR,
            one("p0.w0.r0", 0.5, 0.0, want=THREE_QUICK),
            one("p0.w0.r1", 0.0, 0.0, want=THREE_QUICK),
            one("p0.w0.r2", 2.5, 0.0, want=THREE_QUICK),
        ),
        faults=(fault("cut off", "a0", 0.54, 0.8),),
    ),
    # A renewal of x finds that the connection to c0 is dead. So is the one to b0, which z needs much later.
    "a broken connection to a node is found only when somebody needs it": schedule(
        "cluster-lock",
        1,
        5.0,
        crew(
            "tracking",
            NEAR,
            one("p0.w0.r0", 0.02, 28.0),
            one("p0.w1.r0", 0.3, 0.0, want=Want(names=("z",))),
            one("p0.w1.r1", 20.0, 0.0, want=Want(names=("z",))),
        ),
        faults=(fault("half open", "p0", 0.77),),
    ),
    "a release of which all masters lost the first answer is told that the lease was lost": schedule(
        "redlock",
        4000050,
        1.0,
        crew("tracking", NEAR, one("p0.w1.r0", 0.0, 0.07382, timeout=0.55857)),
        faults=(Fault(part="f1", at=0.05, lasts=0.1, what="lost answer", target="p0"),),
    ),
    # The spare connection is used again only when nothing explains its silence any more.
    "where a connection was silent, the one that counts replicas is not made again": schedule(
        "sentinel-replicas",
        1,
        1.0,
        crew(
            "tracking",
            NEAR,
            one("p0.w0.r0", 0.0, 0.0),
            one("p0.w0.r1", 1.0, 0.0),
            one("p0.w0.r2", 1.0, 0.0),
            one("p0.w0.r3", 13.0, 0.0),
        ),
        faults=(fault("half open", "p0", 1.2),),
    ),
    "a waiter whose process makes its connections only then is taken for one that was not woken": schedule(
        "sentinel-replicas",
        20000574,
        5.0,
        crew("tracking", NEAR, one("p0.w0.r1", 0.00734, 7.18923, timeout=0.56548), busy=0.01),
        crew(
            "tracking",
            NEAR,
            one("p1.w2.r0", 0.0, 0.10653, timeout=0.01946, doing="extend"),
            one("p1.w2.r1", 0.0, 0.0, timeout=0.0079),
            one("p1.w2.r2", 0.0, 1.03621, timeout=0.08898, doing="extend"),
            busy=0.01,
        ),
        jitter=0.1,
    ),
    # p0.w0.r1 asks 5 ms after p0.w0.r0 was cancelled: its request must not arrive before the undo.
    "without a connection of its own, a reader that asks as another one gives up loses its turn": schedule(
        "rwlock",
        52183,
        5.0,
        crew(
            "plain",
            STEADY_FAR,
            one("p0.w0.r0", 0.2877, 0.4445, want=READER, cancel=0.1825),
            one("p0.w0.r1", 0.0054, 0.0719, want=READER),
            one("p0.w1.r0", 0.2276, 0.0122, want=UPGRADABLE),
            one("p0.w1.r1", 0.0251, 0.077, want=UPGRADABLE),
            poll=0.064,
        ),
        crew("tracking", NEAR, one("p1.w0.r0", 0.0, 0.6135)),
        crew("tracking", NEAR, one("p2.w0.r0", 0.2585, 0.0539)),
    ),
    "without order, a reader that gives up takes the turn of the others of its process away": schedule(
        "sentinel-rwlock",
        20000889,
        5.0,
        crew(
            "plain",
            SPIKY,
            one("p0.w0.r0", 0.0782985, 7.46409, cancel=0.0123878),
            one("p0.w0.r1", 0.0566375, 0.0, want=READER, cancel=0.0054171),
            one("p0.w0.r2", 0.0, 0.00132, want=READER, cancel=0.0158833),
            one("p0.w0.r3", 0.0075136, 0.00335, want=READER, cancel=0.40206),
            poll=0.064,
            busy=0.01,
        ),
        crew(
            "tracking",
            NEAR,
            one("p1.w1.r2", 0.0010304, 0.1365365, cancel=0.54036),
            one("p1.w1.r3", 0.0083981, 0.1982002, cancel=0.5223),
            busy=0.01,
        ),
        jitter=0.1,
    ),
    "RESP2 is believed of a master that has been replaced, for the new one hangs": schedule(
        "sentinel-rwlock",
        2000169,
        1.0,
        crew("tracking", NEAR, one("p1.w0.r0", 0.282, 0.141, timeout=0.143), busy=0.01),
        jitter=0.1,
        faults=(fault("hang", "m0", 0.139, 2.412), fault("hang", "m1", 2.143, 2.062)),
    ),
}
