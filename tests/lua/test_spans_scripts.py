"""The scripts of spans in three modes: every branch, said twice, by the wrong one, over leavings.

A test that asks for `spans` alone is also run on mutants of the scripts, by the tests at the end.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import ResponseError

from aiolocks.kinds.spans import Span, SpanSteps
from aiolocks.transport import PASSING, SEATED, STAYING, WAITING
from aiolocks.transport.steps.family import families
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
    HOUR,
    MINUTE,
    NO_FENCES,
    SEAT,
    WALK,
    SpanScripts,
    about,
    microseconds,
    token_of,
)

pytestmark = pytest.mark.leaves_keys(
    "aiolocks*:rangelock*"
)  # without a ttl, where a test has put them there itself

MARKS = [f"{side}.{end}" for side in ("reservations", "turns", "calls", "places") for end in "ab"]
"""Of those who wait."""
ME, OTHER, THIRD, FOURTH = "a1" * 16, "b2" * 16, "c3" * 16, "d4" * 16
LATER = 9_007_199_254_740_000
"""A fencing token of the year 2255, near the largest whole number that a double can hold exactly."""
SLACK = 1_000
"""Milliseconds that keys outlast what stands in them."""
ALL = ("-inf", "inf")
SIDES = ("readers", "upgradables", "writers", "reservations", "turns", "calls", "places")


@pytest.fixture
def spans(redis, prefix) -> SpanScripts:
    return SpanScripts(redis, prefix)


async def nothing_left(spans: SpanScripts) -> bool:
    return set(await spans.everything()) <= {spans.fence}


# -- who may be inside together ------------------------------------------------------------------------------

INSIDE = {"r": "ru", "u": "r", "w": ""}
"""Beside whom who may enter."""


async def test_who_enters_beside_whom(spans) -> None:
    for inside, wanted in itertools.product("ruw", repeat=2):
        await spans.clear()
        assert (await spans.acquire(ME, inside))[0] == 1
        expected = int(wanted in INSIDE[inside])

        assert (inside, wanted, await spans.locked(wanted)) == (inside, wanted, 1 - expected)
        assert (inside, wanted, (await spans.acquire(OTHER, wanted))[0]) == (inside, wanted, expected)


async def test_spans_that_do_not_overlap_do_not_know_of_each_other(spans) -> None:
    for mode, (a, b) in itertools.product(
        "ruw", [(-5, -1), (11, 20), ("-inf", "-1e-300"), ("10.000000000000002", "inf")]
    ):
        await spans.clear()
        await spans.acquire(ME, "w", 0, 10)

        assert (await spans.acquire(OTHER, mode, a, b))[0] == 1


async def test_ends_belong_to_the_spans(spans) -> None:
    for a, b in [
        (10, 20),
        (-5, 0),
        (10, 10),
        (0, 0),
        (3, 4),
        (-5, 20),
        ("-inf", "inf"),
        ("9.999999999999998", 11),
    ]:
        await spans.clear()
        await spans.acquire(ME, "w", 0, 10)

        assert (a, b, (await spans.acquire(OTHER, "r", a, b))[0]) == (a, b, 0)


async def test_infinite_ends_are_ends(spans) -> None:
    await spans.acquire(ME, "w", *ALL)
    for a, b in [("-inf", "-inf"), ("inf", "inf"), (0, 0), ALL]:
        assert (a, b, await spans.locked("r", a, b)) == (a, b, 1)
    await spans.release(ME)
    await spans.acquire(ME, "w", "inf", "inf")
    assert [
        await spans.locked("w", "1.7976931348623157e+308", "inf"),
        await spans.locked("w", "-inf", "1e308"),
    ] == [1, 0]


async def test_numbers_are_kept_to_the_last_digit(spans) -> None:
    texts = [
        "0.1",
        "0.30000000000000004",
        "9007199254740991",
        "9007199254740993",
        "1e-320",
        "1.7976931348623157e+308",
    ]
    for text in texts:
        await spans.acquire(ME, "w", text, text)
        assert await spans.held() == {ME.encode(): f"w {text} {text}".encode()}
        assert await spans.side("writers") == [(ME.encode(), float(text), float(text))]
        assert await spans.adopt(ME, OTHER, "w", text, text)
        assert await spans.release(OTHER) == [1]
        assert await nothing_left(spans)


async def test_many_spans_are_told_apart_as_one_by_one(spans) -> None:
    """Against a list, which is looked through."""
    chance = random.Random(7)
    held: dict[str, tuple[str, int, int]] = {}
    for number in range(150):
        token = f"{number:032x}"
        if held and chance.random() < 0.4:
            gone = chance.choice(sorted(held))
            assert (await spans.release(gone, flags=""))[0] == 1
            del held[gone]
        mode, a = chance.choice("rruw"), chance.randrange(40)
        b = a + chance.randrange(6)
        beside = [other for other, left, right in held.values() if left <= b and a <= right]
        granted = int(all(mode in INSIDE[other] for other in beside))

        assert (number, (await spans.acquire(token, mode, a, b))[0]) == (number, granted)
        if granted:
            held[token] = (mode, a, b)


# -- acquire -------------------------------------------------------------------------------------------------


async def test_acquire_takes_what_is_free(spans) -> None:
    for mode, side, room in (("r", "readers", 1_000_000), ("u", "upgradables", 0), ("w", "writers", 0)):
        await spans.clear()
        granted, fencing, *more = await spans.acquire(ME, mode, 1, 2, metadata='{"pid": 1}')

        assert (granted, more) == (1, [0, room])
        assert await spans.redis.hgetall(spans.spans) == {
            ME.encode(): b'%b 1 2 %b {"pid": 1}' % (mode.encode(), fencing)
        }
        assert await spans.side(side) == [(ME.encode(), 1, 2)]
        assert [one for one in SIDES if await spans.side(one)] == [side]
        assert await spans.redis.get(spans.fence) == fencing


async def test_acquire_sets_the_ttls(spans) -> None:
    await spans.acquire(ME, "w", ttl=MINUTE, retention=HOUR)
    seconds, micros = await spans.redis.time()

    assert about(await spans.redis.zscore(spans.ends, ME) - seconds * 1000 - micros // 1000 - 1, MINUTE)
    for key in (spans.spans, spans.ends, spans.key("writers.a"), spans.key("writers.b")):
        assert MINUTE < await spans.redis.pttl(key) <= MINUTE + SLACK
    assert await spans.lasts(spans.fence, HOUR)


async def test_a_shorter_lease_shortens_no_ttl(spans) -> None:
    await spans.acquire(ME, "r", ttl=MINUTE, retention=HOUR)
    await spans.acquire(OTHER, "r", ttl=1000, retention=10_000)
    await spans.renew(OTHER, ttl=1000, retention=10_000)
    await spans.adopt(OTHER, THIRD, "r", ttl=1000, retention=10_000)
    await spans.release(THIRD, retention=10_000)

    for key in (spans.spans, spans.ends, spans.key("readers.a"), spans.key("readers.b")):
        assert await spans.lasts(key, MINUTE + SLACK)
    assert await spans.lasts(spans.fence, HOUR)


async def test_acquire_said_twice_is_the_same_grant_with_its_end_set_anew(spans) -> None:
    for mode in "ruw":
        await spans.clear()
        first = await spans.acquire(ME, mode, ttl=1000, retention=10_000)
        state = await spans.state()

        assert (await spans.acquire(ME, mode, ttl=MINUTE, retention=HOUR, metadata="other")) == first
        assert await spans.state() == state
        seconds, _ = await spans.redis.time()
        assert about(await spans.redis.zscore(spans.ends, ME) - seconds * 1000 - 1000, MINUTE)
        assert await spans.lasts(spans.ends, MINUTE + SLACK)
        assert await spans.lasts(spans.fence, HOUR)


async def test_acquire_is_refused_and_changes_nothing(spans) -> None:
    await spans.acquire(OTHER, "w", ttl=MINUTE)
    await spans.acquire(THIRD, "w", 20, 30, ttl=HOUR)
    state = await spans.state()

    for mode in "ruw":
        granted, remaining = await spans.acquire(ME, mode)
        assert granted == 0
        assert about(remaining, MINUTE)
    assert await spans.state() == state


async def test_who_is_refused_is_told_what_is_left_of_one_that_is_in_the_way(spans) -> None:
    for inside, wanted in (("w", "ruw"), ("u", "uw"), ("r", "w")):
        await spans.clear()
        for number, (a, b) in enumerate([(-9, -8), (20, 30), (0, 3), (40, 50)]):
            token, ttl = f"{number:032x}", MINUTE if a == 0 else 1000 * (number + 1)
            assert (await spans.acquire(token, inside, a, b, ttl=ttl))[0] == 1
        for mode in wanted:
            granted, remaining = await spans.acquire(ME, mode, 2, 5)
            assert (inside, mode, granted, about(remaining, MINUTE)) == (inside, mode, 0, True)


async def test_who_is_refused_is_told_who_is_in_the_way_if_asked_for(spans) -> None:
    await spans.acquire(OTHER, "w", 0, 5, ttl=MINUTE, metadata='{"a": "r 1 2"}')
    await spans.acquire(THIRD, "r", 6, 9, ttl=HOUR)
    await spans.acquire(FOURTH, "r", 20, 30)

    granted, remaining, (now, kept, *told) = await spans.acquire(ME, "w", 0, 10, flags="h")

    assert (granted, kept) == (0, b"")
    assert await spans.is_now(now)
    assert told[::3] == [OTHER.encode(), THIRD.encode()]
    assert remaining == told[1] > MINUTE - 5_000
    assert HOUR - 5_000 < told[4] <= HOUR
    assert told[2::3] == [await spans.redis.hget(spans.spans, token) for token in (OTHER, THIRD)]
    assert (await spans.acquire(ME, "r", 0, 10, flags="h"))[2][2::3] == [OTHER.encode()]
    assert len(await spans.acquire(ME, "w", 0, 10)) == 2


async def test_of_many_who_are_in_the_way_eight_are_told_of(spans) -> None:
    tokens = [f"{number:032x}" for number in range(10)]
    for number, token in enumerate(tokens):
        await spans.acquire(token, "r", number, number)

    told = (await spans.acquire(ME, "w", 0, 10, flags="h"))[2]

    assert told[2::3] == [token.encode() for token in tokens[:8]]


async def test_who_is_refused_for_others_who_wait_is_told_no_time(spans) -> None:
    await spans.acquire(ME, "r", 0, 1)
    await spans.wait("x", "w", 0, 10)

    assert await spans.acquire(OTHER, "r", 5, 6) == [0, -4], "which has reserved"
    assert await spans.acquire(OTHER, "u", 5, 6) == [0, -4]
    await spans.release(token_of("x"), who="x", flags="rl")
    await spans.acquire(FOURTH, "u", 8, 9)
    await spans.wait("x", "w", 5, 9)
    assert await spans.acquire(OTHER, "u", 5, 6) == [0, -2], "which waits for an upgradable"


async def test_an_upgrade_is_told_what_is_left_of_the_reader_it_waits_for(spans) -> None:
    await spans.acquire(ME, "u", ttl=HOUR)
    await spans.acquire(OTHER, "r", ttl=MINUTE)

    assert about((await spans.acquire(THIRD, "w", under=ME))[1], MINUTE)


async def test_a_lost_left_end_is_no_error(spans) -> None:
    await spans.acquire(ME, "w", 0, 4)
    await spans.redis.zrem(spans.key("writers.a"), ME)
    await spans.acquire(OTHER, "w", 5, 9)
    await spans.acquire(THIRD, "w", 2, 4)

    assert (await spans.acquire(FOURTH, "w", 3, 9))[0] == 0


async def test_a_waiter_who_is_refused_twice_leaves_what_he_left_once(spans) -> None:
    for mode in "ruw":
        await spans.clear()
        await spans.acquire(ME, "w")
        first = await spans.wait("x", mode)
        state = await spans.state()

        again = await spans.acquire(token_of("x"), mode, who="x", flags="w")
        assert (again[0], len(again)) == (first[0], 2)
        assert await spans.state() == state


async def test_acquire_mints_the_servers_time_in_microseconds(spans) -> None:
    before = await spans.redis.time()
    _, fencing, *_ = await spans.acquire(ME, "w")
    after = await spans.redis.time()

    assert before[0] * 10**6 + before[1] <= int(fencing) <= after[0] * 10**6 + after[1]


async def test_acquire_mints_one_more_than_a_fence_that_is_ahead_of_the_clock(spans) -> None:
    await spans.redis.set(spans.fence, LATER)

    assert [(await spans.acquire(token, "r"))[1] for token in (ME, OTHER)] == [
        b"9007199254740001",
        b"9007199254740002",
    ]
    assert await spans.lasts(spans.fence, HOUR)


async def test_fencing_tokens_rise_over_the_loss_of_the_fence(spans) -> None:
    minted = []
    for token in (ME, OTHER, THIRD):
        minted.append(int((await spans.acquire(token, "r"))[1]))
        await spans.redis.delete(spans.fence)

    assert minted == sorted(set(minted))


async def test_metadata_is_kept_byte_for_byte_and_does_not_confuse(spans) -> None:
    for metadata in (
        b"",
        b" ",
        b"w 1 2 3 x",
        b'{"user": "a b"}',
        b"\0\r\n",
        b"\xff\xfe",
        b"%s",
        b"x" * 10_000,
    ):
        _, fencing, *_ = await spans.acquire(ME, "r", metadata=metadata)
        for token in (ME, OTHER):
            assert await spans.redis.hget(spans.spans, token) == b"r 0 10 %b %b" % (fencing, metadata)
            assert await spans.renew(token) == 1
            assert await spans.adopt(token, OTHER, "r", metadata=metadata) == fencing
        await spans.change(OTHER, "r", 1, 2)
        assert await spans.redis.hget(spans.spans, OTHER) == b"r 1 2 %b %b" % (fencing, metadata)
        await spans.release(OTHER)


# -- what comes to its end -----------------------------------------------------------------------------------


async def test_each_step_removes_what_has_come_to_its_end(spans) -> None:
    steps: dict[str, Callable[[], Awaitable[Any]]] = {
        "acquire": lambda: spans.acquire(OTHER, "w"),
        "renew": lambda: spans.renew(OTHER),
        "release": lambda: spans.release(OTHER),
        "adopt": lambda: spans.adopt(OTHER, THIRD, "r"),
        "owned": lambda: spans.owned(OTHER),
        "locked": lambda: spans.locked("r"),
        "change": lambda: spans.change(OTHER, "r"),
    }
    for (name, step), mode in itertools.product(steps.items(), "ruw"):
        await spans.clear()
        await spans.acquire(ME, mode)
        await spans.end(ME)
        await spans.acquire(FOURTH, "w", 20, 30)
        await spans.wait("x", "w", 20, 30)
        await spans.end_waiting("x")
        await step()

        assert ME.encode() not in await spans.held(), name
        assert await spans.mark("x") is None, name
        assert await spans.waiting() == [], name
        assert await spans.redis.zcard(spans.waits) == 0
        held = [one for side in SIDES for one, *_ in await spans.side(side)]
        assert sorted(held) == sorted([FOURTH.encode()] + [OTHER.encode()] * (name == "acquire")), name
        assert sorted(await spans.redis.zrange(spans.ends, 0, -1)) == sorted(held), name


async def test_who_has_come_to_his_end_holds_no_more(spans) -> None:
    await spans.acquire(ME, "w")
    await spans.end(ME)

    assert [await spans.renew(ME), await spans.release(ME), await spans.change(ME, "r")] == [0, [0], [0]]
    assert await spans.adopt(ME, OTHER, "w") == b""
    assert (await spans.acquire(OTHER, "w"))[0] == 1


async def test_who_meets_what_came_to_its_end_wakes_who_may_enter(spans) -> None:
    steps: dict[str, Callable[[], Awaitable[Any]]] = {
        "acquire": lambda: spans.acquire(THIRD, "r", 50, 60),
        "refused": lambda: spans.acquire(THIRD, "r", 20, 30),
        "renew": lambda: spans.renew(OTHER),
        "release": lambda: spans.release(THIRD),
        "upgrade": lambda: spans.acquire(THIRD, "w", under=ME),
    }
    for name, step in steps.items():
        await spans.clear()
        await spans.acquire(ME, "w")
        await spans.acquire(OTHER, "w", 20, 30)
        await spans.wait("x", "w")
        await spans.end(ME)
        await step()

        assert (name, await spans.states("x")) == (name, [b"rung"])


async def test_a_reservation_that_came_to_its_end_blocks_nobody(spans) -> None:
    await spans.acquire(ME, "r")
    await spans.wait("x", "w")
    await spans.wait("y", "r")
    await spans.end_waiting("x")

    assert (await spans.acquire(OTHER, "r"))[4:] == [spans.bell("y")]
    assert await spans.side("reservations") == []


async def test_a_reservation_that_came_to_its_end_goes_to_the_next_writer(spans) -> None:
    """Before it lets in the newcomer that has met it."""
    await spans.acquire(ME, "r")
    for who in "xy":
        await spans.wait(who, "w")
    await spans.end_waiting("x")

    assert (await spans.acquire(OTHER, "r"))[0] == 0
    assert await spans.mark("y") == "p"


async def test_what_a_dead_writer_had_reserved_keeps_no_waiter_out_that_is_the_first(spans) -> None:
    """Its marks outlast its bell, and nothing would wake a waiter when they end."""
    await spans.acquire(ME, "r")
    await spans.wait("x", "w", marks=MINUTE)
    await spans.redis.delete(spans.bell("x"))

    assert await spans.mark("x") == "p"
    assert (await spans.come("y", "r", flags="w"))[0] == 1


async def test_marks_last_for_as_long_as_they_are_to(spans) -> None:
    await spans.acquire(ME, "r")
    await spans.wait("x", "w", marks=MINUTE)

    seconds, _ = await spans.redis.time()
    assert about(await spans.redis.zscore(spans.waits, spans.bell("x")) - seconds * 1000 - 1000, MINUTE)
    for key in (spans.waits, spans.key("reservations.a"), spans.key("reservations.b")):
        assert await spans.lasts(key, MINUTE + SLACK)


async def test_marks_that_are_given_behind_a_waiters_back_shorten_nothing(spans) -> None:
    await spans.acquire(ME, "r")
    await spans.wait("x", "w")
    await spans.wait("y", "w", marks=MINUTE)
    assert [await spans.mark(who) for who in ("x", "y")] == ["p", "q"]
    await spans.release(token_of("x"), who="x", flags="rl")

    assert await spans.mark("y") == "p"
    seconds, _ = await spans.redis.time()
    assert about(await spans.redis.zscore(spans.waits, spans.bell("y")) - seconds * 1000 - 1000, MINUTE)
    assert await spans.lasts(spans.key("reservations.a"), MINUTE + SLACK)


async def test_deadlines_are_kept_for_as_long_as_anything_they_end(spans) -> None:
    await spans.acquire(ME, "w", ttl=MINUTE)
    await spans.wait("x", "r")
    assert await spans.lasts(spans.waits, MINUTE + SLACK)
    await spans.renew(ME, ttl=HOUR)
    assert await spans.lasts(spans.waits, HOUR + SLACK)

    await spans.clear()
    await spans.acquire(ME, "w", ttl=1_000)
    await spans.wait("x", "r", marks=MINUTE)
    assert await spans.lasts(spans.ends, MINUTE + SLACK)


async def test_a_call_ends_with_its_owner(spans) -> None:
    await spans.acquire(ME, "w")
    await spans.wait("r", "r")
    now = await microseconds(spans.redis) // 1000
    await spans.redis.zadd(spans.waits, {spans.bell("r"): now + 900})
    assert await spans.release(ME) == [1, spans.bell("r")]

    assert [one for one, *_ in await spans.side("calls")] == [spans.bell("r")]
    for end in "ab":
        assert 0 < await spans.redis.pttl(spans.key(f"calls.{end}")) <= 900 + SLACK


@pytest.mark.parametrize("ttl", [MINUTE, 50])
async def test_of_dead_waiters_nothing_stays_under_a_name_in_use(redis, prefix, ttl) -> None:
    """Longer after their end than the keys of deadlines would have lasted for their sake alone."""
    spans = SpanScripts(redis, prefix)
    family = families()[spans.kind]
    for who in (ME, OTHER):  # one of them holds on
        await spans.acquire(who, "r", ttl=ttl)
    await spans.acquire(OTHER, "r", ttl=MINUTE)
    for number in range(6):
        await spans.wait(f"dead{number}", "w", number, number, marks=50)  # none gets the mark of another
    await asyncio.sleep((50 + SLACK) / 1000 + 0.1)
    await spans.die(*(f"dead{number}" for number in range(6)))
    assert await spans.renew(OTHER) == 1

    assert set(await spans.held()) == set(await redis.hkeys(spans.spans))
    assert await redis.exists(spans.waits) == 0
    assert await spans.side("reservations") == []
    command = family.look(prefix, spans.kind, [spans.name])
    (snapshot,) = command.parse(await spans.run(command.words(as_eval=True)))
    assert snapshot.problems == ()
    await spans.release(ME)
    await spans.release(OTHER)
    assert await nothing_left(spans)


async def test_of_dead_holders_nothing_stays_while_others_wait(redis, prefix) -> None:
    spans = SpanScripts(redis, prefix)
    await spans.acquire(ME, "w", ttl=50)
    await spans.wait("x", "w", marks=MINUTE)
    await asyncio.sleep((50 + SLACK) / 1000 + 0.1)

    assert (await spans.come("x", "w"))[0] == 1
    assert set(await redis.hkeys(spans.spans)) == {token_of("x").encode()}


async def test_a_dead_reader_that_was_called_keeps_no_upgrade_out(redis, prefix) -> None:
    """Nor do others that are called later, whose marks stand under the same keys and keep these alive."""
    spans = SpanScripts(redis, prefix)
    await spans.acquire(ME, "w")
    await spans.wait("dead", "r", marks=50)
    await spans.release(ME)
    await asyncio.sleep((50 + SLACK) / 1000 + 0.1)
    await spans.die("dead")
    await spans.acquire(ME, "w", 20, 30)
    await spans.wait("r", "r", 20, 30)
    await spans.release(ME)

    assert [one for one, *_ in await spans.side("calls")] == [spans.bell("r")]
    assert (await spans.acquire(THIRD, "u"))[0] == 1
    assert (await spans.acquire(OTHER, "w", under=THIRD))[0] == 1


# -- what is lost --------------------------------------------------------------------------------------------


async def test_a_lost_hash_of_spans_is_survived(spans) -> None:
    for mode in "ruw":
        await spans.clear()
        await spans.acquire(ME, mode)
        await spans.wait("x", "w")
        await spans.redis.delete(spans.spans)

        assert [await spans.owned(ME), await spans.renew(ME), await spans.release(ME)] == [0, 0, [0]]
        assert (await spans.acquire(OTHER, "w"))[0] == 0  # a span that is not known to be free is not free
        await spans.end(ME)
        await spans.end_waiting("x")
        assert (await spans.acquire(OTHER, "w"))[0] == 1
        assert await spans.release(OTHER) == [1]
        assert set(await spans.everything()) == {spans.fence, spans.bell("x")}


async def test_a_reader_beside_one_whose_span_was_lost_can_leave(spans) -> None:
    await spans.acquire(ME, "r")
    await spans.redis.delete(spans.spans)
    await spans.acquire(OTHER, "r", 2, 3)

    assert await spans.release(OTHER) == [1]


async def test_who_waits_when_the_hash_is_lost_waits_on(spans) -> None:
    await spans.acquire(ME, "w")
    await spans.wait("x", "r")
    await spans.redis.delete(spans.spans)
    await spans.end(ME)

    assert (await spans.come("x", "r"))[0] == 1
    assert await spans.side("turns") == []


async def test_lost_ends_lose_the_leases(spans) -> None:
    await spans.acquire(ME, "w")
    await spans.redis.delete(spans.ends)

    assert [await spans.owned(ME), await spans.renew(ME), await spans.release(ME)] == [0, 0, [0]]
    assert await spans.change(ME, "r") == [0]
    assert await spans.acquire(OTHER, "w") == [0, 0]


# -- renew, release, adopt, owned ----------------------------------------------------------------------------


async def test_renew_sets_end_and_ttls_anew_and_nothing_else(spans) -> None:
    for mode, side in (("r", "readers"), ("u", "upgradables"), ("w", "writers")):
        await spans.clear()
        await spans.acquire(ME, mode, ttl=1000, retention=10_000)
        state = await spans.state()
        for _ in range(2):
            assert await spans.renew(ME, ttl=MINUTE, retention=HOUR) == 1
            assert await spans.state() == state
            seconds, _ = await spans.redis.time()
            assert about(await spans.redis.zscore(spans.ends, ME) - seconds * 1000 - 1000, MINUTE)
            for key in (spans.spans, spans.ends, spans.key(f"{side}.a"), spans.key(f"{side}.b")):
                assert await spans.lasts(key, MINUTE + SLACK)
            assert await spans.lasts(spans.fence, HOUR)


async def test_renewing_mine_renews_nobody_elses(spans) -> None:
    await spans.acquire(OTHER, "r", ttl=1000)
    end = await spans.redis.zscore(spans.ends, OTHER)
    await spans.acquire(ME, "r")
    await spans.renew(ME)

    assert await spans.redis.zscore(spans.ends, OTHER) == end


async def test_steps_by_another_are_refused_and_change_nothing(spans) -> None:
    await spans.acquire(OTHER, "w")
    await spans.wait("x", "w")
    state = await spans.state()

    for stranger in (ME, OTHER[:-1], OTHER + "0", "", "-"):
        assert await spans.renew(stranger) == 0
        assert (await spans.release(stranger))[0] == 0
        assert await spans.change(stranger, "r") == [0]
        assert await spans.adopt(stranger, THIRD, "w") == b""
        assert await spans.owned(stranger) == 0
    assert await spans.state() == state


async def test_steps_of_who_holds_nothing_write_nothing(spans) -> None:
    await spans.renew(ME)
    await spans.release(ME)
    await spans.change(ME, "r")
    await spans.adopt(ME, OTHER, "w")
    await spans.owned(ME)
    await spans.locked("w")

    assert await spans.everything() == []


async def test_release_lets_go_and_keeps_the_fence(spans) -> None:
    for mode in "ruw":
        await spans.clear()
        _, fencing, *_ = await spans.acquire(ME, mode, retention=10_000)

        assert await spans.release(ME, retention=HOUR) == [1]
        assert await spans.everything() == [spans.fence]
        assert await spans.redis.get(spans.fence) == fencing
        assert await spans.lasts(spans.fence, HOUR)
        assert await spans.release(ME) == [0]
        assert await spans.everything() == [spans.fence]


async def test_adopt_swaps_the_token_and_keeps_all_else(spans) -> None:
    for mode, side in (("r", "readers"), ("u", "upgradables"), ("w", "writers")):
        await spans.clear()
        _, fencing, *_ = await spans.acquire(ME, mode, 1, 2, ttl=1000, retention=10_000, metadata="old")

        assert await spans.adopt(ME, OTHER, mode, 1, 2, retention=HOUR, metadata="new") == fencing
        assert await spans.redis.hgetall(spans.spans) == {
            OTHER.encode(): b"%b 1 2 %b new" % (mode.encode(), fencing)
        }
        assert await spans.side(side) == [(OTHER.encode(), 1, 2)]
        assert await spans.redis.zrange(spans.ends, 0, -1) == [OTHER.encode()]
        assert await spans.lasts(spans.ends, MINUTE + SLACK)
        assert await spans.lasts(spans.fence, HOUR)
        state = await spans.state()
        assert await spans.adopt(ME, OTHER, mode, 1, 2, metadata="new") == fencing
        assert await spans.adopt(ME, THIRD, mode, 1, 2) == b""
        assert await spans.state() == state


async def test_annotate_changes_the_metadata_of_the_span_alone(spans) -> None:
    for mode, side in (("r", "readers"), ("u", "upgradables"), ("w", "writers")):
        await spans.clear()
        _, fencing, *_ = await spans.acquire(ME, mode, "1.5", "inf", metadata="old 1")
        ends = await spans.redis.zrange(spans.ends, 0, -1, withscores=True)

        for _ in range(2):
            assert await spans.annotate(ME, "new 2") == 1
            assert await spans.redis.hgetall(spans.spans) == {
                ME.encode(): b"%b 1.5 inf %b new 2" % (mode.encode(), fencing)
            }
        assert await spans.side(side) == [(ME.encode(), 1.5, float("inf"))]
        assert await spans.redis.zrange(spans.ends, 0, -1, withscores=True) == ends
        assert await spans.lasts(spans.spans, MINUTE + SLACK)


async def test_annotate_of_an_upgradable_stays_while_and_after_it_is_upgraded(spans) -> None:
    await spans.acquire(ME, "u", metadata="old")
    await spans.annotate(ME, "one")
    _, fencing, *_ = await spans.acquire(OTHER, "w", under=ME, metadata="writer")
    assert await spans.redis.hget(spans.spans, ME) == b"u 0 10 %b one" % fencing

    assert [await spans.annotate(ME, "two"), await spans.annotate(OTHER, "three")] == [1, 1]
    assert await spans.redis.hgetall(spans.spans) == {
        ME.encode(): b"u 0 10 %b two" % fencing,
        OTHER.encode(): b"w 0 10 %b three" % fencing,
    }
    await spans.release(OTHER)
    assert await spans.redis.hget(spans.spans, ME) == b"u 0 10 %b two" % fencing


async def test_annotate_by_who_does_not_hold_changes_nothing(spans) -> None:
    assert await spans.annotate(ME) == 0
    assert await spans.everything() == []
    await spans.acquire(OTHER, "r")
    await spans.acquire(THIRD, "r")
    await spans.end(THIRD)
    await spans.wait("w", "w")
    state = await spans.state()

    for token in (ME, OTHER[:-1], THIRD, "", spans.bell("w")):
        assert await spans.annotate(token) == 0
    assert await spans.state() == state


async def test_adopt_of_another_span_is_refused(spans) -> None:
    await spans.acquire(ME, "u", 1, 2)
    state = await spans.state()

    for mode, a, b in (("r", 1, 2), ("w", 1, 2), ("u", 0, 2), ("u", 1, 3)):
        assert await spans.adopt(ME, OTHER, mode, a, b) == b""
    assert await spans.state() == state


# -- waiting, and being woken --------------------------------------------------------------------------------


async def test_who_has_to_wait_is_noted_with_his_span(spans) -> None:
    await spans.acquire(ME, "w")
    await spans.acquire(OTHER, "r", 20, 30)
    for mode, mark, side in (("r", "t", "turns"), ("u", "-", "places"), ("w", "-", "places")):
        await spans.wait("x", mode, 3, 4)

        assert await spans.redis.hget(spans.spans, spans.bell("x")) == f"{mode} 3 4 {mark} -".encode()
        assert await spans.side(side) == [(spans.bell("x"), 3, 4)]
        await spans.release(token_of("x"), who="x", flags="l")
        assert await spans.side(side) == []
        assert await spans.redis.zcard(spans.waits) == 0
        assert await spans.mark("x") is None
        assert await spans.waiting() == []
        assert await spans.states("x") == [None]


async def test_who_does_not_wait_is_not_noted(spans) -> None:
    await spans.acquire(ME, "w")
    await spans.acquire(OTHER, "w", who="x")

    assert await spans.mark("x") is None
    assert await spans.side("reservations") == []


async def test_who_does_not_wait_has_no_use_of_the_marks_of_his_session(spans) -> None:
    """One try, while another task of the same session waits."""
    await spans.acquire(ME, "w")
    await spans.wait("x", "r")
    await spans.wait("y", "w")
    await spans.release(ME)

    assert (await spans.acquire(OTHER, "r", who="x"))[0] == 0
    assert (await spans.acquire(OTHER, "r", who="x", flags="w"))[0] == 1


async def test_a_try_does_not_pass_a_waiter_of_its_own_session(spans) -> None:
    await spans.acquire(ME, "u")
    await spans.wait("me", "w")
    await spans.release(ME, flags="")

    assert await spans.locked("w") == 1
    assert (await spans.acquire(OTHER, "w"))[0] == 0
    assert (await spans.come("me", "w"))[0] == 1


async def test_a_try_leaves_the_place_of_its_session_alone(spans) -> None:
    await spans.acquire(ME, "w")
    await spans.wait("x", "r")
    await spans.release(ME)
    state = await spans.mark("x"), await spans.waiting(), await spans.states("x")

    assert (await spans.acquire(OTHER, "r", 5, 6, who="x"))[0] == 1
    assert (await spans.mark("x"), await spans.waiting(), await spans.states("x")) == state


async def test_release_wakes_the_first_writer_alone(spans) -> None:
    await spans.acquire(ME, "w")
    for who in ("x", "y"):
        await spans.wait(who, "w")

    assert await spans.release(ME) == [1, spans.bell("x")]
    assert await spans.states("x", "y") == [b"rung", b""]
    assert await spans.lasts(spans.bell("x"), BELL)
    assert await spans.release(ME) == [0]  # it is on its way


async def test_who_waits_hears_that_he_was_woken(spans) -> None:
    await spans.acquire(ME, "w")
    async with spans.listening() as ear:
        await spans.acquire(OTHER, "w", who="x", flags="w")
        await ear.sit(spans, "x")
        await spans.release(ME)
        assert await ear.told() == [[b"invalidate", [spans.bell("x")]]]


async def test_release_wakes_all_readers_and_one_upgradable_up_to_the_first_writer(spans) -> None:
    await spans.acquire(ME, "w")
    for who, mode in (("a", "r"), ("b", "r"), ("u", "u"), ("c", "r"), ("v", "u"), ("w", "w"), ("d", "r")):
        await spans.wait(who, mode, *((5, 10) if who == "d" else (0, 4)))

    assert await spans.release(ME) == [1, *map(spans.bell, "abucd")]
    assert await spans.states(*"abucvwd") == [b"rung"] * 4 + [b"", b"", b"rung"]


async def test_release_wakes_all_that_may_enter_side_by_side(spans) -> None:
    await spans.acquire(ME, "w")
    for who, mode, a, b in (("x", "w", 0, 4), ("y", "w", 4, 5), ("d", "r", 6, 10), ("z", "u", 7, 8)):
        await spans.wait(who, mode, a, b)

    assert await spans.release(ME) == [1, *map(spans.bell, "xdz")]
    assert [await spans.mark(who) for who in "xydz"] == ["p", "q", "t", "t"]


async def test_behind_a_called_writer_of_everything_nobody_looks(spans) -> None:
    await spans.acquire(ME, "w")
    for who in ("x", "dead", "y"):
        await spans.wait(who, "w", *ALL)
    await spans.die("dead")
    queue = await spans.waiting()

    assert await spans.release(ME) == [1, spans.bell("x")]
    assert await spans.waiting() == queue


async def test_a_reader_has_its_turn_also_behind_a_writer_that_was_called_elsewhere(spans) -> None:
    await spans.acquire(OTHER, "r", 0, 10)
    await spans.wait("a", "w", 0, 1)
    await spans.wait("b", "w", 5, 6)
    await spans.wait("r", "r", 0, 10)
    assert await spans.release(OTHER) == [1, spans.bell("a"), spans.bell("b")]
    assert (await spans.come("b", "w", 5, 6))[0] == 1

    assert await spans.mark("r") == "t"
    assert (await spans.acquire(ME, "w", 8, 9))[0] == 0


async def test_release_wakes_nobody_who_cannot_enter(spans) -> None:
    await spans.acquire(ME, "w", 0, 10)
    await spans.acquire(OTHER, "r", 20, 30)
    await spans.wait("x", "w", 25, 26)
    await spans.wait("y", "w", 5, 6)

    assert await spans.release(ME) == [1, spans.bell("y")]


async def test_a_quiet_release_wakes_nobody(spans) -> None:
    await spans.acquire(ME, "w")
    await spans.wait("x", "w")

    assert await spans.release(ME, flags="") == [1]
    assert await spans.states("x") == [b""]


async def test_the_dead_are_passed_over_and_dropped(spans) -> None:
    await spans.acquire(ME, "w")
    for who in ("dead", "deader", "x"):
        await spans.wait(who, "w")
    await spans.die("dead", "deader")

    assert await spans.release(ME) == [1, spans.bell("x")]
    assert await spans.waiting() == [spans.bell("x") + SEAT.encode()]
    assert (await spans.come("x", "w"))[0] == 1


async def test_who_gets_in_leaves_the_queue_and_takes_the_bell_along(spans) -> None:
    await spans.acquire(ME, "w")
    for who in ("x", "y"):
        await spans.wait(who, "w")
    await spans.release(ME)

    assert (await spans.come("x", "w"))[:3:2] == [1, 1]
    assert await spans.mark("x") is None
    assert await spans.states("x", "y") == [None, b""]
    assert await spans.waiting() == [spans.bell("y") + SEAT.encode()]
    assert [one for one, *_ in await spans.side("places")] == [spans.bell("y")]


async def test_who_gets_in_and_has_others_behind_him_leaves_them_his_place_and_his_mark(spans) -> None:
    await spans.acquire(ME, "w")
    await spans.wait("x", "r")
    await spans.release(ME)

    assert (await spans.come("x", "r", flags="wps"))[0] == 1
    assert await spans.mark("x") == "t"
    assert await spans.states("x") == [b"rung"]
    assert await spans.waiting() == [spans.bell("x") + SEAT.encode()]
    assert (await spans.acquire(OTHER, "r", who="x", flags="wl"))[0] == 1
    assert await spans.mark("x") is None
    assert await spans.waiting() == []


async def test_who_leaves_wakes_who_was_held_up_by_his_mark(spans) -> None:
    await spans.acquire(ME, "r")
    await spans.wait("x", "w")
    await spans.wait("y", "r")

    assert await spans.release(token_of("x"), who="x", flags="rl") == [0, spans.bell("y")]
    assert await spans.side("reservations") == []


async def test_behind_a_reader_who_leaves_others_there_that_reach_as_far_nobody_looks(spans) -> None:
    await spans.acquire(ME, "r")
    await spans.acquire(OTHER, "r", 3, 4)
    for who in ("dead", "x"):
        await spans.wait(who, "w")
    await spans.die("dead")
    queue = await spans.waiting()

    assert await spans.release(OTHER) == [1]
    assert await spans.waiting() == queue
    assert await spans.release(ME) == [1, spans.bell("x")]


async def test_a_reader_who_leaves_others_there_that_reach_less_far_wakes(spans) -> None:
    for left, right in ((1, 10), (0, 9)):
        await spans.clear()
        await spans.acquire(ME, "r", 0, 10)
        await spans.acquire(OTHER, "r", left, right)
        await spans.wait("x", "w", 0, 0)
        await spans.wait("y", "w", 10, 10)

        rung = (await spans.release(ME))[1:]
        assert rung == [spans.bell("x" if left else "y")]


async def test_who_is_no_reader_wakes_whoever_else_reads_there(spans) -> None:
    await spans.acquire(ME, "u")
    await spans.acquire(OTHER, "r")
    await spans.wait("x", "u")

    assert await spans.release(ME) == [1, spans.bell("x")]


async def test_who_was_woken_in_vain_wakes_who_may_enter(spans) -> None:
    await spans.acquire(ME, "w", 0, 10)
    await spans.wait("x", "w", 0, 10)
    await spans.release(ME)
    await spans.redis.zadd(spans.key("writers.a"), {FOURTH: 0})
    await spans.redis.zadd(spans.key("writers.b"), {FOURTH: 1})
    await spans.acquire(THIRD, "w", 20, 30)
    await spans.wait("y", "w", 20, 30)
    await spans.release(THIRD, flags="")

    # And its own bell, which hangs again.
    assert (await spans.come("x", "w", flags="wp"))[2:] == [spans.bell("y"), spans.bell("x")]


async def test_who_is_refused_unasked_wakes_nobody_and_who_gets_in_all_who_may(spans) -> None:
    await spans.acquire(ME, "w")
    await spans.wait("x", "r")
    await spans.release(ME, flags="")

    assert (await spans.acquire(THIRD, "w", who="z"))[2:] == []
    assert await spans.states("x") == [b""]
    assert (await spans.acquire(OTHER, "r", who="y", flags="w"))[4:] == [spans.bell("x")]


async def test_who_had_reserved_lets_the_next_reserve(spans) -> None:
    await spans.acquire(ME, "r")
    for who in ("x", "y"):
        await spans.wait(who, "w")
    assert [await spans.mark(who) for who in ("x", "y")] == ["p", "q"]
    await spans.release(ME, flags="")

    assert (await spans.come("x", "w", flags="wl"))[0] == 1
    assert await spans.mark("y") == "q"
    await spans.release(token_of("x"))
    assert await spans.mark("y") == "p"


async def test_a_reservation_that_goes_leaves_the_next_writer_one(spans) -> None:
    """But one that waits behind an upgradable keeps no reader out, until that has left."""
    await spans.acquire(ME, "r")
    await spans.wait("x", "w")
    await spans.wait("u", "u")
    await spans.acquire(token_of("y"), "w", who="y", flags="w")
    assert await spans.mark("y") == "q"

    assert await spans.release(token_of("x"), who="x", flags="rl") == [0, spans.bell("u")]
    assert [await spans.mark(who) for who in "uy"] == ["t", "q"]
    assert await spans.locked("r") == 0
    assert (await spans.come("y", "w", flags="w"))[0] == 0, "the upgradable was called before"
    assert (await spans.come("u", "u"))[0] == 1
    assert [await spans.mark("y"), await spans.locked("r")] == ["q", 0]

    await spans.release(token_of("u"), who="u")
    assert [await spans.mark("y"), await spans.locked("r")] == ["p", 1]
    await spans.wait("z", "w")
    assert await spans.mark("z") == "q"
    await spans.release(ME)
    assert await spans.release(token_of("y"), who="y", flags="rl") == [0, spans.bell("z")]
    assert await spans.locked("r") == 1, "it was called, and is on its way"


async def test_a_reader_that_is_called_is_not_stopped_by_a_writer_that_came_after_it(spans) -> None:
    await spans.acquire(ME, "r")
    for who, mode in (("x", "w"), ("q", "r"), ("r", "r"), ("y", "w")):
        await spans.wait(who, mode)

    assert await spans.release(token_of("x"), who="x", flags="rl") == [0, spans.bell("q"), spans.bell("r")]
    assert await spans.mark("y") == "p"
    assert (await spans.come("r", "r"))[0] == 1  # before the one that stands first


async def test_a_refusal_gives_a_place_in_the_queue_and_a_bell_until_its_session_listens(spans) -> None:
    await spans.acquire(ME, "w")
    await spans.acquire(OTHER, "r")
    assert await spans.waiting() == []
    await spans.acquire(OTHER, "r", who="x", flags="w")

    assert await spans.waiting() == [spans.bell("x") + SEAT.encode()]
    assert await spans.states("x") == [b""]
    assert await spans.lasts(spans.bell("x"), BELL)
    assert await spans.release(ME) == [1, spans.bell("x")]
    assert (await spans.acquire(OTHER, "r", who="x", flags="w"))[0] == 1
    assert await spans.states("x") == [None], "though it did not say that it has one"


async def test_a_waiter_whose_bell_is_gone_is_told_and_gets_one_that_hangs(spans) -> None:
    await spans.acquire(ME, "w")
    await spans.wait("x", "r")
    await spans.die("x")
    answer = await spans.come("x", "r", flags="wq")

    assert spans.bell("x") in answer[2:]
    assert await spans.states("x") == [b""]


async def test_a_reader_that_was_refused_has_its_turn_before_it_listens(spans) -> None:
    await spans.acquire(ME, "r")
    await spans.wait("x", "w")
    await spans.acquire(OTHER, "r", who="y", flags="w")
    await spans.release(ME)
    await spans.come("x", "w")

    assert await spans.mark("y") == "t"


async def test_upgradables_of_two_parts_are_called_at_once(spans) -> None:
    await spans.acquire(ME, "w", 0, 30)
    await spans.wait("x", "u", 0, 10)
    await spans.wait("late", "u", 10, 12)
    await spans.wait("y", "u", 20, 30)

    assert await spans.release(ME) == [1, spans.bell("x"), spans.bell("y")]
    assert [await spans.mark(who) for who in ("x", "late", "y")] == ["t", "q", "t"]


async def test_the_walk_goes_on_with_who_stands_behind_its_end(spans) -> None:
    await spans.acquire(ME, "r", 0, 1)
    await spans.acquire(OTHER, "w", 50, 60)
    blocked = [f"b{number}" for number in range(WALK + 2)]
    for who in [*blocked, "dead"]:
        await spans.wait(who, "w", 0, 1)
    await spans.wait("x", "r", 50, 60)
    await spans.die("dead", "b3")

    last = blocked[-1]
    assert await spans.release(OTHER) == [1, spans.bell(last)]
    assert await spans.states("x") == [b""]
    assert (await spans.come(last, "w", 0, 1, flags="wp"))[2:] == [spans.bell("x"), spans.bell(last)]


async def test_a_reader_behind_many_who_wait_gets_his_turn(spans) -> None:
    await spans.acquire(ME, "w")
    for number in range(WALK - 1):
        await spans.wait(f"b{number}", "w")
    await spans.wait("x", "r")

    assert await spans.release(ME) == [1, spans.bell("x")]
    assert (await spans.come("b0", "w"))[0] == 0


async def test_the_walk_ends_where_somebody_was_woken(spans) -> None:
    await spans.acquire(ME, "w")
    readers = [f"r{number}" for number in range(WALK + 4)]
    for who in readers:
        await spans.wait(who, "r")

    assert await spans.release(ME) == [1, *map(spans.bell, readers[:WALK])]
    assert (await spans.come("r0", "r"))[4:] == [spans.bell(f"r{WALK}")]
    assert (await spans.come("r5", "r"))[4:] == [spans.bell(f"r{WALK + 1}")]
    await spans.redis.set(spans.bell("r2"), "rung", px=BELL)
    assert (await spans.come("r2", "r", flags="wl"))[4:] == [spans.bell(f"r{WALK + 2}")]


async def test_who_stands_behind_the_walk_and_is_blocked_walks_on_from_there(spans) -> None:
    await spans.acquire(ME, "r", 0, 1)
    await spans.acquire(OTHER, "w", 50, 60)
    for number in range(2 * WALK + 8):
        await spans.wait(f"b{number}", "w", 0, 1)
    await spans.wait("x", "r", 50, 60)

    rung = (await spans.release(OTHER))[1:]
    for _ in range(3):
        if rung == [spans.bell("x")]:
            break
        [bell] = rung
        who = bell.split(b"bell.")[1].split(b":")[0].decode()
        *rung, own = (await spans.come(who, "w", 0, 1, flags="wp"))[2:]
        assert own == bell  # it hangs again
    assert rung == [spans.bell("x")]


# -- reservations and turns ----------------------------------------------------------------------------------


async def test_a_writer_that_waits_keeps_new_ones_out(spans) -> None:
    await spans.acquire(ME, "r", 0, 10)
    await spans.wait("x", "w", 5, 15)

    for mode in "ruw":
        assert (mode, await spans.locked(mode, 15, 20), await spans.locked(mode, 16, 20)) == (mode, 1, 0)
        assert (await spans.acquire(OTHER, mode, 8, 9))[0] == 0
    await spans.release(ME)
    assert (await spans.come("x", "w", 5, 15))[0] == 1


async def test_of_writers_that_overlap_one_reserves(spans) -> None:
    await spans.acquire(ME, "r", 0, 10)
    await spans.wait("x", "w", 0, 5)
    await spans.wait("y", "w", 5, 10)
    await spans.wait("z", "w", 6, 10)

    assert [await spans.mark(who) for who in "xyz"] == ["p", "q", "q"]


async def test_phases_alternate(spans) -> None:
    """One writes, another has reserved, a reader waits: the reader goes before the second."""
    await spans.acquire(ME, "w")
    await spans.wait("w2", "w")
    await spans.wait("r", "r")
    assert [await spans.mark(who) for who in ("w2", "r")] == ["q", "t"]

    assert await spans.release(ME) == [1, spans.bell("r")]
    assert (await spans.come("w2", "w", flags="w"))[0] == 0
    assert await spans.mark("w2") == "p"
    assert (await spans.acquire(OTHER, "r"))[0] == 0  # without a turn
    assert (await spans.come("r", "r"))[0] == 1
    assert (await spans.come("w2", "w", flags="w"))[0] == 0
    assert await spans.release(token_of("r")) == [1, spans.bell("w2")]
    assert (await spans.come("w2", "w"))[0] == 1


async def test_a_reader_that_came_between_has_his_turn_when_the_next_writer_leaves(spans) -> None:
    await spans.acquire(ME, "r")
    await spans.wait("w1", "w")
    await spans.wait("r", "r")
    await spans.wait("w2", "w")
    assert [await spans.mark(who) for who in ("w1", "r", "w2")] == ["p", "-", "q"]
    await spans.release(ME)
    assert await spans.mark("r") == "-"
    assert (await spans.come("w1", "w"))[0] == 1
    assert [await spans.mark(who) for who in ("r", "w2")] == ["t", "q"]

    assert await spans.release(token_of("w1")) == [1, spans.bell("r")]
    assert await spans.mark("r") == "t"
    assert (await spans.come("w2", "w", flags="w"))[0] == 0
    assert (await spans.come("r", "r"))[0] == 1


async def test_only_who_overlaps_what_was_left_gets_a_turn(spans) -> None:
    for a, b, mark in ((0, 0, "t"), (10, 12, "t"), (11, 12, "-"), (-3, -1, "-"), (3, 4, "t"), (-5, 20, "t")):
        await spans.clear()
        await spans.acquire(OTHER, "r", -100, 100)
        await spans.wait("p", "w", -100, 100)
        await spans.wait("r", "r", a, b)
        await spans.redis.hset(spans.spans, ME, "w 0 10 1 {}")
        await spans.redis.zadd(spans.ends, {ME: 2e13})

        assert (await spans.release(ME))[0] == 1
        assert (a, b, await spans.mark("r")) == (a, b, mark)


async def test_what_a_reader_leaves_gives_nobody_a_turn(spans) -> None:
    await spans.acquire(ME, "r", -200, 100)
    await spans.acquire(OTHER, "r", -100, 100)
    await spans.wait("w", "w", -100, 100)
    await spans.wait("r", "r", 0, 10)

    assert await spans.release(ME) == [1]
    assert await spans.mark("r") == "-"


async def test_writers_and_upgradables_enter_in_the_order_of_asking(spans) -> None:
    """Whichever of them is inside, and whatever readers do beside them."""
    for inside in "wu":
        await spans.clear()
        await spans.acquire(ME, inside)
        order = [("w1", "w"), ("u1", "u"), ("u2", "u"), ("w2", "w"), ("u3", "u")]
        for who, mode in order:
            await spans.wait(who, mode)
        await spans.release(ME)
        for number, (who, mode) in enumerate(order):
            for later, other in order[number + 1 :]:
                assert (await spans.come(later, other, flags="w"))[0] == 0
            for new in "uw":
                assert (await spans.acquire(FOURTH, new))[0] == 0
            assert (inside, who, (await spans.come(who, mode))[0]) == (inside, who, 1)
            rung = (await spans.release(token_of(who)))[1:]
            assert rung == [spans.bell(one) for one, _ in order[number + 1 : number + 2]]


async def test_a_writer_behind_an_upgradable_keeps_no_reader_out(spans) -> None:
    await spans.acquire(ME, "u", 0, 10)
    await spans.acquire(OTHER, "r", 0, 10)
    await spans.wait("x", "w", 5, 15)

    assert [await spans.locked("r", 0, 9), await spans.locked("r", 12, 13)] == [0, 0]
    assert [await spans.locked(mode, 12, 13) for mode in "uw"] == [1, 1]
    assert (await spans.acquire(THIRD, "r", 12, 13))[0] == 1
    await spans.release(ME)
    assert [await spans.mark("x"), await spans.locked("r", 12, 13)] == ["p", 1]
    await spans.release(OTHER)
    assert await spans.release(THIRD) == [1, spans.bell("x")]


async def test_a_writer_behind_another_waiter_keeps_no_reader_out(spans) -> None:
    """Of the part that the other one does not want, and that nobody holds."""
    await spans.acquire(ME, "u", 0, 4)
    await spans.wait("before", "w", 3, 7)
    await spans.wait("x", "w", 6, 12)

    assert await spans.locked("r", 10, 11) == 0
    assert await spans.locked("u", 10, 11) == 1
    assert (await spans.acquire(OTHER, "r", 12, 13))[0] == 1
    await spans.release(token_of("before"), who="before", flags="rl")
    assert await spans.locked("r", 10, 11) == 1


async def test_a_reservation_becomes_a_place_again_where_an_upgradable_got_in_before_it(spans) -> None:
    """As the version before this one lets it in."""
    await spans.acquire(ME, "r")
    await spans.wait("x", "w")
    assert await spans.mark("x") == "p"
    await spans.redis.hset(spans.spans, OTHER, "u 0 10 1 {}")
    await spans.redis.zadd(spans.ends, {OTHER: 2e13})
    for end, value in (("a", 0), ("b", 10)):
        await spans.redis.zadd(spans.key(f"upgradables.{end}"), {OTHER: value})
    await spans.come("x", "w", flags="w")

    assert [await spans.mark("x"), await spans.locked("r")] == ["q", 0]
    assert await spans.side("reservations") == []
    assert [one for one, *_ in await spans.side("places")] == [spans.bell("x")]


async def test_a_place_that_nobody_has_keeps_no_newcomer_out(spans) -> None:
    """The version before this one removes a waiter that has died, and does not know of its place."""
    await spans.acquire(ME, "u")
    await spans.wait("x", "w")
    await spans.redis.hdel(spans.spans, spans.bell("x"))
    await spans.redis.zrem(spans.waits, spans.bell("x"))
    await spans.redis.zrem(spans.key("queue"), spans.bell("x") + SEAT.encode())
    await spans.acquire(OTHER, "r", 20, 30)
    await spans.wait("z", "w", 20, 30)
    await spans.release(ME)

    assert [one for one, *_ in await spans.side("places")] == [spans.bell("x")]
    assert (await spans.acquire(THIRD, "w"))[0] == 1
    await spans.release(THIRD)
    await spans.acquire(ME, "u")
    await spans.wait("y", "w")
    assert await spans.release(ME) == [1, spans.bell("y")]


async def test_a_place_of_a_waiter_that_has_died_keeps_nobody_out(spans) -> None:
    await spans.acquire(ME, "r")
    await spans.wait("dead", "w", marks=MINUTE)
    await spans.acquire(OTHER, "r", 20, 30)
    await spans.wait("y", "w", 20, 30)
    await spans.redis.delete(spans.bell("dead"))

    assert (await spans.acquire(THIRD, "u"))[0] == 1


async def test_a_place_under_the_bell_of_another_name_keeps_nobody_out(spans) -> None:
    """A queue is data: no step reads another key because a queue names it."""
    await spans.acquire(OTHER, "r", 20, 30)
    await spans.wait("y", "w", 20, 30)
    other = spans.bell("x").replace(spans.name.encode(), b"another")
    await spans.redis.set(other, "", px=MINUTE)
    await spans.redis.zadd(spans.key("queue"), {other + SEAT.encode(): 1})
    for end in "ab":
        await spans.redis.zadd(spans.key(f"places.{end}"), {other: 5})

    assert (await spans.acquire(THIRD, "w"))[0] == 1


async def test_of_many_places_elsewhere_an_earlier_one_may_be_behind_those_that_are_looked_at(spans) -> None:
    """Then one that has not been called waits."""
    await spans.acquire(OTHER, "r", -9, -8)
    await spans.wait("first", "w", -9, -8)
    await spans.acquire(ME, "u", 0, 1000)
    await spans.wait("wide", "w", 0, 1000)
    await spans.wait("x", "u", 2, 3)
    for number in range(WALK):
        await spans.seat(f"n{number}", "w", 10 + number, 10 + number)
    await spans.release(ME, flags="")

    assert (await spans.acquire(FOURTH, "w", 4, 5))[0] == 0
    assert (await spans.come("x", "u", 2, 3, flags="w"))[0] == 0
    await spans.release(token_of("wide"), who="wide", flags="l")
    assert (await spans.come("x", "u", 2, 3, flags="w"))[0] == 1
    assert (await spans.acquire(FOURTH, "w", 4, 5))[0] == 1


async def test_who_asks_before_a_walk_has_its_place_in_the_order(spans) -> None:
    await spans.acquire(OTHER, "r", 20, 30)
    await spans.wait("z", "w", 20, 30)
    await spans.acquire(ME, "u")
    for who in "xy":
        await spans.wait(who, "w")
    await spans.release(ME, flags="")

    assert (await spans.come("y", "w", flags="w"))[0] == 0
    assert (await spans.come("x", "w", flags="w"))[0] == 1


async def test_a_place_that_has_lost_its_right_end_keeps_nobody_out(spans) -> None:
    await spans.acquire(OTHER, "r", 20, 30)
    await spans.wait("z", "w", 20, 30)
    await spans.redis.zadd(spans.key("places.a"), {spans.bell("x"): 5})

    assert (await spans.acquire(THIRD, "w"))[0] == 1


async def test_behind_the_walk_waiters_keep_their_order_too(spans) -> None:
    await spans.acquire(ME, "r", 0, 1)
    await spans.acquire(OTHER, "w", 50, 60)
    for number in range(WALK):
        await spans.seat(f"b{number}", "w", 0, 55 if number == 3 else 1)
    for who, mode, a, b in (("guide", "w", 0, 1), ("x", "u", 54, 56), ("y", "u", 57, 58), ("z", "u", 58, 59)):
        await spans.wait(who, mode, a, b)

    assert await spans.release(OTHER) == [1, spans.bell("guide")]
    assert (await spans.come("guide", "w", 0, 1, flags="wp"))[2] == spans.bell("y")
    assert [await spans.mark(who) for who in "xyz"] == ["q", "t", "q"]


async def test_behind_the_walk_a_waiter_does_not_count_itself(spans) -> None:
    """Nor a later one that overlaps, among as many as are looked at."""
    await spans.acquire(ME, "r", 0, 1)
    await spans.acquire(OTHER, "w", 50, 60)
    for number in range(WALK):
        await spans.seat(f"b{number}", "w", 0, 1)
    for who, mode, a, b in (("guide", "w", 0, 1), ("x", "u", 50, 52), ("y", "u", 52, 52.5)):
        await spans.wait(who, mode, a, b)
    for number in range(WALK - 2):
        await spans.seat(f"n{number}", "u", 53, 53 + number / 1000)

    assert await spans.release(OTHER) == [1, spans.bell("guide")]
    assert (await spans.come("guide", "w", 0, 1, flags="wp"))[2] == spans.bell("x")
    assert [await spans.mark(who) for who in "xy"] == ["t", "q"]


async def test_a_called_upgradable_is_passed_by_no_newcomer(spans) -> None:
    await spans.acquire(ME, "u")
    await spans.wait("x", "u")
    assert await spans.release(ME) == [1, spans.bell("x")]

    assert [await spans.locked(mode) for mode in "ruw"] == [0, 1, 1]
    assert (await spans.come("x", "u"))[0] == 1


async def test_a_called_upgradable_keeps_no_upgrade_out(spans) -> None:
    """Of another part, which its own session may wait for."""
    await spans.acquire(ME, "u", 0, 4)
    await spans.acquire(OTHER, "w", 5, 9)
    await spans.wait("x", "u", 4.5, 9)
    await spans.release(OTHER)
    await spans.acquire(THIRD, "r", 0, 1)

    assert await spans.mark("x") == "t"
    assert await spans.side("calls") == []
    assert (await spans.acquire(FOURTH, "w", 2, 4, under=ME))[0] == 1


async def test_a_turn_keeps_no_reader_out(spans) -> None:
    await spans.acquire(ME, "w")
    await spans.wait("r", "r")
    await spans.release(ME)

    assert (await spans.acquire(OTHER, "r"))[0] == 1
    assert (await spans.acquire(THIRD, "u"))[0] == 1
    assert (await spans.acquire(FOURTH, "w"))[0] == 0


async def test_a_wide_writer_that_waits_longest_is_not_held_up_by_narrow_ones(spans) -> None:
    await spans.acquire(ME, "r", 0, 100)
    await spans.wait("a", "w", 0, 1)
    await spans.wait("wide", "w", 0, 100)
    await spans.wait("b", "w", 5, 6)
    assert [await spans.mark(who) for who in ("a", "wide", "b")] == ["p", "q", "q"]
    await spans.release(ME)
    assert (await spans.come("a", "w", 0, 1))[0] == 1

    assert await spans.mark("wide") == "q"
    await spans.wait("c", "w", 0, 1)
    assert await spans.mark("c") == "q"
    assert (await spans.come("b", "w", 5, 6, flags="w"))[0] == 0
    assert (await spans.release(token_of("a")))[1:] == [spans.bell("wide")]
    assert (await spans.come("wide", "w", 0, 100))[0] == 1


async def test_a_writer_that_was_taken_for_dead_has_lost_its_place(spans) -> None:
    """Its marks outlast its bell, and others have gone before it meanwhile."""
    await spans.acquire(ME, "r")
    await spans.wait("x", "w", marks=MINUTE)
    await spans.wait("y", "w")
    await spans.die("x")
    await spans.acquire(OTHER, "r", 20, 30)
    await spans.renew(ME)
    await spans.release(OTHER)
    assert await spans.mark("y") == "p"
    await spans.come("x", "w", flags="w")

    assert await spans.mark("x") == "q"
    assert await spans.release(ME) == [1, spans.bell("y")]
    assert (await spans.come("x", "w", flags="w"))[0] == 0


async def test_who_waits_longest_reserves_at_once(spans) -> None:
    """Over the reservation of a waiter that has died."""
    await spans.acquire(ME, "r")
    await spans.wait("dead", "w")
    await spans.wait("x", "w")
    assert await spans.mark("x") == "q"
    await spans.die("dead")
    await spans.come("x", "w", flags="w")

    assert await spans.mark("x") == "p"


async def test_the_first_of_all_that_wait_passes_reservations_that_wait_for_each_other(spans) -> None:
    """As after the server's clock was set back: a waiter that came later stands before all others."""
    for mode in "ru":
        await spans.clear()
        await spans.acquire(ME, "r", 0, 1)
        await spans.wait("narrow", "w", 0, 1)
        await spans.acquire(OTHER, "r", 3, 4)
        await spans.wait("wide", "w", 0, 4)
        await spans.redis.zadd(spans.key("queue"), {spans.bell("wide") + SEAT.encode(): 1})
        await spans.come("wide", "w", 0, 4, flags="w")
        assert [await spans.mark(who) for who in ("narrow", "wide")] == ["p", "p"]
        await spans.wait("late", mode, 0, 1)
        await spans.redis.zadd(spans.key("queue"), {spans.bell("late") + SEAT.encode(): 0})
        assert await spans.mark("late") == {"r": "-", "u": "q"}[mode]
        await spans.release(OTHER, flags="")

        assert (mode, (await spans.release(ME))[1:]) == (mode, [spans.bell("late")])
        assert (mode, (await spans.come("late", mode, 0, 1))[0]) == (mode, 1)


