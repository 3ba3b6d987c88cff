"""The kinds of locks: one file a family, with its keys, its steps, its public classes and their leases."""

from __future__ import annotations

import importlib
from typing import Final

from ..lock.misuse import hide_unknown
from ..transport.commands.family import kinds_are_in

_OF_KINDS: Final[dict[str, tuple[str, ...]]] = {
    "lock": ("Lock",),
    "redlock": ("Redlock",),
    "reentrant": ("ReentrantLease", "ReentrantLock"),
    "multilock": ("MultiLock",),
    "permits": ("FairLock", "Semaphore"),
    "leadership": ("LeaderInfo", "Leadership", "Term"),
    "limits": ("Limits",),
    "spans": (
        *("RWLock", "SpanLease", "SpanLock", "UpgradableLease", "WriterLease"),
        *("Bound", "RangeLease", "RangeLock", "RangeUpgradableLease", "RangeWriterLease"),
    ),
    "flights": (),
    "uniquejob": ("JobLease", "UniqueJob"),
    "schedule": ("Schedule", "Tick", "TickRecord"),
    "turnstile": ("Turnstile",),
    "ratelimit": ("RateDecision", "RateLimit"),
    "latch": ("Latch",),
    "fenced": ("FencedRegister",),
    "combiner": ("Batch", "Combiner", "Left"),
}
"""The modules that say which kinds there are (`KINDS`), as operators see them, and their public names."""
_OTHERS: Final[dict[str, tuple[str, ...]]] = {
    "._infos": ("LockInfo", "WaiterInfo"),  # no primitives, but as rarely needed
    "._deadlocks": ("Deadlock", "DeadlockedTask"),
    "._holders": ("HolderInfo",),
    "current": ("current_lease", "ensure_held"),
    "serializers": ("JSON", "Serializer"),
    "singleflight": ("SingleFlight",),
    "turn": ("Turn",),
}
kinds_are_in(f"{__name__}.{module}" for module in _OF_KINDS)


def load(name: str) -> object:
    """The public class of that name."""
    modules = _OF_KINDS | _OTHERS
    (module,) = (module for module, names in modules.items() if name in names)
    found: object = getattr(importlib.import_module(f".{module}", __name__), name)
    if isinstance(found, type):
        hide_unknown(found)
    return found
