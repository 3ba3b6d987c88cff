"""A lease, from the grant to its end: its states, its body, and the ways to let go of it.

```
HELD ⇄ UNKNOWN        a renewal went unanswered, and time is left / it was answered after all
HELD, UNKNOWN → LOST, RELEASED, DETACHED
```

The last three are final.

A lease may be relied on until its local deadline: the time right before the request that the server confirmed
last, plus the ttl, less a drift of 1 % and 2 ms. When Redis is silent, this clock alone decides.

With a `grace`, the body is told to stop that long before the deadline, and unwinds while the lease is still
held. The lease is renewed meanwhile if the server answers, which does not call the body back.

Cancelling the body of an `async with`, and telling that cancellation from everybody else's: the bookkeeping
is that of `asyncio.timeout`. The task's count of cancellation requests is remembered on entry; a cancellation
of our own is taken back on exit, and only when nobody else's is left does the CancelledError become our
error.

Up to Python 3.12 the count alone does not tell that: a `TaskGroup` that has failed after its body had ended
leaves it raised, although nobody cancels the task. Where it was raised before our own cancellation, the
CancelledError itself decides: ours is known by its message, and one that others have caused stands in its
context.
"""

from __future__ import annotations

import asyncio
import base64
import enum
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self, final

from ..errors import BackendError, LockError, LockLostError, LockNotOwnedError
from ..transport import Call, Command, Fault, Kept, Released, Stolen, clocks
from .clock import milliseconds
from .misuse import AsyncOnly
from .notes import note
from .open_blocks import told_at_exit
from .options import SHORTEST_TTL, Metadata, Seconds, check_at_least, check_grace, seconds, user_metadata
from .process import current_pid
from .shield import LONGEST_DELAY, hold_up, wait_shielded
from .term import Term

if TYPE_CHECKING:
    from .._holders import HolderInfo
    from ..transport import Granted
    from .claim import Claim
    from .context import Context
    from .options import Options
    from .queue import Gate


class LeaseState(enum.Enum):
    """The state of a lease, as far as the session knows.

    `HELD`: the holder can rely on it. `UNKNOWN`: the last renewal was not answered; the holder can still rely
    on it for the time that is left. `LOST`: the holder can no longer rely on it. `RELEASED`: it was released.
    `DETACHED`: `detach()` has given it away.
    """

    HELD = "held"
    UNKNOWN = "unknown"
    LOST = "lost"
    RELEASED = "released"
    DETACHED = "detached"


@final
class End(NamedTuple):
    """How a lease has ended.

    Attributes:
        state: A final one.
        reason: As errors and the log tell it.
        stolen_by: The holder that has taken it by force.
    """

    state: LeaseState
    reason: str
    stolen_by: HolderInfo | None = None


RELEASED: Final = End(LeaseState.RELEASED, "it was released")
DETACHED: Final = End(LeaseState.DETACHED, "it was detached")


class Asked(Protocol):
    """A lock in a session, as its acquires and its leases see it; see `Binding`.

    Attributes:
        gate: Where those of the session queue that want the same thing.
        label: Its kind, as messages call it.
    """

    @property
    def engine(self) -> Context: ...

    @property
    def gate(self) -> Gate: ...

    @property
    def kind(self) -> str: ...

    @property
    def label(self) -> str: ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> Options: ...


class Watching(Protocol):
    """What keeps a lease renewed, as the lease calls it; see `renewal`."""

    label: str

    def confirmed(self, possession: Any, call: Call[Any], /) -> None:
        """The server has it, by the renewal that was made last."""
        ...

    def drop_renewal(self) -> None:
        """The answer to the request under way does not count any more."""
        ...

    def end(self) -> None:
        """Nothing more is sent for the lease, nor heard of it."""
        ...

    def remade(self, possession: Any, /) -> Callable[[], Command[Kept]] | None:
        """What makes a renewal when it is written, where its ttl depends on when that is."""
        ...

    def renewal_now(self, possession: Any, /, *, hears: bool) -> Command[Kept]:
        """A renewal; `hears`: whether the server tells of changes."""
        ...


_COUNTS_TRULY: Final = sys.version_info >= (3, 13)
"""Whether the count of cancellation requests goes back to what it was when a `TaskGroup` has ended."""


