"""The pytest plugin: its fixtures serve every way of running async tests, and do nothing unless asked for."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.long  # each starts pytest once more

TESTS = """
    import pytest
    from redis import Redis

    from aiolocks import Lock

    {preamble}

    urls = set()

    {mark}
    @pytest.mark.parametrize("turn", range(2))
    async def test_each_test_has_an_empty_database(aiolocks_server, aiolocks_redis, turn):
        assert await aiolocks_redis.keys() == []
        async with Lock(aiolocks_redis, "name") as lease:
            lease.ensure_held()
        await aiolocks_redis.set("key", turn)
        urls.add(aiolocks_server.url)

    {mark}
    @pytest.mark.parametrize("act", ["kill", "pause"])
    async def test_a_server_may_be_left_dead_or_paused(aiolocks_server, aiolocks_redis, act):
        await aiolocks_redis.set("key", "value")
        getattr(aiolocks_server, act)()

    {mark}
    async def test_the_next_one_finds_it_running(aiolocks_server, aiolocks_redis):
        assert await aiolocks_redis.keys() == []
        urls.add(aiolocks_server.url)

    def test_there_was_one_server_and_no_connection_is_left(aiolocks_server):
        assert urls == {{aiolocks_server.url}}
        with Redis.from_url(aiolocks_server.url) as client:
            assert len(client.client_list()) == 1
"""

ANYIO_BACKEND = """
    @pytest.fixture
    def anyio_backend():
        return "asyncio"
"""


BY_ASYNCIO = ["-o", "asyncio_default_fixture_loop_scope=function"]  # unset, it makes pytest-asyncio warn


@pytest.mark.parametrize(
    ("options", "mark", "preamble"),
    [
        pytest.param(
            [*BY_ASYNCIO, "--asyncio-mode=strict"],
            "@pytest.mark.asyncio",
            "",
            id="asyncio-strict",
            marks=pytest.mark.more,
        ),
        pytest.param([*BY_ASYNCIO, "--asyncio-mode=auto"], "", "", id="asyncio-auto"),
        # Where pytest-asyncio cannot even be imported: see below.
        pytest.param(
            ["-p", "no:asyncio"],
            "@pytest.mark.anyio",
            ANYIO_BACKEND,
            id="anyio-alone",
            marks=pytest.mark.more,
        ),
        pytest.param(
            [*BY_ASYNCIO, "--asyncio-mode=strict"],
            "@pytest.mark.anyio",
            ANYIO_BACKEND,
            id="anyio-beside-asyncio",
            marks=pytest.mark.more,
        ),
    ],
)
def test_fixtures(pytester: pytest.Pytester, options: list[str], mark: str, preamble: str) -> None:
    pytester.makepyfile(TESTS.format(mark=mark, preamble=preamble.strip()))
    result = pytester.runpytest_subprocess("-W", "error", *options)
    result.assert_outcomes(passed=6)


def test_fixtures_where_pytest_asyncio_is_not_installed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        sitecustomize="""
        import sys

        class Missing:
            def find_spec(self, name, *_):
                if name.partition(".")[0] == "pytest_asyncio":
                    raise ModuleNotFoundError(name)

        sys.meta_path.insert(0, Missing())
    """
    )
    monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    path = pytester.makepyfile(TESTS.format(mark="@pytest.mark.anyio", preamble=ANYIO_BACKEND.strip()))
    pytester.runpytest_subprocess("-W", "error", "-p", "no:asyncio", path).assert_outcomes(passed=6)


@pytest.mark.whole
def test_named_on_the_command_line_it_serves_a_plain_test_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test(aiolocks_redis): assert aiolocks_redis.get_connection_kwargs()")
    plugin = ["-p", "no:aiolocks", "-p", "aiolocks.testing.plugin"]
    pytester.runpytest_subprocess("-W", "error", *plugin, *BY_ASYNCIO).assert_outcomes(passed=1)


@pytest.mark.whole
def test_they_are_listed_with_what_they_are_for(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--fixtures")
    result.stdout.fnmatch_lines(["aiolocks_server*", "*real server*", "aiolocks_redis*", "*client of*"])


SERVING = """
    import asyncio

    import pytest

    from aiolocks import BackendError, Lock, Session

    locks = Session.from_url("unix:///nowhere/server.sock", prefix="shop")

    @Lock(locks, "report", blocking_timeout=0)
    async def report():
        return [info.name for info in await locks.inspect()]

    @pytest.fixture(autouse=True)
    def private_server(aiolocks_serving, request):
        if "nowhere" not in request.node.name:
            aiolocks_serving(locks)

    async def keys(server):
        async with server.client() as client:
            found = await client.keys()
            await client.set("left", "behind")
            return found

    {mark}
    async def test_in_an_async_test(aiolocks_server):
        assert await keys(aiolocks_server) == []
        assert await report() == ["report"]  # and the session is left open

    def test_in_a_plain_test(aiolocks_server):
        async def main():
            assert await keys(aiolocks_server) == []
            async with locks:
                assert await report() == ["report"]
        asyncio.run(main())

    @pytest.mark.parametrize("act", ["kill", "pause"])
    def test_a_server_may_be_left_dead_or_paused(aiolocks_server, act):
        getattr(aiolocks_server, act)()

    {mark}
    async def test_the_next_one_finds_it_running(aiolocks_server):
        assert await keys(aiolocks_server) == []
        assert await report() == ["report"]

    {mark}
    async def test_nowhere_else():
        async with locks:
            with pytest.raises(BackendError):
                await report()
"""


def test_sessions_made_at_import_are_redirected(pytester: pytest.Pytester) -> None:
    """With a loop for each test, and with one for all."""
    of_all = '@pytest.mark.asyncio(loop_scope="session")'
    pytester.makepyfile(test_one_each=SERVING.format(mark=""), test_one_for_all=SERVING.format(mark=of_all))
    pytester.runpytest_subprocess("-W", "error", "--asyncio-mode=auto", *BY_ASYNCIO).assert_outcomes(
        passed=12
    )
