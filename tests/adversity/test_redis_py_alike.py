"""The same calls on redis-py's lock and on ours: the same results, errors, keys, values and ttls."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from redis.asyncio import Redis
from redis.asyncio.lock import Lock as RedisPyLock
from redis.exceptions import LockError, ResponseError

from aiolocks.contrib.redis_py import Lock
from tests.conftest import Connect
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.leaves_keys("a*", "\u00e9*"),
    pytest.mark.skipif(
        int(redis.__version__.split(".")[0]) < 6, reason="it is like the Lock of redis-py 6 and later"
    ),
]

KEY = b"a"


class Play:
    """One run of a script of calls; notes what each of them does, and what is on the server behind it."""

    def __init__(self, lock_class: type[RedisPyLock], client: Redis, admin: Redis) -> None:
        self.lock_class = lock_class
        self.client = client
        self.admin = admin
        self.notes: list[Any] = []
        self.locks: list[Any] = []

    def lock(self, name: Any = "a", **kwargs: Any) -> Any:
        lock = self.client.lock(name, lock_class=self.lock_class, **kwargs)
        self.locks.append(lock)
        return lock

    async def do(self, call: Callable[[], Any]) -> Any:
        result = None
        try:
            result = call()
            self.notes.append("at once")
            if inspect.isawaitable(result):
                result = await result
        except Exception as error:
            said = None if isinstance(error, ResponseError) else str(error)  # of a script, it says so
            self.notes.append((type(error), said, getattr(error, "lock_name", None)))
        else:
            self.notes.append(result if not isinstance(result, RedisPyLock) else "itself")
        await self.look()
        return result

    async def look(self) -> None:
        """Keys, whose tokens they hold, ttls; and what the locks think."""
        for key in sorted(await self.admin.keys("*")):
            kind = await self.admin.type(key)
            value = await self.admin.get(key) if kind == b"string" else kind
            ttl = await self.admin.pttl(key)
            self.notes.append((key, self.named(value), Ttl(ttl)))
        self.notes.append([self.named(getattr(lock.local, "token", None)) for lock in self.locks])

    def named(self, token: Any) -> Any:
        """Random tokens differ: they are called by who has them first."""
        for number, lock in enumerate(self.locks):
            if token is not None and token == getattr(lock.local, "token", None):
                drawn = len(token) == 32 and set(token) <= set(b"0123456789abcdef")
                return f"of {number}, {type(token)}" if drawn else token
        if isinstance(token, bytes) and len(token) == 32:
            return "of somebody"
        return token


class Ttl:
    """Milliseconds that are about the same."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ttl):
            return False
        return self.ms == other.ms or (min(self.ms, other.ms) >= 0 and abs(self.ms - other.ms) < 1500)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{self.ms} ms"


Script = Callable[[Play], Awaitable[None]]
SCRIPTS: dict[str, Script] = {}


def script(function: Script) -> Script:
    SCRIPTS[function.__name__] = function
    return function


# -- scripts -------------------------------------------------------------------------------------------------


@script
async def one_life(play: Play) -> None:
    lock = play.lock(timeout=20)
    for call in (lock.locked, lock.owned, lock.acquire, lock.locked, lock.owned):
        await play.do(call)
    await play.do(lambda: lock.extend(20))
    await play.do(lambda: lock.extend(7.5, replace_ttl=True))
    await play.do(lambda: lock.extend(additional_time=10, replace_ttl=False))
    for call in (
        lock.reacquire,
        lock.release,
        lock.release,
        lock.owned,
        lock.locked,
        lock.acquire,
        lock.release,
    ):
        await play.do(call)


@script
async def without_a_timeout(play: Play) -> None:
    lock = play.lock()
    for call in (lock.acquire, lock.owned, lambda: lock.extend(3), lock.reacquire, lock.release):
        await play.do(call)


@script
async def what_is_not_locked(play: Play) -> None:
    for lock in (play.lock(), play.lock(timeout=20, thread_local=False)):
        for call in (lock.release, lambda lock=lock: lock.extend(3), lock.reacquire, lock.owned):
            await play.do(call)


@script
async def what_has_expired(play: Play) -> None:
    lock = play.lock(timeout=0.05)
    for last in (lock.release, lock.reacquire, lambda: lock.extend(3), lock.owned):
        await lock.acquire()
        await expired(play)
        await play.do(last)
        await play.do(lock.locked)


