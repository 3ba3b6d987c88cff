"""`aiolocks run NAME -- COMMAND`: what it runs, when it does not, and what its exit status says."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from redis.asyncio import Redis

from aiolocks import FairLock, Lock, Session
from aiolocks.cli.app import app
from tests.cli.conftest import Aiolocks
from tests.cli.several import several
from tests.cli.streams import main_with_one_output
from tests.conftest import OwnServer

Keys = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("script", "status"), [("true", 0), ("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
async def test_the_exit_status_is_that_of_the_command(
    aiolocks: Aiolocks, keys: Keys, script: str, status: int
) -> None:
    ended = await (await aiolocks("run", "job", "--", "sh", "-c", script)).end()
    assert (ended.status, ended.out, ended.err) == (status, "", "")
    assert keys() == []


async def test_the_command_has_its_arguments_stdin_and_environment(aiolocks: Aiolocks) -> None:
    script = 'echo "$1"; cat; echo "$VARIABLE"'
    invocation = await aiolocks(
        "run", "job", "--", "sh", "-c", script, "sh", "--ttl", environment={"VARIABLE": "of the caller"}
    )
    await invocation.type("typed\n")
    ended = await invocation.end()
    assert ended.out == "--ttl\ntyped\nof the caller\n"


async def test_the_command_has_the_files_of_the_shell(aiolocks: Aiolocks, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("third")
    with (tmp_path / "file").open() as file:
        number = file.fileno()
        script = f"cat /dev/fd/{number}"
        ended = await (await aiolocks("run", "job", "--", "sh", "-c", script, pass_fds=(number,))).end()
    assert ended.out == "third"


async def test_the_command_inherits_nothing_of_how_signals_are_dealt_with(aiolocks: Aiolocks) -> None:
    if sys.platform != "linux":
        pytest.skip("needs /proc to see what is blocked")
    # In the last 31 bits: the others are real-time signals, of which the C library has two for itself.
    wanted = ("sed", "-En", r"s/^(Sig(Blk|Ign)).*(.{7})$/\1 \3/p", "/proc/self/status")
    inside = await (await aiolocks("run", "job", "--", *wanted)).end()
    outside = await (await aiolocks(program=wanted)).end()
    assert inside.out == outside.out != ""


async def test_fencing_tokens_rise(aiolocks: Aiolocks) -> None:
    show = ("run", "job", "--", "sh", "-c", "echo $AIOLOCKS_FENCING_TOKEN")
    tokens = [int((await (await aiolocks(*show)).end()).out) for _ in range(3)]
    assert 0 < tokens[0] < tokens[1] < tokens[2]


async def test_it_holds_the_lock_while_the_command_runs(aiolocks: Aiolocks, redis: Redis) -> None:
    invocation = await aiolocks("run", "job", "--ttl", "0.3", "--", "sh", "-c", "echo in; read x")
    await invocation.says("in")
    for _ in range(5):
        await asyncio.sleep(0.1)  # past the ttl: it is renewed
        assert await Lock(redis, "job").try_acquire() is None
    await invocation.type("\n")
    assert (await invocation.end()).status == 0
    async with Lock(redis, "job", blocking_timeout=0):
        pass


@pytest.mark.parametrize("wait", ["0", "0.3"])
async def test_75_when_the_lock_is_held_elsewhere(aiolocks: Aiolocks, redis: Redis, wait: str) -> None:
    async with Lock(redis, "job"):
        ended = await (await aiolocks("run", "job", "--wait", wait, "--", "echo", "ran")).end()
    assert ended.status == 75
    assert ended.out == ""
    assert re.fullmatch(r"aiolocks: Lock 'job' was not acquired .*\n", ended.err)


# -- at least


@pytest.mark.leaves_keys
@pytest.mark.parametrize("more", [(), ("--fair",)])
async def test_machines_that_start_a_short_command_one_after_the_other_run_it_once(
    aiolocks: Aiolocks, more: tuple[str, ...]
) -> None:
    command = ("run", "job", *more, "--at-least", "300", "--ttl", "300", "--wait", "0", "--", "echo", "ran")
    first = await (await aiolocks(*command)).end()
    assert (first.status, first.out, first.err) == (0, "ran\n", "")
    second = await (await aiolocks(*command)).end()
    assert (second.status, second.out) == (75, "")
    assert "was not acquired at the first try" in second.err


@pytest.mark.leaves_keys
@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("kill -KILL $$", 137)])
async def test_a_command_that_fails_is_not_run_again_elsewhere(
    aiolocks: Aiolocks, redis: Redis, script: str, status: int
) -> None:
    command = ("run", "job", "--at-least", "300", "--ttl", "300", "--", "sh", "-c", script)
    assert (await (await aiolocks(*command)).end()).status == status
    assert await Lock(redis, "job").locked()


async def test_a_command_that_takes_longer_frees_the_lock_at_its_end(
    aiolocks: Aiolocks, redis: Redis, keys: Keys
) -> None:
    command = ("run", "job", "--at-least", "0.2", "--", "sh", "-c", "echo in; read x")
    invocation = await aiolocks(*command)
    await invocation.says("in")
    await asyncio.sleep(0.3)
    await invocation.type("\n")
    assert (await invocation.end()).status == 0
    assert keys() == []


@pytest.mark.parametrize(("program", "status"), [("no-such-program", 127), (os.devnull, 126)])
async def test_a_command_that_cannot_be_run_takes_no_lock(
    aiolocks: Aiolocks, redis: Redis, program: str, status: int
) -> None:
    """Another machine may have it; and a caller that would wait for the lock is told at once."""
    command = ("run", "job", "--at-least", "300", "--ttl", "300", "--", program)
    async with Lock(redis, "job"):
        assert (await (await aiolocks(*command)).end()).status == status
    assert not await Lock(redis, "job").locked()


@pytest.mark.leaves_keys("shop:*")
async def test_it_excludes_the_locks_of_the_prefix_that_it_is_given(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Session(redis, prefix="shop") as session, Lock(session, "job"):
        command = ("run", "job", "--wait", "0")
        refused = await (await aiolocks(*command, "--prefix", "shop", "--", "echo", "ran")).end()
        elsewhere = await (await aiolocks(*command, "--", "echo", "ran")).end()
    assert (refused.status, refused.out) == (75, "")
    assert (elsewhere.status, elsewhere.out) == (0, "ran\n")


async def test_fair_it_takes_its_place_behind_who_asked_before(aiolocks: Aiolocks, redis: Redis) -> None:
    async with FairLock(redis, "job"):
        before = asyncio.create_task(FairLock(redis, "job").acquire())
        await asyncio.sleep(0.05)
        invocation = await aiolocks("run", "job", "--fair", "--", "echo", "ran")
        await asyncio.sleep(1)
    async with await before:
        with pytest.raises(TimeoutError):
            await invocation.says("ran", within=0.3)
    assert (await invocation.end()).out == "ran\n"


async def test_it_waits_for_ever_unless_told_otherwise(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Lock(redis, "job"):
        invocation = await aiolocks("run", "job", "--", "echo", "ran")
        with pytest.raises(TimeoutError):
            await invocation.says("ran", within=1)
    assert (await invocation.end()).out == "ran\n"


SHELL = ("--", "/bin/sh", "-c", "echo in; read x")


@pytest.mark.parametrize("fair", [(), pytest.param(("--fair",), marks=pytest.mark.more)])
async def test_after_a_second_of_waiting_it_names_the_holder_once(
    aiolocks: Aiolocks, fair: tuple[str, ...]
) -> None:
    holder = await aiolocks("run", "a job\n", *fair, *SHELL)
    await holder.says("in")
    waiter = await aiolocks("run", "a job\n", *fair, "--", "echo", "ran", function=main_with_one_output)
    await waiter.says("aiolocks: waiting for ", within=20)
    await asyncio.sleep(1.5)
    await holder.type("\n")
    assert (await holder.end()).status == 0
    said, *others = (await waiter.end()).out.splitlines()
    match = re.fullmatch(
        r"aiolocks: waiting for 'a job\\n', held by (\S+) pid (\d+) for \d+\.\d s \(sh\)", said
    )
    assert match is not None, said
    assert (match[1], match[2]) == (socket.gethostname(), str(holder.pid))
    assert others == ["ran"]


async def test_quiet_it_says_nothing_of_waiting(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Lock(redis, "job"):
        invocation = await aiolocks(
            "run", "job", "--quiet", "--", "echo", "ran", function=main_with_one_output
        )
        with pytest.raises(TimeoutError):
            await invocation.says("ran", within=1.5)
    assert (await invocation.end()).out == "ran\n"


async def test_a_user_that_may_not_look_is_told_that_the_lock_is_held(
    aiolocks: Aiolocks, own_server: OwnServer
) -> None:
    server = await own_server(port=0)
    async with server.client() as admin, Session(admin) as session, Lock(session, "job"):
        rules = ("on", ">secret", "~*", "&*", "+@all", "-type", "-hgetall")
        await admin.execute_command("ACL", "SETUSER", "poor", *rules)
        url = f"redis://poor:secret@127.0.0.1:{server.port}"
        invocation = await aiolocks("run", "job", "--", "echo", "ran", function=main_with_one_output, url=url)
        await invocation.says("aiolocks: waiting for 'job', which is held elsewhere\n", within=20)
    assert (await invocation.end()).status == 0


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        ("no-such-program", 127, "no-such-program: command not found"),
        ("", 127, ": command not found"),
        ("./no-such-program", 127, "./no-such-program: command not found"),
        (os.devnull, 126, f"{os.devnull}: Permission denied"),
    ],
)
async def test_a_command_that_cannot_be_run(
    aiolocks: Aiolocks, keys: Keys, command: str, status: int, message: str
) -> None:
    ended = await (await aiolocks("run", "job", "--", command)).end()
    assert (ended.status, ended.err) == (status, f"aiolocks: {message}\n")
    assert keys() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "run NAME -- COMMAND"),
        (("--", "true"), "Missing argument 'NAME'"),
        (("job",), "run NAME -- COMMAND"),
        (("job", "--"), "run NAME -- COMMAND"),
        (("job", "ls", "-l"), "run NAME -- COMMAND"),
        (("job", "--ttl", "0.001", "--", "true"), "--ttl"),
        (("job", "--wait", "soon", "--", "true"), "'soon' is not a valid number of seconds"),
        (("job", "--wait", "-1", "--", "true"), "--wait"),
        (("job", "--kill-after", "-1", "--", "true"), "--kill-after"),
        (("job", "--at-least", "-1", "--", "true"), "--at-least"),
        (("job", "--at-least", "60", "--", "true"), "--at-least 60 needs a --ttl of that many seconds"),
    ],
)
def test_a_wrong_command_line(arguments: tuple[str, ...], message: str) -> None:
    ended = CliRunner().invoke(app, ["run", *arguments], prog_name="aiolocks")
    assert ended.exit_code == 2
    assert ended.stderr.startswith("Usage: aiolocks run [OPTIONS] NAME -- COMMAND…\n")
    assert message in ended.stderr


async def test_a_wrong_command_line_ends_the_process(aiolocks: Aiolocks) -> None:
    """The library finds them, once there is a server; and one that the command finds, in a process, too."""
    wrong = {
        ("job", "ls", "-l"): "run NAME -- COMMAND",
        ("", "--", "true"): "name",
        ("job", "--ttl", "nan", "--", "true"): "ttl",
        ("job", "--prefix", "{shop}", "--", "true"): "prefix must not have braces",
        ("job", "--at-least", "nan", "--ttl", "60", "--", "true"): "at_least",
    }
    all_of_them = await several(aiolocks, *(("run", *arguments) for arguments in wrong))
    for message, ended in zip(wrong.values(), all_of_them, strict=True):
        assert ended.status == 2
        assert ended.err.startswith("Usage: aiolocks run [OPTIONS] NAME -- COMMAND…\n")
        assert message in ended.err


@pytest.mark.leaves_keys
async def test_a_server_that_does_not_confirm_the_release_changes_no_status(
    aiolocks: Aiolocks, own_server: OwnServer
) -> None:
    server = await own_server()
    invocation = await aiolocks("run", "job", "--", "sh", "-c", "echo in; read x; exit 3", url=server.url)
    await invocation.says("in")
    server.pause()
    began = time.monotonic()
    await invocation.type("\n")
    ended = await invocation.end()
    server.resume()
    assert ended.status == 3
    assert ended.err == "aiolocks: 'job' was not released, for Redis does not answer; it is free after 30 s\n"
    assert time.monotonic() - began < 20  # and not as long as the lease could last


# -- losses


async def test_the_command_is_ended_when_the_lock_is_lost(
    aiolocks: Aiolocks, redis: Redis, keys: Keys
) -> None:
    script = "trap 'echo TERM; exit 5' TERM; echo in; while :; do sleep 0.05; done"
    invocation = await aiolocks("run", "job", "--ttl", "0.6", "--", "sh", "-c", script)
    await invocation.says("in")
    (key,) = keys()
    await redis.delete(key)
    ended = await invocation.end()
    assert (ended.status, ended.out) == (76, "in\nTERM\n")
    # The shell says that its child was terminated: the signal goes to all of the command.
    assert re.fullmatch(r"aiolocks: Lock 'job' was lost: .*; ending the command\n(Terminated\n)?", ended.err)


async def test_where_nobody_reads_what_it_says_the_command_is_ended_with_care_all_the_same(
    aiolocks: Aiolocks, redis: Redis, keys: Keys
) -> None:
    # Its own stderr: the shell says there that its child was terminated, and would end of that.
    command = "exec 2>/dev/null; trap 'echo TERM; exit 5' TERM; echo in; while :; do sleep 0.05; done"
    run = '"$0" -m aiolocks run job --ttl 0.6 -- sh -c "$1"'
    script = f'exec 3>&1; {{ {run} 2>&1 >&3; echo "$?" >&3; }} | true'
    invocation = await aiolocks(program=("sh", "-c", script, sys.executable, command))
    await invocation.says("in")
    (key,) = keys()
    await redis.delete(key)
    assert (await invocation.end()).out == "in\nTERM\n76\n"


@pytest.mark.parametrize("stopped", [False, True])
async def test_kill_follows_term(aiolocks: Aiolocks, redis: Redis, keys: Keys, stopped: bool) -> None:
    script = f"trap '' TERM; echo in; {'kill -STOP $$;' * stopped} while :; do sleep 0.05; done"
    invocation = await aiolocks("run", "job", "--ttl", "0.6", "--kill-after", "0.5", "--", "sh", "-c", script)
    await invocation.says("in")
    (key,) = keys()
    await redis.delete(key)
    began = time.monotonic()
    assert (await invocation.end()).status == 76
    assert time.monotonic() - began > 0.5


async def test_a_server_that_falls_silent_costs_the_lock_after_its_ttl(
    aiolocks: Aiolocks, own_server: OwnServer
) -> None:
    server = await own_server()
    invocation = await aiolocks(
        "run", "job", "--ttl", "1", "--", "sh", "-c", "echo in; exec sleep 30", url=server.url
    )
    await invocation.says("in")
    server.pause()
    began = time.monotonic()
    ended = await invocation.end()
    server.resume()
    assert ended.status == 76
    assert "was lost" in ended.err
    assert time.monotonic() - began < 10  # and not the 30 of the command


async def test_a_loss_that_shows_only_at_the_end(aiolocks: Aiolocks, redis: Redis, keys: Keys) -> None:
    for _ in range(10):  # until the end comes before the next renewal, which would show it
        invocation = await aiolocks("run", "job", "--", "sh", "-c", "echo in; read x")
        await invocation.says("in")
        await redis.delete(*keys())
        await invocation.type("\n")
        ended = await invocation.end()
        assert ended.status == 76
        if "ending the command" not in ended.err:
            break
    assert re.fullmatch(
        r"aiolocks: Lock 'job' was lost: .*; the command has ended, but may not have been alone\n", ended.err
    )


async def test_a_killed_one_frees_the_lock_after_its_ttl(aiolocks: Aiolocks, redis: Redis) -> None:
    invocation = await aiolocks("run", "job", "--ttl", "0.5", "--", "sh", "-c", "echo in; exec sleep 2")
    await invocation.says("in")
    invocation.send(signal.SIGKILL)
    async with Lock(redis, "job", blocking_timeout=2):
        pass


@pytest.mark.leaves_keys("*:lock.stolen:*")
async def test_with_steal_it_takes_the_lock_from_its_holder(aiolocks: Aiolocks) -> None:
    first = await aiolocks("run", "job", "--ttl", "0.6", "--", "sh", "-c", "echo in; exec sleep 60")
    await first.says("in")
    second = await aiolocks("run", "job", "--steal", "--", "sh", "-c", "echo in; read x")
    await second.says("in")
    ended = await first.end()
    assert ended.status == 76
    assert re.search(r"it was stolen by \S+ pid \d+", ended.err), ended.err
    await second.type("\n")
    ended = await second.end()
    assert ended.status == 0
    assert "'job' was taken by force: it was held for" in ended.err


async def test_steal_waits_for_nobody(aiolocks: Aiolocks) -> None:
    ended = await (await aiolocks("run", "job", "--steal", "--wait", "1", "--", "true")).end()
    assert ended.status == 2
    assert "--steal waits for nobody" in ended.err
