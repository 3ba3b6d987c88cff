"""Scripts, the requests that are made of them, and what every transport does with a request (`Transport`).

A transport is one connection, a pool, a cluster, or several masters.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar, cast, final

from .._tasks import empty_context
from ..errors import ConfigurationError, LockError, LockLostError
from .faults import Fault, unreadable

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from .answers import Released


# -- The steps in Lua: a file of `aiolocks/lua` for each family, with a section for each step.

_SECTION: Final = b"\n--# "


@cache
def lua_sections() -> dict[str, bytes]:
    """The text of each section, by its name, which stands in the line before it: `--# lock_acquire`.

    Raises:
        ConfigurationError: The package has been packed without them.
    """
    sections: dict[str, bytes] = {}
    folder: Traversable = Path(__file__).parents[1] / "lua"
    if not folder.is_dir():  # in an archive; else no import, in whose midst another thread may fork
        from importlib import resources  # noqa: PLC0415 - takes milliseconds, and few need it

        folder = resources.files("aiolocks").joinpath("lua")
    for path in folder.iterdir() if folder.is_dir() else ():
        for section in path.read_bytes().split(_SECTION)[1:]:
            name, _, text = section.partition(b"\n")
            sections[name.decode()] = text
    if not sections:
        raise ConfigurationError(
            "this program was packed without the folder aiolocks/lua, which has the scripts for the server: "
            "pack it too (PyInstaller: --collect-data aiolocks)"
        )
    return sections


@final
class Script:
    """One atomic step on the server, a section of a file in `aiolocks/lua`, read when it is first needed.

    Args:
        shared: Sections that stand before it: what several steps have in common.
        mid_move: The last of these sections while the slot of the keys moves to another node of a cluster.
        moves: A slot that moves does not stop it half way: it touches only keys that are there, or reads.
        frees: It ends what its token has, and nothing else, however late it is sent again.

    Attributes:
        mid_move: The same step in the form for that time (see `mid_move` in `lua/shared.lua`), if it has one.
        guarded: The form for a cluster, which does nothing while the slot moves (see `slot_stays` in
            `lua/shared.lua`); with `moves`, the script itself.
    """

    __slots__ = ("frees", "guarded", "mid_move", "name", "sha", "shared", "text")

    sha: bytes
    text: bytes

    def __init__(
        self,
        name: str,
        *shared: str,
        mid_move: str = "",
        moves: bool = False,
        frees: bool = False,
    ) -> None:
        self.frees = frees
        self.name = name
        self.shared = shared
        self.mid_move = Script(name, "mid_move", *shared, mid_move, moves=True) if mid_move else None
        self.guarded: Script = self if moves else Script(name, "slot_stays", *shared, moves=True)

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


# -- Requests: scripts with keys and arguments, on their way to a server.

T = TypeVar("T")

Argument = bytes | str | int
Words = tuple[Argument, ...]
"""The words of a request, the command first."""

LONG: Final = 131_072
"""Bytes from which on a request is long. No acquire is, unless its session allows larger metadata than the
default."""

_KNOWN_AT_LEAST: Final = 30.0
MOST_KNOWN: Final = 100_000
"""The most steps of one name that the server remembers at once, so that each counts once: about 10 MB."""


def known_ms(sent_again: float) -> int:
    """For how long the server remembers a step that counts, ms: at least twice as long as it is sent again.

    A step that has no other effect than to count is the same again only for as long as it is remembered.

    Args:
        sent_again: Seconds for which a request is sent again at most: up to its `Request.until`, which is
            `command_timeout` after it was made, or earlier.
    """
    return math.ceil(1000 * max(_KNOWN_AT_LEAST, 2 * sent_again))


UNREADABLE: Final = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""The errors of reading a reply that has another form than any script gives: a map, an infinite number."""


_CONTENT: Final = frozenset(
    {"script", "keys", "args", "parse", "lane", "bells", "watched", "plain", "packed"}
)
"""What a request has before it is sent."""


IMPATIENT: Final = 1
UNDOES: Final = 2
FINAL: Final = 4
"""What a request may be: see the properties of `Request`."""


