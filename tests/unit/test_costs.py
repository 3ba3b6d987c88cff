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
        "kept": (4_160, 171, 19),
        "new": (4_450, 187, 21),
        "handed": (4_950, 207, 21),
        "woken": (15_090, 636, 49),
        "renewed": (1_250, 50, 3),
    },
    "`ReentrantLock`": {
        "kept": (4_500, 182, 21),
        "new": (5_240, 212, 28),
        "handed": (11_780, 819, 22),
        "woken": (10_490, 436, 42),
        "renewed": (2_250, 104, 7),
    },
    "`FairLock`": {
        "kept": (4_330, 180, 19),
        "new": (4_590, 195, 21),
        "handed": (6_300, 277, 24),
        "woken": (14_830, 648, 49),
        "renewed": (2_320, 105, 6),
    },
    "`MultiLock` of 3 names": {
        "kept": (4_240, 173, 19),
        "new": (5_580, 227, 24),
        "handed": (4_980, 207, 21),
        "woken": (15_000, 631, 49),
        "renewed": (2_230, 102, 6),
    },
    "`Semaphore`": {
        "kept": (4_290, 173, 19),
        "new": (4_620, 191, 21),
        "handed": (6_390, 263, 22),
        "woken": (15_150, 624, 49),
        "renewed": (2_240, 105, 6),
    },
    "fair `Semaphore`": {
        "kept": (4_370, 181, 19),
        "new": (4_690, 198, 21),
        "handed": (7_780, 336, 25),
        "woken": (15_300, 649, 49),
        "renewed": (2_240, 104, 6),
    },
    "`Limits` of 2 keys": {
        "kept": (4_420, 183, 20),
        "new": (5_770, 238, 25),
        "handed": (7_710, 336, 26),
        "woken": (15_000, 654, 51),
        "renewed": (2_240, 104, 6),
    },
    "`RWLock.writer`": {
        "kept": (4_360, 175, 20),
        "new": (6_320, 258, 33),
        "handed": (6_320, 258, 23),
        "woken": (14_670, 622, 51),
        "renewed": (2_220, 103, 6),
    },
    "`RWLock.reader`": {
        "kept": (4_360, 180, 19),
        "new": (6_310, 264, 32),
        "woken": (17_090, 665, 50),
        "renewed": (2_220, 103, 6),
    },
    "`RangeLock.writer`": {
        "kept": (4_360, 175, 20),
        "new": (6_260, 251, 27),
        "handed": (6_390, 260, 23),
        "woken": (15_260, 635, 51),
        "renewed": (2_230, 103, 6),
    },
    "`Leadership`": {
        "kept": (4_610, 201, 19),
        "new": (5_720, 250, 26),
        "handed": (6_470, 289, 24),
        "woken": (15_270, 679, 49),
        "renewed": (2_250, 104, 6),
    },
    "`Redlock` of 3 masters": {
        "kept": (13_220, 519, 58),
        "new": (15_330, 643, 68),
        "handed": (14_880, 589, 63),
        "woken": (52_150, 1996, 176),
        "renewed": (7_070, 307, 19),
    },
}
"""Bytecodes, calls and objects of ours, of each kind and case.

Where tasks wait, and of renewals, the counts differ by up to a third from run to run; else by less than a
hundredth.
"""
FILES = 41
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
