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
from pathlib import Path

import pytest
from redis.asyncio import Redis

import aiolocks
from tests.support.servers import Server
from tests.versions.worker import KINDS

BEFORE = "706d907"
"""The last commit whose waiters poll although they hear."""
WITHOUT_DEFINITIONS = "636dde1"
"""Version 0.2.0, whose schedules know no definitions of their ticks."""
BEFORE_PLACES = "db446bb"
"""The last commit whose writers keep readers out from when they ask."""
BEFORE_CACHE = "bf96d01"
"""The last commit that keeps no lock between its uses, and asks no session that does."""
HERE = Path(__file__)
REPOSITORY = os.environ.get("AIOLOCKS_TEST_REPOSITORY") or str(HERE.parents[2])
ROUNDS = 40
LONGEST_WAIT = 3.0
"""Seconds: all processes together need less for all their rounds."""
DEAD_WAITER = 2.0
"""Seconds for which the place of a waiter that was killed keeps others out."""


@pytest.fixture(scope="session")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it was."""
    return package_of(BEFORE, tmp_path_factory.mktemp("before"))


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of version 0.2.0."""
    return package_of(WITHOUT_DEFINITIONS, tmp_path_factory.mktemp("released"))


@pytest.fixture(scope="session")
def before_places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package whose waiters have no places."""
    return package_of(BEFORE_PLACES, tmp_path_factory.mktemp("before_places"))


@pytest.fixture(scope="session")
def before_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package without kept locks."""
    return package_of(BEFORE_CACHE, tmp_path_factory.mktemp("before_cache"))


def package_of(commit: str, path: Path) -> Path:
    archive = subprocess.run(
        ["git", "-C", REPOSITORY, "archive", commit, "aiolocks"], capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip(f"this is no clone that has the commit {commit}: AIOLOCKS_TEST_REPOSITORY may name one")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(path, filter="data")
    return path


async def start(server: Server, kind: str, path: Path, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE.with_name("worker.py")),
        server.url,
        kind,
        *(arguments or (str(ROUNDS),)),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(path)},
    )


ALIKE = {"reentrant", "semaphore", "fairlock", "rangelock"}
"""They wake through the scripts of another kind here: of permits, of spans, or those of a lock."""


@pytest.mark.leaves_keys
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.slow] if kind in ALIKE else [])
        for kind in KINDS
        if kind != "cached"
    ],
)
async def test_both_versions_exclude_and_wake_each_other(
    server: Server, redis: Redis, before: Path, kind: str
) -> None:
    now = Path(aiolocks.__file__).parents[1]
    processes = [await start(server, kind, path) for path in (before, now, before, now)]
    reports = [json.loads((await process.communicate())[0]) for process in processes]

    assert [process.returncode for process in processes] == [0] * 4
    assert len({report["version"] for report in reports}) == 2
    tokens = [int(token) for token in await redis.lrange("tokens", 0, -1)]
    assert len(tokens) == 4 * ROUNDS
    assert tokens == sorted(set(tokens))
    assert max(report["longest"] for report in reports) < LONGEST_WAIT
    await redis.delete("tokens", "inside")


@pytest.mark.leaves_keys
async def test_a_session_that_keeps_a_lock_hears_of_one_that_cannot_ask(
    server: Server, redis: Redis, before_cache: Path
) -> None:
    """Who cannot ask waits for the end of the cache time, or for the next renewal: a third of 5 s."""
    now = Path(aiolocks.__file__).parents[1]
    processes = [await start(server, "cached", path) for path in (now, before_cache, now, before_cache)]
    reports = [json.loads((await process.communicate())[0]) for process in processes]

    assert [process.returncode for process in processes] == [0] * 4
    assert [report["hits"] is None for report in reports] == [False, True, False, True]
    assert sum(report["hits"] or 0 for report in reports) > 0
    tokens = [int(token) for token in await redis.lrange("tokens", 0, -1)]
    assert len(tokens) == 4 * ROUNDS
    assert tokens == sorted(set(tokens))
    assert max(report["longest"] for report in reports) < LONGEST_WAIT
    await redis.delete("tokens", "inside")


