"""How a session finds out which way of hearing there is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis.exceptions as driver

from aiolocks._transport import faults
from aiolocks._transport.commands.listening import trial
from aiolocks._transport.wire.wakeups import Wakeups


@pytest.mark.parametrize(
    "redirect", [driver.MovedError("1 127.0.0.1:7000"), driver.AskError("1 127.0.0.1:7000")], ids=type
)
async def test_a_node_that_has_lost_the_slot_of_the_trial_is_asked_again(redirect: Exception) -> None:
    """A new connection tries the hearing out on a key; the slot of that key may move at this very moment."""
    loop = asyncio.get_running_loop()

    def ask(*words: Any) -> asyncio.Future[Any]:
        answer = loop.create_future()
        if words[0] in ("EVAL", "DEL"):
            answer.set_exception(redirect)
            answer.exception()
        else:
            answer.set_result(b"OK")
        return answer

    wakeups = Wakeups("keyspace", trial=lambda: trial(b"probe"), on_rung=lambda _, __: None, asking=True)
    with pytest.raises(driver.ConnectionError, match="lost the slot") as caught:
        await wakeups.begin(ask, protocol=3, database=0)
    assert not faults.is_final(caught.value)


async def test_a_push_may_come_before_the_first_way_is_chosen() -> None:
    """The server may forget all that is tracked, as FLUSHALL makes it, while the connection is set up."""
    told: list[tuple[str, object]] = []
    wakeups = Wakeups(
        "auto", trial=lambda: trial(b"probe"), on_rung=lambda way, bells: told.append((way, bells))
    )

    def ask(*words: Any) -> asyncio.Future[Any]:
        wakeups.pushed([b"invalidate", None])
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(b"OK")
        return answer

    await wakeups.begin(ask, protocol=3, database=0)

    assert set(told) == {("tracking", None)}
