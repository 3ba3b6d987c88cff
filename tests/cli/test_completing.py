"""What a shell is told when it completes a command line, as bash asks for it."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, Semaphore, Session
from aiolocks.transport.steps.family import families
from tests.cli.several import called
from tests.support.servers import Server


def asked(url: str, line: str) -> dict[str, str]:
    """The variables by which bash asks."""
    return {
        "AIOLOCKS_REDIS_URL": url,
        "_AIOLOCKS_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }


def offered(out: str) -> list[str]:
    return [told.partition(",")[2] for told in out.split()]


async def completed(url: str, line: str) -> tuple[list[str], str]:
    """The words that it offers behind the line, and what it prints into the prompt beside them."""
    ended = await asyncio.to_thread(called, (), asked(url, line))
    return offered(ended.out), ended.err


async def test_a_shell_asks_a_process(server: Server) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from aiolocks.cli import main; main()"),
        env=os.environ | asked(server.url, "aiolocks release --kind se"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert (offered(out.decode()), err) == (["semaphore"], b"")


@pytest.mark.parametrize("command", ["run", "lead"])
async def test_a_command_that_takes_another_one(command: str, server: Server) -> None:
    assert await completed(server.url, f"aiolocks {command} --pre") == (["--prefix"], "")
    assert await completed(server.url, f"aiolocks {command} n") == ([], "")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("show --kind ", sorted(families())),
        ("release --kind se", ["semaphore"]),
        ("show ord", ["order-1", "order-2", "orders"]),
        ("release --kind semaphore ord", ["orders"]),
        ("ls --prefix other ord", []),
        ("run order-2", ["order-2"]),
    ],
)
async def test_kinds_and_names(redis: Redis, server: Server, line: str, words: list[str]) -> None:
    async with Session(redis) as session:
        async with Lock(session, "order-1"), Lock(session, "order-2"), Semaphore(session, "orders", 3):
            for _ in range(3):  # on a machine that is busy, a shell may be told of no name in time
                found = await completed(server.url, f"aiolocks {line}")
                if found[0]:
                    break
    assert found == (words, "")


async def test_a_server_that_is_away_is_silence() -> None:
    assert await completed("redis://127.0.0.1:1", "aiolocks show ord") == ([], "")
