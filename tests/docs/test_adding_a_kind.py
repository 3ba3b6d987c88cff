"""The page on a new kind is right: all tests hold for two kinds whose files are added to a copy of the tree.

One is held; the page has its files. Tasks wait for the other; `barrier.md` has its files.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import Block, read

ROOT = Path(__file__).parents[2]
FOLDERS = ("aiolocks", "benchmarks", "docs", "examples", "tests")
PAGES = {
    "baton": ROOT / "docs/contributing/adding-a-kind.md",
    "barrier": Path(__file__).with_name("barrier.md"),
}
MADE = {"tests.sync.generate": "aiolocks/sync/_generated.py", "tests.docs.matrix": "docs/reference/index.md"}
"""The commands that the page names, and what each writes."""
MOST_FILES = 11
"""That a kind takes, with those that are made."""
WHOLE = (
    *("tests/docs/test_registry.py", "tests/docs/test_reference.py", "tests/sync/test_generated.py"),
    *("tests/unit/test_docstrings.py", "tests/unit/test_named_errors.py", "tests/unit/test_public_api.py"),
)
IN_PART = (
    *("tests/conformance", "tests/docs/test_docs.py", "tests/docs/test_site.py", "tests/lua/test_acl.py"),
    *("tests/lua/test_inspect_scripts.py", "tests/unit/test_script_keys.py", "tests/unit/test_scripts.py"),
)
"""Tests of all kinds, of which those are run that have the kind in their name, and these:"""
ALSO = "can_be_freed or frozen or matrix_of_kinds or message"
HOW_TO = {"baton": "lock-variants", "barrier": "turnstile"}


def blocks(kind: str) -> list[Block]:
    return [block for block in read(PAGES[kind]).blocks if "/" in block.title or block.language == "diff"]


def changed(text: str, block: Block) -> str:
    """The text with the lines that a block adds, each before the line that the block shows behind it.

    Those at the end of a block come behind the last line that it shows.
    """
    added: list[str] = []
    shown = ""
    for line in block.text.splitlines():
        if line.startswith("+"):
            added.append(line[1:] + "\n")
            continue
        shown = f"\n{line[1:]}\n"
        assert text.count(shown) >= 1, f"{block}: {block.title} has no line {line[1:]!r}"
        text = text.replace(shown, "\n" + "".join(added) + shown.removeprefix("\n"), 1)
        added = []
    if added:
        text = text.replace(shown, shown + "".join(added), 1)
    return text


def follow(tree: Path, kind: str) -> None:
    """Does what the page says, in that tree."""
    for block in blocks(kind):
        path = tree / block.title
        if block.language == "diff":
            path.write_text(changed(path.read_text("utf-8"), block), "utf-8")
        else:
            assert not path.exists()
            path.write_text(block.text, "utf-8")


def copied(tree: Path) -> Path:
    left_out = shutil.ignore_patterns(".*", "__pycache__", "site", "*.pyc")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=left_out)
    for path in (*ROOT.glob("*.md"), *ROOT.glob("*.py"), ROOT / "mkdocs.yml", ROOT / "pyproject.toml"):
        shutil.copy(path, tree)
    return tree


def files_of(tree: Path) -> set[str]:
    found = {path for name in FOLDERS for path in (tree / name).rglob("*")} | {*tree.glob("*.md")}
    return {
        path.relative_to(tree).as_posix()
        for path in found
        if path.is_file() and path.suffix != ".pyc" and not any(part[0] == "." for part in path.parts[-3:])
    }


@pytest.mark.parametrize("kind", PAGES)
def test_a_kind_takes_so_many_files(kind: str) -> None:
    titles = [block.title for block in blocks(kind)]
    assert len({*titles}) == len(titles)
    assert len(titles) + len(MADE) <= MOST_FILES
    for block in blocks(kind):
        if block.language == "diff":
            changed((ROOT / block.title).read_text("utf-8"), block)
        else:
            assert not (ROOT / block.title).exists()


@pytest.mark.whole
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", PAGES)
def test_its_tests_pass_and_those_of_all_kinds(kind: str, tmp_path: Path) -> None:
    tree = copied(tmp_path)
    follow(tree, kind)

    def ran(what: str, *arguments: str) -> None:
        ran = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{what}:\n{ran.stdout[-5000:]}{ran.stderr[-2000:]}"

    for command in MADE:
        ran(command, command)
    written = [path for path in (block.title for block in blocks(kind)) if path.endswith(".py")]
    ran("lint", "ruff", "check", "--no-cache", *written)
    ran("format", "ruff", "format", "--no-cache", "--check", *written)
    pytests = ("pytest", "-q", "-n2")
    ran("its own tests, and all of some", *pytests, f"tests/kinds/test_{kind}.py", *WHOLE)
    how_to = f"how-to/{HOW_TO[kind]}.md"
    ran(
        "a part of others",
        *pytests,
        *IN_PART,
        "-k",
        f"({kind} or {ALSO} or {how_to}) and not {kind}-poll and not link",
    )
    ran(
        "counted once",
        *pytests,
        "tests/conformance/test_counted_once.py",
        "-m",
        "more",
        "-k",
        f"{kind} or COUNTED_ONCE",
    )
    ran("schedules", "tests.simulation.world", kind, "0-20", "--all")
    ran("schedules with faults", "tests.simulation.world", kind, "0-20", "--all", "--faults")
    changes = {
        path
        for path in files_of(tree)
        if not (ROOT / path).exists() or not filecmp.cmp(ROOT / path, tree / path, shallow=False)
    }
    assert changes == {*(block.title for block in blocks(kind)), *MADE.values()}
