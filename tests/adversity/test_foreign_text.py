"""Texts that other processes and servers have written: escaped in each message, and raw in the fields."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from aiolocks import (
    BackendError,
    FairLock,
    Lock,
    LockError,
    LockEvent,
    LockLostError,
    LockTimeoutError,
    RemoteCallError,
    Session,
    SingleFlight,
)
from aiolocks.lock import waiter
from tests.conftest import Connect
from tests.support.foreign import EVIL, SHOWN, evil_machine
from tests.support.waiting import eventually


class Listener:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def heard(self, event: LockEvent) -> None:
        self.reasons.append(event.reason)

    on_lost = on_stolen = on_deadlock = heard


def harmless(*texts: str) -> None:
    for text in texts:
        assert text.isprintable(), repr(text)


@pytest.fixture
async def evil(connect: Connect) -> AsyncIterator[Session]:
    """A session of a machine with such a name."""
    async with contextlib.AsyncExitStack() as stack:
        with evil_machine():
            session = await stack.enter_async_context(Session(connect(), metadata={EVIL: EVIL}))
        yield session


async def test_the_holder_in_the_way(evil: Session, redis: Redis) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.set_name(EVIL)
    async with Lock(evil, EVIL):
        with pytest.raises(LockTimeoutError) as caught:
            await Lock(redis, EVIL, blocking_timeout=0).acquire()
    harmless(str(caught.value), repr(caught.value))
    assert f"by {SHOWN} pid" in str(caught.value)
    (holder,) = caught.value.holders
    assert (caught.value.name, holder.host, holder.task, holder.metadata) == (EVIL, EVIL, EVIL, {EVIL: EVIL})


async def test_a_long_wait(
    evil: Session, redis: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiter, "_LONG", 0.5)
    caplog.set_level(logging.INFO, "aiolocks.session")
    async with Session(redis) as session:
        async with Lock(evil, "a"):
            waiting = asyncio.create_task(Lock(session, "a").acquire())
            await eventually(lambda: "waiting for" in caplog.text, within=30)
        await (await waiting).release()
    harmless(*caplog.messages)
    assert any(f"by {SHOWN} pid" in message for message in caplog.messages)


@pytest.mark.leaves_keys
async def test_a_loss_by_force(evil: Session, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener()
    async with Session(connect(), listeners=[listener]) as session:
        with pytest.raises(LockLostError) as caught:
            async with Lock(session, "a", ttl=20):
                stolen = await Lock(evil, "a").acquire(steal=True)
                await asyncio.sleep(5)
        await stolen.release()
        assert caught.value.stolen_by is not None
        assert caught.value.stolen_by.host == EVIL
        harmless(str(caught.value), caught.value.reason, *caplog.messages, *listener.reasons)
        assert SHOWN in str(caught.value)
        lost = await Lock(evil, "b").acquire()
        await (await Lock(session, "b").acquire(steal=True)).release()
        await lost.wait_lost()
    harmless(*caplog.messages, *listener.reasons)
    (taken,) = [message for message in caplog.messages if message.startswith("lock 'b' was taken by force")]
    assert SHOWN in taken


@pytest.mark.more  # as the other lines with a foreign text
async def test_a_deadlock(evil: Session, redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener()
    async with Session(redis, listeners=[listener]) as session:

        async def nested(mine: Session, first: str, second: str) -> None:
            async with FairLock(mine, first):
                await asyncio.sleep(0.2)
                async with FairLock(mine, second):
                    pass

        tasks = [
            asyncio.create_task(nested(session, "x", "y"), name=EVIL),
            asyncio.create_task(nested(evil, "y", "x"), name=EVIL),
        ]
        await eventually(lambda: bool(listener.reasons), within=10)
        (deadlock,) = await session.deadlocks()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    harmless(str(deadlock), *listener.reasons, *caplog.messages)
    assert SHOWN in str(deadlock)
    assert EVIL in {task.host for task in deadlock.tasks}


@pytest.mark.leaves_keys
async def test_the_error_of_a_call_elsewhere(evil: Session, redis: Redis) -> None:
    async def fails() -> None:
        await asyncio.sleep(0.5)
        raise ValueError(EVIL)

    async with Session(redis) as session:
        there = asyncio.create_task(SingleFlight(evil).do("a", fails))
        await asyncio.sleep(0.2)
        with pytest.raises(RemoteCallError) as caught:
            await SingleFlight(session).do("a", fails)
        with pytest.raises(ValueError, match="evil"):
            await there
    harmless(str(caught.value))
    assert caught.value.message == EVIL


async def test_the_words_of_a_server(caplog: pytest.LogCaptureFixture) -> None:
    """It is none, or somebody stands between."""
    caplog.set_level(logging.DEBUG, "aiolocks")
    words = "ERR \x1b]0;owned\x07\u202egnp\x85"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            while line := await reader.readline():
                if line.startswith(b"*"):
                    writer.write(f"-{words}\r\n".encode())

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Redis(port=port) as client, Session(client, command_timeout=1) as session:
            with pytest.raises(BackendError) as caught:
                await Lock(session, "a").try_acquire()
    harmless(str(caught.value), *caplog.messages)
    assert r"\x1b]0;owned" in str(caught.value)


@pytest.mark.parametrize("error", [LockError, BackendError])
def test_the_text_of_each_error(error: type[LockError]) -> None:
    """Whoever makes it; what is escaped already stays as it is."""
    assert str(error(f"{EVIL!r} and {EVIL}")) == f"{EVIL!r} and {SHOWN[:-1]}"
