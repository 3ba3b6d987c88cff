"""`UniqueJob`: its arguments and tickets; each form of uniqueness with each conflict policy, on a server."""

from __future__ import annotations

import asyncio
import gc
import os

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot

from aiolocks import (
    ConfigurationError,
    DuplicateJobError,
    JobLease,
    LeaseState,
    LockNotOwnedError,
    Session,
    UniqueJob,
)
from aiolocks.kinds.uniquejob import MODES, JobSteps, Mode, Ticket

OF_TICKETS = ("about", "before", "over", "owner")
pytestmark = pytest.mark.leaves_keys(*(f"*:uniquejob.{role}:*" for role in OF_TICKETS))
timed = pytest.mark.more
"""By default, these run in the simulated world: see `test_in_the_world`."""
each_mode = pytest.mark.parametrize("mode", MODES)

FORMS: dict[Mode, dict[str, bool]] = {
    "until_executing": {"queued": True, "running": False, "done": False},
    "until_executed": {"queued": True, "running": True, "done": False},
    "until_expired": {"queued": True, "running": True, "done": True},
    "until_and_while_executing": {"queued": True, "running": False, "done": False},
}
"""While what another ticket is a conflict."""
AT_ONCE = 10.0
"""Seconds that a busy machine may take for what happens at once."""


@pytest.fixture
def job(session: Session) -> UniqueJob:
    return UniqueJob(session, "a")


async def conflicts(job: UniqueJob, mode: Mode) -> bool:
    """Whether another ticket would be a conflict; if not, it is taken back."""
    ticket = await job.enqueue(mode, on_conflict="skip")
    if ticket is None:
        return True
    async with job.perform(ticket):
        pass
    return False


# -- the forms -----------------------------------------------------------------------------------------------


@each_mode
async def test_a_form_is_unique_for_as_long_as_its_name_says(session, mode) -> None:
    when = FORMS[mode]
    for state in when:
        job = UniqueJob(session, f"{mode} {state}")
        ticket = await job.enqueue(mode)
        if state == "queued":
            assert await job.enqueue(mode, on_conflict="skip") is None
            continue
        async with job.perform(ticket) as lease:
            assert isinstance(lease, JobLease)
            if state == "running":
                assert (await job.enqueue(mode, on_conflict="skip") is None) is when[state]
        if state == "done":
            assert await conflicts(job, mode) is when[state]


@each_mode
async def test_a_conflict_raises_and_says_for_how_long(job, mode) -> None:
    await job.enqueue(mode, ttl=30)

    with pytest.raises(
        DuplicateJobError, match=r"^job 'a' is a duplicate: .*for (30\.000|29\.\d+) s more$"
    ) as caught:
        await job.enqueue(mode)
    assert caught.value.key == "a"


@each_mode
async def test_a_conflict_is_skipped(job, mode) -> None:
    ticket = await job.enqueue(mode, on_conflict="skip")

    assert ticket is not None
    assert await job.enqueue(mode, on_conflict="skip") is None
    async with job.try_perform(ticket) as lease:
        assert lease is not None


@each_mode
async def test_a_conflict_is_replaced_and_the_older_one_is_a_duplicate_for_ever(job, mode) -> None:
    older = await job.enqueue(mode, on_conflict="replace")
    newer = await job.enqueue(mode, on_conflict="replace")

    assert await job.try_perform(older) is None
    async with job.try_perform(newer) as lease:
        assert lease is not None
    with pytest.raises(DuplicateJobError, match=r"another ticket has taken the place of this one"):
        await job.perform(older)


async def test_what_keeps_its_key_is_replaced_while_it_runs(job) -> None:
    older = await job.enqueue("until_executed")
    async with job.perform(older):
        newer = await job.enqueue("until_executed", on_conflict="replace")
    assert await job.enqueue("until_executed", on_conflict="skip") is None  # its end has freed nothing
    async with job.perform(newer):
        pass
    assert not await conflicts(job, "until_executed")


@each_mode
async def test_a_finished_ticket_that_is_delivered_again_does_not_run(job, mode) -> None:
    ticket = await job.enqueue(mode)
    async with job.perform(ticket):
        pass

    async with job.try_perform(ticket) as lease:
        assert lease is None
    with pytest.raises(DuplicateJobError, match="its ticket was done"):
        await job.perform(ticket)


@each_mode
async def test_a_run_that_raises_is_run_again(job, mode) -> None:
    ticket = await job.enqueue(mode)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            async with job.perform(ticket):
                raise ZeroDivisionError
        if mode in ("until_executed", "until_expired"):
            assert await job.enqueue(mode, on_conflict="skip") is None
    async with job.perform(ticket):
        pass
    assert await job.try_perform(ticket) is None


