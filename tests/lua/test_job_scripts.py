"""The scripts of jobs that run once: every branch, said twice, by the wrong one, over leavings.

A test that asks for `jobs` alone is also run on mutants of the scripts, by the tests at the end. The parts
that they share with semaphores are tried out there.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from aiolocks.kinds.uniquejob import JobSteps, TicketRun, enqueueing, withdrawing
from aiolocks.transport import SEATED, WAITING, Granted, Refused
from aiolocks.transport.request import MOST_KNOWN, Request
from tests.lua.job_scripts import JobScripts
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
from tests.lua.scripts import BELL, HOUR, MINUTE, QUEUE, WALK, about

pytestmark = pytest.mark.leaves_keys("aiolocks*:uniquejob*")  # without a ttl, where a test has put them there

ME, OTHER, THIRD, FOURTH = "a1" * 16, "b2" * 16, "c3" * 16, "d4" * 16
OLD, NEW = f"{'o' * 22}.{HOUR}", f"{'n' * 22}.{MINUTE}"
THIRD_TICKET = f"{'t' * 22}.{MINUTE}"
"""Tickets, with their ttls."""
SLACK = 1_000
"""Milliseconds that keys outlast what stands in them."""


@pytest.fixture
def jobs(redis, prefix) -> JobScripts:
    return JobScripts(redis, prefix)


def seat(token: str) -> str:
    return token[:16]


# -- the running slot ----------------------------------------------------------------------------------------


async def test_who_is_refused_is_told_who_runs_if_asked_for(jobs) -> None:
    await jobs.acquire(OTHER, metadata='{"a": 1}')

    granted, remaining, (now, value, token, left, lease) = await jobs.acquire(ME, flags="wh")

    assert (granted, value, token) == (0, 1, OTHER.encode())
    assert await jobs.is_now(now)
    assert remaining == left > MINUTE - 5_000
    assert lease == await jobs.redis.hget(jobs.leases, OTHER)
    assert len(await jobs.acquire(THIRD)) == 2


async def test_the_first_runs(jobs) -> None:
    granted, fencing, others, room = await jobs.acquire(ME, metadata='{"pid":1}', retention=MINUTE)

    assert (granted, others, room) == (1, 0, 0)
    assert await jobs.redis.hget(jobs.leases, ME) == b'1:%b:{"pid":1}' % fencing
    assert await jobs.redis.get(jobs.fence) == fencing
    assert await jobs.runs() == [ME]
    assert await jobs.lasts(jobs.holders, MINUTE + SLACK)
    assert await jobs.lasts(jobs.fence, MINUTE)
    assert await jobs.redis.hgetall(jobs.value) == {b"current": b"1"}
    assert await jobs.lasts(jobs.value, MINUTE + SLACK)
    assert set(await jobs.everything()) == {jobs.holders, jobs.leases, jobs.value, jobs.fence}


async def test_the_second_waits_and_is_told_for_how_long(jobs) -> None:
    await jobs.acquire(ME, ttl=MINUTE)

    refused, remaining = await jobs.acquire(OTHER)

    assert refused == 0
    assert about(remaining, MINUTE)
    assert await jobs.stand() == [seat(OTHER)]
    assert await jobs.states(OTHER) == [b""]
    assert await jobs.lasts(jobs.bell(OTHER), BELL)
    assert await jobs.lasts(jobs.queue, QUEUE)


async def test_said_twice_it_is_the_same_grant_with_its_ttl_set_anew(jobs) -> None:
    first = await jobs.acquire(ME, ttl=1000, retention=MINUTE)
    state = await jobs.state()

    assert await jobs.acquire(ME, ttl=MINUTE, retention=HOUR) == first
    assert await jobs.state() == state
    assert await jobs.lasts(jobs.holders, MINUTE + SLACK)
    assert await jobs.lasts(jobs.fence, HOUR)


async def test_fencing_tokens_rise(jobs) -> None:
    first = (await jobs.acquire(ME))[1]
    await jobs.release(ME)

    assert int((await jobs.acquire(OTHER))[1]) > int(first)


async def test_waiting_said_twice_is_one_place(jobs) -> None:
    await jobs.acquire(ME)
    await jobs.wait(OTHER, THIRD)

    assert (await jobs.acquire(OTHER))[0] == 0
    assert await jobs.stand() == [seat(OTHER), seat(THIRD)]


async def test_who_has_a_bell_that_is_gone_is_told_and_lives(jobs) -> None:
    await jobs.acquire(ME)

    assert jobs.bell(OTHER) in await jobs.acquire(OTHER, flags="wq")
    assert await jobs.states(OTHER) == [b""]


async def test_a_release_wakes_the_first_and_who_begins_leaves_the_queue(jobs) -> None:
    await jobs.acquire(ME)
    await jobs.wait(OTHER, THIRD)

    assert await jobs.release(ME) == [1, jobs.bell(OTHER)]
    assert (await jobs.acquire(OTHER, flags="wql"))[2] == 1
    assert await jobs.stand() == [seat(THIRD)]
    assert await jobs.states(OTHER, THIRD) == [None, b""]


async def test_who_begins_without_leaving_keeps_the_bell(jobs) -> None:
    """Others of its session have it too."""
    await jobs.acquire(ME)
    await jobs.acquire(OTHER, who="session")
    await jobs.acquire(THIRD, who="session")
    await jobs.release(ME)

    assert (await jobs.acquire(OTHER, who="session", flags="wq"))[0] == 1
    assert await jobs.stand() == [seat(THIRD)]
    assert await jobs.stands("session")


async def test_a_bell_that_nobody_shares_goes_from_a_long_queue_too(jobs) -> None:
    await jobs.acquire(ME)
    await jobs.wait(THIRD, *(f"{number:032x}" for number in range(WALK + 1)), OTHER)
    await jobs.sit(FOURTH, seat=seat(FOURTH))

    await jobs.release(OTHER, "rla")
    assert (await jobs.acquire(FOURTH, room=1, session=THIRD, flags="wqla"))[:2] == [2, b"f"]
    await jobs.release(ME)
    assert (await jobs.acquire(THIRD, flags="wqla"))[0] == 1

    assert await jobs.states(OTHER, THIRD, FOURTH) == [None, None, None]


async def test_nobody_passes_who_waits_and_he_is_woken(jobs) -> None:
    await jobs.acquire(ME)
    await jobs.wait(OTHER)
    await jobs.release(ME, "")  # tells nobody

    assert await jobs.acquire(THIRD) == [0, -2, jobs.bell(OTHER)]
    assert await jobs.stand() == [seat(OTHER), seat(THIRD)]
    assert await jobs.acquire(THIRD) == [0, -2]  # it is on its way


async def test_who_asks_is_not_woken_himself(jobs) -> None:
    await jobs.acquire(ME)
    await jobs.wait(OTHER, THIRD)
    await jobs.die(OTHER)
    await jobs.release(ME, "")

    assert (await jobs.acquire(THIRD, flags="wql"))[0] == 1


async def test_of_one_bell_anybody_may_go_first(jobs) -> None:
    """Of a session that waits for any number of runs, the first to ask is the first in turn."""
    await jobs.acquire(ME)
    await jobs.acquire(OTHER, who="session")
    await jobs.acquire(THIRD, who="session")
    await jobs.release(ME)

    assert (await jobs.acquire(THIRD, who="session", flags="wq"))[0] == 1


async def test_the_dead_are_passed_over(jobs) -> None:
    await jobs.acquire(ME)
    await jobs.wait(OTHER, THIRD)
    await jobs.die(OTHER)

    assert await jobs.release(ME) == [1, jobs.bell(THIRD)]


async def test_what_has_come_to_its_end_runs_no_more(jobs) -> None:
    await jobs.acquire(ME)
    await jobs.end(ME)

    assert await jobs.renew(ME) == 0
    assert await jobs.release(ME) == [0]
    await jobs.acquire(ME)
    await jobs.end(ME)
    assert (await jobs.acquire(OTHER))[0] == 1
    assert await jobs.runs() == [OTHER]


# -- several may wait
# ------------------------------------------------------------------------------------------


async def answers(jobs: JobScripts, *tokens: str, room: int = 1) -> list[bytes]:
    """Those who wait, having been knocked at, ask again and are refused; whom they have woken."""
    woken: list[bytes] = []
    for token in tokens:
        refused = await jobs.acquire(token, flags="wqlp", room=room)
        assert refused[0] == 0
        woken += [bell for bell in refused[2:] if bell != jobs.bell(token)]  # that hangs again
        assert await jobs.states(token) == [b""]
    return woken


async def test_with_no_room_to_wait_the_second_is_a_duplicate(jobs) -> None:
    await jobs.acquire(ME, room=0)

    assert await jobs.acquire(OTHER, room=0) == [2, b"f"]
    assert await jobs.stand() == []
    assert await jobs.states(OTHER) == [None]


async def test_one_too_many_is_a_duplicate_once_he_knows_that_the_others_live(jobs) -> None:
    await jobs.acquire(ME, room=2)
    await jobs.wait(OTHER, THIRD, room=2)

    assert (await jobs.acquire(FOURTH, room=2))[2:] == [jobs.bell(OTHER), jobs.bell(THIRD)]
    assert (await jobs.acquire(FOURTH, room=2, flags="wql"))[2:] == []  # they are on their way
    assert await answers(jobs, OTHER, room=2) == [jobs.bell(FOURTH)]
    await jobs.sit(FOURTH, seat=seat(FOURTH))
    assert (await jobs.acquire(FOURTH, room=2, flags="wqlp"))[0] == 0  # of one it is not sure yet
    assert await answers(jobs, THIRD, room=2) == [jobs.bell(FOURTH)]

    assert await jobs.acquire(FOURTH, room=2, flags="wqlp") == [2, b"f"]
    assert await jobs.stand() == [seat(OTHER), seat(THIRD)]
    assert await jobs.states(OTHER, THIRD, FOURTH) == [b"", b"", None]
    assert await jobs.may_wait() == {seat(OTHER), seat(THIRD)}
    assert jobs.bell(FOURTH) + seat(FOURTH).encode() not in await jobs.redis.hkeys(jobs.seen)
    assert (await jobs.acquire(FOURTH, room=3))[0] == 0


async def test_behind_others_of_its_session_it_takes_a_seat(jobs) -> None:
    assert await jobs.acquire(OTHER, flags="wb") == [0, -2]
    assert await jobs.stand() == [seat(OTHER)]
    assert (await jobs.acquire(OTHER, flags="wql"))[0] == 1


async def test_what_was_asked_before_he_came_is_no_sign_of_life(jobs) -> None:
    await jobs.acquire(ME, room=1)
    await jobs.wait(OTHER, room=1)
    await answers(jobs, OTHER)

    assert (await jobs.acquire(THIRD, room=1))[0] == 0
    await jobs.sit(OTHER, seat=seat(OTHER))  # nor is a bell: it may have been sent before
    assert (await jobs.acquire(THIRD, room=1, flags="wql"))[0] == 0
    await answers(jobs, OTHER)
    assert await jobs.acquire(THIRD, room=1, flags="wql") == [2, b"f"]


async def test_one_who_has_to_make_sure_is_no_sign_of_life_to_another(jobs) -> None:
    await jobs.acquire(ME, room=1)
    await jobs.wait(OTHER, room=1)
    await jobs.wait(THIRD, FOURTH, room=1)
    await jobs.die(OTHER)

    assert (await jobs.acquire(FOURTH, room=1, flags="wql"))[2:] == [jobs.bell(THIRD)]
    assert await answers(jobs, THIRD) == [jobs.bell(FOURTH)]
    await jobs.sit(FOURTH, seat=seat(FOURTH))
    assert await jobs.acquire(FOURTH, room=1, flags="wql") == [2, b"f"]


async def test_who_has_to_make_sure_wakes_no_other_who_has_to(jobs) -> None:
    await jobs.acquire(ME, room=1)
    await jobs.wait(OTHER, THIRD, FOURTH, room=1)

    assert (await jobs.acquire(FOURTH, room=1, flags="wql"))[2:] == []
    assert await jobs.states(OTHER, THIRD, FOURTH) == [b"rung", b"", b""]


async def test_who_has_to_make_sure_and_is_on_his_way_is_not_woken_again(jobs) -> None:
    await jobs.acquire(ME, room=1)
    await jobs.wait(OTHER, THIRD, room=1)

    assert await answers(jobs, OTHER) == [jobs.bell(THIRD)]
    assert await answers(jobs, OTHER) == []


async def test_who_may_wait_does_not_wake_those_who_may_too(jobs) -> None:
    await jobs.acquire(ME)
    await jobs.wait(OTHER, THIRD, FOURTH)

    assert await answers(jobs, OTHER, THIRD, FOURTH) == []


async def test_of_his_own_session_he_knows_that_it_lives(jobs) -> None:
    await jobs.acquire(ME, room=1)
    await jobs.wait(OTHER, room=1)

    assert await jobs.acquire(THIRD, room=1, session=OTHER) == [2, b"f"]
    assert await jobs.states(OTHER) == [b""]


async def test_one_of_its_own_session_that_has_to_make_sure_takes_no_place_from_it(jobs) -> None:
    """The one before is about to be turned away, because of a run that began before the newcomer came."""
    await jobs.acquire(ME, room=1)
    await jobs.wait(OTHER, THIRD, room=1)
    await jobs.release(ME)
    assert (await jobs.acquire(OTHER, room=1, flags="wql"))[0] == 1

    assert (await jobs.acquire(FOURTH, room=1, session=THIRD))[2:] == [jobs.bell(THIRD)]
    assert await jobs.acquire(THIRD, room=1, flags="wql") == [2, b"f"]
    assert (await jobs.acquire(FOURTH, room=1, session=THIRD, flags="wql"))[0] == 0
    assert await jobs.may_wait() == {seat(FOURTH)}


async def test_a_ticket_that_waits_takes_no_place_for_it_may_have_nothing_to_run(jobs) -> None:
    """The update of the one after it came during the run, and no run would follow for it."""
    await jobs.enqueue(OLD)
    await jobs.perform(ME, OLD)
    await jobs.wait(OTHER, ticket=OLD, begin="k")

    assert (await jobs.acquire(THIRD, room=1, session=OTHER))[2:] == []
    await jobs.sit(THIRD, seat=seat(THIRD))
    assert await jobs.may_wait() == {seat(THIRD)}
    assert await jobs.acquire(FOURTH, room=1, session=THIRD) == [2, b"f"]  # that one does run

    await jobs.release(ME, "rdf", ticket=OLD)
    assert await jobs.perform(OTHER, OLD, flags="wql") == [2, b"d", jobs.bell(THIRD)]
    assert (await jobs.acquire(THIRD, room=1, flags="wql"))[0] == 1


async def test_one_that_is_not_to_wait_for_a_run_waits_for_its_turn_where_a_slot_is_free(jobs) -> None:
    """The one before it has a ticket, and may have nothing to run."""
    await jobs.enqueue(OLD)
    await jobs.perform(ME, OLD)
    await jobs.wait(OTHER, ticket=OLD, begin="k")
    assert await jobs.acquire(THIRD, room=0) == [2, b"f"]
    await jobs.release(ME, "rdf", ticket=OLD)

    assert (await jobs.acquire(THIRD, room=0))[:2] == [0, -2]
    assert (await jobs.perform(OTHER, OLD, flags="wql"))[:2] == [2, b"d"]
    assert (await jobs.acquire(THIRD, room=0, flags="wql"))[0] == 1


async def test_a_ticket_that_waits_tells_that_it_is_one(jobs) -> None:
    """One that has not asked yet is taken for a waiter like any other, until it does."""
    await jobs.enqueue(OLD)
    await jobs.perform(ME, OLD)
    await jobs.sit(OTHER, seat=seat(OTHER))
    await jobs.wait(THIRD, room=1)
    assert await jobs.may_wait() == set()

    refused = await jobs.perform(OTHER, OLD, flags="wqlp")
    assert jobs.bell(THIRD) in refused[2:]
    assert (await jobs.acquire(THIRD, room=1, flags="wqlp"))[0] == 0
    assert await jobs.may_wait() == {seat(THIRD)}


async def test_who_waits_may_go_on_waiting(jobs) -> None:
    await jobs.acquire(ME, room=1)
    await jobs.wait(OTHER, room=1)
    for _ in range(3):
        assert (await jobs.acquire(OTHER, room=1, flags="wql"))[0] == 0


async def test_the_place_is_free_as_soon_as_he_begins(jobs) -> None:
    await jobs.acquire(ME, room=1)
    await jobs.wait(OTHER, room=1)
    await jobs.release(ME)

    await jobs.acquire(OTHER, room=1, flags="wql")

    assert not await jobs.redis.exists(jobs.seen)
    await jobs.wait(THIRD, room=1)
    assert await jobs.acquire(FOURTH, room=1, session=THIRD) == [2, b"f"]


async def test_a_run_that_begins_after_he_came_is_his_as_well(jobs) -> None:
    """It stood there to make sure of the one that has begun meanwhile."""
    await jobs.acquire(ME, room=1)
    await jobs.wait(OTHER, room=1)
    await jobs.wait(THIRD, room=1)
    await jobs.release(ME)
    assert (await jobs.acquire(OTHER, room=1, flags="wql"))[0] == 1

    assert await jobs.acquire(THIRD, room=1, flags="wql") == [2, b"f"]
    assert (await jobs.acquire(FOURTH, room=1))[0] == 0  # a newcomer now waits for one of its own


async def test_a_run_that_asks_again_began_when_it_did(jobs) -> None:
    """Its first answer was lost; another one came meanwhile, to whom that run is of no use."""
    await jobs.acquire(ME, room=1)
    await jobs.wait(OTHER, room=1)
    await jobs.wait(THIRD, room=1)
    assert (await jobs.acquire(ME, room=1))[0] == 1
    await jobs.die(OTHER)

    assert (await jobs.acquire(THIRD, room=1, flags="wql"))[0] == 0
    assert seat(THIRD) in await jobs.may_wait()


async def test_who_comes_after_a_run_began_is_not_one_of_those_who_came_before(jobs) -> None:
    await jobs.acquire(ME, room=2)
    await jobs.wait(OTHER, THIRD, room=2)
    await jobs.release(ME)
    await jobs.acquire(OTHER, room=2, flags="wql")

    assert (await jobs.acquire(FOURTH, room=2))[0] == 0
    assert await jobs.may_wait() == {seat(THIRD), seat(FOURTH)}


async def test_a_duplicate_that_leaves_is_no_run(jobs) -> None:
    await jobs.acquire(ME, room=1)
    await jobs.wait(OTHER, room=1)
    await jobs.wait(THIRD, FOURTH, room=1)
    await jobs.release(FOURTH, "rl")
    await jobs.die(OTHER)

    assert (await jobs.acquire(THIRD, room=1, flags="wql"))[0] == 0


async def test_a_clock_that_was_set_back_turns_nobody_away(jobs) -> None:
    """Neither does a fence that is ahead of it."""
    await jobs.redis.set(jobs.fence, 9_007_199_254_740_000)
    await jobs.acquire(ME, room=1)
    await jobs.wait(OTHER, room=1)
    await jobs.wait(THIRD, room=1)
    await jobs.die(OTHER)

    assert (await jobs.acquire(THIRD, room=1, flags="wql"))[0] == 0
    assert seat(THIRD) in await jobs.may_wait()


async def test_a_run_that_begins_takes_no_place_from_who_may_wait(jobs) -> None:
    await jobs.acquire(ME, room=2)
    await jobs.wait(OTHER, THIRD, room=2)
    await jobs.release(ME)
    await jobs.acquire(OTHER, room=2, flags="wql")

    assert (await jobs.acquire(THIRD, room=2, flags="wql"))[0] == 0
    await jobs.release(OTHER)
    assert (await jobs.acquire(THIRD, room=2, flags="wql"))[0] == 1


async def test_the_place_of_a_dead_one_is_free(jobs) -> None:
    await jobs.acquire(ME, room=1)
    await jobs.wait(OTHER, room=1)
    await jobs.die(OTHER)

    await jobs.wait(THIRD, room=1)
    assert await jobs.stand() == [seat(THIRD)]


async def test_who_came_while_a_dead_one_stood_there_has_his_place_then(jobs) -> None:
    await jobs.acquire(ME, room=1)
    await jobs.wait(OTHER, room=1)
    await jobs.wait(THIRD, room=1)
    await jobs.die(OTHER)

    assert (await jobs.acquire(THIRD, room=1, flags="wql"))[0] == 0
    assert seat(THIRD) in await jobs.may_wait()


async def test_who_was_taken_for_dead_and_sits_down_behind_another_goes_on(jobs) -> None:
    """It was told that it may wait: to wait is never wrong."""
    await jobs.acquire(ME, room=1)
    await jobs.wait(OTHER, room=1)
    await jobs.die(OTHER)
    await jobs.wait(THIRD, room=1)
    await jobs.sit(OTHER, seat=seat(OTHER))

    refused, _, *knocked = await jobs.acquire(OTHER, room=1, flags="wql")
    assert (refused, knocked) == (0, [])
    assert await jobs.stand() == [seat(THIRD), seat(OTHER)]


async def test_a_duplicate_who_finds_it_free_wakes_who_waits(jobs) -> None:
    await jobs.acquire(ME, room=1)
    await jobs.wait(OTHER, room=1)
    await jobs.release(ME, "")

    assert await jobs.acquire(THIRD, room=1, session=OTHER) == [2, b"f", jobs.bell(OTHER)]


async def test_nobody_is_a_duplicate_where_there_is_nobody_to_wait_for(jobs) -> None:
    assert (await jobs.acquire(ME, room=0))[0] == 1


async def test_those_who_are_seen_are_forgotten_long_after_they_slept_last(jobs) -> None:
    await jobs.acquire(ME, room=1)
    await jobs.wait(OTHER, room=1)

    assert await jobs.lasts(jobs.seen, 10 * MINUTE)
    await jobs.release(OTHER, "rl")
    assert not await jobs.redis.exists(jobs.seen)


async def test_the_last_run_forgets_those_who_waited_and_died(jobs) -> None:
    await jobs.acquire(ME, room=2)
    await jobs.wait(OTHER, THIRD, room=2)
    await jobs.release(ME)
    await jobs.acquire(OTHER, room=2, flags="wql")
    await jobs.die(THIRD)

    assert await jobs.release(OTHER) == [1]
    assert not await jobs.redis.exists(jobs.seen)


# -- several at once
# -------------------------------------------------------------------------------------------


async def test_so_many_run_at_once_and_the_next_waits(jobs) -> None:
    assert (await jobs.acquire(ME, limit=2, ttl=HOUR))[0] == 1
    assert (await jobs.acquire(OTHER, limit=2, ttl=MINUTE))[0] == 1

    refused, remaining = await jobs.acquire(THIRD, limit=2)
    assert refused == 0
    assert about(remaining, MINUTE)  # of the lease that ends first
    assert await jobs.acquire(FOURTH, limit=2, room=0) == [2, b"f"]
    assert await jobs.runs() == [OTHER, ME]
    assert await jobs.release(ME) == [1, jobs.bell(THIRD)]
    assert (await jobs.acquire(THIRD, limit=2, flags="wql"))[0] == 1


async def test_who_begins_wakes_the_next_while_there_are_slots(jobs) -> None:
    for token in (ME, OTHER):
        await jobs.acquire(token, limit=2)
    await jobs.wait(THIRD, FOURTH, limit=2)
    for token in (ME, OTHER):
        await jobs.release(token, "")

    assert (await jobs.acquire(THIRD, limit=2, flags="wql"))[2:] == [1, 0, jobs.bell(FOURTH)]
    assert (await jobs.acquire(FOURTH, limit=2, flags="wql"))[2:] == [0, 0]


async def test_nobody_passes_who_waits_although_there_is_a_slot(jobs) -> None:
    for token in (ME, OTHER):
        await jobs.acquire(token, limit=2)
    await jobs.wait(THIRD, limit=2)
    await jobs.release(ME, "")

    assert await jobs.acquire(FOURTH, limit=2) == [0, -2, jobs.bell(THIRD)]


async def test_with_another_limit_it_is_refused_and_nothing_changes(jobs) -> None:
    for limit, other in ((1, 3), (3, 1), (2, 3)):
        await jobs.clear()
        await jobs.acquire(ME, limit=limit)
        state = await jobs.state()

        assert await jobs.acquire(OTHER, limit=other) == [3, limit]
        assert await jobs.state() == state


async def test_where_none_runs_any_more_any_limit_may_begin(jobs) -> None:
    for how in ("released", "lost"):
        await jobs.clear()
        await jobs.acquire(ME, limit=1)
        await (jobs.release(ME) if how == "released" else jobs.end(ME))
        for token in (OTHER, THIRD):
            assert (await jobs.acquire(token, limit=2))[0] == 1
        assert await jobs.acquire(ME, limit=1) == [3, 2]


async def test_the_limit_lasts_as_long_as_the_runs(jobs) -> None:
    await jobs.acquire(ME, limit=3, ttl=MINUTE)
    assert await jobs.lasts(jobs.value, MINUTE + SLACK)
    await jobs.acquire(OTHER, limit=3, ttl=1000)
    assert await jobs.lasts(jobs.value, MINUTE + SLACK)
    await jobs.renew(ME, limit=3, ttl=2 * MINUTE)
    assert await jobs.lasts(jobs.value, 2 * MINUTE + SLACK)


async def test_a_limit_that_was_lost_is_back_with_the_next_renewal(jobs) -> None:
    await jobs.acquire(ME, limit=2)
    await jobs.redis.delete(jobs.value)

    await jobs.renew(ME, limit=2)
    assert (await jobs.acquire(OTHER, limit=2))[0] == 1


async def test_a_ticket_never_runs_beside_itself(jobs) -> None:
    await jobs.enqueue(OLD)
    await jobs.acquire(ME, limit=3, ttl=HOUR)
    await jobs.acquire(OTHER, limit=3, ttl=1000)
    await jobs.perform(THIRD, OLD, limit=3, ttl=MINUTE)
    await jobs.release(OTHER)

    refused, remaining = await jobs.perform(FOURTH, OLD, limit=3)
    assert refused == 0
    assert about(remaining, MINUTE)  # of the lease that it waits for
    await jobs.release(THIRD, "rdf", ticket=OLD)
    assert await jobs.perform(FOURTH, OLD, limit=3, flags="wql") == [2, b"d"]


async def test_a_ticket_whose_run_has_ended_runs_again_although_others_run(jobs) -> None:
    for how in ("released", "lost"):
        await jobs.clear()
        await jobs.acquire(ME, limit=3)
        await jobs.perform(OTHER, OLD, limit=3)
        if how == "lost":
            await jobs.end(OTHER)
        else:
            await jobs.release(OTHER, "r", ticket=OLD)
            assert not await jobs.redis.exists(jobs.run_of(OLD))
        assert (await jobs.perform(THIRD, OLD, limit=3))[0] == 1


async def test_what_runs_a_ticket_is_known_for_as_long_as_its_lease(jobs) -> None:
    await jobs.perform(ME, OLD, ttl=1000)
    assert await jobs.redis.get(jobs.run_of(OLD)) == ME.encode()
    assert await jobs.lasts(jobs.run_of(OLD), 1000)

    await jobs.renew(ME, ttl=MINUTE, ticket=OLD)
    assert await jobs.lasts(jobs.run_of(OLD), MINUTE)
    await jobs.release(OTHER, "r", ticket=OLD)
    assert await jobs.redis.exists(jobs.run_of(OLD))
    await jobs.end(ME)  # by force, or late
    assert await jobs.release(ME, "r", ticket=OLD) == [0]
    assert not await jobs.redis.exists(jobs.run_of(OLD))


# -- enqueue -------------------------------------------------------------------------------------------------


async def test_the_first_ticket_owns_the_key(jobs) -> None:
    assert await jobs.enqueue(OLD) == -1
    assert await jobs.owns() == OLD
    assert await jobs.lasts(jobs.owner, HOUR)
    assert set(await jobs.everything()) == {jobs.owner, jobs.about}


async def test_the_second_is_a_conflict_and_changes_nothing(jobs) -> None:
    await jobs.enqueue(OLD)
    state = await jobs.state()

    assert about(await jobs.enqueue(NEW), HOUR)
    assert await jobs.state() == state
    assert await jobs.lasts(jobs.owner, HOUR)


async def test_an_owner_that_is_no_ticket_is_refused_and_stays(jobs) -> None:
    for value in ("", "hello", "1.5", f"{'o' * 21}.17", f"{'o' * 22}.", f"{'o' * 22}.x"):
        await jobs.redis.set(jobs.owner, value)
        with pytest.raises(ResponseError, match="FOREIGN 1"):
            await jobs.enqueue(OLD)
        with pytest.raises(ResponseError, match="FOREIGN 7"):
            await jobs.acquire(ME, ticket=OLD, begin="k")
        assert await jobs.redis.get(jobs.owner) == value.encode()


async def test_a_run_and_a_limit_of_others_are_refused_and_stay(jobs) -> None:
    await jobs.redis.set(jobs.run_of(OLD), "hello")
    with pytest.raises(ResponseError, match="FOREIGN 10"):
        await jobs.perform(ME, OLD)
    assert await jobs.redis.get(jobs.run_of(OLD)) == b"hello"

    await jobs.acquire(OTHER)
    await jobs.redis.hset(jobs.value, "current", "hello")
    with pytest.raises(ResponseError, match="FOREIGN 3"):
        await jobs.acquire(ME)


async def test_enqueue_said_twice_is_the_same_success(jobs) -> None:
    await jobs.enqueue(OLD, 1000)

    assert await jobs.enqueue(OLD, MINUTE) == -1
    assert await jobs.lasts(jobs.owner, MINUTE)


async def test_replacing_makes_a_duplicate_of_the_older_one(jobs) -> None:
    await jobs.enqueue(OLD)

    for _ in range(2):
        assert await jobs.enqueue(NEW, flag="r") == -1
        assert await jobs.owns() == NEW
        over = await jobs.are_over()
        assert list(over) == [f"s{OLD}"]
        assert about(over[f"s{OLD}"], HOUR)
    assert await jobs.lasts(jobs.over, HOUR)
    assert await jobs.perform(ME, OLD) == [2, b"s"]


async def test_what_was_replaced_stays_a_duplicate_when_the_newer_one_is_gone(jobs) -> None:
    await jobs.enqueue(OLD)
    await jobs.enqueue(NEW, flag="r")
    await jobs.redis.delete(jobs.owner)

    assert await jobs.perform(ME, OLD) == [2, b"s"]
    assert (await jobs.perform(ME, NEW))[0] == 1


async def test_withdrawn_the_key_is_free(jobs) -> None:
    await jobs.enqueue(OLD)

    assert [await jobs.withdraw(OLD), await jobs.withdraw(OLD)] == [1, 0]
    assert await jobs.everything() == []


async def test_withdrawn_by_another_changes_nothing(jobs) -> None:
    await jobs.enqueue(OLD)
    await jobs.enqueue(THIRD_TICKET, flag="r")
    state = await jobs.state()

    assert await jobs.withdraw(NEW) == 0
    assert await jobs.state() == state


async def test_withdrawn_the_one_before_has_its_place_again(jobs) -> None:
    await jobs.enqueue(OLD)
    await jobs.redis.pexpire(jobs.owner, 5 * MINUTE)
    await jobs.enqueue(NEW, flag="r")

    assert await jobs.withdraw(NEW) == 1
    assert await jobs.owns() == OLD
    assert await jobs.lasts(jobs.owner, 5 * MINUTE)
    assert await jobs.are_over() == {}
    assert set(await jobs.everything()) == {jobs.owner, jobs.about}
    assert (await jobs.perform(ME, OLD))[0] == 1


async def test_withdrawn_behind_one_that_was_done_meanwhile_the_key_is_free(jobs) -> None:
    await jobs.enqueue(OLD)
    await jobs.perform(ME, OLD)
    await jobs.enqueue(NEW, flag="r")
    await jobs.release(ME, "rdf", ticket=OLD)

    assert await jobs.withdraw(NEW) == 1
    assert await jobs.owns() is None
    assert list(await jobs.are_over()) == [f"d{OLD}"]


@pytest.mark.parametrize("meanwhile", [False, True])
async def test_withdrawn_behind_one_that_was_done_and_owns_its_key_for_its_time_that_has_it_again(
    jobs, meanwhile
) -> None:
    await jobs.enqueue(OLD)
    await jobs.perform(ME, OLD, "ke")
    if meanwhile:
        await jobs.enqueue(NEW, flag="r")
    await jobs.release(ME, "rde", ticket=OLD)
    if not meanwhile:
        await jobs.enqueue(NEW, flag="r")

    assert await jobs.withdraw(NEW) == 1
    assert await jobs.owns() == OLD
    assert await jobs.lasts(jobs.owner, HOUR)
    assert set(await jobs.are_over()) == {f"d{OLD}", f"e{OLD}"}


async def test_withdrawn_one_that_found_the_key_free_leaves_it_free(jobs) -> None:
    """For any ticket that was replaced before that."""
    await jobs.enqueue(OLD)
    await jobs.enqueue(NEW, flag="r")
    await jobs.perform(ME, NEW, "g")
    await jobs.release(ME, "rd", ticket=NEW)
    await jobs.enqueue(THIRD_TICKET)

    await jobs.withdraw(THIRD_TICKET)
    assert await jobs.owns() is None


async def test_what_is_replaced_at_its_last_moment_has_a_ttl(jobs) -> None:
    """A ttl of less than a millisecond reads as 0."""
    for _ in range(20):
        await jobs.enqueue(OLD, 1)
        await jobs.enqueue(NEW, flag="r")
        await jobs.clear()
    await jobs.redis.set(jobs.owner, OLD)  # by hand, without any
    assert await jobs.enqueue(NEW) == 0
    await jobs.enqueue(NEW, flag="r")
    await jobs.redis.delete(jobs.before)
    await jobs.redis.zadd(jobs.before, {f"{OLD}:1": 1})  # that was long ago
    assert await jobs.withdraw(NEW) == 1
    assert await jobs.owns() in (OLD, None)


async def test_it_is_said_that_the_key_of_another_has_no_ttl(jobs) -> None:
    await jobs.enqueue(OLD)
    assert await jobs.perform(ME, NEW) == [2, b"o"]
    await jobs.redis.persist(jobs.owner)
    assert await jobs.perform(ME, NEW) == [2, b"e"]
    assert await jobs.enqueue(NEW) == 0
    await jobs.enqueue(NEW, flag="r")
    assert await jobs.redis.pttl(jobs.before) != -1  # it is not kept for ever because that was
    assert (await jobs.perform(ME, NEW))[0] == 1


async def test_replaced_before_it_is_said_again_the_newer_one_stays(jobs) -> None:
    """Its answer was lost: a ticket that is a duplicate by now must not make one of the other."""
    for ticket in (OLD, NEW):
        await jobs.enqueue(ticket, flag="r")
    state = await jobs.state()

    assert await jobs.enqueue(OLD, flag="r") == -1
    assert await jobs.state() == state
    assert (await jobs.perform(ME, NEW))[0] == 1


async def test_withdrawn_one_by_one_in_any_order_the_first_has_its_place_again(jobs) -> None:
    newer = [f"{letter * 22}.{MINUTE}" for letter in "abc"]
    for order in itertools.permutations(newer):
        await jobs.clear()
        await jobs.enqueue(OLD)
        for ticket in newer:
            await jobs.enqueue(ticket, flag="r")
        for ticket in order:
            await jobs.withdraw(ticket)

        assert await jobs.owns() == OLD
        assert await jobs.lasts(jobs.owner, HOUR)
        assert not await jobs.redis.exists(jobs.before)
        assert (await jobs.perform(ME, OLD))[0] == 1


TWENTY = [f"{number:022}.{MINUTE}" for number in range(20)]


async def age(jobs: JobScripts, ms: int) -> None:
    """All that was replaced until now, was replaced that much earlier."""
    for entry in await jobs.redis.zrange(jobs.before, 0, -1):
        await jobs.redis.zincrby(jobs.before, -1000 * ms, entry)


async def test_however_many_were_replaced_the_first_has_its_place_again_when_all_are_taken_back(jobs) -> None:
    await jobs.enqueue(OLD)
    for ticket in TWENTY:
        await jobs.enqueue(ticket, flag="r")
    for ticket in TWENTY:
        await jobs.withdraw(ticket)

    assert await jobs.owns() == OLD
    assert await jobs.lasts(jobs.owner, HOUR)


async def test_of_those_that_were_replaced_long_ago_only_the_last_are_remembered(jobs) -> None:
    for number, ticket in enumerate(TWENTY[:5]):
        await jobs.enqueue(ticket, flag="r")
        assert await jobs.redis.zcard(jobs.before) == number
        await age(jobs, MINUTE)
    await jobs.clear()
    for ticket in TWENTY[:-1]:
        await jobs.enqueue(ticket, flag="r")
    await age(jobs, MINUTE - 5_000)
    await jobs.enqueue(TWENTY[-1], flag="r")
    assert await jobs.redis.zcard(jobs.before) == 19

    await age(jobs, 5_000)
    for ticket, number in ((OLD, 18), (NEW, 17), (THIRD_TICKET, 16), (f"{'u' * 22}.{MINUTE}", 16)):
        await jobs.enqueue(ticket, flag="r")
        assert await jobs.redis.zcard(jobs.before) == number
    assert await jobs.lasts(jobs.before, HOUR)


async def test_no_ticket_takes_a_place_if_one_that_may_be_taken_back_had_to_be_forgotten(jobs) -> None:
    for ticket in TWENTY[:18]:
        await jobs.enqueue(ticket, flag="r")
    state = await jobs.state()

    with pytest.raises(ResponseError, match="CROWDED 17"):
        await jobs.enqueue(OLD, flag="r", most=17)
    assert await jobs.state() == state
    assert about(await jobs.enqueue(OLD, most=17), MINUTE)
    await age(jobs, MINUTE)
    assert await jobs.enqueue(OLD, flag="r", most=17) == -1


async def lapse(jobs: JobScripts) -> None:
    """The own time of the ticket with its key is over."""
    assert await jobs.redis.delete(jobs.owner) == 1


async def test_withdrawn_after_its_own_time_the_one_before_has_its_place_again(jobs) -> None:
    await jobs.enqueue(OLD)
    await jobs.enqueue(NEW, flag="r")
    await lapse(jobs)

    assert [await jobs.withdraw(NEW), await jobs.withdraw(NEW)] == [1, 0]
    assert await jobs.owns() == OLD
    assert await jobs.lasts(jobs.owner, HOUR)
    assert (await jobs.perform(ME, OLD))[0] == 1


async def test_withdrawn_after_its_own_time_it_leaves_the_key_to_one_that_has_come_since(jobs) -> None:
    await jobs.enqueue(OLD)
    await jobs.enqueue(NEW, flag="r")
    await lapse(jobs)
    await jobs.enqueue(THIRD_TICKET)

    assert await jobs.withdraw(NEW) == 0
    assert await jobs.owns() == THIRD_TICKET


async def test_withdrawn_after_its_own_time_it_leaves_the_key_to_one_that_runs(jobs) -> None:
    await jobs.enqueue(NEW)
    await lapse(jobs)
    await jobs.perform(ME, OLD)

    assert await jobs.withdraw(NEW) == 0
    assert await jobs.owns() == OLD


async def test_withdrawn_below_one_whose_own_time_is_over_changes_nothing_for_the_first(jobs) -> None:
    for ticket in (OLD, NEW, THIRD_TICKET):
        await jobs.enqueue(ticket, flag="r")
    await lapse(jobs)

    assert [await jobs.withdraw(NEW), await jobs.withdraw(NEW)] == [0, 0]
    assert await jobs.owns() is None
    assert await jobs.perform(ME, OLD) == [2, b"s"]
    assert await jobs.withdraw(THIRD_TICKET) == 1
    assert await jobs.owns() == OLD


async def test_sent_again_after_its_own_time_it_still_has_the_place_of_the_one_before(jobs) -> None:
    await jobs.enqueue(OLD)
    await jobs.enqueue(NEW, flag="r")
    await lapse(jobs)

    assert await jobs.enqueue(NEW, flag="r") == -1
    assert await jobs.withdraw(NEW) == 1
    assert await jobs.owns() == OLD


async def test_a_short_ticket_is_known_for_as_long_as_a_request_may_be_sent_again(jobs) -> None:
    short = f"{'s' * 22}.50"
    await jobs.enqueue(short)
    await jobs.enqueue(NEW, flag="r")
    assert about((await jobs.are_over())[f"s{short}"], MINUTE)
    assert await jobs.lasts(jobs.over, MINUTE)

    await jobs.clear()
    await jobs.perform(ME, short)
    await jobs.release(ME, "rdf", ticket=short, known=MINUTE)
    assert about((await jobs.are_over())[f"d{short}"], MINUTE)
    assert await jobs.lasts(jobs.over, MINUTE)


# -- metadata of tickets -------------------------------------------------------------------------------------


async def test_metadata_stand_beside_the_ticket_for_as_long_as_it_owns_the_key(jobs) -> None:
    await jobs.enqueue(OLD, 1000, metadata='{"a":1}')
    await jobs.enqueue(OLD, 2000, metadata='{"a":1}')
    assert await jobs.stands_beside() == {OLD: '{"a":1}'}
    assert await jobs.lasts(jobs.about, 2000)

    await jobs.perform(ME, OLD, ttl=MINUTE)
    assert await jobs.lasts(jobs.about, MINUTE)
    await jobs.renew(ME, ttl=2 * MINUTE, ticket=OLD)
    assert await jobs.lasts(jobs.about, 2 * MINUTE)
    await jobs.release(ME, "rk", ticket=OLD)
    assert await jobs.lasts(jobs.about, HOUR)
    await jobs.perform(ME, OLD)
    await jobs.release(ME, "rdf", ticket=OLD)
    assert await jobs.stands_beside() == {}


async def test_metadata_of_a_ticket_that_gives_up_its_key_are_gone(jobs) -> None:
    await jobs.enqueue(OLD)
    await jobs.perform(ME, OLD, "g")
    assert await jobs.stands_beside() == {}


async def test_metadata_of_one_that_was_replaced_are_there_if_it_gets_the_key_back(jobs) -> None:
    await jobs.enqueue(OLD, metadata='{"a":1}')
    await jobs.enqueue(NEW, flag="r", metadata='{"b":2}')
    assert await jobs.lasts(jobs.about, HOUR)
    await jobs.withdraw(NEW)
    assert await jobs.stands_beside() == {OLD: '{"a":1}'}


async def test_metadata_of_what_is_over_is_not_kept(jobs) -> None:
    tickets = TWENTY
    for ticket in tickets[:-2]:
        await jobs.enqueue(ticket, flag="r")
    await age(jobs, MINUTE)
    for ticket in tickets[-2:]:
        await jobs.enqueue(ticket, flag="r")
    assert set(await jobs.stands_beside()) == set(tickets[-17:])  # the owner, and those that may get it back
    await jobs.withdraw(tickets[-2])
    assert tickets[-2] not in await jobs.stands_beside()
    await jobs.redis.delete(jobs.owner)
    await jobs.enqueue(OLD)
    assert set(await jobs.stands_beside()) == {OLD}


# -- perform -------------------------------------------------------------------------------------------------


async def test_a_run_that_gives_up_the_key_lets_others_enqueue(jobs) -> None:
    await jobs.enqueue(OLD)

    assert (await jobs.perform(ME, OLD, "g"))[0] == 1
    assert await jobs.owns() is None
    assert await jobs.enqueue(NEW) == -1


async def test_said_twice_what_was_given_up_and_taken_by_another_is_still_granted(jobs) -> None:
    await jobs.enqueue(OLD)
    first = await jobs.perform(ME, OLD, "g")
    await jobs.enqueue(NEW)

    assert await jobs.perform(ME, OLD, "g") == first
    assert await jobs.owns() == NEW


async def test_a_run_that_keeps_the_key_keeps_its_time(jobs) -> None:
    await jobs.enqueue(OLD)

    assert (await jobs.perform(ME, OLD))[0] == 1
    assert await jobs.owns() == OLD
    assert await jobs.lasts(jobs.owner, HOUR)


async def test_a_run_that_keeps_the_key_keeps_it_for_as_long_as_it_lasts(jobs) -> None:
    await jobs.enqueue(OLD, 1000)

    await jobs.perform(ME, OLD, ttl=MINUTE)
    assert await jobs.lasts(jobs.owner, MINUTE)
    assert await jobs.renew(ME, ttl=2 * MINUTE, ticket=OLD) == 1
    assert await jobs.lasts(jobs.owner, 2 * MINUTE)


async def test_a_ticket_that_lapsed_runs_and_those_that_keep_have_their_key_again(jobs) -> None:
    assert (await jobs.perform(ME, OLD, "k"))[0] == 1
    assert await jobs.owns() == OLD
    assert await jobs.lasts(jobs.owner, MINUTE)
    await jobs.clear()

    assert (await jobs.perform(ME, OLD, "g"))[0] == 1
    assert await jobs.owns() is None


async def test_a_ticket_whose_key_another_owns_is_a_duplicate(jobs) -> None:
    await jobs.enqueue(NEW)
    state = await jobs.state()

    for begin in "gk":
        assert await jobs.perform(ME, OLD, begin) == [2, b"o"]
    assert await jobs.state() == state


async def test_while_one_runs_the_same_ticket_waits_and_then_is_a_duplicate(jobs) -> None:
    await jobs.enqueue(OLD)
    await jobs.perform(ME, OLD)
    await jobs.wait(OTHER, THIRD, ticket=OLD, begin="k")

    assert await jobs.release(ME, "rdf", ticket=OLD) == [1, jobs.bell(OTHER)]
    assert await jobs.perform(OTHER, OLD, flags="wql") == [2, b"d", jobs.bell(THIRD)]
    assert await jobs.perform(THIRD, OLD, flags="wql") == [2, b"d"]
    assert await jobs.stand() == []
    assert await jobs.states(OTHER, THIRD) == [None, None]


async def test_who_waits_for_what_failed_runs_it(jobs) -> None:
    await jobs.enqueue(OLD)
    await jobs.perform(ME, OLD)
    await jobs.wait(OTHER, ticket=OLD, begin="k")

    await jobs.release(ME, "rk", ticket=OLD)
    assert (await jobs.perform(OTHER, OLD, flags="wql"))[0] == 1


async def test_a_ticket_is_a_duplicate_at_once_although_another_runs(jobs) -> None:
    await jobs.enqueue(NEW)
    await jobs.perform(ME, NEW)

    assert await jobs.perform(OTHER, OLD) == [2, b"o"]
    assert await jobs.stand() == []


async def test_what_is_remembered_is_forgotten_in_time(jobs) -> None:
    seconds, _ = await jobs.redis.time()
    await jobs.redis.zadd(jobs.over, {f"d{OLD}": seconds * 1000 - 1, f"s{OLD}": 1})

    assert (await jobs.perform(ME, OLD))[0] == 1
    await jobs.release(ME, "rd", ticket=NEW)
    assert list(await jobs.are_over()) == [f"d{NEW}"]


async def test_without_a_ticket_nothing_is_owned_or_remembered(jobs) -> None:
    await jobs.enqueue(OLD)
    await jobs.redis.zadd(jobs.over, {"d": 9e15, "s": 9e15})

    assert (await jobs.acquire(ME))[0] == 1
    assert await jobs.renew(ME) == 1
    assert await jobs.release(ME) == [1]
    assert await jobs.owns() == OLD


async def test_one_that_gave_up_its_key_runs_again_although_another_owns_it(jobs) -> None:
    await jobs.enqueue(OLD)
    await jobs.perform(ME, OLD, "g")
    await jobs.enqueue(NEW)
    await jobs.release(ME, "r", ticket=OLD)

    assert (await jobs.perform(OTHER, OLD, "g"))[0] == 1
    assert await jobs.owns() == NEW
    assert await jobs.lasts(jobs.owner, MINUTE)
    await jobs.release(OTHER, "rd", ticket=OLD)
    assert await jobs.perform(OTHER, OLD, "g") == [2, b"d"]
    assert (await jobs.perform(OTHER, NEW, "g"))[0] == 1


async def test_that_it_has_begun_is_remembered_for_the_ttl_of_the_ticket_or_until_it_is_done(jobs) -> None:
    for begin, begun in (("g", [f"b{OLD}"]), ("k", [])):
        await jobs.clear()
        await jobs.enqueue(OLD, 1000)
        await jobs.perform(ME, OLD, begin)
        assert list(await jobs.are_over()) == begun
        assert not begun or await jobs.lasts(jobs.over, HOUR)
        await jobs.release(ME, "rd", ticket=OLD)
        assert list(await jobs.are_over()) == [f"d{OLD}"]


async def test_one_that_began_too_long_ago_is_a_duplicate_of_the_ticket_that_owns_the_key(jobs) -> None:
    await jobs.redis.zadd(jobs.over, {f"b{OLD}": 1})
    await jobs.enqueue(NEW)

    assert await jobs.perform(ME, OLD, "g") == [2, b"o"]


# -- the end of a run ----------------------------------------------------------------------------------------


async def test_done_it_is_remembered_for_its_ttl(jobs) -> None:
    await jobs.perform(ME, OLD)

    assert await jobs.release(ME, "rd", ticket=OLD) == [1]
    assert await jobs.runs() == []
    assert about((await jobs.are_over())[f"d{OLD}"], HOUR)
    assert await jobs.lasts(jobs.over, HOUR)
    assert await jobs.perform(OTHER, OLD) == [2, b"d"]


async def test_what_is_remembered_for_longer_keeps_its_time(jobs) -> None:
    for token, ticket in ((ME, OLD), (OTHER, NEW)):
        await jobs.perform(token, ticket, "g")
        await jobs.release(token, "rd", ticket=ticket)

    assert await jobs.lasts(jobs.over, HOUR)


async def test_done_it_frees_its_key_if_it_is_to(jobs) -> None:
    for flags, owner in (("rd", OLD), ("rdf", None)):
        await jobs.clear()
        await jobs.enqueue(OLD)
        await jobs.perform(ME, OLD)
        await jobs.release(ME, flags, ticket=OLD)

        assert await jobs.owns() == owner


async def test_not_done_it_keeps_its_key_for_the_retry(jobs) -> None:
    for flags, kept in (("r", MINUTE), ("rk", HOUR)):
        await jobs.clear()
        await jobs.enqueue(OLD, 1000)
        await jobs.perform(ME, OLD, ttl=MINUTE)
        await jobs.release(ME, flags, ticket=OLD)

        assert await jobs.owns() == OLD
        assert await jobs.lasts(jobs.owner, kept)
        assert await jobs.are_over() == {}


async def test_what_has_a_time_of_its_own_has_it_again_when_the_run_has_ended(jobs) -> None:
    for flags in ("rde", "re"):
        await jobs.clear()
        await jobs.enqueue(OLD, 1000)
        for _ in range(2):
            await jobs.perform(ME, OLD, "ke")
            assert await jobs.lasts(jobs.owner, MINUTE)
            if flags == "re":  # tried again, also by who does not know of the first time
                await jobs.redis.zrem(jobs.holders, ME)
                await jobs.perform(ME, OLD, "ke")
            await jobs.release(ME, flags, ticket=OLD)
            assert await jobs.lasts(jobs.owner, 1000)
            await jobs.redis.zrem(jobs.over, f"d{OLD}")


async def test_what_has_a_time_of_its_own_is_free_when_that_is_over(jobs) -> None:
    await jobs.perform(ME, OLD, "ke")
    assert await jobs.owns() == OLD
    assert await jobs.are_over() == {}

    await jobs.release(ME, "rde", ticket=OLD)
    assert await jobs.owns() is None


async def test_when_a_ticket_ends_is_remembered_until_then(jobs) -> None:
    await jobs.enqueue(OLD)
    await jobs.perform(ME, OLD, "ke")

    assert await jobs.lasts(jobs.over, HOUR)


async def test_one_that_was_replaced_while_it_ran_leaves_the_key_to_the_newer_one(jobs) -> None:
    for flags in ("rdf", "rk", "rde"):
        await jobs.clear()
        await jobs.enqueue(OLD)
        await jobs.perform(ME, OLD, ttl=1000)
        await jobs.enqueue(NEW, flag="r")
        assert await jobs.renew(ME, ttl=2 * HOUR, ticket=OLD) == 1
        await jobs.release(ME, flags, ticket=OLD)

        assert await jobs.owns() == NEW
        assert await jobs.lasts(jobs.owner, MINUTE)


async def test_a_release_said_twice_leaves_what_it_left_once(jobs) -> None:
    await jobs.enqueue(OLD)
    await jobs.perform(ME, OLD)
    assert await jobs.release(ME, "rdf", ticket=OLD) == [1]
    state = await jobs.state()

    assert await jobs.release(ME, "rdf", ticket=OLD) == [0]
    assert await jobs.state() == state


async def test_who_does_not_run_it_has_not_done_it(jobs) -> None:
    await jobs.enqueue(OLD)
    await jobs.perform(OTHER, OLD)
    state = await jobs.state()

    for stranger in (ME, OTHER[:-1], ""):
        for flags in ("rdf", "rk"):
            assert await jobs.release(stranger, flags, ticket=OLD) == [0]
    assert await jobs.state() == state


async def test_who_gives_up_waiting_leaves_the_queue(jobs) -> None:
    await jobs.acquire(ME)
    await jobs.wait(OTHER, THIRD)

    assert await jobs.release(OTHER, "rl") == [0]
    assert await jobs.stand() == [seat(THIRD)]
    assert await jobs.states(OTHER) == [None]
    assert await jobs.release(THIRD, "") == [0]
    assert await jobs.states(THIRD) == [None], "it was the last seat that lived by it"


async def test_a_quiet_release_wakes_nobody(jobs) -> None:
    await jobs.acquire(ME)
    await jobs.wait(OTHER)

    assert await jobs.release(ME, "") == [1]
    assert await jobs.states(OTHER) == [b""]


async def test_a_release_keeps_the_fence(jobs) -> None:
    await jobs.acquire(ME, retention=MINUTE)
    await jobs.release(ME, retention=HOUR)

    assert await jobs.lasts(jobs.fence, HOUR)


# -- renew ---------------------------------------------------------------------------------------------------


async def test_renew_sets_the_ttls_anew_and_nothing_else(jobs) -> None:
    await jobs.acquire(ME, ttl=1000, retention=MINUTE)
    state = await jobs.state()

    for _ in range(2):
        assert await jobs.renew(ME, ttl=MINUTE, retention=HOUR) == 1
        assert await jobs.state() == state
        assert await jobs.lasts(jobs.holders, MINUTE + SLACK)
        assert await jobs.lasts(jobs.fence, HOUR)


async def test_renew_by_another_is_refused_and_never_creates(jobs) -> None:
    assert await jobs.renew(ME, ticket=OLD) == 0
    assert await jobs.everything() == []
    await jobs.enqueue(OLD, 1000)
    await jobs.acquire(OTHER)

    assert await jobs.renew(ME, ttl=HOUR, ticket=OLD) == 0
    assert await jobs.redis.pttl(jobs.owner) <= 1000


async def test_renew_wakes_the_first_for_what_came_to_its_end(jobs) -> None:
    await jobs.acquire(ME)
    await jobs.wait(OTHER)
    await jobs.end(ME)

    assert await jobs.renew(ME) == 0
    assert await jobs.states(OTHER) == [b"rung"]


# -- out of memory -------------------------------------------------------------------------------------------


@pytest.mark.leaves_keys
async def test_what_runs_can_be_renewed_and_ended_out_of_memory(own_server, connect, prefix) -> None:
    server = await own_server()
    jobs = JobScripts(connect(server), prefix)
    await jobs.enqueue(OLD)
    await jobs.perform(ME, OLD)
    await jobs.wait(OTHER)
    await jobs.redis.config_set("maxmemory", 1)
    with pytest.raises(ResponseError, match="maxmemory"):
        await jobs.acquire(THIRD)

    assert await jobs.renew(ME, ticket=OLD) == 1
    assert await jobs.release(ME, "rdf", ticket=OLD) == [1, jobs.bell(OTHER)]
    assert list(await jobs.are_over()) == [f"d{OLD}"]
    await jobs.redis.config_set("maxmemory", 0)
    await jobs.enqueue(OLD)
    await jobs.enqueue(NEW, flag="r")
    await jobs.redis.config_set("maxmemory", 1)
    assert await jobs.withdraw(NEW) == 1
    await jobs.redis.config_set("maxmemory", 0)


# -- the commands --------------------------------------------------------------------------------------------


async def do(redis: Redis, command: Request[Any]) -> Any:
    return command.parse(await redis.execute_command(*command.words(as_eval=True)))


def commands(
    prefix: str, *, limit: int = 1, waiting: int | None = None, ticket_run: TicketRun | None = None
) -> JobSteps:
    return JobSteps(
        prefix,
        "n",
        limit=limit,
        waiting=waiting,
        ticket_run=ticket_run,
        retention_ms=MINUTE,
        session="s",
        known_ms=HOUR,
    )


async def test_the_commands_say_and_read_what_the_scripts_mean(redis, prefix) -> None:
    ticket_run = TicketRun(OLD, beside=False, gives_up=False, frees=True)
    job, plain = commands(prefix, ticket_run=ticket_run), commands(prefix, waiting=0)
    older, newer = (
        enqueueing(prefix, "n", ticket, HOUR, "{}", replace=False, known_ms=HOUR) for ticket in (OLD, NEW)
    )
    assert older.args[4:] == (HOUR, MOST_KNOWN)
    assert await do(redis, older) is None
    assert about(await do(redis, newer), HOUR)

    granted = await do(redis, job.acquire(ME, MINUTE, "{}", WAITING))
    assert isinstance(granted, Granted)
    refused = await do(redis, plain.acquire(OTHER, MINUTE, "{}", WAITING))
    assert isinstance(refused, Refused)
    assert str(refused.error) == "job 'n' is a duplicate: it is running, and all waiting places are taken"
    assert await do(redis, job.renew(ME, MINUTE))
    assert await do(redis, job.owned(ME))
    assert await do(redis, job.locked())
    assert await do(redis, job.adopt(ME, THIRD, MINUTE, "{}")) == granted.fencing_token
    ticket_run.done = True
    release = job.release(THIRD, MINUTE)
    assert release.args[5] == HOUR
    assert (await do(redis, release)).freed
    assert not await do(redis, job.locked())

    again = await do(redis, job.acquire(ME, MINUTE, "{}", WAITING | SEATED))
    assert str(again.error) == "job 'n' is a duplicate: its ticket was done"
    assert await do(redis, newer) is None
    other = commands(
        prefix, ticket_run=TicketRun(f"{'x' * 22}.1000", beside=True, gives_up=True, frees=False)
    )
    assert "another ticket owns the key" in str((await do(redis, other.acquire(ME, MINUTE, "{}"))).error)
    assert await do(redis, withdrawing(prefix, "n", NEW)) is True
    assert await do(redis, withdrawing(prefix, "n", NEW)) is False


async def test_tickets_that_may_run_beside_others_do_and_share_the_fence(redis, prefix) -> None:
    minted = []
    for token, letter, beside in ((ME, "x", False), (OTHER, "a", True), (THIRD, "b", True)):
        ticket_run = TicketRun(f"{letter * 22}.1000", beside=beside, gives_up=True, frees=False)
        command = commands(prefix, ticket_run=ticket_run).acquire(token, MINUTE, "{}")
        minted.append((await do(redis, command)).fencing_token)
        assert isinstance(
            await do(redis, commands(prefix, ticket_run=ticket_run).acquire(FOURTH, 1, "{}")), Refused
        )

    assert minted == sorted(set(minted))
    fences = [key for key in await redis.keys(f"{prefix}:uniquejob*") if b"fence" in key]
    assert len(fences) == 1


# -- mutants -------------------------------------------------------------------------------------------------

CHECKS = checks(globals(), "jobs")
FILES = [
    "shared/runs",
    "job_acquire",
    "job_renew",
    "job_release",
    "job_enqueue",
    "job_withdraw",
    "shared/tickets",
    "shared/room",
]
SPARED = {
    "purge(true)": "in a release, see out of memory above; the next step takes back what has ended",
}
"""Lines that may be left out, each with the reason."""
MUTATIONS = [
    Mutation(
        "shared/room", "room == '' or number", "number", "test_waiting_said_twice_is_one_place"
    ),
    Mutation(
        "shared/room", " or number > 0 then", " then",
        "test_who_was_taken_for_dead_and_sits_down_behind_another_goes_on",
    ),
    Mutation(
        "shared/room", "number < 0 and read_number(seen, 'begun')", "read_number(seen, 'begun')",
        "test_who_comes_after_a_run_began_is_not_one_of_those_who_came_before",
    ),
    Mutation(
        "shared/room", "tonumber(room)", "tonumber(room) + 1",
        "test_one_too_many_is_a_duplicate_once_he_knows_that_the_others_live",
    ),
    Mutation(
        "shared/room", "not other or other == entry", "not other",
        "test_who_came_while_a_dead_one_stood_there_has_his_place_then",
    ),
    Mutation(
        "shared/room",
        "number < 0 and asked > -number or",
        "asked > -number or",
        "test_what_was_asked_before_he_came_is_no_sign_of_life",
    ),
    Mutation(
        "shared/room", "asked > -number or", "asked > 0 or",
        "test_what_was_asked_before_he_came_is_no_sign_of_life",
    ),
    Mutation(
        "shared/room", " or asked > 0 and string.find(other, session, 1, true)", "",
        "test_of_his_own_session_he_knows_that_it_lives",
    ),
    Mutation(
        "shared/room", "asked > 0 and ", "",
        "test_one_of_its_own_session_that_has_to_make_sure_takes_no_place_from_it",
    ),
    Mutation(
        "job_acquire", "slot and ARGV[7] == '0' and '1' or ARGV[7]", "ARGV[7]",
        "test_one_that_is_not_to_wait_for_a_run_waits_for_its_turn_where_a_slot_is_free",
    ),
    Mutation(
        "job_acquire", "slot and ARGV[7] == '0' and '1' or ARGV[7]", "ARGV[7] == '0' and '1' or ARGV[7]",
        "test_one_that_is_not_to_wait_for_a_run_waits_for_its_turn_where_a_slot_is_free",
    ),
    Mutation(
        "shared/room", "if ticket ~= '' then return 't', {} end", "",
        "test_a_ticket_that_waits_takes_no_place_for_it_may_have_nothing_to_run",
    ),
    Mutation(
        "shared/room", "if redis.call('HGET', seen, other) ~= '0' then", "do",
        "test_a_ticket_that_waits_takes_no_place_for_it_may_have_nothing_to_run",
    ),
    Mutation(
        "shared/room",
        "if redis.call('HGET', seen, other) ~= '0' then",
        "if read_number(seen, other) ~= 0 then",
        "test_a_ticket_that_waits_tells_that_it_is_one",
    ),
    Mutation(
        "shared/room", "if redis.call('GET', bell) == '' then", "do",
        "test_one_too_many_is_a_duplicate_once_he_knows_that_the_others_live",
    ),
    Mutation(
        "shared/room",
        "if read_number(seen, entry) == 0 then assign_number(seen, entry, -1) end",
        "assign_number(seen, entry, -1)",
        "test_one_too_many_is_a_duplicate_once_he_knows_that_the_others_live",
    ),
    Mutation(
        "shared/room", "read_number(seen, other) < 0 and ", "",
        "test_who_may_wait_does_not_wake_those_who_may_too",
    ),
    Mutation(
        "shared/room", "if bell and redis.call('GET', bell) == '' then", "if bell then",
        "test_who_has_to_make_sure_and_is_on_his_way_is_not_woken_again",
    ),
    Mutation(
        "shared/room", "elseif begun then", "else",
        "test_a_duplicate_that_leaves_is_no_run",
    ),
    Mutation(
        "job_acquire", "check_out(KEYS[9], entry, not permits)", "check_out(KEYS[9], entry, false)",
        "test_a_run_that_begins_after_he_came_is_his_as_well",
    ),
    Mutation(
        "job_acquire", "check_out(KEYS[9], entry, not permits)", "check_out(KEYS[9], entry, true)",
        "test_a_run_that_asks_again_began_when_it_did",
    ),
    Mutation(
        "job_acquire", "(slot and in_turn)", "slot",
        "test_nobody_passes_who_waits_and_he_is_woken",
    ),
    Mutation(
        "job_acquire", "not busy and free() > 0", "not busy",
        "test_the_second_waits_and_is_told_for_how_long",
    ),
    Mutation(
        "job_acquire", "not duplicate and (has(flags", "(has(flags",
        "test_a_ticket_is_a_duplicate_at_once_although_another_runs",
    ),
    Mutation(
        "job_acquire", "(has(flags, 'b') or not (slot and in_turn))", "not (slot and in_turn)",
        "test_behind_others_of_its_session_it_takes_a_seat",
    ),
    Mutation(
        "job_acquire", "entry, admission, rung)", "entry, 'w', rung)",
        "test_one_who_has_to_make_sure_is_no_sign_of_life_to_another",
    ),
    Mutation(
        "job_acquire", "if admission ~= 'f' then", "if admission == 'w' then",
        "test_who_came_while_a_dead_one_stood_there_has_his_place_then",
    ),
    Mutation(
        "job_acquire", "if not permits then", "if true then",
        "test_said_twice_it_is_the_same_grant_with_its_ttl_set_anew",
    ),
    Mutation(
        "shared/tickets", "owning and owning ~= ticket and", "owning and",
        "test_a_run_that_keeps_the_key_keeps_its_time",
    ),
    Mutation(
        "job_acquire", "not first or bell_of(queue, first) == bell", "not first or first == entry",
        "test_of_one_bell_anybody_may_go_first",
    ),
    Mutation(
        "job_acquire", "return {2, duplicate, unpack(wake(true, 0))}", "return {2, duplicate}",
        "test_while_one_runs_the_same_ticket_waits_and_then_is_a_duplicate",
    ),
    Mutation(
        "job_acquire", "enqueue(queue, bell, seat, has(flags, 'q'))", "enqueue(queue, bell, seat, false)",
        "test_who_has_a_bell_that_is_gone_is_told_and_lives",
    ),
    *(
        Mutation(
            file, f"has(flags, 'a'))\n{behind}", f"false)\n{behind}",
            "test_a_bell_that_nobody_shares_goes_from_a_long_queue_too",
        )
        for file, behind in (
            ("job_acquire", "    check_out(KEYS[9], entry, false)"),
            ("job_acquire", "check_out(KEYS[9], entry, not permits)"),
            ("job_release", "local rung"),
        )
    ),
    Mutation(
        "shared/runs", "math.max(left, ms)", "ms",
        "test_a_run_that_keeps_the_key_keeps_its_time",
    ),
    Mutation(
        "job_acquire", "local duplicate = ticket ~= '' and ", "local duplicate = ",
        "test_without_a_ticket_nothing_is_owned_or_remembered",
    ),
    Mutation(
        "job_renew", "if purge(true) > 0 then wake(true, 0) end", "purge(true)",
        "test_renew_wakes_the_first_for_what_came_to_its_end",
    ),
    Mutation(
        "job_renew", "if redis.call('GET', owner) == ARGV[4] then", "do",
        "test_one_that_was_replaced_while_it_ran_leaves_the_key_to_the_newer_one",
    ),
    Mutation(
        "shared/runs", "if has(how, 'd') then", "do",
        "test_not_done_it_keeps_its_key_for_the_retry",
    ),
    Mutation(
        "shared/runs", "if owns and has(how, 'f')", "if owns and has(how, 'd')",
        "test_done_it_frees_its_key_if_it_is_to",
    ),
    Mutation(
        "shared/runs", "if owns and has(how, 'f')", "if has(how, 'f')",
        "test_one_that_was_replaced_while_it_ran_leaves_the_key_to_the_newer_one",
    ),
    Mutation(
        "shared/runs", "if owns and has(how, 'e')", "if has(how, 'e')",
        "test_one_that_was_replaced_while_it_ran_leaves_the_key_to_the_newer_one",
    ),
    Mutation(
        "shared/tickets", "'NX', ", "",
        "test_what_has_a_time_of_its_own_has_it_again_when_the_run_has_ended",
    ),
    Mutation(
        "shared/runs", "if has(how, 'e') then", "do", "test_not_done_it_keeps_its_key_for_the_retry",
    ),
    Mutation(
        "job_withdraw", "if string.sub(entry, 1, #ticket + 1) == ticket .. ':' then", "do",
        "test_withdrawn_by_another_changes_nothing",
    ),
    Mutation(
        "shared/runs", "if owns and has(how, 'k')", "if has(how, 'k')",
        "test_one_that_was_replaced_while_it_ran_leaves_the_key_to_the_newer_one",
    ),
    Mutation(
        "job_release", "if held then", "if true then", "test_who_does_not_run_it_has_not_done_it",
    ),
    Mutation(
        "job_release", "{held and 1 or 0, ", "{1, ", "test_a_release_said_twice_leaves_what_it_left_once",
    ),
    Mutation(
        "job_release", "if has(flags, 'r') then rung = wake(true, 0) end\n",
        "check_out(KEYS[9], bell .. ARGV[3], false) if has(flags, 'r') then rung = wake(true, 0) end "
        "do return {held and 1 or 0, unpack(rung)} end\n",
        "test_the_last_run_forgets_those_who_waited_and_died",
    ),
    Mutation(
        "job_release", "if has(flags, 'r') then", "do", "test_a_quiet_release_wakes_nobody",
    ),
    Mutation(
        "job_enqueue", "elseif owning ~= ticket then", "else", "test_enqueue_said_twice_is_the_same_success",
    ),
    Mutation(
        "job_enqueue", "if not redis.call('HGET', about, ticket) then", "do",
        "test_sent_again_after_its_own_time_it_still_has_the_place_of_the_one_before",
    ),
    Mutation(
        "job_enqueue", "MICROSECONDS - ARGV[5] * 1000", "MICROSECONDS",
        "test_however_many_were_replaced_the_first_has_its_place_again_when_all_are_taken_back",
    ),
    Mutation(
        "job_enqueue", "math.max(0, math.min(2, number + 1 - LEAST_KEPT))", "2",
        "test_of_those_that_were_replaced_long_ago_only_the_last_are_remembered",
    ),
    Mutation(
        "job_enqueue", "math.max(0, math.min", "(math.min",
        "test_of_those_that_were_replaced_long_ago_only_the_last_are_remembered",
    ),
    Mutation(
        "job_enqueue", "math.min(2, number", "math.min(1, number",
        "test_of_those_that_were_replaced_long_ago_only_the_last_are_remembered",
    ),
    Mutation(
        "job_enqueue", " and not forgotten[1] then", " then",
        "test_no_ticket_takes_a_place_if_one_that_may_be_taken_back_had_to_be_forgotten",
    ),
    Mutation(
        "job_enqueue", "'s', owning, ARGV[5]", "'s', owning, 0",
        "test_a_short_ticket_is_known_for_as_long_as_a_request_may_be_sent_again",
    ),
    Mutation(
        "shared/runs", "'d', ticket, known", "'d', ticket, 0",
        "test_a_short_ticket_is_known_for_as_long_as_a_request_may_be_sent_again",
    ),
    Mutation(
        "shared/tickets", "keep(over, lasts)", "keep(over, ttl_of(ticket))",
        "test_a_short_ticket_is_known_for_as_long_as_a_request_may_be_sent_again",
    ),
    Mutation(
        "shared/tickets", "math.max(ttl_of(ticket), ms)", "ms",
        "test_done_it_is_remembered_for_its_ttl",
    ),
    Mutation(
        "job_withdraw", "is_known and not owning", "not owning",
        "test_withdrawn_below_one_whose_own_time_is_over_changes_nothing_for_the_first",
    ),
    Mutation(
        "job_withdraw", "is_known and not owning", "is_known",
        "test_withdrawn_after_its_own_time_it_leaves_the_key_to_one_that_runs",
    ),
    Mutation(
        "job_withdraw", "was_last = redis.call('ZREM', before, entry) == 0",
        "redis.call('ZREM', before, entry)",
        "test_withdrawn_below_one_whose_own_time_is_over_changes_nothing_for_the_first",
    ),
    Mutation(
        "job_enqueue", "ARGV[3] ~= 'r'", "false", "test_the_second_is_a_conflict_and_changes_nothing",
    ),
    Mutation(
        "job_enqueue", "left < 0 and 0 or math.max(1, left)", "math.max(1, left)",
        "test_it_is_said_that_the_key_of_another_has_no_ttl",
    ),
    Mutation(
        "job_withdraw", "~= ticket then", "== false then", "test_withdrawn_by_another_changes_nothing",
    ),
    Mutation(
        "job_withdraw", "if why_over(over, former) then ends = remembered_end(over, former) end", "",
        "test_withdrawn_behind_one_that_was_done_meanwhile_the_key_is_free",
    ),
    Mutation(
        "job_withdraw", "if ends - NOW > 0 then", "do",
        "test_what_is_replaced_at_its_last_moment_has_a_ttl",
    ),
    Mutation(
        "shared/tickets", " and not is_listed(over, 'b', ticket)", "",
        "test_one_that_gave_up_its_key_runs_again_although_another_owns_it",
    ),
    Mutation(
        "shared/runs", "if owns then free_key", "do free_key",
        "test_one_that_gave_up_its_key_runs_again_although_another_owns_it",
    ),
    Mutation(
        "job_acquire", "not busy and free() > 0", "free() > 0", "test_a_ticket_never_runs_beside_itself",
    ),
    Mutation(
        "job_acquire", "ends = busy or (", "ends = (", "test_a_ticket_never_runs_beside_itself",
    ),
    Mutation(
        "job_acquire", "(free() < 1 and redis.call", "(redis.call",
        "test_nobody_passes_who_waits_although_there_is_a_slot",
    ),
    Mutation(
        "job_acquire", "if ticket ~= '' then begin", "do begin",
        "test_without_a_ticket_nothing_is_owned_or_remembered",
    ),
    Mutation(
        "shared/runs", "redis.call('ZSCORE', holders, runner)", "'1'",
        "test_a_ticket_whose_run_has_ended_runs_again_although_others_run",
    ),
    Mutation(
        "shared/runs", "redis.call('ZCARD', holders) > 0 and ", "",
        "test_where_none_runs_any_more_any_limit_may_begin",
    ),
    Mutation(
        "shared/runs", "current and current ~= limit and", "current and",
        "test_so_many_run_at_once_and_the_next_waits",
    ),
    Mutation("shared/tickets", "{'d', 's'}", "{'d'}", "test_replacing_makes_a_duplicate_of_the_older_one"),
    Mutation("shared/tickets", "or 0) > NOW", "or 0) > 0", "test_what_is_remembered_is_forgotten_in_time"),
    Mutation(
        "shared/tickets", "whole(NOW + lasts)", "whole(NOW)",
        "test_done_it_is_remembered_for_its_ttl",
    ),
]  # fmt: skip


def step_of(file: str) -> str:
    """A step that is made of that file."""
    return "job_acquire" if file.startswith("shared/") else file


async def test_the_scripts_themselves_are_not_complained_of(redis, prefix) -> None:
    scripts = JobScripts(redis, prefix)

    assert [name for name, check in CHECKS.items() if await fails(check, scripts)] == []


@pytest.mark.parametrize("file", FILES)
async def test_without_a_line_somebody_notices(redis, prefix, file) -> None:
    mutants = [(name, file, text) for name, text in lines_left_out(file, unless=SPARED)]
    living = await compiled(JobScripts, redis, prefix, step_of(file), mutants)

    assert await unnoticed(JobScripts, redis, prefix, living, among=CHECKS) == []


@pytest.mark.long
async def test_with_a_line_altered_that_test_fails(redis, prefix) -> None:
    assert await surviving(JobScripts, redis, prefix, MUTATIONS, CHECKS, "job_acquire") == []


def test_each_line_that_is_spared_stands_there() -> None:
    lines = {line.strip() for file in FILES for line in text_of(file).splitlines()}

    assert set(SPARED) <= lines
