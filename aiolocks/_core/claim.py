"""What the core asks of a kind of lock: the commands of one possession, without knowing what is in them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from .._transport import Answer, Command, Released


class Claim(Protocol):
    """One possession under its token, wished for or had.

    Every command is idempotent: sent again, it leaves the server as if it had been sent once.
    """

    @property
    def token(self) -> str: ...

    def acquire(self, ttl_ms: int, *, queued: bool, in_turn: bool) -> Command[Answer]:
        """Takes it; for the token that holds already, the same grant with its ttl set anew.

        `queued` if this session stands in the queue, which it leaves when it gets in; `in_turn` to take it
        only if nobody stands there before this session.
        """
        ...

    def renew(self, ttl_ms: int) -> Command[bool]:
        """Sets the ttl anew if the token holds it; never creates."""
        ...

    def release(self, *, ring: bool = True, leave: bool = False) -> Command[Released]:
        """Lets go, if the token holds it. Also undoes an acquire that nobody waits for.

        `ring` to wake who is next in the queue, if it is free then; `leave` to leave the queue too.
        """
        ...

    def owned(self) -> Command[bool]:
        """Whether the token holds it."""
        ...


class Resource(Protocol):
    """One name in one session: where its claims come from."""

    @property
    def gate_key(self) -> Hashable:
        """Claims of one gate key exclude each other."""
        ...

    @property
    def bell(self) -> bytes:
        """The key that is deleted to wake this session."""
        ...

    def arm(self, lane: str) -> Command[bool]:
        """Stands in the queue from now on, with a fresh bell; whether the last one was still there."""
        ...

    def claim(self, token: str, metadata: str) -> Claim: ...

    def locked(self) -> Command[bool]:
        """Whether a try now would be refused."""
        ...

    def adopt(self, old: str, new: str, ttl_ms: int, metadata: str) -> Command[int | None]:
        """Gives possession from one token to another; the fencing token, or None when neither holds it."""
        ...
