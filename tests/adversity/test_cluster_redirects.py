"""The error of a caller after redirects of a cluster's nodes, also after those that nobody can read."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import RedisCluster

from aiolocks import BackendError, Lock, Session
from aiolocks.transport.keys import key
from tests.conftest import PREFIX
from tests.support.clusters import Cluster, Node

TAG = "{redirected}"


@asynccontextmanager
async def liar(node: Node, reply: bytes, lies: asyncio.Event) -> AsyncIterator[int]:
    """The port of a peer that passes on all to a node; once it lies, it answers each script by itself."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, forward = await asyncio.open_connection("127.0.0.1", node.port)

        async def back() -> None:
            while data := await upstream.read(65_536):
                writer.write(data)

        tasks.add(asyncio.create_task(back()))
        while data := await reader.read(65_536):
            if lies.is_set() and b"EVAL" in data:
                writer.write(reply)
            else:
                forward.write(data)
        forward.close()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@pytest.mark.parametrize("redirect", ["MOVED to nobody knows where", "ASK", "MOVED 1 there"])
async def test_a_redirect_that_cannot_be_read_ends_the_call_and_nothing_else(
    cluster: Cluster, redirect: str
) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    node, lies = cluster.masters[0], asyncio.Event()
    names = [name for name in map(str, range(20)) if cluster.owner_of(key(PREFIX, "lock", name)) is node]
    async with liar(node, f"-{redirect}\r\n".encode(), lies) as port:
        client = RedisCluster(host="127.0.0.1", port=port, address_remap=lambda address: (address[0], port))
        async with Session(client) as session:
            async with Lock(session, names[0]):
                pass
            lies.set()
            began = time.monotonic()
            for name in names[1:4]:
                with pytest.raises(BackendError, match="a redirect that cannot be read"):
                    await Lock(session, name).acquire(blocking_timeout=5)
            assert time.monotonic() - began < 2
        await client.aclose()
    assert complaints == []


async def test_an_error_says_that_the_slot_is_being_moved_and_not_just_where(
    cluster: Cluster, sessions: list[Session]
) -> None:
    slot = cluster.slot(key(PREFIX, "lock", TAG))
    async with Lock(sessions[0], TAG):
        pass  # the fence stays, so the node answers TRYAGAIN for this name and ASK for the others
    source = cluster.settle(slot)
    to = cluster.another(source)
    cluster.begin_move(slot, source, to)
    try:
        names = [TAG, *(f"{TAG}{number}" for number in range(5))]
        acquiring = [Lock(sessions[0], name).acquire(blocking_timeout=0.3) for name in names]
        errors = await asyncio.gather(*acquiring, return_exceptions=True)
    finally:
        cluster.carry(source.do("CLUSTER", "GETKEYSINSLOT", slot, 100), source, to)
        cluster.end_move(slot, source, to)
    for error in errors:
        assert isinstance(error, BackendError)
        assert re.search(r"the slot is being moved|did not answer in time", str(error)), error
    assert any("the slot is being moved" in str(error) for error in errors)
