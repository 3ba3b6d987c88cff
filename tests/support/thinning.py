"""Products of parameters, of which a part runs by default.

A test with the marker ``thin`` runs by default with each value of each of its parameters at least once, with
``thin(2)`` with each pair of values of two parameters. The rest of the product has the marker ``slow``, which
the default run leaves out.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

MARKER = "thin"


def thin_out(items: Iterable[pytest.Item]) -> None:
    """Mark as ``slow`` what the default run does without."""
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
                item.add_marker(pytest.mark.slow)


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
