"""The errors: one tree, messages that say what is the matter, and a journey to another process and back."""

from __future__ import annotations

import copy
import pickle

import pytest

from aiolocks import (
    BackendError,
    ConfigurationError,
    DeadlockError,
    HolderInfo,
    LockError,
    LockLostError,
    LockNotOwnedError,
    LockTimeoutError,
    ResultNotKeptError,
    SessionClosedError,
    errors,
)

EXAMPLES = [
    LockTimeoutError("Lock", "orders", blocking_timeout=2, remaining=1.5),
    LockTimeoutError("Lock", "orders", blocking_timeout=0.5, remaining=None),
    LockTimeoutError("Lock", "orders", blocking_timeout=0, remaining=None),
    LockTimeoutError(
        "Lock",
        "orders",
        blocking_timeout=2,
        remaining=1.5,
        holders=[
            HolderInfo(
                lease_id="1", host="host1", pid=42, task="Task-7", held_for=12.34, metadata={"order": 17}
            )
        ],
    ),
    LockTimeoutError(
        "Semaphore",
        "orders",
        blocking_timeout=2,
        remaining=None,
        holders=[
            HolderInfo(lease_id="1", metadata={"text": "x" * 300}),
            *(HolderInfo(lease_id="2", host="host2") for _ in range(3)),
        ],
    ),
    LockTimeoutError("Lock", "orders", blocking_timeout=2, remaining=1.5, silent=0.94),
    LockTimeoutError("Lock", "orders", blocking_timeout=2, remaining=1.5, by_itself=True),
    LockTimeoutError("Lock", "orders", blocking_timeout=2, remaining=5, kept=True),
    LockTimeoutError("RWLock.writer", "orders", blocking_timeout=2, remaining=None, by_itself=True),
    DeadlockError("Semaphore", "orders", held="Semaphore 'orders'"),
    LockLostError("Lock", "orders", "its ttl passed"),
    LockNotOwnedError("Lock", "orders", "it was adopted before"),
    SessionClosedError("the session is closed"),
    ResultNotKeptError("k", "builtins.TypeError: no", here=True, value=17),
    ResultNotKeptError("k", "builtins.TypeError: no"),
    ConfigurationError("wakeup='tracking' is not available"),
    BackendError("Redis did not answer within 5 s"),
]

NOT_KEPT = (
    "the call of SingleFlight key 'k' was done, but its value could not be kept for others "
    "(builtins.TypeError: no)"
)

MESSAGES = [
    "Lock 'orders' was not acquired within 2 s: it stays taken for 1.500 s more unless renewed",
    "Lock 'orders' was not acquired within 0.5 s: another holder has it, or earlier waiters go first",
    "Lock 'orders' was not acquired at the first try: another holder has it, or earlier waiters go first",
    (
        "Lock 'orders' was not acquired within 2 s: held for 12.3 s by host1 pid 42 task 'Task-7' {'order': "
        "17}; the lease has 1.500 s left unless renewed"
    ),
    "Semaphore 'orders' was not acquired within 2 s: held by an unknown host {'text': '"
    + "x" * 190
    + "…, by host2, by host2, and others",
    (
        "Lock 'orders' was not acquired within 2 s: it stays taken for 1.500 s more unless renewed; Redis "
        "has not answered for 0.9 s"
    ),
    (
        "Lock 'orders' was not acquired within 2 s: held by this task itself; pass the lease on, or use a "
        "ReentrantLock; the lease has 1.500 s left unless renewed"
    ),
    "Lock 'orders' was not acquired within 2 s: kept by at_least for 5.000 s more; nobody holds it",
    (
        "RWLock.writer 'orders' was not acquired within 2 s: held by this task itself; pass the lease on, or "
        "take the upgradable lock and its upgrade()"
    ),
    (
        "the wait for Semaphore 'orders' would never end: this task itself holds Semaphore 'orders', which "
        "excludes it; pass the lease on"
    ),
    "Lock 'orders' was lost: its ttl passed",
    "Lock 'orders' is not owned: it was adopted before",
    "the session is closed",
    f"{NOT_KEPT}: this error has it as its value",
    f"{NOT_KEPT}: only the process that made it has it",
    "wakeup='tracking' is not available",
    "Redis did not answer within 5 s",
]


@pytest.mark.parametrize(
    ("error", "also"),
    [(LockTimeoutError, TimeoutError), (ConfigurationError, ValueError), (LockError, Exception)],
)
def test_is_also_the_error_that_one_would_expect(error, also) -> None:
    assert issubclass(error, also)


def test_there_is_one_base_and_everything_is_exported() -> None:
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
    }

    assert set(errors.__all__) == defined
    assert all(issubclass(getattr(errors, name), LockError) for name in defined)


@pytest.mark.parametrize(
    ("error", "message"),
    list(zip(EXAMPLES, MESSAGES, strict=True)),
)
def test_message(error, message) -> None:
    assert str(error) == message


def test_a_name_is_quoted_so_that_it_forges_no_line_of_a_log() -> None:
    assert "\n" not in str(LockLostError("Lock", "a\nWARNING all is well", "reason"))


def pickled(error: LockError) -> LockError:
    back = pickle.loads(pickle.dumps(error))
    assert isinstance(back, LockError)
    return back


@pytest.mark.parametrize("travel", [pickled, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("error", EXAMPLES, ids=str)
def test_survives_a_journey(error, travel) -> None:
    back = travel(error)

    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_takes_its_notes_along() -> None:
    error = LockLostError("Lock", "orders", "reason")
    error.add_note("a note")

    assert pickled(error).__notes__ == ["a note"]
