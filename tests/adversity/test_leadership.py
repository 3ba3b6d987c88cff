"""Leaders, and those who observe them: hand-overs, deaths, outages, clocks, and terms that nobody misses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from redis.asyncio import Redis

from aiolocks import BackendError, Backoff, LeaderInfo, Leadership, LockLostError, Session, Term
from tests.adversity.tools import AT_ONCE, PATIENT, SLACK, Keys, Start
from tests.conftest import Connect, OwnServer
from tests.support.cancel import sweep
from tests.support.processes import Worker, Workers, tell
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.skew import Clock
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves_keys()  # of leaders that were killed

ONE_WAY = pytest.mark.parametrize("way", ["tracking"])
TERMS = 64
YEAR = 365 * 24 * 3600


class Watcher:
    """Writes down what an observer is told."""

    def __init__(self, leadership: Leadership) -> None:
        self.told: list[LeaderInfo | None] = []
        self.times: list[float] = []
        self._task = asyncio.create_task(self._watch(leadership))

    async def _watch(self, leadership: Leadership) -> None:
        async with aclosing(leadership.observe()) as leaders:
            async for leader in leaders:
                self.told.append(leader)
                self.times.append(time.monotonic())

    @property
    def values(self) -> list[Any]:
        return [leader and leader.value for leader in self.told]

    async def __aenter__(self) -> Self:
        await eventually(lambda: self.told)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))


async def lead(url: str, value: Any, ttl: float = 10.0, hold: float = 600.0) -> None:
    """In a process of its own: leads for a while, again and again."""
    async with Redis.from_url(url) as redis, Session(redis) as session:

        async def main(term: Term) -> None:
            tell("leads", at=time.monotonic(), token=term.fencing_token)
            try:
                await asyncio.sleep(hold)
            finally:
                tell("stops", at=time.monotonic())

        tell("ready")
        await Leadership(session, "a", ttl=ttl, value=value).run(main)


def logged(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    """The warnings and errors that have this part."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelname in ("WARNING", "ERROR") and part in record.getMessage()
    ]


# -- who leads -----------------------------------------------------------------------------------------------


@ONE_WAY
async def test_the_leader_is_known_to_everybody(start: Start) -> None:
    first, second = (Leadership(start(), "a", value=value) for value in ("first", "second"))
    assert await first.leader() is None
    async with first as term:
        leader = await second.leader()
        assert leader is not None
        assert (leader.value, leader.fencing_token, leader.name) == ("first", term.fencing_token, "a")
        assert leader.elected_at == term.fencing_token / 1e6
        assert 9 < leader.remaining <= 10
        assert (first.is_leader, second.is_leader) == (True, False)
        await term.annotate({"version": 2})
        await term.proclaim({"url": "here"})
        leader = await second.leader()
        assert leader is not None
        assert (leader.value, leader.metadata) == ({"url": "here"}, {"version": 2})
        waiting = asyncio.create_task(second._acquire(None))
        await eventually(second.candidates)
        (candidate,) = await first.candidates()
        assert candidate.waited_for is not None
    await (await waiting).release()
    assert await second.candidates() == ()


@ONE_WAY
async def test_candidates_lead_in_the_order_in_which_they_came(start: Start) -> None:
    order: list[int] = []

    async def candidate(number: int, session: Session) -> None:
        async with Leadership(session, "a"):
            order.append(number)
            await asyncio.sleep(0)

    leadership = Leadership(start(), "a")
    async with leadership as term:
        tasks = []
        for number in range(6):
            tasks.append(asyncio.create_task(candidate(number, start())))
            await eventually(partial(_waiting, leadership, number + 1))
        await term.release()
        await asyncio.gather(*tasks)
    assert order == list(range(6))


async def _waiting(leadership: Leadership, number: int) -> bool:
    return len(await leadership.candidates()) == number


# -- hand-over -----------------------------------------------------------------------------------------------


