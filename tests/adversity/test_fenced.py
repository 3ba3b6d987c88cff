"""The register that refuses late writes: what it keeps, whom it refuses, and a holder that was paused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from aiolocks import (
    FencedRegister,
    Lock,
    LockError,
    LockLostError,
    Session,
    SessionClosedError,
    StaleFenceError,
)
from tests.adversity.tools import Formed, elapsed, rejected, step
from tests.conftest import Connect
from tests.support.cancel import sweep
from tests.support.processes import Workers, tell
from tests.support.proxy import Proxy
from tests.support.servers import Server

WRITE = step("fenced_write", "forms")
READ = step("fenced_read", "forms")
KEY = "aiolocks:fencedregister:{a}"

pytestmark = pytest.mark.leaves_keys(KEY)


# -- what it keeps -------------------------------------------------------------------------------------------

VALUES = [
    b"", b"\x00\xff", b"null", "", "text", "\u2603 \ud800", 0, -1.5, 2**70, True, False, None, [],
    [1, [None]], {}, {"a": {"b": 1}},
]  # fmt: skip


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("protocol", [2, 3])
async def test_what_is_written_is_read(connect: Connect, protocol: int, decode: bool) -> None:
    client = connect(protocol=protocol, decode_responses=decode)
    register = FencedRegister(client, "a")
    assert await register.read() is None
    for value in VALUES:
        assert await register.write(value, 7) is None
        read = await FencedRegister(client, "a").read()
        assert (type(read), read) == (type(value), value)
    assert await client.pttl(KEY) == -1


async def test_over_the_plain_transport_it_is_the_same(connect: Connect, through: Proxy, form: str) -> None:
    register = FencedRegister(connect(Formed(through, form), decode_responses=True), "a")
    for value in VALUES:
        if isinstance(value, bytes) and value == b"\x00\xff":
            continue  # such a client cannot read bytes that are no text
        await register.write(value, 7)
        assert await register.read() == value


async def test_registers_of_other_names_and_prefixes_are_others(redis: Redis) -> None:
    register = FencedRegister(redis, "a")
    await register.write(1, 100)
    async with Session(redis, prefix="other") as session:
        assert await FencedRegister(session, "a").read() is None
    assert await FencedRegister(redis, "b").read() is None
    async with Lock(redis, "a"):  # and no lock of the name is in the way
        assert await register.read() == 1


@pytest.mark.parametrize(
    ("value", "token", "error", "said"),
    [
        (object(), 1, TypeError, "value must be bytes or what JSON can hold"),
        (float("nan"), 1, TypeError, "value must be bytes or what JSON can hold"),
        (1, "7", TypeError, r"must be an int from 0 to 2\*\*63 - 1"),
        (1, True, TypeError, "must be an int"),
        (1, None, TypeError, "as lease.fencing_token is"),
        (1, 1.0, TypeError, "must be an int"),
        (1, -1, ValueError, "must be an int from 0"),
        (1, 2**63, ValueError, "must be an int from 0"),
    ],
)
async def test_arguments_of_a_write_are_checked(value: Any, token: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        await FencedRegister(Redis(port=1), "a").write(value, token)


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="name must not be empty"):
        FencedRegister(Redis(port=1), "")
    with pytest.raises(TypeError, match="synchronous client"):
        FencedRegister(BlockingRedis(), "a")
    with pytest.raises(TypeError, match="FencedRegister has no argument 'ttl'"):
        FencedRegister(Redis(port=1), "a", ttl=3)  # type: ignore[arg-type]
    assert repr(FencedRegister(Redis(port=1), "a")) == "<FencedRegister 'a'>"


# -- whom it refuses -----------------------------------------------------------------------------------------


async def test_who_comes_with_an_older_token_is_refused(redis: Redis) -> None:
    register = FencedRegister(redis, "a")
    async with Lock(redis, "a") as first:
        await register.write("first", first.fencing_token)
    async with Lock(redis, "a") as second:
        await register.write("first", first.fencing_token)  # nobody has written since
        await register.write("second", second.fencing_token)
        with pytest.raises(StaleFenceError, match="has lost its lock") as caught:
            await register.write("late", first.fencing_token)
        await register.write("again", second.fencing_token)
    assert isinstance(caught.value, LockError)
    assert (caught.value.name, caught.value.fencing_token, caught.value.seen) == (
        "a",
        first.fencing_token,
        second.fencing_token,
    )
    assert await register.read() == "again"


async def write_when_told(url: str, name: str, ttl: float) -> None:
    """A holder that is stopped between looking and writing."""
    async with Redis.from_url(url) as redis:
        register = FencedRegister(redis, name)
        try:
            async with Lock(redis, name, ttl=ttl, auto_renew=False) as lease:
                await register.write("first", lease.fencing_token)
                tell("inside", fencing_token=lease.fencing_token)
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    # It was about to write, and still does.
                    try:
                        await register.write("late", lease.fencing_token)
                    except StaleFenceError as error:
                        tell("refused", seen=error.seen)
                    else:
                        tell("accepted")
                    raise
        except LockLostError:
            tell("lost")


async def test_a_holder_paused_past_its_ttl_is_refused_and_the_next_ones_write_stands(
    redis: Redis, server: Server, workers: Workers
) -> None:
    worker = await workers.start(write_when_told, url=server.url, name="a", ttl=1.0)
    first = (await worker.told("inside"))["fencing_token"]
    worker.stop()
    async with Lock(redis, "a", ttl=20) as lease:
        assert lease.fencing_token > first
        register = FencedRegister(redis, "a")
        assert await register.read() == "first"
        await register.write("second", lease.fencing_token)
        worker.cont()
        assert (await worker.told("refused"))["seen"] == lease.fencing_token
        await worker.told("lost")
    await worker.finish()
    assert await register.read() == "second"


async def test_of_many_writers_the_newest_token_stands(redis: Redis) -> None:
    register = FencedRegister(redis, "a")
    tokens = [(7 * number) % 50 for number in range(50)]
    results = await asyncio.gather(
        *(register.write(token, token) for token in tokens), return_exceptions=True
    )
    newest = -1
    for token, result in zip(tokens, results, strict=True):
        assert isinstance(result, StaleFenceError) is (token < newest)
        newest = max(newest, token)
    assert await register.read() == 49


# -- the network ---------------------------------------------------------------------------------------------


async def test_a_lost_reply_is_no_error(client: Redis, through: Proxy) -> None:
    register = FencedRegister(client, "a")
    lost = [through.reset_after(WRITE), through.reset_after(READ)]
    await register.write("once", 7)
    assert await register.read() == "once"
    assert all(event.is_set() for event in lost)


async def test_a_cancelled_write_is_there_or_not_and_harms_nothing(client: Redis) -> None:
    register = FencedRegister(client, "a")
    await register.write("before", 7)
    assert await sweep(lambda: register.write("after", 7))
    assert await register.read() in ("before", "after")
    await register.write("last", 8)
    assert await register.read() == "last"


async def test_a_server_that_does_not_answer_is_an_error_in_time(
    connect: Connect, through: Proxy, form: str
) -> None:
    async with Session(connect(Formed(through, form)), command_timeout=0.3) as session:
        register = FencedRegister(session, "a")
        await register.write(1, 1)
        through.hold_requests = True
        with elapsed() as took:
            await rejected(register.write(2, 2))
            await rejected(register.read())
        assert 0.5 < took.seconds < 5
        through.hold_requests = False


async def test_a_key_of_somebody_else_is_named(redis: Redis) -> None:
    await redis.set(KEY, "mine")
    for asking in (FencedRegister(redis, "a").write(1, 1), FencedRegister(redis, "a").read()):
        assert KEY in str(await rejected(asking))


async def test_a_closed_session_serves_nobody(redis: Redis) -> None:
    session = Session(redis)
    await session.aclose()
    for asking in (FencedRegister(session, "a").write(1, 1), FencedRegister(session, "a").read()):
        with pytest.raises(SessionClosedError):
            await asking
