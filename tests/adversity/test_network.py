"""The faults of the network: it loses requests and replies, delays them, falls silent.

T-N-1 to T-N-5, T-N-9 and T-N-10 of `tests/FAULTS.md`; what a broken connection leaves behind is in
`test_connections.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from redis._parsers import _AsyncRESP2Parser, _AsyncRESP3Parser
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff, NoBackoff

from aiolocks import (
    BackendError,
    Lease,
    LeaseState,
    Lock,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    Session,
)
from aiolocks.transport import connection
from tests.adversity.tools import (
    ACQUIRE,
    ADOPT,
    FORMS,
    LOCKED,
    OWNED,
    RELEASE,
    RENEW,
    SLACK,
    Formed,
    Keys,
    Lag,
    Witness,
    deafen,
    elapsed,
    locks_in,
    look_at,
    rejected,
    renewed,
    wakeup,
    warm,
    with_own_connections,
)
from tests.conftest import Connect, OwnServer, blocking
from tests.support.proxy import Match, Proxy, Request
from tests.support.servers import Server
from tests.support.waiting import eventually, sleeps

PROTOCOLS = [(2, False), (2, True), (3, False), (3, True)]
IDS = ["resp2", "resp2-decoded", "resp3", "resp3-decoded"]


# -- lost replies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", PROTOCOLS, ids=IDS)
@pytest.mark.parametrize("form", FORMS)
async def test_t_n_1_reply_to_acquire_lost(
    connect: Connect, through: Proxy, redis: Redis, keys: Keys, form: str, settings: tuple[int, bool]
) -> None:
    client = connect(Formed(through, form), protocol=settings[0], decode_responses=settings[1])
    await warm(client)
    lost = through.reset_after(ACQUIRE)

    lease = await Lock(client, "a", ttl=5).acquire(blocking_timeout=2)

    assert lost.is_set()
    assert await lease.owned()
    (key,) = keys()
    token, fencing_token, _ = (await redis.get(key)).split(b":", 2)
    assert (token.decode(), int(fencing_token)) == (lease.token, lease.fencing_token)
    left = await redis.pttl(key) / 1000
    assert 0 < lease.remaining() <= left
    await lease.release()


@pytest.mark.parametrize("times", [1, 3])
async def test_t_n_1_reply_to_the_first_acquire_of_all_lost(
    connect: Connect, through: Proxy, form: str, times: int
) -> None:
    """Also while nothing is known of the connection yet, and several times in a row."""
    client = connect(Formed(through, form))
    lost = [through.reset_after(ACQUIRE, nth=nth + 1) for nth in range(times)]

    async with Lock(client, "a", ttl=5).acquire(blocking_timeout=3) as lease:
        assert all(event.is_set() for event in lost)
        assert await lease.owned()


async def test_t_n_1_reply_to_a_try_lost(client: Redis, through: Proxy) -> None:
    lost = through.reset_after(ACQUIRE)

    async with Lock(client, "a").try_acquire() as lease:
        assert lost.is_set()
        assert lease is not None
        assert await lease.owned()


async def test_t_n_1_reply_to_a_refusal_lost(client: Redis, through: Proxy, redis: Redis) -> None:
    async with Lock(redis, "a"):
        lost = through.reset_after(ACQUIRE)
        assert await Lock(client, "a").try_acquire() is None
        assert lost.is_set()

        lost = through.reset_after(ACQUIRE)
        with pytest.raises(LockTimeoutError):
            await Lock(client, "a").acquire(blocking_timeout=0.2)
        assert lost.is_set()


@pytest.mark.parametrize("settings", PROTOCOLS, ids=IDS)
@pytest.mark.parametrize("form", FORMS)
async def test_t_n_2_reply_to_release_lost(
    connect: Connect, through: Proxy, keys: Keys, form: str, settings: tuple[int, bool]
) -> None:
    client = connect(Formed(through, form), protocol=settings[0], decode_responses=settings[1])
    await warm(client)
    async with Lock(client, "a", ttl=5) as lease:
        lost = through.reset_after(RELEASE)

    assert lost.is_set()
    assert lease.state is LeaseState.RELEASED
    assert keys() == []
    await lease.release()


async def test_t_n_2_reply_to_release_lost_and_a_rival_comes_between(
    client: Redis, through: Proxy, redis: Redis
) -> None:
    lease = await Lock(client, "a", ttl=5).acquire()

    def refusing_the_way_back(request: Request) -> bool:
        through.refuse |= RELEASE(request)
        return RELEASE(request)

    lost = through.reset_after(refusing_the_way_back)
    releasing = asyncio.create_task(lease.release())
    async with Lock(redis, "a").acquire(blocking_timeout=2) as rival:
        assert lost.is_set()
        assert not releasing.done()
        through.refuse = False

        await asyncio.wait_for(releasing, 2)

        assert lease.state is LeaseState.RELEASED
        assert await rival.owned()


async def test_t_n_2_release_of_what_somebody_else_holds_is_told_in_spite_of_a_lost_reply(
    client: Redis, through: Proxy, redis: Redis, keys: Keys
) -> None:
    """A "not owned" that the first reply would have said must not become a success on another lease."""
    lease = await Lock(client, "a", ttl=5).acquire()
    await redis.delete(*keys())
    with pytest.raises(LockNotOwnedError):
        await lease.release()
    assert lease.state is LeaseState.LOST


@pytest.mark.parametrize("settings", PROTOCOLS, ids=IDS)
async def test_t_n_1_reply_to_renewal_lost(
    connect: Connect, through: Proxy, settings: tuple[int, bool]
) -> None:
    async def keep(form: str) -> None:
        client = connect(Formed(through, form), protocol=settings[0], decode_responses=settings[1])
        await warm(client)
        witness = Witness()
        async with (
            Session(client, listeners=[witness]) as session,
            Lock(session, form, ttl=3) as lease,
        ):
            lost = through.reset_after(
                lambda request: RENEW(request) and f"{{{form}}}".encode() in request[3]
            )
            await asyncio.wait_for(lost.wait(), 3)
            await eventually(lambda: len(witness.renewed) >= 2)
            assert lease.state is LeaseState.HELD
            assert await lease.owned()
        assert lease.state is LeaseState.RELEASED
        assert witness.lost == []

    await asyncio.gather(*map(keep, FORMS))


@pytest.mark.parametrize(
    ("ask", "match"), [("extend", RENEW), ("owned", OWNED), ("locked", LOCKED), ("adopt", ADOPT)]
)
async def test_t_n_1_reply_to_any_other_request_lost(
    client: Redis, through: Proxy, ask: str, match: Match
) -> None:
    lock = Lock(client, "a", ttl=5)
    lease = await lock.acquire()
    fencing_token = lease.fencing_token
    if ask == "adopt":
        handle = lease.detach()
    lost = through.reset_after(match)

    if ask == "extend":
        await lease.extend(7)
        assert lease.remaining() > 6
    elif ask == "owned":
        assert await lease.owned()
    elif ask == "locked":
        assert await lock.locked()
    else:
        lease = await lock.adopt(handle)

    assert lost.is_set()
    assert lease.fencing_token == fencing_token
    await lease.release()


async def test_t_n_3_each_step_sent_twice_leaves_what_it_leaves_sent_once(
    client: Redis, through: Proxy, redis: Redis
) -> None:
    """A request of a client is sent once more, verbatim: the same reply, the same keys."""
    lock = Lock(client, "a", ttl=5)

    async def state() -> dict[bytes, tuple[bytes, int]]:
        names = sorted(await redis.keys("*{a}"))
        return {name: (await redis.dump(name), math.ceil(await redis.pttl(name) / 1000)) for name in names}

    async def repeat(match: Callable[[Request], bool]) -> Any:
        request = [request for request in through.requests if match(request)][-1]
        before = await state()
        replies = [await redis.execute_command(*request), await redis.execute_command(*request)]
        assert await state() == before
        if match is not ACQUIRE or replies[0][0]:  # a refusal tells the time that is left
            assert replies[0] == replies[1]
        return replies[0]

    lease = await lock.acquire()
    assert await repeat(ACQUIRE) == [1, str(lease.fencing_token).encode(), 0]
    await lease.extend(7)
    assert await repeat(RENEW) == 1
    adopted = await lock.adopt(lease.detach())
    assert await repeat(ADOPT) == str(lease.fencing_token).encode()
    assert await lock.try_acquire() is None
    assert (await repeat(ACQUIRE))[0] == 0
    await adopted.release()
    assert await repeat(RELEASE) == [0]  # the client knows that it has sent it before
    assert await repeat(RENEW) == 0


# -- slow replies --------------------------------------------------------------------------------------------


async def test_t_n_4_never_relied_on_for_longer_than_the_server_keeps_it(
    client: Redis, through: Proxy, server: Server, keys: Keys
) -> None:
    loop = asyncio.get_running_loop()
    eye = blocking(server.url)  # looks within one step of the loop: nothing can be confirmed meanwhile
    slack = []
    try:
        for replies_take in (0.15, 0.0):
            through.delay_replies = replies_take
            async with Lock(client, "a", ttl=1.5) as lease:
                (key,) = keys()
                until = loop.time() + 0.8
                while loop.time() < until:
                    left = eye.pttl(key) / 1000
                    slack.append(left - lease.remaining())
                    await asyncio.sleep(0.003)
                assert lease.state is not LeaseState.LOST
    finally:
        eye.close()
    assert min(slack) >= 0
    assert len(slack) > 30  # a busy machine has few


async def test_t_n_4_grant_that_came_too_late_is_given_back(
    client: Redis, through: Proxy, redis: Redis, keys: Keys
) -> None:
    through.delay_replies = 0.3
    acquiring = asyncio.create_task(Lock(client, "a", ttl=0.2).acquire(blocking_timeout=5))
    await through.saw(ACQUIRE, count=2)  # the first was the warming up
    (first,) = await eventually(keys)
    minted = int((await redis.get(first)).split(b":")[1])
    await asyncio.sleep(0.25)
    through.delay_replies = 0.0

    lease = await acquiring

    assert lease.fencing_token > minted
    left = await redis.pttl(first) / 1000
    assert 0 < lease.remaining() <= left
    await lease.release()


async def test_t_n_4_try_whose_grant_came_too_late_holds_nothing(
    client: Redis, through: Proxy, keys: Keys
) -> None:
    through.delay_replies = 0.3
    assert await Lock(client, "a", ttl=0.2).try_acquire() is None
    through.delay_replies = 0.0
    await eventually(lambda: keys() == [])


async def test_t_n_4_extend_counts_from_before_it_was_sent(
    client: Redis, through: Proxy, redis: Redis, keys: Keys
) -> None:
    async with Lock(client, "a", ttl=5) as lease:
        through.delay_replies = 0.2
        await lease.extend(2)
        (key,) = keys()
        left = await redis.pttl(key) / 1000
        assert lease.remaining() <= min(1.8, left)
        through.delay_replies = 0.0


# -- silence -------------------------------------------------------------------------------------------------

NO_RETRY = {"retry": Retry(NoBackoff(), 0)}
POLICIES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "no retry": NO_RETRY,
    "ten retries": {"retry": Retry(ExponentialBackoff(cap=10, base=1), 10)},
    "quick socket": {"socket_timeout": 0.05, **NO_RETRY},
    "slow socket": {"socket_timeout": 60},
    "endless socket": {"socket_timeout": None, "socket_connect_timeout": None},
    "health checks": {"health_check_interval": 1},
}


async def test_t_n_5_wait_on_a_stopped_server_ends_in_time(
    own_server: OwnServer, connect: Connect, form: str
) -> None:
    server = await own_server(port=0)
    policies = list(POLICIES.values())
    clients = [connect(server, **policy) for policy in policies]
    if form == "own connections":
        clients = [with_own_connections(client) for client in clients]
    # Some have a connection, the others are to make one.
    for client in clients[::2]:
        await warm(client)
    server.pause()

    async def acquire(client: Redis) -> float:
        with elapsed() as took:
            error = await rejected(Lock(client, "a").acquire(blocking_timeout=0.3))
        assert "did not answer" in str(error) or "cannot be reached" in str(error)
        return took.seconds

    took = await asyncio.gather(*map(acquire, clients))

    assert min(took) >= 0.3
    assert max(took) < 0.3 + SLACK
    server.resume()


async def test_t_n_5_wait_that_was_refused_once_ends_as_refused(
    own_server: OwnServer, connect: Connect, form: str
) -> None:
    server = await own_server()
    client = connect(server)
    if form == "own connections":
        with_own_connections(client)
    holder = connect(server)
    lease = await Lock(holder, "a", ttl=30).acquire()

    witness = Witness()
    async with Session(client, listeners=[witness]) as session:
        waiting = asyncio.create_task(Lock(session, "a").acquire(blocking_timeout=0.4))
        with elapsed() as took:
            await eventually(lambda: sleeps(session))
            server.pause()
            with pytest.raises(LockTimeoutError, match=r"lease has 2\d\.\d+ s left") as caught:
                await waiting
        assert took.seconds < 0.4 + SLACK
        assert caught.value.remaining is not None
        server.resume()
    await lease.release()


async def test_t_n_5_endless_wait_ends_after_a_ttl_of_silence(
    own_server: OwnServer, connect: Connect, form: str
) -> None:
    server = await own_server()
    client = connect(server)
    if form == "own connections":
        with_own_connections(client)
    await warm(client)
    server.pause()
    with elapsed() as took:
        await rejected(Lock(client, "a", ttl=0.5).acquire())
    assert 0.5 <= took.seconds < 0.5 + SLACK
    server.resume()


@pytest.mark.more  # as the waits with limits of T-N-5
async def test_t_n_5_endless_wait_behind_a_holder_outlasts_a_short_silence(
    own_server: OwnServer, connect: Connect
) -> None:
    """The silence is counted from the last answer, not from the start of the wait."""
    server = await own_server()
    client = connect(server)
    lease = await Lock(connect(server), "a", ttl=10).acquire()
    waiting = asyncio.create_task(Lock(client, "a", ttl=0.5).acquire())
    for _ in range(3):
        await asyncio.sleep(0.15)
        server.pause()
        await asyncio.sleep(0.3)
        server.resume()
    assert not waiting.done()
    await lease.release()
    await (await asyncio.wait_for(waiting, 5)).release()


async def test_t_n_5_questions_end_within_the_command_timeout(
    own_server: OwnServer, connect: Connect, form: str
) -> None:
    server = await own_server()
    client = connect(server)
    if form == "own connections":
        with_own_connections(client)
    async with Session(client, command_timeout=0.2) as session:
        await warm(session)
        lock = Lock(session, "a", ttl=5)
        lease = await lock.acquire()
        server.pause()
        for ask in (lock.locked, lease.owned, lock.try_acquire, lease.extend):
            with elapsed() as took:
                await rejected(ask())
            assert 0.2 <= took.seconds < 0.2 + SLACK
        assert lease.state in (LeaseState.HELD, LeaseState.UNKNOWN)
        server.resume()
        await lease.release()


async def test_t_n_5_handle_outlasts_an_adoption_that_got_no_answer(
    connect: Connect, through: Proxy, form: str
) -> None:
    client = connect(Formed(through, form))
    await warm(client)
    async with Session(client, command_timeout=0.2) as session:
        lock = Lock(session, "a", ttl=5)
        handle = (await lock.acquire()).detach()
        through.hold_requests = True
        await rejected(lock.adopt(handle))
        through._hold_requests = False  # for new connections
        await asyncio.sleep(0.05)
        through.hold_requests = False
        adopted = await eventually(lambda: _adopted(lock, handle), within=3)
        await adopted.release()


async def _adopted(lock: Lock, handle: str) -> Lease | None:
    try:
        return await lock.adopt(handle)
    except LockNotOwnedError:
        return None


async def test_t_n_5_lost_and_cancelled_before_the_server_could_give_it_away(
    own_server: OwnServer, connect: Connect, proxy: Callable[[Server], Any], form: str
) -> None:
    """For forty leases whose renewals are in different phases when the server stops."""
    server = await own_server()
    through = await proxy(server)
    client = connect(Formed(through, form))
    await warm(client)
    loop = asyncio.get_running_loop()
    ttl = 0.6
    arrived: dict[bytes, list[float]] = {}  # by key: when requests for it came by, which is after they began

    def note(request: list[bytes]) -> None:
        if ACQUIRE(request) or RENEW(request):
            for key in locks_in(request):
                arrived.setdefault(key, []).append(loop.time())

    look_at(through, note)
    confirmed: dict[str, int] = {}

    class Counting:
        def on_acquired(self, event: Any) -> None:
            confirmed[event.name] = 1

        def on_renewed(self, event: Any) -> None:
            confirmed[event.name] += 1

    async def hold(session: Session, number: int) -> tuple[str, float]:
        await asyncio.sleep(number * ttl / 3 / 40)
        lock = Lock(session, f"a{number}", ttl=ttl)
        cancelled = math.inf
        with pytest.raises(LockLostError, match="without a confirmed renewal"):
            async with lock as lease:
                try:
                    await asyncio.sleep(10)
                finally:
                    cancelled = loop.time()
                    assert lease.state is LeaseState.LOST
                    assert lease.remaining() == 0
        return lock.name, cancelled

    async with Lag() as lag, Session(client, listeners=[Counting()]) as session:
        holding = [asyncio.create_task(hold(session, number)) for number in range(40)]
        await asyncio.sleep(1.5 * ttl)
        server.pause()
        late = {}
        for name, cancelled in await asyncio.gather(*holding):
            (key,) = (key for key in arrived if key.endswith(f"{{{name}}}".encode()))
            began = arrived[key][confirmed[name] - 1]
            late[name] = cancelled - began - ttl
        # The library stops 1 % and 2 ms earlier; the rest is this machine's scheduling.
        assert max(late.values()) < 0.03 + lag.longest
        assert session.statistics().losses == 40
        server.resume()


async def test_t_n_5_release_on_a_stopped_server_gives_up_at_the_deadline(
    own_server: OwnServer, connect: Connect, form: str
) -> None:
    server = await own_server()
    client = connect(server)
    if form == "own connections":
        with_own_connections(client)
    lease = await Lock(client, "a", ttl=0.5).acquire()
    with elapsed() as took:
        server.pause()
        error = await rejected(lease.release())
    assert took.seconds < 0.5 + SLACK
    assert error.__cause__ is None or isinstance(error.__cause__, Exception)
    assert lease.state is LeaseState.LOST
    server.resume()


async def test_t_n_5_exit_on_a_stopped_server(own_server: OwnServer, connect: Connect) -> None:
    """BackendError from an `async with` whose body ended cleanly; the body's own error otherwise."""
    server = await own_server()
    client = connect(server)
    with pytest.raises(BackendError):
        async with Lock(client, "a", ttl=0.4):
            server.pause()
    server.resume()
    await eventually(lambda: _is_free(client), within=0.4 + SLACK)
    with pytest.raises(ZeroDivisionError) as caught:
        async with Lock(client, "a", ttl=0.4):
            server.pause()
            _ = 1 / 0
    assert any("aiolocks" in note for note in caught.value.__notes__)
    server.resume()


