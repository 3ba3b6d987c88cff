"""`aiolocks show NAME`: everything about who holds it, and a status for scripts."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket

import pytest
from redis.asyncio import Redis

from aiolocks import (
    Combiner,
    FairLock,
    Leadership,
    Lock,
    MultiLock,
    ReentrantLock,
    RWLock,
    Schedule,
    Semaphore,
    Session,
    Turnstile,
)
from tests.cli.conftest import Aiolocks
from tests.cli.several import alone, several
from tests.support.waiting import eventually


async def test_in_full(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Lock(redis, "job", metadata={"order": 17, "by": "ann"}) as lease:
        ended = await alone(aiolocks, "show", "job")
    assert (ended.status, ended.err) == (0, "")
    head, *facts = ended.out.splitlines()
    assert head == "lock 'job': 0 waiting"
    found = {fact[2:17].strip(): fact[18:] for fact in facts}
    assert found.pop("remaining").endswith(" s")
    assert found.pop("held for").endswith(" s")
    assert re.fullmatch("[0-9a-f]{12}", found.pop("holder"))
    assert found.pop("task")
    assert found == {
        "host": socket.gethostname(),
        "pid": f"{os.getpid()}",
        "fencing token": f"{lease.fencing_token}",
        "+ order": "17",
        "+ by": "ann",
    }
    assert lease.token not in ended.out


async def test_the_waiters_in_the_order_of_the_queue(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Session(redis) as session, FairLock(session, "job"):
        waiting = [asyncio.create_task(FairLock(session, "job").acquire()) for _ in range(2)]
        another = await aiolocks("run", "job", "--fair", "--", "true")

        async def all_wait() -> bool:
            waiting = [waiter for info in await session.inspect("job") for waiter in info.waiting]
            return len(waiting) == 3 and all(waiter.pid for waiter in waiting)

        await eventually(all_wait, within=20)
        ended, document = await several(aiolocks, ("show", "job"), ("show", "job", "--json"))
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
    assert (await another.end()).status == 0
    host = socket.gethostname()
    said = re.findall(r"^  waiting         (\S+) pid (\d+) for \d+\.\d s$", ended.out, re.MULTILINE)
    assert said == [(host, f"{os.getpid()}")] * 2 + [(host, f"{another.pid}")]
    (lock,) = json.loads(document.out)["locks"]
    assert [(one["host"], one["pid"]) for one in lock["waiting"]] == [(host, int(pid)) for _, pid in said]
    assert all(0 < one["waited_for"] < 60 for one in lock["waiting"])


@pytest.mark.leaves_keys("aiolocks:*")
async def test_of_very_many_waiters_the_first_are_named(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Lock(redis, "job"):
        bells = {f"aiolocks:lock.bell.{number}:{{job}}": number for number in range(105)}
        await redis.zadd("aiolocks:lock.queue:{job}", bells)
        for bell in bells:
            await redis.set(bell, "", px=60_000)
        ended = await alone(aiolocks, "show", "job")
    head, *facts = ended.out.splitlines()
    assert head == "lock 'job': 105 waiting"
    assert sum("? pid ?" in fact for fact in facts) == 100
    assert facts[-1] == "  waiting         and 5 more"


async def test_every_kind_of_that_name_or_one(aiolocks: Aiolocks, redis: Redis) -> None:
    async with (
        Lock(redis, "*"),
        FairLock(redis, "*"),
        Semaphore(redis, "*", 3).acquire(2),
        RWLock(redis, "*").reader,
        Lock(redis, "another"),
    ):
        ended, one = await several(aiolocks, ("show", "*"), ("show", "*", "--kind", "multilock", "--json"))
        kinds = re.findall(r"^(\w+) '", ended.out, re.MULTILINE)
        assert kinds == ["fairlock", "lock", "rwlock", "semaphore"]
        assert "semaphore '*': 2 of 3 held, 0 waiting" in ended.out
        assert "2 of 3" in ended.out
        assert "  holds           reader" in ended.out
        document = json.loads(one.out)
        assert (document["name"], [lock["kind"] for lock in document["locks"]]) == ("*", ["lock"])


async def test_nobody_holds_it(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Lock(redis, "other"):
        nobody, other, document = await several(
            aiolocks, ("show", "job"), ("show", "other", "--kind", "fairlock"), ("show", "job", "--json")
        )
    said = "aiolocks: nobody holds 'job' under the prefix 'aiolocks'\n"
    assert (nobody.status, nobody.out, nobody.err) == (1, "", said)
    assert (other.status, other.out) == (1, "")
    assert document.status == 1
    assert json.loads(document.out) == {"prefix": "aiolocks", "name": "job", "locks": []}


@pytest.mark.leaves_keys("aiolocks:*")
async def test_what_keeps_a_name_from_being_had_holds_it(aiolocks: Aiolocks, redis: Redis) -> None:
    await redis.set("aiolocks:lock:{job}", "x")
    ended = await alone(aiolocks, "show", "job")
    assert ended.status == 0
    assert "  problem         what stands there was not written by aiolocks" in ended.out


async def test_wrong_command_lines(aiolocks: Aiolocks) -> None:
    missing, unknown = await several(aiolocks, ("show",), ("show", "a", "--kind", "b"))
    assert (missing.status, unknown.status, missing.out + unknown.out) == (2, 2, "")
    assert "Missing argument" in missing.err
    assert "kind must be one of lock" in unknown.err


async def test_a_name_that_no_lock_can_have(aiolocks: Aiolocks) -> None:
    """A byte that is no text, as Python hands it on."""
    for ended in await several(aiolocks, *((command, "a\udcff") for command in ("show", "release", "ls"))):
        assert (ended.status, ended.out) == (2, "")
        assert "cannot be encoded in UTF-8: 'a\\udcff'" in ended.err


async def test_a_name_of_a_multilock_says_so(aiolocks: Aiolocks, redis: Redis) -> None:
    async with MultiLock(redis, ["job", "other"]):
        ended = await alone(aiolocks, "show", "job")
    assert "\n  holds           one of 2 names\n" in ended.out


async def test_a_reentrant_lock_is_told_from_a_lock(aiolocks: Aiolocks, redis: Redis) -> None:
    async with ReentrantLock(redis, "job"):
        shown, freed = await several(aiolocks, ("show", "job"), ("release", "job"))
    assert shown.out.startswith("reentrantlock 'job': 0 waiting\n")
    assert "would free reentrantlock 'job', held by" in freed.err


@pytest.mark.leaves_keys("*:schedule.register:*", "*:schedule.history:*")
async def test_a_schedule_between_its_runs(aiolocks: Aiolocks, redis: Redis) -> None:
    nightly = Schedule(redis, "job", every=3600)

    @nightly
    async def job(tick: object) -> None: ...

    async with nightly:
        await nightly.trigger()
        ended, other, document = await several(
            aiolocks, ("show", "job"), ("show", "job", "--kind", "lock"), ("show", "job", "--json")
        )
    assert (ended.status, ended.err) == (
        1,
        "aiolocks: nobody holds 'job' under the prefix 'aiolocks'\n",
    )
    said = re.fullmatch(
        r"schedule 'job': 0 waiting\n"
        r"  state           next tick \S+ \d\d:\d0:00[+-]\d\d:\d\d, in .+\n"
        r"  last run        done, \S+ \S+, \d\.\d s, (\S+) pid (\d+)\n",
        ended.out,
    )
    assert said is not None
    assert said.groups() == (socket.gethostname(), f"{os.getpid()}")
    assert other.out == ""
    assert json.loads(document.out)["locks"] == []


@pytest.mark.leaves_keys("*:leadership.terms:*")
async def test_the_leaders_before(aiolocks: Aiolocks, redis: Redis) -> None:
    for number in range(5):
        async with Leadership(redis, "job", value=number):
            pass
    (nobody,) = await several(aiolocks, ("show", "job"))
    async with Leadership(redis, "job", value="now"):
        (leads,) = await several(aiolocks, ("show", "job"))
    assert (nobody.status, leads.status) == (1, 0)
    where = f"{socket.gethostname()} pid {os.getpid()} since "
    last = re.findall(rf"^  last leader     {where}.*, (\d)$", nobody.out, re.MULTILINE)
    earlier = re.findall(rf"^  earlier leader  {where}.*, (\d)$", leads.out, re.MULTILINE)
    assert last == earlier == ["4", "3", "2"]
    assert re.search(r'^  value           "now"$', leads.out, re.MULTILINE)


@pytest.mark.leaves_keys("*:schedule.*", "*:leadership.*")
async def test_what_is_not_ours_in_their_place_is_left_out(aiolocks: Aiolocks, redis: Redis) -> None:
    await redis.set("aiolocks:schedule.register:{job}", "x")
    await redis.hset("aiolocks:schedule.register:{other}", "claimed:ab", "x")
    await redis.zadd("aiolocks:leadership.terms:{job}", {"x": 1})
    async with Lock(redis, "job"), Lock(redis, "other"):
        for ended in await several(aiolocks, ("show", "job"), ("show", "other")):
            assert (ended.status, ended.err) == (0, "")
            assert re.findall(r"^(\w+) '", ended.out, re.MULTILINE)[0] == "lock"


async def test_a_combiner_says_how_many_items_wait(aiolocks: Aiolocks, redis: Redis) -> None:
    combiner = Combiner(redis, "job")
    await combiner.leave(1)
    await combiner.leave(2)
    shown, freed = await several(
        aiolocks,
        ("show", "job", "--kind", "combiner"),
        ("release", "job", "--kind", "combiner"),
    )
    await redis.delete(*(await redis.keys("aiolocks:combiner*")))
    assert shown.status == 1  # nobody holds it
    assert "  state           2 items wait\n" in shown.out
    assert "Traceback" not in freed.err


async def test_what_nobody_can_hold_is_shown_by_its_kind(aiolocks: Aiolocks, redis: Redis) -> None:
    await Turnstile(redis, "job", window=60).enter()
    shown, freed = await several(
        aiolocks,
        ("show", "job", "--kind", "turnstile"),
        ("release", "job", "--kind", "turnstile"),
    )
    await redis.delete("aiolocks:turnstile:{job}")
    assert shown.status == 0
    assert "  holds           1 went through\n" in shown.out
    assert freed.status == 2  # nor can it be freed


async def test_each_holder_stands_by_itself(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Session(redis) as session:
        seats = Semaphore(session, "seats", 3)
        async with seats.acquire(1), seats.acquire(2):
            waiting = asyncio.create_task(seats.acquire())

            async def waits() -> bool:
                return (await session.inspect("seats"))[0].waiters == 1

            await eventually(waits, within=10)
            ended = await alone(aiolocks, "show", "seats")
        await (await waiting).release()
    head, *holders = ended.out.split("  holder ")
    assert head == "semaphore 'seats': 3 of 3 held, 1 waiting\n"
    assert [re.findall(r"holds +(.*)", one) for one in holders] == [["1 of 3"], ["2 of 3"]]
    assert all("\n\n" in one for one in holders), "a blank line ends it"
    assert holders[-1].split("\n\n")[1].startswith("  waiting ")


async def test_a_number_that_cannot_be_read_is_not_shown(aiolocks: Aiolocks, redis: Redis) -> None:
    await redis.set("aiolocks:turnstile:{job}", "something else", px=60_000)
    ended = await alone(aiolocks, "show", "job")
    assert "it is a string, not a zset" in ended.out
    assert "None" not in ended.out
    await redis.delete("aiolocks:turnstile:{job}")
