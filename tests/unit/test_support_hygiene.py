"""The look around after every test sees what was left behind, and fails the test."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest
from redis import Redis as BlockingRedis

from aiolocks.testing import EmbeddedServer
from aiolocks.transport.libraries import REDIS
from tests.support.hygiene import (
    Inspector,
    Leavings,
    LoopWatch,
    TokenWatch,
    is_fence,
    pool_problems,
    settle,
)

NOTHING = Leavings()
FENCE = "aiolocks:lock.fence:{n}"


@pytest.fixture
async def server(own_server) -> EmbeddedServer:
    """A server that is each test's own: they empty it."""
    return await own_server()


@pytest.fixture
def inspector(server) -> Iterator[Inspector]:
    client = BlockingRedis.from_url(server.url)
    inspector = Inspector(client)
    inspector.begin()
    yield inspector
    client.flushall()
    client.close()


@pytest.fixture
async def watch() -> AsyncIterator[LoopWatch]:
    watch = LoopWatch()
    yield watch
    watch.close()


async def test_a_clean_server_has_no_problems(inspector, redis) -> None:
    await redis.set("key", "value", px=1000)
    await redis.delete("key")
    await redis.aclose()

    assert await settle(lambda: inspector.problems(NOTHING)) == []


async def test_begin_takes_what_is_there_as_given(inspector, redis, connect) -> None:
    await redis.set("key", "value")
    assert len(inspector.problems(NOTHING)) == 2, "a key and a connection"

    inspector.begin()

    assert inspector.problems(NOTHING) == []
    assert await redis.exists("key") == 0
    await connect().ping()
    assert inspector.problems(NOTHING) == ["connection to the server, of no name, last used for ping"]


@pytest.mark.parametrize(
    ("ttl", "leavings", "left"),
    [
        (None, NOTHING, r"key 'data', without a ttl"),
        (9000, NOTHING, r"key 'data', for \d{4} ms more"),
        (None, Leavings(anything=True), r"key 'data', without a ttl"),
        (9000, Leavings(anything=True), None),
        (None, Leavings(patterns=("da*",)), None),
        (9000, Leavings(patterns=("other",)), r"key 'data'"),
    ],
)
async def test_a_key_must_go_or_be_allowed_to_stay(inspector, redis, ttl, leavings, left) -> None:
    inspector.begin()
    await redis.set("data", "value", px=ttl)
    await redis.aclose()

    problems = await settle(lambda: inspector.problems(leavings), grace=0.05)

    assert len(problems) == (left is not None)
    assert all(re.match(left, problem) for problem in problems)


async def test_fencing_tokens_may_stay_but_not_for_ever(inspector, redis) -> None:
    await redis.set(FENCE, 1, px=9000)
    await redis.set(FENCE + "2", 1)
    await redis.aclose()

    assert await settle(lambda: inspector.problems(NOTHING), grace=0.05) == [f"key '{FENCE}2', without a ttl"]


async def test_every_database_is_looked_at(inspector, connect) -> None:
    async with connect(db=5) as redis:
        await redis.set("key", "value")

    assert await settle(lambda: inspector.problems(NOTHING), grace=0.05) == ["key 'key', without a ttl"]


async def test_keys_are_listed_without_fences_and_whatever_their_bytes(inspector, redis) -> None:
    for key in (FENCE, "b", b"a\xff"):
        await redis.set(key, "value", px=9000)

    assert inspector.keys() == ["a\\xff", "b"]


def test_a_name_does_not_make_a_fence() -> None:
    assert is_fence(FENCE)
    assert not is_fence("aiolocks:lock:{a.fence:b}")


async def test_on_a_server_of_others_only_new_keys_of_ours_count(server, redis) -> None:
    with BlockingRedis.from_url(server.url) as client:
        inspector = Inspector(client, prefix="ours")
        await redis.mset({"ours:old": 1, "theirs:old": 1})
        inspector.begin()
        await redis.mset({"ours:new": 1, "theirs:new": 1})

        assert inspector.problems(NOTHING) == ["key 'ours:new', without a ttl"]
        assert inspector.keys() == ["ours:new"]

        inspector.remove_keys()
        assert {*await redis.keys()} == {b"ours:old", b"theirs:old", b"theirs:new"}
        client.flushall()


async def test_a_connection_out_of_the_pool_is_a_problem(redis) -> None:
    assert pool_problems(redis) == []
    connection = await redis.connection_pool.get_connection(*REDIS.for_command)

    (problem,) = pool_problems(redis)
    assert problem.startswith("1 connections out of the pool of")

    await redis.connection_pool.release(connection)
    assert pool_problems(redis) == []


async def test_a_task_left_over_is_a_problem_until_it_has_ended(watch) -> None:
    task = asyncio.create_task(asyncio.sleep(60), name="left over")

    assert len(watch.problems()) == 1
    assert "left over" in watch.problems()[0]

    task.cancel()
    assert await settle(watch.problems) == []


