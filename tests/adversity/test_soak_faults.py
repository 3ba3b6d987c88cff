"""Faults and features, and how long each feature needs to go on: a table.

```console
$ pytest tests/adversity/test_soak_faults.py -m soak -n0 -s
```

In each row two processes have all features at work (`at_work`), and one fault strikes. A cell says after how
many seconds the feature made progress again, in both processes where it is for both; or what did not hold. A
row takes about ten seconds, and ``-k`` runs one again.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from aiolocks.testing import EmbeddedServer
from tests.adversity.at_work import (
    FEATURES,
    KEPT,
    PERMITS,
    REDLOCK,
    TTL,
    WINDOW,
    read,
    work,
)
from tests.adversity.tools import repeating
from tests.adversity.troubles import TROUBLES, is_loading
from tests.conftest import Connect, Surroundings, open_server
from tests.support.clusters import Cluster
from tests.support.history import Hold, Violation, exclusion, semaphore
from tests.support.processes import Worker, Workers
from tests.support.proxy import Proxy
from tests.support.sentinels import Watched
from tests.support.servers import ServerKind
from tests.support.skew import Clock, SkewedServer, skewed_executable
from tests.support.waiting import eventually

BOUND = TTL + 4.0
"""Seconds after which every feature goes on: a ttl, and what connecting and a busy machine may take."""
CALM = 1.0
"""Seconds for which they are looked at when all have gone on."""
BY_ANYBODY = {"Lock, held", "Leadership", "Schedule", "Turnstile"}
"""Features that are at work in one of the processes at a time."""
FIRST, SECOND = "1", "2"


# -- where it strikes ----------------------------------------------------------------------------------------


@dataclass
class Stage:
    """The servers, and what the faults of a row need of them.

    Attributes:
        reach: Where the processes find the servers.
        crew: The processes, once they are at work.
    """

    reach: dict[str, Any]
    server: Any = None
    admin: Any = None
    through: Any = None
    clock: Any = None
    cluster: Any = None
    watched: Any = None
    masters: Sequence[EmbeddedServer] = ()
    crew: Sequence[Worker] = ()


Set = Callable[["Surrounded", "Fault"], AbstractAsyncContextManager[Stage]]


@dataclass(frozen=True)
class Surrounded:
    """What the fixtures give."""

    surroundings: Surroundings
    kind: ServerKind
    shim: Path
    connect: Connect
    folder: Path


@asynccontextmanager
async def single(given: Surrounded, fault: Fault) -> AsyncIterator[Stage]:
    """One server with a clock to be moved, behind a proxy."""
    assert given.kind.executable is not None
    clock = given.surroundings.resources.enter_context(Clock(given.folder / "offset"))
    executable = skewed_executable(given.folder / "server", given.kind.executable, given.shim, clock)
    server = await open_server(given.surroundings, executable, arguments=fault.arguments)
    through = await given.surroundings.resources.enter_async_context(Proxy(server.url))
    admin = given.connect(server)
    clock_of = SkewedServer(server, clock)
    yield Stage({"url": through.url}, server=server, admin=admin, through=through, clock=clock_of)


@asynccontextmanager
async def clustered(given: Surrounded, _: Fault) -> AsyncIterator[Stage]:
    """Three masters with a replica each."""
    with Cluster(given.kind.executable, masters=3, replicas=3) as cluster:
        yield Stage({"cluster": cluster.masters[1].port}, cluster=cluster)


@asynccontextmanager
async def watched(given: Surrounded, _: Fault) -> AsyncIterator[Stage]:
    """A master, a replica, and Sentinel."""
    async with Watched(given.folder) as servers:
        yield Stage({"sentinel": servers.sentinel.port}, watched=servers)


@asynccontextmanager
async def three_masters(given: Surrounded, _: Fault) -> AsyncIterator[Stage]:
    assert given.kind.executable is not None
    masters = [await open_server(given.surroundings, given.kind.executable) for _ in range(3)]
    yield Stage({"urls": [one.url for one in masters]}, masters=masters)


# -- the faults ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """What happens to the servers, the network or a process.

    Attributes:
        strike: Returns when it is over.
        loses: The server then has other data, or another time, than it has told: who holds a lease learns
            that with a renewal, at the latest.
        of_holder: It strikes the first process, which holds everything then; the time of the second one
            counts, from the beginning.
        more: Seconds that may be added to the bound, as for the election of another master.
        said: Of a feature, what the documentation says of this fault instead.
    """

    name: str
    strike: Callable[[Stage], Awaitable[None]]
    where: Set = single
    arguments: tuple[str, ...] = ()
    loses: bool = False
    of_holder: bool = False
    more: float = 0.0
    said: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return self.name

    @property
    def features(self) -> Sequence[str]:
        return (REDLOCK,) if self.where is three_masters else FEATURES


async def restarted_empty(stage: Stage) -> None:
    stage.server.kill()
    await asyncio.sleep(0.5)
    await stage.server.restart()


async def stopped(stage: Stage) -> None:
    stage.server.pause()
    await asyncio.sleep(3)
    stage.server.resume()


async def cut(stage: Stage) -> None:
    for _ in range(5):
        stage.through.cut()
        await asyncio.sleep(0.2)


async def black_hole(stage: Stage) -> None:
    """What was on its way, and the connections, are lost."""
    stage.through.blackhole = True
    await asyncio.sleep(3)
    stage.through.deafen()
    stage.through.blackhole = False


async def half_open(stage: Stage) -> None:
    """New connections are well, and nobody hears of the end of the old ones."""
    stage.through.deafen()


async def replies_dropped(stage: Stage) -> None:
    """The server does all that it is asked for, and nobody hears of it."""
    stage.through.drop_replies = True
    await asyncio.sleep(3)
    stage.through.deafen()
    stage.through.drop_replies = False


async def slow(stage: Stage) -> None:
    for _ in range(5):
        stage.through.delay = 0.02
        await asyncio.sleep(0.5)
        stage.through.delay = 0.4
        await asyncio.sleep(0.2)
    stage.through.delay = 0.0


def in_trouble(name: str) -> Callable[[Stage], Awaitable[None]]:
    [trouble] = [one for one in TROUBLES if one.name == name]

    async def strike(stage: Stage) -> None:
        async with trouble.lasting(stage.admin, stage.server):
            await asyncio.sleep(2)

    return strike


async def loading(stage: Stage) -> None:
    """It has the data of a moment before it was killed."""
    await stage.admin.mset({f"junk:{number}": "x" * 100 for number in range(400)})
    await stage.admin.expire("junk:0", 600)
    await stage.admin.save()
    stage.server.kill()
    restarting = asyncio.create_task(stage.server.restart())
    await eventually(lambda: is_loading(stage.server), within=10)
    await restarting
    await stage.admin.delete(*(f"junk:{number}" for number in range(400)))


async def clients_killed(stage: Stage) -> None:
    async def kill() -> None:
        await stage.admin.client_kill_filter(_type="normal", skipme=True)

    async with repeating(kill, every=0.05):
        await asyncio.sleep(2)


async def scripts_flushed(stage: Stage) -> None:
    async with repeating(stage.admin.script_flush, every=0.005):
        await asyncio.sleep(2)


def clock_moved(seconds: float) -> Callable[[Stage], Awaitable[None]]:
    async def strike(stage: Stage) -> None:
        await stage.clock.advance(seconds)

    return strike


async def flushed(stage: Stage) -> None:
    await stage.admin.flushall()


async def slots_move(stage: Stage) -> None:
    cluster: Cluster = stage.cluster

    def move() -> None:
        for name in names().values():
            cluster.move(cluster.slot(name.encode()), cluster.masters[1], dwell=0.02)

    await asyncio.to_thread(move)


async def master_of_cluster_killed(stage: Stage) -> None:
    stage.cluster.masters[0].server.kill()


async def failed_over(stage: Stage) -> None:
    stage.watched.master.kill()


async def master_hangs(stage: Stage) -> None:
    stage.masters[0].pause()
    await asyncio.sleep(3)
    stage.masters[0].resume()


async def master_away_for_a_ttl(stage: Stage) -> None:
    """It comes back empty."""
    stage.masters[0].kill()
    await asyncio.sleep(TTL + 0.2)
    await stage.masters[0].restart()


async def holder_killed(stage: Stage) -> None:
    stage.crew[0].kill()


async def holder_stopped(stage: Stage) -> None:
    stage.crew[0].stop()
    await asyncio.sleep(2.5 * TTL)
    stage.crew[0].cont()


FAULTS = [
    Fault("server killed, restarted empty", restarted_empty, loses=True),
    Fault("server stopped, 3 s", stopped),
    Fault("connections cut, 5 times", cut),
    Fault("black hole, 3 s", black_hole),
    Fault("replies dropped, 3 s", replies_dropped),
    Fault("half-open connections", half_open),
    Fault("latency 20 ms, 400 ms at times", slow),
    Fault("OOM, 2 s", in_trouble("OOM")),
    Fault("READONLY, 2 s", in_trouble("READONLY")),
    Fault("NOREPLICAS, 2 s", in_trouble("NOREPLICAS")),
    Fault("BUSY, 2 s", in_trouble("BUSY"), arguments=("--lua-time-limit", "20")),
    Fault(
        "LOADING, with older data",
        loading,
        arguments=("--key-load-delay", "3000", "--loading-process-events-interval-bytes", "1024"),
        loses=True,
    ),
    Fault("CLIENT KILL each 50 ms, 2 s", clients_killed),
    Fault("SCRIPT FLUSH each 5 ms, 2 s", scripts_flushed),
    Fault("server's clock +60 s", clock_moved(60), loses=True),
    Fault(
        "server's clock -60 s",
        clock_moved(-60),
        said=(("Schedule", "pauses for 60 s"), ("Turnstile", "a window lasts 60 s longer")),
    ),
    Fault(
        "server's clock -1 h",
        clock_moved(-3600),
        said=(("Turnstile", "a window lasts 1 h longer"),),
    ),
    Fault("FLUSHALL", flushed, loses=True),
    Fault("cluster: all slots move", slots_move, where=clustered),
    Fault("cluster: master killed", master_of_cluster_killed, where=clustered, loses=True, more=6.0),
    Fault("Sentinel: failover", failed_over, where=watched, loses=True, more=5.0),
    Fault("Redlock: a master hangs, 3 s", master_hangs, where=three_masters),
    Fault("Redlock: a master away for a ttl", master_away_for_a_ttl, where=three_masters),
    Fault("holder stopped, 2.5 s", holder_stopped, of_holder=True),
    Fault("holder killed", holder_killed, of_holder=True),
]


def names() -> dict[str, str]:
    """Names whose slots the first of three masters of a cluster serves."""
    numbers = range(1000)
    slot = Cluster(None).slot
    return {
        feature: next(name for number in numbers if slot((name := f"n{at}-{number}").encode()) < 16_384 // 3)
        for at, feature in enumerate((*FEATURES, REDLOCK))
    }


# -- what has to hold ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A fault that has struck, and what both processes have noted."""

    fault: Fault
    began: float
    ended: float
    notes: list[dict[str, Any]]

    def of(self, feature: str, event: str) -> list[dict[str, Any]]:
        return [one for one in self.notes if (one["feature"], one["event"]) == (feature, event)]

    @property
    def bound(self) -> float:
        return BOUND + self.fault.more

    # -- going on

    @property
    def left(self) -> Sequence[str]:
        """The processes that live on."""
        return (SECOND,) if self.fault.strike is holder_killed else (FIRST, SECOND)

    def recovery(self, feature: str, who: Sequence[str], since: float) -> float | None:
        """Seconds until it went on, in each of these processes; None: not yet."""
        first: dict[tuple[str, str], float | None] = {
            (one["who"], one["role"]): None for one in self.of(feature, "at work") if one["who"] in who
        }
        for one in self.of(feature, "progress"):
            key = one["who"], one["role"]
            if key in first and one["at"] > since and first[key] is None:
                first[key] = one["at"]
        times = [at for at in first.values() if at is not None]
        enough = 1 if feature in BY_ANYBODY else len(first)
        if len(times) < max(1, enough):
            return None
        return (min if feature in BY_ANYBODY else max)(times) - since

    def cell(self, feature: str) -> str:
        if problems := self.problems(feature):
            return "; ".join(sorted(problems))
        for what, said in self.fault.said:
            if what == feature:
                return said
        took = self.recovery(feature, self.left, self.ended)
        if self.fault.of_holder and took is not None:
            took = self.recovery(feature, (SECOND,), self.began)
        return "does not go on" if took is None else f"{took:.1f}"

    # -- doing nothing wrong

    def problems(self, feature: str) -> set[str]:
        found = {f"ended: {one['why'][-300:]}" for one in self.of(feature, "ended")}
        found |= {f"before: {one['why']}" for one in self.of(feature, "failed") if one["at"] < self.began}
        if feature == "Schedule":
            found |= self._ticks()
        elif feature in KEPT:
            found |= self._ages(feature)
        elif feature == "Turnstile":
            found |= self._windows()
        else:
            found |= {one.what for one in self._overlaps(feature)}
        return found

    def _overlaps(self, feature: str) -> Iterator[Violation]:
        notes = self.of(feature, "hold")
        holds = [Hold(**one["hold"]) for one in notes]
        violations: list[Violation] = []
        if feature == "Semaphore":
            violations += semaphore(holds, value=PERMITS)
        elif feature == "Limits":
            violations += semaphore(holds, value=PERMITS)
            tenants = defaultdict(list)
            for one, hold in zip(notes, holds, strict=True):
                tenants[one["tenant"]].append(hold)
            for of_tenant in tenants.values():
                violations += exclusion(of_tenant)
        else:
            violations += exclusion(holds)
        return (one for one in violations if not self._is_explained(one))

    def _is_explained(self, violation: Violation) -> bool:
        """Whether one of them held it when the server lost it, and knew soon."""
        holds = [one for one in violation.evidence if isinstance(one, Hold)]
        before = [one for one in holds if one.invoked <= self.ended]
        return self.fault.loses and bool(before) and max(one.granted for one in holds) < self.ended + TTL

    def _ticks(self) -> set[str]:
        """Lost with the register, one tick may run again right after it."""
        runs: dict[float, list[float]] = defaultdict(list)
        for one in self.of("Schedule", "tick"):
            runs[one["due"]].append(one["at"])
        twice = [times for times in runs.values() if len(times) > 1]
        if self.fault.loses:
            twice = [
                times for times in twice if not self.began - 1 < times[0] < self.ended + self.fault.more + 1
            ]
        return {f"{len(twice)} ticks twice"} if twice else set()

    def _ages(self, feature: str) -> set[str]:
        """A value lasts once more from when the clock is found set back."""
        most = sum(KEPT[feature]) * (2 if "clock" in self.fault.name else 1)
        oldest = max((one["age"] for one in self.of(feature, "value")), default=0.0)
        return {f"a value of {oldest:.2f} s"} if oldest > most + 0.1 else set()

    def _windows(self) -> set[str]:
        wins = sorted(self.of("Turnstile", "won"), key=lambda one: one["at"])
        early = [
            (one, other)
            for one, other in pairwise(wins)
            if other["at"] - one["invoked"] < WINDOW * 0.99
            and not (self.fault.loses and one["invoked"] <= self.ended + self.fault.more <= other["at"])
        ]
        return {f"{len(early)} windows with two winners"} if early else set()


