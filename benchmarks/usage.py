"""CPU of this process, while it seems to do nothing, and its memory."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path


async def load(seconds: float) -> float:
    """The share of one core that this process uses meanwhile."""
    began, used = time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - used) / (time.monotonic() - began)


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
