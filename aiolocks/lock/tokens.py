"""The secrets by which leases are held."""

from __future__ import annotations

import os
from typing import Final, final

_BYTES: Final = 16
_AT_ONCE: Final = 64


@final
class Tokens:
    """Gives out random tokens, fetched from the kernel for many at once.

    No fork of this process hands out the same ones: it cannot use this session.
    """

    __slots__ = ("_unused",)

    def __init__(self) -> None:
        self._unused: list[str] = []

    def take(self) -> str:
        """128 random bits."""
        if not self._unused:
            fetched = os.urandom(_BYTES * _AT_ONCE).hex()
            length = 2 * _BYTES
            self._unused = [fetched[at : at + length] for at in range(0, len(fetched), length)]
        return self._unused.pop()
