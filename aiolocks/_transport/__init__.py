"""The way to the server and back: the only package that imports the Redis driver."""

from __future__ import annotations

from . import clocks
from .calls import Call, Command, Transport, ignore
from .commands import (
    BELL_TTL,
    HUNG,
    IN_TURN,
    NEW,
    OWING,
    PASSING,
    QUEUED,
    RUNG,
    SEAT_LENGTH,
    STAYING,
    TOLD,
    WAITING,
    Answer,
    Granted,
    Kept,
    LockCommands,
    Refused,
    Released,
    Stolen,
    a_question,
    whereabouts,
)
from .commands.answers import ASK, BELL_RUNG, GONE, NO_END, NOT_OURS
from .commands.listening import Listener, listening, one_request_each
from .faults import Fault
from .opening import check_client, check_master, master_label, open_quorum, open_transport
from .replication import Proof
from .undoing import take_back
from .wakeups import GONE_SILENT, KeyspaceWakeup, OnRung, Wakeup
from .wakeups import NAMES as WAKEUPS

__all__ = [
    "ASK",
    "BELL_RUNG",
    "BELL_TTL",
    "GONE",
    "GONE_SILENT",
    "HUNG",
    "IN_TURN",
    "NEW",
    "NOT_OURS",
    "NO_END",
    "OWING",
    "PASSING",
    "QUEUED",
    "RUNG",
    "SEAT_LENGTH",
    "STAYING",
    "TOLD",
    "WAITING",
    "WAKEUPS",
    "Answer",
    "Call",
    "Command",
    "Fault",
    "Granted",
    "Kept",
    "KeyspaceWakeup",
    "Listener",
    "LockCommands",
    "OnRung",
    "Proof",
    "Refused",
    "Released",
    "Stolen",
    "Transport",
    "Wakeup",
    "a_question",
    "check_client",
    "check_master",
    "clocks",
    "ignore",
    "listening",
    "master_label",
    "one_request_each",
    "open_quorum",
    "open_transport",
    "take_back",
    "whereabouts",
]
