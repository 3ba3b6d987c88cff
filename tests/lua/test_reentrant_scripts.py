"""The scripts of a lock that its owner may take again: every branch, said twice, by others, over leavings.

A test that asks for `lock` alone is also run on mutants of the scripts, by the tests at the end. Those of the
lock that hold here as they stand are run here too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import ResponseError

from aiolocks.kinds.reentrant import ReentrantSteps
from aiolocks.transport import IN_TURN, SEATED, TOLD
from aiolocks.transport.steps.listening import Listener
from tests.lua.mutants import Mutation, checks, compiled, fails, lines_left_out, surviving, text_of, unnoticed
from tests.lua.scripts import HOUR, MINUTE, ReentrantScripts, about

pytestmark = pytest.mark.leaves_keys(
    "aiolocks*:lock*"
)  # without a ttl, where a test has put them there itself

OWNER, STRANGER = "a1" * 16, "b2" * 16
ME, MINE, ALSO = (OWNER + end * 16 for end in ("01", "02", "03"))
"""Tokens of one owner."""
OTHER, THIRD = (STRANGER + end * 16 for end in ("01", "02"))
SIMPLE = "5e" * 16
LATER = 9_007_199_254_740_000
"""A fencing token of the year 2255, near the largest whole number that a double can hold exactly."""


@pytest.fixture
def lock(redis, prefix) -> ReentrantScripts:
    return ReentrantScripts(redis, prefix)


# -- acquire -------------------------------------------------------------------------------------------------


async def test_acquire_takes_what_is_free(lock) -> None:
    granted, fencing, others, depth = await lock.acquire(ME, metadata='{"pid":1}')

    assert (granted, others, depth) == (1, 0, 1)
    assert await lock.value() == b'%b:%b:{"pid":1}' % (OWNER.encode(), fencing)
    assert await lock.fence_value() == fencing
    assert list(await lock.nested()) == [ME.encode()]
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)
    assert await lock.lasts(lock.nest, MINUTE)


async def test_acquire_notes_the_end_of_the_lease(lock) -> None:
    await lock.acquire(ME, ttl=MINUTE)
    seconds, micros = await lock.redis.time()

    end = (await lock.nested())[ME.encode()]
    assert about(end - seconds * 1000 - micros // 1000 - 1, MINUTE)


async def test_acquire_mints_the_servers_time_in_microseconds(lock) -> None:
    before = await lock.redis.time()
    _, fencing, *_ = await lock.acquire(ME)
    after = await lock.redis.time()

    assert before[0] * 10**6 + before[1] <= int(fencing) <= after[0] * 10**6 + after[1]


async def test_acquire_said_twice_is_the_same_grant_with_its_ttl_set_anew(lock) -> None:
    first = await lock.acquire(ME, ttl=1000, retention=MINUTE)
    state = await lock.state()

    assert await lock.acquire(ME, ttl=MINUTE, retention=HOUR, metadata="other") == first
    assert await lock.state() == state
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)


async def test_its_owner_takes_it_again_with_the_same_fencing_token(lock) -> None:
    first = await lock.acquire(ME)
    value = await lock.value()

    assert await lock.acquire(MINE, metadata="other") == [1, first[1], 0, 2]
    assert await lock.acquire(ALSO) == [1, first[1], 0, 3]
    assert await lock.acquire(MINE) == [1, first[1], 0, 3]
    assert await lock.value() == value
    assert set(await lock.nested()) == {ME.encode(), MINE.encode(), ALSO.encode()}


async def test_a_shorter_lease_shortens_nothing(lock) -> None:
    await lock.acquire(ME, ttl=MINUTE, retention=HOUR)
    await lock.acquire(MINE, ttl=1000, retention=10_000)
    await lock.renew(MINE, ttl=1000, retention=10_000)
    await lock.adopt(MINE, ALSO, ttl=1000, retention=10_000)
    await lock.release(ALSO, retention=10_000)

    assert await lock.expires_in(lock=MINUTE, fence=HOUR)
    assert await lock.lasts(lock.nest, MINUTE)


async def test_the_lock_lasts_until_the_latest_of_its_leases(lock) -> None:
    await lock.acquire(ME, ttl=MINUTE)
    await lock.acquire(MINE, ttl=HOUR)
    assert await lock.expires_in(lock=HOUR)
    assert await lock.lasts(lock.nest, HOUR)

    await lock.release(MINE)
    assert await lock.expires_in(lock=MINUTE)
    assert await lock.lasts(lock.nest, MINUTE)


async def test_acquire_is_refused_while_another_holds_it_and_changes_nothing(lock) -> None:
    await lock.acquire(OTHER, ttl=MINUTE)
    state = await lock.state()

    granted, remaining = await lock.acquire(ME, ttl=HOUR)

    assert granted == 0
    assert about(remaining, MINUTE)
    assert await lock.state() == state
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)


async def test_acquire_is_refused_without_end_where_somebody_took_the_ttl_away(lock) -> None:
    await lock.acquire(OTHER)
    await lock.redis.persist(lock.lock)

    assert await lock.acquire(ME) == [0, -1]


async def test_who_is_refused_is_told_who_holds_it_if_asked_for(lock) -> None:
    for holder, token in ((lock, OTHER), (lock.simple, OTHER)):
        await holder.acquire(token, metadata='{"a": 1}')

        granted, remaining, (now, *told) = await lock.acquire(ME, told=True)

        assert granted == 0
        assert MINUTE - 5_000 < remaining <= MINUTE
        assert await lock.is_now(now)
        assert told == [b"", b"", remaining, await lock.value()]
        await holder.release(token)
    await lock.acquire(MINE)
    assert (await lock.acquire(ME, told=True))[0] == 1  # its owner is not refused


async def test_it_and_the_simple_lock_exclude_each_other(lock) -> None:
    await lock.acquire(ME)
    assert (await lock.simple.acquire(SIMPLE))[0] == 0
    await lock.release(ME)

    first = await lock.simple.acquire(SIMPLE)
    assert first[0] == 1
    assert (await lock.acquire(ME))[0] == 0
    assert [await lock.owned(ME), await lock.renew(ME), await lock.release(ME)] == [0, 0, [0]]
    assert await lock.simple.release(SIMPLE) == [1]
    assert int((await lock.acquire(ME))[1]) > int(first[1])


async def test_a_value_that_is_not_ours_is_refused_and_stays(lock) -> None:
    await lock.redis.set(lock.lock, "somebody else's", px=MINUTE)

    with pytest.raises(ResponseError, match="FOREIGN 1"):
        await lock.acquire(ME)
    assert await lock.locked(OWNER) == 1
    assert [await lock.owned(ME), await lock.renew(ME), await lock.release(ME)] == [0, 0, [0]]
    assert await lock.adopt(ME, MINE) == b""
    assert await lock.value() == b"somebody else's"


async def test_an_owner_that_begins_alike_is_another(lock) -> None:
    await lock.redis.set(lock.lock, f"{OWNER[:-1]}0:17:{{}}", px=MINUTE)
    assert (await lock.acquire(ME))[0] == 0
    await lock.redis.set(lock.lock, f"{OWNER}0:17:{{}}", px=MINUTE)
    with pytest.raises(ResponseError, match="FOREIGN 1"):
        await lock.acquire(ME)


async def test_a_nest_of_others_is_refused_and_stays(lock) -> None:
    for held in (False, True):
        await lock.clear()
        if held:
            await lock.acquire(ME)
        await lock.redis.zadd(lock.nest, {"hello": 1, "world": 1e15})
        with pytest.raises(ResponseError, match="FOREIGN 4"):
            await lock.acquire(MINE)
        if held:
            assert [await lock.renew(ME), await lock.owned(ME)] == [1, 1]
            assert await lock.expires_in(lock=MINUTE)
            assert await lock.release(ME) == [1]
        assert await lock.redis.zrange(lock.nest, 0, -1) == [b"hello", b"world"]
        assert not await lock.redis.exists(lock.lock)


async def test_a_queue_of_others_is_refused_and_costs_nobody_a_key(lock) -> None:
    await lock.acquire(ME)
    await lock.redis.zadd(lock.queue, {lock.key("precious"): 1})
    await lock.redis.set(lock.key("precious"), "")
    assert await lock.release(ME) == [1]
    with pytest.raises(ResponseError, match="FOREIGN 3"):
        await lock.acquire(ME)
    assert not await lock.redis.exists(lock.lock)
    assert await lock.redis.delete(lock.key("precious")) == 1


async def test_a_lock_that_is_taken_anew_has_a_new_nest(lock) -> None:
    """A token there of a lock that was lost is nobody's lease."""
    first = await lock.acquire(ME)
    await lock.redis.delete(lock.lock)

    again = await lock.acquire(MINE)
    assert again[2:] == [0, 1]
    assert int(again[1]) > int(first[1])
    assert [await lock.owned(ME), await lock.renew(ME), await lock.release(ME)] == [0, 0, [0]]
    assert await lock.owned(MINE) == 1


