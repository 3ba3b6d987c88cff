"""Mutants of the scripts: what shows that each line is needed, and that somebody would notice.

A check is a test that asks for nothing but the scripts of one kind. Run on scripts that have been altered,
one of them is to fail.

A verdict on all mutants is kept: as long as the scripts and these tests are as they were when all had been
noticed, the tests that judge mutants are `more`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from redis.exceptions import ResponseError

from aiolocks.transport.request import lua_sections
from tests.kinds import declared
from tests.lua.scripts import Scripts, shipped

Check = Callable[[Any], Awaitable[None]]


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


async def fails(check: Check, scripts: Scripts) -> bool:
    await scripts.clear()
    try:
        await check(scripts)
    except (Exception, pytest.fail.Exception):  # `pytest.raises` fails with no Exception
        return True
    return False


HINTS = Path(__file__).with_name("noticed.json")
"""Which checks have noticed that a line was altered: by the file, and by the line."""

LEARN = "AIOLOCKS_TEST_LEARN"

JUDGES = re.compile(
    r"test_(with(out)?_(a_line|its_guard)|each_(line|guard)_is_needed|the_scripts?_(itself|themselves))"
)
"""The names of the tests that judge mutants, and of those by which their checks are content with none."""

VERDICT = Path(__file__).with_name("verdict.txt")
"""The digest of what all mutants were noticed with."""


def depended_on() -> dict[str, bytes]:
    """What a verdict depends on: the scripts, the checks, and what shows mutants to them.

    Not the rest of the library, through which some checks ask, nor the server: `more` judges with these. Nor
    the sections that a module of `tests/kinds` judges itself, in each run.
    """
    folder = Path(__file__).parent
    files = [*folder.glob("*.py"), *folder.glob("*.lua")]
    apart = {name for names in declared("JUDGED") for name in names}
    sections = {name: text for name, text in lua_sections().items() if name not in apart}
    return {path.name: path.read_bytes() for path in files} | sections


def digest(texts: Mapping[str, bytes]) -> str:
    return _sha256(repr([(name, _sha256(text)) for name, text in sorted(texts.items())]).encode())


@cache
def _sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def is_judged() -> bool:
    """Whether all mutants were noticed, with all as it is now."""
    return VERDICT.exists() and VERDICT.read_text("utf-8").strip() == digest(depended_on())


@cache
def _hints() -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = json.loads(HINTS.read_text(encoding="utf-8"))
    return found


def _line(file: str, text: bytes) -> str:
    """The first line that is not as in the file. A line that stands there twice is one: this is for hints."""
    before, after = text_of(file).splitlines(), text.decode().splitlines()
    return next((line for line, other in zip_longest(before, after) if line != other), None) or ""


class Jury:
    """Checks that mutants are shown to, first those that have noticed a change of that line before.

    The hints spare time alone: each mutant is shown to a check in each run, and to all where those of the
    hint are content. With `AIOLOCKS_TEST_LEARN=1` and `-n 0`, the check that then notices it becomes a hint.
    """

    def __init__(self, among: Iterable[Check]) -> None:
        self._last_first = list(among)

    async def notices(self, scripts: type[Scripts], redis: Any, prefix: str, file: str, text: bytes) -> bool:
        """Whether a check complains of this text of the file."""
        line = _line(file, text).strip()
        hints = _hints().get(file, {}).get(line, [])
        mutant = scripts(redis, prefix, {file: text})
        try:
            # Those of a hint first, of which a jury may have some; the sort is stable.
            for check in sorted(self._last_first, key=lambda one: one.__name__ not in hints):
                if await fails(check, mutant):
                    self._last_first.remove(check)
                    self._last_first.insert(0, check)
                    if os.environ.get(LEARN) and check.__name__ not in hints:
                        _learn(file, line, check.__name__)
                    return True
        finally:
            await mutant.clear()
        return False


def _learn(file: str, line: str, check: str) -> None:
    there = {line.strip() for line in text_of(file).splitlines()}
    known = _hints()[file] = {line: found for line, found in _hints().get(file, {}).items() if line in there}
    known.setdefault(line, []).append(check)
    files = (
        f"{json.dumps(file)}: {{\n"
        + ",\n".join(f"  {json.dumps(line)}: {json.dumps(found)}" for line, found in sorted(lines.items()))
        + "\n}"
        for file, lines in sorted(_hints().items())
    )
    HINTS.write_text("{" + ",\n".join(files) + "}\n", encoding="utf-8")  # a line for each, to be merged


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


async def surviving(
    scripts: type[Scripts],
    redis: Any,
    prefix: str,
    mutations: Iterable[Mutation],
    among: Mapping[str, Check],
    shared: str = "",
    step: str = "",
) -> list[str]:
    """The faults of those mutations: of none whose test fails with it, and would not without.

    Args:
        shared: A step that is made of those of their files that are shared.
        step: The step that is made of their files, if it is not named after them.
    """
    faults = []
    for mutation in mutations:
        text = text_of(mutation.file)
        if text.count(mutation.guard) != 1:
            faults.append(f"{mutation}: stands there {text.count(mutation.guard)} times")
            continue
        mutant = text.replace(mutation.guard, mutation.instead).encode()
        broken = scripts(redis, prefix, {mutation.file: mutant})
        made = step or (shared if mutation.file.startswith("shared/") else mutation.file)
        if not await compiles(redis, broken.text(made)):
            faults.append(f"{mutation}: does not compile")
            continue
        if not await fails(among[mutation.by], broken):
            faults.append(f"{mutation}: survives")
        await broken.clear()
    return faults
