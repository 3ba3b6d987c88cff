"""Tokens that a streaming provider renews: a session's connection takes them, and is not made again."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis.credentials
from redis.asyncio import Redis

from aiolocks import LeaseState, Lock, Session
from aiolocks.testing import EmbeddedServer
from tests.adversity import tools
from tests.conftest import Connect, OwnServer
from tests.support.waiting import eventually

if not hasattr(redis.credentials, "StreamingCredentialProvider"):
    pytest.skip("redis-py has no streaming providers before 5.3", allow_module_level=True)

from redis.auth.token import SimpleToken
from redis.credentials import StreamingCredentialProvider

NAME = "the-client"


class Tokens(StreamingCredentialProvider):
    """As that of redis-entraid: one listener, the last."""

    def __init__(self) -> None:
        self.user, self.token = "first", "one"
        self._told: Callable[[Any], Awaitable[None]] | None = None

    def get_credentials(self) -> tuple[str, str]:
        return self.user, self.token

    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()

    def on_next(self, callback: Callable[[Any], Any]) -> None:
        self._told = callback

    def on_error(self, callback: Callable[[Exception], None]) -> None:
        pass

    def is_streaming(self) -> bool:
        return True

    async def renew(self, user: str, token: str) -> None:
        assert self._told is not None
        await self._told(SimpleToken(token, -1, -1, {"oid": user}))


@pytest.fixture
async def server(own_server: OwnServer, connect: Connect) -> EmbeddedServer:
    server = await own_server(port=0)
    for user, token in (("first", "one"), ("second", "two")):
        await connect(server).acl_setuser(
            user, enabled=True, passwords=[f"+{token}"], commands=["+@all"], keys=["*"], channels=["*"]
        )
    return server


async def sessions(admin: Redis) -> dict[str, str]:
    """The users of the connections that have executed a script, by the ids of these."""
    return {
        one["id"]: one["user"]
        for one in await admin.client_list()
        if one["name"] == NAME and one["cmd"] != "ping"
    }


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_renewed_token_is_told_on_the_connection_that_there_is(
    server: EmbeddedServer, connect: Connect, caplog: pytest.LogCaptureFixture, protocol: int
) -> None:
    tokens, admin = Tokens(), connect(server)
    client = connect(server, credential_provider=tokens, client_name=NAME, protocol=protocol)
    await client.ping()
    async with Session(client) as one, Session(client) as other, Lock(one, "a", ttl=2) as lease:
        waiting = asyncio.create_task(Lock(other, "a").acquire())
        await eventually(lambda: other.statistics().waiters == 1)
        before = await sessions(admin)
        assert set(before.values()) == {"first"}
        busy = [asyncio.create_task(Lock(one, f"b{number}").locked()) for number in range(50)]

        await tokens.renew("second", "two")

        assert not any(await asyncio.gather(*busy))

        async def renewed() -> bool:
            now = await sessions(admin)
            return {now.get(one) for one in before} == {"second"}

        await eventually(renewed)
        assert (await client.acl_whoami()) in ("second", b"second")  # redis-py has heard of it, too
        await tools.renewed(lease)
        assert lease.state is LeaseState.HELD
        await lease.release()
        await (await asyncio.wait_for(waiting, 10)).release()
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_a_token_that_is_refused_leaves_the_connection_as_it_is_and_is_told_to_nobody(
    server: EmbeddedServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """The server may not know it yet, where those that issue it and those that take it are not the same."""
    tokens, admin = Tokens(), connect(server)
    client = connect(server, credential_provider=tokens, client_name=NAME)
    async with Session(client) as session, Lock(session, "a", ttl=2) as lease:
        before = await sessions(admin)
        tokens.user, tokens.token = "second", "sesame"
        await tokens.renew("second", "sesame")  # the pool has no connection that could refuse it

        await eventually(lambda: "credentials" in caplog.text)
        await tools.renewed(lease)
        assert await sessions(admin) == before
        assert lease.state is LeaseState.HELD
    (said,) = [one.getMessage() for one in caplog.records if "credentials" in one.getMessage()]
    assert "refuses renewed credentials" in said
    assert "goes on with the former ones" in said
    assert "sesame" not in caplog.text


async def test_a_token_that_comes_while_connecting_is_told_when_that_is_done(
    server: EmbeddedServer, connect: Connect
) -> None:
    class Late(Tokens):
        """Renews right after the connection has asked."""

        late = False

        async def get_credentials_async(self) -> tuple[str, str]:
            asked = self.get_credentials()
            if self.late:
                self.late = False
                self.user, self.token = "second", "two"
                await self.renew("second", "two")
            return asked

    tokens, admin = Late(), connect(server)
    client = connect(server, credential_provider=tokens, client_name=NAME)
    await client.ping()  # from here on the provider has its listener
    async with Session(client) as session:
        tokens.late = True
        await Lock(session, "a").locked()
        assert not tokens.late
        await eventually(lambda: _users(admin, {"second"}))


async def test_a_token_in_line_for_a_connection_that_breaks_is_not_told_to_the_next(
    server: EmbeddedServer, connect: Connect
) -> None:
    tokens, admin = Tokens(), connect(server)
    client = connect(server, credential_provider=tokens, client_name=NAME)
    async with Session(client) as session:
        await Lock(session, "a").locked()
        assert session._engine is not None
        transport: Any = session._engine._transport
        asking = asyncio.create_task(Lock(session, "a").locked())
        await asyncio.sleep(0)
        transport._raw.transport.abort()
        transport.authenticate(("first", "one"))
        tokens.user, tokens.token = "second", "two"
        await asking
        await asyncio.sleep(0.1)
        assert await _users(admin, {"second"})


async def test_sessions_that_have_gone_are_not_remembered(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server, credential_provider=Tokens(), client_name=NAME)
    for _ in range(20):
        async with Session(client) as session:
            await Lock(session, "a").locked()
    del session
    gc.collect()
    async with Session(client) as session:
        await Lock(session, "a").locked()
        assert len(vars(client.connection_pool)["re_auth_callback"].followers) == 1


async def _users(admin: Redis, users: set[str]) -> bool:
    return set((await sessions(admin)).values()) == users


async def test_a_session_that_is_gone_or_has_no_connection_is_not_told(
    server: EmbeddedServer, connect: Connect
) -> None:
    tokens, admin = Tokens(), connect(server)
    client = connect(server, credential_provider=tokens, client_name=NAME)
    for _ in range(3):
        async with Session(client) as session:
            await Lock(session, "a").locked()
    async with Session(client) as session:
        await tokens.renew("second", "two")
        assert await sessions(admin) == {}
        await Lock(session, "a").locked()
        assert set((await sessions(admin)).values()) == {"first"}  # what the provider says
