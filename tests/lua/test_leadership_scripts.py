"""The scripts of a leadership: those of permits with its terms beside them, and those who observe.

A test that asks for `leadership` alone is also run on mutants of the scripts, by the tests at the end.
"""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ResponseError

from aiolocks.kinds.leadership import Observing, TermFound
from aiolocks.lock.wakeups import telling
from tests.lua.leadership_scripts import FIRST, LeadershipScripts
from tests.lua.mutants import Mutation, checks, compiled, fails, lines_left_out, surviving, unnoticed
from tests.lua.scripts import HOUR, MINUTE, about

pytestmark = pytest.mark.leaves_keys("aiolocks*:leadership*")

ME, OTHER, THIRD = "a1" * 16, "b2" * 16, "c3" * 16
SECOND = "2" * 16
MOST = 64


@pytest.fixture
def leadership(redis, prefix) -> LeadershipScripts:
    return LeadershipScripts(redis, prefix)


# -- the terms


async def test_a_grant_is_a_term(leadership) -> None:
    granted, minted, *_ = await leadership.elect(ME, '{"pid":1}')
    assert granted == 1
    assert await leadership.log() == [TermFound(int(minted), b'{"pid":1}')]


async def test_a_refusal_is_none(leadership) -> None:
    await leadership.elect(ME)
    before = await leadership.log()
    assert (await leadership.elect(OTHER))[0] == 0
    assert await leadership.log() == before


async def test_said_twice_it_is_one_term(leadership) -> None:
    minted = (await leadership.elect(ME))[1]
    assert (await leadership.elect(ME, "another"))[1] == minted
    assert [term.described for term in await leadership.log()] == [b"{}"]


async def test_terms_stand_in_order_and_outlive_their_leaders(leadership) -> None:
    minted = []
    for number in range(3):
        minted.append(int((await leadership.elect(ME, f"{number}"))[1]))
        await leadership.release(ME, seat=FIRST)
    assert await leadership.log() == [TermFound(one, b"%d" % at) for at, one in enumerate(minted)]


async def test_of_many_terms_the_last_are_kept(leadership) -> None:
    for number in range(MOST + 3):
        await leadership.elect(ME, f"{number}")
        await leadership.release(ME, seat=FIRST)
    assert [int(term.described) for term in await leadership.log()] == list(range(3, MOST + 3))


async def test_a_leader_that_died_is_followed_by_the_next_term(leadership) -> None:
    await leadership.elect(ME, "1")
    await leadership.end(ME)
    await leadership.elect(OTHER, "2")
    assert [term.described for term in await leadership.log()] == [b"1", b"2"]


async def test_what_is_annotated_takes_the_place_of_what_stood_there(leadership) -> None:
    await leadership.elect(OTHER, "0")
    await leadership.release(OTHER, seat=FIRST)
    minted = (await leadership.elect(ME, "1"))[1]
    assert await leadership.annotate(ME, "2") == 1
    assert [term.described for term in await leadership.log()] == [b"0", b"2"]
    assert await leadership.lease(ME) == b"1:%b:2" % minted
    assert await leadership.annotate(ME, "2") == 1


async def test_who_does_not_lead_annotates_nothing(leadership) -> None:
    assert await leadership.annotate(ME) == 0
    await leadership.elect(ME, "1")
    assert await leadership.annotate(OTHER) == 0
    await leadership.end(ME)
    assert await leadership.annotate(ME) == 0
    assert [term.described for term in await leadership.log()] == [b"1"]
    assert not await leadership.redis.hexists(leadership.leases, OTHER)


async def test_who_adopts_goes_on_with_the_term(leadership) -> None:
    minted = await leadership.adopt(ME, OTHER)
    assert minted == b""
    minted = (await leadership.elect(ME, "1"))[1]
    assert await leadership.adopt(ME, OTHER, metadata="2") == minted
    assert await leadership.log() == [TermFound(int(minted), b"2")]


async def test_a_renewal_writes_down_again_what_was_lost(leadership) -> None:
    minted = (await leadership.elect(ME, "1"))[1]
    await leadership.redis.delete(leadership.terms)
    assert await leadership.renew(ME, seat=FIRST) == 1
    assert await leadership.log() == [TermFound(int(minted), b"1")]


