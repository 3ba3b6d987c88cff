"""A lock in a session, as its acquires and its leases see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine import Engine
    from .options import Options
    from .queue import Gate


class Target:
    """The lock that is acquired and held: where it is asked for, as what, and with which options.

    Attributes:
        gate: Where those of the session queue that want the same thing.
        label: Its kind, as messages call it.
    """

    __slots__ = ("engine", "gate", "label", "name", "options")

    def __init__(self, engine: Engine, gate: Gate, *, label: str, name: str, options: Options) -> None:
        self.engine = engine
        self.gate = gate
        self.label = label
        self.name = name
        self.options = options

    @property
    def kind(self) -> str:
        return self.label.lower()

    def __str__(self) -> str:
        return f"{self.label} {self.name!r}"
