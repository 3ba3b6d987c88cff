"""Arguments that do not exist: the error says how the right one is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .options import DEFAULTS

_AT_LEAST: Final = "Lock(..., at_least=...), or that of a FairLock"
_OF_SESSION: Final = "Session(client, {}=...), given as the client"

# The names that other libraries use for an option, or that are easily taken for it.
_MEANT: Final = {
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
}
_NEEDLESS: Final = {
    "thread_local": "every acquisition has a lease of its own",
    "token": "every lease makes its own; hand a lease over with detach() and adopt()",
}


def reject_unknown(
    what: str,
    unknown: Mapping[str, object],
    meanings: Mapping[str, str] = _MEANT,
    *,
    positional: tuple[object, ...] = (),
) -> None:
    """Refuses arguments that do not exist, with the right form in the error.

    Args:
        what: Name of the function, for messages.
        unknown: Keyword arguments.
        meanings: The right form for each of them; these come first.
        positional: Positional arguments, probably meant as the time to wait.
    """
    if positional:
        given = positional[-1]
        form = f"{what.removeprefix('try_')[:-1]}blocking_timeout={given!r:.40})"
        right = _MEANT["blocking"] if isinstance(given, bool) else form
        raise TypeError(f"{what} takes no positional argument for the time to wait; did you mean {right}?")
    for name in unknown:
        wrong = f"{what} has no argument {name!r}"
        if (meant := meanings.get(name) or _MEANT.get(name)) is not None:
            raise TypeError(f"{wrong}; did you mean {meant}?")
        if name in _NEEDLESS:
            raise TypeError(f"{wrong} and needs none: {_NEEDLESS[name]}")
        if name in DEFAULTS:  # that of a kind, and not of this function
            raise TypeError(f"{wrong}; did you mean Lock(..., {name}=...)?")
        import difflib  # noqa: PLC0415 - a right call need not load it

        alike = difflib.get_close_matches(name, DEFAULTS, n=1, cutoff=0.75)
        raise TypeError(f"{wrong}; did you mean {alike[0]}=?" if alike else wrong)
