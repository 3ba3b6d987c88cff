"""The sessions that do the work for the first argument of a lock: a session, or a client."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Any, Final, Protocol, TypeGuard

from ..errors import SessionClosedError
from ..transport import check_client, place
from . import mixed_prefixes
from .engine import Engine, Settings

DEFAULT_SESSIONS: Final = "_aiolocks_sessions"
"""Attribute of a client under which its default sessions live exactly as long as it does."""

PREFIX: Final = "aiolocks"


class AsyncClient(Protocol):
    """A client of `redis.asyncio` or `valkey.asyncio`, also of a cluster, as type checkers see it.

    It says what only these clients have in common: their names would be `Any` where valkey-py is not
    installed, and then anything would do.
    """

    def aclose(self) -> Awaitable[Any]: ...

    def execute_command(self, *args: Any, **options: Any) -> Awaitable[Any]: ...


class _Session(Protocol):
    """A session, as its locks see it."""

    @property
    def _settings(self) -> Settings: ...

    @property
    def _client(self) -> Any: ...

    @classmethod
    def of(cls, client: Any) -> _Session:
        """The default session of a client."""
        ...

    def _usable_engine(self) -> Engine: ...

    def _has(self, engine: Engine) -> bool: ...

    def _lead(self, sessions: tuple[Any, ...]) -> Engine: ...


Client = AsyncClient | _Session
"""What a lock takes first: a client, or an `aiolocks.Session`."""
Source = str | Callable[[], AsyncClient]
"""What a session makes its client of: a URL, or a function."""

_session: type[_Session]


def sessions_are(kind: type[Any]) -> None:
    """The class of sessions says so itself: a lock need not know how a session is built."""
    global _session  # noqa: PLW0603 - once, by that class
    _session = kind


def is_session(source: Any) -> TypeGuard[_Session]:
    return isinstance(source, _session)


def source_of(client: Client) -> Any:
    """A session or a client, as given; checked.

    Raises:
        TypeError: It is neither.
    """
    # The check takes longer than all else that makes a lock: it is not done again for a client in use.
    # Its own attributes are looked at: a wrapper shows the attributes of the client in it.
    if not isinstance(client, _session) and DEFAULT_SESSIONS not in getattr(client, "__dict__", ()):
        check_client(client, or_session=True)
    return client


def engine_of(source: Any, used_by: object = None) -> Engine:
    """The engine of a session, or of the default session of a client.

    Args:
        source: The session or the client.
        used_by: The lock or the like; None if its keys do not have the session's prefix.

    Raises:
        SessionClosedError: The session was closed.
        RuntimeError: It belongs to another event loop or process.
    """
    return _session_for(source, used_by)._usable_engine()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the one door to it


def is_closed(session: Any) -> bool:
    """Whether a session was closed, or is being closed."""
    try:
        engine_of(session)
    except SessionClosedError:
        return True
    return False


def joint_engine_of(sources: Iterable[Any], used_by: object = None) -> Engine:
    """The engine that several sessions, or default sessions of clients, have together.

    It has the settings of the first, is the same for the same ones on the same event loop, and ends with any
    of them.

    Raises:
        SessionClosedError: One of the sessions was closed.
        RuntimeError: One of them belongs to another event loop or process.
    """
    sessions = tuple(_session_for(source, used_by) for source in sources)
    return sessions[0]._lead(sessions)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the other door


def works_for(source: Any, engine: Engine) -> bool:
    """Whether that engine is of this session, or of a default session of this client."""
    sessions = (source,) if is_session(source) else tuple(getattr(source, DEFAULT_SESSIONS, {}).values())
    return any(session._has(engine) for session in sessions)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the third door


def log_level(source: Any, error: BaseException) -> int:
    """The level at which an object of that session or client tells that a request of it has ended so."""
    try:
        return engine_of(source).log_level(error)
    except (SessionClosedError, RuntimeError):  # then that is the news
        return logging.WARNING


def _session_for(source: Any, used_by: object) -> _Session:
    given = isinstance(source, _session)
    if used_by is not None and (not given or source._settings.prefix == PREFIX):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as `prefix_of`
        mixed_prefixes.used(source, used_by, PREFIX, _place_of)
    return source if given else _session.of(source)


def _place_of(source: Any) -> Hashable:
    return place(client_of(source))


def prefix_of(source: Any) -> str:
    """The prefix of a session, also of a closed one, or of the default session of a client."""
    if is_session(source):
        return source._settings.prefix  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return PREFIX


def client_of(source: Any) -> Any:
    """The client of a session, or the client itself."""
    if is_session(source):
        return source._client  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return source
