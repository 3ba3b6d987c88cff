"""A Python block is a program, or its page says how it is run, and the site copies a program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from html import escape
from pathlib import Path
from types import SimpleNamespace

import pytest

from aiolocks.testing import EmbeddedServer
from tests.conftest import blocking
from tests.docs.markdown import Page, read
from tests.docs.programs import free_names, is_part, on_page_content, program, programs
from tests.docs.test_docs import OUTPUT, PAGES, ROOT, assert_same_output, each_page, urls

HOW = ROOT / "docs/tutorial/first-lock.md"
PASTED = re.compile(r"`python -m asyncio`[^`]*first-lock\.md#run-the-examples\)")
APPENDED = re.compile(
    r"parts of `(\w+\.py)`: append them to it\.\s\[[^]]*\]\([./\w-]*first-lock\.md#run-the-examples\)"
)


def test_pages_say_how_their_parts_are_run_and_each_part_has_a_program() -> None:
    for page in PAGES:
        parts = dict(programs(page))
        if parts and page.path != HOW:
            appended = APPENDED.search(page.prose)
            titles = {block.title for block in page.blocks}
            said = appended[1] in titles if appended else PASTED.search(page.prose)
            assert said, f"{page}: say how a reader runs {next(iter(parts))}"
        for block, whole in parts.items():
            assert not block.title, f"{block} is no file that runs: {free_names(block.text)} are missing"
            assert not is_part(whole), f"{block}: {free_names(whole)}\n{whole}"


@pytest.mark.soak
@pytest.mark.timeout(600)
@each_page
def test_programs_run_and_print_what_is_shown(
    page: Page, running: EmbeddedServer, running_cluster: Callable[[], str], tmp_path: Path
) -> None:
    def put(name: str, text: str) -> None:
        for said, real in urls(page, running, running_cluster).items():
            text = text.replace(said, real)
        (tmp_path / name).write_text(text, encoding="utf-8")

    for block in page.blocks:
        if "." in block.title:
            put(block.title, block.text)
    following = dict(zip(page.blocks, page.blocks[1:], strict=False))
    for block, whole in programs(page):
        with blocking(running.url) as client:
            client.flushall()
        put("pasted.py", whole)
        command = [sys.executable, "-W", "ignore", "pasted.py"]
        paths = os.pathsep.join((str(ROOT), str(tmp_path)))
        result = subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, f"{block}: {result.stderr}\n{whole}"
        output = following.get(block)
        if output is not None and output.title == OUTPUT:
            lines = output.text.count("\n")
            assert_same_output(output, "".join(result.stdout.splitlines(keepends=True)[-lines:]))


FIRST = """
from redis.asyncio import Redis

redis = Redis()
seen = 0


async def look() -> None:
    global seen
    seen += len(word)


await look()
"""
UNRELATED = "import json\n\nother = 1\n"
LAST = '''
from aiolocks import Lock

# The name of the lock.
word = """a
b"""
print(json.dumps(word))
async with Lock(redis, word):
    await look()
'''
WHOLE = '''
import asyncio
import json

from redis.asyncio import Redis

from aiolocks import Lock

redis = Redis()
seen = 0


async def look() -> None:
    global seen
    seen += len(word)


async def main() -> None:
    global word
    await look()

    # The name of the lock.
    word = """a
b"""
    print(json.dumps(word))
    async with Lock(redis, word):
        await look()


asyncio.run(main())
'''


def test_a_program_has_the_imports_the_blocks_that_are_needed_and_a_main() -> None:
    assert program([FIRST, UNRELATED, LAST]) == WHOLE.lstrip("\n")
    assert program(["import a\n\n\ndef f(): ...\n", "f()\n"]) == "import a\n\n\ndef f(): ...\n\nf()\n"


def test_the_site_copies_programs(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("```python\nawait 1 < x\n```\n\n```python\nx = 2\n```\n")
    shown = '<div class="highlight"><pre><span></span><code><span>await</span> 1 &lt; x\n</code></pre></div>'
    plain = '<div class="highlight"><pre><span></span><code>x = 2\n</code></pre></div>'
    page = SimpleNamespace(file=SimpleNamespace(abs_src_path=path))
    whole = escape(program(["await 1 < x\n"]))
    made = shown.replace('"highlight"', f'"highlight" data-copy="{whole}"', 1)
    assert on_page_content(shown + plain, page=page) == made + plain
    assert dict(programs(read(path))).keys() == {read(path).blocks[0]}


def test_names_that_are_missing_are_found() -> None:
    assert free_names("import a\nprint(a, [b for b in c], d)\ndef f(e): return e, g\n") == {"c", "d", "g"}
