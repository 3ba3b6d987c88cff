"""The facts that a server tells of itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import BusyLoadingError, ResponseError
from redis.exceptions import ConnectionError as NoConnectionError

from ..exits import NO_SERVER, CommandError

PATIENCE: Final = 3.0
"""Seconds that each question may take."""

_SETTINGS: Final = (
    "save",
    "appendfsync",
    "min-replicas-to-write",
    "min-slaves-to-write",
    "tracking-table-max-keys",
    "notify-keyspace-events",
)
_MICROSECONDS: Final = 1_000_000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts that a server tells of itself, as far as the user may ask.

    Attributes:
        info: The fields of INFO; empty where that is denied.
        settings: Some fields of CONFIG GET; empty where that is denied.
        ahead: Seconds that the server's clock is ahead of this machine's; None where TIME is denied, or a
            proxy answers it.
        uncertain: Seconds by which `ahead` may be wrong: half of the round trip.
        refused: The questions that were refused, as an ACL names them, with the error.
    """

    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    ahead: float | None = None
    uncertain: float = 0.0
    refused: Mapping[str, ResponseError] = field(default_factory=dict[str, ResponseError])

    @property
    def closes(self) -> bool:
        """Whether the connection was closed on one of the questions."""
        return any(isinstance(error, ClosesError) for error in self.refused.values())

    def number(self, name: str) -> int:
        """A field of INFO that is a number; 0 where it is not there."""
        value = self.info.get(name, 0)
        return value if isinstance(value, int) else 0


@final
class ClosesError(ResponseError):
    """The server, or a proxy before it, closes the connection on a command, and serves otherwise."""


async def ask(client: Redis | RedisCluster, *words: str | bytes | int) -> Any:
    """The reply to one command.

    Raises:
        ClosesError: The connection was closed twice behind it.
        ResponseError: The server refuses it.
        CommandError: The server has gone away, or does not answer.
    """
    try:
        return await _ask(client, *words)
    except _ClosedError as error:
        gone = error
    try:
        await _ask(client, "PING")
        return await _ask(client, *words)
    except _ClosedError as error:
        if "PING" in (words[0], error.word):
            raise gone from None
    raise ClosesError(f"the connection is closed on {words[0]!s}")


@final
class _ClosedError(CommandError):
    def __init__(self, error: Exception, word: str) -> None:
        super().__init__(f"the server has gone away: {error}", NO_SERVER)
        self.word = word


async def _ask(client: Redis | RedisCluster, *words: str | bytes | int) -> Any:
    driver: Any = client  # its `execute_command` is hardly typed
    try:
        async with asyncio.timeout(PATIENCE):
            return await driver.execute_command(*words)
    except TimeoutError:
        raise CommandError(
            f"the server did not answer {words[0]!s} within {PATIENCE:g} s", NO_SERVER
        ) from None
    except BusyLoadingError as error:  # which is a connection error there
        raise ResponseError(str(error)) from None
    except (NoConnectionError, OSError) as error:
        raise _ClosedError(error, str(words[0])) from None


async def learn(client: Redis) -> Facts:
    """Asks the server; a refusal leaves the answer out."""
    refused: dict[str, ResponseError] = {}
    info: dict[str, Any] = {}
    try:
        info = await ask(client, "INFO")
    except ResponseError as error:
        refused["info"] = error
    settings: dict[str, str] = {}
    try:
        for name in _SETTINGS:
            reply: Mapping[Any, Any] = await ask(client, "CONFIG GET", name)
            settings |= {text(field): text(value) for field, value in reply.items()}
    except ResponseError as error:
        settings, refused["config|get"] = {}, error
    try:
        before = time.time()
        seconds, microseconds = await ask(client, "TIME")
        after = time.time()
    except ResponseError as error:
        refused["time"] = error
        return Facts(info=info, settings=settings, refused=refused)
    # Envoy answers for itself, with all microseconds since 1970: that is no clock of the server.
    own = microseconds < _MICROSECONDS
    ahead = seconds + microseconds / _MICROSECONDS - (before + after) / 2 if own else None
    return Facts(info=info, settings=settings, ahead=ahead, uncertain=(after - before) / 2, refused=refused)


def text(value: Any) -> str:
    """A part of a reply, whether or not the driver has decoded it."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
