"""Each kind of lock from threads: what it excludes, its own methods, its options."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from redis import Redis

import aiolocks
from aiolocks import (
    Batch,
    ConfigurationError,
    DeadlockError,
    LeaseState,
    LockTimeoutError,
    SessionClosedError,
)
from aiolocks.sync import Lock, Session, loopthread
from aiolocks.testing import EmbeddedServer
from tests.conftest import blocking
from tests.sync.conftest import held, wait_until

KINDS: dict[str, Callable[[Session], Lock[Any]]] = {
    "lock": lambda locks: locks.lock("it"),
    "fairlock": lambda locks: locks.fairlock("it"),
    "reentrantlock": lambda locks: locks.reentrantlock("it"),
    "multilock": lambda locks: locks.multilock(["it", "other"]),
    "semaphore": lambda locks: locks.semaphore("it", 1),
    "limits": lambda locks: locks.limits("it", {"all": 1}),
    "rwlock": lambda locks: locks.rwlock("it").writer,
    "rangelock": lambda locks: locks.rangelock("it").writer(1, 2),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def in_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def test_one_thread_at_a_time(locks: Session, kind: str) -> None:
    lock = KINDS[kind](locks)
    with lock as lease:
        assert (lease.name, lease.state) == (lock.name, LeaseState.HELD)
        assert 20 < lease.remaining() < 30
        lease.ensure_held()
        assert lease.owned()
        lease.extend(10)
        assert lease.ttl == 10 > lease.remaining()
        assert in_thread(KINDS[kind](locks).try_acquire) is None
        assert in_thread(lock.locked)
        with pytest.raises(LockTimeoutError, match=r"within 0\.05 s: held for .* task .MainThread"):
            in_thread(lambda: lock.acquire(blocking_timeout=0.05))
        first = lease.fencing_token
    assert lease.state is LeaseState.RELEASED
    again = lock.try_acquire()
    assert again is not None
    assert again.fencing_token > first
    again.release()
    again.release()  # does nothing
    with lock.acquire(blocking_timeout=1) as lease:
        lease.ensure_held()
    assert not lock.locked()


def test_dozens_of_threads(locks: Session, redis: Redis) -> None:
    lock, together, most = locks.lock("it", blocking_timeout=20), 0, 0

    def work() -> None:
        nonlocal together, most
        for _ in range(3):
            with lock:
                together += 1
                most = max(most, together)
                number = int(redis.get("packed") or 0)
                time.sleep(0.001)
                redis.set("packed", number + 1)
                together -= 1

    threads = [threading.Thread(target=work) for _ in range(36)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert redis.get("packed") == b"108"
    assert most == 1
    redis.delete("packed")


def test_an_entry_that_fails_leaves_nothing_to_leave(locks: Session) -> None:
    lock = locks.lock("it", blocking_timeout=0)
    with locks.lock("it"):
        with pytest.raises(LockTimeoutError):
            lock.__enter__()
    assert not lock._entered
    with lock:
        pass
    assert not lock._entered


def test_it_excludes_the_locks_of_coroutines(locks: Session, url: str) -> None:
    async def tries() -> bool:
        async with (
            aiolocks.Session.from_url(url, prefix="shop") as session,
            aiolocks.Lock(session, "it").try_acquire() as lease,
        ):
            return lease is not None

    with locks.lock("it"):
        assert not asyncio.run(tries())
    assert asyncio.run(tries())


# -- what is a kind's own


def test_a_semaphore(locks: Session) -> None:
    permits = locks.semaphore("it", 3, fair=True)
    assert permits.value == 3
    with permits.acquire(2):
        assert permits.available() == 1
        assert permits.try_acquire(2) is None
        with permits:
            assert permits.available() == 0
    permits.resize(1)
    assert permits.available() == 1
    with pytest.raises(ValueError, match="more than"):
        permits.acquire(4)
    with permits, pytest.raises(ConfigurationError):
        locks.semaphore("it", 2).acquire()


def test_limits(locks: Session) -> None:
    limits = locks.limits("it", {"all": 2, "tenant:7": 1})
    assert limits.keys == {"all": 2, "tenant:7": 1}
    with limits:
        assert limits.in_use() == {"all": 1, "tenant:7": 1}
        with locks.limits("it", {"all": 2}), pytest.raises(LockTimeoutError) as caught:
            limits.acquire(blocking_timeout=0)
        assert caught.value.full == "tenant:7"


def test_a_rate_limit(locks: Session) -> None:
    limit = locks.ratelimit("it", 2, per=60)
    assert repr(limit) == "<sync RateLimit 'it' 2 in 60 s, burst 2>"
    assert limit.name == "it"
    assert limit.peek().remaining == 2
    with limit as decision:
        assert decision.remaining == 1
    assert limit.try_acquire()
    assert not limit.try_acquire()
    with pytest.raises(LockTimeoutError, match="its turn comes in"):
        limit.acquire(blocking_timeout=1)

    @locks.ratelimit("it:{who}", 10, per=1, burst=1)
    def send(who: str) -> float:
        return time.monotonic()

    first, second = send("ada"), send("ada")
    assert second - first >= 0.09

    async def never() -> None: ...

    with pytest.raises(TypeError, match="plain function"):
        limit(never)
    with pytest.raises(TypeError, match="has no argument 'period'"):
        locks.ratelimit("it", 2, per=1, period=2)  # type: ignore[arg-type]


def test_a_latch(locks: Session) -> None:
    latch = locks.latch("it", 2, ttl=60)
    assert repr(latch) == "<sync Latch 'it' count=2 ttl=60>"
    assert latch.name == "it"
    assert latch.count_down() == 1
    with pytest.raises(LockTimeoutError, match="1 of its steps were left"):
        latch.wait(blocking_timeout=0.05)
    assert in_thread(latch.count_down) == 0
    with latch:
        pass
    assert latch.reset(5) == 5


def test_a_combiner(locks: Session) -> None:
    combiner = locks.combiner("it:{who}", ttl=10)
    assert repr(combiner) == "<sync Combiner 'it:{who}' ttl=10>"
    assert combiner.name == "it:{who}"
    threads: set[int] = set()

    @combiner
    def double(batch: Batch) -> None:
        threads.add(threading.get_ident())
        batch.results = [2 * item for item in batch.items]

    assert double(4, who="ada") == 8
    assert threads.isdisjoint({threading.get_ident()})
    assert combiner.leave(5, who="ben").pressure == 1
    assert combiner.submit(6, lambda batch: batch.items, who="ben") == [5, 6]

    with pytest.raises(TypeError, match="plain function"):
        combiner(never)
    with pytest.raises(TypeError, match="has no argument 'retries'"):
        locks.combiner("it", retries=2)


def test_each_run_of_a_combiner_has_a_thread(locks: Session) -> None:
    """Runs of many names go on at once, whichever number of threads a loop has."""
    many = 40
    together = threading.Barrier(many)
    combiner = locks.combiner("it:{name}")

    def run(batch: Batch) -> str:
        together.wait(10)
        return threading.current_thread().name

    with ThreadPoolExecutor(many) as pool:
        names = set(pool.map(lambda number: combiner.submit(number, run, name=number), range(many)))
    assert names == {f"aiolocks-combiner-it:{number}" for number in range(many)}


@pytest.mark.parametrize("raised", [ValueError("no"), StopIteration("no"), SystemExit("no")])
def test_a_run_of_a_combiner_that_raises_ends_no_loop(locks: Session, raised: BaseException) -> None:
    combiner = locks.combiner("it")

    def run(batch: Batch) -> None:
        raise raised

    with pytest.raises((ValueError, RuntimeError), match=r"no|raised StopIteration|raised SystemExit"):
        combiner.submit(1, run)
    assert combiner.submit(2, lambda batch: batch.items) == [2]


def test_a_run_of_a_combiner_that_has_lost_its_lease_is_told_when_it_ends(
    locks: Session, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    combiner = locks.combiner("it", ttl=2)
    freed, over = threading.Event(), threading.Event()

    def run(batch: Batch) -> str:
        if freed.is_set():
            return "second"
        freed.set()
        assert redis.delete("shop:combiner:{it}")
        over.wait(10)
        return "first"

    assert combiner.submit(1, run) == "second"
    over.set()
    wait_until(lambda: "a run has ended that nobody waits for any more" in caplog.text)


async def never(batch: Batch) -> None: ...


def test_readers_and_writers(locks: Session) -> None:
    lock = locks.rwlock("it")
    assert lock.name == "it"
    with lock.reader, lock.upgradable as upgradable:
        assert in_thread(lock.writer.try_acquire) is None
        with pytest.raises(LockTimeoutError):
            upgradable.upgrade(blocking_timeout=0.05)
    with lock.upgradable as upgradable:
        with upgradable.upgrade() as writer:
            assert writer.kind == "rwlock.writer"
            assert in_thread(lock.reader.try_acquire) is None
        upgradable.ensure_held()
    with lock.writer as writer:
        writer.downgrade()
        assert writer.kind == "rwlock.reader"
        with lock.reader:
            pass


def test_intervals(locks: Session) -> None:
    lock = locks.rangelock("it", bounds="[]")
    with lock.writer(1, 5) as writer:
        assert in_thread(lock.reader(5, 6).try_acquire) is None
        writer.shrink(1, 4)
        with lock.reader(5, 6) as reader:
            assert reader.kind == "rangelock.reader"
    with lock.upgradable(1, 9) as upgradable:
        with upgradable.upgrade(2, 3, blocking_timeout=1) as part:
            assert in_thread(lock.reader(3, 3).try_acquire) is None
            with lock.reader(4, 4):
                pass
            part.ensure_held()


def test_a_majority_of_masters(locks: Session, redis: Redis) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(EmbeddedServer()) for _ in range(2)]
        others = [Session.from_url(one.url, prefix="shop") for one in servers]
        for other in others:
            stack.callback(other.close)
        lock = locks.redlock(others, "it", ttl=10)
        with lock as lease:
            assert lease.kind == "redlock"
            assert in_thread(lock.try_acquire) is None
        with pytest.raises(ValueError, match="odd number"):
            locks.redlock(others[:1], "it")
        with blocking(servers[0].url) as client:
            connections = len(client.client_list())
            others[0].close()
            wait_until(lambda: len(client.client_list()) < connections)
    with pytest.raises(TypeError, match="one for each other master"):
        locks.redlock([redis], "it")  # type: ignore[list-item]


def test_a_thread_is_an_owner(locks: Session) -> None:
    def depth() -> int:
        with locks.reentrantlock("it", blocking_timeout=0.05) as lease:
            return lease.depth

    with locks.reentrantlock("it") as outer:
        with locks.reentrantlock("it").acquire() as inner:
            assert (outer.depth, inner.depth) == (1, 2)
            assert inner.fencing_token == outer.fencing_token
        with pytest.raises(LockTimeoutError):
            in_thread(depth)
    assert in_thread(depth) == 1


def test_a_thread_is_told_that_it_waits_for_itself(locks: Session) -> None:
    lock = locks.lock("it")
    said = (
        "this thread itself holds Lock 'it', which excludes it; pass the lease on, or use a `reentrantlock`"
    )
    with lock, pytest.raises(DeadlockError, match=said):
        lock.acquire()
    with lock, pytest.raises(LockTimeoutError, match=r"held by this thread itself; .* use a `reentrantlock`"):
        lock.acquire(blocking_timeout=0.2)


def test_a_thread_that_has_left_a_block_open_waits_for_no_lock_of_its_own(locks: Session) -> None:
    """As a thread of FastAPI's pool does, in which a dependency has begun that ends in another one."""

    @contextmanager
    def dependency() -> Iterator[None]:
        with locks.lock("it"):
            yield

    opened = dependency()
    with ThreadPoolExecutor(1) as begins, ThreadPoolExecutor(1) as ends:
        begins.submit(opened.__enter__).result()
        waits = begins.submit(locks.lock("it").acquire)
        time.sleep(0.1)
        assert not waits.done()
        ends.submit(opened.__exit__, None, None, None).result()
        waits.result().release()


