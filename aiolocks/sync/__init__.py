"""Locks for threads: for scripts, Celery, RQ, Django and other programs without an event loop.

```python
from aiolocks.sync import Session

locks = Session.from_url("redis://localhost:6379", prefix="shop")

with locks.lock("order:17", blocking_timeout=2) as lease:
    ...
```
"""

from __future__ import annotations

from .locks import (
    Lease,
    Limits,
    Lock,
    RangeLease,
    RangeLock,
    RangeUpgradableLease,
    RangeWriterLease,
    ReentrantLease,
    RWLock,
    Semaphore,
    UpgradableLease,
    WriterLease,
)
from .session import Session
from .waits import Combiner, Latch, RateLimit

__all__ = [
    "Combiner",
    "Latch",
    "Lease",
    "Limits",
    "Lock",
    "RWLock",
    "RangeLease",
    "RangeLock",
    "RangeUpgradableLease",
    "RangeWriterLease",
    "RateLimit",
    "ReentrantLease",
    "Semaphore",
    "Session",
    "UpgradableLease",
    "WriterLease",
]
