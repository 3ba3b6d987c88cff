"""The steps of a turnstile."""

from __future__ import annotations

from typing import Final, final

from ..answers import Released, released
from ..keys import key
from ..request import Command, Script

_ENTER: Final = Script("turnstile_enter", "forms")
_END: Final = Script("turnstile_end")

REMEMBERED: Final = 1000
"""Places that the server keeps at once: about 100 KB. An entrant whose place was forgotten gets a new one."""


@final
class TurnstileCommands:
    """The steps of one turnstile under its name."""

    __slots__ = ("_keys",)

    def __init__(self, prefix: str, name: str) -> None:
        self._keys = (key(prefix, "turnstile", name),)

    def enter(self, token: str, window_ms: int) -> Command[int]:
        """Goes through: the place in this window."""
        return Command(_ENTER, self._keys, (token, window_ms, REMEMBERED), int, lane=token)

    def end(self, token: str) -> Command[Released]:
        """Ends the window if this token began it."""
        return Command(_END, self._keys, (token,), released, lane=token)
