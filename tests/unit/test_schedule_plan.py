"""Which tick a process asks for next: without a server, and without a clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiolocks.kinds.schedule.plan import (
    Claimed,
    Every,
    Misfire,
    NotClaimed,
    Overlap,
    Plan,
    Policy,
    Why,
    delay,
)
from aiolocks.kinds.schedule.run import ServerClock, server_clock
from aiolocks.transport import clocks

MINUTE = 60_000
WEEK = 7 * 24 * 60 * MINUTE
NOON = 1_767_268_800_000  # of the first day of 2026, in UTC


def planned(
    *,
    every: float = 60,
    overlap: Overlap = "skip",
    misfire: Misfire = "latest",
    redo: int = 0,
    jitter: int = 0,
) -> Plan:
    policy = Policy(overlap=overlap, misfire=misfire, redo=redo, jitter=jitter)
    return Plan("nightly", Every(every), policy)


def refusal(why: Why, claimed: int | None, *, now: int, ends_in: int | None = None) -> NotClaimed:
    return NotClaimed(why, claimed, ends_in, now * 1000)


def grant(due: int | None, before: int, *, now: int, attempt: int = 1) -> Claimed:
    return Claimed(due, before, attempt, now * 1000)


def test_the_first_claim_is_made_at_once() -> None:
    """It begins the register, if there is none."""
    plan = planned()
    assert plan.next(NOON + 5) == (NOON, NOON)
    ask = plan.ask(NOON)
    assert ask[:4] == (NOON, None, NOON - MINUTE, "s")
    assert (ask.gap, ask.lasting, ask.latest, ask.in_time) == (MINUTE, WEEK, None, 1000)
    assert (ask.definition, ask.again) == (Every(60).definition, NOON + MINUTE)


def test_then_it_waits_for_the_next() -> None:
    plan = planned()
    plan.refused(NOON, refusal("new", NOON, now=NOON + 5))
    assert plan.next(NOON + 10) == (NOON + MINUTE, NOON + MINUTE)
    assert plan.next(NOON + MINUTE) == (NOON + MINUTE, NOON + MINUTE)
    assert plan.ask(NOON + MINUTE).known == NOON
    plan.claimed(grant(NOON + MINUTE, NOON, now=NOON + MINUTE))
    assert plan.next(NOON + MINUTE + 1).due == NOON + 2 * MINUTE


def test_of_those_that_were_missed_the_latest_is_asked_for() -> None:
    plan = planned()
    plan.refused(NOON, refusal("new", NOON, now=NOON))
    late = NOON + 7 * MINUTE + 5
    assert plan.next(late) == (NOON + 7 * MINUTE, NOON + 7 * MINUTE)


def test_or_all_of_them_one_by_one() -> None:
    plan = planned(misfire="all")
    plan.refused(NOON, refusal("new", NOON, now=NOON))
    late = NOON + 3 * MINUTE + 5
    for minute in (1, 2, 3):
        due = plan.next(late).due
        assert due == NOON + minute * MINUTE
        assert plan.ask(due).flags == "sw"
        plan.claimed(grant(due, due - MINUTE, now=late))
    assert plan.next(late).at == NOON + 4 * MINUTE


def test_where_another_is_next_it_goes_on_from_there() -> None:
    plan = planned(misfire="all")
    late = NOON + 9 * MINUTE
    assert plan.next(late).due == late
    plan.refused(late, refusal("other", NOON + 2 * MINUTE, now=late))
    assert plan.next(late) == (NOON + 3 * MINUTE, NOON + 3 * MINUTE)


def test_those_that_are_late_are_left_out() -> None:
    plan = planned(misfire="skip")
    plan.refused(NOON, refusal("new", NOON, now=NOON))
    assert plan.ask(NOON + MINUTE).latest == NOON + MINUTE + 30_000
    assert planned(every=3600, misfire="skip").ask(NOON).latest == NOON + 60_000
    plan.refused(NOON + MINUTE, refusal("late", NOON, now=NOON + MINUTE + 31_000))
    assert plan.next(NOON + MINUTE + 31_000).at == NOON + 2 * MINUTE
    assert plan.ask(NOON + 2 * MINUTE).known == NOON  # the one that was left out counts as missed


@pytest.mark.parametrize(("overlap", "flags"), [("skip", "s"), ("queue", "q"), ("allow", "")])
def test_the_register_is_told_what_overlaps(overlap: Overlap, flags: str) -> None:
    assert planned(overlap=overlap).ask(NOON).flags == flags
    ask = planned(overlap=overlap).out_of_turn(NOON)
    assert (ask.due, ask.flags, ask.lasting) == (None, flags, WEEK)


def test_a_queued_one_looks_again_when_the_run_may_have_ended() -> None:
    plan, due = planned(overlap="queue"), NOON + MINUTE
    plan.refused(NOON, refusal("new", NOON, now=NOON))
    plan.refused(due, refusal("busy", NOON, now=due, ends_in=30_000))
    assert plan.next(due) == (due, due + 1000)
    plan.refused(due, refusal("busy", NOON, now=due + 1000, ends_in=300))
    assert plan.next(due) == (due, due + 1302)
    plan.run_ended()
    assert plan.next(due + 1010) == (due, due)
    plan.refused(due, refusal("busy", NOON, now=due + 1000, ends_in=30_000))
    assert plan.next(due + 5 * MINUTE).due == due + 5 * MINUTE


def test_it_looks_whether_a_run_was_lost_only_if_that_would_be_run_again() -> None:
    for why in ("taken", "skipped"):
        plan = planned(redo=1)
        plan.refused(NOON, refusal(why, NOON, now=NOON, ends_in=30_000))
        assert plan.next(NOON) == (NOON, NOON + 1000)
        plan.refused(NOON, refusal(why, NOON, now=NOON + 1000, ends_in=100))
        assert plan.next(NOON) == (NOON, NOON + 1102)
        plan.refused(NOON, refusal(why, NOON, now=NOON + 1102))
        assert plan.next(NOON) == (NOON + MINUTE, NOON + MINUTE)
        without = planned()
        without.refused(NOON, refusal(why, NOON, now=NOON, ends_in=30_000))
        assert without.next(NOON).at == NOON + MINUTE


def test_after_a_run_of_its_own_it_looks_at_once() -> None:
    plan = planned(redo=1)
    plan.claimed(grant(NOON, NOON - MINUTE, now=NOON))
    assert plan.next(NOON).at == NOON + MINUTE
    plan.run_ended()
    assert plan.next(NOON + 10) == (NOON, 0)


def test_an_older_tick_that_is_run_again_takes_none_of_the_newer_ones() -> None:
    plan = planned(redo=1, misfire="all")
    plan.refused(NOON, refusal("taken", NOON, now=NOON))
    plan.claimed(grant(NOON - 5 * MINUTE, NOON - 6 * MINUTE, now=NOON, attempt=2))
    assert plan.next(NOON).due == NOON + MINUTE


def test_a_claim_that_came_too_late_is_made_again() -> None:
    plan = planned()
    plan.refused(NOON, refusal("new", NOON, now=NOON))
    due = plan.next(NOON + MINUTE).due
    plan.taken_back(grant(due, NOON, now=due), due + 10)
    assert plan.next(due + 10) == (due, due + 60)


def test_ticks_of_a_clock_that_was_ahead_are_forgotten() -> None:
    """The server's clock was a year ahead, and was set back."""
    plan, ahead = planned(misfire="skip"), NOON + 365 * 1440 * MINUTE
    plan.refused(ahead, refusal("taken", ahead, now=ahead))
    plan.refused(ahead, refusal("late", ahead, now=ahead))
    assert plan.next(NOON) == (NOON, NOON)
    assert plan.ask(NOON).known is None


