"""Holding limits for the length of a request's handler; the same for all frameworks."""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Mapping
from typing import Any, Final, cast, final

from .. import Session
from ..errors import LockTimeoutError
from ..kinds.limits import LONGEST, Limits, checked_keys
from ..lock.options import LockOptions, Options, lock_name, not_for_locks, optional_seconds, reject_unknown
from ._refusing import SOON, UNAVAILABLE, Conflict, Conflicting, Refusal, RetryAfter, named, no_name

TOO_MANY: Final = "You have reached your limit. Try again later."
FULL: Final = "The service is at its limit. Try again later."


@final
class Reached:
    """The answer where a limit was reached; checked.

    Args:
        total: The key of all callers together.
        status: The HTTP status; None for 503 where the total was reached, and 429 where another key was.
        retry_after: The time for `Retry-After`; None for the measured one.
        detail: For the client; None for a text that says which of the two it is.

    Raises:
        TypeError, ValueError: An argument is wrong.
    """

    __slots__ = ("_chosen", "_detail", "_status", "_total")

    def __init__(
        self,
        total: str,
        *,
        status: Conflict | None = None,
        retry_after: RetryAfter | None = None,
        detail: str | None = None,
    ) -> None:
        self._total = total
        self._status = status
        self._detail = detail
        self._chosen = Conflicting(
            status=429 if status is None else status,
            retry_after=retry_after,
            detail=TOO_MANY if detail is None else detail,
        )

    @property
    def statuses(self) -> tuple[int, ...]:
        """The statuses of its refusals, and of a refusal because the server does not answer."""
        return 429 if self._status is None else self._status, UNAVAILABLE

    def refusal(self, error: LockTimeoutError, measured: float | None) -> Refusal:
        """What the user chose; else 429 where the caller's own limit was reached, 503 where the total was.

        Args:
            error: It ended the wait.
            measured: Seconds for which handlers have held these limits; None when unknown.
        """
        status, detail = (503, FULL) if error.full == self._total else (429, TOO_MANY)
        status = status if self._status is None else self._status
        detail = detail if self._detail is None else self._detail
        asked = self._chosen.asked(error)
        if asked is not None:
            return Refusal(status, detail, retry_after=math.ceil(asked))
        wait = SOON if measured is None else measured
        if measured is not None and error.holders and error.holders[0].held_for is not None:
            wait = measured - error.holders[0].held_for  # the oldest holder of the key that is full
        if error.remaining is not None:
            wait = min(wait, error.remaining)
        return Refusal(status, detail, retry_after=max(SOON, math.ceil(wait)))


@final
class LimitsRecipe:
    """Which limits, how long to wait, and what to answer if they are reached; as `Recipe` is for locks.

    Raises:
        TypeError, ValueError: An argument is wrong.
    """

    __slots__ = ("_keys", "_options", "_total", "blocking_timeout", "conflict", "family", "name")

    def __init__(
        self,
        name: str,
        *,
        keys: Mapping[str, int] | None,
        total: str,
        blocking_timeout: object,
        options: LockOptions,
        status: Conflict | None = None,
        retry_after: RetryAfter | None = None,
        detail: str | None = None,
    ) -> None:
        reject_unknown("Limited", not_for_locks(options))
        Options.checked(**options)
        self.name = lock_name(name)
        self._keys = keys
        self._options = options
        self.blocking_timeout = optional_seconds("blocking_timeout", blocking_timeout)
        self._total = lock_name(total, "total")
        self.conflict = Reached(self._total, status=status, retry_after=retry_after, detail=detail)
        self.family: Hashable = ("limits", name)

    def of(self, keys: object) -> LimitsRecipe:
        """The same for the keys of one request.

        Raises:
            Refusal: The request's values make no key.
            TypeError, ValueError: The keys are not as they should be, whatever the request.
        """
        given: Any = keys
        if isinstance(given, Mapping):
            for key in cast("Mapping[object, object]", given):
                if len(named(key).encode()) > LONGEST:
                    raise no_name()
        of_request = copy.copy(self)
        of_request._keys = checked_keys(keys)  # noqa: SLF001 - its own class
        return of_request

    def lock(self, session: Session, name: str) -> Limits:
        """The limits of that name."""
        assert self._keys is not None
        options: dict[str, Any] = {**self._options}
        return Limits(session, name, self._keys, **options)

    def __repr__(self) -> str:
        return f"<LimitsRecipe {self.name!r} blocking_timeout={self.blocking_timeout}>"
