"""The steps of a leadership: a fair lock whose leases are written down as terms."""

from __future__ import annotations

from typing import Any, ClassVar, Final, NamedTuple, final

from ..keys import key
from ..request import Command, Script, ignore
from .permits import PermitCommands

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
class LeadershipCommands(PermitCommands):
    """The steps by which a process becomes the leader of that name, and by which others see it."""

    _acquiring: ClassVar[Script] = _ACQUIRE
    _handing_over: ClassVar[Script] = _HAND_OVER
    _annotating: ClassVar[Script] = _ANNOTATE
    _adopting: ClassVar[Script] = _ADOPT
    _releasing: ClassVar[Script] = _RELEASE
    _renewing: ClassVar[Script] = _RENEW
    _stealing: ClassVar[Script] = _STEAL
    _more_roles: ClassVar[tuple[str, ...]] = ("terms", "news")

    __slots__ = ()

    def __init__(self, prefix: str, name: str, *, retention_ms: int, session: str) -> None:
        super().__init__(
            prefix,
            KIND,
            name,
            permits=1,
            value=None,
            fair=True,
            retention_ms=retention_ms,
            session=session,
        )


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