def test_the_exit_may_be_in_another_thread(locks: Session, redis: Redis) -> None:
    lock = locks.lock("it")
    lock.__enter__()
    in_thread(lambda: lock.__exit__(None, None, None))
    assert not held(redis)
    with pytest.raises(RuntimeError, match="cannot tell which lease"):
        lock.__exit__(None, None, None)


def test_threads_that_share_a_lock_leave_their_own_block(locks: Session) -> None:
    permits = locks.semaphore("it", 2)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        first = one.submit(permits.__enter__).result()
        second = other.submit(permits.__enter__).result()
        one.submit(permits.__exit__, None, None, None).result()
        assert (first.state, second.state) == (LeaseState.RELEASED, LeaseState.HELD)
        other.submit(permits.__exit__, None, None, None).result()
        assert second.state is LeaseState.RELEASED


# -- as decorators


def test_a_decorator_holds_the_lock_of_the_arguments(locks: Session) -> None:
    @locks.lock("order:{order_id}", ttl=7)
    def ship(order_id: int, *, express: bool = False) -> tuple[list[Any], bool]:
        """Ships it."""
        return locks.call(lambda session: session.inspect("order:*")), express

    found, express = ship(17, express=True)
    assert [(one.name, express) for one in found] == [("order:17", True)]
    assert (ship.__name__, ship.__doc__) == ("ship", "Ships it.")

    @locks.multilock(["account:{one}", "account:{two}"])
    def transfer(one: str, two: str) -> list[str]:
        return [info.name for info in locks.call(lambda session: session.inspect())]

    assert transfer("b", "a") == ["account:a", "account:b"]

    with pytest.raises(TypeError, match="order_id"):
        locks.lock("order:{order_id}")(lambda order: order)


