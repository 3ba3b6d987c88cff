"""Leases that stay with their session between two uses: `Lock(..., cache=0.5)`.

A *tenure* is one stay of a lease with a session, from the grant to the one release. It has one token on the
server, and serves any number of holders, one at a time; each of them has a fencing token of its own, of a
block that the grant has reserved. An acquire from a tenure that no task uses is a *hit*, and sends nothing. A
*recall* is the news that another session asks: the script that refuses it changes the lock key, which the
owner tracks.

| from | to | when |
|---|---|---|
| `ASKING` | `USED` | granted, and the mark says that the session may keep it |
| `ASKING` | `OVER` | granted without that, refused for good, or its task has left |
| `USED` | `USED` | released, and a waiter of the same session has it next: no request |
| `USED` | `IDLE` | released, and no task of the session waits |
| `USED` | `OVER` | released after a recall, in doubt, or with another ttl; lost, detached, given back |
| `IDLE` | `USED` | a hit |
| `IDLE` | `OVER` | it is released: for a recall, a change of the key, the end of the connection, a request |
| | | of the session that it cannot serve, after `cache` seconds, or as the session ends |

Invariants, each with its ablation in `tests/simulation/safeguards/of_tenures.py`:
- once another session has asked for it, no task gets in by it: `keeps` is cleared, for good, in the step that
  learns of it;
- a hit only while the local deadline leaves it a third of its ttl;
- a fencing token is given once, and none beyond the block;
- while there is a connection on which its key is tracked, and only then, it keeps;
- one holder: a tenure that is used is no idle one, and an idle one has the context of no acquire;
- its watch is registered from the first holder to the end, and points at the present holder alone;
- one release, and nothing by the tenure after it;
- an idle tenure ends after `cache` seconds, and with its session.

Sources: blocking notices in the VMS lock manager (Snaman, Thiel 1987); lock caching in Chubby (Burrows 2006);
leases (Gray, Cheriton 1989); when to stop: ski rental (Karlin et al. 1988).
"""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Iterable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, final
from weakref import ref

from .._logs import get_logger
from .._tasks import empty_context
from ..transport import Granted, Kept, KeptSteps, Released, Request, clocks, locks_release, slot_of
from .clock import NEVER
from .lease import AGAIN, RELEASED, Binding, Claim, End, Possession, Releasing
from .process import current_pid
from .renewal import Watch

if TYPE_CHECKING:
    from ..transport import Answer
    from .events import Events
    from .lease import Lease
    from .options import Options
    from .queue import Gate
    from .renewal import Tracked


log = get_logger("aiolocks.session")

_NUMBERS: Final = 65_536
"""Fencing tokens of a block: after a death, a fence may be ahead of the clock by as many microseconds."""
_MOST_IDLE: Final = 1_024
"""Idle tenures of a session. About 1 KiB each in the process, and 0.7 KiB on the server."""
_MOST_HABITS: Final = 1_024
_TOGETHER: Final = 32
"""Releases in one request: at most 1 ms of the server's time, in which it answers no other request."""
_STRIKE: Final = 3
"""Hits of a tenure before its recall, below which it has not paid."""
_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 30.0
"""Seconds for which a name is not kept after strikes: `_PAUSE`, doubled with each, and no more than this."""
RUN: Final = 16
"""Hits in a row after which the event loop has a turn, to hear of a recall: a hit awaits nothing."""


@final
class TenureState(enum.Enum):
    """See the table above."""

    ASKING = enum.auto()
    USED = enum.auto()
    IDLE = enum.auto()
    OVER = enum.auto()


