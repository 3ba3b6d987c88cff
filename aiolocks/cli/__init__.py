"""The `aiolocks` command, which runs programs under locks, shows and frees locks; needs the `cli` extra."""

from __future__ import annotations

import logging
import signal
import sys
from typing import Final

from .._extras import install
from .exits import CommandError, of_signal, say

__all__ = ["main"]

_EXTRA: Final = ("click", "rich")


def main() -> None:
    """The console script."""
    # The commands report the library's log lines, such as a loss, in their own words, once.
    logging.getLogger("aiolocks").addHandler(logging.NullHandler())
    try:
        from .app import app  # noqa: PLC0415 - where it is missing, that is to be said in one line

        app(prog_name="aiolocks")
    except CommandError as failure:
        say(failure)
        sys.exit(failure.status)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        say(f"the command line needs click and rich: {install('cli')}")
        sys.exit(1)
    except KeyboardInterrupt:  # before a command has taken care of signals itself
        sys.exit(of_signal(signal.SIGINT))
