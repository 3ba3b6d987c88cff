"""The backlogs in which the requests of a slot wait."""

from __future__ import annotations

import asyncio
from typing import Any

from aiolocks.transport.cluster.backlogs import Backlogs
from aiolocks.transport.faults import Fault
from aiolocks.transport.request import Request, ignore

SLOT = 1


def call(on_fault: Any = ignore, *, lasts: float = 60.0) -> Request[Any]:
    until = asyncio.get_running_loop().time() + lasts
    return Request(None, (b"{a}",), (), ignore).ask(ignore, on_fault, until=until)


async def test_what_is_sent_by_who_is_out_of_time_goes_on_once() -> None:
    loop = asyncio.get_running_loop()
    sent: list[Request[Any]] = []
    wrong: list[Any] = []
    loop.set_exception_handler(lambda _, context: wrong.append(context))

    def send(held: Request[Any]) -> None:
        sent.append(held)
        if len(sent) == 1:  # turned away again
            backlogs.hold(SLOT, held, pause=0.01)

    backlogs = Backlogs(loop, send, served=lambda _: True, trouble=lambda: None)
    undo = call()

    def out_of_time(_: Fault) -> None:
        backlogs.hold(SLOT, undo)

    backlogs.hold(SLOT, call(out_of_time, lasts=0.0))
    while len(sent) < 2:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)
    assert sent == [undo, undo]
    assert SLOT not in backlogs
    assert not wrong
