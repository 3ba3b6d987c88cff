"""The queue inside one process: of those who want the same thing here, one at a time asks the server."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, final

from .place import Place
from .turns import Turns

if TYPE_CHECKING:
    from .._transport import Call
    from .acquisition import Acquisition
    from .claim import Claim, Resource
    from .engine import Engine
    from .possession import Possession


@final
class Gate:
    """First come, first served. However many tasks wait here, the server sees one.

    Invariants:
    - if anybody waits and nobody in this session is known to hold it, exactly one asks: the head;
    - nobody begins to ask while somebody here is known to hold it, except who tries just once;
    - whoever leaves, by any way, passes its place on in the same step;
    - what is free while another process waits does not stay unnoticed: a release either wakes one there, or
      has the head's try right behind it, and then whoever is the last to leave here does what was left
      undone (`unsettled`).

    It lives for as long as somebody has it: a lock, who waits or holds, or the session for a moment.
    """

    __slots__ = (
        "__weakref__",
        "_beside",
        "_engine",
        "_head",
        "_holder",
        "_in_turn",
        "_possession",
        "_queue",
        "_turns",
        "answered_at",
        "place",
        "refused_until",
        "silent_since",
    )

    def __init__(self, engine: Engine, resource: Resource) -> None:
        self._engine = engine
        self._queue: dict[Acquisition, None] = {}  # in order; who leaves may stand anywhere
        self._head: Acquisition | None = None
        self._beside: dict[Acquisition, None] = {}  # who tries just once
        self._holder: Claim | None = None
        self._possession: weakref.ref[Possession] | None = None
        self._turns = Turns()
        self._in_turn = False  # the next head goes behind who waits in other processes
        self.place = Place(engine, resource)
        # What the server said last to anybody here; times of the loop.
        self.answered_at = float("-inf")
        self.refused_until: float | None = None
        self.silent_since: float | None = None  # when somebody asked first who has had no answer yet

    @property
    def held_here(self) -> bool:
        """Whether somebody in this session is known to hold it."""
        return self._holder is not None

    @property
    def awaited(self) -> bool:
        """Whether somebody waits here."""
        return self._head is not None or bool(self._queue)

    @property
    def unsettled(self) -> bool:
        """Whether other processes are to be told when nobody waits here any more."""
        return self.place.taken or self._turns.owed

    def remaining(self, now: float) -> float | None:
        """Seconds that the holder's lease has left; None when unknown."""
        if self._holder is not None:
            possession = self._possession() if self._possession is not None else None
            return None if possession is None else possession.remaining()
        return None if self.refused_until is None else max(0.0, self.refused_until - now)

    # -- those who wait

    def enter(self, acquisition: Acquisition) -> None:
        if self._head is None and self._holder is None:  # then nobody is queued either
            self._head = acquisition
            acquisition.take_turn(woken=False, in_turn=self._next_in_turn())
        else:
            self._queue[acquisition] = None

    def try_beside(self, acquisition: Acquisition) -> None:
        """Asks once, whoever waits or holds."""
        self._beside[acquisition] = None

    def is_last(self, acquisition: Acquisition) -> bool:
        """Whether nobody waits here but this one."""
        waiting = len(self._queue) + (self._head is not None)
        return waiting == 1 and (self._head is acquisition or acquisition in self._queue)

    def leave(self, acquisition: Acquisition) -> None:
        """Without having got it."""
        self._gone(acquisition)
        self._queue.pop(acquisition, None)
        self._admit_next()

    def refused(self) -> None:
        """The head was: whoever has it now will wake the others."""
        self._turns.owed = False

    def settled(self) -> None:
        """The other processes were told that nobody waits here any more."""
        self._turns.owed = False
        self.left()

    # -- the place in the queue on the server

    def arm(self, *, lane: str, until: float) -> Call[bool]:
        """Stands in the queue, with a bell that hangs. The try that is to follow goes in the same write."""
        self._engine.bells.add(self)
        return self.place.arm(lane=lane, until=until)

    def left(self) -> None:
        """The place was taken away, or is about to be."""
        if self.place.taken:
            self.place.taken = self.place.armed = False
            self._engine.bells.discard(self)

    def rung(self, way: str) -> None:
        """The bell was rung; `way` is how we know. Somebody here is to try."""
        self.place.armed = False
        if self._head is not None and self._holder is None:
            self._head.prompt(way, in_turn=False)

    def renew_place(self, until: float) -> None:
        """Shows that somebody is still here.

        Not while the head asks: if that is granted, a bell that is hung up behind it would be nobody's. For
        the same reason it goes in the lane in which the queue is left.
        """
        if self.place.armed and self._head is not None and self._head.asleep:
            self.place.renew(self._missed, lane=self._head.claim.token, until=until)

    def _missed(self, stood: bool) -> None:  # noqa: FBT001 - a callback
        if self.place.armed and not stood:
            self.rung("poll")  # the bell was gone, and the news of it was lost

    # -- those who hold

    def granted(self, acquisition: Acquisition, others: int, now: float) -> None:
        """Somebody here holds it now: a head, or who tried just once."""
        self._turns.granted(others, now)
        self._gone(acquisition)
        self._holder = acquisition.claim
        self._possession = None

    def entrusted(self, claim: Claim, possession: weakref.ref[Possession]) -> None:
        """What the holder's grant has become: granted before, or adopted."""
        self._holder = claim
        self._possession = possession

    def letting_go(self, claim: Claim) -> bool:
        """That holder is about to release: whether the release is to wake who waits elsewhere.

        If not, then `vacated` follows, which makes the head here try right behind it.
        """
        if self._holder is not claim or not self.awaited:
            return True
        self._in_turn = self._turns.over(self._engine.now(), self._engine.longest_sleep)
        self._turns.owed = not self._in_turn
        return self._in_turn

    def vacated(self, claim: Claim) -> None:
        """That holder has let go, or has lost it. Does nothing for one that does not hold it."""
        if self._holder is not claim:
            return
        self._holder = self._possession = None
        if self._head is not None:
            self._head.prompt("local", in_turn=self._next_in_turn())
        else:
            self._admit_next()

    def let_go(self, rung: bytes | None) -> None:
        """The release has ended, and woke the owner of this bell."""
        if rung is not None and rung != self.place.bell:
            yielding = self._turns.rang(self._engine.now(), self._engine.longest_sleep)
            self._engine.loop.call_later(yielding, _ignore, self)  # until then it remembers

    def _gone(self, acquisition: Acquisition) -> None:
        self._beside.pop(acquisition, None)
        if self._head is acquisition:
            self._head = None
        if self._head is None and not self._beside and (self._holder is not None or not self._queue):
            self.silent_since = None  # nobody has a question open

    @property
    def yielding(self) -> bool:
        """Whether other processes go first."""
        return self._turns.yielding(self._engine.now)

    def _next_in_turn(self) -> bool:
        in_turn, self._in_turn = self._in_turn, False
        return in_turn or self.yielding

    def _admit_next(self) -> None:
        if self._head is None and self._holder is None and self._queue:
            self._head = next(iter(self._queue))
            del self._queue[self._head]
            self._head.take_turn(woken=True, in_turn=self._next_in_turn())

    def __repr__(self) -> str:
        return f"<Gate held_here={self.held_here} asking={self._head is not None} queued={len(self._queue)}>"


def _ignore(_: Gate) -> None:
    """What a timer calls that only keeps a gate alive."""
