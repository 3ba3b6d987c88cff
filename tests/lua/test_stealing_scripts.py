"""The scripts that take a lock by force: whoever held it, said twice, over leavings.

A test that asks for `lock` or `permits` alone is also run on mutants of the scripts, by the tests at the end.
"""

from __future__ import annotations

import pytest

from tests.lua.leadership_scripts import LeadershipScripts
from tests.lua.mutants import checks, compiled, fails, lines_left_out, unnoticed
from tests.lua.scripts import HOUR, MINUTE, PermitScripts, ReentrantScripts, about

pytestmark = pytest.mark.leaves_keys("aiolocks*:lock*", "aiolocks*:semaphore*", "aiolocks*:leadership*")

OWNER, STRANGER = "a1" * 16, "b2" * 16
ME, ALSO = (OWNER + end * 16 for end in ("01", "02"))
OTHER = STRANGER + "01" * 16
SIMPLE, THIRD = "5e" * 16, "c3" * 16
LATER = 9_007_199_254_740_000


class Both(ReentrantScripts):
    """The steps of a reentrant lock, and of the simple lock of the same name."""

    @property
    def mark(self) -> bytes:
        return self.key("stolen")


@pytest.fixture
def lock(redis, prefix) -> Both:
    return Both(redis, prefix)


@pytest.fixture
def permits(redis, prefix) -> PermitScripts:
    return PermitScripts(redis, prefix)


# -- what is free --------------------------------------------------------------------------------------------


async def test_what_is_free_is_taken_as_by_an_acquire(lock) -> None:
    await lock.redis.set(lock.fence, LATER)
    await lock.redis.zadd(lock.queue, {lock.bell("x"): 1})

    granted = await lock.simple.steal(SIMPLE, metadata='{"pid":1}')

    assert granted == [1, b"%d" % (LATER + 1), 1, b""]
    assert await lock.value() == b'%b:%d:{"pid":1}' % (SIMPLE.encode(), LATER + 1)
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)
    assert not await lock.redis.exists(lock.mark, lock.nest)


async def test_an_owner_takes_what_is_free(lock) -> None:
    granted, fencing, others, lost, depth = await lock.steal(ME, metadata='{"pid":1}')

    assert (granted, others, lost, depth) == (1, 0, b"", 1)
    assert await lock.value() == b'%b:%b:{"pid":1}' % (OWNER.encode(), fencing)
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)
    assert list(await lock.nested()) == [ME.encode()]
    assert await lock.lasts(lock.nest, MINUTE)
    assert await lock.owned(ME) == 1


async def test_a_permit_that_is_free_is_taken(permits) -> None:
    granted, fencing, others, lost = await permits.steal(ME, metadata='{"pid":1}')

    assert (granted, others, lost) == (1, 0, b"")
    assert await permits.lease(ME) == b'1:%b:{"pid":1}' % fencing
    assert await permits.lasts(permits.fence, HOUR)


# -- what is held --------------------------------------------------------------------------------------------


async def test_it_is_taken_from_its_holder_who_is_told_by_whom(lock) -> None:
    _, first, _ = await lock.simple.acquire(SIMPLE, ttl=HOUR, metadata="old")
    held = await lock.value()

    granted, fencing, _, lost = await lock.simple.steal(THIRD, metadata="new")

    assert (granted, lost) == (1, held)
    assert int(fencing) > int(first)
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)
    assert await lock.simple.renew(SIMPLE) == await lock.value() == b"%b:%b:new" % (THIRD.encode(), fencing)
    assert await lock.simple.release(SIMPLE) == [await lock.value()]
    assert await lock.simple.renew(THIRD) == 1
    assert await lock.lasts(lock.mark, HOUR)  # for as long as the lease of the first could have lasted
    assert await lock.simple.renew(OTHER) == 0


async def test_said_twice_it_is_the_same_grant(lock) -> None:
    await lock.simple.acquire(SIMPLE, retention=MINUTE)
    granted, fencing, others, _ = await lock.simple.steal(THIRD, ttl=1000, retention=MINUTE)
    state = await lock.state()

    assert await lock.simple.steal(THIRD, metadata="other") == [granted, fencing, others, b""]
    assert await lock.state() == state
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)


async def test_it_is_taken_from_an_owner_with_all_of_its_leases(lock) -> None:
    await lock.acquire(ME)
    await lock.acquire(ALSO)

    _, fencing, _, lost = await lock.simple.steal(SIMPLE)

    assert lost.startswith(OWNER.encode())
    assert not await lock.redis.exists(lock.nest)
    thief = b"%b:%b:{}" % (SIMPLE.encode(), fencing)
    assert [await lock.renew(token) for token in (ME, ALSO)] == [thief, thief]
    assert [await lock.release(token) for token in (ME, ALSO)] == [[thief], [thief]]


async def test_an_owner_takes_it_from_another(lock) -> None:
    _, first, *_ = await lock.acquire(OTHER, ttl=HOUR)
    held = await lock.value()

    _, fencing, _, lost, depth = await lock.steal(ME, metadata="new")

    assert (lost, depth) == (held, 1)
    assert int(fencing) > int(first)
    assert list(await lock.nested()) == [ME.encode()]
    assert await lock.renew(OTHER) == await lock.value() == b"%b:%b:new" % (OWNER.encode(), fencing)
    assert await lock.renew(ME) == 1
    assert await lock.lasts(lock.mark, HOUR)


