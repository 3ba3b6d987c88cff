"""The errors of redis-py that connections meet, by what they mean."""

from __future__ import annotations

from typing import Final

import redis.exceptions as driver

AnsweredError = driver.ResponseError
"""The server answered with an error."""
UnknownScriptError = driver.NoScriptError
"""The server does not know a script by its digest."""
UnreadableReplyError = driver.InvalidResponse
"""The bytes that came are no reply."""
BrokenError = driver.ConnectionError
"""There is no connection, or it has ended."""
UNANSWERED: Final = (driver.ConnectionError, driver.TimeoutError, OSError)
"""The errors after which it is not known whether the server has executed a request."""


def closed(why: str) -> Exception:
    """The end of a connection."""
    return driver.ConnectionError(why)


def silent(seconds: float) -> Exception:
    """The silence of a server."""
    return driver.TimeoutError(f"no reply for {seconds:g} s")
