"""The lines of the log while servers of a session are away, or refuse what they are asked."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from .request import Script

from .._logs import get_logger
from .._tasks import empty_context
from .._visible import in_line

log = get_logger("aiolocks.transport")

_SETTLED: Final = 3.0
"""Seconds without a refusal after which a server that executes requests has got over it: at the limit of its
memory, it refuses some requests and executes other ones. Longer than the pauses of tasks that go on by
themselves: else each pause would look like the end of the outage."""
_FORGOTTEN: Final = 60.0
"""Seconds without a further refusal after which it is not known whether the server would still refuse."""


@final
class Outages:
    """One warning when the first server of a session goes, and one when all are back.

    So an outage has two lines, however many attempts, locks and schedules meet it, and however many nodes of
    a cluster it takes: the further servers are told at `INFO`.
    """

    __slots__ = ("_open", "_since", "_told", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._open: set[Outage] = set()
        self._since = 0.0
        self._told: dict[str, None] = {}  # the servers of the present outage

    @property
    def told(self) -> bool:
        """Whether the log says that a server is away or refuses, and not yet that it is back."""
        return any(outage.lasts for outage in self._open)

    def begun(
        self, outage: Outage, what: str, why: BaseException, *, until: str, since: float, waits: bool
    ) -> None:
        """A server has gone since then."""
        first = not self.told
        if first:
            self._open.clear()
            self._told.clear()
            self._since = since
        self._open.add(outage)
        self._told[outage.label] = None
        log.log(
            logging.WARNING if first else logging.INFO,
            "%s %s since %s: %s. Until it %s, %s, and a lease that cannot be renewed ends with its ttl",
            outage.label,
            what,
            time.strftime("%H:%M:%S", time.localtime(time.time() - self.loop.time() + since)),
            in_line(why).rstrip(".") or type(why).__name__,
            until,
            "waiters wait and other requests fail" if waits else "requests fail",
        )

    def over(self, outage: Outage, how: str, *, since: float, at: float) -> None:
        """This server is back since `at`."""
        if outage not in self._open:  # it was forgotten
            return
        self._open.discard(outage)
        if self.told:
            log.info("%s %s after %.1f s", outage.label, how, at - since)
        elif len(self._told) == 1:
            log.warning("%s %s after %.1f s", outage.label, how, at - since)
        else:
            log.warning("all servers answer again after %.1f s: %s", at - self._since, ", ".join(self._told))


@final
class Outage:
    """The part of one server, as the connections to it find it.

    It is away from when an attempt to connect has failed, or when it has been silent for so long that its
    connection was given up. A connection that breaks and is made again at the first attempt is no outage. It
    refuses from when it says that it is in a state in which it cannot execute what it is asked, until it
    executes a script that it has refused.

    Args:
        label: How people call the server; never with credentials.
        outages: The outages of all servers of the session.
    """

    __slots__ = ("_away", "_outages", "_refused", "_refused_at", "_settling", "_since", "label")

    def __init__(self, label: str, outages: Outages) -> None:
        self.label = label
        self._outages = outages
        self._away = False
        self._refused: set[Script] = set()
        self._refused_at = self._since = 0.0
        self._settling: asyncio.TimerHandle | None = None

    @property
    def told(self) -> bool:
        """Whether the log says of any server of the session that it is away or refuses."""
        return self._outages.told

    @property
    def refuses(self) -> bool:
        """Whether it has refused scripts, and is not known to have got over it."""
        return bool(self._refused)

    @property
    def lasts(self) -> bool:
        """Whether it is away or refuses now, as far as is known."""
        return self._away or (self.refuses and self._now() < self._refused_at + _FORGOTTEN)

    def begun(self, why: BaseException, *, since: float, waits: bool = True) -> None:
        """The server is away since then, if that is not known already; `waits`: waiters wait for its end."""
        if self._away:
            return
        self._since = since
        self._outages.begun(self, "is away", why, until="is back", since=since, waits=waits)
        self._refuse_no_more()
        self._away = True

    def refused(self, script: Script, why: BaseException, *, waits: bool) -> None:
        """The server is in a state in which it refuses this script for now."""
        now = self._now()
        if not self.lasts:
            self._since = now
            self._outages.begun(
                self, "refuses requests", why, until="executes them again", since=now, waits=waits
            )
        self._settle_no_more()
        self._refused.add(script)
        self._refused_at = now

    def served(self, script: Script) -> None:
        """It has executed this script."""
        if script in self._refused and self._settling is None:
            self._settling = self._outages.loop.call_later(
                _SETTLED, self._settled, self._now(), context=empty_context()
            )

    def _settled(self, at: float) -> None:
        self._refuse_no_more()
        self._outages.over(self, "executes requests again", since=self._since, at=at)

    def over(self, how: str = "is back") -> None:
        """A connection was made, or none is needed any more."""
        if self._away:
            self._away = False
            self._outages.over(self, how, since=self._since, at=self._now())

    def left(self) -> None:
        """The session does not need this server any more."""
        self._away = self._away or self.refuses
        self._refuse_no_more()
        self.over("serves no slots any more,")

    def _refuse_no_more(self) -> None:
        self._refused.clear()
        self._settle_no_more()

    def _settle_no_more(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None

    def _now(self) -> float:
        return self._outages.loop.time()
