"""When ticks are due: `every`, cron expressions, and what daylight saving does to them."""

from __future__ import annotations

import datetime as dt
import itertools
import sys
import zoneinfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiolocks import ConfigurationError
from aiolocks.kinds.schedule.plan import Cron, Dues, Every, between, delay, time_zone

BERLIN = "Europe/Berlin"
YEAR = 366 * 86_400_000
START = 1_767_225_600_000  # 2026-01-01 in UTC


def ms(text: str) -> int:
    return round(dt.datetime.fromisoformat(text).timestamp() * 1000)


def shown(due: int, zone: str = BERLIN) -> str:
    return dt.datetime.fromtimestamp(due / 1000, zoneinfo.ZoneInfo(zone)).strftime("%d %H:%M%z")


def following(dues: Dues, moment: int, number: int) -> list[int]:
    found = [dues.after(moment)]
    while len(found) < number:
        found.append(dues.after(found[-1]))
    return found


CRONS = st.sampled_from([
    *("0 3 * * *", "30 2 * * *", "*/15 * * * *", "0 * * * *", "15,45 2 * * *", "*/30 2 * * *", "0 */2 * * *"),
    *("59 23 * * 0", "0 0 1 * *", "0 2-3 * * *", "*/20 30 2 * * *", "5 4 * * 1-5"),
])  # fmt: skip
ZONES = st.sampled_from([
    *(BERLIN, "UTC", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "America/St_Johns"),
    *("Africa/Casablanca", "Pacific/Apia", "Europe/Dublin"),
])  # fmt: skip
MOMENTS = st.integers(START, START + YEAR)


@given(every=st.sampled_from([0.05, 0.3, 1, 7, 60, 86_400]), moment=MOMENTS)
def test_every_is_anchored_at_the_beginning_of_1970(every: float, moment: int) -> None:
    dues = Every(every)
    assert dues.latest(moment) % round(every * 1000) == 0
    _is_in_order(dues, moment)


@given(cron=CRONS, zone=ZONES, moment=MOMENTS)
@example(cron="30 2 * * *", zone=BERLIN, moment=ms("2026-03-29T00:59:59Z"))
@example(cron="30 2 * * *", zone=BERLIN, moment=ms("2026-10-25T00:30:00Z"))
@example(cron="30 2 * * *", zone=BERLIN, moment=ms("2026-10-25T01:30:00Z"))
@example(cron="*/15 * * * *", zone=BERLIN, moment=ms("2026-10-25T00:45:00Z"))
@example(cron="30 2 * * *", zone="Australia/Lord_Howe", moment=ms("2026-10-03T15:45:00Z"))
def test_latest_and_after_agree(cron: str, zone: str, moment: int) -> None:
    _is_in_order(Cron(cron, zone), moment)


def _is_in_order(dues: Dues, moment: int) -> None:
    last, following_ = dues.latest(moment), dues.after(moment)
    assert last <= moment < following_
    assert dues.after(last) == following_
    assert dues.latest(following_) == following_
    assert dues.latest(following_ - 1) == last
    assert dues.after(last - 1) == last


@given(
    cron=st.sampled_from(["0 3 * * *", "30 2 * * *", "15,45 2 * * *", "5 4 * * 1-5"]),
    zone=ZONES,
    moment=MOMENTS,
)
def test_a_local_time_is_due_once_a_day(cron: str, zone: str, moment: int) -> None:
    wanted = {
        "0 3 * * *": {(3, 0)},
        "30 2 * * *": {(2, 30)},
        "15,45 2 * * *": {(2, 15), (2, 45)},
        "5 4 * * 1-5": {(4, 5)},
    }[cron]
    tz = zoneinfo.ZoneInfo(zone)
    found = [dt.datetime.fromtimestamp(due / 1000, tz) for due in following(Cron(cron, zone), moment, 10)]
    for one, other in itertools.pairwise(found):
        assert (one.date(), one.hour, one.minute) != (other.date(), other.hour, other.minute)
    for one in found:
        if (one.hour, one.minute) not in wanted:  # it was skipped: this is the first moment behind the gap
            before = one.astimezone(dt.UTC) - dt.timedelta(seconds=1)
            assert before.astimezone(tz).utcoffset() != one.utcoffset()
        assert one.fold == 0


