"""The names that users import, their parameters and docstrings as in the contract, and no secret in a
`repr`."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
from redis.asyncio import Redis

import aiolocks
from aiolocks import (
    Backoff,
    FairLock,
    FencedRegister,
    Histogram,
    HolderInfo,
    JobLease,
    Latch,
    LeaderInfo,
    Leadership,
    Lease,
    LeaseState,
    Limits,
    Lock,
    LockError,
    LockEvent,
    LockInfo,
    MultiLock,
    RangeLease,
    RangeLock,
    RangeUpgradableLease,
    RangeWriterLease,
    RateDecision,
    RateLimit,
    Redlock,
    ReentrantLease,
    ReentrantLock,
    RWLock,
    Schedule,
    Semaphore,
    Session,
    SessionStatistics,
    SingleFlight,
    SpanLock,
    Term,
    Tick,
    TickRecord,
    Turn,
    Turnstile,
    UniqueJob,
    UpgradableLease,
    WaiterInfo,
    WriterLease,
)
from aiolocks.lock.options import DEFAULTS
from tests.kinds import declared
from tests.support.each import each
from tests.unit.fakes import generous, hold

# Frozen here, so that a change of the contract is a decision.
NAMES = {
    "JSON",
    "BackendError",
    "Backoff",
    "Bound",
    "CombinerFullError",
    "ConfigurationError",
    "Deadlock",
    "DeadlockError",
    "DeadlockedTask",
    "DuplicateJobError",
    "FairLock",
    "FencedRegister",
    "FingerprintError",
    "Histogram",
    "HolderInfo",
    "JobLease",
    "KeyspaceWakeup",
    "Latch",
    "LeaderInfo",
    "Leadership",
    "Lease",
    "LeaseState",
    "Limits",
    "Lock",
    "LockError",
    "LockEvent",
    "LockInfo",
    "LockLostError",
    "LockNotOwnedError",
    "LockTimeoutError",
    "MultiLock",
    "RWLock",
    "RangeLease",
    "RangeLock",
    "RangeUpgradableLease",
    "RangeWriterLease",
    "RateDecision",
    "RateLimit",
    "Redlock",
    "ReentrantLease",
    "ReentrantLock",
    "RemoteCallError",
    "ResultNotKeptError",
    "Schedule",
    "Semaphore",
    "Serializer",
    "Session",
    "SessionClosedError",
    "SessionStatistics",
    "SingleFlight",
    "SpanLease",
    "SpanLock",
    "StaleFenceError",
    "Term",
    "Tick",
    "TickRecord",
    "Turn",
    "Turnstile",
    "UniqueJob",
    "UpgradableLease",
    "WaiterInfo",
    "WriterLease",
    "__version__",
    "current_lease",
    "ensure_held",
    "name_of",
}
COMMON = {
    "ttl": 30.0,
    "blocking_timeout": None,
    "auto_renew": True,
    "max_hold": None,
    "on_lost": "cancel",
    "metadata": None,
    "grace": 0.0,
}
CLASSES = [getattr(aiolocks, name) for name in sorted(NAMES) if isinstance(getattr(aiolocks, name), type)]
ACQUIRABLE = "name of acquire try_acquire locked adopt __aenter__ __aexit__ __call__"
LEASE = (
    "name kind ttl metadata token fencing_token state remaining ensure_held owned extend release "
    "wait_lost wait_released detach __aenter__ __aexit__"
)
MEMBERS = {
    Lock: ACQUIRABLE,
    FairLock: ACQUIRABLE,
    MultiLock: f"{ACQUIRABLE} names",
    Redlock: ACQUIRABLE,
    ReentrantLock: ACQUIRABLE,
    Semaphore: f"{ACQUIRABLE} available resize value fair",
    SpanLock: ACQUIRABLE,
    RWLock: "name of reader upgradable writer",
    RangeLock: "name of reader upgradable writer",
    Lease: LEASE,
    ReentrantLease: f"{LEASE} depth",
    UpgradableLease: f"{LEASE} upgrade",
    WriterLease: f"{LEASE} downgrade",
    RangeLease: f"{LEASE} shrink",
    RangeUpgradableLease: f"{LEASE} shrink upgrade",
    RangeWriterLease: f"{LEASE} shrink downgrade",
    SingleFlight: "do turn",
    Turn: "first fencing_token __aenter__ __aexit__",
    Latch: "name count ttl count_down wait reset __aenter__ __aexit__",
    Turnstile: "name window enter __aenter__ __aexit__",
    RateLimit: (
        "name of limit per burst acquire try_acquire peek all_of weighing __aenter__ __aexit__ __call__"
    ),
    RateDecision: "settle",
    FencedRegister: "name write read",
    Leadership: f"{ACQUIRABLE} run leader observe candidates is_leader",
    Term: f"{LEASE} value grace ending proclaim step_down",
    UniqueJob: "key ttl limit run try_run enqueue perform try_perform",
    JobLease: LEASE,
    Schedule: "name run trigger guard history __call__ __aenter__ __aexit__",
    Session: "of aclose statistics inspect force_release __aenter__ __aexit__",
    Backoff: "delay",
}
for more in declared("PUBLIC"):
    NAMES |= {cls.__name__ for cls in more}
    CLASSES += more
    MEMBERS |= more
EACH_MEMBER = [(cls, name) for cls, names in MEMBERS.items() for name in names.split()]
STATISTICS = {
    "leases_held",
    "waiters",
    "acquisitions",
    "timeouts",
    "losses",
    "releases_unconfirmed",
    "commands_sent",
    "wakeups",
    "wait_seconds",
    "hold_seconds",
    "cached",
    "cache_hits",
    "recalls",
}
RECORD = {
    *("outcome", "due", "began", "ended", "duration", "attempt", "missed"),
    *("fencing_token", "error", "host", "pid", "metadata"),
}
HOLDER = {
    "names",
    "keys",
    "lease_id",
    "fencing_token",
    "remaining",
    "held_since",
    "held_for",
    "host",
    "pid",
    "task",
    "metadata",
    "permits",
    "depth",
    "mode",
    "value",
    "span",
    "cached",
}

LEADER = {"name", "fencing_token", "value", "host", "pid", "task", "metadata", "elected_at", "remaining"}


def parameters(function: Any) -> dict[str, Any]:
    """The keyword-only ones, with their defaults."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def positional(function: Any) -> list[str]:
    found = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in found if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]


