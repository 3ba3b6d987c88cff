"""Takes safeguards out, one at a time, and counts the schedules until one fails.

python -m tests.simulation.ablations            all of them, as a table
python -m tests.simulation.ablations heartbeat  some of them
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.simulation.safeguards import SAFEGUARDS, Safeguard
from tests.simulation.world.run import Runner
from tests.simulation.world.schedule import drawn
from tests.simulation.world.shrink import sort_of

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "trust.md"
BEGIN, END = "<!-- ablations -->", "<!-- /ablations -->"
FIRST = 5_000_000
"""The first seed."""


def found(runner: Runner, safeguard: Safeguard, most: int) -> tuple[int, str] | None:
    """How many schedules it took until one failed that does not fail in this way with it, and how."""
    count = 0
    for seed in range(FIRST, FIRST + most):
        for kind in safeguard.kinds:
            count += 1
            schedule = drawn(kind, seed, faulty=safeguard.faulty)
            with safeguard.taken_out():
                without = {sort_of(violation) for violation in runner.run(schedule).violations}
            if without and (new := without - {sort_of(one) for one in runner.run(schedule).violations}):
                return count, f"{kind}: {min(new)}"
            if count >= most:
                return None
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.ablations")
    parser.add_argument("names", nargs="*", help="safeguards, by their names; all by default")
    parser.add_argument("--most", type=int, default=300, help="schedules for each, at most")
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    arguments = parser.parse_args()
    lines = ["| safeguard | what it is for | schedules | found as |", "|---|---|---|---|"]
    missed = 0
    with Runner() as runner:
        for name in arguments.names or SAFEGUARDS:
            safeguard = SAFEGUARDS[name]
            result = found(runner, safeguard, arguments.most)
            missed += result is None
            count, how = result or (f"none of {arguments.most}", "")
            lines.append(f"| {name} | {safeguard.what} | {count} | {how} |")
            print(lines[-1], flush=True)
    print(f"{len(lines) - 2 - missed} found, {missed} not", file=sys.stderr)
    if arguments.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text("\n".join([before + BEGIN, "", *lines, "", END + rest.partition(END)[2]]))
    return bool(missed)


if __name__ == "__main__":
    raise SystemExit(main())
