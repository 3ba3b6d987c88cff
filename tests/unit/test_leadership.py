"""The process that runs `main`, when it is told to stop, and when it is called again; the test is server and
clock."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aiolocks import (
    BackendError,
    Leadership,
    Lock,
    LockLostError,
    LockTimeoutError,
    SessionClosedError,
    Term,
)
from tests.unit.fakes import FakeTransport, deny, grant, let_go, turns

TTL, GRACE = 10.0, 2.0
DEADLINE = TTL - 0.01 * TTL - 0.002


class Server:
    """Grants and releases what is asked; `away` it answers nothing, and `lost` it denies the next renewal."""

    def __init__(self, transport: FakeTransport) -> None:
        self._transport = transport
        self.away = self.lost = False
        self.minted = 0
        self.acquires: list[float] = []
        self.releases: list[float] = []

    async def serve(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            call = await self._transport._untaken.get()
            match call.script.name.rpartition("_")[2]:  # type: ignore[union-attr]
                case "acquire":
                    self.acquires.append(now())
                    if not self.away:
                        self.minted += 1
                        grant(call, self.minted)
                case _ if self.away:
                    pass
                case "renew":
                    call.reply(0 if self.lost else 1)
                    self.lost = False
                case "release":
                    self.releases.append(now())
                    let_go(call)
                case "annotate":
                    call.reply(1)


@pytest.fixture
async def server(transport: FakeTransport) -> AsyncIterator[Server]:
    server = Server(transport)
    serving = asyncio.create_task(server.serve())
    yield server
    serving.cancel()


class Mains:
    """Calls of `main`: when each began and was told to stop and had ended.

    Args:
        unwinds: Seconds that each takes to unwind.
    """

    def __init__(self, *, unwinds: float = 0.0, do: Callable[[Term], Awaitable[Any]] | None = None) -> None:
        self._unwinds = unwinds
        self._do = do
        self.terms: list[Term] = []
        self.began: list[float] = []
        self.stopped: list[float] = []
        self.ended: list[float] = []

    async def __call__(self, term: Term) -> Any:
        now = asyncio.get_running_loop().time
        self.terms.append(term)
        self.began.append(now())
        try:
            return await (asyncio.sleep(1000) if self._do is None else self._do(term))
        finally:
            self.stopped.append(now())
            if self._unwinds:
                await asyncio.sleep(self._unwinds)
            self.ended.append(now())


@asynccontextmanager
async def running(leadership: Leadership, main: Mains) -> AsyncIterator[asyncio.Task[Any]]:
    task = asyncio.create_task(leadership.run(main))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait((task,))


def candidate(session: Any, **options: Any) -> Leadership:
    return Leadership(session, "name", **{"ttl": TTL, "grace": GRACE, **options})


async def test_run_returns_what_main_returns_after_the_release(offline, server) -> None:
    async def main(term: Term) -> str:
        assert term.kind == "leadership"
        assert leadership.is_leader
        return f"term {term.fencing_token}"

    leadership = candidate(offline)
    assert not leadership.is_leader
    assert await leadership.run(main) == "term 1"
    assert len(server.releases) == 1
    assert not leadership.is_leader


async def test_what_main_raises_leaves_after_the_release(offline, server) -> None:
    async def main(term: Term) -> None:
        raise KeyError("broken")

    with pytest.raises(KeyError):
        await candidate(offline).run(main)
    assert len(server.releases) == len(server.acquires) == 1


async def test_a_cancelled_run_cancels_main_and_steps_down(offline, server) -> None:
    main = Mains(unwinds=1)
    async with running(candidate(offline), main) as task:
        await asyncio.sleep(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert main.ended == server.releases
    assert len(server.acquires) == 1


async def test_after_a_loss_it_campaigns_again_when_its_own_body_has_ended(offline, server) -> None:
    main = Mains(unwinds=3)
    async with running(leadership := candidate(offline), main):
        server.lost = True
        await asyncio.sleep(TTL / 3 + 0.1)
        assert len(main.stopped) == 1
        assert not leadership.is_leader
        await asyncio.sleep(3.1)
        assert server.acquires[1:] == main.ended == main.began[1:]
        assert leadership.is_leader
        assert [term.fencing_token for term in main.terms] == [1, 2]


async def test_cut_off_from_the_server_it_stops_before_its_lease_ends(offline, server, clock) -> None:
    """However long the outage: it does not believe for a moment longer than its own clock allows."""
    main = Mains(unwinds=1.5)
    async with running(leadership := candidate(offline), main):
        await turns()
        server.away = True
        began = main.began[0]
        await asyncio.sleep(DEADLINE - GRACE + 0.01)
        assert main.stopped == [pytest.approx(began + DEADLINE - GRACE)]
        assert leadership.is_leader  # so far nobody else can be
        await asyncio.sleep(GRACE)
        assert not leadership.is_leader
        await asyncio.sleep(100 * TTL)
        assert not leadership.is_leader
        assert len(main.began) == 1
        server.away = False
        await asyncio.sleep(3 * TTL)
        assert len(main.began) == 2
        assert leadership.is_leader


async def test_a_body_that_eats_its_whole_grace_is_an_error_in_the_log(offline, server, caplog) -> None:
    main = Mains(unwinds=GRACE + 1)
    async with running(leadership := candidate(offline), main):
        await turns()
        server.away = True
        await asyncio.sleep(DEADLINE + 0.01)
        assert not main.ended
        assert not leadership.is_leader
        errors = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert [record.getMessage().partition(":")[0] for record in errors] == ["leadership 'name'"]
        acquires = len(server.acquires)
        await asyncio.sleep(0.9)
        assert len(server.acquires) == acquires  # not before its own body has ended


async def test_main_that_returns_after_it_was_told_to_stop_is_called_again(offline, server) -> None:
    async def do(term: Term) -> str:
        if term.fencing_token == 3:
            return "done"
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            if term.fencing_token == 1:
                assert term.remaining() == 0.0
        return "cut off"

    async with running(candidate(offline, max_hold=20), Mains(do=do)) as task:
        server.lost = True
        assert await task == "done"
    assert server.minted == 3


async def test_a_term_ends_after_max_hold(offline, server) -> None:
    main = Mains(unwinds=1)
    async with running(candidate(offline, max_hold=20), main):
        await asyncio.sleep(25)
        assert main.stopped == [pytest.approx(main.began[0] + 18, abs=0.5)]
        assert main.ended == server.releases == main.began[1:]


async def test_a_loss_that_main_finds_itself_is_one(offline, server) -> None:
    async def do(term: Term) -> str:
        if term.fencing_token == 2:
            return "done"
        while True:
            await asyncio.sleep(0.1)
            try:
                term.ensure_held()
            except LockLostError as error:
                raise LockLostError("Lock", "another", "both were lost") from error

    async with running(candidate(offline), Mains(do=do)) as task:
        server.lost = True
        assert await task == "done"


async def test_the_loss_of_another_lock_ends_the_run(offline, server) -> None:
    async def do(term: Term) -> None:
        async with Lock(offline, "another", ttl=TTL):
            server.lost = True
            await asyncio.sleep(1000)

    with pytest.raises(LockLostError, match="'another'"):
        # The lock is renewed first: it was granted later, but the grid of its renewals is finer.
        await Leadership(offline, "name", ttl=3 * TTL).run(Mains(do=do))


# -- errors of main ------------------------------------------------------------------------------------------


class Failing:
    """A `main` that fails several times, each time after `lasts` seconds."""

    def __init__(self, times: int, *, lasts: float = 0.0) -> None:
        self._left = times
        self._lasts = lasts
        self.failed: list[float] = []

    async def __call__(self, term: Term) -> str:
        if not self._left:
            return "done"
        self._left -= 1
        await asyncio.sleep(self._lasts)
        self.failed.append(asyncio.get_running_loop().time())
        raise KeyError(f"broken {self._left}")


async def test_again_an_error_of_main_is_logged_and_it_campaigns_again(offline, server, caplog) -> None:
    main = Failing(2)
    assert await candidate(offline).run(main, on_error="again") == "done"
    assert len(server.releases) == len(server.acquires) == 3
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.name for record in errors] == ["aiolocks.session"] * 2
    for record, number in zip(errors, (1, 0), strict=True):
        assert "leadership 'name': main failed after 0.0 s, and begins again in" in record.getMessage()
        assert record.exc_info is not None
        assert str(record.exc_info[1]) == f"'broken {number}'"


async def test_again_the_pauses_double_up_to_a_minute(offline, server, monkeypatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.0)  # the longest ones
    main = Failing(9)
    await candidate(offline).run(main, on_error="again")
    pauses = [round(begun - failed) for failed, begun in zip(main.failed, server.acquires[1:], strict=True)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


async def test_again_a_long_term_makes_the_next_pause_short(offline, server, monkeypatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.0)
    for lasts, last in ((59, 4), (60, 1)):
        main = Failing(3, lasts=lasts)
        server.acquires.clear()
        await candidate(offline).run(main, on_error="again")
        assert round(server.acquires[3] - main.failed[2]) == last


async def test_again_the_pauses_have_full_jitter(offline, server, monkeypatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.75)
    main = Failing(1)
    await candidate(offline).run(main, on_error="again")
    assert server.acquires[1] - main.failed[0] == pytest.approx(0.25)


@pytest.mark.parametrize("how", ["function", "coroutine function"])
async def test_a_function_says_whether_main_is_called_again(offline, server, how) -> None:
    asked: list[tuple[str, int]] = []

    def decide(error: Exception) -> bool:
        asked.append((str(error), len(server.releases)))
        return len(asked) < 2

    async def decide_later(error: Exception) -> bool:
        await asyncio.sleep(1)
        return decide(error)

    with pytest.raises(KeyError, match="broken 1"):
        await candidate(offline).run(Failing(3), on_error=decide if how == "function" else decide_later)
    assert asked == [("'broken 2'", 1), ("'broken 1'", 2)]  # once its term has ended


async def test_an_error_of_the_function_is_raised(offline, server) -> None:
    def decide(error: Exception) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        await candidate(offline).run(Failing(1), on_error=decide)
    assert isinstance(caught.value.__context__, KeyError)


async def test_again_a_refusal_for_good_ends_it_all_the_same(offline, transport) -> None:
    task = asyncio.create_task(candidate(offline).run(Failing(1), on_error="again"))
    deny(await transport.asked("permits_acquire"))
    with pytest.raises(BackendError):
        await task


@pytest.mark.parametrize("end", ["cancelled", "closed"])
async def test_again_a_pause_ends_at_once(make_session, server, clock, end, monkeypatch) -> None:
    monkeypatch.setattr("random.random", lambda: 0.0)
    session = make_session()
    task = asyncio.create_task(candidate(session).run(main := Failing(7), on_error="again"))
    while len(main.failed) < 6:
        await asyncio.sleep(1)
    ended_at = clock.now()
    if end == "closed":
        await session.aclose()
    else:
        task.cancel()
    with pytest.raises(SessionClosedError if end == "closed" else asyncio.CancelledError):
        await task
    assert clock.now() - ended_at < 1


@pytest.mark.parametrize(("on_error", "error"), [("retry", ValueError), (None, TypeError), (True, TypeError)])
async def test_on_error_is_checked(offline, on_error, error) -> None:
    with pytest.raises(error, match="on_error must be 'raise', 'again', or a function of the error"):
        await candidate(offline).run(Failing(1), on_error=on_error)


# -- stepping down -------------------------------------------------------------------------------------------


async def test_stepping_down_in_main_ends_it_there(offline, server) -> None:
    async def do(term: Term) -> str:
        if term.fencing_token == 2:
            return "done"
        await term.step_down(cool_down=7)
        raise AssertionError

    main = Mains(do=do, unwinds=1)
    async with running(leadership := candidate(offline), main) as task:
        await asyncio.sleep(1.1)
        assert not leadership.is_leader
        assert await leadership.try_acquire() is None
        with pytest.raises(LockTimeoutError, match=r"it has stepped down, and rests for 4\.9"):
            await leadership.acquire(blocking_timeout=1)
        assert len(server.acquires) == 1
        assert await task == "done"
    assert server.acquires[1] == pytest.approx(main.stopped[0] + 7)


async def test_stepping_down_from_outside_returns_when_the_term_is_over(offline, server, clock) -> None:
    main = Mains(unwinds=30)  # longer than any ttl: it is renewed meanwhile
    async with running(candidate(offline), main):
        await turns()
        await main.terms[0].step_down(cool_down=100)
        assert server.releases == main.ended == [pytest.approx(clock.now())]
        assert main.stopped[0] == pytest.approx(main.began[0])
        await main.terms[0].step_down()  # again: nothing


async def test_stepping_down_without_a_body_releases(offline, server) -> None:
    leadership = candidate(offline)
    term = await leadership.acquire()
    await term.step_down()
    assert len(server.releases) == 1
    async with leadership as again:
        with pytest.raises(TypeError, match="cool_down must be a number of seconds"):
            await again.step_down(cool_down="long")  # type: ignore[arg-type]


async def test_a_body_that_steps_down_ends_with_its_loss(offline, server) -> None:
    with pytest.raises(LockLostError, match=r"step_down\(\) was called"):
        async with candidate(offline) as term:
            await term.step_down()
    assert len(server.releases) == 1


async def test_a_body_that_was_told_to_stop_before_does_not_wait_for_it_again(offline, server) -> None:
    async def persistent() -> str:
        async with candidate(offline, max_hold=8) as term:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                await term.step_down()
                return "done"

    assert await persistent() == "done"


def stubborn(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "main has not ended" in one.getMessage()]


async def test_a_main_that_goes_on_after_its_term_is_told_each_10_s(offline, server, clock, caplog) -> None:
    async with running(candidate(offline), main := Mains(unwinds=35)):
        await asyncio.sleep(1)
        server.lost = True
        await asyncio.sleep(TTL)
        (stopped,) = main.stopped
        assert stubborn(caplog) == []
        await asyncio.sleep(stopped + 34 - clock.now())
        told = [f"leadership 'name': main has not ended {s} s after it was cancelled" for s in (10, 20, 30)]
        assert stubborn(caplog) == [f"{one}, and another process may lead" for one in told]
        await asyncio.sleep(60)
        assert len(stubborn(caplog)) == 3


@pytest.mark.skipif(sys.version_info < (3, 13), reason="the count of cancellations does not tell before")
async def test_a_main_that_outlasts_the_cancellation_of_its_run_is_told(offline, server, caplog) -> None:
    async with running(candidate(offline), Mains(unwinds=15)) as task:
        await asyncio.sleep(1)
        task.cancel()
    assert stubborn(caplog) == ["leadership 'name': main has not ended 10 s after it was cancelled"]


async def test_a_main_that_unwinds_in_time_is_not_told(offline, server, caplog) -> None:
    async with running(candidate(offline), Mains(unwinds=9)):
        await asyncio.sleep(1)
        server.lost = True
        await asyncio.sleep(3 * TTL)
    assert stubborn(caplog) == []


async def test_a_cool_down_is_a_part_of_the_wait(offline, server, clock) -> None:
    leadership = candidate(offline)
    await (await leadership.acquire()).step_down(cool_down=4)
    stepped_down_at = clock.now()
    async with leadership.acquire(blocking_timeout=5):
        assert clock.now() == pytest.approx(stepped_down_at + 4)


async def test_a_server_that_is_away_does_not_end_the_run(offline, server, caplog) -> None:
    caplog.set_level(logging.DEBUG, logger="aiolocks")
    server.away = True
    async with running(candidate(offline), main := Mains()) as task:
        await asyncio.sleep(50 * TTL)
        assert not task.done()
        assert "campaigning again" in caplog.text
        server.away = False
        await asyncio.sleep(2 * TTL)
        assert len(main.began) == 1


async def test_a_refusal_for_good_does(offline, transport) -> None:
    async with running(candidate(offline), Mains()) as task:
        deny(await transport.asked("permits_acquire"))
        with pytest.raises(BackendError) as caught:
            await task
    assert not caught.value.transient


async def test_the_end_of_the_session_does(make_session, server) -> None:
    session = make_session()
    async with running(candidate(session), main := Mains()) as task:
        await turns()
        await session.aclose()
        with pytest.raises(SessionClosedError):
            await task
        assert len(main.ended) == 1


async def test_proclaim_takes_what_json_can_hold(offline, server) -> None:
    async with candidate(offline, value=[1]) as term:
        assert term.value == [1]
        await term.proclaim({"url": "http://here"})
        assert term.value == {"url": "http://here"}
        with pytest.raises(TypeError, match="value must be what JSON can hold"):
            await term.proclaim(object())
        assert term.value == {"url": "http://here"}
    with pytest.raises(LockLostError):
        await term.proclaim(1)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"grace": 6}, ValueError, "grace must be at most half of ttl and max_hold, here 5 s"),
        ({"grace": -1}, ValueError, "grace must be a number of seconds"),
        ({"value": object()}, TypeError, "value must be what JSON can hold"),
        ({"value": float("nan")}, TypeError, "value must be what JSON can hold"),
        ({"timeout": 3}, TypeError, "did you mean ttl="),
        ({"at_least": 3}, TypeError, "has no argument 'at_least'"),
    ],
)
async def test_bad_arguments(offline, options, error, said) -> None:
    with pytest.raises(error, match=said):
        candidate(offline, **options)


@pytest.mark.parametrize(("ttl", "grace"), [(10, 2), (60, 2), (5, 1), (0.5, 0.1)])
async def test_the_grace_is_two_seconds_or_a_fifth_of_a_short_ttl(offline, ttl, grace) -> None:
    assert Leadership(offline, "name", ttl=ttl)._options.grace == pytest.approx(grace)
