"""A lease, from the first request for it to its end: its states, its body, and its release.

Users see one of five states (`LeaseState`), of which three are final (`End`):

```
HELD ⇄ UNKNOWN        a renewal went unanswered, and time is left / it was answered after all
HELD, UNKNOWN → LOST, RELEASED, DETACHED
```

What the session may send for a lease depends on its phase, for which `Possession` has the table.

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
from asyncio import current_task
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, Self, TypeVar, cast, final
from weakref import ref

from .._tasks import empty_context
from ..errors import BackendError, LockError, LockLostError, LockNotOwnedError, SessionClosedError
from ..transport import (
    IN_TURN,
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
from ..transport.request import FINAL
from ..transport.steps.base import NameSteps
from . import guard, process
from .backoff import SILENT
from .blocks import told_at_exit
from .clock import READING, dependable, milliseconds
from .events import how_it_ended
from .inside import FEW, INSIDE, nested
from .layout import laid_out
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
from .waiter import Acquiring, Attempt, Stage, Waiter

if TYPE_CHECKING:
    from .._holders import HolderInfo
    from ..transport.steps.waits import Wanted
    from .blocks import Inside
    from .engine import Engine
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
        steps: How it is asked for.
        gate_key: The tasks of a session that ask for things of one gate key stand in one queue.
        policy: How these tasks stand to each other.
    """

    __slots__ = ("gate_key", "policy", "steps")

    def __init__(self, steps: NameSteps, gate_key: Hashable, policy: QueuePolicy = SIMPLE) -> None:
        self.steps = steps
        self.gate_key = gate_key
        self.policy = policy

    def give_up(self, *, seat: str = "", leave: bool = False) -> Request[Released]:
        """The release of a token that holds nothing: it gives up the seat, and wakes other waiters."""
        return self.steps.release(seat, Claim.ttl_ms, leave=leave)


class Claim:
    """What the server knows a possession by, wished for or had.

    Attributes:
        at_least_ms: For how long after its grant the name stays taken, though its holder has ended.
        steps: How it is asked for.
        metadata: The metadata of the lease, as JSON.
        ttl_ms: The ttl of the last request; before that, of a token that holds nothing.
    """

    at_least_ms = 0
    ttl_ms = 1000
    steps: NameSteps
    metadata: str
    token: str

    @property
    def given(self) -> int:
        """The fencing token of the lease, where the server has another one for it; else 0."""
        return 0

    @property
    def owner(self) -> str:
        return self.steps.owner(self.token)

    @property
    def nests(self) -> bool:
        return self.steps.nests

    def excluded_by(self, own: Sequence[Claim], refused: Refused) -> bool:
        """Whether these possessions exclude it for as long as they are held, as a refusal shows."""
        theirs = [(claim.steps, claim.token) for claim in own]
        return self.steps.excluded_by(theirs, refused)

    def endless(self, refused: Refused | None, prefix: str) -> str:
        """That a key has lost its ttl, and what frees it, if a refusal tells of that; else empty."""
        name = "" if refused is None else self.steps.endless(refused)
        if not name:
            return ""
        from .._holders import without_ttl  # noqa: PLC0415 - rare, and an import takes its time

        return without_ttl(name, prefix, self.steps.freed_on)

    def wanted(self) -> Wanted | None:
        return self.steps.wanted()

    def acquire(self, ttl_ms: int, standing: int = 0) -> Request[Answer]:
        self.ttl_ms = ttl_ms
        return self.steps.acquire(self.token, ttl_ms, self.metadata, standing)

    def listener(self) -> Listener | Request[int]:
        return self.steps.listener(self.token)

    def renew(self, ttl_ms: int, *, watch: bool = False, changed: bool = False) -> Request[Kept]:
        """`watch`: the server is to tell of what changes after it; `changed`: it has told just now."""
        self.ttl_ms = ttl_ms
        renew = self.steps.renew_changed if changed else self.steps.renew
        command = renew(self.token, ttl_ms)
        if watch:
            self.steps.watch(command)
        return command

    def release(self, *, ring: bool = True, leave: bool = False) -> Request[Released]:
        """Takes back a grant at once: nothing was run under it."""
        return self.steps.release(self.token, self.ttl_ms, ring=ring, leave=leave)

    def release_used(self, *, ring: bool = True) -> Request[Released]:
        """As `release`, after something was run under it: the name stays taken for the rest of `at_least`."""
        if not self.at_least_ms:
            return self.steps.release(self.token, self.ttl_ms, ring=ring)
        return self.steps.release_at_least(self.token, self.ttl_ms, self.at_least_ms, ring=ring)

    def settle(self) -> Request[None] | None:
        """Before it is handed over: nothing may be created for its token any more. None if nothing can be."""
        return self.steps.settle(self.token, self.ttl_ms)

    def annotate(self, fields: Mapping[str, Any]) -> Request[bool]:
        """Changes these fields of what stands beside it; the other fields stay."""
        self.metadata = json.dumps({**json.loads(self.metadata), **fields}, separators=(",", ":"))
        return self.steps.annotate(self.token, self.metadata)

    def owned(self, *, watch: bool = False) -> Request[bool]:
        """`watch`: as of a renewal."""
        command = self.steps.owned(self.token)
        if watch:
            self.steps.watch(command)
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


