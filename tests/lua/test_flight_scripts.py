"""The scripts of the single flight on real servers: every branch, said twice, by the wrong one.

A test that asks for `flight` alone is also run on mutants of the scripts, by the tests at the end of this
file: they show that each line is needed, and that somebody would notice.
"""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ResponseError

from aiolocks import FingerprintError
from aiolocks.kinds.flights import LINGER_MS, FlightSteps, Leaving, RunEnded
from aiolocks.transport import IN_TURN, SEATED, WAITING, Granted, Refused
from aiolocks.transport.request import lua_sections
from tests.lua.flight_scripts import LINGER, FlightScripts
from tests.lua.mutants import (
    Mutation,
    checks,
    compiled,
    fails,
    lines_left_out,
    surviving,
    unnoticed,
)
from tests.lua.scripts import HOUR, MINUTE, about, microseconds

pytestmark = pytest.mark.leaves_keys("aiolocks*:singleflight*")

ME, OTHER, THIRD = "a1" * 16, "b2" * 16, "c3" * 16
PRINT, ANOTHER = "0f" * 16, "f0" * 16
LATER = 9_007_199_254_740_000
"""Microseconds: the year 2255."""


@pytest.fixture
def flight(redis, prefix) -> FlightScripts:
    return FlightScripts(redis, prefix)


# -- the run, which is a lock --------------------------------------------------------------------------------


async def test_the_run_is_had_by_one_token_with_its_metadata(flight) -> None:
    before = await microseconds(flight.redis)
    granted, run, others, at = await flight.acquire(ME, ttl=MINUTE, retention=HOUR, fingerprint=PRINT)

    assert (granted, others) == (1, 0)
    assert before <= int(at) <= await microseconds(flight.redis)
    metadata = b'{"fingerprint":"%b","user":{}}' % PRINT.encode()
    assert await flight.redis.get(flight.run_key) == b"%b:%b:%b" % (ME.encode(), run, metadata)
    assert await flight.redis.get(flight.fence) == run
    assert await flight.lasts(flight.run_key, MINUTE)
    assert await flight.lasts(flight.fence, HOUR)


async def test_the_fencing_token_begins_at_the_servers_time_and_rises(flight) -> None:
    time = await microseconds(flight.redis)
    first = int(await flight.once())
    assert first >= time
    await flight.redis.set(flight.fence, first + 10**9)

    assert int(await flight.begin(ME)) == first + 10**9 + 1


async def test_said_twice_it_is_the_same_grant_with_its_ttl_set_anew(flight) -> None:
    *first, at = await flight.acquire(ME, ttl=MINUTE, retention=HOUR)
    state = await flight.state()

    *again, later = await flight.acquire(ME, ttl=2 * MINUTE, retention=2 * HOUR, fingerprint=PRINT)
    assert again == first
    assert int(at) < int(later)
    assert await flight.state() == state
    assert await flight.lasts(flight.run_key, 2 * MINUTE)
    assert await flight.lasts(flight.fence, 2 * HOUR)


async def test_said_twice_it_is_the_same_grant_whatever_an_earlier_run_has_left(flight) -> None:
    earlier = await flight.once(keep=MINUTE)
    await flight.redis.hset(flight.value, "until", 1)
    run = await flight.begin(ME)

    assert (await flight.acquire(ME, after=earlier))[:2] == [1, run]


async def test_who_is_refused_is_told_of_the_run_and_changes_nothing(flight) -> None:
    run = await flight.begin(OTHER, ttl=MINUTE)
    for who in ("x", "y"):
        await flight.sit(who)
    state = await flight.state()

    granted, remaining, told = await flight.acquire(ME, queued="x")

    assert granted == 0
    assert about(remaining, MINUTE)
    assert told == run
    assert await flight.state() == state


async def test_a_token_that_begins_alike_does_not_have_the_run(flight) -> None:
    run = await flight.begin(OTHER)

    assert (await flight.acquire(OTHER[:-2]))[0] == 0
    assert await flight.publish(OTHER[:-2], b"1") == [0]
    assert (await flight.acquire(OTHER))[1] == run


async def test_who_gets_the_run_leaves_the_queue(flight) -> None:
    for who in ("x", "y"):
        await flight.sit(who)

    assert (await flight.acquire(ME, queued="y"))[::2] == [1, 1]
    assert await flight.waiting() == [flight.bell("x")]
    assert not await flight.stands("y")


async def test_said_twice_who_has_the_run_leaves_the_queue_if_he_stands_there(flight) -> None:
    await flight.begin(ME)
    for who in ("x", "y"):
        await flight.sit(who)

    assert (await flight.acquire(ME, queued="y"))[::2] == [1, 1]
    assert await flight.waiting() == [flight.bell("x")]
    assert not await flight.stands("y")


async def test_one_that_is_refused_and_will_wait_is_seated(flight) -> None:
    await flight.begin(OTHER)

    assert len(await flight.acquire(ME, waits="x")) == 3
    assert await flight.waiting() == [flight.bell("x")]
    assert await flight.states("x") == [b""]

    await flight.release(OTHER)  # and so another goes first
    assert (await flight.acquire(ME, waits="y", in_turn=True))[1] == -2
    assert await flight.waiting() == [flight.bell("x"), flight.bell("y")]


async def test_who_stands_nowhere_leaves_nothing(flight) -> None:
    await flight.sit("x")

    assert (await flight.acquire(ME))[::2] == [1, 1]
    assert await flight.waiting() == [flight.bell("x")]


async def test_in_turn_what_is_free_is_left_to_who_stands_first(flight) -> None:
    for who in ("x", "y"):
        await flight.sit(who)
    state = await flight.state()

    assert await flight.acquire(ME, queued="y", in_turn=True) == [0, -2, b"0"]
    assert await flight.state() == state
    assert (await flight.acquire(ME, queued="x", in_turn=True))[0] == 1


