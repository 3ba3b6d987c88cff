"""How values travel from the process that made them to the processes that wait for them."""

from __future__ import annotations

import json
from typing import Any, Final, Protocol, cast, final


class Serializer(Protocol):
    """Turns values into bytes and back. A module or an object with these two functions.

    Both are called in the event loop, so they must be fast. The bytes for `loads` come from any user that can
    write to the server: with `pickle`, such a user can run code in this process.
    """

    def dumps(self, value: Any, /) -> bytes:
        """Returns the value as bytes. If it raises, the value is not kept (`ResultNotKeptError`)."""
        ...

    def loads(self, data: bytes, /) -> Any:
        """Returns the value of bytes that `dumps` has made, perhaps in another process."""
        ...


@final
class _Json:
    """Values that JSON knows."""

    __slots__ = ()

    def dumps(self, value: Any, /) -> bytes:
        # ASCII: whatever a Python str holds comes through, also halves of surrogate pairs.
        return json.dumps(value, separators=(",", ":")).encode("ascii")

    def loads(self, data: bytes, /) -> Any:
        return json.loads(data)

    def __repr__(self) -> str:
        return "aiolocks.JSON"


JSON: Final[Serializer] = _Json()
"""Values that JSON knows: None, bool, int, float, str, and lists and dicts of them.

A tuple comes out as a list, and keys of a dict as str. JSON does not know other types, such as
`Decimal`: their values cannot be kept, nor given to other processes.
"""


def checked_serializer(serializer: object) -> Serializer:
    """A serializer that a user has given.

    Raises:
        TypeError: It is none.
    """
    for function in ("dumps", "loads"):
        if not callable(getattr(serializer, function, None)):
            raise TypeError(f"serializer must have dumps and loads, as aiolocks.JSON has, not {serializer!r}")
    return cast("Serializer", serializer)


def dumped(serializer: Serializer, value: Any) -> bytes:
    """The value as bytes. Raises what the serializer raises, and TypeError for what it gives instead."""
    payload: object = serializer.dumps(value)
    if not isinstance(payload, bytes):
        raise TypeError(f"dumps of the serializer must give bytes, not {type(payload).__name__}")
    return payload
