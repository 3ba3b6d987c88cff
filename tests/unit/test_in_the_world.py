"""What waits for a clock, by that of the simulated world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.simulation import place
from tests.unit import test_schedule, test_uniquejob


def timed() -> Iterator[Any]:
    for module in (test_schedule, test_uniquejob):
        for name, test in vars(module).items():
            if name.startswith("test_") and module.timed.mark in place.marks_of(test):
                for given in place.rows_of(test):
                    label = "-".join([name.removeprefix("test_"), *place.label(given)])
                    yield pytest.param(test, given, id=label)


@pytest.mark.parametrize(("test", "given"), [*timed()])
def test_in_the_world(
    test: Callable[..., Any], given: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    place.run(test, caplog=caplog, **given)