async def test_in_turn_takes_what_nobody_waits_for(flight) -> None:
    assert (await flight.acquire(ME, in_turn=True))[0] == 1


# -- what a run leaves ---------------------------------------------------------------------------------------


async def test_publish_frees_the_run_and_leaves_the_value(flight) -> None:
    run = await flight.begin(ME, fingerprint=PRINT)
    now = await flight.redis.time()

    assert await flight.publish(ME, run, keep=MINUTE, retention=2 * HOUR, tag="e", payload=b"\0\xff:") == [1]

    assert not await flight.redis.exists(flight.run_key)
    left = await flight.redis.hgetall(flight.value)
    assert about(int(left.pop(b"fresh")) - now[0] * 1000, MINUTE + 4_000)
    assert about(int(left.pop(b"until")) - now[0] * 1000, MINUTE + 4_000)
    assert about(int(left.pop(b"at")) / 1000 - now[0] * 1000 + MINUTE, MINUTE + 4_000)
    assert left == {
        b"run": run,
        b"cost": b"0",
        b"again": b"0",
        b"failed": b"",
        b"print": PRINT.encode(),
        b"tag": b"e",
        b"payload": b"\0\xff:",
    }
    assert await flight.lasts(flight.value, MINUTE)
    assert await flight.lasts(flight.fence, 2 * HOUR)


async def test_what_is_not_kept_is_there_for_a_while(flight) -> None:
    await flight.once(linger=LINGER)

    assert await flight.lasts(flight.value, LINGER)


async def test_publish_leaves_nothing_of_what_was_left_before(flight) -> None:
    """Not even the run that has failed last; what was forgotten stays known."""
    await flight.once()
    fields = await flight.redis.hkeys(flight.value)
    await flight.redis.hset(flight.value, mapping=dict.fromkeys(fields, 1) | {"failed": 1, "forgot": 1})
    await flight.once()

    left = await flight.redis.hgetall(flight.value)
    assert left.keys() == {*fields, b"failed", b"forgot"}
    assert [name for name, text in left.items() if text == b"1"] == [b"forgot"]


async def test_publish_said_twice_is_said_once(flight) -> None:
    run = await flight.begin(ME)
    assert await flight.publish(ME, run) == [1]
    state = await flight.state()

    assert await flight.publish(ME, run) == [1]
    assert await flight.state() == state


async def test_publish_said_twice_does_not_wake_for_a_run_that_others_have_begun(flight) -> None:
    run = await flight.begin(ME)
    await flight.publish(ME, run)
    await flight.begin(OTHER)
    await flight.sit("x")

    assert await flight.publish(ME, run) == [1]
    assert await flight.stands("x")


async def test_what_a_stale_runner_leaves_is_seen_by_nobody(flight) -> None:
    """Its run has come to its end, and another has it, or has had it."""
    stale = await flight.begin(ME)
    await flight.redis.delete(flight.run_key)
    assert await flight.publish(ME, stale) == [0]
    await flight.begin(OTHER)
    await flight.sit("x")
    state = await flight.state()

    assert await flight.publish(ME, stale) == [0]
    assert await flight.state() == state
    assert await flight.stands("x")

    assert await flight.release(OTHER) == [1, flight.bell("x")]
    await flight.once(THIRD, payload=b"good")
    assert await flight.publish(ME, stale) == [0]
    assert await flight.redis.hget(flight.value, "payload") == b"good"


async def test_a_stale_runner_wakes_the_next_if_nobody_has_the_run(flight) -> None:
    stale = await flight.begin(ME)
    await flight.redis.delete(flight.run_key)
    for who in ("x", "y"):
        await flight.sit(who)

    assert await flight.publish(ME, stale) == [0, flight.bell("x")]
    assert await flight.stands("y")


# -- who gets it ---------------------------------------------------------------------------------------------


async def test_what_is_kept_is_for_whoever_comes(flight) -> None:
    run = await flight.once(keep=MINUTE, payload=b"\0good")

    assert await flight.acquire(ME) == [2, run, -1, 0, b"v", b"\0good"]
    assert not await flight.redis.exists(flight.run_key)


async def test_what_is_not_kept_is_for_those_alone_who_were_told_of_the_run(flight) -> None:
    run = await flight.once()

    assert (await flight.acquire(ME, after=run))[:2] == [2, run]
    assert (await flight.acquire(ME))[0] == 1


async def test_who_was_told_of_it_learns_how_long_ago_that_was(flight) -> None:
    run = await flight.once()
    now = await microseconds(flight.redis)
    assert (await flight.acquire(ME, after=run))[2] < 60_000_000
    await flight.redis.hset(flight.value, "at", now - 60_000_000)
    assert 60_000_000 <= (await flight.acquire(ME, after=run))[2] < 120_000_000
    await flight.redis.hset(flight.value, "at", LATER)  # the clock was set back
    for _ in range(2):
        assert (await flight.acquire(ME, after=run))[2] == -2


async def test_what_a_later_run_has_left_is_as_good(flight) -> None:
    told = await flight.begin(OTHER)
    await flight.release(OTHER)
    run = await flight.once(THIRD)

    assert run > told
    assert (await flight.acquire(ME, after=told))[:2] == [2, run]


async def test_what_an_earlier_run_has_left_is_not_for_who_was_told_of_a_later_one(flight) -> None:
    earlier = await flight.once()
    told = await flight.begin(THIRD)
    await flight.release(THIRD)

    assert told > earlier
    assert (await flight.acquire(ME, after=told))[0] == 1


async def test_it_is_for_who_was_told_of_it_even_if_another_run_has_begun(flight) -> None:
    run = await flight.once()
    await flight.begin(THIRD)

    assert (await flight.acquire(ME, after=run))[:2] == [2, run]
    assert (await flight.acquire(ME))[0] == 0


