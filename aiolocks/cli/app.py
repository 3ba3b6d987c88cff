"""The command line: what all commands have in common."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Generator
from typing import Any

import click

from .. import __version__
from .demo.command import demo
from .doctor.command import doctor
from .exits import NOBODY_READS, of_signal, send_nowhere
from .listing.commands import ls, prefixes, release, show, top
from .listing.deadlocks import deadlocks
from .listing.schedule import schedule
from .listing.watch import watch
from .run.command import run
from .run.lead import lead
from .server import VARIABLE
from .ui.command import ui

_HELP = """
Distributed locks on Redis and Valkey.

\b
See what a lock does, on a private server:
  aiolocks demo
Run a job on one machine at a time:
  aiolocks run nightly-backup -- ./backup.sh --full
Run a program on one machine at a time, and on another one when that dies:
  aiolocks lead scheduler -- ./scheduler.sh
See who holds what, and free what a dead or hung process still holds:
  aiolocks ls
  aiolocks top
  aiolocks ui
  aiolocks release nightly-backup --force
See when a schedule of your service ran, and when it will:
  aiolocks schedule nightly-report
See whether a server is fit for locks:
  aiolocks doctor
"""


_OF_OTHERS = ("--url", "--uri", "--redis-url", "--host", "--port", "-u", "-p")
"""What the server is called in other programs."""


@contextlib.contextmanager
def _other_names() -> Generator[None]:
    """Who takes the name of another program is told the one of ours."""
    try:
        yield
    except click.NoSuchOption as error:
        if error.option_name not in _OF_OTHERS:
            raise
        message = f"No such option {error.option_name!r}. Did you mean '--redis'?"
        raise click.UsageError(message, error.ctx) from None


class _Group(click.Group):
    """Commands that end as a shell expects when something outside ends them.

    Left to click they would end with 1, and that is an answer: no process holds it.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _other_names():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _other_names():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(of_signal(signal.SIGINT)) from None
        except BrokenPipeError:
            send_nowhere(sys.stdout)
            raise click.exceptions.Exit(NOBODY_READS) from None


@click.group(cls=_Group, help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.option(
    "--redis",
    metavar="URL",
    envvar=VARIABLE,
    help=f"The server; see the commands, each of which takes this too.  [env var: {VARIABLE}]",
)
def app(redis: str | None) -> None:
    """The group: its commands find what was said before their name."""


for command in (demo, run, lead, ls, show, schedule, release, top, watch, ui, deadlocks, prefixes, doctor):
    app.add_command(command)
