"""Runs many schedules of every sort, in one process or in several, and counts.

python -m tests.simulation.world.many                     100 of each sort, with faults and without
python -m tests.simulation.world.many --each 2500 --jobs  in as many processes as there are cores
python -m tests.simulation.world.many lock --digest       a digest of the traces, to compare two machines
python -m tests.simulation.world.many --write             puts the table into docs/reference/test-results.md
python -m tests.simulation.world.many lock --write        the rows of one kind, the others stay as they are

It goes in rounds, of a piece of every sort, and writes after each: a run that is interrupted has come
as far with every sort.

Exits with 1 if a schedule fails.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce

from .kinds import KINDS
from .run import Runner
from .schedule import drawn
from .shrink import command
from .table import lines, number, put

FIRST = 2_000_000
"""The first seed."""
PIECE = 50
"""The number of schedules that a process is given at a time."""


@dataclass(frozen=True)
class Count:
    """The result of some schedules of one sort.

    Attributes:
        steps: Turns of loops, and requests that servers have answered.
        faults: That were drawn.
        seconds: Of CPU.
        failures: A line for each that failed: what runs it again, and why.
        digest: Of their traces, if it was asked for.
    """

    kind: str
    faulty: bool
    schedules: int = 0
    steps: int = 0
    faults: int = 0
    seconds: float = 0.0
    failures: tuple[str, ...] = ()
    digest: str = ""

    def and_(self, other: Count) -> Count:
        return replace(
            self,
            schedules=self.schedules + other.schedules,
            steps=self.steps + other.steps,
            faults=self.faults + other.faults,
            seconds=self.seconds + other.seconds,
            failures=self.failures + other.failures,
            digest=_hashed(self.digest, other.digest),
        )

    @property
    def sort(self) -> str:
        """The first words of its line."""
        return f"{self.kind}, with faults" if self.faulty else self.kind

    @classmethod
    def read(cls, line: str) -> Count:
        """From a line of the table: of failures, only their number."""
        sort, schedules, steps, faults, seconds, _, failed = (cell.strip() for cell in line.split("|")[1:-1])
        kind, _, faulty = sort.partition(", ")
        numbers = (int(cell.replace(" ", "")) for cell in (schedules, steps, faults, seconds))
        return cls(kind, bool(faulty), *numbers, failures=("",) * int(failed))

    def __str__(self) -> str:
        """As a line of the table."""
        rate = self.schedules / max(self.seconds, 1e-9)
        cells = [self.sort, *map(number, (self.schedules, self.steps, self.faults))]
        cells += [f"{self.seconds:.0f}", f"{rate:.0f}"]
        return "| " + " | ".join([*cells, str(len(self.failures))]) + " |"


HEAD = (
    "| sort | schedules | steps | faults | CPU seconds | schedules a second | failed |",
    "|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True)
class Piece:
    """Some schedules of one sort: those of these seeds."""

    kind: str
    faulty: bool
    first: int
    end: int
    digest: bool = False


def count(piece: Piece) -> Count:
    """Runs them."""
    steps, faults, failures, digest = 0, 0, [], ""
    with Runner() as runner:
        began = time.process_time()
        for seed in range(piece.first, piece.end):
            outcome = runner.run(drawn(piece.kind, seed, faulty=piece.faulty))
            steps += outcome.steps
            faults += len(outcome.schedule.faults)
            if outcome.failed:
                failures.append(f"{command(outcome.schedule)}: {outcome.violations[0]}")
            if piece.digest:
                digest = _hashed(digest, outcome.trace.text(whole=True))
        seconds = time.process_time() - began
    number = piece.end - piece.first
    return Count(piece.kind, piece.faulty, number, steps, faults, seconds, tuple(failures), digest)


def _hashed(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] if any(texts) else ""


def rounds(
    kinds: Sequence[str], each: int, *, first: int = FIRST, digest: bool = False
) -> Iterator[list[Piece]]:
    """`each` schedules of each sort, with faults and without: a piece of each, then the next of each."""
    for start in range(first, first + each, PIECE):
        end = min(start + PIECE, first + each)
        yield [Piece(kind, faulty, start, end, digest) for kind in kinds for faulty in (False, True)]


def counted(work: Sequence[Sequence[Piece]], jobs: int) -> Iterator[list[Count]]:
    """The result of each sort, after each round; in `jobs` processes."""
    results = _results([piece for one in work for piece in one], jobs)
    sums: list[Count] = []
    for pieces in work:
        done = [next(results) for _ in pieces]
        sums = [before.and_(one) for before, one in zip(sums, done, strict=True)] if sums else done
        yield sums


def _results(work: list[Piece], jobs: int) -> Iterator[Count]:
    if jobs == 1:
        yield from map(count, work)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(count, work)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.world.many")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"{', '.join(KINDS)}; all by default")
    parser.add_argument("--each", type=int, default=100, help="schedules of each sort")
    parser.add_argument("--first", type=int, default=FIRST, help="the first seed")
    parser.add_argument(
        "--jobs",
        type=int,
        nargs="?",
        default=1,
        const=os.cpu_count(),
        help="processes; alone: as many as cores",
    )
    parser.add_argument("--digest", action="store_true", help="show a digest of the traces of each sort")
    parser.add_argument("--write", action="store_true", help="put the table into the documentation")
    options = parser.parse_args()
    if unknown := set(options.kinds) - set(KINDS):
        parser.error(f"no such kind: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    began, failures, before = time.perf_counter(), [], lines("schedules")
    work = list(
        rounds(options.kinds or list(KINDS), options.each, first=options.first, digest=options.digest)
    )
    for sums in counted(work, options.jobs):
        new = [failure for one in sums for failure in one.failures if failure not in failures]
        failures += new
        total = reduce(Count.and_, sums, Count("all", faulty=False))
        if options.write:  # as far as it has come: it may be interrupted
            put("schedules", _table(options, sums, began, before))
        print(*new, f"{number(total.schedules)} schedules", sep="\n", flush=True)
    print(
        *HEAD, *(f"{one} {one.digest}".rstrip() for one in (*sums, total)), "", _how(options, began), sep="\n"
    )
    return bool(failures)


def _table(
    options: argparse.Namespace, sums: Sequence[Count], began: float, before: Sequence[str]
) -> list[str]:
    """The rows of the sorts that were run; where these were named, the rows of the others as they were."""
    how, rows = [_how(options, began)], {one.sort: str(one) for one in sums}
    if options.kinds:
        rows = {Count.read(line).sort: line for line in before[2:] if line.startswith("| ")} | rows
        rows.pop("all", None)
        how = [line for line in before if not line.startswith("|")]
        how += [f"{', '.join(options.kinds)} after a change: {_how(options, began)}"]
    total = reduce(Count.and_, map(Count.read, rows.values()), Count("all", faulty=False))
    return [*HEAD, *rows.values(), str(total), "", *how]


def _how(options: argparse.Namespace, began: float) -> str:
    minutes = (time.perf_counter() - began) / 60
    processes = f"{options.jobs} processes" if options.jobs > 1 else "one process"
    return f"This took {minutes:.0f} minutes, in {processes}. The seeds begin with {options.first}."


if __name__ == "__main__":
    raise SystemExit(main())
