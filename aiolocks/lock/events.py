"""The events that a session tells its listeners, its log and its statistics."""

from __future__ import annotations

import asyncio
import inspect
import logging
import weakref
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable
from contextvars import Context
from dataclasses import dataclass, field
from logging import DEBUG
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack, final

from .._logs import get_logger
from ..errors import LockTimeoutError, SessionClosedError
from . import together
from .statistics import BOUNDS, Counters

if TYPE_CHECKING:
    from .._holders import HolderInfo
    from .lease import Possession

log = get_logger("aiolocks.session")

HOOKS: Final = (
    "on_acquired",
    "on_waiting",
    "on_released",
    "on_lost",
    "on_renewed",
    "on_waited",
    "on_timeout",
    "on_not_acquired",
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
    "on_hit",
    "on_tick",
    "on_ran",
)


_LOST: Final = "%s %r was lost after %.3f s: %s"
_WAITS_BY_NATURE: Final = ("leadership",)
"""A candidate waits for as long as another one leads: that is no news."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LockEvent:
    """An event, as a listener gets it.

    Attributes:
        kind: Kind of the lock, such as `"lock"`.
        name: Name of the lock. There may be very many names: think before you make it a label of a metric.
        fencing_token: Fencing token of the lease; None if there is none yet, and for `on_abandoned`.
        seconds: A time, which each event measures in its way; 0 for the other events.
            How long the call has waited: `on_acquired`, `on_upgraded`, `on_waited`, `on_timeout`,
            `on_not_acquired`, `on_deadlock`, `on_admitted`.
            How long the lease was held: `on_downgraded`, `on_shrunk`, `on_released`, `on_lost`,
            `on_detached`; of `on_recalled`, by its session; of `on_stolen`, by the holder before, by the
            server's clock.
            How long a run took: `on_combined`, `on_ran`.
            How late a tick is: `on_tick`.
            How long the lease can be relied on: `on_renewed`.
            After how long the request would be admitted: `on_refused`.
        reason: For `on_lost`: the cause of the loss. For `on_released`: empty, or `"unconfirmed"` if the
            server did not confirm the release before the lease ended. For `on_stolen`: the holder before.
            For `on_waited`: how the wait ended, `"granted"`, `"timeout"`, `"cancelled"`, `"needless"`,
            `"closed"` or `"failed"`. For `on_not_acquired`: the same without `"granted"`, and `"refused"` for
            a single try. For `on_deadlock`: all tasks that are part of it, with the locks that they hold and
            wait for. For `on_combined`: `"failed"` if the run has raised, `"again"` if its items then stay
            for another attempt. For `on_dropped`: `"kept no longer"` or `"unreadable"`. For `on_ran`: the
            outcome, as `TickRecord.outcome`. For `on_hit`: `"fresh"`, or `"due"` if the value is being
            replaced.
        was: For `on_downgraded`: the kind of the lock before. For `on_upgraded`: the kind of the upgradable
            lease.
        cached: For `on_acquired`: the lease came without a request, because its session had kept it.
        interval: Lower and upper end of what the lease holds, as numbers. None for leases of other kinds than
            `RangeLock`.
        items: For `on_left`: how many items were left with the `Combiner`. For `on_combined`: how many items
            the batch had. For `on_dropped`: how many were dropped. For `on_tick`: how many ticks were missed
            before it.
        pressure: For `on_left`: how many items of the name wait now, or are being run.
        lease: Stands for the lease in each of its events: it can be hashed, and is equal to no other one. It
            does not keep the lease. None for events that have no lease, and for `on_abandoned`.
        holders: For `on_waiting`, `on_acquired` and `on_not_acquired`: the holders that were in the way when
            the wait began, or, if none was known then, when it ended. Empty unless a listener of the session
            has an attribute `wants_holders` that is true: reading them takes time.
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
    lease: weakref.ref[Any] | None = field(default=None, compare=False, repr=False)
    holders: tuple[HolderInfo, ...] = ()


class _Fields(TypedDict, total=False):
    """What few events have."""

    fencing_token: int | None
    seconds: float
    reason: str
    items: int
    lease: weakref.ref[Any] | None
    holders: tuple[HolderInfo, ...]


