"""Loops that are closed without `shutdown_asyncgens`: nothing stays open, and nothing is said."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.adversity.test_clients import tls_front
from tests.adversity.test_teardown import run
from tests.conftest import OwnServer
from tests.support.clusters import Cluster
from tests.support.sentinels import SERVICE, Watched
from tests.support.servers import Server

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="counts what is open in /proc"),
    pytest.mark.leaves_keys,
    pytest.mark.timeout(180),  # a process has all jobs
]

FEW = 16  # a leak leaves one file of each loop, or more
LOOPS = """
import gc, os, threading

def opened():
    return len(os.listdir("/proc/self/fd"))

async def in_peace(job):
    '''What redis-py says of a connection that is being made when its loop is closed is its own.'''
    await job()
    while any(task.get_name().startswith("aiolocks") for task in asyncio.all_tasks()):
        await asyncio.sleep(0.001)

def loops(job, number=NUMBER):
    most = before = opened()
    for _ in range(number):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(in_peace(job))
        loop.close()
        most = max(most, opened())
    assert most - before < FEW, f"{most - before} more than at the beginning"
"""

JOBS = {
    "a client of each loop": """
        async def job():
            async with client() as redis:
                async with Lock(redis, "a", ttl=5):
                    pass
        """,
    "one client": """
        redis = client()

        async def job():
            async with Lock(redis, "a", ttl=5):
                pass
            await redis.aclose()
        """,
    "one client that cannot be driven": """
        redis = client(plain=True)

        async def job():
            async with Lock(redis, "a", ttl=5):
                pass
            await redis.aclose()
        """,
    "a session that nobody closes": """
        kept = []

        async def job():
            async with client() as redis:
                kept.append(Session(redis))
                async with Lock(kept[-1], "a", ttl=5):
                    pass
        """,
    "a lease that nobody releases": """
        from itertools import count
        numbers = count()

        async def job():
            async with client() as redis:
                await Lock(redis, f"a{next(numbers)}").acquire()
        """,
    "a waiter when the loop ends": """
        async def job():
            async with client() as redis:
                lock = Lock(redis, f"a{id(redis)}", ttl=5)
                async with lock:
                    waiting = asyncio.create_task(lock.acquire())
                    await asyncio.sleep(0.01)
                    waiting.cancel()
                    await asyncio.wait((waiting,))
        """,
    "keyspace notifications": """
        from aiolocks import KeyspaceWakeup

        async def job():
            async with client() as redis:
                async with Lock(Session(redis, wakeup=KeyspaceWakeup(configure=True)), "a", ttl=5):
                    pass
        """,
    "poll": """
        async def job():
            async with client() as redis:
                async with Lock(Session(redis, wakeup="poll"), "a", ttl=5):
                    pass
        """,
    "redis-py's lock": """
        from aiolocks.contrib.redis_py import Lock as AsOfRedisPy

        async def job():
            async with client() as redis:
                async with redis.lock(f"a{id(redis)}", timeout=5, lock_class=AsOfRedisPy):
                    pass
        """,
    "valkey-py": """
        import valkey.asyncio

        async def job():
            async with valkey.asyncio.Valkey.from_url(sys.argv[1]) as redis:
                async with Lock(redis, "a", ttl=5):
                    pass
        """,
    "TLS": """
        import redis.asyncio

        async def job():
            async with redis.asyncio.Redis(
                port=int(sys.argv[3]), ssl=True, ssl_cert_reqs="none", ssl_check_hostname=False
            ) as client:
                async with Lock(client, "a", ttl=5):
                    pass
        """,
    "a long value": """
        from aiolocks import SingleFlight

        async def job():
            async with client() as redis:
                await SingleFlight(redis, ttl=5, keep=0.1).do("a", lambda: asyncio.sleep(0, "x" * 500_000))
        """,
}


async def none_stays_open(jobs: dict[str, str], url: str, *arguments: str, number: int = 20) -> None:
    """Of each of these jobs, in one process."""
    script = f"NUMBER, FEW = {number}, {FEW}\n{LOOPS}\n"
    # The collector comes late in a large program: files must be closed without it.
    script += textwrap.dedent(
        """
        import json, textwrap
        for name, text in json.loads(sys.argv[2]).items():
            there = dict(globals())
            exec(textwrap.dedent(text), there)
            gc.disable()
            try:
                loops(there["job"])
            except AssertionError as error:
                print(f"{name}: {error}", file=sys.stderr)
            gc.enable()
            del there
            gc.collect()
        """
    )
    status, _, err = await run(script, url, "-X", "dev", arguments=(json.dumps(jobs), *arguments))
    # Of a lease that nobody released. From Python 3.13 on, a line of the program stands below it.
    dropped = re.compile("^ |never released|dropped without a release")
    said = [line for line in err.splitlines() if not dropped.search(line)]
    assert (status, "\n".join(said)) == (0, "")


async def test_t_c_20_no_file_stays_open(own_server: OwnServer) -> None:
    server = await own_server(port=0)
    async with tls_front(server, trustme.CA(), "127.0.0.1") as port:
        await none_stays_open(JOBS, server.url, str(port))


@pytest.mark.more  # as the number of files that are open
async def test_t_c_20_more_loops_than_files_may_be_open(server: Server) -> None:
    status, _, err = await run(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

        async def job():
            async with client() as redis:
                async with Lock(redis, "a", ttl=5):
                    pass

        for _ in range(100):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(job())
            loop.close()
        """,
        server.url,
    )
    assert (status, err) == (0, "")


