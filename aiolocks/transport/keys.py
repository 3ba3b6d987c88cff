"""How the names of locks become the names of keys.

```
{prefix}:{kind}:{name}                a name:               aiolocks:lock:{orders:17}
{prefix}:{kind}.{role}:{name}         what stands beside:   aiolocks:lock.fence:{orders:17}
{prefix}:{kind}:#…{tag}…              own hash tag:         aiolocks:lock:#user%3A{42}:cart
```

The whole name is the hash tag, so that all keys of one name share a slot; `%`, `{` and `}` in it are
percent-encoded. A name that brings a hash tag of its own keeps it: it is marked with `#` and stands as
it is, except that `%` and `:` before the tag are percent-encoded.

Invariant: (prefix, kind, role, name) → key is injective. Reading a key from its first brace to the
left, up to the colon, there is nothing (a plain name) or a `#` (a name with a tag) and no other
colon; then kind and role, which hold no colon; the rest is the prefix, which holds no brace.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Iterable
from typing import Final, NamedTuple, final

SLOTS: Final = 16_384
"""Into which a cluster divides all keys."""
ANY_KEY: Final = b"*:*:*{*}*"
"""The pattern, as SCAN takes it, of all keys that may be ours."""

# Redis hashes what stands between the first `{` and the first `}` behind it, if that is anything at all.
_HASH_TAG: Final = re.compile(r"[^{]*\{[^}]+\}", re.DOTALL)


# Most keys without their prefix: their name is plain, and nothing in it is encoded.
_PLAIN: Final = re.compile(rb"([^:{}.]+)(?:\.([^:{}]+))?:\{([^{}%]+)\}")


def key(prefix: str, kind: str, name: str, role: str = "") -> bytes:
    """The key of what stands under this name."""
    place = f"{prefix}:{kind}.{role}" if role else f"{prefix}:{kind}"
    if _HASH_TAG.match(name):
        before, brace, rest = name.partition("{")
        before = before.replace("%", "%25").replace(":", "%3A")
        return f"{place}:#{before}{brace}{rest}".encode()
    inner = name.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
    return f"{place}:{{{inner}}}".encode()


def keys_of(prefix: str, kind: str, name: str, roles: Iterable[str]) -> tuple[bytes, ...]:
    """The key of a name, then the keys of what stands beside it: as `key` makes them, for less."""
    own = key(prefix, kind, name)
    place = f"{prefix}:{kind}".encode()
    rest = own[len(place) :]
    return (own, *[b"%b.%b%b" % (place, role.encode(), rest) for role in roles])


@final
class ParsedKey(NamedTuple):
    """The parts of the name of a key."""

    kind: str
    role: str
    name: str


def slot_of(raw: bytes) -> int:
    """The slot of a key in a cluster, as Redis computes it: from the hash tag, if the key has one."""
    return crc_hqx(_hashed(raw), 0) % SLOTS


def tag_of(raw: bytes) -> bytes | None:
    """A hash tag, in its braces, that puts a key into the same slot; None: no tag does."""
    hashed = _hashed(raw)
    return None if b"}" in hashed else b"{%b}" % hashed


def _hashed(raw: bytes) -> bytes:
    begin = raw.find(b"{") + 1
    end = raw.find(b"}", begin) if begin else -1
    return raw[begin:end] if end > begin else raw


def parse(prefix: str, raw: bytes) -> ParsedKey | None:
    """Reads a key that begins with this prefix; None where none of ours could be called so."""
    head = f"{prefix}:".encode()
    try:
        if raw.startswith(head) and (match := _PLAIN.fullmatch(raw, len(head))):
            return ParsedKey(match[1].decode(), (match[2] or b"").decode(), match[3].decode())
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    place, _, tail = text.removeprefix(f"{prefix}:").partition(":")
    kind, _, role = place.partition(".")
    if tail.startswith("#"):
        before, brace, rest = tail[1:].partition("{")
        name = before.replace("%3A", ":").replace("%25", "%") + brace + rest
    else:
        name = tail[1:-1].replace("%7B", "{").replace("%7D", "}").replace("%25", "%")
    # Written again, a key that is not as we write it becomes another one.
    if not kind or not name or key(prefix, kind, name, role) != raw:
        return None
    return ParsedKey(kind, role, name)


def prefix_of(raw: bytes) -> str | None:
    """The prefix of a key that may be ours; None of any other."""
    try:
        before, brace, _ = raw.decode().partition("{")
    except UnicodeDecodeError:
        return None
    place, colon, _ = before.rpartition(":")
    prefix, colon, _ = place.rpartition(":")
    return prefix if brace and colon else None


def every_key(prefix: str) -> bytes:
    """The pattern, as SCAN takes it, of all keys with this prefix."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", prefix).encode() + b":*"
