"""Cancellation at every await: deterministic, without sleeps and luck.

A coroutine can be cancelled only where it is suspended. `CancelAt` drives a coroutine by hand and cancels at
its k-th suspension; `sweep` does so for every k there is and holds each outcome against the one rule of
asyncio: a cancelled coroutine ends with `CancelledError`, and soon.

At each suspension there are two moments to cancel in, and both happen in practice:

early: The awaited future is still pending. It is cancelled with the task; what it stood for may happen
    nevertheless.
late: The future is done, but the task has not been resumed yet. The awaited event *has* happened, and the
    task will never be told. This is where locks leak.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import anyio

T = TypeVar("T")

Mode = Literal["early", "late"]
MODES: tuple[Mode, ...] = ("early", "late")


class CancelAt(Generic[T]):
    """Awaits a coroutine and cancels the awaiting task at the coroutine's k-th suspension.

    The cancel fires at most once. Whether it did, tells `fired`; a coroutine with fewer suspensions just
    finishes.

    Args:
        coroutine: The coroutine to drive.
        k: The suspension to cancel at, counted from 1; 0 for never.
        mode: Before (``"early"``) or after (``"late"``) the awaited future is done.
        cancel: The act instead of cancelling the task, such as cancelling a scope.

    Attributes:
        suspensions: How often the coroutine has suspended.
        where: The innermost frames that it stood in when the cancel was fired, or armed to fire.
        firing: Done when the cancel has been fired: a future, so that it can be waited for beside the task.
        delivered: Whether the coroutine has been shown a `CancelledError` since. A shielded one is spared it.
    """

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, T],
        k: int,
        mode: Mode = "early",
        *,
        cancel: Callable[[], object] | None = None,
    ) -> None:
        self.k = k
        self.mode = mode
        self.cancel = cancel
        self.suspensions = 0
        self.where = "nowhere"
        self.firing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.delivered = False
        self._coroutine = coroutine

    @property
    def fired(self) -> bool:
        return self.firing.done()

    def __await__(self) -> Generator[Any, Any, T]:
        if self.cancel is None:
            task = asyncio.current_task()
            assert task is not None
            self.cancel = task.cancel
        resume: Callable[[], Any] = partial(self._coroutine.send, None)
        while True:
            try:
                awaited = resume()
            except StopIteration as stop:
                result: T = stop.value
                return result
            self.suspensions += 1
            if self.suspensions == self.k:
                self.where = _where(self._coroutine)
                if self.mode == "late" and awaited is not None:
                    # The task adds its own wakeup only when it gets the future from the `yield` below, and
                    # callbacks run in the order in which they were added: ours comes between "done" and
                    # "resumed".
                    awaited.add_done_callback(self._fire)
                else:
                    self._fire()
            try:
                sent = yield awaited
            except BaseException as error:
                if self.fired and isinstance(error, asyncio.CancelledError):
                    self.delivered = True
                resume = partial(self._coroutine.throw, error)
            else:
                resume = partial(self._coroutine.send, sent)

    def _fire(self, _: object = None) -> None:
        assert self.cancel is not None
        self.firing.set_result(None)
        self.cancel()


@dataclass(frozen=True, slots=True)
class Shot:
    """One cancel that a coroutine has survived as it should."""

    k: int
    mode: Mode
    where: str


After = Callable[[Shot], Awaitable[object]]
Make = Callable[[], Coroutine[Any, Any, object]]
_Run = Callable[[CancelAt[object]], Coroutine[Any, Any, None]]


async def sweep(
    make_coroutine: Make,
    *,
    modes: Sequence[Mode] = MODES,
    limit: int = 1000,
    within: float = 1.5,
    after: After | None = None,
    again: float | None = None,
) -> list[Shot]:
    """Cancel a coroutine at each of its suspensions in turn, each time from the start in a task of its own.

    Args:
        make_coroutine: Makes the coroutine again for every run.
        modes: Which moments of a suspension to cancel in.
        limit: The suspension at which to give up, so that an endless coroutine fails instead of hanging.
        within: Seconds from the cancel to the end of the task; the library promises 1 s and one scheduling
            delay.
        after: Awaited after each cancelled run, to look at what was left behind.
        again: Seconds after the first cancel at which to cancel a second time.

    Returns:
        What was fired, for the test to look at. Never empty.

    Raises:
        AssertionError: The cancel was swallowed, turned into something else or held up, or nothing was ever
            awaited.
    """

    async def run(driver: CancelAt[object]) -> None:
        result = await driver
        if driver.fired:
            raise AssertionError(f"swallowed: the coroutine returned {result!r}")

    return await _sweep(make_coroutine, run, modes, limit, within, after, again)


async def cancel_twice(make_coroutine: Make, *, gap: float = 0.003, **options: Any) -> list[Shot]:
    """`sweep`, with a second cancel `gap` seconds after each first one: in the midst of cleaning up."""
    return await sweep(make_coroutine, again=gap, **options)


async def sweep_scopes(
    make_coroutine: Make,
    *,
    by: Literal["scope", "sibling"] = "scope",
    modes: Sequence[Mode] = MODES,
    limit: int = 1000,
    within: float = 1.5,
    after: After | None = None,
) -> list[Shot]:
    """`sweep` with anyio's level-triggered cancellation, which comes back at every await of the scope.

    A coroutine that was shielded throughout may return, and is cancelled at the next checkpoint; one that has
    seen the `CancelledError` must end with it. A scope cannot cancel the task that is running: the cancel
    lands one turn of the loop after the suspension (a sibling's, two), and is late if the awaited future was
    quicker.

    Args:
        make_coroutine: Makes the coroutine again for every run.
        by: The canceller: the enclosing ``CancelScope`` itself, or a sibling that fails in the enclosing task
            group.
        modes: As for `sweep`; a late cancel is shown to the coroutine at its next suspension.
        limit: As for `sweep`.
        within: As for `sweep`.
        after: As for `sweep`.
    """

    async def guarded(driver: CancelAt[object], cancel: Callable[[], object]) -> None:
        driver.cancel = cancel
        result = await driver
        if driver.delivered:
            raise AssertionError(f"swallowed: the coroutine returned {result!r}")
        if driver.fired:
            await anyio.sleep_forever()

    async def in_scope(driver: CancelAt[object]) -> None:
        with anyio.CancelScope() as scope:
            await guarded(driver, scope.cancel)
        _end(driver)

    async def beside_sibling(driver: CancelAt[object]) -> None:
        failing = anyio.Event()

        async def sibling() -> None:
            await failing.wait()
            raise _SiblingFailedError

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(sibling)
                await guarded(driver, failing.set)
                group.cancel_scope.cancel()
        except* _SiblingFailedError:
            pass
        _end(driver)

    def _end(driver: CancelAt[object]) -> None:
        """Behind the scope the task must be as if nothing had been: a cancel() too many shows here."""
        task = asyncio.current_task()
        assert task is not None
        if task.cancelling():
            raise AssertionError(f"left behind: {task.cancelling()} cancel requests too many on the task")
        if driver.fired:
            raise asyncio.CancelledError

    run = in_scope if by == "scope" else beside_sibling
    return await _sweep(make_coroutine, run, modes, limit, within, after, None)


class _SiblingFailedError(Exception):
    """The error that the failing sibling raises."""


async def _sweep(
    make_coroutine: Make,
    run: _Run,
    modes: Sequence[Mode],
    limit: int,
    within: float,
    after: After | None,
    again: float | None,
) -> list[Shot]:
    shots: list[Shot] = []
    for mode in modes:
        for k in count(1):
            if k > limit:
                raise AssertionError(f"still suspending after {limit} awaits")
            driver = CancelAt(make_coroutine(), k, mode)
            await _shoot(driver, run(driver), within, again)
            if not driver.fired:
                break
            shot = Shot(k, mode, driver.where)
            shots.append(shot)
            if after is not None:
                await after(shot)
    if not shots:
        raise AssertionError("nothing to sweep: the coroutine never suspends")
    return shots


async def _shoot(
    driver: CancelAt[object], run: Coroutine[Any, Any, None], within: float, again: float | None
) -> None:
    """Run to the end; raise unless it finished undisturbed, or was cancelled and ended so in time."""
    task = asyncio.create_task(run)
    try:
        await asyncio.wait({task, driver.firing}, return_when=asyncio.FIRST_COMPLETED)
        if again is not None:
            await asyncio.wait({task}, timeout=again)
            task.cancel()
        await asyncio.wait({task}, timeout=within)
        if task.cancelled() and driver.fired:
            return
        try:
            if not task.done():
                raise AssertionError(f"held up for more than {within} s")
            task.result()
        except BaseException as error:
            if not driver.fired:
                raise
            raise AssertionError(
                f"cancel at suspension {driver.k} ({driver.mode}) {error!r}\nat {driver.where}"
            ) from error
    finally:
        task.cancel()


def _where(coroutine: object) -> str:
    """The innermost frames that a suspended coroutine stands in, outermost first."""
    frames: list[str] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            code = frame.f_code
            frames.append(f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_qualname}")
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return " > ".join(frames[-5:])
