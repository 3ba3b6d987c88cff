"""The scripts of the lock on real servers: every branch, said twice, by the wrong one, over what others left.

A test that asks for `lock` alone is also run on mutants of the scripts, by the tests at the end of this file:
they show that each line is needed, and that somebody would notice.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.exceptions import ResponseError

from aiolocks._transport.calls import Script
from tests.lua.scripts import HOUR, MINUTE, LockScripts

pytestmark = pytest.mark.leaves_keys(
    "aiolocks*:lock*"
)  # without a ttl, where a test has put them there itself

ME, OTHER, THIRD = "a1" * 16, "b2" * 16, "c3" * 16
LATER = 9_007_199_254_740_000
"""A fencing token of the year 2255, near the largest whole number that a double can hold exactly."""


@pytest.fixture
def lock(redis, prefix) -> LockScripts:
    return LockScripts(redis, prefix)


# -- acquire -------------------------------------------------------------------------------------------------


async def test_acquire_takes_what_is_free(lock) -> None:
    granted, fencing = await lock.acquire(ME, ttl=MINUTE, retention=HOUR, metadata='{"pid":1}')

    assert granted == 1
    assert await lock.value() == b"%b:%b:%b" % (ME.encode(), fencing, b'{"pid":1}')
    assert await lock.fence_value() == fencing
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)


async def test_acquire_mints_the_servers_time_in_microseconds(lock) -> None:
    before = await lock.redis.time()
    _, fencing = await lock.acquire(ME)
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
    await lock.acquire(ME + "0")

    assert (await lock.acquire(ME))[0] == 0


async def test_acquire_is_refused_by_a_value_that_is_not_ours(lock) -> None:
    await lock.redis.set(lock.lock, "somebody else's", px=MINUTE)

    granted, remaining = await lock.acquire(ME)

    assert granted == 0
    assert 0 < remaining <= MINUTE
    assert await lock.value() == b"somebody else's"


async def test_acquire_mints_one_more_than_a_fence_that_is_ahead_of_the_clock(lock) -> None:
    await lock.redis.set(lock.fence, LATER)

    assert await lock.acquire(ME, retention=HOUR) == [1, b"9007199254740001"]
    assert await lock.fence_value() == b"9007199254740001"
    assert await lock.expires_in(fence=HOUR)


async def test_acquire_mints_rising_fencing_tokens(lock) -> None:
    minted = []
    for _ in range(50):
        minted.append(int((await lock.acquire(ME))[1]))
        await lock.release(ME)

    assert minted == sorted(set(minted))


@pytest.mark.parametrize("corrupt", ["", "garbage", "-1", "1.5", "17", "nan", "-inf"])
async def test_acquire_passes_over_a_corrupt_or_old_fence(lock, corrupt) -> None:
    await lock.redis.set(lock.fence, corrupt)
    seconds, _ = await lock.redis.time()

    _, fencing = await lock.acquire(ME)

    assert int(fencing) >= seconds * 10**6
    assert await lock.fence_value() == fencing


async def test_acquire_passes_over_a_fence_that_no_clock_can_have_reached(lock) -> None:
    for corrupt in ("inf", "1e300", str(2**53)):
        await lock.redis.set(lock.fence, corrupt)
        minted = []
        for _ in range(2):
            minted.append(int((await lock.acquire(ME))[1]))
            await lock.release(ME)

        assert minted[0] < minted[1] < 2**53


async def test_acquire_survives_a_corrupt_fence(lock) -> None:
    await lock.redis.set(lock.fence, "garbage")

    assert (await lock.acquire(ME))[0] == 1


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
    _, fencing = await lock.acquire(ME, metadata=metadata)

    assert (await lock.value()).split(b":", 2) == [ME.encode(), fencing, metadata]
    assert await lock.acquire(ME, metadata=metadata) == [1, fencing]
    assert await lock.adopt(ME, OTHER, metadata=metadata) == fencing
    assert (await lock.value()).split(b":", 2) == [OTHER.encode(), fencing, metadata]


async def test_metadata_that_looks_like_a_fencing_token_does_not_confuse(lock) -> None:
    _, fencing = await lock.acquire(ME, metadata=":17:")

    assert await lock.acquire(ME, metadata=":17:") == [1, fencing]
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
    assert await lock.state() == (None, None)


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
    _, fencing = await lock.acquire(ME, retention=HOUR)

    assert await lock.release(ME, retention=2 * HOUR) == 1

    assert await lock.value() is None
    assert await lock.fence_value() == fencing
    assert await lock.expires_in(fence=2 * HOUR)


async def test_release_said_twice_leaves_what_it_left_once(lock) -> None:
    await lock.acquire(ME)
    assert await lock.release(ME) == 1
    state = await lock.state()

    assert await lock.release(ME) == 0

    assert await lock.state() == state
    assert await lock.expires_in(fence=HOUR)


async def test_release_by_another_is_refused_and_changes_nothing(lock) -> None:
    await lock.acquire(OTHER, ttl=MINUTE, retention=HOUR)
    state = await lock.state()

    assert await lock.release(ME, retention=2 * HOUR) == 0

    assert await lock.state() == state
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)


async def test_release_of_what_is_gone_creates_nothing(lock) -> None:
    assert await lock.release(ME) == 0
    assert await lock.state() == (None, None)


async def test_release_takes_no_token_for_another_that_begins_alike(lock) -> None:
    await lock.acquire(ME + "0")

    assert await lock.release(ME) == 0
    assert await lock.locked() == 1


async def test_release_frees_what_has_lost_its_ttl(lock) -> None:
    await lock.acquire(ME)
    await lock.redis.persist(lock.lock)

    assert await lock.release(ME) == 1
    assert await lock.value() is None


# -- adopt ---------------------------------------------------------------------------------------------------


async def test_adopt_swaps_the_token_and_keeps_the_fencing_token(lock) -> None:
    _, fencing = await lock.acquire(ME, ttl=MINUTE, retention=HOUR, metadata="old")

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
    _, fencing = await lock.acquire(ME)
    await lock.adopt(ME, OTHER)

    assert await lock.adopt(OTHER, ME) == fencing
    assert await lock.owned(ME) == 1


async def test_the_old_token_can_do_no_more_behind_an_adoption(lock) -> None:
    await lock.acquire(ME)
    await lock.adopt(ME, OTHER)

    assert [await lock.renew(ME), await lock.release(ME), await lock.owned(ME)] == [0, 0, 0]
    assert [await lock.renew(OTHER), await lock.owned(OTHER), await lock.release(OTHER)] == [1, 1, 1]


async def test_adopt_of_what_is_gone_creates_nothing(lock) -> None:
    assert await lock.adopt(ME, OTHER) == b""
    assert await lock.state() == (None, None)


async def test_adopt_leaves_a_value_alone_that_is_not_ours(lock) -> None:
    for value in (b"somebody else's", b"", ME.encode(), b"%b:x:y" % ME.encode(), b"zz:17:{}"):
        await lock.redis.set(lock.lock, value)

        assert await lock.adopt(ME, OTHER) == b""
        assert await lock.value() == value


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
    "owned": lambda lock: lock.owned(ME),
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


@each_step
async def test_a_step_needs_no_text_on_the_server(lock, step) -> None:
    """EVAL of a script that was flushed; what EVALSHA then says is the transport's business."""
    await lock.redis.script_flush()

    await step(lock)


