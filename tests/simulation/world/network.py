"""Connections between processes and servers: two ordered streams of bytes, and what can become of them."""

from __future__ import annotations

import asyncio
import errno
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .clockwork import Clockwork
from .loop import SimulatedLoop
from .transport import SocketTransport

Address = tuple[str, int]

NEVER = math.inf


@dataclass(frozen=True, slots=True)
class Delays:
    """How long bytes take, one way, in seconds.

    Attributes:
        spikes: How often bytes take `spike` longer.
    """

    least: float = 0.00005
    most: float = 0.0004
    spikes: float = 0.0
    spike: float = 0.15

    @property
    def longest(self) -> float:
        return self.most + (self.spike if self.spikes else 0.0)

    def draw(self, rng: random.Random) -> float:
        delay = self.least + (self.most - self.least) * rng.random()
        if self.spikes and rng.random() < self.spikes:
            delay += self.spike * rng.random()
        return delay


NEAR = Delays()
FAR = Delays(0.002, 0.02)
STEADY_FAR = Delays(0.01, 0.02)
SPIKY = Delays(0.0001, 0.004, spikes=0.02)


class Peer(Protocol):
    """The server's end of a connection."""

    def received(self, data: bytes) -> None: ...

    def hung_up(self) -> None: ...


class Host(Protocol):
    """Something that listens at an address."""

    def accept(self, wire: Wire) -> Peer | None:
        """The server's end; None refuses."""
        ...


class Network:
    """All addresses and connections.

    Args:
        traced: Told of what happens to connections.
    """

    def __init__(self, clockwork: Clockwork, traced: Callable[[str, str], None]) -> None:
        self.clockwork = clockwork
        self.traced = traced
        self.hosts: dict[Address, Host] = {}
        self.wires: list[Wire] = []
        self._made: dict[str, int] = {}
        self.delays: dict[str, Delays] = {}  # by process
        self._blocked: dict[tuple[str, Address], float] = {}

    def block(self, process: str, address: Address, until: float) -> None:
        """A black hole: until then no byte gets through, either way, and none is lost."""
        self._blocked[process, address] = until

    def blocked_until(self, process: str, address: Address) -> float:
        return self._blocked.get((process, address), 0.0)

    def between(self, process: str, address: Address) -> list[Wire]:
        """The connections that are open between them."""
        return [wire for wire in self.wires if wire.process == process and wire.address == address]

    async def connect(
        self, process: str, loop: SimulatedLoop, protocol: asyncio.Protocol, address: Address
    ) -> SocketTransport:
        """The part of `connect` for a process: a round trip, and then the transport, or `OSError`."""
        number = self._made[process] = self._made.get(process, 0) + 1
        clockwork = self.clockwork
        rng = clockwork.part(f"{process}/wire{number}")
        wire = Wire(self, process, number, address, self.delays.get(process, NEAR), rng)
        arrived: asyncio.Future[Peer | None] = loop.create_future()

        def arrive() -> None:
            host = self.hosts.get(address)
            peer = host.accept(wire) if host is not None else None
            wire.peer = peer
            loop.sockets.add(_Once(lambda: arrived.done() or arrived.set_result(peer)))

        def there() -> None:
            blocked = self.blocked_until(process, address)
            if blocked > clockwork.now:
                clockwork.at(blocked + wire.delay(), there)
            else:
                arrive()

        clockwork.after(wire.delay() + wire.delay(), there)
        try:
            peer = await arrived
        except asyncio.CancelledError:
            wire.cut()
            raise
        if peer is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{address[0]}:{address[1]} refuses")
        wire.transport = transport = SocketTransport(wire, loop, protocol)
        for data in wire.early:
            transport.arrived(data)
        wire.early.clear()
        self.wires.append(wire)
        loop.call_soon(protocol.connection_made, transport)
        if wire.ended_early:
            wire.ended_at_process(wire.ended_early[0])
        return transport


class _Once:
    """A readable event that is not of a socket's bytes."""

    def __init__(self, told: Callable[[], object]) -> None:
        self.read_ready = told


class Wire:
    """One connection. Bytes that are sent in one direction arrive in order.

    Attributes:
        transport: The process's end.
        peer: The server's.
    """

    def __init__(
        self,
        network: Network,
        process: str,
        number: int,
        address: Address,
        delays: Delays,
        rng: random.Random,
    ) -> None:
        self._network = network
        self._clockwork = network.clockwork
        self.process = process
        self.number = number
        self.address = address
        self.delays = delays
        self._rng = rng
        self.transport: SocketTransport | None = None
        self.peer: Peer | None = None
        self.early: list[bytes] = []  # the bytes that came before the process had its end
        self.ended_early: list[OSError | None] = []
        self._latest = [0.0, 0.0]  # when what was sent last arrives: at the server, at the process
        self.deaf = False  # half open: what the process sends is heard by nobody
        self.lagging = 0.0  # seconds that bytes on their way to the server take longer
        self.breaks_until = 0.0  # an answer before then is lost, and the connection with it

    @property
    def name(self) -> str:
        return f"{self.process}#{self.number}"

    def delay(self) -> float:
        return self.delays.draw(self._rng)

    def _arrival(self, direction: int) -> float:
        now = self._clockwork.now
        arrival = now + self.delay()
        blocked = self._network.blocked_until(self.process, self.address)
        if blocked > now:
            arrival = blocked + self.delay()
        arrival = self._latest[direction] = max(arrival, self._latest[direction] + 1e-9)
        return arrival

    # -- from the process

    def send(self, data: bytes) -> None:
        if not self.deaf:
            self._clockwork.at(self._arrival(0), self._at_server, data)

    def _at_server(self, data: bytes, lagged: float = 0.0) -> None:
        if self.lagging > lagged:
            self._clockwork.after(self.lagging - lagged, self._at_server, data, self.lagging)
        elif self.peer is not None:
            self.peer.received(data)

    def finish(self) -> None:
        """The process has closed its end."""
        if not self.deaf:
            self._clockwork.at(self._arrival(0), self._gone_at_server)
        self._off()

    def _gone_at_server(self) -> None:
        peer, self.peer = self.peer, None
        if peer is not None:
            peer.hung_up()

    def _off(self) -> None:
        if self in self._network.wires:
            self._network.wires.remove(self)

    # -- from the server

    def reply(self, data: bytes) -> None:
        if self._clockwork.now < self.breaks_until:
            self.cut()
            return
        self._clockwork.at(self._arrival(1), self._at_process, data)

    def _at_process(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.arrived(data)
        else:
            self.early.append(data)

    def hang_up(self) -> None:
        """The server has closed its end."""
        self.peer = None
        self._clockwork.at(self._arrival(1), self.ended_at_process, None)

    def ended_at_process(self, error: OSError | None) -> None:
        """The process is told that the connection has ended, as soon as it has it."""
        if self.transport is None:
            self.ended_early.append(error)
        else:
            self.transport.ended(error)
        self._off()

    # -- from neither

    def cut(self, *, server_learns: float = 0.0, late: float = 0.0) -> None:
        """The connection is broken: the process is told now, the server only after a while.

        Args:
            server_learns: Seconds until the server is told; infinity: never.
            late: Seconds that what is on its way to the server takes longer than it would have.
        """
        self._network.traced(self.name, "cut" + (f", bytes late by {late:.3f} s" if late else ""))
        self.lagging = late
        self.ended_at_process(ConnectionResetError(errno.ECONNRESET, "cut"))
        if server_learns < NEVER:
            self._clockwork.at(
                max(self._latest[0] + late, self._clockwork.now + server_learns), self._gone_at_server
            )
        self._off()
