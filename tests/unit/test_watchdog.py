"""The watchdog: one timer for all leases, a weak hold on each, and nothing behind their end."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
from typing import Any

import pytest

from aiolocks import Lock, LockLostError, Session
from tests.unit.fakes import FakeTransport, generous, grant, hold, turns


async def hold_many(session: Session, transport: FakeTransport, count: int) -> list[Any]:
    transport.answer = generous
    return [await Lock(session, f"{number}").acquire() for number in range(count)]


def timers_of(watchdog: Any) -> list[Any]:
    scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return [timer for timer in scheduled if timer._callback == watchdog._run and not timer.cancelled()]


def entries(watchdog: Any) -> int:
    assert sorted(watchdog._moments) == sorted(watchdog._due)
    return sum(map(len, watchdog._due.values()))


async def test_many_leases_take_one_timer_and_no_task(offline, transport) -> None:
    tasks = asyncio.all_tasks()

    await hold_many(offline, transport, 1000)

    assert len(timers_of(offline._engine.watchdog)) == 1
    assert asyncio.all_tasks() == tasks
    assert len(offline._engine.watchdog) == 1000


async def test_leases_of_one_moment_are_renewed_in_one_turn(offline, transport, clock) -> None:
    await hold_many(offline, transport, 100)
    sent_at = set()

    def renewed(verb: str) -> int:
        sent_at.add(clock.now())
        return 1

    transport.answer = renewed
    await asyncio.sleep(10)

    assert len(sent_at) == 1
    assert transport.verbs.count("renew") == 100
    assert len(offline._engine.watchdog._moments) == 1
    assert entries(offline._engine.watchdog) == 100


async def test_of_very_many_some_are_renewed_in_one_turn_and_then_the_next(offline, transport, clock) -> None:
    await hold_many(offline, transport, 450)
    sent_at = []

    def renewed(verb: str) -> int:
        sent_at.append(clock.now())
        return 1

    transport.answer = renewed
    await asyncio.sleep(10.1)

    turns_of = [sent_at.count(moment) for moment in dict.fromkeys(sent_at)]
    assert turns_of == [200, 200, 50]
    assert entries(offline._engine.watchdog) == 450


async def test_each_is_renewed_on_time_among_others(offline, transport) -> None:
    transport.answer = generous
    for ttl in (3, 30, 6, 300):
        await Lock(offline, f"{ttl}", ttl=ttl).acquire()
    await asyncio.sleep(60)

    renewed = [call.args[1] for call in transport.sent if call.script.name == "lock_renew"]
    for ttl, least in ((3, 60), (6, 30), (30, 6)):
        assert least <= renewed.count(ttl * 1000) <= least * 1.15
    assert renewed.count(300_000) == 0


async def test_what_was_forgotten_is_never_tended_again(offline, transport) -> None:
    leases = await hold_many(offline, transport, 3)

    offline._engine.watchdog.forget(leases[1]._possession.watch)
    await asyncio.sleep(10)

    assert len(offline._engine.watchdog) == 2
    said = [word for call in transport.sent if "renew" in call.script.name for word in call.args]
    assert [lease._possession.claim.token in said for lease in leases] == [True, False, True]


async def test_without_anything_to_watch_the_timer_runs_out(offline, transport) -> None:
    for lease in await hold_many(offline, transport, 3):
        await lease.release()
    assert entries(offline._engine.watchdog) == 0
    assert len(timers_of(offline._engine.watchdog)) == 1

    await asyncio.sleep(15)

    assert timers_of(offline._engine.watchdog) == []


async def test_the_heap_stays_compact_over_thousands_of_leases(offline, transport) -> None:
    transport.answer = generous
    lock = Lock(offline, "name")
    kept = await Lock(offline, "kept").acquire()
    longest = 0
    for _ in range(2_000):
        await (await lock.acquire()).release()
        longest = max(longest, entries(offline._engine.watchdog))

    assert longest <= 2 * 2 + 64
    await kept.release()


async def test_the_heap_stays_compact_over_thousands_of_renewals(offline, transport) -> None:
    transport.answer = generous
    lease = await Lock(offline, "name").acquire()
    for _ in range(2_000):
        await lease.extend()

    assert entries(offline._engine.watchdog) <= 2 * 1 + 64


async def test_a_collected_lease_warns_and_lets_the_next_one_here_try(offline, transport) -> None:
    lease = await hold(offline, transport)
    behind = asyncio.create_task(Lock(offline, "name").acquire())
    await turns()

    with pytest.warns(ResourceWarning, match="a lease of Lock 'name' was never released"):
        transport.kept.clear()
        del lease
        gc.collect()
    assert transport.unasked == []

    grant(await transport.asked("acquire"))
    await behind


async def test_a_collected_lease_is_not_renewed(offline, transport) -> None:
    lease = await hold(offline, transport)
    await turns()  # its task lets go of it
    with pytest.warns(ResourceWarning):
        transport.kept.clear()
        del lease
        gc.collect()

    await asyncio.sleep(60)

    assert transport.unasked == []
    assert offline.statistics().leases_held == 0


async def test_a_lease_collected_in_another_thread_changes_the_session_in_the_loop(
    offline, transport
) -> None:
    leases = [await hold(offline, transport)]
    behind = asyncio.create_task(Lock(offline, "name").acquire())
    await turns()

    with pytest.warns(ResourceWarning):
        transport.kept.clear()
        thread = threading.Thread(target=leases.clear)
        thread.start()
        thread.join()
        gc.collect()
    assert len(offline._engine.watchdog) == 1, "not before the loop runs"

    grant(await transport.asked("acquire"))
    await behind


async def test_a_released_lease_is_collected_without_a_word(offline, transport) -> None:
    transport.answer = generous
    async with Lock(offline, "name"):
        pass
    transport.kept.clear()
    gc.collect()  # warnings are errors

    assert transport.verbs == ["acquire", "release"]


async def test_watched_possessions_can_be_listed(offline, transport) -> None:
    leases = await hold_many(offline, transport, 3)

    assert {possession.name for possession in offline._engine.watchdog.possessions()} == {"0", "1", "2"}
    assert len(leases) == 3


# -- the reason of a loss


STALLED = r"the event loop did not run for (\d+\.\d) s or more"


async def reason_of_loss(lease: Any) -> str:
    await lease.wait_lost()
    return str(lease._possession.end.reason)


async def test_a_stalled_loop_is_the_reason_of_a_loss(offline, transport, clock, caplog) -> None:
    lease = await hold(offline, transport, ttl=30)
    clock.jump(45)

    reason = await reason_of_loss(lease)

    assert re.fullmatch(STALLED, reason)
    assert 34.9 <= float(re.fullmatch(STALLED, reason)[1]) <= 45
    assert reason in caplog.text


async def test_a_body_that_stalls_the_loop_reads_so_at_once(offline, transport, clock) -> None:
    lease = await hold(offline, transport, ttl=30)
    clock.jump(45)

    with pytest.raises(LockLostError, match=STALLED):
        lease.ensure_held()


async def test_a_loop_that_stalls_while_a_renewal_is_on_its_way(offline, transport, clock) -> None:
    lease = await hold(offline, transport, ttl=30)
    renewal = await transport.asked("renew")
    clock.jump(45)
    renewal.reply(1)

    assert re.fullmatch(STALLED, await reason_of_loss(lease))


async def test_a_silent_server_is_the_reason_although_the_loop_stalls_in_the_end(
    offline, transport, clock
) -> None:
    lease = await hold(offline, transport, ttl=30)
    await transport.asked("renew")
    await asyncio.sleep(15)
    clock.jump(10)

    assert await reason_of_loss(lease) == "its ttl passed without a confirmed renewal"


async def test_a_stall_that_is_over_is_not_the_reason_of_a_later_loss(offline, transport, clock) -> None:
    lease = await hold(offline, transport, ttl=30)
    clock.jump(12)
    renewal = await transport.asked("renew")
    renewal.reply(1)

    assert await reason_of_loss(lease) == "its ttl passed without a confirmed renewal"


async def test_without_auto_renew_a_stall_changes_nothing(offline, transport, clock) -> None:
    lease = await hold(offline, transport, ttl=30, auto_renew=False)
    clock.jump(45)

    assert await reason_of_loss(lease) == "its ttl passed, and auto_renew is off"
