"""aiolocks itself, by way of waking up."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiolocks import Lock, Session

from ..settings import Address, Wakeup
from .base import Contender, Locks


@dataclass(frozen=True, slots=True)
class OurLocks:
    """Those of aiolocks."""

    session: Session
    ttl: int
    again: bool = True
    confirm: bool = True

    def lock(self, name: str) -> AbstractAsyncContextManager[Any]:
        """A lock of that name."""
        if not self.confirm:
            return Lock(self.session, name, ttl=self.ttl, confirm=False)
        return Lock(self.session, name, ttl=self.ttl)

    def leadership(self, name: str) -> AbstractAsyncContextManager[Any]:
        """Of that name; peers have none."""
        from aiolocks import Leadership  # noqa: PLC0415 - not in every version

        return Leadership(self.session, name, ttl=self.ttl)

    def commands_sent(self) -> int:
        """Requests so far."""
        return self.session.statistics().commands_sent


@asynccontextmanager
async def _connect(address: Address, ttl: int, *, wakeup: Wakeup, confirm: bool) -> AsyncGenerator[Locks]:
    async with address.client() as client, Session(client, wakeup=_asked_for(wakeup)) as session:
        yield OurLocks(session, ttl, confirm=confirm)


def _asked_for(wakeup: Wakeup) -> Any:
    if wakeup != "keyspace":
        return wakeup
    try:
        from aiolocks import KeyspaceWakeup  # noqa: PLC0415 - not in every version
    except ImportError:
        return wakeup
    return KeyspaceWakeup(configure=True)


def _contender(wakeup: Wakeup, *, confirm: bool = True) -> Contender:
    name = "aiolocks" if wakeup == "auto" else f"aiolocks {wakeup}"
    return Contender(
        name if confirm else f"{name}, unconfirmed",
        partial(_connect, wakeup=wakeup, confirm=confirm),
        key="aiolocks:lock:{{{}}}".format,
    )


BY_WAKEUP: dict[Wakeup, Contender] = {
    "auto": _contender("auto"),
    "tracking": _contender("tracking"),
    "keyspace": _contender("keyspace"),
    "poll": _contender("poll"),
}
UNCONFIRMED = _contender("auto", confirm=False)
"""`confirm=False`."""