@final
class Habit:
    """What a session remembers of one name that it may keep.

    Attributes:
        used_at: Loop time of its last release.
        strikes: The recalls that came too early, less the other recalls.
        not_before: Loop time until which it is not kept.
    """

    __slots__ = ("not_before", "strikes", "used_at")

    def __init__(self) -> None:
        self.used_at = -math.inf
        self.strikes = 0
        self.not_before = -math.inf

    def recalled(self, now: float, hits: int) -> None:
        """Another session has asked, after so many hits."""
        if hits >= _STRIKE:
            self.strikes = max(0, self.strikes - 1)
            return
        self.strikes += 1
        self.not_before = now + min(_LONGEST_PAUSE, _PAUSE * 2 ** min(self.strikes, 10))


@final
class Keep:
    """The leases that a session keeps, and what it remembers of their names.

    Invariants:
    - `idle` has exactly the tenures that are `IDLE`, the one that was used longest ago first;
    - while there is one, a timer is set for the earliest end of them, or for an earlier time;
    - while more tenures are live than may be idle, or none may be kept any more, `looks_at` is infinity: each
      that becomes idle is told of.

    Attributes:
        counters: Of the session.
        idle: The tenures that no task uses.
        live: The tenures that are not over, by name.
        looks_at: Loop time of the timer, or infinity: `now_idle` is to be told of what ends before it.
        tracked: Tells of changes of keys.
        turn_at: The number of hits at which the event loop has its next turn for them.
    """

    __slots__ = (
        "_events",
        "_habits",
        "_loop",
        "_pid",
        "_said",
        "_timer",
        "closed",
        "counters",
        "idle",
        "live",
        "looks_at",
        "tracked",
        "turn_at",
    )

    tracked: Tracked

    def __init__(self, loop: asyncio.AbstractEventLoop, events: Events) -> None:
        self._events = events
        self._loop = loop
        self.counters = events.counters
        self._pid = current_pid()
        self._habits: dict[str, Habit] = {}
        self._said = False
        self._timer: asyncio.TimerHandle | None = None
        self.looks_at = math.inf
        self.closed = False
        self.idle: dict[Tenure, None] = {}
        self.live: dict[str, Tenure] = {}
        self.turn_at = RUN

    def habit(self, name: str) -> Habit:
        """What is known of that name, which is asked for or let go of now."""
        habit = self._habits.pop(name, None)
        if habit is None:
            habit = Habit()
            if len(self._habits) >= _MOST_HABITS:
                del self._habits[next(iter(self._habits))]
        self._habits[name] = habit
        return habit

    def recalled(self, tenure: Tenure) -> None:
        """Another session has asked for it. Called last: a listener may begin a task that asks at once."""
        now = self._loop.time()
        tenure.habit.recalled(now, tenure.hits)
        holder = tenure.term()
        context = None if holder is None else holder.context
        held_for = now - tenure.granted_at
        self._events.recalled(tenure.kind, tenure.name, tenure.number, held_for, context=context)

    def unheard(self, way: str) -> None:
        """Nothing can be kept, for the server does not track keys for this session. Said once."""
        if not self._said:
            self._said = True
            log.warning("locks with a cache= are released at once: keys are not tracked (wakeup: %s)", way)

    def pass_by(self, names: Iterable[str]) -> None:
        """A request of this session for these names follows: the server tells no session of its own."""
        if self.live:
            for name in names:
                if (tenure := self.live.get(name)) is not None:
                    tenure.pass_by()

    # -- the end of idle tenures

    def now_idle(self, tenure: Tenure) -> None:
        """One more tenure is idle, which ends before `looks_at`."""
        if self.closed:
            tenure.end()
            return
        if self._timer is None or tenure.idle_until < self._timer.when():
            self._look_at(tenure.idle_until)
        if len(self.idle) > _MOST_IDLE:
            self._release([tenure for tenure, _ in zip(self.idle, range(_TOGETHER), strict=False)])

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.looks_at = when if len(self.live) <= _MOST_IDLE else math.inf
        self._timer = self._loop.call_at(when, self._look, context=empty_context())

    def _look(self) -> None:
        """Ends the tenures whose time has passed, or nearly has: in few requests."""
        self._timer, self.looks_at = None, math.inf
        if self._pid != current_pid():
            return  # forked: they are of the parent
        now = self._loop.time()
        self._release([tenure for tenure in self.idle if tenure.idle_until <= now + tenure.early])
        if self.idle:
            self._look_at(min(tenure.idle_until for tenure in self.idle))

    def end_all(self) -> None:
        """Releases all idle tenures."""
        if self._pid == current_pid():
            self._release([*self.idle])

    def close(self) -> None:
        """The session ends: nothing is kept from now on."""
        self.closed = True
        self.looks_at = math.inf  # `now_idle` is told of each from now on
        self.end_all()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _release(self, tenures: list[Tenure]) -> None:
        """Several in one request, if they share a slot, where that counts."""
        slots: dict[int, list[Tenure]] = {}
        for tenure in tenures:
            slot = slot_of(tenure.keys[0]) if tenure.engine.by_slot else 0
            slots.setdefault(slot, []).append(tenure)
        for of_slot in slots.values():
            for at in range(0, len(of_slot), _TOGETHER):
                together = of_slot[at : at + _TOGETHER]
                if len(together) == 1:
                    together[0].end()
                    continue
                command = locks_release([tenure.release() for tenure in together])
                until = max(tenure.term.deadline for tenure in together)
                for tenure in together:
                    tenure.over()
                Releasing(together[0].engine, command, until=until)


