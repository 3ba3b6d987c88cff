"""Leaderships: the keys and steps of one, which is a fair lock whose leases are written down as terms."""

from __future__ import annotations

import asyncio
import json
import logging
import weakref
from types import TracebackType
from typing import Any, Final, NamedTuple, final

from ..lock.binding import Binding
from ..lock.lease import Lease, LeaseState, Possession
from ..lock.options import Seconds, seconds
from ..transport import Command, Granted, Script, ignore
from ..transport.answers import fencing_token, kept, released, stolen, truth
from ..transport.commands.base import SEAT_LENGTH
from ..transport.commands.family import Family, Kind, Step
from ..transport.keys import key
from . import permits

log = logging.getLogger("aiolocks.session")

KIND: Final = "leadership"
NOBODY_KNOWN: Final = "+inf"
"""Instead of the last term that is known: none is told of."""

_PERMITS: Final = ("forms", "bells", "fence", "queue", "permits")
_SHARED: Final = ("forms", "bells", "fence", "queue", "permits", "terms")
_ACQUIRE: Final = Script("permits_acquire", *_SHARED)
_HAND_OVER: Final = Script("permits_acquire", *_SHARED, "hand_over_permits")
_ANNOTATE: Final = Script("leadership_annotate", *_SHARED, mid_move="mid_move_terms")
_ADOPT: Final = Script("permits_adopt", *_SHARED, mid_move="mid_move_terms")
_LOOK: Final = Script("leadership_look", "forms", "fence")
_RELEASE: Final = Script("permits_release", *_PERMITS, "stolen", "terms", mid_move="mid_move_terms")
_RENEW: Final = Script("permits_renew", *_PERMITS, "stolen", "terms", mid_move="mid_move_terms")
_STEAL: Final = Script("permits_steal", *_PERMITS, "stolen", "terms")

TERMS: Final = Family(
    keys=f"{permits.KEYS} terms news",
    values="n value fair",
    acquire=Step(_ACQUIRE, permits.ACQUIRES),
    hand_over=_HAND_OVER,
    renew=Step(_RENEW, permits.RENEWS, kept),
    release=Step(_RELEASE, permits.RELEASES, released),
    adopt=Step(_ADOPT, permits.ADOPTS, fencing_token),
    annotate=Step(_ANNOTATE, permits.ANNOTATES, truth),
    owned=Step(permits.OWNED, "token", truth),
    steal=Step(_STEAL, permits.STEALS, stolen),
    roles="leases value",
    read=permits.read_permits,
    passive="fence value terms news stolen",
    seat=SEAT_LENGTH,
    force=permits.FORCE_PERMITS,
    forced="leases queue value fence",
)
KINDS: Final = (
    Kind(
        TERMS,
        KIND,
        "Leadership",
        lasting=True,
        needs=(*permits.NEEDS, "zremrangebyrank", "zremrangebyscore"),
    ),
)


class TermFound(NamedTuple):
    """One term, as it stands there.

    Attributes:
        fencing_token: That of its lease.
        described: Its leader, and what it has published, JSON.
    """

    fencing_token: int
    described: bytes


@final
class Look:
    """The findings of one look.

    Attributes:
        now_us: The server's time, microseconds.
        newest: Fencing token of the newest term; 0 if there is none.
        left_ms: Milliseconds that the leader's lease has left.
        leading: The term that goes on, if any does.
        since: The terms that were begun since the one that was known, in order.
    """

    __slots__ = ("leading", "left_ms", "newest", "now_us", "since")

    def __init__(self, raw: Any) -> None:
        now_us, newest, left_ms, lease, *since = raw
        self.now_us = int(now_us)
        self.newest = int(newest)
        self.left_ms: int = left_ms
        self.leading = _term(lease.partition(b":")[2]) if lease else None
        self.since = [_term(one) for one in since]


def _term(text: bytes) -> TermFound:
    minted, _, described = text.partition(b":")
    return TermFound(int(minted), described)


@final
class Observing:
    """The steps of those who observe a leadership."""

    __slots__ = ("_keys", "news")

    def __init__(self, prefix: str, name: str) -> None:
        self._keys = tuple(key(prefix, KIND, name, role) for role in ("", "leases", "terms"))
        self.news = key(prefix, KIND, name, "news")

    def listen(self) -> Command[Any]:
        """From now on the server tells of each change: of a key that is there for a moment only."""
        return Command(None, (self.news,), ("GET", self.news), ignore, lane=self._lane, bells=(self.news,))

    def look(self, known: int | None) -> Command[Look]:
        """Tells of the leader, and of the terms after the one that is known."""
        since = NOBODY_KNOWN if known is None else str(known)
        return Command(_LOOK, self._keys, (since,), Look, lane=self._lane)

    @property
    def _lane(self) -> str:
        return self.news.decode()


