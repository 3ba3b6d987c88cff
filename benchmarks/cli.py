"""The command line."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from . import docs, machine, plots, table
from .model import Report
from .progress import Progress
from .rows import missed
from .runner import run
from .servers import USUAL, chosen, executables, shown
from .settings import ROUNDS, WAKEUPS, Settings, Wakeup, loop_factory
from .workloads import WORKLOADS
from .workloads.base import Workload

_DESCRIPTION = """\
How fast aiolocks is, on private servers, one after the other: in the same run beside the floor, which is the
same work done with nothing but the driver or the timer, and beside other libraries (the dependency group
`bench`).

Ratios hold from machine to machine. A figure is the median of its rounds; contenders take
turns, and a first round is thrown away.
"""
_EPILOG = f"""\
workloads: {", ".join(WORKLOADS)}

  python -m benchmarks                                 everything, about 25 minutes
  python -m benchmarks alone drain                     two of them
  python -m benchmarks --quick                         does it work at all?
  python -m benchmarks --docs docs                     everything, and the documentation says so
  python -m benchmarks costs scale --from docs/assets/benchmarks/results.json --docs docs
  python -m benchmarks --rest --from benchmarks-unfinished.json --docs docs     after an interruption
"""


_UNFINISHED = Path("benchmarks-unfinished.json")
"""Where figures for the pages are kept while a run goes on, and after one that failed or was interrupted."""


def main() -> int:
    """Runs; the exit status is 1 when a workload failed, or, with `--check`, when a target was missed."""
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.source is None and (arguments.rest or (arguments.docs is not None and arguments.names)):
        parser.error("give --from, with a file that has the results of the others")
    report = None if arguments.source is None else Report.load(arguments.source)
    if report is None or arguments.names or arguments.rest:
        run = Run(arguments, report)
        try:
            report = run.measured()
        except KeyboardInterrupt:
            run.tell()
            return 130
        if run.failed:
            table.show(report)
            run.tell()
            return 1
    table.show(report)
    if arguments.json is not None:
        report.save(arguments.json)
    if arguments.plot is not None:
        plots.draw(report, arguments.plot)
    if arguments.docs is not None:
        docs.write(report, arguments.docs)
        _UNFINISHED.unlink(missing_ok=True)
    return 1 if arguments.check and missed(report) else 0


class Run:
    """Measures what was asked for, and keeps each result as soon as it is there.

    Args:
        arguments: As on the command line.
        before: The results of before, if there are any: they are replaced by those that are measured again.
    """

    def __init__(self, arguments: argparse.Namespace, before: Report | None) -> None:
        self._settings = Settings(
            rounds=arguments.rounds,
            quick=arguments.quick,
            loop=arguments.loop,
            tcp=arguments.tcp,
            wakeups=arguments.wakeup,
        )
        self._servers: list[str] = arguments.server
        self._file: Path | None = arguments.json or (_UNFINISHED if arguments.docs else None)
        self._before = before
        done = {(one.title, one.server) for one in before.results} if before and arguments.rest else set()
        self._workloads = [
            workload
            for name in arguments.names or WORKLOADS
            for workload in self._made(name)
            if (workload.title, shown(workload.settings.server)) not in done
        ]
        self.failed = False

    def measured(self) -> Report:
        """All results."""
        with asyncio.Runner(loop_factory=loop_factory(self._settings.loop)) as runner:
            return runner.run(self._measured())

    def tell(self) -> None:
        """How to go on: nothing else is written, for a page without some workloads would look whole."""
        if self._file is not None:
            print(
                f"What was measured is in {self._file}. To measure the rest, and write all:\n"
                f"  python -m benchmarks --rest --from {self._file} --docs docs",
                file=sys.stderr,
            )

    def _made(self, name: str) -> Iterator[Workload]:
        """One for each server; only one where the server makes no difference."""
        for make in WORKLOADS[name]:
            workloads = [make(replace(self._settings, server=server)) for server in self._servers]
            yield from workloads[-1:] if workloads[0].one_server else workloads

    async def _measured(self) -> Report:
        report = Report(
            machine=await machine.describe(self._settings.loop, self._servers),
            command=machine.command(sys.argv[1:]),
            quick=self._settings.quick,
            results=[],
        )
        whole = report if self._before is None else self._before.updated(report)
        with Progress(len(self._workloads)) as progress:
            for workload in self._workloads:
                try:
                    report.results.append(await run(workload, workload.settings, progress))
                except Exception as error:  # noqa: BLE001 - it must not cost the figures of the others
                    self.failed = True
                    where = f"{workload.title} on {shown(workload.settings.server)}"
                    print(f"{where} failed: {type(error).__name__}: {error}", file=sys.stderr)
                progress.finished()
                whole = report if self._before is None else self._before.updated(report)
                if self._file is not None:
                    whole.save(self._file)
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    # An interruption that a workload has taken for the end of a task that it had cancelled.
                    raise asyncio.CancelledError
        return whole


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", type=_name, help="workloads; all by default")
    add(
        "--rounds",
        type=_positive,
        help=f"rounds that count (default {ROUNDS} in most workloads)",
    )
    add("--quick", action="store_true", help="tiny sizes, one round: the figures mean nothing")
    add("--check", action="store_true", help="exit with status 1 when a target is missed")
    add("--tcp", action="store_true", help="reach the server over TCP instead of its unix socket")
    add(
        "--server", type=_servers, default=chosen(USUAL) or list(executables())[:1], metavar="LIST",
        help=f"which servers, by commas: any of {', '.join(executables())}, or how their names begin "
        f"(default {','.join(USUAL)}, where they are here)",
    )  # fmt: skip
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
    add("--rest", action="store_true", help="measure what the file of --from has not")
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


def _servers(text: str) -> list[str]:
    if not (found := chosen(text.split(","))):
        raise argparse.ArgumentTypeError(f"{text!r}: not among {', '.join(executables())}")
    return found


def _wakeups(text: str) -> tuple[Wakeup, ...]:
    chosen = tuple(wakeup for wakeup in WAKEUPS if wakeup in text.split(","))
    if unknown := set(text.split(",")) - set(WAKEUPS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not among {', '.join(WAKEUPS)}")
    return chosen
