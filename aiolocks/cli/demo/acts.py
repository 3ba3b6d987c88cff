"""The four acts: each has its workers do something, watches, and checks what came of it."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, cast

from redis.asyncio import Redis

from . import checks
from .crew import Crew, Event, Worker
from .scene import Scene
from .timeline import Activity, Timeline
from .worker import KEEP

WORKERS: Final = 4
ROUNDS: Final = 250
EXPECTED: Final = WORKERS * ROUNDS
TTL: Final = 1.0
"""Seconds: the lease of those who are killed or stopped."""
_EXCERPT: Final = 0.03
"""Seconds of the second act that are drawn: a hold takes a millisecond or more."""
_STAY: Final = 0.4
"""Seconds for which a worker stays inside only to be seen."""


@dataclass(frozen=True, slots=True)
class Demo:
    """The server, the keys and the screen on which the acts are played.

    Attributes:
        crew: The workers.
        redis: A client of the demo's own.
        url: How the workers reach the server.
        prefix: The prefix of all keys.
    """

    crew: Crew
    redis: Redis
    url: str
    prefix: str

    def begin(self, worker: int, act: str, **arguments: object) -> Worker:
        """Has a worker play its part."""
        actor = self.crew[worker]
        actor.begin(act, url=self.url, prefix=self.prefix, **arguments)
        return actor


@dataclass(frozen=True, slots=True)
class Act:
    """One act: its text, its workers, and how it goes."""

    title: str
    workers: tuple[int, ...]
    play: Callable[[Demo, Scene], Awaitable[None]]


async def without_a_lock(demo: Demo, scene: Scene) -> None:
    """Read-modify-writes that overwrite each other."""
    counter = await _count(demo, scene, "without", lock=False)
    lost = EXPECTED - counter
    scene.facts |= {"counter": counter, "expected": EXPECTED, "lost": lost}
    scene.findings.append(f"The counter says {counter}, not {EXPECTED}: {lost} updates were lost.")
    scene.checks.append(checks.lossy(counter, EXPECTED))


async def with_a_lock(demo: Demo, scene: Scene) -> None:
    """The same, one after another."""
    began = time.monotonic()
    holds: dict[int, list[checks.Interval]] = {worker: [] for worker in scene.workers}
    counter = await _count(demo, scene, "with", lock=True, holds=holds)
    took = time.monotonic() - began
    scene.timeline = _excerpt(holds)
    # Pushed by each holder while it was inside: this is the order in which they entered.
    entries = cast("list[bytes]", await demo.redis.lrange(f"{demo.prefix}:entries", 0, -1))
    tokens = list(map(int, entries))
    scene.facts |= {"counter": counter, "expected": EXPECTED, "seconds": round(took, 3)}
    scene.findings.append(f"The counter says {counter}. {len(tokens)} entries took {took:.1f} s.")
    alone = checks.alone(list(chain(*holds.values())))
    scene.checks += [checks.exact(counter, EXPECTED), checks.rising(tokens, EXPECTED), alone]


def _excerpt(holds: Mapping[int, Sequence[checks.Interval]]) -> Timeline:
    """So little of the middle that each hold is some columns wide: of all, each column would have a dozen."""
    middle = statistics.median(entered for entered, _ in chain(*holds.values()))
    timeline = Timeline(middle, length=_EXCERPT)
    for worker, intervals in holds.items():
        timeline.held(worker, intervals)
    timeline.close(middle + _EXCERPT)
    return timeline


async def _count(
    demo: Demo,
    scene: Scene,
    key: str,
    *,
    lock: bool,
    holds: Mapping[int, list[checks.Interval]] | None = None,
) -> int:
    """Has all workers count, and returns how far they came together; `holds` gets when they were inside."""
    key = f"{demo.prefix}:{key}"
    await demo.redis.set(key, 0, ex=KEEP)

    def notice(worker: int, told: Event) -> None:
        if told["event"] != "progress":
            return
        scene.done[worker] = told["done"] / ROUNDS
        scene.notes[worker] = f"{told['done']:3} of {ROUNDS}"
        if holds is not None:
            holds[worker].extend(map(tuple, told["holds"]))

    try:
        # Not gather: it would leave the others at it when one fails.
        async with asyncio.TaskGroup() as group:
            for number in scene.workers:
                worker = demo.begin(number, "count", key=key, rounds=ROUNDS, lock=lock)
                group.create_task(worker.until("done", partial(notice, number)))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return int(cast("bytes", await demo.redis.get(key)))


async def killed(demo: Demo, scene: Scene) -> None:
    """A lease ends by itself when nobody renews it any more."""
    timeline = scene.timeline = Timeline(time.monotonic(), length=2.2)
    scene.frozen = ("its lease runs on", "killed")
    victim, heir = scene.workers

    holder = demo.begin(victim, "hold", name="job", ttl=TTL)
    held = await holder.until("holds")
    timeline.begin(victim, Activity.HOLDS, held["at"])
    waiter = await _wait_behind(demo, scene, heir, "job")
    await asyncio.sleep(_STAY)

    kill = time.monotonic()
    holder.kill()
    timeline.begin(victim, Activity.FROZEN, kill)
    timeline.happened(victim, kill)
    scene.notes[victim] = "killed"

    took = await waiter.until("holds")
    timeline.end(victim, took["at"])
    await _see_out(scene, waiter, took)

    after = took["at"] - kill
    scene.facts |= {"ttl": TTL, "taken_over_after": round(after, 3)}
    scene.findings.append(
        f"Worker {heir} took over {after:.2f} s after worker {victim} was killed; the ttl is {TTL:g} s."
    )
    scene.checks += [
        checks.patient(held["asked"], TTL, took["at"]),
        checks.prompt(kill, TTL, took["at"]),
        checks.larger(held["fencing_token"], took["fencing_token"]),
    ]


async def late(demo: Demo, scene: Scene) -> None:
    """A holder that is stopped cannot know that its time passes: it is the store that has to refuse it."""
    timeline = scene.timeline = Timeline(time.monotonic(), length=1.8)
    scene.frozen = ("stopped", "writes late")
    sleeper, successor = scene.workers

    holder = demo.begin(sleeper, "write_late", name="report", ttl=TTL)
    held = await holder.until("holds")
    timeline.begin(sleeper, Activity.HOLDS, held["at"])
    first = await holder.until("wrote")
    waiter = await _wait_behind(demo, scene, successor, "report")
    await asyncio.sleep(_STAY / 2)

    timeline.begin(sleeper, Activity.FROZEN, time.monotonic())
    holder.stop()
    scene.notes[sleeper] = "stopped"

    took = await waiter.until("holds")
    second = await waiter.until("wrote")
    await _see_out(scene, waiter, took)

    holder.resume()
    holder.go_on()
    third = await holder.until("wrote late")
    timeline.end(sleeper, third["at"])
    timeline.happened(sleeper, third["at"])
    timeline.close(third["at"])
    scene.notes[sleeper] = "refused" if not third["accepted"] else "taken"
    end: dict[str, Event] = {}
    await holder.until("done", lambda told: end.update({told["event"]: told}))

    value = cast("bytes | None", await demo.redis.hget(f"{demo.prefix}:store", "value"))
    error = end.get("lost", {})
    older, newer = held["fencing_token"], took["fencing_token"]
    scene.facts |= {"ttl": TTL, "fencing_tokens": [older, newer], "late_write_refused": not third["accepted"]}
    scene.findings.append(
        f"Worker {successor} wrote with fencing token {newer}. Then worker {sleeper} went on, "
        f"{third['at'] - first['at']:.2f} s after its first write, and wrote with {older}."
    )
    scene.findings.append(f"Its body then ended with {error.get('error')}: {error.get('message')}")
    scene.checks += [
        checks.patient(held["asked"], TTL, took["at"]),
        *checks.fenced(
            first=first["accepted"], successor=second["accepted"], late=third["accepted"],
            value=value, expected="successor",
        ),
        checks.told(cancelled="cancelled" in end, error=error.get("error")),
    ]  # fmt: skip


async def _wait_behind(demo: Demo, scene: Scene, worker: int, name: str) -> Worker:
    """One more that wants the lock."""
    assert scene.timeline is not None
    waiter = demo.begin(worker, "take", name=name, seconds=_STAY)
    scene.timeline.begin(worker, Activity.WAITS, (await waiter.until("waits"))["at"])
    return waiter


async def _see_out(scene: Scene, waiter: Worker, took: Event) -> None:
    """It has got the lock; now it leaves."""
    assert scene.timeline is not None
    scene.timeline.begin(waiter.number, Activity.HOLDS, took["at"])
    scene.notes[waiter.number] = "took over"
    left = await waiter.until("leaves")
    scene.timeline.end(waiter.number, left["at"])
    scene.timeline.close(left["at"])
    await waiter.until("done")


ACTS: Final = (
    Act(
        f"Without a lock: 4 processes add 1 to one counter, {ROUNDS} times each", (1, 2, 3, 4), without_a_lock
    ),
    Act("With Lock: the same, one after another", (1, 2, 3, 4), with_a_lock),
    Act(f"A holder is killed with SIGKILL; its ttl is {TTL:g} s", (4, 1), killed),
    Act(f"A holder is stopped past its ttl of {TTL:g} s, and writes late", (1, 2), late),
)
