"""The protocol of all transports: to one connection, a pool, a cluster, several masters."""

from __future__ import annotations

import contextlib
import hashlib
import math
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, final

from ..errors import ConfigurationError, LockError, LockLostError
from .faults import Fault, unreadable

if TYPE_CHECKING:
    from .answers import Released


# -- The steps in Lua: a file of `aiolocks/lua` for each family, with a section for each step.

_LUA: Final = Path(__file__).parents[1] / "lua"
_SECTION: Final = b"\n--# "


@cache
def lua_sections() -> dict[str, bytes]:
    """The text of each section, by its name, which stands in the line before it: `--# lock_acquire`."""
    sections: dict[str, bytes] = {}
    for path in _LUA.glob("*.lua"):
        for section in path.read_bytes().split(_SECTION)[1:]:
            name, _, text = section.partition(b"\n")
            sections[name.decode()] = text
    return sections


@final
class Script:
    """One atomic step on the server, a section of a file in `aiolocks/lua`, read when it is first needed.

    Args:
        shared: Sections that stand before it: what several steps have in common.
        mid_move: The last of these sections while the slot of the keys moves to another node of a cluster.
        several: The script that does this step for several at once, if there is one. It has their keys, and
            their arguments, one after the other, and answers with the list of their replies.

    Attributes:
        mid_move: The same step in the form for that time (see `mid_move` in `lua/shared.lua`), if it has one.
    """

    __slots__ = ("mid_move", "name", "several", "sha", "shared", "text")

    sha: bytes
    text: bytes

    def __init__(self, name: str, *shared: str, mid_move: str = "", several: Script | None = None) -> None:
        self.name = name
        self.shared = shared
        self.several = several
        self.mid_move = Script(name, "mid_move", *shared, mid_move) if mid_move else None

    def __getattr__(self, attribute: str) -> bytes:
        """The text or digest, on first use: an import must not wait for files that may never be needed."""
        if attribute not in self.__slots__:
            raise AttributeError(attribute)
        sections = lua_sections()
        self.text = b"".join(sections[name] for name in (*self.shared, self.name))
        # The server names a script by this digest; it guards nothing.
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()
        value: bytes = getattr(self, attribute)
        return value

    def __repr__(self) -> str:
        return f"<Script {self.name}>"


# -- Commands, which are scripts with keys and arguments, and calls, which are commands under way.

T = TypeVar("T")

Argument = bytes | str | int
Words = tuple[Argument, ...]
"""The words of a request, the command first."""

LONG: Final = 131_072
"""Bytes from which on a request is long. No acquire is, unless its session allows larger metadata than the
default."""

UNREADABLE: Final = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""The errors of reading a reply that has another form than any script gives: a map, an infinite number."""


class Command(Generic[T]):
    """A script with its keys and arguments, and how its reply reads. Idempotent: it may be sent again.

    Attributes:
        script: The step; None for a bare server command, which then stands in `args`.
        keys: The keys it touches, all in one slot.
        args: Its arguments.
        parse: Turns the server's reply (bytes, ints, lists of them) into what the caller wants to know.
        lane: Commands of one lane reach the server in the order in which they were sent.
        bells: Keys whose end the server is to tell of, from when this command was executed on.
        watched: Keys that this command reads last, of whose changes the server must tell, from then on.
            Where it cannot, nothing is lost but time.
    """

    # No dataclass, here and in what replies become: they are made for each request, and many at import.
    bells: tuple[bytes, ...] = ()
    watched: tuple[bytes, ...] = ()

    def __init__(
        self,
        script: Script | None,
        keys: tuple[bytes, ...],
        args: tuple[Argument, ...],
        parse: Callable[[Any], T],
        *,
        lane: str = "",
        bells: tuple[bytes, ...] = (),
    ) -> None:
        self.script = script
        self.keys = keys
        self.args = args
        self.parse = parse
        self.lane = lane
        if bells:
            self.bells = bells

    def words(self, *, as_eval: bool) -> Words:
        """The words of the request; `as_eval` sends the script's text instead of its digest."""
        script = self.script
        if script is None:
            return self.args
        if as_eval:
            return ("EVAL", script.text, len(self.keys), *self.keys, *self.args)
        return ("EVALSHA", script.sha, len(self.keys), *self.keys, *self.args)

    def words_mid_move(self) -> Words:
        """The words of the request while the slot moves: it declares its first key only."""
        assert self.script is not None
        assert self.script.mid_move is not None
        return ("EVAL", self.script.mid_move.text, 1, self.keys[0], len(self.keys), *self.keys, *self.args)

    def __repr__(self) -> str:
        # Arguments hold tokens: never shown.
        return f"<Command {self.script!r} {self.keys!r}>"


