"""`aiolocks run NAME -- COMMAND`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from ...lock.options import SHORTEST_TTL
from ..completing import names
from ..exits import CommandError
from ..numbers import SecondsRange
from ..server import prefix_option, redis_option
from .dashes import BehindDashes, behind_dashes

if TYPE_CHECKING:
    from ...kinds.schedule.plan import Dues

_HELP = """
Run COMMAND while the lock NAME is held: on one machine at a time.

Waits for the lock, at most for --wait, and names its holder after a second. The lock is renewed as long as
COMMAND runs. It is free again when COMMAND has ended, or one ttl after this process or its machine died.
COMMAND finds the fencing token in AIOLOCKS_FENCING_TOKEN: a number that is larger for each later holder, so
that a store can refuse late writes.

With --at-least the lock stays taken for that long after it was acquired, even if COMMAND has ended before,
whatever its exit status. So a command that several machines start at about the same time runs once.

With --steal the lock is taken from its holder, before all waiters. The holder's COMMAND gets TERM as soon as
its aiolocks learns of the loss. Until it has ended, both commands run.

With --every or --cron, COMMAND is run for a tick of the schedule NAME, and not under a lock. Use this in the
crontab of many machines. One machine runs COMMAND for each tick; on the others, aiolocks ends at once, with
0. The clocks of the machines may be wrong by less than half of the time between two ticks, and by less than a
minute.

\b
  aiolocks run nightly-backup -- ./backup.sh --full
  aiolocks run nightly-backup --wait 0 -- ./backup.sh || echo "another machine does it"
  aiolocks run nightly-backup --at-least 60 --ttl 60 --wait 0 -- ./backup.sh
  aiolocks run nightly-backup --cron '17 3 * * *' --tz Europe/Berlin -- ./backup.sh

COMMAND is a separate process group, with all processes that it starts. Signals are passed on to all its
processes (USR1, USR2 and ALRM only to the first one). If the lock is lost, because Redis stayed away or its
key was removed, all its processes get TERM and, --kill-after seconds later, KILL. During this time another
process may already hold the lock. With --grace they get TERM that long before the lock ends, and KILL right
before its end.

The lock is held until COMMAND has ended. If COMMAND ends by itself, its background processes go on without
the lock; if a signal ends it, its other processes get KILL after --kill-after seconds. A process that leaves
the group, such as a daemon or a process under `setsid`, is not ended. If aiolocks itself gets KILL, all
processes of COMMAND go on, and the lock ends after its ttl.

\b
Exit status: that of COMMAND (128 + n if it died of signal n), or
    0  with --every or --cron: another machine has this tick, or another run goes on
    2  the command line is wrong
   69  no usable Redis server
   75  the lock was not acquired within --wait, or --at-least has not passed yet
   76  the lock was lost while COMMAND ran, or --grace ended COMMAND before
  126  COMMAND cannot be executed
  127  COMMAND was not found
128+n  ended by signal n while waiting for the lock
"""


@click.command(cls=BehindDashes, help=_HELP, short_help="Run a command while a lock is held.")
@click.argument("name", shell_complete=names)
@click.option(
    "--ttl", type=SecondsRange(min=SHORTEST_TTL), default=30, show_default=True, metavar="S",
    help="Seconds after which the lock is free if this process dies, or is lost if Redis stays away.",
)  # fmt: skip
@click.option(
    "--wait", type=SecondsRange(min=0), metavar="S",
    help="Seconds to wait for the lock, without it for ever; 0 for a single try.",
)  # fmt: skip
@click.option(
    "--at-least", type=SecondsRange(min=0), default=0, show_default=True, metavar="S",
    help="Seconds for which the name stays taken, even if COMMAND ends sooner; at most --ttl.",
)  # fmt: skip
@click.option(
    "--fair", is_flag=True,
    help="Wait in the order of asking, over all machines: a FairLock, which does not exclude a Lock.",
)  # fmt: skip
@click.option(
    "--steal", is_flag=True,
    help="Take the lock from its holder, without waiting: for a holder that hangs.",
)  # fmt: skip
@click.option(
    "--kill-after", type=SecondsRange(min=0), default=5, show_default=True, metavar="S",
    help="Seconds between TERM and KILL after the lock was lost, or after a signal has ended COMMAND.",
)  # fmt: skip
@click.option(
    "--grace", type=SecondsRange(min=0), default=0, show_default=True, metavar="S",
    help="Seconds before the end of the lock at which COMMAND gets TERM if Redis stays away; half of --ttl "
    "at the most.",
)  # fmt: skip
@click.option(
    "--every", type=SecondsRange(min=SHORTEST_TTL), metavar="S",
    help="Run for the tick that is due: one every S seconds, counted from the beginning of 1970 in UTC.",
)  # fmt: skip
@click.option(
    "--cron", metavar="EXPR", help="Run for the tick that is due by this cron expression: as in the crontab."
)
@click.option("--tz", metavar="ZONE", help="Time zone of --cron.  [default: UTC]")
@click.option("--quiet", is_flag=True, help="Do not name the holder of the lock while waiting for it.")
@prefix_option
@redis_option()
def run(
    *,
    name: str,
    ttl: float,
    wait: float | None,
    at_least: float,
    fair: bool,
    steal: bool,
    kill_after: float,
    grace: float,
    every: float | None,
    cron: str | None,
    tz: str | None,
    quiet: bool,
    prefix: str,
    url: str,
) -> None:
    """See `_HELP`."""
    if os.name != "posix":
        raise CommandError("run needs a POSIX system", 1)
    if at_least > ttl:
        message = f"--at-least {at_least:g} needs a --ttl of that many seconds or more, not {ttl:g}"
        raise click.UsageError(message, click.get_current_context())
    if steal and wait is not None:
        raise click.UsageError("--steal waits for nobody: leave --wait out", click.get_current_context())
    ticks = _ticks(every, cron, tz)
    if ticks is not None and (wait is not None or at_least or fair or steal):
        message = "--wait, --at-least, --fair and --steal are for a lock, and not for --every and --cron"
        raise click.UsageError(message, click.get_current_context())
    from .charge import run_and_exit  # noqa: PLC0415 - as below
    from .keeper import Keeper, Order  # noqa: PLC0415 - which needs one to be imported

    order = Order(
        url=url,
        prefix=prefix,
        name=name,
        command=behind_dashes(),
        ttl=ttl,
        wait=wait,
        at_least=at_least,
        fair=fair,
        kill_after=kill_after,
        grace=grace,
        quiet=quiet,
        steal=steal,
        ticks=ticks,
    )
    run_and_exit(lambda: Keeper(order))


def _ticks(every: float | None, cron: str | None, tz: str | None) -> Dues | None:
    """The due times of the schedule; None where a lock is meant."""
    context = click.get_current_context()
    if every is not None and cron is not None:
        raise click.UsageError("--every and --cron exclude each other", context)
    if tz is not None and cron is None:
        raise click.UsageError("--tz is the time zone of --cron", context)
    if every is None and cron is None:
        return None
    from ...kinds.schedule.plan import Cron, Every  # noqa: PLC0415 - as above

    try:
        return Every(every) if cron is None else Cron(cron, tz or "UTC")  # type: ignore[arg-type]
    except ValueError as error:
        raise click.UsageError(str(error), context) from None
