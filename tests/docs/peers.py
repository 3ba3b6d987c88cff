"""What other locks do under the faults of this suite: `python -m tests.docs.peers` writes the table again.

It needs the group `bench`, and no test calls it: what the peers do is theirs. Each cell comes from a run, on
a server behind the proxy of the tests, on a cluster, or with a Sentinel.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, final
from urllib.parse import urlsplit

from redis import Redis as BlockingRedis
from redis import RedisCluster as BlockingCluster
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.sentinel import Sentinel
from redis.sentinel import Sentinel as BlockingSentinel

from aiolocks import Lock, Session
from aiolocks.testing import EmbeddedServer
from tests.support.clusters import Cluster
from tests.support.links import Request
from tests.support.proxy import Proxy
from tests.support.sentinels import SERVICE, Watched, until

PAGE = Path(__file__).parents[2] / "docs/explanation/comparison.md"
BEGIN, END = "<!-- faults -->\n", "<!-- /faults -->"
NAME = "{door}"
"""Of every lock: the hash tag puts all keys of a peer into one slot."""
TTL = 30
_LONG = 3.0
"""Seconds that a peer has for what takes milliseconds."""


class Place(NamedTuple):
    """Where a peer's client leads to: the URL of a server, or the port of a cluster's node or a Sentinel."""

    url: str = ""
    cluster: int = 0
    sentinel: int = 0


class Locked(Protocol):
    """A lock of a peer, under the name of all these runs."""

    async def acquire(self, *, wait: bool) -> bool: ...

    async def release(self) -> None: ...

    def held(self) -> AbstractAsyncContextManager[object]:
        """Acquires, and releases at the end, as the peer does it."""
        ...


Make = Callable[[int], Locked]
"""Makes a lock with a ttl in seconds."""


class Peer(NamedTuple):
    """A library: its distribution, and how its locks are made at a place."""

    package: str
    connect: Callable[[Place], AbstractAsyncContextManager[Make]]
    in_threads: bool = False


@final
class Theirs:
    """A lock of a peer in asyncio."""

    def __init__(self, lock: Any, acquire: Callable[[bool], Awaitable[bool]]) -> None:
        self._lock, self._acquire = lock, acquire

    async def acquire(self, *, wait: bool) -> bool:
        return bool(await self._acquire(wait))

    async def release(self) -> None:
        await self._lock.release()

    def held(self) -> Any:
        return self._lock


@final
class InThreads:
    """A lock of python-redis-lock. Each call runs in a thread: a task that is cancelled leaves it behind."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    async def acquire(self, *, wait: bool) -> bool:
        return bool(await asyncio.to_thread(self._lock.acquire, blocking=wait))

    async def release(self) -> None:
        await asyncio.to_thread(self._lock.release)

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        await self.acquire(wait=True)
        try:
            yield
        finally:
            await self.release()


@final
class Ours:
    """A lock of aiolocks, with the lease that it has given."""

    def __init__(self, lock: Lock) -> None:
        self._lock, self._lease = lock, None

    async def acquire(self, *, wait: bool) -> bool:
        lease: Any = await self._lock.acquire() if wait else await self._lock.try_acquire()
        if lease is not None:
            self._lease = lease
        return lease is not None

    async def release(self) -> None:
        assert self._lease is not None
        await self._lease.release()  # type: ignore[unreachable]

    def held(self) -> Any:
        return self._lock


def _address(place: Place) -> dict[str, Any]:
    """As the README of redis-py gives it: a client that is made with `from_url` sends nothing again."""
    parts = urlsplit(place.url)
    if parts.scheme == "unix":
        return {"unix_socket_path": parts.path}
    return {"host": parts.hostname, "port": parts.port}


@asynccontextmanager
async def _redis_py(place: Place) -> AsyncGenerator[Any]:
    """A client in asyncio."""
    async with AsyncExitStack() as stack:
        if place.cluster:
            yield await stack.enter_async_context(RedisCluster(host="127.0.0.1", port=place.cluster))
        elif place.sentinel:
            sentinel = Sentinel([("127.0.0.1", place.sentinel)])
            for asked in sentinel.sentinels:
                stack.push_async_callback(asked.aclose)
            yield await stack.enter_async_context(sentinel.master_for(SERVICE))
        else:
            yield await stack.enter_async_context(Redis(**_address(place)))


