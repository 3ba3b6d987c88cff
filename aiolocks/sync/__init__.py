"""Locks for threads: for scripts, Celery, RQ, Django and other programs without an event loop.

```python
from aiolocks.sync import Session

locks = Session.from_url("redis://localhost:6379", prefix="shop")

with locks.lock("order:17", blocking_timeout=2) as lease:
    ...
```
"""

from __future__ import annotations

from . import _generated
from ._generated import *  # noqa: F403 - the classes that are made, of which it says which
from .current import current_lease, ensure_held
from .functions import RateDecision, Tick, Turn

__all__ = ["RateDecision", "Tick", "Turn", "current_lease", "ensure_held"]
__all__ += _generated.__all__
