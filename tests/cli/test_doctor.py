"""`aiolocks doctor`: each way in which a server was spoilt is named, with the line that fixes it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from aiolocks import Lock, Session
from aiolocks.cli.doctor import access, settings
from aiolocks.cli.doctor.command import _examine, examine
from aiolocks.cli.doctor.facts import Facts
from aiolocks.cli.doctor.findings import Finding, Level
from aiolocks.cli.exits import CommandError
from aiolocks.cli.server import connected
from aiolocks.testing import EmbeddedServer
from tests.cli.conftest import Aiolocks
from tests.cli.several import several
from tests.conftest import OwnServer
from tests.docs.markdown import read
from tests.support.links import CLOSED
from tests.support.processes import ROOT
from tests.support.proxy import SILENT, Proxy
from tests.support.servers import Server, ServerKind
from tests.support.skew import SkewedServer

COMPLETE = (
    "~aiolocks:* -@all +evalsha +eval +get +set +del +exists +pexpire +pttl +time +zadd +zcard +zrange "
    "+zrank +zrem +client|tracking +client|caching +select +client|info +client|kill +info"
)
GRANT = "ACL SETUSER locks"


@pytest.fixture(autouse=True)
def _real(server_kind: ServerKind) -> None:
    if server_kind.executable is None or server_kind.is_simulated:
        pytest.skip(f"not with {server_kind}: it needs settings to spoil")


async def found(
    server: EmbeddedServer, *, url: str | None = None, wakeup: str = "auto", prefix: str = "aiolocks"
) -> dict[str, Finding]:
    """The findings by the name of their check; none of them leaves a key."""
    async with server.client(protocol=2) as admin:
        before = set(await admin.keys())
    async with connected(url or server.url, ailing=True) as reached:
        findings = await examine(reached, prefix=prefix, wakeup=wakeup)
    assert len({finding.check for finding in findings}) == len(findings)
    assert all((finding.level is Level.OK) == (not finding.fix) for finding in findings)
    async with server.client(protocol=2) as admin:
        assert set(await admin.keys()) <= before
    return {finding.check: finding for finding in findings}


def amiss(findings: dict[str, Finding]) -> set[str]:
    return {check for check, finding in findings.items() if finding.level in (Level.WARNING, Level.ERROR)}


# -- spoilt by a setting


async def as_replica(admin: Redis) -> None:
    await admin.replicaof("127.0.0.1", 1)


async def without_memory(admin: Redis) -> None:
    await admin.config_set("maxmemory", 100_000)


async def after_a_failed_snapshot(admin: Redis) -> None:
    await admin.config_set("save", "1000 1000")
    directory = (await admin.config_get("dir"))["dir"]
    await asyncio.to_thread(Path(directory).rmdir)
    await admin.bgsave()
    async with asyncio.timeout(5):
        while (await admin.info("persistence"))["rdb_last_bgsave_status"] != "err":
            await asyncio.sleep(0.01)
    await asyncio.to_thread(Path(directory).mkdir)


def setting(name: str, value: object) -> Callable[[Redis], Awaitable[None]]:
    async def spoil(admin: Redis) -> None:
        await admin.config_set(name, value)  # type: ignore[arg-type]

    return spoil


@dataclass(frozen=True)
class Spoilt:
    """A way to spoil a server, and what is said of it.

    Attributes:
        others: Other checks that find the same.
    """

    check: str
    level: Level
    says: str
    fix: str
    spoil: Callable[[Redis], Awaitable[None]] | None = None
    arguments: Sequence[str] = ()
    wakeup: str = "auto"
    others: tuple[str, ...] = ()


SPOILT = {
    "evicts": Spoilt(
        "eviction",
        Level.WARNING,
        "maxmemory-policy is volatile-ttl: the server may throw held locks away when its memory is full",
        "CONFIG SET maxmemory-policy noeviction",
        arguments=("--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"),
    ),
    "full": Spoilt(
        "memory",
        Level.ERROR,
        "of 100 000 bytes (maxmemory) are in use: the server refuses to acquire any lock",
        "CONFIG SET maxmemory ",
        without_memory,
        others=("trial",),
    ),
    "a replica": Spoilt(
        "role",
        Level.ERROR,
        "the server is a replica, and locks need the master",
        "connect to the master: --redis redis://127.0.0.1:1",
        as_replica,
        others=("trial",),
    ),
    "too few replicas": Spoilt(
        "replicas",
        Level.ERROR,
        "0 of the 1 replicas of min-replicas-to-write are there: the server refuses writes",
        "CONFIG SET min-replicas-to-write 0",
        setting("min-replicas-to-write", 1),
        others=("trial",),
    ),
    "a failed snapshot": Spoilt(
        "persistence",
        Level.ERROR,
        "the last snapshot (BGSAVE) failed, and the server refuses writes until one succeeds",
        "CONFIG SET stop-writes-on-bgsave-error no",
        after_a_failed_snapshot,
        others=("trial",),
    ),
    "no RESP3": Spoilt(
        "resp3",
        Level.WARNING,
        "there is no RESP3, for the server refuses HELLO 3",
        "no rename-command HELLO",
        arguments=("--rename-command", "HELLO", ""),
        others=("trial",),
    ),
    "a command renamed": Spoilt(
        "commands",
        Level.ERROR,
        "the scripts of a Lock need zrank: unknown to the server",
        "remove rename-command ZRANK from its configuration",
        arguments=("--rename-command", "ZRANK", ""),
    ),
    "no notifications": Spoilt(
        "keyspace",
        Level.ERROR,
        "notify-keyspace-events is 'K' and lacks gx: wakeup='keyspace' cannot serve",
        "CONFIG SET notify-keyspace-events Kgx",
        setting("notify-keyspace-events", "K"),
        wakeup="keyspace",
        others=("trial",),
    ),
    "a small tracking table": Spoilt(
        "table",
        Level.WARNING,
        "the tracking table holds 0 keys of 10: when it is full, waiters are woken for nothing",
        "CONFIG SET tracking-table-max-keys 1000000",
        setting("tracking-table-max-keys", 10),
    ),
}


@pytest.mark.parametrize("way", SPOILT)
async def test_a_spoilt_server_is_named_with_what_mends_it(
    server_kind: ServerKind, tmp_path: Path, way: str
) -> None:
    spoilt = SPOILT[way]
    (tmp_path / "data").mkdir()
    arguments = ("--dir", str(tmp_path / "data"), *spoilt.arguments)
    # Not `own_server`, which clears the server first: some are spoilt from the start.
    async with EmbeddedServer(executable=server_kind.executable, arguments=arguments) as server:
        if spoilt.spoil is not None:
            async with server.client() as admin:
                await spoilt.spoil(admin)
        findings = await found(server, wakeup=spoilt.wakeup)
    finding = findings[spoilt.check]
    assert finding.level is spoilt.level
    assert spoilt.says in finding.says
    assert spoilt.fix in finding.fix
    assert amiss(findings) == {spoilt.check, *spoilt.others}


@pytest.mark.parametrize(
    ("hello", "says"),
    [
        (b"-ERR unsupported command\r\n", "the server refuses HELLO 3: unsupported command"),
        (CLOSED, "the server closes the connection on which HELLO 3 comes"),
        (SILENT, "the server does not answer HELLO 3 within 1 s"),
    ],
)
async def test_a_proxy_without_resp3_and_what_that_costs(
    own_server: OwnServer, proxy: Callable[[Server], Awaitable[Proxy]], hello: bytes, says: str
) -> None:
    server = await own_server()
    through = await proxy(server)
    through.hello = hello
    findings = await found(server, url=through.url)
    assert amiss(findings) == {"resp3", "trial"}
    assert says in findings["resp3"].says
    assert "a lock lies free for up to 64 ms after its release" in findings["resp3"].says
    assert "each process that waits sends 31 requests a second for each name" in findings["resp3"].says
    assert "notify-keyspace-events Kgx" in findings["trial"].fix


async def test_a_proxy_without_resp3_where_notifications_are_on(
    own_server: OwnServer, proxy: Callable[[Server], Awaitable[Proxy]]
) -> None:
    server = await own_server()
    through = await proxy(server)
    through.hello = CLOSED
    async with server.client() as admin:
        await admin.config_set("notify-keyspace-events", "Kgx")
    findings = await found(server, url=through.url)
    assert amiss(findings) == {"resp3"}
    assert "hears of free locks on a second connection" in findings["resp3"].says
    assert "the waiter was woken by keyspace" in findings["trial"].says


async def test_nearly_as_many_clients_as_there_may_be(own_server: OwnServer) -> None:
    server = await own_server(arguments=("--maxclients", "30"))
    async with AsyncExitStack() as stack:
        for _ in range(26):
            client = server.client(single_connection_client=True)
            stack.push_async_callback(client.aclose)
            await client.ping()  # type: ignore[misc]
        findings = await found(server)
    assert amiss(findings) == {"clients"}
    assert findings["clients"].fix == "CONFIG SET maxclients 60"


async def test_a_clock_that_is_ahead(skewed_server: SkewedServer) -> None:
    await skewed_server.advance(90)
    findings = await found(skewed_server.server)
    assert amiss(findings) == {"clock"}
    assert "the server's clock is 90.0 s ahead of that of this machine" in findings["clock"].says
    assert findings["clock"].fix.startswith("timedatectl set-ntp true")


async def test_a_server_that_a_script_blocks(own_server: OwnServer) -> None:
    server = await own_server(arguments=("--lua-time-limit", "1"))
    async with server.client() as blocked, server.client() as admin:
        script = asyncio.ensure_future(blocked.eval("while true do end", 0))  # type: ignore[arg-type]
        with pytest.raises(ResponseError, match=r"BUSY|busy"):
            while True:
                await admin.ping()  # type: ignore[misc]
        with pytest.raises(CommandError, match=r"refuses to be examined: .*SCRIPT KILL"):
            await _examine(server.url, "aiolocks", "auto")
        await admin.script_kill()
        with pytest.raises(ResponseError):
            await script


# -- spoilt by the ACL


@pytest.fixture
async def as_user(own_server: OwnServer) -> Any:
    """The findings for a user who may do this and nothing else."""
    server = await own_server()

    async def as_user(rules: str) -> dict[str, Finding]:
        async with server.client() as admin:
            await admin.execute_command("ACL", "SETUSER", "locks", "reset", "on", ">secret", *rules.split())
        return await found(server, url=f"unix://locks:secret@{server.path}")

    return as_user


async def test_a_user_who_may_do_all_that_is_documented_for_a_lock_is_fit_for_locks(as_user: Any) -> None:
    findings = await as_user(COMPLETE)
    notes = {check for check, finding in findings.items() if finding.level is Level.NOTE}
    assert (amiss(findings), notes) == (set(), {"persistence", "replicas", "settings", "kinds"})
    assert findings["kinds"].says.startswith(
        "the user cannot use ReentrantLock, MultiLock, FairLock, Semaphore"
    )
    assert findings["kinds"].fix.startswith(f"{GRANT} +hdel +hexists +hget ")
    assert findings["settings"].fix.endswith(f"{GRANT} +config|get")
    findings = await as_user(f"{COMPLETE} +@hash +@sortedset +@keyspace +@read +config|get")
    assert {finding.level for finding in findings.values()} == {Level.OK, Level.NOTE}
    assert findings["kinds"].level is Level.OK


@pytest.mark.parametrize(
    ("changed", "check", "says", "fix", "spoilt"),
    [
        ("eval", "scripts", "eval: denied to this user", f"{GRANT} +eval", {"scripts"}),
        ("evalsha", "scripts", "evalsha: denied to this user", f"{GRANT} +evalsha", {"scripts"}),
        ("zrank del", "commands", "del: denied to this user; zrank", f"{GRANT} +del +zrank", {"commands"}),
        (
            "~aiolocks:* ~shop:*",
            "keys",
            "aiolocks:lock:*, aiolocks:lock.fence:*",
            f"{GRANT} ~aiolocks:*",
            {"keys"},
        ),
        ("~aiolocks:* ~aiolocks:lock*", "keys", "deadlocks", f"{GRANT} ~aiolocks:waits:*", {"keys"}),
        ("client|tracking", "tracking", "client|tracking", f"{GRANT} +client|tracking", {"trial"}),
        ("client|caching", "tracking", "client|caching", f"{GRANT} +client|caching", {"trial"}),
        ("client|kill", "reconnecting", "client|kill: denied", f"{GRANT} +client|kill", set()),
        ("info", "info", "INFO is denied to this user", f"{GRANT} +info", set()),
    ],
)
async def test_a_spoilt_user(
    as_user: Any, changed: str, check: str, says: str, fix: str, spoilt: set[str]
) -> None:
    changes = [word if word.startswith("~") else f"+{word}" for word in changed.split()]
    before = COMPLETE.split()
    rules = [rule for rule in before if rule not in changes] + [
        rule for rule in changes if rule not in before
    ]
    findings = await as_user(" ".join(rules))
    assert says in findings[check].says
    assert fix in findings[check].fix
    assert amiss(findings) == spoilt


async def test_a_user_with_the_minimal_acl_gets_notes(own_server: OwnServer) -> None:
    server = await own_server()
    page = read(ROOT / "docs" / "how-to" / "use-in-production.md")
    (block,) = [block for block in page.blocks if block.title == "Minimal ACL"]
    async with server.client() as admin:
        for line in block.text.strip().splitlines():
            await admin.execute_command(*line.split())
    findings = await found(server, url=f"unix://locks:secret@{server.path}", prefix="shop")
    notes = {check for check, finding in findings.items() if finding.level is Level.NOTE}
    assert (amiss(findings), notes) == (set(), {"info", "settings", "kinds", "reconnecting", "tracking"})
    assert "woken by keyspace" in findings["trial"].says


@pytest.mark.leaves_keys("shop*", "team*")
async def test_a_prefix_that_begins_with_another_one_and_a_colon(own_server: OwnServer) -> None:
    server = await own_server()
    async with server.client() as redis:
        for prefix in ("shop:eu", "shop-us", "team"):
            async with Session(redis, prefix=prefix) as session, Lock(session, "x"):
                pass
    assert (await found(server, prefix="shop-us"))["prefixes"].level is Level.OK
    for prefix, says in {
        "shop": "a user who may use ~shop:* may use the locks of the prefix shop:eu",
        "team:a": "a user who may use ~team:* may use the locks of the prefix team:a",
    }.items():
        finding = (await found(server, prefix=prefix))["prefixes"]
        assert (finding.level, finding.says) == (Level.WARNING, says)
        assert finding.fix


@pytest.mark.leaves_keys("shop*")
async def test_a_name_that_stands_in_two_forms(own_server: OwnServer) -> None:
    server = await own_server()
    async with server.client() as redis, Session(redis, prefix="shop") as session:
        async with Lock(session, "account:ann@shop.example"):
            assert "names" not in await found(server, prefix="shop")
        async with Lock(session, "account:{payer}").of(payer="ann@shop.example"):
            pass
    finding = (await found(server, prefix="shop"))["names"]  # both were used lately
    assert finding.level is Level.WARNING
    assert finding.says == (
        "lock 'account:ann@shop.example' and 'account:ann%40shop.example': two names that do not exclude "
        "each other"
    )
    assert "name_of" in finding.fix


# -- what needs no server


@pytest.mark.parametrize(
    ("fields", "check", "level", "said"),
    [
        ({"redis_version": "6.0.16"}, "version", Level.ERROR, "Redis 6.0.16 is too old"),
        ({"redis_version": "6.2.0"}, "version", Level.OK, "Redis 6.2.0"),
        ({"redis_version": "7.2.4", "valkey_version": "8.0.1"}, "version", Level.OK, "Valkey 8.0.1"),
        ({"redis_version": "7.2.4", "redict_version": "7.3.6"}, "version", Level.OK, "Redict 7.3.6"),
        ({"loading": 1, "role": "master"}, "role", Level.ERROR, "loads its data"),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": 0}, "eviction", Level.OK, "no effect"),
        (
            {"maxmemory": 100, "used_memory": 95},
            "memory",
            Level.WARNING,
            "no lock can be acquired when all are",
        ),
        ({"aof_last_write_status": "err"}, "persistence", Level.ERROR, "append-only file"),
        ({"connected_slaves": 2}, "replicas", Level.OK, "2 are connected"),
    ],
)
def test_what_the_server_tells(fields: dict[str, Any], check: str, level: Level, said: str) -> None:
    (finding,) = (found for found in settings.about(Facts(info=fields)) if found.check == check)
    assert finding.level is level
    assert said in finding.says


def test_an_acl_is_no_remedy_for_a_command_that_the_server_does_not_know() -> None:
    unknown = ResponseError("unknown command 'CONFIG', with args beginning with: 'GET' ")
    findings = {finding.check: finding for finding in settings.about(Facts(refused={"config|get": unknown}))}
    finding = findings["settings"]
    assert finding.says == "CONFIG GET is unknown to the server, so some settings were not checked"
    assert finding.fix == "remove rename-command CONFIG from its configuration"


def test_how_often_the_append_only_file_is_written() -> None:
    facts = Facts(info={"aof_enabled": 1}, settings={"appendfsync": "everysec"})
    said = "loses the locks of the last second; where the disk is slow, the end of the process alone, too"
    assert any(said in finding.says for finding in settings.about(facts))
    facts = replace(facts, settings={"appendfsync": "always"})
    assert not any("appendfsync" in finding.says for finding in settings.about(facts))


def test_the_words_are_those_of_the_page() -> None:
    page = (ROOT / "docs/how-to/use-in-production.md").read_text()
    tables = page + (ROOT / "docs/reference/index.md").read_text()
    listed: dict[str, set[str]] = {}
    for kinds, words in re.findall(r"^\| (`[^|]*) \| `(\+.*)` \|$", tables, re.MULTILINE):
        for kind in re.findall("`([^`]+)`", kinds):
            listed[kind] = set(words.replace("+", "").split())
    assert {kind: set(words) for kind, words in access.others().items()}.items() <= listed.items()
    (line,) = re.findall(r"^ACL SETUSER locks on >secret (.*)$", page, re.MULTILINE)
    appended = re.findall(r"^- `(\+[^`]+)`: ", page, re.MULTILINE)
    complete = {*line.replace("shop", "aiolocks").split(), *" ".join(appended).split()}
    assert set(COMPLETE.split()) <= complete
    assert {f"+{word}" for word in access.LOCK} <= set(COMPLETE.split())


# -- the command


async def test_the_command(aiolocks: Aiolocks, own_server: OwnServer) -> None:
    server = await own_server(arguments=("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"))
    well, spoilt, document, wrong, nobody = await several(
        aiolocks,
        ("doctor", "--redis", "embedded:"),
        ("doctor", "--redis", server.url),
        ("doctor", "--redis", server.url, "--json", "--prefix", "p\x1b", "--wakeup", "poll"),
        ("doctor", "--prefix", "{a}"),
        ("doctor", "--redis", "unix:///no/such.sock"),
    )
    assert (well.status, well.err) == (0, "")
    assert re.search(r"^ok +trial +a lock was acquired, .* woken by tracking$", well.out, re.MULTILINE)
    assert (spoilt.status, spoilt.err) == (1, "")
    assert (
        "warning eviction        maxmemory-policy is allkeys-lru: the server may throw held locks away "
        "when its memory is full\n"
        "                        fix: CONFIG SET maxmemory-policy noeviction\n"
    ) in spoilt.out
    assert (document.status, document.err) == (1, "")
    read = json.loads(document.out)
    assert read["prefix"] == "p\x1b"
    assert [finding["check"] for finding in read["findings"] if finding["level"] == "warning"] == ["eviction"]
    assert (wrong.status, nobody.status) == (2, 69)
