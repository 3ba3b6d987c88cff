"""Distributed locks for asyncio, on Redis and Valkey."""

from ._core.backoff import Backoff
from ._core.lease import Lease
from ._core.possession import LeaseState
from ._core.session import Session
from ._core.statistics import SessionStatistics
from ._primitives.lock import Lock
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
    "Lease",
    "LeaseState",
    "Lock",
    "LockError",
    "LockLostError",
    "LockNotOwnedError",
    "LockTimeoutError",
    "Session",
    "SessionClosedError",
    "SessionStatistics",
    "__version__",
]
