"""The scripts of a rate limit: every branch, sent twice, out of memory, with foreign values.

`test_ratelimit_model` compares what they decide with a brute force.
"""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from aiolocks.kinds.ratelimit import (
    ADMITTED,
    AGAIN,
    FIRST,
    GONE,
    HEARING,
    KNOWN,
    ONLY_ASKED,
    PLACED,
    RATE_LIMITS,
    REFUSED,
    WAITING,
    WAITS,
    Answer,
    Bucket,
    RateLimitSteps,
    Settled,
)
from aiolocks.transport.steps.snapshots import Snapshot
from tests.lua.mutants import checks, compiled, fails, lines_left_out, unnoticed
from tests.lua.scripts import Scripts, about, ending, microseconds, shipped

pytestmark = pytest.mark.leaves_keys("aiolocks*:ratelimit*")

ME, OTHER, THIRD, FOURTH = "a1" * 16, "b2" * 16, "c3" * 16, "d4" * 16
MINUTE = 60_000_000
SLACK = 5_000_000
"""Microseconds that a busy machine may let pass between two steps."""
FOREVER_US = 10**15
KEEP = 10_000
SHARED = ("forms", "bells", "rates")
MADE_OF = {
    "ratelimit_acquire": ("rate_log", "ratelimit_straight", *SHARED, "ratelimit_acquire"),
    "ratelimit_settle": ("rate_log", *SHARED, "ratelimit_settle"),
    "ratelimit_reset": ("rate_log", *SHARED, "ratelimit_reset"),
}
"""The texts of each script, in their order."""


def near(value: int, expected: int) -> bool:
    """Whether a time that is told is that, less what has passed since."""
    return expected - SLACK <= value <= expected


class RateLimitScripts(Scripts):
    """The steps of rate limits; by default, of one that admits 3 at once and one a minute."""

    kind = "ratelimit"

    def bucket(self, limit: int = 3, per: float = 180.0, burst: int = 3) -> Bucket:
        return Bucket(self.name, limit, per, burst)

    def steps(self, session: str = "s", *buckets: Bucket) -> RateLimitSteps:
        return RateLimitSteps(self.prefix, session, buckets or (self.bucket(),), keep_ms=KEEP)

    def text(self, step: str) -> bytes:
        return b"".join(self.mutant.get(file) or shipped(file) for file in MADE_OF[step])

    async def do(self, command: Any) -> Any:
        words = command.words(as_eval=True)
        if self.mutant:
            step = next(step for step in MADE_OF if shipped(step) in words[1])
            words = (words[0], ending(self.text(step)), *words[2:])
        return command.parse(await self.run(words))

    async def ask(
        self,
        token: str,
        *amounts: int,
        how: str = FIRST,
        longest: int = 0,
        steps: RateLimitSteps | None = None,
    ) -> tuple[int, int]:
        """How one request stands, and µs until its moment."""
        answer = await self.answer(token, *amounts, how=how, longest=longest, steps=steps)
        ((status, wait),) = answer.requests
        return status, wait

    async def answer(
        self,
        token: str,
        *amounts: int,
        how: str = FIRST,
        longest: int = 0,
        steps: RateLimitSteps | None = None,
    ) -> Answer:
        answer: Answer = await self.do(
            (steps or self.steps()).acquire(how, longest, [(token, amounts or (1,))])
        )
        return answer

    async def wait(self, token: str, *amounts: int, steps: RateLimitSteps | None = None) -> tuple[int, int]:
        return await self.ask(token, *amounts, how=WAITING, longest=FOREVER_US, steps=steps)

    async def settle(self, token: str, *amounts: int, **kwargs: Any) -> Settled:
        settled: Settled = await self.do(kwargs.pop("steps", self.steps()).settle(token, amounts, **kwargs))
        return settled

    async def full(self) -> int:
        ((_, full),) = (await self.answer("0" * 32, how=ONLY_ASKED)).limits
        return full

    async def reset(self) -> Any:
        return await self.do(RATE_LIMITS.force(self.prefix, "ratelimit", self.name, Snapshot(1)))

    async def fields(self) -> list[bytes]:
        """Of the bucket: when it was written, permits and mixed waiters in the queue, sets of figures."""
        value = await self.redis.get(self.key("bucket"))
        return list(value.split())

    async def crowd(self, number: int, bell: bytes, permits: int = 1) -> None:
        """Waiters, one after the other, at the end of the queue."""
        tokens = [f"{at:032x}" for at in range(number)]
        entries = {bell + token.encode(): 4 * 10**15 + at for at, token in enumerate(tokens)}
        await self.redis.zadd(self.key("queue"), entries)
        far = await microseconds(self.redis) + 10**12
        waits = dict.fromkeys(tokens, f"{permits} {far} {far} 1")
        await self.redis.hset(self.key("waits"), mapping=waits)

    async def log(self) -> list[bytes]:
        found: list[bytes] = await self.redis.lrange(self.key("log"), 0, -1)
        return found

    async def put(self, bucket: str, *, back: int = 0) -> None:
        """Writes a bucket; `back`: µs by which the clock was set back since."""
        now = await microseconds(self.redis)
        await self.redis.set(self.key("bucket"), f"{now + back} {bucket}", px=3_600_000)


