"""A single try: it passes all those who wait, and does not become one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from ..._transport import IN_TURN, TOLD
from ..clock import seconds
from .acquiring import Acquiring

if TYPE_CHECKING:
    from ..._transport import Answer, Call, Fault, Refused


@final
class Attempt(Acquiring):
    """Asks a single time. It has no seat, no bell and no timer.

    It names the holders if there is a `blocking_timeout`, which then is 0.
    """

    __slots__ = ()

    def start(self) -> None:
        super().start()
        self._ask()

    def _ask(self) -> None:
        in_turn = IN_TURN if self._gate.manner.strict else 0
        self._send(in_turn | (0 if self._timeout is None else TOLD), patient=False)

    def _ask_until(self) -> float:
        return self.started + self._engine.settings.command_timeout

    def _refused(self, refusal: Refused, call: Call[Answer], now: float) -> None:
        self._tell_rung(refusal.rung)
        if refusal.error is None:
            self._refusal = refusal
            until = None if refusal.remaining_ms is None else now + seconds(refusal.remaining_ms)
            self._gate.refused_with(refusal, until)
        else:
            self.error = refusal.error
        self._end()

    def _came_late(self, call: Call[Answer], now: float) -> None:
        self._end()

    def _has_failed(self, fault: Fault) -> None:
        self._give_up(fault.error)

    def __repr__(self) -> str:
        return f"<Attempt at {self.target} {self.stage.name}>"
