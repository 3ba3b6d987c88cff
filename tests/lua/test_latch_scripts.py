"""The scripts of a latch: every branch, said twice, by the wrong one.

A test that asks for `latch` alone is also run on mutants of the scripts, by the tests at the end.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from aiolocks import ConfigurationError
from aiolocks.kinds.latch import LatchSteps
from aiolocks.lock.wakeups import telling
from aiolocks.transport.request import MOST_KNOWN
from tests.lua.mutants import Mutation, checks, compiled, lines_left_out, surviving, unnoticed
from tests.lua.scripts import HOUR, MINUTE, Scripts, about

pytestmark = pytest.mark.leaves_keys("aiolocks*:latch*")

ME, OTHER, THIRD = "a1" * 16, "b2" * 16, "c3" * 16


class LatchScripts(Scripts):
    """The steps of a latch of 3."""

    kind = "latch"
    shared = ("forms", "fence", "latches", "once")

    @property
    def news(self) -> bytes:
        return self.key("news")

    @property
    def steps(self) -> bytes:
        return self.key("steps")

    async def wait(self, opened: str | bytes = "", *, made: int = 3, ttl: int = MINUTE) -> Any:
        through, left, *rest = await self.run(self.words("latch_wait", [self.key()], "", made, ttl, opened))
        if through >= 0:
            *rest, now = rest
            assert abs(int(now) / 1e6 - time.time()) < 60
        return [through, left, *rest]

    async def count_down(
        self,
        token: str,
        n: int = 1,
        *,
        made: int = 3,
        ttl: int = MINUTE,
        known: int = MINUTE,
        most: int = 100,
    ) -> Any:
        keys = [self.key(), self.steps, self.news]
        return await self.run(self.words("latch_count_down", keys, token, made, ttl, n, known, most))

    async def reset(
        self,
        token: str,
        count: int = 3,
        *,
        made: int = 3,
        ttl: int = MINUTE,
        known: int = MINUTE,
        most: int = 100,
    ) -> Any:
        keys = [self.key(), self.steps]
        return await self.run(self.words("latch_reset", keys, token, made, ttl, count, known, most))


@pytest.fixture
def latch(redis, prefix) -> LatchScripts:
    return LatchScripts(redis, prefix)


async def test_it_opens_at_0_and_stays_open(latch) -> None:
    assert await latch.wait() == [0, 3, b"0"]
    assert await latch.count_down(ME) == [0, 2]
    assert await latch.count_down(OTHER) == [0, 1]
    assert (await latch.wait())[:2] == [0, 1]
    assert await latch.count_down(THIRD) == [0, 0, latch.news]
    through, left, opened = await latch.wait()
    assert (through, left) == (1, 0)
    assert await latch.is_now(opened)
    assert await latch.count_down("d4" * 16, 7) == [0, 0]
    assert await latch.wait() == [1, 0, opened]


async def test_nothing_is_below_0(latch) -> None:
    assert await latch.count_down(ME, 5) == [0, 0, latch.news]
    assert (await latch.redis.hgetall(latch.key()))[b"left"] == b"0"


async def test_a_step_that_is_said_twice_counts_once(latch) -> None:
    assert [await latch.count_down(ME), await latch.count_down(ME)] == [[0, 2], [0, 2]]
    assert await latch.count_down(OTHER, 2) == [0, 0, latch.news]
    state = await latch.state()
    assert await latch.count_down(OTHER, 2) == [0, 0]
    assert await latch.state() == state
    assert await latch.reset(THIRD) == [0, 3]
    assert await latch.count_down(ME) == [0, 3]
    assert await latch.count_down("d4" * 16) == [0, 2]
    assert await latch.reset(THIRD) == [0, 2]
    assert await latch.count_down("e5" * 16) == [0, 1]
    assert await latch.count_down("d4" * 16) == [0, 1]


async def test_a_step_is_known_for_its_time_however_many_others_there_are(latch) -> None:
    tokens = [f"{number:032x}" for number in range(40)]
    for token in tokens:
        await latch.count_down(token, made=1000)
    assert await latch.count_down(tokens[0], made=1000) == [0, 960]
    assert await latch.reset(tokens[1], made=1000) == [0, 960]
    assert await latch.redis.zcard(latch.steps) == 40
    assert about(await latch.redis.pttl(latch.steps), MINUTE)
    seconds, micros = await latch.redis.time()
    ends = await latch.redis.zscore(latch.steps, tokens[0])
    assert about(ends - 1000 * seconds - micros // 1000, MINUTE)


@pytest.mark.parametrize("step", ["count_down", "reset"])
async def test_what_is_over_is_forgotten_and_its_key_lasts_for_the_others(latch, step: str) -> None:
    await forget(latch, step)


async def test_what_is_over_is_forgotten_by_the_mutants(latch) -> None:
    for step in ("count_down", "reset"):
        await latch.clear()
        await forget(latch, step)


async def forget(latch: LatchScripts, step: str) -> None:
    tokens = [f"{number:032x}" for number in range(5)]
    for token in tokens[:3]:
        await latch.count_down(token, made=1000, known=1)
    await asyncio.sleep(0.005)
    await latch.count_down(tokens[3], made=1000, known=HOUR)
    assert await latch.redis.zrange(latch.steps, 0, -1) in (
        [token.encode() for token in tokens[first:4]] for first in (2, 3)
    )
    await asyncio.sleep(0.002)
    await getattr(latch, step)(tokens[4], made=1000, known=MINUTE)
    assert await latch.redis.zrange(latch.steps, 0, -1) == [tokens[4].encode(), tokens[3].encode()]
    assert about(await latch.redis.pttl(latch.steps), HOUR)


async def test_no_step_is_forgotten_for_another_which_is_refused(latch) -> None:
    for step in (latch.count_down, latch.reset):
        await latch.clear()
        await latch.count_down(ME, most=2)
        await latch.count_down(OTHER, most=2)
        state = await latch.state()
        with pytest.raises(ResponseError, match="CROWDED 2"):
            await step(THIRD, most=2)
        assert await latch.state() == state
        assert await step(ME, most=2) == [0, 1]
        await latch.redis.zadd(latch.steps, {ME: 1})  # its time is over
        await step(THIRD, most=2)
        assert await latch.redis.zrange(latch.steps, 0, -1) == [OTHER.encode(), THIRD.encode()]


async def test_what_an_earlier_version_remembers_stays(latch) -> None:
    fields = {"made": 3, "left": 3, "opened": 0, "tokens": f",{OTHER}"}
    await latch.redis.hset(latch.key(), mapping=fields)
    await latch.count_down(ME)
    assert (await latch.redis.hgetall(latch.key()))[b"tokens"] == f",{OTHER}".encode()


async def test_who_has_waited_since_before_it_opened_goes_through(latch) -> None:
    _, _, before = await latch.wait()
    await latch.count_down(ME, 3)
    await latch.reset(OTHER)
    through, left, opened = await latch.wait(before)
    assert (through, left) == (1, 3)
    assert await latch.wait(opened) == [0, 3, opened]  # who came after the reset waits
    assert await latch.wait() == [0, 3, opened]
    await latch.count_down(THIRD, 3)
    assert (await latch.wait(opened))[0] == 1


async def test_each_opening_is_later_than_the_one_before(latch) -> None:
    await latch.count_down(ME, 3)
    ahead = 8_000_000_000_000_000
    await latch.redis.hset(latch.key(), "opened", ahead)
    await latch.reset(OTHER)
    await latch.count_down(THIRD, 3)
    assert (await latch.wait())[2] == str(ahead + 1).encode()


async def test_a_reset_counts_from_another_number(latch) -> None:
    assert await latch.reset(ME, 5) == [0, 5]
    assert await latch.count_down(OTHER, 2) == [0, 3]
    assert (await latch.wait())[:2] == [0, 3]


async def test_another_count_is_told_and_changes_nothing(latch) -> None:
    await latch.count_down(ME)
    state, ttl = await latch.state(), await latch.ttls()
    assert await latch.wait(made=4, ttl=HOUR) == [-1, b"3"]
    assert await latch.count_down(OTHER, made=4, ttl=HOUR) == [-1, b"3"]
    assert await latch.reset(OTHER, made=4, ttl=HOUR) == [-1, b"3"]
    assert await latch.state() == state
    assert await latch.redis.pttl(latch.key()) <= ttl[latch.key()]


@pytest.mark.parametrize("step", ["wait", "count_down", "reset"])
async def test_each_step_keeps_it_and_never_for_less(latch, step: str) -> None:
    argument = "" if step == "wait" else ME
    await getattr(latch, step)(argument)
    assert await latch.lasts(latch.key(), MINUTE)
    await getattr(latch, step)(argument, ttl=HOUR)
    assert await latch.lasts(latch.key(), HOUR)
    await getattr(latch, step)(argument, ttl=MINUTE)
    assert await latch.lasts(latch.key(), HOUR)


async def test_each_step_keeps_a_latch_of_the_mutants(latch) -> None:
    for step, argument in ((latch.wait, ""), (latch.count_down, ME), (latch.reset, ME)):
        await latch.clear()
        await step(argument)
        assert about(await latch.redis.pttl(latch.key()), MINUTE)
        await step(argument, ttl=HOUR)
        assert about(await latch.redis.pttl(latch.key()), HOUR)
        await step(argument, ttl=MINUTE)
        assert about(await latch.redis.pttl(latch.key()), HOUR)


async def test_who_waits_hears_of_the_opening_and_of_nothing_else(latch) -> None:
    async with latch.listening() as ear:
        await ear.say("CLIENT", "CACHING", "YES")
        await ear.say("GET", latch.news)
        await latch.count_down(ME, 2)
        await latch.reset(OTHER)
        assert await ear.told() == []
        await latch.count_down(THIRD, 3)
        assert await ear.told() == [[b"invalidate", [latch.news]]]
    assert await latch.everything() == [latch.steps, latch.key()]


async def test_something_else_is_refused_and_stays(latch) -> None:
    steps = ((latch.wait, ""), (latch.count_down, ME), (latch.reset, ME))
    for step, argument in steps:
        await latch.redis.set(latch.key(), "mine")
        with pytest.raises(ResponseError, match="FOREIGN 1"):
            await step(argument)
        await latch.redis.delete(latch.key())
        ours = {"made": 3, "left": 3, "opened": 0, "tokens": ""}
        for fields in ({"mine": 1}, *({k: v for k, v in ours.items() if k != out} for out in ours)):
            await latch.redis.hset(latch.key(), mapping=fields)
            with pytest.raises(ResponseError, match="FOREIGN 1"):
                await step(argument)
            assert await latch.redis.hlen(latch.key()) == len(fields)
            await latch.redis.delete(latch.key())


async def test_the_commands_say_what_the_tests_do(latch) -> None:
    commands = LatchSteps(latch.prefix, latch.name, 3, MINUTE, known_ms=HOUR)
    wait, count_down, reset = commands.wait("7"), commands.count_down(ME, 2), commands.reset(ME, 4)

    keys = [latch.key(), latch.steps, latch.news]
    told = LatchScripts(latch.redis, latch.prefix)
    told.name, told.shared = latch.name, latch.shared[:-1]
    assert wait.words(as_eval=True) == told.words("latch_wait", keys[:1], "", 3, MINUTE, "7")
    assert count_down.words(as_eval=True) == latch.words(
        "latch_count_down", keys, ME, 3, MINUTE, 2, HOUR, MOST_KNOWN
    )
    assert reset.words(as_eval=True) == latch.words(
        "latch_reset", keys[:2], ME, 3, MINUTE, 4, HOUR, MOST_KNOWN
    )
    assert wait.lane == telling(commands.news).lane  # that goes before
    assert wait.parse([*await latch.wait(), b"2500000"]) == (False, 3, "0", 2.5)
    assert count_down.parse(await latch.count_down(ME)) == (2, [])
    assert count_down.parse(await latch.count_down(OTHER, 2)) == (0, [latch.news])
    assert reset.parse(await latch.reset(THIRD)) == (3, [])
    for command, raw in ((wait, await latch.wait(made=4)), (reset, await latch.reset(ME, made=4))):
        with pytest.raises(ConfigurationError, match="counts from 3"):
            command.parse(raw)


async def test_a_latch_is_kept_on_a_server_that_is_out_of_memory(own_server, connect, prefix) -> None:
    server = await own_server(arguments=("--maxmemory-policy", "noeviction"))
    latch = LatchScripts(connect(server), prefix)
    await latch.count_down(ME)
    await latch.redis.config_set("maxmemory", 1)

    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await latch.count_down(OTHER)
    assert await latch.wait(ttl=HOUR) == [0, 2, b"0"]
    assert await latch.lasts(latch.key(), HOUR)


NEEDED = (
    *("eval", "del", "hlen", "hmget", "hset", "pexpire", "pttl", "set", "time"),
    *("zadd", "zcard", "zrange", "zrangebyscore", "zrem", "zscore"),
)


async def test_it_needs_these_commands_and_no_more(own_server, connect, acl) -> None:
    server = await own_server()
    admin, user = connect(server), connect(server, username="locks", password="secret")

    async def works(*commands: str) -> bool:
        rules = ["reset", "on", ">secret", "-@all", "~aiolocks:latch*"]
        await admin.execute_command(
            "ACL", "SETUSER", "locks", *rules, *(f"+{command}" for command in commands)
        )
        latch = LatchScripts(user, "aiolocks")
        try:
            await latch.wait()
            await latch.wait()
            await latch.count_down(ME, 3)
            await latch.reset(OTHER, known=1)
            await asyncio.sleep(0.003)
            await latch.reset(THIRD)
        except (NoPermissionError, ResponseError):
            return False
        return True

    assert await works(*NEEDED)
    for word in NEEDED:
        assert (word, await works(*(other for other in NEEDED if other != word))) == (word, False)
    await admin.flushall()  # a step that was cut off in the middle


# -- mutants -------------------------------------------------------------------------------------------------

CHECKS = checks(globals(), "latch")
WAIT, COUNT_DOWN, RESET = "latch_wait", "latch_count_down", "latch_reset"
STEPS = (WAIT, COUNT_DOWN, RESET)
SHARED, ONCE = "shared/latches", "shared/once"
KNOWN = "test_a_step_is_known_for_its_time_however_many_others_there_are"
FULL = "test_no_step_is_forgotten_for_another_which_is_refused"
OVER = "test_what_is_over_is_forgotten_by_the_mutants"
THROUGH = "test_who_has_waited_since_before_it_opened_goes_through"
TWICE = "test_a_step_that_is_said_twice_counts_once"
HEARS = "test_who_waits_hears_of_the_opening_and_of_nothing_else"
FOREIGN = "test_something_else_is_refused_and_stays"
MUTATIONS = [
    Mutation(WAIT, "tonumber(opened) > tonumber", "tonumber(opened) >= tonumber", THROUGH),
    Mutation(WAIT, "ARGV[4] ~= '' and", "ARGV[4] == '' or", "test_it_opens_at_0_and_stays_open"),
    Mutation(COUNT_DOWN, "counts and left > 0", "left > 0", TWICE),
    Mutation(COUNT_DOWN, "left > 0 and", "", "test_it_opens_at_0_and_stays_open"),
    Mutation(COUNT_DOWN, "left <= tonumber", "left < tonumber", HEARS),
    Mutation(COUNT_DOWN, "math.max(0, left", "(left", "test_nothing_is_below_0"),
    Mutation(COUNT_DOWN, "not is_known(steps, token)", "true", TWICE),
    Mutation(COUNT_DOWN, "math.max(MICROSECONDS, opened + 1)", "MICROSECONDS",
             "test_each_opening_is_later_than_the_one_before"),
    Mutation(RESET, "not is_known(steps, token)", "true", TWICE),
    Mutation(ONCE, ">= tonumber(most)", "> tonumber(most)", FULL),
    Mutation(ONCE, "tonumber(ends) > NOW", "true", FULL),
    Mutation(ONCE, "whole(NOW + ms), token", "whole(NOW), token", KNOWN),
    Mutation(ONCE, "keep(steps, ms)", "redis.call('PEXPIRE', steps, ms)", OVER),
    Mutation(ONCE, "'-inf', whole(NOW)", "'-inf', '+inf'", TWICE),
    Mutation(SHARED, "'tokens', found[4])", "'tokens', '')", "test_what_an_earlier_version_remembers_stays"),
    Mutation(SHARED, "found[1] and found[2] and", "found[1] and", FOREIGN),
    Mutation(SHARED, "and found[3] and found[4]", "and found[4]", FOREIGN),
    Mutation(SHARED, "and found[3] and found[4]", "and found[3]", FOREIGN),
    Mutation(SHARED, "keep(latch, ttl)", "redis.call('PEXPIRE', latch, ttl)",
             "test_each_step_keeps_a_latch_of_the_mutants"),
]  # fmt: skip


async def test_each_guard_is_needed(redis, prefix) -> None:
    assert await surviving(LatchScripts, redis, prefix, MUTATIONS, CHECKS, COUNT_DOWN) == []


@pytest.mark.parametrize(
    ("file", "step"), [*((one, one) for one in STEPS), (SHARED, COUNT_DOWN), (ONCE, COUNT_DOWN)]
)
async def test_each_line_is_needed(redis, prefix, file: str, step: str) -> None:
    mutants = [(name, file, text) for name, text in lines_left_out(file)]
    living = await compiled(LatchScripts, redis, prefix, step, mutants)
    assert living
    assert await unnoticed(LatchScripts, redis, prefix, living, among=CHECKS) == []