# -- upgrades ------------------------------------------------------------------------------------------------


async def test_an_upgrade_enters_under_its_upgradable_which_inherits_its_fencing_token(spans) -> None:
    _, first, *_ = await spans.acquire(ME, "u", 0, 10, metadata="{ }", ttl=MINUTE)
    granted, second, *_ = await spans.acquire(OTHER, "w", 2, 3, under=ME, ttl=1000)

    assert granted == 1
    assert int(second) > int(first)
    assert await spans.redis.hget(spans.spans, ME) == b"u 0 10 %b { }" % second
    assert await spans.held() == {ME.encode(): b"u 0 10", OTHER.encode(): b"w 2 3"}
    assert await spans.adopt(ME, THIRD, "u") == second
    assert [await spans.locked("r", 2, 2), await spans.locked("r", 4, 5)] == [1, 0]


async def test_an_upgrade_of_what_is_not_held_is_refused(spans) -> None:
    await spans.acquire(ME, "u", 0, 10)
    await spans.acquire(OTHER, "r", 20, 30)
    await spans.acquire(THIRD, "w", 40, 50)
    state = await spans.state()

    for under, a, b in ((ME, -1, 10), (ME, 0, 11), (OTHER, 20, 30), (THIRD, 40, 50), (FOURTH, 60, 70)):
        assert await spans.acquire("ee" * 16, "w", a, b, under=under, who="x", flags="w") == [0, -3]
    assert await spans.state() == state
    await spans.end(ME)
    assert await spans.acquire("ee" * 16, "w", 0, 10, under=ME) == [0, -3]


