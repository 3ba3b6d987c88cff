"""The order of the tests of several processes: long ones first, what waits beside what computes.

Each process of xdist begins with an equal piece of the list, and takes from the others when it is done.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable

import pytest

MARKER = "long"


class Ordering:
    """A plugin; it comes behind those that leave tests out."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        worker = getattr(config, "workerinput", None)
        if worker is not None:
            items[:] = itertools.chain.from_iterable(pieces(items, worker["workercount"]))


def pieces(items: Iterable[pytest.Item], number: int) -> list[list[pytest.Item]]:
    """All items, in that many pieces of about the same size.

    Files stay together. Each piece has files of all folders, for those of one folder are alike: they wait, or
    they compute. And each begins at another place of the alphabet, for at no time all are to do the same.
    """
    long, rest = [], []
    for item in items:
        (rest if item.get_closest_marker(MARKER) is None else long).append(item)
    found: list[list[list[pytest.Item]]] = [[] for _ in range(number)]
    sizes = [len(long[place::number]) for place in range(number)]
    for _, file in itertools.groupby(rest, operator.attrgetter("path")):
        tests = list(file)
        smallest = sizes.index(min(sizes))
        found[smallest].append(tests)
        sizes[smallest] += len(tests)
    for place, files in enumerate(found):
        begin = len(files) * place // number
        files[:] = [long[place::number], *files[begin:], *files[:begin]]
    return [list(itertools.chain.from_iterable(files)) for files in found]