@final
class Tenure(Claim):
    """One stay of a lease with a session; see the head of this file.

    It is the claim of all its holders. Its watch stays with the watchdog from the first holder to the end,
    also while no task uses it: a hit is one more possession to which the watch points.

    Attributes:
        early: Seconds by which it may end before `idle_until`, together with other tenures.
        first: The fencing token in the lock key; 0 before the grant.
        granted_at: Loop time of its grant.
        idle_until: Loop time at which it ends if no task uses it.
        keeps: It may serve another holder, for all that is known.
        number: The last fencing token that was given; 0 before the grant.
        term: Its deadline and its renewals, whoever holds it; from the grant on.
    """

    __slots__ = (
        "_last",
        "_margin",
        "_options",
        "_state",
        "early",
        "engine",
        "first",
        "gate",
        "granted_at",
        "habit",
        "idle_until",
        "keeps",
        "keys",
        "kind",
        "metadata",
        "name",
        "number",
        "numbers",
        "steps",
        "term",
        "token",
        "ttl_ms",
    )

    alone = True
    """It speaks for its key: see `renewal.Tracked`."""

    term: Watch

    def __init__(self, target: Binding[Any], habit: Habit) -> None:
        options = target.options
        self.engine = engine = target.engine
        self.steps = target.resource.steps
        self.token = engine.token()
        self.metadata = engine.describe(target.user_json, target.beside)
        self.first = self.number = self._last = 0
        self.gate: Gate = target.gate
        self.habit = habit
        self.keys = self.kept_steps.held_key
        self.kind = target.kind
        self.name = target.name
        self.numbers = max(1, min(_NUMBERS, int(options.ttl * 500_000)))
        self.granted_at = 0.0
        self.keeps = True
        self._state = TenureState.ASKING
        self.idle_until = 0.0
        self._options = options
        # A third of its ttl stays at least, as of a lease that is due for renewal.
        self._margin = max(options.ttl / 3, options.grace + options.ttl / 10)
        self.early = options.cache / 8
        self.gate.kept = self
        engine.kept.live[self.name] = self
        if len(engine.kept.live) > _MOST_IDLE:
            engine.kept.looks_at = math.inf

    @property
    def state(self) -> TenureState:
        """See the table at the head of this file."""
        return TenureState.IDLE if self.gate.asking is self else self._state  # which is then `USED`

    @property
    def hits(self) -> int:
        """The holders after the first."""
        return self.number - self.first

    # -- what is asked by it

    @property
    def kept_steps(self) -> KeptSteps:
        """Its steps, which are the steps of a kept lease."""
        return cast("KeptSteps", self.steps)

    def acquire(self, ttl_ms: int, standing: int = 0) -> Request[Answer]:
        self.ttl_ms = ttl_ms
        numbers = 0
        if self.keeps:
            self.track()
            numbers = self.numbers
        command = self.kept_steps.keep(self.token, ttl_ms, self.metadata, standing, numbers)
        command.track(command.keys[:1])
        return command

    def release(self, *, ring: bool = True, leave: bool = False) -> Request[Released]:
        return self.kept_steps.release_kept(self.token, self.ttl_ms, self.number, ring=ring, leave=leave)

    def renew(self, ttl_ms: int, *, watch: bool = False, changed: bool = False) -> Request[Kept]:
        if self.state is TenureState.OVER:
            return super().renew(ttl_ms, watch=watch, changed=changed)
        self.ttl_ms = ttl_ms
        command = self.kept_steps.renew_kept(self.token, ttl_ms, self.renewed, keeps=self.keeps)
        if watch:
            self.steps.watch(command)
        return command

    def annotate(self, fields: Any) -> Request[bool]:
        if self.state is not TenureState.OVER:
            self.untrack()  # what stands in the key then has no mark
        return super().annotate(fields)

    @property
    def given(self) -> int:
        """The fencing token of the lease, where the lock key has another one."""
        return self.number if self.number > self.first else 0

    # -- what the server tells

    def track(self) -> None:
        """The request for it goes out: a push between its reply and its task must count."""
        if self.keeps:
            self.engine.kept.tracked.arm(self, self.keys)

    def untrack(self) -> None:
        """From now on it is a lease like any other."""
        self.keeps = False
        self.engine.kept.tracked.disarm(self, self.keys)

    def told(self, *, changed: bool) -> None:
        """The key has changed, or the connection has ended on which that would be told."""
        if self.state is TenureState.OVER or not self.keeps:
            return
        self.keeps = False
        if self.state is TenureState.ASKING:
            return  # its grant counts as asked for
        self.gate.others_go_first()
        if self.state is TenureState.IDLE:
            self.end()
        else:
            self._answer()
        if changed:
            self.engine.kept.recalled(self)

    def renewed(self, *, asked: bool) -> None:
        """A renewal was answered, and says if another session has asked."""
        if asked and self.keeps:
            self.untrack()
            self.gate.others_go_first()
            if self.state is TenureState.IDLE:  # asked by an `extend` during which another task has let go
                self.end()
            self.engine.kept.recalled(self)

    def pass_by(self) -> None:
        """A request of this very session for the name follows right behind."""
        if not self.keeps or self.state is TenureState.OVER:
            return
        self.untrack()
        if self.state is TenureState.IDLE:
            self.end()
        elif self.state is TenureState.USED:
            self._answer()

    def another_comes(self) -> None:
        """The gate: another task comes, and it is idle."""
        self.end()

    def _answer(self) -> None:
        """Tells the session that asks that a task is inside, and finds out if the lease was lost."""
        possession = self.term()
        if possession is not None:
            self.term.ask_now(possession)

    # -- its holders

    def begin(self, possession: KeptPossession, grant: Granted) -> None:
        """Granted, and it may be kept: for its first holder."""
        assert self.state is TenureState.ASKING, self.state
        self.first = self.number = grant.fencing_token
        self._last = self.first + self.numbers - 1
        self.granted_at = sent = grant.sent
        self.term = Watch(self._options, sent, grant.ahead)
        self._state = TenureState.USED
        if not self.engine.hears:
            self.keeps = False
        self.lend(possession, sent)

    def lend(self, possession: KeptPossession, now: float) -> None:
        """It is the possession's from now on, under the number that was given last."""
        possession.fencing_token = self.number
        possession.granted_at = now
        possession.term = term = self.term
        if term.entered < NEVER:  # the watchdog has an entry for it, from an earlier holder
            possession.watch = term
            term.holder = ref(possession)
        else:
            self.engine.watchdog.watch(possession)

    def watched(self) -> None:
        """Its holder is looked after. If it was asked for meanwhile, this is the moment to answer."""
        if not self.keeps:
            self._answer()

    @property
    def lasts(self) -> bool:
        """Whether there is as much time left as a lease that is due for renewal has."""
        term = self.term
        until = term.deadline - self._margin  # below as `Watch.moment`
        return self.engine.now() < until and clocks.steady() - term.ahead < until

    def serves(self, target: Binding[Any]) -> bool:
        """Whether the next holder may be one of that lock: of the same options, with time left."""
        if not self.keeps or self.number >= self._last:
            return False
        options = target.options
        return (options is self._options or _alike(options, self._options)) and self.lasts

    def taken(self, target: Binding[Any]) -> KeptPossession | None:
        """A hit: the lease for a task that asks now.

        None: it is over, for it cannot serve it, or is idle still, for the event loop has its turn first.
        """
        engine, gate, term = self.engine, self.gate, self.term
        kept, now, until = engine.kept, engine.now(), term.deadline - self._margin
        # 1. The checks of `serves`; that no other session has asked is known of an idle one.
        number = self.number + 1
        if (
            number > self._last
            or (target.options is not self._options and not _alike(target.options, self._options))
            or now >= until
            or clocks.steady() - term.ahead >= until
        ):
            self.end()
            return None
        counters = kept.counters
        if (hits := counters.hits) >= kept.turn_at:
            return None
        # 2. It is idle no more, and its next number is given.
        counters.hits = hits + 1
        del kept.idle[self]
        gate.asking = None
        self.number = number
        # 3. As `lend`: the watchdog and the gate know it, but as the last holder's.
        possession = KeptPossession(target, self)
        possession.fencing_token = number
        possession.granted_at = now
        possession.term = term
        if term.entered < NEVER:
            possession.watch = term
            gate.here.lease_ref = term.holder = ref(possession)
        else:  # its entry was due while it was idle
            engine.watchdog.watch(possession)
            gate.here.lease_ref = term.holder
        engine.events.taken(possession)
        return possession

    def handed(self) -> Granted:
        """The grant for a waiter of this session, which has it next without a request."""
        self.number += 1
        self.engine.kept.counters.cache_hits += 1
        return Granted(self.number, 0)

    def keep(self, possession: KeptPossession) -> bool:
        """Its holder lets go, and it `keeps`: whether it stays, with a waiter of the session, or idle."""
        term, engine, gate = self.term, self.engine, self.gate
        now, deadline, following = engine.now(), term.deadline, None
        # 1. Whether it may: what is in doubt, or is to stop, is released; so is what a waiter needs that it
        # cannot serve.
        if (
            engine.closing
            or term.doubted
            or term.stopping
            or term.renewal is not None
            or term.ttl != self._options.ttl
            or now >= deadline
            or clocks.steady() - term.ahead >= deadline  # as `Watch.moment`
            or ((gate.stirred or gate.here.also) and (following := gate.after_kept(self)) is False)
        ):
            self.over()
            return False
        # 2. For its holder it has ended, without a request.
        possession.end = RELEASED
        if possession._over is not None:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - of this file
            possession._over.set()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as above
        possession.watch = term.holder = None
        # 3. The first waiter of the session has it next. If there is none, its watch, and its place among the
        # holders of the gate, stay for the next hit.
        if following:
            gate.here.remove(self.token)
            following.given(self.handed(), self)
        else:
            gate.asking = self
            self.idle_until = until = now + self._options.cache
            kept = engine.kept
            kept.idle[self] = None
            if until < kept.looks_at:
                kept.now_idle(self)
        # 4. Listeners are told last: a task that one of them begins at once may ask for it.
        engine.events.released(possession, now - possession.granted_at)
        possession.context = None
        return True

    # -- its end

    def end(self) -> None:
        """No task uses it, and it is released: at once, ahead of what is asked for next."""
        assert self.state is TenureState.IDLE, self.state
        self.over()
        gate = self.gate
        Releasing(
            self.engine,
            self.release(),
            until=self.term.deadline,
            on_end=lambda releasing: gate.holder_released(releasing.rung, overtaken=False),
        )

    def over(self) -> None:
        """Nothing is done by it any more, but its release where there is anything to release. Idempotent."""
        if self.state is TenureState.OVER:
            return
        engine, gate = self.engine, self.gate
        if self.state is TenureState.IDLE:
            del engine.kept.idle[self]
            gate.asking = None
            gate.here.remove(self.token)
            self.habit.used_at = self.idle_until - self._options.cache
        if self.state is not TenureState.ASKING and self.term.holder is None:
            self.term.end()  # else its holder does that, in order
        self._state = TenureState.OVER
        self.untrack()
        if gate.kept is self:
            gate.kept = None
        if engine.kept.live.get(self.name) is self:
            del engine.kept.live[self.name]

    def __repr__(self) -> str:
        return f"<Tenure {self.state.name} keeps={self.keeps} hits={self.hits}>"


