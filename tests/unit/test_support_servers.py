"""The suite runs on the servers that were asked for."""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from typing import Self

import pytest
from redis import Redis as BlockingRedis
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks import Lock
from aiolocks.testing import EmbeddedServer
from tests.support.servers import DEFAULT_IMAGE, RemoteServer, SelectionError, ServerKind, found, selected


@pytest.fixture
def three_found(monkeypatch) -> list[ServerKind]:
    kinds = [ServerKind(name) for name in ("valkey-9.1", "redis-7.0", "redis-6.2")]
    monkeypatch.setattr("tests.support.servers.found", lambda: kinds)
    return kinds


def names(**environment: str) -> list[str]:
    return [kind.name for kind in selected(environment)]


def test_by_default_there_is_one() -> None:
    (kind,) = selected({})

    assert kind.executable is not None
    assert kind == found()[0]
    assert not kind.is_foreign


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("all", ["valkey-9.1", "redis-7.0", "redis-6.2"]),
        ("redis", ["redis-7.0", "redis-6.2"]),
        ("redis-6.2,valkey", ["redis-6.2", "valkey-9.1"]),
        ("redis-7,all", ["redis-7.0", "valkey-9.1", "redis-6.2"]),
        ("redis-6,container", ["redis-6.2", "container"]),
    ],
)
def test_servers_are_selected_by_the_beginning_of_their_names(three_found, selection, expected) -> None:
    assert names(AIOLOCKS_TEST_SERVERS=selection) == expected


def test_a_server_that_is_not_there_is_no_reason_to_run_on_none(three_found) -> None:
    with pytest.raises(SelectionError, match=r"'redis-5'.*valkey-9\.1, redis-7\.0, redis-6\.2"):
        selected({"AIOLOCKS_TEST_SERVERS": "redis-5"})


def test_a_container_may_be_of_any_image() -> None:
    assert selected({"AIOLOCKS_TEST_SERVERS": "container"})[0].image == DEFAULT_IMAGE
    assert selected({"AIOLOCKS_TEST_SERVERS": "container:valkey/valkey:8"})[0].image == "valkey/valkey:8"


def test_a_container_is_waited_for_and_removed(monkeypatch) -> None:
    """With a stand-in for Docker: a server that starts only after its container has."""

    class DockerContainer:
        def __init__(self, image: str) -> None:
            assert image == "valkey/valkey:8"
            self.server = EmbeddedServer(port=0, password=False)

        def with_exposed_ports(self, port: int) -> Self:
            assert port == 6379
            return self

        def get_container_host_ip(self) -> str:
            return "127.0.0.1"

        def get_exposed_port(self, port: int) -> str:
            self.server.kill()
            self.restart = threading.Timer(0.05, self.server.__enter__)
            self.restart.start()
            return str(self.server.port)

        def __enter__(self) -> Self:
            self.server.__enter__()
            return self

        def __exit__(self, *_: object) -> None:
            self.restart.join()
            self.server.close()

    module = types.ModuleType("testcontainers.core.container")
    module.DockerContainer = DockerContainer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "testcontainers", types.ModuleType("testcontainers"))
    monkeypatch.setitem(sys.modules, "testcontainers.core", types.ModuleType("testcontainers.core"))
    monkeypatch.setitem(sys.modules, "testcontainers.core.container", module)
    (kind,) = selected({"AIOLOCKS_TEST_SERVERS": "container:valkey/valkey:8"})

    with kind.run() as server, BlockingRedis.from_url(server.url, retry=None) as client:
        assert client.ping()
    with pytest.raises(RedisConnectionError), BlockingRedis.from_url(server.url, retry=None) as client:
        client.ping()


def test_a_url_is_all_there_is() -> None:
    (kind,) = selected({"AIOLOCKS_TEST_REDIS_URL": "redis://r.example", "AIOLOCKS_TEST_SERVERS": "all"})

    assert kind == ServerKind("url", url="redis://r.example")
    assert kind.is_foreign


async def test_the_server_is_the_one_that_its_name_says(server_kind, redis) -> None:
    if server_kind.executable is None:
        pytest.skip(f"{server_kind} is named after where it came from")
    info = await redis.info("server")

    version = info.get("valkey_version", info["redis_version"])
    assert server_kind.name == f"{info.get('server_name', 'redis')}-{'.'.join(version.split('.')[:2])}"


