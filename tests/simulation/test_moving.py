"""No script stops half way on a node that its slot is leaving."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.simulation.moving import HalfWay
from tests.simulation.world.kinds import KINDS
from tests.simulation.world.run import Runner
from tests.simulation.world.schedule import drawn
from tests.simulation.world.server.server import Server
from tests.unit.test_scripts import SCRIPTS

SORTS = [sort for sort in KINDS if not sort.startswith(("cluster-", "sentinel-", "redlock"))]
SEEDS = [(1, 2), pytest.param(range(1, 9), marks=pytest.mark.more)]
STOPS = {
    *("combiner_ack", "lock_release", "permits_release", "reentrant_release"),
    "reentrant_steal",
}
"""Scripts that stop half way without the section that ends them before."""


@pytest.mark.long
@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_no_script_stops_half_way(monkeypatch: pytest.MonkeyPatch, seeds: Sequence[int]) -> None:
    scripts = list(SCRIPTS.values())
    plain, guarded = HalfWay(scripts, guarded=False), HalfWay(scripts, guarded=True)

    def look(*script: object) -> None:
        plain(*script)
        guarded(*script)

    monkeypatch.setattr(Server, "on_script", staticmethod(look))
    with Runner() as runner:
        for sort in SORTS:
            for seed in seeds:
                runner.run(drawn(sort, seed, faulty=True))

    assert not guarded.stopped
    assert plain.stopped >= STOPS
