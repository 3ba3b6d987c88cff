"""The arguments of the calls of a single flight, checked."""

from __future__ import annotations

import hashlib
import inspect
from typing import Final

_DIGEST_BYTES: Final = 16

# The names that other libraries use for an option, or that are easily taken for it.
MEANT: Final = {
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
}


def check_function(fn: object) -> None:
    if not callable(fn):
        made = inspect.isawaitable(fn)
        hint = ": give fn itself, not what calling it gives; lambda: fn(…) for arguments" if made else ""
        raise TypeError(f"fn must be a coroutine function, not {type(fn).__name__}{hint}")


def digest_of(fingerprint: object) -> str:
    """The digest that is stored of a fingerprint: not the request itself."""
    if fingerprint is None:
        return ""
    if isinstance(fingerprint, str):
        fingerprint = fingerprint.encode(errors="surrogatepass")
    if not isinstance(fingerprint, bytes):
        raise TypeError(f"fingerprint must be str, bytes or None, not {type(fingerprint).__name__}")
    return hashlib.blake2b(fingerprint, digest_size=_DIGEST_BYTES).hexdigest()
