"""`aiolocks demo`."""

from __future__ import annotations

import asyncio
import json
import secrets
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from typing import cast

import click
from redis.asyncio import Redis
from redis.exceptions import RedisError

from ..._tasks import empty_context, spawn
from ..exits import AMISS, NO_SERVER, CommandError, ended_by_signal, of_signal
from ..server import EMBEDDED, connected, redis_option
from .acts import ACTS, PATIENCE, WORKERS, Act
from .worker import working

_HELP = """
See what a lock does, with four worker processes on a private server. It takes some seconds.

\b
1  Without a lock, updates of one counter are lost.
2  With Lock, none is, and fencing tokens rise.
3  A holder is killed: another takes over when its lease ends.
4  A holder is stopped past its ttl: the store refuses its late write.

\b
  aiolocks demo
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

    def say(line: str) -> None:
        if not as_json:
            click.echo(textwrap.fill(line, 80, subsequent_indent=" " * 12))

    acts = asyncio.run(_perform(url, say))
    checks = [check for act in acts for check in act.checks]
    failed = [str(check["text"]) for check in checks if not check["passed"]]
    if as_json:
        summary = [{"title": act.title, "checks": act.checks} for act in acts]
        click.echo(json.dumps({"passed": not failed, "acts": summary}, indent=2))
    if failed:
        raise CommandError("not as it should be: " + "; ".join(failed), AMISS)
    say(f"All {len(checks)} checks passed.")


async def _perform(url: str, say: Callable[[str], None]) -> list[Act]:
    """All acts. A signal ends them, and then no worker, server or key is left."""
    ended = ended_by_signal()
    playing = spawn(asyncio.get_running_loop(), _play(url, say), name="aiolocks-demo", context=None)
    ended.add_done_callback(lambda _: playing.cancel(), context=empty_context())
    try:
        return await asyncio.wait_for(playing, PATIENCE)
    except asyncio.CancelledError:
        raise click.exceptions.Exit(of_signal(await ended)) from None
    except TimeoutError:
        raise CommandError(f"it did not come to an end within {PATIENCE:g} s", AMISS) from None
    except RedisError as error:
        raise CommandError(f"the server failed: {error}", NO_SERVER) from None


async def _play(url: str, say: Callable[[str], None]) -> list[Act]:
    acts: list[Act] = []
    prefix = f"aiolocks-demo-{secrets.token_hex(4)}"
    async with connected(url) as server, AsyncExitStack() as stack:
        say(f"{WORKERS} worker processes on {'a private server' if url == EMBEDDED else server.target}")
        stack.push_async_callback(_remove_keys, server.only, prefix)
        started = [working(number, server.url, prefix) for number in range(1, WORKERS + 1)]
        workers = [await stack.enter_async_context(worker) for worker in started]
        for worker in workers:
            await worker.until("ready")
        for number, (title, play) in enumerate(ACTS, 1):
            say("")
            say(f"{number}  {title}")
            acts.append(Act(title, server.only, prefix, workers, say))
            await play(acts[-1])
            for check in acts[-1].checks:
                say(f"   {'ok' if check['passed'] else 'FAILED':8}  {check['text']}")
        say("")
    return acts


async def _remove_keys(redis: Redis, prefix: str) -> None:
    """All would expire by themselves."""
    with suppress(RedisError, TimeoutError):
        async with asyncio.timeout(1):
            scan = redis.scan_iter(f"{prefix}*")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            await redis.unlink(*[key async for key in cast("AsyncIterator[bytes]", scan)])
