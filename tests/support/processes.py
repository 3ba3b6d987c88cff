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

A worker is a fork of a process that has imported what they all need: Python and these modules take half a
second of a core to begin, and a fork some milliseconds. One with variables of its own begins anew.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]

_COMMON = ("aiolocks", "aiolocks.cli.app", "pytest", "tests.conftest")
"""The modules that workers need, or nearly all of them."""

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
        worker = Worker(target, arguments, self.environment)
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
        self._command = json.dumps(
            {
                "target": target,
                "arguments": arguments,
                "environment": {**os.environ, **environment},
                "anew": bool(environment),
            }
        )
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `_close` closes it
        self._life: _Life | None = None

    @property
    def pid(self) -> int:
        return self._begun.pid.result()

    @property
    def returncode(self) -> int | None:
        """None while it runs; then its exit status, or minus the signal that it was killed by."""
        return self._begun.returncode

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
                await self._begun.ended()
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
                await self._begun.ended()
        except TimeoutError:
            pass
        if self.returncode != status:
            raise WorkerError(f"did not end with status {status} {self._state()}")
        return self.told_so_far

    @property
    def _begun(self) -> _Life:
        assert self._life is not None
        return self._life

    async def _start(self) -> None:
        self._life = _Life()
        await self._life.begin(self._command, self._errors.fileno())

    async def _next(self) -> Report | None:
        line = await self._begun.stdout.readline()
        if not line.endswith(b"\n"):
            return None  # the end, or a line that it was killed in
        report: Report = json.loads(line)
        self.told_so_far.append(report)
        return report

    def _state(self) -> str:
        """For messages: how it stands with it."""
        status = self.returncode
        state = "still running" if status is None else f"status {status}"
        self._errors.seek(0)
        return (
            f"({state}; last of {self.told_so_far[-3:]}; stderr: {self._errors.read().decode() or 'empty'})"
        )

    def _signal(self, number: signal.Signals) -> None:
        if self._life is not None and self._life.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def _close(self) -> None:
        if self._life is not None:
            while await self._next():  # to the end of its output: only then asyncio lets go of the pipe
                pass
            await self._life.ended()
            self._life.close()
        self._errors.close()


class Program:
    """A process that calls a function without arguments, such as a `main`, with pipes to its three streams.

    It has what a test needs of `asyncio.subprocess.Process`.

    Attributes:
        stdin: To be written to.
        stdout: What it prints.
        stderr: What it prints there.
    """

    def __init__(self, life: _Life, stderr: asyncio.StreamReader) -> None:
        self._life = life
        self.stdin = _Stdin(life)
        self.stdout = life.stdout
        self.stderr = stderr

    @classmethod
    async def start(
        cls, function: Callable[[], object], *arguments: str, environment: dict[str, str]
    ) -> Self:
        """A fork of what workers are forks of, which has imported Python and the library.

        Args:
            function: At the top level of an importable module.
            *arguments: What stands behind the name of a program on its command line.
            environment: All its variables.
        """
        command = {
            "call": f"{function.__module__}:{function.__qualname__}",
            "arguments": arguments,
            "environment": environment,
            "anew": False,
        }
        life, errors = _Life(), asyncio.StreamReader()
        ours, theirs = os.pipe()
        try:
            await life.begin(json.dumps(command), theirs)
        finally:
            os.close(theirs)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(errors), os.fdopen(ours, "rb")
        )
        return cls(life, errors)

    @property
    def pid(self) -> int:
        return self._life.pid.result()

    @property
    def returncode(self) -> int | None:
        return self._life.returncode

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    async def communicate(self) -> tuple[bytes, bytes]:
        """Close its input, read what it prints, and wait until it has ended."""
        self.stdin.close()
        out, err = await asyncio.gather(self.stdout.read(), self.stderr.read())
        await self._life.ended()
        return out, err


class _Stdin:
    """As the writer of a process: what tests write fits into a pipe."""

    def __init__(self, life: _Life) -> None:
        self._life = life
        self._open = True

    def write(self, data: bytes) -> None:
        self._life.write(data)

    async def drain(self) -> None:
        pass

    def close(self) -> None:
        if self._open:
            self._open = False
            self._life.close()


