"""Every error that aiolocks raises.

```
LockError
 ├─ LockTimeoutError (also TimeoutError)   not acquired within blocking_timeout
 ├─ DeadlockError                          waiting would never end: the task itself holds what is in the way,
 │                                          or tasks wait for each other
 ├─ LockLostError                          had, and can no longer be relied on
 ├─ LockNotOwnedError                      release, extend or adopt of what is not held
 ├─ SessionClosedError                     the session ended while waiting
 ├─ DuplicateJobError                      UniqueJob: somebody is already doing it
 ├─ StaleFenceError                        a write with an older fencing token than one already seen
 ├─ FingerprintError                       SingleFlight: the key is in use for another request
 ├─ RemoteCallError                        SingleFlight, Combiner: the runner elsewhere raised
 ├─ ResultNotKeptError                     it was done, and its value could not be kept for others
 ├─ CombinerFullError                      Combiner: as many items wait as may
 ├─ ConfigurationError (also ValueError)   the server or the arguments do not allow what was asked
 └─ BackendError                           Redis did not answer, or refused
```

Bad arguments raise `TypeError` or `ValueError` when the object is made, before any I/O.
No message ever carries a token. On the page "Troubleshooting by error message" of the documentation, each
message has a row with its cause and the remedy, in the section of its error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._visible import in_line

if TYPE_CHECKING:
    from ._deadlocks import Deadlock
    from ._holders import HolderInfo

__all__ = [
    "BackendError",
    "CombinerFullError",
    "ConfigurationError",
    "DeadlockError",
    "DuplicateJobError",
    "FingerprintError",
    "LockError",
    "LockLostError",
    "LockNotOwnedError",
    "LockTimeoutError",
    "RemoteCallError",
    "ResultNotKeptError",
    "SessionClosedError",
    "StaleFenceError",
]


class LockError(Exception):
    """Base class of every error that aiolocks raises.

    Its message is one line: what others have written in it (a host name, the words of a server) is escaped.
    The attributes of an error have it as it is.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(in_line(one) if isinstance(one, str) else one for one in args))

    def __reduce__(self) -> tuple[Any, ...]:
        # The subclasses build their messages from keyword arguments, which the default way of
        # pickling an exception would not pass: what travels is the finished message and the fields.
        return _restore, (type(self), self.args, self.__dict__.copy())


def _restore(cls: type[LockError], args: tuple[Any, ...], fields: dict[str, Any]) -> LockError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(fields)
    return error


class LockTimeoutError(LockError, TimeoutError):
    """Raised when a lock was not acquired within its `blocking_timeout`.

    Attributes:
        name: Name of the lock.
        blocking_timeout: Seconds that the wait was allowed to take.
        remaining: Seconds that are left of the holder's lease if it is not renewed. If no task holds the
            name: seconds for which `at_least` keeps it. For a `RateLimit`: seconds until the turn would come.
            None if this is unknown, or if the key has lost its ttl; then the message says so, with the
            command that frees the name.
        holders: The holders of the lock, as the server or the session knew them last, as `HolderInfo`; the
            first has held it for the longest time. Their times are of now. If there are many, only some.
            Empty if none is known, or if other waiters come first.
        detail: More about the cause: for a `Redlock`, the answer of each of its masters. Empty for most
            kinds.
        full: For `Limits`, the key that was full in the last answer of the server; of several, the one with
            the smallest cap. None if other waiters for the same keys come first, and for every other kind.
    """

    holders: tuple[HolderInfo, ...] = ()

    def __init__(
        self,
        kind: str,
        name: str,
        *,
        blocking_timeout: float,
        remaining: float | None,
        detail: str = "",
        holders: Sequence[HolderInfo] = (),
        by_itself: bool = False,
        full: str | None = None,
        endless: str = "",
        kept: bool = False,
        reason: str = "",
        was_not: str = "acquired",
        silent: float = 0.0,
    ) -> None:
        self.full = full
        self.name = name
        self.blocking_timeout = blocking_timeout
        self.remaining = remaining
        self.detail = detail
        self.holders = tuple(holders)
        known = _in_words(self.holders)
        if reason:
            pass
        elif by_itself:
            reason = f"held by this task itself; {_advice(kind)}"
        elif known:
            reason = f"held {known}"
        elif kept and remaining is not None:
            reason = f"kept by at_least for {remaining:.3f} s more; nobody holds it"
        elif remaining is not None:
            reason = f"it stays taken for {remaining:.3f} s more unless renewed"
        else:
            reason = "another holder has it, or earlier waiters go first"
        if endless:
            reason = f"{reason}; {endless}" if known or by_itself else endless
        elif remaining is not None and (by_itself or known):
            reason += f"; the lease has {remaining:.3f} s left unless renewed"
        if silent:
            reason = f"{reason}; Redis has not answered for {silent:.1f} s"
        when = f"within {blocking_timeout:g} s" if blocking_timeout else "at the first try"
        more = f" ({detail})" if detail else ""
        super().__init__(f"{kind} {name!r} was not {was_not} {when}: {reason}{more}")


