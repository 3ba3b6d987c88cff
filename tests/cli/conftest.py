"""The `aiolocks` command, run as a user runs it: a process of its own, in a pipe or on a terminal."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.support.processes import ROOT
from tests.support.servers import Server
from tests.support.waiting import eventually

AIOLOCKS = (sys.executable, "-m", "aiolocks")

# Runs a command on a pseudo terminal of its own, as whose keyboard and screen its stdin and stdout serve.
TERMINAL = (
    sys.executable,
    "-c",
    "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])) % 256)",
)


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str


class Invocation:
    """One command that runs."""

    def __init__(self, process: Process, mark: str) -> None:
        self._process = process
        self._mark = mark
        self.out = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def says(self, text: str, *, within: float = 30) -> None:
        """Wait until it has printed this."""
        assert self._process.stdout is not None
        async with asyncio.timeout(within):
            while text not in self.out:
                read = await self._process.stdout.read(65536)
                assert read, f"it ended with {self.out!r} and never said {text!r}"
                self.out += read.decode(errors="replace")

    async def type(self, keys: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(keys.encode())
        await self._process.stdin.drain()

    def send(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    async def end(self, *, within: float = 30) -> Ended:
        """Close its input, and wait until it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()  # before Python 3.12, `communicate` does not
        async with asyncio.timeout(within):
            out, err = await self._process.communicate()
        self.out += out.decode(errors="replace")
        status = self._process.returncode
        assert status is not None
        return Ended(status, self.out, err.decode(errors="replace"))

    def blocked(self) -> set[int]:
        """The signals that it blocks."""
        if sys.platform != "linux":
            pytest.skip("needs /proc to see what is blocked")
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (mask,) = re.findall(r"^SigBlk:\s*(\w+)$", status, re.MULTILINE)
        return {number for number in signal.valid_signals() if int(mask, 16) >> (number - 1) & 1}

    def processes(self) -> list[int]:
        """It and all that it has started, as far as it lives: found by what is in the environment."""
        found: list[int] = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self._mark.encode() in (process / "environ").read_bytes():
                    found.append(int(process.name))
        return found

    async def close(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        for process in self.processes():  # any process that holds our pipes open
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        await self._process.communicate()


class Aiolocks(Protocol):
    """The `aiolocks` fixture: starts the command with these arguments."""

    async def __call__(
        self,
        *arguments: str,
        url: str | None = ...,
        terminal: bool = ...,
        program: tuple[str, ...] = ...,
        **more: Any,
    ) -> Invocation: ...


@pytest.fixture(autouse=True)
def signals_at_default() -> Iterator[None]:
    """Signals that the test run itself ignores, in the background say, its children would ignore too."""
    ignored = [
        number
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture
async def aiolocks(server: Server, tmp_path: Path) -> AsyncIterator[Aiolocks]:
    """Starts the command, on `server` unless a URL is given: `await aiolocks("run", "x", "--", "true")`."""
    started: list[Invocation] = []

    async def start(
        *arguments: str,
        url: str | None = None,
        terminal: bool = False,
        program: tuple[str, ...] = AIOLOCKS,
        environment: dict[str, str] | None = None,
        **more: Any,
    ) -> Invocation:
        mark = secrets.token_hex(8)
        env = os.environ | {"AIOLOCKS_REDIS_URL": url or server.url, "TEST_MARK": mark, "TERM": "xterm"}
        for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
            env.pop(name, None)
        command = [*(TERMINAL if terminal else ()), *program, *arguments]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env=env | (environment or {}), stdin=PIPE, stdout=PIPE, stderr=PIPE, **more
        )
        started.append(Invocation(process, mark))
        return started[-1]

    yield start
    for invocation in started:
        await invocation.close()


async def gone(invocation: Invocation) -> None:
    """Everything that it has started has ended."""
    if sys.platform != "linux":
        pytest.skip("needs /proc to find processes")
    await eventually(lambda: not invocation.processes(), within=5)
