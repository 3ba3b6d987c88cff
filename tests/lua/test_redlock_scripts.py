"""The steps that a Redlock has besides those of the simple lock: every branch, said twice, by the wrong one.

A test that asks for `lock` alone is also run on mutants of the script, by the tests at the end of this file.
"""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ResponseError

from tests.lua.mutants import Mutation, checks, compiled, fails, lines_left_out, surviving, unnoticed
from tests.lua.scripts import HOUR, MINUTE, LockScripts, shipped

pytestmark = pytest.mark.leaves_keys("aiolocks*:redlock*")

ME, OTHER = "a1" * 16, "b2" * 16
LATER = 9_007_199_254_740_000
"""A fencing token of the year 2255, near the largest whole number that a double can hold exactly."""


class RedlockScripts(LockScripts):
    """Those of the simple lock, in a name space of their own, and the two more."""

    kind = "redlock"

    def text(self, step: str) -> bytes:
        if step != "vote":
            return super().text(step)
        return b"".join(self.mutant.get(file) or shipped(file) for file in ("redlock_vote", "lock_acquire"))

    async def vote(
        self,
        token: str,
        proposed: int,
        *,
        retention: int = HOUR,
        metadata: str = "{}",
        waits: str | None = None,
    ) -> Any:
        arguments = (token, MINUTE, retention, metadata, "s" if waits is None else "sw", proposed)
        return await self.run(self.words("vote", self._keys(waits), *arguments))

    async def left_behind(self) -> int:
        """A lease was there, and is released; its fencing token."""
        minted = await self.minted()
        await self.release(ME)
        return minted

    async def seal(
        self,
        token: str,
        sealed: int,
        *,
        retention: int = HOUR,
        given: bool = False,
        queued: str | None = None,
    ) -> Any:
        arguments = (token, sealed, retention, int(given))
        keys = [self.lock, self.fence] if queued is None else self._keys(queued)
        return await self.run(self.words("redlock_seal", keys, *arguments))

    async def minted(self, **kwargs: Any) -> int:
        """Acquired, and with which fencing token."""
        return int((await self.acquire(ME, **kwargs))[1])


@pytest.fixture
def lock(redis, prefix) -> RedlockScripts:
    return RedlockScripts(redis, prefix)


async def test_takes_with_its_vote_what_is_larger_than_its_fence(lock) -> None:
    proposed = await lock.left_behind() + 1

    taken, number, others, clock = await lock.vote(ME, proposed, metadata='{"a":":1:\n"}')

    assert (taken, number, others) == (1, b"0%d" % proposed, 0)
    assert await lock.is_now(clock)
    assert await lock.value() == b'%b:0%d:{"a":":1:\n"}' % (ME.encode(), proposed)
    assert await lock.fence_value() == b"%d" % proposed
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)


async def test_mints_where_what_is_proposed_is_not_larger(lock) -> None:
    for less in (0, 1, None):
        before = await lock.left_behind()

        _, number, others, clock = await lock.vote(ME, before if less is None else less)

        assert before < int(number) == int(clock)
        assert not number.startswith(b"0")
        assert others == 0
        assert await lock.is_now(clock)
        assert await lock.value() == b"%b:%b:{}" % (ME.encode(), number)
        assert await lock.fence_value() == number
        assert await lock.expires_in(lock=MINUTE, fence=HOUR)
        await lock.release(ME)


async def test_mints_the_next_number_where_its_clock_stands_behind_its_fence(lock) -> None:
    await lock.redis.set(lock.fence, LATER)

    _, number, _, clock = await lock.vote(ME, LATER)

    assert number == await lock.fence_value() == b"%d" % (LATER + 1)
    assert await lock.is_now(clock)


async def test_takes_nothing_less_than_its_clock_where_it_has_no_fence(lock) -> None:
    """It may be lost: fencing tokens up to the clock may have been given."""
    _, number, _, clock = await lock.vote(ME, 17)
    assert number == clock
    await lock.clear()
    assert (await lock.vote(ME, LATER))[1] == (await lock.value())[33:50] == b"0%d" % LATER


async def test_a_vote_that_is_said_twice_is_the_same(lock) -> None:
    proposed = await lock.left_behind() + 1
    await lock.vote(ME, proposed)
    state = await lock.state()

    assert await lock.vote(ME, proposed) == [1, b"0%d" % proposed, 0]
    assert await lock.seal(ME, proposed) == 1
    assert await lock.state() == state


async def test_a_vote_for_what_is_held_is_that_of_a_simple_lock(lock) -> None:
    await lock.acquire(OTHER)
    refused, left = await lock.vote(ME, LATER, waits="x")
    assert (refused, 0 < left <= MINUTE) == (0, True)
    assert await lock.waiting() == [lock.bell("x")]
    assert await lock.stands("x")


