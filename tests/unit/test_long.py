"""The second connection, for long requests: what follows them there, and how they leave."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any, cast

from aiolocks.transport.connection import Multiplexed
from aiolocks.transport.dialect import Dialect
from aiolocks.transport.faults import Fault
from aiolocks.transport.hearing import Wakeups
from aiolocks.transport.long import Long
from aiolocks.transport.outages import Outage, Outages
from aiolocks.transport.request import LONG, Request, ignore
from aiolocks.transport.steps.listening import trial


def followed(call: Request[Any], *, owed: list[Request[Any]], residue: bool = False) -> bool:
    second = SimpleNamespace(may_execute=lambda _: residue, owed=lambda: owed)
    return Long(cast("Any", None), lambda _: cast("Any", second), cast("Any", None)).concerns(call)


def test_a_request_of_the_same_slot_follows() -> None:
    long = trial(b"{a}:lock")
    assert followed(trial(b"{a}:queue"), owed=[long])
    assert not followed(trial(b"{b}:queue"), owed=[long])
    assert not followed(trial(b"{a}:queue"), owed=[])


def test_an_undo_follows_what_the_server_may_still_have_of_an_ended_connection() -> None:
    """Its new connection has the server drop the old one before; the main connection has not."""
    assert followed(trial(b"{a}:lock"), owed=[], residue=True)


def test_what_was_sent_before_stays_on_its_connection() -> None:
    again = trial(b"{a}:lock")
    again.unconfirmed = True
    assert not followed(again, owed=[trial(b"{a}:lock")])


class NarrowTransport:
    """Takes one piece, and then no more for now."""

    def __init__(self, protocol: Multiplexed) -> None:
        self._protocol = protocol
        self.taken: list[int] = []

    def write(self, piece: memoryview) -> None:
        self.taken.append(len(piece))
        self._protocol.pause_writing()

    def get_extra_info(self, _: str) -> None:
        return None

    def is_closing(self) -> bool:
        return False


def unconnected() -> Multiplexed:
    """A second connection that was not made yet."""
    loop = asyncio.get_running_loop()
    wakeups = Wakeups("poll", trial=lambda _: trial(b""), on_rung=lambda _, __: None)
    return Multiplexed(
        cast("Any", None),
        Dialect(),
        wakeups,
        cast("Any", None),
        loop,
        outage=Outage("", Outages(loop)),
        second_of=cast("Any", object()),
    )


async def test_a_long_request_leaves_piece_by_piece_as_the_line_takes_them() -> None:
    """Else nothing would tell a slow line from a silent server."""
    second = unconnected()
    transport = NarrowTransport(second)
    second._write_out(cast("Any", SimpleNamespace(transport=transport)), b"x" * 3 * LONG)
    assert sum(transport.taken) < LONG
    for _ in range(10):
        second.resume_writing()
    assert sum(transport.taken) == 3 * LONG
    assert max(transport.taken) < LONG


async def test_connections_in_a_row_are_counted_for_a_request() -> None:
    """One that ends before the request was written, as in its handshake, begins the count anew."""
    second, faults = unconnected(), list[Fault]()
    call = trial(b"{a}").ask(ignore, faults.append, until=math.inf)
    for unanswered in ([call], [], [call]):
        second._hung_up_on(unanswered, None)
        assert faults == []
    second._hung_up_on([call], None)
    assert "closed 2 connections in a row" in str(faults[0].error)
