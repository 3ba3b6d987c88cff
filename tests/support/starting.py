"""Work that each process of a run would do again: compiling modules, reading the metadata of redis-py.

Imported by ``conftest.py``, for its effects and for the hook.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from redis import utils

ROOT = Path(__file__).parents[2]

# A run starts hundreds of processes. Where the environment wants no bytecode, as containers do, each of them
# would compile the library, and all processes of xdist would compile the tests as well.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Newer versions of redis-py parse a file for this with each client, of which a run makes ten thousand.
if hasattr(utils, "get_lib_version"):
    utils.get_lib_version = functools.cache(utils.get_lib_version)


def pytest_sessionstart(session: pytest.Session) -> None:
    """In a process of xdist: spare the time that each module would wait for the others.

    The processes collect the same modules in the same order, and would all compile the same one at the same
    time. So each begins with modules of its own, and finds the others compiled.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    folders = [session.config.invocation_params.dir / argument for argument in session.config.args]
    modules = sorted(path for folder in folders for path in folder.resolve().rglob("test_*.py"))
    for path in modules[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with suppress(Exception, pytest.fail.Exception, pytest.skip.Exception):  # collecting it tells
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
