"""The cancel sweep finds a swallowed, a turned, a held up and a leaking cancel, and passes what is right."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from importlib.metadata import version

import anyio
import pytest

from tests.support.cancel import CancelAt, Mode, Shot, cancel_twice, sweep, sweep_scopes

ANYIO = tuple(map(int, version("anyio").split(".")[:2]))


async def suspend() -> None:
    """Suspends exactly once, on a future, for more turns than a failing sibling needs to cancel."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def turn(left: int) -> None:
        if left:
            loop.call_soon(turn, left - 1)
        elif not future.done():
            future.set_result(None)

    turn(10)
    await future


async def three_awaits() -> str:
    await suspend()
    await asyncio.sleep(0)
    await suspend()
    return "done"


async def swallows() -> str:
    await suspend()
    with suppress(asyncio.CancelledError):
        await suspend()
    await asyncio.sleep(0)
    return "as if nothing had been"


async def turns_it_into_an_error() -> None:
    try:
        await suspend()
    except asyncio.CancelledError:
        raise TimeoutError from None


async def holds_it_up() -> None:
    try:
        await suspend()
    finally:
        await asyncio.sleep(0.2)


class Account:
    """Something to leave behind: what was taken and is not given back."""

    def __init__(self) -> None:
        self.taken = 0

    async def take(self) -> None:
        """Takes, and is told of it one turn of the loop later, as from a server."""
        loop, answer = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def served() -> None:
            self.taken += 1
            if not answer.done():
                answer.set_result(None)

        loop.call_soon(served)
        await answer

    async def give_back(self) -> None:
        await suspend()
        self.taken -= 1

    async def naively(self) -> None:
        await self.take()
        try:
            await suspend()
        finally:
            await self.give_back()

    async def shielded(self) -> None:
        """Leaves nothing behind, however often it is cancelled."""
        work = asyncio.ensure_future(self.take())
        cancelled = await self._uninterrupted(work)
        try:
            if not cancelled:
                await suspend()
        finally:
            cancelled |= await self._uninterrupted(asyncio.ensure_future(self.give_back()))
        if cancelled:
            raise asyncio.CancelledError

    @staticmethod
    async def _uninterrupted(work: asyncio.Future[None]) -> bool:
        cancelled = False
        while not work.done():
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:
                cancelled = True
        return cancelled

    async def nothing_left(self, shot: Shot) -> None:
        left, self.taken = self.taken, 0
        if left:
            raise LookupError(f"{left} left by {shot.mode} {shot.k}")


@pytest.mark.parametrize("mode", ["early", "late"])
async def test_cancels_at_exactly_the_kth_suspension(mode: Mode) -> None:
    driver = CancelAt(three_awaits(), 2, mode)

    task = asyncio.ensure_future(driver)
    await asyncio.wait({task})

    assert task.cancelled()
    assert driver.suspensions == 2
    assert "three_awaits" in driver.where


async def test_a_coroutine_with_fewer_suspensions_just_finishes() -> None:
    driver = CancelAt(three_awaits(), 4)

    assert await driver == "done"
    assert not driver.fired
    assert driver.suspensions == 3


@pytest.mark.parametrize(("mode", "done"), [("early", False), ("late", True)])
async def test_late_is_after_it_happened_and_early_is_before(mode: Mode, done: bool) -> None:
    future = asyncio.get_running_loop().create_future()

    async def awaits() -> None:
        await future

    asyncio.get_running_loop().call_later(0.001, lambda: future.done() or future.set_result(None))
    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(CancelAt(awaits(), 1, mode))

    assert future.cancelled() != done


async def test_values_and_errors_pass_through() -> None:
    failed = asyncio.get_running_loop().create_future()
    failed.set_exception(KeyError("k"))

    async def catches() -> str:
        await suspend()
        try:
            await asyncio.wait_for(failed, 1)
        except KeyError as error:
            return repr(error)
        return "none"

    assert await CancelAt(catches(), 0) == "KeyError('k')"


@pytest.mark.parametrize("sweeper", [sweep, sweep_scopes, cancel_twice])
async def test_every_suspension_is_cancelled_in_both_modes(sweeper) -> None:
    shots = await sweeper(three_awaits)

    assert [(shot.mode, shot.k) for shot in shots] == [
        ("early", 1), ("early", 2), ("early", 3), ("late", 1), ("late", 2), ("late", 3)
    ]  # fmt: skip


