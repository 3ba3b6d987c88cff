"""How those of one session ask for a run, be it a call or a turn."""

from __future__ import annotations

from .._core.binding import Binding
from .._core.claim import Resource
from .._core.clock import milliseconds
from .._core.engine import Engine
from .._core.lease import Lease
from .._core.options import Options
from .._core.term import NEVER
from .._transport.commands.flight import FlightCommands, Left


def runs(
    engine: Engine,
    kind: str,
    label: str,
    name: str,
    *,
    options: Options,
    fingerprint: str,
    ahead: float = 0.0,
    anew: int | None = None,
) -> tuple[FlightCommands, Binding[Lease]]:
    """The way in which the tasks of one session ask for one run.

    `ahead` and `anew` are those of `FlightCommands`.
    """
    commands = FlightCommands(
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


def ended_at(engine: Engine, left: Left) -> float:
    """Loop time up to which a task must have come to get the value of that run."""
    return NEVER if left.age_us is None else engine.now() - left.age_us / 1e6