async def test_what_another_took_meanwhile_is_not_the_lost_owners(lock) -> None:
    await lock.acquire(ME)
    await lock.redis.delete(lock.lock)
    await lock.simple.acquire(SIMPLE)

    assert [await lock.owned(ME), await lock.renew(ME), await lock.release(ME)] == [0, 0, [0]]
    assert await lock.adopt(ME, MINE) == b""
    assert await lock.simple.owned(SIMPLE) == 1


async def test_a_lost_nest_loses_the_leases_and_the_lock_ends_by_itself(lock) -> None:
    await lock.acquire(ME)
    await lock.redis.delete(lock.nest)

    assert [await lock.owned(ME), await lock.renew(ME), await lock.release(ME)] == [0, 0, [0]]
    assert (await lock.acquire(OTHER))[0] == 0
    assert await lock.expires_in(lock=MINUTE)
    assert (await lock.acquire(MINE))[3] == 1


async def test_each_step_removes_the_leases_that_have_come_to_their_end(lock) -> None:
    steps: dict[str, Callable[[], Awaitable[Any]]] = {
        "acquire": lambda: lock.acquire(MINE),
        "renew": lambda: lock.renew(MINE),
        "release": lambda: lock.release(ALSO),
        "adopt": lambda: lock.adopt(ALSO, OTHER),
        "owned": lambda: lock.owned(MINE),
    }
    for name, step in steps.items():
        await lock.clear()
        await lock.acquire(ME)
        await lock.acquire(MINE)
        await lock.end(ME)
        await step()
        assert list(await lock.nested()) == [MINE.encode()], name