@ONE_WAY
async def test_a_planned_hand_over_takes_two_round_trips(
    start: Start, proxy: Callable[[Server], Awaitable[Proxy]], server: Server
) -> None:
    """One for the release and its push, one for the next one's request and its grant."""
    trip = 0.1
    link = await proxy(server)
    first, second = (Leadership(start(to=link), "a") for _ in range(2))
    took = []
    for _ in range(3):
        async with first as term:
            waiting = asyncio.create_task(second._acquire(None))
            await eventually(lambda: _waiting(first, 1))
            await asyncio.sleep(0.1)
            link.delay = trip
            stepped_down_at = time.monotonic()
            releasing = asyncio.create_task(term.release())
            successor = await waiting
            took.append((time.monotonic() - stepped_down_at) / trip)
            link.delay = 0.0
            await releasing
        await successor.release()
    assert min(took) < 2.8


@ONE_WAY
async def test_a_leader_that_is_killed_is_followed_when_its_ttl_has_passed(
    start: Start, workers: Workers, server: Server
) -> None:
    ttl = 0.5
    worker = await workers.start(lead, url=server.url, value="dead", ttl=ttl)
    await worker.told("leads")
    leadership = Leadership(start(), "a", ttl=ttl)
    waiting = asyncio.create_task(leadership._acquire(None))
    await eventually(leadership.candidates)
    leader = await leadership.leader()
    assert leader is not None
    worker.kill()
    killed_at = time.monotonic()
    term = await waiting
    assert time.monotonic() - killed_at <= ttl + SLACK  # idle: 15 ms, see the benchmarks
    assert term.fencing_token > leader.fencing_token
    await term.release()


@ONE_WAY
async def test_a_process_that_ends_hands_over_at_once(start: Start, workers: Workers, server: Server) -> None:
    """A deploy: SIGTERM of `asyncio.run` cancels, and nobody waits for a ttl."""
    worker = await workers.start(lead, url=server.url, value="old", hold=0.3)
    await worker.told("leads")
    began = time.monotonic()
    async with Leadership(start(), "a", blocking_timeout=5):
        assert time.monotonic() - began < 0.3 + AT_ONCE + SLACK


async def _leads(leadership: Leadership) -> None:
    async def main(term: Term) -> None:
        await asyncio.sleep(0.002)
        await term.proclaim("value")

    await leadership.run(main)


async def _steps_down(leadership: Leadership) -> None:
    async with leadership.acquire() as term:
        try:
            await term.step_down()
        finally:
            await asyncio.sleep(0.002)


async def _is_told_to(leadership: Leadership) -> None:
    term = await leadership.acquire()
    await term.step_down()


async def _looks_on(leadership: Leadership) -> None:
    async with aclosing(leadership.observe()) as leaders:
        assert await anext(leaders) is None
    assert await leadership.candidates() == ()
    assert await leadership.leader() is None


@ONE_WAY
@pytest.mark.parametrize("use", [_leads, _steps_down, _is_told_to, _looks_on])
async def test_cancelled_at_every_await_nothing_stays_held(
    start: Start,
    proxy: Callable[[Server], Awaitable[Proxy]],
    server: Server,
    keys: Keys,
    use: Callable[[Leadership], Awaitable[None]],
) -> None:
    link = await proxy(server)
    link.delay = 0.005
    session, other = start(to=link), start()

    async def begin() -> None:
        with suppress(LockLostError):  # of a body that steps down
            await use(Leadership(session, "a"))

    async def free(_: object) -> None:
        await eventually(lambda: not keys(), within=2)
        async with Leadership(other, "a", blocking_timeout=1):
            pass

    await sweep(begin, after=free)


# -- outages -------------------------------------------------------------------------------------------------


@ONE_WAY
async def test_a_leader_that_is_cut_off_stops_before_another_one_begins(
    start: Start, proxy: Callable[[Server], Awaitable[Proxy]], server: Server
) -> None:
    ttl, grace = 1.0, 0.4
    link = await proxy(server)
    spans: list[tuple[str, float, float]] = []

    def main(who: str, unwinds: float) -> Callable[[Term], Awaitable[None]]:
        async def main(term: Term) -> None:
            began = time.monotonic()
            try:
                await asyncio.sleep(30)
            finally:
                await asyncio.sleep(unwinds)
                spans.append((who, began, time.monotonic()))

        return main

    cut_off = Leadership(start(to=link), "a", ttl=ttl, grace=grace)
    other = Leadership(start(), "a", ttl=ttl, grace=grace)
    first = asyncio.create_task(cut_off.run(main("cut off", grace / 2)))
    await eventually(lambda: cut_off.is_leader)
    second = asyncio.create_task(other.run(main("other", 0)))
    await eventually(other.candidates)
    link.blackhole = True
    await eventually(lambda: other.is_leader, within=ttl + 2)
    assert not cut_off.is_leader
    for task in (second, first):
        task.cancel()
    await asyncio.wait((first, second))
    (_, _, ended), (_, began, _) = spans
    assert ended < began