@pytest.fixture
def ratelimit(redis, prefix) -> RateLimitScripts:
    return RateLimitScripts(redis, prefix)


async def test_a_burst_is_admitted_at_once_and_then_each_has_its_place(ratelimit) -> None:
    told = [await ratelimit.wait(token) for token in (ME, OTHER, THIRD, FOURTH, "e5" * 16)]
    assert [status for status, _ in told] == [ADMITTED] * 3 + [WAITS] * 2
    assert near(told[3][1], MINUTE)
    assert near(told[4][1], 2 * MINUTE)
    assert near(await ratelimit.full(), 3 * MINUTE)  # only what is admitted is in it
    assert (await ratelimit.ask("f6" * 16))[0] == REFUSED


async def test_a_moment_that_is_too_late_is_refused_and_nothing_is_taken(ratelimit) -> None:
    await ratelimit.ask(ME, 3)
    state = await ratelimit.state()
    for how, longest in ((FIRST, 0), (WAITING, MINUTE - SLACK), (ONLY_ASKED, 0)):
        status, wait = await ratelimit.ask(OTHER, how=how, longest=longest)
        assert status == REFUSED
        assert near(wait, MINUTE)
    assert await ratelimit.state() == state
    assert (await ratelimit.ask(OTHER, how=WAITING, longest=MINUTE))[0] == WAITS


async def test_one_that_only_asks_takes_nothing(ratelimit) -> None:
    assert await ratelimit.ask(ME, how=ONLY_ASKED) == (REFUSED, 0)
    assert await ratelimit.everything() == []
    await ratelimit.ask(ME, 2)
    before = await ratelimit.state()
    other = ratelimit.steps("s", ratelimit.bucket(60, 60.0, 60))
    await ratelimit.ask(OTHER, how=ONLY_ASKED, steps=other)
    assert await ratelimit.state() == before


async def test_sent_again_it_is_the_same_request(ratelimit) -> None:
    assert await ratelimit.ask(ME, 3) == (ADMITTED, 0)
    assert await ratelimit.ask(ME, 3, how=KNOWN) == (ADMITTED, 0)
    place = await ratelimit.wait(OTHER)
    again = await ratelimit.ask(OTHER, how=AGAIN, longest=FOREVER_US)
    assert (place[0], again[0]) == (WAITS, WAITS)
    assert near(again[1], MINUTE)
    assert await ratelimit.redis.zcard(ratelimit.key("queue")) == 1
    assert (await ratelimit.redis.get(ratelimit.key("bucket"))).split()[1] == b"1"
    assert await ratelimit.ask(THIRD, how=KNOWN) == (REFUSED, pytest.approx(2 * MINUTE, abs=SLACK))


async def test_it_is_known_though_many_came_between(ratelimit) -> None:
    bucket = ratelimit.bucket(1_000_000, 1.0, 1_000_000)
    steps = ratelimit.steps("s", bucket)
    assert (await ratelimit.ask(ME, steps=steps))[0] == ADMITTED
    for number in range(400):
        await ratelimit.ask(f"{number:032x}", steps=steps)
    assert len(await ratelimit.log()) == 401
    assert await ratelimit.ask(ME, how=KNOWN, steps=steps) == (ADMITTED, 0)
    assert len(await ratelimit.log()) == 401


async def test_of_the_log_what_is_too_old_goes_and_the_newest_stay(ratelimit) -> None:
    now = await microseconds(ratelimit.redis)
    old = [f"{number:032x} 1 {now - 20_000_000}" for number in range(319)]
    await ratelimit.redis.rpush(ratelimit.key("log"), *old)
    await ratelimit.put("0 0 60000000.0 3 0 0")
    await ratelimit.ask(ME)
    assert len(await ratelimit.log()) == 256
    assert (await ratelimit.log())[-1].startswith(ME.encode())
    assert about(await ratelimit.redis.pttl(ratelimit.key("log")), 60_000 + 180_000)
    assert about(await ratelimit.redis.pttl(ratelimit.key("bucket")), 60_000 + KEEP)