@final
class Candidacy:
    """The state that one `Leadership` object knows of itself in this process, without asking anybody.

    Attributes:
        rests_until: Loop time before which it does not campaign; it has stepped down.
    """

    __slots__ = ("_term", "rests_until")

    def __init__(self) -> None:
        self._term: weakref.ref[Possession] | None = None
        self.rests_until = float("-inf")

    def elected(self, possession: Possession) -> None:
        self._term = weakref.ref(possession)

    @property
    def leads(self) -> bool:
        """Whether its term may be relied on now, by the clock."""
        possession = None if self._term is None else self._term()
        return possession is not None and possession.remaining() > 0.0


@final
class Term(Lease):
    """One term of a leader: a lease, made by being elected, never by hand.

    It may be relied on as every lease: `ensure_held()` and `remaining()` go by the clock, without I/O.
    """

    __slots__ = ("_candidacy", "_value")

    def __init__(
        self,
        binding: Binding[Term],
        possession: Possession,
        grant: Granted,
        *,
        candidacy: Candidacy,
        value: Any,
    ) -> None:
        super().__init__(binding, possession, grant)
        self._candidacy = candidacy
        self._value = value
        candidacy.elected(possession)

    @property
    def value(self) -> Any:
        """The last value that this term has published."""
        return self._value

    @property
    def grace(self) -> float:
        """Seconds before the end of the lease at which the body is cancelled."""
        return self._possession.term.grace

    @property
    def ending(self) -> bool:
        """Whether its body was to stop: `grace` began, it stepped down, or it was lost."""
        return self._possession.term.stopping or self.state is LeaseState.LOST

    async def proclaim(self, value: Any) -> None:
        """Publishes a value beside the term: `leader()` gives it, and every `observe()` is told at once.

        It takes the place of the one before. Of values that follow each other fast, an observer may see the
        last one only.

        Args:
            value: Anything that JSON can hold, such as the address at which the leader is reached. Readable
                by each user that can read the key.

        Raises:
            TypeError: It is not what JSON can hold.
            ConfigurationError: It has more bytes than the session's `largest_metadata`.
            LockLostError: The term is over.
            BackendError: Redis refused, or did not answer within the session's `command_timeout`.

        After a cancellation or an error the server may have it or not; asked again, it does what is left.
        """
        copied = json_value(value)
        settings = self._engine.settings
        settings.user_json({"value": copied})
        await self._changes.annotate({"value": copied})
        self._value = copied
        # The server tells all sessions but the one that has changed it.
        news = Observing(settings.prefix, self.name).news
        self._engine.bells.rung("local", (news,))

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(exc_type, exc, traceback)
        finally:
            scope = self._possession.scope
            if exc is None and scope is not None and scope.cancelled_since:
                # Of two cancellations at the same time asyncio makes one, and the body has taken it for the
                # end of its term. `run` would campaign again.
                raise asyncio.CancelledError

    async def step_down(self, *, cool_down: Seconds = 0.0) -> None:
        """Ends the term: the body is cancelled, and the next candidate leads once the body has unwound.

        Called in the body itself, it ends with that cancellation. Elsewhere it returns when the term is over.
        A term that was never entered is released. The body may take longer than `grace` to unwind: its lease
        is renewed until it has ended.

        Args:
            cool_down: Seconds for which this `Leadership` object does not campaign again, so that another
                candidate has its turn, or the reason for stepping down has time to pass.

        Raises:
            TypeError, ValueError: `cool_down` is not as it should be.
            BackendError: It was never entered, and its release was not confirmed.

        Cancelled, the term ends all the same.
        """
        rest = seconds("cool_down", cool_down)
        possession = self._possession
        possession.ensure_here()
        self._candidacy.rests_until = self._engine.now() + rest
        if not possession.live:
            return
        was_stopping = possession.term.stopping
        log.info("%s %r: the leader steps down", self.kind, self.name)
        possession.stop("step_down() was called")
        scope = possession.scope
        if scope is None:
            await self.release()
        elif not scope.entered_here:
            await possession.wait_over()
        elif not was_stopping:
            await asyncio.get_running_loop().create_future()  # until the cancellation comes


def json_value(value: object) -> Any:
    """A value that is published, copied.

    Raises:
        TypeError: It is not what JSON can hold.
    """
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"value must be what JSON can hold: {error}") from None
