"""A place in the queue on the server, by which other processes know that somebody waits here."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from ..._transport.commands.base import NameCommands
    from ..engine import Engine


@final
class Place:
    """The place of one gate in the queue: an entry, and a bell that is rung when it is its turn.

    A refusal gives it; or an arming does, where each waiter has a seat of its own and does not ask yet.

    Invariants:
    - `taken` is True from the step on that learns that the entry may stand in the queue until it is given up;
    - `armed` is True only while, for all that is known here, the bell hangs and is heard: it is cleared in
      the step that learns otherwise, and then the session listens for it again after the next refusal.
    """

    __slots__ = ("_commands", "_engine", "answered", "armed", "kept", "taken", "unseated")

    def __init__(self, engine: Engine, commands: NameCommands) -> None:
        self._commands = commands
        self._engine = engine
        self.taken = False
        self.kept = 0  # so many undos of waiters that may be seated late have left the place to others
        self.armed = False
        self.answered = False  # since it was armed, the server has said that the bell hangs
        self.unseated = 0  # the times in a row that it did not hang after a refusal

    @property
    def bells(self) -> tuple[bytes, ...]:
        return self._commands.all_bells

    @property
    def heard(self) -> bool:
        """Whether we are told when it is our turn."""
        return self.armed and self._engine.hears

    def given_up_within(self, seconds: float) -> float:
        """Seconds for which the request that gives it up is of use, if without it that is `seconds`."""
        return max(seconds, self._commands.lingers) if self.taken else seconds

    def listened_for(self) -> None:
        """A request for that is sent now."""
        self.armed = True
        self.answered = False
