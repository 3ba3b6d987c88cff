"""Those who wait: a free lock is never idle while one of them sleeps, however many there are, whoever dies.

T-C-14, T-N-8, T-P-1 and T-W-7 of `tests/FAULTS.md`, as far as they are about the queue between processes, and
the invariant I4. Most waiters here are patient: they would sleep for seconds, were it not for their bells.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    Backoff,
    Lease,
    LeaseState,
    Lock,
    LockError,
    LockLostError,
    LockNotOwnedError,
    Session,
    SessionClosedError,
)
from tests.adversity.tools import (
    AT_ONCE,
    LETTING_GO,
    PATIENT,
    SLACK,
    UNTOLD,
    ByHand,
    Start,
    asleep,
    elapsed,
    in_within,
    turns_of_the_loop,
    wakeup,
)
from tests.conftest import Connect
from tests.support.cancel import MODES, CancelAt, Mode
from tests.support.history import Hold, Wait, exclusion, fencing, handover
from tests.support.processes import Worker, Workers, tell
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.thinning import only
from tests.support.waiting import eventually

OpenProxy = Callable[[Server], Awaitable[Proxy]]


async def wait_asleep(session: Session, name: str = "a") -> asyncio.Task[Lease]:
    """A task that waits for the lock; somebody of its session sleeps."""
    waiting = asyncio.create_task(Lock(session, name).acquire())  # type: ignore[arg-type]
    await eventually(lambda: waiting.done() or asleep(session), within=5)
    return waiting


def when_rung(session: Session, act: Callable[[], object], *, before: bool = False) -> None:
    """Act once, in the turn of the loop in which the session hears its bell: before it knows, or after."""
    wakeups = session._engine._transport._wakeups
    tell = wakeups._on_rung

    def on_rung(way: str, bells: Any) -> None:
        wakeups._on_rung = tell
        if before:
            act()
        tell(way, bells)
        if not before:
            act()

    wakeups._on_rung = on_rung


async def and_then(turns: int, act: Callable[[], object]) -> None:
    await turns_of_the_loop(turns)
    act()


# -- a free lock is never idle -------------------------------------------------------------------------------


async def test_i4_own_bell_rung_by_somebody_of_the_same_session(start: Start) -> None:
    """B waits, its bell hung up; C of the same session is quicker, by a try. The lock that C lets go of is
    B's."""
    elsewhere, here = start(), start()
    for _ in range(20):
        holder = await Lock(elsewhere, "a").acquire()
        b = await wait_asleep(here)
        trying = asyncio.create_task(until_had(here))
        await asyncio.sleep(0.002)
        await holder.release()
        first, _ = await asyncio.wait({b, trying}, timeout=AT_ONCE, return_when=asyncio.FIRST_COMPLETED)
        assert first
        for task in (b, trying) if b in first else (trying, b):
            await (await in_within(AT_ONCE, task)).release()


async def until_had(session: Session) -> Lease:
    while (lease := await Lock(session, "a").try_acquire()) is None:
        await asyncio.sleep(0)
    return lease


@pytest.mark.parametrize("hold", [0.0, 0.06], ids=["briefly", "for longer than a run may take"])
async def test_i4_a_try_that_is_quicker_than_the_own_head(start: Start, by_hand: ByHand, hold: float) -> None:
    """As above, and for certain: freed without a ring, taken by a try, let go of."""
    here, elsewhere = start(), start()
    by_hand.acquire("a")
    waiting = [await wait_asleep(here), await wait_asleep(elsewhere)]
    by_hand.redis.delete("aiolocks:lock:{a}")  # nobody is told
    lease = await Lock(here, "a").try_acquire()
    assert lease is not None
    await asyncio.sleep(hold)
    await lease.release()
    for task in waiting:
        await (await in_within(AT_ONCE, task)).release()


@pytest.mark.parametrize("before", [True, False], ids=["before it knows", "when it knows"])
@pytest.mark.parametrize("turns", range(10))
async def test_i4_rung_and_cancelled_passes_on(
    start: Start, by_hand: ByHand, turns: int, before: bool
) -> None:
    """In the same turn of the loop, and in each of those until it has got the lock."""
    second, third = start(), start()
    by_hand.acquire("a")
    cancelled = await wait_asleep(second)
    waiting = await wait_asleep(third)
    when_rung(
        second,
        lambda: asyncio.ensure_future(and_then(turns, cancelled.cancel)) if turns else cancelled.cancel(),
        before=before,
    )
    by_hand.release("a")
    await asyncio.wait({cancelled}, timeout=AT_ONCE)
    if not cancelled.cancelled():
        await cancelled.result().release()
    await (await in_within(AT_ONCE, waiting)).release()


