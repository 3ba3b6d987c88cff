"""The command line as such: help, version, and what is said where the extra is missing."""

from __future__ import annotations

import sys

import pytest

import aiolocks as package
from tests.cli.conftest import Aiolocks
from tests.cli.several import several

COMMANDS = ("demo", "run", "ls", "show", "release", "top", "watch", "deadlocks", "prefixes")


async def test_help(aiolocks: Aiolocks) -> None:
    for arguments in (("--help",), ("-h",)):
        ended = await (await aiolocks(*arguments)).end()
        assert (ended.status, ended.err) == (0, "")
        assert ended.out.startswith("Usage: aiolocks ")
        for command in COMMANDS:
            assert f"\n  {command} " in ended.out


async def test_help_of_a_command_has_an_example_and_the_exit_statuses(aiolocks: Aiolocks) -> None:
    all_of_them = await several(aiolocks, *((command, "--help") for command in COMMANDS))
    for command, ended in zip(COMMANDS, all_of_them, strict=True):
        assert (ended.status, ended.err) == (0, "")
        assert f"\n    aiolocks {command}" in ended.out
        assert "Exit status" in ended.out
        assert "AIOLOCKS_REDIS_URL" in ended.out
        assert max(map(len, ended.out.splitlines())) <= 100


async def test_version(aiolocks: Aiolocks) -> None:
    assert (await (await aiolocks("--version")).end()).out == f"aiolocks {package.__version__}\n"


@pytest.mark.parametrize("missing", ["click", pytest.param("rich", marks=pytest.mark.more)])
async def test_without_the_extra_it_says_what_to_install(aiolocks: Aiolocks, missing: str) -> None:
    without = f"import sys; sys.modules[{missing!r}] = None; from aiolocks.cli import main; main()"
    ended = await (await aiolocks("top", program=(sys.executable, "-c", without))).end()
    assert (ended.status, ended.out) == (1, "")
    assert (
        ended.err
        == "aiolocks: the command line needs click and rich: pip install '.[cli]' in a clone of aiolocks\n"
    )


async def test_another_missing_module_is_not_taken_for_it(aiolocks: Aiolocks) -> None:
    without = "import sys; sys.modules['asyncio.subprocess'] = None; from aiolocks.cli import main; main()"
    ended = await (await aiolocks("demo", program=(sys.executable, "-c", without))).end()
    assert "asyncio.subprocess" in ended.err
    assert "aiolocks[cli]" not in ended.err


async def test_each_command_in_an_interpreter_of_its_own(aiolocks: Aiolocks) -> None:
    """Other tests call `main`, in their own process or in a fork; `test_ls.py` has `ls` and `release`."""
    statuses = {
        ("show", "job"): 1,
        ("deadlocks",): 0,
        ("prefixes",): 0,
        ("schedule", "job"): 1,
        ("doctor",): 0,
        ("run", "other", "--", "true"): 0,
        ("lead", "other", "--", "true"): 0,
    }
    started = [await aiolocks(*words, program=(sys.executable, "-m", "aiolocks")) for words in statuses]
    ended = [await one.end() for one in started]
    assert [one.status for one in ended] == [*statuses.values()], ended
