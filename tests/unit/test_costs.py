"""What a use of each kind of lock runs of the library: ceilings, which only fall.

Who makes the library cheaper lowers them. `python -m benchmarks counts` prints the counts, and
`docs/reference/benchmark-workloads.md` has them.
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
        "kept": (2_330, 59, 6),
        "new": (2_540, 72, 9),
        "handed": (3_620, 116, 8),
        "woken": (9_040, 277, 21),
        "renewed": (1_320, 47, 3),
    },
    "`ReentrantLock`": {
        "kept": (2_860, 74, 9),
        "new": (3_480, 97, 15),
        "handed": (4_490, 157, 10),
        "woken": (5_860, 156, 15),
        "renewed": (1_360, 48, 3),
    },
    "`FairLock`": {
        "kept": (2_470, 59, 6),
        "new": (2_700, 73, 9),
        "handed": (5_110, 175, 11),
        "woken": (9_640, 290, 21),
        "renewed": (1_630, 54, 3),
    },
    "`MultiLock` of 3 names": {
        "kept": (2_510, 61, 6),
        "new": (3_870, 114, 12),
        "handed": (3_930, 123, 8),
        "woken": (10_020, 296, 22),
        "renewed": (1_390, 48, 3),
    },
    "`Semaphore`": {
        "kept": (2_370, 59, 6),
        "new": (2_650, 75, 9),
        "handed": (5_180, 166, 11),
        "woken": (9_350, 285, 21),
        "renewed": (1_340, 48, 3),
    },
    "fair `Semaphore`": {
        "kept": (2_470, 59, 6),
        "new": (2_760, 75, 9),
        "handed": (6_510, 224, 13),
        "woken": (9_730, 294, 21),
        "renewed": (1_370, 48, 3),
    },
    "`Limits` of 2 keys": {
        "kept": (2_530, 61, 6),
        "new": (3_570, 105, 12),
        "handed": (6_500, 226, 13),
        "woken": (9_750, 296, 22),
        "renewed": (1_380, 48, 3),
    },
    "`RWLock.writer`": {
        "kept": (2_530, 63, 6),
        "new": (3_870, 114, 20),
        "handed": (5_310, 167, 11),
        "woken": (10_580, 319, 22),
        "renewed": (1_350, 48, 3),
    },
    "`RWLock.reader`": {
        "kept": (2_450, 60, 6),
        "new": (3_790, 112, 20),
        "woken": (9_580, 288, 21),
        "renewed": (1_360, 48, 3),
    },
    "`RangeLock.writer`": {
        "kept": (2_540, 63, 6),
        "new": (3_850, 107, 14),
        "handed": (5_310, 167, 11),
        "woken": (9_600, 287, 22),
        "renewed": (1_350, 49, 3),
    },
    "`Leadership`": {
        "kept": (3_380, 104, 8),
        "new": (4_290, 140, 15),
        "handed": (5_290, 188, 11),
        "woken": (10_690, 347, 24),
        "renewed": (1_360, 48, 3),
    },
    "`Redlock` of 3 masters": {
        "kept": (8_500, 267, 28),
        "new": (10_530, 388, 35),
        "handed": (10_400, 346, 32),
        "woken": (37_630, 1_191, 101),
        "renewed": (4_850, 171, 12),
    },
}
"""Bytecodes, calls and objects of ours, of each kind and case.

Where tasks wait, and of renewals, the counts differ by up to a third from run to run; else by less than a
hundredth.
"""
HIT = (790, 20)
"""Bytecodes and calls of an acquire that a session serves from what it keeps (`cache=`), and its release."""
RENEWAL = (1_390, 37)
"""Bytecodes and calls of a renewal with which no other is due, where the server tells of changes."""
HELD = 2.7
"""KiB of a lease without a body, with its lock."""
SHARED = {
    "`Combiner.submit`": (4_500, 160, 2),
    "`SingleFlight.do`": (4_650, 172, 2),
    "`UniqueJob.run`": (2_950, 95, 2),
    "`UniqueJob.run`, all wait": (2_920, 95, 2),
}
"""Bytecodes, calls and requests of a use of which no other session wants anything."""
FILES = 12 + 2
"""Of the package, those that an acquire and release of a `Lock` runs through, and two of a timer of the guard
that may fall into the run."""


def printed(program: str) -> str:
    """What it prints, in a process of its own: the counter counts all that the process runs."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout


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
    printed(program)


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
    bytecodes, frames, sent = map(float, printed(program).split())
    assert sent == 0
    assert 10 < frames <= HIT[1]
    if BYTECODES:
        assert 500 < bytecodes <= HIT[0]


