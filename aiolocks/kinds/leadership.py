"""Leadership: of all candidates, one leads at a time."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Never, TypeVar, final

from ..errors import BackendError, LockError, LockLostError, LockTimeoutError, SessionClosedError
from ..lock.acquirable import Acquirable
from ..lock.again import Again
from ..lock.binding import Binding
from ..lock.claim import QueuePolicy, Resource
from ..lock.clock import milliseconds
from ..lock.context import Context
from ..lock.lease import Possession
from ..lock.options import Metadata, Options, Seconds, reject_unknown
from ..transport import Granted
from .leaders import LeaderInfo, Observer, leader_of
from .permits import PermitSteps
from .terms import KIND, TERMS, Candidacy, Observing, Term, json_value

if TYPE_CHECKING:  # for operators, and an import takes its time
    from .._infos import WaiterInfo

log = logging.getLogger("aiolocks.session")

R = TypeVar("R")

_MANNER: Final = QueuePolicy(exclusive=True, strict=True, quiet=True)
_GRACE: Final = 2.0
_PART_OF_TTL: Final = 5
_CANDIDATES: Final = 100
_LONGEST_PAUSE: Final = 1.0
"""Seconds after which a candidate asks again whose request was not answered, or refused for now."""

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

    A leader that cannot reach the server is told to stop `grace` seconds before its lease ends, by its own
    clock: `main` is cancelled, and unwinds while nobody else can lead yet. Two bodies overlap only if
    unwinding takes longer than `grace`, or if the event loop is blocked; the first is logged as an error.
    Where even that must not be, let the store that is written to check `term.fencing_token`.

    It has a name space of its own. Nothing compares clocks of different machines.

    Args:
        client: `redis.asyncio.Redis`, `RedisCluster`, or an `aiolocks.Session`.
        name: Any non-empty str of at most 1 KiB in UTF-8.
        ttl: Seconds after which a leader that died is replaced, 50 ms to ten years. A leader outlives an
            outage of the server of about two thirds of it, less `grace`.
        grace: Seconds before the end of the lease at which the body is cancelled, 0 to half of the ttl: as
            long as the body needs to unwind. None: 2 s, or a fifth of a ttl that is below 10 s.
        value: The value that the leader publishes from its election on, such as its address: anything that
            JSON can hold.
        blocking_timeout: Seconds to wait; None for ever, 0 for a single try. `run` waits for ever.
        max_hold: Seconds after which a term ends, so that another candidate leads; None for no limit.
        metadata: JSON values that stand beside the term, readable by each user that can read the key.
        replicas: How many replicas must have a term before it counts (`WAIT`); see `Lock`.

    Raises:
        TypeError, ValueError: An argument is not as it should be; before any I/O.
    """

    __slots__ = ("_candidacy", "_value")

    _label: ClassVar[str] = "Leadership"
    _can_be_stolen = True

    def __init__(
        self,
        client: Any,
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
            options = options.with_grace(min(_GRACE, options.first_ttl / _PART_OF_TTL))
        super().__init__(client, name, options)
        self._value = json_value(value)
        self._candidacy = Candidacy()

    # -- leading

    @property
    def is_leader(self) -> bool:
        """Whether a term of this very object may be relied on now. No I/O: its clock decides.

        It becomes False at the end of the lease at the latest, whatever the server says and whether or not it
        can be reached.
        """
        return self._candidacy.leads

    async def run(self, main: Callable[[Term], Awaitable[R]], *, on_error: OnError = "raise") -> R:
        """Calls `main(term)` whenever this process is elected, and returns what it returns.

        A term ends when the server has given it up or cannot be reached, when it steps down, and after
        `max_hold`. Then `main` is cancelled, and, once it has ended, this process campaigns again: `main`
        does not run twice at the same time in it. One that returns after its term has ended, or was told to,
        counts as cut off, and is called again after the next election.

        A server that is away, or out of memory, does not end it: it campaigns again until the server is back.
        Where `main` returns meanwhile, what it has returned is returned at the end of the lease, and the log
        says that the end of the term was not confirmed.

        Args:
            main: A coroutine function that takes the `Term`.
            on_error: The reaction to an `Exception` of `main`, once its term has ended. `"raise"` raises it.
                `"again"` logs it as an error with its traceback, and campaigns again after a pause: between 0
                and 1 s, double that after each further error, up to 60 s; after a term of 60 s, between 0 and
                1 s again. Or a function, `async` or not, that takes the error, and returns True for again or
                False to raise it.

        Raises:
            TypeError, ValueError: `on_error` is not as it should be.
            Exception: Any error of `main`, after the release, as `on_error` says; an error of `on_error`.
            BackendError: Redis refuses until a person does something, as without the permission; see
                `BackendError.transient`.
            SessionClosedError: The session is closed, or was closed meanwhile.

        Cancelled, it cancels `main`, and steps down once that has unwound.
        """
        _check_on_error(on_error)
        now = asyncio.get_running_loop().time
        again = Again(log, f"Leadership {self._name!r}: main", sleep=self._sleep)
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
        try:
            async with term:
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
                log.info("%s; campaigning again", error)
                return None
            self._unconfirmed(error)
        except (BackendError, SessionClosedError) as error:
            if error is raised:
                raise
            if returned is not None:
                self._unconfirmed(error)
        finally:
            del raised  # which would keep this frame, and so itself
        if returned is None:
            log.info("Leadership %r: main returned after its term was to end; campaigning again", self._name)
        return returned

    def _unconfirmed(self, error: LockError) -> None:
        """The work of the term is done, and the term had not ended for this process when it was."""
        log.warning("Leadership %r: the end of the term was not confirmed: %s", self._name, error)

    async def _sleep(self, seconds: float) -> None:
        await self._engine().sleep(seconds)

    async def _elected(self) -> Term:
        while True:
            try:
                return await self._acquire(None)
            except BackendError as error:
                if not error.transient:
                    raise
                level = self._engine().log_level(error)
                log.log(level, "Leadership %r: campaigning again: %s", self._name, error)
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
        """The leader as the server has it now, or None while nobody leads.

        Raises:
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
            SessionClosedError: The session is closed.
        """
        engine = self._engine()
        look = await engine.ask(Observing(engine.settings.prefix, self._name).look(None))
        return leader_of(self._name, look)

    def observe(self) -> AsyncGenerator[LeaderInfo | None]:
        """The leader as of now, or None while nobody leads, and then each change, at once.

        A change is a new term, a new value or other metadata of a term, and the end of a term that no other
        follows. An observer that is slow, or was cut off, is then told of each term since, in order: of the
        last 64 none is missed. While the server is away nothing is told: the last one that was told may lead
        on or not.

        A term that is forced open, and that no other follows, is found at its next look, after 2 s at most.

        Raises:
            BackendError: Redis refuses for good, as without the permission.
            SessionClosedError: The session is closed.

        Nothing has to be closed; what was only begun is ended with the loop. With `contextlib.aclosing` it
        ends at once.
        """
        return Observer(self._engine(), self._name).changes()

    async def candidates(self) -> tuple[WaiterInfo, ...]:
        """The candidates that wait for their turn, the next one first, at most 100. The leader is not one.

        The server learns host and process of a candidate that has waited for about half a second.

        Raises:
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
            SessionClosedError: The session is closed.
        """
        from ..inspect.looking import look  # noqa: PLC0415 - for operators, and an import takes its time

        found = await look(self._engine(), [(KIND, self._name)], waiters=_CANDIDATES)
        return found[0].waiting if found else ()

    # -- as an acquirable

    @property
    def _lease_type(self) -> Callable[[Binding[Term], Possession, Granted], Term]:  # type: ignore[override]
        return functools.partial(Term, candidacy=self._candidacy, value=self._value)

    def _beside(self, engine: Context) -> str:
        if self._value is None:
            return ""
        engine.settings.user_json({"value": self._value})
        return f',"value":{json.dumps(self._value, separators=(",", ":"))}'

    def _rename(self, names: tuple[str, ...]) -> None:
        super()._rename(names)
        self._candidacy = Candidacy()

    def _resource(self, engine: Context) -> Resource:
        commands = PermitSteps(
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
        return Resource(commands, (KIND, self._name), _MANNER)
