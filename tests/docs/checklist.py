"""The checklist for a new kind: `python -m tests.docs.checklist limits Limits` prints missing steps."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import NamedTuple

import aiolocks
from aiolocks.lock.acquirable import Acquirable
from tests.docs.markdown import read

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/contributing/adding-a-kind.md"
SORTS = {"held": {"", "held", "waits"}, "waits": {"", "waits", "unheld"}, "neither": {"", "unheld"}}
"""The marks of the rows that each sort of kinds needs."""
MARKS = {"if"}.union(*SORTS.values())

_ROW = re.compile(r"\| `([^`]+)` \| ((?:``.+?``|`[^`]+`)(?:, `[^`]+`)*) \| (?:`(\w+)`)? ?\| ?(.*?) ?\|$")


class Step(NamedTuple):
    """One row of the tables.

    Attributes:
        path: The file, or a pattern of files, with `<kind>` and `<Kind>` in it.
        words: The texts that it must have.
        mark: The sort of kinds that need it; empty for all.
    """

    path: str
    words: list[str]
    mark: str
    remark: str


def code(cell: str) -> list[str]:
    """The pieces of code in a cell."""
    return [two or one for two, one in re.findall(r"``(.+?)``|`([^`]+)`", cell)]


def steps() -> list[Step]:
    """The rows of all tables that begin with a file."""
    rows = [line for line in read(PAGE).prose.splitlines() if re.match(r"\| `[\w<]+[/.]", line)]
    found = [(row, _ROW.fullmatch(row)) for row in rows]
    unread = [row for row, match in found if match is None or (match[3] or "") not in MARKS]
    assert not unread, f"{PAGE.name}: write `file` | `text` | `mark` or nothing | remark: {unread}"
    return [Step(match[1], code(match[2]), match[3] or "", match[4]) for _, match in found if match]


def sort_of(kind: str, name: str) -> str:
    """The sort of a kind, as its class and its scripts show it."""
    try:
        cls = getattr(aiolocks, name, None)
    except (ImportError, ValueError):  # it is half done
        cls = None
    if isinstance(cls, type) and issubclass(cls, Acquirable):
        return "held"
    scripts = "".join(path.read_text("utf-8") for path in (ROOT / "aiolocks/lua").glob(f"{kind}_*.lua"))
    return "waits" if re.search(r"^-- KEYS.*\bqueue\b", scripts, re.MULTILINE) else "neither"


def walk(kind: str, name: str, sort: str) -> tuple[int, list[str]]:
    """How many steps are done, and each missing one in words."""
    needed, done, missing = SORTS[sort], 0, list[str]()
    for step in steps():
        if step.mark in needed:
            lack = _lack(step, kind, name)
            done += not lack
            missing += [f"{lack}. {step.remark}".rstrip(" .") + "."] if lack else []
    return done, missing


def _lack(step: Step, kind: str, name: str) -> str:
    """The part of a step that is missing; empty if it is done."""

    def filled(text: str) -> str:
        return text.replace("<kind>", kind).replace("<Kind>", name)

    path = filled(step.path)
    files = sorted(ROOT.glob(path))
    if not files:
        return f"add the file {path}, with {' and '.join(map(filled, step.words))}"
    text = "".join(file.read_text("utf-8") for file in files)
    lacking = [word for word in map(filled, step.words) if word not in text]
    return f"add {' and '.join(lacking)} to {path}" if lacking else ""


def told(kind: str, name: str, sort: str = "") -> str:
    """The state of a kind, and each missing step."""
    sort = sort or sort_of(kind, name)
    done, missing = walk(kind, name, sort)
    head = f"{name} ({sort}): {done} steps are done, {len(missing)} are missing"
    return "\n".join([head, *(f"- {one}" for one in missing)])


def main() -> None:
    """Prints it."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs.checklist", description=__doc__)
    parser.add_argument("kind", help="its name in keys and files, such as limits")
    parser.add_argument("name", help="its class, such as Limits")
    parser.add_argument(
        "sort", nargs="?", default="", choices=["", *SORTS], help="while there is no class yet"
    )
    given = parser.parse_args()
    sys.stdout.write(told(given.kind, given.name, given.sort) + "\n")


if __name__ == "__main__":
    main()
