"""The site: each page is found, quoted messages and figures are real, and the search finds its words."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import aiolocks.errors
from tests.docs import llms
from tests.docs.markdown import read

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_each_page_is_in_the_sidebar() -> None:
    named = [path for _, path in llms.pages(llms.navigation())]
    assert sorted(named) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_the_list_for_programs_is_as_the_pages_are() -> None:
    assert llms.LIST.read_text("utf-8") == llms.text(), "write it again: python -m tests.docs.llms"


TROUBLE = read(DOCS / "how-to/troubleshooting.md")


def test_each_error_has_its_trouble() -> None:
    for name in aiolocks.errors.__all__:
        if name != "LockError":
            assert name in TROUBLE.prose, name


def test_messages_are_those_of_the_library() -> None:
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "aiolocks").rglob("*.py"))
    joined = re.sub(r"\"\s*\n\s*f?\"", "", sources)  # strings that go on in the next line
    for row in TROUBLE.prose.splitlines():
        cell = re.match(r"\| `([^`]+)`", row)
        if cell is None or cell[1].isidentifier():
            continue
        for piece in cell[1].split("…"):
            words = piece.strip(" :.;,")
            assert words in joined, f"no message has {words!r}"


FIGURES = re.compile(r"^\| `(\w+)`[^|]*\|(.+)\|$", re.MULTILINE)
CONTENDERS = ("floor", "aiolocks", "redis-py", "pottery", "coredis, 10 ms", "python-redis-lock", "cashews")


def test_figures_of_the_comparison_are_those_of_the_benchmarks() -> None:
    """Within a third, for a new run of the benchmarks changes them all."""
    measured = read(DOCS / "reference/benchmarks.md").prose
    rows = FIGURES.findall(read(DOCS / "explanation/comparison.md").prose)
    assert [workload for workload, _ in rows] == ["alone", "many", "drain", "handover"]
    for workload, cells in rows:
        section = measured.partition(f"\n## {workload}\n")[2].partition("\n## ")[0]
        for contender, shown in zip(CONTENDERS, cells.split("|"), strict=True):
            name = "aiolocks tracking" if (workload, contender) == ("handover", "aiolocks") else contender
            found = re.search(rf"^\| {name} \| [^|]+ \| ([\d.]+) \|", section, re.MULTILINE)
            if not re.search(r"\d", shown):
                assert found is None, (workload, contender)
            else:
                assert found is not None, (workload, contender)
                assert 2 / 3 <= float(shown) / float(found[1]) <= 1.5, (workload, contender, found[1])


WORDS = ("leader election", "mutex", "kubernetes", "celery", "django", "troubleshooting")


def test_site_builds_and_its_search_finds(tmp_path: Path) -> None:
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason=f"{package} is in the dependency group docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    entries = json.loads((tmp_path / "search/search_index.json").read_text("utf-8"))["docs"]
    for words in WORDS:
        assert any(words in f"{entry['title']} {entry['text']}".lower() for entry in entries), words
    assert (tmp_path / "llms.txt").exists()
