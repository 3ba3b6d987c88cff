"""A loss is told as a loss, and a cancellation from outside stays one: in each order, also in a spoiled task.

CPython 3.11 and 3.12 leave `cancelling()` raised after a task group has failed while its body had ended. Then
the count alone does not tell whether somebody else cancels the task.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from aiolocks import Leadership, Lease, Lock, LockLostError, RWLock, Schedule, Session, Term, Tick, UniqueJob
from tests.support.proxy import Proxy
from tests.support.spoiling import cancelling, spoil
from tests.support.waiting import eventually

Act = Callable[[], object]
Body = Callable[[], Coroutine[Any, Any, object]]

spoiled_or_not = pytest.mark.parametrize("spoiled", [False, True], ids=["clean", "spoiled"])
COUNTS_TRULY = sys.version_info >= (3, 13)


class Holder:
    """A task inside of a lease, whose loss and cancellation the test times to the turn of the event loop.

    Args:
        body: Its work inside.
        spoiled: Whether a task group has failed in the body before.
    """

    def __init__(self, lock: Lock, body: Body, *, spoiled: bool) -> None:
        self.inside = asyncio.Event()
        self.left = 0
        self._lock = lock
        self._body = body
        self._spoiled = spoiled
        self.lease: Lease | None = None
        self.task = asyncio.create_task(self._hold())

    async def _hold(self) -> None:
        async with self._lock as self.lease:
            if self._spoiled:
                await spoil()
            self.left = cancelling()
            self.inside.set()
            await self._body()

    def lose(self) -> None:
        assert self.lease is not None
        self.lease._possession.lose("the test says so")

    def cancel(self) -> None:
        self.task.cancel()

    async def is_lost(self) -> None:
        """It ended by the loss, and has left no cancellation behind that was not there."""
        with pytest.raises(LockLostError, match="the test says so"):
            await self.task
        assert self.task.cancelling() == self.left

    async def is_cancelled(self) -> None:
        """It ended by the cancellation from outside, which has the loss as a note."""
        with pytest.raises(asyncio.CancelledError) as caught:
            await self.task
        assert self.task.cancelled()
        assert any("was lost" in note for note in caught.value.__notes__)


Hold = Callable[..., Awaitable[Holder]]


@pytest.fixture
async def hold(session: Session) -> Hold:
    """Makes a holder that is inside."""

    async def hold(body: Body, *, spoiled: bool) -> Holder:
        holder = Holder(Lock(session, "a"), body, spoiled=spoiled)
        await holder.inside.wait()
        await asyncio.sleep(0)  # it waits for whatever its body waits for
        return holder

    return hold


async def sleep() -> None:
    await asyncio.sleep(5)
    pytest.fail("went on")


def unwinding(seconds: float = 0.05) -> tuple[Body, asyncio.Event]:
    """A body that takes a while to unwind, and the event of its beginning to."""
    begun = asyncio.Event()

    async def body() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            begun.set()
            await asyncio.sleep(seconds)

    return body, begun


# -- the loss alone ------------------------------------------------------------------------------------------


@spoiled_or_not
async def test_a_loss_alone(hold: Hold, spoiled: bool) -> None:
    holder = await hold(sleep, spoiled=spoiled)
    holder.lose()
    await holder.is_lost()


@spoiled_or_not
async def test_a_loss_while_the_failure_of_a_group_is_handled(hold: Hold, spoiled: bool) -> None:
    async def body() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
        except* ValueError:
            await sleep()

    async def fail() -> None:
        raise ValueError

    holder = await hold(body, spoiled=spoiled)
    await asyncio.sleep(0.02)
    holder.lose()
    with pytest.raises(LockLostError):
        await holder.task


@spoiled_or_not
async def test_a_loss_that_passes_a_group_a_child_and_a_timeout(hold: Hold, spoiled: bool) -> None:
    async def body() -> None:
        async with asyncio.timeout(4), asyncio.TaskGroup() as group:
            await group.create_task(sleep())

    holder = await hold(body, spoiled=spoiled)
    holder.lose()
    await holder.is_lost()


@spoiled_or_not
async def test_a_loss_that_passes_an_anyio_group(hold: Hold, spoiled: bool) -> None:
    async def body() -> None:
        with anyio.fail_after(4):
            async with anyio.create_task_group() as group:
                group.start_soon(sleep)
                await sleep()

    holder = await hold(body, spoiled=spoiled)
    holder.lose()
    await holder.is_lost()


@spoiled_or_not
@pytest.mark.parametrize("made_of", ["bare", "cause", "gather"])
async def test_a_loss_whose_cancellation_the_body_replaces_by_one_of_its_own(
    hold: Hold, spoiled: bool, made_of: str
) -> None:
    async def body() -> None:
        try:
            await (asyncio.gather(sleep(), sleep()) if made_of == "gather" else sleep())
        except asyncio.CancelledError as error:
            if made_of == "cause":
                raise asyncio.CancelledError("another one") from error
            raise asyncio.CancelledError  # noqa: B904 - as asyncio.Condition of Python 3.11 does

    holder = await hold(body, spoiled=spoiled)
    holder.lose()
    await holder.is_lost()


@spoiled_or_not
async def test_a_loss_behind_a_time_limit_that_the_body_has_handled(hold: Hold, spoiled: bool) -> None:
    async def body() -> None:
        try:
            async with asyncio.timeout(0.01):
                await sleep()
        except TimeoutError:
            await sleep()

    holder = await hold(body, spoiled=spoiled)
    await asyncio.sleep(0.05)
    holder.lose()
    await holder.is_lost()


@spoiled_or_not
async def test_a_loss_behind_that_of_an_inner_lease_which_the_body_has_handled(
    hold: Hold, session: Session, spoiled: bool
) -> None:
    async def body() -> None:
        try:
            async with Lock(session, "inner", max_hold=0.05):
                if spoiled:
                    await spoil()
                await sleep()
        except LockLostError:
            await sleep()

    holder = await hold(body, spoiled=spoiled)
    await asyncio.sleep(0.1)
    holder.lose()
    with pytest.raises(LockLostError, match="the test says so"):
        await holder.task


@spoiled_or_not
async def test_a_body_that_swallows_the_loss_is_told_at_its_end(hold: Hold, spoiled: bool) -> None:
    async def body() -> None:
        with suppress(asyncio.CancelledError):
            await sleep()

    holder = await hold(body, spoiled=spoiled)
    holder.lose()
    await holder.is_lost()


@spoiled_or_not
@pytest.mark.parametrize("first", ["inner", "outer"])
async def test_the_loss_of_both_of_two_leases(
    hold: Hold, session: Session, spoiled: bool, first: str
) -> None:
    inner = await Lock(session, "inner").acquire()

    async def body() -> None:
        async with inner:
            await sleep()

    holder = await hold(body, spoiled=spoiled)
    acts: list[Act] = [functools.partial(inner._possession.lose, "the test says so"), holder.lose]
    for act in acts if first == "inner" else reversed(acts):
        act()
    await holder.is_lost()


# -- a cancellation from outside -----------------------------------------------------------------------------


@spoiled_or_not
@pytest.mark.parametrize("first", ["loss", "cancellation"])
async def test_a_cancellation_in_the_same_turn(hold: Hold, spoiled: bool, first: str) -> None:
    holder = await hold(sleep, spoiled=spoiled)
    for act in (holder.lose, holder.cancel) if first == "loss" else (holder.cancel, holder.lose):
        act()
    await holder.is_cancelled()


@spoiled_or_not
@pytest.mark.parametrize("first", ["loss", "cancellation", "between"])
async def test_a_cancellation_in_the_same_turn_in_which_the_task_was_woken(
    hold: Hold, spoiled: bool, first: str
) -> None:
    """Then it waits for nothing that could be cancelled."""
    loop = asyncio.get_running_loop()
    awaited = loop.create_future()

    async def body() -> None:
        await awaited
        await sleep()

    holder = await hold(body, spoiled=spoiled)
    if first == "between":
        loop.call_soon(holder.cancel)
    awaited.set_result(None)
    match first:
        case "loss":
            holder.lose()
            holder.cancel()
        case "cancellation":
            holder.cancel()
            holder.lose()
        case _:
            holder.lose()
    await holder.is_cancelled()


async def test_a_cancellation_between_the_loss_and_its_turn_of_a_task_that_is_woken(hold: Hold) -> None:
    """In a spoiled task the loss waits for a turn; it would take the place of what comes meanwhile."""
    loop = asyncio.get_running_loop()
    awaited = loop.create_future()

    async def body() -> None:
        await awaited
        await sleep()

    holder = await hold(body, spoiled=True)

    def wake_and_cancel() -> None:
        awaited.set_result(None)
        holder.cancel()

    if holder.left:
        loop.call_soon(wake_and_cancel)
        holder.lose()
    else:
        wake_and_cancel()
        holder.lose()
    await holder.is_cancelled()


@spoiled_or_not
@pytest.mark.parametrize("first", ["loss", "cancellation"])
async def test_a_cancellation_while_the_body_unwinds(hold: Hold, spoiled: bool, first: str) -> None:
    body, begun = unwinding()
    holder = await hold(body, spoiled=spoiled)
    acts: list[Act] = [holder.lose, holder.cancel] if first == "loss" else [holder.cancel, holder.lose]
    acts[0]()
    await begun.wait()
    acts[1]()
    await holder.is_cancelled()


@spoiled_or_not
async def test_a_cancellation_that_the_body_passes_on_after_its_clean_up(hold: Hold, spoiled: bool) -> None:
    begun = asyncio.Event()

    async def body() -> None:
        try:
            await sleep()
        except asyncio.CancelledError:
            begun.set()
            await asyncio.sleep(0.05)
            raise

    holder = await hold(body, spoiled=spoiled)
    holder.cancel()
    await begun.wait()
    holder.lose()
    await holder.is_cancelled()


async def test_a_cancellation_that_the_body_remembers_during_its_clean_up(hold: Hold) -> None:
    """Only a true count tells of it: it has left no trace in the `CancelledError` of the loss."""
    begun = asyncio.Event()

    async def body() -> None:
        with suppress(asyncio.CancelledError):
            await sleep()
        begun.set()
        await asyncio.sleep(0.05)
        raise asyncio.CancelledError

    holder = await hold(body, spoiled=True)
    holder.cancel()
    await begun.wait()
    holder.lose()
    if COUNTS_TRULY:
        await holder.is_cancelled()
    else:
        with pytest.raises(LockLostError):
            await holder.task


async def test_a_group_that_fails_while_the_body_unwinds(hold: Hold) -> None:
    """CPython 3.11 and 3.12 leave the count raised as a cancellation from outside would."""

    async def fail() -> None:
        raise ValueError

    async def body() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(fail())
            except* ValueError:
                pass

    holder = await hold(body, spoiled=False)
    holder.lose()
    with pytest.raises(LockLostError if COUNTS_TRULY else asyncio.CancelledError):
        await holder.task


async def test_a_loss_while_a_failed_group_waits_for_its_children(hold: Hold) -> None:
    """CPython 3.11 and 3.12 take it for the cancellation by the group."""
    begun = asyncio.Event()
    went_on = False

    async def fail() -> None:
        raise ValueError

    async def unwind() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            begun.set()
            await asyncio.sleep(0.05)

    async def body() -> None:
        nonlocal went_on
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(unwind())
                group.create_task(fail())
        except* ValueError:
            pass
        await asyncio.sleep(0)
        went_on = True

    holder = await hold(body, spoiled=False)
    await begun.wait()
    holder.lose()
    with pytest.raises(LockLostError):
        await holder.task
    assert went_on is not COUNTS_TRULY


@spoiled_or_not
@pytest.mark.parametrize("first", ["loss", "cancellation"])
async def test_a_cancellation_that_passes_a_group_and_its_children(
    hold: Hold, spoiled: bool, first: str
) -> None:
    child, begun = unwinding()

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            await group.create_task(child())

    holder = await hold(body, spoiled=spoiled)
    await asyncio.sleep(0.01)
    acts: list[Act] = [holder.lose, holder.cancel] if first == "loss" else [holder.cancel, holder.lose]
    acts[0]()
    await begun.wait()
    acts[1]()
    await holder.is_cancelled()


@spoiled_or_not
@pytest.mark.parametrize("first", ["loss", "cancellation"])
@pytest.mark.parametrize("later", [False, True])
async def test_a_cancellation_during_the_release_of_an_inner_lease(
    hold: Hold, connect: Any, proxy: Any, server: Any, spoiled: bool, first: str, later: bool
) -> None:
    """The release holds the cancellation up, and gives it back as what it was."""
    through: Proxy = await proxy(server)
    lock = Lock(connect(through), "inner")
    leaving = asyncio.Event()

    async def body() -> None:
        async with lock:
            await asyncio.sleep(0.05)
            through.delay = 0.1
            leaving.set()

    holder = await hold(body, spoiled=spoiled)
    await leaving.wait()
    await asyncio.sleep(0.01)
    acts: list[Act] = [holder.lose, holder.cancel] if first == "loss" else [holder.cancel, holder.lose]
    acts[0]()
    if later:
        await asyncio.sleep(0.02)
    acts[1]()
    await holder.is_cancelled()


@pytest.mark.more  # as one while a release runs
@spoiled_or_not
async def test_a_cancellation_while_the_release_runs_behind_a_grace(
    connect: Any, proxy: Any, server: Any, spoiled: bool
) -> None:
    through: Proxy = await proxy(server)
    lock = Lock(connect(through), "a", ttl=4, max_hold=2.2, grace=1.1)
    ended = asyncio.Event()

    async def hold() -> None:
        async with lock:
            if spoiled:
                await spoil()
            try:
                await sleep()
            finally:
                through.delay = 0.3
                ended.set()

    task = asyncio.create_task(hold())
    await ended.wait()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@spoiled_or_not
@pytest.mark.parametrize("order", ["loss", "limit", "unwinding"])
async def test_a_time_limit_around_it(session: Session, spoiled: bool, order: str) -> None:
    """It is a cancellation from outside. Of a spoiled task, the limit itself does not know its own."""
    lease = await Lock(session, "a").acquire()
    loop = asyncio.get_running_loop()
    own = cancelling()
    with pytest.raises((TimeoutError, asyncio.CancelledError)) as caught:
        async with asyncio.timeout(None) as limit, lease:
            if spoiled:
                await spoil()
            own = cancelling() - own
            lose = functools.partial(lease._possession.lose, "the test says so")
            if order == "loss":
                loop.call_later(0.005, lose)
                limit.reschedule(loop.time() + 0.01)
                time.sleep(0.02)  # both are due in the same turn  # noqa: ASYNC251
                await sleep()
            await cancelled_by([lambda: limit.reschedule(loop.time()), lose], order)
    assert isinstance(caught.value, asyncio.CancelledError if own else TimeoutError)
    assert not isinstance(caught.value, LockLostError)


@spoiled_or_not
@pytest.mark.parametrize("order", ["scope", "unwinding"])
async def test_an_anyio_scope_around_it(session: Session, spoiled: bool, order: str) -> None:
    """The scope cancels each wait again, and has to get its own cancellation back."""
    lease = await Lock(session, "a").acquire()
    own = cancelling()
    scope = anyio.CancelScope()
    caught: BaseException | None = None
    try:
        with scope:
            async with lease:
                if spoiled:
                    await spoil()
                own = cancelling() - own
                lose = functools.partial(lease._possession.lose, "the test says so")
                await cancelled_by([scope.cancel, lose], order)
    except BaseException as error:
        caught = error
    assert scope.cancelled_caught if not own else type(caught) is asyncio.CancelledError


async def cancelled_by(acts: list[Act], order: str) -> None:
    """Is cancelled by the first of them, and lost by the other: in the same turn, or while it unwinds."""
    loop = asyncio.get_running_loop()
    try:
        for act in acts[:1] if order == "unwinding" else acts:
            loop.call_later(0.01, act)
        await sleep()
    finally:
        if order == "unwinding":
            loop.call_later(0.01, acts[1])
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(0.05)


@spoiled_or_not
async def test_a_cancellation_of_the_task_that_leaves_for_another(session: Session, spoiled: bool) -> None:
    """A lease that is lost, and is left in a task that did not enter it: that task is cancelled."""
    lease = await Lock(session, "a").acquire()
    entered = asyncio.create_task(enter_and_wait(lease))
    await asyncio.sleep(0.01)

    async def leave() -> None:
        if spoiled:
            await spoil()
        try:
            await sleep()
        except asyncio.CancelledError as error:
            await lease.__aexit__(type(error), error, error.__traceback__)
            raise

    leaving = asyncio.create_task(leave())
    await asyncio.sleep(0.01)
    lease._possession.lose("the test says so")
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    with suppress(asyncio.CancelledError):
        await entered


async def enter_and_wait(lease: Lease) -> None:
    await lease.__aenter__()
    await asyncio.sleep(5)


# -- in all that holds a lease -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"max_hold": 0.2}, {"max_hold": 0.4, "grace": 0.2}, {"ttl": 0.2, "auto_renew": False}],
    ids=["max_hold", "grace", "auto_renew"],
)
@pytest.mark.thin
@pytest.mark.parametrize("use", ["lock", "acquire", "decorator"])
async def test_a_lease_that_ends_by_itself(session: Session, options: dict[str, Any], use: str) -> None:
    lock = Lock(session, "a", **{"ttl": 1.0, **options})

    async def body() -> None:
        await spoil()
        await sleep()

    with pytest.raises(LockLostError):
        match use:
            case "lock":
                async with lock:
                    await body()
            case "acquire":
                async with lock.acquire():
                    await body()
            case _:
                await lock(body)()


async def test_an_upgrade(session: Session) -> None:
    lock = RWLock(session, "a", max_hold=0.2)
    with pytest.raises(LockLostError):
        async with lock.upgradable as lease, lease.upgrade():
            await spoil()
            await sleep()


async def test_a_unique_job(session: Session, redis: Redis, keys: Callable[..., list[str]]) -> None:
    with pytest.raises(LockLostError):
        async with UniqueJob(session, "a", ttl=0.5).run():
            await spoil()
            await redis.delete(*keys())
            await sleep()


async def test_a_leader_campaigns_again(session: Session) -> None:
    terms: list[Term] = []

    async def main(term: Term) -> int:
        terms.append(term)
        if len(terms) < 3:
            await spoil()
            await sleep()
        return len(terms)

    leadership = Leadership(session, "a", ttl=1, max_hold=0.3, grace=0.1)
    assert await asyncio.wait_for(leadership.run(main), 5) == 3


@spoiled_or_not
async def test_a_leader_that_is_cancelled_while_its_term_ends_does_not_campaign_again(
    session: Session, spoiled: bool
) -> None:
    terms: list[Term] = []
    unwinds = asyncio.Event()

    async def main(term: Term) -> None:
        terms.append(term)
        if spoiled:
            await spoil()
        try:
            await sleep()
        finally:
            unwinds.set()
            await asyncio.sleep(0.05)

    running = asyncio.create_task(Leadership(session, "a", ttl=1, max_hold=0.4, grace=0.2).run(main))
    await unwinds.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 2)
    assert len(terms) == 1


@spoiled_or_not
async def test_a_leader_whose_main_takes_a_cancellation_for_the_end_of_its_term(
    session: Session, spoiled: bool
) -> None:
    terms: list[Term] = []

    async def main(term: Term) -> None:
        if spoiled:
            await spoil()
        terms.append(term)
        with suppress(asyncio.CancelledError):
            await sleep()

    running = asyncio.create_task(Leadership(session, "a").run(main))
    await eventually(lambda: terms)
    terms[0]._possession.lose("the test says so")
    if spoiled and not COUNTS_TRULY:
        await asyncio.sleep(0)  # then the task is told one turn later
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 2)
    assert len(terms) == 1


@pytest.mark.leaves_keys("*:schedule.register:*", "*:schedule.history:*")
async def test_a_run_of_a_schedule_that_takes_too_long(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    schedule = Schedule(session, "a", every=0.2, at_most=0.3)

    @schedule
    async def job(tick: Tick) -> None:
        await spoil()
        await sleep()

    async def outcomes() -> list[str]:
        return [record.outcome for record in await schedule.history()]

    async with schedule:
        await eventually(lambda: ended(outcomes), within=5)
        assert "stopped" not in await outcomes()
        assert "timeout" in await outcomes()
    assert "at_most=0.3" in caplog.text


async def ended(outcomes: Callable[[], Awaitable[list[str]]]) -> bool:
    return any(outcome in ("timeout", "stopped", "failed") for outcome in await outcomes())
