"""How those of one session ask for a run, be it a call or a turn."""

from __future__ import annotations

import math
from typing import final

from ..lock.binding import Binding
from ..lock.claim import Resource
from ..lock.clock import dependable, milliseconds
from ..lock.context import Context
from ..lock.lease import Lease
from ..lock.options import Options
from ..lock.term import NEVER
from .flightsteps import FlightSteps, Left


def runs(
    engine: Context,
    kind: str,
    label: str,
    name: str,
    *,
    options: Options,
    fingerprint: str,
    ahead: float = 0.0,
    anew: int | None = None,
) -> tuple[FlightSteps, Binding[Lease]]:
    """The way in which the tasks of one session ask for one run.

    `ahead` and `anew` are those of `FlightSteps`.
    """
    commands = FlightSteps(
        engine.settings.prefix,
        kind,
        name,
        fingerprint=fingerprint,
        retention_ms=milliseconds(engine.settings.fence_retention),
        session=engine.session_id,
        ahead=ahead,
        anew=anew,
    )
    # A run that replaces a value has a gate of its own: callers here ask the server meanwhile.
    resource = Resource(commands, (kind, name) if anew is None else (kind, name, "anew"))
    return commands, Binding(engine, resource, Lease, label=label, name=name, options=options)


def ended_at(engine: Context, left: Left, *, asked: float) -> float:
    """Loop time up to which a task must have come to get the result of that run.

    `asked` is when the asker began to ask: the run was going on later, for the asker was told of it.
    """
    return NEVER if left.age_us is None else max(asked, engine.now() - left.age_us / 1e6)


@final
class GrantTime:
    """When a run was granted, by the server's clock and by ours.

    So the age of its result counts from when it was made, however late the server hears of it.

    Args:
        at_us: The server's time at the grant, microseconds.
        lease: Granted a moment ago.

    Attributes:
        unsure: Seconds by which the server's time may be earlier than `latest_us` says: the request and its
            answer took so long.
    """

    __slots__ = ("_at_us", "_engine", "_heard", "unsure")

    def __init__(self, engine: Context, at_us: int, lease: Lease) -> None:
        self._engine = engine
        self._at_us = at_us
        self._heard = engine.mark()
        self.unsure = dependable(lease.ttl) - lease.remaining()

    def latest_us(self, age: float) -> int:
        """The server's time, microseconds, that many seconds ago: the latest that it can have been."""
        since_sent = self._engine.elapsed(self._heard) + self.unsure
        return self._at_us + math.floor((since_sent - age) * 1e6)
