"""The session: one for a client and a loop, with an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import (
    BackendError,
    Backoff,
    FairLock,
    LeaseState,
    Lock,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    Session,
    SessionClosedError,
)
from aiolocks.lock.lease import Possession
from aiolocks.lock.waiter import Waiter
from aiolocks.transport import Request
from tests.unit.fakes import FakeTransport, cut, deny, generous, grant, hold, let_go, refuse, turns


async def test_the_default_session_of_a_client_is_always_the_same(transport) -> None:
    client, other = Redis(), Redis()

    assert Session.of(client) is Session.of(client)
    assert Session.of(client) is not Session.of(other)
    for session in (Session.of(client), Session.of(other)):
        await session.aclose()


async def test_a_nested_loop_has_a_session_of_its_own(transport) -> None:
    """As nest_asyncio allows: another loop runs inside a task of this one, which also counts as running."""
    client = Redis()
    lock = Lock(client, "name")
    lock._bind()
    loop, nested = asyncio.get_running_loop(), asyncio.new_event_loop()

    async def inside() -> bool:
        mine = lock._bind().engine.loop is nested
        await Session.of(client).aclose()
        return mine

    asyncio._set_running_loop(None)
    try:
        assert nested.run_until_complete(inside())
    finally:
        nested.close()
        asyncio._set_running_loop(loop)
    assert lock._bind().engine.loop is loop
    await Session.of(client).aclose()


async def test_a_closed_default_session_is_replaced(transport) -> None:
    client = Redis()
    first = Session.of(client)
    await first.aclose()

    second = Session.of(client)

    assert second is not first
    await second.aclose()


def test_each_event_loop_has_a_default_session_of_its_own(monkeypatch) -> None:
    client = Redis()

    async def default() -> Session:
        return Session.of(client)

    first = asyncio.run(default())
    second = asyncio.run(default())

    assert first is not second


def test_a_default_session_needs_a_running_loop() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        Session.of(Redis())


async def test_a_session_belongs_to_one_event_loop(offline, transport) -> None:
    transport.answer = generous
    async with Lock(offline, "name"):
        pass

    def in_another_loop() -> None:
        async def acquire() -> None:
            await Lock(offline, "name").acquire()

        asyncio.run(acquire())

    told = "belongs to another event loop: make one Session for each loop.* Django .* aiolocks.sync"
    with pytest.raises(RuntimeError, match=told):
        await asyncio.to_thread(in_another_loop)


@pytest.mark.parametrize(
    "use",
    [
        lambda session: Lock(session, "a").acquire(),
        lambda session: Lock(session, "a").try_acquire(),
        lambda session: Lock(session, "a").locked(),
        lambda session: session.__aenter__(),
        lambda session: session.inspect(),
        lambda session: session.healthy(),
        lambda _: Lock(Redis(), "a").acquire(),
    ],
    ids=["acquire", "try_acquire", "locked", "enter", "inspect", "healthy", "of a client"],
)
def test_under_trio_it_says_asyncio(use) -> None:
    trio = pytest.importorskip("trio")

    async def main() -> None:
        await use(Session.from_url("redis://localhost:1"))

    with pytest.raises(RuntimeError, match=r"no running event loop of asyncio, .* not of trio.run\(\)"):
        trio.run(main)


async def test_making_one_does_nothing(make_session, transport) -> None:
    assert repr(make_session(prefix="app")) == "<Session prefix='app' not used yet>"
    assert transport.sent == []


async def test_repr_tells_what_it_holds(offline, transport) -> None:
    await hold(offline, transport)
    assert repr(offline) == "<Session prefix='aiolocks' held=1 waiting=0>"

    transport.answer = generous
    await offline.aclose()
    assert repr(offline) == "<Session prefix='aiolocks' closed>"


async def test_gates_are_forgotten_when_nobody_needs_them(offline, transport) -> None:
    transport.answer = generous
    for number in range(100):
        async with Lock(offline, f"{number}"):
            pass

    transport.remember_nothing()
    assert len(offline._engine.gates) == 100  # kept for the next lock of the same name
    offline._engine._bindings.clear()
    assert len(offline._engine.gates) == 0


async def test_what_is_kept_for_the_next_lock_of_a_name_is_bounded(offline, transport) -> None:
    transport.answer = generous
    for number in range(1000):
        async with Lock(offline, f"{number}"):
            pass

    transport.remember_nothing()
    assert len(offline._engine.gates) == len(offline._engine._bindings) == 256
    await offline.aclose()
    assert len(offline._engine._bindings) == 0


async def test_locks_of_the_same_name_and_options_share_what_is_bound(offline, transport) -> None:
    transport.answer = generous
    one, same, other = Lock(offline, "name"), Lock(offline, "name"), Lock(offline, "name", ttl=5)
    of_another_kind, with_metadata = FairLock(offline, "name"), Lock(offline, "name", metadata={"a": 1})

    assert one._bind() is same._bind()
    bindings = [one._bind(), other._bind(), of_another_kind._bind(), with_metadata._bind()]
    assert len({id(binding) for binding in bindings}) == 4


async def test_a_wait_that_failed_leaves_no_gate(make_session, transport) -> None:
    session = make_session(backoff=Backoff(initial=10, maximum=10))
    acquiring = asyncio.create_task(Lock(session, "name").acquire())
    refuse(await transport.asked("acquire"))
    acquiring.cancel()
    await turns()

    del acquiring
    transport.remember_nothing()
    gc.collect()  # of a cancelled task, the traceback
    session._engine._bindings.clear()
    assert len(session._engine.gates) == 0


async def test_a_gate_lives_on_while_another_process_goes_first(offline, transport) -> None:
    transport.hears = True
    releasing = asyncio.create_task((await hold(offline, transport)).release())
    let_go(await transport.asked("release"), rung=b"bell of another")
    await releasing
    del releasing
    transport.remember_nothing()
    offline._engine._bindings.clear()
    assert len(offline._engine.gates) == 1

    await asyncio.sleep(1)

    assert len(offline._engine.gates) == 0


async def test_a_life_leaves_nothing_for_the_garbage_collector(offline, transport) -> None:
    """Else one third of the time of a busy process would go to it."""
    transport.answer = generous
    lock = Lock(offline, "name")
    async with lock:
        pass
    gc.collect()
    gc.disable()
    try:
        async with lock:
            pass
        await (await lock.acquire()).release()
        transport.remember_nothing()
        assert gc.collect() == 0
    finally:
        gc.enable()


async def _denied(session: Session, transport: FakeTransport) -> None:
    async def server() -> None:
        deny(await transport.asked("acquire"))

    answering = asyncio.create_task(server())
    with contextlib.suppress(BackendError):
        await Lock(session, "name").acquire()
    await answering


async def _refused(session: Session, transport: FakeTransport) -> None:
    async def server() -> None:
        refuse(await transport.asked("acquire"))

    answering = asyncio.create_task(server())
    with contextlib.suppress(LockTimeoutError):
        await Lock(session, "name").acquire(blocking_timeout=0)
    await answering


async def _cancelled(session: Session, transport: FakeTransport) -> None:
    async def server() -> None:
        await transport.asked("acquire")
        let_go(await transport.asked("release"), freed=False)

    answering = asyncio.create_task(server())
    try:
        async with asyncio.timeout(0.1):
            await Lock(session, "name").acquire()
    except TimeoutError:
        await answering


async def _lost(session: Session, transport: FakeTransport) -> None:
    transport.answer = generous
    try:
        async with Lock(session, "name").acquire() as lease:
            lease._possession.lose("for the test")
            del lease
            await asyncio.sleep(1)
    except LockLostError:
        await turns()


async def _lost_and_let_go(session: Session, transport: FakeTransport) -> None:
    transport.answer = generous
    lease = await Lock(session, "name").acquire()
    lease._possession.lose("for the test")
    with contextlib.suppress(LockNotOwnedError):
        await lease.release()
    await turns()


async def _renewed_with_another(session: Session, transport: FakeTransport) -> None:
    transport.answer = generous
    async with Lock(session, "name", ttl=3), Lock(session, "other", ttl=3):
        await asyncio.sleep(2)
    assert transport.verbs.count("renew") >= 2
    await asyncio.sleep(1)  # the watchdog has looked back


@pytest.mark.parametrize(
    "end", [_denied, _refused, _cancelled, _lost, _lost_and_let_go, _renewed_with_another]
)
async def test_no_end_leaves_its_objects_for_the_garbage_collector(offline, transport, end) -> None:
    def alive() -> list[object]:
        return [one for one in gc.get_objects() if isinstance(one, (Possession, Waiter, Request))]

    gc.collect()
    gc.disable()
    try:
        before = alive()  # of other tests
        await end(offline, transport)
        transport.remember_nothing()
        assert [one for one in alive() if one not in before] == []
    finally:
        gc.enable()


@pytest.mark.parametrize(("ttl", "retention"), [(0.05, 600), (30, 600), (60, 600), (61, 610)], ids=str)
async def test_a_fence_is_kept_for_ten_ttls_and_no_less_than_the_retention(
    offline, transport, ttl, retention
) -> None:
    await hold(offline, transport, ttl=ttl)

    assert transport.sent[0].args[2] == retention * 1000


async def test_what_stands_beside_a_lease_says_who_holds_it(make_session, transport) -> None:
    session = make_session(metadata={"app": 'a"ü'})

    async def acquire() -> None:
        await Lock(session, "name", metadata={"job": 1}).acquire()

    task = asyncio.create_task(acquire(), name='a "task"')
    call = await transport.asked("acquire")

    assert json.loads(call.args[3]) == {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "task": 'a "task"',
        "user": {"app": 'a"ü', "job": 1},
    }
    task.cancel()


# -- asking --------------------------------------------------------------------------------------------------


async def test_locked_is_what_the_server_says(offline, transport) -> None:
    for answer in (True, False):
        asking = asyncio.create_task(Lock(offline, "name").locked())
        (await transport.asked("locked")).reply(int(answer))
        assert await asking is answer


async def test_a_question_without_an_answer_ends_after_command_timeout(
    make_session, transport, clock
) -> None:
    asking = asyncio.create_task(Lock(make_session(command_timeout=2), "name").locked())
    began = clock.now()

    with pytest.raises(BackendError):
        await asking
    assert clock.now() - began == pytest.approx(2)


async def test_a_question_whose_asker_has_left_is_forgotten(offline, transport) -> None:
    asking = asyncio.create_task(Lock(offline, "name").locked())
    call = await transport.asked("locked")
    asking.cancel()
    await turns()

    assert call.done


async def test_a_question_is_told_why_there_is_no_answer(offline, transport) -> None:
    asking = asyncio.create_task(Lock(offline, "name").locked())
    cut(await transport.asked("locked"))

    with pytest.raises(BackendError, match="Redis cannot be reached: cut"):
        await asking


@pytest.mark.parametrize(
    "raw", [None, b"?", [], [1], [1, b"x"], [b"a", b"b"], {}, {0: 1}, [1, float("inf"), 0]], ids=str
)
async def test_a_reply_that_no_script_gives_is_a_backend_error(offline, transport, raw) -> None:
    trying = asyncio.create_task(Lock(offline, "name").try_acquire())
    (await transport.asked("acquire")).reply(raw)

    with pytest.raises(BackendError, match="cannot be understood"):
        await trying
    await transport.asked("release")  # every grant is undone


# -- closing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("used", [False, True])
async def test_closing_twice_is_closing_once(make_session, transport, used) -> None:
    session = make_session()
    if used:
        await hold(session, transport)
    await session.aclose()
    await session.aclose()

    assert "closed" in repr(session)


async def test_closing_closes_the_transport(make_session, transport) -> None:
    async with make_session() as session:
        await hold(session, transport)
        assert not transport.closed
        transport.answer = generous

    assert transport.closed


@pytest.mark.parametrize("act", ["acquire", "try_acquire", "locked"])
async def test_a_closed_session_admits_nothing(make_session, transport, act) -> None:
    session = make_session()
    await session.aclose()

    with pytest.raises(SessionClosedError, match="the session is closed"):
        await getattr(Lock(session, "name"), act)()
    with pytest.raises(SessionClosedError):
        async with session:
            raise AssertionError("entered")
    assert transport.sent == []


async def test_closing_loses_the_leases_and_ends_the_bodies_that_entered_them(
    make_session, transport
) -> None:
    session = make_session()
    transport.answer = generous
    entered = asyncio.Event()

    async def body() -> None:
        async with Lock(session, "name"):
            entered.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(body())
    await entered.wait()

    await session.aclose()

    with pytest.raises(LockLostError, match="the session was closed"):
        await task
    assert transport.verbs == ["acquire", "release"]


async def test_closing_waits_for_bodies_to_unwind(make_session, transport, clock) -> None:
    session = make_session()
    transport.answer = generous
    entered = asyncio.Event()

    async def body() -> None:
        async with Lock(session, "name"):
            entered.set()
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.5)

    task = asyncio.create_task(body())
    await entered.wait()
    began = clock.now()

    await session.aclose()

    assert clock.now() - began == pytest.approx(0.5, abs=0.01)
    assert task.done()
    assert isinstance(task.exception(), LockLostError)


async def test_closing_waits_for_a_stubborn_body_for_one_second_and_leaves_its_key(
    make_session, transport, clock
) -> None:
    session = make_session()
    transport.answer = generous
    entered = asyncio.Event()

    async def body() -> None:
        async with Lock(session, "name"):
            entered.set()
            for _ in range(2):
                try:
                    await asyncio.sleep(5)
                except asyncio.CancelledError:
                    continue

    task = asyncio.create_task(body())
    await entered.wait()
    began = clock.now()

    await session.aclose()

    assert clock.now() - began == pytest.approx(1, abs=0.01)
    assert transport.verbs == ["acquire"]
    with pytest.raises(LockLostError):
        await task


async def test_closing_does_not_wait_for_what_a_task_does_behind_its_body(
    make_session, transport, clock
) -> None:
    session = make_session()
    transport.answer = generous
    entered = asyncio.Event()

    async def body() -> None:
        with pytest.raises(LockLostError):
            async with Lock(session, "name"):
                entered.set()
                await asyncio.sleep(60)
        await asyncio.sleep(60)

    task = asyncio.create_task(body())
    await entered.wait()
    began = clock.now()

    await session.aclose()

    assert clock.now() - began < 0.1
    await task


async def test_a_body_may_close_its_own_session(make_session, transport) -> None:
    session = make_session()
    transport.answer = generous

    async def body() -> None:
        async with Lock(session, "name"):
            await session.aclose()
            await asyncio.sleep(60)

    with pytest.raises(LockLostError, match="the session was closed"):
        await body()
    assert "closed" in repr(session)


async def test_a_lease_that_was_never_entered_keeps_its_key_where_none_is_released(
    make_session, transport
) -> None:
    session = make_session()
    lease = await hold(session, transport)

    await session.aclose(release="none")

    assert lease.state is LeaseState.LOST
    assert transport.unasked == []


async def test_a_lease_that_was_never_entered_is_released(make_session, transport) -> None:
    session = make_session()
    lease = await hold(session, transport)
    transport.answer = generous

    await session.aclose()

    assert lease.state is LeaseState.RELEASED
    assert transport.unasked == []


async def test_a_grant_that_finds_the_session_closing_is_given_back(make_session, transport) -> None:
    session = make_session()
    acquiring = asyncio.create_task(Lock(session, "name").acquire())
    call = await transport.asked("acquire")
    closing = asyncio.create_task(session.aclose())
    await turns(1)
    grant(call)  # its task runs behind the first step of closing

    with pytest.raises(SessionClosedError):
        await acquiring
    assert transport.unasked == ["release"]
    await closing


async def closing_while(act: str, session: Session, transport: FakeTransport) -> asyncio.Task[Any]:
    """Asks something, closes the session before there is an answer, and returns the asker."""
    lease = await hold(session, transport)
    lock = Lock(session, "name")
    questions = {"locked": lock.locked, "owned": lease.owned, "adopt": lambda: lock.adopt(lease.detach())}
    asking = asyncio.create_task(questions[act]())
    await transport.asked(act)
    await session.aclose(release="none")
    return asking


@pytest.mark.parametrize("act", ["locked", "owned", "adopt"])
async def test_closing_ends_every_question(make_session, transport, clock, act) -> None:
    began = clock.now()
    asking = await closing_while(act, make_session(), transport)

    with pytest.raises(SessionClosedError, match="the session was closed while waiting"):
        await asking
    assert clock.now() - began < 0.1
    assert transport.unasked == (["adopt"] if act == "adopt" else [])  # every grant is undone


async def test_an_adoption_that_finds_the_session_closing_is_given_back(make_session, transport) -> None:
    session = make_session()
    lease = await hold(session, transport)
    adopting = asyncio.create_task(Lock(session, "name").adopt(lease.detach()))
    adoption = await transport.asked("adopt")
    closing = asyncio.create_task(session.aclose())
    await turns(1)
    adoption.reply(b"17")  # its task runs behind the first step of closing

    with pytest.raises(SessionClosedError):
        await adopting
    back = await transport.asked("adopt")
    assert back.args[:2] == (adoption.args[1], adoption.args[0])
    await closing


async def test_a_life_is_two_commands_two_waits_and_no_task(offline, transport) -> None:
    """The claims of docs/explanation/performance.md about a lock that nobody else wants."""
    transport.answer = generous
    lock = Lock(offline, "name")
    async with lock:
        pass
    transport.remember_nothing()
    resumed = 0

    async def once() -> None:
        async with lock:
            pass

    coroutine = once()
    while True:
        try:
            future = coroutine.send(None)
        except StopIteration:
            break
        resumed += 1
        future._asyncio_future_blocking = False
        while not future.done():
            await asyncio.sleep(0)

    assert resumed == 2
    assert transport.verbs == ["acquire", "release"]
    assert asyncio.all_tasks() == {asyncio.current_task()}
