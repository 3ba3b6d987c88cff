"""The masters that may vote: N masters that are N servers. One listed twice would be a majority by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, final

from ..._tasks import empty_context
from ...errors import ConfigurationError
from ..answers import fields
from ..faults import Fault, failed
from ..request import Request, Script, Transport

Told = Callable[[Fault | None], None]

_OPENING: Final = 0.15
"""Seconds for which the very first vote waits for masters that are slow to say who they are."""
_LEAST_PATIENCE: Final = 1.0
"""Seconds that a question has at least, however little time the callers have: it takes a connection and two
round trips. A master that answers too late for the present request can vote on the next one."""

_MISCONFIGURED: Final = 1.0
"""Seconds for which what is wrong with the masters is taken for granted."""


@final
@dataclass(slots=True, eq=False)
class Master:
    """One of the masters.

    Attributes:
        asking: A question is out.
        admitted: It has said who it is since it was last out of reach, or may not be asked: it may vote.
        met: It has answered anything so far.
        unanswered_since: Loop time of the first request after its last answer; None if there is none.
        known: Scripts that it has answered since it was last out of reach. Other scripts are sent to it in
            full: sent again because it did not know them, they would come after later requests.
        run_id: Which server process it was when it was asked last; empty while that is not known.
        clock: What its clock said in its last vote that tells it, microseconds; 0: in none.
        clock_at: Loop time at which that was heard.
    """

    label: str
    transport: Transport
    admitted: bool = False
    asking: bool = False
    met: bool = False
    unanswered_since: float | None = None
    known: set[Script] = field(default_factory=set)
    run_id: bytes = b""
    waiting: list[Told] = field(default_factory=list)
    clock: int = 0
    clock_at: float = 0.0

    def asked(self, now: float) -> None:
        if self.unanswered_since is None:
            self.unanswered_since = now

    def answered(self, _: object = None) -> None:
        self.met = True
        self.unanswered_since = None

    def silent_for(self, seconds: float, now: float) -> bool:
        """Whether it has answered nothing for so long, although it was asked."""
        return self.unanswered_since is not None and now - self.unanswered_since >= seconds

    def silent(self) -> None:
        """At its address there may be another server the next time."""
        self.admitted = False
        self.known.clear()


@final
class Voters:
    """Asks each master once which server it is, and again after it was out of reach.

    A master whose user may not ask `INFO` is believed: then a server that is listed twice is not noticed.

    Invariant: no master votes before all masters have said who they are, or have had time to.
    """

    def __init__(self, masters: list[Master], loop: asyncio.AbstractEventLoop) -> None:
        self._masters = masters
        self._loop = loop
        self._opened = False
        self._opening: asyncio.TimerHandle | None = None
        # Of the masters that have answered, until their calls are told: when all have, or time is up.
        self._outcomes: dict[Master, Fault | None] = {}
        self._misconfigured: Fault | None = None  # the fault that was found
        self._ask_again_at = 0.0  # loop time until which that is not asked again

    def ask(self, master: Master, told: Told, *, until: float, patience: float) -> None:
        """Tells, later, why it may not vote, or None.

        `until` is the loop time after which that is of no use to the caller; `patience` are the seconds that
        this master has for one request.
        """
        if self._misconfigured is not None and self._loop.time() < self._ask_again_at:
            self._loop.call_soon(told, self._misconfigured, context=empty_context())
            return
        master.waiting.append(told)
        if not self._opened and self._opening is None:
            opening = min(_OPENING, max(0.0, until - self._loop.time()))
            self._opening = self._loop.call_later(opening, self._open, context=empty_context())
        self._identify(master, patience)

    def seek(self, master: Master, patience: float) -> None:
        """Asks one that is not waited for, so that it may vote again once it answers."""
        if self._misconfigured is None or self._loop.time() >= self._ask_again_at:
            self._identify(master, patience)

    def _identify(self, master: Master, patience: float) -> None:
        if master.asking or master in self._outcomes:
            return
        master.asking = True
        now = self._loop.time()
        master.asked(now)
        until = now + max(patience, _LEAST_PATIENCE)
        self._question(master, "replication", b"role", until, partial(self._role, master, until))

    def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()

    def _role(self, master: Master, until: float, role: bytes) -> None:
        self._question(master, "server", b"run_id", until, partial(self._judge, master, role))

    def _question(
        self, master: Master, section: str, field: bytes, until: float, then: Callable[[bytes], None]
    ) -> None:
        """Asks for one fact; it is empty for a user that may not ask."""

        def answered(fact: bytes) -> None:
            master.answered()
            then(fact)

        def failed(fault: Fault) -> None:
            if fault.unknown or fault.transient or isinstance(fault.error, ConfigurationError):
                self._ended(master, fault)
            else:
                answered(b"")

        command = Request(None, (), ("INFO", section), partial(_field, field))
        # Not patient: the rounds learn at once that a master refuses connections. Then the other masters
        # decide, or it is asked again.
        master.transport.send(command.again().ask(answered, failed, until=until, patient=False))

    def _judge(self, master: Master, role: bytes, run_id: bytes) -> None:
        self._ended(master, self._objection(master, role, run_id))

    def _objection(self, master: Master, role: bytes, run_id: bytes) -> Fault | None:
        if role in (b"slave", b"replica"):
            if master.run_id:  # it was a master before: a failover, which may come to a good end
                return failed(
                    f"{master.label} is a replica: the master has changed",
                    None,
                    transient=True,
                    unknown=False,
                )
            return self._misconfiguration(
                f"{master.label} is a replica: a Redlock needs masters that are independent of each other"
            )
        master.run_id = run_id
        for other in self._masters:
            if other is not master and run_id and other.run_id == run_id:
                return self._misconfiguration(
                    f"{other.label} and {master.label} are the same server: each master of a Redlock must be "
                    "another one"
                )
        master.admitted = True
        return None

    def _misconfiguration(self, what: str) -> Fault:
        """No master votes any more."""
        for master in self._masters:
            master.admitted = False
        self._ask_again_at = self._loop.time() + _MISCONFIGURED
        self._misconfigured = Fault(ConfigurationError(what), transient=False, unknown=False)
        return self._misconfigured

    def _ended(self, master: Master, outcome: Fault | None) -> None:
        master.asking = False
        self._outcomes[master] = outcome
        if self._opened:
            self._tell(master)
        elif len(self._outcomes) == len(self._masters):
            self._open()

    def _open(self) -> None:
        self._opened = True
        if self._opening is not None:
            self._opening.cancel()
        # First of what is wrong with the masters: then no master is asked for a vote at all.
        for master in sorted(self._outcomes, key=lambda master: self._outcomes[master] is None):
            self._tell(master)

    def _tell(self, master: Master) -> None:
        outcome = self._outcomes.pop(master)
        waiting, master.waiting = master.waiting, []
        for told in waiting:
            told(outcome)


def _field(name: bytes, raw: Any) -> bytes:
    """One field of what INFO says; empty where it is not there."""
    if isinstance(raw, dict):  # as redis-py's own clients read it
        value = raw.get(name.decode(), b"")
        return value if isinstance(value, bytes) else str(value).encode()
    return fields(raw).get(name, b"")