async def test_a_lease_that_has_come_to_its_end_holds_no_more(lock) -> None:
    await lock.acquire(ME)
    await lock.acquire(MINE)
    await lock.end(ME)

    assert [await lock.owned(ME), await lock.renew(ME), await lock.adopt(ME, ALSO)] == [0, 0, b""]
    assert await lock.release(ME) == [0]
    assert await lock.release(MINE) == [1]
    assert await lock.value() is None


async def test_acquire_mints_one_more_than_a_fence_that_is_ahead_of_the_clock(lock) -> None:
    await lock.redis.set(lock.fence, LATER)

    assert (await lock.acquire(ME))[1] == b"9007199254740001"
    assert (await lock.acquire(MINE))[1] == b"9007199254740001"
    assert await lock.fence_value() == b"9007199254740001"


async def test_fencing_tokens_rise_over_the_loss_of_the_fence(lock) -> None:
    minted = []
    for token in (ME, OTHER, MINE):
        minted.append(int((await lock.acquire(token))[1]))
        await lock.redis.delete(lock.fence)
        await lock.release(token)

    assert minted == sorted(set(minted))


async def test_metadata_does_not_confuse(lock) -> None:
    for metadata in (b"", b":17:", b"\0\r\n", b"\xff\xfe", b"%s%d"):
        _, fencing, *_ = await lock.acquire(ME, metadata=metadata)
        assert await lock.value() == b"%b:%b:%b" % (OWNER.encode(), fencing, metadata)
        assert (await lock.acquire(MINE))[1] == fencing
        assert await lock.adopt(MINE, ALSO) == fencing
        await lock.release(ME)
        await lock.release(ALSO)


# -- the queue -----------------------------------------------------------------------------------------------