class Request(Generic[T]):
    """A script with its keys and arguments, how its reply reads, and, once it is sent, how it stands.

    Idempotent: it may be written again. It is sent once (`ask`), and ends exactly once: with a reply, with a
    fault, or because its caller left. A sender that may send the same again, or to several servers,
    sends copies (`again`).

    Args:
        script: The step; None for a bare server command, which then stands in `args`.
        keys: The keys it touches, all in one slot.
        args: Its arguments.
        parse: Turns the server's reply (bytes, ints, lists of them) into what the caller wants to know.
        lane: Requests of one lane reach the server in the order in which they were sent.
        bells: Keys whose end the server is to tell of, from when this request was executed on.

    Attributes:
        watched: Keys that this request reads last, of whose changes the server must tell, from then on.
            Where it cannot, nothing is lost but time.

    The callbacks run inside the loop's callbacks and must not raise; once the caller has left
    (`Transport.forget`), none but `on_late` is called.
    """

    # No dataclass, and none in what replies become: they are made for each request, and many at import.
    # Most requests differ from these values in nothing: so the class has them, and not each request.
    bells: tuple[bytes, ...] = ()
    watched: tuple[bytes, ...] = ()
    head: bytes | None = None  # of a plain one: all its bytes before its arguments, packed once for a name
    packed: bytes | None = None  # of a plain one: all its bytes, packed once for several servers
    make: Callable[[], Request[T]] | None = None
    alone = False  # it is not to go in one request with another one
    as_eval = False
    done = False
    elsewhere = False  # a node has it that does not serve its slot, for this request only
    ended_by: Fault | None = None
    guarded = False  # it goes to a node of a cluster
    joins = False  # the acquire of the next waiter of its session may go in one request with it
    mid_move = False  # it was refused because its slot moves, and is sent in the form for that
    on_late: Callable[[T], object] | None = None
    rare = 0  # of `IMPATIENT`, `UNDOES` and `FINAL`, those that it is: few are any
    plain = True
    """It is written as `EVALSHA`, its keys and its arguments. Whatever sets one of `bells`, `make`, `undoes`,
    `as_eval`, `guarded`, `mid_move` and `elsewhere` clears that."""
    rider: Request[Any] | None = None  # the one that went in the same request, and has the next reply
    sent = 0.0  # loop time right before it was last written
    sent_steady = math.inf  # the same by `clocks.steady`, read first; infinity: unknown
    unconfirmed = False  # it was sent before, and all or a part of it may have been executed already
    written = False  # the server may have it, or have had it

    on_reply: Callable[[T], None]
    on_fault: Callable[[Fault], None]
    until: float  # loop time after which the caller does not want the reply

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
            self.plain = False

    def spell_out(self) -> None:
        """It goes with the text of its script from now on: the server may not know the digest."""
        self.as_eval, self.plain = True, False

    @property
    def patient(self) -> bool:
        """Whether it waits for a server that is known to be away."""
        return not self.rare & IMPATIENT

    @property
    def undoes(self) -> bool:
        """Whether it takes back what an earlier request of its lane may have done."""
        return bool(self.rare & UNDOES)

    @property
    def final(self) -> bool:
        """Whether it may be the last that this process does."""
        return bool(self.rare & FINAL)

    def track(self, keys: tuple[bytes, ...]) -> None:
        """The server must tell of changes of these keys, which it reads last."""
        self.watched = keys

    def again(self) -> Self:
        """One like it that was not sent yet."""
        if type(self) is Request:
            plain: Request[T] = object.__new__(Request)  # for each master of a quorum: `__init__` would show
            plain.script = self.script
            plain.keys = self.keys
            plain.args = self.args
            plain.parse = self.parse
            plain.lane = self.lane
            plain.packed = self.packed
            if self.watched:
                plain.watched = self.watched
            if not self.plain:
                plain.bells, plain.plain = self.bells, False
            return cast("Self", plain)
        made = copy.copy(self)  # with what its class adds
        vars(made).clear()
        vars(made).update({name: value for name, value in vars(self).items() if name in _CONTENT})
        return made

    def ask(
        self,
        on_reply: Callable[[T], None],
        on_fault: Callable[[Fault], None],
        *,
        until: float,
        undoes: bool = False,
        patient: bool = True,
        as_eval: bool = False,
        make: Callable[[], Request[T]] | None = None,
        on_late: Callable[[T], object] | None = None,
    ) -> Self:
        """It is to be sent now; returns itself.

        Args:
            on_reply: Told what the reply says.
            on_fault: Told why there is none.
            until: Loop time after which the caller does not want the reply.
            undoes: It takes back what an earlier request of its lane may have done. While that request may
                still be executed, `until` does not count: only the reply ends it.
            patient: Whether it waits for a server that is known to be away; for one that is silent, each
                request waits.
            as_eval: Send the script's text at once.
            make: Makes it again for each time that it is written, where its content depends on the time.
            on_late: Told the reply that comes after the end: the session learns from this reply alone which
                waiters the server woke.
        """
        self.on_reply = on_reply
        self.on_fault = on_fault
        self.until = until
        if undoes:
            self.rare |= UNDOES
            self.plain = False
        if not patient:
            self.rare |= IMPATIENT
        if as_eval:
            self.spell_out()
        if make is not None:
            self.make = make
            self.plain = False
        if on_late is not None:
            self.on_late = on_late
        return self

    def words(self, *, as_eval: bool | None = None) -> Words:
        """The words of the request, as they are right now: it may have waited for a connection.

        Args:
            as_eval: Send the script's text instead of its digest; None: as it was found to be necessary.
        """
        if self.make is not None:
            self.as_of_now()
        script = self.script
        if script is None:
            return self.args
        if self.mid_move:  # while the slot moves, it declares its first key only
            assert script.mid_move is not None
            keys = self.keys
            return ("EVAL", script.mid_move.text, 1, keys[0], len(keys), *keys, *self.args)
        if self.guarded:
            script = script.guarded
        if self.as_eval if as_eval is None else as_eval:
            return ("EVAL", script.text, len(self.keys), *self.keys, *self.args)
        return ("EVALSHA", script.sha, len(self.keys), *self.keys, *self.args)

    def with_rider(self, rider: Request[Any]) -> Words | None:
        """The words of one request for both; None unless the rider is an acquire that suits this release."""
        return None

    def as_of_now(self) -> Request[T]:
        """Itself; made again where its content depends on the time."""
        if self.make is None:
            return self
        made = self.make()
        if made is not self:
            self.script, self.keys, self.args, self.parse = made.script, made.keys, made.args, made.parse
            self.bells, self.watched = made.bells, made.watched
        return made

    def reply(self, raw: Any) -> None:
        """Ends it with the server's answer."""
        if self.done:
            self._reply_late(raw)
            return
        self.done = True
        try:
            result = self.parse(raw)
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
                self.on_late(self.parse(raw))

    def fault(self, fault: Fault) -> None:
        """Ends it without an answer."""
        if not self.done:
            self.done = True
            self.ended_by = fault
            self.on_fault(fault)

    def __repr__(self) -> str:
        # Arguments hold tokens: never shown.
        state = "done" if self.done else "written" if self.written else "not written"
        return f"<Request {self.script!r} {self.keys!r} {state}>"