async def test_a_waiter_with_nobody_before_it_is_admitted_shortly_before_its_moment(ratelimit) -> None:
    steps = ratelimit.steps("s", ratelimit.bucket(100, 1.0, 1))
    assert (await ratelimit.ask(ME, steps=steps))[0] == ADMITTED
    await ratelimit.redis.delete(ratelimit.key("bucket"))
    now = await microseconds(ratelimit.redis)
    await ratelimit.redis.set(
        ratelimit.key("bucket"), f"{now + 1_000_000} 0 0 10000.0 1 10000 10000", px=60_000
    )
    status, wait = await ratelimit.wait(OTHER, steps=steps)  # by a clock that was set back: exactly that long
    assert (status, wait) == (ADMITTED, 10_000)
    assert (await ratelimit.wait(THIRD, steps=steps))[0] == ADMITTED  # 20 ms at most
    status, _ = await ratelimit.wait(FOURTH, steps=steps)
    assert status == WAITS or await microseconds(ratelimit.redis) > now + 10_000  # its moment comes nearer


async def test_a_place_that_is_left_is_free_and_those_behind_move_up(ratelimit) -> None:
    theirs = ratelimit.steps("t")
    await ratelimit.ask(ME, 3)
    await ratelimit.wait(OTHER, 2)
    assert near((await ratelimit.wait(THIRD, steps=theirs))[1], 3 * MINUTE)
    settled = await ratelimit.settle(OTHER, 0, last=True)
    assert settled.known == 1
    assert settled.rung == [theirs.bell]
    assert await ratelimit.redis.get(theirs.bell) == b"rung"
    assert await ratelimit.redis.exists(ratelimit.steps().bell) == 0
    answer = await ratelimit.answer(THIRD, how=HEARING, longest=FOREVER_US, steps=theirs)
    assert near(answer.requests[0][1], MINUTE)
    assert answer.hung
    assert await ratelimit.redis.get(theirs.bell) == b""
    assert (await ratelimit.settle(OTHER, 0)).known == 0
    assert (await ratelimit.ask(OTHER, how=PLACED, longest=FOREVER_US))[0] == GONE  # it makes no place


async def test_a_dead_waiter_is_passed_and_forgotten(ratelimit) -> None:
    theirs = ratelimit.steps("t")
    await ratelimit.ask(ME, 3)
    await ratelimit.wait(OTHER, 3, steps=theirs)
    await ratelimit.wait(THIRD)
    await ratelimit.redis.delete(theirs.bell)
    answer = await ratelimit.answer(FOURTH, how=WAITING, longest=FOREVER_US)
    assert near(answer.requests[0][1], 2 * MINUTE)
    assert ratelimit.steps().bell in answer.notes  # the first one comes earlier than it knows
    assert await ratelimit.redis.hlen(ratelimit.key("waits")) == 2
    assert near((await ratelimit.ask(THIRD, how=PLACED, longest=FOREVER_US))[1], MINUTE)


async def test_a_request_passes_waiters_only_if_there_are_permits_for_all(ratelimit) -> None:
    await ratelimit.wait(ME, 3)
    await ratelimit.wait(OTHER, 2)
    await ratelimit.put("2 0 60000000.0 3 0 0")  # refilled, and the waiter has not asked yet
    assert await ratelimit.ask(THIRD) == (ADMITTED, 0)
    assert (await ratelimit.ask(FOURTH))[0] == REFUSED
    assert await ratelimit.ask(OTHER, 2, how=PLACED, longest=FOREVER_US) == (ADMITTED, 0)
    assert await ratelimit.redis.exists(ratelimit.key("queue"), ratelimit.key("waits")) == 0


async def test_waiters_of_a_session_ask_together(ratelimit) -> None:
    await ratelimit.ask(ME, 3)
    for token in (OTHER, THIRD, FOURTH):
        await ratelimit.wait(token)
    await ratelimit.put("3 0 60000000.0 3 60000000 60000000")
    command = ratelimit.steps().acquire(
        f"{HEARING}l", FOREVER_US, [(token, (1,)) for token in (OTHER, THIRD, FOURTH)]
    )
    answer = await ratelimit.do(command)
    assert [status for status, _ in answer.requests] == [ADMITTED, ADMITTED, WAITS]
    assert about(await ratelimit.redis.pttl(ratelimit.steps().bell), 2_000)
    await ratelimit.put("1 0 60000000.0 3 0 0")
    command = ratelimit.steps().acquire(f"{PLACED}l", FOREVER_US, [(FOURTH, (1,))])
    assert (await ratelimit.do(command)).requests == [(ADMITTED, 0)]
    assert await ratelimit.redis.exists(ratelimit.steps().bell) == 0  # with the last of them


async def test_two_limits_admit_together_or_not_at_all(ratelimit) -> None:
    day = ratelimit.another()
    both = ratelimit.steps("s", ratelimit.bucket(), day.bucket(2, 120.0, 2))
    assert await ratelimit.ask(ME, 1, 1, steps=both) == (ADMITTED, 0)
    assert await ratelimit.ask(OTHER, 0, 1, steps=both) == (ADMITTED, 0)
    before = await ratelimit.state(), await day.state()
    status, wait = await ratelimit.ask(THIRD, 1, 1, steps=both)
    assert (status, near(wait, MINUTE)) == (REFUSED, True)
    assert (await ratelimit.state(), await day.state()) == before
    assert (await ratelimit.wait(THIRD, 1, 1, steps=both))[0] == WAITS
    assert await ratelimit.redis.zcard(day.key("queue")) == 1
    # The day holds it up: a request of the other limit passes it, unless it takes what that one needs.
    assert await ratelimit.ask(FOURTH, 1) == (ADMITTED, 0)
    assert (await ratelimit.settle(THIRD, 0, 0, steps=both)).known == 2
    assert await ratelimit.redis.exists(ratelimit.key("queue"), day.key("queue")) == 0
    await day.clear()


