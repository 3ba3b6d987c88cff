"""Waiting for clean-up that must not be cut off, for a bounded time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import anyio

LONGEST_DELAY: Final = 1.0
"""Seconds that clean-up may hold up a cancellation, in all."""

_HELD_UP_UNTIL: Final = "aiolocks_held_up_until"
_BACKENDS: Final = "anyio._backends"


async def wait_shielded(
    make_future: Callable[[], asyncio.Future[Any]], *, cancelled_by: asyncio.CancelledError | None
) -> None:
    """Waits for clean-up that goes on by itself, through any cancellation.

    The future must come to an end by itself. Without a cancellation it is waited for to that end; from a
    cancellation on, for at most `LONGEST_DELAY` seconds more. A cancellation that arrived meanwhile is
    raised in the end: it is never swallowed. Where a cancellation passes several clean-ups, as of locks
    inside each other, these seconds are for all of them together: the error itself carries the end of this
    time from one clean-up to the next.

    Both ways of cancelling are covered: a native one comes once and is remembered; a cancelled anyio
    scope would cancel every further wait, so that these happen under a shield.

    Args:
        make_future: Gives a fresh future for the same end; a cancelled wait spoils its own.
        cancelled_by: The cancellation from which the task unwinds already; None if it does not.
    """
    if cancelled_by is not None:
        await _wait_on(make_future, cancelled_by, arrived=None)
        return
    try:
        await make_future()
    except asyncio.CancelledError as error:
        await hold_up(make_future, error)


async def hold_up(make_future: Callable[[], asyncio.Future[Any]], arrived: asyncio.CancelledError) -> None:
    """The rest of `wait_shielded`, for a caller that waited by itself until it was cancelled; raises that."""
    await _wait_on(make_future, arrived, arrived=arrived)


async def _wait_on(
    make_future: Callable[[], asyncio.Future[Any]],
    first: asyncio.CancelledError,
    *,
    arrived: asyncio.CancelledError | None,
) -> None:
    """Waits for as long as that cancellation may be held up, and raises what has `arrived`."""
    loop = asyncio.get_running_loop()
    deadline = vars(first).setdefault(_HELD_UP_UNTIL, loop.time() + LONGEST_DELAY)
    with _shield():
        future = make_future()
        while not future.done() and (left := deadline - loop.time()) > 0:
            try:
                await asyncio.wait((future,), timeout=left)
            except asyncio.CancelledError as error:
                # The first of them is raised: of a loss and a cancellation from outside, a scope further out
                # knows the second one by the count.
                arrived = arrived or error
    if arrived is not None:
        vars(arrived)[_HELD_UP_UNTIL] = deadline
        raise arrived


def _shield() -> AbstractContextManager[object]:
    """A shield against cancelled scopes of anyio.

    Code that has entered a scope has loaded its backend. Where no code has, the shield would be the first to
    load it, in the middle of a loss: that keeps the event loop for 80 ms, out of the time in which the body
    is to unwind.
    """
    return anyio.CancelScope(shield=True) if _BACKENDS in sys.modules else nullcontext()
