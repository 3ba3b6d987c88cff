"""The ways in which one connection hears bells: what it sends beforehand, and how it reads a push."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ClassVar, Final, Protocol, TypeAlias, final

from ..._visible import in_line
from .. import faults
from ..client.errors import AnsweredError, BrokenError, closed
from ..requests.calls import Command, Words

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
        self._bells: set[bytes] = set()
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
        except (AnsweredError, ValueError) as error:
            return f"keyspace notifications are off: {wanted}, and CONFIG is refused here ({in_line(error)})"
        return f"keyspace notifications stay silent, although {_SETTING} was set"

    def before_arming(self, bells: Sequence[bytes]) -> Iterable[Words]:
        new = [bell for bell in bells if bell not in self._bells]
        self._bells.update(new)
        return self._of_connection([("SUBSCRIBE", self._channel + bell) for bell in new])

    def after(self, bell: bytes) -> Iterable[Words]:
        if bell not in self._bells:
            return ()
        self._bells.remove(bell)
        return self._of_connection([("UNSUBSCRIBE", self._channel + bell)])

    def _of_connection(self, subscriptions: list[Words]) -> Iterable[Words]:
        """Those that go over the connection of the requests; the others are sent here."""
        if self._hear is None:
            return subscriptions
        for words in subscriptions:
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
