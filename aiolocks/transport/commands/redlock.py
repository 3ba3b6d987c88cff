"""The steps of a lock that a majority of several masters holds: at each of them, those of the simple lock."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar, final

from ..answers import Answer, Kept, Refused, Released, truth
from ..quorum.acquiring import Acquiring
from ..quorum.keeping import Adopting, Carried, Renewing
from ..quorum.operations import Freeing, Listening, QuorumOperation, Voting
from ..quorum.quorum_commands import QuorumCommand, Settling
from ..request import Command, Script
from .base import NameCommands
from .listening import listening
from .lock import LockCommands
from .standing import SEATED, STAYING, WAITING

T = TypeVar("T")

_KIND: Final = "redlock"
_SEAL: Final = Script("redlock_seal")
_CARRIED: Final = re.compile(rb"(?P<token>[0-9a-f]+):(?P<fencing>\d+):(?P<metadata>.*)", re.DOTALL)


@final
class RedlockCommands(NameCommands):
    """The steps of one Redlock under its name.

    Args, besides those of a simple lock:
        node_timeout: Seconds within which one master has to answer.
    """

    __slots__ = ("_held", "_lock", "_node_timeout", "_one")

    def __init__(
        self, prefix: str, name: str, *, retention_ms: int, session: str, node_timeout: float
    ) -> None:
        super().__init__(retention_ms)
        self._one = LockCommands(prefix, name, retention_ms=retention_ms, session=session, kind=_KIND)
        self._lock = self._one.locked().keys
        self._held = self._one.renew("", 0).keys
        self._node_timeout = node_timeout

    @property
    def bell(self) -> bytes:
        return self._one.bell

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int = 0) -> Command[Answer]:
        # A vote is no lease yet: the place in the queue is left with the confirmation.
        acquire = self._one.acquire(token, ttl_ms, metadata, standing | STAYING)
        queued = bool(standing & SEATED)
        put = partial(
            Acquiring,
            vote=acquire,
            confirm=partial(self._confirm, acquire.keys if queued else self._held, token, ttl_ms),
            undo=self._one.release(token, ttl_ms, ring=False),
            leave=self._leave(token, ttl_ms) if queued or standing & WAITING else None,
            queued=queued,
        )
        return QuorumCommand(
            put, acquire, node_timeout=self._node_timeout, elects=True, lasts=ttl_ms / 1000, lane=token
        )

    @property
    def freed_on(self) -> str:
        return " on a majority of the masters"

    def endless(self, refused: Refused) -> str:
        return self._one.endless(refused)

    def listener(self, token: str) -> Command[int]:
        listen = listening([self._one.listener(token)])
        return QuorumCommand(partial(Listening, vote=listen), listen, node_timeout=self._node_timeout)

    def renew(self, token: str, ttl_ms: int) -> Command[Kept]:
        return self._renew(token, ttl_ms, heals=True)

    def renew_changed(self, token: str, ttl_ms: int) -> Command[Kept]:
        # An operator may be about to free it on a majority of masters, one after the other.
        return self._renew(token, ttl_ms, heals=False)

    def _renew(self, token: str, ttl_ms: int, *, heals: bool) -> Command[Kept]:
        renew: Command[Any] = self._one.renew(token, ttl_ms)  # a thief is told of by no majority
        put = partial(
            Renewing,
            heals=heals,
            vote=renew,
            look=Command(None, self._lock, ("GET", *self._lock), partial(_carried, token), lane=token),
            take=partial(self._one.acquire, token, ttl_ms),
            confirm=partial(self._confirm, self._held, token, ttl_ms),
        )
        command: Command[Any] = QuorumCommand(put, renew, node_timeout=self._node_timeout, lane=token)
        return command

    def watch(self, command: Command[Any]) -> None:
        assert isinstance(command, QuorumCommand)
        command.watched = command.like.watched = command.keys[:1]

    def release(
        self, token: str, ttl_ms: int, *, ring: bool = True, leave: bool = False
    ) -> Command[Released]:
        # A master that does not answer has until the lease's own end, in the background: a majority is enough
        # to go on.
        release = self._one.release(token, ttl_ms, ring=ring, leave=leave)
        return QuorumCommand(partial(Freeing, vote=release), release, node_timeout=None, lane=token)

    def settle(self, token: str, ttl_ms: int) -> Command[None]:
        owned, undo = self._one.owned(token), self._one.release(token, ttl_ms, ring=False)
        return Settling(owned, undo, lasts=ttl_ms / 1000)

    def adopt(self, old: str, new: str, ttl_ms: int, metadata: str) -> Command[int | None]:
        adopt, back = self._swap(old, new, ttl_ms, metadata), self._swap(new, old, ttl_ms, metadata)
        # In the lane of the giver: requests of the heir go after this, and do not take its place.
        return self._question(partial(Adopting, vote=adopt, undo=back), adopt, lane=old, lasts=ttl_ms / 1000)

    def annotate(self, token: str, metadata: str) -> Command[bool]:
        annotate = self._one.annotate(token, metadata)
        return self._question(partial(Voting, vote=annotate), annotate)

    def owned(self, token: str) -> Command[bool]:
        owned = self._one.owned(token)
        return self._question(partial(Voting, vote=owned), owned)

    def locked(self) -> Command[bool]:
        locked = self._one.locked()
        return self._question(partial(Voting, vote=locked), locked)

    def _question(
        self,
        put: Callable[[Sequence[str]], QuorumOperation[T]],
        like: Command[Any],
        *,
        lane: str = "",
        lasts: float = 0.0,
    ) -> QuorumCommand[T]:
        """A question that uses up no lease time: a master that hangs is waited for if a majority needs it."""
        return QuorumCommand(put, like, node_timeout=None, lane=lane, lasts=lasts)

    def _confirm(
        self, keys: tuple[bytes, ...], token: str, ttl_ms: int, fencing_token: int, *, given: bool = False
    ) -> Command[bool]:
        args = (token, fencing_token, self._retention(ttl_ms), int(given))
        return Command(_SEAL, keys, args, truth, lane=token)

    def _leave(self, token: str, ttl_ms: int) -> Command[Released]:
        """Frees nothing: a master that grants after all others must keep the lease."""
        like = self._one.release("", ttl_ms, ring=False, leave=True)
        return Command(like.script, like.keys, like.args, like.parse, lane=token)

    def _swap(self, old: str, new: str, ttl_ms: int, metadata: str) -> Command[Carried | None]:
        like = self._one.adopt(old, new, ttl_ms, metadata)
        return Command(like.script, like.keys, like.args, _adopted, lane=like.lane)


def _adopted(raw: Any) -> Carried | None:
    """Reads the fencing token as it stands on the master; empty when neither token is there."""
    return Carried(int(raw), raw.startswith(b"0"), "") if raw else None


def _carried(token: str, raw: Any) -> Carried | None:
    """Reads a lock key, if it is that token's."""
    found = _CARRIED.match(raw or b"")
    if found is None or found["token"].decode() != token:
        return None
    return Carried(
        int(found["fencing"]), found["fencing"].startswith(b"0"), found["metadata"].decode(errors="replace")
    )
