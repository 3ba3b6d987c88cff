"""Nothing that a server may send by the protocol ends a connection, or is taken for another answer."""

from __future__ import annotations

import asyncio
import itertools
import logging
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from aiolocks import BackendError, Lock, RWLock, Session
from tests.adversity.tools import PATIENT, in_within, wakeup, warm
from tests.conftest import Connect
from tests.support.proxy import Proxy
from tests.support.waiting import eventually, sleeps

ATTRIBUTE = b"|1\r\n+key-popularity\r\n%2\r\n$1\r\na\r\n,0.1923\r\n$1\r\nb\r\n,0.0012\r\n"
PUSHES = {
    "empty": b">0\r\n",
    "without keys": b">1\r\n+invalidate\r\n",
    "all keys": b">2\r\n+invalidate\r\n_\r\n",
    "keys of other sorts": b">2\r\n+invalidate\r\n*4\r\n:1\r\n_\r\n*1\r\n+a\r\n%0\r\n",
    "a key for keys": b">2\r\n+invalidate\r\n+a\r\n",
    "unknown": b">3\r\n+weather\r\n#t\r\n=8\r\ntxt:rain\r\n",
    "no word": b">2\r\n*1\r\n:1\r\n%1\r\n+a\r\n(12345678901234567890\r\n",
    "a map with maps as keys": b">2\r\n+x\r\n%1\r\n%1\r\n+a\r\n:1\r\n~1\r\n,1.5\r\n",
    "a long error": b">2\r\n+x\r\n!9\r\nERR hello\r\n",
    "a message without a channel": b">1\r\n+message\r\n",
    "a message of nothing": b">3\r\n+message\r\n_\r\n:1\r\n",
    "a message of another channel": b">3\r\n+message\r\n+news\r\n+del\r\n",
    "a subscription of nobody": b">3\r\n+subscribe\r\n+news\r\n:1\r\n",
    "an unsubscription of nobody": b">3\r\n+unsubscribe\r\n_\r\n:0\r\n",
    "a slot that has moved": b">3\r\n+sunsubscribe\r\n+news\r\n:0\r\n",
}


@pytest.mark.parametrize("extra", [ATTRIBUTE, *PUSHES.values()], ids=["an attribute", *PUSHES])
async def test_it_is_left_out(
    through: Proxy, connect: Connect, way: str, caplog: pytest.LogCaptureFixture, extra: bytes
) -> None:
    """Before replies, from the first one on; not before all, for some of it wakes waiters."""
    number = itertools.count()
    through.reply = lambda data: data if next(number) % 3 else extra + data
    async with AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(
                Session(connect(through), wakeup=wakeup(way), backoff=PATIENT)  # polls after 5 s
            )
            for _ in range(2)
        ]
        await warm(one)
        await warm(other)
        assert through.connections == 2
        async with RWLock(one, "rw").reader:
            assert await RWLock(other, "rw").writer.locked()
        for _ in range(3):
            lease = await Lock(one, "a").acquire()
            waiting = asyncio.create_task(Lock(other, "a").acquire())
            await eventually(lambda: sleeps(other), within=5)
            await lease.release()
            await (await in_within(2, waiting)).release()
        assert through.connections == 2
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_replies_of_other_sorts(through: Proxy, connect: Connect) -> None:
    """A reply that no script gives is an error of its own request; those around it are answered."""
    async with Session(connect(through)) as session:
        await warm(session)
        lock: Any = Lock(session, "a")
        for reply in (b"%1\r\n*1\r\n:1\r\n_\r\n", b"~1\r\n:1\r\n", b",1.5\r\n", b"_\r\n", b"(123456789\r\n"):
            through.reply = lambda data, reply=reply: ATTRIBUTE + reply
            with suppress(BackendError):
                await lock.locked()
            through.reply = None
            assert await lock.locked() is False  # nothing is held: each reply is of the one request
    assert through.connections == 1