Ended = Literal[LeaseState.RELEASED, LeaseState.DETACHED, LeaseState.LOST]


@final
class End(NamedTuple):
    """How a lease has ended: for good, and in one of three ways.

    | state | what has ended it | function |
    |---|---|---|
    | `RELEASED` | the server has confirmed the release | `Possession._finish` |
    | `RELEASED` | its holder let go, and its session keeps it for the next one | `Tenure.keep` |
    | `DETACHED` | its holder has given it away: its ttl runs | `Possession.detach` |
    | `LOST` | it cannot be relied on, or the server has not confirmed the release | `Possession.lose` |

    Attributes:
        state: Which of them.
        reason: As errors and the log tell it.
        stolen_by: The holder that has taken it by force.
    """

    state: Ended
    reason: str
    stolen_by: HolderInfo | None = None


RELEASED: Final = End(LeaseState.RELEASED, "it was released")
DETACHED: Final = End(LeaseState.DETACHED, "it was detached")


_NO_TASK: Final = "a lease is entered inside a task: run this in a coroutine, as with asyncio.run()"
_COUNTS_TRULY: Final = sys.version_info >= (3, 13)
"""Whether the count of cancellation requests goes back to what it was when a `TaskGroup` has ended."""


class BodyScope:
    """One entered body: that of a possession, or another one that has a limit.

    Invariant: `task.cancel()` is called at most once, never after `leave`, and taken back exactly as often.

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

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        task = current_task(loop)  # for a loop that is given, Python need not ask the kernel
        if task is None:
            raise RuntimeError(_NO_TASK)
        self._loop = loop
        self.task = task
        self._at_entry = task.cancelling()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    @property
    def _cancels(self) -> bool:
        """Whether a loss cancels the body (`on_lost="cancel"`)."""
        return True

    @property
    def entered_here(self) -> bool:
        """Whether this is the task that has entered."""
        return current_task(self.loop) is self.task

    @property
    def cancellable(self) -> bool:
        """Whether a task has entered it, and a loss cancels the body."""
        return self.task is not None and self._cancels

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
            self.loop.call_soon(self._cancel_when_quiet, why, count, context=empty_context())
        else:
            self._cancel(why)

    def _cancel_when_quiet(self, why: str, count: int) -> None:
        """Cancels once no other code has done so for a whole turn of the loop.

        A cancellation that was requested before and not delivered yet would be delivered as ours, if we
        came between: of two requests for a task that is about to run, asyncio keeps the last message.
        """
        now = self.task.cancelling()
        if now > count and not self.left:
            self.loop.call_soon(self._cancel_when_quiet, why, now, context=empty_context())
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
        on_end: Called once, when it has ended, before the waiting tasks are told.
    """

    _call: Request[Released] | None = None
    _on_end: Callable[[Releasing], None] | None = None
    _repeated = False
    _waiters: list[asyncio.Future[None]] | None = None
    engine: Engine
    fault: Fault | None = None
    freed = False
    overtaken = False  # the next request came before: the server did not know the script
    rung: Sequence[bytes] = ()  # the bells of the waiters that were woken
    thief = b""  # the lease that has taken its place by force

    def __init__(
        self,
        engine: Engine,
        command: Request[Released],
        *,
        until: float,
        on_end: Callable[[Releasing], None] | None = None,
    ) -> None:
        self.engine = engine
        self._on_end = on_end
        self.send(command, until, corked=False)

    def send(self, command: Request[Released], until: float, *, corked: bool, at_once: bool = False) -> None:
        """It begins. `corked`: something follows that is to leave in the same write."""
        engine = self.engine
        self._until = until
        self._corked = corked
        if self._waiters is None:
            self._waiters = []
        # As `Request.ask`.
        command.on_reply = self._replied
        command.on_fault = self._failed
        command.until = until
        command.on_late = engine.wake_own
        self._call = command
        if at_once:
            command.rare |= FINAL
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
        if self._corked and call.as_eval:
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
        on_end, self._on_end = self._on_end, None
        try:
            if on_end is not None:
                on_end(self)
        finally:
            for waiter in waiters or ():
                if not waiter.done():
                    waiter.set_result(None)


@final
class Phase(enum.Enum):
    """Where a possession stands: see its table."""

    ASKING = enum.auto()
    HELD = enum.auto()
    RELEASING = enum.auto()
    ENDED = enum.auto()


