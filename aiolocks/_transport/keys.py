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
from typing import Final

# Redis hashes what stands between the first `{` and the first `}` behind it, if that is anything at all.
_HASH_TAG: Final = re.compile(r"[^{]*\{[^}]+\}", re.DOTALL)


def key(prefix: str, kind: str, name: str, role: str = "") -> bytes:
    """The key of what stands under this name."""
    place = f"{prefix}:{kind}.{role}" if role else f"{prefix}:{kind}"
    if _HASH_TAG.match(name):
        before, brace, rest = name.partition("{")
        before = before.replace("%", "%25").replace(":", "%3A")
        return f"{place}:#{before}{brace}{rest}".encode()
    inner = name.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
    return f"{place}:{{{inner}}}".encode()
