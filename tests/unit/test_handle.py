"""The text form of a detached lease: read back whole or refused, and never shown."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiolocks.lock.lease import Handle

TOKEN = "5e" * 16
HANDLE = Handle("lock", "orders:17", TOKEN)


def forged(fields: object) -> str:
    return forged_text(json.dumps(fields))


def forged_text(text: str) -> str:
    mark, _, _ = HANDLE.encode().rpartition(".")
    return f"{mark}.{base64.urlsafe_b64encode(text.encode()).decode()}"


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_round_trip(name) -> None:
    handle = Handle("lock", name, TOKEN)

    assert Handle.decode(handle.encode(), kind="lock", name=name) == handle


@given(st.integers(min_value=0, max_value=2**53))
def test_round_trip_of_the_time_for_which_the_name_is_to_stay_taken(at_least_ms) -> None:
    handle = Handle("lock", "orders:17", TOKEN, at_least_ms)

    assert Handle.decode(handle.encode(), kind="lock", name="orders:17") == handle


def test_round_trip_of_a_fencing_token_that_the_server_does_not_have() -> None:
    handle = Handle("lock", "orders:17", TOKEN, number=1_700_000_000_000_017)

    assert Handle.decode(handle.encode(), kind="lock", name="orders:17") == handle


def test_is_one_line_of_ascii() -> None:
    text = Handle("lock", "a\n b🔒", TOKEN).encode()

    assert text.isascii()
    assert text.isprintable()
    assert " " not in text


@pytest.mark.parametrize(("kind", "name"), [("lock", "orders:18"), ("fairlock", "orders:17")])
def test_a_handle_of_another_lock_is_refused_without_telling_its_token(kind, name) -> None:
    with pytest.raises(ValueError, match=rf"is of lock 'orders:17', not of {kind} '{name}'") as caught:
        Handle.decode(HANDLE.encode(), kind=kind, name=name)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        TOKEN,
        HANDLE.encode()[1:],
        HANDLE.encode()[:-7],
        HANDLE.encode().partition(".")[2],
        forged([])[:-2],
        forged_text(""),
        forged_text("{"),
        forged(17),
        forged(["lock", "orders:17"]),
        forged(["lock", "orders:17", TOKEN, TOKEN]),
        forged(["lock", "orders:17", TOKEN, -1]),
        forged(["lock", "orders:17", TOKEN, 1.5]),
        forged(["lock", "orders:17", TOKEN, True]),
        forged(["lock", "orders:17", TOKEN, 1, -1]),
        forged(["lock", "orders:17", TOKEN, 1, 1, 1]),
        "aiolocks-lease-1.ü",
    ],
)
def test_garbage_is_refused(text) -> None:
    with pytest.raises(ValueError, match="this is not a handle that detach"):
        Handle.decode(text, kind="lock", name="orders:17")


@pytest.mark.parametrize("token", [None, 5, [TOKEN], {"a": 1}, "\ud800"])
def test_a_token_that_cannot_be_sent_is_refused(token) -> None:
    with pytest.raises(ValueError, match="this is not a handle that detach"):
        Handle.decode(forged(["lock", "orders:17", token]), kind="lock", name="orders:17")


def test_deeply_nested_garbage_is_refused() -> None:
    with pytest.raises(ValueError, match="this is not a handle that detach"):
        Handle.decode(forged_text("[" * 200_000), kind="lock", name="orders:17")


@pytest.mark.parametrize("handle", [None, b"bytes", 17, HANDLE])
def test_what_is_no_str_is_a_type_error(handle) -> None:
    with pytest.raises(TypeError, match=r"the str that detach\(\) gave, not"):
        Handle.decode(handle, kind="lock", name="orders:17")


def test_repr_does_not_tell_the_token() -> None:
    assert repr(HANDLE) == "<Handle of lock 'orders:17'>"
