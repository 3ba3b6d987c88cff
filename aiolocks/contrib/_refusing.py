"""The answer to a client whose request could not have its lock; the same for all frameworks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, final

from ..errors import BackendError, LockTimeoutError, SessionClosedError
from ..lock.naming import NameTemplate, is_template
from ..lock.options import Seconds, lock_name, seconds

Conflict = Literal[409, 423, 429, 503]
"""How a server says that another request has the lock."""

RetryAfter = Seconds | Callable[[LockTimeoutError], Seconds | None]
"""The time for `Retry-After`: seconds, or a function that returns seconds, or None for the default."""

DETAIL: Final = "Another request is working on this. Try again later."

HALF_DONE: Final = "This request lost its lock; some or all of its work may have been done."

HEALTHY: Final = "healthy"
UNHEALTHY: Final = "the server of the locks did not answer in time, or the session is closed"

_CONFLICTS: Final = {
    409: "Conflict",
    423: "Locked",
    429: "Too Many Requests",
    503: "Service Unavailable",
}

CLIENT_CLOSED_REQUEST: Final = 499
"""The status that nginx writes in its log for a client that hung up; no client reads it."""

UNAVAILABLE: Final = 503

SOON: Final = 1
"""Seconds after which a client may try again where nothing is known of when it helps."""


@final
class Refusal(Exception):  # noqa: N818 - an answer, and not an error
    """Raised in place of an answer, for the framework's module to make one of.

    Neither the name of the lock nor what Redis said is in it: the log has that.

    Attributes:
        status: The HTTP status.
        detail: For the client.
        retry_after: Whole seconds; None where trying again is not what helps.
        begun: The handler had begun.
    """

    def __init__(
        self, status: int, detail: str, *, retry_after: int | None = None, begun: bool = False
    ) -> None:
        self.begun = begun
        self.status = status
        self.detail = detail
        self.retry_after = retry_after
        super().__init__(f"{status} {detail}")

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Conflicting:
    """The answer where another request has the lock; checked.

    Attributes:
        status: The HTTP status.
        retry_after: The time for `Retry-After`; None for the measured one.
        detail: For the client.

    Raises:
        TypeError, ValueError: An argument is wrong.
    """

    status: Conflict = 423
    retry_after: RetryAfter | None = None
    detail: str = DETAIL

    def __post_init__(self) -> None:
        if self.status not in (*_CONFLICTS,) or isinstance(self.status, float):
            allowed = [f"{status} ({phrase})" for status, phrase in _CONFLICTS.items()]
            raise ValueError(
                f"status must be {', '.join(allowed[:-1])} or {allowed[-1]}, not {self.status!r}"
            )
        if self.retry_after is not None and not callable(self.retry_after):
            seconds("retry_after", self.retry_after)
        if not isinstance(self.detail, str):
            raise TypeError(f"detail must be a str, not {type(self.detail).__name__}")

    @property
    def statuses(self) -> tuple[int, ...]:
        """The statuses of its refusals, and of a refusal because the server does not answer."""
        return self.status, UNAVAILABLE

    def refusal(self, error: LockTimeoutError, measured: float | None) -> Refusal:
        """The answer.

        Args:
            error: It ended the wait.
            measured: Seconds for which such locks are held; None when unknown.
        """
        asked = self.asked(error)
        if asked is None and measured is not None:
            # If the holder has died, the lock is free when its lease ends, which may be earlier.
            asked = max(SOON, measured if error.remaining is None else min(measured, error.remaining))
        return Refusal(self.status, self.detail, retry_after=math.ceil(SOON if asked is None else asked))

    def asked(self, error: LockTimeoutError) -> float | None:
        """Seconds for `Retry-After` that the user has chosen; None for the default.

        Raises:
            TypeError, ValueError: What the user's function gives is no time.
        """
        asked = self.retry_after(error) if callable(self.retry_after) else self.retry_after
        return None if asked is None else seconds("retry_after", asked)


def in_openapi(status: int) -> dict[str, Any]:
    """A refusal with this status, for the `responses` of an OpenAPI document."""
    detail = {"type": "object", "properties": {"detail": {"type": "string"}}}
    return {
        "description": _CONFLICTS[status],
        "content": {"application/json": {"schema": detail}},
        "headers": {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}},
    }


def filled(template: NameTemplate, values: Mapping[str, str]) -> str:
    """The name of the lock for one request.

    Raises:
        Refusal: The request's values make no name.
    """
    if template.fields:
        is_template(template.text)
    try:
        return template.fill(values)
    except ValueError:
        raise no_name() from None


def named(name: object) -> str:
    """The name that a function of the user has made of a request.

    Raises:
        Refusal: The request's values make no name.
        TypeError: It is no str, whatever the request.
    """
    try:
        return lock_name(name)
    except ValueError:
        raise no_name() from None


def no_name() -> Refusal:
    """The answer to a request of whose values no name can be made."""
    return Refusal(400, "a value in this request is empty, or too long")


def unavailable(error: BackendError | SessionClosedError) -> Refusal:
    """The answer where the session cannot tell whether the lock is free."""
    if isinstance(error, BackendError):
        detail = "Nothing was done: the service that keeps requests apart does not answer. Try again later."
    else:
        detail = "Nothing was done: this server is shutting down. Try again."
    return Refusal(UNAVAILABLE, detail, retry_after=SOON)


def lost(*, begun: bool) -> Refusal:
    """The answer where the lease was lost.

    If the handler had begun, it has no `Retry-After` and is not a 503, which clients and proxies take for an
    invitation: something may have been done already. An application with error handlers decides by itself.
    """
    if not begun:
        detail = "Nothing was done: this request was kept waiting for too long. Try again."
        return Refusal(UNAVAILABLE, detail, retry_after=SOON)
    return Refusal(500, HALF_DONE, begun=True)
