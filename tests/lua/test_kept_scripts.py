"""The steps of a lock that stays with its session between uses: each line of them is needed."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from tests.lua.mutants import Jury, checks, fails, text_of
from tests.lua.scripts import HOUR, MINUTE, LockScripts

pytestmark = pytest.mark.leaves_keys()

A, B, C = (letter * 32 for letter in "abc")
WHO = '{"host":"h"}'


class KeptScripts(LockScripts):
    """The steps of such a lock."""

    parts: ClassVar[dict[str, tuple[str, ...]]] = {
        "keep": ("shared/lock_keep", "lock_acquire"),
        "let_go": (
            "shared/lock_straight",
            "shared/bells",
            "shared/stolen",
            "shared/give_back",
            "lock_release",
        ),
        "renew_kept": ("shared/bells", "shared/stolen", "lock_renew_kept"),
        "adopt_kept": ("shared/adopt_kept", "lock_adopt"),
        "end": ("shared/bells", "locks_release"),
        "nested": (
            *(f"shared/{one}" for one in ("forms", "bells", "fence", "locks", "nest", "seats", "recall")),
            "reentrant_acquire",
        ),
        "several": (
            *(f"shared/{one}" for one in ("forms", "bells", "fence", "locks", "seats", "recall")),
            "multi_acquire",
        ),
    }

    def text(self, step: str) -> bytes:
        if step not in self.parts:
            return super().text(step)
        return b"".join(self.mutant.get(file) or text_of(file).encode() for file in self.parts[step])

    async def keep(self, token: str, *, numbers: int = 10, waits: str | None = None, flags: str = "") -> Any:
        flags = ("wh" if waits else "") + flags
        words = (token, MINUTE, HOUR, WHO, flags, numbers)
        return await self.run(self.words("keep", self._keys(waits), *words))

    async def let_go(self, token: str, given: int, *, leave: str | None = None) -> Any:
        return await self.run(self.words("let_go", self._keys(leave), token, HOUR, 1, given))

    async def renew_kept(self, token: str, *, keeps: int = 1) -> Any:
        return await self.run(self.words("renew_kept", self._keys(None), token, MINUTE, HOUR, keeps))

    async def adopt_kept(self, old: str, new: str, number: int) -> Any:
        words = (old, new, MINUTE, HOUR, "{}", number)
        return await self.run(self.words("adopt_kept", [self.lock, self.fence], *words))

    async def end(self, *those: tuple[str, int]) -> Any:
        keys, words = [], []
        for token, given in those:
            keys += self._keys(None)
            words += [token, HOUR, given]
        return await self.run(self.words("end", keys, *words))

    async def asks(self, token: str, flags: str = "", waits: str | None = None) -> Any:
        return await self.run(self.words("lock_acquire", self._keys(waits), token, MINUTE, HOUR, WHO, flags))

    async def mark(self) -> int | None:
        """The mark in the lock key."""
        value = await self.value() or b""
        _, found, rest = value.partition(b'{"cache":')
        return int(rest[:1]) if found else None

    async def number(self) -> int:
        return int(await self.fence_value() or 0)


@pytest.fixture
def kept(redis: Any, prefix: str) -> KeptScripts:
    return KeptScripts(redis, prefix)


async def test_a_grant_has_a_mark_and_reserves_its_block(kept: KeptScripts) -> None:
    _, first, others, may = await kept.keep(A)
    assert (others, may) == (0, 1)
    assert await kept.value() == b'%s:%s:{"cache":1,"host":"h"}' % (A.encode(), first)
    assert await kept.number() == int(first) + 9
    assert await kept.expires_in(lock=MINUTE, fence=HOUR)


async def test_numbers_rise_over_blocks(kept: KeptScripts) -> None:
    await kept.redis.set(kept.fence, 8_000_000_000_000_000, px=HOUR)
    _, first, *_ = await kept.keep(A)
    assert int(first) == 8_000_000_000_000_001
    await kept.let_go(A, 8_000_000_000_000_004)
    assert await kept.number() == 8_000_000_000_000_004


async def test_a_fence_of_another_program_is_told(kept: KeptScripts) -> None:
    for wrong in ("x", str(2**53)):
        await kept.redis.set(kept.fence, wrong, px=HOUR)
        with pytest.raises(Exception, match="FOREIGN 2"):
            await kept.keep(A)
    await kept.redis.delete(kept.fence)
    await kept.redis.set(kept.queue, "x", px=HOUR)
    with pytest.raises(Exception, match="WRONGTYPE"):
        await kept.keep(A)


async def test_no_block_reaches_beyond_what_a_double_holds(kept: KeptScripts) -> None:
    await kept.redis.set(kept.fence, 2**53 - 5, px=HOUR)
    assert len(await kept.keep(A)) == 3


async def test_not_where_others_wait(kept: KeptScripts) -> None:
    await kept.redis.zadd(kept.queue, {kept.bell("x"): 1})
    assert len(await kept.keep(A)) == 3
    assert await kept.mark() is None
    await kept.redis.delete(kept.queue)


async def test_without_numbers_it_is_a_grant_like_any_other(kept: KeptScripts) -> None:
    assert len(await kept.keep(A, numbers=0)) == 3
    assert await kept.mark() is None


async def test_sent_again_it_is_the_same_grant(kept: KeptScripts) -> None:
    _, first, *_ = await kept.keep(A)
    await kept.redis.pexpire(kept.lock, 100)
    await kept.redis.pexpire(kept.fence, 100)
    assert await kept.keep(A) == [1, first, 0, 1]
    assert await kept.number() == int(first) + 9
    assert await kept.expires_in(lock=MINUTE, fence=HOUR)


async def test_sent_again_after_it_was_asked_for_it_is_not_kept(kept: KeptScripts) -> None:
    _, first, *_ = await kept.keep(A)
    await kept.asks(B)
    assert await kept.keep(A) == [1, first, 0]
    assert await kept.mark() == 3
    assert (await kept.asks(B))[1] > 0


async def test_sent_again_while_a_waiter_of_an_older_version_stands_there(kept: KeptScripts) -> None:
    await kept.keep(A)
    await kept.redis.zadd(kept.queue, {kept.bell("x"): 1})
    assert len(await kept.keep(A)) == 3
    assert await kept.mark() == 3
    await kept.redis.delete(kept.queue)


async def test_a_lease_of_another_is_refused(kept: KeptScripts) -> None:
    await kept.acquire(B)
    assert (await kept.keep(A))[0] == 0


async def test_a_refusal_asks_once_and_the_ttl_stays(kept: KeptScripts) -> None:
    await kept.keep(A)
    await kept.redis.pexpire(kept.lock, 30_000)
    held = await kept.value()
    assert await kept.asks(B) == [0, -5]
    assert await kept.value() == held.replace(b'"cache":1', b'"cache":4')
    assert await kept.redis.pttl(kept.lock) <= 30_000
    assert await kept.asks(C) == [0, -5]
    assert await kept.mark() == 4


async def test_a_waiter_asks_and_is_seated_in_one_step(kept: KeptScripts) -> None:
    await kept.keep(A)
    reply = await kept.asks(B, "w", waits="b")
    assert reply[1] > 0
    assert await kept.mark() == 2
    assert await kept.redis.zscore(kept.queue, kept.bell("b"))
    assert (await kept.asks(C))[1] > 0  # a waiter is before this try


async def test_a_brief_waiter_has_the_answer_that_a_try_has(kept: KeptScripts) -> None:
    await kept.keep(A)
    assert (await kept.asks(B, "we", waits="b"))[1] == -5
    assert await kept.mark() == 4
    assert (await kept.asks(B, "qwe", waits="b"))[1] == -5
    assert await kept.renew_kept(A) == 2
    assert (await kept.asks(B, "qwe", waits="b"))[1] > 0


async def test_who_waits_behind_another_has_no_answer(kept: KeptScripts) -> None:
    await kept.keep(A)
    await kept.redis.zadd(kept.queue, {kept.bell("first"): 1})
    assert (await kept.asks(B, "we", waits="b"))[1] > 0
    await kept.redis.delete(kept.queue)


async def test_a_lease_without_a_mark_is_no_business_of_it(kept: KeptScripts) -> None:
    await kept.acquire(A)
    held = await kept.value()
    assert (await kept.asks(B))[1] > 0
    assert await kept.value() == held


async def test_a_renewal_says_if_it_was_asked_for(kept: KeptScripts) -> None:
    await kept.keep(A)
    await kept.redis.pexpire(kept.lock, 100)
    await kept.redis.pexpire(kept.fence, 100)
    assert await kept.renew_kept(A) == 1
    assert await kept.expires_in(lock=MINUTE, fence=HOUR)
    assert await kept.mark() == 1
    await kept.asks(B)
    assert await kept.renew_kept(A) == 2
    assert await kept.mark() == 3
    assert await kept.renew_kept(A) == 2
    assert await kept.expires_in(lock=MINUTE)
    assert await kept.renew_kept(B) == 0


async def test_a_renewal_hears_of_a_waiter_of_an_older_version(kept: KeptScripts) -> None:
    await kept.keep(A)
    await kept.redis.zadd(kept.queue, {kept.bell("x"): 1})
    assert await kept.renew_kept(A) == 2
    assert await kept.mark() == 3
    await kept.redis.delete(kept.queue)


async def test_a_session_that_keeps_it_no_more_answers_in_advance(kept: KeptScripts) -> None:
    await kept.keep(A)
    assert await kept.renew_kept(A, keeps=0) == 2
    assert await kept.mark() == 3
    assert (await kept.asks(B))[1] > 0


async def test_the_answer_rings_a_try_and_no_waiter(kept: KeptScripts) -> None:
    await kept.keep(A)
    await kept.asks(B, "we", waits="b")
    assert await kept.renew_kept(A) == 2
    assert not await kept.redis.exists(kept.bell("b"))
    await kept.redis.delete(kept.queue, kept.lock)
    await kept.keep(A)
    await kept.asks(B, "w", waits="b")
    assert await kept.renew_kept(A) == 2
    assert await kept.redis.exists(kept.bell("b"))


async def test_a_renewal_of_a_lease_without_a_mark(kept: KeptScripts) -> None:
    await kept.acquire(A)
    held = await kept.value()
    assert await kept.renew_kept(A) == 2
    assert await kept.value() == held
    await kept.redis.zadd(kept.queue, {"another": 1})
    assert await kept.renew_kept(A) == 2
    await kept.redis.delete(kept.queue)


async def test_a_release_gives_back_what_was_not_given(kept: KeptScripts) -> None:
    for given in (0, 3):
        _, first, *_ = await kept.keep(A)
        last = int(first) + given if given else 0
        assert await kept.let_go(A, last) == [1]
        assert await kept.number() == max(int(first), last)
        assert await kept.expires_in(fence=HOUR)
        assert await kept.value() is None


async def test_a_release_of_another_gives_back_nothing(kept: KeptScripts) -> None:
    _, first, *_ = await kept.keep(A)
    assert await kept.let_go(B, int(first)) == [0]
    assert await kept.number() == int(first) + 9
    await kept.redis.delete(kept.lock)
    assert await kept.let_go(A, int(first)) == [0]
    assert await kept.number() == int(first) + 9


async def test_a_release_makes_no_fence(kept: KeptScripts) -> None:
    await kept.keep(A)
    await kept.redis.delete(kept.fence)
    assert await kept.let_go(A, 5) == [1]
    assert not await kept.redis.exists(kept.fence)


async def test_a_release_wakes(kept: KeptScripts) -> None:
    await kept.keep(A)
    await kept.asks(B, "w", waits="b")
    assert await kept.let_go(A, 0) == [1, kept.bell("b")]


async def test_several_end_at_once(kept: KeptScripts) -> None:
    _, first, *_ = await kept.keep(A)
    await kept.asks(B, "w", waits="b")
    await kept.redis.zadd(kept.queue, {kept.bell("dead"): 1})
    assert await kept.end((A, int(first) + 2)) == [1, kept.bell("b")]
    assert await kept.number() == int(first) + 2
    assert await kept.expires_in(fence=HOUR)
    assert await kept.value() is None
    assert await kept.redis.zscore(kept.queue, kept.bell("dead")) is None
    await kept.redis.delete(kept.queue)


async def test_an_end_wakes_the_first_alone(kept: KeptScripts) -> None:
    _, first, *_ = await kept.keep(A)
    await kept.asks(B, "w", waits="b")
    await kept.asks(C, "w", waits="c")
    assert await kept.end((A, int(first))) == [1, kept.bell("b")]
    assert await kept.states("b", "c") == [None, b""]
    await kept.redis.delete(kept.queue)


async def test_several_end_each_by_itself(kept: KeptScripts) -> None:
    _, first, *_ = await kept.keep(A)
    assert await kept.end((B, 7)) == [0]
    assert await kept.number() == int(first) + 9
    assert await kept.end((B, 7), (A, 0)) == [1]
    assert await kept.number() == int(first)
    await kept.redis.delete(kept.fence)
    await kept.keep(A)
    await kept.redis.delete(kept.fence)
    assert await kept.end((A, 0)) == [1]
    assert not await kept.redis.exists(kept.fence)
    await kept.redis.lpush(kept.lock, "x")
    assert await kept.end((A, 0)) == [0]
    await kept.redis.delete(kept.lock)


async def test_an_adoption_takes_its_number_along(kept: KeptScripts) -> None:
    _, first, *_ = await kept.keep(A)
    number = int(first) + 4
    assert await kept.adopt_kept(A, B, number) == str(number).encode()
    assert await kept.value() == b"%s:%d:{}" % (B.encode(), number)
    assert await kept.number() == number
    assert await kept.expires_in(fence=HOUR)
    assert await kept.adopt_kept(A, B, number) == str(number).encode()
    assert await kept.adopt_kept(A, C, number) == b""


async def test_an_adoption_makes_no_fence_of_another(kept: KeptScripts) -> None:
    await kept.acquire(B)
    before = await kept.number()
    assert await kept.adopt_kept(A, C, 7) == b""
    assert await kept.number() == before
    await kept.redis.delete(kept.lock)
    assert await kept.adopt_kept(A, C, 7) == b""


async def test_a_reentrant_lock_asks(kept: KeptScripts) -> None:
    keys = [kept.lock, kept.fence, kept.queue, kept.key("nest")]
    await kept.keep(A)
    await kept.redis.pexpire(kept.lock, 30_000)
    assert (await kept.run(kept.words("nested", keys, B + C, MINUTE, HOUR, WHO, "")))[:2] == [0, -5]
    assert await kept.mark() == 4
    assert await kept.redis.pttl(kept.lock) <= 30_000
    await kept.renew_kept(A)
    assert (await kept.run(kept.words("nested", keys, B + C, MINUTE, HOUR, WHO, "")))[1] > 0
    await kept.let_go(A, 0)
    await kept.keep(A)
    await kept.run(kept.words("nested", [*keys, kept.bell("b")], B + C, MINUTE, HOUR, WHO, "w"))
    assert await kept.mark() == 2
    assert (await kept.run(kept.words("nested", keys, B + C, MINUTE, HOUR, WHO, "")))[1] > 0


async def test_several_locks_ask_each(kept: KeptScripts) -> None:
    keys = [kept.lock, kept.fence, kept.queue]
    await kept.keep(A)
    assert (await kept.run(kept.words("several", keys, 1, B, MINUTE, HOUR, WHO, "")))[:2] == [0, -5]
    assert await kept.mark() == 4
    await kept.renew_kept(A)
    assert (await kept.run(kept.words("several", keys, 1, B, MINUTE, HOUR, WHO, "")))[1] > 0
    await kept.redis.delete(kept.lock)
    await kept.keep(A)
    reply = await kept.run(kept.words("several", [*keys, kept.bell("b")], 1, B, MINUTE, HOUR, WHO, "w"))
    assert reply[1] > 0
    assert await kept.mark() == 2
    assert (await kept.run(kept.words("several", keys, 1, C, MINUTE, HOUR, WHO, "")))[1] > 0


CHECKS = checks(globals(), "kept")
SECTIONS = ("recall", "lock_keep", "give_back", "adopt_kept")
STEPS = ("lock_renew_kept", "locks_release")
OUT_OF_MEMORY = (
    "redis.call('PEXPIRE', queue, 10000)",
    "redis.pcall('PEXPIRE', fence, ARGV[i + 1])",
    "redis.call('PEXPIRE', queue, QUEUE_TTL)",
)
"""Lines that only a server out of memory needs: `tests/adversity/test_cached.py`."""
READ = ("redis.call('GET', lock)", "if not redis.call('GET', lock) then return 0 end")
"""Lines by which the server tells of changes: `tests/simulation/safeguards/of_tenures.py`."""


def left_out() -> list[tuple[str, str, bytes]]:
    found = []
    for file in (*(f"shared/{section}" for section in SECTIONS), *STEPS):
        lines = text_of(file).splitlines()
        for number, line in enumerate(map(str.strip, lines)):
            opens = (
                line in ("end", "do") or line.endswith((" then", " do")) or line.startswith("local function")
            )
            if line and not line.startswith("--") and not opens and line not in OUT_OF_MEMORY + READ:
                text = "\n".join(lines[:number] + lines[number + 1 :]).encode()
                found.append((f"{file}: {line}", file, text))
    return found


async def test_each_line_is_needed(redis: Any, prefix: str) -> None:
    jury = Jury(CHECKS.values())
    assert [
        name
        for name, file, text in left_out()
        if not await jury.notices(KeptScripts, redis, prefix, file, text)
    ] == []


MUTATIONS = [
    ("lock_acquire", "and mark ~= '3' and", "and"),
    (
        "lock_acquire",
        "(not first or first == bell) and (not has('w') or has('e')) then reply",
        "true then reply",
    ),
    ("lock_acquire", "(not has('w') or has('e')) and '4' or '2'", "'2'"),
    ("lock_acquire", "(not has('w') or has('e')) and '4' or '2'", "'4'"),
    ("lock_acquire", ".. rest, 'KEEPTTL')", ".. rest)"),
    ("multi_acquire", "if before and before ~= bell then answers = false end", ""),
    ("multi_acquire", "for i = 1, answers and n or 0 do", "for i = 1, 0 do"),
    ("reentrant_acquire", "if not before or before == bell then reply[2]", "if true then reply[2]"),
    ("reentrant_acquire", "if not before or before == bell then reply[2] = -5 end", ""),
    ("shared/recall", ", 'KEEPTTL'", ""),
    ("shared/recall", "and '4' or '2'", "and '2' or '2'"),
    ("shared/recall", "return mark and mark ~= '3'", "return mark"),
    ("shared/lock_keep", "not held and not awaited and", "not held and"),
    ("shared/lock_keep", "if mark == '1' and not awaited then", "if mark == '1' then"),
    ("shared/lock_keep", "if mark == '1' and not awaited then", "if not awaited then"),
    ("shared/lock_keep", "9007199254740991 - numbers", "9007199254740991"),
    ("shared/lock_keep", "minted + numbers - 1", "minted"),
    ("shared/lock_keep", "last + 1", "last"),
    ("lock_renew_kept", "mark ~= '1' or ", ""),
    ("lock_renew_kept", "ARGV[4] ~= '1' or ", ""),
    ("lock_renew_kept", "or redis.pcall('ZCARD', queue) ~= 0", ""),
    ("lock_renew_kept", "if mark == '4' then", "if mark then"),
    ("lock_renew_kept", "mark ~= '3' and asked then redis", "mark ~= '3' then redis"),
    ("lock_renew_kept", "'3' .. rest, 'KEEPTTL'", "'3' .. rest"),
    ("shared/give_back", "tonumber(given) > tonumber(first) and given or first", "given"),
    ("shared/give_back", "tonumber(given) > tonumber(first) and given or first", "first"),
    ("shared/give_back", "if redis.call('PEXPIRE', KEYS[2], ARGV[2]) == 1 then", "if true then"),
    ("locks_release", "tonumber(ARGV[i + 2]) > tonumber(first) and ARGV[i + 2] or first", "first"),
    ("locks_release", "'XX', ", ""),
    ("locks_release", "while held == false do", "while false do"),
    ("locks_release", "redis.pcall('GET', lock)", "redis.call('GET', lock)"),
    ("shared/adopt_kept", "':' .. number", "':' .. string.match(held, ':(%d+):')"),
    ("shared/adopt_kept", "redis.call('SET', KEYS[2], number, 'PX', ARGV[4])", ""),
]


async def test_without_its_guard_somebody_notices(redis: Any, prefix: str) -> None:
    assert [(file, guard) for file, guard, _ in MUTATIONS if text_of(file).count(guard) != 1] == []
    jury = Jury(CHECKS.values())
    assert [
        (file, guard, instead)
        for file, guard, instead in MUTATIONS
        if not await jury.notices(
            KeptScripts, redis, prefix, file, text_of(file).replace(guard, instead).encode()
        )
    ] == []


async def test_the_scripts_themselves_are_not_complained_of(kept: KeptScripts) -> None:
    others = [
        check for name, check in CHECKS.items() if name != "test_the_scripts_themselves_are_not_complained_of"
    ]
    assert [check for check in others if await fails(check, kept.another())] == []


async def test_32_releases_take_no_millisecond_of_the_server(redis: Any, prefix: str) -> None:
    took = []
    for _ in range(5):
        locks = [KeptScripts(redis, prefix) for _ in range(32)]
        keys, words = [], []
        for lock in locks:
            await lock.keep(A)
            keys += lock._keys(None)
            words += [A, HOUR, 0]
        await redis.config_resetstat()
        await redis.execute_command(*locks[0].words("end", keys, *words))
        stats = await redis.info("commandstats")
        took.append(float(stats["cmdstat_eval"]["usec_per_call"]))
    await asyncio.sleep(0)
    assert min(took) < 1000, took
