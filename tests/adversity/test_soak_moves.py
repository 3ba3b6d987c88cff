"""Every family at work in two processes while the slots of their names move: a table.

```console
$ pytest tests/adversity/test_soak_moves.py -m soak -n0 -s
```

A part of it is a way in which slots get another master, and a way in which waiters are woken. A gap is the
time from when a task could have gone on to when it did, such as from a release to the next grant. For some
seconds the slots move, then for as many they stay: these are compared, whatever else the machine does. The
default run has a short part of each way, without times.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import statistics
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.adversity.on_the_move import (
    BURST,
    EVERY,
    FAMILIES,
    FURTHER,
    PERMITS,
    PROCESSES,
    RATE,
    WINDOW,
    work,
)
from tests.support.clusters import Cluster, Node
from tests.support.history import Hold, exclusion, fencing, semaphore
from tests.support.processes import Workers
from tests.support.servers import ServerKind
from tests.support.waiting import eventually

EACH = {"failover": 3.0}
"""Seconds from one move to the next; 1 s otherwise. A failover takes half a second."""
FIRST, THEN = 3, 50
"""How many keys are carried in one step: at first fewer than a name has."""
FOR_LONG = 60.0
FOR_A_MOMENT = 2.0
PHASE = 6.0
"""Seconds for which the slots move, and then for which they stay."""
MOST = 2.0
"""How much longer the median of the gaps may be while slots move."""
LEAST = 0.002
"""Shorter medians, in seconds, are not compared: they are those of the machine."""
FEWEST = 100
"""Nor are those of fewer gaps: a Schedule has thirty."""


# -- what moves ----------------------------------------------------------------------------------------------


class Slots:
    """Where the slots of the names are, and how they get elsewhere."""

    def __init__(self, cluster: Cluster, names: Sequence[str]) -> None:
        self._cluster = cluster
        self._slots = sorted({cluster.slot(name.encode()) for name in names})
        for slot in self._slots:
            cluster.move(slot, cluster.masters[0])
        self._at = dict.fromkeys(self._slots, cluster.masters[0])
        self._turn = 0

    def move_at_once(self) -> None:
        """In one step, as Valkey 9 can."""
        owner = self._cluster.settle(self._slots[0])
        self._cluster.move_at_once(self._slots, owner, self._cluster.another(owner))

    def move_by_keys(self) -> None:
        """One after the other, some keys at a time; a third of them each time, for that takes long."""
        cluster = self._cluster
        for slot in self._slots[self._turn :: 3]:
            source = self._at[slot]
            self._at[slot] = to = cluster.another(source)
            number = FIRST
            cluster.begin_move(slot, source, to)
            while keys := source.do("CLUSTER", "GETKEYSINSLOT", slot, number):
                cluster.carry(keys, source, to)
                number = THEN
            cluster.end_move(slot, source, to)
        self._turn = (self._turn + 1) % 3

    def fail_over(self) -> None:
        """The replica of their master takes its place, as an operator asks for: nothing is lost."""
        pair = self._cluster.masters[0], self._cluster.replicas[0]
        old, new = pair if self._cluster.owner(self._slots[0]) is pair[0] else pair[::-1]
        new.do("CLUSTER", "FAILOVER")
        for slot in self._slots:
            self._cluster.settle_on(slot, new)
        deadline = time.monotonic() + 20
        while not _follows(old):
            assert time.monotonic() < deadline, "the old master does not follow the new one"
            time.sleep(0.02)


def _follows(node: Node) -> bool:
    said = node.admin.info("replication")
    return (said["role"], said.get("master_link_status")) == ("slave", "up")


WAYS: dict[str, Callable[[Slots], None]] = {
    "at once": Slots.move_at_once,
    "by keys": Slots.move_by_keys,
    "failover": Slots.fail_over,
}


@dataclass
class Moves:
    """When slots moved: the single moves, and the phases between which they stayed."""

    single: list[tuple[float, float]] = field(default_factory=list)
    phases: list[tuple[float, float]] = field(default_factory=list)

    def cover(self, at: float) -> bool | None:
        """Whether the slots moved at that time; None right behind such a phase."""
        for began, ended in self.phases:
            if began <= at < ended + 1:
                return True if at < ended else None
        return False


@contextmanager
def repeated(step: Callable[[], None], each: float, *, rest: float) -> Iterator[Moves]:
    """Does it each so many seconds, in a thread, with a rest from time to time."""
    done = Moves()
    over = threading.Event()
    failed: list[BaseException] = []

    def repeat() -> None:
        try:
            while not over.is_set():
                first = time.monotonic()
                while not over.is_set() and time.monotonic() < first + PHASE:
                    began = time.monotonic()
                    step()
                    done.single.append((began, time.monotonic()))
                    over.wait(max(0.0, began + each - time.monotonic()))
                done.phases.append((first, time.monotonic()))
                over.wait(rest)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]


# -- what has to hold ----------------------------------------------------------------------------------------


class Noted:
    """What the processes have noted."""

    def __init__(self, folder: Path) -> None:
        self._notes: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for file in sorted(folder.glob("*.notes")):
            for line in file.read_text().split("\n")[:-1]:
                note = json.loads(line)
                self._notes[note["family"], note["event"]].append(note)

    def of(self, family: str, event: str) -> list[dict[str, Any]]:
        return sorted(self._notes.get((family, event), ()), key=lambda note: note["at"])

    def holds(self, family: str, event: str = "hold") -> list[Hold]:
        return [Hold(**note["hold"]) for note in self.of(family, event)]

    def problems(self) -> list[str]:
        found = [
            f"{family or 'the loop'}: {why} ({times} times)"
            for (family, why), times in Counter(
                (family, note["why"])
                for (family, event), notes in self._notes.items()
                if event == "failed"
                for note in notes
            ).items()
        ]
        for family in FAMILIES:
            found += [f"{family}: {what}" for what in self._wrong(family)]
        return found

    def _wrong(self, family: str) -> Iterator[str]:
        holds = self.holds(family)
        if family == "Semaphore":
            yield from (one.what for one in semaphore(holds, value=PERMITS))
        elif family == "Limits":
            yield from (one.what for one in semaphore(holds, value=PERMITS))
            for who in {one.who for one in holds}:
                yield from (one.what for one in exclusion([one for one in holds if one.who == who]))
        else:
            yield from (str(one) for one in exclusion([*holds, *self.holds(family, "run")]))
        yield from (str(one) for one in fencing(holds))
        yield from self._lost_or_twice(family)
        if family == "SingleFlight":
            yield from self._old()
        elif family == "Latch":
            yield from self._early()
        elif family == "RateLimit":
            yield from self._too_many()
        elif family == "Turnstile":
            yield from self._two_winners()
        elif family == "Leadership":
            over = min((note["at"] for note in self.of("", "over")), default=math.inf)
            if (terms := sum(note["at"] < over for note in self.of(family, "term"))) != 1:
                yield f"{terms} terms"
        elif family == "Schedule":
            yield from self._ticks()

    def _lost_or_twice(self, family: str) -> Iterator[str]:
        asked = {note["what"] for note in self.of(family, "asked")}
        told = {note["what"] for note in self.of(family, "told")}
        ran = Counter(what for note in self.of(family, "ran") for what in note["what"])
        yield from (f"{what} was not told of its end" for what in asked - told)
        yield from (f"{what} was not run" for what in asked - ran.keys())
        yield from (f"{what} was run {times} times" for what, times in ran.items() if times > 1)

    def _old(self) -> Iterator[str]:
        """Nothing is kept: who comes when a run has been answered gets the value of another one.

        Whose answer is on its way to another session, for as long as a move takes, may have it there.
        """
        answered: dict[float, tuple[float, str]] = {}
        for note in self.of("SingleFlight", "took"):
            since, who = answered.setdefault(note["made"], (note["at"], note["who"]))
            if since + (0.0 if note["who"] == who else 1.0) < note["invoked"]:
                yield f"a value that others had {note['invoked'] - since:.3f} s before"

    def _early(self) -> Iterator[str]:
        came: dict[int, list[float]] = defaultdict(list)
        for note in self.of("Latch", "came"):
            came[note["turn"]].append(note["at"])
        for note in self.of("Latch", "left"):
            if len(came[note["turn"]]) < PROCESSES or note["at"] < max(came[note["turn"]]):
                yield f"turn {note['turn']} was left before all had come"
        counted: dict[int, list[int]] = defaultdict(list)
        for note in self.of("Latch", "counted"):
            counted[note["turn"]].append(note["left"])
        wrong = [turn for turn, left in counted.items() if len(left) == PROCESSES and sorted(left) != [0, 1]]
        yield from (f"turn {turn} was counted down to {counted[turn]}" for turn in wrong)

    def _too_many(self) -> Iterator[str]:
        """All that were admitted from the call of the first to the answer of the last, in some second."""
        passed = sorted((note["invoked"], note["at"]) for note in self.of("RateLimit", "passed"))
        for first, (invoked, _) in enumerate(passed):
            soon = itertools.takewhile(lambda one, end=invoked + 1: one[0] < end, passed[first : first + 300])
            for number, at in enumerate(sorted(answered for _, answered in soon), 1):
                if number > BURST + RATE * (at - invoked) + 1:
                    yield f"{number} in {at - invoked:.3f} s"
                    return

    def _two_winners(self) -> Iterator[str]:
        wins = [note for note in self.of("Turnstile", "entered") if note["number"] == 1]
        early = [other["at"] - one["invoked"] for one, other in itertools.pairwise(wins)]
        yield from (f"two winners within {after:.3f} s" for after in early if after < WINDOW * 0.99)

    def _ticks(self) -> Iterator[str]:
        due = [note["due"] for note in self.of("Schedule", "tick")]
        yield from (f"tick {tick} twice" for tick, times in Counter(due).items() if times > 1)
        apart = {round((other - one) / EVERY) for one, other in itertools.pairwise(sorted(set(due)))}
        if apart - {1}:
            yield f"ticks are missing: {sorted(apart)} apart"

    # -- how long it took

    def gaps(self, family: str) -> list[tuple[float, float]]:
        """When it went on, and how long after it could."""
        if family == "Latch":
            came: dict[int, float] = {}
            for note in self.of("Latch", "came"):
                came[note["turn"]] = note["at"]
            return [(note["at"], note["at"] - came[note["turn"]]) for note in self.of("Latch", "left")]
        if holds := self.holds(family):
            ends = sorted(hold.released for hold in holds)
            return [(hold.granted, hold.granted - self._free_since(hold, ends)) for hold in holds]
        return [(note["at"], note["seconds"]) for note in self.of(family, "took")]

    @staticmethod
    def _free_since(hold: Hold, ends: Sequence[float]) -> float:
        before = [end for end in ends if end <= hold.granted]
        return max(hold.invoked, before[-1]) if before else hold.invoked


# -- the table -----------------------------------------------------------------------------------------------


async def row(
    cluster: Cluster,
    way: str,
    wakeup: str,
    seconds: float,
    workers: Workers,
    folder: Path,
    *,
    rest: float = 0.0,
    **options: float,
) -> tuple[Noted, Moves]:
    """What two processes note that are at work for so long, and when slots moved."""
    names = {
        family: next(
            name for number in range(1000) if cluster.slot((name := f"n{at}-{number}").encode()) < 16_384 // 3
        )
        for at, family in enumerate((*FAMILIES, *FURTHER))
    }
    slots = Slots(cluster, list(names.values()))
    stop = folder / "stop"
    started = [
        await workers.start(
            work,
            port=cluster.masters[1].port,
            who=who,
            notes=str(folder / f"{who}.notes"),
            stop=str(stop),
            names=names,
            wakeup=wakeup,
            options=options,
        )
        for who in map(str, range(PROCESSES))
    ]
    for worker in started:
        await worker.told("ready")
    await eventually(
        lambda: all(map(Noted(folder).gaps, set(FAMILIES) - {"Leadership", "Schedule"})), within=20
    )
    with repeated(lambda: WAYS[way](slots), EACH.get(way, 1.0), rest=rest) as moves:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline or not moves.single:
            await asyncio.sleep(0.1)
    stop.touch()
    for worker in started:
        await worker.told("over", within=60)
        await worker.finish()
    return Noted(folder), moves


def hold(family: str, granted: float, released: float, **facts: Any) -> dict[str, Any]:
    mine = Hold(who="0", invoked=granted, granted=granted, released=released, name=family, **facts)
    return {"family": family, "event": "hold", "hold": asdict(mine)}


WRONG: dict[str, list[dict[str, Any]]] = {
    "two conflicting holders": [hold("Lock", 1.0, 3.0), hold("Lock", 2.0, 4.0)],
    "permits out of 2": [hold("Semaphore", 1.0, 3.0)] * 3,
    "fencing token 7 given twice": [hold("FairLock", at, at + 1, fencing_token=7) for at in (1.0, 3.0)],
    "LockLostError": [{"family": "Combiner", "event": "failed", "why": "LockLostError: lost"}],
    "was not told": [{"family": "Combiner", "event": "asked", "what": "x"}],
    "was run 2 times": [{"family": "Combiner", "event": "ran", "what": ["x"]}] * 2,
    "that others had 2.000 s before": [
        {"family": "SingleFlight", "event": "took", "made": 0.5, "invoked": invoked} for invoked in (0.0, 3.0)
    ],
    "left before all had come": [
        {"family": "Latch", "event": event, "turn": 0} for event in ("came", "left")
    ],
    "in 0.000 s": [{"family": "RateLimit", "event": "passed", "invoked": 1.0}] * (BURST + 2),
    "two winners": [{"family": "Turnstile", "event": "entered", "number": 1, "invoked": 0.8}] * 2,
    "2 terms": [{"family": "Leadership", "event": "term"}] * 2,
    "tick 4.0 twice": [{"family": "Schedule", "event": "tick", "due": 4.0}] * 2,
    "ticks are missing": [
        {"family": "Schedule", "event": "tick", "due": due} for due in (4.0, 4.0 + 2 * EVERY)
    ],
}


@pytest.mark.parametrize("problem", WRONG)
def test_what_is_wrong_is_found(problem: str, tmp_path: Path) -> None:
    lines = [json.dumps({"who": "0", "at": 1.0, **note}) for note in WRONG[problem]]
    (tmp_path / "0.notes").write_text("".join(line + "\n" for line in lines))
    assert any(problem in found for found in Noted(tmp_path).problems())


@pytest.fixture
def stage(way: str, server_kind: ServerKind, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three masters, with replicas where one of these is to take over."""
    if way != "failover":
        cluster = request.getfixturevalue("cluster")
        if way == "at once" and not cluster.can_move_at_once():
            pytest.skip(f"not with {server_kind}: it moves no slot in one step")
        yield cluster
        return
    if server_kind.executable is None or server_kind.is_simulated:
        pytest.skip(f"not with {server_kind}: it starts servers of its own")
    with Cluster(server_kind.executable, masters=3, replicas=3) as cluster:
        yield cluster