@pytest.mark.parametrize("turns", range(4))
async def test_i4_rung_after_it_has_left_passes_on(start: Start, by_hand: ByHand, turns: int) -> None:
    """It sleeps when it is cancelled; the ring is on its way to it, or follows at once."""
    second, third = start(), start()
    by_hand.acquire("a")
    cancelled = await wait_asleep(second)
    waiting = await wait_asleep(third)
    cancelled.cancel()
    await turns_of_the_loop(turns)
    by_hand.release("a")
    await (await in_within(AT_ONCE, waiting)).release()
    assert cancelled.cancelled()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("others", [0, 1], ids=["alone", "with another here"])
async def test_i4_cancelled_at_every_await_passes_on(
    start: Start, by_hand: ByHand, keys: Callable[..., list[str]], mode: Mode, others: int
) -> None:
    second, third = start(), start()

    async def use() -> None:
        async with Lock(second, "a"):
            await asyncio.sleep(0)

    for k in count(1):
        by_hand.acquire("a")
        driver = CancelAt(use(), k, mode)
        cancelled = asyncio.create_task(drive(driver))
        if not (k == 1 and mode == "early"):
            await eventually(lambda: asleep(second), within=5)
        beside = [asyncio.create_task(Lock(second, "a").acquire()) for _ in range(others)]  # type: ignore[arg-type]
        waiting = await wait_asleep(third)
        by_hand.release("a")
        await asyncio.wait({cancelled}, timeout=AT_ONCE)
        assert cancelled.done()
        rest = {*beside, waiting}
        while rest:
            done, rest = await asyncio.wait(rest, timeout=AT_ONCE, return_when=asyncio.FIRST_COMPLETED)
            assert done, f"idle behind a cancel at {driver.where}"
            for task in done:
                await task.result().release()
        await eventually(lambda: not keys())
        if not driver.fired:
            break
    assert k > 2  # waiting, the body, and the release


async def drive(driver: CancelAt[Any]) -> None:
    await driver


@pytest.mark.parametrize("known", [True, False], ids=["", "scripts unknown"])
@pytest.mark.parametrize("turns", range(8))
async def test_i4_local_hand_over_to_somebody_who_is_cancelled(
    start: Start, by_hand: ByHand, turns: int, known: bool
) -> None:
    here, elsewhere = start(), start()
    lease = await Lock(here, "a").acquire()
    cancelled = asyncio.create_task(Lock(here, "a").acquire())  # type: ignore[arg-type]
    waiting = await wait_asleep(elsewhere)
    if not known:
        by_hand.redis.script_flush()
    releasing = asyncio.create_task(lease.release())
    await turns_of_the_loop(turns)
    cancelled.cancel()
    await asyncio.wait({cancelled, releasing})
    if not cancelled.cancelled():
        await cancelled.result().release()
    await (await in_within(AT_ONCE, waiting)).release()


