"""Renewals, and what else a session learns of its leases: one timer, a watch over each, and news of losses.

There is no task for each lease, nor one for all leases: a timer's callback sends the requests that are due.
So a program that cancels every task of the loop (as `asyncio.run` does at its end) does not stop the renewal
of leases whose bodies still unwind.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from .._tasks import empty_context
from ..transport import ANOTHER_MASTER, GONE_SILENT, Fault, Kept, OnRung, Request, clocks, ignore, several
from . import process
from .clock import NEVER, dependable, margin, milliseconds

if TYPE_CHECKING:
    from ..transport import Script
    from .engine import Engine
    from .events import Events
    from .lease import Possession
    from .options import Options
    from .resumption import Resumption


@final
class Renewal:
    """One such request on its way. `Convoy` is the same for several leases.

    Invariant: once it was answered, or its lease has left, it does not refer to its call: leases must be
    freed without the garbage collector.

    Args:
        renews: Whether an answer moves the end of the lease; if not, it only says that it is held.
    """

    __slots__ = ("_call", "_possession", "_renews", "_watch")

    def __init__(self, possession: Possession, watch: Watch, command: Request[Any], *, renews: bool) -> None:
        self._possession = possession
        self._watch = watch
        self._renews = renews
        make = watch.remade(possession) if renews else None
        until = possession.term.deadline
        self._call: Request[Any] | None = command.ask(self._answered, self._failed, until=until, make=make)

    def send(self) -> None:
        """Called when its watch knows of it: the answer may arrive at once."""
        assert self._call is not None, "a renewal is sent once"
        self._possession.engine.send(self._call)

    def left(self) -> None:
        """Its lease does not wait for the answer any more."""
        self._possession.engine.forget(self._end())

    def unanswered(self) -> list[Possession]:
        """The lease, if it still waits for the answer."""
        return [] if self._call is None else [self._possession]

    def _end(self) -> Request[Any]:
        call, self._call = self._call, None
        assert call is not None, "a renewal ends once"
        return call

    def _answered(self, held: Any) -> None:
        call, possession, watch = self._end(), self._possession, self._watch
        watch.renewal = None
        if not held:
            possession.taken_away(held)
        elif self._renews:
            watch.confirmed(possession, call)
            possession.engine.events.renewed((possession,))
        else:
            watch.owned(possession, call)

    def _failed(self, fault: Fault) -> None:
        self._end()
        if self._renews:
            self._watch.not_renewed(self._possession, fault)
        else:
            self._watch.not_told(self._possession, fault)


_RENEWALS_PER_TTL: Final = 3
_GRID: Final = 32
"""Renewals fall on a grid of ttl / 32, so that the renewals of many leases leave in one write."""
_ARMED_AFTER: Final = 0.05
"""Seconds after the grant at which the server is asked to tell of a loss: a shorter hold costs no request."""
_TOGETHER: Final = 0.01
"""Seconds in which first questions are gathered, so that they leave in one write."""
_RETRY: Final = 0.02
"""Seconds before a failed renewal is tried again; doubled each time, up to ttl / 12."""
_SUSPENDED: Final = 0.05
"""Seconds by which the loop's clock may fall behind the one that goes on while the machine is suspended: more
are a suspension."""
_PATIENCE: Final = 1.0
"""Seconds after which a renewal that was not answered leaves the lease in doubt; less for a short ttl."""


@final
class Watch:
    """Until when the server has a lease, and the requests that say so: from its grant to its end.

    It has a weak hold on the possession. A possession to which no code refers any more is collected, and its
    renewals end: so the caller of a method gives the possession. The watch of a tenure serves one possession
    after the other; between them it has none, and nothing is done for it.

    Invariants:
    - `deadline` is never later than the end of the lease on the server, if both clocks run alike;
    - at most one request is under way, alone or in a convoy, and none once the watch has ended;
    - the watch is armed for `watched`, or was since its last request was answered.

    Args:
        sent: When the granted request was sent: right before that, not when its reply came.
        ahead: Seconds by which the loop's clock is behind the one that goes on while the machine is
            suspended, as of then.
        hears: The server tells of changes, from the first question on.

    Attributes:
        deadline: Loop time until which its holder may rely on it.
        doubted: Its last renewal has had no answer yet, or an error for an answer.
        guarded: The guard looks after it, from the first body on.
        holder: The possession; None before the first one, between two of a tenure, and after the end.
        margin: Seconds before the end at which the event loop must have run.
        renewal: The request that is under way; also a question whether it is held.
        renewal_due: Loop time of the next one.
        span: Seconds that were asked for last.
        stopping: The body was told to stop.
        ttl: Seconds that each renewal asks for.
        turn: The entry of the watchdog's heap that counts; 0: none does.
        watched: Its keys, once the server was asked to tell of them.
    """

    # Most leases never change these values: so the class has them, and not each lease.
    _changed = False  # it must be asked for, as the server has told of a change
    _end = NEVER  # when it ends whatever renewals could do
    _retries = 0
    alone = False  # see `Tracked`
    at_limit = False  # the server's ttl reaches to the end of max_hold
    doubted = False
    guarded = False
    holder: weakref.ref[Possession] | None = None
    renewal: Renewal | Convoy | None = None
    stopping = False
    turn = 0
    watched: tuple[bytes, ...] = ()
    deadline: float
    renewal_due: float
    watchdog: Watchdog

    def __init__(self, options: Options, sent: float, ahead: float, *, hears: bool = False) -> None:
        self.options = options
        self.ahead = ahead
        self.ttl = self.span = ttl = options.ttl
        self.margin = options.margin
        if options.max_hold is None and options.auto_renew:  # as `holds_from`
            self.deadline = sent + options.dependable
            grid = ttl / _GRID
            due = (sent + ttl / _RENEWALS_PER_TTL) // grid * grid
            if hears and (ask := ((sent + _ARMED_AFTER) // _TOGETHER + 1) * _TOGETHER) < due:
                due = ask
            self.renewal_due = due
            return
        if options.max_hold is not None:
            self._end = sent + options.max_hold
            self.span = self.ttl_at(sent)
        self.holds_from(sent, ahead)
        if hears:
            self.ask_by(sent + _ARMED_AFTER)

    def __call__(self) -> Possession | None:
        """Its possession; None: it has none now, or no code refers to the possession any more."""
        return None if self.holder is None else self.holder()

    # -- until when: arithmetic, and nothing else

    @property
    def limited(self) -> bool:
        """Whether the ttl to ask for depends on when."""
        return self._end < NEVER

    @property
    def lasting(self) -> bool:
        """Whether it does not end by itself."""
        return self.options.auto_renew and not self.limited

    @property
    def renews(self) -> bool:
        """Whether a renewal moves its end."""
        return self.options.auto_renew and not self.at_limit

    def moment(self, now: float, steady: float) -> float:
        """Loop time, had the loop's clock gone on while the machine was suspended.

        Args:
            now: The time of the loop's clock.
            steady: The time of the other one.
        """
        steady -= self.ahead
        return steady if steady > now else now  # noqa: FURB136 - asked often, and `max` takes longer

    def ask_by(self, moment: float) -> None:
        """The server must be asked by then: together with other leases of about the same time."""
        self.renewal_due = min(self.renewal_due, (moment // _TOGETHER + 1) * _TOGETHER)

    def ask_at(self, moment: float) -> None:
        """The server must be asked then."""
        self.renewal_due = moment

    @property
    def next_end(self) -> float:
        """When the body is to stop, as things stand; once it was told so, when the lease ends."""
        return self.deadline if self.stopping else self.deadline - self.grace

    @property
    def grace(self) -> float:
        """Seconds before the end at which the body is to stop."""
        return self.options.grace

    @property
    def due(self) -> float:
        """When there is something to do next."""
        end = self.next_end
        return end if end < self.renewal_due else self.renewal_due  # noqa: FURB136 - asked often

    def ttl_at(self, sent: float) -> float:
        """The ttl to ask for at that time: never past `max_hold`."""
        if self._end == NEVER:
            return self.ttl
        return max(0.001, min(self.ttl, self._end - sent))

    def asks(self, now: float) -> float:
        """The ttl that a request of that time asks for."""
        self.span = ttl = self.ttl_at(now)
        self.margin = margin(ttl)
        return ttl

    def next_look(self, asked: float) -> float:
        """When to look again at a renewal that was sent then, unless it is answered before."""
        return min(asked + min(_PATIENCE, self.ttl / 6), self.next_end)

    def holds_from(self, sent: float, ahead: float) -> None:
        """The server has it for the ttl that was asked for last, counted from before the request was sent.

        Args:
            sent: Loop time right before that.
            ahead: As for a new one.
        """
        if self.doubted or self._retries:
            self.doubted = False
            self._retries = 0
        self.ahead = ahead
        end = sent + dependable(self.span)
        if self._end == NEVER:
            self.deadline = end
        else:
            self.deadline = min(end, self._end)
            self.at_limit = sent + self.span >= self._end - 0.001
        if self.at_limit or not self.options.auto_renew:
            self.renewal_due = NEVER
        else:
            grid = self.ttl / _GRID
            self.renewal_due = (sent + self.ttl / _RENEWALS_PER_TTL) // grid * grid

    def holds_as(self, other: Watch) -> None:
        """As `holds_from`, at the moment of the other one, of the same ttl; neither has a `max_hold`."""
        self.doubted = False
        self.ahead = other.ahead
        self._retries = 0
        self.deadline = other.deadline
        self.renewal_due = other.renewal_due
        self.span = other.span
        self.margin = other.margin

    def try_again_soon(self, now: float) -> None:
        """A renewal failed: soon again, at first."""
        self.renewal_due = now + min(_RETRY * 2**self._retries, self.ttl / 12)
        self._retries = min(self._retries + 1, 16)

    def change(self, now: float, ttl: float) -> None:
        """Another ttl is asked for: until that is confirmed, the shorter of both times counts."""
        self.ttl = ttl
        self.span = self.ttl_at(now)
        self.margin = margin(self.span)
        self.deadline = min(self.deadline, now + dependable(self.span))
        self.at_limit = self.at_limit and now + ttl >= self._end - 0.001
        if self.options.auto_renew and not self.at_limit:
            self.renewal_due = min(self.renewal_due, now + ttl / _RENEWALS_PER_TTL)

    def move(self, seconds: float) -> None:
        """The loop's clock did not count that many seconds."""
        self.ahead += seconds
        self._end -= seconds
        self.deadline -= seconds
        self.renewal_due -= seconds

    def why_grace(self, left: float) -> str:
        """The reason why the body must stop, with `left` seconds left."""
        if self.at_limit:
            why = "max_hold passes"
        elif self.options.auto_renew:
            why = "its last renewal was not confirmed, and its ttl passes"
        else:
            why = "auto_renew is off, and its ttl passes"
        return f"`grace` began: {why} in {left:.3f} s"

    def why_over(self, *, stalled: float, suspended: float = 0.0) -> str:
        """The reason when the deadline has passed.

        Args:
            stalled: Seconds in which the event loop did not run.
            suspended: Seconds in which the machine did not; it takes some to count.
        """
        if self.at_limit:
            return "max_hold has passed"
        if not self.options.auto_renew:
            return "its ttl passed, and auto_renew is off"
        if suspended > _SUSPENDED:
            return f"the machine was suspended for {suspended:.1f} s"
        if stalled:
            return f"the event loop did not run for {stalled:.1f} s or more"
        return "its ttl passed without a confirmed renewal"

    # -- what the watchdog does

    def end(self) -> None:
        """Nothing more is sent for the lease, nor heard of it."""
        watchdog = self.watchdog
        if self.watched:
            watchdog.tracked.disarm(self, self.watched)
        self.holder = None
        self.turn = 0  # as `Watchdog.forget`
        watchdog.watches.discard(self)
        if not watchdog.watches:
            watchdog.sweep()
        if self.renewal is not None:
            self.drop_renewal()

    def tend(self, possession: Possession, now: float, steady: float) -> float:
        """Does what is due, and says when to look again.

        Infinity: never, or when the convoy that it is renewed with is looked at.

        Args:
            possession: Its own.
            now: The time of the loop's clock.
            steady: The time of the clock that goes on while the machine is suspended.
        """
        moment = self.moment(now, steady)
        if moment >= self.deadline:
            possession.lose(possession.why_over())
            return NEVER
        if moment >= self.next_end:
            possession.begin_grace(self.deadline - moment)
        if self.renewal is not None:
            if self.renews:
                possession.doubt("its renewal was not answered yet")
            return self.next_end
        if now < self.renewal_due:
            return self.due
        convoys = self.watchdog.convoys
        if not self.renews:  # it ends by itself, and may be lost before that
            self.ask_at(NEVER)
            self._ask_owned(possession, hears=convoys.hears)
        elif not (self._changed or self.limited) and convoys.take(possession):
            return NEVER
        else:
            self.renew_alone(possession, self.renewal_now(possession, hears=convoys.hears))
        return self.next_look(now)

    def count_suspension(self, possession: Possession) -> None:
        """The machine was suspended, so the lease is lost, or has that much less time."""
        now = possession.engine.now()
        moment = self.moment(now, clocks.steady())
        if moment >= self.deadline:
            possession.lose(possession.why_over())
        else:
            self.move(moment - now)
            self.watchdog.watch(possession)

    # -- asking

    def renewal_now(self, possession: Possession, *, hears: bool) -> Request[Kept]:
        """A renewal; `hears`: whether the server tells of changes, which costs something to ask for each."""
        ttl = self.asks(possession.engine.now())
        return possession.renew(milliseconds(ttl), watch=self._listens(hears=hears), changed=self._changed)

    def remade(self, possession: Possession) -> Callable[[], Request[Kept]] | None:
        """Makes it when it is written: its ttl must not reach past `max_hold`, however long it has waited."""
        return functools.partial(self._renewal_then, possession) if self.limited else None

    def _renewal_then(self, possession: Possession) -> Request[Kept]:
        return self.renewal_now(possession, hears=possession.engine.hears)

    def _listens(self, *, hears: bool) -> bool:
        """Whether the server, where it tells of changes, is to do so after the next request.

        Not after one that a change has caused: where the server remembers few keys, one would cause the next.
        """
        return not self._changed and (hears or bool(self.watched))

    def renew_alone(self, possession: Possession, renewal: Request[Kept]) -> Renewal:
        """Sends this renewal by itself."""
        return self._send(Renewal(possession, self, renewal, renews=True))

    def _send(self, renewal: Renewal) -> Renewal:
        self.renewal = renewal
        renewal.send()
        return renewal

    def told(self, *, changed: bool) -> None:
        """One of its keys has changed, or the connection has ended on which that would be told."""
        possession = self()
        if possession is not None:
            self.ask(possession, changed=changed)

    def ask_now(self, possession: Possession) -> None:
        """As `ask`, ahead of all that is sent after it. It arms the watch again."""
        self.drop_renewal()
        self._changed = False
        self.renew_alone(possession, self.renewal_now(possession, hears=possession.engine.hears))

    def ask(self, possession: Possession, *, changed: bool) -> None:
        """Asks whether it is still held: its key may have been `changed`, or the connection has ended."""
        if possession.watch is not self:
            return  # it has ended
        self.drop_renewal()  # it may have been answered before the change
        self._changed = changed
        self.ask_at(possession.engine.now())
        self.watchdog.watch(possession)

    def listen_again(self, possession: Possession) -> None:
        """Asks whether it is held, and to be told of changes: without a renewal, which would move its end."""
        self.drop_renewal()
        self._ask_owned(possession, hears=True)

    def _ask_owned(self, possession: Possession, *, hears: bool) -> None:
        owned = possession.owned(watch=self._listens(hears=hears))
        self._send(Renewal(possession, self, owned, renews=False))

    def drop_renewal(self) -> None:
        """The answer to the request under way does not count any more."""
        renewal, self.renewal = self.renewal, None
        if renewal is not None:
            renewal.left()

    # -- answers

    def confirmed(self, possession: Possession, call: Request[Any]) -> None:
        """The server has it, by the renewal that was made last."""
        sent, ahead = possession.engine.timed(call.sent, call.sent_steady)
        self.holds_from(sent, ahead)
        self.owned(possession, call)

    def owned(self, possession: Possession, call: Request[Any]) -> None:
        """The server has it, as it has answered."""
        engine = possession.engine
        self.arm(call.watched if engine.hears else ())
        self.watchdog.watch(possession)

    def arm(self, keys: tuple[bytes, ...]) -> None:
        """The server tells of changes of these from now on."""
        self._changed = False
        if keys:
            self.watched = keys
            self.watchdog.tracked.arm(self, keys)

    def not_renewed(self, possession: Possession, fault: Fault) -> None:
        """An error is not a loss: until the deadline it tries again, soon at first."""
        if not fault.foreign:
            possession.doubt(str(fault.error))
            self.try_again_soon(possession.engine.now())
        self.not_told(possession, fault)

    def not_told(self, possession: Possession, fault: Fault) -> None:
        """The answer was an error; only a key that another program has overwritten is a loss."""
        self.renewal = None
        if fault.foreign:
            possession.lose(str(fault.error))
        else:
            self.watchdog.watch(possession)


