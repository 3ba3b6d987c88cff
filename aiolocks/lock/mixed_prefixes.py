"""Two prefixes for one server in one process, of which one is the default that no code has chosen.

Each is right by itself, and together they are nearly always a mistake: `Lock(redis, name)` has the default
prefix, and so does not exclude `Lock(session, name)`. A session whose prefix was chosen is not told of: an
application may have several prefixes on purpose.

Threads may share a client: each step is one of a dictionary, which no other thread comes between.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Final

from .events import log

_apart: Final[weakref.WeakKeyDictionary[Any, tuple[Hashable, str]]] = weakref.WeakKeyDictionary()
"""The sessions in use that have another prefix than the default: the place of their keys, and the prefix."""

_telling: Final = threading.Lock()
_told: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""The clients, and sessions, of which it was said."""


def opened(session: object, place: Hashable, prefix: str) -> None:
    """A session whose prefix is not the default is used from now on."""
    _apart[session] = place, prefix


def closed(session: object) -> None:
    """Such a session is closed; a session with the default prefix may be given, too."""
    _apart.pop(session, None)


def used(source: Any, user: object, default: str, place_of: Callable[[Any], Hashable]) -> None:
    """A lock or the like uses the default prefix: warns, once for each source, if there is another one there.

    Args:
        source: The client, or the session with the default prefix.
        user: The lock or the like.
        default: The default prefix.
        place_of: Gives the place of the source's keys.
    """
    if not _apart or source in _told:
        return
    place = place_of(source)
    sessions = [session for ref in _apart.keyrefs() if (session := ref()) is not None]
    apart = [_apart.get(session) for session in sessions]
    prefix = next((found[1] for found in apart if found is not None and found[0] == place), None)
    if prefix is None:
        return
    with _telling:
        if source in _told:
            return
        _told.add(source)
    log.warning(
        "%r has the default prefix %r, and a Session of the same server in this process has the prefix %r: "
        "it does not exclude the locks of that Session. Make all locks of an application with one Session",
        user,
        default,
        prefix,
    )