async def _is_free(client: Redis) -> bool:
    return not await Lock(client, "a").locked()


@pytest.mark.parametrize("where", ["acquire", "body"])
async def test_t_n_5_cancellation_on_a_stopped_server_is_not_held_up(
    own_server: OwnServer, connect: Connect, form: str, where: str
) -> None:
    server = await own_server()
    client = connect(server)
    if form == "own connections":
        with_own_connections(client)
    await warm(client)
    inside = asyncio.Event()

    async def hold() -> None:
        if where == "acquire":
            server.pause()
            asyncio.get_running_loop().call_later(0.02, inside.set)
        async with Lock(client, "a", ttl=30):
            server.pause()
            inside.set()
            await asyncio.sleep(10)

    task = asyncio.create_task(hold())
    await inside.wait()
    with elapsed() as took:
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert took.seconds < (1 if where == "body" else 0) + SLACK
    server.resume()
    await eventually(lambda: _is_free(client), within=2)


# -- half-open connections -----------------------------------------------------------------------------------


async def test_t_n_9_half_open_connection(client: Redis, through: Proxy) -> None:
    """Neither side hears of anything, nor of the end: the deadlines are the same as of a stopped server."""
    lease = await Lock(client, "held", ttl=0.5).acquire()
    through.blackhole = True
    with elapsed() as took:
        await rejected(Lock(client, "a").acquire(blocking_timeout=0.3))
        assert 0.3 <= took.seconds < 0.3 + SLACK
        await asyncio.wait_for(lease.wait_lost(), 0.5 + SLACK)
    assert took.seconds < 0.5 + 2 * SLACK
    through.blackhole = False
    through.cut()
    with pytest.raises(LockNotOwnedError):
        await lease.release()