_MOST: Final = 10
"""Leases in one request. Up to Redis 7.0, a server that tracks a script remembers all its keys at each read
in it: with ten leases, a renewal takes as long there as in a request of its own, and with two hundred ten
times as long. With the longest names it is still no long request, which would go on another connection."""


@final
class Company(list["Watch"]):
    """Leases that one request has renewed: it does so again when they are due, if they are still the same.

    Attributes:
        renewal: That request.
        hears: Whether the server told of changes when the request was made.
    """

    __slots__ = ("hears", "renewal")

    renewal: Request[list[Any]]
    hears: bool


@final
class Convoys:
    """Gathers the renewals of one turn of the watchdog, and sends the renewals of one ttl together.

    Only where one request may be for several names.

    The timer of the watchdog keeps this object, and must not keep a session that no task uses any more.

    Attributes:
        companies: The companies that are due in this turn, by their first member.
        hears: Whether the server tells of changes: as of `begin`, for it is asked for each renewal.
    """

    __slots__ = ("_engine", "_gathered", "_possible", "companies", "hears")

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)
        self._gathered: dict[tuple[Script, float], list[Possession]] = {}
        self._possible = False
        self.companies: dict[Watch, Company] = {}
        self.hears = False

    def begin(self) -> None:
        """A turn of the watchdog begins."""
        engine = self._engine()
        self._possible = engine is not None and not engine.by_slot
        self.hears = engine is not None and engine.hears

    def take(self, possession: Possession) -> bool:
        """Whether the lease is renewed with other leases, when `send` is called."""
        script = possession.steps.renewed_by
        if script is None or not self._possible:
            return False
        alike = (script, possession.term.ttl)
        gathered = self._gathered.get(alike)
        if gathered is None:
            self._gathered[alike] = [possession]
        else:
            gathered.append(possession)
        return True

    def send(self) -> list[Convoy | Renewal]:
        """Sends all of them, also one that has no company."""
        engine = self._engine()
        convoys: list[Convoy | Renewal] = []
        if engine is not None:
            for gathered in self._gathered.values():
                convoys += self._send(engine, gathered)
        self._gathered.clear()
        self.companies.clear()
        return convoys

    def _send(self, engine: Engine, gathered: list[Possession]) -> list[Convoy | Renewal]:
        watches = [possession.watch for possession in gathered]
        convoys: list[Convoy | Renewal] = []
        still: list[Watch] = []
        members: list[Possession] = []
        renewals: list[Request[Kept]] = []
        at = 0
        while at < len(watches):
            if (company := self._again(watches, at)) is not None:
                together = gathered[at : at + len(company)]
                convoys.append(Convoy(engine, company, together, [], hears=self.hears, again=company.renewal))
                at += len(company)
                continue
            watch, possession = watches[at], gathered[at]
            at += 1
            if watch is None:
                continue  # a hook has let go of it in this turn
            renewal = watch.renewal_now(possession, hears=self.hears)
            still.append(watch)
            members.append(possession)
            renewals.append(renewal)
            if len(members) == _MOST:
                convoys.append(self._together(engine, still, members, renewals))
                still, members, renewals = [], [], []
        if members:
            convoys.append(self._together(engine, still, members, renewals))
        return convoys

    def _again(self, watches: list[Watch | None], at: int) -> Company | None:
        """The company of the watch there, if its request can be sent again, and has no room for more."""
        watch = watches[at]
        company = None if watch is None else self.companies.get(watch)
        if company is None or company.hears is not self.hears:
            return None
        full = len(company) in (_MOST, len(watches))
        return company if full and company == watches[at : at + len(company)] else None

    def _together(
        self, engine: Engine, watches: list[Watch], members: list[Possession], renewals: list[Request[Kept]]
    ) -> Convoy | Renewal:
        if len(watches) == 1:
            return watches[0].renew_alone(members[0], renewals[0])
        return Convoy(engine, watches, members, renewals, hears=self.hears)