def test_a_clock_that_lags_a_little_forgets_nothing() -> None:
    plan = planned(every=1)
    plan.claimed(grant(NOON, NOON - 1000, now=NOON))
    assert plan.next(NOON - 800) == (NOON + 1000, NOON + 1000)


def test_jitter_puts_a_tick_off() -> None:
    plan = planned(jitter=20_000, misfire="skip")
    plan.refused(NOON, refusal("new", NOON, now=NOON))
    due, at = plan.next(NOON + 100)
    assert due == NOON + MINUTE
    assert 0 < at - due <= 20_000
    assert plan.next(at) == (due, at)
    assert plan.ask(due).latest == at + 30_000
    assert plan.ask(due).in_time == at - due + 1000
    following = due + MINUTE
    assert plan.ask(due).again == following + delay("nightly", following, MINUTE, 20_000)


def test_the_register_lasts_for_two_gaps_at_least() -> None:
    gap = 30 * 24 * 60 * MINUTE
    assert planned(every=gap / 1000).ask(NOON // gap * gap).lasting == 4 * gap


# -- several of them -----------------------------------------------------------------------------------------


class Register:
    """The register as the script keeps it, without runs: for plans of several processes."""

    def __init__(self) -> None:
        self.claimed: int | None = None
        self.ran: list[int] = []

    def claim(self, ask: Any, now: int) -> Claimed | NotClaimed:
        if ask.due > now:
            return refusal("early", self.claimed, now=now)
        if self.claimed is None:
            self.claimed = ask.due
            return refusal("new", self.claimed, now=now)
        if ask.due <= self.claimed:
            return refusal("taken", self.claimed, now=now)
        if "w" in ask.flags and ask.known != self.claimed:
            return refusal("other", self.claimed, now=now)
        if ask.latest is not None and now > ask.latest:
            return refusal("late", self.claimed, now=now)
        before, self.claimed = self.claimed, ask.due
        self.ran.append(ask.due)
        return grant(ask.due, before, now=now)


@given(
    every=st.sampled_from([1.0, 7.0, 60.0]),
    misfire=st.sampled_from(["latest", "skip", "all"]),
    errors=st.lists(st.integers(-30_000, 0), min_size=1, max_size=4),
    naps=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 150_000)), max_size=40),
    jitter=st.integers(0, 2000),
)
def test_no_tick_is_run_twice_and_none_is_left_out_without_need(
    every: float, misfire: Misfire, errors: list[int], naps: list[tuple[int, int]], jitter: int
) -> None:
    """Processes that know the server's time too late, each of which looks now and then."""
    register = Register()
    plans = [planned(every=every, misfire=misfire, jitter=jitter) for _ in errors]
    now, seen = NOON, []
    for which, nap in naps:
        now += nap
        plan, late = plans[which % len(plans)], errors[which % len(plans)]
        for _ in range(1000):
            wanted = plan.next(now + late)
            if wanted.at > now + late:
                break
            reply = register.claim(plan.ask(wanted.due), now)
            seen.append(register.claimed)
            if isinstance(reply, Claimed):
                plan.claimed(reply)
            else:
                plan.refused(wanted.due, reply)
        else:
            raise AssertionError("it asks without end")
    assert register.ran == sorted(set(register.ran))
    assert seen == sorted(seen)
    if misfire == "all" and register.ran:
        gap = round(every * 1000)
        assert register.ran == list(range(register.ran[0], register.ran[-1] + 1, gap))


