"""Processes of this version and of the one before it on one server, as in a rolling update."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

import aiolocks
from tests.conftest import OwnServer
from tests.support.servers import Server
from tests.support.waiting import eventually
from tests.versions.worker import KINDS

NOW = "now"
BEFORE = "706d907"
"""The last commit whose waiters poll although they hear."""
WITHOUT_DEFINITIONS = "636dde1"
"""Version 0.2.0, whose schedules know no definitions of their ticks."""
BEFORE_PLACES = "db446bb"
"""The last commit whose writers keep readers out from when they ask."""
BEFORE_CACHE = "bf96d01"
"""The last commit that keeps no lock between its uses, and asks no session that does."""
BEFORE_MEMORY = "121d79b"
"""The last commit whose latches know the last 32 steps, whose combiners take a late end from nobody, and
whose rate limits reserve moments, under a key of another name."""
BEFORE_FAR = "b76ee4c"
"""The last commit whose bells all last for 2 s, wherever their waiter stands."""
HERE = Path(__file__)
REPOSITORY = os.environ.get("AIOLOCKS_TEST_REPOSITORY") or str(HERE.parents[2])
ROUNDS = 12
LONGEST_WAIT = 10.0
"""Seconds: all sessions together need less for all their rounds. Half the ttl of a lock that was lost."""


class Version:
    """A process of one version, in which each job has a client and a session of its own."""

    def __init__(self, package: Path, directory: Path) -> None:
        self._package = package
        self._socket = directory / "jobs"
        self._process = subprocess.Popen(
            [sys.executable, str(HERE.with_name("worker.py")), str(self._socket)],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(package)},
        )

    async def do(self, server: Server, *words: Any) -> dict[str, Any]:
        """The report of a job."""
        reader, writer = await self._begin(server, *words)
        report: dict[str, Any] = json.loads(await reader.readline())
        writer.close()
        await writer.wait_closed()
        assert "failed" not in report, report["failed"]
        assert report["version"].startswith(f"{self._package}/")
        return report

    async def killed_in(self, server: Server, *words: Any) -> None:
        """Kill it as soon as the job says anything."""
        reader, writer = await self._begin(server, *words)
        assert await reader.readline() == b"waits\n"
        self.end()
        writer.close()
        await writer.wait_closed()

    async def _begin(self, server: Server, *words: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        await self.ready()
        reader, writer = await asyncio.open_unix_connection(self._socket, limit=2**20)
        writer.write(json.dumps([server.url, *words]).encode() + b"\n")
        return reader, writer

    async def ready(self) -> None:
        await eventually(self._socket.exists, within=30)

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()


Versions = Callable[[str], Version]


@pytest.fixture(scope="session")
def version(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versions]:
    """The process of a commit's version, or of this one: one for all tests."""

    @cache
    def version(commit: str) -> Version:
        return begun(commit, tmp_path_factory.mktemp("version"), ending)

    with ExitStack() as ending:
        yield version


def begun(commit: str, directory: Path, ending: ExitStack) -> Version:
    package = Path(aiolocks.__file__).parents[1] if commit == NOW else package_of(commit, directory)
    version = Version(package, directory)
    ending.callback(version.end)
    return version


async def both(version: Versions, commit: str, *job: Any) -> list[dict[str, Any]]:
    """The reports of two sessions of that version and two of this one, which do the same at a time."""
    server, *words = job
    sides = [version(commit), version(NOW)] * 2
    return await asyncio.gather(*(side.do(server, *words) for side in sides))


def package_of(commit: str, path: Path) -> Path:
    archive = subprocess.run(
        ["git", "-C", REPOSITORY, "archive", commit, "aiolocks"], capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip(f"this is no clone that has the commit {commit}: AIOLOCKS_TEST_REPOSITORY may name one")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(path, filter="data")
    return path


ALIKE = {"reentrant", "semaphore", "fairlock", "rangelock"}
"""They wake through the scripts of another kind here: of permits, of spans, or those of a lock."""


@pytest.mark.leaves_keys
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.more] if kind in ALIKE else [])
        for kind in KINDS
        if kind != "cached"
    ],
)
async def test_both_versions_exclude_and_wake_each_other(
    server: Server, redis: Redis, version: Versions, kind: str
) -> None:
    reports = await both(version, BEFORE, server, "work", kind, ROUNDS)

    tokens = [int(token) for token in await redis.lrange("tokens", 0, -1)]
    assert len(tokens) == 4 * ROUNDS
    assert tokens == sorted(set(tokens))
    assert max(report["longest"] for report in reports) < LONGEST_WAIT
    await redis.delete("tokens", "inside")


