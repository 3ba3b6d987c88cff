"""The steps of a latch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, final

from ...errors import ConfigurationError
from ..keys import key
from ..request import Command, Script, ignore

_SHARED: Final = ("forms", "fence", "latches")
_WAIT: Final = Script("latch_wait", *_SHARED)
_COUNT_DOWN: Final = Script("latch_count_down", *_SHARED)
_RESET: Final = Script("latch_reset", *_SHARED)


@final
class Look(NamedTuple):
    """What a waiter is told.

    Attributes:
        open: It may go on.
        left: What is left to count.
        opened: When it was opened last, as the server tells it.
    """

    open: bool
    left: int
    opened: str


@final
class Counted(NamedTuple):
    """What a step has left.

    Attributes:
        left: What is left to count.
        rung: The key of which waiters hear, where this step has opened the latch.
    """

    left: int
    rung: Sequence[bytes] = ()


@final
class LatchCommands:
    """The steps of one latch.

    Attributes:
        news: The key that is deleted when the latch opens.
    """

    __slots__ = ("_count", "_keys", "_name", "_ttl_ms", "news")

    def __init__(self, prefix: str, name: str, count: int, ttl_ms: int) -> None:
        self._name = name
        self._count = count
        self._ttl_ms = ttl_ms
        self._keys = (key(prefix, "latch", name),)
        self.news = key(prefix, "latch", name, "news")

    def listen(self) -> Command[Any]:
        """The server is to tell when the latch opens next."""
        return Command(None, (self.news,), ("GET", self.news), ignore, lane=self._lane, bells=(self.news,))

    def wait(self, opened: str) -> Command[Look]:
        """Asks if it is open; `opened` of the first answer, empty before that."""
        return self._step(_WAIT, self._keys, "", opened, self._look)

    def count_down(self, token: str, n: int) -> Command[Counted]:
        """Counts n down."""
        return self._step(_COUNT_DOWN, (*self._keys, self.news), token, n, self._counted)

    def reset(self, token: str, count: int) -> Command[Counted]:
        """Counts again, from that."""
        return self._step(_RESET, self._keys, token, count, self._counted)

    def _step(self, script: Script, keys: Any, token: str, last: Any, parse: Any) -> Command[Any]:
        return Command(script, keys, (token, self._count, self._ttl_ms, last), parse, lane=self._lane)

    @property
    def _lane(self) -> str:
        return self.news.decode()

    def _checked(self, raw: Any) -> Any:
        if int(raw[0]) == -1:
            raise ConfigurationError(
                f"the latch {self._name!r} counts from {int(raw[1])}, and not from {self._count}: all who "
                "use a latch give it the same count"
            )
        return raw

    def _look(self, raw: Any) -> Look:
        through, left, opened = self._checked(raw)
        return Look(through == 1, int(left), opened.decode())

    def _counted(self, raw: Any) -> Counted:
        _, left, *rung = self._checked(raw)
        return Counted(int(left), rung)