def test_exports_the_names_of_the_contract_and_no_others() -> None:
    assert set(aiolocks.__all__) == NAMES
    in_order = sorted(NAMES, key=lambda name: (not name.isupper(), name))  # constants first
    assert in_order == list(aiolocks.__all__)


def test_everything_else_at_the_top_is_a_module() -> None:
    others = {name: value for name, value in vars(aiolocks).items() if name not in NAMES and name[0] != "_"}

    assert all(inspect.ismodule(value) for value in others.values())


@each("cls", CLASSES)
def test_every_public_class_is_described_and_says_where_it_is_from(cls) -> None:
    doc = inspect.getdoc(cls)

    assert doc is not None
    assert doc.splitlines()[0].endswith((".", ".`"))
    assert cls.__module__.startswith("aiolocks")


@each("cls, name", EACH_MEMBER)
def test_every_member_of_the_contract_is_there_and_described(cls, name) -> None:
    member = inspect.getattr_static(cls, name)

    assert name.startswith("__") or inspect.getdoc(member)


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (SessionStatistics, STATISTICS),
        (Histogram, {"bounds", "counts", "total"}),
        (
            LockInfo,
            {"kind", "name", "holders", "waiters", "value", "problem", "waiting", "kept_for", "kept_until"},
        ),
        (WaiterInfo, {"host", "pid", "waited_for", "waiting_since"}),
        (LeaderInfo, LEADER),
        (Tick, {"name", "due", "fencing_token", "missed", "attempt", "lease"}),
        (TickRecord, RECORD),
        (HolderInfo, HOLDER),
        (
            LockEvent,
            {
                "kind",
                "name",
                "fencing_token",
                "seconds",
                "reason",
                "was",
                "interval",
                "items",
                "pressure",
                "cached",
                "lease",
                "holders",
            },
        ),
    ],
)
def test_the_fields_of_a_result_are_those_of_the_contract_and_described(cls, names) -> None:
    assert {field.name for field in dataclasses.fields(cls)} == names
    assert all(f"{name}: " in cls.__doc__ for name in names)


