"""The scripts of a rate limit: every branch, said twice, by the wrong one, with a clock that was set back.

A test that asks for `ratelimit` alone is also run on mutants of the scripts, by the tests at the end.
"""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from aiolocks.kinds.ratelimit import ONLY_ASKED, Bucket, RateLimitSteps
from tests.lua.mutants import Mutation, checks, compiled, lines_left_out, survives, unnoticed
from tests.lua.scripts import Scripts, about, microseconds

pytestmark = pytest.mark.leaves_keys("aiolocks*:ratelimit:*")

ME, OTHER, THIRD, FOURTH = "a1" * 16, "b2" * 16, "c3" * 16, "d4" * 16
MINUTE = 60_000_000
SECOND = 1_000_000
SLACK = 5 * SECOND
"""Microseconds that a busy machine may let pass between two steps."""
KEPT = 64
FOREVER_US = 10**15
"""Longer than any wait."""


def near(value: int, expected: int) -> bool:
    """Whether a time that is told is that, less what has passed since."""
    return expected - SLACK <= value <= expected


class RateLimitScripts(Scripts):
    """The steps of rate limits; by default, of one that admits 3 at once and one a minute."""

    kind = "ratelimit"
    shared = ("forms", "fence")
    bare = frozenset({"ratelimit_give_back"})

    async def acquire(
        self,
        token: str,
        n: int = 1,
        *,
        longest: int = FOREVER_US,
        interval: float = MINUTE,
        burst: int = 3,
        per: int = 3 * MINUTE,
        and_of: tuple[tuple[Any, float, int, int], ...] = (),
    ) -> Any:
        keys = [self.key(), *(other.key() for other, *_ in and_of)]
        figures = [str(interval), burst, per]
        for _, *other in and_of:
            figures += map(str, other)
        return await self.run(self.words("ratelimit_acquire", keys, token, n, longest, *figures))

    async def give_back(self, token: str, *others: Any) -> Any:
        keys = [self.key(), *(other.key() for other in others)]
        return await self.run(self.words("ratelimit_give_back", keys, token))

    async def entries(self) -> dict[bytes, float]:
        return dict(await self.redis.zrange(self.key(), 0, -1, withscores=True))

    async def tokens(self) -> list[bytes]:
        return [entry for entry in await self.entries() if len(entry) == 32]

    async def put(self, entries: dict[str, int], *, interval: float = MINUTE, burst: int = 3) -> int:
        """Writes entries by their distance from now; returns now."""
        now = await microseconds(self.redis)
        scores: dict[str, float] = {name: now + score for name, score in entries.items()}
        await self.redis.zadd(self.key(), {**scores, "interval": interval, "burst": burst})
        await self.redis.pexpire(self.key(), 3_600_000)
        return now


@pytest.fixture
def ratelimit(redis, prefix) -> RateLimitScripts:
    return RateLimitScripts(redis, prefix)


async def test_a_burst_is_admitted_at_once_and_then_each_has_its_moment(ratelimit) -> None:
    told = [await ratelimit.acquire(token) for token in (ME, OTHER, THIRD, FOURTH, "e5" * 16)]
    assert [granted for granted, *_ in told] == [1] * 5
    assert [wait for _, wait, _ in told[:3]] == [0, 0, 0]
    assert near(told[3][1], MINUTE)
    assert near(told[4][1], 2 * MINUTE)
    assert all(near(full, number * MINUTE) for number, (*_, full) in enumerate(told, 1))
    assert told[0][2] == MINUTE


async def test_so_many_at_once_need_as_much_room(ratelimit) -> None:
    assert await ratelimit.acquire(ME, 2) == [1, 0, 2 * MINUTE]
    granted, wait, full = await ratelimit.acquire(OTHER, 2)
    assert granted == 1
    assert near(wait, MINUTE)
    assert near(full, 4 * MINUTE)


async def test_a_moment_that_is_too_late_is_refused_and_nothing_is_taken(ratelimit) -> None:
    await ratelimit.acquire(ME, 3)
    state = await ratelimit.state()
    for longest in (0, MINUTE - SLACK, ONLY_ASKED):
        granted, wait, full = await ratelimit.acquire(OTHER, longest=longest)
        assert granted == 0
        assert near(wait, MINUTE)
        assert near(full, 3 * MINUTE)
    assert await ratelimit.state() == state
    assert (await ratelimit.acquire(OTHER, longest=MINUTE))[0] == 1


