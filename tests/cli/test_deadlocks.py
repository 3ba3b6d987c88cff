"""`aiolocks deadlocks`: lines for people, a document for scripts, a status for both."""

from __future__ import annotations

import asyncio
import json

from redis.asyncio import Redis

from aiolocks import Lock, LockEvent, Session
from tests.cli.conftest import Aiolocks
from tests.cli.several import several


async def test_none(aiolocks: Aiolocks) -> None:
    listed, document = await several(aiolocks, ("deadlocks",), ("deadlocks", "--json"))
    assert (listed.status, listed.out) == (0, "")
    assert listed.err == "aiolocks: no deadlock is known under the prefix 'aiolocks'\n"
    assert (document.status, document.err) == (0, "")
    assert json.loads(document.out) == {"prefix": "aiolocks", "deadlocks": []}


async def test_its_tasks_are_listed(aiolocks: Aiolocks, redis: Redis) -> None:
    async def take(session: Session, first: str, second: str) -> None:
        async with Lock(session, first):
            await asyncio.sleep(0.1)
            async with Lock(session, second):
                pass

    class Found:
        def on_deadlock(self, event: LockEvent) -> None:
            found.set()

    found = asyncio.Event()
    async with Session(redis, listeners=[Found()]) as session:
        tasks = [
            asyncio.create_task(take(session, "a", "b\x1b"), name="one"),
            asyncio.create_task(take(session, "b\x1b", "a"), name="two"),
        ]
        await found.wait()
        listed, document = await several(aiolocks, ("deadlocks",), ("deadlocks", "--json"))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert (listed.status, listed.err) == (1, "")
    first, *lines = listed.out.splitlines()
    assert first == "deadlock of 2 tasks:"
    told = {line.split(" has waited ")[0].split()[-1]: line.split(" for ")[1] for line in lines}
    assert told == {
        "one": r"lock 'b\x1b', holds lock 'a'",
        "two": r"lock 'a', holds lock 'b\x1b'",
    }
    assert document.status == 1
    (deadlock,) = json.loads(document.out)["deadlocks"]
    assert [task["task"] for task in deadlock["tasks"]] in (["one", "two"], ["two", "one"])
    assert {"kind": "lock", "name": "a"} in [held for task in deadlock["tasks"] for held in task["holds"]]
