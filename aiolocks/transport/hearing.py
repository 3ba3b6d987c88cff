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

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, TypeAlias, final

from .._visible import in_line
from ..errors import ConfigurationError
from . import faults
from .driver import AnsweredError, BrokenError, RawConnection, UnreadableReplyError, closed, pack
from .request import Command, Words

# -- The ways in which one connection hears bells: what it sends beforehand, and how it reads a push.

ASKING: Final = ("ASKING",)
"""The next command is for a slot that is being moved to the node."""
CACHING: Final = ("CLIENT", "CACHING", "YES")
"""The keys that the next command reads are tracked."""

_UNHEEDED: Final = frozenset({b"set", b"expire", b"zadd", b"hset", b"hincrby"})
"""Events that tell of no end: what was hung up or renewed, by this session or another one."""
_SETTING: Final = "notify-keyspace-events"
_PATIENCE: Final = 1.0
"""Seconds for the answer to the first SUBSCRIBE on a second connection: some proxies never give it."""
_TRIALS: Final = 8
"""How many slots of a node of a cluster are tried before the connection is given up."""

Trial: TypeAlias = Callable[[Collection[bytes]], Command[int] | None]
"""Gives a command that rings a bell of nobody, beside those that were turned away; None: there is none."""
TurnedAway: TypeAlias = Callable[[bytes, faults.Redirect], None]
"""Told of a bell that another node of the cluster has, or is being given."""


class Notifier:
    """One way of hearing bells, on one connection. This one hears none."""

    name: ClassVar[str] = "poll"

    def before_arming(self, bells: Sequence[bytes]) -> Iterable[Words]:
        """The commands that must come right before one that hangs up these bells."""
        return ()

    def arm(self, bell: bytes) -> asyncio.Future[Any] | None:
        """Listens to this bell on the second connection, as `Transport.arm`."""
        return None

    def after(self, bell: bytes) -> Iterable[Words]:
        """The commands to send once nobody wants to hear this bell any more."""
        return ()

    def rung(self, push: list[Any]) -> Iterable[bytes] | None:
        """The bells that a push tells of; None: possibly any."""
        return ()


NO_NOTIFIER: Final = Notifier()


class Ask(Protocol):
    """Sends one command on the connection that is being set up."""

    def __call__(self, *words: bytes | str | int) -> asyncio.Future[Any]: ...


class UnavailableError(Exception):
    """Why there is no hearing in this way."""


class DeafError(BrokenError):
    """The second connection, on which notifications come, has ended, or is silent."""


def _refused(error: AnsweredError, why: str) -> UnavailableError:
    if faults.refused(error).transient:
        raise error  # says nothing about tomorrow
    return UnavailableError(f"{why} ({in_line(error)})")


@final
class Tracking(Notifier):
    """`OPTIN`: only what is read right behind CACHING YES; `NOLOOP`: not what we change ourselves."""

    name: ClassVar[str] = "tracking"

    async def open(self, ask: Ask) -> None:
        replies = [
            ask("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP"),
            ask("CLIENT", "CACHING", "YES"),  # it can be refused by itself
        ]
        try:
            for reply in replies:
                await reply
        except AnsweredError as error:
            raise _refused(error, "the server refuses CLIENT TRACKING or CLIENT CACHING") from error

    def before_arming(self, bells: Sequence[bytes]) -> Iterable[Words]:
        return (CACHING,)

    def rung(self, push: list[Any]) -> Iterable[bytes] | None:
        if push[:1] != [b"invalidate"]:
            return ()
        keys: Any = push[1] if len(push) > 1 else None
        if not isinstance(keys, list):  # null: the server has forgotten everything
            return None
        return [key for key in keys if isinstance(key, bytes)]


