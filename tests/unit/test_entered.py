"""The leases that tasks have entered, as a session knows them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from aiolocks.lock.blocks import Entered, held


class Possession:
    """One, as far as it matters here."""

    def __init__(self, *, holds: bool = True, lasting: bool = True) -> None:
        self.holds = holds
        self.term = self
        self.lasting = lasting


@pytest.fixture
def entered() -> Entered:
    return Entered()


@pytest.fixture
async def task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def enter(entered: Any, task: asyncio.Task[Any], possession: Possession) -> Possession:
    entered.add(task, weakref.ref(possession))
    return possession


async def test_by_task_and_in_order(entered, task) -> None:
    outer, inner = (enter(entered, task, Possession()) for _ in range(2))
    another = asyncio.create_task(asyncio.sleep(0))

    assert held(entered.by(id(task))) == [outer, inner]
    assert held(entered.by(id(another))) == []
    assert held(entered.by(id(None))) == []
    await another


async def test_left_in_any_order(entered, task) -> None:
    first, second, third = (enter(entered, task, Possession()) for _ in range(3))

    entered.remove(task, second)
    assert held(entered.by(id(task))) == [first, third]
    entered.remove(task, second)  # once more does nothing
    entered.remove(task, first)
    entered.remove(task, third)
    entered.remove(task, third)
    assert held(entered.by(id(task))) == []
    assert entered._of == {}


async def test_only_what_is_held_still(entered, task) -> None:
    enter(entered, task, over := Possession(holds=False))
    enter(entered, task, ending := Possession(lasting=False))
    enter(entered, task, lasting := Possession())

    assert held(entered.by(id(task))) == [ending, lasting]
    assert held(entered.by(id(task)), lasting=True) == [lasting]
    assert not over.holds


async def test_keeps_nothing_alive(entered, task) -> None:
    possession = enter(entered, task, Possession())
    known = weakref.ref(possession)
    kept = enter(entered, task, Possession())
    del possession
    gc.collect()

    assert known() is None
    assert held(entered.by(id(task))) == [kept]
    entered.remove(task, kept)
    assert entered._of == {}
