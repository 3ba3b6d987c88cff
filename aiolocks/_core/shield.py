"""Waiting for clean-up that must not be cut off, for a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import anyio

HURRIED: Final = 1.0
"""Seconds that clean-up may hold up a cancellation."""


async def outlast(make_future: Callable[[], asyncio.Future[Any]], *, hurried: bool) -> None:
    """Waits for clean-up that goes on by itself, whoever cancels.

    The future must come to an end by itself. When nobody is in a hurry it is waited for to that end;
    from a cancellation on (or from the start, if `hurried`), for at most `HURRIED` seconds more. A
    cancellation that arrived here is raised in the end: it is never swallowed.

    Both ways of cancelling are covered: a native one comes once and is remembered; a cancelled anyio
    scope would cancel every further wait, so that these happen under a shield.

    Args:
        make_future: Gives a fresh future for the same end; a cancelled wait spoils its own.
        hurried: The task is being cancelled already.
    """
    cancelled: asyncio.CancelledError | None = None
    if not hurried:
        try:
            await make_future()
            return
        except asyncio.CancelledError as error:
            cancelled = error
    loop = asyncio.get_running_loop()
    deadline = loop.time() + HURRIED
    with anyio.CancelScope(shield=True):
        future = make_future()
        while not future.done() and (left := deadline - loop.time()) > 0:
            try:
                await asyncio.wait((future,), timeout=left)
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled
