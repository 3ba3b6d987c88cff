"""Every error that aiolocks raises.

```
LockError
 ├─ LockTimeoutError (also TimeoutError)   not had within blocking_timeout
 ├─ LockLostError                          had, and can no longer be relied on
 ├─ LockNotOwnedError                      release, extend or adopt of what is not held
 ├─ SessionClosedError                     the session ended while waiting
 ├─ ConfigurationError (also ValueError)   the server or the arguments do not allow what was asked
 └─ BackendError                           Redis did not answer, or refused
```

Bad arguments raise `TypeError` or `ValueError` when the object is made, before any I/O.
No message ever carries a token.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BackendError",
    "ConfigurationError",
    "LockError",
    "LockLostError",
    "LockNotOwnedError",
    "LockTimeoutError",
    "SessionClosedError",
]


class LockError(Exception):
    """Base class of every error that aiolocks raises."""

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
    """Raised when a lock was not had within its `blocking_timeout`.

    Attributes:
        name: Name of the lock.
        blocking_timeout: How long the wait was allowed to take, in seconds.
        remaining: Seconds that the holder's lease still has if it is not renewed; None when unknown.
    """

    def __init__(self, kind: str, name: str, *, blocking_timeout: float, remaining: float | None) -> None:
        self.name = name
        self.blocking_timeout = blocking_timeout
        self.remaining = remaining
        if remaining is None:
            holder = "it is held elsewhere, or others who wait go first"
        else:
            holder = f"its holder's lease has {remaining:.3f} s left unless renewed"
        when = f"within {blocking_timeout:g} s" if blocking_timeout else "at the first try"
        super().__init__(f"{kind} {name!r} was not acquired {when}: {holder}")


class LockLostError(LockError):
    """Raised when a lease was had and can no longer be relied on.

    Attributes:
        name: Name of the lock.
        reason: What showed the loss.
    """

    def __init__(self, kind: str, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"{kind} {name!r} was lost: {reason}")


class LockNotOwnedError(LockError):
    """Raised on release, extend or adopt of what is not held (any more).

    Attributes:
        name: Name of the lock.
        reason: Why it is not held.
    """

    def __init__(self, kind: str, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"{kind} {name!r} is not owned: {reason}")


class SessionClosedError(LockError):
    """Raised to whoever waits in, or asks something of, a session that is closed."""


class ConfigurationError(LockError, ValueError):
    """Raised when the server or the arguments do not allow what was asked; names the setting to change."""


class BackendError(LockError):
    """Raised when Redis did not answer in time, or refused; the driver's error is the `__cause__`."""
