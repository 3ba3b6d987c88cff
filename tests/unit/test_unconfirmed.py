"""`confirm=False`: the exit of a block writes the release, and waits for nothing."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from aiolocks import (
    Backoff,
    ConfigurationError,
    FairLock,
    LeaseState,
    Lock,
    LockLostError,
    MultiLock,
)
from tests.unit.fakes import demoted, deny, generous, grant, let_go, refuse, turns

LOST, RELEASED = LeaseState.LOST, LeaseState.RELEASED


async def enter(session, transport, *, others=0, **options):
    """A block of such a lock, entered in this very task."""
    lock = Lock(session, "name", **{"confirm": False, **options})
    asyncio.get_running_loop().call_soon(grant_next, transport, others)
    lease = await lock.__aenter__()
    return lock, lease


def grant_next(transport, others):
    grant(transport._untaken.get_nowait(), others=others)


async def left(lock):
    """Leaves the block, in one step."""
    exit_ = lock.__aexit__(None, None, None)
    with pytest.raises(StopIteration):  # it comes to its end without a turn of the loop
        exit_.send(None)


class Told:
    def __init__(self):
        self.events = []

    def on_released(self, event):
        self.events.append(("on_released", event.reason))

    def on_lost(self, event):
        self.events.append(("on_lost", event.reason))


async def test_the_exit_writes_the_release_and_does_not_wait(offline, transport) -> None:
    lock, lease = await enter(offline, transport)
    await left(lock)
    assert [call.script.name for call in transport.at_once] == ["lock_release"], "written in that step"
    assert lease.remaining() == 0
    assert lease.state is not RELEASED, "the server has not said so yet"

    waits = [asyncio.create_task(lease.wait_released()) for _ in range(3)]
    await turns()
    waits[0].cancel()
    let_go(await transport.asked("release"))

    assert await asyncio.gather(*waits[1:]) == [True, True]
    assert waits[0].cancelled()
    assert await lease.wait_released(), "also after the end"
    assert lease.state is RELEASED
    assert offline.statistics().hold_seconds.count == 1


async def test_by_default_the_exit_waits(offline, transport) -> None:
    lock, lease = await enter(offline, transport, confirm=True)
    leaving = asyncio.create_task(lock.__aexit__(None, None, None))
    await turns()
    assert not leaving.done()
    let_go(await transport.asked("release"))
    await leaving
    assert await lease.wait_released()


async def test_a_release_by_hand_waits(offline, transport) -> None:
    lock, lease = await enter(offline, transport)
    releasing = asyncio.create_task(lease.release())
    release = await transport.asked("release")
    await turns()
    assert not releasing.done()
    let_go(release)
    await releasing
    await left(lock)
    assert transport.unasked == []


async def test_the_next_acquire_of_the_session_goes_right_behind(offline, transport) -> None:
    lock, _ = await enter(offline, transport)
    await left(lock)
    acquiring = asyncio.create_task(lock.acquire())
    await turns()
    assert transport.verbs == ["acquire", "release", "acquire"]
    release, acquire = await transport.asked("release"), await transport.asked("acquire")
    let_go(release)
    grant(acquire)
    lease = await acquiring
    assert lease.state is LeaseState.HELD
    transport.answer = generous


async def test_a_waiter_of_the_session_follows_and_the_release_does_not_wait_for_it(
    offline, transport
) -> None:
    lock, _ = await enter(offline, transport)
    waiting = asyncio.create_task(lock.acquire())
    await turns()
    await left(lock)
    assert transport.verbs == ["acquire", "release", "acquire"]
    assert [call.script.name for call in transport.at_once] == ["lock_release"]
    let_go(await transport.asked("release"))
    grant(await transport.asked("acquire"))
    await waiting
    transport.answer = generous


@pytest.mark.parametrize("others", [0, 1])
async def test_the_next_acquire_goes_behind_waiters_of_other_sessions(offline, transport, others) -> None:
    """The ones that stood in the queue as of the last grant: the release wakes them, and they must be able to
    ask before this session has the lock again."""
    lock, _ = await enter(offline, transport, others=others)
    await left(lock)
    acquiring = asyncio.create_task(lock.acquire())
    let_go(await transport.asked("release"))
    acquire = await transport.asked("acquire")
    assert ("t" in str(acquire.args[-1])) is (others > 0), acquire.args
    grant(acquire)
    await acquiring
    transport.answer = generous


async def test_a_loss_that_only_the_server_knows_is_told_after_the_exit(
    make_session, transport, caplog
) -> None:
    told = Told()
    session = make_session(listeners=[told])
    lock, lease = await enter(session, transport)
    await left(lock)
    assert told.events == []
    losing = asyncio.create_task(lease.wait_lost())
    let_go(await transport.asked("release"), freed=False)

    assert told.events == [("on_lost", "the server no longer had it as the holder when it was released")]
    assert "was lost after" in caplog.text
    assert lease.state is LOST
    assert not await lease.wait_released()
    await losing
    assert session.statistics().losses == 1
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0, "the body has ended: its task is not cancelled"


async def test_an_overdue_deadline_at_the_exit_raises(offline, transport, clock) -> None:
    lock, lease = await enter(offline, transport, ttl=10, auto_renew=False)
    clock.jump(11)
    with pytest.raises(LockLostError, match="its ttl passed"):
        await lock.__aexit__(None, None, None)
    assert not await lease.wait_released()
    assert transport.verbs == ["acquire", "release"], "it is taken back"


async def test_a_loss_that_the_session_knows_raises_at_the_exit(offline, transport) -> None:
    lock, lease = await enter(offline, transport)
    asyncio.get_running_loop().call_soon(lease._possession.lose, "deleted")
    with pytest.raises(LockLostError, match="deleted"):
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError as error:
            await lock.__aexit__(type(error), error, None)


@pytest.mark.parametrize("how", ["held", "overdue", "lost", "being released", "sent again", "detached"])
async def test_the_exit_is_no_place_to_be_cancelled_in(offline, transport, clock, how) -> None:
    """Whatever has become of the lease, it awaits nothing: the cancellation comes out at the next await."""
    lock, lease = await enter(offline, transport, ttl=10, auto_renew=False)
    by_hand = None
    match how:
        case "overdue":
            clock.jump(11)
        case "lost":
            lease._possession.lose("deleted", told=False)
        case "being released" | "sent again":
            by_hand = asyncio.create_task(lease.release())
            await turns()
            if how == "sent again":
                demoted(await transport.asked("release"))
        case "detached":
            lease.detach()
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    leaving = lock.__aexit__(None, None, None)
    with pytest.raises(LockLostError if how in ("overdue", "lost") else StopIteration):
        leaving.send(None)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    assert task.uncancel() == 0
    if how != "detached":
        let_go(await transport.asked("release"))
    if by_hand is not None:
        await by_hand
    assert await lease.wait_released() is (how in ("held", "being released", "sent again"))
    assert transport.unasked == [], "it is released once"


@pytest.mark.parametrize("error", [ValueError("of the body"), asyncio.CancelledError("from outside")])
async def test_an_error_of_the_body_passes_at_once(offline, transport, error) -> None:
    lock, _ = await enter(offline, transport)
    with pytest.raises(StopIteration):
        lock.__aexit__(type(error), error, None).send(None)
    assert not getattr(error, "__notes__", [])
    let_go(await transport.asked("release"))


async def test_a_refused_release_is_tried_again(make_session, transport) -> None:
    session = make_session(backoff=Backoff(initial=0.5, maximum=0.5))
    lock, lease = await enter(session, transport)
    await left(lock)
    demoted(await transport.asked("release"))
    let_go(await transport.asked("release"))
    assert await lease.wait_released()
    assert session.statistics().releases_unconfirmed == 0


@pytest.mark.parametrize("how", ["denied", "silent"])
async def test_a_release_that_is_never_confirmed_is_told_and_counted(
    make_session, transport, caplog, how
) -> None:
    told = Told()
    session = make_session(listeners=[told])
    lock, lease = await enter(session, transport, ttl=10)
    await left(lock)
    release = await transport.asked("release")
    if how == "denied":
        deny(release)

    assert not await lease.wait_released()

    assert told.events == [("on_released", "unconfirmed")]
    assert session.statistics().releases_unconfirmed == 1
    assert session.statistics().losses == 0
    await asyncio.sleep(1)
    [line] = [record.message for record in caplog.records if "did not confirm" in record.message]
    assert ("no permissions" if how == "denied" else "did not answer") in line, "why: no error tells it"


@pytest.mark.parametrize("answers", [True, False])
async def test_closing_waits_for_it(make_session, transport, answers) -> None:
    """For `command_timeout` at most; also while it is about to be sent again."""
    told = Told()
    session = make_session(listeners=[told], backoff=Backoff(initial=0.5, maximum=0.5), command_timeout=3)
    lock, lease = await enter(session, transport)
    await left(lock)
    demoted(await transport.asked("release"))
    began = asyncio.get_running_loop().time()
    closing = asyncio.create_task(session.aclose())
    release = await transport.asked("release")
    await turns()
    assert not closing.done()
    assert not transport.closed
    if answers:
        let_go(release)
    await closing
    assert transport.closed
    took = asyncio.get_running_loop().time() - began
    assert await lease.wait_released() is answers
    assert told.events == [("on_released", "" if answers else "unconfirmed")]
    assert took == pytest.approx(0.5 if answers else 3.0, abs=0.2)


async def test_a_single_try_that_overtook_the_release_is_made_again(offline, transport) -> None:
    """Where the server lacked the script of the release, or its slot has moved."""
    lock, _ = await enter(offline, transport)
    await left(lock)
    trying = asyncio.create_task(lock.try_acquire())
    release, acquire = await transport.asked("release"), await transport.asked("acquire")
    refuse(acquire)
    again = await transport.asked("acquire")
    let_go(release)
    grant(again)
    assert await trying is not None

    trying = asyncio.create_task(Lock(offline, "another").try_acquire())
    refuse(await transport.asked("acquire"))
    assert await trying is None, "of another name: once"
    transport.answer = generous


async def test_a_try_is_made_again_once(offline, transport) -> None:
    lock, _ = await enter(offline, transport)
    await left(lock)
    trying = asyncio.create_task(lock.try_acquire())
    release = await transport.asked("release")
    for _ in range(2):
        refuse(await transport.asked("acquire"))
    assert await trying is None
    let_go(release)


async def test_with_a_cache_it_has_no_effect(offline, transport) -> None:
    lock, _ = await enter(offline, transport, cache=1)
    leaving = asyncio.create_task(lock.__aexit__(None, None, None))
    release = await transport.asked("release")
    await turns()
    assert not leaving.done()
    let_go(release)
    await leaving


@pytest.mark.parametrize("kind", [Lock, FairLock])
def test_it_does_not_go_together_with_replicas(kind) -> None:
    with pytest.raises(ConfigurationError, match="confirm=False and replicas="):
        kind(Redis(), "name", replicas=1, confirm=False)


async def test_nor_with_names_of_several_slots(offline, transport) -> None:
    transport.by_slot = True
    with pytest.raises(ConfigurationError, match="several slots"):
        await MultiLock(offline, ["a", "b"], confirm=False).acquire()
    MultiLock(offline, ["{a}1", "{a}2"], confirm=False)._bind()
    MultiLock(offline, ["a", "b"])._bind()


async def test_a_detached_lease_is_not_released(offline, transport) -> None:
    lock, lease = await enter(offline, transport)
    lease.detach()
    await left(lock)
    assert not await lease.wait_released()
    assert transport.verbs == ["acquire"]
