"""`aiolocks demo`: all four acts, what it says of broken promises, and how it ends."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from aiolocks.cli import main
from aiolocks.cli.demo.acts import Act
from tests.cli.conftest import Aiolocks, gone
from tests.conftest import OwnServer
from tests.support.servers import Server
from tests.support.waiting import eventually

HEADINGS = ["1  Without a lock", "2  With Lock", "3  A holder is killed", "4  A holder is stopped"]
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def altered() -> None:
    """In a process of its own: the command, after what its first argument does."""
    exec(sys.argv.pop(1), {})
    main()


def with_acts(acts: str, before: str = "", *, workers: int = 4) -> str:
    """What makes the demo shorter or worse. In the expressions, `acts` and `Worker` are its own.

    Acts that have no use for four workers do with fewer: each is a process.
    """
    return f"""
from aiolocks.cli.demo import acts, command
from aiolocks.cli.demo.worker import Worker
{before}
command.ACTS = {acts}
command.WORKERS = {workers}
"""


async def test_in_a_pipe_it_is_plain_lines(aiolocks: Aiolocks) -> None:
    invocation = await aiolocks("demo", url="embedded:")
    ended = await invocation.end(within=60)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.isascii()
    assert CONTROL.search(ended.out) is None
    assert max(map(len, ended.out.splitlines())) <= 80
    assert re.findall(r"^\d  .{8}", ended.out, re.MULTILINE) == [heading[:11] for heading in HEADINGS]
    counted = re.findall(r"the counter says (\d+): (\d+) updates were lost", ended.out)
    assert [int(counter) + int(lost) for counter, lost in counted] == [200, 200]
    assert int(counted[0][1]) > 0
    assert counted[1][1] == "0"
    assert re.search(
        r"worker 3 gets SIGKILL; .*\n.*worker 4 holds 'job', with fencing token \d+\n", ended.out
    )
    assert re.search(r"worker 1 gets SIGSTOP; .*\n.*worker 2 holds 'report', with fencing tok", ended.out)
    assert "worker 1 is cancelled: LockLostError: " in ended.out
    assert "the store says 'second': StaleFenceError: " in ended.out
    assert ended.out.endswith("\n\nAll 12 checks passed.\n")
    await gone(invocation)


async def test_json(aiolocks: Aiolocks) -> None:
    shorter = with_acts("acts.ACTS[:1]", workers=2)
    ended = await (await aiolocks(shorter, "demo", "--json", function=altered)).end(within=60)
    assert (ended.status, ended.err) == (0, "")
    summary = json.loads(ended.out)
    assert summary["passed"] is True
    assert [len(act["checks"]) for act in summary["acts"]] == [1]
    assert all(check["passed"] for act in summary["acts"] for check in act["checks"])


# -- what is not as it should be


def act() -> Act:
    unused: Any = None
    return Act("title", unused, "prefix", [], print)


@pytest.mark.parametrize(
    ("holds", "failed"),
    [
        ([(1, 2, 1), (2, 3, 2), (0, 1, 0)], []),
        (
            [(1, 2, 1), (1.9, 3, 2), (2.9, 4, 3)],
            ["no two held the lock at the same time - but 2 entered too early"],
        ),
        (
            [(0, 1, 5), (1, 2, 5), (2, 3, 6)],
            ["each fencing token is larger than the one before - but 1 are not"],
        ),
    ],
)
def test_a_history_of_holds_is_checked(holds: list[tuple[float, float, int]], failed: list[str]) -> None:
    judged = act()
    judged.check_holds(holds)
    assert [check["text"] for check in judged.checks if not check["passed"]] == failed


async def test_a_lock_that_does_not_lock(aiolocks: Aiolocks) -> None:
    before = """
write = Worker.write
Worker.write = lambda self, **given: write(self, **(given | {"lock": False}))
"""
    ended = await (await aiolocks(with_acts("acts.ACTS[1:2]", before), "demo", function=altered)).end()
    assert ended.status == 1
    assert "passed" not in ended.out
    texts = [
        "counter is exactly 200 - but it is ",
        "no two held the lock at the same time - but ",
        "fencing token",
    ]
    failed = re.findall("^   FAILED    (.*)$", ended.out, re.MULTILINE)
    assert len(failed) == len(texts)
    assert all(text in line for text, line in zip(texts, failed, strict=True))
    assert ended.err == f"aiolocks: not as it should be: {'; '.join(failed)}\n"


async def test_a_late_write_that_never_comes(aiolocks: Aiolocks) -> None:
    before = """