@pytest.mark.parametrize("mode", ["until_executing", "until_and_while_executing"])
@pytest.mark.parametrize("newer_first", [False, True])
async def test_a_run_that_raised_is_not_lost_to_one_that_was_enqueued_meanwhile(
    job, mode, newer_first
) -> None:
    """Nobody knows whether the newer one ever comes to a queue: both run, in whichever order."""
    older = await job.enqueue(mode)
    with pytest.raises(ZeroDivisionError):
        async with job.perform(older):
            newer = await job.enqueue(mode)
            raise ZeroDivisionError

    for ticket in (newer, older) if newer_first else (older, newer):
        async with job.try_perform(ticket) as lease:
            assert lease is not None
    for ticket in (older, newer):
        assert await job.try_perform(ticket) is None


async def test_the_retry_of_one_that_gave_up_its_key_leaves_it_to_the_newer_one(job) -> None:
    older = await job.enqueue("until_executing")
    with pytest.raises(ZeroDivisionError):
        async with job.perform(older):
            await job.enqueue("until_executing")
            raise ZeroDivisionError

    async with job.perform(older):
        assert await job.enqueue("until_executing", on_conflict="skip") is None
    assert await job.enqueue("until_executing", on_conflict="skip") is None


async def test_one_that_has_never_begun_is_a_duplicate_of_the_ticket_that_owns_the_key(job) -> None:
    lapsed = await job.enqueue("until_executing", ttl=0.05)
    await asyncio.sleep(0.1)
    newer = await job.enqueue("until_executing")

    assert await job.try_perform(lapsed) is None
    async with job.perform(newer):
        pass


async def test_a_run_that_raises_keeps_the_key_for_its_ttl_anew(job, redis: Redis, prefix: str) -> None:
    ticket = await job.enqueue("until_executed", ttl=100)
    await redis.pexpire(f"{prefix}:uniquejob.owner:{{a}}", 1000)
    with pytest.raises(ZeroDivisionError):
        async with job.perform(ticket):
            raise ZeroDivisionError

    assert await redis.pttl(f"{prefix}:uniquejob.owner:{{a}}") > 90_000


@each_mode
async def test_a_cancelled_run_is_run_again(job, mode) -> None:
    ticket = await job.enqueue(mode)
    inside = asyncio.Event()

    async def work() -> None:
        async with job.perform(ticket):
            inside.set()
            await asyncio.sleep(60)

    working = asyncio.create_task(work())
    await inside.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    async with job.perform(ticket):
        pass


@each_mode
async def test_a_ticket_whose_time_lapsed_still_runs_if_nobody_else_has_the_key(job, mode) -> None:
    for taken in (False, True):
        ticket = await job.enqueue(mode, ttl=0.05, on_conflict="replace")
        await asyncio.sleep(0.1)
        if taken:
            newer = await job.enqueue(mode)
            with pytest.raises(DuplicateJobError, match="another ticket owns the key"):
                await job.perform(ticket)
            ticket = newer
        async with job.perform(ticket):
            pass


async def test_one_that_may_run_beside_others_does(session) -> None:
    """Only a ticket and itself exclude each other."""
    job = UniqueJob(session, "a")
    first = await job.enqueue("until_executing")
    async with job.perform(first):
        second = await job.enqueue("until_executing")
        async with asyncio.timeout(AT_ONCE), job.perform(second), job.run(waiting=0):
            pass


async def test_while_executing_and_the_rest_rejected(job) -> None:
    async with job.run(waiting=0):
        with pytest.raises(DuplicateJobError, match="it is running, and all waiting places are taken"):
            await job.run(waiting=0)
        async with job.try_run(waiting=0) as lease:
            assert lease is None
    async with job.run(waiting=0):
        pass


async def test_run_and_until_and_while_executing_have_one_slot(job) -> None:
    ticket = await job.enqueue("until_and_while_executing")
    async with job.perform(ticket):
        assert await job.try_run(waiting=0) is None


@timed
@pytest.mark.parametrize("room", [1, 2, 5])
async def test_so_many_wait_and_all_of_them_run(session, room) -> None:
    """Those that wait are counted as long as they live: a machine that stands still lets in some more."""
    job = UniqueJob(session, "a")
    async with job.run(waiting=room):
        tries = [asyncio.create_task(job.try_run(waiting=room)) for _ in range(room + 3)]
        done, waiting = await asyncio.wait(tries, timeout=0.2)
        while len(waiting) > room:
            more, waiting = await asyncio.wait(waiting, timeout=0.2)
            done |= more
        assert [task.result() for task in done] == [None] * 3
        assert session.statistics().waiters == room
    for _ in range(room):
        (first, *_), waiting = await asyncio.wait(
            waiting, return_when=asyncio.FIRST_COMPLETED, timeout=AT_ONCE
        )
        await first.result().release()
    assert not waiting