def _in_words(holders: Sequence[HolderInfo]) -> str:
    if not holders:
        return ""
    from ._holders import in_words  # noqa: PLC0415 - only where a wait fails, and an import takes its time

    return in_words(holders)


def _advice(kind: str) -> str:
    """The advice for a task that waits for a lock that it holds itself."""
    if kind == "Lock":
        return "pass the lease on, or use a ReentrantLock"
    if kind.endswith(".writer"):
        return "pass the lease on, or take the upgradable lock and its upgrade()"
    return "pass the lease on"


class DeadlockError(LockError):
    """Raised instead of a wait that would never end.

    There are two cases. The task waits for itself: the wait has no `blocking_timeout`, and the same task is
    in the body of a lease that excludes what it wants. This lease does not end by itself: it is held and
    renewed, and has no `max_hold`. Or several tasks wait for each other: the session has
    `on_deadlock="raise"`, and this waiter is the youngest of the deadlock.

    Attributes:
        name: Name of the lock that was wanted.
        held: The lock that the task itself holds, such as `Lock 'orders'`. Empty if the deadlock has other
            tasks.
        deadlock: The tasks that wait for each other, as a `Deadlock`. None if the task waits for itself.
    """

    def __init__(self, kind: str, name: str, *, held: str = "", deadlock: Deadlock | None = None) -> None:
        self.name = name
        self.held = held
        self.deadlock = deadlock
        if deadlock is not None:
            super().__init__(
                f"the wait for {kind} {name!r} would never end: {deadlock}; take the locks in the same order "
                "everywhere, or all at once with a MultiLock"
            )
            return
        super().__init__(
            f"the wait for {kind} {name!r} would never end: this task itself holds {held}, which excludes "
            f"it; {_advice(kind)}"
        )


class LockLostError(LockError):
    """Raised when a lease that was held can no longer be relied on.

    Attributes:
        name: Name of the lock.
        reason: The cause of the loss.
        stolen_by: The holder that took it by force, with `acquire(steal=True)`. None if the lease was lost in
            another way, or if this holder is unknown.
    """

    stolen_by: HolderInfo | None = None

    def __init__(
        self, kind: str, name: str, reason: str, *, lost: bool = True, stolen_by: HolderInfo | None = None
    ) -> None:
        self.name = name
        self.reason = reason
        self.stolen_by = stolen_by
        super().__init__(f"{kind} {name!r} {'was lost' if lost else 'is not held'}: {reason}")


class LockNotOwnedError(LockError):
    """Raised by release, extend or adopt if the lease is not held, or no longer held.

    The end of an `async with` raises it, too, if an exit in another task has already released the lease.

    Attributes:
        name: Name of the lock.
        reason: Why it is not held.
        stolen_by: The holder that took it by force, as in `LockLostError`.
    """

    stolen_by: HolderInfo | None = None

    def __init__(self, kind: str, name: str, reason: str, *, stolen_by: HolderInfo | None = None) -> None:
        self.name = name
        self.reason = reason
        self.stolen_by = stolen_by
        super().__init__(f"{kind} {name!r} is not owned: {reason}")