@pytest.mark.more  # its processes want a core; `test_cluster_faults.py` moves slots too
@pytest.mark.leaves_keys("*")
@pytest.mark.parametrize(
    ("way", "wakeup"),
    [("at once", "keyspace"), ("by keys", "tracking"), ("failover", "tracking")],
)
async def test_no_user_notices_that_slots_move(
    stage: Cluster, way: str, wakeup: str, workers: Workers, tmp_path: Path
) -> None:
    noted, _ = await row(stage, way, wakeup, FOR_A_MOMENT, workers, tmp_path, command_timeout=20)
    assert noted.problems() == []


@pytest.mark.soak
@pytest.mark.timeout(2 * FOR_LONG + 120)
@pytest.mark.leaves_keys("*")
@pytest.mark.parametrize("wakeup", ["tracking", "keyspace"])
@pytest.mark.parametrize("way", WAYS)
async def test_all_families_go_on_while_slots_move(
    stage: Cluster, way: str, wakeup: str, workers: Workers, tmp_path: Path
) -> None:
    noted, moves = await row(stage, way, wakeup, 2 * FOR_LONG, workers, tmp_path, rest=PHASE)
    took = statistics.median(ended - began for began, ended in moves.single)
    lines = [
        f"\n{way}, {wakeup}: {len(moves.single)} times, each {took * 1000:.0f} ms; milliseconds of the gaps",
        f"{'':20}{'moving: gaps':>14}  median  longest  still: gaps  median  longest",
    ]
    slower: dict[str, tuple[float, float]] = {}
    for family in FAMILIES:
        gaps = noted.gaps(family)
        moving, still = ([gap for at, gap in gaps if moves.cover(at) is so] for so in (True, False))
        if not gaps:
            continue
        assert moving
        assert still
        middles = statistics.median(moving), statistics.median(still)
        lines.append(
            f"{family:20}{len(moving):14}{middles[0] * 1000:8.1f}{max(moving) * 1000:9.1f}"
            f"{len(still):13}{middles[1] * 1000:8.1f}{max(still) * 1000:9.1f}"
        )
        if min(len(moving), len(still)) >= FEWEST and middles[0] > MOST * max(middles[1], LEAST):
            slower[family] = middles
    problems = noted.problems()
    sys.stdout.write("\n".join([*lines, *problems]) + "\n")
    assert problems == []
    assert slower == {}
