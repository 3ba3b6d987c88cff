"""What listeners are told of one lock object: the events of a session, as far as redis-py's lock has them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, Final, final

from ...lock.events import Events, how_it_ended

KIND: Final = "redispylock"


@final
class _Hold:
    """Stands for a token in its events, from the grant to the end."""

    __slots__ = ("__weakref__", "since")

    def __init__(self) -> None:
        self.since = time.monotonic()


@final
class Acquiring:
    """One acquire.

    Attributes:
        once: It does not wait.
        token: That of the key, once it is granted.
    """

    __slots__ = ("_began", "_telling", "_waits", "once", "token")

    def __init__(self, telling: Telling, *, once: bool) -> None:
        self._telling = telling
        self._began = time.monotonic()
        self._waits = False
        self.once = once
        self.token: bytes | None = None

    def refused(self) -> None:
        """It waits from now on, unless it was told so before."""
        if not self._waits:
            self._waits = True
            self._telling.tell("on_waiting")

    def ended(self, error: BaseException | None) -> None:
        """By a grant, an error, or neither of them."""
        telling, waited = self._telling, time.monotonic() - self._began
        if error is not None:
            how = how_it_ended(error)
        else:
            how = "granted" if self.token is not None else "refused" if self.once else "timeout"
        if self._waits:
            telling.tell("on_waited", seconds=waited, reason=how)
        if how == "timeout":
            telling.tell("on_timeout", seconds=waited)
        if self.token is None:
            telling.tell("on_not_acquired", seconds=waited, reason=how)
        else:
            telling.took(self.token, waited)


@final
class Telling:
    """Tells the listeners of one lock object.

    The methods may run in several threads with a loop each: each step is one of a dictionary.
    """

    __slots__ = ("_events", "_holds", "_name")

    def __init__(self, listeners: Iterable[object], name: str) -> None:
        self._events = Events(listeners)
        self._holds: dict[Any, _Hold] = {}
        self._name = name

    @contextmanager
    def acquiring(self, *, once: bool) -> Generator[Acquiring]:
        """Around one acquire."""
        acquiring = Acquiring(self, once=once)
        try:
            yield acquiring
        except BaseException as error:
            acquiring.ended(error)
            raise
        acquiring.ended(None)

    def took(self, token: bytes, waited: float) -> None:
        """It was granted to that token."""
        hold = self._holds[token] = _Hold()
        self.tell("on_acquired", seconds=waited, lease=weakref.ref(hold))

    def ended(self, token: Any, lost: str = "") -> None:
        """It was released, or lost for that reason."""
        hold = self._holds.pop(token, None)
        if hold is not None:
            held, lease = time.monotonic() - hold.since, weakref.ref(hold)
            self.tell("on_lost" if lost else "on_released", seconds=held, reason=lost, lease=lease)

    def tell(self, hook: str, **fields: Any) -> None:
        """Each listener that has the method."""
        self._events.tell(hook, KIND, self._name, **fields)
