"""The scripts of kinds with several permits: every branch, said twice, by the wrong one, over leavings.

A test that asks for `permits` alone is also run on mutants of the scripts, by the tests at the end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import ResponseError

from aiolocks.kinds.permits import PermitSteps
from aiolocks.transport import IN_TURN, PASSING, SEATED, STAYING, WAITING
from aiolocks.transport.steps.listening import Listener
from tests.lua.mutants import (
    Mutation,
    checks,
    compiled,
    fails,
    lines_left_out,
    surviving,
    text_of,
    unnoticed,
)
from tests.lua.scripts import (
    BELL,
    DAY,
    HOUR,
    MINUTE,
    NO_FENCES,
    QUEUE,
    SEAT,
    WALK,
    PermitScripts,
    about,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.leaves_keys(
    "aiolocks*:semaphore*"
)  # without a ttl, where a test has put them there itself

ME, OTHER, THIRD, FOURTH = "a1" * 16, "b2" * 16, "c3" * 16, "d4" * 16
FIRST, SECOND = "1" * 16, "2" * 16
"""Seats of a session."""
LATER = 9_007_199_254_740_000
"""A fencing token of the year 2255, near the largest whole number that a double can hold exactly."""
SLACK = 1_000
"""Milliseconds that keys outlast what stands in them."""


@pytest.fixture
def permits(redis, prefix) -> PermitScripts:
    return PermitScripts(redis, prefix)


# -- acquire -------------------------------------------------------------------------------------------------


async def test_acquire_takes_what_is_free(permits) -> None:
    granted, fencing, others, room = await permits.acquire(ME, 2, metadata='{"pid":1}')

    assert (granted, others, room) == (1, 0, 0)
    assert await permits.held() == {ME.encode(): 2}
    assert await permits.lease(ME) == b'2:%b:{"pid":1}' % fencing
    assert await permits.redis.get(permits.fence) == fencing
    assert await permits.redis.hgetall(permits.value) == {b"first": b"3", b"current": b"3"}


async def test_acquire_says_for_how_many_more_of_the_same_there_is_room(permits) -> None:
    assert (await permits.acquire(ME, 2, value=9))[3] == 3
    assert (await permits.acquire(OTHER, 7, value=9))[3] == 0
    await permits.resize(5, first=9)
    assert (await permits.acquire(ME, 2, value=9))[3] == 0  # less than none, and by two


async def test_acquire_notes_the_end_of_the_lease(permits) -> None:
    await permits.acquire(ME, 2, ttl=MINUTE)
    seconds, micros = await permits.redis.time()

    [(token, end)] = await permits.redis.zrange(permits.holders, 0, -1, withscores=True)
    assert token == ME.encode()
    assert about(end - seconds * 1000 - micros // 1000 - 1, MINUTE)


async def test_acquire_without_a_value_has_one_permit_and_writes_none(permits) -> None:
    assert (await permits.acquire(ME, value=""))[0] == 1
    assert (await permits.acquire(OTHER, value=""))[0] == 0
    assert not await permits.redis.exists(permits.value)


async def test_acquire_sets_the_ttls(permits) -> None:
    await permits.acquire(ME, ttl=MINUTE, retention=HOUR, kept=DAY)

    for key in (permits.holders, permits.leases):
        assert MINUTE < await permits.redis.pttl(key) <= MINUTE + SLACK
    assert await permits.lasts(permits.fence, HOUR)
    assert await permits.lasts(permits.value, DAY)


async def test_acquire_keeps_the_value_for_longer_than_it_was_to_be_kept(permits) -> None:
    await permits.acquire(OTHER, 3)
    await permits.redis.delete(permits.value)
    assert (await permits.acquire(ME, kept=MINUTE))[0] == 0
    assert await permits.lasts(permits.value, MINUTE)
    await permits.release(OTHER)

    await permits.acquire(ME, kept=HOUR)
    assert await permits.lasts(permits.value, HOUR)
    await permits.acquire(ME, kept=DAY)
    assert await permits.lasts(permits.value, DAY)


async def test_a_shorter_lease_shortens_no_ttl(permits) -> None:
    await permits.acquire(ME, ttl=MINUTE, retention=HOUR, kept=DAY)
    await permits.acquire(OTHER, ttl=1000, retention=MINUTE, kept=HOUR)
    await permits.renew(OTHER, ttl=1000, retention=MINUTE, kept=HOUR)
    await permits.adopt(OTHER, THIRD, ttl=1000, retention=MINUTE)
    await permits.resize(4, kept=HOUR)
    await permits.release(THIRD, retention=MINUTE)

    assert await permits.lasts(permits.holders, MINUTE + SLACK)
    assert await permits.lasts(permits.leases, MINUTE + SLACK)
    assert await permits.lasts(permits.fence, HOUR)
    assert await permits.lasts(permits.value, DAY)


async def test_acquire_said_twice_is_the_same_grant_with_its_end_set_anew(permits) -> None:
    first = await permits.acquire(ME, 2, ttl=1000, retention=MINUTE)
    state = await permits.state()

    assert await permits.acquire(ME, 2, ttl=MINUTE, retention=HOUR, metadata="other") == first
    assert await permits.state() == state
    seconds, _ = await permits.redis.time()
    for _, end in await permits.redis.zrange(permits.holders, 0, -1, withscores=True):
        assert about(end - seconds * 1000 - 1000, MINUTE)
    assert await permits.lasts(permits.leases, MINUTE + SLACK)
    assert await permits.lasts(permits.fence, HOUR)


async def test_acquire_is_refused_while_others_hold_too_many_and_changes_nothing(permits) -> None:
    await permits.acquire(OTHER, 2, ttl=MINUTE)
    await permits.acquire(THIRD, ttl=HOUR)
    state = await permits.state()

    granted, remaining = await permits.acquire(ME)

    assert granted == 0
    assert about(remaining, MINUTE + 1)
    assert await permits.state() == state


async def test_of_many_permits_all_or_none_are_had(permits) -> None:
    await permits.acquire(OTHER, 2)

    assert (await permits.acquire(ME, 2))[0] == 0
    assert await permits.held() == {OTHER.encode(): 2}
    assert (await permits.acquire(ME, 1))[0] == 1


async def test_who_is_refused_is_told_who_holds_if_asked_for(permits) -> None:
    await permits.acquire(OTHER, 2, ttl=HOUR, metadata='{"a": ":1:"}')
    await permits.acquire(THIRD, ttl=MINUTE)
    await permits.sit("x")

    granted, remaining, (now, value, *told) = await permits.acquire(ME, 2, flags="h")

    assert (granted, value) == (0, 3)
    assert await permits.is_now(now)
    assert told[::3] == [THIRD.encode(), OTHER.encode()]  # the first to end comes first
    assert remaining - 100 <= told[1] <= remaining
    assert HOUR - 5_000 < told[4] <= HOUR
    assert told[2::3] == [await permits.lease(THIRD), await permits.lease(OTHER)]
    await permits.release(OTHER, flags="")
    refused = await permits.acquire(ME, 3, who="y", flags="hp")
    assert (len(refused[2]), refused[3:]) == (5, [permits.bell("x")])


async def test_of_many_holders_eight_are_told_of(permits) -> None:
    tokens = [f"{number:032x}" for number in range(10)]
    for number, token in enumerate(tokens):
        await permits.acquire(token, value=10, ttl=MINUTE + number * 1000)

    told = (await permits.acquire(ME, value=10, flags="h"))[2]

    assert told[1] == 10
    assert told[2::3] == [token.encode() for token in tokens[:8]]


async def test_of_fewer_permits_than_wanted_no_release_makes_enough(permits) -> None:
    await permits.resize(2, kept=MINUTE)
    await permits.acquire(OTHER, kept=MINUTE)

    assert await permits.acquire(ME, 3, kept=HOUR) == [0, -3]
    assert await permits.lasts(permits.value, HOUR)  # while somebody waits for it, it stays what it is
    assert (await permits.acquire(ME, 2))[1] > 0
    await permits.resize(3)
    await permits.release(OTHER)
    assert (await permits.acquire(ME, 3))[0] == 1


async def test_of_none_nobody_gets_any_and_who_holds_keeps_his(permits) -> None:
    await permits.acquire(ME)
    assert await permits.resize(0) == [1, 0]

    assert await permits.acquire(OTHER) == [0, -3]
    assert await permits.available() == 0
    assert await permits.renew(ME) == 1
    assert (await permits.acquire(ME))[0] == 1
    assert await permits.release(ME) == [1]
    assert await permits.acquire(OTHER) == [0, -3]
    await permits.resize(1)
    assert (await permits.acquire(OTHER))[0] == 1


async def test_as_many_as_either_value_allows_may_be_had(permits) -> None:
    assert await permits.acquire(ME, 4) == [3, 3]
    await permits.resize(5)
    assert (await permits.acquire(ME, 5))[0] == 1
    granted, remaining = await permits.acquire(OTHER, 4)
    assert granted == 0
    assert about(remaining, MINUTE)
    assert await permits.acquire(OTHER, 6) == [3, 5]
    await permits.resize(1)
    assert (await permits.acquire(ME, 5))[0] == 1  # said again
    assert await permits.acquire(OTHER, 4) == [3, 1]
    assert await permits.acquire(OTHER, 3) == [0, -3]


async def test_who_can_never_have_so_many_leaves_the_queue_and_wakes_the_next(permits) -> None:
    await permits.resize(4)
    await permits.acquire(THIRD, 4)
    for who, seat in (("x", FIRST), ("y", SECOND)):
        await permits.sit(who, seat=seat)
    await permits.release(THIRD, flags="")
    await permits.resize(3)
    await permits.sit("y", seat=SECOND)

    asked = await permits.acquire(ME, 4, who="x", seat=FIRST, flags="qtwl")

    assert asked == [3, 3, permits.bell("y")]
    assert await permits.waiting() == [permits.entry("y", SECOND)]
    assert await permits.states("x", "y") == [None, b"rung"]
    await permits.sit("y", seat=SECOND)
    asked = await permits.acquire(ME, 4, who="y", seat=FIRST, flags="qtws")
    assert asked == [3, 3, permits.bell("y")]  # others of its session are there


async def test_acquire_with_another_value_is_told_of_the_one_that_there_is(permits) -> None:
    await permits.acquire(ME)
    await permits.resize(7)
    state = await permits.state()

    assert await permits.acquire(OTHER, value=5) == [2, 3, 7]
    assert await permits.state() == state


async def test_where_nobody_holds_or_waits_another_value_takes_the_place_of_the_first(permits) -> None:
    await permits.acquire(ME, 2)
    await permits.release(ME)

    assert (await permits.acquire(OTHER, 5, value=5))[0] == 1
    assert await permits.redis.hgetall(permits.value) == {b"first": b"5", b"current": b"5"}
    assert await permits.acquire(ME) == [2, 5, 5]


async def test_another_value_waits_for_the_last_holder_and_for_no_dead_one(permits) -> None:
    await permits.acquire(ME)
    await permits.acquire(OTHER, ttl=HOUR)
    await permits.release(ME)
    assert await permits.acquire(THIRD, value=5) == [2, 3, 3]
    await permits.acquire(ME)
    await permits.end(OTHER)
    assert await permits.acquire(THIRD, value=5) == [2, 3, 3]
    await permits.end(ME)

    assert (await permits.acquire(THIRD, 5, value=5))[0] == 1
    assert await permits.held() == {THIRD.encode(): 5}


async def test_permits_that_are_kept_for_nobody_keep_another_value_out(permits) -> None:
    await permits.acquire(ME)
    await permits.release(ME, at_least=MINUTE)

    assert await permits.acquire(OTHER, value=5) == [2, 3, 3]


async def test_another_value_waits_for_the_last_waiter_and_for_no_dead_one(permits) -> None:
    await permits.acquire(ME)
    await permits.release(ME)
    for who in ("x", "y"):
        await permits.sit(who)
    await permits.die("x")
    state = await permits.redis.hgetall(permits.value)
    assert await permits.acquire(OTHER, value=5) == [2, 3, 3]
    assert await permits.available(5) == [3, 3]
    assert await permits.resize(9, first=5) == [2, 3, 3]
    assert await permits.redis.hgetall(permits.value) == state
    await permits.die("y")

    assert (await permits.acquire(OTHER, 5, value=5))[0] == 1


async def test_what_resize_has_set_stays_under_another_value(permits) -> None:
    for resized in (0, 2, 7):
        await permits.clear()
        await permits.resize(resized)

        granted, *_ = await permits.acquire(ME, 2, value=5)

        assert granted == (resized >= 2)
        kept = {b"first": b"5", b"current": b"%d" % resized, b"resized": b"1"}
        assert await permits.redis.hgetall(permits.value) == kept


async def test_what_resize_has_set_stays_also_once_a_value_was_the_same(permits) -> None:
    await permits.resize(5)
    assert (await permits.acquire(ME, 5, value=5))[0] == 1
    await permits.release(ME)

    assert (await permits.acquire(ME, 5, value=3))[0] == 1


async def test_what_an_earlier_version_has_resized_stays(permits) -> None:
    await permits.resize(5)
    await permits.redis.hdel(permits.value, "resized")

    assert (await permits.acquire(ME, 5, value=4))[0] == 1


async def test_a_value_that_was_resized_to_the_first_one_is_not_resized(permits) -> None:
    await permits.resize(7)
    await permits.resize(3)

    assert (await permits.acquire(ME, 4, value=4))[0] == 1


async def test_a_value_that_was_forgotten_is_noted_anew(permits) -> None:
    await permits.acquire(ME)
    await permits.redis.delete(permits.value)

    assert (await permits.acquire(OTHER, 2, value=4))[0] == 1
    assert await permits.redis.hgetall(permits.value) == {b"first": b"4", b"current": b"4"}


async def test_acquire_keeps_what_it_was_resized_to(permits) -> None:
    await permits.resize(1)
    await permits.acquire(ME)

    assert (await permits.acquire(OTHER))[0] == 0


async def test_acquire_takes_back_what_has_come_to_its_end(permits) -> None:
    await permits.acquire(OTHER, 2)
    await permits.acquire(THIRD)
    await permits.end(OTHER)

    assert (await permits.acquire(ME))[0] == 1
    assert await permits.held() == {THIRD.encode(): 1, ME.encode(): 1}


async def test_who_has_come_to_his_end_holds_no_more(permits) -> None:
    await permits.acquire(ME)
    await permits.end(ME)

    assert await permits.renew(ME) == 0
    assert await permits.lease(ME) is None
    first = await permits.acquire(OTHER)
    assert int((await permits.acquire(ME))[1]) > int(first[1])


STEPS_THAT_PURGE: dict[str, Callable[[PermitScripts], Awaitable[Any]]] = {
    "acquire": lambda permits: permits.acquire(OTHER),
    "renew": lambda permits: permits.renew(OTHER),
    "release": lambda permits: permits.release(OTHER),
    "adopt": lambda permits: permits.adopt(OTHER, THIRD),
    "owned": lambda permits: permits.owned(OTHER),
    "available": lambda permits: permits.available(),
    "resize": lambda permits: permits.resize(4),
}


async def test_each_step_removes_what_has_come_to_its_end(permits) -> None:
    for name, step in STEPS_THAT_PURGE.items():
        await permits.clear()
        await permits.acquire(ME, 2)
        await permits.end(ME)
        await step(permits)

        assert ME.encode() not in await permits.held(), name
        assert await permits.lease(ME) is None, name


# -- what is lost --------------------------------------------------------------------------------------------


async def test_lost_holders_are_nobodys_and_nobody_holds_twice(permits) -> None:
    await permits.acquire(ME, value=1)
    await permits.redis.delete(permits.holders)

    assert [await permits.owned(ME), await permits.renew(ME)] == [0, 0]
    assert (await permits.acquire(OTHER, value=1))[0] == 1
    assert [await permits.owned(ME), await permits.renew(ME)] == [0, 0]
    assert await permits.held() == {OTHER.encode(): 1}
    assert (await permits.acquire(ME, value=1))[0] == 0


async def test_lost_leases_are_nobodys_and_nobody_holds_twice(permits) -> None:
    await permits.acquire(ME, value=1)
    await permits.redis.delete(permits.leases)

    assert [await permits.owned(ME), await permits.renew(ME), await permits.release(ME)] == [0, 0, [0]]
    assert (await permits.acquire(OTHER, value=1))[0] == 1
    assert await permits.held() == {OTHER.encode(): 1}
    assert (await permits.acquire(ME, value=1))[0] == 0


async def test_what_is_lost_in_part_is_counted_anew(permits) -> None:
    for lost in (
        lambda: permits.redis.zrem(permits.holders, ME),
        lambda: permits.redis.hdel(permits.leases, ME),
        lambda: permits.redis.hdel(permits.leases, "held"),
    ):
        await permits.clear()
        await permits.acquire(ME, 2, value=9)
        await permits.acquire(OTHER, 3, value=9)
        await lost()
        mine = await permits.owned(ME)

        assert await permits.available(9) == (4 if mine else 6)
        assert await permits.held() == {OTHER.encode(): 3} | ({ME.encode(): 2} if mine else {})
        assert await permits.release(OTHER) == [1]


async def test_what_is_lost_and_what_has_come_to_its_end_are_told_apart(permits) -> None:
    await permits.acquire(ME, 2, value=9)
    await permits.acquire(OTHER, 3, value=9)
    await permits.acquire(THIRD, 4, value=9)
    await permits.redis.hdel(permits.leases, ME)
    await permits.end(OTHER)

    assert await permits.available(9) == 5
    assert await permits.held() == {THIRD.encode(): 4}


# -- fencing tokens ------------------------------------------------------------------------------------------


async def test_acquire_mints_the_servers_time_in_microseconds(permits) -> None:
    before = await permits.redis.time()
    _, fencing, *_ = await permits.acquire(ME)
    after = await permits.redis.time()

    assert before[0] * 10**6 + before[1] <= int(fencing) <= after[0] * 10**6 + after[1]


async def test_acquire_mints_one_more_than_a_fence_that_is_ahead_of_the_clock(permits) -> None:
    await permits.redis.set(permits.fence, LATER)

    assert (await permits.acquire(ME))[1] == b"9007199254740001"
    assert (await permits.acquire(OTHER))[1] == b"9007199254740002"
    assert await permits.redis.get(permits.fence) == b"9007199254740002"
    assert await permits.lasts(permits.fence, HOUR)


async def test_fencing_tokens_rise_over_the_loss_of_the_fence(permits) -> None:
    minted = []
    for token in (ME, OTHER, THIRD):
        minted.append(int((await permits.acquire(token))[1]))
        await permits.redis.delete(permits.fence)

    assert minted == sorted(set(minted))


async def test_acquire_is_refused_by_a_fence_that_is_not_ours(permits) -> None:
    for corrupt in NO_FENCES:
        await permits.redis.set(permits.fence, corrupt)
        with pytest.raises(ResponseError, match="FOREIGN 4"):
            await permits.acquire(ME)
        assert await permits.redis.get(permits.fence) == corrupt.encode()
        assert await permits.held() == {}


async def test_acquire_passes_over_a_fence_of_long_ago(permits) -> None:
    await permits.redis.set(permits.fence, "17")
    seconds, _ = await permits.redis.time()
    _, fencing, *_ = await permits.acquire(ME)

    assert seconds * 10**6 <= int(fencing) < 2**53
    assert await permits.redis.get(permits.fence) == fencing


async def test_members_of_others_are_left_alone_by_who_holds_and_refuse_the_next(permits) -> None:
    """Also those that look as if their time had come."""
    await permits.acquire(ME)
    await permits.redis.zadd(permits.holders, {"old": 1, "new": 1e15})
    for step in (lambda: permits.acquire(OTHER), permits.available):
        with pytest.raises(ResponseError, match="FOREIGN 1"):
            await step()
    assert [await permits.renew(ME), await permits.owned(ME)] == [1, 1]
    assert await permits.adopt(ME, OTHER)
    assert await permits.release(OTHER) == [1]
    assert await permits.redis.zrange(permits.holders, 0, -1) == [b"old", b"new"]
    assert not await permits.redis.exists(permits.leases)

    await permits.clear()
    await permits.acquire(ME)
    await permits.redis.hset(permits.leases, "hello", "world")
    for step in (lambda: permits.acquire(OTHER), permits.available):
        with pytest.raises(ResponseError, match="FOREIGN 2"):
            await step()
    assert await permits.renew(ME) == 1
    assert await permits.release(ME) == [1]
    assert await permits.redis.hgetall(permits.leases) == {b"hello": b"world"}


async def test_a_single_field_of_others_is_no_lease(permits) -> None:
    for field, content in (("hello", "world"), ("held", "world")):
        await permits.clear()
        await permits.redis.hset(permits.leases, field, content)
        if field == "held":  # a sum of nothing is no sum, and is counted again
            assert (await permits.acquire(ME))[0] == 1
            continue
        with pytest.raises(ResponseError, match="FOREIGN 2"):
            await permits.acquire(ME)
        assert set(await permits.everything()) == {permits.leases, permits.value}


async def test_a_value_of_others_is_refused_and_stays(permits) -> None:
    for content in ({"hello": "world"}, {"current": "3"}, {"first": "x", "current": "3"}):
        await permits.clear()
        await permits.redis.hset(permits.value, mapping=content)
        for step in (lambda: permits.acquire(ME), permits.available, lambda: permits.resize(4)):
            with pytest.raises(ResponseError, match="FOREIGN 3"):
                await step()
        assert await permits.everything() == [permits.value]
        assert len(await permits.redis.hgetall(permits.value)) == len(content)
    await permits.redis.hset(permits.value, mapping={"first": "3", "current": "x"})
    with pytest.raises(ResponseError, match="FOREIGN 3"):
        await permits.acquire(ME)


async def test_a_sum_of_others_is_refused(permits) -> None:
    await permits.acquire(ME)
    await permits.redis.hset(permits.leases, "held", "x")
    with pytest.raises(ResponseError, match="FOREIGN 2"):
        await permits.acquire(OTHER)
    with pytest.raises(ResponseError, match="not an integer"):
        await permits.release(ME)


async def test_a_queue_of_others_is_refused_and_costs_nobody_a_key(permits) -> None:
    await permits.acquire(ME)
    await permits.redis.zadd(permits.queue, {permits.key("precious") + SEAT.encode(): 1})
    await permits.redis.set(permits.key("precious"), "")
    assert await permits.release(ME) == [1]
    assert await permits.release(ME, seat=FIRST) == [0]
    for flags in ("", "tw"):
        with pytest.raises(ResponseError, match="FOREIGN 5"):
            await permits.acquire(OTHER, seat=FIRST, flags=flags)
    assert await permits.held() == {}
    assert await permits.waiting() == [permits.key("precious") + SEAT.encode()]
    assert await permits.redis.delete(permits.key("precious")) == 1


async def test_metadata_is_kept_byte_for_byte_and_does_not_confuse(permits) -> None:
    for metadata in (b"", b":", b":17:", b"3:17:x", b"\0\r\n", b"\xff\xfe", b"%s%d", b"x" * 10_000):
        _, fencing, *_ = await permits.acquire(ME, 2, metadata=metadata)

        assert await permits.lease(ME) == b"2:%b:%b" % (fencing, metadata)
        assert (await permits.acquire(ME, 2, metadata=metadata))[1] == fencing
        assert await permits.adopt(ME, OTHER, metadata=metadata) == fencing
        assert await permits.lease(OTHER) == b"2:%b:%b" % (fencing, metadata)
        await permits.release(OTHER)


# -- renew, release, adopt, owned ----------------------------------------------------------------------------


async def test_renew_sets_the_ends_and_the_ttls_anew_and_nothing_else(permits) -> None:
    await permits.acquire(ME, 2, ttl=1000, retention=MINUTE, kept=HOUR)
    state = await permits.state()

    for _ in range(2):
        assert await permits.renew(ME, ttl=MINUTE, retention=HOUR, kept=DAY) == 1
        assert await permits.state() == state
        seconds, _ = await permits.redis.time()
        for _, end in await permits.redis.zrange(permits.holders, 0, -1, withscores=True):
            assert about(end - seconds * 1000 - 1000, MINUTE)
        assert await permits.lasts(permits.holders, MINUTE + SLACK)
        assert await permits.lasts(permits.leases, MINUTE + SLACK)
        assert await permits.lasts(permits.fence, HOUR)
        assert await permits.lasts(permits.value, DAY)


async def test_renewing_mine_renews_nobody_elses(permits) -> None:
    await permits.acquire(OTHER, ttl=1000)
    end = await permits.redis.zscore(permits.holders, OTHER)
    await permits.acquire(ME)
    await permits.renew(ME)

    assert await permits.redis.zscore(permits.holders, OTHER) == end


async def test_renew_by_another_is_refused_and_changes_nothing(permits) -> None:
    await permits.acquire(OTHER)
    state = await permits.state()

    for stranger in (ME, OTHER[:-1], OTHER + "0", ""):
        assert await permits.renew(stranger) == 0
    assert await permits.state() == state


async def test_renew_never_creates_what_is_gone(permits) -> None:
    assert await permits.renew(ME) == 0
    assert await permits.everything() == []


async def test_release_gives_the_permits_back_and_keeps_the_fence(permits) -> None:
    _, fencing, *_ = await permits.acquire(ME, 2, retention=MINUTE)
    await permits.acquire(OTHER, retention=MINUTE)

    assert await permits.release(ME, retention=HOUR) == [1]

    assert await permits.held() == {OTHER.encode(): 1}
    assert await permits.lease(ME) is None
    assert int(await permits.redis.get(permits.fence)) > int(fencing)
    assert await permits.lasts(permits.fence, HOUR)


async def test_release_said_twice_leaves_what_it_left_once(permits) -> None:
    await permits.acquire(ME, 2)
    await permits.acquire(OTHER)
    assert await permits.release(ME) == [1]
    state = await permits.state()

    assert await permits.release(ME) == [0]
    assert await permits.state() == state


async def test_release_by_another_is_refused_and_changes_nothing(permits) -> None:
    await permits.acquire(OTHER)
    state = await permits.state()

    for stranger in (ME, OTHER[:-1], OTHER + "0", ""):
        assert await permits.release(stranger) == [0]
    assert await permits.state() == state


NOBODY = "0" * 32


async def granted(permits: PermitScripts, number: int = 3, *, ago: int = 0) -> int:
    """Permits that I have held for `ago` milliseconds; the fencing token."""
    _, fencing, *_ = await permits.acquire(ME, number, ttl=HOUR)
    since = int(fencing) // 1000 * 1000 - ago * 1000 + 500  # between two milliseconds
    await permits.redis.hset(permits.leases, ME, f"{number}:{since}:{{}}")
    return since


async def test_release_before_their_time_keeps_the_permits_for_nobody(permits) -> None:
    fencing = await granted(permits)
    await permits.sit("x")

    assert await permits.release(ME, at_least=MINUTE, retention=2 * HOUR) == [1]

    kept = NOBODY + ME
    assert await permits.held() == {kept.encode(): 3}
    assert await permits.lease(kept) == b"3:%d:{}" % fencing
    assert [await permits.owned(ME), await permits.available()] == [0, 0]
    assert await permits.lasts(permits.fence, 2 * HOUR)


async def test_that_time_is_counted_from_the_grant_by_the_servers_clock(permits) -> None:
    fencing = await granted(permits, ago=20_000)

    assert await permits.release(ME, at_least=MINUTE) == [1]

    end = await permits.redis.zscore(permits.holders, NOBODY + ME)
    assert fencing / 1000 + MINUTE <= end < fencing / 1000 + MINUTE + 1


async def test_what_is_kept_last_does_not_keep_its_keys_for_longer_than_its_time(permits) -> None:
    await granted(permits)
    assert await permits.release(ME, at_least=MINUTE) == [1]
    for key in (permits.holders, permits.leases):
        assert await permits.redis.pttl(key) <= MINUTE + SLACK + 1


async def test_beside_another_lease_the_keys_last_as_long_as_that(permits) -> None:
    await granted(permits, 1)
    await permits.acquire(OTHER, 1, ttl=HOUR)
    assert await permits.release(ME, at_least=MINUTE) == [1]
    for key in (permits.holders, permits.leases):
        assert await permits.redis.pttl(key) > HOUR - MINUTE


async def test_release_after_their_time_gives_them_back_and_wakes_as_usual(permits) -> None:
    await granted(permits, ago=MINUTE + 1)
    await permits.sit("x")

    assert await permits.release(ME, at_least=MINUTE) == [1, permits.bell("x")]
    assert await permits.held() == {}


async def test_a_fencing_token_ahead_of_the_clock_does_not_lengthen_that_time(permits) -> None:
    await granted(permits, ago=-HOUR)
    seconds, _ = await permits.redis.time()

    assert await permits.release(ME, at_least=MINUTE) == [1]
    end = await permits.redis.zscore(permits.holders, NOBODY + ME)
    assert end < seconds * 1000 + MINUTE + 30_000


async def test_a_kept_permit_is_not_taken_nor_renewed_nor_adopted_by_anybody(permits) -> None:
    await granted(permits)
    await permits.sit("x")
    assert await permits.release(ME, at_least=MINUTE) == [1]
    state = await permits.state()

    for token in (ME, OTHER, NOBODY):
        refused, remaining = await permits.acquire(token)
        assert refused == 0
        assert about(remaining, MINUTE + 1)
        assert await permits.renew(token) == 0
        assert await permits.adopt(token, OTHER) == b""
        assert await permits.release(token, at_least=MINUTE) == [0]
    assert await permits.state() == state


async def test_after_their_time_the_next_takes_them(permits) -> None:
    fencing = await granted(permits)
    await permits.release(ME, at_least=200)

    async def acquired() -> int:
        answer = await permits.acquire(OTHER, 3)
        return int(answer[1]) if answer[0] == 1 else 0

    minted = await eventually(acquired)
    assert minted >= fencing + 199_000
    assert await permits.held() == {OTHER.encode(): 3}


async def test_the_last_release_leaves_fence_and_value_alone(permits) -> None:
    await permits.acquire(ME, 3)
    await permits.release(ME)

    assert sorted(await permits.everything()) == sorted([permits.fence, permits.value])


async def test_adopt_swaps_the_token_and_keeps_fencing_token_and_permits(permits) -> None:
    _, fencing, *_ = await permits.acquire(ME, 2, ttl=1000, retention=MINUTE, metadata="old")

    assert await permits.adopt(ME, OTHER, ttl=MINUTE, retention=HOUR, metadata="new") == fencing

    assert await permits.held() == {OTHER.encode(): 2}
    assert await permits.lease(OTHER) == b"2:%b:new" % fencing
    assert await permits.lasts(permits.holders, MINUTE + SLACK)
    assert await permits.lasts(permits.fence, HOUR)


async def test_adopt_said_twice_is_said_once(permits) -> None:
    await permits.acquire(ME, 2)
    first = await permits.adopt(ME, OTHER, metadata="new")
    state = await permits.state()

    assert await permits.adopt(ME, OTHER, metadata="new") == first
    assert await permits.state() == state


async def test_of_two_who_adopt_one_finds_it_in_place(permits) -> None:
    await permits.acquire(ME)
    await permits.adopt(ME, OTHER)
    state = await permits.state()

    assert await permits.adopt(ME, THIRD) == b""
    assert await permits.state() == state
    assert [await permits.owned(one) for one in (ME, OTHER, THIRD)] == [0, 1, 0]


async def test_adopt_of_what_is_gone_creates_nothing(permits) -> None:
    assert await permits.adopt(ME, OTHER) == b""
    assert await permits.everything() == []


async def test_annotate_changes_the_metadata_of_the_lease_alone(permits) -> None:
    _, fencing, *_ = await permits.acquire(ME, 2, metadata="1:2:old")
    await permits.acquire(OTHER, metadata="other")
    ends = await permits.redis.zrange(permits.holders, 0, -1, withscores=True)
    other = await permits.lease(OTHER)

    for _ in range(2):
        assert await permits.annotate(ME, "new:3:") == 1
        assert await permits.lease(ME) == b"2:%b:new:3:" % fencing
        assert await permits.lease(OTHER) == other
        assert await permits.held() == {ME.encode(): 2, OTHER.encode(): 1}
    assert await permits.redis.zrange(permits.holders, 0, -1, withscores=True) == ends
    assert await permits.lasts(permits.leases, MINUTE + SLACK)


async def test_annotate_by_who_does_not_hold_changes_nothing(permits) -> None:
    assert await permits.annotate(ME) == 0
    assert await permits.everything() == []
    await permits.acquire(OTHER)
    await permits.acquire(THIRD)
    await permits.end(THIRD)
    state = await permits.state()

    for token in (ME, OTHER[:-1], THIRD, "held", ""):
        assert await permits.annotate(token) == 0
    assert await permits.state() == state
    await permits.redis.hdel(permits.leases, OTHER)
    assert await permits.annotate(OTHER) == 0
    await permits.redis.delete(permits.holders)
    await permits.redis.hset(permits.leases, OTHER, "1:2:old")
    assert await permits.annotate(OTHER) == 0
    assert await permits.lease(OTHER) == b"1:2:old"


async def test_owned_is_the_holders_alone(permits) -> None:
    assert await permits.owned(ME) == 0
    await permits.acquire(ME)

    assert [await permits.owned(one) for one in (ME, OTHER, ME[:-1], "")] == [1, 0, 0, 0]
    await permits.end(ME)
    assert await permits.owned(ME) == 0


# -- available, resize ---------------------------------------------------------------------------------------


async def test_available_is_what_could_be_had(permits) -> None:
    assert [await permits.available(), await permits.available("")] == [3, 1]
    await permits.acquire(ME, 2)
    assert await permits.available() == 1
    await permits.resize(9)
    assert await permits.available() == 7
    await permits.resize(1)
    assert await permits.available() == 0
    await permits.end(ME)
    assert await permits.available() == 1


async def test_available_of_a_forgotten_value_counts_what_is_held(permits) -> None:
    await permits.acquire(ME, 2)
    await permits.redis.delete(permits.value)

    assert [await permits.available(), await permits.available(1)] == [1, 0]


async def test_available_without_a_value_is_one_or_none(permits) -> None:
    await permits.acquire(ME, value="")

    assert await permits.available("") == 0


async def test_available_in_turn_is_none_while_somebody_waits(permits) -> None:
    await permits.sit("x")
    assert [await permits.available(), await permits.available(flags="t")] == [3, 0]
    await permits.die("x")
    assert await permits.available(flags="t") == 3
    assert await permits.waiting() == []


async def test_available_with_another_value_is_told_of_the_one_that_there_is(permits) -> None:
    await permits.resize(7)
    await permits.acquire(ME)

    assert await permits.available(5) == [3, 7]


async def test_available_with_another_value_where_nobody_is_tells_what_it_would_be(permits) -> None:
    await permits.acquire(ME)
    await permits.release(ME)
    state = await permits.state()

    assert await permits.available(5) == 5
    assert await permits.state() == state
    await permits.resize(7)
    assert await permits.available(5) == 7
    await permits.resize(0)
    assert await permits.available(5) == 0


async def test_resize_sets_the_current_value_and_keeps_the_first(permits) -> None:
    for value in (7, 2, 2):
        assert await permits.resize(value, kept=DAY) == [1, 0]
        kept = {b"first": b"3", b"current": b"%d" % value, b"resized": b"1"}
        assert await permits.redis.hgetall(permits.value) == kept
        assert await permits.lasts(permits.value, DAY)


async def test_resize_with_another_value_is_told_of_the_one_that_there_is(permits) -> None:
    await permits.resize(7)
    await permits.acquire(ME)
    state = await permits.state()

    assert await permits.resize(9, first=5) == [2, 3, 7]
    assert await permits.state() == state
    await permits.release(ME)
    assert await permits.resize(9, first=5) == [1, 0]
    kept = {b"first": b"5", b"current": b"9", b"resized": b"1"}
    assert await permits.redis.hgetall(permits.value) == kept


async def test_resize_takes_nothing_away_from_who_holds(permits) -> None:
    await permits.acquire(ME, 3)
    await permits.resize(1)

    assert await permits.renew(ME) == 1
    assert await permits.held() == {ME.encode(): 3}
    assert (await permits.acquire(OTHER))[0] == 0
    await permits.release(ME)
    assert (await permits.acquire(OTHER))[0] == 1


async def test_resize_wakes_the_first_for_whom_there_may_be_a_permit_now(permits) -> None:
    await permits.acquire(ME, 3)
    for who in ("y", "x"):
        await permits.sit(who)

    assert await permits.resize(3) == [1, 0]
    assert await permits.resize(4) == [1, 0, permits.bell("y")]
    assert await permits.states("y", "x") == [b"rung", b""]


async def test_resize_to_fewer_tells_all_who_wait(permits) -> None:
    await permits.acquire(ME, 3)
    for who in ("y", "x", "dead", "w"):
        await permits.sit(who)
    await permits.die("dead")

    assert await permits.resize(2) == [1, 0, *map(permits.bell, ("y", "x", "w"))]
    assert await permits.states("y", "x", "w") == [b"rung"] * 3
    assert await permits.waiting() == [permits.entry(who) for who in ("y", "x", "w")]
    await permits.sit("x")
    assert await permits.resize(1) == [1, 0, permits.bell("x")]
    assert await permits.resize(1) == [1, 0]


async def test_resize_at_first_is_of_the_value_that_it_is_made_with(permits) -> None:
    await permits.sit("x")
    assert await permits.resize(0) == [1, 0, permits.bell("x")]
    for value, told in ((3, "x"), (2, "xy")):
        await permits.clear()
        await permits.sit("x")
        await permits.sit("y")
        assert await permits.resize(value) == [1, 0, *map(permits.bell, told)]


async def test_resize_to_fewer_tells_as_far_as_a_walk_goes(permits) -> None:
    await permits.resize(9)
    who = [f"w{number:03}" for number in range(WALK + 1)]
    for one in who:
        await permits.sit(one)

    assert await permits.resize(8) == [1, 0, *map(permits.bell, who[:WALK])]


# -- the queue: who is woken ---------------------------------------------------------------------------------


async def all_held(permits: PermitScripts, *who: str, seats: bool = False) -> None:
    """All permits are held, and these wait, in this order."""
    await permits.acquire(ME, 3)
    for number, one in enumerate(who):
        await permits.sit(one, seat=f"{number:016}" if seats else SEAT)


async def test_release_wakes_the_first_alone_and_puts_the_bell_back_as_rung(permits) -> None:
    await all_held(permits, "y", "x", "z")

    assert await permits.release(ME) == [1, permits.bell("y")]

    assert await permits.states("y", "x", "z") == [b"rung", b"", b""]
    assert await permits.lasts(permits.bell("y"), BELL)
    assert await permits.waiting() == [permits.entry(who) for who in ("y", "x", "z")]


async def test_who_waits_hears_that_he_was_woken(permits) -> None:
    await permits.acquire(ME, 3)
    async with permits.listening() as ear:
        await ear.sit(permits, "x")
        assert await ear.told() == []
        await permits.release(ME)
        assert await ear.told() == [[b"invalidate", [permits.bell("x")]]]


async def test_while_the_first_is_on_his_way_the_next_is_woken(permits) -> None:
    """Of an unfair one: it may find that there is too little for it."""
    await all_held(permits, "y", "x")
    await permits.release(ME)

    assert await permits.release(ME) == [0, permits.bell("x")]
    assert await permits.release(ME) == [0]
    assert await permits.waiting() == [permits.entry("y"), permits.entry("x")]


async def test_of_a_fair_one_nobody_is_woken_but_the_first(permits) -> None:
    await permits.acquire(ME, 3)
    for who, seat in (("y", FIRST), ("y", SECOND), ("x", FIRST)):
        await permits.sit(who, seat=seat)

    assert await permits.release(ME, seat=SECOND) == [1, permits.bell("y")]
    assert await permits.release(ME, seat=SECOND) == [0]
    assert await permits.resize(9, seat=SECOND) == [1, 0]
    granted, *_, room = await permits.acquire(OTHER, who="y", seat=FIRST, flags="tpw")
    assert (granted, room) == (1, 8)
    assert await permits.states("y", "x") == [b"rung", b""]


async def test_renew_wakes_the_first_for_what_came_to_its_end(permits) -> None:
    for seat, woken in ((SEAT, [b"rung", b"rung"]), (FIRST, [b"rung", b""])):
        await permits.clear()
        await permits.acquire(ME)
        await permits.acquire(OTHER, 2)
        for who in ("y", "x"):
            await permits.sit(who)
        await permits.redis.set(permits.bell("y"), "rung", px=BELL)
        await permits.renew(ME, seat=seat)
        assert await permits.states("y", "x") == [b"rung", b""]
        await permits.end(OTHER)

        assert await permits.renew(ME, seat=seat) == 1
        assert await permits.states("y", "x") == woken


async def test_no_more_than_so_many_of_the_queue_are_looked_at(permits) -> None:
    await permits.acquire(ME, 3)
    for number in range(WALK + 1):
        await permits.sit(f"{number}")
        if number < WALK:
            await permits.redis.set(permits.bell(f"{number}"), "rung", px=MINUTE)

    assert await permits.release(ME) == [1]
    await permits.die("3")
    assert await permits.release(ME) == [0, permits.bell(f"{WALK}")]


async def test_who_was_woken_and_died_is_passed_over(permits) -> None:
    await all_held(permits, "y", "x")
    await permits.release(ME)
    await permits.die("y")

    assert await permits.release(ME) == [0, permits.bell("x")]
    assert await permits.waiting() == [permits.entry("x")]


async def test_who_was_woken_and_hangs_his_bell_up_anew_is_woken_again(permits) -> None:
    await all_held(permits, "y", "x")
    await permits.release(ME)
    await permits.sit("y")

    assert await permits.release(ME) == [0, permits.bell("y")]


async def test_a_release_that_leaves_no_permit_wakes_nobody(permits) -> None:
    await all_held(permits, "x")
    await permits.resize(1)
    await permits.release(ME)
    await permits.acquire(OTHER, who="x", flags="l")
    await permits.sit("x")

    assert await permits.release(ME) == [0]
    assert await permits.states("x") == [b""]


async def test_one_release_drops_all_the_dead_before_the_first_who_lives(permits) -> None:
    dead = [f"dead{number}" for number in range(10)]
    await all_held(permits, *dead, "y", "behind", "x")
    await permits.die(*dead, "behind")

    assert await permits.release(ME) == [1, permits.bell("y")]
    assert await permits.waiting() == [permits.entry(who) for who in ("y", "behind", "x")]


async def test_release_leaves_nothing_of_a_queue_of_the_dead(permits) -> None:
    await all_held(permits, "x", "y")
    await permits.die("x", "y")

    assert await permits.release(ME) == [1]
    assert await permits.waiting() == []


async def test_a_quiet_release_wakes_nobody_and_drops_nobody(permits) -> None:
    await all_held(permits, "dead", "x")
    await permits.die("dead")

    assert await permits.release(ME, flags="") == [1]
    assert await permits.waiting() == [permits.entry("dead"), permits.entry("x")]
    assert await permits.states("x") == [b""]


async def test_who_leaves_is_removed_with_his_bell_and_wakes_the_next(permits) -> None:
    await all_held(permits, "y", "x", "z")
    assert await permits.release(ME) == [1, permits.bell("y")]

    assert await permits.release(OTHER, who="y", flags="rl") == [0, permits.bell("x")]
    assert await permits.waiting() == [permits.entry("x"), permits.entry("z")]
    assert await permits.states("y", "x", "z") == [None, b"rung", b""]


async def test_who_leaves_his_seat_leaves_the_bell_to_the_others_of_his_session(permits) -> None:
    await all_held(permits)
    for seat in (FIRST, SECOND):
        await permits.sit("x", seat=seat)

    assert await permits.release(OTHER, who="x", seat=FIRST) == [0]
    assert await permits.waiting() == [permits.entry("x", SECOND)]
    assert await permits.states("x") == [b""]


async def test_a_bell_goes_with_the_last_seat_that_lives_by_it(permits) -> None:
    """The one that leaves may not know the others of its session: some may have sat down since."""
    await all_held(permits)
    for who, seat in (("x", FIRST), ("x", SECOND), ("y", FIRST)):
        await permits.sit(who, seat=seat)

    await permits.release(OTHER, who="x", seat=FIRST, flags="rl")
    assert await permits.states("x") == [b""]
    await permits.release(OTHER, who="x", seat=SECOND, flags="r")
    assert await permits.states("x", "y") == [None, b""]
    assert await permits.waiting() == [permits.entry("y", FIRST)]


async def test_a_release_of_who_sat_nowhere_leaves_the_bell_alone(permits) -> None:
    """Another one of its session may be about to sit down."""
    await all_held(permits)
    await permits.sit("x", seat=FIRST)
    await permits.redis.delete(permits.key("queue"))

    await permits.release(OTHER, who="x", seat=SECOND, flags="r")
    assert await permits.states("x") == [b""]


async def test_in_a_long_queue_the_bell_stays(permits) -> None:
    """It is gone by itself soon; to look through all of the queue would take too long."""
    await all_held(permits)
    for number in range(WALK + 1):
        await permits.sit(f"y{number}", seat=FIRST)
    await permits.sit("x", seat=FIRST)

    await permits.release(OTHER, who="x", seat=FIRST, flags="rl")
    assert await permits.states("x") == [b""]


async def test_who_gets_in_leaves_the_queue_and_takes_the_bell_along(permits) -> None:
    for who in ("x", "y", "z"):
        await permits.sit(who)

    granted, _, others, room, *rung = await permits.acquire(ME, who="y", flags="ql")

    assert (granted, others, room, rung) == (1, 2, 2, [permits.bell("x")])
    assert await permits.waiting() == [permits.entry("x"), permits.entry("z")]
    assert await permits.states("x", "y", "z") == [b"rung", None, b""]


async def test_who_gets_in_on_his_seat_leaves_the_bell_to_the_others_of_his_session(permits) -> None:
    for seat in (FIRST, SECOND):
        await permits.sit("x", seat=seat)

    assert (await permits.acquire(ME, who="x", seat=FIRST, flags="twq"))[2] == 1
    assert await permits.waiting() == [permits.entry("x", SECOND)]
    assert await permits.states("x") == [b"rung"]


async def test_who_gets_in_beside_the_place_of_his_session_leaves_it_there(permits) -> None:
    """One try, while another task of the same session waits."""
    await permits.sit("x")

    assert (await permits.acquire(ME, who="x"))[2] == 1
    assert await permits.waiting() == [permits.entry("x")]


async def test_a_release_leaves_the_place_of_its_session_there(permits) -> None:
    """Another task of the same session waits."""
    await permits.acquire(ME, 3, who="x")
    await permits.sit("x")

    assert await permits.release(ME, who="x", flags="") == [1]
    assert await permits.waiting() == [permits.entry("x")]


async def test_who_was_woken_and_gets_in_wakes_the_next_while_there_is_a_permit(permits) -> None:
    await all_held(permits, "x", "y", "z")
    await permits.release(ME)

    assert (await permits.acquire(OTHER, 2, who="x", flags="pql"))[4:] == [permits.bell("y")]
    assert (await permits.acquire(THIRD, who="y", flags="pql"))[4:] == []
    assert await permits.states("z") == [b""]


async def test_who_was_woken_and_comes_by_himself_wakes_the_next_too(permits) -> None:
    """Two permits come back before the first who was woken has heard of it."""
    await permits.acquire(ME, 2)
    await permits.acquire(OTHER)
    await permits.sit("x", seat=FIRST)
    await permits.sit("y")
    assert await permits.release(ME, seat=SECOND) == [1, permits.bell("x")]
    assert await permits.release(OTHER, seat=SECOND) == [1]

    assert (await permits.acquire(THIRD, who="x", seat=FIRST, flags="tqlw"))[4:] == [permits.bell("y")]
    await permits.sit("z")
    await permits.redis.set(permits.bell("y"), "rung", px=BELL)
    assert (await permits.acquire(FOURTH, 3, who="y", flags="qw"))[2:] == [
        permits.bell("z"),
        permits.bell("y"),
    ]


async def test_who_finds_what_came_to_its_end_wakes_the_next(permits) -> None:
    await all_held(permits, "y", "x")
    await permits.end(ME)

    assert (await permits.acquire(OTHER, who="z"))[4:] == [permits.bell("y")]


async def test_who_finds_what_came_to_its_end_and_cannot_use_it_wakes_the_first(permits) -> None:
    await permits.acquire(ME)
    await permits.acquire(OTHER, 2)
    await permits.sit("y")
    await permits.end(ME)

    assert (await permits.acquire(THIRD, 3, who="z"))[2:] == [permits.bell("y")]


async def test_who_was_woken_and_wants_more_than_there_is_wakes_the_next(permits) -> None:
    await permits.acquire(OTHER)
    await permits.acquire(ME, 2)
    for who in ("x", "dead", "y", "z"):
        await permits.sit(who)
    await permits.die("dead")
    assert await permits.release(ME) == [1, permits.bell("x")]

    assert (await permits.acquire(THIRD, 3, who="x", flags="pqw"))[2:] == [
        permits.bell("y"),
        permits.bell("x"),
    ]
    assert await permits.states("x", "y", "z") == [b"", b"rung", b""]  # its own hangs again
    assert await permits.waiting() == [permits.entry(who) for who in ("x", "y", "z")]


async def test_who_passes_on_and_stands_last_wakes_nobody(permits) -> None:
    await permits.acquire(ME)
    await permits.sit("x")

    assert (await permits.acquire(THIRD, 3, who="x", flags="pqw"))[2:] == []


async def test_who_passes_on_behind_a_quiet_release_wakes_who_stands_before_him(permits) -> None:
    await permits.acquire(OTHER)
    await permits.acquire(ME, 2)
    for who in ("y", "x"):
        await permits.sit(who)
    await permits.release(ME, flags="")

    assert (await permits.acquire(THIRD, 3, who="x", flags="pqw"))[2:] == []
    assert (await permits.acquire(THIRD, 3, who="x", flags="oqw"))[2:] == [permits.bell("y")]
    assert (await permits.acquire(THIRD, 3, who="x", flags="oqw"))[2:] == []


async def test_who_gets_in_behind_a_quiet_release_wakes_the_next(permits) -> None:
    await all_held(permits, "y", "x")
    await permits.release(ME, flags="")

    assert (await permits.acquire(OTHER, who="x", flags="oqlw"))[4:] == [permits.bell("y")]


async def test_who_yields_and_wants_more_than_there_is_wakes_the_next(permits) -> None:
    """First in the queue, and not strict."""
    await permits.acquire(ME, 2)
    for who in ("x", "y"):
        await permits.sit(who)

    assert (await permits.acquire(THIRD, 3, who="x", flags="tpqw"))[2:] == [permits.bell("y")]


async def test_who_is_refused_unasked_wakes_nobody(permits) -> None:
    await permits.acquire(ME)
    for who in ("x", "y"):
        await permits.sit(who)

    assert (await permits.acquire(THIRD, 3, who="x", flags="qw"))[2:] == []
    assert (await permits.acquire(THIRD, 3, who="z", flags=""))[2:] == []
    assert await permits.states("x", "y") == [b"", b""]


# -- in turn -------------------------------------------------------------------------------------------------


async def test_in_turn_takes_what_nobody_waits_for(permits) -> None:
    assert (await permits.acquire(ME, flags="tw"))[0] == 1


async def test_in_turn_takes_it_for_the_session_that_stands_first(permits) -> None:
    await permits.sit("x", seat=FIRST)
    await permits.sit("x", seat=SECOND)
    await permits.sit("y")

    assert (await permits.acquire(ME, who="x", seat=SECOND, flags="twq"))[0] == 1


async def test_in_turn_it_is_told_of_no_seat_that_goes_first_while_too_few_are_free(permits) -> None:
    await permits.acquire(OTHER, 3)
    await permits.sit("x", seat=FIRST)
    await permits.sit("y")

    asked = await permits.acquire(ME, who="x", seat=SECOND, flags="tw")

    assert (len(asked), asked[0]) == (2, 0)


async def test_behind_others_of_its_session_it_takes_a_seat_and_the_first_waiter_is_woken(permits) -> None:
    assert await permits.acquire(ME, who="x", seat=FIRST, flags="twb") == [0, -2]
    assert await permits.waiting() == [permits.entry("x", FIRST)]
    assert await permits.states("x") == [b""]

    asked = await permits.acquire(OTHER, who="x", seat=SECOND, flags="twqb")

    assert asked == [0, -2, permits.bell("x")]
    assert await permits.states("x") == [b"rung"]
    assert await permits.redis.exists(permits.holders) == 0


async def test_in_turn_a_seat_of_its_own_session_does_not_carry_it_past_another(permits) -> None:
    """It is told which seat goes first: its waiter is to ask, or has left and the seat is to go."""
    await permits.sit("x", seat=FIRST)
    await permits.sit("y")

    ahead = permits.entry("x", FIRST)
    assert await permits.acquire(ME, who="x", seat=SECOND, flags="tw") == [0, -2, ahead]
    assert await permits.acquire(ME, who="x", seat=SECOND, flags="twq") == [0, -2, ahead]
    assert await permits.states("x", "y") == [b"", b""]
    await permits.release("0" * 32, who="x", seat=FIRST)
    assert await permits.acquire(ME, who="x", seat=SECOND, flags="twq") == [0, -2]
    await permits.release("0" * 32, who="y")


async def test_in_turn_leaves_to_another_what_is_free_and_wakes_him(permits) -> None:
    for who in ("y", "x"):
        await permits.sit(who)

    assert await permits.acquire(ME, who="x", seat=FIRST, flags="t") == [0, -2, permits.bell("y")]
    assert await permits.acquire(ME, who="x", seat=FIRST, flags="t") == [0, -2]
    assert await permits.acquire(ME, who="stranger", seat=SECOND, flags="t") == [0, -2]
    assert await permits.states("y", "x") == [b"rung", b""]


async def test_a_seat_that_hangs_up_a_rung_bell_again_tells_of_it(permits) -> None:
    """It was rung for another waiter of its session, who may not know it."""
    await permits.acquire(ME, 3)
    await permits.sit("x", seat=FIRST)
    await permits.release(ME, seat=FIRST)
    await permits.acquire(OTHER, 3)
    assert await permits.states("x") == [b"rung"]

    asked = await permits.acquire(THIRD, who="x", seat=SECOND, flags="twb")

    assert asked[2:] == [permits.bell("x")]
    assert await permits.states("x") == [b""]


async def test_in_turn_one_that_waits_leaves_it_to_another_and_is_told_of_no_seat(permits) -> None:
    await permits.sit("y")

    assert await permits.acquire(ME, who="x", seat=FIRST, flags="tw") == [0, -2, permits.bell("y")]


async def test_in_turn_a_single_try_does_not_overtake_who_waits_in_its_own_session(permits) -> None:
    await permits.sit("x", seat=FIRST)

    assert await permits.acquire(ME, who="x", seat=SECOND, flags="t") == [0, -2, permits.bell("x")]
    assert (await permits.acquire(ME, who="x", seat=SECOND, flags="tw"))[0] == 1


async def test_without_in_turn_anybody_may_overtake(permits) -> None:
    for who in ("y", "x"):
        await permits.sit(who)

    assert (await permits.acquire(ME, who="x", flags="w"))[0] == 1


async def test_in_turn_passes_over_the_dead(permits) -> None:
    for who in ("dead", "x"):
        await permits.sit(who)
    await permits.die("dead")

    assert (await permits.acquire(ME, who="x", flags="twql"))[0] == 1
    assert await permits.waiting() == []


async def test_in_turn_who_comes_behind_the_dead_wakes_the_first_who_lives(permits) -> None:
    for who in ("dead", "y", "x"):
        await permits.sit(who, seat=FIRST)
    await permits.redis.set(permits.bell("dead"), "rung", px=BELL)
    await permits.die("dead")

    assert await permits.acquire(ME, who="x", seat=FIRST, flags="tw") == [0, -2, permits.bell("y")]


async def test_in_turn_who_stands_first_and_wants_more_than_there_is_keeps_the_others_out(permits) -> None:
    await permits.acquire(OTHER)
    await permits.sit("x", seat=FIRST)

    assert (await permits.acquire(THIRD, 3, who="x", seat=FIRST, flags="twq"))[0] == 0
    refused = await permits.acquire(FOURTH, who="y", flags="tw")
    assert refused[:2] == [0, -2]
    await permits.release(OTHER)
    assert (await permits.acquire(THIRD, 3, who="x", seat=FIRST, flags="twq"))[0] == 1


async def test_in_turn_what_is_held_is_refused_for_as_long_as_it_is_held(permits) -> None:
    await all_held(permits, "x")

    granted, remaining = await permits.acquire(OTHER, who="y", flags="t")
    assert granted == 0
    assert about(remaining, MINUTE + 1)


async def test_who_is_refused_in_turn_and_will_wait_takes_a_seat_with_a_bell(permits) -> None:
    await permits.acquire(ME, 3)
    seconds, _ = await permits.redis.time()

    assert (await permits.acquire(OTHER, who="x", seat=FIRST, flags="tw"))[0] == 0

    [(entry, since)] = await permits.redis.zrange(permits.queue, 0, -1, withscores=True)
    assert entry == permits.entry("x", FIRST)
    assert seconds * 10**6 <= since < (seconds + 5) * 10**6
    assert since % 1000 or (await permits.redis.time())[1]  # to the microsecond
    assert await permits.states("x") == [b""]
    assert await permits.lasts(permits.queue, QUEUE)
    assert await permits.lasts(permits.bell("x"), BELL)


async def test_who_is_refused_in_turn_again_keeps_seat_and_bell(permits) -> None:
    await permits.acquire(ME, 3)
    await permits.acquire(OTHER, who="y", seat=FIRST, flags="tw")
    await permits.acquire(THIRD, who="x", seat=FIRST, flags="tw")
    await permits.redis.pexpire(permits.queue, 500)
    await permits.redis.pexpire(permits.bell("y"), 500)
    state = await permits.state()

    assert len(await permits.acquire(OTHER, who="y", seat=FIRST, flags="twq")) == 2

    assert await permits.state() == state
    assert await permits.lasts(permits.queue, QUEUE)
    assert (
        await permits.redis.pttl(permits.bell("y")) <= 500
    )  # left alone: a write would end that it is heard


async def test_who_had_a_bell_that_is_gone_is_told_and_lives(permits) -> None:
    """It must listen again; it hangs, and so nobody takes it for dead."""
    await permits.acquire(ME, 3)
    await permits.acquire(OTHER, who="x", seat=FIRST, flags="tw")
    await permits.die("x")

    answer = await permits.acquire(OTHER, who="x", seat=FIRST, flags="twq")
    assert answer[2:] == [permits.bell("x")]
    assert await permits.states("x") == [b""]
    assert await permits.waiting() == [permits.entry("x", FIRST)]
    assert len(await permits.acquire(OTHER, who="x", seat=FIRST, flags="twq")) == 2


async def test_who_is_refused_in_turn_and_will_not_wait_takes_no_seat(permits) -> None:
    await permits.acquire(ME, 3)

    assert (await permits.acquire(OTHER, who="x", seat=FIRST, flags="t"))[0] == 0
    assert (await permits.acquire(OTHER, who="x"))[0] == 0
    assert await permits.waiting() == []


async def test_who_is_refused_and_will_wait_is_seated_also_where_it_is_not_fair(permits) -> None:
    await permits.acquire(ME, 3)

    assert len(await permits.acquire(OTHER, who="x", flags="w")) == 2

    assert await permits.waiting() == [permits.entry("x")]
    assert await permits.states("x") == [b""]
    assert await permits.lasts(permits.bell("x"), BELL)
    assert await permits.release(ME) == [1, permits.bell("x")]


async def test_in_turn_seats_are_taken_in_the_order_of_asking(permits) -> None:
    await permits.acquire(ME, 3)
    order = [f"{number:032x}" for number in range(9, 0, -1)]
    for token in order:
        await permits.acquire(token, who=f"of {token[-1]}", seat=token[-16:], flags="tw")
    await permits.release(ME)

    got_in = []
    for _ in order:
        for token in reversed(order):
            kwargs = {"who": f"of {token[-1]}", "seat": token[-16:], "flags": "twql"}
            if token not in got_in and (await permits.acquire(token, value=3, **kwargs))[0] == 1:
                got_in.append(token)
                await permits.release(token)
                break
    assert got_in == order


async def test_in_turn_said_again_by_the_holder_is_the_same_grant(permits) -> None:
    await permits.sit("y")
    await permits.sit("x")
    first = await permits.acquire(ME, who="y", flags="twql")
    state = await permits.state()

    assert await permits.acquire(ME, who="y", flags="twql") == first[:4]
    assert await permits.state() == state


# -- each step, alike ----------------------------------------------------------------------------------------


async def test_everything_that_stands_there_has_a_ttl(permits) -> None:
    steps: list[Callable[[], Awaitable[Any]]] = [
        lambda: permits.acquire(ME, 2),
        lambda: permits.acquire(OTHER),
        lambda: permits.acquire(THIRD, who="x", seat=FIRST, flags="tw"),
        lambda: permits.sit("x", seat=FIRST),
        lambda: permits.sit("y"),
        lambda: permits.renew(ME),
        lambda: permits.release(OTHER),
        lambda: permits.acquire(THIRD, who="x", flags="twpq"),
        lambda: permits.adopt(THIRD, OTHER),
        lambda: permits.resize(5),
        lambda: permits.acquire(FOURTH, who="y", flags="pql"),
        lambda: permits.release(OTHER, who="x", flags="rl"),
        lambda: permits.release(ME),
        lambda: permits.release(FOURTH),
    ]
    for number, step in enumerate(steps):
        await step()
        ttls = await permits.ttls()
        assert min(ttls.values()) > 0, (number, ttls)


async def test_steps_of_who_holds_nothing_write_nothing(permits) -> None:
    for step in ("renew", "release", "owned"):
        await getattr(permits, step)(ME)
    await permits.adopt(ME, OTHER)
    await permits.available()

    assert await permits.everything() == []


async def test_the_commands_say_to_the_scripts_what_these_tests_say(permits) -> None:
    def commands(*, fair: bool, value: int | None = 3) -> PermitSteps:
        return PermitSteps(
            permits.prefix,
            "semaphore",
            permits.name,
            permits=2,
            value=value,
            fair=fair,
            retention_ms=HOUR,
            session="x",
        )

    unfair, fair, who, fairly = commands(fair=False), commands(fair=True), "x.2", "x.2.fair"
    kept = DAY + MINUTE
    said = [
        (unfair.acquire(ME, MINUTE, "{}"), permits.acquiring(ME, 2, who=who, kept=kept)),
        (
            unfair.acquire(ME, MINUTE, "{}", WAITING | PASSING | SEATED),
            permits.acquiring(ME, 2, who=who, kept=kept, flags="qpwl"),
        ),
        (
            fair.acquire(ME, MINUTE, "{}", IN_TURN | WAITING | SEATED | STAYING),
            permits.acquiring(ME, 2, who=fairly, kept=kept, flags="qtsw", seat=ME[:16]),
        ),
        (
            commands(fair=True, value=None).acquire(ME, MINUTE, "{}"),
            permits.acquiring(ME, 2, who=fairly, kept=kept, value="", seat=ME[:16]),
        ),
        (unfair.release(ME, MINUTE), permits.releasing(ME, who=who)),
        (unfair.release(ME, MINUTE, leave=True), permits.releasing(ME, who=who, flags="rl")),
        (fair.release(ME, MINUTE, ring=False), permits.releasing(ME, who=fairly, flags="", seat=ME[:16])),
        (
            fair.release_at_least(ME, MINUTE, MINUTE, ring=True),
            permits.releasing(ME, who=fairly, seat=ME[:16], at_least=MINUTE),
        ),
    ]
    for command, words in said:
        assert tuple(map(str, command.words(as_eval=True)[2:])) == tuple(map(str, words[2:]))
        assert permits.mutant or command.script.text == words[1]
    assert unfair.bell == permits.bell(who)
    waiting = Listener(unfair.bell, (permits.queue,), SEAT, deadlines=(permits.key(),))
    assert unfair.listener(ME) == waiting
    assert fair.listener(ME) == waiting._replace(bell=fair.bell, seat=ME[:16])
    assert fair.bell == permits.bell(fairly)


@pytest.mark.parametrize("protocol", [2, 3])
async def test_replies_are_integers_and_strings_alone(connect, prefix, protocol) -> None:
    permits = PermitScripts(connect(protocol=protocol), prefix)
    replies = [
        await permits.acquire(ME, 3),
        await permits.acquire(OTHER, who="x", flags="tw"),
        await permits.acquire(OTHER, value=4),
        await permits.release(ME),
        await permits.acquire(OTHER, who="y", flags="t"),
        await permits.available(),
        await permits.available(7),
        await permits.resize(4),
        await permits.resize(4, first=8),
        await permits.renew(ME),
        await permits.owned(ME),
        await permits.adopt(ME, OTHER),
    ]
    assert [
        [type(item) for item in (reply if isinstance(reply, list) else [reply])] for reply in replies
    ] == [
        [int, bytes, int, int],
        [int, int],
        [int, int, int],
        [int, bytes],
        [int, int],
        [int],
        [int, int],
        [int, int],
        [int, int, int],
        [int],
        [int],
        [bytes],
    ]


@pytest.mark.parametrize("name", ["plain", "user:{42}:cart", "a%b:{x}{y}", "{}", "{", "a{\n\0}"])
def test_all_keys_of_a_name_share_a_slot(name) -> None:
    commands = PermitSteps(
        "shop", "semaphore", name, permits=1, value=1, fair=True, retention_ms=HOUR, session="x"
    )
    command = commands.acquire(ME, MINUTE, "{}", SEATED)
    keys = {*command.keys}

    assert len(keys) == 6
    assert len({key_slot(key) for key in keys}) == 1


async def test_a_key_of_another_type_is_an_error_before_anything_is_taken(permits) -> None:
    for key in (permits.holders, permits.leases, permits.fence):
        await permits.clear()
        await permits.acquire(OTHER)
        await permits.redis.delete(key)
        await permits.redis.rpush(key, "data")
        held = await permits.redis.type(permits.holders), await permits.redis.type(permits.leases)

        with pytest.raises(ResponseError, match=f"FOREIGN {permits.keys('me').index(key) + 1}"):
            await permits.acquire(ME)
        assert await permits.redis.lrange(key, 0, -1) == [b"data"]
        assert (await permits.redis.type(permits.holders), await permits.redis.type(permits.leases)) == held
        assert key == permits.leases or await permits.lease(ME) is None


# -- a server that is out of memory --------------------------------------------------------------------------


@pytest.fixture
async def full(own_server, connect, prefix) -> PermitScripts:
    """Held, and awaited by three, on a server that has no memory for anything new and evicts nothing."""
    server = await own_server(arguments=("--maxmemory-policy", "noeviction"))
    redis = connect(server)
    permits = PermitScripts(redis, prefix)
    await permits.acquire(ME, 2)
    await permits.acquire(OTHER)
    for who in ("dead", "y", "x"):
        await permits.sit(who, ttl=MINUTE, queue_ttl=MINUTE)
    await permits.die("dead")
    await redis.config_set("maxmemory", 1)
    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await redis.set("anything", "new")
    return permits


async def test_out_of_memory_the_holder_can_still_renew_adopt_and_release(full) -> None:
    assert await full.renew(ME, ttl=2 * MINUTE) == 1
    assert (await full.acquire(ME, 2))[0] == 1
    assert await full.adopt(OTHER, THIRD)
    assert await full.release(ME, flags="") == [1]
    assert await full.release(THIRD, flags="") == [1]
    assert await full.held() == {}
    assert await full.redis.exists(full.fence)


async def test_out_of_memory_a_release_still_keeps_the_permits(full) -> None:
    assert await full.release(ME, at_least=MINUTE) == [1]
    assert await full.lease(NOBODY + ME)


async def test_out_of_memory_a_release_drops_the_dead_and_wakes_the_next(full) -> None:
    assert await full.release(ME) == [1, full.bell("y")]
    assert await full.states("y", "x") == [b"rung", b""]
    assert await full.release(THIRD, who="y", flags="rl") == [0, full.bell("x")]
    assert await full.waiting() == [full.entry("x")]


async def test_out_of_memory_a_release_of_what_came_to_its_end_still_wakes(full) -> None:
    await full.redis.config_set("maxmemory", 0)
    await full.end(ME)
    await full.redis.config_set("maxmemory", 1)

    assert await full.release(ME) == [0, full.bell("y")]
    assert [await full.renew(ME), await full.adopt(ME, THIRD), await full.available()] == [0, b"", 2]


async def test_out_of_memory_the_answers_still_come(full) -> None:
    assert [await full.owned(ME), await full.owned(THIRD), await full.available()] == [1, 0, 0]


async def test_out_of_memory_acquire_and_resize_are_refused_and_change_nothing(full) -> None:
    await full.redis.config_set("maxmemory", 0)
    await full.release(OTHER, flags="")
    state = await full.state()
    await full.redis.config_set("maxmemory", 1)

    other = full.another()
    for step in (
        lambda: full.acquire(THIRD),
        lambda: other.acquire(THIRD),
        lambda: other.acquire(THIRD, value=""),
        lambda: other.resize(5),
    ):
        with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
            await step()
    assert await full.state() == state


async def test_out_of_memory_it_is_the_first_write_that_opens_the_door(full) -> None:
    first = "if at_once then redis.call('ZREM', holders, '') end"
    assert text_of("shared/permits").count(first) == 1
    full.mutant = {"shared/permits": text_of("shared/permits").replace(first, "").encode()}

    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await full.renew(ME)


@pytest.mark.parametrize("deleting", [True, False])
async def test_who_listens_to_keyspace_events_hears_that_he_was_woken(
    own_server, connect, prefix, deleting
) -> None:
    """It is the deletion that is heard: without it there is none."""
    server = await own_server(arguments=("--notify-keyspace-events", "Kg"))
    redis = connect(server)
    permits = PermitScripts(redis, prefix)
    deletion = "  redis.call('DEL', bell)\n"
    if not deleting:
        ringing, rest = text_of("shared/queue").split(deletion, 1)
        permits.mutant = {"shared/queue": (ringing + rest).encode()}
    await all_held(permits, "x")
    async with redis.pubsub() as heard:
        await heard.subscribe(b"__keyspace@0__:" + permits.bell("x"))
        assert (await heard.get_message(timeout=5))["type"] == "subscribe"

        assert await permits.release(ME) == [1, permits.bell("x")]
        message = await heard.get_message(ignore_subscribe_messages=True, timeout=5)
        assert (message["data"] == b"del") is deleting  # and not that it was given a new ttl


# -- mutants -------------------------------------------------------------------------------------------------

CHECKS = checks(globals(), "permits")
FILES = [
    "permits_acquire",
    "permits_release",
    "permits_renew",
    "permits_adopt",
    "permits_annotate",
    "permits_owned",
    "permits_available",
    "permits_resize",
    "shared/fence",
    "shared/queue",
    "shared/forms",
    "shared/permits",
]
SPARED = {
    "if not entry then break end": "it would look on, in vain",
    "redis.call('DEL', bell)": "tracking hears the SET behind it too; see the keyspace events above",
    "if at_once then redis.call('ZREM', holders, '') end": "see out of memory above",
}
"""Lines that may be left out, each with the reason."""
MUTATIONS = [
    Mutation(
        "permits_release",
        "math.min(MICROSECONDS, minted)",
        "MICROSECONDS",
        "test_that_time_is_counted_from_the_grant_by_the_servers_clock",
    ),
    Mutation(
        "permits_release",
        "math.min(MICROSECONDS, minted)",
        "minted",
        "test_a_fencing_token_ahead_of_the_clock_does_not_lengthen_that_time",
    ),
    Mutation(
        "permits_release",
        "math.ceil(",
        "math.floor(",
        "test_that_time_is_counted_from_the_grant_by_the_servers_clock",
    ),
    Mutation(
        "permits_release",
        "string.rep('0', 32)",
        "''",
        "test_a_kept_permit_is_not_taken_nor_renewed_nor_adopted_by_anybody",
    ),
    Mutation(
        "permits_release",
        "if left > 0 then",
        "if ARGV[5] then",
        "test_release_after_their_time_gives_them_back_and_wakes_as_usual",
    ),
    Mutation(
        "permits_acquire",
        "first ~= ARGV[6]",
        "false",
        "test_acquire_with_another_value_is_told_of_the_one_that_there_is",
    ),
    Mutation(
        "shared/permits",
        "last and tonumber(last) > NOW or first_living",
        "last or first_living",
        "test_another_value_waits_for_the_last_holder_and_for_no_dead_one",
    ),
    Mutation(
        "shared/permits",
        "last and tonumber(last) > NOW or first_living",
        "first_living",
        "test_permits_that_are_kept_for_nobody_keep_another_value_out",
    ),
    Mutation(
        "shared/permits",
        "holders, -1, -1, 'WITHSCORES'",
        "holders, 0, 0, 'WITHSCORES'",
        "test_another_value_waits_for_the_last_holder_and_for_no_dead_one",
    ),
    Mutation(
        "shared/permits",
        " or first_living(queue, 0) then return first",
        " then return first",
        "test_another_value_waits_for_the_last_waiter_and_for_no_dead_one",
    ),
    Mutation(
        "shared/permits",
        "(current ~= tonumber(first) or redis.call('HGET', value, 'resized')) and current or nil",
        "current",
        "test_where_nobody_holds_or_waits_another_value_takes_the_place_of_the_first",
    ),
    Mutation(
        "shared/permits",
        " or redis.call('HGET', value, 'resized'))",
        ")",
        "test_what_resize_has_set_stays_also_once_a_value_was_the_same",
    ),
    Mutation(
        "shared/permits",
        "current ~= tonumber(first) or ",
        "",
        "test_what_an_earlier_version_has_resized_stays",
    ),
    Mutation(
        "permits_resize",
        "if ARGV[1] == ARGV[2] then redis.call('HDEL', value, 'resized') else",
        "do",
        "test_a_value_that_was_resized_to_the_first_one_is_not_resized",
    ),
    Mutation(
        "permits_acquire",
        "resized or ARGV[6]",
        "ARGV[6]",
        "test_what_resize_has_set_stays_under_another_value",
    ),
    Mutation(
        "permits_available",
        "resized or ARGV[1]",
        "ARGV[1]",
        "test_available_with_another_value_where_nobody_is_tells_what_it_would_be",
    ),
    Mutation(
        "permits_acquire",
        "if not permits then",
        "if true then",
        "test_acquire_said_twice_is_the_same_grant_with_its_end_set_anew",
    ),
    Mutation(
        "permits_acquire",
        "true, wanted > free(), has",
        "true, false, has",
        "test_of_many_permits_all_or_none_are_had",
    ),
    Mutation(
        "permits_acquire",
        "too_soon or not in_turn or behind",
        "too_soon or behind",
        "test_in_turn_leaves_to_another_what_is_free_and_wakes_him",
    ),
    Mutation(
        "permits_acquire",
        "true, wanted > free(), has",
        "true, free() < 1, has",
        "test_of_many_permits_all_or_none_are_had",
    ),
    Mutation(
        "permits_acquire",
        "too_soon or not in_turn or behind",
        "too_soon or not in_turn",
        "test_behind_others_of_its_session_it_takes_a_seat_and_the_first_waiter_is_woken",
    ),
    Mutation(
        "permits_acquire",
        "if behind or (not",
        "if (not",
        "test_behind_others_of_its_session_it_takes_a_seat_and_the_first_waiter_is_woken",
    ),
    Mutation(
        "permits_acquire",
        "if not too_soon then rung",
        "if true then rung",
        "test_in_turn_it_is_told_of_no_seat_that_goes_first_while_too_few_are_free",
    ),
    Mutation(
        "permits_acquire",
        "if has(flags, 't') then in_turn",
        "if true then in_turn",
        "test_without_in_turn_anybody_may_overtake",
    ),
    Mutation(
        "shared/queue",
        "bell_of(queue, other) ~= bell then\n",
        "true then\n",
        "test_in_turn_takes_it_for_the_session_that_stands_first",
    ),
    Mutation(
        "permits_acquire",
        "goes_first(queue, bell, entry, has(flags, 'w'))",
        "goes_first(queue, bell, entry, true)",
        "test_in_turn_a_single_try_does_not_overtake_who_waits_in_its_own_session",
    ),
    Mutation(
        "permits_acquire",
        "local own = has(flags, 'w') and",
        "local own = fair and has(flags, 'w') and",
        "test_who_is_refused_and_will_wait_is_seated_also_where_it_is_not_fair",
    ),
    Mutation(
        "permits_acquire",
        "local own = has(flags, 'w') and",
        "local own =",
        "test_who_is_refused_in_turn_and_will_not_wait_takes_no_seat",
    ),
    Mutation(
        "permits_acquire",
        "enqueue(queue, bell, seat, has(flags, 'q'))",
        "enqueue(queue, bell, seat, false)",
        "test_who_had_a_bell_that_is_gone_is_told_and_lives",
    ),
    Mutation(
        "permits_acquire",
        "if wanted <= free() then remaining = -2 end",
        "",
        "test_in_turn_leaves_to_another_what_is_free_and_wakes_him",
    ),
    Mutation(
        "permits_acquire",
        "purge() > 0 or has(flags, 'o')",
        "has(flags, 'o')",
        "test_who_finds_what_came_to_its_end_and_cannot_use_it_wakes_the_first",
    ),
    Mutation(
        "permits_acquire",
        "local rung = wake(fair, 0)\n",
        "local rung = {}\n",
        "test_who_was_woken_and_gets_in_wakes_the_next_while_there_is_a_permit",
    ),
    Mutation(
        "permits_acquire",
        "local rung = wake(fair, 0)\n",
        "local rung = wake(false, 0)\n",
        "test_of_a_fair_one_nobody_is_woken_but_the_first",
    ),
    Mutation(
        "permits_acquire",
        "rung = wake(fair, 0, entry)",
        "rung = wake(fair, 0)",
        "test_who_passes_on_behind_a_quiet_release_wakes_who_stands_before_him",
    ),
    Mutation(
        "permits_acquire",
        "elseif woken and not fair then",
        "elseif not fair then",
        "test_who_is_refused_unasked_wakes_nobody",
    ),
    Mutation(
        "permits_acquire",
        "wake(fair, rank + 1)",
        "wake(fair, 0)",
        "test_who_passes_on_behind_a_quiet_release_wakes_who_stands_before_him",
    ),
    Mutation(
        "permits_acquire",
        "too_few and wanted >",
        "wanted >",
        "test_as_many_as_either_value_allows_may_be_had",
    ),
    Mutation(
        "permits_acquire",
        "too_few and wanted > tonumber(ARGV[6])",
        "too_few",
        "test_of_none_nobody_gets_any_and_who_holds_keeps_his",
    ),
    Mutation(
        "permits_acquire",
        "{3, capacity(), unpack(wake(fair, 0))}",
        "{3, capacity()}",
        "test_who_can_never_have_so_many_leaves_the_queue_and_wakes_the_next",
    ),
    Mutation(
        "permits_resize", "if not fewer then", "if true then", "test_resize_to_fewer_tells_all_who_wait"
    ),
    Mutation(
        "permits_resize",
        "first and capacity() or tonumber(ARGV[1])",
        "capacity()",
        "test_resize_at_first_is_of_the_value_that_it_is_made_with",
    ),
    Mutation(
        "permits_release", "has(ARGV[4], 'r')", "true", "test_a_quiet_release_wakes_nobody_and_drops_nobody"
    ),
    Mutation(
        "permits_release",
        "{held and 1 or thief_of(ARGV[1]), ",
        "{1, ",
        "test_release_said_twice_leaves_what_it_left_once",
    ),
    Mutation(
        "permits_release",
        "wake(ARGV[3] ~= NO_SEAT, 0)",
        "wake(false, 0)",
        "test_of_a_fair_one_nobody_is_woken_but_the_first",
    ),
    Mutation(
        "permits_adopt",
        "lease_of(ARGV[1]) and ARGV[1] or ARGV[2]",
        "ARGV[1]",
        "test_adopt_said_twice_is_said_once",
    ),
    Mutation(
        "permits_adopt",
        "lease_of(ARGV[1]) and ARGV[1] or ARGV[2]",
        "ARGV[2]",
        "test_adopt_swaps_the_token_and_keeps_fencing_token_and_permits",
    ),
    Mutation(
        "permits_annotate",
        " or tonumber(deadline) <= NOW",
        "",
        "test_annotate_by_who_does_not_hold_changes_nothing",
    ),
    Mutation(
        "permits_annotate", " or not deadline", "", "test_annotate_by_who_does_not_hold_changes_nothing"
    ),
    Mutation("permits_annotate", "not permits or ", "", "test_annotate_by_who_does_not_hold_changes_nothing"),
    Mutation(
        "permits_available",
        "has(ARGV[2], 't') and ",
        "",
        "test_available_in_turn_is_none_while_somebody_waits",
    ),
    Mutation(
        "permits_available", "not first and ARGV[1] ~= ''", "true", "test_available_is_what_could_be_had"
    ),
    Mutation(
        "permits_resize",
        "first ~= ARGV[1]",
        "false",
        "test_resize_with_another_value_is_told_of_the_one_that_there_is",
    ),
    Mutation(
        "permits_renew", "ARGV[5] ~= NO_SEAT", "false", "test_renew_wakes_the_first_for_what_came_to_its_end"
    ),
    Mutation("shared/permits", "'-inf', NOW", "'-inf', 0", "test_who_has_come_to_his_end_holds_no_more"),
    Mutation(
        "shared/permits", "'held', -permits", "'held', -1", "test_acquire_takes_back_what_has_come_to_its_end"
    ),
    Mutation(
        "shared/permits",
        "permits - had",
        "permits",
        "test_acquire_said_twice_is_the_same_grant_with_its_end_set_anew",
    ),
    Mutation(
        "shared/permits",
        "~= (number > 0 and number + 1 or 0) then",
        "< 0 then",
        "test_lost_holders_are_nobodys_and_nobody_holds_twice",
    ),
    Mutation(
        "shared/permits",
        "~= (number > 0 and number + 1 or 0) then",
        "> number + 1 then",
        "test_a_single_field_of_others_is_no_lease",
    ),
    Mutation(
        "shared/permits",
        "foreign_key and not at_once",
        "foreign_key",
        "test_members_of_others_are_left_alone_by_who_holds_and_refuse_the_next",
    ),
    Mutation(
        "shared/permits",
        "if is_token(token) then drop(token) end",
        "drop(token)",
        "test_members_of_others_are_left_alone_by_who_holds_and_refuse_the_next",
    ),
    Mutation(
        "shared/permits",
        " or not first and redis.call('HLEN', value) > 0",
        "",
        "test_a_value_of_others_is_refused_and_stays",
    ),
    Mutation(
        "shared/permits",
        "first and not tonumber(first) or ",
        "",
        "test_a_value_of_others_is_refused_and_stays",
    ),
    Mutation(
        "shared/permits",
        "'current') or 1) or reject_foreign(value)",
        "'current') or 1)",
        "test_a_value_of_others_is_refused_and_stays",
    ),
    Mutation(
        "shared/permits", "or 0) or reject_foreign(leases))", "or 0))", "test_a_sum_of_others_is_refused"
    ),
    Mutation(
        "shared/queue",
        "entry and bell_of(queue, entry)",
        "entry and string.sub(entry, 1, -SEAT - 1)",
        "test_a_queue_of_others_is_refused_and_costs_nobody_a_key",
    ),
    Mutation(
        "shared/permits",
        "ttl + SLACK)\n  keep(leases, ttl + SLACK)",
        "ttl)\n  keep(leases, ttl)",
        "test_acquire_sets_the_ttls",
    ),
    Mutation(
        "shared/permits",
        "if free() < 1 then return {} end",
        "",
        "test_a_release_that_leaves_no_permit_wakes_nobody",
    ),
    Mutation(
        "shared/permits",
        "state == '' and entry ~= except",
        "entry ~= except",
        "test_while_the_first_is_on_his_way_the_next_is_woken",
    ),
    Mutation(
        "shared/permits", "if fair then break end", "", "test_of_a_fair_one_nobody_is_woken_but_the_first"
    ),
    Mutation(
        "shared/permits", "rank + WALK", "rank + 99", "test_no_more_than_so_many_of_the_queue_are_looked_at"
    ),
    Mutation(
        "shared/queue",
        "redis.call('SET', bell, 'rung', 'PX', BELL_TTL)",
        "redis.call('SET', bell, '', 'PX', BELL_TTL)",
        "test_release_wakes_the_first_alone_and_puts_the_bell_back_as_rung",
    ),
    Mutation(
        "shared/queue",
        "redis.call('SET', bell, 'rung', 'PX', BELL_TTL)",
        "",
        "test_of_a_fair_one_nobody_is_woken_but_the_first",
    ),
    Mutation(
        "shared/queue",
        "has(flags, 'p') or redis.call('GET', bell) == 'rung'",
        "has(flags, 'p')",
        "test_who_was_woken_and_comes_by_himself_wakes_the_next_too",
    ),
    Mutation(
        "shared/queue",
        "if state then return entry, state end\n    redis.call('ZREM', queue, entry)",
        "do return entry, state end",
        "test_one_release_drops_all_the_dead_before_the_first_who_lives",
    ),
    Mutation("shared/queue", "'NX', whole", "whole", "test_who_is_refused_in_turn_again_keeps_seat_and_bell"),
    Mutation(
        "shared/queue",
        "  if state == '' then return nil end",
        "",
        "test_who_is_refused_in_turn_again_keeps_seat_and_bell",
    ),
    Mutation(
        "shared/queue",
        "if seat == NO_SEAT and not leaving then return end",
        "",
        "test_a_release_leaves_the_place_of_its_session_there",
    ),
    Mutation(
        "shared/queue",
        "if seat == NO_SEAT and not leaving then return end",
        "if not leaving then return end",
        "test_who_gets_in_on_his_seat_leaves_the_bell_to_the_others_of_his_session",
    ),
    Mutation(
        "shared/queue",
        "alone or seat == NO_SEAT or not has_entry(queue, bell)",
        "true",
        "test_who_leaves_his_seat_leaves_the_bell_to_the_others_of_his_session",
    ),
    Mutation(
        "shared/queue",
        "alone or seat == NO_SEAT or not has_entry(queue, bell)",
        "leaving",
        "test_a_bell_goes_with_the_last_seat_that_lives_by_it",
    ),
    Mutation(
        "shared/queue",
        "(stood or leaving)",
        "true",
        "test_a_release_of_who_sat_nowhere_leaves_the_bell_alone",
    ),
    Mutation(
        "shared/queue",
        "redis.call('ZCARD', queue) > WALK",
        "false",
        "test_in_a_long_queue_the_bell_stays",
    ),
    Mutation(
        "shared/queue",
        "string.sub(entry, 1, #bell) == bell",
        "true",
        "test_a_bell_goes_with_the_last_seat_that_lives_by_it",
    ),
    Mutation(
        "shared/queue",
        "not waits or bell_of(queue, other) ~= bell then",
        "not waits then",
        "test_in_turn_a_seat_of_its_own_session_does_not_carry_it_past_another",
    ),
    Mutation(
        "shared/queue",
        "(had_bell or state) and bell or nil",
        "state and bell or nil",
        "test_who_had_a_bell_that_is_gone_is_told_and_lives",
    ),
    Mutation(
        "shared/queue",
        "(had_bell or state) and bell or nil",
        "had_bell and bell or nil",
        "test_a_seat_that_hangs_up_a_rung_bell_again_tells_of_it",
    ),
    Mutation(
        "shared/fence",
        "TIME[1] * 1000000 + TIME[2]",
        "TIME[1] * 1000000",
        "test_acquire_mints_the_servers_time_in_microseconds",
    ),
    Mutation(
        "shared/fence",
        "not string.find(last, '^%d+$') or ",
        "",
        "test_acquire_is_refused_by_a_fence_that_is_not_ours",
    ),
    Mutation(
        "shared/fence",
        " or tonumber(last) >= 9007199254740991",
        "",
        "test_acquire_is_refused_by_a_fence_that_is_not_ours",
    ),
    Mutation(
        "shared/fence",
        "math.max(minted, last + 1)",
        "last + 1",
        "test_acquire_passes_over_a_fence_of_long_ago",
    ),
    Mutation(
        "shared/fence",
        "math.max(minted, last + 1)",
        "math.max(minted, last)",
        "test_acquire_mints_one_more_than_a_fence_that_is_ahead_of_the_clock",
    ),
    Mutation("shared/fence", "'%.0f'", "'%.14g'", "test_acquire_mints_the_servers_time_in_microseconds"),
    Mutation(
        "shared/fence",
        "math.max(redis.call('PTTL', fence), tonumber(ms))",
        "ms",
        "test_a_shorter_lease_shortens_no_ttl",
    ),
    Mutation(
        "shared/fence",
        "math.max(redis.call('PTTL', key), tonumber(ms))",
        "ms",
        "test_a_shorter_lease_shortens_no_ttl",
    ),
]


async def test_the_scripts_themselves_are_not_complained_of(redis, prefix) -> None:
    scripts = PermitScripts(redis, prefix)

    assert [name for name, check in CHECKS.items() if await fails(check, scripts)] == []


@pytest.mark.parametrize("file", FILES)
async def test_without_a_line_somebody_notices(redis, prefix, file) -> None:
    step = file if "/" not in file else "permits_acquire"
    mutants = [(name, file, text) for name, text in lines_left_out(file, unless=SPARED)]
    living = await compiled(PermitScripts, redis, prefix, step, mutants)

    assert await unnoticed(PermitScripts, redis, prefix, living, among=CHECKS) == []


@pytest.mark.long
async def test_with_a_line_altered_that_test_fails(redis, prefix) -> None:
    assert await surviving(PermitScripts, redis, prefix, MUTATIONS, CHECKS, "permits_acquire") == []


def test_each_line_that_is_spared_stands_there() -> None:
    lines = {line.strip() for file in FILES for line in text_of(file).splitlines()}

    assert set(SPARED) <= lines
