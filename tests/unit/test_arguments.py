"""Bad arguments: refused when the object is made, without an event loop and so before any I/O.

Each message says what was given and what is allowed.
"""

from __future__ import annotations

import enum
import functools
import math
import warnings
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import valkey
import valkey.asyncio
from redis import Redis as BlockingRedis
from redis import RedisCluster as BlockingRedisCluster
from redis.asyncio import Redis

from aiolocks import (
    Backoff,
    FairLock,
    KeyspaceWakeup,
    Lock,
    RateLimit,
    ReentrantLock,
    RWLock,
    Schedule,
    Semaphore,
    Session,
)
from aiolocks.lock.options import DEFAULTS, reject_unknown

TEN_YEARS = 10 * 365.25 * 24 * 3600
DURATION = "a number of seconds or a timedelta, from"
CIRCLE: dict[str, Any] = {}
CIRCLE["itself"] = CIRCLE


def lock(client: Any = None, name: Any = "name", **options: Any) -> Lock:
    return Lock(Redis() if client is None else client, name, **options)


def bad(value: Any, error: type[Exception], *said: str) -> Any:
    return pytest.param(value, error, said, id=f"{value!r:.30}")


def check(make: Callable[[], object], error: type[Exception], said: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        make()
    assert caught.type is error
    for part in said:
        assert part in str(caught.value)
    assert len(str(caught.value)) < 300


# -- names ---------------------------------------------------------------------------------------------------

BAD_NAMES = [
    bad("", ValueError, "must not be empty"),
    bad("x" * 1025, ValueError, "1025", "not be longer than 1024 bytes in UTF-8"),
    bad("é" * 513, ValueError, "1026", "not be longer than 1024 bytes in UTF-8"),
    bad("\ud800", ValueError, r"'\ud800'", "UTF-8"),
    bad(b"bytes", TypeError, "must be a str, not bytes"),
    bad(None, TypeError, "must be a str, not NoneType"),
    bad(5, TypeError, "must be a str, not int"),
    bad(True, TypeError, "must be a str, not bool"),
]


@pytest.mark.parametrize(("name", "error", "said"), BAD_NAMES)
def test_bad_name(name, error, said) -> None:
    check(lambda: lock(name=name), error, ("name", *said))


@pytest.mark.parametrize(
    "name", ["x" * 1024, "é" * 512, " ", "\n", "\0", "{}", "a}b{c", "{tag}", "🔒", "*?[a]", "%7B", ":", "#"]
)
def test_any_other_str_is_a_good_name(name) -> None:
    assert lock(name=name).name == name


@pytest.mark.parametrize(
    ("prefix", "error", "said"),
    [*BAD_NAMES, bad("a{b", ValueError, "braces", "'a{b'"), bad("}", ValueError, "braces", "'}'")],
)
def test_bad_prefix(prefix, error, said) -> None:
    check(lambda: Session(Redis(), prefix=prefix), error, ("prefix", *said))


class Named(str, enum.Enum):  # noqa: UP042 - just that is what is tried
    """As they were before `enum.StrEnum`: `format` gives the name of the member, not its value."""

    A = "a"


def test_a_str_that_is_an_enum_is_its_value() -> None:
    name = lock(name=Named.A).name

    assert (type(name), name) == (str, "a")
    assert "prefix='a'" in repr(Session(Redis(), prefix=Named.A))


# -- durations -----------------------------------------------------------------------------------------------

NOT_DURATIONS = [
    bad(True, TypeError, DURATION, "True", "bool"),
    bad("5", TypeError, DURATION, "'5'", "str"),
    bad(Decimal(5), TypeError, DURATION, "Decimal"),
    bad([5], TypeError, DURATION, "list"),
    bad(math.nan, ValueError, DURATION, "nan"),
    bad(math.inf, ValueError, DURATION, "inf"),
    bad(-math.inf, ValueError, DURATION, "-inf"),
    bad(-1, ValueError, DURATION, "-1"),
    bad(timedelta(seconds=-1), ValueError, DURATION, "-1.0"),
    bad(TEN_YEARS + 1, ValueError, DURATION, "to ten years, not 315576001.0"),
    bad(timedelta(days=3653), ValueError, DURATION),
    bad(1e18, ValueError, DURATION, "1e+18"),
    bad(2**63, ValueError, DURATION, str(2**63)),
]
NO_END = bad(None, TypeError, DURATION, "None")
NO_TTL = bad(None, TypeError, "not None", "renewed for as long as its holder lives")
TOO_SHORT = [bad(value, ValueError, DURATION, "0.05") for value in (0, 0.0, -0.0, 0.0004, 0.049)]
BACKOFF = ("initial", "maximum", "multiplier", "jitter")


@pytest.mark.parametrize(
    ("ttl", "error", "said"),
    [*NOT_DURATIONS, *TOO_SHORT, NO_TTL, bad(timedelta(milliseconds=49), ValueError, DURATION, "0.049")],
)
def test_bad_ttl(ttl, error, said) -> None:
    check(lambda: lock(ttl=ttl), error, ("ttl", *said))


@pytest.mark.parametrize("ttl", [0.05, 1, 30.0, timedelta(minutes=1), TEN_YEARS])
def test_good_ttl(ttl) -> None:
    assert lock(ttl=ttl).name == "name"


@pytest.mark.parametrize(("max_hold", "error", "said"), [*NOT_DURATIONS, *TOO_SHORT])
def test_bad_max_hold(max_hold, error, said) -> None:
    check(lambda: lock(max_hold=max_hold), error, ("max_hold", *said))


@pytest.mark.parametrize(
    "call", [lock, lambda **argument: lock().acquire(**argument)], ids=["Lock", "acquire"]
)
@pytest.mark.parametrize(
    ("blocking_timeout", "error", "said"), [*NOT_DURATIONS, bad(-0.001, ValueError, DURATION, "-0.001")]
)
def test_bad_blocking_timeout(call, blocking_timeout, error, said) -> None:
    check(lambda: call(blocking_timeout=blocking_timeout), error, ("blocking_timeout", *said))


@pytest.mark.parametrize(("at_least", "error", "said"), [*NOT_DURATIONS, NO_END])
def test_bad_at_least(at_least, error, said) -> None:
    check(lambda: lock(at_least=at_least), error, ("at_least", *said))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"at_least": 60}, ("ttl and max_hold, here 30 s", "it is 60 s")),
        ({"at_least": timedelta(minutes=1), "ttl": 59.9}, ("here 59.9 s", "60 s")),
        ({"at_least": 10, "max_hold": 9}, ("here 9 s", "10 s")),
    ],
)
@pytest.mark.parametrize("make", [Lock, FairLock])
def test_an_at_least_that_the_death_of_its_holder_would_cut_short(make, options, said) -> None:
    check(lambda: make(Redis(), "name", **options), ValueError, ("at_least must not be longer", *said))


