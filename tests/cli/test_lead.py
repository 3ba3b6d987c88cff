"""`aiolocks lead NAME -- COMMAND`: one machine runs it, another one when that stops, dies or is cut off."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from aiolocks import Leadership, Session
from tests.adversity.tools import SLACK
from tests.cli.conftest import Aiolocks
from tests.cli.several import alone
from tests.conftest import OwnServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves_keys  # of those that were killed

Keys = Callable[..., list[str]]
LEADS = 'echo "in $AIOLOCKS_FENCING_TOKEN"; read x'


@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("kill -TERM $$", 143)])
async def test_the_exit_status_is_that_of_the_command(
    aiolocks: Aiolocks, redis: Redis, script: str, status: int
) -> None:
    ended = await (await aiolocks("lead", "job", "--", "sh", "-c", script)).end()
    assert (ended.status, ended.out, ended.err) == (status, "", "")
    assert await Leadership(redis, "job").leader() is None


async def test_the_next_one_runs_it_when_the_first_has_ended(aiolocks: Aiolocks, redis: Redis) -> None:
    stays = LEADS.replace("read x", "exec sleep 60")  # for any input
    first = await aiolocks("lead", "job", "--value", "first", "--", "sh", "-c", stays)
    await first.says("in")
    leader = await Leadership(redis, "job").leader()
    assert leader is not None
    assert (leader.value, leader.metadata) == ("first", {"command": "sh"})
    shown = await alone(aiolocks, "show", "job")
    assert 'value           "first"' in shown.out
    second = await aiolocks("lead", "job", "--", "sh", "-c", LEADS)
    await eventually(Leadership(redis, "job").candidates, within=20)
    first.send(signal.SIGTERM)  # it goes to the command
    assert (await first.end()).status == 143
    await second.says("in")
    later = await Leadership(redis, "job").leader()
    assert later is not None
    assert later.fencing_token > leader.fencing_token
    await second.type("\n")
    assert (await second.end()).status == 0


async def test_another_one_runs_it_when_the_first_is_killed(aiolocks: Aiolocks, redis: Redis) -> None:
    first = await aiolocks("lead", "job", "--ttl", "0.5", "--", "sh", "-c", LEADS)
    await first.says("in")
    async with Session(redis) as session:
        first.send(signal.SIGKILL)
        killed_at = time.monotonic()
        async with Leadership(session, "job", ttl=0.5, blocking_timeout=20):
            assert time.monotonic() - killed_at < 5


async def test_a_term_that_is_lost_ends_the_command_and_it_waits_for_its_turn_again(
    aiolocks: Aiolocks, redis: Redis
) -> None:
    script = 'trap "echo ended; exit 1" TERM; echo "in $AIOLOCKS_FENCING_TOKEN"; read x'
    invocation = await aiolocks("lead", "job", "--ttl", "0.6", "--", "sh", "-c", script)
    await invocation.says("in")
    before = await Leadership(redis, "job").leader()
    assert before is not None
    async with Session(redis) as session:
        await session.force_release("job")
    await invocation.says("ended\nin")
    after = await Leadership(redis, "job").leader()
    assert after is not None
    assert after.fencing_token > before.fencing_token
    await invocation.type("\n")
    ended = await invocation.end()
    assert ended.status == 0
    assert "the term of 'job' ends: Leadership 'job' was lost: it was released by force" in ended.err


async def test_a_signal_ends_the_waiting(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Leadership(redis, "job", value=json.dumps("me")):
        invocation = await aiolocks("lead", "job", "--", "echo", "ran")
        await eventually(Leadership(redis, "job").candidates, within=20)
        await invocation.warns("waiting for 'job', held by")
        invocation.send(signal.SIGTERM)
        ended = await invocation.end()
    assert (ended.status, ended.out) == (128 + signal.SIGTERM, "")
    assert "waiting for 'job', held by" in ended.err


async def test_cut_off_from_redis_the_command_is_killed_before_another_one_leads(
    aiolocks: Aiolocks, own_server: OwnServer
) -> None:
    server = await own_server()
    stubborn = 'trap "" TERM; echo in; while true; do sleep 0.05; done'
    invocation = await aiolocks(
        "lead", "job", "--redis", server.url, "--ttl", "1", "--grace", "0.4", "--", "sh", "-c", stubborn
    )
    await invocation.says("in")
    command = int((await (await aiolocks(program=("pgrep", "-P", str(invocation.pid)))).end()).out)
    server.pause()
    paused_at = time.monotonic()
    await eventually(lambda: not _runs(command), within=5)
    assert time.monotonic() - paused_at < 1 + SLACK
    await invocation.warns("the term of 'job' ends: it was not renewed, and ends in 0.")
    server.resume()
    invocation.out = ""
    await invocation.says("in")  # elected again
    invocation.send(signal.SIGKILL)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--", "no-such-program"), 127, "no-such-program: command not found"),
        ((), 2, "COMMAND is missing: put it after two dashes: lead NAME -- COMMAND"),
        (("--grace", "6", "--", "true"), 2, "grace must be at most half of ttl"),
        (("--redis", "redis://localhost:1", "--", "true"), 69, "'job': cannot use the server at localhost:1"),
    ],
)
async def test_what_cannot_be_run(
    aiolocks: Aiolocks, arguments: tuple[str, ...], status: int, said: str
) -> None:
    ended = await (await aiolocks("lead", "job", *arguments)).end()
    assert (ended.status, ended.out) == (status, "")
    assert said in ended.err