def several(commands: Sequence[Command[Any]]) -> Command[list[Any]]:
    """One request for commands of one script that has a form for several; their replies.

    Instead of a reply there may be the server's error at that command: it leaves the others as they would be
    without it.
    """
    script = commands[0].script
    assert script is not None
    assert script.several is not None
    keys: list[bytes] = []
    args: list[Argument] = []
    watched: list[bytes] = []
    for command in commands:
        keys += command.keys
        args += command.args
        watched += command.watched
    together = Command(
        script.several, tuple(keys), tuple(args), partial(_replies, commands[0].parse, len(commands))
    )
    together.watched = tuple(watched)
    return together


def _replies(parse: Callable[[Any], Any], number: int, raw: Any) -> list[Any]:
    if len(raw) != number:
        raise ValueError(f"{len(raw)} replies to {number} steps")
    return [reply if isinstance(reply, Exception) else parse(reply) for reply in raw]


@final
class JoinableRelease(Command["Released"]):
    """A release that can go in one request with the acquire of the next waiter of its session.

    Attributes:
        acquire: The script by which that waiter asks, for the same keys.
        both: The script that does both. Its arguments are those of `acquire` and then `token`. It answers as
            `acquire` does; but `NOT_HELD`, and does nothing, when that token does not hold.
        token: The token that lets go.
    """

    __slots__ = ("acquire", "both", "token")

    def __init__(
        self,
        script: Script,
        keys: tuple[bytes, ...],
        args: tuple[Argument, ...],
        parse: Callable[[Any], Released],
        *,
        token: str,
        acquire: Script,
        both: Script,
    ) -> None:
        super().__init__(script, keys, args, parse, lane=token)
        self.token = token
        self.acquire = acquire
        self.both = both


NOT_HELD: Final = [-1]
"""The reply of such a request when the token that was to let go does not hold."""
FREED: Final = (1,)
"""The reply that a release then has, if the request was executed."""