@final
class Convoy:
    """Leases that are renewed by one request.

    Invariants:
    - each lease is renewed, kept or lost as if its renewal had been sent alone: what the server refuses for
      one lease is no answer to the other leases, and what it refuses for all is asked again for each alone;
    - a lease that has left, as it was let go, is not told of the answer, nor renewed if the request is
      written again.

    Args:
        watches: Of each.
        renewals: The renewal of each; none with `again`.
        hears: Whether the server tells of changes.
        again: The request that has renewed just these leases before.
    """

    __slots__ = ("_call", "_engine", "_hears", "_members", "_number", "_renewals", "_together", "_watches")

    def __init__(
        self,
        engine: Engine,
        watches: list[Watch],
        members: list[Possession],
        renewals: list[Request[Kept]],
        *,
        hears: bool,
        again: Request[list[Any]] | None = None,
    ) -> None:
        self._engine = engine
        self._watches = watches
        self._members = members
        self._number = len(members)  # that have not left
        self._renewals = renewals
        self._hears = hears
        for watch in watches:
            watch.renewal = self
        self._together: Request[list[Any]] = several(renewals) if again is None else again
        until = max([possession.term.deadline for possession in members])
        self._call: Request[Any] = self._together.again().ask(
            self._answered, self._failed, until=until, make=self._as_of_now
        )
        engine.send(self._call)

    def left(self) -> None:
        """One of them does not wait for the answer any more."""
        self._number -= 1
        if not self._number:
            self._engine.forget(self._call)
            self._end()

    def _end(self) -> None:
        # Nothing may refer back to this object: leases must be freed without the garbage collector.
        self._call.on_reply = self._call.on_fault = ignore
        self._call.make = None

    def unanswered(self) -> list[Possession]:
        """The leases that still wait for the answer."""
        return [] if self._call.done else [possession for _, possession in self._waiting()]

    def _waiting(self) -> Iterator[tuple[Watch, Possession]]:
        for watch, possession in zip(self._watches, self._members, strict=True):
            if watch.renewal is self:
                yield watch, possession

    def _as_of_now(self) -> Request[list[Any]]:
        if self._number != len(self._members):
            left: list[tuple[Watch, Possession]] = list(self._waiting())
            self._watches = [watch for watch, _ in left]
            self._members = [possession for _, possession in left]
            self._renewals = [watch.renewal_now(possession, hears=self._hears) for watch, possession in left]
            self._together = several(self._renewals)
        return self._together

    def _answered(self, replies: list[Any]) -> None:
        engine, call = self._engine, self._call
        self._end()
        sent, ahead = engine.timed(call.sent, call.sent_steady)
        hears = engine.hears
        renewed: list[Possession] = []
        for number, (watch, possession) in enumerate(zip(self._watches, self._members, strict=True)):
            if watch.renewal is not self:
                continue
            reply = replies[number]
            if isinstance(reply, Exception):
                watch.ask(possession, changed=True)
                continue
            watch.renewal = None
            if not reply:
                possession.taken_away(reply)
                continue
            if renewed:
                watch.holds_as(renewed[0].term)
            else:
                watch.holds_from(sent, ahead)
            watched = self._renewals[number].watched if self._renewals else watch.watched
            watch.arm(watched if hears else ())
            renewed.append(possession)
        again = 1 < len(renewed) == len(self._members) and hears is self._hears
        engine.watchdog.watch_all(renewed, again=self._together if again else None, hears=hears)
        engine.events.renewed(renewed)

    def _failed(self, fault: Fault) -> None:
        self._end()
        for watch, possession in self._waiting():
            if fault.transient:
                watch.not_renewed(possession, fault)
            else:
                watch.ask(possession, changed=True)


