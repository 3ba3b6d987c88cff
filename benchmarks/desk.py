"""The tools that a job in a worker process works with."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from typing import Any

from .contenders import Arena, Locks
from .settings import Address


class Desk:
    """The tools that a job works with.

    Attributes:
        arena: The contenders.
    """

    def __init__(self, lines: asyncio.StreamReader, arena: Arena) -> None:
        self._lines = lines
        self.arena = arena

    @property
    def address(self) -> Address:
        """Where the server is."""
        return self.arena.address

    async def locks(self, contender: str) -> Locks:
        """A contender's locks."""
        return await self.arena.locks(contender)

    def say(self, message: object) -> None:
        """Says something to the benchmark."""
        print(json.dumps({"said": message}), flush=True)

    async def hear(self) -> Any:
        """The next message of the benchmark. The process ends with it."""
        line = await self._lines.readline()
        if not line:
            raise EOFError
        return json.loads(line)

    async def start_together(self) -> float:
        """Says that it is ready, and returns at the moment at which all start; that moment."""
        gc.collect()
        self.say("ready")
        at: float = await self.hear()
        await asyncio.sleep(at - time.monotonic())
        return at
