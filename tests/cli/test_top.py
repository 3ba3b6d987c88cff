"""`aiolocks top`: keeps its table up to date, and leaves the terminal as it was."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from aiolocks import FairLock, Lock, Semaphore, Session
from aiolocks.transport.keys import key
from tests.cli.conftest import Aiolocks, Invocation, gone
from tests.cli.several import several
from tests.conftest import OwnServer
from tests.support.waiting import eventually

ENTERS, LEAVES = "\x1b[?1049h", "\x1b[?1049l"
"""The other screen of a terminal."""
CURSOR_SHOWN = "\x1b[?25h"


async def ends(invocation: Invocation) -> str:
    """With Ctrl-C; what it has shown."""
    await invocation.type("\x03")
    ended = await invocation.end()
    assert ended.status == 0
    assert "Traceback" not in ended.out
    assert ended.out.rindex(LEAVES) > ended.out.rindex(ENTERS)
    assert CURSOR_SHOWN in ended.out[ended.out.index(ENTERS) :]
    await gone(invocation)
    return ended.out


async def test_shows_what_changes(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Lock(redis, "first"), Lock(redis, "another"):
        invocation = await aiolocks(
            "top", "[!a]*", "--interval", "0.1", terminal=True, environment={"COLUMNS": "120"}
        )
        await invocation.says("1 locks, 1 holders, 0 waiting")
        await invocation.says("first")
        async with FairLock(redis, "second"), Semaphore(redis, "third", 2):
            await invocation.says("3 locks, 3 holders, 0 waiting")
            await invocation.says("1 of 2")
        async with Session(redis) as session:
            for _ in range(2):
                async with Lock(session, "fourth", cache=10):
                    pass
            await invocation.says("kept between uses")
    await invocation.says("0 locks, 0 holders, 0 waiting")
    shown = await ends(invocation)
    for column in ("NAME", "KIND", "HOLDER", "HOST", "PID", "HELD", "LEFT", "WAITERS"):
        assert column in shown
    assert "another" not in shown


@pytest.mark.parametrize(
    "key", ["q", pytest.param("Q", marks=pytest.mark.more), "\x03"], ids=["q", "Q", "Ctrl-C"]
)
async def test_q_and_ctrl_c_quit_and_leave_the_terminal_as_it_was(
    aiolocks: Aiolocks, redis: Redis, key: str
) -> None:
    script = 'trap : INT; stty -g; "$0" -m aiolocks top --interval 60; echo "status $?"; stty -g'
    invocation = await aiolocks(program=("sh", "-c", script, sys.executable), terminal=True)
    await invocation.says("0 locks, 0 holders, 0 waiting")
    await invocation.type(f"x{key}")
    await invocation.says("status ")
    ended = await invocation.end()
    settings, *_, status, settings_after = ended.out.split("\r\n")[:-1]
    assert status.endswith("status 0")
    assert settings_after == settings
    assert settings.count(":") > 10
    assert ended.out.rindex(LEAVES) > ended.out.rindex(ENTERS)
    assert "Traceback" not in ended.out
    await gone(invocation)


async def test_keys_sort_filter_and_show_the_waiters(aiolocks: Aiolocks, redis: Redis) -> None:
    evil = "z\x1b[31m\u202e" + "x" * 900
    async with Lock(redis, "b older"), Lock(redis, "a younger"), Lock(redis, evil), Session(redis) as other:
        waiting = asyncio.create_task(Lock(other, "b older").acquire(blocking_timeout=60))
        invocation = await aiolocks("top", "--interval", "0.2", terminal=True, environment={"COLUMNS": "100"})
        await invocation.says("3 locks, 3 holders, 1 waiting")
        await asyncio.sleep(0.7)  # until then the session of the waiter has told its process
        for keys, said in (
            ("s", "s by held"),
            ("\x1b[Ass", "s by name"),
            ("w", "w locks"),
            ("w/older", "part of a name: older_"),
            ("\x7f\r", "/ names with 'olde', Esc all"),
            ("\x1b", "/ filter"),
        ):
            before, invocation.out = invocation.out, ""
            await invocation.type(keys)
            await invocation.says(said)
            invocation.out = before + invocation.out
        waiting.cancel()
        shown = await ends(invocation)
    assert "\u202e" not in shown
    assert "\x1b[31m" not in shown
    assert "z\\x1b[31m\\u202e" in shown
    pictures = [
        picture
        for picture in re.split(r"(?=NAME  |WAITED  )", shown)
        if "s by" in picture or "part" in picture
    ]

    def names(said: str) -> list[str]:
        picture = next(picture for picture in pictures if said in picture)
        return re.findall(r"^(a younger|b older|z)", picture, re.MULTILINE)

    assert names("s by waiters")[0] == "b older"
    assert names("s by held") == ["b older", "a younger", "z"]
    assert names("s by name") == ["a younger", "b older", "z"]
    assert names("/ names with") == ["b older"]
    waits = next(picture for picture in pictures if "w locks" in picture)
    assert re.search(rf"pid {os.getpid()}  b older  held by \S+ pid {os.getpid()}", waits)


async def test_very_many_names_are_sampled_and_those_waited_for_come_first(
    aiolocks: Aiolocks, redis: Redis
) -> None:
    async with held(redis, 600, waited_for=599):
        invocation = await aiolocks("top", "--interval", "0.1", terminal=True, environment={"LINES": "20"})
        await invocation.says("600 names, 1 waiting", within=20)
        await invocation.says("sampled: 600 read, 600 holders; each again in 3.0 s, these at", within=30)
    await invocation.says("0 locks, 0 holders, 0 waiting", within=30)
    shown = await ends(invocation)
    pictures = shown.split("NAME ")[1:]
    rows = [re.findall(r"^name:(\d+) ", picture, re.MULTILINE) for picture in pictures]
    assert max(map(len, rows)) == 16  # as much as fits
    assert next(row for row in rows if "599" in row)[0] == "599"
    assert "584 more lines" in shown


async def test_names_under_other_prefixes_are_not_hidden(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Session(redis, prefix="aiolocks-shop") as session, Lock(session, "order"):
        invocation = await aiolocks("top", "--interval", "0.1", terminal=True)
        await invocation.says("1 name under the prefix aiolocks-shop: see them with --prefix")
        await ends(invocation)


async def test_more_than_the_screen_can_show(aiolocks: Aiolocks, redis: Redis) -> None:
    semaphore = Semaphore(redis, "name", 100)
    leases = [await semaphore.acquire() for _ in range(60)]
    invocation = await aiolocks("top", "--interval", "0.1", terminal=True, environment={"LINES": "20"})
    await invocation.says("1 locks, 60 holders, 0 waiting")
    await invocation.says("more lines")
    more = re.search(r"and (\d+) more lines", await ends(invocation))
    assert more is not None
    assert int(more[1]) >= 40
    for lease in leases:
        await lease.release()


async def test_keys_scroll(aiolocks: Aiolocks, redis: Redis) -> None:
    """By lines and pages, up to the ends; many holders of one name are lines too, and the rest is counted."""
    async with held(redis, 40, waited_for=0), Semaphore(redis, "seats", 9):
        seats = [await Semaphore(redis, "seats", 9).acquire() for _ in range(8)]
        invocation = await aiolocks("top", "--interval", "30", terminal=True, environment={"LINES": "14"})
        await invocation.says("41 locks, 49 holders, 1 waiting")
        for keys, said in (
            ("sss", "and 39 more lines: arrows, PgDn   q quit   s by name"),
            ("\x1b[B", "from line 2 on   … and 38 more lines"),
            ("jj\x1b[A", "from line 3 on   … and 37 more lines"),
            ("\x1b[6~", "from line 13 on   … and 27 more lines"),
            ("\x1b[F", "from line 40 on   q quit"),
            ("k", "from line 39 on   … and 1 more lines"),
            ("\x1b[6~\x1b[6~", "from line 40 on   q quit"),
            ("\x1b[5~", "from line 30 on   … and 10 more lines"),
            ("\x1b[H\x1b[A", "and 39 more lines: arrows, PgDn   q quit   s by name"),
            ("\x1b[B/name", "and 30 more lines: arrows, PgDn   part of a name: name_"),
        ):
            before, invocation.out = invocation.out, ""
            await invocation.type(keys)
            await invocation.says(said)
            invocation.out = before + invocation.out
        for lease in seats:
            await lease.release()
        shown = await ends(invocation)
    last = shown.rindex("from line 40 on")
    rows = re.findall(r"^(name:\d+|seats) ", shown[:last].rpartition("NAME ")[2], re.MULTILINE)
    assert rows == ["name:9", *["seats"] * 9]


async def test_a_server_that_goes_away(aiolocks: Aiolocks, own_server: OwnServer) -> None:
    server = await own_server()
    invocation = await aiolocks("top", "--interval", "0.1", url=server.url, terminal=True)
    await invocation.says("0 locks")
    server.kill()
    await invocation.says("Redis", within=30)
    await ends(invocation)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_signals_leave_the_terminal_as_it_was(
    aiolocks: Aiolocks, redis: Redis, number: signal.Signals
) -> None:
    invocation = await aiolocks("top", "--interval", "0.1", terminal=True)
    await invocation.says("0 locks")

    async def inner() -> int | None:
        return max(invocation.processes(), default=None)

    process = await eventually(inner, within=10)
    assert process is not None
    os.kill(process, number)
    ended = await invocation.end()
    assert ended.status == 128 + number
    assert ended.out.rindex(LEAVES) > ended.out.rindex(ENTERS)
    assert "Traceback" not in ended.out


@asynccontextmanager
async def held(redis: Redis, number: int, *, waited_for: int) -> AsyncIterator[None]:
    """So many locks that somebody holds, of which somebody waits for one."""
    locks = [key("aiolocks", "lock", f"name:{at}") for at in range(number)]
    bell = key("aiolocks", "lock", f"name:{waited_for}", "bell.0123")
    queue = key("aiolocks", "lock", f"name:{waited_for}", "queue")
    async with redis.pipeline(transaction=False) as pipeline:
        for at, lock in enumerate(locks):
            pipeline.set(lock, f'{at:032x}:{1_000 + at}:{{"host":"h","pid":{at}}}', px=60_000)
        pipeline.set(bell, "", px=60_000)
        pipeline.zadd(queue, {bell: 1})
        pipeline.pexpire(queue, 60_000)
        await pipeline.execute()
    yield
    await redis.delete(*locks, bell, queue)


async def test_in_a_pipe_it_prints_the_table_once(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Lock(redis, "older"), Lock(redis, "younger"):
        ended = await (await aiolocks("top")).end()
    assert (ended.status, ended.err) == (0, "")
    assert [line.split()[0] for line in ended.out.splitlines()] == ["NAME", "older", "younger"]
    assert "\x1b" not in ended.out


async def test_wrong_intervals(aiolocks: Aiolocks) -> None:
    for ended in await several(
        aiolocks, *(("top", "--interval", wrong) for wrong in ("0", "-1", "x", "nan"))
    ):
        assert ended.status == 2
        assert "--interval" in ended.err
