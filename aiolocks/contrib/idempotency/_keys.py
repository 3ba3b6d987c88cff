"""The value of the header `Idempotency-Key`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ._problems import malformed

LONGEST: Final = 255
"""Characters of a key; a UUID has 36."""

# A string of RFC 8941, section 3.3.3, and parameters after it, which mean nothing here.
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
