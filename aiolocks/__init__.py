"""Distributed locks for asyncio, on Redis and Valkey."""

import typing

from ._core.backoff import Backoff
from ._core.events import LockEvent
from ._core.lease import Lease, LeaseState
from ._core.session import Session
from ._core.statistics import Histogram, SessionStatistics
from ._primitives.lock import Lock
from ._transport.wire.wakeups import KeyspaceWakeup
from .errors import (
    BackendError,
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

if typing.TYPE_CHECKING:
    from ._deadlocks import Deadlock, DeadlockedTask
    from ._holders import HolderInfo
    from ._inspection.infos import LockInfo, WaiterInfo
    from ._primitives.fairlock import FairLock
    from ._primitives.fenced import FencedRegister
    from ._primitives.jobruns import JobLease
    from ._primitives.leaders import LeaderInfo
    from ._primitives.leadership import Leadership
    from ._primitives.limits import Limits
    from ._primitives.multilock import MultiLock
    from ._primitives.rangelock import Bound, RangeLease, RangeLock, RangeUpgradableLease, RangeWriterLease
    from ._primitives.redlock import Redlock
    from ._primitives.reentrant import ReentrantLease, ReentrantLock
    from ._primitives.rwlock import RWLock
    from ._primitives.schedule import Schedule, Tick, TickRecord
    from ._primitives.semaphore import Semaphore
    from ._primitives.serializers import JSON, Serializer
    from ._primitives.singleflight import SingleFlight
    from ._primitives.spans import SpanLease, SpanLock, UpgradableLease, WriterLease
    from ._primitives.terms import Term
    from ._primitives.turn import Turn
    from ._primitives.turnstile import Turnstile
    from ._primitives.uniquejob import UniqueJob

__version__ = "0.2.0"

__all__ = [
    "JSON",
    "BackendError",
    "Backoff",
    "Bound",
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
    "LeaderInfo",
    "Leadership",
    "Lease",
    "LeaseState",
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
]


def __getattr__(name: str) -> object:
    """Kinds of locks are imported when they are first named: most programs use few of them."""
    from ._primitives import load  # noqa: PLC0415

    if name in __all__:
        globals()[name] = found = load(name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
