"""The requests that are the same one: by the header `Idempotency-Key`, and by what they ask for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from ._problems import malformed

LONGEST: Final = 255
"""Characters of a key; a UUID has 36."""
_LONGEST_SHOWN: Final = 160
_LONGEST_PREFIX: Final = 36

# A string of RFC 8941, section 3.3.3, and parameters after it, which mean nothing to the middleware.
_QUOTED: Final = re.compile(r'^ *"((?:[ !#-\[\]-~]|\\["\\])*)" *(?:;[ -~]*)?$')
# The form that most clients send today: visible characters without quotation marks.
_BARE: Final = re.compile(r"^ *([!#-+\-.-:<-\[\]-~]+) *$")


def parsed(values: Sequence[str]) -> str | None:
    """The key of a request; None if the request has none. `"abc"` and `abc` are the same key.

    Args:
        values: The value of each header of that name.

    Raises:
        Problem: The header is not a string, or stands there twice.
    """
    if not values:
        return None
    if len(values) > 1:
        raise malformed("The header stands there more than once.")
    (value,) = values
    if quoted := _QUOTED.match(value):
        key = re.sub(r"\\(.)", r"\1", quoted[1])
    elif bare := _BARE.match(value):
        key = bare[1]
    else:
        raise malformed(
            'The header must be a string of ASCII characters in quotation marks, such as "8e03978e".'
        )
    if not key or len(key) > LONGEST:
        raise malformed(f"The key must have 1 to {LONGEST} characters.")
    return key


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


def stored_name(prefix: str, name: str) -> str:
    """The key of a record in a store, which services with other prefixes may share: 250 characters at most.

    Args:
        prefix: The prefix of the session.
        name: The result of `name_of`.
    """
    shown = quote(prefix, safe="")
    if len(shown) > _LONGEST_PREFIX:
        shown = "#" + hashlib.blake2b(prefix.encode(), digest_size=16).hexdigest()
    return f"{shown}:{name}"
