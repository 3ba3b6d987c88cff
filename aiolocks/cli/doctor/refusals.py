"""Why a server does not run a command, and what mends that."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from redis.exceptions import NoPermissionError, ResponseError

from .facts import ClosesError

UNKNOWN: Final = "unknown to the server"
DENIED: Final = "denied to this user"
CLOSED: Final = "the connection is closed on it"

_UNKNOWN: Final = re.compile(r"unknown.*command", re.IGNORECASE)
_DENIED: Final = re.compile(r"can't run this command|ACL failure|no permissions|NOPERM")


def trouble(text: str) -> str:
    """Why the server does not run a command at all, by what it says; empty where it does."""
    if _UNKNOWN.search(text):
        return UNKNOWN
    return DENIED if _DENIED.search(text) else ""


def trouble_of(error: ResponseError) -> str:
    """The same, by the error of the driver."""
    if isinstance(error, ClosesError):
        return CLOSED
    return DENIED if isinstance(error, NoPermissionError) else trouble(str(error))


def mend(troubles: Mapping[str, str], grant: str) -> str:
    """What is to be done, for commands as an ACL names them: an ACL has none that the server does not know.

    Args:
        troubles: By command, as `trouble` gives them.
        grant: The beginning of a rule for this user.
    """
    unknown = dict.fromkeys(word.partition("|")[0] for word, why in troubles.items() if why == UNKNOWN)
    closed = [word for word, why in troubles.items() if why == CLOSED]
    rules = [word for word, why in troubles.items() if why not in (UNKNOWN, CLOSED)]
    lines = [f"{grant} {' '.join(f'+{word}' for word in rules)}"] if rules else []
    if unknown:
        lines.append(f"remove rename-command {', '.join(map(str.upper, unknown))} from its configuration")
    if closed:
        lines.append(f"let the proxy pass {', '.join(word.upper().replace('|', ' ') for word in closed)}")
    return "; ".join(lines)