@final
class BodyScope:
    """One entered body.

    Invariant: `task.cancel()` is called at most once, never after `leave`, and taken back exactly as often.

    Args:
        cancels: Whether a loss cancels the body (`on_lost="cancel"`).

    Attributes:
        ended: The exit is over, with its release.
        left: The body has ended.
        told: The body was cancelled from here.
    """

    _before = 0  # the count right before our own cancellation
    _notice: _Notice | None = None
    ended = False
    left = False
    told = False

    def __init__(self, loop: asyncio.AbstractEventLoop, *, cancels: bool = True) -> None:
        task = asyncio.current_task(loop)  # for a loop that is given, Python need not ask the kernel
        if task is None:
            raise RuntimeError(
                "a lease is entered inside a task: run this in a coroutine, as with asyncio.run()"
            )
        self._loop = loop
        self.task = task
        self._cancels = cancels
        self._at_entry = task.cancelling()

    @property
    def entered_here(self) -> bool:
        """Whether this is the task that has entered."""
        return asyncio.current_task(self._loop) is self.task

    @property
    def unwinding(self) -> bool:
        """Whether the body was told to stop and has not ended."""
        return self._cancels and not self.left and not self.task.done()

    @property
    def running(self) -> bool:
        """Whether the body or its exit may still be at work."""
        return not self.ended and not self.task.done()

    @property
    def cancelled_by_others(self) -> bool:
        """Whether others may have cancelled the body, once it was left.

        Up to Python 3.12, a task group that has failed in it looks so, too.
        """
        return self.task.cancelling() > self._at_entry

    @property
    def cancelled_since(self) -> bool:
        """Whether others have cancelled the body after it was told from here, once it was left."""
        return self.told and self.task.cancelling() > self._before

    def cancel(self, why: str) -> None:
        """The body is to stop, for that reason."""
        if not self._cancels:
            return
        count = self.task.cancelling()
        # A body that has found the loss itself is told by an exception. A cancellation now would wait for its
        # next suspension, wherever that is; if it goes on regardless, it is cancelled then.
        if self.entered_here or count > self._at_entry:
            self._loop.call_soon(self._cancel_when_quiet, why, count)
        else:
            self._cancel(why)

    def _cancel_when_quiet(self, why: str, count: int) -> None:
        """Cancels once nobody else has done so for a whole turn of the loop.

        A cancellation that was requested before and not delivered yet would be delivered as ours, if we
        came between: of two requests for a task that is about to run, asyncio keeps the last message.
        """
        now = self.task.cancelling()
        if now > count and not self.left:
            self._loop.call_soon(self._cancel_when_quiet, why, now)
        else:
            self._cancel(why)

    def _cancel(self, why: str) -> None:
        if self.left or self.told or self.task.done():
            return
        self.told = True
        self._before = self.task.cancelling()
        self._notice = _Notice(f"aiolocks cancels the body: {why}")
        self.task.cancel(self._notice)

    def leave(self, exc: BaseException | None) -> bool:
        """The body has ended so: whether by our own cancellation and nothing else."""
        if self.left:
            return False
        self.left = True
        if self._notice is None:
            return False
        self._notice.settled = True
        count = self.task.uncancel()
        # In another task, an end by cancellation is that other task's.
        if not isinstance(exc, asyncio.CancelledError) or not self.entered_here:
            return False
        if count <= self._at_entry:
            return True
        return not _COUNTS_TRULY and count <= self._before and self._alone_caused(exc)

    def _alone_caused(self, error: BaseException) -> bool:
        """Whether our own cancellation is in it, and no earlier one that others may have requested.

        Later ones do not count: nobody has requested any that was not taken back, and the body may have
        caught ours and raised another one.
        """
        found = False
        converted: BaseException | None = None
        seen: set[int] = set()
        at: BaseException | None = error
        while at is not None and id(at) not in seen:
            seen.add(id(at))
            if isinstance(at, asyncio.CancelledError):
                notice = at.args[0] if at.args else None
                if notice is self._notice:
                    found = True
                elif found and at is not converted and not (isinstance(notice, _Notice) and notice.settled):
                    return False
            # A time limit has taken back the one that it has turned into this.
            converted = at.__cause__ if isinstance(at, TimeoutError) else None
            at = at.__context__
        return found


class _Notice(str):
    """The message of a cancellation of ours; known by its identity.

    Attributes:
        settled: It was taken back.
    """

    __slots__ = ("settled",)

    settled: bool

    def __new__(cls, text: str) -> Self:
        notice = super().__new__(cls, text)
        notice.settled = False
        return notice


_MARK: Final = "aiolocks-lease-1."


