"""The script by which sessions tell each other of long waits: every branch.

A test that asks for `waits` alone is also run on mutants of the script, by the test at the end.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.lua.mutants import checks, compiled, lines_left_out, unnoticed
from tests.lua.scripts import MINUTE, Scripts, about

pytestmark = pytest.mark.leaves_keys("aiolocks*:waits*")

STEP = "waits_publish"
SHORT = 60
"""Milliseconds."""


class WaitsScripts(Scripts):
    """The records that sessions publish."""

    kind = "waits"

    async def publish(self, record: str = "", replaces: str = "", *, ms: int = MINUTE, most: int = 10) -> Any:
        return await self.run(self.words(STEP, [self.key()], record, replaces, ms, most))


@pytest.fixture
def waits(redis, prefix) -> WaitsScripts:
    return WaitsScripts(redis, prefix)


async def test_a_record_is_read_by_all_until_it_is_taken_back(waits) -> None:
    assert await waits.publish() == []
    assert await waits.publish("a1") == [b"a1"]
    await asyncio.sleep(0.002)
    assert await waits.publish("b1") == [b"a1", b"b1"]
    await asyncio.sleep(0.002)
    assert await waits.publish("a2", "a1") == [b"b1", b"a2"]
    assert await waits.publish("a3", "never") == [b"b1", b"a2", b"a3"], "the last one was lost on its way"
    assert await waits.publish(most=1) == [b"b1"]
    for record in ("b1", "a2", "a3"):
        await waits.publish("", record)
    assert await waits.state() == {}


async def test_a_record_ends_by_itself_and_so_does_the_key(waits) -> None:
    await waits.publish("a1", ms=SHORT)
    await waits.publish("b1")
    assert about((await waits.ttls())[waits.key()], MINUTE)
    await asyncio.sleep(2 * SHORT / 1000)
    assert await waits.publish() == [b"b1"]
    assert await waits.redis.zcard(waits.key()) == 1
    await waits.publish("", "b1")
    await waits.publish("c1", ms=SHORT)
    await asyncio.sleep(2 * SHORT / 1000)
    assert await waits.state() == {}


CHECKS = checks(globals(), "waits")


async def test_each_line_is_needed(redis, prefix) -> None:
    mutants = [(name, STEP, text) for name, text in lines_left_out(STEP)]
    living = await compiled(WaitsScripts, redis, prefix, STEP, mutants)
    assert living
    assert await unnoticed(WaitsScripts, redis, prefix, living, among=CHECKS) == []
