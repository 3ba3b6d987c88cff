"""A lock as one session asks for it: how its tasks queue, and the possession that a token stands for."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from ..transport import Answer, Command, Kept, Listener, Refused, Released
from ..transport.commands.base import NameSteps
from .backoff import SILENT

if TYPE_CHECKING:
    from ..transport.commands.waits import Wanted


@final
@dataclass(slots=True, kw_only=True, eq=False)
class QueuePolicy:
    """How waiters of one session share a lock.

    Attributes:
        exclusive: One of them has it: while it is held here nobody asks.
        strict: First come, first served over all sessions: each waiter has a seat of its own in the queue.
        quiet: A hand-over within this session need not be known elsewhere: the release wakes nobody, and the
            request of the next waiter of this session, which follows right after it, does so if it is
            refused.
        together: They enter at the same time, once one of them has. Else a release hands over to the next
            waiter of this session: the waiter's request follows right after the release.
        silence: Seconds after which a waiter asks although it is told when it may enter: a refusal for
            another reason is not told.
    """

    exclusive: bool = False
    strict: bool = False
    together: bool = False
    quiet: bool = False
    silence: float = SILENT

    @property
    def yields(self) -> bool:
        """Whether waiters of this session let one go first that they have woken elsewhere.

        In a strict queue the server sees to that.
        """
        return self.quiet and not self.strict

    @property
    def stays(self) -> bool:
        """Whether its place in the queue is kept for the next waiters of this session."""
        return self.strict or self.together


SIMPLE: Final = QueuePolicy(exclusive=True, quiet=True)


@final
class Resource:
    """The thing that a lock describes, in one session.

    Attributes:
        commands: How it is asked for.
        gate_key: Those of one gate key stand in one queue here.
        policy: How they stand to each other.
    """

    __slots__ = ("commands", "gate_key", "policy")

    def __init__(self, commands: NameSteps, gate_key: Hashable, policy: QueuePolicy = SIMPLE) -> None:
        self.commands = commands
        self.gate_key = gate_key
        self.policy = policy


class Claim:
    """One possession under its token, wished for or had.

    Args:
        metadata: The metadata of the lease, as JSON.
        at_least_ms: For how long after its grant the name stays taken, though its holder has ended.
        seized: It is taken from its holder; called with each answer, also a late one to a caller that left.
    """

    __slots__ = ("_seized", "_ttl_ms", "at_least_ms", "commands", "metadata", "token")

    @property
    def given(self) -> int:
        """The fencing token of the lease, where the server has another one for it; else 0."""
        return 0

    def __init__(
        self,
        commands: NameSteps,
        token: str,
        metadata: str,
        ttl_ms: int,
        *,
        at_least_ms: int = 0,
        seized: Callable[[Claim, Answer], Answer] | None = None,
    ) -> None:
        self._seized = seized
        self.commands = commands
        self.metadata = metadata
        self._ttl_ms = ttl_ms  # the ttl of the last request
        self.at_least_ms = at_least_ms
        self.token = token

    @property
    def owner(self) -> str:
        return self.commands.owner(self.token)

    @property
    def nests(self) -> bool:
        return self.commands.nests

    def excluded_by(self, own: Sequence[Claim], refused: Refused) -> bool:
        """Whether these possessions exclude it for as long as they are held, as a refusal shows."""
        theirs = [(claim.commands, claim.token) for claim in own]
        return self.commands.excluded_by(theirs, refused)

    def endless(self, refused: Refused | None, prefix: str) -> str:
        """That a key has lost its ttl, and what frees it, if a refusal tells of that; else empty."""
        name = "" if refused is None else self.commands.endless(refused)
        if not name:
            return ""
        from .._holders import without_ttl  # noqa: PLC0415 - rare, and an import takes its time

        return without_ttl(name, prefix, self.commands.freed_on)

    def wanted(self) -> Wanted | None:
        return self.commands.wanted()

    def acquire(self, ttl_ms: int, standing: int = 0) -> Command[Answer]:
        self._ttl_ms = ttl_ms
        if self._seized is not None:
            return self._seizing(self._seized, ttl_ms)
        return self.commands.acquire(self.token, ttl_ms, self.metadata, standing)

    def _seizing(self, seized: Callable[[Claim, Answer], Answer], ttl_ms: int) -> Command[Answer]:
        command = self.commands.steal(self.token, ttl_ms, self.metadata)
        read = command.parse

        def parse(raw: Any) -> Answer:
            return seized(self, read(raw))

        command.parse = parse
        return command

    def listener(self) -> Listener | Command[int]:
        return self.commands.listener(self.token)

    def renew(self, ttl_ms: int, *, watch: bool = False, changed: bool = False) -> Command[Kept]:
        """`watch`: the server is to tell of what changes after it; `changed`: it has told just now."""
        self._ttl_ms = ttl_ms
        renew = self.commands.renew_changed if changed else self.commands.renew
        command = renew(self.token, ttl_ms)
        if watch:
            self.commands.watch(command)
        return command

    def release(self, *, ring: bool = True, leave: bool = False) -> Command[Released]:
        """Takes back a grant at once: nothing was run under it."""
        return self.commands.release(self.token, self._ttl_ms, ring=ring, leave=leave)

    def end(self, *, ring: bool = True) -> Command[Released]:
        """Lets go after something was run under it."""
        if not self.at_least_ms:
            return self.release(ring=ring)
        return self.commands.end(self.token, self._ttl_ms, self.at_least_ms, ring=ring)

    def settle(self) -> Command[None] | None:
        """Before it is handed over: nothing may be created for its token any more. None if nothing can be."""
        return self.commands.settle(self.token, self._ttl_ms)

    def annotate(self, fields: Mapping[str, Any]) -> Command[bool]:
        """Changes these fields of what stands beside it; the others stay."""
        self.metadata = json.dumps({**json.loads(self.metadata), **fields}, separators=(",", ":"))
        return self.commands.annotate(self.token, self.metadata)

    def owned(self, *, watch: bool = False) -> Command[bool]:
        """`watch`: as of a renewal."""
        command = self.commands.owned(self.token)
        if watch:
            self.commands.watch(command)
        return command
