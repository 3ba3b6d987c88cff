"""One module a kind, beside which nothing else names it: `declared` collects for the tests of all kinds.

- `PUBLIC`: its public classes, each with its members.
- `ROW`: its row in the table of kinds, as `Row` of `tests/docs/matrix.py` takes it.
- `FROZEN`: the digests of the sections of its Lua file, by name.
- `JUDGED`: the names of its sections whose mutants its module judges, in each run.
- `CONFORMS`: if it gives leases, rows of the conformance suite, as `Kind` of its `conftest.py` takes them.
- `WORLD`: the kind of the simulated world (`tests/simulation/world/wants.py`).
- `COUNTED_ONCE`: a step that counts once, for `tests/conformance/test_counted_once.py`.
- `ASKED`: a request of it, for an error that names what was asked for (`tests/unit/test_named_errors.py`).

A module here imports no table that collects from it.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any


def declared(what: str) -> list[Any]:
    """All that the modules here call so."""
    modules = [importlib.import_module(f"{__name__}.{one.name}") for one in pkgutil.iter_modules(__path__)]
    for module in modules:
        assert not getattr(module.__spec__, "_initializing", False), f"{module} imports a table of all kinds"
    found = [getattr(module, what, None) for module in modules]
    return [one for one in found if one is not None]
