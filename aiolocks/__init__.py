"""Distributed locks for asyncio, on Redis and Valkey."""

import importlib
import typing

from .errors import (
    BackendError,
    CombinerFullError,
    ConfigurationError,
    DeadlockError,
    DuplicateJobError,
    FingerprintError,
    LockError,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    RemoteCallError,
    ResultNotKeptError,
    SessionClosedError,
    StaleFenceError,
)
from .kinds.lock import Lock
from .lock import misuse as _misuse
from .lock import session as _sessions
from .lock.backoff import Backoff
from .lock.events import LockEvent
from .lock.lease import Lease, LeaseState
from .lock.naming import name_of
from .lock.session import Session
from .lock.statistics import Histogram, SessionStatistics
from .transport.hearing import KeyspaceWakeup
from .transport.steps import family as _family

if typing.TYPE_CHECKING:
    from ._deadlocks import Deadlock, DeadlockedTask
    from ._holders import HolderInfo
    from ._infos import LockInfo, WaiterInfo
    from .kinds.combiner import Batch, Combiner, Left
    from .kinds.current import current_lease, ensure_held
    from .kinds.fenced import FencedRegister
    from .kinds.latch import Latch
    from .kinds.leadership import LeaderInfo, Leadership, Term
    from .kinds.limits import Limits
    from .kinds.multilock import MultiLock
    from .kinds.permits import FairLock, Semaphore
    from .kinds.ratelimit import RateDecision, RateLimit
    from .kinds.redlock import Redlock
    from .kinds.reentrant import ReentrantLease, ReentrantLock
    from .kinds.schedule import Schedule, Tick, TickRecord
    from .kinds.serializers import JSON, Serializer
    from .kinds.singleflight import SingleFlight
    from .kinds.spans import (
        Bound,
        RangeLease,
        RangeLock,
        RangeUpgradableLease,
        RangeWriterLease,
        RWLock,
        SpanLease,
        SpanLock,
        UpgradableLease,
        WriterLease,
    )
    from .kinds.turn import Turn
    from .kinds.turnstile import Turnstile
    from .kinds.uniquejob import JobLease, UniqueJob

__version__ = "0.2.0"

_MODULES = {
    "kinds.lock": ("Lock",),
    "kinds.redlock": ("Redlock",),
    "kinds.reentrant": ("ReentrantLease", "ReentrantLock"),
    "kinds.multilock": ("MultiLock",),
    "kinds.permits": ("FairLock", "Semaphore"),
    "kinds.leadership": ("LeaderInfo", "Leadership", "Term"),
    "kinds.limits": ("Limits",),
    "kinds.spans": (
        *("RWLock", "SpanLease", "SpanLock", "UpgradableLease", "WriterLease"),
        *("Bound", "RangeLease", "RangeLock", "RangeUpgradableLease", "RangeWriterLease"),
    ),
    "kinds.flights": (),
    "kinds.uniquejob": ("JobLease", "UniqueJob"),
    "kinds.schedule": ("Schedule", "Tick", "TickRecord"),
    "kinds.turnstile": ("Turnstile",),
    "kinds.ratelimit": ("RateDecision", "RateLimit"),
    "kinds.latch": ("Latch",),
    "kinds.fenced": ("FencedRegister",),
    "kinds.combiner": ("Batch", "Combiner", "Left"),
    "kinds.current": ("current_lease", "ensure_held"),
    "kinds.serializers": ("JSON", "Serializer"),
    "kinds.singleflight": ("SingleFlight",),
    "kinds.turn": ("Turn",),
    "_deadlocks": ("Deadlock", "DeadlockedTask"),
    "_holders": ("HolderInfo",),
    "_infos": ("LockInfo", "WaiterInfo"),
}
"""The modules that are imported when one of their public names is first used. A module of `kinds` says with
`KINDS` which kinds it has, if any; operators see them in this order."""
_family.kinds_are_in(f"{__name__}.{module}" for module in _MODULES if module.startswith("kinds."))

# Most programs need nothing of it, and its import takes 10 ms.
_sessions.use_operators(
    lambda: typing.cast("_sessions.Operators", importlib.import_module(".inspect.operators", __name__))
)

__all__ = [
    "JSON",
    "BackendError",
    "Backoff",
    "Batch",
    "Bound",
    "Combiner",
    "CombinerFullError",
    "ConfigurationError",
    "Deadlock",
    "DeadlockError",
    "DeadlockedTask",
    "DuplicateJobError",
    "FairLock",
    "FencedRegister",
    "FingerprintError",
    "Histogram",
    "HolderInfo",
    "JobLease",
    "KeyspaceWakeup",
    "Latch",
    "LeaderInfo",
    "Leadership",
    "Lease",
    "LeaseState",
    "Left",
    "Limits",
    "Lock",
    "LockError",
    "LockEvent",
    "LockInfo",
    "LockLostError",
    "LockNotOwnedError",
    "LockTimeoutError",
    "MultiLock",
    "RWLock",
    "RangeLease",
    "RangeLock",
    "RangeUpgradableLease",
    "RangeWriterLease",
    "RateDecision",
    "RateLimit",
    "Redlock",
    "ReentrantLease",
    "ReentrantLock",
    "RemoteCallError",
    "ResultNotKeptError",
    "Schedule",
    "Semaphore",
    "Serializer",
    "Session",
    "SessionClosedError",
    "SessionStatistics",
    "SingleFlight",
    "SpanLease",
    "SpanLock",
    "StaleFenceError",
    "Term",
    "Tick",
    "TickRecord",
    "Turn",
    "Turnstile",
    "UniqueJob",
    "UpgradableLease",
    "WaiterInfo",
    "WriterLease",
    "__version__",
    "current_lease",
    "ensure_held",
    "name_of",
]


def __getattr__(name: str) -> object:
    """Most kinds of locks are imported when they are first named: most programs use few of them."""
    for module, names in _MODULES.items():
        if name in names:
            found: object = getattr(importlib.import_module(f".{module}", __name__), name)
            if isinstance(found, type):
                _misuse.hide_unknown(found)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
