"""The end of an event loop, with work in flight: nothing stays held, and nothing is printed."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, Session, SessionClosedError
from aiolocks.lock.lease import Possession
from aiolocks.lock.waiter import Attempt
from tests.adversity.tools import warm
from tests.conftest import OwnServer
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.thinning import only
from tests.support.waiting import eventually

Through = Callable[[Server], Awaitable[Proxy]]

PREAMBLE = """
import asyncio, sys
import redis.asyncio
from redis.asyncio.connection import Connection, UnixDomainSocketConnection
from aiolocks import Lock, LockError, Session

class OwnConnection(Connection):
    async def _connect(self):
        await super()._connect()

def client(plain=False):
    client = redis.asyncio.Redis.from_url(sys.argv[1])
    if plain:
        client.connection_pool.connection_class = OwnConnection
    return client
"""


async def run(
    script: str,
    url: str,
    *options: str,
    arguments: Sequence[str] = (),
    while_running: Callable[[asyncio.subprocess.Process], Awaitable[None]] | None = None,
) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *options,
        "-c",
        PREAMBLE + textwrap.dedent(script),
        url,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        if while_running is not None:
            await while_running(process)
        out, err = await asyncio.wait_for(process.communicate(), 150)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    # The words of asyncio's debug mode about a busy machine are not looked for.
    said = [line for line in err.decode().splitlines(keepends=True) if not line.startswith("Executing <")]
    return process.returncode, out.decode(), "".join(said)


IN_FLIGHT = """
async def hold(redis, number):
    async with Lock(redis, f"held{number}"):
        await asyncio.sleep(60)

async def main():
    redis = client(plain=PLAIN)
    bodies = [asyncio.create_task(hold(redis, number)) for number in range(20)]
    while Session.of(redis).statistics().leases_held < 20:
        await asyncio.sleep(0.001)
    acquires = [asyncio.create_task(hold(redis, f"acquired{number}")) for number in range(20)]
    await asyncio.sleep(DELAY)  # somewhere between written and answered

asyncio.run(main())
"""


@pytest.mark.parametrize("plain", [False, True], ids=["multiplexed", "plain"])
async def test_t_c_5_loop_ends_with_20_acquires_and_20_bodies_in_flight(
    server: Server, proxy: Through, keys: Callable[..., list[str]], plain: bool
) -> None:
    link = await proxy(server)
    link.delay = 0.01
    for turn in range(3):
        delay = turn * 0.006
        status, _, err = await run(
            f"PLAIN, DELAY = {plain}, {delay}\n" + textwrap.dedent(IN_FLIGHT), link.url
        )
        assert (status, err) == (0, "")
        await eventually(lambda: not keys(), within=2)


@pytest.mark.soak
@pytest.mark.parametrize("plain", [False, True], ids=["multiplexed", "plain"])
async def test_t_c_5_fifty_times(
    server: Server, proxy: Through, keys: Callable[..., list[str]], plain: bool
) -> None:
    link = await proxy(server)
    link.delay = 0.01
    for turn in range(50):
        delay = (turn % 16) * 0.001
        status, _, err = await run(
            f"PLAIN, DELAY = {plain}, {delay}\n" + textwrap.dedent(IN_FLIGHT), link.url
        )
        assert (status, err) == (0, "")
        await eventually(lambda: not keys(), within=2)


async def test_loop_ends_while_the_connection_is_broken(
    server: Server, redis: Redis, proxy: Through, keys: Callable[..., list[str]]
) -> None:
    """The undo of an acquire needs a new connection, and there is no task left to make it."""
    await warm(redis)
    link = await proxy(server)
    lost = link.reset_after(b"undone")

    async def break_the_link(process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        await lost.wait()
        link.refuse = True
        await eventually(lambda: keys() == ["aiolocks:lock:{undone}"])
        process.stdin.write(b"end the loop\n")
        await asyncio.sleep(0.2)
        link.refuse = False

    status, _, err = await run(
        """
        async def main():
            task = asyncio.create_task(Lock(client(), "undone").acquire())
            print("asking", flush=True)
            await asyncio.to_thread(sys.stdin.readline)

        asyncio.run(main())
        """,
        link.url,
        while_running=break_the_link,
    )
    # But for the outage, which the log tells of.
    assert (status, [line for line in err.splitlines() if not line.startswith("Redis at ")]) == (0, [])
    await eventually(lambda: not keys(), within=2)


SILENT = """
async def main():
    redis = client()
    await redis.flushall()                            # of what the loop before has kept
    lock = Lock(redis, "a", ttl=0.3)
    async with lock:                                  # held and left
        pass
    lease = await lock.acquire()                      # taken, lost
    await redis.delete("aiolocks:lock:{a}")
    await lease.wait_lost()
    kept = await asyncio.create_task(Lock(redis, "b").acquire())  # taken, and never let go
    task = asyncio.create_task(Lock(redis, "b").acquire())
    await asyncio.sleep(0.01)
    task.cancel()                                     # cancelled while waiting
    lock.acquire().close()                            # never used, and said so
    still = asyncio.create_task(Lock(redis, "b").acquire())
    await asyncio.sleep(0.01)                         # still waiting when the loop ends
    global leases
    leases = [kept]
    await redis.aclose()                              # as the same script without aiolocks would have to do

