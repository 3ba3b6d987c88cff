"""The latch: whoever waits goes on when it opens, whoever is killed, cancelled, late or not heard."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    BackendError,
    ConfigurationError,
    Latch,
    LockTimeoutError,
    RateLimit,
    Session,
    SessionClosedError,
)
from tests.adversity.tools import (
    AT_ONCE,
    SLACK,
    UNTOLD,
    Formed,
    Keys,
    begin,
    elapsed,
    quiet,
    rejected,
    step,
)
from tests.conftest import Connect, OwnServer
from tests.support.cancel import Shot, cancel_twice, sweep, sweep_scopes
from tests.support.processes import Workers, tell
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.thinning import only
from tests.support.waiting import eventually

WAIT = step("latch_wait", "forms", "fence", "latches")
COUNT_DOWN = step("latch_count_down", "forms", "fence", "latches", "once")
KEY = "aiolocks:latch:{a}"

pytestmark = pytest.mark.leaves_keys("aiolocks:latch*")


async def waits(session: Session, number: int = 1) -> None:
    await eventually(lambda: session.statistics().waiters == number, within=5)
    await asyncio.sleep(0.05)  # its first request was answered


# -- opening -------------------------------------------------------------------------------------------------


async def do_a_step(url: str, killed: bool) -> None:
    async with Redis.from_url(url) as redis, Session(redis) as session:
        latch = Latch(session, "a", 3)
        tell("ready")
        if killed:
            await asyncio.Event().wait()
        await latch.count_down()
        await latch.wait()
        tell("through", at=time.monotonic())


async def test_all_processes_go_on_when_the_last_step_is_done(
    redis: Redis, server: Server, workers: Workers
) -> None:
    latch = Latch(redis, "a", 3)
    doomed = await workers.start(do_a_step, url=server.url, killed=True)
    await doomed.told("ready")
    doomed.kill()
    running = await workers.start_many(2, do_a_step, url=server.url, killed=False)
    for worker in running:
        await worker.told("ready")

    async def one_is_left() -> bool:
        infos = await Session.of(redis).inspect("a")
        return [info.value for info in infos] == [1]

    await eventually(one_is_left, within=10)
    with pytest.raises(LockTimeoutError, match=r"not open within 0\.1 s: 1 of its steps were left"):
        await latch.wait(blocking_timeout=0.1)
    opened = time.monotonic()
    assert await latch.count_down() == 0
    for worker in running:
        assert (await worker.told("through"))["at"] - opened < AT_ONCE
    async with latch:
        pass  # it stays open


@pytest.mark.parametrize("own", [True, False], ids=["in its session", "in another"])
@pytest.mark.parametrize("wakeup", ["tracking", "poll"])
async def test_a_waiter_is_woken(connect: Connect, own: bool, wakeup: Any) -> None:
    async with Session(connect(), wakeup=wakeup) as session, Session(connect()) as other:
        waiting = [begin(Latch(session, "a", 2).wait()) for _ in range(5)]
        await waits(session, 5)
        if wakeup == "tracking":
            await quiet(session)
        sent = session.statistics().commands_sent
        opener = Latch(session if own else other, "a", 2)
        with elapsed() as since:
            assert await opener.count_down() == 1
            with elapsed() as took:
                assert await opener.count_down() == 0
                await asyncio.gather(*waiting)
        assert took.seconds < AT_ONCE
        if wakeup == "tracking":
            # Each asks once more and listens along, in three commands; a script may have to go in full; and a
            # waiter shows each 0.6 s that it lives, in two.
            lives = 2 * 5 * since.seconds / UNTOLD
            assert session.statistics().commands_sent - sent <= 3 * 5 + 5 + 2 * 2 * own + lives


async def test_a_waiter_that_hears_does_not_poll(session: Session) -> None:
    waiting = begin(Latch(session, "a", 2).wait())
    await waits(session)
    await quiet(session)
    sent = session.statistics().commands_sent
    with elapsed() as took:
        await asyncio.sleep(0.7)
    # It looks every 2 s, and shows that it lives each 0.6 s.
    assert session.statistics().commands_sent - sent <= 1 + took.seconds / 2 + took.seconds / UNTOLD
    waiting.cancel()
    await asyncio.wait({waiting})


async def test_a_waiter_is_there_from_before_a_reset(session: Session, connect: Connect) -> None:
    async with Session(connect()) as other:
        latch, elsewhere = Latch(session, "a", 2), Latch(other, "a", 2)
        waiting = [begin(latch.wait()), begin(elsewhere.wait())]
        await waits(session)
        await waits(other)
        await latch.count_down(2)
        assert await latch.reset() == 2
        late = begin(latch.wait())
        await asyncio.wait_for(asyncio.gather(*waiting), 5)
        await waits(session)
        assert not late.done()
        assert await latch.reset(1) == 1
        await asyncio.sleep(0.05)
        assert not late.done()
        assert await elsewhere.count_down() == 0
        await asyncio.wait_for(late, 5)


async def test_it_lasts_while_somebody_waits_and_ends_after_its_last_use(redis: Redis, keys: Keys) -> None:
    latch = Latch(redis, "a", 2, ttl=1)
    assert await latch.count_down() == 1
    waiting = begin(latch.wait())
    await asyncio.sleep(1.3)
    assert await latch.count_down() == 0
    await asyncio.wait_for(waiting, 2)
    assert KEY in keys()
    await eventually(lambda: KEY not in keys(), within=5)  # its steps are known for longer
    assert await latch.count_down() == 1  # a new one


async def test_another_count_is_an_error(redis: Redis) -> None:
    assert await Latch(redis, "a", 3).count_down() == 2
    other = Latch(redis, "a", 4)
    for ask in (other.count_down, other.wait, other.reset):
        with pytest.raises(ConfigurationError, match="the latch 'a' counts from 3, and not from 4"):
            await ask()


async def test_a_count_that_an_earlier_program_has_reached_is_told(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="aiolocks")
    async with Session(connect()) as earlier:
        await Latch(earlier, "a", 2).count_down(2)
        await Latch(earlier, "a", 2).wait()
        await Latch(earlier, "b", 2).count_down()
    assert "was open before" not in caplog.text, "a program knows of what it has done itself"
    async with Session(connect()) as session:
        await Latch(session, "b", 2).count_down()
        await Latch(session, "b", 2).wait()

    async def is_told() -> list[logging.LogRecord]:
        """By a session that begins later than that by more than its answer takes."""
        async with Session(connect()) as later:
            await Latch(later, "a", 2).wait()
        return [one for one in caplog.records if "was open before" in one.getMessage()]

    (told,) = await eventually(is_told)
    assert told.levelno == logging.INFO
    assert re.match(
        r"latch 'a' was open before this session began: its count was reached \d\.\d s ago\. For a new round",
        told.getMessage(),
    )


async def test_timeouts(redis: Redis) -> None:
    latch = Latch(redis, "a", 3)
    for timeout in (0, 0.2):
        with elapsed() as took, pytest.raises(LockTimeoutError) as caught:
            await latch.wait(blocking_timeout=timeout)
        assert timeout <= took.seconds < timeout + SLACK
        assert caught.value.blocking_timeout == timeout


# -- cancelled -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shoot", only([sweep, cancel_twice, sweep_scopes], cancel_twice))
async def test_a_cancelled_waiter_leaves_nothing_behind(client: Redis, shoot: Any) -> None:
    async with Session(client) as session:
        latch = Latch(session, "a", 2, ttl=60)
        await latch.reset()  # which connects

        async def wait() -> None:
            try:
                await latch.wait(blocking_timeout=0.15)
            except LockTimeoutError:
                await asyncio.sleep(0)

        async def nobody_waits(_: Shot) -> None:
            assert session.statistics().waiters == 0
            assert not session._engine.bells._ears  # type: ignore[union-attr]

        assert await shoot(wait, after=nobody_waits)
        assert await latch.count_down(2) == 0
        await latch.wait()


@pytest.mark.parametrize("shoot", [sweep, cancel_twice])
async def test_a_cancelled_step_counts_once_or_not(client: Redis, shoot: Any) -> None:
    names: list[str] = []

    async def count_down() -> None:
        names.append(f"a{len(names)}")
        await Latch(client, names[-1], 5).count_down()

    async def once(_: Shot) -> None:
        assert await Latch(client, names[-1], 5).count_down() in (3, 4)

    assert await shoot(count_down, after=once)


async def test_a_session_that_closes_ends_the_waits(redis: Redis) -> None:
    session = Session(redis)
    waiting = begin(Latch(session, "a", 2).wait())
    await waits(session)
    await session.aclose()
    with pytest.raises(SessionClosedError):
        await waiting
    with pytest.raises(SessionClosedError):
        await Latch(session, "a", 2).count_down()


# -- the network ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3])
async def test_a_lost_reply_counts_once(client: Redis, through: Proxy, times: int) -> None:
    latch = Latch(client, "a", 10)
    for left in range(9, 6, -1):
        lost = [through.reset_after(COUNT_DOWN, nth=nth + 1) for nth in range(times)]
        assert await latch.count_down() == left
        assert all(event.is_set() for event in lost)


@pytest.mark.more  # as an outage
async def test_a_waiter_whose_connection_breaks_hears_of_the_opening(
    connect: Connect, redis: Redis, through: Proxy
) -> None:
    async with Session(connect(through)) as session:
        waiting = begin(Latch(session, "a", 1).wait())
        await waits(session)
        through.cut()
        await asyncio.sleep(0.05)
        await Latch(redis, "a", 1).count_down()
        await asyncio.wait_for(waiting, 2.5 + SLACK)


@pytest.mark.more  # as a server that is gone
async def test_a_waiter_outlasts_an_outage(own_server: OwnServer, connect: Connect) -> None:
    server = await own_server()
    async with Session(connect(server), command_timeout=0.3) as session:
        latch = Latch(session, "a", 2, ttl=60)
        waiting = begin(latch.wait())
        await waits(session)
        server.pause()
        await asyncio.sleep(1)
        assert not waiting.done()
        server.resume()
        await eventually(session.healthy, within=5)
        assert await latch.count_down(2) == 0
        await asyncio.wait_for(waiting, 3)


@pytest.mark.more  # as a server that is gone
async def test_a_server_that_does_not_answer_is_an_error_in_time(
    connect: Connect, through: Proxy, form: str
) -> None:
    async with Session(connect(Formed(through, form)), command_timeout=0.3) as session:
        latch = Latch(session, "a", 2, ttl=1)
        assert await latch.count_down() == 1
        through.hold_requests = True
        for ask, least, most in (
            (latch.count_down, 0.25, 2),
            (lambda: latch.wait(blocking_timeout=0), 0.25, 2),
            (lambda: latch.wait(blocking_timeout=0.1), 0.1, 0.1 + SLACK),
            (latch.wait, 0.9, 3),
        ):
            with elapsed() as took:
                await rejected(ask())
            assert least < took.seconds < most
        through.hold_requests = False


async def test_a_server_that_is_gone_ends_a_wait_after_the_ttl(
    own_server: OwnServer, connect: Connect
) -> None:
    server = await own_server()
    async with Session(connect(server)) as session:
        waiting = begin(Latch(session, "a", 2, ttl=1).wait())
        await waits(session)
        server.kill()
        with elapsed() as took, pytest.raises(BackendError):
            await waiting
        assert 0.5 < took.seconds < 3


@pytest.mark.leaves_keys("aiolocks:latch*", "aiolocks:ratelimit*")
@pytest.mark.parametrize("timeout", only([0.01, 0.2], 0.01))
async def test_a_server_that_needs_longer_than_the_limit_is_no_silent_one(
    connect: Connect, through: Proxy, timeout: float
) -> None:
    """From 0.1 s on, no answer is silence."""
    async with Session(connect(through)) as session:
        async with RateLimit(session, "warm", 1, per=1):
            through.delay = 0.5
        waits = (Latch(session, "a", 1).wait, RateLimit(session, "a", 1, per=1).acquire)
        for wait in waits:
            with pytest.raises(LockTimeoutError if timeout < 0.1 else BackendError) as caught:
                await wait(blocking_timeout=timeout)
            assert ("has not answered yet" in str(caught.value)) is (timeout < 0.1)


async def test_a_key_of_somebody_else_is_named(redis: Redis) -> None:
    await redis.set(KEY, "mine", px=60_000)
    for ask in (Latch(redis, "a", 1).count_down, Latch(redis, "a", 1).wait):
        assert KEY in str(await rejected(ask()))
    (info,) = await Session.of(redis).inspect("a")
    assert (info.kind, info.problem) == ("latch", "it is a string, not a hash")


# -- what is told --------------------------------------------------------------------------------------------


async def test_listeners_and_operators_see_it(redis: Redis) -> None:
    told: list[tuple[str, str]] = []

    class Listener:
        def __getattr__(self, name: str) -> Any:
            if not name.startswith("on_"):
                raise AttributeError(name)
            return lambda event: told.append((name, event.reason))

    async with Session(redis, listeners=[Listener()]) as session:
        latch = Latch(session, "a", 2)
        waiting = begin(latch.wait())
        await waits(session)
        (info,) = await session.inspect("a")
        assert (info.kind, info.value, info.problem) == ("latch", 2, "")
        with pytest.raises(LockTimeoutError):
            await latch.wait(blocking_timeout=0.05)
        gone = begin(latch.wait())
        await waits(session, 2)
        gone.cancel()
        await asyncio.wait({gone})
        await latch.count_down(2)
        await waiting
        assert session.statistics().timeouts == 1
    assert told == [
        ("on_waiting", ""),
        ("on_waiting", ""), ("on_waited", "timeout"), ("on_timeout", ""), ("on_not_acquired", "timeout"),
        ("on_waiting", ""), ("on_waited", "cancelled"), ("on_not_acquired", "cancelled"),
        ("on_waited", "granted"),
    ]  # fmt: skip
