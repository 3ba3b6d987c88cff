"""The script by which a session listens for its waiters: every answer, and what it keeps alive.

A test that asks for `listening` alone is also run on mutants of the script, by the tests at the end.
"""

from __future__ import annotations

from typing import Any

import pytest

from aiolocks.transport.answers import ASK, BELL_RUNG, GONE, NO_END, NOT_OURS
from aiolocks.transport.steps.listening import Listener
from tests.lua.mutants import Mutation, checks, compiled, lines_left_out, surviving, unnoticed
from tests.lua.scripts import BELL, CARD, MINUTE, QUEUE, Scripts, about

pytestmark = pytest.mark.leaves_keys("aiolocks*:lock*")

HELD = f"{'a1' * 16}:17:{{}}"
SEATS = "1" * 16, "2" * 16, "3" * 16
FAR = 5000


class ListeningScripts(Scripts):
    """Waiters for a lock, or for what several hold at once, or with marks of their own."""

    kind = "lock"
    shared = ("forms", "bells", "fence", "listening")

    def __init__(self, redis: Any, prefix: str, mutant: dict[str, bytes] | None = None) -> None:
        super().__init__(redis, prefix, mutant)
        self.lock, self.holders, self.waits = self.key(), self.key("holders"), self.key("waits")
        self.marks = (self.waits, self.key("spans"))

    def simple(self, who: str) -> Listener:
        """A waiter for a lock."""
        return Listener(self.bell(who), (self.queue,), locks=(self.lock,))

    def shares(self, who: str, seat: str = SEATS[0]) -> Listener:
        """A waiter for what several hold at once."""
        return Listener(self.bell(who), (self.queue,), seat, deadlines=(self.holders,))

    def marked(self, who: str, ms: int = 3000) -> Listener:
        """A waiter with marks."""
        return Listener(
            self.bell(who),
            (self.queue,),
            SEATS[0],
            deadlines=(self.holders, self.waits),
            marks=self.marks,
            marks_ms=ms,
        )

    async def listen(self, *listeners: Listener, card: str = CARD, near: int | str = "") -> Any:
        words = [word for listener in listeners for word in listener.words()]
        bells = [listener.bell for listener in listeners]
        return await self.run(self.words("waiters_listen", bells, BELL, QUEUE, card, near, FAR, *words))

    async def now(self) -> int:
        seconds, micros = await self.redis.time()
        return int(seconds) * 1000 + int(micros) // 1000

    async def hold_for(self, *times: int) -> None:
        """Leases that end that many milliseconds from now."""
        now = await self.now()
        await self.redis.zadd(self.holders, {f"token {ms}": now + ms for ms in times})

    async def mark(self, who: str, ms: int) -> None:
        await self.redis.zadd(self.waits, {self.bell(who): await self.now() + ms})


@pytest.fixture
def listening(redis, prefix) -> ListeningScripts:
    return ListeningScripts(redis, prefix)


# -- what it is told -----------------------------------------------------------------------------------------


async def test_while_a_lock_is_held_it_is_told_how_long_that_lasts(listening) -> None:
    await listening.sit("x")
    await listening.redis.set(listening.lock, HELD, px=MINUTE)

    (told,) = await listening.listen(listening.simple("x"))

    assert about(told, MINUTE)


async def test_of_a_lock_that_never_ends_it_is_told_no_end(listening) -> None:
    await listening.sit("x")
    await listening.redis.set(listening.lock, HELD)

    assert await listening.listen(listening.simple("x")) == [NO_END]


async def test_where_nothing_is_held_it_is_to_ask(listening) -> None:
    await listening.sit("x")
    await listening.sit("y", seat=SEATS[0])

    assert await listening.listen(listening.simple("x")) == [ASK]
    assert await listening.listen(listening.shares("y")) == [ASK]


