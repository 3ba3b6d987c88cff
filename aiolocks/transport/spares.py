"""The further connections that a connection makes to its server: for long requests, and to count replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, final

from . import faults
from .bulk import Bulk, ForMain
from .replication import Proofs
from .request import Proof, Request

if TYPE_CHECKING:
    from .connection import Multiplexed, Router


@final
class Spares:
    """The further connections of one connection, each made when it is first needed.

    Args:
        fence: Gives the key that is written when replicas are counted, of a key of what was granted.
    """

    __slots__ = ("_bulk", "_fence", "_loop", "_main", "_proofs", "_router")

    def __init__(
        self,
        main: Multiplexed,
        loop: asyncio.AbstractEventLoop,
        *,
        router: Router | None,
        fence: Callable[[bytes], bytes],
    ) -> None:
        self._main = main
        self._loop = loop
        self._router = router
        self._fence = fence
        self._bulk: Bulk | None = None
        self._proofs: dict[int, tuple[Multiplexed, Proofs]] = {}  # by number of replicas

    # -- what goes there

    def send(self, call: Request[Any]) -> None:
        """It is on its way alone from now on."""
        if self._bulk is None:
            router = None if self._router is None else ForMain(self._router, self._main)
            connection = self._main.open_spare(alone=True, router=router)
            self._bulk = Bulk(self._main, connection, self._loop)
        self._bulk.send(call)

    def concerns(self, call: Request[Any]) -> bool:
        """Whether it has to come after a request that is on its way alone."""
        return self._bulk is not None and self._bulk.concerns(call)

    def prove(self, proof: Proof) -> None:
        """Finds out whether replicas have what was granted."""
        if proof.replicas not in self._proofs:
            connection = self._main.open_spare(alone=False)
            self._proofs[proof.replicas] = connection, Proofs(connection, self._fence, self._loop)
        self._proofs[proof.replicas][1].add(proof)

    # -- what the connection says for all of them

    @property
    def commands_sent(self) -> int:
        return sum(connection.commands_sent for connection in self._connections())

    @property
    def waiting(self) -> tuple[Request[Any], ...]:
        """Requests that wait for earlier ones of their slots, and were not sent yet."""
        return () if self._bulk is None else tuple(self._bulk.waiting)

    @property
    def busy(self) -> bool:
        return self._bulk is not None and self._bulk.busy

    @property
    def stuck(self) -> bool:
        return self._bulk is not None and self._bulk.connection.stuck

    def awaited(self) -> list[Request[Any]]:
        return [] if self._bulk is None else [*self._bulk.waiting, *self._bulk.connection.awaited()]

    def take_back(self, elsewhere: Callable[[Request[Any]], bool]) -> list[Request[Any]]:
        return [] if self._bulk is None else self._bulk.take_back(elsewhere)

    def distrust(self) -> None:
        """The server was silent on the main connection: these may be broken, too."""
        for connection in self._connections():
            connection.distrust()

    def leave(self) -> None:
        for connection in self._connections():
            connection.leave()

    def authenticate(self, words: tuple[str, ...]) -> None:
        for connection in self._connections():
            connection.authenticate(words)

    def tell_impatient(self) -> None:
        if self._bulk is not None:
            self._bulk.connection.tell_impatient()

    # -- closing

    def rest(self) -> None:
        for connection in self._connections():
            connection.rest()

    async def drain(self, deadline: float) -> None:
        """Sends what still waits, and closes."""
        # Polled, as a request tells its end to its caller alone.
        while self._loop.time() < deadline and any(not call.done for call in self.waiting):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for connection in self._connections():
            of_proofs = self._bulk is None or connection is not self._bulk.connection
            await connection.aclose(0.0 if of_proofs else max(0.05, deadline - self._loop.time()))

    def close(self) -> None:
        for connection in self._connections():
            connection.close()
        for call in self.waiting:
            call.fault(faults.session_closed())

    def _connections(self) -> Iterator[Multiplexed]:
        if self._bulk is not None:
            yield self._bulk.connection
        for connection, _ in self._proofs.values():
            yield connection
