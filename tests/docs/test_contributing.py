"""The pages for contributors agree with the tree: files, names, ids of faults, and the picture."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import picture
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


def code(cell: str) -> list[str]:
    """The pieces of code in a cell of a table."""
    return [two or one for two, one in re.findall(r"``(.+?)``|`([^`]+)`", cell)]


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
        files = [ROOT / place for place in code(where)]
        text = "".join(
            path.read_text("utf-8")
            if path.is_file()
            else "".join(one.read_text("utf-8") for one in path.glob("*.py"))
            for path in files
        )
        for name in code(names):
            assert re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text), f"{change}: {name} is not in {where}"


ROW = re.compile(r"^\| (T-[A-Z]+-\d+|I\d+) \|.*\| ([^|]+) \|$", re.MULTILINE)
LISTED = {found[1]: code(found[2]) for found in ROW.finditer(FAULTS.prose)}


def ids(text: str) -> set[str]:
    """The ids that a test module has, in names of tests and in prose."""
    names = re.findall(r"def test_(?:\w*?_)??(?:t_([a-z]{1,2})_|i)(\d+)b?_", text)
    prose = re.findall(r"\bT-([A-Z]{1,2})-(\d+)\b", text)
    return {f"T-{group.upper()}-{number}" if group else f"I{number}" for group, number in [*names, *prose]}


def by_default(text: str) -> str:
    """The module without the tests that the default run leaves out as a whole."""
    return re.sub(
        r"^@pytest\.mark\.(?:more|soak|whole)\b.*\n(?:[@ )].*\n)*(?:async )?def \w+",
        "",
        text,
        flags=re.MULTILINE,
    )


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
            shown = (ids(by_default((ROOT / place).read_text("utf-8"))) for place in places)
            assert any(fault in one for one in shown), fault
