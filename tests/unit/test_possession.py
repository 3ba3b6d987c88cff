"""The life of a grant: renewed, doubted, lost; the test is server and clock."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from typing import Any, get_args

import pytest
from redis.exceptions import ResponseError

from aiolocks import (
    LeaseState,
    Lock,
    LockLostError,
    LockNotOwnedError,
)
from aiolocks.lock import process
from aiolocks.lock.lease import End, Ended, Phase, Possession
from aiolocks.transport import Granted, Released, clocks, faults
from tests.unit.fakes import (
    cut,
    demoted,
    deny,
    dependable,
    generous,
    grant,
    hold,
    let_go,
    lose,
    releasing,
    turns,
)

HELD, UNKNOWN, LOST = LeaseState.HELD, LeaseState.UNKNOWN, LeaseState.LOST
RELEASED, DETACHED = LeaseState.RELEASED, LeaseState.DETACHED
GRID = 30 / 32  # of a ttl of 30


# -- renewing ----------------------------------------------------------------------------------------------


async def test_is_renewed_each_third_of_its_ttl(offline, transport, clock) -> None:
    await hold(offline, transport, ttl=30)
    for _ in range(5):
        held_since = clock.now()
        renewal = await transport.asked("renew")
        assert 10 - GRID <= clock.now() - held_since <= 10
        assert renewal.args[1] == 30_000
        renewal.reply(1)


async def test_a_renewal_counts_from_before_it_was_sent(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=30)
    renewal = await transport.asked("renew")
    await asyncio.sleep(0.5)
    renewal.reply(1)

    assert lease.remaining() + 0.5 == dependable(30)


async def test_no_second_renewal_is_sent_while_one_is_under_way(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=30)
    await transport.asked("renew")
    await asyncio.sleep(15)

    assert lease.state is UNKNOWN
    assert transport.unasked == []


async def test_unknown_is_not_lost(offline, transport, clock) -> None:
    lease = await hold(offline, transport, ttl=30)
    renewal = await transport.asked("renew")
    await asyncio.sleep(0.999)
    assert lease.state is HELD
    await asyncio.sleep(0.001)
    assert lease.state is UNKNOWN
    lease.ensure_held()

    renewal.reply(1)

    assert lease.state is HELD
    assert lease.remaining() + 1 == dependable(30)


@pytest.mark.parametrize("fail", [cut, demoted, deny])
async def test_an_error_in_renewing_is_not_a_loss(offline, transport, fail) -> None:
    lease = await hold(offline, transport, ttl=30)
    for _ in range(10):
        fail(await transport.asked("renew"))
        assert lease.state is UNKNOWN

    (await transport.asked("renew")).reply(1)

    assert lease.state is HELD


async def test_after_an_error_it_tries_again_soon_and_then_less_often(offline, transport, clock) -> None:
    lease = await hold(offline, transport, ttl=30)
    pauses = []
    cut(await transport.asked("renew"))
    for _ in range(12):
        failed_at = clock.now()
        cut(await transport.asked("renew"))
        pauses.append(clock.now() - failed_at)

    assert pauses == pytest.approx([min(0.02 * 2**attempt, 30 / 12) for attempt in range(12)])
    assert lease.state is UNKNOWN


async def test_after_a_renewal_that_succeeded_it_tries_again_soon_once_more(
    offline, transport, clock
) -> None:
    await hold(offline, transport, ttl=30)
    for _ in range(2):
        for _ in range(5):
            cut(await transport.asked("renew"))
        failed_at = clock.now()
        (await transport.asked("renew")).reply(1)

        assert clock.now() - failed_at == pytest.approx(0.02 * 2**4)


async def test_a_key_that_others_have_overwritten_is_a_loss_at_once(offline, transport) -> None:
    lease = await hold(offline, transport)

    (await transport.asked("renew")).fault(
        faults.refused(ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"))
    )

    assert lease.state is LOST


async def test_is_lost_when_the_server_says_so(offline, transport) -> None:
    lease = await hold(offline, transport)

    await lose(lease, transport)

    assert lease.remaining() == 0
    with pytest.raises(LockLostError, match="the server no longer has it as the holder"):
        lease.ensure_held()


@pytest.mark.parametrize("fail", [cut, lambda renewal: None], ids=["errors", "silence"])
async def test_is_lost_at_the_deadline_even_if_nobody_answers(offline, transport, clock, fail) -> None:
    lease = await hold(offline, transport, ttl=30)
    granted_at = clock.now()

    async def keep_failing() -> None:
        while True:
            fail(await transport.asked("renew"))

    failing = asyncio.create_task(keep_failing())
    await lease.wait_lost()

    assert clock.now() - granted_at == dependable(30)
    with pytest.raises(LockLostError, match="its ttl passed without a confirmed renewal"):
        lease.ensure_held()
    failing.cancel()


async def test_is_lost_as_soon_as_the_deadline_has_passed_before_anybody_could_say_so(
    offline, transport, clock
) -> None:
    lease = await hold(offline, transport, ttl=1)

    clock.jump(1)

    assert lease.state is LOST
    assert lease.remaining() == 0
    with pytest.raises(LockLostError):
        lease.ensure_held()


async def test_a_renewal_that_answers_behind_the_deadline_is_no_resurrection(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=1)
    renewal = await transport.asked("renew")
    await lease.wait_lost()

    renewal.reply(1)
    await asyncio.sleep(60)

    assert lease.state is LOST
    assert transport.unasked == []


async def test_a_loss_is_told_once(make_session, transport, caplog) -> None:
    told: list[Any] = []
    listener = type("Listener", (), {"on_lost": lambda self, event: told.append(event)})()
    session = make_session(listeners=[listener])
    lease = await hold(session, transport)
    with caplog.at_level(logging.WARNING, "aiolocks"):
        await lose(lease, transport)
        await asyncio.sleep(60)

    assert [event.fencing_token for event in told] == [17]
    assert len(caplog.records) == 1
    assert session.statistics().losses == 1
    assert session.statistics().leases_held == 0


async def test_whoever_waits_for_the_loss_is_told(offline, transport) -> None:
    lease = await hold(offline, transport)
    waiters = [asyncio.create_task(lease.wait_lost()) for _ in range(3)]
    await turns()

    await lose(lease, transport)

    await asyncio.gather(*waiters, lease.wait_lost())


async def test_a_lost_lease_lets_the_next_one_here_try(offline, transport) -> None:
    lease = await hold(offline, transport)
    behind = asyncio.create_task(Lock(offline, "name").acquire())
    await lose(lease, transport)

    grant(await transport.asked("acquire"))

    assert (await behind).state is HELD


async def test_without_auto_renew_nothing_is_sent_until_it_is_lost(offline, transport, clock) -> None:
    lease = await hold(offline, transport, ttl=30, auto_renew=False)
    granted_at = clock.now()

    await lease.wait_lost()

    assert clock.now() - granted_at == dependable(30)
    assert transport.unasked == []
    with pytest.raises(LockLostError, match="auto_renew is off"):
        lease.ensure_held()


async def test_is_lost_after_max_hold_whatever_renewals_could_do(offline, transport, clock) -> None:
    lease = await hold(offline, transport, ttl=30, max_hold=45)
    granted_at = clock.now()
    ends = []

    async def renew() -> None:
        while True:
            renewal = await transport.asked("renew")
            ends.append(clock.now() - granted_at + renewal.args[1] / 1000)
            renewal.reply(1)

    renewing = asyncio.create_task(renew())
    await lease.wait_lost()

    assert 45 * 0.98 < clock.now() - granted_at < 45
    assert max(ends) <= 45.001, "the server's ttl never reaches past it"
    assert len(ends) == 2
    with pytest.raises(LockLostError, match="max_hold has passed"):
        lease.ensure_held()
    renewing.cancel()


async def test_a_renewal_that_waited_for_a_connection_reaches_no_further_than_max_hold(
    offline, transport, clock
) -> None:
    lease = await hold(offline, transport, ttl=30, max_hold=32)
    granted_at = clock.now()
    transport.connected = False
    renewal = await transport.asked("renew")  # made for 22 s or so
    await asyncio.sleep(granted_at + 25 - clock.now())

    transport.write(renewal)
    renewal.reply(1)

    assert renewal.args[1] == pytest.approx(7000, abs=1)
    assert lease.remaining() == dependable(7)
    await lease.wait_lost()
    assert clock.now() - granted_at <= 32


# -- the rules ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [RELEASED, LOST, DETACHED])
async def test_an_end_is_final(offline, transport, end) -> None:
    lease = await hold(offline, transport)
    possession = lease._possession
    possession._end(End(end, "the first end"))

    for other in (RELEASED, LOST, DETACHED):
        with pytest.raises(RuntimeError, match=f"is {end.name} cannot become {other.name}"):
            possession._end(End(other, "another"))
    possession.lose("another")

    assert lease.state is end
    assert possession.end.reason == "the first end"


# -- its phases: each row of the table, and nothing else


async def kept(session, transport) -> Possession:
    """A possession of a lock that its session keeps between uses."""
    transport.hears, transport.way = True, "tracking"
    lock = Lock(session, "name", cache=5)
    acquiring = asyncio.create_task(lock.acquire())
    grant(await transport.asked("acquire"))
    letting_go = releasing(await acquiring)
    let_go(await transport.asked("release"))
    await letting_go
    acquiring = asyncio.create_task(lock.acquire())  # used again within `cache` seconds
    (await transport.asked("acquire")).reply([1, b"27", 0, 1])
    return (await acquiring)._possession


async def in_phase(phase: Phase, possession: Possession) -> Possession:
    """Brings one that is held there; of `ASKING`, another one of the same lock."""
    if phase is Phase.ASKING:
        return type(possession)(possession.target)
    if phase is not Phase.HELD:
        possession.send_release()
    if phase is Phase.ENDED:
        possession._replied(Released(freed=True, rung=()))
    return possession


STEPS = {
    "hold": lambda possession: possession.hold(granted()),
    "send_release": lambda possession: possession.send_release(),
    "_finish": lambda possession: possession._replied(Released(freed=True, rung=())),
    "detach": lambda possession: possession.detach(),
    "lose": lambda possession: possession.lose("for the test"),
    "Tenure.keep": lambda possession: possession.begin_release(),
}
REFUSALS = (AssertionError, RuntimeError, LockLostError)
TABLE = {
    (Phase[start], function): Phase[end]
    for start, end, function in re.findall(
        r"\| `([A-Z]+)`[^|]*\| `([A-Z]+)` \|[^|]*\| `([\w.]+)` \|", Possession.__doc__ or ""
    )
}
ENDS = {
    function.removeprefix("Possession."): LeaseState[state]
    for state, function in re.findall(r"\| `([A-Z]+)` \|[^|]*\| `([\w.]+)` \|", End.__doc__ or "")
}


def granted() -> Granted:
    grant = Granted(17, 0)
    grant.sent = now = asyncio.get_running_loop().time()
    grant.ahead = clocks.steady() - now
    return grant


def test_the_table_of_phases_was_read() -> None:
    assert len(TABLE) == 7
    assert {function for _, function in TABLE} == set(STEPS)
    assert set(ENDS) == {function for (_, function), phase in TABLE.items() if phase is Phase.ENDED}
    assert set(ENDS.values()) == set(get_args(Ended))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("phase", Phase)
async def test_each_step_is_in_the_table_or_refused(offline, transport, phase, step) -> None:
    """Refused: an error, or nothing changes."""
    if step == "Tenure.keep":
        possession = await in_phase(phase, await kept(offline, transport))
    else:
        possession = await in_phase(phase, (await hold(offline, transport))._possession)
    assert possession.phase is phase
    before = possession.end
    watched = list(offline._engine.watchdog.possessions())

    try:
        STEPS[step](possession)
    except REFUSALS:
        assert (phase, step) not in TABLE
    assert possession.phase is TABLE.get((phase, step), phase)
    if (phase, step) in TABLE:
        assert possession.phase is not Phase.ENDED or possession.end.state is ENDS[step]
    else:
        assert possession.end is before
        assert list(offline._engine.watchdog.possessions()) == watched


async def test_a_forked_child_does_not_own_and_sends_nothing(offline, transport, monkeypatch) -> None:
    lease = await hold(offline, transport)
    with monkeypatch.context() as patched:
        patched.setattr(process, "pid", os.getpid() + 1)

        assert lease.remaining() == 0
        with pytest.raises(LockLostError, match="the process that forked this one"):
            lease.ensure_held()
        for act in (lease.release, lease.extend, lease.owned):
            with pytest.raises(LockNotOwnedError, match="the process that forked this one"):
                await act()
        with pytest.raises(RuntimeError, match="the process that forked this one"):
            await Lock(offline, "other").acquire()
        await asyncio.sleep(15)  # a renewal would be due

    assert transport.unasked == []


async def test_repr_tells_the_state_and_no_token(offline, transport) -> None:
    lease = await hold(offline, transport, ttl=10)
    assert repr(lease) == "<Lease lock 'name' HELD fencing_token=17 remaining=9.898>"

    await lose(lease, transport)
    assert repr(lease) == "<Lease lock 'name' LOST fencing_token=17>"


async def test_every_acquisition_has_128_random_bits_of_its_own(offline, transport) -> None:
    transport.answer = generous
    tokens = set()
    for number in range(50):
        async with Lock(offline, f"{number}") as lease:
            tokens.add(lease.token)

    assert len(tokens) == 50
    assert all(len(bytes.fromhex(token)) == 16 for token in tokens)


async def test_metadata_is_the_sessions_and_the_locks_and_read_only(make_session, transport) -> None:
    session = make_session(metadata={"app": "a", "shard": 1})
    lease = await hold(session, transport, metadata={"shard": 2})

    assert lease.metadata == {"app": "a", "shard": 2}
    with pytest.raises(TypeError):
        lease.metadata["app"] = "b"  # type: ignore[index]


async def test_metadata_is_copied(make_session, transport) -> None:
    of_session, of_lock = {"list": [1]}, {"dict": {"a": 1}}
    session = make_session(metadata=of_session)
    lock = Lock(session, "name", metadata=of_lock)
    of_session["list"].append(2)
    of_lock["dict"]["b"] = 2

    acquiring = asyncio.create_task(lock.acquire())
    grant(await transport.asked("acquire"))

    assert (await acquiring).metadata == {"list": [1], "dict": {"a": 1}}


# -- what may not be kept between two uses


async def _renewing(possession: Possession, transport: Any) -> None:
    await transport.asked("renew_kept")


async def _in_doubt(possession: Possession, transport: Any) -> None:
    cut(await transport.asked("renew_kept"))
    assert possession.state is LeaseState.UNKNOWN


async def _told_to_stop(possession: Possession, transport: Any) -> None:
    possession.stop("for the test")


async def _of_another_ttl(possession: Possession, transport: Any) -> None:
    extending = asyncio.create_task(possession.extend(60))
    (await transport.asked("renew_kept")).reply(1)
    await extending


async def _of_a_session_that_closes(possession: Possession, transport: Any) -> None:
    possession.engine.closing = True


async def _as_ever(possession: Possession, transport: Any) -> None:
    pass


@pytest.mark.parametrize(
    "become", [_renewing, _in_doubt, _told_to_stop, _of_another_ttl, _of_a_session_that_closes, _as_ever]
)
async def test_it_is_released_where_it_may_not_be_kept(offline, transport, become) -> None:
    possession = await kept(offline, transport)
    await become(possession, transport)

    ended = possession.begin_release()

    assert (ended is None) is (become is _as_ever)
    if ended is not None:
        assert transport.verbs[-1] == "release"
        possession._replied(Released(freed=True, rung=()))
    possession.engine.closing = False


@pytest.mark.parametrize("by_steady", [False, True])
async def test_past_its_end_by_either_clock_it_is_lost_and_not_kept(
    offline, transport, clock, monkeypatch, by_steady
) -> None:
    possession = await kept(offline, transport)
    began = clock.now()
    monkeypatch.setattr(clocks, "steady", lambda: began + 30 * by_steady)
    clock.jump(0 if by_steady else 30)

    assert possession.begin_release() is None
    assert possession.lost


async def test_after_a_suspension_of_which_no_timer_knows_there_is_no_hit(
    offline, transport, clock, monkeypatch
) -> None:
    possession = await kept(offline, transport)
    assert possession.begin_release() is None
    assert offline.statistics().cached == 1
    monkeypatch.setattr(clocks, "steady", lambda: clock.now() + 30)

    acquiring = asyncio.create_task(possession.target.acquire(None))

    let_go(await transport.asked("release"))
    grant(await transport.asked("acquire"))
    assert not (await acquiring)._possession.cached