@asynccontextmanager
async def _of_redis_py(place: Place) -> AsyncGenerator[Make]:
    async with _redis_py(place) as client:

        def make(ttl: int) -> Locked:
            lock = client.lock(NAME, timeout=ttl)
            return Theirs(lock, lambda wait: lock.acquire(blocking=wait))

        yield make


@asynccontextmanager
async def _of_pottery(place: Place) -> AsyncGenerator[Make]:
    from pottery import AIORedlock  # type: ignore[import-not-found,unused-ignore]

    async with _redis_py(place) as client:

        def make(ttl: int) -> Locked:
            lock: Any = AIORedlock(key=NAME, masters={client}, auto_release_time=ttl)
            return Theirs(lock, lambda wait: lock.acquire(blocking=wait))

        yield make


@asynccontextmanager
async def _of_coredis(place: Place) -> AsyncGenerator[Make]:
    import coredis  # type: ignore[import-not-found,unused-ignore]
    from coredis.connection import TCPLocation  # type: ignore[import-not-found,unused-ignore]
    from coredis.patterns.lock import Lock as TheirLock  # type: ignore[import-not-found,unused-ignore]

    async with AsyncExitStack() as stack:
        client: Any
        if place.cluster:
            client = coredis.RedisCluster(startup_nodes=[TCPLocation("127.0.0.1", place.cluster)])
        elif place.sentinel:
            asked = coredis.Sentinel([("127.0.0.1", place.sentinel)])
            client = (await stack.enter_async_context(asked)).primary_for(SERVICE)
        else:
            client = coredis.Redis.from_url(place.url)
        await stack.enter_async_context(client)

        def make(ttl: int) -> Locked:
            lock: Any = TheirLock(client, NAME, timeout=float(ttl))

            async def acquire(wait: bool) -> bool:
                lock.blocking = wait
                return bool(await lock.acquire())

            return Theirs(lock, acquire)

        yield make


@asynccontextmanager
async def _of_python_redis_lock(place: Place) -> AsyncGenerator[Make]:
    import redis_lock  # type: ignore[import-untyped,unused-ignore]

    client: Any
    if place.cluster:
        client = BlockingCluster(host="127.0.0.1", port=place.cluster)
    elif place.sentinel:
        client = BlockingSentinel([("127.0.0.1", place.sentinel)]).master_for(SERVICE)
    else:
        client = BlockingRedis(**_address(place))
    try:
        yield lambda ttl: InThreads(redis_lock.Lock(client, NAME, expire=ttl, strict=False))
    finally:
        client.close()


@asynccontextmanager
async def _of_aiolocks(place: Place) -> AsyncGenerator[Make]:
    async with _redis_py(place) as client, Session(client) as session:
        yield lambda ttl: Ours(Lock(session, NAME, ttl=ttl))


PEERS = (
    Peer("aiolocks", _of_aiolocks),
    Peer("redis", _of_redis_py),
    Peer("pottery", _of_pottery),
    Peer("coredis", _of_coredis),
    Peer("python-redis-lock", _of_python_redis_lock, in_threads=True),
)
TITLES = {"redis": "redis-py"}


async def _outcome(done: Awaitable[object]) -> object:
    """What it gives, or its error."""
    try:
        async with asyncio.timeout(TTL / 2):
            return await done
    except Exception as error:  # it is the answer
        return error


def _said(outcome: object) -> str:
    """An error by its name, with the first word of what the server said."""
    match outcome:
        case Exception():
            return f"`{type(outcome).__name__}`"
        case _:
            return "no error"


async def _is_free(peer: Peer, place: Place, *, within: float = 0.0) -> bool:
    """Whether another process could have the name."""
    async with peer.connect(place) as make:
        deadline = time.monotonic() + within
        while True:
            lock = make(TTL)
            if await _outcome(lock.acquire(wait=False)) is True:
                await _outcome(lock.release())
                return True
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(0.1)


def _taken(free: bool) -> str:
    return "free" if free else "**taken for its ttl**"


def _acquires(request: Request) -> bool:
    return request[0].upper() in (b"SET", b"EVAL", b"EVALSHA") and any(b"door" in word for word in request)


def _releases(request: Request) -> bool:
    return request[0].upper() in (b"EVAL", b"EVALSHA") and any(b"door" in word for word in request)


# -- the faults


