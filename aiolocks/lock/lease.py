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

A lost lease cancels the body of an `async with`, and must tell its own cancellation from any other one.
The bookkeeping is that of `asyncio.timeout`. The task's count of cancellation requests is remembered on
entry, and our own cancellation is taken back on exit. Only when no other request is left does the
CancelledError become our error.

Up to Python 3.12 the count alone does not tell that: a `TaskGroup` that has failed after its body had ended
leaves the count raised, although no code cancels the task. Where the count was raised before our own
cancellation, the CancelledError itself decides: ours is known by its message, and a CancelledError that other
code has caused stands in its context.
"""

from __future__ import annotations

import asyncio
import base64
import contextvars
import enum
import json
import sys
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Self, TypeVar, cast, final
from weakref import ref

from .._tasks import empty_context
from ..errors import BackendError, LockError, LockLostError, LockNotOwnedError, SessionClosedError
from ..transport import (
    Answer,
    Fault,
    Granted,
    Kept,
    Listener,
    Refused,
    Released,
    Request,
    Stolen,
    clocks,
    ignore,
)
from ..transport.answers import FREED_ALONE
from ..transport.commands.base import NameSteps
from . import process
from .backoff import SILENT
from .blocks import told_at_exit
from .clock import dependable, milliseconds
from .events import how_it_ended
from .inside import FEW, INSIDE, nested
from .misuse import AsyncOnly
from .notes import note
from .options import (
    NO_METADATA,
    SHORTEST_TTL,
    Metadata,
    Seconds,
    check_at_least,
    check_grace,
    seconds,
    user_metadata,
)
from .process import current_pid
from .queue import Gate
from .renewal import Watch
from .shield import LONGEST_DELAY, hold_up, wait_shielded
from .waiter import Attempt, FirstAsk, Waiter

if TYPE_CHECKING:
    from .._holders import HolderInfo
    from ..transport.commands.waits import Wanted
    from .context import Context
    from .options import Options


# -- What is wished for or had: how the tasks of a session queue, and the possession that a token stands for.


@final
@dataclass(slots=True, kw_only=True, eq=False)
class QueuePolicy:
    """How waiters of one session share a lock.

    Attributes:
        exclusive: One of them has it: while a task of this session holds it, no other task of it asks.
        strict: First come, first served over all sessions: each waiter has a seat of its own in the queue.
        quiet: Other processes need not know of a hand-over within this session: the release wakes no waiter.
            The request of the next waiter of this session follows right after it, and wakes one if it is
            refused.
        together: The waiters enter at the same time, once one of them has entered. Else a release hands over
            to the next waiter of this session: the waiter's request follows right after the release.
        silence: Seconds after which a waiter asks although it is told when it may enter: a refusal for
            another reason is not told.
    """

    exclusive: bool = False
    strict: bool = False
    together: bool = False
    quiet: bool = False
    silence: float = SILENT

    @property
    def yields(self) -> bool:
        """Whether waiters of this session let a waiter go first that was woken in another process.

        In a strict queue the server sees to that.
        """
        return self.quiet and not self.strict

    @property
    def stays(self) -> bool:
        """Whether its place in the queue is kept for the next waiters of this session."""
        return self.strict or self.together


SIMPLE: Final = QueuePolicy(exclusive=True, quiet=True)


@final
class Resource:
    """The thing that a lock describes, in one session.

    Attributes:
        commands: How it is asked for.
        gate_key: The tasks of a session that ask for things of one gate key stand in one queue.
        policy: How these tasks stand to each other.
    """

    __slots__ = ("commands", "gate_key", "policy")

    def __init__(self, commands: NameSteps, gate_key: Hashable, policy: QueuePolicy = SIMPLE) -> None:
        self.commands = commands
        self.gate_key = gate_key
        self.policy = policy

    def nobody(self, seat: str = "") -> Claim:
        """A claim that holds nothing: its release gives up the seat, and wakes other waiters."""
        return Claim(self.commands, seat, "", 1000)


class Claim:
    """One possession under its token, wished for or had.

    Args:
        metadata: The metadata of the lease, as JSON.
        at_least_ms: For how long after its grant the name stays taken, though its holder has ended.
        seized: It is taken from its holder; called with each answer, also a late one to a caller that left.
        context: The context of the acquire, for what is told of it.

    Attributes:
        context: The same; None once there is nothing more to tell. It has the variables of a request.
    """

    __slots__ = ("_seized", "_ttl_ms", "at_least_ms", "commands", "context", "metadata", "token")

    @property
    def given(self) -> int:
        """The fencing token of the lease, where the server has another one for it; else 0."""
        return 0

    def __init__(
        self,
        commands: NameSteps,
        token: str,
        metadata: str,
        ttl_ms: int,
        *,
        at_least_ms: int = 0,
        seized: Callable[[Claim, Answer], Answer] | None = None,
        context: contextvars.Context | None = None,
    ) -> None:
        self._seized = seized
        self.commands = commands
        self.context = context
        self.metadata = metadata
        self._ttl_ms = ttl_ms  # the ttl of the last request
        self.at_least_ms = at_least_ms
        self.token = token

    @property
    def owner(self) -> str:
        return self.commands.owner(self.token)

    @property
    def nests(self) -> bool:
        return self.commands.nests

    def excluded_by(self, own: Sequence[Claim], refused: Refused) -> bool:
        """Whether these possessions exclude it for as long as they are held, as a refusal shows."""
        theirs = [(claim.commands, claim.token) for claim in own]
        return self.commands.excluded_by(theirs, refused)

    def endless(self, refused: Refused | None, prefix: str) -> str:
        """That a key has lost its ttl, and what frees it, if a refusal tells of that; else empty."""
        name = "" if refused is None else self.commands.endless(refused)
        if not name:
            return ""
        from .._holders import without_ttl  # noqa: PLC0415 - rare, and an import takes its time

        return without_ttl(name, prefix, self.commands.freed_on)

    def wanted(self) -> Wanted | None:
        return self.commands.wanted()

    def acquire(self, ttl_ms: int, standing: int = 0) -> Request[Answer]:
        self._ttl_ms = ttl_ms
        if self._seized is not None:
            return self._seizing(self._seized, ttl_ms)
        return self.commands.acquire(self.token, ttl_ms, self.metadata, standing)

    def _seizing(self, seized: Callable[[Claim, Answer], Answer], ttl_ms: int) -> Request[Answer]:
        command = self.commands.steal(self.token, ttl_ms, self.metadata)
        read = command.parse

        def parse(raw: Any) -> Answer:
            return seized(self, read(raw))

        command.parse = parse
        return command

    def listener(self) -> Listener | Request[int]:
        return self.commands.listener(self.token)

    def renew(self, ttl_ms: int, *, watch: bool = False, changed: bool = False) -> Request[Kept]:
        """`watch`: the server is to tell of what changes after it; `changed`: it has told just now."""
        self._ttl_ms = ttl_ms
        renew = self.commands.renew_changed if changed else self.commands.renew
        command = renew(self.token, ttl_ms)
        if watch:
            self.commands.watch(command)
        return command

    def release(self, *, ring: bool = True, leave: bool = False) -> Request[Released]:
        """Takes back a grant at once: nothing was run under it."""
        return self.commands.release(self.token, self._ttl_ms, ring=ring, leave=leave)

    def end(self, *, ring: bool = True) -> Request[Released]:
        """Lets go after something was run under it."""
        if not self.at_least_ms:
            return self.commands.release(self.token, self._ttl_ms, ring=ring)
        return self.commands.end(self.token, self._ttl_ms, self.at_least_ms, ring=ring)

    def settle(self) -> Request[None] | None:
        """Before it is handed over: nothing may be created for its token any more. None if nothing can be."""
        return self.commands.settle(self.token, self._ttl_ms)

    def annotate(self, fields: Mapping[str, Any]) -> Request[bool]:
        """Changes these fields of what stands beside it; the other fields stay."""
        self.metadata = json.dumps({**json.loads(self.metadata), **fields}, separators=(",", ":"))
        return self.commands.annotate(self.token, self.metadata)

    def owned(self, *, watch: bool = False) -> Request[bool]:
        """`watch`: as of a renewal."""
        command = self.commands.owned(self.token)
        if watch:
            self.commands.watch(command)
        return command


# -- The grant, its body, its release.


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


_COUNTS_TRULY: Final = sys.version_info >= (3, 13)
"""Whether the count of cancellation requests goes back to what it was when a `TaskGroup` has ended."""


class BodyScope:
    """One entered body: that of a possession, or another one that has a limit.

    Invariant: `task.cancel()` is called at most once, never after `leave`, and taken back exactly as often.

    Args:
        cancels: Whether a loss cancels the body (`on_lost="cancel"`).

    Attributes:
        ended: The exit is over, with its release.
        left: The body has ended.
        task: The task that has entered; None: no task has.
        told: The body was cancelled by this object.
    """

    _before = 0  # the count right before our own cancellation
    _notice: _Notice | None = None
    ended = False
    left = False
    told = False
    task: Any = None

    def __init__(self, loop: asyncio.AbstractEventLoop, *, cancels: bool = True) -> None:
        self.begin_body(loop, cancels=cancels)

    def begin_body(self, loop: asyncio.AbstractEventLoop, *, cancels: bool) -> asyncio.Task[Any]:
        """The running task enters the body. Returns that task."""
        task = asyncio.current_task(loop)  # for a loop that is given, Python need not ask the kernel
        if task is None:
            raise RuntimeError(
                "a lease is entered inside a task: run this in a coroutine, as with asyncio.run()"
            )
        self._loop = loop
        self.task = task
        self._cancels = cancels
        self._at_entry = task.cancelling()
        return task

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
        """Whether other code may have cancelled the body; asked once the body was left.

        Up to Python 3.12, a task group that has failed in the body looks so, too.
        """
        return bool(self.task.cancelling() > self._at_entry)

    @property
    def cancelled(self) -> bool:
        """Whether this object or, where the count tells that, other code has cancelled the body."""
        return self.told or (_COUNTS_TRULY and self.cancelled_by_others)

    @property
    def cancelled_since(self) -> bool:
        """Whether other code has cancelled the body after this object did; asked once the body was left."""
        return self.told and self.task.cancelling() > self._before

    def cancel(self, why: str) -> None:
        """The body is to stop, for that reason."""
        if not self._cancels:
            return
        count = self.task.cancelling()
        # A body that has found the loss itself is told by an exception. A cancellation now would wait for its
        # next suspension, wherever that is; if it goes on regardless, it is cancelled then.
        if self.entered_here or count > self._at_entry:
            self._loop.call_soon(self._cancel_when_quiet, why, count, context=empty_context())
        else:
            self._cancel(why)

    def _cancel_when_quiet(self, why: str, count: int) -> None:
        """Cancels once no other code has done so for a whole turn of the loop.

        A cancellation that was requested before and not delivered yet would be delivered as ours, if we
        came between: of two requests for a task that is about to run, asyncio keeps the last message.
        """
        now = self.task.cancelling()
        if now > count and not self.left:
            self._loop.call_soon(self._cancel_when_quiet, why, now, context=empty_context())
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
        # Where another task leaves the body, a cancellation is that task's own.
        if not isinstance(exc, asyncio.CancelledError) or not self.entered_here:
            return False
        if count <= self._at_entry:
            return True
        return not _COUNTS_TRULY and count <= self._before and self._alone_caused(exc)

    def _alone_caused(self, error: BaseException) -> bool:
        """Whether our own cancellation is in it, and no earlier one that other code may have requested.

        Later ones do not count: each request for one was taken back, and the body may have caught ours and
        raised another one.
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
            # A time limit has taken back the cancellation that it has turned into this error.
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
    """Enough to take a lease up in another session or process. As secret as the token in it.

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
            handle.token.encode()  # else no request could carry it, among the requests of other tasks
        except (ValueError, TypeError, RecursionError):
            raise ValueError("this is not a handle that detach() gave: give that str, unchanged") from None
        if (handle.kind, handle.name) != (kind, name):
            raise ValueError(f"the handle is of {handle.kind} {handle.name!r}, not of {kind} {name!r}")
        return handle

    def __repr__(self) -> str:
        return f"<Handle of {self.kind} {self.name!r}>"


class Releasing:
    """Sends a release until the server confirms it or its time has passed.

    A release that is repeated because its first reply was lost, and is then told "not the holder", was
    executed the first time: that is a success, unless the server knows the one that has taken its place.

    Args:
        until: Loop time at which the lease ends anyway.
        on_end: Called once, when it has ended.
        corked: Something follows that is to leave in the same write.
    """

    _call: Request[Released] | None = None
    _on_end: Callable[[Releasing], None] | None = None
    _repeated = False
    _waiters: list[asyncio.Future[None]] | None = None
    engine: Context
    fault: Fault | None = None
    freed = False
    overtaken = False  # the next request came before: the server did not know the script
    rung: Sequence[bytes] = ()  # the bells of the waiters that were woken
    thief = b""  # the lease that has taken its place by force

    def __init__(
        self,
        engine: Context,
        command: Request[Released],
        *,
        until: float,
        on_end: Callable[[Releasing], None] | None = None,
        corked: bool = False,
    ) -> None:
        self.engine = engine
        self._on_end = on_end
        self.send(command, until=until, corked=corked)

    def send(self, command: Request[Released], *, until: float, corked: bool, at_once: bool = False) -> None:
        """It begins."""
        engine = self.engine
        self._until = until
        self._followed = corked
        self._waiters = []
        # As `Request.ask`.
        command.on_reply = self._replied
        command.on_fault = self._failed
        command.until = until
        command.on_late = engine.wake_own
        self._call = command
        if at_once:
            command.final = True
        engine.send(command, at_once=at_once, corked=corked)

    def until_ended(self) -> asyncio.Future[None]:
        """A future of its own for each task that waits for the end."""
        waiter: asyncio.Future[None] = self.engine.loop.create_future()
        if self._waiters is None:
            waiter.set_result(None)
        else:
            self._waiters.append(waiter)
        return waiter

    def _send_again(self, sent: Request[Released]) -> None:
        wake_own = self.engine.wake_own
        self._call = sent.again().ask(self._replied, self._failed, until=self._until, on_late=wake_own)
        self.engine.send(self._call)

    def _replied(self, released: Released) -> None:
        call, self._call = self._call, None
        assert call is not None
        # A round of a quorum knows it for longer, and must not know this object.
        call.on_reply = call.on_fault = ignore
        self.freed = released.freed or self._repeated or call.unconfirmed
        if released is not FREED_ALONE:
            self.rung = released.rung
            if released.thief:
                self.thief = released.thief
        if self._followed and call.as_eval:
            self.overtaken = True
        self._finish()
        if self.rung:
            self.engine.wake_own(released)

    def _failed(self, fault: Fault) -> None:
        call, self._call = self._call, None
        assert call is not None
        call.on_reply = call.on_fault = ignore  # as above
        self._repeated = self._repeated or call.unconfirmed
        pause = self.engine.settings.backoff.maximum
        in_time = self.engine.now() + pause < self._until
        if in_time and fault.transient and not self.engine.closed:
            self.engine.loop.call_later(pause, self._send_again, call, context=empty_context())
        else:
            self.fault = fault
            self._finish()

    def _finish(self) -> None:
        # Nothing may refer back to this object: leases must be freed without the garbage collector.
        waiters, self._waiters = self._waiters, None
        try:
            self._has_ended()
        finally:
            if waiters:
                for waiter in waiters:
                    if not waiter.done():
                        waiter.set_result(None)

    def _has_ended(self) -> None:
        """Called once, before the waiting tasks are told."""
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self)


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
        self, command: Request[Any], *, until: float, make: Callable[[], Request[Any]] | None = None
    ) -> Request[Any] | None:
        """The call, if the server has the lease as the holder; if not, None, and the lease is lost."""
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


class Possession(BodyScope, Releasing):
    """The state machine of one grant, from the grant to its end: also its body, and its release.

    Invariants:
    - it ends once, and only through `_end`;
    - the deadline is never later than the end of the lease on the server, if both clocks run alike;
    - the body is told to stop at most once, and, with a `grace`, never later than that before the deadline,
      unless the event loop did not run or the lease was lost at once;
    - it has a watch until it ends or a release is sent, and is renewed only by that;
    - one release is sent, and none for a lease that has ended before; nothing of the lease is sent after it;
    - while the server has not confirmed a release for which no exit waits, the session knows of it
      (`Context.unconfirmed`);
    - a lease that was lost is taken back, at most once: the server may still have it, or have it again;
    - the context of its acquire is kept until its end was told, and no longer.

    Args:
        sent, steady: When the granted request was sent, as `Request` has it.

    Attributes:
        acquirer: The task that has got it to use it without a body; None where that is not known.
        end: How it has ended.
        interval: What it holds of a range, as users see it.
        stop_reason: Why the body was told to stop before the end.
        term: Its times.
        watch: The same object until it ends or is let go of; then None.
    """

    cached = False
    """It came without a request."""
    confirms = True
    """The exit of its body waits until the server has confirmed the release."""
    shares_token = False
    """Later holders may have the same token."""
    acquirer: ref[asyncio.Task[Any]] | None = None
    _lost: asyncio.Event | None = None
    _over: asyncio.Event | None = None
    _letting_go = False  # from the first try to let go of it on
    _taken_back = False
    end: End | None = None
    interval: tuple[float, float] | None = None
    stop_reason = ""
    watch: Watch | None = None

    def __init__(
        self,
        target: Binding[Any],
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
        self.target = target
        self.interval = claim.commands.interval
        self.label = target.label
        self.name = target.name
        self.term = term = Watch(options, sent, ahead)
        if engine.hears:
            term.ask_by(sent + _ARMED_AFTER)
        if not options.confirm:
            self.confirms = False

    # -- what may be said of it

    @property
    def scope(self) -> BodyScope | None:
        """The body that has entered it."""
        return None if self.task is None else self

    @property
    def live(self) -> bool:
        """Whether it has not ended, as far as its tasks were told."""
        return self.end is None

    @property
    def lost(self) -> bool:
        """Whether it has ended as LOST."""
        return self.end is not None and self.end.state is LeaseState.LOST

    @property
    def overdue(self) -> bool:
        """Whether its deadline has passed, and no task was told yet."""
        term = self.term
        return self.end is None and term.moment(self.engine.now(), clocks.steady()) >= term.deadline

    @property
    def state(self) -> LeaseState:
        """LOST as soon as the deadline has passed, even before any task was told."""
        if self.end is not None:
            return self.end.state
        if self.overdue:
            return LeaseState.LOST
        return LeaseState.UNKNOWN if self.term.doubted else LeaseState.HELD

    @property
    def holds(self) -> bool:
        """Whether it is held, as far as the session knows, and no task lets go of it."""
        return not self.term.doubted and self.remaining() > 0.0

    @property
    def lasting(self) -> bool:
        """Whether it does not end by itself while its holder lives."""
        return self.term.lasting

    @property
    def context(self) -> contextvars.Context | None:
        """The context of its acquire: what becomes of the lease is told in it."""
        return self.claim.context

    @property
    def kind(self) -> str:
        return self.label.lower()

    @property
    def _among_others(self) -> bool:
        """Whether the session holds other leases."""
        return len(self.engine.watchdog) > (self.watch is not None)

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
        now, term = self.engine.now(), self.term
        return term.why_over(stalled=self.stalled(), suspended=term.moment(now, clocks.steady()) - now)

    def stalled(self) -> float:
        """Seconds for which the event loop stood still when the deadline passed; 0.0 if that is not why."""
        # A renewal that is in doubt was sent: then the server was silent, whatever the loop did after that.
        return 0.0 if self.term.doubted else self.engine.watchdog.stalled(self.term.deadline)

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

    async def wait_released(self) -> bool:
        await self.wait_over()
        return self.end is RELEASED

    # -- while it is held

    def doubt(self, reason: str) -> None:
        """A renewal was not answered, or an error was the answer."""
        if not self.term.doubted:
            self.term.doubted = True
            self.engine.events.doubted(self, reason, more=self._among_others)

    def begin_grace(self, left: float) -> None:
        """Its body is to stop now, while there is that time left."""
        reason = self.term.why_grace(left)
        self.engine.events.stopping(self, reason, more=self._among_others)
        self.stop(reason)

    def stop(self, reason: str) -> None:
        """Its body is to end while the lease is still held: the body is told, once."""
        if self.end is not None or self.term.stopping:
            return
        self.term.stopping = True
        self.stop_reason = reason
        if self.task is not None:
            self.cancel(f"{self.label} {self.name!r}: {reason}")

    def become(self, label: str) -> None:
        """The same lease has a lesser kind from now on: a downgrade, in place."""
        was, self.label = self.kind, label
        if self.watch is not None:
            self.watch.label = label
        if self.kind != was:
            self.engine.events.downgraded(self, self.engine.now() - self.granted_at, was)

    # -- letting go

    async def let_go(self) -> LockError | None:
        """Releases, and says what stood in the way. Goes on by itself after a caller that is cancelled."""
        if not self.begin_release():
            return None if self.end is RELEASED else self.not_owned()
        try:
            await self.until_ended()
        except asyncio.CancelledError as cancelled:
            await hold_up(self.until_ended, cancelled)
        return self.how_released()

    def begin_release(self) -> bool:
        """Whether a release is under way: the first call begins it. False: the lease has ended."""
        if self.end is None:
            if self._letting_go:
                return True
            term = self.term  # below as `Watch.moment`
            if clocks.steady() - term.ahead < term.deadline and self.engine.now() < term.deadline:
                self.send_release()
                return True
            self.lose(self.why_over())
        if self.lost:
            self._take_back()
        return False

    def how_released(self) -> LockError | None:
        """What stood in the way of its release, which has ended."""
        if self.fault is not None:
            error = self.fault.error
            if isinstance(error, BackendError):
                told = f"aiolocks: {self.label} {self.name!r} was not released; its ttl frees it"
                if told not in getattr(error, "__notes__", ()):  # it may be asked again
                    note(error, told)
            return error
        return None if self.end is RELEASED or not self.lost else self.not_owned()

    def send_release(self) -> None:
        """Begins to let go of it: it has not ended, and no task has begun that."""
        # The order matters: no renewal may be sent after the release, and the try of the next waiter of this
        # session must be sent right after it.
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.end()
        gate, claim = self.gate, self.claim
        awaited = gate.awaited
        ring = not awaited or gate.holder_releasing(claim)
        self._letting_go = True
        until = self.term.deadline
        if self.confirms:
            self.send(claim.end(ring=ring), until=until, corked=awaited)
            gate.holder_gone(claim)
            return
        # No task waits for the answer. So the release is written in this very step, and not with the try of
        # the next waiter of this session: the process may end after it.
        self.engine.unconfirmed[self] = None
        self.send(claim.end(ring=ring), until=until, corked=False, at_once=True)
        gate.holder_gone(claim)
        if not awaited:
            gate.not_waited_for()

    def _has_ended(self) -> None:
        """Its release has ended."""
        if not self.confirms:
            self.engine.unconfirmed.pop(self, None)
        if self.end is None:
            if self.fault is not None:
                self.lose(
                    "its release was not confirmed in time; the ttl frees it",
                    unconfirmed=self.fault.error,
                )
                self._take_back()
            elif self.thief and self.lost_to(self.thief):
                pass
            elif self.freed:
                self._end(RELEASED)
                self.engine.events.released(self, self.engine.now() - self.granted_at)
                self.claim.context = None
            else:
                self.lose("the server no longer had it as the holder when it was released")
        self.gate.holder_released(self.rung, overtaken=self.overtaken)

    def give_back(self, reason: str) -> None:
        """Synchronous: no task gets it, or has it any more, and so none lets go of it."""
        if self.end is None:
            self._take_back()
            self.lose(reason)

    def _take_back(self) -> None:
        """The server may still have a lease that was lost by the local clock, or with the session.

        Or may have again: a server that hangs may execute the last renewal when it goes on.
        """
        if not self._taken_back:
            self._taken_back = True
            self.engine.take_back(self.claim.end(), LONGEST_DELAY, told=self.engine.wake_own)

    # -- the session closes

    @property
    def free_by(self) -> float:
        """Loop time at which the server frees it at the latest, if nothing is sent for it any more."""
        span = self.term.span
        return self.term.deadline + span - dependable(span)

    def left_by(self, closer: asyncio.Task[Any] | None) -> bool:
        """Whether no code works under it: there is no body, and the task that has got it is done, or waits.

        Args:
            closer: The task that waits for the end of the session.
        """
        if self.task is not None or self.acquirer is None or self.overdue:
            return False
        task = self.acquirer()
        return task is None or task.done() or task is closer

    def release_ended(self) -> asyncio.Future[None] | None:
        """A future for the end of the release that was sent; None if it has ended."""
        return self.until_ended() if self._letting_go and self.end is None else None

    @property
    def given_back(self) -> bool:
        """Whether its holder has let go of it after it was lost."""
        return self._taken_back

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

    def lose(
        self,
        reason: str,
        thief: HolderInfo | None = None,
        *,
        unconfirmed: BaseException | None = None,
        told: bool = True,
    ) -> None:
        """Can no longer be relied on: each task that relies on it is told, once.

        `unconfirmed`: its holder had let go of it in time, and for that reason the server did not confirm it.
        `told`: the log says so in a line of its own, and not only at `DEBUG`.
        """
        if self.end is not None:
            return
        self._end(End(LeaseState.LOST, reason, thief))
        if self._lost is not None:
            self._lost.set()
        if self.task is not None:
            if self.term.stopping and self.unwinding:
                self.engine.events.outlasted(self, more=self._among_others)
            self.cancel(f"{self.label} {self.name!r} was lost: {reason}")
        events, seconds = self.engine.events, self.engine.now() - self.granted_at
        if unconfirmed is None:
            events.lost(self, seconds, reason, more=self._among_others, told=told)
        else:
            level, why = self.engine.log_level(unconfirmed), "" if self.confirms else str(unconfirmed)
            events.unconfirmed(self, seconds, level=level, why=why)
        self.claim.context = None

    def detach(self) -> None:
        """Ends the watch: this session does not renew the lease any more, and the ttl runs."""
        self.ensure_held()
        self.engine.settle(self.claim)
        self._end(DETACHED)
        self.engine.events.detached(self, self.engine.now() - self.granted_at)
        self.claim.context = None

    def _end(self, end: End) -> None:
        if self.end is not None:
            raise RuntimeError(f"a lease that is {self.end.state.name} cannot become {end.state.name}")
        self.end = end
        if self._over is not None:
            self._over.set()
        if self.watch is not None:
            self.leave_watch()
        if not self._letting_go:  # else its gate is told as the release is sent
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

    __slots__ = ("__weakref__", "_changing", "_engine", "_metadata", "_on_lost", "_possession")

    def __init__(self, binding: Binding[Any], possession: Possession, grant: Granted) -> None:
        self._engine = binding.engine
        self._metadata = binding.metadata
        self._on_lost = binding.options.on_lost
        self._possession = possession
        self._changing: Changes | None = None  # from the first change on

    @property
    def _bears(self) -> bool:
        """Whether code is inside of it, and may rely on it or must learn that it was lost."""
        possession = self._possession
        if possession.task is None or possession.left:
            return False
        return possession.watch is not None or possession.state is LeaseState.LOST

    def acquired_by(self, task: ref[asyncio.Task[Any]] | None) -> None:
        """That task has got it, to use it without a body; None: it is not known which. For the library."""
        self._possession.acquirer = task

    @property
    def _names(self) -> tuple[str, ...]:
        """The names that it holds; several of a `MultiLock`."""
        return tuple(self._possession.claim.commands.names) or (self.name,)

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

        The new metadata replace the metadata of the lock and of an earlier `annotate`. The session's metadata
        stay, and so do host, pid and task of the holder. The end of the lease does not change. Renewals keep
        the new metadata; `lock.adopt` replaces them by the metadata of the adopting lock.

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
        error = await self._possession.let_go()
        if error is not None:
            try:
                raise error
            finally:
                del error  # it knows this frame: so this frame must not know it

    async def let_go(self) -> None:
        """As the end of a block: with `confirm=False`, it does not wait for the answer. For the library."""
        possession = self._possession
        possession.ensure_here()
        if possession.confirms or not possession.begin_release() or possession.end is not None:
            await self.release()

    async def wait_lost(self) -> None:
        """Returns when the lease is lost. If the lease is released, it never returns: cancel it then."""
        await self._possession.wait_lost()

    async def wait_released(self) -> bool:
        """Waits until the lease has ended, and releases nothing itself.

        With `confirm=False`, the exit of the block does not wait for the server's answer. This tells the
        answer.

        Returns:
            True: the server has confirmed the release. False: the lease has ended in another way. Its time
            has passed, it was lost, or `detach` has given it away.

        Any number of tasks can wait for it, also after the end. Cancelled, it changes nothing.
        """
        return await self._possession.wait_released()

    def detach(self) -> str:
        """Stops the renewals of the lease, and returns a handle: `lock.adopt(handle)` takes the lease over.

        The handle is as secret as the token. An `async with` that has entered the lease does not release it
        any more. Until the lease is adopted, in this process or in another one, its ttl runs.

        Raises:
            LockLostError: The lease was lost or released.
        """
        claim = self._possession.claim
        number = claim.given  # before another task may use the claim
        self._possession.detach()
        return Handle(self.kind, self.name, self.token, claim.at_least_ms, number).encode()

    async def __aenter__(self) -> Self:
        self.enter()
        return self

    def enter(self) -> asyncio.Task[Any]:
        """Enters the lease, and returns the task that has entered."""
        possession = self._possession
        if possession.task is not None:
            raise RuntimeError(
                f"this lease of {possession.label} {self.name!r} was entered before: acquire the lock again"
            )
        engine, term, watch = self._engine, possession.term, possession.watch
        steady, deadline = clocks.steady() - term.ahead, term.deadline  # as `Watch.moment`
        if steady >= deadline or watch is None or engine.now() >= deadline or engine.pid != process.pid:
            if possession.state is LeaseState.LOST:
                possession.lose(possession.why_over())  # the next waiters need not wait for this task
            possession.ensure_held()
        assert watch is not None, "what is held is watched"
        cancels = self._on_lost == "cancel"
        task = possession.begin_body(engine.loop, cancels=cancels)
        if term.stopping:
            possession.cancel(possession.stop_reason)
        engine.entered.add(task, ref(possession))
        around = INSIDE.get()
        INSIDE.set((ref(self), None, 1, FEW) if around is None else nested(ref(self), around))
        if cancels and engine.ward is not None:
            engine.ward.enter(watch)
        return task

    async def __aexit__(  # noqa: C901, PLR0912 - one coroutine: a second one for the release would show
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        possession = self._possession
        if possession.task is None:
            raise RuntimeError("this lease was not entered: write `async with lease:`")
        if possession.left:
            label, name = self._possession.label, self.name
            await told_at_exit(LockNotOwnedError(label, name, "its block was left in another task"), exc)
            return
        error: LockError | None = None
        cancelled_by_us = possession.leave(exc)
        innermost = INSIDE.get()
        if innermost is not None and innermost[0]() is self:
            INSIDE.set(innermost[1])
        self._engine.entered.remove(possession.task, possession)
        try:
            if possession.end is not DETACHED:
                engine = self._engine
                if engine.pid != process.pid or asyncio.current_task(engine.loop) is not possession.task:
                    possession.ensure_here()
                cancelled_by = exc if exc is not None and isinstance(exc, asyncio.CancelledError) else None
                if not possession.begin_release():
                    error = None if possession.end is RELEASED else possession.not_owned()
                elif possession.confirms or possession.end is not None:
                    if cancelled_by is not None:
                        await wait_shielded(possession.until_ended, cancelled_by=cancelled_by)
                    else:
                        try:
                            await possession.until_ended()
                        except asyncio.CancelledError as cancelled:
                            await hold_up(possession.until_ended, cancelled)
                    if possession.end is not RELEASED or possession.fault is not None:
                        error = possession.how_released()
        except LockNotOwnedError as not_here:  # a fork of the holder
            error = not_here
        else:
            if isinstance(error, LockNotOwnedError):
                error = possession.loss(possession.why_ended())
        finally:
            possession.ended = True
        if error is not None or possession.told:
            # A raised error knows this frame: so this frame must not know the error.
            try:
                self._tell(exc, error, wins=exc is not None and not cancelled_by_us)
            finally:
                del error, exc

    def _tell(self, exc: BaseException | None, error: LockError | None, *, wins: bool) -> None:
        """Raises what the exit has to say, or notes it on the exception of the body where that one wins."""
        if self._possession.told and self._possession.stop_reason and not isinstance(error, LockLostError):
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
        """The error of a body that was told to stop. One without an exception was alone up to its end."""
        if exc is None:
            return unreleased
        error = self._possession.loss(self._possession.stop_reason)
        error.__cause__ = unreleased
        return error

    def __repr__(self) -> str:
        left = f" remaining={self.remaining():.3f}" if self._possession.live else ""
        return f"<Lease {self.kind} {self.name!r} {self.state.name} fencing_token={self.fencing_token}{left}>"


# -- A lock in a session: from an acquire or an adoption to a lease.


LeaseT = TypeVar("LeaseT", bound="Lease")


class Binding(Generic[LeaseT]):
    """The part that all acquisitions of one lock in one session share.

    Attributes:
        gate: The queue of the tasks of the session that want the same thing.
        label: Its kind, as messages call it.
    """

    __slots__ = (
        "_beside",
        "_lease_type",
        "_user_json",
        "engine",
        "gate",
        "label",
        "metadata",
        "name",
        "options",
        "resource",
    )

    def __init__(
        self,
        engine: Context,
        resource: Resource,
        lease_type: Callable[[Binding[LeaseT], Possession, Granted], LeaseT],
        *,
        label: str,
        name: str,
        options: Options,
        beside: str = "",
    ) -> None:
        self.engine = engine
        self.gate = Gate.of(engine, resource)
        self.label = label
        self.name = name
        self.options = options
        self.resource = resource
        self._lease_type = lease_type
        self.metadata = {**engine.settings.metadata, **options.metadata} or NO_METADATA
        self._user_json = engine.settings.user_json(self.metadata)
        self._beside = beside  # further fields that stand beside the lease, as JSON

    @property
    def kind(self) -> str:
        return self.label.lower()

    def __str__(self) -> str:
        return f"{self.label} {self.name!r}"

    def acquire(self, blocking_timeout: float | None) -> Coroutine[Any, Any, LeaseT]:
        attempt = self._attempt(blocking_timeout, once=blocking_timeout == 0)
        return cast("Coroutine[Any, Any, LeaseT]", attempt)  # refused, it raises

    def try_acquire(self) -> Coroutine[Any, Any, LeaseT | None]:
        return self._attempt(None, once=True)

    def steal(self) -> Coroutine[Any, Any, LeaseT]:
        return cast("Coroutine[Any, Any, LeaseT]", self._attempt(0.0, once=True, by_force=True))

    def _claim(self, token: str, at_least_ms: int, *, by_force: bool = False) -> Claim:
        return Claim(
            self.resource.commands,
            token,
            self.engine.describe(self._user_json, self._beside),
            self.options.first_ttl_ms,
            at_least_ms=at_least_ms,
            seized=self._seized if by_force else None,
            context=copy_context(),
        )

    async def _attempt(
        self, blocking_timeout: float | None, *, once: bool, by_force: bool = False
    ) -> LeaseT | None:
        """The lease; refused, None for a caller that gave no `blocking_timeout`."""
        engine = self.engine
        token = self.resource.commands.new_token("", engine.token())
        claim = self._claim(token, self.options.at_least_ms, by_force=by_force)
        acquisition: Attempt | FirstAsk | Waiter | None = None
        try:
            if not once and self.gate.idle:
                acquisition = FirstAsk(self, claim, blocking_timeout)
            else:
                acquisition = (Attempt if once else Waiter)(self, claim, blocking_timeout)
                acquisition.start()  # which a listener may end
            await acquisition.done
        except BaseException:
            if acquisition is None:
                raise
            acquisition = acquisition.waiter or acquisition
            acquisition.leave()
            self._tell_not_had(acquisition, "cancelled")
            raise
        acquisition = acquisition.waiter or acquisition
        grant = acquisition.grant
        if grant is None:
            if isinstance(acquisition, Attempt) and acquisition.owner_asked:
                acquisition = await self._answer_of_owner(claim)
                grant = acquisition.grant
            if grant is None:
                self._not_had(acquisition, blocking_timeout)
                return None
        if engine.closing:
            raise self._had_too_late(acquisition)
        waited = acquisition.answered_at - acquisition.started
        return self._lease(claim, grant, grant.sent, grant.sent_steady, waited, holders=acquisition.holders)

    def _not_had(self, acquisition: Attempt | FirstAsk | Waiter, blocking_timeout: float | None) -> None:
        """Raises why; returns where it was refused to a caller that gave no `blocking_timeout`."""
        assert not isinstance(acquisition, FirstAsk), "without a grant it is a waiter"
        if acquisition.error is not None:
            # A raised error knows this frame: so this frame must not know the error, or both would be left to
            # the garbage collector.
            error, acquisition.error = acquisition.error, None
            self._tell_not_had(acquisition, "needless" if acquisition.needless else how_it_ended(error))
            try:
                raise error
            finally:
                del error
        if blocking_timeout is None:
            self._tell_not_had(acquisition, "refused")
            return
        timed_out = acquisition.timed_out(blocking_timeout)
        self._tell_not_had(acquisition, "timeout")
        try:
            raise timed_out
        finally:
            del timed_out  # as above

    def _had_too_late(self, acquisition: Attempt | FirstAsk | Waiter) -> SessionClosedError:
        """It was granted, and the session has been closed since: given back."""
        acquisition.leave()
        self._tell_not_had(acquisition, "closed")
        return SessionClosedError("the session was closed while waiting")

    def _tell_not_had(self, acquisition: Attempt | FirstAsk | Waiter, how: str) -> None:
        """In the task that has asked, however its acquire has ended without a lease."""
        waited = self.engine.now() - acquisition.started
        self.engine.events.not_acquired(self.kind, self.name, waited, how, acquisition.holders)

    async def _answer_of_owner(self, claim: Claim) -> Waiter:
        """A single try was refused for a lease that its session may keep without using it.

        Only the session's answer tells such a lease from one that is used: the answer is a release, or that a
        task is inside. Until then the waiter has its seat.
        """
        waiter = Waiter(self, claim, None)
        try:
            waiter.start_briefly()
            await waiter.done
        except BaseException:
            waiter.leave()
            self._tell_not_had(waiter, "cancelled")
            raise
        return waiter

    def _seized(self, claim: Claim, answer: Answer) -> Answer:
        if isinstance(answer, Granted) and answer.lost:
            self._tell_loser(claim, answer)
        return answer

    def _tell_loser(self, claim: Claim, grant: Granted) -> None:
        """The server tells no session of what that session has done: so a holder of this session is told."""
        from .stealing import parties, stolen_by  # noqa: PLC0415 - few locks are stolen, and an import takes its time

        found = parties(claim, grant)
        if found is None:
            return
        loser, thief = found
        owner = grant.lost.partition(b":")[0].decode()
        for possession in self.engine.watchdog.possessions():
            same = possession.shares_token or possession.fencing_token == loser.fencing_token
            if same and possession.claim.owner == owner:
                possession.lose(stolen_by(thief), thief)

    def _tell_stolen(self, possession: Possession, grant: Granted) -> None:
        from .._holders import in_words  # noqa: PLC0415 - few locks are stolen
        from .stealing import holder_in  # noqa: PLC0415 - as above

        loser = holder_in(grant.lost, now_us=grant.fencing_token)
        if loser is not None:
            held = f"held {in_words((loser,))}"
            self.engine.events.stolen(possession, loser.held_for or 0.0, held)

    def _lease(
        self,
        claim: Claim,
        grant: Granted,
        sent: float,
        steady: float,
        waited: float,
        *,
        holders: tuple[HolderInfo, ...] = (),
    ) -> LeaseT:
        possession = Possession(self, claim, grant.fencing_token, sent, steady)
        self.engine.watchdog.watch(possession)
        self.gate.here.entrust(claim, ref(possession))
        self.engine.events.acquired(possession, waited, holders)
        if grant.lost:
            self._seized(claim, grant)  # again: a task of this session may have got it in the same turn
            self._tell_stolen(possession, grant)
        return self._lease_type(self, possession, grant)

    async def locked(self) -> bool:
        kept = self.gate.kept
        if kept is not None and kept.idle and kept.lasts:
            return False  # only this session keeps it, and no task uses it: a task of it that asks has it
        return await self.engine.ask(self.resource.commands.locked())

    async def adopt(self, old: str, at_least_ms: int, number: int = 0) -> LeaseT:
        engine, options, commands = self.engine, self.options, self.resource.commands
        at_least_ms = max(at_least_ms, options.at_least_ms)
        check_at_least(at_least_ms, options.first_ttl_ms)
        new = commands.new_token(old, engine.token())
        metadata = engine.describe(self._user_json, self._beside)
        ttl_ms = options.first_ttl_ms
        adopt = partial(commands.adopt_kept, number=number) if number else commands.adopt
        call, adopted = engine.start(
            adopt(old, new, ttl_ms, metadata),
            until=engine.now() + engine.settings.command_timeout,
            patient=True,
        )
        try:
            fencing_token = await adopted
            if engine.closing:
                raise SessionClosedError("the session was closed while waiting")
        except BaseException:
            if engine.forget(call):
                # Another process may still adopt the handle: this adoption is undone, in order, after the
                # request.
                engine.take_back(adopt(new, old, ttl_ms, metadata), options.ttl)
            raise
        if fencing_token is None:
            raise LockNotOwnedError(
                self.label, self.name, "it was adopted before, released, or its ttl has passed"
            )
        grant = Granted(fencing_token, 0)
        return self._lease(self._claim(new, at_least_ms), grant, call.sent, call.sent_steady, 0.0)
