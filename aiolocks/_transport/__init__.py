"""The way to the server and back: the only package that imports the Redis driver."""

from __future__ import annotations

from . import clocks, closed_loops
from .commands.base import whereabouts
from .commands.listening import Listener, listening, one_request_each
from .commands.lock import LockCommands, a_question
from .commands.standing import BEHIND, IN_TURN, OWING, PASSING, SEATED, STAYING, TOLD, WAITING
from .faults import Fault
from .opening import (
    check_client,
    check_master,
    master_label,
    open_clients,
    open_quorum,
    open_transport,
    place,
)
from .requests.answers import (
    ASK,
    BELL_RUNG,
    BELL_TTL,
    GONE,
    NO_END,
    NOT_OURS,
    Answer,
    Granted,
    Kept,
    Refused,
    Released,
    Stolen,
)
from .requests.calls import Call, Command, ignore, several
from .requests.scripts import Script
from .requests.transport import Proof, Transport
from .requests.undoing import take_back
from .wire.dialect import PROTOCOLS, Dialect, Protocol
from .wire.wakeups import GONE_SILENT, KeyspaceWakeup, OnRung, Wakeup
from .wire.wakeups import NAMES as WAKEUPS

__all__ = [
    "ASK",
    "BEHIND",
    "BELL_RUNG",
    "BELL_TTL",
    "GONE",
    "GONE_SILENT",
    "IN_TURN",
    "NOT_OURS",
    "NO_END",
    "OWING",
    "PASSING",
    "PROTOCOLS",
    "SEATED",
    "STAYING",
    "TOLD",
    "WAITING",
    "WAKEUPS",
    "Answer",
    "Call",
    "Command",
    "Dialect",
    "Fault",
    "Granted",
    "Kept",
    "KeyspaceWakeup",
    "Listener",
    "LockCommands",
    "OnRung",
    "Proof",
    "Protocol",
    "Refused",
    "Released",
    "Script",
    "Stolen",
    "Transport",
    "Wakeup",
    "a_question",
    "check_client",
    "check_master",
    "clocks",
    "closed_loops",
    "ignore",
    "listening",
    "master_label",
    "one_request_each",
    "open_clients",
    "open_quorum",
    "open_transport",
    "place",
    "several",
    "take_back",
    "whereabouts",
]
