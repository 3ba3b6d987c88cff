"""The scripts of a combiner against a model in plain Python, by a clock that the test moves.

The model has lists: of items, of batches, of answers. Three sessions leave items, run batches, die, come late
and say things twice, at random.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis.exceptions import ResponseError

from tests.lua.scripts import shipped
from tests.lua.test_combiner_scripts import CombinerScripts

pytestmark = pytest.mark.leaves_keys("aiolocks*:combiner*")

CLOCK = b"local TIME = redis.call('TIME')\nlocal MICROSECONDS = TIME[1] * 1000000 + TIME[2]"
STEPS = 200
KEEP = 60_000
ROOM = 9
SESSIONS = "abc"
LINGER = 29_900_000
"""Microseconds for which an answer is there, at least."""
KNOWN = 20_000
"""Milliseconds for which a put is known."""
MOST_PUTS = 4
"""How many are known at most."""


class Clocked(CombinerScripts):
    """The same steps by a clock that stands in a key."""

    def __init__(self, redis: Any, prefix: str, mutant: dict[str, bytes] | None = None) -> None:
        super().__init__(redis, prefix, mutant)
        text = shipped("shared/fence")
        assert text.count(CLOCK) == 1
        moved = b"local MICROSECONDS = tonumber(redis.call('GET', '%s'))" % self.key("clock")
        self.mutant = {"shared/fence": text.replace(CLOCK, moved), **self.mutant}

    async def set_clock(self, now: int) -> None:
        await self.redis.set(self.key("clock"), now)


@dataclass
class Item:
    """One item, and who left it."""

    number: int
    text: bytes
    until: int
    session: str


@dataclass
class Batch:
    """A batch that is not acknowledged."""

    number: int
    items: list[Item]
    started: int
    attempt: int = 1


@dataclass
class Run:
    """A run of the open batch."""

    token: str
    fence: bytes
    upto: int
    answers: dict[int, bytes]


@dataclass
class Model:
    """What there should be; `now` in microseconds."""

    now: int = 1_700_000_000_000_000
    items: list[Item] = field(default_factory=list)
    last: int = 0
    done: int = 0
    batches: int = 0
    batch: Batch | None = None
    run: Run | None = None  # who has the key
    newest: bytes = b""  # the fencing token of the run that has begun last
    acked: bytes = b""  # that of the last one that has ended a batch, or failed
    late: bytes = b""  # that of the last one that has failed by being late
    puts: list[tuple[int, int]] = field(default_factory=list)
    answers: dict[int, tuple[bytes, int]] = field(default_factory=dict)  # with when it came

    def put(self, session: str, texts: list[bytes]) -> tuple[int, int, int] | None:
        """The first number, how many were taken, and how many wait; None: too many puts are known."""
        taken = texts[: max(0, ROOM - len(self.items))]
        if not taken:
            return 0, 0, len(self.items)
        entries = [number for first, count in self.puts for number in (first, first + count)]
        if sum(map(self.knows, entries)) >= 2 * MOST_PUTS:
            return None
        first = max(self.now, self.last + 1, self.done + 1)
        self.last = first + len(taken) - 1
        until = self.now // 1000 + KEEP
        self.items += [Item(first + n, text, until, session) for n, text in enumerate(taken)]
        self.puts.append((first, len(taken)))
        return first, len(taken), len(self.items)

    def knows(self, number: int) -> bool:
        return number > self.now - KNOWN * 1000

    def begin(self, token: str, fence: bytes, most: int) -> Batch:
        """What the run with that token is for."""
        if self.batch is None:
            self.batches += 1
            self.batch = Batch(self.batches, self.items[:most], self.now // 1000)
        items = self.batch.items
        answers = {item.number: b"%s!%s" % (item.text, fence) for item in items}
        self.run, self.newest = Run(token, fence, items[-1].number, answers), fence
        return self.batch

    def ran_last(self, run: Run) -> bool:
        """Whether it is under way, or no other one has begun since."""
        return run is self.run or (self.run is None and run.fence == self.newest)

    def end(self, run: Run, *, failed: bool = False, late: bool = False) -> bool:
        """Whether it counts that this run has ended."""
        if run.fence == self.acked:
            return True
        if not self.ran_last(run):
            of_this = self.batch is not None and run.upto == self.batch.items[-1].number
            if late and of_this and run.fence != self.late:
                self._attempted()
                self.late = run.fence
            return False
        self.run, self.acked = None, run.fence
        if failed:
            self._attempted()
            return True
        self.batch, self.done = None, run.upto
        self.items = [item for item in self.items if item.number > self.done]
        self.answers |= {number: (answer, self.now) for number, answer in run.answers.items()}
        return True

    def _attempted(self) -> None:
        assert self.batch is not None
        self.batch.attempt += 1


class Walk:
    """Random steps of both."""

    def __init__(self, scripts: Clocked, seed: object) -> None:
        self._scripts = scripts
        self._random = random.Random(f"combiner {seed}")
        self._model = Model()
        self._puts: list[tuple[str, list[str], tuple[int, int]]] = []
        self._mine: dict[str, list[int]] = {session: [] for session in SESSIONS}
        self._tokens = iter(range(1, 10_000))
        self._late: list[Run] = []  # runs that are over, and may not know

    def _token(self) -> str:
        return f"{next(self._tokens):032x}"

    async def go(self) -> None:
        steps = [self._put, self._put, self._put_again, self._ask, self._ask, self._end, self._end]
        steps += [self._die, self._come_late, self._move_clock]
        for _ in range(STEPS):
            await self._scripts.set_clock(self._model.now)
            await self._random.choice(steps)()
            self._model.now += self._random.randrange(1, 2000)

    async def _put(self) -> None:
        session = self._random.choice(SESSIONS)
        token = self._token()
        texts = [f"{session}{token[-4:]}{n}" for n in range(self._random.randrange(1, 4))]
        expected = self._model.put(session, [text.encode() for text in texts])
        if expected is None:
            with pytest.raises(ResponseError, match=f"CROWDED {MOST_PUTS}"):
                await self._said(token, texts)
            return
        first, taken, waiting = expected
        got = await self._said(token, texts)
        assert [int(got[0]), *got[1:3]] == [first, taken, waiting]
        self._mine[session] += range(first, first + taken)
        if taken:
            self._puts.append((token, texts, (first, taken)))

    async def _put_again(self) -> None:
        """Each put that is known leaves nothing more, however many have followed."""
        known = [put for put in self._puts if self._model.knows(put[2][0])]
        if known:
            token, texts, (first, taken) = self._random.choice(known)
            got = await self._said(token, texts)
            assert (int(got[0]), got[1]) == (first, taken)

    async def _said(self, token: str, texts: list[str]) -> Any:
        return await self._scripts.put(token, *texts, room=ROOM, keep=KEEP, known=KNOWN, most=MOST_PUTS)

    async def _ask(self) -> None:
        session, model, most = self._random.choice(SESSIONS), self._model, self._random.choice((1, 2, 50))
        rows = [(number, number) for number in self._mine[session]]
        token = self._token()
        got = await self._scripts.acquire(token, *rows, most=most)
        if any(first <= model.done for first, _ in rows):
            assert got[0] == 2
            assert got[3] == []
            told = dict(zip(map(int, got[2][::4]), got[2][3::4], strict=True))
            settled = [number for number in self._mine[session] if number <= model.done]
            assert int(got[1]) >= settled[-1]
            known = {number: model.answers[number] for number in settled if number in model.answers}
            assert told.items() <= {number: answer for number, (answer, _) in known.items()}.items()
            assert {number for number, (_, came) in known.items() if came > model.now - LINGER} <= told.keys()
            self._mine[session] = [number for number in self._mine[session] if number > model.done]
        elif model.run is not None or not model.items:
            assert got[0] == 0
        else:
            assert int(got[1]) > int(model.newest or 0)
            batch = model.begin(token, got[1], most)
            fresh = [item for item in batch.items if item.until >= batch.started]
            assert got[0] == 1
            assert got[4][:3] == [batch.number, batch.attempt, str(batch.items[-1].number).encode()]
            assert got[4][4] == len(batch.items) - len(fresh)
            assert got[4][5::3] == [str(item.number).encode() for item in batch.items]
            assert got[4][6::3] == [b"w" if item in fresh else b"d" for item in batch.items]
            assert got[4][7::3] == [item.text if item in fresh else b"" for item in batch.items]

    async def _end(self) -> None:
        run = self._model.run
        if run is None:
            return
        self._late.append(run)
        if self._random.random() < 0.3:
            await self._ends(run, failed=True)
            return
        await self._answers(run)
        if self._random.random() < 0.3:
            await self._die()
            return
        await self._ends(run)
        if self._random.random() < 0.3:
            await self._ends(run)

    async def _answers(self, run: Run) -> None:
        entries = [(number, number, answer.decode()) for number, answer in run.answers.items()]
        counts = await self._scripts.answer(run.token, *entries, run=run.fence)
        assert counts == self._model.ran_last(run)

    async def _ends(self, run: Run, *, failed: bool = False, late: bool = False) -> None:
        ended = await self._scripts.ack(run.token, run.fence, run.upto, failed=failed, late=late)
        assert ended[0] == self._model.end(run, failed=failed, late=late)

    async def _die(self) -> None:
        if self._model.run is not None:
            await self._scripts.redis.delete(self._scripts.run_key)
            self._late.append(self._model.run)
            self._model.run = None

    async def _come_late(self) -> None:
        """One whose run is over: it counts if no other one has begun; else it is an attempt at most."""
        run = self._random.choice(self._late[-3:]) if self._late else None
        if run is None or run is self._model.run:
            return
        assert await self._scripts.take(run.token) == [-1]
        failed, late = self._random.random() < 0.5, self._random.random() < 0.5
        if not failed:
            await self._answers(run)
        await self._ends(run, failed=failed, late=late)

    async def _move_clock(self) -> None:
        self._model.now += self._random.choice((1000, 1_000_000, 10_000_000))


@pytest.mark.parametrize("seed", range(4))
async def test_the_scripts_do_what_the_model_does(redis: Any, prefix: str, seed: int) -> None:
    scripts = Clocked(redis, prefix)
    await Walk(scripts, seed).go()
    await scripts.clear()


BROKEN = [
    ("shared/combiner_puts", "if known_first then", "if false then"),
    ("shared/combiner_puts", ">= 2 * ARGV[at + 3] then", ">= math.huge then"),
    (
        "shared/combiner_puts",
        "redis.call('ZREMRANGEBYSCORE', puts, '-inf', whole(over))",
        "redis.call('DEL', puts)",
    ),
    ("combiner_ack", "if found[7] == ARGV[2] then return {1} end", ""),
    ("combiner_ack", "if ARGV[6] == '1' and", "if false and"),
    ("combiner_ack", "and found[10] ~= ARGV[2]", ""),
    ("combiner_acquire", "redis.call('ZREMRANGEBYSCORE', answers, above(done), '+inf')", ""),
    ("combiner_take", "if not held_by(ARGV[1], redis.call('GET', run)) then return {-1} end", ""),
    ("shared/combiner_hand_out", "if tonumber(ends) < started then", "if false then"),
    ("shared/combiners", "return '(' .. whole(number)", "return whole(number)"),
    ("shared/combiners", "or not held and redis.call('GET', fence) == minted", ""),
    ("shared/combiners", "and redis.call('GET', fence) == minted", ""),
]


@pytest.mark.parametrize(("file", "line", "instead"), BROKEN)
async def test_the_walk_notices_what_is_missing(
    redis: Any, prefix: str, file: str, line: str, instead: str
) -> None:
    text = shipped(file)
    assert text.count(line.encode()) == 1
    scripts = Clocked(redis, prefix, {file: text.replace(line.encode(), instead.encode())})
    noticed = False
    for seed in range(12):
        await scripts.clear()
        try:
            await Walk(scripts, seed).go()
        except (AssertionError, ValueError, ResponseError, pytest.fail.Exception):
            noticed = True
            break
    await scripts.clear()
    assert noticed
