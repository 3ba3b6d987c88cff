"""The documentation's figures: each of them comes from a report, and none is typed.

The two pages of benchmarks as a whole; in other pages, tables between two marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from . import page, plots
from .markdown import table
from .model import Figure, Report, Result, Standing
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
    reference = docs / "reference"
    return {
        reference / "benchmarks.md": page.text(report),
        reference / "benchmark-workloads.md": page.workloads(report, reference, docs / _ASSETS),
        **_with(
            docs / "explanation/performance.md",
            {
                name: lines(by_title[name]) if name in by_title else _not_yet(name)
                for name, lines in (("costs", _costs), ("counts", _counts), ("profile", _profile))
            },
        ),
        **_with(docs / "explanation/comparison.md", {"speed": _speed(by_title)}),
    }


def _with(path: Path, tables: Mapping[str, Iterator[str]]) -> dict[Path, str]:
    """The page, with each of these tables between the marks of its name."""
    text = path.read_text(encoding="utf-8")
    for name, lines in tables.items():
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"{path} has no marks {begin} and {end}")
        text = "\n".join([before + begin, "", *lines, end + after])
    return {path: text}


def _not_yet(name: str) -> Iterator[str]:
    yield f"The table is not there yet: `python -m benchmarks {name}` measures it.\n"


def _costs(result: Result) -> Iterator[str]:
    """A line for each kind of lock."""
    kinds = [
        (standing.contender, *(_median(standing, figure) for figure in result.figures))
        for standing in result.standings
    ]
    yield from table(("", *(figure.label for figure in result.figures)), kinds)
    yield _measured(result)


def _counts(result: Result) -> Iterator[str]:
    """A line for each kind of lock; bytecodes, calls and objects in a cell."""
    labels = {figure.key: figure.label for figure in result.figures}
    cases = {key.removesuffix("_bytecodes"): key for key in labels if key.endswith("_bytecodes")}
    kinds = []
    for standing in result.standings:
        whole = {key: f"{spread.median:,.0f}".replace(",", " ") for key, spread in standing.figures.items()}
        cells = (
            " · ".join(whole[f"{case}_{what}"] for what in ("bytecodes", "frames", "objects"))
            if key in whole
            else NONE
            for case, key in cases.items()
        )
        kinds.append((standing.contender, *cells, whole["kept_files"]))
    headings = (labels[key].removesuffix(": bytecodes") for key in cases.values())
    yield from table(("", *headings, labels["kept_files"]), kinds)
    yield _measured(result)


def _profile(result: Result) -> Iterator[str]:
    """A line for each part of a cycle."""
    parts = [
        (figure.label, *(_median(standing, figure) for standing in result.standings))
        for figure in result.figures
    ]
    yield from table(("", *(standing.contender for standing in result.standings)), parts)
    yield _measured(result)


def _median(standing: Standing, figure: Figure) -> str:
    if figure.key not in standing.figures:
        return NONE
    return f"{standing.figures[figure.key].median:.{figure.digits}f}"


def _measured(result: Result) -> str:
    return f"Measured on {result.date}: {result.work}.\n"


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
