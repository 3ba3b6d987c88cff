"""The lines of the log while a server is away."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import final

log = logging.getLogger("aiolocks.transport")


@final
class Outage:
    """One warning when a server is away, and one when it is back, however many attempts lie between.

    An outage begins when an attempt to connect has failed, or when a server has been silent for so long that
    its connection was given up. A connection that breaks and is made again at the first attempt is none.

    Args:
        label: How people call the server; never with credentials.
        now: The clock, in seconds.
    """

    __slots__ = ("_label", "_now", "_since")

    def __init__(self, label: str, now: Callable[[], float]) -> None:
        self._label = label
        self._now = now
        self._since: float | None = None

    def begun(self, why: BaseException, *, since: float) -> None:
        """The server is away since then, if that is not known already."""
        if self._since is None:
            self._since = since
            log.warning("%s is away: %s", self._label, str(why) or type(why).__name__)

    def over(self, how: str = "is back") -> None:
        """The server has answered, or is not needed any more."""
        if self._since is not None:
            lasted, self._since = self._now() - self._since, None
            log.warning("%s %s after %.1f s", self._label, how, lasted)
