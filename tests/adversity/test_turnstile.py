"""The turnstile: one winner a window, whoever dies, leaves, is cancelled or is not heard."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import BackendError, Session, SessionClosedError, Turnstile
from tests.adversity.tools import Formed, Keys, begin, elapsed, rejected, step
from tests.conftest import Connect
from tests.support.cancel import Shot, cancel_twice, sweep, sweep_scopes
from tests.support.processes import Workers, tell
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.waiting import eventually

ENTER = step("turnstile_enter", "forms", "fence")
END = step("turnstile_end")
KEY = "aiolocks:turnstile:{a}"


# -- numbers -------------------------------------------------------------------------------------------------


async def go_through(url: str, name: str, times: int) -> None:
    async with Redis.from_url(url) as redis:
        turnstile = Turnstile(redis, name, window=60)
        tell("ready")
        numbers = await asyncio.gather(*(turnstile.enter() for _ in range(times)))
        tell("through", numbers=numbers)


async def test_one_winner_of_all_processes_and_the_rest_are_counted(
    redis: Redis, server: Server, workers: Workers
) -> None:
    times = 100
    running = await workers.start_many(4, go_through, url=server.url, name="a", times=times)
    numbers = [number for worker in running for number in (await worker.told("through"))["numbers"]]
    assert sorted(numbers) == list(range(1, 4 * times + 1))
    await redis.delete(KEY)


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("own", [False, True], ids=["client", "session"])
async def test_windows_follow_each_other(connect: Connect, own: bool, decode: bool) -> None:
    client = connect(decode_responses=decode)
    turnstile = Turnstile(Session(client) if own else client, "a", window=timedelta(seconds=0.5))
    other = Turnstile(client, "b", window=60)
    try:
        assert [await turnstile.enter(), await turnstile.enter()] == [1, 2]
        assert await other.enter() == 1

        async def over() -> bool:
            return await turnstile.enter() == 1

        await eventually(over, within=5)
        assert await other.enter() == 2
    finally:
        await client.delete(KEY, "aiolocks:turnstile:{b}")
        if isinstance(turnstile._source, Session):
            await turnstile._source.aclose()


@pytest.mark.leaves_keys("aiolocks:turnstile:*")
async def test_memory_is_bounded_under_pressure(redis: Redis) -> None:
    turnstile = Turnstile(redis, "a", window=60)
    numbers = await asyncio.gather(*(turnstile.enter() for _ in range(2500)))
    assert sorted(numbers) == list(range(1, 2501))
    assert await redis.memory_usage(KEY) < 150 * 2500
    assert await redis.pttl(KEY) > 0


# -- as a context manager ------------------------------------------------------------------------------------


async def test_the_winners_exit_ends_the_window_and_no_others_does(redis: Redis, keys: Keys) -> None:
    turnstile = Turnstile(redis, "a", window=60)
    async with turnstile as n:
        assert n == 1
        async with Turnstile(redis, "a", window=60) as other:
            assert other == 2
        assert await turnstile.enter() == 3
        assert keys() == [KEY]
    assert keys() == []


async def test_the_exit_of_a_winner_that_took_too_long_ends_no_other_window(redis: Redis, keys: Keys) -> None:
    late, next_one = Turnstile(redis, "a", window=0.1), Turnstile(redis, "a", window=60)
    async with late as n:
        assert n == 1

        async def entered() -> int:
            return await next_one.enter() if not keys() else 0

        assert await eventually(entered, within=5) == 1
    assert await next_one.enter() == 2
    await redis.delete(KEY)


async def test_a_winner_that_is_stopped_for_longer_than_the_window_ends_no_other(
    redis: Redis, keys: Keys
) -> None:
    """Its own clock has not noticed: what counts is the token on the server."""
    async with Turnstile(redis, "a", window=60) as n:
        assert n == 1
        await redis.delete(KEY)
        assert await Turnstile(redis, "a", window=60).enter() == 1
    assert keys() == [KEY]
    await redis.delete(KEY)


async def test_tasks_share_one_object_and_each_leaves_what_it_entered(redis: Redis, keys: Keys) -> None:
    turnstile = Turnstile(redis, "a", window=60)
    inside: list[int] = []
    leave = asyncio.Event()

    async def go() -> None:
        async with turnstile as n:
            inside.append(n)
            if n == 1:
                await leave.wait()

    tasks = [begin(go()) for _ in range(5)]
    await eventually(lambda: sum(task.done() for task in tasks) == 4, within=5)
    assert sorted(inside) == [1, 2, 3, 4, 5]
    assert keys() == [KEY]
    leave.set()
    await asyncio.gather(*tasks)
    assert keys() == []
    assert not turnstile._entered


async def test_it_may_be_left_in_another_task_when_it_is_clear_what_is_meant(
    redis: Redis, keys: Keys
) -> None:
    turnstile = Turnstile(redis, "a", window=60)
    assert await asyncio.create_task(turnstile.__aenter__()) == 1
    await turnstile.__aexit__(None, None, None)
    assert keys() == []

    await asyncio.gather(*(asyncio.create_task(turnstile.__aenter__()) for _ in range(2)))
    with pytest.raises(RuntimeError, match="cannot tell which entry"):
        await turnstile.__aexit__(None, None, None)
    await redis.delete(KEY)


# -- cancelled -----------------------------------------------------------------------------------------------


@pytest.mark.leaves_keys  # of those who went through in the end
@pytest.mark.parametrize("shoot", [sweep, cancel_twice])
async def test_a_cancelled_enter_leaves_no_window_without_a_winner(
    client: Redis, keys: Keys, shoot: Any
) -> None:
    names: list[str] = []

    def enter() -> Coroutine[Any, Any, int]:
        names.append(f"a{len(names)}")
        return Turnstile(client, names[-1], window=60).enter()

    async def gone(_: Shot) -> None:
        await eventually(lambda: f"aiolocks:turnstile:{{{names[-1]}}}" not in keys(), within=5)

    assert await shoot(enter, after=gone)


@pytest.mark.parametrize("shoot", [sweep, cancel_twice, sweep_scopes])
async def test_cancelled_anywhere_between_entry_and_exit_the_window_ends(
    client: Redis, keys: Keys, shoot: Any
) -> None:
    turnstile = Turnstile(client, "a", window=60)

    async def work() -> None:
        async with turnstile:
            await asyncio.sleep(0)

    async def gone(_: Shot) -> None:
        await eventually(lambda: not keys(), within=5)
        assert not turnstile._entered

    assert await shoot(work, after=gone)


async def test_a_cancelled_enter_that_did_not_win_changes_nothing(
    client: Redis, redis: Redis, through: Proxy
) -> None:
    turnstile = Turnstile(client, "a", window=60)
    assert await turnstile.enter() == 1
    sent = through.count(ENTER)  # twice, if the server did not know the script
    through.delay = 0.05
    entering = begin(turnstile.enter())
    await through.saw(ENTER, count=sent + 1)
    entering.cancel()
    await asyncio.wait({entering})
    through.delay = 0
    await through.saw(END)
    assert await turnstile.enter() == 3
    await redis.delete(KEY)


# -- the network ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3])
async def test_a_lost_reply_costs_no_number(client: Redis, redis: Redis, through: Proxy, times: int) -> None:
    turnstile = Turnstile(client, "a", window=60)
    for number in range(1, 4):
        lost = [through.reset_after(ENTER, nth=nth + 1) for nth in range(times)]
        assert await turnstile.enter() == number
        assert all(event.is_set() for event in lost)
    await redis.delete(KEY)


async def test_a_lost_reply_to_the_end_is_no_error(client: Redis, through: Proxy, keys: Keys) -> None:
    async with Turnstile(client, "a", window=60):
        lost = through.reset_after(END)
    assert lost.is_set()
    assert keys() == []


@pytest.mark.leaves_keys
async def test_a_server_that_does_not_answer_is_an_error_in_time(
    connect: Connect, through: Proxy, form: str
) -> None:
    async with Session(connect(Formed(through, form)), command_timeout=0.3) as session:
        turnstile = Turnstile(session, "a", window=30)
        assert await turnstile.enter() == 1
        through.hold_requests = True
        with elapsed() as took:
            await rejected(turnstile.enter())
        assert 0.25 < took.seconds < 3
        through.hold_requests = False


@pytest.mark.leaves_keys
@pytest.mark.parametrize("raised", [None, ValueError("mine")])
async def test_an_end_that_is_not_confirmed_never_masks_what_the_body_raised(
    connect: Connect, through: Proxy, raised: Exception | None
) -> None:
    async with Session(connect(through), command_timeout=0.3) as session:
        with elapsed() as took, pytest.raises(BackendError if raised is None else ValueError):
            async with Turnstile(session, "a", window=30):
                through.hold_requests = True
                if raised is not None:
                    raise raised
        assert took.seconds < 3
        through.hold_requests = False


@pytest.mark.leaves_keys
async def test_an_end_that_is_not_confirmed_is_no_error_once_the_window_is_over(
    connect: Connect, through: Proxy
) -> None:
    async with Session(connect(through), command_timeout=30) as session:
        with elapsed() as took:
            async with Turnstile(session, "a", window=0.3):
                through.hold_requests = True
        assert took.seconds < 5
        through.hold_requests = False


async def test_a_key_of_somebody_else_is_named(redis: Redis) -> None:
    await redis.set(KEY, "mine", px=60_000)
    error = await rejected(Turnstile(redis, "a").enter())
    assert KEY in str(error)
    await redis.delete(KEY)


async def test_a_closed_session_lets_nobody_through(redis: Redis) -> None:
    session = Session(redis)
    await session.aclose()
    with pytest.raises(SessionClosedError):
        await Turnstile(session, "a").enter()