async def test_less_is_given_back_and_more_is_owed(ratelimit) -> None:
    await ratelimit.ask(ME, 3)
    assert near((await ratelimit.settle(ME, 1)).limits[0][1], MINUTE)
    assert near((await ratelimit.settle(ME, 1)).limits[0][1], MINUTE)
    assert near((await ratelimit.settle(ME, 9)).limits[0][1], 9 * MINUTE)
    assert near((await ratelimit.settle(ME, 2)).limits[0][1], 2 * MINUTE)
    assert near((await ratelimit.settle(ME, 0)).limits[0][1], 0)
    assert (await ratelimit.settle(OTHER, 5)).known == 0


async def test_what_was_idle_since_is_not_given_back(ratelimit) -> None:
    await ratelimit.ask(ME, 3)
    await ratelimit.put("0 0 60000000.0 3 0 0")
    await ratelimit.ask(OTHER, 3)
    now = await microseconds(ratelimit.redis)
    await ratelimit.redis.lset(ratelimit.key("log"), 0, f"{ME} 3 {now - 4 * MINUTE}")
    assert near((await ratelimit.settle(ME, 0)).limits[0][1], 3 * MINUTE)


async def test_a_clock_that_was_set_back_keeps_what_is_taken(ratelimit) -> None:
    await ratelimit.ask(ME, 2)
    await ratelimit.put("0 0 60000000.0 3 120000000 120000000", back=60 * MINUTE)
    status, wait = await ratelimit.ask(OTHER, 2)
    assert (status, wait) == (REFUSED, MINUTE)
    assert near(await ratelimit.full(), 2 * MINUTE)  # which counts from now on
    assert (await ratelimit.log())[-1].startswith(b"0" * 32)
    assert near((await ratelimit.settle(ME, 0)).limits[0][1], 2 * MINUTE)  # nobody knows what was idle


async def test_two_sets_of_figures_both_hold_until_one_is_not_used(ratelimit) -> None:
    other = ratelimit.steps("s", ratelimit.bucket(60, 60.0, 60))
    await ratelimit.ask(ME, 2)
    answer = await ratelimit.answer(OTHER, 1, steps=other)
    assert answer.requests == [(ADMITTED, 0)]
    assert answer.notes == [b"b 1 60000000.0 3"]
    status, wait = await ratelimit.ask(THIRD, 1, steps=other)
    assert (status, near(wait, MINUTE)) == (REFUSED, True)
    status, wait = await ratelimit.ask(THIRD, 5, steps=other)  # more than the burst of the other set
    assert (status, near(wait, 3 * MINUTE)) == (REFUSED, True)
    bucket = (await ratelimit.redis.get(ratelimit.key("bucket"))).split(b" ")
    assert bucket[5:8:2] == [b"180000000", b"120000000"] or near(float(bucket[5]), 3 * MINUTE)
    bucket[6] = b"0"  # nobody has brought these figures for as long as their backlog was
    await ratelimit.redis.set(ratelimit.key("bucket"), b" ".join(bucket), px=60_000)
    answer = await ratelimit.answer(FOURTH, 1, steps=other)
    assert answer.requests == [(ADMITTED, 0)]
    assert answer.notes == [b"d 1 60000000.0 3"]


async def test_a_reset_fills_the_bucket_and_wakes_who_waits(ratelimit) -> None:
    assert not (await ratelimit.reset()).freed
    await ratelimit.ask(ME, 3)
    await ratelimit.wait(OTHER)
    released = await ratelimit.reset()
    assert (released.freed, list(released.rung)) == (True, [ratelimit.steps().bell])
    assert await ratelimit.ask(OTHER, how=PLACED, longest=FOREVER_US) == (ADMITTED, 0)
    assert (await ratelimit.reset()).freed
    assert await ratelimit.redis.exists(ratelimit.key("bucket"), ratelimit.key("log")) == 0
    await ratelimit.redis.zadd(ratelimit.key(), {"seen": 1})  # of a former version
    assert (await ratelimit.reset()).freed
    assert await ratelimit.everything() == []


async def test_a_bell_that_is_left_over_lasts_for_a_new_waiter(ratelimit) -> None:
    await ratelimit.ask(ME, 3)
    await ratelimit.redis.set(ratelimit.steps().bell, "", px=300)
    answer = await ratelimit.answer(OTHER, how=WAITING, longest=FOREVER_US)
    assert answer.hung
    assert about(await ratelimit.redis.pttl(ratelimit.steps().bell), 2_000)
    assert not (await ratelimit.answer(THIRD, how=WAITING, longest=FOREVER_US)).hung


