"""The command line."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from . import docs, machine, plots, table
from .model import Report, Result
from .progress import Progress
from .runner import run
from .settings import ROUNDS, WAKEUPS, Settings, Wakeup, loop_factory
from .workloads import WORKLOADS

_DESCRIPTION = """\
How fast aiolocks is, on a private server: in the same run beside the floor, which is the same work done with
nothing but the driver or the timer, and beside other libraries (the dependency group `bench`).

Ratios hold from machine to machine. A figure is the median of its rounds; contenders take
turns, and a first round is thrown away.
"""
_EPILOG = f"""\
workloads: {", ".join(WORKLOADS)}

  python -m benchmarks                                 everything, about 40 minutes
  python -m benchmarks alone drain                     two of them
  python -m benchmarks --quick                         does it work at all?
  python -m benchmarks --docs docs                     everything, and the documentation says so
  python -m benchmarks costs scale --from docs/assets/benchmarks/results.json --docs docs
"""


_UNFINISHED = Path("benchmarks-unfinished.json")
"""Where figures are kept that were measured beside a workload that failed."""


def main() -> int:
    """Runs; the exit status is 1 when a workload failed, or, with `--check`, when a target was missed."""
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.docs is not None and arguments.names and arguments.source is None:
        parser.error(
            "--docs writes of all workloads: give --from, with a file that has the results of the others"
        )
    failed: Sequence[str] = ()
    if arguments.source is None:
        report, failed = _measure(arguments)
    else:
        report = Report.load(arguments.source)
        if arguments.names:
            anew, failed = _measure(arguments)
            report = report.updated(anew)
    table.show(report)
    if failed:
        _keep(report, arguments.json or _UNFINISHED, failed)
        return 1
    if arguments.json is not None:
        report.save(arguments.json)
    if arguments.plot is not None:
        plots.draw(report, arguments.plot)
    if arguments.docs is not None:
        docs.write(report, arguments.docs)
    missed = any(verdict.met is False for result in report.results for verdict in result.verdicts)
    return 1 if arguments.check and missed else 0


def _keep(report: Report, file: Path, failed: Sequence[str]) -> None:
    """Nothing else is written: a page without these workloads would look whole."""
    report.save(file)
    names = " ".join(failed)
    print(
        f"The figures of the others are in {file}. To measure what failed, and write all:\n"
        f"  python -m benchmarks {names} --from {file} --docs docs",
        file=sys.stderr,
    )


def _measure(arguments: argparse.Namespace) -> tuple[Report, Sequence[str]]:
    """The figures of the workloads that were named, and the names of those that failed."""
    settings = Settings(
        rounds=arguments.rounds or (1 if arguments.quick else ROUNDS),
        quick=arguments.quick,
        loop=arguments.loop,
        tcp=arguments.tcp,
        wakeups=arguments.wakeup,
    )
    with asyncio.Runner(loop_factory=loop_factory(settings.loop)) as runner:
        return runner.run(_run(arguments.names or list(WORKLOADS), settings))


async def _run(names: Sequence[str], settings: Settings) -> tuple[Report, Sequence[str]]:
    workloads = [(name, make(settings)) for name in names for make in WORKLOADS[name]]
    facts = await machine.describe(settings.loop)
    results: list[Result] = []
    failed: list[str] = []
    with Progress(len(workloads)) as progress:
        for name, workload in workloads:
            try:
                results.append(await run(workload, settings, progress))
            except Exception as error:  # noqa: BLE001 - it must not cost the figures of the others
                failed.append(name)
                print(f"{workload.name} failed: {type(error).__name__}: {error}", file=sys.stderr)
            progress.finished()
    report = Report(
        machine=facts,
        command=machine.command(sys.argv[1:]),
        quick=settings.quick,
        rounds=settings.rounds,
        results=results,
    )
    return report, list(dict.fromkeys(failed))  # a name may stand for several workloads


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", type=_name, help="workloads; all by default")
    add("--rounds", type=_positive, help=f"rounds that count (default {ROUNDS})")
    add("--quick", action="store_true", help="tiny sizes, one round: the figures mean nothing")
    add("--check", action="store_true", help="exit with status 1 when a target is missed")
    add("--tcp", action="store_true", help="reach the server over TCP instead of its unix socket")
    add("--loop", choices=("asyncio", "uvloop"), default="asyncio", help="the event loop, of workers too")
    add(
        "--wakeup", type=_wakeups, default=WAKEUPS[1:], metavar="LIST",
        help=f"rows of handover and fairness, by commas: any of {', '.join(WAKEUPS)} "
        f"(default {','.join(WAKEUPS[1:])})",
    )  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write all figures")
    add("--plot", type=Path, metavar="DIR", help="draw them, as SVG")
    add(
        "--docs", type=Path, metavar="DIR",
        help="write the figures, the pictures and all pages with figures into the documentation",
    )  # fmt: skip
    add(
        "--from",
        type=Path,
        metavar="JSON",
        dest="source",
        help="take the figures from there; those of the workloads that are named are measured again",
    )
    return parser


def _name(text: str) -> str:
    if text not in WORKLOADS:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(WORKLOADS)}")
    return text


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _wakeups(text: str) -> tuple[Wakeup, ...]:
    chosen = tuple(wakeup for wakeup in WAKEUPS if wakeup in text.split(","))
    if unknown := set(text.split(",")) - set(WAKEUPS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not among {', '.join(WAKEUPS)}")
    return chosen
