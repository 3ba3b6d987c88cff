"""The page of results: every figure in it comes from a report."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from .model import Report, Result
from .plots import pictures
from .rows import HEADINGS, rows, summary

_INTRODUCTION = """\
This page is made by the benchmark itself. Ratios hold from machine to machine: to the *floor*, which is the
same work done with nothing but the driver or the timer, and to the other libraries. All of a workload is
measured in one run, on a private server, in alternating rounds; a figure is the median of its rounds. In
`fair`, `semaphore`, `rw` and `range` the floor is the same with nobody else present. In these, in `alone` and
in `lock-or-watch`, which are made of single round trips, the server has a core of its own.
"""

_PEERS = """\
## How the peers are used

- All reach the same server in the same way, with hiredis, a ttl of 30 s (in `crash`, 1 s) and connections
  that were opened before the measurement. The pools have room for all who wait, since redis-py's default of
  100 connections raises with more; those of coredis and cashews share fewer and wait for a free one.
- `redis-py` is its `Lock` as it comes, polling every 100 ms; `redis-py, 10 ms` is the same with `sleep=0.01`.
- `pottery` is `AIORedlock` on one server, as it comes, polling after up to 200 ms.
- `coredis, 10 ms` is its `Lock` with `sleep=0.01`; as it comes it polls every 100 ms, as redis-py does.
- `python-redis-lock` blocks, so that each waiter has a thread and a connection.
- `cashews` is the lock of its Redis backend, as it comes, polling without a pause.
- No peer has fencing tokens, and none renews a lock unless it is told to.
- `fair`, `semaphore`, `rw` and `range` have no peer: all of these have locks for one holder, and none
  promises first come, first served. The number of the others should make no difference there.
- Left out: aioredlock (it needs aioredis 1, superseded in 2021, and gives up instead of waiting) and
  aiocache's `RedLock` (by its own documentation not for mutual exclusion).
"""


def write(report: Report, path: Path, *, plots: Path | None) -> None:
    """Writes the page; with the pictures, if they were drawn."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(_lines(report, path.parent, plots)))


def _lines(report: Report, here: Path, plots: Path | None) -> Iterator[str]:
    yield "# Benchmarks\n"
    yield _INTRODUCTION
    yield from _table(("", ""), list(report.machine.items()))
    yield f"```sh\n{report.command}\n```\n"
    yield from _paragraphs(summary(report))
    for result in report.results:
        yield from _workload(result, here, plots)
    yield _PEERS


def _paragraphs(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line if line.startswith("-") else f"{line}\n"
    yield ""


def _workload(result: Result, here: Path, plots: Path | None) -> Iterator[str]:
    yield f"## {result.title}\n"
    work = result.work[0].upper() + result.work[1:]
    yield f"{work}. Floor: {result.floor}. It took {result.seconds:.0f} s.\n"
    yield from _table(HEADINGS[1:], [row.all_cells[1:] for row in rows(result)])
    if plots is not None:
        for name, _ in pictures(result):
            yield f"![{result.title}]({os.path.relpath(plots / name, here)})\n"


def _table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    yield _line(headings)
    yield _line(["---"] * len(headings))
    yield from map(_line, lines)
    yield ""


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