async def test_who_gets_in_leaves_the_queue_and_takes_the_bell_down(lock) -> None:
    for who in ("x", "y", "z"):
        await lock.sit(who)

    assert (await lock.acquire(ME, queued="y"))[2:] == [2, 1]
    assert await lock.waiting() == [lock.bell("x"), lock.bell("z")]
    assert [await lock.stands(who) for who in ("x", "y", "z")] == [True, False, True]


async def test_who_takes_it_again_leaves_the_queue_too(lock) -> None:
    await lock.acquire(ME)
    await lock.sit("x")

    assert (await lock.acquire(MINE, queued="x"))[2:] == [0, 2]
    assert not await lock.stands("x")
    assert await lock.waiting() == []


async def test_who_gets_in_beside_the_queue_stays_in_it(lock) -> None:
    await lock.sit("x")

    assert (await lock.acquire(ME))[2] == 1
    assert await lock.stands("x")


async def test_in_turn_leaves_to_another_what_is_free(lock) -> None:
    for who in ("x", "y"):
        await lock.sit(who)
    state = await lock.state()

    for queued in ("y", "stranger", None):
        assert await lock.acquire(ME, queued=queued, in_turn=True) == [0, -2]
    assert await lock.state() == state
    assert (await lock.acquire(ME, queued="x", in_turn=True))[0] == 1


async def test_in_turn_takes_what_nobody_waits_for(lock) -> None:
    assert (await lock.acquire(ME, in_turn=True))[0] == 1


async def test_one_that_is_refused_and_will_wait_is_seated(lock) -> None:
    await lock.acquire(OTHER)

    assert len(await lock.acquire(ME, waits="x")) == 2
    assert await lock.waiting() == [lock.bell("x")]
    assert await lock.states("x") == [b""]

    await lock.release(OTHER, ring=False)  # and so another goes first
    assert await lock.acquire(ME, waits="y", in_turn=True) == [0, -2]
    assert await lock.waiting() == [lock.bell("x"), lock.bell("y")]


async def test_without_in_turn_anybody_may_overtake(lock) -> None:
    for who in ("x", "y"):
        await lock.sit(who)

    assert (await lock.acquire(ME, queued="y"))[0] == 1


async def test_its_owner_takes_it_again_whosever_turn_it_is(lock) -> None:
    await lock.acquire(ME)
    await lock.sit("x")

    assert (await lock.acquire(MINE, in_turn=True))[0] == 1


async def held_with(lock: ReentrantScripts, *who: str) -> None:
    await lock.acquire(ME)
    for one in who:
        await lock.sit(one)


async def test_release_frees_and_wakes_the_first_alone(lock) -> None:
    await held_with(lock, "y", "x")

    assert await lock.release(ME) == [1, lock.bell("y")]
    assert [await lock.stands(who) for who in ("y", "x")] == [False, True]
    assert await lock.waiting() == [lock.bell("y"), lock.bell("x")]
    assert await lock.value() is None
    assert await lock.nested() == {}


async def test_release_of_an_inner_lease_frees_nothing_and_wakes_nobody(lock) -> None:
    await held_with(lock, "x")
    await lock.acquire(MINE)

    assert await lock.release(MINE) == [1]
    assert await lock.stands("x")
    assert await lock.owned(ME) == 1
    assert await lock.release(ME) == [1, lock.bell("x")]


async def test_release_drops_the_dead_and_wakes_the_first_who_lives(lock) -> None:
    await held_with(lock, "dead", "deader", "y", "behind")
    await lock.die("dead", "deader", "behind")

    assert await lock.release(ME) == [1, lock.bell("y")]
    assert await lock.waiting() == [lock.bell("y"), lock.bell("behind")]


async def test_release_leaves_nothing_of_a_queue_of_the_dead(lock) -> None:
    await held_with(lock, "x", "y")
    await lock.die("x", "y")

    assert await lock.release(ME) == [1]
    assert await lock.everything() == [lock.fence]


async def test_a_quiet_release_wakes_nobody(lock) -> None:
    await held_with(lock, "x")

    assert await lock.release(ME, ring=False) == [1]
    assert await lock.stands("x")


async def test_who_leaves_is_removed_with_its_bell(lock) -> None:
    await lock.acquire(OTHER)
    for who in ("x", "y"):
        await lock.sit(who)

    assert await lock.release(ME, leave="x") == [0]
    assert await lock.waiting() == [lock.bell("y")]
    assert [await lock.stands(who) for who in ("x", "y")] == [False, True]


