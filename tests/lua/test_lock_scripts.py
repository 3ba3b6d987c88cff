"""The scripts of the lock on real servers: every branch, said twice, by the wrong one, over what others left.

A test that asks for `lock` alone is also run on mutants of the scripts, by the tests at the end of this file:
they show that each line is needed, and that somebody would notice.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import ResponseError

from aiolocks.transport import IN_TURN, SEATED, TOLD, WAITING, LockSteps
from aiolocks.transport.request import Script
from aiolocks.transport.steps.listening import Listener
from tests.lua.mutants import Jury, compiles, fails, text_of
from tests.lua.scripts import BELL, HOUR, MINUTE, NO_FENCES, QUEUE, LockScripts, about, microseconds
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves_keys(
    "aiolocks*:lock*"
)  # without a ttl, where a test has put them there itself

ME, OTHER, THIRD = "a1" * 16, "b2" * 16, "c3" * 16
NOTHING = (None, None, None)
LATER = 9_007_199_254_740_000
"""A fencing token of the year 2255, near the largest whole number that a double can hold exactly."""


@pytest.fixture
def lock(redis, prefix) -> LockScripts:
    return LockScripts(redis, prefix)


# -- acquire -------------------------------------------------------------------------------------------------


async def test_acquire_takes_what_is_free(lock) -> None:
    granted, fencing, _ = await lock.acquire(ME, ttl=MINUTE, retention=HOUR, metadata='{"pid":1}')

    assert granted == 1
    assert await lock.value() == b"%b:%b:%b" % (ME.encode(), fencing, b'{"pid":1}')
    assert await lock.fence_value() == fencing
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)


async def test_acquire_mints_the_servers_time_in_microseconds(lock) -> None:
    before = await lock.redis.time()
    _, fencing, _ = await lock.acquire(ME)
    after = await lock.redis.time()

    assert before[0] * 10**6 + before[1] <= int(fencing) <= after[0] * 10**6 + after[1]


async def test_acquire_said_twice_is_the_same_grant_with_its_ttl_set_anew(lock) -> None:
    first = await lock.acquire(ME, ttl=MINUTE, retention=HOUR)
    state = await lock.state()

    second = await lock.acquire(ME, ttl=2 * MINUTE, retention=2 * HOUR, metadata="other")

    assert second == first
    assert await lock.state() == state
    assert await lock.expires_in(lock=2 * MINUTE, fence=2 * HOUR)


async def test_acquire_is_refused_while_another_holds_it_and_changes_nothing(lock) -> None:
    await lock.acquire(OTHER, ttl=MINUTE, retention=HOUR)
    state = await lock.state()

    granted, remaining = await lock.acquire(ME, ttl=2 * MINUTE, retention=2 * HOUR)

    assert granted == 0
    assert MINUTE - 5_000 < remaining <= MINUTE
    assert await lock.state() == state
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)


async def test_who_is_refused_is_told_who_holds_it_if_asked_for(lock) -> None:
    for number in range(20):  # microseconds of less than six digits are no shorter
        await lock.acquire(OTHER, metadata='{"a": ":1:"}')

        granted, remaining, (now, *told) = await lock.acquire(ME, told=True, in_turn=bool(number % 2))

        assert granted == 0
        assert MINUTE - 5_000 < remaining <= MINUTE
        assert await lock.is_now(now)
        assert told == [b"", b"", remaining, await lock.value()]
        await lock.release(OTHER)
    await lock.sit("x")
    assert await lock.acquire(ME, told=True, in_turn=True) == [0, -2]  # nobody holds it
    assert len(await lock.acquire(ME, told=True)) == 3


async def test_acquire_is_refused_without_end_where_somebody_took_the_ttl_away(lock) -> None:
    await lock.acquire(OTHER)
    await lock.redis.persist(lock.lock)

    assert await lock.acquire(ME) == [0, -1]


async def test_acquire_by_the_holder_gives_a_ttl_back_that_somebody_took_away(lock) -> None:
    await lock.acquire(ME)
    await lock.redis.persist(lock.lock)

    assert (await lock.acquire(ME))[0] == 1
    assert await lock.expires_in(lock=MINUTE)


async def test_acquire_takes_no_token_for_another_that_begins_alike(lock) -> None:
    await lock.acquire(ME)

    assert (await lock.acquire(ME[:-1]))[0] == 0


async def test_acquire_is_refused_by_a_value_that_is_not_ours(lock) -> None:
    for value in ("somebody else's", "", "12:34:56", f"{OTHER}0:17:", f"{OTHER}:x:", f"{OTHER}17", "x" * 32):
        await lock.redis.set(lock.lock, value, px=MINUTE)

        with pytest.raises(ResponseError, match="FOREIGN 1"):
            await lock.acquire(ME)
        assert await lock.locked() == 1
        assert await lock.value() == value.encode()


async def test_acquire_is_refused_by_a_queue_that_is_not_ours(lock) -> None:
    await lock.redis.zadd(lock.queue, {lock.key("precious"): 1})
    for held in (False, True):
        if held:
            await lock.redis.set(lock.lock, f"{OTHER}:17:", px=MINUTE)
        with pytest.raises(ResponseError, match="FOREIGN 3"):
            await lock.acquire(ME)
    assert await lock.waiting() == [lock.key("precious")]
    assert await lock.fence_value() is None


async def test_release_takes_no_member_of_others_for_a_bell(lock) -> None:
    await lock.redis.set(lock.key("precious"), "")
    await lock.acquire(ME)
    await lock.redis.zadd(lock.queue, {lock.key("precious"): 1})

    assert await lock.release(ME) == [1]
    assert await lock.waiting() == [lock.key("precious")]
    assert await lock.redis.delete(lock.key("precious")) == 1


async def test_acquire_mints_one_more_than_a_fence_that_is_ahead_of_the_clock(lock) -> None:
    await lock.redis.set(lock.fence, LATER)

    assert await lock.acquire(ME, retention=HOUR) == [1, b"9007199254740001", 0]
    assert await lock.fence_value() == b"9007199254740001"
    assert await lock.expires_in(fence=HOUR)


async def test_acquire_mints_rising_fencing_tokens(lock) -> None:
    minted = []
    for _ in range(50):
        minted.append(int((await lock.acquire(ME))[1]))
        await lock.release(ME)

    assert minted == sorted(set(minted))


async def test_acquire_passes_over_a_fence_of_long_ago(lock) -> None:
    await lock.redis.set(lock.fence, "17")
    seconds, _ = await lock.redis.time()

    _, fencing, _ = await lock.acquire(ME)

    assert int(fencing) >= seconds * 10**6
    assert await lock.fence_value() == fencing


async def test_acquire_is_refused_by_a_fence_that_is_not_ours(lock) -> None:
    for corrupt in NO_FENCES:
        await lock.redis.set(lock.fence, corrupt)

        with pytest.raises(ResponseError, match="FOREIGN 2"):
            await lock.acquire(ME)
        assert await lock.fence_value() == corrupt.encode()
        assert await lock.value() is None


# -- acquire, and the queue ----------------------------------------------------------------------------------


async def test_acquire_says_how_many_others_stand_in_the_queue(lock) -> None:
    for who in ("x", "y", "z"):
        await lock.sit(who)

    assert (await lock.acquire(ME))[2] == 3
    assert (await lock.acquire(ME, queued="y"))[2] == 2


async def test_acquire_counts_the_dead_too_and_leaves_them_there(lock) -> None:
    for who in ("x", "y"):
        await lock.sit(who)
    await lock.die("x")

    assert (await lock.acquire(ME))[2] == 2
    assert await lock.waiting() == [lock.bell("x"), lock.bell("y")]


async def test_who_gets_in_leaves_the_queue_and_takes_the_bell_down(lock) -> None:
    for who in ("x", "y", "z"):
        await lock.sit(who)

    assert (await lock.acquire(ME, queued="y"))[::2] == [1, 2]

    assert await lock.waiting() == [lock.bell("x"), lock.bell("z")]
    assert [await lock.stands(who) for who in ("x", "y", "z")] == [True, False, True]


async def test_who_asks_others_too_stays_in_the_queue_for_now(lock) -> None:
    for who in ("x", "y"):
        await lock.sit(who)

    assert (await lock.acquire(ME, waits="x", in_turn=True, flags="q"))[::2] == [1, 2]

    assert await lock.waiting() == [lock.bell("x"), lock.bell("y")]
    assert await lock.stands("x")


async def test_one_that_is_refused_and_will_wait_is_seated(lock) -> None:
    await lock.acquire(OTHER)

    assert len(await lock.acquire(ME, waits="x")) == 2
    assert await lock.expires_in(queue=QUEUE)
    assert len(await lock.acquire(THIRD, waits="y", told=True)) == 3

    assert await lock.waiting() == [lock.bell("x"), lock.bell("y")]
    assert await lock.states("x", "y") == [b"", b""]
    assert await lock.expires_in(queue=QUEUE, bells={"x": BELL, "y": BELL})
    assert await lock.release(OTHER) == [1, lock.bell("x")]


async def test_one_that_is_refused_again_keeps_its_place_and_its_bell_is_left_alone(lock) -> None:
    """After a write of its own session, that would not hear it any more."""
    await lock.acquire(OTHER)
    await lock.acquire(ME, waits="x")
    await lock.acquire(THIRD, waits="y")
    await lock.redis.pexpire(lock.bell("x"), 500)
    await lock.redis.pexpire(lock.queue, 500)

    assert len(await lock.acquire(ME, waits="x", queued="x")) == 2

    assert await lock.waiting() == [lock.bell("x"), lock.bell("y")]
    assert await lock.redis.pttl(lock.bell("x")) <= 500
    assert await lock.lasts(lock.queue, QUEUE)


async def test_one_that_is_refused_sits_down_last_also_if_the_clock_was_set_back(lock) -> None:
    await lock.acquire(OTHER)
    await lock.acquire(ME, waits="y")
    await lock.redis.zadd(lock.queue, {lock.bell("y"): LATER})
    await lock.acquire(THIRD, waits="x")
    await lock.acquire(ME, waits="w")

    assert await lock.waiting() == [lock.bell("y"), lock.bell("x"), lock.bell("w")]


async def test_a_bell_that_was_gone_is_named_to_one_that_had_it(lock) -> None:
    await lock.acquire(OTHER)
    await lock.acquire(ME, waits="x")
    await lock.die("x")
    assert len(await lock.acquire(ME, waits="x")) == 2
    await lock.die("x")

    assert (await lock.acquire(ME, waits="x", queued="x"))[2:] == [lock.bell("x")]
    assert await lock.states("x") == [b""]


async def test_one_that_will_not_wait_is_not_seated(lock) -> None:
    await lock.acquire(OTHER)

    await lock.acquire(ME)
    await lock.acquire(ME, queued="x")

    assert await lock.waiting() == []
    assert not await lock.stands("x")


async def test_in_turn_too_one_that_is_refused_is_seated(lock) -> None:
    await lock.sit("x")

    assert await lock.acquire(ME, waits="y", in_turn=True) == [0, -2]

    assert await lock.waiting() == [lock.bell("x"), lock.bell("y")]
    assert await lock.states("y") == [b""]


async def test_who_gets_in_last_leaves_no_queue(lock) -> None:
    await lock.sit("x")

    assert (await lock.acquire(ME, queued="x"))[::2] == [1, 0]
    assert sorted(await lock.everything()) == sorted([lock.lock, lock.fence])


async def test_who_gets_in_beside_the_queue_stays_in_it(lock) -> None:
    await lock.sit("x")

    assert (await lock.acquire(ME))[::2] == [1, 1]
    assert await lock.waiting() == [lock.bell("x")]
    assert await lock.stands("x")


async def test_who_gets_in_need_not_stand_in_the_queue_any_more(lock) -> None:
    await lock.sit("x")

    assert (await lock.acquire(ME, queued="y"))[::2] == [1, 1]
    assert await lock.waiting() == [lock.bell("x")]


async def test_acquire_queued_said_twice_is_the_same_grant(lock) -> None:
    for who in ("x", "y"):
        await lock.sit(who)
    first = await lock.acquire(ME, queued="x")
    state = await lock.state()

    assert await lock.acquire(ME, queued="x") == first
    assert await lock.state() == state


async def test_the_holder_who_stands_in_the_queue_leaves_it_too(lock) -> None:
    """Its request was executed again, behind the grant."""
    await lock.acquire(ME)
    await lock.sit("x")

    assert (await lock.acquire(ME, queued="x"))[::2] == [1, 0]
    assert not await lock.stands("x")


async def test_who_is_refused_keeps_place_and_bell(lock) -> None:
    await lock.acquire(OTHER)
    for who in ("x", "y"):
        await lock.sit(who)
    state = await lock.state()

    assert (await lock.acquire(ME, queued="x"))[0] == 0

    assert await lock.state() == state
    assert await lock.stands("x")


async def test_without_in_turn_anybody_may_overtake(lock) -> None:
    for who in ("x", "y"):
        await lock.sit(who)

    assert (await lock.acquire(ME, queued="y", in_turn=False))[0] == 1


async def test_in_turn_takes_what_nobody_waits_for(lock) -> None:
    assert (await lock.acquire(ME, in_turn=True))[::2] == [1, 0]
    await lock.release(ME)

    assert (await lock.acquire(ME, queued="x", in_turn=True))[::2] == [1, 0]


async def test_in_turn_takes_it_for_who_stands_first(lock) -> None:
    for who in ("y", "x"):
        await lock.sit(who)

    assert (await lock.acquire(ME, queued="y", in_turn=True))[::2] == [1, 1]
    assert await lock.waiting() == [lock.bell("x")]


async def test_in_turn_takes_it_for_who_stands_first_and_was_rung(lock) -> None:
    for who in ("y", "x"):
        await lock.sit(who)
    assert await lock.release(OTHER) == [0, lock.bell("y")]

    assert (await lock.acquire(ME, queued="y", in_turn=True))[0] == 1


async def test_in_turn_leaves_to_another_what_is_free(lock) -> None:
    for who in ("x", "y"):
        await lock.sit(who)
    state = await lock.state()

    for queued in ("y", "stranger", None):
        assert await lock.acquire(ME, queued=queued, in_turn=True) == [0, -2]

    assert await lock.state() == state
    assert [await lock.stands(who) for who in ("x", "y")] == [True, True]


async def test_in_turn_leaves_to_another_even_if_that_one_is_dead(lock) -> None:
    for who in ("x", "y"):
        await lock.sit(who)
    await lock.die("x")
    state = await lock.state()

    for queued in ("y", None):
        assert await lock.acquire(ME, queued=queued, in_turn=True) == [0, -2]

    assert await lock.state() == state
    assert await lock.stands("y")


async def test_in_turn_of_what_is_held_is_refused_for_as_long_as_it_is_held(lock) -> None:
    await lock.acquire(OTHER, ttl=MINUTE)
    await lock.sit("x")

    granted, remaining = await lock.acquire(ME, queued="y", in_turn=True)

    assert granted == 0
    assert MINUTE - 5_000 < remaining <= MINUTE


async def test_in_turn_said_again_by_the_holder_is_the_same_grant(lock) -> None:
    for who in ("y", "x"):
        await lock.sit(who)
    first = await lock.acquire(ME, queued="y", in_turn=True)

    assert await lock.acquire(ME, queued="y", in_turn=True) == first


# -- metadata ------------------------------------------------------------------------------------------------

METADATA = [
    b"",
    b":",
    b":17:",
    b'{"user":"a:b:12:"}',
    b"\0\r\n",
    "🔒é".encode(),
    b"\xff\xfe",
    b"%s%d",
    b"x" * 100_000,
]


@pytest.mark.parametrize("metadata", METADATA, ids=lambda metadata: repr(metadata)[:20])
async def test_metadata_is_kept_byte_for_byte_and_does_not_confuse(lock, metadata) -> None:
    _, fencing, _ = await lock.acquire(ME, metadata=metadata)

    assert (await lock.value()).split(b":", 2) == [ME.encode(), fencing, metadata]
    assert await lock.acquire(ME, metadata=metadata) == [1, fencing, 0]
    assert await lock.adopt(ME, OTHER, metadata=metadata) == fencing
    assert (await lock.value()).split(b":", 2) == [OTHER.encode(), fencing, metadata]


async def test_metadata_that_looks_like_a_fencing_token_does_not_confuse(lock) -> None:
    _, fencing, _ = await lock.acquire(ME, metadata=":17:")

    assert await lock.acquire(ME, metadata=":17:") == [1, fencing, 0]
    assert await lock.adopt(ME, OTHER, metadata=":17:") == fencing


# -- renew ---------------------------------------------------------------------------------------------------


async def test_renew_sets_both_ttls_anew_and_nothing_else(lock) -> None:
    await lock.acquire(ME, ttl=MINUTE, retention=HOUR)
    state = await lock.state()

    assert await lock.renew(ME, ttl=2 * MINUTE, retention=2 * HOUR) == 1

    assert await lock.state() == state
    assert await lock.expires_in(lock=2 * MINUTE, fence=2 * HOUR)


async def test_renew_said_twice_is_said_once(lock) -> None:
    await lock.acquire(ME)
    state = await lock.state()

    assert [await lock.renew(ME), await lock.renew(ME)] == [1, 1]
    assert await lock.state() == state
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)


async def test_renew_by_another_is_refused_and_changes_nothing(lock) -> None:
    await lock.acquire(OTHER, ttl=MINUTE, retention=HOUR)
    state = await lock.state()

    assert await lock.renew(ME, ttl=2 * MINUTE, retention=2 * HOUR) == 0

    assert await lock.state() == state
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)


async def test_renew_never_creates_what_is_gone(lock) -> None:
    assert await lock.renew(ME) == 0
    assert await lock.state() == NOTHING


async def test_renew_takes_no_token_for_another_that_begins_alike(lock) -> None:
    await lock.acquire(ME + "0")

    assert await lock.renew(ME) == 0


async def test_renew_gives_a_ttl_back_that_somebody_took_away(lock) -> None:
    await lock.acquire(ME)
    await lock.redis.persist(lock.lock)

    assert await lock.renew(ME) == 1
    assert await lock.expires_in(lock=MINUTE)


async def test_renew_does_without_a_fence(lock) -> None:
    await lock.acquire(ME)
    await lock.redis.delete(lock.fence)

    assert await lock.renew(ME) == 1
    assert await lock.fence_value() is None


# -- release -------------------------------------------------------------------------------------------------


async def test_release_frees_and_keeps_the_fence_for_its_retention(lock) -> None:
    _, fencing, _ = await lock.acquire(ME, retention=HOUR)

    assert await lock.release(ME, retention=2 * HOUR) == [1]

    assert await lock.value() is None
    assert await lock.fence_value() == fencing
    assert await lock.expires_in(fence=2 * HOUR)


async def test_release_said_twice_leaves_what_it_left_once(lock) -> None:
    await lock.acquire(ME)
    assert await lock.release(ME) == [1]
    state = await lock.state()

    assert await lock.release(ME) == [0]

    assert await lock.state() == state
    assert await lock.expires_in(fence=HOUR)


async def test_release_by_another_is_refused_and_changes_nothing(lock) -> None:
    await lock.acquire(OTHER, ttl=MINUTE, retention=HOUR)
    state = await lock.state()

    assert await lock.release(ME, retention=2 * HOUR) == [0]

    assert await lock.state() == state
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)


async def test_release_names_the_one_that_has_taken_it_by_force(lock) -> None:
    await lock.acquire(ME)
    await lock.steal(OTHER)
    thief = await lock.value()

    assert await lock.release(ME) == [thief]
    assert await lock.release(ME, leave="x") == [0]
    assert await lock.release(OTHER) == [1]
    assert await lock.release(OTHER) == [0]


async def test_release_of_what_is_gone_creates_nothing(lock) -> None:
    assert await lock.release(ME) == [0]
    assert await lock.state() == NOTHING


async def test_release_takes_no_token_for_another_that_begins_alike(lock) -> None:
    await lock.acquire(ME)

    assert await lock.release(ME[:-1]) == [0]
    assert await lock.locked() == 1


async def test_release_frees_what_has_lost_its_ttl(lock) -> None:
    await lock.acquire(ME)
    await lock.redis.persist(lock.lock)

    assert await lock.release(ME) == [1]
    assert await lock.value() is None


# -- release before the time for which the name is to stay taken ---------------------------------------------

NOBODY = "0" * 32
KEPT = MINUTE + 1
"""The server counts whole milliseconds: a minute that begins within one ends with the next."""


async def granted(lock: LockScripts, *, ago: int = 0) -> int:
    """Held by me for `ago` milliseconds; the fencing token."""
    fencing = await microseconds(lock.redis) - ago * 1000
    await lock.redis.set(lock.lock, f"{ME}:{fencing}:{{}}", px=HOUR)
    await lock.redis.set(lock.fence, fencing, px=HOUR)
    return fencing


async def test_release_before_that_time_keeps_the_name_for_nobody(lock) -> None:
    _, fencing, _ = await lock.acquire(ME, ttl=HOUR, metadata='{"pid":1}')

    assert await lock.release(ME, at_least=MINUTE, retention=2 * HOUR) == [1]

    assert await lock.value() == b"%b:%b:%b" % ((NOBODY + ME).encode(), fencing, b'{"pid":1}')
    assert await lock.expires_in(lock=KEPT, fence=2 * HOUR)
    assert [await lock.owned(ME), await lock.locked()] == [0, 1]


async def test_that_time_is_counted_from_the_grant_by_the_servers_clock(lock) -> None:
    fencing = await granted(lock, ago=20_000)

    assert await lock.release(ME, at_least=MINUTE) == [1]

    earliest = await microseconds(lock.redis)
    left = await lock.redis.pttl(lock.lock) * 1000
    latest = await microseconds(lock.redis)
    end = fencing + MINUTE * 1000
    assert earliest + left - 2_000 <= end <= latest + left + 1_000


async def test_release_after_that_time_frees_and_wakes_as_usual(lock) -> None:
    await granted(lock, ago=MINUTE + 1)
    await lock.sit("x")

    assert await lock.release(ME, at_least=MINUTE) == [1, lock.bell("x")]
    assert await lock.value() is None


async def test_a_fencing_token_ahead_of_the_clock_does_not_lengthen_that_time(lock) -> None:
    await lock.redis.set(lock.fence, LATER)
    await lock.acquire(ME, ttl=HOUR)

    assert await lock.release(ME, at_least=MINUTE) == [1]
    assert await lock.expires_in(lock=KEPT)


async def test_a_kept_name_is_not_taken_nor_renewed_nor_adopted_by_anybody(lock) -> None:
    await granted(lock)
    await lock.release(ME, at_least=MINUTE)
    state = await lock.state()

    for token in (ME, OTHER, NOBODY, ""):
        refused, remaining = await lock.acquire(token, ttl=HOUR)
        assert refused == 0
        assert about(remaining, KEPT)
        assert await lock.renew(token, ttl=HOUR) == 0
        assert await lock.adopt(token, OTHER, ttl=HOUR) == b""
        assert await lock.release(token) == [0]
    assert await lock.state() == state
    assert await lock.expires_in(lock=KEPT)


async def test_release_said_twice_keeps_the_name_once(lock) -> None:
    await granted(lock)
    assert await lock.release(ME, at_least=MINUTE) == [1]
    state = await lock.state()

    assert await lock.release(ME, at_least=2 * MINUTE) == [0]
    assert await lock.state() == state
    assert await lock.expires_in(lock=KEPT)


async def test_release_that_keeps_the_name_wakes_nobody(lock) -> None:
    await held_with(lock, "y", "x")

    assert await lock.release(ME, at_least=MINUTE) == [1]
    assert await lock.release(THIRD, leave="y") == [0]
    assert await lock.waiting() == [lock.bell("x")]
    assert await lock.stands("x")


async def test_after_that_time_the_next_gets_in_with_a_larger_fencing_token(lock) -> None:
    fencing = await granted(lock)
    await lock.release(ME, at_least=200)

    async def acquired() -> int:
        answer = await lock.acquire(OTHER)
        return int(answer[1]) if answer[0] else 0

    minted = await eventually(acquired)
    assert minted >= fencing + 200_000


async def test_a_release_that_takes_back_frees_at_once(lock) -> None:
    await granted(lock)

    assert await lock.release(ME) == [1]
    assert await lock.value() is None


# -- release, and the queue ----------------------------------------------------------------------------------


async def held_with(lock: LockScripts, *who: str) -> None:
    """Held by me, and these wait, in this order."""
    await lock.acquire(ME)
    for one in who:
        await lock.sit(one)


async def test_release_wakes_the_first_alone(lock) -> None:
    await held_with(lock, "y", "x", "z")

    assert await lock.release(ME) == [1, lock.bell("y")]

    assert [await lock.stands(who) for who in ("y", "x", "z")] == [False, True, True]
    assert await lock.value() is None


async def test_who_was_woken_stands_in_the_queue_until_it_comes(lock) -> None:
    await held_with(lock, "y", "x")
    await lock.release(ME)

    assert await lock.waiting() == [lock.bell("y"), lock.bell("x")]

    assert (await lock.acquire(OTHER, queued="y"))[::2] == [1, 1]
    assert await lock.waiting() == [lock.bell("x")]


async def test_who_was_woken_and_does_not_come_is_passed_over_and_not_woken_twice(lock) -> None:
    await held_with(lock, "y", "x")
    assert await lock.release(ME) == [1, lock.bell("y")]
    await lock.acquire(OTHER)

    assert await lock.release(OTHER) == [1, lock.bell("x")]
    assert await lock.waiting() == [lock.bell("x")]
    assert await lock.release(OTHER) == [0]
    assert sorted(await lock.everything()) == [lock.fence]


async def test_release_wakes_in_the_order_of_arrival(lock) -> None:
    order = ["m", "c", "z", "a"]
    await held_with(lock, *order)

    woken = []
    for who in order:
        woken += (await lock.release(ME))[1:]
        await lock.acquire(ME, queued=who)

    assert woken == [lock.bell(who) for who in order]


async def test_one_release_drops_all_the_dead_before_the_first_who_lives(lock) -> None:
    dead = [f"dead{number}" for number in range(10)]
    await held_with(lock, *dead, "y", "behind", "x")
    await lock.die(*dead, "behind")

    assert await lock.release(ME) == [1, lock.bell("y")]
    assert await lock.waiting() == [lock.bell("y"), lock.bell("behind"), lock.bell("x")]


async def test_release_leaves_nothing_of_a_queue_of_the_dead(lock) -> None:
    await held_with(lock, "x", "y", "z")
    await lock.die("x", "y", "z")

    assert await lock.release(ME) == [1]
    assert await lock.everything() == [lock.fence]


async def test_release_with_nobody_waiting_names_nobody(lock) -> None:
    await lock.acquire(ME)

    assert await lock.release(ME) == [1]


async def test_a_quiet_release_wakes_nobody_and_drops_nobody(lock) -> None:
    await held_with(lock, "dead", "x")
    await lock.die("dead")

    assert await lock.release(ME, ring=False) == [1]
    assert await lock.release(ME, ring=False) == [0]

    assert await lock.value() is None
    assert await lock.waiting() == [lock.bell("dead"), lock.bell("x")]
    assert await lock.stands("x")


async def test_release_by_another_of_what_is_held_wakes_nobody_and_drops_nobody(lock) -> None:
    await held_with(lock, "dead", "x")
    await lock.die("dead")
    state = await lock.state()

    assert await lock.release(OTHER) == [0]

    assert await lock.state() == state
    assert await lock.stands("x")


async def test_release_by_another_wakes_nobody_for_a_value_that_is_not_ours(lock) -> None:
    await lock.redis.set(lock.lock, "somebody else's", px=MINUTE)
    await lock.sit("x")

    assert await lock.release(ME) == [0]
    assert await lock.stands("x")


async def test_release_of_what_is_free_wakes_the_first(lock) -> None:
    """A waiter that gives up after it was woken, or takes back what it may have been granted."""
    for who in ("y", "x"):
        await lock.sit(who)

    assert await lock.release(ME) == [0, lock.bell("y")]
    assert await lock.value() is None
    assert await lock.fence_value() is None
    assert await lock.stands("x")


async def test_who_leaves_is_removed_with_its_bell(lock) -> None:
    await lock.acquire(OTHER)
    for who in ("x", "y", "z"):
        await lock.sit(who)

    assert await lock.release(ME, leave="y") == [0]

    assert await lock.waiting() == [lock.bell("x"), lock.bell("z")]
    assert [await lock.stands(who) for who in ("x", "y", "z")] == [True, False, True]
    assert await lock.owned(OTHER) == 1


async def test_who_leaves_twice_or_never_stood_there_changes_nothing_more(lock) -> None:
    await lock.acquire(OTHER)
    for who in ("x", "y"):
        await lock.sit(who)
    assert await lock.release(ME, leave="x") == [0]
    state = await lock.state()

    assert [await lock.release(ME, leave=who) for who in ("x", "stranger")] == [[0], [0]]

    assert await lock.state() == state
    assert await lock.stands("y")


async def test_who_stays_keeps_its_place_at_its_release(lock) -> None:
    await held_with(lock, "x", "y")

    assert await lock.release(ME) == [1, lock.bell("x")]
    assert await lock.waiting() == [lock.bell("x"), lock.bell("y")]


async def test_who_was_woken_and_leaves_wakes_the_next(lock) -> None:
    await held_with(lock, "x", "y", "z")
    assert await lock.release(ME) == [1, lock.bell("x")]

    assert await lock.release(OTHER, leave="x") == [0, lock.bell("y")]
    assert await lock.release(OTHER, leave="y") == [0, lock.bell("z")]
    assert await lock.release(OTHER, leave="z") == [0]
    assert await lock.everything() == [lock.fence]


async def test_who_leaves_with_its_release_does_not_wake_itself(lock) -> None:
    await held_with(lock, "x", "y")

    assert await lock.release(ME, leave="x") == [1, lock.bell("y")]
    assert await lock.waiting() == [lock.bell("y")]
    assert not await lock.stands("x")


async def test_who_leaves_quietly_wakes_nobody(lock) -> None:
    await held_with(lock, "x", "y")

    assert await lock.release(ME, ring=False, leave="x") == [1]
    assert await lock.waiting() == [lock.bell("y")]
    assert await lock.stands("y")
    assert not await lock.stands("x")


async def test_release_changes_no_ttl_of_those_who_wait(lock) -> None:
    await lock.acquire(ME)
    for who in ("x", "y"):
        await lock.sit(who, ttl=MINUTE, queue_ttl=HOUR)

    await lock.release(ME)

    assert await lock.expires_in(queue=HOUR, bells={"y": MINUTE})


# -- a seat and a bell ---------------------------------------------------------------------------------------


async def test_a_refusal_notes_the_servers_time_in_microseconds(lock) -> None:
    await lock.acquire(OTHER)
    scores = []
    for number in range(10):
        before = await lock.redis.time()
        await lock.acquire(ME, waits=f"{number}")
        after = await lock.redis.time()

        scores.append(int(await lock.redis.zscore(lock.queue, lock.bell(f"{number}"))))
        assert before[0] * 10**6 + before[1] <= scores[-1] <= after[0] * 10**6 + after[1]

    assert any(score % 100 for score in scores)  # to the last digit


async def test_who_is_refused_stands_behind_those_who_came_before(lock) -> None:
    await lock.acquire(OTHER)
    order = [f"{number:02}" for number in range(20, 0, -1)]
    for who in order:
        await lock.acquire(ME, waits=who)

    assert await lock.waiting() == [lock.bell(who) for who in order]


async def test_a_bell_of_another_type_is_rung_and_taken_down_like_any(lock) -> None:
    for who in ("x", "y"):
        await lock.sit(who)
        await lock.redis.delete(lock.bell(who))
        await lock.redis.rpush(lock.bell(who), "data")

    assert await lock.release(ME) == [0, lock.bell("x")]
    assert (await lock.acquire(ME, queued="y"))[0] == 1
    assert not await lock.stands("y")


async def test_everything_that_stands_there_has_a_ttl(lock) -> None:
    steps: list[Callable[[], Awaitable[Any]]] = [
        lambda: lock.acquire(ME),
        lambda: lock.sit("x"),
        lambda: lock.sit("y"),
        lambda: lock.acquire(OTHER, queued="x"),
        lambda: lock.sit("x"),
        lambda: lock.release(ME),
        lambda: lock.acquire(OTHER, queued="y", in_turn=True),
        lambda: lock.acquire(OTHER, queued="x", in_turn=True),
        lambda: lock.release(OTHER, leave="x"),
    ]
    for step in steps:
        await step()
        ttls = {key: await lock.redis.pttl(key) for key in await lock.everything()}
        assert min(ttls.values()) > 0, ttls


# -- hearing a bell ------------------------------------------------------------------------------------------


def end_of(lock: LockScripts, who: str) -> list[Any]:
    return [b"invalidate", [lock.bell(who)]]


async def test_who_listens_is_told_once_that_its_bell_was_rung(lock) -> None:
    await lock.acquire(ME)
    async with lock.listening() as ear:
        await ear.sit(lock, "x")
        await lock.sit("y")
        assert await ear.told() == []

        assert await lock.release(ME) == [1, lock.bell("x")]
        assert await ear.told() == [end_of(lock, "x")]

        await lock.release(ME)
        assert await ear.told() == []


async def test_who_waits_hears_nothing_of_what_others_do_to_lock_and_queue(lock) -> None:
    async with lock.listening() as ear:
        await ear.sit(lock, "x")
        await lock.acquire(ME)
        await lock.renew(ME)
        await lock.adopt(ME, OTHER)
        await lock.sit("y")
        await lock.release(THIRD, leave="y")
        await lock.release(OTHER, ring=False)
        await lock.redis.delete(lock.lock, lock.fence, lock.queue)

        assert await ear.told() == []
        assert await lock.stands("x")


async def test_who_waits_hears_its_own_bell_alone(lock) -> None:
    async with lock.listening() as mine, lock.listening() as others:
        await others.sit(lock, "y")
        await mine.sit(lock, "x")

        assert await lock.release(ME) == [0, lock.bell("y")]
        assert await mine.told() == []
        assert await others.told() == [end_of(lock, "y")]


async def test_who_takes_its_own_bell_down_hears_nothing(lock) -> None:
    async with lock.listening() as ear:
        await ear.sit(lock, "x")
        await ear.say("DEL", lock.bell("x"))

        assert await ear.told() == []


async def test_a_bell_that_comes_to_its_end_by_itself_is_heard(lock) -> None:
    async with lock.listening() as ear:
        await ear.say("CLIENT", "CACHING", "YES")
        await ear.say(*lock.sitting("x", ttl=1))

        async def gone() -> bool:
            return not await lock.stands("x")  # looked for, it expires at once

        await eventually(gone)
        assert await ear.told() == [end_of(lock, "x")]


# -- what travels --------------------------------------------------------------------------------------------


async def test_the_commands_say_to_the_scripts_what_these_tests_say(lock) -> None:
    commands = LockSteps(lock.prefix, lock.name, retention_ms=HOUR, session="x")
    said = [
        (commands.acquire(ME, MINUTE, "{}"), lock.acquiring(ME)),
        (
            commands.acquire(ME, MINUTE, "{}", SEATED | IN_TURN),
            lock.acquiring(ME, queued="x", in_turn=True),
        ),
        (commands.acquire(ME, MINUTE, "{}", TOLD), lock.acquiring(ME, told=True)),
        (commands.acquire(ME, MINUTE, "{}", WAITING), lock.acquiring(ME, waits="x")),
        (commands.release(ME, MINUTE), lock.releasing(ME)),
        (commands.release(ME, MINUTE, ring=False, leave=True), lock.releasing(ME, ring=False, leave="x")),
        (
            commands.release_at_least(ME, HOUR, MINUTE, ring=True),
            lock.releasing(ME, at_least=MINUTE, retention=10 * HOUR),
        ),
    ]
    for command, words in said:
        script = command.script
        assert command.words(as_eval=True) == ("EVAL", script.text, *words[2:])
        assert words[1] == script.text or any(mutant in words[1] for mutant in lock.mutant.values())
    assert commands.bell == lock.bell("x")
    assert commands.listener("any") == Listener(commands.bell, (lock.queue,), locks=(lock.lock,))


@pytest.mark.parametrize("protocol", [2, 3])
async def test_replies_are_integers_and_strings_alone(connect, prefix, protocol) -> None:
    lock = LockScripts(connect(protocol=protocol), prefix)
    replies = [
        await lock.acquire(ME),
        await lock.acquire(OTHER),
        await lock.acquire(OTHER, waits="y"),
        await lock.acquire(THIRD, waits="x"),
        await lock.release(ME),
        await lock.acquire(OTHER, queued="x", in_turn=True),
        await lock.acquire(OTHER, queued="y"),
        await lock.release(OTHER, leave="x"),
        await lock.release(OTHER),
    ]

    assert [
        [type(item) for item in (reply if isinstance(reply, list) else [reply])] for reply in replies
    ] == [
        [int, bytes, int],
        [int, int],
        [int, int],
        [int, int],
        [int, bytes],
        [int, int],
        [int, bytes, int],
        [int],
        [int],
    ]


NAMES = ["plain", "a:b", "user:{42}:cart", "{42}", "a%b:{x}{y}", "{}", "}{", "{", "é{🔒}", "a{\n\0}", "{{x}}"]


@pytest.mark.parametrize("name", NAMES)
def test_all_keys_of_a_name_share_a_slot(name) -> None:
    mine, others = (LockSteps("shop", name, retention_ms=HOUR, session=session) for session in ("x", "y"))
    commands = [
        mine.acquire(ME, MINUTE, "{}", SEATED),
        mine.release(ME, MINUTE, leave=True),
        others.acquire(ME, MINUTE, "{}", WAITING),
    ]
    keys = {key for command in commands for key in command.keys}

    assert len(keys) == 5
    assert len({key_slot(key) for key in keys}) == 1


# -- adopt ---------------------------------------------------------------------------------------------------


async def test_adopt_swaps_the_token_and_keeps_the_fencing_token(lock) -> None:
    _, fencing, _ = await lock.acquire(ME, ttl=MINUTE, retention=HOUR, metadata="old")

    assert await lock.adopt(ME, OTHER, ttl=2 * MINUTE, retention=2 * HOUR, metadata="new") == fencing

    assert await lock.value() == b"%b:%b:new" % (OTHER.encode(), fencing)
    assert await lock.fence_value() == fencing
    assert await lock.expires_in(lock=2 * MINUTE, fence=2 * HOUR)


async def test_adopt_said_twice_is_said_once(lock) -> None:
    await lock.acquire(ME)
    first = await lock.adopt(ME, OTHER, metadata="new")
    state = await lock.state()

    assert await lock.adopt(ME, OTHER, metadata="new") == first

    assert await lock.state() == state
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)


async def test_of_two_who_adopt_one_finds_it_in_place(lock) -> None:
    await lock.acquire(ME)
    await lock.adopt(ME, OTHER)
    state = await lock.state()

    assert await lock.adopt(ME, THIRD, ttl=2 * MINUTE, retention=2 * HOUR) == b""

    assert await lock.state() == state
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)


async def test_adopt_can_be_given_back(lock) -> None:
    _, fencing, _ = await lock.acquire(ME)
    await lock.adopt(ME, OTHER)

    assert await lock.adopt(OTHER, ME) == fencing
    assert await lock.owned(ME) == 1


async def test_the_old_token_can_do_no_more_behind_an_adoption(lock) -> None:
    await lock.acquire(ME)
    await lock.adopt(ME, OTHER)

    assert [await lock.renew(ME), await lock.release(ME), await lock.owned(ME)] == [0, [0], 0]
    assert [await lock.renew(OTHER), await lock.owned(OTHER), await lock.release(OTHER)] == [1, 1, [1]]


async def test_adopt_of_what_is_gone_creates_nothing(lock) -> None:
    assert await lock.adopt(ME, OTHER) == b""
    assert await lock.state() == NOTHING


async def test_adopt_leaves_a_value_alone_that_is_not_ours(lock) -> None:
    for value in (b"somebody else's", b"", ME.encode(), b"%b:x:y" % ME.encode(), b"zz:17:{}"):
        await lock.redis.set(lock.lock, value)

        assert await lock.adopt(ME, OTHER) == b""
        assert await lock.value() == value


# -- annotate ------------------------------------------------------------------------------------------------


async def test_annotate_changes_the_metadata_alone(lock) -> None:
    _, fencing, _ = await lock.acquire(ME, ttl=MINUTE, retention=HOUR, metadata='{"a":":17:"}')
    await lock.redis.pexpire(lock.lock, 2 * MINUTE)

    for _ in range(2):
        assert await lock.annotate(ME, "new:18:") == 1
        assert await lock.value() == b"%b:%b:new:18:" % (ME.encode(), fencing)
        assert await lock.expires_in(lock=2 * MINUTE, fence=HOUR)
    assert await lock.renew(ME) == 1
    assert await lock.value() == b"%b:%b:new:18:" % (ME.encode(), fencing)


async def test_annotate_keeps_the_zero_of_a_fencing_token_that_was_written_back(lock) -> None:
    await lock.redis.set(lock.lock, f"{ME}:017:old", px=MINUTE)

    assert await lock.annotate(ME) == 1
    assert await lock.value() == b"%b:017:new" % ME.encode()


async def test_annotate_by_another_is_refused_and_changes_nothing(lock) -> None:
    await lock.acquire(OTHER)
    state = await lock.state()

    for token in (ME, OTHER[:-1], ""):
        assert await lock.annotate(token) == 0
    assert await lock.state() == state


async def test_annotate_never_creates_what_is_gone(lock) -> None:
    assert await lock.annotate(ME) == 0
    assert await lock.state() == NOTHING


# -- owned, locked -------------------------------------------------------------------------------------------


async def test_owned_is_the_holders_alone(lock) -> None:
    assert await lock.owned(ME) == 0

    await lock.acquire(ME)
    state = await lock.state()

    assert [await lock.owned(ME), await lock.owned(OTHER), await lock.owned(ME[:-1])] == [1, 0, 0]
    assert await lock.state() == state


async def test_locked_is_whoever_holds_it(lock) -> None:
    assert await lock.locked() == 0

    await lock.acquire(OTHER)
    assert [await lock.locked(), await lock.locked()] == [1, 1]

    await lock.release(OTHER)
    assert await lock.locked() == 0


# -- what others left there ----------------------------------------------------------------------------------

STEPS: dict[str, Callable[[LockScripts], Awaitable[Any]]] = {
    "acquire": lambda lock: lock.acquire(ME),
    "renew": lambda lock: lock.renew(ME),
    "release": lambda lock: lock.release(ME),
    "adopt": lambda lock: lock.adopt(ME, OTHER),
    "annotate": lambda lock: lock.annotate(ME),
    "owned": lambda lock: lock.owned(ME),
    "in turn": lambda lock: lock.acquire(ME, queued="x", in_turn=True),
    "leave": lambda lock: lock.release(ME, leave="x"),
}
each_step = pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)


@each_step
async def test_a_key_of_another_type_is_an_error_and_stays(lock, step) -> None:
    await lock.redis.rpush(lock.lock, "data")

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await step(lock)
    assert await lock.redis.lrange(lock.lock, 0, -1) == [b"data"]
    assert await lock.fence_value() is None


async def test_a_key_of_another_type_is_locked(lock) -> None:
    await lock.redis.rpush(lock.lock, "data")

    assert await lock.locked() == 1


async def test_a_fence_of_another_type_is_an_error_before_anything_is_written(lock) -> None:
    await lock.redis.rpush(lock.fence, "data")

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await lock.acquire(ME)
    assert await lock.value() is None


QUEUE_STEPS: dict[str, Callable[[LockScripts], Awaitable[Any]]] = {
    "in turn": lambda lock: lock.acquire(ME, in_turn=True),
    "ring": lambda lock: lock.release(ME),
    "leave": lambda lock: lock.release(ME, ring=False, leave="x"),
}


@pytest.mark.parametrize("step", QUEUE_STEPS.values(), ids=QUEUE_STEPS)
async def test_a_queue_of_another_type_is_an_error_and_stays(lock, step) -> None:
    await lock.redis.set(lock.queue, "data")

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await step(lock)
    assert await lock.everything() == [lock.queue]
    assert await lock.redis.get(lock.queue) == b"data"


async def test_a_queue_of_another_type_keeps_nobody_from_letting_go(lock) -> None:
    await lock.acquire(ME)
    await lock.redis.set(lock.queue, "data")

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await lock.release(ME)
    assert await lock.value() is None

    assert await lock.release(ME, ring=False) == [0]


@pytest.mark.parametrize("queued", [None, "x"])
async def test_a_queue_of_another_type_is_an_error_before_anything_is_taken(lock, queued) -> None:
    await lock.redis.set(lock.queue, "data")

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await lock.acquire(ME, queued=queued)
    assert await lock.everything() == [lock.queue]


@each_step
async def test_a_step_needs_no_text_on_the_server(lock, step) -> None:
    """EVAL of a script that was flushed; what EVALSHA then says is the transport's business."""
    await lock.redis.script_flush()

    await step(lock)


