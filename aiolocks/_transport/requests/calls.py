"""Commands, which are scripts with keys and arguments, and calls, which are commands under way."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

from ...errors import ConfigurationError, LockError, LockLostError
from ..faults import Fault, unreadable
from .scripts import Script

if TYPE_CHECKING:
    from .answers import Released

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
    __slots__ = ("args", "bells", "keys", "lane", "parse", "script", "watched")

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
        self.bells = bells
        self.watched: tuple[bytes, ...] = ()

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

    def __init__(self, release: Command[Released], token: str, acquire: Script, both: Script) -> None:
        super().__init__(release.script, release.keys, release.args, release.parse, lane=release.lane)
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

    __slots__ = (
        "_make",
        "alone",
        "as_eval",
        "command",
        "done",
        "elsewhere",
        "ended_by",
        "mid_move",
        "on_fault",
        "on_late",
        "on_reply",
        "patient",
        "rider",
        "sent",
        "sent_steady",
        "unconfirmed",
        "undoes",
        "until",
        "written",
    )

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
        self._make = make
        self.on_late = on_late
        self.ended_by: Fault | None = None
        self.on_reply = on_reply
        self.on_fault = on_fault
        self.until = until  # loop time after which nobody wants the reply
        self.undoes = undoes
        self.patient = patient
        self.as_eval = as_eval
        self.sent = 0.0  # loop time right before it was last written
        self.sent_steady = math.inf  # the same by `clocks.steady`, read first; infinity: unknown
        self.written = False  # the server may have it, or have had it
        self.unconfirmed = False  # it was sent before, and all or a part of it may have been executed already
        self.elsewhere = False  # a node has it that does not serve its slot, for this request only
        self.mid_move = False  # it was refused because its slot moves, and is sent in the form for that
        self.done = False
        self.rider: Call[Any] | None = None  # the call that went in the same request, and has the next reply
        self.alone = False  # it is not to go in one request with another one

    @property
    def made_at_write(self) -> bool:
        """Whether its command depends on when it is written."""
        return self._make is not None

    def words(self) -> Words:
        """The words of the request, as they are right now: it may have waited for a connection."""
        command = self.as_of_now()
        return command.words_mid_move() if self.mid_move else command.words(as_eval=self.as_eval)

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
        if self._make is not None:
            self.command = self._make()
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