async def test_who_was_woken_and_leaves_wakes_the_next(lock) -> None:
    await held_with(lock, "x", "y")
    assert await lock.release(ME) == [1, lock.bell("x")]

    assert await lock.release(MINE, leave="x") == [0, lock.bell("y")]


async def test_release_said_twice_leaves_what_it_left_once(lock) -> None:
    for nested in (False, True):
        await lock.clear()
        await lock.acquire(ME)
        if nested:
            await lock.acquire(MINE)
        assert await lock.release(ME, retention=2 * HOUR) == [1]
        assert await lock.expires_in(fence=2 * HOUR)
        state = await lock.state()

        assert await lock.release(ME) == [0]
        assert await lock.state() == state


async def test_release_names_the_one_that_has_taken_the_owners_place_by_force(lock) -> None:
    await lock.acquire(ME)
    await lock.steal(OTHER)
    thief = await lock.value()

    assert await lock.release(ME) == [thief]
    assert await lock.release(ME, leave="x") == [0]
    assert await lock.release(OTHER) == [1]


async def test_release_by_another_is_refused_and_changes_nothing(lock) -> None:
    await lock.acquire(OTHER)
    await lock.sit("x")
    state = await lock.state()

    for stranger in (ME, THIRD, OTHER[:-1], OTHER + "0", STRANGER, ""):
        assert await lock.release(stranger) == [0]
    assert await lock.state() == state
    assert await lock.stands("x")


# -- renew, adopt, owned, locked -----------------------------------------------------------------------------


async def test_renew_sets_the_ttls_anew_and_nothing_else(lock) -> None:
    await lock.acquire(ME, ttl=1000, retention=MINUTE)
    state = await lock.state()

    for _ in range(2):
        assert await lock.renew(ME, ttl=MINUTE, retention=HOUR) == 1
        assert await lock.state() == state
        assert await lock.expires_in(lock=MINUTE, fence=HOUR)
        assert await lock.lasts(lock.nest, MINUTE)


async def test_renewing_one_lease_renews_no_other(lock) -> None:
    await lock.acquire(ME, ttl=1000)
    await lock.acquire(MINE, ttl=1000)
    end = (await lock.nested())[ME.encode()]
    await lock.renew(MINE)

    assert (await lock.nested())[ME.encode()] == end


async def test_renew_by_another_is_refused_and_changes_nothing(lock) -> None:
    await lock.acquire(OTHER)
    state = await lock.state()

    for stranger in (ME, THIRD, OTHER[:-1], OTHER + "0", STRANGER, ""):
        assert await lock.renew(stranger, ttl=HOUR) == 0
    assert await lock.state() == state
    assert await lock.expires_in(lock=MINUTE)


async def test_renew_never_creates_what_is_gone(lock) -> None:
    assert await lock.renew(ME) == 0
    assert await lock.everything() == []


async def test_adopt_swaps_the_token_and_keeps_all_else(lock) -> None:
    _, fencing, *_ = await lock.acquire(ME, ttl=1000, retention=MINUTE)
    value = await lock.value()

    assert await lock.adopt(ME, MINE, ttl=MINUTE, retention=HOUR) == fencing
    assert list(await lock.nested()) == [MINE.encode()]
    assert await lock.value() == value
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)
    assert await lock.lasts(lock.nest, MINUTE)


async def test_adopt_said_twice_is_said_once(lock) -> None:
    await lock.acquire(ME)
    first = await lock.adopt(ME, MINE)
    state = await lock.state()

    assert await lock.adopt(ME, MINE) == first
    assert await lock.state() == state


async def test_of_two_who_adopt_one_finds_it_in_place(lock) -> None:
    await lock.acquire(ME)
    await lock.adopt(ME, MINE)

    assert await lock.adopt(ME, ALSO) == b""
    assert [await lock.owned(one) for one in (ME, MINE, ALSO)] == [0, 1, 0]


async def test_adopt_of_what_is_gone_creates_nothing(lock) -> None:
    assert await lock.adopt(ME, MINE) == b""
    assert await lock.everything() == []