# -- several at once -----------------------------------------------------------------------------------------


async def test_so_many_run_at_once(session, connect) -> None:
    jobs = [UniqueJob(one, "a", limit=3) for one in (session, connect())]
    async with jobs[0].run(waiting=0), jobs[1].run(waiting=0), jobs[0].run(waiting=None):
        for job in jobs:
            with pytest.raises(DuplicateJobError):
                await job.run(waiting=0)
        waiting = [asyncio.create_task(job.try_run(waiting=1)) for job in jobs]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=AT_ONCE)
        assert [task.result() for task in done] == [None]
        (last,) = set(waiting) - done
    async with asyncio.timeout(AT_ONCE):
        await (await last).release()


@pytest.mark.parametrize("waiting", [2, None])
async def test_those_who_wait_in_one_session_begin_when_there_are_slots(session, waiting) -> None:
    """More than one of them, where more than one slot is given back."""
    job = UniqueJob(session, "a", limit=2)
    first = [await job.run() for _ in range(2)]
    tries = [asyncio.create_task(job.try_run(waiting=waiting)) for _ in range(2)]
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in tries)
    await asyncio.gather(*(lease.release() for lease in first))
    async with asyncio.timeout(AT_ONCE):
        for lease in [await task for task in tries]:
            await lease.release()


@pytest.mark.parametrize("limits", [(1, 3), (3, 1), (2, 5)])
async def test_another_limit_is_an_error_that_names_both(session, connect, limits) -> None:
    job, other = UniqueJob(session, "a", limit=limits[0]), UniqueJob(connect(), "a", limit=limits[1])
    ticket = await job.enqueue("until_executed")
    async with job.run():
        for wrong in (other.run(), other.try_run(), other.perform(ticket), other.try_perform(ticket)):
            says = f"^UniqueJob 'a' runs with limit {limits[0]} elsewhere, not with {limits[1]}: "
            with pytest.raises(ConfigurationError, match=says):
                await wrong
    async with other.perform(ticket):  # none runs any more
        pass


async def test_tickets_that_run_beside_others_do_not_count_for_the_limit(session, connect) -> None:
    job, other = UniqueJob(session, "a", limit=2), UniqueJob(connect(), "a", limit=5)
    async with job.run(waiting=0), job.run(waiting=0):
        for mode in ("until_executing", "until_expired"):
            ticket = await other.enqueue(mode)
            async with asyncio.timeout(AT_ONCE), other.perform(ticket):
                pass


async def test_tickets_whose_runs_wait_for_each_other_count_for_the_limit(session) -> None:
    job = UniqueJob(session, "a", limit=2)
    leases = []
    for _ in range(2):
        ticket = await job.enqueue("until_and_while_executing")
        leases.append(await asyncio.wait_for(job.perform(ticket), AT_ONCE))
    third = await job.enqueue("until_and_while_executing")
    waiting = asyncio.create_task(job.perform(third))
    await asyncio.sleep(0.1)
    assert await job.try_run(waiting=0) is None
    assert not waiting.done()
    await leases[0].release()
    await (await asyncio.wait_for(waiting, AT_ONCE)).release()
    await leases[1].release()


@pytest.mark.parametrize("mode", ["until_executed", "until_and_while_executing"])
async def test_whatever_the_limit_a_ticket_does_not_run_beside_itself(session, connect, mode) -> None:
    here, there = UniqueJob(session, "a", limit=5), UniqueJob(connect(), "a", limit=5)
    ticket = await here.enqueue(mode)
    async with here.perform(ticket):
        again = asyncio.create_task(there.try_perform(ticket))
        await asyncio.sleep(0.2)
        assert not again.done()
    assert await asyncio.wait_for(again, AT_ONCE) is None


# -- metadata ------------------------------------------------------------------------------------------------


