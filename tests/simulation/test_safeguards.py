"""The table of ablations stays runnable: the code that a safeguard names is still there."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tests.simulation.planted import PLANTED
from tests.simulation.safeguards import SAFEGUARDS, uncovered
from tests.simulation.world.run import Runner


@pytest.mark.parametrize("name", SAFEGUARDS)
def test_a_safeguard_can_be_taken_out(name: str) -> None:
    with SAFEGUARDS[name].taken_out():
        pass


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_schedule_fails_without_its_safeguard_and_only_then(name: str) -> None:
    schedule, how = PLANTED[name]
    for broken in (False, True):
        taken_out = SAFEGUARDS[name].taken_out() if broken else nullcontext()
        with uncovered(name), taken_out, Runner() as runner:
            violations = runner.run(schedule).violations
        assert any(how in violation for violation in violations) is broken, violations
