"""The scripts of a turnstile: every branch, said twice, by the wrong one.

A test that asks for `turnstile` alone is also run on mutants of the scripts, by the tests at the end.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from aiolocks.kinds.turnstile import REMEMBERED, TurnstileSteps
from aiolocks.transport.request import MOST_KNOWN
from tests.lua.mutants import Mutation, checks, compiled, lines_left_out, surviving, unnoticed
from tests.lua.scripts import HOUR, MINUTE, Scripts, about

pytestmark = pytest.mark.leaves_keys("aiolocks*:turnstile:*")

ME, OTHER, THIRD, FOURTH = "a1" * 16, "b2" * 16, "c3" * 16, "d4" * 16


class TurnstileScripts(Scripts):
    """The steps of a turnstile."""

    kind = "turnstile"
    shared = ("forms", "fence")
    bare = frozenset({"turnstile_end"})

    async def enter(
        self, token: str, *, window: int = MINUTE, remembered: int = 10, known: int = MINUTE, most: int = 1000
    ) -> Any:
        return await self.run(
            self.words("turnstile_enter", [self.key()], token, window, remembered, known, most)
        )

    async def members(self) -> list[str]:
        return [one.decode() for one in await self.redis.zrange(self.key(), 0, -1)]

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


TOKENS = [f"{number + 2**100:032x}" for number in range(100)]


async def test_however_many_come_each_is_remembered_for_its_time(turnstile) -> None:
    assert [await turnstile.enter(token) for token in TOKENS] == list(range(1, 101))
    assert [await turnstile.enter(token) for token in TOKENS] == list(range(1, 101))


async def test_so_many_are_remembered_and_the_first_always(turnstile) -> None:
    for token in TOKENS[:32]:
        await turnstile.enter(token, remembered=34)
    places = await turnstile.redis.zrange(turnstile.key(), 0, -1, withscores=True)
    marks = {place: int(member) for member, place in places if member.startswith(b"0" * 16)}
    assert marks.keys() == {16, 32}
    now = 1000 * (await turnstile.redis.time())[0]
    assert all(abs(now - at) < 5000 for at in marks.values())
    await asyncio.sleep(0.003)
    assert await turnstile.enter(TOKENS[32], remembered=34, known=1) == 33  # the 33rd, and two marks

    tokens = [one for one in await turnstile.members() if not one.startswith("0" * 16)]
    assert tokens == [TOKENS[0], *TOKENS[16:33]]
    assert await turnstile.enter(TOKENS[0], remembered=34) == 1
    assert await turnstile.enter(TOKENS[16], remembered=34) == 17
    assert await turnstile.enter(TOKENS[3], remembered=34) == 34  # its place was forgotten: it comes again
    for token in TOKENS[33:]:
        await turnstile.enter(token, remembered=34, known=0)
    assert 34 - 17 < len(await turnstile.members()) <= 34


async def test_no_more_is_forgotten_than_has_a_mark(turnstile) -> None:
    for token in TOKENS[:15]:
        await turnstile.enter(token, remembered=2, known=0)
    assert await turnstile.members() == TOKENS[:15]
    await turnstile.enter(TOKENS[15], remembered=2, known=0)
    assert len(await turnstile.members()) == 17


async def test_what_an_earlier_version_has_not_marked_is_forgotten(turnstile) -> None:
    for token in TOKENS[:20]:
        await turnstile.enter(token)
    await turnstile.redis.zrem(
        turnstile.key(), *[one for one in await turnstile.members() if one[:16] == "0" * 16]
    )
    await turnstile.enter(TOKENS[20])
    assert await turnstile.members() == [TOKENS[0], *TOKENS[16:21]]


async def test_no_place_is_forgotten_for_another_which_is_refused(turnstile) -> None:
    for token in TOKENS[:17]:
        await turnstile.enter(token, most=18)
    state = await turnstile.state()
    with pytest.raises(ResponseError, match="CROWDED 18"):
        await turnstile.enter(TOKENS[17], most=18)
    assert await turnstile.state() == state
    assert await turnstile.enter(TOKENS[16], most=18) == 17
    assert await turnstile.enter(TOKENS[17], most=19) == 18
    await asyncio.sleep(0.003)
    assert await turnstile.enter(TOKENS[18], most=19, known=1) == 19


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
    commands = TurnstileSteps(turnstile.prefix, turnstile.name, known_ms=HOUR)
    enter, end = commands.enter(ME, MINUTE), commands.end(ME)

    assert enter.words(as_eval=True) == turnstile.words(
        "turnstile_enter", [turnstile.key()], ME, MINUTE, REMEMBERED, HOUR, MOST_KNOWN
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


NEEDED = (
    *("eval", "del", "pexpire", "pttl", "time", "zadd", "zcard", "zrange"),
    *("zrangebyscore", "zremrangebyscore", "zscore"),
)


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
            for token in TOKENS[:18]:
                await turnstile.enter(token, remembered=2, known=0)
            await turnstile.end(TOKENS[0])
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
COUNTED = "test_the_first_begins_the_window_and_the_others_are_counted"
KEPT = "test_however_many_come_each_is_remembered_for_its_time"
FIRST = "test_so_many_are_remembered_and_the_first_always"
FULL = "test_no_place_is_forgotten_for_another_which_is_refused"
MUTATIONS = [
    Mutation(ENTER, "place = last + 1", "place = last", COUNTED),
    Mutation(ENTER, "-1, -1, 'WITH", "0, 0, 'WITH", COUNTED),
    Mutation(ENTER, "if not last then", "if true then", "test_the_window_is_that_of_who_began_it"),
    Mutation(ENTER, "places, 1, 1, 'WITH", "places, 0, 0, 'WITH", FIRST),
    Mutation(ENTER, "number >= tonumber(ARGV[3])", "number > tonumber(ARGV[3])", FIRST),
    Mutation(ENTER, "number >= tonumber(ARGV[5])", "number > tonumber(ARGV[5])", FULL),
    Mutation(ENTER, "NOW < since + ARGV[4]", "false", KEPT),
    Mutation(ENTER, "NOW < since + ARGV[4]", "true", FIRST),
    Mutation(ENTER, "since and", "not since or", "test_what_an_earlier_version_has_not_marked_is_forgotten"),
    Mutation(ENTER, "ends < place and", "", "test_no_more_is_forgotten_than_has_a_mark"),
    Mutation(ENTER, "not forgotten and", "", FULL),
    Mutation(ENTER, "ZREMRANGEBYSCORE', places, 2", "ZREMRANGEBYSCORE', places, 1", FIRST),
    Mutation(END, "~= '1'", "== false", "test_nobody_else_ends_it"),
]


async def test_each_guard_is_needed(redis, prefix) -> None:
    assert await surviving(TurnstileScripts, redis, prefix, MUTATIONS, CHECKS) == []


@pytest.mark.parametrize("step", [ENTER, END])
async def test_each_line_is_needed(redis, prefix, step: str) -> None:
    mutants = [(name, step, text) for name, text in lines_left_out(step)]
    living = await compiled(TurnstileScripts, redis, prefix, step, mutants)
    assert living
    assert await unnoticed(TurnstileScripts, redis, prefix, living, among=CHECKS) == []
