"""The way to the server and back: the only package that imports the Redis driver."""

from __future__ import annotations

from . import clocks, closed_loops
from .answers import (
    ASK,
    BELL_RUNG,
    BELL_TTL,
    FAR_BELL_TTL,
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
from .dialect import PROTOCOLS, Dialect, Protocol
from .faults import SILENCE, Fault, too_soon
from .hearing import ANOTHER_MASTER, GONE_SILENT, KeyspaceWakeup, OnRung, Wakeup
from .hearing import NAMES as WAKEUPS
from .keys import slot_of
from .opening import (
    check_client,
    check_master,
    master_label,
    open_clients,
    open_quorum,
    open_transport,
    place,
)
from .request import Proof, Request, Script, Transport, ignore, known_ms, take_back
from .steps.listening import NEAR, Listener, hanging, listening, one_request_each, whereabouts
from .steps.lock import KeptSteps, LockSteps, a_question, locks_release
from .steps.standing import BEHIND, BRIEF, IN_TURN, OWING, PASSING, SEATED, STAYING, TOLD, WAITING

__all__ = [
    "ANOTHER_MASTER",
    "ASK",
    "BEHIND",
    "BELL_RUNG",
    "BELL_TTL",
    "BRIEF",
    "FAR_BELL_TTL",
    "GONE",
    "GONE_SILENT",
    "IN_TURN",
    "NEAR",
    "NOT_OURS",
    "NO_END",
    "OWING",
    "PASSING",
    "PROTOCOLS",
    "SEATED",
    "SILENCE",
    "STAYING",
    "TOLD",
    "WAITING",
    "WAKEUPS",
    "Answer",
    "Dialect",
    "Fault",
    "Granted",
    "Kept",
    "KeptSteps",
    "KeyspaceWakeup",
    "Listener",
    "LockSteps",
    "OnRung",
    "Proof",
    "Protocol",
    "Refused",
    "Released",
    "Request",
    "Script",
    "Stolen",
    "Transport",
    "Wakeup",
    "a_question",
    "check_client",
    "check_master",
    "clocks",
    "closed_loops",
    "hanging",
    "ignore",
    "known_ms",
    "listening",
    "locks_release",
    "master_label",
    "one_request_each",
    "open_clients",
    "open_quorum",
    "open_transport",
    "place",
    "slot_of",
    "take_back",
    "too_soon",
    "whereabouts",
]
