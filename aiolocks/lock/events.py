"""The events that a session tells its listeners, its log and its statistics."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from logging import DEBUG
from typing import Final, Protocol, final

from ..errors import LockTimeoutError, SessionClosedError
from .statistics import Counters

log = logging.getLogger("aiolocks.session")

_HOOKS: Final = (
    "on_acquired",
    "on_waiting",
    "on_released",
    "on_lost",
    "on_renewed",
    "on_waited",
    "on_timeout",
    "on_upgraded",
    "on_downgraded",
    "on_shrunk",
    "on_detached",
    "on_abandoned",
    "on_stolen",
    "on_recalled",
    "on_deadlock",
    "on_admitted",
    "on_refused",
    "on_left",
    "on_combined",
    "on_dropped",
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LockEvent:
    """An event, as a listener gets it.

    Attributes:
        kind: Kind of the lock, such as `"lock"`.
        name: Name of the lock. There may be very many names: think before you make it a label of a metric.
        fencing_token: Fencing token of the lease; None if there is none yet, and for `on_abandoned`.
        seconds: For `on_acquired`, `on_upgraded`, `on_waited`, `on_timeout`, `on_deadlock` and `on_admitted`:
            how long it waited. For `on_refused`: after how long it would be admitted. For `on_renewed`: how
            long it can be relied on. For `on_downgraded`, `on_shrunk`, `on_released`, `on_lost` and
            `on_detached`: how long it was held. For `on_stolen`: how long the holder before had it, by the
            server's clock. For `on_recalled`: how long its session has had it on the server. For
            `on_combined`: how long the run of the batch took.
        reason: For `on_lost`: the cause of the loss. For `on_stolen`: the holder before. For `on_waited`: how
            the wait ended, `"granted"`, `"timeout"`, `"cancelled"`, `"needless"`, `"closed"` or `"failed"`.
            For `on_deadlock`: all tasks that are part of it, with the locks that they hold and wait for. For
            `on_combined`: `"failed"` if the run has raised, `"again"` if its items then stay for another
            attempt. For `on_dropped`: `"kept no longer"` or `"unreadable"`.
        was: For `on_downgraded`: the kind of the lock before. For `on_upgraded`: the kind of the upgradable
            lease.
        cached: For `on_acquired`: the lease came without a request, because its session had kept it.
        interval: Lower and upper end of what the lease holds, as numbers. None for leases of other kinds than
            `RangeLock`.
        items: For `on_left`: how many items were left with the `Combiner`. For `on_combined`: how many items
            the batch had. For `on_dropped`: how many were dropped.
        pressure: For `on_left`: how many items of the name wait now, or are being run.
    """

    kind: str
    name: str
    fencing_token: int | None = None
    seconds: float = 0.0
    reason: str = ""
    was: str = ""
    interval: tuple[float, float] | None = None
    cached: bool = False
    items: int = 0
    pressure: int = 0


class Leased(Protocol):
    """A lease, as far as events tell of it."""

    @property
    def cached(self) -> bool:
        """It came without a request."""
        ...

    @property
    def kind(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def fencing_token(self) -> int: ...

    @property
    def interval(self) -> tuple[float, float] | None:
        """What it holds of a range, as users see it."""
        ...

    @property
    def stop_reason(self) -> str: ...

    def remaining(self) -> float:
        """Seconds that the holder may still rely on."""
        ...


@final
class Events:
    """The one place through which everything passes that others may want to know of.

    A listener has any of the methods of the table in the reference, which take one `LockEvent`. None may be a
    coroutine function: they are called in the middle of a step that must not be interrupted. An exception
    that a listener raises is logged and harms nothing.

    Invariants, so that a listener that counts begins and ends comes back to zero:
    - each `waiting` is followed by one `waited`, however the wait ends;
    - each `acquired` is followed by one of `released`, `lost`, `detached` and `abandoned`, and what ends has
      the kind that `acquired` or the last `downgraded` told of.

    All of them are called in the event loop of the session. Events that the end of the session cuts short are
    not told.
    """

    __slots__ = ("_hooks", "counters")

    def __init__(self, listeners: Iterable[object]) -> None:
        self.counters: Final = Counters()
        self._hooks: dict[str, list[Callable[[LockEvent], object]]] = {name: [] for name in _HOOKS}
        if not isinstance(listeners, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"listeners must be several, as in [listener], not {type(listeners).__name__}")
        for listener in listeners:
            self._add(listener)

    def _add(self, listener: object) -> None:
        if isinstance(listener, type):
            raise TypeError(f"a listener must be an object, not the class {listener.__name__}")
        found = False
        for name, hooks in self._hooks.items():
            hook = getattr(listener, name, None)
            if hook is None:
                continue
            found = True
            if not callable(hook) or inspect.iscoroutinefunction(hook):
                raise TypeError(f"{name} of a listener must be a plain method, not {hook!r}")
            hooks.append(hook)
        if not found:
            raise TypeError(f"a listener has any of {', '.join(_HOOKS)}; {type(listener).__name__} has none")

    def waiting(self, kind: str, name: str) -> None:
        log.debug("%s %r: waiting", kind, name)
        if hooks := self._hooks["on_waiting"]:
            _tell(hooks, LockEvent(kind=kind, name=name))

    def waits_long(self, kind: str, name: str, seconds: float, holders: str, endless: str) -> None:
        known = f": held {holders}" if holders else ""
        why = f"; {endless}" if endless else ""
        level = logging.WARNING if endless else logging.INFO
        log.log(level, "%s %r: waiting for %.1f s%s%s", kind, name, seconds, known, why)

    def waited(self, kind: str, name: str, seconds: float, reason: str) -> None:
        if hooks := self._hooks["on_waited"]:
            _tell(hooks, LockEvent(kind=kind, name=name, seconds=seconds, reason=reason))

    def stuck(self, kind: str, name: str, reason: str) -> None:
        log.warning("%s %r: a task waits for what no release can give it: %s", kind, name, reason)

    def deadlocked(self, kind: str, name: str, seconds: float, deadlock: str, *, log_it: bool) -> None:
        if log_it:
            log.warning("%s", deadlock)
        if hooks := self._hooks["on_deadlock"]:
            _tell(hooks, LockEvent(kind=kind, name=name, seconds=seconds, reason=deadlock))

    def no_deadlocks(self, reason: str) -> None:
        log.warning("deadlocks over several processes are not found now: %s", reason)

    def timed_out(self, kind: str, name: str, seconds: float) -> None:
        self.counters.timeouts += 1
        if hooks := self._hooks["on_timeout"]:
            _tell(hooks, LockEvent(kind=kind, name=name, seconds=seconds))

    def admitted(self, kind: str, name: str, seconds: float) -> None:
        """By a rate limit, after so long."""
        if hooks := self._hooks["on_admitted"]:
            _tell(hooks, LockEvent(kind=kind, name=name, seconds=seconds))

    def refused(self, kind: str, name: str, seconds: float) -> None:
        """By a rate limit, which would admit it after so long."""
        if hooks := self._hooks["on_refused"]:
            _tell(hooks, LockEvent(kind=kind, name=name, seconds=seconds))

    def left(self, kind: str, name: str, *, items: int, pressure: int) -> None:
        """So many were left with a combiner, where so many wait now."""
        if hooks := self._hooks["on_left"]:
            _tell(hooks, LockEvent(kind=kind, name=name, items=items, pressure=pressure))

    def combined(
        self, fencing_token: int, kind: str, name: str, *, items: int, seconds: float, reason: str
    ) -> None:
        """A batch of so many was run."""
        log.debug("%s %r: a batch of %d items was run in %.3f s", kind, name, items, seconds)
        if hooks := self._hooks["on_combined"]:
            event = LockEvent(
                kind=kind,
                name=name,
                fencing_token=fencing_token,
                items=items,
                seconds=seconds,
                reason=reason,
            )
            _tell(hooks, event)

    def dropped(self, kind: str, name: str, items: int, *, reason: str) -> None:
        """So many will not be run."""
        if hooks := self._hooks["on_dropped"]:
            _tell(hooks, LockEvent(kind=kind, name=name, items=items, reason=reason))

    def acquired(self, lease: Leased, seconds: float) -> None:
        self.counters.acquisitions += 1
        self.counters.wait.add(seconds)
        if log.isEnabledFor(DEBUG):
            log.debug("%s: acquired after %.3f s", _named(lease), seconds)
        if hooks := self._hooks["on_acquired"]:
            _tell(hooks, _of(lease, seconds, cached=lease.cached))

    def renewed(self, leases: Iterable[Leased]) -> None:
        hooks = self._hooks["on_renewed"]
        if hooks or log.isEnabledFor(DEBUG):
            for lease in leases:
                seconds = lease.remaining()
                log.debug("%s: renewed, %.3f s left", _named(lease), seconds)
                _tell(hooks, _of(lease, seconds))

    def stolen(self, lease: Leased, seconds: float, before: str) -> None:
        """After `acquired`: by force, from the holder `before`, who had it for so long."""
        log.warning("%s %r was taken by force: it was %s", lease.kind, lease.name, before)
        if hooks := self._hooks["on_stolen"]:
            _tell(hooks, _of(lease, seconds, before))

    def recalled(self, kind: str, name: str, fencing_token: int, seconds: float) -> None:
        """Another session asks for a lease that this one has kept for so long."""
        self.counters.recalls += 1
        log.debug("%s %r: another session asks for it, after %.3f s", kind, name, seconds)
        if hooks := self._hooks["on_recalled"]:
            _tell(hooks, LockEvent(kind=kind, name=name, fencing_token=fencing_token, seconds=seconds))

    def doubted(self, lease: Leased, reason: str) -> None:
        log.info("%s %r may be lost: %s", lease.kind, lease.name, reason)

    def stopping(self, lease: Leased, reason: str) -> None:
        log.warning("%s %r: its body is to stop: %s", lease.kind, lease.name, reason)

    def outlasted(self, lease: Leased) -> None:
        log.error(
            "%s %r: its body has not ended, and its lease has: another holder may be at work beside it (%s)",
            lease.kind,
            lease.name,
            lease.stop_reason,
        )

    def upgraded(self, lease: Leased, seconds: float, was: str) -> None:
        """After `acquired`: the writer that an upgradable lease has become for a while."""
        if log.isEnabledFor(DEBUG):
            log.debug("%s: upgraded", _named(lease))
        if hooks := self._hooks["on_upgraded"]:
            _tell(hooks, _of(lease, seconds, was=was))

    def shrunk(self, lease: Leased, seconds: float) -> None:
        if log.isEnabledFor(DEBUG):
            log.debug("%s: shrunk", _named(lease))
        if hooks := self._hooks["on_shrunk"]:
            _tell(hooks, _of(lease, seconds))

    def downgraded(self, lease: Leased, seconds: float, was: str) -> None:
        if log.isEnabledFor(DEBUG):
            log.debug("%s: downgraded", _named(lease))
        if hooks := self._hooks["on_downgraded"]:
            _tell(hooks, _of(lease, seconds, was=was))

    def released(self, lease: Leased, seconds: float) -> None:
        self.counters.hold.add(seconds)
        if log.isEnabledFor(DEBUG):
            log.debug("%s: released after %.3f s", _named(lease), seconds)
        if hooks := self._hooks["on_released"]:
            _tell(hooks, _of(lease, seconds))

    def lost(self, lease: Leased, seconds: float, reason: str) -> None:
        self.counters.losses += 1
        self.counters.hold.add(seconds)
        log.warning("%s %r was lost after %.3f s: %s", lease.kind, lease.name, seconds, reason)
        if hooks := self._hooks["on_lost"]:
            _tell(hooks, _of(lease, seconds, reason))

    def detached(self, lease: Leased, seconds: float) -> None:
        if hooks := self._hooks["on_detached"]:
            _tell(hooks, _of(lease, seconds))

    def abandoned(self, kind: str, name: str) -> None:
        if hooks := self._hooks["on_abandoned"]:
            _tell(hooks, LockEvent(kind=kind, name=name))


def _of(lease: Leased, seconds: float, reason: str = "", was: str = "", *, cached: bool = False) -> LockEvent:
    return LockEvent(
        kind=lease.kind,
        name=lease.name,
        fencing_token=lease.fencing_token,
        seconds=seconds,
        reason=reason,
        was=was,
        interval=lease.interval,
        cached=cached,
    )


def _named(lease: Leased) -> str:
    """As lines of the log name it: for a range, with its interval."""
    text = f"{lease.kind} {lease.name!r}"
    if lease.interval is not None:
        text += " from {} to {}".format(*lease.interval)
    return text


def _tell(hooks: list[Callable[[LockEvent], object]], event: LockEvent) -> None:
    for hook in hooks:
        try:
            hook(event)
        except Exception:
            log.exception("a listener failed: %r", hook)


def how_it_ended(error: BaseException | None) -> str:
    """How a wait has ended, in the words of `LockEvent.reason`; without an error, by a grant."""
    if error is None:
        return "granted"
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, LockTimeoutError):
        return "timeout"
    return "closed" if isinstance(error, SessionClosedError) else "failed"