@final
class Call(Generic[T]):
    """A command under way. Ends exactly once: with a reply, with a fault, or because its caller left.

    Args:
        command: The command to send.
        until: Loop time after which nobody wants the reply.
        undoes: It takes back what an earlier request of its lane may have done. While that request may still
            be executed, `until` does not count: only the reply ends it.
        patient: Whether it waits for a server that is known to be away; for one that is silent, each call
            waits.
        as_eval: Send the script's text at once.
        make: Makes the command again for each time that it is written, where its content depends on the time.
        on_late: Told the reply that comes after the end: the server has told nobody else here which waiters
            it woke.

    The callbacks run inside the loop's callbacks and must not raise; once the caller has left
    (`Transport.forget`), none but `on_late` is called.
    """

    # Most calls differ from these in nothing: so they stand here, and not in each call.
    make: Callable[[], Command[T]] | None = None
    alone = False  # it is not to go in one request with another one
    as_eval = False
    done = False
    elsewhere = False  # a node has it that does not serve its slot, for this request only
    ended_by: Fault | None = None
    mid_move = False  # it was refused because its slot moves, and is sent in the form for that
    on_late: Callable[[T], object] | None = None
    patient = True
    rider: Call[Any] | None = None  # the call that went in the same request, and has the next reply
    sent = 0.0  # loop time right before it was last written
    sent_steady = math.inf  # the same by `clocks.steady`, read first; infinity: unknown
    unconfirmed = False  # it was sent before, and all or a part of it may have been executed already
    undoes = False
    written = False  # the server may have it, or have had it

    def __init__(
        self,
        command: Command[T],
        on_reply: Callable[[T], None],
        on_fault: Callable[[Fault], None],
        *,
        until: float,
        undoes: bool = False,
        patient: bool = True,
        as_eval: bool = False,
        make: Callable[[], Command[T]] | None = None,
        on_late: Callable[[T], object] | None = None,
    ) -> None:
        self.command = command
        self.on_reply = on_reply
        self.on_fault = on_fault
        self.until = until  # loop time after which nobody wants the reply
        if undoes:
            self.undoes = True
        if not patient:
            self.patient = False
        if as_eval:
            self.as_eval = True
        if make is not None:
            self.make = make
        if on_late is not None:
            self.on_late = on_late

    @property
    def made_at_write(self) -> bool:
        """Whether its command depends on when it is written."""
        return self.make is not None

    def words(self) -> Words:
        """The words of the request, as they are right now: it may have waited for a connection."""
        command = self.command if self.make is None else self.as_of_now()
        if self.mid_move:
            return command.words_mid_move()
        script = command.script
        if self.as_eval or script is None:
            return command.words(as_eval=True)
        # As `Command.words` says it: all that leave together are made here, and a call more would show.
        return ("EVALSHA", script.sha, len(command.keys), *command.keys, *command.args)

    def with_rider(self, rider: Call[Any]) -> Words | None:
        """The words of one request for both; None unless the rider is an acquire that suits this release."""
        release, acquire = self.command, rider.command
        if (
            type(release) is not JoinableRelease
            or acquire.script is not release.acquire
            or acquire.keys[: len(release.keys)] != release.keys
            or any(one.alone or one.mid_move or one.elsewhere for one in (self, rider))
        ):
            return None
        acquire = rider.as_of_now()
        both = Command(release.both, acquire.keys, (*acquire.args, release.token), acquire.parse)
        return both.words(as_eval=self.as_eval or rider.as_eval)

    def as_of_now(self) -> Command[T]:
        """The command, made again where its content depends on the time."""
        if self.make is not None:
            self.command = self.make()
        return self.command

    def reply(self, raw: Any) -> None:
        """Ends it with the server's answer."""
        if self.done:
            self._reply_late(raw)
            return
        self.done = True
        try:
            result = self.command.parse(raw)
        except (ConfigurationError, LockLostError) as error:
            self.ended_by = Fault(error, transient=False, unknown=False)
            self.on_fault(self.ended_by)
        except UNREADABLE as error:
            self.ended_by = unreadable(error)
            self.on_fault(self.ended_by)
        else:
            self.on_reply(result)

    def _reply_late(self, raw: Any) -> None:
        if self.on_late is not None:
            with contextlib.suppress(LockError, *UNREADABLE):
                self.on_late(self.command.parse(raw))

    def fault(self, fault: Fault) -> None:
        """Ends it without an answer."""
        if not self.done:
            self.done = True
            self.ended_by = fault
            self.on_fault(fault)

    def __repr__(self) -> str:
        state = "done" if self.done else "written" if self.written else "queued"
        return f"<Call {self.command!r} {state}>"


def ignore(_: object) -> None:
    """A callback for calls whose end nobody waits for."""


# -- Requests that undo an earlier one, whether it was executed already, will be, or never is.

_PAUSE_FIRST: Final = 0.02
_PAUSE_MAXIMUM: Final = 0.5
"""Seconds before an undo that the server has refused is sent again."""


def take_back(
    command: Command[T],
    *,
    send: Callable[..., None],
    loop: AbstractEventLoop,
    seconds: float,
    told: Callable[[T], None] = ignore,
    at_once: bool = True,
) -> None:
    """Sends an undo, which stands in the lane of the request that it undoes. Synchronous: the last word.

    While that request may still be executed, the undo is kept until the server has answered it, however long
    that takes; otherwise for `seconds`, after which the key has expired. A server that refuses
    the undo for the moment (`READONLY`, `LOADING`, `BUSY`, `MISCONF`) is asked again within that time, unless
    the session is closed before.

    Args:
        command: Idempotent: it may be executed several times, also long after the request.
        send: Of the transport. Nothing else of the session is kept alive while the undo is under way.
        loop: Times the pauses.
        seconds: How long the undo is of use: the effect of the earlier request ends by itself then.
        told: Called with the server's answer.
        at_once: Writes it now; it may be the last thing that this loop does.
    """
    _TakingBack(command, send, loop, loop.time() + seconds, told, at_once=at_once).attempt()


