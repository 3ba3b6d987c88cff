"""A server on its machine: in the network, with a clock of its own, and with everything that can befall
it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .clockwork import Clockwork
from .network import Network, Peer, Wire
from .server.server import Server
from .server.session import Client
from .trace import Trace

EPOCH = 1_700_000_000_000_000
"""The server's wall clock when the world begins, in microseconds since 1970."""
SWEEP = 0.1
"""Seconds between two times at which a server looks for what has come to its end."""


@dataclass(frozen=True)
class ServerClock:
    """The wall clock of a server.

    Attributes:
        ahead: Seconds by which it is ahead of the earliest that may be.
        rate: How much faster it runs than the world's.
    """

    ahead: float = 0.0
    rate: float = 1.0


class _Socket:
    """The server's end of a wire."""

    def __init__(self, node: Node, wire: Wire) -> None:
        self._node = node
        self._wire = wire
        self.client: Client = node.server.connect(wire.reply, wire.hang_up, f"{wire.process}:{wire.number}")
        node.accepted(self.client, wire)

    def received(self, data: bytes) -> None:
        self._node.received(self.client, data)

    def hung_up(self) -> None:
        self._node.server.disconnected(self.client)


class Node:
    """One server in the network.

    Args:
        clock: None for one that stands somewhere, and runs with the world's.

    Attributes:
        frozen: Whether it is stopped; what it receives piles up.
        down: Whether it refuses connections.
        on_request: Called with this node when it has executed a request.
        on_step: Called with its server, the request and its reply, before that.
    """

    def __init__(
        self,
        name: str,
        clockwork: Clockwork,
        network: Network,
        trace: Trace,
        *,
        version: str = "7.2.0",
        clock: ServerClock | None = None,
        make: Callable[..., Server] = Server,
    ) -> None:
        self.name = name
        self.address = (name, 6379)
        self.frozen = self.down = False
        self._routes: dict[int, str] = {}  # how the trace names each connection
        self.on_request: Callable[[Node], object] = lambda _: None
        self.on_step: Callable[[Server, tuple[bytes, ...], Any], object] = lambda *_: None
        self._clockwork = clockwork
        self._random = clockwork.part(name)
        self._trace = trace
        somewhere = self._random.randrange(10**9)
        self._rate = 1.0 if clock is None else clock.rate
        self._then = (0.0, EPOCH + (somewhere if clock is None else int(clock.ahead * 1e6)))
        self._waiting: list[tuple[Client, bytes]] = []
        self.server = make(
            self.clock,
            run_id=f"{self._random.getrandbits(160):040x}",
            version=version,
            on_request=self._requested,
        )
        network.hosts[self.address] = self
        clockwork.every(SWEEP, self._sweep, first=SWEEP * self._random.random())

    def clock(self) -> int:
        """Its wall clock, in microseconds."""
        world, own = self._then
        return own + int((self._clockwork.now - world) * self._rate * 1e6)

    def set_clock(self, *, ahead: float) -> None:
        """Sets its clock ahead by `ahead` seconds, or back."""
        self._then = (self._clockwork.now, self.clock() + int(ahead * 1e6))

    # -- the network

    def accept(self, wire: Wire) -> Peer | None:
        return None if self.down else _Socket(self, wire)

    def accepted(self, client: Client, wire: Wire) -> None:
        self._routes[client.id] = f"{self.name}←{wire.name}"

    def received(self, client: Client, data: bytes) -> None:
        if self.frozen:
            self._waiting.append((client, data))
        else:
            self.server.feed(client, data)

    def _requested(self, client: Client, words: tuple[bytes, ...], reply: Any) -> None:
        self._trace.requested(self._routes[client.id], words, reply)
        self.on_step(self.server, words, reply)
        self.on_request(self)

    def _sweep(self) -> None:
        if not self.frozen and not self.down:
            self.server.sweep()

    # -- what befalls it

    def freeze(self) -> None:
        self._trace.happened(self.name, "frozen")
        self.frozen = True

    def thaw(self) -> None:
        self._trace.happened(self.name, "thawed")
        self.frozen = False
        waiting, self._waiting = self._waiting, []
        for client, data in waiting:
            self.server.feed(client, data)

    def stop(self) -> None:
        """It dies: its connections end, and it refuses new ones."""
        self._trace.happened(self.name, "died")
        self.down = True
        for client in list(self.server.clients.values()):
            self.server.drop(client)
        self._waiting.clear()

    def start(self, *, keep: bool) -> None:
        """It comes back, with its data or without."""
        self._trace.happened(self.name, f"came back {'with its data' if keep else 'empty'}")
        self.server.restart(f"{self._random.getrandbits(160):040x}", keep=keep)
        self.down = False

    def dispose(self) -> None:
        self.server.clients.clear()
