"""What a client is told whose request could not have its lock; the same for all frameworks."""

from __future__ import annotations

import math
from typing import Final, Literal, final

from ..errors import BackendError, LockError, LockTimeoutError

Conflict = Literal[409, 423]
"""How a server says that somebody else is at it: 423 Locked, or 409 Conflict."""

CLIENT_CLOSED_REQUEST: Final = 499
"""What nginx writes in its log for a client that hung up; nobody is there to read it."""

UNAVAILABLE: Final = 503


@final
class Refusal(Exception):  # noqa: N818 - an answer, and not an error of anybody's
    """Raised in place of an answer, for the framework's module to make one of.

    Neither the name of the lock nor what Redis said is in it: the log has that.

    Attributes:
        status: The HTTP status.
        detail: For the client.
        retry_after: Whole seconds; None where trying again is not what helps.
    """

    def __init__(self, status: int, detail: str, *, retry_after: int | None = None) -> None:
        self.status = status
        self.detail = detail
        self.retry_after = retry_after
        super().__init__(f"{status} {detail}")

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


def conflict_status(value: object) -> Conflict:
    """The status that was chosen; checked."""
    if value not in (409, 423) or isinstance(value, float):
        raise ValueError(f"status must be 423 (Locked) or 409 (Conflict), not {value!r}")
    return value


def retry_after(remaining: float | None) -> int:
    """Whole seconds until a try makes sense: rounded up, at least 1.

    Args:
        remaining: Seconds that the holder's lease still has; None when unknown.
    """
    return max(1, math.ceil(remaining or 0.0))


def refusal_of(error: LockError, conflict: Conflict) -> Refusal:
    """The answer for what ended the wait."""
    if isinstance(error, LockTimeoutError):
        detail = "Another request is working on this. Try again later."
        return Refusal(conflict, detail, retry_after=retry_after(error.remaining))
    if isinstance(error, BackendError):
        detail = "Nothing was done: the service that keeps requests apart does not answer. Try again later."
    else:  # SessionClosedError
        detail = "Nothing was done: this server is shutting down. Try again."
    return Refusal(UNAVAILABLE, detail, retry_after=retry_after(None))


def gone_away() -> Refusal:
    """The answer that nobody reads."""
    return Refusal(CLIENT_CLOSED_REQUEST, "The client has hung up.")


def lost(*, begun: bool) -> Refusal:
    """The answer where the lease was lost.

    If the handler had begun, it has no `Retry-After` and is not a 503, which clients and proxies take for an
    invitation: something may have been done already.
    """
    if not begun:
        detail = "Nothing was done: this request was kept waiting for too long. Try again."
        return Refusal(UNAVAILABLE, detail, retry_after=retry_after(None))
    return Refusal(500, "This request was ended while it was worked on; some of it may have been done.")
