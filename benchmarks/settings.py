"""The settings of a run, in the form in which they travel to worker processes too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from redis.asyncio import Redis, RedisCluster

from aiolocks.testing import EmbeddedServer

from .servers import executables

Wakeup = Literal["auto", "tracking", "keyspace", "poll"]
LoopName = Literal["asyncio", "uvloop"]

WAKEUPS: Final[tuple[Wakeup, ...]] = ("auto", "tracking", "keyspace", "poll")
ROUNDS: Final = 5
"""How often each contender is measured, by default, in most workloads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to measure.

    Attributes:
        rounds: How often each contender is measured, after one round that is thrown away; None for the usual
            number of each workload.
        quick: Tiny sizes: whether it works, not how fast it is.
        loop: The event loop of this process and of the workers.
        tcp: Whether the server is reached over TCP instead of its unix socket.
        wakeups: The ways of waking up that get a row of their own where they matter.
        server: The server that is measured, by its name in `executables`.
    """

    rounds: int | None = None
    quick: bool = False
    loop: LoopName = "asyncio"
    tcp: bool = False
    wakeups: tuple[Wakeup, ...] = WAKEUPS[1:]
    server: str = ""

    def embedded(self, *, port: int | None = None) -> EmbeddedServer:
        """One more such server, which runs while it is entered; over a unix socket, or a port."""
        return EmbeddedServer(executable=executables()[self.server], port=port, password=False)

    def size(self, full: int, quick: int) -> int:
        """A size of a workload."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is: a unix socket, or a port on 127.0.0.1.

    Attributes:
        cluster: Whether the server at the port is a node of a cluster, which leads to the others.
    """

    path: str
    port: int | None = None
    cluster: bool = False

    @classmethod
    def of(cls, server: EmbeddedServer) -> Self:
        """Where this server is."""
        return cls(str(server.path), server.port)

    @property
    def client_arguments(self) -> dict[str, Any]:
        """The arguments of redis-py and of the clients built on it."""
        if self.port is None:
            return {"unix_socket_path": self.path}
        return {"host": "127.0.0.1", "port": self.port}

    def client(self) -> Any:
        """A client of redis-py for it, which is entered; of the whole cluster, where it is one."""
        return (RedisCluster if self.cluster else Redis)(**self.client_arguments)

    @property
    def url(self) -> str:
        """The same as an URL."""
        return f"unix://{self.path}" if self.port is None else f"redis://127.0.0.1:{self.port}/0"


def loop_factory(name: LoopName) -> Callable[[], asyncio.AbstractEventLoop]:
    """The maker of the event loop."""
    if name == "uvloop":
        import uvloop  # noqa: PLC0415 - only where it was asked for

        factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
        return factory
    return asyncio.new_event_loop