async def test_one_that_only_asks_takes_nothing(ratelimit) -> None:
    assert await ratelimit.acquire(ME, longest=ONLY_ASKED) == [0, 0, 0]
    assert await ratelimit.everything() == []


async def test_said_twice_it_is_the_same_moment(ratelimit) -> None:
    first = await ratelimit.acquire(ME, 3)
    waits = await ratelimit.acquire(OTHER)
    again = await ratelimit.acquire(OTHER, longest=0)
    assert again[0] == 1
    assert near(again[1], waits[1])
    assert near(again[2], waits[2])
    granted, wait, full = await ratelimit.acquire(ME, 3)
    assert (granted, wait, first[1]) == (1, 0, 0)
    assert near(full, 4 * MINUTE)  # of the bucket, and not of this one
    assert near((await ratelimit.acquire(THIRD))[1], 2 * MINUTE)


async def test_the_bucket_is_refilled_by_the_servers_clock(ratelimit) -> None:
    await ratelimit.put({"seen": -MINUTE, ME: MINUTE})
    assert (await ratelimit.acquire(OTHER, longest=0))[0] == 1
    assert (await ratelimit.acquire(THIRD, longest=0))[0] == 1
    assert (await ratelimit.acquire(FOURTH, longest=0))[0] == 0


async def test_a_bucket_that_was_full_for_long_admits_no_more_than_its_burst(ratelimit) -> None:
    await ratelimit.put({"seen": -MINUTE, ME: -MINUTE})
    granted, wait, full = await ratelimit.acquire(OTHER, 3, longest=0)
    assert (granted, wait, full) == (1, 0, 3 * MINUTE)
    assert (await ratelimit.acquire(THIRD, longest=0))[0] == 0


async def test_requests_are_rounded_up_to_a_microsecond(ratelimit) -> None:
    third = 1_000_000 / 3
    assert await ratelimit.acquire(ME, interval=third, burst=1) == [1, 0, 333_334]
    again = ratelimit.another()
    assert await again.acquire(ME, 2, interval=third, burst=4) == [1, 0, 666_667]
    assert (await again.entries())[b"interval"] == third
    await again.clear()


async def test_a_moment_is_given_back_to_the_next_if_nobody_stands_behind_it(ratelimit) -> None:
    await ratelimit.acquire(ME, 3)
    await ratelimit.acquire(OTHER)
    assert await ratelimit.give_back(OTHER) == 1
    assert near((await ratelimit.acquire(THIRD))[1], MINUTE)


async def test_a_moment_with_somebody_behind_it_is_not_given_to_another(ratelimit) -> None:
    await ratelimit.acquire(ME, 3)
    await ratelimit.acquire(OTHER)
    await ratelimit.acquire(THIRD)
    assert await ratelimit.give_back(OTHER) == 1
    assert near((await ratelimit.acquire(FOURTH, longest=0))[1], 3 * MINUTE)
    assert await ratelimit.give_back(THIRD) == 1  # and now nobody stands behind either
    assert near((await ratelimit.acquire(FOURTH, longest=0))[1], MINUTE)


async def test_what_was_given_back_to_a_bucket_that_has_refilled_is_not_more(ratelimit) -> None:
    await ratelimit.put({"seen": -MINUTE, ME: -30 * SECOND})
    await ratelimit.give_back(ME)
    assert (await ratelimit.acquire(OTHER, longest=ONLY_ASKED))[2] == 0


async def test_give_back_said_twice_or_by_nobody_changes_nothing(ratelimit) -> None:
    assert await ratelimit.give_back(ME) == 0
    await ratelimit.acquire(ME)
    assert [await ratelimit.give_back(ME), await ratelimit.give_back(ME)] == [1, 0]
    assert await ratelimit.give_back(OTHER) == 0


