"""Small schedules of Redlock: what once went wrong, and what goes wrong without a safeguard."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.small import crew, one, schedule
from tests.simulation.world.network import NEAR, STEADY_FAR, Delays
from tests.simulation.world.node import ServerClock
from tests.simulation.world.schedule import Crew, Fault, Schedule

EVEN = Delays(0.01, 0.01)
EARLIEST, LATEST = ServerClock(), ServerClock(ahead=900.0)
NONE = -1


def _struck(
    *crews: Crew, faults: tuple[Fault, ...] = (), hasty: bool = False, latest: int = 0, seed: int = 1
) -> Schedule:
    """With a ttl of 5 s; the clock of one master is far ahead of the others, or of none."""
    clocks = tuple(LATEST if host == latest else EARLIEST for host in range(3))
    whole = schedule("redlock", seed, 5.0, *crews)
    return replace(whole, clocks=clocks, hasty=hasty, faults=faults, faulty=bool(faults))


def _fault(
    number: int, at: float, what: str, target: str, lasts: float = 0.0, *servers: str, amount: float = 0.0
) -> Fault:
    return Fault(
        part=f"f{number}", at=at, lasts=lasts, what=what, target=target, amount=amount, servers=servers
    )


ASKS_ONCE = _struck(
    crew("keyspace", NEAR, one("p0.w0.r0", 0.0, 1.2)),
    crew("keyspace", NEAR, one("p1.w0.r0", 0.1, 0.0)),
    faults=(_fault(0, 0.3, "flush", "redis2"),),
)
"""One master is free, and the others are not, while somebody waits."""

BROKEN: dict[str, tuple[Schedule, str]] = {
    # All masters lose their fences, and p1, which knows no clock of theirs, proposes 1.
    "masters: taken beside a lost fence": (
        _struck(
            crew("tracking", NEAR, one("p0.w0.r0", 0.0, 0.0), one("p0.w0.r1", 0.1, 0.0)),
            crew("tracking", NEAR, one("p1.w0.r0", 0.5, 0.0)),
            latest=NONE,
            faults=(
                *(_fault(number, 0.3, "flush", f"redis{number}") for number in range(3)),
                _fault(3, 0.9, "no scripts", "redis0"),  # the last fault: until then, p0 asks no more
            ),
        ),
        "fencing token",
    ),
    # Each has the vote of one master.
    "masters: a majority": (
        _struck(
            crew("tracking", STEADY_FAR, one("p0.w0.r0", 0.0, 0.5)),
            crew("tracking", STEADY_FAR, one("p1.w0.r0", 0.0, 0.5)),
        ),
        "two holders",
    ),
    # One process reaches the first master only, the other one the others.
    "masters: of all": (
        _struck(
            crew("tracking", NEAR, one("p0.w0.r0", 0.1, 0.0), one("p0.w1.r0", 0.35, 1.0)),
            crew("tracking", NEAR, one("p1.w0.r0", 0.2, 0.0), one("p1.w1.r0", 0.4, 1.0)),
            faults=(
                _fault(0, 0.3, "black hole", "p0", 1.0, "redis1", "redis2"),
                _fault(1, 0.3, "black hole", "p1", 1.0, "redis0"),
            ),
        ),
        "two holders",
    ),
    # The second lease has the votes of the masters whose clocks stand behind.
    "masters: written back": (
        _struck(
            crew("tracking", NEAR, one("p0.w0.r0", 0.1, 0.0)),
            crew("tracking", NEAR, one("p1.w0.r0", 0.0, 0.0), one("p1.w1.r0", 0.3, 0.0)),
            faults=(_fault(0, 0.2, "black hole", "p1", 0.5, "redis0"),),
        ),
        "fencing token",
    ),
    # p1 has the vote of redis1, and waits for that of redis2. p0 has those of redis0 and redis2, and a
    # larger fencing token; redis0 and redis1 confirm it, though redis1 carries the lease of p1. p0 lets go,
    # and redis2 has not heard of its fencing token when it gives its vote to p1.
    "masters: written back where it is carried": (
        _struck(
            crew("tracking", NEAR, one("p0.w0.r0", 0.1, 0.0), one("p0.w1.r0", 0.315, 0.05)),
            crew("tracking", NEAR, one("p1.w0.r0", 0.05, 0.0), one("p1.w1.r0", 0.31, 0.0)),
            hasty=True,
            faults=(
                _fault(0, 0.309, "black hole", "p1", 0.021, "redis0"),
                _fault(1, 0.309, "black hole", "p1", 0.151, "redis2"),
                _fault(2, 0.31505, "half open", "p0"),
                _fault(3, 0.317, "cut", "p0"),
                _fault(4, 0.317, "black hole", "p0", 0.133, "redis2"),
                _fault(5, 0.9, "no scripts", "redis0"),  # the last fault: until then, nobody else asks
            ),
        ),
        "the later lease has no larger fencing token",
    ),
    # redis0 confirms the smaller fencing token of p0, and redis2 does not. The vote of redis1, whose fencing
    # token is larger, comes late; redis0 does not hear of the larger one. p1 has the votes of redis0 and
    # redis2 when the lease has ended there.
    "masters: proposed again": (
        _struck(
            crew("tracking", EVEN, one("p0.w0.r0", 0.1, 0.0), one("p0.w1.r0", 0.5, 0.0)),
            crew("tracking", EVEN, one("p1.w0.r0", 0.0, 0.0), one("p1.w1.r0", 1.5, 0.0)),
            hasty=True,
            latest=1,
            faults=(
                _fault(0, 0.5, "freeze of the server", "redis1", 0.0707),
                _fault(1, 0.5185, "black hole", "p0", 9.0, "redis2"),
                _fault(2, 0.6027, "black hole", "p0", 9.0, "redis0"),
                _fault(3, 1.4, "black hole", "p1", 9.0, "redis1"),
            ),
        ),
        "fencing token",
    ),
}
"""By the safeguard without which it goes wrong, and how."""
