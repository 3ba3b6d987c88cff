"""redis-py's lock and ours for threads: the same calls, and what only ours does."""

from __future__ import annotations

import asyncio
import functools
import gc
import socket
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis as redis_py
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import LockError, LockNotOwnedError
from redis.lock import Lock as RedisPyLock

from aiolocks import ConfigurationError
from aiolocks.contrib.redis_py import Lock, SyncLock, threads
from tests.adversity.test_redis_py_alike import SCRIPTS, Play
from tests.sync.conftest import wait_until
from tests.sync.test_functions import interrupted

pytestmark = pytest.mark.skipif(
    int(redis_py.__version__.split(".")[0]) < 6, reason="it is like the Lock of redis-py 6 and later"
)
LONG = 10.0


@pytest.fixture
def client(redis: Redis, url: str) -> Iterator[Redis]:
    with Redis.from_url(url) as client:
        yield client
    if (link := threads._links.get(client)) is not None:
        link.close()  # pytest still has the client, with which it would end
    wait_until(ended, LONG)


def ended() -> bool:
    """Whether the loop has ended, with the last client: the traceback of an error may have kept one."""
    gc.collect()
    return not [it for it in threading.enumerate() if it.name == "aiolocks-sync"]


class Face:
    """A lock of a thread, as the scripts of the asynchronous ones use it; all of its calls in one thread."""

    def __init__(self, lock: Any, pool: ThreadPoolExecutor) -> None:
        object.__setattr__(self, "_lock", lock)
        object.__setattr__(self, "_pool", pool)

    def __getattr__(self, name: str) -> Any:
        if name == "local":
            return Local(self._lock.local, self._pool)
        found = getattr(self._lock, name.replace("__a", "__", 1))
        return functools.partial(self._call, name, found) if callable(found) else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._lock, name, value)

    async def _call(self, name: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if name == "acquire" and args:
            args = (None, *args)  # `sleep` comes first there
        called = functools.partial(method, *args, **kwargs)
        result = await asyncio.get_running_loop().run_in_executor(self._pool, called)
        return self if result is self._lock else result

    async def __aenter__(self) -> Any:
        return await self._call("", self._lock.__enter__)

    async def __aexit__(self, *exc: object) -> Any:
        return await self._call("", self._lock.__exit__, *exc)


class Local:
    def __init__(self, local: Any, pool: ThreadPoolExecutor) -> None:
        object.__setattr__(self, "_local", local)
        object.__setattr__(self, "_pool", pool)

    @property
    def token(self) -> Any:
        return self._pool.submit(getattr, self._local, "token", None).result()

    def __setattr__(self, name: str, value: Any) -> None:
        self._pool.submit(setattr, self._local, name, value).result()


class PlayInAThread(Play):
    def __init__(self, lock_class: Any, client: Redis, admin: AsyncRedis, pool: ThreadPoolExecutor) -> None:
        super().__init__(lock_class, client, admin)  # type: ignore[arg-type]
        self.pool = pool

    def lock(self, name: Any = "a", **kwargs: Any) -> Any:
        make = functools.partial(self.client.lock, name, lock_class=self.lock_class, **kwargs)  # type: ignore[arg-type]
        lock = Face(self.pool.submit(make).result(), self.pool)
        self.locks.append(lock)
        return lock


NOT_ALIKE = {
    "a_key_of_another_type",  # ours keeps the token of a release that has failed, and can call it again
    "attributes",  # whether the client is that of the test, and of which class
    "a_token_that_travels",  # from a thread that has not seen it, redis-py raises AttributeError
}


@pytest.mark.thin
@pytest.mark.parametrize("script", sorted(SCRIPTS.keys() - NOT_ALIKE))
@pytest.mark.parametrize("decodes", [False, True])
def test_the_same_calls_have_the_same_results(url: str, client: Redis, script: str, decodes: bool) -> None:
    async def played(lock_class: Any) -> list[Any]:
        with ThreadPoolExecutor(1) as pool, Redis.from_url(url, decode_responses=decodes) as own:
            async with AsyncRedis.from_url(url) as admin:
                await admin.flushall()
                play = PlayInAThread(lock_class, own, admin, pool)
                await SCRIPTS[script](play)
                await admin.flushall()
                return ["itself" if isinstance(it, Face) else it for it in play.notes]

    theirs, ours = asyncio.run(played(RedisPyLock)), asyncio.run(played(SyncLock))
    assert ours == theirs


def test_it_excludes_the_locks_of_redis_py_and_of_coroutines(client: Redis, url: str) -> None:
    ours = client.lock("a", timeout=20, lock_class=SyncLock)
    theirs = client.lock("a", timeout=20, blocking=False)

    async def tries() -> bool:
        async with AsyncRedis.from_url(url) as other:
            lock = other.lock("a", timeout=20, blocking=False, lock_class=Lock)
            return await lock.acquire()

    assert isinstance(ours, RedisPyLock)
    with ours:
        assert not theirs.acquire()
        assert not asyncio.run(tries())
    with theirs:
        assert not ours.acquire(blocking=False)
        assert ours.locked()
        assert not ours.owned()


def test_each_thread_has_its_own_token(client: Redis) -> None:
    lock = client.lock("a", timeout=20, blocking=False, lock_class=SyncLock)
    shared = client.lock("b", timeout=20, thread_local=False, lock_class=SyncLock)
    with ThreadPoolExecutor(1) as pool:
        assert lock.acquire()
        assert not pool.submit(lock.acquire).result(LONG)
        assert not pool.submit(lock.owned).result(LONG)
        with pytest.raises(LockError):
            pool.submit(lock.release).result(LONG)
        assert lock.owned()
        lock.release()
        assert shared.acquire()
        pool.submit(shared.release).result(LONG)
    assert not shared.locked()


@pytest.mark.parametrize("what", ["a wait", "a body"])
def test_an_interruption_leaves_no_key(client: Redis, what: str) -> None:
    lock = client.lock("a", lock_class=SyncLock)  # without a timeout: a key that stayed would stay for ever
    if what == "a wait":
        client.set("a", "another one's")
        with pytest.raises(KeyboardInterrupt), interrupted(lambda: True):
            lock.acquire()
        assert client.get("a") == b"another one's"
        client.delete("a")
        time.sleep(0.3)
    else:
        inside = threading.Event()
        with pytest.raises(KeyboardInterrupt), interrupted(inside.is_set), lock:
            inside.set()
            time.sleep(LONG)
    assert not client.exists("a")


def test_a_body_that_raises_is_not_masked(client: Redis) -> None:
    with pytest.raises(ValueError, match="no") as caught, client.lock("a", lock_class=SyncLock):
        client.delete("a")
        raise ValueError("no")
    assert any("was not released" in note for note in caught.value.__notes__)
    with pytest.raises(LockNotOwnedError), client.lock("a", lock_class=SyncLock):
        client.delete("a")


def test_renewed_and_woken(client: Redis) -> None:
    make = functools.partial(SyncLock, auto_renew=True, wakeups=True)
    first = client.lock("a", timeout=0.6, lock_class=make)  # type: ignore[arg-type]
    second = client.lock("a", timeout=5, sleep=30, blocking_timeout=LONG, lock_class=make)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as pool, first:
        time.sleep(1.5)
        assert first.owned()
        waiting = pool.submit(second.acquire)
        time.sleep(0.2)
        began = time.monotonic()
        first.release()
        assert waiting.result(LONG)
        assert time.monotonic() - began < 5
        pool.submit(second.release).result(LONG)
        first.acquire(blocking=False)


def test_in_a_fork_it_connects_anew(url: str, client: Redis) -> None:
    program = f"""
        import os
        from redis import Redis
        from aiolocks.contrib.redis_py import SyncLock
        client = Redis.from_url({url!r})
        with client.lock("a", timeout=20, lock_class=SyncLock):
            child = os.fork()
            if child == 0:
                lock = client.lock("b", timeout=20, lock_class=SyncLock)
                with lock:
                    got = not client.lock("a", timeout=20, blocking=False, lock_class=SyncLock).acquire()
                os._exit(0 if got else 1)
            _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status))
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("0\n", "")
    assert client.keys() == []


def test_its_connection_ends_with_the_client(client: Redis, url: str) -> None:
    other = Redis.from_url(url)
    with other.lock("a", timeout=20, lock_class=SyncLock), other.lock("b", timeout=20, lock_class=SyncLock):
        ours = len(client.client_list())
    gone = weakref.ref(other)
    other.close()
    del other
    gc.collect()
    assert gone() is None
    wait_until(lambda: len(client.client_list()) < ours)


def test_connections_of_all_sorts(running: Any, client: Redis) -> None:
    class Mine(redis_py.connection.Connection):
        """As of a program that does something with its connections."""

    own = Redis(connection_pool=redis_py.ConnectionPool(connection_class=Mine))
    with pytest.raises(ConfigurationError, match=r"connects in another way: .* source="):
        own.lock("a", lock_class=SyncLock)
    given = functools.partial(SyncLock, source=running.url)
    with own.lock("a", timeout=20, lock_class=given):  # type: ignore[arg-type]
        assert client.exists("a")
    own.close()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        away = Redis(port=nobody.getsockname()[1], socket_timeout=0.2)
        with pytest.raises(redis_py.exceptions.ConnectionError):
            away.lock("a", blocking_timeout=0.1, lock_class=SyncLock).acquire()
        away.close()


def test_in_a_coroutine_it_says_so(client: Redis) -> None:
    lock = client.lock("a", lock_class=SyncLock)

    async def acquires() -> None:
        lock.acquire()

    with pytest.raises(RuntimeError, match="would block the event loop"):
        asyncio.run(acquires())