# -- a server that is out of memory --------------------------------------------------------------------------


@pytest.fixture
async def full(own_server, connect, prefix) -> LockScripts:
    """Held, and awaited by three, on a server that has no memory for anything new and evicts nothing."""
    server = await own_server(arguments=("--maxmemory-policy", "noeviction"))
    redis = connect(server)
    lock = LockScripts(redis, prefix)
    await lock.acquire(ME)
    for who in ("dead", "y", "x"):
        await lock.sit(who, ttl=MINUTE, queue_ttl=MINUTE)
    await lock.die("dead")
    await redis.config_set("maxmemory", 1)
    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await redis.set("anything", "new")
    return lock


async def test_out_of_memory_acquire_is_refused_and_changes_nothing(full) -> None:
    other = LockScripts(full.redis, "aiolocks")

    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await other.acquire(OTHER)
    assert await other.state() == NOTHING


async def test_out_of_memory_one_that_is_refused_is_seated(full) -> None:
    await full.acquire(OTHER, waits="new")

    assert full.bell("new") in await full.waiting()
    assert await full.states("new") == [b""]

    full.mutant = {"lock_acquire": Script("lock_acquire").text.replace(SEATED_FIRST.encode(), b"")}
    assert (await full.acquire(OTHER, waits="newer"))[0] == 0  # it is refused all the same
    assert full.bell("newer") not in await full.waiting()


