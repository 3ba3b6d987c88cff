"""The documentation's figures: each of them comes from a report, and none is typed.

The page of benchmarks as a whole; in other pages, tables between two marks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from . import page, plots
from .markdown import table
from .model import Report, Result
from .rows import NONE

_ASSETS = Path("assets/benchmarks")
_PEERS = ("floor", "aiolocks", "redis-py", "pottery", "coredis, 10 ms", "python-redis-lock", "cashews")
_COMPARED = {
    "alone": "`alone`: acquire and release, µs",
    "many": "`many`: 200 tasks, own names, cycles/s",
    "drain": "`drain`: 200 tasks, one name, s",
    "handover": "`handover`: between two processes, ms",
}


def write(report: Report, docs: Path) -> None:
    """Writes figures, pictures and pages into this directory."""
    assets = docs / _ASSETS
    assets.mkdir(parents=True, exist_ok=True)
    report.save(results(docs))
    plots.draw(report, assets)
    for path, text in texts(report, docs).items():
        path.write_text(text, encoding="utf-8")


def results(docs: Path) -> Path:
    """The file of all figures."""
    return docs / _ASSETS / "results.json"


def texts(report: Report, docs: Path) -> dict[Path, str]:
    """The pages, as they are with these figures."""
    by_title = {result.title: result for result in report.results}
    reference = docs / "reference/benchmarks.md"
    return {
        reference: page.text(report, reference.parent, docs / _ASSETS),
        **_with(docs / "explanation/performance.md", "costs", _costs(by_title.get("costs"))),
        **_with(docs / "explanation/comparison.md", "speed", _speed(by_title)),
    }


def _with(path: Path, name: str, lines: Iterator[str]) -> dict[Path, str]:
    """The page, with these lines between its marks of this name."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{path} has no marks {begin} and {end}")
    return {path: "\n".join([before + begin, "", *lines, end + after])}


def _costs(result: Result | None) -> Iterator[str]:
    if result is None:
        yield "The table is not there yet: `python -m benchmarks costs` measures it.\n"
        return
    kinds = [
        (
            standing.contender,
            *(
                f"{standing.figures[figure.key].median:.{figure.digits}f}"
                if figure.key in standing.figures
                else NONE
                for figure in result.figures
            ),
        )
        for standing in result.standings
    ]
    yield from table(("", *(figure.label for figure in result.figures)), kinds)
    yield f"Measured on {result.date}: {result.work}.\n"


def _speed(by_title: dict[str, Result]) -> Iterator[str]:
    lines = []
    for title, text in _COMPARED.items():
        result = by_title[title]
        figure = result.figures[0]
        cells = []
        for peer in _PEERS:
            ours = "aiolocks tracking" if (title, peer) == ("handover", "aiolocks") else peer
            median = result.median(ours, figure.key)
            cells.append(NONE if median is None else f"{median:.{figure.digits}f}")
        lines.append((text, *cells, result.date))
    headings = ("workload", *(peer.partition(",")[0] for peer in _PEERS), "measured on")
    yield from table(headings, lines)
