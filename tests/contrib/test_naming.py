from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiolocks.contrib._naming import NameTemplate
from aiolocks.contrib._refusing import Refusal, retry_after


def test_values_stand_where_the_fields_are() -> None:
    template = NameTemplate("{shop}/order:{order_id}:{shop}!")
    assert template.fields == ("shop", "order_id")
    assert template.fill({"shop": "x", "order_id": "7", "more": "-"}) == "x/order:7:x!"
    assert NameTemplate("nightly import").fill({}) == "nightly import"
    assert NameTemplate("{{shop}}:{order_id}").fill({"order_id": "{}"}) == "{shop}:%7B%7D"
    assert repr(template) == "<NameTemplate '{shop}/order:{order_id}:{shop}!'>"


def test_a_value_cannot_reach_into_the_next() -> None:
    template = NameTemplate("{a}:{b}")
    names = {
        template.fill({"a": a, "b": b}) for a, b in [("a:b", "c"), ("a", "b:c"), ("a%3Ab", "c"), ("a", ":c")]
    }
    assert len(names) == 4


values = st.text(max_size=6) | st.text(alphabet="ab:%3A_. ", max_size=6)


@given(st.sampled_from(["{a}:{b}", "{a} x{b}", "x{a}/%/{b}", "{a}_:_{b}"]), values, values, values, values)
def test_names_are_the_same_only_if_all_values_are(text: str, a: str, b: str, c: str, d: str) -> None:
    template = NameTemplate(text)
    same = template.fill({"a": a, "b": b}) == template.fill({"a": c, "b": d})
    assert same == ((a, b) == (c, d))


def test_a_lone_surrogate_is_a_value() -> None:
    assert NameTemplate("{a}").fill({"a": "\ud800"}) == "%ED%A0%80"


@pytest.mark.parametrize("text", ["{}", "{0}", "{a.b}", "{a[0]}", "{a!r}", "{a:>3}", "{a b}"])
def test_a_field_is_the_name_of_a_parameter(text: str) -> None:
    with pytest.raises(ValueError, match=r"name of a parameter in braces, not \{"):
        NameTemplate(text)


@pytest.mark.parametrize("text", ["{a}{b}", "{a}-{b}", "{a}:{b}x3{c}", "{a}%{b}"])
def test_fields_that_run_into_each_other_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="between two fields"):
        NameTemplate(text)


@pytest.mark.parametrize("text", ["order:{order_id", "order_id}"])
def test_a_brace_that_is_not_closed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a template"):
        NameTemplate(text)


def test_a_name_is_checked() -> None:
    with pytest.raises(ValueError, match="empty"):
        NameTemplate("")
    with pytest.raises(TypeError, match="str"):
        NameTemplate(7)  # type: ignore[arg-type]


def test_what_is_too_long_is_the_clients_mistake() -> None:
    with pytest.raises(Refusal) as refused:
        NameTemplate("{a}").fill({"a": "é" * 400})
    assert (refused.value.status, refused.value.headers) == (400, {})


@pytest.mark.parametrize(
    ("remaining", "seconds"), [(None, 1), (0.0, 1), (0.2, 1), (1.0, 1), (1.001, 2), (29.97, 30)]
)
def test_retry_after_is_rounded_up(remaining: float | None, seconds: int) -> None:
    assert retry_after(remaining) == seconds
