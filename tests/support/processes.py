"""Functions in processes of their own: several real clients, to be killed, stopped and continued.

A worker is a coroutine function of an importable module. It runs under `asyncio.run`, gets its arguments and
tells what happens through JSON:

```python
async def enter(url: str, name: str) -> None:
    async with Redis.from_url(url) as redis, Lock(redis, name) as lease:
        tell("inside", token=lease.fencing_token)
        await asyncio.sleep(60)

async def test_somebody_else_gets_in(workers, server):
    worker = await workers.start(enter, url=server.url, name="n")
    await worker.told("inside")
    worker.kill()
```

No worker outlives the test, not even when the test run itself is killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]

Report = dict[str, Any]
"""A report of a worker: its ``event``, and further fields."""


def tell(event: str, **details: Any) -> None:
    """In a worker: tell the test that something has happened."""
    print(json.dumps({"event": event, **details}), flush=True)  # noqa: T201 - the way it tells


class WorkerError(AssertionError):
    """Raised when a worker ended otherwise than it should; with what it had to say on stderr."""


class Workers:
    """The processes of one test; an async context manager that ends those that are left.

    Attributes:
        environment: Variables that the processes to be started get beside those of this one.
    """

    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        self._workers: list[Worker] = []

    async def start(self, function: Callable[..., Awaitable[object]], /, **arguments: Any) -> Worker:
        """Start one process that runs ``function(**arguments)``. It is not yet there when this returns.

        Args:
            function: A coroutine function at the top level of an importable module.
            **arguments: Anything that JSON can carry.
        """
        target = f"{function.__module__}:{function.__qualname__}"
        worker = Worker(target, arguments, {**os.environ, **self.environment})
        self._workers.append(worker)
        await worker._start()
        return worker

    async def start_many(
        self, number: int, function: Callable[..., Awaitable[object]], /, **arguments: Any
    ) -> list[Worker]:
        """Start several processes alike."""
        return [await self.start(function, **arguments) for _ in range(number)]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            await worker._close()


class Worker:
    """One process. Made by `Workers.start`.

    Attributes:
        told_so_far: Its reports, as far as the test has listened.
    """

    def __init__(self, target: str, arguments: dict[str, Any], environment: dict[str, str]) -> None:
        self.told_so_far: list[Report] = []
        self._command = json.dumps({"target": target, "arguments": arguments})
        self._environment = environment
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `_close` closes it
        self._child: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """End it at once, in whatever state; it has no say in it. Nothing happens if it has ended."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """Stop it in the midst of whatever it does, until `cont`: a laptop asleep, a machine that swaps."""
        self._signal(signal.SIGSTOP)

    def cont(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    async def told(self, event: str, *, within: float = 30) -> Report:
        """Wait until it tells of this event, passing over others.

        Raises:
            WorkerError: It ended without doing so, or took more than `within` seconds.
        """
        try:
            async with asyncio.timeout(within):
                while report := await self._next():
                    if report["event"] == event:
                        return report
                await self._process.wait()
        except TimeoutError:
            pass
        raise WorkerError(f"did not tell {event!r} {self._state()}")

    async def finish(self, *, status: int = 0, within: float = 30) -> list[Report]:
        """Wait until it has ended, and return all that it told from the beginning.

        Args:
            status: How it should end: its exit status, or minus the signal that it was killed by.
            within: Seconds after which to give up.

        Raises:
            WorkerError: It ended otherwise, or not in time.
        """
        try:
            async with asyncio.timeout(within):
                while await self._next():
                    pass
                await self._process.wait()
        except TimeoutError:
            pass
        if self._process.returncode != status:
            raise WorkerError(f"did not end with status {status} {self._state()}")
        return self.told_so_far

    @property
    def _process(self) -> asyncio.subprocess.Process:
        assert self._child is not None
        return self._child

    async def _start(self) -> None:
        self._child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, self._command, str(os.getpid()),
            cwd=ROOT, env=self._environment,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip

    async def _next(self) -> Report | None:
        stdout = self._process.stdout
        assert stdout is not None
        line = await stdout.readline()
        if not line.endswith(b"\n"):
            return None  # the end, or a line that it was killed in
        report: Report = json.loads(line)
        self.told_so_far.append(report)
        return report

    def _state(self) -> str:
        """For messages: how it stands with it."""
        status = self._process.returncode
        state = "still running" if status is None else f"status {status}"
        self._errors.seek(0)
        return (
            f"({state}; last of {self.told_so_far[-3:]}; stderr: {self._errors.read().decode() or 'empty'})"
        )

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None and self._child.returncode is None:
            with suppress(ProcessLookupError):
                self._child.send_signal(number)

    async def _close(self) -> None:
        if self._child is not None:
            while await self._next():  # to the end of its output: only then asyncio lets go of the pipe
                pass
            await self._child.wait()
        self._errors.close()


def _end_with(parent: int) -> None:
    """Let this process end when the one that started it does, even if that is killed."""
    if sys.platform == "linux":
        # The kernel sees to it, also when this process is stopped.
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it has died already

    def watch() -> None:
        # Nothing is ever written there: the end of it is the end of the parent. (Not through sys.stdin, whose
        # lock the end of this process would want.)
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _main() -> None:
    command, parent = json.loads(sys.argv[1]), int(sys.argv[2])
    _end_with(parent)
    module, _, function = command["target"].partition(":")
    asyncio.run(getattr(importlib.import_module(module), function)(**command["arguments"]))


if __name__ == "__main__":
    _main()
