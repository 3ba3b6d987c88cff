"""The errors that redis-py would have raised."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import redis.exceptions as driver

from ...errors import LockError, SessionClosedError


@contextmanager
def as_redis_py() -> Generator[None, None, None]:
    """Raises the driver's error in place of ours."""
    try:
        yield
    except LockError as error:
        raise driver_error(error) from None


def driver_error(error: LockError) -> Exception:
    """The driver's error for one of ours: what it was, or what it would have been."""
    cause = error.__cause__
    if isinstance(cause, TimeoutError):
        return driver.TimeoutError(str(error))
    if isinstance(cause, OSError) or isinstance(error, SessionClosedError):
        return driver.ConnectionError(str(error))
    if isinstance(cause, Exception):
        return cause
    return driver.TimeoutError(str(error))
