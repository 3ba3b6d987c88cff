"""How a value is made under a lease, and published for those who wait elsewhere."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final, final

from ..errors import BackendError, ConfigurationError, LockError, LockLostError, SessionClosedError
from ..lock.clock import milliseconds
from ..lock.context import Context
from ..lock.lease import Lease
from ..lock.notes import note
from ..lock.options import LARGEST_VALUE, Options
from ..lock.term import NEVER
from .flightsteps import Leaving, Left
from .keeping import Keeping
from .outcomes import NOT_KEPT, VALUE, Outcome, comes_of_cancellation
from .runs import GrantTime, ended_at, runs
from .serializers import Serializer

log = logging.getLogger("aiolocks.session")

_MOST_LOSSES: Final = 3
"""The most times that a call is begun, as a call that loses its lease each time would never end."""

PAUSE: Final = 1.0
"""Seconds before another try to replace a value, after a try has failed."""

_DONE_AGAIN: Final = "; a new call may do it again"


@final
class Making:
    """One value of a key: the result of another run, or of our function.

    Invariants:
    - a value that was made is never made again: a lease that was lost then is acquired again, to publish it;
    - the function runs only under a lease.

    Args:
        anew: Fencing token of the run whose value this call replaces, while callers get that value; None if
            callers wait for the value of this call.
        spares: The value is that of a cache: where it cannot be kept, it is made again.

    Attributes:
        busy: Done once a run goes on, here or elsewhere.
        begun: Whether our function runs, or has run.
        abandoned: Nobody waits for the value any more, and the task is being cancelled.
        ended_at: Loop time up to which a caller must have come to get the result.
    """

    __slots__ = (
        "_anew",
        "_asked",
        "_binding",
        "_commands",
        "_cost_ms",
        "_engine",
        "_fn",
        "_grant_time",
        "_keeping",
        "_lasts",
        "_made",
        "_made_at",
        "_name",
        "_runs",
        "_runs_of",
        "_serializer",
        "_spares",
        "abandoned",
        "begun",
        "busy",
        "ended_at",
    )

    def __init__(
        self,
        engine: Context,
        name: str,
        fn: Callable[[], Awaitable[Any]],
        *,
        options: Options,
        keeping: Keeping,
        serializer: Serializer,
        fingerprint: str,
        anew: int | None,
        spares: bool,
    ) -> None:
        self._engine = engine
        self._name = name
        self._fn = fn
        self._keeping = keeping
        self._serializer = serializer
        self._anew = anew
        self._spares = spares
        self._runs_of = functools.partial(
            runs,
            engine,
            "singleflight",
            "SingleFlight",
            name,
            options=options,
            fingerprint=fingerprint,
            anew=anew,
        )
        self._commands, self._binding = self._runs_of(ahead=keeping.ahead())
        # The commands have this future, and not this object: a cycle would be left to the garbage collector.
        self.busy: asyncio.Future[Any] = engine.loop.create_future()
        self._commands.busy = self.busy
        self._asked = engine.now()
        self._grant_time: GrantTime | None = None  # of the last run of ours
        self._made: Outcome | None = None  # the end of our own call
        self._made_at = engine.mark()
        self._lasts = 0.0  # seconds for which it may be given from then on to callers that come later
        self._cost_ms = 0
        self._runs: set[int] = set()  # our own
        self.begun = False
        self.abandoned = False
        self.ended_at = NEVER

    def runs(self, fn: Callable[[], Awaitable[Any]]) -> bool:
        """Whether it is this function that runs."""
        return self.begun and self._fn is fn

    def endless(self) -> str:
        """That the run elsewhere has lost its ttl, and what frees it; empty where it has not."""
        if not self._commands.no_end:
            return ""
        from .._holders import without_ttl  # noqa: PLC0415 - rare, and an import takes its time

        return without_ttl(self._name, self._engine.settings.prefix)

    @property
    def keeps(self) -> bool:
        """Whether the work was done, and the server must know of it for as long as `keep`."""
        return self._keeping.kept and self._made is not None and self._made.done

    async def make(self) -> Outcome | None:
        """Runs the call, unless another run has left its result; None if another call replaces the value.

        Raises:
            LockError: There is no value, neither ours nor another one.
        """
        trouble: LockError | None = None
        missed = False
        for _ in range(_MOST_LOSSES):
            try:
                self._engine.check_usable()
                lease = await self._acquire()
            except Left as left:
                # Our own, if it was not confirmed: then we have the very object.
                if self._made is not None and left.run in self._runs:
                    return self._own(self._made.confirmed(left))
                if self._spares and left.tag == NOT_KEPT and not missed and self._made is None:
                    missed = True  # that run could not keep its value: this caller makes one
                    self._ask_anew()
                    continue
                self.ended_at = ended_at(self._engine, left, asked=self._asked)
                return Outcome.of_another(self._name, left, self._serializer)
            except LockError as error:
                return self._own(self._unpublished(error))
            if lease is None:
                return None
            self._runs.add(lease.fencing_token)
            self._grant_time = GrantTime(self._engine, self._commands.granted_at_us, lease)
            ended = await self._run(lease)
            if isinstance(ended, Outcome):
                return self._own(ended)
            trouble = ended
        assert trouble is not None
        return self._own(self._unpublished(trouble))

    def _ask_anew(self) -> None:
        """As a caller that was not told of any run yet."""
        self._commands, self._binding = self._runs_of(ahead=self._keeping.ahead())
        self._commands.busy = self.busy
        self._asked = self._engine.now()

    def _own(self, outcome: Outcome) -> Outcome:
        """The outcome of our own call, whose publication may have taken longer than it may be given."""
        age = self._engine.elapsed(self._made_at)
        if age > self._lasts:
            self.ended_at = self._engine.now() - age
        return outcome

    async def _acquire(self) -> Lease | None:
        """The lease of a run; for a value that is there already, nobody queues."""
        if self._anew is not None:
            return await self._binding.try_acquire()
        return await self._binding.acquire(None)

    async def _run(self, lease: Lease) -> Outcome | LockError:
        """The end of the run, or the error for which another run has to publish it."""
        deadline = 0.0
        try:
            async with lease:
                if self._made is None:
                    self._made = await self._call(lease)
                deadline = self._engine.now() + lease.remaining()
                self._publish(lease, self._made)
        except LockLostError as error:
            return error
        except (BackendError, SessionClosedError) as error:
            return await self._unconfirmed(lease, error, deadline)
        return self._made

    async def _unconfirmed(self, lease: Lease, error: LockError, deadline: float) -> Outcome | LockError:
        """The server has refused the end of the call, or has said nothing until its `deadline`."""
        made = self._made
        assert made is not None
        refused = self._engine.now() < deadline
        # Perhaps the server hung up on account of its length: in fewer words, the work was done.
        if made.done and (refused or (self.keeps and len(made.payload) > LARGEST_VALUE)):
            self._made = made = self._not_kept(made.value, error)
            if refused and await self._told(lease, made):
                return made
            refused = self._engine.now() < deadline  # if the lease has ended meanwhile, a new one may tell it
        return self._unpublished(error) if refused or self._spares or not self.keeps else error

    async def _told(self, lease: Lease, outcome: Outcome) -> bool:
        """Whether the run, which was not ended, has ended with that."""
        self._publish(lease, outcome)
        command = self._commands.release(lease.token, milliseconds(lease.ttl))
        try:
            released = await self._engine.ask(command, told=self._engine.wake_own)
        except LockError:
            return False
        return released.freed

    async def _call(self, lease: Lease) -> Outcome:
        """The outcome of the function; a cancellation of its task passes."""
        task = asyncio.current_task()
        assert task is not None
        self.begun = True
        self._commands.tell_busy()
        began = self._engine.now()
        before = task.cancelling()
        try:
            awaitable: object = self._fn()
            if not inspect.isawaitable(awaitable):
                raise TypeError(
                    f"fn must be a coroutine function (async def): {self._fn!r} gave "
                    f"{type(awaitable).__name__}; wrap a plain function as asyncio.to_thread does"
                )
            value = await awaitable
        except asyncio.CancelledError as error:
            if task.cancelling() > before:
                raise
            # It came out of the function by itself. Nobody who waits was cancelled, or may believe it.
            ended = RuntimeError(f"the call of SingleFlight key {self._name!r} was cancelled from within")
            ended.__cause__ = error
            return Outcome.of_error(ended)
        except Exception as error:
            # The count alone says nothing: up to Python 3.12 a TaskGroup that has failed leaves it raised.
            if task.cancelling() > before and (
                self.abandoned or lease.remaining() <= 0.0 or comes_of_cancellation(error)
            ):
                # Its text about the cancellation is not for those who wait elsewhere.
                raise asyncio.CancelledError from error
            return Outcome.of_error(error)
        finally:
            self._made_at = self._engine.mark()
        self._cost_ms = milliseconds(self._engine.now() - began)
        try:
            outcome = Outcome.of_value(value, self._serializer)
            self._engine.settings.check_value(outcome.payload)
        except ConfigurationError as error:
            return self._not_kept(value, error)
        except Exception as error:  # noqa: BLE001 - a serializer may raise anything
            note(
                error,
                "aiolocks: the serializer of the SingleFlight says this of the value of the function "
                f"({type(value).__name__}), which others are to have too",
            )
            return self._not_kept(value, error)
        return outcome

    def _not_kept(self, value: Any, because: Exception) -> Outcome:
        """The work was done, and for this reason others cannot have its value.

        Callers here get the value. If the value had to be kept, they get it with an error: a caller that
        relies on that has to know.
        """
        if self._anew is None:
            level = self._engine.log_level(because)
            log.log(
                level, "singleflight %r: others cannot have the value of the call: %s", self._name, because
            )
        # Nobody waits for a value that replaces another one: the log says that there is none.
        raises = self._keeping.kept and (not self._spares or self._anew is not None)
        return Outcome.not_kept(self._name, value, because, raises=raises)

    def _publish(self, lease: Lease, outcome: Outcome) -> None:
        """Publishes the result, with the release."""
        granted = self._grant_time
        assert granted is not None
        fresh_ms = keep_ms = 0
        if outcome.done and self._keeping.kept and (outcome.tag == VALUE or not self._spares):
            # Shorter, so that no caller gets a value that is older than `keep` and `stale` allow.
            fresh_ms = self._keeping.fresh_ms() - math.ceil(granted.unsure * 1000)
            keep_ms = max(0, fresh_ms + self._keeping.stale_ms)
            fresh_ms = max(0, fresh_ms)
        self._lasts = keep_ms / 1000
        pauses = self._anew is not None and outcome.tag != VALUE
        self._commands.leave(
            Leaving(
                token=lease.token,
                run=lease.fencing_token,
                tag=outcome.tag,
                payload=outcome.payload,
                made_at_us=granted.latest_us(self._engine.elapsed(self._made_at)),
                fresh_ms=fresh_ms,
                keep_ms=keep_ms,
                cost_ms=self._cost_ms,
                pause_ms=milliseconds(PAUSE) if pauses else None,
            )
        )

    def _unpublished(self, error: LockError) -> Outcome:
        """The work was done: callers here get its value, whatever the others can be told."""
        if self._made is None:
            raise error
        must = self.keeps and not self._spares
        again = _DONE_AGAIN if must else ""
        if self._anew is None:
            log.log(
                self._engine.log_level(error),
                "singleflight %r: what the call gave could not be published%s: %s",
                self._name,
                again,
                error,
            )
        if not must:
            return self._made
        return Outcome.not_kept(self._name, self._made.value, error, raises=True, hint=_DONE_AGAIN)