async def a_reply_is_lost(peer: Peer) -> str:
    """The server has granted, and the connection breaks before its reply; then the same at a release."""
    async with EmbeddedServer() as server, Proxy(server.url) as proxy:
        place = Place(proxy.url)
        async with peer.connect(place) as make:
            await _used(make)
            lost = proxy.reset_after(_acquires)
            lock = make(TTL)
            granted = await _outcome(lock.acquire(wait=False))
            assert lost.is_set()
            if granted is True:
                at_acquire = "acquire: granted"
                await lock.release()
            else:
                refused = "refused" if granted is False else _said(granted)
                at_acquire = f"acquire: {refused}, {_taken(await _is_free(peer, place))}"
        await server.client().flushall()
        async with peer.connect(place) as make:
            await _used(make)
            lock = make(TTL)
            assert await lock.acquire(wait=False)
            lost = proxy.reset_after(_releases)
            released = await _outcome(lock.release())
            assert lost.is_set()
            return f"{at_acquire}; release: {_said(released)}, {_taken(await _is_free(peer, place))}"


async def the_holder_is_late(peer: Peer) -> str:
    """The process of the holder stands still for longer than the ttl, while another process waits."""
    async with EmbeddedServer() as server:
        place = Place(server.url)
        async with peer.connect(place) as make:
            went_on, late = False, asyncio.Event()

            async def body() -> None:
                nonlocal went_on
                async with make(1).held():
                    late.set()
                    await asyncio.sleep(0)
                    time.sleep(2.5)  # noqa: ASYNC251 - the whole process stands still
                    await asyncio.sleep(0.5)
                    went_on = True

            async def hold() -> bool:
                async with peer.connect(place) as others:
                    lock = others(TTL)
                    assert await lock.acquire(wait=True)
                    await asyncio.sleep(4)
                    return await _outcome(lock.release()) is None

            other: asyncio.Task[bool] | None = None

            async def contend() -> None:
                nonlocal other
                await late.wait()
                other = asyncio.create_task(asyncio.to_thread(asyncio.run, hold()))

            contending = asyncio.create_task(contend())
            end = await _outcome(body())
            await contending
            assert other is not None
            kept = await other
            then = "**the body goes on** beside the next holder" if went_on else "the body is cancelled"
            theirs = "" if kept else "; the release frees the next holder's lock"
            return f"{then}; the end raises {_said(end)}{theirs}"


async def the_waiter_is_cancelled(peer: Peer) -> str:
    """While another holds the lock; and while the server's grant is on its way."""
    async with EmbeddedServer() as server, Proxy(server.url) as proxy:
        place = Place(proxy.url)
        async with peer.connect(place) as make, peer.connect(place) as others:
            holder = make(TTL)
            assert await holder.acquire(wait=True)
            waiter = asyncio.create_task(others(TTL).acquire(wait=True))
            await asyncio.sleep(0.5)
            await _cancel(waiter)
            await holder.release()
            await asyncio.sleep(1)
            waiting = _taken(await _is_free(peer, place))
        await server.client().flushall()
        async with peer.connect(place) as make:
            await _used(make)
            proxy.requests.clear()
            proxy.delay_replies = 1
            waiter = asyncio.create_task(make(TTL).acquire(wait=True))
            await proxy.saw(_acquires)
            await asyncio.sleep(0.2)
            await _cancel(waiter)
            proxy.delay_replies = 0
            await asyncio.sleep(2)
            granted = _taken(await _is_free(peer, Place(server.url)))
        return f"waiting: {waiting}; at the grant: {granted}"


async def a_slot_moves(peer: Peer) -> str:
    """Half of the move is done when the holder releases; a waiter waits."""
    with Cluster(None, masters=2) as cluster:
        place = Place(cluster=cluster.nodes[0].port)
        async with peer.connect(place) as make, peer.connect(place) as others:
            holder = make(TTL)
            got = await _outcome(holder.acquire(wait=True))
            if got is not True:
                return f"acquire: {_said(got)}"
            slot = cluster.slot(NAME.encode())
            source = cluster.settle(slot)
            to = cluster.another(source)
            next_one = others(TTL)
            waiter = asyncio.create_task(_alone(next_one))
            await asyncio.sleep(0.5)
            cluster.begin_move(slot, source, to)
            while keys := source.do("CLUSTER", "GETKEYSINSLOT", slot, 10):
                cluster.carry(keys, source, to)
            releasing = asyncio.create_task(_outcome(_in(holder.release())))
            await asyncio.sleep(1)
            cluster.end_move(slot, source, to)
            released = await releasing
            done, _ = await asyncio.wait({waiter}, timeout=_LONG)
            if not done:
                await _cancel(waiter)
                return f"release: {_said(released)}; **the waiter still waits** after {_LONG:.0f} s"
            ended = waiter.result()
            goes_on = "the waiter has the lock" if ended is None else f"the waiter: {_said(ended)}"
            return f"release: {_said(released)}; {goes_on}"


