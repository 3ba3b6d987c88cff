"""The benchmarks: all of them run, what was measured is kept, and the pages say why a target was missed."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import docs
from benchmarks.model import FLOOR, Figure, Report, Result, Spread, Standing
from benchmarks.rows import missed, sheet
from benchmarks.said import Sentence, UntoldError
from benchmarks.servers import USUAL, chosen, shown
from benchmarks.settings import Settings
from benchmarks.targets import REASONS
from benchmarks.workloads import WORKLOADS, targets

ROOT = Path(__file__).parents[2]
PUBLISHED = Report.load(docs.results(ROOT / "docs"))


def test_each_target_that_is_missed_has_its_reason() -> None:
    assert [(one.title, one.target) for one in missed(PUBLISHED) if not one.reason] == []


def test_each_reason_is_that_of_a_target() -> None:
    known = {(title, target.text) for title, of_one in targets().items() for target in of_one}
    assert REASONS.keys() - known == set()


def test_published_figures_are_those_of_workloads_that_exist() -> None:
    assert PUBLISHED.by_title.keys() - targets().keys() == set()
    assert not PUBLISHED.quick


def made(server: str, **medians: float) -> Result:
    """A result of `drain`: seconds of each of these contenders."""
    standings = [Standing(one, {"seconds": Spread.of([value])}) for one, value in medians.items()]
    return Result(
        "drain", "", "work", FLOOR, server, "", [Figure("seconds", "s", 2)], standings, 1.0, "a day"
    )


def report(*results: Result) -> Report:
    return Report({}, "a command", quick=False, results=list(results))


def test_a_table_has_columns_for_each_server_and_judges_on_each() -> None:
    fast = made("Redis 7.0", floor=1.0, aiolocks=1.0, **{"redis-py": 30.0})
    slow = made("Valkey 9.1", floor=1.0, aiolocks=2.0, **{"redis-py": 30.0})
    found = sheet([fast, slow])
    assert found.headings == [
        "contender", "figure", "Redis 7.0", "÷ floor", "÷ redis-py", "Valkey 9.1", "÷ floor", "÷ redis-py",
        "target", "reached",
    ]  # fmt: skip
    near, far, _ = (target.text for target in targets()["drain"])
    ours = [line for line in found.lines if line[0] in ("aiolocks", "")]
    assert ours[0][2:] == ("1.00", "1", "0.0333", "2.00", "2", "0.0667", near, "1 yes, 2 **NO**")
    assert ours[1][-2:] == (far, "30 yes, 15 **NO**")
    both = report(slow, fast)
    assert [(one.target, one.reached) for one in missed(both)] == [
        (near, ["2 on Valkey 9.1"]),
        (far, ["15 on Valkey 9.1"]),
    ]
    assert both.by_title["drain"] == [fast, slow]


def test_what_is_measured_again_takes_the_place_of_the_same_on_the_same_server(tmp_path: Path) -> None:
    before = report(made("Redis 7.0", aiolocks=1.0), made("Valkey 9.1", aiolocks=1 / 3))
    again = before.updated(report(made("Redis 7.0", aiolocks=2.0)))
    again.save(tmp_path / "report.json")
    kept = Report.load(tmp_path / "report.json").by_title["drain"]
    assert [one.median("aiolocks", "seconds") for one in kept] == [2.0, 0.333333]


def test_a_sentence_gets_its_figures_and_must_be_there_once() -> None:
    sentence = Sentence("takes {:.1f} ms, and {:.0f} at worst", (lambda _: 2.345, lambda _: 10.0))
    page = "It takes 17 ms,\nand 3.5 at worst. And 9 more."
    assert sentence.told(page, report()) == "It takes 2.3 ms,\nand 10 at worst. And 9 more."
    for pages in ("nothing", page + page):
        with pytest.raises(UntoldError):
            sentence.told(pages, report())
    for values in ((lambda _: 1.0, lambda _: None), (lambda _: None, lambda _: 1.0)):
        assert replace(sentence, values=values).told(page, report()) == page


def run(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.more
@pytest.mark.timeout(120)
async def test_an_interrupted_run_keeps_what_it_has_measured_and_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    first, second = "limits", "drain"
    with run("--quick", first, second, "--json", file) as begun:
        while not file.exists():
            assert begun.poll() is None
            await asyncio.sleep(0.01)
        begun.send_signal(signal.SIGINT)
        _, said = begun.communicate()
    assert begun.returncode == 130
    assert f"--rest --from {file}" in said
    kept = Report.load(file)
    assert 0 < len(kept.results) < 2 * len(chosen(USUAL))
    with run("--quick", first, second, "--rest", "--from", file, "--json", file) as begun:
        _, said = begun.communicate()
    assert begun.returncode == 0, said
    whole = Report.load(file)
    assert {(one.title, one.server) for one in whole.results} == {
        (name, shown(server)) for name in (first, second) for server in chosen(USUAL)
    }
    assert whole.results[: len(kept.results)] == kept.results


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_each_workload_runs(tmp_path: Path) -> None:
    """Tiny: the figures mean nothing. Of contenders, only those may be missing that are not installed.

    On one server; two run on both in the test above. `tests/unit/test_costs.py` runs the counts in full.
    """
    file = tmp_path / "figures.json"
    names = [name for name in WORKLOADS if name != "counts"]
    with run(*names, "--quick", "--server", "valkey-9", "--json", file) as begun:
        _, said = begun.communicate()
    assert begun.returncode == 0, said
    results = json.loads(file.read_text())["results"]
    asked = [make(Settings()) for name in names for make in WORKLOADS[name]]
    found = Report.load(file).by_title
    assert [len(found[workload.title]) for workload in asked] == [1] * len(asked)
    troubles = {standing["trouble"] for result in results for standing in result["standings"]}
    assert {one for one in troubles if one and not one.startswith("not installed")} == set()
