"""The queue of one session: of all its tasks that want the same thing, one at a time asks the server.

`Gate` is that queue, with its holders (`Here`) and its place in the queue on the server; `Turns` decides when
a release gives another process its turn.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, final

from .._tasks import empty_context
from ..transport import (
    ASK,
    BEHIND,
    BELL_RUNG,
    GONE,
    IN_TURN,
    NO_END,
    NOT_OURS,
    OWING,
    SEATED,
    STAYING,
    TOLD,
    WAITING,
    Listener,
)
from .clock import seconds
from .waiter import Waiter

if TYPE_CHECKING:
    from ..transport import Fault, Granted, Refused, Request
    from ..transport.steps.base import NameSteps
    from .engine import Engine
    from .lease import Possession, Resource
    from .tenure import Tenure

_RUN: Final = 16
"""Hand-overs from task to task within a process, after which another process that waits has its turn."""
_RUN_SECONDS: Final = 0.05
"""The same limit in seconds since the first grant, for tasks that hold for longer."""
_YIELDING: Final = 0.005
"""Seconds for which a session that has woken another process lets it go first: as long as a wakeup may take.
Without this pause the releasing session would win every race: it can retry at once, while the woken process
still has to wake up."""
_DEAF_RUN: Final = 4
"""Without pushes a woken process notices only at its next poll, and until then the lock is idle. So a run is
longer without them: this many times the longest sleep."""

_NONE: Final[Any] = MappingProxyType[Any, Any]({})
"""The waiters of a gate that has had none: many thousand leases may be held. None can be put here."""


@final
class Turns:
    """Counts the hand-overs in a row within this process, and remembers whom it owes a turn.

    Invariant: while another process is known to wait, at most `_RUN` hand-overs follow each other in this
    session, and none of them begins later than `_RUN_SECONDS` after the first grant. Where bells are not
    heard, the time alone counts, and is `_DEAF_RUN` times the longest sleep.

    `longest_sleep` is that of a waiter that does not hear; None where bells are heard.
    """

    __slots__ = ("giving", "others", "owed", "run", "since", "yielding_until")

    def __init__(self) -> None:
        self.giving = False  # the release under way gives another process its turn
        self.others = 0  # waiters in the queue on the server, as of the last grant to this session
        self.run = 0  # the hand-overs in a row
        self.since = 0.0  # when the first of the run was granted
        self.yielding_until = 0.0  # when the woken waiter of another process has had its chance; 0: none
        self.owed = False  # a holder let go without waking another process: that is still to be done

    def granted(self, others: int, now: float) -> None:
        if self.owed:
            self.run += 1
        else:
            self.run = 0
            self.since = now
        self.owed = self.giving = False
        self.yielding_until = 0.0  # the waiter that was woken has had its chance
        self.others = others

    def others_ask(self) -> None:
        """Another session asks for what this session holds: the other session's turn is next."""
        self.run = _RUN
        self.others = max(1, self.others)

    def over(self, now: float, longest_sleep: float | None) -> bool:
        """Whether it is another process's turn, although a task of this session waits."""
        if longest_sleep is not None:
            over = now - self.since >= _DEAF_RUN * longest_sleep
        else:
            over = self.run >= _RUN or now - self.since >= _RUN_SECONDS
        self.giving = over and self.others > 0
        return self.giving

    def rang(self, now: float, longest_sleep: float | None) -> float:
        """Another process was woken: for how many seconds it goes first."""
        giving, self.giving = self.giving, False
        seconds = _YIELDING
        if longest_sleep is not None:
            seconds = longest_sleep if giving else 0.0  # too long to lie idle for each single hand-over
        self.yielding_until = now + seconds
        return seconds

    def yielding(self, clock: Callable[[], float]) -> bool:
        """Whether other processes go first."""
        if self.yielding_until and clock() >= self.yielding_until:
            self.yielding_until = 0.0
        return self.yielding_until > 0.0


