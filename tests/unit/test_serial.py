"""The transport for connections that the session cannot drive: what it does before it has one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain
from typing import Any

import pytest
import redis.exceptions as driver

from aiolocks.transport import Fault, Request
from aiolocks.transport.driver import MakeWords, NotConnectedError, UnknownScriptError, Words
from aiolocks.transport.outages import Outage, Outages
from aiolocks.transport.request import ignore
from aiolocks.transport.serial import Serial
from tests.unit.fakes import VirtualClock


class SlowToConnect:
    """Executes requests when there is a connection, and not before; those of `hangs` as often without end."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()
        self.sent: list[Words] = []
        self.hangs: dict[str, int] = {}
        self.trouble: Iterator[Exception] = iter(())  # that the next attempts meet

    async def __call__(self, make: MakeWords) -> Any:
        trouble = next(self.trouble, None)
        if isinstance(trouble, NotConnectedError):
            raise trouble
        await self.connected.wait()
        words = make()
        self.sent.append(words)
        if self.hangs.get(str(words[0]), 0):
            self.hangs[str(words[0])] -= 1
            await asyncio.Event().wait()
        if trouble is not None:
            raise trouble
        return b"OK"

    async def aclose(self) -> None:
        pass


@pytest.fixture
async def server(clock: VirtualClock) -> SlowToConnect:
    return SlowToConnect()


@pytest.fixture
async def serial(server) -> AsyncIterator[Serial]:
    loop = asyncio.get_running_loop()
    transport = Serial(server, server.aclose, loop, outage=Outage("Redis", Outages(loop)))
    yield transport
    await transport.aclose(1)


def call(
    word: str,
    on_fault: Callable[[Fault], None] = ignore,
    *,
    lane: str = "one",
    within: float = 5,
    **options: Any,
) -> Request[Any]:
    until = asyncio.get_running_loop().time() + within
    command: Request[Any] = Request(None, (), (word,), ignore, lane=lane)
    return command.again().ask(ignore, on_fault, until=until, **options)


def refused() -> Iterator[Exception]:
    """Nobody listens there."""
    while True:
        yield NotConnectedError(driver.ConnectionError("Connection refused"))


async def connected(server: SlowToConnect) -> None:
    """A connection comes about, and all is sent that must be sent."""
    await asyncio.sleep(0.01)
    server.connected.set()
    await asyncio.sleep(0.05)


async def test_a_request_that_nobody_wants_any_more_is_not_sent(serial, server) -> None:
    """Nothing must be undone then: the server never has it."""
    acquire = call("acquire")
    serial.send(acquire)
    await asyncio.sleep(0.01)

    executed = serial.forget(acquire)

    assert not executed
    serial.send(call("next"))
    await connected(server)
    assert server.sent == [("next",)]


async def test_a_request_is_made_for_the_moment_at_which_it_is_sent(serial, server) -> None:
    """An undo leaves the queue if nobody of its session waits then, not when it was asked for."""
    content = ["before"]
    undo = call("", undoes=True, make=lambda: Request(None, (), tuple(content), ignore, lane="one"))
    serial.send(undo)
    await asyncio.sleep(0.01)
    assert not undo.written

    content[:] = ["after"]
    await connected(server)

    assert server.sent == [("after",)]
    assert undo.done


async def test_its_time_counts_from_when_it_was_sent(serial, server) -> None:
    """A lease is not shorter for the time that it took to connect."""
    acquire = call("acquire")
    serial.send(acquire)
    await asyncio.sleep(0.1)
    connected_at = asyncio.get_running_loop().time()

    await connected(server)

    assert acquire.sent >= connected_at
    assert acquire.done


async def test_nothing_is_made_while_there_is_no_connection(serial, server) -> None:
    made = []

    def make() -> Request[Any]:
        made.append("undo")
        return Request(None, (), ("undo",), ignore, lane="one")

    server.trouble = refused()
    serial.send(call("", undoes=True, make=make))
    await asyncio.sleep(0.5)
    assert made == []

    server.trouble = iter(())
    server.connected.set()
    await asyncio.sleep(0.6)
    assert made == ["undo"]


@pytest.mark.parametrize("first", [driver.ConnectionError("reset"), UnknownScriptError("NOSCRIPT")])
async def test_a_long_request_is_not_blamed_for_connections_that_are_refused(serial, server, first) -> None:
    """Only for those that were closed while it was on its way."""
    faults: list[Fault] = []
    server.connected.set()
    server.trouble = chain([first], refused())
    long = call("x" * 200_000, faults.append)

    serial.send(long)
    await asyncio.sleep(0.5)

    assert faults == []
    known = isinstance(first, UnknownScriptError)  # that it was not executed
    assert (long.written, long.unconfirmed) == (not known, not known)
    server.trouble = iter(())
    await asyncio.sleep(0.6)
    assert long.done


