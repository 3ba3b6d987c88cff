"""Small schedules in which all goes well, and of which a check once said that it does not: each must pass."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.small import NOISY, QUIET, READER, crew, fault, one, schedule
from tests.simulation.world.kinds import Want
from tests.simulation.world.network import FAR, NEAR, SPIKY, STEADY_FAR
from tests.simulation.world.node import ServerClock
from tests.simulation.world.schedule import Schedule

CLEARED: dict[str, Schedule] = {
    # The connection breaks while the request of p1.w2.r0 is on its way. It is sent again and granted, and the
    # lock is released. Then the first one arrives, half a second after it was sent, and is granted for 5 s.
    "a single try whose request arrives late holds for a ttl what nobody has": schedule(
        "rwlock",
        107000171,
        5.0,
        crew("plain", NEAR, one("p1.w2.r0", 0.0070791, 0.0, want=READER, timeout=0.0), poll=0.5, busy=0.01),
        faults=(
            fault("half cut", "p1", 0.0486721, amount=0.5),
            fault("half cut", "p0", 1.902632, amount=0.5),
        ),
    ),
    # p0.w0.r0 takes one name after the other, and connects to a node for each. That takes a second in all.
    "one that takes names in several slots for the first time connects to several nodes": schedule(
        "cluster-multilock",
        107000255,
        5.0,
        crew(
            "plain",
            STEADY_FAR,
            one("p0.w0.r0", 0.24566, 0.11484, want=Want(names=("x", "y", "z"))),
            one("p0.w1.r0", 0.07513, 0.19742, want=Want(names=("x", "z"))),
            poll=0.064,
            busy=0.01,
        ),
    ),
    # Both connections of the pool are cut a moment before a renewal. The client learns the slots again, by
    # seventeen messages each way, until the renewal is told that the node does not know the script. Then the
    # second connection is made. That takes 730 ms in all, and 690 ms are left.
    "with a ttl of some dozen messages, a pool connects to a cluster again too late for a renewal": schedule(
        "cluster-reentrant",
        105000800,
        1.0,
        crew(
            "plain",
            STEADY_FAR,
            one("p1.w0.r0", 0.0, 0.585, cancel=0.087),
            one("p1.w0.r1", 0.0, 0.13),
            one("p1.w0.r2", 0.0, 0.059),
            one("p1.w0.r3", 0.0, 1.0649),
            poll=0.064,
            busy=0.01,
        ),
        faults=(fault("cut", "p1", 1.25, amount=0.01),),
    ),
    # p0.w0.r0 connects to c0, to a0 and to b0, for the slot moves on each time before p0 has asked there. It
    # has x 19 messages after the second move; the third one comes later.
    "a waiter whose slot moves on while it connects has to connect again": schedule(
        "cluster-lock",
        1,
        1.0,
        crew("keyspace", STEADY_FAR, one("p0.w0.r0", 0.02, 3.0)),
        faults=tuple(fault("move at once", "c0", at) for at in (0.353, 0.567, 1.053)),
    ),
    # The first request of p1.w2 waits for a second until redis-py connects again. The heartbeat of its
    # session names its seat before that, and is told that there is none; p0.w0.r3 asks, and sits down first.
    "a waiter that listens before it has a seat has not taken it": schedule(
        "fairlock",
        93000929,
        5.0,
        crew(
            "plain",
            FAR,
            one("p0.w0.r1", 0.0, 2.66116, cancel=0.55888),
            one("p0.w0.r2", 0.0, 0.0),
            one("p0.w0.r3", 0.05071, 0.01913, timeout=0.03625, doing="adopt"),
            poll=0.064,
            rate=0.99674,
            busy=0.01,
        ),
        crew(
            "plain",
            FAR,
            one("p1.w1.r0", 0.29533, 6.97988, timeout=0.56201),
            one("p1.w2.r0", 0.02135, 0.03017),
            poll=0.064,
            rate=0.99786,
            busy=0.01,
        ),
        faults=(fault("cut", "p1", 0.11907),),
    ),
    # The answer to the claim of p4.w0.r1 takes 80 ms. The other tick is granted after the loss, and begins.
    "two runs of which one was lost with the data of the server may begin in any order": replace(
        schedule(
            "schedule",
            93000637,
            2.0,
            crew("plain", STEADY_FAR, one("p1.w0.r0", 0.0, 0.97315), poll=0.064, busy=0.0005),
            crew("tracking", SPIKY, one("p2.w2.r0", 0.0, 0.0), busy=0.0005),
            crew(
                "tracking",
                SPIKY,
                one("p4.w0.r1", 0.22533, 0.005, cancel=0.522),
                one("p4.w1.r0", 0.01346, 0.171),
                busy=0.0005,
            ),
            faults=(fault("flush", "redis", 0.464918),),
        ),
        clocks=(ServerClock(ahead=0.363),),
    ),
    # A renewal of p2.w3.r1 has 167 ms between a third of the ttl and its grace, and its answer takes longer.
    "a grace may begin where a renewal has less time than its answer may take": schedule(
        "grace",
        93001612,
        1.0,
        crew(
            "resp2",
            SPIKY,
            one("p2.w0.r0", 0.0, 0.0, cancel=0.06620023675293084),
            one("p2.w1.r0", 0.07812131275410174, 0.3520465461320009, cancel=0.37721140076469034),
            one("p2.w3.r0", 0.003081337302684659, 0.0, cancel=0.08892922764558231),
            one("p2.w3.r1", 0.0, 0.7611732715135251),
            poll=0.064,
            rate=1.0014877994306681,
        ),
        jitter=0.1,
    ),
    # Both connections of p2 are taken when the lease of p2.w1.r0 is due; a third one takes six round trips.
    "a grace may begin where a renewal must connect first": schedule(
        "grace",
        97002325,
        1.0,
        crew(
            "plain",
            STEADY_FAR,
            one("p1.w1.r1", 0.0, 0.024441082266087648),
            poll=0.064,
            busy=0.01,
        ),
        crew(
            "plain",
            STEADY_FAR,
            one("p2.w0.r0", 0.06108829182809422, 1.294573805942994),
            one("p2.w1.r0", 0.0, 0.03928640552994818),
            one("p2.w2.r0", 0.023956205355994957, 0.9823417007348232),
            one("p2.w3.r0", 0.05266149818970053, 1.0926799672447185),
            poll=0.064,
            busy=0.01,
        ),
        jitter=0.1,
    ),
    # p2.w0.r0 gives up while its request makes a connection, and p2.w0.r1 asks over another one and is
    # refused. The first request comes after that, gets in by the place of both, and is undone: p2.w1.r1 asks
    # and gets in before p2.w0.r1 has asked again.
    "a writer whose place another one of its process has used has none until it asks again": schedule(
        "sentinel-rwlock",
        97001772,
        1.0,
        crew(
            "keyspace",
            NEAR,
            one("p1.w0.r0", 0.03929, 0.0, want=READER, cancel=0.12844, doing="adopt"),
            busy=0.01,
        ),
        crew(
            "plain",
            FAR,
            one("p2.w0.r0", 0.0, 0.01137, cancel=0.01018),
            one("p2.w0.r1", 0.0, 0.02197),
            one("p2.w1.r0", 0.03782, 0.0, want=READER, cancel=0.55023),
            one("p2.w1.r1", 0.01446, 0.01214, want=READER, cancel=0.13046),
            poll=0.064,
            busy=0.01,
        ),
    ),
    # The first waiter of the line of c is killed and then called: c is kept for it until its call has ended.
    "what a killed waiter was called for is kept from the others of its line": schedule(
        "limits",
        101001802,
        1.0,
        crew(
            "tracking",
            SPIKY,
            one("p0.w0.r1", 0.00091, 0.40081, want=Want(keys=("all", "a"))),
            one("p0.w1.r0", 0.0, 1.32153, want=Want(keys=("all", "c"))),
            one("p0.w1.r1", 0.0, 0.09401, want=Want(keys=("all", "b"))),
            one("p0.w2.r0", 0.0058, 0.00683, want=Want(keys=("all", "c"))),
            one("p0.w2.r1", 0.01155, 0.0029, want=Want(keys=("all", "a"))),
            one("p0.w2.r2", 0.00166, 0.06949, want=Want(keys=("all", "a")), doing="adopt"),
            busy=0.0005,
        ),
        crew(
            "keyspace",
            SPIKY,
            one("p1.w0.r0", 0.04602, 0.36968, want=Want(keys=("all", "a")), doing="adopt"),
            one("p1.w0.r1", 0.00048, 0.06857, want=Want(keys=("all", "c")), doing="adopt"),
            one("p1.w1.r0", 0.00693, 0.0, want=Want(keys=("all",))),
            one("p1.w1.r1", 0.0, 0.0, want=Want(keys=("all", "a")), doing="detach"),
            one("p1.w1.r2", 0.0, 0.0, want=Want(keys=("all", "a"))),
            one("p1.w2.r0", 0.00388, 0.12022, want=Want(keys=("all", "b"))),
            one("p1.w2.r1", 0.05619, 0.16055, want=Want(keys=("all", "c"))),
            one("p1.w2.r2", 0.01151, 0.00349, want=Want(keys=("all", "a"))),
            one("p1.w2.r3", 0.10849, 0.0, want=Want(keys=("all", "a"))),
            busy=0.0005,
        ),
        crew(
            "keyspace",
            SPIKY,
            one("p2.w0.r0", 0.04205, 0.00695, want=Want(keys=("all", "a")), doing="adopt"),
            one("p2.w0.r1", 0.0, 0.0, want=Want(keys=("all", "c"))),
            one("p2.w2.r0", 0.00018, 0.95029, want=Want(keys=("all", "a"))),
            busy=0.0005,
        ),
        crew(
            "poll",
            NEAR,
            one("p3.w3.r0", 0.01354, 0.0, want=Want(keys=("all",))),
            one("p3.w3.r1", 0.23201, 0.17336, want=Want(keys=("all", "a"))),
            poll=0.064,
            busy=0.0005,
        ),
        faults=(fault("kill", "p2", 2.23718, amount=1.0),),
    ),
    # Each answer takes 20 - 40 ms and the turns of the loop. The two acquires of p0 make six connections,
    # most of them one after the other, and each node is sent each script a second time, in full.
    "a new session with the serial transport may take longer than a short ttl to have two slots": (
        schedule(
            "cluster-multilock",
            97002043,
            1.0,
            crew(
                "plain",
                STEADY_FAR,
                one("p0.w0.r0", 0.07867, 0.04832, want=Want(names=("y", "z"))),
                one("p0.w1.r0", 0.0, 0.05108, want=Want(names=("z",)), cancel=0.40919),
                one("p0.w1.r1", 0.27641, 0.03437, want=Want(names=("z",))),
                poll=0.064,
                rate=1.00127,
                busy=0.01,
            ),
        )
    ),
    # The answer to a claim of p0 is lost, and it claims the tick again: that is no grant after the one of p2.
    "a claim of a tick that is granted again is no new grant": schedule(
        "schedule",
        130002493,
        5.0,
        crew("tracking", NEAR, one("p0.w2.r1", 0.0, 2.034)),
        crew("tracking", NEAR, one("p2.w1.r1", 0.008, 5.414, timeout=0.124)),
        faults=(
            fault("black hole", "p0", 0.362317, 2.414),
            fault("black hole", "p2", 0.366866, 2.426),
            fault("black hole", "p0", 0.678908, 2.281),
        ),
    ),
    # While p0.end lets go of x and connects to c0, an undo of z is told CLUSTERDOWN, and redis-py closes all
    # its connections. The new one is made after that, and `aclose` does nothing until the slots are learned.
    "a cluster's client may leave a connection when it is closed": schedule(
        "cluster-limits",
        101001992,
        5.0,
        crew(
            "plain",
            FAR,
            one("p0.w0.r0", 0.17, 0.0, want=Want(keys=("all",)), timeout=0.146),
            one("p0.w0.r1", 0.0, 0.0, want=Want(keys=("all", "a")), timeout=0.555),
            one("p0.w0.r2", 0.0, 0.046, want=Want(names=("z",), keys=("all",)), timeout=0.219),
            poll=0.064,
        ),
        faults=(fault("death", "b0", 0.255, 0.443), fault("death", "c1", 1.08, 0.233)),
    ),
    # c0 dies before c1 knows of the run of p0, and c1 takes its place when the item of p0.w1.r2 is too old.
    "an item of a run that a failover has lost may be dropped": schedule(
        "cluster-combiner",
        33,
        5.0,
        crew(
            "poll",
            NEAR,
            one("p0.w1.r0", 0.006, 0.566, cancel=0.001),
            one("p0.w1.r2", 0.0, 5.723),
            poll=0.5,
        ),
        jitter=0.1,
        faults=(fault("death", "c0", 0.149, 1.216, amount=1.0),),
    ),
    # An item that is kept for a second waits for a run, and the clock of the server is set ahead by as much.
    "an item is as old as the clock of its server says": schedule(
        "combiner",
        371,
        1.0,
        crew(
            "plain",
            FAR,
            one("p2.w1.r0", 0.17, 1.015, cancel=0.17),
            one("p2.w1.r1", 0.268, 0.004, cancel=0.11, doing="leave"),
            poll=0.5,
            busy=0.01,
        ),
        faults=(fault("clock ahead", "redis", 0.735, amount=1.0),),
    ),
    # When p0.w0.r0 lets go, the one of p1 is called, and polls 0.3 s later; what it is called for is kept. p0
    # knows of its release 15 ms after the server, and from then on the wait of p1 for its turn was counted.
    "one that is called has its turn before the release that called it is confirmed": schedule(
        "limits",
        1,
        5.0,
        crew(
            "tracking",
            STEADY_FAR,
            one("p0.w0.r0", 0.0, 0.3, want=QUIET),
            *(one(f"p0.w1.r{number}", 0.0, 0.0, want=NOISY) for number in range(16)),
        ),
        crew("poll", NEAR, one("p1.w0.r0", 0.3, 0.0, want=QUIET), poll=0.5, first_poll=0.5),
    ),
}
