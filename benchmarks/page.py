"""The two pages of results: every figure in them comes from a report.

The first page has the figures that a reader looks for, and how they are measured; the second page has the
table of each workload.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from . import summary
from .markdown import table
from .model import Figure, Report, Result
from .plots import pictures
from .rows import NONE, judgement, sheet

_NOT_SEARCHED = """\
---
search:
  exclude: true
---
"""

_INTRODUCTION = """\
This page has the speed of aiolocks, and its costs for client and server. `python -m benchmarks` has
measured each figure on one machine, with private servers on the same machine, and has written this page.

Some figures depend more on the machine than others. The most reliable figures come first:

- **Counts**: [requests](benchmark-workloads.md#costs), and [what a use runs](benchmark-workloads.md#counts)
  of the library. They are the same on each machine and at each time, and tests fail if they are above their
  ceilings.
- **Ratios of processor time**, between contenders that took turns in one run. They differ little from machine
  to machine, and depend little on other work of the machine.
- **Ratios of wall time** in one run. This machine has two cores, and shares them with others: these ratios
  differ by a tenth from run to run. They say which library is faster, but not by how many per cent.
- **Times and throughputs** are figures of this machine, on this day.
"""

_COMMAND = "python -m benchmarks --docs docs"
"""All of it, again."""

_SUMMARY = """\
The column behind that of a server has the figures of redis-py's `Lock` on the same server. It polls, has no
fencing token, and does not renew its lease. *All* means that some of its tasks never got the lock. A dash
stands where there is nothing to compare, and where one server was enough.
"""

_READING = """\
## How each figure is measured

[Each workload](benchmark-workloads.md) has a table. On each server it is measured in one run, in which the
contenders take turns; a figure is the median of its rounds. Contenders that are slow, or far from all others,
have two rounds. In addition to aiolocks and other libraries, there is the *floor*: the same work with only
the driver or the timer. No lock can be faster than that in this way.

In `fair`, `semaphore`, `rw` and `range` the floor is the same work without any other task. In `cluster` it is
the same work on one server. `fair`, `semaphore`, `rw`, `range`, `alone` and `lock-or-watch` consist of single
round trips, and the server has a separate core.
"""

_WORKLOADS = """\
This page has the table of each workload of `python -m benchmarks`. The page
[Benchmarks](benchmarks.md#how-each-figure-is-measured) tells how and on which machine the figures were
measured, what the floor is, and how the other libraries are used.

The column of a server has the median of the rounds, with their minimum and maximum in brackets. `÷ floor` is
that median divided by that of the floor, and `÷ redis-py` divided by that of redis-py. `target` is what
aiolocks is meant to reach, and `reached` what it reached on each server. A dash means that there is nothing
to compare. A workload in which the server makes no difference was measured on one server. Each text ends with
the day of the measurement, and how long it took.
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


def text(report: Report) -> str:
    """The first page: the summary, and the targets that were missed."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield "# Benchmarks\n"
    yield _INTRODUCTION
    headings, *lines = summary.lines(report)
    yield from table(headings, lines)
    yield _SUMMARY
    yield _READING
    yield from table(("", ""), [fact for fact in report.machine.items() if fact[0] != "Date"])
    yield f"```sh\n{_COMMAND}\n```\n"
    yield "## Targets\n"
    yield from _paragraphs(judgement(report))
    yield _PEERS


def workloads(report: Report, here: Path, plots: Path) -> str:
    """The second page, for this directory; the pictures are in the other one."""
    parts = [_NOT_SEARCHED, "# Benchmarks: each workload\n", _WORKLOADS]
    for results in report.by_title.values():
        parts.extend(_workload(results, here, plots))
    return "\n".join(parts)


def _paragraphs(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line if line.startswith("-") else f"{line}\n"
    yield ""


def _workload(results: Sequence[Result], here: Path, plots: Path) -> Iterator[str]:
    """A section."""
    first = results[0]
    yield f"## {first.title}\n"
    work = first.work[0].upper() + first.work[1:]
    floor = "" if first.floor == "none" else f" Floor: {first.floor}."
    one_server = f" On one server: {first.one_server}." if first.one_server else ""
    dates = " and ".join(dict.fromkeys(result.date for result in results))
    seconds = sum(result.seconds for result in results)
    yield f"{work}.{floor}{one_server} ({dates}, {seconds:.0f} s)\n"
    if first.name in _OF_KINDS:
        for result in results:
            if len(results) > 1:
                yield f"On {result.server}:\n"
            yield from _OF_KINDS[first.name](result)
        return
    found = sheet(results)
    yield from table(found.headings, found.lines)
    for name, _ in pictures(results):
        yield f"![{first.title}]({os.path.relpath(plots / name, here)})\n"


def _costs(result: Result) -> Iterator[str]:
    """A line for each kind of lock."""
    kinds = [
        (standing.contender, *(median(result, standing.contender, figure) for figure in result.figures))
        for standing in result.standings
    ]
    yield from table(("", *(figure.label for figure in result.figures)), kinds)


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


def _profile(result: Result) -> Iterator[str]:
    """A line for each part of a cycle."""
    parts = [
        (figure.label, *(median(result, standing.contender, figure) for standing in result.standings))
        for figure in result.figures
    ]
    yield from table(("", *(standing.contender for standing in result.standings)), parts)


def median(result: Result, contender: str, figure: Figure) -> str:
    """A cell: the median, or a dash."""
    found = result.median(contender, figure.key)
    return NONE if found is None else f"{found:.{figure.digits}f}"


_OF_KINDS: dict[str, Callable[[Result], Iterator[str]]] = {
    "counts": _counts,
    "costs": _costs,
    "profile": _profile,
}
"""Workloads whose table has a line for each kind of lock, or for each part of a cycle."""