async def test_t_c_20_no_file_stays_open_after_the_last_loop(server: Server) -> None:
    """Nothing is made afterwards that could look after it: the session has gone, and that is enough."""
    status, _, err = await run(
        """
        import gc, os
        async def job():
            async with client() as redis:
                async with Lock(redis, "a", ttl=5):
                    pass

        before = os.listdir("/proc/self/fd")
        loop = asyncio.new_event_loop()
        loop.run_until_complete(job())
        loop.close()
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == len(before), (before, os.listdir("/proc/self/fd"))
        """,
        server.url,
        "-X",
        "dev",
    )
    assert (status, err) == (0, "")


@pytest.mark.more  # as with one loop after the other
async def test_t_c_20_no_file_stays_open_in_threads_with_a_loop_each(server: Server) -> None:
    status, _, err = await run(
        f"""
        NUMBER, FEW = 15, {FEW * 2}
        exec({LOOPS!r})
        redis = client()

        async def job():
            async with Lock(redis, f"a{{threading.get_ident()}}", ttl=5):
                pass

        threads = [threading.Thread(target=loops, args=(job,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        """,
        server.url,
        "-X",
        "dev",
    )
    assert (status, err) == (0, "")


@pytest.mark.more  # as with a single server
async def test_t_c_20_no_file_stays_open_in_a_cluster(cluster: Cluster) -> None:
    address = cluster.masters[0].server.url
    job = """
        from redis.asyncio import RedisCluster

        async def job():
            async with RedisCluster.from_url(sys.argv[1]) as redis:
                for name in "abc":
                    async with Lock(redis, name, ttl=5):
                        pass
        """
    await none_stays_open({"a cluster": job}, address)


@pytest.mark.more  # as with a single server
async def test_t_c_20_no_file_stays_open_behind_sentinel(tmp_path: Path, server_kind: Any) -> None:
    async with Watched(tmp_path) as watched:
        job = f"""
            from redis.asyncio.sentinel import Sentinel

            async def job():
                sentinel = Sentinel([("127.0.0.1", {watched.sentinel.port})])
                async with sentinel.master_for({SERVICE!r}) as redis:
                    async with Lock(redis, "a", ttl=5):
                        pass
                for one in sentinel.sentinels:
                    await one.aclose()
            """
        await none_stays_open({"behind sentinel": job}, watched.master.url)


@pytest.mark.more  # as with a single server
async def test_t_c_20_no_file_stays_open_of_independent_masters(own_server: OwnServer) -> None:
    servers = [await own_server(port=0) for _ in range(3)]
    job = f"""
        from aiolocks import Redlock

        async def job():
            masters = [redis.asyncio.Redis.from_url(url) for url in {[one.url for one in servers]}]
            async with Redlock(masters, "a", ttl=5):
                pass
            for one in masters:
                await one.aclose()
        """
    await none_stays_open({"independent masters": job}, servers[0].url)