@final
class Events:
    """The one place through which everything passes that listeners, the log and the counters may tell.

    A listener has any of the methods of the table in the reference, which take one `LockEvent`. None may be a
    coroutine function: these methods are called in a step that must not be interrupted. Whatever a
    listener raises is logged and harms nothing, also where it is no `Exception`, as a panic of an extension
    in Rust. `SystemExit` and `KeyboardInterrupt` pass: then no lock stays held that no task gets.

    What is told of a lease, or of a wait for one, is told in a copy of the context of its acquire, whichever
    timer or reply has caused it: never in that context itself, which a listener may enter again by what it
    does with the lease.

    Invariants, so that a listener that counts begins and ends comes back to zero:
    - each `waiting` is followed by one `waited`, however the wait ends;
    - each `acquired` is followed by one of `released`, `lost`, `detached` and `abandoned`, and what ends has
      the kind that `acquired` or the last `downgraded` told of;
    - each acquire that has begun ends with one of `acquired` and `not_acquired`, in the task that has asked.

    All of them are called in the event loop of the session. Events that the end of the session cuts short are
    not told.
    """

    __slots__ = (
        "_hooks",
        "_on_acquired",
        "_on_released",
        "_told",
        "counters",
        "tells_waited",
        "wants_holders",
    )

    def __init__(self, listeners: Iterable[object]) -> None:
        self.counters: Final = Counters()
        self.wants_holders = False
        self._told: set[Hashable] = set()
        self._hooks: dict[str, list[Callable[[LockEvent], object]]] = {name: [] for name in HOOKS}
        self._on_acquired, self._on_released = self._hooks["on_acquired"], self._hooks["on_released"]
        if not isinstance(listeners, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"listeners must be several, as in [listener], not {type(listeners).__name__}")
        for listener in listeners:
            self._add(listener)
        self.tells_waited = self.wants_holders or bool(self._hooks["on_waited"])

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
            some = ", ".join(HOOKS[:6])
            raise TypeError(
                f"a listener has any of {some} and the other methods that the reference lists; "
                f"{type(listener).__name__} has none"
            )
        self.wants_holders = self.wants_holders or bool(getattr(listener, "wants_holders", False))

    def tell(
        self, hook: str, kind: str, name: str, *, context: Context | None = None, **fields: Unpack[_Fields]
    ) -> None:
        """Tells the listeners that have that method, and nothing else of the session: see `LockEvent`."""
        if hooks := self._hooks[hook]:
            within(context)(_tell, hooks, LockEvent(kind=kind, name=name, **fields))

    def waiting(
        self,
        kind: str,
        name: str,
        holders: tuple[HolderInfo, ...] = (),
        *,
        context: Context | None = None,
    ) -> None:
        hooks = self._hooks["on_waiting"]
        if hooks or log.isEnabledFor(DEBUG):
            inside = within(context)
            inside(log.debug, "%s %r: waiting", kind, name)
            inside(_tell, hooks, LockEvent(kind=kind, name=name, holders=holders))

    def waits_long(
        self,
        kind: str,
        name: str,
        seconds: float,
        holders: str,
        endless: str,
        *,
        more: bool,
        context: Context | None = None,
    ) -> None:
        """`more`: other tasks of the session wait, too."""
        inside = within(context)
        known = f": held {holders}" if holders else ""
        if endless:
            inside(log.warning, "%s %r: waiting for %.1f s%s; %s", kind, name, seconds, known, endless)
            return
        inside(
            together.tell,
            log,
            logging.DEBUG if kind in _WAITS_BY_NATURE else logging.INFO,
            "%s %r: waiting for %.1f s%s",
            *(kind, name, seconds, known),
            name=f"{kind} {name!r}",
            many="%d tasks are waiting for %s or more: %s",
            why=f"{seconds:.1f} s",
            more=more,
        )

    def stuck(self, kind: str, name: str, reason: str, *, context: Context | None = None) -> None:
        inside = within(context)
        inside(log.warning, "%s %r: a task waits for what no release can give it: %s", kind, name, reason)

    def deadlocked(
        self,
        kind: str,
        name: str,
        seconds: float,
        deadlock: str,
        *,
        log_it: bool,
        context: Context | None = None,
    ) -> None:
        inside = within(context)
        if log_it:
            inside(log.warning, "%s", deadlock)
        if hooks := self._hooks["on_deadlock"]:
            inside(_tell, hooks, LockEvent(kind=kind, name=name, seconds=seconds, reason=deadlock))

    def no_deadlocks(self, reason: str) -> None:
        log.warning("deadlocks over several processes are not found now: %s", reason)

    def first(self, what: Hashable) -> bool:
        """Whether this is asked for the first time: of lines that a session logs once."""
        if what in self._told:
            return False
        self._told.add(what)
        return True

    def timed_out(self, kind: str, name: str, seconds: float, *, context: Context | None = None) -> None:
        self.counters.timeouts += 1
        self.tell("on_timeout", kind, name, seconds=seconds, context=context)

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

    def acquired(self, lease: Possession, seconds: float, holders: tuple[HolderInfo, ...] = ()) -> None:
        waits = self.counters.wait  # as `add`
        waits.counts[bisect_left(BOUNDS, seconds)] += 1
        waits.total += seconds
        if log.isEnabledFor(DEBUG):
            log.debug("%s: acquired after %.3f s", _named(lease), seconds)
        if hooks := self._on_acquired:
            _tell_holder(lease, hooks, _of(lease, seconds, cached=lease.cached, holders=holders))

    def taken(self, lease: Possession) -> None:
        """As `acquired`: from what the session keeps, at once; its tenure has counted it."""
        if log.isEnabledFor(DEBUG):
            log.debug("%s: acquired after %.3f s", _named(lease), 0.0)
        if hooks := self._on_acquired:
            _tell_holder(lease, hooks, _of(lease, 0.0, cached=True))

    def renewed(self, lease: Possession) -> None:
        hooks = self._hooks["on_renewed"]
        if hooks or log.isEnabledFor(DEBUG):
            seconds = lease.remaining()
            inside = within(lease.context)
            inside(log.debug, "%s: renewed, %.3f s left", _named(lease), seconds)
            inside(_tell, hooks, _of(lease, seconds))

    def stolen(self, lease: Possession, seconds: float, before: str) -> None:
        """After `acquired`: by force, from the holder `before`, who had it for so long."""
        log.warning("%s %r was taken by force: it was %s", lease.kind, lease.name, before)
        if hooks := self._hooks["on_stolen"]:
            _tell_holder(lease, hooks, _of(lease, seconds, before))

    def recalled(
        self, kind: str, name: str, fencing_token: int, seconds: float, *, context: Context | None = None
    ) -> None:
        """Another session asks for a lease that this one has kept for so long."""
        self.counters.recalls += 1
        inside = within(context)
        inside(log.debug, "%s %r: another session asks for it, after %.3f s", kind, name, seconds)
        if hooks := self._hooks["on_recalled"]:
            event = LockEvent(kind=kind, name=name, fencing_token=fencing_token, seconds=seconds)
            inside(_tell, hooks, event)

    def doubted(self, lease: Possession, reason: str, *, more: bool) -> None:
        """`more`, as for the next three: the session has other leases, which may have the same reason."""
        _say(
            lease,
            logging.INFO,
            "%s %r may be lost: %s",
            reason,
            many="%d leases may be lost: %s: %s",
            why=reason,
            more=more,
        )

    def stopping(self, lease: Possession, reason: str, *, more: bool) -> None:
        _say(
            lease,
            logging.WARNING,
            "%s %r: its body is to stop: %s",
            reason,
            many="the bodies of %d leases are to stop: %s: %s",
            why=reason,
            more=more,
        )

    def outlasted(self, lease: Possession, *, more: bool) -> None:
        _say(
            lease,
            logging.ERROR,
            "%s %r: its body has not ended, and its lease has: another holder may be at work beside it (%s)",
            lease.stop_reason,
            many="%d bodies have not ended, and their leases have: other holders may be at work beside them "
            "(%s): %s",
            why=lease.stop_reason,
            more=more,
        )

    def upgraded(self, lease: Possession, seconds: float, was: str) -> None:
        """After `acquired`: the writer that an upgradable lease has become for a while."""
        if log.isEnabledFor(DEBUG):
            log.debug("%s: upgraded", _named(lease))
        if hooks := self._hooks["on_upgraded"]:
            _tell_holder(lease, hooks, _of(lease, seconds, was=was))

    def shrunk(self, lease: Possession, seconds: float) -> None:
        hooks = self._hooks["on_shrunk"]
        if hooks or log.isEnabledFor(DEBUG):
            inside = within(lease.context)
            inside(log.debug, "%s: shrunk", _named(lease))
            inside(_tell, hooks, _of(lease, seconds))

    def downgraded(self, lease: Possession, seconds: float, was: str) -> None:
        hooks = self._hooks["on_downgraded"]
        if hooks or log.isEnabledFor(DEBUG):
            inside = within(lease.context)
            inside(log.debug, "%s: downgraded", _named(lease))
            inside(_tell, hooks, _of(lease, seconds, was=was))

    def released(self, lease: Possession, seconds: float) -> None:
        holds = self.counters.hold  # as `add`
        holds.counts[bisect_left(BOUNDS, seconds)] += 1
        holds.total += seconds
        if self._on_released or log.isEnabledFor(DEBUG):
            inside = within(lease.context)
            inside(log.debug, "%s: released after %.3f s", _named(lease), seconds)
            inside(_tell, self._on_released, _of(lease, seconds))

    def lost(self, lease: Possession, seconds: float, reason: str, *, more: bool, told: bool = True) -> None:
        """`told`: in a line of its own, or of several; else at `DEBUG` only."""
        self.counters.losses += 1
        self.counters.hold.add(seconds)
        inside = within(lease.context)
        if told:
            _say(
                lease,
                logging.WARNING,
                _LOST,
                *(seconds, reason),
                many="%d leases were lost: %s: %s",
                why=reason,
                more=more,
            )
        else:
            inside(log.debug, _LOST, lease.kind, lease.name, seconds, reason)
        if hooks := self._hooks["on_lost"]:
            inside(_tell, hooks, _of(lease, seconds, reason))

    def unconfirmed(self, lease: Possession, seconds: float, *, level: int, why: str = "") -> None:
        """Released in time, which the server did not confirm before the end of the lease: no loss.

        `why`: the last answer, where no error tells it.
        """
        self.counters.releases_unconfirmed += 1
        self.counters.hold.add(seconds)
        why = f" ({why})" if why else ""
        _say(
            lease,
            level,
            "%s %r was released after %.3f s, and Redis did not confirm that; its ttl frees it%s",
            *(seconds, why),
            many="%d leases were released, and Redis did not confirm that; their ttl frees them%s: %s",
            why=why,
        )
        if hooks := self._on_released:
            within(lease.context)(_tell, hooks, _of(lease, seconds, "unconfirmed"))

    def detached(self, lease: Possession, seconds: float) -> None:
        if hooks := self._hooks["on_detached"]:
            within(lease.context)(_tell, hooks, _of(lease, seconds))

    def abandoned(self, kind: str, name: str, *, context: Context | None = None) -> None:
        # Python hides the `ResourceWarning` by default, and the program may take the name for held.
        within(context)(
            together.tell,
            *(log, logging.WARNING, "%s %r was dropped without a release; its ttl frees it", kind, name),
            name=f"{kind} {name!r}",
            many="%d leases were dropped without a release; their ttl frees them%s: %s",
        )
        if hooks := self._hooks["on_abandoned"]:
            within(context)(_tell, hooks, LockEvent(kind=kind, name=name))


