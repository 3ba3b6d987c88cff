"""The commands that the core asks of a kind of lock, without knowing their contents."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from .._transport import Answer, Command, Kept, Listener, Refused, Released
from .backoff import SILENT

if TYPE_CHECKING:
    from .._transport import Script
    from .._transport.commands.families.snapshots import Holder
    from .._transport.commands.waits import Wanted


class Commands(Protocol):
    """One name in one session, or a part or a share of what stands under it.

    Every command is idempotent: sent again, it leaves the server as if it had been sent once.
    """

    @property
    def bell(self) -> bytes:
        """The key that is deleted to wake this session."""
        ...

    @property
    def all_bells(self) -> tuple[bytes, ...]:
        """All of them, where it waits in several places at once."""
        ...

    @property
    def lingers(self) -> float:
        """Seconds for which a waiter that is gone without a word stays in the way of others, at most."""
        ...

    @property
    def nests(self) -> bool:
        """Whether an owner may have several tokens."""
        ...

    def owner(self, token: str) -> str:
        """The owner of that token: two tokens of one owner never exclude each other."""
        ...

    def new_token(self, old: str, fresh: str) -> str:
        """The token for the adopter from `old`, made of a fresh one."""
        ...

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int) -> Command[Answer]:
        """Takes it; a token that holds it already gets the same grant, with a new ttl.

        `standing` is a set of bits, QUEUED to WAITING: how who asks stands to others who wait.
        """
        ...

    def watch(self, command: Command[Any]) -> None:
        """The server is to tell of what changes after this renewal, or question whether it is held."""
        ...

    def steal(self, token: str, ttl_ms: int, metadata: str) -> Command[Answer]:
        """Takes it from its holder; of the kinds that can be stolen."""
        ...

    def arm(self, token: str) -> Command[int]:
        """Takes a seat without asking, with a fresh bell; WAS_HANGING or WAS_RUNG if that is what it was."""
        ...

    def listener(self, token: str) -> Listener | Command[int]:
        """Tells the waiter with that token when to ask: a part of a request for many, or a request."""
        ...

    @property
    def renewed_by(self) -> Script | None:
        """The script that renews it, where that has a form for several; a renewal goes with others then."""
        ...

    def renew(self, token: str, ttl_ms: int) -> Command[Kept]:
        """Sets the ttl again if the token holds it; never creates."""
        ...

    def release(self, token: str, ttl_ms: int, *, ring: bool, leave: bool) -> Command[Released]:
        """Lets go, if the token holds it. Also undoes an acquire that nobody waits for.

        `ring` to wake the next in the queue, if it is free then; `leave` to leave the queue too.
        """
        ...

    def end(self, token: str, ttl_ms: int, at_least_ms: int, *, ring: bool) -> Command[Released]:
        """Lets go, but the name stays taken, by nobody, until `at_least_ms` after the grant."""
        ...

    def settle(self, token: str, ttl_ms: int) -> Command[None] | None:
        """Takes back what was sent for the token and not answered, where it would create something later."""
        ...

    def adopt(self, old: str, new: str, ttl_ms: int, metadata: str) -> Command[int | None]:
        """Gives possession from one token to another; the fencing token, or None when neither holds it."""
        ...

    def excluded_by(self, own: Sequence[tuple[Any, str]], refused: Refused) -> bool:
        """Whether these possessions, commands with their token, exclude it for as long as they are held.

        A refusal shows whether the server has them, too.
        """
        ...

    def holders(self, refused: Refused) -> list[Holder]:
        """The holders that a refusal tells of."""
        ...

    def wanted(self) -> Wanted | None:
        """The holds that exclude it; None for a kind that takes no part in the search for deadlocks."""
        ...

    def annotate(self, token: str, metadata: str) -> Command[bool]:
        """Changes what stands beside it if the token holds it; never creates, nor moves its end."""
        ...

    def owned(self, token: str) -> Command[bool]:
        """Whether the token holds it."""
        ...

    def locked(self) -> Command[bool]:
        """Whether a try now would be refused."""
        ...


@final
class Manner:
    """How those who want the same thing in one session stand to each other.

    Attributes:
        exclusive: One of them has it: while it is held here nobody asks.
        eager: A release hands over to the next waiter of this session: the waiter's request follows right
            after the release.
        strict: First come, first served over all sessions: each waiter has a seat of its own in the queue.
        together: They enter at the same time, once one of them has.
        silence: Seconds after which a waiter asks although it is told when it may enter: a refusal for
            another reason is not told.
    """

    __slots__ = ("eager", "exclusive", "silence", "strict", "together")

    def __init__(
        self,
        *,
        exclusive: bool = False,
        eager: bool = False,
        strict: bool = False,
        together: bool = False,
        silence: float = SILENT,
    ) -> None:
        self.silence = silence
        self.exclusive = exclusive
        self.eager = eager
        self.strict = strict
        self.together = together

    @property
    def quiet(self) -> bool:
        """Whether a hand-over within this session need not be known elsewhere."""
        return self.eager and not self.strict

    @property
    def stays(self) -> bool:
        """Whether its place in the queue is kept for the next waiters of this session."""
        return self.strict or self.together


SIMPLE: Final = Manner(exclusive=True, eager=True)


@final
class Resource:
    """The thing that a lock describes, in one session.

    Attributes:
        commands: How it is asked for.
        gate_key: Those of one gate key stand in one queue here.
        manner: How they stand to each other.
    """

    __slots__ = ("commands", "gate_key", "manner")

    def __init__(self, commands: Commands, gate_key: Hashable, manner: Manner = SIMPLE) -> None:
        self.commands = commands
        self.gate_key = gate_key
        self.manner = manner


@final
class Claim:
    """One possession under its token, wished for or had.

    Args:
        at_least_ms: For how long after its grant the name stays taken, though its holder has ended.
        seized: It is taken from its holder; called with each answer, also a late one to a caller that left.
    """

    __slots__ = ("_commands", "_metadata", "_seized", "_ttl_ms", "at_least_ms", "token")

    def __init__(
        self,
        commands: Commands,
        token: str,
        metadata: str,
        ttl_ms: int,
        *,
        at_least_ms: int = 0,
        seized: Callable[[Claim, Answer], Answer] | None = None,
    ) -> None:
        self._seized = seized
        self._commands = commands
        self._metadata = metadata
        self._ttl_ms = ttl_ms  # the ttl of the last request
        self.at_least_ms = at_least_ms
        self.token = token

    @property
    def owner(self) -> str:
        return self._commands.owner(self.token)

    @property
    def nests(self) -> bool:
        return self._commands.nests

    @property
    def metadata(self) -> str:
        """The metadata of the lease, as JSON."""
        return self._metadata

    def excluded_by(self, own: Sequence[Claim], refused: Refused) -> bool:
        """Whether these possessions exclude it for as long as they are held, as a refusal shows."""
        theirs = [(claim._commands, claim.token) for claim in own]  # noqa: SLF001 - its own class
        return self._commands.excluded_by(theirs, refused)

    def holders(self, refused: Refused) -> list[Holder]:
        return self._commands.holders(refused)

    def wanted(self) -> Wanted | None:
        return self._commands.wanted()

    def acquire(self, ttl_ms: int, standing: int = 0) -> Command[Answer]:
        self._ttl_ms = ttl_ms
        if self._seized is not None:
            return self._seizing(self._seized, ttl_ms)
        return self._commands.acquire(self.token, ttl_ms, self._metadata, standing)

    def _seizing(self, seized: Callable[[Claim, Answer], Answer], ttl_ms: int) -> Command[Answer]:
        command = self._commands.steal(self.token, ttl_ms, self._metadata)
        read = command.parse

        def parse(raw: Any) -> Answer:
            return seized(self, read(raw))

        command.parse = parse
        return command

    def arm(self) -> Command[int]:
        return self._commands.arm(self.token)

    def listener(self) -> Listener | Command[int]:
        return self._commands.listener(self.token)

    @property
    def renewed_by(self) -> Script | None:
        return self._commands.renewed_by

    def renew(self, ttl_ms: int, *, watch: bool = False) -> Command[Kept]:
        """`watch`: the server is to tell of what changes after it."""
        self._ttl_ms = ttl_ms
        command = self._commands.renew(self.token, ttl_ms)
        if watch:
            self._commands.watch(command)
        return command

    def release(self, *, ring: bool = True, leave: bool = False) -> Command[Released]:
        """Takes back a grant at once: nothing was run under it."""
        return self._commands.release(self.token, self._ttl_ms, ring=ring, leave=leave)

    def end(self, *, ring: bool = True) -> Command[Released]:
        """Lets go after something was run under it."""
        if not self.at_least_ms:
            return self.release(ring=ring)
        return self._commands.end(self.token, self._ttl_ms, self.at_least_ms, ring=ring)

    def settle(self) -> Command[None] | None:
        """Before it is handed over: nothing may be created for its token any more. None if nothing can be."""
        return self._commands.settle(self.token, self._ttl_ms)

    def annotate(self, fields: Mapping[str, Any]) -> Command[bool]:
        """Changes these fields of what stands beside it; the others stay."""
        self._metadata = json.dumps({**json.loads(self._metadata), **fields}, separators=(",", ":"))
        return self._commands.annotate(self.token, self._metadata)

    def owned(self, *, watch: bool = False) -> Command[bool]:
        """`watch`: as of a renewal."""
        command = self._commands.owned(self.token)
        if watch:
            self._commands.watch(command)
        return command
