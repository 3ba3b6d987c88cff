"""How a user's function ended: an object for the callers of this session, and bytes for other sessions.

A `SingleFlight` and a `Combiner` call functions of users, and tell callers in other sessions of the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, TypeVar, final

from ..errors import RemoteCallError, ResultNotKeptError
from ..lock.again import TakeOverError
from .flights import RunEnded
from .httperrors import answer_of, error_of, told_by
from .serializers import Serializer, dumped

T = TypeVar("T")

VALUE: Final = "v"
ERROR: Final = "e"
NOT_KEPT: Final = "n"
_LONGEST_MESSAGE: Final = 8192
"""Characters: a message may quote whatever was being worked on."""

_AND_ANSWER: Final = "\0"
"""Between a message and the answer that an error of a framework is: older versions show it as it is."""


@final
class Outcome:
    """A value or an error, once: the same object for all callers that wait in one session.

    Attributes:
        tag: `VALUE`, `ERROR`, or `NOT_KEPT` for a value that other sessions cannot have.
        payload: The result that other sessions are told.
        value: The value of the function, if it ran in this session.
        error: The exception that `get` raises, if it does.
        due: Fencing token of the run that has left it, if the value must be replaced; else None.
        kept: It is a value that was kept when this session asked for it.
    """

    __slots__ = ("_traceback", "due", "error", "kept", "payload", "tag", "value")

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
        self.kept = False
        # Each time that an error is raised adds to its traceback: everybody begins with where it came from.
        self._traceback: TracebackType | None = None if error is None else error.__traceback__

    @property
    def done(self) -> bool:
        """Whether the work was done, so that later callers must not do it again."""
        return self.tag != ERROR

    @classmethod
    def of_value(cls, value: Any, serializer: Serializer) -> Outcome:
        """Raises what the serializer raises."""
        return cls(VALUE, dumped(serializer, value), value=value, error=None)

    @classmethod
    def of_error(cls, error: BaseException) -> Outcome:
        return cls(ERROR, _told(error), error=error)

    @classmethod
    def not_kept(cls, key: str, value: Any, because: Exception, *, raises: bool, hint: str = "") -> Outcome:
        """A value that other sessions cannot have.

        With `raises`, callers in this session get an error with the value; otherwise only the value.
        """
        payload = _told(because)
        error = None
        if raises:
            reason = f"{_reason(payload)}{hint}"
            error = ResultNotKeptError(key, reason, here=True, value=value)
            error.__cause__ = because
        return cls(NOT_KEPT, payload, value=value, error=error)

    @classmethod
    def of_another(cls, key: str, end: RunEnded, serializer: Serializer) -> Outcome:
        """The outcome that a run in another session has left. Raises what the serializer raises."""
        outcome = cls.told(end.tag, end.payload, serializer, lambda why: ResultNotKeptError(key, why))
        outcome.due = end.run if end.due else None
        outcome.kept = end.tag == VALUE and end.age_us is None
        return outcome

    @classmethod
    def told(
        cls, tag: str, payload: bytes, serializer: Serializer, not_kept: Callable[[str], Exception]
    ) -> Outcome:
        """The outcome that a run in another session has told. Raises what the serializer raises.

        `not_kept` makes the error for a value that other sessions cannot have, of the reason for that.
        """
        if tag == VALUE:
            return cls(VALUE, payload, value=serializer.loads(payload), error=None)
        error = not_kept(_reason(payload)) if tag == NOT_KEPT else _raised_elsewhere(payload)
        return cls(tag, payload, error=error)

    def confirmed(self, end: RunEnded) -> Outcome:
        """The same, as our run has left it: the server may have kept its value although no reply came."""
        if end.tag == self.tag:
            return self
        return Outcome(end.tag, end.payload, value=self.value, error=None)

    def get(self) -> Any:
        """Gives the value, or raises the error."""
        if self.error is not None:
            raise self.error.with_traceback(self._traceback)
        return self.value


async def ended(
    call: Awaitable[T], what: str, *, needless: Callable[[], bool]
) -> tuple[T, None] | tuple[None, BaseException]:
    """What a call of a user's function has given, or the error with which it has ended; one of them is None.

    Args:
        call: Calls the function, and awaits what it gives.
        what: The call, as an error names it.
        needless: Whether the task of the call was cancelled for a reason that makes each end of it needless.

    Raises:
        CancelledError: The task of the call was cancelled, and the function has ended on account of that.
        KeyboardInterrupt, SystemExit, GeneratorExit: As the function did: they are for the program.
        TakeOverError: As the function did: it has no end, and another caller takes over.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        return await call, None
    except asyncio.CancelledError as error:
        if task.cancelling() > before:
            raise
        # It came out of the function by itself. No caller was cancelled, and none may believe it.
        of_itself = RuntimeError(f"{what} was cancelled from within")
        of_itself.__cause__ = error
        return None, of_itself
    except (KeyboardInterrupt, SystemExit, GeneratorExit, TakeOverError):
        raise
    except BaseException as error:
        # The count alone says nothing: up to Python 3.12 a TaskGroup that has failed leaves it raised.
        if task.cancelling() > before and (needless() or comes_of_cancellation(error)):
            # Its text about the cancellation is not for the callers that wait in other sessions.
            raise asyncio.CancelledError from error
        return None, error


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
