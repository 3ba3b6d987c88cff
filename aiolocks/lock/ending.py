"""The end of a session's connection.

The connection ends with the session: closed by it, collected with it, or when the loop shuts down. All
three are one mechanism, an async generator that was begun. `aclose` closes it; a collected one is closed
by its loop; and `asyncio.run` and its like end, after cancelling every task, with
`loop.shutdown_asyncgens`: the one moment at which something that belongs to a loop can still send its
last words. A loop that is closed without it gives no such moment: `transport/closed_loops.py` closes what is
open then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Final, final

from ..transport import Transport
from .blocks import TURNS_TO_CLOSE
from .resumption import Resumption

if TYPE_CHECKING:
    from .tenure import Keep

UNWINDING: Final = 1.0
"""Seconds that closing waits for the bodies that it cancelled, and for requests that are still out."""


@final
class Ending:
    """Closes the connection at the end of the session, whichever it is.

    Args:
        leave: Gives back what no code works under, where the loop ends before the session is closed.
    """

    __slots__ = ("_closing",)

    def __init__(
        self, transport: Transport, resumption: Resumption, kept: Keep, leave: Callable[[], object]
    ) -> None:
        self._closing = _close_at_end(transport, resumption, kept, leave)
        with contextlib.suppress(StopIteration):  # it stops at its `yield`
            self._closing.__anext__().send(None)

    async def come(self, grace: float) -> None:
        """The session is closed: requests that are still out have `grace` seconds."""
        with contextlib.suppress(StopAsyncIteration):
            await self._closing.asend(grace)


async def _close_at_end(
    transport: Transport, resumption: Resumption, kept: Keep, leave: Callable[[], object]
) -> AsyncGenerator[None, float]:
    grace = UNWINDING
    try:
        grace = yield
    except GeneratorExit:
        # When the loop shuts down, it closes all generators at once. Before this one goes on, the generators
        # of users that hold a lease let go of it.
        for _ in range(TURNS_TO_CLOSE):
            await asyncio.sleep(0)
        leave()
        raise
    finally:
        kept.close()
        resumption.close()
        await transport.aclose(grace)
