"""The wall clock of a real server, moved at will: clocks that step, and leases of an hour that end at once.

A small library (``skew.c``) is loaded into the server before its own and adds an offset to the time of day.
Only the server's clock moves. Its timers go on as before, and so does everything in this process.
"""

from __future__ import annotations

import mmap
import os
import shlex
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from redis.asyncio import Redis

from aiolocks.testing import EmbeddedServer
from tests.support.waiting import eventually

_SOURCE = Path(__file__).with_name("skew.c")
_OFFSET = struct.Struct("=q")  # microseconds
_TICK = 0.01  # seconds by which a server's clock may be off, for it looks at it once in a turn of its loop


class SkewUnavailableError(Exception):
    """Raised where no server's clock can be moved: not on Linux, or without a C compiler."""


class Clock:
    """How far a server's wall clock is ahead, as the server reads it; a context manager.

    Args:
        file: Where the offset is kept, for the server to map into its memory.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._memory: mmap.mmap | None = None

    @property
    def offset(self) -> float:
        """Seconds that the server's clock is ahead of this machine's; negative if behind."""
        assert self._memory is not None, "the clock has not been entered"
        microseconds: int = _OFFSET.unpack(self._memory[:])[0]
        return microseconds / 1e6

    @offset.setter
    def offset(self, seconds: float) -> None:
        assert self._memory is not None, "the clock has not been entered"
        self._memory[:] = _OFFSET.pack(round(seconds * 1e6))

    def __enter__(self) -> Self:
        self.file.write_bytes(_OFFSET.pack(0))
        with self.file.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _OFFSET.size)
        return self

    def __exit__(self, *_: object) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None


class SkewedServer:
    """A server and the wall clock that it goes by."""

    def __init__(self, server: EmbeddedServer, clock: Clock) -> None:
        self.server = server
        self._clock = clock

    @property
    def offset(self) -> float:
        """Seconds that the server's clock is ahead of this machine's; negative if behind."""
        return self._clock.offset

    async def advance(self, seconds: float) -> None:
        """Move the clock on, or back by a negative number. Returns when the server goes by it."""
        await self.set_offset(self.offset + seconds)

    async def set_offset(self, seconds: float) -> None:
        """Set how far the clock is ahead. Returns when the server goes by it."""
        self._clock.offset = seconds
        # Valkey counts the time of day on by the processor's counter, and looks at the clock now and then.
        async with self.server.client() as client:
            await eventually(lambda: self._is_followed(client))

    async def _is_followed(self, client: Redis) -> bool:
        earliest = time.time()
        whole_seconds, microseconds = await client.time()
        shown = whole_seconds + microseconds / 1e6 - self.offset
        return earliest - _TICK <= shown <= time.time() + _TICK


def compile_shim(directory: Path) -> Path:
    """Compile the library that moves the clock.

    Raises:
        SkewUnavailableError: It is of no use on this system, or there is no compiler.
    """
    if sys.platform != "linux":
        raise SkewUnavailableError("a server's clock is moved by LD_PRELOAD, which is Linux's")
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise SkewUnavailableError("moving a server's clock needs a C compiler")
    shim = directory / "skew.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-Wall", "-o", shim, _SOURCE], check=True)
    return shim


def skewed_executable(path: Path, executable: Path, shim: Path, clock: Clock) -> Path:
    """Write a program that becomes `executable`, going by `clock`; its process id stays."""
    path.write_text(
        "#!/bin/sh\n"
        f"export LD_PRELOAD={shlex.quote(str(shim))} SKEW_FILE={shlex.quote(str(clock.file))}\n"
        f'exec {shlex.quote(str(executable))} "$@"\n'
    )
    path.chmod(0o755)
    return path
