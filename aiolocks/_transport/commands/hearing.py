"""The trial of a connection: whether the server tells it of the end of a bell."""

from __future__ import annotations

from typing import Final

from ..requests.calls import Command
from ..requests.scripts import Script

_TRY: Final = Script("bell_try")
_TTL_MS: Final = 1000


def trial(bell: bytes) -> Command[int]:
    """Rings that bell, which nobody else has; also on a server that is out of memory."""
    return Command(_TRY, (bell,), (_TTL_MS,), int)
