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
class Model:
    """What there should be; `now` in microseconds."""

    now: int = 1_700_000_000_000_000
    items: list[Item] = field(default_factory=list)
    last: int = 0
    done: int = 0
    batches: int = 0
    batch: Batch | None = None
    runner: str = ""
    answers: dict[int, tuple[bytes, int]] = field(default_factory=dict)  # with when it came

    def put(self, session: str, texts: list[bytes]) -> tuple[int, int, int]:
        taken = texts[: max(0, ROOM - len(self.items))]
        if not taken:
            return 0, 0, len(self.items)
        first = max(self.now, self.last + 1, self.done + 1)
        self.last = first + len(taken) - 1
        until = self.now // 1000 + KEEP
        self.items += [Item(first + n, text, until, session) for n, text in enumerate(taken)]
        return first, len(taken), len(self.items)

    def begin(self, token: str, most: int) -> Batch | None:
        """What the run with that token is for."""
        if self.batch is None and self.items:
            self.batches += 1
            self.batch = Batch(self.batches, self.items[:most], self.now // 1000)
        self.runner = token if self.batch is not None else ""
        return self.batch

    def end(self, answers: dict[int, bytes]) -> None:
        assert self.batch is not None
        self.done = self.batch.items[-1].number
        self.items = [item for item in self.items if item.number > self.done]
        self.answers |= {number: (answer, self.now) for number, answer in answers.items()}
        self.batch, self.runner = None, ""


class Walk:
    """Random steps of both."""

    def __init__(self, scripts: Clocked, seed: object) -> None:
        self._scripts = scripts
        self._random = random.Random(f"combiner {seed}")
        self._model = Model()
        self._puts: list[tuple[str, list[str], tuple[int, int]]] = []
        self._mine: dict[str, list[int]] = {session: [] for session in SESSIONS}
        self._tokens = iter(range(1, 10_000))
        self._late: list[tuple[str, bytes, int]] = []  # runs that are over, and may not know
        self._run = b""

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
        first, taken, waiting = self._model.put(session, [text.encode() for text in texts])
        got = await self._scripts.put(token, *texts, room=ROOM, keep=KEEP)
        assert [int(got[0]), *got[1:3]] == [first, taken, waiting]
        self._mine[session] += range(first, first + taken)
        if taken:
            self._puts.append((token, texts, (first, taken)))

    async def _put_again(self) -> None:
        if self._puts:
            token, texts, (first, taken) = self._random.choice(self._puts[-3:])
            got = await self._scripts.put(token, *texts, room=ROOM, keep=KEEP)
            assert (int(got[0]), got[1]) == (first, taken)

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
        elif model.runner or not model.items:
            assert got[0] == 0
        else:
            batch = model.begin(token, most)
            assert batch is not None
            fresh = [item for item in batch.items if item.until >= batch.started]
            assert got[0] == 1
            assert got[4][:3] == [batch.number, batch.attempt, str(batch.items[-1].number).encode()]
            assert got[4][4] == len(batch.items) - len(fresh)
            assert got[4][5::3] == [str(item.number).encode() for item in batch.items]
            assert got[4][6::3] == [b"w" if item in fresh else b"d" for item in batch.items]
            assert got[4][7::3] == [item.text if item in fresh else b"" for item in batch.items]
            assert int(got[1]) > int(self._run or 0)
            self._run = got[1]

    async def _end(self) -> None:
        model, scripts, run = self._model, self._scripts, self._run
        if not model.runner:
            return
        assert model.batch is not None
        token, upto = model.runner, model.batch.items[-1].number
        self._late.append((token, run, upto))
        if self._random.random() < 0.3:
            assert (await scripts.ack(token, run, upto, failed=True))[0] == 1
            model.batch.attempt += 1
            model.runner = ""
            return
        answers = {item.number: b"%s!%s" % (item.text, run) for item in model.batch.items}
        entries = [(number, number, answer.decode()) for number, answer in answers.items()]
        assert await scripts.answer(token, *entries) == 1
        if self._random.random() < 0.3:
            await self._die()
            return
        assert (await scripts.ack(token, run, upto))[0] == 1
        model.end(answers)
        if self._random.random() < 0.3:
            assert (await scripts.ack(token, run, upto))[0] == 1

    async def _die(self) -> None:
        if self._model.runner:
            await self._scripts.redis.delete(self._scripts.run_key)
            assert self._model.batch is not None
            self._late.append((self._model.runner, self._run, self._model.batch.items[-1].number))
            self._model.runner = ""

    async def _come_late(self) -> None:
        """One whose run is over: it changes nothing."""
        if self._late:
            token, run, upto = self._random.choice(self._late[-3:])
            if token != self._model.runner:
                assert await self._scripts.take(token) == [-1]
                assert await self._scripts.answer(token, (upto, upto, "late")) == 0
                await self._scripts.ack(token, run, upto, failed=self._random.random() < 0.5)

    async def _move_clock(self) -> None:
        self._model.now += self._random.choice((1000, 1_000_000, 10_000_000))


@pytest.mark.parametrize("seed", range(4))
async def test_the_scripts_do_what_the_model_does(redis: Any, prefix: str, seed: int) -> None:
    scripts = Clocked(redis, prefix)
    await Walk(scripts, seed).go()
    await scripts.clear()


BROKEN = {
    "combiner_put": ("if known_first then", "if false then"),
    "combiner_ack": ("if found[7] == ARGV[2] then return {1} end", ""),
    "combiner_acquire": ("redis.call('ZREMRANGEBYSCORE', answers, above(done), '+inf')", ""),
    "combiner_take": ("if not held_by(ARGV[1], redis.call('GET', run)) then return {-1} end", ""),
    "shared/combiner_hand_out": ("if tonumber(ends) < started then", "if false then"),
    "shared/combiners": ("return '(' .. whole(number)", "return whole(number)"),
}


@pytest.mark.parametrize("file", BROKEN)
async def test_the_walk_notices_what_is_missing(redis: Any, prefix: str, file: str) -> None:
    line, instead = BROKEN[file]
    text = shipped(file)
    assert text.count(line.encode()) == 1
    scripts = Clocked(redis, prefix, {file: text.replace(line.encode(), instead.encode())})
    noticed = False
    for seed in range(12):
        await scripts.clear()
        try:
            await Walk(scripts, seed).go()
        except (AssertionError, ValueError, ResponseError):
            noticed = True
            break
    await scripts.clear()
    assert noticed
