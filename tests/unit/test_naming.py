from __future__ import annotations

import datetime as dt
import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiolocks.lock.naming import NameTemplate, text_of

template = functools.partial(NameTemplate, otherwise="do something else")


def test_values_stand_where_the_fields_are() -> None:
    made = template("{shop}/order:{order_id}:{shop}!")
    assert made.fields == ("shop", "order_id")
    assert made.fill({"shop": "x", "order_id": "7", "more": "-"}) == "x/order:7:x!"
    assert template("nightly import").fill({}) == "nightly import"
    assert template("{{shop}}:{order_id}").fill({"order_id": "{}"}) == "{shop}:%7B%7D"
    assert repr(made) == "<NameTemplate '{shop}/order:{order_id}:{shop}!'>"


def test_a_value_cannot_reach_into_the_next() -> None:
    made = template("{a}:{b}")
    names = {
        made.fill({"a": a, "b": b}) for a, b in [("a:b", "c"), ("a", "b:c"), ("a%3Ab", "c"), ("a", ":c")]
    }
    assert len(names) == 4


numbers = (
    st.integers()
    | st.floats(allow_nan=False)
    | st.decimals(allow_nan=False, places=3)
    | st.decimals(allow_nan=False, min_value=-10, max_value=10)
)


@given(numbers, numbers)
def test_numbers_have_the_same_text_if_they_are_equal(a: Any, b: Any) -> None:
    assert text_of(a) == text_of(b) if a == b else True
    if type(a) is type(b):
        assert (text_of(a) == text_of(b)) == (a == b)
    assert text_of(a) == text_of(type(a)(text_of(a)))


zones = st.builds(
    lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)), st.integers(-24 * 60 + 1, 24 * 60 - 1)
)
moments = st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1), timezones=zones)  # noqa: DTZ001


@given(moments, moments, zones)
def test_moments_have_the_same_text_only_if_they_are_equal(a: Any, b: Any, zone: Any) -> None:
    assert text_of(a) == text_of(a.astimezone(zone))
    assert (text_of(a) == text_of(b)) == (a == b)
    assert dt.datetime.fromisoformat(text_of(a)) == a


values = st.text(max_size=6) | st.text(alphabet="ab:%3A_. ", max_size=6)


@given(st.sampled_from(["{a}:{b}", "{a} x{b}", "x{a}/%/{b}", "{a}_:_{b}"]), values, values, values, values)
def test_names_are_the_same_only_if_all_values_are(text: str, a: str, b: str, c: str, d: str) -> None:
    made = template(text)
    same = made.fill({"a": a, "b": b}) == made.fill({"a": c, "b": d})
    assert same == ((a, b) == (c, d))


def test_a_lone_surrogate_is_a_value() -> None:
    assert template("{a}").fill({"a": "\ud800"}) == "%ED%A0%80"


@pytest.mark.parametrize("text", ["{}", "{0}", "{a.b}", "{a[0]}", "{a!r}", "{a:>3}", "{a b}"])
def test_a_field_is_the_name_of_a_parameter(text: str) -> None:
    with pytest.raises(ValueError, match=r"name of a parameter in braces, not \{"):
        template(text)


@pytest.mark.parametrize("text", ["{a}{b}", "{a}-{b}", "{a}:{b}x3{c}", "{a}%{b}"])
def test_fields_that_run_into_each_other_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="between two fields"):
        template(text)


@pytest.mark.parametrize("text", ["order:{order_id", "order_id}"])
def test_a_brace_that_is_not_closed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a template"):
        template(text)


def test_a_name_is_checked() -> None:
    with pytest.raises(ValueError, match="empty"):
        template("")
    with pytest.raises(TypeError, match="str"):
        template(7)  # type: ignore[arg-type]


def test_what_is_too_long_is_no_name() -> None:
    with pytest.raises(ValueError, match="1024 bytes"):
        template("{a}").fill({"a": "é" * 400})
