"""The page on a new kind is right: all tests hold for the kind that its files add to a copy of the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import Block, read

ROOT = Path(__file__).parents[2]
PAGE = read(ROOT / "docs/contributing/adding-a-kind.md")
BLOCKS = [block for block in PAGE.blocks if "/" in block.title or block.language == "diff"]
CHECKS = {
    "its own": ["tests/kinds"],
    "conformance": ["tests/conformance", "-k", "baton and not baton-poll"],
    "scripts": ["tests/unit/test_scripts.py", "tests/unit/test_script_keys.py", "-k", "frozen or baton"],
    "operators": ["tests/lua/test_inspect_scripts.py", "-k", "baton"],
    "public names": ["tests/unit/test_public_api.py"],
    "how-to": ["tests/docs/test_docs.py", "-k", "how-to/baton.md and not link"],
}


def changed(text: str, block: Block) -> str:
    """The text with the lines that a block adds, each before the line that the block shows behind it."""
    added: list[str] = []
    for line in block.text.splitlines():
        if line.startswith("+"):
            added.append(line[1:] + "\n")
            continue
        place = f"\n{line[1:]}\n"
        assert text.count(place) >= 1, f"{block}: {block.title} has no line {line[1:]!r}"
        text = text.replace(place, "\n" + "".join(added) + place.removeprefix("\n"), 1)
        added = []
    assert not added, f"{block}: no line behind {added}"
    return text


def follow(tree: Path) -> None:
    """Does what the page says, in that tree."""
    for block in BLOCKS:
        path = tree / block.title
        if block.language == "diff":
            path.write_text(changed(path.read_text("utf-8"), block), "utf-8")
        else:
            assert not path.exists()
            path.write_text(block.text, "utf-8")


def copied(tree: Path) -> Path:
    left_out = shutil.ignore_patterns(".*", "__pycache__", "site", "*.pyc")
    for name in ("aiolocks", "benchmarks", "docs", "examples", "tests"):
        shutil.copytree(ROOT / name, tree / name, ignore=left_out)
    for path in (*ROOT.glob("*.md"), ROOT / "mkdocs.yml", ROOT / "pyproject.toml"):
        shutil.copy(path, tree)
    return tree


def test_a_kind_takes_five_files_and_a_line_in_each_of_two_lists() -> None:
    files = [block.title for block in BLOCKS]
    assert len([title for title in files if not title.endswith(("__init__.py", "mkdocs.yml"))]) == 5
    assert [title for title in files if title.endswith(("__init__.py", "mkdocs.yml"))] == [
        "aiolocks/__init__.py",
        "mkdocs.yml",
    ]
    for block in BLOCKS:
        if block.language == "diff":
            changed((ROOT / block.title).read_text("utf-8"), block)
        else:
            assert not (ROOT / block.title).exists()


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_the_kind_of_the_page_is_held_renewed_fenced_waited_for_inspected_and_forced(tmp_path: Path) -> None:
    tree = copied(tmp_path)
    follow(tree)
    environment = os.environ | {"PYTHONPATH": str(tree)}
    for what, arguments in CHECKS.items():
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n2", *arguments],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{what}:\n{ran.stdout[-5000:]}{ran.stderr[-2000:]}"
    ran = subprocess.run(
        [sys.executable, "-m", "tests.simulation.world", "baton", "0-20", "--all"],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, f"schedules:\n{ran.stdout[-5000:]}{ran.stderr[-2000:]}"