async def test_annotate_by_any_of_his_leases_changes_the_metadata_of_the_lock_alone(lock) -> None:
    _, fencing, *_ = await lock.acquire(ME, ttl=MINUTE, retention=HOUR, metadata="old")
    await lock.acquire(MINE)
    nested = await lock.nested()

    for token, metadata in ((ME, "one:1:"), (MINE, "two"), (MINE, "two")):
        assert await lock.annotate(token, metadata) == 1
        assert await lock.value() == b"%b:%b:%b" % (OWNER.encode(), fencing, metadata.encode())
    assert await lock.nested() == nested
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)


async def test_annotate_by_who_does_not_hold_changes_nothing(lock) -> None:
    assert await lock.annotate(ME) == 0
    assert await lock.everything() == []
    await lock.acquire(ME)
    await lock.acquire(MINE)
    await lock.end(MINE)
    value = await lock.value()

    for token in (OTHER, ALSO, MINE, OWNER, ""):
        assert await lock.annotate(token) == 0
    await lock.redis.delete(lock.nest)
    assert await lock.annotate(ME) == 0
    assert await lock.value() == value


async def test_owned_is_that_of_each_of_his_leases(lock) -> None:
    assert await lock.owned(ME) == 0
    await lock.acquire(ME)
    await lock.acquire(MINE)

    assert [await lock.owned(one) for one in (ME, MINE, ALSO, OTHER, OWNER, "")] == [1, 1, 0, 0, 0, 0]


async def test_locked_is_whoever_else_holds_it(lock) -> None:
    assert await lock.locked(OWNER) == 0
    await lock.acquire(ME)
    assert [await lock.locked(one) for one in (OWNER, STRANGER, OWNER[:-1])] == [0, 1, 1]
    await lock.release(ME)
    await lock.simple.acquire(SIMPLE)
    assert await lock.locked(OWNER) == 1


# -- each step, alike ----------------------------------------------------------------------------------------


async def test_everything_that_stands_there_has_a_ttl(lock) -> None:
    steps: list[Callable[[], Awaitable[Any]]] = [
        lambda: lock.acquire(ME),
        lambda: lock.sit("x"),
        lambda: lock.acquire(MINE),
        lambda: lock.renew(MINE),
        lambda: lock.adopt(MINE, ALSO),
        lambda: lock.release(ME),
        lambda: lock.release(ALSO),
        lambda: lock.acquire(OTHER, queued="x"),
        lambda: lock.end(OTHER),
        lambda: lock.acquire(OTHER),
    ]
    for number, step in enumerate(steps):
        await step()
        ttls = await lock.ttls()
        assert min(ttls.values()) > 0, (number, ttls)


async def test_the_commands_say_to_the_scripts_what_these_tests_say(lock) -> None:
    for apart, who in ((False, "s"), (True, f"s.{OWNER[:16]}")):
        commands = ReentrantSteps(
            lock.prefix, lock.name, owner=OWNER, apart=apart, retention_ms=HOUR, session="s"
        )
        said = [
            (commands.acquire(ME, MINUTE, "{}"), lock.acquiring(ME)),
            (
                commands.acquire(ME, MINUTE, "{}", SEATED | IN_TURN),
                lock.acquiring(ME, queued=who, in_turn=True),
            ),
            (commands.acquire(ME, MINUTE, "{}", TOLD), lock.acquiring(ME, told=True)),
            (commands.release(ME, MINUTE), lock.releasing(ME)),
            (commands.release(ME, MINUTE, ring=False, leave=True), lock.releasing(ME, ring=False, leave=who)),
        ]
        for command, words in said:
            assert command.words(as_eval=True)[2:] == words[2:]
            assert lock.mutant or command.script.text == words[1]
        assert commands.bell == lock.bell(who)
        assert commands.listener(ME) == Listener(
            commands.bell, (lock.queue,), owner=ME[:32], locks=(lock.lock,)
        )
        assert commands.owner(ME) == OWNER
        assert (commands.new_token(ME, "f" * 32), commands.new_token("", "f" * 32)) == (OWNER + "f" * 32,) * 2


