"""`aiolocks doctor`."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Iterable
from typing import Final

import click
from redis.exceptions import ResponseError

from ..._visible import visible
from ..exits import AMISS as STATUS
from ..exits import NO_SERVER, CommandError
from ..listing.commands import json_option
from ..listing.shown import document
from ..server import Server, connected, prefix_option, redis_option
from . import several
from .findings import AMISS, Finding, Level

_HELP: Final = """
Check whether a server is fit for locks, and say how to fix what is not.

Of a cluster it looks at each node, and through Sentinel at the master, its replicas and the Sentinels.

Each finding is `ok`, a `note` (it may be meant so), a `warning` (locks work, but later or less safely than
they could) or an `error` (locks do not work); the line below it says what fixes it. The doctor reads the
settings, tries each command and key that scripts need, and acquires, renews, hands over and releases a lock
of its own. It leaves no key behind. Run it as the user of your program, to see what that user may do; some
settings can be read by an administrator only.

\b
  aiolocks doctor
  aiolocks doctor --redis rediss://locks:secret@redis.example:6380 --prefix shop
  aiolocks doctor --redis redis+cluster://node-1:7000,node-2:7000
  aiolocks doctor --json | jq -r '.findings[] | select(.level == "error") | .fix'

\b
Exit status:
    0  nothing is wrong; there may be notes
    1  there is a warning or an error
    2  the command line is wrong
   69  no usable Redis server
128+n  ended by signal n; 141 if nobody reads what it prints
"""
_COLOURS: Final = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.ERROR: "red"}
_LEFT: Final = 24
"""Columns before the text of a finding."""


@click.command(help=_HELP, short_help="Check a server, and say how to fix it.")
@click.option(
    "--wakeup",
    type=click.Choice(["auto", "tracking", "keyspace", "poll"]),
    default="auto",
    show_default=True,
    help="The wakeup= of the sessions of your program.",
)
@json_option
@prefix_option
@redis_option()
def doctor(*, wakeup: str, as_document: bool, prefix: str, url: str) -> None:
    """See `_HELP`."""
    if not prefix or set(prefix) & set("{}"):
        raise click.UsageError("--prefix must not be empty and have no braces", click.get_current_context())
    findings = asyncio.run(_examine(url, prefix, wakeup))
    if as_document:
        listed = [dataclasses.asdict(finding) for finding in findings]
        click.echo(document(prefix=prefix, findings=listed))
    else:
        _print(findings)
    if any(finding.level in AMISS for finding in findings):
        sys.exit(STATUS)


async def _examine(url: str, prefix: str, wakeup: str) -> list[Finding]:
    async with connected(url, ailing=True) as server:
        try:
            return await examine(server, prefix=prefix, wakeup=wakeup)
        except ResponseError as error:
            raise CommandError(f"the server refuses to be examined: {error}", NO_SERVER) from None


async def examine(server: Server, *, prefix: str, wakeup: str = "auto") -> list[Finding]:
    """All findings about a server.

    Args:
        server: A server that has answered.
        prefix: The prefix of the sessions' keys.
        wakeup: The way to wake their waiters, as a session takes it.

    Raises:
        CommandError: The server has gone away.
        ResponseError: It serves no client now, as while a script blocks it.
    """
    findings = [found async for found in several.examined(server, prefix=prefix, wakeup=wakeup)]
    user = server.target.user
    return [dataclasses.replace(finding, fix=finding.fix.replace("<user>", user)) for finding in findings]


def _print(findings: Iterable[Finding]) -> None:
    """A finding a line, with its advice below; of several servers, each under its address."""
    node = ""
    for finding in findings:
        if finding.node != node:
            node = finding.node
            click.echo(f"\n{visible(node, sys.stdout.encoding) or 'all together'}")
        click.echo(_lines(finding))


def _lines(finding: Finding) -> str:
    encoding = sys.stdout.encoding
    level = click.style(f"{finding.level:<8}", fg=_COLOURS[finding.level])
    first = f"{level}{finding.check:<{_LEFT - 8}}{visible(finding.says, encoding)}"
    return f"{first}\n{'':<{_LEFT}}fix: {visible(finding.fix, encoding)}" if finding.fix else first
