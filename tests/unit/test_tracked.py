"""The leases of whose loss the server tells: when the session asks, and when it does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiolocks.lock.renewal import Tracked
from aiolocks.transport import GONE_SILENT


class Lease:
    """Stands for a watch and its possession."""

    def __init__(self, *, alone: bool = False) -> None:
        self.alone = alone
        self.asked: list[bool] = []

    def told(self, *, changed: bool) -> None:
        self.asked.append(changed)


@pytest.fixture
async def world() -> Any:
    heard: list[tuple[str, Any]] = []
    tracked = Tracked(asyncio.get_running_loop(), lambda way, keys: heard.append((way, keys)))
    forgotten: list[bytes] = []
    tracked.forget = forgotten.append
    return tracked, heard, forgotten


async def test_a_change_is_asked_about_once(world: Any) -> None:
    tracked, heard, _ = world
    one, other = Lease(), Lease()
    tracked.arm(one, (b"a",))
    tracked.arm(other, (b"b",))

    tracked.rung("tracking", [b"a", b"bell"])
    tracked.rung("tracking", [b"a"])

    assert (one.asked, other.asked) == ([True], [])
    assert heard == [("tracking", [b"a", b"bell"]), ("tracking", [b"a"])]
    tracked.arm(one, (b"a",))  # by the next renewal
    tracked.rung("tracking", [b"a"])
    assert one.asked == [True, True]


async def test_where_anything_may_have_changed_all_are_asked(world: Any) -> None:
    tracked, heard, _ = world
    leases = [Lease() for _ in range(3)]
    for number, lease in enumerate(leases):
        tracked.arm(lease, (b"%d" % (number // 2),))

    tracked.rung("tracking", None)

    assert [lease.asked for lease in leases] == [[True]] * 3
    assert heard == [("tracking", None)]
    assert len(tracked) == 0


async def test_the_end_of_the_connection_is_no_change_and_no_bell(world: Any) -> None:
    tracked, heard, _ = world
    tracked.arm(lease := Lease(), (b"a",))

    tracked.rung(GONE_SILENT, None)

    assert (lease.asked, heard) == ([False], [])


async def test_what_was_let_go_of_is_not_asked_about(world: Any) -> None:
    tracked, _, forgotten = world
    first, second, third = (Lease() for _ in range(3))
    for lease in (first, second, third):
        tracked.arm(lease, (b"a",))
    tracked.disarm(second, (b"a",))
    assert forgotten == []  # others of this session rely on it

    tracked.rung("tracking", [b"a"])
    assert [lease.asked for lease in (first, second, third)] == [[True], [], [True]]

    tracked.arm(first, (b"a",))
    tracked.disarm(second, (b"a",))
    assert forgotten == []
    tracked.disarm(first, (b"a",))
    assert (forgotten, len(tracked)) == ([b"a"], 0)


async def test_a_key_of_several_is_asked_about_each_tenth_of_a_second(world: Any) -> None:
    tracked, _, _ = world
    leases = [Lease(), Lease()]
    for _ in range(20):
        for lease in leases:
            tracked.arm(lease, (b"a",))
        tracked.rung("tracking", [b"a"])
    assert [lease.asked for lease in leases] == [[True], [True]]

    await asyncio.sleep(0.15)
    assert [len(lease.asked) for lease in leases] == [2, 2]
    await asyncio.sleep(0.15)
    assert [len(lease.asked) for lease in leases] == [2, 2]


async def test_one_that_speaks_for_its_key_is_told_alone(world: Any) -> None:
    tracked, _, _ = world
    kept, lease = Lease(alone=True), Lease()
    tracked.arm(kept, (b"a",))
    tracked.arm(lease, (b"a",))

    tracked.rung("tracking", [b"a"])

    assert (kept.asked, lease.asked) == ([True], [])
    tracked.arm(lease, (b"a",))  # it is a lease like any other now
    tracked.rung("tracking", [b"a"])
    assert (kept.asked, lease.asked) == ([True], [True])
