"""How an extra is installed, said in one place: the project has no name on a package index yet."""

from __future__ import annotations


def install(extra: str) -> str:
    """The command line; another package of that name may stand on an index, so it names none."""
    return f"pip install '.[{extra}]' in a clone of aiolocks"
