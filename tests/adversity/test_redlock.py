"""Redlock on real masters that hang, die, come back empty, or are not what they seem."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    BackendError,
    ConfigurationError,
    Lease,
    LeaseState,
    Lock,
    LockError,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    Redlock,
    Session,
    SessionClosedError,
)
from aiolocks.lock.engine import Engine
from aiolocks.testing import EmbeddedServer, ServerState
from aiolocks.transport.quorum.quorum import Round
from tests.adversity.tools import SLACK
from tests.conftest import Connect, OwnServer
from tests.support.cancel import Shot, sweep
from tests.support.history import Hold, exclusion, fencing
from tests.support.processes import Workers, tell
from tests.support.thinning import only
from tests.support.waiting import eventually

LEASES = int(os.environ.get("AIOLOCKS_REDLOCK_LEASES", "5000"))
KEY = "aiolocks:redlock:{a}"
QUEUE = "+zadd +zcard +zrange +zrem"
Keys = Callable[..., list[str]]


class Masters:
    """Some servers, and clients of all of them."""

    def __init__(self, servers: list[EmbeddedServer], connect: Connect) -> None:
        self.servers = servers
        self._connect = connect

    def clients(self) -> list[Redis]:
        return [self._connect(server) for server in self.servers]

    def up(self) -> list[EmbeddedServer]:
        return [server for server in self.servers if server.state is ServerState.RUNNING]

    async def carried(self, key: str = KEY) -> list[bytes | None]:
        """The lease on each of those that are up, without the metadata."""
        values = []
        for server in self.up():
            async with server.client() as client:
                value = await client.get(key)
                values.append(None if value is None else value.partition(b":{")[0])
        return values


@pytest.fixture
async def five(own_server: OwnServer, connect: Connect) -> AsyncIterator[Masters]:
    """Five masters; those that hang go on behind the test."""
    masters = Masters(await asyncio.gather(*(own_server() for _ in range(5))), connect)
    yield masters
    for server in masters.servers:
        if server.state is ServerState.PAUSED:
            server.resume()


@pytest.fixture
def nothing_on(keys: Keys) -> Callable[[Masters], bool]:
    def nothing_on(masters: Masters) -> bool:
        return not any(keys(server) for server in masters.up())

    return nothing_on


async def warm(clients: list[Redis], **how: Any) -> Redlock:
    """Connected, with all scripts known to all masters, and nothing under way."""
    lock = Redlock(clients, "a", **how)
    for _ in range(3):
        async with lock:
            pass
        await asyncio.sleep(0.01)
    return lock


# -- masters that hang or are dead


@pytest.mark.parametrize("met", [True, False], ids=["met before", "at first contact"])
async def test_t_rl_7_one_of_five_hangs(five: Masters, nothing_on, met: bool) -> None:
    clients = five.clients()
    lock = await warm(clients, ttl=5) if met else Redlock(clients, "a", ttl=5)
    five.servers[2].pause()
    slowest = 0.0
    for _ in range(5):
        began = time.monotonic()
        async with lock as lease:
            slowest = max(slowest, time.monotonic() - began)
            assert await lease.owned()
            await lease.extend()
    assert slowest < (0.3 if met else 0.6)
    five.servers[2].resume()
    await eventually(lambda: nothing_on(five), within=3)


@pytest.mark.more  # as three of five, and as T-RL-3 of each subset
async def test_two_of_five_are_dead(five: Masters, nothing_on) -> None:
    clients = five.clients()
    lock = await warm(clients, ttl=1)
    for server in five.servers[:2]:
        server.kill()
    elsewhere = Redlock(five.clients(), "a", ttl=1)
    tokens = []
    for each in (lock, elsewhere) * 3:
        async with each.acquire(blocking_timeout=5) as lease:
            assert await each.locked()
            assert await (elsewhere if each is lock else lock).try_acquire() is None
            tokens.append(lease.fencing_token)
    assert tokens == sorted(set(tokens))
    async with lock as lease:
        await asyncio.sleep(1.2)  # renewed by three
        assert lease.state is LeaseState.HELD
    await eventually(lambda: nothing_on(five))


@pytest.mark.parametrize("how", only(["kill", "pause"], "pause"))
@pytest.mark.parametrize("met", only([True, False], False), ids=["met before", "at first contact"])
async def test_three_of_five_are_down(five: Masters, nothing_on, how: str, met: bool) -> None:
    clients = five.clients()
    lock = await warm(clients, ttl=5) if met else Redlock(clients, "a", ttl=5)
    for server in five.servers[:3]:
        getattr(server, how)()
    began = time.monotonic()
    with pytest.raises(
        BackendError, match=r"no majority: of 5 masters, .*unreachable.*unreachable"
    ) as caught:
        await lock.acquire(blocking_timeout=0.5)
    assert time.monotonic() - began < 0.5 + SLACK
    assert str(caught.value).count("unreachable") == 3
    with pytest.raises(BackendError):
        await lock.try_acquire()
    await eventually(lambda: nothing_on(five))


@pytest.mark.leaves_keys
async def test_refusals_and_faults_are_told_apart(five: Masters) -> None:
    lock = await warm(five.clients(), ttl=20)
    (await Redlock(five.clients(), "a", ttl=300).acquire()).detach()
    brief = await Redlock(five.clients(), "b", ttl=2).acquire()
    five.servers[0].kill()

    async def refusal() -> LockTimeoutError | None:
        """As soon as a majority has answered in time."""
        with pytest.raises((LockTimeoutError, BackendError)) as caught:
            await lock.acquire(blocking_timeout=0.4)
        # With one of five unreachable, two that refuse leave no majority: the other ones may not have
        # answered yet.
        refused = isinstance(caught.value, LockTimeoutError) and caught.value.detail.count("held elsewhere")
        return caught.value if refused >= 2 else None

    error = await eventually(refusal, within=60)
    assert error.remaining is not None
    assert 20 < error.remaining <= 300  # of the holder's ttl
    for server in five.servers[1:3]:
        server.kill()
    with pytest.raises((BackendError, LockTimeoutError)) as refused:
        await lock.acquire(blocking_timeout=0)
    text = str(refused.value)
    # It ends as soon as there can be no majority, whoever of them has said so by then.
    assert text.count("unreachable") >= 1
    assert sum(text.count(said) for said in ("unreachable", "held elsewhere", "no answer yet")) == 5
    assert all(str(server.path) in text for server in five.servers)
    # Lost, where the machine has stood still for so long that it could not be renewed.
    with pytest.raises((BackendError, LockLostError), match=r"of 5 masters, .*unreachable|renewal"):
        await brief.release()


async def test_t_rl_3_each_subset_of_five(five: Masters, nothing_on) -> None:
    """It is had if and only if at least three are there; otherwise nothing stays on any."""
    lock = await warm(five.clients(), ttl=2)
    for number in range(6):
        for down in itertools.combinations(five.servers, number):
            for server in down:
                server.pause()
            try:
                if number < 3:
                    async with lock.acquire(blocking_timeout=2) as lease:
                        assert lease.remaining() > 1
                else:
                    with pytest.raises(BackendError):
                        await lock.try_acquire()
                await eventually(lambda: nothing_on(five))
            finally:
                for server in down:
                    server.resume()
            await eventually(lambda: nothing_on(five), within=3)


async def test_t_rl_2_over_before_a_majority_has_confirmed_it(
    five: Masters, proxy, connect, nothing_on
) -> None:
    """Each master is in time; both phases together, which the first lease of a name takes, are not."""
    links = [await proxy(server) for server in five.servers]
    clients = [connect(link) for link in links]
    await warm(clients, ttl=5)
    for link in links:
        link.delay = 0.17
    lock = Redlock(clients, "b", ttl=0.3, node_timeout=0.29)
    with pytest.raises((LockTimeoutError, BackendError)):
        await lock.acquire(blocking_timeout=0)
    for link in links:
        link.delay = 0
    await eventually(lambda: nothing_on(five), within=2)


async def test_a_short_wait_is_not_held_up_by_who_is_met_for_the_first_time(five: Masters) -> None:
    for server in five.servers[:3]:
        server.pause()
    lock = Redlock(five.clients(), "a", ttl=5)
    patient = asyncio.create_task(lock.acquire(blocking_timeout=3))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    with pytest.raises(BackendError):
        await Redlock(lock._sources, "b", ttl=5).acquire(blocking_timeout=0.2)
    assert time.monotonic() - began < 0.2 + SLACK
    patient.cancel()
    await asyncio.wait((patient,))


@pytest.mark.more  # as masters that come back
async def test_who_waits_gets_in_once_masters_that_are_far_away_answer_again(
    own_server: OwnServer, connect: Connect, proxy
) -> None:
    """To say who it is takes a master longer than it is waited for while it is suspect."""
    links = [await proxy(await own_server()) for _ in range(3)]
    for link in links:
        link.delay = 0.12
        link.hold_requests = True
    lock = Redlock([connect(link) for link in links], "a", ttl=10, node_timeout=0.5)
    waiting = asyncio.create_task(lock.acquire(blocking_timeout=10))
    await asyncio.sleep(1.5)  # none has answered within its time
    for link in links:
        link.hold_requests = False
    await (await waiting).release()


async def test_who_has_little_time_takes_none_of_that_of_others(
    own_server: OwnServer, connect: Connect, proxy
) -> None:
    links = [await proxy(await own_server()) for _ in range(3)]
    for link in links:
        link.delay = 0.03
    clients = [connect(link) for link in links]
    hasty = asyncio.create_task(Redlock(clients, "a").acquire(blocking_timeout=0.02))
    await asyncio.sleep(0)
    async with Redlock(clients, "b").try_acquire() as lease:
        assert lease is not None
    with pytest.raises(BackendError):
        await hasty


async def test_what_was_adopted_and_released_is_free_on_a_master_that_was_slow_to_connect(
    own_server: OwnServer, connect: Connect, proxy
) -> None:
    links = [await proxy(await own_server()) for _ in range(3)]
    clients = [connect(link) for link in links]
    handles = [(await Redlock(clients, f"a{n}").acquire()).detach() for n in range(6)]
    links[2].hold_requests = True
    elsewhere = [connect(link) for link in links]
    for number, handle in enumerate(handles):  # a majority gives it, and lets it go
        await (await Redlock(elsewhere, f"a{number}").adopt(handle)).release()
    links[2].hold_requests = False

    async def is_free() -> bool:
        return not [key for key in await clients[2].keys("*redlock*") if b".fence" not in key]

    await eventually(is_free)


@pytest.mark.leaves_keys  # requests that a connection given up for dead still carried
async def test_nothing_is_kept_of_what_is_over(five: Masters) -> None:
    locks = [await warm(five.clients(), ttl=1, node_timeout=0.1) for _ in range(2)]
    five.servers[0].pause()

    async def use(lock: Redlock) -> None:
        for _ in range(20):
            with suppress(LockTimeoutError, BackendError):  # too few answered in time
                async with lock.acquire(blocking_timeout=0.02) as lease:
                    await lease.extend()
                    await asyncio.sleep(0)

    await asyncio.gather(*(use(lock) for lock in locks for _ in range(3)))
    five.servers[0].resume()
    bindings = [lock._binding for lock in locks]
    quorums: list[Any] = [binding.engine._transport for binding in bindings if binding is not None]
    await eventually(lambda: not any(quorum.rounds or quorum.lanes for quorum in quorums), within=3)


async def test_a_round_that_is_over_is_no_garbage(five: Masters) -> None:
    """What it has sent refers to it: also a vote that is not answered when the lease is released."""
    lock = await warm(five.clients(), ttl=5)
    held = await Redlock(five.clients(), "held", ttl=60).acquire()

    def rounds() -> list[Any]:
        return [one for one in gc.get_objects() if isinstance(one, Round)]

    gc.collect()
    gc.disable()
    before = rounds()  # of sessions of other tests, whose masters do not answer
    try:
        for _ in range(5):
            async with lock as lease:
                await lease.extend()
            assert await Redlock(lock._sources, "held").try_acquire() is None
        await eventually(lambda: all(one in before for one in rounds()))
    finally:
        gc.enable()
    await held.release()


# -- while it is held


@pytest.mark.parametrize("how", only(["kill", "pause"], "pause"))
async def test_majority_lost_while_held(five: Masters, how: str) -> None:
    ttl, cancelled_at = 1.0, 0.0
    lock = await warm(five.clients(), ttl=ttl)
    with pytest.raises(LockLostError, match="without a confirmed renewal"):
        async with lock as lease:
            for server in five.servers[2:]:
                getattr(server, how)()
            began = time.monotonic()  # the last renewal was not later
            await eventually(lambda: lease.state is LeaseState.UNKNOWN, within=ttl)
            try:
                await asyncio.sleep(10)
            finally:
                cancelled_at = time.monotonic()
    assert cancelled_at - began < ttl


async def test_majority_comes_back_empty_while_held(five: Masters) -> None:
    ttl = 2.0
    lock = await warm(five.clients(), ttl=ttl)
    began = time.monotonic()
    with pytest.raises(LockLostError, match="no longer has it"):
        async with lock:
            for server in five.servers[2:]:  # one after the other would be healed, each when it is back
                server.kill()
            for server in five.servers[2:]:
                await server.restart()
            await asyncio.sleep(10)
    assert time.monotonic() - began < ttl


async def test_masters_that_come_back_empty_are_healed(five: Masters) -> None:
    lock = await warm(five.clients(), ttl=3, node_timeout=0.3)
    async with lock as lease:
        for pair in (five.servers[:2], five.servers[2:4], five.servers[4:]):
            for server in pair:
                await server.restart()

            async def healed() -> bool:
                expected = f"{lease.token}:0{lease.fencing_token}".encode()
                return [value for value in await five.carried() if value] == [expected] * 5

            await eventually(healed, within=10)
        assert lease.state is LeaseState.HELD
        assert await Redlock(five.clients(), "a").try_acquire() is None


async def test_what_another_has_taken_there_is_left_alone(five: Masters) -> None:
    lock = await warm(five.clients(), ttl=0.6)
    async with lock as lease:
        five.servers[0].kill()
        await five.servers[0].start()
        async with five.servers[0].client() as client:
            await client.set(KEY, "ff:1:{}", px=60_000)
            await asyncio.sleep(0.5)  # several renewals
            assert await client.get(KEY) == b"ff:1:{}"
            await client.delete(KEY)
        assert lease.state is LeaseState.HELD


@pytest.mark.more  # as a renewal behind a release, T-H-7
async def test_nothing_is_healed_behind_a_release(five: Masters, nothing_on) -> None:
    """The renewal that finds a master empty, and the release, right behind each other in all ways."""
    lock = await warm(five.clients(), ttl=0.3)
    admin = five.servers[0].client()
    for _ in range(12):
        async with lock:
            await admin.delete(KEY)
            await asyncio.sleep(random.uniform(0.09, 0.12))
        await asyncio.sleep(0.005)
        assert nothing_on(five)
    await admin.aclose()


@pytest.mark.more  # as the adoption in `test_redlock_detach.py`
@pytest.mark.leaves_keys  # where the second adopter was there first, and gave back what nobody needs any more
async def test_handed_over_with_the_token_of_the_lease(five: Masters) -> None:
    lock = await warm(five.clients(), ttl=5)
    lease = await lock.acquire()
    handle = lease.detach()
    five.servers[0].kill()
    elsewhere = Redlock(five.clients(), "a", ttl=5)
    adopted = await elsewhere.adopt(handle)
    assert adopted.fencing_token == lease.fencing_token
    assert await adopted.owned()
    with pytest.raises(LockNotOwnedError):
        await lock.adopt(handle)
    await adopted.release()


async def test_of_many_who_adopt_at_a_time_one_at_most_has_it(five: Masters) -> None:
    had = 0
    locks = [await warm(five.clients(), ttl=5) for _ in range(3)]
    for _ in range(10):
        lease = await locks[0].acquire()
        handle = lease.detach()
        adopted = await asyncio.gather(*(lock.adopt(handle) for lock in locks), return_exceptions=True)
        leases = [found for found in adopted if isinstance(found, Lease)]
        assert len(leases) <= 1
        assert all(isinstance(found, (Lease, LockNotOwnedError)) for found in adopted)
        if not leases:  # they have split it, and given it back
            await asyncio.sleep(0.01)
            leases = [await locks[0].adopt(handle)]
        had += 1
        assert leases[0].fencing_token == lease.fencing_token
        await leases[0].release()
        for server in five.servers:  # where it was given back behind the winner
            async with server.client() as client:
                await client.delete(KEY)
    assert had == 10


# -- cancelled


@pytest.mark.parametrize("down", only([0, 1, 3], 1))
async def test_cancelled_at_every_await_nothing_stays_on_any_master(
    five: Masters, nothing_on, down: int
) -> None:
    lock = await warm(five.clients(), ttl=5)
    for server in five.servers[:down]:
        server.pause()

    async def use() -> None:
        with suppress(BackendError):
            async with lock.try_acquire() as lease:
                if lease is not None:
                    await lease.extend()

    async def check(_: Shot) -> None:
        await eventually(lambda: nothing_on(five))

    await sweep(use, after=check)
    for server in five.servers[:down]:
        server.resume()
    await eventually(lambda: nothing_on(five), within=3)


# -- several who want it


async def test_t_rl_8_split_votes_are_settled(own_server: OwnServer, connect: Connect) -> None:
    """Three clients of three masters, each from a session of its own, over and over at the same moment."""
    masters = Masters([await own_server() for _ in range(3)], connect)
    locks = [await warm(masters.clients(), ttl=5) for _ in range(3)]
    waits: list[float] = []
    tokens: list[int] = []
    inside = 0

    async def once(lock: Redlock) -> None:
        nonlocal inside
        began = time.monotonic()
        async with lock as lease:
            waits.append(time.monotonic() - began)
            inside += 1
            assert inside == 1
            tokens.append(lease.fencing_token)
            await asyncio.sleep(0)
            inside -= 1

    for _ in range(60):
        await asyncio.gather(*(once(lock) for lock in locks))
    assert tokens == sorted(set(tokens))
    waits.sort()
    p99 = waits[int(len(waits) * 0.99)]
    print(f"split votes: median {waits[len(waits) // 2] * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms")  # noqa: T201
    assert p99 < 2


async def test_two_sides_of_a_partition_share_one_master(five: Masters, proxy, connect) -> None:
    """Each reaches just a majority, and these have a single master in common."""
    sides, cut = [], []
    for unreachable in ((3, 4), (0, 1)):
        links = [await proxy(server) for server in five.servers]
        lock = await warm([connect(link) for link in links], ttl=2)
        cut += [links[number] for number in unreachable]
        sides.append(lock)
    for link in cut:
        link.hold_requests = True
    inside, tokens = 0, []

    async def use(lock: Redlock) -> None:
        nonlocal inside
        for _ in range(15):
            async with lock as lease:
                inside += 1
                assert inside == 1
                tokens.append(lease.fencing_token)
                await asyncio.sleep(0.002)
                inside -= 1

    await asyncio.gather(*map(use, sides))
    for link in cut:
        link.hold_requests = False
    assert len(tokens) == 30
    assert tokens == sorted(set(tokens))


async def contend(urls: list[str], name: str, leases: int, ttl: float) -> None:
    """Takes it `leases` times, whatever happens to the masters."""
    clients = [Redis.from_url(url) for url in urls]
    lock = Redlock(clients, name, ttl=ttl, on_lost="ignore")
    had = 0
    while had < leases:
        invoked = time.monotonic()
        try:
            lease = await lock.acquire(blocking_timeout=5)
        except LockError as error:
            tell("missed", why=f"{type(error).__name__}: {error}")
            continue
        granted = time.monotonic()
        had += 1
        await asyncio.sleep(random.choice((0, 0.001, 0.005)))
        # Any number that it still gives now may be relied on until now.
        deadline = time.monotonic() + lease.remaining() if lease.remaining() else granted
        released, confirmed = time.monotonic(), float("inf")
        with suppress(LockError):
            await lease.release()
            confirmed = time.monotonic()
        hold = Hold(
            who=str(os.getpid()),
            invoked=invoked,
            granted=granted,
            released=released,
            confirmed=confirmed,
            deadline=deadline,
            fencing_token=lease.fencing_token,
        )
        tell("held", hold=asdict(hold))
    for client in clients:
        await Session.of(client).aclose()
        await client.aclose()


async def harass(masters: Masters, ttl: float) -> None:
    """Two of five at most are away at a time; who comes back empty was away for longer than a ttl."""

    async def trouble(servers: list[EmbeddedServer]) -> None:
        while True:
            await asyncio.sleep(random.uniform(0, 0.2))
            server = random.choice(servers)
            if random.random() < 0.5:
                server.kill()
                await asyncio.sleep(ttl * 1.1)
                await server.start()
            else:
                server.pause()
                try:
                    await asyncio.sleep(random.uniform(0, ttl))
                finally:
                    server.resume()

    async with asyncio.TaskGroup() as group:
        group.create_task(trouble(masters.servers[:3]))
        group.create_task(trouble(masters.servers[3:]))


async def two_processes(masters: Masters, workers: Workers, leases: int) -> None:
    ttl = 0.5
    urls = [server.url for server in masters.servers]
    both = await workers.start_many(2, contend, urls=urls, name="a", leases=leases // 2, ttl=ttl)
    nemesis = asyncio.create_task(harass(masters, ttl))
    try:
        reports = [report for worker in both for report in await worker.finish(within=3000)]
    finally:
        nemesis.cancel()
        await asyncio.wait((nemesis,))
    with suppress(asyncio.CancelledError):
        nemesis.result()
    holds = [Hold(**report["hold"]) for report in reports if report["event"] == "held"]
    assert len(holds) == leases // 2 * 2
    assert exclusion(holds) == []
    assert fencing(holds) == []
    ordered = [hold.fencing_token for hold in sorted(holds, key=lambda hold: hold.granted)]
    print(f"{len(holds)} leases, {len(reports) - len(holds)} attempts without one")  # noqa: T201
    assert ordered == sorted(ordered)


@pytest.mark.long
@pytest.mark.leaves_keys
async def test_t_rl_9_two_processes_while_masters_come_and_go(five: Masters, workers: Workers) -> None:
    await two_processes(five, workers, 100)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.leaves_keys
async def test_t_rl_9_many_leases_while_masters_come_and_go(five: Masters, workers: Workers) -> None:
    await two_processes(five, workers, LEASES)


# -- which masters


async def _is_free(client: Redis) -> bool:
    return not await client.exists(KEY)


async def test_t_rl_10_the_same_server_twice(own_server: OwnServer, connect: Connect) -> None:
    one, two = await own_server(port=0), await own_server()
    by_port, by_socket = connect(one), Redis(unix_socket_path=str(one.path))
    clients = [by_port, connect(two), by_socket]
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="are the same server"):
            await Redlock(clients, "a").acquire()
    async with two.client() as client:
        # Where one of them was slow to say who it is, the other two may have been asked, in vain.
        await eventually(lambda: _is_free(client))
    await by_socket.aclose()


async def test_who_may_not_ask_is_believed(own_server: OwnServer, connect: Connect) -> None:
    """With the words of a `Lock` that are always needed, and no others."""
    words = "on nopass ~aiolocks:* -@all +evalsha +eval +get +set +del +exists +pexpire +pttl +time"
    servers = [await own_server() for _ in range(3)]
    for server in servers:
        async with server.client() as admin:
            await admin.execute_command("ACL", "SETUSER", "locks", *words.split(), *QUEUE.split())
    user = {"username": "locks", "password": "any"}
    first, second = ([connect(server, **user) for server in servers] for _ in range(2))
    lock, other = Redlock(first, "a", ttl=0.6), Redlock(second, "a", ttl=5)
    async with lock as lease:
        async with servers[0].client() as admin:
            await admin.delete(KEY)
        waiting = asyncio.create_task(other.acquire())
        await asyncio.sleep(0.5)
        assert await lease.owned()
        assert not waiting.done()
        async with servers[0].client() as admin:
            assert await admin.exists(KEY)  # put back
        await lease.extend(5)
        adopted = await lock.adopt(lease.detach())
        assert await lock.locked()
        await adopted.release()
    await (await waiting).release()


async def test_a_wakeup_that_is_not_there_is_an_error_of_configuration(
    five: Masters, connect: Connect
) -> None:
    clients = five.clients()
    async with Session(clients[0], wakeup="keyspace") as session:
        with pytest.raises(ConfigurationError, match="keyspace notifications are off"):
            await Redlock([session, *clients[1:]], "a").acquire()


async def in_flight_at_the_end(urls: list[str], within: float) -> None:
    """Ends with requests under way: nothing is awaited, nothing is closed."""
    lock = Redlock([Redis.from_url(url) for url in urls], "a", ttl=60)
    locks = [Redlock(lock._sources, f"a{number}", ttl=60) for number in range(20)]
    _TASKS.extend(asyncio.create_task(_hold(lock)) for lock in locks)
    await asyncio.sleep(within)


_TASKS: list[asyncio.Task[None]] = []


async def _hold(lock: Redlock) -> None:
    while True:
        async with lock:
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("within", only([0.0, 0.03, 0.1, 0.2], 0.03))
async def test_t_c_5_nothing_is_left_of_what_was_under_way_when_the_loop_ended(
    five: Masters, workers: Workers, nothing_on, proxy, within: float
) -> None:
    links = [await proxy(server) for server in five.servers]
    for link in links:
        link.delay = 0.005
    worker = await workers.start(in_flight_at_the_end, urls=[link.url for link in links], within=within)
    await worker.finish()
    await eventually(lambda: nothing_on(five))


async def test_a_replica_is_no_master(own_server: OwnServer, connect: Connect) -> None:
    master, other = await own_server(port=0), await own_server()
    replica = await own_server()
    async with replica.client() as client:
        await client.execute_command("REPLICAOF", "127.0.0.1", str(master.port))
        lock = Redlock([connect(server) for server in (master, other, replica)], "a")

        async def is_told() -> bool:
            """A replica that does not answer in time is a master that is away."""
            try:
                async with lock:
                    return False
            except ConfigurationError as error:
                return "is a replica" in str(error)

        await eventually(is_told, within=20)
        await client.execute_command("REPLICAOF", "NO", "ONE")
    async with master.client() as client:
        await eventually(lambda: _is_free(client))


async def test_a_master_that_became_a_replica_is_no_error_of_configuration(five: Masters) -> None:
    lock = await warm(five.clients(), ttl=2)
    await five.servers[0].restart()
    async with five.servers[0].client() as client:
        await client.execute_command("REPLICAOF", "127.0.0.1", "1")
        for _ in range(3):
            async with lock:
                pass
        await client.execute_command("REPLICAOF", "NO", "ONE")


# -- sessions


async def test_closing_one_session_ends_leases_and_waiters(
    five: Masters, connect: Connect, nothing_on
) -> None:
    sessions = [Session(connect(server), prefix="mine") for server in five.servers]
    lock = Redlock(sessions, "a", ttl=5)
    waiting = asyncio.create_task(Redlock(sessions, "a", ttl=5).acquire())
    await asyncio.sleep(0)
    if waiting.done():
        pytest.fail("it has not been given yet")
    lease = await waiting
    waiting = asyncio.create_task(lock.acquire())
    await eventually(lambda: sessions[0].statistics().waiters == 1)
    assert sessions[0].statistics().leases_held == 1
    assert await five.carried("mine:redlock:{a}") != [None] * 5

    async def body() -> None:
        async with lease:
            await asyncio.sleep(10)

    holding = asyncio.create_task(body())
    await asyncio.sleep(0.01)
    await sessions[3].aclose()
    with pytest.raises(SessionClosedError):
        await waiting
    with pytest.raises(LockLostError, match="the session was closed"):
        await holding
    with pytest.raises(SessionClosedError):
        await lock.acquire()
    for session in sessions:
        await session.aclose()
    await eventually(lambda: nothing_on(five))


async def test_bare_clients_share_one_engine_that_ends_with_them(five: Masters) -> None:
    clients = [Redis(unix_socket_path=str(server.path)) for server in five.servers]
    locks = [Redlock(clients, "a"), Redlock(tuple(clients), "b")]
    for lock in locks:
        async with lock:
            pass
    engines = {lock._binding.engine for lock in locks if lock._binding is not None}
    assert len(engines) == 1
    other = Redlock(clients[:3], "a")
    async with other:
        pass
    assert other._binding is not None
    assert other._binding.engine not in engines

    async def connections() -> int:
        async with five.servers[0].client() as client:
            return len(await client.client_list()) - 1

    before = await connections()
    for client in clients:
        await client.connection_pool.disconnect()
    assert await connections() == before  # not the clients' own
    del locks, engines, lock, other, clients, client
    gc.collect()

    async def gone() -> bool:
        return await connections() < before

    await eventually(gone)


@pytest.mark.parametrize("place", [0, 2])
async def test_one_client_that_stays_keeps_no_connections_for_those_that_go(
    five: Masters, place: int
) -> None:
    stays = five.clients()[place]
    engines: list[weakref.ref[Engine]] = []
    for _ in range(5):
        clients = [Redis(unix_socket_path=str(server.path)) for server in five.servers[:3]]
        clients[place] = stays
        lock = Redlock(clients, "a")
        async with lock:
            pass
        assert lock._binding is not None
        engines.append(weakref.ref(lock._binding.engine))
        del lock, clients
        gc.collect()
    await eventually(lambda: sum(engine() is not None for engine in engines) <= 1)


async def test_each_master_shows_it_and_is_freed_by_itself(five: Masters) -> None:
    lock = await warm(five.clients(), ttl=1.5)
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(Session(client)) for client in five.clients()]
        with pytest.raises(LockLostError, match="no longer has it"):
            async with lock as lease:
                for session in sessions:
                    while not (found := await session.inspect()):
                        await asyncio.sleep(0.01)  # a majority had granted it; this one will
                    (shown,) = found
                    assert (shown.kind, shown.name, shown.problem) == ("redlock", "a", "")
                    (holder,) = shown.holders
                    assert holder.fencing_token == lease.fencing_token
                async with asyncio.timeout(30):
                    while True:  # until a majority is free before a renewal puts it back
                        for session in sessions[:3]:
                            await session.force_release("a", kind="redlock")


async def test_beside_a_lock_of_the_same_name(five: Masters) -> None:
    clients = five.clients()
    async with Lock(clients[0], "a", blocking_timeout=0), Redlock(clients, "a", blocking_timeout=0) as lease:
        assert (lease.kind, lease.name) == ("redlock", "a")


async def test_a_waiter_hears_that_it_is_free(five: Masters) -> None:
    lock, elsewhere = await warm(five.clients(), ttl=30), five.clients()
    other = await warm(elsewhere, ttl=30)
    waits = []
    for _ in range(20):
        lease = await lock.acquire()
        waiter = asyncio.create_task(other.acquire())
        await asyncio.sleep(0.02)
        began = time.monotonic()
        release = asyncio.create_task(lease.release())
        entered = await waiter
        waits.append(time.monotonic() - began)
        await release
        await entered.release()
    print(f"handed over in {sorted(waits)[10] * 1e3:.1f} ms (median)")  # noqa: T201
    assert Session.of(elsewhere[0]).statistics().wakeups["tracking"] > 10
