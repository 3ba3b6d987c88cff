"""How a call ended, for those who wait for it here and, as bytes, elsewhere."""

from __future__ import annotations

import contextlib
import json
from types import TracebackType
from typing import Any, Final, final

from .._transport.commands.flight import Left
from ..errors import RemoteCallError
from .serializers import Serializer

VALUE: Final = "v"
ERROR: Final = "e"
_LONGEST_MESSAGE: Final = 8192
"""Characters: a message may quote whatever was being worked on."""


@final
class Outcome:
    """A value or an error, once: the same object for all who wait in one session.

    Attributes:
        tag: `VALUE` or `ERROR`.
        payload: What others are told.
    """

    __slots__ = ("_error", "_traceback", "_value", "payload", "tag")

    def __init__(self, value: Any, error: BaseException | None, payload: bytes) -> None:
        self._value = value
        self._error = error
        # Each time that an error is raised adds to its traceback: everybody begins with where it came from.
        self._traceback: TracebackType | None = None if error is None else error.__traceback__
        self.tag = VALUE if error is None else ERROR
        self.payload = payload

    @property
    def kept(self) -> bool:
        """Whether it is for those who come later too: an error is not."""
        return self.tag == VALUE

    @classmethod
    def of_value(cls, value: Any, serializer: Serializer) -> Outcome:
        """Raises what the serializer raises."""
        try:
            payload: object = serializer.dumps(value)
        except Exception as error:
            error.add_note(
                "aiolocks: this is what the serializer of the SingleFlight says of what the function has "
                f"given ({type(value).__name__}), which others are to have too"
            )
            raise
        if not isinstance(payload, bytes):
            raise TypeError(f"dumps of the serializer must give bytes, not {type(payload).__name__}")
        return cls(value, None, payload)

    @classmethod
    def of_error(cls, error: BaseException) -> Outcome:
        return cls(None, error, _told(error))

    @classmethod
    def of_another(cls, left: Left, serializer: Serializer) -> Outcome:
        """What a run elsewhere has left. Raises what the serializer raises."""
        if left.tag == VALUE:
            return cls(serializer.loads(left.payload), None, left.payload)
        type_name, message = json.loads(left.payload)
        return cls(None, RemoteCallError(type_name, message), left.payload)

    def get(self) -> Any:
        """Gives the value, or raises the error."""
        if self._error is not None:
            raise self._error.with_traceback(self._traceback)
        return self._value


def _told(error: BaseException) -> bytes:
    """Name of the type and message, and nothing that would have to be unpickled."""
    message = "its message could not be had"
    with contextlib.suppress(Exception):
        message = str(error)
    if len(message) > _LONGEST_MESSAGE:
        message = message[:_LONGEST_MESSAGE] + "…"
    cls = type(error)
    return json.dumps([f"{cls.__module__}.{cls.__qualname__}", message]).encode("ascii")
