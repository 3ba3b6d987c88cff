"""A forked process connects anew, has no part in the leases of its parent, and does not disturb them."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from aiolocks import LockLostError, LockNotOwnedError
from aiolocks.sync import Lease, Session
from tests.sync.conftest import held
from tests.sync.programs import run

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here"),
    # From 3.12 on Python warns of each fork of a process with threads.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def forked(work: Callable[[], Any]) -> None:
    """Does it in a fork of this process."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    end = time.monotonic() + 10
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.005)
    assert os.waitstatus_to_exitcode(ended[1]) == 0


def test_the_child_connects_anew(locks: Session, redis: Redis) -> None:
    lock = locks.lock("it")

    @locks.lock("decorated:{number}")
    def decorated(number: int) -> int:
        return number

    with lock:
        decorated(1)

    def work() -> None:
        with lock as lease, locks.rwlock("other").reader:
            assert lease.owned()
            assert decorated(2) == 2
        lease = lock.acquire()
        assert [one.pid for info in locks.call(lambda s: s.inspect("it")) for one in info.holders] == [
            os.getpid()
        ]
        lease.release()
        locks.close()

    connections = len(redis.client_list())
    forked(work)
    forked(work)
    assert len(redis.client_list()) == connections
    with lock as lease:
        lease.ensure_held()


def test_a_lease_of_the_parent(locks: Session, redis: Redis) -> None:
    with locks.lock("it", ttl=1.5) as entered, locks.lock("other").acquire() as lease:
        kept = locks.lock("kept").acquire()

        def work() -> None:
            for one in (entered, lease, kept):
                assert one.remaining() == 0
                with pytest.raises(LockLostError, match="belongs to the process that forked this one"):
                    one.ensure_held()
                for use in (one.owned, one.extend, one.release):
                    with pytest.raises(
                        LockNotOwnedError, match="belongs to the process that forked this one"
                    ):
                        use()
            with pytest.raises(LockNotOwnedError):
                lease.__exit__(None, None, None)
            assert locks.lock("it").try_acquire() is None  # held, for all that the child knows

        forked(work)
        time.sleep(1.6)  # the parent still hears of its renewals
        for one in (entered, lease, kept):
            one.ensure_held()
            assert one.owned()
        kept.release()


def test_a_fork_inside_of_the_block(locks: Session, redis: Redis) -> None:
    """The child leaves the block too: its parent's lease stays."""
    lock = locks.lock("it")

    def leaves(lease: Lease) -> None:
        with pytest.raises(LockNotOwnedError):
            lock.__exit__(None, None, None)

    with lock as lease:
        forked(lambda: leaves(lease))
        assert lease.owned()


def test_what_the_child_drops_is_not_released(locks: Session) -> None:
    leases = [locks.lock("it").acquire()]

    def work() -> None:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            leases.clear()
        assert not told

    forked(work)
    assert leases[0].owned()
    leases[0].release()


def test_a_child_that_ends_in_order_ends_nothing_of_its_parent(url: str, redis: Redis) -> None:
    printed = run(
        """
        import warnings; warnings.simplefilter("ignore", DeprecationWarning)
        lease = locks.lock("it").acquire()
        if os.fork() == 0:
            sys.exit(0)  # runs what is to be done at the end of a program
        os.wait()
        say(lease.owned())
        """,
        url,
    )
    assert printed == "True\n"


def _in_child(locks: Session, redis_url: str) -> None:
    for _ in range(5):
        with locks.lock("it", blocking_timeout=20):
            with Redis.from_url(redis_url) as redis:
                number = int(redis.get("packed") or 0)
                time.sleep(0.002)
                redis.set("packed", number + 1)


def test_a_pool_of_forks(locks: Session, url: str, redis: Redis) -> None:
    """As Celery's workers are: the session was made, and used, before."""
    with locks.lock("it"):
        pass
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_in_child, args=(locks, url)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(15)
        assert child.exitcode == 0
    assert redis.get("packed") == b"20"
    redis.delete("packed")


def test_a_fork_while_other_threads_use_it(url: str, redis: Redis) -> None:
    printed = run(
        """
        import warnings; warnings.simplefilter("ignore", DeprecationWarning)
        codes = []
        def works():
            while len(codes) < 6:
                with locks.lock("it"):
                    pass
        threads = [threading.Thread(target=works) for _ in range(4)]
        for thread in threads:
            thread.start()
        while len(codes) < 6:
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)
                with locks.lock("of-the-child", blocking_timeout=20):
                    pass
                os._exit(0)
            codes.append(os.waitpid(pid, 0)[1])
        for thread in threads:
            thread.join()
        say(set(codes))
        """,
        url,
    )
    assert printed == "{0}\n"
    assert not held(redis)


OF_THE_CHILD: list[object] = []
"""As what stands in a module, it is not collected before the end."""


def keep_and_end(url: str) -> None:
    locks = Session.from_url(url, prefix="shop")
    for _ in range(3):  # the first use of a session is not kept
        with locks.lock("kept", ttl=30, cache=8):
            pass
    assert locks.statistics().cached == 1
    OF_THE_CHILD.extend((locks, locks.lock("held", ttl=30).acquire()))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_lets_go_at_its_end_of_what_it_has_kept(url: str, redis: Redis, method: str) -> None:
    """`atexit` does not run in it."""
    child = multiprocessing.get_context(method).Process(target=keep_and_end, args=(url,))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    assert held(redis) == []
