"""How a session hears its bells, so that its waiters need not ask again and again.

A bell is a key. The script that makes room for a waiter deletes it, and then the server tells:

- `tracking`: that what this connection has read has changed (server-assisted client-side caching, RESP3);
- `keyspace`: what happens to the key, on a channel of its own (keyspace notifications);
- `poll`: the server tells nothing.

With RESP3 all of it comes on the session's one connection, in order with its commands. A bell is heard from
the command on that arms it: there is nothing to wait for, and no second connection that could fall silent
unnoticed. With RESP2 there is only `keyspace`, on a second connection. A push only ever shortens a sleep;
when it stays away, the poll finds the same a little later.

In a cluster the keys of a slot may go to another node, and no event tells of that: of what happens to them
there, this connection hears nothing. So with `keyspace` it subscribes to one channel of the slot, too
(SSUBSCRIBE): the server ends that subscription, and says so, when the slot leaves the node, in whatever way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, TypeAlias, final

from .._logs import get_logger
from .._tasks import empty_context
from .._visible import in_line
from ..errors import ConfigurationError
from . import faults
from .driver import AnsweredError, BrokenError, RawConnection, UnreadableReplyError, closed, pack
from .keys import slot_of, tag_of
from .request import Request, Words

# -- The ways in which one connection hears bells: what it sends beforehand, and how it reads a push.

ASKING: Final = ("ASKING",)
"""The next command is for a slot that is being moved to the node."""
CACHING: Final = ("CLIENT", "CACHING", "YES")
"""The keys that the next command reads are tracked."""

_UNHEEDED: Final = frozenset({b"set", b"expire", b"zadd", b"hset", b"hincrby"})
"""Events that tell of no end: what was hung up or renewed, by this session or another one."""
_SETTING: Final = "notify-keyspace-events"
_HIDDEN: Final = {b"new": "n", b"overwritten": "o", b"type_changed": "c"}
"""Flags that `CONFIG GET` does not show beside `A`, by the event of each."""
_PATIENCE: Final = 1.0
"""Seconds for the answer to the first SUBSCRIBE on a second connection: some proxies never give it."""
_TRIALS: Final = 8
"""How many slots of a node of a cluster are tried before the connection is given up."""

Trial: TypeAlias = Callable[[Collection[bytes]], Request[int] | None]
"""Gives a command that rings a bell without a waiter, none of the bells that were turned away; None: there is
no such bell."""
TurnedAway: TypeAlias = Callable[[bytes, faults.Redirect], None]
"""Told of a bell that another node of the cluster has, or is being given."""


def confirms(push: list[Any], words: Words) -> bool:
    """Whether a push is the reply to this command: with RESP3, subscriptions have no other one.

    By its last channel: of a slot that leaves, the server tells with a push of the same form, which nothing
    has asked for.
    """
    return (
        len(push) > 1
        and isinstance(push[0], bytes)
        and push[0] in _CONFIRMATIONS
        and words[:1] == (_CONFIRMATIONS[push[0]],)
        and words[-1] == push[1]
    )


_CONFIRMATIONS: Final = {
    word.lower().encode(): word for word in ("SUBSCRIBE", "UNSUBSCRIBE", "SSUBSCRIBE", "SUNSUBSCRIBE")
}


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
        """The commands to send once no waiter wants to hear this bell any more."""
        return ()

    def refused(self, words: Words, error: Exception) -> Iterable[bytes]:
        """The server has refused one of the commands that come before arming: the bells to look at again."""
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


class PostponedError(UnavailableError):
    """It is refused while the server is out of memory, as Redis from 8.10 on refuses to subscribe then.

    Attributes:
        words: The command that is refused.
    """

    def __init__(self, why: str, words: Words) -> None:
        super().__init__(why)
        self.words = words


class SpoiledError(BrokenError):
    """The connection has carried a trial that was refused, and is not to carry requests."""


class DeafError(BrokenError):
    """The second connection, on which notifications come, has ended, or is silent."""


def _refused(error: AnsweredError, why: str, words: Words) -> UnavailableError:
    fault = faults.refused(error)
    if fault.passing:
        raise error  # says nothing about tomorrow
    why = f"{why} ({in_line(error)})"
    return PostponedError(why, words) if fault.lasting else UnavailableError(why)


@final
class Tracking(Notifier):
    """`OPTIN`: only what is read right behind CACHING YES; `NOLOOP`: not what we change ourselves."""

    name: ClassVar[str] = "tracking"

    async def open(self, ask: Ask) -> None:
        words = ("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP")
        replies = [ask(*words), ask(*CACHING)]  # which can be refused by itself
        try:
            for reply in replies:
                await reply
        except AnsweredError as error:
            raise _refused(error, "the server refuses CLIENT TRACKING or CLIENT CACHING", words) from error

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
    """Subscribes to the exact channel of each bell, never to a pattern: a name may look like one.

    On a node of a cluster it also watches the slot of each bell, by one channel of this session in that slot,
    where the server has SSUBSCRIBE and allows it. When the slot leaves, or has left, its bells count as rung:
    a waiter that asks again finds the new node, and has its bell hung up there.

    Invariant: while slots are watched, a command that hangs up a bell goes behind one that watches its slot,
    unless the slot is watched. Once the server says that the slot is not, its bells are reported.
    """

    name: ClassVar[str] = "keyspace"

    def __init__(self, trial: Trial, *, configure: bool, turned_away: TurnedAway | None) -> None:
        self._next_trial = trial
        self._probe = b""
        self._configure = configure
        self._turned_away = turned_away
        self._hear: Ask | None = None  # where the messages come on another connection
        self._channel = b""  # the prefix of the channels
        self._events = b""  # that of the channels of events, to which it listens only for hidden flags
        self._seen: set[str] = set()  # the hidden flags that are set
        self._bells: dict[bytes, asyncio.Future[Any] | None] = {}  # with SUBSCRIBE on that other one
        self._unheard: set[bytes] = set()  # bells among these whose SUBSCRIBE was refused
        self._watches = False  # whether the server tells of slots that leave
        self._closed_behind = False  # the other connection has ended when it asked for that
        self._watched: dict[int, bytes] = {}  # by slot, its channel
        self._in_slots: dict[int, set[bytes]] = {}  # of a node of a cluster: the bells in each slot
        self._heard_probe = False

    async def open(self, ask: Ask, database: int, hear: Ask | None = None) -> None:
        """Tries it out: whether an event arrives says more than the setting, which may be hidden.

        Where `hear` is given, it subscribes on that connection instead of the one of the requests.

        A node of a cluster is not tried out while all slots that it could be tried with are being moved away:
        leases in them are to live. Until they have moved, the heartbeat of its bells finds what the node does
        not tell.
        """
        self._hear = hear
        self._channel = f"__keyspace@{database}__:".encode()
        self._events = f"__keyevent@{database}__:".encode()
        self._bells.clear()
        self._unheard.clear()
        self._watched.clear()
        self._in_slots.clear()
        self._watches = self._turned_away is not None and not self._closed_behind
        self._closed_behind = False
        turned_away: list[bytes] = []
        redirects: list[faults.Redirect] = []
        why = "by the table, it has none"
        while len(turned_away) < _TRIALS and (trial := self._next_trial(turned_away)) is not None:
            try:
                await self._open_with(ask, trial)
            except AnsweredError as error:
                redirect = faults.redirect(error)
                if redirect is None or self._turned_away is None:
                    words = ("SUBSCRIBE", self._channel + self._probe)
                    raise _refused(error, "the server refuses SUBSCRIBE, SET or DEL", words) from error
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

    async def _open_with(self, ask: Ask, trial: Request[int]) -> None:
        if await self._try_out(ask, trial):
            return
        why = await self._silence(ask)
        if not (self._configure and await self._try_out(ask, trial)):
            raise UnavailableError(why)

    async def _try_out(self, ask: Ask, trial: Request[int]) -> bool:
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
        watching = [(words, hear(*words)) for words in self._watching(self._probe)]
        # An event comes before the reply to the next command: there is nothing to wait for.
        for words in (trial.words(as_eval=True), ("DEL", self._probe)):
            if self._turned_away is not None:
                ask(*ASKING)  # needed by few, and may be denied
            replies.append(ask(*words))
        for words, reply in watching:
            try:
                await reply
            except AnsweredError as error:
                self.refused(words, error)
            except DeafError:
                self._closed_behind = True
                raise
        for reply in replies:
            await reply
        if self._hear is not None:
            with contextlib.suppress(AnsweredError):  # a denial, too, comes behind the event
                await self._hear("PING")
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
            if "A" in value and "E" in value:  # without E, nothing was published
                try:
                    missing += await self._hidden(ask)
                except AnsweredError as error:
                    return (
                        f"keyspace notifications are off: {wanted} and is {value!r}, which hides n, o and c, "
                        f"and this user cannot find out whether they are on ({in_line(error)}): CONFIG SET it"
                    )
            await ask("CONFIG", "SET", _SETTING, value + "".join(missing))
        except (AnsweredError, ValueError) as error:
            return f"keyspace notifications are off: {wanted}, and CONFIG is refused here ({in_line(error)})"
        return f"keyspace notifications stay silent, although {_SETTING} was set"

    async def _hidden(self, ask: Ask) -> list[str]:
        """The flags that `CONFIG GET` hides, by their events: `CONFIG SET` without them switches them off."""
        hear, probe = self._hear or ask, self._probe
        self._seen.clear()
        write = ("SET", probe, "", "PX", 1000)
        delete = ("DEL", probe)
        channels = [self._events + event for event in _HIDDEN]
        # One after the other: with RESP2 they go over two connections.
        for channel in channels:
            await hear("SUBSCRIBE", channel)
        for words in (write, write, delete, ("ZADD", probe, 0, ""), write, delete):
            if self._turned_away is not None:
                ask(*ASKING)
            await ask(*words)
        for channel in channels:
            await hear("UNSUBSCRIBE", channel)
        return sorted(self._seen)

    def _watching(self, bell: bytes) -> Iterable[Words]:
        """The command by which the slot of this bell is watched, if it is not yet."""
        tag = tag_of(bell) if self._watches else None
        if tag is None or (slot := slot_of(bell)) in self._watched:
            return ()
        # Beside the channel of the trial, which the user may subscribe to.
        self._watched[slot] = self._channel + self._probe.partition(b"{")[0] + tag
        return (("SSUBSCRIBE", self._watched[slot]),)

    def before_arming(self, bells: Sequence[bytes]) -> Iterable[Words]:
        if self._hear is not None:
            for bell in bells:
                self.arm(bell)
            return ()
        words = [words for bell in bells for words in self._watching(bell)]
        for bell in bells:
            if bell not in self._bells or bell in self._unheard:
                self._add(bell, None)
                words.append(("SUBSCRIBE", self._channel + bell))
        return words

    def arm(self, bell: bytes) -> asyncio.Future[Any] | None:
        if self._hear is None:
            return None
        armed = None if bell in self._unheard else self._bells.get(bell)
        for words in self._watching(bell):
            self._bells[bell] = self._hear(*words)
        if armed is None:
            self._add(bell, self._hear("SUBSCRIBE", self._channel + bell))
        armed = self._bells[bell]
        return None if armed is None or armed.done() else armed

    def _add(self, bell: bytes, armed: asyncio.Future[Any] | None) -> None:
        self._bells[bell] = armed
        self._unheard.discard(bell)
        if self._turned_away is not None:
            self._in_slots.setdefault(slot_of(bell), set()).add(bell)

    def after(self, bell: bytes) -> Iterable[Words]:
        if bell not in self._bells:
            return ()
        del self._bells[bell]
        self._unheard.discard(bell)
        unheard: list[Words] = [("UNSUBSCRIBE", self._channel + bell)]
        if self._turned_away is not None:
            slot = slot_of(bell)
            beside = self._in_slots[slot]
            beside.remove(bell)
            if not beside:
                del self._in_slots[slot]
                if (channel := self._watched.pop(slot, None)) is not None:
                    # Nothing ever subscribes to the second one: a push that names it is the reply to this.
                    unheard.append(("SUNSUBSCRIBE", channel, channel + b"."))
        if self._hear is None:
            return unheard
        for words in unheard:
            self._hear(*words)
        return ()

    def refused(self, words: Words, error: Exception) -> Iterable[bytes]:
        if words[0] == "SUBSCRIBE" and isinstance(words[1], bytes):
            # As out of memory: the next sign of life of its waiter subscribes again.
            self._unheard.update(self._bells.keys() & {words[1].removeprefix(self._channel)})
        if words[0] != "SSUBSCRIBE":
            return ()
        redirect = faults.redirect(error)
        if redirect is None and not faults.refused(error).transient:
            self._watches = False
        bells = self._left(words[1])
        # Where another node has the slot, the next question finds it; else it would come back to this node.
        return bells if redirect is not None and redirect.to is not None else ()

    def _left(self, channel: object) -> Iterable[bytes]:
        """A slot is not watched any more: its bells."""
        if not isinstance(channel, bytes) or self._watched.get(slot := slot_of(channel)) != channel:
            return ()
        del self._watched[slot]
        return tuple(self._in_slots.get(slot, ()))

    def rung(self, push: list[Any]) -> Iterable[bytes] | None:
        if push[:1] == [b"sunsubscribe"]:
            return self._left(push[1] if len(push) > 1 else None)
        if push[:1] != [b"message"] or not all(isinstance(part, bytes) for part in push) or len(push) != 3:
            return ()
        _, channel, event = push
        if event == self._probe and channel.startswith(self._events):
            self._seen.add(_HIDDEN[channel[len(self._events) :]])
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

    Requests on this connection and on the first one have no order between them. So a waiter listens for its
    bell on the first one when this connection hears the channel of the bell (`Transport.arm`); else it would
    not be told of a bell that is rung in between.

    Args:
        raw: Taken over, and closed with this.
        silence: Seconds without a reply after which the connection counts as dead.
        pushed: Told of each message, and of a slot that has left.
        refused: Told of each command that the server refuses.
        ended: Told of the end, unless `close` is why.
    """

    def __init__(
        self,
        raw: RawConnection,
        loop: asyncio.AbstractEventLoop,
        *,
        silence: float,
        pushed: Callable[[list[Any]], None],
        refused: Callable[[Words, Exception], None],
        ended: Callable[[], None],
    ) -> None:
        self._raw = raw
        self._loop = loop
        self._silence = silence
        self._pushed = pushed
        self._refused = refused
        self._ended = ended
        self._closed = False
        self._awaited: deque[tuple[float, Words, asyncio.Future[Any]]] = deque()  # with the times of asking
        self._timer: asyncio.TimerHandle | None = None
        raw.transport.set_protocol(self)
        if raw.leftover:
            self.data_received(raw.leftover)

    def ask(self, *words: bytes | str | int) -> asyncio.Future[Any]:
        """The reply to a request; `DeafError` if there will be none."""
        return self.ask_together(words)[0]

    def ask_together(self, *several: Words) -> list[asyncio.Future[Any]]:
        """The replies to several requests, which leave in one write."""
        answers: list[asyncio.Future[Any]] = [self._loop.create_future() for _ in several]
        if self._raw.transport.is_closing():
            for answer in answers:
                _fail(answer, DeafError("the connection of the notifications was closed"))
            return answers
        now = self._loop.time()
        self._awaited.extend((now, words, answer) for words, answer in zip(several, answers, strict=True))
        self._raw.transport.write(b"".join(map(pack, several)))
        if self._timer is None:
            self._timer = self._loop.call_later(self._silence, self._check, context=empty_context())
        return answers

    def _check(self) -> None:
        self._timer = None
        if not self._awaited:
            return
        due = self._awaited[0][0] + self._silence
        if due > self._loop.time():
            self._timer = self._loop.call_at(due, self._check, context=empty_context())
        else:
            self._raw.abort()

    def data_received(self, data: bytes) -> None:
        try:
            for reply in self._raw.replies.read(data):
                if isinstance(reply, list) and self._is_push(reply):
                    self._pushed(reply)
                elif self._awaited:
                    _, words, answer = self._awaited.popleft()
                    if isinstance(reply, Exception):
                        _fail(answer, reply)
                        self._refused(words, reply)
                    elif not answer.done():
                        answer.set_result(reply)
        except UnreadableReplyError:
            self._raw.abort()
        except BaseException:  # as `Multiplexed.data_received`
            self._raw.abort()
            raise

    def _is_push(self, reply: list[Any]) -> bool:
        if reply[:1] == [b"sunsubscribe"]:
            return not (self._awaited and confirms(reply, self._awaited[0][1]))
        return reply[:1] in ([b"message"], [b"smessage"])

    def connection_lost(self, exc: Exception | None) -> None:
        self._raw.lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        while self._awaited:
            _fail(self._awaited.popleft()[-1], DeafError("the connection of the notifications was closed"))
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
        answer.exception()  # perhaps no caller waits for it


