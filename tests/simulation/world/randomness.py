"""The replacements: where randomness comes from, and the clock of which a world knows nothing."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

from aiolocks.lock import guard
from aiolocks.transport import clocks

_FUNCTIONS = ("random", "uniform", "randint", "randrange", "choice", "shuffle", "sample", "getrandbits")


class Source:
    """Where the process that runs now has its randomness from."""

    def __init__(self) -> None:
        self.now = random.Random(0)


@contextmanager
def seeded() -> Iterator[Source]:
    """`os.urandom`, `secrets` and `random` draw from the source's generator of the moment.

    No machine is suspended: only the clocks of the loops go on.
    """
    source = Source()

    def urandom(size: int) -> bytes:
        return source.now.randbytes(size)

    def drawing(name: str) -> object:
        return lambda *arguments, **named: getattr(source.now, name)(*arguments, **named)  # noqa: PLW0108 - of the moment

    places = [(os, "urandom", urandom), (random, "_urandom", urandom)]
    places += [(random, name, drawing(name)) for name in _FUNCTIONS]
    places += [(clocks, "steady", lambda: 0.0)]
    places += [(guard, "_FOREIGN_CLOCK", -1.0)]  # no thread can follow the clocks of the world
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    for module, name, function in places:
        setattr(module, name, function)
    try:
        yield source
    finally:
        for module, name, function in before:
            setattr(module, name, function)
