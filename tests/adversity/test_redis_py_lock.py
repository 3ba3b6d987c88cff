"""The pitfalls of redis-py's lock that its users need not know any more, with ours in its place."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, ClassVar

import pytest
import redis.exceptions as driver
from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.asyncio.lock import Lock as RedisPyLock
from redis.exceptions import AuthenticationError, LockError, LockNotOwnedError

from aiolocks import Session
from aiolocks.contrib.redis_py import Lock
from tests.adversity.tools import Formed, begin, deafen, elapsed, step
from tests.conftest import Connect, OwnServer
from tests.support.cancel import Shot, cancel_twice, sweep, sweep_scopes
from tests.support.processes import Workers, tell
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.spoiling import spoil
from tests.support.thinning import only
from tests.support.waiting import eventually

ACQUIRE = step("redis_py_acquire")
RELEASE = step("redis_py_release")
EXTEND = step("redis_py_extend")
REACQUIRE = step("redis_py_reacquire")


@pytest.fixture
async def client(connect: Connect, through: Proxy, form: str) -> Redis:
    """A client that comes through `through`, on which every step has been taken once."""
    client = connect(Formed(through, form))
    lock = Lock(client, "warm", timeout=20)
    await lock.acquire()
    await lock.extend(1)
    await lock.reacquire()
    await lock.owned()
    await lock.release()
    return client


async def free(redis: Redis, name: str = "a") -> None:
    """It becomes free."""

    async def gone() -> bool:
        return not await redis.exists(name)

    await eventually(gone, within=5)


# -- beside redis-py's own -----------------------------------------------------------------------------------


async def count_up(url: str, ours: bool, times: int) -> None:
    """Read, wait, write: what gets lost when two are inside."""
    kind = Lock if ours else RedisPyLock
    async with Redis.from_url(url) as redis:
        for _ in range(times):
            async with redis.lock("a", timeout=20, sleep=0.002, lock_class=kind):
                before = int(await redis.get("a:count") or 0)
                await asyncio.sleep(0.002)
                await redis.set("a:count", before + 1, px=60_000)
    tell("done")


@pytest.mark.leaves_keys
async def test_old_and_new_workers_exclude_each_other(redis: Redis, server: Server, workers: Workers) -> None:
    times = 20
    for ours in (True, False, True, False):
        await workers.start(count_up, url=server.url, ours=ours, times=times)
    for worker in workers._workers:
        await worker.told("done")
    assert await redis.get("a:count") == str(4 * times).encode()
    assert not await redis.exists("a")


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("holder", [Lock, RedisPyLock], ids=["ours", "theirs"])
@pytest.mark.parametrize("other", [Lock, RedisPyLock], ids=["ours", "theirs"])
async def test_one_keeps_out_the_other(connect: Connect, holder: Any, other: Any, decode: bool) -> None:
    client = connect(decode_responses=decode)
    held = client.lock("a", timeout=20, lock_class=holder)
    tried = connect(decode_responses=not decode).lock(
        "a", timeout=20, lock_class=other, blocking_timeout=0.02
    )
    assert await held.acquire()
    assert not await tried.acquire(blocking=False)
    assert await tried.locked()
    assert not await tried.owned()
    tried.local.token = held.local.token  # a lock that one has taken, the other can release
    assert await tried.owned()
    assert await tried.extend(5)
    await tried.release()
    assert await tried.acquire()
    with pytest.raises(LockNotOwnedError):
        await held.release()
    await tried.release()


@pytest.mark.leaves_keys("a")
async def test_without_a_timeout_it_stays(redis: Redis) -> None:
    await Lock(redis, "a").acquire()
    assert await redis.pttl("a") == -1


async def test_options_go_with_a_partial(redis: Redis) -> None:
    lock: Any = redis.lock("a", timeout=20, lock_class=functools.partial(Lock, auto_renew=True, wakeups=True))
    assert (lock.auto_renew, lock.wakeups) == (True, True)
    async with lock:
        assert await lock.owned()


async def test_a_subclass_may_do_the_requests_itself(redis: Redis) -> None:
    class Own(Lock):
        calls: ClassVar[list[str]] = []

        async def do_acquire(self, token: Any) -> bool:
            self.calls.append("acquire")
            return await super().do_acquire(token)

        async def do_release(self, expected_token: Any) -> None:
            self.calls.append("release")
            assert await self.lua_release(keys=[self.name], args=[expected_token], client=self.redis)

        async def do_extend(self, additional_time: float, replace_ttl: bool) -> Any:
            self.calls.append("extend")
            return await super().do_extend(additional_time, replace_ttl)

        async def do_reacquire(self) -> Any:
            self.calls.append("reacquire")
            return await super().do_reacquire()

    lock = Own(redis, "a", timeout=20)
    assert lock.lua_extend is not None
    assert lock.lua_reacquire is not None
    async with lock:
        await lock.extend(1)
        await lock.reacquire()
    assert lock.calls == ["acquire", "extend", "reacquire", "release"]
    assert lock.local.token is None
    assert not await redis.exists("a")


async def test_a_subclass_may_keep_scripts_of_its_own(redis: Redis) -> None:
    class Own(Lock):
        LUA_RELEASE_SCRIPT = "return 'its own'"

        def register_scripts(self) -> None:
            super().register_scripts()
            self.lua_extend = self.redis.register_script("return 'of this lock'")

    Own.lua_reacquire = redis.register_script("return 'of the class'")
    lock = Own(redis, "a")
    said = [await each(keys=["a"]) for each in (lock.lua_release, lock.lua_extend, lock.lua_reacquire)]
    assert said == [b"its own", b"of this lock", b"of the class"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Lock(BlockingRedis(), "a"), "synchronous client"),
        (lambda: Lock(Redis(port=1), "a", auto_renew=1), "auto_renew must be True or False"),  # type: ignore[arg-type]
        (lambda: Lock(Redis(port=1), "a", wakeups=None), "wakeups must be True or False"),  # type: ignore[arg-type]
    ],
)
def test_arguments_are_checked(make: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        make()


# -- cancelled -----------------------------------------------------------------------------------------------


@pytest.mark.leaves_keys("a*")  # of those who got it in the end
@pytest.mark.parametrize("token", [None, "chosen"])
@pytest.mark.parametrize("shoot", [sweep, cancel_twice])
async def test_a_cancelled_acquire_leaves_no_key(
    client: Redis, redis: Redis, shoot: Any, token: str | None
) -> None:
    names: list[str] = []

    def acquire() -> Coroutine[Any, Any, bool]:
        names.append(f"a{len(names)}")
        return Lock(client, names[-1]).acquire(token=token)  # nothing else would take it away

    async def gone(_: Shot) -> None:
        await free(redis, names[-1])

    assert await shoot(acquire, after=gone)


async def test_a_cancelled_wait_leaves_no_key(client: Redis, redis: Redis) -> None:
    await redis.set("a", "other", px=20_000)
    for wakeups in (False, True):
        waiting = begin(Lock(client, "a", sleep=0.01, wakeups=wakeups).acquire())
        await asyncio.sleep(0.03)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
    await redis.delete("a")
    await asyncio.sleep(0.03)
    assert not await redis.exists("a")


async def test_a_timed_out_acquire_leaves_no_key_over_a_slow_link(
    client: Redis, redis: Redis, through: Proxy
) -> None:
    """redis-py leaves one each time, for ever."""
    through.delay = 0.02
    for _ in range(10):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await Lock(client, "a").acquire()
        await free(redis)


@pytest.mark.parametrize("mode", ["early", "late"])
async def test_a_cancelled_release_still_releases(client: Redis, redis: Redis, mode: Any) -> None:
    lock = Lock(client, "a")

    async def again(_: Shot) -> None:
        await free(redis)
        assert lock.local.token is None
        await lock.acquire()

    await lock.acquire()
    assert await sweep(lock.release, after=again, modes=(mode,))
    await free(redis)


@pytest.mark.parametrize("cancelled", only([False, True], True))
async def test_only_a_release_that_a_cancellation_passes_is_cut_short(
    client: Redis, redis: Redis, through: Proxy, cancelled: bool
) -> None:
    """Not one in a task in which a task group has failed before."""
    began = asyncio.Event()

    async def hold() -> None:
        lock = Lock(client, "a", timeout=20)
        await lock.acquire()
        await spoil()
        began.set()
        try:
            await asyncio.sleep(10 if cancelled else 0)
        finally:
            through.delay = 1.3
            await lock.release()

    holding = begin(hold())
    await began.wait()
    if cancelled:
        await asyncio.sleep(0.01)
        holding.cancel()
    done, _ = await asyncio.wait({holding})
    through.delay = 0
    assert [type(task.exception()) for task in done] == [driver.TimeoutError if cancelled else type(None)]
    await free(redis)


@pytest.mark.parametrize("shoot", [sweep, cancel_twice, sweep_scopes])
async def test_cancelled_anywhere_nothing_stays_held(client: Redis, redis: Redis, shoot: Any) -> None:
    lock = Lock(client, "a")

    async def work() -> None:
        async with lock:
            await asyncio.sleep(0)

    async def gone(_: Shot) -> None:
        await free(redis)

    assert await shoot(work, after=gone)
    await work()
    await free(redis)


async def test_what_the_body_raises_is_not_replaced(redis: Redis) -> None:
    with pytest.raises(ValueError, match="mine") as caught:
        async with Lock(redis, "a", timeout=20):
            await redis.delete("a")
            raise ValueError("mine")
    assert "no longer owned" in caught.value.__notes__[0]

    lock = Lock(redis, "a", timeout=20)
    body = begin(_until_cancelled(lock))
    await eventually(lambda: lock.local.token, within=5)
    await redis.delete("a")
    body.cancel()
    await asyncio.wait({body})
    assert body.cancelled()


async def _until_cancelled(lock: Lock) -> None:
    async with lock:
        await asyncio.sleep(60)


# -- tasks that share an object ------------------------------------------------------------------------------


async def test_a_task_does_not_release_what_another_has_acquired_since(redis: Redis) -> None:
    lock = Lock(redis, "a", timeout=0.1, sleep=0.01)
    first_released = asyncio.Event()

    async def second() -> None:
        lock.timeout = 20
        async with lock:
            await first_released.wait()
            assert await lock.owned()

    await lock.acquire()
    other = begin(second())
    await free_of(redis, lock.local.token)
    await eventually(lambda: len(set(lock._holdings._by_task.values())) == 2, within=5)
    assert not await lock.owned()
    for call in (lambda: lock.extend(3), lock.reacquire, lock.release):
        with pytest.raises(LockNotOwnedError):
            await call()
    first_released.set()
    await other
    assert not await redis.exists("a")
    assert lock.local.token is None


async def free_of(redis: Redis, token: Any) -> None:
    async def gone() -> bool:
        return bool(await redis.get("a") != token)

    await eventually(gone, within=5)


async def test_many_tasks_take_turns_through_one_object(redis: Redis) -> None:
    lock = Lock(redis, "a", timeout=20, sleep=0.002)
    inside = most = 0

    async def work() -> None:
        nonlocal inside, most
        async with lock:
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(work() for _ in range(20)))
    assert most == 1


async def test_another_task_may_release(redis: Redis) -> None:
    lock = Lock(redis, "a", timeout=20)
    await asyncio.create_task(lock.acquire())
    await asyncio.create_task(lock.release())
    assert not await redis.exists("a")


async def test_another_thread_sees_the_token_only_if_it_is_to(redis: Redis) -> None:
    for thread_local in (True, False):
        lock = Lock(redis, "a", timeout=20, thread_local=thread_local)
        await lock.acquire()

        def extend(lock: Lock = lock) -> Any:
            coroutine: Any = lock.extend(1)
            coroutine.close()
            return coroutine

        if thread_local:
            with pytest.raises(LockError, match="Cannot extend an unlocked lock"):
                await asyncio.to_thread(extend)
        else:
            assert await asyncio.to_thread(extend)
        await lock.release()


# -- the network ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [20, None])
async def test_lost_replies_are_made_up_for(
    client: Redis, redis: Redis, through: Proxy, timeout: float | None
) -> None:
    lock = Lock(client, "a", timeout=timeout)
    lost = [through.reset_after(ACQUIRE), through.reset_after(RELEASE)]
    assert await lock.acquire()
    assert await redis.get("a") == lock.local.token
    assert (await redis.pttl("a") > 0) is (timeout is not None)
    await lock.release()
    assert all(event.is_set() for event in lost)
    assert not await redis.exists("a")


async def test_of_a_chosen_token_a_lost_reply_lets_no_second_one_in(
    client: Redis, redis: Redis, through: Proxy
) -> None:
    await redis.set("a", "chosen", px=20_000)  # somebody else's, as it happens
    lost = through.reset_after(ACQUIRE)
    assert await Lock(client, "a", blocking=False).acquire(token="chosen") is False
    assert lost.is_set()
    assert await redis.get("a") == b"chosen"
    await redis.delete("a")


@pytest.mark.leaves_keys("a")
async def test_a_server_that_hangs_ends_the_wait(client: Redis, redis: Redis, through: Proxy) -> None:
    lock = Lock(client, "a", timeout=20)
    through.hold_requests = True
    with elapsed() as took, pytest.raises(driver.TimeoutError):
        await lock.acquire(blocking_timeout=0.3)
    assert took.seconds < 3
    through.hold_requests = False
    await free(redis)


async def test_once_it_was_refused_a_server_that_hangs_is_a_refusal(
    client: Redis, redis: Redis, through: Proxy
) -> None:
    await redis.set("a", "other", px=20_000)
    acquiring = begin(Lock(client, "a", sleep=0.01).acquire(blocking_timeout=0.5))
    before = through.count(ACQUIRE)
    await through.saw(ACQUIRE, count=before + 2)
    through.hold_requests = True
    assert await acquiring is False
    through.hold_requests = False
    await redis.delete("a")


async def test_a_release_that_failed_can_be_done_again(client: Redis, redis: Redis, through: Proxy) -> None:
    lock = Lock(client, "a", timeout=60)
    await lock.acquire()
    object.__setattr__(settings_of(client), "command_timeout", 0.3)
    through.hold_requests = True
    with elapsed() as took, pytest.raises((driver.TimeoutError, driver.ConnectionError)):
        await lock.release()
    assert took.seconds < 3
    assert lock.local.token is not None
    through.hold_requests = False
    object.__setattr__(settings_of(client), "command_timeout", 5)
    with suppress(LockNotOwnedError):  # the first one may have arrived after all
        await lock.release()
    assert lock.local.token is None
    assert not await redis.exists("a")


def settings_of(client: Redis) -> Any:
    engine = Session.of(client)._engine
    assert engine is not None
    return engine.settings


async def test_waiters_take_no_connection_of_the_pool(connect: Connect) -> None:
    client = connect(max_connections=2)
    order: list[int] = []

    async def work(number: int) -> None:
        async with client.lock("a", timeout=20, sleep=0.02, lock_class=Lock):
            order.append(number)
            await client.ping()

    await asyncio.gather(*(work(number) for number in range(30)))
    assert sorted(order) == list(range(30))


async def test_no_server_and_no_password_are_what_redis_py_raises(
    own_server: OwnServer, connect: Connect
) -> None:
    own = await own_server(arguments=("--requirepass", "secret"))
    with pytest.raises(AuthenticationError):
        await Lock(connect(own, password="wrong"), "a", timeout=1).acquire(blocking=False)
    nobody = Redis(port=1)
    try:
        with pytest.raises(driver.ConnectionError):
            await Lock(nobody, "a", timeout=1).acquire(blocking_timeout=0.3)
    finally:
        await nobody.aclose()


# -- renewing ------------------------------------------------------------------------------------------------


@pytest.mark.more  # as the renewals of `test_holder.py`
async def test_it_is_renewed_until_it_is_released(redis: Redis, keys: Any) -> None:
    lock = Lock(redis, "a", timeout=1, auto_renew=True)
    async with lock:
        token = lock.local.token
        deadline = asyncio.get_running_loop().time() + 1.3
        while asyncio.get_running_loop().time() < deadline:
            assert await redis.get("a") == token
            await asyncio.sleep(0.05)
    assert keys() == []
    assert not lock._holdings._renewals


async def test_without_it_it_is_not(redis: Redis) -> None:
    await Lock(redis, "a", timeout=0.2).acquire()
    await free(redis)


async def test_a_renewal_does_not_shorten_an_extension(redis: Redis) -> None:
    async with Lock(redis, "a", timeout=0.6, auto_renew=True) as lock:
        await lock.extend(30, replace_ttl=True)
        await asyncio.sleep(0.3)
        assert await redis.pttl("a") > 20_000


async def test_nobody_renews_what_nobody_has_any_more(redis: Redis) -> None:
    lock: Lock | None = Lock(redis, "a", timeout=0.3, auto_renew=True)
    assert lock is not None
    await lock.acquire()
    lock = None
    gc.collect()
    await free(redis)


async def test_what_was_lost_is_told_and_not_taken_again(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    lock = Lock(redis, "a", timeout=0.3, auto_renew=True)
    await lock.acquire()
    await redis.set("a", "other", px=20_000)
    with caplog.at_level(logging.WARNING, "aiolocks.session"):
        await eventually(lambda: "was lost while it was held" in caplog.text, within=5)
    with pytest.raises(LockNotOwnedError):
        await lock.release()
    assert await redis.get("a") == b"other"
    await redis.delete("a")


async def test_a_renewal_that_was_not_answered_is_made_up_for(
    client: Redis, redis: Redis, through: Proxy
) -> None:
    lock = Lock(client, "a", timeout=1.5, auto_renew=True)
    await lock.acquire()
    lost = through.reset_after(REACQUIRE)
    await asyncio.wait_for(lost.wait(), 10)
    await asyncio.wait_for(through.saw(REACQUIRE, count=through.count(REACQUIRE) + 1), 10)
    assert await lock.owned()
    await lock.release()


# -- wakeups -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "redis-py's"])
@pytest.mark.parametrize("same", [True, False], ids=["same client", "another"])
async def test_whoever_releases_wakes_who_waits(
    connect: Connect, redis: Redis, ours: bool, same: bool
) -> None:
    holder = redis.lock("a", timeout=60, lock_class=Lock if ours else RedisPyLock)
    waiter = Lock(redis if same else connect(), "a", timeout=60, sleep=30, wakeups=True)
    for _ in range(5):
        await holder.acquire()
        waiting = begin(waiter.acquire())
        await asyncio.sleep(0.02)
        await holder.release()
        with elapsed() as took:
            assert await asyncio.wait_for(waiting, 20)
        assert took.seconds < 10  # not by the poll
        await waiter.release()


async def test_many_waiters_are_woken_and_all_get_in(connect: Connect) -> None:
    clients = [connect() for _ in range(3)]

    async def work(client: Redis) -> None:
        async with Lock(client, "a", timeout=60, sleep=30, wakeups=True):
            await asyncio.sleep(0)

    async with asyncio.timeout(20):
        await asyncio.gather(*(work(clients[number % 3]) for number in range(30)))


async def test_who_hears_waits_to_the_end(redis: Redis) -> None:
    await redis.set("a", "other", px=20_000)
    with elapsed() as took:
        assert await Lock(redis, "a", sleep=30, wakeups=True).acquire(blocking_timeout=0.3) is False
    assert took.seconds >= 0.25
    with elapsed() as took:
        assert await Lock(redis, "a", sleep=30).acquire(blocking_timeout=5) is False
    assert took.seconds < 4
    await redis.delete("a")


async def test_where_nothing_is_heard_it_polls(connect: Connect, through: Proxy, redis: Redis) -> None:
    client = connect(Formed(through, "own connections"))
    await redis.set("a", "other", px=20_000)
    waiting = begin(Lock(client, "a", timeout=20, sleep=0.05, wakeups=True).acquire())
    await asyncio.sleep(0.1)
    await redis.delete("a")
    assert await asyncio.wait_for(waiting, 10)
    await redis.delete("a")


@pytest.mark.more  # as the sessions of `test_wakeups.py`
async def test_who_was_deaf_for_a_while_polls(connect: Connect, through: Proxy, redis: Redis) -> None:
    client = connect(through)
    await redis.set("a", "other", px=20_000)
    waiting = begin(Lock(client, "a", timeout=20, sleep=0.2, wakeups=True).acquire())
    await through.saw(ACQUIRE)
    await asyncio.sleep(0.02)
    deafen(through)
    await redis.delete("a")
    assert await asyncio.wait_for(waiting, 20)
    await redis.delete("a")
