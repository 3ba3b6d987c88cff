"""Checks of what users pass in, before any I/O. Each message says what was given and what is allowed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, cast

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
