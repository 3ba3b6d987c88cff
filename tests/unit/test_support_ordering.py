"""The tests of a run are divided among its processes: all of them, long ones first, files in one piece."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.ordering import pieces

SIZES = [40, 1, 7, 300, 22, 22, 9, 60, 3, 3, 3, 120]


def items() -> list[Any]:
    """Tests of files of these sizes, of which each fiftieth is long."""
    tests = [(Path(f"test_{file}.py"), number) for file, size in enumerate(SIZES) for number in range(size)]
    return [
        SimpleNamespace(
            path=path,
            number=number,
            long=place % 50 == 0,
            get_closest_marker=lambda _, place=place: None if place % 50 else True,
        )
        for place, (path, number) in enumerate(tests)
    ]


@pytest.mark.parametrize("number", [1, 2, 6, 40])
def test_each_test_is_in_one_piece_and_the_order_is_the_same_each_time(number: int) -> None:
    given = items()
    found = pieces(given, number)

    assert len(found) == number
    places = [[id(one) for one in piece] for piece in found]
    assert sorted(place for piece in places for place in piece) == sorted(map(id, given))
    assert [[id(one) for one in piece] for piece in pieces(given, number)] == places


def test_long_ones_begin_everywhere() -> None:
    for piece in pieces(items(), 6):
        long = [one.long for one in piece]
        assert long[0]
        assert long == sorted(long, reverse=True)


def test_the_others_of_a_file_stay_together() -> None:
    for piece in pieces(items(), 3):
        rest = [one for one in piece if not one.long]
        for file in {one.path for one in rest}:
            numbers = [place for place, one in enumerate(rest) if one.path == file]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
