"""Takes safeguards out, one at a time, and counts the schedules until one fails.

python -m tests.simulation.ablations              all of them, as a table
python -m tests.simulation.ablations heartbeat    some of them
python -m tests.simulation.ablations --jobs       in as many processes as there are cores
python -m tests.simulation.ablations --write      and puts each line into the table in the documentation

The lines of safeguards that are not asked for stay in the table, so that it can be made piece by piece.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.planted import RARE
from tests.simulation.safeguards import SAFEGUARDS, uncovered
from tests.simulation.world.run import Runner
from tests.simulation.world.schedule import Schedule, drawn
from tests.simulation.world.shrink import sort_of
from tests.simulation.world.table import lines, put

FIRST = 5_000_000
"""The first seed."""
HEAD = ("| safeguard | purpose | schedules | found as |", "|---|---|---|---|")


def found(name: str, most: int) -> tuple[int | str, str] | None:
    """How many schedules it took until one failed that does not fail in this way with it, and how;
    "planted" where the schedule was not drawn."""
    with Runner() as runner, uncovered(name):
        if name not in RARE:
            return _found_by_draws(runner, name, most)
        schedule = RARE[name][0]
        new = _fails_only_without(runner, name, schedule)
        return ("planted", f"{schedule.kind}: {min(new)}") if new else None


def _fails_only_without(runner: Runner, name: str, schedule: Schedule) -> set[str]:
    """The sorts of its violations that are not there with the safeguard."""
    with SAFEGUARDS[name].taken_out():
        without = {sort_of(violation) for violation in runner.run(schedule).violations}
    return without and without - {sort_of(violation) for violation in runner.run(schedule).violations}


def _found_by_draws(runner: Runner, name: str, most: int) -> tuple[int, str] | None:
    safeguard = SAFEGUARDS[name]
    for count in range(1, most + 1):
        turn, which = divmod(count - 1, len(safeguard.kinds))
        kind = safeguard.kinds[which]
        schedule = drawn(kind, FIRST + turn, faulty=safeguard.faulty, sorts=safeguard.sorts)
        if new := _fails_only_without(runner, name, schedule):
            return count, f"{kind}: {min(new)}"
    return None


def _line(name: str, result: tuple[int | str, str] | None, most: int) -> str:
    safeguard = SAFEGUARDS[name]
    count, how = result or (f"none of {most}", safeguard.unseen)
    if result is not None and safeguard.covered_by:
        how += f" (without *{safeguard.covered_by}* too)"
    return f"| {name} | {safeguard.what} | {count} | {how} |"


def _write(line: str) -> None:
    """Puts it into the table, in the place of the former line of this safeguard."""
    known = {_name_in(line): line for line in (*lines("ablations")[len(HEAD) :], line)}
    put("ablations", [*HEAD, *(known[name] for name in SAFEGUARDS if name in known)])


def _name_in(line: str) -> str:
    return line.split("|")[1].strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.ablations")
    parser.add_argument("names", nargs="*", help="safeguards, by their names; all by default")
    parser.add_argument("--most", type=int, default=300, help="schedules for each, at most")
    parser.add_argument(
        "--jobs", type=int, nargs="?", default=1, const=os.cpu_count(), help="processes; one for each core"
    )
    parser.add_argument("--write", action="store_true", help="put the table into the documentation")
    arguments = parser.parse_args()
    names = arguments.names or list(SAFEGUARDS)
    if unknown := set(names) - set(SAFEGUARDS):
        parser.error(f"no such safeguard: {', '.join(unknown)}")
    print(*HEAD, sep="\n", flush=True)
    missed = 0
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        for name, result in zip(names, pool.map(partial(found, most=arguments.most), names), strict=True):
            missed += result is None
            line = _line(name, result, arguments.most)
            print(line, flush=True)
            if arguments.write:
                _write(line)
    print(f"{len(names) - missed} found, {missed} not", file=sys.stderr)
    return bool(missed)


if __name__ == "__main__":
    raise SystemExit(main())
