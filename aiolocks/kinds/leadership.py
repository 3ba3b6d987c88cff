"""Leadership: of all candidates, one leads at a time."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, NamedTuple, Never, TypeVar, final

from .._logs import get_logger
from ..errors import BackendError, LockError, LockLostError, LockTimeoutError, SessionClosedError
from ..lock import together
from ..lock.acquirable import Acquirable
from ..lock.again import Again
from ..lock.clock import milliseconds
from ..lock.engine import Engine
from ..lock.holders import described_in, who_in
from ..lock.lease import Binding, Lease, LeaseState, Possession, QueuePolicy, Resource
from ..lock.options import Metadata, Options, Seconds, reject_unknown, seconds
from ..lock.sources import Client
from ..lock.wakeups import KeyListener
from ..transport import BELL_TTL, Granted, Request, Script
from ..transport.answers import fencing_token, kept, released, stolen, truth
from ..transport.faults import goes_on
from ..transport.keys import key
from ..transport.steps.base import SEAT_LENGTH
from ..transport.steps.family import Family, Kind, Step
from . import permits
from .permits import PermitSteps

if TYPE_CHECKING:
    from .._infos import WaiterInfo

# -- Leaderships: the keys and steps of one, which is a fair lock whose leases are written down as terms.

log = get_logger("aiolocks.session")

KIND: Final = "leadership"
NOBODY_KNOWN: Final = "+inf"
"""Instead of the last term that is known: none is told of."""

_PERMITS: Final = ("forms", "bells", "fence", "queue", "permits")
_SHARED: Final = ("forms", "bells", "fence", "queue", "permits", "terms")
_ACQUIRE: Final = Script("permits_acquire", *_SHARED)
_HAND_OVER: Final = Script("permits_acquire", *_SHARED, "hand_over_permits")
_ANNOTATE: Final = Script("leadership_annotate", *_SHARED, mid_move="mid_move_terms")
_ADOPT: Final = Script("permits_adopt", *_SHARED, mid_move="mid_move_terms")
_LOOK: Final = Script("leadership_look", "forms", "fence", moves=True)
_RELEASE: Final = Script(
    "permits_release", *_PERMITS, "stolen", "terms", mid_move="mid_move_terms", frees=True
)
_RENEW: Final = Script("permits_renew", *_PERMITS, "stolen", "terms", mid_move="mid_move_terms")
_STEAL: Final = Script("permits_steal", *_PERMITS, "stolen", "terms")

TERMS: Final = Family(
    keys=f"{permits.KEYS} terms news",
    values="n value fair",
    acquire=Step(_ACQUIRE, permits.ACQUIRES),
    hand_over=_HAND_OVER,
    renew=Step(_RENEW, permits.RENEWS, kept),
    release=Step(_RELEASE, permits.RELEASES, released),
    adopt=Step(_ADOPT, permits.ADOPTS, fencing_token),
    annotate=Step(_ANNOTATE, permits.ANNOTATES, truth),
    owned=Step(permits.OWNED, "token", truth),
    steal=Step(_STEAL, permits.STEALS, stolen),
    roles="leases value",
    read=permits.read_permits,
    passive="fence value terms news stolen",
    seat=SEAT_LENGTH,
    force=permits.FORCE_PERMITS,
    forced="leases queue value fence",
)
KINDS: Final = (
    Kind(
        TERMS,
        KIND,
        "Leadership",
        lasting=True,
        needs=(*permits.NEEDS, "zremrangebyrank", "zremrangebyscore"),
    ),
)


class TermFound(NamedTuple):
    """One term, as it stands there.

    Attributes:
        fencing_token: The token of its lease.
        described: Its leader, and what it has published, JSON.
    """

    fencing_token: int
    described: bytes


@final
class Look:
    """The findings of one look.

    Attributes:
        now_us: The server's time, microseconds.
        newest: Fencing token of the newest term; 0 if there is none.
        left_ms: Milliseconds that the leader's lease has left.
        leading: The term that goes on, if any does.
        since: The terms that were begun since the one that was known, in order.
    """

    __slots__ = ("leading", "left_ms", "newest", "now_us", "since")

    def __init__(self, raw: Any) -> None:
        now_us, newest, left_ms, lease, *since = raw
        self.now_us = int(now_us)
        self.newest = int(newest)
        self.left_ms: int = left_ms
        self.leading = _term(lease.partition(b":")[2]) if lease else None
        self.since = [_term(one) for one in since]


def _term(text: bytes) -> TermFound:
    minted, _, described = text.partition(b":")
    return TermFound(int(minted), described)


@final
class Observing:
    """The steps of a session that observes a leadership."""

    __slots__ = ("_keys", "news")

    def __init__(self, prefix: str, name: str) -> None:
        self._keys = tuple(key(prefix, KIND, name, role) for role in ("", "leases", "terms"))
        self.news = key(prefix, KIND, name, "news")

    def look(self, known: int | None) -> Request[Look]:
        """Tells of the leader, and of the terms after the one that is known."""
        since = NOBODY_KNOWN if known is None else str(known)
        return Request(_LOOK, self._keys, (since,), Look, lane=self.news.decode())


@final
class Candidacy:
    """The state that one `Leadership` object knows of itself in this process, without asking the server.

    Attributes:
        rests_until: Loop time before which it does not campaign; it has stepped down.
    """

    __slots__ = ("_term", "rests_until")

    def __init__(self) -> None:
        self._term: weakref.ref[Possession] | None = None
        self.rests_until = float("-inf")

    def elected(self, possession: Possession) -> None:
        self._term = weakref.ref(possession)

    @property
    def leads(self) -> bool:
        """Whether its term may be relied on now, by the clock."""
        possession = None if self._term is None else self._term()
        return possession is not None and possession.remaining() > 0.0


@final
class Term(Lease):
    """One term of a leader. It is a lease; an election makes it.

    The leader can rely on it as on every lease: `ensure_held()` and `remaining()` use the clock, without I/O.
    """

    __slots__ = ("_candidacy", "_value")

    def __init__(
        self,
        binding: Binding[Term],
        possession: Possession,
        grant: Granted,
        *,
        candidacy: Candidacy,
        value: Any,
    ) -> None:
        super().__init__(binding, possession, grant)
        self._candidacy = candidacy
        self._value = value
        candidacy.elected(possession)

    @property
    def value(self) -> Any:
        """The last value that this term has published."""
        return self._value

    @property
    def grace(self) -> float:
        """Seconds before the end of the lease at which the body is cancelled."""
        return self._possession.term.grace

    @property
    def ending(self) -> bool:
        """Whether the body was told to stop: `grace` began, the leader steps down, or the term was lost."""
        return self._possession.term.stopping or self.state is LeaseState.LOST

    async def proclaim(self, value: Any) -> None:
        """Publishes a value with the term: `leader()` returns it, and every `observe()` gets it at once.

        It replaces the value before. If values follow each other quickly, an observer may see only the last
        one.

        Args:
            value: Anything that JSON can hold, such as the address of the leader. Every user that can read
                the key can read it.

        Raises:
            TypeError: JSON cannot hold it.
            ConfigurationError: It has more bytes than the session's `largest_metadata`.
            LockLostError: The term is over.
            BackendError: Redis refused, or did not answer within the session's `command_timeout`.

        After a cancellation or an error, the server may have the value or not. A second call does what is
        left.
        """
        copied = json_value(value)
        settings = self._engine.settings
        settings.user_json({"value": copied})
        await self._possession.annotate_with({"value": copied})
        self._value = copied
        # The server tells all sessions but the one that has changed it.
        news = Observing(settings.prefix, self.name).news
        self._engine.bells.rung("local", (news,))

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(exc_type, exc, traceback)
        finally:
            scope = self._possession.scope
            if exc is None and scope is not None and scope.cancelled_since:
                # Of two cancellations at the same time asyncio makes one, and the body has taken it for the
                # end of its term. `run` would campaign again.
                raise asyncio.CancelledError

    async def step_down(self, *, cool_down: Seconds = 0.0) -> None:
        """Ends the term: the body is cancelled, and when it has ended, the next candidate leads.

        If the body itself calls it, the call ends with this cancellation. If another task calls it, it
        returns when the term is over. A term that was never entered is released. If the body takes longer
        than `grace` to end, its lease is renewed until then.

        Args:
            cool_down: Seconds for which this `Leadership` object is not a candidate again, so that another
                candidate leads, or that the reason for stepping down can pass. Default 0.

        Raises:
            TypeError, ValueError: `cool_down` is wrong.
            BackendError: The term was never entered, and its release was not confirmed.

        If the call is cancelled, the term still ends.
        """
        rest = seconds("cool_down", cool_down)
        possession = self._possession
        possession.ensure_here()
        self._candidacy.rests_until = self._engine.now() + rest
        if not possession.live:
            return
        was_stopping = possession.term.stopping
        log.info("%s %r: the leader steps down", self.kind, self.name)
        possession.stop("step_down() was called")
        scope = possession.scope
        if scope is None:
            await self.release()
        elif not scope.entered_here:
            await possession.wait_over()
        elif not was_stopping:
            await asyncio.get_running_loop().create_future()  # until the cancellation comes


def json_value(value: object) -> Any:
    """A value that is published, copied.

    Raises:
        TypeError: It is not what JSON can hold.
    """
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"value must be what JSON can hold: {error}") from None


# -- The leaders of a leadership, as observers see them.

_SOON: Final = 0.002
"""Seconds after the end of a lease at which the server is asked who leads now."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderInfo:
    """One term of a leadership, as the server has it. An unknown field is None.

    Attributes:
        name: Name of the leadership.
        fencing_token: The token of the term: larger than the token of every earlier term.
        value: The value that the leader has published, by `value=` or `proclaim`.
        host: Name of the leader's machine.
        pid: Its process id on that machine.
        task: Name of its task.
        metadata: The metadata of the user: of the session and of the leadership.
        elected_at: The server's time when the term began, as seconds since 1970.
        remaining: Seconds that were left of the leader's lease when the server was asked; 0.0 if the term had
            ended by then. The lease is renewed for as long as the leader lives.
    """

    name: str
    fencing_token: int
    value: Any = None
    host: str | None = None
    pid: int | None = None
    task: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    elected_at: float | None = None
    remaining: float = 0.0