log = get_logger("aiolocks.transport")

OpenEar = Callable[[], Awaitable[Ask]]
"""Makes a second connection; gives what asks on it. What asks raises `DeafError` once that has ended."""
OnRung = Callable[[str, Iterable[bytes] | None], None]
"""Told by which way, and which bells were rung; None: possibly any."""

ANOTHER_MASTER: Final = "another master"
"""Instead of a way: another server has taken the place of the one that served, and may lack any lease."""
GONE_SILENT: Final = "silence"
"""Instead of a way: the connection has ended on which bells were heard. No bell is, until the next one."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KeyspaceWakeup:
    """Wakes waiters by keyspace notifications: `Session(client, wakeup=KeyspaceWakeup(configure=True))`.

    Args:
        configure: Whether the session may turn notifications on, with `CONFIG SET notify-keyspace-events`.
            Events that are already on stay on, also events that the server hides behind `A` (`n`, `o`, `c`):
            they are found by their events. Default False, because the setting is that of the whole server.

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
        trial: Gives a command that rings a bell which no waiter has.
        turned_away: Told, on a node of a cluster, of a bell whose slot another node serves.
        on_rung: Told of bells that were rung, and of every new connection, on which any may have been.

    Attributes:
        hears: Whether bells are heard now.
        name: The way that was chosen; empty before the first connection.
        postponed: The command that the server refuses for now: until it takes that, the poll serves.
    """

    def __init__(
        self, wanted: Wakeup, *, trial: Trial, on_rung: OnRung, turned_away: TurnedAway | None = None
    ) -> None:
        self._wanted = wanted if isinstance(wanted, str) else "keyspace"
        configure = isinstance(wanted, KeyspaceWakeup) and wanted.configure
        ways = (Tracking(), Keyspace(trial, configure=configure, turned_away=turned_away))
        self._ways: list[Tracking | Keyspace] = [way for way in ways if self._wanted in ("auto", way.name)]
        self._on_rung = on_rung
        self._hear_by(NO_NOTIFIER)
        self._spoiled: tuple[Notifier, UnavailableError] | None = (
            None  # whose trial was refused last, and why
        )
        self.name = ""
        self.postponed: Words | None = None

    async def begin(
        self, ask: Ask, *, protocol: int, database: int, why: str = "", ear: OpenEar | None = None
    ) -> None:
        """Opens the hearing on a new connection, or on one that serves, after the server has refused it.

        A connection on which a subscription was tried in vain may be in another mode since, in which it takes
        no requests: the next one takes its place, on which that is not tried.

        Args:
            ask: Sends a command on it.
            protocol: The version of RESP that the connection speaks: with 2, nothing can be told between
                replies.
            database: Its number.
            why: Why it speaks RESP2.
            ear: With RESP2, makes the second connection.

        Raises:
            ConfigurationError: The way that was asked for by name is not there.
            SpoiledError: The connection must not be used: call this with another one.
        """
        troubles: list[str] = []
        chosen, postponed = NO_NOTIFIER.name, None
        spoiled, self._spoiled = self._spoiled, None
        self._hear_by(NO_NOTIFIER)
        for way in self._ways:
            try:
                if spoiled is not None and spoiled[0] is way:
                    raise spoiled[1]
                if protocol < 3 and (isinstance(way, Tracking) or ear is None):
                    raise UnavailableError(f"RESP2 is spoken, {why}")
                await self._open(way, ask, protocol, database, ear)
            except UnavailableError as error:
                self._hear_by(NO_NOTIFIER)
                troubles.append(f"{way.name}: {error}" if self._wanted == "auto" else str(error))
                if isinstance(error, PostponedError):
                    postponed, self.name = error.words, self.name or way.name
                    break
            else:
                chosen = way.name
                break
        first, self.name = not self.name, self.name or chosen
        because = "; ".join(troubles)
        if first and self._wanted not in (chosen, "auto"):
            self.name = ""
            raise ConfigurationError(f"wakeup={self._wanted!r} is not available: {because}")
        before, self.postponed = self.postponed, postponed
        self._tell(chosen, because, first=first, again=before is not None)
        if not first or (protocol < 3 and chosen != NO_NOTIFIER.name):
            # Requests may wait for the first connection: they go before the second one hears their keys.
            self._on_rung(chosen, None)
        self._ways = [way for way in self._ways if way.name == self.name]

    def _tell(self, chosen: str, because: str, *, first: bool, again: bool) -> None:
        """Says in the log which way serves; `again` after one that was postponed."""
        if self.postponed is not None:
            if not again:
                log.warning("wakeup: %s serves this session for now (%s)", chosen, because)
        elif chosen != self.name or (first and because):
            log.warning("wakeup: %s serves this session (%s)", chosen, because)
        elif again:
            log.info("wakeup: %s serves this session again", chosen)

    async def _open(
        self, way: Tracking | Keyspace, ask: Ask, protocol: int, database: int, ear: OpenEar | None
    ) -> None:
        self._hear_by(way)  # hears its own trial
        if isinstance(way, Tracking):
            await way.open(ask)
        elif protocol < 3 and ear is not None:
            await self._open_beside(way, ask, database, ear)
        else:
            try:
                await way.open(ask, database)
            except UnavailableError as error:
                if not isinstance(error.__cause__, AnsweredError):
                    raise
                self._hear_by(NO_NOTIFIER)
                self._spoiled = (way, error)
                raise SpoiledError(str(error)) from None

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
        """This session can hear no bells, now or later.

        Raises:
            ConfigurationError: A way was asked for by name.
        """
        if self._wanted not in ("auto", "poll"):
            raise ConfigurationError(f"wakeup={self._wanted!r} is not available: {why}; use 'auto' or 'poll'")

    def end(self) -> None:
        """There is no connection: nothing more is heard."""
        heard = self._notifier
        self._hear_by(NO_NOTIFIER)
        if heard is not NO_NOTIFIER:
            self._on_rung(GONE_SILENT, None)

    def _hear_by(self, way: Notifier) -> None:
        self._notifier = way
        self.hears = way is not NO_NOTIFIER

    def before_arming(self, bells: Sequence[bytes]) -> Iterable[Words]:
        return self._notifier.before_arming(bells)

    def arm(self, bell: bytes) -> asyncio.Future[Any] | None:
        return self._notifier.arm(bell)

    def after(self, bell: bytes) -> Iterable[Words]:
        return self._notifier.after(bell)

    def refused(self, words: Words, error: Exception) -> None:
        """The server has refused a command of `before_arming`, or of the second connection."""
        if bells := self._notifier.refused(words, error):
            self._on_rung(self._notifier.name, bells)

    def pushed(self, push: list[Any]) -> None:
        """The server has sent something by itself."""
        rung = self._notifier.rung(push)
        if rung is None or rung:
            self._on_rung(self._notifier.name, rung)  # which may not be chosen yet, on the first connection