async def the_master_fails_over_as_planned(peer: Peer) -> str:
    """The old master lives; the holder releases as soon as Sentinel names the new one."""
    with tempfile.TemporaryDirectory() as directory:
        async with Watched(Path(directory)) as watched:
            place = Place(sentinel=watched.sentinel.port or 0)
            async with peer.connect(place) as make:
                await _used(make)
                holder = make(TTL)
                assert await holder.acquire(wait=True)
                await asyncio.sleep(0.2)
                await watched.promote()
                released = await _outcome(holder.release())
                await until(_has_ended, watched.master.client())
                return f"release: {_said(released)}, {_taken(await _is_free(peer, place, within=1))}"


async def memory_is_full(peer: Peer) -> str:
    """With `noeviction`: the next acquire, and the release of a holder."""
    async with EmbeddedServer() as server:
        place, admin = Place(server.url), server.client()
        async with peer.connect(place) as make:
            await _used(make)
            holder = make(TTL)
            assert await holder.acquire(wait=True)
            await admin.config_set("maxmemory", "1")
            released = await _outcome(holder.release())
            acquired = await _outcome(make(TTL).acquire(wait=False))
            await admin.config_set("maxmemory", "0")
            acquire = "refused" if acquired is False else _said(acquired)
            return f"release: {_said(released)}, {_taken(await _is_free(peer, place))}; acquire: {acquire}"


async def a_second_try_is_refused(peer: Peer) -> str:
    """The holder tries once more with the same object, and releases."""
    async with EmbeddedServer() as server:
        place = Place(server.url)
        async with peer.connect(place) as make:
            lock = make(TTL)
            assert await lock.acquire(wait=True)
            again = await _outcome(lock.acquire(wait=False))
            released = await _outcome(lock.release())
            free = _taken(await _is_free(peer, place))
            refused = "refused" if again is False else _said(again)
            return f"{refused}; then release: {_said(released)}, {free}"


FAULTS: dict[str, Callable[[Peer], Awaitable[str]]] = {
    "a reply is lost": a_reply_is_lost,
    "the holder is late": the_holder_is_late,
    "the waiter is cancelled": the_waiter_is_cancelled,
    "a slot moves": a_slot_moves,
    "the master fails over as planned": the_master_fails_over_as_planned,
    "memory is full": memory_is_full,
    "a second try is refused": a_second_try_is_refused,
}


async def _has_ended(old_master: Redis) -> bool:
    """Whether Sentinel has made it a replica; it says the new address, and the old one too, until then."""
    return bool((await old_master.info("replication"))["role"] == "slave")


async def _used(make: Make) -> None:
    """Scripts are loaded, and the connection is open."""
    lock = make(TTL)
    assert await lock.acquire(wait=True)
    await lock.release()


async def _alone(lock: Locked) -> object:
    """Acquires and releases in one task; None, or the error."""

    async def both() -> None:
        await lock.acquire(wait=True)
        await lock.release()

    return await _outcome(both())


async def _in(done: Awaitable[object]) -> object:
    return await done


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task}, timeout=_LONG)


async def _cells(peers: tuple[Peer, ...], faults: list[str]) -> list[list[str]]:
    rows = []
    for fault in faults:
        row = [f"**{fault}**"]
        for peer in peers:
            try:
                row.append(await FAULTS[fault](peer))
            except Exception as error:  # the other cells are worth having
                row.append(f"?? {type(error).__name__}: {error}")
            sys.stderr.write(f"{fault} | {peer.package} | {row[-1]}\n")
        rows.append(row)
    return rows


def text(rows: list[list[str]]) -> str:
    """The page, with the table between its marks."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    names = [
        f"{TITLES.get(peer.package, peer.package)} {importlib.metadata.version(peer.package)}"
        for peer in PEERS[1:]
    ]
    lines = [["", "aiolocks", *names], ["---"] * (len(names) + 2), *rows]
    return (
        before
        + BEGIN
        + "\n".join(["", *(f"| {' | '.join(cells)} |" for cells in lines), "", ""])
        + END
        + after
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable()
    wanted = sys.argv[1:]
    found = asyncio.run(_cells(PEERS, [fault for fault in FAULTS if not wanted or fault in wanted]))
    if not wanted:
        PAGE.write_text(text(found), encoding="utf-8")
