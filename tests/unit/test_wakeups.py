"""How a session finds out which way of hearing there is."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest
import redis.exceptions as driver

from aiolocks._transport import faults
from aiolocks._transport.commands.listening import trial
from aiolocks._transport.requests.calls import Command
from aiolocks._transport.wire.wakeups import Wakeups


@pytest.mark.parametrize(
    ("redirect", "trials"),
    [
        (driver.MovedError("1 127.0.0.1:7000"), 8),
        (driver.AskError("1 127.0.0.1:7000"), 8),
        (driver.ClusterDownError("CLUSTERDOWN The cluster is down"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_node_that_has_lost_the_slots_of_the_trials_is_asked_again(
    redirect: Exception, trials: int
) -> None:
    """A new connection tries the hearing out on a key; its slot may move at this very moment, and others."""
    loop = asyncio.get_running_loop()

    def ask(*words: Any) -> asyncio.Future[Any]:
        answer = loop.create_future()
        if words[0] in ("EVAL", "DEL"):
            answer.set_exception(redirect)
            answer.exception()
        else:
            answer.set_result(b"OK")
        return answer

    told: list[bytes] = []
    tried: list[int] = []

    def another(turned_away: Collection[bytes]) -> Command[int]:
        tried.append(len(turned_away))
        return trial(b"probe %d" % len(turned_away))

    wakeups = Wakeups(
        "keyspace",
        trial=another,
        turned_away=lambda bell, _: told.append(bell),
        on_rung=lambda _, __: None,
    )
    with pytest.raises(driver.ConnectionError, match="serves none of the slots") as caught:
        await wakeups.begin(ask, protocol=3, database=0)
    assert not faults.is_final(caught.value)
    assert tried == list(range(trials))
    assert told == ([] if trials == 1 else [b"probe %d" % number for number in tried])


async def test_a_push_may_come_before_the_first_way_is_chosen() -> None:
    """The server may forget all that is tracked, as FLUSHALL makes it, while the connection is set up."""
    told: list[tuple[str, object]] = []
    wakeups = Wakeups(
        "auto", trial=lambda _: trial(b"probe"), on_rung=lambda way, bells: told.append((way, bells))
    )

    def ask(*words: Any) -> asyncio.Future[Any]:
        wakeups.pushed([b"invalidate", None])
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(b"OK")
        return answer

    await wakeups.begin(ask, protocol=3, database=0)

    assert set(told) == {("tracking", None)}
