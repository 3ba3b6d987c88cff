"""An acquire that is cancelled as its server begins to refuse is taken back once the server allows it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from aiolocks import Lock, Session
from tests.adversity.tools import ACQUIRE, RELEASE, Formed, Keys, warm
from tests.adversity.troubles import TRANSIENT, Setting, Trouble
from tests.conftest import Connect
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.waiting import eventually


@pytest.mark.parametrize("trouble", TRANSIENT, ids=str)
@pytest.mark.parametrize("dress", ["multiplexed"], indirect=True)
async def test_t_c_an_undo_that_is_refused_for_a_while_is_sent_again(
    trouble: Trouble,
    setting: Setting,
    proxy: Callable[[Server], Awaitable[Proxy]],
    connect: Connect,
    form: str,
    keys: Keys,
) -> None:
    server, _, lasting = setting
    through = await proxy(server)
    client = connect(Formed(through, form))
    await warm(client)
    sent, undone = through.count(ACQUIRE), through.count(RELEASE)
    through.delay_replies = 0.3
    acquiring = asyncio.create_task(Lock(client, "a", ttl=20).acquire())
    await through.saw(ACQUIRE, count=sent + 1)
    await eventually(lambda: keys(server))
    async with lasting():
        through.delay_replies = 0.0
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        await through.saw(RELEASE, count=undone + 1)
        await asyncio.sleep(0.1)
    await eventually(lambda: keys(server) == [], within=3)


async def test_t_c_an_undo_that_is_refused_is_sent_no_more_than_a_ttl(
    own_server, connect: Connect, proxy: Callable[[Server], Awaitable[Proxy]], keys: Keys
) -> None:
    """Its key has ended by itself then; and pauses between the attempts become longer.

    A ttl of less than 5 s: for 5 s, as long as a place in the queue may last.
    """
    server = await own_server()
    through = await proxy(server)
    client = connect(Formed(through, "url"))
    await warm(client)
    sent = through.count(ACQUIRE)
    through.delay_replies = 0.3
    acquiring = asyncio.create_task(Lock(client, "a", ttl=6).acquire())
    await through.saw(ACQUIRE, count=sent + 1)
    await eventually(lambda: keys(server))
    await connect(server).config_set("min-replicas-to-write", 1)
    through.delay_replies = 0.0
    before = Session.of(client).statistics().commands_sent
    acquiring.cancel()
    await asyncio.wait({acquiring})
    await asyncio.sleep(6.1)
    attempts = Session.of(client).statistics().commands_sent - before
    assert 2 <= attempts <= 24
    await asyncio.sleep(0.5)
    assert Session.of(client).statistics().commands_sent - before == attempts
    await connect(server).config_set("min-replicas-to-write", 0)
    assert keys(server) == []