@final
@dataclass(frozen=True, slots=True)
class Handle:
    """Enough to take a lease up elsewhere. As secret as the token in it.

    Attributes:
        at_least_ms: For how long after the grant the name stays taken, wherever the lease ends.
        number: The fencing token, where the server has another one for the lease; else 0.
    """

    kind: str
    name: str
    token: str
    at_least_ms: int = 0
    number: int = 0

    def encode(self) -> str:
        fields: list[str | int] = [self.kind, self.name, self.token]
        if self.number:
            fields += [self.at_least_ms, self.number]
        elif self.at_least_ms:
            fields.append(self.at_least_ms)
        text = json.dumps(fields, separators=(",", ":"))
        return _MARK + base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, text: object, *, kind: str, name: str) -> Self:
        """Reads a handle of the lock with that kind and name.

        Raises:
            TypeError: It is not a str.
            ValueError: It is not a handle, or of another lock.
        """
        if not isinstance(text, str):
            raise TypeError(f"a handle is the str that detach() gave, not {type(text).__name__}")
        try:
            if not text.startswith(_MARK):
                raise ValueError
            fields = json.loads(base64.urlsafe_b64decode(text[len(_MARK) :]))
            handle = cls(*fields)
            if (
                list(map(type, fields)) != [str, str, str, int, int][: len(fields)]
                or min(handle.at_least_ms, handle.number) < 0
            ):
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            raise ValueError("this is not a handle that detach() gave: give that str, unchanged") from None
        if (handle.kind, handle.name) != (kind, name):
            raise ValueError(f"the handle is of {handle.kind} {handle.name!r}, not of {kind} {name!r}")
        return handle

    def __repr__(self) -> str:
        return f"<Handle of {self.kind} {self.name!r}>"


@final
class Releasing:
    """Sends a release until the server confirms it or its time has passed.

    A release that is repeated because its first reply was lost, and is then told "not the holder", was
    executed the first time: that is a success, unless the server knows the one that has taken its place.

    Args:
        until: Loop time at which the lease ends anyway.
        on_end: Called once, when it has ended.
        corked: Something follows that is to leave in the same write.
    """

    _call: Call[Released] | None = None
    _repeated = False
    fault: Fault | None = None
    freed = False
    overtaken = False  # the next request came before: the server did not know the script
    rung: Sequence[bytes] = ()  # the bells of the waiters that were woken
    thief = b""  # the lease that has taken its place by force

    def __init__(
        self,
        engine: Context,
        command: Command[Released],
        *,
        until: float,
        on_end: Callable[[Releasing], None] | None = None,
        corked: bool = False,
    ) -> None:
        self._engine = engine
        self._command = command
        self._until = until
        self._on_end = on_end
        self._followed = corked
        self._waiters: list[asyncio.Future[None]] | None = []
        self._call = Call(command, self._replied, self._failed, until=until, on_late=engine.wake_own)
        engine.send(self._call, corked=corked)

    def ended(self) -> asyncio.Future[None]:
        """A future of its own for each who waits for the end."""
        waiter: asyncio.Future[None] = self._engine.loop.create_future()
        if self._waiters is None:
            waiter.set_result(None)
        else:
            self._waiters.append(waiter)
        return waiter

    def _send_again(self) -> None:
        wake_own = self._engine.wake_own
        self._call = Call(self._command, self._replied, self._failed, until=self._until, on_late=wake_own)
        self._engine.send(self._call)

    def _replied(self, released: Released) -> None:
        call, self._call = self._call, None
        assert call is not None
        self.freed = released.freed or self._repeated or call.unconfirmed
        self.rung = released.rung
        if released.thief:
            self.thief = released.thief
        if self._followed and call.as_eval:
            self.overtaken = True
        self._finish()
        if released.rung:
            self._engine.wake_own(released)

    def _failed(self, fault: Fault) -> None:
        call, self._call = self._call, None
        assert call is not None
        self._repeated = self._repeated or call.unconfirmed
        pause = self._engine.settings.backoff.maximum
        in_time = self._engine.now() + pause < self._until
        if in_time and fault.transient and not self._engine.closed:
            self._engine.loop.call_later(pause, self._send_again)
        else:
            self.fault = fault
            self._finish()

    def _finish(self) -> None:
        # Nothing may refer back to this object: leases must be freed without the garbage collector.
        waiters, self._waiters = self._waiters, None
        on_end, self._on_end = self._on_end, None
        try:
            if on_end is not None:
                on_end(self)
        finally:
            for waiter in waiters or ():
                if not waiter.done():
                    waiter.set_result(None)


