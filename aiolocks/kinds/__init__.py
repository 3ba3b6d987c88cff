"""The kinds of locks: one public class a file, with the leases that are its own."""

from __future__ import annotations

import importlib
from typing import Final

_MODULES: Final = {
    "._infos": ("LockInfo", "WaiterInfo"),  # no primitives, but as rarely needed
    "._deadlocks": ("Deadlock", "DeadlockedTask"),
    "._holders": ("HolderInfo",),
    "fairlock": ("FairLock",),
    "fenced": ("FencedRegister",),
    "jobruns": ("JobLease",),
    "latch": ("Latch",),
    "leaders": ("LeaderInfo",),
    "leadership": ("Leadership",),
    "limits": ("Limits",),
    "multilock": ("MultiLock",),
    "rangelock": ("Bound", "RangeLease", "RangeLock", "RangeUpgradableLease", "RangeWriterLease"),
    "ratelimit": ("RateDecision", "RateLimit"),
    "redlock": ("Redlock",),
    "reentrant": ("ReentrantLease", "ReentrantLock"),
    "rwlock": ("RWLock",),
    "schedule": ("Schedule", "Tick", "TickRecord"),
    "semaphore": ("Semaphore",),
    "serializers": ("JSON", "Serializer"),
    "singleflight": ("SingleFlight",),
    "spans": ("SpanLease", "SpanLock", "UpgradableLease", "WriterLease"),
    "terms": ("Term",),
    "turn": ("Turn",),
    "turnstile": ("Turnstile",),
    "uniquejob": ("UniqueJob",),
}


def load(name: str) -> object:
    """The public class of that name."""
    (module,) = (module for module, names in _MODULES.items() if name in names)
    found: object = getattr(importlib.import_module(f".{module}", __name__), name)
    return found
