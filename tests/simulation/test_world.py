"""The whole client in a simulated world: every kind of lock, with faults and without, under many seeds.

A schedule that fails is made smaller; what is printed then runs it again. See
`tests/simulation/world/README.md`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from tests.kinds import declared
from tests.simulation import defects
from tests.simulation.cleared import CLEARED
from tests.simulation.found import FOUND
from tests.simulation.small import crew, one
from tests.simulation.small import schedule as small_schedule
from tests.simulation.world.kinds import KINDS
from tests.simulation.world.losses import FIRST, measured, round_trips
from tests.simulation.world.network import NEAR, Delays
from tests.simulation.world.run import Runner
from tests.simulation.world.scale import measured as crowded
from tests.simulation.world.schedule import drawn
from tests.simulation.world.shrink import command, shrink
from tests.simulation.world.table import lines

SCHEDULES = {True: 2, False: 1}
"""Of each kind, with faults and without, in every run of the tests. As many again, with `-m more`."""
MANY = 2_500
"""Of each kind, with faults and as many without, with `-m soak`: 205 000 in all. `python -m
tests.simulation.world.many --each 2500 --jobs` runs as many in several processes."""


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as runner:
        yield runner


FROZEN = Path(__file__).with_name("frozen.txt")
"""A digest of what the first seed of each sort has sent; `python -m tests.simulation.frozen` writes it."""
OWN = {kind.name for kind in declared("WORLD")}
"""Those of `tests/kinds`, of which nothing is frozen."""
FROZEN_WITH = (3, 11)
"""The version of Python with which it was written: in others, tasks may take their turns otherwise."""


def _go_well(runner: Runner, kind: str, first: int, count: int, *, faulty: bool) -> Iterator[str]:
    """Gives the digests of what was sent."""
    for seed in range(first, first + count):
        outcome = runner.run(drawn(kind, seed, faulty=faulty))
        yield outcome.trace.wire()
        if outcome.failed:
            small = shrink(runner, outcome)
            told = "\n".join(outcome.violations)
            pytest.fail(
                f"{told}\n\n{small.schedule}\n{small.trace}\nagain: {command(small.schedule)}", pytrace=False
            )


@pytest.mark.timeout(600)  # one that fails is run some hundred times, to make it smaller
@pytest.mark.parametrize("first", [1_000_000, pytest.param(1_000_002, marks=pytest.mark.more)])
@pytest.mark.parametrize("faulty", [False, True], ids=["calm", "faulty"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_goes_well(runner: Runner, kind: str, faulty: bool, first: int) -> None:
    sent = [*_go_well(runner, kind, first, SCHEDULES[faulty], faulty=faulty)]
    if first == 1_000_000 and sys.version_info[:2] == FROZEN_WITH and kind not in OWN:
        assert f"{kind} {'faulty' if faulty else 'calm'} {sent[0]}" in FROZEN.read_text().splitlines()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["lock", "fairlock", "multilock", "semaphore"])
def test_a_holder_knows_of_a_loss_that_the_server_tells_of(runner: Runner, kind: str) -> None:
    for seed in range(1_000_000, 1_000_000 + 10):
        outcome = runner.run(drawn(kind, seed, faulty=True, sorts=("deletion", "flush")))
        assert outcome.violations == (), command(outcome.schedule)


def test_it_knows_after_one_and_a_half_round_trips(runner: Runner) -> None:
    seeds = range(FIRST, FIRST + 20)
    found = measured(runner.run(drawn("lock", seed, faulty=True, sorts=("deletion",))) for seed in seeds)
    trips = round_trips(NEAR, found[NEAR])
    assert len(trips) > 2
    assert median(trips) < 2.0


@pytest.mark.parametrize("wakeup", ["tracking", "keyspace"])
def test_a_leader_that_steps_down_is_followed_after_two_round_trips(runner: Runner, wakeup: str) -> None:
    """One that gives up and tells the next, and one in which the next asks; bytes need 10 ms each way."""
    steady = Delays(0.01, 0.01)
    terms = (one("p0.w0.r0", 0.0, 1.0), one("p0.w0.r1", 0.3, 0.4))
    crews = (crew(wakeup, steady, *terms), crew(wakeup, steady, one("p1.w0.r0", 0.5, 0.3)))
    outcome = runner.run(small_schedule("leadership", 1, 5.0, *crews))
    assert outcome.violations == ()
    told = re.findall(
        r"^ *([\d.]+) ms  \S+ +(run \d begins|term \d+ ends)$", outcome.trace.text(whole=True), re.MULTILINE
    )
    begun = [float(at) for at, what in told if what.startswith("run")]
    ended = [float(at) for at, what in told if what.startswith("term")]
    assert len(begun) == len(ended) == 3
    # The script that releases is not known yet when the first leader steps down.
    assert begun[1] - ended[0] == pytest.approx(60, abs=0.01)
    assert begun[2] - ended[1] == pytest.approx(40, abs=0.01)


def test_processes_that_want_one_lock_share_it_at_few_requests() -> None:
    found = crowded(kind="lock", processes=4, tasks=3, seconds=0.5, seed=1)
    assert found.requests <= 4
    assert found.slowest >= 0.8


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("faulty", [False, True], ids=["calm", "faulty"])
@pytest.mark.parametrize("kind", KINDS)
def test_many_schedules_go_well(runner: Runner, kind: str, faulty: bool) -> None:
    for _ in _go_well(runner, kind, 2_000_000, MANY, faulty=faulty):
        pass


@pytest.mark.parametrize("name", FOUND)
def test_what_once_failed_goes_well(runner: Runner, name: str) -> None:
    assert runner.run(FOUND[name]).violations == ()


@pytest.mark.parametrize("name", CLEARED)
def test_what_goes_well_is_not_taken_for_a_failure(runner: Runner, name: str) -> None:
    assert runner.run(CLEARED[name]).violations == ()


def test_the_page_tells_of_each_defect_that_was_found() -> None:
    assert lines("defects") == defects.lines()


# -- the simulation itself


SAME = {"lock": False, "rangelock": True, "fair-semaphore": True, "cluster-lock": True, "rings": True}
"""Kinds, and whether there are faults."""

ELSEWHERE = """
import sys
from tests.simulation.world.__main__ import main