async def test_foreign_values_are_named_and_stay(ratelimit) -> None:
    for number, (role, write) in enumerate(
        (
            ("bucket", lambda key: ratelimit.redis.set(key, "mine")),
            ("bucket", lambda key: ratelimit.redis.sadd(key, "mine")),
        )
    ):
        await write(ratelimit.key(role))
        for ask in (ratelimit.ask, ratelimit.wait, ratelimit.settle):
            with pytest.raises(ResponseError, match="FOREIGN 1"):
                await ask(ME, 1)
        assert await ratelimit.everything() == [ratelimit.key(role)], number
        await ratelimit.clear()
    await ratelimit.put("1 0 60000000.0 3 0 0")
    await ratelimit.redis.zadd(ratelimit.key("queue"), {"mine": 1})
    with pytest.raises(ResponseError, match="FOREIGN 3"):
        await ratelimit.wait(ME)
    await ratelimit.clear()
    await ratelimit.redis.rpush(ratelimit.key("log"), "mine")
    with pytest.raises(ResponseError, match="FOREIGN 2"):
        await ratelimit.settle(ME, 0)


async def test_a_place_is_given_up_on_a_server_that_is_out_of_memory(own_server, connect, prefix) -> None:
    server = await own_server(arguments=("--maxmemory-policy", "noeviction"))
    ratelimit = RateLimitScripts(connect(server), prefix)
    await ratelimit.ask(ME, 3)
    await ratelimit.wait(OTHER)
    await ratelimit.redis.config_set("maxmemory", 1)

    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await ratelimit.wait(THIRD)
    assert (await ratelimit.settle(OTHER, 0)).known == 1
    assert (await ratelimit.settle(ME, 0)).known == 1


NEEDED = (
    *("eval", "del", "get", "hdel", "hget", "hlen", "hmget", "hset", "lrange", "lset", "ltrim", "persist"),
    *("pexpire", "pttl", "rpush", "set", "time", "zadd", "zrange", "zrem", "zscore"),
)


async def test_it_needs_these_commands_and_no_more(own_server, connect, acl) -> None:
    server = await own_server()
    admin, user = connect(server), connect(server, username="locks", password="secret")

    async def works(*commands: str) -> bool:
        await admin.flushall()
        rules = ["reset", "on", ">secret", "-@all", "~aiolocks:ratelimit*"]
        await admin.execute_command(
            "ACL", "SETUSER", "locks", *rules, *(f"+{command}" for command in commands)
        )
        ratelimit = RateLimitScripts(user, "aiolocks")
        theirs = ratelimit.steps("t")
        try:
            now = await microseconds(admin)
            await admin.rpush(ratelimit.key("log"), *[f"{ME} 1 {now - 20_000_000}"] * 319)
            await ratelimit.ask(ME)
            await ratelimit.ask(OTHER, 2)
            await ratelimit.wait(THIRD)
            await ratelimit.wait(FOURTH, steps=theirs)
            await ratelimit.ask("e5" * 16, how=AGAIN, longest=FOREVER_US)
            await ratelimit.settle("e5" * 16, 0)
            await ratelimit.ask(THIRD, how=HEARING, longest=FOREVER_US)
            await ratelimit.settle(THIRD, 0, last=True)
            await ratelimit.settle(OTHER, 1)
            return await admin.get(theirs.bell) == b"rung"
        except (NoPermissionError, ResponseError):
            return False

    assert await works(*NEEDED)
    for word in NEEDED:
        assert (word, await works(*(other for other in NEEDED if other != word))) == (word, False)
    await admin.flushall()  # a step that was cut off in the middle


async def test_what_was_admitted_is_known_and_told_on_the_long_way_too(ratelimit) -> None:
    answer = await ratelimit.answer(ME, 2, how=KNOWN)
    assert answer.requests == [(ADMITTED, 0)]
    assert answer.limits[0][0] == 1
    assert await ratelimit.ask(ME, 2, how=KNOWN) == (ADMITTED, 0)
    assert len(await ratelimit.log()) == 1
    fields = await ratelimit.fields()
    assert fields[5] == fields[6] == b"120000000"  # its figures hold for as long as it has a backlog
    now = await microseconds(ratelimit.redis)
    await ratelimit.redis.rpush(ratelimit.key("log"), *[f"{OTHER} 0 {now - 20_000_000}"] * 318)
    await ratelimit.ask(THIRD, how=KNOWN)
    assert len(await ratelimit.log()) == 320  # the oldest is not old
    await ratelimit.redis.lset(ratelimit.key("log"), 0, f"{ME} 2 {now - 20_000_000}")
    await ratelimit.redis.rpop(ratelimit.key("log"))
    await ratelimit.put("0 0 60000000.0 3 0 0")
    await ratelimit.ask(FOURTH, how=KNOWN)
    assert len(await ratelimit.log()) == 256


