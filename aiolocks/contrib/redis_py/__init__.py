"""Locks that are redis-py's, on the server and for their users, without the faults of redis-py's own."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .lock import Lock

if TYPE_CHECKING:
    from .threads import SyncLock

__all__ = ["Lock", "SyncLock"]


def __dir__() -> list[str]:
    """The public names alone."""
    return [*__all__]


def __getattr__(name: str) -> object:
    """Imports the lock for threads when it is first named: programs with a loop need nothing of it."""
    if name == "SyncLock":
        found: object = importlib.import_module(".threads", __name__).SyncLock
        globals()[name] = found
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