@pytest.mark.parametrize("protocol", [2, 3])
async def test_replies_are_integers_and_strings_alone(connect, prefix, protocol) -> None:
    lock = ReentrantScripts(connect(protocol=protocol), prefix)
    await lock.sit("x")
    replies = [
        await lock.acquire(ME),
        await lock.acquire(OTHER),
        await lock.renew(ME),
        await lock.adopt(ME, MINE),
        await lock.owned(MINE),
        await lock.locked(OWNER),
        await lock.release(MINE),
        await lock.release(MINE),
    ]
    assert [
        [type(item) for item in (reply if isinstance(reply, list) else [reply])] for reply in replies
    ] == [[int, bytes, int, int], [int, int], [int], [bytes], [int], [int], [int, bytes], [int]]


@pytest.mark.parametrize("name", ["plain", "user:{42}:cart", "a%b:{x}{y}", "{}"])
def test_all_keys_of_a_name_share_a_slot(name) -> None:
    commands = ReentrantSteps("shop", name, owner=OWNER, apart=True, retention_ms=HOUR, session="x")
    keys = {*commands.acquire(ME, MINUTE, "{}", SEATED).keys}

    assert len(keys) == 5
    assert len({key_slot(key) for key in keys}) == 1


# -- a server that is out of memory --------------------------------------------------------------------------


@pytest.fixture
async def full(own_server, connect, prefix) -> ReentrantScripts:
    """Held twice, and awaited by three, on a server without memory for anything new that evicts nothing."""
    server = await own_server(arguments=("--maxmemory-policy", "noeviction"))
    redis = connect(server)
    lock = ReentrantScripts(redis, prefix)
    await lock.acquire(ME)
    await lock.acquire(MINE)
    for who in ("dead", "y", "x"):
        await lock.sit(who, ttl=MINUTE, queue_ttl=MINUTE)
    await lock.die("dead")
    await redis.config_set("maxmemory", 1)
    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await redis.set("anything", "new")
    return lock


async def test_out_of_memory_the_holder_can_still_renew_adopt_and_release(full) -> None:
    assert await full.renew(ME, ttl=2 * MINUTE) == 1
    assert (await full.acquire(ME))[0] == 1
    assert await full.adopt(ME, ALSO)
    assert await full.release(ALSO, ring=False) == [1]
    assert await full.release(MINE) == [1, full.bell("y")]
    assert await full.release(MINE, leave="x") == [0]
    assert await full.everything() == [full.fence]


async def test_out_of_memory_acquire_is_refused_and_changes_nothing(full) -> None:
    other = full.another()

    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await other.acquire(OTHER)
    assert await other.everything() == []


async def test_out_of_memory_the_answers_still_come(full) -> None:
    assert [await full.owned(ME), await full.owned(OTHER), await full.locked(STRANGER)] == [1, 0, 1]


# -- mutants -------------------------------------------------------------------------------------------------

