"""The table of ablations stays runnable: the code that a safeguard names is still there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.simulation.planted import PLANTED
from tests.simulation.safeguards import SAFEGUARDS, uncovered
from tests.simulation.world.run import Runner


@pytest.mark.parametrize("name", SAFEGUARDS)
def test_a_safeguard_can_be_taken_out(name: str) -> None:
    with SAFEGUARDS[name].taken_out():
        pass


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as runner:
        yield runner


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_schedule_fails_without_its_safeguard_and_only_then(runner: Runner, name: str) -> None:
    schedule, how = PLANTED[name]
    for broken in (False, True):
        taken_out = SAFEGUARDS[name].taken_out() if broken else nullcontext()
        with uncovered(name), taken_out:
            violations = runner.run(schedule).violations
        assert any(how in violation for violation in violations) is broken, violations


def found_by_draws_alone() -> list[str]:
    """What no planted schedule shows, and no mutant of a script: tests/lua has each of their lines."""
    return [
        name
        for name, safeguard in SAFEGUARDS.items()
        if name not in PLANTED
        and not safeguard.unseen
        and not safeguard.taken_out.__qualname__.startswith("lua.")
    ]


def test_the_faults_that_only_long_runs_find_are_listed() -> None:
    text = (Path(__file__).parents[1] / "FAULTS.md").read_text(encoding="utf-8")
    listed = re.findall("^- (.*)$", text.partition("## Found by long runs alone")[2], re.MULTILINE)

    assert listed == found_by_draws_alone()
