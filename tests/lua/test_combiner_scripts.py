"""The scripts of a combiner: every branch, said twice, by the wrong one.

A test that asks for `combiner` alone is also run on mutants of the scripts, by the tests at the end.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.exceptions import ResponseError

from aiolocks.kinds.combiner import Ack, AnswersKnown, Bounds, CombinerSteps, Entry, Put, Row
from aiolocks.transport import IN_TURN, WAITING, Refused
from aiolocks.transport.request import MOST_KNOWN
from tests.lua.mutants import checks, compiled, lines_left_out, unnoticed
from tests.lua.scripts import HOUR, MINUTE, Scripts, about, shipped

pytestmark = pytest.mark.leaves_keys("aiolocks*:combiner*")

ME, OTHER, THIRD = "a1" * 16, "b2" * 16, "c3" * 16
A, B, C, D = (digits * 16 for digits in ("01", "02", "03", "04"))
"""Of puts."""
KEEP = 2 * HOUR
IDLE = 10_000
SHARED = ("forms", "bells", "fence", "locks", "combiners")


class CombinerScripts(Scripts):
    """The steps of a combiner."""

    kind = "combiner"

    def __init__(self, redis: Any, prefix: str, mutant: dict[str, bytes] | None = None) -> None:
        super().__init__(redis, prefix, mutant)
        self.run_key, self.value, self.items, self.answers = map(self.key, ("", "value", "items", "answers"))
        self.base = [self.run_key, self.value, self.items, self.answers]

    def text(self, step: str) -> bytes:
        if not step.startswith("combiner_"):
            return super().text(step)
        hands_out = ("combiner_hand_out",) if step in ("combiner_acquire", "combiner_take") else ()
        puts = ("combiner_puts",) if step in ("combiner_put", "combiner_acquire") else ()
        seats = ("seats",) if step == "combiner_acquire" else ()
        files = [*(f"shared/{name}" for name in (*SHARED, *puts, *hands_out, *seats)), step]
        return b"".join(self.mutant.get(file) or shipped(file) for file in files)

    async def put(
        self,
        token: str,
        *payloads: str,
        room: int = 100,
        keep: int = KEEP,
        left: bool = False,
        known: int = MINUTE,
        most: int = 1000,
    ) -> Any:
        keys = [*self.base, self.key("puts"), self.queue, self.key("idle")]
        items = [word for payload in payloads for word in ("l" if left else "w", payload)]
        return await self.run(self.words("combiner_put", keys, token, HOUR, room, keep, known, most, *items))

    async def acquire(
        self,
        token: str,
        *rows: tuple[int, int],
        who: str = "",
        queued: bool = False,
        most: int = 1000,
        window: int = 0,
        within: int = 0,
        ttl: int = MINUTE,
        brings: tuple[str, ...] = (),
        room: int = 100,
        known: int = MINUTE,
        most_known: int = 1000,
    ) -> Any:
        """`brings`: the token of a put, and its payloads."""
        keys = [*self.base, self.key("fence"), self.queue, self.key("idle")]
        keys += [self.bell(who)] if who else []
        keys += [self.key("puts")] if brings else []
        flags = ("ql" if queued else "") + ("w" if who else "")
        asked = " ".join(f"{first}-{last}" for first, last in rows)
        arguments = (token, ttl, HOUR, "{}", flags, most, window, within, asked, IDLE)
        if brings:
            items = [word for payload in brings[1:] for word in ("w", payload)]
            arguments = (*arguments, brings[0], room, KEEP, known, most_known, *items)
        return await self.run(self.words("combiner_acquire", keys, *arguments))

    async def take(
        self, token: str, after: int = 0, *, most: int = 1000, window: int = 0, within: int = 0
    ) -> Any:
        return await self.run(
            self.words("combiner_take", self.base, token, HOUR, most, window, within, after)
        )

    async def answer(self, token: str, *entries: tuple[int, int, str], run: bytes = b"0") -> Any:
        words = [word for a, b, payload in entries for word in (a, b, "v", payload)]
        keys = [*self.base, self.key("fence")]
        return await self.run(self.words("combiner_answer", keys, token, run, *words))

    async def ack(
        self,
        token: str,
        run: bytes,
        upto: int,
        *entries: tuple[int, int, str],
        failed: bool = False,
        late: bool = False,
    ) -> Any:
        words = [word for a, b, payload in entries for word in (a, b, "v", payload)]
        keys = [*self.base, self.key("fence"), self.queue]
        how = "f" if failed else "d"
        return await self.run(
            self.words("combiner_ack", keys, token, run, HOUR, upto, how, int(late), *words)
        )

    async def left(self, token: str, *payloads: str, **kwargs: Any) -> int:
        """The number of the first item."""
        first, taken, *_ = await self.put(token, *payloads, **kwargs)
        assert taken == len(payloads)
        return int(first)

    async def begin(self, token: str, **kwargs: Any) -> tuple[bytes, Any]:
        """The fencing token of a run, and its first piece."""
        one, run, _, wait, piece = await self.acquire(token, **kwargs)
        assert (one, wait) == (1, 0)
        return run, piece

    async def fields(self) -> dict[str, str]:
        found = await self.redis.hgetall(self.value)
        return {name.decode(): value.decode() for name, value in found.items()}


@pytest.fixture
def combiner(redis, prefix) -> CombinerScripts:
    return CombinerScripts(redis, prefix)


def payloads(piece: Any) -> list[bytes]:
    return list(piece[7::3])


def numbers(piece: Any) -> list[int]:
    return [int(number) for number in piece[5::3]]


async def test_items_are_numbered_in_order_and_handed_out(combiner) -> None:
    first, taken, waiting = await combiner.put(A, "one", "two")
    assert (taken, waiting) == (2, 2)
    assert await combiner.is_now(first)
    later, taken, waiting = await combiner.put(B, "three", left=True)
    assert (taken, waiting) == (1, 3)
    assert int(later) > int(first) + 1
    run, piece = await combiner.begin(ME)
    assert await combiner.is_now(run)
    last = later
    assert piece == [
        1,
        1,
        last,
        last,
        0,
        first,
        b"w",
        b"one",
        str(int(first) + 1).encode(),
        b"w",
        b"two",
        later,
        b"l",
        b"three",
    ]
    assert (await combiner.fields())["waiting"] == "3"


async def test_a_put_that_is_said_twice_leaves_its_items_once(combiner) -> None:
    first = await combiner.put(A, "one", "two")
    assert await combiner.put(A, "one", "two") == first
    await combiner.put(B, "three")
    assert (await combiner.put(A, "one", "two"))[:2] == first[:2]
    run, piece = await combiner.begin(ME)
    assert payloads(piece) == [b"one", b"two", b"three"]
    await combiner.ack(ME, run, int(piece[2]))
    assert (await combiner.put(A, "one", "two"))[:2] == first[:2]
    assert (await combiner.acquire(OTHER))[0] == 0


async def test_only_so_many_wait(combiner) -> None:
    assert (await combiner.put(A, "one", "two", room=3))[1:] == [2, 2]
    first, taken, waiting = await combiner.put(B, "three", "four", room=3)
    assert (taken, waiting) == (1, 3)
    assert await combiner.put(B, "three", "four", room=3) == [first, 1, 3]
    assert await combiner.put(C, "five", room=3) == [b"0", 0, 3]
    assert await combiner.put(C, "five", room=2) == [b"0", 0, 3]
    assert (await combiner.put(C, "five", room=4))[1:] == [1, 4]
    run, piece = await combiner.begin(ME)
    assert payloads(piece) == [b"one", b"two", b"three", b"five"]
    await combiner.ack(ME, run, int(piece[2]))
    assert (await combiner.put(D, "six", room=1))[1:] == [1, 1]  # what is done does not count


async def test_numbers_rise_also_when_the_clock_was_set_back(combiner) -> None:
    ahead = 8_000_000_000_000_000
    await combiner.left(A, "one")
    await combiner.redis.hset(combiner.value, "last", ahead)
    assert await combiner.left(B, "two") == ahead + 1
    await combiner.redis.hset(combiner.value, "last", 5)
    assert await combiner.left(C, "three") == ahead + 2  # the items themselves say so, too
    await combiner.redis.delete(combiner.items)
    await combiner.redis.hset(combiner.value, mapping={"last": 5, "done": ahead + 7})
    assert await combiner.left(D, "four") == ahead + 8


async def test_one_runs_at_a_time_and_others_are_seated(combiner) -> None:
    number = await combiner.left(A, "one")
    await combiner.begin(ME)
    refused, remaining = await combiner.acquire(OTHER, (number, number), who="o")
    assert refused == 0
    assert about(remaining, MINUTE)
    assert await combiner.waiting() == [combiner.bell("o")]
    assert await combiner.states("o") == [b""]
    assert (await combiner.acquire(THIRD))[0] == 0  # without a seat
    assert await combiner.waiting() == [combiner.bell("o")]


async def test_an_acquire_that_is_said_twice_is_the_same_run(combiner) -> None:
    await combiner.left(A, "one")
    run, piece = await combiner.begin(ME)
    await combiner.left(B, "two")
    await combiner.redis.pexpire(combiner.run_key, 500)
    await combiner.redis.pexpire(combiner.key("fence"), 500)
    assert await combiner.begin(ME) == (run, piece)
    assert await combiner.lasts(combiner.run_key, MINUTE)
    assert await combiner.lasts(combiner.key("fence"), HOUR)


async def test_there_is_no_run_without_items_and_a_worker_is_silent(combiner) -> None:
    assert await combiner.acquire(ME, who="m") == [0, IDLE]
    assert await combiner.stands("m")
    assert await combiner.lasts(combiner.key("idle"), IDLE)
    _, _, _, bell = await combiner.put(A, "one")
    assert bell == combiner.bell("m")
    assert await combiner.states("m") == [None]
    assert not await combiner.redis.exists(combiner.key("idle"))
    assert (await combiner.acquire(ME, who="m", queued=True))[0] == 1
    assert await combiner.waiting() == []
    # While there is a run, nobody is woken by an item.
    await combiner.acquire(OTHER, who="o")
    assert (await combiner.put(B, "two"))[3:] == []
    assert await combiner.states("o") == [b""]


async def test_an_asker_without_a_seat_makes_no_worker_silent(combiner) -> None:
    assert await combiner.acquire(ME) == [0, IDLE]
    assert await combiner.everything() == []


async def test_whoever_asks_first_has_the_run_though_another_one_was_woken(combiner) -> None:
    await combiner.acquire(OTHER, who="o")
    first, _, _, rung = await combiner.put(A, "one")
    assert rung == combiner.bell("o")
    number = int(first)
    assert (await combiner.acquire(ME, (number, number), who="m"))[0] == 1
    # The one that was woken waits for the end of this run, in its place, and its bell hangs.
    assert (await combiner.acquire(OTHER, who="o", queued=True))[0] == 0
    assert await combiner.states("o") == [b""]
    assert await combiner.stands("o")


async def test_what_is_acknowledged_is_gone_and_who_waits_is_woken(combiner) -> None:
    first = await combiner.left(A, "one", "two")
    run, piece = await combiner.begin(ME)
    later = await combiner.left(B, "three")
    await combiner.acquire(OTHER, (first, first + 1), who="o")
    await combiner.acquire(THIRD, (later, later), who="t")
    assert await combiner.ack(OTHER, run, first + 1) == [0]
    assert await combiner.answer(ME, (first, first + 1, "done")) == 1
    # No asker is told before the end is acknowledged.
    assert (await combiner.acquire(OTHER, (first, first + 1), who="o", queued=True))[0] == 0
    assert (await combiner.ack(ME, run, first + 1))[1:] == [combiner.bell("o"), combiner.bell("t")]
    assert await combiner.waiting() == [combiner.bell("t")]  # it is first, and about to ask
    assert await combiner.ack(ME, run, first + 1) == [1]  # again
    assert not await combiner.redis.exists(combiner.run_key)
    told = await combiner.acquire(OTHER, (first, first + 1), who="o", queued=True)
    both = [str(first).encode(), str(first + 1).encode()]
    assert told == [2, both[1], [*both, b"v", b"done"], []]
    assert not await combiner.stands("o")
    next_run, piece = await combiner.begin(THIRD)
    assert int(next_run) > int(run)
    assert piece[:2] == [2, 1]
    assert payloads(piece) == [b"three"]


async def test_an_end_that_nobody_holds_wakes_the_next(combiner) -> None:
    number = await combiner.left(A, "one")
    run, _ = await combiner.begin(ME)
    await combiner.acquire(OTHER, (number, number), who="o")
    await combiner.redis.delete(combiner.run_key)
    later = str(int(run) + 1).encode()
    await combiner.redis.set(combiner.key("fence"), later, px=HOUR)  # of a run that has ended, too
    assert await combiner.ack(ME, run, number) == [0, combiner.bell("o")]
    assert payloads((await combiner.begin(OTHER))[1]) == [b"one"]
    await combiner.acquire(THIRD, (number, number), who="t")
    assert await combiner.ack(ME, run, number) == [0]


async def test_a_run_that_had_the_lease_last_counts_although_it_is_over(combiner) -> None:
    number = await combiner.left(A, "one")
    run, _ = await combiner.begin(ME)
    await combiner.redis.delete(combiner.run_key)
    assert await combiner.answer(OTHER, (number, number, "r"), run=b"7") == 0
    assert await combiner.answer(ME, (number, number, "r"), run=run) == 1
    assert await combiner.ack(ME, run, number) == [1]
    fields = await combiner.fields()
    assert (int(fields["done"]), fields["acked"]) == (number, run.decode())
    assert (await combiner.acquire(OTHER, (number, number)))[2] == [str(number).encode()] * 2 + [b"v", b"r"]


async def test_a_run_that_had_the_lease_last_may_fail(combiner) -> None:
    number = await combiner.left(A, "one")
    run, _ = await combiner.begin(ME)
    await combiner.redis.delete(combiner.run_key)
    for _ in range(2):  # said twice, it is one attempt
        assert await combiner.ack(ME, run, number, failed=True, late=True) == [1]
    assert (await combiner.begin(OTHER))[1][:2] == [1, 2]


async def test_a_run_counts_no_more_once_another_has_begun(combiner) -> None:
    number = await combiner.left(A, "one")
    run, _ = await combiner.begin(ME)
    await combiner.redis.delete(combiner.run_key)
    other, _ = await combiner.begin(OTHER)
    assert await combiner.answer(ME, (number, number, "r"), run=run) == 0
    assert await combiner.ack(ME, run, number) == [0]
    assert (await combiner.fields())["attempt"] == "1"
    for _ in range(2):  # but as an attempt, if it was late by its own fault; said twice, once
        assert await combiner.ack(ME, run, number, late=True) == [0]
        assert (await combiner.fields())["attempt"] == "2"
    assert await combiner.ack(ME, run, number - 1, late=True) == [0]
    assert await combiner.ack(OTHER, other, number) == [1]
    later = str(int(run) + 1).encode()
    assert await combiner.ack(ME, later, number, late=True) == [0]  # it is done
    fields = await combiner.fields()
    assert (fields["attempt"], fields["late"]) == ("2", run.decode())
    assert await combiner.left(B, "two") > number
    _, piece = await combiner.begin(THIRD)
    assert piece[:2] == [2, 1]
    assert await combiner.ack(ME, later, number, late=True) == [0]  # another batch
    assert (await combiner.fields())["attempt"] == "1"


async def test_a_batch_that_has_failed_is_tried_again_as_it_was(combiner) -> None:
    number = await combiner.left(A, "one")
    run, piece = await combiner.begin(ME)
    await combiner.left(B, "two")
    await combiner.acquire(OTHER, (number, number), who="o")
    await combiner.acquire(THIRD, (number, number), who="t")
    assert await combiner.ack(ME, run, number, failed=True) == [1, combiner.bell("o")]
    assert await combiner.ack(ME, run, number, failed=True) == [1]
    _, piece = await combiner.begin(OTHER, window=MINUTE)
    assert piece[:2] == [1, 2]
    assert payloads(piece) == [b"one"]
    # The death of a runner is no attempt.
    await combiner.redis.delete(combiner.run_key)
    _, piece = await combiner.begin(THIRD)
    assert piece[:2] == [1, 2]
    assert int((await combiner.fields())["batch"]) == 1


async def test_a_batch_has_so_many_and_is_handed_out_in_pieces(combiner) -> None:
    first = await combiner.left(A, *map(str, range(250)), room=1000)
    run, piece = await combiner.begin(ME, most=230)
    assert int(piece[2]) == first + 229
    got = payloads(piece)
    assert len(got) == 50
    assert int(piece[3]) == first + 49
    for number in range(2, 6):
        wait, piece = await combiner.take(ME, int(piece[3]))
        got += payloads(piece)
        assert (wait, len(got)) == (0, min(230, 50 * number))
    assert int(piece[3]) == first + 229
    assert got == [str(number).encode() for number in range(230)]
    assert await combiner.take(OTHER, 0) == [-1]
    await combiner.ack(ME, run, first + 229)
    _, piece = await combiner.begin(ME, most=230)
    assert payloads(piece) == [str(number).encode() for number in range(230, 250)]


async def test_large_items_make_small_pieces(combiner) -> None:
    await combiner.left(A, *["x" * 20_000] * 12)
    _, piece = await combiner.begin(ME)
    assert len(payloads(piece)) == 5
    _, piece = await combiner.take(ME, int(piece[3]))
    assert len(payloads(piece)) == 5


async def test_much_garbage_goes_little_by_little(combiner) -> None:
    await combiner.left(A, *map(str, range(1201)), room=2000)
    run, piece = await combiner.begin(ME, most=1200)
    upto = int(piece[2])
    await combiner.ack(ME, run, upto)
    assert await combiner.redis.zcard(combiner.items) == 1101
    assert (await combiner.fields())["waiting"] == "1"
    assert (await combiner.put(B, "later", room=10))[1:] == [1, 2]
    assert await combiner.redis.zcard(combiner.items) == 1002
    run, piece = await combiner.begin(OTHER, most=1)
    assert payloads(piece) == [b"1200"]
    assert await combiner.redis.zcard(combiner.items) == 902
    await combiner.answer(OTHER, (upto, upto, "done"))
    assert await combiner.redis.zcard(combiner.items) == 802


async def test_nothing_stays_of_what_is_done_if_nothing_waits(combiner) -> None:
    first = await combiner.left(A, *map(str, range(300)), room=1000)
    run, piece = await combiner.begin(ME)
    await combiner.answer(ME, (first, first, "done"))
    await combiner.ack(ME, run, int(piece[2]))
    assert not await combiner.redis.exists(combiner.items)
    assert (await combiner.fields())["waiting"] == "0"
    assert (await combiner.acquire(OTHER, (first, first)))[2][2:] == [b"v", b"done"]
    assert await combiner.left(B, "later") > first + 299


async def test_old_answers_go(combiner) -> None:
    first = await combiner.left(A, "one")
    run, _ = await combiner.begin(ME)
    await combiner.answer(ME, (first, first, "done"))
    assert about(await combiner.redis.pttl(combiner.answers), 60_000)
    await combiner.ack(ME, run, first)
    (member,) = await combiner.redis.zrange(combiner.answers, 0, -1)
    number, came, tag, payload = member.split(b":")
    old = b":".join((number, str(int(came) - 30_001).encode(), tag, payload))
    await combiner.left(B, "two")
    assert await combiner.redis.zcard(combiner.answers) == 1
    await combiner.redis.zadd(combiner.answers, {old: first})
    await combiner.redis.zrem(combiner.answers, member)
    await combiner.left(C, "three")
    assert await combiner.redis.zcard(combiner.answers) == 0
    assert await combiner.acquire(OTHER, (first, first), who="o") == [2, str(first).encode(), [], []]


async def test_answers_are_told_in_pieces_and_for_what_was_asked(combiner) -> None:
    first = await combiner.left(A, *map(str, range(150)), room=1000)
    run, _ = await combiner.begin(ME)
    each = [(first + n, first + n, f"r{n}") for n in range(150)]
    await combiner.answer(ME, *each[:80])
    await combiner.answer(ME, *each[80:])
    later = await combiner.left(B, "later", room=1000)
    await combiner.ack(ME, run, first + 149)
    two, settled, told, missing = await combiner.acquire(OTHER, (first, first + 3), (first + 10, first + 149))
    assert (two, missing) == (2, [])
    assert told[:4] == [str(first).encode()] * 2 + [b"v", b"r0"]
    assert told[16:20] == [str(first + 10).encode()] * 2 + [b"v", b"r10"]
    assert len(told) == 200
    assert int(settled) == first + 55
    _, settled, told, _ = await combiner.acquire(OTHER, (first + 106, first + 149), (later, later))
    assert int(settled) == first + 149
    assert len(told) == 44 * 4
    _, settled, told, _ = await combiner.acquire(OTHER, (first + 1, first + 2))
    assert int(settled) == first + 2
    assert told[3::4] == [b"r1", b"r2"]


async def test_large_answers_make_small_pieces(combiner) -> None:
    first = await combiner.left(A, "a", "b", "c")
    run, _ = await combiner.begin(ME)
    await combiner.answer(ME, *((first + n, first + n, "x" * 40_000) for n in range(3)))
    await combiner.ack(ME, run, first + 2)
    _, settled, told, _ = await combiner.acquire(OTHER, (first, first + 2))
    assert len(told) == 8
    assert int(settled) == first + 1


async def test_one_answer_for_several_rows_is_told_once(combiner) -> None:
    first = await combiner.left(A, "a", "b", "c", "d")
    run, _ = await combiner.begin(ME)
    await combiner.answer(ME, (first, first + 2, "all"))
    await combiner.ack(ME, run, first + 3)
    _, settled, told, missing = await combiner.acquire(OTHER, (first, first), (first + 2, first + 3))
    assert told == [str(first).encode(), str(first + 2).encode(), b"v", b"all"]
    assert (int(settled), missing) == (first + 3, [])
    # An answer that begins later is none for this row.
    _, _, told, _ = await combiner.acquire(OTHER, (first - 2, first - 1))
    assert told == []


async def test_what_a_dead_runner_has_left_is_no_answer(combiner) -> None:
    first = await combiner.left(A, "a", "b")
    await combiner.begin(ME)
    await combiner.answer(ME, (first, first, "old a"), (first + 1, first + 1, "old b"))
    await combiner.redis.delete(combiner.run_key)
    run, _ = await combiner.begin(OTHER)
    assert await combiner.answer(ME, (first, first, "late")) == 0
    # The other one leaves none for the second, for which it waits itself.
    await combiner.answer(OTHER, (first, first, "new"))
    await combiner.answer(OTHER, (first, first, "new"))  # again
    await combiner.ack(OTHER, run, first + 1)
    _, settled, told, _ = await combiner.acquire(THIRD, (first, first + 1))
    assert (told[2:], int(settled)) == ([b"v", b"new"], first + 1)


async def test_what_the_server_has_lost_is_told(combiner) -> None:
    first = await combiner.left(A, "a", "b")
    await combiner.begin(ME)
    await combiner.redis.delete(combiner.items)
    gone = await combiner.acquire(OTHER, (first, first + 1), who="o")
    assert gone == [2, b"0", [], [str(first).encode(), str(first + 1).encode()]]
    assert not await combiner.stands("o")


async def test_a_window_collects(combiner) -> None:
    await combiner.left(A, "one")
    one, _, _, wait, piece = await combiner.acquire(ME, window=300)
    assert (one, piece) == (1, [])
    assert 250 < wait <= 300
    await asyncio.sleep(0.1)
    await combiner.left(B, "two")
    wait, piece = await combiner.take(ME, window=300)
    assert 100 < wait <= 210
    wait, piece = await combiner.take(ME, window=300, within=1000)  # begun anew by the second item
    assert 250 < wait <= 300
    wait, piece = await combiner.take(ME, window=300, within=350)
    assert 150 < wait <= 260
    wait, piece = await combiner.take(ME, window=300, most=2)  # full
    assert (wait, payloads(piece)) == (0, [b"one", b"two"])
    await combiner.left(C, "three")
    wait, piece = await combiner.take(ME, window=300)  # it has begun
    assert (wait, payloads(piece)) == (0, [b"one", b"two"])


async def test_a_window_is_no_longer_where_the_clock_was_set_back(combiner) -> None:
    await combiner.left(A, "one")
    await combiner.redis.hset(combiner.value, "last", 8_000_000_000_000_000)
    await combiner.redis.delete(combiner.items)
    await combiner.left(B, "two")
    assert (await combiner.acquire(ME, window=300))[3] == 0


async def test_there_may_be_nothing_to_take(combiner) -> None:
    await combiner.left(A, "one")
    await combiner.acquire(ME, window=MINUTE)
    await combiner.redis.delete(combiner.items)
    assert await combiner.take(ME, window=MINUTE) == [0, []]


async def test_items_that_nobody_runs_are_left_out_after_their_time(combiner) -> None:
    first = await combiner.left(A, "old", keep=1)
    await combiner.left(B, "old, and nobody waits", keep=1, left=True)
    await combiner.left(C, "new")
    await asyncio.sleep(0.01)
    run, piece = await combiner.begin(ME)
    assert piece[4] == 2
    assert piece[5:8] == [str(first).encode(), b"d", b""]  # its caller has to be told
    assert payloads(piece) == [b"", b"new"]
    await combiner.ack(ME, run, int(piece[2]))
    assert (await combiner.acquire(OTHER, (first, first)))[:3] == [2, str(first).encode(), []]


async def test_keys_last_as_long_as_items(combiner) -> None:
    await combiner.left(A, "one")
    for key in (combiner.items, combiner.value):
        assert about(await combiner.redis.pttl(key), KEEP + HOUR)
    await combiner.left(B, "two", keep=HOUR)
    assert about(await combiner.redis.pttl(combiner.items), KEEP + HOUR)
    assert about(await combiner.redis.pttl(combiner.key("puts")), MINUTE)
    run, piece = await combiner.begin(ME)
    await combiner.redis.pexpire(combiner.key("fence"), 500)
    await combiner.ack(ME, run, int(piece[2]))
    assert about(await combiner.redis.pttl(combiner.key("fence")), HOUR)
    assert about(await combiner.redis.pttl(combiner.value), KEEP + HOUR)


async def test_old_puts_are_forgotten(combiner) -> None:
    await combiner.left(A, "one")
    puts = combiner.key("puts")
    assert await combiner.redis.zcard(puts) == 2
    for member, score in await combiner.redis.zrange(puts, 0, -1, withscores=True):
        await combiner.redis.zadd(puts, {member: score - 1000 * MINUTE})
    await combiner.left(B, "two")
    assert await combiner.redis.zcard(puts) == 2
    assert about(await combiner.redis.pttl(puts), MINUTE)


async def test_a_put_is_known_for_the_longest_time_that_anybody_asks_for(combiner) -> None:
    first = await combiner.left(A, "one", known=HOUR)
    puts = combiner.key("puts")
    for member, score in await combiner.redis.zrange(puts, 0, -1, withscores=True):
        await combiner.redis.zadd(puts, {member: score - 2000 * MINUTE})
    await combiner.left(B, "two")
    assert about(await combiner.redis.pttl(puts), HOUR)
    assert (await combiner.put(A, "one"))[0] == str(first - 2000 * MINUTE).encode()


async def test_no_put_is_forgotten_for_another_which_is_refused(combiner) -> None:
    first = await combiner.left(A, "one", most=2)
    await combiner.left(B, "two", most=2)
    state = await combiner.state()
    with pytest.raises(ResponseError, match="CROWDED 2"):
        await combiner.put(C, "three", most=2)
    assert await combiner.state() == state
    assert (await combiner.put(A, "one", most=2))[0] == str(first).encode()
    puts = combiner.key("puts")
    for member in (A, f"{A}."):
        await combiner.redis.zadd(puts, {member: first - 1000 * MINUTE})
    await combiner.left(C, "three", most=2)


# -- an asker that brings items ------------------------------------------------------------------------------


async def place(combiner: CombinerScripts, who: str) -> int:
    found = await combiner.redis.zscore(combiner.queue, combiner.bell(who))
    return int(found)


async def test_what_an_asker_brings_is_left_once_and_is_in_its_batch(combiner) -> None:
    for _ in range(2):
        first, taken, waiting, answer = await combiner.acquire(ME, who="m", brings=(A, "one", "two"))
        assert (taken, int(waiting)) in ((2, 2), (b"2", 2))
        assert payloads(answer[4]) == [b"one", b"two"]
    run, upto = answer[1], int(first) + 1
    for flags in ({}, {"queued": True}):
        number, taken, waiting, answer = await combiner.acquire(
            OTHER, who="o", brings=(B, "three"), room=3, **flags
        )
        assert (int(taken), int(waiting)) == (1, 3)
        assert answer[0] == 0
        assert await place(combiner, "o") == int(number) > upto
    # It waits for the answer also if it was never told that its items were left.
    assert await combiner.ack(ME, run, upto) == [1, combiner.bell("o")]
    run, piece = await combiner.begin(ME)
    assert payloads(piece) == [b"three"]
    await combiner.ack(ME, run, int(number), (int(number), int(number), "done"))
    *_, told = await combiner.acquire(OTHER, who="o", queued=True, brings=(B, "three"))
    assert told == [2, number, [number, number, b"v", b"done"], []]
    assert not await combiner.stands("o")


async def test_an_asker_whose_items_are_not_taken_is_told_nothing_and_waits_no_more(combiner) -> None:
    await combiner.left(A, "one")
    await combiner.begin(ME)
    await combiner.acquire(OTHER, who="o")
    answer = await combiner.acquire(OTHER, who="o", queued=True, brings=(B, "two"), room=1)
    assert answer == [b"0", 0, 1, [2, b"0", [], []]]
    assert not await combiner.stands("o")
    _, taken, waiting, _ = await combiner.acquire(OTHER, who="o", brings=(B, "two", "three"), room=2)
    assert (taken, waiting) == (1, 2)
    with pytest.raises(ResponseError, match="CROWDED 2"):
        await combiner.acquire(OTHER, who="o", brings=(C, "four"), most_known=2)


async def test_an_asker_that_brings_items_runs_them_though_a_worker_waits(combiner) -> None:
    await combiner.acquire(THIRD, who="t")
    *_, granted = await combiner.acquire(OTHER, who="o", brings=(A, "one"))
    assert granted[0] == 1
    assert await combiner.states("t") == [b""]


async def test_the_end_of_a_batch_wakes_its_waiters_and_one_of_the_next(combiner) -> None:
    number = await combiner.left(A, "one")
    run, _ = await combiner.begin(ME)
    for who, token, items in (("o", B, "two"), ("t", C, "three")):
        await combiner.acquire(OTHER, who=who, brings=(token, items))
    await combiner.acquire(OTHER, (number, number), who="a")
    assert await combiner.ack(ME, run, number) == [1, combiner.bell("a"), combiner.bell("o")]
    assert await combiner.states("a", "o", "t") == [None, None, b""]


async def test_many_are_woken_a_few_at_a_time_and_only_for_what_has_ended(combiner) -> None:
    number = await combiner.left(A, "one")
    run, _ = await combiner.begin(ME)
    for n in range(40):
        await combiner.acquire(OTHER, (number, number), who=f"w{n:02}")
    rung = (await combiner.ack(ME, run, number))[1:]
    assert rung == [combiner.bell(f"w{n:02}") for n in range(16)]
    await combiner.die("w16")
    await combiner.sit("late", seat="")  # for the next batch: it has nothing to hear of this one
    rung = (await combiner.acquire(OTHER, (number, number), who="w00", queued=True))[4:]
    assert rung == [combiner.bell(f"w{n:02}") for n in range(17, 32)]
    assert (await combiner.fields())["woken"] != "0"
    rung = (await combiner.acquire(OTHER, (number, number), who="w01", queued=True))[4:]
    assert rung == [combiner.bell(f"w{n:02}") for n in range(32, 40)]
    assert await combiner.states("late") == [b""]
    # All were. If the clock was set back, who comes now has a place before theirs: nobody wakes it for that.
    assert (await combiner.fields())["woken"] == "0"
    await combiner.redis.zadd(combiner.queue, {combiner.bell("late"): 1})
    assert (await combiner.acquire(OTHER, who="w02", queued=True))[2:] == [combiner.bell("w02")]
    assert await combiner.states("late") == [b""]


async def test_many_are_woken_also_if_the_clock_was_set_back(combiner) -> None:
    number = await combiner.left(A, "one")
    run, _ = await combiner.begin(ME)
    later = [number + 10**12]  # a number is no time: the clock was ahead when this item was left
    await combiner.redis.hset(combiner.value, "last", later[0] - 1)
    assert await combiner.left(B, "two") == later[0]
    await combiner.acquire(THIRD, (later[0], later[0]), who="t")
    for n in range(18):
        await combiner.acquire(OTHER, (number, number), who=f"w{n:02}")
    assert len((await combiner.ack(ME, run, number))[1:]) == 17
    assert await combiner.states("t") == [b""]
    assert len((await combiner.acquire(OTHER, (number, number), who="w00", queued=True))[4:]) == 1
    # A batch that has ended with few waiters leaves none to be woken.
    run, _ = await combiner.begin(ME)
    await combiner.redis.hset(combiner.value, "woken", 8_000_000_000_000_000)
    assert await combiner.ack(ME, run, later[0]) == [1, combiner.bell("t")]
    assert (await combiner.fields())["woken"] == "0"


async def ended_before_many(combiner: CombinerScripts) -> None:
    """A batch has ended, and of 18 that wait for the next one w00 to w15 were woken."""
    number = await combiner.left(A, "one")
    run, _ = await combiner.begin(ME)
    for n in range(18):
        await combiner.acquire(OTHER, (number, number), who=f"w{n:02}")
    assert len(await combiner.ack(ME, run, number)) == 17


async def test_who_was_woken_wakes_the_others_whatever_it_is_told(combiner) -> None:
    rest = [combiner.bell("w16"), combiner.bell("w17")]
    # There is nothing to run.
    await ended_before_many(combiner)
    assert await combiner.acquire(OTHER, who="w00", queued=True) == [0, IDLE, *rest, combiner.bell("w00")]
    assert await combiner.acquire(OTHER, who="w01", queued=True) == [0, IDLE, combiner.bell("w01")]
    await combiner.clear()
    # It gets the run.
    await ended_before_many(combiner)
    assert (await combiner.put(B, "two"))[3:] == rest[:1]
    assert (await combiner.acquire(OTHER, who="w00", queued=True))[5:] == rest[1:]
    await combiner.clear()
    # It is refused, and keeps its own bell, although it has waited since before.
    await ended_before_many(combiner)
    await combiner.redis.set(combiner.run_key, f"{THIRD}:1:", px=MINUTE)
    later = await combiner.left(B, "two")
    refused = await combiner.acquire(OTHER, (later, later), who="w16", queued=True)
    assert refused[:1] + refused[2:] == [0, combiner.bell("w17")]
    assert await combiner.states("w16", "w17") == [b"", None]
    assert await combiner.waiting() == [combiner.bell("w16")]


async def test_who_is_told_its_answer_leaves_the_run_to_the_next(combiner) -> None:
    first = await combiner.left(A, "one")
    run, _ = await combiner.begin(ME)
    later = await combiner.left(B, "two")
    await combiner.ack(ME, run, first)
    for who in ("next", "after"):
        await combiner.sit(who, seat="")
    told = await combiner.acquire(OTHER, (first, first))
    assert told[0] == 2
    assert told[4:] == [combiner.bell("next")]
    # While there is a run, or nothing to run, nobody is woken.
    run, _ = await combiner.begin(ME)
    assert (await combiner.acquire(OTHER, (first, first)))[4:] == []
    await combiner.ack(ME, run, later)
    await combiner.sit("after", seat="")
    assert (await combiner.acquire(OTHER, (first, first)))[4:] == []


async def test_what_is_no_combiner_is_refused_and_stays(combiner) -> None:
    ways = [
        lambda: combiner.put(A, "one"),
        lambda: combiner.acquire(ME),
        lambda: combiner.take(ME),
        lambda: combiner.answer(ME, (1, 1, "x")),
        lambda: combiner.ack(ME, b"1", 1),
    ]
    for way in ways:
        await combiner.redis.hset(combiner.value, "mine", 1)
        with pytest.raises(ResponseError, match="FOREIGN 2"):
            await way()
        await combiner.clear()
    for key, number, steps in ((combiner.items, 3, ways[:2]), (combiner.run_key, 1, ways[1:2])):
        for way in steps:
            await combiner.redis.set(key, "mine")
            with pytest.raises(ResponseError, match=f"FOREIGN {number}"):
                await way()
            assert await combiner.redis.get(key) == b"mine"
            await combiner.clear()
    await combiner.redis.zadd(combiner.queue, {"mine": 1})
    with pytest.raises(ResponseError, match="FOREIGN 6"):
        await combiner.put(A, "one")
    assert not await combiner.redis.exists(combiner.items)
    await combiner.clear()
    number = await combiner.left(A, "one")
    await combiner.redis.zadd(combiner.items, {"mine": number + 1})
    with pytest.raises(ResponseError, match="FOREIGN 3"):
        await combiner.begin(ME)
    await combiner.clear()
    number = await combiner.left(A, "one")
    run, _ = await combiner.begin(ME)
    await combiner.redis.zadd(combiner.answers, {"mine": number})
    assert (await combiner.ack(ME, run, number))[0] == 1
    with pytest.raises(ResponseError, match="FOREIGN 4"):
        await combiner.acquire(OTHER, (number, number))
    await combiner.put(B, "two")
    assert await combiner.redis.zcard(combiner.answers) == 1


# -- a server that is out of memory --------------------------------------------------------------------------


@pytest.fixture
async def full(own_server, connect, prefix) -> CombinerScripts:
    """A run that goes on, on a server that has no memory for anything new and evicts nothing."""
    server = await own_server(arguments=("--maxmemory-policy", "noeviction"))
    combiner = CombinerScripts(connect(server), prefix)
    combiner.first = await combiner.left(A, "one", "two")
    combiner.begun, _ = await combiner.begin(ME)
    await combiner.redis.config_set("maxmemory", 1)
    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await combiner.redis.set("anything", "new")
    return combiner


ANSWERS_FIRST = "keep(answers, 2 * LINGER)  -- allowed out of memory; then so are later writes"


async def test_out_of_memory_a_run_can_still_end(full) -> None:
    first = full.first
    assert await full.answer(ME, (first, first, "1")) == 1
    assert await full.answer(ME, (first + 1, first + 1, "2")) == 1
    assert await full.ack(ME, full.begun, first + 1) == [1]
    _, settled, told, missing = await full.acquire(OTHER, (first, first + 1))
    assert (int(settled), told[3::4], missing) == (first + 1, [b"1", b"2"], [])
    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await full.left(B, "three")


async def test_out_of_memory_it_is_the_first_write_that_opens_the_door(full) -> None:
    text = shipped("combiner_answer")
    assert text.count(ANSWERS_FIRST.encode()) == 1
    full.mutant = {"combiner_answer": text.replace(ANSWERS_FIRST.encode(), b"")}
    with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
        await full.answer(ME, (full.first, full.first, "1"))


async def test_the_commands_say_what_the_tests_do(combiner) -> None:
    rows, waiting = [Row(5, 7), Row(9, 9)], dict.fromkeys((5, 6, 7, 9))
    commands = CombinerSteps(
        combiner.prefix,
        combiner.name,
        bounds=Bounds(most=1000, window_ms=0, within_ms=0, most_waiting=100, keep_ms=KEEP),
        waiting=waiting,
        retention_ms=HOUR,
        session="s",
    )
    items = ("w", b"one", "l", b"two")
    put = commands.put(A, items, known_ms=1)
    keys = [*combiner.base, combiner.key("puts"), combiner.queue, combiner.key("idle")]
    assert put.words(as_eval=True) == combiner.words(
        "combiner_put", keys, A, HOUR, 100, KEEP, 1, MOST_KNOWN, "w", b"one", "l", b"two"
    )
    acquire = commands.acquire(ME, MINUTE, "{}", WAITING)
    keys = [*combiner.base, combiner.key("fence"), combiner.queue, combiner.key("idle"), combiner.bell("s")]
    assert acquire.words(as_eval=True) == combiner.words(
        "combiner_acquire", keys, ME, MINUTE, HOUR, "{}", "w", 1000, 0, 0, "5-7 9-9", IDLE
    )
    # A run is for all sessions: none goes behind another one.
    assert commands.acquire(ME, MINUTE, "{}", WAITING | IN_TURN).words(as_eval=True) == acquire.words(
        as_eval=True
    )
    puts: list[Put] = []
    commands.bring(A, items, known_ms=1, told=puts.append)
    bringing = commands.acquire(ME, MINUTE, "{}", WAITING)
    assert bringing.words(as_eval=True) == combiner.words(
        "combiner_acquire",
        [*keys, combiner.key("puts")],
        *(ME, MINUTE, HOUR, "{}", "w", 1000, 0, 0, "5-7 9-9", IDLE),
        *(A, 100, KEEP, 1, MOST_KNOWN, "w", b"one", "l", b"two"),
    )
    assert put.parse(await combiner.put(A, "one", "two")).taken == 2
    await combiner.redis.set(combiner.run_key, f"{THIRD}:1:", px=MINUTE)
    refused = bringing.parse(await combiner.acquire(ME, who="s", brings=(A, "one", "two")))
    assert isinstance(refused, Refused)
    assert [put.taken for put in puts] == [2]
    assert commands.brought is None
    await combiner.redis.delete(combiner.run_key)
    gone = acquire.parse(await combiner.acquire(ME, (5, 7), (9, 9), who="s"))
    assert isinstance(gone, Refused)
    assert isinstance(gone.error, AnswersKnown)
    assert gone.error.missing == rows
    waiting.clear()
    granted = acquire.parse(await combiner.acquire(ME, who="s"))
    run, piece = granted.fencing_token, commands.handed_out.piece
    assert [payload for _, _, payload in piece.items] == [b"one", b"two"]
    assert commands.take(ME, 5).words(as_eval=True) == combiner.words(
        "combiner_take", combiner.base, ME, HOUR, 1000, 0, 0, "5"
    )
    assert commands.take(ME, 0).parse(await combiner.take(OTHER)) is None
    assert commands.take(ME, 0).parse(await combiner.take(ME)).piece == piece
    entry = Entry(5, 7, "v", b"r")
    assert commands.answer(ME, run, [entry]).words(as_eval=True) == combiner.words(
        "combiner_answer", [*combiner.base, combiner.key("fence")], ME, str(run), "5", "7", "v", b"r"
    )
    commands.leave(Ack(ME, run, piece.upto, failed=False, late=True, answers=[entry]))
    ack = commands.release(ME, MINUTE)
    keys = [*combiner.base, combiner.key("fence"), combiner.queue]
    assert ack.words(as_eval=True) == combiner.words(
        "combiner_ack", keys, ME, str(run), HOUR, str(piece.upto), "d", 1, "5", "7", "v", b"r"
    )
    assert commands.release(OTHER, MINUTE).script.name == "lock_release"


# -- mutants -------------------------------------------------------------------------------------------------

CHECKS = checks(globals(), "combiner")
STEPS = {
    "combiner_put": "combiner_put",
    "combiner_acquire": "combiner_acquire",
    "combiner_take": "combiner_take",
    "combiner_answer": "combiner_answer",
    "combiner_ack": "combiner_ack",
    "shared/combiners": "combiner_acquire",
    "shared/combiner_puts": "combiner_acquire",
    "shared/combiner_hand_out": "combiner_acquire",
}
UNLESS = (
    # An asker that is told nothing of these rows asks again, and is told then.
    "if settled < done then break end",
    # For a server that is out of memory: see test_out_of_memory_it_is_the_first_write_that_opens_the_door.
    ANSWERS_FIRST,
)


@pytest.mark.parametrize("file", STEPS)
async def test_each_line_is_needed(redis, prefix, file: str) -> None:
    mutants = [(name, file, text) for name, text in lines_left_out(file, UNLESS)]
    living = await compiled(CombinerScripts, redis, prefix, STEPS[file], mutants)
    assert living
    assert await unnoticed(CombinerScripts, redis, prefix, living, among=CHECKS) == []