@final
class Changes:
    """The requests by which a holder changes one lease, which it holds all the while.

    Invariants:
    - a lease is extended by one task at a time: the answer to an older request does not count after that to
      a newer one;
    - no answer counts for a lease that was let go meanwhile.
    """

    __slots__ = ("_extending", "_possession")

    def __init__(self, possession: Possession) -> None:
        self._possession = possession
        self._extending = asyncio.Lock()

    async def extend(self, ttl: float) -> None:
        """Sets another ttl from now on. See `Lease.extend`."""
        self._possession.ensure_here()
        async with self._extending:
            self._possession.ensure_held()
            await self._extend(ttl)

    async def _extend(self, ttl: float) -> None:
        possession = self._possession
        engine, term, watch = possession.engine, possession.term, possession.watch
        assert watch is not None, "what is held is watched"
        now, until = engine.now(), term.deadline
        term.change(now, ttl)
        # A renewal under way asked for the ttl of before: its answer must not count any more.
        watch.drop_renewal()
        engine.watchdog.watch(possession)
        if engine.ward is not None:
            engine.ward.again(watch)
        renewal = watch.renewal_now(possession, hears=engine.hears)
        call = await self._ask(renewal, until=until, make=watch.remade(possession))
        if call is not None and possession.watch is not None:
            watch.confirmed(possession, call)
        possession.ensure_held()

    async def annotate(self, fields: Mapping[str, Any]) -> None:
        """Changes these fields of what stands beside it. See `Lease.annotate`."""
        possession = self._possession
        possession.ensure_here()
        possession.ensure_held()
        await self._ask(possession.claim.annotate(fields), until=possession.term.deadline)
        if possession.watch is not None and possession.engine.hears:
            # The server forgets whom it tells of a key when that session writes it, and says nothing.
            possession.watch.listen_again(possession)
        possession.ensure_held()

    async def _ask(
        self, command: Command[Any], *, until: float, make: Callable[[], Command[Any]] | None = None
    ) -> Call[Any] | None:
        """The call, if the server has it as the holder; if not, None, and it is lost."""
        possession, engine = self._possession, self._possession.engine
        until = min(until, engine.now() + engine.settings.command_timeout)
        call, answered = engine.start(command, until=until, make=make, patient=True)
        try:
            held = await answered
        except LockError:
            if call.ended_by is not None and call.ended_by.foreign:
                possession.lose(str(call.ended_by.error))
            if possession.state is LeaseState.LOST:
                possession.ensure_held()
            raise
        finally:
            engine.forget(call)
        if held:
            return call
        if possession.watch is not None:
            possession.taken_away(held)
        return None


_ARMED_AFTER: Final = 0.05
"""Seconds after the grant at which the server is asked to tell of a loss: a shorter hold costs no request."""


