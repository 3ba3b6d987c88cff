"""Locks for threads: for scripts, Celery, RQ, Django and other programs without an event loop.

```python
from aiolocks.sync import Session

locks = Session.from_url("redis://localhost:6379", prefix="shop")

with locks.lock("order:17", blocking_timeout=2) as lease:
    ...
```
"""

from __future__ import annotations

from ._generated import (
    Combiner,
    FencedRegister,
    JobLease,
    Latch,
    Leadership,
    Lease,
    Limits,
    Lock,
    MultiLock,
    RangeLease,
    RangeLock,
    RangeUpgradableLease,
    RangeWriterLease,
    RateLimit,
    ReentrantLease,
    RWLock,
    Schedule,
    Semaphore,
    Session,
    SingleFlight,
    Term,
    Turnstile,
    UniqueJob,
    UpgradableLease,
    WriterLease,
)
from .current import current_lease, ensure_held
from .functions import RateDecision, Tick, Turn

__all__ = [
    "Combiner",
    "FencedRegister",
    "JobLease",
    "Latch",
    "Leadership",
    "Lease",
    "Limits",
    "Lock",
    "MultiLock",
    "RWLock",
    "RangeLease",
    "RangeLock",
    "RangeUpgradableLease",
    "RangeWriterLease",
    "RateDecision",
    "RateLimit",
    "ReentrantLease",
    "Schedule",
    "Semaphore",
    "Session",
    "SingleFlight",
    "Term",
    "Tick",
    "Turn",
    "Turnstile",
    "UniqueJob",
    "UpgradableLease",
    "WriterLease",
    "current_lease",
    "ensure_held",
]