@pytest.mark.leaves_keys
async def test_both_versions_of_a_redlock_exclude_each_other_and_their_tokens_rise(
    server: Server, redis: Redis, version: Versions, own_server: OwnServer
) -> None:
    """The votes of one of them propose fencing tokens, which masters take as if they had minted them."""
    masters = await asyncio.gather(*(own_server() for _ in range(3)))
    urls = [master.url for master in masters]
    reports = await both(version, BEFORE_MEMORY, server, "work", "redlock", ROUNDS, *urls)

    tokens = [int(token) for token in await redis.lrange("tokens", 0, -1)]
    assert len(tokens) == 4 * ROUNDS
    assert tokens == sorted(set(tokens))
    assert max(report["longest"] for report in reports) < LONGEST_WAIT
    await redis.delete("tokens", "inside")


@pytest.mark.leaves_keys
async def test_a_session_that_keeps_a_lock_hears_of_one_that_cannot_ask(
    server: Server, redis: Redis, version: Versions
) -> None:
    """Who cannot ask waits for the end of the cache time, or for the next renewal: a third of the ttl."""
    reports = await both(version, BEFORE_CACHE, server, "work", "cached", ROUNDS)

    assert [report["hits"] is None for report in reports] == [True, False, True, False]
    assert sum(report["hits"] or 0 for report in reports) > 0
    tokens = [int(token) for token in await redis.lrange("tokens", 0, -1)]
    assert len(tokens) == 4 * ROUNDS
    assert tokens == sorted(set(tokens))
    assert max(report["longest"] for report in reports) < LONGEST_WAIT
    await redis.delete("tokens", "inside")


@pytest.mark.leaves_keys
@pytest.mark.parametrize("kind", ["lock", "fairlock"])
async def test_a_dead_waiter_whose_bell_lasts_long_is_rung_by_either_version(
    server: Server, redis: Redis, version: Versions, kind: str
) -> None:
    """Neither waits until that bell ends: it lasts for longer than they may take."""
    queue, bell = f"aiolocks:{kind}.queue:{{a}}", f"aiolocks:{kind}.bell.dead:{{a}}"
    seat = "1" * 16 if kind == "fairlock" else ""
    await redis.zadd(queue, {bell + seat: 1})
    await redis.set(bell, "", ex=int(3 * LONGEST_WAIT))
    await redis.expire(queue, int(3 * LONGEST_WAIT))

    reports = await both(version, BEFORE_FAR, server, "work", kind, 2)

    assert max(report["longest"] for report in reports) < LONGEST_WAIT
    assert not await redis.exists(bell)
    await redis.delete("tokens", "inside")


