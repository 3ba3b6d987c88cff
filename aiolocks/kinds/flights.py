"""The steps of a single flight: one runs, and what that leaves is there for all who wait."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

from ..errors import FingerprintError, LockError
from ..lock.clock import NEVER, dependable, milliseconds
from ..lock.engine import Engine
from ..lock.lease import Binding, Lease, Resource
from ..lock.options import Options
from ..transport.answers import NO_TTL, Answer, Granted, Refused, Released, released
from ..transport.keys import keys_of
from ..transport.request import Request, Script
from ..transport.steps.family import Family, Kind
from ..transport.steps.lock import FORCE_LOCK, LOCKS, LockSteps, read_locks
from ..transport.steps.standing import SEATED, WAITING, letters

_SHARED: Final = ("forms", "bells", "fence", "locks", "flights")
_ACQUIRE: Final = Script("flight_acquire", *_SHARED, "seats")
_PUBLISH: Final = Script("flight_publish", *_SHARED, frees=True)
_FORGET: Final = Script("flight_forget", *_SHARED)

LINGER_MS: Final = 5000
"""For how long the server has what a run leaves for its waiters, also if it is not kept: longer than a waiter
can live without a sign of life."""

RUNS: Final = Family(
    keys="value fence queue",
    renew=LOCKS.renew,
    release=LOCKS.release,
    adopt=LOCKS.adopt,
    annotate=LOCKS.annotate,
    owned=LOCKS.owned,
    locked=LOCKS.locked,
    bell_last=True,
    read=read_locks,
    passive="fence value",
    force=FORCE_LOCK,
    forced="nest queue fence value",
)
_NEEDS: Final = ("hget", "hlen", "hmget", "hset", "zscore")
KINDS: Final = (
    Kind(RUNS, "singleflight", "SingleFlight", needs=_NEEDS),
    Kind(RUNS, "turn", "Turn", made_by="SingleFlight"),
)

_WORDS_FOR_AGES: Final[dict[int, float | None]] = {-1: None, -2: math.inf}
"""What the server says in place of an age: that the result is kept, and that its clock was set back."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """The result that a run must leave.

    Attributes:
        token: Of the run.
        run: Its fencing token.
        tag: The sort of the result.
        payload: The thing itself.
        fresh_ms: Milliseconds for which it need not be replaced.
        keep_ms: For how long it is kept; at least as long. Both count from `made_at_us`.
        cost_ms: How long it took to make it.
        made_at_us: When it was made, microseconds of the server's time.
        begun: Fencing token of the run in which it was begun: an earlier one, if that was lost.
        pause_ms: None if it replaces whatever is there. Else a value that is kept stays, and for that many
            milliseconds no session tries again to replace it.
    """

    token: str
    run: int
    tag: str
    payload: bytes
    made_at_us: int
    begun: int
    fresh_ms: int = 0
    keep_ms: int = 0
    cost_ms: int = 0
    pause_ms: int | None = None


class RunEnded(LockError):  # noqa: N818 - it is no error: how an acquire ends that has become needless
    """Ends the acquire of a caller that has waited, or came later: a run has ended with this result.

    Attributes:
        run: Fencing token of the run.
        age_us: How many microseconds ago it was made, at least, when the server was asked; None if it is
            kept, and so for every later caller; infinite if that is not known, because the server's clock
            was set back.
        asked_at: Loop time at which the question was made.
        due: Whether it is due, and no session replaces it yet.
        tag: The sort of the result.
        payload: The thing itself.
    """

    def __init__(
        self, run: int, age_us: float | None, asked_at: float, tag: str, payload: bytes, *, due: bool = False
    ) -> None:
        super().__init__("a run has ended")
        self.run = run
        self.age_us = age_us
        self.asked_at = asked_at
        self.due = due
        self.tag = tag
        self.payload = payload


@final
class FlightSteps(LockSteps):
    """The steps of the callers of one session that want the same run, or what it leaves.

    A run is a simple lock in a name space of its own, until it leaves something.

    Invariant: `_told` is the first run that one of these callers was told of, or was granted: all later runs
    began while that caller waited.

    Attributes:
        granted_at_us: The server's time at the last grant, microseconds.
        busy: Done when the server has said that a run goes on, or that another session is next; None if no
            caller asks.
        no_end: The run that the server has told of last has lost its ttl.

    Args, besides the arguments for a lock:
        fingerprint: Of the request that the callers have in common, hexadecimal; empty for none.
        ahead: The multiple of its cost, before its end, at which a value counts as due.
        anew: Fencing token of the run whose value they will replace; None to take the value that is there.
        now: Tells the loop's time.
    """

    family = RUNS
    __slots__ = (
        "_ahead",
        "_anew",
        "_fingerprint",
        "_leaving",
        "_now",
        "_run",
        "_told",
        "busy",
        "granted_at_us",
        "no_end",
    )

    def __init__(
        self,
        prefix: str,
        kind: str,
        name: str,
        *,
        fingerprint: str,
        retention_ms: int,
        session: str,
        now: Callable[[], float],
        ahead: float = 0.0,
        anew: int | None = None,
        like: FlightSteps | None = None,
    ) -> None:
        super().__init__(prefix, name, retention_ms=retention_ms, session=session, kind=kind, like=like)
        roles = ("value", "fence", "queue")
        self._run: tuple[bytes, ...] = keys_of(prefix, kind, name, roles) if like is None else like._run  # noqa: SLF001 - its own class
        self._now = now
        self._fingerprint = fingerprint
        self._told: int | None = None
        self.no_end = False
        self._ahead = f"{ahead:.6f}"
        self._anew = "" if anew is None else str(anew)
        self._leaving: Leaving | None = None
        self.busy: asyncio.Future[Any] | None = None
        self.granted_at_us = 0

    def leave(self, leaving: Leaving) -> None:
        """Sets the result of that run: from now on its release publishes it."""
        self._leaving = leaving

    def begin_anew(self) -> None:
        """The next caller that asks came later than everything that was told until now."""
        self._told = None

    def acquire(self, token: str, ttl_ms: int, metadata: str, standing: int = 0) -> Request[Answer]:
        """Takes the run, unless what it would leave is there, or says for how long it may go on."""
        keys = (*self._run, self.bell) if standing & (WAITING | SEATED) else self._run
        args = (
            token,
            ttl_ms,
            self._retention(ttl_ms),
            self._described(metadata),
            self._fingerprint,
            "" if self._told is None else str(self._told),
            letters(standing),
            self._ahead,
            self._anew,
        )
        return Request(_ACQUIRE, keys, args, functools.partial(self._read, self._now()), lane=token)

    def release(
        self, token: str, ttl_ms: int, *, ring: bool = True, leave: bool = False
    ) -> Request[Released]:
        """Ends the run with what it is to leave, if that was said, or with nothing."""
        leaving = self._leaving
        if leaving is None or leaving.token != token or leave:
            return super().release(token, ttl_ms, ring=ring, leave=leave)
        args = (
            token,
            str(leaving.run),
            self._retention(ttl_ms),
            leaving.fresh_ms,
            leaving.keep_ms,
            LINGER_MS,
            leaving.cost_ms,
            "" if leaving.pause_ms is None else str(leaving.pause_ms),
            leaving.tag,
            leaving.payload,
            str(leaving.made_at_us),
            str(leaving.begun),
        )
        return Request(_PUBLISH, self._run, args, released, lane=token)

    def forget(self, token: str) -> Request[bool]:
        """Drops what is kept; whether anything was."""
        args = (token, self._retention(0))
        return Request(_FORGET, self._run[:3], args, _was_kept, lane=token)

    def adopt(self, old: str, new: str, ttl_ms: int, metadata: str) -> Request[int | None]:
        return super().adopt(old, new, ttl_ms, self._described(metadata))

    def annotate(self, token: str, metadata: str) -> Request[bool]:
        return super().annotate(token, self._described(metadata))

    def endless(self, refused: Refused) -> str:
        return self._name if self.no_end else ""

    def _described(self, metadata: str) -> str:
        """The fingerprint stands first, where a script finds it whatever the user has added."""
        return f'{{"fingerprint":"{self._fingerprint}",{metadata[1:]}'

    def _read(self, asked_at: float, raw: Any) -> Answer:
        if raw[0] == 1:
            self._tell(int(raw[1]))
            self.granted_at_us = int(raw[3])
            return Granted(int(raw[1]), raw[2])
        if raw[0] == 0:
            self._tell(int(raw[2]))
            self.no_end = raw[1] == NO_TTL
            self.tell_busy()
            return Refused(None if raw[1] < 0 else raw[1], raw[3:])
        if raw[0] == 2:
            _, run, age_us, due, tag, payload, *rung = raw
            age = _WORDS_FOR_AGES.get(age_us, age_us)
            end = RunEnded(int(run), age, asked_at, tag.decode(), payload, due=due == 1)
            return Refused(None, rung, error=end)
        return Refused(None, raw[1:], error=FingerprintError(self._name))

    def tell_busy(self) -> None:
        if self.busy is not None and not self.busy.done():
            self.busy.set_result(None)

    def _tell(self, run: int) -> None:
        if self._told is None and run:
            self._told = run


def _was_kept(raw: Any) -> bool:
    return int(raw[0]) == 1


# -- How the callers of one session ask for a run, be it a call or a turn.


def runs(
    engine: Engine,
    kind: str,
    label: str,
    name: str,
    *,
    options: Options,
    fingerprint: str,
    ahead: float = 0.0,
    anew: int | None = None,
    replaces: int | None = None,
) -> tuple[FlightSteps, Binding[Lease]]:
    """The way in which the tasks of one session ask for one run.

    `FlightSteps` describes `ahead` and `anew`. `replaces` is an `anew` for which callers wait.
    """
    # A run that replaces a value has a gate of its own: callers in this session ask the server meanwhile.
    slot = (kind, name) if anew is None else (kind, name, "anew")

    def made(like: FlightSteps | None) -> FlightSteps:
        return FlightSteps(
            engine.settings.prefix,
            kind,
            name,
            fingerprint=fingerprint,
            retention_ms=milliseconds(engine.settings.fence_retention),
            session=engine.session_id,
            now=engine.now,
            ahead=ahead,
            anew=replaces if anew is None else anew,
            like=like,
        )

    def bind(steps: FlightSteps) -> Binding[Lease]:
        return Binding(engine, Resource(steps, slot), Lease, label=label, name=name, options=options)

    # What all calls for the name have in common: the keys, and the gate, which lives while a binding has it.
    kept: Any = engine.bound((*slot, options), lambda: bind(made(None))).resource.steps
    steps = made(kept)
    return steps, bind(steps)


def ended_at(end: RunEnded, *, asked: float) -> float:
    """Loop time up to which a task must have come to get the result of that run.

    `asked` is when the asker began to ask: the run was going on later, for the asker was told of it. However
    long the answer was on its way, who came meanwhile came later than the run ended.
    """
    return NEVER if end.age_us is None else max(asked, end.asked_at - end.age_us / 1e6)


@final
class GrantTime:
    """When a run was granted, by the server's clock and by ours.

    So the age of its result counts from when it was made, however late the server hears of it.

    Args:
        at_us: The server's time at the grant, microseconds.
        lease: Granted a moment ago.

    Attributes:
        unsure: Seconds by which the server's time may be earlier than `latest_us` says: the request and its
            answer took so long.
    """

    __slots__ = ("_at_us", "_engine", "_heard", "unsure")

    def __init__(self, engine: Engine, at_us: int, lease: Lease) -> None:
        self._engine = engine
        self._at_us = at_us
        self._heard = engine.mark()
        self.unsure = dependable(lease.ttl) - lease.remaining()

    def latest_us(self, age: float) -> int:
        """The server's time, microseconds, that many seconds ago: the latest that it can have been."""
        since_sent = self._engine.elapsed(self._heard) + self.unsure
        return self._at_us + math.floor((since_sent - age) * 1e6)
