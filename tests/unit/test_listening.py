"""Waiters that listen instead of asking: every answer is the test's, time included."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiolocks import Backoff, FairLock, Lock, Session
from aiolocks.kinds.multilock import steps_of
from aiolocks.lock.backoff import SILENT
from aiolocks.transport import ASK, BELL_RUNG, GONE, NO_END, NOT_OURS, Listener, one_request_each
from aiolocks.transport.answers import Refused
from tests.unit.fakes import cut, deny, grant, let_go, refuse, releasing, turns

SECOND = 1000


@pytest.fixture
def session(make_session) -> Session:
    return make_session(backoff=Backoff(initial=0.1, maximum=0.1, jitter=0))


async def asleep(session: Session, transport, *names: str, kind: Any = Lock) -> list[asyncio.Task[Any]]:
    """A waiter of each name, which has its bell; the test answers when it listens."""
    transport.hears = transport.listening = True
    waiting = []
    for name in names:
        task = asyncio.create_task(kind(session, name).acquire())
        refuse(await transport._untaken.get(), 30 * SECOND)
        (await transport.asked("listen")).reply([30 * SECOND])
        await turns()
        waiting.append(task)
    return waiting


async def one_asleep(session: Session, transport, **kind: Any) -> asyncio.Task[Any]:
    (task,) = await asleep(session, transport, "name", **kind)
    return task


async def end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_while_nothing_ends_it_listens_and_asks_after_ten_seconds(session, transport) -> None:
    task = await one_asleep(session, transport)
    began = now()

    while (call := await transport._untaken.get()).script.name == "waiters_listen":
        call.reply([NO_END])

    assert call.script.name == "lock_acquire"
    assert now() - began == pytest.approx(SILENT)
    assert transport.verbs.count("listen") == 17  # at once, and each 0.6 s
    await end(task)


FAR = 1
"""Behind the answers: the first waiter of the request stands far from the front."""


async def times(transport, *answers: list[int]) -> list[float]:
    """The seconds between requests to listen with these answers, and one more."""
    found, since = [], now()
    for answer in [*answers, None]:
        call = await transport.asked("listen")
        found.append(now() - since)
        since = now()
        if answer is not None:
            call.reply(answer)
    return found


async def test_far_from_the_front_it_shows_less_often_that_it_lives(session, transport) -> None:
    task = await one_asleep(session, transport)

    found = await times(transport, [NO_END, FAR], [NO_END, FAR], [NO_END], [NO_END], [NO_END, FAR])

    assert found == pytest.approx([0.6, 1.5, 1.5, 0.6, 0.6, 1.5])
    await end(task)


async def test_of_several_the_far_one_goes_with_others_or_not_at_all(session, transport) -> None:
    tasks = await asleep(session, transport, "one", "two")
    bells = []

    for _ in range(6):
        call = await transport.asked("listen")
        bells.append(len(call.bells))
        far = [number for number, bell in enumerate(call.bells, 1) if b"one" in bell]
        call.reply([NO_END] * len(call.bells) + far)

    assert bells == [2, 1, 2, 1, 2, 1]  # each 0.6 s: the far one every other time
    await end(*tasks)


async def test_once_it_is_alone_the_far_one_is_not_late(session, transport) -> None:
    one, two = await asleep(session, transport, "one", "two")
    (await transport.asked("listen")).reply([NO_END, NO_END, FAR])
    began = now()
    await end(two)
    let_go(await transport.asked("release"))

    await transport.asked("listen")

    assert now() - began == pytest.approx(1.5)
    await end(one)


async def test_one_that_comes_beside_a_far_one_has_its_own_time(session, transport) -> None:
    (far,) = await asleep(session, transport, "one")
    (await transport.asked("listen")).reply([NO_END, FAR])
    await asyncio.sleep(0.1)
    began = now()
    (near,) = await asleep(session, transport, "two")

    call = await transport.asked("listen")

    assert len(call.bells) == 1
    assert b"two" in call.bells[0]
    assert now() - began < 0.6001  # times of a clock that has run for hours are not exact
    await end(far, near)


@pytest.mark.parametrize("news", ["rung", "all", "no answer", "gone"])
async def test_what_is_newer_than_where_it_stands_makes_it_near(session, transport, news: str) -> None:
    task = await one_asleep(session, transport)
    listening = await transport.asked("listen")
    listening.reply([NO_END, FAR])
    match news:
        case "rung":
            transport.on_rung("tracking", listening.bells)
        case "all":
            transport.on_rung("tracking", None)
        case "gone":
            (await transport.asked("listen")).reply([GONE])
        case _:
            cut(await transport.asked("listen"))
    refuse(await transport.asked("acquire"))
    first = await transport.asked("listen")
    began = now()
    if news != "gone":
        first.reply([NO_END])

    await transport.asked("listen")

    assert now() - began < 0.6001  # times of a clock that has run for hours are not exact
    await end(task)


async def test_an_answer_that_is_older_than_a_ring_does_not_make_it_far(session, transport) -> None:
    task = await one_asleep(session, transport)
    listening = await transport.asked("listen")
    transport.on_rung("tracking", listening.bells)
    listening.reply([NO_END, FAR])
    assert not session._engine.bells._far
    refuse(await transport.asked("acquire"))
    await end(task)


async def test_one_that_leaves_is_not_far_when_it_comes_again(session, transport) -> None:
    task = await one_asleep(session, transport)
    (await transport.asked("listen")).reply([NO_END, FAR])
    await end(task)
    transport.remember_nothing()

    task = await one_asleep(session, transport)

    assert await times(transport) == pytest.approx([0.6])
    await end(task)


async def test_it_asks_when_the_lease_ends_that_it_was_told_of(session, transport) -> None:
    task = await one_asleep(session, transport)
    (await transport.asked("listen")).reply([400])
    told = now()

    grant(await transport.asked("acquire"))

    assert now() - told == pytest.approx(0.401)
    release = releasing(await task)
    let_go(await transport.asked("release"))
    await release


async def test_a_lease_that_was_renewed_moves_the_time_at_which_it_asks(session, transport) -> None:
    task = await one_asleep(session, transport)
    (await transport.asked("listen")).reply([700])
    (await transport.asked("listen")).reply([5 * SECOND])

    assert (await transport.asked("listen")).keys
    await end(task)


async def test_it_asks_at_once_when_it_is_told_to(session, transport) -> None:
    task = await one_asleep(session, transport)
    (await transport.asked("listen")).reply([ASK])

    refuse(await transport.asked("acquire"))

    await turns()
    assert transport.unasked == []  # its bell hangs: there is nothing to hang up
    await end(task)


@pytest.mark.parametrize("answer", [GONE, NOT_OURS, BELL_RUNG])
async def test_without_its_bell_it_asks_and_listens_at_once(session, transport, answer) -> None:
    task = await one_asleep(session, transport)
    (await transport.asked("listen")).reply([answer])

    refuse(await transport.asked("acquire"))

    refused = now()
    assert (await transport.asked("listen")).bells
    assert now() == refused
    await end(task)


async def test_strictly_those_whose_bell_is_gone_take_their_seats_again_in_order(session, transport) -> None:
    head = await one_asleep(session, transport, kind=FairLock)
    behind = asyncio.create_task(FairLock(session, "name").acquire())
    sitting = await transport.asked("sit")
    refuse(sitting)
    seat = sitting.args[6]
    await turns()

    (await transport.asked("listen")).reply([GONE])

    assert (await transport.asked("permits_acquire")).args[6] != seat  # its refusal seats it
    assert (await transport.asked("sit")).args[6] == seat
    await end(head, behind)


async def test_what_fails_or_has_no_answer_makes_it_ask(session, transport) -> None:
    task = await one_asleep(session, transport)
    cut(await transport.asked("listen"))
    refuse(await transport.asked("acquire"))
    (await transport.asked("listen")).reply([NO_END])

    await transport.asked("listen")  # and nobody answers
    asked = now()
    await transport.asked("acquire")

    assert now() - asked == pytest.approx(0.5)
    await end(task)


async def test_what_it_missed_while_it_asked_is_made_up_for(session, transport) -> None:
    task = await one_asleep(session, transport)
    listening = await transport.asked("listen")
    transport.on_rung("tracking", listening.bells)
    asking = await transport.asked("acquire")

    listening.reply([GONE])  # of the time before
    refuse(asking)

    assert (await transport.asked("listen")).bells == listening.bells
    await end(task)


async def test_all_bells_of_a_session_go_in_one_request(session, transport) -> None:
    tasks = await asleep(session, transport, "one", "two", "three")

    listening = await transport.asked("listen")
    listening.reply([NO_END, ASK, NO_END])

    assert len(listening.keys) == len(listening.bells) == 3
    assert b"two" in (await transport.asked("acquire")).keys[0]
    await end(*tasks)


async def test_a_refusal_for_one_of_them_concerns_that_one_alone(session, transport, caplog) -> None:
    tasks = await asleep(session, transport, "one", "two")

    deny(await transport.asked("listen"))
    first, second = await transport.asked("listen"), await transport.asked("listen")
    deny(first)
    second.reply([NO_END])

    assert len(first.keys) == len(second.keys) == 1
    assert b"one" in (await transport.asked("acquire")).keys[0]
    await turns()
    assert transport.unasked == []
    assert "waiters cannot stand in the queue" in caplog.text
    await end(*tasks)


async def test_nothing_is_sent_for_those_who_have_gone(session, transport) -> None:
    task = await one_asleep(session, transport)
    await end(task)
    transport.remember_nothing()

    await asyncio.sleep(2)

    assert transport.verbs == []


async def test_where_nothing_is_heard_it_asks_as_the_backoff_says(session, transport) -> None:
    task = await one_asleep(session, transport)
    transport.hears = False
    (await transport.asked("listen")).reply([ASK])
    refuse(await transport.asked("acquire"))
    refused = now()

    await transport.asked("acquire")

    assert now() - refused == pytest.approx(0.1)
    await end(task)


QUEUE, LOCK, MARKS = (b"queue",), (b"lock",), tuple(b"%d" % number for number in range(15))
OF_LOCK = Listener(b"bell", QUEUE, locks=LOCK)
OF_READER = Listener(b"bell", QUEUE, "0" * 16, deadlines=LOCK, marks=MARKS)
OF_MANY = Listener(b"bell", tuple(b"q%d" % number for number in range(100)))


@pytest.mark.parametrize(
    ("waiting", "by_slot", "sizes"),
    [
        ([OF_LOCK] * 40, False, [16, 16, 8]),
        ([OF_LOCK] * 40, True, [16, 4, 16, 4]),
        ([OF_READER] * 5, False, [2, 2, 1]),
        ([OF_READER, *[OF_LOCK] * 20], False, [11, 10]),
        ([OF_LOCK, OF_MANY, OF_LOCK], False, [1, 1, 1]),
        ([], False, []),
    ],
)
def test_a_request_has_one_slot_and_no_more_than_48_keys(waiting, by_slot: bool, sizes: list[int]) -> None:
    listeners = [one._replace(bell=b"{%d}%d" % (number % 2, number)) for number, one in enumerate(waiting)]

    requests = list(one_request_each(listeners, by_slot=by_slot))

    assert [len(request) for request in requests] == sizes
    assert sorted(one for request in requests for one in request) == sorted(listeners)


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([5000, 7000], 7000),  # it needs both
        ([ASK, 7000], 7000),
        ([ASK, ASK], ASK),
        ([NO_END, 7000], NO_END),
        ([BELL_RUNG, NO_END], BELL_RUNG),
        ([GONE, BELL_RUNG], GONE),
        ([7000, NOT_OURS], NOT_OURS),
    ],
)
def test_in_several_slots_it_waits_for_all_of_them(answers: list[int], told: int) -> None:
    names = ["a", "b"]
    commands = steps_of("p", names, retention_ms=1000, session="s")
    saga = commands.listener("t" * 32).saga()  # type: ignore[union-attr]

    _, requests = saga.first()

    assert [len(request.keys) for request in requests] == [1, 1]
    assert saga._told([[answer] for answer in answers]) == told


async def test_a_wait_that_is_contended_takes_three_requests(session, transport) -> None:
    """It asks, is refused and seated; it listens; it asks when it was woken."""
    task = await one_asleep(session, transport)
    transport.on_rung("tracking", transport.sent[-1].bells)
    grant(await transport.asked("acquire"))
    lease = await task

    assert transport.verbs == ["acquire", "listen", "acquire"]
    asked, listened, woken = transport.sent
    assert "w" in asked.args[4]  # it is seated
    assert listened.bells == asked.keys[3:]  # with this bell
    assert {*"wpl"} <= {*woken.args[4]}  # it leaves the queue
    release = releasing(lease)
    let_go(await transport.asked("release"))
    await release


# -- asking and listening in one write


async def contended(session: Session, transport) -> Lock:
    """A lock of which the last acquire was refused."""
    lock = Lock(session, "name")
    before = await one_asleep(session, transport)
    transport.on_rung("tracking", transport.sent[-1].bells)
    grant(await transport.asked("acquire"))
    release = releasing(await before)
    let_go(await transport.asked("release"))
    await release
    transport.remember_nothing()
    return lock


async def asks_and_listens(session: Session, transport) -> tuple[asyncio.Task[Any], Any, Any]:
    """A wait for such a lock; its request, and the one that went with it."""
    lock = await contended(session, transport)
    transport.way = "tracking"
    task = asyncio.create_task(lock.acquire())
    asking = await transport.asked("acquire")
    listening = await transport.asked("GET")
    return task, asking, listening


async def test_the_next_wait_takes_two_requests(session, transport) -> None:
    task, asking, listening = await asks_and_listens(session, transport)
    assert listening.bells == listening.keys == (listening.args[1],)
    refuse(asking, 30 * SECOND)
    listening.reply(b"")
    refused = now()

    (await transport.asked("listen")).reply([NO_END])
    assert now() - refused == pytest.approx(0.6, abs=0.1)  # until then, it neither asks nor listens
    transport.on_rung("tracking", listening.bells)
    woken = await transport.asked("acquire")

    assert {*"wpl"} <= {*woken.args[4]}
    assert transport.verbs == ["acquire", "GET", "listen", "acquire"]
    await end(task)


@pytest.mark.parametrize("bell", [None, b"rung"])
async def test_where_its_bell_does_not_hang_then_it_asks_at_once(session, transport, bell) -> None:
    task, asking, listening = await asks_and_listens(session, transport)
    refuse(asking)
    listening.reply(bell)
    refused = now()

    refuse(await transport.asked("acquire"))

    assert now() == refused
    assert (await transport.asked("GET")).bells == listening.bells
    await end(task)


@pytest.mark.parametrize("seated", [True, False])
async def test_where_it_hangs_again_and_again_not_a_script_finds_out_why(session, transport, seated) -> None:
    """It was rung each time; or it cannot be hung up, and to ask at once each time would never end."""
    task, asking, listening = await asks_and_listens(session, transport)
    began, asked = now(), 1
    (refuse if seated else refuse_unseated)(asking)
    listening.reply(None)
    while transport.unasked[:1] == ["acquire"]:
        (refuse if seated else refuse_unseated)(await transport.asked("acquire"))
        (await transport.asked("GET")).reply(None)
        asked += 1

    (await transport.asked("listen")).reply([NOT_OURS])
    assert now() == began
    assert asked == (4 if seated else 1)
    await end(task)


async def test_after_a_refusal_that_nothing_foretold_it_reads_its_bell(session, transport) -> None:
    transport.hears = transport.listening = True
    transport.way = "tracking"
    task = asyncio.create_task(Lock(session, "name").acquire())
    refuse(asking := await transport.asked("acquire"), 30 * SECOND)
    refused = now()

    listening = await transport.asked("GET")
    assert listening.bells == asking.keys[3:]
    listening.reply(b"")

    (await transport.asked("listen")).reply([NO_END])
    assert now() - refused == pytest.approx(0.6, abs=0.1)
    transport.on_rung("tracking", listening.bells)
    await transport.asked("acquire")
    await end(task)


async def test_what_was_heard_before_the_refusal_counts_for_nothing(session, transport) -> None:
    """The server lacked the script, and the request that asks was sent again, behind the other one."""
    task, asking, listening = await asks_and_listens(session, transport)
    listening.reply(b"")
    refuse(asking)

    assert (await transport.asked("GET")).bells == listening.bells
    await end(task)


async def test_without_an_answer_to_that_it_polls_until_the_next_sign(session, transport) -> None:
    task, asking, listening = await asks_and_listens(session, transport)
    refuse(asking)
    deny(listening)
    denied = now()

    refuse(await transport.asked("acquire"))

    assert now() - denied == pytest.approx(0.1)
    await transport.asked("GET")
    await end(task)


async def test_one_that_was_rung_before_that_answer_asks(session, transport) -> None:
    task, asking, listening = await asks_and_listens(session, transport)
    refuse(asking)
    transport.on_rung("tracking", listening.bells)
    listening.reply(b"")  # of the time before
    refuse(await transport.asked("acquire"))

    assert (await transport.asked("GET")).bells == listening.bells
    await end(task)


FREE = -2
"""Instead of the ms that a holder has left: it is another process's turn."""


