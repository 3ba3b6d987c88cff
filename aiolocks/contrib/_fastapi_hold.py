"""The callable behind a dependency of FastAPI that holds something while the handler of a request runs."""

# Annotations are objects in this module: FastAPI looks at them.

import functools
import inspect
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, cast, final

from fastapi import Depends, HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request

from .. import Session
from ..errors import LockLostError
from ..lock.lease import Lease
from ._fastapi_session import current_session
from ._fastapi_streams import Stream, dependants_of, stream_of
from ._handling import ASKED, Question
from ._holding import Gone, Held, Recipe, holding, hung_up
from ._limited import LimitsRecipe
from ._refusing import Refusal


@final
class Allowed(Exception):  # noqa: N818 - no error for a user
    """Ends a request that only asks, before the dependencies that are a part of the work."""


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
        # The parameters that FastAPI must fill in: the user's function has them, and the route gets them.
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
                for parameter, annotation in wanted.items()
            ]
        )

    def check(self, endpoint: Callable[..., Any], in_path: Iterable[str]) -> None:  # noqa: B027 - most need none
        """Returns if a route gives all that is needed; `in_path` are the parameters of its path.

        Raises:
            ConfigurationError: It does not.
        """

    @property
    @abstractmethod
    def statuses(self) -> tuple[int, ...]:
        """The statuses of its refusals."""

    @abstractmethod
    def _wanted(self, request: Request, *asked: Any) -> tuple[str, Recipe | LimitsRecipe]:
        """The name of what is held, and how."""

    async def __call__(
        self, *, connection: HTTPConnection, session: Session, until_sent: bool = False, **asked: Any
    ) -> AsyncGenerator[Lease, None]:
        if not isinstance(connection, Request):
            raise TypeError(self._websockets)
        only_asks = ASKED in connection.scope
        if only_asks and not self._is_taken(connection.scope):
            yield cast("Lease", None)  # no handler comes after this
            return
        stream = None if only_asks else stream_of(connection.scope, until_sent=until_sent)
        holds = self._holds(connection, session, asked, stream)
        async with holds if stream is None else stream.holds(holds, until_sent=until_sent) as held:
            yield held.lease

    def _is_taken(self, scope: MutableMapping[str, Any]) -> bool:
        """Whether another dependency that is asked alone takes the lease, and works under it."""
        return any(self._is_below(each) for root in dependants_of(scope) for each in _asked_alone(root))

    def _is_below(self, dependant: Any) -> bool:
        calls = (getattr(each.call, "hold", each.call) for each in dependant.dependencies)
        return self in calls or any(map(self._is_below, dependant.dependencies))

    @asynccontextmanager
    async def _holds(
        self, request: Request, session: Session, asked: Mapping[str, Any], stream: Stream | None
    ) -> AsyncGenerator[Held, None]:
        try:
            name, recipe = self._wanted(request, *asked.values())
            gone = await gone_from(request, name)
            async with holding(session, name, recipe, gone, route=route_of(request)) as held:
                yield held
        except Refusal as refusal:
            cause = refusal.__cause__
            # In the middle of an answer there is no other one: the server closes the connection.
            raises = _handled(request) or (stream is not None and stream.answers)
            if raises and refusal.begun and isinstance(cause, LockLostError):
                raise cause from None
            raise HTTPException(refusal.status, refusal.detail, refusal.headers) from refusal


async def ends_the_question(connection: HTTPConnection) -> None:
    """The last of the dependencies of a route that are asked alone; the handler's own come after it."""
    question: Question | None = connection.scope.get(ASKED)
    if question is not None:
        question.may = True
        raise Allowed


def _asked_alone(root: Any) -> Iterator[Any]:
    return itertools.takewhile(lambda each: each.call is not ends_the_question, root.dependencies)


def _handled(request: Request) -> bool:
    """Whether the application has an answer of its own for a lock that was lost."""
    return LockLostError in getattr(request.scope.get("app"), "exception_handlers", ())


def route_of(request: Request) -> str:
    """The method and the template of the path: its values are not for the log."""
    scope = request.scope
    return f"{scope.get('method', '')} {getattr(scope.get('route'), 'path', scope.get('path', ''))}"


async def gone_from(request: Request, name: str) -> Gone | None:
    """How to see that the client has hung up, without taking anything from the handler.

    The message that says so comes after the body, in the same queue. A body that is not read yet is left to
    the handler. The name is for the log.

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
            raise hung_up(route_of(request), name) from None
    return functools.partial(_gone, request)


async def _gone(request: Request) -> None:
    if (await request.receive())["type"] != "http.disconnect":
        # A middleware that has read the body gives it again and again: to go on would stop the event loop.
        raise ValueError("the body of the request came a second time")  # which only the log at DEBUG tells


def _has_no_body(request: Request) -> bool:
    length = request.headers.get("content-length")
    if length is not None:
        return length == "0"
    # With HTTP/1.1, a body is announced. Later versions need not do so.
    announced = request.scope.get("http_version", "1.1").startswith("1")
    return (announced or request.method in ("GET", "HEAD")) and "transfer-encoding" not in request.headers
