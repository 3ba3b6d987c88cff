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
from collections.abc import Callable, Iterable, Sized
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from .._tasks import empty_context
from ..transport import ANOTHER_MASTER, GONE_SILENT, Fault, Kept, OnRung, Request, clocks, ignore
from . import process
from .clock import NEVER, dependable, margin, milliseconds
from .layout import laid_out

if TYPE_CHECKING:
    from .events import Events
    from .lease import Possession
    from .options import Options
    from .resumption import Resumption


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
@laid_out(
    *("options", "ahead", "ttl", "span", "deadline", "renewal_due", "holder", "watchdog"),
    *("entered", "renewal", "watched", "guarded", "_changed", "doubted", "_retries"),
)
class Watch:
    """Until when the server has a lease, and the requests that say so: from its grant to its end.

    It has a weak hold on the possession. A possession to which no code refers any more is collected, and its
    renewals end: so the caller of a method gives the possession. The watch of a tenure serves one possession
    after the other; between them it has none, and nothing is done for it.

    Invariants:
    - `deadline` is never later than the end of the lease on the server, if both clocks run alike;
    - at most one request is under way, and none once the watch has ended; once that was answered or does not
      count any more, the watch does not refer to it: leases are freed without the garbage collector;
    - the watch is armed for `watched`, or was since its last request was answered.

    Args:
        sent: When the granted request was sent: right before that, not when its reply came.
        ahead: Seconds by which the loop's clock is behind the one that goes on while the machine is
            suspended, as of then.
        hears: The server tells of changes, from the first question on.

    Attributes:
        deadline: Loop time until which its holder may rely on it.
        doubted: Its last renewal has had no answer yet, or an error for an answer.
        entered: When the watchdog tends it; infinity: it has no entry there, or none that counts.
        guarded: The guard looks after it, from the first body on.
        holder: The possession; None before the first one, between two of a tenure, and after the end.
        renewal: The request that is under way; also a question whether it is held.
        renewal_due: Loop time of the next one.
        span: Seconds that were asked for last.
        stopping: The body was told to stop.
        ttl: Seconds that each renewal asks for.
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
    entered = NEVER
    holder: weakref.ref[Possession] | None = None
    renewal: Request[Any] | None = None
    stopping = False
    watched: tuple[bytes, ...] = ()
    deadline: float
    renewal_due: float
    watchdog: Watchdog

    def __init__(self, options: Options, sent: float, ahead: float, *, hears: bool = False) -> None:
        self.options = options
        self.ahead = ahead
        self.ttl = self.span = ttl = options.ttl
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
    def margin(self) -> float:
        """Seconds before the end at which the event loop must have run."""
        return margin(self.span)

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
        options, span = self.options, self.span
        self.deadline = sent + (options.dependable if span == options.ttl else dependable(span))
        if self._end < NEVER:
            self.deadline = min(self.deadline, self._end)
            self.at_limit = sent + span >= self._end - 0.001
        if self.at_limit or not options.auto_renew:
            self.renewal_due = NEVER
        else:
            grid = self.ttl / _GRID
            self.renewal_due = (sent + self.ttl / _RENEWALS_PER_TTL) // grid * grid

    def try_again_soon(self, now: float) -> None:
        """A renewal failed: soon again, at first."""
        self.renewal_due = now + min(_RETRY * 2**self._retries, self.ttl / 12)
        self._retries = min(self._retries + 1, 16)

    def change(self, now: float, ttl: float) -> None:
        """Another ttl is asked for: until that is confirmed, the shorter of both times counts."""
        self.ttl = ttl
        self.span = self.ttl_at(now)
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
        if self.renewal is not None:
            self.drop_renewal()
        self.holder = None
        self.entered = NEVER  # as `Watchdog.forget`
        watchdog.watches.discard(self)
        if not watchdog.watches:
            watchdog.sweep()

    def tend(self, possession: Possession, now: float, steady: float, *, hears: bool) -> float:
        """Does what is due, and says when to look again; infinity: never.

        Args:
            possession: Its own.
            now: The time of the loop's clock.
            steady: The time of the clock that goes on while the machine is suspended.
            hears: As for `renewal_now`.
        """
        moment = steady - self.ahead  # as `moment`
        if moment < now:  # noqa: PLR1730 - asked often, and `max` takes longer
            moment = now
        end = self.deadline if self.stopping else self.deadline - self.options.grace  # as `next_end`
        if moment >= end:
            if moment >= self.deadline:
                possession.lose(possession.why_over())
                return NEVER
            possession.begin_grace(self.deadline - moment)
            if self.holder is None:
                return NEVER  # a handler of the log has let go of it
            end = self.deadline
        if self.renewal is not None:
            if self.renews:
                possession.doubt("its renewal was not answered yet")
            return end
        if now < self.renewal_due:
            return self.due
        if self.options.auto_renew and not self.at_limit:  # as `renews`
            self._renew(possession, now, hears=hears)
        else:  # it ends by itself, and may be lost before that
            self.renewal_due = NEVER
            self._ask_owned(possession, hears=hears)
        again = now + (_PATIENCE if self.ttl > 6 * _PATIENCE else self.ttl / 6)  # as `next_look`
        return again if again < end else end  # noqa: FURB136 - asked often, and `min` takes longer

    def count_suspension(self, now: float, steady: float) -> None:
        """The machine was suspended, so the lease is lost, or has that much less time."""
        possession, moment = self(), self.moment(now, steady)
        if possession is None:
            self.move(moment - now)
            self.entered = NEVER  # its next possession needs an entry for the earlier time
        elif moment >= self.deadline:
            possession.lose(possession.why_over())
        else:
            self.move(moment - now)
            self.watchdog.watch(possession)

    # -- asking

    def renewal_now(self, possession: Possession, now: float, *, hears: bool) -> Request[Kept]:
        """A renewal; `hears`: whether the server tells of changes, which costs something to ask for each."""
        if self._end < NEVER:
            self.span = self.ttl_at(now)
        changed = self._changed
        # Not after a request that a change has caused: where the server remembers few keys, one would cause
        # the next.
        watch = not changed and (hears or self.watched != ())
        return possession.renew(milliseconds(self.span), watch=watch, changed=changed)

    def remade(self, possession: Possession) -> Callable[[], Request[Kept]] | None:
        """Makes it when it is written: its ttl must not reach past `max_hold`, however long it has waited."""
        return functools.partial(self._renewal_then, possession) if self._end < NEVER else None

    def _renewal_then(self, possession: Possession) -> Request[Kept]:
        engine = possession.engine
        return self.renewal_now(possession, engine.now(), hears=engine.hears)

    def _renew(self, possession: Possession, now: float, *, hears: bool) -> None:
        renewal = self.renewal_now(possession, now, hears=hears)
        if self._end < NEVER:
            renewal.make = self.remade(possession)
            renewal.plain = False
        # As `Request.ask`. Set before it is sent: the answer may arrive at once.
        renewal.on_reply = self._renewed
        renewal.on_fault = self._not_renewed
        renewal.until = self.deadline
        self.renewal = renewal
        possession.engine.send(renewal)

    def told(self, *, changed: bool) -> None:
        """One of its keys has changed, or the connection has ended on which that would be told."""
        possession = self()
        if possession is not None:
            self.ask(possession, changed=changed)

    def ask_now(self, possession: Possession) -> None:
        """As `ask`, ahead of all that is sent after it. It arms the watch again."""
        self.drop_renewal()
        self._changed = False
        engine = possession.engine
        self._renew(possession, engine.now(), hears=engine.hears)

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
        owned = possession.owned(watch=(hears or bool(self.watched)) and not self._changed)
        self.renewal = owned.ask(self._is_owned, self._not_told, until=self.deadline)
        possession.engine.send(owned)

    def drop_renewal(self) -> None:
        """The answer to the request under way does not count any more. Called by who has the possession."""
        renewal, self.renewal = self.renewal, None
        if renewal is not None and (possession := self()) is not None:
            possession.engine.forget(renewal)

    # -- answers: to the request under way alone, as a request that was dropped tells of nothing

    def _renewed(self, held: Kept) -> None:
        renewal, self.renewal = self.renewal, None
        if (holder := self.holder) is None or (possession := holder()) is None:
            return
        if not held:
            possession.taken_away(held)
            return
        assert renewal is not None
        engine = possession.engine
        sent, ahead = engine.timed(renewal.sent, renewal.sent_steady)  # as `confirmed`
        self.holds_from(sent, ahead)
        self._owned(possession, renewal)
        engine.events.renewed(possession)

    def _is_owned(self, held: Kept) -> None:
        renewal, self.renewal = self.renewal, None
        possession = self()
        if possession is None:
            return
        if not held:
            possession.taken_away(held)
            return
        assert renewal is not None
        self._owned(possession, renewal)

    def confirmed(self, possession: Possession, renewal: Request[Any]) -> None:
        """The server has it, by the renewal that was made last."""
        sent, ahead = possession.engine.timed(renewal.sent, renewal.sent_steady)
        self.holds_from(sent, ahead)
        self._owned(possession, renewal)

    def _owned(self, possession: Possession, asked: Request[Any]) -> None:
        """The server has it, as it has answered, and tells of changes from now on, if it was asked to."""
        self._changed = False
        keys = asked.watched
        if keys and possession.engine.hears:
            self.watched = keys
            self.watchdog.tracked.arm(self, keys)
        self.watchdog.watch(possession)

    def _not_renewed(self, fault: Fault) -> None:
        """An error is not a loss: until the deadline it tries again, soon at first."""
        possession = self()
        if possession is not None and not fault.foreign:
            possession.doubt(str(fault.error))
            self.try_again_soon(possession.engine.now())
        self._not_told(fault)

    def _not_told(self, fault: Fault) -> None:
        """The answer was an error; only a key that another program has overwritten is a loss."""
        self.renewal = None
        possession = self()
        if possession is None:
            return
        if fault.foreign:
            possession.lose(str(fault.error))
        else:
            self.watchdog.watch(possession)


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
"""Watches that are tended in one run: what is allocated for all at once would set off the garbage collector,
and that costs as much as the renewals themselves."""
_LOOK_BACK: Final = 0.03
"""Seconds in which most renewals are answered, which then says when the next is due. Only what has not been
by then needs to be looked at sooner."""
_BREATH: Final = 0.001
"""Seconds between two runs: 200 000 leases a second can be renewed."""
_LATE: Final = 0.05
"""Seconds by which a busy event loop may run a timer too late; after more it counts as stalled."""
_SLACK: Final = 64
"""Stale entries that there may be beside as many as there are live ones."""


@final
class Watchdog:
    """Calls `Watch.tend` when it is due.

    Many leases are due at one moment, as renewals fall on a grid: so the heap has moments, and each moment a
    list of watches.

    Invariants:
    - a watch with a possession has exactly one entry that counts (`Watch.entered`), not later than it is due,
      or has been tended a moment ago and will have one; all other entries are stale;
    - a watch between two possessions keeps its entry until that is due or the machine was suspended, and then
      has none;
    - a forgotten possession is never tended again, whatever entries it has left.

    Attributes:
        idle: As many as there are watches between two possessions.
        watches: Of the leases that are held or kept.
    """

    idle: Sized = ()
    tracked: Tracked

    def __init__(self, loop: asyncio.AbstractEventLoop, events: Events, resumption: Resumption) -> None:
        self._ahead = clocks.steady() - loop.time()  # when it was looked at last
        self._loop = loop
        self._events = events
        self._pid = process.pid
        self._resumption: Resumption | None = resumption  # None: told to call back
        self._moments: list[float] = []  # a heap of the keys of `_due`
        self._due: dict[float, list[Watch]] = {}
        self._room = _SLACK  # so many more entries, and then the stale ones are dropped
        self.watches: set[Watch] = set()
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
        steady, now = clocks.steady(), self._loop.time()  # so a pause between both is no suspension
        before, self._ahead = self._ahead, steady - now
        if self._ahead - before > _LATE:
            for watch in [*self.watches]:
                if watch in self.watches:  # else it has ended with the one before
                    watch.count_suspension(now, steady)

    def _ran(self, due: float, now: float) -> None:
        """A timer that was due then runs now: the loop did not, in between."""
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
        due = watch.deadline  # as `due`
        if not watch.stopping:
            due -= watch.options.grace
        if watch.renewal_due < due:  # noqa: PLR1730 - for each lease, and `min` takes longer
            due = watch.renewal_due
        if due < watch.entered:
            self._enter(watch, due)
        return watch

    def forget(self, watch: Watch) -> None:
        """Synchronous: nothing is sent for it any more."""
        watch.entered = NEVER
        self.watches.discard(watch)
        if not self.watches:
            self.sweep()

    def sweep(self) -> None:
        """Nothing is looked after. But the timer stays: the next lease is about to need one."""
        self._moments.clear()
        self._due.clear()
        self._room = _SLACK

    def collected(self, possession: Possession) -> None:
        """No code refers to the lease any more."""
        watch = possession.watch
        if watch not in self.watches:
            return
        label, name = possession.label, possession.name
        # May run in any thread: only the loop's own changes the session.
        if not self._loop.is_closed():
            gone = functools.partial(possession.gate.holder_dropped, possession.token)
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

    def _enter(self, watch: Watch, due: float) -> None:
        watch.entered = due
        if (watches := self._due.get(due)) is not None:
            watches.append(watch)
        else:
            self._due[due] = [watch]
            heapq.heappush(self._moments, due)
            if due < self._timer_at:
                self._wake_by(due)
        self._room -= 1
        if self._room < 0:
            self._drop_stale()

    def _drop_stale(self) -> None:
        """As many may come again as there are live ones: so an entry costs a look at two."""
        self._room = _SLACK
        for moment, entered in [*self._due.items()]:
            if live := [watch for watch in entered if watch.entered == moment]:
                self._due[moment] = live
                self._room += len(live)
            else:
                del self._due[moment]
        self._moments[:] = sorted(self._due)

    def _wake_by(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_at(due, self._run, context=empty_context())
        if self._resumption is not None:
            self._resumption.listen(self.look_at_clocks)
            self._resumption = None

    def _run(self) -> None:  # noqa: C901, PLR0912 - a call more for each of many leases would show
        """Tends all that are due, in one go: their requests leave in one write."""
        self._timer = None
        due, self._timer_at = self._timer_at, NEVER
        if process.pid != self._pid:
            return  # forked: the parent renews
        now, steady = self._loop.time(), clocks.steady()
        if now - due > _LATE:
            self._ran(due, now)
        if steady - now - self._ahead > _LATE:
            self.look_at_clocks()
        else:
            self._ahead = steady - now
        moments, asked, left = self._moments, list[Watch](), _AT_ONCE
        hears: bool | None = None
        while moments and (moment := moments[0]) <= now and left > 0:
            watches = self._due[moment]
            if len(watches) > left:
                watches, self._due[moment] = watches[:left], watches[left:]
            else:
                del self._due[heapq.heappop(moments)]
            left -= len(watches)
            self._room += len(watches)
            for watch in watches:
                if watch.entered != moment:
                    continue  # stale
                watch.entered = NEVER
                if (holder := watch.holder) is None or (possession := holder()) is None:
                    continue  # its next possession needs an entry
                if hears is None:  # as of now: it is asked for each renewal
                    hears = possession.engine.hears
                again = watch.tend(possession, now, steady, hears=hears)
                if watch.entered < NEVER or again == NEVER:
                    continue  # answered at once, or ended
                if watch.renewal is None or again <= now + _LOOK_BACK:
                    self._enter(watch, again)
                else:
                    asked.append(watch)
        if asked:
            look_back_at = now + _LOOK_BACK
            self._look_back_at = min(self._look_back_at, look_back_at)
            self._loop.call_at(look_back_at, self._look_back, look_back_at, asked, context=empty_context())
        if moments and moments[0] < self._timer_at:
            self._wake_by(max(moments[0], now + _BREATH))

    def _look_back(self, due: float, asked: list[Watch]) -> None:
        """A renewal that has neither been answered nor forgotten meanwhile must be looked at again."""
        now = self._loop.time()
        if now - due > _LATE:
            self._ran(due, now)
        self._look_back_at = NEVER
        for watch in asked:
            if watch.renewal is not None and watch.entered == NEVER:
                self._enter(watch, watch.next_look(due - _LOOK_BACK))