@pytest.mark.parametrize(
    ("cron", "from_", "expected"),
    [
        # Summer time begins: from 02:00 to 03:00 no local time is.
        ("30 2 * * *", "2026-03-28T12:00Z", ["29 03:00+0200", "30 02:30+0200"]),
        ("15,45 2 * * *", "2026-03-28T12:00Z", ["29 03:00+0200", "30 02:15+0200"]),
        ("*/30 2 * * *", "2026-03-28T12:00Z", ["29 03:00+0200", "30 02:00+0200"]),
        ("0 2-3 * * *", "2026-03-28T12:00Z", ["29 03:00+0200", "30 02:00+0200"]),
        ("0 3 * * *", "2026-03-28T12:00Z", ["29 03:00+0200", "30 03:00+0200"]),
        ("0 * * * *", "2026-03-28T23:30Z", ["29 01:00+0100", "29 03:00+0200", "29 04:00+0200"]),
        ("*/30 * * * *", "2026-03-29T00:10Z", ["29 01:30+0100", "29 03:00+0200", "29 03:30+0200"]),
        # It ends: the local times from 02:00 to 03:00 come twice.
        ("30 2 * * *", "2026-10-24T12:00Z", ["25 02:30+0200", "26 02:30+0100"]),
        ("*/30 2 * * *", "2026-10-24T12:00Z", ["25 02:00+0200", "25 02:30+0200", "26 02:00+0100"]),
        ("0 3 * * *", "2026-10-24T12:00Z", ["25 03:00+0100", "26 03:00+0100"]),
        ("0 */2 * * *", "2026-10-24T23:00Z", ["25 02:00+0200", "25 04:00+0100"]),
        ("0 * * * *", "2026-10-24T23:30Z", ["25 02:00+0200", "25 02:00+0100", "25 03:00+0100"]),
        ("*/30 * * * *", "2026-10-25T00:10Z", ["25 02:30+0200", "25 02:00+0100", "25 02:30+0100"]),
    ],
)  # fmt: skip
def test_daylight_saving(cron: str, from_: str, expected: list[str]) -> None:
    dues = Cron(cron, BERLIN)
    found = following(dues, ms(from_), len(expected))

    assert [shown(due) for due in found] == expected
    backwards = [found[-1]]
    while len(backwards) < len(found):
        backwards.append(dues.latest(backwards[-1] - 1))
    assert backwards[::-1] == found


def test_a_zone_with_a_gap_of_half_an_hour() -> None:
    found = following(Cron("10 2 * * *", "Australia/Lord_Howe"), ms("2026-10-03T00:00Z"), 2)
    assert [shown(due, "Australia/Lord_Howe") for due in found] == ["04 02:30+1100", "05 02:10+1100"]


@given(
    dues=st.sampled_from([Every(7), Cron("*/7 * * * *", BERLIN), Cron("30 2 * * *", BERLIN)]),
    moment=MOMENTS,
    number=st.integers(1, 30),
)
def test_ticks_in_between_are_counted(dues: Dues, moment: int, number: int) -> None:
    first, *_, last = following(dues, moment, number + 1)
    assert between(dues, first, last) == number - 1
    assert between(dues, last, first) == 0


def test_no_more_than_so_many_are_counted() -> None:
    assert between(Every(1), 0, START) == 10_000
    assert between(Cron("* * * * *", "UTC"), START, START + 10**9) == 10_000


@given(name=st.text(), due=MOMENTS, gap=st.integers(50, 10**7), jitter=st.integers(0, 10**7))
def test_jitter_stays_below_half_of_the_gap(name: str, due: int, gap: int, jitter: int) -> None:
    found = delay(name, due, gap, jitter)
    assert 0 <= found <= min(jitter, gap / 2)
    assert delay(name, due, gap, jitter) == found
    assert delay(name, due, gap, 0) == 0


