"""Possession as a user has it: one object per acquisition."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..errors import LockError, LockLostError, LockNotOwnedError
from .arguments import SHORTEST_TTL, Metadata, Seconds, check_at_least, check_grace, seconds, user_metadata
from .changes import Changes
from .clock import milliseconds
from .handle import Handle
from .letting_go import LettingGo
from .misuse import AsyncOnly
from .notes import note
from .open_blocks import told_at_exit
from .scope import BodyScope
from .states import DETACHED, LeaseState

if TYPE_CHECKING:
    from .._transport import Granted
    from .binding import Binding
    from .possession import Possession


class Lease(AsyncOnly):
    """Possession of a lock; made by acquiring, never by hand.

    It may be relied on until its local deadline: the time right before the request that the server confirmed
    last, plus the ttl, less a drift of 1 % and 2 ms. While it is held it is renewed each third of its ttl.

    `async with lease:` cancels the body when the lease is lost, or when the lock's `grace` begins, raises
    `LockLostError` once the body has unwound, and releases on exit. The body's own exception, and a
    cancellation from outside, always win; the loss is then a note on them.
    """

    _elsewhere = "hand it over by `handle = lease.detach()` here and `await lock.adopt(handle)` there"

    __slots__ = ("_changing", "_engine", "_letting_go", "_metadata", "_on_lost", "_possession")

    def __init__(self, binding: Binding[Any], possession: Possession, grant: Granted) -> None:
        self._engine = binding.engine
        self._metadata = binding.metadata
        self._on_lost = binding.options.on_lost
        self._possession = possession
        self._changing: Changes | None = None  # from the first change on
        self._letting_go: LettingGo | None = None  # from the first try on

    @property
    def name(self) -> str:
        """Name of the lock."""
        return self._possession.name

    @property
    def kind(self) -> str:
        """Kind of the lock, as `"lock"`."""
        return self._possession.kind

    @property
    def ttl(self) -> float:
        """Seconds that each renewal asks for; `extend` may change it."""
        return self._possession.term.ttl

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The user's metadata, the session's and the lock's, as acquired or as annotated since; read-only."""
        return MappingProxyType(dict(self._metadata))

    @property
    def token(self) -> str:
        """The secret of this possession. A process that has it can release the lock: do not log it."""
        return self._possession.claim.token

    @property
    def fencing_token(self) -> int:
        """Larger than that of every earlier lease on this name; what a store checks to refuse a late holder.

        The server's time in microseconds, or one more than the last token where that is larger. So it rises
        also after the server restarted empty or failed over, unless its clock then stands behind an earlier
        grant.
        """
        return self._possession.fencing_token

    @property
    def state(self) -> LeaseState:
        """The state of the lease now; LOST as soon as its local deadline has passed."""
        return self._possession.state

    def remaining(self) -> float:
        """Seconds that the holder may still rely on; 0.0 once lost or let go. No I/O."""
        return self._possession.remaining()

    def ensure_held(self) -> None:
        """Returns if the lease may be relied on now. No I/O, so that it fits right before every write.

        Raises:
            LockLostError: It was lost, or let go.
        """
        self._possession.ensure_held()

    async def owned(self) -> bool:
        """Asks the server whether this lease holds the lock.

        Raises:
            BackendError: Redis refused, is not there, or was silent for the session's `command_timeout`.
            SessionClosedError: The session is closed.
        """
        self._possession.ensure_here()
        return await self._engine.ask(self._possession.claim.owned())

    async def extend(self, ttl: Seconds | None = None) -> None:
        """Sets a new ttl from now on, which the renewals that follow keep.

        Until the answer is here, the lease counts on the shorter of its old time and the new one; so it does
        after a cancellation or an error.

        Args:
            ttl: Seconds from now, 50 ms to ten years, and no less than the lock's `at_least` and twice its
                `grace`; None for the ttl that it has.

        Raises:
            TypeError, ValueError: The ttl is not as it should be; before any I/O.
            LockLostError: It is no longer ours.
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
        """Changes what stands beside the lease on the server, where `session.inspect()` and the CLI show it.

        The new metadata replace those of the lock and those of an earlier annotation. The session's
        metadata stays beside it, and so does the holder's host, pid and task. The lease lasts as long as
        before; renewals keep what was annotated, and `lock.adopt` replaces it by the metadata of that lock.

        Args:
            metadata: JSON values, readable by everybody who can read the key.

        Raises:
            TypeError: It is not a mapping from str to JSON values.
            ConfigurationError: With the session's, it has more bytes than the session's `largest_metadata`.
            LockLostError: It is no longer ours.
            BackendError: Redis refused, or did not answer within the session's `command_timeout`.

        After a cancellation or an error the server may have done it or not; the lease is held as before, and
        asked again, it does what is left.
        """
        settings = self._engine.settings
        user = {**settings.metadata, **user_metadata(metadata)}
        settings.user_json(user)
        await self._changes.annotate({"user": user})
        self._metadata = user

    async def release(self) -> None:
        """Lets go. Idempotent: once it was released, every further call does nothing.

        A lock with an `at_least` that has not passed yet keeps the name until then; nobody holds it any more.

        Waits for the server's confirmation, up to the lease's own deadline. A cancellation is held up for at
        most 1 s; the release goes on by itself after it.

        Raises:
            LockNotOwnedError: It was lost, or handed over by `detach`.
            BackendError: Not confirmed by the lease's deadline; the ttl frees the name.
        """
        self._possession.ensure_here()
        error = await self._let_go(cancelled_by=None)
        if error is not None:
            raise error

    def _let_go(
        self, *, cancelled_by: asyncio.CancelledError | None
    ) -> Coroutine[Any, Any, LockError | None]:
        if self._letting_go is None:
            self._letting_go = LettingGo(self._possession)
        return self._letting_go.done(cancelled_by=cancelled_by)

    async def wait_lost(self) -> None:
        """Returns when the lease is lost. For one that was let go it never does: cancel it then."""
        await self._possession.wait_lost()

    def detach(self) -> str:
        """Stops looking after the lease here, and gives a handle for `lock.adopt(handle)` to take it up.

        The handle is as secret as the token. The scope that entered the lease leaves it alone from now on;
        until it is adopted, in this process or another, the ttl runs.

        Raises:
            LockLostError: It was lost, or let go.
        """
        self._possession.detach()
        at_least_ms = self._possession.claim.at_least_ms
        return Handle(self.kind, self.name, self.token, at_least_ms).encode()

    async def __aenter__(self) -> Self:
        self.enter()
        return self

    def enter(self) -> asyncio.Task[Any]:
        """Enters the lease, and returns the task that has entered."""
        possession = self._possession
        if possession.scope is not None:
            raise RuntimeError(f"this lease of {possession.label} {self.name!r} was entered before")
        if possession.remaining() <= 0.0:
            if possession.state is LeaseState.LOST:
                possession.lose(possession.why_over())  # the next waiters need not wait for this task
            possession.ensure_held()
        possession.scope = scope = BodyScope(self._engine.loop, cancels=self._on_lost == "cancel")
        if possession.term.stopping:
            scope.cancel(possession.stop_reason)
        if possession.watch is not None:
            self._engine.entered.add(scope.task, possession.watch)
            if self._engine.ward is not None and self._on_lost == "cancel":
                self._engine.ward.enter(possession.watch, possession.term)
        return scope.task

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        scope = self._possession.scope
        if scope is None:
            raise RuntimeError("this lease was not entered")
        if scope.left:
            label, name = self._possession.label, self.name
            await told_at_exit(LockNotOwnedError(label, name, "its block was left in another task"), exc)
            return
        cancelled_by_us = scope.leave(exc)
        self._engine.entered.remove(scope.task, self._possession)
        try:
            error = await self._release_on_exit(exc)
        finally:
            scope.ended = True
        if scope.told and self._possession.stop_reason and not isinstance(error, LockLostError):
            error = self._stopped(exc, error)
        if error is None:
            return
        if exc is not None and not cancelled_by_us:
            note(exc, f"aiolocks: {error}")  # the body's own exception wins
        elif isinstance(error, LockLostError) and self._on_lost == "ignore":
            pass  # the log has it
        else:
            raise error from error.__cause__

    def _stopped(self, exc: BaseException | None, unreleased: LockError | None) -> LockError | None:
        """How a body ends that was told to stop; one that has ended well was alone up to its end."""
        if exc is None:
            return unreleased
        error = self._possession.loss(self._possession.stop_reason)
        error.__cause__ = unreleased
        return error

    async def _release_on_exit(self, exc: BaseException | None) -> LockError | None:
        possession = self._possession
        if possession.end is DETACHED:
            return None
        cancelled_by = exc if isinstance(exc, asyncio.CancelledError) else None
        try:
            possession.ensure_this_process()
            if possession.scope is None or not possession.scope.entered_here:
                possession.ensure_here()
            error = await self._let_go(cancelled_by=cancelled_by)
        except LockNotOwnedError as not_here:  # a fork of the holder
            return not_here
        if isinstance(error, LockNotOwnedError):
            before = f"{possession.stop_reason}; " if possession.stop_reason else ""
            reason = "" if possession.end is None else possession.end.reason
            return self._possession.loss(f"{before}{reason}")
        return error

    def __repr__(self) -> str:
        left = f" remaining={self.remaining():.3f}" if self._possession.live else ""
        return f"<Lease {self.kind} {self.name!r} {self.state.name} fencing_token={self.fencing_token}{left}>"