@pytest.mark.parametrize("at_least", [0, 0.001, 0.05, 30, 30.0, timedelta(seconds=30)])
def test_good_at_least(at_least) -> None:
    assert lock(at_least=at_least).name == "name"


@pytest.mark.parametrize(("grace", "error", "said"), [*NOT_DURATIONS, NO_END])
def test_bad_grace(grace, error, said) -> None:
    check(lambda: lock(grace=grace), error, ("grace", *said))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"grace": 15.1}, ("half of ttl and max_hold, here 15 s", "it is 15.1 s")),
        ({"grace": timedelta(seconds=6), "ttl": 10}, ("here 5 s", "it is 6 s")),
        ({"grace": 6, "max_hold": 10}, ("here 5 s", "it is 6 s")),
    ],
)
@pytest.mark.parametrize("make", [Lock, FairLock])
def test_a_grace_that_leaves_the_body_less_time_than_its_unwinding(make, options, said) -> None:
    check(lambda: make(Redis(), "name", **options), ValueError, ("grace must be at most", *said))


@pytest.mark.parametrize("slip", ["at_least", "lock_at_least_for"])
def test_the_kinds_that_have_no_at_least_name_those_that_do(slip) -> None:
    said = (f"Semaphore has no argument '{slip}'", "Lock(..., at_least=...)", "FairLock")
    check(lambda: Semaphore(Redis(), "name", 3, **{slip: 5}), TypeError, said)