# -- the table -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(server_kind: ServerKind) -> Iterator[dict[str, dict[str, str]]]:
    """The cells of each row; printed as what the documentation has."""
    rows: dict[str, dict[str, str]] = {}
    began = time.monotonic()
    yield rows
    columns = (*FEATURES, REDLOCK)
    lines = ["| fault | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for fault, cells in rows.items():
        lines.append(f"| {fault} | " + " | ".join(cells.get(one, "-") for one in columns) + " |")
    took = time.monotonic() - began
    sys.stdout.write("\n\n" + "\n".join(lines) + f"\n\n{server_kind}, {len(rows)} rows, {took:.0f} s\n")


@pytest.mark.soak
@pytest.mark.timeout(180)
@pytest.mark.leaves_keys
@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_all_features_go_on_after(
    fault: Fault,
    table: dict[str, dict[str, str]],
    surroundings: Surroundings,
    server_kind: ServerKind,
    shim: Path,
    connect: Connect,
    workers: Workers,
    tmp_path: Path,
) -> None:
    if server_kind.executable is None or server_kind.is_simulated:
        pytest.skip(f"not with {server_kind}: it starts servers of its own")
    given = Surrounded(surroundings, server_kind, shim, connect, tmp_path)
    async with fault.where(given, fault) as stage:
        row = await strike(fault, stage, workers, tmp_path)
    table[fault.name] = cells = {feature: row.cell(feature) for feature in fault.features}
    cells |= {"everything": "; ".join(sorted(problems))} if (problems := row.problems("")) else {}
    sys.stdout.write(f"\n{fault}: {cells}\n")
    said = dict(fault.said)
    wrong = {
        feature: cell
        for feature, cell in cells.items()
        if cell != said.get(feature) and not (cell.replace(".", "").isdigit() and float(cell) <= row.bound)
    }
    assert wrong == {}


async def strike(fault: Fault, stage: Stage, workers: Workers, folder: Path) -> Row:
    """Lets the fault strike two processes that are at work, and returns what they noted."""
    stop = folder / "stop"

    async def start(who: str, *, lasting: bool) -> Worker:
        notes = str(folder / f"{who}.notes")
        worker = await workers.start(
            work, reach=stage.reach, who=who, notes=notes, stop=str(stop), names=names(), lasting=lasting
        )
        await worker.told("ready")
        return worker

    def row(began: float = 0.0, ended: float = 0.0) -> Row:
        return Row(fault, began, ended, read(folder))

    def has_begun(who: str) -> bool:
        begun = {one["feature"] for one in row().notes if (one["who"], one["event"]) == (who, "begun")}
        return begun >= set(fault.features)

    first = await start(FIRST, lasting=fault.of_holder)
    if fault.of_holder:
        await eventually(lambda: has_begun(FIRST), within=15)
    second = await start(SECOND, lasting=False)
    stage.crew = first, second

    def all_go_on(who: Sequence[str], since: float) -> bool:
        now = row()
        said = dict(fault.said)
        return all(
            feature in said or now.recovery(feature, who, since) is not None for feature in fault.features
        )

    if fault.of_holder:
        await asyncio.sleep(2 * TTL)  # the second one waits for everything
    else:
        await until(lambda: all_go_on((FIRST, SECOND), 0.0), within=20)
    began = time.monotonic()
    await fault.strike(stage)
    ended = time.monotonic()
    left = row().left
    await until(lambda: all_go_on(left, ended), within=BOUND + fault.more)
    await asyncio.sleep(CALM)
    stop.touch()
    for worker in stage.crew[-len(left) :]:
        await worker.finish(within=20)
    return row(began, ended)


async def until(condition: Callable[[], bool], *, within: float) -> None:
    """Returns when it is so, or the time is over: what is missing stands in the table."""
    deadline = time.monotonic() + within
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
