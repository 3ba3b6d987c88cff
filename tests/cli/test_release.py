"""`aiolocks release NAME --force`: frees it whoever holds it, and does nothing without `--force`."""

from __future__ import annotations

import asyncio
import getpass
import json
import re
import socket

import pytest
from redis.asyncio import Redis

from aiolocks import FairLock, LeaseState, Lock, LockNotOwnedError, RateLimit, Semaphore, Session, Turnstile
from tests.cli.conftest import Aiolocks, gone
from tests.cli.several import alone, several


async def test_without_force_it_says_what_it_would_do(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Lock(redis, "job") as lease:
        ended = await alone(aiolocks, "release", "job")
        assert await lease.owned()
    assert (ended.status, ended.out) == (2, "")
    said = r"aiolocks: --force would free lock 'job', held by \S+ pid \d+ for \d+\.\d s: .*\n"
    assert re.fullmatch(said, ended.err)


async def test_with_force_the_next_one_gets_in_and_the_holder_is_ended(
    aiolocks: Aiolocks, redis: Redis
) -> None:
    holder = await aiolocks("run", "job", "--ttl", "1", "--", "sh", "-c", "echo in; exec sleep 60")
    await holder.says("in")

    ended = await alone(aiolocks, "release", "job", "--force")

    assert (ended.status, ended.err) == (0, "")
    assert re.fullmatch(r"freed lock 'job', held by \S+ pid \d+ for .*\n", ended.out)
    async with Lock(redis, "job", blocking_timeout=0):
        assert (await holder.end(within=30)).status == 76
    await gone(holder)


async def test_all_kinds_or_one(aiolocks: Aiolocks, redis: Redis) -> None:
    lock, fair = await Lock(redis, "job").acquire(), await FairLock(redis, "job").acquire()
    permits = [await Semaphore(redis, "job", 3).acquire() for _ in range(3)]
    ended = await alone(aiolocks, "release", "job", "--force", "--kind", "semaphore", "--json")
    document = json.loads(ended.out)
    assert (ended.status, document["name"]) == (0, "job")
    assert [(one["kind"], len(one["holders"])) for one in document["freed"]] == [("semaphore", 3)]
    assert [await one.owned() for one in permits] == [False] * 3
    assert (lock.state, await fair.owned()) == (LeaseState.HELD, True)

    ended = await alone(aiolocks, "release", "job", "--force")
    assert [line.split(" '")[0] for line in ended.out.splitlines()] == ["freed lock", "freed fairlock"]
    by = re.escape(f"it was released by force, by {getpass.getuser()}@{socket.gethostname()}")
    for lease in (lock, fair, *permits):
        with pytest.raises(LockNotOwnedError, match=by):
            await lease.release()


async def test_nobody_holds_it(aiolocks: Aiolocks, redis: Redis) -> None:
    await Turnstile(redis, "job", window=60).enter()  # which nobody holds
    async with FairLock(redis, "job"):
        command = ("release", "job", "--kind", "lock")
        for ended in await several(aiolocks, command, (*command, "--force")):
            said = "aiolocks: nobody holds 'job' under the prefix 'aiolocks'\n"
            assert (ended.status, ended.out, ended.err) == (1, "", said)
    command = ("release", "job", "--json")
    for ended in await several(aiolocks, command, (*command, "--force")):
        assert (ended.status, json.loads(ended.out)["freed"]) == (1, [])
    await redis.delete("aiolocks:turnstile:{job}")


async def test_frees_a_name_that_nobody_holds_and_nobody_gets_yet(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Lock(redis, "job", at_least=30):
        pass
    would, ended = await several(aiolocks, ("release", "job"), ("release", "job", "--force"))
    assert (would.status, ended.status) == (2, 0)
    assert "--force would free lock 'job' (kept until " in would.err
    assert ended.out.startswith("freed lock 'job' (kept until ")
    async with Lock(redis, "job", blocking_timeout=0):
        pass


@pytest.mark.leaves_keys("aiolocks:*")
async def test_frees_what_somebody_else_has_put_there(aiolocks: Aiolocks, redis: Redis) -> None:
    await redis.rpush("aiolocks:lock:{job}", "x")
    would, ended = await several(aiolocks, ("release", "job"), ("release", "job", "--force"))
    assert "(it is a list, not a string)" in would.err
    assert ended.out == "freed lock 'job' (it is a list, not a string)\n"
    async with Lock(redis, "job", blocking_timeout=0):
        pass


async def test_says_it_where_not_everything_can_be_written(aiolocks: Aiolocks, redis: Redis) -> None:
    lease = await Lock(redis, "💥\n").acquire()
    invocation = await aiolocks(
        "release", "💥\n", "--force", environment={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    )
    ended = await invocation.end()
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith(r"freed lock '\U0001f4a5\n', held by ")
    with pytest.raises(LockNotOwnedError):
        await lease.release()


async def test_wrong_command_lines(aiolocks: Aiolocks) -> None:
    wrong = {
        ("release", "--force"): "Missing argument",
        ("release", "", "--force"): "name must not be empty",
        ("release", "job", "--force", "--kind", "turnstile"): "kind must be one of lock",
    }
    for ended, says in zip(await several(aiolocks, *wrong), wrong.values(), strict=True):
        assert (ended.status, ended.out) == (2, "")
        assert says in ended.err


async def test_a_rate_limit_says_for_how_long_it_is_taken_and_how_many_wait(
    aiolocks: Aiolocks, redis: Redis
) -> None:
    async with Session(redis) as session:
        limit = RateLimit(session, "mails", 2, per=600)
        assert await limit.try_acquire(2)
        waiting = [asyncio.create_task(limit.acquire()) for _ in range(2)]

        async def waiters() -> int:
            return sum(info.waiters for info in await session.inspect("mails"))

        try:
            while await waiters() < 2:
                await asyncio.sleep(0.02)
            (info,) = await session.inspect("mails")
            # The two that wait come after 300 s and 600 s, and another one after 900 s.
            assert info.value == 0
            assert info.kept_for == pytest.approx(900, abs=60)

            listed = await alone(aiolocks, "ls")
            assert re.search(r" 1[45] min \d+ s +2  0 left taken until 20\S+ \S+\n", listed.out)
            shown = await alone(aiolocks, "show", "mails")
            assert (shown.status, shown.err) == (0, "")
            taken = r"taken until 20\S+ \S+, 1[45] min \d+ s more"
            assert re.match(rf"ratelimit 'mails': 2 waiting\n  {taken}\n  state +0 left\n", shown.out)

            is_so = r"ratelimit 'mails' \(taken for 1[45] min \d+ s, 0 left, 2 waiting\)"
            asked = await alone(aiolocks, "release", "mails", "--kind", "ratelimit")
            assert (asked.status, asked.out) == (2, "")
            assert re.search(f"--force would fill the bucket of {is_so}: more requests go on", asked.err)
            assert await waiters() == 2
            freed = await alone(aiolocks, "release", "mails", "--kind", "ratelimit", "--force")
            assert (freed.status, freed.err) == (0, "")
            assert re.fullmatch(f"freed {is_so}\n", freed.out)
            await asyncio.gather(*waiting)
        finally:
            for one in waiting:
                one.cancel()
        await session.force_release("mails", kind="ratelimit")


async def test_a_rate_limit_that_is_not_taken_can_be_filled(aiolocks: Aiolocks, redis: Redis) -> None:
    limit = RateLimit(redis, "mails", 2, per=600)
    assert await limit.try_acquire()
    asked = await alone(aiolocks, "release", "mails", "--kind", "ratelimit")
    assert "ratelimit 'mails' (1 left, 0 waiting)" in asked.err
    assert (await alone(aiolocks, "release", "mails", "--kind", "ratelimit", "--force")).status == 0
    assert (await limit.peek()).remaining == 2
