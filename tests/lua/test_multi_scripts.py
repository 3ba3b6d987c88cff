"""The scripts of several locks at once: every branch, said twice, by the wrong one, over leavings.

A test that asks for `locks` alone is also run on mutants of the scripts, by the tests at the end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.exceptions import ResponseError

from aiolocks.kinds.multilock import SeveralSteps
from aiolocks.transport import IN_TURN, PASSING, SEATED
from tests.lua.mutants import Mutation, checks, compiled, fails, lines_left_out, surviving, text_of, unnoticed
from tests.lua.scripts import BELL, HOUR, MINUTE, NO_FENCES, QUEUE, MultiScripts, about

pytestmark = pytest.mark.leaves_keys(
    "aiolocks*:lock*", "oiolocks*"
)  # without a ttl, where a test has put them there itself

ME, OTHER, THIRD = "a1" * 16, "b2" * 16, "c3" * 16
LATER = 9_007_199_254_740_000
"""A fencing token of the year 2255, near the largest whole number that a double can hold exactly."""


@pytest.fixture
def locks(redis, prefix) -> MultiScripts:
    return MultiScripts(redis, prefix)


# -- acquire -------------------------------------------------------------------------------------------------


async def test_acquire_takes_all_that_are_free(locks) -> None:
    granted, fencing, others, room = await locks.acquire(ME, metadata='{"pid":1}')

    assert (granted, others, room) == (1, 0, 0)
    assert await locks.values() == [b'%b:%b:{"pid":1}' % (ME.encode(), fencing)] * 3
    assert await locks.fences() == [fencing] * 3
    for one in locks.all:
        assert await one.expires_in(lock=MINUTE, fence=HOUR)


async def test_acquire_mints_the_servers_time_in_microseconds(locks) -> None:
    before = await locks.redis.time()
    _, fencing, *_ = await locks.acquire(ME)
    after = await locks.redis.time()

    assert before[0] * 10**6 + before[1] <= int(fencing) <= after[0] * 10**6 + after[1]


async def test_acquire_mints_more_than_stands_behind_any_of_the_fences(locks) -> None:
    for number in range(3):
        await locks.clear()
        for at, one in enumerate(locks.all):
            await locks.redis.set(one.fence, LATER + (5 if at == number else at))

        assert (await locks.acquire(ME))[1] == b"%d" % (LATER + 6)
        assert await locks.fences() == [b"%d" % (LATER + 6)] * 3


async def test_fencing_tokens_rise_for_each_name_whatever_is_taken_together(locks) -> None:
    minted = []
    for part in ((0, 1), (1, 2), (0,), (0, 1, 2), (2,)):
        one = locks.of(*part)
        minted.append(int((await one.acquire(ME))[1]))
        await one.release(ME)
        await locks.redis.delete(locks.all[0].fence)

    assert minted == sorted(set(minted))


async def test_acquire_is_refused_by_a_fence_that_is_not_ours(locks) -> None:
    for corrupt in NO_FENCES:
        await locks.redis.set(locks.all[1].fence, corrupt)
        with pytest.raises(ResponseError, match="FOREIGN 5"):
            await locks.acquire(ME)
        assert await locks.fences() == [None, corrupt.encode(), None]
        assert await locks.values() == [None] * 3


async def test_acquire_passes_over_a_fence_of_long_ago(locks) -> None:
    await locks.redis.set(locks.all[1].fence, "17")
    seconds, _ = await locks.redis.time()

    assert seconds * 10**6 <= int((await locks.acquire(ME))[1]) < 2**53


async def test_acquire_said_twice_is_the_same_grant_with_its_ttl_set_anew(locks) -> None:
    first = await locks.acquire(ME, ttl=1000, retention=MINUTE)
    state = await locks.state()

    assert await locks.acquire(ME, ttl=MINUTE, retention=HOUR) == first
    assert await locks.state() == state
    for one in locks.all:
        assert await one.expires_in(lock=MINUTE, fence=HOUR)


async def test_acquire_is_refused_while_any_of_them_is_held_and_changes_nothing(locks) -> None:
    for one in locks.all:
        await locks.clear()
        await one.acquire(OTHER, ttl=MINUTE)
        state = await locks.state()

        granted, remaining = await locks.acquire(ME)

        assert granted == 0
        assert about(remaining, MINUTE)
        assert await locks.state() == state


async def test_acquire_is_refused_for_as_long_as_the_longest_is_held(locks) -> None:
    await locks.all[0].acquire(OTHER, ttl=MINUTE)
    await locks.all[1].acquire(OTHER, ttl=HOUR)
    await locks.all[2].acquire(OTHER, ttl=1000)

    assert about((await locks.acquire(ME))[1], HOUR)


async def test_acquire_is_refused_without_end_where_somebody_took_the_ttl_away(locks) -> None:
    await locks.all[1].acquire(OTHER)
    await locks.redis.persist(locks.all[1].lock)

    assert await locks.acquire(ME) == [0, -1]
    await locks.all[0].acquire(OTHER, ttl=MINUTE)
    await locks.all[2].acquire(OTHER, ttl=MINUTE)
    assert await locks.acquire(ME) == [0, -1]


async def test_who_is_told_the_holders_is_told_which_has_no_ttl(locks) -> None:
    for lock in locks.all:
        await lock.acquire(OTHER)
    for which in (2, 1):
        await locks.redis.persist(locks.all[which].lock)
        _, remaining, (_, number, *told) = await locks.acquire(ME, flags="h")
        assert (remaining, number, told[3 * which + 1]) == (-1, which + 1, -1)


async def test_who_is_refused_is_told_who_holds_them_if_asked_for(locks) -> None:
    await locks.all[0].acquire(OTHER, ttl=MINUTE)
    await locks.all[2].acquire(THIRD, ttl=HOUR)
    await locks.all[1].sit("x")

    granted, remaining, (now, kept, *told), bell = await locks.acquire(ME, flags="ph")

    assert (granted, kept) == (0, b"")
    assert await locks.is_now(now)
    assert bell == locks.all[1].bell("x")
    lefts, values = told[1::3], told[2::3]
    assert told[::3] == [b"", b""]
    assert MINUTE - 5_000 < lefts[0] <= MINUTE
    assert lefts[1] == remaining > HOUR - 5_000
    assert values == [await locks.all[0].value(), await locks.all[2].value()]


async def test_of_many_locks_that_are_held_eight_are_told_of(locks) -> None:
    many = locks.of(0, 1, 2)
    while len(many.all) < 10:
        one = locks.all[0].another()
        one.name = f"{locks.name}.{len(many.all)}"
        one.lock, one.fence, one.queue = one.key(), one.key("fence"), one.key("queue")
        many.all.append(one)
    for one in many.all:
        await one.acquire(OTHER)

    _, _, told = await many.acquire(ME, flags="h")

    assert told[4::3] == [await one.value() for one in many.all[:8]]


async def test_acquire_is_refused_by_a_token_that_begins_alike_and_by_what_is_not_ours(locks) -> None:
    for value in (f"{ME}0:17:{{}}", "somebody else's", "", f"{OTHER}:x:", f"{OTHER}17"):
        await locks.redis.set(locks.all[1].lock, value, px=MINUTE)

        with pytest.raises(ResponseError, match="FOREIGN 2"):
            await locks.acquire(ME)
        assert await locks.locked() == 1
        assert [await locks.owned(ME), await locks.renew(ME), await locks.release(ME)] == [0, 0, [0]]
        assert await locks.adopt(ME, OTHER) == b""
        assert await locks.values() == [None, value.encode(), None]


async def test_what_was_lost_of_them_is_taken_anew_with_a_larger_fencing_token(locks) -> None:
    first = await locks.acquire(ME)
    await locks.redis.delete(locks.all[1].lock)

    second = await locks.acquire(ME)
    assert int(second[1]) > int(first[1])
    assert {value.split(b":")[1] for value in await locks.values()} == {second[1]}


async def test_it_and_the_simple_locks_exclude_each_other(locks) -> None:
    await locks.acquire(ME)
    for one in locks.all:
        assert (await one.acquire(OTHER))[0] == 0
        assert [await one.renew(OTHER), await one.release(OTHER), await one.owned(OTHER)] == [0, [0], 0]


# -- the queues ----------------------------------------------------------------------------------------------


async def test_who_gets_in_leaves_all_queues_and_takes_the_bell_down(locks) -> None:
    await locks.sit("x")
    await locks.all[1].sit("y")

    assert (await locks.acquire(ME, queued="x"))[2] == 1
    assert [await locks.waiting(queue) for queue in locks.queues] == [[], [locks.all[1].bell("y")], []]
    assert not await locks.stands("x")
    assert await locks.all[1].stands("y")


async def test_who_gets_in_says_how_many_others_stand_in_all_queues(locks) -> None:
    for number, one in enumerate(locks.all):
        for who in range(number + 1):
            await one.sit(f"{who}")

    assert (await locks.acquire(ME))[2] == 6
    assert (await locks.acquire(ME, queued="x"))[2] == 6


async def test_who_is_refused_keeps_places_and_bell(locks) -> None:
    await locks.all[2].acquire(OTHER)
    await locks.sit("x")
    state = await locks.state()

    assert (await locks.acquire(ME, queued="x"))[0] == 0
    assert await locks.state() == state


async def test_in_turn_leaves_to_others_what_is_free(locks) -> None:
    for one in locks.all:
        await locks.clear()
        await one.sit("y")
        await locks.sit("x")
        state = await locks.state()

        for queued in ("x", "stranger", None):
            assert await locks.acquire(ME, queued=queued, flags="t") == [0, -2]
        assert await locks.state() == state
        assert (await locks.acquire(ME, queued="x"))[0] == 1


async def test_in_turn_takes_it_for_who_stands_first_in_all_queues(locks) -> None:
    await locks.sit("x")
    for one in locks.all:
        await one.sit("y")

    assert (await locks.acquire(ME, queued="x", flags="t"))[:1] == [1]


async def test_in_turn_said_again_by_the_holder_is_the_same_grant(locks) -> None:
    await locks.all[1].sit("y")
    first = await locks.acquire(ME)

    assert await locks.acquire(ME, flags="t") == first


async def test_who_was_woken_in_vain_wakes_the_next_for_what_is_free(locks) -> None:
    await locks.all[1].acquire(OTHER)
    await locks.sit("x")
    for one in locks.all:
        await one.sit("y")
        await one.sit("z")

    granted, _, *rung = await locks.acquire(ME, queued="x", flags="p")

    assert granted == 0
    assert rung == [locks.all[0].bell("y"), locks.all[2].bell("y")]
    assert await locks.stands("x")
    assert await locks.all[1].stands("y")
    assert await locks.all[0].stands("z")


async def test_who_was_woken_in_vain_drops_the_dead_behind_him(locks) -> None:
    await locks.all[1].acquire(OTHER)
    one = locks.all[0]
    await one.sit("before")
    await locks.sit("x")
    for who in ("dead", "deader", "y"):
        await one.sit(who)
    await one.die("dead", "deader", "before")

    assert (await locks.acquire(ME, queued="x", flags="p"))[2:] == [one.bell("y")]
    assert await locks.waiting(one.queue) == [one.bell("before"), locks.bell("x"), one.bell("y")]


async def test_who_was_woken_in_vain_and_stands_last_wakes_nobody(locks) -> None:
    await locks.all[1].acquire(OTHER)
    await locks.all[0].sit("before")
    await locks.sit("x")

    assert (await locks.acquire(ME, queued="x", flags="p"))[2:] == []
    assert await locks.all[0].stands("before")


async def test_who_does_not_stand_in_the_queue_passes_on_to_the_first(locks) -> None:
    await locks.all[1].acquire(OTHER)
    await locks.all[0].sit("y")
    await locks.all[2].sit("z")

    assert (await locks.acquire(ME, flags="p"))[2:] == [locks.all[0].bell("y"), locks.all[2].bell("z")]


async def test_a_waiter_that_has_lost_its_place_passes_on_only_what_its_session_has_let_go_of(locks) -> None:
    """Another wakeup has passed it over, and is on its way to those behind."""
    await locks.all[1].acquire(OTHER)
    await locks.sit("x")
    await locks.redis.zrem(locks.queues[0], locks.bell("x"))
    for one in locks.all:
        await one.sit("y")

    assert (await locks.acquire(ME, queued="x", flags="p"))[2:] == [locks.all[2].bell("y")]
    await locks.all[2].sit("y")
    rung = [locks.all[0].bell("y"), locks.all[2].bell("y")]
    assert (await locks.acquire(ME, queued="x", flags="po"))[2:] == rung


async def test_who_was_not_woken_passes_nothing_on(locks) -> None:
    await locks.all[1].acquire(OTHER)
    await locks.all[0].sit("y")

    assert (await locks.acquire(ME))[2:] == []
    assert await locks.all[0].stands("y")


async def test_who_was_woken_in_vain_and_has_not_heard_it_passes_it_on_once(locks) -> None:
    """Its bell is gone: it polls, and may hear of that only when it hangs up its bell again."""
    await locks.all[1].acquire(OTHER)
    await locks.sit("x")
    for who in "yz":
        await locks.all[0].sit(who)
    assert (await locks.acquire(ME, queued="x", waits="x"))[2:] == []
    await locks.die("x")

    refused = await locks.acquire(ME, queued="x", waits="x")
    assert refused[2:] == [locks.all[0].bell("y"), locks.bell("x")]
    assert about(await locks.redis.pttl(locks.bell("x")), BELL)
    assert (await locks.acquire(ME, queued="x", waits="x"))[2:] == []
    assert await locks.all[0].stands("z")


async def test_one_that_is_refused_and_will_wait_is_seated_in_all_queues(locks) -> None:
    await locks.all[1].acquire(OTHER)

    assert len(await locks.acquire(ME, waits="x")) == 2

    for queue in locks.queues:
        assert await locks.waiting(queue) == [locks.bell("x")]
        assert await locks.lasts(queue, QUEUE)
    assert await locks.states("x") == [b""]
    assert await locks.lasts(locks.bell("x"), BELL)


async def test_in_turn_too_one_that_is_refused_is_seated(locks) -> None:
    await locks.all[2].sit("y")

    assert await locks.acquire(ME, waits="x", flags="t") == [0, -2]

    assert await locks.waiting(locks.queues[2]) == [locks.all[2].bell("y"), locks.bell("x")]
    assert await locks.states("x") == [b""]


async def test_one_that_takes_a_seat_only_takes_no_lock_and_keeps_none_longer(locks) -> None:
    assert await locks.acquire(ME, waits="x", flags="b") == [0, -2]
    assert await locks.states("x") == [b""]
    for queue in locks.queues:
        assert await locks.waiting(queue) == [locks.bell("x")]

    await locks.acquire(ME, ttl=MINUTE)
    assert await locks.acquire(ME, waits="x", flags="b", ttl=HOUR) == [0, -2]
    for one in locks.all:
        assert about(await locks.redis.pttl(one.lock), MINUTE)


async def test_one_that_will_not_wait_is_not_seated(locks) -> None:
    await locks.all[1].acquire(OTHER)

    await locks.acquire(ME)
    await locks.acquire(ME, queued="x")

    assert [await locks.waiting(queue) for queue in locks.queues] == [[], [], []]
    assert not await locks.stands("x")


async def test_one_that_is_refused_again_keeps_its_place_in_all_queues(locks) -> None:
    """Also where it was taken for dead in one of them: the order is the same in all."""
    await locks.all[1].acquire(OTHER)
    await locks.acquire(ME, waits="x")
    await locks.acquire(THIRD, waits="y")
    await locks.redis.zrem(locks.queues[0], locks.bell("x"))

    await locks.acquire(ME, waits="x")

    for queue in locks.queues:
        assert await locks.waiting(queue) == [locks.bell("x"), locks.bell("y")]


async def test_one_that_is_refused_sits_down_last_in_all_queues_also_if_the_clock_was_set_back(locks) -> None:
    await locks.all[1].acquire(OTHER)
    await locks.acquire(ME, waits="y")
    later = {queue: await locks.redis.zscore(queue, locks.bell("y")) + 1e9 for queue in locks.queues[:2]}
    for queue, score in later.items():
        await locks.redis.zadd(queue, {locks.bell("y"): score})
    await locks.acquire(THIRD, waits="x")

    for queue in locks.queues:
        assert await locks.waiting(queue) == [locks.bell("y"), locks.bell("x")]
    assert len({await locks.redis.zscore(queue, locks.bell("x")) for queue in locks.queues}) == 1


async def test_one_that_has_lost_a_place_after_the_clock_was_set_back_comes_where_it_was(locks) -> None:
    await locks.all[1].acquire(OTHER)
    await locks.acquire(ME, waits="x")
    had = await locks.redis.zscore(locks.queues[1], locks.bell("x")) + 1e9
    await locks.redis.zrem(locks.queues[0], locks.bell("x"))
    for queue in locks.queues[1:]:
        await locks.redis.zadd(queue, {locks.bell("x"): had})
    await locks.acquire(ME, waits="x")

    assert {await locks.redis.zscore(queue, locks.bell("x")) for queue in locks.queues} == {had}


async def test_a_bell_that_hangs_is_left_alone_by_a_refusal(locks) -> None:
    """After a write of its own session, that would not hear it any more."""
    await locks.all[1].acquire(OTHER)
    await locks.acquire(ME, waits="x")
    await locks.redis.pexpire(locks.bell("x"), 500)

    assert len(await locks.acquire(ME, waits="x", queued="x")) == 2

    assert await locks.redis.pttl(locks.bell("x")) <= 500


async def test_a_bell_that_was_gone_is_named_to_one_that_had_it(locks) -> None:
    await locks.all[1].acquire(OTHER)
    await locks.acquire(ME, waits="x")
    await locks.die("x")
    assert len(await locks.acquire(ME, waits="x")) == 2
    await locks.die("x")

    assert (await locks.acquire(ME, waits="x", queued="x"))[2:] == [locks.bell("x")]
    assert await locks.states("x") == [b""]


# -- release -------------------------------------------------------------------------------------------------


async def test_release_frees_all_and_keeps_the_fences(locks) -> None:
    _, fencing, *_ = await locks.acquire(ME)

    assert await locks.release(ME, retention=2 * HOUR) == [1]
    assert await locks.values() == [None] * 3
    assert await locks.fences() == [fencing] * 3
    for one in locks.all:
        assert await one.expires_in(fence=2 * HOUR)


async def test_release_said_twice_leaves_what_it_left_once(locks) -> None:
    await locks.acquire(ME)
    await locks.release(ME)
    state = await locks.state()

    assert await locks.release(ME) == [0]
    assert await locks.state() == state


async def test_release_frees_what_the_token_holds_and_nothing_else(locks) -> None:
    await locks.acquire(ME)
    await locks.redis.delete(locks.all[1].lock)
    await locks.all[1].acquire(OTHER)
    held = await locks.all[1].value()

    assert await locks.release(ME) == [0]
    assert await locks.values() == [None, held, None]


async def test_release_by_another_is_refused_and_changes_nothing(locks) -> None:
    await locks.acquire(OTHER)
    await locks.all[0].sit("x")
    state = await locks.state()

    for stranger in (ME, OTHER[:-1], OTHER + "0", ""):
        assert await locks.release(stranger) == [0]
    assert await locks.state() == state
    assert await locks.all[0].stands("x")


async def test_release_wakes_the_first_for_each_that_is_free(locks) -> None:
    await locks.acquire(ME)
    for one in locks.all:
        await one.sit("dead")
        await one.sit("y")
        await one.sit("z")
        await one.die("dead")

    assert await locks.release(ME) == [1, *(one.bell("y") for one in locks.all)]
    for one in locks.all:
        assert await one.waiting() == [one.bell("y"), one.bell("z")]
        assert await one.stands("z")


async def test_release_wakes_nobody_for_what_another_holds(locks) -> None:
    await locks.of(0, 2).acquire(ME)
    await locks.all[1].acquire(OTHER)
    for one in locks.all:
        await one.sit("y")

    assert await locks.release(ME) == [0, locks.all[0].bell("y"), locks.all[2].bell("y")]
    assert await locks.all[1].stands("y")


async def test_a_quiet_release_wakes_nobody(locks) -> None:
    await locks.acquire(ME)
    await locks.all[0].sit("y")

    assert await locks.release(ME, ring=False) == [1]
    assert await locks.all[0].stands("y")


async def test_who_leaves_is_removed_from_all_queues_with_its_bell(locks) -> None:
    await locks.acquire(OTHER)
    await locks.sit("x")
    await locks.all[2].sit("y")

    assert await locks.release(ME, leave="x") == [0]
    assert [await locks.waiting(queue) for queue in locks.queues] == [[], [], [locks.all[2].bell("y")]]
    assert not await locks.stands("x")


async def test_who_leaves_with_its_release_does_not_wake_itself(locks) -> None:
    await locks.acquire(ME)
    await locks.sit("x")

    assert await locks.release(ME, leave="x") == [1]
    assert sorted(await locks.everything()) == sorted(one.fence for one in locks.all)


async def test_who_waits_for_several_is_woken_once_and_keeps_his_places(locks) -> None:
    await locks.acquire(ME)
    await locks.sit("x")
    await locks.all[1].sit("y")

    assert await locks.release(ME) == [1, locks.bell("x")]
    assert await locks.waiting(locks.queues[1]) == [locks.bell("x"), locks.all[1].bell("y")]


async def test_who_was_woken_in_vain_wakes_who_waits_for_several_once(locks) -> None:
    await locks.all[1].acquire(OTHER)
    await locks.sit("x")
    two = locks.of(0, 2)
    await two.sit("y")
    await locks.all[2].sit("z")

    assert (await locks.acquire(ME, queued="x", flags="p"))[2:] == [two.bell("y")]
    assert await locks.waiting(locks.queues[2]) == [locks.bell("x"), two.bell("y"), locks.all[2].bell("z")]


async def test_two_who_lack_the_same_do_not_wake_each_other_for_ever(locks) -> None:
    """One of them was passed over for one of the locks, and was seated again."""
    await locks.all[0].acquire(OTHER)
    await locks.acquire(ME, waits="a")
    await locks.acquire(ME, waits="b")
    await locks.redis.zrem(locks.queues[2], locks.bell("a"))
    await locks.acquire(ME, waits="a")

    rung = [locks.bell("a")]
    for _ in range(10):
        if not rung:
            break
        who = "a" if rung == [locks.bell("a")] else "b"
        await locks.redis.delete(locks.bell(who))
        rung = (await locks.acquire(ME, waits=who, flags="p"))[2:]
    assert rung == []


# -- renew, adopt, owned, locked -----------------------------------------------------------------------------


async def test_renew_sets_the_ttls_anew_and_nothing_else(locks) -> None:
    await locks.acquire(ME, ttl=1000, retention=MINUTE)
    state = await locks.state()

    for _ in range(2):
        assert await locks.renew(ME, ttl=MINUTE, retention=HOUR) == 1
        assert await locks.state() == state
        for one in locks.all:
            assert await one.expires_in(lock=MINUTE, fence=HOUR)


async def test_renew_is_refused_where_any_of_them_is_lost_and_changes_nothing(locks) -> None:
    for one in locks.all:
        await locks.clear()
        await locks.acquire(ME)
        await locks.redis.delete(one.lock)
        await one.acquire(OTHER)
        state = await locks.state()

        assert await locks.renew(ME, ttl=HOUR) == 0
        assert await locks.owned(ME) == 0
        assert await locks.adopt(ME, THIRD) == b""
        assert await locks.state() == state
        for other in locks.all:
            assert await other.expires_in(lock=MINUTE)


async def test_a_holder_is_told_of_the_one_that_has_taken_any_of_them_by_force(locks) -> None:
    for one in locks.all:
        await locks.clear()
        await locks.acquire(ME)
        await one.steal(OTHER)
        thief = await locks.redis.get(one.lock)

        assert await locks.renew(ME) == thief
        assert await locks.release(ME) == [thief]
        assert await locks.release(ME) == [thief]
        assert await locks.release(ME, leave="x") == [0]
        await one.redis.delete(one.key("stolen"))
        assert await locks.release(ME) == [0]


async def test_renew_by_another_is_refused_and_changes_nothing(locks) -> None:
    await locks.acquire(OTHER)
    state = await locks.state()

    for stranger in (ME, OTHER[:-1], OTHER + "0", ""):
        assert await locks.renew(stranger, ttl=HOUR) == 0
    assert await locks.state() == state
    assert await locks.all[0].expires_in(lock=MINUTE)


async def test_renew_never_creates_what_is_gone(locks) -> None:
    assert await locks.renew(ME) == 0
    assert await locks.everything() == []


async def test_adopt_swaps_the_token_and_keeps_the_fencing_token(locks) -> None:
    _, fencing, *_ = await locks.acquire(ME, ttl=1000, retention=MINUTE, metadata="old")

    assert await locks.adopt(ME, OTHER, ttl=MINUTE, retention=HOUR, metadata="new") == fencing
    assert await locks.values() == [b"%b:%b:new" % (OTHER.encode(), fencing)] * 3
    for one in locks.all:
        assert await one.expires_in(lock=MINUTE, fence=HOUR)


async def test_adopt_said_twice_is_said_once(locks) -> None:
    await locks.acquire(ME)
    first = await locks.adopt(ME, OTHER, metadata="new")
    state = await locks.state()

    assert await locks.adopt(ME, OTHER, metadata="new") == first
    assert await locks.state() == state
    assert await locks.adopt(ME, THIRD) == b""
    assert await locks.state() == state


async def test_adopt_of_what_is_gone_creates_nothing(locks) -> None:
    assert await locks.adopt(ME, OTHER) == b""
    assert await locks.everything() == []


async def test_annotate_changes_the_metadata_of_all_alone(locks) -> None:
    _, fencing, *_ = await locks.acquire(ME, ttl=MINUTE, retention=HOUR, metadata="old:1:")

    for _ in range(2):
        assert await locks.annotate(ME, "new:2:") == 1
        assert await locks.values() == [b"%b:%b:new:2:" % (ME.encode(), fencing)] * 3
        for one in locks.all:
            assert await one.expires_in(lock=MINUTE, fence=HOUR)


async def test_annotate_of_what_is_not_all_held_changes_nothing(locks) -> None:
    assert await locks.annotate(ME) == 0
    assert await locks.everything() == []
    for one in locks.all:
        await locks.clear()
        await locks.acquire(ME)
        await one.redis.delete(one.lock)
        state = await locks.state()
        assert [await locks.annotate(ME), await locks.annotate(OTHER)] == [0, 0]
        assert await locks.state() == state
        await one.acquire(OTHER)
        state = await locks.state()
        assert await locks.annotate(ME) == 0
        assert await locks.state() == state


async def test_owned_is_who_holds_all_of_them(locks) -> None:
    assert await locks.owned(ME) == 0
    await locks.of(0, 1).acquire(ME)
    assert await locks.owned(ME) == 0
    await locks.acquire(ME)
    assert [await locks.owned(one) for one in (ME, OTHER, ME[:-1])] == [1, 0, 0]


@pytest.mark.parametrize("denied", [False, True], ids=["read at once", "an ACL denies that"])
async def test_a_holder_reads_all_of_them_at_once_if_it_may(own_server, connect, prefix, acl, denied) -> None:
    """Up to Redis 7.0, each read costs a tracked script as much as it has keys."""
    own = await own_server()
    admin = connect(own)
    rules = ["on", ">secret", "~*", "+@all", *(["-mget"] if denied else [])]
    await admin.execute_command("ACL", "SETUSER", "x", *rules)
    locks = MultiScripts(connect(own, username="x", password="secret"), prefix)
    await locks.acquire(ME)
    await admin.config_resetstat()

    assert await locks.renew(ME) == 1
    assert await locks.owned(ME) == 1

    stats = await admin.info("commandstats")
    assert ("cmdstat_get" in stats) is denied


async def test_locked_is_whoever_holds_any_of_them(locks) -> None:
    assert await locks.locked() == 0
    for one in locks.all:
        await locks.clear()
        await one.acquire(OTHER)
        assert await locks.locked() == 1


# -- each step, alike ----------------------------------------------------------------------------------------


async def test_everything_that_stands_there_has_a_ttl(locks) -> None:
    steps: list[Callable[[], Awaitable[Any]]] = [
        lambda: locks.acquire(ME),
        lambda: locks.sit("x"),
        lambda: locks.renew(ME),
        lambda: locks.adopt(ME, OTHER),
        lambda: locks.release(OTHER),
        lambda: locks.acquire(ME, queued="x"),
    ]
    for number, step in enumerate(steps):
        await step()
        ttls = await locks.ttls()
        assert min(ttls.values()) > 0, (number, ttls)


async def test_a_key_of_another_type_is_an_error_before_anything_is_taken(locks) -> None:
    for role in ("lock", "fence", "queue"):
        for one in locks.all:
            await locks.clear()
            await locks.redis.rpush(getattr(one, role), "data")

            number = locks.keys().index(getattr(one, role)) + 1
            with pytest.raises(ResponseError, match=f"FOREIGN {number}"):
                await locks.acquire(ME)
            assert await locks.everything() == [getattr(one, role)]


async def test_a_queue_that_is_not_ours_is_refused_and_costs_nobody_a_key(locks) -> None:
    for number, one in enumerate(locks.all, start=7):
        await locks.clear()
        await locks.acquire(ME)
        await locks.redis.zadd(one.queue, {locks.all[0].key("precious"): 1})
        await locks.redis.set(locks.all[0].key("precious"), "")

        assert await locks.release(ME) == [1]
        with pytest.raises(ResponseError, match=f"FOREIGN {number}"):
            await locks.acquire(ME)
        assert await locks.values() == [None] * 3
        assert await locks.redis.zrange(one.queue, 0, -1) == [locks.all[0].key("precious")]
        assert await locks.redis.delete(locks.all[0].key("precious")) == 1


async def test_only_a_bell_of_the_queues_own_name_is_used_as_a_key(locks) -> None:
    first, second = locks.all[:2]
    own, of_all = second.key("bell.x"), locks.bell("x")
    listed = second.key().partition(b":lock:")[2].hex()
    others = [
        b"o" + own[1:],  # as long as that of this prefix
        own.replace(b":lock.bell.", b":lock.bell.x:lock.bell."),
        first.key("bell.x"),
        first.key(f"bell.x.ff{listed}"),
        first.key(listed),
        second.key("bell"),
        own + b".bell.",
    ]
    for bell in (own, of_all, *others):
        await locks.clear()
        await second.acquire(ME)
        await locks.redis.zadd(second.queue, {bell: 1})
        await locks.redis.set(bell, "", px=MINUTE)

        assert (bell, await locks.of(1).release(ME)) == (bell, [1] if bell in others else [1, bell])
        assert await locks.redis.delete(bell) == (bell in others)


async def test_the_commands_say_to_the_scripts_what_these_tests_say(locks) -> None:
    names = [one.name for one in locks.all]
    commands = SeveralSteps(locks.prefix, names, retention_ms=HOUR, session="s")
    said = [
        (commands.acquire(ME, MINUTE, "{}"), locks.acquiring(ME)),
        (commands.acquire(ME, MINUTE, "{}", IN_TURN | PASSING), locks.acquiring(ME, flags="tp")),
        (commands.release(ME, MINUTE), locks.releasing(ME)),
        (commands.release(ME, MINUTE, ring=False), locks.releasing(ME, ring=False)),
    ]
    for command, words in said:
        assert command.words(as_eval=True)[2:] == words[2:]
        assert locks.mutant or command.script.text == words[1]
    assert commands.acquire(ME, MINUTE, "{}", SEATED).keys == (*locks.keys(), commands.bell)
    assert commands.release(ME, MINUTE, leave=True).keys == (*locks.keys(), commands.bell)


def test_other_names_have_another_bell() -> None:
    together = [["x"], ["x", "a"], ["x", "a", "b"], ["x", "a.b"], ["x", "ab"], ["x", "b", "a"]]
    bells = [SeveralSteps("shop", names, retention_ms=HOUR, session="s").bell for names in together]

    assert len(set(bells)) == len(together)


@pytest.mark.parametrize("protocol", [2, 3])
async def test_replies_are_integers_and_strings_alone(connect, prefix, protocol) -> None:
    locks = MultiScripts(connect(protocol=protocol), prefix)
    replies = [
        await locks.acquire(ME),
        await locks.acquire(OTHER),
        await locks.acquire(OTHER, waits="x"),
        await locks.renew(ME),
        await locks.adopt(ME, OTHER),
        await locks.owned(OTHER),
        await locks.locked(),
        await locks.release(OTHER),
        await locks.release(OTHER),
    ]
    assert [
        [type(item) for item in (reply if isinstance(reply, list) else [reply])] for reply in replies
    ] == [[int, bytes, int, int], [int, int], [int, int], [int], [bytes], [int], [int], [int, bytes], [int]]


# -- a server that is out of memory --------------------------------------------------------------------------


@pytest.fixture
async def full(own_server, connect, prefix) -> MultiScripts:
    """Held, and awaited, on a server that has no memory for anything new and evicts nothing."""
    server = await own_server(arguments=("--maxmemory-policy", "noeviction"))
    redis = connect(server)
    locks = MultiScripts(redis, prefix)
    await locks.acquire(ME)
    for who in ("dead", "y"):
        await locks.all[1].sit(who, ttl=MINUTE, queue_ttl=MINUTE)
    await locks.sit("x", ttl=MINUTE, queue_ttl=MINUTE)
    await locks.all[1].die("dead")
    await redis.config_set("maxmemory", 1)
    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await redis.set("anything", "new")
    return locks


async def test_out_of_memory_the_holder_can_still_renew_adopt_and_release(full) -> None:
    assert await full.renew(ME, ttl=2 * MINUTE) == 1
    assert (await full.acquire(ME))[0] == 1
    assert await full.adopt(ME, OTHER)
    assert await full.release(OTHER, leave="x") == [1, full.all[1].bell("y")]
    assert await full.values() == [None] * 3


FIRST_WRITE = "redis.call('PEXPIRE', KEYS[1], ttl)  -- allowed out of memory; then so are later writes"


async def test_out_of_memory_it_is_the_first_write_that_opens_the_door(full) -> None:
    assert text_of("multi_acquire").count(FIRST_WRITE) == 1
    full.mutant = {"multi_acquire": text_of("multi_acquire").replace(FIRST_WRITE, "").encode()}

    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await full.acquire(ME)


SEATED_FIRST = (
    "pcall(redis.call, 'PEXPIRE', queue, QUEUE_TTL)  -- allowed out of memory; then so are later writes"
)


async def test_out_of_memory_one_that_is_refused_is_seated(full) -> None:
    await full.acquire(OTHER, waits="new")

    assert full.bell("new") in await full.waiting(full.queues[0])
    assert await full.states("new") == [b""]

    full.mutant = {"shared/seats": text_of("shared/seats").replace(SEATED_FIRST, "").encode()}
    assert (await full.acquire(OTHER, waits="newer"))[0] == 0  # it is refused all the same
    assert full.bell("newer") not in await full.waiting(full.queues[0])


async def test_out_of_memory_acquire_is_refused_and_changes_nothing(full) -> None:
    other = full.another()

    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await other.acquire(OTHER)
    assert await other.everything() == []


async def test_out_of_memory_the_answers_still_come(full) -> None:
    assert [await full.owned(ME), await full.owned(OTHER), await full.locked()] == [1, 0, 1]


# -- mutants -------------------------------------------------------------------------------------------------

CHECKS = checks(globals(), "locks")
FILES = [
    "multi_acquire",
    "multi_release",
    "multi_renew",
    "multi_adopt",
    "multi_annotate",
    "multi_owned",
    "multi_locked",
    "shared/locks",
    "shared/bells",
    "shared/seats",
]
_KEPT = "of a lock that is kept: see test_kept_scripts.py"
SPARED = {
    FIRST_WRITE: "see out of memory above",
    SEATED_FIRST: "see out of memory above",
    "return nil": "without it, it is nothing, which is as good",
    "asked = recall(KEYS[i], queues[i], held, flags) and asked": _KEPT,
    "local before = redis.call('ZRANGE', queues[i], 0, 0)[1]": _KEPT,
    "if before and before ~= bell then answers = false end": _KEPT,
    "local answers = asked and (not has(flags, 'w') or has(flags, 'e'))": _KEPT,
}
"""Lines that may be left out, each with the reason."""
MUTATIONS = [
    Mutation("multi_annotate", ", 'KEEPTTL'", "", "test_annotate_changes_the_metadata_of_all_alone"),
    Mutation(
        "multi_annotate",
        "if not held[i] then return 0 end",
        "",
        "test_annotate_of_what_is_not_all_held_changes_nothing",
    ),
    Mutation(
        "multi_acquire",
        "math.max(remaining or -1, left)",
        "left",
        "test_acquire_is_refused_for_as_long_as_the_longest_is_held",
    ),
    Mutation(
        "multi_acquire",
        "free[#free + 1] = queues[i]",
        "free[#free + 1] = KEYS[3 * n]",
        "test_who_was_woken_in_vain_wakes_the_next_for_what_is_free",
    ),
    Mutation(
        "multi_acquire",
        "has(flags, 'p') or",
        "true or",
        "test_who_was_not_woken_passes_nothing_on",
    ),
    Mutation(
        "multi_acquire",
        "has(flags, 'q') and redis.call('EXISTS', bell) == 0",
        "false",
        "test_who_was_woken_in_vain_and_has_not_heard_it_passes_it_on_once",
    ),
    Mutation(
        "multi_acquire",
        "and not has(flags, 'o')",
        "",
        "test_a_waiter_that_has_lost_its_place_passes_on_only_what_its_session_has_let_go_of",
    ),
    Mutation(
        "shared/locks",
        "not had_seat or redis.call('ZSCORE', queue, bell)",
        "true",
        "test_a_waiter_that_has_lost_its_place_passes_on_only_what_its_session_has_let_go_of",
    ),
    Mutation(
        "multi_acquire",
        "first ~= bell then return {0, -2, enqueue_in_each(queues, bell, flags)}",
        "first ~= bell then return {0, -2}",
        "test_in_turn_too_one_that_is_refused_is_seated",
    ),
    Mutation(
        "shared/seats",
        "if not has(flags, 'w') then return nil end",
        "",
        "test_one_that_will_not_wait_is_not_seated",
    ),
    Mutation(
        "shared/seats",
        "redis.call('ZSCORE', queue, bell) or had",
        "had",
        "test_one_that_is_refused_again_keeps_its_place_in_all_queues",
    ),
    Mutation(
        "shared/seats",
        "if hangs then return nil end",
        "",
        "test_a_bell_that_hangs_is_left_alone_by_a_refusal",
    ),
    Mutation(
        "shared/seats",
        "has(flags, 'q') and bell or nil",
        "bell",
        "test_a_bell_that_was_gone_is_named_to_one_that_had_it",
    ),
    Mutation(
        "shared/locks",
        "rung[#rung + 1] = wake(queue, bell)",
        "rung[#rung + 1] = wake(queue)",
        "test_who_was_woken_in_vain_drops_the_dead_behind_him",
    ),
    Mutation(
        "multi_acquire",
        "has(flags, 't') and first",
        "first",
        "test_who_gets_in_says_how_many_others_stand_in_all_queues",
    ),
    Mutation(
        "multi_acquire",
        "first and first ~= bell",
        "first",
        "test_in_turn_takes_it_for_who_stands_first_in_all_queues",
    ),
    Mutation(
        "multi_acquire",
        "minted = above(KEYS[n + i], minted)",
        "minted = above(KEYS[n + 1], minted)",
        "test_acquire_mints_more_than_stands_behind_any_of_the_fences",
    ),
    Mutation(
        "multi_acquire",
        "minted = above(KEYS[n + i], minted)",
        "minted = above(KEYS[n + i], MICROSECONDS)",
        "test_acquire_mints_more_than_stands_behind_any_of_the_fences",
    ),
    Mutation(
        "multi_acquire",
        "if mine == n then",
        "if mine > 0 then",
        "test_what_was_lost_of_them_is_taken_anew_with_a_larger_fencing_token",
    ),
    Mutation(
        "multi_release",
        "freed == n and 1 or thief",
        "freed > 0 and 1 or thief",
        "test_release_frees_what_the_token_holds_and_nothing_else",
    ),
    Mutation(
        "multi_release",
        "and not bell then",
        "then",
        "test_a_holder_is_told_of_the_one_that_has_taken_any_of_them_by_force",
    ),
    Mutation(
        "multi_release",
        "elseif thief == 0 and not bell then",
        "elseif not bell then",
        "test_a_holder_is_told_of_the_one_that_has_taken_any_of_them_by_force",
    ),
    Mutation(
        "multi_release",
        "not held and ARGV[4] == '1'",
        "ARGV[4] == '1'",
        "test_release_wakes_nobody_for_what_another_holds",
    ),
    Mutation("multi_release", "not held and ARGV[4] == '1'", "not held", "test_a_quiet_release_wakes_nobody"),
    Mutation(
        "multi_renew",
        "for i = 1, n do\n  if not",
        "for i = 1, 1 do\n  if not",
        "test_renew_is_refused_where_any_of_them_is_lost_and_changes_nothing",
    ),
    Mutation(
        "multi_adopt",
        "not held_by(ARGV[2], held) and not held_by(ARGV[3], held)",
        "not held_by(ARGV[2], held)",
        "test_adopt_said_twice_is_said_once",
    ),
    Mutation(
        "multi_adopt",
        "not held_by(ARGV[2], held) and not held_by(ARGV[3], held)",
        "not held_by(ARGV[3], held)",
        "test_adopt_swaps_the_token_and_keeps_the_fencing_token",
    ),
    *(
        Mutation("shared/bells", guard, instead, "test_only_a_bell_of_the_queues_own_name_is_used_as_a_key")
        for guard, instead in (
            (" or string.sub(bell, 1, #place) ~= place", ""),
            ("[^:{}]+", ".+"),
            ("'.' .. listed .. '.'", "listed"),
            ("string.find(role .. '.', '.' .. listed .. '.', 1, true) and bell or nil", "bell"),
        )
    ),
    Mutation("multi_locked", "> 0", "> 2", "test_locked_is_whoever_holds_any_of_them"),
    Mutation(
        "shared/locks",
        "#token + 1) == token .. ':'",
        "#token) == token",
        "test_acquire_is_refused_by_a_token_that_begins_alike_and_by_what_is_not_ours",
    ),
    Mutation(
        "shared/locks", "rank and rank + 1 or 0", "0", "test_who_was_woken_in_vain_drops_the_dead_behind_him"
    ),
    Mutation(
        "shared/locks", " or woken[next]", "", "test_who_waits_for_several_is_woken_once_and_keeps_his_places"
    ),
    Mutation(
        "shared/locks",
        "redis.call('DEL', next) == 1",
        "redis.call('DEL', next) >= 0",
        "test_release_wakes_the_first_for_each_that_is_free",
    ),
    Mutation(
        "shared/locks",
        "redis.call('ZREM', queue, next)",
        "rank = rank + 1",
        "test_release_wakes_the_first_for_each_that_is_free",
    ),
]


async def test_the_scripts_themselves_are_not_complained_of(redis, prefix) -> None:
    scripts = MultiScripts(redis, prefix)

    assert [name for name, check in CHECKS.items() if await fails(check, scripts)] == []


@pytest.mark.parametrize("file", FILES)
async def test_without_a_line_somebody_notices(redis, prefix, file) -> None:
    step = file if "/" not in file else "multi_acquire"
    mutants = [(name, file, text) for name, text in lines_left_out(file, unless=SPARED)]
    living = await compiled(MultiScripts, redis, prefix, step, mutants)

    assert await unnoticed(MultiScripts, redis, prefix, living, among=CHECKS) == []


async def test_with_a_line_altered_that_test_fails(redis, prefix) -> None:
    assert await surviving(MultiScripts, redis, prefix, MUTATIONS, CHECKS, "multi_acquire") == []


def test_each_line_that_is_spared_stands_there() -> None:
    lines = {line.strip() for file in FILES for line in text_of(file).splitlines()}

    assert set(SPARED) <= lines