def _of(
    lease: Possession,
    seconds: float,
    reason: str = "",
    was: str = "",
    *,
    cached: bool = False,
    holders: tuple[HolderInfo, ...] = (),
) -> LockEvent:
    return LockEvent(
        kind=lease.kind,
        name=lease.name,
        fencing_token=lease.fencing_token,
        seconds=seconds,
        reason=reason,
        was=was,
        interval=lease.interval,
        cached=cached,
        lease=weakref.ref(lease),
        holders=holders,
    )


def _say(
    lease: Possession, level: int, line: str, *rest: object, many: str, why: str, more: bool = True
) -> None:
    """As `together.tell`, in the context of its acquire; `rest` follows its kind and its name in the line."""
    kind, name = lease.kind, lease.name
    named = {"name": f"{kind} {name!r}", "many": many, "why": why, "more": more}
    within(lease.context)(together.tell, log, level, line, kind, name, *rest, **named)


def _named(lease: Possession) -> str:
    """As lines of the log name it: for a range, with its interval."""
    text = f"{lease.kind} {lease.name!r}"
    if lease.interval is not None:
        text += " from {} to {}".format(*lease.interval)
    return text


def _tell(hooks: list[Callable[[LockEvent], object]], event: LockEvent) -> None:
    for hook in hooks:
        try:
            hook(event)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - a listener may raise anything, and an extension panics
            together.tell(
                log,
                logging.ERROR,
                "a listener failed: %r",
                hook,
                name=repr(event.name),
                many="a listener failed %d times: %s: %s",
                why=repr(hook),
                error=error,
            )


def _tell_holder(lease: Possession, hooks: list[Callable[[LockEvent], object]], event: LockEvent) -> None:
    """As `_tell`, in the task of the acquire, which has the lease only if this returns."""
    try:
        _tell(hooks, event)
    except BaseException as error:
        lease.give_back(f"a listener has raised {type(error).__name__}")
        raise


def within(context: Context | None) -> Callable[..., object]:
    """Calls what is given, in a copy of that context; None: in the present one."""
    return _here if context is None else context.copy().run


def _here(function: Callable[..., object], *arguments: Any, **named: Any) -> object:
    return function(*arguments, **named)


def how_it_ended(error: BaseException | None) -> str:
    """How a wait has ended, in the words of `LockEvent.reason`; without an error, by a grant."""
    if error is None:
        return "granted"
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, LockTimeoutError):
        return "timeout"
    return "closed" if isinstance(error, SessionClosedError) else "failed"
