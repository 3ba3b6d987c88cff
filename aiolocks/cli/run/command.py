"""`aiolocks run NAME -- COMMAND`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

import click

from ..exits import Failure
from ..server import redis_option
from .keeper import Keeper, Order

_HELP = """
Run COMMAND while the lock NAME is held: on one machine at a time.

Waits until the lock is free, unless --wait says for how long. The lock is renewed for as long as COMMAND runs,
and is free again when it has ended, or one ttl after this process or its machine died. COMMAND finds the fencing
token in AIOLOCKS_FENCING_TOKEN: a number that is larger for each later holder, with which a store can refuse
those who come too late.

\b
  aiolocks run nightly-backup -- ./backup.sh --full
  aiolocks run nightly-backup --wait 0 -- ./backup.sh || echo "somebody else does it"

Signals are passed on. When the lock is lost, because Redis was away for a ttl or somebody removed the lock,
COMMAND gets TERM and, --kill-after seconds later, KILL; meanwhile somebody else may already hold the lock. Only
COMMAND itself gets them, not what it has started. KILL for aiolocks itself cannot be passed on: COMMAND then runs
on, and the lock ends after its ttl.

\b
Exit status: that of COMMAND (128 + n if it died of signal n), or
    2  the command line is wrong
   69  no usable Redis server
   75  the lock was not acquired within --wait
   76  the lock was lost while COMMAND ran
  126  COMMAND cannot be executed
  127  COMMAND was not found
128+n  ended by signal n while waiting for the lock
"""


class _BehindDashes(click.Command):
    """A command whose last argument is what stands behind `--`, untouched.

    Without the dashes it would be a matter of luck whose option `--ttl` is.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, command = args, list[str]()
        if "--" in args:
            at = args.index("--")
            own, command = args[:at], args[at + 1 :]
        ctx.meta[__name__] = command
        super_args = super().parse_args(ctx, own)
        if not command and not ctx.resilient_parsing:
            raise click.UsageError("what is to be run? Put it behind two dashes: run NAME -- COMMAND…", ctx)
        return super_args

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- COMMAND…"]


@click.command(cls=_BehindDashes, help=_HELP, short_help="Run a command while a lock is held.")
@click.argument("name")
@click.option(
    "--ttl", type=float, default=30.0, show_default="30", metavar="S",
    help="Seconds after which the lock is free if this process dies, or is lost if Redis stays away.",
)  # fmt: skip
@click.option(
    "--wait", type=float, metavar="S", help="Seconds to wait for the lock; 0 for a single try.  [default: for ever]"
)
@click.option(
    "--kill-after", type=click.FloatRange(min=0), default=5.0, show_default="5", metavar="S",
    help="Seconds between TERM and KILL when the lock was lost.",
)  # fmt: skip
@redis_option("redis://localhost:6379")
@click.pass_context
def run(context: click.Context, name: str, ttl: float, wait: float | None, kill_after: float, url: str) -> None:
    """See `_HELP`."""
    if os.name != "posix":
        raise Failure("run needs a POSIX system", 1)
    command: Sequence[str] = context.meta[__name__]
    order = Order(url=url, name=name, command=tuple(command), ttl=ttl, wait=wait, kill_after=kill_after)
    try:
        status = asyncio.run(Keeper.carry_out(order))
    except KeyboardInterrupt:  # before the signals are in our hands
        status = 130
    sys.exit(status)
