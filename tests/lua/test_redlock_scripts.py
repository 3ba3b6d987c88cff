"""The step that a Redlock has besides those of the simple lock: every branch, said twice, by the wrong one.

A test that asks for `lock` alone is also run on mutants of the script, by the tests at the end of this file.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.mutants import Mutation, checks, compiled, fails, lines_left_out, surviving, unnoticed
from tests.lua.scripts import HOUR, MINUTE, LockScripts

pytestmark = pytest.mark.leaves_keys("aiolocks*:redlock*")

ME, OTHER = "a1" * 16, "b2" * 16
LATER = 9_007_199_254_740_000
"""A fencing token of the year 2255, near the largest whole number that a double can hold exactly."""


class RedlockScripts(LockScripts):
    """Those of the simple lock, in a name space of their own, and the one more."""

    kind = "redlock"

    async def seal(
        self,
        token: str,
        sealed: int,
        *,
        retention: int = HOUR,
        given: bool = False,
        queued: str | None = None,
    ) -> Any:
        arguments = (token, sealed, retention, int(given))
        keys = [self.lock, self.fence] if queued is None else self._keys(queued)
        return await self.run(self.words("redlock_seal", keys, *arguments))

    async def minted(self, **kwargs: Any) -> int:
        """Acquired, and with which fencing token."""
        return int((await self.acquire(ME, **kwargs))[1])


@pytest.fixture
def lock(redis, prefix) -> RedlockScripts:
    return RedlockScripts(redis, prefix)


async def test_writes_back_what_is_larger_and_keeps_the_rest(lock) -> None:
    await lock.acquire(ME, ttl=MINUTE, retention=MINUTE, metadata='{"a":":1:\n"}')

    assert await lock.seal(ME, LATER) == 1

    assert await lock.value() == b'%b:0%d:{"a":":1:\n"}' % (ME.encode(), LATER)
    assert await lock.fence_value() == b"%d" % LATER
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)


async def test_said_twice_is_the_same(lock) -> None:
    await lock.acquire(ME)
    await lock.seal(ME, LATER)
    state = await lock.state()

    assert await lock.seal(ME, LATER) == 1

    assert await lock.state() == state


async def test_leaves_the_queue_with_its_bell(lock) -> None:
    for who in ("x", "y"):
        await lock.sit(who)
    await lock.acquire(ME, waits="x")

    assert await lock.seal(ME, LATER, queued="x") == 1

    assert await lock.waiting() == [lock.bell("y")]
    assert [await lock.stands(who) for who in ("x", "y")] == [False, True]


async def test_stays_in_the_queue_where_it_is_not_confirmed(lock) -> None:
    await lock.acquire(OTHER)
    await lock.sit("x")

    assert await lock.seal(ME, LATER, queued="x") == 0

    assert await lock.waiting() == [lock.bell("x")]
    assert await lock.stands("x")


async def test_confirms_what_it_has_minted_itself(lock) -> None:
    minted = await lock.minted(retention=MINUTE)

    assert await lock.seal(ME, minted) == 1

    assert await lock.value() == b"%b:0%d:{}" % (ME.encode(), minted)
    assert await lock.fence_value() == b"%d" % minted
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)


async def test_does_not_confirm_less_than_it_has_minted(lock) -> None:
    minted = await lock.minted()
    state = await lock.state()

    assert await lock.seal(ME, minted - 1) == 0

    assert await lock.state() == state


async def test_takes_less_of_a_lease_that_was_given_already(lock) -> None:
    minted = await lock.minted()

    assert await lock.seal(ME, minted - 1, given=True) == 1

    assert await lock.value() == b"%b:0%d:{}" % (ME.encode(), minted - 1)
    assert await lock.fence_value() == b"%d" % minted


async def test_does_nothing_for_a_token_that_is_not_there(lock) -> None:
    for value in (f"{OTHER}:17:{{}}", f"{ME}0:17:{{}}", f"x{ME}:17:{{}}", "somebody else's", ""):
        await lock.redis.set(lock.lock, value, px=MINUTE)
        state = await lock.state()

        assert [await lock.seal(ME, LATER), await lock.seal(ME, LATER, given=True)] == [0, 0]
        assert await lock.state() == state
    await lock.redis.delete(lock.lock)

    assert await lock.seal(ME, LATER, given=True) == 0

    assert await lock.state() == (None, None, None)


async def test_makes_the_fence_anew_where_it_was_lost_or_is_not_ours(lock) -> None:
    for fence in (None, "nothing of ours"):
        await lock.clear()
        await lock.acquire(ME)
        await lock.redis.delete(lock.fence)
        if fence is not None:
            await lock.redis.set(lock.fence, fence)

        assert await lock.seal(ME, LATER) == 1

        assert await lock.fence_value() == b"%d" % LATER
        assert await lock.expires_in(fence=HOUR)


async def test_what_was_written_back_goes_on_as_the_fencing_token_of_the_lease(lock) -> None:
    await lock.acquire(ME)
    await lock.seal(ME, LATER)

    assert await lock.acquire(ME) == [1, b"0%d" % LATER, 0]
    assert await lock.renew(ME) == 1
    assert await lock.adopt(ME, OTHER) == b"0%d" % LATER
    assert await lock.release(OTHER) == [1]
    assert (await lock.acquire(ME))[1] == b"%d" % (LATER + 1)


async def test_works_on_a_server_that_is_out_of_memory(own_server, connect, prefix) -> None:
    client = connect(await own_server())
    lock = RedlockScripts(client, prefix)
    await lock.acquire(ME)
    await client.config_set("maxmemory", 1)

    assert await lock.seal(ME, LATER) == 1

    await client.config_set("maxmemory", 0)


# -- mutants -------------------------------------------------------------------------------------------------

FILE = "redlock_seal"
CHECKS = checks(globals(), "lock")
MUTATIONS = [
    Mutation(FILE, "or ''", "or ARGV[1] .. ':1:'", "test_does_nothing_for_a_token_that_is_not_there"),
    Mutation(FILE, "holder ~= token", "not holder", "test_does_nothing_for_a_token_that_is_not_there"),
    Mutation(FILE, "'^(%x+)", "'(%x+)", "test_does_nothing_for_a_token_that_is_not_there"),
    Mutation(FILE, "ARGV[4] ~= '1'", "false", "test_does_not_confirm_less_than_it_has_minted"),
    Mutation(
        FILE,
        "ARGV[4] ~= '1'",
        "true",
        "test_takes_less_of_a_lease_that_was_given_already",
    ),
    Mutation(FILE, "tonumber(minted) > tonumber(sealed)", "true", "test_confirms_what_it_has_minted_itself"),
    Mutation(
        FILE,
        "tonumber(minted) > tonumber(sealed)",
        "tonumber(minted) >= tonumber(sealed)",
        "test_said_twice_is_the_same",
    ),
    Mutation(FILE, "':0'", "':'", "test_confirms_what_it_has_minted_itself"),
    Mutation(FILE, "'KEEPTTL'", "'PX', 1000", "test_writes_back_what_is_larger_and_keeps_the_rest"),
    Mutation(FILE, " or 0) or 0)", " or 0))", "test_makes_the_fence_anew_where_it_was_lost_or_is_not_ours"),
    Mutation(
        FILE,
        "< tonumber(sealed) then",
        "~= tonumber(sealed) then",
        "test_takes_less_of_a_lease_that_was_given_already",
    ),
]


async def test_the_script_itself_is_not_complained_of(redis, prefix) -> None:
    scripts = RedlockScripts(redis, prefix)

    assert [name for name, check in CHECKS.items() if await fails(check, scripts)] == []


async def test_without_a_line_somebody_notices(redis, prefix) -> None:
    mutants = [(name, FILE, text) for name, text in lines_left_out(FILE)]
    living = await compiled(RedlockScripts, redis, prefix, FILE, mutants)

    assert len(living) >= 5
    assert await unnoticed(RedlockScripts, redis, prefix, living, among=CHECKS) == []


async def test_with_a_line_altered_that_test_fails(redis, prefix) -> None:
    assert await surviving(RedlockScripts, redis, prefix, MUTATIONS, CHECKS) == []
