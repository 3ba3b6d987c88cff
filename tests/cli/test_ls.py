"""`aiolocks ls`: a table for people, a document for scripts; and how all of its family fail."""

from __future__ import annotations

import asyncio
import io
import json
import math
import re
import signal
import socket
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest
from redis.asyncio import Redis
from rich.console import Console

from aiolocks import (
    FairLock,
    HolderInfo,
    Lock,
    LockInfo,
    RangeLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
    Turnstile,
)
from aiolocks.cli.listing.table import cut_table
from tests.cli.conftest import Aiolocks, Ended, Invocation
from tests.cli.several import alone, several
from tests.conftest import OwnServer
from tests.support.clusters import CLUSTER, node_port
from tests.support.servers import Server
from tests.support.waiting import eventually

HEADER = ["NAME", "KIND", "HOLDER", "HOST", "PID", "HELD", "LEFT", "WAITERS"]
COMMANDS = [
    ("ls",),
    ("ls", "--json"),
    ("show", "job"),
    ("release", "job", "--force"),
    ("top",),
    ("deadlocks",),
]
NASTY = "\x1b[31m[red]evil[/red]\n\x00\u202e\\ 💥 :boom: \x9b5m"


async def holding(invocation: Invocation) -> Invocation:
    """`aiolocks run NAME -- sh -c 'echo in; read x'`, inside."""
    await invocation.says("in")
    return invocation


async def test_nothing_is_held(aiolocks: Aiolocks) -> None:
    table, document = await several(aiolocks, ("ls",), ("ls", "--json"))
    assert (table.status, table.out) == (0, "")
    assert table.err == "aiolocks: nothing is held or waited for: '*' under the prefix 'aiolocks'\n"
    assert (document.status, document.err) == (0, "")
    assert json.loads(document.out) == {"prefix": "aiolocks", "locks": []}


async def test_holders_and_waiters_in_other_processes(aiolocks: Aiolocks, redis: Redis) -> None:
    script = ("--", "sh", "-c", "echo in $AIOLOCKS_FENCING_TOKEN; read x")
    inside = await holding(await aiolocks("run", "job", *script))
    waiting = [await aiolocks("run", "job", *script) for _ in range(2)]
    fair = await holding(await aiolocks("run", "job", "--fair", *script))
    session = Session.of(redis)

    async def both_wait() -> bool:
        return [info.waiters for info in await session.inspect("job")] == [0, 2]

    await eventually(both_wait, within=20)
    ended, as_document = await several(aiolocks, ("ls",), ("ls", "j?b", "--json"))
    header, first, second = ended.out.splitlines()
    assert (ended.status, ended.err) == (0, "")
    assert header.split() == HEADER
    name, kind, _, host, pid, *held, waiters = second.split()
    assert (name, kind, host, waiters) == ("job", "lock", socket.gethostname(), "2")
    assert int(pid) in inside.processes()
    assert len(held) == 4  # `0.4 s` for two columns
    assert first.split()[:2] == ["job", "fairlock"]
    assert "\x1b" not in ended.out

    document = json.loads(as_document.out)
    fairlock, lock = document["locks"]
    assert (fairlock["kind"], lock["kind"], lock["name"], lock["waiters"]) == ("fairlock", "lock", "job", 2)
    (one,) = lock["holders"]
    assert one["fencing_token"] == int(inside.out.split()[1])
    assert 0 < one["remaining"] <= 30
    assert 0 < one["held_for"] < 60

    for invocation in (inside, *waiting, fair):
        await invocation.type("\n")
    for invocation in (inside, *waiting, fair):
        assert (await invocation.end()).status == 0


async def test_fields_of_the_document(aiolocks: Aiolocks, redis: Redis) -> None:
    async with RangeLock(redis, "range", bounds="[]", metadata={"order": 17}).upgradable(0, float("inf")):
        document = json.loads((await alone(aiolocks, "ls", "--json")).out)
    (lock,) = document["locks"]
    (one,) = lock.pop("holders")
    assert lock == {
        "kind": "rangelock",
        "name": "range",
        "waiters": 0,
        "value": None,
        "problem": None,
        "waiting": [],
        "kept_for": None,
        "kept_until": None,
    }
    assert set(one) == {
        "lease_id", "fencing_token", "remaining", "held_since", "held_for", "host", "pid", "task", "metadata",
        "permits", "depth", "mode", "names", "keys", "value", "span", "cached",
    }  # fmt: skip
    assert (one["metadata"], one["mode"], one["span"]) == ({"order": 17}, "upgradable", [0.0, None])


