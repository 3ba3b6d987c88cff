"""Runs schedules from the command line.

python -m tests.simulation.world fairlock 36                    one schedule, with its trace
python -m tests.simulation.world fairlock 36 --without p1,p0.w2 the same without these parts
python -m tests.simulation.world fairlock 0-1000                many: the first that fails is made smaller
"""

from __future__ import annotations

import argparse
import time

from .kinds import KINDS
from .run import Outcome, Runner
from .schedule import Schedule, drawn
from .shrink import command, shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.world")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("seeds", help="one, or the first and the one behind the last, as 0-1000")
    parser.add_argument("--faults", action="store_true", help="with faults")
    parser.add_argument("--sorts", default="", help="of faults, only these, as 'kill,clock ahead'")
    parser.add_argument("--without", default="", help="parts to leave out, as p1,p0.w2.r0")
    parser.add_argument("--only", default="", help="go on until a violation has this in its text")
    parser.add_argument("--all", action="store_true", help="do not stop at the first that fails")
    parser.add_argument("--whole", action="store_true", help="a trace with all that opens connections")
    arguments = parser.parse_args()
    first, _, end = arguments.seeds.partition("-")
    seeds = range(int(first), int(end) if end else int(first) + 1)
    with Runner() as runner:
        return _many(runner, arguments, seeds) if end else _one(runner, arguments, seeds[0])


def _drawn(arguments: argparse.Namespace, seed: int) -> Schedule:
    sorts = arguments.sorts.split(",") if arguments.sorts else ()
    return drawn(arguments.kind, seed, faulty=arguments.faults, sorts=sorts)


def _one(runner: Runner, arguments: argparse.Namespace, seed: int) -> int:
    schedule = _drawn(arguments, seed)
    if arguments.without:
        schedule = schedule.leaving_out(arguments.without.split(","))
    outcome = runner.run(schedule)
    _show(outcome, whole=arguments.whole)
    return outcome.failed


def _many(runner: Runner, arguments: argparse.Namespace, seeds: range) -> int:
    began, failed = time.process_time(), 0
    for seed in seeds:
        outcome = runner.run(_drawn(arguments, seed))
        violations = [violation for violation in outcome.violations if arguments.only in violation]
        if not violations:
            continue
        failed += 1
        print(f"{command(outcome.schedule)}: {violations[0]}", flush=True)
        if not arguments.all:
            _show(shrink(runner, outcome), whole=arguments.whole)
            return 1
    taken = time.process_time() - began
    print(f"{failed} of {len(seeds)} failed; {len(seeds) / taken:.0f} a second")
    return bool(failed)


def _show(outcome: Outcome, *, whole: bool) -> None:
    print(outcome.schedule)
    print(outcome.trace.text(whole=whole))
    for violation in outcome.violations:
        print(f"VIOLATION: {violation}")
    print(f"again: {command(outcome.schedule)}")


if __name__ == "__main__":
    raise SystemExit(main())
