"""Every interleaving of a few clients on one name, over the scripts that are shipped."""

from __future__ import annotations

import pytest

from tests.simulation.exhaustive.sorts import SORTS
from tests.simulation.exhaustive.walk import BrokenError, Walk
from tests.simulation.safeguards import SAFEGUARDS

QUICK = {"lock": 2, "fairlock": 1, "rwlock": 1, "rwlock, writers": 1, "rwlock, upgradables": 1}
"""How often each of two clients waits, where every test run walks all of it."""


@pytest.mark.parametrize("sort", QUICK)
def test_two_clients(sort: str) -> None:
    """Each of them may be the one that dies."""
    assert Walk(SORTS[sort], 2, waits=QUICK[sort], deaths=1).run().whole


@pytest.mark.parametrize(
    "sort",
    [
        *("fairlock", "semaphore", "rwlock, phases"),
        *(pytest.param(sort, marks=pytest.mark.more) for sort in ("lock", "rwlock, upgradables")),
    ],
)
def test_three_clients(sort: str) -> None:
    assert Walk(SORTS[sort], 3, waits=1, deaths=0).run().whole


@pytest.mark.more
def test_two_clients_of_a_fairlock_that_wait_twice() -> None:
    assert Walk(SORTS["fairlock"], 2, waits=2, deaths=1).run().whole


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sort", SORTS)
def test_three_clients_that_wait_twice_and_die(sort: str) -> None:
    assert Walk(SORTS[sort], 3, waits=1, deaths=2).run().whole
    assert Walk(SORTS[sort], 3, waits=2, deaths=1).run(most=1_000_000).states > 100_000


NOTICED = {
    "lock_release: wakes": ("lock", 2),
    "lock_release: token": ("lock", 2),
    "lock_acquire: held": ("lock", 2),
    "lock_acquire: refused is seated": ("lock", 2),
    "lock_acquire: its bell hangs": ("lock", 2),
    "listen: reads": ("lock", 2),
    "permits: refused is seated": ("semaphore", 3),
    "queue: rung stays": ("fairlock", 2),
    "permits: gives up its seat": ("fairlock", 2),
    "permits: in turn": ("fairlock", 3),
    "permits: count": ("semaphore", 3),
    "permits: release wakes": ("semaphore", 3),
    "spans: writers exclude": ("rwlock", 2),
    "spans: release wakes": ("rwlock", 2),
    "spans: order": ("rwlock, phases", 3),
    "spans: places": ("rwlock, phases", 3),
    "spans: reservations": ("rwlock, phases", 3),
}
"""Pieces of the scripts; the sort, and how many clients, that break without them."""


@pytest.mark.parametrize("safeguard", NOTICED)
def test_without_a_piece_somebody_notices(safeguard: str) -> None:
    sort, clients = NOTICED[safeguard]
    waits = 2 if clients == 2 else 1
    with SAFEGUARDS[safeguard].taken_out(), pytest.raises(BrokenError):
        Walk(SORTS[sort], clients, waits=waits, deaths=1).run()
