"""What a use of each kind of lock runs of the library: ceilings, which only fall.

Who makes the library cheaper lowers them. `python -m benchmarks counts` prints the counts, and
`docs/explanation/performance.md` has them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.workloads.counts import CASES

ROOT = Path(__file__).parents[2]
BYTECODES = sys.version_info < (3, 12)
"""Later versions have other bytecodes."""
CEILINGS = {
    "`Lock`": {
        "kept": (3_540, 139, 17),
        "new": (3_810, 156, 19),
        "handed": (4_370, 182, 19),
        "woken": (12_740, 546, 46),
        "renewed": (970, 38, 3),
    },
    "`ReentrantLock`": {
        "kept": (3_840, 150, 19),
        "new": (4_550, 180, 26),
        "handed": (11_000, 778, 20),
        "woken": (8_530, 345, 38),
        "renewed": (1_680, 78, 5),
    },
    "`FairLock`": {
        "kept": (3_600, 140, 17),
        "new": (3_870, 157, 19),
        "handed": (5_600, 245, 23),
        "woken": (12_560, 530, 47),
        "renewed": (2_320, 86, 5),
    },
    "`MultiLock` of 3 names": {
        "kept": (3_580, 140, 17),
        "new": (4_900, 195, 22),
        "handed": (4_410, 183, 19),
        "woken": (14_780, 550, 46),
        "renewed": (1_760, 79, 5),
    },
    "`Semaphore`": {
        "kept": (3_630, 141, 17),
        "new": (3_960, 160, 19),
        "handed": (5_740, 232, 21),
        "woken": (12_620, 528, 46),
        "renewed": (1_750, 81, 5),
    },
    "fair `Semaphore`": {
        "kept": (3_640, 141, 17),
        "new": (3_970, 161, 19),
        "handed": (6_930, 298, 24),
        "woken": (12_730, 536, 46),
        "renewed": (1_710, 79, 5),
    },
    "`Limits` of 2 keys": {
        "kept": (3_730, 145, 18),
        "new": (5_060, 201, 23),
        "handed": (7_120, 309, 25),
        "woken": (12_800, 542, 49),
        "renewed": (1_900, 85, 5),
    },
    "`RWLock.writer`": {
        "kept": (3_740, 144, 18),
        "new": (5_790, 233, 31),
        "handed": (5_700, 232, 22),
        "woken": (14_670, 565, 48),
        "renewed": (1_910, 87, 5),
    },
    "`RWLock.reader`": {
        "kept": (3_640, 141, 17),
        "new": (5_710, 229, 30),
        "woken": (13_280, 563, 47),
        "renewed": (1_730, 80, 5),
    },
    "`RangeLock.writer`": {
        "kept": (3_740, 144, 18),
        "new": (5_790, 227, 25),
        "handed": (5_690, 229, 22),
        "woken": (12_720, 536, 49),
        "renewed": (1_730, 80, 5),
    },
    "`Leadership`": {
        "kept": (3_900, 163, 17),
        "new": (4_990, 212, 24),
        "handed": (5_760, 256, 23),
        "woken": (14_180, 576, 47),
        "renewed": (1_740, 80, 5),
    },
    "`Redlock` of 3 masters": {
        "kept": (11_100, 421, 53),
        "new": (13_280, 558, 61),
        "handed": (13_130, 512, 59),
        "woken": (41_570, 1625, 170),
        "renewed": (5_100, 221, 17),
    },
}
"""Bytecodes, calls and objects of ours, of each kind and case.

Where tasks wait, and of renewals, the counts differ by up to a third from run to run; else by less than a
hundredth.
"""
FILES = 25
"""Of the package, those that an acquire and release of a `Lock` runs through."""


def test_the_counter_counts() -> None:
    program = """
import benchmarks.counted as counted, aiolocks, asyncio
with counted.counting_code():
    aiolocks.Backoff()
with counted.counting_code() as code, counted.counting_objects() as made:
    aiolocks.Backoff()
assert code.bytecodes > 10, code.bytecodes
assert code.frames >= 1
assert made == {"Backoff": 1}, made
assert len(code.files) >= 1
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_no_use_costs_more_than_its_ceiling(tmp_path: Path) -> None:
    file = tmp_path / "counts.json"
    subprocess.run([sys.executable, "-m", "benchmarks", "counts", "--json", str(file)], check=True, cwd=ROOT)
    (result,) = json.loads(file.read_text())["results"]
    found = {
        standing["contender"]: {key: figure["median"] for key, figure in standing["figures"].items()}
        for standing in result["standings"]
    }
    assert found.keys() == CEILINGS.keys()
    over = {}
    for kind, cases in CEILINGS.items():
        assert cases.keys() == {case for case in CASES if f"{case}_bytecodes" in found[kind]}
        for case, ceilings in cases.items():
            counts = tuple(found[kind][f"{case}_{what}"] for what in ("bytecodes", "frames", "objects"))
            assert counts[0] > 500
            pairs = zip(counts, ceilings, strict=True)
            if any(count > ceiling for count, ceiling in [*pairs][0 if BYTECODES else 1 :]):
                over[kind, case] = counts, ceilings
    assert over == {}
    assert found["`Lock`"]["kept_files"] <= FILES
