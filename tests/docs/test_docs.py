"""README and docs are right: their code runs, their outputs are right, their links lead somewhere.

How pages are run:

- The Python blocks of a page run in order, in one namespace, as ``__main__``; they may use top-level
  ``await``.
- Wherever a page writes ``redis://localhost:6379``, it gets a server of ours, empty at the start of the
  page.
- Wherever it writes ``redis://localhost:7000``, it gets a cluster of three nodes.
- A block ``title="Output"`` is what the Python block before it prints; what is printed is also shown. Numbers
  may differ where they do for every reader: those with a decimal point are times and are right within
  `TIME_TOLERANCE` and `STALL`; those of twelve digits or more are fencing tokens, which need only
  as many digits. All others must be the same.
- A block with the name of a file as its title, but without a folder, is also written to that file, beside
  those of the same page. One named ``test_….py`` or ``conftest.py`` is not run by itself but by pytest.
- Clients, sessions and databases that a page leaves open in its namespace are closed behind it.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Self

import click
import pytest
from redis.asyncio import Redis, RedisCluster

from aiolocks import Session
from aiolocks.cli.app import app
from aiolocks.sync import Session as SyncSession
from aiolocks.testing import EmbeddedServer
from tests.conftest import blocking
from tests.docs.markdown import Block, Page, read

ROOT = Path(__file__).parents[2]
README = read(ROOT / "README.md")
PAGES = [README, *(read(path) for path in sorted((ROOT / "docs").rglob("*.md")))]

URL = "redis://localhost:6379"
CLUSTER_URL = "redis://localhost:7000"
OUTPUT = "Output"
TIME_TOLERANCE = 0.1
"""As a share of the time shown."""
STALL = 1.0
"""Seconds for which a busy machine may stand still."""
FENCING_DIGITS = 12

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path.relative_to(ROOT).as_posix())


# -- Python


@each_page
def test_python_blocks_run_and_print_what_is_shown(
    page: Page, running: EmbeddedServer, running_cluster: Callable[[], str], tmp_path: Path
) -> None:
    with blocking(running.url) as client:
        client.flushall()
    shown = "the page does not show what this prints"
    printed: str | None = None
    with Reader(urls(page, running, running_cluster), tmp_path) as reader:
        for block in page.blocks:
            if block.title == OUTPUT:
                assert printed is not None, f"{block}: no Python block before this output"
                assert_same_output(block, printed)
                printed = None
            else:
                assert not printed, f"before {block}: {shown}:\n{printed}"
                printed = reader.follow(block)
        reader.test()
    assert not printed, f"at the end of {page}: {shown}:\n{printed}"


def urls(page: Page, running: EmbeddedServer, running_cluster: Callable[[], str]) -> dict[str, str]:
    """Those of the servers, by what the page calls them."""
    clustered = any(CLUSTER_URL in block.text for block in page.blocks)
    return {URL: running.url} | ({CLUSTER_URL: running_cluster()} if clustered else {})


class Reader:
    """Somebody who does what a page says.

    Args:
        urls: Of the servers, by what the page calls them.
        directory: Where the page's files go.
    """

    def __init__(self, urls: dict[str, str], directory: Path) -> None:
        self._urls = urls
        self._directory = directory
        self._namespace: dict[str, Any] = {"__name__": "__main__"}
        self._runner = asyncio.Runner()
        self._of_threads: list[SyncSession] = []  # also those whose name another one has taken
        self._tests: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in self._of_threads:
            opened.close()
        with self._runner as runner:
            runner.run(self._close())

    async def _close(self) -> None:
        left = self._namespace.values()
        for kind in (Session, Redis, RedisCluster):
            for opened in [value for value in left if isinstance(value, kind)]:
                await opened.aclose()
        for database in [value for value in left if isinstance(value, sqlite3.Connection)]:
            database.close()

    def follow(self, block: Block) -> str | None:
        """Do what a block says; what a Python block has printed."""
        text = block.text
        for shown, real in self._urls.items():
            text = text.replace(shown, real)
        if "." in block.title and "/" not in block.title:
            (self._directory / block.title).write_text(text, encoding="utf-8")
        if block.language != "python":
            return None
        if block.is_for_pytest:
            if block.title.startswith("test_"):
                self._tests.append(block.title)
            return None
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self._run(block, text)
        self._of_threads += [value for value in self._namespace.values() if isinstance(value, SyncSession)]
        return printed.getvalue()

    def test(self) -> None:
        """Run the page's tests, all in one run."""
        if self._tests:
            run_pytest(self._directory, *self._tests)

    def _run(self, block: Block, text: str) -> None:
        source = "\n" * (block.line - 1) + text  # a traceback leads to the page
        code = compile(source, block.page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            self._runner.run(types.FunctionType(code, self._namespace)())
        else:
            exec(code, self._namespace)


def run_pytest(directory: Path, *names: str) -> None:
    installed = any(point.name == "aiolocks" for point in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "aiolocks.testing.plugin"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "-v", *plugin, *names],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "skipped" not in result.stdout


_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def assert_same_output(block: Block, printed: str) -> None:
    shown = block.text
    assert _NUMBER.sub("0", printed) == _NUMBER.sub("0", shown), f"{block} is not what is printed:\n{printed}"
    for here, there in zip(_NUMBER.findall(shown), _NUMBER.findall(printed), strict=True):
        assert same_number(here, there), f"{block} shows {here}, but {there} is printed"


def same_number(shown: str, printed: str) -> bool:
    if "." in shown and "." in printed:
        return abs(float(shown) - float(printed)) <= TIME_TOLERANCE * float(shown) + STALL
    if len(shown) >= FENCING_DIGITS:
        return len(shown) == len(printed)
    return shown == printed


def test_outputs_are_compared() -> None:
    block = Block(Path("page.md"), 1, "text", OUTPUT, "29.70 s left, token 1795201144998987 of 3\n")
    assert_same_output(block, "29.41 s left, token 1895201144998987 of 3\n")
    for wrong in ("29.70 s left, token 1795201144998987 of 4", "29.70 s left, token 33 of 3", "9.70 s left"):
        with pytest.raises(AssertionError):
            assert_same_output(block, f"{wrong}\n")


# -- shell


def test_readme_begins_with_the_two_command_lines() -> None:
    # `.ci/run` takes the second one.
    demo, tests, *_ = [block.text for block in README.blocks if block.language in ("sh", "bash")]
    assert demo.count("\n") == tests.count("\n") == 1
    assert demo.endswith("/aiolocks demo\n")
    assert tests.endswith(" -m pytest\n")


def test_commands_exist() -> None:
    shown = [
        block.text
        for page in PAGES
        for block in page.blocks
        if block.language == "sh" or block.title == "crontab"
    ]
    shown += [code for page in PAGES for code in page.inline_code if code.startswith("aiolocks ")]
    for line in "\n".join(shown).splitlines():
        for words in commands(line):
            if words[0].rpartition("/")[2] == "aiolocks":
                assert_command_exists(words)
            elif "pip" in words[0]:
                assert_extras_exist(words)


def commands(line: str) -> Iterator[list[str]]:
    """The simple commands of a line, without what stands before: assignments, or cron's five times."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if not re.fullmatch(r"[;&|()]+", word):
            words.append(word)
            continue
        while words and re.fullmatch(r"\w+=.*|[\d*/,-]+", words[0]):
            del words[0]
        if words:
            yield words
        words = []


def assert_command_exists(words: list[str]) -> None:
    command: click.Command = app
    rest = iter(words[1:])
    for word in rest:
        if word == "--":
            break
        if not word.startswith("-"):
            if isinstance(command, click.Group):
                assert word in command.commands, f"there is no such command: {shlex.join(words)}"
                command = command.commands[word]
            continue
        context = click.Context(command)
        name, _, value = word.partition("=")
        option = next((param for param in command.get_params(context) if name in param.opts), None)
        assert isinstance(option, click.Option), f"there is no option {name}: {shlex.join(words)}"
        if not option.is_flag and not value:
            next(rest)
    assert command is not app or len(words) == 1, f"there is no command in {shlex.join(words)}"


def assert_extras_exist(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for named in re.findall(r"\[([\w,]+)\]", " ".join(words)):
        assert set(named.split(",")) <= extras.keys(), f"there is no such extra: {shlex.join(words)}"


@pytest.mark.parametrize(
    "wrong", ["aiolocks dance", "aiolocks run x --no-such -- ls", "aiolocks --nope demo"]
)
def test_wrong_commands_are_found(wrong: str) -> None:
    ((words),) = commands(wrong)
    with pytest.raises(AssertionError, match="there is no"):
        assert_command_exists(words)


# -- links


def test_links_lead_somewhere() -> None:
    for page, link in [(one, link) for one in PAGES for link in one.links]:
        if re.match(r"https?://", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.path.parent / target).resolve() if target else page.path
        assert path.exists(), f"{page} links to {link}"
        if anchor.startswith("aiolocks."):
            assert f"::: {anchor}\n" in path.read_text(), f"{page} links to {link}"
        elif anchor:
            assert anchor in read(path).anchors, f"{page} links to {link}"


_OF_CLIENT = re.compile(
    r"\b(Lock|ReentrantLock|FairLock|MultiLock|Semaphore|Limits|RWLock|RangeLock|SingleFlight|UniqueJob|Leadership"
    r"|Schedule|Turnstile|FencedRegister|Session)\((redis|client)(,(?!.*prefix=)|\))"
)


MOST_WORDS = 2500
"""A page of ten minutes. What is longer is split; tables and code do not count."""


def test_no_page_is_too_long() -> None:
    """Or cut it, or make two pages of it."""
    assert {page.path.name: page.words for page in PAGES if page.words > MOST_WORDS} == {}


def test_words_are_counted_without_tables_and_code(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        "# Two words\n\n- and `three` more\n\n| a | b |\n|---|---|\n\n```sh\nls -l\n```\n", "utf-8"
    )
    assert read(path).words == 7  # and the marks of the heading and of the list


def test_an_application_has_one_prefix() -> None:
    """The locks of several pages, pasted into one application, exclude each other."""
    for page in PAGES:
        text = "".join(block.text for block in page.blocks if block.language == "python")
        prefixes = set(re.findall(r'prefix="([^"]*)"', text))
        assert prefixes <= {"shop"}, page
        if prefixes and page.path.name != "README.md":  # its first program has a server of its own
            assert not [found[0] for found in _OF_CLIENT.finditer(text)], page