async def expired(play: Play) -> None:
    async def gone() -> bool:
        return not await play.admin.exists(KEY)

    await eventually(gone, within=5)


@script
async def what_somebody_else_has(play: Play) -> None:
    await play.lock(timeout=20).acquire()
    lock = play.lock(timeout=20, blocking_timeout=0.02, sleep=0.01)
    for call in (
        lock.acquire,
        lambda: lock.acquire(blocking=False),
        lambda: lock.acquire(False),
        lambda: lock.acquire(blocking=True, blocking_timeout=0),
        lambda: lock.acquire(True, 0.02, "mine"),
        lambda: lock.acquire(blocking_timeout=-1),
        lock.owned,
        lock.locked,
        lock.release,
        lambda: lock.extend(1),
        lock.__aenter__,
    ):
        await play.do(call)
    await play.do(play.lock(blocking=False).acquire)
    await play.do(play.lock(blocking=False, blocking_timeout=5).acquire)


@script
async def what_it_has_itself(play: Play) -> None:
    lock = play.lock(timeout=20, blocking=False)
    for call in (lock.acquire, lock.acquire, lock.owned, lock.release):
        await play.do(call)


@script
async def what_was_taken_over(play: Play) -> None:
    """The key is another's by now."""
    lock = play.lock(timeout=20)
    for call in (lock.release, lock.reacquire, lambda: lock.extend(3), lock.owned):
        await play.admin.delete(KEY)
        await lock.acquire()
        await play.admin.set(KEY, "other", px=20_000)
        await play.do(call)


@script
async def chosen_tokens(play: Play) -> None:
    # (Not b"" nor b"\xff": with decode_responses, redis-py cannot say whether it owns these.)
    for token in ("text", b"bytes", "\u00e9", b"\x00\n", 17, 1.5):
        lock = play.lock(timeout=20)
        for call in (lambda lock=lock, token=token: lock.acquire(token=token), lock.owned, lock.release):
            await play.do(call)
    for wrong in (True, object):
        await play.do(lambda wrong=wrong: play.lock().acquire(token=wrong))


@script
async def the_same_token_twice(play: Play) -> None:
    first, second = play.lock(timeout=20), play.lock(timeout=20, blocking=False)
    await play.do(lambda: first.acquire(token="same"))
    await play.do(lambda: second.acquire(token="same"))
    await play.do(second.release)
    await play.do(first.release)


@script
async def a_token_that_travels(play: Play) -> None:
    lock, other = play.lock(timeout=20), play.lock(timeout=20)
    await lock.acquire()
    other.local.token = lock.local.token
    for call in (
        other.owned,
        lambda: other.extend(5),
        other.reacquire,
        other.release,
        lock.owned,
        lock.release,
    ):
        await play.do(call)
    other.local.token = "text"
    await play.admin.set(KEY, "text", px=20_000)
    for call in (other.owned, other.reacquire, other.release):
        await play.do(call)


@script
async def as_a_context_manager(play: Play) -> None:
    lock = play.lock(timeout=20)
    await play.do(lock.__aenter__)
    await play.do(lambda: lock.__aexit__(None, None, None))
    await play.do(lambda: lock.__aexit__(None, None, None))
    for raising in (True, False):
        lost = play.lock(timeout=20, raise_on_release_error=raising)

        async def body(lost: Any = lost) -> None:
            async with lost as entered:
                assert entered is lost
                await play.admin.delete(KEY)

        await play.do(body)


@script
async def timeouts_of_all_sorts(play: Play) -> None:
    for timeout in (0, 0.0, 5, 1.9999, 0.0001, -1, "5"):
        lock = play.lock(timeout=timeout, blocking=False)
        for call in (lock.acquire, lambda lock=lock: lock.extend(2), lock.reacquire, lock.release):
            await play.do(call)
        await play.admin.delete(KEY)


