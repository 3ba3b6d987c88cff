"""The part that the tests of faults share."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import pytest
from redis.asyncio import ConnectionPool, Redis

from aiolocks import BackendError, Backoff, KeyspaceWakeup, Lease, Lock, Semaphore, Session
from aiolocks.lock.waiter import Stage
from aiolocks.transport import WAITING, LockSteps, Refused
from aiolocks.transport.request import Request as Asked
from aiolocks.transport.request import lua_sections
from tests.conftest import PREFIX, blocking
from tests.support.clients import with_own_connections
from tests.support.history import Hold
from tests.support.proxy import Proxy, Request
from tests.support.servers import ServerKind
from tests.support.waiting import eventually

Keys = Callable[..., list[str]]

SLACK = 2.4
"""Seconds that a busy machine may add to what the clock bounds."""

_TOKEN = re.compile(r"(?<![0-9a-f])(?![0-9a-f]{40}(?![0-9a-f]))[0-9a-f]{32,}")


# -- requests ------------------------------------------------------------------------------------------------


def text_of(name: str, *shared: str) -> bytes:
    """The text of a script; `shared` is what stands before it."""
    return b"".join(lua_sections()[section] for section in (*shared, name))


def step(name: str, *shared: str) -> Callable[[Request], bool]:
    """Matches the requests for one script, by its digest or in full."""
    text = text_of(name, *shared)
    ways = (hashlib.sha1(text).hexdigest().encode(), text)
    return lambda request: len(request) > 1 and request[1] in ways


def locks_in(request: Request) -> list[bytes]:
    """The key of the simple lock that a step names, if it is one."""
    return request[3:4] if request[0] in (b"EVAL", b"EVALSHA") else []


ACQUIRE = step("lock_acquire")
RENEW = step("lock_renew", "stolen")
RELEASE = step("lock_release", "lock_straight", "bells", "stolen")
HAND_OVER = step("lock_acquire", "hand_over_lock")
_PERMITS = ("forms", "bells", "fence", "queue", "permits")
RELEASE_PERMITS = step("permits_release", *_PERMITS, "stolen")
HAND_OVER_PERMITS = step("permits_acquire", *_PERMITS, "hand_over_permits")
ADOPT = step("lock_adopt")
LISTEN = step("waiters_listen", "forms", "bells", "fence", "listening")
OWNED = step("lock_owned")
LOCKED = step("lock_locked")


def LETTING_GO(request: Request) -> bool:  # noqa: N802 - one of the steps above, in either form
    """Matches a release, alone or in one request with the try of the next waiter."""
    return RELEASE(request) or HAND_OVER(request)


def look_at(proxy: Proxy, seen: Callable[[Request], object]) -> None:
    """Call `seen` with every request as it comes in, before it goes on to the server."""

    def look(request: Request) -> bool:
        seen(request)
        return False

    proxy.reset_after(look)  # which never happens


def deafen(proxy: Proxy) -> None:
    """Swallow what comes on the connections that are open now, as half-open ones do; new ones are fine."""
    proxy.hold_requests = True
    proxy._hold_requests = False


# -- this machine --------------------------------------------------------------------------------------------


class Lag:
    """How late the event loop was meanwhile, at most: what a busy machine adds to every bound.

    Attributes:
        longest: Seconds.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self._ticking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._ticking is not None
        self._ticking.cancel()
        await asyncio.wait((self._ticking,))

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + 0.005
            await asyncio.sleep(0.005)
            self.longest = max(self.longest, loop.time() - due)


# -- clients -------------------------------------------------------------------------------------------------


FORMS: dict[str, Callable[..., Redis]] = {
    "bare": lambda proxy, **kwargs: Redis(host="127.0.0.1", port=proxy.port, **kwargs),
    "url": lambda proxy, **kwargs: Redis.from_url(proxy.url, **kwargs),
    "pool": lambda proxy, **kwargs: Redis.from_pool(ConnectionPool.from_url(proxy.url, **kwargs)),
    "own connections": lambda proxy, **kwargs: with_own_connections(Redis.from_url(proxy.url, **kwargs)),
    "own connections, bare": lambda proxy, **kwargs: with_own_connections(
        Redis(host="127.0.0.1", port=proxy.port, **kwargs)
    ),
}
"""The ways in which users make clients."""


@dataclass(frozen=True)
class Formed:
    """The arguments of `connect`: where to, and in which of the `FORMS`."""

    proxy: Proxy
    form: str

    def client(self, **kwargs: Any) -> Redis:
        return FORMS[self.form](self.proxy, **kwargs)


async def warm(client: Any) -> None:
    """Have the session connected, and every script of `Lock` known to the server."""
    lock = Lock(client, "warm")
    lease = await lock.acquire()
    await lease.extend()
    await lease.owned()
    await lock.locked()
    async with await lock.adopt(lease.detach()):
        pass


