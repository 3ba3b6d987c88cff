"""The `aiolocks` command: `demo` and `run`. It needs the `cli` extra."""

from __future__ import annotations

import logging
import sys
from typing import Final

__all__ = ["main"]

_EXTRA: Final = ("click", "rich")


def main() -> None:
    """The console script."""
    # What the library logs, such as a loss, the commands say in their own words, once.
    logging.getLogger("aiolocks").addHandler(logging.NullHandler())
    try:
        from .app import app  # noqa: PLC0415 - where it is missing, that is to be said in one line

        app(prog_name="aiolocks")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.exit("aiolocks: the command line needs click and rich: pip install 'aiolocks[cli]'")
