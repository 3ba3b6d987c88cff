"""Small schedules that go well, but fail without a safeguard that a drawn schedule seldom needs."""

from __future__ import annotations

from tests.simulation.found import _crew as crew
from tests.simulation.found import _round as one
from tests.simulation.found import _schedule as schedule
from tests.simulation.found_in_redlock import BROKEN
from tests.simulation.world.kinds import Want
from tests.simulation.world.network import NEAR, STEADY_FAR
from tests.simulation.world.schedule import Fault, Schedule

_READER = Want(mode="reader")

PLANTED: dict[str, tuple[Schedule, str]] = {
    # The server does not know the script of the first arming. Its waiter is cancelled before the server says
    # so: the arming is not sent again, and the next waiter of the session has no bell.
    "bell gone": (
        schedule(
            "lock",
            1,
            5.0,
            crew(
                "tracking",
                NEAR,
                one("p0.w1.r0", 0.1, 0.0, cancel=0.0032),
                one("p0.w2.r0", 0.1, 0.0),
            ),
            crew("tracking", NEAR, one("p1.w0.r0", 0.01, 0.15)),
        ),
        "free for",
    ),
    # p0 wants three permits, and hangs its bell up again after a try. One permit comes back between the two:
    # the server rings the bell of p0, whose arming covers that up. p0 cannot use the permit, and p1 can.
    "rung between two tries": (
        schedule(
            "semaphore",
            1,
            5.0,
            crew("poll", STEADY_FAR, one("p0.w1.r0", 0.1, 0.0, want=Want(permits=3)), poll=0.064),
            crew("tracking", STEADY_FAR, one("p1.w0.r0", 0.3, 0.0)),
            crew(
                "tracking",
                STEADY_FAR,
                one("p2.w0.r0", 0.0, 0.605),
                one("p2.w1.r0", 0.0, 8.0, want=Want(permits=2)),
            ),
        ),
        "free for",
    ),
    # p0 dies as a reader. p1 reads on for a minute, and its renewals keep the marks of all readers alive.
    # p1 lets go later than the death of p0 can explain, and a writer must find nobody in its way.
    "spans: purge": (
        schedule(
            "rwlock",
            1,
            5.0,
            crew("tracking", NEAR, one("p0.w0.r0", 0.0, 3.0, want=_READER)),
            crew("tracking", NEAR, one("p1.w0.r0", 0.0, 63.0, want=_READER)),
            crew("tracking", NEAR, one("p2.w0.r0", 52.0, 0.0)),
            faults=(Fault(part="f0", at=0.3, lasts=0.0, what="kill", target="p0"),),
        ),
        "free for",
    ),
}
"""By the safeguard without which it fails, and how; those of Redlock stand in `found_in_redlock`."""

RARE: dict[str, tuple[Schedule, str]] = {
    **PLANTED,
    **{
        name: BROKEN[name] for name in ("masters: written back where it is carried", "masters: proposed anew")
    },
}
"""All that the table of ablations takes instead of drawn ones."""
