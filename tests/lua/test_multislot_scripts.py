"""The scripts that only those need who take locks of several slots: the last step, and the way back.

A test that asks for `locks` alone is also run on mutants of the scripts, by the tests at the end.
"""

from __future__ import annotations

import pytest

from tests.lua.mutants import Mutation, checks, compiled, fails, lines_left_out, surviving, text_of, unnoticed
from tests.lua.scripts import HOUR, MINUTE, MultiScripts

pytestmark = pytest.mark.leaves_keys("aiolocks*:lock*")

ME, OTHER = "a1" * 16, "b2" * 16
LARGER = 9_007_199_254_740_000
"""A fencing token of the year 2255."""


@pytest.fixture
def locks(redis, prefix) -> MultiScripts:
    return MultiScripts(redis, prefix)


# -- seal ----------------------------------------------------------------------------------------------------


async def test_seal_writes_the_fencing_token_everywhere_and_nothing_else(locks) -> None:
    await locks.acquire(ME, metadata='{"a":":1:"}')

    assert await locks.seal(ME, LARGER) == 0
    assert await locks.values() == [b'%b:%d:{"a":":1:"}' % (ME.encode(), LARGER)] * 3
    assert await locks.fences() == [b"%d" % LARGER] * 3
    for one in locks.all:
        assert await one.expires_in(lock=MINUTE, fence=HOUR)
    assert await locks.owned(ME) == 1


async def test_seal_keeps_the_ttl_of_the_locks_and_sets_that_of_the_fences(locks) -> None:
    await locks.acquire(ME, ttl=10_000, retention=20_000)

    await locks.seal(ME, LARGER)

    for one in locks.all:
        assert await one.expires_in(lock=10_000, fence=HOUR)


async def test_seal_said_twice_is_said_once(locks) -> None:
    await locks.acquire(ME)
    await locks.seal(ME, LARGER)
    before = await locks.state()

    assert await locks.seal(ME, LARGER) == 0
    assert await locks.state() == before


async def test_whoever_comes_next_gets_a_larger_one(locks) -> None:
    await locks.acquire(ME)
    await locks.seal(ME, LARGER)
    await locks.release(ME)

    assert [int((await locks.of(at).acquire(OTHER))[1]) for at in range(3)] == [LARGER + 1] * 3


async def test_seal_is_refused_where_any_of_them_is_lost_and_changes_nothing(locks) -> None:
    for number in range(3):
        await locks.clear()
        await locks.acquire(ME)
        await locks.redis.delete(locks.all[number].lock)
        await locks.of(number).acquire(OTHER)
        await locks.sit("me")
        before = await locks.state()

        assert await locks.seal(ME, LARGER, queued="me") == -1
        assert await locks.state() == before


async def test_seal_creates_nothing(locks) -> None:
    assert await locks.seal(ME, LARGER) == -1
    assert await locks.everything() == []


async def test_seal_leaves_the_queues_and_says_how_many_others_stand_there(locks) -> None:
    await locks.acquire(ME)
    for who in ("first", "me", "last"):
        await locks.sit(who)

    assert await locks.seal(ME, LARGER, queued="me") == 6
    for queue in locks.queues:
        assert await locks.waiting(queue) == [locks.bell("first"), locks.bell("last")]
    assert await locks.states("first", "me", "last") == [b"", None, b""]


async def test_who_stays_is_counted_too(locks) -> None:
    await locks.acquire(ME)
    await locks.sit("me")

    assert await locks.seal(ME, LARGER) == 3
    assert await locks.stands("me")


# -- the way back --------------------------------------------------------------------------------------------


async def test_given_back_is_what_the_token_holds_and_nothing_else(locks) -> None:
    await locks.of(0, 1).acquire(ME)
    await locks.of(2).acquire(OTHER)
    before = await locks.fences()

    assert await locks.give_back(ME, "me", retention=20_000) == [0]
    assert [value is None for value in await locks.values()] == [True, True, False]
    assert await locks.fences() == before
    assert await locks.all[0].expires_in(fence=20_000)
    assert await locks.all[2].expires_in(lock=MINUTE, fence=HOUR)