# -- the server's time ---------------------------------------------------------------------------------------


class Steady:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> Steady:
    steady = Steady()
    monkeypatch.setattr(clocks, "steady", steady)
    return steady


def test_the_time_goes_on_from_the_last_answer(steady: Steady) -> None:
    clock = ServerClock(lambda: 5.0)
    assert not clock.fresh
    clock.heard(NOON * 1000, 0.01)
    assert clock.now() == NOON
    steady.seconds += 599
    assert clock.fresh
    assert clock.now() == NOON + 599_000
    steady.seconds += 2
    assert not clock.fresh


def test_the_time_goes_on_by_the_clock_that_has_gone_further(steady: Steady) -> None:
    """The loop's stands still while the machine is suspended; the other one may not be there."""
    loop = Steady()
    clock = ServerClock(loop)
    clock.heard(NOON * 1000, 0.01)
    loop.seconds += 3
    assert clock.now() == NOON + 3000
    steady.seconds += 7
    assert clock.now() == NOON + 7000


@pytest.mark.parametrize(
    ("told", "round_trip", "then"),
    [
        (0, 0.1, 0),  # as expected
        (-80, 0.1, 0),  # the answer may have been on its way for so long
        (-80, 0.01, -80),  # it has not: the server's clock was set back
        (5, 0.1, 5),  # later than was thought
        (3_600_000, 0.1, 3_600_000),
        (-3_600_000, 0.1, -3_600_000),
    ],
)
def test_an_answer_corrects_it(steady: Steady, told: int, round_trip: float, then: int) -> None:
    clock = ServerClock(lambda: 5.0)
    clock.heard(NOON * 1000, 0.001)
    steady.seconds += 10
    clock.heard((NOON + 10_000 + told) * 1000, round_trip)
    assert clock.now() == NOON + 10_000 + then


async def test_schedules_of_a_session_share_it(session) -> None:
    engine = session._usable_engine()
    with server_clock(engine, "a") as one, server_clock(engine, "b") as other:
        assert one is other
    assert engine.in_progress == {}