@final
class Here:
    """The holders of one gate, by their tokens.

    Invariants:
    - `closed` says whether one of them excludes all waiters, who then do not ask;
    - the token of a tenure that no task uses stands among them, until that is over: before a task asks;
    - it keeps no lease alive that its task has: a lease that no other code refers to must be collected.

    Attributes:
        closed: No waiter may ask.
        also: The other holders: steps and lease, by their tokens.
        first: The token of one that holds it, if any does; there are several where they do not exclude each
            other, or where the server has lost its data.
        lease_ref: The lease of the first, or of the one that was the first.
        steps: Those of the first, in the same way.
    """

    __slots__ = ("_exclusive", "also", "closed", "first", "lease_ref", "steps")

    def __init__(self, *, exclusive: bool) -> None:
        self._exclusive = exclusive
        self.first: str | None = None
        self.steps: NameSteps | None = None  # of the first
        self.lease_ref: weakref.ref[Possession] | None = None  # of the first
        # Most gates never have a second holder.
        self.also: dict[str, tuple[NameSteps, weakref.ref[Possession]]] | None = None
        self.closed = False

    def __contains__(self, token: str) -> bool:
        return self.first == token or (self.also is not None and token in self.also)

    @property
    def held(self) -> bool:
        """Whether a task of this session is known to hold it."""
        return self.first is not None

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return bool(self.also)

    @property
    def lease(self) -> Possession | None:
        """That of the first; None: none holds it, or no code refers to the lease any more."""
        return None if self.first is None or self.lease_ref is None else self.lease_ref()

    def _holders(self) -> Iterator[tuple[str, NameSteps]]:
        if self.first is not None and self.steps is not None:
            yield self.first, self.steps
        for token, (steps, _) in (self.also or {}).items():
            yield token, steps

    @property
    def owners(self) -> set[str]:
        """The owners that hold it."""
        return {steps.owner(token) for token, steps in self._holders()}

    def are_of(self, owner: str) -> bool:
        """Whether that owner holds it."""
        return any(steps.owner(token) == owner for token, steps in self._holders())

    def add(self, lease: Possession) -> None:
        """It was granted, or adopted."""
        if self.first is None:
            self.first = lease.token
            self.steps = lease.steps
            self.lease_ref = weakref.ref(lease)
            self.closed = self._exclusive
        elif self.first != lease.token:
            if self.also is None:
                self.also = {}
            self.also[lease.token] = lease.steps, weakref.ref(lease)

    def remove(self, token: str) -> bool:
        """Whether it did hold."""
        if self.first == token:
            self.first = None
            if self.also:
                self.first, (self.steps, self.lease_ref) = self.also.popitem()
            self.closed = self._exclusive and self.first is not None
            return True
        if self.also and token in self.also:
            del self.also[token]
            return True
        return False


_UNSEATED: Final = 3
"""The times in a row that the head asks at once where its bell does not hang after a refusal, and nothing
says that it was rung. Then its waiters poll until the next heartbeat."""


