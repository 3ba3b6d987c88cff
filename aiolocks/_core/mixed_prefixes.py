"""A client that is used by itself, beside a session of it that has another prefix.

Both ways are right, and together they are nearly always a mistake: `Lock(redis, name)` has the prefix of the
client's default session, and so does not exclude `Lock(session, name)`.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

from .events import log

_SESSIONS: Final = "_aiolocks_apart"
"""Attribute of a client: its open sessions that have another prefix than the default, and which."""

_TOLD: Final = "_aiolocks_apart_told"


def opened(client: Any, session: object, prefix: str) -> None:
    """A session of this client has another prefix than its default session."""
    sessions: weakref.WeakKeyDictionary[object, str] | None = getattr(client, _SESSIONS, None)
    if sessions is None:
        sessions = weakref.WeakKeyDictionary()
        setattr(client, _SESSIONS, sessions)
    sessions[session] = prefix


def closed(client: Any, session: object) -> None:
    """Such a session is closed; any other may be told here too."""
    if sessions := getattr(client, _SESSIONS, None):
        sessions.pop(session, None)


def used(client: Any, user: object, default: str) -> None:
    """A lock or the like uses the client's default session: warns, once, if there is another prefix."""
    if (sessions := getattr(client, _SESSIONS, None)) and not hasattr(client, _TOLD):
        setattr(client, _TOLD, True)
        log.warning(
            "%r was made with a client that also has a Session with the prefix %r. It belongs to the default "
            "session of the client, with the prefix %r, and does not exclude the locks of that Session: "
            "give it the Session instead of the client",
            user,
            next(iter(sessions.values())),
            default,
        )