@laid_out(
    *("target", "engine", "steps", "token", "metadata", "at_least_ms", "context", "ttl_ms"),
    *("_timeout", "_asker", "started", "_standing", "request", "done", "answer", "answered_at"),
    *("fencing_token", "granted_at", "term", "watch", "acquirer", "task", "_at_entry"),
)
class Possession(BodyScope, Releasing, Claim):
    """One lease, from the first request for it to its end: also its body, and its release.

    Most acquires are no more than one request, for which this object waits itself (`ask`), and which is
    granted plainly: in time, written once, without bells or replicas. Anything else makes a `Waiter` of the
    acquire, in the same step: see `Gate.promote`.

    | from | to | when | function |
    |---|---|---|---|
    | `ASKING`, as it is made | `HELD` | granted, and its task has its turn in time | `hold` |
    | `HELD` | `RELEASING` | its holder lets go, or its session closes: the release is sent | `send_release` |
    | `HELD` | `ENDED` | its session keeps it for the next holder | `Tenure.keep` |
    | `HELD` | `ENDED` | its holder has given it away | `detach` |
    | `HELD` | `ENDED` | it was lost, as its deadline, the server or the session says | `lose` |
    | `RELEASING` | `ENDED` | the server has answered the release, or has not in time | `_finish` |
    | `RELEASING` | `ENDED` | it was lost before the release was answered | `lose` |

    An acquire that ends without a lease leaves it `ASKING`. `end` says how it has ended (see `End`).

    Invariants:
    - its first request has one reader, which is this object or, from the promotion on, its waiter;
    - it ends once, and only by the functions of the table;
    - it is extended by one task at a time: the answer to an older request does not count after that to a
      newer one; and no answer counts once a release was sent;
    - the body is told to stop at most once, and, with a `grace`, never later than that before the deadline,
      unless the event loop did not run or the lease was lost at once;
    - it has a watch while it is `HELD`, and is renewed only by that;
    - one release is sent, and none for a lease that has ended before; nothing of the lease is sent after it;
    - while the server has not confirmed a release for which no exit waits, the session knows of it
      (`Engine.unconfirmed`);
    - a lease that was lost is given back, at most once: the server may still have it, or have it again;
    - the context of its acquire is kept until its end was told, and no longer.

    Args:
        token: By which the server knows it; None: a new one.

    Attributes:
        acquirer: The task that has got it to use it without a body; None where that is not known.
        answer: A plain grant of which its task does not know yet.
        answered_at: Loop time of that grant.
        context: The context of the acquire, with the variables of a request: what becomes of the lease is
            told in it. None once there is nothing more to tell.
        claim: What the server knows it by: itself, but for a lease that its session keeps between uses.
        done: Resolved once, when the acquire has ended; None once its task knows.
        end: How it has ended; None: it has not.
        given_back: Its release was sent after it was lost.
        maker: The task that has called `acquire()`, if it is another one than `acquirer`.
        request: Its first one, until that is answered.
        seizes: It is taken from its holder by force.
        started: Loop time at which the acquire began.
        stop_reason: Why the body was told to stop before the end.
        term: Its times, from the grant on.
        waiter: Of an acquire that took more than one plain request, until the acquire has ended.
        watch: The same object as `term` while it is `HELD`; else None.
    """

    # Most leases never change these values: so the class has them, and not each lease.
    confirms = True
    """The exit of its body waits until the server has confirmed the release."""
    _extending: asyncio.Lock | None = None
    _interval: tuple[float, float] | None = None  # once it is less than what was acquired
    _label = ""  # once it is not that of its lock any more
    _lost: asyncio.Event | None = None
    _over: asyncio.Event | None = None
    _releasing = False  # its release was sent
    acquirer: ref[asyncio.Task[Any]] | None = None
    answer: Granted | None = None
    done: Any = None  # a future, from the first step of the acquire on
    end: End | None = None
    given_back = False
    holders = ()  # as of `Acquiring`
    maker: ref[asyncio.Task[Any]] | None = None
    request: Request[Answer] | None = None
    seizes = False
    stage = Stage.ASKING  # as of `Acquiring`, while there is no waiter
    stop_reason = ""
    waiter: Acquiring | None = None
    watch: Watch | None = None
    _asker: int  # the id of the waiting task
    _standing: int
    _timeout: float | None
    answered_at: float
    fencing_token: int
    granted_at: float
    started: float
    term: Watch

    def __init__(self, target: Binding[Any], token: str | None = None) -> None:
        self.target = target
        self.engine = engine = target.engine
        self.steps = steps = target.resource.steps
        self.token = steps.new_token("", engine.token()) if token is None else token
        self.metadata = engine.describe(target.user_json, target.beside)
        self.at_least_ms = target.options.at_least_ms
        self.context: contextvars.Context | None = copy_context()

    def __del__(self) -> None:
        if self.watch is not None:
            self.watch.watchdog.collected(self)

    @property
    def claim(self) -> Claim:
        return self

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.engine.loop

    @property
    def _cancels(self) -> bool:
        return self.target.options.on_lost == "cancel"

    @property
    def interval(self) -> tuple[float, float] | None:
        """What it holds of a range, as users see it."""
        return self._interval or self.steps.interval

    @property
    def cached(self) -> bool:
        """Whether it came without a request, from what its session keeps."""
        return False

    @property
    def shares_token(self) -> bool:
        """Whether later holders may have the same token."""
        return False

    @property
    def gate(self) -> Gate:
        return self.target.gate

    @property
    def label(self) -> str:
        return self._label or self.target.label

    @property
    def name(self) -> str:
        return self.target.name

    # -- acquiring it

    def acquire(self, ttl_ms: int, standing: int = 0) -> Request[Answer]:
        self.ttl_ms = ttl_ms
        if not self.seizes:
            return self.steps.acquire(self.token, ttl_ms, self.metadata, standing)
        command = self.steps.steal(self.token, ttl_ms, self.metadata)
        read = command.parse

        def parse(raw: Any) -> Answer:
            answer = read(raw)
            if isinstance(answer, Granted) and answer.lost:
                self.target.tell_loser(self, answer)  # also where the answer is late, to a caller that left
            return answer

        command.parse = parse
        return command

    def ask(self, blocking_timeout: float | None) -> None:
        """Sends its first request, where no task of its session waits for it or excludes it.

        The acquire needs no timer: the transport ends the request in time.
        """
        target, engine = self.target, self.engine
        gate, options, loop = target.gate, target.options, engine.loop
        self._timeout = blocking_timeout
        self._asker = id(current_task(loop))
        self.started = started = engine.now()
        standing = gate.first_standing
        if gate.stirred and gate.next_in_turn():
            standing |= IN_TURN
        self._standing = standing
        self.request = request = self.acquire(options.first_ttl_ms, standing)
        self.done = loop.create_future()  # from here on, a caller that leaves has something to take back
        # As `Request.ask`.
        request.on_reply = self._answered
        request.on_fault = self._unanswered
        patience, hasty = options.ttl if blocking_timeout is None else blocking_timeout, self.steps.hasty
        if hasty is not None:  # as `Waiter._ask_until`
            patience = hasty if blocking_timeout is None else min(hasty, blocking_timeout)
        request.until = started + patience
        request.on_late = engine.wake_own
        engine.waiting[self] = None
        gate.asking = self
        if gate.contended_bell:
            engine.bells.ask_and_listen(request, gate)
        elif engine.unconfirmed:
            # The release of a block before it may be all that is under way: no turn of the loop for the sake
            # of a batch of one.
            engine.send(request, at_once=len(engine.unconfirmed) == 1)
        else:
            engine.send(request)

    def wait_briefly(self) -> None:
        """Waits, for a single try: for the answer of the session that keeps it, or for a moment."""
        self.done = self.engine.loop.create_future()
        self.started = self.engine.now()
        waiter = self.waiter = Waiter(self, None)
        waiter.start_briefly()

    def wait(self, kind: type[Attempt | Waiter], blocking_timeout: float | None) -> None:
        """Acquires it as a single try, or as a waiter."""
        self.done = self.engine.loop.create_future()
        self.started = self.engine.now()
        self.waiter = waiter = kind(self, blocking_timeout)
        waiter.start()  # which a listener may end

    def promoted(self) -> tuple[Request[Answer], int, float | None, Inside[Possession]]:
        """Its waiter goes on: with the request, its standing, the patience, and what the task has entered."""
        request, self.request = self.request, None
        assert request is not None, "its request was answered"
        del self.engine.waiting[self]
        return request, self._standing, self._timeout, self.engine.entered.by(self._asker)

    def another_comes(self) -> None:
        """The gate: another task comes, or has got in."""
        self.target.gate.promote(self)

    def end_with(self, error: LockError) -> None:
        """The session: this wait is over."""
        self.target.gate.promote(self).end_with(error)

    def withdraw(self) -> None:
        """The task does not wait any more: nothing may stay held. Synchronous, no cancel can come between."""
        if self.answer is None:
            (self.waiter or self.target.gate.promote(self)).leave()
        else:
            self.answer = None
            self.undo()

    def undo(self) -> None:
        """Its grant is not used: its task was cancelled, the session closed, or too little time was left."""
        self.engine.undo(self, self.target.options.first_ttl)
        self.target.gate.holder_dropped(self.token)

    def _answered(self, answer: Answer) -> None:
        request, target, engine = self.request, self.target, self.engine
        assert request is not None
        options, sent = target.options, request.sent
        steady, now = clocks.steady(), engine.now()  # so a pause between both is no suspension
        ahead = steady - now
        if ahead - (request.sent_steady - sent) > READING:
            sent, ahead = engine.timed(sent, request.sent_steady)
        if (
            type(answer) is not Granted
            or answer.rung
            or request.unconfirmed
            or options.replicas
            or now - sent >= options.dependable
        ):
            target.gate.promote(self)  # in doubt, the waiter decides: it is what the request calls back now
            request.on_reply(answer)
            return
        self.request = None
        request.on_reply = request.on_fault = ignore  # a round of a quorum knows it for longer
        self.answer = answer
        self.answered_at = now
        answer.sent = sent
        answer.ahead = ahead
        del engine.waiting[self]
        target.gate.first_ask_granted(self, answer.others, now)
        if not self.done.done():
            self.done.set_result(None)

    def _unanswered(self, fault: Fault) -> None:
        request = self.request
        assert request is not None
        self.target.gate.promote(self)
        request.on_fault(fault)

    def hold(self, grant: Granted) -> bool:
        """Its task has it now. False: too little time is left, as of a lease that was handed on."""
        assert not hasattr(self, "term"), "what was held is not granted again"
        engine, options = self.engine, self.target.options
        self.fencing_token = grant.fencing_token
        self.granted_at = sent = grant.sent
        if not options.confirm:
            self.confirms = False
        self.term = Watch(options, sent, grant.ahead, hears=engine.hears)
        engine.watchdog.watch(self)
        return True

    def had(self, claim: Claim) -> None:
        """The gate: its waiter has it, under the claim of a tenure."""

    def dropped(self) -> None:
        """Nothing was granted for it, or that is undone."""

    # -- what may be said of it

    @property
    def phase(self) -> Phase:
        if self.end is not None:
            return Phase.ENDED
        if self.watch is not None:
            return Phase.HELD
        return Phase.RELEASING if self._releasing else Phase.ASKING

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
            assert self.phase is not Phase.ASKING, "no lease is made before the grant"
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

    def entrance(self) -> Watch:
        """Its watch, for a task that enters it; raises why it cannot be entered."""
        if self.task is not None:
            raise RuntimeError(
                f"this lease of {self.label} {self.name!r} was entered before: acquire the lock again"
            )
        if self.state is LeaseState.LOST:
            self.lose(self.why_over())  # the next waiters need not wait for this task
        self.ensure_held()
        assert self.watch is not None, "what is held is watched"
        return self.watch

    def ensure_here(self) -> None:
        """Raises unless this is the process and the event loop of the holder."""
        if self.engine.pid != current_pid():  # a fork of the holder
            raise LockNotOwnedError(self.label, self.name, self._why_not_held())
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

    def become(self, label: str, interval: tuple[float, float] | None) -> None:
        """The same lease has a lesser kind, or less of a range, from now on: in place."""
        was, self._label, self._interval = self.kind, label, interval
        if self.kind != was:
            self.engine.events.downgraded(self, self.engine.now() - self.granted_at, was)

    # -- what its holder changes

    async def extend(self, ttl: float) -> None:
        """Sets another ttl from now on. See `Lease.extend`."""
        self.ensure_here()
        if self._extending is None:
            self._extending = asyncio.Lock()
        async with self._extending:
            self.ensure_held()
            await self._extend(ttl)

    async def _extend(self, ttl: float) -> None:
        engine, term, watch = self.engine, self.term, self.watch
        assert watch is not None, "what is held is watched"
        now, until = engine.now(), term.deadline
        term.change(now, ttl)
        # A renewal under way asked for the ttl of before: its answer must not count any more.
        watch.drop_renewal()
        engine.watchdog.watch(self)
        if engine.ward is not None:
            engine.ward.again(watch)
        renewal = watch.renewal_now(self, now, hears=engine.hears)
        call = await self._ask_for(renewal, until=until, make=watch.remade(self))
        if call is not None and self.watch is not None:
            watch.confirmed(self, call)
        self.ensure_held()

    async def annotate_with(self, fields: Mapping[str, Any]) -> None:
        """Changes these fields of what stands beside it. See `Lease.annotate`."""
        self.ensure_here()
        self.ensure_held()
        await self._ask_for(self.claim.annotate(fields), until=self.term.deadline)
        if self.watch is not None and self.engine.hears:
            # The server forgets whom it tells of a key when that session writes it, and says nothing.
            self.watch.listen_again(self)
        self.ensure_held()

    async def _ask_for(
        self, command: Request[Any], *, until: float, make: Callable[[], Request[Any]] | None = None
    ) -> Request[Any] | None:
        """The call, if the server has the lease as the holder; if not, None, and the lease is lost."""
        engine = self.engine
        until = min(until, engine.now() + engine.settings.command_timeout)
        call, answered = engine.start(command, until=until, make=make, patient=True)
        try:
            held = await answered
        except LockError:
            if call.ended_by is not None and call.ended_by.foreign:
                self.lose(str(call.ended_by.error))
            if self.state is LeaseState.LOST:
                self.ensure_held()
            raise
        finally:
            engine.forget(call)
        if held:
            return call
        if self.watch is not None:
            self.taken_away(held)
        return None

    # -- its release

    def begin_release(self) -> asyncio.Future[None] | None:
        """A future for the end of the release, which the first call begins; None: the lease has ended."""
        if self.end is None:
            watch = self.watch
            if watch is None:
                return self.until_ended()
            engine = self.engine  # below as `Watch.moment`
            if clocks.steady() - watch.ahead >= watch.deadline or engine.now() >= watch.deadline:
                self.lose(self.why_over())
                self._give_back()
                return None
            ended: asyncio.Future[None] = engine.loop.create_future()
            self._waiters = [ended]
            self.send_release()
            return ended
        if self.lost:
            self._give_back()
        return None

    def how_released(self) -> LockError | None:
        """What stood in the way of its end as RELEASED."""
        if self.fault is not None:
            error = self.fault.error
            if isinstance(error, BackendError):
                told = f"aiolocks: {self.label} {self.name!r} was not released; its ttl frees it"
                if told not in getattr(error, "__notes__", ()):  # it may be asked again
                    note(error, told)
            return error
        if self.end is None or self.end is RELEASED:  # None: it goes on
            return None
        return LockNotOwnedError(self.label, self.name, self.end.reason, stolen_by=self.end.stolen_by)

    def send_release(self) -> None:
        """Sends its release."""
        # 1. No renewal may be sent after the release.
        watch = self.watch
        self.watch = None
        assert watch is not None, "only what is held is released"
        watch.end()
        # 2. Where a waiter of this session asks right behind it, it need not wake one of another process.
        gate = self.target.gate
        token = self.token
        awaited = gate.stirred and gate.awaited
        ring = not awaited or gate.holder_releasing(token)
        self._releasing = True
        # 3. `holds_no_more` makes that waiter ask, in the same write.
        if self.confirms:
            self.send(self.release_used(ring=ring), self.term.deadline, corked=awaited)
            gate.holds_no_more(token)
            return
        # 4. Where no exit waits for the answer, the release is written in this very step, and not with the
        # request of the next waiter: the process may end after it.
        self.engine.unconfirmed[self] = None
        self.send(self.release_used(ring=ring), self.term.deadline, corked=False, at_once=True)
        gate.holds_no_more(token)
        if not awaited:
            gate.not_waited_for()

    def _finish(self) -> None:
        """Its release has ended: first the lease, then the waiters of this session, then the exit."""
        gate, engine = self.target.gate, self.engine
        waiters, self._waiters = self._waiters, None  # as `Releasing._finish`
        try:
            if not self.confirms:
                engine.unconfirmed.pop(self, None)
            if self.end is not None:
                pass  # lost while the release was under way
            elif self.thief and self.lost_to(self.thief):
                pass
            elif self.freed:
                self._end(RELEASED)
                engine.events.released(self, engine.now() - self.granted_at)
                self.context = None
            elif self.fault is not None:
                why = "its release was not confirmed in time; the ttl frees it"
                self.lose(why, unconfirmed=self.fault.error)
                self._give_back()
            else:
                self.lose("the server no longer had it as the holder when it was released")
            if self.rung or self.overtaken or gate.stirred:
                gate.holder_released(self.rung, overtaken=self.overtaken)
        finally:
            for waiter in waiters or ():
                if not waiter.done():
                    waiter.set_result(None)

    def give_back(self, reason: str) -> None:
        """Synchronous: no task gets it, or has it any more, and so none lets go of it."""
        if self.end is None:
            self._give_back()
            self.lose(reason)

    def _give_back(self) -> None:
        """The server may still have a lease that was lost by the local clock, or with the session.

        Or may have again: a server that hangs may execute the last renewal when it goes on.
        """
        if not self.given_back:
            self.given_back = True
            self.engine.take_back(self.release_used(), LONGEST_DELAY, told=self.engine.wake_own)

    # -- the session closes

    @property
    def free_by(self) -> float:
        """Loop time at which the server frees it at the latest, if nothing is sent for it any more."""
        span = self.term.span
        return self.term.deadline + span - dependable(span)

    def left_by(self, closer: asyncio.Task[Any] | None) -> bool:
        """Whether no code works under it: there is no body, and the task that has got it is done, or waits.

        So is the one that has called `acquire()`: it goes on with the lease where the other one is a wrapper,
        as Sentry and OpenTelemetry put one around the coroutine of each task.

        Args:
            closer: The task that waits for the end of the session.
        """
        if self.task is not None or self.acquirer is None or self.overdue:
            return False
        tasks = self.acquirer(), None if self.maker is None else self.maker()
        return all(task is None or task.done() or task is closer for task in tasks)

    def release_ended(self) -> asyncio.Future[None] | None:
        """A future for the end of the release that was sent; None if it has ended."""
        return self.until_ended() if self._releasing and self.end is None else None

    # -- its end

    def taken_away(self, answer: Kept) -> None:
        """The server does not have it as the holder."""
        if not (isinstance(answer, Stolen) and self.lost_to(answer.thief)):
            self.lose("the server no longer has it as the holder")

    def lost_to(self, lease: bytes) -> bool:
        """Whether the holder of that lease has taken it by force, and so it is lost."""
        from .stealing import why_stolen  # noqa: PLC0415 - of few losses, and an import takes its time

        lost = why_stolen(lease, self.number_in_key)
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
        assert hasattr(self, "term"), "only what was held is lost"
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
        self.context = None

    def detach(self) -> None:
        """Ends the watch: this session does not renew the lease any more, and the ttl runs."""
        self.ensure_held()
        self.engine.settle(self.claim)
        self._end(DETACHED)
        self.engine.events.detached(self, self.engine.now() - self.granted_at)
        self.context = None

    def _end(self, end: End) -> None:
        if self.end is not None:
            raise RuntimeError(f"a lease that is {self.end.state.name} cannot become {end.state.name}")
        self.end = end
        if self._over is not None:
            self._over.set()
        if not self._releasing:  # else both were done as the release was sent
            watch, self.watch = self.watch, None
            assert watch is not None, "what is held has a watch"
            watch.end()
            self.target.gate.holds_no_more(self.token)

    def __repr__(self) -> str:
        phase = self.phase
        told = phase if phase in (Phase.ASKING, Phase.RELEASING) else self.state
        return f"<Possession of {self.target} {told.name}>"


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

    __slots__ = ("__weakref__", "_metadata", "_possession")

    def __init__(self, binding: Binding[Any], possession: Possession, grant: Granted) -> None:
        self._metadata = binding.metadata
        self._possession = possession

    @property
    def _engine(self) -> Engine:
        return self._possession.engine

    @property
    def _bears(self) -> bool:
        """Whether code is inside of it, and may rely on it or must learn that it was lost."""
        possession = self._possession
        if possession.task is None or possession.left:
            return False
        return possession.watch is not None or possession.state is LeaseState.LOST

    def acquired_by(
        self, task: ref[asyncio.Task[Any]] | None, maker: ref[asyncio.Task[Any]] | None = None
    ) -> None:
        """That task has got it, to use it without a body; None: it is not known which. For the library.

        Args:
            task: The task that has awaited it.
            maker: The task that has called `acquire()`, which may use it, too.
        """
        self._possession.acquirer = task
        if maker is not task and maker is not None:
            self._possession.maker = maker

    @property
    def _names(self) -> tuple[str, ...]:
        """The names that it holds; several of a `MultiLock`."""
        return tuple(self._possession.claim.steps.names) or (self.name,)

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
        await self._possession.extend(given)

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
        await self._possession.annotate_with({"user": user})
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
        possession = self._possession
        possession.ensure_here()
        ended = possession.begin_release()
        if ended is not None:
            try:
                await ended
            except asyncio.CancelledError as cancelled:  # after that, it goes on by itself
                await hold_up(possession.until_ended, cancelled)
        error = possession.how_released()
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
        engine, watch = possession.engine, possession.watch
        if (
            watch is None
            or possession.task is not None
            or clocks.steady() - watch.ahead >= watch.deadline  # as `Watch.moment`
            or engine.now() >= watch.deadline
            or engine.pid != process.pid
        ):
            watch = possession.entrance()
        task = current_task(engine.loop)  # below as `BodyScope.__init__`
        if task is None:
            raise RuntimeError(_NO_TASK)
        possession.task = task
        possession._at_entry = task.cancelling()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if watch.stopping:
            possession.cancel(possession.stop_reason)
        engine.entered.add(task, ref(possession))
        around = INSIDE.get()
        INSIDE.set((ref(self), None, 1, FEW) if around is None else nested(ref(self), around))
        ward = possession.target.ward
        if ward is not None and not watch.guarded:
            watch.guarded = True  # as `Ward.enter`, which looks closer
            if watch.deadline - guard.the_thread.looks_at < watch.span / 2:
                ward.enter(watch)
        return task

    async def __aexit__(  # noqa: C901, PLR0912 - one coroutine: a second one for the release would show
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        possession = self._possession
        task, engine = possession.task, possession.engine
        if task is None:
            raise RuntimeError("this lease was not entered: write `async with lease:`")
        if possession.left:
            label, name = possession.label, self.name
            await told_at_exit(LockNotOwnedError(label, name, "its block was left in another task"), exc)
            return
        # 1. The body has ended: by our own cancellation alone, or by other causes.
        error: LockError | None = None
        cancelled_by_us = False
        if possession.told:
            cancelled_by_us = possession.leave(exc)
        else:  # as `leave`
            possession.left = True
        innermost = INSIDE.get()
        if innermost is not None and innermost[0]() is self:
            INSIDE.set(innermost[1])
        engine.entered.remove(task, possession)
        # 2. Its release, for which an exit with `confirm=False` does not wait.
        try:
            if possession.end is not DETACHED:
                if engine.pid != process.pid or current_task(engine.loop) is not task:
                    possession.ensure_here()
                ended = possession.begin_release()
                if ended is not None and (possession.confirms or possession.end is not None):
                    if exc is not None and isinstance(exc, asyncio.CancelledError):
                        await wait_shielded(possession.until_ended, cancelled_by=exc)
                    else:
                        try:
                            await ended
                        except asyncio.CancelledError as cancelled:
                            await hold_up(possession.until_ended, cancelled)
                if possession.end is not RELEASED:
                    error = possession.how_released()
        except LockNotOwnedError as not_here:  # a fork of the holder
            error = not_here
        else:
            if error is not None and isinstance(error, LockNotOwnedError):
                error = possession.loss(possession.why_ended())
        finally:
            possession.ended = True
        # 3. What the exit raises, or notes on the exception of the body.
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
        elif isinstance(error, LockLostError) and self._possession.target.options.on_lost == "ignore":
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

AGAIN: Final[Any] = object()
"""Instead of a lease: too little time was left of what was handed on, and it is asked for again."""


class Binding(Generic[LeaseT]):
    """The part that all acquisitions of one lock in one session share.

    Attributes:
        beside: Further fields that stand beside the lease, as JSON.
        gate: The queue of the tasks of the session that want the same thing.
        label: Its kind, as messages call it.
        user_json: The metadata of the session and of the lock, as JSON.
        ward: Guards the bodies that are to be cancelled when their lease is lost; None where none is.
    """

    __slots__ = (
        "_lease_type",
        "beside",
        "engine",
        "gate",
        "label",
        "metadata",
        "name",
        "options",
        "resource",
        "user_json",
        "ward",
    )

    def __init__(
        self,
        engine: Engine,
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
        self.user_json = engine.settings.user_json(self.metadata)
        self.beside = beside
        self.ward = engine.ward if options.on_lost == "cancel" else None

    @property
    def kind(self) -> str:
        return self.label.lower()

    def __str__(self) -> str:
        return f"{self.label} {self.name!r}"

    def try_acquire(self) -> Coroutine[Any, Any, LeaseT | None]:
        return self.acquire(None, once=True)

    def steal(self) -> Coroutine[Any, Any, LeaseT]:
        return self.acquire(0.0, by_force=True)

    async def acquire(  # noqa: C901, PLR0912 - one coroutine: another one would show in each acquire
        self,
        blocking_timeout: float | None,
        *,
        once: bool = False,
        by_force: bool = False,
        wish: Possession | None = None,
        whole: float | None = None,
    ) -> LeaseT:
        """Acquires it in the task that runs now; see `Acquirable.acquire`.

        Args:
            blocking_timeout: Seconds to wait; None for ever.
            once: It never waits: refused, None. With a `blocking_timeout` of 0, refused, an error.
            by_force: It is taken from its holder.
            wish: The lease that is asked for, if it was made before.
            whole: Of which `blocking_timeout` is what is left, as messages tell.
        """
        lease = Possession(self) if wish is None else wish
        if by_force:
            lease.seizes = True
        if blocking_timeout == 0:
            once = True
        try:
            # 1. The lease asks by itself where no task of this session waits for it or excludes it. Else a
            # waiter asks when its turn comes, or an attempt does at once.
            gate = self.gate
            if (
                not once
                and gate.asking is None  # below as `Gate.idle`
                and not gate.here.closed
                and (not gate.stirred or gate.settled)
            ):
                lease.ask(blocking_timeout)
            else:
                lease.wait(Attempt if once else Waiter, blocking_timeout)
            await lease.done
        except BaseException:
            # 2. Cancelled, or a listener has raised: what was sent is undone, and the next waiter goes on.
            if lease.done is not None:  # else nothing was sent
                self._left(lease)
            raise
        # 3. It has ended: with a plain grant (`answer`), or as its waiter says, by a grant, an error, or
        # neither, which is a refusal.
        grant, asked = lease.answer, lease.waiter
        if asked is not None:
            lease.waiter = None  # which refers to the lease
            if asked.grant is None:
                if isinstance(asked, Attempt) and asked.owner_asked:
                    asked = await self._answer_of_owner(lease)
                if asked.grant is None:
                    lease.dropped()
                    self._not_had(asked, blocking_timeout if whole is None else whole)
                    return cast("LeaseT", None)
            grant = asked.grant
        assert grant is not None, "an acquire ends with a grant, an error, or refused"
        lease.answer = lease.done = None
        # 4. Granted, but its session closes, or too little time is left of what was handed on.
        if self.engine.closing:
            lease.undo()
            self._tell_not_had(asked or lease, "closed")
            raise SessionClosedError("the session was closed while waiting")
        if not lease.hold(grant):
            lease.undo()
            return cast("LeaseT", AGAIN)
        # 5. It is held.
        if asked is None:
            self.engine.events.acquired(lease, lease.answered_at - lease.started)
        else:
            self.engine.events.acquired(lease, asked.answered_at - asked.started, asked.holders)
        if grant.lost:
            self.tell_loser(lease, grant)  # again: a task of this session may have got it in the same turn
            self._tell_stolen(lease, grant)
        return self._lease_type(self, lease, grant)

    def _left(self, lease: Possession) -> None:
        """Its task does not wait any more."""
        lease.withdraw()
        asked, lease.waiter = lease.waiter or lease, None
        lease.dropped()
        self._tell_not_had(asked, "cancelled")

    def _not_had(self, acquisition: Acquiring, blocking_timeout: float | None) -> None:
        """Raises why; returns where it was refused to a caller that gave no `blocking_timeout`."""
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

    def _tell_not_had(self, acquisition: Acquiring | Possession, how: str) -> None:
        """In the task that has asked, however its acquire has ended without a lease."""
        waited = self.engine.now() - acquisition.started
        holders = acquisition.holders
        self.engine.events.tell(
            "on_not_acquired", self.kind, self.name, seconds=waited, reason=how, holders=holders
        )

    async def _answer_of_owner(self, lease: Possession) -> Acquiring:
        """A single try was refused for a lease that its session may keep without using it.

        Only the session's answer tells such a lease from one that is used: the answer is a release, or that a
        task is inside. Until then the waiter has its seat.
        """
        try:
            lease.wait_briefly()
            await lease.done
        except BaseException:
            self._left(lease)
            raise
        waiter, lease.waiter = lease.waiter, None
        assert waiter is not None
        return waiter

    def tell_loser(self, lease: Possession, grant: Granted) -> None:
        """The server tells no session of what that session has done: so a holder of this session is told."""
        from .stealing import loser_and_thief, stolen_by  # noqa: PLC0415 - few locks are stolen, and an import takes its time

        found = loser_and_thief(lease, grant)
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
        from .stealing import holder_told  # noqa: PLC0415 - as above

        loser = holder_told(grant.lost, now_us=grant.fencing_token)
        if loser is not None:
            held = f"held {in_words((loser,))}"
            self.engine.events.stolen(possession, loser.held_for or 0.0, held)

    async def locked(self) -> bool:
        kept = self.gate.kept
        if kept is not None and self.gate.asking is kept and kept.lasts:
            return False  # only this session keeps it, and no task uses it: a task of it that asks has it
        return await self.engine.ask(self.resource.steps.locked())

    async def adopt(self, old: str, at_least_ms: int, number: int = 0) -> LeaseT:
        engine, options, steps = self.engine, self.options, self.resource.steps
        at_least_ms = max(at_least_ms, options.at_least_ms)
        check_at_least(at_least_ms, options.first_ttl_ms)
        new = steps.new_token(old, engine.token())
        metadata = engine.describe(self.user_json, self.beside)
        ttl_ms = options.first_ttl_ms
        adopt = partial(steps.adopt_kept, number=number) if number else steps.adopt
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
        grant.sent, grant.ahead = engine.timed(call.sent, call.sent_steady)
        lease = Possession(self, new)
        lease.at_least_ms = at_least_ms
        lease.ttl_ms = ttl_ms
        lease.hold(grant)
        self.gate.here.add(lease)
        engine.events.acquired(lease, 0.0)
        return self._lease_type(self, lease, grant)
