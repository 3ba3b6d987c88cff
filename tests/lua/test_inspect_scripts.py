"""The scripts of an operator: what they read, what they free, and what they leave alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks.transport.answers import Released
from aiolocks.transport.keys import key
from aiolocks.transport.steps.family import families, holdable
from aiolocks.transport.steps.snapshots import Snapshot
from tests.lua.scripts import (
    BELL,
    HOUR,
    MINUTE,
    SEAT,
    LockScripts,
    PermitScripts,
    ReentrantScripts,
    Scripts,
    SpanScripts,
    about,
)

pytestmark = pytest.mark.leaves_keys("aiolocks*")  # without a ttl, where a test has put them there itself

ME, OTHER, THIRD = "a1" * 16, "b2" * 16, "c3" * 16
SUMMONED = 16
OTHER_TYPES: dict[str, Callable[[Redis, bytes], Awaitable[Any]]] = {
    "string": lambda redis, key: redis.set(key, "text"),
    "list": lambda redis, key: redis.rpush(key, "a"),
    "set": lambda redis, key: redis.sadd(key, "a"),
    "hash": lambda redis, key: redis.hset(key, "a", "b"),
    "zset": lambda redis, key: redis.zadd(key, {"a": 0.5}),
    "stream": lambda redis, key: redis.xadd(key, {"a": "b"}),
}


@pytest.fixture
def lock(redis, prefix) -> LockScripts:
    return LockScripts(redis, prefix)


@pytest.fixture
def nesting(redis, prefix) -> ReentrantScripts:
    return ReentrantScripts(redis, prefix)


@pytest.fixture
def permits(redis, prefix) -> PermitScripts:
    return PermitScripts(redis, prefix)


@pytest.fixture
def spans(redis, prefix) -> SpanScripts:
    return SpanScripts(redis, prefix)


async def look(scripts: Scripts, kind: str = "", *, waiters: int = 0) -> Snapshot:
    kind = kind or scripts.kind
    command = families()[kind].look(scripts.prefix, kind, [scripts.name], waiters=waiters)
    (snapshot,) = command.parse(await scripts.run(command.words(as_eval=True)))
    return snapshot


async def force(scripts: Scripts, snapshot: Snapshot | None = None, by: str = "") -> Released:
    """Frees what was found then, or is there now."""
    snapshot = snapshot or await look(scripts)
    command = families()[scripts.kind].force(scripts.prefix, scripts.kind, scripts.name, snapshot, by)
    return command.parse(await scripts.run(command.words(as_eval=True)))


def tokens(snapshot: Snapshot) -> list[str]:
    return [holder.tokens[0] for holder in snapshot.holders]


async def untouched(scripts: Scripts) -> dict[bytes, Any]:
    """All keys of the name, byte for byte."""
    return {one: await scripts.redis.dump(one) for one in await scripts.everything()}


# -- looking


@pytest.mark.parametrize("kind", families())
async def test_nothing_stands_there(lock, kind) -> None:
    snapshot = await look(lock, kind)
    seconds, micros = await lock.redis.time()

    assert not snapshot.stands
    assert (snapshot.holders, snapshot.problems, snapshot.waiters) == ((), (), 0)
    assert abs(seconds * 1_000_000 + micros - snapshot.now_us) < 10_000_000


async def test_a_lock(lock) -> None:
    _, minted, _ = await lock.acquire(ME, metadata='{"pid":1}')
    (holder,) = (await look(lock)).holders

    assert holder.tokens == (ME,)
    assert holder.fencing_token == int(minted)
    assert holder.metadata == b'{"pid":1}'
    assert about(holder.left_ms, MINUTE)


async def test_only_those_who_live_are_counted(lock, permits) -> None:
    for scripts in (lock, permits):
        for who in ("x", "dead", "y"):
            await scripts.sit(who)
        await scripts.die("dead")
        snapshot = await look(scripts)
        assert snapshot.waiters == 2
        assert not snapshot.stands


async def test_each_seat_is_one_who_waits(permits) -> None:
    for seat in ("1" * 16, "2" * 16):
        await permits.sit("x", seat=seat)

    assert (await look(permits)).waiters == 2


async def test_the_first_waiters_are_described(lock, permits) -> None:
    for scripts in (lock, permits):
        for who, card in (("x", "of x"), ("dead", "of the dead"), ("y", ""), ("z", "of z"), ("last", "")):
            await scripts.sit(who)
            await scripts.sit(who, card=card)
        await scripts.die("dead")
        await OTHER_TYPES["list"](scripts.redis, scripts.key("bell.last.card"))
        now_us, times = (await look(scripts)).now_us, []

        for asked_for in (0, 2, 9):
            snapshot = await look(scripts, waiters=asked_for)
            assert snapshot.waiters == 4
            assert [waiter.card for waiter in snapshot.first_waiters] == [b"of x", b"", b"of z", b""][
                :asked_for
            ]
            times = [waiter.since_us or 0 for waiter in snapshot.first_waiters]
        assert times == sorted(times)
        assert now_us - 60_000_000 < times[0]
        assert times[-1] <= now_us


async def test_several_names_in_one_step(permits) -> None:
    names = [permits.another() for _ in range(4)]
    for number, one in enumerate(names[:3]):
        await one.acquire(ME, number + 1)
        await one.sit(f"{number}")
        await one.sit(f"{number}", card=f"{number}")
    command = families()["semaphore"].look(
        permits.prefix, "semaphore", [one.name for one in names], waiters=1
    )
    snapshots = command.parse(await permits.run(command.words(as_eval=True)))

    assert [[holder.permits for holder in snapshot.holders] for snapshot in snapshots] == [[1], [2], [3], []]
    assert [[waiter.card for waiter in snapshot.first_waiters] for snapshot in snapshots] == [
        [b"0"], [b"1"], [b"2"], [],
    ]  # fmt: skip
    assert [snapshot.stands for snapshot in snapshots] == [True, True, True, False]


async def test_the_tokens_of_one_owner(nesting) -> None:
    owner = "0f" * 16
    for token in (owner + ME, owner + OTHER, owner + THIRD):
        await nesting.acquire(token)
    await nesting.end(owner + OTHER)
    await nesting.redis.zadd(nesting.nest, {THIRD + ME: 1e15})
    (holder,) = (await look(nesting)).holders

    assert holder.tokens == (owner, owner + ME, owner + THIRD)
    assert holder.depth == 2


async def test_permits_of_those_whose_time_has_not_come(permits) -> None:
    await permits.acquire(ME, 2, ttl=HOUR)
    await permits.acquire(OTHER)
    await permits.end(OTHER)
    snapshot = await look(permits)

    assert tokens(snapshot) == [ME]
    assert (snapshot.holders[0].permits, snapshot.value) == (2, 3)
    assert about(snapshot.holders[0].left_ms, HOUR)
    assert snapshot.problems == ()


async def test_spans_in_their_modes(spans) -> None:
    await spans.acquire(ME, "r", 0, 5)
    await spans.acquire(OTHER, "u", 3, 4.5)
    await spans.acquire(THIRD, "w", 10, "inf")
    await spans.wait("waiter", "w", 0, 1)
    snapshot = await look(spans)

    assert {holder.tokens[0]: (holder.mode, holder.span) for holder in snapshot.holders} == {
        ME: ("reader", (0, 5)),
        OTHER: ("upgradable", (3, 4.5)),
        THIRD: ("writer", (10, float("inf"))),
    }
    assert snapshot.waiters == 1
    assert snapshot.problems == ()


async def test_looking_changes_nothing(permits, spans) -> None:
    await permits.acquire(ME)
    await permits.end(ME)
    await permits.sit("dead")
    await permits.die("dead")
    await spans.acquire(ME, "w")
    await spans.end(ME)
    for scripts in (permits, spans):
        before = await untouched(scripts)
        await look(scripts)
        assert await untouched(scripts) == before


async def test_a_register_is_not_read(lock) -> None:
    await lock.redis.hset(key(lock.prefix, "fencedregister", lock.name), "value", "of the user")
    command = families()["fencedregister"].look(lock.prefix, "fencedregister", [lock.name])
    raw = await lock.run(command.words(as_eval=True))

    assert raw[1][2] == [b"hash", -1, []]
    assert command.parse(raw)[0].stands


async def test_very_many_of_them(permits) -> None:
    """More than a script can unpack."""
    later = 10**15
    await permits.redis.zadd(permits.holders, {f"{number:032x}": later for number in range(9_000)})
    await permits.redis.hset(permits.leases, mapping={f"{number:032x}": "1:5:{}" for number in range(9_000)})

    assert len((await look(permits)).holders) == 9_000


@pytest.mark.parametrize("kind", families())
async def test_a_key_of_another_type_is_no_error(lock, kind) -> None:
    family = families()[kind]
    for role in (*family.roles, "queue"):
        place = key(lock.prefix, kind, lock.name, role)
        for type_, make in OTHER_TYPES.items():
            await lock.redis.delete(*[key(lock.prefix, kind, lock.name, one) for one in family.roles])
            await lock.redis.delete(place)
            await make(lock.redis, place)
            snapshot = await look(lock, kind)
            assert snapshot.holders == () or role == "owner", (role, type_)
            if role == "queue":
                assert snapshot.problems == ("its queue is something else",)
            elif not any(f"is a {type_}, not a" in problem for problem in snapshot.problems):
                assert type_ in ("string", "hash", "zset"), (role, snapshot.problems)  # ours, with other text
                if kind != "fencedregister":  # its content is the user's
                    assert any("was not written by aiolocks" in problem for problem in snapshot.problems), (
                        role
                    )
        await lock.redis.delete(place)


@pytest.mark.parametrize(
    "value", ["", "x", ":", "zz:1:{}", f"{ME}:x:{{}}", f"{ME}:{'9' * 5000}:{{}}", f"{ME}:1", b"\xff"]
)
async def test_a_lock_that_was_not_written_by_us(lock, value) -> None:
    await lock.redis.set(lock.lock, value)
    snapshot = await look(lock)

    assert snapshot.stands
    assert snapshot.holders == ()
    assert "not written by aiolocks" in snapshot.problems[0]


async def test_what_has_no_ttl_is_said(lock, permits, spans) -> None:
    await lock.acquire(ME)
    await permits.acquire(ME)
    await spans.acquire(ME, "r")
    for scripts, place in ((permits, permits.holders), (spans, spans.ends)):
        assert (await look(scripts)).problems == ()
        await scripts.redis.persist(place)
        assert (await look(scripts)).problems == ("it has lost its ttl, and gets one when it is used again",)
    assert not (await look(lock)).endless
    await lock.redis.persist(lock.lock)
    assert (await look(lock)).endless


async def test_halves_of_leases(permits, spans) -> None:
    missing = ("half of a lease is missing",)
    for half in (permits.leases, permits.holders):
        await permits.clear()
        await permits.acquire(ME)
        await permits.redis.delete(half)
        assert (await look(permits)).problems == missing
    for half in (spans.spans, spans.ends):
        await spans.clear()
        await spans.acquire(ME, "r")
        await spans.redis.delete(half)
        assert (await look(spans)).problems == missing
    for span in ("r a 1 5 {}", "x 0 1 5 {}", "r 0 1 5", b"\xff"):
        await spans.clear()
        await spans.acquire(ME, "r")
        await spans.redis.hset(spans.spans, ME, span)
        assert (await look(spans)).problems == missing


# -- telling the holder


async def marks(scripts: Scripts) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = await scripts.redis.hgetall(scripts.key("stolen"))
    return found


async def test_its_holder_is_told_who_has_freed_it(lock, nesting, permits, spans) -> None:
    for scripts, mode in ((lock, ()), (nesting, ()), (permits, (2,)), (spans, ("w",))):
        token = f"{ME}{OTHER}" if scripts is nesting else ME
        await scripts.acquire(token, *mode, ttl=MINUTE)
        seen = await look(scripts)
        minted = seen.grants[0].fencing_token or 0

        assert (await force(scripts, seen, by='{"by":"Grace"}')).freed

        mark = b'%b:%d:{"by":"Grace"}' % (
            b"0" * 64,
            minted,
        )  # a later lease of the same token has a later one
        assert await marks(scripts) == {ME.encode(): mark}
        assert about(await scripts.redis.pttl(scripts.key("stolen")), MINUTE + 1000)
        assert await scripts.renew(token) == mark
        assert (await scripts.release(token))[0] == mark
        assert not (await look(scripts)).stands
        assert await scripts.renew(THIRD if scripts is not nesting else f"{THIRD}{OTHER}") == 0


async def test_without_an_operator_no_holder_is_told(lock, permits, spans) -> None:
    for scripts, mode in ((lock, ()), (permits, (2,)), (spans, ("w",))):
        await scripts.acquire(ME, *mode)
        assert (await force(scripts)).freed
        assert await marks(scripts) == {}
        assert await scripts.renew(ME) == 0


def test_only_holders_that_read_a_mark_as_a_loss_are_told() -> None:
    """Also those of earlier versions: they took any text for a renewal of their runs."""
    told = {
        kind
        for kind in holdable()
        if families()[kind].force("aiolocks", kind, "name", Snapshot(1), "{}").args[2]
    }
    assert told == {"lock", "fairlock", "leadership", "semaphore", "limits", "rwlock", "rangelock"}


async def test_of_many_holders_some_are_told(permits) -> None:
    for number in range(20):
        await permits.acquire(f"{number:032x}", value=20)
    await force(permits, by="{}")
    assert len(await marks(permits)) == 16


async def test_who_has_come_since_is_told_nothing(permits) -> None:
    await permits.acquire(ME)
    seen = await look(permits)
    await permits.acquire(OTHER)
    await force(permits, seen, by="{}")
    assert list(await marks(permits)) == [ME.encode()]
    assert await permits.renew(OTHER) == 1


async def test_of_a_lock_without_an_end_the_mark_has_one(lock) -> None:
    await lock.acquire(ME)
    await lock.redis.persist(lock.key(""))
    await force(lock, by="{}")
    assert about(await lock.redis.pttl(lock.key("stolen")), MINUTE)


async def test_it_is_freed_also_where_no_mark_can_be_left(lock, permits, spans) -> None:
    for scripts, mode in ((lock, ()), (permits, (2,)), (spans, ("w",))):
        await scripts.acquire(ME, *mode)
        await scripts.redis.set(scripts.key("stolen"), "of another program")
        assert (await force(scripts, by="{}")).freed
        assert await scripts.redis.get(scripts.key("stolen")) == b"of another program"


# -- freeing a lock


async def test_frees_a_lock_and_wakes_who_waits(lock) -> None:
    await lock.acquire(ME)
    fence, ttl = await lock.fence_value(), await lock.redis.pttl(lock.fence)
    for who in ("dead", "x", "y"):
        await lock.sit(who)
    await lock.die("dead")

    released = await force(lock)

    assert released.freed
    assert list(released.rung) == [lock.bell("x"), lock.bell("y")]
    assert await lock.value() is None
    assert await lock.fence_value() == fence
    assert 0 < await lock.redis.pttl(lock.fence) <= ttl
    assert await lock.states("x", "y") == [None, None]
    assert await lock.waiting() == [lock.bell("x"), lock.bell("y")]
    assert (await lock.acquire(OTHER, queued="y"))[0] == 1


async def test_said_again_it_frees_nobody_who_has_come_since(lock, permits, spans) -> None:
    for scripts, mode in ((lock, ()), (permits, (3,)), (spans, ("w",))):
        await scripts.acquire(ME, *mode)
        seen = await look(scripts)
        assert (await force(scripts, seen)).freed
        await scripts.acquire(OTHER, *mode)
        await scripts.sit("x")
        before = await untouched(scripts)

        released = await force(scripts, seen)

        assert not released.freed
        assert tokens(await look(scripts)) == [OTHER]
        if scripts is lock:
            assert await untouched(scripts) == before
            assert list(released.rung) == []


async def test_a_lock_that_is_free_is_not_left_to_who_sleeps(lock) -> None:
    for who in ("x", "y"):
        await lock.sit(who)
    released = await force(lock)

    assert not released.freed
    assert list(released.rung) == [lock.bell("x"), lock.bell("y")]


async def test_no_more_than_so_many_are_woken_at_once(lock, permits) -> None:
    for scripts in (lock, permits):
        await scripts.acquire(ME)
        for number in range(SUMMONED + 1):
            await scripts.sit(f"{number}")
        assert len((await force(scripts)).rung) == SUMMONED
        assert await scripts.stands(f"{SUMMONED}")


async def test_frees_all_that_the_owner_has(nesting) -> None:
    for token in (ME, OTHER):
        await nesting.acquire("0f" * 16 + token)
    assert (await force(nesting)).freed
    assert await nesting.everything() == [nesting.fence]


@pytest.mark.parametrize("type_", OTHER_TYPES)
async def test_frees_what_somebody_else_has_put_there(lock, type_) -> None:
    await OTHER_TYPES[type_](lock.redis, lock.lock)
    if type_ != "zset":
        await OTHER_TYPES[type_](lock.redis, lock.queue)

    assert (await force(lock)).freed
    assert (await lock.acquire(ME))[0] == 1


# -- freeing permits


async def test_frees_all_permits_and_wakes_who_waits(permits) -> None:
    await permits.acquire(ME, 2)
    await permits.acquire(OTHER)
    for who in ("x", "dead", "y"):
        await permits.sit(who)
    await permits.die("dead")
    kept = [await permits.redis.dump(one) for one in (permits.value, permits.fence)]

    released = await force(permits)

    assert released.freed
    assert list(released.rung) == [permits.bell("x"), permits.bell("y")]
    assert await permits.states("x", "y") == [b"rung", b"rung"]
    assert about(await permits.redis.pttl(permits.bell("x")), BELL)
    assert await permits.waiting() == [permits.entry("x"), permits.entry("y")]
    assert await permits.held() == {}
    assert not await permits.redis.exists(permits.leases)
    assert [await permits.redis.dump(one) for one in (permits.value, permits.fence)] == kept
    assert (await permits.acquire(THIRD, 3))[0] == 1


async def test_who_has_come_since_keeps_his_permits(permits) -> None:
    await permits.acquire(ME, 2)
    seen = await look(permits)
    await permits.acquire(OTHER, 1)

    assert (await force(permits, seen)).freed
    assert await permits.held() == {OTHER.encode(): 1}  # which counts again
    assert await permits.available() == 2


async def test_halves_of_permits_are_freed(permits) -> None:
    for half in (permits.leases, permits.holders):
        await permits.clear()
        await permits.acquire(ME, 3)
        await permits.redis.delete(half)
        await force(permits)
        assert await permits.held() == {}
    await permits.acquire(ME, 2)
    await permits.redis.hset(permits.leases, ME, "rubbish")
    assert (await force(permits)).freed
    assert (await permits.acquire(OTHER, 3))[0] == 1


@pytest.mark.parametrize("type_", OTHER_TYPES)
async def test_permits_where_somebody_else_has_put_something(permits, type_) -> None:
    ours = {permits.holders: "zset", permits.leases: "hash", permits.value: "hash"}
    for place, of_ours in ours.items():
        if type_ != of_ours:
            await permits.clear()
            await OTHER_TYPES[type_](permits.redis, place)
            assert (await force(permits)).freed
            assert not (await look(permits)).problems
            assert (await permits.acquire(ME, 3))[0] == 1


async def test_frees_the_key_of_a_job_from_the_ticket_that_was_seen(redis, prefix) -> None:
    class Job(PermitScripts):
        kind = "uniquejob"

    job = Job(redis, prefix)
    owner = job.key("owner")
    await job.acquire(ME, value="")
    await redis.set(owner, "id.3600000", px=MINUTE)
    seen = await look(job)
    assert [(holder.tokens[0], holder.mode) for holder in seen.holders] == [
        (ME, None),
        ("id.3600000", "ticket"),
    ]

    assert (await force(job, seen)).freed
    assert not await redis.exists(owner, job.holders)
    await redis.set(owner, "another.3600000", px=MINUTE)
    assert not (await force(job, seen)).freed
    assert await redis.exists(owner)
    await redis.hset(job.key("about"), mapping={"another.3600000": "{}", "former.3600000": "{}"})
    assert (await force(job)).freed
    assert await redis.hkeys(job.key("about")) == [b"former.3600000"]
    await redis.delete(job.key("about"))
    await redis.set(job.key("about"), "rubbish")
    assert (await look(job)).problems == ("its about is a string, not a hash",)
    assert (await force(job)).freed
    assert not await redis.exists(job.key("about"))

    beside, leases = job.key("beside"), job.key("beside.leases")
    await job.acquire(OTHER, value="")
    for one, other in ((job.holders, beside), (job.leases, leases)):
        await redis.rename(one, other)
    await job.acquire(ME, value="")
    assert [holder.tokens[0] for holder in (await look(job)).holders] == [ME, OTHER]
    assert len((await force(job)).rung) == 0
    assert not await redis.exists(job.holders, beside, job.leases, leases)
    await redis.set(beside, "rubbish")
    assert (await look(job)).problems
    assert (await force(job)).freed
    assert not await redis.exists(beside)

    await redis.rpush(owner, "rubbish")
    assert (await look(job)).problems[0] == "its owner is a list, not a string"
    assert (await force(job)).freed
    assert not await redis.exists(owner)

    await redis.set(owner, b"\xff\xfe")  # no text at all
    assert (await force(job)).freed
    assert not await redis.exists(owner)


# -- freeing spans


async def test_frees_all_spans_and_wakes_who_waits(spans) -> None:
    await spans.acquire(ME, "r", 0, 5)
    await spans.acquire(OTHER, "u", 0, 5)
    await spans.acquire(THIRD, "w", 10, 20)
    await spans.wait("x", "w", 0, 30)

    released = await force(spans)

    assert released.freed
    assert list(released.rung) == [spans.bell("x")]
    assert await spans.states("x") == [b"rung"]
    assert await spans.held() == {}
    assert await spans.mark("x") == "q"
    for side in ("readers", "upgradables", "writers"):
        assert await spans.side(side) == []
    assert (await spans.come("x", "w", 0, 30))[0] == 1


async def test_who_has_come_since_keeps_his_span(spans) -> None:
    await spans.acquire(ME, "w", 0, 5)
    seen = await look(spans)
    await spans.acquire(OTHER, "w", 10, 20)

    assert (await force(spans, seen)).freed
    assert await spans.held() == {OTHER.encode(): b"w 10 20"}
    assert [one for one, _, _ in await spans.side("writers")] == [OTHER.encode()]
    assert (await spans.acquire(ME, "w", 15, 16))[0] == 0


async def test_ends_without_a_span_and_spans_without_an_end_are_freed(spans) -> None:
    for half in (spans.spans, spans.ends):
        await spans.clear()
        await spans.acquire(ME, "w")
        await spans.redis.delete(half)
        await spans.wait("x", "w")
        assert (await look(spans)).problems == ("half of a lease is missing",)
        await force(spans)
        assert not (await look(spans)).problems
        assert (await spans.come("x", "w"))[0] == 1


@pytest.mark.parametrize("type_", OTHER_TYPES)
async def test_spans_where_somebody_else_has_put_something(spans, type_) -> None:
    sorted_sets = (spans.ends, spans.waits, spans.queue, spans.key("readers.a"), spans.key("turns.b"))
    for place, of_ours in {spans.spans: "hash", **dict.fromkeys(sorted_sets, "zset")}.items():
        if type_ != of_ours:
            await spans.clear()
            await OTHER_TYPES[type_](spans.redis, place)
            await force(spans)
            assert not (await look(spans)).problems
            assert (await spans.acquire(ME, "w"))[0] == 1


def test_every_kind_that_is_held_can_be_freed() -> None:
    assert set(holdable()) == {name for name, family in families().items() if family.renew.words}
    assert len(SEAT) == 16
