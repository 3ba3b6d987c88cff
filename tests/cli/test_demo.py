"""`aiolocks demo`: all four acts, on a terminal and in a pipe, and how it ends."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import Callable

import pytest

from tests.cli.conftest import Aiolocks, gone
from tests.conftest import OwnServer
from tests.support.servers import Server
from tests.support.waiting import eventually

HEADINGS = ["1  Without a lock", "2  With Lock", "3  A holder is killed", "4  A holder is stopped"]
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def with_acts(acts: str, before: str = "", *, workers: int = 4) -> tuple[str, ...]:
    """The command, its demo made shorter or worse. In the expression, `acts` is its module.

    Acts that have no use for four workers do with fewer: each is a process.
    """
    program = f"""
import dataclasses
from aiolocks.cli import main
from aiolocks.cli.demo import acts, checks, performance
{before}
performance.ACTS = {acts}
performance.WORKERS = {workers}
main()
"""
    return (sys.executable, "-c", program)


async def test_in_a_pipe_it_is_plain_lines(aiolocks: Aiolocks) -> None:
    invocation = await aiolocks("demo", url="embedded:")
    ended = await invocation.end(within=60)
    assert (ended.status, ended.err) == (0, "")
    assert CONTROL.search(ended.out) is None
    assert re.findall(r"^\d  .{8}", ended.out, re.MULTILINE) == [heading[:11] for heading in HEADINGS]
    lost = re.search(r"The counter says (\d+), not 1000: (\d+) updates were lost", ended.out)
    assert lost is not None
    assert int(lost[1]) + int(lost[2]) == 1000
    assert int(lost[2]) > 0
    assert "The counter says 1000." in ended.out
    assert_that_holders_take_turns(ended.out, "█")
    after = re.search(r"took over (\d\.\d\d) s after worker 4 was killed; the ttl is 1 s", ended.out)
    assert after is not None
    assert "LockLostError" in ended.out
    assert re.search(r"^All 12 checks passed, in \d+\.\d s\.$", ended.out, re.MULTILINE)
    assert max(map(len, ended.out.splitlines())) <= 80
    await gone(invocation)


def assert_that_holders_take_turns(out: str, full: str) -> None:
    """In the picture of the second act, one after the other fills columns, but no two the same one."""
    act = out.partition("  With Lock")[2].partition("The counter says")[0]
    rows = re.findall(r"^   worker \d  (.*)  250 of 250$", act, re.MULTILINE)
    assert len(rows) == 4
    assert max(sum(cell == full for cell in column) for column in zip(*rows, strict=True)) == 1
    assert f"30 ms of it   {full} holds" in act


async def test_on_a_terminal_it_moves(aiolocks: Aiolocks, server: Server) -> None:
    # On a server of the user's. That it leaves no key there, the fixtures see to.
    invocation = await aiolocks("demo", "--redis", server.url, terminal=True)
    await invocation.says("All 12 checks passed", within=60)
    ended = await invocation.end()
    assert ended.status == 0
    assert "\x1b[1A" in ended.out  # the cursor goes up, to draw again
    assert len(set(re.findall(r" (\d+) of 250", ended.out))) > 5
    assert {"\x1b[?25l", "\x1b[?25h"} <= set(re.findall(r"\x1b\[\?25[lh]", ended.out))
    await gone(invocation)


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
async def test_without_colours_a_terminal_gets_plain_lines(
    aiolocks: Aiolocks, environment: dict[str, str]
) -> None:
    invocation = await aiolocks(
        "demo", program=with_acts("acts.ACTS[:1]"), terminal=True, environment=environment
    )
    ended = await invocation.end()
    assert ended.status == 0
    assert CONTROL.search(ended.out.replace("\r\n", "\n")) is None


async def test_where_unicode_cannot_be_written_it_is_ascii(aiolocks: Aiolocks) -> None:
    environment = {"PYTHONIOENCODING": "ascii"}
    ended = await (await aiolocks("demo", program=with_acts("acts.ACTS[1:2]"), environment=environment)).end(
        within=60
    )
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.isascii()
    assert re.search(r"worker 1  [-=# ]+250 of 250\n", ended.out)
    assert_that_holders_take_turns(ended.out, "#")


async def test_json(aiolocks: Aiolocks) -> None:
    ended = await (await aiolocks("demo", "--json", program=with_acts("acts.ACTS[:2]"))).end(within=60)
    assert (ended.status, ended.err) == (0, "")
    summary = json.loads(ended.out)
    assert summary["passed"] is True
    assert [act["counter"] == 1000 for act in summary["acts"]] == [False, True]
    assert all(check["passed"] for act in summary["acts"] for check in act["checks"])


# -- what is not as it should be


@pytest.mark.parametrize("options", [(), ("--json",)])
async def test_a_check_that_fails(aiolocks: Aiolocks, options: tuple[str, ...]) -> None:
    program = with_acts(
        "(dataclasses.replace(acts.ACTS[0], play=unlucky),)",
        "async def unlucky(stage, scene): scene.checks.append(checks.exact(999, 1000))",
        workers=1,
    )
    ended = await (await aiolocks("demo", *options, program=program)).end()
    assert ended.status == 1
    assert ended.err == (
        "aiolocks: not as it should be: act 1: with the lock, the counter is exactly 1000 - but it is 999\n"
    )
    if options:
        assert json.loads(ended.out)["passed"] is False
    else:
        assert "✗ with the lock, the counter is exactly 1000 - but it is 999" in ended.out
        assert "passed" not in ended.out


@pytest.mark.parametrize(
    ("play", "message"),
    [
        (
            "w = stage.begin(1, 'hold', name='', ttl=1); await w.until('holds')",
            "worker 1 failed: ValueError: ",
        ),
        ("w = stage.crew[2]; w.kill(); await w.until('done')", "worker 2 ended by itself, with status -9"),
    ],
)
async def test_a_worker_that_fails(aiolocks: Aiolocks, play: str, message: str) -> None:
    program = with_acts(
        "(dataclasses.replace(acts.ACTS[0], play=unlucky),)",
        f"async def unlucky(stage, scene): {play}",
        workers=2,
    )
    invocation = await aiolocks("demo", program=program)
    ended = await invocation.end()
    assert ended.status == 1
    assert ended.err.startswith(f"aiolocks: {message}")
    assert ended.err.count("\n") == 1
    await gone(invocation)


async def test_a_server_that_dies(aiolocks: Aiolocks, own_server: OwnServer) -> None:
    server = await own_server()
    invocation = await aiolocks("demo", url=server.url)
    await invocation.says("2  With Lock")
    server.kill()
    ended = await invocation.end(within=15)
    assert ended.status in {1, 69}
    assert ended.err.startswith("aiolocks: ")
    assert ended.err.count("\n") == 1
    await gone(invocation)


# -- an early end


@pytest.mark.parametrize("act", [1, 3])
async def test_ctrl_c(aiolocks: Aiolocks, act: int) -> None:
    program = with_acts(f"acts.ACTS[{act}:]")
    invocation = await aiolocks("demo", url="embedded:", terminal=True, program=program)
    await invocation.says(HEADINGS[act][1:])
    await asyncio.sleep(0.5)
    await invocation.type("\x03")
    ended = await invocation.end(within=3)
    assert ended.status == 128 + signal.SIGINT
    assert "Traceback" not in ended.out
    assert ended.out.endswith("\x1b[?25h")  # the cursor is there again
    await gone(invocation)


async def test_term_leaves_no_keys(
    aiolocks: Aiolocks, server: Server, keys: Callable[..., list[str]]
) -> None:
    invocation = await aiolocks("demo")
    await invocation.says(HEADINGS[1])
    await eventually(keys)
    invocation.send(signal.SIGTERM)
    ended = await invocation.end(within=3)
    assert (ended.status, ended.err) == (128 + signal.SIGTERM, "")
    assert keys() == []
    await gone(invocation)


async def test_kill_leaves_no_process(aiolocks: Aiolocks) -> None:
    invocation = await aiolocks("demo", url="embedded:", program=with_acts("acts.ACTS[3:]"))
    await invocation.says(HEADINGS[3][1:])
    await asyncio.sleep(0.7)  # one of them is stopped by now
    invocation.send(signal.SIGKILL)
    await gone(invocation)


async def test_whoever_reads_may_leave(aiolocks: Aiolocks) -> None:
    head = ("sh", "-c", '"$@" demo | head -1', "sh", sys.executable, "-m", "aiolocks")
    invocation = await aiolocks(program=head)
    ended = await invocation.end(within=15)
    assert ended.out.startswith("4 worker processes on ")
    assert ended.err == ""
    await gone(invocation)
