"""The tables of kinds, their properties and their permissions: `python -m tests.docs.matrix` writes
docs/reference/index.md.

The properties come from the registry of kinds, from their classes and from the measured requests. Only the
words of a row are typed: here, or in the module of `tests/kinds` that has the kind (`ROW`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from redis.asyncio import Redis

import aiolocks
from aiolocks import Session
from aiolocks.kinds.spans import SpanSteps
from aiolocks.lock.acquirable import Acquirable
from aiolocks.transport.steps.family import kinds
from benchmarks.docs import results
from benchmarks.model import Report
from tests.kinds import declared

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/index.md"
YES, NO, NONE = "yes", "no", "-"
PERMISSIONS = "#permissions"


class Row(NamedTuple):
    """A kind.

    Attributes:
        name: Its class.
        at_a_time: Who may hold a name at the same time, or what is done once.
        make: Makes one, if it is acquired.
        measured: What the benchmarks call it.
        gives: The class of what its function or block gets, if it is not acquired.
        in_order: Whether it serves in the order of asking, if it is not acquired.
    """

    name: str
    at_a_time: str
    make: Callable[[Session], Acquirable[Any]] | None = None
    measured: str = ""
    gives: str = ""
    in_order: bool = False


ROWS = [
    Row("Lock", "one holder", lambda s: aiolocks.Lock(s, "n"), "`Lock`"),
    Row(
        "ReentrantLock",
        "one owner, any number of times",
        lambda s: aiolocks.ReentrantLock(s, "n"),
        "`ReentrantLock`",
    ),
    Row(
        "MultiLock",
        "one holder of several names",
        lambda s: aiolocks.MultiLock(s, ["n"]),
        "`MultiLock` of 3 names",
    ),
    Row("FairLock", "one holder", lambda s: aiolocks.FairLock(s, "n"), "`FairLock`"),
    Row("Semaphore", "as many as there are permits", lambda s: aiolocks.Semaphore(s, "n", 1), "`Semaphore`"),
    Row(
        "Limits",
        "as many as each key allows",
        lambda s: aiolocks.Limits(s, "n", {"k": 1}),
        "`Limits` of 2 keys",
    ),
    Row("RWLock", "readers, or one writer", lambda s: aiolocks.RWLock(s, "n").writer, "`RWLock.writer`"),
    Row(
        "RangeLock",
        "the same, on each interval",
        lambda s: aiolocks.RangeLock(s, "n").writer(0, 1),
        "`RangeLock.writer`",
    ),
    Row(
        "Redlock",
        "one holder, kept by a majority of servers",
        lambda s: aiolocks.Redlock([Redis(port=port) for port in (1, 2, 3)], "n"),
        "`Redlock` of 3 masters",
    ),
    Row("Leadership", "one leader", lambda s: aiolocks.Leadership(s, "n"), "`Leadership`"),
    Row("Schedule", "each tick is run once", gives="Tick"),
    Row("SingleFlight", "a key is computed once"),
    Row("Combiner", "one batch of what was left", gives="Batch"),
    Row("UniqueJob", "a job of a key is queued or run once", gives="JobLease"),
    Row("Turnstile", "one caller of a crowd", gives="Turn"),
    Row("RateLimit", "so many requests in so many seconds", in_order=True),
    Row("Latch", "all who wait, once it is open"),
    Row("FencedRegister", "no write is later than a newer one"),
    *(Row(*row) for row in declared("ROW")),
]
HEADINGS = (
    "kind",
    "at a time",
    "a name excludes",
    "order of asking",
    "fencing token",
    "renewed",
    "reentrant",
    "in a cluster",
    "`replicas=`",
    "on several servers",
    "requests",
    "permissions",
)


def text() -> str:
    """The page, with the tables between their marks."""
    page = PAGE.read_text("utf-8")
    for name, rows in {"kinds": _cells(), "permissions": _permissions()}.items():
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        lines = ["", *(f"| {' | '.join(cells)} |" for cells in rows), "", ""]
        page = before + begin + "\n".join(lines) + end + after
    return page


def _permissions() -> Iterator[tuple[str, ...]]:
    yield ("kind", "append")
    yield ("---", "---")
    by_needs: dict[tuple[str, ...], list[str]] = {}
    for kind in kinds().values():
        if kind.needs:
            by_needs.setdefault(kind.needs, []).append(f"`{kind.title}`")
    for needs, titles in by_needs.items():
        yield (", ".join(titles), f"`{' '.join(f'+{word}' for word in sorted(needs))}`")


def _cells() -> Iterator[tuple[str, ...]]:
    yield HEADINGS
    yield ("---",) * len(HEADINGS)
    asked = asyncio.run(_all_asked())
    requests = _requests()
    registered = {kind.title: kind for kind in kinds().values()}
    spaces = {title: kind.of or kind.name for title, kind in registered.items()}
    for row in ROWS:
        taken = inspect.signature(getattr(aiolocks, row.name)).parameters
        here = asked[row.name]
        needs = len(registered[row.name].needs)
        yield (
            f"[`{row.name}`]({_page_of(row.name)})",
            row.at_a_time,
            ", ".join(f"`{one.name}`" for one in ROWS if spaces[one.name] == spaces[row.name]),
            "with `fair=True`" if "fair" in taken else _yes(here.in_order),
            _yes(here.has_token),
            _yes("ttl" in taken),
            _yes("owner" in taken),
            _yes(row.name != "Redlock"),
            _yes("replicas" in taken),
            _yes(row.name == "Redlock"),
            requests.get(row.measured, NONE),
            f"[+ {needs}]({PERMISSIONS})" if needs else NONE,
        )


def _page_of(name: str) -> str:
    """The page of the reference, and the section of the kind; `Lock` is the whole page."""
    pages = PAGE.parent.glob("*.md")
    (page,) = [page for page in pages if f"::: aiolocks.{name}\n" in page.read_text("utf-8")]
    return page.name if name == "Lock" else f"{page.name}#{name.lower()}"


def _yes(true: bool) -> str:
    return YES if true else NO


class Asked(NamedTuple):
    """What a kind says in a session."""

    in_order: bool
    has_token: bool


async def _all_asked() -> dict[str, Asked]:
    async with Session(Redis(), prefix="p") as session:  # there is no I/O
        return {row.name: _asked(row, session) for row in ROWS}


def _asked(row: Row, session: Session) -> Asked:
    if row.make is None:
        return Asked(row.in_order, hasattr(getattr(aiolocks, row.gives, None), "fencing_token"))
    resource = row.make(session)._resource(aiolocks.Lock(session, "n")._engine())
    in_order = resource.policy.strict or isinstance(resource.steps, SpanSteps)
    return Asked(in_order, has_token=True)  # each of its leases has one


def _requests() -> dict[str, str]:
    """Of acquire and release, where nobody else wants the lock."""
    costs = Report.load(results(ROOT / "docs")).by_title["costs"][0]
    first = costs.figures[0].key
    return {one.contender: f"{one.figures[first].median:.0f}" for one in costs.standings}


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