async def lets_another_go_first(session: Session, transport, **options: Any) -> tuple[asyncio.Task[Any], Any]:
    """A wait whose request goes behind a waiter that the release before it has rung; its `GET`."""
    before = await one_asleep(session, transport)
    transport.way = "tracking"
    transport.on_rung("tracking", transport.sent[-1].bells)
    grant(await transport.asked("acquire"))
    release = releasing(await before)
    let_go(await transport.asked("release"), rung=b"another's")
    await release
    transport.remember_nothing()
    task = asyncio.create_task(Lock(session, "name").acquire(**options))
    asking = await transport.asked("acquire")
    assert "t" in asking.args[4]
    listening = await transport.asked("GET")
    refuse(asking, FREE)
    listening.reply(b"")
    return task, listening


@pytest.mark.parametrize("answer", [[NO_END], [30 * SECOND]])
async def test_what_lets_another_process_go_first_listens_once_that_has_had_its_chance(
    session, transport, answer
) -> None:
    """Its bell hangs, but that does not say if the waiter that was rung could use its turn."""
    task, listening = await lets_another_go_first(session, transport)
    refused = now()

    listens = await transport.asked("listen")
    assert now() - refused == pytest.approx(0.006)
    listens.reply(answer)

    (await transport.asked("listen")).reply(answer)
    assert now() - refused == pytest.approx(0.6, abs=0.1)  # its sign of life, and no question before
    transport.on_rung("tracking", listening.bells)
    await transport.asked("acquire")
    await end(task)


