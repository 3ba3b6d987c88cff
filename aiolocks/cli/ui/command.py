"""`aiolocks ui`, as the command line takes it."""

from __future__ import annotations

import asyncio
import ipaddress
import sys
from typing import Final

import click

from ..._extras import install
from ..._visible import visible
from ..exits import CommandError, say
from ..numbers import WholeRange
from ..server import prefix_option, redis_option

_HOST: Final = "127.0.0.1"
_PORT: Final = 8765

_HELP: Final = """
Serve a page that shows, live, who holds what, who waits for whom, deadlocks, leaders and schedules.

It has no login: each user of this machine can read all names and metadata of the prefix, and with another
--host each machine of the network can. With --allow-release they can free any lock; that is served only on an
address of this machine itself. To give others access, mount the page in an application that knows its users:
aiolocks.contrib.dashboard.

\b
  aiolocks ui
  aiolocks ui --prefix shop --port 9000 --allow-release

\b
Exit status:
    0  left with Ctrl-C
    1  uvicorn is not installed
    2  the command line is wrong
   69  no usable Redis server, or the user may not look; or it cannot listen there
128+n  ended by signal n
"""


@click.command(help=_HELP, short_help="Serve a page that shows who holds what.")
@click.option("--host", default=_HOST, show_default=True, metavar="ADDRESS", help="The address to listen at.")
@click.option(
    "--port", type=WholeRange(0, 65535), default=_PORT, show_default=True,
    help="The port to listen at; 0 for any free port.",
)  # fmt: skip
@click.option("--allow-release", is_flag=True, help="Let the page free locks, after a question.")
@prefix_option
@redis_option()
def ui(*, host: str, port: int, allow_release: bool, prefix: str, url: str) -> None:
    """See `_HELP`."""
    if allow_release and not _is_of_this_machine(host):
        message = (
            f"--allow-release is for an address of this machine itself, such as {_HOST}, and not for {host}"
        )
        raise click.UsageError(message, click.get_current_context())
    if not _is_of_this_machine(host):
        say(
            f"each machine that reaches {host} can read the names, metadata and processes of the prefix "
            f"'{visible(prefix)}': the page has no login"
        )
    try:
        from .serving import serve  # noqa: PLC0415 - the other commands do not need it
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "uvicorn":
            raise
        raise CommandError(f"the page is served by uvicorn: {install('ui')}", 1) from None
    sys.exit(asyncio.run(serve(url, prefix, host, port, allow_release=allow_release)))


def _is_of_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