async def test_terms_are_kept_for_as_long_as_the_fence_or_ten_times_the_ttl(leadership) -> None:
    await leadership.elect(ME, ttl=1000, retention=HOUR)
    assert about(await leadership.redis.pttl(leadership.terms), HOUR)
    await leadership.redis.pexpire(leadership.terms, MINUTE)
    assert await leadership.renew(ME, ttl=1000, retention=HOUR, seat=FIRST) == 1
    assert about(await leadership.redis.pttl(leadership.terms), HOUR)
    await leadership.redis.delete(leadership.fence)
    await leadership.redis.pexpire(leadership.terms, MINUTE)
    assert await leadership.renew(ME, ttl=HOUR, seat=FIRST) == 1
    assert about(await leadership.redis.pttl(leadership.terms), 10 * HOUR)


async def test_terms_that_are_annotated_are_kept_for_as_long(leadership) -> None:
    await leadership.elect(ME, ttl=MINUTE, retention=HOUR)
    assert await leadership.annotate(ME, "2") == 1
    assert about(await leadership.redis.pttl(leadership.terms), HOUR)
    await leadership.redis.delete(leadership.fence)
    assert await leadership.annotate(ME, "3") == 1
    assert about(await leadership.redis.pttl(leadership.terms), MINUTE)


async def test_where_others_have_written_the_lease_goes_on(leadership) -> None:
    await leadership.redis.set(leadership.terms, "something")
    assert (await leadership.elect(ME))[0] == 1
    assert await leadership.annotate(ME) == 1
    assert await leadership.renew(ME, seat=FIRST) == 1
    assert (await leadership.release(ME, seat=FIRST))[0] == 1
    assert await leadership.redis.get(leadership.terms) == b"something"


# -- the news


async def heard(scripts: Any, step: Any) -> bool:
    """Whether one who has asked for the news before that step is told."""
    async with scripts.listening() as ear:
        await ear.say("CLIENT", "CACHING", "YES")
        await ear.say("GET", scripts.news)
        await step
        return [b"invalidate", [scripts.news]] in await ear.told()


async def test_each_change_is_news(leadership) -> None:
    assert await heard(leadership, leadership.elect(ME))
    assert await heard(leadership, leadership.annotate(ME))
    assert await heard(leadership, leadership.release(ME, seat=FIRST))
    assert not await leadership.redis.exists(leadership.news)


async def test_what_changes_nothing_is_none(leadership) -> None:
    await leadership.elect(ME)
    assert not await heard(leadership, leadership.elect(OTHER))
    assert not await heard(leadership, leadership.renew(ME, seat=FIRST))
    assert not await heard(leadership, leadership.release(OTHER, seat=SECOND))
    await leadership.annotate(ME, "2")
    assert not await heard(leadership, leadership.annotate(ME, "2"))


async def test_news_are_among_the_bells_for_the_session_whose_step_it_was(leadership) -> None:
    assert leadership.news in (await leadership.elect(ME))[4:]
    assert leadership.news not in (await leadership.elect(ME))[4:]
    assert leadership.news in (await leadership.release(ME, seat=FIRST))[1:]
    assert leadership.news not in (await leadership.release(ME, seat=FIRST))[1:]


# -- looking


async def test_nobody_leads_and_nobody_has(leadership) -> None:
    look = await leadership.look()
    assert await leadership.is_now(str(look.now_us).encode())
    assert (look.newest, look.leading, look.left_ms, look.since) == (0, None, -1, [])


async def test_a_look_tells_of_the_leader(leadership) -> None:
    minted = int((await leadership.elect(ME, '{"a:b":1}', ttl=MINUTE))[1])
    look = await leadership.look()
    assert look.leading == TermFound(minted, b'{"a:b":1}')
    assert look.newest == minted
    assert about(look.left_ms, MINUTE)
    assert look.since == []


async def test_a_look_tells_of_the_terms_since(leadership) -> None:
    minted = []
    for number in range(4):
        minted.append(int((await leadership.elect(ME, f"{number}"))[1]))
        await leadership.release(ME, seat=FIRST)
    look = await leadership.look(minted[1])
    assert look.since == [TermFound(minted[2], b"2"), TermFound(minted[3], b"3")]
    assert (look.leading, look.newest) == (None, minted[3])
    assert len((await leadership.look(0)).since) == 4
    assert (await leadership.look(minted[3])).since == []