# -- a server that is out of memory --------------------------------------------------------------------------


@pytest.fixture
async def full(own_server, connect, prefix) -> LockScripts:
    """Held on a server that has no memory for anything new and evicts nothing."""
    server = await own_server(arguments=("--maxmemory-policy", "noeviction"))
    redis = connect(server)
    lock = LockScripts(redis, prefix)
    await lock.acquire(ME)
    await redis.config_set("maxmemory", 1)
    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await redis.set("anything", "new")
    return lock


async def test_out_of_memory_acquire_is_refused_and_changes_nothing(full) -> None:
    other = LockScripts(full.redis, "aiolocks")

    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await other.acquire(OTHER)
    assert await other.state() == (None, None)


async def test_out_of_memory_the_holder_can_still_renew_and_release(full) -> None:
    assert await full.renew(ME, ttl=2 * MINUTE) == 1
    assert (await full.acquire(ME))[0] == 1
    assert await full.release(ME) == 1
    assert await full.state() == (None, await full.redis.dump(full.fence))


@pytest.mark.parametrize("fence", ["there", "gone"])
async def test_out_of_memory_a_lease_can_still_be_handed_over(full, fence) -> None:
    if fence == "gone":
        await full.redis.delete(full.fence)

    assert await full.adopt(ME, OTHER)
    assert await full.owned(OTHER) == 1


async def test_out_of_memory_the_answers_still_come(full) -> None:
    assert [await full.owned(ME), await full.owned(OTHER), await full.locked()] == [1, 0, 1]


# -- mutants -------------------------------------------------------------------------------------------------