async def test_of_several_locks_the_one_that_lasts_longest_is_in_the_way(listening) -> None:
    await listening.sit("x")
    others = [listening.key("fence"), listening.key("queue.1"), listening.key("queue.2")]
    several = listening.simple("x")._replace(locks=(others[0], listening.lock, *others[1:]))
    await listening.redis.set(listening.lock, HELD, px=MINUTE)
    await listening.redis.set(others[1], HELD, px=MINUTE // 6)
    await listening.redis.set(others[2], HELD)

    (told,) = await listening.listen(several)

    assert about(told, MINUTE)


async def test_a_lock_of_its_own_owner_is_not_in_its_way(listening) -> None:
    await listening.sit("x")
    mine = listening.simple("x")._replace(owner="me")
    for holder, told in (("me:17:{}", True), ("metoo:17:{}", False), ("other:17:{}", False)):
        await listening.redis.set(listening.lock, holder, px=MINUTE)
        assert (await listening.listen(mine) == [ASK]) is told, holder
    await listening.redis.delete(listening.lock)
    assert await listening.listen(mine) == [ASK]


async def test_of_leases_the_first_that_ends_counts(listening) -> None:
    await listening.sit("x", seat=SEATS[0])
    await listening.hold_for(20_000, 40_000)

    (told,) = await listening.listen(listening.shares("x"))

    assert about(told, 20_000)


async def test_a_lease_whose_end_has_passed_leaves_no_time(listening) -> None:
    await listening.sit("x", seat=SEATS[0])
    await listening.hold_for(-5000, 40_000)

    assert await listening.listen(listening.shares("x")) == [0]


async def test_the_first_end_of_all_sets_of_deadlines_counts(listening) -> None:
    await listening.sit("y", seat=SEATS[0])
    await listening.sit("x", seat=SEATS[0])
    await listening.hold_for(20_000)
    await listening.mark("x", 1000)
    await listening.mark("y", 9000)

    (told,) = await listening.listen(listening.marked("x"))
    assert about(told, 3000)  # its own mark lasts so long from now on
    await listening.mark("x", 30_000)
    (told,) = await listening.listen(listening.marked("x", 30_000))
    assert about(told, 9000)


async def test_marks_of_others_do_not_keep_the_first_of_the_queue_silent(listening) -> None:
    await listening.sit("x", seat=SEATS[0])
    await listening.sit("y", seat=SEATS[0])
    await listening.mark("x", 1000)
    await listening.mark("y", 9000)

    assert await listening.listen(listening.marked("x")) == [ASK]
    (told,) = await listening.listen(listening.marked("y", 9000))
    assert about(told, 3000)
    await listening.hold_for(20_000)
    (told,) = await listening.listen(listening.marked("x"))
    assert about(told, 20_000)


async def test_what_is_beside_its_queue_lasts_as_long_and_is_asked_for_where_it_is_gone(listening) -> None:
    await listening.sit("x", seat=SEATS[0])
    await listening.hold_for(20_000)
    beside = listening.shares("x")._replace(beside=(listening.key("turns"),))

    assert await listening.listen(beside) == [ASK]
    await listening.redis.set(listening.key("turns"), "", px=1000)
    (told,) = await listening.listen(beside)
    assert about(told, 20_000)
    assert await listening.lasts(listening.key("turns"), QUEUE)


async def test_a_bell_that_was_rung_is_told_and_keeps_its_end(listening) -> None:
    await listening.sit("x")
    await listening.redis.set(listening.bell("x"), "rung", px=MINUTE)
    await listening.redis.pexpire(listening.queue, MINUTE)

    assert await listening.listen(listening.simple("x")) == [BELL_RUNG]
    assert await listening.lasts(listening.bell("x"), MINUTE)
    assert await listening.lasts(listening.queue, MINUTE)
    assert await listening.redis.get(listening.bell("x")) == b"rung"


@pytest.mark.parametrize("gone", ["bell", "place", "queue", "one queue of two"])
async def test_of_what_is_gone_it_is_told_and_nothing_is_made(redis, prefix, gone) -> None:
    await gone_is_told(ListeningScripts(redis, prefix), gone)


async def test_nothing_that_is_gone_is_made_anew(listening) -> None:
    for gone in ("bell", "place", "queue", "one queue of two"):
        await listening.clear()
        await gone_is_told(listening, gone)


async def test_a_bell_that_cannot_hang_is_not_told_to_be_gone(own_server, connect, prefix) -> None:
    """A replica takes no writes: the session must not ask, and listen, again and again."""
    listening = ListeningScripts(connect(await own_server()), prefix)
    await listening.sit("x")
    await listening.sit("y")
    await listening.redis.delete(listening.bell("x"))
    await listening.redis.zrem(listening.queue, listening.bell("y"))
    both = [listening.simple("x"), listening.simple("y")]
    assert await listening.listen(*both) == [GONE, GONE]

    await listening.redis.execute_command("REPLICAOF", "127.0.0.1", "1")

    assert await listening.listen(*both) == [NOT_OURS, NOT_OURS]


async def test_a_seat_that_an_acl_denies_is_not_told_to_be_gone(own_server, connect, prefix, acl) -> None:
    own = await own_server()
    admin = connect(own)
    await admin.execute_command("ACL", "SETUSER", "x", "on", ">secret", "~*", "+@all", "-zadd")
    listening = ListeningScripts(connect(own, username="x", password="secret"), prefix)
    await admin.set(listening.bell("x"), "")

    assert await listening.listen(listening.simple("x")) == [NOT_OURS]


async def gone_is_told(listening: ListeningScripts, gone: str) -> None:
    listener = listening.simple("x")
    await listening.sit("x")
    if gone == "bell":
        await listening.redis.delete(listening.bell("x"))
    elif gone == "place":
        await listening.redis.zrem(listening.queue, listening.bell("x"))
        await listening.sit("y")
    elif gone == "queue":
        await listening.redis.delete(listening.queue)
    else:
        listener = listener._replace(queues=(listening.queue, listening.key("queue.2")))
    state = await listening.state()

    assert await listening.listen(listener) == [GONE]
    assert set(await listening.state()) == set(state)


# -- the dead in front of it ---------------------------------------------------------------------------------


async def test_where_those_in_front_have_died_it_is_to_ask_and_they_are_dropped(listening) -> None:
    for who, seat in zip("abx", SEATS, strict=True):
        await listening.sit(who, seat=seat)
    await listening.hold_for(20_000)
    await listening.die("a", "b")

    assert await listening.listen(listening.shares("x", SEATS[2])) == [ASK]
    assert await listening.waiting() == [listening.bell("x") + SEATS[2].encode()]
    (told,) = await listening.listen(listening.shares("x", SEATS[2]))
    assert about(told, 20_000)


async def test_behind_one_that_lives_the_dead_are_not_its_business(listening) -> None:
    for who, seat in zip("abx", SEATS, strict=True):
        await listening.sit(who, seat=seat)
    await listening.hold_for(20_000)
    await listening.die("a")

    (told,) = await listening.listen(listening.shares("x", SEATS[2]))
    assert about(told, 20_000)
    assert len(await listening.waiting()) == 3


async def test_one_in_front_that_was_rung_is_waited_for_as_long_as_its_bell_lasts(listening) -> None:
    for who, seat in zip("ax", SEATS[:2], strict=True):
        await listening.sit(who, seat=seat)
    await listening.hold_for(MINUTE)
    await listening.redis.set(listening.bell("a"), "rung", px=BELL)

    (told,) = await listening.listen(listening.shares("x", SEATS[1]))
    assert about(told, BELL)


async def test_in_its_turn_it_does_not_ask_before_one_in_front_that_was_rung(listening) -> None:
    """Nothing is held; without seats, who asks first gets in."""
    no_seat, second = "0" * 16, listening.key("queue.2")
    for own, queues in ((SEATS[1], 1), (no_seat, 1), (SEATS[1], 2)):
        await listening.clear()
        await listening.sit("a", seat=SEATS[0])
        await listening.sit("x", seat=own)
        await listening.redis.copy(listening.queue, second)
        await listening.redis.set(listening.bell("a"), "rung", px=BELL)
        waits = listening.shares("x", own)

        (told,) = await listening.listen(waits._replace(queues=(listening.queue, second)[:queues]))

        assert (told == ASK) is (own == no_seat or queues == 2)
        assert told == ASK or about(told, BELL)


async def test_the_dead_behind_it_stay(listening) -> None:
    for who, seat in zip("xa", SEATS[:2], strict=True):
        await listening.sit(who, seat=seat)
    await listening.hold_for(20_000)
    await listening.die("a")

    (told,) = await listening.listen(listening.shares("x"))
    assert about(told, 20_000)
    assert len(await listening.waiting()) == 2


async def test_in_a_queue_for_a_lock_a_waiter_without_a_bell_may_be_on_its_way(listening) -> None:
    for who in "ax":
        await listening.sit(who)
    await listening.redis.set(listening.lock, HELD, px=MINUTE)
    await listening.die("a")

    (told,) = await listening.listen(listening.simple("x"))
    assert about(told, MINUTE)
    assert len(await listening.waiting()) == 2


async def test_what_is_no_bell_of_this_name_is_left_alone(listening) -> None:
    await listening.redis.zadd(listening.queue, {b"data" + SEATS[0].encode(): 1})
    await listening.sit("x", seat=SEATS[1])
    await listening.hold_for(20_000)

    (told,) = await listening.listen(listening.shares("x", SEATS[1]))
    assert about(told, 20_000)
    assert len(await listening.waiting()) == 2


# -- what it keeps alive -------------------------------------------------------------------------------------


async def test_bell_queue_and_card_live_on(listening) -> None:
    await listening.sit("x")
    for key in (listening.bell("x"), listening.queue):
        await listening.redis.pexpire(key, 500)

    await listening.listen(listening.simple("x"))

    assert await listening.lasts(listening.bell("x"), BELL)
    assert await listening.lasts(listening.queue, QUEUE)
    card = listening.key("bell.x.card")
    assert await listening.redis.get(card) == CARD.encode()
    assert await listening.lasts(card, BELL)
    assert await listening.redis.get(listening.bell("x")) == b""


async def test_the_card_stands_beside_the_bell_whatever_the_name(listening) -> None:
    for name in ("a:b", "{a}:b", "x:{a:b}", "aiolocks:lock.bell.x:{a}"):
        one = listening.another()
        one.name = name
        one.queue, card = one.key("queue"), one.key("bell.x.card")
        await one.sit("x")

        await one.listen(one.simple("x"))

        assert await one.redis.get(card) == CARD.encode()
        await one.redis.delete(card, one.bell("x"), one.queue)


async def test_without_a_card_none_is_left(listening) -> None:
    await listening.sit("x")
    await listening.listen(listening.simple("x"), card="")

    assert await listening.redis.exists(listening.key("bell.x.card")) == 0


async def test_marks_live_on_and_are_never_shortened(listening) -> None:
    await listening.sit("x", seat=SEATS[0])
    await listening.hold_for(MINUTE)
    await listening.mark("x", 500)
    await listening.redis.set(listening.marks[1], "marks", px=500)
    await listening.redis.pexpire(listening.waits, MINUTE)

    await listening.listen(listening.marked("x"))

    assert about(
        await listening.redis.zscore(listening.waits, listening.bell("x")) - await listening.now(), 3000
    )
    assert await listening.lasts(listening.marks[1], 4000)
    assert await listening.lasts(listening.waits, MINUTE)


async def test_without_its_mark_it_is_to_ask_and_none_is_made(listening) -> None:
    await listening.sit("x", seat=SEATS[0])
    await listening.hold_for(MINUTE)
    await listening.mark("y", 5000)

    assert await listening.listen(listening.marked("x")) == [ASK]
    assert await listening.redis.zscore(listening.waits, listening.bell("x")) is None


# -- far from the front --------------------------------------------------------------------------------------


async def bells_last(listening, *ms: int) -> bool:
    """The bells and cards of the first waiters last for so long."""
    return all(
        [
            await listening.lasts(key, each)
            for who, each in zip("axy", ms, strict=False)
            for key in (listening.bell(who), listening.key(f"bell.{who}.card"))
        ]
    )


async def test_the_bell_of_one_that_is_far_from_the_front_lasts_longer(listening) -> None:
    for who, seat in zip("axy", SEATS, strict=True):
        await listening.sit(who, seat=seat)
    await listening.hold_for(MINUTE)
    waiting = [listening.shares(who, seat) for who, seat in zip("axy", SEATS, strict=True)]

    *told, far = await listening.listen(*waiting, near=2)

    assert all(about(ms, MINUTE) for ms in told)
    assert far == 3
    assert await bells_last(listening, BELL, BELL, FAR)
    assert (await listening.listen(*waiting, near=1))[3:] == [2, 3]
    assert (await listening.listen(*waiting[1:], near=1))[2:] == [1, 2]


async def test_one_that_comes_near_has_a_short_bell_again(listening) -> None:
    for who, seat in zip("ax", SEATS, strict=False):
        await listening.sit(who, seat=seat)
    await listening.hold_for(MINUTE)
    assert (await listening.listen(listening.shares("x", SEATS[1]), near=1))[1:] == [1]
    await listening.redis.zrem(listening.queue, listening.bell("a") + SEATS[0].encode())

    (told,) = await listening.listen(listening.shares("x", SEATS[1]), near=1)

    assert about(told, MINUTE)
    assert await listening.lasts(listening.bell("x"), BELL)


async def test_the_dead_right_before_it_do_not_keep_it_far(listening) -> None:
    for who, seat in zip("abx", SEATS, strict=True):
        await listening.sit(who, seat=seat)
    await listening.hold_for(MINUTE)
    await listening.die("b")

    assert await listening.listen(listening.shares("x", SEATS[2]), near=2) == [ASK]
    assert await listening.lasts(listening.bell("x"), BELL)


async def test_one_that_is_far_is_told_to_ask_all_the_same(listening) -> None:
    await listening.sit("a")
    await listening.sit("x")

    assert await listening.listen(listening.simple("x"), near=1) == [ASK, 1]
    assert await listening.lasts(listening.bell("x"), FAR)


async def test_one_that_is_near_in_one_of_its_queues_is_near(listening) -> None:
    for queue, who in (("queue.1", "x"), ("queue.2", "a"), ("queue.2", "x")):
        await listening.redis.zadd(listening.key(queue), {listening.bell(who): await listening.now()})
        await listening.redis.set(listening.bell(who), "", px=BELL)
    await listening.redis.set(listening.lock, HELD, px=MINUTE)
    first, second = listening.key("queue.1"), listening.key("queue.2")
    waits = listening.simple("x")

    for queues, far in (((second,), [1]), ((first, second), []), ((second, first), [])):
        assert (await listening.listen(waits._replace(queues=queues), near=1))[1:] == far


async def test_one_with_marks_is_never_far(listening) -> None:
    for who, seat in zip("ax", SEATS, strict=False):
        await listening.sit(who, seat=seat)
    await listening.hold_for(MINUTE)
    await listening.mark("x", 3000)
    beside = listening.marked("x")._replace(seat=SEATS[1])

    (told,) = await listening.listen(beside, near=1)

    assert about(told, 3000)
    assert await listening.lasts(listening.bell("x"), BELL)


async def test_what_is_wrong_with_one_that_would_be_far_is_told(listening) -> None:
    await listening.sit("a")
    await listening.sit("x")
    await listening.redis.set(listening.lock, b"x", px=MINUTE)
    wrong = listening.simple("x")._replace(locks=(listening.queue,), owner="me")

    assert await listening.listen(wrong, near=1) == [NOT_OURS]


# -- several at once -----------------------------------------------------------------------------------------


async def test_each_has_its_own_answer(listening) -> None:
    for who in "xyz":
        await listening.sit(who)
    await listening.redis.set(listening.lock, HELD, px=MINUTE)
    await listening.redis.delete(listening.bell("y"))

    first, second, third = await listening.listen(*map(listening.simple, "xyz"))

    assert about(first, MINUTE)
    assert second == GONE
    assert about(third, MINUTE)


async def test_what_is_wrong_with_one_is_told_of_that_one_alone(listening) -> None:
    await listening.sit("x")
    await listening.sit("y")
    await listening.redis.set(listening.lock, HELD, px=MINUTE)
    await listening.redis.set(listening.key("queue.data"), "data")
    wrong = listening.simple("x")._replace(queues=(listening.key("queue.data"),))

    first, second = await listening.listen(wrong, listening.simple("y"))

    assert first == NOT_OURS
    assert about(second, MINUTE)


async def test_from_then_on_each_bell_is_heard(listening) -> None:
    await listening.sit("x")
    await listening.sit("y")
    async with listening.listening() as ear:
        await ear.say("CLIENT", "CACHING", "YES")
        both = [listening.simple("x"), listening.simple("y")]
        words = [word for listener in both for word in listener.words()]
        bells = [listener.bell for listener in both]
        await ear.say(*listening.words("waiters_listen", bells, BELL, QUEUE, CARD, "", FAR, *words))
        assert await ear.told() == []

        await listening.redis.delete(listening.bell("y"), listening.queue, listening.lock)
        assert [b"invalidate", [listening.bell("y")]] in await ear.told()
        await listening.redis.delete(listening.bell("x"))
        assert [b"invalidate", [listening.bell("x")]] in await ear.told()


# -- mutants -------------------------------------------------------------------------------------------------

CHECKS = checks(globals(), "listening")
STEP, SHARED = "waiters_listen", "shared/listening"
OWNERS = "test_a_lock_of_its_own_owner_is_not_in_its_way"
MUTATIONS = [
    Mutation(
        SHARED,
        "math.max(ends or 0, left)",
        "math.min(ends or left, left)",
        "test_of_several_locks_the_one_that_lasts_longest_is_in_the_way",
    ),
    Mutation(
        SHARED,
        "math.min(ends or math.huge, ",
        "math.max(ends or 0, ",
        "test_the_first_end_of_all_sets_of_deadlines_counts",
    ),
    Mutation(
        SHARED,
        "key, 0, 0, 'WITHSCORES'",
        "key, -1, -1, 'WITHSCORES'",
        "test_of_leases_the_first_that_ends_counts",
    ),
    Mutation(
        SHARED,
        "math.max(0, first - NOW)",
        "first - NOW",
        "test_a_lease_whose_end_has_passed_leaves_no_time",
    ),
    Mutation(SHARED, "marks[1], 'XX', ", "marks[1], ", "test_without_its_mark_it_is_to_ask_and_none_is_made"),
    Mutation(
        SHARED,
        "#deadlines > 0 and ",
        "",
        "test_in_a_queue_for_a_lock_a_waiter_without_a_bell_may_be_on_its_way",
    ),
    Mutation(SHARED, "not before or ", "before and ", "test_what_is_no_bell_of_this_name_is_left_alone"),
    Mutation(
        SHARED,
        "redis.call('GET', before)",
        "false",
        "test_behind_one_that_lives_the_dead_are_not_its_business",
    ),
    Mutation(
        SHARED,
        "lives == 'rung'",
        "false",
        "test_one_in_front_that_was_rung_is_waited_for_as_long_as_its_bell_lasts",
    ),
    Mutation(
        SHARED, "if left ~= -2 then", "if left >= 0 then", "test_of_a_lock_that_never_ends_it_is_told_no_end"
    ),
    Mutation(SHARED, "#owner + 1) == owner .. ':'", "#owner) == owner", OWNERS),
    Mutation(SHARED, "redis.call('GET', lock) or ''", "redis.call('GET', lock)", OWNERS),
    Mutation(
        SHARED,
        "not (is_first and key == marks[1])",
        "key ~= marks[1]",
        "test_the_first_end_of_all_sets_of_deadlines_counts",
    ),
    Mutation(
        SHARED,
        "is_first and key == marks[1]",
        "false",
        "test_marks_of_others_do_not_keep_the_first_of_the_queue_silent",
    ),
    Mutation(
        SHARED,
        "not queues[2] and ",
        "",
        "test_in_its_turn_it_does_not_ask_before_one_in_front_that_was_rung",
    ),
    Mutation(
        SHARED,
        "string.find(seat, '[^0]') ~= nil",
        "true",
        "test_in_its_turn_it_does_not_ask_before_one_in_front_that_was_rung",
    ),
    Mutation(
        SHARED,
        " and not awaits_other",
        "",
        "test_in_its_turn_it_does_not_ask_before_one_in_front_that_was_rung",
    ),
    Mutation(SHARED, "held == 0 ", "false ", "test_where_nothing_is_held_it_is_to_ask"),
    Mutation(
        SHARED,
        "asks or held",
        "held",
        "test_where_those_in_front_have_died_it_is_to_ask_and_they_are_dropped",
    ),
    Mutation(SHARED, "'^([^{]*):'", "'^(.*):'", "test_the_card_stands_beside_the_bell_whatever_the_name"),
    Mutation(SHARED, "if ARGV[3] ~= '' then", "if true then", "test_without_a_card_none_is_left"),
    Mutation(SHARED, "ARGV[4] ~= '' and ", "", "test_where_nothing_is_held_it_is_to_ask"),
    Mutation(SHARED, " and not marks[1]", "", "test_one_with_marks_is_never_far"),
    Mutation(SHARED, "far and rank >= ", "rank >= ", "test_one_that_is_near_in_one_of_its_queues_is_near"),
    Mutation(
        SHARED,
        "rank >= tonumber(ARGV[4])",
        "rank > tonumber(ARGV[4])",
        "test_the_bell_of_one_that_is_far_from_the_front_lasts_longer",
    ),
    Mutation(
        SHARED,
        "far and ARGV[5] or ARGV[1]",
        "ARGV[1]",
        "test_the_bell_of_one_that_is_far_from_the_front_lasts_longer",
    ),
    Mutation(
        SHARED,
        "'PEXPIRE', bell, lasts",
        "'PEXPIRE', bell, ARGV[1]",
        "test_the_bell_of_one_that_is_far_from_the_front_lasts_longer",
    ),
    Mutation(
        SHARED,
        "ARGV[3], 'PX', lasts",
        "ARGV[3], 'PX', ARGV[1]",
        "test_the_bell_of_one_that_is_far_from_the_front_lasts_longer",
    ),
    Mutation(SHARED, "return ASK, far", "return ASK", "test_one_that_is_far_is_told_to_ask_all_the_same"),
    Mutation(
        STEP,
        "ok and answer or -5",
        "answer",
        "test_what_is_wrong_with_one_is_told_of_that_one_alone",
    ),
]
ELSEWHERE = [
    "redis.call('DEL', bell)  -- changes nothing: it shows that the server takes writes",
    "redis.call('ZADD', queue, 'XX', 0, bell .. seat)  -- as above; an ACL may deny ZADD",
]
"""Lines that matter where the server refuses writes: tests above have a server of their own."""
READ_AGAIN = (
    "redis.call('GET', bell)  -- a write ends the server's tracking of the bell, "
    "and a read after it begins that again"
)
"""Needed where a server tracks only what a script has read. Redis 6.2 and 7.0 track all keys of a script that
reads anything, and what reads the locks and deadlines comes after it."""


async def test_each_guard_is_needed(redis, prefix) -> None:
    assert await surviving(ListeningScripts, redis, prefix, MUTATIONS, CHECKS, STEP) == []


@pytest.mark.parametrize("file", [STEP, SHARED])
async def test_each_line_is_needed(request, redis, prefix, file: str) -> None:
    tracks_all_keys = any(server in request.node.name for server in ("redis-6", "redis-7.0"))
    not_needed = [READ_AGAIN] if tracks_all_keys else []
    mutants = [(name, file, text) for name, text in lines_left_out(file, [*ELSEWHERE, *not_needed])]
    living = await compiled(ListeningScripts, redis, prefix, STEP, mutants)
    assert living
    assert await unnoticed(ListeningScripts, redis, prefix, living, among=CHECKS) == []
