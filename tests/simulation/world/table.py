"""The results of long tests: kept as JSON, and shown on a page of the documentation that is made from it.

python -m tests.simulation.world.table                   the page, written again from the JSON
python -m tests.simulation.world.table faults < table    puts a table that a test has printed into both
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[3] / "docs"
DATA = DOCS / "assets/test-results.json"
PAGE = DOCS / "reference/test-results.md"
HEAD = """\
---
search:
  exclude: true
---

# Test results

The tests wrote these tables into `docs/assets/test-results.json`, and this page is made from that file.
[Why you can trust it](../explanation/trust.md) says what the tables show.
"""
SECTIONS = {
    "faults": "Faults and features",
    "schedules": "Random schedules",
    "defects": "Defects found",
    "exhaustive": "Every interleaving",
    "ablations": "Safeguards taken out",
}


def put(name: str, lines: Sequence[str]) -> None:
    """Puts a table and the lines below it in place of the former ones, and writes the page again."""
    tables = json.loads(DATA.read_text("utf-8"))
    head, _, *rows = [_cells(line) for line in lines if line.startswith("|")]
    notes = [line for line in lines if line and not line.startswith("|")]
    tables[name] = {"head": head, "rows": rows, "notes": notes}
    DATA.write_text(_dumped(tables), "utf-8")
    PAGE.write_text(text(), "utf-8")


def lines(name: str) -> list[str]:
    """A table as Markdown, and the lines below it."""
    table = json.loads(DATA.read_text("utf-8"))[name]
    head = [_row(table["head"]), "|---" * len(table["head"]) + "|"]
    return [*head, *map(_row, table["rows"]), *table["notes"]]


def text() -> str:
    """The page."""
    return "\n".join(_page())


def put_between(name: str, lines: Sequence[str], page: Path) -> None:
    """Puts these lines between the marks of this name on another page, in place of the former ones."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, _, rest = page.read_text().partition(begin)
    assert end in rest, f"{page.name} has no mark {end}"
    page.write_text("\n".join([before + begin, "", *lines, "", end + rest.partition(end)[2]]))


def number(value: int) -> str:
    """With its thousands apart."""
    return f"{value:,}".replace(",", " ")


def _page() -> Iterator[str]:
    yield HEAD
    for name, title in SECTIONS.items():
        shown = lines(name)
        yield f"## {title}\n"
        yield from [line for line in shown if line.startswith("|")]
        yield ""
        for note in [line for line in shown if not line.startswith("|")]:
            yield f"{note}\n"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _dumped(tables: dict[str, Any]) -> str:
    """A line for each row, so that a change of one shows as one."""
    parts = [
        f'  {json.dumps(name)}: {{\n    "head": {_json(table["head"])},\n    "rows": [\n'
        + ",\n".join(f"      {_json(row)}" for row in table["rows"])
        + f'\n    ],\n    "notes": {_json(table["notes"])}\n  }}'
        for name, table in tables.items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _json(value: Sequence[str]) -> str:
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    for given in sys.argv[1:]:
        put(given, sys.stdin.read().splitlines())
    PAGE.write_text(text(), "utf-8")