@pytest.mark.more  # as an error of it
@ONE_WAY
async def test_what_main_returns_while_the_server_is_away_is_returned(
    start: Start,
    proxy: Callable[[Server], Awaitable[Proxy]],
    server: Server,
    caplog: pytest.LogCaptureFixture,
) -> None:
    link = await proxy(server)
    leadership = Leadership(start(to=link), "a", ttl=0.5)

    async def main(term: Term) -> str:
        link.blackhole = True
        return "done"

    async with asyncio.timeout(5):
        assert await leadership.run(main) == "done"
    (record,) = logged(caplog, "the end of the term")
    assert "'a'" in record
    assert "did not answer in time" in record
    link.blackhole = False


@pytest.mark.more  # as an error of it
@ONE_WAY
async def test_a_main_that_catches_its_cancellation_while_the_server_is_away_is_called_again(
    start: Start, proxy: Callable[[Server], Awaitable[Proxy]], server: Server
) -> None:
    link = await proxy(server)
    leadership = Leadership(start(to=link), "a", ttl=0.5)
    calls = 0

    async def main(term: Term) -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            link.blackhole = True
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(30)
            return "cut off"
        return "done"

    running = asyncio.create_task(leadership.run(main))
    await eventually(lambda: calls == 1)
    await asyncio.sleep(2)  # longer than a candidate waits for an answer
    assert not running.done()
    link.lead_to(server.url)
    link.blackhole = False
    link.cut()
    async with asyncio.timeout(5):
        assert await running == "done"


@ONE_WAY
async def test_an_error_of_main_while_the_server_is_away_is_raised(
    start: Start, proxy: Callable[[Server], Awaitable[Proxy]], server: Server
) -> None:
    """Also one of this very library: a BackendError of `main` is no trouble with the term."""
    link = await proxy(server)
    leadership = Leadership(start(to=link), "a", ttl=0.5)

    async def main(term: Term) -> str:
        link.blackhole = True
        raise BackendError("of main")

    async with asyncio.timeout(5):
        with pytest.raises(BackendError, match="of main"):
            await leadership.run(main)
    link.blackhole = False


@ONE_WAY
async def test_a_leader_that_is_forced_out_is_told(start: Start) -> None:
    session = start()
    leadership, terms = Leadership(start(), "a", ttl=0.6), []

    async def main(term: Term) -> str:
        terms.append(term)
        if len(terms) == 1:
            await session.force_release("a")
            await asyncio.sleep(30)
        return "done"

    assert await leadership.run(main) == "done"
    assert terms[0].fencing_token < terms[1].fencing_token


@ONE_WAY
async def test_a_clock_that_is_a_year_ahead_makes_nobody_the_leader(
    start: Start, workers: Workers, server: Server, shim: Path, tmp_path: Path
) -> None:
    with Clock(tmp_path / "ahead") as clock:
        clock.offset = YEAR
        workers.environment |= {"LD_PRELOAD": str(shim), "SKEW_FILE": str(clock.file)}
        async with Leadership(start(), "a", ttl=1) as term:
            worker = await workers.start(lead, url=server.url, value="ahead", ttl=1)
            await worker.told("ready")
            await asyncio.sleep(0.3)
            term.ensure_held()
            assert await term.owned()
            assert [report["event"] for report in worker.told_so_far] == ["ready"]
        report = await worker.told("leads")
        assert report["token"] < (time.time() + 60) * 1e6  # the server's clock


