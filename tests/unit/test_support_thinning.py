"""Products that are thinned out keep each value, or each pair of values."""

from __future__ import annotations

import itertools

import pytest

from tests.support.thinning import cover

ROWS = [
    {"one": one, "two": two, "three": three}
    for one, two, three in itertools.product(range(4), range(3), range(2))
]


@pytest.mark.parametrize(("ways", "most"), [(1, 4), (2, 13), (3, 24)])
def test_each_combination_of_so_many_values_stays(ways: int, most: int) -> None:
    kept = [ROWS[number] for number in cover(ROWS, ways)]

    for names in itertools.combinations(ROWS[0], ways):
        assert {tuple(row[name] for name in names) for row in kept} == {
            tuple(row[name] for name in names) for row in ROWS
        }
    assert len(kept) <= most


def test_parameters_that_go_together_are_one() -> None:
    rows = [{"kind": number, "way": number, "name": name} for number in range(5) for name in range(5)]

    assert len(cover(rows)) == 5


def test_of_a_marked_test_the_rest_is_slow(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    slow: x\n    thin: x\n")
    pytester.makeconftest(
        """
        import pytest
        from tests.support.thinning import thin_out

        @pytest.hookimpl(tryfirst=True)
        def pytest_collection_modifyitems(items):
            thin_out(items)
        """
    )
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.thin
        @pytest.mark.parametrize("one", "abc")
        @pytest.mark.parametrize("two", "xyz")
        def test_thinned(one, two):
            pass

        @pytest.mark.parametrize("one", "abc")
        def test_whole(one):
            pass
        """
    )
    assert pytester.inline_run("-m", "not slow", "-p", "no:xdist").countoutcomes() == [6, 0, 0]
    assert pytester.inline_run("-p", "no:xdist").countoutcomes() == [12, 0, 0]
