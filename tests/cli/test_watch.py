"""`aiolocks watch`: holds and waits as lines of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import signal

from redis.asyncio import Redis

from aiolocks import Lock, Session
from tests.cli.conftest import Aiolocks

EVIL = "a\x1b[31m\u202e\n" + "x" * 900


async def test_holds_and_waits_that_begin_and_end(aiolocks: Aiolocks, redis: Redis) -> None:
    invocation = await aiolocks("watch", "--interval", "0.1")
    await invocation.says('"begun"')
    async with Session(redis) as other:
        async with Lock(redis, EVIL):
            await invocation.says('"hold"')
            waiting = asyncio.create_task(Lock(other, EVIL).acquire())
            await invocation.says('"wait"')
        await invocation.says('"wait ended"')
        await (await waiting).release()
    async with Lock(redis, "last"):
        await invocation.says('"last"')
    await asyncio.sleep(0.3)
    invocation.send(signal.SIGINT)
    ended = await invocation.end()
    assert ended.status == 130
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert [line["event"] for line in lines][:3] == ["begun", "hold", "wait"]
    of_evil = [line for line in lines[1:] if line["name"] == EVIL]
    ends = ["hold", "hold ended", "hold ended", "wait ended"]
    assert sorted(line["event"] for line in of_evil[2:]) == ends
    assert {line["pid"] for line in lines[1:] if line["event"] == "hold"} == {os.getpid()}
    assert lines[2]["held_by"][0]["holder"] == lines[1]["holder"]
    assert "\x1b" not in ended.out
    assert "\u202e" not in ended.out