CHECKS = checks(globals(), "lock")
FILES = [
    "reentrant_acquire",
    "reentrant_release",
    "reentrant_renew",
    "reentrant_adopt",
    "reentrant_annotate",
    "reentrant_owned",
    "reentrant_locked",
    "shared/nest",
]
_KEPT = "of a lock that is kept: see test_kept_scripts.py"
SPARED = {
    "redis.call('ZREM', nest, '')": "see out of memory above",
    "local before = redis.call('ZRANGE', queue, 0, 0)[1]": _KEPT,
    "if not before or before == bell then reply[2] = -5 end": _KEPT,
}
"""Lines that may be left out, each with the reason."""
MUTATIONS = [
    Mutation(
        "reentrant_acquire",
        "reply[#reply + 1] = enqueue_in_each({queue}, bell, flags)",
        "",
        "test_one_that_is_refused_and_will_wait_is_seated",
    ),
    Mutation(
        "reentrant_acquire",
        "{0, -2, enqueue_in_each({queue}, bell, flags)}",
        "{0, -2}",
        "test_one_that_is_refused_and_will_wait_is_seated",
    ),
    Mutation(
        "reentrant_acquire",
        "not held_by(owner_of(token), held)",
        "not held_by(token, held)",
        "test_its_owner_takes_it_again_with_the_same_fencing_token",
    ),
    Mutation(
        "reentrant_acquire",
        "not held_by(owner_of(token), held)",
        "false",
        "test_acquire_is_refused_while_another_holds_it_and_changes_nothing",
    ),
    Mutation("reentrant_acquire", "has(flags, 't') and", "", "test_without_in_turn_anybody_may_overtake"),
    Mutation(
        "reentrant_acquire", "first and first ~= bell", "first", "test_in_turn_leaves_to_another_what_is_free"
    ),
    Mutation(
        "reentrant_acquire",
        "owner_of(token) .. ':' .. minted",
        "token .. ':' .. minted",
        "test_acquire_takes_what_is_free",
    ),
    Mutation(
        "reentrant_acquire",
        "keep(fence, ARGV[3])",
        "redis.call('PEXPIRE', fence, ARGV[3])",
        "test_a_shorter_lease_shortens_nothing",
    ),
    Mutation(
        "reentrant_release",
        "free = not remove_token(ARGV[1])",
        "remove_token(ARGV[1]) free = true",
        "test_release_of_an_inner_lease_frees_nothing_and_wakes_nobody",
    ),
    Mutation(
        "shared/nest",
        "not token or token ~= except and is_token(token)",
        "true",
        "test_a_nest_of_others_is_refused_and_stays",
    ),
    Mutation(
        "reentrant_release",
        "ARGV[3] == '1' and free",
        "ARGV[3] == '1'",
        "test_release_of_an_inner_lease_frees_nothing_and_wakes_nobody",
    ),
    Mutation("reentrant_release", "ARGV[3] == '1' and free", "free", "test_a_quiet_release_wakes_nobody"),
    Mutation(
        "reentrant_adopt",
        "deadline_of(ARGV[1]) or deadline_of(ARGV[2])",
        "deadline_of(ARGV[1])",
        "test_adopt_said_twice_is_said_once",
    ),
    Mutation(
        "reentrant_annotate",
        ", 'KEEPTTL'",
        "",
        "test_annotate_by_any_of_his_leases_changes_the_metadata_of_the_lock_alone",
    ),
    Mutation(
        "reentrant_annotate",
        " or tonumber(deadline) <= NOW",
        "",
        "test_annotate_by_who_does_not_hold_changes_nothing",
    ),
    Mutation(
        "reentrant_locked", "held and not held_by", "held and held_by", "test_locked_is_whoever_else_holds_it"
    ),
    Mutation("shared/nest", "OWNER = 32", "OWNER = 31", "test_acquire_takes_what_is_free"),
    Mutation(
        "shared/nest",
        "'-inf', NOW",
        "'-inf', 0",
        "test_each_step_removes_the_leases_that_have_come_to_their_end",
    ),
    Mutation(
        "shared/nest",
        "held_by(owner_of(token), redis.call('GET', lock)) and ",
        "",
        "test_what_another_took_meanwhile_is_not_the_lost_owners",
    ),
    Mutation(
        "shared/nest",
        " and redis.call('ZSCORE', nest, token)",
        "",
        "test_release_by_another_is_refused_and_changes_nothing",
    ),
    Mutation(
        "shared/nest",
        "rank, rank, 'WITHSCORES'",
        "0, 0, 'WITHSCORES'",
        "test_the_lock_lasts_until_the_latest_of_its_leases",
    ),
]


async def test_the_scripts_themselves_are_not_complained_of(redis, prefix) -> None:
    scripts = ReentrantScripts(redis, prefix)

    assert [name for name, check in CHECKS.items() if await fails(check, scripts)] == []


@pytest.mark.parametrize("file", FILES)
async def test_without_a_line_somebody_notices(redis, prefix, file) -> None:
    step = file if "/" not in file else "reentrant_acquire"
    mutants = [(name, file, text) for name, text in lines_left_out(file, unless=SPARED)]
    living = await compiled(ReentrantScripts, redis, prefix, step, mutants)

    assert await unnoticed(ReentrantScripts, redis, prefix, living, among=CHECKS) == []


async def test_with_a_line_altered_that_test_fails(redis, prefix) -> None:
    assert await surviving(ReentrantScripts, redis, prefix, MUTATIONS, CHECKS, "reentrant_acquire") == []


def test_each_line_that_is_spared_stands_there() -> None:
    lines = {line.strip() for file in FILES for line in text_of(file).splitlines()}

    assert set(SPARED) <= lines
