"""The typed commands: one function a script, which says what goes in and what comes out.

Times are whole milliseconds here, as the server counts; the conversion is `aiolocks._core.clock`.
"""

from __future__ import annotations

from .answers import BELL_TTL, HUNG, RUNG, Answer, Granted, Refused, Released
from .lock import LockCommands
from .multi import MultiCommands
from .permits import PermitCommands
from .reentrant import ReentrantCommands
from .spans import Span, SpanCommands
from .standing import IN_TURN, OWING, PASSING, QUEUED, STAYING, WAITING

__all__ = [
    "BELL_TTL",
    "HUNG",
    "IN_TURN",
    "OWING",
    "PASSING",
    "QUEUED",
    "RUNG",
    "STAYING",
    "WAITING",
    "Answer",
    "Granted",
    "LockCommands",
    "MultiCommands",
    "PermitCommands",
    "ReentrantCommands",
    "Refused",
    "Released",
    "Span",
    "SpanCommands",
]
