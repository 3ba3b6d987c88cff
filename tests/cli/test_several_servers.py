"""The commands on a cluster, through Sentinel, and over TLS."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme

from aiolocks import FairLock, Lock, Schedule, Session
from aiolocks.transport.targets import Kind, target_of
from tests.adversity.test_clients import tls_front
from tests.cli.conftest import Aiolocks
from tests.cli.several import alone, several
from tests.conftest import OwnServer, Surroundings, clustered
from tests.support.clusters import Cluster
from tests.support.sentinels import SERVICE, Watched

NAMES = [f"name {number}" for number in range(8)]


@pytest.fixture
def cluster(surroundings: Surroundings, shared_cluster: Cluster) -> Cluster:
    shared_cluster.begin(surroundings)
    return shared_cluster


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    async with Watched(tmp_path) as watched:
        yield watched


# -- what a URL names


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://host", "the server at host:6379"),
        ("redis://", "the server at localhost:6379"),
        ("valkeys://u:p@host:7/3?ssl_ca_certs=/ca", "the server at host:7"),
        ("unix:///run/redis.sock?db=3", "the server at /run/redis.sock"),
        ("redis+cluster://u:p@a,b:7001,[::1]:7002", "the cluster at a:6379, b:7001, ::1:7002"),
        ("rediss+sentinel://:p@a,b:7/locks/2", "the master 'locks' of Sentinel at a:26379, b:7"),
    ],
)
def test_urls(url: str, said: str) -> None:
    target = target_of(url)
    assert str(target) == said
    assert ":p@" not in repr(target)


def test_options_of_a_url() -> None:
    target = target_of(
        "rediss+sentinel://u:p%40@a/locks/2?ssl_ca_certs=/ca&sentinel_password=s&client_name=c"
    )
    assert target.kind is Kind.SENTINEL
    assert target.options == {
        "username": "u", "password": "p@", "db": 2, "ssl": True, "ssl_ca_certs": "/ca", "client_name": "c",
    }  # fmt: skip
    assert target.sentinel_options == {"password": "s", "ssl": True, "ssl_ca_certs": "/ca"}
    assert target_of("redis://u@h/3").user == "u"


@pytest.mark.parametrize(
    "url",
    [
        "redis://a,b",
        "redis+sentinel://a",
        "redis+sentinel:///locks",
        "redis+cluster://a/1",
        "redis+proxy://a",
        "redis+cluster://a:x",
        "http://a",
    ],
)
def test_no_urls(url: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - its text is not for users
        target_of(url)


# -- on a cluster


def url_of(cluster: Cluster) -> str:
    nodes = ",".join(f"127.0.0.1:{node.port}" for node in cluster.masters)
    return f"redis+cluster://{nodes}"


async def test_on_a_cluster(aiolocks: Aiolocks, cluster: Cluster, surroundings: Surroundings) -> None:
    async with Session(clustered(surroundings, cluster)) as session:
        leases = [await Lock(session, name, on_lost="ignore").acquire() for name in NAMES]
        plain, listed, shown, ran, freed, prefixes, no_deadlock, top = await several(
            aiolocks,
            ("ls", "--redis", f"redis://127.0.0.1:{cluster.masters[0].port}"),
            ("ls", "--json"),
            ("show", NAMES[3]),
            ("run", "job", "--", "true"),
            ("release", NAMES[0], "--force"),
            ("prefixes",),
            ("deadlocks",),
            ("top",),
            url=url_of(cluster),
        )
        assert plain.status == 69
        assert "is a node of a cluster: write redis+cluster://" in plain.err
        assert [lock["name"] for lock in json.loads(listed.out)["locks"]] == NAMES
        assert (shown.status, ran.status, freed.status, no_deadlock.status) == (0, 0, 0, 0)
        assert "freed lock 'name 0'" in freed.out
        assert "aiolocks" in prefixes.out
        assert len(top.out.splitlines()) == len(NAMES)
        assert not await leases[0].owned()
        for lease in leases[1:]:
            await lease.release()


@pytest.mark.leaves_keys("*:schedule.register:*", "*:schedule.history:*")
async def test_schedules_on_a_cluster(
    aiolocks: Aiolocks, cluster: Cluster, surroundings: Surroundings
) -> None:
    async with Session(clustered(surroundings, cluster)) as session, AsyncExitStack() as stack:
        for name in NAMES[:3]:
            hourly = Schedule(session, name, every=3600)

            @hourly
            async def job(tick: object) -> None: ...

            await stack.enter_async_context(hourly)
            await hourly.trigger()
        *told, never = await several(
            aiolocks, *(("schedule", name) for name in NAMES[:3]), ("schedule", "?"), url=url_of(cluster)
        )
    assert [one.status for one in (*told, never)] == [0, 0, 0, 1]
    assert all("': next tick " in one.out and "  done  " in one.out for one in told)
    assert never.err.endswith(f"; there are {', '.join(sorted(NAMES[:3]))}\n")


async def test_top_on_a_cluster(aiolocks: Aiolocks, cluster: Cluster, surroundings: Surroundings) -> None:
    async with (
        Session(clustered(surroundings, cluster)) as session,
        Lock(session, "one"),
        FairLock(session, "two"),
    ):
        invocation = await aiolocks("top", "--interval", "0.1", url=url_of(cluster), terminal=True)
        await invocation.says("2 locks, 2 holders, 0 waiting")
        await invocation.type("q")
        assert (await invocation.end()).status == 0


async def test_the_doctor_looks_at_each_node(aiolocks: Aiolocks, cluster: Cluster) -> None:
    cluster.masters[1].do("CONFIG", "SET", "maxmemory", "1gb")
    cluster.masters[1].do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        found, text = await several(aiolocks, ("doctor", "--json"), ("doctor",), url=url_of(cluster))
    finally:
        cluster.masters[1].do("CONFIG", "SET", "maxmemory", "0")
        cluster.masters[1].do("CONFIG", "SET", "maxmemory-policy", "noeviction")
    findings = json.loads(found.out)["findings"]
    amiss = [finding for finding in findings if finding["level"] in ("warning", "error")]
    assert [(one["check"], one["node"]) for one in amiss] == [
        ("eviction", f"127.0.0.1:{cluster.masters[1].port}")
    ]
    assert {finding["node"] for finding in findings} == {
        "",
        *(f"127.0.0.1:{node.port}" for node in cluster.masters),
    }
    checks = [finding["check"] for finding in findings]
    assert [checks.count(check) for check in ("cluster", "trial", "version", "keys", "tracking")] == [
        1,
        1,
        3,
        3,
        3,
    ]
    assert text.status == 1
    assert f"\n127.0.0.1:{cluster.masters[2].port}\n" in text.out


async def test_a_single_server_is_no_cluster(aiolocks: Aiolocks, own_server: OwnServer) -> None:
    server = await own_server(port=0)
    ended = await alone(aiolocks, "ls", url=f"redis+cluster://127.0.0.1:{server.port}")
    assert (ended.status, ended.out) == (69, "")
    assert "write redis:// in its URL" in ended.err


# -- through Sentinel


async def test_through_sentinel(aiolocks: Aiolocks, watched: Watched) -> None:
    port = watched.sentinel.port
    url = f"redis+sentinel://127.0.0.1:{port}/{SERVICE}"
    async with Session(watched.client()) as session:
        lease = await Lock(session, "a", on_lost="ignore").acquire()
        watching = await aiolocks("top", "--interval", "0.1", url=url, terminal=True)
        await watching.says("1 locks, 1 holders, 0 waiting")
        await watching.type("q")
        assert (await watching.end()).status == 0
        plain, unknown, listed, shown, ran, freed, found = await several(
            aiolocks,
            ("ls", "--redis", f"redis://127.0.0.1:{port}"),
            ("ls", "--redis", f"redis+sentinel://127.0.0.1:{port}/others"),
            ("ls",),
            ("show", "a"),
            ("run", "job", "--", "true"),
            ("release", "a", "--force"),
            ("doctor", "--json"),
            url=url,
        )
        assert not await lease.owned()
    assert "is a Sentinel: write redis+sentinel://" in plain.err
    assert (unknown.status, unknown.err.count("\n")) == (69, 1)
    assert listed.out.splitlines()[1].startswith("a ")
    assert (shown.status, ran.status, freed.status) == (0, 0, 0)
    findings = json.loads(found.out)["findings"]
    assert {finding["node"] for finding in findings} == {
        f"127.0.0.1:{at}" for at in (port, watched.master.port, watched.replica.port)
    }
    amiss = [finding["check"] for finding in findings if finding["level"] in ("warning", "error")]
    assert amiss == ["sentinel"]  # there is but one
    by_check = {finding["check"]: finding for finding in findings}
    assert (by_check["link"]["level"], by_check["trial"]["level"]) == ("ok", "ok")


# -- over TLS


async def test_tls_on_one_side_only(aiolocks: Aiolocks, own_server: OwnServer) -> None:
    server = await own_server(port=0)
    async with tls_front(server, trustme.CA(), "127.0.0.1") as port:
        plain, encrypted, cluster = await several(
            aiolocks,
            ("doctor", "--redis", f"redis://127.0.0.1:{port}"),
            ("ls", "--redis", f"rediss://127.0.0.1:{server.port}"),
            ("ls", "--redis", f"redis+cluster://127.0.0.1:{port}"),
            url="redis://127.0.0.1:1",
        )
    assert [found.status for found in (plain, encrypted, cluster)] == [69] * 3
    for found in (plain, cluster):
        assert f"TLS on one side only: 127.0.0.1:{port} speaks TLS, and this client does not; " in found.err
        assert "write rediss for redis in its URL" in found.err
    assert (
        f"127.0.0.1:{server.port} does not speak TLS, and this client does; write redis for" in encrypted.err
    )


async def test_over_tls(aiolocks: Aiolocks, own_server: OwnServer, tmp_path: Path) -> None:
    server, authority = await own_server(port=0), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    async with tls_front(server, authority, "127.0.0.1") as port:
        url = f"rediss://127.0.0.1:{port}"
        trusted = f"{url}?ssl_ca_certs={quote(str(tmp_path / 'ca.pem'))}"
        async with Session(server.client()) as session, Lock(session, "a"):
            strange, listed, found = await several(
                aiolocks, ("ls", "--redis", url), ("ls",), ("doctor", "--json"), url=trusted
            )
    assert strange.status == 69
    assert "TLS failed: unable to get local issuer certificate" in strange.err
    assert listed.out.splitlines()[1].startswith("a ")
    assert {finding["level"] for finding in json.loads(found.out)["findings"]} <= {"ok", "note"}