@final
class _TakingBack(Generic[T]):
    """One undo. Nothing that it refers to refers back: a cancelled acquire leaves no garbage."""

    __slots__ = ("_at_once", "_command", "_loop", "_pause", "_send", "_told", "_until")

    def __init__(
        self,
        command: Command[T],
        send: Callable[..., None],
        loop: AbstractEventLoop,
        until: float,
        told: Callable[[T], None],
        *,
        at_once: bool,
    ) -> None:
        self._at_once = at_once
        self._command = command
        self._loop = loop
        self._pause = _PAUSE_FIRST
        self._send = send
        self._told = told
        self._until = until

    def attempt(self) -> None:
        told = self._told
        call = Call(
            self._command, told, self._failed, until=self._until, undoes=True, as_eval=True, on_late=told
        )
        self._send(call, at_once=self._at_once)

    def _failed(self, fault: Fault) -> None:
        refused_for_now = fault.transient and not fault.unknown
        if refused_for_now and self._loop.time() + self._pause < self._until:
            self._loop.call_later(self._pause, self.attempt)
            self._pause = min(2 * self._pause, _PAUSE_MAXIMUM)


@final
class Proof:
    """One grant that counts when enough replicas have it. Ends exactly once, or its caller leaves.

    Args:
        owned: Asks whether the server has the lease.
        replicas: How many must have it.
        on_end: Told True when they have, False when the server does not know of the lease.
        on_fault: Told why it cannot be said.

    Attributes:
        seen: How many had it when they were counted last.
        done: It has ended, or nobody wants to know any more.
    """

    __slots__ = ("_on_end", "_on_fault", "done", "owned", "replicas", "seen")

    def __init__(
        self,
        owned: Command[bool],
        replicas: int,
        on_end: Callable[[bool], None],
        on_fault: Callable[[Fault], None],
    ) -> None:
        self.owned = owned
        self.replicas = replicas
        self._on_end = on_end
        self._on_fault = on_fault
        self.seen = 0
        self.done = False

    def end(self, has: bool) -> None:  # noqa: FBT001 - an outcome, not a switch
        if not self.done:
            self.done = True
            self._on_end(has)

    def fault(self, fault: Fault) -> None:
        if not self.done:
            self.done = True
            self._on_fault(fault)


class Transport(Protocol):
    """A way to one server. Everything but `aclose` is synchronous: what it starts goes on by itself."""

    @property
    def hears(self) -> bool:
        """Whether bells are heard now."""
        ...

    @property
    def way(self) -> str:
        """How bells are heard: "tracking", "keyspace" or "poll"; empty while that is not known."""
        ...

    @property
    def by_slot(self) -> bool:
        """Whether a step must not have keys of several slots."""
        ...

    @property
    def outage_told(self) -> bool:
        """Whether the log says that a server is away or refuses, and not yet that it is back.

        Then nobody else needs to say so.
        """
        ...

    @property
    def commands_sent(self) -> int:
        """Number of requests sent so far, without those that set up a connection."""
        ...

    def send(self, call: Call[Any], *, at_once: bool = False, corked: bool = False) -> None:
        """Sends it, in order after earlier requests of the same lane.

        Calls of one turn of the loop leave together; `at_once` writes them now (for an undo, which
        may be the last thing that this loop does); `corked` leaves it for the next call, which follows.
        """
        ...

    def prove(self, proof: Proof) -> None:
        """Finds out whether replicas have what was granted over this transport."""
        ...

    def arm(self, bell: bytes) -> Future[Any] | None:
        """Listens to that key on a second connection, where there is one.

        Returns:
            Done when the key is heard there, or that connection has ended; None: a command that names the key
            as its bell is enough.
        """
        ...

    def ignore_bell(self, bell: bytes) -> None:
        """Nobody wants to hear of that key any more; it is heard again when a command names it."""
        ...

    def forget(self, call: Call[Any]) -> bool:
        """The caller has left: nobody is told how it ended.

        Returns:
            Whether the server may have seen it, or may see it yet.
        """
        ...

    def rest(self) -> bool:
        """Closes the connections, if none has anything to do; the next request opens one.

        Returns:
            Whether it has; else a request is under way.
        """
        ...

    async def aclose(self, grace: float) -> None:
        """Sends what still waits for at most `grace` seconds, then closes. Idempotent."""
        ...
