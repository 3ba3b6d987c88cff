"""The scripts of a schedule: ticks that are claimed once, and runs that are leases.

A test that asks for `schedule` alone is also run on mutants of the scripts, by the tests at the end.
"""

from __future__ import annotations

import json

import pytest
from redis.exceptions import ResponseError

from aiolocks.kinds.schedule.plan import Ask, Claimed, NotClaimed
from aiolocks.kinds.schedule.run import TickSteps, reading
from aiolocks.transport import Granted, Refused
from tests.lua.mutants import Mutation, checks, compiled, fails, lines_left_out, surviving, unnoticed
from tests.lua.schedule_scripts import OTHERS, THESE, THIRD, WEEK, ScheduleScripts, described
from tests.lua.scripts import HOUR, MINUTE, about

pytestmark = pytest.mark.leaves_keys("aiolocks*:schedule*:*")

ME, OTHER = "a1" * 16, "b2" * 16


@pytest.fixture
def schedule(redis, prefix) -> ScheduleScripts:
    return ScheduleScripts(redis, prefix)


# -- a tick is claimed once ----------------------------------------------------------------------------------


async def test_the_first_to_come_begins_the_register_and_runs_nothing(schedule) -> None:
    refused = await schedule.claim(ME, 0.9)

    assert refused[:4] == [0, b"n", str(await schedule.due(0.9)).encode(), -1]
    assert await schedule.is_now(refused[4])
    assert await schedule.claimed() == await schedule.due(0.9)
    assert await schedule.unended() == set()
    assert await schedule.lasts(schedule.register, WEEK)


async def test_a_tick_that_is_due_is_claimed_with_its_run(schedule) -> None:
    await schedule.begun(1)
    granted, minted, due, before, attempt, now = await schedule.claim(ME, 0, metadata=described(THESE, pid=1))

    assert (granted, attempt) == (1, 1)
    assert (int(due), int(before)) == (await schedule.due(0), await schedule.due(1))
    assert await schedule.is_now(minted)
    assert await schedule.is_now(now)
    assert await schedule.claimed() == await schedule.due(0)
    assert await schedule.unended() == {ME}
    assert await schedule.redis.hget(schedule.leases, ME) == b"1:%s:%s" % (
        minted,
        described(THESE, pid=1).encode(),
    )
    assert int(await schedule.redis.get(schedule.fence)) == int(minted)


async def test_no_tick_is_claimed_twice(schedule) -> None:
    await schedule.begun(2)
    assert (await schedule.claim(ME, 1))[0] == 1
    assert (await schedule.claim(OTHER, 1))[:3] == [0, b"t", str(await schedule.due(1)).encode()]
    assert (await schedule.claim(OTHER, 1.5))[:2] == [0, b"t"]
    await schedule.release(ME)
    assert (await schedule.claim(OTHER, 1))[:2] == [0, b"t"]


async def test_the_refused_is_told_when_the_run_may_end(schedule) -> None:
    await schedule.begun(1)
    await schedule.claim(ME, 0, ttl=HOUR)
    assert about((await schedule.claim(OTHER, 0))[3], HOUR)
    await schedule.release(ME)
    assert (await schedule.claim(OTHER, 0))[3] == -1


async def test_a_tick_is_never_claimed_before_it_is_due(schedule) -> None:
    """However far ahead a clock is that says it is due: it poisons nothing."""
    await schedule.begun(1)
    for ahead in (-0.05, -1, -365 * 24 * 60):
        assert (await schedule.claim(ME, ahead, known=ahead))[:2] == [0, b"e"]
    assert await schedule.claimed() == await schedule.due(1)
    assert (await schedule.claim(ME, 0, known=-60))[0] == 1


async def test_a_claim_sent_again_is_the_same_grant(schedule) -> None:
    await schedule.begun(1)
    first = await schedule.claim(ME, 0, ttl=MINUTE)
    again = await schedule.claim(ME, 0, ttl=HOUR)

    assert again[:5] == first[:5]
    assert about(await schedule.redis.pttl(schedule.holders), HOUR + 1000)
    assert await schedule.unended() == {ME}
    out_of_turn = await schedule.claim(OTHER, None, flags="")
    assert (await schedule.claim(OTHER, None, flags=""))[:5] == out_of_turn[:5]


async def test_fencing_tokens_rise(schedule) -> None:
    await schedule.begun(3)
    await schedule.redis.set(schedule.fence, 2**52)
    minted = []
    for ago in (2, 1, 0):
        minted.append(int((await schedule.claim(ME, ago))[1]))
        await schedule.release(ME)
    assert minted == [2**52 + 1, 2**52 + 2, 2**52 + 3]


async def test_ticks_in_between_belong_to_the_claimer(schedule) -> None:
    await schedule.begun(9)
    assert int((await schedule.claim(ME, 2))[3]) == await schedule.due(9)
    assert (await schedule.claim(OTHER, 5, flags=""))[:2] == [0, b"t"]


async def test_all_of_them_are_claimed_one_by_one_by_who_knows_the_newest(schedule) -> None:
    await schedule.begun(5)
    assert (await schedule.claim(ME, 3, known=4, flags="w"))[0] == 1  # it knows a newer one, that was lost
    assert (await schedule.claim(OTHER, 1, known=4, flags="w"))[:3] == [
        *(0, b"o"),
        str(await schedule.due(3)).encode(),
    ]
    assert (await schedule.claim(OTHER, 1, flags="w"))[:2] == [0, b"o"]
    assert (await schedule.claim(OTHER, 2, known=3, flags="w"))[0] == 1


async def test_one_that_is_too_late_is_left_for_the_next_to_count(schedule) -> None:
    await schedule.begun(5)
    assert (await schedule.claim(ME, 1, latest=await schedule.due(1) + 1000))[:2] == [0, b"l"]
    assert await schedule.claimed() == await schedule.due(5)
    assert (await schedule.claim(ME, 1, latest=await schedule.due(-1)))[0] == 1


# -- the register is gone, or the server's clock was set -----------------------------------------------------


async def test_without_the_register_one_that_knows_the_tick_before_it_runs_it(schedule) -> None:
    granted = await schedule.claim(ME, 0, known=1)
    assert (granted[0], int(granted[3])) == (1, await schedule.due(1))
    assert (await schedule.claim(OTHER, 0, known=1))[:2] == [0, b"t"]


async def test_without_the_register_one_that_comes_late_or_knows_too_little_runs_nothing(schedule) -> None:
    assert (await schedule.claim(ME, 0, known=2))[:2] == [0, b"n"]
    await schedule.clear()
    assert (await schedule.claim(ME, 0.1, known=1.1))[:2] == [0, b"n"]
    await schedule.clear()
    assert (await schedule.claim(ME, 0.1, known=1.1, in_time=MINUTE))[0] == 1


