"""The stand of a session in the queue on the server: its place there, its bell, and seats."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from ..._transport import ASK, BELL_RUNG, GONE, NO_END, NOT_OURS
from ..claim import Claim
from ..clock import seconds
from .here import Here
from .turns import Turns

if TYPE_CHECKING:
    from ..._transport import Command, Listener
    from ..claim import Resource
    from ..engine import Engine
    from .patience import Patient
    from .waiter import Waiter

_UNSEATED: Final = 3
"""The times in a row that the head asks at once where its bell does not hang after a refusal, and nothing
says that it was rung. Then its waiters poll until the next heartbeat."""


class Stand:
    """The waiters of one gate, as the server sees them: one place in the queue, one bell.

    The place is an entry in the queue on the server, which a refusal gives; the bell is rung when it is its
    turn.

    Invariants:
    - `place_taken` is True from the step on that learns that the entry may stand in the queue until it is
      given up; the session knows of the bell exactly as long;
    - `_armed` is True only while, for all that is known here, the bell hangs and is heard: it is cleared in
      the step that learns otherwise, and then the session listens for it again after the next refusal;
    - a bell that is rung, or gone, makes the head ask; where a task here excludes all waiters, the first that
      has a seat makes it hang again;
    - a place that nobody needs is given up.
    """

    __slots__ = (
        "__weakref__",
        "_answered",
        "_armed",
        "_beside",
        "_engine",
        "_entering",
        "_head",
        "_queue",
        "_resource",
        "_seated",
        "_turns",
        "_unseated",
        "here",
        "manner",
        "place_kept",
        "place_taken",
    )

    def __init__(self, engine: Engine, resource: Resource) -> None:
        self._engine = engine
        self._resource = resource
        self.manner = resource.manner
        self.place_taken = False
        self.place_kept = False  # an undo has left it standing, for others waited here
        self._armed = False
        self._answered = False  # since it was armed, the server has said that the bell hangs
        self._seated = False  # the last refusal has hung it up
        self._unseated = 0  # the times in a row that it did not hang after a refusal, as far as is known
        self.here = Here(exclusive=resource.manner.exclusive)
        self._queue: dict[Waiter, None] = {}  # in order; a waiter that leaves may stand anywhere
        self._head: Waiter | None = None
        self._beside: dict[Waiter, None] = {}  # those that ask beside the head
        self._turns = Turns()
        self._entering = False  # one got in by the place here, and those who waited then come along

    # -- those who wait

    @property
    def awaited(self) -> bool:
        """Whether somebody waits here."""
        return self._head is not None or bool(self._queue)

    def _asking(self) -> Iterator[Waiter]:
        """Those whose turn it is."""
        if self._head is not None:
            yield self._head
        yield from self._beside

    def _waiters(self) -> Iterator[Waiter]:
        """Those that ask, and those that do not yet."""
        yield from self._asking()
        yield from self._queue

    def is_behind(self, acquisition: Patient) -> bool:
        """Whether others of here go first, so that it asks for no more than a seat."""
        return acquisition in self._queue

    def others_wait(self, acquisition: Waiter) -> bool:
        """Whether anybody else does."""
        return any(one is not acquisition for one in self._waiters())

    @property
    def yielding_until(self) -> float:
        """When the waiter that was woken elsewhere has had its chance; 0 when there is nobody to wait for."""
        return self._turns.yielding_until if self.manner.yields else 0.0

    # -- the place in the queue on the server

    def take_place(self) -> None:
        """Somebody of here may be seated."""
        if not self.place_taken:
            self.place_taken = True
            self._engine.bells.add(self)

    def left_by(self, acquisition: Waiter) -> None:
        """That one got in, and left the queue.

        Where each has a seat, the others keep theirs, and the bell: if requests overtake each other, one may
        have sat down since that request was sent. And what an undo takes back may be executed after it.
        """
        if not self.place_kept and not (self.manner.strict and self.others_wait(acquisition)):
            self.left()

    def left(self) -> None:
        """The place was taken away, or is about to be."""
        self._entering = False
        if self.place_taken:
            self.place_taken = self.place_kept = self._armed = False
            self._engine.bells.discard(self)

    def leaves_late(self) -> Callable[[], bool] | None:
        """Whether the undo of one that has left must leave the queue; asked when the undo is written.

        Where requests overtake each other, the one that is undone may be executed late, and others of this
        session may have come or gone before it is, or before it is undone. While others wait, they keep the
        place, with its turn; it is given up when they have got in or have left. None where that is known
        beforehand.
        """
        if self._engine.ordered or self.manner.strict:
            return None
        engine, resource = weakref.ref(self._engine), self._resource

        def leaves() -> bool:
            session = engine()
            here = None if session is None else session.gate(resource)  # this gate may have ended since
            if here is None or not here.needs_place:
                return True
            here.take_place()
            here.place_kept = True
            return False

        return leaves

    @property
    def needs_place(self) -> bool:
        """Whether anybody waits here, or asks beside the head and would wait."""
        return any(not one.over for one in self._waiters())

    def give_up_place(self) -> None:
        """The place may stand there although nobody needs it any more."""
        of_use = self.place_of_use(1.0)
        # Those who come after others have entered by it must not have its turn as well.
        leaves_late = None if self._entering else self.leaves_late()
        self.left()
        self._engine.undo(self._nobody(), of_use, leave=True, leaves_late=leaves_late)

    def _nobody(self, seat: str = "") -> Claim:
        """A claim that holds nothing: its release gives up the seat, and wakes other waiters."""
        return Claim(self._resource.commands, seat, "", 1000)

    def place_of_use(self, seconds: float) -> float:
        """Seconds for which the request that gives it up is of use, if without it that is `seconds`."""
        return max(seconds, self._resource.commands.lingers) if self.place_taken else seconds

    # -- its bell

    @property
    def bells(self) -> tuple[bytes, ...]:
        """The keys by which it is known; several where it waits in several slots."""
        return self._resource.commands.all_bells

    @property
    def heard(self) -> bool:
        """Whether we are told when it is our turn."""
        return self._armed and self._engine.hears

    def _listened_for(self) -> None:
        """A request for that is sent now."""
        self._armed = True
        self._answered = False

    def listen(self, acquisition: Waiter) -> None:
        """The head was refused, and so its bell hangs: the session listens for it."""
        if not self._armed:
            self._listened_for()
            self._engine.bells.listen_for(self, acquisition.claim.listener())

    def not_ours(self, rung: Sequence[bytes], refused: Waiter) -> Sequence[bytes]:
        """Drops our own bell from `rung`. If it was there, the refusal has created it again: listen again."""
        others = [bell for bell in rung if bell not in self.bells]
        if len(others) < len(rung):
            self._armed = False
            if self.manner.strict and refused is not self._head:
                self._prompt("local")  # it may have been rung for the head
        return others

    def listener(self) -> Listener | Command[int] | None:
        """Shows that a waiter is still here, and tells when it must ask; None where it asks anyway."""
        waiter = self._head
        if waiter is None or not waiter.asleep:
            waiter = self._first_seated or waiter  # the head may get in, and its seat go, before that
        if waiter is None or not (self._armed or waiter.asleep or waiter is not self._head):
            return None
        if not self._armed:
            self._listened_for()
        self._unseated = 0  # with each heartbeat at least, a waiter whose bell is gone again asks
        return waiter.claim.listener()

    def listened(self, answer: int) -> None:
        """The server's answer about the waiters here: a time, or the reason why the head must ask."""
        if not self._armed:
            return  # something newer is known
        if answer in (GONE, NOT_OURS):
            self._missed(rung=answer == GONE and self._seated)
            return
        self._answered = True
        self._unseated = 0
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
        if self._armed:
            self._armed = False
            if self._head is not None and self._head.asleep and not self.here.closed:
                if self._answered:
                    self._head.prompt("poll", in_turn=False)
                else:  # it has just asked, and would again be told nothing
                    self._head.sleep_unheard()

    def rung(self, way: str) -> None:
        """The bell was rung; `way` is how we know. Somebody here is to try, unless nobody here may."""
        self._armed = False
        if not self._prompt(way) and self.manner.strict and self.awaited:
            (self._head or next(iter(self._queue))).sit_down()  # its bell is to hang again

    def lost(self, way: str) -> None:
        """The bell may be gone, and other processes may have taken this one for dead.

        The head asks, and is seated if it is refused; its waiters take their seats again behind it, in order.
        """
        self._armed = False
        self._prompt(way)
        if self.manner.strict:
            for acquisition in tuple(self._queue):
                acquisition.sit_down()

    def _missed(self, *, rung: bool) -> None:
        """The bell does not hang, and the news of why was lost, or is on its way.

        Where it was `rung` before the session listened for it, no number of tries counts: else a waiter would
        poll although it is told, only because another process takes the lock and lets go of it quickly.
        """
        known = self._answered or rung
        if known or self._unseated < _UNSEATED:
            self._unseated += not known
            self.lost("poll")
        else:
            self.unheard()

    @property
    def _first_seated(self) -> Waiter | None:
        """Of those who wait for their turn to ask, the first that has a seat of its own."""
        return next(iter(self._queue), None) if self.manner.strict else None

    def _prompt(self, way: str) -> bool:
        """The head is to ask; False if nobody here may."""
        if self._head is None or self.here.closed:
            return False
        self._head.prompt(way, in_turn=False)
        return True
