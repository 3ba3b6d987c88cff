"""The options of a lock, their checks, and the errors for an argument that a function does not have."""

from __future__ import annotations

import functools
import json
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, ParamSpec, TypedDict, TypeVar, cast, final

from ..errors import ConfigurationError
from .clock import dependable, milliseconds

P = ParamSpec("P")
R = TypeVar("R")

# -- Checks of what users pass in, before any I/O. Each message says what was given and what is allowed.

Seconds = float | int | timedelta
"""A duration: a number of seconds, or a timedelta."""

Metadata = Mapping[str, Any]
"""Metadata that a user attaches to a lease: JSON, readable by everyone who can read the key."""

SHORTEST_TTL: Final = 0.05
LONGEST: Final = 10 * 365.25 * 24 * 3600
_NAME_BYTES: Final = 1024
LARGEST_METADATA: Final = 65_536
"""Bytes of JSON. Each contender that is refused reads the metadata of the holders, and each acquire sends its
own, on the connection that carries the renewals of all leases."""
LARGEST_VALUE: Final = 1_000_000
"""Bytes that every server takes, however it is configured: neither `client-query-buffer-limit` nor
`proto-max-bulk-len` can be set below 1 MiB."""
_LARGEST: Final = 512 * 1024 * 1024


def seconds(what: str, value: object, *, least: float = 0.0, most: float = LONGEST) -> float:
    """A duration in seconds within bounds."""
    longest = "ten years" if most == LONGEST else f"{most:g}"
    allowed = f"a number of seconds or a timedelta, from {least:g} to {longest}"
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} must be {allowed}, not {value!r} ({type(value).__name__})")
    if not least <= value <= most:  # also refuses NaN
        raise ValueError(f"{what} must be {allowed}, not {value!r}")
    return float(value)