async def test_what_was_kept_long_enough_is_for_nobody_who_comes_then(flight) -> None:
    run = await flight.once(keep=MINUTE)
    assert (await flight.acquire(ME))[0] == 2
    await flight.redis.hset(flight.value, "until", 1)

    assert (await flight.acquire(ME, after=run))[0] == 2
    assert (await flight.acquire(ME))[0] == 1


async def test_who_gets_it_leaves_the_queue_and_wakes_the_others(flight) -> None:
    run = await flight.once(keep=MINUTE)
    for who in ("x", "me", "y"):
        await flight.sit(who)

    assert (await flight.acquire(ME, queued="me"))[6:] == [flight.bell("x"), flight.bell("y")]
    assert await flight.waiting() == []
    assert await flight.states("x", "me", "y") == [None] * 3
    assert (await flight.acquire(ME, after=run))[6:] == []


async def test_publish_wakes_so_many_who_wake_the_others(flight) -> None:
    crowd = [f"x{number:02}" for number in range(40)]
    run = await flight.begin(ME)
    for who in crowd:
        await flight.sit(who)
    await flight.die("x03")

    rung = (await flight.publish(ME, run))[1:]

    assert rung == [flight.bell(who) for who in crowd[:16] if who != "x03"]
    assert await flight.waiting() == [flight.bell(who) for who in crowd[16:]]
    more = (await flight.acquire(OTHER, after=run, queued="x00"))[6:]
    assert more == [flight.bell(who) for who in crowd[16:32]]
    assert await flight.waiting() == [flight.bell(who) for who in crowd[32:]]


async def test_the_dead_are_no_obstacle_however_many(flight) -> None:
    dead = [f"x{number:02}" for number in range(40)]
    run = await flight.begin(ME)
    for who in (*dead, "y"):
        await flight.sit(who)
    await flight.die(*dead)

    assert (await flight.publish(ME, run))[1:] == [flight.bell("y")]
    assert await flight.waiting() == []


async def test_publish_is_heard_by_who_hangs_up_a_bell(flight) -> None:
    async with flight.listening() as ear:
        run = await flight.begin(ME)
        await ear.sit(flight, "x")
        assert await ear.told() == []
        await flight.publish(ME, run)
        assert [b"invalidate", [flight.bell("x")]] in await ear.told()


# -- values that are replaced
# -----------------------------------------------------------------------------------


async def due(flight: FlightScripts, **asked: Any) -> bool:
    """Whether the value that is given is due."""
    kind, _, age, is_due, *_ = await flight.acquire(ME, **asked)
    assert (kind, age) == (2, -1)
    assert is_due in (0, 1)
    return is_due == 1


async def test_what_is_stale_is_given_and_is_due_to_be_made_anew(flight) -> None:
    run = await flight.once(keep=MINUTE, stale=MINUTE, payload=b"old")
    assert await flight.lasts(flight.value, 2 * MINUTE)
    assert not await due(flight)
    await flight.redis.hset(flight.value, "fresh", 1)
    for who in ("x", "me"):
        await flight.sit(who)

    assert await flight.acquire(ME, queued="me") == [2, run, -1, 1, b"v", b"old", flight.bell("x")]
    assert not await flight.redis.exists(flight.run_key)
    assert await flight.waiting() == []


async def test_the_times_of_a_value_are_counted_from_when_it_was_made(flight) -> None:
    now = (await flight.redis.time())[0] * 1000
    await flight.once(keep=MINUTE, stale=10 * MINUTE, cost=17)

    fresh, until, cost = await flight.redis.hmget(flight.value, "fresh", "until", "cost")
    assert about(int(fresh) - now, MINUTE + 4_000)
    assert about(int(until) - now, 11 * MINUTE + 4_000)
    assert cost == b"17"


