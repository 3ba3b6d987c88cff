"""`wait_shielded`: clean-up is waited for. A cancellation is held up for a second at most."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable

import anyio
import pytest

from aiolocks.lock.shield import wait_shielded


class CleanUp:
    """Something that goes on by itself; `done` ends it for all who wait."""

    def __init__(self) -> None:
        self.waiters: list[asyncio.Future[None]] = []

    def ended(self) -> asyncio.Future[None]:
        self.waiters.append(asyncio.get_running_loop().create_future())
        return self.waiters[-1]

    def done(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)


@pytest.fixture
def clean_up() -> CleanUp:
    return CleanUp()


@pytest.fixture
def waiting(clean_up) -> Callable[..., asyncio.Task[None]]:
    def start(*, hurried: bool) -> asyncio.Task[None]:
        cancelled_by = asyncio.CancelledError() if hurried else None
        return asyncio.create_task(wait_shielded(clean_up.ended, cancelled_by=cancelled_by))

    return start


async def test_in_no_hurry_it_waits_to_the_end(clock, clean_up, waiting) -> None:
    task = waiting(hurried=False)
    await asyncio.sleep(3600)
    assert not task.done()

    clean_up.done()
    await task


async def test_in_a_hurry_it_waits_for_one_second(clock, waiting) -> None:
    began = clock.now()

    await waiting(hurried=True)

    assert clock.now() - began == pytest.approx(1)


async def test_in_a_hurry_it_waits_no_longer_than_needed(clock, clean_up, waiting) -> None:
    began = clock.now()
    asyncio.get_running_loop().call_later(0.3, clean_up.done)

    await waiting(hurried=True)

    assert clock.now() - began == pytest.approx(0.3)


@pytest.mark.parametrize("hurried", [False, True])
async def test_a_cancellation_is_held_up_for_a_second_and_raised(clock, waiting, hurried) -> None:
    task = waiting(hurried=hurried)
    await asyncio.sleep(0)
    began = clock.now()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.now() - began == pytest.approx(1)


async def test_a_cancellation_is_raised_as_soon_as_the_clean_up_has_ended(clock, clean_up, waiting) -> None:
    task = waiting(hurried=False)
    await asyncio.sleep(0)
    began = clock.now()
    task.cancel()
    asyncio.get_running_loop().call_later(0.3, clean_up.done)

    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.now() - began == pytest.approx(0.3)


async def test_more_cancellations_do_not_hurry_it_further(clock, waiting) -> None:
    task = waiting(hurried=False)
    await asyncio.sleep(0)
    began = clock.now()
    for _ in range(5):
        task.cancel()
        await asyncio.sleep(0.1)

    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.now() - began == pytest.approx(1)


@pytest.mark.parametrize("more", [0, 1])
async def test_a_cancellation_that_passes_several_clean_ups_is_held_up_for_a_second_in_all(
    clock, clean_up, more
) -> None:
    """As of locks inside each other; also where it is cancelled once more meanwhile."""

    async def unwinding() -> None:
        try:
            await wait_shielded(clean_up.ended, cancelled_by=None)
        except asyncio.CancelledError as error:
            await wait_shielded(clean_up.ended, cancelled_by=error)
            raise

    task = asyncio.create_task(unwinding())
    await asyncio.sleep(0)
    began = clock.now()
    task.cancel()
    for _ in range(more):
        await asyncio.sleep(0.3)
        task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.now() - began == pytest.approx(1)


async def test_a_cancelled_anyio_scope_is_held_up_without_spinning(clock, clean_up) -> None:
    began = clock.now()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await wait_shielded(clean_up.ended, cancelled_by=None)

    assert scope.cancelled_caught
    assert clock.now() - began == pytest.approx(1)
    assert len(clean_up.waiters) == 2


async def test_a_hurried_wait_in_a_cancelled_anyio_scope_leaves_the_cancelling_to_the_scope(
    clock, clean_up
) -> None:
    asyncio.get_running_loop().call_later(0.3, clean_up.done)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await wait_shielded(clean_up.ended, cancelled_by=asyncio.CancelledError())
        ended_at = clock.now()
        await anyio.sleep(60)

    assert scope.cancelled_caught
    assert clock.now() == ended_at


def test_without_scopes_of_anyio_its_backend_is_not_loaded_in_the_middle_of_a_loss() -> None:
    program = """
import asyncio, sys
from aiolocks.lock.shield import wait_shielded

async def main():
    def ended():
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    await wait_shielded(ended, cancelled_by=asyncio.CancelledError())
    assert not [name for name in sys.modules if name.startswith("anyio._backends")]

asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
