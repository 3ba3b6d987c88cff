"""The scripts that hand over within a session and wake others, as a release does."""

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
from tests.lua.limit_scripts import LimitScripts
from tests.lua.mutants import checks, lines_left_out, text_of, unnoticed
from tests.lua.scripts import HOUR, MINUTE, SpanScripts, about, token_of

pytestmark = pytest.mark.leaves_keys("aiolocks*")

HERE, ELSEWHERE = token_of("here"), token_of("elsewhere")


class SpanHandingOver(SpanScripts, HandingOver):
    """Writers of one span."""

    step, handing, waking = "spans_acquire", "shared/hand_over_spans", "shared/spans"

    def acquiring(self, token: str, mode: str = "w", *args: Any, **kwargs: Any) -> Any:
        return super().acquiring(token, mode, *args, **kwargs)

    async def acquire(self, token: str, mode: str = "w", *args: Any, **kwargs: Any) -> Any:
        return await super().acquire(token, mode, *args, **kwargs)

    async def end(self, token: str) -> None:
        await self.redis.zadd(self.ends, {token: 1}, xx=True)


class LimitsHandingOver(LimitScripts, HandingOver):
    """One permit, and one line."""

    step, handing, waking = "limits_acquire", "shared/hand_over_limits", "shared/lines"

    def acquiring(
        self, token: str, *, who: str = "me", flags: str = "", retention: int = HOUR
    ) -> tuple[Any, ...]:
        arguments = (token, MINUTE, retention, "{}", self.line, token[:16], flags)
        return self.words("limits_acquire", self.keys(who), *arguments)

    async def acquire(self, token: str, **kwargs: Any) -> Any:  # type: ignore[override]
        return await self.run(self.acquiring(token, **kwargs))

    async def end(self, token: str) -> None:
        await self.redis.zadd(self.holders, {token: 1}, xx=True)


KINDS = [SpanHandingOver, LimitsHandingOver]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def handing(request, redis, prefix) -> Any:
    return request.param(redis, prefix)


async def wait(handing: Any, token: str, who: str) -> None:
    refused = await handing.acquire(token, who=who, flags="w")
    assert refused[0] == 0


async def test_the_next_one_has_it_with_a_larger_fencing_token(handing) -> None:
    await next_one_has_it(handing)
    assert await handing.hand_over(OLD, NEW) == NOT_HELD
    assert await handing.owned(NEW) == 1


async def test_one_that_does_not_hold_hands_nothing_over(handing) -> None:
    await hands_nothing_over_without_holding(handing)


async def test_a_lease_that_has_ended_hands_nothing_over(handing) -> None:
    await handing.acquire(OLD)
    await handing.end(OLD)

    assert await handing.hand_over(OLD, NEW) == NOT_HELD


async def test_a_waiter_that_asks_in_this_step_is_not_rung(handing) -> None:
    await handing.acquire(OLD)
    await wait(handing, HERE, "here")

    granted, _, others, _, *rung = await handing.hand_over(OLD, HERE, who="here", flags="wql")

    assert (granted, others, rung) == (1, 0, [])
    assert await handing.owned(HERE) == 1
    assert not await handing.redis.exists(handing.bell("here"))


async def test_a_waiter_elsewhere_that_goes_first_is_woken(handing) -> None:
    await handing.acquire(OLD)
    await wait(handing, ELSEWHERE, "elsewhere")
    await wait(handing, HERE, "here")

    refused = await handing.hand_over(OLD, HERE, who="here", flags="wq", retention=10 * HOUR)

    assert refused[0] == 0
    assert refused[2:] == [handing.bell("elsewhere")]
    assert await handing.redis.get(handing.bell("here")) == b""  # it hangs as before
    assert await handing.owned(OLD) == 0
    for fence in handing.fences:
        assert about(await handing.redis.pttl(fence), 10 * HOUR)
    assert (await handing.acquire(ELSEWHERE, who="elsewhere", flags="wpql"))[0] == 1


async def test_a_try_that_will_not_wait_leaves_the_waiter_of_its_session_woken(handing) -> None:
    await handing.acquire(OLD)
    await wait(handing, HERE, "here")

    refused = await handing.hand_over(OLD, NEW, who="here")

    assert refused[0] == 0
    assert refused[2:] == [handing.bell("here")]
    assert await handing.redis.get(handing.bell("here")) == b"rung"


async def test_readers_whose_turn_has_come_enter_before_the_next_writer_here(redis, prefix) -> None:
    await readers_go_first(SpanHandingOver(redis, prefix))


