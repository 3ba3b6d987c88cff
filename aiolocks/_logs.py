"""The loggers of the library: what a program has hung onto them cannot break the work of a session."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Final

_REPORT: Final = logging.Handler()
"""Writes the error of another handler to `sys.stderr`, as handlers of the standard library do."""


@functools.cache
def get_logger(name: str) -> logging.Logger:
    """As `logging.getLogger`, but an error in a filter or a handler of the program does not reach who logs.

    A filter, or the `emit` of a handler that a program has written, may raise, and `logging` passes that on
    to whoever logs. Here that would be the timer that renews all leases of a session, or an acquire that was
    granted. The error goes to `sys.stderr`, unless `logging.raiseExceptions` is off; handlers behind the one
    that has failed do not get the line.
    """
    log = logging.getLogger(name)
    # On the object itself: a program that has configured the logger before has decided on its class.
    vars(log)["handle"] = functools.partial(_handled, log.handle)
    return log


def _handled(handle: Callable[[logging.LogRecord], None], record: logging.LogRecord) -> None:
    try:
        handle(record)
    except Exception:  # noqa: BLE001 - it is the program's code
        _REPORT.handleError(record)


# A handler that looks for who has logged leaves the frames that are of this file: so does the one by which
# loguru's documentation takes the lines of `logging`, and so does the report of an error.
_handled.__code__ = _handled.__code__.replace(co_filename=logging.__file__)