async def test_out_of_memory_the_holder_can_still_renew_and_release(full) -> None:
    assert await full.renew(ME, ttl=2 * MINUTE) == 1
    assert (await full.acquire(ME))[0] == 1
    assert await full.release(ME, ring=False) == [1]
    assert await full.value() is None
    assert await full.fence_value() is not None


async def test_out_of_memory_a_release_still_keeps_the_name(full) -> None:
    assert await full.release(ME, at_least=MINUTE) == [1]
    assert (await full.value()).startswith(f"{NOBODY}{ME}:".encode())


async def test_out_of_memory_a_release_drops_the_dead_and_wakes_the_next(full) -> None:
    assert await full.release(ME) == [1, full.bell("y")]
    assert await full.waiting() == [full.bell("y"), full.bell("x")]

    assert await full.release(ME) == [0, full.bell("x")]
    assert await full.waiting() == [full.bell("x")]


async def test_out_of_memory_who_waits_can_still_leave(full) -> None:
    assert await full.release(OTHER, leave="y") == [0]
    assert await full.waiting() == [full.bell("dead"), full.bell("x")]

    assert await full.release(ME, leave="x") == [1]
    assert await full.everything() == [full.fence]


async def test_out_of_memory_the_holder_who_stands_in_the_queue_can_leave_it(full) -> None:
    assert (await full.acquire(ME, queued="y"))[::2] == [1, 2]
    assert await full.waiting() == [full.bell("dead"), full.bell("x")]


