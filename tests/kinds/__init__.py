"""One module a kind, beside which nothing else names it: `declared` collects for the tests of all kinds.

- `CONFORMS`: the kinds of the conformance suite.
- `FROZEN`: the digests of the sections of its Lua file, by name.
- `PUBLIC`: its public classes, each with its members.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any


def declared(what: str) -> list[Any]:
    """All that the modules here call so."""
    modules = [one.name for one in pkgutil.iter_modules(__path__)]
    found = [getattr(importlib.import_module(f"{__name__}.{name}"), what, None) for name in modules]
    return [one for one in found if one is not None]