@pytest.mark.parametrize("flags", ["s", "w"])
async def test_without_the_register_none_of_several_ticks_is_made_up_for(schedule, flags: str) -> None:
    """An asker that knows old ticks only begins the register after those of which it does not know."""
    begun = await schedule.claim(ME, 2.9, known=3.9, flags=flags)
    assert begun[:2] == [0, b"n"]
    for ago in (1.9, 0.9):
        refused = await schedule.claim(ME, ago, known=2.9, flags=flags)
        assert refused[:3] == [0, b"t", begun[2]]
    assert await schedule.is_now(begun[2] + b"000")


async def test_one_that_comes_for_nothing_else_runs_the_first_tick_too(schedule) -> None:
    granted = await schedule.claim(ME, 0, flags="sf")
    assert (granted[0], int(granted[3])) == (1, await schedule.due(1))
    assert (await schedule.claim(OTHER, 0, flags="sf"))[:2] == [0, b"t"]
    await schedule.clear()
    assert (await schedule.claim(ME, 0.1, flags="sf"))[:2] == [0, b"n"]


async def test_who_has_run_it_does_not_run_it_again_without_the_register(schedule) -> None:
    assert (await schedule.claim(ME, 0, known=0))[:2] == [0, b"t"]
    assert await schedule.claimed() == await schedule.due(0)


async def test_what_the_register_has_lost_is_put_back(schedule) -> None:
    """A replica that took over did not have the last claims."""
    await schedule.begun(5)
    assert (await schedule.claim(ME, 2, known=2))[:2] == [0, b"t"]
    assert await schedule.claimed() == await schedule.due(2)
    assert (await schedule.claim(OTHER, 3))[:2] == [0, b"t"]
    assert (await schedule.claim(OTHER, 2, known=-5))[:2] == [0, b"t"]


@pytest.mark.parametrize("gap", [1000, 24 * HOUR])
async def test_a_clock_of_the_server_that_was_ahead_stops_it_for_a_gap_at_most(schedule, gap: int) -> None:
    await _a_clock_that_was_ahead(schedule, gap)


async def test_after_a_clock_that_was_ahead_by_a_year_it_goes_on(schedule) -> None:
    await _a_clock_that_was_ahead(schedule, 1000)
    await _a_clock_that_was_ahead(schedule, HOUR)


async def _a_clock_that_was_ahead(schedule, gap: int) -> None:
    further = max(gap, MINUTE)
    ahead = await schedule.due(0) + further - 20_000
    await schedule.set_claimed(ahead)
    assert (await schedule.claim(ME, 0, known=1, gap=gap))[:2] == [0, b"t"]
    assert await schedule.claimed() == ahead

    await schedule.set_claimed(await schedule.due(0) + further + 20_000)
    assert (await schedule.claim(ME, 0, gap=gap))[:2] == [0, b"n"]
    assert await schedule.claimed() == await schedule.due(0)


# -- another run goes on -------------------------------------------------------------------------------------


async def test_skipped_while_another_run_goes_on(schedule) -> None:
    await schedule.begun(3)
    await schedule.claim(ME, 2, flags="s")
    await schedule.redis.set(schedule.fence, (await schedule.due(2)) * 1000)  # it began in time
    assert (await schedule.claim(OTHER, 1, flags="s"))[:2] == [0, b"s"]
    assert (await schedule.claim(OTHER, 1, flags="s"))[:2] == [0, b"t"]
    assert (await schedule.claim(OTHER, 0, flags="s"))[:2] == [0, b"s"]
    assert await schedule.claimed() == await schedule.due(0)

    # Those in a row are one record, which says since when.
    (record,) = await schedule.records()
    assert record[:3] == ["skipped", await schedule.due(0), await schedule.due(2)]
    assert record[5:] == [0, 0, "", {"definition": THESE}]


async def test_a_tick_that_was_due_before_the_run_began_waits_for_it(schedule) -> None:
    await schedule.begun(3)
    await schedule.claim(ME, 2, flags="s")
    refused = await schedule.claim(OTHER, 1, flags="s")
    assert refused[:2] == [0, b"b"]
    assert about(refused[3], MINUTE)
    assert await schedule.claimed() == await schedule.due(2)
    assert await schedule.records() == []
    await schedule.release(ME)
    assert (await schedule.claim(OTHER, 1, flags="s"))[0] == 1


async def test_queued_it_waits_until_the_other_run_has_ended(schedule) -> None:
    await schedule.begun(3)
    await schedule.claim(ME, 2, flags="q")
    await schedule.redis.set(schedule.fence, (await schedule.due(2)) * 1000)
    assert (await schedule.claim(OTHER, 1, flags="q"))[:2] == [0, b"b"]
    await schedule.release(ME)
    assert (await schedule.claim(OTHER, 1, flags="q"))[0] == 1


async def test_allowed_it_runs_beside_the_other(schedule) -> None:
    await schedule.begun(3)
    assert (await schedule.claim(ME, 2, flags=""))[0] == 1
    assert (await schedule.claim(OTHER, 1, flags=""))[0] == 1
    assert await schedule.unended() == {ME, OTHER}


async def test_a_run_whose_lease_has_ended_is_in_the_way_of_nobody(schedule) -> None:
    await schedule.begun(3)
    for flags, ago, token in (("s", 2, ME), ("q", 1, OTHER), ("s", 0, THIRD)):
        assert (await schedule.claim(token, ago, flags=flags))[0] == 1
        await schedule.end(token)


async def test_out_of_turn_it_claims_no_tick(schedule) -> None:
    await schedule.begun(1)
    granted, minted, due, before, attempt, _ = await schedule.claim(ME, None)

    assert (granted, due, before, attempt) == (1, b"", b"", 0)
    assert await schedule.is_now(minted)
    assert await schedule.claimed() == await schedule.due(1)
    assert (await schedule.claim(OTHER, None, flags="s"))[:2] == [0, b"s"]
    assert (await schedule.claim(OTHER, None, flags="q"))[:2] == [0, b"b"]
    assert (await schedule.claim(OTHER, None, flags=""))[0] == 1
    await schedule.release(ME)
    (record,) = await schedule.records()
    assert (record[0], record[2], record[5]) == ("done", None, 0)


async def test_out_of_turn_nothing_is_run_again(schedule) -> None:
    await schedule.begun(1)
    await schedule.claim(ME, None)
    await schedule.end(ME)
    assert (await schedule.claim(OTHER, None, redo=5))[0] == 1
    assert await schedule.outcomes() == ["lost"]
    assert await schedule.unended() == {OTHER}


# -- how a run ends ------------------------------------------------------------------------------------------


async def test_a_run_that_ends_is_recorded(schedule) -> None:
    await schedule.begun(1)
    minted = int((await schedule.claim(ME, 0, metadata=described(THESE, pid=7)))[1])
    assert await schedule.release(ME, "failed", 'no "space"') == [1]

    (record,) = await schedule.records()
    outcome, due, before, began, ended, attempt, token, detail, holder = record
    assert (outcome, attempt, token, detail, holder) == (
        "failed",
        1,
        minted,
        'no "space"',
        {"pid": 7, "definition": THESE},
    )
    assert (due, before) == (await schedule.due(0), await schedule.due(1))
    assert began == minted // 1000
    assert 0 <= ended - began < MINUTE
    assert await schedule.unended() == set()
    assert await schedule.redis.exists(schedule.holders, schedule.leases) == 0
    assert await schedule.lasts(schedule.history, WEEK)


