"""Worker processes, seen from the benchmark. Their own side is `worker`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .desk import Desk
from .settings import Address, LoopName

Job = Callable[..., Awaitable[Any]]
"""A function of a module, whose first argument is a `Desk`."""

_LINE = 1 << 26
"""Bytes that one message may have: it may bring thousands of figures."""


class WorkerFailedError(Exception):
    """Raised when a job raised, with what it raised; or when its process ended."""


class Worker:
    """One process, which does one job at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def begin(self, job: Job, **arguments: object) -> None:
        """Gives it a job."""
        self.tell({"job": f"{job.__module__}:{job.__qualname__}", "arguments": arguments})

    def tell(self, message: object) -> None:
        """Says something to the job, which hears it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def hear(self) -> Any:
        """The next message of the job, and at its end its result.

        Raises:
            WorkerFailedError: It failed.
        """
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise WorkerFailedError("the process ended")
        message = json.loads(line)
        if "error" in message:
            raise WorkerFailedError(message["error"])
        return message["said"]

    async def do(self, job: Job, **arguments: object) -> Any:
        """Has it do a job that is not spoken with; its result."""
        self.begin(job, **arguments)
        return await self.hear()

    async def kill(self) -> None:
        """Ends it with SIGKILL."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()


class Crew:
    """Worker processes that are there while it is entered."""

    def __init__(self, address: Address, size: int, *, loop: LoopName, ttl: int | None = None) -> None:
        self._arguments = json.dumps({"address": asdict(address), "loop": loop, "ttl": ttl})
        self._size = size
        self._workers: list[Worker] = []

    def __getitem__(self, number: int) -> Worker:
        return self._workers[number]

    async def together(self, job: Job, each: list[dict[str, object]]) -> list[Any]:
        """Has all do a job that starts when all are ready; what each said at the end.

        The job says something when it is ready, then hears at what time (`time.monotonic`) to start.
        """
        async with self.renewed_on_failure():
            for worker, arguments in zip(self._workers, each, strict=True):
                worker.begin(job, **arguments)
            await self.hear()
            at = time.monotonic() + 0.02
            for worker in self._workers:
                worker.tell(at)
            return await self.hear()

    async def hear(self) -> list[Any]:
        """The next message of each.

        Raises:
            WorkerFailedError: One of them failed. Nobody listens to the others any more.
        """
        ears = [asyncio.ensure_future(worker.hear()) for worker in self._workers]
        try:
            return await asyncio.gather(*ears)
        finally:
            for ear in ears:
                ear.cancel()
            await asyncio.gather(*ears, return_exceptions=True)

    @asynccontextmanager
    async def renewed_on_failure(self) -> AsyncGenerator[None]:
        """Replaces the processes when what is done with them fails: some may be in the midst of it."""
        try:
            yield
        except BaseException:
            await self._dismiss()
            await self._hire()
            raise

    async def __aenter__(self) -> Self:
        try:
            await self._hire()
        except BaseException:
            await self._dismiss()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._dismiss()

    async def _hire(self) -> None:
        for _ in range(self._size):
            self._workers.append(Worker(await self._start()))
        await asyncio.gather(*(worker.do(ping) for worker in self._workers))

    async def _dismiss(self) -> None:
        workers, self._workers = self._workers, []
        await asyncio.gather(*(worker.kill() for worker in workers))

    async def _start(self) -> Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "benchmarks.worker", self._arguments,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
            stdin=PIPE, stdout=PIPE, limit=_LINE,
            start_new_session=True,  # Ctrl-C is for the benchmark, which ends them
        )  # fmt: skip


async def ping(desk: Desk) -> None:
    """Whether it is there."""