async def test_an_upgrade_waits_for_the_readers_inside_and_keeps_new_ones_out(spans) -> None:
    await spans.acquire(ME, "u")
    await spans.acquire(OTHER, "r")
    await spans.wait("up", "w", under=ME)

    assert await spans.mark("up") == "p"
    assert (await spans.acquire(THIRD, "r"))[0] == 0
    assert await spans.release(OTHER) == [1, spans.bell("up")]
    assert (await spans.come("up", "w", under=ME))[0] == 1


async def test_an_upgrade_goes_before_a_writer_that_waits(spans) -> None:
    await spans.acquire(ME, "u")
    await spans.acquire(OTHER, "r")
    await spans.wait("w2", "w")
    await spans.wait("up", "w", under=ME)

    assert [await spans.mark(who) for who in ("w2", "up")] == ["q", "p"]
    assert await spans.release(OTHER) == [1, spans.bell("up")]
    assert (await spans.come("w2", "w", flags="w"))[0] == 0
    assert (await spans.come("up", "w", under=ME))[0] == 1
    await spans.release(token_of("up"))
    assert await spans.release(ME) == [1, spans.bell("w2")]
    assert (await spans.come("w2", "w"))[0] == 1


async def test_an_upgrade_is_not_entered_beside_another_upgradable(spans) -> None:
    await spans.acquire(ME, "u", 0, 10)
    await spans.redis.zadd(spans.key("upgradables.a"), {FOURTH: 5})
    await spans.redis.zadd(spans.key("upgradables.b"), {FOURTH: 6})

    assert (await spans.acquire(OTHER, "w", 5, 5, under=ME))[0] == 0
    assert (await spans.acquire(OTHER, "w", 1, 2, under=ME))[0] == 1