@each_mode
async def test_metadata_stand_beside_the_ticket_and_its_run(redis, connect, mode) -> None:
    async with Session(redis, metadata={"service": "api"}) as session:
        job = UniqueJob(session, "a", metadata={"kind": "report"})
        ticket = await job.enqueue(mode, metadata={"order": 17})
        ((one,),) = [info.holders for info in await session.inspect("a")]
        assert (one.mode, one.pid, one.task) == ("ticket", os.getpid(), asyncio.current_task().get_name())
        assert one.metadata == {"service": "api", "kind": "report", "order": 17}
        worker = UniqueJob(connect(), "a")
        async with worker.perform(ticket, metadata={"worker": 3}) as lease:
            assert lease.metadata == {"worker": 3}
            (info,) = await session.inspect("a*")
            *tickets, run = sorted(info.holders, key=lambda one: one.mode is None)
            assert (run.mode, run.fencing_token, run.metadata) == (None, lease.fencing_token, {"worker": 3})
            assert [one.metadata["order"] for one in tickets] == [17] * FORMS[mode]["running"]


async def test_metadata_stand_beside_a_run(session) -> None:
    job = UniqueJob(session, "a", metadata={"kind": "report", "order": 0})
    for pending in (job.run(metadata={"order": 17}), job.try_run(metadata={"order": 17})):
        async with pending as lease:
            assert lease.metadata == {"kind": "report", "order": 17}
            ((one,),) = [info.holders for info in await session.inspect("a")]
            assert one.metadata == lease.metadata
    async with job.run() as lease:
        assert lease.metadata == {"kind": "report", "order": 0}


async def test_metadata_that_are_no_json_are_refused_before_any_io(session, job) -> None:
    text = await job.enqueue("until_executed", ttl=1)
    for call in (
        lambda: UniqueJob(session, "a", metadata={1: 2}),
        lambda: job.run(metadata={"a": object()}),
        lambda: job.try_run(metadata=["a"]),
        lambda: job.perform(text, metadata={"a": object()}),
        lambda: job.try_perform(text, metadata="a"),
    ):
        with pytest.raises(TypeError, match="metadata must"):
            call()
    with pytest.raises(TypeError, match="metadata must"):
        await job.enqueue("until_executed", metadata={"a": {1, 2}})


# -- what a run gives ----------------------------------------------------------------------------------------


async def test_a_lease_is_of_the_job_and_its_fencing_tokens_rise_over_all_forms(job) -> None:
    minted = []
    async with job.run() as lease:
        assert (lease.name, lease.kind, lease.ttl) == ("a", "uniquejob", 60.0)
        assert await lease.owned()
        minted.append(lease.fencing_token)
    for mode in MODES:
        async with job.perform(await job.enqueue(mode, on_conflict="replace")) as lease:
            assert await lease.owned()
            await lease.extend(90)
            minted.append(lease.fencing_token)
    assert minted == sorted(set(minted))


async def test_what_it_gives_can_be_awaited_and_given_to_a_task(job) -> None:
    for pending in (job.run(), job.try_run()):
        lease = await asyncio.create_task(pending)
        await lease.release()
    ticket = await job.enqueue("until_executed")
    lease = await job.perform(ticket)
    await lease.release(done=False)
    lease = await job.try_perform(ticket)
    await lease.release()
    await lease.release(done=False)  # it was released: nothing changes
    assert lease.state is LeaseState.RELEASED
    assert await job.try_perform(ticket) is None


@pytest.mark.leaves_keys
async def test_to_release_what_was_lost_is_an_error_and_does_nothing(job, redis, prefix) -> None:
    ticket = await job.enqueue("until_executed")
    lease = await job.perform(ticket)
    await redis.delete(f"{prefix}:uniquejob:{{a}}")
    with pytest.raises(LockNotOwnedError):
        await lease.release()
    async with job.perform(ticket):
        pass


async def test_the_bodys_own_error_leaves_it(job) -> None:
    for pending in (job.run(), job.try_run(), job.perform(await job.enqueue("until_executed"))):
        with pytest.raises(ZeroDivisionError):
            async with pending:
                raise ZeroDivisionError


async def test_duplicates_leave_nothing_to_the_garbage_collector(job, session) -> None:
    async with job.run():
        gates = session._engine.gates
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                assert await job.try_run(waiting=0) is None
            assert len(gates) <= 2  # that of the run, and that of the last caller, which the next one uses
        finally:
            gc.enable()


async def test_every_key_has_a_ttl(job, redis, session) -> None:
    for mode in MODES:
        for on_conflict in ("replace", "replace"):
            ticket = await job.enqueue(mode, on_conflict=on_conflict)
        async with (
            job.perform(ticket),
            job.run(waiting=None) if mode == "until_executing" else job.try_run(waiting=0),
        ):
            keys = await redis.keys("*uniquejob*")
            assert keys
            for key in keys:
                assert 0 < await redis.pttl(key) <= 3_601_000, key


