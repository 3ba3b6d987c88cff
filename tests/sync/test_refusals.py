"""Uses that cannot work say so, and say what to do."""

from __future__ import annotations

import asyncio
import copy
import pickle
import time
from typing import Any

import pytest

from aiolocks.sync import Session
from tests.sync.programs import run

GEVENT = "from gevent import monkey; monkey.patch_all()"
EVENTLET = "import warnings; warnings.simplefilter('ignore'); import eventlet; eventlet.monkey_patch()"


@pytest.mark.parametrize(("module", "patch"), [("gevent", GEVENT), ("eventlet", EVENTLET)])
def test_green_threads(url: str, module: str, patch: str) -> None:
    pytest.importorskip(module)
    program = f"""
        import aiolocks
        late = Session.from_url(url)
        {patch}
        for use in (lambda: Session.from_url(url), lambda: late.lock("it").acquire()):
            try:
                use()
            except aiolocks.ConfigurationError as error:
                say(error)
        os._exit(0)
    """
    first, second = run(program, url).splitlines()
    assert first == second
    assert f"which {module} has replaced in this process" in first
    assert "celery --pool=prefork" in first


def test_gevent_that_has_left_threads_alone(url: str) -> None:
    pytest.importorskip("gevent")
    program = """
        from gevent import monkey
        monkey.patch_time()
        with locks.lock("it") as lease:
            say(lease.owned())
    """
    assert run(program, url) == "True\n"


def test_in_a_coroutine(locks: Session) -> None:
    lock = locks.lock("it")
    lease = lock.acquire()

    async def uses() -> None:
        for use in (lock.acquire, lock.try_acquire, lock.__enter__, lease.release, lease.owned, locks.close):
            with pytest.raises(RuntimeError, match="would block the event loop that runs in this thread"):
                use()
        await asyncio.to_thread(lease.release)

    began = time.monotonic()
    asyncio.run(uses())
    assert time.monotonic() - began < 4  # nor does it wait before it says so
    assert lease.remaining() == 0


def test_a_listener_of_the_loop_itself(url: str) -> None:
    """It would wait for the loop that waits for it."""
    told: list[RuntimeError] = []

    class Listener:
        def on_acquired(self, event: object) -> None:
            for use in (session.lock("other").acquire, session.lock("other").__enter__, session.close):
                try:
                    use()
                except RuntimeError as error:
                    told.append(error)

    with Session.from_url(url, listeners=[Listener()]) as session, session.lock("it"):
        pass
    assert len(told) == 3


def test_async_with(locks: Session) -> None:
    async def enters(it: Any) -> None:
        async with it:
            pass

    with locks.lock("it") as lease:
        for it in (locks, locks.lock("it"), lease):
            with pytest.raises(TypeError, match="write `with` instead of `async with`"):
                asyncio.run(enters(it))


def test_pickle_and_copy(locks: Session) -> None:
    with locks.lock("it") as lease:
        for it in (locks, locks.lock("it"), lease, locks.rwlock("it"), locks.rangelock("it")):
            for away in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match="cannot be pickled or copied"):
                    away(it)


def test_they_say_what_they_are(locks: Session) -> None:
    assert repr(locks) == "<sync Session prefix='shop' not used yet>" or "held=0" in repr(locks)
    assert repr(locks.lock("it")) == "<sync Lock 'it' ttl=30>"
    assert repr(locks.rwlock("it")) == "<sync RWLock 'it' ttl=30>"
    assert repr(locks.rangelock("it").writer(1, 2)) == "<sync RangeLock.writer 'it' [1.0, 2.0) ttl=30>"
    assert repr(locks.rangelock("it", ttl=5)) == "<sync RangeLock 'it' ttl=5>"


def test_a_lock_is_not_called(locks: Session) -> None:
    """`rwlock(...).reader` is a lock, not a method that makes one."""
    with pytest.raises(TypeError, match=r"use `with lock:` or `@lock`: <.*reader.*is not called"):
        locks.rwlock("a").reader()  # type: ignore[call-arg]