@pytest.mark.parametrize("argument", ["ttl", "blocking_timeout", "max_hold", "initial", "multiplier"])
def test_an_int_that_no_float_can_hold_is_out_of_range(argument) -> None:
    make = Backoff if argument in BACKOFF else lock
    with pytest.raises(ValueError, match=argument):
        make(**{argument: 10**400})


@pytest.mark.parametrize("argument", ["blocking_timeout", "max_hold"])
def test_infinity_is_told_that_none_means_for_ever(argument) -> None:
    check(lambda: lock(**{argument: math.inf}), ValueError, ("None means for ever",))


@pytest.mark.parametrize(
    ("command_timeout", "error", "said"), [*NOT_DURATIONS, NO_END, bad(0, ValueError, DURATION, "0.001")]
)
def test_bad_command_timeout(command_timeout, error, said) -> None:
    check(lambda: Session(Redis(), command_timeout=command_timeout), error, ("command_timeout", *said))


@pytest.mark.parametrize(("fence_retention", "error", "said"), [*NOT_DURATIONS, NO_END])
def test_bad_fence_retention(fence_retention, error, said) -> None:
    check(lambda: Session(Redis(), fence_retention=fence_retention), error, ("fence_retention", *said))


# -- the other options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_lost", ["raise", "CANCEL", "", None, True, ["cancel"]])
def test_bad_on_lost(on_lost) -> None:
    check(lambda: lock(on_lost=on_lost), ValueError, ("on_lost", "'cancel' or 'ignore'", repr(on_lost)))


@pytest.mark.parametrize("auto_renew", [1, 0, None, "yes"])
def test_bad_auto_renew(auto_renew) -> None:
    check(lambda: lock(auto_renew=auto_renew), TypeError, ("auto_renew", "True or False", repr(auto_renew)))


@pytest.mark.parametrize("make", [lock, functools.partial(Session, Redis())], ids=["Lock", "Session"])
@pytest.mark.parametrize(
    ("metadata", "error", "said"),
    [
        bad("text", TypeError, "a mapping from str to JSON values", "str"),
        bad([("a", 1)], TypeError, "a mapping", "list"),
        bad({1: "a"}, TypeError, "str keys", "1 (int)"),
        bad({"a": Ellipsis}, TypeError, "JSON values", "ellipsis"),
        bad({"a": b"bytes"}, TypeError, "JSON values", "bytes"),
        bad({"a": {1, 2}}, TypeError, "JSON values", "set"),
        bad({"a": math.nan}, TypeError, "JSON values"),
        bad(CIRCLE, TypeError, "JSON values", "Circular"),
    ],
)
def test_bad_metadata(make, metadata, error, said) -> None:
    check(lambda: make(metadata=metadata), error, ("metadata", *said))


@pytest.mark.parametrize("wakeup", ["push", "", None, 1, ["auto"]])
def test_bad_wakeup(wakeup) -> None:
    check(
        lambda: Session(Redis(), wakeup=wakeup),
        ValueError,
        ("wakeup", "'auto', 'tracking', 'keyspace', 'poll'", repr(wakeup)),
    )


@pytest.mark.parametrize("backoff", [0.5, None, Backoff])
def test_bad_backoff(backoff) -> None:
    check(
        lambda: Session(Redis(), backoff=backoff),
        TypeError,
        ("must be an aiolocks.Backoff", type(backoff).__name__),
    )


