"""The conditions for the demo's success, and its drawings."""

from __future__ import annotations

import pytest

from aiolocks.cli.demo import checks
from aiolocks.cli.demo.checks import Check
from aiolocks.cli.demo.scene import Scene
from aiolocks.cli.demo.timeline import ASCII, UNICODE, Activity, Timeline


@pytest.mark.parametrize(
    ("check", "seen"),
    [
        (checks.lossy(391, 1000), None),
        (checks.lossy(1000, 1000), "the counter is 1000"),
        (checks.lossy(0, 1000), "the counter is 0"),
        (checks.exact(1000, 1000), None),
        (checks.exact(999, 1000), "it is 999"),
        (checks.exact(1001, 1000), "it is 1001"),
        (checks.rising([1, 2, 5], 3), None),
        (checks.rising([1, 2], 3), "there are 2"),
        (checks.rising([1, 2, 2], 3), "entry 2 had 2 and entry 3 2"),
        (checks.rising([5, 2, 6], 3), "entry 1 had 5 and entry 2 2"),
        (checks.alone([(1, 2), (2, 3), (0, 1)]), None),
        (checks.alone([(1, 2), (1.9, 3), (2.9, 4)]), "2 entered while another was inside"),
        (checks.patient(10, 1, 11.1), None),
        (checks.patient(10, 1, 10.9), "it was entered 0.900 s after a lease of 1 s had been asked for"),
        (checks.prompt(10, 1, 11.5), None),
        (checks.prompt(10, 1, 12.5), "it took 2.500 s"),
        (checks.larger(1, 2), None),
        (checks.larger(2, 2), "2, then 2"),
        (checks.told(cancelled=True, error="LockLostError"), None),
        (checks.told(cancelled=False, error="LockLostError"), "it was not cancelled, with LockLostError"),
        (checks.told(cancelled=True, error=None), "it was cancelled, with no error"),
    ],
)
def test_a_check_says_what_was_seen(check: Check, seen: str | None) -> None:
    assert check.passed is (seen is None)
    assert str(check) == (check.text if seen is None else f"{check.text} - but {seen}")


@pytest.mark.parametrize(
    ("first", "successor", "late", "value", "passed"),
    [
        (True, True, False, b"new", [True, True, True]),
        (True, True, True, b"late", [True, False, False]),
        (False, True, False, b"new", [False, True, True]),
        (True, False, False, None, [False, True, False]),
    ],
)
def test_fenced(first: bool, successor: bool, late: bool, value: bytes | None, passed: list[bool]) -> None:
    found = checks.fenced(first=first, successor=successor, late=late, value=value, expected="new")
    assert [check.passed for check in found] == passed


# -- the timeline


def test_what_a_worker_did_is_a_row() -> None:
    timeline = Timeline(100, length=10)
    timeline.begin(1, Activity.WAITS, 101)
    timeline.begin(1, Activity.HOLDS, 103)
    timeline.begin(1, Activity.FROZEN, 105)
    timeline.happened(1, 105)
    timeline.end(1, 108)
    assert timeline.row(1, width=10, now=110, glyphs=ASCII) == " ..##zzz  ".replace("##z", "#Xz")
    assert timeline.row(2, width=10, now=110, glyphs=ASCII) == " " * 10


def test_it_grows_with_the_time() -> None:
    timeline = Timeline(0, length=4)
    timeline.begin(1, Activity.HOLDS, 1)
    assert timeline.row(1, width=4, now=2, glyphs=ASCII) == " #  "
    assert timeline.row(1, width=4, now=4, glyphs=ASCII) == " ###"
    assert timeline.row(1, width=4, now=8, glyphs=ASCII) == "=###"  # and shrinks what is past its length
    timeline.end(1, 8)
    timeline.close(8)
    assert timeline.row(1, width=4, now=80, glyphs=ASCII) == "=###"
    assert timeline.seconds(80) == 8


def test_short_holds_are_shown_by_their_share() -> None:
    timeline = Timeline(0, length=3)
    timeline.held(1, [(0, 0.1), (0.5, 0.6), (1, 1.5), (2, 3)])
    assert timeline.row(1, width=3, now=3, glyphs=UNICODE) == "▂▄█"


def test_an_event_at_the_end_is_seen() -> None:
    timeline = Timeline(0, length=1)
    timeline.happened(1, 5)
    timeline.close(5)
    assert timeline.row(1, width=5, now=9, glyphs=UNICODE) == "    ✗"


# -- the scene


def lines(scene: Scene, width: int = 60) -> list[str]:
    return [line.plain for line in scene.body(width=width, glyphs=ASCII)]


def test_progress_is_shown_until_the_act_is_over() -> None:
    scene = Scene(1, "Count", (1, 2), done={1: 0.5}, notes={1: "125 of 250"})
    assert lines(scene) == [f"   worker 1  {'#' * 17}{' ' * 17}  125 of 250", "   worker 2"]
    scene.findings.append("A finding that is longer than the screen is wide, and so has to go on below.")
    scene.checks += [Check("this", passed=True), Check("that", passed=False, seen="something else")]
    assert lines(scene) == [
        "   A finding that is longer than the screen is wide, and so",
        "   has to go on below.",
        "   ok this",
        "   NO that - but something else",
    ]
    assert [str(check) for check in scene.failed] == ["that - but something else"]


def test_a_timeline_stays_and_is_explained() -> None:
    timeline = Timeline(0, length=1)
    timeline.held(1, [(0, 1)])
    timeline.close(1)
    scene = Scene(
        3, "Kill", (1,), timeline=timeline, frozen=("dead", "killed"), checks=[Check("this", passed=True)]
    )
    assert lines(scene) == [
        f"   worker 1  {'#' * 34}",
        "             1.0 s in all   # holds   . waits   z dead   X killed",
        "   ok this",
    ]