def has_no_token(error: BaseException | None) -> bool:
    """Whether no message of the error or of its causes tells the secret of a lease."""
    while error is not None:
        if _TOKEN.search(str(error)) or _TOKEN.search(repr(error)):
            return False
        error = error.__cause__
    return True


# -- servers -------------------------------------------------------------------------------------------------


def allowing_debug(kind: ServerKind) -> tuple[str, ...]:
    """Arguments for a server that obeys DEBUG."""
    return () if kind.name.startswith("redis-6") else ("--enable-debug-command", "yes")


@dataclass
class Stranger:
    """A connection that is none of the library's: it notices being closed, and never connects again."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def to(cls, server: Any) -> Stranger:
        return cls(*await asyncio.open_unix_connection(str(server.path)))

    async def ask(self, *words: str) -> bytes:
        self.writer.write(" ".join(words).encode() + b"\r\n")
        return await asyncio.wait_for(self.reader.readline(), 2)

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


@asynccontextmanager
async def strangers(server: Any, number: int) -> AsyncIterator[list[Stranger]]:
    """Several connections that go on until the end of the block."""
    there = [await Stranger.to(server) for _ in range(number)]
    try:
        yield there
    finally:
        for stranger in there:
            await stranger.close()


@asynccontextmanager
async def repeating(action: Callable[[], Any], *, every: float) -> AsyncIterator[None]:
    """Repeat a coroutine function beside the block, with pauses of `every` seconds."""

    over = asyncio.Event()

    async def repeat() -> None:
        while not over.is_set():
            await action()
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), every)

    # Not cancelled: redis-py may swallow it (Python 3.11).
    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        over.set()
        await task


# -- time and history ----------------------------------------------------------------------------------------


class Elapsed:
    """Seconds since the start of a block, or how long it took."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._ended: float | None = None

    def stop(self) -> None:
        self._ended = time.monotonic()

    @property
    def seconds(self) -> float:
        return (self._ended or time.monotonic()) - self._began


@contextmanager
def elapsed() -> Iterator[Elapsed]:
    """How long a block takes, also if it raises: ``with elapsed() as took: …; took.seconds``."""
    took = Elapsed()
    try:
        yield took
    finally:
        took.stop()


@dataclass
class Witness:
    """A listener that notes what it is told, and when (loop time)."""

    acquired: list[float] = field(default_factory=list)
    renewed: list[float] = field(default_factory=list)
    released: list[float] = field(default_factory=list)
    lost: list[tuple[float, str]] = field(default_factory=list)

    def on_acquired(self, _: Any) -> None:
        self.acquired.append(time.monotonic())

    def on_renewed(self, _: Any) -> None:
        self.renewed.append(time.monotonic())

    def on_released(self, _: Any) -> None:
        self.released.append(time.monotonic())

    def on_lost(self, event: Any) -> None:
        self.lost.append((time.monotonic(), event.reason))


async def hold_once(lock: Lock, holds: list[Hold], who: str, *, seconds: float = 0.001) -> None:
    """Take the lock, keep it for a moment, let it go; note it down."""
    now = time.monotonic
    invoked = now()
    lease = await lock.acquire()
    granted = now()
    await asyncio.sleep(seconds)
    released = now()
    deadline = released + lease.remaining()
    await lease.release()
    holds.append(
        Hold(
            who=who,
            name=lease.name,
            invoked=invoked,
            granted=granted,
            released=released,
            confirmed=now(),
            deadline=deadline,
            fencing_token=lease.fencing_token,
        )
    )


async def renewed(*leases: Lease) -> None:
    """Wait until each of them is renewed: it lasts longer than it would from now on."""
    now = asyncio.get_running_loop().time
    before = [now() + lease.remaining() for lease in leases]

    def all_of_them() -> bool:
        return all(
            now() + lease.remaining() > deadline + 0.05
            for lease, deadline in zip(leases, before, strict=True)
        )

    await eventually(all_of_them)


async def quiet(session: Session) -> None:
    """Wait until the session has sent nothing for a moment: what it does by itself is done."""

    async def sends_nothing() -> bool:
        before = session.statistics().commands_sent
        await asyncio.sleep(0.1)
        return session.statistics().commands_sent == before

    await eventually(sends_nothing)


async def rejected(awaitable: Any) -> BackendError:
    """The BackendError that it ends with."""
    with pytest.raises(BackendError) as caught:
        await awaitable
    assert has_no_token(caught.value)
    return caught.value


def arguments(*pairs: str) -> Sequence[str]:
    """Arguments of a server: ``arguments("maxmemory 1mb")``."""
    return [word for pair in pairs for word in f"--{pair}".split(" ", 1)]


# -- waiting -------------------------------------------------------------------------------------------------

UNTOLD = 0.6
"""Seconds after which a waiter has noticed a push that it missed: the interval in which it listens."""