async def test_two_parts_of_one_upgradable_are_upgraded_side_by_side(spans) -> None:
    await spans.acquire(ME, "u", 0, 10)
    assert (await spans.acquire(OTHER, "w", 0, 4, under=ME))[0] == 1
    assert (await spans.acquire(THIRD, "w", 4, 6, under=ME))[0] == 0
    assert (await spans.acquire(THIRD, "w", 6, 9, under=ME))[0] == 1


async def test_an_upgrade_does_not_wait_for_a_reader_that_waits_for_another_one(spans) -> None:
    await spans.acquire(ME, "u", 0, 10)
    await spans.acquire(OTHER, "w", 0, 4, under=ME)
    await spans.wait("r", "r", 0, 10)

    assert (await spans.acquire(THIRD, "w", 6, 9, under=ME))[0] == 1
    assert await spans.release(OTHER) == [1]
    assert await spans.release(THIRD) == [1, spans.bell("r")]


async def test_behind_an_upgrade_the_readers_that_waited_go_before_the_next(spans) -> None:
    await spans.acquire(ME, "u")
    await spans.acquire(OTHER, "w", under=ME)
    await spans.wait("r", "r")

    assert await spans.release(OTHER) == [1, spans.bell("r")]
    assert (await spans.acquire(OTHER, "w", under=ME, who="up", flags="w"))[0] == 0
    assert (await spans.come("r", "r"))[0] == 1
    assert await spans.side("calls") == []
    await spans.sit("up")
    assert await spans.release(token_of("r")) == [1, spans.bell("up")]
    assert (await spans.acquire(OTHER, "w", under=ME, who="up", flags="wpl"))[0] == 1