class Possession:
    """The state machine of one grant, from the grant to its end.

    Invariants:
    - it ends once, and only through `_end`;
    - the deadline is never later than the end of the lease on the server, if both clocks run alike;
    - the body is told to stop at most once, and, with a `grace`, never later than that before the deadline,
      unless the event loop did not run or the lease was lost at once;
    - it has a watch until it ends or a release is sent, and is renewed only by that;
    - one release is sent, and none for a lease that has ended before; nothing of the lease is sent after it;
    - a lease that was lost is taken back, at most once: the server may still have it, or have it again.

    Args:
        sent, steady: When the granted request was sent, as `Call` has it.

    Attributes:
        end: How it has ended.
        interval: What it holds of a range, as users see it.
        scope: The body that has entered it.
        stop_reason: Why the body was told to stop before the end.
        watch: The watchdog's, until it ends or is let go of; else None.
    """

    cached = False
    """It came without a request."""
    shares_token = False
    """Later holders may have the same token."""
    _lost: asyncio.Event | None = None
    _over: asyncio.Event | None = None
    _releasing: Releasing | None = None  # from the first try to let go of it on
    _taken_back = False
    end: End | None = None
    interval: tuple[float, float] | None = None
    scope: BodyScope | None = None
    stop_reason = ""
    watch: Any = None  # `Watching`, of which the watchdog knows more

    def __init__(
        self,
        target: Asked,
        claim: Claim,
        fencing_token: int,
        sent: float,
        steady: float,
    ) -> None:
        engine, options = target.engine, target.options
        sent, ahead = engine.timed(sent, steady)
        self.claim = claim
        self.engine = engine
        self.fencing_token = fencing_token
        self.gate = target.gate
        self.granted_at = sent
        self.interval = claim.commands.interval
        self.label = target.label
        self.name = target.name
        self.term = Term(
            sent,
            ttl=options.ttl,
            max_hold=options.max_hold,
            auto_renew=options.auto_renew,
            grace=options.grace,
            ahead=ahead,
        )
        if engine.hears:
            self.term.ask_by(sent + _ARMED_AFTER)

    # -- what may be said of it

    @property
    def live(self) -> bool:
        """Whether it has not ended, as far as anybody was told."""
        return self.end is None

    @property
    def lost(self) -> bool:
        """Whether it has ended so."""
        return self.end is not None and self.end.state is LeaseState.LOST

    @property
    def overdue(self) -> bool:
        """Whether its deadline has passed, and nobody was told yet."""
        term = self.term
        return self.end is None and term.moment(self.engine.now(), clocks.steady()) >= term.deadline

    @property
    def state(self) -> LeaseState:
        """LOST as soon as the deadline has passed, even before anybody was told."""
        if self.end is not None:
            return self.end.state
        if self.overdue:
            return LeaseState.LOST
        return LeaseState.UNKNOWN if self.term.doubted else LeaseState.HELD

    @property
    def holds(self) -> bool:
        """Whether it is held, for all that is known here, and nobody lets go of it."""
        return not self.term.doubted and self.remaining() > 0.0

    @property
    def lasting(self) -> bool:
        """Whether it does not end by itself while its holder lives."""
        return self.term.lasting

    @property
    def kind(self) -> str:
        return self.label.lower()

    @property
    def granted_us(self) -> int:
        """The server's time of the grant, microseconds, unless its clock was set back since then."""
        return self.fencing_token

    @property
    def number_in_key(self) -> int:
        """The fencing token by which the server knows it."""
        return self.fencing_token

    def remaining(self) -> float:
        """Seconds that the holder may still rely on."""
        if self.watch is None or self.engine.pid != current_pid():
            return 0.0
        term = self.term
        return max(0.0, term.deadline - term.moment(self.engine.now(), clocks.steady()))

    def ensure_held(self) -> None:
        """Raises `LockLostError` unless it may be relied on now."""
        if self.remaining() <= 0.0:
            # Not lost, but used in a fork, or after its holder has let go of it.
            lost = self.state is LeaseState.LOST
            raise self.loss(self._why_not_held(), lost=lost)

    def loss(self, reason: str, *, lost: bool = True) -> LockLostError:
        """The error for a lease that cannot be relied on."""
        thief = None if self.end is None else self.end.stolen_by
        return LockLostError(self.label, self.name, reason, lost=lost, stolen_by=thief)

    def why_ended(self) -> str:
        """Why it was lost or let go of, for the error of its block."""
        reason = "" if self.end is None else self.end.reason
        return f"{self.stop_reason}; {reason}" if self.stop_reason else reason

    def not_owned(self) -> LockNotOwnedError:
        """The error for a lease that has ended, and cannot be let go of."""
        assert self.end is not None, "it can be let go of"
        return LockNotOwnedError(self.label, self.name, self.end.reason, stolen_by=self.end.stolen_by)

    def ensure_this_process(self) -> None:
        """Raises in a fork of the holder."""
        if self.engine.pid != current_pid():
            raise LockNotOwnedError(self.label, self.name, self._why_not_held())

    def ensure_here(self) -> None:
        """Raises unless this is the process and the event loop of the holder."""
        self.ensure_this_process()
        if asyncio.get_running_loop() is not self.engine.loop:
            raise RuntimeError(
                f"this lease of {self.label} {self.name!r} belongs to another event loop: use it there, or "
                "hand it over with detach() and adopt()"
            )

    def _why_not_held(self) -> str:
        if self.engine.pid != current_pid():
            return "it belongs to the process that forked this one"
        if self.end is not None:
            return self.end.reason
        return "it is being released" if self.watch is None else self.why_over()

    def why_over(self) -> str:
        """The reason when the deadline has passed."""
        # A renewal that is in doubt was sent: then the server was silent, whatever the loop did after that.
        now, term = self.engine.now(), self.term
        stalled = 0.0 if term.doubted else self.engine.watchdog.stalled(term.deadline)
        return term.why_over(stalled=stalled, suspended=term.moment(now, clocks.steady()) - now)

    async def wait_lost(self) -> None:
        if self.lost:
            return
        if self._lost is None:
            self._lost = asyncio.Event()
        await self._lost.wait()

    async def wait_over(self) -> None:
        """Returns when it has ended, in whichever way."""
        if self._over is None:
            self._over = asyncio.Event()
        if self.end is None:
            await self._over.wait()

    # -- while it is held

    def doubt(self, reason: str) -> None:
        """A renewal was not answered, or by an error."""
        if not self.term.doubted:
            self.term.doubted = True
            self.engine.events.doubted(self, reason)

    def begin_grace(self, left: float) -> None:
        """Its body is to stop now, while there is that time left."""
        reason = self.term.why_grace(left)
        self.engine.events.stopping(self, reason)
        self.stop(reason)

    def stop(self, reason: str) -> None:
        """Its body is to end while the lease is still held: the body is told, once."""
        if self.end is not None or self.term.stopping:
            return
        self.term.stopping = True
        self.stop_reason = reason
        if self.scope is not None:
            self.scope.cancel(f"{self.label} {self.name!r}: {reason}")

    def become(self, label: str) -> None:
        """Is less than it was, in place."""
        was, self.label = self.kind, label
        if self.watch is not None:
            self.watch.label = label
        if self.kind != was:
            self.engine.events.downgraded(self, self.engine.now() - self.granted_at, was)

    # -- letting go

    async def let_go(self, cancelled_by: asyncio.CancelledError | None) -> LockError | None:
        """Releases, and says what stood in the way. Goes on by itself after a caller that is cancelled.

        Args:
            cancelled_by: The cancellation by which the caller unwinds.
        """
        releasing = self._releasing
        if releasing is None and self.overdue:
            self.lose(self.why_over())
        if self.end is not None:
            if self.lost:
                self._take_back()
            return None if self.end is RELEASED else self.not_owned()
        if releasing is None:
            # The order matters: no renewal may be sent after the release, and the try of the next waiter here
            # must be sent right after it.
            self.leave_watch()
            gate, claim = self.gate, self.claim
            awaited = gate.awaited
            ring = not awaited or gate.holder_releasing(claim)
            releasing = self._releasing = Releasing(
                self.engine,
                claim.end(ring=ring),
                until=self.term.deadline,
                on_end=self._on_released,
                corked=awaited,
            )
            gate.holder_gone(claim)
        if cancelled_by is None:
            try:
                await releasing.ended()
            except asyncio.CancelledError as cancelled:
                await hold_up(releasing.ended, cancelled)
        else:
            await wait_shielded(releasing.ended, cancelled_by=cancelled_by)
        if releasing.fault is not None:
            error = releasing.fault.error
            if isinstance(error, BackendError):
                told = f"aiolocks: {self.label} {self.name!r} was not released; its ttl frees it"
                if told not in getattr(error, "__notes__", ()):  # it may be asked again
                    note(error, told)
            return error
        return self.not_owned() if self.lost else None

    def _on_released(self, releasing: Releasing) -> None:
        if self.end is None:
            if releasing.fault is not None:
                self.lose("its release was not confirmed in time; the ttl frees it")
                self._take_back()
            elif releasing.thief and self.lost_to(releasing.thief):
                pass
            elif releasing.freed:
                self.released()
            else:
                self.lose("the server no longer had it as the holder when it was released")
        self.gate.holder_released(releasing.rung, overtaken=releasing.overtaken)

    def _take_back(self) -> None:
        """The server may still have a lease that was lost by the local clock, or with the session.

        Or may have again: a server that hangs may execute the last renewal when it goes on.
        """
        if not self._taken_back:
            self._taken_back = True
            self.engine.take_back(self.claim.end(), LONGEST_DELAY, told=self.engine.wake_own)

    # -- the end

    def taken_away(self, answer: Kept) -> None:
        """The server does not have it as the holder."""
        if not (isinstance(answer, Stolen) and self.lost_to(answer.thief)):
            self.lose("the server no longer has it as the holder")

    def lost_to(self, lease: bytes) -> bool:
        """Whether the holder of that lease has taken it by force, and so it is lost."""
        from .stealing import reason_of  # noqa: PLC0415 - of few losses, and an import takes its time

        lost = reason_of(lease, self.number_in_key)
        if lost is None:
            return False
        self.lose(*lost)
        return True

    def lose(self, reason: str, thief: HolderInfo | None = None) -> None:
        """Can no longer be relied on: each task that relies on it is told, once."""
        if self.end is not None:
            return
        self._end(End(LeaseState.LOST, reason, thief))
        if self._lost is not None:
            self._lost.set()
        if self.scope is not None:
            if self.term.stopping and self.scope.unwinding:
                self.engine.events.outlasted(self)
            self.scope.cancel(f"{self.label} {self.name!r} was lost: {reason}")
        self.engine.events.lost(self, self.engine.now() - self.granted_at, reason)

    def released(self) -> None:
        """The server has freed it."""
        self._end(RELEASED)
        self.engine.events.released(self, self.engine.now() - self.granted_at)

    def detach(self) -> None:
        """Ends the watch here: nobody looks after the lease any more, and the ttl runs."""
        self.ensure_held()
        self.engine.settle(self.claim)
        self._end(DETACHED)
        self.engine.events.detached(self, self.engine.now() - self.granted_at)

    def _end(self, end: End) -> None:
        if self.end is not None:
            raise RuntimeError(f"a lease that is {self.end.state.name} cannot become {end.state.name}")
        self.end = end
        if self._over is not None:
            self._over.set()
        if self.watch is not None:
            self.leave_watch()
        if self._releasing is None:  # else its gate is told as the release is sent
            self.gate.holder_gone(self.claim)

    def leave_watch(self) -> None:
        """Nothing more is sent for the lease, nor heard of it."""
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.end()


