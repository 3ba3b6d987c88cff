"""`aiolocks run` and `lead`: the command is a process group of its own, which is ended as a whole."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from redis.asyncio import Redis

from aiolocks import Leadership, Lock, Session
from tests.adversity.tools import SLACK
from tests.cli.conftest import AIOLOCKS, Aiolocks, Invocation, gone
from tests.conftest import OwnServer

Keys = Callable[..., list[str]]

# The first process of the command waits for the second one, which does the work.
WORK = "sh -c 'echo in; exec sleep 60'; echo end"
# It needs 0.6 s to end, which the first process does not wait for.
SLOW = """sh -c 'trap "sleep 0.6; echo cleaned; exit" TERM HUP; echo in; while :; do sleep 0.05; done'; :"""
STUBBORN = """sh -c 'trap "" TERM HUP INT QUIT; echo in; while :; do sleep 0.05; done'; :"""
FOREGROUND = (
    sys.executable,
    "-c",
    """
import os, time
until, own = time.monotonic() + 5, os.getpgrp() == os.getpid()
while os.tcgetpgrp(0) != os.getpgrp() and time.monotonic() < until: time.sleep(0.01)
print('front', os.tcgetpgrp(0) == os.getpgrp() and own)
""",
)


async def alone(invocation: Invocation) -> None:
    """Nothing of the command is left, at once."""
    if sys.platform == "linux":
        assert invocation.processes() == []


@pytest.mark.thin
@pytest.mark.parametrize("command", ["run", "lead"])
@pytest.mark.parametrize("name", ["TERM", "HUP", "QUIT", "INT"])
async def test_a_signal_ends_all_of_the_command(
    aiolocks: Aiolocks, keys: Keys, command: str, name: str
) -> None:
    number = signal.Signals[f"SIG{name}"]
    invocation = await aiolocks(command, "job", "--", "sh", "-c", WORK)
    await invocation.says("in")
    invocation.send(number)
    ended = await invocation.end(within=10)
    assert (ended.status, ended.out) == (128 + number, "in\n")
    await alone(invocation)
    assert keys() == []


@pytest.mark.parametrize("command", ["run", "lead"])
@pytest.mark.parametrize("name", ["TERM", "HUP"])
async def test_the_lock_is_held_until_all_of_the_command_has_ended(
    aiolocks: Aiolocks, redis: Redis, command: str, name: str
) -> None:
    invocation = await aiolocks(command, "job", "--", "sh", "-c", SLOW)
    await invocation.says("in")
    other = Lock(redis, "job") if command == "run" else Leadership(redis, "job")
    invocation.send(signal.Signals[f"SIG{name}"])
    async with await other.acquire():
        await invocation.says("cleaned", within=2)  # it was written before
        await alone_but_for(invocation)
    assert (await invocation.end()).status == 128 + signal.Signals[f"SIG{name}"]


async def alone_but_for(invocation: Invocation) -> None:
    if sys.platform == "linux":
        assert set(invocation.processes()) <= {invocation.pid}


@pytest.mark.parametrize("shell", [WORK, STUBBORN], ids=["willing", "stubborn"])
async def test_a_loss_ends_all_of_the_command(aiolocks: Aiolocks, redis: Redis, shell: str) -> None:
    options = ("--ttl", "0.6", "--kill-after", "2" if shell == STUBBORN else "20")
    invocation = await aiolocks("run", "job", *options, "--", "sh", "-c", shell)
    await invocation.says("in")
    began = time.monotonic()
    async with Session(redis) as session:
        await session.force_release("job")
    ended = await invocation.end(within=15)
    assert (ended.status, ended.out) == (76, "in\n")
    await alone(invocation)
    assert shell == WORK or time.monotonic() - began > 2


@pytest.mark.leaves_keys
@pytest.mark.parametrize("shell", [WORK, STUBBORN], ids=["willing", "stubborn"])
async def test_the_end_of_a_term_ends_all_of_the_command(
    aiolocks: Aiolocks, redis: Redis, shell: str
) -> None:
    invocation = await aiolocks("lead", "job", "--ttl", "0.6", "--", "sh", "-c", f"echo $$; {shell}")
    await invocation.says("in")
    before = set(invocation.processes())
    async with Session(redis) as session:
        await session.force_release("job")
    invocation.out = ""
    await invocation.says("in", within=10)  # elected again
    assert before & set(invocation.processes()) == {invocation.pid}


async def test_kill_follows_for_those_that_the_command_has_left_behind(
    aiolocks: Aiolocks, keys: Keys
) -> None:
    invocation = await aiolocks("run", "job", "--kill-after", "0.5", "--", "sh", "-c", STUBBORN)
    await invocation.says("in")
    began = time.monotonic()
    invocation.send(signal.SIGTERM)
    ended = await invocation.end(within=10)
    assert time.monotonic() - began > 0.5
    assert ended.status == 128 + signal.SIGTERM
    await alone(invocation)
    assert keys() == []


async def test_where_nobody_reaps_orphans_the_end_is_noticed_at_once(aiolocks: Aiolocks, keys: Keys) -> None:
    """The first process of a container often reaps none: they would be seen until --kill-after."""
    if sys.platform != "linux":
        pytest.skip("needs PR_SET_CHILD_SUBREAPER")
    script = "import ctypes, subprocess, sys; ctypes.CDLL(None).prctl(36, 1); subprocess.run(sys.argv[1:])"
    careless = (sys.executable, "-c", script, *AIOLOCKS)
    work = "sh -c 'echo $PPID in; exec sleep 60'; echo end"
    invocation = await aiolocks("run", "job", "--kill-after", "20", "--", "sh", "-c", work, program=careless)
    await invocation.says("in")
    leader = int(invocation.out.split()[0])
    os.kill(leader, signal.SIGTERM)
    assert (await invocation.end(within=10)).out == f"{leader} in\n"
    assert keys() == []


async def test_a_command_that_was_killed_leaves_nothing_behind(aiolocks: Aiolocks) -> None:
    invocation = await aiolocks("run", "job", "--", "sh", "-c", "sleep 60 & echo in; kill -KILL $$")
    await invocation.says("in")
    assert (await invocation.end(within=10)).status == 128 + signal.SIGKILL
    await alone(invocation)


async def test_what_a_command_leaves_in_the_background_when_it_ends_by_itself_goes_on(
    aiolocks: Aiolocks, keys: Keys
) -> None:
    if sys.platform != "linux":
        pytest.skip("needs /proc to find processes")
    invocation = await aiolocks("run", "job", "--", "sh", "-c", "sleep 60 >&- 2>&- & exit 3")
    assert (await invocation.end(within=10)).status == 3
    assert len(invocation.processes()) == 1
    assert keys() == []


@pytest.mark.leaves_keys
@pytest.mark.parametrize("command", ["run", "lead"])
async def test_all_of_the_command_outlives_a_kill(aiolocks: Aiolocks, redis: Redis, command: str) -> None:
    """As the page says: nobody is left to end it."""
    if sys.platform != "linux":
        pytest.skip("needs /proc to find processes")
    invocation = await aiolocks(command, "job", "--ttl", "0.5", "--", "sh", "-c", WORK)
    await invocation.says("in")
    before = set(invocation.processes())
    invocation.send(signal.SIGKILL)
    async with await (Lock(redis, "job") if command == "run" else Leadership(redis, "job")).acquire():
        assert set(invocation.processes()) == before - {invocation.pid}


# -- the grace


@pytest.mark.leaves_keys
@pytest.mark.parametrize("shell", [WORK, STUBBORN], ids=["willing", "stubborn"])
async def test_grace_ends_all_of_the_command_before_its_lease_ends(
    aiolocks: Aiolocks, own_server: OwnServer, shell: str
) -> None:
    server = await own_server()
    options = ("--ttl", "2", "--grace", "0.8")
    invocation = await aiolocks("run", "job", *options, "--", "sh", "-c", shell, url=server.url)
    await invocation.says("in")
    server.pause()
    began = time.monotonic()
    ended_at = None
    while time.monotonic() - began < 5:
        if invocation.processes() in ([invocation.pid], []):
            ended_at = time.monotonic() - began
            break
        await asyncio.sleep(0.02)
    assert ended_at is not None
    assert ended_at < 2 + SLACK / 4
    ended = await invocation.end()
    server.resume()
    assert (ended.status, ended.out) == (76, "in\n")
    assert "'job' was not renewed, and ends in 0." in ended.err


@pytest.mark.leaves_keys
async def test_grace_for_the_run_of_a_tick(aiolocks: Aiolocks, own_server: OwnServer) -> None:
    server = await own_server()
    options = ("--every", "4", "--ttl", "2", "--grace", "0.8")
    invocation = await aiolocks("run", "job", *options, "--", "sh", "-c", WORK, url=server.url)
    await invocation.says("in")
    server.pause()
    ended = await invocation.end()
    server.resume()
    assert ended.status == 76
    assert "'job' was not renewed, and ends in 0." in ended.err


async def test_grace_is_half_of_the_ttl_at_the_most(aiolocks: Aiolocks) -> None:
    ended = await (await aiolocks("run", "job", "--ttl", "10", "--grace", "6", "--", "true")).end()
    assert ended.status == 2
    assert "grace must be at most half of ttl" in ended.err


# -- on a terminal


async def bash(aiolocks: Aiolocks) -> Invocation:
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    # Without an editor, which would drop what is typed before it is ready.
    return await aiolocks(program=("bash", "--norc", "--noprofile", "--noediting", "-i"), terminal=True)


def run(*command: str) -> str:
    return shlex.join([*AIOLOCKS, "run", "job", "--ttl", "5", "--", *command])


@pytest.mark.parametrize("command", ["run", "lead"])
async def test_the_command_is_in_the_foreground_of_the_terminal(aiolocks: Aiolocks, command: str) -> None:
    ended = await (await aiolocks(command, "job", "--", *FOREGROUND, terminal=True)).end()
    assert "front True" in ended.out


async def test_the_terminal_is_given_back(aiolocks: Aiolocks) -> None:
    shell = await bash(aiolocks)
    script = f"{run(*FOREGROUND)}; read x; echo go''t $x"
    await shell.type(f"{shlex.join(['sh', '-c', script])}\n")
    await shell.says("front True")
    await shell.type("this\n")
    await shell.says("got this")


async def test_the_reader_of_a_pipe_may_read_the_terminal_too(aiolocks: Aiolocks) -> None:
    shell = await bash(aiolocks)
    reader = "read a; echo re''ad $a; read x </dev/tty; echo go''t $x; cat"
    await shell.type(
        f"{run('sh', '-c', 'echo line; sleep 1; echo la$(echo)st')} | sh -c {shlex.quote(reader)}\n"
    )
    await shell.says("read line")
    await shell.type("this\n")
    await shell.says("got this")
    await shell.says("last\r\n")


async def test_ctrl_c_ends_all_of_the_command_and_the_script_around_it(aiolocks: Aiolocks) -> None:
    shell = await bash(aiolocks)
    script = "import subprocess, sys; subprocess.run(sys.argv[1], shell=True); print('aft' + 'er')"
    await shell.type(f"{shlex.join([sys.executable, '-c', script, run('sh', '-c', WORK)])}\n")
    await shell.says("in\r\n")
    await shell.type("\x03")
    await said_status(shell, 128 + signal.SIGINT)
    assert "after\r\n" not in shell.out
    assert "end\r\n" not in shell.out


async def test_ctrl_c_ends_a_command_that_the_terminal_was_not_given_to(aiolocks: Aiolocks) -> None:
    shell = await bash(aiolocks)
    await shell.type(f"{run('sh', '-c', WORK)} </dev/null\n")
    await shell.says("in\r\n")
    await shell.type("\x03")
    await said_status(shell, 128 + signal.SIGINT)


async def test_ctrl_z_stops_all_of_the_command_and_fg_and_bg_continue_it(
    aiolocks: Aiolocks, tmp_path: Path
) -> None:
    shell = await bash(aiolocks)
    enough = tmp_path / "enough"
    inner = f"n=0; until [ -e {enough} ]; do n=$((n+1)); sleep 0.02; echo n$n; done; echo o$(echo)ut"
    await shell.type(f"{run('sh', '-c', f'sh -c {shlex.quote(inner)}; read x; exit 9')}\n")
    await shell.says("n5\r\n")
    for continued in ("bg", "fg"):
        await shell.type("\x1a")
        await shell.says("Stopped")
        shell.out = ""
        with pytest.raises(TimeoutError):
            await shell.says("\nn", within=0.5)
        await shell.type(f"{continued}\n")
        await shell.says("\nn")
        if continued == "bg":
            await shell.type("fg\n")
            await shell.says("\nfg\r\n")
            await asyncio.sleep(0.2)
    enough.touch()
    await shell.says("out\r\n")
    await shell.type("x\n")
    await said_status(shell, 9)


async def said_status(shell: Invocation, status: int) -> None:
    """The shell has its terminal again: a prompt came, and it reads what is typed."""
    await asyncio.sleep(1)
    await shell.type("echo status:$?:\n")
    await shell.says(f"status:{status}:")


async def test_a_command_in_the_background_that_reads_the_terminal_is_stopped_until_fg(
    aiolocks: Aiolocks,
) -> None:
    shell = await bash(aiolocks)
    await shell.type(f"{run('sh', '-c', 'echo i$(echo)n; read x; echo go$(echo)t $x; exit 9')} &\n")
    await shell.says("in\r\n")
    await asyncio.sleep(0.3)
    await shell.type("jobs\n")
    await shell.says("Stopped")
    await shell.type("fg; echo status:$?:\n")
    await asyncio.sleep(0.3)
    await shell.type("this\n")
    await shell.says("got this")
    await shell.says("status:9:")


async def test_a_command_that_reads_the_terminal_though_its_input_is_a_file(aiolocks: Aiolocks) -> None:
    shell = await bash(aiolocks)
    script = "echo i$(echo)n; read x </dev/tty; echo go$(echo)t $x; exit 9"
    await shell.type(f"{run('sh', '-c', script)} </dev/null; echo status:$?:\n")
    await shell.says("in\r\n")
    await shell.type("this\n")
    await shell.says("got this")
    await shell.says("status:9:")


async def test_nothing_is_left_of_the_terminal_when_its_shell_is_gone(aiolocks: Aiolocks) -> None:
    # It is no fork, for what is left of the command is found by its environment.
    command = ("run", "job", "--", "sh", "-c", WORK)
    invocation = await aiolocks(*command, program=("env", *AIOLOCKS), terminal=True)
    await invocation.says("in")
    invocation.send(signal.SIGKILL)  # the terminal's other end is closed
    await gone(invocation)