class Listener:
    on_lost = "not callable"


class AsyncListener:
    async def on_lost(self, event: object) -> None: ...


@pytest.mark.parametrize(
    ("listener", "said"),
    [
        (object(), ("on_acquired, on_waiting, on_released, on_lost, on_renewed", "object has none")),
        (Listener(), ("on_lost", "plain method", "'not callable'")),
        (AsyncListener(), ("on_lost", "plain method", "AsyncListener.on_lost")),
        (Listener, ("must be an object, not the class Listener",)),
    ],
    ids=["without hooks", "not callable", "async", "class"],
)
def test_bad_listener(listener, said) -> None:
    check(lambda: Session(Redis(), listeners=[listener]), TypeError, ("a listener", *said))


def test_a_single_listener() -> None:
    said = ("listeners must be several, as in [listener], not Listener",)
    check(lambda: Session(Redis(), listeners=Listener()), TypeError, said)


@pytest.mark.parametrize(
    ("argument", "value", "error", "said"),
    [
        ("initial", 0, ValueError, ("more than 0", "0")),
        ("initial", -1.0, ValueError, ("more than 0", "-1.0")),
        ("initial", 0.1, ValueError, ("maximum (0.064 s)", "less than initial (0.1 s)")),
        ("maximum", 0.001, ValueError, ("maximum (0.001 s)", "less than initial (0.004 s)")),
        ("multiplier", 0.9, ValueError, ("at least 1", "0.9")),
        ("jitter", -0.1, ValueError, ("between 0 and 1", "-0.1")),
        ("jitter", 1.1, ValueError, ("between 0 and 1", "1.1")),
        *((name, math.nan, ValueError, ("finite", "nan")) for name in BACKOFF),
        *((name, math.inf, ValueError, ("finite", "inf")) for name in BACKOFF),
        *((name, True, TypeError, ("a number", "bool")) for name in BACKOFF),
        *((name, "1", TypeError, ("a number", "str")) for name in BACKOFF),
        *((name, None, TypeError, ("a number", "NoneType")) for name in BACKOFF),
    ],
)
def test_bad_backoff_argument(argument, value, error, said) -> None:
    check(lambda: Backoff(**{argument: value}), error, ("Backoff", argument, *said))


# -- likely slips --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("timeout", "ttl= (how long the lease lasts, redis-py's timeout) or blocking_timeout="),
        ("expire", "ttl="),
        ("ex", "ttl="),
        ("px", "ttl= (in seconds)"),
        ("lease_time", "ttl="),
        ("wait", "blocking_timeout="),
        ("blocking", "try_acquire(), or blocking_timeout=0"),
        ("sleep", "Backoff"),
        ("auto_renewal", "auto_renew="),
        ("key", "name="),
        ("redis", "client="),
        ("lock_timeout", "ttl="),
        ("prefix", "Session(client, prefix=...)"),
        ("listeners", "Session(client, listeners=...)"),
        ("bloking_timeout", "blocking_timeout="),
        ("autorenew", "auto_renew="),
    ],
)
@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lock, "Lock"),
        (lambda **slip: lock().acquire(**slip), "acquire()"),
        (lambda **slip: lock().try_acquire(**slip), "try_acquire()"),
    ],
    ids=["Lock", "acquire", "try_acquire"],
)
def test_a_likely_slip_is_told_what_was_meant(call, what, slip, meant) -> None:
    check(lambda: call(**{slip: 5}), TypeError, (f"{what} has no argument '{slip}'", "did you mean", meant))