async def test_who_was_called_and_dies_holds_up_nobody_for_long(spans) -> None:
    await spans.acquire(ME, "u")
    await spans.acquire(OTHER, "w", under=ME)
    await spans.wait("r", "r")
    await spans.release(OTHER)
    assert (await spans.acquire(OTHER, "w", under=ME))[0] == 0
    await spans.end_waiting("r")

    assert (await spans.acquire(OTHER, "w", under=ME))[0] == 1


async def test_who_was_called_and_leaves_holds_up_nobody(spans) -> None:
    await spans.acquire(ME, "u")
    await spans.acquire(OTHER, "w", under=ME)
    await spans.wait("r", "r")
    await spans.release(OTHER)
    await spans.release(token_of("r"), who="r", flags="rl")

    assert (await spans.acquire(OTHER, "w", under=ME))[0] == 1


async def test_who_was_called_in_vain_holds_up_nobody(spans) -> None:
    await spans.acquire(ME, "u", 0, 10)
    await spans.acquire(OTHER, "w", 0, 4, under=ME)
    await spans.wait("r", "r", 0, 10)
    await spans.release(OTHER)
    assert [one for one, *_ in await spans.side("calls")] == [spans.bell("r")]
    await spans.redis.zadd(spans.key("writers.a"), {FOURTH: 8})
    await spans.redis.zadd(spans.key("writers.b"), {FOURTH: 9})
    assert (await spans.come("r", "r", 0, 10, flags="wp"))[0] == 0

    assert (await spans.acquire(THIRD, "w", 0, 4, under=ME))[0] == 1


