"""Holding a lock for the length of a request's handler; the same for all frameworks."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar, cast, final

import anyio

from .. import Session
from .._logs import get_logger
from .._tasks import spawn
from ..errors import BackendError, LockLostError, LockNotOwnedError, LockTimeoutError, SessionClosedError
from ..lock import together
from ..lock.acquirable import Acquirable, Pending
from ..lock.engine import SessionOptions
from ..lock.lease import Lease, LeaseState
from ..lock.options import Options, not_for_locks, optional_seconds, reject_unknown
from ..lock.sources import Client, Source, is_closed, log_level
from ._holds import holds_of
from ._limited import LimitsRecipe
from ._refusing import CLIENT_CLOSED_REQUEST, Conflicting, Refusal, lost, unavailable

T = TypeVar("T")

Kind = Callable[[Session, str], Acquirable[Any]] | Callable[..., Acquirable[Any]]
"""The maker of the lock: called with the session, the name, and the options that were given.

The first of the two is for type checkers, which take the types of a lambda's arguments from it.
"""

Gone = Callable[[], Awaitable[None]]
"""Returns when the client has hung up."""

log: Final = get_logger("aiolocks.requests")


def _check_call(kind: Callable[..., object], options: Mapping[str, Any]) -> None:
    """An error that each request would meet should come when the application is made."""
    hint = "as in kind=lambda session, name: Semaphore(session, name, 3)"
    made: object = kind
    if isinstance(made, type) and not issubclass(made, Acquirable):
        raise TypeError(
            f"kind must make something that can be acquired, {hint} or RWLock(session, name).writer, "
            f"not {made.__name__}"
        )
    try:
        inspect.signature(kind).bind(None, "", **options)
    except TypeError as error:
        named = "".join(f", {option}=" for option in options)
        raise TypeError(
            f"kind is called with a session and a name{named}: {error}; write a function, {hint}"
        ) from None
    except ValueError:
        pass  # it does not tell how it is called


@final
class Recipe:
    """Which lock, how long to wait, and what to answer if it cannot be had; checked.

    Its arguments are the arguments of the user, and `what`: how messages call it.

    Raises:
        TypeError, ValueError: An argument is wrong.
    """

    __slots__ = ("_kind", "_options", "blocking_timeout", "conflict", "family")

    def __init__(
        self,
        what: str,
        *,
        kind: object,
        blocking_timeout: object,
        conflict: Conflicting,
        options: Mapping[str, Any],
        name: object,
        cache: object = 0.0,
    ) -> None:
        reject_unknown(what, not_for_locks(options))
        if isinstance(kind, Acquirable) or not callable(kind):
            raise TypeError(
                "kind must be a class of locks, or a function of a session and a name that makes one, as in "
                f"kind=lambda session, name: Semaphore(session, name, 3), not {kind!r}"
            )
        if cache:
            options = {**options, "cache": cache}
            if isinstance(kind, type) and "cache" not in inspect.signature(kind).parameters:
                raise TypeError(f"{what}: cache= is an option of a Lock, and {kind.__name__} has none")
        _check_call(kind, options)
        self._kind = cast("Kind", kind)
        self.blocking_timeout = optional_seconds("blocking_timeout", blocking_timeout)
        self.conflict = conflict
        # Under this key its names are measured together with the names of routes that have the same template.
        self.family: Hashable = name if isinstance(name, str) else self
        Options.checked(**options)
        self._options = dict(options)

    def lock(self, session: Session, name: str) -> Acquirable[Any]:
        """The lock of that name."""
        lock: object = self._kind(session, name, **self._options)
        if not isinstance(lock, Acquirable):
            raise TypeError(
                "kind must make something that can be acquired, such as a Lock or an RWLock's writer, "
                f"not {lock!r}"
            )
        return lock

    def __repr__(self) -> str:
        return f"<Recipe {self._kind!r} {self._options!r} blocking_timeout={self.blocking_timeout}>"


@final
class Held:
    """What is held for the body of `holding`.

    Attributes:
        lease: Its lease.
    """

    __slots__ = ("_over", "_route", "_session", "_since", "lease")

    def __init__(self, session: Session, lease: Lease, *, route: str) -> None:
        self._session = session
        self._route = route
        self._since = asyncio.get_running_loop().time()
        self._over: float | None = None
        self.lease = lease

    @property
    def lasted(self) -> float:
        """Seconds for which it was held."""
        return (asyncio.get_running_loop().time() if self._over is None else self._over) - self._since

    @property
    def gone(self) -> bool:
        """Whether it was lost, and not because its session closes: then a body that ends gives it back."""
        return self.lease.state is LeaseState.LOST and not is_closed(self._session)

    async def let_go(self) -> None:
        """Releases before the body has ended, in any task, for a handler that has done its work.

        If the lease was lost meanwhile, the end of the body says so.
        """
        try:
            await self.lease.let_go()
        except (BackendError, SessionClosedError) as error:
            self.unreleased(error)
        except LockNotOwnedError:
            return
        self._over = asyncio.get_running_loop().time()

    @property
    def over(self) -> bool:
        """Whether `let_go` was done."""
        return self._over is not None

    def unreleased(self, error: BackendError | SessionClosedError) -> None:
        """The work is done, and its answer is right: a client that is told otherwise would do it again."""
        name = self.lease.name
        together.tell(
            log,
            log_level(self._session, error),
            "%r, the lock of a request that was served (%s), is not known to be released: %s",
            *(name, self._route, error),
            name=repr(name),
            many="%d locks of requests that were served are not known to be released: %s: %s",
            why=str(error),
        )


@asynccontextmanager
async def holding(
    session: Session, name: str, recipe: Recipe | LimitsRecipe, gone: Gone | None, *, route: str
) -> AsyncGenerator[Held, None]:
    """Holds the lock of that name for the body, or says by a `Refusal` why not.

    The lock is acquired in the caller's own task, for some locks are that task's. The body's own exception
    always wins, whatever it is.

    `gone` returns when the client has hung up, and then the wait ends. It is not called any more when the
    body begins. None: the client is not watched. `route` is for the log: the method and the template of the
    path.

    Raises:
        Refusal: It could not be had, or was lost.
    """
    watch = Watch(gone, route, name)
    lease = await _acquired(session, name, recipe, watch, route)
    begun, raised, held = False, None, Held(session, lease, route=route)
    try:
        # Nothing may be awaited before this: it is what lets go again.
        async with lease:
            await watch.ended()
            if watch.gone:
                raise hung_up(route, name)
            begun = True
            try:
                yield held
            except BaseException as error:
                raised = error
                raise
    except LockLostError as error:
        if error is raised:
            raise
        if not held.over:
            raise lost(begun=begun) from error
    except (BackendError, SessionClosedError) as error:
        if error is raised:
            raise
        if not held.over:  # else it was told
            held.unreleased(error)
    finally:
        if begun:
            holds_of(session).add(held.lasted, name, recipe.family)
        del raised  # which would keep this frame, and so itself


async def _acquired(
    session: Session, name: str, recipe: Recipe | LimitsRecipe, watch: Watch, route: str
) -> Lease:
    pending: Pending[Lease] = recipe.lock(session, name).acquire(blocking_timeout=recipe.blocking_timeout)
    try:
        return await watch.unless_gone(pending)
    except LockTimeoutError as error:
        raise recipe.conflict.refusal(error, holds_of(session).median(name, recipe.family)) from error
    except (SessionClosedError, BackendError) as error:
        if isinstance(error, BackendError):
            tell_refused(log_level(session, error), route, name, error)
        raise unavailable(error) from error


def tell_refused(level: int, route: str, name: str, error: BaseException) -> None:
    """A request of this route got 503, because the server did not answer for that name."""
    together.tell(
        log,
        level,
        "a request was refused (%s, which needs %r): %s",
        *(route, name, error),
        name=f"{route} ({name!r})",
        many="%d requests were refused: %s: %s",
        why=str(error),
    )


def hung_up(route: str, name: str) -> Refusal:
    """The answer to a client that has hung up. The log tells it, because uvicorn logs no such request."""
    together.tell(
        log,
        logging.INFO,
        "%s ended with %d: its client hung up while it waited for %r",
        *(route, CLIENT_CLOSED_REQUEST, name),
        name=f"{route} ({name!r})",
        many="%d requests ended with %s: %s",
        why=f"{CLIENT_CLOSED_REQUEST}, because their clients hung up while they waited",
    )
    return Refusal(CLIENT_CLOSED_REQUEST, "The client has hung up.")


@final
class Watch:
    """Looks whether the client is still there while its request waits. Route and name are for the log."""

    __slots__ = ("_gone", "_name", "_route", "_task", "gone")

    def __init__(self, gone: Gone | None, route: str, name: str) -> None:
        self._gone = gone
        self._route = route
        self._name = name
        self._task: asyncio.Task[None] | None = None
        self.gone = False

    async def unless_gone(self, pending: Awaitable[T]) -> T:
        """The result of the wait.

        Raises:
            Refusal: The client has hung up.
        """
        if self._gone is None:
            return await pending
        # In this task, and not in one of its own: a reentrant lock is that of the task that acquires it.
        with anyio.CancelScope() as scope:
            self._task = spawn(
                asyncio.get_running_loop(),
                self._look(self._gone, scope),
                name="aiolocks-disconnect",
                context=None,
            )
            try:
                # Returned even if the client has hung up in the same moment: then it has to be let go of.
                return await pending
            finally:
                self._task.cancel()
        raise hung_up(self._route, self._name)

    async def ended(self) -> None:
        """Returns when this watch does not look any more: from now on, the connection is the handler's."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _look(self, gone: Gone, scope: anyio.CancelScope) -> None:
        try:
            await gone()
        except Exception:
            # A framework may raise anything in `gone`: a request is served all the same.
            log.debug("whether the client is still there cannot be seen", exc_info=True)
            return
        self.gone = True
        scope.cancel()


@asynccontextmanager
async def opened(
    client: Client | Source, options: SessionOptions, *, close: bool | None = None
) -> AsyncGenerator[Session, None]:
    """A session on whatever was given.

    Args:
        client: A URL, or a function that makes a client: then the client is closed in the end. A client, or a
            session: it is left open.
        options: Of the session.
        close: Whether a client or a session that was given is closed, too. None: no.
    """
    if isinstance(client, Session):
        if options:
            raise TypeError(f"a Session has its own options: {', '.join(options)} can not be given with it")
        if close:
            async with client:
                yield client
        else:
            yield client
        return
    given: Any = client
    if isinstance(client, str) or callable(client):
        async with Session.from_url(given, **options) as session:
            yield session
        return
    try:
        make: Any = Session
        async with make(given, **options) as session:
            yield session
    finally:
        if close:
            await given.aclose()