async def test_history_lasts_as_long_as_the_register(schedule) -> None:
    await schedule.begun(2)
    for ago in (1, 0):
        await schedule.claim(ME, ago)
        await schedule.release(ME)
    await schedule.claim(ME, 0)
    assert await schedule.lasts(schedule.history, WEEK)
    assert await schedule.lasts(schedule.register, WEEK)


async def test_the_end_is_said_once_and_by_nobody_else(schedule) -> None:
    await schedule.begun(1)
    await schedule.claim(ME, 0, redo=1)
    await schedule.end(ME)
    assert await schedule.release(ME, "stopped", redo=1) == [0]
    assert (await schedule.redis.hget(schedule.register, f"run:{ME}")).startswith(b"running:")
    await schedule.clear()
    await schedule.begun(1)
    await schedule.claim(ME, 0)
    assert await schedule.release(OTHER) == [0]
    assert await schedule.unended() == {ME}
    assert await schedule.release(ME) == [1]
    assert await schedule.release(ME) == [0]
    assert await schedule.outcomes() == ["done"]


async def test_the_last_records_are_kept(schedule) -> None:
    await schedule.begun(200)
    for ago in range(199, 90, -1):
        await schedule.claim(ME, ago)
        await schedule.release(ME, "done", str(ago))
    records = await schedule.records()
    assert len(records) == 100
    assert {record[7] for record in records} >= {"91", "92", "93"}


async def test_a_claim_that_is_taken_back_leaves_the_register_as_it_was(schedule) -> None:
    await schedule.begun(1)
    await schedule.claim(ME, 0)
    assert await schedule.release(ME, "") == [1]
    assert await schedule.claimed() == await schedule.due(1)
    assert await schedule.unended() == set()
    assert await schedule.records() == []
    assert (await schedule.claim(OTHER, 0))[0] == 1


async def test_a_claim_that_is_taken_back_is_not_put_back_by_one_that_knew_of_it(schedule) -> None:
    await schedule.begun(2)
    await schedule.claim(ME, 1)
    assert (await schedule.claim(OTHER, 1))[:2] == [0, b"t"]
    await schedule.release(ME, "")
    granted = await schedule.claim(OTHER, 0, known=1)
    assert (granted[0], int(granted[3])) == (1, await schedule.due(2))


async def test_a_claim_taken_back_leaves_the_later_ones_alone(schedule) -> None:
    """The next to ask runs it, if all ticks are run; it is its first run."""
    await schedule.begun(2)
    await schedule.claim(ME, 1, flags="")
    await schedule.claim(OTHER, 0, flags="")
    for freed in (1, 0):
        assert await schedule.release(ME, "") == [freed]
        assert await schedule.claimed() == await schedule.due(0)
        assert await schedule.unended() == {ME, OTHER}
    again = await schedule.claim(THIRD, 0, flags="w", known=0)
    due, before = str(await schedule.due(1)).encode(), str(await schedule.due(2)).encode()
    assert (again[0], *again[2:5]) == (1, due, before, 1)
    assert await schedule.unended() == {THIRD, OTHER}
    assert await schedule.records() == []


async def test_a_run_out_of_turn_that_is_given_back_is_forgotten(schedule) -> None:
    await schedule.begun(0)
    await schedule.claim(THIRD, None, flags="")
    await schedule.release(THIRD, "")
    assert await schedule.claimed() == await schedule.due(0)
    assert await schedule.unended() == set()


async def test_a_claim_is_given_back_also_when_its_lease_has_ended(schedule) -> None:
    """Its answer was on its way for longer than the ttl."""
    await schedule.begun(1)
    await schedule.claim(ME, 0)
    await schedule.end(ME)
    assert await schedule.release(ME, "done") == [0]  # of that, it can say nothing any more
    assert await schedule.unended() == {ME}
    assert await schedule.release(ME, "") == [0]
    assert await schedule.claimed() == await schedule.due(1)
    assert await schedule.unended() == set()
    granted = await schedule.claim(OTHER, 0)
    assert (granted[0], int(granted[3]), granted[4]) == (1, await schedule.due(1), 1)


async def test_one_that_was_given_back_goes_before_no_newer_one_and_is_told_of_as_lost(schedule) -> None:
    await schedule.begun(3)
    await schedule.claim(ME, 2, flags="")
    await schedule.claim(OTHER, 1, flags="")
    await schedule.release(OTHER)
    await schedule.release(ME, "")
    granted = await schedule.claim(THIRD, 0)
    assert (granted[0], int(granted[2])) == (1, await schedule.due(0))
    (told,) = granted[6:]
    assert json.loads(told)[:2] == ["lost", await schedule.due(2)]
    assert json.loads(told) in await schedule.records()
    assert await schedule.unended() == {THIRD}


async def test_one_that_was_given_back_is_run_if_no_newer_one_is_due(schedule) -> None:
    await schedule.begun(3)
    await schedule.claim(ME, 2, flags="")
    await schedule.claim(OTHER, 0, flags="")
    await schedule.release(OTHER)
    await schedule.release(ME, "")
    granted = await schedule.claim(THIRD, 0)
    assert (granted[0], int(granted[2]), granted[4]) == (1, await schedule.due(2), 1)
    assert await schedule.outcomes() == ["done"]
    await schedule.release(THIRD, "")
    assert (await schedule.claim(ME, 0))[4] == 1
    await schedule.end(ME)
    assert (await schedule.claim(OTHER, 0))[:2] == [0, b"t"]
    assert sorted(await schedule.outcomes()) == ["done", "lost"]


async def test_a_run_without_a_tick_before_it_that_is_given_back_stays(schedule) -> None:
    """A process with another definition has run it."""
    await schedule.begun(3)
    await schedule.claim(ME, 2, flags="")
    await schedule.claim(OTHER, 1, flags="")
    await schedule.release(OTHER)
    await schedule.release(ME, "")
    await schedule.begun(2, of=OTHERS)
    assert (await schedule.claim(THIRD, 2, of=OTHERS))[3:5] == [b"", 1]
    await schedule.release(THIRD, "", of=OTHERS)
    assert await schedule.unended() == {THIRD}
    assert await schedule.claimed(of=OTHERS) == await schedule.due(2)


async def test_one_that_was_stopped_is_told_to_nobody_as_lost(schedule) -> None:
    await schedule.begun(2)
    await schedule.claim(ME, 1, redo=1)
    await schedule.release(ME, "stopped", redo=1)
    assert (await schedule.claim(OTHER, 0, redo=1))[6:] == []
    assert await schedule.outcomes() == ["stopped"]