def leader_of(name: str, look: Look) -> LeaderInfo | None:
    """The leader that was found."""
    return None if look.leading is None else _info(name, look, look.leading, look.left_ms / 1000)


def _info(name: str, look: Look, term: TermFound, remaining: float = 0.0) -> LeaderInfo:
    described = described_in(term.described) or {}
    return LeaderInfo(
        name=name,
        fencing_token=term.fencing_token,
        # The fencing token is the server's time, unless that clock has been set back since.
        elected_at=term.fencing_token / 1e6 if term.fencing_token <= look.now_us else None,
        remaining=remaining,
        **who_in(described),
    )


@final
class Observer:
    """An observer that is told of each change.

    A push only says that something has changed. The observer then asks who leads, and for the terms since the
    last one that it knows: so none is missed, however many changes one push stands for.

    Invariant: each term that the server still remembers is told of once, in the order of fencing tokens, and
    the last one again when something beside it has changed.
    """

    __slots__ = ("_ear", "_engine", "_name", "_newest", "_steps", "_told")

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._steps = Observing(engine.settings.prefix, name)
        self._name = name
        self._ear = KeyListener(engine, self._steps.news)
        self._newest: int | None = None  # the newest term that was told of, or was over when it began
        self._told: TermFound | None = None

    async def changes(self) -> AsyncGenerator[LeaderInfo | None]:
        """The leader as of now, and then each change."""
        first = True
        with self._ear:
            while True:
                look = await self._look()
                if look is not None:
                    for change in self._changes_in(look, first=first):
                        yield change
                    first = False
                await self._next(look)

    async def _look(self) -> Look | None:
        """The state on the server, or None where the server is away."""
        engine = self._engine
        try:
            return await self._ear.listened(lambda: engine.ask(self._steps.look(self._newest), patient=True))
        except BackendError as error:
            if not goes_on(error):
                raise
            together.tell(
                log,
                engine.log_level(error),
                "leadership %r cannot be observed now: %s",
                *(self._name, error),
                name=repr(self._name),
                many="%d leaderships cannot be observed now: %s: %s",
                why=str(error),
            )
            return None

    def _changes_in(self, look: Look, *, first: bool) -> list[LeaderInfo | None]:
        was, leading = self._told, look.leading
        if self._newest is not None and self._newest > look.newest and leading is not None:
            self._newest = 0  # the server has lost its data, and its clock is earlier than its last grants
        begun = [term for term in look.since if leading is None or term.fencing_token < leading.fencing_token]
        changes: list[LeaderInfo | None] = [_info(self._name, look, term) for term in begun]
        if leading != was or changes or first:
            changes.append(leader_of(self._name, look))
        self._told = leading
        newest = look.newest if leading is None else max(look.newest, leading.fencing_token)
        self._newest = max(self._newest or 0, newest)
        return changes

    async def _next(self, look: Look | None) -> None:
        """Returns when there may be something new."""
        longest = self._engine.longest_sleep or BELL_TTL
        if look is not None and look.leading is not None:
            longest = min(longest, look.left_ms / 1000 + _SOON)
        await self._ear.sleep(longest)