async def test_a_vote_while_others_wait_is_that_of_a_simple_lock(lock) -> None:
    await lock.left_behind()
    await lock.sit("x")
    granted, number, others = await lock.vote(ME, LATER)
    assert (granted, others, int(number) < LATER) == (1, 1, True)


async def test_a_vote_beside_what_is_not_ours_says_so(lock) -> None:
    for fence in ("garbage", "", "9007199254740991"):
        await lock.redis.set(lock.fence, fence)
        with pytest.raises(ResponseError, match="FOREIGN 2"):
            await lock.vote(ME, LATER)
        assert await lock.fence_value() == fence.encode()
    await lock.clear()
    await lock.redis.set(lock.queue, "no queue")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await lock.vote(ME, LATER)
    assert await lock.value() is None


async def test_writes_back_what_is_larger_and_keeps_the_rest(lock) -> None:
    await lock.acquire(ME, ttl=MINUTE, retention=MINUTE, metadata='{"a":":1:\n"}')

    assert await lock.seal(ME, LATER) == 1

    assert await lock.value() == b'%b:0%d:{"a":":1:\n"}' % (ME.encode(), LATER)
    assert await lock.fence_value() == b"%d" % LATER
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)


async def test_said_twice_is_the_same(lock) -> None:
    await lock.acquire(ME)
    await lock.seal(ME, LATER)
    state = await lock.state()

    assert await lock.seal(ME, LATER) == 1

    assert await lock.state() == state


async def test_leaves_the_queue_with_its_bell(lock) -> None:
    for who in ("x", "y"):
        await lock.sit(who)
    await lock.acquire(ME, waits="x")

    assert await lock.seal(ME, LATER, queued="x") == 1

    assert await lock.waiting() == [lock.bell("y")]
    assert [await lock.stands(who) for who in ("x", "y")] == [False, True]


async def test_stays_in_the_queue_where_it_is_not_confirmed(lock) -> None:
    await lock.acquire(OTHER)
    await lock.sit("x")

    assert await lock.seal(ME, LATER, queued="x") == 0

    assert await lock.waiting() == [lock.bell("x")]
    assert await lock.stands("x")


async def test_confirms_what_it_has_minted_itself(lock) -> None:
    minted = await lock.minted(retention=MINUTE)

    assert await lock.seal(ME, minted) == 1

    assert await lock.value() == b"%b:0%d:{}" % (ME.encode(), minted)
    assert await lock.fence_value() == b"%d" % minted
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)


async def test_does_not_confirm_less_than_it_has_minted(lock) -> None:
    minted = await lock.minted()
    state = await lock.state()

    assert await lock.seal(ME, minted - 1) == 0

    assert await lock.state() == state


async def test_takes_less_of_a_lease_that_was_given_already(lock) -> None:
    minted = await lock.minted()

    assert await lock.seal(ME, minted - 1, given=True) == 1

    assert await lock.value() == b"%b:0%d:{}" % (ME.encode(), minted - 1)
    assert await lock.fence_value() == b"%d" % minted


async def test_does_nothing_for_a_token_that_is_not_there(lock) -> None:
    for value in (f"{OTHER}:17:{{}}", f"{ME}0:17:{{}}", f"x{ME}:17:{{}}", "somebody else's", ""):
        await lock.redis.set(lock.lock, value, px=MINUTE)
        state = await lock.state()

        assert [await lock.seal(ME, LATER), await lock.seal(ME, LATER, given=True)] == [0, 0]
        assert await lock.state() == state
    await lock.redis.delete(lock.lock)

    assert await lock.seal(ME, LATER, given=True) == 0

    assert await lock.state() == (None, None, None)


async def test_makes_the_fence_anew_where_it_was_lost_or_is_not_ours(lock) -> None:
    for fence in (None, "nothing of ours"):
        await lock.clear()
        await lock.acquire(ME)
        await lock.redis.delete(lock.fence)
        if fence is not None:
            await lock.redis.set(lock.fence, fence)

        assert await lock.seal(ME, LATER) == 1

        assert await lock.fence_value() == b"%d" % LATER
        assert await lock.expires_in(fence=HOUR)


async def test_what_was_written_back_goes_on_as_the_fencing_token_of_the_lease(lock) -> None:
    await lock.acquire(ME)
    await lock.seal(ME, LATER)

    assert await lock.acquire(ME) == [1, b"0%d" % LATER, 0]
    assert await lock.renew(ME) == 1
    assert await lock.adopt(ME, OTHER) == b"0%d" % LATER
    assert await lock.release(OTHER) == [1]
    assert (await lock.acquire(ME))[1] == b"%d" % (LATER + 1)