def _alike(one: Options, other: Options) -> bool:
    """Whether a lease of one lock may serve the other: its metadata stand on the server."""
    return (
        one.ttl == other.ttl
        and one.cache == other.cache
        and one.grace == other.grace
        and one.metadata == other.metadata
    )


@final
class KeptPossession(Possession):
    """The lease of a lock with a `cache`: of a tenure, which it may begin, or a lease like any other.

    Holders of one tenure have its claim and its times, one after the other. The end of a lease is noted: a
    use soon after it may begin a tenure.

    Invariant: a lease that was released sends nothing any more, for its token may be another holder's.

    Attributes:
        tenure: That it is of, or may begin; None: it is asked for as any other lease.
    """

    def __init__(self, target: Binding[Any], tenure: Tenure | None = None) -> None:
        self.tenure = tenure
        if tenure is None:
            super().__init__(target)
            return
        self.target = target
        self.engine = target.engine
        self.steps = tenure.steps
        self.token = tenure.token
        self.context = copy_context()

    @property
    def claim(self) -> Claim:
        return self if self.tenure is None else self.tenure

    @property
    def cached(self) -> bool:
        return self.shares_token and self.fencing_token != self.number_in_key

    @property
    def shares_token(self) -> bool:
        return self.tenure is not None and self.tenure.number > 0

    def acquire(self, ttl_ms: int, standing: int = 0) -> Request[Answer]:
        if self.tenure is None:
            return super().acquire(ttl_ms, standing)
        return self.tenure.acquire(ttl_ms, standing)

    def release(self, *, ring: bool = True, leave: bool = False) -> Request[Released]:
        if self.tenure is None:
            return super().release(ring=ring, leave=leave)
        return self.tenure.release(ring=ring, leave=leave)

    def release_used(self, *, ring: bool = True) -> Request[Released]:
        return self.release(ring=ring)

    def renew(self, ttl_ms: int, *, watch: bool = False, changed: bool = False) -> Request[Kept]:
        if self.tenure is None:
            return super().renew(ttl_ms, watch=watch, changed=changed)
        return self.tenure.renew(ttl_ms, watch=watch, changed=changed)

    def had(self, claim: Claim) -> None:
        if claim is not self.claim:  # handed on, by a tenure of the session
            self.dropped()
            self.tenure, self.token = cast("Tenure", claim), claim.token

    def dropped(self) -> None:
        if self.tenure is not None:
            self.tenure.over()

    def hold(self, grant: Granted) -> bool:
        tenure = self.tenure
        if tenure is not None and tenure.state is not TenureState.OVER:
            if tenure.state is TenureState.USED:  # handed on
                if not tenure.lasts:
                    return False
                tenure.lend(self, grant.sent)
                return True
            if grant.may_be_kept:
                tenure.begin(self, grant)
                return True
            tenure.over()
        return super().hold(grant)

    @property
    def granted_us(self) -> int:
        tenure = self.tenure
        if tenure is None or not tenure.number:
            return super().granted_us
        return tenure.first + round((self.granted_at - tenure.granted_at) * 1e6)

    @property
    def number_in_key(self) -> int:
        tenure = self.tenure
        return super().number_in_key if tenure is None or not tenure.number else tenure.first

    def begin_release(self) -> asyncio.Future[None] | None:
        tenure = self.tenure
        if tenure is not None and tenure.keeps and self.watch is not None and tenure.keep(self):
            return None
        return super().begin_release()

    def send_release(self) -> None:
        if self.tenure is not None:
            self.tenure.over()
        super().send_release()

    def _end(self, end: End) -> None:
        if self.tenure is not None:
            self.tenure.over()
        engine = self.engine
        engine.kept.habit(self.name).used_at = engine.now()
        super()._end(end)


