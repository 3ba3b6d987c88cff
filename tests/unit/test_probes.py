"""The keys with which a node of a cluster is tried out, and what waits for it meanwhile."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from aiolocks.transport.cluster.clustered import Clustered
from aiolocks.transport.cluster.slots import Slots
from aiolocks.transport.connection import Multiplexed
from aiolocks.transport.dialect import Dialect
from aiolocks.transport.driver import Address
from aiolocks.transport.faults import Redirect
from aiolocks.transport.hearing import ASKING, Wakeups
from aiolocks.transport.keys import SLOTS, slot_of, tag_of
from aiolocks.transport.outages import Outage, Outages
from aiolocks.transport.request import Request, ignore
from aiolocks.transport.steps.listening import trial
from tests.unit.fakes import FakeTable

LOW, HIGH = ("low", 1), ("high", 2)
MIDDLE = SLOTS // 2


class Unreached:
    """A cluster of whose nodes none is reached."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.table = FakeTable((0, MIDDLE - 1, LOW), (MIDDLE, SLOTS - 1, HIGH))
        self.slots = Slots(cast("Any", self.table))
        self.nodes: dict[Address, Multiplexed] = {}
        self._loop = loop
        self.whole = Clustered(
            self.slots, self.open, lambda _, __: None, loop, outage=Outage("the cluster", Outages(loop))
        )

    def open(self, address: Address, cluster: Clustered) -> Multiplexed:
        async def never(*_: object) -> Any:
            await self._loop.create_future()

        self.nodes[address] = node = Multiplexed(
            never,
            Dialect(),
            Wakeups("poll", trial=lambda _: trial(b""), on_rung=lambda _, __: None),
            cast("Any", None),
            self._loop,
            outage=Outage(str(address), Outages(self._loop)),
            router=cluster,
        )
        return node

    def call(self, key: bytes) -> Request[int]:
        return trial(key).ask(ignore, ignore, until=self._loop.time() + 60)

    def send(self, key: bytes) -> Request[int]:
        call = self.call(key)
        self.whole.send(call)
        return call


@pytest.fixture
async def cluster() -> AsyncIterator[Unreached]:
    cluster = Unreached(asyncio.get_running_loop())
    await cluster.slots.learn()
    yield cluster
    await cluster.whole.aclose(0.0)


def of(low: bool, other_than: bytes = b"") -> bytes:
    """A key in a slot of one of the two nodes."""
    keys = (b"prefix:lock:{%d}" % number for number in range(100))
    return next(key for key in keys if (slot_of(key) < MIDDLE) is low and key != other_than)


async def test_it_is_in_a_slot_that_somebody_waits_for_and_else_in_any_of_the_node(
    cluster: Unreached,
) -> None:
    waits = of(low=True)
    cluster.send(waits)
    turned_away: list[bytes] = []
    for _ in range(4):
        probe = cluster.whole.probes.key(cluster.nodes[LOW], b"probe", turned_away)
        assert probe is not None
        assert probe.startswith(b"probe{")
        assert slot_of(probe) < MIDDLE
        assert slot_of(probe) not in map(slot_of, turned_away)
        turned_away.append(probe)
    assert slot_of(turned_away[0]) == slot_of(waits)


async def test_what_waits_for_a_slot_that_has_moved_goes_to_the_other_node(cluster: Unreached) -> None:
    moved, stays = of(low=True), of(low=True, other_than=of(low=True))
    first, stayed, second = cluster.send(moved), cluster.send(stays), cluster.send(moved)
    asked = cluster.table.asked
    cluster.whole.trial_redirected(cluster.nodes[LOW], moved, Redirect(HIGH))
    assert cluster.nodes[HIGH].waiting() == (first, second)
    assert cluster.nodes[LOW].waiting() == (stayed,)
    assert cluster.send(moved) in cluster.nodes[HIGH].waiting()
    for _ in range(10):
        await asyncio.sleep(0)
    assert cluster.table.asked == asked + 1  # what else has moved?


async def test_what_is_sent_to_and_fro_waits_in_between(cluster: Unreached) -> None:
    """Where ASKING is denied, say, a node does not take what it is being given: no loop of connections."""
    moving = of(low=True)
    call = cluster.send(moving)
    cluster.whole.trial_redirected(cluster.nodes[LOW], moving, Redirect(HIGH))
    assert cluster.nodes[HIGH].waiting() == (call,)
    cluster.whole.trial_redirected(cluster.nodes[HIGH], moving, Redirect(LOW))
    assert cluster.nodes[LOW].waiting() == ()
    while not cluster.nodes[LOW].waiting():
        await asyncio.sleep(0.001)


async def test_what_goes_to_the_other_node_is_sent_as_where_no_slot_moves(cluster: Unreached) -> None:
    """It had been sent to a node that was being given the slot, which that node has lost, or never had."""
    moved = of(low=False)
    cluster.send(moved)
    node = cluster.nodes[HIGH]
    asking = Request(None, (), ASKING, ignore).ask(ignore, ignore, until=math.inf)
    call = cluster.call(moved)
    call.elsewhere = call.mid_move = True
    node.send(asking)
    node.send(call)
    cluster.whole.trial_redirected(node, moved, Redirect(LOW))
    assert node.waiting() == ()
    assert call in cluster.nodes[LOW].waiting()
    assert not call.elsewhere
    assert not call.mid_move


@pytest.mark.parametrize("name", [b"orders", b"a}b", b"a{}b", b"}{x}", b"{", b"{{a}b}", b"a{b"])
async def test_any_key_may_wait(cluster: Unreached, name: bytes) -> None:
    """Locks of redis-py have whatever names their users give them."""
    cluster.send(name)
    (node,) = cluster.nodes.values()
    probe = cluster.whole.probes.key(node, b"probe", ())
    assert probe is not None
    tag = tag_of(name)
    if tag is not None:
        assert probe == b"probe" + tag
        assert slot_of(probe) == slot_of(name)
    assert (slot_of(probe) < MIDDLE) is (slot_of(name) < MIDDLE)
    assert (tag is None) is (name in (b"a}b", b"a{}b"))


async def test_a_node_without_a_slot_has_no_probe(cluster: Unreached) -> None:
    cluster.send(of(low=True))
    probe = cluster.whole.probes.key(cluster.nodes[LOW], b"probe", ())
    await cluster.slots.learn()
    for slot in range(MIDDLE):
        cluster.slots.move(slot, HIGH)
    assert probe is not None
    assert cluster.whole.probes.key(cluster.nodes[LOW], b"probe", (probe,)) is None


async def test_what_waits_for_a_slot_that_is_moving_waits_on(cluster: Unreached) -> None:
    """Its keys may still be there."""
    moving = of(low=True)
    call = cluster.send(moving)
    cluster.whole.trial_redirected(cluster.nodes[LOW], moving, Redirect(HIGH, once=True))
    assert cluster.nodes[LOW].waiting() == (call,)
    assert HIGH not in cluster.nodes


async def test_a_node_that_is_left_meanwhile_is_asked_for_no_more(cluster: Unreached) -> None:
    call = cluster.send(of(low=True))
    current = cluster.nodes[LOW]
    left = cluster.open(LOW, cluster.whole)
    assert cluster.whole.probes.key(left, b"probe", ()) is None
    cluster.whole.trial_redirected(left, of(low=True), Redirect(HIGH))
    assert current.waiting() == (call,)
