"""The stages of an acquire, and the grant at its end."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple, final

if TYPE_CHECKING:
    from ..._transport import Granted


@final
class Stage(enum.Enum):
    """Where an acquire stands.

    `QUEUED`: others of its session ask. `ASKING`: a request of its own is under way, or its grant is on the
    way to replicas. `SLEEPING`: it was refused, and asks again when it is woken. `ENDED`: it was granted, or
    has given up.
    """

    QUEUED = enum.auto()
    ASKING = enum.auto()
    SLEEPING = enum.auto()
    ENDED = enum.auto()


@final
class Grant(NamedTuple):
    """A grant of the server.

    Attributes:
        sent, sent_steady: When the request for it was sent, as `Call` has it.
    """

    answer: Granted
    sent: float
    sent_steady: float