for line in sys.stdin:
    sys.argv[1:] = line.split()
    main()
"""


@pytest.mark.long
def test_a_seed_gives_the_same_trace_byte_for_byte(runner: Runner) -> None:
    """Also in another process, with strings hashed otherwise."""
    schedules = [drawn(kind, 7, faulty=faulty) for kind, faulty in SAME.items()]
    here = [runner.run(schedule).trace.text(whole=True) for schedule in schedules]
    assert [runner.run(schedule).trace.text(whole=True) for schedule in schedules] == here
    lines = (" ".join([*command(schedule).split()[3:], "--whole"]) for schedule in schedules)
    there = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
    )
    assert [kind for kind, text in zip(SAME, here, strict=True) if text not in there.stdout] == []


def test_a_schedule_that_fails_is_made_smaller_and_run_again_by_one_line(runner: Runner) -> None:
    """By leaving a safeguard out: nobody is told when a lock is let go of."""
    before = _lock_release()
    try:
        _set_lock_release(
            before.replace(b"if redis.call('DEL', first) == 1 then return", b"if false then return")
        )
        outcome = next(found for seed in range(200) if (found := runner.run(drawn("lock", seed))).violations)
        small = shrink(runner, outcome)
        assert any("free for" in violation for violation in small.violations)
        assert len(list(small.schedule.parts())) < len(list(outcome.schedule.parts()))
        again = drawn("lock", small.schedule.seed).leaving_out(small.schedule.without)
        assert command(again) == command(small.schedule)
        assert runner.run(again).violations == small.violations
    finally:
        _set_lock_release(before)


def _lock_release() -> bytes:
    from aiolocks.transport.steps import lock

    return lock._RELEASE.text


def _set_lock_release(text: bytes) -> None:
    import hashlib

    from aiolocks.transport.steps import lock

    lock._RELEASE.text = text
    lock._RELEASE.sha = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
