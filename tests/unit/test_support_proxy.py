"""The proxy does to a connection what it says, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks.testing import EmbeddedServer
from tests.support.proxy import Proxy

ONCE = Retry(NoBackoff(), 0)


@pytest.fixture
async def server(own_server) -> EmbeddedServer:
    """A server that is each test's own: their keys have simple names, and they kill connections."""
    return await own_server()


@pytest.fixture
async def proxy(server) -> AsyncIterator[Proxy]:
    async with Proxy(server.url) as proxy:
        yield proxy


@asynccontextmanager
async def connected(proxy: Proxy) -> AsyncIterator[Redis]:
    """A client that never tries again, with its handshake behind it."""
    async with proxy.client(retry=ONCE, single_connection_client=True) as client:
        await client.ping()
        yield client


@asynccontextmanager
async def raw(proxy: Proxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def elapsed_since(start: float) -> float:
    return asyncio.get_running_loop().time() - start


async def test_passes_on_what_comes(proxy) -> None:
    large = b"x" * 3_000_000

    async with connected(proxy) as client:
        assert await client.echo(large) == large

    assert proxy.requests[-1] == [b"ECHO", large]
    assert proxy.connections == 1


@pytest.mark.parametrize("port", [None, 0], ids=["socket", "port"])
async def test_leads_to_a_socket_or_a_port(own_server, port) -> None:
    server = await own_server(port=port)

    async with Proxy(server.url) as proxy, connected(proxy) as client:
        assert await client.ping()


async def test_its_url_keeps_credentials_and_database() -> None:
    async with Proxy("redis://me:secret@redis.example:6380/3?protocol=3") as proxy:
        assert proxy.url == f"redis://me:secret@127.0.0.1:{proxy.port}/3?protocol=3"


async def test_delays_each_direction_and_overtakes_nothing(proxy, redis) -> None:
    loop = asyncio.get_running_loop()
    async with raw(proxy) as (reader, writer):
        proxy.delay_requests, proxy.delay_replies = 0.03, 0.02
        start = loop.time()
        writer.write(command(b"RPUSH", b"list", b"first"))
        await proxy.saw(b"RPUSH")
        proxy.delay_requests = 0.0
        writer.write(command(b"RPUSH", b"list", b"second"))

        assert await reader.readexactly(8) == b":1\r\n:2\r\n"
        assert 0.05 <= elapsed_since(start) < 0.5
        assert await redis.lrange("list", 0, -1) == [b"first", b"second"]
        await redis.delete("list")


async def test_a_dropped_request_is_not_executed(proxy, redis) -> None:
    async with connected(proxy) as client:
        proxy.drop_requests = True
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.incr("n"), 0.05)

    assert proxy.count(b"INCR") == 1
    assert await redis.exists("n") == 0


async def test_a_request_whose_reply_is_dropped_is_executed(proxy, redis) -> None:
    async with connected(proxy) as client:
        proxy.drop_replies = True
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.incr("n"), 0.05)

    assert await redis.getdel("n") == b"1"


async def test_behind_a_black_hole_neither_side_hears_of_anything(own_server) -> None:
    server = await own_server()
    async with Proxy(server.url) as proxy, raw(proxy) as (reader, writer):
        writer.write(command(b"PING"))
        assert await reader.readline() == b"+PONG\r\n"
        proxy.blackhole = True

        server.kill()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(), 0.05)


async def test_deaf_connections_stay_so_and_new_ones_are_fine(proxy, redis) -> None:
    async with raw(proxy) as (reader, writer):
        writer.write(command(b"INCR", b"n"))
        assert await reader.readline() == b":1\r\n"

        proxy.deafen()
        writer.write(command(b"INCR", b"n"))
        async with connected(proxy) as client:
            assert await client.incr("n") == 2
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(), 0.05)
    assert proxy.count(b"INCR") == 3
    assert await redis.getdel("n") == b"2"


async def test_a_server_that_dies_is_passed_on(own_server) -> None:
    server = await own_server()
    async with Proxy(server.url) as proxy, raw(proxy) as (reader, writer):
        writer.write(command(b"PING"))
        assert await reader.readline() == b"+PONG\r\n"

        server.kill()
        assert await asyncio.wait_for(reader.read(), 1) == b""


async def test_a_client_that_leaves_is_passed_on(proxy, redis) -> None:
    async with connected(proxy) as client:
        identity = await client.client_id()

    async with asyncio.timeout(1):
        while identity in {int(entry["id"]) for entry in await redis.client_list()}:
            await asyncio.sleep(0.001)


async def test_refuses_new_connections_only(proxy) -> None:
    async with connected(proxy) as client:
        proxy.refuse = True
        assert await client.ping()
        with pytest.raises(RedisConnectionError):
            async with connected(proxy):
                pass
    assert proxy.connections == 1


async def test_without_a_server_behind_it_connections_are_reset() -> None:
    async with Proxy("unix:///nobody/listens/here") as proxy, raw(proxy) as (reader, _):
        with pytest.raises(ConnectionResetError):
            await reader.read()


