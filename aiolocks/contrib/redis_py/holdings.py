"""The leases that were acquired through one lock object, and the tasks that have them."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator
from typing import Any, final

from .renewal import Renewal
from .telling import Telling
from .wire import Wire


@final
class Holdings:
    """The tokens that tasks have acquired through one lock object, and what renews them.

    redis-py keeps one token, the latest. Of tasks that share the object, one whose time had passed would
    then release what another has acquired since.

    The tasks may be of several threads with a loop each: each step is one of a dictionary, which no other
    thread comes between.
    """

    __slots__ = ("_by_task", "_renewals")

    def __init__(self) -> None:
        self._by_task: weakref.WeakKeyDictionary[asyncio.Task[Any], bytes] = weakref.WeakKeyDictionary()
        self._renewals: dict[bytes, Renewal] = {}

    def took(self, token: bytes) -> None:
        """The running task has acquired it."""
        task = asyncio.current_task()
        if task is not None:
            self._by_task[task] = token

    def took_over(self, token: Any) -> None:
        """The running task leaves what another has entered with that, unless it has acquired one itself."""
        task = asyncio.current_task()
        if task is not None and token is not None:
            self._by_task.setdefault(task, token)

    def meant(self, latest: Any) -> Any:
        """The token that the running task speaks of: the latest, or its own if that one is another task's.

        The latest need not be one that this object acquired: users set it, to release what another lock
        object acquired.
        """
        task = _task()
        own = None if task is None else self._by_task.get(task)
        if own is not None and own != latest and any(token == latest for _, token in self._all()):
            return own
        return latest

    def forget(self, token: Any) -> None:
        """It was released, or lost."""
        for task, acquired in self._all():
            if acquired == token:
                self._by_task.pop(task, None)

    def _all(self) -> Iterator[tuple[asyncio.Task[Any], bytes]]:
        for reference in self._by_task.keyrefs():
            task = reference()
            if task is not None and (token := self._by_task.get(task)) is not None:
                yield task, token

    def renew(self, wire: Wire, token: bytes, timeout: float, telling: Telling | None) -> None:
        """Renews it from now on."""
        for old, renewal in self._renewals.copy().items():
            if not renewal.active:
                self._renewals.pop(old, None)
        self._renewals[token] = Renewal(wire, token, timeout, telling)

    def stop_renewing(self, token: Any) -> None:
        """It is about to be released."""
        renewal = self._renewals.pop(token, None)
        if renewal is not None:
            renewal.stop()


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None