async def test_given_back_in_full(locks) -> None:
    await locks.acquire(ME)

    assert await locks.give_back(ME, "me") == [1]
    assert await locks.give_back(ME, "me") == [0]
    assert await locks.locked() == 0


async def test_a_waiter_that_gives_back_keeps_its_place(locks) -> None:
    await locks.acquire(ME)
    await locks.sit("me")

    assert await locks.give_back(ME, "me") == [1]
    assert await locks.states("me") == [b""]
    for queue in locks.queues:
        assert await locks.waiting(queue) == [locks.bell("me")]


async def test_a_newcomer_that_gives_back_wakes_the_first(locks) -> None:
    """It may have been refused what was taken for a moment."""
    await locks.of(0, 1).acquire(ME)
    await locks.of(2).acquire(OTHER)
    for who in ("first", "next"):
        await locks.sit(who)

    assert await locks.give_back(ME, "me") == [0, locks.bell("first")]
    assert await locks.states("first", "next") == [None, b""]


async def test_a_waiter_that_gives_back_wakes_the_next_behind_it_for_what_is_free(locks) -> None:
    """Not those before it: they and it would wake each other for ever."""
    await locks.of(0, 1).acquire(ME)
    await locks.of(2).acquire(OTHER)
    for who in ("first", "me", "next"):
        await locks.sit(who)

    assert await locks.give_back(ME, "me") == [0, locks.bell("next")]
    assert await locks.states("first", "me", "next") == [b"", b"", None]


async def test_for_what_another_holds_nobody_is_woken(locks) -> None:
    await locks.acquire(OTHER)
    await locks.sit("next")

    assert await locks.give_back(ME, "me") == [0]
    assert await locks.states("next") == [b""]


# -- mutants -------------------------------------------------------------------------------------------------

CHECKS = checks(globals(), "locks")
FILES = ["multi_seal", "multi_return"]
SPARED: dict[str, str] = {}
MUTATIONS = [
    Mutation(
        "multi_seal",
        "'KEEPTTL'",
        "'PX', ARGV[4]",
        "test_seal_keeps_the_ttl_of_the_locks_and_sets_that_of_the_fences",
    ),
    Mutation(
        "multi_seal", "(:.*)$", ".*(:.*)$", "test_seal_writes_the_fencing_token_everywhere_and_nothing_else"
    ),
    Mutation(
        "multi_return", "freed == n", "freed > 0", "test_given_back_is_what_the_token_holds_and_nothing_else"
    ),
    Mutation(
        "multi_return",
        "wake(KEYS[2 * n + i], bell)",
        "wake(KEYS[2 * n + i])",
        "test_a_waiter_that_gives_back_wakes_the_next_behind_it_for_what_is_free",
    ),
    Mutation(
        "multi_return", "if not held then", "if true then", "test_for_what_another_holds_nobody_is_woken"
    ),
]


async def test_the_scripts_themselves_are_not_complained_of(redis, prefix) -> None:
    scripts = MultiScripts(redis, prefix)

    assert [name for name, check in CHECKS.items() if await fails(check, scripts)] == []


@pytest.mark.parametrize("file", FILES)
async def test_without_a_line_somebody_notices(redis, prefix, file) -> None:
    living = await compiled(
        MultiScripts,
        redis,
        prefix,
        file,
        [(name, file, text) for name, text in lines_left_out(file, unless=SPARED)],
    )

    assert await unnoticed(MultiScripts, redis, prefix, living, among=CHECKS) == []


async def test_with_a_line_altered_that_test_fails(redis, prefix) -> None:
    assert await surviving(MultiScripts, redis, prefix, MUTATIONS, CHECKS) == []


def test_the_longest_of_them_is_short() -> None:
    assert all(len(text_of(file).splitlines()) < 50 for file in FILES)