# -- Acquiring a lock that its session may keep between uses: from what it keeps, or from the server.


LeaseT = TypeVar("LeaseT", bound="Lease")

_HIT: Final = Granted(0, 0)
"""For the leases of hits, which the server has not granted one by one."""


@final
class KeptBinding(Binding[LeaseT]):
    """A lock with a `cache` in a session."""

    __slots__ = ()

    async def acquire(
        self,
        blocking_timeout: float | None,
        *,
        once: bool = False,
        by_force: bool = False,
        wish: Possession | None = None,
        whole: float | None = None,
    ) -> LeaseT:
        gate, deadline = self.gate, None
        while True:
            tenure = gate.kept
            if tenure is not None and gate.asking is tenure:
                hit = tenure.taken(self)
                if hit is not None:
                    return self._lease_type(self, hit, _HIT)
            engine, left = self.engine, blocking_timeout
            if blocking_timeout is not None:
                now = engine.now()
                if deadline is None:
                    deadline = now + blocking_timeout
                # In milliseconds, because messages tell of it.
                left = min(blocking_timeout, round(max(0.0, deadline - now) + 0.0005, 3))
            if tenure is not None and gate.asking is tenure:
                kept = engine.kept
                kept.turn_at = kept.counters.hits + RUN
                await asyncio.sleep(0)  # this task holds nothing yet: a recall may come meanwhile
                engine.check_usable()
                continue
            asked = self._wish(once=once or blocking_timeout == 0)
            lease = await super().acquire(left, once=once, wish=asked, whole=blocking_timeout)
            if lease is AGAIN:  # its time passed before its task had its turn
                continue
            if asked.tenure is not None and asked.shares_token:
                asked.tenure.watched()
            return lease

    def _wish(self, *, once: bool) -> KeptPossession:
        """A lease that may begin a tenure, where that pays; else one like any other.

        A tenure pays for a name that is used again within `cache` seconds, and was not recalled too often. A
        name that is used once would gain nothing: another session that uses it next would have to ask for it,
        and it would be blocked for a ttl if this process died meanwhile. A waiter behind tasks of its own
        session begins the tenure when its turn comes, and hands it on to the next waiter. A single try beside
        a holder of this session is refused.
        """
        engine, gate = self.engine, self.gate
        if once and not gate.idle:
            return KeptPossession(self)
        habit, now = engine.kept.habit(self.name), engine.now()
        if (
            now - habit.used_at > self.options.cache
            or now < habit.not_before
            or engine.kept.closed
            or gate.kept is not None
            or not gate.alone
        ):
            return KeptPossession(self)
        if not engine.hears or engine.way != "tracking":
            if engine.way not in ("", "tracking"):
                engine.kept.unheard(engine.way)
            return KeptPossession(self)
        return KeptPossession(self, Tenure(self, habit))
