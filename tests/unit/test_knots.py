"""Which waits never end: the graph alone, drawn at random and checked against what a plain search finds."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from aiolocks.inspect.deadlocks import Look
from aiolocks.inspect.knots import Occupants, StandingLease, in_order, knots, may_wait_for, stuck
from aiolocks.inspect.waits import HeldLease, Wait, Want, record_of, waits_in
from aiolocks.transport.steps.snapshots import Place

EVERYTHING = (float("-inf"), float("inf"))


def wait(
    one: str, wants: tuple[str, ...], holds: tuple[str, ...], kind: str = "lock", beat: int = 1, **more: Any
) -> Wait:
    want = Want(tuple((kind, name) for name in wants), (), **more)
    held = tuple(HeldLease(f"{one} has {name}", ((kind, name),), kind, name) for name in holds)
    return Wait(one, beat, "host", 1, one, kind, wants[0], 0, 1.0, False, want, held)


def on_server(waits: Mapping[str, Wait], **others: list[str]) -> dict[tuple[str, str], Occupants]:
    """The locks that these hold, and that others hold, by name."""
    occupants: dict[tuple[str, str], Occupants] = {}
    held = [
        (place, lease.lease_id) for one in waits.values() for lease in one.holds for place in lease.places
    ]
    held += [(("lock", name), lease) for name, ids in others.items() for lease in ids]
    for place, lease in held:
        those_there = occupants.setdefault(place, Occupants({}, None, ()))
        those_there.leases[lease] = StandingLease(1, "", None)
    return occupants


def by_id(*waits: Wait) -> dict[str, Wait]:
    return {one.id: one for one in waits}


def test_a_ring_of_locks() -> None:
    waits = by_id(wait("1", ("b",), ("a",)), wait("2", ("a",), ("b",)), wait("3", ("a",), ("c",)))
    edges = stuck(waits, on_server(waits))
    assert edges == {"1": {"2"}, "2": {"1"}, "3": {"1"}}
    assert knots(edges) == [frozenset({"1", "2"})], "the third only waits behind it"
    assert in_order(frozenset({"1", "2"}), edges, "2") == ["2", "1"]


def test_what_the_server_does_not_have_is_in_nobodys_way() -> None:
    waits = by_id(wait("1", ("b",), ("a",)), wait("2", ("a",), ("b",)))
    occupants = on_server(waits)
    occupants["lock", "a"].leases.clear()
    assert stuck(waits, occupants) == {}


@pytest.mark.parametrize(("value", "found"), [(2, True), (3, False), (None, False), (0, False)])
def test_permits_count_only_if_none_can_come_from_elsewhere(value: int | None, found: bool) -> None:
    waits = by_id(
        wait("1", ("x",), (), "semaphore"),
        wait("2", ("x",), (), "semaphore"),
        wait("3", ("s",), (), "semaphore", permits=1),
    )
    for one, name in (("1", "s"), ("2", "s"), ("3", "x")):
        lease = HeldLease(f"{one} has {name}", (("semaphore", name),), "semaphore", name)
        waits[one] = waits[one]._replace(holds=(lease,))
    occupants = on_server(waits)
    occupants["semaphore", "s"] = occupants["semaphore", "s"]._replace(permits=value)
    parts = knots(stuck(waits, occupants))
    assert parts == ([frozenset({"1", "2", "3"})] if found else [])


def test_a_permit_of_a_task_that_goes_on_soon_will_do() -> None:
    """The second one waits, but for a lock whose holder does not wait: then its permit is free."""
    waits = by_id(
        wait("1", ("x",), (), "semaphore"),
        wait("2", ("y",), (), "semaphore"),
        wait("3", ("s",), (), "semaphore", permits=1),
    )
    for one, name in (("1", "s"), ("2", "s"), ("3", "x")):
        lease = HeldLease(f"{one} has {name}", (("semaphore", name),), "semaphore", name)
        waits[one] = waits[one]._replace(holds=(lease,))
    occupants = on_server(waits)
    occupants["semaphore", "s"] = occupants["semaphore", "s"]._replace(permits=2)
    occupants["semaphore", "y"] = Occupants({"somebody else": StandingLease(1, "", None)}, None, ())
    assert stuck(waits, occupants) == {}


def test_a_deadlock_counts_when_each_wait_was_confirmed_since_it_was_found_first() -> None:
    def look(first: int, second: int) -> Look:
        waits = by_id(wait("1", ("b",), ("a",), beat=first), wait("2", ("a",), ("b",), beat=second))
        return Look(waits, on_server(waits))

    before = look(3, 7).since({})
    assert before == {"1": 3, "2": 7}
    assert look(3, 7).confirmed({}).knots == []
    assert look(4, 7).confirmed(before).knots == [], "the second one may have ended since"
    assert look(4, 8).confirmed(before).knots == [frozenset({"1", "2"})]
    assert look(4, 8).since(before) == before
    assert look(4, 8).since(before, {"1"}) == {"2": 7}
    assert look(4, 8).since(before, {"1", "2"}) == {}


@pytest.mark.parametrize(("until", "found"), [(2000, False), (2001, True)])
def test_a_writer_between_counts_when_it_has_said_since_that_it_lives(until: int, found: bool) -> None:
    """It publishes no wait of its own, for it holds nothing."""

    def look(beat: int, until_ms: int) -> Look:
        waits = by_id(
            wait("1", ("r",), ("x",), mode="r", span=EVERYTHING, beat=beat),
            wait("2", ("x",), ("r",), beat=beat),
        )
        occupants = on_server(waits)
        occupants["lock", "r"].leases["2 has r"] = StandingLease(1, "r", EVERYTHING)
        writer = Place(b"bell", until_ms, EVERYTHING, "")
        occupants["lock", "r"] = occupants["lock", "r"]._replace(places=(writer,))
        return Look(waits, occupants)

    before = look(1, 2000).since({})
    assert before == {"1": 1, "2": 1, b"bell": 2000}
    assert look(2, until).confirmed(before).knots == [frozenset({"1", "2"})] * found


@pytest.mark.parametrize(
    ("mode", "held", "reserved", "found"),
    [
        ("r", "r", False, False),
        ("r", "w", False, True),
        ("w", "r", False, True),
        ("u", "u", False, True),
        ("u", "r", False, False),
        ("r", "r", True, True),  # behind a writer, which waits for that reader
    ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_spans(mode: str, held: str, reserved: bool, apart: bool, found: bool) -> None:
    wanted = (20.0, 30.0) if apart else (0.0, 5.0)
    waits = by_id(wait("1", ("r",), ("x",), mode=mode, span=wanted), wait("2", ("x",), ("r",)))
    occupants = on_server(waits)
    occupants["lock", "r"].leases["2 has r"] = StandingLease(1, held, (3.0, 10.0))
    if reserved:
        occupants["lock", "r"] = occupants["lock", "r"]._replace(places=(Place(b"bell", 0, (4.0, 6.0), ""),))
    assert bool(knots(stuck(waits, occupants))) == (found and not apart)


@pytest.mark.parametrize("mode", ["u", "w"])
@pytest.mark.parametrize(
    ("places", "found"),
    [
        ([("w", 1, (4.0, 6.0)), ("own", 2, (5.0, 8.0))], True),
        ([("w", 3, (4.0, 6.0)), ("own", 2, (5.0, 8.0))], False),  # it has asked later
        ([("u", 1, (4.0, 6.0)), ("own", 2, (5.0, 8.0))], False),  # which waits for no reader
        ([("w", 1, (4.0, 5.5)), ("u", 2, (5.2, 6.0)), ("own", 3, (5.8, 8.0))], True),  # each behind the next
        ([("w", 2, (4.0, 5.5)), ("u", 1, (5.2, 6.0)), ("own", 3, (5.8, 8.0))], False),
        ([("w", 1, (4.0, 4.8)), ("own", 2, (5.0, 8.0))], False),
        ([("x", 1, (4.5, 6.0))], False),  # it has no place yet, as far as is known
    ],
)
def test_a_writer_or_upgradable_waits_for_those_that_keep_out_the_earlier_ones(
    mode: str, places: list[tuple[str, int, tuple[float, float]]], found: bool
) -> None:
    wanted = places[-1][2]
    waits = by_id(wait("1", ("r",), ("x",), mode=mode, span=wanted), wait("2", ("x",), ("r",)))
    occupants = on_server(waits)
    occupants["lock", "r"].leases["2 has r"] = StandingLease(1, "r", (3.0, 4.0))
    occupants["lock", "r"] = occupants["lock", "r"]._replace(
        places=tuple(
            Place(f"{asked}".encode(), 0, span, "", mode if one == "own" else one, asked, reserved=False)
            for one, asked, span in places
        )
    )
    assert bool(knots(stuck(waits, occupants))) == found
    upgrade = waits["1"]._replace(want=waits["1"].want._replace(mode="w", own=("me", "mine")))
    assert knots(stuck({**waits, "1": upgrade}, occupants)) == [], "an upgrade waits for no other waiter"


def test_a_writer_that_waits_for_an_upgradable_keeps_no_reader_out() -> None:
    for reserved in (True, False):
        waits = by_id(wait("1", ("r",), ("x",), mode="r", span=EVERYTHING), wait("2", ("x",), ("r",)))
        occupants = on_server(waits)
        occupants["lock", "r"].leases["2 has r"] = StandingLease(1, "u", EVERYTHING)
        place = Place(b"bell", 0, EVERYTHING, "", "w", 1, reserved=reserved)
        occupants["lock", "r"] = occupants["lock", "r"]._replace(places=(place,))
        assert bool(knots(stuck(waits, occupants))) == reserved


def test_at_random_it_finds_just_the_rings_there_are() -> None:
    """Locks only: there, a deadlock is a cycle, and each task has one way on."""
    rng = random.Random(7)
    found = 0
    for _ in range(300):
        tasks = [f"{number}" for number in range(rng.randint(2, 9))]
        owner = {name: rng.choice(tasks) for name in "abcdefgh"[: rng.randint(2, 8)]}
        waits = by_id(
            *(
                wait(one, (rng.choice(sorted(owner)),), tuple(name for name in owner if owner[name] == one))
                for one in tasks
                if rng.random() < 0.8
            )
        )
        waits = {one: task for one, task in waits.items() if task.holds}
        occupants = on_server(waits, **{name: [f"{one} has {name}"] for name, one in owner.items()})
        follows = {one: owner[task.want.places[0][1]] for one, task in waits.items()}
        rings = set()
        for one in waits:
            path = [one]
            while path[-1] in follows and follows[path[-1]] not in path:
                path.append(follows[path[-1]])
            if follows.get(path[-1]) == one:
                rings.add(frozenset(path))
        edges = stuck(waits, occupants)
        assert set(knots(edges)) == rings
        assert set(knots(may_wait_for(waits))) >= rings
        for ring in rings:
            order = in_order(ring, edges, min(ring))
            assert [follows[one] for one in order] == [*order[1:], order[0]]
        found += len(rings)
    assert found > 50


def test_a_long_ring_takes_no_recursion() -> None:
    edges = {f"{number}": {f"{(number + 1) % 5000}"} for number in range(5000)}
    (ring,) = knots(edges)
    assert in_order(ring, edges, "17")[:3] == ["17", "18", "19"]


def test_a_record_is_read_as_it_was_written() -> None:
    plain = wait("1", ("b",), ("a", "é"), permits=2, of=1, beat=3)
    span = wait("2", ("r",), ("x",), mode="w", span=EVERYTHING, beat=3)
    records = [record_of([plain], 2).encode(), record_of([plain, span], 3).encode()]
    assert waits_in(records) == {"1": plain, "2": span}
    assert waits_in(reversed(records)) == {"1": plain, "2": span}


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\xff",
        b"{}",
        b"7",
        b"[]",
        b"[1,[]]",
        b'["x",["1"]]',
        b"[" * 2000,
        b"[1,[1,2,3,4,5,6,7,8,9,10,11,12]]",
    ],
)
def test_what_others_have_written_is_passed_over(record: bytes) -> None:
    good = wait("1", ("b",), ("a",))
    assert waits_in([record, record_of([good], 1).encode()]) == {"1": good}
