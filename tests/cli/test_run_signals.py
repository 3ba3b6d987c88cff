"""`aiolocks run`: signals that are sent, signals that are typed, and the shell's job control."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import signal
from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from aiolocks import Lock
from tests.cli.conftest import AIOLOCKS, Aiolocks, Invocation
from tests.support.waiting import eventually

PASSED_ON = ["HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "ALRM", "WINCH", "CONT"]
ENDING = ["HUP", "INT", "TERM", "USR1"]


def number(name: str) -> signal.Signals:
    return signal.Signals[f"SIG{name}"]


async def waiting(invocation: Invocation) -> None:
    """It has taken charge of its signals, and waits for the lock."""
    await eventually(lambda: signal.SIGTERM in invocation.blocked(), within=5)
    await asyncio.sleep(0.3)


async def test_each_signal_is_passed_on_once(aiolocks: Aiolocks) -> None:
    traps = "".join(f"trap 'n=$((n+1)); echo got {name}' {name}; " for name in PASSED_ON)
    script = f"n=0; {traps} echo in; until [ $n -ge {len(PASSED_ON)} ]; do sleep 0.02; done; sleep 0.2"
    invocation = await aiolocks("run", "job", "--", "sh", "-c", script)
    await invocation.says("in")
    for name in PASSED_ON:
        invocation.send(number(name))
        await invocation.says(f"got {name}\n")
    ended = await invocation.end()
    assert ended.status == 0
    assert ended.out == "in\n" + "".join(f"got {name}\n" for name in PASSED_ON)


async def test_a_command_that_dies_of_a_signal_passed_on(
    aiolocks: Aiolocks, keys: Callable[..., list[str]]
) -> None:
    invocation = await aiolocks("run", "job", "--", "sh", "-c", "echo in; exec sleep 30")
    await invocation.says("in")
    invocation.send(signal.SIGTERM)
    assert (await invocation.end()).status == 128 + signal.SIGTERM
    assert keys() == []


async def test_what_is_ignored_stays_ignored(aiolocks: Aiolocks) -> None:
    nohup = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh", *AIOLOCKS)
    script = "trap 'echo HUP' HUP; echo in; sleep 0.5; echo out"
    invocation = await aiolocks("run", "job", "--", "sh", "-c", script, program=nohup)
    await invocation.says("in")
    invocation.send(signal.SIGHUP)
    ended = await invocation.end()
    assert (ended.status, ended.out) == (0, "in\nout\n")


@pytest.mark.parametrize("name", ENDING)
async def test_a_signal_ends_the_waiting(aiolocks: Aiolocks, redis: Redis, name: str) -> None:
    async with Lock(redis, "job"):
        invocation = await aiolocks("run", "job", "--quiet", "--", "echo", "ran")
        await waiting(invocation)
        invocation.send(number(name))
        ended = await invocation.end(within=10)
        assert (ended.status, ended.out, ended.err) == (128 + number(name), "", "")
    async with Lock(redis, "job", blocking_timeout=0):
        pass


async def test_harmless_signals_do_not_end_the_waiting(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Lock(redis, "job"):
        invocation = await aiolocks("run", "job", "--", "echo", "ran")
        await waiting(invocation)
        invocation.send(signal.SIGWINCH)
        invocation.send(signal.SIGCONT)
    assert (await invocation.end()).out == "ran\n"


# -- on a terminal


async def test_ctrl_c_reaches_the_command_once(aiolocks: Aiolocks) -> None:
    count = "trap 'n=x$n' INT; echo in; for i in 1 2 3 4 5; do sleep 0.1; done; echo came:$n:"
    invocation = await aiolocks("run", "job", "--", "sh", "-c", count, terminal=True)
    await invocation.says("in")
    await invocation.type("\x03")
    ended = await invocation.end()
    assert "came:x:" in ended.out
    assert ended.status == 0


async def test_ctrl_c_ends_the_command(aiolocks: Aiolocks) -> None:
    invocation = await aiolocks("run", "job", "--", "sh", "-c", "echo in; exec sleep 30", terminal=True)
    await invocation.says("in")
    await invocation.type("\x03")
    ended = await invocation.end()
    assert ended.status == 128 + signal.SIGINT
    assert "Traceback" not in ended.out


async def test_ctrl_c_ends_the_waiting(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Lock(redis, "job"):
        invocation = await aiolocks("run", "job", "--", "echo", "ran", terminal=True)
        await invocation.says("waiting")
        await invocation.type("\x03")
        ended = await invocation.end()
    assert ended.status == 128 + signal.SIGINT
    assert "Traceback" not in ended.out


async def test_the_command_may_read_the_terminal(aiolocks: Aiolocks) -> None:
    invocation = await aiolocks("run", "job", "--", "sh", "-c", "echo in; read x; echo got $x", terminal=True)
    await invocation.says("in")
    await invocation.type("this\n")
    assert "got this" in (await invocation.end()).out


async def test_ctrl_z_where_there_is_no_shell_stops_nothing(aiolocks: Aiolocks) -> None:
    script = "echo in; sleep 1; echo out"
    invocation = await aiolocks("run", "job", "--", "sh", "-c", script, terminal=True)
    await invocation.says("in")
    await invocation.type("\x1a")
    await invocation.says("out", within=5)
    assert (await invocation.end()).status == 0


@pytest.mark.parametrize(("pause", "status"), [("0", 9), ("2", 76)], ids=["in time", "past the ttl"])
async def test_ctrl_z_and_fg(aiolocks: Aiolocks, pause: str, status: int) -> None:
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    # Without an editor, which would drop what is typed before it is ready.
    shell = await aiolocks(program=("bash", "--norc", "--noprofile", "--noediting", "-i"), terminal=True)
    # It has been given the terminal before it says that it is in: Ctrl-Z is the command's.
    command = "until ps -o stat= -p $$ | grep -q '[+]'; do sleep 0.02; done; echo i''n; read x; exit 9"
    run = shlex.join([*AIOLOCKS, "run", "job", "--ttl", "1", "--", "sh", "-c", command])
    await shell.type(f"{run}\n")
    await shell.says("in\r\n")
    await shell.type("\x1a")
    await shell.says("Stopped")
    await shell.type(f"sleep {pause}; fg; echo status:$?:\n")
    await asyncio.sleep(0.5)
    await shell.type("x\n")
    await shell.says(f"status:{status}:")