@pytest.mark.parametrize("answers", [lambda call: call.reply([ASK]), cut], ids=["it is free", "none"])
async def test_where_that_could_not_use_its_turn_it_asks(session, transport, answers) -> None:
    task, _ = await lets_another_go_first(session, transport)

    answers(await transport.asked("listen"))

    await transport.asked("acquire")
    await end(task)


async def test_shortly_before_its_deadline_it_asks_instead_of_listening(session, transport) -> None:
    task, _ = await lets_another_go_first(session, transport, blocking_timeout=0.008)

    await transport.asked("acquire")
    await end(task)


async def test_where_others_waited_at_its_grant_the_next_acquire_asks_and_listens(session, transport) -> None:
    task, asking, listening = await asks_and_listens(session, transport)
    grant(asking, others=1)
    listening.reply(None)
    release = releasing(await task)
    let_go(await transport.asked("release"))
    await release

    task = asyncio.create_task(Lock(session, "name").acquire())

    await transport.asked("acquire")
    await transport.asked("GET")
    await end(task)


async def test_after_a_grant_at_once_it_listens_when_it_was_refused(session, transport) -> None:
    task, asking, listening = await asks_and_listens(session, transport)
    grant(asking)
    listening.reply(None)
    release = releasing(await task)
    let_go(await transport.asked("release"))
    await release
    transport.remember_nothing()

    task = asyncio.create_task(Lock(session, "name").acquire())
    asking = await transport.asked("acquire")
    assert transport.unasked == []
    refuse(asking)

    await transport.asked("GET")
    await end(task)


