"""The scripts of a latch: every branch, said twice, by the wrong one.

A test that asks for `latch` alone is also run on mutants of the scripts, by the tests at the end.
"""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from aiolocks import ConfigurationError
from aiolocks.kinds.latch import LatchSteps
from tests.lua.mutants import Mutation, checks, compiled, lines_left_out, survives, unnoticed
from tests.lua.scripts import HOUR, MINUTE, Scripts, about

pytestmark = pytest.mark.leaves_keys("aiolocks*:latch*")

ME, OTHER, THIRD = "a1" * 16, "b2" * 16, "c3" * 16


class LatchScripts(Scripts):
    """The steps of a latch of 3."""

    kind = "latch"
    shared = ("forms", "fence", "latches")

    @property
    def news(self) -> bytes:
        return self.key("news")

    async def wait(self, opened: str | bytes = "", *, made: int = 3, ttl: int = MINUTE) -> Any:
        return await self.run(self.words("latch_wait", [self.key()], "", made, ttl, opened))

    async def count_down(self, token: str, n: int = 1, *, made: int = 3, ttl: int = MINUTE) -> Any:
        return await self.run(self.words("latch_count_down", [self.key(), self.news], token, made, ttl, n))

    async def reset(self, token: str, count: int = 3, *, made: int = 3, ttl: int = MINUTE) -> Any:
        return await self.run(self.words("latch_reset", [self.key()], token, made, ttl, count))


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


async def test_only_the_last_steps_are_known(latch) -> None:
    tokens = [f"{number:032x}" for number in range(40)]
    for token in tokens:
        await latch.count_down(token, made=1000)
    known = (await latch.redis.hgetall(latch.key()))[b"tokens"]
    assert known == "".join(f",{token}" for token in tokens[-32:]).encode()


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
    assert await latch.everything() == [latch.key()]


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
    commands = LatchSteps(latch.prefix, latch.name, 3, MINUTE)
    wait, count_down, reset = commands.wait("7"), commands.count_down(ME, 2), commands.reset(ME, 4)

    assert wait.words(as_eval=True) == latch.words("latch_wait", [latch.key()], "", 3, MINUTE, "7")
    assert count_down.words(as_eval=True) == latch.words(
        "latch_count_down", [latch.key(), latch.news], ME, 3, MINUTE, 2
    )
    assert reset.words(as_eval=True) == latch.words("latch_reset", [latch.key()], ME, 3, MINUTE, 4)
    assert wait.lane == commands.listen().lane  # that goes before
    assert wait.parse(await latch.wait()) == (False, 3, "0")
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


NEEDED = ("eval", "del", "hlen", "hmget", "hset", "pexpire", "pttl", "set", "time")


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
            await latch.reset(OTHER)
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
SHARED = "shared/latches"
THROUGH = "test_who_has_waited_since_before_it_opened_goes_through"
TWICE = "test_a_step_that_is_said_twice_counts_once"
HEARS = "test_who_waits_hears_of_the_opening_and_of_nothing_else"
FOREIGN = "test_something_else_is_refused_and_stays"
MUTATIONS = [
    Mutation(WAIT, "tonumber(opened) > tonumber", "tonumber(opened) >= tonumber", THROUGH),
    Mutation(WAIT, "ARGV[4] ~= '' and", "ARGV[4] == '' or", "test_it_opens_at_0_and_stays_open"),
    Mutation(COUNT_DOWN, "not is_known and left > 0", "left > 0", TWICE),
    Mutation(COUNT_DOWN, "left > 0 and", "", "test_it_opens_at_0_and_stays_open"),
    Mutation(COUNT_DOWN, "left <= tonumber", "left < tonumber", HEARS),
    Mutation(COUNT_DOWN, "math.max(0, left", "(left", "test_nothing_is_below_0"),
    Mutation(COUNT_DOWN, "if not is_known then", "if true then", TWICE),
    Mutation(COUNT_DOWN, "math.max(MICROSECONDS, opened + 1)", "MICROSECONDS",
             "test_each_opening_is_later_than_the_one_before"),
    Mutation(RESET, "if not is_known then", "if true then", TWICE),
    Mutation(SHARED, "-TOKENS", "0", "test_only_the_last_steps_are_known"),
    Mutation(SHARED, "is_known and '' or ',' .. token", "',' .. token", TWICE),
    Mutation(SHARED, "found[1] and found[2] and", "found[1] and", FOREIGN),
    Mutation(SHARED, "and found[3] and found[4]", "and found[4]", FOREIGN),
    Mutation(SHARED, "and found[3] and found[4]", "and found[3]", FOREIGN),
    Mutation(SHARED, "math.max(redis.call('PTTL', latch), ttl)", "ttl",
             "test_each_step_keeps_a_latch_of_the_mutants"),
]  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
async def test_each_guard_is_needed(redis, prefix, mutation: Mutation) -> None:
    step = COUNT_DOWN if mutation.file == SHARED else mutation.file
    assert await survives(LatchScripts, redis, prefix, mutation, CHECKS, step) is None


@pytest.mark.parametrize(("file", "step"), [*((one, one) for one in STEPS), (SHARED, COUNT_DOWN)])
async def test_each_line_is_needed(redis, prefix, file: str, step: str) -> None:
    mutants = [(name, file, text) for name, text in lines_left_out(file)]
    living = await compiled(LatchScripts, redis, prefix, step, mutants)
    assert living
    assert await unnoticed(LatchScripts, redis, prefix, living, among=CHECKS) == []