async def test_who_asks_again_after_the_end_of_its_lease_is_told(schedule) -> None:
    """It alone knows that it has run nothing. A request that arrives twice changes nothing."""
    await schedule.begun(1)
    await schedule.claim(ME, 0)
    await schedule.end(ME)
    assert (await schedule.claim(ME, 0))[:3] == [0, b"g", b""]
    assert await schedule.unended() == {ME}
    await schedule.release(ME, "")
    assert (await schedule.claim(OTHER, 0))[0] == 1


async def test_who_finds_runs_lost_is_told_of_each(schedule) -> None:
    await schedule.begun(3)
    for token, ago in ((ME, 2), (OTHER, 1)):
        await schedule.claim(token, ago, flags="")
    for token in (ME, OTHER):
        await schedule.end(token)
    refused = await schedule.claim(THIRD, 1, flags="")
    assert refused[:2] == [0, b"t"]
    records = await schedule.records()
    assert sorted(json.loads(one) for one in refused[5:]) == sorted(records)
    assert [record[0] for record in records] == ["lost", "lost"]
    assert (await schedule.claim(THIRD, 1, flags=""))[5:] == []

    await schedule.claim(ME, 0, redo=1)
    await schedule.end(ME)
    (told,) = (await schedule.claim(OTHER, 0, redo=1))[6:]
    assert json.loads(told)[:2] == ["lost", await schedule.due(0)]
    await schedule.end(OTHER)
    (told,) = (await schedule.claim(THIRD, None))[6:]
    assert json.loads(told)[5] == 2


# -- another definition --------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", ["s", "w"])
async def test_a_changed_definition_begins_as_a_new_schedule_does(schedule, flags: str) -> None:
    await _begins_anew(schedule, flags)


async def test_a_changed_definition_makes_up_for_nothing(schedule) -> None:
    await _begins_anew(schedule, "s")
    await schedule.clear()
    await _begins_anew(schedule, "w")


async def _begins_anew(schedule, flags: str) -> None:
    await schedule.begun(9)
    await schedule.claim(ME, 8)
    await schedule.release(ME)
    begun = await schedule.claim(OTHER, 0.9, flags=flags, of=OTHERS)
    assert begun[:3] == [0, b"n", str(await schedule.due(0.9)).encode()]
    assert (await schedule.claim(OTHER, 1, flags=flags, of=OTHERS))[:2] == [0, b"t"]
    granted = await schedule.claim(OTHER, 0, flags=flags, known=0.9, of=OTHERS)
    assert (granted[0], int(granted[3])) == (1, await schedule.due(0.9))


async def test_two_definitions_side_by_side_claim_each_of_their_ticks_once(schedule) -> None:
    await schedule.begun(4)
    await schedule.begun(3.5, of=OTHERS)
    for ago in (3, 2, 1):
        for tick, of in ((ago, THESE), (ago - 0.5, OTHERS)):
            granted = await schedule.claim(ME, tick, flags="w", known=tick + 1, of=of)
            assert (granted[0], int(granted[3])) == (1, await schedule.due(tick + 1))
            assert (await schedule.claim(OTHER, tick, of=of))[:3] == [0, b"t", granted[2]]
            await schedule.release(ME, of=of)
    assert await schedule.claimed() == await schedule.due(1)
    assert await schedule.claimed(of=OTHERS) == await schedule.due(0.5)
    assert await schedule.definitions() == {THESE, OTHERS}


async def test_a_definition_that_comes_back_after_another_begins_anew(schedule) -> None:
    """Within one gap it is only late."""
    now = await schedule.due(0)
    await schedule.set_claimed(await schedule.due(5), asked=now - 5 * MINUTE, until=now - MINUTE)
    await schedule.set_claimed(await schedule.due(4), asked=now - 4 * MINUTE, of=OTHERS)
    assert (await schedule.claim(ME, 0))[:3] == [0, b"n", str(now).encode()]

    await schedule.set_claimed(await schedule.due(5), asked=now - 5 * MINUTE, until=now + MINUTE)
    assert (await schedule.claim(ME, 0))[0] == 1


async def test_a_definition_that_was_away_with_all_others_goes_on(schedule) -> None:
    now = await schedule.due(0)
    await schedule.set_claimed(await schedule.due(5), asked=now - 5 * MINUTE, until=now - MINUTE)
    await schedule.set_claimed(await schedule.due(6), asked=now - 6 * MINUTE, until=now + WEEK, of=OTHERS)
    granted = await schedule.claim(ME, 0)
    assert (granted[0], int(granted[3])) == (1, await schedule.due(5))


async def test_a_definition_is_forgotten_where_another_took_its_place(schedule) -> None:
    now = await schedule.due(0)
    await schedule.begun(1)
    await schedule.set_claimed(await schedule.due(9), until=now - 1, of=OTHERS)
    assert (await schedule.claim(ME, 1))[:2] == [0, b"t"]
    assert await schedule.definitions() == {THESE}


async def test_no_definition_forgets_a_tick_that_was_claimed_before_the_clock_was_set_back(schedule) -> None:
    now = await schedule.due(0)
    await schedule.begun(1)
    ahead = await schedule.due(-0.5)
    await schedule.set_claimed(ahead, asked=now - 1, until=now - 1, of=OTHERS)
    assert (await schedule.claim(ME, 1))[:2] == [0, b"t"]
    assert (await schedule.claim(OTHER, 0, of=OTHERS))[:3] == [0, b"t", str(ahead).encode()]


async def test_each_claim_says_how_long_the_next_is_waited_for(schedule) -> None:
    """Half a gap, a second at least and a minute at most, from when the next tick is claimed."""
    for gap, slack in ((200, 1000), (20_000, 10_000), (HOUR, MINUTE)):
        await schedule.clear()
        for ask, ago in ((schedule.begun, 0), (schedule.claim, 0)):
            await (ask(ago) if ask == schedule.begun else ask(ME, ago, gap=gap, again=-gap / MINUTE))
        _, asked, until = (await schedule.redis.hget(schedule.register, f"claimed:{THESE}")).split(b":")
        assert int(until) == await schedule.due(0) + gap + slack
        assert 0 <= int(asked) - await schedule.due(0) < MINUTE
        await schedule.claim(ME, 0, gap=gap, again=60)  # it makes up for what was long ago
        until = (await schedule.redis.hget(schedule.register, f"claimed:{THESE}")).split(b":")[2]
        assert 0 <= int(until) - slack - await schedule.due(0) < MINUTE


async def test_each_claim_says_when_the_next_one_is_made(schedule) -> None:
    """For operators. Also a claim that is refused; and it is forgotten with its definition."""
    await schedule.begun(1)
    await schedule.claim(ME, 0, again=-3)
    assert await schedule.next() == {THESE: await schedule.due(-3)}
    await schedule.claim(OTHER, 0, again=-4)
    assert await schedule.next() == {THESE: await schedule.due(-4)}
    await schedule.set_claimed(await schedule.due(9), asked=1, until=1)
    await schedule.begun(1, of=OTHERS)
    assert set(await schedule.next()) == {OTHERS}


