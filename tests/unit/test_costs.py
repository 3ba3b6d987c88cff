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
        "kept": (3_070, 105, 17),
        "new": (3_350, 123, 19),
        "handed": (4_420, 174, 19),
        "woken": (12_740, 546, 46),
        "renewed": (970, 38, 3),
    },
    "`ReentrantLock`": {
        "kept": (3_380, 116, 20),
        "new": (4_040, 143, 26),
        "handed": (11_240, 786, 21),
        "woken": (8_530, 345, 38),
        "renewed": (1_680, 78, 5),
    },
    "`FairLock`": {
        "kept": (3_120, 105, 17),
        "new": (3_390, 123, 19),
        "handed": (5_710, 236, 23),
        "woken": (12_560, 530, 47),
        "renewed": (2_320, 86, 5),
    },
    "`MultiLock` of 3 names": {
        "kept": (3_130, 107, 17),
        "new": (4_430, 160, 22),
        "handed": (4_440, 174, 19),
        "woken": (14_780, 550, 46),
        "renewed": (1_760, 79, 5),
    },
    "`Semaphore`": {
        "kept": (3_060, 105, 17),
        "new": (3_440, 125, 19),
        "handed": (5_770, 221, 22),
        "woken": (12_620, 528, 46),
        "renewed": (1_750, 81, 5),
    },
    "fair `Semaphore`": {
        "kept": (3_110, 105, 17),
        "new": (3_450, 125, 19),
        "handed": (7_150, 291, 25),
        "woken": (12_730, 536, 46),
        "renewed": (1_710, 79, 5),
    },
    "`Limits` of 2 keys": {
        "kept": (3_180, 108, 17),
        "new": (4_140, 152, 22),
        "handed": (7_140, 292, 26),
        "woken": (12_800, 542, 49),
        "renewed": (1_900, 85, 5),
    },
    "`RWLock.writer`": {
        "kept": (3_210, 109, 17),
        "new": (4_430, 162, 30),
        "handed": (5_780, 221, 22),
        "woken": (14_670, 565, 48),
        "renewed": (1_910, 87, 5),
    },
    "`RWLock.reader`": {
        "kept": (3_130, 106, 17),
        "new": (4_370, 159, 30),
        "woken": (13_280, 563, 47),
        "renewed": (1_730, 80, 5),
    },
    "`RangeLock.writer`": {
        "kept": (3_170, 109, 17),
        "new": (4_430, 155, 24),
        "handed": (5_770, 220, 23),
        "woken": (12_720, 536, 49),
        "renewed": (1_730, 80, 5),
    },
    "`Leadership`": {
        "kept": (3_860, 150, 17),
        "new": (4_770, 187, 24),
        "handed": (5_840, 247, 23),
        "woken": (14_180, 576, 47),
        "renewed": (1_740, 80, 5),
    },
    "`Redlock` of 3 masters": {
        "kept": (10_580, 381, 55),
        "new": (12_640, 509, 60),
        "handed": (13_530, 514, 59),
        "woken": (42_610, 1666, 171),
        "renewed": (5_230, 227, 18),
    },
}
"""Bytecodes, calls and objects of ours, of each kind and case.

Where tasks wait, and of renewals, the counts differ by up to a third from run to run; else by less than a
hundredth.
"""
HIT = (1_410, 51)
"""Bytecodes and calls of an acquire that a session serves from what it keeps (`cache=`), and its release."""
FILES = 23
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


def test_a_hit_costs_no_more_than_its_ceiling() -> None:
    program = """
import asyncio, benchmarks.counted as counted
from aiolocks import Lock, Session
from aiolocks.testing import EmbeddedServer

async def uses(lock, times):
    for _ in range(times):
        async with lock:
            pass

async def main():
    async with EmbeddedServer() as server, server.client() as client, Session(client) as session:
        lock = Lock(session, "a", cache=5)
        await uses(lock, 5)
        with counted.counting_code():
            await uses(lock, 2)
        sent = session.statistics().commands_sent
        with counted.counting_code() as code:
            await uses(lock, 10)
        print(code.bytecodes / 10, code.frames / 10, session.statistics().commands_sent - sent)

asyncio.run(main())
"""
    run = subprocess.run(
        [sys.executable, "-c", program], check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    bytecodes, frames, sent = map(float, run.stdout.split())
    assert sent == 0
    assert 20 < frames <= HIT[1]
    if BYTECODES:
        assert 500 < bytecodes <= HIT[0]


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