@pytest.mark.leaves_keys("*:left behind")
@pytest.mark.parametrize("run", [1, 2])
async def test_each_test_finds_the_server_empty(redis, prefix, keys, run) -> None:
    assert keys() == []
    await redis.set(f"{prefix}:left behind", run)


async def test_a_remote_server_is_found_by_its_url(server) -> None:
    async with RemoteServer(server.url).client(decode_responses=True) as client:
        assert await client.echo("text") == "text"


@pytest.mark.leaves_keys
async def test_a_server_of_ones_own_is_the_tests_alone(own_server, redis, keys) -> None:
    own = await own_server(port=0, arguments=("--maxmemory", "30mb"))
    async with own.client() as client:
        await client.set("key", "value", ex=9)

        assert await client.config_get("maxmemory") == {"maxmemory": str(30 << 20)}
        assert (keys(own), keys()) == (["key"], [])


async def test_a_server_of_ones_own_may_want_a_password(own_server) -> None:
    own = await own_server(arguments=("--requirepass", "secret"))

    async with own.client(password="secret") as client:
        assert await client.ping()


async def test_a_server_of_ones_own_can_be_killed_and_paused(own_server) -> None:
    own = await own_server()
    client = own.client()
    own.pause()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.ping(), 0.05)
    own.resume()
    assert await client.ping()
    own.kill()
    with pytest.raises(RedisConnectionError):
        await client.ping()


async def test_a_session_is_ready_to_use(session, keys) -> None:
    async with Lock(session, "n"):
        assert len(keys()) == 1


async def test_what_locks_on_a_bare_client_opened_is_closed_with_it(connect, keys) -> None:
    """By the look around: a default session that stayed open would be a connection left behind."""
    async with Lock(connect(), "n"):
        assert len(keys()) == 1


@pytest.mark.parametrize("protocol", [2, 3])
async def test_clients_are_made_as_they_are_asked_for(connect, protocol) -> None:
    client = connect(protocol=protocol, decode_responses=True)

    reply = await client.execute_command("HELLO")  # a map in RESP3; in RESP2 names and values by turns
    properties = reply if protocol == 3 else dict(zip(reply[::2], reply[1::2], strict=True))
    assert properties["proto"] == protocol


async def test_the_suite_says_what_it_was_asked_for_in_vain(pytester, pytestconfig, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath))
    monkeypatch.setenv("AIOLOCKS_TEST_SERVERS", "redis-2")
    monkeypatch.delenv("AIOLOCKS_TEST_REDIS_URL", raising=False)

    result = pytester.runpytest_subprocess("-p", "tests.conftest")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: AIOLOCKS_TEST_SERVERS: no server 'redis-2' among those found: *"])


def test_on_a_server_of_the_users_nothing_is_flushed_and_nothing_killed(
    pytester, pytestconfig, monkeypatch
) -> None:
    pytester.makepyfile(
        """
        async def test_uses_it(redis, prefix, keys):
            await redis.set(f"{prefix}:lock:{{n}}", 1, px=9000)
            assert keys() == [f"{prefix}:lock:{{n}}"]
            await redis.delete(f"{prefix}:lock:{{n}}")

        async def test_leaves_a_key(redis, prefix):
            await redis.set(f"{prefix}:lock:{{left}}", 1, px=9000)

        async def test_would_kill_it(own_server):
            raise AssertionError("never run")

        async def test_would_move_its_clock(skewed_server):
            raise AssertionError("never run")
        """
    )
    monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath))
    with selected({})[0].run() as server:
        monkeypatch.setenv("AIOLOCKS_TEST_REDIS_URL", server.url)

        async def on_it(verb: str, *arguments: str) -> object:
            async with server.client(decode_responses=True) as client:
                return await client.execute_command(verb, *arguments)

        asyncio.run(on_it("SET", "users", "own"))
        result = pytester.runpytest_subprocess("-p", "tests.conftest", "-o", "asyncio_mode=auto", "-rs")

        assert result.parseoutcomes() == {"passed": 2, "skipped": 2, "errors": 1}
        result.stdout.fnmatch_lines(
            ["*key 'aiolocks-test-*:lock:{left}', for * ms more", "SKIPPED*not with url: *"]
        )
        assert asyncio.run(on_it("KEYS", "*")) == ["users"]