async def test_a_clock_that_was_set_back_keeps_what_is_taken_and_nobody_waits_longer(ratelimit) -> None:
    hour = 60 * MINUTE
    await ratelimit.put({"seen": hour, ME: hour + 2 * MINUTE})
    granted, wait, full = await ratelimit.acquire(OTHER, 2, longest=0)
    assert granted == 0
    assert near(wait, MINUTE)
    assert near(full, 2 * MINUTE)
    entries = await ratelimit.entries()  # it counts from now on, also for those who are refused
    now = await microseconds(ratelimit.redis)
    assert near(int(entries[b"before"]) - now, 2 * MINUTE)
    assert near(int(entries[b"seen"]) - now, 0)
    assert set(entries) == {b"seen", b"before", b"interval", b"burst"}
    assert entries[b"burst"] == 3
    assert entries[b"interval"] == MINUTE
    assert (await ratelimit.acquire(OTHER, longest=0))[0] == 1
    assert (await ratelimit.acquire(THIRD, longest=0))[0] == 0


async def test_after_a_clock_was_set_back_a_bucket_is_full_after_one_period(ratelimit) -> None:
    hour = 60 * MINUTE
    await ratelimit.put({"seen": hour, ME: hour + 20 * MINUTE})
    granted, wait, full = await ratelimit.acquire(OTHER, 1, longest=0)
    assert granted == 0
    assert near(wait, MINUTE)
    assert near(full, 3 * MINUTE)
    assert about(await ratelimit.redis.pttl(ratelimit.key()), 3 * 60_000 + 10_000)


async def test_a_changed_interval_counts_and_so_many_are_in_the_bucket_as_before(ratelimit) -> None:
    await ratelimit.acquire(ME, 2)
    granted, wait, full = await ratelimit.acquire(OTHER, 2, longest=0, interval=2 * MINUTE)
    assert granted == 0
    assert near(wait, 2 * MINUTE)
    assert near(full, 4 * MINUTE)
    assert (await ratelimit.acquire(OTHER, longest=0, interval=2 * MINUTE))[0] == 1
    assert (await ratelimit.entries())[b"interval"] == 2 * MINUTE
    third = await ratelimit.acquire(THIRD, 1, longest=0, interval=SECOND)
    assert near(third[2], 3 * SECOND)


async def test_a_changed_burst_counts(ratelimit) -> None:
    await ratelimit.acquire(ME, 3)
    assert (await ratelimit.acquire(OTHER, 2, longest=0, burst=5))[0] == 1
    assert (await ratelimit.entries())[b"burst"] == 5


async def test_so_many_tokens_are_remembered_and_their_moments_stay_taken(ratelimit) -> None:
    tokens = [f"{number:032x}" for number in range(KEPT + 6)]
    for token in tokens:
        await ratelimit.acquire(token, interval=MINUTE, burst=1)
    kept = await ratelimit.tokens()
    assert kept == [token.encode() for token in tokens[-KEPT - 1 :]]  # until there is a `before`, one more
    for token in tokens:
        await ratelimit.give_back(token)
    granted, wait, _ = await ratelimit.acquire(ME, longest=0, interval=MINUTE, burst=1)
    assert granted == 0
    assert near(wait, (len(tokens) - len(kept)) * MINUTE)


async def test_tokens_of_those_who_are_through_are_forgotten_first(ratelimit) -> None:
    tokens = [f"{number:032x}" for number in range(KEPT + 3)]
    for token in tokens:
        await ratelimit.acquire(token, interval=1, burst=1000)
    assert len(await ratelimit.tokens()) <= KEPT + 1
    assert tokens[-1].encode() in await ratelimit.tokens()
    assert tokens[0].encode() not in await ratelimit.tokens()


async def test_a_key_lasts_until_its_bucket_is_full_and_a_token_may_come_again(ratelimit) -> None:
    await ratelimit.acquire(ME, 2)
    assert about(await ratelimit.redis.pttl(ratelimit.key()), 2 * 60_000 + 10_000)
    assert await ratelimit.redis.pttl(ratelimit.key()) > 2 * 60_000 + 5_000


