"""The `aiolocks` command, run as a user runs it: a process of its own, in a pipe or on a terminal."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aiolocks.cli import main
from tests.cli.streams import main_on_a_terminal
from tests.support.processes import ROOT, Program
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

    def __init__(self, process: Process | Program, mark: str) -> None:
        self._process = process
        self._mark = mark
        self.out = ""
        self.err = ""

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

    async def warns(self, text: str, *, within: float = 30) -> None:
        """Wait until it has said this on stderr."""
        assert self._process.stderr is not None
        async with asyncio.timeout(within):
            while text not in self.err:
                read = await self._process.stderr.read(65536)
                assert read, f"it ended with {self.err!r} and never said {text!r}"
                self.err += read.decode(errors="replace")

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
        self.err += err.decode(errors="replace")
        status = self._process.returncode
        assert status is not None
        return Ended(status, self.out, self.err)

    def blocked(self) -> set[int]:
        """The signals that it blocks."""
        if sys.platform != "linux":
            pytest.skip("needs /proc to see what is blocked")
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (mask,) = re.findall(r"^SigBlk:\s*(\w+)$", status, re.MULTILINE)
        return {number for number in signal.valid_signals() if int(mask, 16) >> (number - 1) & 1}

    def processes(self) -> list[int]:
        """It and all that it has started, as far as it lives: found by what is in the environment.

        That of a fork is the environment of what it is a fork of: of forks, its children are found.
        """
        found: list[int] = []
        if isinstance(self._process, Program) and self._process.returncode is None:
            with suppress(OSError):
                stat = Path(f"/proc/{self.pid}/stat").read_text()
                if stat.rpartition(")")[2].split()[0] != "Z":
                    found.append(self.pid)
                children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
                found += map(int, children.split())
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self._mark.encode() in (process / "environ").read_bytes():
                    found.append(int(process.name))
        return list(dict.fromkeys(found))

    async def close(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        for process in self.processes():  # any process that holds our pipes open
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        await self._process.communicate()


class Aiolocks:
    """The `aiolocks` fixture: starts the command, on the server of the test unless a URL is given."""

    def __init__(self, server: Server) -> None:
        self._url = server.url
        self._started: list[Invocation] = []

    def environment(self, url: str | None = None) -> dict[str, str]:
        """What it finds there."""
        return {"AIOLOCKS_REDIS_URL": url or self._url, "TERM": "xterm"}

    async def __call__(
        self,
        *arguments: str,
        url: str | None = None,
        terminal: bool = False,
        function: Callable[[], None] = main,
        program: tuple[str, ...] = AIOLOCKS,
        environment: dict[str, str] | None = None,
        **more: Any,
    ) -> Invocation:
        """Start it: as a fork that calls `function`, or in an interpreter of its own where it has to be."""
        mark = secrets.token_hex(8)
        env = os.environ | self.environment(url) | {"TEST_MARK": mark} | (environment or {})
        process: Process | Program
        if terminal:
            function = main_on_a_terminal  # which minds PYTHONIOENCODING
        if program is AIOLOCKS and not (
            more or (not terminal and any(name.startswith("PYTHON") for name in environment or ()))
        ):
            process = await Program.start(function, *arguments, environment=env)
        else:
            command = [*(TERMINAL if terminal else ()), *program, *arguments]
            process = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, env=env, stdin=PIPE, stdout=PIPE, stderr=PIPE, **more
            )
        self._started.append(Invocation(process, mark))
        return self._started[-1]

    async def close(self) -> None:
        for invocation in self._started:
            await invocation.close()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what makes the tables of a command look otherwise."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


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
async def aiolocks(server: Server) -> AsyncIterator[Aiolocks]:
    """Starts the command, on `server` unless a URL is given: `await aiolocks("run", "x", "--", "true")`."""
    aiolocks = Aiolocks(server)
    yield aiolocks
    await aiolocks.close()


async def gone(invocation: Invocation) -> None:
    """Everything that it has started has ended."""
    if sys.platform != "linux":
        pytest.skip("needs /proc to find processes")
    await eventually(lambda: not invocation.processes(), within=5)
