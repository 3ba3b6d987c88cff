"""One test for many values tells each that fails."""

from __future__ import annotations

import pytest

from tests.support.each import each


def test_it_tells_all_that_fail_and_with_what() -> None:
    seen = []

    @each("one, two", [(1, 1), (1, 2), (2, 2), (3, 4)])
    def same(one: int, two: int) -> None:
        seen.append((one, two))
        assert one == two

    with pytest.raises(ExceptionGroup, match="2 of 4 fail") as caught:
        same()
    assert seen == [(1, 1), (1, 2), (2, 2), (3, 4)]
    notes = [error.__notes__ for error in caught.value.exceptions]
    assert notes == [["with {'one': 1, 'two': 2}"], ["with {'one': 3, 'two': 4}"]]


def test_nothing_to_look_at_is_a_failure() -> None:
    @each("one", [])
    def never(one: int) -> None:
        raise AssertionError

    with pytest.raises(AssertionError, match="nothing to look at"):
        never()
