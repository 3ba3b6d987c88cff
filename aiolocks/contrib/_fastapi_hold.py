"""The callable behind a dependency of FastAPI that holds something while the handler of a request runs."""

# Annotations are objects here, for FastAPI looks at them.

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import Annotated, Any, cast

from fastapi import Depends, HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request

from .. import Session
from ..errors import LockLostError
from ..lock.lease import Lease
from ._fastapi_session import current_session
from ._handling import current
from ._holding import Gone, Recipe, holding
from ._limited import LimitsRecipe
from ._refusing import Refusal, gone_away


class Hold(ABC):
    """The callable.

    Args:
        websockets: The error for the route of a websocket.
        asked: The dependency whose result says what is held, by its parameter; none where the request alone
            does.
    """

    def __init__(self, websockets: str, **asked: Any) -> None:
        self._websockets = websockets
        wanted: dict[str, Any] = {
            "connection": HTTPConnection,
            "session": Annotated[Session, Depends(current_session)],
        }
        for parameter, dependency in asked.items():
            wanted[parameter] = Annotated[Any, Depends(dependency)]
        # The parameters that FastAPI must fill in: those of the user's function become those of the route.
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
                for parameter, annotation in wanted.items()
            ]
        )

    @abstractmethod
    def _wanted(self, request: Request, *asked: Any) -> tuple[str, Recipe | LimitsRecipe]:
        """The name of what is held, and how."""

    async def __call__(
        self, *, connection: HTTPConnection, session: Session, **asked: Any
    ) -> AsyncGenerator[Lease, None]:
        if not isinstance(connection, Request):
            raise TypeError(self._websockets)
        handling = current()
        if handling is not None and handling.only_asks:
            yield cast("Lease", None)  # no handler comes after this
            return
        try:
            name, recipe = self._wanted(connection, *asked.values())
            gone, route = await _gone_from(connection), route_of(connection)
            async with holding(session, name, recipe, gone, route=route) as lease:
                yield lease
        except Refusal as refusal:
            cause = refusal.__cause__
            if refusal.begun and isinstance(cause, LockLostError) and _handled(connection):
                raise cause from None
            raise HTTPException(refusal.status, refusal.detail, refusal.headers) from refusal


def _handled(request: Request) -> bool:
    """Whether the application has an answer of its own for a lock that was lost."""
    return LockLostError in getattr(request.scope.get("app"), "exception_handlers", ())


def route_of(request: Request) -> str:
    """The method and the template of the path: its values are not for the log."""
    scope = request.scope
    return f"{scope.get('method', '')} {getattr(scope.get('route'), 'path', scope.get('path', ''))}"


async def _gone_from(request: Request) -> Gone | None:
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