@pytest.mark.parametrize("name", ["a", "user:{42}", "{", "}{", "ä %:"])
def test_all_keys_of_a_job_share_a_slot(name) -> None:
    ticket = Ticket.new(name, "until_executing", 1000)
    slots = {
        key_slot(key)
        for ticket_run in (None, ticket.to_run())
        for key in JobSteps(
            "p",
            name,
            limit=1,
            waiting=1,
            ticket_run=ticket_run,
            retention_ms=1,
            session="s",
            known_ms=1,
            caller="c",
        )._keys
    }
    assert len(slots) == 1


# -- arguments -----------------------------------------------------------------------------------------------


def test_it_tells_what_it_is(redis) -> None:
    job = UniqueJob(redis, "a", ttl=5)

    assert repr(job) == "<UniqueJob 'a' ttl=5>"
    assert (job.key, job.ttl, job.limit) == ("a", 5.0, 1)
    assert repr(UniqueJob(redis, "a", limit=3)) == "<UniqueJob 'a' ttl=60 limit=3>"


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("",), {}, "key must not be empty"),
        ((17,), {}, "key must be a str, not int"),
        (("a",), {"ttl": True}, "ttl must be a number of seconds"),
        (("a",), {"ttl": 0.01}, "ttl must be a number of seconds"),
        (("a",), {"limit": 0}, "limit must be from 1 to"),
        (("a",), {"limit": 2**31}, "limit must be from 1 to"),
        (("a",), {"limit": True}, "limit must be an int"),
        (("a",), {"limit": None}, "limit must be an int"),
        (("a",), {"concurrency": 3}, "did you mean limit="),
        (("a",), {"timeout": 3}, r"UniqueJob has no argument 'timeout'; did you mean ttl= .* around run\(\)"),
        (("a",), {"waiting": 1}, r"UniqueJob has no argument 'waiting'; did you mean run\(waiting="),
        (("a",), {"expire": 3}, "did you mean ttl="),
    ],
)
async def test_bad_arguments_are_refused_before_any_io(redis, arguments, options, message) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        UniqueJob(redis, *arguments, **options)


@pytest.mark.parametrize("call", ["run", "try_run"])
@pytest.mark.parametrize("waiting", [True, 1.0, "1", -1, 1001])
async def test_bad_room_is_refused_before_it_is_awaited(job, call, waiting) -> None:
    with pytest.raises((TypeError, ValueError), match="waiting must be"):
        getattr(job, call)(waiting=waiting)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "until"}, "mode must be one of 'until_executing', 'until_executed', "),
        ({"mode": None}, "mode must be one of"),
        (
            {"mode": "until_executed", "on_conflict": "ignore"},
            "on_conflict must be 'raise', 'skip' or 'replace'",
        ),
        ({"mode": "until_executed", "ttl": 0}, "ttl must be a number of seconds"),
        ({"mode": "until_executed", "ttl": None}, "ttl must be a number of seconds"),
    ],
)
async def test_bad_enqueues_are_refused(job, options, message) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        await job.enqueue(**options)


# -- tickets -------------------------------------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize("ttl_ms", [50, 3_600_000, 315_576_000_000])
def test_a_ticket_says_all_of_itself_in_a_short_str(mode, ttl_ms) -> None:
    ticket = Ticket.new("a", mode, ttl_ms)
    text = ticket.encode()

    assert Ticket.decode(text, key="a") == ticket
    assert len(text) < 64
    assert text.isascii()
    assert not set(text) & set(" \"'\\{}:/")
    assert Ticket.new("a", mode, ttl_ms).encode() != text


@pytest.mark.parametrize("call", ["perform", "try_perform"])
def test_what_is_not_a_ticket_of_this_key_is_refused_before_any_io(redis, call) -> None:
    perform = getattr(UniqueJob(redis, "a"), call)
    text = Ticket.new("a", "until_executed", 1000).encode()

    for wrong, message in (
        ("", "not a ticket"),
        (text[:-1], "not a ticket"),
        (f" {text}", "not a ticket"),
        (f"{text}\n", "not a ticket"),
        (text.replace("1d", "2d", 1), "not a ticket"),
        (text.replace("1d", "1e", 1), "is not one of job 'a'"),
        (text.replace("1000", "9000", 1), "is not one of job 'a'"),
        (Ticket.new("b", "until_executed", 1000).encode(), "is not one of job 'a'"),
    ):
        with pytest.raises(ValueError, match=message):
            perform(wrong)
    for wrong in (None, text.encode(), 17):
        with pytest.raises(TypeError, match=r"a ticket is the str that enqueue\(\) gave"):
            perform(wrong)