WAITS: dict[str, Callable[..., Any]] = {
    "lock.acquire": lock().acquire,
    "lock.try_acquire": lock().try_acquire,
    "reentrant.acquire": ReentrantLock(Redis(), "name").acquire,
    "reader.acquire": RWLock(Redis(), "name").reader.acquire,
    "semaphore.acquire": functools.partial(Semaphore(Redis(), "name", 3).acquire, 1),
    "semaphore.try_acquire": functools.partial(Semaphore(Redis(), "name", 3).try_acquire, 1),
}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ((5,), "acquire(blocking_timeout=5)"),
        ((True, 0.5), "acquire(blocking_timeout=0.5)"),
        ((False,), "try_acquire(), or blocking_timeout=0 for one try"),
        (("x" * 500,), "acquire(blocking_timeout='xxxx"),
    ],
    ids=["threading's", "redis-py's", "at once", "nonsense"],
)
@pytest.mark.parametrize("call", WAITS)
def test_a_time_to_wait_has_its_name(call, given, meant) -> None:
    what = call.partition(".")[2]
    said = (f"{what}() takes no positional argument for the time to wait; did you mean {meant}",)
    check(lambda: WAITS[call](*given), TypeError, said)


@pytest.mark.parametrize(
    ("needless", "why"),
    [("thread_local", "every acquisition has a lease of its own"), ("token", "detach() and adopt()")],
)
def test_what_is_needed_elsewhere_and_not_here_is_told_why(needless, why) -> None:
    said = (f"Lock has no argument '{needless}' and needs none", why)
    check(lambda: lock(**{needless: 5}), TypeError, said)


