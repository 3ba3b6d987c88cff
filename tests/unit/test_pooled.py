"""The transport for connections that the session cannot drive: what it does before it has one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain
from typing import Any

import pytest
import redis.exceptions as driver

from aiolocks.transport import Call, Command, Fault
from aiolocks.transport.driver import MakeWords, NotConnectedError, UnknownScriptError, Words
from aiolocks.transport.outages import Outage, Outages
from aiolocks.transport.pooled import Pooled
from aiolocks.transport.request import ignore


class SlowToConnect:
    """Executes requests when there is a connection, and not before."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()
        self.sent: list[Words] = []
        self.trouble: Iterator[Exception] = iter(())  # that the next attempts meet

    async def __call__(self, make: MakeWords) -> Any:
        trouble = next(self.trouble, None)
        if isinstance(trouble, NotConnectedError):
            raise trouble
        await self.connected.wait()
        self.sent.append(make())
        if trouble is not None:
            raise trouble
        return b"OK"

    async def aclose(self) -> None:
        pass


@pytest.fixture
async def server() -> SlowToConnect:
    return SlowToConnect()


@pytest.fixture
async def pooled(server) -> AsyncIterator[Pooled]:
    loop = asyncio.get_running_loop()
    transport = Pooled(server, server.aclose, loop, outage=Outage("Redis", Outages(loop)))
    yield transport
    await transport.aclose(1)


def call(word: str, on_fault: Callable[[Fault], None] = ignore, **options: Any) -> Call[Any]:
    until = asyncio.get_running_loop().time() + 5
    command: Command[Any] = Command(None, (), (word,), ignore, lane="one")
    return Call(command, ignore, on_fault, until=until, **options)


def refused() -> Iterator[Exception]:
    """Nobody listens there."""
    while True:
        yield NotConnectedError(driver.ConnectionError("Connection refused"))


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


async def test_nothing_is_made_while_there_is_no_connection(pooled, server) -> None:
    made = []

    def make() -> Command[Any]:
        made.append("undo")
        return Command(None, (), ("undo",), ignore, lane="one")

    server.trouble = refused()
    pooled.send(call("", undoes=True, make=make))
    await asyncio.sleep(0.5)
    assert made == []

    server.trouble = iter(())
    server.connected.set()
    await asyncio.sleep(0.6)
    assert made == ["undo"]


@pytest.mark.parametrize("first", [driver.ConnectionError("reset"), UnknownScriptError("NOSCRIPT")])
async def test_a_long_request_is_not_blamed_for_connections_that_are_refused(pooled, server, first) -> None:
    """Only for those that were closed while it was on its way."""
    faults: list[Fault] = []
    server.connected.set()
    server.trouble = chain([first], refused())
    long = call("x" * 200_000, faults.append)

    pooled.send(long)
    await asyncio.sleep(0.5)

    assert faults == []
    known = isinstance(first, UnknownScriptError)  # that it was not executed
    assert (long.written, long.unconfirmed) == (not known, not known)
    server.trouble = iter(())
    await asyncio.sleep(0.6)
    assert long.done


async def test_the_server_is_back_also_for_a_request_that_nobody_wants_any_more(
    pooled, server, caplog
) -> None:
    server.trouble = iter([next(refused())])
    unwanted = call("acquire")
    pooled.send(unwanted)
    await asyncio.sleep(0.05)
    pooled.forget(unwanted)
    assert "Redis is away" in caplog.text

    await connected(server)

    assert "Redis is back" in caplog.text
    assert server.sent == []
