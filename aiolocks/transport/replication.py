"""Whether replicas have what a server has granted.

`WAIT` holds up the connection on which it is asked, so it has one of its own, and one question serves all
grants that came in before it.

**Why the answer holds.** `WAIT` counts the replicas that have acknowledged the stream of changes up to the
last write of its own connection, and on this connection nothing was granted. So two things come before it on
it: each grant's token is looked for (`owned`), and then a key is written, the *fence*. A server
sends all its changes to its replicas as one ordered stream, whichever connection made them. Say that the
server S answers. S has the lease, as `owned` says. It was granted before `owned` was asked, so its
changes come in the stream of S before the fence: S made them, or had them from its master before it took
that master's place. A replica that has acknowledged the fence has all that comes before it, and so the
lease. No assumption is made about which server granted it: after a failover a new master that does not know
the lease says so.

All of that is said on one connection, or it does not count: the requests leave in one write, an answer over
a later connection is given up, and a server that becomes a replica meanwhile refuses the fence or ends the
`WAIT`. This is so on Redis 6.2, 7.0 and Valkey 9; the offset that `WAIT` takes is set by every write that
is sent to replicas, of which `SET` is one under any circumstances.

`WAIT` also waits for replicas that are not there. `INFO` says how many are connected, and a single try that
needs more is refused at once. Where the user may not ask `INFO`, a try waits as any acquire does.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

from .._tasks import empty_context
from ..errors import ConfigurationError
from . import faults
from .answers import fields
from .faults import Fault
from .request import Proof, Request, ignore

if TYPE_CHECKING:
    from .connection import Multiplexed

_PATIENCE_MS: Final = 100
"""For how long one `WAIT` blocks its connection. The next grants may have to wait so long for a round whose
callers have all left."""
_FENCE_MS: Final = 1000
"""For how long the fence would stay if it could not be removed."""
_INFO: Final = ("INFO", "replication")
_POOLED: Final = (
    "replicas= needs a connection that this session does not have: WAIT speaks of what its own connection "
    "has written, and this client takes one out of its pool for each request"
)


@final
class Proofs:
    """The grants of one server that wait for the same number of replicas.

    Invariant: at most one round is under way; what comes in meanwhile is of the next. So no grant raises the
    offset that an earlier one waits for, and none waits for more than two rounds once the replicas follow.

    Args:
        connection: For nothing else.
        fence: Gives the fence's key, of a key of a grant; both are in one slot.
    """

    __slots__ = ("_coming", "_fence", "_loop", "_round", "_soon", "_tells", "connection")

    def __init__(
        self, connection: Multiplexed, fence: Callable[[bytes], bytes], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.connection = connection
        self._loop = loop
        self._fence = fence
        self._coming: list[Proof] = []
        self._round: _Round | None = None
        self._soon = False
        self._tells = True  # how many replicas are connected; not where that was denied

    def add(self, proof: Proof) -> None:
        self._coming.append(proof)
        if self._round is None and not self._soon:
            self._soon = True
            # With what else this turn of the loop brings.
            self._loop.call_soon(self._begin, context=empty_context())

    def _begin(self) -> None:
        self._soon = False
        proofs = [proof for proof in self._coming if not proof.done]
        self._coming.clear()
        self._round = _Round(self.connection, proofs, self._over) if proofs else None
        if self._round is not None:
            self._round.begin(self._fence, self._denied if self._tells else None)

    def _denied(self, fault: Fault) -> None:
        self._tells = fault.transient

    def _over(self) -> None:
        self._round = None
        if self._coming and not self._soon:
            self._soon = True
            self._loop.call_soon(self._begin, context=empty_context())


@final
class _Round:
    """One fence for several grants, and as many questions as it takes.

    Invariant: it is over once no grant waits and no `WAIT` is under way, or when the connection has ended.
    """

    __slots__ = (
        "_acknowledged",
        "_asked",
        "_calls",
        "_connection",
        "_number",
        "_on_over",
        "_over",
        "_proofs",
        "_replicas",
    )

    def __init__(self, connection: Multiplexed, proofs: list[Proof], on_over: Callable[[], None]) -> None:
        self._connection = connection
        self._proofs: dict[Proof, bool] = dict.fromkeys(proofs, False)  # whether the server has the lease
        self._replicas = proofs[0].replicas
        self._calls: list[Request[Any]] = []
        self._asked = False  # a `WAIT` is under way
        self._acknowledged = False  # enough replicas have the fence
        self._number = 0  # of the connection that has carried the fence, once that was answered
        self._over = False
        self._on_over = on_over

    def begin(self, fence: Callable[[bytes], bytes], denied: Callable[[Fault], None] | None) -> None:
        """In one write, so on one connection. `denied` is told if `INFO` is refused; None: not asked."""
        proofs = tuple(self._proofs)
        for proof in proofs:
            self._send(proof.owned, partial(self._told, proof), partial(self._fail, proof), corked=True)
        key = fence(proofs[0].owned.keys[0])
        for words in (("SET", key, "", "PX", _FENCE_MS), ("DEL", key)):
            self._send(Request(None, (), words, ignore), ignore, self._void, corked=True)
        if denied is not None and not all(proof.waits for proof in proofs):
            self._send(Request(None, (), _INFO, _connected), self._told_connected, denied, corked=True)
        self._ask()

    def _ask(self) -> None:
        self._asked = True
        self._send(
            Request(None, (), ("WAIT", self._replicas, _PATIENCE_MS), int),
            self._counted,
            self._void,
            corked=False,
        )

    def _send(
        self,
        command: Request[Any],
        replied: Callable[[Any], None],
        failed: Callable[[Fault], None],
        *,
        corked: bool,
    ) -> None:
        call = command.again().ask(replied, failed, until=math.inf)
        self._calls.append(call)
        self._connection.send(call, at_once=not corked, corked=corked)

    def _told(self, proof: Proof, has: bool) -> None:  # noqa: FBT001 - a reply
        if not has:
            self._proofs.pop(proof, None)
            proof.end(has=False)
        elif self._acknowledged:  # the server had not known the script
            self._proofs.pop(proof, None)
            if self._connection.connections == self._number:
                proof.end(has=True)
            else:
                proof.fault(faults.unanswered(None))
        elif not proof.done:
            self._proofs[proof] = True
        self._end_if_over()

    def _told_connected(self, number: int | None) -> None:
        if number is not None:
            for proof in tuple(self._proofs):
                proof.connected(number)

    def _fail(self, proof: Proof, fault: Fault) -> None:
        self._proofs.pop(proof, None)
        proof.fault(_of_this_server(fault))
        self._end_if_over()

    def _counted(self, number: int) -> None:
        self._asked = False
        if not self._connection.driven:
            self._void(_no_connection())
            return
        self._number = self._number or self._connection.connections
        if self._number != self._connection.connections:
            self._void(faults.unanswered(None))
            return
        self._acknowledged = number >= self._replicas
        for proof, has in tuple(self._proofs.items()):
            proof.seen = number
            if proof.done or (self._acknowledged and has):
                del self._proofs[proof]
                proof.end(has=True)
        if self._proofs and not self._acknowledged:
            self._ask()
        else:
            self._end_if_over()

    def _void(self, fault: Fault) -> None:
        """Nothing of this round counts."""
        self._asked = False
        proofs, self._proofs = self._proofs, {}
        for proof in proofs:
            proof.fault(_of_this_server(fault))
        self._end_if_over()

    def _end_if_over(self) -> None:
        if not self._proofs and not self._asked and not self._over:
            self._over = True
            for call in self._calls:
                call.done = True
            self._on_over()


def _connected(reply: Any) -> int | None:
    """How many replicas are connected, by the answer to `INFO`; None where that does not say it."""
    known = fields(reply) if isinstance(reply, bytes) else {}
    number = known.get(b"connected_slaves", b"")
    return int(number) if number.isdigit() else None


def not_driven(proof: Proof) -> None:
    """There is no connection on which `WAIT` could be asked."""
    proof.fault(_no_connection())


def _no_connection() -> Fault:
    return Fault(ConfigurationError(_POOLED), transient=False, unknown=False)


def _of_this_server(fault: Fault) -> Fault:
    """Another node of a cluster serves the slot by now, or will: that is found out by acquiring again."""
    cause = fault.error.__cause__
    if isinstance(cause, Exception) and faults.redirect(cause) is not None:
        return Fault(fault.error, transient=True, unknown=False)
    return fault
