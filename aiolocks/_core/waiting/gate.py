"""The queue inside one process: of those who want the same thing here, one at a time asks the server."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final, final

from ..._transport import (
    ASK,
    BELL_RUNG,
    GONE,
    IN_TURN,
    NO_END,
    NOT_OURS,
    OWING,
    SEAT_LENGTH,
    SEATED,
    STAYING,
    WAS_RUNG,
)
from ..claim import Claim
from ..clock import seconds
from .place import Place
from .turns import Turns

if TYPE_CHECKING:
    from ..._transport import Command, Granted, Listener, Refused
    from ..claim import Resource
    from ..engine import Engine
    from ..possession import Possession
    from .waiter import Waiter

_UNSEATED: Final = 3
"""The times in a row that a bell may be gone as soon as it is listened for: it was rung. Or else the server
does not let it hang, and its waiters poll."""


@final
class Gate:
    """First come, first served. However many tasks wait here, the server sees one.

    Invariants:
    - if anybody waits and, where one excludes the others, nobody in this session is known to hold it, one is
      the head, who asks, sleeps and asks again; beside it only those ask who have been told of room, or who
      own what is held here already, or who try just once;
    - no task begins to ask while a holder here is known to exclude it, except for a task that tries just
      once;
    - a task that leaves, by any way, passes its place on in the same step;
    - those who enter together waited here when one of them got in by the place that they share; a waiter that
      comes later asks when all of them have entered and the place, with the turn that it had, is given up:
      else readers that come one after the other would keep the turn, and no writer would enter;
    - a lock that is free while another process waits does not stay unnoticed: a release either wakes one
      there, or has the head's try right after it, and then the last task to leave here does the rest
      (`unsettled`).

    It lives for as long as somebody has it: a lock, who waits or holds, or the session for a moment.
    """

    __slots__ = (
        "__weakref__",
        "_also_holding",
        "_beside",
        "_closed",
        "_engine",
        "_entering",
        "_head",
        "_holder",
        "_in_turn",
        "_possession",
        "_queue",
        "_resource",
        "_suspects",
        "_turns",
        "answered_at",
        "manner",
        "place",
        "refusal",
        "refused_until",
        "silent_since",
    )

    def __init__(self, engine: Engine, resource: Resource) -> None:
        self._engine = engine
        self._resource = resource
        self.manner = resource.manner
        self._queue: dict[Waiter, None] = {}  # in order; who leaves may stand anywhere
        self._head: Waiter | None = None
        # Those that ask beside the head. Most gates have no such waiter, and no suspect, ever.
        self._beside: dict[Waiter, None] | None = None
        self._holder: Claim | None = None
        self._closed = False  # nobody may ask: a task here holds a lease that excludes all waiters
        self._possession: weakref.ref[Possession] | None = None
        self._also_holding: dict[Claim, None] | None = None  # most gates never have a second holder
        self._turns = Turns()
        self._in_turn = False  # the next head goes behind who waits in other processes
        self._entering = False  # one got in by the place here, and those who waited then come along
        self.place = Place(engine, resource.commands)
        # The last answer of the server to any task here; times of the loop.
        self.answered_at = float("-inf")
        self.refused_until: float | None = None
        self.silent_since: float | None = None  # when somebody asked first who has had no answer yet
        self.refusal: Refused | None = None  # the last one, while somebody waits here whom it concerns
        self._suspects: dict[Waiter, None] | None = (
            None  # of the queued, those that may wait for their own task
        )

    @property
    def held_here(self) -> bool:
        """Whether somebody in this session is known to hold it."""
        return self._holder is not None

    @property
    def awaited(self) -> bool:
        """Whether somebody waits here."""
        return self._head is not None or bool(self._queue)

    @property
    def _asking_beside(self) -> Collection[Waiter]:
        return self._beside or ()

    def others_wait(self, acquisition: Waiter) -> bool:
        """Whether anybody else does."""
        others = len(self._queue) + (self._head is not None) + len(self._asking_beside)
        itself = acquisition is self._head or acquisition in self._queue or acquisition in self._asking_beside
        return others > (1 if itself else 0)

    @property
    def unsettled(self) -> bool:
        """Whether other processes must be told when nobody waits here any more."""
        return self.place.taken or self._turns.owed

    def kept_by(self, claim: Claim) -> bool:
        """Whether nobody may ask because of that claim."""
        also = self._also_holding is not None and claim in self._also_holding
        return self._closed and (claim is self._holder or also)

    def holder_here(self) -> tuple[Claim, Possession | None] | None:
        """The one because of whom nobody may ask, if there is one."""
        if self._holder is None or not self._closed:
            return None
        return self._holder, None if self._possession is None else self._possession()

    def asks(self, acquisition: Waiter) -> int:
        """That one asks the server, which is told how it stands to others."""
        if self.silent_since is None:
            self.silent_since = self._engine.now()
        return (
            (SEATED if self.place.taken else 0)
            | (IN_TURN if self.manner.strict else 0)
            | (OWING if self._turns.owed else 0)
            | (STAYING if self._keeps_place(acquisition) else 0)
        )

    def answered(self, now: float) -> None:
        """The server has answered somebody here."""
        self.answered_at = now
        self.silent_since = None

    def refused_with(self, refusal: Refused, until: float | None) -> None:
        """Somebody here was refused: for all who wait here, that is the news."""
        if self._head is not None or self._queue or self._beside:
            self.refusal = refusal
        self.refused_until = until
        for acquisition in tuple(self._suspects or ()):
            acquisition.suspect()

    def watch_for_itself(self, acquisition: Waiter) -> None:
        """Its task may be in its own way: each refusal here makes it look."""
        if self._suspects is None:
            self._suspects = {}
        self._suspects[acquisition] = None

    def watch_no_more(self, acquisition: Waiter) -> None:
        if self._suspects:
            self._suspects.pop(acquisition, None)

    def remaining(self, now: float) -> float | None:
        """Seconds that the holder's lease has left; None when unknown."""
        if self._closed or self.refused_until is None:
            possession = self._possession() if self._possession is not None else None
            return None if possession is None else possession.remaining()
        return max(0.0, self.refused_until - now)

    # -- those who wait

    def enter(self, acquisition: Waiter) -> None:
        if self._head is None and not self._closed:  # then nobody is queued either
            self._head = acquisition
            acquisition.take_turn(woken=False, in_turn=self._next_in_turn())
        elif self._holder is not None and self._owns(acquisition):
            self._ask_beside(acquisition)
            acquisition.take_turn(woken=False, in_turn=False)
        else:
            self._queue[acquisition] = None
            if self.manner.strict:
                self._take_seat(acquisition)

    def is_last(self, acquisition: Waiter) -> bool:
        """Whether nobody waits here but this one."""
        return not self.others_wait(acquisition)

    def _keeps_place(self, acquisition: Waiter) -> bool:
        """Whether the place is needed here when this one gets in."""
        if self._head is not None and self._head is not acquisition:
            return True
        return self.manner.stays and self.others_wait(acquisition)

    def leave(self, acquisition: Waiter) -> None:
        """Without having got it."""
        self.gone(acquisition)
        self._queue.pop(acquisition, None)
        self._admit_next()

    def refused(self, acquisition: Waiter) -> bool:
        """Whether it goes on as the head; if not, it waits behind it, before all others."""
        self._entering = False
        if acquisition is self._head:
            self._turns.owed = False  # the present holder will wake the others
            return True
        self._beside_no_more(acquisition)
        if self._head is None and not self._closed:
            self._head = acquisition
            return True
        self._queue = {acquisition: None, **self._queue}
        return False

    def settled(self) -> None:
        """The other processes were told that nobody waits here any more."""
        self._turns.owed = False
        self.left()

    def _owns(self, acquisition: Waiter) -> bool:
        # Several, where the server has lost its data.
        holding = (self._holder, *(self._also_holding or ()))
        return any(claim is not None and claim.owner == acquisition.claim.owner for claim in holding)

    # -- the place in the queue on the server

    def take_place(self) -> None:
        """Somebody of here may be seated."""
        if not self.place.taken:
            self.place.taken = True
            self._engine.bells.add(self)

    def left(self) -> None:
        """The place was taken away, or is about to be."""
        self._entering = False
        if self.place.taken:
            self.place.taken = self.place.armed = False
            self._engine.bells.discard(self)

    def leaves_late(self) -> Callable[[], bool]:
        """Whether the undo of one that has left is to leave the queue; asked when the undo is written.

        Where requests overtake each other, the one that is undone may be executed late, and take the place
        that others of this session have by then, or have had. While others wait, they keep it, with its turn;
        it is given up when they have got in or have left.
        """
        gate = weakref.ref(self)

        def leaves() -> bool:
            here = gate()
            if here is None or not here.needs_place:
                return True
            here.take_place()
            here.place.kept += 1
            return False

        return leaves

    @property
    def needs_place(self) -> bool:
        """Whether anybody waits here, or asks beside the head and would wait."""
        waiters = (self._head, *self._queue, *self._asking_beside)
        return any(one is not None and not one.over for one in waiters)

    def give_up_place(self) -> None:
        """The place may stand there although nobody needs it any more."""
        of_use = self.place.given_up_within(1.0)
        self.left()
        self._engine.undo(self._nobody(), of_use, leave=True)

    def give_up_seat(self, acquisition: Waiter) -> None:
        """An arming may have put this one's seat back after it got in.

        In a strict queue the server keeps the bell for the other seats of this session, and only for these.
        """
        leaves = not self.others_wait(acquisition)
        if leaves:
            self.left()
        self._engine.undo(self._nobody(acquisition.claim.token[:SEAT_LENGTH]), 1.0, leave=leaves)

    def goes_first(self, seat: str) -> None:
        """That seat of this session stands before all others, but another waiter here has asked.

        Requests can overtake each other. Then either its waiter sat down before those that came here earlier,
        and is to ask; or it has left, and the request that gives its seat up is still on its way.
        """
        for acquisition in self._queue:
            if acquisition.claim.token.startswith(seat):
                if not self._closed:
                    self._admit(acquisition)
                return
        if not any(
            asking.claim.token.startswith(seat) for asking in (self._head, *self._asking_beside) if asking
        ):
            self._engine.undo(self._nobody(seat), 1.0)

    def _nobody(self, seat: str = "") -> Claim:
        """A claim that holds nothing: its release gives up the seat, and wakes other waiters."""
        return Claim(self._resource.commands, seat, "", 1000)

    # -- its bell

    def listen(self, acquisition: Waiter) -> None:
        """The head was refused, and so its bell hangs: the session listens for it."""
        if not self.place.armed:
            self.place.listened_for()
            self._engine.bells.listen_for(self, acquisition.claim.listener())

    def not_armed(self) -> None:
        """A request is not sent any more by which the bell would have been heard."""
        self.place.armed = False
        if self._head is not None and self._head.asleep:
            self.listen(self._head)

    def not_ours(self, rung: Sequence[bytes]) -> Sequence[bytes]:
        """Of those bells, the ones of others; ours was gone, and the refusal has put it back."""
        others = [bell for bell in rung if bell not in self.place.bells]
        if len(others) < len(rung):
            self.place.armed = False
        return others

    def listener(self) -> Listener | Command[int] | None:
        """Shows that a waiter is still here, and tells when it must ask; None where it asks anyway."""
        waiter = self._head or self._first_seated
        if waiter is None or not (self.place.armed or waiter.asleep or waiter is not self._head):
            return None
        if not self.place.armed:
            self.place.listened_for()
        self.place.unseated = 0  # with each heartbeat at least, a waiter whose bell is gone again asks
        return waiter.claim.listener()

    def listened(self, answer: int) -> None:
        """The server's answer about the waiters here: a time, or the reason why the head must ask."""
        if not self.place.armed:
            return  # something newer is known
        if answer in (GONE, NOT_OURS):
            self._missed()
            return
        self.place.answered = True
        self.place.unseated = 0
        if answer == BELL_RUNG:
            self.rung("poll")  # the news of it was lost, or is on its way; or nobody here may ask now
        elif self._head is None:
            return
        elif answer == ASK and not self.yielding_until:
            self._head.prompt("poll", in_turn=False)
        else:
            until = None if answer in (ASK, NO_END) else self._engine.now() + seconds(answer)
            self._head.need_not_ask(until)

    def unheard(self) -> None:
        """Whether the bell hangs is not known: the server has not answered, or has refused to."""
        if self.place.armed:
            self.place.armed = False
            if self._head is not None and self._head.asleep and not self._closed:
                if self.place.answered:
                    self._head.prompt("poll", in_turn=False)
                else:  # it has just asked, and would again be told nothing
                    self._head.sleep_unheard()

    def rung(self, way: str) -> None:
        """The bell was rung; `way` is how we know. Somebody here is to try."""
        self.place.armed = False
        if self._head is None:
            if (first := self._first_seated) is not None:
                self._take_seat(first)  # its bell is to hang again
        elif not self._closed:
            self._head.prompt(way, in_turn=False)

    def lost(self, way: str) -> None:
        """The bell may be gone, and other processes may have taken this one for dead.

        The head asks, and is seated if it is refused; its waiters take their seats again behind it, in order.
        """
        self.place.armed = False
        if self._head is not None and not self._closed:
            self._head.prompt(way, in_turn=False)
        if self.manner.strict:
            for acquisition in self._queue:
                self._take_seat(acquisition)

    def _missed(self) -> None:
        """The bell does not hang, and the news of why was lost, or is on its way."""
        if self.place.answered or self.place.unseated < _UNSEATED:
            self.place.unseated += not self.place.answered
            self.lost("poll")
        else:
            self.unheard()

    @property
    def _first_seated(self) -> Waiter | None:
        """Of those who wait for their turn to ask, the first that has a seat of its own."""
        return next(iter(self._queue), None) if self.manner.strict else None

    def _take_seat(self, acquisition: Waiter) -> None:
        """In a strict queue, also of one that does not ask yet."""
        former = tuple(arming for arming in acquisition.armings if not arming.done)
        for arming in former:
            if arming.unconfirmed:  # its connection has ended, and the new one takes its place
                self._engine.forget(arming)
        acquisition.seated = True
        self.take_place()
        until = self._engine.now() + self._engine.settings.command_timeout
        armed = self.place.arm(acquisition.claim, self._seated, until=until)
        acquisition.armings = (*former, armed)

    def _seated(self, was: int) -> None:
        if not self.awaited:
            return
        self.take_place()  # one that got in meanwhile may have taken it along
        self.place.armed = self.place.answered = True
        if was == WAS_RUNG and self._head is not None:
            self._head.prompt("local", in_turn=False)

    # -- those who hold

    def granted(self, claim: Claim, answer: Granted, now: float, *, carried: bool) -> None:
        """Somebody here holds it now: one that waited, and has gone, or a single try.

        `carried`: the request has told others of what was let go of here.
        """
        owed = self._turns.owed and not carried
        self._turns.granted(answer.others, now)
        self.refusal = None
        if self._holder is None:
            self._hold(claim)
            self._possession = None
        else:
            self._hold_also(claim)
        if self.manner.exclusive:
            if self._queue and claim.nests:
                self._admit_owner()
        else:
            self._turns.owed = owed  # permits that came back meanwhile were not granted
            # Strictly: a waiter that is refused must not be overtaken by one that asked after it.
            if not self.manner.strict and not self._entering:
                for _ in range(min(answer.room, len(self._queue))):
                    self._admit()
                self._entering = self.manner.together and self.place.taken
            self._admit_next()
        if self.place.taken and not self.needs_place:
            self.give_up_place()  # it was kept for others, which have left in the meantime, or have got in
        elif self._turns.owed and not self.awaited:
            self._turns.owed = False
            self._engine.undo(self._nobody(), 1.0)

    def entrusted(self, claim: Claim, possession: weakref.ref[Possession]) -> None:
        """The possession that the holder's grant has become: granted before, or adopted."""
        if self._holder is None:
            self._hold(claim)
        if self._holder is claim:
            self._possession = possession
        else:
            self._hold_also(claim)

    def _hold(self, claim: Claim | None) -> None:
        self._holder = claim
        self._closed = claim is not None and self.manner.exclusive

    def _hold_also(self, claim: Claim) -> None:
        if self._also_holding is None:
            self._also_holding = {}
        self._also_holding[claim] = None

    def letting_go(self, claim: Claim) -> bool:
        """That holder is about to release: whether the release is to wake who waits elsewhere.

        If not, then `vacated` follows, which makes the head here try right behind it.
        """
        if self._holder is not claim and not (self._also_holding and claim in self._also_holding):
            return True
        if not self.awaited or not self.manner.quiet or (self._also_holding and self.manner.exclusive):
            return True
        if not self.manner.exclusive and self._head is not None and not self._head.asleep:
            return True  # its try is on its way, and cannot go right behind
        self._in_turn = self._turns.over(self._engine.now(), self._engine.longest_sleep)
        self._turns.owed = not self._in_turn
        return self._in_turn

    def vacated(self, claim: Claim) -> None:
        """That holder has let go, or has lost it. Does nothing for one that does not hold it."""
        if self._holder is claim:
            self._possession = None
            self._hold(self._also_holding.popitem()[0] if self._also_holding else None)
        elif self._also_holding and claim in self._also_holding:
            del self._also_holding[claim]
        else:
            return
        if self._closed:
            return
        if self._head is None:
            self._admit_next()
        elif self.manner.eager:
            self._head.prompt("local", in_turn=self._next_in_turn())

    def let_go(self, rung: Sequence[bytes], *, overtaken: bool) -> None:
        """The release has ended, and woke the owners of these bells.

        `overtaken` by what was to go right behind it, for the server did not know its script.
        """
        if rung and any(bell not in self.place.bells for bell in rung):
            yielding = self._turns.rang(self._engine.now(), self._engine.longest_sleep)
            self._engine.loop.call_later(yielding, _ignore, self)  # until then it remembers
        elif self.manner.eager and not self._closed and self._head is not None and self._head.asleep:
            self._head.prompt("local", in_turn=self.yielding)  # its try was to go right behind
        elif overtaken and not self.awaited and not self.held_here:
            # The last who waited here has left, and let others know: but then it was not free yet.
            self._engine.undo(self._nobody(), 1.0)

    def gone(self, acquisition: Waiter) -> None:
        """It does not ask any more."""
        if self._beside:
            self._beside.pop(acquisition, None)
        if self._head is acquisition:
            self._head = None
        takes_over = self._head is None and self._queue and not self._closed  # the next one asks at once
        if not takes_over and not self._unanswered:
            self.silent_since = None
            self.refusal = None

    @property
    def _unanswered(self) -> bool:
        """Whether anybody has a question open."""
        if self._head is not None and self._head.unanswered:
            return True
        return self._beside is not None and any(waiter.unanswered for waiter in self._beside)

    @property
    def yielding_until(self) -> float:
        """When the waiter that was woken elsewhere has had its chance; 0 when there is nobody to wait for."""
        return self._turns.yielding_until if self.manner.quiet else 0.0

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
            self._ask_beside(acquisition)
        acquisition.take_turn(woken=True, in_turn=self._next_in_turn())

    def _ask_beside(self, acquisition: Waiter) -> None:
        if self._beside is None:
            self._beside = {}
        self._beside[acquisition] = None

    def _beside_no_more(self, acquisition: Waiter) -> None:
        if self._beside:
            self._beside.pop(acquisition, None)

    def _admit_owner(self) -> None:
        """Other waiters here of the owner that has just got in ask for it as well."""
        for acquisition in [waiting for waiting in self._queue if self._owns(waiting)]:
            del self._queue[acquisition]
            self._ask_beside(acquisition)
            acquisition.take_turn(woken=True, in_turn=False)

    def _admit_next(self) -> None:
        """Makes one the head: first one of those who enter together, then one that came later."""
        if self._head is not None or self._closed:
            return
        if self._entering:
            self._head = next(iter(self._asking_beside), None)
            if self._head is not None:
                self._beside_no_more(self._head)
                return
            self.give_up_place()
        if self._queue:
            self._admit()

    def __repr__(self) -> str:
        return f"<Gate held_here={self.held_here} asking={self._head is not None} queued={len(self._queue)}>"


def _ignore(_: Gate) -> None:
    """The callback of a timer that only keeps a gate alive."""
