"""The demo's worker processes, seen from the demo."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

Event = dict[str, Any]
"""An event of a worker: its `event`, when it was (`at`), and further fields."""


class WorkerFailedError(Exception):
    """Raised when a worker did not do what it was told to."""


class Worker:
    """One process.

    Attributes:
        number: Its name in the demo, from 1.
    """

    def __init__(self, number: int, process: Process) -> None:
        self.number = number
        self._process = process

    def begin(self, act: str, **arguments: object) -> None:
        """Tells it to play an act. Its events in that act are for `until` to read."""
        self._write(json.dumps({"act": act, **arguments}))

    def go_on(self) -> None:
        """The word that it waits for in the midst of an act."""
        self._write("go on")

    async def until(self, event: str, notice: Callable[[Event], None] | None = None) -> Event:
        """Waits for an event, and lets `notice` see all of them on the way.

        Raises:
            WorkerFailedError: It failed, or ended.
        """
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            told: Event = json.loads(line)
            if told["event"] == "failed":
                raise WorkerFailedError(f"worker {self.number} failed: {told['error']}")
            if notice is not None:
                notice(told)
            if told["event"] == event:
                return told
        status = await self._process.wait()
        raise WorkerFailedError(f"worker {self.number} ended by itself, with status {status}")

    def kill(self) -> None:
        """Ends it at once, stopped or not, without its knowing."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """Stops it in the midst of whatever it does."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it go on."""
        self._signal(signal.SIGCONT)

    async def wait(self) -> None:
        """Waits until it has ended."""
        assert self._process.stdout is not None
        await self._process.stdout.read()  # asyncio lets go of a process only when its output has ended
        await self._process.wait()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            # Not Process.send_signal: before 3.13 it may reap the process itself, and asyncio then misses it.
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)


class Crew:
    """Some workers; an async context manager that starts them, and ends them however it is left."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._workers: list[Worker] = []

    def __getitem__(self, number: int) -> Worker:
        return self._workers[number - 1]

    async def __aenter__(self) -> Self:
        try:
            for number in range(1, self._size + 1):
                self._workers.append(Worker(number, await _start()))
            for worker in self._workers:
                await worker.until("ready")
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()  # all, before there is an await that could be cancelled
        for worker in self._workers:
            await worker.wait()


async def _start() -> Process:
    return await asyncio.create_subprocess_exec(
        # From wherever this process has its modules; -P, or the current directory would come first.
        sys.executable, "-P", "-m", "aiolocks.cli.demo.worker",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
        stdin=PIPE, stdout=PIPE,
        start_new_session=True,  # Ctrl-C is for the demo, which ends them
    )  # fmt: skip
