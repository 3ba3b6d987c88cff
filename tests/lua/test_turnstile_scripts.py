"""The scripts of a turnstile: every branch, said twice, by the wrong one.

A test that asks for `turnstile` alone is also run on mutants of the scripts, by the tests at the end.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from aiolocks.kinds.turnstile import REMEMBERED, TurnstileSteps
from tests.lua.mutants import Mutation, checks, compiled, lines_left_out, survives, unnoticed
from tests.lua.scripts import HOUR, MINUTE, Scripts, about

pytestmark = pytest.mark.leaves_keys("aiolocks*:turnstile:*")

ME, OTHER, THIRD, FOURTH = "a1" * 16, "b2" * 16, "c3" * 16, "d4" * 16


class TurnstileScripts(Scripts):
    """The steps of a turnstile."""

    kind = "turnstile"
    shared = ("forms",)
    bare = frozenset({"turnstile_end"})

    async def enter(self, token: str, *, window: int = MINUTE, remembered: int = 10) -> Any:
        return await self.run(self.words("turnstile_enter", [self.key()], token, window, remembered))

    async def end(self, token: str) -> Any:
        return await self.run(self.words("turnstile_end", [self.key()], token))


@pytest.fixture
def turnstile(redis, prefix) -> TurnstileScripts:
    return TurnstileScripts(redis, prefix)


async def test_the_first_begins_the_window_and_the_others_are_counted(turnstile) -> None:
    assert [await turnstile.enter(token) for token in (ME, OTHER, THIRD)] == [1, 2, 3]
    places = await turnstile.redis.zrange(turnstile.key(), 0, -1, withscores=True)
    assert places == [(ME.encode(), 1), (OTHER.encode(), 2), (THIRD.encode(), 3)]


async def test_the_window_is_that_of_who_began_it(turnstile) -> None:
    await turnstile.enter(ME, window=MINUTE)
    await turnstile.enter(OTHER, window=HOUR)
    assert about(await turnstile.redis.pttl(turnstile.key()), MINUTE)


async def test_a_window_that_has_lost_its_ttl_gets_one_from_the_next_to_come(turnstile) -> None:
    await turnstile.enter(ME)
    await turnstile.redis.persist(turnstile.key())
    assert await turnstile.enter(OTHER, window=HOUR) == 2
    assert about(await turnstile.redis.pttl(turnstile.key()), HOUR)


async def test_enter_said_twice_is_the_same_place_and_no_longer_window(turnstile) -> None:
    assert [await turnstile.enter(token) for token in (ME, OTHER)] == [1, 2]
    state = await turnstile.state()

    assert [await turnstile.enter(token, window=HOUR) for token in (OTHER, ME, OTHER)] == [2, 1, 2]
    assert await turnstile.state() == state
    assert about(await turnstile.redis.pttl(turnstile.key()), MINUTE)
    assert await turnstile.enter(THIRD) == 3


async def test_the_window_ends_by_itself(turnstile) -> None:
    await turnstile.enter(ME, window=20)
    await turnstile.enter(OTHER, window=HOUR)
    await asyncio.sleep(0.04)
    assert await turnstile.enter(OTHER) == 1


async def test_so_many_are_remembered_and_the_first_always(turnstile) -> None:
    tokens = [f"{number:032x}" for number in range(8)]
    assert [await turnstile.enter(token, remembered=3) for token in tokens] == list(range(1, 9))

    places = await turnstile.redis.zrange(turnstile.key(), 0, -1, withscores=True)
    assert places == [(tokens[0].encode(), 1), (tokens[6].encode(), 7), (tokens[7].encode(), 8)]
    assert await turnstile.enter(tokens[0], remembered=3) == 1
    assert await turnstile.enter(tokens[7], remembered=3) == 8
    assert await turnstile.enter(tokens[3], remembered=3) == 9  # its place was forgotten: it comes again


async def test_who_began_the_window_ends_it(turnstile) -> None:
    await turnstile.enter(ME)
    await turnstile.enter(OTHER)

    assert await turnstile.end(ME) == [1]
    assert await turnstile.everything() == []
    assert await turnstile.enter(OTHER) == 1


async def test_nobody_else_ends_it(turnstile) -> None:
    await turnstile.enter(ME)
    await turnstile.enter(OTHER)
    state = await turnstile.state()

    assert await turnstile.end(OTHER) == [0]
    assert await turnstile.end(THIRD) == [0]
    assert await turnstile.state() == state


async def test_said_twice_it_does_not_end_the_window_of_another(turnstile) -> None:
    await turnstile.enter(ME)
    assert await turnstile.end(ME) == [1]
    assert await turnstile.end(ME) == [0]
    await turnstile.enter(OTHER)
    assert await turnstile.end(ME) == [0]
    assert await turnstile.enter(THIRD) == 2


@pytest.mark.parametrize("step", ["enter", "end"])
async def test_a_key_of_another_type_is_refused(turnstile, step: str) -> None:
    await turnstile.redis.set(turnstile.key(), "mine")
    with pytest.raises(ResponseError, match="FOREIGN 1" if step == "enter" else "WRONGTYPE"):
        await getattr(turnstile, step)(ME)


async def test_places_that_are_not_ours_are_refused_and_stay(turnstile) -> None:
    for member, score in (("hello", 1), (OTHER, 1.5), (OTHER[:-1], 2), (OTHER, -1)):
        await turnstile.redis.delete(turnstile.key())
        await turnstile.redis.zadd(turnstile.key(), {member: score})
        with pytest.raises(ResponseError, match="FOREIGN 1"):
            await turnstile.enter(ME)
        assert await turnstile.redis.zrange(turnstile.key(), 0, -1) == [member.encode()]


async def test_the_commands_say_what_the_tests_do(turnstile) -> None:
    commands = TurnstileSteps(turnstile.prefix, turnstile.name)
    enter, end = commands.enter(ME, MINUTE), commands.end(ME)

    assert enter.words(as_eval=True) == turnstile.words(
        "turnstile_enter", [turnstile.key()], ME, MINUTE, REMEMBERED
    )
    assert end.words(as_eval=True) == turnstile.words("turnstile_end", [turnstile.key()], ME)
    assert enter.lane == end.lane  # an undo follows what it undoes
    assert enter.parse(await turnstile.enter(ME)) == 1
    assert end.parse(await turnstile.end(OTHER)).freed is False
    assert end.parse(await turnstile.end(ME)).freed is True


async def test_a_window_ends_on_a_server_that_is_out_of_memory(own_server, connect, prefix) -> None:
    turnstile = TurnstileScripts(
        connect(await own_server(arguments=("--maxmemory-policy", "noeviction"))), prefix
    )
    await turnstile.enter(ME)
    await turnstile.redis.config_set("maxmemory", 1)

    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await turnstile.enter(OTHER)
    assert await turnstile.end(ME) == [1]


NEEDED = ("eval", "del", "pexpire", "pttl", "zadd", "zcard", "zrange", "zrem", "zscore")


async def test_it_needs_these_commands_and_no_more(own_server, connect, acl) -> None:
    server = await own_server()
    admin, user = connect(server), connect(server, username="locks", password="secret")

    async def works(*commands: str) -> bool:
        rules = ["reset", "on", ">secret", "-@all", "~aiolocks:turnstile:*"]
        await admin.execute_command(
            "ACL", "SETUSER", "locks", *rules, *(f"+{command}" for command in commands)
        )
        turnstile = TurnstileScripts(user, "aiolocks")
        try:
            for token in (ME, OTHER, THIRD):
                await turnstile.enter(token, remembered=2)
            await turnstile.end(ME)
        except (NoPermissionError, ResponseError):
            return False
        return True

    assert await works(*NEEDED)
    for word in NEEDED:
        assert (word, await works(*(other for other in NEEDED if other != word))) == (word, False)
    await admin.flushall()  # a step that was cut off in the middle


# -- mutants -------------------------------------------------------------------------------------------------

CHECKS = checks(globals(), "turnstile")
ENTER, END = "turnstile_enter", "turnstile_end"
MUTATIONS = [
    Mutation(
        ENTER, "last + 1, token", "last, token", "test_the_first_begins_the_window_and_the_others_are_counted"
    ),
    Mutation(
        ENTER, "return last + 1", "return last", "test_the_first_begins_the_window_and_the_others_are_counted"
    ),
    Mutation(
        ENTER, "-1, -1, 'WITH", "0, 0, 'WITH", "test_the_first_begins_the_window_and_the_others_are_counted"
    ),
    Mutation(ENTER, "if not last then", "if true then", "test_the_window_is_that_of_who_began_it"),
    Mutation(ENTER, "places, 1, 1)", "places, 0, 0)", "test_so_many_are_remembered_and_the_first_always"),
    Mutation(ENTER, "> tonumber", ">= tonumber", "test_so_many_are_remembered_and_the_first_always"),
    Mutation(END, "~= '1'", "== false", "test_nobody_else_ends_it"),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
async def test_each_guard_is_needed(redis, prefix, mutation: Mutation) -> None:
    assert await survives(TurnstileScripts, redis, prefix, mutation, CHECKS, mutation.file) is None


@pytest.mark.parametrize("step", [ENTER, END])
async def test_each_line_is_needed(redis, prefix, step: str) -> None:
    mutants = [(name, step, text) for name, text in lines_left_out(step)]
    living = await compiled(TurnstileScripts, redis, prefix, step, mutants)
    assert living
    assert await unnoticed(TurnstileScripts, redis, prefix, living, among=CHECKS) == []
