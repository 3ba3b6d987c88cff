"""Learning which node of a cluster serves which slot."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, cast

import pytest

from aiolocks.transport.cluster import slots
from aiolocks.transport.cluster.members import Members, OutdatedError, StrangerError
from aiolocks.transport.driver import Address, UnreadableReplyError
from aiolocks.transport.keys import slot_of
from tests.unit.fakes import FakeTable

NODES = 4


class Node:
    """One of several that all answer at the same time; one of them knows."""

    def __init__(self, go: asyncio.Event, *, knows: bool) -> None:
        self._go = go
        self._knows = knows

    async def cluster_table(self) -> Any:
        await self._go.wait()
        if not self._knows:
            raise ConnectionRefusedError("not here")
        return [[0, slots.SLOTS - 1, [b"there", 1]]], None


class Nodes:
    seeds = tuple(("node", number) for number in range(NODES))

    def __init__(self, knows: int) -> None:
        self.go = asyncio.Event()
        self._knows = knows
        self._asked = 0

    def connector(self, _: Address) -> Node:
        self._asked += 1
        if self._asked == NODES:
            self.go.set()
        return Node(self.go, knows=self._asked == self._knows)

    def address(self, host: str, port: int) -> Address:
        return host, port


@pytest.mark.parametrize("knows", range(1, NODES + 1))
async def test_of_those_that_fail_beside_one_that_knows_nothing_is_heard(
    monkeypatch: pytest.MonkeyPatch, knows: int
) -> None:
    monkeypatch.setattr(slots, "_STAGGER", 0.001)
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    table = slots.Slots(cast("Any", Nodes(knows)))
    await table.learn()
    await asyncio.sleep(0)
    gc.collect()
    assert table.owner(0) == ("there", 1)
    assert not complaints


class Gone:
    async def cluster_table(self) -> Any:
        await asyncio.get_running_loop().create_future()


class One:
    """One node is there; of the many that were there before, none answers."""

    seeds = tuple(("gone", number) for number in range(50))

    def __init__(self) -> None:
        self.asked: list[Address] = []

    def connector(self, address: Address) -> Any:
        self.asked.append(address)
        there = address == ("there", 1) or len(self.asked) == len(self.seeds)
        go = asyncio.Event()
        go.set()
        return Node(go, knows=True) if there else Gone()

    def address(self, host: str, port: int) -> Address:
        return host, port


async def test_those_that_serve_any_are_asked_before_those_that_may_have_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "_STAGGER", 0.001)
    nodes = One()
    table = slots.Slots(cast("Any", nodes))
    await table.learn()
    del nodes.asked[:]
    await table.learn()
    assert nodes.asked[0] == ("there", 1)


def table(*ids: str) -> Any:
    """Rows in which each of these nodes has a replica of its own."""
    return [
        [number, number, [b"node", number, name.encode()], [b"replica", number, name.upper().encode()]]
        for number, name in enumerate(ids)
    ]


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ("abc", "abc", True),
        ("abc", "cde", True),
        ("abc", "abcdefg", True),
        ("abcdefg", "g", True),
        ("abc", "def", False),
        ("a", "b", False),
        ("", "b", True),  # any is believed at first
        ("a", "", True),  # says nothing
    ],
)
def test_a_table_is_of_the_same_cluster_if_it_shares_a_node(before: str, now: str, same: bool) -> None:
    members = Members()
    members.learn(table(*before))
    if same:
        ids = members.check(table(*now), ("next", 2))
        assert ids == {name.encode() for letter in now for name in (letter, letter.upper())}
    else:
        with pytest.raises(StrangerError, match="next:2 belongs to another cluster"):
            members.check(table(*now), ("next", 2))
        members.learn(table(*now))  # and so that one is not believed either
        members.check(table(*before), ("first", 1))


def test_nodes_that_were_replaced_one_by_one_are_followed() -> None:
    members = Members()
    for ids in ("ab", "bc", "cd"):
        members.learn(table(*ids))
    members.check(table("d"), ("next", 2))
    with pytest.raises(StrangerError):  # it left, and belongs to another cluster by now
        members.check(table("a"), ("next", 2))


def test_a_table_that_is_older_than_one_before_is_not_believed() -> None:
    members = Members()
    members.believe(members.check(table("a", "b"), ("first", 1), 7), 7)
    with pytest.raises(OutdatedError, match=r"next:2 knows an older state .* \(epoch 6, and 7 was known"):
        members.check(table("a", "b"), ("next", 2), 6)
    members.check(table("a", "b"), ("next", 2))  # it may not be asked for the epoch
    members.believe(members.check(table("a", "b"), ("next", 2), 8), 8)
    with pytest.raises(OutdatedError):
        members.check(table("a", "b"), ("first", 1), 7)


async def test_a_hash_tag_is_of_a_slot_of_the_node() -> None:
    middle = slots.SLOTS // 2
    halves = FakeTable((0, middle - 1, ("low", 1)), (middle, slots.SLOTS - 1, ("high", 1)))
    known = slots.Slots(cast("Any", halves))
    await known.learn()
    refused: list[int] = []
    tag: bytes | None
    for host in ("low", "high", "low", "high"):
        tag = known.tag((host, 1), beside=refused)
        assert tag is not None
        slot = slot_of(b"key " + tag)
        assert known.owner(slot) == (host, 1)
        assert slot not in refused
        refused.append(slot)
    assert known.tag(("nobody", 1), beside=()) is None


@pytest.mark.parametrize("slot", [0, 1, 7, 5_000, slots.SLOTS - 1])
async def test_a_hash_tag_is_found_for_the_only_slot_of_a_node(slot: int) -> None:
    known = slots.Slots(cast("Any", FakeTable((slot, slot, ("one", 1)))))
    await known.learn()
    tag = known.tag(("one", 1), beside=())
    assert tag is not None
    assert slot_of(tag) == slot
    assert known.tag(("one", 1), beside=(slot,)) is None


@pytest.mark.parametrize(
    "rows",
    [
        b"OK",
        None,
        17,
        [b"x"],
        [[0, 16_383]],
        [[0, 16_383, []]],
        [[0, 16_383, [b"here", None]]],
        [[0, 1, [1, 2]]],
    ],
)
async def test_what_is_no_table_is_an_error_of_the_connection(rows: Any) -> None:
    """As of a proxy that answers whatever it is asked; then another node may know."""

    class Liar(Gone):
        async def cluster_table(self) -> Any:
            return rows, None

    nodes = One()
    nodes.connector = lambda _: Liar()  # type: ignore[method-assign]
    table = slots.Slots(cast("Any", nodes))
    with pytest.raises(UnreadableReplyError, match=r"the table of slots that gone:\d+ gave cannot be read"):
        await table.learn()
    table.members.learn(rows)