@pytest.mark.parametrize(
    ("lo", "hi", "span"), [(0, math.inf, [0.0, None]), (-math.inf, 3, [None, math.nextafter(3, 0)])]
)
async def test_an_end_that_is_infinite_is_null(aiolocks: Aiolocks, redis: Redis, lo, hi, span) -> None:
    async with RangeLock(redis, "range").writer(lo, hi):  # of [0, inf), the server has the last double
        document = json.loads((await alone(aiolocks, "ls", "--json")).out)
    assert document["locks"][0]["holders"][0]["span"] == span


async def test_what_only_some_kinds_have(aiolocks: Aiolocks, redis: Redis) -> None:
    async with AsyncExitStack() as stack:
        nesting = ReentrantLock(redis, "nesting")
        for one in (
            nesting,
            nesting,
            Semaphore(redis, "permits", 5).acquire(2),
            RWLock(redis, "rw").reader,
            RangeLock(redis, "half open").reader(0, 10),
            RangeLock(redis, "closed", bounds="[]").writer(0.5, 10),
        ):
            await stack.enter_async_context(one)
        await Turnstile(redis, "turnstile", window=60).enter()
        out = (await alone(aiolocks, "ls")).out
        await redis.delete("aiolocks:turnstile:{turnstile}")
    ends = {line.split("  ")[0]: line.rpartition("  ")[2] for line in out.splitlines()}
    kinds = {name: re.split("  +", line)[1] for line in out.splitlines() for name in [line.split("  ")[0]]}
    assert (kinds["nesting"], ends["nesting"]) == ("reentrantlock", "depth 2")
    assert ends["permits"] == "2 of 5"
    assert ends["rw"] == "reader"
    assert ends["half open"] == "reader [0, 10)"
    assert ends["closed"] == "writer [0.5, 10]"
    assert ends["turnstile"] == "1 went through"