async def test_a_writer_is_not_kept_out_for_ever_by_upgradables_that_upgrade(spans) -> None:
    await spans.acquire(token_of("u0"), "u")
    await spans.wait("w", "w")
    entered = False
    for number in range(4):
        holder, after = f"u{number}", f"u{number + 1}"
        assert (await spans.acquire(OTHER, "w", under=token_of(holder)))[0] == 1
        await spans.wait(after, "u")
        await spans.release(OTHER)
        await spans.release(token_of(holder))
        entered = (await spans.come("w", "w", flags="wp"))[0] == 1
        if entered or (await spans.come(after, "u"))[0] == 0:
            break
    assert entered


# -- change --------------------------------------------------------------------------------------------------


async def test_downgrade_makes_a_writer_a_reader_in_place_and_wakes_readers(spans) -> None:
    _, fencing, *_ = await spans.acquire(ME, "w", ttl=MINUTE, metadata="{ }")
    await spans.wait("w2", "w")
    await spans.wait("r", "r")
    await spans.wait("u", "u")

    assert await spans.change(ME, "r") == [1, spans.bell("r")]
    assert await spans.redis.hget(spans.spans, ME) == b"r 0 10 %b { }" % fencing
    assert await spans.side("writers") == []
    assert await spans.side("readers") == [(ME.encode(), 0, 10)]
    assert await spans.change(ME, "r") == [1]
    assert (await spans.come("w2", "w", flags="w"))[0] == 0
    assert (await spans.come("r", "r"))[0] == 1


async def test_shrink_gives_the_rest_back_and_wakes_who_waited_for_it(spans) -> None:
    for mode, side in (("w", "writers"), ("u", "upgradables"), ("r", "readers")):
        await spans.clear()
        await spans.acquire(ME, mode, 0, 10)
        await spans.wait("x", "w", 8, 9)
        await spans.wait("y", "w", 3, 4)

        assert await spans.change(ME, mode, 2, 5) == [1, spans.bell("x")]
        assert await spans.held() == {ME.encode(): f"{mode} 2 5".encode()}
        assert await spans.side(side) == [(ME.encode(), 2, 5)]
        assert await spans.states("y") == [b""]
        state = await spans.state()
        assert await spans.change(ME, mode, 2, 5) == [1]
        assert await spans.state() == state


async def test_change_keeps_the_end_of_the_lease(spans) -> None:
    await spans.acquire(ME, "w", ttl=MINUTE)
    end = await spans.redis.zscore(spans.ends, ME)
    await spans.change(ME, "r", 1, 2)

    assert abs(await spans.redis.zscore(spans.ends, ME) - end) <= 1
    assert await spans.lasts(spans.key("readers.a"), MINUTE + SLACK)


async def test_change_to_more_than_it_is_is_refused(spans) -> None:
    for mode, wanted in (("w", "wru"), ("u", "urw"), ("r", "ruw")):
        await spans.clear()
        await spans.acquire(ME, mode, 0, 10)
        state = await spans.state()
        for other in wanted[0], *wanted[1:]:
            assert await spans.change(ME, other, -1, 10) == [-1]
            assert await spans.change(ME, other, 0, 11) == [-1]
            if other != mode and (mode, other) != ("w", "r"):
                assert await spans.change(ME, other, 0, 10) == [-1]
        assert await spans.state() == state


async def test_ends_are_compared_as_numbers(spans) -> None:
    await spans.acquire(ME, "w", "-inf", "100")

    assert (await spans.change(ME, "w", "-5", "20"))[0] == 1
    assert (await spans.change(ME, "w", "-5", "1e1"))[0] == 1
    assert await spans.change(ME, "w", "-5", "11") == [-1]


# -- each step, alike ----------------------------------------------------------------------------------------


async def test_everything_that_stands_there_has_a_ttl(spans) -> None:
    steps: list[Callable[[], Awaitable[Any]]] = [
        lambda: spans.acquire(ME, "u"),
        lambda: spans.acquire(OTHER, "w", 1, 2, under=ME),
        lambda: spans.wait("r", "r"),
        lambda: spans.wait("w", "w"),
        lambda: spans.renew(OTHER),
        lambda: spans.release(OTHER),
        lambda: spans.come("r", "r", flags="wps"),
        lambda: spans.adopt(ME, THIRD, "u"),
        lambda: spans.change(THIRD, "u", 3, 4),
        lambda: spans.release(THIRD),
        lambda: spans.release(token_of("r"), who="r", flags="rl"),
        lambda: spans.come("w", "w"),
        lambda: spans.change(token_of("w"), "r"),
    ]
    for number, step in enumerate(steps):
        await step()
        ttls = await spans.ttls()
        assert min(ttls.values()) > 0, (number, ttls)


async def test_the_commands_say_to_the_scripts_what_these_tests_say(spans) -> None:
    def commands(under: str = "") -> SpanSteps:
        return SpanSteps(
            spans.prefix,
            "rangelock",
            spans.name,
            Span("w", "0.0", "inf"),
            label="label",
            under=under,
            retention_ms=HOUR,
            longest_sleep_ms=1000,
            session="s",
        )

    plain, upgrade, who = commands(), commands(ME), "s.w.0.0_inf"
    span = ("w", "0.0", "inf")
    said = [
        (plain.acquire(ME, MINUTE, "{}"), spans.acquiring(ME, *span, who=who, marks=4000)),
        (
            plain.acquire(ME, MINUTE, "{}", WAITING | PASSING | SEATED),
            spans.acquiring(ME, *span, who=who, marks=4000, flags="qpwl"),
        ),
        (
            upgrade.acquire(OTHER, MINUTE, "{}", WAITING | SEATED | STAYING),
            spans.acquiring(OTHER, *span, who=f"{who}.{ME[:16]}", under=ME, marks=4000, flags="qsw"),
        ),
        (plain.release(ME, MINUTE), spans.releasing(ME, who=who)),
        (plain.release(ME, MINUTE, ring=False, leave=True), spans.releasing(ME, who=who, flags="l")),
    ]
    for command, words in said:
        assert tuple(map(str, command.words(as_eval=True)[2:])) == tuple(map(str, words[2:]))
        assert spans.mutant or command.script.text == words[1]
    assert plain.bell == spans.bell(who)
    assert plain.listener(ME) == Listener(
        plain.bell,
        (spans.queue,),
        SEAT,
        deadlines=(spans.key("ends"), spans.key("waits")),
        marks=tuple(map(spans.key, ("waits", "", "ends", *MARKS))),
        marks_ms=4000,
    )


@pytest.mark.parametrize("protocol", [2, 3])
async def test_replies_are_integers_and_strings_alone(connect, prefix, protocol) -> None:
    spans = SpanScripts(connect(protocol=protocol), prefix)
    replies = [
        await spans.acquire(ME, "w"),
        await spans.wait("x", "r"),
        await spans.acquire(OTHER, "w", under=ME),
        await spans.locked("r"),
        await spans.owned(ME),
        await spans.renew(ME),
        await spans.adopt(ME, OTHER, "w"),
        await spans.change(OTHER, "r"),
        await spans.change(OTHER, "w"),
        await spans.change(ME, "w"),
        await spans.release(OTHER),
    ]
    assert [
        [type(item) for item in (reply if isinstance(reply, list) else [reply])] for reply in replies
    ] == [
        [int, bytes, int, int],
        [int, int],
        [int, int],
        [int],
        [int],
        [int],
        [bytes],
        [int, bytes],
        [int],
        [int],
        [int],
    ]


