"""The commands that the core asks of a kind of lock, without knowing their contents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from .._transport import Answer, Command, Kept, Listener, Refused, Released

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

        `standing` is a set of bits, QUEUED to WAITING: how the sender of the request stands to other waiters.
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

    def renew_changed(self, token: str, ttl_ms: int) -> Command[Kept]:
        """As `renew`, where another client has changed its key a moment ago: puts nothing back there."""
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
