"""The bytes that are kept for each asker, so that one asker does not fill the server."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, final

ALWAYS: Final = 1024
"""Bytes of a record that is kept in any case: in its place the server would have a mark of half that size."""

_ASKERS: Final = 10_000
"""How many askers are remembered, the askers with the latest records: some 2 MiB at most."""


@final
class Kept:
    """Counts the records that this process makes.

    A record counts less and less from the moment when it is made, and nothing more after `keep`; so an asker
    has at most twice `most` bytes at a time, and `most` in the long run.

    Args:
        most: Bytes of an asker.
        keep: Seconds that a record is kept.
    """

    __slots__ = ("_keep", "_most", "_of")

    def __init__(self, *, most: int, keep: float) -> None:
        self._most = most
        self._keep = keep
        self._of: OrderedDict[str, tuple[float, float]] = OrderedDict()  # bytes, and when they were counted

    def __len__(self) -> int:
        return len(self._of)

    def add(self, asker: str, size: int, now: float) -> bool:
        """Counts one more record; False if it would be too much, and then it is not counted."""
        counted, at = self._of.pop(asker, (0.0, now))
        counted = max(0.0, counted - (now - at) * self._most / self._keep)
        fits = counted + size <= self._most
        self._of[asker] = (counted + size if fits else counted), now
        if len(self._of) > _ASKERS:
            self._of.popitem(last=False)
        return fits
