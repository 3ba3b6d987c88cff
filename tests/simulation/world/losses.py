"""Measures how soon a body ends whose lease is lost: from the loss to the first line of its `finally`.

python -m tests.simulation.world.losses                   2 000 schedules with a lock whose keys are deleted
python -m tests.simulation.world.losses --each 500        fewer
python -m tests.simulation.world.losses --write           puts the table into docs/explanation/safety.md

Of processes that hear their server and have nothing else to do: a turn of their loop takes no time in this
world. A round trip is the mean of what the network takes there and back.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from statistics import quantiles

from .network import FAR, NEAR, SPIKY, STEADY_FAR, Delays
from .run import Outcome, Runner
from .schedule import drawn
from .table import DOCS, number, put_between

FIRST = 6_000_000
"""The first seed."""
PAGE = DOCS / "explanation/safety.md"
HEAD = (
    "| network, one way | losses | median, round trips | 99 of 100 | median, ms | 99 of 100, ms |",
    "|---|---|---|---|---|---|",
)
NETWORKS = {
    "0.05 to 0.4 ms": NEAR,
    "2 to 20 ms": FAR,
    "10 to 20 ms": STEADY_FAR,
    "0.1 to 4 ms, one of fifty up to 150 ms": SPIKY,
}


def measured(outcomes: Iterable[Outcome]) -> dict[Delays, list[float]]:
    """Seconds of each loss, by the network of its holder."""
    found: dict[Delays, list[float]] = {delays: [] for delays in NETWORKS.values()}
    for outcome in outcomes:
        for crew, seconds in outcome.known_after:
            if not crew.busy:
                found[crew.delays].append(seconds)
    return found


def round_trips(delays: Delays, seconds: Iterable[float]) -> list[float]:
    """The same in round trips."""
    return [one / (delays.least + delays.most) for one in seconds]


def table(found: dict[Delays, list[float]]) -> list[str]:
    """A line for each network."""
    lines = list(HEAD)
    for name, delays in NETWORKS.items():
        seconds = found[delays]
        if len(seconds) > 1:
            trips, ms = round_trips(delays, seconds), [1000 * one for one in seconds]
            cells = [f"{_of(values, percent):.2f}" for values in (trips, ms) for percent in (50, 99)]
            lines.append(f"| {name} | {number(len(seconds))} | {' | '.join(cells)} |")
    return lines


def _of(values: list[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.world.losses")
    parser.add_argument("--each", type=int, default=1000, help="schedules with a lock, and with a fair lock")
    parser.add_argument("--first", type=int, default=FIRST, help="the first seed")
    parser.add_argument("--write", action="store_true", help="put the table into the documentation")
    options = parser.parse_args()
    with Runner() as runner:
        found = measured(
            runner.run(drawn(kind, seed, faulty=True, sorts=("deletion",)))
            for kind in ("lock", "fairlock")
            for seed in range(options.first, options.first + options.each)
        )
    how = f"Of {number(2 * options.each)} schedules; the seeds begin with {options.first}."
    if options.write:
        put_between("losses", [*table(found), "", how], PAGE)
    print(*table(found), "", how, sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