class Lease(AsyncOnly):
    """Possession of a lock. Acquiring a lock makes it.

    The holder can rely on a lease until its local deadline. This is the time right before the last request
    that the server has confirmed, plus the ttl, less a drift of 1 % and 2 ms. While the lease is held, it is
    renewed after each third of its ttl.

    `async with lease:` releases the lease on exit. When the lease is lost, or when the lock's `grace` begins,
    it cancels the body, and raises `LockLostError` when the body has ended. If the body raises an exception,
    or is cancelled from outside, this exception is not replaced; the loss is a note on it.
    """

    _elsewhere = "hand it over by `handle = lease.detach()` here and `await lock.adopt(handle)` there"

    __slots__ = ("_changing", "_engine", "_metadata", "_on_lost", "_possession")

    def __init__(self, binding: Asked, possession: Possession, grant: Granted) -> None:
        self._engine = binding.engine
        self._metadata = binding.metadata
        self._on_lost = binding.options.on_lost
        self._possession = possession
        self._changing: Changes | None = None  # from the first change on

    @property
    def name(self) -> str:
        """Name of the lock."""
        return self._possession.name

    @property
    def kind(self) -> str:
        """Kind of the lock, such as `"lock"`."""
        return self._possession.kind

    @property
    def ttl(self) -> float:
        """Seconds that each renewal asks for; `extend` may change it."""
        return self._possession.term.ttl

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the session and of the lock, or of the last `annotate`; read-only."""
        return MappingProxyType(dict(self._metadata))

    @property
    def token(self) -> str:
        """The secret of this lease. A process that has it can release the lock: do not log it."""
        return self._possession.claim.token

    @property
    def fencing_token(self) -> int:
        """Larger than that of every earlier lease of this name, for a store that refuses late writes.

        It is the server's time in microseconds, or the last token plus 1 if that is larger. So it also rises
        after a restart without data or a failover, unless the server's clock is then behind the time of an
        earlier grant.
        """
        return self._possession.fencing_token

    @property
    def state(self) -> LeaseState:
        """The present state of the lease. It is `LOST` as soon as the local deadline has passed. No I/O."""
        return self._possession.state

    def remaining(self) -> float:
        """Seconds for which the holder can rely on the lease; 0.0 once it is lost or released. No I/O."""
        return self._possession.remaining()

    def ensure_held(self) -> None:
        """Returns if the lease can be relied on now. No I/O, so call it right before every write.

        Raises:
            LockLostError: The lease was lost or released.
        """
        self._possession.ensure_held()

    async def owned(self) -> bool:
        """Asks the server whether this lease holds the lock.

        Raises:
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.
        """
        self._possession.ensure_here()
        if self._possession.end is RELEASED and self._possession.shares_token:
            return False
        return await self._engine.ask(self._possession.claim.owned())

    async def extend(self, ttl: Seconds | None = None) -> None:
        """Sets a new ttl from now on. Later renewals keep it.

        Until the answer arrives, the lease counts on the shorter of its old time and its new time. After a
        cancellation or an error it does so, too, because the server may have set the ttl or not.

        Args:
            ttl: Seconds from now, 50 ms to ten years, at least the lock's `at_least`, and at least twice its
                `grace`. None, the default: the present ttl.

        Raises:
            TypeError, ValueError: The ttl is wrong; before any I/O.
            LockLostError: The lease is no longer held.
            BackendError: Redis refused, or did not answer within the session's `command_timeout`.
        """
        given = self.ttl if ttl is None else seconds("ttl", ttl, least=SHORTEST_TTL)
        check_at_least(self._possession.claim.at_least_ms, milliseconds(given))
        check_grace(self._possession.term.grace, given)
        await self._changes.extend(given)

    @property
    def _changes(self) -> Changes:
        if self._changing is None:
            self._changing = Changes(self._possession)
        return self._changing

    async def annotate(self, metadata: Metadata) -> None:
        """Changes the metadata of the lease on the server, which `session.inspect()` and the CLI show.

        The new metadata replace those of the lock and of an earlier `annotate`. The session's metadata stay,
        and so do host, pid and task of the holder. The end of the lease does not change. Renewals keep the
        new metadata; `lock.adopt` replaces them by the metadata of the adopting lock.

        Args:
            metadata: JSON values. Every user that can read the key can read them.

        Raises:
            TypeError: It is not a mapping from str to JSON values.
            ConfigurationError: Together with the session's metadata, it has more bytes than the session's
                `largest_metadata`.
            LockLostError: The lease is no longer held.
            BackendError: Redis refused, or did not answer within the session's `command_timeout`.

        After a cancellation or an error, the server may have done it or not, and the lease is held as before.
        A second call does what is left.
        """
        settings = self._engine.settings
        user = {**settings.metadata, **user_metadata(metadata)}
        settings.user_json(user)
        await self._changes.annotate({"user": user})
        self._metadata = user

    async def release(self) -> None:
        """Releases the lease. After it was released, a further call does nothing.

        If the lock's `at_least` has not passed, the name stays taken until then, without a holder.

        It waits until the server confirms the release, up to the lease's own deadline. A cancellation is
        delayed by at most 1 s; after that the release goes on in the background.

        Raises:
            LockNotOwnedError: The lease was lost, or `detach` has given it away.
            BackendError: The release was not confirmed before the lease's deadline. The ttl frees the name.
        """
        self._possession.ensure_here()
        error = await self._possession.let_go(None)
        if error is not None:
            raise error

    async def wait_lost(self) -> None:
        """Returns when the lease is lost. If the lease is released, it never returns: cancel it then."""
        await self._possession.wait_lost()

    def detach(self) -> str:
        """Stops the renewals of the lease, and returns a handle: `lock.adopt(handle)` takes the lease over.

        The handle is as secret as the token. An `async with` that has entered the lease does not release it
        any more. Until the lease is adopted, in this process or in another one, its ttl runs.

        Raises:
            LockLostError: The lease was lost or released.
        """
        claim = self._possession.claim
        number = claim.given  # before others may use it
        self._possession.detach()
        return Handle(self.kind, self.name, self.token, claim.at_least_ms, number).encode()

    async def __aenter__(self) -> Self:
        self.enter()
        return self

    def enter(self) -> asyncio.Task[Any]:
        """Enters the lease, and returns the task that has entered."""
        possession = self._possession
        if possession.scope is not None:
            raise RuntimeError(
                f"this lease of {possession.label} {self.name!r} was entered before: acquire the lock again"
            )
        engine, term, watch = self._engine, possession.term, possession.watch
        over = term.moment(engine.now(), clocks.steady()) >= term.deadline
        if over or watch is None or engine.pid != current_pid():
            if possession.state is LeaseState.LOST:
                possession.lose(possession.why_over())  # the next waiters need not wait for this task
            possession.ensure_held()
        assert watch is not None, "what is held is watched"
        cancels = self._on_lost == "cancel"
        possession.scope = scope = BodyScope(engine.loop, cancels=cancels)
        if term.stopping:
            scope.cancel(possession.stop_reason)
        engine.entered.add(scope.task, watch)
        if cancels and engine.ward is not None:
            engine.ward.enter(watch, term)
        return scope.task

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        scope = self._possession.scope
        if scope is None:
            raise RuntimeError("this lease was not entered: write `async with lease:`")
        if scope.left:
            label, name = self._possession.label, self.name
            await told_at_exit(LockNotOwnedError(label, name, "its block was left in another task"), exc)
            return
        possession, error = self._possession, None
        cancelled_by_us = scope.leave(exc)
        self._engine.entered.remove(scope.task, possession)
        try:
            if possession.end is not DETACHED:
                if self._engine.pid != current_pid() or not scope.entered_here:
                    possession.ensure_here()
                error = await possession.let_go(exc if isinstance(exc, asyncio.CancelledError) else None)
        except LockNotOwnedError as not_here:  # a fork of the holder
            error = not_here
        else:
            if isinstance(error, LockNotOwnedError):
                error = possession.loss(possession.why_ended())
        finally:
            scope.ended = True
        if error is not None or scope.told:
            # A raised error knows this frame, and so must not be known from here.
            try:
                self._tell(exc, error, scope, wins=exc is not None and not cancelled_by_us)
            finally:
                del error, exc

    def _tell(
        self, exc: BaseException | None, error: LockError | None, scope: BodyScope, *, wins: bool
    ) -> None:
        """Raises what the exit has to say, or notes it on the exception of the body where that one wins."""
        if scope.told and self._possession.stop_reason and not isinstance(error, LockLostError):
            error = self._stopped(exc, error)
        if error is None:
            return
        if exc is not None and wins:
            note(exc, f"aiolocks: {error}")
        elif isinstance(error, LockLostError) and self._on_lost == "ignore":
            pass  # the log has it
        else:
            try:
                raise error from error.__cause__
            finally:
                del error, exc

    def _stopped(self, exc: BaseException | None, unreleased: LockError | None) -> LockError | None:
        """How a body ends that was told to stop; one that has ended well was alone up to its end."""
        if exc is None:
            return unreleased
        error = self._possession.loss(self._possession.stop_reason)
        error.__cause__ = unreleased
        return error

    def __repr__(self) -> str:
        left = f" remaining={self.remaining():.3f}" if self._possession.live else ""
        return f"<Lease {self.kind} {self.name!r} {self.state.name} fencing_token={self.fencing_token}{left}>"
