"""What a lock means: one public class a file, with the leases that are its own."""

from __future__ import annotations

import importlib
from typing import Final

_MODULES: Final = {
    "fairlock": ("FairLock",),
    "multilock": ("MultiLock",),
    "rangelock": ("Bound", "RangeLease", "RangeLock", "RangeUpgradableLease", "RangeWriterLease"),
    "redlock": ("Redlock",),
    "reentrant": ("ReentrantLease", "ReentrantLock"),
    "rwlock": ("RWLock",),
    "semaphore": ("Semaphore",),
    "spans": ("SpanLease", "SpanLock", "UpgradableLease", "WriterLease"),
}


def load(name: str) -> object:
    """The public class of that name."""
    (module,) = (module for module, names in _MODULES.items() if name in names)
    found: object = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return found