PATIENT = Backoff(initial=5, maximum=5, jitter=0)
"""A waiter that misses a wakeup sleeps for seconds: only bells are quick."""

AT_ONCE = 1.5
"""Seconds: less than the sleep of a patient waiter, or than a bell lasts without its heartbeat."""

WAYS = ("tracking", "keyspace")
"""How a server tells of bells."""


def wakeup(way: str) -> Any:
    """The option by which a session is woken in this way, on any server."""
    return KeyspaceWakeup(configure=True) if way == "keyspace" else way


class Start(Protocol):
    """Makes one more session of the test's: `start(backoff=…, to=…)`, woken in the way under test."""

    def __call__(self, *, backoff: Backoff = PATIENT, to: Any = None) -> Session: ...


def asleep(session: Session, *, number: int = 1) -> bool:
    """Whether `number` of the session's waiters sleep, their bells hung up and heard."""
    engine = session._engine
    waiting = engine.waiting if engine is not None else ()
    return sum(one.stage is Stage.SLEEPING and one._gate.heard for one in waiting) == number


def waiting_in(session: Session) -> set[Any]:
    return set() if session._engine is None else set(session._engine.waiting)


def rests(one: Any) -> bool:
    return one.stage is Stage.QUEUED or (one.stage is Stage.SLEEPING and one._gate.heard)


def begin(pending: Any) -> asyncio.Task[Any]:
    """A task of it. One that nobody looks at any more, the test having failed, is not complained of."""
    task: asyncio.Task[Any] = asyncio.create_task(pending)
    task.add_done_callback(lambda _: task.cancelled() or task.exception())
    return task


async def waiter(session: Session, pending: Any) -> asyncio.Task[Any]:
    """A task of what the session is to wait for, once it does; others may end theirs meanwhile."""
    before = waiting_in(session)
    waiting = begin(pending)

    def waits() -> bool:
        now = waiting_in(session)
        return waiting.done() or (not now <= before and all(map(rests, now)))

    await eventually(waits, within=5)
    assert not waiting.done(), waiting
    return waiting


def rings(session: Session) -> list[str]:
    """A list that grows with each ring of its bells that the session hears from now on, by the way of it.

    (Up to Redis 7.0, tracking tells of every key that a script was given: the queue is none of its bells.)
    """
    heard: list[str] = []
    wakeups, ours = session._engine._transport._wakeups, f".bell.{session._engine.session_id}:".encode()
    tell = wakeups._on_rung

    def on_rung(way: str, bells: Any) -> None:
        if bells is None or any(ours in bell for bell in bells):
            heard.append(way)
        tell(way, bells)

    wakeups._on_rung = on_rung
    return heard


@dataclass(frozen=True)
class Several:
    """A number of permits of a semaphore, as if they were a lock."""

    semaphore: Semaphore
    number: int

    def acquire(self, **options: Any) -> Any:
        return self.semaphore.acquire(self.number, **options)

    def try_acquire(self) -> Any:
        return self.semaphore.try_acquire(self.number)


async def turns_of_the_loop(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def in_within(seconds: float, waiting: asyncio.Task[Lease]) -> Lease:
    """The lease that it gets, if that is not later."""
    done, _ = await asyncio.wait({waiting}, timeout=seconds)
    if not done:
        waiting.cancel()
        await asyncio.wait({waiting})
        raise AssertionError(f"still waiting after {seconds:.3f} s")
    return waiting.result()


class ByHand:
    """Somebody who does by hand what sessions do, at once: the loop of the test stands still meanwhile.

    Attributes:
        redis: The connection, synchronous.
    """

    def __init__(self, server: Any, *, prefix: str = PREFIX) -> None:
        self.redis = blocking(server.url)
        self._prefix = prefix
        self._tokens: dict[str, str] = {}

    def acquire(self, name: str, *, ttl: float = 30.0) -> None:
        token = self._tokens[name] = f"{len(self._tokens):032x}"
        self._do(self._steps(name).acquire(token, int(ttl * 1000), "{}"))

    def release(self, name: str) -> bytes | None:
        """Also if it was lost meanwhile. The bell that was rung."""
        rung: bytes | None = self._do(self._steps(name).release(self._tokens[name], 30_000)).rung
        return rung

    def arm(self, name: str, session: str) -> None:
        """Stand in the queue, as a session of this id, for what is held."""
        assert isinstance(
            self._do(self._steps(name, session).acquire("f" * 32, 1000, "{}", WAITING)), Refused
        )

    def bell(self, name: str, session: str) -> bytes:
        return self._steps(name, session).bell

    def _steps(self, name: str, session: str = "") -> LockSteps:
        return LockSteps(self._prefix, name, retention_ms=600_000, session=session)

    def _do(self, command: Asked[Any]) -> Any:
        return command.parse(self.redis.execute_command(*command.words(as_eval=True)))

    def close(self) -> None:
        self.redis.close()