async def test_the_server_is_back_also_for_a_request_that_nobody_wants_any_more(
    serial, server, caplog
) -> None:
    server.trouble = iter([next(refused())])
    unwanted = call("acquire")
    serial.send(unwanted)
    await asyncio.sleep(0.05)
    serial.forget(unwanted)
    assert "Redis is away" in caplog.text

    await connected(server)

    assert "Redis is back" in caplog.text
    assert server.sent == []


def words(server: SlowToConnect) -> list[str]:
    return [str(sent[0]) for sent in server.sent]


async def test_requests_of_all_lanes_go_in_their_order_one_at_a_time(serial, server) -> None:
    server.connected.set()
    calls = [call(str(number), lane=f"lane {number % 3}") for number in range(20)]

    for each in calls:
        serial.send(each)
    while not calls[-1].done:
        assert len(server.sent) <= sum(each.done for each in calls) + 1
        await asyncio.sleep(0)

    assert words(server) == [str(number) for number in range(20)]


async def test_a_request_that_hangs_holds_up_the_others_for_no_longer_than_a_silent_connection_may(
    serial, server, monkeypatch
) -> None:
    """Then it goes behind them, and what follows it in its lane, as its undo, behind it."""
    serial._stall = 0.2
    server.connected.set()
    server.hangs = {"hangs": 1}
    hangs, undo, other = call("hangs"), call("undo"), call("other", lane="two")

    began = asyncio.get_running_loop().time()
    for each in (hangs, undo, other):
        serial.send(each)
    while not other.done:
        await asyncio.sleep(0.001)

    assert 0.2 <= asyncio.get_running_loop().time() - began < 0.4
    assert hangs.unconfirmed
    while not undo.done:
        await asyncio.sleep(0.001)
    assert words(server) == ["hangs", "other", "hangs", "undo"]


async def test_a_caller_that_left_a_request_that_hangs_leaves_no_more_than_that_behind(
    serial, server
) -> None:
    serial._stall = 0.2
    server.connected.set()
    server.hangs = {"hangs": 5}
    hangs = call("hangs")
    serial.send(hangs)
    await asyncio.sleep(0.01)

    assert serial.forget(hangs), "the server may have it"
    undo = call("undo", undoes=True)
    serial.send(undo)
    await asyncio.sleep(0.3)

    assert words(server) == ["hangs", "undo"]
    assert undo.done


async def test_a_server_that_answers_nothing_is_asked_more_and_more_rarely(
    serial, server, monkeypatch
) -> None:
    monkeypatch.setattr("aiolocks.transport.serial.STALL", 0.05)
    serial._stall = 0.05
    server.connected.set()
    server.hangs = {"hangs": 100}

    serial.send(call("hangs"))
    await asyncio.sleep(0.9)
    assert len(server.sent) <= 5  # after 0.05, 0.1, 0.2, 0.4 s

    server.hangs = {}
    await asyncio.sleep(1.0)
    assert serial._stall == 0.05, "it was answered"


async def test_an_undo_of_what_may_still_be_executed_has_no_end_but_an_answer(serial, server) -> None:
    """A server that hangs for long executes the acquire when it goes on: the undo must come behind it."""
    serial._stall = 0.1
    server.connected.set()
    server.hangs = {"acquire": 1, "undo": 2}
    acquire, undo = call("acquire", within=0.05), call("undo", undoes=True, within=0.05)

    serial.send(acquire)
    await asyncio.sleep(0.02)
    serial.send(undo)
    await asyncio.sleep(0.15)
    assert acquire.done
    assert not undo.done
    await asyncio.sleep(0.8)

    assert undo.done
    assert undo.ended_by is None, "the server has answered it"
    assert not serial._doubtful


async def test_an_undo_of_what_was_answered_ends_in_its_time(serial, server) -> None:
    server.connected.set()
    server.hangs = {"undo": 100}
    faults: list[Fault] = []
    serial.send(call("acquire"))
    await asyncio.sleep(0.02)

    serial.send(call("undo", faults.append, undoes=True, within=0.1))
    await asyncio.sleep(0.2)

    assert len(faults) == 1


async def test_where_nobody_listens_all_are_told_that_do_not_wait(serial, server) -> None:
    server.trouble = refused()
    waits, tries = call("waits"), [call("try", lane=str(number), patient=False) for number in range(3)]

    for each in (waits, *tries):
        serial.send(each)
    await asyncio.sleep(0.05)

    assert [each.done for each in (waits, *tries)] == [False, True, True, True]


async def test_a_program_that_cancels_every_task_does_not_stop_the_rest(serial, server) -> None:
    server.hangs = {"one": 1}
    server.connected.set()
    calls = [call("one"), call("two", lane="two")]
    for each in calls:
        serial.send(each)
    await asyncio.sleep(0.01)

    for task in asyncio.all_tasks():
        if task.get_name() == "aiolocks-serial":
            task.cancel()
    await asyncio.sleep(0.05)

    assert all(each.done for each in calls)
    assert words(server) == ["one", "one", "two"]
