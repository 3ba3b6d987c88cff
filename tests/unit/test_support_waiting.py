"""`eventually` waits for what comes and says what did not."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import eventually


async def test_returns_what_came() -> None:
    values = iter([None, 0, "", "value"])

    assert await eventually(lambda: next(values)) == "value"


async def test_takes_coroutine_functions() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, event.set)

    async def is_set() -> bool:
        return event.is_set()

    assert await eventually(is_set) is True


async def test_says_what_did_not_come_and_when_it_gave_up() -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()

    with pytest.raises(AssertionError, match=r"(?s)still 0 after 0\.03 s: .*lambda: len\(\[\]\)"):
        await eventually(lambda: len([]), within=0.03)

    assert 0.03 <= loop.time() - start < 0.3


async def test_looks_at_least_twice() -> None:
    """However late it is woken: before giving up it looks once more."""
    looks: list[int] = []

    with pytest.raises(AssertionError):
        await eventually(lambda: looks.append(1), within=0)
    assert len(looks) == 1

    with pytest.raises(AssertionError):
        await eventually(lambda: looks.append(1), within=0.0001)
    assert len(looks) == 3