R = TypeVar("R")

_MANNER: Final = QueuePolicy(exclusive=True, strict=True, quiet=True)
_GRACE: Final = 2.0
_PART_OF_TTL: Final = 5
_CANDIDATES: Final = 100
_LONGEST_PAUSE: Final = 1.0
"""Seconds after which a candidate asks again whose request was not answered, or refused for now."""

_STUBBORN: Final = 10.0
"""Seconds after which the log tells of a `main` that goes on although it was cancelled, again and again."""
_LOOKS: Final = 1.0
"""Seconds between two looks whether it does."""

OnError = Literal["raise", "again"] | Callable[[Exception], bool | Awaitable[bool]]
"""The reaction to an error of `main`."""


@final
@dataclass(frozen=True, slots=True)
class _Returned(Generic[R]):
    """The result of `main`."""

    value: R


def _check_on_error(on_error: object) -> None:
    if callable(on_error) or on_error in ("raise", "again"):
        return
    raise (ValueError if isinstance(on_error, str) else TypeError)(
        f"on_error must be 'raise', 'again', or a function of the error, not {on_error!r}"
    )


async def _agrees(on_error: Callable[[Exception], bool | Awaitable[bool]], error: Exception) -> bool:
    """Whether `main` is called again, as the user's function says."""
    answer = on_error(error)
    return bool(await answer if inspect.isawaitable(answer) else answer)


