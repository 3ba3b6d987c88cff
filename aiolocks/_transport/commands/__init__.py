"""The typed commands: one function a script, which says what goes in and what comes out.

Those of the simple lock are imported here; the others by the kinds that need them.

Times are whole milliseconds here, as the server counts; the conversion is `aiolocks._core.clock`.
"""

from __future__ import annotations

from .answers import BELL_TTL, HUNG, NEW, RUNG, Answer, Granted, Kept, Refused, Released, Stolen
from .lock import LockCommands, a_question
from .standing import IN_TURN, OWING, PASSING, QUEUED, STAYING, TOLD, WAITING
from .steps import SEAT_LENGTH, whereabouts

__all__ = [
    "BELL_TTL",
    "HUNG",
    "IN_TURN",
    "NEW",
    "OWING",
    "PASSING",
    "QUEUED",
    "RUNG",
    "SEAT_LENGTH",
    "STAYING",
    "TOLD",
    "WAITING",
    "Answer",
    "Granted",
    "Kept",
    "LockCommands",
    "Refused",
    "Released",
    "Stolen",
    "a_question",
    "whereabouts",
]