async def test_a_lost_run_of_another_definition_is_run_again(schedule) -> None:
    """Nobody can say how many ticks were missed between one of the two and one of the other."""
    await schedule.begun(2)
    await schedule.claim(ME, 1, redo=1)
    await schedule.release(ME, "stopped", redo=1)
    await schedule.begun(0, of=OTHERS)
    granted = await schedule.claim(OTHER, 0, redo=1, of=OTHERS)
    due = str(await schedule.due(1)).encode()
    assert (granted[0], *granted[2:5]) == (1, due, b"", 2)
    await schedule.release(OTHER, "", redo=1, of=OTHERS)
    assert await schedule.claimed() == await schedule.due(1)
    assert (await schedule.claim(THIRD, 0, redo=1, of=OTHERS))[3:5] == [b"", 2]


async def test_skipped_ticks_of_two_definitions_are_two_records(schedule) -> None:
    await schedule.begun(3)
    await schedule.begun(3, of=OTHERS)
    await schedule.claim(ME, None)
    await schedule.redis.set(schedule.fence, (await schedule.due(3)) * 1000)
    await schedule.claim(OTHER, 2)
    await schedule.set_claimed(await schedule.due(2), of=OTHERS)
    await schedule.claim(OTHER, 1, of=OTHERS)
    assert [record[:2] for record in await schedule.records()] == [
        ["skipped", await schedule.due(2)],
        ["skipped", await schedule.due(1)],
    ]
    assert [record[8] for record in await schedule.records()] == [
        {"definition": THESE},
        {"definition": OTHERS},
    ]


# -- versions that know no definitions -----------------------------------------------------------------------


async def test_the_register_of_an_older_version_goes_on(schedule) -> None:
    for claimed in (0, 1, 7):
        await schedule.clear()
        await schedule.claimed_by_older(claimed)
        reply = await schedule.claim(ME, 0)
        assert reply[:2] == [0, b"t"] if claimed == 0 else reply[0] == 1
        assert await schedule.definitions() == {THESE}
        if claimed:
            assert int(reply[3]) == await schedule.due(claimed)
        assert (await schedule.claim(OTHER, 0))[:2] == [0, b"t"]


async def test_the_register_of_an_older_version_with_another_definition_does_not(schedule) -> None:
    """Between two ticks there is no tick."""
    await schedule.claimed_by_older(0.5)
    assert (await schedule.claim(ME, 0, known=1))[0] == 1  # as in any register that is new
    await schedule.clear()
    await schedule.claimed_by_older(0.5)
    assert (await schedule.claim(ME, 0))[:3] == [0, b"n", str(await schedule.due(0)).encode()]


async def test_a_tick_is_claimed_by_an_older_version_or_by_this_one(schedule) -> None:
    await schedule.begun(4)
    await schedule.claim(ME, 3)
    await schedule.release(ME)
    assert await schedule.told_to_older() == b"0%d" % await schedule.due(3)
    await schedule.claimed_by_older(2)
    assert (await schedule.claim(ME, 2))[:3] == [0, b"t", str(await schedule.due(2)).encode()]
    assert await schedule.told_to_older() == b"0%d" % await schedule.due(2)
    await schedule.claimed_by_older(1)
    granted = await schedule.claim(ME, 0)
    assert int(granted[3]) == await schedule.due(1)
    assert await schedule.told_to_older() == b"0%d" % await schedule.due(0)


async def test_a_tick_of_an_older_version_counts_for_each_definition(schedule) -> None:
    await schedule.begun(5)
    await schedule.begun(4, of=OTHERS)
    await schedule.claimed_by_older(3)
    assert (await schedule.claim(ME, 3))[:2] == [0, b"t"]
    assert await schedule.claimed(of=OTHERS) == await schedule.due(3)
    third = "9" * 16
    assert (await schedule.claim(ME, 0.9, of=third))[:2] == [0, b"n"]
    await schedule.claimed_by_older(2)
    assert (await schedule.claim(ME, 0, of="8" * 16))[:2] == [0, b"n"]
    for of, ago in ((THESE, 2), (OTHERS, 2), (third, 0.9)):
        assert await schedule.claimed(of=of) == await schedule.due(ago)


async def test_what_was_heard_of_an_older_version_is_kept(schedule) -> None:
    """Also by a claim that runs something else."""
    await schedule.begun(4)
    await schedule.claim(ME, 3, redo=1)
    await schedule.end(ME)
    await schedule.claimed_by_older(2)
    assert int((await schedule.claim(OTHER, 2, redo=1))[2]) == await schedule.due(3)
    assert await schedule.claimed() == await schedule.due(2)


async def test_what_an_older_version_has_taken_back_is_not_claimed(schedule) -> None:
    third = "9" * 16
    await schedule.begun(3)
    for of, ago in ((OTHERS, 3), (third, 2.5)):
        await schedule.set_claimed(await schedule.due(ago), of=of)
    await schedule.claimed_by_older(2)
    assert (await schedule.claim(ME, 2))[:2] == [0, b"t"]
    await schedule.set_claimed(await schedule.due(2.5), of=third)
    await schedule.claimed_by_older(3)
    await schedule.redis.hset(schedule.register, "undone", await schedule.due(2))
    granted = await schedule.claim(ME, 2)
    assert (granted[0], int(granted[3])) == (1, await schedule.due(3))
    for of, ago in ((OTHERS, 3), (third, 2.5)):
        assert await schedule.claimed(of=of) == await schedule.due(ago)


async def test_an_older_version_is_told_of_the_newest_tick_of_all(schedule) -> None:
    await schedule.begun(5)
    await schedule.begun(4, of=OTHERS)
    assert await schedule.told_to_older() == b"0%d" % await schedule.due(4)
    await schedule.claim(ME, 2)
    await schedule.release(ME)
    await schedule.claim(OTHER, 3, of=OTHERS)
    assert await schedule.told_to_older() == b"0%d" % await schedule.due(2)
    await schedule.release(OTHER, "", of=OTHERS)
    assert await schedule.told_to_older() == b"0%d" % await schedule.due(2)
    await schedule.claim(ME, 1)
    await schedule.release(ME, "")
    assert await schedule.told_to_older() == b"0%d" % await schedule.due(2)
    await schedule.redis.hset(schedule.register, "claimed", f"0{await schedule.due(-2 * 60)}")
    await schedule.claim(ME, 0)
    assert await schedule.told_to_older() == b"0%d" % await schedule.due(0)


async def test_a_run_that_was_lost_is_recorded_by_the_next_to_ask(schedule) -> None:
    await schedule.begun(1)
    await schedule.claim(ME, 0)
    assert (await schedule.claim(OTHER, 0))[:2] == [0, b"t"]
    assert await schedule.records() == []
    await schedule.end(ME)
    assert (await schedule.claim(OTHER, 0))[:2] == [0, b"t"]

    (record,) = await schedule.records()
    assert (record[0], record[1], record[4]) == ("lost", await schedule.due(0), None)
    assert await schedule.unended() == set()


@pytest.mark.parametrize("outcome", ["lost", "stopped"])
async def test_one_that_was_lost_or_stopped_is_run_again_so_often(schedule, outcome: str) -> None:
    await _run_again(schedule, outcome)