async def test_of_a_short_log_nothing_goes(ratelimit) -> None:
    now = await microseconds(ratelimit.redis)
    await ratelimit.redis.rpush(ratelimit.key("log"), *[f"{OTHER} 1 {now - 20_000_000}"] * 99)
    await ratelimit.ask(ME, how=KNOWN)
    assert len(await ratelimit.log()) == 100


async def test_it_refills(ratelimit) -> None:
    await ratelimit.put("0 0 60000000.0 3 180000000 =", back=-MINUTE)
    assert await ratelimit.ask(ME) == (ADMITTED, 0)
    assert (await ratelimit.ask(OTHER))[0] == REFUSED


async def test_keys_last_for_as_long_as_they_are_needed(ratelimit) -> None:
    await ratelimit.ask(ME, 3)
    await ratelimit.wait(OTHER)
    assert about(await ratelimit.redis.pttl(ratelimit.key("bucket")), 240_000 + KEEP)
    assert about(await ratelimit.redis.pttl(ratelimit.key("log")), 240_000 + 180_000)
    for role in ("queue", "waits"):
        assert about(await ratelimit.redis.pttl(ratelimit.key(role)), 10_000)
    bell = ratelimit.steps().bell
    await ratelimit.redis.pexpire(bell, 700)
    await ratelimit.ask(OTHER, how=HEARING, longest=FOREVER_US)
    assert about(await ratelimit.redis.pttl(bell), 2_000)