@pytest.mark.parametrize("what", ["coroutine", "async generator", "generator", "nothing"])
def test_what_cannot_be_decorated(locks: Session, what: str) -> None:
    async def coroutine() -> None: ...

    async def agen() -> Any:
        yield

    def gen() -> Any:
        yield

    functions: dict[str, Any] = {
        "coroutine": coroutine,
        "async generator": agen,
        "generator": gen,
        "nothing": 7,
    }
    with pytest.raises(TypeError, match="decorates a"):
        locks.lock("it")(functions[what])


# -- sessions


def test_a_closed_session(url: str) -> None:
    session = Session.from_url(url)
    lock = session.lock("it")
    assert "not used yet" in repr(session)
    with session, lock:
        assert session.statistics().leases_held == 1
    assert repr(session) == "<sync Session closed>"
    for use in (lock.acquire, lock.try_acquire, lock.locked, lambda: session.call(_nothing)):
        with pytest.raises(SessionClosedError):
            use()
    session.close()  # does nothing
    with session, lock as lease:  # opens it again
        lease.ensure_held()


async def _nothing(session: aiolocks.Session) -> None: ...


def test_a_waiter_of_a_session_that_is_closed(url: str) -> None:
    session, errors = Session.from_url(url), list[BaseException]()
    other = Session.from_url(url)

    def waits() -> None:
        try:
            session.lock("it").acquire()
        except SessionClosedError as error:
            errors.append(error)

    def holds() -> None:
        try:
            with session.lock("mine"):
                time.sleep(0.3)
        except aiolocks.LockLostError as error:
            errors.append(error)

    with other, other.lock("it"):
        threads = [threading.Thread(target=work) for work in (waits, holds)]
        for thread in threads:
            thread.start()
        wait_until(lambda: session.statistics().waiters == 1 and session.statistics().leases_held == 1)
        session.close()
        for thread in threads:
            thread.join(5)
    assert sorted(type(error).__name__ for error in errors) == ["LockLostError", "SessionClosedError"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_block_that_outlasts_its_session_and_the_loop(url: str, redis: Redis, fails: bool) -> None:
    session, ended = Session.from_url(url), list[BaseException]()
    begun, may_end = threading.Event(), threading.Event()

    def holds() -> None:
        try:
            with session.lock("it", ttl=1):
                begun.set()
                may_end.wait(20)
                if fails:
                    raise KeyError
        except (aiolocks.LockLostError, KeyError) as error:
            ended.append(error)

    thread = threading.Thread(target=holds)
    thread.start()
    begun.wait(5)
    session.close()
    may_end.set()
    thread.join(5)
    (error,) = ended
    assert isinstance(error, KeyError if fails else aiolocks.LockLostError)
    assert "was lost: the session was closed" in (error.__notes__[0] if fails else str(error))


def test_a_client_of_ones_own(url: str, redis: Redis) -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(aiolocks_client(url))
        return made[-1]

    with Session.from_url(make) as session, session.lock("it") as lease:
        assert lease.owned()
    assert len(made) == 1
    for wrong in (redis, 7):
        with pytest.raises(TypeError, match="give a URL, or a function"):
            Session.from_url(wrong)  # type: ignore[arg-type]


def aiolocks_client(url: str) -> Any:
    from redis.asyncio import Redis as AsyncRedis

    return AsyncRedis.from_url(url)


def test_one_loop_serves_all_sessions_of_the_process(url: str) -> None:
    def threads() -> int:
        return [thread.name for thread in threading.enumerate()].count("aiolocks-sync")

    before = threads()
    with Session.from_url(url) as one, Session.from_url(url, prefix="shop") as two:
        with one.lock("it"), two.lock("it"):
            assert threads() == before + 1
        two.close()
        with one.lock("it"):
            assert threads() == before + 1
    assert threads() == before


def test_what_the_function_of_call_raises(locks: Session) -> None:
    async def fails(session: aiolocks.Session) -> None:
        raise KeyError(type(session))

    with pytest.raises(KeyError, match="Session"):
        locks.call(fails)
    with pytest.raises(TypeError, match="takes a coroutine function of the asynchronous session"):
        locks.call(lambda session: session.statistics())  # type: ignore[arg-type,return-value]


def test_nothing_stays_of_threads_that_have_ended(locks: Session) -> None:
    with locks.lock("it"):
        thread = loopthread._current
    assert thread is not None
    for _ in range(20):
        in_thread(locks.lock("it", blocking_timeout=5).acquire).release()
    wait_until(lambda: len(thread.tasks) <= 2)  # one is that of this thread


# -- options

OWN = {"client", "clients", "self", "unknown", "on_lost", "grace"}


@pytest.mark.parametrize(
    "cls",
    [
        "Lock",
        "FairLock",
        "ReentrantLock",
        "MultiLock",
        "Semaphore",
        "Limits",
        "RWLock",
        "RangeLock",
        "Redlock",
    ],
)
def test_each_kind_has_the_options_of_the_asynchronous_one(cls: str) -> None:
    theirs = inspect.signature(getattr(aiolocks, cls).__init__).parameters
    ours = inspect.signature(getattr(Session, cls.lower())).parameters
    assert {name: one.default for name, one in ours.items() if name not in OWN | {"others"}} == {
        name: one.default for name, one in theirs.items() if name not in OWN
    }
    assert ours["on_lost"].default is None


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"timeout": 7}, TypeError, "did you mean ttl="),
        ({"grace": 7}, TypeError, r"did you mean lease.remaining\(\): a thread cannot be cancelled"),
        ({"on_lost": "cancel"}, TypeError, "must be a function that is called with the LockLostError"),
        ({"ttl": 0}, ValueError, "ttl must be"),
        ({"blocking_timeout": "1"}, TypeError, "blocking_timeout must be"),
    ],
)
def test_options_are_checked_before_anything_is_sent(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    session = Session.from_url("redis://127.0.0.1:1")
    for make in (session.lock, session.rwlock, session.rangelock, session.fairlock):
        with pytest.raises(error, match=text):
            make("it", **options)


def test_the_time_to_wait_has_a_name(locks: Session) -> None:
    with pytest.raises(TypeError, match=r"did you mean acquire\(blocking_timeout=5"):
        locks.lock("it").acquire(5)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match=r"the lease that acquire\(\) gives has it"):
        _ = locks.lock("it").release  # type: ignore[attr-defined]