async def test_i4_local_hand_over_by_who_has_just_woken_others(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that has woken another lets it go first; but a lock that it gets after that it hands on as
    ever."""
    monkeypatch.setattr("aiolocks.lock.queue._YIELDING", 0.5)  # as if all that follows took no time
    here, second, third = start(), start(), start()
    lease = await Lock(here, "a").acquire()
    waiting = await wait_asleep(second)
    await lease.release()
    lease = await in_within(AT_ONCE, waiting)
    first_here = await wait_asleep(here)
    second_here = asyncio.create_task(Lock(here, "a").acquire())  # type: ignore[arg-type]
    elsewhere = await wait_asleep(third)
    await lease.release()
    await (await in_within(AT_ONCE, first_here)).release()
    rest = {second_here, elsewhere}
    while rest:
        done, rest = await asyncio.wait(rest, timeout=AT_ONCE, return_when=asyncio.FIRST_COMPLETED)
        assert done, "idle behind a local hand-over"
        for task in done:
            await task.result().release()


@pytest.mark.parametrize("turns", range(8))
async def test_i4_everybody_here_is_cancelled(start: Start, turns: int) -> None:
    """The one who lets go, and those behind: who waits elsewhere gets in."""
    here, elsewhere = start(), start()
    inside = asyncio.Event()

    async def hold() -> None:
        async with Lock(here, "a"):
            inside.set()
            await asyncio.sleep(60)

    first = asyncio.create_task(hold())
    await inside.wait()
    others = [asyncio.create_task(hold()) for _ in range(3)]
    waiting = await wait_asleep(elsewhere)
    first.cancel()
    await turns_of_the_loop(turns)
    for task in others:
        task.cancel()
    await asyncio.wait({first, *others})
    await (await in_within(AT_ONCE, waiting)).release()


@pytest.mark.parametrize("dead", [1, 10])
async def test_i4_only_the_dead_wait_elsewhere(start: Start, by_hand: ByHand, dead: int) -> None:
    """At the end of a run of hand-overs it is the turn of others, who are all dead: on with those here."""
    here = start()
    lease = await Lock(here, "a").acquire()
    for number in range(dead):
        by_hand.arm("a", f"dead-{number}")
        by_hand.redis.delete(by_hand.bell("a", f"dead-{number}"))
    for _ in range(40):
        following = asyncio.create_task(Lock(here, "a").acquire())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await lease.release()
        lease = await in_within(AT_ONCE, following)
    await lease.release()
    assert here.statistics().wakeups["poll"] == 0


async def test_i4_lost_with_its_session_and_given_back(start: Start) -> None:
    here, elsewhere = start(), start()
    lease = await Lock(here, "a").acquire()
    inside = asyncio.Event()

    async def body() -> None:
        with pytest.raises(LockLostError):
            async with lease:
                inside.set()
                await asyncio.sleep(60)

    holder = asyncio.create_task(body())
    await inside.wait()
    waiting = await wait_asleep(elsewhere)
    await here.aclose()
    assert lease.state is LeaseState.LOST
    await holder
    await (await in_within(AT_ONCE, waiting)).release()


@pytest.mark.parametrize("where", ["here", "elsewhere", "both"])
async def test_i4_lost_by_our_clock_and_given_back(start: Start, where: str) -> None:
    """The server still has it; who waits here has learnt so, and sleeps again."""
    here, elsewhere = start(), start()
    lease = await Lock(here, "a").acquire()
    waiting = []
    if where != "here":
        waiting.append(await wait_asleep(elsewhere))
    if where != "elsewhere":
        waiting.append(asyncio.create_task(Lock(here, "a").acquire()))  # type: ignore[arg-type]
        await asyncio.sleep(0)
    lease._possession.lose("by our clock")
    if where != "elsewhere":
        await eventually(lambda: asleep(here), within=5)
    with pytest.raises(LockNotOwnedError):
        await lease.release()
    for task in waiting:
        await (await in_within(AT_ONCE, task)).release()


@pytest.mark.parametrize("here", [0, 1])
@pytest.mark.parametrize("elsewhere", [0, 1])
async def test_i4_release_whose_reply_is_lost(
    start: Start, through: Proxy, here: int, elsewhere: int
) -> None:
    near, far = start(), start(to=through)
    lease = await Lock(far, "a").acquire()
    waiting = [asyncio.create_task(Lock(far, "a").acquire()) for _ in range(here)]  # type: ignore[arg-type]
    waiting += [await wait_asleep(near) for _ in range(elsewhere)]
    lost = through.reset_after(LETTING_GO)
    await lease.release()
    assert lost.is_set()
    assert lease.state is LeaseState.RELEASED
    for task in waiting:
        await (await in_within(AT_ONCE, task)).release()


async def test_i4_release_whose_reply_is_lost_with_the_ring_for_ourselves(
    start: Start, by_hand: ByHand, through: Proxy
) -> None:
    """The next waiter is one of its own session, which learns of it from the reply alone."""
    far = start(to=through)
    by_hand.acquire("a")
    waiting = await wait_asleep(far)
    by_hand.redis.delete("aiolocks:lock:{a}")
    lease = await Lock(far, "a").try_acquire()
    assert lease is not None
    lost = through.reset_after(LETTING_GO)
    await lease.release()
    assert lost.is_set()
    await (await in_within(AT_ONCE, waiting)).release()


@pytest.mark.parametrize("later", [0.0, 0.005, 0.015])
async def test_i4_closed_while_rung(start: Start, by_hand: ByHand, through: Proxy, later: float) -> None:
    """Before its try has left, or while it is on its way."""
    second, third = start(to=through), start()
    by_hand.acquire("a")
    ended = await wait_asleep(second)
    waiting = await wait_asleep(third)
    through.delay = 0.04
    rung = asyncio.Event()
    when_rung(second, rung.set)
    by_hand.release("a")
    await rung.wait()
    await asyncio.sleep(later)
    await second.aclose()
    with pytest.raises(SessionClosedError):
        await ended
    await (await in_within(AT_ONCE, waiting)).release()


async def test_i4_at_random(start: Start, through: Proxy) -> None:
    """Everything that can be done to a lock, by many: it is never free for long while somebody waits.

    Their sleeps are of five seconds, so that each wakeup that gets lost would show.
    """
    chance = random.Random()
    sessions = [start(), start(), start(), start(to=through)]
    holds: list[Hold] = []
    waits: list[Wait] = []
    now = time.monotonic

    async def acquire(session: Session) -> Lease | None:
        lock = Lock(session, "a")
        match chance.randrange(8):
            case 0:
                return await lock.try_acquire()
            case 1:
                async with asyncio.timeout(chance.uniform(0, 0.03)):
                    return await lock.acquire()
            case 2:
                return await lock.acquire(blocking_timeout=chance.uniform(0, 0.03))
        return await lock.acquire()

    async def one(who: str, session: Session) -> None:
        while len(holds) < 300:
            invoked = now()
            try:
                lease = await acquire(session)
            except (TimeoutError, LockError):
                lease = None
            granted = now()
            waits.append(Wait(who=who, invoked=invoked, ended=granted, name="a"))
            if lease is not None:
                await asyncio.sleep(chance.choice([0, 0, 0.001, 0.004]))
                released = now()
                deadline = released + lease.remaining()
                await lease.release()
                holds.append(
                    Hold(
                        who=who,
                        name="a",
                        invoked=invoked,
                        granted=granted,
                        released=released,
                        confirmed=now(),
                        deadline=deadline,
                        fencing_token=lease.fencing_token,
                    )
                )
            await asyncio.sleep(chance.choice([0, 0, 0.002]))

    async with asyncio.timeout(45), asyncio.TaskGroup() as group:
        for number, session in enumerate(sessions):
            for task in range(3):
                group.create_task(one(f"{number}.{task}", session))
    assert exclusion(holds) == []
    assert fencing(holds) == []
    assert handover(holds, waits, bound=AT_ONCE) == []


# -- heads that are dead -------------------------------------------------------------------------------------


async def wait_for_it(url: str, name: str, way: str) -> None:
    """In a process of its own: wait, and never get anywhere."""
    async with Redis.from_url(url) as redis, Session(redis, wakeup=wakeup(way)) as session:
        waiting = asyncio.create_task(Lock(session, name).acquire())  # type: ignore[arg-type]
        await eventually(lambda: asleep(session), within=20)
        tell("asleep")
        await waiting


DEATHS: dict[str, Callable[[Worker], None]] = {"killed": Worker.kill, "stopped": Worker.stop}


@pytest.mark.leaves_keys
@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("dead", only([1, 3], 3))
async def test_t_p_1_dead_processes_before_us(
    server: Server, workers: Workers, start: Start, by_hand: ByHand, way: str, death: str, dead: int
) -> None:
    """Their bells still hang: one of them is rung, and nobody comes."""
    session = start(backoff=Backoff())
    by_hand.acquire("a")
    processes = await workers.start_many(dead, wait_for_it, url=server.url, name="a", way=way)
    for process in processes:
        await process.told("asleep")
    waiting = await wait_asleep(session)
    for process in processes:
        DEATHS[death](process)
    rung = by_hand.release("a")
    lease = await in_within(UNTOLD + SLACK, waiting)
    assert rung is not None
    await lease.release()


@pytest.mark.leaves_keys
async def test_t_p_1_head_behind_a_black_hole(
    server: Server, start: Start, by_hand: ByHand, proxy: OpenProxy
) -> None:
    through = await proxy(server)
    cut_off, session = start(to=through), start(backoff=Backoff())
    by_hand.acquire("a")
    gone = await wait_asleep(cut_off)
    waiting = await wait_asleep(session)
    through.blackhole = True
    by_hand.release("a")
    await (await in_within(UNTOLD + SLACK, waiting)).release()
    through.blackhole = False
    through.cut()
    await (await in_within(2.0 + AT_ONCE, gone)).release()


@pytest.mark.leaves_keys
@pytest.mark.parametrize("hangs", [True, False], ids=["just dead", "long dead"])
@pytest.mark.parametrize("dead", only([1, 10, 1000], 1000))
async def test_t_p_1_many_dead_heads_cost_no_more_than_one(
    start: Start, by_hand: ByHand, dead: int, hangs: bool
) -> None:
    """Those whose bell is gone cost nothing; one whose bell still hangs takes the ring, once a release."""
    session = start(backoff=Backoff() if hangs else PATIENT)
    by_hand.acquire("a")
    for number in range(dead):
        by_hand.arm("a", f"dead-{number}")
        if not hangs:
            by_hand.redis.delete(by_hand.bell("a", f"dead-{number}"))
    waiting = await wait_asleep(session)
    by_hand.release("a")
    await (await in_within(UNTOLD + SLACK, waiting)).release()


# -- a thousand ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def counting_connections(by_hand: ByHand, seen: list[int]) -> AsyncIterator[None]:
    """How many there are beside that of who looks, several times a second."""

    async def look() -> None:
        while True:
            seen.append(len(by_hand.redis.client_list()) - 1)
            await asyncio.sleep(0.02)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()


async def test_t_n_8_a_thousand_waiters_on_a_default_client(connect: Connect, by_hand: ByHand) -> None:
    """Far more than the pool has connections: they need one, and a release needs no other."""
    client = connect()
    before = len(by_hand.redis.client_list()) - 1
    by_hand.acquire("a")
    connections: list[int] = []
    longest = 0.0
    had = 0

    async def one() -> None:
        nonlocal longest, had
        lease = await Lock(client, "a").acquire()
        had += 1
        with elapsed() as took:
            await lease.release()
        longest = max(longest, took.seconds)

    async with counting_connections(by_hand, connections):
        waiting = [asyncio.create_task(one()) for _ in range(1000)]
        await eventually(lambda: asleep(Session.of(client)), within=20)
        assert Session.of(client).statistics().waiters == 1000
        by_hand.release("a")
        async with asyncio.timeout(40):
            await asyncio.gather(*waiting)
    assert had == 1000
    assert max(connections) - before <= 3
    assert longest < AT_ONCE


async def test_t_w_7_a_thousand_waiters_try_once_a_release(start: Start, by_hand: ByHand) -> None:
    session = start()
    by_hand.acquire("a")

    async def one() -> None:
        async with Lock(session, "a"):
            pass

    waiting = [asyncio.create_task(one()) for _ in range(1000)]
    await eventually(lambda: asleep(session), within=20)
    before = session.statistics()
    by_hand.release("a")
    async with asyncio.timeout(40):
        await asyncio.gather(*waiting)
    after = session.statistics()
    assert after.acquisitions - before.acquisitions == 1000
    # A release goes in one request with the try of the next waiter. Beside these there are a few heartbeats.
    assert after.commands_sent - before.commands_sent <= 1000 + 50
    assert after.wakeups["poll"] == 0


# -- turns ---------------------------------------------------------------------------------------------------


async def test_turns_of_processes_and_tasks(start: Start) -> None:
    """Each in a loop, and nobody is left out; how alike they fare is measured by the benchmarks."""
    sessions = [start(backoff=Backoff()) for _ in range(3)]
    had = [[0] * 4 for _ in sessions]
    end = time.monotonic() + 1.5

    async def one(session: Session, mine: list[int], number: int) -> None:
        lock = Lock(session, "a")
        while time.monotonic() < end:
            async with lock:
                await asyncio.sleep(0.001)
            mine[number] += 1

    async with asyncio.TaskGroup() as group:
        for session, mine in zip(sessions, had, strict=True):
            for number in range(4):
                group.create_task(one(session, mine, number))
    counts = [number for mine in had for number in mine]
    assert min(counts) > 0, had
