"""The documentation's figures: each of them comes from a report, and none is typed.

The two pages of benchmarks as a whole; on other pages, tables between two marks, and figures in sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from . import page, plots, said
from .markdown import table
from .model import Report
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
    reference = docs / "reference"
    pages = {
        reference / "benchmarks.md": page.text(report),
        reference / "benchmark-workloads.md": page.workloads(report, reference, docs / _ASSETS),
        **with_tables(docs / "explanation/comparison.md", {"speed": _speed(report)}),
        **with_tables(docs / "explanation/performance.md", {"servers": _servers(report)}),
    }
    for name, sentences in said.SENTENCES.items():
        path = docs / name
        text = pages.get(path) or path.read_text(encoding="utf-8")
        for sentence in sentences:
            text = sentence.told(text, report)
        pages[path] = text
    return pages


def with_tables(path: Path, tables: Mapping[str, Iterator[str]]) -> dict[Path, str]:
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


def _speed(report: Report) -> Iterator[str]:
    lines = []
    for title, text in _COMPARED.items():
        for result in report.by_title[title]:
            figure = result.figures[0]
            cells = []
            for peer in _PEERS:
                ours = "aiolocks tracking" if (title, peer) == ("handover", "aiolocks") else peer
                median = result.median(ours, figure.key)
                cells.append(NONE if median is None else f"{median:.{figure.digits}f}")
            lines.append((text, result.server, *cells, result.date))
    headings = ("workload", "server", *(peer.partition(",")[0] for peer in _PEERS), "measured on")
    yield from table(headings, lines)


def _servers(report: Report) -> Iterator[str]:
    results = report.by_title.get("servers", [])
    if results:
        lines = [
            (figure.label, *(page.median(result, "aiolocks", figure) for result in results))
            for figure in results[0].figures
        ]
        yield from table(("", *(result.server for result in results)), lines)