# -- observers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["tracking", "keyspace", "poll"])
async def test_an_observer_is_told_of_each_change_at_once(start: Start, way: str) -> None:
    """In another session, and in that of the leader."""
    backoff = Backoff() if way == "poll" else PATIENT
    session, other = start(backoff=backoff), start(backoff=backoff)
    leadership = Leadership(session, "a", value=1)
    late = AT_ONCE + SLACK
    async with Watcher(Leadership(other, "a")) as far, Watcher(Leadership(session, "a")) as near:
        for change in (1, 2, None):
            began = time.monotonic()
            if change == 1:
                term = await leadership.acquire()
            elif change == 2:
                await term.proclaim(2)
            else:
                await term.release()
            for watcher in (far, near):
                await eventually(lambda: watcher.values[-1] == change)  # noqa: B023
                assert watcher.times[-1] - began < late
        assert far.values == near.values == [None, 1, 2, None]


@ONE_WAY
async def test_the_end_of_a_lease_is_a_change(start: Start, workers: Workers, server: Server) -> None:
    async with Watcher(Leadership(start(), "a")) as watcher:
        worker = await workers.start(lead, url=server.url, value="dead", ttl=0.5)
        await worker.told("leads")
        worker.kill()
        killed_at = time.monotonic()
        await eventually(lambda: len(watcher.told) == 3)
    assert watcher.values == [None, "dead", None]
    assert watcher.times[-1] - killed_at < 0.5 + SLACK


@pytest.mark.more  # as candidates and observers that outlive what passes
@ONE_WAY
async def test_an_observer_goes_on_after_an_outage(
    start: Start, proxy: Callable[[Server], Awaitable[Proxy]], server: Server
) -> None:
    link = await proxy(server)
    here = start()
    async with Watcher(Leadership(start(to=link), "a")) as watcher:
        link.lead_to("unix:///nowhere")
        link.cut()
        for value in range(3):
            async with Leadership(here, "a", value=value):
                pass
        link.lead_to(server.url)
        await eventually(lambda: len(watcher.told) == 5, within=5)
    assert watcher.values == [None, 0, 1, 2, None]


async def test_an_observer_without_permission_is_told_why(own_server: OwnServer, connect: Connect) -> None:
    server = await own_server()
    admin = connect(server)
    await admin.execute_command("ACL", "SETUSER", "u", "on", ">p", "+@all", "~aiolocks:lock:*", "&*")
    async with Session(connect(server, username="u", password="p")) as session:
        with pytest.raises(BackendError, match="this user may not do it"):
            await anext(Leadership(session, "a").observe())


async def observe(url: str, of: int) -> None:
    """In a process of its own: `of` observers, which tell what they have seen when a term says "end"."""
    async with Redis.from_url(url) as redis:

        async def one(session: Session) -> list[int]:
            seen = []
            async with aclosing(Leadership(session, "a").observe()) as leaders:
                async for leader in leaders:
                    if leader is None:
                        tell("ready")
                    elif leader.value == "end":
                        return seen
                    else:
                        seen.append(leader.value)
            return seen

        sessions = [Session(redis) for _ in range(of)]
        tell("seen", seen=await asyncio.gather(*map(one, sessions)))
        for session in sessions:
            await session.aclose()


async def _all_see_each_term(
    start: Start, workers: Workers, server: Server, *, processes: int, of: int
) -> None:
    """Half of the processes are stopped while the terms go by."""
    crew = [await workers.start(observe, url=server.url, of=of) for _ in range(processes)]
    for worker in crew:
        for _ in range(of):
            await worker.told("ready")
    stopped: list[Worker] = crew[::2]
    for worker in stopped:
        worker.stop()
    sessions = [start(), start()]
    for number in range(TERMS - 1):
        async with Leadership(sessions[number % 2], "a", value=number):
            pass
    async with Leadership(sessions[0], "a", value="end"):
        for worker in stopped:
            worker.cont()
        for worker in crew:
            seen = (await worker.told("seen"))["seen"]
            assert seen == [list(range(TERMS - 1))] * of


@ONE_WAY
async def test_twenty_observers_see_each_of_the_last_64_terms_in_order(
    start: Start, workers: Workers, server: Server
) -> None:
    await _all_see_each_term(start, workers, server, processes=2, of=10)


@pytest.mark.soak
@pytest.mark.timeout(300)
@ONE_WAY
async def test_observers_in_twenty_processes_do(start: Start, workers: Workers, server: Server) -> None:
    await _all_see_each_term(start, workers, server, processes=20, of=1)
