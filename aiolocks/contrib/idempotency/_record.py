"""An answer as it is kept, and sent again byte for byte."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

from ...kinds.serializers import Serializer
from .._rates import FIELDS

_REPLAYED: Final = (b"idempotent-replayed", b"true")
_OF_ONE_ANSWER: Final = {b"set-cookie", _REPLAYED[0], *(name.lower().encode() for name in FIELDS)}
"""Header fields that are only for the client which gets this answer."""


@final
@dataclass(frozen=True, slots=True)
class Record:
    """The answer of a handler, whole.

    Attributes:
        status: The HTTP status.
        headers: Name and value of each header, in the order of the handler.
        body: The body.
        unkept: Why it is for its own client alone; empty if it is kept.
        of_another: It was made for another request with the key.
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    unkept: str = ""
    of_another: bool = field(default=False, compare=False)

    def again(self) -> Record:
        """The answer as it is kept.

        Without its cookies: the first client may have other cookies by now, and they are often secrets.
        Without the fields of rate limits: they say how the limits stood then.
        """
        headers = tuple(pair for pair in self.headers if pair[0].lower() not in _OF_ONE_ANSWER)
        return self if headers == self.headers else replace(self, headers=headers)

    def replayed(self) -> Record:
        """The answer for the same request when it is sent again."""
        return replace(self.again(), of_another=True)

    @property
    def sent(self) -> tuple[tuple[bytes, bytes], ...]:
        """The headers that its client gets."""
        return (*self.headers, _REPLAYED) if self.of_another else self.headers

    def dumps(self) -> bytes:
        """One line of JSON, and the body as it is; what `again` leaves out is not kept."""
        pairs = self.again().headers
        headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in pairs]
        head = json.dumps([self.status, headers], separators=(",", ":"))
        return head.encode("ascii") + b"\n" + self.body

    @classmethod
    def loads(cls, data: bytes) -> Record:
        """The record from the result of `dumps`."""
        head, _, body = data.partition(b"\n")
        status, headers = json.loads(head)
        pairs = ((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers)
        return cls(status, tuple(pairs), body).again()  # versions before 0.3 have kept cookies


@final
class Unkept:
    """An answer that its first client has, or gets, and that no later request can have.

    Attributes:
        why: The obstacle, for the log.
        answer: The answer, where it is the caller's to send.
        sent: Whether the client has it: then what the handler did must stand.
    """

    __slots__ = ("answer", "sent", "why")

    def __init__(self, why: str, answer: Any = None, *, sent: bool = False) -> None:
        self.why = why
        self.answer = answer
        self.sent = sent


@final
class _Records:
    """How records travel. An `Unkept` cannot: SingleFlight then remembers that the work was done."""

    __slots__ = ()

    def dumps(self, value: Any, /) -> bytes:
        if isinstance(value, Unkept):
            raise TypeError(value.why)
        assert isinstance(value, Record)
        if value.unkept:
            raise TypeError(value.unkept)
        return value.dumps()

    def loads(self, data: bytes, /) -> Any:
        return Record.loads(data)


RECORDS: Final[Serializer] = _Records()
