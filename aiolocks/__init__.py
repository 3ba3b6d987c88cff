"""Distributed locks for asyncio, on Redis and Valkey."""

from ._core.backoff import Backoff
from ._core.events import LockEvent
from ._core.lease import Lease
from ._core.possession import LeaseState
from ._core.session import Session
from ._core.statistics import Histogram, SessionStatistics
from ._primitives.lock import Lock
from ._transport.wakeups import KeyspaceWakeup
from .errors import (
    BackendError,
    ConfigurationError,
    LockError,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    SessionClosedError,
)

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "Backoff",
    "ConfigurationError",
    "Histogram",
    "KeyspaceWakeup",
    "Lease",
    "LeaseState",
    "Lock",
    "LockError",
    "LockEvent",
    "LockLostError",
    "LockNotOwnedError",
    "LockTimeoutError",
    "Session",
    "SessionClosedError",
    "SessionStatistics",
    "__version__",
]