@pytest.mark.leaves_keys
@pytest.mark.parametrize("kind", ["rwlock", pytest.param("rangelock", marks=pytest.mark.slow)])
async def test_readers_planners_and_writers_of_both_versions_exclude_and_starve_nobody(
    server: Server, redis: Redis, before_places: Path, kind: str
) -> None:
    """Also where a waiter of this version is killed, whose place a step of the other one does not remove."""
    now = Path(aiolocks.__file__).parents[1]
    processes = [
        await start(server, "phases", path, "4", kind) for path in (before_places, now, before_places, now)
    ]
    killed = await start(server, "waiter", now, kind)
    assert killed.stdout is not None
    await killed.stdout.readline()
    killed.kill()
    await killed.wait()
    reports = [json.loads((await process.communicate())[0]) for process in processes]

    assert [process.returncode for process in processes] == [0] * 4
    assert len({report["version"] for report in reports}) == 2
    for report in reports:
        assert min(report["entered"].values()) >= 2, reports
        assert max(report["longest"].values()) < LONGEST_WAIT + DEAD_WAITER, reports
    await redis.delete("readers", "writers", "planners")


EVERY = 0.25


async def runs_of(processes: list[asyncio.subprocess.Process]) -> list[list[tuple[float, int]]]:
    reports = [json.loads((await process.communicate())[0]) for process in processes]
    return [[(due, missed) for due, missed in report["runs"]] for report in reports]


def gaps(dues: list[float]) -> set[float]:
    return {round(one - other, 3) for other, one in itertools.pairwise(dues)}


@pytest.mark.leaves_keys
@pytest.mark.parametrize("misfire", [pytest.param("latest", marks=pytest.mark.slow), "all"])
async def test_a_schedule_goes_on_in_an_update_and_when_that_is_taken_back(
    server: Server, released: Path, misfire: str
) -> None:
    """The processes are replaced one by one, and then put back: each tick has one run, and none is missed."""
    now = Path(aiolocks.__file__).parents[1]
    options = json.dumps({"every": EVERY, "misfire": misfire, "ttl": 5})
    processes = []
    for path, seconds in ((released, 2.5), (released, 4), (now, 5), (now, 4), (released, 5), (released, 4)):
        processes.append(await start(server, "schedule", path, str(seconds), options))
        await asyncio.sleep(1.3)
    runs = await runs_of(processes)

    dues = sorted(due for one in runs for due, _ in one)
    assert gaps(dues) == {EVERY}
    assert {missed for one in runs for _, missed in one} == {0}
    assert all(runs[number] for number in range(6))


@pytest.mark.leaves_keys
async def test_t_p_14_a_schedule_that_an_update_changes_runs_each_tick_at_most_once(
    server: Server, released: Path
) -> None:
    """Neither those of the former times nor those of the new ones; and both go on."""
    now = Path(aiolocks.__file__).parents[1]
    former, latter = (json.dumps({"every": every, "misfire": "all", "ttl": 5}) for every in (0.25, 0.4))
    processes = [await start(server, "schedule", released, "4", former) for _ in range(2)]
    await asyncio.sleep(1.5)
    processes += [await start(server, "schedule", now, "5", latter) for _ in range(2)]
    runs = await runs_of(processes)

    for ours, every in ((runs[:2], 0.25), (runs[2:], 0.4)):
        dues = sorted(due for one in ours for due, _ in one)
        assert len(dues) == len(set(dues))
        assert len(dues) > 5
        assert {round(due / every % 1, 3) % 1 for due in dues} == {0.0}


@pytest.mark.leaves_keys
@pytest.mark.parametrize("misfire", ["latest", pytest.param("all", marks=pytest.mark.slow)])
async def test_what_was_missed_during_an_update_is_made_up_for(
    server: Server, released: Path, misfire: str
) -> None:
    now = Path(aiolocks.__file__).parents[1]
    options = json.dumps({"every": EVERY, "misfire": misfire, "ttl": 5})
    runs = []
    for path in (released, now, released):
        runs += await runs_of([await start(server, "schedule", path, "1.5", options)])
        await asyncio.sleep(0.8)
    told = [due - apart * EVERY for one in runs for due, missed in one for apart in range(missed + 1)]
    assert gaps(sorted(told)) == {EVERY}
    assert (max(missed for one in runs for _, missed in one) > 0) is (misfire == "latest")