async def test_one_that_was_lost_is_run_again_so_often(schedule) -> None:
    await _run_again(schedule, "lost")
    await schedule.clear()
    await _run_again(schedule, "stopped")


async def _run_again(schedule, outcome: str) -> None:
    await schedule.begun(1)
    await schedule.claim(ME, 0, redo=2)
    await schedule.release(ME, outcome, redo=2)
    assert await schedule.unended() == {ME}

    due, before = str(await schedule.due(0)).encode(), str(await schedule.due(1)).encode()
    for attempt, token in ((2, OTHER), (3, THIRD)):
        again = await schedule.claim(token, 0, redo=2)
        assert (again[0], *again[2:5]) == (1, due, before, attempt)
        assert await schedule.unended() == {token}
        await schedule.release(token, outcome, redo=2)
    assert (await schedule.claim(ME, 0, redo=2))[:2] == [0, b"t"]
    assert await schedule.outcomes() == [outcome] * 3
    assert await schedule.unended() == set()


async def test_one_that_was_stopped_and_is_not_run_again_is_recorded_at_once(schedule) -> None:
    await schedule.begun(1)
    await schedule.claim(ME, 0)
    await schedule.release(ME, "stopped")
    assert await schedule.outcomes() == ["stopped"]
    assert (await schedule.claim(OTHER, 0))[:2] == [0, b"t"]


async def test_one_that_has_failed_is_not_run_again(schedule) -> None:
    await schedule.begun(1)
    for outcome in ("failed", "done", "timeout"):
        await schedule.claim(ME, 0, redo=5)
        await schedule.release(ME, outcome, redo=5)
        assert (await schedule.claim(OTHER, 0, redo=5))[:2] == [0, b"t"]


async def test_a_second_run_that_is_taken_back_has_not_been_one(schedule) -> None:
    await schedule.begun(1)
    await schedule.claim(ME, 0, redo=1)
    await schedule.end(ME)
    assert (await schedule.claim(OTHER, 0, redo=1))[4] == 2
    await schedule.release(OTHER, "", redo=1)
    assert (await schedule.claim(THIRD, 0, redo=1))[4] == 2


async def test_a_newer_tick_goes_before_one_that_was_lost(schedule) -> None:
    await schedule.begun(2)
    await schedule.claim(ME, 1, redo=1)
    await schedule.end(ME)
    granted = await schedule.claim(OTHER, 0, redo=1)
    assert (granted[0], int(granted[2])) == (1, await schedule.due(0))
    assert await schedule.outcomes() == ["lost"]


async def test_one_that_was_lost_goes_first_where_all_are_run(schedule) -> None:
    await schedule.begun(3)
    await schedule.claim(ME, 2, redo=1, flags="", known=3)
    await schedule.claim(OTHER, 1, redo=1, flags="", known=2)
    for token in (ME, OTHER):
        await schedule.end(token)
    granted = await schedule.claim(THIRD, 0, redo=1, flags="w", known=1)
    assert (granted[0], int(granted[2])) == (1, await schedule.due(2))
    granted = await schedule.claim("d4" * 16, 0, redo=1, flags="w", known=1)
    assert (granted[0], int(granted[2])) == (1, await schedule.due(1))


@pytest.mark.parametrize("flags", ["s", "q"])
async def test_one_that_was_lost_waits_for_the_run_that_goes_on(schedule, flags: str) -> None:
    await _waits_for_the_run(schedule, flags)


async def test_one_that_was_lost_waits_for_any_run(schedule) -> None:
    await _waits_for_the_run(schedule, "s")
    await schedule.clear()
    await _waits_for_the_run(schedule, "q")


async def _waits_for_the_run(schedule, flags: str) -> None:
    await schedule.begun(1)
    await schedule.claim(ME, 0, redo=1, flags=flags)
    await schedule.end(ME)
    await schedule.claim(OTHER, None, redo=1, flags="")
    assert (await schedule.claim(THIRD, 0, redo=1, flags=flags))[:2] == [0, b"t"]
    await schedule.release(OTHER)
    assert (await schedule.claim(THIRD, 0, redo=1, flags=flags))[0] == 1


async def test_a_renewal_keeps_the_register(schedule) -> None:
    await schedule.begun(1)
    await schedule.claim(ME, 0)
    await schedule.redis.pexpire(schedule.register, MINUTE)
    assert await schedule.renew(ME) == 1
    assert await schedule.lasts(schedule.register, WEEK)
    assert await schedule.renew(OTHER) == 0


# -- reading -------------------------------------------------------------------------------------------------


async def test_it_reads_what_goes_on_and_what_has_ended(schedule) -> None:
    await schedule.begun(3)
    for number, token in enumerate((ME, OTHER, THIRD)):
        await schedule.claim(token, 2 - number, flags="", metadata=described(THESE, pid=1))
    await schedule.release(ME)
    await schedule.end(OTHER)

    now, claimed, runs, living, records = await schedule.read()
    assert await schedule.is_now(now)
    assert int(claimed) == await schedule.due(0)
    found = dict(zip(runs[::2], runs[1::2], strict=True))
    assert set(found) == {OTHER.encode(), THIRD.encode()}
    assert found[THIRD.encode()].startswith(
        b"running:%d:1:%d:" % (await schedule.due(0), await schedule.due(1))
    )
    assert living == [THIRD.encode()]
    assert [json.loads(record)[0] for record in records] == ["done"]
    assert (await schedule.read(0))[1:] == [claimed, [], living, []]


async def test_of_the_records_it_reads_the_last(schedule) -> None:
    await schedule.begun(9)
    for ago in (8, 7, 6):
        await schedule.claim(ME, ago)
        await schedule.release(ME, "done", str(ago))
        (newest,) = await schedule.redis.zrange(schedule.history, -1, -1)
        await schedule.redis.zadd(schedule.history, {newest: -ago * 1000}, incr=True)
    assert [json.loads(record)[7] for record in (await schedule.read(2))[4]] == ["7", "6"]
    assert (await schedule.read(2))[2] == []


async def test_nothing_is_read_where_nothing_is(schedule) -> None:
    assert (await schedule.read())[1:] == [b"", [], [], []]


# -- what others have written --------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "role"), [(1, ""), (2, "leases"), (3, "register"), (4, "fence")])
async def test_a_key_of_another_type_is_refused(schedule, number: int, role: str) -> None:
    await schedule.redis.rpush(schedule.key(role), "mine")
    with pytest.raises(ResponseError, match=f"FOREIGN {number}"):
        await schedule.claim(ME, 0, known=1)
    assert await schedule.redis.lrange(schedule.key(role), 0, -1) == [b"mine"]


