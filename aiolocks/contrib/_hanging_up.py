"""How to see that a client of FastAPI has hung up while its request waits."""

from __future__ import annotations

import functools

from starlette.requests import ClientDisconnect, Request

from ._holding import Gone
from ._refusing import gone_away


async def gone_from(request: Request) -> Gone | None:
    """How to see that the client has hung up, without taking anything from the handler.

    The message that says so comes after the body, in the same queue. A body that is not read yet is left to
    the handler.

    Raises:
        Refusal: It has hung up already.
    """
    if not getattr(request, "_stream_consumed", False):
        if not _has_no_body(request):
            return None
        try:
            # There is none, and so this is at once. The request remembers it, for a handler that asks. Not
            # where it could be cancelled: then what says that there is none might be gone.
            await request.body()
        except ClientDisconnect:
            raise gone_away() from None
    return functools.partial(_gone, request)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _has_no_body(request: Request) -> bool:
    length = request.headers.get("content-length")
    if length is not None:
        return length == "0"
    # With HTTP/1.1, a body is announced. Later versions need not do so.
    announced = request.scope.get("http_version", "1.1").startswith("1")
    return (announced or request.method in ("GET", "HEAD")) and "transfer-encoding" not in request.headers
