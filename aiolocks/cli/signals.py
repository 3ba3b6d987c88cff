"""Signals that end a command which goes on until somebody ends it."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import Final

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ended_by_signal() -> asyncio.Future[int]:
    """The number of the first of these signals, once it comes. They end nothing else from now on."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def arrived(number: int) -> None:
        if not ended.done():
            ended.set_result(number)

    for number in _ENDING:
        with suppress(NotImplementedError):  # where there are no such signals, KeyboardInterrupt serves
            loop.add_signal_handler(number, arrived, number)
    return ended
