"""The kinds of locks: one file a family, with its keys, its steps, its public classes and their leases."""

from __future__ import annotations

import importlib
from typing import Final

from ..transport.commands.family import kinds_are_in

_MODULES: Final = {
    "._infos": ("LockInfo", "WaiterInfo"),  # no primitives, but as rarely needed
    "._deadlocks": ("Deadlock", "DeadlockedTask"),
    "._holders": ("HolderInfo",),
    "fenced": ("FencedRegister",),
    "jobruns": ("JobLease",),
    "leaders": ("LeaderInfo",),
    "leadership": ("Leadership",),
    "limits": ("Limits",),
    "multilock": ("MultiLock",),
    "permits": ("FairLock", "Semaphore"),
    "rangelock": ("Bound", "RangeLease", "RangeLock", "RangeUpgradableLease", "RangeWriterLease"),
    "redlock": ("Redlock",),
    "reentrant": ("ReentrantLease", "ReentrantLock"),
    "rwlock": ("RWLock",),
    "schedule": ("Schedule", "Tick", "TickRecord"),
    "serializers": ("JSON", "Serializer"),
    "singleflight": ("SingleFlight",),
    "spans": ("SpanLease", "SpanLock", "UpgradableLease", "WriterLease"),
    "terms": ("Term",),
    "turn": ("Turn",),
    "turnstile": ("Turnstile",),
    "uniquejob": ("UniqueJob",),
}

_WITH_KINDS: Final = (
    "lock",
    "redlock",
    "reentrant",
    "multilock",
    "permits",
    "terms",
    "limits",
    "spans",
    "flightsteps",
    "jobsteps",
    "schedule.steps",
    "turnstile",
    "fenced",
)
"""The modules that say which kinds they are, in the order in which operators see them."""
kinds_are_in(*(f"{__name__}.{module}" for module in _WITH_KINDS))


def load(name: str) -> object:
    """The public class of that name."""
    (module,) = (module for module, names in _MODULES.items() if name in names)
    found: object = getattr(importlib.import_module(f".{module}", __name__), name)
    return found