@pytest.mark.parametrize(("way", "by_slot"), [("keyspace", False), ("tracking", True)])
async def test_where_it_hears_elsewhere_or_its_slot_may_move_it_listens_when_it_was_refused(
    session, transport, way: str, by_slot: bool
) -> None:
    transport.way, transport.by_slot = way, by_slot
    lock = await contended(session, transport)
    task = asyncio.create_task(lock.acquire())
    asking = await transport.asked("acquire")
    await turns()
    assert transport.unasked == []
    refuse(asking)

    assert (await transport.asked("listen")).bells
    await end(task)


async def test_what_cannot_be_listened_for_is_polled(session, transport) -> None:
    """It does not ask and listen in turn without a pause."""
    task = await one_asleep(session, transport)
    cut(await transport.asked("listen"))
    refuse(await transport.asked("acquire"))
    deny(await transport.asked("listen"))
    denied = now()

    await transport.asked("acquire")

    assert now() - denied == pytest.approx(0.1)
    await end(task)


@pytest.mark.parametrize("kind", [Lock, FairLock])
async def test_however_often_it_was_rung_before_it_listened_it_asks_at_once(session, transport, kind) -> None:
    """A quick task elsewhere lets go of the lock between each refusal and the request that listens."""
    task = await one_asleep(session, transport, kind=kind)
    (await transport.asked("listen")).reply([GONE])
    began = now()

    for _ in range(20):
        refuse(await transport._untaken.get())
        (await transport.asked("listen")).reply([GONE])

    await turns()
    assert len(transport.unasked) == 1
    assert now() == began
    await end(task)


def refuse_unseated(call: Any) -> None:
    """As of several masters of which no majority has refused it: some have granted, and take that back."""
    call.parse = lambda _: Refused(20 * SECOND, seated=False)
    call.reply([0])


@pytest.mark.parametrize(
    ("refuse", "answer"), [(refuse, NOT_OURS), (refuse_unseated, GONE)], ids=["refused", "not seated"]
)
async def test_where_no_bell_hangs_it_polls_in_the_end(session, transport, refuse, answer) -> None:
    """Each time that it listens right behind a refusal, its bell does not hang, and was not rung."""
    task = await one_asleep(session, transport)
    (await transport.asked("listen")).reply([answer])
    asked = 0
    began = now()
    while now() == began:
        refuse(await transport.asked("acquire"))
        asked += 1
        (await transport.asked("listen")).reply([answer])
        await turns()
        if transport.unasked == []:
            break

    await transport.asked("acquire")

    assert asked == 4
    assert now() - began == pytest.approx(0.1)
    await end(task)
