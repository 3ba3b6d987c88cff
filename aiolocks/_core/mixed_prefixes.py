"""A client that is used by itself, beside a session of it that has another prefix.

Both ways are right, and together they are nearly always a mistake: `Lock(redis, name)` has the prefix of the
client's default session, and so does not exclude `Lock(session, name)`.

Threads may share a client: each step is one of a dictionary, which no other thread comes between.
"""

from __future__ import annotations

import weakref
from typing import Any, Final, cast

from .events import log

_SESSIONS: Final = "_aiolocks_apart"
"""Attribute of a client: its open sessions that have another prefix than the default, and which."""

_TOLD: Final = "_aiolocks_apart_told"


def opened(client: Any, session: object, prefix: str) -> None:
    """A session of this client has another prefix than its default session."""
    if not hasattr(client, _SESSIONS):
        attributes = cast("dict[str, Any]", vars(client))
        attributes.setdefault(_SESSIONS, weakref.WeakKeyDictionary())
    sessions: weakref.WeakKeyDictionary[object, str] = getattr(client, _SESSIONS)
    sessions[session] = prefix


def closed(client: Any, session: object) -> None:
    """Such a session is closed; any other may be told here too."""
    if sessions := getattr(client, _SESSIONS, None):
        sessions.pop(session, None)


def used(client: Any, user: object, default: str) -> None:
    """A lock or the like uses the client's default session: warns, once, if there is another prefix."""
    sessions: weakref.WeakKeyDictionary[object, str] | None = getattr(client, _SESSIONS, None)
    if not sessions or hasattr(client, _TOLD):
        return
    prefix = next(filter(None, (sessions.get(session()) for session in sessions.keyrefs())), None)
    this, attributes = object(), cast("dict[str, Any]", vars(client))
    if prefix is not None and attributes.setdefault(_TOLD, this) is this:
        log.warning(
            "%r was made with a client that also has a Session with the prefix %r. It belongs to the default "
            "session of the client, with the prefix %r, and does not exclude the locks of that Session: "
            "give it the Session instead of the client",
            user,
            prefix,
            default,
        )