async def test_a_register_that_is_not_ours_is_refused(schedule) -> None:
    for field in ("claimed", f"claimed:{THESE}", f"claimed:{OTHERS}"):
        await schedule.redis.hset(schedule.register, field, "yesterday")
        with pytest.raises(ResponseError, match="FOREIGN 3"):
            await schedule.claim(ME, 0)
        await schedule.clear()
    await schedule.begun(1)
    await schedule.redis.hset(schedule.register, f"run:{ME}", "somebody")
    with pytest.raises(ResponseError, match="FOREIGN 3"):
        await schedule.claim(OTHER, 0)


async def test_a_step_that_finds_a_fence_that_is_not_ours_claims_nothing(schedule) -> None:
    """When the fence is put right, the tick is run."""
    await schedule.begun(1)
    await schedule.redis.set(schedule.fence, "mine")
    with pytest.raises(ResponseError, match="FOREIGN 4"):
        await schedule.claim(ME, 0)
    assert await schedule.claimed() == await schedule.due(1)
    await schedule.redis.delete(schedule.fence)
    await schedule.claim(ME, 0, redo=1)
    await schedule.end(ME)
    await schedule.redis.set(schedule.fence, "mine")
    with pytest.raises(ResponseError, match="FOREIGN 4"):
        await schedule.claim(OTHER, 0, redo=1)
    assert await schedule.unended() == {ME}
    assert await schedule.records() == []


async def test_a_history_that_is_not_ours_is_refused(schedule) -> None:
    await schedule.begun(1)
    await schedule.claim(ME, 0)
    await schedule.redis.rpush(schedule.history, "mine")
    with pytest.raises(ResponseError, match="FOREIGN 7"):
        await schedule.release(ME)


async def test_a_run_ends_on_a_server_that_is_out_of_memory(own_server, connect, prefix) -> None:
    schedule = ScheduleScripts(
        connect(await own_server(arguments=("--maxmemory-policy", "noeviction"))), prefix
    )
    await schedule.begun(2)
    await schedule.claim(ME, 1)
    await schedule.redis.config_set("maxmemory", 1)

    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await schedule.claim(OTHER, 0, flags="")
    assert await schedule.renew(ME) == 1
    assert await schedule.release(ME) == [1]
    assert await schedule.outcomes() == ["done"]


async def test_the_commands_say_what_the_tests_do(schedule) -> None:
    await schedule.begun(1)
    due, before = await schedule.due(0), await schedule.due(1)
    ask = Ask(
        *(due, before, before),
        flags="s",
        gap=MINUTE,
        lasting=WEEK,
        in_time=1000,
        definition=THESE,
        again=due + MINUTE,
    )
    commands = TickSteps(schedule.prefix, schedule.name, ask, retention_ms=HOUR, session="me")
    claim = commands.acquire(ME, MINUTE, "{}")

    arguments = (ME, MINUTE, HOUR, "{}", WEEK, "s", 0, due, before, before, MINUTE, "", 1000)
    arguments += (THESE, due + MINUTE)
    assert claim.words(as_eval=True) == schedule.words("schedule_claim", schedule.keys, *arguments)
    assert isinstance(claim.parse(await schedule.claim(ME, 0, known=1)), Granted)
    assert isinstance(commands.reply, Claimed)
    assert commands.reply[:3] == (due, before, 1)
    assert isinstance(claim.parse(await schedule.claim(OTHER, 0, known=1)), Refused)
    assert isinstance(commands.reply, NotClaimed)
    assert commands.reply[:2] == ("taken", due)

    commands.outcome, commands.detail = "failed", "why"
    release = commands.release(ME, MINUTE)
    assert release.words(as_eval=True) == schedule.words(
        "schedule_release", schedule.keys, ME, HOUR, "failed", '"why"', 0, THESE
    )
    assert release.lane == claim.lane  # an undo follows what it undoes
    assert release.parse(await schedule.run(release.words(as_eval=True))).freed is True
    read = reading(schedule.prefix, schedule.name, records=5)
    found = read.parse(await schedule.run(read.words(as_eval=True)))
    assert (found.claimed, found.runs, found.living, len(found.records)) == (due, {}, frozenset(), 1)


# -- mutants -------------------------------------------------------------------------------------------------

