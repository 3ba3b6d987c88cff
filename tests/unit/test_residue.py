"""Which requests of ended connections their server may still execute, and how long that is remembered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis.exceptions as driver

from aiolocks.transport.identity import Identity
from aiolocks.transport.request import Request, Script, ignore
from aiolocks.transport.residue import Residue


def call(lane: str) -> Request[Any]:
    return Request(Script("any"), (), (), ignore, lane=lane).ask(ignore, ignore, until=1.0)


def connection(number: int, server: str = "one") -> Identity:
    return Identity(b"%d" % number, b"address:%d" % number, server.encode())


async def dropped(residue: Residue, present: Identity, *, refusal: str = "") -> list[int]:
    """The numbers of the connections that the server is told to drop."""
    numbers: list[int] = []

    def ask(*words: Any) -> asyncio.Future[Any]:
        numbers.append(int(words[3]))
        answer = asyncio.get_running_loop().create_future()
        if refusal:
            answer.set_exception(driver.ResponseError(refusal))
        else:
            answer.set_result(1)
        return answer

    await residue.drop(ask, present)
    return numbers


def test_a_connection_that_owed_nothing_leaves_nothing() -> None:
    residue = Residue()
    residue.add(connection(1), [])
    assert not residue


def test_a_question_takes_nothing() -> None:
    residue = Residue()
    residue.add(connection(1), [call("")])
    assert not residue
    assert not residue.concerns(call(""))


def test_an_unanswered_request_concerns_its_lane_until_there_is_a_new_connection() -> None:
    residue = Residue()
    residue.add(connection(1), [call("a")])
    assert residue
    assert residue.concerns(call("a"))
    assert not residue.concerns(call("b"))

    residue.settled(connection(2))

    assert not residue
    assert not residue.concerns(call("a"))


async def test_all_former_connections_to_the_same_server_are_dropped_and_no_others() -> None:
    residue = Residue()
    for number in (1, 2, 3):
        residue.add(connection(number, "two" if number == 2 else "one"), [call("a")])

    assert await dropped(residue, connection(4)) == [1, 3]
    residue.settled(connection(4))
    assert await dropped(residue, connection(5)) == []
    assert await dropped(residue, connection(5, "two")) == [2]


async def test_what_could_not_be_told_is_told_on_the_next_connection() -> None:
    residue = Residue()
    residue.add(connection(1), [call("a")])
    assert await dropped(residue, connection(2)) == [1]
    # It broke before it was ready.
    assert await dropped(residue, connection(3)) == [1]


async def test_a_denial_is_not_asked_for_again() -> None:
    residue = Residue()
    residue.add(connection(1), [call("a")])
    assert await dropped(residue, connection(2), refusal="NOPERM it may not") == [1]
    residue.settled(connection(2))
    assert not residue
    assert await dropped(residue, connection(3)) == []


async def test_a_server_that_is_busy_is_told_later() -> None:
    """It says nothing of the permission; without the connection being dropped, nothing may be sent."""
    residue = Residue()
    residue.add(connection(1), [call("a")])

    with pytest.raises(driver.ResponseError, match="BUSY"):
        await dropped(residue, connection(2), refusal="BUSY a script is running")
    assert residue


async def test_connections_to_ever_other_servers_do_not_add_up() -> None:
    residue = Residue()
    for number in range(1000):
        residue.add(connection(number, f"server {number}"), [call(f"lane {number}")])
        residue.settled(connection(number, "another one"))
    assert not residue
    assert len(residue._former) <= 8
