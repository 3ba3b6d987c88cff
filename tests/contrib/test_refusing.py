"""The answer to a client that could not have a lock, and when it should come again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from aiolocks import BackendError, LockTimeoutError, SessionClosedError
from aiolocks.contrib._holds import _KEYS, Holds
from aiolocks.contrib._refusing import Conflicting, unavailable


def refused(remaining: float | None) -> LockTimeoutError:
    return LockTimeoutError("Lock", "secret", blocking_timeout=1, remaining=remaining)


@pytest.mark.parametrize(
    ("measured", "remaining", "told"),
    [
        (None, None, "1"),
        (None, 29.9, "1"),
        (0.05, 29.9, "1"),
        (1.0, None, "1"),
        (1.001, 29.9, "2"),
        (12.3, None, "13"),
        (100.0, 29.9, "30"),
        (100.0, 0.2, "1"),
        (100.0, 0.0, "1"),
    ],
)
def test_when_to_come_again_is_measured(measured: float | None, remaining: float | None, told: str) -> None:
    assert Conflicting().refusal(refused(remaining), measured).headers == {"Retry-After": told}


@pytest.mark.parametrize(
    ("retry_after", "told"),
    [
        (7, "7"),
        (0, "0"),
        (2.1, "3"),
        (timedelta(minutes=2), "120"),
        (lambda error: error.remaining / 2, "15"),
        (lambda error: None, "5"),
    ],
)
def test_when_to_come_again_can_be_chosen(retry_after: Any, told: str) -> None:
    refusal = Conflicting(retry_after=retry_after).refusal(refused(29.9), 5.0)
    assert refusal.headers == {"Retry-After": told}


def test_a_function_must_return_seconds() -> None:
    with pytest.raises(TypeError, match="retry_after must be a number of seconds"):
        Conflicting(retry_after=lambda error: "soon").refusal(refused(None), None)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("status", [409, 423, 429, 503])
def test_status_and_text_can_be_chosen(status: Any) -> None:
    refusal = Conflicting(status=status, detail="Bitte warten.").refusal(refused(None), None)
    assert (refusal.status, refusal.detail) == (status, "Bitte warten.")


@pytest.mark.parametrize("error", [BackendError("no answer"), SessionClosedError("closed")])
def test_where_nobody_can_tell_it_is_503_soon(error: Any) -> None:
    refusal = unavailable(error)
    assert (refusal.status, refusal.headers) == (503, {"Retry-After": "1"})
    assert refusal.detail.startswith("Nothing was done")


# -- what is measured


def test_the_median_is_that_of_the_latest_holds_of_the_first_key_that_was_held() -> None:
    holds = Holds()
    assert holds.median("order:7", "order:{order_id}") is None
    for seconds in (1.0, 9.0, 2.0):
        holds.add(seconds, "order:8", "order:{order_id}")
    assert holds.median("order:8", "order:{order_id}") == 2.0
    assert holds.median("order:7", "order:{order_id}") == 2.0
    for _ in range(15):
        holds.add(30.0, "order:8")
    assert holds.median("order:8") == 30.0


def test_it_remembers_so_many_names_and_no_more() -> None:
    holds = Holds()
    for number in range(_KEYS * 2):
        holds.add(1.0, f"order:{number}", "order:{order_id}")
    assert len(holds._of) == _KEYS
    assert holds.median("order:0") is None
    assert holds.median(f"order:{_KEYS * 2 - 1}") == holds.median("order:{order_id}") == 1.0
    assert {len(latest) for latest in holds._of.values()} == {1, 15}