async def test_loses_the_reply_to_the_nth_match_after_it_was_executed(proxy, redis) -> None:
    async with raw(proxy) as (reader, writer):
        lost = proxy.reset_after(b"counter", nth=2)
        writer.write(command(b"INCR", b"counter"))
        assert await reader.readline() == b":1\r\n"
        writer.write(command(b"PING"))
        assert await reader.readline() == b"+PONG\r\n"
        assert not lost.is_set()

        writer.write(command(b"INCR", b"counter"))
        # A real RST: a mere close would be read as the end of the stream.
        with pytest.raises(ConnectionResetError):
            await reader.read()

    assert lost.is_set()
    assert await redis.getdel("counter") == b"2"


async def test_the_reset_waits_for_the_reply_and_no_earlier_one(proxy, redis) -> None:
    """The request is executed late: the replies to those before it must not be taken for its own."""
    async with raw(proxy) as (reader, writer), raw(proxy) as (_, other):
        lost = proxy.reset_after(lambda request: request[0] == b"BLPOP")
        writer.write(command(b"PING") + command(b"BLPOP", b"list", b"0"))
        assert await reader.readline() == b"+PONG\r\n"
        assert not lost.is_set()

        other.write(command(b"LPUSH", b"list", b"element"))
        with pytest.raises(ConnectionResetError):
            await reader.read()
    assert await redis.exists("list") == 0, "it was executed"


async def test_a_push_is_not_taken_for_the_reply(proxy, redis) -> None:
    async with raw(proxy) as (reader, writer):
        writer.write(command(b"HELLO", b"3") + command(b"SUBSCRIBE", b"channel"))
        await reader.readuntil(b"$7\r\nchannel\r\n:1\r\n")
        lost = proxy.reset_after(b"BLPOP")
        writer.write(command(b"BLPOP", b"list", b"0"))
        await proxy.saw(b"BLPOP")
        await redis.publish("channel", "message")
        await reader.readuntil(b"$7\r\nchannel\r\n$7\r\nmessage\r\n")
        assert not lost.is_set()

        await redis.lpush("list", "element")
        await asyncio.wait_for(lost.wait(), 1)


async def test_each_arming_loses_one_reply(proxy) -> None:
    async with raw(proxy) as (reader, writer):
        proxy.reset_after(b"PING")
        writer.write(command(b"PING"))
        with pytest.raises(ConnectionResetError):
            await reader.read()
    async with raw(proxy) as (reader, writer):
        writer.write(command(b"PING"))
        assert await reader.readline() == b"+PONG\r\n"


async def test_cut_resets_all_connections(proxy) -> None:
    async with raw(proxy) as (first, writer), raw(proxy) as (second, other):
        for each in (writer, other):
            each.write(command(b"PING"))
        assert await first.readline() == await second.readline() == b"+PONG\r\n"
        assert proxy.open_connections == 2

        proxy.cut()
        for reader in (first, second):
            with pytest.raises(ConnectionResetError):
                await reader.read()
        assert proxy.open_connections == 0


async def test_held_requests_go_on_when_let_go(proxy, redis) -> None:
    async with connected(proxy) as client:
        proxy.hold_requests = True
        asked = asyncio.ensure_future(client.incr("n"))
        await proxy.saw(b"INCR")
        assert await redis.getdel("n") is None

        proxy.hold_requests = False
        assert await asked == 1
        await redis.delete("n")


async def test_a_stranded_request_arrives_after_what_its_client_did_next(proxy, redis) -> None:
    async with raw(proxy) as (reader, writer):
        proxy.hold_requests = True
        writer.write(command(b"APPEND", b"story", b"late ") + command(b"APPEND", b"story", b"later"))
        await proxy.saw(b"APPEND", count=2)
        proxy.strand()
        with pytest.raises(ConnectionResetError):
            await reader.read()
    async with connected(proxy) as client:
        await client.append("story", "first ")

        assert await proxy.deliver() == 2
        assert await client.getdel("story") == b"first late later"


async def test_a_stranded_request_is_void_once_the_server_has_closed_its_connection(proxy, redis) -> None:
    async with raw(proxy) as (reader, writer):
        writer.write(command(b"CLIENT", b"ID"))
        identity = int((await reader.readline())[1:])
        proxy.hold_requests = True
        writer.write(command(b"INCR", b"n"))
        await proxy.saw(b"INCR")
        proxy.strand()
    await redis.client_kill_filter(_id=identity)

    assert await proxy.deliver() == 0
    assert await redis.exists("n") == 0


async def test_leaving_closes_what_is_left(server, redis) -> None:
    before = len(await redis.client_list())
    async with Proxy(server.url) as proxy, raw(proxy) as (reader, writer):
        writer.write(command(b"PING"))
        await reader.readline()
        proxy.strand()

    async with asyncio.timeout(1):
        while len(await redis.client_list()) > before:
            await asyncio.sleep(0.001)