@pytest.mark.parametrize(
    "cls", [FairLock, Limits, Lock, MultiLock, RangeLock, RWLock, Redlock, ReentrantLock, Semaphore]
)
def test_the_options_of_all_kinds_are_those_of_lock(cls) -> None:
    """Signatures repeat them, so that `help` and editors show them; the texts stand with `Lock` alone."""
    of_lock, own = inspect.signature(Lock).parameters, inspect.signature(cls).parameters
    common = [name for name in of_lock if name in own and name in DEFAULTS]
    text = "" if cls is Lock else cls.__doc__.partition("Args:")[2]

    assert set(common) >= set(COMMON)
    assert [name for name in own if name in common] == common
    assert {name: own[name] for name in common} == {name: of_lock[name] for name in common}
    assert {name: own[name].default for name in common} == {name: DEFAULTS[name] for name in common}
    assert not [
        name
        for name in common
        if f" {name}: " in text
        and (cls, name) not in ((ReentrantLock, "metadata"), (ReentrantLock, "confirm"))
    ]


def test_lock_takes_what_the_contract_says() -> None:
    assert positional(Lock) == ["client", "name"]
    assert parameters(FairLock) == COMMON | {"replicas": 0, "at_least": 0.0, "confirm": True}
    assert parameters(Lock) == parameters(FairLock) | {"cache": 0.0}


def test_redlock_takes_what_the_contract_says() -> None:
    assert positional(Redlock) == ["clients", "name"]
    assert parameters(Redlock) == {"node_timeout": None, **COMMON}


def test_leadership_takes_what_the_contract_says() -> None:
    assert positional(Leadership) == ["client", "name"]
    assert parameters(Leadership) == {
        "ttl": 10.0,
        "grace": None,
        "value": None,
        "blocking_timeout": None,
        "max_hold": None,
        "metadata": None,
        "replicas": 0,
    }


def test_schedule_takes_what_the_contract_says() -> None:
    assert positional(Schedule) == ["client", "name"]
    assert parameters(Schedule) == {
        "cron": None,
        "every": None,
        "tz": "UTC",
        "overlap": "skip",
        "misfire": "latest",
        "redo": 0,
        "at_most": None,
        "jitter": 0.0,
        "ttl": 30.0,
        "metadata": None,
    }


def test_session_takes_what_the_contract_says() -> None:
    assert positional(Session) == ["client"]
    assert parameters(Session) == {
        "prefix": "aiolocks",
        "wakeup": "auto",
        "protocol": None,
        "backoff": Backoff(),
        "command_timeout": 5.0,
        "fence_retention": 600.0,
        "metadata": None,
        "largest_metadata": 65_536,
        "largest_value": 1_000_000,
        "guard": "log",
        "on_deadlock": "report",
        "listeners": (),
    }


def test_backoff_takes_what_the_contract_says() -> None:
    assert parameters(Backoff) == {"initial": 0.004, "maximum": 0.064, "multiplier": 2.0, "jitter": 1.0}


def test_acquire_waits_as_the_lock_says_unless_told_otherwise() -> None:
    assert set(parameters(Lock.acquire)) == {"blocking_timeout", "steal"}
    assert parameters(Lock.try_acquire) == {}
    assert positional(Lock.acquire) == positional(Lock.try_acquire) == ["self"]


def test_states_are_those_of_the_contract() -> None:
    assert [state.name for state in LeaseState] == ["HELD", "UNKNOWN", "LOST", "RELEASED", "DETACHED"]


@pytest.mark.parametrize("cls", [Lock, Lease, Backoff, SessionStatistics, Histogram, LockEvent])
def test_takes_no_attributes_that_are_not_its_own(cls) -> None:
    assert "__dict__" not in dir(cls)


def test_errors_are_one_tree() -> None:
    assert all(issubclass(cls, LockError) for cls in CLASSES if issubclass(cls, Exception))


async def test_no_repr_tells_a_token_or_a_password(make_session, transport) -> None:
    client = Redis(password="sentinel-password", username="sentinel-user")
    session = make_session(listeners=())
    lease = await hold(session, transport)
    handle = lease.detach()
    transport.answer = generous
    lock = Lock(session, "name")
    adopted = await lock.adopt(handle)
    shown = [lock, session, lease, adopted, adopted._possession, Lock(client, "name"), Session(client)]
    shown += transport.sent

    text = " ".join(map(repr, shown))

    for secret in (lease.token, adopted.token, handle, "sentinel-password"):
        assert secret not in text
