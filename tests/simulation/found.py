"""Schedules that found a defect, as small as they could be made: each must go well from then on."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.found_in_groups import IN_GROUPS
from tests.simulation.found_in_listening import IN_LISTENING
from tests.simulation.found_in_sets import IN_SETS
from tests.simulation.found_in_spans import IN_SPANS
from tests.simulation.small import crew, fault, one, schedule
from tests.simulation.world.kinds import Want
from tests.simulation.world.network import FAR, NEAR, SPIKY, STEADY_FAR
from tests.simulation.world.node import ServerClock
from tests.simulation.world.schedule import Fault, Schedule

FOUND: dict[str, Schedule] = {
    "the last waiter of a session, which has never asked, waits for ever": schedule(
        "lock",
        640000378,
        5.0,
        crew(
            "poll",
            NEAR,
            one("p0.w0.r0", 0.1, 0.0, timeout=0.5),
            one("p0.w1.r0", 0.2, 0.0, timeout=0.6),
            one("p0.w2.r0", 0.4, 1.0, timeout=0.0),
            first_poll=5.0,
        ),
        crew("poll", NEAR, one("p1.w0.r0", 0.0, 0.3)),
    ),
    "an arming for a waiter that was granted meanwhile takes the bell of another one away": schedule(
        "fairlock",
        214,
        1.0,
        crew(
            "keyspace",
            STEADY_FAR,
            one("p0.w1.r0", 0.18084, 1.18175, timeout=0.0),
            one("p0.w1.r3", 0.00835, 1.1152, timeout=0.34349),
        ),
        crew(
            "keyspace",
            STEADY_FAR,
            one("p1.w0.r0", 0.16529, 0.0135),
            one("p1.w1.r0", 0.0, 0.16363, timeout=0.0),
        ),
        crew(
            "keyspace",
            STEADY_FAR,
            one("p2.w0.r1", 0.0, 0.05387),
            one("p2.w1.r1", 0.12201, 0.07476),
            one("p2.w3.r0", 0.0, 0.03017),
        ),
        jitter=0.1,
    ),
    "a single try that is cancelled leaves the clock of silence running": schedule(
        "fairlock",
        464,
        2.0,
        crew(
            "tracking",
            FAR,
            one("p0.w0.r0", 0.2211, 0.001),
            one("p0.w1.r0", 0.0, 0.03475, cancel=0.52994),
            one("p0.w1.r1", 0.27382, 0.01821, timeout=0.0, cancel=0.00145, doing="detach"),
        ),
        crew(
            "tracking",
            FAR,
            one("p1.w1.r0", 0.0, 2.49505),
        ),
    ),
    "the last waiter leaves its bell behind where the server did not know the scripts": schedule(
        "fairlock",
        170,
        2.0,
        crew(
            "tracking",
            FAR,
            one("p2.w1.r0", 0.02403, 0.16002, cancel=0.12841),
            one("p2.w2.r0", 0.0, 0.0),
        ),
    ),
    "a waiter that gives up while its arming is under way stops the heartbeat of the others": schedule(
        "fairlock",
        595,
        5.0,
        crew(
            "tracking",
            SPIKY,
            one("p0.w0.r1", 0.0, 6.79468, cancel=0.03351),
            one("p0.w0.r2", 0.0, 0.01597),
            one("p0.w1.r0", 0.17436, 0.0, cancel=0.00086),
        ),
        crew(
            "tracking",
            SPIKY,
            one("p3.w0.r1", 0.01184, 6.65417),
            one("p3.w2.r1", 0.08019, 7.40985),
        ),
    ),
    "without order, a waiter that gives up takes the bell of the others away": schedule(
        "fairlock",
        8,
        1.0,
        crew(
            "tracking",
            SPIKY,
            one("p0.w2.r1", 0.28928, 0.0, doing="adopt"),
        ),
        crew(
            "plain",
            FAR,
            one("p1.w0.r0", 0.0, 0.15557, timeout=0.31715),
            one("p1.w1.r0", 0.0, 0.00137, doing="detach"),
            one("p1.w3.r1", 0.00019, 0.15919, timeout=0.0),
            poll=0.5,
        ),
        jitter=0.1,
    ),
    "a job's waiter that was turned away has its seat put back, and its queue is not forgotten": schedule(
        "uniquejob",
        3000398,
        1.0,
        crew(
            "tracking",
            SPIKY,
            one("p0.w0.r0", 0.0, 1.48793, timeout=0.0),
            one("p0.w1.r0", 0.0, 0.00782, timeout=0.0),
            rate=0.9979715569703373,
            busy=0.0005,
        ),
        crew(
            "tracking",
            SPIKY,
            one("p1.w2.r0", 0.0, 0.15693),
            rate=1.0039526929243663,
            busy=0.0005,
        ),
    ),
    # p1 begins; p2.w0 has not heard of that yet, and p2.w1 comes.
    "a job is a duplicate of one of its process that is turned away itself": schedule(
        "uniquejob",
        97001018,
        1.0,
        crew("poll", NEAR, one("p0.w0.r0", 0.0, 0.1), poll=0.5),
        crew("poll", NEAR, one("p1.w0.r0", 0.01, 0.5), poll=0.5),
        crew("poll", NEAR, one("p2.w0.r0", 0.1, 0.0), one("p2.w1.r0", 0.15, 0.0), poll=0.5),
    ),
    # p1 waits until p0 has done their ticket, and p2 comes meanwhile.
    "a job is a duplicate of a ticket that waits and is done by another delivery": schedule(
        "uniquejob",
        98500542,
        1.0,
        crew("tracking", NEAR, one("p0.w0.r0", 0.0, 0.5, doing="perform")),
        crew("tracking", NEAR, one("p1.w0.r0", 0.1, 0.0, doing="perform")),
        crew("tracking", NEAR, one("p2.w0.r0", 0.2, 0.0)),
    ),
    "a waiter that gets in takes along the bell of one that has sat down since": schedule(
        "fairlock",
        3000383,
        5.0,
        crew(
            "plain",
            SPIKY,
            one("p0.w0.r0", 0.06326, 1.41308, cancel=0.20514),
            poll=0.5,
            rate=0.9989164205837046,
            busy=0.0005,
        ),
        crew(
            "plain",
            SPIKY,
            one("p1.w0.r0", 0.0, 0.0, cancel=0.03026, doing="adopt"),
            one("p1.w0.r1", 0.0, 1.46837, cancel=0.32715),
            one("p1.w1.r0", 0.01397, 0.0),
            poll=0.5,
            rate=1.0016106304978398,
            busy=0.0005,
        ),
        crew(
            "poll",
            NEAR,
            one("p2.w1.r0", 0.01585, 0.00557, cancel=0.02471),
            poll=0.5,
            rate=1.0036500941811828,
            busy=0.0005,
        ),
        jitter=0.1,
    ),
    "a waiter gets in before others, on the seat of one of its process that has left": schedule(
        "fair-semaphore",
        4000512,
        1.0,
        crew(
            "plain",
            SPIKY,
            one("p0.w1.r0", 0.0, 0.0, want=Want(permits=2), doing="adopt"),
            poll=0.064,
            busy=0.0005,
        ),
        crew(
            "plain",
            SPIKY,
            one("p3.w0.r2", 0.27731, 0.11635, cancel=0.33687),
            one("p3.w1.r0", 0.0, 0.05124, cancel=0.02377),
            one("p3.w1.r1", 0.01122, 0.0, want=Want(permits=2)),
            one("p3.w2.r0", 0.00396, 0.00269, want=Want(permits=2), cancel=0.02094),
            one("p3.w2.r1", 0.01336, 0.09181, want=Want(permits=3)),
            one("p3.w3.r0", 0.0321, 1.34609, cancel=0.10137),
            poll=0.064,
            busy=0.0005,
        ),
    ),
    "a cancelled task that leaves two locks is held up for a second at each": schedule(
        "reentrant",
        1,
        5.0,
        crew("tracking", NEAR, one("p0.w0.r0", 0.0, 0.3, cancel=0.15, doing="nest")),
        faults=(Fault(part="f0", at=0.14, lasts=3.0, what="freeze of the server", target="redis"),),
    ),
    "a renewal of the bell that the server did not know hangs it up again after its waiter got in": schedule(
        "lock",
        1,
        5.0,
        crew("tracking", NEAR, one("p0.w0.r0", 0.0, 0.893)),
        crew("tracking", STEADY_FAR, one("p1.w0.r0", 0.1, 0.3)),
        crew(
            "tracking",
            NEAR,
            one("p2.w0.r0", 0.7, 0.0, timeout=0.0),  # the server knows the script of a try again
            one("p2.w1.r0", 0.94, 0.0),
        ),
        faults=(fault("no scripts", "redis", 0.69), fault("no scripts", "redis", 9.0)),
    ),
    "a waiter of limits whose call another one of its session has used leaves a later call unused": schedule(
        "limits",
        93002430,
        2.0,
        crew(
            "plain",
            SPIKY,
            one("p1.w0.r2", 0.01807, 0.0, want=Want(keys=("all", "a"))),
            one("p1.w2.r0", 0.01043, 2.1, want=Want(keys=("all", "a"))),
            one("p1.w3.r0", 0.01218, 0.06224, want=Want(keys=("all", "a"))),
            poll=0.064,
        ),
        crew("plain", SPIKY, one("p3.w1.r1", 0.01565, 0.00287, want=Want(keys=("all", "a"))), poll=0.5),
    ),
    # Its clock stands so that the second one claims a tick of which the first has not heard.
    "a process that has not heard of the last ticks runs them again where the register is gone": replace(
        schedule(
            "schedule",
            93001432,
            2.0,
            crew("tracking", NEAR, one("p1.w0.r2", 0.0, 2.08184), one("p1.w1.r1", 0.2823, 1.97955)),
            faults=(
                fault("out of memory", "redis", 0.16563, 0.405248),
                fault("late restart", "redis", 0.783428, 2.0516),
            ),
        ),
        clocks=(ServerClock(ahead=0.2177),),
    ),
    # The extension and a renewal of p2 are under way together, and redis1 is free for both. The one that is
    # decided first puts the lease there after it was released.
    "of two renewals under way, one puts the lease back where it was released": schedule(
        "redlock",
        101000661,
        2.0,
        crew("keyspace", FAR, one("p1.w0.r0", 0.00559, 2.0, timeout=0.0)),
        crew("keyspace", FAR, one("p2.w0.r0", 0.00836, 0.035, doing="extend")),
        jitter=0.1,
    ),
    # p0 has stood in the queues. redis0 does not know the script of the confirmation, the other two masters
    # confirm the lease, and p0 releases it at once.
    "a waiter that releases at once keeps its place on a master that has not confirmed the lease": replace(
        schedule(
            "redlock",
            22,
            5.0,
            crew("keyspace", NEAR, one("p0.w0.r0", 0.3, 0.4)),
            crew("keyspace", FAR, one("p1.w0.r0", 0.0, 0.0)),
            crew("keyspace", NEAR, one("p2.w0.r0", 0.4, 1.6)),
            faults=(fault("no scripts", "redis0", 0.35),),
        ),
        clocks=(ServerClock(),) * 3,
    ),
    # p1 waits when the clock is set back, and p2 comes after that.
    "a waiter that comes after the clock was set back overtakes those that wait": schedule(
        "fairlock",
        4,
        2.0,
        crew("tracking", NEAR, one("p0.w0.r0", 0.0, 1.0)),
        crew("tracking", NEAR, one("p1.w0.r0", 0.1, 0.1)),
        crew("tracking", NEAR, one("p2.w0.r0", 0.5, 0.1)),
        faults=(fault("clock back", "redis", 0.3, amount=5.0),),
    ),
    **IN_SPANS,
    **IN_GROUPS,
    **IN_LISTENING,
    **IN_SETS,
}