def test_jitter_spreads_what_is_due_at_the_same_time() -> None:
    found = [delay(f"job {number}", START, 60_000, 20_000) for number in range(1000)]
    for least in range(0, 20_000, 2_000):
        assert 50 < sum(least <= one < least + 2_000 for one in found) < 150


@pytest.mark.parametrize(
    ("cron", "tz", "error", "match"),
    [
        ("61 * * * *", "UTC", ValueError, "'61 [*] [*] [*] [*]' is not an expression: Bad minute"),
        ("every day", "UTC", ValueError, "is not an expression"),
        ("", "UTC", ValueError, "is not an expression"),
        ("0 0 30 2 *", "UTC", ValueError, "is never due|not an expression"),
        (60, "UTC", TypeError, "cron must be a str such as"),
        ("0 3 * * *", "Europe/Atlantis", ValueError, "'Europe/Atlantis' is not a known time zone"),
        ("0 3 * * *", "../etc/passwd", ValueError, "is not a known time zone"),
        ("0 3 * * *", 1, TypeError, "tz must be a name such as"),
    ],
)
def test_what_is_no_schedule_is_refused(cron, tz, error, match) -> None:
    with pytest.raises(error, match=match):
        Cron(cron, tz)


@pytest.mark.parametrize("every", [0, 0.01, -1, True, "60", float("nan")])
def test_what_is_no_period_is_refused(every) -> None:
    with pytest.raises((TypeError, ValueError), match="every must be a number of seconds or a timedelta"):
        Every(every)


def test_periods_and_time_zones_in_other_forms() -> None:
    assert Every(dt.timedelta(minutes=1)).period == 60_000
    zone = zoneinfo.ZoneInfo(BERLIN)
    assert time_zone(zone) is zone
    assert time_zone("UTC") is dt.UTC
    assert repr(Cron("0 3 * * *", zone)) == "cron='0 3 * * *' tz='Europe/Berlin'"
    assert repr(Every(0.5)) == "every=0.5"


def test_without_the_library_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ConfigurationError, match=r"pip install '\.\[schedule\]'"):
        Cron("0 3 * * *", "UTC")
    assert Every(1).latest(1500) == 1000


# -- the name of a definition --------------------------------------------------------------------------------


class Nameless(dt.tzinfo):
    """Shows where it lies in memory, as an object without a `__repr__` does."""

    def __init__(self, hours: int) -> None:
        self._offset = dt.timedelta(hours=hours)

    def utcoffset(self, _: dt.datetime | None) -> dt.timedelta:
        return self._offset

    def dst(self, _: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta()


def test_a_definition_has_the_same_name_in_every_process_and_version() -> None:
    """The register outlasts them: with another name, each schedule would forget its ticks in an update."""
    assert Every(60).definition == "0cdcca3872791c82"
    assert Cron("0 3 * * *", BERLIN).definition == "c4bb1803043f72fd"


def test_what_does_not_change_the_times_changes_no_definition() -> None:
    assert Every(60).definition == Every(60.0).definition
    assert Cron("0  3 * * * ", BERLIN).definition == Cron("0 3 * * *", zoneinfo.ZoneInfo(BERLIN)).definition
    assert Cron("0 3 * * *", "UTC").definition == Cron("0 3 * * *", zoneinfo.ZoneInfo("UTC")).definition
    one, other = Nameless(1), Nameless(1)
    assert str(one) != str(other)
    assert Cron("0 3 * * *", one).definition == Cron("0 3 * * *", other).definition


def test_what_changes_the_times_changes_the_definition() -> None:
    names = [
        *(Every(every).definition for every in (60, 60.001, 3600)),
        *(Cron(cron, "UTC").definition for cron in ("0 3 * * *", "0 4 * * *", "0 0 3 * * *")),
        *(Cron("0 3 * * *", zone).definition for zone in (BERLIN, "Europe/London", Nameless(1), Nameless(2))),
    ]
    assert len(set(names)) == len(names)
    assert all(len(name) == 16 and int(name, 16) >= 0 for name in names)
