"""The state of one name on the server, as it was read."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self, final

_OF_NOBODY: Final = re.compile(r"0{32}[0-9a-f]+")
"""The token under which the scripts keep a name without a holder: zeros, then the last holder's token."""
NOTHING: Final = "none"


@final
class Content(NamedTuple):
    """The content of one key.

    Attributes:
        type: As the server calls it; `none` where there is nothing.
        ttl_ms: Milliseconds that it has left; negative where it has no end.
        value: Of a string, itself; of a hash, its fields; of a sorted set, its members by their scores.
    """

    type: str
    ttl_ms: int
    value: Any

    @classmethod
    def of(cls, type: bytes, ttl_ms: int, content: Any) -> Self:  # noqa: A002 - the server's word
        if isinstance(content, list):
            content = dict(zip(content[::2], content[1::2], strict=True))
        return cls(type.decode(), ttl_ms, content)

    def __bool__(self) -> bool:
        return self.type != NOTHING


NO_CONTENT: Final = Content(NOTHING, -2, b"")


@final
class Holder(NamedTuple):
    """A holder; a field that is not known, or is not of this kind, is None.

    Attributes:
        tokens: The secrets of its possession; the first is the one by which the lease is known.
        left_ms: Milliseconds that its lease has left.
        permits: The number of permits that it holds.
        depth: The number of its leases, one in the other.
        mode: `reader`, `upgradable` or `writer`; `ticket` of one that owns the key of a job.
        span: The closed interval that it holds.
        keys: Of limits, the keys of which it holds a permit, each with its cap.
    """

    tokens: tuple[str, ...]
    fencing_token: int | None
    left_ms: int | None
    metadata: bytes = b""
    permits: int | None = None
    depth: int | None = None
    mode: str | None = None
    span: tuple[float, float] | None = None
    keys: tuple[tuple[str, int], ...] | None = None


@final
class Place(NamedTuple):
    """A writer or an upgradable that waits, and keeps out what comes after it.

    Attributes:
        bell: Of its session.
        until_ms: When it counts no more, unless its session says again that it waits.
        span: The closed interval that it wants.
        under: The token of the upgradable that will be upgraded; or empty.
        mode: `w` or `u`.
        asked: The server's time when it asked first, in microseconds; infinite where that is not known.
        reserved: It keeps out readers, too.
    """

    bell: bytes
    until_ms: int
    span: tuple[float, float]
    under: str
    mode: str = "w"
    asked: float = math.inf
    reserved: bool = True


@final
class QueuedWaiter(NamedTuple):
    """One place in a queue.

    Attributes:
        since_us: The server's time when it was taken; None where that cannot be read.
        card: Host and process of the session, JSON; empty where it has written none.
    """

    since_us: int | None
    card: bytes


@final
class Snapshot(NamedTuple):
    """The state of one name on the server.

    Attributes:
        now_us: The server's time, microseconds.
        value: Of a semaphore, how many permits there are; of a turnstile, how many have gone through;
            of a rate limit, how many requests it would admit at once; of a latch, how many steps
            are left; of a combiner, how many items wait.
        stands: There is something, with any holder or none.
        problems: The faults that were found, each in words.
        endless: The key that says who holds it has lost its ttl: nothing ends it.
        waiters: How many wait and live.
        first_waiters: The first of them, as many as were asked for.
        ticket: Of a job, the ticket that owns its key, as it stands there.
        kept: The last holder of a name that is kept for its `at_least`: no token holds it or gets it.
        places: Of writers and upgradables that wait.
        taken_us: Of a rate limit that admits no request now, microseconds until it would admit one, behind
            all that wait; else None.
    """

    now_us: int
    holders: tuple[Holder, ...] = ()
    value: int | None = None
    stands: bool = False
    problems: tuple[str, ...] = ()
    waiters: int = 0
    first_waiters: tuple[QueuedWaiter, ...] = ()
    ticket: bytes = b""
    kept: Holder | None = None
    places: tuple[Place, ...] = ()
    endless: bool = False
    taken_us: float | None = None

    @property
    def grants(self) -> tuple[Holder, ...]:
        """The holders, and the one that was."""
        return self.holders if self.kept is None else (*self.holders, self.kept)

    def with_problems(self, problems: tuple[str, ...]) -> Snapshot:
        """The same, with what else is not as it should be."""
        return self._replace(problems=(*self.problems, *problems))

    def with_waiters(self, number: int, told: Sequence[bytes]) -> Snapshot:
        """The same with its waiters; `told` holds for each of the first since when, and its card."""
        if number < 0:
            return self._replace(problems=(*self.problems, "its queue is something else"))
        if number == 0:
            return self
        first = (
            QueuedWaiter(whole_number(since), card) for since, card in zip(told[::2], told[1::2], strict=True)
        )
        return self._replace(waiters=number, first_waiters=tuple(first))


def of_nobody(holder: Holder) -> bool:
    """Whether the name is only kept: its last holder has released it before its `at_least` had passed."""
    return _OF_NOBODY.fullmatch(holder.tokens[0]) is not None


def whole_number(text: bytes | None) -> int | None:
    """A whole number, as the server prints it: perhaps with an exponent, or infinite."""
    try:
        return int(float(text or b""))
    except (ValueError, OverflowError):
        return None
