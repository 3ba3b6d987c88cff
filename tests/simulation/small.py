"""To write schedules down, in few words."""

from __future__ import annotations

from itertools import groupby

from tests.simulation.world.kinds import KINDS, Want
from tests.simulation.world.network import Delays
from tests.simulation.world.schedule import Crew, Fault, Round, Schedule, Worker

READER, UPGRADABLE = Want(mode="reader"), Want(mode="upgradable")
NOISY, QUIET = Want(keys=("all", "a")), Want(keys=("all", "b"))
_ONE = Want()


def one(
    part: str,
    after: float,
    hold: float,
    *,
    want: Want = _ONE,
    timeout: float | None = None,
    cancel: float | None = None,
    doing: str = "",
    steal: bool = False,
) -> Round:
    """A task that wants the lock once."""
    return Round(
        part=part,
        after=after,
        want=want,
        timeout=timeout,
        cancel=cancel,
        hold=hold,
        doing=doing,
        steal=steal,
    )


def crew(
    wakeup: str,
    delays: Delays,
    *rounds: Round,
    poll: float = 5.0,
    rate: float = 1.0,
    busy: float = 0.0,
    first_poll: float = 0.004,
) -> Crew:
    """The tasks of one process."""
    workers = tuple(
        Worker(part=part, rounds=tuple(own))
        for part, own in groupby(rounds, lambda one: one.part.rpartition(".")[0])
    )
    part = rounds[0].part.partition(".")[0]
    return Crew(
        part=part,
        delays=delays,
        wakeup=wakeup,
        poll=poll,
        first_poll=first_poll,
        rate=rate,
        workers=workers,
        busy=busy,
    )


def fault(what: str, target: str, at: float, lasts: float = 0.0, amount: float = 0.0) -> Fault:
    return Fault(part=f"f{at:g}", at=at, lasts=lasts, what=what, target=target, amount=amount)


def schedule(
    kind: str, seed: int, ttl: float, *crews: Crew, jitter: float = 0.0, faults: tuple[Fault, ...] = ()
) -> Schedule:
    return Schedule(kind=KINDS[kind], seed=seed, ttl=ttl, jitter=jitter, crews=crews, faults=faults)