def test_the_end_of_a_block_may_go_on_without_the_answer(locks: Session, redis: Redis, kind: str) -> None:
    """`confirm=False`: while the server answers no release, a thread leaves its block; `release()` waits."""
    of_kind = {
        "lock": lambda: locks.lock("it", confirm=False),
        "fairlock": lambda: locks.fairlock("it", confirm=False),
        "reentrantlock": lambda: locks.reentrantlock("it", confirm=False),
        "multilock": lambda: locks.multilock(["it", "other"], confirm=False),
        "semaphore": lambda: locks.semaphore("it", 1, confirm=False),
        "limits": lambda: locks.limits("it", {"all": 1}, confirm=False),
        "rwlock": lambda: locks.rwlock("it", confirm=False).writer,
        "rangelock": lambda: locks.rangelock("it", confirm=False).writer(1, 2),
    }
    lock: Lock[Any] = of_kind[kind]()
    with lock as lease:
        redis.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    try:
        assert lease.state is not LeaseState.RELEASED
        assert lease.remaining() == 0
    finally:
        redis.execute_command("CLIENT", "UNPAUSE")
    assert lease.wait_released()
    assert lease.state is LeaseState.RELEASED
    lease = lock.acquire()
    lease.release()
    assert lease.state is LeaseState.RELEASED