CHECKS = checks(globals(), "schedule")
CLAIM, TRIGGER, RELEASE, READ = "schedule_claim", "schedule_trigger", "schedule_release", "schedule_read"
TICKS, CLAIMS = "shared/ticks", "shared/claims"
FILES = (CLAIM, TRIGGER, RELEASE, READ, TICKS, CLAIMS)
SPARED: tuple[str, ...] = ()
MUTATIONS = [
    Mutation(CLAIM, "if due > NOW then", "if false then", "test_a_tick_is_never_claimed_before_it_is_due"),
    Mutation(CLAIM, "if due <= claimed then", "if false then", "test_no_tick_is_claimed_twice"),
    Mutation(
        CLAIM,
        "NOW - due <= tonumber(ARGV[13])",
        "true",
        "test_without_the_register_one_that_comes_late_or_knows_too_little_runs_nothing",
    ),
    Mutation(
        CLAIM,
        "last >= before",
        "last",
        "test_without_the_register_one_that_comes_late_or_knows_too_little_runs_nothing",
    ),
    Mutation(
        CLAIM,
        "known ~= claimed",
        "false",
        "test_all_of_them_are_claimed_one_by_one_by_who_knows_the_newest",
    ),
    Mutation(CLAIM, "or due <= began", "", "test_a_tick_that_was_due_before_the_run_began_waits_for_it"),
    Mutation(CLAIM, "lost and not is_blocked()", "lost", "test_one_that_was_lost_waits_for_any_run"),
    Mutation(
        CLAIM,
        "(has(flags, 'w') or due <= claimed) and redo or -1",
        "redo",
        "test_a_newer_tick_goes_before_one_that_was_lost",
    ),
    Mutation(
        CLAIM,
        "has(flags, 'w') or due <= claimed)",
        "due <= claimed)",
        "test_one_that_was_lost_goes_first_where_all_are_run",
    ),
    Mutation(
        CLAIM, "times_begun(run) + 1", "times_begun(run)", "test_one_that_was_lost_is_run_again_so_often"
    ),
    Mutation(CLAIM, "known > NOW or", "", "test_what_the_register_has_lost_is_put_back"),
    Mutation(
        CLAIM,
        "tick > NOW + math.max(FUTURE, gap)",
        "tick > NOW + FUTURE",
        "test_after_a_clock_that_was_ahead_by_a_year_it_goes_on",
    ),
    Mutation(
        CLAIM,
        "tick > NOW + math.max(FUTURE, gap)",
        "tick > NOW + gap",
        "test_after_a_clock_that_was_ahead_by_a_year_it_goes_on",
    ),
    Mutation(CLAIM, "other ~= definition", "true", "test_a_definition_that_was_away_with_all_others_goes_on"),
    Mutation(
        CLAIM, "NOW > expected and", "", "test_two_definitions_side_by_side_claim_each_of_their_ticks_once"
    ),
    Mutation(
        CLAIM,
        " and NOW >= tick",
        "",
        "test_no_definition_forgets_a_tick_that_was_claimed_before_the_clock_was_set_back",
    ),
    Mutation(
        CLAIM,
        " or claimed >= due)",
        ")",
        "test_no_definition_forgets_a_tick_that_was_claimed_before_the_clock_was_set_back",
    ),
    Mutation(CLAIM, "NOW <= expected or ", "", "test_a_definition_that_comes_back_after_another_begins_anew"),
    Mutation(
        CLAIM,
        "(NOW <= expected or last_asked <= asked or claimed >= due)",
        "true",
        "test_a_definition_that_comes_back_after_another_begins_anew",
    ),
    Mutation(
        CLAIM,
        "or last_asked <= asked ",
        "",
        "test_a_definition_that_was_away_with_all_others_goes_on",
    ),
    Mutation(
        CLAIM,
        "math.max(NOW, tonumber(ARGV[15]))",
        "NOW",
        "test_each_claim_says_how_long_the_next_is_waited_for",
    ),
    Mutation(
        CLAIM,
        "math.max(NOW, tonumber(ARGV[15]))",
        "tonumber(ARGV[15])",
        "test_each_claim_says_how_long_the_next_is_waited_for",
    ),
    Mutation(
        CLAIM, "math.max(gap / 2, HICCUP)", "gap / 2", "test_each_claim_says_how_long_the_next_is_waited_for"
    ),
    Mutation(
        CLAIM,
        "math.min(math.max(gap / 2, HICCUP), FUTURE)",
        "math.max(gap / 2, HICCUP)",
        "test_each_claim_says_how_long_the_next_is_waited_for",
    ),
    Mutation(
        CLAIM,
        "unheard and last_asked == 0",
        "unheard",
        "test_a_tick_of_an_older_version_counts_for_each_definition",
    ),
    Mutation(
        CLAIM,
        " and (older <= before or older >= due)",
        "",
        "test_the_register_of_an_older_version_with_another_definition_does_not",
    ),
    Mutation(
        CLAIM,
        "tick == undone and older or",
        "",
        "test_what_an_older_version_has_taken_back_is_not_claimed",
    ),
    Mutation(
        CLAIM, "math.max(tick, older)", "older", "test_what_an_older_version_has_taken_back_is_not_claimed"
    ),
    Mutation(CLAIM, "or older < tick", "or true", "test_an_older_version_is_told_of_the_newest_tick_of_all"),
    Mutation(CLAIM, " or is_ahead(older)", "", "test_an_older_version_is_told_of_the_newest_tick_of_all"),
    Mutation(
        CLAIM,
        """string.find(run.holder, '"definition":"' .. definition .. '"', 1, true)""",
        "true",
        "test_a_lost_run_of_another_definition_is_run_again",
    ),
    Mutation(
        CLAIM,
        " and string.find(last, holder, 1, true)",
        "",
        "test_skipped_ticks_of_two_definitions_are_two_records",
    ),
    Mutation(CLAIM, "run.state == 'unbegun'", "false", "test_a_claim_taken_back_leaves_the_later_ones_alone"),
    Mutation(
        CLAIMS, " and (has(flags, 's') or has(flags, 'q'))", "", "test_allowed_it_runs_beside_the_other"
    ),
    Mutation(TRIGGER, "and 's' or 'b'", "and 'b' or 's'", "test_out_of_turn_it_claims_no_tick"),
    Mutation(
        CLAIM,
        "known == tonumber(redis.call('HGET', register, 'undone'))",
        "false",
        "test_a_claim_that_is_taken_back_is_not_put_back_by_one_that_knew_of_it",
    ),
    Mutation(
        RELEASE,
        "claimed == run.due",
        "true",
        "test_a_claim_taken_back_leaves_the_later_ones_alone",
    ),
    Mutation(
        RELEASE,
        " and run.before ~= ''",
        "",
        "test_a_run_without_a_tick_before_it_that_is_given_back_stays",
    ),
    Mutation(
        RELEASE,
        "told_to_older() == run.due",
        "true",
        "test_an_older_version_is_told_of_the_newest_tick_of_all",
    ),
    Mutation(
        RELEASE,
        "elseif held and run and outcome ~= 'lost'",
        "elseif run and outcome ~= 'lost'",
        "test_a_claim_is_given_back_also_when_its_lease_has_ended",
    ),
    Mutation(
        RELEASE,
        "held and run and outcome == 'stopped'",
        "run and outcome == 'stopped'",
        "test_the_end_is_said_once_and_by_nobody_else",
    ),
    Mutation(
        RELEASE,
        "if run and outcome == ''",
        "if held and run and outcome == ''",
        "test_a_claim_is_given_back_also_when_its_lease_has_ended",
    ),
    Mutation(
        TICKS,
        "run.state == 'unbegun' and run.attempt - 1 or run.attempt",
        "run.attempt",
        "test_one_that_was_given_back_is_run_if_no_newer_one_is_due",
    ),
    Mutation(
        TICKS,
        "if outcome == 'lost' then",
        "if true then",
        "test_one_that_was_stopped_is_told_to_nobody_as_lost",
    ),
    Mutation(
        RELEASE,
        "run.attempt <= tonumber(ARGV[5])",
        "true",
        "test_one_that_was_stopped_and_is_not_run_again_is_recorded_at_once",
    ),
    Mutation(
        CLAIM,
        "local granted = begin_run(mint_for_run(), due, 1, whole(claimed))\nset_claimed(due)",
        "set_claimed(due)\nlocal granted = begin_run(mint_for_run(), due, 1, whole(claimed))",
        "test_a_step_that_finds_a_fence_that_is_not_ours_claims_nothing",
    ),
    Mutation(TICKS, "run.attempt < 1 or ", "", "test_out_of_turn_nothing_is_run_again"),
    Mutation(
        TICKS,
        "run.due < earliest.due",
        "run.due > earliest.due",
        "test_one_that_was_lost_goes_first_where_all_are_run",
    ),
    Mutation(
        TICKS,
        "outcome ~= 'lost' and whole(NOW)",
        "whole(NOW)",
        "test_a_run_that_was_lost_is_recorded_by_the_next_to_ask",
    ),
]


def step_of(file: str) -> str:
    """A step that is made of that file."""
    return CLAIM if file.startswith("shared/") else file


async def test_the_scripts_themselves_are_not_complained_of(redis, prefix) -> None:
    scripts = ScheduleScripts(redis, prefix)

    assert [name for name, check in CHECKS.items() if await fails(check, scripts)] == []


@pytest.mark.parametrize("file", FILES)
async def test_without_a_line_somebody_notices(redis, prefix, file: str) -> None:
    mutants = [(name, file, text) for name, text in lines_left_out(file, unless=SPARED)]
    living = await compiled(ScheduleScripts, redis, prefix, step_of(file), mutants)
    assert living

    assert await unnoticed(ScheduleScripts, redis, prefix, living, among=CHECKS) == []


@pytest.mark.long
async def test_with_a_line_altered_that_test_fails(redis, prefix) -> None:
    assert await surviving(ScheduleScripts, redis, prefix, MUTATIONS, CHECKS, CLAIM) == []