async def test_a_lease_that_is_over_leads_nobody(leadership) -> None:
    await leadership.elect(ME)
    await leadership.end(ME)
    look = await leadership.look()
    assert (look.leading, look.left_ms) == (None, -1)


async def test_half_of_a_lease_leads_nobody(leadership) -> None:
    await leadership.elect(ME)
    await leadership.redis.delete(leadership.leases)
    look = await leadership.look()
    assert (look.leading, look.left_ms) == (None, -1)


async def test_a_look_is_refused_where_others_have_written(leadership) -> None:
    for write in (
        leadership.redis.set(leadership.terms, "something"),
        leadership.redis.zadd(leadership.terms, {"something": 1}),
    ):
        await leadership.redis.delete(leadership.terms)
        await write
        with pytest.raises(ResponseError, match="FOREIGN 3"):
            await leadership.look()


def test_the_steps_send_what_the_scripts_take(prefix) -> None:
    steps = Observing(prefix, "name")
    assert steps.look(None).args == ("+inf",)
    assert steps.look(17).args == ("17",)
    listen = telling(steps.news)
    assert listen.words(as_eval=False) == ("GET", steps.news)
    assert listen.bells == (steps.news,)
    assert listen.lane == steps.look(None).lane


# -- mutants

FILES = ["shared/terms", "leadership_annotate", "leadership_look"]
CHECKS = checks(globals(), "leadership")
SPARED: dict[str, str] = {}
MUTATIONS = [
    Mutation(
        "shared/terms",
        "if not terms_are_ours then return end",
        "",
        "test_where_others_have_written_the_lease_goes_on",
    ),
    Mutation("shared/terms", "-MOST_TERMS - 1", "-MOST_TERMS", "test_of_many_terms_the_last_are_kept"),
    Mutation(
        "shared/terms",
        "minted, minted)",
        "'-inf', minted)",
        "test_terms_stand_in_order_and_outlive_their_leaders",
    ),
    Mutation(
        "shared/terms",
        "redis.call('PTTL', fence)",
        "0",
        "test_terms_are_kept_for_as_long_as_the_fence_or_ten_times_the_ttl",
    ),
    Mutation(
        "shared/terms", "10 * ttl", "0", "test_terms_are_kept_for_as_long_as_the_fence_or_ten_times_the_ttl"
    ),
    Mutation(
        "shared/terms",
        "if announced then",
        "if true then",
        "test_news_are_among_the_bells_for_the_session_whose_step_it_was",
    ),
    Mutation(
        "leadership_annotate",
        "deadline - NOW",
        "0",
        "test_terms_that_are_annotated_are_kept_for_as_long",
    ),
    Mutation(
        "leadership_annotate", " or tonumber(deadline) <= NOW", "", "test_who_does_not_lead_annotates_nothing"
    ),
    Mutation("leadership_look", "'(' .. ", "", "test_a_look_tells_of_the_terms_since"),
    Mutation("leadership_look", "left <= 0 or ", "", "test_a_lease_that_is_over_leads_nobody"),
    Mutation("leadership_look", " or not lease", "", "test_half_of_a_lease_leads_nobody"),
]


async def test_the_scripts_themselves_are_not_complained_of(redis, prefix) -> None:
    scripts = LeadershipScripts(redis, prefix)
    assert [name for name, check in CHECKS.items() if await fails(check, scripts)] == []


@pytest.mark.parametrize("file", FILES)
async def test_without_a_line_somebody_notices(redis, prefix, file) -> None:
    step = file if "/" not in file else "permits_acquire"
    mutants = [(name, file, text) for name, text in lines_left_out(file, unless=SPARED)]
    living = await compiled(LeadershipScripts, redis, prefix, step, mutants)
    assert await unnoticed(LeadershipScripts, redis, prefix, living, among=CHECKS) == []


async def test_with_a_line_altered_that_test_fails(redis, prefix) -> None:
    assert await surviving(LeadershipScripts, redis, prefix, MUTATIONS, CHECKS, "permits_acquire") == []