async def test_all_limits_or_none(ratelimit) -> None:
    day = ratelimit.another()
    both = ((day, MINUTE, 2, 2 * MINUTE),)
    assert await ratelimit.acquire(ME, and_of=both) == [1, 0, MINUTE, 0, MINUTE]
    assert (await ratelimit.acquire(OTHER, and_of=both, longest=0))[0] == 1
    before = await ratelimit.state(), await day.state()
    granted, wait, full, other_wait, other_full = await ratelimit.acquire(THIRD, and_of=both, longest=0)
    assert granted == 0
    assert (wait, near(other_wait, MINUTE)) == (0, True)
    assert near(full, 2 * MINUTE)
    assert near(other_full, 2 * MINUTE)
    assert (await ratelimit.state(), await day.state()) == before
    assert (await ratelimit.acquire(OTHER, and_of=both, longest=0))[:2] == [1, 0]  # said again
    assert await ratelimit.give_back(OTHER, day) == 2
    assert (await ratelimit.acquire(THIRD, and_of=both, longest=0))[0] == 1
    await day.clear()


async def test_a_key_of_another_type_is_refused(ratelimit) -> None:
    await ratelimit.redis.set(ratelimit.key(), "mine")
    with pytest.raises(ResponseError, match="FOREIGN 1"):
        await ratelimit.acquire(ME)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await ratelimit.give_back(ME)


async def test_entries_that_are_not_ours_are_refused_and_stay(ratelimit) -> None:
    for entries in ({"hello": 1}, {"hello": 1, "seen": 1}, {"hello": 1, "interval": 1}):
        await ratelimit.redis.delete(ratelimit.key())
        await ratelimit.redis.zadd(ratelimit.key(), entries)
        with pytest.raises(ResponseError, match="FOREIGN 1"):
            await ratelimit.acquire(ME)
        assert await ratelimit.redis.zcard(ratelimit.key()) == len(entries)


async def test_the_commands_say_what_the_tests_do(ratelimit) -> None:
    commands = RateLimitSteps(ratelimit.prefix, [Bucket(ratelimit.name, 3, 180.0, 3)])
    acquire, give_back = commands.acquire(ME, 2, 7), commands.give_back(ME)

    assert acquire.words(as_eval=True) == ratelimit.words(
        "ratelimit_acquire", [ratelimit.key()], ME, 2, 7, "60000000.0", 3, 3 * MINUTE
    )
    assert give_back.words(as_eval=True) == ratelimit.words("ratelimit_give_back", [ratelimit.key()], ME)
    assert acquire.lane == give_back.lane  # an undo follows what it undoes
    answer = acquire.parse(await ratelimit.acquire(ME, 2))
    assert (answer.granted, answer.wait, list(answer.full_us)) == (True, 0.0, [2 * MINUTE])
    assert give_back.parse(await ratelimit.give_back(ME)) == 1


async def test_a_moment_is_given_back_on_a_server_that_is_out_of_memory(own_server, connect, prefix) -> None:
    server = await own_server(arguments=("--maxmemory-policy", "noeviction"))
    ratelimit = RateLimitScripts(connect(server), prefix)
    await ratelimit.acquire(ME, 3)
    await ratelimit.redis.config_set("maxmemory", 1)

    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await ratelimit.acquire(OTHER)
    assert await ratelimit.give_back(ME) == 1


NEEDED = ("eval", "del", "pexpire", "time", "zadd", "zcard", "zrange", "zrem", "zscore")


async def test_it_needs_these_commands_and_no_more(own_server, connect, acl) -> None:
    server = await own_server()
    admin, user = connect(server), connect(server, username="locks", password="secret")

    async def works(*commands: str) -> bool:
        rules = ["reset", "on", ">secret", "-@all", "~aiolocks:ratelimit:*"]
        await admin.execute_command(
            "ACL", "SETUSER", "locks", *rules, *(f"+{command}" for command in commands)
        )
        ratelimit = RateLimitScripts(user, "aiolocks")
        try:
            for number in range(KEPT + 3):
                await ratelimit.acquire(f"{number:032x}")
            await ratelimit.acquire(ME, interval=SECOND)
            await ratelimit.give_back(ME)
        except (NoPermissionError, ResponseError):
            return False
        return True

    assert await works(*NEEDED)
    for word in NEEDED:
        assert (word, await works(*(other for other in NEEDED if other != word))) == (word, False)
    await admin.flushall()  # a step that was cut off in the middle


async def test_a_bucket_that_is_full_again_is_gone_soon(ratelimit) -> None:
    await ratelimit.acquire(ME, interval=1)
    assert await ratelimit.redis.pttl(ratelimit.key()) <= 10_001