async def test_nobody_owes_more_than_ten_years(ratelimit) -> None:
    longest = 315_360_000 * 10**6
    steps = ratelimit.steps("s", ratelimit.bucket(1, 315_360_000.0, 1))
    await ratelimit.ask(ME, steps=steps)
    await ratelimit.settle(ME, 9, steps=steps)
    assert near(float((await ratelimit.fields())[5]), longest)
    assert (await ratelimit.wait(OTHER, steps=steps))[0] == WAITS
    assert about(await ratelimit.redis.pttl(ratelimit.key("bucket")), 2 * longest // 1000 + KEEP)


async def test_a_queue_that_is_gone_does_not_count(ratelimit) -> None:
    await ratelimit.put("5 2 60000000.0 3 0 0")
    assert await ratelimit.ask(ME, 3) == (ADMITTED, 0)
    assert (await ratelimit.fields())[1:3] == [b"0", b"0"]


async def test_waiters_count_though_their_bucket_is_gone(ratelimit) -> None:
    await ratelimit.ask(ME, 3)
    await ratelimit.wait(OTHER)
    await ratelimit.put("0 0 60000000.0 3 180000000 180000000")
    assert (await ratelimit.ask(OTHER, how=HEARING, longest=FOREVER_US))[0] == WAITS
    assert (await ratelimit.fields())[1] == b"1"


async def test_one_in_the_middle_asks_alone(ratelimit) -> None:
    await ratelimit.ask(ME, 3)
    for token in (OTHER, THIRD, FOURTH):
        await ratelimit.wait(token)
    status, wait = await ratelimit.ask(THIRD, how=HEARING, longest=FOREVER_US)
    assert (status, near(wait, 2 * MINUTE)) == (WAITS, True)


async def test_behind_the_waiters_that_a_step_reads_are_others(ratelimit) -> None:
    theirs = ratelimit.steps("t")
    await ratelimit.wait(ME, 3)
    await ratelimit.wait(OTHER, 2, steps=theirs)
    await ratelimit.redis.delete(theirs.bell)
    await ratelimit.crowd(300, ratelimit.steps().bell)
    await ratelimit.redis.set(ratelimit.steps().bell, "")
    await ratelimit.put("302 0 60000000.0 3 180000000 180000000")
    status, wait = await ratelimit.wait(FOURTH)
    assert (status, near(wait, 301 * MINUTE)) == (WAITS, True)
    assert (await ratelimit.fields())[1] == b"301"
    status, wait = await ratelimit.ask(FOURTH, how=HEARING, longest=FOREVER_US)
    assert status == WAITS


async def test_a_new_waiter_after_the_dead_is_the_first(ratelimit) -> None:
    theirs = ratelimit.steps("t")
    await ratelimit.ask(ME, 3)
    await ratelimit.wait(OTHER, steps=theirs)
    await ratelimit.redis.delete(theirs.bell)
    status, wait = await ratelimit.wait(THIRD)
    assert (status, near(wait, MINUTE)) == (WAITS, True)


async def test_a_waiter_that_has_just_asked_is_not_told_to_ask(ratelimit) -> None:
    await ratelimit.ask(ME, 3)
    await ratelimit.wait(OTHER, 2)
    await ratelimit.put("2 0 60000000.0 3 120000000 120000000")
    answer = await ratelimit.answer(OTHER, 2, how=HEARING, longest=FOREVER_US)
    assert near(answer.requests[0][1], MINUTE)
    assert answer.notes == []


async def test_a_session_is_told_of_its_first_waiter_if_it_asks_for_others(ratelimit) -> None:
    await ratelimit.ask(ME, 3)
    await ratelimit.wait(OTHER, steps=ratelimit.steps("t"))
    for token in (THIRD, FOURTH):
        await ratelimit.wait(token)

    async def told(*tokens: str) -> list[bytes]:
        steps = ratelimit.steps()
        answer = await ratelimit.do(steps.acquire(PLACED, FOREVER_US, [(token, (1,)) for token in tokens]))
        return [note for note in answer.notes if note.startswith(b"t ")]

    assert await told(FOURTH) == [b"t " + THIRD.encode()]
    assert await told(THIRD) == []
    assert await told(THIRD, FOURTH) == []
    assert (await ratelimit.answer(ME, how=AGAIN, longest=FOREVER_US)).notes == []


async def test_a_place_is_given_up_and_what_was_admitted_stays(ratelimit) -> None:
    steps = ratelimit.steps()
    await ratelimit.ask(ME, 3)
    for token in (OTHER, THIRD):
        await ratelimit.wait(token)
    full = await ratelimit.full()
    assert (await ratelimit.do(steps.give_up_place(OTHER))).known == 1
    assert (await ratelimit.do(steps.give_up_place(OTHER))).known == 0
    assert (await ratelimit.do(steps.give_up_place(ME))).known == 0
    assert near(await ratelimit.full(), full)
    assert near((await ratelimit.ask(THIRD, how=PLACED, longest=FOREVER_US))[1], MINUTE)


async def test_a_bell_stays_while_its_session_has_waiters(ratelimit) -> None:
    mine, theirs = ratelimit.steps(), ratelimit.steps("t")
    await ratelimit.ask(ME, 3)
    await ratelimit.wait(OTHER)
    await ratelimit.wait(THIRD, steps=theirs)
    await ratelimit.wait(FOURTH)
    await ratelimit.settle(OTHER, 0, last=True)  # its session does not know of the other one yet
    assert await ratelimit.redis.exists(mine.bell) == 1
    await ratelimit.wait("e5" * 16)
    await ratelimit.redis.delete(theirs.bell)
    await ratelimit.put("3 0 60000000.0 3 120000000 120000000")
    command = mine.acquire(f"{PLACED}l", FOREVER_US, [(FOURTH, (1,))])
    assert (await ratelimit.do(command)).requests[0] == (ADMITTED, 0)
    assert await ratelimit.redis.exists(mine.bell) == 1


async def test_a_bell_stays_for_one_that_takes_a_new_place(ratelimit) -> None:
    mine = ratelimit.steps()
    await ratelimit.ask(ME, 3)
    await ratelimit.wait(OTHER, steps=ratelimit.steps("t"))
    await ratelimit.redis.set(mine.bell, "", px=2_000)
    command = mine.acquire(f"{PLACED}l", FOREVER_US, [(THIRD, (1,))])
    assert (await ratelimit.do(command)).requests[0][0] == GONE
    assert await ratelimit.redis.exists(mine.bell) == 1


async def test_a_waiter_is_woken_when_less_was_used(ratelimit) -> None:
    theirs = ratelimit.steps("t")
    await ratelimit.ask(ME, 3)
    for token in (OTHER, THIRD, FOURTH):
        await ratelimit.wait(token, steps=theirs)
    settled = await ratelimit.settle(ME, 0)
    assert (settled.known, settled.rung) == (1, [theirs.bell])
    assert about(await ratelimit.redis.pttl(theirs.bell), 2_000)


async def test_what_many_came_after_is_settled(ratelimit) -> None:
    steps = ratelimit.steps("s", ratelimit.bucket(1_000, 1000.0, 1_000))
    await ratelimit.ask(ME, 100, steps=steps)
    for number in range(1, 81):
        await ratelimit.ask(f"{number:032x}", steps=steps)
    settled = await ratelimit.settle(ME, 0, steps=steps)
    assert settled.known == 1
    assert near(settled.limits[0][1], 80_000_000)


async def test_mixed_waiters_are_counted(ratelimit) -> None:
    day = ratelimit.another()
    both = ratelimit.steps("s", ratelimit.bucket(), day.bucket())
    await day.ask(ME, 3)
    await ratelimit.wait(OTHER, 1, 1, steps=both)
    assert (await ratelimit.fields())[1:3] == [b"1", b"1"]
    await ratelimit.ask(OTHER, 1, 1, how=HEARING, longest=FOREVER_US, steps=both)
    assert (await ratelimit.fields())[1:3] == [b"1", b"1"]
    await ratelimit.ask(THIRD)
    assert (await ratelimit.fields())[1:3] == [b"1", b"1"]
    await ratelimit.settle(OTHER, 0, 0, steps=both)
    assert (await ratelimit.fields())[1:3] == [b"0", b"0"]
    await day.clear()


async def test_one_that_another_limit_holds_up_is_not_delayed(ratelimit) -> None:
    day = ratelimit.another()
    both = ratelimit.steps("s", ratelimit.bucket(), day.bucket())
    await day.ask(ME, 3)
    assert near((await ratelimit.wait(OTHER, 2, 1, steps=both))[1], MINUTE)
    status, wait = await ratelimit.ask(THIRD, 2)
    assert (status, near(wait, MINUTE)) == (REFUSED, True)
    assert (await ratelimit.ask(THIRD, 1, how=KNOWN))[0] == ADMITTED
    await day.clear()


async def test_of_several_that_are_held_up_the_first_to_come_is_looked_at_first(ratelimit) -> None:
    day, week = ratelimit.another(), ratelimit.another()
    with_day = ratelimit.steps("s", ratelimit.bucket(), day.bucket())
    with_week = ratelimit.steps("s", ratelimit.bucket(), week.bucket())
    await day.ask(ME, 3)
    await week.ask(ME, 3)
    assert near((await ratelimit.wait(OTHER, 1, 3, steps=with_week))[1], 3 * MINUTE)
    assert near((await ratelimit.wait(THIRD, 1, 1, steps=with_day))[1], MINUTE)
    assert await ratelimit.ask(FOURTH, 2) == (ADMITTED, 0)
    await day.clear()
    await week.clear()


async def test_a_reset_wakes_the_first_and_ends_what_a_former_version_left(ratelimit) -> None:
    first = ratelimit.steps("t")
    await ratelimit.ask(ME, 3)
    await ratelimit.wait(OTHER, steps=first)
    await ratelimit.wait(THIRD)
    await ratelimit.redis.zadd(ratelimit.key(), {"seen": 1})
    assert list((await ratelimit.reset()).rung) == [first.bell]
    assert await ratelimit.redis.get(first.bell) == b"rung"
    assert await ratelimit.redis.exists(ratelimit.key()) == 0


CHECKS = checks(globals(), "ratelimit")
FILES = {
    "rate_log": "ratelimit_acquire",
    "ratelimit_straight": "ratelimit_acquire",
    "rates": "ratelimit_acquire",
    "ratelimit_acquire": "ratelimit_acquire",
    "ratelimit_settle": "ratelimit_settle",
    "ratelimit_reset": "ratelimit_reset",
}
"""Each text, and a script that is made of it."""
SPARED = {
    "at, of, most, backlog = string.match(value, '^(%d+) 0 0 (%S+) (%d+) (%S+) %S+$')": "saves the long way",
    "for i = 1, number do is_asked[ARGV[first + (i - 1) * (limits + 1)]] = true end": "saves a look",
    "last = last - PART": "else it does not end, and what it has read fills the memory",
    "bucket.entries = nil": "saves work: the first waiter knows its moment",
    "redis.call('PERSIST', bell)  -- the event that a session with keyspace notifications hears": "is that",
    "if #bucket.pushed + #bucket.seats == 0 then redis.call('PEXPIRE', bucket.key, ms) end": (
        "matters to a server that is out of memory"
    ),
    "redis.call('HLEN', bucket.waits)  -- read before it is written: it may have moved, and then nothing is "
    "written": "matters in a cluster",
    "if hears and not over then redis.call('GET', bell) end  -- a write ends the tracking of the bell, and a "
    "read begins it again": "matters to a session that tracks",
}


def test_the_scripts_are_made_of_these_texts() -> None:
    steps = RateLimitSteps("p", "s", [Bucket("x", 3, 180.0, 3)], keep_ms=KEEP)
    for command, step in (
        (steps.acquire(WAITING, 0, [(ME, (1,))]), "ratelimit_acquire"),
        (steps.settle(ME, (0,)), "ratelimit_settle"),
        (RATE_LIMITS.force("p", "ratelimit", "x", Snapshot(1)), "ratelimit_reset"),
    ):
        assert command.words(as_eval=True)[1] == b"".join(map(shipped, MADE_OF[step]))


async def test_the_scripts_themselves_are_not_complained_of(redis, prefix) -> None:
    scripts = RateLimitScripts(redis, prefix)

    assert [name for name, check in CHECKS.items() if await fails(check, scripts)] == []


@pytest.mark.parametrize("file", FILES)
async def test_without_a_line_a_test_fails(redis, prefix, file) -> None:
    mutants = [(name, file, text) for name, text in lines_left_out(file, unless=SPARED)]
    living = await compiled(RateLimitScripts, redis, prefix, FILES[file], mutants)

    assert await unnoticed(RateLimitScripts, redis, prefix, living, among=CHECKS) == []
