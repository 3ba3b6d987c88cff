"""The scripts of limits: what they count, whom they call, and what they keep.

A test that asks for `limits` alone is also run on mutants of the scripts, by the tests at the end.
"""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ResponseError

from aiolocks.kinds.limits import LimitSteps, caps_of, line_of
from aiolocks.transport.answers import Granted, Refused
from aiolocks.transport.steps.family import families
from aiolocks.transport.steps.standing import TOLD, WAITING
from tests.lua.limit_scripts import ONE, LimitScripts
from tests.lua.mutants import Mutation, checks, compiled, fails, lines_left_out, surviving, unnoticed
from tests.lua.scripts import BELL, HOUR, MINUTE, QUEUE, about

pytestmark = pytest.mark.leaves_keys("aiolocks*:limits*")

A, B, C, D, E = ("a1" * 16, "b2" * 16, "c3" * 16, "d4" * 16, "e5" * 16)
CALLED = "0" * 48


@pytest.fixture
def limits(redis, prefix) -> LimitScripts:
    return LimitScripts(redis, prefix)


# -- what is held --------------------------------------------------------------------------------------------


async def test_a_permit_of_each_key_or_none(limits) -> None:
    granted, fencing, others, room = await limits.take(A)
    assert (granted, others, room) == (1, 0, 0)
    assert await limits.redis.get(limits.fence) == fencing
    assert await limits.lease(A) == b"a=1,all=1:%b:{}" % fencing

    b = limits.of(all=1, b=1)
    assert not await b.takes(B)
    assert await limits.holding() == {A}
    assert await b.used() == [1, 1, 0]
    await limits.give(A)
    assert await limits.redis.exists(limits.holders, limits.leases) == 0
    assert await b.takes(B)