import logging; logging.getLogger("aiolocks").setLevel(logging.ERROR)
asyncio.run(main())
"""


@pytest.mark.leaves_keys  # of the lease that is never let go
@pytest.mark.parametrize("loops", only([1, 2], 2))
async def test_dev_mode_is_silent(server: Server, loops: int) -> None:
    script = SILENT + "asyncio.run(main())\n" * (loops - 1)
    status, out, err = await run(script, server.url, "-X", "dev")
    kept = [line for line in err.splitlines() if "never released" in line]
    rest = [
        line
        for line in err.splitlines()
        if "never released" not in line and "tracemalloc" not in line.lower()
    ]
    assert (status, out) == (0, "")
    assert len(kept) <= loops
    assert [line for line in rest if line.strip() and not line.startswith("  ")] == []


async def test_one_client_over_two_loops(server: Server) -> None:
    status, _, err = await run(
        """
        shared = client()
        async def main():
            async with Lock(shared, "a"):
                assert Session.of(shared) is Session.of(shared)
                return Session.of(shared)

        first, second = asyncio.run(main()), asyncio.run(main())
        assert first is not second
        async def late():
            try:
                await Lock(first, "a").acquire()
            except RuntimeError as error:
                assert "another event loop" in str(error) or "closed" in str(error)
            else:
                raise AssertionError
        asyncio.run(late())
        """,
        server.url,
        "-X",
        "dev",
    )
    assert (status, err) == (0, "")


@pytest.mark.more  # as a client that is closed, `test_closed_clients.py`
async def test_a_collected_client_takes_its_connection_along(server: Server) -> None:
    status, _, err = await run(
        """
        import gc
        async def use():
            redis = client()
            async with Lock(redis, "a"):
                pass
            await redis.aclose()

        async def main():
            watcher = client()
            for _ in range(20):
                await use()
            gc.collect()
            await asyncio.sleep(0.1)
            assert len(await watcher.client_list()) <= 3, await watcher.client_list()
            await watcher.aclose()

        asyncio.run(main())
        """,
        server.url,
        "-X",
        "dev",
    )
    assert (status, err) == (0, "")


@pytest.mark.parametrize("plain", [False, True], ids=["multiplexed", "plain"])
async def test_a_session_whose_closing_was_given_up_leaves_no_connection(
    own_server: OwnServer, plain: bool
) -> None:
    """The loop ends while the session still waits for an answer that does not come."""
    server = await own_server(port=0)

    async def pause(process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert await process.stdout.readline() == b"connected\n"
        server.pause()
        process.stdin.write(b"go on\n")

    script = """
        async def main():
            redis = client(plain=PLAIN)
            session = Session(redis)
            await Lock(session, "a").locked()
            print("connected", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            asking = asyncio.create_task(Lock(session, "a").locked())
            await asyncio.sleep(0.01)
            try:
                async with asyncio.timeout(0.05):
                    await session.aclose()
            except TimeoutError:
                print("gave up")
            try:
                await asking
            except LockError as error:
                print(type(error).__name__)
            await redis.aclose()

        asyncio.run(main())
        """
    script = f"PLAIN = {plain}\n" + textwrap.dedent(script)
    status, out, err = await run(script, server.url, "-X", "dev", while_running=pause)
    server.resume()
    assert (status, out, err) == (0, "gave up\nSessionClosedError\n", "")


@pytest.mark.parametrize("call", ["acquire", "try_acquire"])
async def test_a_grant_that_comes_with_the_end_of_its_session_is_given_back(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The session ends between the server's answer and the next turn of the task that waits for it."""
    session = Session(redis)
    async with Lock(session, "connected"):
        pass
    kind: Any = Possession if call == "acquire" else Attempt
    engine, answered = session._engine, kind._answered

    def answered_at_the_end(acquisition: Any, answer: Any) -> None:
        engine._closing_task = asyncio.create_task(engine._close())
        answered(acquisition, answer)

    monkeypatch.setattr(kind, "_answered", answered_at_the_end)
    with pytest.raises(SessionClosedError):
        await getattr(Lock(session, "a"), call)()
    await session.aclose()

    async def is_free() -> bool:
        return not await redis.exists("aiolocks:lock:{a}")

    await eventually(is_free, within=2)
