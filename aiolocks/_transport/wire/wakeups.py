"""How a session hears its bells, so that those who wait need not ask again and again.

A bell is a key. The script that makes room for a waiter deletes it, and then the server tells:

- `tracking`: that what this connection has read has changed (server-assisted client-side caching, RESP3);
- `keyspace`: what happens to the key, on a channel of its own (keyspace notifications);
- `poll`: nobody tells.

With RESP3 all of it comes on the session's one connection, in order with its commands: what arms the bell is
heard from then on, with nothing to wait for and no second connection that could fall silent unnoticed. With
RESP2 there is only `keyspace`, on a second connection. A push only ever shortens a sleep; when it stays away,
the poll finds the same a little later.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from ...errors import ConfigurationError
from ..client.errors import AnsweredError
from ..requests.calls import Words
from .notifiers import (
    NO_NOTIFIER,
    Ask,
    DeafError,
    Keyspace,
    Notifier,
    Tracking,
    Trial,
    TurnedAway,
    UnavailableError,
)

log = logging.getLogger("aiolocks.transport")

OpenEar = Callable[[], Awaitable[Ask]]
"""Makes a second connection; gives what asks on it. What asks raises `DeafError` once that has ended."""
OnRung = Callable[[str, Iterable[bytes] | None], None]
"""Told by which way, and which bells were rung; None: possibly any."""

GONE_SILENT: Final = "silence"
"""Instead of a way: the connection has ended on which bells were heard. Nothing is, until the next one."""


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


@final
class Wakeups:
    """Which way of hearing serves a session: chosen on its first connection, and opened again on each.

    Args:
        wanted: `"auto"` takes the first of tracking, keyspace and poll that there is. Asked for by name, it
            must be there on the first connection; if a later one does not offer it, the poll serves.
        trial: Gives a command that rings a bell which nobody else has.
        turned_away: Told where this is a node of a cluster, and another one serves the slot of that bell.
        on_rung: Told of bells that were rung, and of every new connection, on which any may have been.

    Attributes:
        name: The way that was chosen; empty before the first connection.
    """

    def __init__(
        self, wanted: Wakeup, *, trial: Trial, on_rung: OnRung, turned_away: TurnedAway | None = None
    ) -> None:
        self._wanted = wanted if isinstance(wanted, str) else "keyspace"
        configure = isinstance(wanted, KeyspaceWakeup) and wanted.configure
        ways = (Tracking(), Keyspace(trial, configure=configure, turned_away=turned_away))
        self._ways: list[Tracking | Keyspace] = [way for way in ways if self._wanted in ("auto", way.name)]
        self._on_rung = on_rung
        self._notifier: Notifier = NO_NOTIFIER
        self.name = ""

    async def begin(
        self, ask: Ask, *, protocol: int, database: int, why: str = "", ear: OpenEar | None = None
    ) -> None:
        """Opens the hearing on a new connection.

        Args:
            ask: Sends a command on it.
            protocol: The version of RESP that the connection speaks: with 2, nothing can be told between
                replies.
            database: Its number.
            why: Why it speaks RESP2.
            ear: With RESP2, makes the second connection.

        Raises:
            ConfigurationError: The way that was asked for by name is not there.
        """
        troubles: list[str] = []
        self._notifier = NO_NOTIFIER
        chosen = NO_NOTIFIER.name
        for way in self._ways:
            try:
                if protocol < 3 and (isinstance(way, Tracking) or ear is None):
                    raise UnavailableError(f"RESP2 is spoken, {why}")
                self._notifier = way  # hears its own trial
                if isinstance(way, Tracking):
                    await way.open(ask)
                elif protocol < 3 and ear is not None:
                    await self._open_beside(way, ask, database, ear)
                else:
                    await way.open(ask, database)
            except UnavailableError as error:
                self._notifier = NO_NOTIFIER
                troubles.append(f"{way.name}: {error}" if self._wanted == "auto" else str(error))
            else:
                chosen = way.name
                break
        first, self.name = not self.name, self.name or chosen
        because = "; ".join(troubles)
        if first and self._wanted not in (chosen, "auto"):
            self.name = ""
            raise ConfigurationError(f"wakeup={self._wanted!r} is not available: {because}")
        if chosen != self.name or (first and troubles):
            log.warning("wakeup: %s serves this session (%s)", chosen, because)
        if not first:
            self._on_rung(chosen, None)
        self._ways = [way for way in self._ways if way.name == self.name]

    async def _open_beside(self, way: Keyspace, ask: Ask, database: int, ear: OpenEar) -> None:
        """Opens the hearing on a second connection.

        There are proxies that close each connection that subscribes. But the end of one may be an outage as
        well: then it is tried once more. What was asked for by name is not given up even then.
        """
        try:
            await way.open(ask, database, await ear())
        except DeafError:
            try:
                await way.open(ask, database, await ear())
            except DeafError as error:
                if self._wanted != "auto":
                    raise
                with contextlib.suppress(AnsweredError):
                    await ask("PING")  # raises if the first connection has ended as well
                raise UnavailableError(str(error)) from error

    def require_none(self, why: str) -> None:
        """There can be no hearing here, now or later.

        Raises:
            ConfigurationError: A way was asked for by name.
        """
        if self._wanted not in ("auto", "poll"):
            raise ConfigurationError(f"wakeup={self._wanted!r} is not available: {why}; use 'auto' or 'poll'")

    def end(self) -> None:
        """There is no connection: nothing more is heard."""
        heard, self._notifier = self._notifier, NO_NOTIFIER
        if heard is not NO_NOTIFIER:
            self._on_rung(GONE_SILENT, None)

    @property
    def hears(self) -> bool:
        return self._notifier is not NO_NOTIFIER

    def before_arming(self, bells: Sequence[bytes]) -> Iterable[Words]:
        return self._notifier.before_arming(bells)

    def after(self, bell: bytes) -> Iterable[Words]:
        return self._notifier.after(bell)

    def pushed(self, push: list[Any]) -> None:
        """The server has sent something by itself."""
        rung = self._notifier.rung(push)
        if rung is None or rung:
            self._on_rung(self._notifier.name, rung)  # which may not be chosen yet, on the first connection
