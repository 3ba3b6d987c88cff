"""Walks are reproducible, and what fails is shortened to what matters."""

from __future__ import annotations

import random

import pytest

from tests.models.exploring import LENGTH, DisagreementError, explore

VERBS = {"add": 3, "take": 1}


class Purse:
    """Breaks as soon as something is taken from three coins or more."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.coins = 0
        self.closed = False

    async def step(self, verb: str, chance: random.Random) -> None:
        self.log.append(f"{verb} {chance.randrange(100)}")
        if verb == "add":
            self.coins += 1
        elif self.coins >= 3:
            raise AssertionError("it tore")

    async def close(self) -> None:
        self.closed = True


async def test_a_walk_that_fails_is_cut_down_to_the_steps_that_matter() -> None:
    with pytest.raises(DisagreementError, match="it tore") as caught:
        await explore(Purse, VERBS, seed="a", steps=LENGTH)

    assert [line.split()[0] for line in caught.value.log] == ["add", "add", "add", "take"]
    assert "seed 'a', walk 0" in str(caught.value)


async def test_the_same_seed_leads_to_the_same_walk() -> None:
    logs = []
    for seed in ("a", "a", "b"):
        with pytest.raises(DisagreementError) as caught:
            await explore(Purse, VERBS, seed=seed, steps=LENGTH)
        logs.append(caught.value.log)

    assert logs[0] == logs[1] != logs[2]


async def test_every_world_is_closed() -> None:
    purses: list[Purse] = []

    def make() -> Purse:
        purses.append(Purse())
        return purses[-1]

    done = await explore(make, {"add": 1}, seed="a", steps=2 * LENGTH)
    with pytest.raises(DisagreementError):
        await explore(make, VERBS, seed="a", steps=LENGTH)

    assert done == {"add": 2 * LENGTH}
    assert all(purse.closed for purse in purses)