async def test_closing_ends_tasks_left_over() -> None:
    watch = LoopWatch()
    task = asyncio.create_task(asyncio.sleep(60))

    watch.close()

    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_an_error_that_nobody_retrieved_is_a_problem(watch) -> None:
    async def fails() -> None:
        raise KeyError("nobody asks")

    task = asyncio.create_task(fails())
    await asyncio.wait({task})
    del task

    (problem,) = await settle(watch.problems, grace=0)
    assert "exception was never retrieved" in problem
    assert "KeyError: 'nobody asks'" in problem


async def test_an_error_in_a_cycle_is_found_too(watch) -> None:
    """The usual case: a traceback keeps its frame, and the frame its task."""

    async def fails() -> None:
        own = asyncio.current_task()
        raise KeyError(own)

    gc.disable()  # else it may be collected before
    try:
        task = asyncio.create_task(fails())
        await asyncio.wait({task})
        del task
        assert watch.problems() == []
        assert len(await settle(watch.problems, grace=0)) == 1
    finally:
        gc.enable()


async def test_the_handler_that_stood_before_is_put_back() -> None:
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()

    watch = LoopWatch()
    assert loop.get_exception_handler() is not before
    watch.close()

    assert loop.get_exception_handler() is before


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("holder 0123456789abcdef0123456789abcdef", True),
        ("0123456789abcdef0123456789abcdef:1763660000000000:{}", True),
        ("holder 012345… and 0123456789abcdef", False),
        ("script 0123456789abcdef0123456789abcdef01234567", False),
    ],
)
def test_a_token_in_the_log_is_a_problem(text, found) -> None:
    watch = TokenWatch()

    with watch.installed():
        logging.getLogger("aiolocks.lease").warning("%s", text)

    assert bool(watch.problems) == found
    logging.getLogger("aiolocks.lease").warning("0123456789abcdef0123456789abcdef")
    assert len(watch.problems) == found, "it looks only while it is installed"


def test_a_token_in_the_traceback_of_a_record_is_a_problem() -> None:
    watch = TokenWatch()

    with watch.installed():
        try:
            raise ValueError("0123456789abcdef0123456789abcdef")
        except ValueError:
            logging.getLogger("aiolocks").exception("renewing failed")

    assert len(watch.problems) == 1


async def test_settle_waits_for_what_goes_and_reports_what_stays() -> None:
    problems = ["goes", "stays"]
    asyncio.get_running_loop().call_later(0.02, problems.remove, "goes")

    assert await settle(lambda: list(problems), grace=0.1) == ["stays"]


DIRTY = """
import asyncio, logging, pytest
from aiolocks.transport.libraries import REDIS

async def test_clean(redis, keys):
    await redis.set("a", 1, px=9000)
    assert keys() == ["a"]
    await redis.delete("a")

async def test_key_without_ttl(redis):
    await redis.set("a", 1)

async def test_key(redis):
    await redis.set("a", 1, px=9000)

@pytest.mark.leaves_keys
async def test_key_allowed(redis):
    await redis.set("a", 1, px=9000)

@pytest.mark.leaves_keys("a")
async def test_own_key_allowed(redis):
    await redis.set("a", 1)

async def test_key_on_own_server(own_server):
    async with (await own_server()).client() as redis:
        await redis.set("a", 1)

async def test_dead_server_is_not_asked(own_server):
    server = await own_server()
    await server.client().set("a", 1)
    server.kill()

async def test_paused_server_is_not_asked(own_server):
    server = await own_server()
    await server.client().set("a", 1)
    server.pause()

left = []

async def test_connection(server):
    left.append(server.client())
    await left[0].ping()

async def test_connection_out_of_its_pool(redis):
    left.append(await redis.connection_pool.get_connection(*REDIS.for_command))

async def test_task():
    left.append(asyncio.create_task(asyncio.sleep(60)))

async def test_loop_error():
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)

async def test_token():
    logging.getLogger("aiolocks.lease").warning("0123456789abcdef0123456789abcdef")

async def test_a_test_behind_them_is_clean(redis):
    await redis.ping()

def test_without_a_loop():
    pass
"""


@pytest.mark.long
def test_a_test_that_leaves_something_behind_fails(pytester, pytestconfig, monkeypatch) -> None:
    """The fixtures as a whole: every dirty test errs at its end, and spoils none that follow."""
    monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath))
    monkeypatch.delenv("AIOLOCKS_TEST_SERVERS", raising=False)
    monkeypatch.delenv("AIOLOCKS_TEST_REDIS_URL", raising=False)
    pytester.makepyfile(DIRTY)

    result = pytester.runpytest_subprocess("-p", "tests.conftest", "-o", "asyncio_mode=auto", "-q", "-rE")

    erring = set(re.findall(r"^ERROR \S+::(\w+)", result.stdout.str(), re.MULTILINE))
    assert erring == {
        "test_key_without_ttl",
        "test_key",
        "test_key_on_own_server",
        "test_connection",
        "test_connection_out_of_its_pool",
        "test_task",
        "test_loop_error",
        "test_token",
    }
    assert result.parseoutcomes() == {"passed": 15, "errors": len(erring)}
