"""The answers of the scripts of all kinds, and how their replies read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack, final

if TYPE_CHECKING:
    from ..errors import LockError

BELL_TTL: Final = 2.0
"""Seconds after which a bell is gone that is not hung up again: its waiter is dead."""
BELL_TTL_MS: Final = int(BELL_TTL * 1000)
FAR_BELL_TTL: Final = 5.0
"""The same of a waiter that stands far from the front of the queue."""
FAR_BELL_TTL_MS: Final = int(FAR_BELL_TTL * 1000)
QUEUE_TTL_MS: Final = 10_000
NO_TTL: Final = -1
"""The ms that a key without a ttl has left, as the server says."""

ASKED: Final = -5
"""Instead of the ms that a holder has left: see `Refused.asked`."""

NO_END, ASK, BELL_RUNG, GONE, NOT_OURS = range(-1, -6, -1)
"""The answers to a waiter that listens, instead of the ms until a lease ends that may be in its way."""


class _Told(TypedDict, total=False):
    """What few grants tell."""

    room: int
    depth: int
    rung: Sequence[bytes]
    lost: bytes


class Granted:
    """The server gave it to the token.

    Attributes:
        others: How many other waiters stand in the queue, dead ones among them.
        room: How many more of the same may be let in at once; see also `may_be_kept`.
        depth: How many leases its owner has by now.
        rung: The bells of the waiters that were woken, if any.
        lost: The lease that it was taken from by force, as `Stolen.thief`; empty where it was free.
        sent, ahead: When its request was sent, and how far the loop's clock was behind when it came, as
            `Engine.timed` has it; its acquire notes that.
    """

    # No dataclasses in this module: the answers are made for each request, and many at import. Most grants
    # differ from these values in nothing: so the class has them.
    depth = 1
    lost = b""
    room = 0
    rung: Sequence[bytes] = ()
    sent: float
    ahead: float

    def __init__(self, fencing_token: int, others: int, **told: Unpack[_Told]) -> None:
        self.fencing_token = fencing_token
        self.others = others
        if told:
            vars(self).update(told)

    @property
    def may_be_kept(self) -> bool:
        """Of a `Lock`: its session may keep it between uses. Its script has that in the place of `room`."""
        return self.room > 0


@final
class Vote(Granted):
    """One of several masters gave it to the token.

    Attributes:
        sealed: The fencing token is the one that was proposed with the request, or was written back.
        clock: The master's time, microseconds; 0: not told.
    """

    def __init__(self, fencing_token: int, others: int, *, sealed: bool = False, clock: int = 0) -> None:
        super().__init__(fencing_token, others)
        self.sealed = sealed
        self.clock = clock


@final
class Refused:
    """It cannot be had now.

    Attributes:
        remaining_ms: Milliseconds that the lease has left which ends first; None when it has no end, or when
            other waiters go first.
        rung: The bells of the waiters that were woken, if any.
        error: Why there is nothing to wait for, and the asker is not in the queue any more; else None.
        detail: Further details, for people; where several servers were asked, the answer of each.
        told: The holders, where they were asked for and are known: the server's time in microseconds, how
            many permits there are, and of some holders token, ms left and lease, one after the other. Read by
            the commands that were refused (`holders`, `endless`).
        lasting: No release ends it.
        first: The seat that goes first, where it is one of this session but not the asker's; else empty.
        full: Of several limits, the one that is full, and its cap; None where other waiters go first.
        asked: A session keeps it between its uses, and was asked to let go: its answer is worth waiting
            for. Only of single tries before which no waiter stands.
        reserved: Other waiters go first, one of which waits for readers alone.
        seated: An asker that will wait has a seat, and a bell that hangs: if the bell is gone when the asker
            listens, it was rung. Of several servers, on a majority.
        heard: Loop time at which it came, as an asker notes; infinity: unknown.
    """

    # As of `Granted`: what few refusals tell.
    asked = False
    first = ""
    full: tuple[str, int] | None = None
    heard = math.inf
    lasting = False
    reserved = False

    def __init__(
        self,
        remaining_ms: int | None,
        rung: Sequence[bytes] = (),
        *,
        error: LockError | None = None,
        detail: str = "",
        told: Sequence[Any] = (),
        seated: bool = True,
    ) -> None:
        self.remaining_ms = remaining_ms
        self.rung = rung
        self.error = error
        self.detail = detail
        self.told = told
        self.seated = seated


Answer = Granted | Refused


@final
class Released:
    """The state that a release found, and its effect.

    Attributes:
        freed: The token did hold it.
        rung: The bells of the waiters that were woken, if any.
        thief: The lease that has taken its place by force, as `Stolen.thief`; empty where none is known.
    """

    __slots__ = ("freed", "rung", "thief")

    def __init__(self, *, freed: bool, rung: Sequence[bytes], thief: bytes = b"") -> None:
        self.freed = freed
        self.rung = rung
        self.thief = thief


@final
class Stolen:
    """The token does not hold it any more, and another one has taken its place by force.

    Attributes:
        thief: The lease that has taken it: 'token:fencing token:metadata'.
    """

    __slots__ = ("thief",)

    def __init__(self, thief: bytes) -> None:
        self.thief = thief

    def __bool__(self) -> bool:
        """Whether the token holds it."""
        return False


Kept = bool | Stolen
"""Whether the token holds it, as a renewal answers."""


def kept(raw: Any) -> Kept:
    return Stolen(raw) if isinstance(raw, bytes) else bool(raw)


def stolen(raw: Any) -> Answer:
    """Reads `{1, fencing token, others, the lease that it was taken from[, bell …]}`."""
    return Granted(int(raw[1]), raw[2], lost=raw[3], rung=raw[4:])


def truth(raw: Any) -> bool:
    return bool(raw)


def answer(raw: Any) -> Answer:
    """Reads `{1, fencing token, others[, room, bell …]}` or `{0, remaining ms[, {who holds}][, bell …]}`."""
    if not raw[0]:
        told, rung = (raw[2], raw[3:]) if len(raw) > 2 and isinstance(raw[2], list) else ((), raw[2:])
        refused = Refused(None if raw[1] < 0 else raw[1], rung, told=told)
        refused.asked = raw[1] == ASKED
        return refused
    if len(raw) == 3:
        return Granted(int(raw[1]), raw[2])
    return Granted(int(raw[1]), raw[2], room=raw[3], rung=raw[4:])


def vote(raw: Any) -> Answer:
    """Reads `{1, fencing token, others[, the server's time]}`, or what `answer` reads of a refusal."""
    if not raw[0]:
        return answer(raw)
    number: bytes = raw[1]
    clock = int(raw[3]) if len(raw) > 3 else 0
    return Vote(int(number), raw[2], sealed=number[:1] == b"0", clock=clock)


FREED_ALONE: Final = Released(freed=True, rung=())
"""The most frequent answer, which is the same for all."""


def released(raw: Any) -> Released:
    """Reads `{how many were freed, or the lease that has taken its place[, bell …]}`."""
    if len(raw) == 1 and raw[0] == 1:
        return FREED_ALONE
    thief = raw[0] if isinstance(raw[0], bytes) else b""
    return Released(freed=not thief and raw[0] > 0, rung=raw[1:], thief=thief)


def fencing_token(raw: Any) -> int | None:
    return int(raw) if raw else None


def fields(text: bytes, assign: bytes = b":", separator: bytes | None = b"\r\n") -> dict[bytes, bytes]:
    """The names and values that a server lists, as INFO does."""
    pairs = (part.partition(assign) for part in text.split(separator))
    return {name: value for name, found, value in pairs if found}