@final
class _Stubborn:
    """Tells of a `main` that goes on after it was cancelled: each 10 s, until it has ended."""

    __slots__ = ("_context", "_engine", "_next", "_since", "_term", "_timer")

    def __init__(self, term: Term) -> None:
        self._engine = term._engine  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - a part of it
        self._term = term
        self._context = copy_context()  # of the call of `run`
        self._since: float | None = None  # it was found cancelled
        self._next = _STUBBORN
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """From now on; `main` begins."""
        now, scope = self._engine.now(), self._term._possession.scope  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as above
        if scope is None or not scope.cancelled:
            self._since, self._next = None, _STUBBORN
        elif self._since is None:
            self._since = now
        elif now - self._since >= self._next:
            self._next += _STUBBORN
            log.warning(
                "leadership %r: main has not ended %.0f s after it was cancelled%s",
                self._term.name,
                now - self._since,
                "" if self._term.remaining() > 0.0 else ", and another process may lead",
            )
        self._timer = self._engine.loop.call_later(_LOOKS, self.look, context=self._context)

    def end(self) -> None:
        """`main` has ended."""
        if self._timer is not None:
            self._timer.cancel()


@final
class Leadership(Acquirable[Term]):
    """One leader among all processes that are candidates for the same name.

    Candidates wait in the order in which they came. The leader holds a lease, the `Term`, which is renewed
    while it lives. When the leader ends its term, or its lease ends, the next candidate leads.

    ```python
    leadership = Leadership(redis, "scheduler")

    async def main(term):
        ...                     # cancelled when the term is about to end

    await leadership.run(main)  # in every process: one of them runs it

    async with leadership as term:
        ...                     # the same, once
    ```

    If a leader cannot reach the server, `main` is cancelled `grace` seconds before its lease ends, by its own
    clock. So `main` can end before another process can lead. Two bodies overlap only if the cancelled `main`
    takes longer than `grace`, which is logged as an error, or if the event loop is blocked. If even that
    would do harm, let the store check `term.fencing_token`.

    It has a name space of its own. Nothing compares clocks of different machines.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8.
        ttl: Seconds after which a leader that died is replaced, 50 ms to ten years. A leader survives an
            outage of the server of about two thirds of it, less `grace`.
        grace: Seconds before the end of the lease at which the body is cancelled, 0 to half of the ttl: as
            long as the body needs to unwind. None: 2 s, or a fifth of a ttl that is below 10 s.
        value: The value that the leader publishes from its election on, such as its address: anything that
            JSON can hold.
        blocking_timeout: Seconds to wait; None for ever, 0 for a single try. `run` waits for ever.
        max_hold: Seconds after which a term ends, so that another candidate leads; None for no limit.
        metadata: JSON values kept with the term, readable by each user that can read the key.
        replicas: How many replicas must have a term before it counts (`WAIT`); see `Lock`.

    Raises:
        TypeError, ValueError: An argument is wrong; before any I/O.
    """

    __slots__ = ("_candidacy", "_value")

    _label: ClassVar[str] = "Leadership"
    _can_be_stolen = True

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        ttl: Seconds = 10.0,
        grace: Seconds | None = None,
        value: Any = None,
        blocking_timeout: Seconds | None = None,
        max_hold: Seconds | None = None,
        metadata: Metadata | None = None,
        replicas: int = 0,
        **unknown: Never,
    ) -> None:
        reject_unknown("Leadership", unknown)
        options = Options.checked(
            ttl=ttl,
            blocking_timeout=blocking_timeout,
            max_hold=max_hold,
            metadata=metadata,
            replicas=replicas,
            grace=0.0 if grace is None else grace,
        )
        if grace is None:
            options = replace(options, grace=min(_GRACE, options.first_ttl / _PART_OF_TTL))
        super().__init__(client, name, options)
        self._value = json_value(value)
        self._candidacy = Candidacy()

    # -- leading

    @property
    def is_leader(self) -> bool:
        """Whether a term of this object can be relied on now. No I/O: the clock of this process decides.

        It becomes False at the end of the lease at the latest, whatever the server says, and also if the
        server cannot be reached.
        """
        return self._candidacy.leads

    async def run(self, main: Callable[[Term], Awaitable[R]], *, on_error: OnError = "raise") -> R:
        """Calls `main(term)` whenever this process is elected, and returns what it returns.

        A term ends when the server has given it up or cannot be reached, when it steps down, and after
        `max_hold`. Then `main` is cancelled and, when it has ended, this process campaigns again: `main`
        never runs twice at the same time in one process. If `main` returns after its term has ended, or after
        it was cancelled, it is called again after the next election.

        If the server is away, or out of memory, `run` campaigns until the server is back. If `main` returns
        during this time, `run` returns its result at the end of the lease, and logs that the end of the term
        was not confirmed.

        Args:
            main: A coroutine function that takes the `Term`.
            on_error: The reaction to an `Exception` of `main`, once its term has ended. `"raise"` raises it.
                `"again"` logs it as an error with its traceback, and campaigns again after a pause: between 0
                and 1 s, double that after each further error, up to 60 s; after a term of 60 s, between 0 and
                1 s again. Or a function, `async` or not, that takes the error, and returns True for again or
                False to raise it.

        Raises:
            TypeError, ValueError: `on_error` is wrong.
            Exception: Any error of `main`, after the release, as `on_error` says; an error of `on_error`.
            BackendError: Redis refuses until a person does something, as without the permission; see
                `BackendError.transient`.
            SessionClosedError: The session is closed, or was closed meanwhile.

        Cancelled, it cancels `main`, and steps down once that has unwound. While `main` goes on after it was
        cancelled, by this or because its term ends, a warning says so each 10 s.
        """
        _check_on_error(on_error)
        now = asyncio.get_running_loop().time
        again = Again(log, f"leadership {self._name!r}: main", sleep=self._sleep)
        while True:
            term, failed = await self._elected(), None
            began = now()
            try:
                returned = await self._led(term, main)
            except Exception as error:
                if on_error == "raise" or not (on_error == "again" or await _agrees(on_error, error)):
                    raise
                failed = error
            else:
                if returned is not None:
                    return returned.value
            if failed is not None:
                await again.after(failed, now() - began)

    async def _led(self, term: Term, main: Callable[[Term], Awaitable[R]]) -> _Returned[R] | None:
        """One term: what `main` has returned, or None where it was cut off.

        Raises:
            Exception: That of `main`.
        """
        returned: _Returned[R] | None = None
        raised: Exception | None = None
        stubborn = _Stubborn(term)
        try:
            async with term:
                stubborn.look()
                try:
                    result = await main(term)
                except Exception as error:
                    raised = error
                    raise
                if not term.ending:
                    returned = _Returned(result)
        except LockLostError as error:
            if returned is None:
                if error is raised and not term.ending:  # of another lock
                    raise
                log.debug("leadership %r: campaigning again: %s", self._name, error)
                return None
            self._unconfirmed(term, error)
        except (BackendError, SessionClosedError) as error:
            if error is raised:
                raise
            if returned is not None:
                self._unconfirmed(term, error)
        finally:
            stubborn.end()
            del raised  # which would keep this frame, and so itself
        if returned is None:
            log.debug("leadership %r: campaigning again: main returned after its term was to end", self._name)
        return returned

    def _unconfirmed(self, term: Term, error: LockError) -> None:
        """The work of the term is done, and the term had not ended for this process when it was."""
        level = term._engine.log_level(error)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - its own
        log.log(level, "leadership %r: the end of the term was not confirmed: %s", self._name, error)

    async def _sleep(self, seconds: float) -> None:
        await self._engine().sleep(seconds)

    async def _elected(self) -> Term:
        while True:
            try:
                return await self._acquire(None)
            except BackendError as error:
                if not goes_on(error):
                    raise
                level = self._engine().log_level(error)
                together.tell(
                    log,
                    level,
                    "leadership %r: campaigning again: %s",
                    *(self._name, error),
                    name=repr(self._name),
                    many="%d leaderships: campaigning again: %s: %s",
                    why=str(error),
                )
                await self._sleep(min(self._options.ttl / 10, _LONGEST_PAUSE))

    def _acquire(self, blocking_timeout: float | None) -> Coroutine[Any, Any, Term]:
        return self._rested(blocking_timeout)

    async def _rested(self, blocking_timeout: float | None) -> Term:
        """After a `cool_down`, which counts as a part of the wait."""
        rest = self._rest()
        if rest <= 0.0:
            return await super()._acquire(blocking_timeout)
        if blocking_timeout is not None and blocking_timeout <= rest:
            await self._engine().sleep(blocking_timeout)
            detail = f"it has stepped down, and rests for {rest - blocking_timeout:.3f} s more"
            raise LockTimeoutError(
                self._label, self._name, blocking_timeout=blocking_timeout, remaining=None, detail=detail
            )
        await self._engine().sleep(rest)
        return await super()._acquire(None if blocking_timeout is None else blocking_timeout - rest)

    async def _tried(self) -> Term | None:
        return None if self._rest() > 0.0 else await super()._try_acquire()

    def _try_acquire(self) -> Coroutine[Any, Any, Term | None]:
        return self._tried()

    def _rest(self) -> float:
        return self._candidacy.rests_until - asyncio.get_running_loop().time()

    # -- looking on

    async def leader(self) -> LeaderInfo | None:
        """The leader as the server has it now, or None if there is no leader.

        Raises:
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.
        """
        engine = self._engine()
        look = await engine.ask(Observing(engine.settings.prefix, self._name).look(None))
        return leader_of(self._name, look)

    def observe(self) -> AsyncGenerator[LeaderInfo | None]:
        """Yields the present leader, or None if there is none, and then each change, at once.

        A change is a new term, a new value or other metadata of a term, and the end of a term without a next
        one. An observer that was slow, or disconnected, gets each term that it missed, in order, up to the
        last 64. While the server is away, the observer gets nothing: the last leader that it got may still
        lead or not.

        If a term is released by force, and no other term follows, the observer finds this after 2 s at most.

        Raises:
            BackendError: Redis refuses for good, such as for a missing permission.
            SessionClosedError: The session is closed.

        You need not close it: at the latest it ends with the event loop. With `contextlib.aclosing` it ends
        at once.
        """
        return Observer(self._engine(), self._name).changes()

    async def candidates(self) -> tuple[WaiterInfo, ...]:
        """The candidates that wait for their turn, the next one first, at most 100, without the leader.

        The server learns host and process of a candidate that has waited for about half a second.

        Raises:
            BackendError: Redis refused, could not be reached, or did not answer within the session's
                `command_timeout`.
            SessionClosedError: The session is closed.
        """
        from ..inspect.looking import look  # noqa: PLC0415 - for operators, and an import takes its time

        found = await look(self._engine(), [(KIND, self._name)], waiters=_CANDIDATES)
        return found[0].waiting if found else ()

    # -- as an acquirable

    @property
    def _lease_type(self) -> Callable[[Binding[Term], Possession, Granted], Term]:  # type: ignore[override]
        return functools.partial(Term, candidacy=self._candidacy, value=self._value)

    def _beside(self, engine: Engine) -> str:
        if self._value is None:
            return ""
        engine.settings.user_json({"value": self._value})
        return f',"value":{json.dumps(self._value, separators=(",", ":"))}'

    def _rename(self, names: tuple[str, ...]) -> None:
        super()._rename(names)
        self._candidacy = Candidacy()

    def _resource(self, engine: Engine) -> Resource:
        steps = PermitSteps(
            engine.settings.prefix,
            KIND,
            self._name,
            permits=1,
            value=None,
            fair=True,
            family=TERMS,
            retention_ms=milliseconds(engine.settings.fence_retention),
            session=engine.session_id,
        )
        return Resource(steps, (KIND, self._name), _MANNER)
