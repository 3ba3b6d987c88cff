"""Of what the suite has, the part that runs by default, and parts of the rest.

A test with the marker ``thin`` runs by default with each value of each of its parameters at least once, with
``thin(2)`` with each pair of values of two parameters. Parameters that are spread out have one value in each
test, and another one in the next. The rest of the product has the marker ``more``, which the default run
leaves out. `AIOLOCKS_TEST_PART=3/20` takes a twentieth of all tests with that marker.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

import pytest

MARKER = "thin"
REST = "more"
VARIABLE = "AIOLOCKS_TEST_PART"


def thin_out(items: Iterable[pytest.Item]) -> None:
    """Mark as ``more`` what the default run does without."""
    products: dict[Any, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if (
            isinstance(item, pytest.Function)
            and hasattr(item, "callspec")
            and item.get_closest_marker(MARKER)
        ):
            products[item.parent, item.originalname].append(item)
    for product in products.values():
        marker = product[0].get_closest_marker(MARKER)
        assert marker is not None
        # By identity: a product has the same objects again and again, some of which cannot be compared.
        rows = [{name: id(value) for name, value in one.callspec.params.items()} for one in product]
        kept = cover(rows, *marker.args)
        for number, item in enumerate(product):
            if number not in kept:
                item.add_marker(REST)


def only(values: Iterable[Any], *shown: Any) -> list[Any]:
    """The values for `parametrize`, of which those that are not `shown` have the marker ``more``."""
    rows = [value if value in shown else _more(value) for value in values]
    assert sum(value in shown for value in rows) == len(shown), "not among the values"
    return rows


def _more(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.more)


def spread_out(items: Iterable[pytest.Item], names: Collection[str]) -> None:
    """Of rows that differ in these parameters alone, leave one by default, and mark the others as ``more``.

    Which one goes by the test's name, so that it is the same whichever tests are collected. A test with the
    marker ``thin`` says for itself what it leaves out.
    """
    products: dict[Any, dict[Any, list[pytest.Function]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        if (
            isinstance(item, pytest.Function)
            and hasattr(item, "callspec")
            and item.get_closest_marker(MARKER) is None
            and item.get_closest_marker(REST) is None
        ):
            own = tuple(
                (name, id(value)) for name, value in item.callspec.params.items() if name not in names
            )
            products[item.parent, item.originalname][own].append(item)
    for (_, test), product in products.items():
        for number, rows in enumerate(product.values(), crc32(test.encode())):
            kept = rows[number % len(rows)]
            for item in rows:
                if item is not kept:
                    item.add_marker(REST)


def cover(rows: Sequence[Mapping[str, int]], ways: int = 1) -> set[int]:
    """The numbers of few rows that have each combination of `ways` values that any row has.

    The same for the same rows: each process of a run has to choose the same tests.
    """
    parts = [set(itertools.combinations(sorted(row.items()), min(ways, len(row)))) for row in rows]
    missing = set[Any]().union(*parts)
    chosen: set[int] = set()
    while missing:
        best = max(range(len(rows)), key=lambda number: (len(parts[number] & missing), -number))
        chosen.add(best)
        missing -= parts[best]
    return chosen


def part() -> tuple[int, int] | None:
    """Which part of how many `AIOLOCKS_TEST_PART` asks for, if it does."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    number, slash, parts = text.partition("/")
    if not (slash and number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise pytest.UsageError(f"{VARIABLE} is to be a part of several, such as 3/20, not {text!r}")
    return int(number), int(parts)


def take_part(items: list[pytest.Item]) -> list[pytest.Item]:
    """Leave in `items`, of those with the marker ``more``, that part; what goes is returned.

    It goes by the tests' names: a test is in the same part whichever others are collected, such as those of
    the files that `--last-failed` leaves.
    """
    asked = part()
    if asked is None:
        return []
    number, parts = asked
    rest = [item for item in items if item.get_closest_marker(REST) is not None]
    gone = [item for item in rest if crc32(item.nodeid.encode()) % parts != number - 1]
    going = set(gone)
    items[:] = [item for item in items if item not in going]
    return gone
