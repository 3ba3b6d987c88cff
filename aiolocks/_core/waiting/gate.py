"""The queue inside one process: of those who want the same thing here, one at a time asks the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from ..._transport import BEHIND, IN_TURN, OWING, SEATED, STAYING
from .stand import Stand

if TYPE_CHECKING:
    from ..._transport import Granted, Refused
    from ..claim import Claim, Resource
    from ..engine import Engine
    from .waiter import Waiter


@final
class Gate(Stand):
    """First come, first served. However many tasks wait here, the server sees one, or a seat of each.

    Invariants:
    - at most one waiter of a session, the head, asks the server, sleeps and asks again. Others ask only if a
      grant said that there is room, the server named their seat as the first, they own a nested lease here,
      or they try just once; the others of a strict queue ask for no more than a seat. There is no head while
      a holder of this session excludes it;
    - no task begins to ask for more than a seat while a holder here is known to exclude it, except for a task
      that tries just once;
    - a task that leaves, by any way, passes its place on in the same step;
    - those who enter together waited here when one of them got in by the place that they share; a waiter that
      comes later asks when all of them have entered and the place, with the turn that it had, is given up:
      else readers that come one after the other would keep the turn, and no writer would enter;
    - a lock that is free while another process waits does not stay unnoticed: a release either wakes one
      there, or has the head's try right after it, and then the last task to leave here does the rest
      (`must_tell_others`).

    It lives for as long as somebody has it: a lock, a task that waits or holds, or the session for a moment.
    """

    __slots__ = ("_in_turn", "_suspects", "answered_at", "refusal", "refused_until", "silent_since")

    def __init__(self, engine: Engine, resource: Resource) -> None:
        super().__init__(engine, resource)
        self._in_turn = False  # the next head goes behind those that wait in other processes
        # The last answer of the server to any task here; times of the loop.
        self.answered_at = float("-inf")
        self.refused_until: float | None = None
        self.silent_since: float | None = None  # when somebody asked first who has had no answer yet
        self.refusal: Refused | None = None  # the last one, while somebody waits here whom it concerns
        self._suspects: dict[Waiter, None] = {}  # of the queued, those that may wait for their own task

    @property
    def must_tell_others(self) -> bool:
        """Whether other processes must be told when nobody waits here any more."""
        return self.place_taken or self._turns.owed

    def asks(self, acquisition: Waiter) -> int:
        """That one asks the server, which is told how it stands to others."""
        if self.silent_since is None:
            self.silent_since = self._engine.now()
        return (
            (SEATED if self.place_taken else 0)
            | (IN_TURN if self.manner.strict else 0)
            | (OWING if self._turns.owed else 0)
            | (STAYING if self._keeps_place(acquisition) else 0)
            | (BEHIND if self.is_behind(acquisition) else 0)
        )

    def answered(self, now: float) -> None:
        """The server has answered somebody here."""
        self.answered_at = now
        self.silent_since = None

    def refused_with(self, refusal: Refused, until: float | None) -> None:
        """Somebody here was refused: for all who wait here, that is the news."""
        if self.awaited or self._beside:
            self.refusal = refusal
        self.refused_until = until
        self._seated = refusal.seated
        for acquisition in tuple(self._suspects):
            acquisition.suspect()

    def watch_for_itself(self, acquisition: Waiter) -> None:
        """Its task may be in its own way: each refusal here makes it look."""
        self._suspects[acquisition] = None

    def watch_no_more(self, acquisition: Waiter) -> None:
        self._suspects.pop(acquisition, None)

    def remaining(self, now: float) -> float | None:
        """Seconds that the holder's lease has left; None when unknown."""
        if self.here.closed or self.refused_until is None:
            possession = self.here.possession
            return None if possession is None else possession.remaining()
        return max(0.0, self.refused_until - now)

    # -- those who wait

    def enter(self, acquisition: Waiter) -> None:
        if self._head is None and not self.here.closed:
            assert not self._queue, "a waiter is queued, and nobody asks"
            self._head = acquisition
            acquisition.take_turn(woken=False, in_turn=self._next_in_turn())
        elif acquisition.claim.nests and self.here.are_of(acquisition.claim.owner):
            self._beside[acquisition] = None
            acquisition.take_turn(woken=False, in_turn=False)
        else:
            self._queue[acquisition] = None
            if self.manner.strict:
                acquisition.sit_down()

    def _keeps_place(self, acquisition: Waiter) -> bool:
        """Whether the place is needed here when this one gets in."""
        if self._head is not None and self._head is not acquisition:
            return True
        return self.manner.stays and self.others_wait(acquisition)

    def leave(self, acquisition: Waiter) -> None:
        """Without having got it."""
        self.gone(acquisition)
        self._admit_next()

    def refused(self, acquisition: Waiter) -> bool:
        """Whether it goes on as the head; if not, it waits behind it, before all others."""
        self._entering = False
        if acquisition is self._head:
            self._turns.owed = False  # the present holder will wake the others
            return True
        if self.is_behind(acquisition):
            return False
        self._beside.pop(acquisition, None)
        if self._head is None and not self.here.closed:
            self._head = acquisition
            return True
        self._queue = {acquisition: None, **self._queue}
        return False

    def goes_first(self, seat: str) -> None:
        """That seat of this session stands before all others, but another waiter here has asked.

        Requests can overtake each other. Then either its waiter sat down before those that came here earlier,
        and is to ask; or it has left, and the request that gives its seat up is still on its way.
        """
        for acquisition in self._queue:
            if acquisition.claim.token.startswith(seat):
                if not self.here.closed:
                    self._admit(acquisition)
                return
        if not any(asking.claim.token.startswith(seat) for asking in self._asking()):
            self._engine.undo(self._nobody(seat), 1.0)

    def settled(self) -> None:
        """The other processes were told that nobody waits here any more."""
        self._turns.owed = False
        self.left()

    # -- those who hold

    def granted(self, claim: Claim, answer: Granted, now: float, *, carried: bool) -> None:
        """Somebody here holds it now: one that waited, and has gone, or a single try.

        `carried`: the request has told others of what was let go of here.
        """
        owed = self._turns.owed and not carried
        self._turns.granted(answer.others, now)
        self.refusal = None
        self.here.add(claim)
        if self.manner.exclusive:
            if self._queue and claim.nests:
                self._admit_owner()
        else:
            self._turns.owed = owed  # permits that came back meanwhile were not granted
            # Strictly: a waiter that is refused must not be overtaken by one that asked after it.
            if not self.manner.strict and not self._entering:
                for _ in range(min(answer.room, len(self._queue))):
                    self._admit()
                self._entering = self.manner.together and self.place_taken
            self._admit_next()
        if self.place_taken and not self.needs_place:
            self.give_up_place()  # it was kept for others, which have left in the meantime, or have got in
        elif self._turns.owed and not self.awaited:
            self._turns.owed = False
            self._engine.undo(self._nobody(), 1.0)

    def letting_go(self, claim: Claim) -> bool:
        """That holder is about to release: whether the release is to wake a waiter elsewhere.

        If not, then `vacated` follows, which makes the head here try right behind it.
        """
        if not self.awaited or not self.manner.quiet or claim not in self.here:
            return True
        if self.manner.exclusive and self.here.several:
            return True
        if not self.manner.exclusive and self._head is not None and not self._head.asleep:
            return True  # its try is on its way, and cannot go right behind
        if self.manner.strict:
            # Elsewhere a waiter may be the first, and is woken by the request that is refused for it.
            self._turns.owed = self._engine.ordered
            return not self._turns.owed
        self._in_turn = self._turns.over(self._engine.now(), self._engine.longest_sleep)
        self._turns.owed = not self._in_turn
        return self._in_turn

    def vacated(self, claim: Claim) -> None:
        """That holder has let go, or has lost it. Does nothing for one that does not hold it."""
        if self.here.first is None or not self.here.remove(claim) or self.here.closed:
            return
        if self._head is None:
            self._admit_next()
        elif not self.manner.together:
            self._head.prompt("local", in_turn=self._next_in_turn())

    def let_go(self, rung: Sequence[bytes], *, overtaken: bool) -> None:
        """The release has ended, and woke the owners of these bells.

        `overtaken` by what was to go right behind it, for the server did not know its script.
        """
        if rung and any(bell not in self.bells for bell in rung):
            yielding = self._turns.rang(self._engine.now(), self._engine.longest_sleep)
            self._engine.loop.call_later(yielding, _ignore, self)  # until then it remembers
        elif not (self.manner.together or self.here.closed or self._head is None) and self._head.asleep:
            self._head.prompt("local", in_turn=self.yielding)  # its try was to go right behind
        elif overtaken and not self.awaited and not self.here.held:
            # The last who waited here has left, and let others know: but then it was not free yet.
            self._engine.undo(self._nobody(), 1.0)

    def gone(self, acquisition: Waiter) -> None:
        """It does not ask any more."""
        self._queue.pop(acquisition, None)
        self._beside.pop(acquisition, None)
        if self._head is acquisition:
            self._head = None
        takes_over = self._head is None and self._queue and not self.here.closed  # the next one asks at once
        # Of the queued, one may have asked for a seat; there may be very many.
        unsure = self._asking() if self.silent_since is None else self._waiters()
        if not takes_over and not any(waiter.unanswered for waiter in unsure):
            self.silent_since = None
            self.refusal = None

    @property
    def yielding(self) -> bool:
        """Whether other processes go first."""
        return self._turns.yielding(self._engine.now)

    def _next_in_turn(self) -> bool:
        in_turn, self._in_turn = self._in_turn, False
        return in_turn or self._turns.yielding(self._engine.now)

    def _admit(self, acquisition: Waiter | None = None) -> None:
        """The first in the queue asks, or that one."""
        acquisition = acquisition or next(iter(self._queue))
        del self._queue[acquisition]
        if self._head is None:
            self._head = acquisition
        else:
            self._beside[acquisition] = None
        acquisition.take_turn(woken=True, in_turn=self._next_in_turn())

    def _admit_owner(self) -> None:
        """Other waiters here of the owner that has just got in ask for it as well."""
        for acquisition in [waiting for waiting in self._queue if self.here.are_of(waiting.claim.owner)]:
            del self._queue[acquisition]
            self._beside[acquisition] = None
            acquisition.take_turn(woken=True, in_turn=False)

    def _admit_next(self) -> None:
        """Makes one the head: first one that asks already and is to go first, then one that came later."""
        if self._head is not None or self.here.closed:
            return
        if self._entering or self.manner.strict:
            self._head = next(iter(self._beside), None)
            if self._head is not None:
                del self._beside[self._head]
                return
        if self._entering:
            self.give_up_place()
        if self._queue:
            self._admit()

    def __repr__(self) -> str:
        return f"<Gate held_here={self.here.held} asking={self._head is not None} queued={len(self._queue)}>"


def _ignore(_: Gate) -> None:
    """The callback of a timer that only keeps a gate alive."""
