"""The steps of a register that refuses late writes."""

from __future__ import annotations

from typing import Any, Final, Literal, final

from ..keys import key
from ..request import Command, Script

_READ: Final = Script("fenced_read", "forms")
_WRITE: Final = Script("fenced_write", "forms")

Form = Literal["bytes", "json"]


@final
class FencedCommands:
    """The steps of one register under its name."""

    __slots__ = ("_keys", "_lane")

    def __init__(self, prefix: str, name: str) -> None:
        self._keys = (key(prefix, "fencedregister", name),)
        # One lane for all: what a holder writes is not to be overtaken by what it wrote before.
        self._lane = self._keys[0].decode()

    def write(self, form: Form, value: bytes, fencing_token: int) -> Command[int | None]:
        """Writes, unless a newer fencing token has written before: None, or that one."""
        return Command(_WRITE, self._keys, (str(fencing_token), form, value), _newer, lane=self._lane)

    def read(self) -> Command[tuple[Form, bytes] | None]:
        """The last value that was written, or None."""
        return Command(_READ, self._keys, (), _written, lane=self._lane)


def _newer(raw: Any) -> int | None:
    return int(raw) if raw else None


def _written(raw: Any) -> tuple[Form, bytes] | None:
    if not raw:
        return None
    form, value = raw
    return ("json" if form == b"json" else "bytes"), value
