"""The transport for connections that the session cannot drive: what it does before it has one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aiolocks._transport import Call, Command
from aiolocks._transport.client.driver import MakeWords, Words
from aiolocks._transport.requests.calls import ignore
from aiolocks._transport.wire.pooled import Pooled


class SlowToConnect:
    """Executes requests when there is a connection, and not before."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()
        self.sent: list[Words] = []

    async def __call__(self, make: MakeWords) -> Any:
        await self.connected.wait()
        self.sent.append(make())
        return b"OK"

    async def aclose(self) -> None:
        pass


@pytest.fixture
async def server() -> SlowToConnect:
    return SlowToConnect()


@pytest.fixture
async def pooled(server) -> AsyncIterator[Pooled]:
    transport = Pooled(server, server.aclose, asyncio.get_running_loop(), label="Redis")
    yield transport
    await transport.aclose(1)


def call(word: str, **options: Any) -> Call[Any]:
    until = asyncio.get_running_loop().time() + 5
    command: Command[Any] = Command(None, (), (word,), ignore, lane="one")
    return Call(command, ignore, ignore, until=until, **options)


async def connected(server: SlowToConnect) -> None:
    """A connection comes about, and all is sent that must be sent."""
    await asyncio.sleep(0.01)
    server.connected.set()
    await asyncio.sleep(0.05)


async def test_a_request_that_nobody_wants_any_more_is_not_sent(pooled, server) -> None:
    """Nothing must be undone then: the server never has it."""
    acquire = call("acquire")
    pooled.send(acquire)
    await asyncio.sleep(0.01)

    executed = pooled.forget(acquire)

    assert not executed
    pooled.send(call("next"))
    await connected(server)
    assert server.sent == [("next",)]


async def test_a_request_is_made_for_the_moment_at_which_it_is_sent(pooled, server) -> None:
    """An undo leaves the queue if nobody of its session waits then, not when it was asked for."""
    content = ["before"]
    undo = call("", undoes=True, make=lambda: Command(None, (), tuple(content), ignore, lane="one"))
    pooled.send(undo)
    await asyncio.sleep(0.01)
    assert not undo.written

    content[:] = ["after"]
    await connected(server)

    assert server.sent == [("after",)]
    assert undo.done


async def test_its_time_counts_from_when_it_was_sent(pooled, server) -> None:
    """A lease is not shorter for the time that it took to connect."""
    acquire = call("acquire")
    pooled.send(acquire)
    await asyncio.sleep(0.1)
    connected_at = asyncio.get_running_loop().time()

    await connected(server)

    assert acquire.sent >= connected_at
    assert acquire.done
