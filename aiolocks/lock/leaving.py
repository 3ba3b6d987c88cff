"""The leases of a session that is being closed: what is released, what is lost, and what the log says of it.

Exclusion beats release: a lease is released only if no body is inside of it, and the task that acquired it is
done, or waits for the end of this very session. Any other task may still work under its lease.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Literal, final

from .._logs import get_logger
from ..errors import BackendError

log = get_logger("aiolocks.session")

Release = Literal["unused", "none"]
"""Which leases are released when a session is closed."""
CLOSED: Final = "the session was closed"
_NAMES: Final = 10
"""How many names a line of the log has."""
_LOOK: Final = 0.002
"""Seconds between two looks whether all bodies have ended: a body that ends need not tell."""


@final
class Leaving:
    """What becomes of the leases of one session that closes.

    Invariants:
    - `begin` decides for all of them in one step, which sends all releases together;
    - once `end` was called, none of them is held, and each was told of once.

    Args:
        found: All that are held, the first one first.
        closer: The task that waits for the end of the session.
        unconfirmed: The leases whose exits have not waited for the server's answer, while there is none.
        release: Whether any is released.
        now: The clock of the loop.
    """

    __slots__ = (
        "_begun",
        "_bodies",
        "_closer",
        "_found",
        "_lost",
        "_now",
        "_release",
        "_released",
        "_unconfirmed",
        "_until",
    )

    def __init__(
        self,
        found: Callable[[], Sequence[Any]],
        closer: asyncio.Task[Any] | None,
        *,
        unconfirmed: Collection[Any],
        release: bool,
        now: Callable[[], float],
    ) -> None:
        self._begun = False
        self._bodies: list[Any] = []
        self._closer = closer
        self._found = found
        self._lost: list[Any] = []
        self._now = now
        self._release = release
        self._released: list[Any] = []
        self._unconfirmed = unconfirmed
        self._until: dict[Any, float] = {}  # loop time at which the name of each is free at the latest

    def begin(self) -> None:
        """Releases, and takes away. Synchronous: what it decides holds when it is done."""
        if self._begun:
            return
        self._begun = True
        held = sorted(self._found(), key=_since)
        self._until = {possession: possession.free_by for possession in held}
        for possession in reversed(held):  # an upgrade before the lease that it is of
            if possession.watch is None:
                continue  # a listener that was told of a loss has let go of it
            if self._release and possession.left_by(self._closer):
                self._released.append(possession)
                possession.send_release()
            else:
                self._lost.append(possession)
                if possession.scope is not None:
                    self._bodies.append(possession.scope)
                possession.lose(CLOSED, told=False)

    async def wait(self, *, bodies: float, releases: float) -> None:
        """Returns when all bodies have ended and all releases are confirmed, or these seconds have passed."""
        begun = self._now()
        while self._now() < begun + bodies and any(body.running for body in self._bodies):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)
        under_way = (*self._released, *self._unconfirmed)
        ended = [future for one in under_way if (future := one.release_ended()) is not None]
        if ended:
            await asyncio.wait(ended, timeout=max(0.0, begun + releases - self._now()))

    def end(self, releases: float) -> None:
        """What is still held is held no more; the log says what has become of them."""
        self.begin()
        unconfirmed = [one for one in dict.fromkeys((*self._released, *self._unconfirmed)) if one.end is None]
        for possession in unconfirmed:
            why = BackendError(f"Redis did not answer within {releases:g} s")
            possession.lose("its release was not confirmed in time; the ttl frees it", unconfirmed=why)
        released = [one for one in reversed(self._released) if not one.lost]
        ended = [one for one in reversed(self._lost) if one.given_back]
        left = [one for one in self._lost if not one.given_back] + [one for one in self._released if one.lost]
        if released:
            what = "the session was closed: leases that no code worked under were released, %s"
            log.info(what, _named(released))
        if ended:
            log.warning("the session was closed: bodies were cancelled, and have ended, %s", _named(ended))
        if left:
            log.warning(
                "the session was closed: leases are left to their ttl, for code may still work under them "
                "or the server has not confirmed their release, %s; the last of these names is free at %s",
                _named(left),
                self._wall(max(self._until[one] for one in left)),
            )

    def _wall(self, moment: float) -> str:
        at = dt.datetime.now(dt.UTC).astimezone() + dt.timedelta(seconds=moment - self._now())
        return at.isoformat(sep=" ", timespec="seconds")


def release_unused(found: Callable[[], Sequence[Any]]) -> None:
    """The event loop ends, and the session was not closed: what no code works under is released.

    Synchronous: the answers come while the connection is closed.
    """
    unused = sorted((one for one in found() if one.left_by(None)), key=_since)
    for possession in reversed(unused):
        possession.send_release()
    if unused:
        log.info("the event loop ends: leases that no code works under are released, %s", _named(unused))


def _since(possession: Any) -> float:
    since: float = possession.granted_at
    return since


def _named(possessions: Sequence[Any]) -> str:
    """How many there are, and ten of their names."""
    names = dict.fromkeys(f"{one.kind} {one.name!r}" for one in possessions)
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"{len(possessions)} in all: {', '.join(list(names)[:_NAMES])}{more}"