@pytest.mark.parametrize("name", ["plain", "user:{42}:cart", "a%b:{x}{y}", "{}"])
def test_all_keys_of_a_name_share_a_slot(name) -> None:
    commands = SpanSteps(
        "shop",
        "rwlock",
        name,
        Span("w", *ALL),
        label="",
        retention_ms=HOUR,
        longest_sleep_ms=64,
        session="x",
    )
    keys = {*commands.acquire(ME, MINUTE, "{}").keys}

    assert len(keys) == 20
    assert len({key_slot(key) for key in keys}) == 1


async def test_a_key_of_another_type_is_an_error_before_anything_is_taken(spans) -> None:
    for number, role in enumerate(spans.roles, start=1):
        for mode in ("r", "u", "w"):
            await spans.clear()
            await spans.redis.rpush(spans.key(role), "data")

            with pytest.raises(ResponseError, match=f"FOREIGN {number} |FOREIGN {number}$"):
                await spans.acquire(ME, mode)
            assert await spans.everything() == [spans.key(role)]


async def test_members_of_others_are_refused_and_stay(spans) -> None:
    for number, role in enumerate(spans.roles, start=1):
        if role in ("", "fence"):
            continue
        for score in (1, 1e15):
            await spans.clear()
            await spans.redis.zadd(spans.key(role), {"hello": score})
            for step, *arguments in ((spans.acquire, ME, "r"), (spans.acquire, ME, "w"), (spans.locked, "u")):
                if role == "queue" and step == spans.locked:  # it has nothing to ask the queue
                    continue
                with pytest.raises(ResponseError, match=f"FOREIGN {number} |FOREIGN {number}$"):
                    await step(*arguments)
            assert await spans.everything() == [spans.key(role)]
            assert await spans.redis.zrange(spans.key(role), 0, -1) == [b"hello"]
    await spans.clear()
    await spans.redis.hset(spans.spans, "hello", "world")
    for step, *arguments in ((spans.acquire, ME, "r"), (spans.locked, "u")):
        with pytest.raises(ResponseError, match=r"FOREIGN 1 |FOREIGN 1$"):
            await step(*arguments)
    assert await spans.redis.hgetall(spans.spans) == {b"hello": b"world"}


async def test_members_of_others_harm_no_holder(spans) -> None:
    await spans.acquire(ME, "r")
    await spans.wait("x", "w")
    for key in (spans.ends, spans.waits):
        await spans.redis.zadd(key, {"hello": 1})
        with pytest.raises(ResponseError, match=r"FOREIGN [23]"):
            await spans.acquire(OTHER, "r")
        assert [await spans.renew(ME), await spans.owned(ME)] == [1, 1]
        assert await spans.redis.zrem(key, "hello") == 1
    assert (await spans.release(ME))[0] == 1


async def test_ends_of_others_are_found_by_who_is_refused_for_nobody(spans) -> None:
    for number, role in enumerate(spans.roles, start=1):
        if role not in ("writers.a", "reservations.a"):
            continue
        await spans.clear()
        await spans.acquire(OTHER, "w" if role == "writers.a" else "r", -2, -1)
        await spans.redis.zadd(spans.key(role), {"hello": 5})
        with pytest.raises(ResponseError, match=f"FOREIGN {number} |FOREIGN {number}$"):
            await spans.acquire(ME, "r")


async def test_halves_of_our_own_are_no_others(spans) -> None:
    for lost in (spans.spans, spans.ends):
        await spans.clear()
        await spans.acquire(OTHER, "r")
        await spans.wait("x", "w")
        await spans.redis.delete(lost)
        assert await spans.locked("w") == 1
        assert (await spans.acquire(ME, "w"))[0] == 0


async def test_acquire_is_refused_by_a_fence_that_is_not_ours(spans) -> None:
    for corrupt in NO_FENCES:
        await spans.redis.set(spans.fence, corrupt)
        with pytest.raises(ResponseError, match="FOREIGN 4"):
            await spans.acquire(ME, "r")
        assert await spans.everything() == [spans.fence]


# -- a server that is out of memory --------------------------------------------------------------------------


@pytest.fixture
async def full(own_server, connect, prefix) -> SpanScripts:
    """Held, and awaited by three, on a server that has no memory for anything new and evicts nothing."""
    server = await own_server(arguments=("--maxmemory-policy", "noeviction"))
    redis = connect(server)
    spans = SpanScripts(redis, prefix)
    await spans.acquire(ME, "w")
    await spans.acquire(OTHER, "r", 20, 30)
    for who, mode in (("dead", "w"), ("w2", "w"), ("r", "r")):
        await spans.wait(who, mode, marks=MINUTE)
        await spans.sit(who, ttl=MINUTE, queue_ttl=MINUTE)
    await spans.die("dead")
    await redis.config_set("maxmemory", 1)
    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await redis.set("anything", "new")
    return spans


async def test_out_of_memory_the_holder_can_still_renew_change_adopt_and_release(full) -> None:
    assert [await full.renew(ME, ttl=2 * MINUTE), await full.renew(OTHER)] == [1, 1]
    assert (await full.acquire(ME, "w"))[0] == 1
    assert (await full.change(OTHER, "r", 22, 30))[0] == 1
    assert await full.adopt(ME, THIRD, "w")
    assert await full.release(OTHER) == [1]
    assert await full.release(THIRD) == [1, full.bell("r")]
    assert await full.waiting() == [full.bell(who) + SEAT.encode() for who in ("w2", "r")]
    assert (await full.release(token_of("r"), who="r", flags="rl"))[0] == 0


async def test_out_of_memory_a_release_of_what_came_to_its_end_still_wakes(full) -> None:
    await full.redis.config_set("maxmemory", 0)
    await full.end(ME)
    await full.redis.config_set("maxmemory", 1)

    assert await full.release(ME) == [0, full.bell("r")]


async def test_out_of_memory_acquire_is_refused_and_changes_nothing(full) -> None:
    state = await full.state()

    for mode, a, b in (("r", 20, 30), ("w", 50, 60)):
        with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
            await full.acquire(FOURTH, mode, a, b)
    assert await full.state() == state


async def test_out_of_memory_the_answers_still_come(full) -> None:
    answers = [
        await full.owned(ME),
        await full.owned(THIRD),
        await full.locked("r"),
        await full.locked("w", 20, 30),
    ]
    assert answers == [1, 0, 1, 1]


async def test_out_of_memory_it_is_the_first_write_that_opens_the_door(full) -> None:
    first = "if at_once then redis.call('ZREM', ends, '') end"
    assert text_of("shared/spans").count(first) == 1
    full.mutant = {"shared/spans": text_of("shared/spans").replace(first, "").encode()}

    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await full.renew(ME)


# -- mutants -------------------------------------------------------------------------------------------------

