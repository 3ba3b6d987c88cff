"""A Redis or Valkey server as a child process: its life, its address, its directory."""

from __future__ import annotations

import math
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from .errors import ServerStartError
from .executables import find_executable
from .lifeline import Lifeline
from .probe import free_port, until_ready

POLL_INTERVAL = 0.002
"""Seconds between two looks at a starting server: a start takes 10 to 40 ms."""

PORT_ATTEMPTS = 10
"""How many free ports are tried: somebody may take one between our choice and the server's bind."""

LOG_TAIL_LINES = 12


class ServerState(Enum):
    """The state of a server."""

    NEW = "new"
    """Not yet started."""
    RUNNING = "running"
    """Started; it answers."""
    PAUSED = "paused"
    """Stopped by SIGSTOP: its connections stay open, and it does not answer."""
    DEAD = "dead"
    """Killed, crashed or shut down. It can be started again, at the same address, in the same directory."""
    CLOSED = "closed"
    """Its directory is removed. This state is final."""


ALIVE = (ServerState.RUNNING, ServerState.PAUSED)


class ServerProcess:
    """One server. No method waits for it longer than a process takes to die.

    How to wait for a start is left to the subclass: `_launch` takes the steps and says how long to sleep
    between.
    """

    __slots__ = (
        "_arguments",
        "_executable",
        "_lifeline",
        "_owner",
        "_password",
        "_port",
        "_process",
        "_startup_timeout",
        "_state",
        "_wanted_executable",
        "_wanted_port",
    )

    def __init__(
        self,
        *,
        executable: str | os.PathLike[str] | None,
        port: int | None,
        password: str | Literal[False] | None,
        arguments: Sequence[str],
        startup_timeout: float,
    ) -> None:
        if port is not None and not 0 <= port <= 65535:
            raise ValueError(f"port must be None (no port), 0 (any free one) or 1 to 65535, not {port!r}")
        given: Any = password
        if given is not None and given is not False and not (isinstance(given, str) and given):
            kind = "an empty str" if given == "" else type(given).__name__
            raise TypeError(
                f"password must be a str, None (one is made) or False (there is none), not {kind}"
            )
        if isinstance(arguments, str):
            raise TypeError(f'arguments must be strings, such as ("--maxmemory", "10mb"), not {arguments!r}')
        if not 0 < startup_timeout < math.inf:
            raise ValueError(f"startup_timeout must be a positive number of seconds, not {startup_timeout!r}")
        self._wanted_executable = executable
        self._wanted_port = port
        self._arguments = tuple(arguments)
        self._startup_timeout = startup_timeout
        if password is None and port is not None and "--requirepass" not in self._arguments:
            password = secrets.token_urlsafe(24)
        self._password = password or None
        self._owner = os.getpid()
        # Invariant: `_process` is a child that was not reaped exactly while `_state` is one of ALIVE. A
        # server can die unasked, so `_state` is read through `state`, which looks.
        self._state = ServerState.NEW
        self._process: subprocess.Popen[bytes] | None = None
        # The first start sets these for good: a restarted server is found where it was.
        self._executable: Path | None = None
        self._lifeline: Lifeline | None = None
        self._port: int | None = None

    def __repr__(self) -> str:
        state = self.state
        address = f" {self._url('')}" if self._lifeline else ""
        pid = f" pid={self.pid}" if state in ALIVE else ""
        return f"<{type(self).__name__} {state.value}{address}{pid}>"

    @property
    def state(self) -> ServerState:
        """The state of the server, checked at each call: a server that has crashed is `DEAD`."""
        if self._state in ALIVE and self._owner == os.getpid() and self._child.poll() is not None:
            self._bury()
        return self._state

    @property
    def pid(self) -> int:
        """The process id of the server.

        Raises:
            RuntimeError: The server is not alive.
        """
        self._require(*ALIVE)
        return self._child.pid

    @property
    def executable(self) -> Path:
        """The path of the server program.

        Raises:
            RuntimeError: The server has not been started.
        """
        if self._executable is None:
            raise self._not_started()
        return self._executable

    @property
    def directory(self) -> Path:
        """The private working directory of the server, with its `server.log`. Closing the server removes it.

        Raises:
            RuntimeError: The server has not been started.
        """
        return self._tether.directory

    @property
    def path(self) -> Path:
        """The path of the server's unix socket. It exists also if the server listens on a port.

        Raises:
            RuntimeError: The server has not been started.
        """
        return self._tether.socket

    @property
    def port(self) -> int | None:
        """The port on 127.0.0.1, or None if the server listens only on its unix socket.

        Raises:
            RuntimeError: The server has not been started.
        """
        if self._lifeline is None:
            raise self._not_started()
        return self._port

    @property
    def password(self) -> str | None:
        """The password that clients need, or None if they need none."""
        return self._password

    @property
    def url(self) -> str:
        """The URL for `redis.asyncio.Redis.from_url`, with the password.

        It is that of the port or, without a port, that of the unix socket.

        Raises:
            RuntimeError: The server has not been started.
        """
        return self._url("" if self._password is None else f":{quote(self._password, safe='')}@")

    def _url(self, credentials: str) -> str:
        if self.port is None:
            return f"unix://{credentials}{quote(str(self.path))}"
        return f"redis://{credentials}127.0.0.1:{self.port}/0"

    def kill(self) -> None:
        """Kills the server with SIGKILL, paused or not, and returns when it is dead.

        Raises:
            RuntimeError: The server belongs to another process, which has forked this one.
        """
        if self.state in ALIVE:
            self._require_owner()
            os.killpg(self._child.pid, signal.SIGKILL)  # the program may be a script that runs the server
            self._child.wait()
            self._bury()

    def pause(self) -> None:
        """Stops the server with SIGSTOP. From the return on it does not answer; its connections stay open.

        Raises:
            RuntimeError: The server is not alive.
        """
        pid = self._signal(signal.SIGSTOP)
        if sys.platform != "darwin":
            # The signal has only been sent yet. WNOWAIT: if it dies instead, that is for `state` to see.
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._state = ServerState.PAUSED

    def resume(self) -> None:
        """Lets a paused server go on, with SIGCONT.

        Raises:
            RuntimeError: The server is not alive.
        """
        self._signal(signal.SIGCONT)
        self._state = ServerState.RUNNING

    def close(self) -> None:
        """Kills the server and removes its directory, within a few milliseconds. A second call does nothing.

        In a fork of the process that made the server, it does nothing: the server belongs to the parent.
        """
        if self._owner != os.getpid():
            return
        self.kill()
        self._state = ServerState.CLOSED
        if self._lifeline is not None:
            self._lifeline.cut()

    def _launch(self) -> Generator[float, None, None]:
        """Starts it: each value is how many seconds to sleep before going on, and at the end it is ready.

        A first start that fails or is given up (by `close()` of this generator) leaves nothing; a later one
        leaves it DEAD.
        """
        first = self._require(ServerState.NEW, ServerState.DEAD) is ServerState.NEW
        self._require_owner()
        deadline = time.monotonic() + self._startup_timeout
        try:
            if first:
                self._executable = find_executable(self._wanted_executable)
                self._lifeline = Lifeline()
                self._port = self._wanted_port
                self._write_settings()
            if self._port == 0:
                yield from self._launch_on_free_port(deadline)
            else:
                yield from self._launch_once(deadline)
        except BaseException:
            if first:
                self.close()
            else:
                self.kill()
            raise

    def _launch_on_free_port(self, deadline: float) -> Generator[float, None, None]:
        for attempts_left in reversed(range(PORT_ATTEMPTS)):
            self._port = free_port()
            try:
                yield from self._launch_once(deadline)
            except ServerStartError as error:
                self.kill()
                if not attempts_left or "Address already in use" not in str(error):
                    raise
            else:
                return

    def _launch_once(self, deadline: float) -> Generator[float, None, None]:
        self._process = self._tether.spawn(self._command(), log=self._log)
        self._state = ServerState.RUNNING
        for _ in until_ready(self.path):
            if self.state not in ALIVE:
                raise self._start_error(f"ended with status {self._child.returncode} before it was ready")
            if time.monotonic() > deadline:
                raise self._start_error(f"did not answer within {self._startup_timeout} s")
            yield POLL_INTERVAL

    def _command(self) -> list[str]:
        port = ("--port", "0") if self._port is None else ("--port", str(self._port), "--bind", "127.0.0.1")
        return [
            str(self.executable),
            *([str(self._settings)] if self._password is not None else ()),
            *port,
            *("--unixsocket", str(self.path), "--unixsocketperm", "700"),
            *("--save", "", "--appendonly", "no", "--daemonize", "no"),
            *self._arguments,
        ]

    @property
    def _settings(self) -> Path:
        return self.directory / "server.conf"

    def _write_settings(self) -> None:
        """Writes the password down for the server: each user of this machine can read its command line."""
        if self._password is None:
            return
        quoted = "".join(
            chr(byte) if 0x20 <= byte < 0x7F and chr(byte) not in '"\\' else f"\\x{byte:02x}"
            for byte in self._password.encode()
        )
        self._settings.touch(mode=0o600)
        self._settings.write_text(f'requirepass "{quoted}"\n', encoding="ascii")

    @property
    def _log(self) -> Path:
        return self.directory / "server.log"

    def _start_error(self, what: str) -> ServerStartError:
        # There is no log any more if it was closed meanwhile.
        log = self._log.read_text(errors="replace") if self._log.exists() else ""
        tail = log.splitlines()[-LOG_TAIL_LINES:]
        return ServerStartError("\n  ".join([f"{self.executable} {what}", *tail]))

    def _not_started(self) -> RuntimeError:
        return RuntimeError(
            f"<{type(self).__name__} {self._state.value}> has not been started: enter it with `async with` "
            "or `with`, or await start()"
        )

    @property
    def _tether(self) -> Lifeline:
        if self._lifeline is None:
            raise self._not_started()
        return self._lifeline

    @property
    def _child(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def _bury(self) -> None:
        # Only now that it is dead: one that was killed young may have registered itself until then.
        self._tether.forget()
        self._state = ServerState.DEAD

    def _signal(self, number: signal.Signals) -> int:
        pid = self.pid
        self._require_owner()
        os.killpg(pid, number)
        return pid

    def _require(self, *allowed: ServerState) -> ServerState:
        state = self.state
        if state not in allowed:
            raise RuntimeError(f"{self!r} must be {' or '.join(one.value for one in allowed)} for this")
        return state

    def _require_owner(self) -> None:
        if self._owner != os.getpid():
            raise RuntimeError(
                f"{self!r} belongs to process {self._owner}, of which this is a fork: make another one here"
            )