@pytest.mark.parametrize("option", sorted(DEFAULTS))
def test_an_option_of_another_kind_is_never_offered_in_its_own_place(option: str) -> None:
    with pytest.raises(TypeError) as caught:
        reject_unknown("Locked", {option: 5})
    said = str(caught.value)
    assert said.startswith(f"Locked has no argument '{option}'; did you mean ")
    assert not said.endswith(f"did you mean {option}=?")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: lock(tll=3), "Lock has no argument 'tll'; did you mean ttl=?"),
        (
            lambda: lock(blocking_timout=3),
            "Lock has no argument 'blocking_timout'; did you mean blocking_timeout=?",
        ),
        (
            lambda: lock(timout=3),
            "Lock has no argument 'timout'; did you mean ttl= (how long the lease lasts, ",
        ),
        (
            lambda: lock().acquire(tll=3),
            "acquire() has no argument 'tll'; did you mean Lock(..., ttl=...), or ",
        ),
        (
            lambda: RateLimit(Redis(), "a", 1, 1, brust=3),
            "RateLimit has no argument 'brust'; did you mean burst=?",
        ),
        (lambda: Schedule(Redis(), "a", crn="x"), "Schedule has no argument 'crn'; did you mean cron=?"),
        (
            lambda: Session(Redis(), namespace="x"),
            "Session has no argument 'namespace'; did you mean prefix=?",
        ),
        (
            lambda: Session(Redis(), tll=3),
            "Session has no argument 'tll'; did you mean Lock(session, name, ttl=...)",
        ),
        (
            lambda: Session.from_url("redis://", prefx="a"),
            "Session has no argument 'prefx'; did you mean prefix=?",
        ),
        (lambda: Session(Redis(), colour="red"), "Session has no argument 'colour'"),
    ],
)
def test_a_mistake_in_the_name_of_an_argument_is_told(make: Any, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        make()
    assert str(caught.value).startswith(said)


def test_an_unknown_argument_is_just_refused() -> None:
    with pytest.raises(TypeError, match=r"^Lock has no argument 'colour'$"):
        lock(colour="red")


def a_sync_function() -> None: ...


async def an_async_generator() -> Any:
    yield


class AClass: ...


@pytest.mark.parametrize("function", [a_sync_function, an_async_generator, AClass, None, "name"])
def test_only_coroutine_functions_can_be_decorated(function) -> None:
    check(lambda: lock()(function), TypeError, ("Lock decorates a coroutine function", repr(function)))


# -- clients -------------------------------------------------------------------------------------------------


async def test_pipeline_and_pubsub_are_not_clients() -> None:
    redis = Redis()
    check(lambda: lock(redis.pipeline()), TypeError, ("client", "a Pipeline: give the client"))
    check(lambda: lock(redis.pubsub()), TypeError, ("client", "a PubSub: give the client"))


@pytest.mark.parametrize(
    ("client", "said"),
    [
        (BlockingRedis(), "a synchronous client: make it with redis.asyncio.Redis"),
        (BlockingRedis().pipeline(), "a synchronous client"),
        (BlockingRedisCluster.__new__(BlockingRedisCluster), "a synchronous client"),
        ("order:17", "a str: the client comes first, then the name"),
        pytest.param(
            "redis://:secret@localhost",
            "a URL: make a client of it with redis.asyncio.Redis.from_url()",
            id="URL",
        ),
        (Redis, "the class Redis: make a client of it"),
        (Session, "the class Session: make a client of it"),
        (Redis().connection_pool, "not ConnectionPool"),
        (5, "not int"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("make", [lock, Session], ids=["Lock", "Session"])
def test_not_a_client(make, client, said) -> None:
    sessions = ", RedisCluster or an aiolocks.Session, not " if make is lock else " or RedisCluster, not "
    check(lambda: make(client), TypeError, ("client must be a redis.asyncio.Redis" + sessions, said))


async def test_what_is_not_a_client_of_valkey_py() -> None:
    client = valkey.asyncio.Valkey()
    said = "client must be a valkey.asyncio.Valkey, ValkeyCluster or an aiolocks.Session, not "
    check(lambda: lock(valkey.Valkey()), TypeError, (said, "make it with valkey.asyncio.Valkey instead"))
    check(lambda: lock(client.pipeline()), TypeError, (said, "a Pipeline: give the client"))
    check(lambda: lock(client.connection_pool), TypeError, (said, "not ConnectionPool"))
    check(lambda: lock(valkey.asyncio.Valkey), TypeError, ("client must be a", "the class Valkey"))


async def test_a_session_of_a_session() -> None:
    session = Session(Redis())
    check(lambda: Session(session), TypeError, ("client must be a redis.asyncio.Redis or RedisCluster, not",))


def test_none_is_not_a_client() -> None:
    check(lambda: Session(None), TypeError, ("client must be", "not NoneType"))


async def test_a_wrapper_of_a_client_is_not_a_client_also_where_that_is_in_use() -> None:
    class Wrapper:
        def __init__(self, client: Redis) -> None:
            self._client = client

        def __getattr__(self, name: str) -> Any:
            return getattr(self._client, name)

    client = Redis()
    Session.of(client)
    check(lambda: Lock(Wrapper(client), "a"), TypeError, ("client must be", "not Wrapper"))


def test_client_and_name_the_wrong_way_round() -> None:
    check(lambda: Lock("name", Redis()), TypeError, ("the client comes first, then the name",))
    check(lambda: Lock(Redis(), Redis()), TypeError, ("name must be a str, not a client",))


@pytest.mark.parametrize("configure", [None, 1, "yes"])
def test_what_may_be_configured_is_yes_or_no(configure) -> None:
    check(lambda: KeyspaceWakeup(configure=configure), TypeError, ("configure must be True or False",))


# -- a ttl in milliseconds -----------------------------------------------------------------------------------


@pytest.mark.parametrize("metadata", [None, {"order": 17}])
def test_a_ttl_that_looks_like_milliseconds_is_warned_of_where_it_stands(metadata: Any) -> None:
    ttl = 30_000.0 if metadata is None else 30_000
    with pytest.warns(UserWarning, match=r"ttl=30000.* is 8.3 hours: ttl is in seconds") as caught:
        Lock(Redis(), "a", ttl=ttl, metadata=metadata)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(
    "options", [{"ttl": 7200}, {"ttl": timedelta(days=1)}, {"ttl": 86_400, "auto_renew": False}], ids=str
)
def test_a_long_ttl_that_is_meant_is_not_warned_of(options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lock(**options)
