"""`aiolocks ui` serves the dashboard until a signal comes."""

from __future__ import annotations

import re
import signal
import socket

import httpx
from redis.asyncio import Redis

from aiolocks import Lock
from tests.cli.conftest import Aiolocks, gone
from tests.cli.several import several


async def test_it_serves_the_locks_of_a_prefix_until_a_signal_comes(aiolocks: Aiolocks, redis: Redis) -> None:
    invocation = await aiolocks("ui", "--port", "0", "--allow-release", "--prefix", "aiolocks")
    await invocation.says("Ctrl-C ends it")
    found = re.search(r"http://127\.0\.0\.1:\d+/", invocation.out)
    assert found
    async with httpx.AsyncClient(timeout=10) as http, Lock(redis, "one"):
        page = await http.get(found[0])
        assert page.status_code == 200
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert (await http.get(found[0], headers={"Host": "localhost:1"})).status_code == 200
        rebound = await http.get(f"{found[0]}events", headers={"Host": "elsewhere.test"})
        assert (rebound.status_code, "one" in rebound.text) == (421, False)
        async with http.stream("GET", f"{found[0]}events") as events:
            async for line in events.aiter_lines():
                if '"name":"one"' in line:
                    break
            invocation.send(signal.SIGTERM)  # while somebody looks on
            ended = await invocation.end(within=10)
    assert ended.status == 128 + signal.SIGTERM
    assert ended.err == ""
    await gone(invocation)


async def test_what_it_does_not_serve(aiolocks: Aiolocks) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        opened, busy = await several(
            aiolocks, ("ui", "--host", "0.0.0.0", "--allow-release"), ("ui", "--port", port)
        )
    assert (opened.status, busy.status) == (2, 69)
    assert "address of this machine itself" in opened.err
    assert f"cannot listen on 127.0.0.1 port {port}" in busy.err


async def test_an_address_that_others_reach_is_warned_of(aiolocks: Aiolocks) -> None:
    invocation = await aiolocks("ui", "--host", "0.0.0.0", "--port", "0", "--prefix", "shop")
    await invocation.says("Ctrl-C ends it")
    invocation.send(signal.SIGTERM)
    ended = await invocation.end(within=10)
    assert ended.err == (
        "aiolocks: each machine that reaches 0.0.0.0 can read the names, metadata and processes of the "
        "prefix 'shop': the page has no login\n"
    )