async def test_the_times_of_a_value_that_is_published_late_are_counted_from_when_it_was_made(flight) -> None:
    made = await microseconds(flight.redis) - 30_000_000
    run = await flight.once(keep=MINUTE, stale=10 * MINUTE, linger=10 * MINUTE, made=made)

    at, fresh, until = map(int, await flight.redis.hmget(flight.value, "at", "fresh", "until"))
    assert (at, fresh, until) == (made, made // 1000 + MINUTE, made // 1000 + 11 * MINUTE)
    assert await flight.lasts(flight.value, 11 * MINUTE - 30_000)
    await flight.redis.hset(flight.value, "until", 0)
    assert (await flight.acquire(ME, after=run))[2] >= 30_000_000


async def test_a_value_that_is_published_too_late_is_for_those_alone_who_were_told_of_the_run(flight) -> None:
    run = await flight.once(keep=MINUTE, made=await microseconds(flight.redis) - 60_000_001)

    assert await flight.lasts(flight.value, LINGER)
    assert (await flight.acquire(ME, after=run))[:2] == [2, run]
    assert (await flight.acquire(ME))[0] == 1


async def test_no_value_was_made_later_than_it_is_published(flight) -> None:
    await flight.once(keep=MINUTE, made=LATER)

    at, until = map(int, await flight.redis.hmget(flight.value, "at", "until"))
    assert at <= await microseconds(flight.redis)
    assert until == at // 1000 + MINUTE


async def test_a_clock_that_is_set_back_brings_back_nothing_that_is_not_kept(flight) -> None:
    await flight.once()

    assert await flight.redis.hget(flight.value, "until") == b"0"


async def test_when_the_clock_was_set_back_the_times_of_a_kept_value_count_from_now(flight) -> None:
    run = await flight.once(keep=MINUTE, stale=MINUTE)
    back = 1_000_000_000_000
    at, *times = map(int, await flight.redis.hmget(flight.value, "at", "fresh", "until", "again"))
    later = [time + back // 1000 for time in times]
    await flight.redis.hset(
        flight.value,
        mapping=dict(zip(("at", "fresh", "until", "again"), (at + back, *later), strict=True)),
    )
    await flight.redis.pexpire(flight.value, 1000)

    assert (await flight.acquire(ME))[1:4] == [run, -1, 0]
    now, *again = map(int, await flight.redis.hmget(flight.value, "at", "fresh", "until", "again"))
    assert 0 <= now - at < 60_000_000
    assert all(abs(new - old - (now - at) / 1000) < 3 for new, old in zip(again, times, strict=True))
    assert await flight.lasts(flight.value, 2 * MINUTE)
    await flight.redis.hset(flight.value, "fresh", 1)
    assert await due(flight)


async def test_what_is_being_made_anew_is_not_due(flight) -> None:
    run = await flight.once(keep=MINUTE, stale=MINUTE)
    await flight.redis.hset(flight.value, "fresh", 1)
    await flight.begin(OTHER, anew=run)

    assert not await due(flight)


async def test_what_was_costly_is_due_the_earlier(flight) -> None:
    await flight.once(keep=MINUTE, cost=MINUTE // 2)

    assert [await due(flight, ahead=ahead) for ahead in (0, 1.5, 2.5)] == [False, False, True]


async def test_what_is_not_kept_is_never_due(flight) -> None:
    run = await flight.once(cost=MINUTE)

    assert (await flight.acquire(ME, after=run, ahead=2.5))[3] == 0


async def test_who_makes_it_anew_has_the_run_beside_the_value(flight) -> None:
    old = await flight.once(keep=MINUTE, payload=b"old")

    run = await flight.begin(OTHER, anew=old)
    assert run > old
    assert (await flight.acquire(ME))[1:] == [old, -1, 0, b"v", b"old"]
    assert (await flight.acquire(THIRD, anew=old))[::2] == [0, run]
    assert await flight.publish(OTHER, run, keep=MINUTE, payload=b"new") == [1]
    assert (await flight.acquire(ME))[1:] == [run, -1, 0, b"v", b"new"]


async def test_what_was_made_anew_meanwhile_is_not_made_again(flight) -> None:
    old = await flight.once(keep=MINUTE)
    run = await flight.begin(OTHER, anew=old)
    await flight.publish(OTHER, run, keep=MINUTE)

    assert (await flight.acquire(ME, anew=old))[:2] == [2, run]


async def test_who_makes_it_anew_for_another_request_does_not_have_the_run(flight) -> None:
    old = await flight.once(keep=MINUTE, fingerprint=ANOTHER)

    assert await flight.acquire(ME, anew=old, fingerprint=PRINT) == [3]


async def test_what_is_gone_is_made_by_whoever_was_to_make_it_anew(flight) -> None:
    old = await flight.once(keep=MINUTE, stale=MINUTE)
    await flight.redis.hset(flight.value, "until", 1)

    assert (await flight.acquire(ME, anew=old))[0] == 1


async def test_an_error_does_not_replace_a_value_that_is_kept_and_there_is_a_pause(flight) -> None:
    old = await flight.once(keep=MINUTE, stale=MINUTE, payload=b"old")
    await flight.redis.hset(flight.value, "fresh", 1)
    run = await flight.begin(OTHER, anew=old)
    await flight.sit("x")
    now = (await flight.redis.time())[0] * 1000

    failing = {"tag": "e", "payload": b"error", "pause": 10_000, "retention": 2 * HOUR}
    assert await flight.publish(OTHER, run, **failing) == [1, flight.bell("x")]

    assert not await flight.redis.exists(flight.run_key)
    assert await flight.lasts(flight.fence, 2 * HOUR)
    assert (await flight.acquire(ME))[1:] == [old, -1, 0, b"v", b"old"]
    assert about(int(await flight.redis.hget(flight.value, "again")) - now + MINUTE, MINUTE + 14_000)
    await flight.redis.hset(flight.value, "again", 1)
    assert await due(flight)


async def test_an_error_that_does_not_replace_a_value_is_said_twice_as_once(flight) -> None:
    old = await flight.once(keep=MINUTE)
    run = await flight.begin(OTHER, anew=old)
    assert await flight.publish(OTHER, run, tag="e", pause=10_000) == [1]
    again = await flight.redis.hget(flight.value, "again")
    await flight.sit("x")

    assert await flight.publish(OTHER, run, tag="e", pause=60_000) == [1]
    assert await flight.stands("x")
    assert await flight.redis.hget(flight.value, "again") == again


async def test_an_error_replaces_what_is_not_kept_any_more(flight) -> None:
    old = await flight.once(keep=MINUTE)
    run = await flight.begin(OTHER, anew=old)
    await flight.redis.hset(flight.value, "until", 1)
    await flight.publish(OTHER, run, tag="e", pause=10_000)

    assert (await flight.acquire(ME, after=run))[4] == b"e"


async def test_an_error_without_a_pause_replaces_what_is_kept(flight) -> None:
    old = await flight.once(keep=MINUTE)
    run = await flight.begin(OTHER, anew=old)
    await flight.publish(OTHER, run, tag="n", keep=MINUTE)

    assert (await flight.acquire(ME))[4] == b"n"


async def test_without_a_value_an_error_is_left_for_those_who_waited(flight) -> None:
    run = await flight.begin(OTHER, anew="17")
    await flight.publish(OTHER, run, tag="e", pause=10_000)

    assert (await flight.acquire(ME, after=run))[4] == b"e"


# -- fingerprints --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theirs", ["", ANOTHER])
async def test_a_run_for_another_request_is_not_waited_for(flight, theirs) -> None:
    await refused_beside_a_run(flight, theirs)


async def test_a_run_for_a_request_is_not_waited_for_with_another(flight) -> None:
    await refused_beside_a_run(flight, ANOTHER)


async def refused_beside_a_run(flight: FlightScripts, theirs: str) -> None:
    run = await flight.begin(OTHER, fingerprint=theirs)
    for who in ("x", "y"):
        await flight.sit(who)

    assert await flight.acquire(ME, fingerprint=PRINT, queued="x") == [3]
    assert await flight.waiting() == [flight.bell("y")]
    assert await flight.states("x", "y") == [None, b""]
    assert (await flight.acquire(ME, fingerprint=theirs))[::2] == [0, run]


async def test_what_is_kept_for_another_request_is_not_given(flight) -> None:
    await flight.once(keep=MINUTE, fingerprint=ANOTHER)
    for who in ("x", "y"):
        await flight.sit(who)

    assert await flight.acquire(ME, fingerprint=PRINT, queued="x") == [3, flight.bell("y")]
    assert await flight.waiting() == []
    assert await flight.acquire(ME) == [3]
    assert (await flight.acquire(ME, fingerprint=ANOTHER))[0] == 2


async def test_what_is_not_kept_for_another_request_is_not_there(flight) -> None:
    run = await flight.once(fingerprint=ANOTHER)

    assert (await flight.acquire(ME, fingerprint=PRINT, after=run))[0] == 1


@pytest.mark.parametrize("user", ['"fingerprint":"ff"', '":12:{\\"fingerprint\\":\\"ff\\""'])
async def test_what_users_add_is_no_fingerprint(flight, user) -> None:
    keys = [flight.run_key, flight.value, flight.fence, flight.queue]
    metadata = f'{{"fingerprint":"{PRINT}","user":{{{user}:1}}}}'
    arguments = (OTHER, MINUTE, HOUR, metadata, PRINT, "", 0, 0, "")
    _, run, *_ = await flight.run(flight.words("flight_acquire", keys, *arguments))

    assert (await flight.acquire(ME, fingerprint=PRINT))[::2] == [0, run]
    await flight.publish(OTHER, run)
    assert await flight.redis.hget(flight.value, "print") == PRINT.encode()


async def test_what_users_add_is_no_fingerprint_alone(flight) -> None:
    """The fingerprint is what stands first, and a caller without one is one too."""
    await flight.redis.set(flight.run_key, f'{OTHER}:17:{{"user":{{"fingerprint":"{PRINT}"}}}}', px=MINUTE)

    with pytest.raises(ResponseError, match="FOREIGN 1"):
        await flight.acquire(ME, fingerprint=PRINT)
    await flight.redis.delete(flight.run_key)
    run = await flight.begin(OTHER, fingerprint=PRINT)
    assert (await flight.acquire(ME, fingerprint=PRINT))[::2] == [0, run]
    assert await flight.acquire(ME) == [3]


async def test_what_others_have_written_is_refused_and_stays(flight) -> None:
    for value in ("", "hello", f"{OTHER}0:17:{{}}", f"{OTHER}:x:{{}}"):
        await flight.redis.set(flight.run_key, value, px=MINUTE)
        with pytest.raises(ResponseError, match="FOREIGN 1"):
            await flight.acquire(ME)
        assert await flight.redis.get(flight.run_key) == value.encode()
    await flight.redis.delete(flight.run_key)
    await flight.redis.hset(flight.value, "hello", "world")
    with pytest.raises(ResponseError, match="FOREIGN 2"):
        await flight.acquire(ME)
    await flight.redis.delete(flight.value)
    await flight.redis.zadd(flight.queue, {flight.key("precious"): 1})
    with pytest.raises(ResponseError, match="FOREIGN 4"):
        await flight.acquire(ME)
    assert await flight.everything() == [flight.queue]


async def test_a_queue_of_others_costs_nobody_a_key(flight) -> None:
    run = await flight.begin(ME)
    await flight.redis.zadd(flight.queue, {flight.key("precious"): 1})
    await flight.redis.set(flight.key("precious"), "")
    assert await flight.publish(ME, run) == [1]
    assert await flight.redis.delete(flight.key("precious")) == 1


# -- the commands --------------------------------------------------------------------------------------------


def commands(flight: FlightScripts, session: str = "x", fingerprint: str = "") -> FlightSteps:
    return FlightSteps(
        flight.prefix,
        "singleflight",
        flight.name,
        fingerprint=fingerprint,
        retention_ms=HOUR,
        session=session,
        now=lambda: 0.0,
    )


async def does(flight: FlightScripts, command: Any) -> Any:
    return command.parse(await flight.redis.execute_command(*command.words(as_eval=True)))


async def test_the_commands_say_what_the_scripts_take(flight) -> None:
    mine, theirs = commands(flight), commands(flight, "y")
    granted = await does(flight, theirs.acquire(OTHER, MINUTE, "{}"))
    assert isinstance(granted, Granted)
    refused = await does(flight, mine.acquire(ME, MINUTE, "{}", WAITING))
    assert isinstance(refused, Refused)
    assert about(refused.remaining_ms, MINUTE)
    assert await flight.waiting() == [mine.bell]
    assert await does(flight, theirs.renew(OTHER, 2 * MINUTE))
    assert await flight.lasts(flight.run_key, 2 * MINUTE)
    assert [await does(flight, one.owned(token)) for one, token in [(mine, ME), (theirs, OTHER)]] == [
        False,
        True,
    ]
    assert await does(flight, mine.locked())

    made_at_us = theirs.granted_at_us
    assert made_at_us <= await microseconds(flight.redis)
    theirs.leave(
        Leaving(
            token=OTHER,
            run=granted.fencing_token,
            tag="v",
            payload=b"1",
            made_at_us=made_at_us,
            begun=granted.fencing_token,
        )
    )
    assert not (await does(flight, theirs.release(THIRD, MINUTE))).freed  # another's undo publishes nothing
    released = await does(flight, theirs.release(OTHER, MINUTE))
    assert (released.freed, released.rung) == (True, [mine.bell])
    assert await flight.lasts(flight.value, LINGER_MS)

    left = (await does(flight, mine.acquire(ME, MINUTE, "{}", SEATED | IN_TURN))).error
    assert isinstance(left, RunEnded)
    assert (left.run, left.tag, left.payload) == (granted.fencing_token, "v", b"1")
    assert left.age_us in range(10**6)
    assert (await does(flight, commands(flight).acquire(ME, MINUTE, "{}"))).fencing_token > left.run
    assert isinstance(
        (await does(flight, commands(flight, fingerprint=PRINT).acquire(THIRD, MINUTE, "{}"))).error,
        FingerprintError,
    )


async def test_who_takes_over_a_run_keeps_its_fingerprint(flight) -> None:
    mine = commands(flight, fingerprint=PRINT)
    granted = await does(flight, mine.acquire(ME, MINUTE, '{"pid":1}'))

    assert await does(flight, mine.adopt(ME, OTHER, MINUTE, '{"pid":2}')) == granted.fencing_token
    assert (await flight.redis.get(flight.run_key)).endswith(
        b':{"fingerprint":"%b","pid":2}' % PRINT.encode()
    )


async def test_the_next_of_one_session_knows_of_the_run_that_the_first_was_told_of(flight) -> None:
    """Also of one that it has had itself."""
    mine, theirs = commands(flight), commands(flight, "y")
    granted = await does(flight, mine.acquire(ME, MINUTE, "{}"))
    await does(flight, mine.release(ME, MINUTE))
    later = await does(flight, theirs.acquire(OTHER, MINUTE, "{}"))
    theirs.leave(
        Leaving(
            token=OTHER,
            run=later.fencing_token,
            tag="v",
            payload=b"1",
            made_at_us=theirs.granted_at_us,
            begun=later.fencing_token,
        )
    )
    await does(flight, theirs.release(OTHER, MINUTE))

    answer = await does(flight, mine.acquire(THIRD, MINUTE, "{}"))

    assert later.fencing_token > granted.fencing_token
    assert answer.error.run == later.fencing_token


# -- out of memory -------------------------------------------------------------------------------------------


@pytest.fixture
async def full(own_server, connect, prefix) -> FlightScripts:
    """A run that is had, with one who waits, on a server without any memory left."""
    own = await own_server(arguments=("--maxmemory-policy", "noeviction"))
    flight = FlightScripts(connect(own), prefix)
    flight.begun = await flight.begin(ME)
    await flight.sit("x")
    await flight.redis.config_set("maxmemory", 1)
    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await flight.redis.set("anything", "new")
    return flight


async def test_out_of_memory_a_run_can_still_publish(full) -> None:
    assert (await full.acquire(ME))[:3] == [1, full.begun, 1]
    assert await full.publish(ME, full.begun) == [1, full.bell("x")]
    assert (await full.acquire(OTHER, after=full.begun, queued="x"))[0] == 2


async def test_out_of_memory_a_value_that_is_kept_can_still_stay(full) -> None:
    other = full.another()
    await other.redis.config_set("maxmemory", 0)
    run = await other.begin(OTHER, anew=await other.once(THIRD, keep=MINUTE))
    await other.redis.config_set("maxmemory", 1)

    assert await other.publish(OTHER, run, tag="e", pause=10_000) == [1]


async def test_out_of_memory_acquire_is_refused_and_changes_nothing(full) -> None:
    other = full.another()

    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await other.acquire(OTHER)
    assert await other.everything() == []


# -- forgetting ----------------------------------------------------------------------------------------------


async def test_a_kept_value_is_dropped_once(flight) -> None:
    run = await flight.once(keep=MINUTE, fingerprint=PRINT, retention=MINUTE)
    assert (await flight.acquire(ME, fingerprint=PRINT))[0] == 2
    assert await flight.forget(retention=HOUR)
    assert await flight.lasts(flight.fence, HOUR)
    state = await flight.state()
    assert await flight.forget(), "said twice it is the same"
    assert await flight.state() == state
    assert not await flight.forget("f1" * 16)
    assert (await flight.redis.hget(flight.value, "payload")) == b""
    assert await flight.lasts(flight.value, HOUR)
    assert int(await flight.begin(ME, fingerprint=ANOTHER)) > int(run), (
        "nothing is left, whatever was asked for"
    )


async def test_a_stale_value_is_dropped_too(flight) -> None:
    await flight.once(keep=0, stale=MINUTE)
    assert await flight.forget()
    assert (await flight.acquire(ME))[0] == 1


async def test_where_nothing_is_kept_nothing_is_dropped(flight) -> None:
    assert not await flight.forget()
    assert await flight.everything() == []
    run = await flight.once()
    assert not await flight.forget()
    assert not await flight.forget()
    left = await flight.acquire(ME, after=run)
    assert left[:2] == [2, run], "who has waited for it gets it"
    assert (await flight.acquire(ME))[0] == 1


async def test_a_run_under_way_goes_on_for_those_who_were_there_and_keeps_nothing(flight) -> None:
    run = await flight.begin(ME)
    assert (await flight.acquire(OTHER, waits="o"))[2] == run
    assert not await flight.forget()
    assert await flight.lasts(flight.value, 24 * HOUR)
    later = (await flight.acquire(THIRD, waits="t"))[2]
    assert int(later) == int(run) + 1, "who comes later waits for a newer one"
    assert (await flight.publish(ME, run, keep=MINUTE, stale=MINUTE))[0] == 1
    assert (await flight.publish(ME, run, keep=MINUTE, stale=MINUTE))[0] == 1
    assert await flight.lasts(flight.value, LINGER)
    assert (await flight.acquire(OTHER, after=run))[:3][:2] == [2, run]
    newer = await flight.begin(THIRD, after=later)
    assert int(newer) > int(run)
    assert (await flight.publish(THIRD, newer, keep=MINUTE))[0] == 1
    assert (await flight.acquire(ME))[:3] == [2, newer, -1], "what began later is kept"


async def test_a_value_whose_run_was_lost_before_is_not_kept_either(flight) -> None:
    """It is published by a later run of its session."""
    first = await flight.begin(ME)
    await flight.redis.delete(flight.run_key)
    assert not await flight.forget()
    assert await flight.lasts(flight.value, HOUR)
    again = await flight.begin(OTHER)
    assert (await flight.publish(OTHER, again, keep=MINUTE, begun=first))[0] == 1
    assert (await flight.acquire(THIRD))[0] == 1


async def test_a_value_that_is_being_made_anew_is_dropped_and_its_successor_not_kept(flight) -> None:
    run = await flight.once(keep=MINUTE)
    anew = await flight.begin(ME, anew=run)
    assert await flight.forget()
    assert (await flight.publish(ME, anew, keep=MINUTE))[0] == 1
    assert (await flight.acquire(THIRD))[0] == 1


async def test_a_refresh_that_fails_brings_back_nothing(flight) -> None:
    run = await flight.once(keep=MINUTE)
    anew = await flight.begin(ME, anew=run)
    assert await flight.forget()
    assert (await flight.publish(ME, anew, tag="e", pause=10_000))[0] == 1
    assert (await flight.acquire(THIRD))[0] == 1


async def test_a_value_that_outlasts_its_fence_is_dropped(flight) -> None:
    run = await flight.once(keep=MINUTE)
    await flight.redis.delete(flight.fence)
    assert await flight.forget()
    assert await flight.redis.hget(flight.value, "forgot") == run
    assert (await flight.acquire(ME))[0] == 1


async def test_foreign_things_are_not_forgotten(flight) -> None:
    await flight.redis.hset(flight.value, "a", "b")
    with pytest.raises(ResponseError, match="FOREIGN 2"):
        await flight.forget()
    await flight.redis.delete(flight.value)
    await flight.redis.set(flight.fence, "x")
    with pytest.raises(ResponseError, match="FOREIGN 3"):
        await flight.forget()


async def test_out_of_memory_a_value_is_forgotten(full) -> None:
    other = full.another()
    await other.redis.config_set("maxmemory", 0)
    await other.once(keep=MINUTE)
    await other.redis.config_set("maxmemory", 1)
    assert await other.forget()


# -- mutants -------------------------------------------------------------------------------------------------

CHECKS = checks(globals(), "flight")
FILES = ["flight_acquire", "flight_publish", "flight_forget", "shared/flights"]
MUTATIONS = [
    Mutation(
        "flight_acquire",
        "result, enqueue_in_each({queue}, bell, flags)}",
        "result}",
        "test_one_that_is_refused_and_will_wait_is_seated",
    ),
    Mutation(
        "flight_acquire",
        "'0', enqueue_in_each({queue}, bell, flags)}",
        "'0'}",
        "test_one_that_is_refused_and_will_wait_is_seated",
    ),
    Mutation(
        "flight_acquire",
        "tonumber(left[1]) >=",
        "tonumber(left[1]) >",
        "test_what_is_not_kept_is_for_those_alone_who_were_told_of_the_run",
    ),
    Mutation(
        "flight_acquire",
        " and tonumber(left[1]) >= tonumber(awaited_run)",
        "",
        "test_what_an_earlier_run_has_left_is_not_for_who_was_told_of_a_later_one",
    ),
    Mutation(
        "flight_acquire",
        "left[1] and awaited_run ~= ''",
        "left[1]",
        "test_what_is_not_kept_is_for_those_alone_who_were_told_of_the_run",
    ),
    Mutation(
        "flight_acquire",
        "left[1] and NOW <",
        "left[1] and 0 <",
        "test_what_was_kept_long_enough_is_for_nobody_who_comes_then",
    ),
    Mutation("flight_acquire", "(kept or awaited)", "awaited", "test_what_is_kept_is_for_whoever_comes"),
    Mutation(
        "flight_acquire",
        "(kept or awaited) and left[3] == fingerprint",
        "(kept or awaited)",
        "test_what_is_kept_for_another_request_is_not_given",
    ),
    Mutation(
        "flight_acquire",
        "if kept and left[3] ~= fingerprint then",
        "if (kept or awaited) and left[3] ~= fingerprint then",
        "test_what_is_not_kept_for_another_request_is_not_there",
    ),
    Mutation(
        "flight_acquire",
        "if held and fingerprint_of(held) ~= fingerprint",
        "if held and fingerprint_of(held) and fingerprint ~= ''",
        "test_what_users_add_is_no_fingerprint_alone",
    ),
    Mutation(
        "flight_acquire",
        "first and first ~= bell",
        "first",
        "test_in_turn_what_is_free_is_left_to_who_stands_first",
    ),
    Mutation("flight_acquire", "has(flags, 't') and", "", "test_who_stands_nowhere_leaves_nothing"),
    Mutation(
        "flight_publish",
        "{0, not held and wake(queue) or nil}",
        "{0}",
        "test_a_stale_runner_wakes_the_next_if_nobody_has_the_run",
    ),
    Mutation(
        "flight_publish",
        "not held and wake(queue)",
        "wake(queue)",
        "test_what_a_stale_runner_leaves_is_seen_by_nobody",
    ),
    Mutation(
        "flight_publish",
        "'failed', '', ",
        "",
        "test_publish_leaves_nothing_of_what_was_left_before",
    ),
    Mutation(
        "flight_publish",
        "math.max(made + keep_for - NOW, ARGV[6])",
        "made + keep_for - NOW",
        "test_what_is_not_kept_is_there_for_a_while",
    ),
    Mutation(
        "flight_publish",
        "math.max(made + keep_for - NOW, ARGV[6])",
        "ARGV[6]",
        "test_publish_frees_the_run_and_leaves_the_value",
    ),
    Mutation(
        "flight_acquire",
        "NOW < tonumber(left[2])",
        "NOW < tonumber(left[6])",
        "test_what_is_stale_is_given_and_is_due_to_be_made_anew",
    ),
    Mutation(
        "flight_acquire",
        "kept and not held and NOW",
        "not held and NOW",
        "test_what_is_not_kept_is_never_due",
    ),
    Mutation(
        "flight_acquire",
        "kept and not held and NOW",
        "kept and NOW",
        "test_what_is_being_made_anew_is_not_due",
    ),
    Mutation(
        "flight_acquire",
        "NOW >= tonumber(left[8]) and ",
        "",
        "test_an_error_does_not_replace_a_value_that_is_kept_and_there_is_a_pause",
    ),
    Mutation("flight_acquire", "left[7] * ARGV[8]", "ARGV[8]", "test_what_was_costly_is_due_the_earlier"),
    Mutation("flight_acquire", "left[7] * ARGV[8]", "left[7]", "test_what_was_costly_is_due_the_earlier"),
    Mutation(
        "flight_acquire",
        " and left[1] ~= replaced",
        "",
        "test_who_makes_it_anew_has_the_run_beside_the_value",
    ),
    Mutation(
        "flight_acquire",
        "left[1] ~= replaced",
        "replaced == ''",
        "test_what_was_made_anew_meanwhile_is_not_made_again",
    ),
    Mutation(
        "flight_acquire",
        "if kept and left[3] ~= fingerprint then",
        "if kept and left[3] ~= fingerprint and replaced == '' then",
        "test_who_makes_it_anew_for_another_request_does_not_have_the_run",
    ),
    Mutation(
        "flight_publish",
        " or left[3] == ARGV[2]",
        "",
        "test_an_error_that_does_not_replace_a_value_is_said_twice_as_once",
    ),
    Mutation(
        "flight_publish",
        "ARGV[8] ~= '' and",
        "",
        "test_an_error_without_a_pause_replaces_what_is_kept",
    ),
    Mutation(
        "flight_publish",
        " and NOW < tonumber(left[2])",
        "",
        "test_an_error_replaces_what_is_not_kept_any_more",
    ),
    Mutation(
        "flight_publish",
        "whole(made + keep_for)",
        "whole(made + fresh)",
        "test_the_times_of_a_value_are_counted_from_when_it_was_made",
    ),
    Mutation(
        "flight_publish",
        "whole(made + fresh)",
        "whole(made + keep_for)",
        "test_the_times_of_a_value_are_counted_from_when_it_was_made",
    ),
    Mutation(
        "flight_publish",
        "math.min(ARGV[11], MICROSECONDS)",
        "MICROSECONDS",
        "test_the_times_of_a_value_that_is_published_late_are_counted_from_when_it_was_made",
    ),
    Mutation(
        "flight_publish",
        "math.min(ARGV[11], MICROSECONDS)",
        "ARGV[11]",
        "test_no_value_was_made_later_than_it_is_published",
    ),
    Mutation(
        "flight_publish",
        "keep_for == '0' and 0 or",
        "",
        "test_a_clock_that_is_set_back_brings_back_nothing_that_is_not_kept",
    ),
    Mutation(
        "flight_acquire",
        "if kept and ahead > 0 then",
        "if ahead > 0 then",
        "test_who_was_told_of_it_learns_how_long_ago_that_was",
    ),
    Mutation(
        "flight_acquire",
        "if kept and ahead > 0 then",
        "if false then",
        "test_when_the_clock_was_set_back_the_times_of_a_kept_value_count_from_now",
    ),
    Mutation(
        "flight_acquire",
        "or ahead > 0 and -2 or -ahead",
        "or -ahead",
        "test_who_was_told_of_it_learns_how_long_ago_that_was",
    ),
    Mutation(
        "shared/flights",
        "redis.call('ZREM', queue, unpack(entries))",
        "redis.call('ZREM', queue, entries[1])",
        "test_publish_wakes_so_many_who_wake_the_others",
    ),
    Mutation(
        "shared/flights",
        "while #rung == 0 do",
        "for _ = 1, 1 do",
        "test_the_dead_are_no_obstacle_however_many",
    ),
    Mutation(
        "shared/flights",
        "bell and redis.call('DEL', bell) == 1",
        "bell and redis.call('DEL', bell) >= 0",
        "test_publish_wakes_so_many_who_wake_the_others",
    ),
    Mutation(
        "flight_forget",
        "above(fence, 0) - 1",
        "0",
        "test_a_run_under_way_goes_on_for_those_who_were_there_and_keeps_nothing",
    ),
    Mutation(
        "flight_forget",
        "kept or not left[1]",
        "true",
        "test_where_nothing_is_kept_nothing_is_dropped",
    ),
    Mutation(
        "flight_publish",
        "tonumber(ARGV[12]) <= tonumber(left[4])",
        "tonumber(ARGV[2]) <= tonumber(left[4])",
        "test_a_value_whose_run_was_lost_before_is_not_kept_either",
    ),
    Mutation("shared/flights", "'^%x+:%d+:{", "'{", "test_what_users_add_is_no_fingerprint_alone"),
]


async def test_the_scripts_themselves_are_not_complained_of(redis, prefix) -> None:
    scripts = FlightScripts(redis, prefix)

    assert [name for name, check in CHECKS.items() if await fails(check, scripts)] == []


@pytest.mark.parametrize("file", FILES)
async def test_without_a_line_somebody_notices(redis, prefix, file) -> None:
    step = file if "/" not in file else "flight_publish"
    mutants = [(name, file, text) for name, text in lines_left_out(file)]
    living = await compiled(FlightScripts, redis, prefix, step, mutants)

    assert await unnoticed(FlightScripts, redis, prefix, living, among=CHECKS) == []


@pytest.mark.long
async def test_with_a_line_altered_that_test_fails(redis, prefix) -> None:
    assert await surviving(FlightScripts, redis, prefix, MUTATIONS, CHECKS, "flight_publish") == []


def test_the_files_are_those_of_the_kind() -> None:
    assert {name for name in lua_sections() if name.startswith("flight_")} == {
        file for file in FILES if "/" not in file
    }
