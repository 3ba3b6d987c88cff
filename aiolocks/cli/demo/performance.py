"""The whole demo: from the start of the workers to the last act, or to a signal."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, cast

import click
from redis.asyncio import Redis
from redis.exceptions import RedisError

from ..exits import NO_SERVER, CommandError, of_signal
from ..server import Server, connected
from .acts import ACTS, WORKERS, Demo
from .crew import Crew, WorkerFailedError
from .scene import Scene
from .screen import Screen

_PATIENCE: Final = 60.0
"""Seconds after which whatever has not come about will not."""


async def perform(url: str, screen: Screen) -> Sequence[Scene]:
    """Plays all acts on a screen. A signal unwinds it: no worker, server, key or hidden cursor is left.

    Raises:
        CommandError: It could not be played to its end.
        click.exceptions.Exit: A signal ended it.
    """
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
        async with (
            asyncio.timeout(_PATIENCE),
            connected(url) as server,
            _prefix(server.only) as prefix,
            Crew(WORKERS) as crew,
        ):
            screen.say(f"{WORKERS} worker processes on {await _name(server)}\n")
            demo = Demo(crew=crew, redis=server.only, url=server.url, prefix=prefix)
            return [await _show(demo, screen, number) for number in range(1, len(ACTS) + 1)]
    except WorkerFailedError as error:
        raise CommandError(str(error), 1) from None
    except TimeoutError:
        raise CommandError(f"it did not come to an end within {_PATIENCE:g} s", 1) from None
    except RedisError as error:
        raise CommandError(f"the server failed: {error}", NO_SERVER) from None


async def _show(demo: Demo, screen: Screen, number: int) -> Scene:
    act = ACTS[number - 1]
    scene = Scene(number, act.title, act.workers)
    async with screen.showing(scene):
        await act.play(demo, scene)
    return scene


async def _name(server: Server) -> str:
    """Which server it is, if it says so."""
    try:
        answer = server.only.info("server")  # pyright: ignore[reportUnknownMemberType]
        info = cast("dict[str, object]", await answer)
    except RedisError:
        return "a server that does not tell its name"
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info.get('redis_version', '')}"


@asynccontextmanager
async def _prefix(redis: Redis) -> AsyncGenerator[str, None]:
    """The prefix of the keys of one demo. All expire by themselves; at the end they go at once."""
    prefix = f"aiolocks-demo-{secrets.token_hex(4)}"
    try:
        yield prefix
    finally:
        with suppress(RedisError, TimeoutError):
            async with asyncio.timeout(1):
                scan = redis.scan_iter(f"{prefix}*")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
                async for key in cast("AsyncIterator[bytes]", scan):
                    await redis.unlink(key)
