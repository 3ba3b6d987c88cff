"""A test of the suite in the simulated world: its coroutine runs there, and its fixtures are the world's.

What waits for a ttl, a tick or a time-out takes no time there, and no machine stands still.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from redis.asyncio import Redis

from aiolocks import Session
from tests.simulation.world.network import NEAR, Delays
from tests.simulation.world.randomness import seeded
from tests.simulation.world.world import World
from tests.support.clients import with_own_connections
from tests.support.hygiene import HygieneError, Leavings, TokenWatch

LIMIT = 300.0
"""Seconds of the world that a test may take."""
AFTERWARDS = 1.0
"""Seconds in which what is under way arrives when the test has ended: as long as an undo may take."""
LINK = 0.005
PREFIX = "aiolocks"


class Place:
    """One server, and one process with what the fixtures offer."""

    def __init__(self, world: World, *, plain: bool = False) -> None:
        self._world, self._plain = world, plain
        self._node = world.node("server")
        self._node.server.configure("notify-keyspace-events", "KA")
        self._process = world.process("p", delays=NEAR)
        self._stack = AsyncExitStack()
        self._given: dict[str, Any] = {
            "join": self.join,
            "connect": lambda _=None, **kwargs: self.join(**kwargs),
            "far_away": self.far_away,
            "keys": self.keys,
            "server": None,  # whom `connect` leads to
            "prefix": PREFIX,
        }

    def join(self, **kwargs: Any) -> Redis:
        client: Redis = Redis(host="server", port=6379, **kwargs)

        async def close() -> None:
            await Session.of(client).aclose()
            await client.aclose()

        self._stack.push_async_callback(close)
        return with_own_connections(client) if self._plain else client

    async def far_away(self, delay: float) -> Redis:
        """Connections that are made from now on are slow, of whichever client."""
        self._world.network.delays["p"] = Delays(delay, delay)
        return self.join()

    def keys(self) -> list[str]:
        return [key for key, _ in self._keys() if not Leavings().forgive(key, 1)]

    def _keys(self) -> list[tuple[str, int]]:
        """With their ttl in milliseconds."""
        server = self._node.server
        server.now_us = self._node.clock()
        return [
            (key.decode(), store.ends[key] - server.now_us // 1000 if key in store.ends else -1)
            for store in server.stores.values()
            for key in store.present()
        ]

    async def _fixture(self, name: str) -> Any:
        if name not in self._given:
            match name:
                case "client" | "redis":
                    made: Any = self.join()
                case "far":
                    made = await self.far_away(LINK)
                    await made.ping()
                case "session":
                    made = await self._stack.enter_async_context(Session(self.join(), prefix=PREFIX))
                case _:
                    raise LookupError(f"the world has no fixture {name!r}")
            self._given[name] = made
        return self._given[name]

    def run(self, test: Callable[..., Any], given: dict[str, Any], leavings: Leavings) -> None:
        self._given.update(given)

        async def main() -> None:
            async with self._stack:
                names = inspect.signature(test).parameters
                await test(**{name: await self._fixture(name) for name in names})

        world, running = self._world, self._process.start(main(), "test")
        world.run(running.done, limit=LIMIT, steps=5_000_000)
        running.result()
        world.pass_until(world.now + AFTERWARDS)
        left = [*self._process.problems, *(task.get_name() for task in self._process.tasks())]
        left += [wire.name for wire in world.network.wires]
        left += [
            f"{key} for {ttl_ms} ms" for key, ttl_ms in self._keys() if not leavings.forgive(key, ttl_ms)
        ]
        if left:
            raise HygieneError(left)


def run(test: Callable[..., Any], *, plain: bool = False, **given: Any) -> None:
    """Run an async test there, which gets `given` and what the world has of its other fixtures.

    Args:
        plain: Its clients have connections of a class of the user's own.
    """
    tokens, leavings = TokenWatch(), leavings_of(test)
    with ExitStack() as stack:
        stack.enter_context(tokens.installed())
        world = World(test.__name__, stack.enter_context(seeded()))
        stack.callback(world.dispose)
        Place(world, plain=plain).run(test, given, leavings)
    if tokens.problems:
        raise HygieneError(tokens.problems)


def marks_of(of: Any) -> list[Any]:
    """The marks of a test, or of a module."""
    found = getattr(of, "pytestmark", [])
    return found if isinstance(found, list) else [found]


def leavings_of(test: Callable[..., Any]) -> Leavings:
    marks = [*marks_of(test), *marks_of(inspect.getmodule(test))]
    patterns = [mark.args for mark in marks if mark.name == "leaves_keys"]
    return Leavings(anything=() in patterns, patterns=tuple(one for args in patterns for one in args))


def rows_of(test: Callable[..., Any]) -> list[dict[str, Any]]:
    """The product of its parameters."""
    rows: list[dict[str, Any]] = [{}]
    for mark in marks_of(test):
        if mark.name == "parametrize":
            name, values = mark.args
            assert "," not in name
            rows = [{**row, name: value} for row in rows for value in values]
    return rows


def label(given: dict[str, Any]) -> list[str]:
    """For the id of a row."""
    return [getattr(value, "__name__", str(value)) for value in given.values()]
