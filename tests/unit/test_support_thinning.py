"""Products that are thinned out keep each value, or each pair of values."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.support.thinning import VARIABLE, cover, only, part

ROWS = [
    {"one": one, "two": two, "three": three}
    for one, two, three in itertools.product(range(4), range(3), range(2))
]

INI = """
[pytest]
markers =
    more: x
    thin: x
asyncio_default_fixture_loop_scope = function
"""


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


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """Nine tests of a product, of which six are `more`, and three beside it."""
    pytester.makeini(INI)
    pytester.makeconftest(
        """
        import pytest
        from tests.support.thinning import take_part, thin_out

        @pytest.hookimpl(tryfirst=True)
        def pytest_collection_modifyitems(config, items):
            thin_out(items)
            config.hook.pytest_deselected(items=take_part(items))
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
    return pytester


def passed(suite: pytest.Pytester, *arguments: str | Path) -> list[str]:
    run = suite.inline_run(*arguments, "-p", "no:xdist")
    good, skipped, failed = run.listoutcomes()
    assert skipped == failed == []
    return [report.nodeid for report in good]


def test_of_a_marked_test_the_rest_is_more(suite: pytest.Pytester) -> None:
    assert len(passed(suite, "-m", "not more")) == 3 + 3
    assert len(passed(suite, "-m", "more")) == 6
    assert len(passed(suite)) == 12


SPREAD = """
    import pytest
    from tests.support.thinning import only, spread_out

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(items):
        spread_out(items, {"way", "form"})
    """


def test_parameters_that_are_spread_out_have_one_value_in_each_test(pytester: pytest.Pytester) -> None:
    pytester.makeini(INI)
    pytester.makeconftest(SPREAD)
    pytester.makepyfile(
        """
        import pytest
        from tests.support.thinning import only

        of_all = [pytest.mark.parametrize("way", "abc"), pytest.mark.parametrize("form", "xy")]

        @of_all[0]
        @of_all[1]
        @pytest.mark.parametrize("kind", range(6))
        def test_of_kinds(way, form, kind):
            pass

        @of_all[0]
        @pytest.mark.parametrize("kind", only(range(6), 2, 4))
        def test_of_few_kinds(way, kind):
            pass
        """
    )

    shown = [name.partition("::")[2] for name in passed(pytester, "-m", "not more")]

    def rows(test: str) -> list[str]:
        return [name.partition("[")[2].rstrip("]") for name in shown if name.startswith(f"{test}[")]

    assert sorted(int(row.partition("-")[0]) for row in rows("test_of_kinds")) == [*range(6)]
    assert len({row.partition("-")[2] for row in rows("test_of_kinds")}) == 6  # one kind each
    assert sorted(int(row.partition("-")[0]) for row in rows("test_of_few_kinds")) == [2, 4]
    assert len(passed(pytester)) == 36 + 18


def test_what_only_is_to_show_is_one_of_the_values() -> None:
    with pytest.raises(AssertionError, match="not among the values"):
        only(["a", "b"], "c")


def test_the_parts_of_the_rest_are_all_of_it(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = passed(suite, "-m", "more")
    found = []
    for number in range(1, 5):
        monkeypatch.setenv(VARIABLE, f"{number}/4")
        found += passed(suite, "-m", "more")
        assert len(passed(suite, "-m", "not more")) == 6  # which has no parts
    assert sorted(found) == sorted(rest)


def test_a_test_is_in_the_same_part_whichever_are_collected(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when those that failed are run again: no other file is collected then."""
    monkeypatch.setenv(VARIABLE, "2/4")
    (first,) = suite.path.glob("test_*.py")
    files = [first, suite.makepyfile(test_second=first.read_text())]
    of_all = passed(suite, "-m", "more")
    alone = [name for file in files for name in passed(suite, "-m", "more", file)]
    assert sorted(alone) == sorted(of_all)
    assert of_all


@pytest.mark.parametrize("text", ["3", "0/4", "5/4", "a/b", "1/", "-1/4"])
def test_what_is_no_part_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(pytest.UsageError, match="such as 3/20"):
        part()
