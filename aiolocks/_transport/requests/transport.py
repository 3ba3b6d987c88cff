"""The protocol of all transports: to one connection, a pool, a cluster, several masters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, final

from ..faults import Fault
from .calls import Call, Command


@final
class Proof:
    """One grant that counts when enough replicas have it. Ends exactly once, or its caller leaves.

    Args:
        owned: Asks whether the server has the lease.
        replicas: How many must have it.
        on_end: Told True when they have, False when the server does not know of the lease.
        on_fault: Told why it cannot be said.

    Attributes:
        seen: How many had it when they were counted last.
        done: It has ended, or nobody wants to know any more.
    """

    __slots__ = ("_on_end", "_on_fault", "done", "owned", "replicas", "seen")

    def __init__(
        self,
        owned: Command[bool],
        replicas: int,
        on_end: Callable[[bool], None],
        on_fault: Callable[[Fault], None],
    ) -> None:
        self.owned = owned
        self.replicas = replicas
        self._on_end = on_end
        self._on_fault = on_fault
        self.seen = 0
        self.done = False

    def end(self, has: bool) -> None:  # noqa: FBT001 - an outcome, not a switch
        if not self.done:
            self.done = True
            self._on_end(has)

    def fault(self, fault: Fault) -> None:
        if not self.done:
            self.done = True
            self._on_fault(fault)


class Transport(Protocol):
    """A way to one server. Everything but `aclose` is synchronous: what it starts goes on by itself."""

    @property
    def hears(self) -> bool:
        """Whether bells are heard now."""
        ...

    @property
    def ordered(self) -> bool:
        """Whether all calls, not just those of a lane, reach the server in the order of their sending."""
        ...

    @property
    def by_slot(self) -> bool:
        """Whether a step must not have keys of several slots."""
        ...

    @property
    def outage_told(self) -> bool:
        """Whether the log says that a server is away or refuses, and not yet that it is back.

        Then nobody else needs to say so.
        """
        ...

    @property
    def commands_sent(self) -> int:
        """Number of requests sent so far, without those that set up a connection."""
        ...

    def send(self, call: Call[Any], *, at_once: bool = False, corked: bool = False) -> None:
        """Sends it, in order after earlier requests of the same lane.

        Calls of one turn of the loop leave together; `at_once` writes them now (for an undo, which
        may be the last thing that this loop does); `corked` leaves it for the next call, which follows.
        """
        ...

    def prove(self, proof: Proof) -> None:
        """Finds out whether replicas have what was granted over this transport."""
        ...

    def ignore_bell(self, bell: bytes) -> None:
        """Nobody wants to hear of that key any more; it is heard again when a command names it."""
        ...

    def forget(self, call: Call[Any]) -> bool:
        """The caller has left: nobody is told how it ended.

        Returns:
            Whether the server may have seen it, or may see it yet.
        """
        ...

    def rest(self) -> bool:
        """Closes the connections, if none has anything to do; the next request opens one.

        Returns:
            Whether it has; else a request is under way.
        """
        ...

    async def aclose(self, grace: float) -> None:
        """Sends what still waits for at most `grace` seconds, then closes. Idempotent."""
        ...