async def test_from_itself_an_owner_takes_it_once_more(lock) -> None:
    _, fencing, *_ = await lock.acquire(ME, retention=MINUTE)
    await lock.end(ME)

    for _ in range(2):
        assert await lock.steal(ALSO) == [1, fencing, 0, b"", 1]
    assert list(await lock.nested()) == [ALSO.encode()]
    assert await lock.expires_in(lock=MINUTE, fence=HOUR)
    assert not await lock.redis.exists(lock.mark)


async def test_a_permit_is_taken_from_its_holder(permits) -> None:
    _, first, *_ = await permits.acquire(OTHER, value="", ttl=HOUR, metadata="old")
    await permits.sit("x")

    granted, fencing, others, lost = await permits.steal(ME, metadata="new")

    assert (granted, others) == (1, 1)
    assert lost == b"%b:%b:old" % (OTHER.encode(), first)
    assert int(fencing) > int(first)
    assert await permits.held() == {ME.encode(): 1}
    assert await permits.states("x") == [b""]  # it goes on waiting
    assert await permits.renew(OTHER) == b"%b:%b:new" % (ME.encode(), fencing)
    assert await permits.release(OTHER) == [b"%b:%b:new" % (ME.encode(), fencing)]
    assert about(await permits.redis.pttl(permits.key("stolen")), HOUR)
    assert await permits.steal(ME, metadata="other") == [1, fencing, 1, b""]
    assert await permits.lease(ME) == b"1:%b:new" % fencing


async def test_a_lease_that_has_ended_is_taken_from_nobody(permits) -> None:
    await permits.acquire(OTHER, value="")
    await permits.end(OTHER)

    assert (await permits.steal(ME))[3] == b""
    assert not await permits.redis.exists(permits.key("stolen"))


async def test_it_lasts_as_a_lease_does(permits) -> None:
    await permits.acquire(ME, value="", ttl=1000, retention=MINUTE)
    await permits.steal(ME)

    assert await permits.lasts(permits.holders, MINUTE + 1000)
    assert await permits.lasts(permits.fence, HOUR)


async def test_a_stolen_leadership_is_a_term_and_news(redis, prefix) -> None:
    leadership = LeadershipScripts(redis, prefix)
    await leadership.elect(OTHER)
    granted, fencing, _, lost, news = await leadership.steal(ME, metadata="new")

    assert (granted, news) == (1, leadership.news)
    assert lost.startswith(OTHER.encode())
    assert [term.fencing_token for term in await leadership.log()][-1] == int(fencing)


# -- the mark ------------------------------------------------------------------------------------------------


async def test_each_of_several_losers_is_told_of_its_own_thief(lock) -> None:
    await lock.simple.acquire(SIMPLE, ttl=HOUR)
    await lock.simple.steal(THIRD)
    await lock.simple.steal(OTHER)

    told = [await lock.simple.renew(token) for token in (SIMPLE, THIRD)]
    assert [thief.partition(b":")[0].decode() for thief in told] == [THIRD, OTHER]
    assert await lock.lasts(lock.mark, HOUR)


async def test_the_mark_does_not_grow_for_ever_and_the_newest_losers_are_told(lock) -> None:
    tokens = [f"{number:032x}" for number in range(40)]
    for number, token in enumerate(tokens):
        await lock.simple.steal(token)
        assert await lock.redis.hlen(lock.mark) == min(number, 16)
    told = {token: await lock.simple.renew(token) for token in tokens[:-1]}
    for token, thief in zip(tokens[-17:-1], tokens[-16:], strict=True):
        assert told.pop(token).partition(b":")[0].decode() == thief
    assert set(told.values()) == {0}


async def test_where_others_have_written_nobody_is_told(lock) -> None:
    await lock.redis.set(lock.mark, "theirs", px=MINUTE)
    await lock.simple.acquire(SIMPLE)

    assert (await lock.simple.steal(THIRD))[0] == 1
    assert await lock.simple.renew(SIMPLE) == 0
    assert await lock.simple.release(SIMPLE) == [0]
    assert await lock.redis.get(lock.mark) == b"theirs"


async def test_a_lock_without_a_ttl_leaves_a_mark_with_one(lock) -> None:
    await lock.simple.acquire(SIMPLE)
    await lock.redis.persist(lock.lock)

    assert (await lock.simple.steal(THIRD))[3] != b""
    assert await lock.redis.pttl(lock.mark) != -1


# -- mutants -------------------------------------------------------------------------------------------------

OF_LOCKS = ["lock_steal", "reentrant_steal", "shared/stolen"]
PERMITS_ALONE = ["permits_steal"]


async def test_the_scripts_themselves_are_not_complained_of(redis, prefix) -> None:
    for name in ("lock", "permits"):
        scripts = (Both if name == "lock" else PermitScripts)(redis, prefix)
        assert [check for check, run in checks(globals(), name).items() if await fails(run, scripts)] == []


@pytest.mark.parametrize("file", OF_LOCKS + PERMITS_ALONE)
async def test_without_a_line_somebody_notices(redis, prefix, file) -> None:
    scripts = PermitScripts if file in PERMITS_ALONE else Both
    step = "lock_steal" if "/" in file else file
    found = [(name, file, text) for name, text in lines_left_out(file)]
    living = await compiled(scripts, redis, prefix, step, found)

    among = checks(globals(), "permits" if file in PERMITS_ALONE else "lock")
    assert await unnoticed(scripts, redis, prefix, living, among=among) == []