@final
class Gate:
    """First come, first served. However many tasks wait in it, the server sees one, or a seat of each.

    The server sees the waiters of one gate as one place in its queue, and one bell. The place is an entry in
    the queue, which a refusal gives; the bell is rung when it is its turn.

    Where a waiter of this session stands. In the table, each task, holder and waiter is of this session:

    | from | to | when |
    |---|---|---|
    | new | asking, without a waiter | no task waits or excludes it, and nothing is owed (`idle`) |
    | asking, without a waiter | head | anything but a plain grant, or another comes (`promote`) |
    | new | head | there is no head, and no holder excludes it (`enter`) |
    | new | beside the head | its owner holds it already, and its leases nest (`enter`) |
    | new | queued | else (`enter`); in a strict queue it asks for a seat |
    | queued | head | there is none: the head got in or left, or a holder let go (`_admit_next`) |
    | queued | beside the head | a grant said that there is room; the server named its seat as the first |
    | beside the head | head | there is none, and no later waiter may pass it (`_admit_next`, `refused`) |
    | beside the head | queued, as the first | it was refused, and another waiter is the head (`refused`) |
    | any | none | it got in (`waiter_ended`) or left (`waiter_left`) |

    Invariants:
    - at most one waiter of a session, the *head*, asks the server. Another task asks only if (a) a grant said
      that there is room, (b) the server named its seat as the first, (c) its owner holds it already, and its
      leases nest, (d) it is a single try; in a strict queue, a queued waiter asks for no more than a seat.
      There is no head while a holder of this session excludes it;
    - `stirred` is set by each step after which it may not be settled;
    - at most one of `asking` and the head is set: while an acquire asks without a waiter there is no head,
      and none beside or queued: the next acquire makes it the head first;
    - `_nesting` has exactly the waiters of the queue whose leases nest, in its order;
    - no task begins to ask for more than a seat while a holder of this session is known to exclude it, except
      for a task that tries just once;
    - a task that leaves, by any way, passes its place on in the same step;
    - waiters that enter together had begun to wait when one of them got in by the place that they share. A
      waiter that comes later asks when all of them have entered and the place, with the turn that it had, is
      given up: else readers that come one after the other would keep the turn, and no writer would enter;
    - a lock that is free while another process waits does not stay unnoticed: a release either wakes a waiter
      of that process, or the head's try follows right after it. Then the last task that leaves this gate does
      the rest (`must_tell_others`);
    - `place_taken` is True from the step on that learns that the entry may stand in the queue until it is
      given up; the session knows of the bell exactly as long;
    - `_armed` is True only while, as far as the session knows, the bell hangs and is heard: it is cleared in
      the step that learns otherwise, and then the session listens for it again after the next refusal;
    - a bell that is rung, or gone, makes the head ask; where a holder of this session excludes all waiters,
      the first waiter that has a seat makes the bell hang again;
    - a place that no waiter needs is given up.

    It lives for as long as a lock or a task that waits or holds refers to it, or the session for a moment.
    """

    __slots__ = (
        "__weakref__",
        "_answered",
        "_armed",
        "_bells",
        "_beside",
        "_engine",
        "_entering",
        "_head",
        "_in_turn",
        "_listens_along",
        "_nesting",
        "_queue",
        "_resource",
        "_sketchy",
        "_suspects",
        "_turns",
        "_unseated",
        "answered_at",
        "asking",
        "contended_bell",
        "first_standing",
        "here",
        "kept",
        "place_taken",
        "policy",
        "refusal",
        "refused_until",
        "seated",
        "silent_since",
        "stirred",
    )

    @staticmethod
    def of(engine: Engine, resource: Resource) -> Gate:
        """The one gate of a session for all tasks that want the same thing."""
        gate: Gate | None = engine.gates.get(resource.gate_key)
        if gate is None:
            gate = engine.gates[resource.gate_key] = Gate(engine, resource)
        return gate

    def __init__(self, engine: Engine, resource: Resource) -> None:
        self._engine = engine
        self._resource = resource
        self.policy = resource.policy
        # A lease that is asked for without a waiter, or one that is kept, and idle.
        self.asking: Possession | Tenure | None = None
        self.kept: Tenure | None = None  # the lease that its session may keep, used or not
        # As `asks` and the waiter say it, of one for whom `idle` holds.
        self.first_standing = WAITING | TOLD | (IN_TURN if self.policy.strict else 0)
        self.stirred = False  # a task may wait, or something be remembered or owed: see `settled`
        self.place_taken = False
        self._bells: tuple[bytes, ...] | None = None  # made when they are first needed
        self._armed = False
        self._answered = False  # since it was armed, the server has said that the bell hangs
        self._sketchy = False  # and no more than that
        self.seated = False  # the last refusal of a waiter has hung it up
        # The bell, where the last acquire that none of this session was in the way of was refused.
        self.contended_bell = b""
        self._listens_along = False  # a request for its bell went with the one that asks
        self._unseated = 0  # the times in a row that it did not hang after a refusal, as far as is known
        self.here = Here(exclusive=resource.policy.exclusive)
        # Most gates never have a waiter: see `_make_room`.
        self._queue: dict[Waiter, None] = _NONE  # in order; a waiter that leaves may stand anywhere
        # The waiters of the queue whose leases nest, by owner: a grant looks for the waiters of its owner.
        self._nesting: dict[str, dict[Waiter, None]] = _NONE
        self._head: Waiter | None = None
        self._beside: dict[Waiter, None] = _NONE  # the waiters that ask beside the head
        self._turns = Turns()
        self._entering = False  # one got in by the shared place, and the waiters of that time follow it
        self._in_turn = False  # the next head goes behind the waiters of other processes
        # The last answer of the server to any task of this session; times of the loop.
        self.answered_at = float("-inf")
        self.refused_until: float | None = None
        self.silent_since: float | None = None  # when the first task asked that has had no answer yet
        self.refusal: Refused | None = None  # the last one, while a waiter is left that it concerns
        self._suspects: dict[Waiter, None] = _NONE  # the queued waiters that may wait for their own task

    @property
    def must_tell_others(self) -> bool:
        """Whether other processes must be told when no task of this session waits any more."""
        return self.place_taken or self._turns.owed

    def asks(self, acquisition: Waiter) -> int:
        """That waiter asks: the flags by which the server is told how it stands to other waiters."""
        if self.silent_since is None:
            self.silent_since = self._engine.now()
        standing = self.first_standing
        if self.place_taken:
            standing |= SEATED
        if self._turns.owed:
            standing |= OWING
        if self._queue or self._beside or self._head is not acquisition:
            if self._keeps_place(acquisition):
                standing |= STAYING
            if acquisition in self._queue:
                standing |= BEHIND
                standing ^= TOLD
        return standing

    def refused_with(self, refusal: Refused, until: float | None) -> None:
        """A task of this session was refused: for all its waiters, that is the news."""
        if self.awaited or self._beside or self.asking is not None:
            self.refusal = refusal
        self.refused_until = until
        for acquisition in tuple(self._suspects):
            acquisition.suspect()

    def watch_for_itself(self, acquisition: Waiter) -> None:
        """Its task may be in its own way: each refusal of this gate makes it look."""
        self._suspects[acquisition] = None

    def watch_no_more(self, acquisition: Waiter) -> None:
        if self._suspects:
            self._suspects.pop(acquisition, None)

    def remaining(self, now: float) -> float | None:
        """Seconds that the holder's lease has left; None when unknown."""
        if self.here.closed or self.refused_until is None:
            lease = self.here.lease
            return None if lease is None or lease.watch is None else lease.remaining()
        return max(0.0, self.refused_until - now)

    # -- the waiters
    @property
    def awaited(self) -> bool:
        """Whether a task of this session waits, other than beside the head or with a first request."""
        return self._head is not None or bool(self._queue)

    def _asking(self) -> Iterator[Waiter]:
        """The waiters whose turn it is."""
        if self._head is not None:
            yield self._head
        yield from self._beside

    def _waiters(self) -> Iterator[Waiter]:
        """All waiters: first the ones that ask, then the ones that do not yet."""
        yield from self._asking()
        yield from self._queue

    def is_behind(self, acquisition: Waiter) -> bool:
        """Whether other waiters of this session go first, so that it asks for no more than a seat."""
        return acquisition in self._queue

    def others_wait(self, acquisition: Waiter) -> bool:
        """Whether there is a waiter other than this one."""
        return any(one is not acquisition for one in self._waiters())

    @property
    def yielding_until(self) -> float:
        """When the waiter that was woken in another process has had its chance; 0 when there is none."""
        until = self._turns.yielding_until
        return until if until and self.policy.yields else 0.0

    # -- an acquire that no other one has disturbed

    @property
    def settled(self) -> bool:
        """Whether no task of this session waits or asks, and no turn is owed to other processes.

        Until the next step that may change that, or gives another process a turn, `stirred` is False.
        """
        turns = self._turns
        if (
            self._head is not None
            or self._queue
            or self._beside
            or self.place_taken
            or self.asking is not None
            or turns.owed
        ):
            return False
        if not (self._in_turn or turns.yielding_until):
            self.stirred = False
        return True

    @property
    def idle(self) -> bool:
        """Whether a task that comes now asks without a waiter: it is settled, and no holder excludes it.

        Where it is another process's turn, the task's request says so (`next_in_turn`).
        """
        return self.asking is None and not self.here.closed and (not self.stirred or self.settled)

    @property
    def untouched(self) -> bool:
        """Whether no task of this session asks or holds, and each acquire so far was one plain request."""
        return self.asking is None and not self.stirred and not self.here.held

    @property
    def alone(self) -> bool:
        """Whether a task that comes now waits for tasks of this session at most.

        No task of this session asks the server, and nothing is owed to other processes.
        """
        turns = self._turns
        return not (
            self._head is not None
            or self._beside
            or self.place_taken
            or self.asking is not None
            or self._in_turn
            or turns.owed
            or turns.yielding_until
        )

    def first_ask_granted(self, lease: Possession, others: int, now: float) -> None:
        """It was granted, and nothing has come between: no turn is owed."""
        self.asking = self.refusal = None
        self.answered_at = now
        if self.contended_bell and not others:  # with others, it is likely to be refused next time
            self.contended_bell = b""
        turns, here = self._turns, self.here
        turns.giving = False  # as `Turns.granted`
        turns.run = 0
        turns.since = now
        turns.yielding_until = 0.0
        turns.others = others
        if here.first is None:  # as `Here.add`
            here.first = lease.token
            here.steps = lease.steps
            here.lease_ref = weakref.ref(lease)
            here.closed = self.policy.exclusive
        else:
            here.add(lease)

    def promote(self, lease: Possession) -> Waiter:
        """Its acquire is more than a plain request, and goes on as a waiter, the head.

        At one of three events: its request was refused, or is in doubt (a fault, a grant that came late or
        after a repetition, that woke waiters or has to reach replicas); another task comes, or has got in;
        its own task leaves, or the session ends.
        """
        assert self.asking is lease, "it asks without a waiter"
        assert self._head is None, "while it asks there is no head"
        self.stirred = True
        if self._queue is _NONE:
            self._make_room()
        lease.waiter = self._head = waiter = Waiter(lease, None)
        self.asking = None
        self.pass_by(lease)
        if self.answered_at < lease.started:  # a single try may have been answered in the meantime
            self.silent_since = lease.started
        waiter.take_over(lease)
        return waiter

    def pass_by(self, lease: Possession) -> None:
        """It asks, or has asked, beside a lease of a tenure, or one that may begin it: that is told."""
        if self.kept is not None and self.kept is not lease.claim:
            self.kept.pass_by()

    # -- waiters in general

    def enter(self, acquisition: Waiter) -> None:
        self.stirred = True
        if self._queue is _NONE:
            self._make_room()
        if self.asking is not None:
            self.asking.another_comes()
        if self._head is None and not self.here.closed:
            assert not self._queue, "a waiter is queued, and nobody asks"
            self.pass_by(acquisition.lease)
            self._head = acquisition
            acquisition.take_turn(woken=False, in_turn=self.next_in_turn())
        elif (nests := acquisition.lease.nests) and self.here.are_of(acquisition.lease.owner):
            self._beside[acquisition] = None
            acquisition.take_turn(woken=False, in_turn=False)
        else:
            self._queue[acquisition] = None
            if nests:
                self._nesting.setdefault(acquisition.lease.owner, {})[acquisition] = None
            if self.policy.strict:
                acquisition.sit_down()

    def _make_room(self) -> None:
        """The first waiter comes: it may stand in any of these."""
        self._queue, self._nesting, self._beside, self._suspects = {}, {}, {}, {}

    def _keeps_place(self, acquisition: Waiter) -> bool:
        """Whether other waiters of this session need the place when this one gets in."""
        if self._head is not None and self._head is not acquisition:
            return True
        return self.policy.stays and self.others_wait(acquisition)

    def waiter_left(self, acquisition: Waiter) -> None:
        """A waiter has ended without a grant."""
        self.waiter_ended(acquisition)
        self._admit_next()

    def refused(self, acquisition: Waiter) -> bool:
        """Whether it goes on as the head; if not, it waits behind the head, before all other waiters."""
        self._entering = False
        if acquisition is self._head:
            self._turns.owed = False  # the present holder will wake the other processes
            return True
        if self.is_behind(acquisition):
            return False
        self._beside.pop(acquisition, None)
        if self._head is None and not self.here.closed:
            self._head = acquisition
            return True
        self._queue = {acquisition: None, **self._queue}
        if acquisition.lease.nests:
            owner = acquisition.lease.owner
            self._nesting[owner] = {acquisition: None, **self._nesting.get(owner, {})}
        return False

    def goes_first(self, seat: str) -> None:
        """That seat of this session stands before all other seats, but another waiter of it has asked.

        Requests can overtake each other. Then either the seat's waiter sat down before waiters that had come
        earlier, and is to ask; or it has left, and the request that gives its seat up is still on its way.
        """
        for acquisition in self._queue:
            if acquisition.lease.token.startswith(seat):
                if not self.here.closed:
                    self._admit(acquisition)
                return
        if not any(asking.lease.token.startswith(seat) for asking in self._asking()):
            self._give_up(1.0, seat=seat)

    def others_told(self) -> None:
        """The other processes were told that no task of this session waits any more."""
        self._turns.owed = False
        self.seat_dropped()

    # -- the holders
    def granted(self, lease: Possession, answer: Granted, now: float, *, carried: bool) -> None:
        """A task of this session holds it now: a waiter, which has left the gate, or a single try.

        `carried`: the request has told other processes of what a task of this session has let go of.
        """
        if self.asking is not None:
            self.asking.another_comes()
        owed = self._turns.owed and not carried
        self._turns.granted(answer.others, now)
        self.refusal = None
        self.here.add(lease)
        if self.policy.exclusive:
            if self._nesting and lease.steps.nests:
                self._admit_owners()
        else:
            self._turns.owed = owed  # permits that came back meanwhile were not granted
            # Strictly: a waiter that is refused must not be overtaken by one that asked after it.
            if not self.policy.strict and not self._entering:
                for _ in range(min(answer.room, len(self._queue))):
                    self._admit()
                self._entering = self.policy.together and self.place_taken
            self._admit_next()
        if self.place_taken and not self.needs_place:
            self.drop_seat()  # it was kept for other waiters, which have left since then, or have got in
        elif self._turns.owed and not self.awaited:
            self._turns.owed = False
            self._give_up(1.0)

    def holder_releasing(self, token: str) -> bool:
        """Called if `awaited`: whether the release of this holder must wake a waiter of another process.

        If not, then `holds_no_more` follows, which makes the head try right behind it.
        """
        policy, here, turns = self.policy, self.here, self._turns
        if not policy.quiet or (here.first != token and token not in here):
            return True
        if policy.exclusive:
            if here.also:
                return True
        elif self._head is not None and not self._head.asleep:
            return True  # its try is on its way, and cannot go right behind
        if policy.strict:
            # A waiter of another process may be the first: the request that is refused for it wakes it.
            turns.owed = True
            return False
        self._in_turn = over = turns.over(self._engine.now(), self._engine.longest_sleep)
        turns.owed = not over
        return over

    def after_kept(self, tenure: Tenure) -> Waiter | Literal[False] | None:
        """The waiter of this session that has the kept lease next; None: no waiter, and the session keeps it.

        False: it must be let go of, for it cannot serve a waiter of this session, or a waiter stands in the
        queue on the server.
        """
        if not self.alone or self.here.several:
            return False
        waiter = next(iter(self._queue), None)
        if waiter is None:
            self.stirred = False  # as `settled`
            return None
        return waiter if tenure.serves(waiter.target) else False

    def others_go_first(self) -> None:
        """Another session asks for what this session keeps: this session goes behind the other one."""
        self._turns.others_ask()
        self._in_turn = self.stirred = True

    def holder_dropped(self, token: str) -> None:
        """A grant is given back, or its lease was collected."""
        if self.kept is not None and self.kept.token == token:
            self.kept.over()
        self.holds_no_more(token)

    def holds_no_more(self, token: str) -> None:
        """A holder lets go, or has lost it. Does nothing for one that does not hold it."""
        here = self.here
        if here.first == token and not here.also:  # as `Here.remove`
            here.first = None
            here.closed = False
            if not self.stirred:
                return
        elif here.first is None or not here.remove(token) or here.closed:
            return
        if self._head is None:
            if self._queue or self._beside or self._entering:
                self._admit_next()
        elif not self.policy.together:
            self._head.prompt("local", in_turn=self.next_in_turn())

    def not_waited_for(self) -> None:
        """No exit waits for the release that was just sent: the next request may go right behind it.

        That request would be executed before any waiter of another session, which the release wakes, could
        ask. So it goes behind the waiters that stood in the queue on the server as of the last grant.
        """
        if self._turns.others and not self.policy.strict:
            self._in_turn = self.stirred = True

    def holder_released(self, rung: Sequence[bytes], *, overtaken: bool) -> None:
        """The release of a holder has ended, and woke the owners of these bells.

        `overtaken` by what was to go right behind it, for the server did not know its script.
        """
        if rung and any(bell not in self.bells for bell in rung):
            self.stirred = True
            yielding = self._turns.rang(self._engine.now(), self._engine.longest_sleep)
            # Until then the timer keeps this gate, which remembers who goes first.
            self._engine.loop.call_later(yielding, _ignore, self, context=empty_context())
        elif not (self.policy.together or self.here.closed or self._head is None) and self._head.asleep:
            self._head.prompt("local", in_turn=self.yielding)  # its try was to go right behind
        elif overtaken and not self.awaited and not self.here.held:
            # The last waiter of this session has left, and told other processes: but it was not free yet.
            self._give_up(1.0)

    def waiter_ended(self, acquisition: Waiter) -> None:
        """A waiter has ended, by any way: it leaves this gate."""
        if self._head is acquisition:
            self._head = None
        elif acquisition in self._queue:
            self._leave_queue(acquisition)
        else:
            self._beside.pop(acquisition, None)
        if self._head is None and not self._queue and not self._beside:
            self.silent_since = None
            self.refusal = None
            return
        if self._head is None and self._queue and not self.here.closed:
            return  # the next one asks at once
        # Of the queued, one may have asked for a seat; there may be very many.
        unsure = self._asking() if self.silent_since is None else self._waiters()
        if not any(waiter.unanswered for waiter in unsure):
            self.silent_since = None
            self.refusal = None

    @property
    def yielding(self) -> bool:
        """Whether other processes go first."""
        return self._turns.yielding(self._engine.now)

    def next_in_turn(self) -> bool:
        """Whether the next request goes behind waiters of other processes; asked once for each request."""
        if not self._in_turn:
            return self._turns.yielding_until > 0.0 and self._turns.yielding(self._engine.now)
        self._in_turn = False
        return True

    def _admit(self, acquisition: Waiter | None = None) -> None:
        """The first in the queue asks, or that one."""
        acquisition = acquisition or next(iter(self._queue))
        self._leave_queue(acquisition)
        if self._head is None:
            self._head = acquisition
        else:
            self._beside[acquisition] = None
        acquisition.take_turn(woken=True, in_turn=self.next_in_turn())

    def _admit_owners(self) -> None:
        """Other waiters of the owner that has just got in ask for it as well."""
        found = [own for owner in self.here.owners if (own := self._nesting.get(owner))]
        if len(found) > 1:  # a lease was taken by force, and its task does not know yet
            found = [{one: None for one in self._queue if any(one in own for own in found)}]
        for acquisition in [one for own in found for one in own]:
            self._leave_queue(acquisition)
            self._beside[acquisition] = None
            acquisition.take_turn(woken=True, in_turn=False)

    def _leave_queue(self, acquisition: Waiter) -> None:
        del self._queue[acquisition]
        if self._nesting and acquisition.lease.nests:
            own = self._nesting[owner := acquisition.lease.owner]
            del own[acquisition]
            if not own:
                del self._nesting[owner]

    def _admit_next(self) -> None:
        """Makes one the head: first one that asks already and is to go first, then one that came later."""
        if self._head is not None or self.here.closed:
            return
        if self._entering or self.policy.strict:
            self._head = next(iter(self._beside), None)
            if self._head is not None:
                del self._beside[self._head]
                return
        if self._entering:
            self.drop_seat()
        if self._queue:
            self._admit()

    # -- the place in the queue on the server

    def take_place(self) -> None:
        """A waiter of this session may be seated."""
        if not self.place_taken:
            self.place_taken = self.stirred = True
            self._engine.bells.add(self)

    def waiter_got_in(self, acquisition: Waiter) -> None:
        """A waiter got in, and the server has taken its place out of the queue.

        Where each waiter has a seat, the other waiters keep their seats, and the bell: if requests overtake
        each other, a waiter may have sat down since that request was sent. And what an undo takes back may be
        executed after it.
        """
        if not (self.policy.strict and self.others_wait(acquisition)):
            self.seat_dropped()

    def seat_dropped(self) -> None:
        """The place in the queue on the server is gone, or a request under way takes it out."""
        self._entering = False
        if self.place_taken:
            self.place_taken = self._armed = False
            self._engine.bells.discard(self)

    @property
    def needs_place(self) -> bool:
        """Whether a task of this session waits, or asks beside the head and would wait."""
        return any(not one.over for one in self._waiters())

    def drop_seat(self) -> None:
        """Takes the place out of the queue on the server: no waiter needs it any more."""
        of_use = self.place_of_use(1.0)
        self.seat_dropped()
        self._give_up(of_use, leave=True)

    def place_of_use(self, seconds: float) -> float:
        """Seconds for which the request that gives it up is of use: `seconds`, if no place is taken."""
        return max(seconds, self._resource.steps.lingers) if self.place_taken else seconds

    def _give_up(self, seconds: float, *, seat: str = "", leave: bool = False) -> None:
        """The server is told of what no token holds: a seat that is empty, or a turn that is owed."""
        command = self._resource.give_up(seat=seat, leave=leave)
        self._engine.take_back(command, seconds, told=self._engine.wake_own)

    # -- its bell

    @property
    def bells(self) -> tuple[bytes, ...]:
        """The keys by which it is known; several where it waits in several slots."""
        bells = self._bells
        if bells is None:
            bells = self._bells = self._resource.steps.all_bells
        return bells

    @property
    def armed(self) -> bool:
        """Whether the bell hangs and the session listens for it, as far as is known."""
        return self._armed

    @property
    def heard(self) -> bool:
        """Whether the session is told when it is this gate's turn."""
        return self._armed and self._engine.hears

    def _listened_for(self) -> None:
        """A request for that is sent now."""
        self._armed = True
        self._answered = self._sketchy = False

    def listen(self, acquisition: Waiter) -> None:
        """The head was refused, and so its bell hangs: the session listens for it."""
        if self._armed:
            return
        self._listened_for()
        if not self._listens_along:
            listener = None if self.contended_bell else acquisition.lease.listener()
            if isinstance(listener, Listener):
                self.contended_bell = listener.bell
            self._engine.bells.listen_first(self, listener, acquisition)

    def listens_on(self, acquisition: Waiter) -> bool:
        """The head has let another process go first: whether it is told if that one could not use its turn.

        Its bell hangs and is heard: so it need not ask, but listen as after any refusal.
        """
        if not (self._sketchy and self._armed and self._engine.hears):
            return False
        self._sketchy = False
        self._engine.bells.listen_for(self, acquisition.lease.listener())
        return True

    def listens_along(self) -> None:
        """A request that reads the bell goes right behind one that asks."""
        self._listens_along = True

    def saw(self, bell: int) -> None:
        """The answer to a request for its bell: whether that hangs, and is heard from then on.

        Where it came before the refusal, which was sent again, the refusal finds that nothing was heard.
        """
        self._listens_along = False
        if not self._armed or self._answered:
            return  # something newer is known
        if bell == NO_END:
            self._answered = self._sketchy = True
            self._unseated = 0
        elif bell == BELL_RUNG:
            self.rung("poll")
        elif self.seated and self._unseated < _UNSEATED:  # rung; or it could not be hung up
            self._unseated += 1
            self.lost("poll")
        elif self._head is not None:  # the script tells which it is
            self._engine.bells.listen_for(self, self._head.lease.listener())

    def saw_nothing(self, _: Fault) -> None:
        """There is no answer to that."""
        self._listens_along = False
        self.unheard()

    def not_ours(self, rung: Sequence[bytes], refused: Waiter) -> Sequence[bytes]:
        """Drops our own bell from `rung`. If it was there, the refusal has created it again: listen again."""
        others = [bell for bell in rung if bell not in self.bells]
        if len(others) < len(rung):
            self._armed = False
            if self.policy.strict and refused is not self._head:
                self._prompt("local")  # it may have been rung for the head
        return others

    def listener(self) -> Listener | Request[int] | None:
        """Shows that a waiter still waits, and tells when it must ask; None where it asks anyway."""
        waiter = self._head
        if waiter is None or not waiter.asleep:
            waiter = self._first_seated or waiter  # the head may get in, and its seat go, before that
        if waiter is None or not (self._armed or waiter.asleep or waiter is not self._head):
            return None
        if not self._armed:
            self._listened_for()
        self._unseated = 0  # with each heartbeat at least, a waiter whose bell is gone again asks
        return waiter.lease.listener()

    def listened(self, answer: int) -> None:
        """The server's answer about the waiters of this gate: a time, or why the head must ask."""
        if not self._armed:
            return  # something newer is known
        if answer in (GONE, NOT_OURS):
            self._missed(rung=answer == GONE and self.seated)
            return
        self._answered = True
        self._sketchy = False
        self._unseated = 0
        if answer == BELL_RUNG:
            self.rung("poll")  # the news of it was lost, or is on its way; or no waiter may ask now
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
        """The bell was rung; `way` is how the session knows. The head is to try, if it may."""
        self._armed = False
        if not self._prompt(way) and self.policy.strict and self.awaited:
            (self._head or next(iter(self._queue))).sit_down()  # its bell is to hang again

    def lost(self, way: str) -> None:
        """The bell may be gone, and other processes may have taken this one for dead.

        The head asks, and is seated if it is refused; its waiters take their seats again behind it, in order.
        """
        self._armed = False
        self._prompt(way)
        if self.policy.strict:
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
        """Of the waiters that do not ask yet, the first that has a seat of its own."""
        return next(iter(self._queue), None) if self.policy.strict else None

    def _prompt(self, way: str) -> bool:
        """The head is to ask; False if there is none, or it may not."""
        if self._head is None or self.here.closed:
            return False
        self._head.prompt(way, in_turn=False)
        return True

    def __repr__(self) -> str:
        return f"<Gate held_here={self.here.held} asking={self._head is not None} queued={len(self._queue)}>"


def _ignore(_: Gate) -> None:
    """The callback of a timer that only keeps a gate alive."""