@final
class Keyspace(Notifier):
    """Subscribes to the exact channel of each bell; never to a pattern, which names could be taken for."""

    name: ClassVar[str] = "keyspace"

    def __init__(self, trial: Trial, *, configure: bool, turned_away: TurnedAway | None) -> None:
        self._next_trial = trial
        self._probe = b""
        self._configure = configure
        self._turned_away = turned_away
        self._hear: Ask | None = None  # where the messages come on another connection
        self._channel = b""  # the prefix of the channels
        self._bells: dict[bytes, asyncio.Future[Any] | None] = {}  # with SUBSCRIBE on that other one
        self._heard_probe = False

    async def open(self, ask: Ask, database: int, hear: Ask | None = None) -> None:
        """Tries it out: whether an event arrives says more than the setting, which may be hidden.

        Where `hear` is given, it subscribes on that connection instead of the one of the requests.

        A node of a cluster is not tried out while all its slots that could be are being moved away: leases in
        them are to live. Until they have moved, the heartbeat of its bells finds what the node does not tell.
        """
        self._hear = hear
        self._channel = f"__keyspace@{database}__:".encode()
        self._bells.clear()
        turned_away: list[bytes] = []
        redirects: list[faults.Redirect] = []
        why = "by the table, it has none"
        while len(turned_away) < _TRIALS and (trial := self._next_trial(turned_away)) is not None:
            try:
                await self._open_with(ask, trial)
            except AnsweredError as error:
                redirect = faults.redirect(error)
                if redirect is None or self._turned_away is None:
                    raise _refused(error, "the server refuses SUBSCRIBE, SET or DEL") from error
                redirects.append(redirect)
                if redirect.to is None:
                    why = str(faults.refused(error).error)
                    break
                turned_away.append(self._probe)
                why = f"other nodes have the {len(turned_away)} slots that were tried"
                self._turned_away(self._probe, redirect)
            else:
                return
        moving = bool(redirects) and all(redirect.once for redirect in redirects)
        if not moving:
            # Without the redirect as its cause: that would count as the server's last word.
            raise closed(f"the node has no slot with which its notifications can be tried out: {why}")

    async def _open_with(self, ask: Ask, trial: Command[int]) -> None:
        if await self._try_out(ask, trial):
            return
        why = await self._silence(ask)
        if not (self._configure and await self._try_out(ask, trial)):
            raise UnavailableError(why)

    async def _try_out(self, ask: Ask, trial: Command[int]) -> bool:
        self._probe = trial.keys[0]
        self._heard_probe = False
        hear = self._hear or ask
        replies = [hear("SUBSCRIBE", self._channel + self._probe)]
        if self._hear is not None:
            try:
                async with asyncio.timeout(_PATIENCE):
                    await replies[0]
            except TimeoutError:
                raise DeafError("the server does not answer SUBSCRIBE") from None
        # An event comes before the reply to the next command: there is nothing to wait for.
        for words in (trial.words(as_eval=True), ("DEL", self._probe)):
            if self._turned_away is not None:
                ask(*ASKING)  # needed by few, and may be denied
            replies.append(ask(*words))
        for reply in replies:
            await reply
        if self._hear is not None:
            await self._hear("PING")  # its reply comes behind the event
        return self._heard_probe

    async def _silence(self, ask: Ask) -> str:
        """Why nothing was heard; fixed, where that is allowed."""
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
        except (AnsweredError, ValueError) as error:
            return f"keyspace notifications are off: {wanted}, and CONFIG is refused here ({in_line(error)})"
        return f"keyspace notifications stay silent, although {_SETTING} was set"

    def before_arming(self, bells: Sequence[bytes]) -> Iterable[Words]:
        if self._hear is not None:
            for bell in bells:
                self.arm(bell)
            return ()
        new = [bell for bell in bells if bell not in self._bells]
        self._bells.update(dict.fromkeys(new))
        return [("SUBSCRIBE", self._channel + bell) for bell in new]

    def arm(self, bell: bytes) -> asyncio.Future[Any] | None:
        if self._hear is None:
            return None
        armed = self._bells.get(bell)
        if armed is None:
            self._bells[bell] = armed = self._hear("SUBSCRIBE", self._channel + bell)
        return None if armed.done() else armed

    def after(self, bell: bytes) -> Iterable[Words]:
        if bell not in self._bells:
            return ()
        del self._bells[bell]
        words = ("UNSUBSCRIBE", self._channel + bell)
        if self._hear is None:
            return [words]
        self._hear(*words)
        return ()

    def rung(self, push: list[Any]) -> Iterable[bytes] | None:
        if push[:1] != [b"message"] or not all(isinstance(part, bytes) for part in push) or len(push) != 3:
            return ()
        _, channel, event = push
        if event in _UNHEEDED or not channel.startswith(self._channel):
            return ()
        bell = channel[len(self._channel) :]
        if bell == self._probe:
            self._heard_probe = True
            return ()
        return (bell,)