write = Worker.write
Worker.write = lambda self, **given: write(self, **(given | {"late": False} if given else given))
"""
    worse = with_acts("acts.ACTS[3:]", before, workers=2)
    ended = await (await aiolocks(worse, "demo", "--json", function=altered)).end()
    assert ended.status == 1
    failed = "the store refused the late write - but it says 'second'"
    assert ended.err == f"aiolocks: not as it should be: {failed}\n"
    summary = json.loads(ended.out)
    assert summary["passed"] is False
    assert {"text": failed, "passed": False} in summary["acts"][0]["checks"]


@pytest.mark.parametrize(
    ("play", "message"),
    [
        ("w.write(part='count', key='none', rounds=1, lock=True)", "worker 1 failed: TypeError: "),
        pytest.param("w.signal(9)", "worker 1 ended by itself, with status -9", marks=pytest.mark.more),
    ],
)
async def test_a_worker_that_fails(aiolocks: Aiolocks, play: str, message: str) -> None:
    before = f"""
async def unlucky(act):
    w = act.workers[0]
    {play}
    await w.until('done')
"""
    worse = with_acts("(('Bad luck', unlucky),)", before, workers=2)
    invocation = await aiolocks(worse, "demo", function=altered)
    ended = await invocation.end()
    assert ended.status == 1
    assert ended.err.startswith(f"aiolocks: {message}")
    assert ended.err.count("\n") == 1
    await gone(invocation)


@pytest.mark.more
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


@pytest.mark.parametrize(
    ("number", "workers"), [pytest.param(1, 4, marks=pytest.mark.more), (3, 2)], ids=["1", "3"]
)
async def test_ctrl_c(aiolocks: Aiolocks, number: int, workers: int) -> None:
    text = with_acts(f"acts.ACTS[{number}:]", workers=workers)
    program = (sys.executable, "-c", f"{text}\nfrom aiolocks.cli import main\nmain()")
    invocation = await aiolocks("demo", url="embedded:", terminal=True, program=program)
    await invocation.says(HEADINGS[number][1:])
    await asyncio.sleep(0.5)
    await invocation.type("\x03")
    ended = await invocation.end(within=15)
    assert ended.status == 128 + signal.SIGINT
    assert "Traceback" not in ended.out
    await gone(invocation)


@pytest.mark.more
async def test_term_leaves_no_keys(
    aiolocks: Aiolocks, server: Server, keys: Callable[..., list[str]]
) -> None:
    invocation = await aiolocks("demo")
    await invocation.says(HEADINGS[1])
    await eventually(keys)
    invocation.send(signal.SIGTERM)
    ended = await invocation.end(within=15)
    assert (ended.status, ended.err) == (128 + signal.SIGTERM, "")
    assert keys() == []
    await gone(invocation)


async def test_kill_leaves_no_process_and_keys_that_expire(aiolocks: Aiolocks, server: Server) -> None:
    invocation = await aiolocks(with_acts("acts.ACTS[3:]", workers=2), "demo", function=altered)
    await invocation.says("SIGSTOP")
    invocation.send(signal.SIGKILL)
    await gone(invocation)
    with Redis.from_url(server.url) as redis:
        left = list(redis.scan_iter("aiolocks-demo-*"))
        assert any(b":fencedregister:" in key for key in left)
        assert [key for key in left if redis.pttl(key) == -1] == []
        redis.delete(*left)


@pytest.mark.more
async def test_whoever_reads_may_leave(aiolocks: Aiolocks) -> None:
    head = ("sh", "-c", '"$@" demo | head -1', "sh", sys.executable, "-m", "aiolocks")
    invocation = await aiolocks(program=head)
    ended = await invocation.end(within=15)
    assert ended.out.startswith("4 worker processes on ")
    assert ended.err == ""
    await gone(invocation)
