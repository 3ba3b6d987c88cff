"""A place in the queue on the server, by which other processes know that somebody waits here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, final

from .._transport import Call, Fault

if TYPE_CHECKING:
    from .claim import Claim, Commands
    from .engine import Engine


@final
class Place:
    """What one gate has in the queue: an entry, and a bell that is rung when it is its turn.

    Invariants:
    - `armed` is True only while, for all that is known here, the bell hangs: it is cleared in the step that
      learns otherwise, and then the next try that is refused arms anew;
    - `noted` is True from the first sign that the server has this place until it is given up: a request that
      was never written leaves it False.
    """

    __slots__ = ("_commands", "_engine", "_renewal", "armed", "armings", "noted", "taken", "taken_late")

    def __init__(self, engine: Engine, commands: Commands) -> None:
        self._commands = commands
        self._engine = engine
        self.taken = False  # the entry may stand in the queue
        self.armed = False
        self.noted = False  # the server has answered a waiter of here, or may have executed its request
        self.armings = 0  # so often was it taken
        self.taken_late = False  # one that has left may have taken it, after those that wait on had it
        self._renewal: Call[int] | None = None  # the last one

    @property
    def bells(self) -> tuple[bytes, ...]:
        return self._commands.all_bells

    @property
    def heard(self) -> bool:
        """Whether we are told when it is our turn."""
        return self.armed and self._engine.hears

    def given_up_within(self, seconds: float) -> float:
        """For how long the request that gives it up is of use, if without it that is so many seconds."""
        return max(seconds, self._commands.lingers) if self.noted else seconds

    def arm(self, claim: Claim, told: Callable[[int], None], *, until: float) -> Call[int]:
        """Takes it, at the end of the queue, or hangs up its bell anew; goes with what is sent next."""
        self.taken = self.armed = True
        self.armings += 1
        call = Call(claim.arm(), told, self._failed, until=until)
        self._engine.send(call, more=True)
        return call

    def renew(self, claim: Claim, told: Callable[[int], None], *, until: float) -> None:
        """Hangs up the bell anew; tells what it was."""
        self.armed = True
        self._renewal = Call(claim.arm(), told, self._failed, until=until)
        self._engine.send(self._renewal)

    @property
    def renewal_pends(self) -> bool:
        """Whether a renewal of the bell has had no answer yet: it may come after what was sent later."""
        return self._renewal is not None and not self._renewal.done

    def given_up(self) -> None:
        """It is taken away. A renewal of which the server did not know the script is not sent again."""
        self.taken = self.armed = False
        if self._renewal is not None:
            self._engine.forget(self._renewal)
            self._renewal = None

    def _failed(self, fault: Fault) -> None:
        self.armed = False
        self._engine.bells.refused(fault)
