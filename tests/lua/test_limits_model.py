"""Random steps of limits, against a model of a few lines: who holds, who is called, and whose turn it is."""

from __future__ import annotations

import random

import pytest

from tests.lua.limit_scripts import LimitScripts

pytestmark = pytest.mark.leaves_keys("aiolocks*:limits*")

CALLED = "0" * 48
LINES = ({"all": 3, "a": 5}, {"all": 3, "b": 1}, {"all": 3, "b": 2, "c": 1}, {"all": 3}, {"all": 2, "d": 1})
"""The first is of a noisy tenant; the last one has an older cap."""


class Model:
    """The behaviour that the scripts must have."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.called: dict[str, int] = {}
        self.waiting: dict[int, list[str]] = {}  # by line, in order of its turn
        self.passed: dict[
            str, dict[int, int]
        ] = {}  # how often each other line was called while it could enter

    def room(self, line: int) -> bool:
        lines = [LINES[one] for one in (*self.held.values(), *self.called.values())]
        return all(sum(key in line for line in lines) < cap for key, cap in LINES[line].items())

    def call(self) -> None:
        while (line := next(filter(self.room, self.waiting), None)) is not None:
            for other, waiters in self.waiting.items():
                if other != line and self.room(other):
                    passed = self.passed.setdefault(waiters[0], {})
                    passed[line] = passed.get(line, 0) + 1
                    assert passed[line] <= 1, "more than one turn"
            first, *others = self.waiting.pop(line)
            self.called[first] = line
            if others:
                self.waiting[line] = others

    def ask(self, token: str, line: int) -> bool:
        if self.called.pop(token, None) is None and (line in self.waiting or not self.room(line)):
            self.waiting.setdefault(line, []).append(token)
            return False
        self.held[token] = line
        return True

    def go(self, token: str) -> None:
        if self.held.pop(token, None) is None and self.called.pop(token, None) is None:
            line = next(one for one, waiters in self.waiting.items() if token in waiters)
            self.waiting[line].remove(token)
            if not self.waiting[line]:
                del self.waiting[line]
        self.call()


@pytest.mark.parametrize("seed", range(3))
async def test_it_does_as_the_model_does(redis, prefix, seed) -> None:
    rng, model, limits = random.Random(seed), Model(), LimitScripts(redis, prefix)
    lines = [limits.of(**caps) for caps in LINES]
    of: dict[str, int] = {}
    for step in range(250):
        going = [*model.held, *(one for waiters in model.waiting.values() for one in waiters)]
        if model.called and rng.random() < 0.5:
            token = rng.choice([*model.called])
            assert await lines[of[token]].takes(token, token, flags="w") is model.ask(token, of[token])
        elif going and rng.random() < 0.5:
            token = rng.choice([*model.held] if model.held and rng.random() < 0.8 else going)
            script = lines[of[token]].releasing(token, who=token, seat=token[:16], flags="rl")
            assert (await limits.run(script))[0] == (token in model.held)
            model.go(token)
        else:
            token, line = rng.randbytes(16).hex(), rng.choice((0, 0, 0, 1, 2, 3, 4))
            of[token] = line
            assert await lines[line].takes(token, token, flags="w") is model.ask(token, line)
        expected = {*model.held, *(CALLED + one[:16] for one in model.called)}
        assert await limits.holding() == expected, step
    await limits.clear()