_APART: Final = 0.1
"""Seconds between two questions for one key that several holders share."""


class Listening(Protocol):
    """What is told of changes of keys: a watch, or a lease that its session keeps between uses.

    Attributes:
        alone: It speaks for all leases of its key: no watch is told of it.
    """

    @property
    def alone(self) -> bool: ...

    def told(self, *, changed: bool) -> None: ...


@final
class Tracked:
    """Changes that the server tells of: the session asks, for a change is no loss yet.

    A lease is armed by its own renewal, and a change of its key disarms it. The question is a renewal that
    does not arm it again; the next one that is due does. So there is at most one question for each of these,
    however often the key changes, and however few keys the server remembers.

    Args:
        rung: Told of all keys that have changed, also of keys of no lease: a bell, say.

    Attributes:
        ask_all: Asks for all leases, also the leases that are not armed.
        forget: Told of a key when no lease wants to hear of its changes any more.

    Invariant: a lease that is armed was confirmed by a command whose last read was tracked, and nothing was
    heard of it since.
    """

    __slots__ = ("_armed", "_loop", "_rested", "_rung", "ask_all", "forget")

    def __init__(self, loop: asyncio.AbstractEventLoop, rung: OnRung) -> None:
        self._loop = loop
        self._rung = rung
        self._armed: dict[bytes, Listening | dict[Listening, None]] = {}
        # Keys that were asked for a moment ago, and whether they have changed since.
        self._rested: dict[bytes, bool] = {}
        self.ask_all: Callable[[], object]
        self.forget: Callable[[bytes], None] = ignore  # until there is a connection

    def __len__(self) -> int:
        return len(self._armed)

    def arm(self, watch: Listening, keys: Iterable[bytes]) -> None:
        """The server tells of each change of these from now on."""
        for key in keys:
            known = self._armed.get(key)
            if known is watch:
                continue
            if known is None:
                self._armed[key] = watch
            elif not isinstance(known, dict) and known.alone:
                continue
            elif isinstance(known, dict):
                known[watch] = None
            else:
                self._armed[key] = {known: None, watch: None}

    def disarm(self, watch: Listening, keys: Iterable[bytes]) -> None:
        """Ends the tracking: no task relies on the lease any more."""
        for key in keys:
            known = self._armed.get(key)
            if isinstance(known, dict):
                known.pop(watch, None)
                if known:
                    continue
            elif known is not None and known is not watch:
                continue
            self._armed.pop(key, None)
            self.forget(key)

    def rung(self, way: str, keys: Iterable[bytes] | None) -> None:
        """These have changed; None: possibly all of them, or nothing more is heard."""
        if way == ANOTHER_MASTER:
            self.ask_all()
            return
        if way != GONE_SILENT:
            self._rung(way, keys)
        if not self._armed:
            return
        if keys is None:
            self._all(changed=way != GONE_SILENT)
            return
        for key in keys:
            self._changed(key)

    def _all(self, *, changed: bool) -> None:
        armed, self._armed = self._armed, {}
        for known in armed.values():
            for watch in known if isinstance(known, dict) else (known,):
                watch.told(changed=changed)

    def _changed(self, key: bytes) -> None:
        if key in self._rested:
            self._rested[key] = True
            return
        known = self._armed.pop(key, None)
        if known is None:
            return
        if not isinstance(known, dict):
            known.told(changed=True)
            return
        self._rested[key] = False
        self._loop.call_later(_APART, self._has_rested, key, context=empty_context())
        for watch in known:
            watch.told(changed=True)

    def _has_rested(self, key: bytes) -> None:
        if self._rested.pop(key):
            self._changed(key)


