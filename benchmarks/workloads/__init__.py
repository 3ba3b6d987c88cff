"""The workloads: one module each, named here.

A module has a subclass of `Workload`; where processes are needed, their jobs are functions beside it
(see `crew`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

from ..settings import Settings
from ..targets import Target
from .alone import Alone
from .base import Workload
from .cached import Cached
from .cluster import InCluster
from .combiner import Combined
from .costs import Costs
from .counts import Counts
from .crash import Crash
from .drain import Drain
from .drain_processes import DrainProcesses
from .fair import Fair
from .fairness import Fairness
from .handover import Handover, LongHandover
from .held import Held
from .idle import Idle
from .imports import Import
from .jobs import OtherJobs, SharedRun, Updates
from .leadership import LeadershipCrash, LeadershipHandover
from .limits import NoisyTenant
from .lock_or_watch import LockOrWatch
from .loss import Flush, Loss
from .many import Many, ManyNew
from .phases import Phases
from .profile import Profile
from .range import WriterAmongIntervals
from .ratelimit import Admitted, Waited
from .redlock import ContendedRedlock, RedlockAlone
from .rw import ReaderAmongReaders
from .scale import Throng, Waiters
from .schedules import Schedules
from .semaphore import SemaphoreAmongHolders
from .servers import Servers
from .unconfirmed import AloneAtADistance, TwoSessions
from .watch_processes import LockOrWatchByProcesses

WORKLOADS: Mapping[str, Sequence[Callable[[Settings], Workload]]] = {
    "counts": [Counts],
    "alone": [Alone, AloneAtADistance, TwoSessions],
    "many": [Many],
    "many-new": [ManyNew],
    "cached": [Cached],
    "drain": [Drain],
    "drain-processes": [DrainProcesses],
    "handover": [Handover, LongHandover],
    "costs": [Costs],
    "redlock": [partial(RedlockAlone, away=0), partial(RedlockAlone, away=1), ContendedRedlock],
    "scale": [Throng, Waiters],
    "held": [Held],
    "servers": [Servers],
    "fairness": [partial(Fairness, tasks=5), partial(Fairness, tasks=1)],
    "crash": [partial(Crash, others=0), partial(Crash, others=50_000)],
    "loss": [Loss, Flush],
    "idle": [partial(Idle, names=1), partial(Idle, names=100)],
    "leadership": [LeadershipHandover, LeadershipCrash],
    "ratelimit": [Admitted, Waited],
    "limits": [NoisyTenant],
    "jobs": [SharedRun, Updates, OtherJobs],
    "combiner": [partial(Combined, callers=250), partial(Combined, callers=25), partial(Combined, callers=1)],
    "phases": [Phases],
    "cluster": [
        partial(InCluster, same=Many),
        partial(InCluster, same=Drain),
        partial(InCluster, same=Handover),
    ],
    "lock-or-watch": [
        partial(LockOrWatch, inside=0),
        partial(LockOrWatch, inside=1),
        partial(LockOrWatchByProcesses, inside=0),
        partial(LockOrWatchByProcesses, inside=1),
    ],
    "fair": [Fair],
    "semaphore": [SemaphoreAmongHolders],
    "rw": [ReaderAmongReaders],
    "range": [WriterAmongIntervals],
    "schedules": [Schedules],
    "profile": [Profile],
    "import": [Import],
}
"""By the name on the command line, the most important ones first; several where there are several cases."""


@cache
def targets() -> Mapping[str, Sequence[Target]]:
    """The targets of each workload, by what readers call it."""
    made = [make(Settings()) for makers in WORKLOADS.values() for make in makers]
    return {workload.title: workload.targets for workload in made}
