"""The queue inside one process: of those who want the same thing here, one at a time asks the server."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from .acquisition import Acquisition
    from .claim import Claim
    from .possession import Possession


@final
class Gate:
    """First come, first served. However many tasks wait here, the server sees one.

    Invariants:
    - if anybody waits and nobody in this session is known to hold it, exactly one asks: the head;
    - nobody begins to ask while somebody here is known to hold it, except who tries just once;
    - whoever leaves, by any way, passes its place on in the same step.

    Args:
        on_idle: Called when nobody waits and nobody holds, so that the session can forget the gate.
    """

    __slots__ = (
        "_beside",
        "_head",
        "_holder",
        "_on_idle",
        "_possession",
        "_queue",
        "answered_at",
        "refused_until",
        "silent_since",
    )

    def __init__(self, on_idle: Callable[[Gate], None]) -> None:
        self._queue: dict[Acquisition, None] = {}  # in order; who leaves may stand anywhere
        self._head: Acquisition | None = None
        self._beside: set[Acquisition] = set()  # who tries just once
        self._holder: Claim | None = None
        self._possession: weakref.ref[Possession] | None = None
        self._on_idle = on_idle
        # What the server said last to anybody here; times of the loop.
        self.answered_at = float("-inf")
        self.refused_until: float | None = None
        self.silent_since: float | None = None  # when somebody asked first who has had no answer yet

    @property
    def held_here(self) -> bool:
        """Whether somebody in this session is known to hold it."""
        return self._holder is not None

    def remaining(self, now: float) -> float | None:
        """Seconds that the holder's lease has left; None when unknown."""
        if self._holder is not None:
            possession = self._possession() if self._possession is not None else None
            return None if possession is None else possession.remaining()
        return None if self.refused_until is None else max(0.0, self.refused_until - now)

    def enter(self, acquisition: Acquisition) -> None:
        self._queue[acquisition] = None
        self._admit(woken=False)

    def try_beside(self, acquisition: Acquisition) -> None:
        """Asks once, whoever waits or holds."""
        self._beside.add(acquisition)

    def leave(self, acquisition: Acquisition) -> None:
        """Without having got it."""
        self._gone(acquisition)
        self._queue.pop(acquisition, None)
        self._admit(woken=True)

    def granted(self, acquisition: Acquisition) -> None:
        """Somebody here holds it now: a head, or who tried just once."""
        self._gone(acquisition)
        self._holder = acquisition.claim
        self._possession = None

    def entrusted(self, claim: Claim, possession: weakref.ref[Possession]) -> None:
        """What the holder's grant has become: granted before, or adopted."""
        self._holder = claim
        self._possession = possession

    def vacated(self, claim: Claim) -> None:
        """That holder has let go, or has lost it. Does nothing for one that does not hold it."""
        if self._holder is not claim:
            return
        self._holder = self._possession = None
        if self._head is not None:
            self._head.prompt()
        else:
            self._admit(woken=True)

    def _gone(self, acquisition: Acquisition) -> None:
        self._beside.discard(acquisition)
        if self._head is acquisition:
            self._head = None
        if self._head is None and not self._beside and (self._holder is not None or not self._queue):
            self.silent_since = None  # nobody has a question open

    def _admit(self, *, woken: bool) -> None:
        if self._head is not None or self._holder is not None:
            return
        if self._queue:
            self._head = next(iter(self._queue))
            del self._queue[self._head]
            self._head.take_turn(woken=woken)
        elif not self._beside:
            self._on_idle(self)

    def __repr__(self) -> str:
        return f"<Gate held_here={self.held_here} asking={self._head is not None} queued={len(self._queue)}>"
