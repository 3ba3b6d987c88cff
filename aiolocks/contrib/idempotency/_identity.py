"""Which requests are the same one."""

from __future__ import annotations

import hashlib
from typing import Final
from urllib.parse import quote

_LONGEST_SHOWN: Final = 160


def fingerprint_of(method: str, path: str, query: bytes, body: bytes) -> str:
    """The hash of a request."""
    digest = hashlib.sha256()
    for part in (method.encode(), path.encode(errors="surrogatepass"), query):
        digest.update(b"%d:%b" % (len(part), part))
    digest.update(body)
    return digest.hexdigest()


def name_of(asker: str, key: str) -> str:
    """The name of the key of one user. Of the user, which may be told by a secret, it has a hash."""
    who = hashlib.blake2b(asker.encode(errors="surrogatepass"), digest_size=20).hexdigest()
    shown = quote(key, safe="")
    if len(shown) > _LONGEST_SHOWN:
        shown = "#" + hashlib.blake2b(key.encode(), digest_size=32).hexdigest()
    return f"idempotency:{who}:{shown}"
