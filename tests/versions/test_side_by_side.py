"""Processes of this version and of the one before it on one server, as in a rolling update."""

from __future__ import annotations

import asyncio
import io
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
HERE = Path(__file__)
REPOSITORY = os.environ.get("AIOLOCKS_TEST_REPOSITORY") or str(HERE.parents[2])
ROUNDS = 40
LONGEST_WAIT = 3.0
"""Seconds: all processes together need less for all their rounds."""


@pytest.fixture(scope="session")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it was."""
    archive = subprocess.run(
        ["git", "-C", REPOSITORY, "archive", BEFORE, "aiolocks"], capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip(f"this is no clone that has the commit {BEFORE}: AIOLOCKS_TEST_REPOSITORY may name one")
    path = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(path, filter="data")
    return path


async def start(server: Server, kind: str, path: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE.with_name("worker.py")),
        server.url,
        kind,
        str(ROUNDS),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(path)},
    )


@pytest.mark.leaves_keys
@pytest.mark.parametrize("kind", KINDS)
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
