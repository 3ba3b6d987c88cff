"""The events for listeners, the log and the statistics; and that no listener can do harm."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import pytest

from aiolocks import Backoff, LeaseState, Lock, LockEvent, LockLostError, LockNotOwnedError, Session
from tests.unit.fakes import FakeTransport, deny, generous, grant, hold, lose, refuse, releasing, turns


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
        ("on_waited", LockEvent(kind="lock", name="name", seconds=pytest.approx(4), reason="granted")),
        ("on_acquired", LockEvent(kind="lock", name="name", fencing_token=42, seconds=pytest.approx(4))),
    ]

    (await transport.asked("renew")).reply(1)
    assert recorder.names[3:] == ["on_renewed"]
    assert recorder.last().seconds == lease.remaining()

    await asyncio.sleep(3)
    task = releasing(lease)
    (await transport.asked("release")).reply([1])
    await task
    assert recorder.names[4:] == ["on_released"]
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


# -- the ends ------------------------------------------------------------------------------------------------


async def cancelled(task: asyncio.Task[Any], session: Session, transport: FakeTransport) -> None:
    task.cancel()


async def out_of_time(task: asyncio.Task[Any], session: Session, transport: FakeTransport) -> None:
    await asyncio.wait({task})


async def denied(task: asyncio.Task[Any], session: Session, transport: FakeTransport) -> None:
    deny(await transport.asked("acquire"))


async def closed(task: asyncio.Task[Any], session: Session, transport: FakeTransport) -> None:
    await session.aclose()


@pytest.mark.parametrize(
    ("end", "how", "queued"),
    [
        (cancelled, "cancelled", False),
        (cancelled, "cancelled", True),  # behind another here, where nothing is asked
        (out_of_time, "timeout", False),
        (out_of_time, "timeout", True),
        (closed, "closed", False),
        (closed, "closed", True),
        (denied, "failed", False),
    ],
)
async def test_however_a_wait_ends_it_is_told_once(
    make_session, transport, recorder, end, how, queued
) -> None:
    session = make_session(listeners=[recorder], backoff=Backoff(initial=2, maximum=2, jitter=0))
    if queued:
        await hold(session, transport)
        recorder.told.clear()
    waiting = asyncio.create_task(Lock(session, "name", blocking_timeout=5).acquire())
    if not queued:
        refuse(await transport.asked("acquire"))
    await asyncio.sleep(1)
    if end is out_of_time and not queued:
        transport.answer = lambda asked: [0, 20_000] if asked == "acquire" else generous(asked)

    await end(waiting, session, transport)
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.sleep(10)

    waits = [(name, event) for name, event in recorder.told if name in ("on_waiting", "on_waited")]
    assert [name for name, _ in waits] == ["on_waiting", "on_waited"]
    assert (waits[1][1].reason, waits[1][1].fencing_token) == (how, None)
    assert 1 <= waits[1][1].seconds <= 5
    assert recorder.names.count("on_timeout") == session.statistics().timeouts == (how == "timeout")
    assert "on_acquired" not in recorder.names


async def test_a_grant_that_nobody_takes_ends_the_wait_too(make_session, transport, recorder) -> None:
    session = make_session(listeners=[recorder])
    waiting = asyncio.create_task(Lock(session, "name").acquire())
    refuse(await transport.asked("acquire"))
    call = await transport.asked("acquire")
    grant(call)
    waiting.cancel()  # behind the grant, and before the task runs
    await asyncio.wait({waiting})

    assert recorder.names == ["on_waiting", "on_waited", "on_not_acquired"]


async def test_a_single_try_does_not_wait_but_may_be_too_late(make_session, transport, recorder) -> None:
    session = make_session(listeners=[recorder])
    transport.answer = lambda asked: [0, 20_000]

    with pytest.raises(TimeoutError):
        await Lock(session, "name").acquire(blocking_timeout=0)
    assert recorder.names == ["on_timeout", "on_not_acquired"]
    assert await Lock(session, "name").try_acquire() is None
    assert recorder.names == ["on_timeout", "on_not_acquired", "on_not_acquired"]
    assert [event.reason for _, event in recorder.told] == ["", "timeout", "refused"]


async def test_detaching_and_adopting_are_told(make_session, transport, recorder) -> None:
    session = make_session(listeners=[recorder])
    lease = await hold(session, transport)
    await asyncio.sleep(2)
    handle = lease.detach()
    transport.answer = generous
    await (await Lock(session, "name").adopt(handle)).release()

    assert recorder.names == ["on_acquired", "on_detached", "on_acquired", "on_released"]
    assert recorder.told[1][1] == LockEvent(kind="lock", name="name", fencing_token=17, seconds=2)


async def test_what_is_collected_unreleased_is_told_in_the_loop(
    make_session, transport, recorder, caplog
) -> None:
    lease = await hold(make_session(listeners=[recorder]), transport)
    await turns()  # its task lets go of it
    with pytest.warns(ResourceWarning, match="never released"):
        transport.kept.clear()
        del lease
        gc.collect()
    assert recorder.names == ["on_acquired"], "not in the midst of whatever was running"
    await asyncio.sleep(0)

    assert recorder.names == ["on_acquired", "on_abandoned"]
    assert recorder.last() == LockEvent(kind="lock", name="name")
    await asyncio.sleep(1)
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert ("WARNING", "lock 'name' was dropped without a release; its ttl frees it") in told


async def test_what_is_held_when_the_session_closes_is_told_as_lost_and_no_more(
    make_session, transport, recorder
) -> None:
    session = make_session(listeners=[recorder])
    lease = await hold(session, transport)
    transport.answer = generous
    await session.aclose(release="none")
    with pytest.raises(LockNotOwnedError):
        await lease.release()

    assert recorder.names == ["on_acquired", "on_lost"]
    assert recorder.last().reason == "the session was closed"


@pytest.mark.parametrize("freed", [True, False])
async def test_a_lease_has_one_end(make_session, transport, recorder, freed) -> None:
    lease = await hold(make_session(listeners=[recorder]), transport)
    tasks = [releasing(lease), releasing(lease)]
    (await transport.asked("release")).reply([int(freed)])
    await asyncio.wait(tasks)
    with pytest.raises(LockLostError):
        lease.detach()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert recorder.names == ["on_acquired", "on_released" if freed else "on_lost"]


# -- listeners -----------------------------------------------------------------------------------------------


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
    await asyncio.sleep(0.1)
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
        ("aiolocks.session", "DEBUG"),
        ("aiolocks.session", "WARNING"),
    ]
    assert all(r"'a\nb'" in record.getMessage() for record in caplog.records), "quoted: it forges no line"
    assert lease.token not in caplog.text
