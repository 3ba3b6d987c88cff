"""The minimal ACL: with what is documented everything works, and each word of it is needed."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from aiolocks import (
    BackendError,
    ConfigurationError,
    FairLock,
    KeyspaceWakeup,
    Lock,
    LockTimeoutError,
    MultiLock,
    RangeLock,
    ReentrantLock,
    RWLock,
    Semaphore,
    Session,
)
from aiolocks.transport.request import Script
from aiolocks.transport.steps.family import kinds
from aiolocks.transport.steps.lock import FORCE_LOCK
from tests.lua.flight_scripts import FlightScripts
from tests.lua.job_scripts import JobScripts
from tests.lua.leadership_scripts import LeadershipScripts
from tests.lua.limit_scripts import LimitScripts
from tests.lua.schedule_scripts import ScheduleScripts
from tests.lua.scripts import MultiScripts, PermitScripts, ReentrantScripts, Scripts, SpanScripts
from tests.support.waiting import eventually

HOLDING = ["eval", "evalsha", "get", "set", "del", "exists", "pexpire", "pttl", "time"]
WAITING = ["zadd", "zcard", "zrange", "zrem"]
LISTENING = ["zrank"]
COMMANDS = HOLDING + WAITING + LISTENING
KEYS = ["aiolocks:lock:*", "aiolocks:lock.fence:*", "aiolocks:lock.queue:*", "aiolocks:lock.bell.*"]
KNOWS_ITSELF = ["client|info", "client|kill", "info"]
"""Optional: lets a session drop its own old connection after a reconnect, and warn of an eviction policy."""
TRACKING = ["client|caching", "client|tracking"]
"""Optional: the server tells waiters when it is their turn."""
KEYSPACE = ["subscribe", "unsubscribe"]
CHANNELS = ["__keyspace@0__:aiolocks:lock.bell.*"]
"""Optional, in place of these: the same by keyspace notifications, where they are on."""
SHARDED = ["ssubscribe", "sunsubscribe"]
"""Optional besides, in a cluster: the server tells of slots that leave a node."""
CONFIGURE = ["config|get", "config|set"]
"""Optional besides: lets `KeyspaceWakeup(configure=True)` switch them on."""
NOTIFICATIONS = "notify-keyspace-events"


@dataclass(frozen=True)
class Two:
    """Two sessions of one user, on a server of their own, and who administers it."""

    first: Session
    second: Session
    admin: Redis

    async def bells_heard(self) -> list[bytes]:
        """The channels of bells that anybody listens to, but for those on which that was tried out."""
        channels: list[bytes] = await self.admin.pubsub_channels("*:lock.bell.*")
        return [channel for channel in channels if b"bell.probe:" not in channel]


As = Callable[..., Awaitable[Two]]


@pytest.fixture
async def as_user(own_server, connect, acl) -> Any:
    """Sessions of a user who may do this and nothing else."""
    sessions = []

    async def as_user(
        *,
        commands: Sequence[str] = COMMANDS,
        keys: Sequence[str] = KEYS,
        channels: Sequence[str] = (),
        notifications: str = "",
        **kwargs: Any,
    ) -> Two:
        server = await own_server()
        admin = connect(server)
        await admin.config_set(NOTIFICATIONS, notifications)
        rules = ["reset", "on", ">secret", "resetchannels", "-@all"]
        rules += [f"+{command}" for command in commands]
        rules += [f"~{pattern}" for pattern in keys] + [f"&{pattern}" for pattern in channels]
        await admin.execute_command("ACL", "SETUSER", "locks", *rules)
        clients = [connect(server, username="locks", password="secret") for _ in range(2)]
        mine = [Session(client, **kwargs) for client in clients]
        sessions.extend(mine)
        return Two(*mine, admin)

    yield as_user
    for session in sessions:
        await session.aclose()


async def everything(two: Two) -> None:
    """Each thing that a lock and its lease can do, being refused, and waiting."""
    lock = Lock(two.first, "name", ttl=10)
    async with lock as lease:
        assert await lock.locked()
        assert await lease.owned()
        await lease.extend(20)
        await lease.annotate({"step": 2})
        assert await Lock(two.second, "name").try_acquire() is None
        handle = lease.detach()
    adopted = await lock.adopt(handle)
    await adopted.release()
    assert not await lock.locked()
    async with Lock(two.first, "kept", at_least=0.2):
        pass
    async with Lock(two.second, "kept", blocking_timeout=5):
        pass
    await hand_over(two)
    await give_up(two)


async def give_up(two: Two) -> None:
    """One waits for what another session holds, and leaves nothing behind."""
    async with Lock(two.first, "name", ttl=10):
        with pytest.raises(LockTimeoutError):
            async with Lock(two.second, "name", blocking_timeout=0.2):
                pass
        assert not await two.admin.exists(queue())


async def hand_over(two: Two, name: str = "name") -> None:
    """One waits, in the queue, and gets in when the other session releases."""

    async def enter() -> int:
        async with Lock(two.second, name, ttl=10, blocking_timeout=5) as lease:
            return lease.fencing_token

    async def queued() -> bool:
        return waiter.done() or bool(await two.admin.exists(queue(name)))

    async with Lock(two.first, name, ttl=10) as lease:
        waiter = asyncio.create_task(enter())
        try:
            await eventually(queued, within=4)  # before the waiter gives up
            await lease.release()
            assert await waiter > lease.fencing_token
        finally:
            waiter.cancel()
            await asyncio.wait((waiter,))
    assert not await two.admin.exists(queue(name))


def queue(name: str = "name") -> str:
    return f"aiolocks:lock.queue:{{{name}}}" if "{" not in name else f"aiolocks:lock.queue:#{name}"


def without(word: str, words: Sequence[str]) -> list[str]:
    assert word in words
    return [other for other in words if other != word]


# -- what is needed ------------------------------------------------------------------------------------------


async def test_with_the_minimal_acl_everything_works(as_user) -> None:
    await everything(await as_user())


@pytest.mark.leaves_keys
@pytest.mark.parametrize("missing", without("zadd", HOLDING + WAITING))
async def test_each_of_its_commands_is_needed(as_user, missing) -> None:
    two = await as_user(commands=without(missing, COMMANDS))

    with pytest.raises(BackendError, match=r"Redis refused"):
        await everything(two)


async def test_without_zadd_nobody_stands_in_the_queue(as_user) -> None:
    """A process that cannot queue polls."""
    two = await as_user(commands=without("zadd", COMMANDS))
    async with Lock(two.first, "name", ttl=10) as lease:
        waiter = asyncio.create_task(Lock(two.second, "name").acquire())
        await eventually(lambda: two.second.statistics().wakeups["poll"] >= 2)
        assert not await two.admin.exists(queue())
        await lease.release()
        await (await waiter).release()


async def test_without_zrank_waiters_are_woken_but_not_silent(as_user) -> None:
    two = await as_user(commands=without("zrank", COMMANDS) + TRACKING)
    async with Lock(two.first, "name", ttl=10) as lease:
        waiter = asyncio.create_task(Lock(two.second, "name").acquire())
        await eventually(lambda: two.second.statistics().wakeups["poll"] >= 2)
        await lease.release()
        await (await waiter).release()


@pytest.mark.leaves_keys
@pytest.mark.parametrize("missing", KEYS)
async def test_each_of_its_keys_is_needed(as_user, missing) -> None:
    two = await as_user(keys=without(missing, KEYS))

    with pytest.raises(BackendError, match=r"Redis refused"):
        await everything(two)


async def test_a_denial_names_the_key_and_the_minimal_acl(as_user) -> None:
    two = await as_user(keys=["other:*"])

    with pytest.raises(BackendError, match=r"for key 'aiolocks:lock:\{name\}': .* see the minimal ACL"):
        await everything(two)


async def test_a_name_with_a_hash_tag_of_its_own_needs_no_more(as_user) -> None:
    two = await as_user()
    async with Lock(two.first, "user:{42}") as lease:
        assert await lease.owned()
    await hand_over(two, "user{42}")


# -- knowing oneself -----------------------------------------------------------------------------------------


async def test_without_the_optional_commands_a_session_does_not_know_itself(as_user) -> None:
    two = await as_user()
    await everything(two)

    identity = two.first._engine._transport._identity
    assert (identity.client_id, identity.address, identity.run_id) == (None, None, None)


async def test_with_the_optional_commands_it_does(as_user) -> None:
    two = await as_user(commands=COMMANDS + KNOWS_ITSELF)
    await everything(two)

    identity = two.first._engine._transport._identity
    assert None not in (identity.client_id, identity.address, identity.run_id)


# -- being woken ---------------------------------------------------------------------------------------------


async def served_by(two: Two, way: str) -> None:
    """Everything works, and waiters are woken so; the poll may be faster, but not each time."""
    await everything(two)
    for _ in range(5):
        await hand_over(two)
    wakeups = two.second.statistics().wakeups
    assert wakeups[way] > 0
    assert {other for other, count in wakeups.items() if count} <= {way, "poll"}


async def refused_by_name(two: Two, way: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"wakeup='{way}' is not available"):
        async with Lock(two.first, "name"):
            pass


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_without_the_optional_words_the_poll_serves_and_a_warning_says_why(as_user, caplog) -> None:
    await served_by(await as_user(notifications="Kg"), "poll")

    assert len(warnings(caplog)) == 2  # one a session
    for warning in warnings(caplog):
        assert warning.startswith("wakeup: poll serves this session (tracking: the server refuses CLIENT")
        assert "; keyspace: the server refuses SUBSCRIBE" in warning


@pytest.mark.parametrize("wakeup", ["tracking", "keyspace", KeyspaceWakeup(configure=True)], ids=repr)
async def test_without_the_optional_words_no_wakeup_can_be_asked_for_by_name(as_user, wakeup) -> None:
    two = await as_user(wakeup=wakeup, notifications="Kg")

    await refused_by_name(two, "tracking" if wakeup == "tracking" else "keyspace")


@pytest.mark.parametrize("wakeup", ["auto", "tracking"])
async def test_with_its_words_tracking_wakes(as_user, caplog, wakeup) -> None:
    await served_by(await as_user(commands=COMMANDS + TRACKING, wakeup=wakeup), "tracking")

    assert warnings(caplog) == []


@pytest.mark.parametrize(
    "missing",
    [
        "client|caching",
        "client|tracking",
    ],
)
async def test_each_of_its_words_is_needed_for_tracking(as_user, missing) -> None:
    two = await as_user(commands=COMMANDS + without(missing, TRACKING), wakeup="tracking")

    await refused_by_name(two, "tracking")


@pytest.mark.parametrize("protocol", [None, 2])
@pytest.mark.parametrize("wakeup", ["auto", "keyspace"])
async def test_with_its_words_keyspace_wakes(as_user, caplog, wakeup, protocol) -> None:
    two = await as_user(
        commands=COMMANDS + KEYSPACE,
        channels=CHANNELS,
        notifications="Kg",
        wakeup=wakeup,
        protocol=protocol,
    )
    await served_by(two, "keyspace")

    assert [warning.partition(" (")[0] for warning in warnings(caplog)] == (
        ["wakeup: keyspace serves this session"] * 2 if wakeup == "auto" else []
    )


async def test_subscribing_is_needed_for_keyspace(as_user) -> None:
    two = await as_user(
        commands=COMMANDS + without("subscribe", KEYSPACE),
        channels=CHANNELS,
        notifications="Kg",
        wakeup="keyspace",
    )
    await refused_by_name(two, "keyspace")


async def test_its_channels_are_needed_for_keyspace(as_user) -> None:
    two = await as_user(
        commands=COMMANDS + KEYSPACE,
        channels=["__keyspace@0__:aiolocks:lock.other.*"],
        notifications="Kg",
        wakeup="keyspace",
    )
    await refused_by_name(two, "keyspace")


@pytest.mark.parametrize("allowed", [True, False])
async def test_unsubscribing_is_needed_for_keyspace_to_leave_no_subscription(as_user, allowed) -> None:
    two = await as_user(
        commands=COMMANDS + (KEYSPACE if allowed else without("unsubscribe", KEYSPACE)),
        channels=CHANNELS,
        notifications="Kg",
        wakeup="keyspace",
    )
    await everything(two)

    async def quiet() -> bool:
        return not await two.bells_heard()

    if allowed:
        await eventually(quiet)
    else:
        await asyncio.sleep(0.2)
        assert await two.bells_heard()


async def test_with_its_words_keyspace_switches_the_notifications_on(as_user) -> None:
    two = await as_user(
        commands=COMMANDS + KEYSPACE + CONFIGURE, channels=CHANNELS, wakeup=KeyspaceWakeup(configure=True)
    )
    await served_by(two, "keyspace")


@pytest.mark.parametrize("missing", CONFIGURE)
async def test_each_of_its_words_is_needed_to_switch_the_notifications_on(as_user, missing) -> None:
    two = await as_user(
        commands=COMMANDS + KEYSPACE + without(missing, CONFIGURE),
        channels=CHANNELS,
        wakeup=KeyspaceWakeup(configure=True),
    )
    await refused_by_name(two, "keyspace")


async def test_a_setting_that_hides_flags_is_left_alone_by_a_user_who_cannot_find_them(as_user) -> None:
    two = await as_user(
        commands=COMMANDS + KEYSPACE + CONFIGURE,
        channels=CHANNELS,
        notifications="AE",
        wakeup=KeyspaceWakeup(configure=True),
    )
    await refused_by_name(two, "keyspace")


async def test_nothing_needs_to_be_configured_where_the_notifications_are_on(as_user) -> None:
    two = await as_user(
        commands=COMMANDS + KEYSPACE,
        channels=CHANNELS,
        notifications="Kg",
        wakeup=KeyspaceWakeup(configure=True),
    )
    await served_by(two, "keyspace")


# -- the other kinds -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """The permissions that the scripts of a kind need, beyond `eval` and `evalsha`, and where.

    Attributes:
        roles: The names of its keys, in the pattern that allows them.
        steps: Says each word of it, by hand.
    """

    scripts: type[Scripts]
    words: tuple[str, ...]
    roles: tuple[str, ...]
    steps: Callable[[Any], Awaitable[None]]

    @property
    def commands(self) -> list[str]:
        return ["eval", "evalsha", *self.words]

    def keys(self, kind: str) -> list[str]:
        return [f"aiolocks:{kind}{role}" for role in self.roles]


ME, OTHER, THIRD = "a1" * 16, "b2" * 16, "c3" * 16


async def multi_steps(locks: MultiScripts) -> None:
    await locks.sit("x")
    await locks.acquire(ME, queued="x")
    await locks.renew(ME)
    await locks.locked()
    await locks.acquire(OTHER)
    await locks.release(ME)
    await locks.of(0).acquire(OTHER)
    await locks.acquire(ME, queued="x", flags="p")
    await locks.acquire(ME, queued="x", flags="po")


async def reentrant_steps(lock: ReentrantScripts) -> None:
    await lock.acquire(ME)
    await lock.acquire(OTHER)
    await lock.sit("x")
    await lock.sit("y")
    await lock.renew(ME)
    await lock.release(ME, leave="x")
    await lock.release(ME)


async def permit_steps(permits: PermitScripts) -> None:
    await permits.acquire(ME)
    await permits.acquire(OTHER, 3)
    await permits.sit("x")
    await permits.acquire(OTHER, 3, who="x", flags="pqw")
    await permits.release(ME)
    await permits.acquire(ME)
    await permits.release(ME, at_least=10)


async def permit_steps_of_what_is_lost(permits: PermitScripts) -> None:
    await permits.acquire(ME)
    await permits.acquire(OTHER)
    await permits.redis.execute_command(
        "EVAL", "redis.call('ZREM', KEYS[1], ARGV[1])", 1, permits.holders, ME
    )
    await permits.available()


async def leadership_steps(leadership: LeadershipScripts) -> None:
    await permit_steps(leadership)
    await leadership.elect(ME)
    await leadership.annotate(ME)
    await leadership.look()


async def limit_steps(limits: LimitScripts) -> None:
    await limits.take(ME)
    await limits.wait(OTHER, "x")
    await limits.give(ME)
    await limits.take(OTHER, "x", flags="w")
    await limits.wait(ME, "y")
    await limits.redis.execute_command("EVAL", "redis.call('DEL', KEYS[1])", 1, limits.bell("y"))
    await limits.give(OTHER, "x")


async def limit_steps_of_what_is_lost(limits: LimitScripts) -> None:
    await limits.take(ME)
    await limits.redis.execute_command("EVAL", "redis.call('ZREM', KEYS[1], ARGV[1])", 1, limits.holders, ME)
    await limits.take(OTHER)


async def flight_steps(flight: FlightScripts) -> None:
    run = await flight.begin(ME)
    await flight.sit("x")
    await flight.acquire(OTHER, queued="x")
    await flight.publish(ME, run)
    await flight.acquire(OTHER, queued="x", after=run)
    old = await flight.once(keep=10_000)
    await flight.publish(OTHER, await flight.begin(OTHER, anew=old), tag="e", pause=10_000)
    other = flight.another()
    await other.begin(ME)
    await other.acquire(OTHER, waits="y")


async def span_steps(spans: SpanScripts) -> None:
    await spans.acquire(ME, "w")
    await spans.wait("x", "r")
    await spans.come("x", "r", flags="wp")
    await spans.release(ME)


async def span_steps_of_what_is_lost(spans: SpanScripts) -> None:
    await spans.acquire(ME, "r")
    await spans.acquire(OTHER, "r")
    await spans.redis.execute_command("EVAL", "redis.call('ZREM', KEYS[1], ARGV[1])", 1, spans.ends, ME)
    await spans.locked("w")


async def job_steps(jobs: JobScripts) -> None:
    old, new = f"{'o' * 22}.1000", f"{'n' * 22}.1000"
    await jobs.enqueue(old)
    await jobs.enqueue(new, flag="r")
    await jobs.withdraw(new)
    await jobs.acquire(ME, ticket=old, begin="k")
    await jobs.wait(OTHER, room=1)
    await jobs.renew(ME, ticket=old)
    await jobs.release(ME, "rdf", ticket=old)
    await jobs.enqueue(new)
    await jobs.acquire(OTHER, ticket=new, begin="g")


async def schedule_steps(schedule: ScheduleScripts) -> None:
    await schedule.begun(3)
    await schedule.claim(ME, 2)
    await schedule.claim(OTHER, 1, flags="q")
    await schedule.renew(ME)
    await schedule.release(ME)
    await schedule.claim(OTHER, 0)
    await schedule.read()


SCRIPTS = ("del", "get", "pexpire", "pttl", "set", "time", "zadd", "zcard", "zrange", "zrem")
"""The commands that the scripts of all kinds run."""
NAMED = (":*", ".fence:*", ".queue:*", ".bell.*")
SPANS = ("readers", "upgradables", "writers", "reservations", "turns", "calls", "places")
PERMITS = (*SCRIPTS, "hdel", "hget", "hincrby", "hlen", "hset", "zrangebyscore", "zrank")
FAMILIES = {
    "multilock": Family(MultiScripts, (*SCRIPTS, "exists", "zrank", "zscore"), NAMED, multi_steps),
    "reentrantlock": Family(
        ReentrantScripts,
        (*SCRIPTS, "exists", "zrangebyscore", "zscore"),
        (*NAMED, ".nest:*"),
        reentrant_steps,
    ),
    "semaphore": Family(
        PermitScripts,
        PERMITS,
        (*NAMED, ".leases:*", ".value:*"),
        permit_steps,
    ),
    "leadership": Family(
        LeadershipScripts,
        (*PERMITS, "zremrangebyrank", "zremrangebyscore", "zscore"),
        (*NAMED, *(f".{role}:*" for role in ("leases", "value", "terms", "news"))),
        leadership_steps,
    ),
    "limits": Family(
        LimitScripts,
        (
            *SCRIPTS,
            *("exists", "hdel", "hexists", "hget", "hincrby", "hkeys", "hlen", "hset"),
            *("zrangebylex", "zrangebyscore"),
        ),
        (*NAMED, ".leases:*", ".turns:*", ".queue.*"),
        limit_steps,
    ),
    "singleflight": Family(
        FlightScripts,
        (*SCRIPTS, "hget", "hlen", "hmget", "hset", "zscore"),
        (*NAMED, ".value:*"),
        flight_steps,
    ),
    "uniquejob": Family(
        JobScripts,
        (
            *SCRIPTS,
            *("hdel", "hget", "hincrby", "hlen", "hset", "zrangebyscore", "zremrangebyscore", "zscore"),
        ),
        (
            *NAMED,
            *(f".{role}:*" for role in ("leases", "value", "owner", "over", "before", "about", "seen")),
            ".run.*",
        ),
        job_steps,
    ),
    "schedule": Family(
        ScheduleScripts,
        (
            *("get", "pexpire", "pttl", "set", "time", "zadd", "zcard", "zrange", "zrem"),
            *("hdel", "hget", "hincrby", "hkeys", "hlen", "hset", "zrangebyscore"),
        ),
        (":*", ".fence:*", *(f".{role}:*" for role in ("leases", "register", "queue", "history")), ".bell.*"),
        schedule_steps,
    ),
    "rwlock": Family(
        SpanScripts,
        (*SCRIPTS, "exists", "hdel", "hget", "hlen", "hset", "zcount", "zrangebyscore", "zrank", "zscore"),
        (*NAMED, ".ends:*", ".waits:*", *(f".{side}.*" for side in SPANS)),
        span_steps,
    ),
}
LOST = {
    "semaphore": ("hexists", "hkeys", "zscore"),
    "leadership": ("hexists", "hkeys"),
    "rwlock": ("hkeys",),
    "limits": ("zscore",),
}
"""The commands that those run besides, where one of several keys was lost."""
WORKING_ALIKE = {"uniquejob": "semaphore", "schedule": "semaphore"}
"""Their runs are permits: they run those besides, too."""


@pytest.fixture
async def by_hand(own_server, connect, acl) -> Any:
    """Says the steps of a family as a user who may do these things only, each time under another name."""
    server = await own_server()
    admin, user = connect(server), connect(server, username="locks", password="secret")

    async def by_hand(family: Family, *, commands: Sequence[str], keys: Sequence[str]) -> None:
        rules = ["reset", "on", ">secret", "resetchannels", "-@all"]
        rules += [f"+{command}" for command in commands] + [f"~{pattern}" for pattern in keys]
        await admin.execute_command("ACL", "SETUSER", "locks", *rules)
        await family.steps(family.scripts(user, "aiolocks"))

    yield by_hand
    await admin.flushall()  # a run that was cut off in the middle has no ttl


async def refused(steps: Awaitable[None]) -> bool:
    try:
        await steps
    except (NoPermissionError, ResponseError) as error:
        return any(said in str(error) for said in ("ermission", "ACL failure", "can't run", "can't access"))
    return False


@pytest.mark.leaves_keys
@pytest.mark.parametrize("name", FAMILIES)
async def test_a_familys_scripts_need_each_of_their_commands_and_keys_and_no_more(by_hand, name) -> None:
    family = FAMILIES[name]
    commands, keys = family.commands, family.keys(family.scripts.kind)
    await by_hand(family, commands=without("evalsha", commands), keys=keys)

    for word in family.words:
        assert (word, await refused(by_hand(family, commands=without(word, commands), keys=keys))) == (
            word,
            True,
        )
    for key in keys:
        assert (key, await refused(by_hand(family, commands=commands, keys=without(key, keys)))) == (
            key,
            True,
        )


@pytest.mark.leaves_keys
@pytest.mark.parametrize("name", LOST)
async def test_some_commands_are_needed_only_where_a_key_was_lost(by_hand, name) -> None:
    steps = {"rwlock": span_steps_of_what_is_lost, "limits": limit_steps_of_what_is_lost}.get(
        name, permit_steps_of_what_is_lost
    )
    family = replace(FAMILIES[name], steps=steps)
    commands, keys = [*family.commands, *LOST[name]], family.keys(family.scripts.kind)
    await by_hand(family, commands=commands, keys=keys)

    for word in LOST[name]:
        assert (word, await refused(by_hand(family, commands=without(word, commands), keys=keys))) == (
            word,
            True,
        )


@pytest.mark.parametrize("name", [name for name, kind in kinds().items() if kind.needs])
def test_each_kind_says_the_commands_that_it_needs_beside_those_of_a_lock(name) -> None:
    """`aiolocks doctor` tries them out, and the table for the ACL has them."""
    kind = kinds()[name]
    by_its_scripts = [one for one in FAMILIES if kinds()[one].family is kind.family]
    if not by_its_scripts and kind.family.acquire.words:  # another family with the same steps
        acquire = kind.family.acquire.script
        by_its_scripts = [one for one in FAMILIES if kinds()[one].family.acquire.script is acquire]
    if not by_its_scripts:  # what its scripts call, they call each time, or nearly so
        modules = {"fencedregister": "fenced"}
        module = sys.modules[f"aiolocks.kinds.{modules.get(name, name)}"]
        own = [one for one in vars(module).values() if isinstance(one, Script) and one is not FORCE_LOCK]
        scripts = [one.text.decode() for one in own]
        called = {word.lower() for text in scripts for word in re.findall(r"redis\.p?call\('(\w+)'", text)}
        assert {*kind.needs} == called - {*COMMANDS}
        return
    (family,) = by_its_scripts
    lost = LOST.get(WORKING_ALIKE.get(family, family), ())
    assert {*kind.needs} == {*FAMILIES[family].words, *lost} - {*COMMANDS}


Make = Callable[[Session], Any]


def _name(session: Session) -> str:
    return f"{id(session)}"


RW_LOCKS: list[Make] = [
    lambda session: RWLock(session, "{n}", ttl=10).writer,
    lambda session: RWLock(session, "{n}", ttl=10).upgradable,
]
RANGES: list[Make] = [
    lambda session: RangeLock(session, "{n}", ttl=10).writer(0, 10),
    lambda session: RangeLock(session, "{n}", ttl=10).upgradable(-1.5, 10),
]
KINDS: dict[str, tuple[str, str, list[Make]]] = {
    "FairLock": ("semaphore", "fairlock", [lambda session: FairLock(session, "{n}", ttl=10)]),
    "Semaphore": ("semaphore", "semaphore", [lambda session: Semaphore(session, "{n}", 1, ttl=10)]),
    "fair Semaphore": (
        "semaphore",
        "semaphore",
        [lambda session: Semaphore(session, "{n}", 1, fair=True, ttl=10)],
    ),
    "ReentrantLock": (
        "reentrantlock",
        "lock",
        [lambda session: ReentrantLock(session, "{n}", owner=_name(session))],
    ),
    "MultiLock": ("multilock", "lock", [lambda session: MultiLock(session, ["{n}a", "{n}b"], ttl=10)]),
    "RWLock": ("rwlock", "rwlock", RW_LOCKS),
    "RangeLock": ("rwlock", "rangelock", RANGES),
}
"""Family, and what its keys are called, and its locks, each of which excludes itself in another session."""


async def live(two: Two, make: Make) -> None:
    """Each thing that a lock and its lease can do, being refused, waiting, and being let in."""
    lock, other = make(two.first), make(two.second)
    async with lock.acquire() as lease:
        assert await lease.owned()
        assert await other.locked()
        await lease.extend(20)
        await lease.annotate({"step": 2})
        assert await other.try_acquire() is None
        with pytest.raises(LockTimeoutError):
            await other.acquire(blocking_timeout=0.1)
        waiter = asyncio.create_task(other.acquire(blocking_timeout=5))
        try:

            async def queued() -> bool:
                return waiter.done() or bool(await two.admin.keys("aiolocks:*.queue:*"))

            await eventually(queued)
            handle = lease.detach()
            adopted = await lock.adopt(handle)
            await adopted.release()
            entered = await waiter
            assert entered.fencing_token > lease.fencing_token
            await entered.release()
        finally:
            waiter.cancel()
            await asyncio.wait((waiter,))
    assert not await lock.locked()


@pytest.mark.parametrize("name", KINDS)
async def test_with_its_minimal_acl_a_kind_lives(as_user, caplog, name) -> None:
    family, kind, locks = KINDS[name]
    lost = LOST.get(family, ())
    commands = [*FAMILIES[family].commands, *lost, *TRACKING]
    two = await as_user(commands=commands, keys=FAMILIES[family].keys(kind))

    for make in locks:
        await live(two, make)
    if name == "RWLock":
        await change(two, RWLock(two.first, "{n}"), ())
    if name == "RangeLock":
        await change(two, RangeLock(two.first, "{n}"), (0, 10))
    if "Semaphore" in name:
        semaphore = Semaphore(two.first, "{n}", 1, fair=name != "Semaphore")
        await semaphore.resize(3)
        assert await semaphore.available() == 3
    assert warnings(caplog) == []


async def change(two: Two, lock: Any, span: tuple[int, ...]) -> None:
    upgradable = lock.upgradable(*span) if span else lock.upgradable
    async with upgradable.acquire() as lease:
        async with lease.upgrade(*span) as writer:
            assert await writer.owned()
        if span:
            await lease.shrink(1, 2)
    writing = lock.writer(*span) if span else lock.writer
    async with writing.acquire() as lease:
        await lease.downgrade()
        assert await lease.owned()
