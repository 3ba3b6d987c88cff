"""How names become labels: as the user says, and never by themselves."""

from __future__ import annotations

import asyncio
import time

import pytest

from aiolocks.contrib._labels import OTHER, bounds, labeller


def labels(names: object, *given: str) -> list[str]:
    label = labeller(names, raw_names=False)
    return [label(name) for name in given]


def test_nothing_said_nothing_told() -> None:
    assert labels(None, "order:17", "x") == [OTHER, OTHER]


def test_raw_names_are_asked_for() -> None:
    assert labeller(None, raw_names=True)("order:17") == "order:17"
    with pytest.raises(ValueError, match="not both"):
        labeller({"a": "b"}, raw_names=True)
    with pytest.raises(TypeError, match="raw_names must be a bool"):
        labeller(None, raw_names="order:*")


def test_the_first_pattern_that_matches_counts() -> None:
    names = {"order:*:items": "items", "order:*": "order", "*": "rest"}

    assert labels(names, "order:17:items", "order:17", "order", "") == ["items", "order", "rest", "rest"]


def test_a_pattern_matches_the_whole_name() -> None:
    names = {"order:*": "order", "exact": "exact"}

    assert labels(names, "my order:17", "order:17\nand more", "exact", "exactly", "inexact") == [
        OTHER,
        "order",
        "exact",
        OTHER,
        OTHER,
    ]


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("order:{id}", ["order:17", "order:", "order:{id}"], ["orders:17"]),
        ("{tenant}:order:{order_id}", ["a:order:1", ":order:"], ["order:1"]),
        ("{{order}}:*", ["{order}:17"], ["order:17", "{{order}}:17"]),
        ("{{user:{id}}}:cart", ["{user:17}:cart"], ["user:17:cart", "{user:17:cart"]),
        ("a*b*c", ["abc", "aXbYc", "abbcc", "abcbc"], ["acb", "ab", "bc"]),
        ("*.lock", [".lock", "a.lock", "a.lock.lock"], ["alock", "a.lock "]),
        ("a**b", ["ab", "aXb"], ["a"]),
        ("[ab]?(c|d).+$", ["[ab]?(c|d).+$"], ["a", "acd", "[ab]c"]),
        ("", [""], ["a"]),
        ("*", ["", "\n", "\0", "é"], []),
    ],
)
def test_wildcards_are_the_only_signs(pattern: str, matching: list[str], other: list[str]) -> None:
    assert labels({pattern: "yes"}, *matching) == ["yes"] * len(matching)
    assert labels({pattern: "yes"}, *other) == [OTHER] * len(other)


def test_patterns_alone_are_their_own_labels() -> None:
    names = ["order:{id}", "user:*"]

    assert labels(names, "order:17", "user:1", "x") == ["order:{id}", "user:*", OTHER]
    assert labels([], "x") == labels({}, "x") == [OTHER]


def test_a_function_decides() -> None:
    assert labels(lambda name: name.partition(":")[0] or None, "order:17", ":17") == ["order", OTHER]


@pytest.mark.parametrize("wrong", [ZeroDivisionError("broken"), 17, b"order"])
def test_a_function_that_fails_is_told_of_and_does_no_harm(wrong, caplog) -> None:
    def function(name: str) -> object:
        if isinstance(wrong, Exception):
            raise wrong
        return wrong

    assert labels(function, "a\nb") == [OTHER]
    assert r"no label for the lock 'a\nb'" in caplog.text


@pytest.mark.parametrize("names", ["order:*", 17, [17], {"a": 17}, {17: "a"}])
def test_what_are_no_patterns(names) -> None:
    with pytest.raises(TypeError, match="names must be"):
        labeller(names, raw_names=False)


@pytest.mark.parametrize("pattern", ["{", "}", "a{b c}", "{}", "{17}", "a{{b}", "{user:*}:cart", "{a"])
def test_a_brace_that_is_neither_is_told_of(pattern) -> None:
    with pytest.raises(ValueError, match="for braces; not"):
        labeller([pattern], raw_names=False)


def test_no_name_takes_long() -> None:
    # Where each wildcard tries all lengths that the others leave, this takes hours.
    label = labeller({"*a*a*a*a*a*a*a*ab": "never"}, raw_names=False)
    begun = time.process_time()
    assert label("a" * 1024) == OTHER
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("given", [[], [1, 1], [2, 1], [float("nan")], [1, float("inf")]])
def test_bounds_rise(given) -> None:
    with pytest.raises(ValueError, match="wait_buckets must be finite numbers of seconds"):
        bounds("wait_buckets", given)


@pytest.mark.parametrize("given", [["1"], [True], [None], "1", 17])
def test_bounds_are_numbers(given) -> None:
    with pytest.raises(TypeError, match="wait_buckets must be numbers of seconds"):
        bounds("wait_buckets", given)


def test_bounds_are_taken_as_given() -> None:
    assert bounds("wait_buckets", [0.5, 1, 30]) == (0.5, 1.0, 30.0)


async def test_names_that_raises_is_one_traceback_for_all_events(caplog: pytest.LogCaptureFixture) -> None:
    def broken(name: str) -> str:
        raise KeyError(name)

    assert labels(broken, *(f"order:{number}" for number in range(2000))) == [OTHER] * 2000
    await asyncio.sleep(0.6)
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "no label for 2000 events of locks: names= has raised KeyError, and the label is 'other': 'order:0', "
    )
    assert record.getMessage().endswith("'order:9' and 1990 more")
    assert record.exc_info is not None