class _Life(asyncio.Protocol):
    """A process from its fork to its end, of which the one that waits for it in the nursery writes two lines.

    Attributes:
        pid: Its id, once the process is there.
        returncode: How it ended, as for `Worker`.
        stdout: All that it prints.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.pid: asyncio.Future[int] = loop.create_future()
        self.returncode: int | None = None
        self.stdout = asyncio.StreamReader()
        self._over = asyncio.Event()
        self._lines = b""
        self._stdin = -1

    async def begin(self, command: str, errors: int) -> None:
        loop = asyncio.get_running_loop()
        (commands, self._stdin), (output, stdout), (written, status) = os.pipe(), os.pipe(), os.pipe()
        try:
            socket.send_fds(_nursery(), [b"."], [commands, stdout, errors, status])
        finally:
            for theirs in (commands, stdout, status):
                os.close(theirs)
        await loop.connect_read_pipe(lambda: self, os.fdopen(written, "rb"))
        await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self.stdout), os.fdopen(output, "rb")
        )
        await self.pid  # and so it reads what is written to it
        self.write(command.encode() + b"\n")

    def write(self, data: bytes) -> None:
        os.write(self._stdin, data)

    async def ended(self) -> None:
        await self._over.wait()

    def close(self) -> None:
        os.close(self._stdin)

    def data_received(self, data: bytes) -> None:
        self._lines += data
        pid, *rest = self._lines.decode().split("\n")
        if rest and not self.pid.done():
            self.pid.set_result(int(pid))
        if len(rest) == 2:
            self.returncode = int(rest[0])

    def connection_lost(self, _: Exception | None) -> None:
        if not self.pid.done():
            self.pid.set_exception(WorkerError("the process that workers are forked from has ended"))
        self._over.set()


# -- the nursery


@cache
def _nursery() -> socket.socket:
    """The way to the process that workers are forked from, which ends when this process does."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid())],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
        )  # fmt: skip

    def end() -> None:
        ours.shutdown(socket.SHUT_RDWR)  # also for forks of this process
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _become_workers(requests: socket.socket, parent: int) -> None:
    """Fork a process for each request. This returns in each worker, and nowhere else."""
    _end_with(parent)
    for module in _COMMON:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # which leaves the memory that the workers share as it is
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets those that wait for workers
    nursery = os.getpid()
    while True:
        request, descriptors, *_ = socket.recv_fds(requests, 1, 4)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            _end_with(nursery)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _become_worker(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _become_worker(stdin: int, stdout: int, stderr: int, status: int) -> None:
    """Fork the worker, where this returns, and wait for its end."""
    waiting = os.getpid()
    pid = os.fork()
    if pid:
        os.write(status, f"{pid}\n".encode())
        for descriptor in (stdin, stdout, stderr):
            os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(status, f"{code}\n".encode())
        os._exit(0)
    os.close(status)
    for number, descriptor in enumerate((stdin, stdout, stderr)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _end_with(waiting)


def _end_with(parent: int) -> None:
    """Let this process end when the one that started it does, even if that is killed."""
    if sys.platform == "linux":
        # The kernel sees to it, also when this process is stopped.
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it has died already


def _watch_stdin() -> None:
    def watch() -> None:
        # Nothing more is ever written there: the end of it is the end of the test. (Not through sys.stdin,
        # whose lock the end of this process would want.)
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _main() -> None:
    if len(sys.argv) > 2:
        _become_workers(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
        with open(0, "rb", closefd=False, buffering=0) as stdin:  # what comes behind it is the program's
            line = stdin.readline().decode()
        if json.loads(line)["anew"]:
            os.execve(
                sys.executable,
                [sys.executable, "-m", "tests.support.processes", line],
                json.loads(line)["environment"],
            )
    else:
        line = sys.argv[1]
    command = json.loads(line)
    os.environ.clear()
    os.environ.update(command["environment"])
    if "call" in command:
        sys.argv[1:] = command["arguments"]
        for number in (signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        _named(command["call"])()
    else:
        _watch_stdin()
        asyncio.run(_named(command["target"])(**command["arguments"]))


def _named(target: str) -> Any:
    module, _, function = target.partition(":")
    return getattr(importlib.import_module(module), function)


if __name__ == "__main__":
    _main()
