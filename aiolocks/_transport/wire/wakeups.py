"""How a session hears its bells, so that those who wait need not ask again and again.

A bell is a key. The script that makes room for a waiter deletes it, and then the server tells:

- `tracking`: that what this connection has read has changed (server-assisted client-side caching, RESP3);
- `keyspace`: what happens to the key, on a channel of its own (keyspace notifications);
- `poll`: nobody tells.

All of it on the session's one connection, in order with its commands: what arms the bell is heard from then
on, with nothing to wait for and no second connection that could fall silent unnoticed. A push only ever
shortens a sleep; when it stays away, the poll finds the same a little later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, final

import redis.exceptions as driver

from ...errors import ConfigurationError
from .. import faults
from ..requests.calls import Command

log = logging.getLogger("aiolocks.transport")

Words = tuple[bytes | str | int, ...]
OnRung = Callable[[str, Iterable[bytes] | None], None]
"""Told by which way, and which bells were rung; None: possibly any."""

GONE_SILENT: Final = "silence"
"""Instead of a way: the connection has ended on which bells were heard. Nothing is, until the next one."""
CACHING: Final = ("CLIENT", "CACHING", "YES")
"""The keys that the next command reads are tracked."""

_UNHEEDED: Final = frozenset({b"set", b"expire", b"zadd", b"hset", b"hincrby"})
"""Events that tell of no end: what was hung up or renewed, by this session or another one."""
_SETTING: Final = "notify-keyspace-events"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KeyspaceWakeup:
    """Wakes waiters by keyspace notifications: `Session(client, wakeup=KeyspaceWakeup(configure=True))`.

    Args:
        configure: Whether the session may switch them on itself, with `CONFIG SET notify-keyspace-events`.
            Events that are set there already stay. Default: no, for it is the whole server's setting.
    """

    configure: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.configure, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"KeyspaceWakeup configure must be True or False, not {self.configure!r}")


Wakeup = str | KeyspaceWakeup
NAMES: Final = ("auto", "tracking", "keyspace", "poll")


class Ear(Protocol):
    """One way of hearing bells, on one connection."""

    name: ClassVar[str]

    def before_arming(self, bells: Sequence[bytes]) -> Iterable[Words]:
        """The commands that must come right before one that hangs up these bells."""
        ...

    def after(self, bell: bytes) -> Iterable[Words]:
        """The commands to send once nobody wants to hear this bell any more."""
        ...

    def rung(self, push: list[Any]) -> Iterable[bytes] | None:
        """The bells that a push tells of; None: possibly any."""
        ...


class Ask(Protocol):
    """Sends one command on the connection that is being set up."""

    def __call__(self, *words: bytes | str | int) -> asyncio.Future[Any]: ...


class _UnavailableError(Exception):
    """Why there is no hearing in this way."""


def _refused(error: driver.ResponseError, why: str) -> _UnavailableError:
    if faults.refused(error).transient:
        raise error  # says nothing about tomorrow
    return _UnavailableError(f"{why} ({error})")


@final
class _Tracking:
    """`OPTIN`: only what is read right behind CACHING YES; `NOLOOP`: not what we change ourselves."""

    name: ClassVar[str] = "tracking"

    async def open(self, ask: Ask, database: int) -> None:
        replies = [
            ask("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP"),
            ask("CLIENT", "CACHING", "YES"),  # it can be refused by itself
        ]
        try:
            for reply in replies:
                await reply
        except driver.ResponseError as error:
            raise _refused(error, "the server refuses CLIENT TRACKING or CLIENT CACHING") from error

    def before_arming(self, bells: Sequence[bytes]) -> Iterable[Words]:
        return (CACHING,)

    def after(self, bell: bytes) -> Iterable[Words]:
        return ()

    def rung(self, push: list[Any]) -> Iterable[bytes] | None:
        if push[0] != b"invalidate":
            return ()
        keys: list[bytes] | None = push[1]  # None: the server has forgotten everything
        return keys


@final
class _Keyspace:
    """Subscribes to the exact channel of each bell; never to a pattern, which names could be taken for."""

    name: ClassVar[str] = "keyspace"

    def __init__(self, trial: Callable[[], Command[int]], *, configure: bool, asking: bool) -> None:
        self._next_trial = trial
        self._probe = b""
        self._configure = configure
        self._asking = asking
        self._channel = b""  # the prefix of the channels
        self._bells: set[bytes] = set()
        self._heard_probe = False

    async def open(self, ask: Ask, database: int) -> None:
        """Tries it out: whether an event arrives says more than the setting, which may be hidden."""
        self._channel = f"__keyspace@{database}__:".encode()
        trial = self._next_trial()
        self._probe = trial.keys[0]
        self._bells.clear()
        try:
            if await self._try_out(ask, trial):
                return
            why = await self._silence(ask)
        except driver.ResponseError as error:
            if self._asking and faults.detour(error) is not None:
                # Not `from error`: a redirect that is the cause would count as the server's last word.
                raise driver.ConnectionError("the node has just lost the slot of the trial") from None
            raise _refused(error, "the server refuses SUBSCRIBE, SET or DEL") from error
        if self._configure and await self._try_out(ask, trial):
            return
        raise _UnavailableError(why)

    async def _try_out(self, ask: Ask, trial: Command[int]) -> bool:
        self._heard_probe = False
        replies = [ask("SUBSCRIBE", self._channel + self._probe)]
        # An event comes before the reply to the next command: there is nothing to wait for.
        for words in (trial.words(in_full=True), ("DEL", self._probe)):
            if self._asking:
                ask("ASKING")  # needed by few, and may be denied
            replies.append(ask(*words))
        for reply in replies:
            await reply
        return self._heard_probe

    async def _silence(self, ask: Ask) -> str:
        """Why nothing was heard; mended, where that is allowed."""
        wanted = f"{_SETTING} must have at least 'Kg'"
        try:
            _, value = _pair(await ask("CONFIG", "GET", _SETTING))
            if not self._configure:
                return (
                    f"keyspace notifications are off: {wanted} and is {value!r}; CONFIG SET it, or use "
                    "KeyspaceWakeup(configure=True)"
                )
            missing = [flag for flag in "Kgx" if flag not in value and not (flag in "gx" and "A" in value)]
            await ask("CONFIG", "SET", _SETTING, value + "".join(missing))
        except (driver.ResponseError, ValueError) as error:
            return f"keyspace notifications are off: {wanted}, and CONFIG is refused here ({error})"
        return f"keyspace notifications stay silent, although {_SETTING} was set"

    def before_arming(self, bells: Sequence[bytes]) -> Iterable[Words]:
        new = [bell for bell in bells if bell not in self._bells]
        self._bells.update(new)
        return [("SUBSCRIBE", self._channel + bell) for bell in new]

    def after(self, bell: bytes) -> Iterable[Words]:
        if bell not in self._bells:
            return ()
        self._bells.remove(bell)
        return (("UNSUBSCRIBE", self._channel + bell),)

    def rung(self, push: list[Any]) -> Iterable[bytes] | None:
        if push[0] != b"message":
            return ()
        _, channel, event = push
        if event in _UNHEEDED:
            return ()
        bell = channel[len(self._channel) :]
        if bell == self._probe:
            self._heard_probe = True
            return ()
        return (bell,)


def _pair(reply: Any) -> tuple[str, str]:
    name, value = next(iter(reply.items())) if isinstance(reply, dict) else reply
    return name.decode(), value.decode()


@final
class _Deaf:
    name: ClassVar[str] = "poll"

    def before_arming(self, bells: Sequence[bytes]) -> Iterable[Words]:
        return ()

    def after(self, bell: bytes) -> Iterable[Words]:
        return ()

    def rung(self, push: list[Any]) -> Iterable[bytes] | None:
        return ()


_DEAF: Final = _Deaf()


@final
class Wakeups:
    """Which way of hearing serves a session: chosen on its first connection, and opened again on each.

    Args:
        wanted: `"auto"` takes the first of tracking, keyspace and poll that there is. Asked for by name, it
            must be there on the first connection; if a later one does not offer it, the poll serves.
        trial: Gives a command that rings a bell which nobody else has.
        asking: Whether this is a node of a cluster, to which the slot of that bell may only be about to come.
        on_rung: Told of bells that were rung, and of every new connection, on which any may have been.
    """

    def __init__(
        self, wanted: Wakeup, *, trial: Callable[[], Command[int]], on_rung: OnRung, asking: bool = False
    ) -> None:
        self._wanted = wanted if isinstance(wanted, str) else "keyspace"
        configure = isinstance(wanted, KeyspaceWakeup) and wanted.configure
        ways = (_Tracking(), _Keyspace(trial, configure=configure, asking=asking))
        self._ways: list[_Tracking | _Keyspace] = [way for way in ways if self._wanted in ("auto", way.name)]
        self._on_rung = on_rung
        self._ear: Ear = _DEAF
        self._name = ""  # of the way that was chosen

    @property
    def name(self) -> str:
        """The way that was chosen; empty before the first connection."""
        return self._name

    async def begin(self, ask: Ask, *, protocol: int, database: int) -> None:
        """Opens the hearing on a new connection.

        Raises:
            ConfigurationError: The way that was asked for by name is not there.
        """
        troubles: list[str] = []
        self._ear = _DEAF
        chosen = _DEAF.name
        for way in self._ways:
            try:
                if protocol < 3:
                    raise _UnavailableError("the connection speaks RESP2, and this needs RESP3")
                self._ear = way  # hears its own trial
                await way.open(ask, database)
            except _UnavailableError as why:
                self._ear = _DEAF
                troubles.append(f"{way.name}: {why}" if self._wanted == "auto" else str(why))
            else:
                chosen = way.name
                break
        first, self._name = not self._name, self._name or chosen
        because = "; ".join(troubles)
        if first and self._wanted not in (chosen, "auto"):
            self._name = ""
            raise ConfigurationError(f"wakeup={self._wanted!r} is not available: {because}")
        if chosen != self._name or (first and troubles):
            log.warning("wakeup: %s serves this session (%s)", chosen, because)
        if not first:
            self._on_rung(chosen, None)
        self._ways = [way for way in self._ways if way.name == self._name]

    def require_none(self, why: str) -> None:
        """There can be no hearing here, now or later.

        Raises:
            ConfigurationError: A way was asked for by name.
        """
        if self._wanted not in ("auto", "poll"):
            raise ConfigurationError(f"wakeup={self._wanted!r} is not available: {why}; use 'auto' or 'poll'")

    def end(self) -> None:
        """There is no connection: nothing more is heard."""
        heard, self._ear = self._ear, _DEAF
        if heard is not _DEAF:
            self._on_rung(GONE_SILENT, None)

    @property
    def hears(self) -> bool:
        return self._ear is not _DEAF

    def before_arming(self, bells: Sequence[bytes]) -> Iterable[Words]:
        return self._ear.before_arming(bells)

    def after(self, bell: bytes) -> Iterable[Words]:
        return self._ear.after(bell)

    def pushed(self, push: list[Any]) -> None:
        """The server has sent something by itself."""
        rung = self._ear.rung(push)
        if rung is None or rung:
            self._on_rung(self._ear.name, rung)  # which may not be chosen yet, on the first connection
