"""Safeguards of the client and of the scripts, each as a piece of code that can be taken out."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from .of_client import OF_CLIENT
from .of_combiners import OF_COMBINERS
from .of_counts import OF_COUNTS
from .of_deadlocks import OF_DEADLOCKS
from .of_ends import OF_ENDS
from .of_flights import OF_FLIGHTS
from .of_graces import OF_GRACES
from .of_jobs import OF_JOBS
from .of_limits import OF_LIMITS
from .of_masters import OF_MASTERS
from .of_schedules import OF_SCHEDULES
from .of_scripts import OF_SCRIPTS
from .of_tenures import OF_TENURES
from .of_thefts import OF_THEFTS
from .of_topologies import OF_TOPOLOGIES
from .of_unconfirmed import OF_UNCONFIRMED
from .taking import Safeguard

SAFEGUARDS: dict[str, Safeguard] = {
    **OF_SCRIPTS,
    **OF_LIMITS,
    **OF_SCHEDULES,
    **OF_JOBS,
    **OF_FLIGHTS,
    **OF_THEFTS,
    **OF_GRACES,
    **OF_ENDS,
    **OF_COUNTS,
    **OF_TENURES,
    **OF_UNCONFIRMED,
    **OF_COMBINERS,
    **OF_DEADLOCKS,
    **OF_CLIENT,
    **OF_MASTERS,
    **OF_TOPOLOGIES,
}

__all__ = ["SAFEGUARDS", "Safeguard", "uncovered"]


def uncovered(name: str) -> AbstractContextManager[None]:
    """Inside, nothing else does what this safeguard does."""
    covered_by = SAFEGUARDS[name].covered_by
    return SAFEGUARDS[covered_by].taken_out() if covered_by else nullcontext()