async def readers_go_first(handing: Any) -> None:
    await handing.acquire(OLD)
    await wait(handing, HERE, "here")
    await handing.wait("reader", "r", 2, 3)

    refused = await handing.hand_over(OLD, HERE, who="here", flags="wq")

    assert refused[0] == 0
    assert handing.bell("reader") in refused
    assert (await handing.come("reader", "r", 2, 3))[0] == 1


async def test_an_upgradable_that_is_called_elsewhere_enters_before_the_next_one_here(redis, prefix) -> None:
    await called_upgradable_goes_first(SpanHandingOver(redis, prefix))


async def called_upgradable_goes_first(handing: Any) -> None:
    await handing.acquire(OLD, "u")
    await handing.wait("elsewhere", "u")
    await handing.wait("here", "u")

    refused = await handing.hand_over(OLD, HERE, "u", who="here", flags="wq")

    assert refused[:3] == [0, -2, handing.bell("elsewhere")]
    assert (await handing.come("elsewhere", "u"))[0] == 1
    granted = await handing.hand_over(ELSEWHERE, HERE, "u", who="here", flags="wql")
    assert granted[0] == 1
    refused = await handing.acquire(NEW, "u", who="newcomer")  # no step that hands over
    assert refused[0] == 0


async def test_the_keys_of_other_lines_are_handed_on(redis, prefix) -> None:
    await other_lines_are_called(LimitsHandingOver(redis, prefix))


async def other_lines_are_called(handing: Any) -> None:
    other = handing.of(all=1, b=1)
    await handing.acquire(OLD)
    assert await other.wait(ELSEWHERE, "elsewhere") == []

    refused = await handing.hand_over(OLD, HERE, who="here", flags="w")

    assert refused[0] == 0
    assert other.bell("elsewhere") in refused
    assert await other.takes(ELSEWHERE, "elsewhere", flags="w")


async def test_permits_of_the_dead_are_for_the_line_with_the_first_turn(redis, prefix) -> None:
    await first_turn_goes_first(LimitsHandingOver(redis, prefix))


async def first_turn_goes_first(handing: Any) -> None:
    dead, both, first = handing.of(all=9), handing.of(all=3, b=2), handing.of(all=2, a=1)
    assert await dead.takes("e5" * 32)
    assert await both.takes(OTHER)
    assert await both.takes(OLD)
    await first.wait(ELSEWHERE, "elsewhere")
    await both.wait(NEW, "later")
    await handing.end("e5" * 32)

    granted = await both.hand_over(OLD, HERE, who="here", flags="w")

    assert granted[0] == 0
    assert await first.takes(ELSEWHERE, "elsewhere", flags="w")


CHECKS = checks(globals(), "handing")
MORE = {
    SpanHandingOver: {
        "readers_go_first": readers_go_first,
        "called_upgradable_goes_first": called_upgradable_goes_first,
    },
    LimitsHandingOver: {
        "other_lines_are_called": other_lines_are_called,
        "first_turn_goes_first": first_turn_goes_first,
    },
}
SPARED = {"wake()  -- before the acquire: without any lease, that would look at all lines"}
"""A line without which the step only takes longer."""


@kinds
async def test_each_line_is_needed(redis, prefix, kind) -> None:
    mutants = [(name, kind.handing, text) for name, text in lines_left_out(kind.handing, SPARED)]
    assert mutants
    assert await unnoticed(kind, redis, prefix, mutants, among=CHECKS | MORE[kind]) == []


@pytest.mark.parametrize(
    ("kind", "file", "guard"),
    [
        (SpanHandingOver, SpanHandingOver.handing, "has(ARGV[11], 'w') and bell or "),
        (SpanHandingOver, SpanHandingOver.handing, "has(ARGV[11], 'w') and "),
        (SpanHandingOver, SpanHandingOver.waking, " and id ~= asking"),
        (SpanHandingOver, "spans_acquire", " or asking"),
        (LimitsHandingOver, LimitsHandingOver.handing, " or tonumber(ends) <= NOW"),
        (LimitsHandingOver, LimitsHandingOver.handing, "if has(ARGV[7], 'w') then asking = bell end"),
        (LimitsHandingOver, LimitsHandingOver.waking, "bell ~= asking and "),
    ],
)
async def test_each_guard_is_needed(redis, prefix, kind, file, guard) -> None:
    text = text_of(file)
    assert text.count(guard) == 1
    mutants = [(guard, file, text.replace(guard, "").encode())]
    assert await unnoticed(kind, redis, prefix, mutants, among=CHECKS | MORE[kind]) == []
