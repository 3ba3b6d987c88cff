"""An acquisition without its `await`, as type checkers see it. Checked by mypy and pyright, and never run.

Each ignored line is an error to both: mypy and pyright tell of an ignore that nothing needs. An acquisition
whose value nothing uses is found by mypy's `unused-awaitable` and by pyright's `reportUnusedCallResult`; one
that is taken for an answer, by mypy's `truthy-bool` and by pyright in any mode.
"""
# mypy: enable-error-code="truthy-bool, unused-awaitable"
# pyright: reportUnusedCallResult=true, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from redis.asyncio import Redis

from aiolocks import Lock, RWLock, Semaphore, UniqueJob


async def forgotten(redis: Redis) -> None:
    lock = Lock(redis, "name")
    lock.acquire()  # type: ignore[unused-awaitable]
    lock.try_acquire()  # type: ignore[unused-awaitable]
    Semaphore(redis, "name", 3).acquire(2)  # type: ignore[unused-awaitable]
    UniqueJob(redis, "name").run()  # type: ignore[unused-awaitable]
    async with RWLock(redis, "name").upgradable as lease:
        lease.upgrade()  # type: ignore[unused-awaitable]


async def taken_for_an_answer(redis: Redis) -> None:
    lock = Lock(redis, "name")
    if lock.try_acquire():  # type: ignore[truthy-bool]
        pass
    assert Semaphore(redis, "name", 3).try_acquire(2)  # type: ignore[truthy-bool]


async def remembered(redis: Redis) -> None:
    lock = Lock(redis, "name")
    async with lock.acquire(), lock.try_acquire():
        pass
    if (lease := await lock.try_acquire()) is not None:
        await lease.release()