async def test_t_n_9_a_half_open_connection_is_given_up_for_a_new_one(
    connect: Connect, through: Proxy
) -> None:
    """Requests that were swallowed are never answered; requests that have time left get another
    connection."""
    client = connect(through)
    await warm(client)
    lease = await Lock(client, "held", ttl=6).acquire()
    deafen(through)
    with elapsed() as took:
        async with Lock(client, "a").acquire(blocking_timeout=10):
            took.stop()
    assert lease.state is LeaseState.HELD
    await lease.release()
    assert took.seconds < 2.5


@pytest.mark.more  # as a half-open connection
async def test_t_n_9_pushes_do_not_hide_that_requests_are_swallowed(
    connect: Connect, through: Proxy, redis: Redis
) -> None:
    """A connection that is open in one direction: the server tells of what others do, and hears nothing."""
    async with Session(connect(through), wakeup=wakeup("keyspace")) as session:
        lease = await Lock(session, "held", ttl=8).acquire()
        await asyncio.sleep(0.2)  # until then the server is asked to tell of its key
        deafen(through)

        async def change() -> None:
            while True:
                await redis.pexpire("aiolocks:lock:{held}", 8000)
                await asyncio.sleep(0.2)

        changing = asyncio.create_task(change())
        try:
            with elapsed() as took:
                async with Lock(session, "a").acquire(blocking_timeout=6):
                    took.stop()
        finally:
            changing.cancel()
        assert lease.state is LeaseState.HELD
        await lease.release()
    assert took.seconds < 3