def number(what: str, value: object, *, most: float) -> float:
    """A number from 0 to a bound."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} must be a number from 0 to {most:g}, not {value!r} ({type(value).__name__})")
    if not 0 <= value <= most:  # also refuses NaN
        raise ValueError(f"{what} must be a number from 0 to {most:g}, not {value!r}")
    return float(value)


def check_at_least(at_least_ms: int, ttl_ms: int) -> None:
    """Refuses an `at_least` that the death of its holder would cut short: then the ttl frees the name."""
    if at_least_ms > ttl_ms:
        raise ValueError(
            f"at_least must not be longer than ttl and max_hold, here {ttl_ms / 1000:g} s, but it is "
            f"{at_least_ms / 1000:g} s: the name of a holder that dies is free after that time"
        )


def optional_seconds(what: str, value: object, *, least: float = 0.0) -> float | None:
    """A duration in seconds within bounds, or None for no bound."""
    if value is None:
        return None
    try:
        return seconds(what, value, least=least)
    except ValueError as error:
        raise ValueError(f"{error}; None means for ever") from None


def check_grace(grace: float, ttl: float) -> None:
    """Refuses a `grace` that would leave the body less time than its unwinding."""
    if grace > ttl / 2:
        raise ValueError(
            f"grace must be at most half of ttl and max_hold, here {ttl / 2:g} s, but it is {grace:g} s"
        )


def lock_name(value: object, what: str = "name") -> str:
    """The name of a lock."""
    if not isinstance(value, str):
        given = (
            "a client; the client comes first" if hasattr(value, "execute_command") else type(value).__name__
        )
        raise TypeError(f"{what} must be a str, not {given}")
    value = str.__str__(value)  # of a str that is also an Enum, the value
    if not value:
        raise ValueError(f"{what} must not be empty")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} cannot be encoded in UTF-8: {value!r}") from None
    if size > _NAME_BYTES:
        raise ValueError(
            f"{what} must not be longer than {_NAME_BYTES} bytes in UTF-8, not {size}: {value[:40]!r}…"
        )
    return value


def key_prefix(value: object) -> str:
    """The prefix with which all keys of a session begin."""
    name = lock_name(value, "prefix")
    if "{" in name or "}" in name:
        raise ValueError(f"prefix must not have braces, which would be the cluster's hash tag, not {name!r}")
    return name


NO_METADATA: Final[dict[str, Any]] = {}
"""Shared by all that have none, and never changed: there may be very many."""


def user_metadata(value: object) -> dict[str, Any]:
    """A user's metadata, copied, so that later changes by the user do not reach the lock."""
    if value is None:
        return NO_METADATA
    if not isinstance(value, Mapping):
        raise TypeError(f"metadata must be a mapping from str to JSON values, not {type(value).__name__}")
    given = dict(cast("Mapping[object, object]", value))
    for key in given:
        if not isinstance(key, str):
            raise TypeError(f"metadata must have str keys, not {key!r} ({type(key).__name__})")
    try:
        copied: dict[str, Any] = json.loads(json.dumps(given, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"metadata must be JSON values: {error}") from None
    return copied


def whole_number(what: str, value: object, *, least: int = 1, most: int) -> int:
    """A number of things."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f"{what} must be an int from {least} to {most}, not {value!r} ({type(value).__name__})"
        )
    if not least <= value <= most:
        raise ValueError(f"{what} must be from {least} to {most}, not {value!r}")
    return int(value)


def size(what: str, value: object) -> int:
    """A number of bytes, at most what one value of Redis can have."""
    return whole_number(what, value, most=_LARGEST)


def flag(what: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, not {value!r}")
    return value


# -- The options that all kinds of locks have in common, with their defaults.

OnLost = Literal["cancel", "ignore"]

_REPLICAS: Final = 1000
_LONG: Final = 7200
"""Seconds above which a plain number was perhaps meant as milliseconds, as in other libraries."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Options:
    """The options that all kinds of locks have in common; checked. Locks with the same arguments share it."""

    ttl: float
    blocking_timeout: float | None
    auto_renew: bool
    max_hold: float | None
    on_lost: OnLost
    metadata: dict[str, Any]
    replicas: int
    at_least: float
    grace: float
    cache: float
    confirm: bool
    """Whether the exit of a block waits until the server has confirmed the release; with `cache`, it does."""
    at_least_ms: int = field(init=False)
    first_ttl: float = field(init=False)
    """The ttl that an acquire asks for: no more than `max_hold`."""
    first_ttl_ms: int = field(init=False)
    dependable: float = field(init=False)
    """How much of it the holder may rely on; see `clock.dependable`."""

    def __post_init__(self) -> None:
        first = self.ttl if self.max_hold is None else min(self.ttl, self.max_hold)
        object.__setattr__(self, "first_ttl", first)
        object.__setattr__(self, "first_ttl_ms", milliseconds(first))
        object.__setattr__(self, "dependable", dependable(first))
        object.__setattr__(self, "at_least_ms", milliseconds(self.at_least))
        check_at_least(self.at_least_ms, self.first_ttl_ms)
        check_grace(self.grace, first)
        if self.cache:
            self._check_cache()
            object.__setattr__(self, "confirm", True)
        elif not self.confirm and self.replicas:
            raise ConfigurationError(
                "confirm=False and replicas= do not go together: a release that the master has not confirmed "
                "is on no replica; leave one of them out"
            )

    def _check_cache(self) -> None:
        """Refuses options that a lease cannot have if its session keeps it between uses."""
        if self.cache * 3 > self.ttl * (1 + 1e-9):
            raise ValueError(
                f"cache must be at most a third of ttl, here {self.ttl / 3:g} s, but it is {self.cache:g} s: "
                "a lease that was kept is to have a third of its ttl left"
            )
        others = {
            "at_least": self.at_least,
            "max_hold": self.max_hold,
            "replicas": self.replicas,
            "auto_renew=False": not self.auto_renew,
        }
        for other, given in others.items():
            if given:
                raise ValueError(
                    f"cache= and {other} do not go together: a lease that is kept has several holders"
                )

    @staticmethod
    def checked(
        *,
        ttl: object = 30.0,
        blocking_timeout: object = None,
        auto_renew: object = True,
        max_hold: object = None,
        on_lost: object = "cancel",
        metadata: object = None,
        replicas: object = 0,
        at_least: object = 0.0,
        grace: object = 0.0,
        cache: object = 0.0,
        confirm: object = True,
    ) -> Options:
        """The options of these arguments, checked; one that is left out has its default."""
        given = (
            ttl,
            blocking_timeout,
            auto_renew,
            max_hold,
            on_lost,
            replicas,
            at_least,
            grace,
            cache,
            confirm,
        )
        if metadata is None:
            try:
                return _checked_before(*given)
            except TypeError:  # of an argument that cannot be hashed, or is of another type than it should be
                pass
        return _checked(metadata, *given)


def _checked(  # noqa: PLR0917 - as `checked` gives them, in its order
    metadata: object,
    ttl: object,
    blocking_timeout: object,
    auto_renew: object,
    max_hold: object,
    on_lost: object,
    replicas: object,
    at_least: object,
    grace: object,
    cache: object,
    confirm: object,
) -> Options:
    if ttl is None:
        raise TypeError(
            "ttl must be a number of seconds or a timedelta, not None: a lock is renewed for as long as "
            "its holder lives, and outlives it by its ttl"
        )
    if auto_renew is True and isinstance(ttl, (int, float)) and _LONG < ttl < LONGEST:
        # A lock that is renewed needs no long ttl, and a lock whose holder dies stays taken for the ttl.
        warnings.warn(
            f"ttl={ttl!r} is {ttl / 3600:.1f} hours: ttl is in seconds. A lock is renewed while its holder "
            "lives, and stays taken for that long when it dies. If that is meant, give a timedelta",
            UserWarning,
            stacklevel=4 if metadata is not None else 5,
        )
    if on_lost not in ("cancel", "ignore"):
        raise ValueError(f"on_lost must be 'cancel' or 'ignore', not {on_lost!r}")
    return Options(
        ttl=seconds("ttl", ttl, least=SHORTEST_TTL),
        blocking_timeout=optional_seconds("blocking_timeout", blocking_timeout),
        auto_renew=flag("auto_renew", auto_renew),
        max_hold=optional_seconds("max_hold", max_hold, least=SHORTEST_TTL),
        on_lost=on_lost,
        metadata=user_metadata(metadata),
        replicas=whole_number("replicas", replicas, least=0, most=_REPLICAS),
        at_least=seconds("at_least", at_least),
        grace=seconds("grace", grace),
        cache=seconds("cache", cache),
        confirm=flag("confirm", confirm),
    )


DEFAULTS: Final[dict[str, Any]] = Options.checked.__kwdefaults__ or {}
"""The default of each option. The signatures of the kinds repeat them, for `help` and editors.

`**options: Unpack[LockOptions]` was tried in the constructors, and is worse for their users. Of the seven
options that all kinds have, an editor (pyright) then shows no default, and at the name of the class not even
which they are; as it is, it shows both of all seven.
"""


@functools.lru_cache(maxsize=256, typed=True)
def _checked_before(*given: object) -> Options:
    """Most programs make a lock for each use, with the same few options: these are checked once.

    By position, because a cache finds them in half the time that it needs for names.
    """
    return _checked(None, *given)


# -- Arguments that a function does not have. It takes them as `**unknown`, and says which argument is meant.

_AT_LEAST: Final = "Lock(..., at_least=...), or that of a FairLock"
_OF_SESSION: Final = "Session(client, {}=...), given as the client"

_MEANT: Final[dict[str, dict[str, str]]] = {
    "Lock": {
        "at_least": _AT_LEAST,
        "auto_renew": "Lock(..., auto_renew=...)",
        "blocking_timeout": "acquire(blocking_timeout=...)",
        "max_hold": "Lock(..., max_hold=...)",
        "ttl": "Lock(..., ttl=...), or lease.extend(ttl)",
        "auto_release_time": "ttl= (how long the lease lasts)",
        "auto_renewal": "auto_renew=",
        "backoff": _OF_SESSION.format("backoff"),
        "blocking": "try_acquire(), or blocking_timeout=0 for one try",
        "command_timeout": _OF_SESSION.format("command_timeout"),
        "expire": "ttl= (how long the lease lasts)",
        "expires": "ttl= (how long the lease lasts)",
        "ex": "ttl= (how long the lease lasts)",
        "px": "ttl= (in seconds)",
        "fence_retention": _OF_SESSION.format("fence_retention"),
        "key": "name=",
        "lease": "ttl= (how long the lease lasts)",
        "lease_time": "ttl= (how long the lease lasts)",
        "lease_timeout": "ttl= (how long the lease lasts)",
        "listeners": _OF_SESSION.format("listeners"),
        "lock_at_least_for": _AT_LEAST,
        "lock_name": "name=",
        "lock_timeout": "ttl= (how long the lease lasts)",
        "prefix": _OF_SESSION.format("prefix"),
        "redis": "client= (the first argument)",
        "renew": "auto_renew=",
        "sleep": "Session(client, backoff=Backoff(...))",
        "timeout": "ttl= (how long the lease lasts, redis-py's timeout) "
        "or blocking_timeout= (how long to wait, threading's timeout)",
        "wait": "blocking_timeout= (how long to wait)",
        "wait_timeout": "blocking_timeout= (how long to wait)",
        "wakeup": _OF_SESSION.format("wakeup"),
    },
    "Combiner": {
        "batch_size": "most= (how many items a batch has at most)",
        "max_batch": "most= (how many items a batch has at most)",
        "limit": "most= (how many items a batch has at most) or most_waiting= (how many wait at most)",
        "maxsize": "most_waiting= (how many wait at most)",
        "delay": "window= (seconds for which it collects before a run)",
        "debounce": "window= and within= (each item begins the window anew, at most within in all)",
        "retries": "retry= (how many more attempts)",
        "blocking_timeout": "asyncio.timeout() around submit(): the item stays left",
    },
    "Latch": {
        **dict.fromkeys(("parties", "n", "value"), "count= (how many steps)"),
        **dict.fromkeys(("ex", "expire", "expires", "px"), "ttl= (how long it lasts after its last use)"),
    },
    "RateLimit": {
        **dict.fromkeys(("rate", "max_rate", "times", "amount", "max_calls", "calls"), "limit= (how many)"),
        **dict.fromkeys(
            ("period", "time_period", "seconds", "interval", "rate_interval", "window", "ttl"),
            "per= (in how many seconds)",
        ),
        "capacity": "burst= (how many at once)",
    },
    "Schedule": {
        **dict.fromkeys(("interval", "seconds", "period"), "every= (seconds between two ticks)"),
        **dict.fromkeys(("crontab", "expression", "expr"), "cron= (a cron expression)"),
        **dict.fromkeys(("timezone", "zone"), "tz= (the time zone of the cron expression)"),
        **dict.fromkeys(("timeout", "max_hold", "lock_at_most_for"), "at_most= (how long a run may take)"),
        **dict.fromkeys(
            ("at_least", "lock_at_least_for"), "nothing: a tick that was claimed is never run again"
        ),
        **dict.fromkeys(("coalesce", "misfire_grace_time"), "misfire= ('latest', 'skip' or 'all')"),
        **dict.fromkeys(("max_instances",), "overlap= ('skip', 'queue' or 'allow')"),
        **dict.fromkeys(("retries", "max_retries"), "redo= (how often a run that was lost is run again)"),
    },
    "Session": {
        "db": "a client with db=",
        "key_prefix": "prefix=",
        "namespace": "prefix=",
        "retry": "backoff=",
        "socket_timeout": "command_timeout=",
        "timeout": "command_timeout=",
        "ttl": "Lock(session, name, ttl=...)",
        "url": "Session.from_url(url)",
        **dict.fromkeys(("host", "password", "port", "ssl", "username"), "a client with it"),
    },
    "SingleFlight": {
        "blocking_timeout": "do(key, fn, blocking_timeout=...), or asyncio.timeout() around do()",
        "cache": "keep= (how long a value is kept)",
        "cache_ttl": "keep= (how long a value is kept)",
        "beta": "early= (how far ahead of its end a value is made again)",
        "ex": "keep= (how long a value is kept)",
        "expire": "keep= (how long a value is kept)",
        "key": "do(key, fn): one SingleFlight serves any number of keys",
        "lease": "ttl= (how long a runner that died holds up the others)",
        "max_age": "keep= (how long a value is kept)",
        "max_stale": "stale= (how long a value is given while it is made again)",
        "name": "do(key, fn): one SingleFlight serves any number of keys",
        "prefix": "Session(client, prefix=...)",
        "stale_while_revalidate": "stale= (how long a value is given while it is made again)",
        "timeout": "ttl= (how long a runner that died holds up the others), or asyncio.timeout() around do()",
        "wait": "do(key, fn, blocking_timeout=...), or asyncio.timeout() around do()",
    },
    "Turnstile": dict.fromkeys(
        ("ex", "expire", "expires", "lease", "px", "timeout", "ttl"), "window= (how long a window lasts)"
    ),
    "UniqueJob": {
        "blocking_timeout": "asyncio.timeout() around run() or perform(), or run(waiting=0)",
        "concurrency": "limit= (how many may run at once)",
        "lock_name": "key=",
        "name": "key=",
        "on_conflict": "enqueue(mode, on_conflict=...)",
        "value": "limit= (how many may run at once)",
        "timeout": "ttl= (how long the lease lasts), or asyncio.timeout() around run() or perform()",
        "waiting": "run(waiting=...)",
    },
    "sync.Session": {
        "grace": "lease.remaining(): a thread cannot be cancelled ahead of the end of its lease",
    },
}
"""What is meant by an argument that a class does not have, by the name of the class.

The arguments are from other libraries, or are mistakes that are easily made. What `Lock` says counts for
each class, after its own."""
_NEEDLESS: Final = {
    "thread_local": "every acquisition has a lease of its own",
    "token": "every lease makes its own; hand a lease over with detach() and adopt()",
}


def explains(what: str, of: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function with required arguments: an error for another name says which one is meant.

    Python itself would only say which arguments are missing. `what` and `of` are as in `reject_unknown`.
    """
    meanings = _MEANT[of or what]

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def explained(*args: P.args, **kwargs: P.kwargs) -> R:
            if wrong := {name: kwargs[name] for name in kwargs if name in meanings}:
                reject_unknown(what, wrong, of)
            return function(*args, **kwargs)

        return explained

    return decorate


def reject_unknown(
    what: str,
    unknown: Mapping[str, object],
    of: str = "",
    *,
    positional: tuple[object, ...] = (),
) -> None:
    """Refuses arguments that do not exist, with the right form in the error.

    Args:
        what: Name of the function, for messages.
        unknown: Keyword arguments.
        of: The class whose names are meant; by default that of this name.
        positional: Positional arguments, probably meant as the time to wait.
    """
    if not unknown and not positional:
        return
    common, meanings = _MEANT["Lock"], _MEANT.get(of or what, {})
    if positional:
        given = positional[-1]
        form = f"{what.removeprefix('try_')[:-1]}blocking_timeout={given!r:.40})"
        right = common["blocking"] if isinstance(given, bool) else form
        raise TypeError(f"{what} takes no positional argument for the time to wait; did you mean {right}?")
    for name in unknown:
        wrong = f"{what} has no argument {name!r}"
        if (meant := meanings.get(name) or common.get(name)) is not None:
            raise TypeError(f"{wrong}; did you mean {meant}?")
        if name in _NEEDLESS:
            raise TypeError(f"{wrong} and needs none: {_NEEDLESS[name]}")
        if name in DEFAULTS:  # that of a kind, and not of this function
            raise TypeError(f"{wrong}; did you mean Lock(..., {name}=...)?")
        code = sys._getframe(1).f_code  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - that refuses it
        own = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]} - {"self"}
        if "unknown" not in code.co_varnames:  # then it has `**options`, of a lock
            own |= LockOptions.__annotations__.keys()
        alike = _alike(name, own, {**common, **meanings})
        raise TypeError(f"{wrong}; did you mean {alike}?" if alike else wrong)


def _alike(name: str, own: set[str], meanings: Mapping[str, str]) -> str:
    """The right form of an argument with a mistake in its name; empty if none is like it."""
    import difflib  # noqa: PLC0415 - a right call need not load it

    # Two letters of three are enough, as in `tll`.
    found = difflib.get_close_matches(name, sorted(own | meanings.keys()), n=1, cutoff=0.65)
    return "" if not found else f"{found[0]}=" if found[0] in own else meanings[found[0]]


class LockOptions(TypedDict, total=False):
    """The options of the lock; see `aiolocks.Lock`."""

    ttl: Seconds
    auto_renew: bool
    max_hold: Seconds | None
    on_lost: OnLost
    metadata: Metadata | None
    grace: Seconds
    confirm: bool


def not_for_locks(options: Mapping[str, object]) -> dict[str, object]:
    """The options that are no `LockOptions`."""
    return {name: value for name, value in options.items() if name not in LockOptions.__annotations__}
