"""How a session finds out which way of hearing there is."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest
import redis.exceptions as driver

from aiolocks.transport import faults
from aiolocks.transport.hearing import Wakeups, confirms
from aiolocks.transport.request import Request
from aiolocks.transport.steps.listening import trial

MOVED = driver.MovedError("1 127.0.0.1:7000")
ASK = driver.AskError("1 127.0.0.1:7000")
DOWN = driver.ClusterDownError("CLUSTERDOWN The cluster is down")
DENIED = driver.NoPermissionError("User has no permissions to run the 'ssubscribe' command")
FULL = driver.OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")
UNKNOWN = driver.ResponseError("unknown command 'SSUBSCRIBE'")


class Node:
    """A node of a cluster that turns trials away, and has a number of slots to try."""

    def __init__(self, *answers: Exception | None, slots: int = 100) -> None:
        self.tried: list[int] = []
        self.told: list[bytes] = []
        self.wakeups = Wakeups(
            "keyspace",
            trial=self._trial,
            turned_away=lambda bell, _: self.told.append(bell),
            on_rung=lambda _, __: None,
        )
        self.answers = list(answers)
        self.slots = slots

    async def begin(self) -> None:
        await self.wakeups.begin(self._ask, protocol=3, database=0)

    def _trial(self, turned_away: Collection[bytes]) -> Request[int] | None:
        if len(turned_away) == self.slots:
            return None
        self.tried.append(len(turned_away))
        return trial(b"probe %d" % len(turned_away))

    def _ask(self, *words: Any) -> asyncio.Future[Any]:
        answer = asyncio.get_running_loop().create_future()
        refusal = None
        if words[0] == "EVAL":
            refusal = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if refusal is None:
                self.wakeups.pushed([b"message", b"__keyspace@0__:" + words[3], b"del"])
        if refusal is not None:
            answer.set_exception(refusal)
            answer.exception()
        else:
            answer.set_result(b"OK")
        return answer


@pytest.mark.parametrize(("redirect", "trials"), [(MOVED, 8), (DOWN, 1)], ids=["moved", "down"])
async def test_a_node_that_has_lost_the_slots_of_the_trials_is_asked_again(
    redirect: Exception, trials: int
) -> None:
    """A new connection tries the hearing out on a key; its slot may move at this very moment, and others."""
    node = Node(redirect)
    with pytest.raises(driver.ConnectionError, match="the node has no slot") as caught:
        await node.begin()
    why = (
        "its cluster has no majority" if redirect is DOWN else "other nodes have the 8 slots that were tried"
    )
    assert why in str(caught.value)
    assert not faults.is_final(caught.value)
    assert node.tried == list(range(trials))
    assert node.told == ([] if redirect is DOWN else [b"probe %d" % number for number in node.tried])


async def test_where_one_slot_is_turned_away_another_one_tells() -> None:
    node = Node(ASK, MOVED, None)
    await node.begin()
    assert node.tried == [0, 1, 2]
    assert node.wakeups.name == "keyspace"
    assert node.wakeups.hears


async def test_a_node_without_another_slot_is_not_tried_again() -> None:
    node = Node(MOVED, slots=2)
    with pytest.raises(driver.ConnectionError, match="the node has no slot"):
        await node.begin()
    assert node.tried == [0, 1]

    node = Node(MOVED, slots=0)
    with pytest.raises(driver.ConnectionError, match="by the table, it has none"):
        await node.begin()


@pytest.mark.parametrize("slots", [1, 2, 100])
async def test_a_node_whose_last_slots_are_being_moved_away_serves_without_a_trial(slots: int) -> None:
    node = Node(ASK, slots=slots)
    await node.begin()
    assert node.wakeups.hears
    assert node.tried == list(range(min(slots, 8)))


@pytest.mark.parametrize("answers", [(ASK, MOVED), (MOVED, ASK), (ASK, DOWN)])
async def test_a_node_that_has_lost_one_of_its_slots_is_connected_to_again(
    answers: tuple[Exception, Exception],
) -> None:
    with pytest.raises(driver.ConnectionError, match="the node has no slot"):
        await Node(*answers, slots=2).begin()


async def test_a_push_may_come_before_the_first_way_is_chosen() -> None:
    """The server may forget all that is tracked, as FLUSHALL makes it, while the connection is set up."""
    told: list[tuple[str, object]] = []
    wakeups = Wakeups(
        "auto", trial=lambda _: trial(b"probe"), on_rung=lambda way, bells: told.append((way, bells))
    )

    def ask(*words: Any) -> asyncio.Future[Any]:
        wakeups.pushed([b"invalidate", None])
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(b"OK")
        return answer

    await wakeups.begin(ask, protocol=3, database=0)

    assert set(told) == {("tracking", None)}


# -- slots that leave

BELL = b"aiolocks:lock.bell.x:{a}"
BESIDE = b"aiolocks:lock.bell.y:{a}"


class Listening(Node):
    """A node that is listened to; what it is asked before bells are hung up."""

    def __init__(self, *, refuses: Exception | None = None) -> None:
        super().__init__(None)
        self.rung: list[Any] = []
        self.refuses = refuses
        self.wakeups = Wakeups(
            "keyspace",
            trial=self._trial,
            turned_away=lambda bell, _: self.told.append(bell),
            on_rung=lambda _, bells: self.rung.append(bells),
        )

    def _ask(self, *words: Any) -> asyncio.Future[Any]:
        if words[0] == "SSUBSCRIBE" and self.refuses is not None:
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            answer.set_exception(self.refuses)
            return answer
        return super()._ask(*words)

    def arm(self, *bells: bytes) -> list[Any]:
        return [words[0] for words in self.wakeups.before_arming(bells)]

    def watches(self, *bells: bytes) -> bytes:
        (words,) = [words for words in self.wakeups.before_arming(bells) if words[0] == "SSUBSCRIBE"]
        channel = words[1]
        assert isinstance(channel, bytes)
        return channel


async def listening(**how: Any) -> Listening:
    node = Listening(**how)
    await node.begin()
    assert node.wakeups.hears
    return node


async def test_one_channel_tells_of_all_bells_in_a_slot() -> None:
    node = await listening()
    channel = node.watches(BELL, BESIDE)
    assert channel == b"__keyspace@0__:probe 0{a}"
    assert node.arm(BELL) == []
    node.wakeups.pushed([b"sunsubscribe", channel, 0])
    assert [set(bells) for bells in node.rung] == [{BELL, BESIDE}]
    assert node.arm(BELL) == ["SSUBSCRIBE"]  # where it comes back
    for push in ([b"sunsubscribe"], [b"sunsubscribe", None, 0], [b"sunsubscribe", b"news", 0]):
        node.wakeups.pushed(push)
    assert len(node.rung) == 1


async def test_the_last_bell_of_a_slot_ends_its_channel() -> None:
    node = await listening()
    channel = node.watches(BELL, BESIDE)
    assert [words[0] for words in node.wakeups.after(BELL)] == ["UNSUBSCRIBE"]
    *_, end = node.wakeups.after(BESIDE)
    assert end[:2] == ("SUNSUBSCRIBE", channel)
    node.wakeups.pushed([b"sunsubscribe", channel, 0])
    assert not node.rung
    # A slot may leave while the request is on its way, which is then refused: its push is no reply.
    assert not confirms([b"sunsubscribe", channel, 0], end)
    assert confirms([b"sunsubscribe", end[-1], 0], end)


@pytest.mark.parametrize(("refusal", "looks"), [(MOVED, True), (DOWN, False), (FULL, False), (DENIED, False)])
async def test_a_slot_that_had_left_before_is_one_that_leaves(refusal: Exception, looks: bool) -> None:
    node = await listening()
    channel = node.watches(BELL)
    node.wakeups.refused(("SSUBSCRIBE", channel), refusal)
    assert node.rung == ([(BELL,)] if looks else [])
    # What is denied is not asked for again and again.
    assert node.arm(BELL) == ([] if refusal is DENIED else ["SSUBSCRIBE"])
    node.wakeups.refused(("SUBSCRIBE", b"__keyspace@0__:" + BELL), MOVED)
    assert len(node.rung) == looks


@pytest.mark.parametrize("refusal", [DENIED, UNKNOWN, MOVED], ids=["denied", "unknown", "moved"])
async def test_where_the_server_has_no_such_channels_bells_are_heard_all_the_same(refusal: Exception) -> None:
    node = await listening(refuses=refusal)
    assert node.arm(BELL) == (["SSUBSCRIBE", "SUBSCRIBE"] if refusal is MOVED else ["SUBSCRIBE"])
    assert [words[0] for words in node.wakeups.after(BELL)][:1] == ["UNSUBSCRIBE"]


async def test_a_bell_in_no_slot_that_a_tag_names_is_heard_all_the_same() -> None:
    node = await listening()
    assert node.arm(b"a{}b") == ["SUBSCRIBE"]


async def test_on_one_server_no_slot_is_watched() -> None:
    wakeups = Wakeups("keyspace", trial=lambda _: trial(b"probe 0"), on_rung=lambda _, __: None)
    asked: list[Any] = []

    def ask(*words: Any) -> asyncio.Future[Any]:
        asked.append(words[0])
        answer = asyncio.get_running_loop().create_future()
        if words[0] == "EVAL":
            wakeups.pushed([b"message", b"__keyspace@0__:probe 0", b"del"])
        answer.set_result(b"OK")
        return answer

    await wakeups.begin(ask, protocol=3, database=0)
    assert asked == ["SUBSCRIBE", "EVAL", "DEL"]
    assert [words[0] for words in wakeups.before_arming([BELL])] == ["SUBSCRIBE"]
    assert [words[0] for words in wakeups.after(BELL)] == ["UNSUBSCRIBE"]