def test_a_renewal_alone_costs_no_more_than_its_ceiling() -> None:
    program = """
import asyncio, benchmarks.counted as counted
from aiolocks import Lock, Session
from aiolocks.testing import EmbeddedServer

async def main():
    async with EmbeddedServer() as server, server.client() as client, Session(client) as session:
        async with Lock(session, "a", ttl=0.6) as lease:
            async def renewals(seconds):
                await asyncio.sleep(seconds)
                while lease._possession.watch.renewal is not None:
                    await asyncio.sleep(0)
                return session._engine._transport.commands_sent / 2  # that the server is to tell is a command

            await renewals(0.5)
            with counted.counting_code():
                before = await renewals(0.5)
            with counted.counting_code() as code:
                number = await renewals(2) - before
            print(code.bytecodes / number, code.frames / number, number)

asyncio.run(main())
"""
    bytecodes, frames, number = map(float, printed(program).split())
    assert number > 3
    assert 20 < frames <= RENEWAL[1]
    if BYTECODES:
        assert 500 < bytecodes <= RENEWAL[0]


def test_a_held_lease_takes_no_more_memory_than_its_ceiling() -> None:
    program = """
import asyncio, gc, tracemalloc
from aiolocks import Lock, Session
from aiolocks.testing import EmbeddedServer

async def hold(session, name):
    return [await Lock(session, f"{name}{number}", ttl=300).acquire() for number in range(1_000)]

async def main():
    async with EmbeddedServer() as server, server.client() as client, Session(client) as session:
        first = await hold(session, "first")
        gc.collect()
        tracemalloc.start()
        leases = await hold(session, "then")
        await asyncio.sleep(0.5)  # the server was asked to tell of changes of each
        gc.collect()
        print(tracemalloc.get_traced_memory()[0] / len(leases) / 1024)
        for lease in first + leases:
            lease.detach()

asyncio.run(main())
"""
    kibibytes = float(printed(program))
    assert 1 < kibibytes <= HELD, kibibytes


def test_work_that_sessions_share_costs_no_more_than_its_ceiling() -> None:
    program = """
import asyncio, json, benchmarks.counted as counted
from aiolocks import Combiner, Session, SingleFlight, UniqueJob
from aiolocks.testing import EmbeddedServer

async def run(batch):
    return len(batch.items)

async def value():
    return 1

async def job(**options):
    async with options.pop("of").run(**options):
        pass

async def main():
    found = {}
    async with EmbeddedServer() as server, server.client() as client, Session(client) as session:
        combiner, flight, unique = Combiner(session, "a"), SingleFlight(session), UniqueJob(session, "a")
        uses = {
            "`Combiner.submit`": lambda: combiner.submit(1, run),
            "`SingleFlight.do`": lambda: flight.do("a", value),
            "`UniqueJob.run`": lambda: job(of=unique),
            "`UniqueJob.run`, all wait": lambda: job(of=unique, waiting=None),
        }
        for name, use in uses.items():
            for _ in range(5):
                await use()
            with counted.counting_code():
                await use()
            sent = session.statistics().commands_sent
            with counted.counting_code() as code:
                for _ in range(10):
                    await use()
                    while session._engine.in_progress:  # its tasks end a moment later
                        await asyncio.sleep(0)
            found[name] = [code.bytecodes / 10, code.frames / 10]
            found[name].append((session.statistics().commands_sent - sent) / 10)
    print(json.dumps(found))

asyncio.run(main())
"""
    found = json.loads(printed(program))
    assert found.keys() == SHARED.keys()
    for name, (bytecodes, calls, requests) in found.items():
        most_bytecodes, most_calls, most_requests = SHARED[name]
        assert requests <= most_requests + 0.1, name  # a renewal may fall into it
        assert 20 < calls <= most_calls, name
        if BYTECODES:
            assert 500 < bytecodes <= most_bytecodes, (name, bytecodes)