class SessionClosedError(LockError):
    """Raised to a task that waits in a closed session, or asks it for something."""


class DuplicateJobError(LockError):
    """Raised when the job of a `UniqueJob` already runs, waits or is done.

    Attributes:
        key: Key of the job.
        reason: What makes this call a duplicate.
    """

    def __init__(self, key: str, reason: str) -> None:
        self.key = key
        self.reason = reason
        super().__init__(f"job {key!r} is a duplicate: {reason}")


class StaleFenceError(LockError):
    """Raised when a write has an older fencing token than an earlier write: its holder is too late.

    Attributes:
        name: Name of the register.
        fencing_token: The token of this write.
        seen: The newest token that has been seen.
    """

    def __init__(self, name: str, *, fencing_token: int, seen: int) -> None:
        self.name = name
        self.fencing_token = fencing_token
        self.seen = seen
        super().__init__(
            f"FencedRegister {name!r} refused the write: fencing token {fencing_token} is older than {seen}, "
            "which was seen already; the writer has lost its lock"
        )


class FingerprintError(LockError):
    """Raised when the key of a `SingleFlight` is in use for a request with another fingerprint.

    Attributes:
        key: The key.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"SingleFlight key {key!r} is in use for another request: its fingerprint differs. "
            "Give each request a key of its own"
        )


class RemoteCallError(LockError):
    """Raised when the function ran in another process for this call, and raised there.

    Attributes:
        type_name: Name of the type of its exception, such as `"builtins.ValueError"`.
        message: `str()` of its exception.
    """

    def __init__(self, type_name: str, message: str) -> None:
        self.type_name = type_name
        self.message = message
        super().__init__(f"the runner elsewhere raised {type_name}: {message}")


class ResultNotKeptError(LockError):
    """Raised when the call of a `SingleFlight` was done, but others cannot have its value.

    The work is done. A new call would do it again, so the key stays taken: for `keep` seconds each call with
    this key gets this error, and the function does not run.

    A caller of a `Combiner` also gets it, if its item was done and its result cannot be had.

    Attributes:
        key: The key of the call, or the name of the `Combiner`.
        reason: Why the value was not kept, with the type of the error that reported it.
        here: Whether the function ran in this session; then `value` is its value.
        value: The value of the function if it ran in this session, else None.
    """

    def __init__(
        self,
        key: str,
        reason: str,
        *,
        here: bool = False,
        value: object = None,
        what: str = "the call of SingleFlight key",
    ) -> None:
        self.key = key
        self.reason = reason
        self.here = here
        self.value: Any = value
        where = "this error has it as its value" if here else "only the process that made it has it"
        super().__init__(
            f"{what} {key!r} was done, but its value could not be kept for others ({reason}): {where}"
        )


class CombinerFullError(LockError):
    """Raised when an item was not left with a `Combiner`, because the allowed number of items already waits.

    Attributes:
        name: Name of the combiner.
        pressure: How many items wait or are being run.
        most_waiting: How many are allowed.
    """

    def __init__(self, name: str, *, pressure: int, most_waiting: int) -> None:
        self.name = name
        self.pressure = pressure
        self.most_waiting = most_waiting
        super().__init__(
            f"Combiner {name!r} is full: {pressure} items wait, and at most {most_waiting} may. Try again "
            "later, or let more workers run: with drain(), or larger batches with most="
        )


class ConfigurationError(LockError, ValueError):
    """Raised when the server or the arguments do not allow what was asked. It names the setting to change."""


class BackendError(LockError):
    """Raised when Redis did not answer in time, or refused. The driver's error is the `__cause__`.

    Attributes:
        transient: Whether the same request may succeed later without a change by a person, so that
            candidates, observers and schedules go on. True while the server is away, loads its data, runs a
            long script, cannot save its data, has too few replicas or too many clients, is a replica, or is
            out of memory. Also True if a password or a certificate is refused that was accepted before. False
            if a person must act first, such as for a missing permission or a certificate that has expired.
    """

    transient: bool = True