@pytest.mark.soak
async def test_t_n_9_the_next_half_open_connection_is_given_up_as_soon_as_the_first(
    connect: Connect, through: Proxy
) -> None:
    client = connect(through)
    await warm(client)
    took = []
    for _ in range(4):
        await asyncio.sleep(max([2.0, *took]) + 0.5)  # idle: nothing is under way
        deafen(through)
        with elapsed() as this:
            async with Lock(client, "a").acquire(blocking_timeout=60):
                this.stop()
        took.append(this.seconds)
    assert max(took) < 2.5


@pytest.mark.more  # as one
async def test_t_n_9_two_half_open_connections_in_a_row_are_each_given_up_as_soon(
    connect: Connect, through: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is lost right after its first answer: the patience that was doubled counts no more."""
    monkeypatch.setattr(connection, "STALL", 0.5)
    client = connect(through)
    await warm(client)
    for _ in range(3):
        deafen(through)
        with elapsed() as took:
            async with Lock(client, "a").acquire(blocking_timeout=60):
                took.stop()
        assert took.seconds < 0.85


# -- settings of clients -------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", PROTOCOLS, ids=IDS)
async def test_t_n_10_clients_of_any_setting_behave_alike(
    connect: Connect, through: Proxy, redis: Redis, form: str, settings: tuple[int, bool]
) -> None:
    # An answer may take a while.
    policies = POLICIES | {
        "quick socket": {"socket_timeout": SLACK, **NO_RETRY}
    }  # an answer may take a while
    await warm(redis)

    async def live(policy: str) -> None:
        client = connect(
            Formed(through, form), protocol=settings[0], decode_responses=settings[1], **policies[policy]
        )

        def in_this_life(match: Callable[[Request], bool]) -> Callable[[Request], bool]:
            return lambda request: match(request) and request[3].endswith(f"{{{policy}}}".encode())

        lock = Lock(client, policy, ttl=3)
        through.reset_after(in_this_life(ACQUIRE))
        async with lock as lease:
            assert await lock.try_acquire() is None
            assert await lock.locked()
            assert await lease.owned()
            with pytest.raises(LockTimeoutError):
                await Lock(redis, policy).acquire(blocking_timeout=1)  # to be refused within it
            await lease.extend()
            fencing_tokens = [lease.fencing_token]

            async def next_in(client: Redis) -> None:
                async with Lock(client, policy, blocking_timeout=20) as lease:
                    fencing_tokens.append(lease.fencing_token)

            waiting = [asyncio.create_task(next_in(other)) for other in (redis, client)]
            await renewed(lease)
            assert lease.state is LeaseState.HELD
            through.reset_after(in_this_life(RELEASE))
        await asyncio.gather(*waiting)
        assert fencing_tokens == sorted(set(fencing_tokens))
        assert len(fencing_tokens) == 3

    await asyncio.gather(*map(live, policies))


@pytest.mark.parametrize("parser", [_AsyncRESP2Parser, _AsyncRESP3Parser])
async def test_t_n_10_without_the_quick_parser(connect: Connect, through: Proxy, parser: type) -> None:
    protocol = 2 if parser is _AsyncRESP2Parser else 3
    client = connect(through, parser_class=parser, protocol=protocol)
    await warm(client)
    through.reset_after(ACQUIRE)
    async with Lock(client, "a", ttl=1.5) as lease:
        await renewed(lease)
        assert await lease.owned()


# -- what the wait for a connection must not change ----------------------------------------------------------


async def test_a_renewal_that_waited_for_a_connection_does_not_outlast_max_hold(
    client: Redis, through: Proxy, keys: Keys
) -> None:
    with elapsed() as held:
        lease = await Lock(client, "a", ttl=2.4, max_hold=2.6).acquire()
        await asyncio.sleep(0.1)
        through.refuse = True
        through.cut()
        await asyncio.sleep(0.9)  # a renewal was made after 0.8 s, for 1.8 s more
        through.refuse = False
        renewed = through.count(RENEW)
        await eventually(lambda: through.count(RENEW) > renewed, within=1.5)
        await asyncio.sleep(2.6 + 0.05 - held.seconds)
    assert lease.state is LeaseState.LOST
    assert keys() == []


@pytest.mark.more  # as half-open ones
async def test_connections_that_hang_do_not_use_up_the_plain_transport(
    connect: Connect, through: Proxy
) -> None:
    """It has sixteen workers; whoever waited for what they do has left long ago."""
    redis = connect(Formed(through, "own connections"), socket_timeout=None)
    async with Session(redis, command_timeout=0.2) as session:
        lock = Lock(session, "a")
        await lock.locked()
        through.blackhole = True
        answers = await asyncio.gather(*(lock.locked() for _ in range(16)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [BackendError] * 16
        through.blackhole = False
        deafen(through)  # those connections stay as they are, new ones are fine

        async def works() -> bool:
            try:
                return not await lock.locked()
            except BackendError:
                return False

        assert await eventually(works, within=3)


async def test_in_an_outage_a_request_tries_at_once_before_it_is_refused(
    connect: Connect, through: Proxy
) -> None:
    """What was true at the last attempt is no answer; the pause to the next grows to half a second."""
    async with Session(connect(through)) as session:
        await warm(session)
        loop = asyncio.get_running_loop()

        async def longest() -> float:
            took = []
            for _ in range(12):
                began = loop.time()
                with pytest.raises(BackendError):
                    await Lock(session, "a").locked()
                took.append(loop.time() - began)
                await asyncio.sleep(0.06)
            return max(took)

        through.refuse = True
        through.cut()
        # A machine may stand still in one spell, and hardly in each of three.
        assert await longest() < 0.3 or await longest() < 0.3 or await longest() < 0.3
        through.refuse = False

        async def works() -> bool:
            with suppress(BackendError):
                return not await Lock(session, "a").locked()
            return False

        assert await eventually(works, within=3)