CHECKS = [
    value
    for name, value in sorted(globals().items())
    if name.startswith("test_") and list(inspect.signature(value).parameters) == ["lock"]
]
NOT_HELD = "not held or string.sub(held, 1, #ARGV[1] + 1) ~= ARGV[1] .. ':'"
ALIKE = "not held or string.sub(held, 1, #ARGV[1]) ~= ARGV[1]"
MUTATIONS = [
    ("lock_acquire", "if held then", "if false then"),
    ("lock_acquire", "string.sub(held, 1, #token + 1) ~= token .. ':'", "false"),
    ("lock_acquire", "string.sub(held, 1, #token + 1) ~= token .. ':'", "true"),
    (
        "lock_acquire",
        "string.sub(held, 1, #token + 1) ~= token .. ':'",
        "string.sub(held, 1, #token) ~= token",
    ),
    ("lock_acquire", "{0, redis.call('PTTL', lock)}", "{0, 0}"),
    ("lock_acquire", "{1, string.match(held, ':(%d+):')}", "{1, tonumber(string.match(held, ':(%d+):'))}"),
    ("lock_acquire", "':(%d+):'", "'(%d+)'"),
    ("lock_acquire", "time[1] * 1000000 + time[2]", "time[1] * 1"),
    ("lock_acquire", "time[1] * 1000000 + time[2]", "0"),
    ("lock_acquire", " or 0) or 0", ")"),
    ("lock_acquire", "last >= minted", "last < minted"),
    ("lock_acquire", "minted = last + 1", "minted = last"),
    ("lock_acquire", " and last < 9007199254740992", ""),
    ("lock_acquire", "'%.0f'", "'%.14g'"),
    ("lock_acquire", ".. ARGV[4], 'PX', ttl", ".. ARGV[4]"),
    ("lock_acquire", "minted, 'PX', retention", "minted"),
    ("lock_acquire", "'PEXPIRE', lock, ttl", "'PEXPIRE', lock, 1000"),
    ("lock_renew", NOT_HELD, "not held"),
    ("lock_renew", NOT_HELD, ALIKE),
    ("lock_renew", NOT_HELD, "false"),
    ("lock_release", NOT_HELD, "not held"),
    ("lock_release", NOT_HELD, ALIKE),
    ("lock_release", NOT_HELD, "false"),
    ("lock_release", "redis.call('DEL', KEYS[1])", "redis.call('DEL', KEYS[1], KEYS[2])"),
    ("lock_adopt", "holder ~= ARGV[1] and ", ""),
    ("lock_adopt", " and holder ~= ARGV[2]", ""),
    ("lock_adopt", "':' .. ARGV[5]", "':'"),
    ("lock_adopt", ", 'PX', ARGV[3]", ""),
    ("lock_adopt", "'^(%x+):(%d+):'", "'^(.+):(%d+):'"),
    ("lock_owned", NOT_HELD, "not held"),
    ("lock_owned", NOT_HELD, ALIKE),
    ("lock_locked", "'EXISTS'", "'DEL'"),
]


def statements(script: str) -> list[tuple[str, int]]:
    """The lines of a script that would still compile without: all but those that open or close a block."""
    lines = Script(script).text.decode().splitlines()
    return [
        (script, number)
        for number, line in enumerate(map(str.strip, lines), start=1)
        if line and not line.startswith("--") and line != "end" and not line.endswith("then")
    ]


async def somebody_notices(lock: LockScripts) -> bool:
    for check in CHECKS:
        await lock.redis.delete(lock.lock, lock.fence)
        try:
            await check(lock)
        except Exception:
            return True
    return False


async def test_the_scripts_themselves_are_not_complained_of(lock) -> None:
    assert not await somebody_notices(lock)


@pytest.mark.parametrize(("script", "guard", "instead"), MUTATIONS)
async def test_without_its_guard_somebody_notices(redis, prefix, script, guard, instead) -> None:
    text = Script(script).text.decode()
    assert text.count(guard) == 1

    assert await somebody_notices(LockScripts(redis, prefix, {script: text.replace(guard, instead).encode()}))


@pytest.mark.parametrize(
    ("script", "number"),
    [
        line
        for verb in ("acquire", "renew", "release", "adopt", "owned", "locked")
        for line in statements(f"lock_{verb}")
    ],
)
async def test_without_a_line_somebody_notices(redis, prefix, script, number) -> None:
    lines = Script(script).text.decode().splitlines()
    del lines[number - 1]
    text = "\n".join(lines).encode()
    await redis.script_load(text)  # it compiles: what is noticed is what it does

    assert await somebody_notices(LockScripts(redis, prefix, {script: text}))