Heads = dict[tuple[bytes, ...], bytes]


@final
class JoinableRelease(Request["Released"]):
    """A release that can go in one request with the acquire of the next waiter of its session.

    Attributes:
        acquire: The script by which that waiter asks, for the same keys.
        both: The script that does both. Its arguments are the arguments of `acquire` and then `token`. It
            answers as `acquire` does. When that token does not hold, it answers `NOT_HELD` and does nothing.
        heads: What the bytes of `both` begin with, by its keys, where that is remembered for the name.
        token: The token that lets go.
    """

    __slots__ = ("acquire", "both", "heads", "token")

    joins = True

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
        heads: Heads | None = None,
    ) -> None:
        super().__init__(script, keys, args, parse, lane=token)
        self.token = token
        self.acquire = acquire
        self.both = both
        self.heads = heads

    def with_rider(self, rider: Request[Any]) -> Words | None:
        if (
            rider.script is not self.acquire
            or rider.keys[: len(self.keys)] != self.keys
            or self.alone
            or rider.alone
            or self.mid_move
            or rider.mid_move
            or self.elsewhere
            or rider.elsewhere
        ):
            return None
        acquire = rider.as_of_now()
        both = Request(self.both, acquire.keys, (*acquire.args, self.token), acquire.parse)
        both.guarded = self.guarded
        return both.words(as_eval=self.as_eval or rider.as_eval)