async def test_said_twice_it_is_the_same_grant(limits) -> None:
    first = await limits.take(A, ttl=MINUTE // 2)
    assert await limits.take(A) == first
    assert await limits.holding() == {A}
    [(_, end)] = await limits.redis.zrange(limits.holders, 0, -1, withscores=True)
    await limits.redis.pexpire(limits.fence, 1000)
    assert await limits.takes(A)
    assert await limits.lasts(limits.fence, HOUR)
    seconds, _ = await limits.redis.time()
    assert end - seconds * 1000 > MINUTE * 0.9


async def test_each_cap_is_kept_to(limits) -> None:
    many = limits.of(all=3, a=2)
    assert await many.takes(A)
    assert await many.takes(B)
    assert not await many.takes(C)
    assert await limits.of(all=3, b=2).takes(C)
    assert not await limits.of(all=3, b=2).takes(D)
    assert await limits.of(b=2).takes(D)
    assert await limits.holding() == {A, B, C, D}
    assert await many.used() == [1, 2, 3]


async def test_the_cap_is_that_of_the_acquire(limits) -> None:
    assert await limits.of(all=3).takes(A)
    assert await limits.of(all=3).takes(B)
    assert not await limits.of(all=2).takes(C)
    assert await limits.of(all=3).takes(C)


async def test_a_lease_that_has_ended_is_counted_no_more(limits) -> None:
    assert await limits.takes(A)
    await limits.end(A)
    assert await limits.used() == [0, 0, 0]
    assert await limits.takes(B)
    assert await limits.holding() == {B}


async def test_what_is_lost_of_a_lease_is_counted_anew(limits) -> None:
    many = limits.of(all=2, a=2)
    for lost in ("holders", "leases"):
        await limits.clear()
        assert await many.takes(A)
        assert await many.takes(B)
        if lost == "holders":
            await limits.redis.zrem(limits.holders, A)
        else:
            await limits.redis.hdel(limits.leases, A)
        assert await many.takes(C)
        assert await limits.holding() == {B, C}


async def test_renew_adopt_annotate_and_owned_are_those_of_permits(limits) -> None:
    _, fencing, *_ = await limits.take(A)
    assert await limits.renew(A, ttl=2 * MINUTE) == 1
    assert await limits.annotate(A, "new") == 1
    assert (await limits.lease(A)).endswith(b":new")
    assert await limits.adopt(A, B) == fencing
    assert await limits.holding() == {B}
    assert await limits.owned(B) == 1
    assert await limits.owned(A) == 0
    assert await limits.renew(A) == 0


async def test_everything_ends_by_itself(limits) -> None:
    await limits.take(A)
    await limits.wait(B, "other")
    for key in (limits.holders, limits.leases):
        assert await limits.lasts(key, MINUTE + 1000)
    for key in (limits.turns, limits.queue, limits.line_queue):
        assert await limits.lasts(key, QUEUE)
    assert await limits.lasts(limits.bell("other"), BELL)
    assert await limits.lasts(limits.fence, HOUR)


# -- whose turn it is ----------------------------------------------------------------------------------------


async def test_within_a_line_the_first_is_called_first(limits) -> None:
    await limits.take(A)
    await limits.wait(B, "x")
    await limits.wait(C, "y")
    assert await limits.give(A) == [limits.bell("x")]
    assert not await limits.takes(C, "y", flags="w")
    assert await limits.takes(B, "x", flags="w")
    assert await limits.give(B, "x") == [limits.bell("y")]
    assert await limits.takes(C, "y", flags="w")
    assert await limits.holding() == {C}


async def test_a_call_takes_the_permits_and_ends_with_its_bell(limits) -> None:
    await limits.take(A)
    await limits.wait(B, "x")
    await limits.wait(C, "y")
    await limits.give(A)
    assert await limits.holding() == {CALLED + B[:16]}
    assert await limits.redis.get(limits.bell("x")) == b"rung"
    assert about(await limits.redis.pttl(limits.holders), BELL + 1000)
    assert not await limits.takes(D)
    await limits.die("x")
    await limits.end(CALLED + B[:16])

    granted, _, *rung = await limits.take(D)

    assert (granted, rung) == (0, [limits.bell("y")])
    assert await limits.holding() == {CALLED + C[:16]}
    assert await limits.redis.zcard(limits.queue) == 1


async def test_a_further_call_keeps_no_dead_session_alive(limits) -> None:
    wide = limits.of(all=2)
    await wide.take(A)
    await wide.take(D)
    await wide.wait(B, "x")
    await wide.wait(C, "x")
    assert await wide.give(A) == [wide.bell("x")]
    await limits.redis.pexpire(wide.bell("x"), 500)
    assert await wide.give(D) == []
    assert await limits.holding() == {CALLED + B[:16], CALLED + C[:16]}
    assert await limits.lasts(wide.bell("x"), 500)
    ends = dict(await limits.redis.zrange(limits.holders, 0, -1, withscores=True))
    assert ends[(CALLED + C[:16]).encode()] < ends[(CALLED + B[:16]).encode()]


async def test_a_call_that_was_not_answered_is_made_again(limits) -> None:
    await limits.take(A)
    await limits.wait(B, "x")
    await limits.give(A)
    await limits.end(CALLED + B[:16])
    await limits.sit("x", seat=B[:16])

    assert (await limits.take(D))[2:] == [limits.bell("x")]
    assert await limits.takes(B, "x", flags="w")


async def test_a_called_line_that_waits_nowhere_waits_again_when_the_call_has_ended(limits) -> None:
    wide = limits.of(all=2)
    await wide.take(A)
    await wide.take(D)
    await wide.wait(B, "x")
    await wide.give(A)
    await wide.give(D)
    assert await wide.waiting_lines() == []
    await limits.end(CALLED + B[:16])
    await wide.sit("x", seat=B[:16])

    assert (await limits.take(E))[2:] == [wide.bell("x")]
    assert await limits.holding() == {CALLED + B[:16]}


async def test_between_lines_the_turn_goes_round(limits) -> None:
    b = limits.of(all=1, b=1)
    await limits.take(A)
    for token, who in ((B, "x"), (C, "y")):
        await limits.wait(token, who)
    await b.wait(D, "z")
    await b.wait(E, "z")
    assert await limits.give(A) == [limits.bell("x")]
    assert await limits.takes(B, "x", flags="w")
    assert await limits.give(B, "x") == [b.bell("z")]
    assert await b.takes(D, "z", flags="w")
    await b.wait(E, "z")  # the next of its session asks, and its bell hangs again
    assert await b.give(D, "z") == [limits.bell("y")]
    assert await limits.takes(C, "y", flags="w")
    assert await limits.give(C, "y") == [b.bell("z")]


async def test_a_line_whose_key_is_full_keeps_nobody_from_entering(limits) -> None:
    a, b = limits.of(all=2, a=1), limits.of(all=2, b=1)
    await a.take(A)
    await a.wait(B, "x")
    assert await b.takes(C)
    await b.wait(D, "y")
    assert await a.waiting_lines() == ["a=1 a=1,all=2", "b=1 b=1,all=2"]
    assert await b.give(C) == [b.bell("y")]
    assert await a.give(A) == [a.bell("x")]
    assert await b.takes(D, "y", flags="w")
    assert await a.takes(B, "x", flags="w")


async def test_a_line_that_is_found_to_wait_for_another_key_goes_there(limits) -> None:
    """Its narrow key has become full while it waited for the wide one."""
    a = limits.of(all=1, a=2)
    await a.take(A)
    await a.wait(B, "x")
    assert await a.waiting_lines() == ["all=1 all=1,a=2"]
    alone = limits.of(a=2)
    assert await alone.takes(C)
    assert await a.give(A) == [a.bell("x")]  # that key has room for one more
    assert await a.takes(B, "x", flags="w")
    await a.wait(D, "x")
    assert await a.give(B, "x") == [a.bell("x")]
    await limits.clear()

    await a.take(A)
    await a.wait(B, "x")
    await alone.take(C)
    await alone.of(a=3).take(D)
    assert await a.give(A) == []
    assert await a.waiting_lines() == ["a=2 all=1,a=2"]
    assert await alone.give(C) == [a.bell("x")]


async def test_as_many_are_called_as_there_is_room_for(limits) -> None:
    wide = limits.of(all=2)
    await wide.take(A, ttl=MINUTE)
    await wide.take(B, ttl=MINUTE)
    for token, who in ((C, "x"), (D, "y"), (E, "z")):
        await wide.wait(token, who)
    await limits.end(A)
    await limits.end(B)

    assert (await wide.take("f6" * 16))[2:] == [wide.bell("x"), wide.bell("y")]
    assert await wide.takes(D, "y", flags="w")
    assert await wide.takes(C, "x", flags="w")
    assert not await wide.takes(E, "z", flags="w")


async def test_caps_that_differ_make_lines_of_their_own(limits) -> None:
    """Of a rolling update: who brings the larger cap passes."""
    old, new = limits.of(all=1), limits.of(all=2)
    await new.take(A)
    await new.take(B)
    await old.wait(C, "x")
    await new.wait(D, "y")
    assert await new.give(A) == [new.bell("y")]
    assert await new.takes(D, "y", flags="w")
    assert await new.give(B) == []
    assert await new.give(D, "y") == [old.bell("x")]


async def test_caps_that_differ_take_turns_too(limits) -> None:
    first, second, hold = limits.of(all=9), limits.of(all=10), limits.of(all=20)
    for number in range(10):
        await hold.take(f"{number:032x}")
    await second.wait(B, "x")
    await first.wait(C, "y")
    assert await hold.give(f"{0:032x}") == [second.bell("x")]
    assert await second.takes(B, "x", flags="w")
    await second.wait(D, "x")
    await hold.give(f"{1:032x}", flags="")
    assert await hold.give(f"{2:032x}") == [first.bell("y"), second.bell("x")]


async def test_of_two_keys_that_come_back_the_older_turn_counts(limits) -> None:
    a, b, both = limits.of(a=1), limits.of(b=1), limits.of(a=1, b=1)
    await both.take(A)
    await b.wait(B, "y")
    await both.wait(C, "z")
    await a.wait(D, "x")
    assert set(await both.give(A)) == {a.bell("x"), b.bell("y")}
    await limits.clear()
    await both.take(A)
    await both.wait(C, "z")
    await b.wait(B, "y")
    await a.wait(D, "x")
    assert await both.give(A) == [both.bell("z")]


async def test_at_a_key_that_is_full_again_nobody_is_moved(limits) -> None:
    one = limits.of(all=2, z=1)
    await limits.of(all=2).take(A)
    await limits.of(all=2).take(E)
    await one.wait(B, "x")
    await limits.of(z=1).take(C)
    await limits.of(all=3).take(D)
    await limits.of(all=2).give(A)
    assert await one.waiting_lines() == ["all=2 z=1,all=2"]


async def test_a_newcomer_passes_no_waiter_of_its_line(limits) -> None:
    await limits.take(A)
    await limits.sit("x", seat=B[:16])  # nobody has been refused, so that its line waits nowhere
    await limits.give(A, flags="")
    assert not await limits.takes(C, "y")
    assert await limits.used() == [1, 0, 0]

    assert await limits.wait(C, "y") == [limits.bell("x")]
    assert not await limits.takes(C, "y", flags="w")
    assert await limits.takes(B, "x", flags="w")


async def test_within_a_session_its_waiters_follow_each_others_calls(limits) -> None:
    await limits.take(A)
    await limits.wait(B, "x")
    await limits.sit("x", seat=C[:16])
    await limits.give(A)

    assert not await limits.takes(C, "x")  # one that will not wait follows nobody's call
    assert await limits.takes(C, "x", flags="w")
    assert await limits.holding() == {C}
    await limits.wait(B, "x")
    assert await limits.give(C, "x") == [limits.bell("x")]
    assert await limits.takes(B, "x", flags="w")


async def test_behind_others_of_its_session_it_takes_a_seat_and_nobodys_call(limits) -> None:
    await limits.take(A)
    await limits.wait(B, "x")
    await limits.give(A)

    assert not await limits.takes(C, "x", flags="wqb")
    assert await limits.holding() == {CALLED + B[:16]}
    assert await limits.takes(B, "x", flags="wq")
    await limits.give(B, "x")
    assert await limits.takes(C, "x", flags="wq")


async def test_behind_others_of_its_session_it_does_not_enter_though_there_is_room(limits) -> None:
    assert not await limits.takes(B, "x", flags="wb")
    assert await limits.holding() == {CALLED + B[:16]}
    assert await limits.takes(B, "x", flags="wq")


async def test_a_waiter_whose_call_another_one_has_used_follows_a_later_call_of_its_session(limits) -> None:
    wide = limits.of(all=2)
    await wide.sit("x", seat=B[:16])
    await wide.sit("x", seat=C[:16])
    await wide.wait(D, "y")  # that finds room, and calls both
    assert await limits.holding() == {CALLED + B[:16], CALLED + C[:16]}

    assert await wide.takes(A, "x", flags="w")
    assert await limits.holding() == {A, CALLED + C[:16]}
    assert await wide.takes(B, "x", flags="w")
    assert await limits.holding() == {A, B}


async def test_a_call_is_good_although_the_line_was_lost(limits) -> None:
    await limits.take(A)
    await limits.wait(B, "x")
    await limits.give(A)
    await limits.redis.delete(limits.line_queue)
    assert await limits.takes(B, "x", flags="w")
    assert await limits.holding() == {B}


async def test_a_grant_calls_the_next_of_the_line_that_waits_nowhere_yet(limits) -> None:
    wide = limits.of(all=2)
    await wide.sit("x", seat=B[:16])
    await wide.sit("x", seat=C[:16])
    assert (await wide.take(B, "x", flags="w"))[4:] == [wide.bell("x")]
    assert await limits.holding() == {B, CALLED + C[:16]}


async def test_who_leaves_gives_up_its_call(limits) -> None:
    await limits.take(A)
    await limits.wait(B, "x")
    await limits.wait(C, "y")
    await limits.give(A)

    left = await limits.run(limits.releasing(B, who="x", seat=B[:16], flags="rl"))

    assert left == [0, limits.bell("y")]
    assert await limits.holding() == {CALLED + C[:16]}
    assert await limits.redis.zrange(limits.queue, 0, -1) == [limits.bell("y") + C[:16].encode()]


async def test_the_dead_are_passed_over(limits) -> None:
    await limits.take(A)
    for token, who in ((B, "x"), (C, "y"), (D, "z")):
        await limits.wait(token, who)
    await limits.die("x", "y")
    assert await limits.give(A) == [limits.bell("z")]
    assert await limits.redis.zcard(limits.queue) == 1
    assert await limits.redis.zcard(limits.line_queue) == 1


async def test_a_line_that_was_left_waits_nowhere(limits) -> None:
    await limits.take(A)
    await limits.wait(B, "x")
    await limits.die("x")
    assert await limits.give(A) == []
    assert await limits.redis.exists(limits.turns) == 0


async def test_with_the_last_waiter_of_a_line_that_leaves_its_turn_goes(limits) -> None:
    await limits.take(A)
    await limits.wait(B, "x")
    await limits.wait(C, "x")
    await limits.run(limits.releasing(B, who="x", seat=B[:16], flags="r"))
    assert await limits.waiting_lines() == ["a=1 a=1,all=1"]
    await limits.run(limits.releasing(C, who="x", seat=C[:16], flags="rl"))
    assert await limits.redis.exists(limits.turns) == 0


async def test_turns_that_were_lost_are_given_anew(limits) -> None:
    await limits.take(A)
    await limits.wait(B, "x")
    await limits.redis.delete(limits.turns)
    await limits.wait(B, "x")
    assert await limits.give(A) == [limits.bell("x")]


async def test_where_all_leases_are_lost_the_waiters_are_called(limits) -> None:
    b = limits.of(all=1, b=1)
    await limits.take(A)
    await limits.wait(B, "x")
    await b.wait(C, "y")
    await limits.redis.delete(limits.holders, limits.leases)

    assert (await limits.take(D))[2:] == [limits.bell("x")]
    assert await limits.takes(B, "x", flags="w")


# -- what a refusal tells ------------------------------------------------------------------------------------


async def test_a_refusal_tells_how_long_the_first_lease_lasts_and_who_holds_the_full_key(limits) -> None:
    a, b = limits.of(all=3, a=1), limits.of(all=3, b=1)
    await a.take(A, ttl=MINUTE)
    await b.take(B, ttl=MINUTE // 2)

    refused, remaining, told = await a.take(C, flags="h")

    assert refused == 0
    assert about(remaining, MINUTE // 2)
    assert await limits.is_now(told[0])
    assert told[1:3] == [b"a=1", A.encode()]
    assert about(told[3], MINUTE)
    assert told[4] == await limits.lease(A)
    assert len(told) == 5


async def test_in_a_line_with_room_others_go_first(limits) -> None:
    await limits.sit("x", seat=B[:16])
    refused, remaining, told = await limits.take(C, "y", flags="h")
    assert (refused, remaining, told[1:]) == (0, -2, [b""])


async def test_of_many_holders_some_are_told(limits) -> None:
    wide = limits.of(all=12)
    for number in range(12):
        await wide.take(f"{number:032x}")
    (_, _, told) = await wide.take(A, flags="h")
    assert len(told) == 2 + 3 * 8


# -- other programs, and operators ---------------------------------------------------------------------------


async def test_what_another_program_has_written_is_refused(limits) -> None:
    for role, number in (("", 1), ("leases", 2), ("turns", 3), ("queue", 5)):
        await limits.clear()
        if role == "leases":
            await limits.redis.hset(limits.leases, "theirs", "1")
        else:
            theirs = "a=1 theirs" if role == "turns" else "theirs"
            await limits.redis.zadd(limits.key(role), {theirs: 0 if role else 4e12})
        with pytest.raises(ResponseError, match=f"FOREIGN {number}"):
            await limits.take(A)


async def test_beside_what_another_program_has_written_a_holder_goes_on(limits) -> None:
    await limits.take(A)
    await limits.redis.hset(limits.leases, "theirs", "1")
    with pytest.raises(ResponseError, match="FOREIGN"):
        await limits.take(B)
    assert await limits.renew(A) == 1
    assert await limits.give(A) == []
    assert await limits.redis.hgetall(limits.leases) == {b"theirs": b"1"}


async def test_forced_it_is_free_and_waiters_are_rung(limits) -> None:
    b = limits.of(all=1, b=1)
    _, fencing, *_ = await limits.take(A)
    await limits.wait(B, "x")
    await b.wait(C, "y")
    keys = [limits.holders, limits.leases, limits.queue, limits.turns, limits.fence]

    freed, *rung = await limits.run(limits.words("force_limits", keys, fencing))

    assert freed == 1
    assert set(rung) == {limits.bell("x"), b.bell("y")}
    assert await limits.takes(B, "x", flags="w")
    assert not await b.takes(C, "y", flags="w")


async def test_forced_its_holders_are_told_and_no_waiter_that_was_called(limits) -> None:
    keys = [limits.holders, limits.leases, limits.queue, limits.turns, limits.fence]
    _, fencing, *_ = await limits.take(A)
    await limits.run(limits.words("force_limits", keys, fencing, "", "mark"))
    assert await limits.redis.hgetall(limits.key("stolen")) == {A.encode(): b"mark"}
    assert 0 < await limits.redis.pttl(limits.key("stolen")) <= 2 * MINUTE

    await limits.take(B)
    await limits.wait(C, "x")
    await limits.give(B)
    assert len(await limits.redis.zrange(limits.holders, 0, -1)) == 1  # the call
    assert (await limits.run(limits.words("force_limits", keys, 1, "", "mark")))[0] == 1
    assert list(await limits.redis.hgetall(limits.key("stolen"))) == [A.encode()]


async def test_forced_it_is_free_of_what_another_program_has_written(limits) -> None:
    keys = [limits.holders, limits.leases, limits.queue, limits.turns, limits.fence]
    for key in keys:
        await limits.redis.set(key, "theirs")
    assert await limits.run(limits.words("force_limits", keys, 1)) == [3]
    await limits.redis.hset(limits.leases, "theirs", "1")
    await limits.run(limits.words("force_limits", keys, 1))
    assert await limits.takes(A)


async def test_asked_whether_it_is_locked_it_refuses_what_another_program_has_written(limits) -> None:
    await limits.redis.zadd(limits.holders, {"theirs": 4e12})
    with pytest.raises(ResponseError, match="FOREIGN"):
        await limits.used()


async def test_no_entry_of_another_program_is_looked_at_for_ever(limits) -> None:
    turn = f"{7:016d}"
    await limits.redis.zadd(limits.turns, {f"a=1 {turn} all=0,a=1": 0, f"all=2 {turn} foo": 0})
    assert await limits.takes(A)
    assert await limits.waiting_lines() == ["all=0 all=0,a=1"]


async def test_no_line_of_another_program_names_a_key_of_another_name(limits) -> None:
    theirs = limits.another()
    await theirs.sit("x", seat=B[:16])
    line = f"all=1:{{{theirs.name}}}"
    place, turn = "all=1", f"{1:016d}"
    await limits.take(A)
    await limits.redis.zadd(limits.turns, {f"{place} {turn} {line}": 0, f"!{line} {place} {turn}": 0})

    assert await limits.give(A) == []
    assert await limits.redis.exists(limits.turns) == 0
    assert await theirs.redis.get(theirs.bell("x")) == b""


async def test_what_was_granted_since_is_not_forced(limits) -> None:
    many = limits.of(all=2)
    _, fencing, *_ = await many.take(A)
    await many.take(B)
    keys = [limits.holders, limits.leases, limits.queue, limits.turns, limits.fence]

    assert await limits.run(limits.words("force_limits", keys, fencing)) == [1]
    assert await many.takes(C)
    assert await limits.holding() == {B, C}


async def test_it_reads_as_what_it_is(limits) -> None:
    await limits.take(A)
    await limits.wait(B, "x")
    await limits.of(all=1, b=1).wait(C, "y")

    look = families()["limits"].look(limits.prefix, "limits", [limits.name], waiters=5)
    [snapshot] = look.parse(await limits.redis.execute_command(*look.words(as_eval=True)))

    assert [holder.keys for holder in snapshot.holders] == [(("a", 1), ("all", 1))]
    assert (snapshot.waiters, snapshot.problems, snapshot.kept) == (2, (), None)


# -- the commands --------------------------------------------------------------------------------------------


def test_a_line_is_read_as_it_was_written() -> None:
    caps = {"all": 20, "tenant:ü {7}, =!#.%": 1, "b": 1}
    line = line_of(caps)
    assert not set(line) & set(" :{}!#.\n")
    assert caps_of(line) == caps
    assert list(caps_of(line)) == ["b", "tenant:ü {7}, =!#.%", "all"]


async def test_the_commands_say_what_is_full(limits) -> None:
    commands = LimitSteps(limits.prefix, limits.name, ONE, retention_ms=HOUR, session="s")
    redis = limits.redis

    async def acquire(token: str) -> Any:
        command = commands.acquire(token, MINUTE, "{}", TOLD | WAITING)
        return command.parse(await redis.execute_command(*command.words(as_eval=True)))

    assert isinstance(await acquire(A), Granted)
    refused = await acquire(B)
    assert isinstance(refused, Refused)
    assert refused.full == ("a", 1)
    assert "'a'" in refused.detail
    [holder] = commands.holders(refused)
    assert (holder.tokens, holder.keys) == ((A,), (("a", 1), ("all", 1)))
    assert commands.excluded_by([(commands, A)], refused)
    assert not commands.excluded_by([(commands, C)], refused)
    assert not commands.excluded_by([], refused)


# -- mutants -------------------------------------------------------------------------------------------------

CHECKS = checks(globals(), "limits")
FILES = ("shared/limits", "shared/lines", "limits_acquire", "limits_locked", "force_limits")
SPARED = {
    "freed[key] = nil": "of those keys it is known that nobody can be called: it saves a look",
    "if at_once then redis.call('ZREM', holders, '') end": "matters to a server that is out of memory",
}
MUTATIONS = [
    Mutation("shared/lines", "number == 0 or ", "", "test_what_another_program_has_written_is_refused"),
    Mutation(
        "shared/limits",
        "held == math.max(0, number)",
        "true",
        "test_each_cap_is_kept_to",
    ),
    Mutation("shared/limits", "held >= tonumber(cap)", "held > tonumber(cap)", "test_each_cap_is_kept_to"),
    Mutation(
        "shared/lines",
        "not least or turn < least) then best",
        "not least) then best",
        "test_caps_that_differ_take_turns_too",
    ),
    Mutation(
        "shared/lines",
        "elseif not least or turn < least then",
        "elseif not least or turn > least then",
        "test_of_two_keys_that_come_back_the_older_turn_counts",
    ),
    Mutation(
        "shared/lines",
        "full_key(place) or full_key(line)",
        "full_key(line)",
        "test_at_a_key_that_is_full_again_nobody_is_moved",
    ),
    Mutation(
        "limits_acquire",
        " and not (waits and bell_of(queue, first) == bell)",
        "",
        "test_a_grant_calls_the_next_of_the_line_that_waits_nowhere_yet",
    ),
    Mutation(
        "limits_acquire",
        "waits and not behind and find_call(bell, seat)",
        "not behind and find_call(bell, seat)",
        "test_within_a_session_its_waiters_follow_each_others_calls",
    ),
    Mutation(
        "limits_acquire",
        "waits and not behind and find_call(bell, seat)",
        "waits and find_call(bell, seat)",
        "test_behind_others_of_its_session_it_takes_a_seat_and_nobodys_call",
    ),
    Mutation(
        "limits_acquire",
        "behind or place or first and",
        "place or first and",
        "test_behind_others_of_its_session_it_does_not_enter_though_there_is_room",
    ),
]


async def test_the_scripts_themselves_are_not_complained_of(redis, prefix) -> None:
    scripts = LimitScripts(redis, prefix)

    assert [name for name, check in CHECKS.items() if await fails(check, scripts)] == []


@pytest.mark.parametrize("file", FILES)
async def test_without_a_line_a_test_fails(redis, prefix, file) -> None:
    step = file if "/" not in file else "limits_acquire"
    mutants = [(name, file, text) for name, text in lines_left_out(file, unless=SPARED)]
    living = await compiled(LimitScripts, redis, prefix, step, mutants)

    assert await unnoticed(LimitScripts, redis, prefix, living, among=CHECKS) == []


async def test_with_a_line_altered_that_test_fails(redis, prefix) -> None:
    assert await surviving(LimitScripts, redis, prefix, MUTATIONS, CHECKS, "limits_acquire") == []
