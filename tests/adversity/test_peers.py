"""The peer is no Redis, or one behind something that ends connections: waits end in time all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import BackendError, Lock, Session
from aiolocks.transport.hearing import Wakeups
from tests.adversity.tools import SLACK, elapsed, rejected
from tests.conftest import Connect
from tests.support.links import reset
from tests.support.peers import peer
from tests.support.proxy import Proxy
from tests.support.waiting import eventually


@pytest.mark.parametrize(
    "reply",
    [b"%1\r\n:0\r\n:1\r\n", b"%0\r\n", b"*3\r\n:1\r\n,inf\r\n:0\r\n", b"*1\r\n~0\r\n", b"_\r\n"],
    ids=["map", "empty map", "infinite", "set", "null"],
)
async def test_a_reply_of_another_form_ends_the_wait(reply: bytes) -> None:
    async with (
        peer(lambda transport: transport.write(reply)) as other,
        other.client() as client,
        Session(client) as session,
    ):
        for acquiring in (
            Lock(session, "a").acquire(blocking_timeout=0.3),
            Lock(session, "b").try_acquire(),
        ):
            with elapsed() as took:
                error = await rejected(acquiring)
            assert "cannot be understood" in str(error)
            assert took.seconds < 0.3 + SLACK


async def test_a_peer_that_resets_at_every_script_is_connected_to_a_few_times_a_second() -> None:
    async with peer(reset) as other, other.client() as client, Session(client) as session:
        waits = [Lock(session, name).acquire(blocking_timeout=1) for name in "abcd"]
        with elapsed() as took:
            errors = await asyncio.gather(*waits, return_exceptions=True)
        assert {type(error) for error in errors} == {BackendError}
        assert 2 <= len(other.at) <= 12 + 4 * took.seconds


async def test_a_connection_that_breaks_in_the_last_step_of_connecting_is_made_again(
    connect: Connect, through: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, broken = Wakeups.begin, 0

    async def begin_and_break(self: Wakeups, ask: Any, **options: Any) -> None:
        nonlocal broken
        await begin(self, ask, **options)
        if broken < 2:
            broken += 1
            through.cut()
            await eventually(lambda: through.open_connections == 0)
            await asyncio.sleep(0.01)

    monkeypatch.setattr(Wakeups, "begin", begin_and_break)
    async with Session(connect(through)) as session, Lock(session, "a", blocking_timeout=5):
        assert broken == 2


async def test_a_useful_connection_that_breaks_is_made_again_at_once(redis: Redis, session: Session) -> None:
    async with Lock(session, "a") as lease:
        for _ in range(10):
            await redis.execute_command("CLIENT", "KILL", "TYPE", "normal")
            with elapsed() as took:
                assert await lease.owned()
            assert took.seconds < SLACK
