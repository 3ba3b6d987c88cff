"""The time that others wait is counted once, in its minutes, and for the holders of that time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from aiolocks import HolderInfo, LockInfo, WaiterInfo
from aiolocks.contrib.dashboard._heat import Heat
from aiolocks.contrib.dashboard._history import Histories
from aiolocks.contrib.dashboard._views import View, Viewer
from aiolocks.inspect.census import Reading

HOUR = 1_800_000_000.0
"""A full hour: the minutes of the tests begin with it."""


def read(now: float, *, kind: str = "lock", holders: Any = (), waiters: Any = (), more: int = 0) -> LockInfo:
    """The findings at that second of the hour: holders by name and since when, waiters by since when."""
    moment = HOUR + now
    return LockInfo(
        kind=kind,
        name="name",
        holders=tuple(
            HolderInfo(lease_id=name, held_since=HOUR + since, held_for=now - since)
            for name, since in holders
        ),
        waiters=len(waiters) + more,
        waiting=tuple(
            WaiterInfo(waiting_since=HOUR + since, waited_for=moment - HOUR - since) for since in waiters
        ),
    )


class Looks:
    """One look after the other at the same name."""

    def __init__(self, kind: str = "lock") -> None:
        self.heat = Heat()
        self.place = kind, "name"
        self.before: LockInfo | None = None

    def look(self, now: float, **found: Any) -> None:
        info = read(now, kind=self.place[0], **found)
        self.heat.look(HOUR + now)
        self.heat.add(Reading(self.place, self.before, info), HOUR + now)
        self.before = info

    def charged(self) -> dict[str, float]:
        return {one.holder.lease_id: round(one.seconds, 3) for one in self.heat.charged(9)}


def test_a_wait_counts_once_and_from_its_beginning() -> None:
    looks = Looks()
    looks.look(200, holders=[("a", 0)], waiters=[110])
    assert looks.charged() == {"a": 90}
    looks.look(200.5, holders=[("a", 0)], waiters=[110])
    assert looks.charged() == {"a": 90.5}
    assert looks.heat.total(looks.place) == 90.5
    assert looks.heat.levels(looks.place)[-3:] == "343"  # 10 s, 60 s, 20.5 s
    assert looks.heat.levels(looks.place)[:-3] == "-" * 57


def test_after_a_hand_over_each_holder_is_charged_its_own_time() -> None:
    looks = Looks()
    looks.look(10, holders=[("a", 0)], waiters=[9, 9.5])
    looks.look(10.5, holders=[("b", 10.3)], waiters=[9.5])
    assert looks.charged() == {"a": 1.8, "b": 0.2}


def test_several_holders_are_charged_equal_shares() -> None:
    looks = Looks("semaphore")
    looks.look(10, holders=[("a", 0), ("b", 0)], waiters=[4], more=2)
    assert looks.charged() == {"a": 9, "b": 9}  # the two that are not described came later, or then


def test_a_gap_is_filled_for_those_that_still_wait() -> None:
    looks = Looks()
    looks.look(0, holders=[("a", 0)], waiters=[0])
    looks.look(600, holders=[("a", 0)], waiters=[0])
    assert looks.charged() == {"a": 600}
    assert looks.heat.levels(looks.place)[-11:] == "44444444440"


def test_candidates_of_a_leadership_are_no_heat() -> None:
    looks = Looks("leadership")
    looks.look(10, holders=[("a", 0)], waiters=[0])
    assert looks.charged() == {}
    assert looks.heat.hottest(9) == []


def test_after_an_hour_it_is_forgotten() -> None:
    looks = Looks()
    looks.look(0.5, holders=[("a", 0)], waiters=[0])
    looks.look(1, holders=[("b", 0.9)])
    assert looks.heat.hottest(9) == [(looks.place, 0.5)]
    looks.look(3_700, holders=[("b", 0.9)])
    assert looks.heat.hottest(9) == []
    assert looks.charged() == {}


def test_a_hold_that_has_ended_is_remembered() -> None:
    histories, place = Histories(), ("lock", "name")
    before, now = read(10, holders=[("a", 0), ("b", 1)]), read(10.5, holders=[("b", 1)])
    (ended,) = Reading(place, before, now).gone
    assert ended.lease_id == "a"
    histories.add(place, ended, HOUR + 10.5, 3)
    (held,) = histories.of(place)
    assert (held.holder, held.until - HOUR, held.seen - HOUR, held.charged) == (ended, 10.5, 10, 3)
    assert [one.lease_id for one in Reading(place, now, None).gone] == ["b"]


@pytest.mark.parametrize("behind", [3, 30])
async def test_a_viewer_that_is_far_behind_gets_the_whole_page_again(behind: int) -> None:
    view, viewer = View(), Viewer()
    view.viewers.add(viewer)
    for at in range(behind):
        view.publish({"fact": at}, {"rows": [{"id": "a", "at": at}, {"id": "b", "at": 0}]}, HOUR)
    messages = await viewer.next(1)
    assert messages is not None
    events = [json.loads(event.removeprefix(b"data: ")) for event in messages.split(b"\n\n")[:-1]]
    assert events[0]["whole"]
    assert not any(event["whole"] for event in events[1:])
    assert len(events) == (3 if behind == 3 else behind - 20)
    assert events[-1]["facts"] == {"fact": behind - 1}
    assert events[-1]["sections"]["rows"]["rows"] == [{"id": "a", "at": behind - 1}]
    assert await viewer.next(0.001) == b""
    asyncio.get_running_loop().call_soon(viewer.end)
    assert await viewer.next(1) is None