@pytest.mark.parametrize("fence", ["there", "gone"])
async def test_out_of_memory_a_lease_can_still_be_handed_over(full, fence) -> None:
    if fence == "gone":
        await full.redis.delete(full.fence)

    assert await full.adopt(ME, OTHER)
    assert await full.owned(OTHER) == 1


async def test_out_of_memory_an_annotation_is_refused_and_changes_nothing(full) -> None:
    state = await full.state()

    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await full.annotate(ME)
    assert await full.state() == state


async def test_out_of_memory_the_answers_still_come(full) -> None:
    assert [await full.owned(ME), await full.owned(OTHER), await full.locked()] == [1, 0, 1]


# -- mutants -------------------------------------------------------------------------------------------------

CHECKS = [
    value
    for name, value in sorted(globals().items())
    if name.startswith("test_") and list(inspect.signature(value).parameters) == ["lock"]
]

LEAVES = "if flags ~= FIRST_ASK and string.find(flags, 'l', 1, true) then"
SEATED_FIRST = "redis.pcall('PEXPIRE', queue, QUEUE_TTL)  -- allowed out of memory; then so are later writes"
NOT_HELD = "not held or string.sub(held, 1, #ARGV[1] + 1) ~= ARGV[1] .. ':'"
ALIKE = "not held or string.sub(held, 1, #ARGV[1]) ~= ARGV[1]"
HELD = "held and string.sub(held, 1, #ARGV[1] + 1) == ARGV[1] .. ':'"
MUTATIONS = [
    ("lock_acquire", "if held and not mine or", "if"),
    ("lock_acquire", "string.sub(held, 1, #token + 1) == token .. ':'", "true"),
    ("lock_acquire", "string.sub(held, 1, #token + 1) == token .. ':'", "false"),
    (
        "lock_acquire",
        "string.sub(held, 1, #token + 1) == token .. ':'",
        "string.sub(held, 1, #token) == token",
    ),
    ("lock_acquire", "held and redis.call('PTTL', lock) or", "held and 0 or"),
    ("lock_acquire", "if held and has('h') then", "if held then"),
    ("lock_acquire", "if held and has('h') then", "if has('h') then"),
    ("lock_acquire", "if held and has('h') then", "if false then"),
    ("lock_acquire", "if not has('w') then return reply end", "if not bell then return reply end"),
    ("lock_acquire", "'ZADD', queue, 'NX'", "'ZADD', queue"),
    ("lock_acquire", "if not hangs then redis", "if true then redis"),
    ("lock_acquire", "if not hangs and has('q')", "if has('q')"),
    ("lock_acquire", "if not hangs and has('q')", "if not hangs"),
    ("lock_acquire", "and string.match(held, ':(%d+):')", "and tonumber(string.match(held, ':(%d+):'))"),
    ("lock_acquire", "':(%d+):'", "'(%d+)'"),
    ("lock_acquire", "max(time[1] * 1000000 + time[2]", "max(time[1] * 1"),
    ("lock_acquire", "max(time[1] * 1000000 + time[2]", "max(0"),
    ("lock_acquire", "return time[1] * 1000000 + time[2]", "return 0"),
    ("lock_acquire", "not string.find(last, '^%d+$') or ", ""),
    ("lock_acquire", " or tonumber(last) >= 9007199254740991", ""),
    ("lock_acquire", "last + 1)", "last)"),
    ("lock_acquire", "'^(%x+):%d+:'", "'^(%x+)'"),
    ("lock_acquire", "#holder % 32 ~= 0", "false"),
    ("lock_acquire", "#holder % 32 ~= 0", "#holder ~= 32"),
    ("lock_acquire", "return redis.error_reply('FOREIGN 3')", ""),
    ("lock_acquire", "minted = string.format('%.0f'", "minted = string.format('%.14g'"),
    ("lock_acquire", "return string.format('%.0f'", "return string.format('%.14g'"),
    ("lock_acquire", ".. ARGV[4], 'PX', ttl", ".. ARGV[4]"),
    ("lock_acquire", "minted, 'PX', retention", "minted"),
    ("lock_acquire", "'PEXPIRE', lock, ttl", "'PEXPIRE', lock, 1000"),
    ("lock_acquire", " and string.find(flags, 't', 1, true) then", " then"),
    ("lock_acquire", "or not held and first and", "or first and"),
    ("lock_acquire", "not held and first and first", "not held and first"),
    ("lock_acquire", "first and first ~= bell and", "first and"),
    (
        "lock_acquire",
        "first and first ~= bell and string",
        "first and first ~= bell and redis.call('EXISTS', first) == 1 and string",
    ),
    ("lock_acquire", "or -2}", "or 0}"),
    ("lock_acquire", "queue, 0, 0)[1]\n", "queue, -1, -1)[1]\n"),
    ("lock_acquire", LEAVES, "if bell then"),
    ("lock_acquire", LEAVES, "if false then"),
    ("lock_acquire", LEAVES, LEAVES.replace("if", "if not mine and")),
    ("lock_acquire", "redis.call('ZREM', queue, bell)", "redis.call('DEL', queue)"),
    ("lock_acquire", "redis.call('ZREM', queue, bell)", "redis.call('ZPOPMIN', queue)"),
    ("lock_acquire", ", others}", "}"),
    ("lock_acquire", "others = others - redis.call('ZREM', queue, bell)", "redis.call('ZREM', queue, bell)"),
    ("lock_renew", NOT_HELD, "not held"),
    ("lock_renew", NOT_HELD, ALIKE),
    ("lock_renew", NOT_HELD, "false"),
    ("shared/lock_straight", "not KEYS[4] and ", ""),
    ("shared/lock_straight", "not KEYS[4] and not ARGV[4]", "not KEYS[4]"),
    ("shared/lock_straight", "held and string", "string"),
    ("shared/lock_straight", " == ARGV[1] .. ':'", " ~= ''"),
    ("shared/lock_straight", "redis.pcall('ZCARD', KEYS[3]) == 0", "true"),
    ("shared/lock_straight", "redis.pcall('ZCARD'", "redis.call('ZCARD'"),
    ("shared/lock_straight", "redis.call('DEL', KEYS[1])", ""),
    ("shared/lock_straight", "redis.call('PEXPIRE', KEYS[2], ARGV[2])", ""),
    ("shared/lock_straight", "return {1}", "return {0}"),
    ("lock_release", HELD, "held"),
    ("lock_release", HELD, "held and string.sub(held, 1, #ARGV[1]) == ARGV[1]"),
    ("lock_release", HELD, HELD.removeprefix("held and ")),
    ("lock_release", "redis.call('DEL', lock)", "redis.call('DEL', lock, KEYS[2])"),
    ("lock_release", "if ARGV[4] then", "if false then"),
    ("lock_release", "if left > 0 then", "if ARGV[4] then"),
    ("lock_release", "if left > 0 then", "if false then"),
    ("lock_release", "math.min(now, string.match(held, ':(%d+):'))", "now"),
    ("lock_release", "math.min(now, string.match(held, ':(%d+):'))", "string.match(held, ':(%d+):')"),
    ("lock_release", "'PX', left", "'PX', ARGV[4]"),
    ("lock_release", ", 'PX', left", ""),
    ("lock_release", "string.rep('0', 32)", "''"),
    ("lock_release", "string.rep('0', 32)", "string.rep('0', 31)"),
    ("lock_release", "if bell then", "if true then"),
    ("lock_release", "if bell then", "if false then"),
    ("lock_release", "if bell then", "if bell and freed == 1 then"),
    ("lock_release", "if bell then", "if bell and freed == 0 then"),
    ("lock_release", "redis.call('ZREM', queue, bell)", "redis.call('DEL', queue)"),
    ("lock_release", "while ARGV[3] == '1' and not held do", "while not held do"),
    ("lock_release", "while ARGV[3] == '1' and not held do", "while ARGV[3] and not held do"),
    ("lock_release", "while ARGV[3] == '1' and not held do", "while ARGV[3] == '1' do"),
    ("lock_release", "while ARGV[3] == '1' and not held do", "while ARGV[3] == '1' and freed == 1 do"),
    ("lock_release", "while ARGV[3] == '1' and not held do", "while false do"),
    ("lock_release", "queue, 0, 0)[1]", "queue, -1, -1)[1]"),
    ("lock_release", "redis.call('DEL', first) == 1", "redis.call('EXISTS', first) == 1"),
    ("lock_release", "redis.call('DEL', first) == 1", "redis.call('DEL', first) >= 0"),
    ("lock_release", "then return {freed, first} end", "then redis.call('ZREM', queue, first) break end"),
    ("lock_release", "entry and bell_in(queue, entry, 0)", "entry"),
    ("lock_release", "{freed, first}", "{1, first}"),
    ("lock_release", "freed = thief_of(ARGV[1])", "freed = 0"),
    ("lock_release", "elseif not bell then", "else"),
    ("lock_release", "{freed, first}", "{freed}"),
    ("lock_release", "redis.call('ZREM', queue, first)", "break"),
    ("lock_release", "redis.call('ZREM', queue, first)", "redis.call('ZREM', queue, first) break"),
    ("lock_release", "redis.call('ZREM', queue, first)", "redis.call('DEL', queue)"),
    ("lock_adopt", "holder ~= ARGV[1] and ", ""),
    ("lock_adopt", " and holder ~= ARGV[2]", ""),
    ("lock_adopt", "':' .. ARGV[5]", "':'"),
    ("lock_adopt", ", 'PX', ARGV[3]", ""),
    ("lock_adopt", "'^(%x+):(%d+):'", "'^(.+):(%d+):'"),
    ("lock_annotate", NOT_HELD, "not held"),
    ("lock_annotate", NOT_HELD, ALIKE),
    ("lock_annotate", ", 'KEEPTTL'", ""),
    ("lock_annotate", "':%d+:'", "':.+:'"),
    ("lock_owned", NOT_HELD, "not held"),
    ("lock_owned", NOT_HELD, ALIKE),
    ("lock_locked", "'EXISTS'", "'DEL'"),
]
SCRIPTS = [
    *(f"lock_{verb}" for verb in ("acquire", "renew", "release", "adopt", "annotate", "owned", "locked")),
]
_TRY = "(not has('w') or has('e'))"
AS_GOOD = [
    ("lock_acquire", SEATED_FIRST),
    ("lock_acquire", "redis.call('PEXPIRE', queue, QUEUE_TTL)"),
    ("lock_acquire", f"redis.call('SET', lock, head .. ({_TRY} and '4' or '2') .. rest, 'KEEPTTL')"),
    (
        "lock_acquire",
        f"if mark and mark ~= '3' and (not first or first == bell) and {_TRY} then reply[2] = -5 end",
    ),
]
"""Only a server out of memory needs the first two: see above, and of the others `test_kept_scripts.py`."""


