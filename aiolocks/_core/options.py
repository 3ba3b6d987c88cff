"""The options that all kinds of locks have in common, with their defaults."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, final

from .arguments import (
    LONGEST,
    SHORTEST_TTL,
    check_at_least,
    check_grace,
    flag,
    optional_seconds,
    seconds,
    user_metadata,
    whole_number,
)
from .clock import milliseconds

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
    at_least_ms: int = field(init=False)
    first_ttl: float = field(init=False)
    """The ttl that an acquire asks for: no more than `max_hold`."""
    first_ttl_ms: int = field(init=False)

    def __post_init__(self) -> None:
        first = self.ttl if self.max_hold is None else min(self.ttl, self.max_hold)
        object.__setattr__(self, "first_ttl", first)
        object.__setattr__(self, "first_ttl_ms", milliseconds(first))
        object.__setattr__(self, "at_least_ms", milliseconds(self.at_least))
        check_at_least(self.at_least_ms, self.first_ttl_ms)
        check_grace(self.grace, first)

    def with_grace(self, grace: float) -> Options:
        """The same with another `grace`."""
        return replace(self, grace=grace)

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
    ) -> Options:
        """The options of these arguments, checked; one that is left out has its default."""
        given = (ttl, blocking_timeout, auto_renew, max_hold, on_lost, replicas, at_least, grace)
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
) -> Options:
    if ttl is None:
        raise TypeError(
            "ttl must be a number of seconds or a timedelta, not None: a lock is renewed for as long as "
            "its holder lives, and outlives it by its ttl"
        )
    if auto_renew is True and isinstance(ttl, (int, float)) and _LONG < ttl < LONGEST:
        # A lock that is renewed needs no long ttl, and one of which the holder dies is taken for so long.
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
    )


DEFAULTS: Final[dict[str, Any]] = Options.checked.__kwdefaults__ or {}
"""The default of each option. The signatures of the kinds repeat them, for `help` and editors."""


@functools.lru_cache(maxsize=256, typed=True)
def _checked_before(*given: object) -> Options:
    """Most programs make a lock for each use, with the same few options: these are checked once.

    By position, because a cache finds them in half the time that it needs for names.
    """
    return _checked(None, *given)
