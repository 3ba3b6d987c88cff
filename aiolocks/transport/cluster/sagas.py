"""Calls that take several requests, where one script cannot reach all their keys: each is a state machine.

Only a cluster needs them, and only the transports to it run them. The requests of one state go out together.
When all are answered, or one has failed, the machine decides what comes next, without waiting. To *give back*
is to undo the acquire in a slot; no caller waits for that.

| from | to | when |
|---|---|---|
| `BEGUN` | `TOGETHER` | a call of one step in each slot, all at the same time: to renew, to release |
| `BEGUN` | `TAKING` | an acquire: the first slot is asked |
| `TAKING` | `TAKING` | granted, and the next slot is asked |
| `TAKING` | `SEALING` | granted by the last slot: all are sent the largest token |
| `TAKING` | `SEATING` | refused, and given back: a waiter takes a seat in the other slots, too |
| `TAKING` | `ENDED` | refused, and given back: the call is a single try |
| `SEALING` | `ENDED` | all have kept the token: granted. Or one has lost the lease: given back, refused |
| `SEATING` | `ENDED` | seated: refused |
| `BEGUN` | `ADOPTING` | an adoption: the first slot is asked |
| `ADOPTING` | `ADOPTING` | adopted, and the next slot is asked |
| `ADOPTING` | `RESTORING` | gone in a slot that is not the first: the slots before it adopt back |
| `ADOPTING` | `ENDED` | adopted by the last slot, or gone in the first |
| `TOGETHER`, `RESTORING` | `ENDED` | all slots have answered |
| any | `ENDED` | a request has failed: an acquire is given back. Or the caller has left, and undoes |

Invariants:
1. A slot is asked only when all slots of a lower number have granted: two callers cannot each have what the
   other waits for.
2. An acquire that has ended without a grant, and whose caller has not left, was given back in each slot that
   may have granted it: in all that were reached.
3. Granted is what every slot has confirmed after the last one had granted, with a token that is as large as
   the largest that any slot has minted.
4. Once a call has ended, nothing more of it is sent but what gives back.
5. Each bell that a request of it has rung is told: by the caller that has the answer, else by the machine.
6. A grant counts from when the first request was written, not from when the call was made: until then, that
   request has waited for other requests of its lane, or for a connection.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar, final

from .. import clocks
from ..answers import Answer, Granted, Refused, Released
from ..faults import Fault
from ..request import Request, take_back
from ..steps.standing import BEHIND, PASSING, SEATED, STAYING, WAITING

T = TypeVar("T")

TAKING_BACK: Final = 5.0
"""Seconds for which what was taken is given back, at least; it ends with its ttl anyway."""


class State(enum.Enum):
    """The states of the table above."""

    BEGUN = "begun"
    TOGETHER = "together"
    TAKING = "taking"
    SEALING = "sealing"
    SEATING = "seating"
    ADOPTING = "adopting"
    RESTORING = "restoring"
    ENDED = "ended"


_AFTER: Final[dict[State, tuple[State, ...]]] = {
    State.BEGUN: (State.TOGETHER, State.TAKING, State.ADOPTING),
    State.TOGETHER: (State.ENDED,),
    State.TAKING: (State.TAKING, State.SEALING, State.SEATING, State.ENDED),
    State.SEALING: (State.ENDED,),
    State.SEATING: (State.ENDED,),
    State.ADOPTING: (State.ADOPTING, State.RESTORING, State.ENDED),
    State.RESTORING: (State.ENDED,),
    State.ENDED: (),
}


@final
class SagaCommand(Request[T]):
    """A call that looks like one command and takes several.

    Attributes:
        saga: Makes the machine of it.
    """

    __slots__ = ("saga",)

    def __init__(self, saga: Callable[[], Saga], keys: tuple[bytes, ...], *, lane: str) -> None:
        super().__init__(None, keys, (), lambda result: result, lane=lane)
        self.saga = saga


class Saga(ABC):
    """One call of several requests.

    Attributes:
        state: A row of the table.
    """

    __slots__ = ("_at_once", "_call", "_first", "_left", "_parts", "_results", "_sagas", "state")

    _call: Request[Any]
    _sagas: Sagas

    def __init__(self) -> None:
        self.state = State.BEGUN
        self._first = True  # the requests under way are the ones that it begins with
        self._parts: list[Request[Any]] = []  # under way, or answered in this state
        self._results: list[Any] = []  # of these; None until it is answered
        self._left = 0  # how many are not answered

    @abstractmethod
    def first(self) -> tuple[State, Sequence[Request[Any]]]:
        """The state in which it begins, and the requests of that; has no effect."""

    @abstractmethod
    def _answered(self, results: list[Any]) -> None:
        """All requests of this state are answered."""

    def _failed(self, fault: Fault) -> None:
        """A request of this state has ended without an answer."""
        self._end(fault=fault)

    def begin(self, sagas: Sagas, call: Request[Any], *, at_once: bool) -> None:
        self._sagas, self._call, self._at_once = sagas, call, at_once
        call.sent_steady, call.sent = clocks.steady(), sagas.loop.time()
        call.written = True
        self._go(*self.first())

    def abandon(self) -> None:
        """The caller has left, and will undo by itself the steps that were done."""
        self._enter(State.ENDED)
        self._leave_parts()

    # -- from state to state

    def _enter(self, state: State) -> None:
        assert state in _AFTER[self.state], f"{self!r} cannot go to {state.name}"
        self.state = state

    def _go(self, state: State, requests: Sequence[Request[Any]]) -> None:
        """Sends the requests of the next state."""
        self._enter(state)
        call = self._call
        remade = self._first and call.make is not None
        self._results = [None] * len(requests)
        self._left = len(requests)
        self._parts = [
            request.again().ask(
                partial(self._replied, at),
                self._faulted,
                until=call.until,
                undoes=call.undoes,
                patient=call.patient,
                as_eval=call.as_eval,
                make=partial(self._remade, at) if remade else None,
                on_late=self._tell,
            )
            for at, request in enumerate(requests)
        ]
        for part in self._parts:
            if not part.done:
                self._sagas.send(part, at_once=self._at_once)

    def _end(self, result: Any = None, *, fault: Fault | None = None) -> None:
        self._enter(State.ENDED)
        self._parts = []  # as in `_leave_parts`
        self._sagas.ended(self._call)
        if fault is None:
            self._call.reply(result)
        else:
            self._call.fault(fault)

    def _take_back(self, requests: Sequence[Request[Released]], seconds: float) -> None:
        """No caller waits for these, or can take them back; they are of use for so long."""
        seconds, sagas = max(seconds, TAKING_BACK), self._sagas
        for request in requests:
            take_back(request, send=sagas.send, loop=sagas.loop, seconds=seconds, told=self._tell)

    # -- answers

    def _remade(self, at: int) -> Request[Any]:
        """One of the first requests, as it is to be written now."""
        command = self._call.as_of_now()
        assert isinstance(command, SagaCommand)
        return command.saga().first()[1][at]

    def _replied(self, at: int, result: Any) -> None:
        call, parts = self._call, self._parts
        self._left -= 1
        self._results[at] = result
        call.unconfirmed |= parts[at].unconfirmed
        if self._left:
            return
        if self._first:  # each may have waited for other requests of its lane, or for a connection
            self._first = False
            call.sent = min(part.sent for part in parts)
            call.sent_steady = min(part.sent_steady for part in parts)
        self._answered(self._results)

    def _faulted(self, fault: Fault) -> None:
        self._leave_parts()
        self._call.unconfirmed = True  # it is not known whether the other requests were executed
        self._failed(fault)

    def _leave_parts(self) -> None:
        """Gives up the requests under way. Tells of bells that answered ones have rung: no caller does."""
        for part in self._parts:
            part.done = True
        self._parts = []  # they refer to this machine: no circle is left
        for result in self._results:
            self._tell(result)

    def _tell(self, result: Any) -> None:
        if rung := getattr(result, "rung", ()):
            self._sagas.on_rung(rung)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.state.name}, {self._left} of {len(self._results)} under way>"


@final
class Together(Saga):
    """One step in each slot, at the same time.

    Args:
        requests: One for each slot.
        told: What their answers say together.
    """

    __slots__ = ("_requests", "_told")

    def __init__(self, requests: Sequence[Request[Any]], told: Callable[[list[Any]], Any]) -> None:
        super().__init__()
        self._requests = requests
        self._told = told

    def first(self) -> tuple[State, Sequence[Request[Any]]]:
        return State.TOGETHER, self._requests

    def _answered(self, results: list[Any]) -> None:
        self._end(self._told(results))


@final
class Taking(Saga):
    """The acquire of all slots, or none. Ends with an `Answer`.

    Args:
        slots: How many, in the order in which all callers take them.
        acquire: The acquire in a slot, with what it says of its asker.
        seal: Writes the token to the names of a slot, and answers how many waiters stand there, or less
            than 0 where the lease is gone. It is told whether to leave the queue, too.
        give_back: Frees what a slot may have granted.
        standing: What the call says of its asker.
        seconds: How long a grant lasts.
    """

    __slots__ = (
        "_acquire",
        "_give_back",
        "_minted",
        "_reached",
        "_refused",
        "_seal",
        "_seconds",
        "_slots",
        "_standing",
    )

    def __init__(
        self,
        slots: int,
        acquire: Callable[[int, int], Request[Answer]],
        seal: Callable[[int, int, bool], Request[int]],
        give_back: Callable[[int], Request[Released]],
        *,
        standing: int,
        seconds: float,
    ) -> None:
        super().__init__()
        self._slots = slots
        self._acquire = acquire
        self._seal = seal
        self._give_back = give_back
        self._standing = standing
        self._seconds = seconds
        self._reached = 0  # the slot that was asked last
        self._minted = 0  # the largest token so far
        self._refused: Refused | None = None

    def first(self) -> tuple[State, Sequence[Request[Any]]]:
        # The queues are left when all slots have granted. The slot that refuses seats the waiter in the same
        # step, the other slots after that.
        asking = self._standing & ~(SEATED | STAYING | PASSING)
        return State.TAKING, (self._acquire(self._reached, asking),)

    def _answered(self, results: list[Any]) -> None:
        match self.state:
            case State.TAKING:
                self._taken(results[0])
            case State.SEALING if min(results) < 0:
                self._take_back_reached()
                self._end(Refused(0, seated=False))
            case State.SEALING:
                self._end(Granted(self._minted, max(results)))
            case _:
                self._end(self._refused)

    def _taken(self, answer: Answer) -> None:
        if isinstance(answer, Refused):
            # Other waiters may have been refused what was taken for a moment. Of the permits that are free in
            # the slot that refused, a waiter that was woken tells the waiters after it.
            self._take_back_reached(with_last=bool(self._standing & PASSING))
            if not self._standing & WAITING:
                self._end(answer)
                return
            self._refused = answer
            others = [slot for slot in range(self._slots) if slot != self._reached]
            self._go(State.SEATING, [self._acquire(slot, WAITING | BEHIND) for slot in others])
            return
        self._minted = max(self._minted, answer.fencing_token)
        if self._reached + 1 < self._slots:
            self._reached += 1
            self._go(*self.first())
            return
        leaving = self._standing & (SEATED | STAYING) == SEATED
        self._go(State.SEALING, [self._seal(slot, self._minted, leaving) for slot in range(self._slots)])

    def _failed(self, fault: Fault) -> None:
        self._take_back_reached()
        self._end(fault=replace(fault, unknown=True))

    def _take_back_reached(self, *, with_last: bool = True) -> None:
        number = self._reached + 1 if with_last else self._reached
        self._take_back([self._give_back(slot) for slot in range(number)], self._seconds)


@final
class Adopting(Saga):
    """The adoption in all slots, or none. Ends with the largest token, or with None.

    The process that is first in the first slot has all of them. A name that is gone in one slot has no
    holder.

    Args:
        slots: How many, in the order in which all callers take them.
        adopt: The adoption in a slot. It answers None where there is nothing to adopt.
        restore: The way back.
    """

    __slots__ = ("_adopt", "_minted", "_restore", "_slots")

    def __init__(
        self,
        slots: int,
        adopt: Callable[[int], Request[int | None]],
        restore: Callable[[int], Request[int | None]],
    ) -> None:
        super().__init__()
        self._slots = slots
        self._adopt = adopt
        self._restore = restore
        self._minted: list[int] = []  # of the slots that were adopted

    def first(self) -> tuple[State, Sequence[Request[Any]]]:
        return State.ADOPTING, (self._adopt(len(self._minted)),)

    def _answered(self, results: list[Any]) -> None:
        if self.state is State.RESTORING:
            self._end(None)
        elif (token := results[0]) is None:
            if self._minted:
                self._go(State.RESTORING, [self._restore(slot) for slot in range(len(self._minted))])
            else:
                self._end(None)
        else:
            self._minted.append(token)
            if len(self._minted) < self._slots:
                self._go(*self.first())
            else:
                self._end(max(self._minted))


@final
class Sagas:
    """The sagas under way over one transport.

    Args:
        send: Of the transport.
        on_rung: Told of bells that were rung, where no caller is: while taking back, or after the end.
    """

    __slots__ = ("_begun", "loop", "on_rung", "send")

    def __init__(
        self, send: Callable[..., None], on_rung: Callable[[Sequence[bytes]], None], loop: AbstractEventLoop
    ) -> None:
        self.send = send
        self.on_rung = on_rung
        self.loop = loop
        self._begun: dict[Request[Any], Saga] = {}

    def begin(self, call: Request[Any], *, at_once: bool) -> None:
        command = call.as_of_now()
        assert isinstance(command, SagaCommand)
        saga = self._begun[call] = command.saga()
        saga.begin(self, call, at_once=at_once)

    def ended(self, call: Request[Any]) -> None:
        """Nothing more of it is to come."""
        self._begun.pop(call, None)

    def forget(self, call: Request[Any]) -> None:
        """Its caller has left."""
        if (saga := self._begun.pop(call, None)) is not None and not call.done:
            saga.abandon()