@pytest.mark.whole
def test_a_hand_over_costs_the_same_among_four_times_as_many_tasks() -> None:
    """Where a queue is searched, it would cost up to four times as much."""
    program = """
import asyncio, json, benchmarks.counted as counted
from aiolocks import Session
from aiolocks.testing import EmbeddedServer
from benchmarks.workloads.costs import KINDS

async def use(lock):
    async with lock:
        pass

async def main():
    found = {}
    async with EmbeddedServer() as server, server.client() as client, Session(client) as session:
        for name, kind in KINDS.items():
            if kind.other is not None or kind.masters > 1:
                continue
            lock, counts = kind.make(session, "few", ttl=30), []
            for tasks in (25, 25, 100, 100):
                with counted.counting_code() as code:
                    await asyncio.gather(*(use(lock) for _ in range(tasks)))
                counts.append((code.bytecodes / tasks, code.frames / tasks))
            found[name] = counts[1], min(counts[2:])  # a timer of all waiters may fall into one
    print(json.dumps(found))

asyncio.run(main())
"""
    found = json.loads(printed(program))
    assert found.keys() == {name for name in CEILINGS if "handed" in CEILINGS[name]} - {
        "`Redlock` of 3 masters"
    }
    for name, (few, many) in found.items():
        assert few[1] > 10, name
        for one, four_times in zip(few, many, strict=True):
            assert four_times <= 1.1 * one, (name, few, many)


@pytest.mark.whole
def test_a_use_costs_the_same_beside_four_times_as_many_leases() -> None:
    """Of a lock that is kept or made each time, of a hit, of a wait that another session ends, and of a
    renewal: what a session holds beside it is not looked at."""
    program = """
import asyncio, json, benchmarks.counted as counted
from aiolocks import Lock, Session
from aiolocks.testing import EmbeddedServer
from benchmarks.workloads.costs import HOLD, TTL, Renewed

async def uses(make, times):
    for _ in range(times):
        async with make():
            pass

async def woken(own, other, times):
    for _ in range(times):
        async with other:
            waiting = asyncio.create_task(own.acquire())
            await asyncio.sleep(HOLD)
        await (await waiting).release()

async def count(do, times, each=1):
    await do(5)
    with counted.counting_code() as code:
        await do(times)
    return code.bytecodes / times / each, code.frames / times / each

async def main():
    found = {}
    async with EmbeddedServer() as server, server.client() as client, server.client() as another:
        for beside in (25, 100):
            renewed = Renewed()
            async with (
                Session(client, prefix=f"{beside}", listeners=[renewed]) as session,
                Session(another, prefix=f"{beside}") as elsewhere,
            ):
                async def held(ttl):
                    locks = [Lock(session, f"held {number}", ttl=ttl) for number in range(beside)]
                    return [await lock.acquire() for lock in locks]

                leases = await held(300)
                await asyncio.sleep(0.5)  # the server was asked to tell of changes of each
                kept, cached, other = Lock(session, "a"), Lock(session, "b", cache=5), Lock(elsewhere, "a")
                for name, do in {
                    "kept": lambda times: uses(lambda: kept, times),
                    "hit": lambda times: uses(lambda: cached, times),
                    "new": lambda times: uses(lambda: Lock(session, "c"), times),
                    "woken": lambda times: woken(kept, other, times),
                }.items():
                    found.setdefault(name, []).append(await count(do, 20))
                for lease in leases:
                    await lease.release()
                leases = await held(TTL)
                of_all = await count(lambda times: renewed.times(times * beside), 5, each=beside)
                found.setdefault("renewed", []).append(of_all)
                for lease in leases:
                    await lease.release()
    print(json.dumps(found))

asyncio.run(main())
"""
    found = json.loads(printed(program))
    for name, (few, many) in found.items():
        assert few[1] > 10, name
        for one, four_times in zip(few, many, strict=True):
            assert four_times <= 1.1 * one, (name, few, many)


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
            # A timer that falls into a few of a hundred uses may make an object, too.
            pairs = zip((*counts[:2], round(counts[2], 1)), ceilings, strict=True)
            if any(count > ceiling for count, ceiling in [*pairs][0 if BYTECODES else 1 :]):
                over[kind, case] = counts, ceilings
    assert over == {}
    assert found["`Lock`"]["kept_files"] <= FILES
