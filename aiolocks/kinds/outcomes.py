"""How a call ended, for those who wait for it here and, as bytes, elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, final

from ..errors import RemoteCallError, ResultNotKeptError
from .flightsteps import Left
from .httperrors import answer_of, error_of, told_by
from .serializers import Serializer

VALUE: Final = "v"
ERROR: Final = "e"
NOT_KEPT: Final = "n"
_LONGEST_MESSAGE: Final = 8192
"""Characters: a message may quote whatever was being worked on."""

_AND_ANSWER: Final = "\0"
"""Between a message and the answer that an error of a framework is: older versions show it as it is."""


@final
class Outcome:
    """A value or an error, once: the same object for all who wait in one session.

    Attributes:
        tag: `VALUE`, `ERROR`, or `NOT_KEPT` for a value that others cannot have.
        payload: The result that others are told.
        value: The value of the function, if it ran here.
        error: The exception that `get` raises, if it does.
        due: Fencing token of the run that has left it, if the value must be replaced; else None.
    """

    __slots__ = ("_traceback", "due", "error", "payload", "tag", "value")

    def __init__(
        self,
        tag: str,
        payload: bytes,
        *,
        value: Any = None,
        error: BaseException | None,
        due: int | None = None,
    ) -> None:
        self.tag = tag
        self.payload = payload
        self.value = value
        self.error = error
        self.due = due
        # Each time that an error is raised adds to its traceback: everybody begins with where it came from.
        self._traceback: TracebackType | None = None if error is None else error.__traceback__

    @property
    def done(self) -> bool:
        """Whether the work was done, so that later callers must not do it again."""
        return self.tag != ERROR

    @classmethod
    def of_value(cls, value: Any, serializer: Serializer) -> Outcome:
        """Raises what the serializer raises."""
        payload: object = serializer.dumps(value)
        if not isinstance(payload, bytes):
            raise TypeError(f"dumps of the serializer must give bytes, not {type(payload).__name__}")
        return cls(VALUE, payload, value=value, error=None)

    @classmethod
    def of_error(cls, error: BaseException) -> Outcome:
        return cls(ERROR, _told(error), error=error)

    @classmethod
    def not_kept(cls, key: str, value: Any, because: Exception, *, raises: bool, hint: str = "") -> Outcome:
        """A value that others cannot have; whether those here get an error with it, or only the value."""
        payload = _told(because)
        error = None
        if raises:
            reason = f"{_reason(payload)}{hint}"
            error = ResultNotKeptError(key, reason, here=True, value=value)
            error.__cause__ = because
        return cls(NOT_KEPT, payload, value=value, error=error)

    @classmethod
    def of_another(cls, key: str, left: Left, serializer: Serializer) -> Outcome:
        """The outcome that a run elsewhere has left. Raises what the serializer raises."""
        due = left.run if left.due else None
        outcome = cls.told(left.tag, left.payload, serializer, lambda why: ResultNotKeptError(key, why))
        outcome.due = due
        return outcome

    @classmethod
    def told(
        cls, tag: str, payload: bytes, serializer: Serializer, not_kept: Callable[[str], Exception]
    ) -> Outcome:
        """The outcome that a run elsewhere has told. Raises what the serializer raises.

        `not_kept` makes the error for a value that others cannot have, of the reason for that.
        """
        if tag == VALUE:
            return cls(VALUE, payload, value=serializer.loads(payload), error=None)
        error = not_kept(_reason(payload)) if tag == NOT_KEPT else _raised_elsewhere(payload)
        return cls(tag, payload, error=error)

    def confirmed(self, left: Left) -> Outcome:
        """The same, as a run of ours has left it: its value may have been kept although nobody told us."""
        if left.tag == self.tag:
            return self
        return Outcome(left.tag, left.payload, value=self.value, error=None)

    def get(self) -> Any:
        """Gives the value, or raises the error."""
        if self.error is not None:
            raise self.error.with_traceback(self._traceback)
        return self.value


def comes_of_cancellation(error: BaseException) -> bool:
    """Whether it was raised on account of a cancellation, or while one was on its way."""
    cause: BaseException | None = error
    seen: set[int] = set()  # `raise error from error` makes one its own cause
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, asyncio.CancelledError):
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False


def _reason(payload: bytes) -> str:
    type_name, message = json.loads(payload)
    return f"{type_name}: {message}"


def _told(error: BaseException) -> bytes:
    """Name of the type and message, and nothing that would have to be unpickled."""
    message = "its message could not be had"
    with contextlib.suppress(Exception):
        message = str(error)
    if len(message) > _LONGEST_MESSAGE:
        message = message[:_LONGEST_MESSAGE] + "…"
    with contextlib.suppress(Exception):
        if answer := answer_of(error):
            message += _AND_ANSWER + answer
    cls = type(error)
    return json.dumps([f"{cls.__module__}.{cls.__qualname__}", message]).encode("ascii")


def _raised_elsewhere(payload: bytes) -> Exception:
    type_name, message = json.loads(payload)
    before, _, answer = message.rpartition(_AND_ANSWER)
    told = told_by(answer)
    if told is None:
        return RemoteCallError(type_name, message)
    remote = RemoteCallError(type_name, before)
    error = error_of(told)
    if error is None:
        return remote
    error.__cause__ = remote
    return error