_AT_ONCE: Final = 200
_LOOK_BACK: Final = 0.03
"""Seconds in which most renewals are answered, which then says when the next is due. Only what has not been
by then needs to be looked at sooner: an entry for each would make the heap, and the work, twice as large."""
_BREATH: Final = 0.001
"""Seconds between two runs: 200 000 leases a second can be renewed."""
_LATE: Final = 0.05
"""Seconds by which a busy event loop may run a timer too late; after more it counts as stalled."""
_SLACK: Final = 64
"""Stale entries that the heap may hold beside as many as it has live ones."""


@final
class Watchdog:
    """Calls `Watch.tend` when it is due.

    Invariants:
    - a watch with a possession has exactly one entry in the heap that counts, or has been tended a moment ago
      and will have one; all other entries are stale;
    - a watch between two possessions keeps its entry until that is due, and then has none (`turn` is 0);
    - a forgotten possession is never tended again, whatever entries it has left.

    Attributes:
        idle: As many as there are watches between two possessions.
        watches: The possessions that are looked after.
    """

    convoys: Convoys
    idle: Sized = ()
    tracked: Tracked

    def __init__(self, loop: asyncio.AbstractEventLoop, events: Events, resumption: Resumption) -> None:
        self._ahead = clocks.steady() - loop.time()  # when it was looked at last
        self._loop = loop
        self._events = events
        self._pid = process.pid
        self._resumption: Resumption | None = resumption  # None: told to call back
        self._heap: list[tuple[float, int, Watch | list[Watch]]] = []
        self._entered = 0  # how often watches stand in it
        self.watches: set[Watch] = set()
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._look_back_at = NEVER  # the next time that `_look_back` is due
        self._stall = (0.0, 0.0)  # the last stall of the loop that was noticed: from when to when

    def __len__(self) -> int:
        return len(self.watches) - len(self.idle)

    def possessions(self) -> list[Possession]:
        return [possession for watch in self.watches if (possession := watch()) is not None]

    def ask_all(self) -> None:
        """Another server has taken the place of the one that has granted these: each is asked for at once."""
        for possession in self.possessions():
            if possession.watch is not None:
                possession.watch.ask(possession, changed=False)

    def stalled(self, moment: float) -> float:
        """Seconds for which the event loop did not run around that moment, as far as its timers tell."""
        overdue = min(self._timer_at, self._look_back_at)
        began, ended = (overdue, self._loop.time()) if overdue <= moment else self._stall
        return ended - began if began <= moment <= ended and ended - began > _LATE else 0.0

    def look_at_clocks(self) -> None:
        """Counts in the time for which the machine was suspended, of which the loop's timers know nothing."""
        if self._pid != process.pid:
            return
        before, self._ahead = self._ahead, clocks.steady() - self._loop.time()
        if self._ahead - before > _LATE:
            for possession in self.possessions():
                if possession.watch is not None:
                    possession.watch.count_suspension(possession)

    def _ran(self, due: float) -> None:
        """A timer that was due then runs now."""
        now = self._loop.time()
        if now - due > _LATE:
            began, ended = self._stall
            self._stall = (min(began, due) if ended >= due else due, now)

    def watch(self, possession: Possession) -> Watch:
        """Looks after it from now on, or looks again at when it is due."""
        watch: Watch | None = possession.watch
        if watch is None:
            watch = possession.watch = possession.term
            watch.holder = weakref.ref(possession)
            watch.watchdog = self
            self.watches.add(watch)
        self._turn = watch.turn = turn = self._turn + 1
        due = watch.deadline  # as `due`, and below as `_enter`
        if not watch.stopping:
            due -= watch.options.grace
        if watch.renewal_due < due:  # noqa: PLR1730 - asked often
            due = watch.renewal_due
        heapq.heappush(self._heap, (due, turn, watch))
        self._entered += 1
        if due < self._timer_at:
            self._wake_by(due)
        if self._entered > 2 * len(self.watches) + _SLACK:
            self._drop_stale()
        return watch

    def forget(self, watch: Watch) -> None:
        """Synchronous: nothing is sent for it any more."""
        watch.turn = 0
        self.watches.discard(watch)
        if not self.watches:
            self.sweep()

    def sweep(self) -> None:
        """Nothing is looked after. But the timer stays: the next lease is about to need one."""
        self._heap.clear()
        self._entered = 0

    def collected(self, possession: Possession) -> None:
        """No code refers to the lease any more."""
        watch = possession.watch
        if watch not in self.watches:
            return
        label, name = possession.label, possession.name
        # May run in any thread: only the loop's own changes the session.
        if not self._loop.is_closed():
            gone = functools.partial(possession.gate.holder_vanished, possession.token)
            told = functools.partial(self._events.abandoned, label.lower(), name, context=possession.context)
            self._loop.call_soon_threadsafe(self._abandon, watch, gone, told, context=empty_context())
        what = (
            f"a lease of {label} {name!r} was never released: enter it with `async with`, or call release()"
        )
        warnings.warn(what, ResourceWarning, stacklevel=3)

    def _abandon(self, watch: Watch, gone: Callable[[], None], told: Callable[[], None]) -> None:
        if watch in self.watches:
            self.forget(watch)
            gone()
            told()

    def watch_all(
        self, possessions: Iterable[Possession], *, again: Request[list[Any]] | None, hears: bool
    ) -> None:
        """As `watch`, of many that were confirmed together: one entry for all that are due together.

        `again`: the request that has renewed all of them, which may do so again while the server tells of
        changes, or does not, as now.
        """
        due: dict[float, list[Watch]] = {}
        for possession in possessions:
            if (watch := possession.watch) is not None:
                due.setdefault(possession.term.due, []).append(watch)
        for moment, watches in due.items():
            self._turn += 1
            for watch in watches:
                watch.turn = self._turn
            entry = watches
            if again is not None and len(due) == 1:
                entry = Company(watches)
                entry.renewal, entry.hears = again, hears
            self._enter(moment, entry, len(watches))

    def _push(self, watch: Watch, due: float) -> None:
        self._turn += 1
        watch.turn = self._turn
        self._enter(due, watch, 1)

    def _enter(self, due: float, entry: Watch | list[Watch], number: int) -> None:
        heapq.heappush(self._heap, (due, self._turn, entry))
        self._entered += number
        if due < self._timer_at:
            self._wake_by(due)
        if self._entered > 2 * len(self.watches) + _SLACK:
            self._drop_stale()

    def _drop_stale(self) -> None:
        self._heap, heap, self._entered = [], self._heap, 0
        for moment, turn, stale in heap:
            if watches := [watch for watch in _watches_of(stale) if watch.turn == turn]:
                self._heap.append((moment, turn, watches))
                self._entered += len(watches)
        heapq.heapify(self._heap)

    def _wake_by(self, due: float) -> None:
        if due < self._timer_at:
            self._stop()
            self._timer_at = due
            self._timer = self._loop.call_at(due, self._run, context=empty_context())
            if self._resumption is not None:
                self._resumption.listen(self.look_at_clocks)
                self._resumption = None

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = NEVER

    def _run(self) -> None:
        """Tends all that are due, in one go: their requests leave in one write.

        Of very many, some at a time: what is allocated for all at once would set off the garbage collector,
        and that costs as much as the renewals themselves.
        """
        self._timer = None
        due, self._timer_at = self._timer_at, NEVER
        if process.pid != self._pid:
            return  # forked: the parent renews
        self._ran(due)
        self.look_at_clocks()
        now = self._loop.time()
        self.convoys.begin()
        asked = self._tend_due(now)
        convoys = self.convoys.send()
        if asked or convoys:
            look_back_at = now + _LOOK_BACK
            self._look_back_at = min(self._look_back_at, look_back_at)
            self._loop.call_at(
                look_back_at, self._look_back, look_back_at, asked, convoys, context=empty_context()
            )
        if self._heap:
            self._wake_by(max(self._heap[0][0], now + _BREATH))

    def _tend_due(self, now: float) -> list[tuple[float, int, Watch]]:
        """The watches that wait for an answer of their own, with when to look again, and the entry's turn."""
        left, soon, steady = _AT_ONCE, now + _LOOK_BACK, clocks.steady()
        asked: list[tuple[float, int, Watch]] = []
        while self._heap and self._heap[0][0] <= now and left > 0:
            _, turn, entry = heapq.heappop(self._heap)
            watches = _watches_of(entry)
            if isinstance(entry, Company):
                self.convoys.companies[entry[0]] = entry
            left -= len(watches)
            self._entered -= len(watches)
            for watch in watches:
                if watch.turn != turn:
                    continue
                if (holder := watch.holder) is None or (possession := holder()) is None:
                    watch.turn = 0  # its next possession needs an entry
                    continue
                again = watch.tend(possession, now, steady)
                if again > soon:
                    if again < NEVER:
                        asked.append((again, turn, watch))
                elif watch.turn == turn:
                    self._push(watch, again)
        return asked

    def _look_back(
        self, due: float, asked: list[tuple[float, int, Watch]], convoys: list[Convoy | Renewal]
    ) -> None:
        """A renewal that has neither been answered nor forgotten meanwhile must be looked at again."""
        self._ran(due)
        self._look_back_at = NEVER
        for again, turn, watch in asked:
            if watch.turn == turn:
                self._push(watch, again)
        for convoy in convoys:
            for possession in convoy.unanswered():
                if possession.watch is not None:
                    self._push(possession.watch, possession.term.next_look(due - _LOOK_BACK))


def _watches_of(entry: Watch | list[Watch]) -> Sequence[Watch]:
    return entry if isinstance(entry, list) else (entry,)
