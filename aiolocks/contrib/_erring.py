"""The answers to errors of locks in the body of a handler; the same for all frameworks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final, NamedTuple, cast, final

from .. import Session
from ..errors import (
    BackendError,
    CombinerFullError,
    DuplicateJobError,
    FingerprintError,
    LockError,
    LockLostError,
    LockTimeoutError,
    SessionClosedError,
    StaleFenceError,
)
from ..lock import together
from ..lock.sources import log_level
from ._holding import log
from ._refusing import DETAIL, HALF_DONE, SOON, UNAVAILABLE, Conflict, Conflicting, Refusal

_WORST: Final = 500


@final
class _Answer(NamedTuple):
    """The answer to an error.

    Attributes:
        status: The HTTP status; None for the one that the user chooses.
        detail: For the client.
        again: Whether it has `Retry-After`.
    """

    status: int | None
    detail: str
    again: bool


_ANSWERS: Final[dict[type[LockError], _Answer]] = {
    # The first of them is the worst: it says the answer to several that come together. Errors that are not
    # among them are bugs, and stay 500.
    LockLostError: _Answer(UNAVAILABLE, HALF_DONE, again=False),
    BackendError: _Answer(UNAVAILABLE, "The service that keeps requests apart does not answer.", again=True),
    SessionClosedError: _Answer(UNAVAILABLE, "This server is shutting down. Try again.", again=True),
    CombinerFullError: _Answer(UNAVAILABLE, "Too much work waits. Try again later.", again=True),
    FingerprintError: _Answer(422, "The key of this request is in use for another request.", again=False),
    DuplicateJobError: _Answer(409, "This is being done, or was done, already.", again=False),
    StaleFenceError: _Answer(409, "A later change has come before this one.", again=False),
    LockTimeoutError: _Answer(None, DETAIL, again=True),
}

ANSWERED: Final[tuple[type[Exception], ...]] = (*_ANSWERS, ExceptionGroup)
"""The classes of the errors that `Answers` may have an answer to."""


@final
class Answers:
    """The answers of one application.

    Args:
        status: That of the answer where a lock was not acquired in time.

    Raises:
        ValueError: The status is none that says so.
    """

    __slots__ = ("_status",)

    def __init__(self, status: Conflict) -> None:
        self._status = Conflicting(status=status).status

    def to(self, error: BaseException, *, session: Session | None, route: str) -> Refusal | None:
        """The answer, which the log explains; None for an error that stays 500.

        Args:
            error: It came out of a handler. A group has an answer if each of its errors has one: that of the
                worst.
            session: The application's, if it has one.
            route: For the log: the method and the template of the path.
        """
        errors = [*_leaves(error)]
        if not all(isinstance(one, (*_ANSWERS,)) for one in errors):
            return None
        worst, told = next((cls, one) for cls in _ANSWERS for one in errors if isinstance(one, cls))
        answer = _ANSWERS[worst]
        status = self._status if answer.status is None else answer.status
        level = logging.INFO if status < _WORST else logging.WARNING
        if session is not None and isinstance(told, BackendError):
            level = log_level(session, told)  # not once for each request, while the server is away
        together.tell(
            log,
            level,
            "%s was answered %d: %s",
            *(route, status, told),
            name=route,
            many="%d requests were answered %s: %s",
            why=f"{status}: {told}",
            key=(status, type(told), getattr(told, "name", "")),
        )
        return Refusal(status, answer.detail, retry_after=SOON if answer.again else None)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaves(one)
    else:
        yield error