def statements(script: str) -> list[tuple[str, int]]:
    """The lines of a script that would still compile without: all but those that open or close a block."""
    lines = text_of(script).splitlines()
    return [
        (script, number)
        for number, line in enumerate(map(str.strip, lines), start=1)
        if line
        and not line.startswith("--")
        and line != "end"
        and not line.endswith((" then", " do"))
        and (script, line) not in AS_GOOD
    ]


JURY = Jury(CHECKS)


async def test_the_scripts_themselves_are_not_complained_of(lock) -> None:
    assert [check for check in CHECKS if await fails(check, lock)] == []


@pytest.mark.long
async def test_without_its_guard_somebody_notices(redis, prefix) -> None:
    texts = [(script, guard, instead, text_of(script)) for script, guard, instead in MUTATIONS]
    assert [(script, guard) for script, guard, _, text in texts if text.count(guard) != 1] == []
    mutants = [
        (f"{script}: {guard!r} -> {instead!r}", script, text.replace(guard, instead).encode())
        for script, guard, instead, text in texts
    ]

    assert await told_by_nothing(redis, prefix, mutants) == []


@pytest.mark.long
async def test_without_a_line_somebody_notices(redis, prefix) -> None:
    mutants = []
    for script, number in (line for step in SCRIPTS for line in statements(step)):
        lines = text_of(script).splitlines()
        line = lines.pop(number - 1)
        mutants.append((f"{script}:{number}: {line.strip()}", script, "\n".join(lines).encode()))

    assert await told_by_nothing(redis, prefix, mutants) == []


async def told_by_nothing(redis, prefix: str, mutants: list[tuple[str, str, bytes]]) -> list[str]:
    """Those mutants, each with its name and its file, that do not compile or that no check complains of."""
    return [
        name
        for name, script, text in mutants
        # It compiles: what is noticed is what it does.
        if not await compiles(redis, LockScripts(redis, prefix, {script: text}).text(script))
        or not await JURY.notices(LockScripts, redis, prefix, script, text)
    ]