# -- mutants -------------------------------------------------------------------------------------------------

CHECKS = checks(globals(), "ratelimit")
ACQUIRE, GIVE_BACK = "ratelimit_acquire", "ratelimit_give_back"
BACK = "test_a_clock_that_was_set_back_keeps_what_is_taken_and_nobody_waits_longer"
ONE_PERIOD = "test_after_a_clock_was_set_back_a_bucket_is_full_after_one_period"
CHANGED = "test_a_changed_interval_counts_and_so_many_are_in_the_bucket_as_before"
FORGOTTEN = "test_so_many_tokens_are_remembered_and_their_moments_stay_taken"
BURST = "test_a_burst_is_admitted_at_once_and_then_each_has_its_moment"
ROUNDED = "test_requests_are_rounded_up_to_a_microsecond"
MUTATIONS = [
    Mutation(
        ACQUIRE, "wait > longest", "wait >= longest", "test_the_bucket_is_refilled_by_the_servers_clock"
    ),
    Mutation(ACQUIRE, "math.max(0, full - room)", "math.max(0, full)", BURST),
    Mutation(ACQUIRE, "backlog + math.ceil(n * interval)", "backlog + math.floor(n * interval)", ROUNDED),
    Mutation(
        ACQUIRE,
        "math.ceil(burst * interval), backlog_of",
        "math.floor(burst * interval), backlog_of",
        ROUNDED,
    ),
    Mutation(
        ACQUIRE,
        "math.max(0, last - ",
        "(last - ",
        "test_a_bucket_that_was_full_for_long_admits_no_more_than_its_burst",
    ),
    Mutation(ACQUIRE, "last - math.max(seen, MICROSECONDS)", "last - MICROSECONDS", BACK),
    Mutation(ACQUIRE, "backlog = math.min(backlog, per)", "backlog = math.max(backlog, per)", BACK),
    Mutation(ACQUIRE, "if back then", "if false then", ONE_PERIOD),
    Mutation(ACQUIRE, "if tonumber(was) == interval and not back", "if tonumber(was) == interval", BACK),
    Mutation(ACQUIRE, "if tonumber(was) == interval and not back", "if not back", CHANGED),
    Mutation(ACQUIRE, "backlog / was * interval", "backlog", CHANGED),
    Mutation(ACQUIRE, "not reserved and wait", "wait", "test_said_twice_it_is_the_same_moment"),
    Mutation(ACQUIRE, "not reserved and full", "full", "test_said_twice_it_is_the_same_moment"),
    Mutation(
        ACQUIRE, "if not seen or not was", "if not was", "test_entries_that_are_not_ours_are_refused_and_stay"
    ),
    Mutation(
        ACQUIRE,
        "if not seen or not was",
        "if not seen",
        "test_entries_that_are_not_ours_are_refused_and_stay",
    ),
    Mutation(ACQUIRE, "if granted == 0 then", "if false then", "test_one_that_only_asks_takes_nothing"),
    Mutation(ACQUIRE, "redis.call('ZADD', key, lowest[i + 1], 'before')", "", FORGOTTEN),
    Mutation(ACQUIRE, "key, 2, 4, 'WITH", "key, 0, 2, 'WITH", FORGOTTEN),
    Mutation(ACQUIRE, "-1, -1, 'WITH", "0, 0, 'WITH", BURST),
    Mutation(
        GIVE_BACK, "ARGV[1])", "ARGV[1] .. '0')", "test_give_back_said_twice_or_by_nobody_changes_nothing"
    ),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
async def test_each_guard_is_needed(redis, prefix, mutation: Mutation) -> None:
    assert await survives(RateLimitScripts, redis, prefix, mutation, CHECKS, mutation.file) is None


@pytest.mark.parametrize("step", [ACQUIRE, GIVE_BACK])
async def test_each_line_is_needed(redis, prefix, step: str) -> None:
    mutants = [(name, step, text) for name, text in lines_left_out(step)]
    living = await compiled(RateLimitScripts, redis, prefix, step, mutants)
    assert living
    assert await unnoticed(RateLimitScripts, redis, prefix, living, among=CHECKS) == []
