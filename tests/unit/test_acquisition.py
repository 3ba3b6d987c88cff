"""One acquire, from the call to the grant or to giving up: every step is the test's, time included."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

import pytest

from aiolocks import (
    BackendError,
    Backoff,
    FairLock,
    LeaseState,
    Lock,
    LockTimeoutError,
    RWLock,
    Semaphore,
    Session,
    SessionClosedError,
)
from aiolocks.transport import Request
from aiolocks.transport.steps.lock import LockSteps
from tests.unit.fakes import NO_WAKEUPS, cut, demoted, deny, grant, hold, let_go, refuse, releasing, turns

SLOW = Backoff(initial=10, maximum=10, jitter=0)
"""So long that whatever comes sooner has another reason."""


def waiting(session: Session, **options: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(Lock(session, "name", **options).acquire())


def trying(session: Session, **options: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(Lock(session, "name", **options).try_acquire())


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def token(call: Request[Any]) -> Any:
    return call.args[0]


def is_undo_of(undo: Request[Any], call: Request[Any]) -> bool:
    """Whether it releases just that token, in order behind it, on a server that may not know the script."""
    return token(undo) == token(call) and undo.lane == call.lane and undo.as_eval


async def failure(task: Awaitable[Any]) -> BaseException:
    """The error with which it ends; from a BackendError on with its cause."""
    try:
        return await task
    except Exception as error:
        return error


# -- granted -------------------------------------------------------------------------------------------------


async def test_granted_at_once(offline, transport) -> None:
    task = waiting(offline)
    grant(await transport.asked("acquire"), fencing_token=42)

    lease = await task

    assert lease.fencing_token == 42
    assert lease.state is LeaseState.HELD
    assert transport.unasked == []


async def test_may_be_relied_on_from_before_the_request_was_sent(offline, transport) -> None:
    task = waiting(offline, ttl=10)
    call = await transport.asked("acquire")
    await asyncio.sleep(3)
    grant(call)

    assert (await task).remaining() == pytest.approx(10 - 0.1 - 0.002 - 3)


async def test_a_grant_that_comes_too_late_is_given_back_and_tried_again(offline, transport) -> None:
    task = waiting(offline, ttl=1)
    late = await transport.asked("acquire")
    await asyncio.sleep(0.989)
    grant(late)

    undo = await transport.asked("release")
    assert is_undo_of(undo, late)
    again = await transport.asked("acquire")
    grant(again)
    assert (await task).remaining() == pytest.approx(0.988)


async def test_a_single_try_that_is_granted_too_late_is_given_back_and_refused(offline, transport) -> None:
    task = trying(offline, ttl=1)
    late = await transport.asked("acquire")
    await asyncio.sleep(0.989)
    grant(late)

    assert await task is None
    assert is_undo_of(await transport.asked("release"), late)
    assert transport.unasked == []


async def test_asks_for_no_more_than_max_hold(offline, transport) -> None:
    task = waiting(offline, ttl=30, max_hold=5)
    call = await transport.asked("acquire")
    assert call.args[1] == 5000
    grant(call)

    assert (await task).remaining() == pytest.approx(5 - 0.05 - 0.002)


# -- refused -------------------------------------------------------------------------------------------------


async def test_asks_again_with_the_same_token(offline, transport) -> None:
    task = waiting(offline)
    refused = await transport.asked("acquire")
    refuse(refused)

    again = await transport.asked("acquire")

    assert token(again) == token(refused)
    grant(again)
    await task


async def test_sleeps_as_the_backoff_says(make_session, transport, clock) -> None:
    session = make_session(backoff=Backoff(initial=0.1, maximum=0.3, jitter=0))
    task = waiting(session)
    call = await transport.asked("acquire")
    pauses = []
    for _ in range(4):
        refuse(call)
        refused_at = clock.now()
        call = await transport.asked("acquire")
        pauses.append(clock.now() - refused_at)

    assert pauses == pytest.approx([0.1, 0.2, 0.3, 0.3])
    await cancel(task)


async def test_never_sleeps_past_the_remaining_ttl_of_the_holder(make_session, transport, clock) -> None:
    task = waiting(make_session(backoff=SLOW))
    refuse(await transport.asked("acquire"), remaining_ms=500)
    refused_at = clock.now()

    grant(await transport.asked("acquire"))

    assert clock.now() - refused_at == pytest.approx(0.501)
    await task


async def test_a_holder_without_a_ttl_is_polled(make_session, transport, clock) -> None:
    task = waiting(make_session(backoff=SLOW))
    refuse(await transport.asked("acquire"), remaining_ms=-1)
    refused_at = clock.now()

    grant(await transport.asked("acquire"))

    assert clock.now() - refused_at == pytest.approx(10)
    await task


@pytest.mark.parametrize("ask", [trying, lambda session: waiting(session, blocking_timeout=0)])
async def test_a_single_try_asks_once_and_does_not_wait(offline, transport, clock, ask) -> None:
    began = clock.now()
    task = ask(offline)
    refuse(await transport.asked("acquire"), remaining_ms=1500)

    outcome = await failure(task)

    assert outcome is None or "at the first try: it stays taken for 1.500 s more" in str(outcome)
    assert clock.now() == began
    assert transport.unasked == []


async def test_a_single_try_goes_past_the_queue(make_session, transport) -> None:
    session = make_session(backoff=SLOW)
    tasks = [waiting(session), waiting(session)]
    refuse(await transport.asked("acquire"))

    once = trying(session)
    refuse(await transport.asked("acquire"))

    assert await once is None
    for task in tasks:
        await cancel(task)


# -- the deadline --------------------------------------------------------------------------------------------


async def test_tries_once_more_right_before_the_deadline(make_session, transport, clock) -> None:
    task = waiting(make_session(backoff=SLOW), blocking_timeout=1)
    began = clock.now()
    refuse(await transport.asked("acquire"))

    grant(await transport.asked("acquire"))

    assert clock.now() - began == pytest.approx(0.995)
    await task


async def refused_after(seconds: float, transport: Any) -> None:
    call = await transport.asked("acquire")
    await asyncio.sleep(seconds)
    refuse(call)


async def test_leaves_the_last_try_the_time_of_two_round_trips(make_session, transport, clock) -> None:
    task = waiting(make_session(backoff=SLOW), blocking_timeout=1)
    began = clock.now()
    await refused_after(0.1, transport)

    grant(await transport.asked("acquire"))

    assert clock.now() - began == pytest.approx(0.8)
    await task


async def test_does_not_try_again_without_time_for_an_answer(make_session, transport, clock) -> None:
    task = waiting(make_session(backoff=SLOW), blocking_timeout=1)
    began = clock.now()
    await refused_after(0.6, transport)

    assert isinstance(await failure(task), LockTimeoutError)
    assert clock.now() - began == pytest.approx(1)
    assert transport.unasked == ["release"]  # leaves the queue


async def test_a_refused_wait_times_out_and_names_what_the_holder_has_left(
    make_session, transport, clock
) -> None:
    session = make_session(backoff=SLOW)
    task = waiting(session, blocking_timeout=2)
    began = clock.now()
    refuse(await transport.asked("acquire"), remaining_ms=20_000)
    refuse(await transport.asked("acquire"), remaining_ms=18_000)

    error = await failure(task)

    assert isinstance(error, LockTimeoutError)
    assert (error.name, error.blocking_timeout) == ("name", 2)
    assert error.remaining == pytest.approx(18, abs=0.01)
    assert clock.now() - began == pytest.approx(2)
    assert session.statistics().timeouts == 1


async def test_a_wait_without_any_answer_is_a_backend_error(offline, transport, clock) -> None:
    task = waiting(offline, blocking_timeout=0.3)
    began = clock.now()
    silent = await transport.asked("acquire")

    assert isinstance(await failure(task), BackendError)
    assert clock.now() - began == pytest.approx(0.3)
    assert is_undo_of(await transport.asked("release"), silent)


@pytest.mark.parametrize(("patience", "hasty", "ends"), [(None, 0.3, 0.3), (1, 0.3, 0.3), (0.3, 5, 0.3)])
@pytest.mark.parametrize("behind", [False, True])
async def test_a_question_of_a_hasty_kind_ends_its_acquire_soon_and_never_after_the_deadline(
    offline, transport, clock, monkeypatch, patience, hasty, ends, behind
) -> None:
    """The first question of an acquire, and one of a waiter that goes on behind a holder of its session."""
    monkeypatch.setattr(LockSteps, "hasty", hasty)
    lease = await hold(offline, transport) if behind else None
    task = waiting(offline, blocking_timeout=patience)
    began = clock.now()
    if lease is not None:
        await turns()
        release = releasing(lease)
        let_go(await transport.asked("release"))
        await release
    await transport.asked("acquire")

    assert isinstance(await failure(task), BackendError)
    assert clock.now() - began == pytest.approx(ends)


async def test_a_wait_that_saw_a_refusal_times_out_even_if_the_last_try_is_silent(
    make_session, transport
) -> None:
    task = waiting(make_session(backoff=SLOW), blocking_timeout=1)
    refuse(await transport.asked("acquire"))
    await transport.asked("acquire")

    assert isinstance(await failure(task), LockTimeoutError)


async def test_a_wait_behind_a_head_that_was_refused_times_out(make_session, transport) -> None:
    session = make_session(backoff=SLOW)
    head, behind = waiting(session), waiting(session, blocking_timeout=1)
    refuse(await transport.asked("acquire"))

    assert isinstance(await failure(behind), LockTimeoutError)
    await cancel(head)


async def test_a_wait_behind_a_head_without_an_answer_is_a_backend_error(offline, transport) -> None:
    head, behind = waiting(offline), waiting(offline, blocking_timeout=1)
    await transport.asked("acquire")

    assert isinstance(await failure(behind), BackendError)
    assert transport.unasked == []
    await cancel(head)


async def test_a_wait_behind_a_holder_here_asks_nothing_and_names_what_it_has_left(
    offline, transport
) -> None:
    lease = await hold(offline, transport, ttl=10, auto_renew=False)

    error = await failure(waiting(offline, blocking_timeout=1))

    assert isinstance(error, LockTimeoutError)
    assert error.remaining == pytest.approx(lease.remaining())
    assert transport.unasked == []


async def test_a_wait_behind_a_holder_here_that_has_just_let_go_times_out(offline, transport) -> None:
    """Its own question was open for a moment: that is no silence."""
    lease = await hold(offline, transport, ttl=10, auto_renew=False)
    await asyncio.sleep(1)
    task = waiting(offline, blocking_timeout=1)
    await asyncio.sleep(0.95)
    release = asyncio.create_task(lease.release())
    (await transport.asked("release")).reply([1])
    await release
    await transport.asked("acquire")

    assert isinstance(await failure(task), LockTimeoutError)


async def test_a_refusal_between_the_deadline_and_the_end_of_the_call_ends_it(offline, transport) -> None:
    """Timers for one moment may fire in two turns of the loop, with a reply between them."""
    transport.lateness = 0.002
    task = waiting(offline, blocking_timeout=1)
    call = await transport.asked("acquire")
    await asyncio.sleep(1.001)
    refuse(call)

    assert isinstance(await failure(asyncio.wait_for(task, 5)), LockTimeoutError)


# -- silence and faults --------------------------------------------------------------------------------------


async def test_without_a_deadline_it_gives_up_after_one_ttl_of_silence(offline, transport, clock) -> None:
    task = waiting(offline, ttl=7)
    began = clock.now()
    await transport.asked("acquire")

    assert isinstance(await failure(task), BackendError)
    assert clock.now() - began == pytest.approx(7)


async def test_the_time_of_silence_begins_behind_the_last_answer(make_session, transport, clock) -> None:
    task = waiting(make_session(backoff=SLOW), ttl=30)
    began = clock.now()
    refuse(await transport.asked("acquire"), remaining_ms=60_000)
    await transport.asked("acquire")

    assert isinstance(await failure(task), BackendError)
    assert 30 <= clock.now() - began <= 40.001, "its own sleep may or may not count"


async def test_a_single_try_waits_for_its_answer_as_long_as_a_command_may_take(
    make_session, transport, clock
) -> None:
    task = trying(make_session(command_timeout=2))
    began = clock.now()
    silent = await transport.asked("acquire")

    assert isinstance(await failure(task), BackendError)
    assert clock.now() - began == pytest.approx(2)
    assert is_undo_of(await transport.asked("release"), silent)


@pytest.mark.parametrize("fail", [cut, demoted])
async def test_a_passing_fault_is_outlasted(offline, transport, fail) -> None:
    task = waiting(offline)
    for _ in range(3):
        fail(await transport.asked("acquire"))

    grant(await transport.asked("acquire"))

    assert (await task).state is LeaseState.HELD


@pytest.mark.parametrize("ask", [waiting, trying])
async def test_what_is_refused_for_good_is_told_at_once(offline, transport, clock, ask) -> None:
    task = ask(offline)
    began = clock.now()
    deny(await transport.asked("acquire"))

    assert isinstance(await failure(task), BackendError)
    assert clock.now() == began
    assert transport.unasked == []


async def test_a_single_try_tells_even_a_passing_fault(offline, transport) -> None:
    task = trying(offline)
    demoted(await transport.asked("acquire"))

    assert isinstance(await failure(task), BackendError)


async def test_faults_until_the_deadline_are_a_backend_error_with_its_cause(offline, transport) -> None:
    task = waiting(offline, blocking_timeout=0.01)

    async def keep_cutting() -> None:
        while True:
            cut(await transport.asked("acquire"))

    cutting = asyncio.create_task(keep_cutting())
    error = await failure(task)

    assert isinstance(error, BackendError)
    assert str(error.__cause__) == "cut"
    with pytest.raises(AssertionError, match="asked to release"):
        await cutting


async def test_faults_alone_for_a_whole_ttl_are_silence_too(offline, transport, clock) -> None:
    task = waiting(offline, ttl=7)
    began = clock.now()

    async def keep_cutting() -> None:
        while True:
            cut(await transport.asked("acquire"))

    cutting = asyncio.create_task(keep_cutting())
    assert isinstance(await failure(task), BackendError)
    assert clock.now() - began == pytest.approx(7, abs=0.01)
    with pytest.raises(AssertionError, match="asked to release"):
        await cutting


async def test_a_fault_right_before_the_end_of_the_wait_is_the_last(make_session, transport, clock) -> None:
    task = waiting(make_session(backoff=SLOW), ttl=7)
    began = clock.now()
    call = await transport.asked("acquire")
    await asyncio.sleep(6.999)
    cut(call)

    assert isinstance(await failure(task), BackendError)
    assert clock.now() - began == pytest.approx(7)
    assert transport.unasked == ["release"]


async def test_silence_counts_for_nobody_before_he_came(offline, transport, clock) -> None:
    head = waiting(offline, ttl=10)
    await transport.asked("acquire")
    await asyncio.sleep(8)
    task = waiting(offline, ttl=10)
    began = clock.now()

    assert isinstance(await failure(head), BackendError)
    assert isinstance(await failure(task), BackendError)
    assert clock.now() - began == pytest.approx(10)


async def test_what_the_server_has_said_is_told_rather_than_that_it_is_silent_now(
    make_session, transport
) -> None:
    task = waiting(make_session(backoff=SLOW), blocking_timeout=1)
    demoted(await transport.asked("acquire"))
    await transport.asked("acquire")

    error = await failure(task)

    assert isinstance(error, BackendError)
    assert "the master has changed" in str(error)


async def test_a_long_wait_behind_a_holder_here_is_not_silence(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=1, auto_renew=True)
    task = waiting(offline, ttl=1)
    for _ in range(12):
        (await transport.asked("renew")).reply(1)
    release = asyncio.create_task(lease.release())
    (await transport.asked("release")).reply([1])
    await release

    call = await transport.asked("acquire")
    await asyncio.sleep(0.01)
    grant(call)

    assert (await task).state is LeaseState.HELD


async def test_a_long_wait_is_logged_by_the_timer_that_was_set_for_that(
    offline, transport, clock, caplog
) -> None:
    """Also where the sum of two times is rounded: else the timer would be set again for the same moment."""
    caplog.set_level(logging.INFO, "aiolocks.session")
    began = 2.0 ** math.ceil(math.log2(clock.now() + 100)) - 7.0
    while (began + 10.0) - began >= 10.0:
        began = math.nextafter(began, math.inf)
    await hold(offline, transport, ttl=1e6, auto_renew=False)
    clock.jump(began - clock.now())
    task = waiting(offline, ttl=timedelta(seconds=1e6))
    await asyncio.sleep(11)

    assert "waiting for 10.0 s" in caplog.text
    await cancel(task)


async def test_a_sleep_that_is_longer_than_the_ttl_is_not_silence(make_session, transport) -> None:
    task = waiting(make_session(backoff=SLOW), ttl=1)
    refuse(await transport.asked("acquire"), remaining_ms=60_000)

    call = await transport.asked("acquire")
    await asyncio.sleep(0.01)
    grant(call)

    assert (await task).state is LeaseState.HELD


async def test_what_a_try_that_has_left_was_not_told_is_no_silence_to_others(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=30)
    task = waiting(offline, ttl=1)
    looking = trying(offline)
    await transport.asked("acquire")
    await cancel(looking)
    await transport.asked("release")  # its undo
    await asyncio.sleep(2)

    release = asyncio.create_task(lease.release())
    (await transport.asked("release")).reply([1])
    await release
    grant(await transport.asked("acquire"))

    assert (await task).state is LeaseState.HELD


@pytest.mark.parametrize("ended", ["cancelled", "out of time"])
async def test_a_single_try_without_an_answer_leaves_no_silence_behind(
    make_session, transport, ended
) -> None:
    session = make_session(backoff=Backoff(initial=5, maximum=5, jitter=0), command_timeout=0.2)
    head, queued = waiting(session, ttl=1), waiting(session, ttl=1)
    refuse(await transport.asked("acquire"), remaining_ms=60_000)
    looking = trying(session)
    await transport.asked("acquire")
    if ended == "cancelled":
        await cancel(looking)
    else:
        assert isinstance(await failure(looking), BackendError)
    await transport.asked("release")  # its undo

    call = await transport.asked("acquire")  # after 5 s in which nobody asked
    await asyncio.sleep(0.01)
    refuse(call)

    assert not head.done()
    assert not queued.done()
    await cancel(queued)
    await cancel(head)


async def test_a_single_try_does_not_end_the_silence_that_a_waiter_meets(
    make_session, transport, clock
) -> None:
    task = waiting(make_session(), ttl=1)
    began = clock.now()
    cut(await transport.asked("acquire"))
    for _ in range(4):
        await asyncio.sleep(0.2)
        looking = trying(make_session())
        await turns()
        await cancel(looking)

    assert isinstance(await failure(task), BackendError)
    assert clock.now() - began == pytest.approx(1, abs=0.01)


async def test_whoever_is_queued_bears_no_longer_silence_than_its_own_ttl(offline, transport, clock) -> None:
    head = waiting(offline, ttl=30)
    await transport.asked("acquire")
    queued = waiting(offline, ttl=1)
    began = clock.now()

    error = await failure(queued)

    assert isinstance(error, BackendError)
    assert "did not answer for 1 s" in str(error)
    assert clock.now() - began == pytest.approx(1, abs=0.01)
    assert not head.done()
    await cancel(head)


async def test_whoever_is_queued_is_not_in_silence_while_the_head_is_refused(make_session, transport) -> None:
    session = make_session(backoff=SLOW)
    head, queued = waiting(session, ttl=30), waiting(session, ttl=1)
    refuse(await transport.asked("acquire"), remaining_ms=60_000)

    await asyncio.sleep(5)

    assert not queued.done()
    await cancel(queued)
    await cancel(head)


# -- leaving -------------------------------------------------------------------------------------------------


async def test_an_undo_frees_the_name_at_once_for_nothing_was_run(offline, transport) -> None:
    cancelled = asyncio.create_task(Lock(offline, "name", at_least=30).acquire())
    await transport.asked("acquire")
    cancelled.cancel()
    undo = await transport.asked("release")
    assert len(undo.args) == 3

    granted = asyncio.create_task(Lock(offline, "name", at_least=30).acquire())
    grant(await transport.asked("acquire"))
    granted.cancel()  # before the grant has been handed over
    undo = await transport.asked("release")
    assert len(undo.args) == 3
    await asyncio.wait([cancelled, granted])
    assert cancelled.cancelled()
    assert granted.cancelled()


async def test_cancelled_while_asking_it_is_undone_at_once_behind_its_request(offline, transport) -> None:
    task = waiting(offline)
    call = await transport.asked("acquire")

    await cancel(task)

    undo = await transport.asked("release")
    assert is_undo_of(undo, call)
    assert undo in transport.at_once
    assert transport.unasked == []


async def test_a_grant_behind_a_cancellation_is_nobodys(offline, transport) -> None:
    task = waiting(offline)
    call = await transport.asked("acquire")
    await cancel(task)

    grant(call)

    assert offline.statistics().leases_held == 0


async def test_an_answer_behind_a_cancellation_that_cannot_be_read_is_nobodys(offline, transport) -> None:
    task = waiting(offline)
    call = await transport.asked("acquire")
    await cancel(task)

    call.reply([])

    assert is_undo_of(await transport.asked("release"), call)


async def test_cancelled_before_its_request_was_written_nothing_is_sent(offline, transport) -> None:
    transport.connected = False
    task = waiting(offline)
    call = await transport.asked("acquire")

    await cancel(task)

    assert call.done
    assert transport.unasked == []


async def test_cancelled_asleep_behind_a_refusal_it_leaves_the_queue(make_session, transport) -> None:
    task = waiting(make_session(backoff=SLOW))
    refuse(await transport.asked("acquire"))
    await turns()

    await cancel(task)

    leaving = await transport.asked("release")
    assert leaving.keys[3:] == (transport.bell,)
    assert leaving in transport.at_once
    assert transport.unasked == []


async def test_cancelled_asleep_behind_a_broken_connection_it_is_undone(make_session, transport) -> None:
    task = waiting(make_session(backoff=SLOW))
    call = await transport.asked("acquire")
    cut(call)
    await turns()

    await cancel(task)

    assert is_undo_of(await transport.asked("release"), call)


async def test_cancelled_asleep_behind_an_error_reply_nothing_is_sent(make_session, transport) -> None:
    task = waiting(make_session(backoff=SLOW))
    demoted(await transport.asked("acquire"))
    await turns()

    await cancel(task)

    assert transport.unasked == []


async def test_an_error_reply_behind_a_broken_connection_leaves_the_doubt(make_session, transport) -> None:
    task = waiting(make_session(backoff=SLOW))
    call = await transport.asked("acquire")
    cut(call)
    demoted(await transport.asked("acquire"))
    await turns()

    await cancel(task)

    assert is_undo_of(await transport.asked("release"), call)


async def test_a_connection_that_never_came_about_leaves_no_doubt(make_session, transport) -> None:
    transport.connected = False
    task = waiting(make_session(backoff=SLOW))
    cut(await transport.asked("acquire"))
    await turns()

    await cancel(task)

    assert transport.unasked == []


async def test_a_refusal_clears_the_doubt_of_a_broken_connection(make_session, transport) -> None:
    task = waiting(make_session(backoff=SLOW))
    cut(await transport.asked("acquire"))
    refuse(await transport.asked("acquire"))
    await turns()

    await cancel(task)

    assert transport.unasked == ["release"]  # leaves the queue, and no more


async def test_cancelled_before_the_repetition_of_an_uncertain_request_was_written_it_is_undone(
    make_session, transport
) -> None:
    task = waiting(make_session(backoff=SLOW))
    call = await transport.asked("acquire")
    cut(call)
    transport.connected = False
    await transport.asked("acquire")

    await cancel(task)

    assert is_undo_of(await transport.asked("release"), call)


async def test_cancelled_between_the_grant_and_being_told_it_is_undone_and_passed_on(
    offline, transport
) -> None:
    first, second = waiting(offline), waiting(offline)
    call = await transport.asked("acquire")
    grant(call)

    await cancel(first)

    assert is_undo_of(await transport.asked("release"), call)
    grant(await transport.asked("acquire"))
    assert (await second).state is LeaseState.HELD


async def test_a_single_try_that_is_cancelled_is_undone(offline, transport) -> None:
    task = trying(offline)
    call = await transport.asked("acquire")

    await cancel(task)

    assert is_undo_of(await transport.asked("release"), call)


async def test_a_bell_that_a_refusal_has_put_back_is_listened_for_again(make_session, transport) -> None:
    transport.listening = True
    task = waiting(make_session(backoff=Backoff(initial=1, maximum=1, jitter=0)))
    refuse(await transport.asked("acquire"))
    listening = await transport.asked("listen")
    listening.reply([20_000])
    await transport.asked("listen")  # it does so at short intervals

    asked = await transport.asked("acquire")
    assert "q" in asked.args[4]  # it may have a bell
    asked.reply([0, 20_000, *listening.bells])

    assert (await transport.asked("listen")).bells == listening.bells
    await turns()
    assert transport.unasked == []  # it does not ask for that
    await cancel(task)


def strict(session: Session, **options: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(FairLock(session, "name", **options).acquire())


def seat(call: Request[Any]) -> Any:
    return token(call)[:16]


def bell_of(call: Request[Any]) -> Any:
    return call.keys[5]


def leaves_its_bell(release: Request[Any]) -> bool:
    return "l" in release.args[3]


async def asleep_in_a_strict_queue(session: Session, transport) -> tuple[asyncio.Task[Any], Request[Any]]:
    """A waiter that sleeps, and how it listens for its bell."""
    transport.hears = transport.listening = True
    task = strict(session)
    refuse(await transport.asked("permits_acquire"))
    listening = await transport.asked("listen")
    listening.reply([20_000])
    await turns()
    return task, listening


async def test_a_reconnect_gives_no_seat_to_a_head_that_asks(make_session, transport) -> None:
    session = make_session(backoff=SLOW)
    head, listening = await asleep_in_a_strict_queue(session, transport)
    behind = strict(session)
    refuse(await transport.asked("sit"))
    transport.on_rung("keyspace", listening.bells)
    asked = await transport.asked("permits_acquire")

    transport.on_rung("keyspace", None)

    of_behind = await transport.asked("sit")
    assert of_behind.lane != asked.lane
    grant(asked)
    await turns()
    assert head.done()
    assert transport.unasked == []  # nothing to clean up: no seat came after the grant
    await head
    await cancel(behind)


async def test_a_seat_that_was_taken_while_an_earlier_request_was_on_its_way_stays(
    make_session, transport
) -> None:
    """The grant of that request gives up its own seat alone: the session must go on to show that it waits."""
    session = make_session(backoff=SLOW)
    head, listening = await asleep_in_a_strict_queue(session, transport)
    transport.on_rung("tracking", listening.bells)
    asked = await transport.asked("permits_acquire")
    behind = strict(session)
    sitting = await transport.asked("sit")
    refuse(sitting)

    grant(asked)
    lease = await head

    (await transport.asked("permits_renew")).reply(1)  # so that the server tells of its loss
    heartbeat = await transport.asked("listen")
    assert seat(sitting) in heartbeat.args
    heartbeat.reply([20_000])
    await cancel(behind)
    await transport.asked("permits_release")  # its seat
    release = releasing(lease)
    let_go(await transport.asked("permits_release"))
    await release


async def test_who_asks_already_as_its_seat_is_the_first_is_the_next_head(make_session, transport) -> None:
    """Else the next one of the queue would ask beside it, before its turn."""
    session = make_session(backoff=SLOW)
    transport.hears = transport.listening = True
    head, second, third = strict(session), strict(session), strict(session)
    asked = await transport.asked("permits_acquire")
    sitting = await transport.asked("sit")
    refuse(sitting)
    refuse(await transport.asked("sit"))
    asked.reply([0, -2, [b"17", b"1"], bell_of(sitting) + seat(sitting).encode()])
    (await transport.asked("listen")).reply([20_000])
    of_second = await transport.asked("permits_acquire")
    assert token(of_second) == token(sitting)

    await cancel(head)
    await transport.asked("permits_release")  # its seat
    await turns()

    assert transport.unasked == []  # the third one waits for its turn
    grant(of_second)
    lease = await second
    await cancel(third)
    await transport.asked("permits_release")
    (await transport.asked("permits_renew")).reply(1)  # so that the server tells of its loss
    release = releasing(lease)
    let_go(await transport.asked("permits_release"))
    await release


async def test_a_bell_that_is_rung_while_another_task_here_has_it_hangs_again(
    make_session, transport
) -> None:
    """Else it would be gone after a while, and the waiters of other processes would go ahead of this one."""
    session = make_session(backoff=SLOW)
    transport.hears = transport.listening = True
    head, behind = strict(session), strict(session)
    asked = await transport.asked("permits_acquire")
    sitting = await transport.asked("sit")
    refuse(sitting)
    bell = bell_of(sitting)
    asked.reply([0, -2, [b"17", b"1"], bell + seat(sitting).encode()])  # the one behind came first
    (await transport.asked("listen")).reply([20_000])
    grant(await transport.asked("permits_acquire"))
    lease = await behind

    transport.on_rung("tracking", [bell])

    again = await transport.asked("permits_acquire")
    assert again.lane == asked.lane
    assert not head.done()
    refuse(again)
    await transport.asked("listen")
    await turns()
    assert transport.unasked == []  # nobody else here may ask before it is let go of
    await cancel(head)
    await transport.asked("permits_release")  # its seat
    release = releasing(lease)
    let_go(await transport.asked("permits_release"))
    await release


async def turn_comes_while_it_sits_down(
    session: Session, transport
) -> tuple[asyncio.Task[Any], Request[Any], Request[Any]]:
    """A waiter, its request for a seat, and the one right behind that, both without an answer."""
    transport.hears = transport.listening = True
    holder = strict(session)
    grant(await transport.asked("permits_acquire"))
    lease = await holder
    waiter = strict(session)
    sitting = await transport.asked("sit")
    release = releasing(lease)
    let_go(await transport.asked("permits_release"))
    await release
    return waiter, sitting, await transport.asked("permits_acquire")


async def test_one_whose_turn_comes_while_it_sits_down_asks_right_behind_that(
    make_session, transport
) -> None:
    first, sitting, asked = await turn_comes_while_it_sits_down(make_session(backoff=SLOW), transport)

    assert asked.lane == sitting.lane
    assert not sitting.done  # it goes first, also where it was not written yet: else later waiters would
    refuse(sitting)
    await turns()
    assert not first.done()
    grant(asked)
    release = releasing(await first)
    let_go(await transport.asked("permits_release"))
    await release
    assert transport.unasked == []


async def test_one_whose_turn_comes_while_it_sits_down_and_leaves_sends_neither_request_again(
    make_session, transport
) -> None:
    first, sitting, asked = await turn_comes_while_it_sits_down(make_session(backoff=SLOW), transport)

    await cancel(first)

    assert sitting.done
    assert asked.done
    assert is_undo_of(await transport.asked("permits_release"), asked)


@pytest.mark.parametrize("was_rung", [False, True])
async def test_a_seat_that_is_taken_after_its_waiter_has_left_is_given_up(
    make_session, transport, was_rung
) -> None:
    """Its request hung up the bell again, which may have been rung: then the head asks."""
    session = make_session(backoff=SLOW)
    head, _ = await asleep_in_a_strict_queue(session, transport)
    behind = strict(session)
    sitting = await transport.asked("sit")

    await cancel(behind)

    undo = await transport.asked("permits_release")
    assert is_undo_of(undo, sitting)
    assert not leaves_its_bell(undo)
    sitting.reply([0, -2, [b"17", b"1"], *([bell_of(sitting)] if was_rung else [])])
    if was_rung:
        refuse(await transport.asked("permits_acquire"))
        await transport.asked("listen")
    await turns()
    assert transport.unasked == []
    await cancel(head)


async def test_a_seat_that_hangs_up_a_bell_that_was_rung_makes_the_head_ask(make_session, transport) -> None:
    session = make_session(backoff=SLOW)
    head, _ = await asleep_in_a_strict_queue(session, transport)
    behind = strict(session)
    sitting = await transport.asked("sit")

    sitting.reply([0, -2, [b"17", b"1"], bell_of(sitting)])

    asked = await transport.asked("permits_acquire")
    assert asked.lane != sitting.lane
    grant(asked)
    await head
    await cancel(behind)


async def test_the_last_one_that_sits_down_and_leaves_takes_the_bell_along(make_session, transport) -> None:
    session = make_session(backoff=SLOW)
    transport.hears = transport.listening = True
    holder = strict(session)
    grant(await transport.asked("permits_acquire"))
    lease = await holder
    behind = strict(session)
    sitting = await transport.asked("sit")
    await cancel(behind)

    undo = await transport.asked("permits_release")

    assert is_undo_of(undo, sitting)
    assert leaves_its_bell(undo)
    release = releasing(lease)
    let_go(await transport.asked("permits_release"))
    await release


async def test_a_seat_that_a_server_in_trouble_refuses_is_asked_for_again(make_session, transport) -> None:
    """After a while: its session may have many waiters."""
    session = make_session(backoff=SLOW)
    head, _ = await asleep_in_a_strict_queue(session, transport)
    behind = strict(session)
    demoted(await transport.asked("sit"))
    failed = asyncio.get_running_loop().time()

    while transport.unasked[:1] != ["sit"]:
        for asked in transport.unasked[:1]:
            (await transport.asked(asked)).reply([20_000] if asked == "listen" else [0, 20_000])
        await asyncio.sleep(0.1)

    assert asyncio.get_running_loop().time() - failed == pytest.approx(10, abs=0.2)
    refuse(await transport.asked("sit"))
    await cancel(behind)
    await cancel(head)


async def test_one_that_leaves_does_not_prolong_the_silence_that_another_meets(
    make_session, transport, clock
) -> None:
    session = make_session(backoff=SLOW)
    transport.hears = transport.listening = True
    holder = strict(session, ttl=60)
    grant(await transport.asked("permits_acquire"))
    lease = await holder
    first, second = strict(session), strict(session, ttl=2)
    began = clock.now()
    for _ in range(2):
        await transport.asked("sit")
    await asyncio.sleep(1)
    await cancel(first)

    error = await failure(second)

    assert isinstance(error, BackendError)
    assert clock.now() - began == pytest.approx(2, abs=0.1)
    for asked in transport.unasked:  # undone requests, renewals
        await transport.asked(asked)
    release = releasing(lease)
    let_go(await transport.asked("permits_release"))
    await release


async def test_a_cancelled_head_passes_on(make_session, transport) -> None:
    session = make_session(backoff=SLOW)
    first, second, third = waiting(session), waiting(session), waiting(session)
    call = await transport.asked("acquire")
    await cancel(first)
    await transport.asked("release")

    next_call = await transport.asked("acquire")

    assert token(next_call) != token(call)
    grant(next_call)
    assert (await second).state is LeaseState.HELD
    await cancel(third)


async def test_whoever_is_queued_leaves_without_a_word(make_session, transport) -> None:
    session = make_session(backoff=SLOW)
    head, queued = waiting(session), waiting(session)
    await transport.asked("acquire")

    await cancel(queued)

    assert transport.unasked == []
    await cancel(head)


async def test_closing_the_session_ends_every_wait_and_undoes_what_is_under_way(
    make_session, transport
) -> None:
    session = make_session(backoff=SLOW)
    asking, queued = waiting(session), waiting(session)
    call = await transport.asked("acquire")

    await session.aclose()

    assert isinstance(await failure(asking), SessionClosedError)
    assert isinstance(await failure(queued), SessionClosedError)
    assert is_undo_of(await transport.asked("release"), call)


# -- woken from here -----------------------------------------------------------------------------------------


async def test_the_next_request_follows_a_local_release_in_the_same_turn(offline, transport) -> None:
    lease = await hold(offline, transport)
    task = waiting(offline)
    await turns()

    release = asyncio.create_task(lease.release())
    await turns(1)

    assert transport.unasked == ["release", "acquire"]
    (await transport.asked("release")).reply([1])
    grant(await transport.asked("acquire"))
    await asyncio.gather(release, task)


async def test_the_last_waiter_that_leaves_before_its_try_is_written_wakes_others(offline, transport) -> None:
    """The release has woken nobody elsewhere, for this try was to go right behind it."""
    lease = await hold(offline, transport)
    task = waiting(offline)
    await turns()
    transport.connected = False
    release = asyncio.create_task(lease.release())
    await turns(1)
    assert transport.unasked == ["release", "acquire"]
    quiet, _ = await transport.asked("release"), await transport.asked("acquire")

    await cancel(task)

    telling = await transport.asked("release")
    assert token(telling) != token(quiet)
    quiet.reply([1])
    await release


async def test_the_last_waiter_gives_up_the_place_though_it_has_never_asked(offline, transport) -> None:
    """It came behind the head, and then a task of its session had the lock."""
    head = waiting(offline)
    refuse(await transport.asked("acquire"))
    last = waiting(offline, blocking_timeout=1)
    once = trying(offline)
    grant(await transport.asked("acquire"))
    lease = await once
    await cancel(head)
    assert transport.unasked == [], "the other one waits in its place"

    with pytest.raises(LockTimeoutError):
        await last

    place = await transport.asked("release")
    assert token(place) != lease.token
    place.reply([0])
    release = asyncio.create_task(lease.release())
    let_go(await transport.asked("release"))
    await release


async def test_a_sleeping_head_is_woken_by_a_local_release(make_session, transport, clock) -> None:
    session = make_session(backoff=SLOW)
    head = waiting(session)
    refuse(await transport.asked("acquire"), remaining_ms=60_000)
    once = trying(session)
    grant(await transport.asked("acquire"))
    began = clock.now()

    release = asyncio.create_task((await once).release())
    (await transport.asked("release")).reply([1])
    grant(await transport.asked("acquire"))

    await asyncio.gather(release, head)
    assert clock.now() == began


async def test_a_refusal_that_a_local_release_overtook_is_asked_again_without_sleeping(
    make_session, transport, clock
) -> None:
    session = make_session(backoff=SLOW)
    head = waiting(session)
    refused = await transport.asked("acquire")
    once = trying(session)
    grant(await transport.asked("acquire"))
    release = asyncio.create_task((await once).release())
    (await transport.asked("release")).reply([1])
    await release
    began = clock.now()

    refuse(refused)
    grant(await transport.asked("acquire"))

    await head
    assert clock.now() == began


async def test_a_bell_that_came_with_a_refusal_is_taken_along(make_session, transport) -> None:
    """A strict queue gives it before the place is taken: also whoever asks again at once has it."""
    semaphore = Semaphore(make_session(backoff=SLOW), "name", 1, fair=True)
    first = asyncio.create_task(semaphore.try_acquire())
    grant(await transport.asked("permits_acquire"))
    head = asyncio.create_task(semaphore.acquire())
    refused = await transport.asked("permits_acquire")
    release = asyncio.create_task((await first).release())  # wakes the head while it asks
    (await transport.asked("permits_release")).reply([1])
    await release
    refuse(refused)

    again = await transport.asked("permits_acquire")

    assert set("ql") <= set(again.args[7])
    grant(again)
    await head


async def test_a_wait_ends_in_time_that_was_refused_beside_another_at_its_end(
    make_session, transport
) -> None:
    """The timer of its deadline has run out while the question was under way."""
    session = make_session(backoff=SLOW)
    transport.lateness = 1.0  # the refusal comes first
    semaphore = Semaphore(session, "name", 3)
    first = asyncio.create_task(semaphore.acquire())
    await turns()
    head = asyncio.create_task(semaphore.acquire())
    beside = asyncio.create_task(semaphore.acquire(blocking_timeout=1))
    await turns()
    (await transport.asked("permits_acquire")).reply([1, b"17", 0, 2])
    await transport.asked("permits_acquire")
    asked_beside = await transport.asked("permits_acquire")
    await asyncio.sleep(1.1)

    refuse(asked_beside)
    await turns()

    assert isinstance(beside.exception(), LockTimeoutError)
    await cancel(head)
    await first


async def test_a_waiter_that_leaves_is_taken_back_for_as_long_as_its_marks_last(
    make_session, transport
) -> None:
    """However short its ttl is: while the server does not answer, others wait for the marks."""
    session = make_session(backoff=Backoff(initial=5, maximum=5, jitter=0))
    task = asyncio.create_task(RWLock(session, "name", ttl=1).reader.acquire())
    refuse(await transport.asked("spans_acquire"))
    again = await transport.asked("spans_acquire")
    await turns()
    refuse(again)
    await turns()

    await cancel(task)

    undo = await transport.asked("spans_release")
    assert undo.until - asyncio.get_running_loop().time() == pytest.approx(4 * 5)


# -- what is told --------------------------------------------------------------------------------------------


async def test_counts_waiters_and_what_woke_them(make_session, transport) -> None:
    session = make_session(backoff=SLOW)
    head, queued = waiting(session), waiting(session)
    refuse(await transport.asked("acquire"))
    assert session.statistics().waiters == 2

    grant(await transport.asked("acquire"))
    lease = await head
    assert session.statistics().waiters == 1
    assert session.statistics().wakeups == {**NO_WAKEUPS, "poll": 1}

    release = asyncio.create_task(lease.release())
    (await transport.asked("release")).reply([1])
    grant(await transport.asked("acquire"))
    await asyncio.gather(release, queued)
    assert session.statistics().waiters == 0
    assert session.statistics().wakeups == {**NO_WAKEUPS, "poll": 1, "local": 1}


async def test_leaves_no_timer_behind(offline, transport) -> None:
    loop: Any = asyncio.get_running_loop()
    await hold(offline, transport, blocking_timeout=3600)

    timers = [timer for timer in loop._scheduled if not timer.cancelled()]

    assert not [timer for timer in timers if "Waiter" in repr(timer)]


async def test_the_time_of_the_wait_is_counted(offline, transport) -> None:
    task = waiting(offline)
    call = await transport.asked("acquire")
    await asyncio.sleep(3)
    grant(call)
    await task

    assert offline.statistics().wait_seconds.total == pytest.approx(3)


async def test_repr_tells_where_it_stands(make_session, transport) -> None:
    session = make_session(backoff=SLOW)
    task = waiting(session)
    call = await transport.asked("acquire")
    (first,) = session._engine.waiting
    assert repr(first) == "<Possession of Lock 'name' ASKING>"

    refuse(call)
    await turns()
    (acquisition,) = session._engine.waiting
    assert repr(acquisition) == "<Waiter for Lock 'name' SLEEPING naps=1>"

    await cancel(task)
    assert repr(acquisition) == "<Waiter for Lock 'name' ENDED naps=1>"
    assert token(call) not in repr(acquisition) + repr(call)


async def test_queued_behind_a_head_that_sleeps_it_is_refused_and_not_unanswered(
    make_session, transport
) -> None:
    """Nobody has asked since it came, for nobody had to: what the server said before still stands."""
    session = make_session(backoff=Backoff(initial=1, maximum=1, jitter=0))
    first = asyncio.create_task(Lock(session, "name").acquire())
    refuse(await transport.asked("acquire"))
    await asyncio.sleep(0.1)

    with pytest.raises(LockTimeoutError):
        await Lock(session, "name").acquire(blocking_timeout=0.1)

    first.cancel()


async def test_refused_for_the_sake_of_others_it_asks_again_when_they_have_had_their_chance(
    make_session, transport, clock
) -> None:
    session = make_session(backoff=Backoff(initial=5, maximum=5, jitter=0))
    lease = await hold(session, transport)
    release = releasing(lease)
    transport.hears = True
    let_go(await transport.asked("release"), rung=b"bell of another")
    await release

    waiting = asyncio.create_task(Lock(session, "name").acquire())
    refuse(await transport.asked("acquire"), remaining_ms=-2)
    since = clock.now()
    await transport.asked("acquire")

    assert clock.now() - since < 0.01
    waiting.cancel()


# -- an acquire that nobody disturbs, and what comes between after all


async def test_a_silence_that_has_ended_does_not_begin_again_with_a_first_request(
    make_session, transport
) -> None:
    """A single try beside it was answered, so the server is not silent: it waits on."""
    session = make_session(backoff=SLOW)
    task = waiting(session, ttl=10)
    first = await transport.asked("acquire")
    await asyncio.sleep(5)
    beside = trying(session)
    refuse(await transport.asked("acquire"))
    assert await beside is None

    await asyncio.sleep(5)
    cut(first)
    await turns()

    assert not task.done()
    await cancel(task)


async def test_what_a_single_try_is_told_is_known_to_a_first_request(make_session, transport) -> None:
    session = make_session()
    task = asyncio.create_task(Lock(session, "name").acquire(blocking_timeout=1))
    await transport.asked("acquire")
    beside = asyncio.create_task(Lock(session, "name").acquire(blocking_timeout=0))
    lease = b"a" * 32 + b':1699999999000000:{"host":"db7","pid":42,"task":"nightly"}'
    (await transport.asked("acquire")).reply([0, 20_000, [b"1700000000000000", b"", b"", 20_000, lease]])
    assert isinstance(await failure(beside), LockTimeoutError)

    error = await failure(task)

    assert isinstance(error, LockTimeoutError)
    assert [holder.task for holder in error.holders] == ["nightly"]


@pytest.mark.parametrize("how", ["a single try gets in", "another waits"])
async def test_who_asks_without_a_waiter_becomes_the_head(make_session, transport, how) -> None:
    """Else two of one session would ask at once, or one would be forgotten."""
    session = make_session(backoff=SLOW)
    first = waiting(session)
    asked = await transport.asked("acquire")
    other = trying(session) if how == "a single try gets in" else waiting(session)
    if how == "a single try gets in":
        grant(await transport.asked("acquire"))
        lease = await other
        refuse(asked)
        await turns()
        release = releasing(lease)
        let_go(await transport.asked("release"))
        await release
        grant(await transport.asked("acquire"))
        assert (await first).state is LeaseState.HELD
    else:
        await turns()
        assert len(transport.sent) == 1, "the second is queued"
        grant(asked)
        release = releasing(await first)
        let_go(await transport.asked("release"))
        await release
        grant(await transport.asked("acquire"))
        assert (await other).state is LeaseState.HELD
