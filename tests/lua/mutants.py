"""Mutants of the scripts: what shows that each line is needed, and that somebody would notice.

A check is a test that asks for nothing but the scripts of one kind. Run on scripts that have been altered,
one of them is to fail.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import pytest
from redis.exceptions import ResponseError

from tests.lua.scripts import Scripts, shipped

Check = Callable[[Any], Awaitable[None]]

_SLOW = 0.05
"""Seconds from which on a check is asked after the others."""


class Mutation(NamedTuple):
    """A way to break a script that one check is to notice.

    Attributes:
        file: Where: `permits_acquire`, `shared/fence`.
        guard: The text that stands there, once.
        instead: The text that takes its place.
        by: The test that fails.
    """

    file: str
    guard: str
    instead: str
    by: str

    def __str__(self) -> str:
        return f"{self.file}: {self.guard!r} -> {self.instead!r}, {self.by}"


def checks(found: Mapping[str, Any], fixture: str) -> dict[str, Check]:
    """The tests of a module that ask for that fixture alone."""
    return {
        name: value
        for name, value in sorted(found.items())
        if name.startswith("test_") and list(inspect.signature(value).parameters) == [fixture]
    }


def text_of(file: str) -> str:
    return shipped(file).decode()


def lines_left_out(file: str, unless: Collection[str] = ()) -> Iterable[tuple[str, bytes]]:
    """Each line that does not open or close a block, and the file without it."""
    lines = text_of(file).splitlines()
    for number, line in enumerate(map(str.strip, lines)):
        opens_or_closes = line in ("end", "else") or line.endswith((" then", " do", "{", "}"))
        function = line.startswith("local function") and not line.endswith(" end")
        if line and not line.startswith("--") and not opens_or_closes and not function and line not in unless:
            yield f"{file}:{number + 1}: {line}", "\n".join(lines[:number] + lines[number + 1 :]).encode()


SHARES = 3
A_SHARE = pytest.mark.parametrize(
    "share", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in range(1, SHARES))]
)
"""Each third mutant by default, where there are hundreds that each run dozens of checks."""


async def fails(check: Check, scripts: Scripts) -> bool:
    await scripts.clear()
    try:
        await check(scripts)
    except (Exception, pytest.fail.Exception):  # `pytest.raises` fails with no Exception
        return True
    return False


class Altered(dict[str, bytes]):
    """The text of one file, altered; it notes whether a step was made of it."""

    asked = False

    def get(self, file: str, default: Any = None) -> Any:
        self.asked |= file in self
        return super().get(file, default)


class Jury:
    """Checks that mutants are shown to: those first that noticed the last ones.

    A check that has passed without a step of a mutant's file says nothing of that file's other mutants: it is
    left out for them.
    """

    def __init__(self, among: Iterable[Check]) -> None:
        self._last_first = list(among)
        self._slow: set[Check] = set()  # these go last
        self._silent: dict[str, set[Check]] = {}  # by the file

    async def notices(self, scripts: type[Scripts], redis: Any, prefix: str, file: str, text: bytes) -> bool:
        """Whether a check complains of this text of the file."""
        altered = Altered({file: text})
        mutant = scripts(redis, prefix, altered)
        silent = self._silent.setdefault(file, set())
        try:
            asked = [one for one in self._last_first if one not in silent]
            for check in sorted(asked, key=self._slow.__contains__):
                altered.asked = False
                began = time.perf_counter()
                failed = await fails(check, mutant)
                if time.perf_counter() - began > _SLOW:
                    self._slow.add(check)
                if failed:
                    self._last_first.remove(check)
                    self._last_first.insert(0, check)
                    return True
                if not altered.asked:
                    silent.add(check)
        finally:
            await mutant.clear()
        return False


async def unnoticed(
    scripts: type[Scripts],
    redis: Any,
    prefix: str,
    mutants: Iterable[tuple[str, str, bytes]],
    among: Mapping[str, Check],
) -> list[str]:
    """Those mutants, each with its name and its file, that no check complains of."""
    jury = Jury(among.values())
    return [
        name for name, file, text in mutants if not await jury.notices(scripts, redis, prefix, file, text)
    ]


async def compiles(redis: Any, text: bytes) -> bool:
    try:
        await redis.script_load(text)
    except ResponseError:
        return False
    return True


async def compiled(
    scripts: type[Scripts], redis: Any, prefix: str, step: str, mutants: Iterable[tuple[str, str, bytes]]
) -> list[tuple[str, str, bytes]]:
    """Those mutants with which a step that is made of their file compiles: so it does something."""
    return [
        (name, file, text)
        for name, file, text in mutants
        if await compiles(redis, scripts(redis, prefix, {file: text}).text(step))
    ]


async def survives(
    scripts: type[Scripts], redis: Any, prefix: str, mutation: Mutation, among: Mapping[str, Check], step: str
) -> str | None:
    """The fault of that mutation: None if its test fails with it, and would not without."""
    text = text_of(mutation.file)
    if text.count(mutation.guard) != 1:
        return f"{mutation}: stands there {text.count(mutation.guard)} times"
    mutant = text.replace(mutation.guard, mutation.instead).encode()
    broken = scripts(redis, prefix, {mutation.file: mutant})
    if not await compiles(redis, broken.text(step)):
        return f"{mutation}: does not compile"
    noticed = await fails(among[mutation.by], broken)
    await broken.clear()
    return None if noticed else f"{mutation}: survives"
