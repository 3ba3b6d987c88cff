"""Random walks through what can be done with a lock, reproducible, and shortened when they find something.

A walk is a list of steps; a step is the name of a method and a number, from which the method makes all its
choices, relative to what there is. So any part of a walk is a walk again, and one that fails can be cut down
to the few steps that matter.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Protocol

import pytest

Walk = Sequence[tuple[str, int]]

LENGTH = 100
"""Steps of one walk: a lock is made, used and left alone again."""
PATIENCE = 10.0
"""Seconds for making a walk shorter."""


class World(Protocol):
    """The world that is walked through."""

    log: list[str]

    async def step(self, verb: str, chance: random.Random) -> None:
        """Do something, and compare. Raises when something is not as it should be."""

    async def close(self) -> None:
        """Leave nothing behind, and compare once more."""


class DisagreementError(AssertionError):
    """Raised when the lock and its model disagree; with the steps that lead there."""

    def __init__(self, log: Sequence[str], found: BaseException, origin: str) -> None:
        self.log = list(log)
        steps = "\n".join(f"  {number}. {line}" for number, line in enumerate(log, start=1))
        super().__init__(f"{type(found).__name__}: {found}\nby these steps ({origin}):\n{steps}")


async def explore(
    make: Callable[[], World],
    verbs: Mapping[str, int],
    *,
    seed: str,
    steps: int,
    seconds: float = float("inf"),
    shorten: bool = True,
) -> Counter[str]:
    """Walk at random until `steps` or `seconds` are done.

    Args:
        make: Makes a new world for each walk.
        verbs: Names of the steps, and how often each must be taken.
        seed: The same seed leads to the same walks.
        shorten: Whether a walk that fails is made shorter before it is reported.

    Returns:
        How often each verb was used.

    Raises:
        DisagreementError: With the shortest walk found that fails.
    """
    end = time.monotonic() + seconds
    done: Counter[str] = Counter()
    for number in count():
        chance = random.Random(f"{seed} {number}")
        chosen = chance.choices(list(verbs), list(verbs.values()), k=LENGTH)
        walk = [(verb, chance.getrandbits(32)) for verb in chosen]
        origin = f"seed {seed!r}, walk {number}"
        error = await _fails(make, walk, origin)
        if error is not None:
            raise (await _shortest(make, walk, error, origin)) if shorten else error
        done.update(chosen)
        if done.total() >= steps or time.monotonic() >= end:
            return done
    raise AssertionError("unreachable")


async def _fails(make: Callable[[], World], walk: Walk, origin: str) -> DisagreementError | None:
    world = make()
    try:
        try:
            for verb, number in walk:
                await world.step(verb, random.Random(number))
        finally:
            await world.close()
    except (Exception, pytest.fail.Exception) as found:
        error = DisagreementError(world.log, found.__context__ or found, origin)
        error.__cause__ = found
        return error
    return None


async def _shortest(
    make: Callable[[], World], walk: Walk, error: DisagreementError, origin: str
) -> DisagreementError:
    """Leave out ever smaller pieces, for as long as it fails without them."""
    end = time.monotonic() + PATIENCE
    piece = len(walk)
    while piece:
        position = 0
        while position < len(walk) and time.monotonic() < end:
            shorter = [*walk[:position], *walk[position + piece :]]
            failure = await _fails(make, shorter, origin)
            if failure is None:
                position += piece
            else:
                walk, error = shorter, failure
        piece //= 2
    return error
