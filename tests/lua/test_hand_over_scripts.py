"""The scripts by which a holder lets go and the next waiter of its session acquires, in one step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.handing_over import (
    NEW,
    NOT_HELD,
    OLD,
    OTHER,
    HandingOver,
    hands_nothing_over_without_holding,
    next_one_has_it,
)
from tests.lua.mutants import checks, lines_left_out, text_of, unnoticed
from tests.lua.scripts import (
    HOUR,
    LockScripts,
    MultiScripts,
    PermitScripts,
    ReentrantScripts,
    about,
)

pytestmark = pytest.mark.leaves_keys("aiolocks*")


class LockHandingOver(LockScripts, HandingOver):
    step, handing = "lock_acquire", "shared/hand_over_lock"


class ReentrantHandingOver(ReentrantScripts, HandingOver):
    step, handing = "reentrant_acquire", "shared/hand_over_nest"


class MultiHandingOver(MultiScripts, HandingOver):
    step, handing = "multi_acquire", "shared/hand_over_locks"

    @property
    def fences(self) -> list[bytes]:
        return [one.fence for one in self.all]


class PermitHandingOver(PermitScripts, HandingOver):
    """One permit."""

    step, handing = "permits_acquire", "shared/hand_over_permits"

    def acquiring(self, token: str, permits: int = 1, *, value: int | str = 1, **kwargs: Any) -> Any:
        return super().acquiring(token, permits, value=value, **kwargs)


KINDS = [LockHandingOver, ReentrantHandingOver, MultiHandingOver, PermitHandingOver]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def handing(request, redis, prefix) -> HandingOver:
    return request.param(redis, prefix)


async def test_the_next_one_has_it_with_a_larger_fencing_token(handing) -> None:
    await next_one_has_it(handing)


async def test_the_step_can_be_said_again(handing) -> None:
    await handing.acquire(OLD)
    await handing.hand_over(OLD, NEW)

    assert await handing.hand_over(OLD, NEW) == NOT_HELD
    assert await handing.owned(NEW) == 1


async def test_one_that_does_not_hold_hands_nothing_over(handing) -> None:
    await hands_nothing_over_without_holding(handing)


async def test_where_another_process_goes_first_it_is_free_and_its_fence_is_kept(handing) -> None:
    await handing.acquire(OLD)
    await handing.sit("other")
    for fence in handing.fences:
        await handing.redis.pexpire(fence, HOUR)

    refused = await handing.hand_over(OLD, NEW, flags="t", retention=10 * HOUR)

    assert refused[:2] == [0, -2]
    assert [await handing.owned(token) for token in (OLD, NEW)] == [0, 0]
    assert (await handing.acquire(OTHER))[0] == 1


@pytest.mark.parametrize("kind", KINDS[:3], ids=lambda kind: kind.__name__)
async def test_the_fence_is_kept_from_then_on(redis, prefix, kind) -> None:
    await fence_is_kept(kind(redis, prefix))


async def fence_is_kept(handing: Any) -> None:
    await handing.acquire(OLD)
    await handing.sit("other")
    await handing.hand_over(OLD, NEW, flags="t", retention=10 * HOUR)

    for fence in handing.fences:
        assert about(await handing.redis.pttl(fence), 10 * HOUR)


async def test_other_tokens_of_the_owner_keep_a_reentrant_lock(redis, prefix) -> None:
    await owner_keeps_it(ReentrantHandingOver(redis, prefix))


async def owner_keeps_it(handing: Any) -> None:
    twice = OLD[:32] + "d4" * 16
    await handing.acquire(OLD)
    await handing.acquire(twice, ttl=HOUR)

    refused = await handing.hand_over(OLD, NEW)

    assert refused[0] == 0
    assert about(refused[1], HOUR)
    assert [await handing.owned(token) for token in (OLD, twice)] == [0, 1]
    await handing.end(twice)
    assert await handing.hand_over(twice, NEW) == NOT_HELD


async def test_of_several_locks_all_are_handed_over_or_none(redis, prefix) -> None:
    await all_or_none(MultiHandingOver(redis, prefix))


async def all_or_none(handing: Any) -> None:
    await handing.acquire(OLD)
    await handing.redis.delete(handing.all[2].lock)

    assert await handing.hand_over(OLD, NEW) == NOT_HELD
    assert await handing.redis.exists(*(one.lock for one in handing.all)) == 2


async def test_a_lease_that_has_ended_hands_no_permit_over(redis, prefix) -> None:
    await ended_hands_nothing_over(PermitHandingOver(redis, prefix))


async def ended_hands_nothing_over(handing: Any) -> None:
    await handing.acquire(OLD)
    await handing.redis.zadd(handing.holders, {OLD: 1}, xx=True)

    assert await handing.hand_over(OLD, NEW) == NOT_HELD
    assert (await handing.hand_over(OLD, NEW)) == NOT_HELD
    await handing.redis.hset(handing.leases, "held", 1)
    await handing.redis.zadd(handing.holders, {OTHER: 1e15})
    assert await handing.hand_over(OTHER, NEW) == NOT_HELD  # nothing is known of how many it has


CHECKS = checks(globals(), "handing")
MORE = {
    LockHandingOver: {"fence_is_kept": fence_is_kept},
    ReentrantHandingOver: {"fence_is_kept": fence_is_kept, "owner_keeps_it": owner_keeps_it},
    MultiHandingOver: {"fence_is_kept": fence_is_kept, "all_or_none": all_or_none},
    PermitHandingOver: {"ended_hands_nothing_over": ended_hands_nothing_over},
}


@kinds
async def test_each_line_is_needed(redis, prefix, kind) -> None:
    mutants = [(name, kind.handing, text) for name, text in lines_left_out(kind.handing)]
    assert mutants
    assert await unnoticed(kind, redis, prefix, mutants, among=CHECKS | MORE[kind]) == []


@pytest.mark.parametrize(
    ("kind", "guard"),
    [
        (LockHandingOver, "not held or "),
        (LockHandingOver, " or string.sub(held, 1, #from + 1) ~= from .. ':'"),
        (ReentrantHandingOver, "if remove_token(from) then set_ttls() else redis.call('DEL', lock) end"),
        (PermitHandingOver, " or tonumber(ends) <= NOW"),
        (PermitHandingOver, " or not lease_of(from)"),
    ],
)
async def test_each_guard_is_needed(redis, prefix, kind, guard) -> None:
    text = text_of(kind.handing)
    assert text.count(guard) == 1
    mutants = [(guard, kind.handing, text.replace(guard, "").encode())]
    assert await unnoticed(kind, redis, prefix, mutants, among=CHECKS | MORE[kind]) == []
