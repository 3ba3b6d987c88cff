"""The leases that were acquired through one lock object, and the tasks that have them."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, final

from .renewal import Renewal
from .wire import Wire


@final
class Holdings:
    """The tokens that tasks have acquired through one lock object, and what renews them.

    redis-py keeps one token, the latest. Of tasks that share the object, one whose time had passed would
    then release what another has acquired since.
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

        The latest need not be one that was acquired here: users set it, to release elsewhere.
        """
        task = _task()
        own = None if task is None else self._by_task.get(task)
        if own is not None and own != latest and latest in tuple(self._by_task.values()):
            return own
        return latest

    def forget(self, token: Any) -> None:
        """It was released, or lost."""
        for task, acquired in tuple(self._by_task.items()):
            if acquired == token:
                del self._by_task[task]

    def renew(self, wire: Wire, token: bytes, timeout: float) -> None:
        """Renews it from now on."""
        self._renewals = {old: renewal for old, renewal in self._renewals.items() if renewal.active}
        self._renewals[token] = Renewal(wire, token, timeout)

    def stop_renewing(self, token: Any) -> None:
        """It is about to be released."""
        renewal = self._renewals.pop(token, None)
        if renewal is not None:
            renewal.stop()


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs here
        return None