NOT_HELD: Final = [-1]
"""The reply of such a request when the token that was to let go does not hold."""
FREED: Final = (1,)
"""The reply that a release then has, if the request was executed."""


def ignore(_: object) -> None:
    """A callback for calls without a caller that waits for their end."""


# -- Requests that undo an earlier one, whether it was executed already, will be, or never is.

_PAUSE_FIRST: Final = 0.02
_PAUSE_MAXIMUM: Final = 0.5
"""Seconds before an undo that the server has refused is sent again."""


def take_back(
    command: Request[T],
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
    the undo for the moment (`READONLY`, `LOADING`, `BUSY`, `MISCONF`), or refuses a password or a certificate
    that it has accepted before, is asked again within that time, unless the session is closed before.

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
        command: Request[T],
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
        call = self._command.again().ask(
            told, self._failed, until=self._until, undoes=True, as_eval=True, on_late=told
        )
        self._send(call, at_once=self._at_once)

    def _failed(self, fault: Fault) -> None:
        refused_for_now = fault.transient and (fault.lasting or not fault.unknown)
        if refused_for_now and self._loop.time() + self._pause < self._until:
            self._loop.call_later(self._pause, self.attempt, context=empty_context())
            self._pause = min(2 * self._pause, _PAUSE_MAXIMUM)


@final
class Proof:
    """One grant that counts when enough replicas have it. Ends exactly once, or its caller leaves.

    Args:
        owned: Asks whether the server has the lease.
        replicas: How many must have it.
        on_end: Told True when they have, False when the server does not know of the lease.
        on_fault: Told why it cannot be said.
        on_too_few: It does not wait for replicas that are not there: told how many are connected to the
            server, if these are too few and the server says so.

    Attributes:
        seen: How many had it when they were counted last.
        done: It has ended, or its caller has left.
    """

    __slots__ = ("_on_end", "_on_fault", "_on_too_few", "done", "owned", "replicas", "seen")

    def __init__(
        self,
        owned: Request[bool],
        replicas: int,
        on_end: Callable[[bool], None],
        on_fault: Callable[[Fault], None],
        on_too_few: Callable[[int], None] | None = None,
    ) -> None:
        self.owned = owned
        self.replicas = replicas
        self._on_end = on_end
        self._on_fault = on_fault
        self._on_too_few = on_too_few
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

    @property
    def waits(self) -> bool:
        """Whether it waits for replicas that are not connected yet."""
        return self._on_too_few is None

    def connected(self, number: int) -> None:
        """So many replicas are connected to the server."""
        if self._on_too_few is not None and number < self.replicas and not self.done:
            self.done = True
            self._on_too_few(number)


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

        Then no other part of the session needs to say so.
        """
        ...

    @property
    def commands_sent(self) -> int:
        """Number of requests sent so far, without the requests that set up a connection."""
        ...

    def send(self, call: Request[Any], *, at_once: bool = False, corked: bool = False) -> None:
        """Sends it, in order after earlier requests of the same lane.

        Calls of one turn of the loop leave together; `at_once` writes them now (for an undo, and for a
        release that no exit waits for, which may be the last thing that this process does); `corked` leaves
        it for the next call, which follows.
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
        """No waiter wants to hear of that key any more; it is heard again when a command names it."""
        ...

    def forget(self, call: Request[Any]) -> bool:
        """The caller has left: no callback but `on_late` is told how the call ended.

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
