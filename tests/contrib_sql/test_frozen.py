"""The invariant of fences, against holders that stand still."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import statistics
from collections import Counter
from pathlib import Path

import pytest
from redis.asyncio import Redis

from aiolocks import Session
from tests.conftest import Connect
from tests.contrib_sql.conftest import make_tables
from tests.contrib_sql.databases import Database
from tests.contrib_sql.frozen import PLACES, TTL, Lane, Round

LANES = 10
SLACK = 3.0
"""Seconds for which a busy machine may stand still."""

log = logging.getLogger("tests.frozen")


@pytest.mark.leaves_keys
@pytest.mark.parametrize(
    "rounds", [30, pytest.param(2000, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])]
)
async def test_nothing_of_a_frozen_transaction_commits_once_the_fence_has_returned(
    database: Database, redis: Redis, connect: Connect, prefix: str, tmp_path: Path, rounds: int
) -> None:
    async with Session(redis, prefix=prefix) as here, Session(connect(), prefix=prefix) as there:
        lanes = [
            Lane(own(database, tmp_path, number), number, redis, prefix, (here, there))
            for number in range(LANES)
        ]

        async def run(number: int, lane: Lane) -> list[Round]:
            return [await lane.play(turn) for turn in range(number, rounds, LANES)]

        try:
            async with asyncio.TaskGroup() as tasks:
                played = [tasks.create_task(run(number, lane)) for number, lane in enumerate(lanes)]
        finally:
            for lane in lanes:
                await lane.aclose()
    results = [result for task in played for result in task.result()]
    for result in results:
        assert result.left == result.seen, result
        assert result.left == (["a", "b"] if result.ended == "committed" else []), result
        # Each wait of a fence ends by itself: PostgreSQL ends what is in the way, SQLite gives up.
        assert max(result.waited) <= TTL + SLACK, result
    endings = Counter(result.ended for result in results)
    waited = [seconds for result in results for seconds in result.waited]
    log.info(
        "%d rounds: %s; a fence waited %.3f s at most, %.4f s in the median",
        len(results),
        dict(endings),
        max(waited),
        statistics.median(waited),
    )
    if rounds > 1000:
        assert {result.place for result in results} == set(range(PLACES))
        assert {"committed", "LockLostError", "StaleFenceError"} <= set(endings)
        assert ("ended by the server" in endings) is database.is_postgresql


def own(database: Database, directory: Path, number: int) -> Database:
    """SQLite has one writer: a file for each lane."""
    if database.is_postgresql:
        return database
    own = dataclasses.replace(database, url=f"sqlite+aiosqlite:///{directory / f'{number}.db'}")
    make_tables(own)
    return own
