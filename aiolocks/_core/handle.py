"""The text form of a detached lease."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Final, Self, final

_MARK: Final = "aiolocks-lease-1."


@final
@dataclass(frozen=True, slots=True)
class Handle:
    """Enough to take a lease up elsewhere. As secret as the token in it.

    Attributes:
        at_least_ms: For how long after the grant the name stays taken, wherever the lease ends.
    """

    kind: str
    name: str
    token: str
    at_least_ms: int = 0

    def encode(self) -> str:
        fields: list[str | int] = [self.kind, self.name, self.token]
        if self.at_least_ms:
            fields.append(self.at_least_ms)
        text = json.dumps(fields, separators=(",", ":"))
        return _MARK + base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, text: object, *, kind: str, name: str) -> Self:
        """Reads a handle of the lock with that kind and name.

        Raises:
            TypeError: It is not a str.
            ValueError: It is not a handle, or of another lock.
        """
        if not isinstance(text, str):
            raise TypeError(f"a handle is the str that detach() gave, not {type(text).__name__}")
        try:
            if not text.startswith(_MARK):
                raise ValueError
            fields = json.loads(base64.urlsafe_b64decode(text[len(_MARK) :]))
            handle = cls(*fields)
            if list(map(type, fields)) != [str, str, str, int][: len(fields)] or handle.at_least_ms < 0:
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            raise ValueError("this is not a handle that detach() gave") from None
        if (handle.kind, handle.name) != (kind, name):
            raise ValueError(f"the handle is of {handle.kind} {handle.name!r}, not of {kind} {name!r}")
        return handle

    def __repr__(self) -> str:
        return f"<Handle of {self.kind} {self.name!r}>"