async def test_works_on_a_server_that_is_out_of_memory(own_server, connect, prefix) -> None:
    client = connect(await own_server())
    lock = RedlockScripts(client, prefix)
    await lock.acquire(ME)
    await client.config_set("maxmemory", 1)

    assert await lock.seal(ME, LATER) == 1

    await client.config_set("maxmemory", 0)


# -- mutants -------------------------------------------------------------------------------------------------

FILE, VOTE = "redlock_seal", "redlock_vote"
STEPS = {FILE: FILE, VOTE: "vote"}
CHECKS = checks(globals(), "lock")
MUTATIONS = [
    Mutation(FILE, "or ''", "or ARGV[1] .. ':1:'", "test_does_nothing_for_a_token_that_is_not_there"),
    Mutation(FILE, "holder ~= token", "not holder", "test_does_nothing_for_a_token_that_is_not_there"),
    Mutation(FILE, "'^(%x+)", "'(%x+)", "test_does_nothing_for_a_token_that_is_not_there"),
    Mutation(FILE, "ARGV[4] ~= '1'", "false", "test_does_not_confirm_less_than_it_has_minted"),
    Mutation(
        FILE,
        "ARGV[4] ~= '1'",
        "true",
        "test_takes_less_of_a_lease_that_was_given_already",
    ),
    Mutation(FILE, "tonumber(minted) > tonumber(sealed)", "true", "test_confirms_what_it_has_minted_itself"),
    Mutation(
        FILE,
        "tonumber(minted) > tonumber(sealed)",
        "tonumber(minted) >= tonumber(sealed)",
        "test_said_twice_is_the_same",
    ),
    Mutation(FILE, "':0'", "':'", "test_confirms_what_it_has_minted_itself"),
    Mutation(FILE, "'KEEPTTL'", "'PX', 1000", "test_writes_back_what_is_larger_and_keeps_the_rest"),
    Mutation(FILE, " or 0) or 0)", " or 0))", "test_makes_the_fence_anew_where_it_was_lost_or_is_not_ours"),
    Mutation(
        FILE,
        "< tonumber(sealed) then",
        "~= tonumber(sealed) then",
        "test_takes_less_of_a_lease_that_was_given_already",
    ),
    Mutation(
        VOTE, "not redis.call('GET', lock) and", "", "test_a_vote_for_what_is_held_is_that_of_a_simple_lock"
    ),
    Mutation(
        VOTE,
        "and redis.pcall('ZCARD', KEYS[3]) == 0",
        "",
        "test_a_vote_while_others_wait_is_that_of_a_simple_lock",
    ),
    Mutation(VOTE, "'^%d+$'", "''", "test_a_vote_beside_what_is_not_ours_says_so"),
    Mutation(VOTE, "< 9007199254740991", "< 2 ^ 60", "test_a_vote_beside_what_is_not_ours_says_so"),
    Mutation(
        VOTE, "last and last + 1 or now", "last or now", "test_mints_where_what_is_proposed_is_not_larger"
    ),
    Mutation(
        VOTE,
        "last and last + 1 or now",
        "(last or 0) + 1",
        "test_takes_nothing_less_than_its_clock_where_it_has_no_fence",
    ),
    Mutation(
        VOTE,
        "last and last + 1 or now",
        "now",
        "test_mints_the_next_number_where_its_clock_stands_behind_its_fence",
    ),
    Mutation(VOTE, "math.max(now, least)", "least", "test_mints_where_what_is_proposed_is_not_larger"),
    Mutation(VOTE, ">= least", "> least", "test_takes_with_its_vote_what_is_larger_than_its_fence"),
    Mutation(VOTE, "proposed, '0'", "proposed, ''", "test_takes_with_its_vote_what_is_larger_than_its_fence"),
]


async def test_the_script_itself_is_not_complained_of(redis, prefix) -> None:
    scripts = RedlockScripts(redis, prefix)

    assert [name for name, check in CHECKS.items() if await fails(check, scripts)] == []


@pytest.mark.parametrize("file", STEPS)
async def test_without_a_line_somebody_notices(redis, prefix, file: str) -> None:
    mutants = [(name, file, text) for name, text in lines_left_out(file)]
    living = await compiled(RedlockScripts, redis, prefix, STEPS[file], mutants)

    assert len(living) >= 5
    assert await unnoticed(RedlockScripts, redis, prefix, living, among=CHECKS) == []


async def test_with_a_line_altered_that_test_fails(redis, prefix) -> None:
    for file, step in STEPS.items():
        mutations = [mutation for mutation in MUTATIONS if mutation.file == file]
        assert await surviving(RedlockScripts, redis, prefix, mutations, CHECKS, step=step) == []
