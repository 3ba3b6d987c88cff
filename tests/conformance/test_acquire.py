"""Acquiring, refusing, waiting, letting go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from aiolocks import (
    Lease,
    LeaseState,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    Session,
)
from tests.conformance.conftest import SHORT, Kind, nothing_left, server_remaining, stall
from tests.support.waiting import eventually, sleeps

Keys = Callable[..., list[str]]


async def test_held_inside_and_free_behind(kind: Kind, client: Redis, keys: Keys) -> None:
    lock = kind.make(client, "a")
    async with lock as lease:
        assert lease.state is LeaseState.HELD
        assert await lock.locked()
        assert await lease.owned()
        assert keys()
    assert lease.state is LeaseState.RELEASED
    assert not await lock.locked()
    assert not await lease.owned()
    await nothing_left(kind, keys)


async def test_second_is_refused(kind: Kind, client: Redis) -> None:
    async with kind.make(client, "a") as lease:
        assert await kind.make(client, "a").try_acquire() is None
        async with kind.make(client, "a").try_acquire() as refused:
            assert refused is None
        assert lease.state is LeaseState.HELD


@pytest.mark.timed
async def test_a_server_that_needs_longer_than_the_limit_is_no_silent_one(
    kind: Kind, far_away: Callable[[float], Awaitable[Any]]
) -> None:
    """As on a busy machine: the limit has passed, and nothing is known against the server."""
    if kind.masters > 1:
        pytest.skip("its masters say that there is no majority, and why")
    client = await far_away(0.08)
    async with kind.make(client, "warm"):
        pass
    for lock in (kind.make(client, "a"), kind.make(client, "b", blocking_timeout=0.02)):
        with pytest.raises(LockTimeoutError):
            await lock.acquire(**({} if lock.name == "b" else {"blocking_timeout": 0.01}))


async def test_second_waits_its_turn_here(kind: Kind, client: Redis) -> None:
    order: list[int] = []

    async def enter(number: int) -> None:
        async with kind.make(client, "a"):
            order.append(number)
            await asyncio.sleep(0.001)

    async with kind.make(client, "a"):
        waiters = [asyncio.create_task(enter(number)) for number in range(10)]
        await eventually(lambda: Session.of(client).statistics().waiters == 10)
    await asyncio.gather(*waiters)
    assert order == list(range(10))


async def test_second_waits_its_turn_elsewhere(kind: Kind, client: Redis, join: Callable[..., Redis]) -> None:
    elsewhere = join()
    async with kind.make(client, "a"):
        waiter = asyncio.create_task(_hold(kind.make(elsewhere, "a")))
        await eventually(lambda: sleeps(Session.of(elsewhere)))
        assert not waiter.done()
    await asyncio.wait_for(waiter, 1 + stall())


@pytest.mark.timed
async def test_blocking_timeout(kind: Kind, client: Redis, join: Callable[..., Redis]) -> None:
    loop = asyncio.get_running_loop()
    async with kind.make(client, "a", ttl=20):
        for where in (client, join()):
            began = loop.time()
            with pytest.raises(
                LockTimeoutError, match=r"'a' was not acquired within 0.2 s.* has 1\d\.\d+ s left"
            ) as caught:
                async with kind.make(where, "a", blocking_timeout=0.2):
                    pytest.fail("entered")
            assert 0.19 <= loop.time() - began < 0.5 + stall()
            assert caught.value.remaining == pytest.approx(20, abs=1 + stall())


@pytest.mark.timed
async def test_blocking_timeout_of_zero_tries_once(kind: Kind, client: Redis) -> None:
    lock = kind.make(client, "a", blocking_timeout=0)
    async with lock:
        sent = Session.of(client).statistics().commands_sent
        with pytest.raises(LockTimeoutError):
            await lock.acquire()
        sent = Session.of(client).statistics().commands_sent - sent
        # One to each; of several, one that has not answered when a majority has decided is told to undo it.
        # If its request still waited for its turn behind another one, it is never sent. Where the machine
        # stands still, the session also looks whether its connections live.
        assert kind.masters // 2 + 1 <= sent < 2 * kind.masters + stall()


async def test_own_blocking_timeout_wins_over_the_locks(kind: Kind, client: Redis) -> None:
    lock = kind.make(client, "a", blocking_timeout=60)
    async with lock:
        with pytest.raises(LockTimeoutError, match=r"0\.02 s"):
            await lock.acquire(blocking_timeout=0.02)


async def test_timeout_error_is_caught_as_pythons(kind: Kind, client: Redis) -> None:
    async with kind.make(client, "a"):
        with pytest.raises(TimeoutError):
            await kind.make(client, "a").acquire(blocking_timeout=0)


# -- the forms of what acquire() returns


async def test_awaited_is_released_by_hand(kind: Kind, client: Redis, keys: Keys) -> None:
    lease = await kind.make(client, "a").acquire()
    assert isinstance(lease, Lease)
    await lease.release()
    await lease.release()  # idempotent
    await nothing_left(kind, keys)


async def test_one_that_is_never_awaited_warns_and_holds_nothing(
    kind: Kind, client: Redis, keys: Keys
) -> None:
    lock = kind.make(client, "a")
    for method in ("acquire", "try_acquire"):
        with pytest.warns(RuntimeWarning, match=rf"{method}\(\) of <.* was never awaited"):
            getattr(lock, method)()
    async with lock as lease:
        if hasattr(lease, "upgrade"):
            with pytest.warns(RuntimeWarning, match=r"upgrade\(\) of <Lease .* was never awaited"):
                lease.upgrade()
    await nothing_left(kind, keys)


@pytest.mark.thin
@pytest.mark.parametrize(
    "form", ["create_task", "gather", "wait_for", "task_group", "timeout", "shield", "anyio"]
)
async def test_runs_as_a_coroutine(kind: Kind, client: Redis, form: str) -> None:
    lock = kind.make(client, "a")
    match form:
        case "create_task":
            lease = await asyncio.create_task(lock.acquire())
        case "gather":
            (lease,) = await asyncio.gather(lock.acquire())
        case "wait_for":
            lease = await asyncio.wait_for(lock.acquire(), 5)
        case "task_group":
            async with asyncio.TaskGroup() as group:
                task = group.create_task(lock.acquire())
            lease = task.result()
        case "timeout":
            async with asyncio.timeout(5):
                lease = await lock.acquire()
        case "shield":
            lease = await asyncio.shield(lock.acquire())
        case _:
            with anyio.fail_after(5):
                lease = await lock.acquire()
    assert lease.state is LeaseState.HELD
    await lease.release()


async def test_entered_directly(kind: Kind, client: Redis, keys: Keys) -> None:
    async with kind.make(client, "a").acquire(blocking_timeout=1) as lease:
        assert lease.state is LeaseState.HELD
    async with kind.make(client, "a").try_acquire() as lease:
        assert lease is not None
        assert lease.state is LeaseState.HELD
    async with await kind.make(client, "a").acquire() as lease:
        assert lease.state is LeaseState.HELD
    await nothing_left(kind, keys)


async def test_used_twice_is_an_error(kind: Kind, client: Redis) -> None:
    acquisition = kind.make(client, "a").acquire()
    await (await acquisition).release()
    with pytest.raises(RuntimeError, match="used before"):
        await acquisition


async def test_decorator(kind: Kind, client: Redis) -> None:
    lock = kind.make(client, "a")
    inside = 0

    @lock
    async def alone(number: int, *, times: int = 2) -> int:
        """Its docstring."""
        nonlocal inside
        inside += 1
        assert inside == 1
        await asyncio.sleep(0.001)
        inside -= 1
        return number * times

    assert await asyncio.gather(*(alone(n, times=3) for n in range(5))) == [0, 3, 6, 9, 12]
    assert (alone.__name__, alone.__doc__) == ("alone", "Its docstring.")


async def test_decorator_with_the_name_in_the_arguments(kind: Kind, client: Redis, keys: Keys) -> None:
    inside: list[int] = []
    both = asyncio.Event()

    @kind.make(client, "item:{item}")
    async def visit(item: int, *, alone: bool = False) -> None:
        assert item not in inside
        inside.append(item)
        assert await kind.make(client, f"item:{item}").locked()
        if len(inside) == 2:
            both.set()
        if not alone:
            await asyncio.wait_for(both.wait(), 10)  # the other one is not kept out
        inside.remove(item)

    await asyncio.gather(visit(1), visit(2))
    await asyncio.gather(*(visit(1, alone=True) for _ in range(3)))
    assert not await kind.make(client, "item:1").locked()
    await nothing_left(kind, keys)


async def test_one_object_for_many_tasks(kind: Kind, client: Redis) -> None:
    lock = kind.make(client, "a")
    inside = 0

    async def enter() -> int:
        nonlocal inside
        async with lock as lease:
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            assert await lease.owned()
            inside -= 1
            return lease.fencing_token

    tokens = await asyncio.gather(*(enter() for _ in range(20)))
    assert tokens == sorted(set(tokens))


async def test_different_names_do_not_know_of_each_other(kind: Kind, client: Redis) -> None:
    async with kind.make(client, "a"), kind.make(client, "b"):
        pass


async def test_different_prefixes_do_not_know_of_each_other(kind: Kind, client: Redis) -> None:
    async with Session(client, prefix="aiolocks-one") as one, Session(client, prefix="aiolocks-two") as two:
        async with kind.make(one, "a"), kind.make(two, "a", blocking_timeout=0):
            pass


# -- leaving in another task


async def test_left_in_another_task_than_entered(kind: Kind, client: Redis, keys: Keys) -> None:
    lock = kind.make(client, "a")

    async def fixture() -> AsyncIterator[Any]:
        async with lock as lease:
            yield lease

    generator = fixture()
    lease = await asyncio.create_task(anext(generator))
    assert lease.state is LeaseState.HELD
    with pytest.raises(StopAsyncIteration):
        await asyncio.create_task(anext(generator))
    assert lease.state is LeaseState.RELEASED
    await nothing_left(kind, keys)


async def test_left_where_it_is_not_clear_which_lease_is_meant(kind: Kind, client: Redis) -> None:
    lock = kind.make(client, "a")
    with pytest.raises(RuntimeError, match="cannot tell which lease"):
        await lock.__aexit__(None, None, None)


# -- leases


async def test_fencing_tokens_rise(kind: Kind, client: Redis, join: Callable[..., Redis]) -> None:
    tokens: list[int] = []
    for where in (client, join(), client):
        for _ in range(20):
            async with kind.make(where, "a") as lease:
                tokens.append(lease.fencing_token)
    assert tokens == sorted(set(tokens))


async def test_remaining_is_never_more_than_the_servers(kind: Kind, client: Redis) -> None:
    async with kind.make(client, "a", ttl=20) as lease:
        for _ in range(20):
            # Read first: the lease may be renewed at any time, and then has more left than the server said.
            remaining, began = lease.remaining(), time.monotonic()
            server = await server_remaining(kind, client)
            # The clock of uvloop goes by milliseconds.
            assert 0 < remaining - (time.monotonic() - began) <= server + 0.001 <= 20.003
            await asyncio.sleep(0.005)
    assert lease.remaining() == 0.0


async def test_ensure_held(kind: Kind, client: Redis) -> None:
    async with kind.make(client, "a") as lease:
        lease.ensure_held()
    with pytest.raises(LockLostError, match="it was released"):
        lease.ensure_held()


@pytest.mark.timed
async def test_extend_sets_another_ttl_and_keeps_it(kind: Kind, client: Redis) -> None:
    async with kind.make(client, "a", ttl=5) as lease:
        await lease.extend(10)
        assert lease.ttl == 10
        assert 9 - stall() < lease.remaining() <= 10
        assert await server_remaining(kind, client) > 9 - stall()
        await lease.extend(SHORT)  # shorter, too
        assert lease.remaining() <= SHORT
        await asyncio.sleep(1.5 * SHORT)  # renewals go on with it
        assert lease.state is LeaseState.HELD
        assert await server_remaining(kind, client) <= SHORT
        await lease.extend()
        assert lease.ttl == SHORT


async def test_extend_of_what_is_not_ours(kind: Kind, client: Redis, keys: Keys) -> None:
    lease = await kind.make(client, "a").acquire()
    await eventually(lambda: len(keys()) >= kind.masters)  # the last of several may have it a moment later
    await client.delete(*keys())
    with pytest.raises(LockLostError):
        await lease.extend()
    assert lease.state is LeaseState.LOST
    with pytest.raises(LockLostError):
        await lease.extend()
    await nothing_left(kind, keys)  # never created again


async def test_detached_and_adopted(
    kind: Kind, client: Redis, join: Callable[..., Redis], keys: Keys
) -> None:
    lock = kind.make(client, "a", ttl=5)
    async with lock as lease:
        handle = lease.detach()
        assert lease.state is LeaseState.DETACHED
    assert await lock.locked()  # the scope has left it alone
    elsewhere = kind.make(join(), "a", ttl=5)
    adopted = await elsewhere.adopt(handle)
    assert adopted.fencing_token == lease.fencing_token
    assert adopted.token != lease.token
    assert adopted.state is LeaseState.HELD
    with pytest.raises(LockNotOwnedError):
        await lease.release()
    with pytest.raises(LockNotOwnedError):
        await lock.adopt(handle)
    async with adopted:
        assert await adopted.owned()
    await nothing_left(kind, keys)


@pytest.mark.timed
async def test_adopted_is_renewed(kind: Kind, client: Redis) -> None:
    lock = kind.make(client, "a", ttl=SHORT)
    handle = (await lock.acquire()).detach()
    async with await lock.adopt(handle) as lease:
        await asyncio.sleep(1.5 * SHORT)
        assert lease.state is LeaseState.HELD


@pytest.mark.timed
async def test_detached_and_never_adopted_ends_with_its_ttl(kind: Kind, client: Redis) -> None:
    lock = kind.make(client, "a", ttl=SHORT)
    handle = (await lock.acquire()).detach()
    async with lock.acquire(blocking_timeout=5):
        with pytest.raises(LockNotOwnedError):
            await lock.adopt(handle)


async def test_adopting_nonsense(kind: Kind, client: Redis) -> None:
    lease = await kind.make(client, "a").acquire()
    with pytest.raises(ValueError, match=r"of .* 'a', not of .* 'b'"):
        await kind.make(client, "b").adopt(lease.detach())
    with pytest.raises(ValueError, match="not a handle"):
        await kind.make(client, "a").adopt("nonsense")
    await client.flushdb()


async def test_metadata_goes_with_the_lease(kind: Kind, client: Redis) -> None:
    async with Session(client, metadata={"service": "billing"}) as session:
        async with kind.make(session, "a", metadata={"order": 17}) as lease:
            assert dict(lease.metadata) == {"service": "billing", "order": 17}
            with pytest.raises(TypeError):
                lease.metadata["order"] = 18


async def test_entered_twice_is_an_error(kind: Kind, client: Redis) -> None:
    async with kind.make(client, "a").acquire() as lease:
        with pytest.raises(RuntimeError, match="entered before"):
            async with lease:
                pytest.fail("entered")


# -- names


@pytest.mark.thin
@pytest.mark.parametrize(
    "name",
    [
        "{",
        "}",
        "{}",
        "}{",
        "a{b}c",
        "{a}",
        "%7B",
        " ",
        "\n",
        "\r\n",
        "\0",
        "🔒",
        "lock[1]*?",
        "a:b",
        "#",
        "é" * 512,
    ],
)
async def test_odd_names_work(kind: Kind, client: Redis, name: str) -> None:
    async with kind.make(client, name):
        assert await kind.make(client, name).locked()
        for other in ("a", "b", "7B"):
            assert not await kind.make(client, other).locked()
    assert not await kind.make(client, name).locked()


# -- what others see


async def test_no_token_in_any_repr(kind: Kind, client: Redis) -> None:
    lock = kind.make(client, "a")
    async with lock as lease:
        handle = lock.acquire()
        shown = [repr(thing) for thing in (lock, lease, Session.of(client), handle)]
        handle.close()
        assert not any(lease.token[:8] in text for text in shown)
        assert "'a'" in repr(lock)
        assert "HELD" in repr(lease)


async def test_statistics(kind: Kind, client: Redis, join: Callable[..., Redis]) -> None:
    async with Session(client) as session:
        lock = kind.make(session, "a")
        async with lock:
            statistics = session.statistics()
            assert (statistics.leases_held, statistics.waiters, statistics.acquisitions) == (1, 0, 1)
            with pytest.raises(LockTimeoutError):
                await lock.acquire(blocking_timeout=0.01)
        statistics = session.statistics()
        assert (statistics.leases_held, statistics.timeouts, statistics.losses) == (0, 1, 0)
        assert statistics.wait_seconds.count == statistics.hold_seconds.count == 1
        assert statistics.commands_sent >= 2


@pytest.mark.timed
async def test_listeners(kind: Kind, client: Redis, keys: Keys) -> None:
    seen: list[tuple[str, str]] = []

    class Listener:
        def on_acquired(self, event: Any) -> None:
            seen.append(("acquired", event.name))
            raise RuntimeError("a listener that fails harms nothing")

        def on_waiting(self, event: Any) -> None:
            seen.append(("waiting", event.name))

        def on_released(self, event: Any) -> None:
            seen.append(("released", event.name))

        def on_lost(self, event: Any) -> None:
            seen.append(("lost", event.reason))

        def on_renewed(self, event: Any) -> None:
            seen.append(("renewed", event.name))

    async with Session(client, listeners=[Listener()]) as session:
        lock = kind.make(session, "a", ttl=SHORT)
        async with lock:
            with pytest.raises(LockTimeoutError):
                await lock.acquire(blocking_timeout=0.01)
            await eventually(lambda: ("renewed", "a") in seen)
        assert [what for what, _ in seen if what != "renewed"] == ["acquired", "waiting", "released"]
        lease = await lock.acquire()
        await client.delete(*keys())
        await eventually(lambda: seen[-1][0] == "lost")
        assert lease.state is LeaseState.LOST


async def _hold(lock: Any) -> int:
    async with lock as lease:
        token: int = lease.fencing_token
        return token