@script
async def extensions_of_all_sorts(play: Play) -> None:
    lock = play.lock(timeout=20)
    for time, replace in ((5, False), (5, True), (0.5, 1), (2.0001, 0), (3600 * 24 * 365, False), (0, False)):
        await lock.acquire()
        await play.do(lambda time=time, replace=replace: lock.extend(time, replace))
        await lock.release()
    for time, replace in ((0, True), (-30, False), (-1, True)):
        await lock.acquire()
        await play.do(lambda time=time, replace=replace: lock.extend(time, replace))
        await play.do(lock.release)
    await lock.acquire()
    await play.admin.persist(KEY)
    await play.do(lambda: lock.extend(5))
    await play.do(lambda: lock.extend(5, replace_ttl=True))
    await play.do(lock.reacquire)
    await play.do(lock.release)


@script
async def a_key_of_another_type(play: Play) -> None:
    lock = play.lock(timeout=20, blocking=False)
    await play.admin.rpush(KEY, "foreign")
    for call in (lock.acquire, lock.locked, lock.owned):
        await play.do(call)
    lock.local.token = b"mine"
    for call in (lock.release, lock.reacquire, lambda: lock.extend(1), lock.release):
        await play.do(call)


@script
async def names_of_all_sorts(play: Play) -> None:
    for name in ("a{b}c", b"a\xff\x00", memoryview(b"a view"), "\u00e9", "a:" + "x" * 2000):
        lock = play.lock(name, timeout=20)
        for call in (
            lock.acquire,
            lock.owned,
            lock.reacquire,
            lambda lock=lock: lock.extend(5),
            lock.release,
        ):
            await play.do(call)
        play.notes.append(lock.name)


@script
async def attributes(play: Play) -> None:
    lock = play.lock("a", timeout=3, sleep=0.2, blocking=False, blocking_timeout=4, thread_local=False)
    for one in (lock, play.lock(), play.lock(raise_on_release_error=False, thread_local=1)):
        for names in ("name timeout sleep blocking", "blocking_timeout thread_local raise_on_release_error"):
            play.notes += [getattr(one, name) for name in names.split()]
        play.notes.append(isinstance(one.local, SimpleNamespace))
        play.notes += [one.local.token, one.redis is play.client, isinstance(one, RedisPyLock)]


@script
async def changed_attributes(play: Play) -> None:
    """They count when they are needed."""
    lock = play.lock(timeout=20)
    lock.name, lock.timeout, lock.blocking, lock.sleep = "a2", 40, False, 0.01
    for call in (lock.acquire, lock.acquire, lock.reacquire, lock.release):
        await play.do(call)


@script
async def in_another_thread(play: Play) -> None:
    for thread_local in (True, False):
        lock = play.lock(timeout=20, thread_local=thread_local)
        await lock.acquire()
        seen = await asyncio.to_thread(lambda lock=lock: getattr(lock.local, "token", None) is None)
        play.notes.append(seen)
        await lock.release()


# -- both ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [(2, False), (3, True)], ids=["resp2", "resp3-decoded"])
@pytest.mark.parametrize("name", SCRIPTS)
async def test_it_does_as_redis_py_does(
    connect: Connect, redis: Redis, name: str, settings: tuple[int, bool]
) -> None:
    played = []
    for lock_class in (RedisPyLock, Lock):
        client = connect(protocol=settings[0], decode_responses=settings[1])
        play = Play(lock_class, client, redis)
        await SCRIPTS[name](play)
        played.append(play.notes)
        await redis.flushall()

    theirs, ours = played
    assert theirs == ours
    assert theirs


async def test_the_warning_is_redis_pys(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    for lock_class in (RedisPyLock, Lock):
        async with redis.lock("a", timeout=20, raise_on_release_error=False, lock_class=lock_class):
            await redis.delete("a")
    theirs, ours = [(record.name, record.levelno, record.getMessage()) for record in caplog.records]
    assert theirs == ours


def test_arguments_are_redis_pys() -> None:
    for method in ("__init__", "acquire", "release", "extend", "reacquire", "do_acquire", "do_release",
                   "do_extend", "do_reacquire", "locked", "owned"):  # fmt: skip
        theirs, ours = (
            {
                name: parameter.default
                for name, parameter in inspect.signature(getattr(cls, method)).parameters.items()
                if parameter.kind is not parameter.KEYWORD_ONLY
            }
            for cls in (RedisPyLock, Lock)
        )
        assert list(theirs.items()) == list(ours.items()), method
    public = {name for name in dir(RedisPyLock) if not name.startswith("_")}
    assert public <= {*dir(Lock)}
    assert issubclass(Lock, RedisPyLock)
    assert not issubclass(LockError, Lock)
