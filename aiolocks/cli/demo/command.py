"""`aiolocks demo`."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final, cast

import click
from redis.asyncio import Redis
from redis.exceptions import RedisError

from ..exits import NO_SERVER, CommandError, of_signal
from ..server import EMBEDDED, Server, connected, redis_option
from .acts import ACTS, WORKERS, Stage
from .crew import Crew, WorkerFailedError
from .scene import Scene
from .screen import Screen, choose_screen

_HELP = """
See what a lock does, with four worker processes on a private server. It takes some seconds.

\b
1  Without a lock, updates of one counter are lost.
2  With Lock, none is, and fencing tokens rise.
3  A holder is killed: another takes over when its lease ends.
4  A holder is stopped past its ttl: its late write is refused by its fencing token.

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

_PATIENCE: Final = 60.0
"""Seconds after which whatever has not come about will not."""


@click.command(help=_HELP, short_help="See what a lock does, with real processes.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary for machines, and nothing else.")
@redis_option(EMBEDDED)
def demo(*, as_json: bool, url: str) -> None:
    """See `_HELP`."""
    screen = choose_screen(json=as_json)
    began = time.monotonic()
    scenes = asyncio.run(_until_signalled(url, screen))
    took = time.monotonic() - began
    failed = [f"act {scene.number}: {check}" for scene in scenes for check in scene.failed]
    if as_json:
        acts = [scene.summary() for scene in scenes]
        click.echo(json.dumps({"passed": not failed, "seconds": round(took, 3), "acts": acts}, indent=2))
    if failed:
        raise CommandError("not as it should be: " + "; ".join(failed), 1)
    checks = sum(len(scene.checks) for scene in scenes)
    screen.say(f"All {checks} checks passed, in {took:.1f} s.", "bold green")


async def _until_signalled(url: str, screen: Screen) -> Sequence[Scene]:
    """Unwinds on a signal, so that no worker, server or key is left, and no terminal without its cursor."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    signals: list[int] = []

    def signalled(number: int) -> None:
        signals.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, signalled, number)
    try:
        return await _play(url, screen)
    except asyncio.CancelledError:
        if not signals:
            raise
        raise click.exceptions.Exit(of_signal(signals[0])) from None


async def _play(url: str, screen: Screen) -> Sequence[Scene]:
    try:
        async with asyncio.timeout(_PATIENCE), connected(url) as server, Crew(WORKERS) as crew:
            prefix = f"aiolocks-demo-{secrets.token_hex(4)}"
            try:
                screen.say(f"{WORKERS} worker processes on {await _name(server)}\n")
                stage = Stage(crew=crew, redis=server.client, url=server.url, prefix=prefix)
                return [await _show(stage, screen, number) for number in range(1, len(ACTS) + 1)]
            finally:
                await _remove_keys(server.client, prefix)
    except WorkerFailedError as error:
        raise CommandError(str(error), 1) from None
    except TimeoutError:
        raise CommandError(f"it did not come to an end within {_PATIENCE:g} s", 1) from None
    except RedisError as error:
        raise CommandError(f"the server failed: {error}", NO_SERVER) from None


async def _show(stage: Stage, screen: Screen, number: int) -> Scene:
    act = ACTS[number - 1]
    scene = Scene(number, act.title, act.workers)
    async with screen.showing(scene):
        await act.play(stage, scene)
    return scene


async def _name(server: Server) -> str:
    """Which server it is, if it says so."""
    try:
        answer = server.client.info("server")  # pyright: ignore[reportUnknownMemberType]
        info = cast("dict[str, object]", await answer)
    except RedisError:
        return "a server that does not tell its name"
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info.get('redis_version', '')}"


async def _remove_keys(redis: Redis, prefix: str) -> None:
    """They all expire by themselves; this is only sooner."""
    with suppress(RedisError, TimeoutError):
        async with asyncio.timeout(1):
            scan = redis.scan_iter(f"{prefix}*")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            async for key in cast("AsyncIterator[bytes]", scan):
                await redis.unlink(key)