@pytest.mark.leaves_keys
@pytest.mark.parametrize("kind", ["rwlock", pytest.param("rangelock", marks=pytest.mark.more)])
async def test_readers_planners_and_writers_of_both_versions_exclude_and_starve_nobody(
    server: Server, redis: Redis, version: Versions, tmp_path: Path, kind: str
) -> None:
    """Also where a waiter of this version is killed, whose place a step of the other one does not remove."""
    with ExitStack() as ending:
        victim = begun(NOW, tmp_path, ending)
        for one in (victim, version(NOW), version(BEFORE_PLACES)):
            await one.ready()
        reports, _ = await asyncio.gather(
            both(version, BEFORE_PLACES, server, "phases", ROUNDS // 6, kind),
            victim.killed_in(server, "waiter", kind),
        )

    for report in reports:
        assert max(report["longest"].values()) < LONGEST_WAIT, reports
    await redis.delete("readers", "writers", "planners")


@pytest.mark.leaves_keys
@pytest.mark.parametrize("kind", ["latch", "turnstile", "combiner", "uniquejob"])
async def test_what_both_versions_count_is_counted_once(
    server: Server, redis: Redis, version: Versions, kind: str
) -> None:
    reports = await both(version, BEFORE_MEMORY, server, "counts", kind, ROUNDS)

    told = sorted(one for report in reports for one in report["told"])
    if kind == "combiner":
        assert told == [True] * 4 * ROUNDS
        run = [item for report in reports for item in report["run"]]
        assert len(run) == len(set(run)) == 4 * ROUNDS
    elif kind == "uniquejob":  # each ticket took the place of the one before: the last one runs
        assert 2 * ROUNDS <= len(told) == len(set(told))
        job = aiolocks.UniqueJob(redis, "a")
        ran = 0
        for ticket in told:
            async with job.try_perform(ticket) as lease:
                ran += lease is not None
        assert ran == 1
    else:
        first = 0 if kind == "latch" else 1
        assert told == [*range(first, 4 * ROUNDS + first)]


@pytest.mark.leaves_keys
async def test_one_of_both_versions_runs_and_all_get_its_value(
    server: Server, redis: Redis, version: Versions
) -> None:
    """What this version has made both forget is run once more, by either of them."""
    values: set[str] = set()
    for runs in (1, 2):
        reports = await both(version, BEFORE_MEMORY, server, "flights", ROUNDS)
        (told,) = {tuple(report["told"]) for report in reports}
        assert len(values.union(told)) == runs * ROUNDS
        assert [int(count) for count in await redis.hvals("runs")] == [runs] * ROUNDS
        values.update(told)
        for number in range(ROUNDS):
            assert await aiolocks.SingleFlight(redis).forget(f"key {number}")
    await redis.delete("runs")


@pytest.mark.leaves_keys
async def test_a_ticket_of_either_version_is_performed_once_by_either(
    server: Server, redis: Redis, version: Versions
) -> None:
    reports = await both(version, BEFORE_MEMORY, server, "tickets", ROUNDS)

    got = sorted(ticket for report in reports for ticket in report["got"])
    assert len(got) >= ROUNDS
    assert sorted(ticket for report in reports for ticket in report["performed"]) == got
    await redis.delete("inside")


EVERY = 0.2


async def runs_of(sides: Sequence[tuple[Version, float, float]], *job: Any) -> list[list[tuple[float, int]]]:
    """The runs of each side, which begins so many seconds from now, and ends so many seconds later."""
    server, options = job

    async def one(side: Version, begins: float, seconds: float) -> list[tuple[float, int]]:
        await asyncio.sleep(begins)
        report = await side.do(server, "schedule", seconds, options)
        return [(due, missed) for due, missed in report["runs"]]

    return await asyncio.gather(*(one(*side) for side in sides))


def gaps(dues: list[float]) -> set[float]:
    return {round(one - other, 3) for other, one in itertools.pairwise(dues)}


@pytest.mark.leaves_keys
@pytest.mark.parametrize("misfire", [pytest.param("latest", marks=pytest.mark.more), "all"])
async def test_a_schedule_goes_on_in_an_update_and_when_that_is_taken_back(
    server: Server, version: Versions, misfire: str
) -> None:
    """The sessions are replaced one by one, and then put back: each tick has one run, and none is missed."""
    now, released = version(NOW), version(WITHOUT_DEFINITIONS)
    sides = ((released, 0.9), (released, 1.5), (now, 2), (now, 1.5), (released, 2), (released, 1.5))
    await now.ready()
    await released.ready()
    options = {"every": EVERY, "misfire": misfire, "ttl": 20}
    runs = await runs_of(
        [(side, 0.6 * number, seconds) for number, (side, seconds) in enumerate(sides)], server, options
    )

    dues = sorted(due for one in runs for due, _ in one)
    assert gaps(dues) == {EVERY}
    assert {missed for one in runs for _, missed in one} == {0}
    assert all(runs[number] for number in range(6))


@pytest.mark.leaves_keys
async def test_t_p_14_a_schedule_that_an_update_changes_runs_each_tick_at_most_once(
    server: Server, version: Versions
) -> None:
    """Neither those of the former times nor those of the new ones; and both go on."""
    now, released = version(NOW), version(WITHOUT_DEFINITIONS)
    former, latter = ({"every": every, "misfire": "all", "ttl": 20} for every in (0.2, 0.28))
    runs, newer = await asyncio.gather(
        runs_of([(released, 0, 2.5)] * 2, server, former), runs_of([(now, 0.7, 2.8)] * 2, server, latter)
    )

    for ours, every in ((runs, 0.2), (newer, 0.28)):
        dues = sorted(due for one in ours for due, _ in one)
        assert len(dues) == len(set(dues))
        assert len(dues) > 5
        assert {round(due / every % 1, 2) % 1 for due in dues} == {0.0}


@pytest.mark.leaves_keys
@pytest.mark.parametrize("misfire", ["latest", pytest.param("all", marks=pytest.mark.more)])
async def test_what_was_missed_during_an_update_is_made_up_for(
    server: Server, version: Versions, misfire: str
) -> None:
    now, released = version(NOW), version(WITHOUT_DEFINITIONS)
    options = {"every": EVERY, "misfire": misfire, "ttl": 20}
    runs = []
    for side in (released, now, released):
        runs += await runs_of([(side, 0, 4 * EVERY)], server, options)
        await asyncio.sleep(2.6 * EVERY)
    told = [due - apart * EVERY for one in runs for due, missed in one for apart in range(missed + 1)]
    assert gaps(sorted(told)) == {EVERY}
    assert (max(missed for one in runs for _, missed in one) > 0) is (misfire == "latest")


@pytest.mark.leaves_keys
async def test_rate_limits_of_both_versions_admit_at_most_the_sum_of_both(
    server: Server, version: Versions
) -> None:
    """Twenty a second, and five at once: each version for itself, and all of them."""
    reports = await both(version, BEFORE_MEMORY, server, "ratelimit", 1)

    took = max(report["until"] for report in reports) - min(report["since"] for report in reports)
    for ours in (reports[::2], reports[1::2]):
        admitted = sum(report["admitted"] for report in ours)
        assert 20 * 0.8 <= admitted <= 5 + 20 * took + 1
