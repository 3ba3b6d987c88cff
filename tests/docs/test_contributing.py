"""The pages for contributors agree with the tree: files, names, ids of faults, and the picture."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import aiolocks
from tests.docs import checklist, picture
from tests.docs.markdown import Page, read

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/contributing"
FAULTS = read(ROOT / "tests/FAULTS.md")
PAGES = [
    FAULTS,
    *(read(path) for path in sorted(FOLDER.glob("*.md"))),
    *(read(path) for path in sorted(ROOT.glob("*.md")) if path.stem.isupper()),
]

_PLACE = re.compile(
    r"(?:\.ci|aiolocks|benchmarks|docs|examples|tests)/[\w./<>*-]+|(?:mkdocs|README|CHANGELOG)\.\w+"
)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_files_that_are_named_exist(page: Page) -> None:
    for text in page.inline_code:
        if _PLACE.fullmatch(text) and "<" not in text:
            assert (ROOT / text).exists(), f"{page} names {text}"


@pytest.mark.parametrize("name", picture.PICTURES)
def test_the_picture_is_as_the_imports_are(name: str) -> None:
    drawn = (picture.ASSETS / name).read_text(encoding="utf-8")
    assert drawn == picture.drawing(*picture.PICTURES[name]), "draw it again: python -m tests.docs.picture"


def test_for_each_change_the_named_files_have_the_named_words() -> None:
    page = read(FOLDER / "architecture.md")
    rows = page.prose.partition("## To change something")[2].partition("\n## ")[0].splitlines()
    changes = [row.strip("| ").split(" | ") for row in rows if row.startswith("| ") and row.count("`")]
    assert len(changes) >= 10
    for change, where, names in changes:
        files = [ROOT / place for place in checklist.code(where)]
        text = "".join(
            path.read_text("utf-8")
            if path.is_file()
            else "".join(one.read_text("utf-8") for one in path.glob("*.py"))
            for path in files
        )
        for name in checklist.code(names):
            assert re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text), f"{change}: {name} is not in {where}"


EARLIER = {
    *("FairLock", "FencedRegister", "Leadership", "Lock", "MultiLock", "RWLock", "RangeLock"),
    *("Redlock", "ReentrantLock", "Schedule", "Semaphore", "Session", "SingleFlight", "UniqueJob"),
}
"""Public classes with a page that were there before the checklist: their files have other names."""
WITH_A_PAGE = [name for name in aiolocks.__all__ if (ROOT / f"docs/reference/{name.lower()}.md").exists()]


@pytest.mark.parametrize("name", [name for name in WITH_A_PAGE if name not in EARLIER])
def test_the_checklist_of_a_kind_can_be_walked(name: str) -> None:
    state = checklist.told(name.lower(), name)
    assert state.endswith(", 0 are missing"), f"docs/contributing/adding-a-kind.md: {state}"


def test_the_checklist_is_walked_for_two_sorts_and_shows_one_of_them() -> None:
    assert {checklist.sort_of("limits", "Limits"), checklist.sort_of("turnstile", "Turnstile")} == {
        "held",
        "neither",
    }
    shown = checklist.told("turnstile", "Turnstile")
    assert shown in checklist.PAGE.read_text("utf-8"), f"the page must show: {shown}"


def test_the_checklist_tells_each_missing_step_and_what_to_add() -> None:
    done, missing = checklist.walk("barrier", "Barrier", "waits")
    assert done == 0
    assert any(one.startswith("add the file docs/how-to/barrier.md, with Barrier(. ") for one in missing)
    assert any(one.startswith('add "barrier": Family( to tests/lua/test_acl.py. ') for one in missing)
    assert not any("conformance" in one for one in missing if one.startswith("add Kind("))
    assert [step.path for step in checklist.steps() if step.mark == "held"]


ROW = re.compile(r"^\| (T-[A-Z]+-\d+|I\d+) \|.*\| ([^|]+) \|$", re.MULTILINE)
LISTED = {found[1]: checklist.code(found[2]) for found in ROW.finditer(FAULTS.prose)}


def ids(text: str) -> set[str]:
    """The ids that a test module has, in names of tests and in prose."""
    names = re.findall(r"def test_(?:\w*?_)??(?:t_([a-z]{1,2})_|i)(\d+)b?_", text)
    prose = re.findall(r"\bT-([A-Z]{1,2})-(\d+)\b", text)
    return {f"T-{group.upper()}-{number}" if group else f"I{number}" for group, number in [*names, *prose]}


def test_each_id_of_a_fault_that_a_test_names_is_listed() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path != Path(__file__):
            assert ids(path.read_text("utf-8")) <= LISTED.keys(), path


def test_each_fault_of_the_list_is_shown_by_the_tests_that_it_names() -> None:
    unnamed = {
        "T-C-10",
        "T-C-11",
        *(one for one in LISTED if one.startswith("I")),
    }  # shown by tests of other names
    for fault, places in LISTED.items():
        assert places, fault
        if fault not in unnamed:
            assert any(fault in ids((ROOT / place).read_text("utf-8")) for place in places), fault
