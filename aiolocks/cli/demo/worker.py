"""The demo's worker processes: the demo's end of their pipes, and `python -m aiolocks.cli.demo.worker`.

Each line in either direction is a JSON object. Times are of the monotonic clock, which all processes of a
machine share.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, cast

from redis.asyncio import Redis

from ... import FencedRegister, Lock, LockLostError, Session, StaleFenceError
from ..._tasks import spawn
from ..exits import AMISS, CommandError
from ..server import PREFIX_VARIABLE, VARIABLE, open_client

Event = dict[str, Any]  # its name as `event`, when it was (`at`), and further fields


@dataclass(frozen=True, slots=True)
class Worker:
    """One process, seen from the demo, in which it has a number."""

    number: int
    _process: Process

    def write(self, **arguments: object) -> None:
        """Has it play a `part`, or go on."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(arguments)}\n".encode())

    async def until(self, event: str) -> Event:
        """Waits for an event, or raises a CommandError when the worker failed or ended."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            told: Event = json.loads(line)
            if told["event"] == "failed":
                raise CommandError(f"worker {self.number} failed: {told['error']}", AMISS)
            if told["event"] == event:
                return told
        status = await self._process.wait()
        raise CommandError(f"worker {self.number} ended by itself, with status {status}", AMISS)

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal, if it lives."""
        if self._process.returncode is None:
            # Not Process.send_signal: before 3.13 it may reap the process itself, and asyncio then misses it.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


@asynccontextmanager
async def working(number: int, url: str, prefix: str) -> AsyncGenerator[Worker, None]:
    """Starts a worker, and kills it at the end of the scope. Its first event is `ready`."""
    # From wherever this process has its modules; -P, or the current directory would come first.
    path = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "aiolocks.cli.demo.worker"),
        env=os.environ | {"PYTHONPATH": path, VARIABLE: url, PREFIX_VARIABLE: prefix},
        stdin=PIPE,
        stdout=PIPE,
        start_new_session=True,  # Ctrl-C is for the demo, which kills it
    )
    worker = Worker(number, process)
    try:
        yield worker
    finally:
        worker.signal(signal.SIGKILL)
        await process.communicate()  # asyncio lets go of a process only when its output has ended


# All that follows runs in the worker's process.
def _tell(event: str, **details: object) -> None:
    print(json.dumps({"event": event, "at": monotonic(), **details}), flush=True)


async def _count(redis: Redis, session: Session, *, key: str, rounds: int, lock: bool) -> Event:
    """Adds 1 to a counter, many times, with a lock or without."""
    turn: Lock | nullcontext[None] = Lock(session, "counter", ttl=5) if lock else nullcontext()
    holds: list[tuple[float, float, int, int]] = []
    for _ in range(rounds):
        async with turn as lease:
            entered = monotonic()
            value = int(cast("bytes", await redis.get(key)))
            await asyncio.sleep(0.0005)  # the work of a program between reading and writing
            await redis.set(key, value + 1, keepttl=True)
            holds.append((entered, monotonic(), lease.fencing_token if lease else 0, value))
    return {"holds": holds}


async def _hold(
    _: Redis, session: Session, *, name: str, value: str, ttl: float, seconds: float, late: bool
) -> Event:
    """Holds a lock and writes to a register. A late holder writes once more, when it is told to go on."""
    register = FencedRegister(session, name)
    late_write: asyncio.Task[None] | None = None
    lost = refusal = ""
    asked = monotonic()
    _tell("waits")
    try:
        async with Lock(session, name, ttl=ttl) as lease:
            entered = monotonic()
            await register.write(value, lease.fencing_token)
            _tell("holds", asked=asked, entered=entered, token=lease.fencing_token)
            if late:
                # As a long computation: the event loop does not run, and no task of this process sees that
                # time passes.
                sys.stdin.readline()
                # A task of its own: the request is sent and answered although the body is cancelled.
                write = register.write("late", lease.fencing_token)
                loop = asyncio.get_running_loop()
                late_write = spawn(loop, write, name="late write", context=None)
            await asyncio.sleep(seconds)
    except LockLostError as error:
        lost = f"LockLostError: {error}"
    try:
        await (late_write or asyncio.sleep(0))
    except StaleFenceError as error:
        refusal = f"StaleFenceError: {error}"
    return {"lost": lost, "refusal": refusal, "value": await register.read()}


async def _play(part: str, **arguments: Any) -> Event:
    parts: dict[str, Callable[..., Awaitable[Event]]] = {"count": _count, "hold": _hold}
    redis = open_client(os.environ[VARIABLE])
    async with redis, Session(redis, prefix=os.environ[PREFIX_VARIABLE]) as session:
        return await parts[part](redis, session, **arguments)


def _main() -> None:
    """Plays the parts that it is told to, until its input ends."""
    logging.getLogger("aiolocks").addHandler(logging.NullHandler())  # a loss is part of the play
    if sys.platform == "linux":  # stopped, it cannot see that its input ends: it dies with the demo
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    _tell("ready")
    while line := sys.stdin.readline():
        try:
            _tell("done", **asyncio.run(_play(**json.loads(line))))
        except Exception as error:  # noqa: BLE001 - whatever it is, the demo says it
            _tell("failed", error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    _main()
