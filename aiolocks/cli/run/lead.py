"""`aiolocks lead NAME -- COMMAND`."""

from __future__ import annotations

import os
from typing import Any

import click

from ...lock.options import SHORTEST_TTL
from ..completing import names
from ..exits import CommandError
from ..numbers import SecondsRange
from ..server import prefix_option, redis_option
from .dashes import BehindDashes, behind_dashes

_HELP = """
Run COMMAND while this process leads. Of all candidates for NAME, one leads at a time.

Waits for its turn, first come, first served, and names the leader after a second. When this process is
elected, COMMAND runs. When COMMAND ends by itself, this process ends with its exit status, and the next
candidate is elected. When the lead is lost, because Redis stayed away or its key was removed, COMMAND is
ended, and this process waits for its turn again. COMMAND finds the fencing token of its term in
AIOLOCKS_FENCING_TOKEN.

\b
  aiolocks lead scheduler -- ./scheduler.sh
  aiolocks lead scheduler --ttl 5 --grace 1 --value http://10.0.0.7 -- ./scheduler.sh
  aiolocks show scheduler

COMMAND is a separate process group, with all processes that it starts. Signals are passed on to all its
processes (USR1, USR2 and ALRM only to the first one). If Redis stays away, all its processes get TERM --grace
seconds before another process can be elected, and KILL right before that.

This process leads until COMMAND has ended. If COMMAND ends by itself, its background processes go on; if a
signal ends it, its other processes get KILL after --grace seconds. A process that leaves the group, such as a
daemon or a process under `setsid`, is not ended. If aiolocks itself gets KILL, all processes of COMMAND go
on, and the lead ends after its ttl.

\b
Exit status: that of COMMAND (128 + n if it died of signal n), or
    2  the command line is wrong
   69  no usable Redis server
  126  COMMAND cannot be executed
  127  COMMAND was not found
128+n  ended by signal n while waiting
"""


@click.command(cls=BehindDashes, help=_HELP, short_help="Run a command while this process leads.")
@click.argument("name", shell_complete=names)
@click.option(
    "--ttl", type=SecondsRange(min=SHORTEST_TTL), default=10, show_default=True, metavar="S",
    help="Seconds after which another process leads if this one dies.",
)  # fmt: skip
@click.option(
    "--grace", type=SecondsRange(min=0), metavar="S",
    help="Seconds that COMMAND has to end when Redis stays away; half of --ttl at the most. Without it 2, or "
    "a fifth of a ttl below 10.",
)  # fmt: skip
@click.option(
    "--value", metavar="TEXT", help="A text to publish while this process leads, such as its address."
)
@click.option("--quiet", is_flag=True, help="Do not name the leader while waiting.")
@prefix_option
@redis_option()
def lead(**asked: Any) -> None:
    """See `_HELP`."""
    if os.name != "posix":
        raise CommandError("lead needs a POSIX system", 1)
    from .candidate import Candidate, Order  # noqa: PLC0415 - which needs one to be imported
    from .charge import run_and_exit  # noqa: PLC0415 - as below

    order = Order(command=behind_dashes(), **asked)
    run_and_exit(lambda: Candidate(order))