def _pair(reply: Any) -> tuple[str, str]:
    """The setting and its value.

    Raises:
        ValueError: The reply is another one.
    """
    match [*reply.items()] if isinstance(reply, dict) else reply:
        case [(bytes() as name, bytes() as value)] | [bytes() as name, bytes() as value]:
            return name.decode(), value.decode()
        case _:
            raise ValueError(f"{reply!r} is no setting")


# -- A second connection, for what cannot be heard on the first: with RESP2, keyspace notifications.


@final
class Ear(asyncio.Protocol):
    """Hears channels. With RESP2 a connection that has subscribed takes no other requests.

    What is asked here and what is asked on the first connection has no order. So a waiter listens for its
    bell on the first one when the channel of the bell is heard here (`Transport.arm`); else it would not be
    told of a bell that is rung in between.

    Args:
        raw: Taken over, and closed with this.
        silence: Seconds without a reply after which the connection counts as dead.
        pushed: Told of each message.
        ended: Told of the end, unless `close` is why.
    """

    def __init__(
        self,
        raw: RawConnection,
        loop: asyncio.AbstractEventLoop,
        *,
        silence: float,
        pushed: Callable[[list[Any]], None],
        ended: Callable[[], None],
    ) -> None:
        self._raw = raw
        self._loop = loop
        self._silence = silence
        self._pushed = pushed
        self._ended = ended
        self._closed = False
        self._awaited: deque[tuple[float, asyncio.Future[Any]]] = deque()  # with the times of asking
        self._timer: asyncio.TimerHandle | None = None
        raw.transport.set_protocol(self)
        if raw.leftover:
            self.data_received(raw.leftover)

    def ask(self, *words: bytes | str | int) -> asyncio.Future[Any]:
        """The reply to a request; `DeafError` if there will be none."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self._raw.transport.is_closing():
            _fail(answer, DeafError("the connection of the notifications was closed"))
            return answer
        self._awaited.append((self._loop.time(), answer))
        self._raw.transport.write(pack(words))
        if self._timer is None:
            self._timer = self._loop.call_later(self._silence, self._check)
        return answer

    def _check(self) -> None:
        self._timer = None
        if not self._awaited:
            return
        due = self._awaited[0][0] + self._silence
        if due > self._loop.time():
            self._timer = self._loop.call_at(due, self._check)
        else:
            self._raw.abort()

    def data_received(self, data: bytes) -> None:
        try:
            for reply in self._raw.replies.read(data):
                if isinstance(reply, list) and reply[:1] == [b"message"]:
                    self._pushed(reply)
                elif self._awaited:
                    _, answer = self._awaited.popleft()
                    if isinstance(reply, Exception):
                        _fail(answer, reply)
                    elif not answer.done():
                        answer.set_result(reply)
        except UnreadableReplyError:
            self._raw.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._raw.lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        while self._awaited:
            _fail(self._awaited.popleft()[1], DeafError("the connection of the notifications was closed"))
        if not self._closed:
            self._ended()

    def close(self) -> None:
        """Idempotent, and does not wait."""
        self._closed = True
        self._raw.transport.close()

    def abort(self) -> None:
        self._raw.abort()

    async def wait_closed(self) -> None:
        await self._raw.wait_closed()


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # nobody may wait for it


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
        configure: Whether the session may turn notifications on, with `CONFIG SET notify-keyspace-events`.
            Events that are already on stay on. Default False, because the setting is that of the whole
            server.

    Raises:
        TypeError: `configure` is not a bool.
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
        if not first or (protocol < 3 and chosen != NO_NOTIFIER.name):
            # Requests may wait for the first connection: they go before the second one hears their keys.
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

    def arm(self, bell: bytes) -> asyncio.Future[Any] | None:
        return self._notifier.arm(bell)

    def after(self, bell: bytes) -> Iterable[Words]:
        return self._notifier.after(bell)

    def pushed(self, push: list[Any]) -> None:
        """The server has sent something by itself."""
        rung = self._notifier.rung(push)
        if rung is None or rung:
            self._on_rung(self._notifier.name, rung)  # which may not be chosen yet, on the first connection
