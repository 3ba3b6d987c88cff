"""The kinds of locks: one file a family, with its keys, its steps, its public classes and their leases."""

from __future__ import annotations

import importlib
from typing import Final

from ..transport.commands.family import kinds_are_in

_MODULES: Final[dict[str, tuple[str, ...]]] = {
    "._infos": ("LockInfo", "WaiterInfo"),  # no primitives, but as rarely needed
    "._deadlocks": ("Deadlock", "DeadlockedTask"),
    "._holders": ("HolderInfo",),
    "lock": ("Lock",),
    "redlock": ("Redlock",),
    "reentrant": ("ReentrantLease", "ReentrantLock"),
    "multilock": ("MultiLock",),
    "permits": ("FairLock", "Semaphore"),
    "terms": ("Term",),
    "leaders": ("LeaderInfo",),
    "leadership": ("Leadership",),
    "limits": ("Limits",),
    "spans": ("SpanLease", "SpanLock", "UpgradableLease", "WriterLease"),
    "rwlock": ("RWLock",),
    "rangelock": ("Bound", "RangeLease", "RangeLock", "RangeUpgradableLease", "RangeWriterLease"),
    "flightsteps": (),
    "serializers": ("JSON", "Serializer"),
    "singleflight": ("SingleFlight",),
    "turn": ("Turn",),
    "jobsteps": (),
    "jobruns": ("JobLease",),
    "uniquejob": ("UniqueJob",),
    "schedule.steps": (),
    "schedule": ("Schedule", "Tick", "TickRecord"),
    "turnstile": ("Turnstile",),
    "fenced": ("FencedRegister",),
}
"""The public names of each module, in the order in which operators see the kinds (`KINDS` of a module)."""
kinds_are_in(__name__, _MODULES)


def load(name: str) -> object:
    """The public class of that name."""
    (module,) = (module for module, names in _MODULES.items() if name in names)
    found: object = getattr(importlib.import_module(f".{module}", __name__), name)
    return found