async def test_what_a_session_keeps_between_uses(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Session(redis) as session:
        for _ in range(2):
            async with Lock(session, "job", cache=10):
                pass
        table, shown, as_document = await several(aiolocks, ("ls",), ("show", "job"), ("ls", "--json"))
        assert session.statistics().cached == 1
    assert table.out.splitlines()[1].endswith("  kept between uses")
    assert "  holds           kept between uses" in shown.out
    assert "task" not in shown.out
    ((holder,),) = (lock["holders"] for lock in json.loads(as_document.out)["locks"])
    assert (holder["cached"], holder["task"]) == (True, None)


@pytest.mark.leaves_keys
async def test_a_name_that_nobody_holds_and_nobody_gets_yet(aiolocks: Aiolocks, redis: Redis) -> None:
    ends = {}
    for kind in (Lock, FairLock):
        async with kind(redis, "job", ttl=3700, at_least=3700) as lease:
            pass
        ends[lease.kind] = datetime.fromtimestamp(lease.fencing_token / 1e6 + 3700, UTC)
    table, shown, as_document = await several(aiolocks, ("ls",), ("show", "job"), ("ls", "--json"))
    lines = [re.split("  +", line) for line in table.out.splitlines()[1:]]
    for name, kind, *nobody, left, waiters, until in lines:
        assert (name, nobody, left, waiters) == ("job", ["-"] * 4, "1 h 1 min", "0")
        assert until.startswith("kept until ")
        assert datetime.fromisoformat(until.removeprefix("kept until ")) - ends[kind] < timedelta(seconds=2)
    assert shown.status == 0
    assert re.search(
        r"lock 'job': 0 waiting\n  nobody holds it kept until [-0-9]+ [:0-9+-]+, 1 h ", shown.out
    )
    for lock in json.loads(as_document.out)["locks"]:
        assert (lock["holders"], lock["problem"]) == ([], None)
        assert lock["kept_until"] == pytest.approx(ends[lock["kind"]].timestamp(), abs=0.01)
        assert 3600 < lock["kept_for"] < 3700


@pytest.mark.leaves_keys("aiolocks:*")
async def test_foreign_keys_are_shown_as_such(aiolocks: Aiolocks, redis: Redis) -> None:
    await redis.rpush("aiolocks:lock:{list}", "x")
    await redis.set("aiolocks:text", "x")
    await redis.hset("aiolocks:rwlock:{hash}", b"\xff", b"\xfe")
    await redis.set(b"aiolocks:\xff\x1b[31m", "x")
    ended, *others = await several(aiolocks, ("ls",), ("ls", "--json"), ("show", "list"), ("top",))
    assert (ended.status, ended.err) == (0, "")
    assert [(other.status, other.err) for other in others] == [(0, "")] * 3
    assert "! it is a list, not a string" in ended.out
    assert ended.out.count("! this key was not written by aiolocks") == 2
    assert "! what stands there was not written by aiolocks; it has no ttl: nothing frees it" in ended.out
    assert "\x1b" not in ended.out


@pytest.mark.leaves_keys("aiolocks:*")
async def test_a_name_that_has_lost_its_ttl_is_shown_with_the_command_that_frees_it(
    aiolocks: Aiolocks, redis: Redis
) -> None:
    (await Lock(redis, "nightly backup", ttl=0.1).acquire()).detach()
    await redis.persist("aiolocks:lock:{nightly backup}")
    said = "nothing frees it but `aiolocks release 'nightly backup' --force`"
    shown = await several(aiolocks, ("ls",), ("show", "nightly backup"), ("ls", "--json"))
    for ended in shown:
        assert ended.status == 0
        assert said in " ".join(ended.out.split())
    (freed,) = await several(aiolocks, ("release", "nightly backup", "--force"))
    assert freed.status == 0
    assert not await redis.exists("aiolocks:lock:{nightly backup}")


@pytest.mark.thin
@pytest.mark.parametrize("environment", [{}, {"PYTHONIOENCODING": "ascii"}], ids=["utf-8", "ascii"])
@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
async def test_nothing_in_a_name_reaches_the_terminal(
    aiolocks: Aiolocks, redis: Redis, environment: dict[str, str], terminal: bool
) -> None:
    shown = r"\x1b[31m[red]evil[/red]\n\u202e\\ 💥 :boom: \x9b5m"
    if environment:
        shown = shown.replace("💥", r"\U0001f4a5")
    name = NASTY.replace("\0", "")  # of which no command line has any
    async with (
        Session(redis, metadata={NASTY: NASTY}) as session,
        Lock(session, name),
        FairLock(session, NASTY),
    ):
        commands = [("ls",), ("show", name), ("release", name), ("ls", name + "x")]
        if not terminal:
            commands.append(("top",))
        for ended in await several(aiolocks, *commands, terminal=terminal, environment=environment):
            plain = (ended.out + ended.err).replace("\x1b[1m", "").replace("\x1b[0m", "")  # the header's
            assert not set("\x1b\u202e\x9b") & set(plain)
            assert shown in plain or terminal  # where it may be folded


async def test_a_name_is_not_cut_in_a_pipe(aiolocks: Aiolocks, redis: Redis) -> None:
    name = "x" * 1000
    async with Lock(redis, name), FairLock(redis, "y"):
        header, first, second = (await alone(aiolocks, "ls")).out.splitlines()
        assert first.startswith(f"{name}  lock ")
        assert header.endswith("WAITERS")
        assert second.endswith("0")
        assert max(len(header), len(second)) < 150  # and does not move the other lines


async def test_another_prefix(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Session(redis, prefix="aiolocks-shop") as session, Lock(session, "mine"):
        there, here, nowhere = await several(
            aiolocks, ("ls", "--prefix", "aiolocks-shop"), ("ls",), ("ls", "--prefix", "{a}")
        )
    assert "mine" in there.out
    assert "nothing is held" in here.err
    assert "1 name under the prefix aiolocks-shop" in here.err
    assert nowhere.status == 2
    assert "prefix must not have braces" in nowhere.err


async def test_a_name_that_stands_in_two_forms_is_told(aiolocks: Aiolocks, redis: Redis) -> None:
    payer, template = "ann@shop.example", "account:{payer}"
    by_hand = Lock(redis, f"account:{payer}")
    async with by_hand, Lock(redis, template).of(payer=payer), FairLock(redis, f"account:{payer}"):
        table, document = await several(aiolocks, ("ls",), ("ls", "--json"))
    assert table.err == (
        "aiolocks: lock 'account:ann@shop.example' and 'account:ann%40shop.example': two names that do not "
        "exclude each other; make both with name_of()\n"
    )
    assert (table.status, document.status, document.err) == (0, 0, "")
    async with by_hand, Lock(redis, "100%"), Lock(redis, "account:%zz"):
        (alone,) = await several(aiolocks, ("ls",))
    assert alone.err == ""


@pytest.mark.leaves_keys("aiolocks*", "shop*", "cron*", "else:*")
async def test_names_under_other_prefixes_are_not_hidden(aiolocks: Aiolocks, redis: Redis) -> None:
    await redis.set("else:what:{text}", "x", px=60_000)
    async with (
        Session(redis, prefix="shop:1") as shop,
        Session(redis, prefix="cron") as cron,
        Lock(shop, "order"),
        FairLock(shop, "{order}:17"),
        Lock(cron, "job"),
    ):
        nothing, listed, document = await several(
            aiolocks, ("ls",), ("prefixes",), ("prefixes", "--json"), environment={"AIOLOCKS_PREFIX": ""}
        )
        async with Lock(redis, "here"):
            some, one, named, as_document = await several(
                aiolocks, ("ls",), ("ls", "here"), ("ls", "--prefix", "aiolocks"), ("ls", "--json")
            )
    hint = "aiolocks: 3 names under the prefixes cron, shop:1: see them with --prefix\n"
    assert nothing.err == f"aiolocks: nothing is held or waited for: '*' under the prefix 'aiolocks'\n{hint}"
    assert (nothing.status, nothing.out) == (0, "")
    assert (listed.status, listed.err) == (0, "")
    assert [line.split() for line in listed.out.splitlines()] == [
        ["PREFIX", "NAMES"], ["cron", "1"], ["shop:1", "2"],
    ]  # fmt: skip
    assert json.loads(document.out) == {
        "prefixes": [{"prefix": "cron", "names": 1}, {"prefix": "shop:1", "names": 2}]
    }
    assert some.err == hint
    for ended in (some, one, named):
        assert ended.out.splitlines()[1].startswith("here ")
    assert (one.err, named.err, as_document.err) == ("", "", "")


async def test_no_prefix_is_in_use(aiolocks: Aiolocks) -> None:
    said, document = await several(aiolocks, ("prefixes",), ("prefixes", "--json"))
    assert (said.status, said.out) == (0, "")
    assert said.err == "aiolocks: nothing is held or waited for under any prefix\n"
    assert json.loads(document.out) == {"prefixes": []}


async def test_every_command_takes_the_prefix_of_the_environment(aiolocks: Aiolocks, redis: Redis) -> None:
    async with Session(redis, prefix="aiolocks-shop") as session, Lock(session, "mine", on_lost="ignore"):
        listed, shown, run, watched, other, released = await several(
            aiolocks,
            ("ls",),
            ("show", "mine"),
            ("run", "mine", "--wait", "0", "--", "true"),
            ("top",),
            ("ls", "--prefix", "aiolocks"),
            ("release", "mine", "--force"),
            environment={"AIOLOCKS_PREFIX": "aiolocks-shop"},
        )
    for ended in (listed, shown, watched, released):
        assert (ended.status, ended.err) == (0, "")
        assert "mine" in ended.out
    assert run.status == 75
    assert "nothing is held" in other.err


async def test_a_reader_that_goes_away(aiolocks: Aiolocks, redis: Redis, server: Server) -> None:
    async with Lock(redis, "name"):
        ended = await (
            await aiolocks(program=("sh", "-c", '"$0" -m aiolocks ls | true', sys.executable), url=server.url)
        ).end()
    assert (ended.status, ended.err) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [
        "ls",
        *(pytest.param(words, marks=pytest.mark.more) for words in ("ls --json", "show name")),
        "release name --force",
    ],
)
async def test_that_nobody_reads_it_does_not_say_that_nobody_holds_it(
    aiolocks: Aiolocks, redis: Redis, server: Server, arguments: str
) -> None:
    script = f'{{ "$0" -m aiolocks {arguments}; echo "$?" >&2; }} | true'
    async with Lock(redis, "name", on_lost="ignore"):
        ended = await (await aiolocks(program=("sh", "-c", script, sys.executable), url=server.url)).end()
    assert ended.err == "141\n"


@pytest.mark.parametrize("arguments", [("ls",), ("show", "name"), ("release", "name", "--force")])
async def test_ctrl_c_does_not_say_that_nobody_holds_it(
    aiolocks: Aiolocks, arguments: tuple[str, ...]
) -> None:
    connected = asyncio.Event()

    async def answer_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(answer_nothing, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        invocation = await aiolocks(*arguments, url=f"redis://127.0.0.1:{port}")
        await asyncio.wait_for(connected.wait(), 30)
        invocation.send(signal.SIGINT)
        ended = await invocation.end()
    assert (ended.status, ended.out, ended.err) == (130, "", "")


async def test_one_with_metadata_that_is_no_json_keeps_nobody_else_from_the_document(
    aiolocks: Aiolocks, redis: Redis
) -> None:
    async with Lock(redis, "ours"):
        (key,) = [key async for key in redis.scan_iter("*lock:{ours}")]
        theirs = key.replace(b"ours", b"theirs")
        await redis.set(theirs, f'{"a1" * 16}:123:{{"user":{{"cost":1e999}}}}', px=60_000)
        ended = await alone(aiolocks, "ls", "--json")
        await redis.delete(theirs)
    assert (ended.status, ended.err) == (0, "")
    problems = {lock["name"]: lock["problem"] for lock in json.loads(ended.out)["locks"]}
    assert problems == {"ours": None, "theirs": "its metadata cannot be read"}


# -- no server, or none that lets us


def refused(ended: Ended, *said: str) -> None:
    """In one line."""
    assert (ended.status, ended.out) == (69, "")
    assert ended.err.startswith("aiolocks: ")
    assert ended.err.count("\n") == 1
    assert "sEcReT" not in ended.err
    for words in said:
        assert words in ended.err


async def test_no_server(aiolocks: Aiolocks) -> None:
    for ended in await several(aiolocks, *COMMANDS, url="redis://127.0.0.1:1"):
        refused(ended, "cannot use the server at 127.0.0.1:1: Connection refused")


async def test_a_wrong_password_and_a_denial(aiolocks: Aiolocks, own_server: OwnServer) -> None:
    server = await own_server(port=0, arguments=("--requirepass", "right"))
    for ended in await several(aiolocks, *COMMANDS, url=f"redis://:sEcReT@127.0.0.1:{server.port}"):
        refused(ended, "invalid username-password pair")
    for ended in await several(aiolocks, *COMMANDS, url=f"redis://127.0.0.1:{server.port}"):
        refused(ended, "Authentication required")

    async with server.client(password="right") as admin:
        await admin.execute_command("ACL", "SETUSER", "poor", "on", ">sEcReT", "~*", "&*", "-@all", "+ping")
    for ended in await several(aiolocks, *COMMANDS, url=f"redis://poor:sEcReT@127.0.0.1:{server.port}"):
        refused(ended, "this user may not do it", "the user needs +scan +type")


async def test_a_cluster(aiolocks: Aiolocks, own_server: OwnServer) -> None:
    server = await own_server(port=node_port(), arguments=CLUSTER)
    run = ("run", "job", "--", "true")
    for ended in await several(aiolocks, *COMMANDS, run, url=f"redis://127.0.0.1:{server.port}"):
        refused(ended, "is a node of a cluster", "write redis+cluster:// for redis:// in its URL")


@pytest.mark.parametrize("width", [24, 40, 50, 60, 72, 80])
def test_on_a_narrow_screen_the_names_stay(width: int) -> None:
    holder = HolderInfo(lease_id="4be11dec27b6", host="worker-3", pid=4711, held_for=3.2, remaining=29.4)
    infos = [LockInfo(kind=kind, name="order:17", holders=(holder,)) for kind in ("lock", "singleflight")]
    with io.StringIO() as shown:
        console = Console(file=shown, width=width, height=10)
        console.print(cut_table(infos, "utf-8", width=width, most=5))
        lines = shown.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "order:17", "order:17"]
    assert max(map(len, lines)) <= width
    assert [line.split()[-1] for line in lines] == ["WAITERS", "0", "0"]
