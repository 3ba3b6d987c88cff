"""What listeners, the log and the statistics are told; and that no listener can do harm."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from aiolocks import Backoff, LeaseState, Lock, LockEvent
from tests.unit.fakes import generous, grant, hold, lose, refuse, releasing


class Recorder:
    """A listener to everything."""

    def __init__(self) -> None:
        self.told: list[tuple[str, LockEvent]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda event: self.told.append((name, event))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.told]

    def last(self) -> LockEvent:
        return self.told[-1][1]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


async def test_a_life_from_the_wait_to_the_release(make_session, transport, recorder) -> None:
    session = make_session(listeners=[recorder], backoff=Backoff(initial=2, maximum=2, jitter=0))
    acquiring = asyncio.create_task(Lock(session, "name").acquire())
    refuse(await transport.asked("acquire"))
    refuse(await transport.asked("acquire"))
    assert recorder.told == [("on_waiting", LockEvent(kind="lock", name="name"))], "once"

    grant(await transport.asked("acquire"), fencing_token=42)
    lease = await acquiring
    assert recorder.told[1:] == [
        ("on_acquired", LockEvent(kind="lock", name="name", fencing_token=42, seconds=pytest.approx(4)))
    ]

    (await transport.asked("renew")).reply(1)
    assert recorder.names[2:] == ["on_renewed"]
    assert recorder.last().seconds == lease.remaining()

    await asyncio.sleep(3)
    task = releasing(lease)
    (await transport.asked("release")).reply([1])
    await task
    assert recorder.names[3:] == ["on_released"]
    assert 12 < recorder.last().seconds < 13.1


async def test_who_gets_it_at_once_does_not_wait(make_session, transport, recorder) -> None:
    await hold(make_session(listeners=[recorder]), transport)

    assert recorder.names == ["on_acquired"]


async def test_who_is_queued_behind_another_here_waits(make_session, transport, recorder) -> None:
    session = make_session(listeners=[recorder])
    await hold(session, transport)

    queued = asyncio.create_task(Lock(session, "name").acquire())
    await asyncio.sleep(0)

    assert recorder.names == ["on_acquired", "on_waiting"]
    queued.cancel()


async def test_a_loss_says_why(make_session, transport, recorder) -> None:
    lease = await hold(make_session(listeners=[recorder]), transport)
    await lose(lease, transport)

    assert recorder.names == ["on_acquired", "on_lost"]
    assert recorder.last() == LockEvent(
        kind="lock",
        name="name",
        fencing_token=17,
        seconds=pytest.approx(10, abs=1),
        reason="the server no longer has it as the holder",
    )


async def test_a_listener_may_listen_to_a_part(make_session, transport) -> None:
    released = []

    class Listener:
        def on_released(self, event: LockEvent) -> None:
            released.append(event.name)

    transport.answer = generous
    async with Lock(make_session(listeners=[Listener()]), "name"):
        pass

    assert released == ["name"]


async def test_what_a_listener_raises_is_logged_and_harms_nobody(
    make_session, transport, recorder, caplog
) -> None:
    class Broken:
        def on_acquired(self, event: LockEvent) -> None:
            raise ZeroDivisionError("broken")

        on_waiting = on_renewed = on_released = on_acquired

    transport.answer = generous
    async with Lock(make_session(listeners=[Broken(), recorder]), "name") as lease:
        await asyncio.sleep(12)

    assert lease.state is LeaseState.RELEASED
    assert recorder.names == ["on_acquired", "on_renewed", "on_released"]
    assert caplog.text.count("a listener failed") == 3
    assert caplog.text.count("ZeroDivisionError: broken") == 3


async def test_logs_waiting_and_renewing_for_debugging_and_loss_as_a_warning(
    make_session, transport, caplog
) -> None:
    caplog.set_level(logging.DEBUG, "aiolocks")
    session = make_session()
    acquiring = asyncio.create_task(Lock(session, "a\nb").acquire())
    refuse(await transport.asked("acquire"))
    grant(await transport.asked("acquire"))
    lease = await acquiring
    (await transport.asked("renew")).reply(1)
    await lose(lease, transport)

    assert [(record.name, record.levelname) for record in caplog.records] == [
        ("aiolocks.session", "DEBUG"),
        ("aiolocks.session", "DEBUG"),
        ("aiolocks.session", "WARNING"),
    ]
    assert all(r"'a\nb'" in record.getMessage() for record in caplog.records), "quoted: it forges no line"
    assert lease.token not in caplog.text
