"""The states of a lease, and its end.

```
HELD ⇄ UNKNOWN        a renewal went unanswered, and time is left / it was answered after all
HELD, UNKNOWN → LOST, RELEASED, DETACHED
```

The last three are final.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple, final

if TYPE_CHECKING:
    from .._holders import HolderInfo


class LeaseState(enum.Enum):
    """The state of a lease, as far as it is known.

    `HELD`: it may be relied on. `UNKNOWN`: it may be relied on for the time that is left, but the last
    renewal has not been answered. `LOST`: it can no longer be relied on. `RELEASED`: let go. `DETACHED`:
    handed over by `detach()`.
    """

    HELD = "held"
    UNKNOWN = "unknown"
    LOST = "lost"
    RELEASED = "released"
    DETACHED = "detached"


@final
class End(NamedTuple):
    """How a lease has ended.

    Attributes:
        state: A final one.
        reason: As errors and the log tell it.
        stolen_by: The holder that has taken it by force.
    """

    state: LeaseState
    reason: str
    stolen_by: HolderInfo | None = None


RELEASED: Final = End(LeaseState.RELEASED, "it was released")
DETACHED: Final = End(LeaseState.DETACHED, "it was detached")