async def test_a_failing_sibling_cancels_as_its_scope_does() -> None:
    shots = await sweep_scopes(three_awaits, by="sibling")

    assert {shot.k for shot in shots} == {1, 2, 3}


async def test_a_swallowed_cancel_is_detected() -> None:
    with pytest.raises(AssertionError, match=r"suspension 2 \(early\).*swallowed.*'as if nothing had been'"):
        await sweep(swallows)
    with pytest.raises(AssertionError, match=r"suspension 2 \(late\).*swallowed"):
        await sweep(swallows, modes=["late"])


async def test_a_cancel_swallowed_under_a_scope_is_detected() -> None:
    async def swallows_at_the_end() -> None:
        with suppress(asyncio.CancelledError):
            await suspend()

    for by in ("scope", "sibling"):
        with pytest.raises(AssertionError, match="swallowed"):
            await sweep_scopes(swallows_at_the_end, by=by)


async def test_a_shield_may_outlast_its_scope() -> None:
    async def shielded() -> None:
        with anyio.CancelScope(shield=True):
            await suspend()

    assert len(await sweep_scopes(shielded)) == 2


@pytest.mark.skipif(ANYIO < (4, 6), reason="a scope of anyio says so in another way")
async def test_an_uncancel_too_few_is_detected() -> None:
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        await suspend()

    with pytest.raises(AssertionError, match="1 cancel requests too many"):
        await sweep_scopes(cancels_itself)


async def test_a_turned_cancel_is_detected() -> None:
    with pytest.raises(AssertionError, match="TimeoutError"):
        await sweep(turns_it_into_an_error)
    with pytest.raises(AssertionError, match="TimeoutError"):
        await sweep_scopes(turns_it_into_an_error)


async def test_a_cancel_that_is_held_up_is_detected() -> None:
    with pytest.raises(AssertionError, match=r"held up for more than 0\.05 s"):
        await sweep(holds_it_up, within=0.05)
    await sweep(holds_it_up, within=0.5, modes=["early"])


async def test_what_was_left_behind_is_shown_to_after() -> None:
    account = Account()

    with pytest.raises(LookupError, match="left by early 1"):
        await sweep(account.naively, after=account.nothing_left)


async def test_what_came_but_was_never_told_is_found_by_late_alone() -> None:
    account = Account()

    async def takes() -> None:
        taken = asyncio.get_running_loop().create_future()

        def served() -> None:
            if not taken.cancelled():
                account.taken += 1
                taken.set_result(None)

        asyncio.get_running_loop().call_later(0.001, served)
        await taken
        account.taken -= 1

    await sweep(takes, modes=["early"], after=account.nothing_left)
    with pytest.raises(LookupError, match="left by late 1"):
        await sweep(takes, modes=["late"], after=account.nothing_left)


async def test_the_second_cancel_finds_a_clean_up_that_stands_only_one() -> None:
    account = Account()

    async def cleans_up_in_vain() -> None:
        try:
            await suspend()
        except asyncio.CancelledError:
            account.taken += 1
            await asyncio.sleep(0.01)
            account.taken -= 1
            raise

    await sweep(cleans_up_in_vain, after=account.nothing_left)
    with pytest.raises(LookupError):
        await cancel_twice(cleans_up_in_vain, after=account.nothing_left)


@pytest.mark.parametrize("sweeper", [sweep, sweep_scopes, cancel_twice])
async def test_what_is_right_passes_all_of_them(sweeper) -> None:
    account = Account()

    await sweeper(account.shielded, after=account.nothing_left)


async def test_a_coroutine_without_suspensions_is_no_test() -> None:
    async def at_once() -> None:
        pass

    with pytest.raises(AssertionError, match="never suspends"):
        await sweep(at_once)


async def test_an_endless_coroutine_is_given_up() -> None:
    async def endless() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="still suspending after 20 awaits"):
        await sweep(endless, limit=20)


async def test_an_error_of_the_coroutine_itself_is_its_own() -> None:
    async def fails() -> None:
        await suspend()
        raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        await sweep(fails)
