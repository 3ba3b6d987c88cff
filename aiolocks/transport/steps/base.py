"""The steps that all kinds share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

from ..answers import FAR_BELL_TTL, NO_TTL, Answer, Kept, Refused, Released
from ..driver import FEW, head_of
from ..request import Argument, Heads, JoinableRelease, Request, Script
from .snapshots import of_nobody
from .standing import SEATED, WAITING, leave_letters, letters

if TYPE_CHECKING:
    from .family import Family
    from .listening import Listener
    from .snapshots import Holder
    from .waits import Wanted

SEAT_LENGTH: Final = 16
"""Characters of a token that tell the waiters of one session apart in a strict queue."""
NO_SEAT: Final = "0" * SEAT_LENGTH
_HANGS: Final = WAITING | SEATED
_MOST_TOLD: Final = 8
"""The most holders that a refusal tells of; where it tells of that number, there may be more."""

_Arguments: TypeAlias = "tuple[Argument, ...]"
_Packed: TypeAlias = "tuple[int, int, tuple[bytes, ...], _Arguments, _Arguments, bytes]"
"""An acquire that comes again: the ttl and the standing that it was made for, its keys, its arguments behind
the token and behind the metadata, and `Request.head`."""
_PackedRelease: TypeAlias = "tuple[int, Script | None, tuple[bytes, ...], _Arguments, bytes, Heads]"
"""A release that comes again: the ttl that it was made for, the script that lets the next waiter in as
well, or None, its keys, its arguments behind the token, `Request.head`, and `JoinableRelease.heads`."""
# What is made for the second time is packed: of a name that is used once, that would be in vain. Until then
# one of these stands there, of a ttl that no request has.
_NEVER: Final[_Packed] = -1, -1, (), (), (), b""
_ONCE: Final[_Packed] = -2, -1, (), (), (), b""
_NEVER_RELEASED: Final[_PackedRelease] = -1, None, (), (), b"", {}
_RELEASED_ONCE: Final[_PackedRelease] = -2, None, (), (), b"", {}


class _Belled(Protocol):
    @property
    def bell(self) -> bytes: ...


class NameSteps:
    """The steps of one name in one session, or of a part or a share of what stands under it.

    Every command is idempotent: sent again, it leaves the server as if it had been sent once.

    Args:
        retention_ms: For how long a fence is kept after its last use; at least ten times the ttl of that.
    """

    __slots__ = ("_retention_ms",)

    interval: tuple[float, float] | None = None
    """The ends of what is acquired, as users know them; None but for ranges."""
    names: Sequence[str] = ()
    """All names that it is of, where these are several."""
    hasty: float | None = None
    """Seconds after which a question without an answer ends its acquire, as a fault does; None: it waits."""

    def __init__(self, retention_ms: int) -> None:
        self._retention_ms = retention_ms

    @property
    def all_bells(self) -> tuple[bytes, ...]:
        """All its bells, where it waits in several places at once."""
        return (cast("_Belled", self).bell,)

    @property
    def lingers(self) -> float:
        """Seconds at most for which a waiter that is gone without a word stays in the way of other ones."""
        return FAR_BELL_TTL

    @property
    def nests(self) -> bool:
        """Whether an owner may have several tokens."""
        return False

    def owner(self, token: str) -> str:
        """The owner of that token: two tokens of one owner never exclude each other."""
        return token

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int = 0) -> Request[Answer]:
        """Takes it; a token that holds it already gets the same grant, with a new ttl.

        `standing` is a set of bits (`standing`): how the sender of the request stands to other waiters.
        """
        raise NotImplementedError

    def renew(self, token: str, ttl_ms: int) -> Request[Kept]:
        """Sets the ttl again if the token holds it; never creates."""
        raise NotImplementedError

    def renew_changed(self, token: str, ttl_ms: int) -> Request[Kept]:
        """As `renew`, where another client has changed its key a moment ago: puts nothing back there."""
        return self.renew(token, ttl_ms)

    def release(
        self, token: str, ttl_ms: int, *, ring: bool = True, leave: bool = False
    ) -> Request[Released]:
        """Lets go, if the token holds it. Also undoes an acquire whose caller has left.

        `ring` to wake the next in the queue, if it is free then; `leave` to leave the queue too.
        """
        raise NotImplementedError

    def adopt(self, old: str, new: str, ttl_ms: int, metadata: str) -> Request[int | None]:
        """Gives possession from one token to another; the fencing token, or None when neither holds it."""
        raise NotImplementedError

    def adopt_kept(
        self, old: str, new: str, ttl_ms: int, metadata: str, *, number: int
    ) -> Request[int | None]:
        """As `adopt`, of a lease whose fencing token is not the one in its key."""
        raise NotImplementedError

    def annotate(self, token: str, metadata: str) -> Request[bool]:
        """Changes what stands beside it if the token holds it; never creates, nor moves its end."""
        raise NotImplementedError

    def owned(self, token: str) -> Request[bool]:
        """Whether the token holds it."""
        raise NotImplementedError

    def locked(self) -> Request[bool]:
        """Whether a try now would be refused."""
        raise NotImplementedError

    # -- who holds what was refused

    def excluded_by(self, own: Sequence[tuple[NameSteps, str]], refused: Refused) -> bool:
        """Whether these possessions, steps with their token, exclude this for as long as they are held.

        The server has said so: a lease that this session takes for held may have been lost since.
        """
        holding = {token or lease.split(b":")[0] for token, _, lease in _each(refused)}
        return any(steps.owner(token).encode() in holding for steps, token in own)

    def holders(self, refused: Refused) -> list[Holder]:
        """The holders, as a refusal tells: some of them, where there are many."""
        return self._told_holders(refused)[0]

    def kept(self, refused: Refused) -> bool:
        """Whether a refusal tells of no holder, and `at_least` keeps the name."""
        held, kept = self._told_holders(refused)
        return kept and not held

    def _told_holders(self, refused: Refused) -> tuple[list[Holder], bool]:
        found = [holder for told in _each(refused) if (holder := self._holder(*told)) is not None]
        held = [holder for holder in found if not of_nobody(holder)]
        return held, len(held) < len(found)

    def _holder(self, token: bytes, left_ms: int, lease: bytes) -> Holder | None:
        raise NotImplementedError

    @property
    def freed_on(self) -> str:
        """Where it is freed by force, for messages; empty where that is clear."""
        return ""

    def endless(self, refused: Refused) -> str:
        """The name whose key has lost its ttl, as a refusal tells: nothing ends it. Empty where none has.

        Of kinds whose holders have deadlines inside of a key, none does.
        """
        return ""

    def new_token(self, old: str, fresh: str) -> str:
        """The token for the adopter from `old`, made of a fresh one; a new one where there is no old one."""
        return fresh

    def wanted(self) -> Wanted | None:
        """The holds that exclude it; None for a kind that takes no part in the search for deadlocks."""
        return None

    def settle(self, token: str, ttl_ms: int) -> Request[None] | None:
        """Takes back what was sent for the token and not answered, where it would create something later."""
        return None

    def watch(self, command: Request[Any]) -> None:
        """The server is to tell of what changes after this renewal, or question whether it is held."""
        command.track(command.keys[:1])

    def steal(self, token: str, ttl_ms: int, metadata: str) -> Request[Answer]:
        """Takes it from its holder; of the kinds that can be stolen."""
        raise NotImplementedError

    def release_at_least(self, token: str, ttl_ms: int, at_least_ms: int, *, ring: bool) -> Request[Released]:
        """Lets go, but the name stays taken for a while; of the kinds that have `at_least`."""
        raise NotImplementedError

    def listener(self, token: str) -> Listener | Request[int]:
        """Tells the waiter with that token when to ask; for the kinds that have waiters."""
        raise NotImplementedError

    def _retention(self, ttl_ms: int) -> int:
        least = 10 * ttl_ms
        return max(self._retention_ms, least)


class FamilySteps(NameSteps):
    """The steps of one name, as its family has them.

    Attributes:
        family: Its keys and steps.
        bell: The key that is deleted to wake a waiter.
        number: How many names are acquired at once.
    """

    __slots__ = ("_keys", "_packed", "_packed_before", "_packed_quiet", "_packed_ringing")

    family: Family
    number = 1

    _keys: tuple[bytes, ...]
    """The keys that each request names, or the first of them."""
    _values: tuple[Argument, ...] = ()
    """The arguments that it always has, as `Family.values` names them."""
    _strict = False
    """The waiters of a session stand in the queue one by one, each in its seat."""
    _lasts_ms = 0
    """For how long after a lease what else stays with it."""
    _joins = True
    """Its release may go in one request with the acquire of the next waiter."""
    _packed: _Packed
    """The last acquire: but for token and metadata, the next one is mostly the same."""
    _packed_before: _Packed
    """The one before, of another standing: where tasks wait, some come and some are woken, in turn."""
    _packed_quiet: _PackedRelease
    """The last release that wakes no waiter."""
    _packed_ringing: _PackedRelease
    """The last one that wakes a waiter."""

    def __init__(self, retention_ms: int) -> None:
        super().__init__(retention_ms)
        self._packed = self._packed_before = _NEVER
        self._packed_quiet = self._packed_ringing = _NEVER_RELEASED

    def _with_bell(self) -> tuple[bytes, ...]:
        """Its keys, and the bell, where only waiters name it."""
        return (*self._keys, cast("_Belled", self).bell)

    def _seat(self, token: str) -> str:
        return token[:SEAT_LENGTH] if self._strict else NO_SEAT

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int = 0) -> Request[Answer]:
        step = self.family.acquire
        packed: _Packed | None
        packed = self._packed
        if packed[1] != standing or packed[0] != ttl_ms:
            packed = self._packed_before
            if packed[1] != standing or packed[0] != ttl_ms:
                packed = None
        if packed is not None:
            _, _, keys, before, after, head = packed
            args = (token, *before, metadata, *after)
            request = Request(step.script, keys, args, self._answer if step.own else step.reads, lane=token)
            request.head = head
            return request
        args = step.pick(
            (  # noqa: RUF005 - for each request, and unpacking costs more
                token,
                ttl_ms,
                max(self._retention_ms, 10 * ttl_ms),
                metadata,
                letters(standing),
                token[:SEAT_LENGTH] if self._strict else NO_SEAT,
                self._lasts_ms + ttl_ms,
            )
            + self._values
        )
        keys = self._with_bell() if standing & _HANGS and step.bell_last else self._keys
        if self._packed is _NEVER:
            self._packed = _ONCE
        elif not self._strict and len(args) < FEW and step.words[0] == "token" and "metadata" in step.words:
            at = step.words.index("metadata")
            head = head_of(step.script, keys, args)
            if self._packed[1] != standing:
                self._packed_before = self._packed
            self._packed = ttl_ms, standing, keys, args[1:at], args[at + 1 :], head
        return Request(step.script, keys, args, self._answer if step.own else step.reads, lane=token)

    def _answer(self, raw: Any) -> Answer:
        """Reads the reply to an acquire, where that takes what the name knows."""
        raise NotImplementedError

    def steal(self, token: str, ttl_ms: int, metadata: str) -> Request[Answer]:
        step = self.family.steal
        args = step.pick((token, ttl_ms, self._retention(ttl_ms), metadata, *self._values))
        return Request(step.script, self._keys, args, step.reads, lane=token)

    def renew(self, token: str, ttl_ms: int) -> Request[Kept]:
        step = self.family.renew
        args = step.pick(
            (  # noqa: RUF005 - for each request, and unpacking costs more
                token,
                ttl_ms,
                max(self._retention_ms, 10 * ttl_ms),
                self._lasts_ms + ttl_ms,
                token[:SEAT_LENGTH] if self._strict else NO_SEAT,
            )
            + self._values
        )
        return Request(step.script, self._keys[: step.keys * self.number], args, step.reads, lane=token)

    def release(
        self, token: str, ttl_ms: int, *, ring: bool = True, leave: bool = False
    ) -> Request[Released]:
        family = self.family
        step = family.release
        packed = self._packed_ringing if ring else self._packed_quiet
        if packed[0] == ttl_ms and not leave:
            _, both, keys, behind, head, heads = packed
            args: tuple[Argument, ...] = (token, *behind)
            release: Request[Released]
            if both is None:
                release = Request(step.script, keys, args, step.reads, lane=token)
            else:
                release = JoinableRelease(
                    step.script,
                    keys,
                    args,
                    step.reads,
                    token=token,
                    acquire=family.acquire.script,
                    both=both,
                    heads=heads,
                )
            release.head = head
            return release
        last = step.bell_last
        args = step.pick(
            (  # noqa: RUF005 - for each request, and unpacking costs more
                token,
                max(self._retention_ms, 10 * ttl_ms),
                token[:SEAT_LENGTH] if self._strict else NO_SEAT,
                +ring if last else leave_letters(ring=ring, leave=leave),
            )
            + self._values
        )
        keys = self._with_bell() if leave and last else self._keys
        both = family.hand_over
        if leave or not self._joins or (ring and not family.hand_over_wakes):
            both = None
        if not leave and not self._strict and len(args) < FEW and step.words[0] == "token":
            if packed is _NEVER_RELEASED:
                packed = _RELEASED_ONCE
            else:
                packed = ttl_ms, both, keys, args[1:], head_of(step.script, keys, args), {}
            if ring:
                self._packed_ringing = packed
            else:
                self._packed_quiet = packed
        if both is None:
            return Request(step.script, keys, args, step.reads, lane=token)
        return JoinableRelease(
            step.script, keys, args, step.reads, token=token, acquire=family.acquire.script, both=both
        )

    def release_at_least(self, token: str, ttl_ms: int, at_least_ms: int, *, ring: bool) -> Request[Released]:
        """Lets go, but what it held stays taken, without a holder, until `at_least_ms` after the grant."""
        release = self.release(token, ttl_ms, ring=ring)
        return Request(release.script, release.keys, (*release.args, at_least_ms), release.parse, lane=token)

    def adopt(self, old: str, new: str, ttl_ms: int, metadata: str) -> Request[int | None]:
        step = self.family.adopt
        args = step.pick((old, new, ttl_ms, self._retention(ttl_ms), metadata, *self._values))
        # One lane for both directions: giving back follows what it gives back.
        return Request(
            step.script, self._keys[: step.keys * self.number], args, step.reads, lane=min(old, new)
        )

    def annotate(self, token: str, metadata: str) -> Request[bool]:
        step = self.family.annotate
        args = step.pick((token, metadata, *self._values))
        return Request(step.script, self._keys[: step.keys * self.number], args, step.reads, lane=token)

    def owned(self, token: str) -> Request[bool]:
        step = self.family.owned
        args = step.pick((token, *self._values))
        return Request(step.script, self._keys[: step.keys * self.number], args, step.reads, lane=token)

    def locked(self) -> Request[bool]:
        step = self.family.locked
        return Request(
            step.script, self._keys[: step.keys * self.number], step.pick(self._values), step.reads
        )


def _each(refused: Refused) -> Iterator[tuple[bytes, int, bytes]]:
    """Token, ms left and lease of each holder that a refusal tells of."""
    told = refused.told
    for at in range(2, len(told), 3):
        token, left_ms, lease = told[at : at + 3]
        if lease:
            yield token, left_ms, lease


def tells_no_end(refused: Refused) -> bool:
    """Whether the key of a holder that it tells of has no ttl."""
    return any(left_ms == NO_TTL for _, left_ms, _ in _each(refused))


def told_all(refused: Refused) -> bool:
    """Whether it tells of every token that is in the way."""
    return len(refused.told) < 2 + 3 * _MOST_TOLD


def tokens_told(refused: Refused) -> set[str]:
    """The tokens of the holders that it tells of, of kinds that keep the token apart from the lease."""
    return {token.decode(errors="replace") for token, _, _ in _each(refused)}
