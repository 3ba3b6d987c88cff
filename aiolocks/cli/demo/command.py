"""`aiolocks demo`."""

from __future__ import annotations

import asyncio
import json
import time

import click

from ..exits import CommandError
from ..server import EMBEDDED, redis_option

_HELP = """
See what a lock does, with four worker processes on a private server. It takes some seconds.

\b
1  Without a lock, updates of one counter are lost.
2  With Lock, none is, and fencing tokens rise.
3  A holder is killed: another takes over when its lease ends.
4  A holder is stopped past its ttl: the store refuses its late write.

\b
  aiolocks demo
  aiolocks demo --json
  aiolocks demo --redis redis://localhost:6379

Every claim is checked. On a server of yours it uses keys of its own, and removes them.

\b
Exit status:
    0  all is as it should be
    1  something is not; the last line says what
    2  the command line is wrong
   69  no usable Redis server
128+n  ended by signal n
"""


@click.command(help=_HELP, short_help="See what a lock does, with real processes.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary for machines, and nothing else.")
@redis_option(EMBEDDED)
def demo(*, as_json: bool, url: str) -> None:
    """See `_HELP`."""
    # Here, because they take longer to import than all else, and `run` does not need them.
    from .performance import perform  # noqa: PLC0415
    from .screen import choose_screen  # noqa: PLC0415

    screen = choose_screen(json=as_json)
    began = time.monotonic()
    scenes = asyncio.run(perform(url, screen))
    took = time.monotonic() - began
    failed = [f"act {scene.number}: {check}" for scene in scenes for check in scene.failed]
    if as_json:
        acts = [scene.summary() for scene in scenes]
        click.echo(json.dumps({"passed": not failed, "seconds": round(took, 3), "acts": acts}, indent=2))
    if failed:
        raise CommandError("not as it should be: " + "; ".join(failed), 1)
    checks = sum(len(scene.checks) for scene in scenes)
    screen.say(f"All {checks} checks passed, in {took:.1f} s.", "bold green")
