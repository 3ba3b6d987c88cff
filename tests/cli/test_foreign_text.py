"""Texts that other processes have written never reach the terminal as they are."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator

import pytest

from aiolocks import FairLock, Limits, Lock, LockError, Session
from tests.cli.conftest import Aiolocks, Ended, gone
from tests.cli.several import several
from tests.conftest import Connect
from tests.support.foreign import EVIL, SHOWN, evil_machine


@pytest.fixture
async def evil(connect: Connect) -> AsyncIterator[Session]:
    """A session of a machine with such a name."""
    async with contextlib.AsyncExitStack() as stack:
        with evil_machine():
            session = await stack.enter_async_context(Session(connect(), metadata={"command": EVIL}))
        yield session


def harmless(ended: Ended) -> None:
    for line in (ended.out + ended.err).split("\n"):
        assert line.isprintable(), line


async def test_a_holder(aiolocks: Aiolocks, evil: Session) -> None:
    async with Lock(evil, "job"), Limits(evil, "limits", {EVIL: 3}):
        commands = [("ls",), ("show", "job"), ("release", "job"), ("top",), ("show", "limits")]
        for ended in await several(aiolocks, *commands):
            harmless(ended)
            assert SHOWN in ended.out + ended.err
        for ended in await several(aiolocks, ("ls", "limits"), ("doctor",), ("deadlocks",)):
            harmless(ended)


async def test_the_holder_that_run_waits_for(aiolocks: Aiolocks, evil: Session) -> None:
    async with Lock(evil, "job"):
        ended = await (await aiolocks("run", "job", "--wait", "0", "--", "true")).end()
        assert ended.status == 75
        harmless(ended)
        assert f"held for 0.0 s by {SHOWN} pid" in ended.err or SHOWN in ended.err
        waiting = await aiolocks("run", "job", "--", "true")
        await waiting.warns(" pid ")
        waiting.send(signal.SIGTERM)
        ended = await waiting.end()
        harmless(ended)
        assert f"held by {SHOWN} pid" in ended.err
        assert f"({SHOWN})" in ended.err


@pytest.mark.leaves_keys
async def test_who_has_stolen_the_lock_of_run(aiolocks: Aiolocks, evil: Session) -> None:
    invocation = await aiolocks("run", "job", "--ttl", "0.6", "--", "sh", "-c", "echo in; exec sleep 60")
    await invocation.says("in")
    stolen = await Lock(evil, "job").acquire(steal=True)
    ended = await invocation.end()
    await stolen.release()
    harmless(ended)
    assert f"it was stolen by {SHOWN} pid" in ended.err
    await gone(invocation)


@pytest.mark.leaves_keys
async def test_from_whom_run_has_stolen_the_lock(aiolocks: Aiolocks, evil: Session) -> None:
    lease = await FairLock(evil, "job").acquire()
    ended = await (await aiolocks("run", "job", "--fair", "--steal", "--", "true")).end()
    harmless(ended)
    assert SHOWN in ended.err
    with pytest.raises(LockError):  # it was stolen
        await lease.release()