CHECKS = checks(globals(), "spans")
FILES = [
    "spans_acquire",
    "spans_release",
    "spans_renew",
    "spans_adopt",
    "spans_annotate",
    "spans_change",
    "spans_owned",
    "spans_locked",
    "shared/ours",
    "shared/spans",
]
SPARED = {
    "if redis.call('ZCARD', queue) == 0 then return false end": "it saves calls",
    "if fields == entered and more == 0 then return end": "it saves a walk",
    "if at_once then redis.call('ZREM', ends, '') end": "see out of memory above",
    "if missing == 0 then break end": "it saves calls, which are counted in adversity/test_kinds_range.py",
}
"""Lines that may be left out, each with the reason."""
MUTATIONS = [
    Mutation(
        "shared/spans",
        "(overlapping('p', a, b) > 0 and -4 or -2)",
        "-4",
        "test_who_is_refused_for_others_who_wait_is_told_no_time",
    ),
    Mutation(
        "shared/spans",
        "mark == 'q' and '-' or mark, upgrade_of}",
        "mark, upgrade_of}",
        "test_who_has_to_wait_is_noted_with_his_span",
    ),
    Mutation(
        "spans_acquire",
        "(purge(seat) > 0 or asking) and wake_waiters(0) or {}",
        "purge(seat) and {}",
        "test_a_reservation_that_came_to_its_end_goes_to_the_next_writer",
    ),
    Mutation(
        "spans_acquire",
        "waits_for_it and noted or '-'",
        "noted or '-'",
        "test_who_does_not_wait_has_no_use_of_the_marks_of_his_session",
    ),
    Mutation(
        "spans_acquire",
        "upgradable == 'u' and ",
        "upgradable and ",
        "test_an_upgrade_of_what_is_not_held_is_refused",
    ),
    Mutation(
        "spans_acquire",
        "tonumber(left) <= tonumber(a) and ",
        "",
        "test_an_upgrade_of_what_is_not_held_is_refused",
    ),
    Mutation(
        "spans_acquire",
        " and tonumber(b) <= tonumber(right)",
        "",
        "test_an_upgrade_of_what_is_not_held_is_refused",
    ),
    Mutation(
        "spans_acquire", "remove_from_side('c', bell)", "", "test_who_was_called_in_vain_holds_up_nobody"
    ),
    Mutation(
        "spans_acquire",
        "rank < WALK and 0 or rank + 1",
        "0",
        "test_who_stands_behind_the_walk_and_is_blocked_walks_on_from_there",
    ),
    Mutation(
        "spans_acquire",
        "local leaves = waits_for_it and not has(flags, 's')",
        "local leaves = waits_for_it",
        "test_who_gets_in_and_has_others_behind_him_leaves_them_his_place_and_his_mark",
    ),
    Mutation(
        "spans_acquire",
        "local leaves = waits_for_it and not has(flags, 's')",
        "local leaves = not has(flags, 's')",
        "test_a_try_leaves_the_place_of_its_session_alone",
    ),
    Mutation(
        "spans_acquire",
        "\nwake_waiters(0, rung)\n",
        "\n",
        "test_the_walk_ends_where_somebody_was_woken",
    ),
    Mutation(
        "shared/spans",
        "(first_living(queue, 0) or id .. seat) == id .. seat",
        "first_living(queue, 0) == id .. seat",
        "test_what_a_dead_writer_had_reserved_keeps_no_waiter_out_that_is_the_first",
    ),
    Mutation(
        "spans_adopt",
        "holder(ARGV[1]) and ARGV[1] or ARGV[2]",
        "ARGV[1]",
        "test_adopt_swaps_the_token_and_keeps_all_else",
    ),
    Mutation("spans_adopt", "mode ~= ARGV[6] or ", "", "test_adopt_of_another_span_is_refused"),
    Mutation("spans_adopt", " or b ~= ARGV[8]", "", "test_adopt_of_another_span_is_refused"),
    Mutation(
        "spans_change", "tonumber(ARGV[3]) < tonumber(a) or ", "", "test_change_to_more_than_it_is_is_refused"
    ),
    Mutation(
        "spans_change",
        "tonumber(ARGV[3]) < tonumber(a) or tonumber(ARGV[4]) > tonumber(b)",
        "ARGV[3] < a or ARGV[4] > b",
        "test_ends_are_compared_as_numbers",
    ),
    Mutation(
        "spans_change",
        "not (mode == 'w' and ARGV[2] == 'r')",
        "not (ARGV[2] == 'r')",
        "test_change_to_more_than_it_is_is_refused",
    ),
    Mutation(
        "spans_release",
        "mode == 'r' and purged == 0",
        "purged == 0",
        "test_who_is_no_reader_wakes_whoever_else_reads_there",
    ),
    Mutation(
        "spans_release",
        "if left and tonumber(left)",
        "if tonumber(left)",
        "test_a_reader_beside_one_whose_span_was_lost_can_leave",
    ),
    Mutation(
        "spans_release",
        "tonumber(left) <= tonumber(a) and tonumber(b)",
        "tonumber(b)",
        "test_a_reader_who_leaves_others_there_that_reach_less_far_wakes",
    ),
    Mutation(
        "spans_release",
        " and tonumber(b) <= tonumber(right)",
        "",
        "test_a_reader_who_leaves_others_there_that_reach_less_far_wakes",
    ),
    Mutation(
        "spans_locked",
        "ARGV[4], false",
        "ARGV[4], true",
        "test_a_writer_that_waits_keeps_new_ones_out",
    ),
    Mutation("shared/spans", "'-inf', '(' .. a)", "'-inf', a)", "test_ends_belong_to_the_spans"),
    Mutation("shared/spans", "[1], '-inf', b)", "[1], '-inf', '(' .. b)", "test_ends_belong_to_the_spans"),
    Mutation(
        "shared/spans",
        "redis.call('ZREM', SIDES[side][2], id)",
        "",
        "test_many_spans_are_told_apart_as_one_by_one",
    ),
    Mutation("shared/spans", "if deadline and span and", "if span and", "test_lost_ends_lose_the_leases"),
    Mutation(
        "shared/spans", "side == mode or not mode", "side == mode", "test_a_lost_hash_of_spans_is_survived"
    ),
    Mutation(
        "shared/spans",
        "if mode == 'w' then left_by_writers",
        "if mode then left_by_writers",
        "test_what_a_reader_leaves_gives_nobody_a_turn",
    ),
    Mutation(
        "shared/spans",
        "math.max(ms, (tonumber(redis.call('ZSCORE', waits, id) or 0) or 0) - NOW)",
        "ms",
        "test_marks_that_are_given_behind_a_waiters_back_shorten_nothing",
    ),
    Mutation(
        "shared/spans",
        "if overlapping('w', a, b) > 0 then return true end",
        "",
        "test_who_enters_beside_whom",
    ),
    Mutation(
        "shared/spans",
        "return not passes and overlapping('p', a, b) > 0 end",
        "return false end",
        "test_a_writer_that_waits_keeps_new_ones_out",
    ),
    Mutation(
        "shared/spans",
        "return not passes and overlapping('p', a, b) > 0 end",
        "return overlapping('p', a, b) > 0 end",
        "test_phases_alternate",
    ),
    Mutation(
        "shared/spans",
        "local passes = rank == 0 or in_turn",
        "local passes = in_turn",
        "test_the_first_of_all_that_wait_passes_reservations_that_wait_for_each_other",
    ),
    Mutation(
        "shared/spans",
        "local passes = rank == 0 or in_turn",
        "local passes = rank == 0",
        "test_a_reader_behind_many_who_wait_gets_his_turn",
    ),
    Mutation(
        "shared/spans",
        "if upgradables > 0 or (mode",
        "if (mode",
        "test_who_enters_beside_whom",
    ),
    Mutation(
        "shared/spans",
        "if mode == 'w' and overlapping('r', a, b) > 0 then return true end",
        "",
        "test_who_enters_beside_whom",
    ),
    Mutation(
        "shared/spans",
        "upgradables > 1 or ",
        "",
        "test_an_upgrade_is_not_entered_beside_another_upgradable",
    ),
    Mutation(
        "shared/spans",
        " or overlapping('c', a, b) > 0",
        "",
        "test_behind_an_upgrade_the_readers_that_waited_go_before_the_next",
    ),
    Mutation(
        "shared/spans",
        "overlapping('c', a, b) > 0 end",
        "overlapping('t', a, b) > 0 end",
        "test_an_upgrade_does_not_wait_for_a_reader_that_waits_for_another_one",
    ),
    Mutation(
        "shared/spans",
        " or (mode == 'w' and overlapping('t', a, b) > 0)",
        "",
        "test_phases_alternate",
    ),
    Mutation(
        "shared/spans",
        "return not passes and is_behind(id, a, b)",
        "return false",
        "test_writers_and_upgradables_enter_in_the_order_of_asking",
    ),
    Mutation(
        "shared/spans",
        "tonumber(asked) < since and",
        "",
        "test_who_asks_before_a_walk_has_its_place_in_the_order",
    ),
    Mutation(
        "shared/spans",
        "local bell = asked and tonumber(asked)",
        "local bell = tonumber(asked)",
        "test_a_place_that_nobody_has_keeps_no_newcomer_out",
    ),
    Mutation(
        "shared/spans",
        "bell and redis.call('GET', bell)",
        "bell",
        "test_a_place_of_a_waiter_that_has_died_keeps_nobody_out",
    ),
    Mutation(
        "shared/spans",
        "bell_of(queue, other .. NO_SEAT)",
        "other",
        "test_a_place_under_the_bell_of_another_name_keeps_nobody_out",
    ),
    Mutation(
        "shared/spans",
        "if missing > 0 and number == WALK then return true end",
        "",
        "test_of_many_places_elsewhere_an_earlier_one_may_be_behind_those_that_are_looked_at",
    ),
    Mutation(
        "shared/spans",
        "if missing > 0 and number == WALK then",
        "if missing > 0 then",
        "test_a_place_that_has_lost_its_right_end_keeps_nobody_out",
    ),
    Mutation(
        "shared/spans",
        "if missing > 0 and number == WALK then",
        "if number == WALK then",
        "test_behind_the_walk_a_waiter_does_not_count_itself",
    ),
    Mutation(
        "shared/spans",
        "if missing > 0 and redis.call('ZSCORE', SIDES[side][1], id) then missing = missing - 1 end",
        "",
        "test_of_many_places_elsewhere_an_earlier_one_may_be_behind_those_that_are_looked_at",
    ),
    Mutation(
        "shared/spans",
        "if other ~= id then",
        "if true then",
        "test_of_many_places_elsewhere_an_earlier_one_may_be_behind_those_that_are_looked_at",
    ),
    Mutation(
        "shared/spans",
        "if upgrade_of ~= '-' then return 'p' end\n",
        "\n",
        "test_an_upgrade_goes_before_a_writer_that_waits",
    ),
    Mutation(
        "shared/spans",
        "or behind or overlapping('u', a, b) > 0",
        "or behind",
        "test_a_writer_behind_an_upgradable_keeps_no_reader_out",
    ),
    Mutation(
        "shared/spans",
        "or behind or overlapping('u'",
        "or overlapping('u'",
        "test_a_writer_behind_another_waiter_keeps_no_reader_out",
    ),
    Mutation(
        "shared/spans",
        "or overlapping('w', a, b) > 0 then return 'q' end",
        "then return 'q' end",
        "test_who_has_to_wait_is_noted_with_his_span",
    ),
    Mutation(
        "shared/spans",
        "(side == 'q' and mode == 'u')",
        "false",
        "test_a_called_upgradable_is_passed_by_no_newcomer",
    ),
    Mutation(
        "shared/spans",
        "elseif mode ~= 'r' then",
        "elseif false then",
        "test_a_reservation_becomes_a_place_again_where_an_upgradable_got_in_before_it",
    ),
    Mutation(
        "shared/spans",
        "behind = overlaps_any(ahead, a, b) or",
        "behind =",
        "test_writers_and_upgradables_enter_in_the_order_of_asking",
    ),
    Mutation(
        "shared/spans",
        " or (not whole_queue and is_behind(id, a, b))",
        "",
        "test_behind_the_walk_waiters_keep_their_order_too",
    ),
    Mutation(
        "shared/spans",
        "elseif upgrade_of == '-' then",
        "else",
        "test_an_upgrade_goes_before_a_writer_that_waits",
    ),
    Mutation(
        "shared/spans",
        "one[1] <= tonumber(b) and ",
        "",
        "test_only_who_overlaps_what_was_left_gets_a_turn",
    ),
    Mutation(
        "shared/spans",
        " and tonumber(a) <= one[2]",
        "",
        "test_only_who_overlaps_what_was_left_gets_a_turn",
    ),
    Mutation(
        "shared/spans",
        "local in_turn = mode == 'r' and mark == 't'",
        "local in_turn = mark == 't'",
        "test_a_called_upgradable_keeps_no_upgrade_out",
    ),
    Mutation(
        "spans_acquire",
        "mark == 't' or mark == 'p' or (waits_for_it",
        "(waits_for_it",
        "test_a_reader_that_is_called_is_not_stopped_by_a_writer_that_came_after_it",
    ),
    Mutation(
        "spans_acquire",
        "(waits_for_it and is_first(bell, seat))",
        "false",
        "test_what_a_dead_writer_had_reserved_keeps_no_waiter_out_that_is_the_first",
    ),
    Mutation(
        "spans_acquire",
        "waits_for_it and bell or '', mode",
        "bell, mode",
        "test_a_try_does_not_pass_a_waiter_of_its_own_session",
    ),
    Mutation(
        "spans_acquire",
        "mode ~= 'r' and not passes and is_behind(bell, a, b)",
        "false",
        "test_a_writer_behind_another_waiter_keeps_no_reader_out",
    ),
    Mutation(
        "shared/spans",
        "if looked > WALK then",
        "if looked > 99 then",
        "test_the_walk_ends_where_somebody_was_woken",
    ),
    Mutation(
        "shared/spans",
        "if #rung == 0 and state == '' then ring",
        "if state == '' then ring",
        "test_the_walk_ends_where_somebody_was_woken",
    ),
    Mutation(
        "shared/spans",
        "mode == 'u' and 'wu'",
        "mode == 'u' and 'w'",
        "test_who_is_refused_is_told_what_is_left_of_one_that_is_in_the_way",
    ),
    Mutation(
        "shared/spans",
        "'wur' or 'wr'",
        "'wur' or 'wur'",
        "test_an_upgrade_is_told_what_is_left_of_the_reader_it_waits_for",
    ),
    Mutation("shared/spans", " or 'inf') <=", ") <=", "test_a_lost_left_end_is_no_error"),
    Mutation(
        "shared/spans",
        "upgrade_of == '-' and 'wur'",
        "upgrade_of == '-' and 'wu'",
        "test_who_is_refused_is_told_what_is_left_of_one_that_is_in_the_way",
    ),
    Mutation(
        "shared/spans",
        "SIDES[side][2], a, '+inf'",
        "SIDES[side][2], '-inf', '+inf'",
        "test_who_is_refused_is_told_what_is_left_of_one_that_is_in_the_way",
    ),
    Mutation(
        "shared/spans",
        "if mode == 'w' and a == '-inf' and b == 'inf' then break end",
        "",
        "test_behind_a_called_writer_of_everything_nobody_looks",
    ),
    Mutation(
        "shared/spans",
        "if mode == 'w' and a == '-inf' and b == 'inf' then break end",
        "if mode == 'w' then break end",
        "test_a_reader_has_its_turn_also_behind_a_writer_that_was_called_elsewhere",
    ),
    Mutation(
        "shared/spans",
        "mark = mode == 'w' and 'p' or 't'",
        "mark = mode == 'w' and 'q' or 't'",
        "test_a_reservation_that_goes_leaves_the_next_writer_one",
    ),
    Mutation(
        "shared/spans",
        "mark = mode == 'w' and 'p' or 't'",
        "mark = mode == 'w' and 'p' or '-'",
        "test_a_reader_that_is_called_is_not_stopped_by_a_writer_that_came_after_it",
    ),
    Mutation(
        "spans_acquire",
        "own = enqueue(queue, bell, seat, has(flags, 'q'))",
        "",
        "test_a_reader_that_was_refused_has_its_turn_before_it_listens",
    ),
    Mutation(
        "spans_acquire",
        "has(flags, 'q'))",
        "false)",
        "test_a_waiter_whose_bell_is_gone_is_told_and_gets_one_that_hangs",
    ),
    Mutation(
        "spans_acquire",
        "rung[#rung + 1] = own",
        "",
        "test_a_waiter_whose_bell_is_gone_is_told_and_gets_one_that_hangs",
    ),
    Mutation(
        "spans_acquire",
        " or (leaves and noted)",
        "",
        "test_a_refusal_gives_a_place_in_the_queue_and_a_bell_until_its_session_listens",
    ),
    Mutation(
        "shared/spans",
        "keep(spans, ms + SLACK)",
        "keep(spans, ms)",
        "test_acquire_sets_the_ttls",
    ),
    Mutation(
        "shared/spans",
        "ipairs({ends, waits})",
        "ipairs({deadlines})",
        "test_deadlines_are_kept_for_as_long_as_anything_they_end",
    ),
    Mutation(
        "shared/spans",
        "redis.call('ZSCORE', waits, id) - NOW)",
        "BELL_TTL)",
        "test_a_call_ends_with_its_owner",
    ),
    Mutation(
        "shared/spans",
        "keep(SIDES[side][1], ms + SLACK)\n  keep(SIDES[side][2], ms + SLACK)",
        "keep(SIDES[side][1], ms)\n  keep(SIDES[side][2], ms)",
        "test_acquire_sets_the_ttls",
    ),
    Mutation(
        "shared/spans",
        "if state == '' and id ~= asking then ring(id) rung[#rung + 1] = id end",
        "ring(id) rung[#rung + 1] = id",
        "test_release_wakes_the_first_writer_alone",
    ),
    Mutation(
        "shared/spans",
        "for _, side in ipairs({'p', 'q', 't', 'c'}) do remove_from_side(side, id) end",
        "for _, side in ipairs({'p', 'q', 't'}) do remove_from_side(side, id) end",
        "test_who_was_called_and_leaves_holds_up_nobody",
    ),
]


@pytest.mark.long
async def test_the_scripts_themselves_are_not_complained_of(redis, prefix) -> None:
    scripts = SpanScripts(redis, prefix)

    assert [name for name, check in CHECKS.items() if await fails(check, scripts)] == []


@pytest.mark.long
@pytest.mark.parametrize("file", FILES)
async def test_without_a_line_somebody_notices(redis, prefix, file) -> None:
    step = file if "/" not in file else "spans_acquire"
    mutants = [(name, file, text) for name, text in lines_left_out(file, unless=SPARED)]
    living = await compiled(SpanScripts, redis, prefix, step, mutants)

    assert await unnoticed(SpanScripts, redis, prefix, living, among=CHECKS) == []


@pytest.mark.long
async def test_with_a_line_altered_that_test_fails(redis, prefix) -> None:
    assert await surviving(SpanScripts, redis, prefix, MUTATIONS, CHECKS, "spans_acquire") == []


def test_each_line_that_is_spared_stands_there() -> None:
    lines = {line.strip() for file in FILES for line in text_of(file).splitlines()}

    assert set(SPARED) <= lines
